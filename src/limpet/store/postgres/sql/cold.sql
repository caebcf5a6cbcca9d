-- Cold segments: runs of old events in the place of their rows.

-- name: segment_top
SELECT last FROM limpet.segments WHERE sid = $1 ORDER BY first DESC LIMIT 1

-- name: segment_above
-- The segment that has an event, or else the next one.
SELECT * FROM limpet.segments WHERE sid = $1 AND last >= $2 ORDER BY first LIMIT 1

-- name: segment_below
-- The segment that has an event, or else the one before.
SELECT * FROM limpet.segments WHERE sid = $1 AND first <= $2 ORDER BY first DESC LIMIT 1

-- name: segment_seqs
SELECT seq FROM limpet.segment_ids WHERE sid = $1 AND mark = ANY ($2::bigint[])

-- name: segments_of
SELECT * FROM limpet.segments WHERE sid = $1 AND first > $2 ORDER BY first LIMIT 1

-- name: segment_ids_of
SELECT mark, seq FROM limpet.segment_ids WHERE sid = $1 AND seq >= $2 AND seq <= $3 ORDER BY seq

-- name: line_of
-- Whose rows the log of a session is read from, with how far those are cold.
SELECT l.*, coalesce((SELECT g.last FROM limpet.segments g WHERE g.sid = l.sid ORDER BY g.first DESC LIMIT 1), 0) AS top
FROM limpet.line($1) l

-- name: part
-- Own events of one session with low < seq <= high, in either direction ($4: 1 or -1).
SELECT p.*, CASE WHEN p.processed > 0 THEN (
           SELECT b.at_us FROM limpet.events b WHERE b.sid = p.sid AND b.seq = p.processed) END AS processed_us
FROM (
    SELECT l.*, sum(octet_length(l.body)) OVER (ORDER BY l.seq * $4::integer) - octet_length(l.body) AS before
    FROM (SELECT * FROM limpet.events WHERE sid = $1 AND seq > $2 AND seq <= $3
          AND ($7::text[] IS NULL OR type = ANY ($7) OR type LIKE ANY ($8::text[]))
          ORDER BY seq * $4::integer LIMIT $5) l
) p WHERE p.before < $6 ORDER BY p.seq * $4::integer

-- name: compactable
-- The last event that the next segment may have: not the newest, and none beyond the next snapshot.
SELECT least($3::bigint, $4::bigint - 1,
    (SELECT min(n.seq) FROM limpet.snapshots n WHERE n.sid = $1 AND n.seq > $2))

-- name: kept_rows
-- Rows of events in segments: what is pending, or was when it came there.
SELECT e.*, CASE WHEN e.processed > 0 THEN (
           SELECT b.at_us FROM limpet.events b WHERE b.sid = e.sid AND b.seq = e.processed) END AS processed_us
FROM limpet.events e WHERE e.sid = $1 AND e.seq >= $2 AND e.seq <= $3

-- name: settled_segment
-- The first segment with an event whose row is there and that is not pending any more.
SELECT g.* FROM limpet.segments g WHERE g.sid = $1 AND g.first <= (
    SELECT min(e.seq) FROM limpet.events e WHERE e.sid = $1 AND e.seq <= $2 AND e.processed IS DISTINCT FROM 0)
ORDER BY g.first DESC LIMIT 1

-- name: last_snapshot
SELECT max(seq) FROM limpet.snapshots WHERE sid = $1

-- name: snapshot_at
SELECT 1 FROM limpet.snapshots WHERE sid = $1 AND seq = $2

-- name: put_segment
INSERT INTO limpet.segments (sid, first, last, flags, body, crc, previous, link, last_us)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (sid, first) DO UPDATE SET last = excluded.last, flags = excluded.flags, body = excluded.body,
    crc = excluded.crc, previous = excluded.previous, link = excluded.link, last_us = excluded.last_us

-- name: put_segment_ids
INSERT INTO limpet.segment_ids (sid, mark, seq) SELECT $1, m.mark, m.seq
FROM unnest($2::bigint[], $3::bigint[]) AS m (mark, seq)

-- name: move_rows
-- Remove rows, and say about what they took: their columns, and their entries in four indexes.
WITH gone AS (
    DELETE FROM limpet.events WHERE sid = $1 AND seq >= $2 AND seq <= $3 AND processed IS DISTINCT FROM 0
    RETURNING octet_length(body) + octet_length(salt) + octet_length(digest) + octet_length(link) + 2 * octet_length(id)
        + 2 * octet_length(type) + octet_length(actor) + coalesce(octet_length(cause), 0)
        + coalesce(octet_length(invocation_id), 0) + coalesce(octet_length(correlation_id), 0)
        + coalesce(octet_length(wake_id), 0) + 120 AS size
)
SELECT count(*) AS moved, coalesce(sum(size), 0)::bigint AS bytes FROM gone

-- name: has_cold
SELECT EXISTS (SELECT FROM limpet.line($1) l JOIN limpet.segments g USING (sid))
