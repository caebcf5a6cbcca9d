-- Schema 1. Times are microseconds since 1970 in UTC. Names compare by code point (COLLATE "C"), as
-- in every other store.

CREATE TABLE limpet.meta (
    name  text PRIMARY KEY,
    value bytea NOT NULL
);

-- How far the numbers of transactions are offset in the feed. Replaced when they begin again at lower
-- ones: on another server, after the server was put back in time, or when a standby took its place.
CREATE FUNCTION limpet.epoch() RETURNS bigint LANGUAGE sql IMMUTABLE AS $$ SELECT 0::bigint $$;

-- A transaction's place in the feed: its number and the offset.
CREATE FUNCTION limpet.stamp(of xid8) RETURNS xid8
LANGUAGE sql STABLE AS $$ SELECT (limpet.epoch() + of::text::bigint)::text::xid8 $$;

-- The heads of living sessions. All but fence and lease is folded from the session's events, by the
-- model: `facts` is its document (NULL: empty), and due_us, deadline_us and priority are what follows
-- from it. `owner` is the key's user.
--
-- An update that changes no indexed column touches no index, if its page has room. So the order of
-- updates is indexed by a coarse slot, a quarter of a second, within which rows are sorted as they are read.
CREATE TABLE limpet.sessions (
    sid         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    app         text COLLATE "C" NOT NULL,
    owner       text COLLATE "C" NOT NULL,
    id          text COLLATE "C" NOT NULL,
    uid         text COLLATE "C" NOT NULL,
    version     bigint NOT NULL,
    link        bytea NOT NULL,
    created_us  bigint NOT NULL,
    updated_us  bigint NOT NULL,
    slot        bigint GENERATED ALWAYS AS (updated_us >> 18) STORED,
    active_us   bigint NOT NULL,
    facts       jsonb,
    due_us      bigint,
    deadline_us bigint,
    priority    integer NOT NULL DEFAULT 0,
    standing    text COLLATE "C" GENERATED ALWAYS AS (facts ->> 'standing') STORED,
    fence       bigint NOT NULL DEFAULT 0,
    lease_us    bigint,
    leased_us   bigint, -- when the lease was granted or renewed, or the session was held back
    worker      text COLLATE "C",
    floor       bigint NOT NULL DEFAULT 0, -- the log begins after it, on a state of the parent
    parent      bigint, -- its sid; NULL: there is none, or it was erased
    adopted     bigint NOT NULL DEFAULT 0, -- up to here, events that another store recorded
    -- The transaction that last wrote events. The feed orders by transaction, so the next one to write
    -- must be younger.
    xid         xid8 NOT NULL DEFAULT '0',
    UNIQUE (app, owner, id)
) WITH (fillfactor = 70);

CREATE INDEX sessions_by_uid ON limpet.sessions (uid);
CREATE INDEX sessions_by_created ON limpet.sessions (created_us, sid);
CREATE INDEX sessions_by_app_created ON limpet.sessions (app, created_us, sid);
CREATE INDEX sessions_by_owner_created ON limpet.sessions (app, owner, created_us, sid);
CREATE INDEX sessions_by_app_slot ON limpet.sessions (app, slot, sid);
CREATE INDEX sessions_by_owner_slot ON limpet.sessions (app, owner, slot, sid);
-- A claim skips from priority to priority, of which there are few, and in each takes the first.
CREATE INDEX sessions_by_due ON limpet.sessions (priority, coalesce(lease_us, due_us), sid)
    WHERE coalesce(lease_us, due_us) IS NOT NULL;
CREATE INDEX sessions_by_app_due ON limpet.sessions (app, priority, coalesce(lease_us, due_us), sid)
    WHERE coalesce(lease_us, due_us) IS NOT NULL;
CREATE INDEX sessions_by_deadline ON limpet.sessions (deadline_us) WHERE deadline_us IS NOT NULL;
CREATE INDEX sessions_by_leased ON limpet.sessions (leased_us) WHERE lease_us IS NOT NULL;
CREATE INDEX sessions_by_standing ON limpet.sessions (app, standing, sid) WHERE standing IS NOT NULL;
CREATE INDEX sessions_by_parent ON limpet.sessions (parent, floor) WHERE parent IS NOT NULL;

-- What is left of deleted sessions: several under one key, if it was used again.
CREATE TABLE limpet.tombstones (
    sid        bigint PRIMARY KEY, -- as it was
    app        text COLLATE "C" NOT NULL,
    owner      text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    uid        text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    link       bytea NOT NULL,
    created_us bigint NOT NULL,
    updated_us bigint NOT NULL,
    active_us  bigint NOT NULL,
    floor      bigint NOT NULL,
    parent     bigint,
    deleted_us bigint NOT NULL,
    ending     text COLLATE "C" NOT NULL,
    crc        bigint NOT NULL
);
CREATE INDEX tombstones_by_uid ON limpet.tombstones (uid);
CREATE INDEX tombstones_by_key ON limpet.tombstones (app, owner, id, sid);
CREATE INDEX tombstones_by_parent ON limpet.tombstones (parent, floor) WHERE parent IS NOT NULL;

-- One row for each label of a session: a page by label, in order, is an index range.
CREATE TABLE limpet.labels (
    app        text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    value      text COLLATE "C" NOT NULL,
    created_us bigint NOT NULL,
    sid        bigint NOT NULL,
    owner      text COLLATE "C" NOT NULL,
    PRIMARY KEY (app, name, value, created_us, sid)
);
CREATE INDEX labels_by_owner ON limpet.labels (app, owner, name, value, created_us, sid);
CREATE INDEX labels_by_session ON limpet.labels (sid);

-- The log. (xid, pos) is the feed's order: what lies below the snapshot horizon is complete. pos counts
-- within the transaction. Both are in the checksum (limpet.checked), so that rows whose positions were
-- swapped show. A row never changes but for `processed`: NULL, not an input; 0, pending; else the seq of
-- the event that processed it.
CREATE TABLE limpet.events (
    xid            xid8 NOT NULL,
    pos            bigint NOT NULL,
    sid            bigint NOT NULL,
    seq            bigint NOT NULL,
    id             text COLLATE "C" NOT NULL,
    type           text COLLATE "C" NOT NULL,
    actor          text COLLATE "C" NOT NULL,
    at_us          bigint NOT NULL,
    cause          text COLLATE "C",
    invocation_id  text COLLATE "C",
    correlation_id text COLLATE "C",
    wake_id        text COLLATE "C",
    flags          integer NOT NULL,
    body           bytea NOT NULL,
    crc            bigint NOT NULL,
    salt           bytea NOT NULL,
    digest         bytea NOT NULL,
    link           bytea NOT NULL,
    processed      bigint
);
CREATE UNIQUE INDEX events_by_seq ON limpet.events (sid, seq) INCLUDE (type);
CREATE UNIQUE INDEX events_by_id ON limpet.events (id, sid);
CREATE UNIQUE INDEX events_feed ON limpet.events (xid, pos);
CREATE INDEX events_pending ON limpet.events (sid, seq) WHERE processed = 0;

-- A ladder: see `thin_snapshots`. `pin` is the number of the checkpoint that owns it.
CREATE TABLE limpet.snapshots (
    sid   bigint NOT NULL,
    seq   bigint NOT NULL,
    flags integer NOT NULL,
    body  bytea NOT NULL,
    crc   bigint NOT NULL,
    pin   bigint,
    PRIMARY KEY (sid, seq)
);

-- Runs of a session's oldest events, compressed together in the place of their rows. `previous` and
-- `link` are the links before and after. Of each event a hash of its id says in which segment it is.
CREATE TABLE limpet.segments (
    sid      bigint NOT NULL,
    first    bigint NOT NULL,
    last     bigint NOT NULL,
    flags    integer NOT NULL,
    body     bytea NOT NULL,
    crc      bigint NOT NULL,
    previous bytea NOT NULL,
    link     bytea NOT NULL,
    last_us  bigint NOT NULL,
    PRIMARY KEY (sid, first)
);
CREATE TABLE limpet.segment_ids (
    sid  bigint NOT NULL,
    mark bigint NOT NULL,
    seq  bigint NOT NULL,
    PRIMARY KEY (sid, mark, seq)
);

-- The states that logs with a floor begin on.
CREATE TABLE limpet.bases (
    sid   bigint PRIMARY KEY,
    flags integer NOT NULL,
    body  bytea NOT NULL,
    crc   bigint NOT NULL
);

CREATE TABLE limpet.scopes (
    app     text COLLATE "C" NOT NULL,
    owner   text COLLATE "C" NOT NULL,
    name    text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    base    bigint NOT NULL,
    form    integer NOT NULL,
    flags   integer NOT NULL,
    body    bytea NOT NULL,
    crc     bigint NOT NULL,
    uid     text COLLATE "C" NOT NULL,
    seq     bigint NOT NULL,
    PRIMARY KEY (app, owner, name, version)
);

-- How many names each owner has, and ever had: who adds one counts nothing else.
CREATE TABLE limpet.scope_owners (
    app   text COLLATE "C" NOT NULL,
    owner text COLLATE "C" NOT NULL,
    names bigint NOT NULL,
    ever  bigint NOT NULL,
    PRIMARY KEY (app, owner)
);

CREATE TABLE limpet.erased (
    key_hash   bytea PRIMARY KEY,
    version    bigint NOT NULL,
    link       bytea NOT NULL,
    erased_us  bigint NOT NULL,
    forks_kept bigint NOT NULL,
    crc        bigint NOT NULL
);

-- Large contents beside the logs, each of one session and known by its SHA-256. Without a hash it is
-- an upload, which nobody sees: `chunks` counts those that came, `touched_us` is when the last did.
-- `version` is that of the session when the blob was put.
CREATE TABLE limpet.blobs (
    bid        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    sid        bigint NOT NULL,
    upload     text COLLATE "C" NOT NULL,
    hash       bytea,
    version    bigint,
    chunks     bigint NOT NULL,
    touched_us bigint NOT NULL,
    flags      integer,
    body       bytea,
    crc        bigint
);
CREATE UNIQUE INDEX blobs_by_hash ON limpet.blobs (sid, hash);
CREATE INDEX blobs_by_upload ON limpet.blobs (upload) WHERE hash IS NULL;
CREATE INDEX blobs_by_touched ON limpet.blobs (touched_us) WHERE hash IS NULL;

CREATE TABLE limpet.blob_chunks (
    bid    bigint NOT NULL,
    number bigint NOT NULL,
    flags  integer NOT NULL,
    body   bytea NOT NULL,
    crc    bigint NOT NULL,
    PRIMARY KEY (bid, number)
);
-- Chunks are compressed where that pays, and often sealed: the server need not try.
ALTER TABLE limpet.blob_chunks ALTER COLUMN body SET STORAGE EXTERNAL;

-- Small facts of the store itself, each with an end: nonces, revocations, counters.
CREATE TABLE limpet.marks (
    space    text COLLATE "C" NOT NULL,
    name     text COLLATE "C" NOT NULL,
    until_us bigint NOT NULL,
    value    bigint NOT NULL,
    PRIMARY KEY (space, name)
);
CREATE INDEX marks_by_until ON limpet.marks (until_us);
