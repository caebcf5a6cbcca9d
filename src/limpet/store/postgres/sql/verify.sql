-- name: verify_count
SELECT count(*) FROM limpet.sessions WHERE deleted_us IS NULL

-- name: verify_keys
SELECT sid, app, owner, id FROM limpet.sessions WHERE deleted_us IS NULL AND sid > $1 ORDER BY sid LIMIT $2

-- name: verify_events
SELECT p.* FROM (
    SELECT l.*, sum(octet_length(l.body)) OVER (ORDER BY l.seq) - octet_length(l.body) AS before
    FROM (SELECT * FROM limpet.events WHERE sid = $1 AND seq > $2 ORDER BY seq LIMIT $3) l
) p WHERE p.before < $4 ORDER BY p.seq

-- name: verify_tombs
SELECT sid, app, owner, id, uid, version, link, created_us, updated_us, deleted_us, tomb_crc,
    labels <> '{}' OR timers <> '{}' OR pending <> 0 OR num_nonnulls(pending_us, wake_us, runnable_us, deadline_us) > 0
    AS stirs
FROM limpet.sessions WHERE deleted_us IS NOT NULL AND sid > $1 ORDER BY sid LIMIT $2

-- name: verify_erased
SELECT key_hash, version, link, erased_us, crc FROM limpet.erased WHERE key_hash > $1 ORDER BY key_hash LIMIT $2

-- name: verify_ledger
SELECT (SELECT count(*) FROM limpet.sessions WHERE deleted_us IS NOT NULL),
       (SELECT coalesce(sum(tomb_crc), 0) FROM limpet.sessions WHERE deleted_us IS NOT NULL)::bigint,
       (SELECT count(*) FROM limpet.erased), (SELECT coalesce(sum(crc), 0) FROM limpet.erased)::bigint

-- name: verify_columns
SELECT runnable_us, deadline_us, wake_us, xid FROM limpet.sessions WHERE sid = $1

-- name: verify_labels
SELECT app, owner, created_us, name, value FROM limpet.labels WHERE sid = $1 ORDER BY name

-- name: verify_scopes
SELECT c.app, c.owner, c.name, c.version, c.base, c.form, c.flags, c.body, c.crc, c.uid, c.seq,
       EXISTS (SELECT FROM limpet.sessions s WHERE s.uid = c.uid AND s.deleted_us IS NULL) AS lives
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
WHERE NOT EXISTS (SELECT FROM limpet.sessions s WHERE s.sid = e.sid AND s.deleted_us IS NULL)
UNION ALL
SELECT 'label', count(*) FROM limpet.labels l
WHERE NOT EXISTS (SELECT FROM limpet.sessions s WHERE s.sid = l.sid AND s.deleted_us IS NULL)
UNION ALL
SELECT 'snapshot', count(*) FROM limpet.snapshots n
WHERE NOT EXISTS (SELECT FROM limpet.sessions s WHERE s.sid = n.sid AND s.deleted_us IS NULL)

-- name: verify_meta
SELECT name, value FROM limpet.meta

-- name: statement_timeout
-- For the rest of the transaction.
SELECT set_config('statement_timeout', $1, true)
