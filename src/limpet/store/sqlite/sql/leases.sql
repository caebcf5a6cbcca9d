-- Leases: sessions that are due, and whose they are. Without an app, reserved apps are left out.

-- name: due_priority
SELECT priority FROM sessions
WHERE coalesce(lease_us, due_us) IS NOT NULL AND priority < ? AND (app < '$' OR app >= '%')
ORDER BY priority DESC LIMIT 1

-- name: due
SELECT sid, app, user, id, uid, fence, facts, worker, lease_us, leased_us FROM sessions
WHERE priority = ? AND coalesce(lease_us, due_us) IS NOT NULL AND coalesce(lease_us, due_us) <= ?
  AND (app < '$' OR app >= '%')
ORDER BY coalesce(lease_us, due_us), sid LIMIT ?

-- name: due_priority_in_app
SELECT priority FROM sessions
WHERE app = ? AND coalesce(lease_us, due_us) IS NOT NULL AND priority < ?
ORDER BY priority DESC LIMIT 1

-- name: due_in_app
SELECT sid, app, user, id, uid, fence, facts, worker, lease_us, leased_us FROM sessions
WHERE app = ? AND priority = ? AND coalesce(lease_us, due_us) IS NOT NULL AND coalesce(lease_us, due_us) <= ?
ORDER BY coalesce(lease_us, due_us), sid LIMIT ?

-- name: leased_ahead
SELECT {head} FROM sessions s WHERE leased_us > ?

-- name: set_lease
UPDATE sessions SET fence = ?, lease_us = ?, worker = ?, leased_us = ? WHERE sid = ?

-- name: expired
-- Those whose deadline has come and that nobody holds, along the index of deadlines.
SELECT deadline_us, sid, app, user, id FROM sessions
WHERE deadline_us <= ? AND (deadline_us, sid) > (?, ?) AND (worker IS NULL OR lease_us <= ?)
  AND (app < '$' OR app >= '%')
ORDER BY deadline_us, sid LIMIT ?
