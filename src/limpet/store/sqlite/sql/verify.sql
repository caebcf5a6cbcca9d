-- Verification, which reads everything.

-- name: definitions
SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite^_%' ESCAPE '^'

-- name: count_sessions
SELECT count(*) FROM sessions WHERE deleted_us IS NULL

-- name: next_session
SELECT {head} FROM sessions WHERE sid > ? AND deleted_us IS NULL ORDER BY sid LIMIT 1

-- name: stored_events
SELECT {event}, salt, digest, pos FROM events WHERE sid = ? AND seq > ? ORDER BY seq LIMIT 200

-- name: snapshot_seq
SELECT seq FROM snapshots WHERE sid = ?

-- name: due_times
SELECT runnable_us, deadline_us FROM sessions WHERE sid = ?

-- name: labels_of
SELECT app, name, value, created_us, sid, user FROM labels WHERE app = ? AND created_us = ? AND sid = ?

-- name: all_scopes
SELECT app, user, name, version, base, form, flags, body, crc, uid, seq FROM scopes
ORDER BY app, user, name, version

-- name: count_scope_rows
-- Of living sessions: as many as their events have operations on shared names.
SELECT count(*) FROM scopes c JOIN sessions s ON s.uid = c.uid WHERE s.deleted_us IS NULL

-- name: tombstones
SELECT {head}, tomb_crc FROM sessions WHERE deleted_us IS NOT NULL

-- name: all_erased
SELECT key_hash, version, link, erased_us, crc FROM erased

-- name: all_meta
SELECT name, value FROM meta

-- name: last_position
SELECT coalesce(max(pos), 0) FROM events

-- name: orphans
SELECT 'event', count(*) FROM events
WHERE sid NOT IN (SELECT sid FROM sessions) AND sid NOT IN (SELECT sid FROM purges)
UNION ALL
SELECT 'label', count(*) FROM labels WHERE sid NOT IN (SELECT sid FROM sessions)
UNION ALL
SELECT 'snapshot', count(*) FROM snapshots
WHERE sid NOT IN (SELECT sid FROM sessions) AND sid NOT IN (SELECT sid FROM purges)
