-- Schema 3: heads that are cheap to move.

-- The transaction that last wrote events of the session. The feed orders by transaction, so the
-- next one to write must be younger.
ALTER TABLE limpet.sessions ADD COLUMN xid xid8 NOT NULL DEFAULT '0';

-- How often the database was moved to another server. Replaced by the first to open it there.
CREATE FUNCTION limpet.epoch() RETURNS bigint LANGUAGE sql IMMUTABLE AS $$ SELECT 0::bigint $$;

-- A transaction's place in the feed. Numbers of transactions begin anew when a dump is restored on
-- another server; the epoch, which opening raises then, keeps later ones above earlier ones.
CREATE FUNCTION limpet.stamp(of xid8) RETURNS xid8
LANGUAGE sql STABLE AS $$ SELECT ((limpet.epoch() << 48) + of::text::bigint)::text::xid8 $$;
ALTER TABLE limpet.events ALTER COLUMN xid SET DEFAULT limpet.stamp(pg_current_xact_id());

-- The schema of typed state.
ALTER TABLE limpet.sessions ADD COLUMN schema_version text COLLATE "C";

-- An update that changes no indexed column touches no index, if its page has room. So the order by
-- last activity is indexed by the second, within which the rows are sorted as they are read.
ALTER TABLE limpet.sessions ADD COLUMN updated_s bigint GENERATED ALWAYS AS (updated_us / 1000000) STORED;
ALTER TABLE limpet.sessions SET (fillfactor = 70);
DROP INDEX limpet.sessions_by_app_updated;
DROP INDEX limpet.sessions_by_owner_updated;
CREATE INDEX sessions_by_app_updated ON limpet.sessions (app, updated_s) WHERE deleted_us IS NULL;
CREATE INDEX sessions_by_owner_updated ON limpet.sessions (app, owner, updated_s) WHERE deleted_us IS NULL;
