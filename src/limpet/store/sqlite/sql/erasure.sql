-- Deleting and erasing sessions, and the ledger of them.

-- name: bury
UPDATE sessions SET deleted_us = ?, tomb_crc = ?, labels = NULL, timers = NULL, pending = 0, pending_us = NULL,
                    runnable_us = NULL, deadline_us = NULL, lease_us = NULL, worker = NULL WHERE sid = ?

-- name: tomb_crc
SELECT tomb_crc FROM sessions WHERE sid = ?

-- name: drop_session
DELETE FROM sessions WHERE sid = ?

-- name: add_erased
INSERT INTO erased (key_hash, version, link, erased_us, crc) VALUES (?, ?, ?, ?, ?)

-- name: add_purge
INSERT OR IGNORE INTO purges (sid) VALUES (?)

-- name: next_purge
SELECT sid FROM purges WHERE sid NOT IN (SELECT sid FROM sessions WHERE deleted_us IS NULL) LIMIT 1

-- name: drop_purge
DELETE FROM purges WHERE sid = ?

-- name: purge_some
DELETE FROM events WHERE pos IN (SELECT pos FROM events WHERE sid = ? LIMIT ?)

-- name: drop_snapshot
DELETE FROM snapshots WHERE sid = ?

-- name: set_overwrite
-- Something was erased, and its bytes may still be in the files.
INSERT OR REPLACE INTO meta VALUES ('overwrite', 1)

-- name: drop_overwrite
DELETE FROM meta WHERE name = 'overwrite'

-- name: erasure_unfinished
SELECT 1 FROM meta WHERE name = 'overwrite' UNION ALL SELECT 1 FROM purges

-- name: ledger_counts
-- What the tables hold of ended sessions, for comparison with the ledger.
SELECT (SELECT count(*) FROM sessions WHERE deleted_us IS NOT NULL),
       (SELECT coalesce(sum(tomb_crc), 0) FROM sessions WHERE deleted_us IS NOT NULL),
       (SELECT count(*) FROM erased), (SELECT coalesce(sum(crc), 0) FROM erased)
