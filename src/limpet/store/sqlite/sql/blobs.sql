-- Blobs of sessions, and uploads that are to become blobs; marks.

-- name: upload
SELECT bid, chunks FROM blobs WHERE upload = ? AND sid = ? AND hash IS NULL AND touched_us >= ?

-- name: add_upload
INSERT INTO blobs (sid, upload, chunks, touched_us) VALUES (?, ?, 0, ?)

-- name: touch_upload
UPDATE blobs SET chunks = ?, touched_us = ? WHERE bid = ?

-- name: finish_upload
UPDATE blobs SET hash = ?, version = ?, chunks = ?, flags = ?, body = ?, crc = ? WHERE bid = ?

-- name: drop_upload
-- Its chunks may be many: they are removed like those of an upload that nobody goes on with.
UPDATE blobs SET touched_us = 0 WHERE upload = ? AND hash IS NULL

-- name: blob
SELECT bid, hash, version, chunks, upload, flags, body, crc FROM blobs WHERE sid = ? AND hash = ? AND version < ?

-- name: blobs_after
SELECT bid, hash, version, chunks, upload, flags, body, crc FROM blobs
WHERE sid = ? AND hash > ? ORDER BY hash LIMIT ?

-- name: keys_with_blobs
SELECT s.app, s.user, s.id FROM sessions s
WHERE (s.app, s.user, s.id) > (?1, ?2, ?3) AND s.app <= ?4
  AND EXISTS (SELECT 1 FROM blobs b WHERE b.sid = s.sid AND b.hash IS NOT NULL)
ORDER BY s.app, s.user, s.id LIMIT ?5

-- name: add_chunk
INSERT INTO blob_chunks (bid, number, flags, body, crc) VALUES (?, ?, ?, ?, ?)

-- name: chunk
SELECT flags, body, crc FROM blob_chunks WHERE bid = ? AND number = ?

-- name: stale_upload
-- An upload that nobody goes on with.
SELECT bid FROM blobs WHERE hash IS NULL AND touched_us < ? ORDER BY touched_us LIMIT 1

-- name: next_dropped
-- A blob of an ended session that no fork of it can see: of its parent a fork sees what was put before
-- the event it goes on from.
SELECT bid FROM blobs WHERE sid = ? AND (version IS NULL OR version >= ?) LIMIT 1

-- name: drop_chunks
DELETE FROM blob_chunks WHERE rowid IN (SELECT rowid FROM blob_chunks WHERE bid = ? LIMIT ?)

-- name: drop_blob
DELETE FROM blobs WHERE bid = ?

-- name: kept_blobs
-- Of a session, living or ended: all that has to be whole.
SELECT bid, hash, version, chunks, upload, flags, body, crc FROM blobs
WHERE sid = ? AND hash > ? AND version < ? ORDER BY hash LIMIT 1

-- name: mark
SELECT value, until_us FROM marks WHERE space = ? AND name = ? AND until_us > ?

-- name: put_mark
INSERT OR REPLACE INTO marks (space, name, until_us, value) VALUES (?, ?, ?, ?)

-- name: sweep_marks
DELETE FROM marks WHERE (space, name) IN (SELECT space, name FROM marks WHERE until_us <= ? ORDER BY until_us LIMIT ?)
