-- Verification, which reads everything.

-- name: definitions
SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite^_%' ESCAPE '^'

-- name: count_sessions
SELECT count(*) FROM sessions

-- name: next_session
SELECT {head} FROM sessions s WHERE sid > ? ORDER BY sid LIMIT 1

-- name: stored_events
SELECT {event}, e.salt, e.digest FROM events e WHERE e.sid = ? AND e.seq > ? ORDER BY e.seq LIMIT ?

-- name: records
SELECT {event}, e.salt, e.digest, s.uid FROM sessions s CROSS JOIN events e ON e.sid = s.sid
WHERE s.app = ? AND s.user = ? AND s.id = ? AND e.seq > ? ORDER BY e.seq LIMIT ?

-- name: snapshot_seqs
SELECT seq FROM snapshots WHERE sid = ? ORDER BY seq

-- name: derived
SELECT slot, due_us, deadline_us, priority FROM sessions WHERE sid = ?

-- name: labels_of
SELECT app, name, value, created_us, sid, user FROM labels WHERE app = ? AND created_us = ? AND sid = ?

-- name: all_scopes
SELECT app, user, name, version, base, form, flags, body, crc, uid, seq FROM scopes
ORDER BY app, user, name, version

-- name: scope_rows_made_by
-- Of living sessions: as many as their events have operations on shared names.
SELECT uid, seq FROM scopes WHERE uid IN (SELECT uid FROM sessions WHERE app <> '$$archive-logs')

-- name: tombstones
SELECT {tombstone}, crc FROM tombstones

-- name: parent_lost
SELECT parent FROM sessions WHERE sid = ? AND parent IS NOT NULL
  AND parent NOT IN (SELECT sid FROM sessions) AND parent NOT IN (SELECT sid FROM tombstones)

-- name: lost_parents
SELECT app || '/' || user || '/' || id FROM tombstones t
WHERE parent IS NOT NULL AND parent NOT IN (SELECT sid FROM sessions) AND parent NOT IN (SELECT sid FROM tombstones)

-- name: all_erased
SELECT key_hash, version, link, erased_us, forks_kept, crc FROM erased

-- name: all_meta
SELECT name, value FROM meta

-- name: last_position
SELECT coalesce(max(pos), 0) FROM events

-- name: orphans
SELECT 'event', count(*) FROM events e
WHERE e.sid NOT IN (SELECT sid FROM sessions) AND e.sid NOT IN (SELECT sid FROM purges)
  AND NOT EXISTS (SELECT 1 FROM sessions f WHERE f.parent = e.sid AND f.floor >= e.seq)
  AND NOT EXISTS (SELECT 1 FROM tombstones f WHERE f.parent = e.sid AND f.floor >= e.seq)
UNION ALL
SELECT 'label', count(*) FROM labels WHERE sid NOT IN (SELECT sid FROM sessions)
UNION ALL
SELECT 'snapshot', count(*) FROM snapshots n
WHERE n.sid NOT IN (SELECT sid FROM sessions) AND n.sid NOT IN (SELECT sid FROM purges)
  AND NOT EXISTS (SELECT 1 FROM sessions f WHERE f.parent = n.sid)
  AND NOT EXISTS (SELECT 1 FROM tombstones f WHERE f.parent = n.sid)
UNION ALL
SELECT 'segment', count(*) FROM segments g
WHERE g.sid NOT IN (SELECT sid FROM sessions) AND g.sid NOT IN (SELECT sid FROM purges)
  AND NOT EXISTS (SELECT 1 FROM sessions f WHERE f.parent = g.sid AND f.floor >= g.first)
  AND NOT EXISTS (SELECT 1 FROM tombstones f WHERE f.parent = g.sid AND f.floor >= g.first)
UNION ALL
SELECT 'base', count(*) FROM bases b
WHERE b.sid NOT IN (SELECT sid FROM sessions) AND b.sid NOT IN (SELECT sid FROM purges)
  AND b.sid NOT IN (SELECT sid FROM tombstones)
UNION ALL
SELECT 'blob', count(*) FROM blobs b
WHERE b.sid NOT IN (SELECT sid FROM sessions) AND b.sid NOT IN (SELECT sid FROM purges)
  AND NOT EXISTS (SELECT 1 FROM sessions f WHERE f.parent = b.sid AND f.floor > b.version)
  AND NOT EXISTS (SELECT 1 FROM tombstones f WHERE f.parent = b.sid AND f.floor > b.version)
UNION ALL
SELECT 'chunk', count(*) FROM blob_chunks WHERE bid NOT IN (SELECT bid FROM blobs)
