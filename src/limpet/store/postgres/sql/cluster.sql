-- name: member
-- What a server says of itself. The timeline of a standby is the newest that it has heard of. After a
-- crash of one of its processes the server goes on under the same start time, with empty statistics.
SELECT pg_is_in_recovery() AS standby,
       CASE WHEN pg_is_in_recovery()
            THEN greatest(timeline_id, coalesce((SELECT received_tli FROM pg_stat_wal_receiver), 0))
            ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer END AS timeline,
       system_identifier::text AS system,
       current_setting('synchronous_standby_names') AS names,
       pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN coalesce(pg_last_wal_replay_lsn(), '0/0')
                            ELSE pg_current_wal_lsn() END, '0/0')::bigint AS lsn,
       concat(pg_postmaster_start_time(), ' ', (SELECT stats_reset FROM pg_stat_wal)) AS started
  FROM pg_control_system(), pg_control_checkpoint()

-- name: quorum_commits
-- On every connection of a cluster: a commit is acknowledged when the quorum has it on disk, even
-- where the role or the database defaults to less.
SELECT set_config('synchronous_commit', 'on', false)
 WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')

-- name: awaits_quorum
-- Of one process of the server, or of any ($1 null).
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND ($1::integer IS NULL OR pid = $1))

-- name: confirm_quorum
-- A transaction without rows. Its commit is acknowledged when the quorum has all that was committed
-- before it.
SELECT pg_logical_emit_message(true, 'limpet', '')

-- name: written_up_to
SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint

-- name: caught_up
-- Whether a server sees some commits, by their tokens, and all that was written up to a place.
SELECT coalesce(bool_and(limpet.seen(t.token)), true) AND CASE WHEN pg_is_in_recovery()
       THEN pg_wal_lsn_diff(coalesce(pg_last_wal_replay_lsn(), '0/0'), '0/0') >= $2 ELSE true END
  FROM unnest($1::bigint[]) t (token)

-- name: lost_slots
-- Slots whose log was removed before their replica had it.
SELECT count(*)::int FROM pg_replication_slots WHERE wal_status = 'lost'
