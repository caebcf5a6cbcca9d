-- Schema 1. Times are microseconds since 1970 in UTC. An id in the form of a UUID is kept as its
-- 16 bytes, any other id as text: rows and indexes are a third smaller for it.

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

-- The heads. Everything but `fence` and `deleted_us` is folded from the session's events.
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
    labels      TEXT,
    pending     INTEGER NOT NULL,
    pending_us  INTEGER,
    timers      TEXT,
    runnable_us INTEGER,
    deadline_us INTEGER,
    fence       INTEGER NOT NULL DEFAULT 0,
    deleted_us  INTEGER,
    tomb_crc    INTEGER  -- of a deleted session's row, which has no log to be held against
) STRICT;

CREATE UNIQUE INDEX sessions_by_key ON sessions (app, user, id);
CREATE INDEX sessions_by_created ON sessions (created_us, sid) WHERE deleted_us IS NULL;
CREATE INDEX sessions_by_app_created ON sessions (app, created_us, sid) WHERE deleted_us IS NULL;
CREATE INDEX sessions_by_user_created ON sessions (app, user, created_us, sid) WHERE deleted_us IS NULL;
CREATE INDEX sessions_by_app_updated ON sessions (app, updated_us, sid) WHERE deleted_us IS NULL;
CREATE INDEX sessions_by_user_updated ON sessions (app, user, updated_us, sid) WHERE deleted_us IS NULL;
CREATE INDEX sessions_runnable ON sessions (runnable_us) WHERE runnable_us IS NOT NULL;
CREATE INDEX sessions_deadline ON sessions (deadline_us) WHERE deadline_us IS NOT NULL;

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

-- The log of all sessions, in the order of their commits.
CREATE TABLE events (
    pos            INTEGER PRIMARY KEY AUTOINCREMENT,
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
    processed_us   INTEGER
) STRICT;

-- `type` is in the index so that a read by type looks at no row it does not return.
CREATE UNIQUE INDEX events_by_seq ON events (sid, seq, type);
-- Ids first: ours grow with time, so this index is written at its end whatever the session.
CREATE UNIQUE INDEX events_by_id ON events (id, sid);

-- A cache of the fold: one row a session, the newest. Losing one costs time, never data.
CREATE TABLE snapshots (
    sid      INTEGER PRIMARY KEY,
    seq      INTEGER NOT NULL,
    flags    INTEGER NOT NULL,
    body     BLOB NOT NULL,
    crc      INTEGER NOT NULL
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

-- What is left of erased sessions: a keyed hash of the key, the last seq and link.
CREATE TABLE erased (
    key_hash  BLOB PRIMARY KEY,
    version   INTEGER NOT NULL,
    link      BLOB NOT NULL,
    erased_us INTEGER NOT NULL,
    crc       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Logs of deleted sessions whose rows are still being removed, a little at a time.
CREATE TABLE purges (
    sid INTEGER PRIMARY KEY
) STRICT;
