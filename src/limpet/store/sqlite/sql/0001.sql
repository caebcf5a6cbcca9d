-- Schema 1. Times are microseconds since 1970 in UTC. An id in the form of a UUID is kept as its
-- 16 bytes, any other id as text: rows and indexes are a third smaller for it.

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

-- The heads of living sessions. Everything but the lease (fence, lease_us, leased_us, worker) is
-- folded from the session's events. `facts` is the document that the model folds; `due_us`,
-- `deadline_us` and `priority` are derived from it. `slot` is updated_us in coarse steps, and indexed
-- in its place: a burst of appends moves no entry of an index.
CREATE TABLE sessions (
    sid         INTEGER PRIMARY KEY AUTOINCREMENT,
    app         TEXT NOT NULL,
    user        TEXT NOT NULL,
    id          TEXT NOT NULL,
    uid         ANY NOT NULL,
    version     INTEGER NOT NULL,
    link        BLOB NOT NULL,
    created_us  INTEGER NOT NULL,
    updated_us  INTEGER NOT NULL,
    active_us   INTEGER NOT NULL,
    slot        INTEGER NOT NULL,
    facts       TEXT,
    due_us      INTEGER,
    deadline_us INTEGER,
    priority    INTEGER NOT NULL,
    floor       INTEGER NOT NULL,
    parent      INTEGER,  -- the sid whose events up to `floor` this log goes on from
    fence       INTEGER NOT NULL DEFAULT 0,
    lease_us    INTEGER,
    leased_us   INTEGER,
    worker      TEXT,
    standing    TEXT GENERATED ALWAYS AS (facts ->> '$.standing') VIRTUAL
) STRICT;

CREATE INDEX sessions_by_uid ON sessions (uid);
CREATE UNIQUE INDEX sessions_by_key ON sessions (app, user, id);
CREATE INDEX sessions_by_created ON sessions (created_us, sid);
CREATE INDEX sessions_by_app_created ON sessions (app, created_us, sid);
CREATE INDEX sessions_by_user_created ON sessions (app, user, created_us, sid);
CREATE INDEX sessions_by_app_slot ON sessions (app, slot, sid);
CREATE INDEX sessions_by_user_slot ON sessions (app, user, slot, sid);
CREATE INDEX sessions_by_deadline ON sessions (deadline_us) WHERE deadline_us IS NOT NULL;
CREATE INDEX sessions_by_standing ON sessions (app, standing, sid) WHERE standing IS NOT NULL;
CREATE INDEX sessions_by_leased ON sessions (leased_us) WHERE leased_us IS NOT NULL;
CREATE INDEX sessions_by_parent ON sessions (parent, floor) WHERE parent IS NOT NULL;
-- A claim skips from priority to priority, of which there are few, and in each takes the first.
CREATE INDEX sessions_by_due ON sessions (priority, coalesce(lease_us, due_us), sid)
WHERE coalesce(lease_us, due_us) IS NOT NULL;
CREATE INDEX sessions_by_app_due ON sessions (app, priority, coalesce(lease_us, due_us), sid)
WHERE coalesce(lease_us, due_us) IS NOT NULL;

-- What is left of deleted sessions. A key may have been used, and deleted, several times. Its rows of
-- the log stay as far as forks of it read them.
CREATE TABLE tombstones (
    sid        INTEGER PRIMARY KEY,
    app        TEXT NOT NULL,
    user       TEXT NOT NULL,
    id         TEXT NOT NULL,
    uid        ANY NOT NULL,
    version    INTEGER NOT NULL,
    link       BLOB NOT NULL,
    created_us INTEGER NOT NULL,
    updated_us INTEGER NOT NULL,
    active_us  INTEGER NOT NULL,
    floor      INTEGER NOT NULL,
    parent     INTEGER,
    deleted_us INTEGER NOT NULL,
    ending     TEXT NOT NULL,
    crc        INTEGER NOT NULL  -- of this row, which has no log to be compared with
) STRICT;

CREATE INDEX tombstones_by_uid ON tombstones (uid);
CREATE INDEX tombstones_by_key ON tombstones (app, user, id, sid);
CREATE INDEX tombstones_by_parent ON tombstones (parent, floor) WHERE parent IS NOT NULL;

-- One row for each label of a living session, so that a page by label is an index range.
CREATE TABLE labels (
    app        TEXT NOT NULL,
    name       TEXT NOT NULL,
    value      TEXT NOT NULL,
    created_us INTEGER NOT NULL,
    sid        INTEGER NOT NULL,
    user       TEXT NOT NULL,
    PRIMARY KEY (app, name, value, created_us, sid)
) STRICT, WITHOUT ROWID;

CREATE INDEX labels_by_user ON labels (app, user, name, value, created_us, sid);

-- The log of all sessions, in the order of their commits. `pos` only grows, also past events that are
-- gone: see `feed` in meta. It is mixed into `crc`, so that an event in another's place shows.
-- `processed` is NULL if the event is not an input, 0 while it is pending, then the seq of the event
-- that processed it.
CREATE TABLE events (
    pos            INTEGER PRIMARY KEY,
    sid            INTEGER NOT NULL,
    seq            INTEGER NOT NULL,
    id             ANY NOT NULL,
    type           TEXT NOT NULL,
    actor          TEXT NOT NULL,
    at_us          INTEGER NOT NULL,
    cause          ANY,
    invocation_id  ANY,
    correlation_id ANY,
    wake_id        ANY,
    flags          INTEGER NOT NULL,
    body           BLOB NOT NULL,
    crc            INTEGER NOT NULL,
    salt           BLOB NOT NULL,
    digest         BLOB NOT NULL,
    link           BLOB NOT NULL,
    processed      INTEGER
) STRICT;

-- `type` is in the index so that a read by type looks at no row it does not return.
CREATE UNIQUE INDEX events_by_seq ON events (sid, seq, type);
-- Ids first: ours grow with time, so this index is written at its end whatever the session.
CREATE UNIQUE INDEX events_by_id ON events (id, sid);
CREATE INDEX events_pending ON events (sid, seq) WHERE processed = 0;

-- States of the fold, a ladder of them for each session. Losing one costs time, never data. `pin` is
-- the number of the checkpoint that a snapshot belongs to.
CREATE TABLE snapshots (
    sid   INTEGER NOT NULL,
    seq   INTEGER NOT NULL,
    flags INTEGER NOT NULL,
    body  BLOB NOT NULL,
    crc   INTEGER NOT NULL,
    pin   INTEGER,
    PRIMARY KEY (sid, seq)
) STRICT;

-- Runs of a session's oldest events, compressed together in the place of their rows. `previous` and
-- `link` are the links before and after. Of each event a hash of its id says in which segment it is.
CREATE TABLE segments (
    sid      INTEGER NOT NULL,
    first    INTEGER NOT NULL,
    last     INTEGER NOT NULL,
    flags    INTEGER NOT NULL,
    body     BLOB NOT NULL,
    crc      INTEGER NOT NULL,
    previous BLOB NOT NULL,
    link     BLOB NOT NULL,
    last_us  INTEGER NOT NULL,
    PRIMARY KEY (sid, first)
) STRICT;

CREATE TABLE segment_ids (
    sid  INTEGER NOT NULL,
    mark INTEGER NOT NULL,
    seq  INTEGER NOT NULL,
    PRIMARY KEY (sid, mark, seq)
) STRICT, WITHOUT ROWID;

-- The states that logs begin on, where that is not nothing.
CREATE TABLE bases (
    sid   INTEGER PRIMARY KEY,
    flags INTEGER NOT NULL,
    body  BLOB NOT NULL,
    crc   INTEGER NOT NULL
) STRICT;

-- app: and user: names, append-only. `user` is '' for app: names. A row holds the whole value
-- (form 0), the op that made it from the row before (form 1), or says it was deleted (form 2);
-- `base` is the newest version at or before this one that does not need the row before it.
CREATE TABLE scopes (
    pos     INTEGER PRIMARY KEY,
    app     TEXT NOT NULL,
    user    TEXT NOT NULL,
    name    TEXT NOT NULL,
    version INTEGER NOT NULL,
    base    INTEGER NOT NULL,
    form    INTEGER NOT NULL,
    flags   INTEGER NOT NULL,
    body    BLOB NOT NULL,
    crc     INTEGER NOT NULL,
    uid     ANY NOT NULL,
    seq     INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX scopes_by_name ON scopes (app, user, name, version);

-- What is left of erased sessions, and of erased users: a keyed hash of the key, the last seq and link.
CREATE TABLE erased (
    key_hash   BLOB PRIMARY KEY,
    version    INTEGER NOT NULL,
    link       BLOB NOT NULL,
    erased_us  INTEGER NOT NULL,
    forks_kept INTEGER NOT NULL,
    crc        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Logs of ended sessions whose rows are still being removed, a little at a time.
CREATE TABLE purges (
    sid INTEGER PRIMARY KEY
) STRICT;

-- Large contents beside the logs, each of one session and known by its SHA-256. Without a hash it is
-- an upload, which nobody sees: `chunks` counts those that came, `touched_us` is when the last did.
-- `version` is that of the session when the blob was put.
CREATE TABLE blobs (
    bid        INTEGER PRIMARY KEY,
    sid        INTEGER NOT NULL,
    upload     TEXT NOT NULL,
    hash       BLOB,
    version    INTEGER,
    chunks     INTEGER NOT NULL,
    touched_us INTEGER NOT NULL,
    flags      INTEGER,
    body       BLOB,
    crc        INTEGER
) STRICT;

CREATE UNIQUE INDEX blobs_by_hash ON blobs (sid, hash);
CREATE UNIQUE INDEX blobs_by_upload ON blobs (upload, sid) WHERE hash IS NULL;
CREATE INDEX blobs_by_touched ON blobs (touched_us) WHERE hash IS NULL;

CREATE TABLE blob_chunks (
    bid    INTEGER NOT NULL,
    number INTEGER NOT NULL,
    flags  INTEGER NOT NULL,
    body   BLOB NOT NULL,
    crc    INTEGER NOT NULL,
    PRIMARY KEY (bid, number)
) STRICT;

-- Small facts of the store itself, each with an end: nonces, revocations, counters.
CREATE TABLE marks (
    space    TEXT NOT NULL,
    name     TEXT NOT NULL,
    until_us INTEGER NOT NULL,
    value    INTEGER NOT NULL,
    PRIMARY KEY (space, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX marks_by_until ON marks (until_us);
