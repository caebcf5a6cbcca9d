-- name: durable
-- An acknowledged commit is on disk even where the role or the database defaults to less.
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'

-- name: durable_locally
-- The same for one transaction, where the next one may be another process's of the server.
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'

-- name: patient
-- Limits of the role or the database that are too short to work under; longer ones stay. The last
-- is unknown before PostgreSQL 17, the second before 14.
SELECT set_config(l.name, l.value, false) FROM (VALUES
    ('idle_in_transaction_session_timeout', interval '1 minute', '1min'),
    ('idle_session_timeout', interval '1 minute', '1min'),
    ('transaction_timeout', interval '1 hour', '0')) l (name, least, value)
WHERE current_setting(l.name, true)::interval > interval '0' AND current_setting(l.name, true)::interval < l.least

-- name: patient_locally
-- The same for one transaction. How long sessions may rest between transactions is the pooler's to
-- know.
SELECT set_config(l.name, l.value, true) FROM (VALUES
    ('idle_in_transaction_session_timeout', interval '1 minute', '1min'),
    ('transaction_timeout', interval '1 hour', '0')) l (name, least, value)
WHERE current_setting(l.name, true)::interval > interval '0' AND current_setting(l.name, true)::interval < l.least

-- name: lock_migration
-- One process at a time migrates; the number only has to be ours.
SELECT pg_advisory_xact_lock(1279872336)

-- name: create_schema
CREATE SCHEMA IF NOT EXISTS limpet

-- name: schema_exists
-- Read from the catalogue's tables: to_regnamespace remembers, over the wait for a lock, that a name
-- was not there.
SELECT count(*) FROM pg_namespace WHERE nspname = 'limpet'

-- name: meta_exists
SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'limpet' AND c.relname = 'meta'

-- name: schema_occupied
SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'limpet'

-- name: meta
SELECT value FROM limpet.meta WHERE name = $1

-- name: meta_values
SELECT name, value FROM limpet.meta WHERE name = ANY ($1::text[])

-- name: keep_meta
INSERT INTO limpet.meta VALUES ($1, $2) ON CONFLICT DO NOTHING

-- name: put_meta
INSERT INTO limpet.meta VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: server_identity
-- Differs on every other server, also on one that a dump of this one was restored on, and on this one
-- after it was put back to an earlier time or a standby took its place. (Of a standby that was just
-- promoted the control file knows the old timeline for a while.)
SELECT system_identifier || '/' || CASE WHEN pg_is_in_recovery() THEN timeline_id
    ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer END
FROM pg_control_system(), pg_control_checkpoint()

-- name: lock_events
-- Nobody may write while the epoch is raised: what is under way has its place from before.
LOCK TABLE limpet.events IN SHARE MODE

-- name: raise_epoch
-- From now on places in the feed begin at the clock's milliseconds, so that a backup that is restored
-- twice does not hand out the same places twice.
DO $$ BEGIN
    EXECUTE format('CREATE OR REPLACE FUNCTION limpet.epoch() RETURNS bigint LANGUAGE sql IMMUTABLE '
                   'AS $f$ SELECT %s::bigint $f$', (
        SELECT greatest((extract(epoch FROM clock_timestamp()) * 1000)::bigint << 20,
                        (SELECT xid::text::bigint + 1 FROM limpet.events ORDER BY xid DESC LIMIT 1))
               - pg_current_xact_id()::text::bigint));
END $$
