-- name: verify_count
SELECT count(*) FROM limpet.sessions

-- name: verify_keys
SELECT sid, app, owner, id FROM limpet.sessions WHERE sid > $1 ORDER BY sid LIMIT $2

-- name: verify_events
SELECT p.*, CASE WHEN p.processed > 0 THEN (
           SELECT b.at_us FROM limpet.events b WHERE b.sid = p.sid AND b.seq = p.processed) END AS processed_us
FROM (
    SELECT l.*, sum(octet_length(l.body)) OVER (ORDER BY l.seq) - octet_length(l.body) AS before
    FROM (SELECT * FROM limpet.events WHERE sid = $1 AND seq > $2 ORDER BY seq LIMIT $3) l
) p WHERE p.before < $4 ORDER BY p.seq

-- name: verify_snapshots
-- Of one session, by the events that they stand on; what stands on none comes with the last.
SELECT n.seq, n.flags, n.body, n.crc, coalesce(e.link, (
           SELECT g.link FROM limpet.segments g WHERE g.sid = n.sid AND g.last = n.seq)) AS link
FROM limpet.snapshots n LEFT JOIN limpet.events e ON e.sid = n.sid AND e.seq = n.seq
WHERE n.sid = $1 AND n.seq > $2 AND n.seq <= $3 ORDER BY n.seq

-- name: verify_kept
-- Deleted sessions of which somebody still reads the log, and up to where; with what others began on there.
SELECT t.*, t.id AS session_id, limpet.needed(t.sid) AS most FROM limpet.tombstones t
WHERE t.sid > $1 AND EXISTS (
    SELECT FROM limpet.sessions s WHERE s.parent = t.sid
    UNION ALL SELECT FROM limpet.tombstones c WHERE c.parent = t.sid)
ORDER BY t.sid LIMIT $2

-- name: verify_tombs
SELECT t.*, t.id AS session_id FROM limpet.tombstones t WHERE t.sid > $1 ORDER BY t.sid LIMIT $2

-- name: verify_erased
SELECT key_hash, version, link, erased_us, forks_kept, crc FROM limpet.erased WHERE key_hash > $1
ORDER BY key_hash LIMIT $2

-- name: verify_ledger
SELECT (SELECT count(*) FROM limpet.tombstones), (SELECT coalesce(sum(crc), 0) FROM limpet.tombstones)::bigint,
       (SELECT count(*) FROM limpet.erased), (SELECT coalesce(sum(crc), 0) FROM limpet.erased)::bigint

-- name: verify_columns
SELECT due_us, deadline_us, priority, slot, standing, leased_us, adopted, parent, xid,
       (SELECT count(*) FROM limpet.bases b WHERE b.sid = s.sid) AS bases
FROM limpet.sessions s WHERE sid = $1

-- name: verify_labels
SELECT app, owner, created_us, name, value FROM limpet.labels WHERE sid = $1 ORDER BY name

-- name: verify_scopes
SELECT c.app, c.owner, c.name, c.version, c.base, c.form, c.flags, c.body, c.crc, c.uid, c.seq,
       EXISTS (SELECT FROM limpet.sessions s WHERE s.uid = c.uid AND s.app <> '$$archive-logs') AS lives
FROM (
    SELECT l.*, sum(octet_length(l.body)) OVER (ORDER BY l.app, l.owner, l.name, l.version) - octet_length(l.body)
        AS before
    FROM (
        SELECT * FROM limpet.scopes c WHERE (c.app, c.owner, c.name, c.version) > ($1, $2, $3, $4)
        ORDER BY c.app, c.owner, c.name, c.version LIMIT $5
    ) l
) c WHERE c.before < $6
ORDER BY c.app, c.owner, c.name, c.version

-- name: verify_orphans
SELECT 'event', count(*) FROM limpet.events e
WHERE NOT EXISTS (SELECT FROM limpet.sessions s WHERE s.sid = e.sid)
  AND NOT EXISTS (SELECT FROM limpet.tombstones t WHERE t.sid = e.sid AND e.seq <= limpet.needed(t.sid))
UNION ALL
SELECT 'label', count(*) FROM limpet.labels l
WHERE NOT EXISTS (SELECT FROM limpet.sessions s WHERE s.sid = l.sid)
UNION ALL
SELECT 'snapshot', count(*) FROM limpet.snapshots n
WHERE NOT EXISTS (SELECT FROM limpet.sessions s WHERE s.sid = n.sid)
  AND NOT EXISTS (SELECT FROM limpet.tombstones t WHERE t.sid = n.sid AND n.seq <= limpet.needed(t.sid))
UNION ALL
SELECT 'segment', count(*) FROM limpet.segments g
WHERE NOT EXISTS (SELECT FROM limpet.sessions s WHERE s.sid = g.sid)
  AND NOT EXISTS (SELECT FROM limpet.tombstones t WHERE t.sid = g.sid AND g.first <= limpet.needed(t.sid))
UNION ALL
SELECT 'base', count(*) FROM limpet.bases b
WHERE NOT EXISTS (SELECT FROM limpet.sessions s WHERE s.sid = b.sid AND s.floor > 0)
  AND NOT EXISTS (SELECT FROM limpet.tombstones t WHERE t.sid = b.sid AND t.floor < limpet.needed(t.sid))
UNION ALL
SELECT 'blob', count(*) FROM limpet.blobs b
WHERE NOT EXISTS (SELECT FROM limpet.sessions s WHERE s.sid = b.sid)
  AND NOT EXISTS (SELECT FROM limpet.tombstones t WHERE t.sid = b.sid AND b.version < limpet.needed(t.sid))
UNION ALL
SELECT 'chunk', count(*) FROM limpet.blob_chunks c
WHERE NOT EXISTS (SELECT FROM limpet.blobs b WHERE b.bid = c.bid)
UNION ALL
SELECT 'tombstone', count(*) FROM limpet.tombstones t JOIN limpet.sessions s USING (sid)

-- name: bottom
-- From here down a session's history was erased with a parent.
SELECT min(l.low) FROM limpet.line($1) l

-- name: verify_parents
-- Sessions, living or deleted, whose parent is neither.
SELECT c.* FROM (
    SELECT 'head' AS kind, s.app, s.owner, s.id AS session_id, s.parent FROM limpet.sessions s
    UNION ALL SELECT 'tombstone', t.app, t.owner, t.id, t.parent FROM limpet.tombstones t
) c
WHERE c.parent IS NOT NULL AND NOT EXISTS (SELECT FROM limpet.sessions s WHERE s.sid = c.parent)
  AND NOT EXISTS (SELECT FROM limpet.tombstones t WHERE t.sid = c.parent)

-- name: verify_owners
-- Owners whose names are not as many as is kept of them.
SELECT coalesce(o.app, c.app) AS app, coalesce(o.owner, c.owner) AS owner FROM limpet.scope_owners o
FULL JOIN (
    SELECT n.app, n.owner, count(*) FILTER (WHERE n.form <> 2) AS names, count(*) AS ever
    FROM (SELECT DISTINCT ON (s.app, s.owner, s.name) s.app, s.owner, s.form FROM limpet.scopes s
          ORDER BY s.app, s.owner, s.name, s.version DESC) n
    GROUP BY n.app, n.owner) c ON c.app = o.app AND c.owner = o.owner
WHERE (o.names, o.ever) IS DISTINCT FROM (c.names, c.ever)

-- name: verify_meta
SELECT name, value FROM limpet.meta

-- name: statement_timeout
-- For the rest of the transaction.
SELECT set_config('statement_timeout', $1, true)
