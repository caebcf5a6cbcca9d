-- name: bury
UPDATE limpet.sessions SET deleted_us = limpet.now_us(), labels = '{}', timers = '{}', pending = 0,
    pending_us = NULL, wake_us = NULL, runnable_us = NULL, deadline_us = NULL, lease_us = NULL, worker = NULL
WHERE app = $1 AND owner = $2 AND id = $3 AND deleted_us IS NULL
RETURNING sid, uid, version, link, created_us, updated_us, deleted_us

-- name: put_tomb
UPDATE limpet.sessions SET tomb_crc = $2 WHERE sid = $1

-- name: unmake
DELETE FROM limpet.sessions WHERE app = $1 AND owner = $2 AND id = $3
RETURNING sid, uid, version, link, limpet.now_us() AS at_us, deleted_us, tomb_crc

-- name: erased
SELECT key_hash, version, link, erased_us FROM limpet.erased WHERE key_hash = $1

-- name: erased_crc
SELECT crc FROM limpet.erased WHERE key_hash = $1 FOR UPDATE

-- name: put_erased
INSERT INTO limpet.erased (key_hash, version, link, erased_us, crc) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (key_hash) DO UPDATE
SET version = excluded.version, link = excluded.link, erased_us = excluded.erased_us, crc = excluded.crc

-- name: remove_rows
-- Everything of a session but its head.
WITH events AS (DELETE FROM limpet.events WHERE sid = $1),
     snapshots AS (DELETE FROM limpet.snapshots WHERE sid = $1)
DELETE FROM limpet.labels WHERE sid = $1

-- name: begin_ledger
SELECT limpet.begin_ledger()

-- name: enter_ledger
-- Numbers one by one: for a parameter that is an array the driver would ask the server for its type.
SELECT limpet.enter($1, ARRAY[$2, $3, $4, $5]::bigint[])
