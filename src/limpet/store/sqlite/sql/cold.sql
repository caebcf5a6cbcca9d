-- Cold segments: runs of old events in the place of their rows.

-- name: segment_top
SELECT last FROM segments WHERE sid = ? ORDER BY first DESC LIMIT 1

-- name: segment_link
SELECT link FROM segments WHERE sid = ?1 AND last = ?2 AND first = (
    SELECT max(first) FROM segments WHERE sid = ?1 AND first <= ?2)

-- name: segment
SELECT flags, body, crc, previous, link FROM segments WHERE sid = ? AND first = ?

-- name: segment_after
-- The segment that has the event after a seq, or else the next one.
SELECT first, last FROM segments WHERE sid = ?1 AND last > ?2 AND first >= coalesce(
    (SELECT max(first) FROM segments WHERE sid = ?1 AND first <= ?2 + 1), 0)
ORDER BY first LIMIT 1

-- name: segment_before
SELECT first, last FROM segments WHERE sid = ? AND first < ? ORDER BY first DESC LIMIT 1

-- name: segment_seqs
SELECT seq FROM segment_ids WHERE sid = ? AND mark = ?

-- name: has_segments
SELECT EXISTS (SELECT 1 FROM segments)

-- name: segments_of
SELECT first, last, previous, link, last_us FROM segments WHERE sid = ? ORDER BY first

-- name: segment_ids_of
SELECT mark, seq FROM segment_ids WHERE sid = ? AND seq >= ? AND seq <= ? ORDER BY seq

-- name: kept_rows
-- Rows of events in segments: what is pending, or was when it came there.
SELECT {event}, e.salt, e.digest FROM events e WHERE e.sid = ? AND e.seq >= ? AND e.seq <= ?

-- name: first_settled
-- The first row of an event in a segment that is not pending any more.
SELECT min(seq) FROM events WHERE sid = ? AND seq <= ? AND processed IS NOT 0

-- name: next_snapshot
SELECT min(seq) FROM snapshots WHERE sid = ? AND seq > ?

-- name: last_snapshot
SELECT max(seq) FROM snapshots WHERE sid = ?

-- name: snapshot_at
SELECT 1 FROM snapshots WHERE sid = ? AND seq = ?

-- name: rows_bytes
-- About what the rows take: their columns, and their entries in three indexes.
SELECT coalesce(sum(length(body) + length(salt) + length(digest) + length(link) + 2 * length(id)
    + length(CAST(type AS BLOB)) * 2 + length(CAST(actor AS BLOB)) + coalesce(length(cause), 0)
    + coalesce(length(invocation_id), 0) + coalesce(length(correlation_id), 0) + coalesce(length(wake_id), 0) + 60), 0)
FROM events WHERE sid = ? AND seq >= ? AND seq <= ? AND processed IS NOT 0

-- name: add_segment
INSERT INTO segments (sid, first, last, flags, body, crc, previous, link, last_us) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: drop_segment
DELETE FROM segments WHERE sid = ? AND first = ?

-- name: add_segment_id
INSERT INTO segment_ids (sid, mark, seq) VALUES (?, ?, ?)

-- name: drop_rows
DELETE FROM events WHERE sid = ? AND seq >= ? AND seq <= ? AND processed IS NOT 0

-- name: purge_segments
DELETE FROM segments WHERE sid = ? AND first > ?

-- name: purge_segment_ids
DELETE FROM segment_ids WHERE sid = ? AND seq > ?
