-- The live channel: partial events in a ring, and who wants them.

-- name: live_version
PRAGMA data_version

-- name: live_read
SELECT n, app, user, id, uid, mark, event_id, type, flags, body, crc
FROM ring WHERE n > ? AND sender != ? ORDER BY n LIMIT ?

-- name: live_end
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'ring'), 0)

-- name: live_add
INSERT INTO ring (at_us, sender, app, user, id, uid, mark, event_id, type, flags, body, crc)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: live_trim
DELETE FROM ring WHERE n <= (SELECT max(n) FROM ring) - ?

-- name: live_clear
DELETE FROM ring

-- name: live_forget
DELETE FROM ring WHERE app = ? AND user = ? AND id = ?

-- name: live_stale
DELETE FROM ring WHERE at_us < ?

-- name: live_enter
INSERT INTO subscribers VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET until_us = excluded.until_us

-- name: live_lapsed
DELETE FROM subscribers WHERE until_us < ?

-- name: live_leave
DELETE FROM subscribers WHERE id = ?

-- name: live_others
SELECT EXISTS (SELECT 1 FROM subscribers WHERE id != ? AND until_us > ?)
