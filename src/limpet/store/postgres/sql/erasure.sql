-- name: sids_of
-- Of all that have these keys, living or deleted.
SELECT s.sid FROM unnest($1::text[], $2::text[], $3::text[]) AS k (app, owner, id) CROSS JOIN LATERAL (
    SELECT s.sid FROM limpet.sessions s WHERE s.app = k.app AND s.owner = k.owner AND s.id = k.id
    UNION ALL SELECT t.sid FROM limpet.tombstones t WHERE t.app = k.app AND t.owner = k.owner AND t.id = k.id) s

-- name: begun_on
-- The keys of living sessions that these began on: locked before one of them ends.
WITH RECURSIVE up (sid, parent) AS (
    SELECT sid, parent FROM limpet.sessions WHERE sid = ANY ($1::bigint[]) AND parent IS NOT NULL
    UNION ALL SELECT sid, parent FROM limpet.tombstones WHERE sid = ANY ($1::bigint[]) AND parent IS NOT NULL
    UNION ALL SELECT p.sid, p.parent FROM up CROSS JOIN LATERAL (
        SELECT s.sid, s.parent FROM limpet.sessions s WHERE s.sid = up.parent
        UNION ALL SELECT t.sid, t.parent FROM limpet.tombstones t WHERE t.sid = up.parent) p
    WHERE p.parent IS NOT NULL
)
SELECT DISTINCT s.app, s.owner, s.id FROM up JOIN limpet.sessions s ON s.sid = up.parent

-- name: standing
SELECT uid, version, fence FROM limpet.sessions WHERE app = $1 AND owner = $2 AND id = $3

-- name: take_key
-- Everything else of a session is found by its sid, but for its labels.
UPDATE limpet.sessions SET app = $4, owner = $5, id = $6, fence = greatest(fence, $7)
WHERE app = $1 AND owner = $2 AND id = $3 RETURNING sid

-- name: take_labels
UPDATE limpet.labels SET app = $2, owner = $3 WHERE sid = $1

-- name: unmake
DELETE FROM limpet.sessions WHERE app = $1 AND owner = $2 AND id = $3
RETURNING sid, uid, version, link, created_us, updated_us, active_us, floor, parent, limpet.now_us() AS now_us

-- name: put_tomb
INSERT INTO limpet.tombstones (sid, app, owner, id, uid, version, link, created_us, updated_us, active_us, floor, parent,
                               deleted_us, ending, crc)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)

-- name: remove_labels
DELETE FROM limpet.labels WHERE sid = $1

-- name: purge
SELECT limpet.purge($1)

-- name: lock_tombs
SELECT sid FROM limpet.tombstones WHERE app = $1 AND owner = $2 AND id = $3 ORDER BY sid FOR UPDATE

-- name: remove_tombs
DELETE FROM limpet.tombstones WHERE app = $1 AND owner = $2 AND id = $3
RETURNING sid, uid, version, link, parent, crc, limpet.now_us() AS now_us

-- name: lock_tombs_of
SELECT t.sid FROM unnest($1::text[], $2::text[], $3::text[]) AS k (app, owner, id)
JOIN limpet.tombstones t ON t.app = k.app AND t.owner = k.owner AND t.id = k.id ORDER BY t.sid FOR UPDATE OF t

-- name: remove_tombs_of
DELETE FROM limpet.tombstones t USING unnest($1::text[], $2::text[], $3::text[]) AS k (app, owner, id)
WHERE t.app = k.app AND t.owner = k.owner AND t.id = k.id
RETURNING t.app, t.owner, t.id, t.sid, t.uid, t.version, t.link, t.parent, t.crc, limpet.now_us() AS now_us

-- name: unmake_all
DELETE FROM limpet.sessions s USING unnest($1::text[], $2::text[], $3::text[]) AS k (app, owner, id)
WHERE s.app = k.app AND s.owner = k.owner AND s.id = k.id
RETURNING s.app, s.owner, s.id, s.sid, s.uid, s.version, s.link, s.parent, limpet.now_us() AS now_us

-- name: purge_all
SELECT limpet.purge(p) FROM unnest($1::bigint[]) p

-- name: forks_of_each
-- As `forks`, with the one that each began on.
WITH RECURSIVE above (root, sid) AS (
    SELECT r, r FROM unnest($1::bigint[]) r
    UNION SELECT a.root, t.sid FROM above a JOIN limpet.tombstones t ON t.parent = a.sid
)
SELECT a.root, s.app, s.owner, s.id FROM above a JOIN limpet.sessions s ON s.parent = a.sid

-- name: remove_rows
-- Everything of erased sessions but their heads.
WITH events AS (DELETE FROM limpet.events WHERE sid = ANY ($1::bigint[])),
     snapshots AS (DELETE FROM limpet.snapshots WHERE sid = ANY ($1::bigint[])),
     bases AS (DELETE FROM limpet.bases WHERE sid = ANY ($1::bigint[])),
     segments AS (DELETE FROM limpet.segments WHERE sid = ANY ($1::bigint[])),
     segment_ids AS (DELETE FROM limpet.segment_ids WHERE sid = ANY ($1::bigint[])),
     chunks AS (DELETE FROM limpet.blob_chunks WHERE bid IN (
         SELECT bid FROM limpet.blobs WHERE sid = ANY ($1::bigint[]))),
     blobs AS (DELETE FROM limpet.blobs WHERE sid = ANY ($1::bigint[])),
     forks AS (UPDATE limpet.sessions SET parent = NULL WHERE parent = ANY ($1::bigint[])),
     deleted AS (UPDATE limpet.tombstones SET parent = NULL WHERE parent = ANY ($1::bigint[]))
DELETE FROM limpet.labels WHERE sid = ANY ($1::bigint[])

-- name: uids_of
SELECT s.uid FROM unnest($1::text[], $2::text[], $3::text[]) AS k (app, owner, id)
JOIN limpet.sessions s ON s.app = k.app AND s.owner = k.owner AND s.id = k.id
UNION ALL
SELECT t.uid FROM unnest($1::text[], $2::text[], $3::text[]) AS k (app, owner, id)
JOIN limpet.tombstones t ON t.app = k.app AND t.owner = k.owner AND t.id = k.id

-- name: sids
-- The living one with what was moved to the archive, or those that were deleted if there is none: whose
-- forks are meant.
WITH s AS (SELECT sid FROM limpet.sessions WHERE app = $1 AND owner = $2 AND id = $3)
SELECT sid FROM s UNION ALL
SELECT sid FROM limpet.tombstones WHERE app = $1 AND owner = $2 AND id = $3
  AND (ending = 'moved' OR NOT EXISTS (SELECT FROM s))

-- name: forks
-- The living ones; where one was deleted, its own in its place: they still read these.
WITH RECURSIVE above (sid) AS (
    SELECT unnest($1::bigint[])
    UNION SELECT t.sid FROM above a JOIN limpet.tombstones t ON t.parent = a.sid
)
SELECT app, owner, id FROM limpet.sessions WHERE parent IN (SELECT sid FROM above) ORDER BY created_us, sid

-- name: keys_of_user
-- All that a user has, or had: own sessions, and the documents that reserved apps keep for it ($3).
SELECT app, owner, id FROM limpet.sessions WHERE app = $1 AND owner = $2
UNION SELECT app, owner, id FROM limpet.tombstones WHERE app = $1 AND owner = $2
UNION SELECT app, owner, id FROM limpet.sessions WHERE app >= '$' AND app < '%' AND owner = $3
UNION SELECT app, owner, id FROM limpet.tombstones WHERE app >= '$' AND app < '%' AND owner = $3
ORDER BY app, owner, id

-- name: names_of_user
SELECT name FROM limpet.names_of($1, $2)

-- name: remove_names
WITH owners AS (DELETE FROM limpet.scope_owners WHERE app = $1 AND owner = $2)
DELETE FROM limpet.scopes WHERE app = $1 AND owner = $2

-- name: erased
SELECT key_hash, version, link, erased_us, forks_kept FROM limpet.erased WHERE key_hash = $1

-- name: erased_all
SELECT key_hash, version, link, erased_us, forks_kept FROM limpet.erased WHERE key_hash = ANY ($1::bytea[])

-- name: erased_crcs
SELECT crc FROM limpet.erased WHERE key_hash = ANY ($1::bytea[]) ORDER BY key_hash FOR UPDATE

-- name: put_erased
INSERT INTO limpet.erased (key_hash, version, link, erased_us, forks_kept, crc)
SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bigint[])
ON CONFLICT (key_hash) DO UPDATE
SET version = excluded.version, link = excluded.link, erased_us = excluded.erased_us,
    forks_kept = excluded.forks_kept, crc = excluded.crc

-- name: begin_ledger
SELECT limpet.begin_ledger()

-- name: enter_ledger
-- Numbers one by one: for a parameter that is an array the driver would ask the server for its type.
SELECT limpet.enter($1, ARRAY[$2, $3, $4, $5]::bigint[])
