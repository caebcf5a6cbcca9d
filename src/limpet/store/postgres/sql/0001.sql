-- Schema 1. Times are microseconds since 1970 in UTC, by the server's clock. Names compare by
-- code point (COLLATE "C"), as in every other store.

CREATE TABLE limpet.meta (
    name  text PRIMARY KEY,
    value bytea NOT NULL
);

-- The heads. Everything but fence, lease and deletion is folded from the session's events.
-- `owner` is the key's user. For readers of F186: state_version is version, state_blob and
-- checksum are in snapshots, metadata is labels, last_active_at is updated_us, expires_at is
-- deadline_us.
CREATE TABLE limpet.sessions (
    sid            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    app            text COLLATE "C" NOT NULL,
    owner          text COLLATE "C" NOT NULL,
    id             text COLLATE "C" NOT NULL,
    uid            text COLLATE "C" NOT NULL,
    version        bigint NOT NULL,
    link           bytea NOT NULL,
    created_us     bigint NOT NULL,
    updated_us     bigint NOT NULL,
    labels         jsonb NOT NULL DEFAULT '{}',
    pending        integer NOT NULL DEFAULT 0,
    pending_us     bigint,
    timers         jsonb NOT NULL DEFAULT '{}',
    wake_us        bigint,
    deadline_us    bigint,
    runnable_us    bigint,
    fence          bigint NOT NULL DEFAULT 0,
    deleted_us     bigint,
    UNIQUE (app, owner, id)
);

CREATE INDEX sessions_by_created ON limpet.sessions (created_us, sid) WHERE deleted_us IS NULL;
CREATE INDEX sessions_by_app_created ON limpet.sessions (app, created_us, sid) WHERE deleted_us IS NULL;
CREATE INDEX sessions_by_owner_created ON limpet.sessions (app, owner, created_us, sid) WHERE deleted_us IS NULL;
CREATE INDEX sessions_by_app_updated ON limpet.sessions (app, updated_us, sid) WHERE deleted_us IS NULL;
CREATE INDEX sessions_by_owner_updated ON limpet.sessions (app, owner, updated_us, sid) WHERE deleted_us IS NULL;
CREATE INDEX sessions_runnable ON limpet.sessions (runnable_us) WHERE runnable_us IS NOT NULL;
CREATE INDEX sessions_deadline ON limpet.sessions (deadline_us) WHERE deadline_us IS NOT NULL;
CREATE INDEX sessions_labels ON limpet.sessions USING gin (labels jsonb_path_ops) WHERE deleted_us IS NULL;

-- One row for each label of a living session: a page by label, in order, is an index range.
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

-- The log. (xid, pos) is the feed's order: what lies below the snapshot horizon is complete.
CREATE TABLE limpet.events (
    pos            bigint GENERATED ALWAYS AS IDENTITY,
    xid            xid8 NOT NULL DEFAULT pg_current_xact_id(),
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
    processed_us   bigint
);
CREATE UNIQUE INDEX events_by_seq ON limpet.events (sid, seq) INCLUDE (type);
CREATE UNIQUE INDEX events_by_id ON limpet.events (id, sid);
CREATE INDEX events_feed ON limpet.events (xid, pos);

CREATE TABLE limpet.snapshots (
    sid      bigint PRIMARY KEY,
    seq      bigint NOT NULL,
    flags    integer NOT NULL,
    body     bytea NOT NULL,
    crc      bigint NOT NULL
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

CREATE TABLE limpet.erased (
    key_hash  bytea PRIMARY KEY,
    version   bigint NOT NULL,
    link      bytea NOT NULL,
    erased_us bigint NOT NULL
);
