-- name: server_settings
SELECT name, setting FROM pg_settings WHERE name IN (
    'server_version', 'server_version_num', 'fsync', 'synchronous_commit', 'full_page_writes',
    'wal_level', 'autovacuum', 'server_encoding', 'default_transaction_read_only')

-- name: connection_room
SELECT current_setting('max_connections')::int
           - current_setting('superuser_reserved_connections')::int AS most,
       count(*)::int AS used, count(*) FILTER (WHERE application_name = 'limpet')::int AS ours
  FROM pg_stat_activity
 WHERE datid IS NOT NULL AND coalesce(backend_type, 'client backend') = 'client backend'

-- name: replicas
SELECT pg_is_in_recovery() AS standby, count(r.pid)::int AS replicas,
       count(*) FILTER (WHERE r.sync_state IN ('sync', 'quorum'))::int AS synchronous,
       coalesce(max(CASE WHEN pg_is_in_recovery() THEN 0
           ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), r.replay_lsn) END), 0)::bigint AS lag_bytes,
       (SELECT count(*)::int FROM pg_replication_slots WHERE NOT active) AS idle_slots
  FROM pg_stat_replication r

-- name: wal_size
SELECT (SELECT coalesce(sum(size), 0) FROM pg_ls_waldir())::bigint AS held,
       (SELECT setting::bigint * 1048576 FROM pg_settings WHERE name = 'max_wal_size') AS most

-- name: dead_rows
SELECT relname::text AS name, n_dead_tup AS dead, n_live_tup AS live
  FROM pg_stat_user_tables WHERE schemaname = 'limpet' ORDER BY relname

-- name: invalid_indexes
SELECT c.relname::text AS name FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
 WHERE c.relnamespace = 'limpet'::regnamespace AND NOT (i.indisvalid AND i.indisready)

-- name: label_differences
-- Each label of a living session is a row of `labels`, and each row is such a label.
WITH heads AS (
    SELECT s.sid, l.key AS name, l.value FROM limpet.sessions s, jsonb_each_text(s.facts -> 'labels') l),
listed AS (SELECT sid, name, value FROM limpet.labels)
SELECT count(*)::int FROM (
    (TABLE heads EXCEPT TABLE listed) UNION ALL (TABLE listed EXCEPT TABLE heads)) AS differing

-- name: orphan_rows
-- Events of a deleted session stay for those that began on it.
SELECT ((SELECT count(*) FROM limpet.events e WHERE NOT EXISTS (
            SELECT FROM limpet.sessions s WHERE s.sid = e.sid) AND NOT EXISTS (
            SELECT FROM limpet.tombstones t WHERE t.sid = e.sid AND e.seq <= limpet.needed(t.sid)))
      + (SELECT count(*) FROM limpet.snapshots n WHERE NOT EXISTS (
            SELECT FROM limpet.sessions s WHERE s.sid = n.sid) AND NOT EXISTS (
            SELECT FROM limpet.tombstones t WHERE t.sid = n.sid AND n.seq <= limpet.needed(t.sid))))::int

-- name: open_transactions
-- A transaction that has a number and has not ended hides everything after it from the feed.
SELECT 'process ' || pid || ' of ' || coalesce(usename, '?') AS who,
       extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds
  FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
 UNION ALL
SELECT 'prepared transaction ' || gid,
       extract(epoch FROM clock_timestamp() - prepared)::float8 FROM pg_prepared_xacts
 ORDER BY 2 DESC

-- name: sessions_ahead
SELECT count(*) FROM limpet.sessions
 WHERE updated_us > limpet.now_us() + $1::bigint

-- name: schema_number
SELECT value FROM limpet.meta WHERE name = 'schema'

-- name: sees_monitoring
SELECT pg_has_role('pg_monitor', 'usage')

-- name: take_lock
SELECT pg_advisory_xact_lock($1)

-- name: try_lock
-- Locks are those of one database on one server: taken elsewhere, this one is free here.
SELECT pg_try_advisory_xact_lock($1)

-- name: server_process
SELECT pg_backend_pid()

-- name: server_time
SELECT extract(epoch FROM clock_timestamp())::float8

-- name: synchronous_standbys
SELECT current_setting('synchronous_standby_names')
