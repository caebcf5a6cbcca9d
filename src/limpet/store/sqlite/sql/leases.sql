-- Leases: sessions that are due, and whose they are.

-- name: due_priority
SELECT priority FROM sessions WHERE runnable_us IS NOT NULL AND priority < ? ORDER BY priority DESC LIMIT 1

-- name: due
SELECT sid, app, user, id, fence, timers, pending, pending_us FROM sessions WHERE priority = ? AND runnable_us <= ? ORDER BY runnable_us, sid LIMIT ?

-- name: due_priority_in_app
SELECT priority FROM sessions WHERE app = ? AND runnable_us IS NOT NULL AND priority < ?
ORDER BY priority DESC LIMIT 1

-- name: due_in_app
SELECT sid, app, user, id, fence, timers, pending, pending_us FROM sessions WHERE app = ? AND priority = ? AND runnable_us <= ?
ORDER BY runnable_us, sid LIMIT ?

-- name: set_lease
UPDATE sessions SET fence = ?, lease_us = ?, worker = ?, runnable_us = ? WHERE sid = ?
