-- Where followers look: which sessions have new events, and whether one has ended.

-- name: feed_touched
SELECT s.app, s.user, s.id, max(e.seq)
FROM events e JOIN sessions s ON s.sid = e.sid
WHERE e.pos > ? AND e.pos <= ?
GROUP BY e.sid

-- name: feed_ended
-- The ledger changes in every transaction that deletes or erases a session.
SELECT (SELECT value FROM meta WHERE name = 'ledger')
