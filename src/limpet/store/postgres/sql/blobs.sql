-- Blobs of sessions, and marks.

-- name: blob_owner
SELECT uid, version FROM limpet.sessions WHERE app = $1 AND owner = $2 AND id = $3

-- name: put_chunk
SELECT limpet.put_chunk($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)

-- name: finish_blob
SELECT limpet.finish_blob($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)

-- name: fence_of
SELECT fence FROM limpet.sessions WHERE app = $1 AND owner = $2 AND id = $3

-- name: drop_upload
SELECT limpet.drop_upload($1)

-- name: blob
-- A blob that the session sees, its own ($5) or one of a parent from before the event it goes on from,
-- with one of its chunks. A row without a blob if there is none.
SELECT f.*, c.flags AS chunk_flags, c.body AS chunk_body, c.crc AS chunk_crc FROM limpet.sessions s
LEFT JOIN LATERAL (
    SELECT l.uid AS blob_uid, b.bid, b.hash, b.version, b.chunks, b.upload, b.flags, b.body, b.crc
    FROM limpet.line(s.sid) l JOIN limpet.blobs b ON b.sid = l.sid AND b.hash = $4
    WHERE l.sid = s.sid OR (NOT $5::boolean AND b.version < l.high)
    ORDER BY cardinality(l.floors) LIMIT 1) f ON true
LEFT JOIN limpet.blob_chunks c ON c.bid = f.bid AND c.number = $6
WHERE s.app = $1 AND s.owner = $2 AND s.id = $3
  AND (s.standing IS DISTINCT FROM 'archived' OR NOT s.facts ? 'archive')

-- name: blobs_after
SELECT s.uid AS blob_uid, b.* FROM limpet.sessions s
LEFT JOIN LATERAL (
    SELECT b.hash, b.version, b.chunks, b.upload, b.flags, b.body, b.crc FROM limpet.blobs b
    WHERE b.sid = s.sid AND b.hash > $4 ORDER BY b.hash LIMIT $5) b ON true
WHERE s.app = $1 AND s.owner = $2 AND s.id = $3 ORDER BY b.hash

-- name: keys_with_blobs
SELECT s.app, s.owner, s.id FROM limpet.sessions s
WHERE (s.app, s.owner, s.id) > ($1, $2, $3) AND ($4::text IS NULL OR s.app = $4)
  AND EXISTS (SELECT FROM limpet.blobs b WHERE b.sid = s.sid AND b.hash IS NOT NULL)
ORDER BY s.app, s.owner, s.id LIMIT $5

-- name: verify_blob
-- The next blob of a session, living or ended, that has to be whole.
SELECT bid, hash, version, chunks, upload, flags, body, crc FROM limpet.blobs
WHERE sid = $1 AND hash > $2 AND version < $3 ORDER BY hash LIMIT 1

-- name: verify_chunk
SELECT flags, body, crc FROM limpet.blob_chunks WHERE bid = $1 AND number = $2

-- name: mark_once
SELECT limpet.mark_once($1, $2, $3, $4, $5)

-- name: mark_put
SELECT limpet.mark_put($1, $2, $3, $4, $5)

-- name: mark_add
SELECT limpet.mark_add($1, $2, $3, $4, $5)

-- name: mark
SELECT value, until_us FROM limpet.marks WHERE space = $1 AND name = $2 AND until_us > limpet.now_us()

-- name: sweep_marks
SELECT limpet.sweep_marks($1)
