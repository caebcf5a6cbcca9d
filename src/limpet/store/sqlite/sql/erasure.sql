-- Deleting and erasing sessions, and the ledger of them.

-- name: drop_session
DELETE FROM sessions WHERE sid = ?

-- name: take_key
-- Everything else of a session is found by its sid.
UPDATE sessions SET app = ?, user = ?, id = ?, fence = ? WHERE sid = ?

-- name: add_tombstone
INSERT INTO tombstones (sid, app, user, id, uid, version, link, created_us, updated_us, active_us, floor, parent,
                        deleted_us, ending, crc)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: tombstones_of
SELECT {tombstone}, crc FROM tombstones WHERE app = ? AND user = ? AND id = ? ORDER BY sid

-- name: tombstones_moved
SELECT sid FROM tombstones WHERE app = ? AND user = ? AND id = ? AND ending = 'moved' ORDER BY sid

-- name: drop_tombstone
DELETE FROM tombstones WHERE sid = ?

-- name: add_erased
INSERT OR REPLACE INTO erased (key_hash, version, link, erased_us, forks_kept, crc) VALUES (?, ?, ?, ?, ?, ?)

-- name: erased_crc
SELECT crc FROM erased WHERE key_hash = ?

-- name: forks_of
-- The living ones; where one was deleted, its own in its place.
WITH RECURSIVE above (sid) AS (
    SELECT ?1 UNION SELECT t.sid FROM above a JOIN tombstones t ON t.parent = a.sid
)
SELECT app, user, id FROM sessions WHERE parent IN (SELECT sid FROM above) ORDER BY created_us, sid

-- name: parent_of
SELECT parent FROM sessions WHERE sid = ?1 UNION ALL SELECT parent FROM tombstones WHERE sid = ?1

-- name: orphan_forks
UPDATE sessions SET parent = NULL WHERE parent = ?

-- name: orphan_tombstones
UPDATE tombstones SET parent = NULL WHERE parent = ?

-- name: let_go
-- A deleted session of which nobody reads anything any more does not need its parent's events.
UPDATE tombstones SET parent = NULL WHERE sid = ?

-- name: kept_below
-- The highest event of an ended session that a fork of it still reads.
SELECT max(coalesce((SELECT max(floor) FROM sessions WHERE parent = ?1), 0),
           coalesce((SELECT max(floor) FROM tombstones WHERE parent = ?1), 0))

-- name: user_sessions
-- Everything that belongs to a user of an app: sessions, and documents of reserved apps.
SELECT app, user, id FROM sessions WHERE (app = ?1 AND user = ?2) OR (app >= '$' AND app < '%' AND user = ?3)
UNION
SELECT app, user, id FROM tombstones WHERE (app = ?1 AND user = ?2) OR (app >= '$' AND app < '%' AND user = ?3)

-- name: count_user_names
SELECT count(DISTINCT name) FROM scopes WHERE app = ? AND user = ?

-- name: drop_user_names
DELETE FROM scopes WHERE app = ? AND user = ?

-- name: add_purge
-- Not of a living session: its log stays.
INSERT OR IGNORE INTO purges (sid) SELECT ?1 WHERE NOT EXISTS (SELECT 1 FROM sessions WHERE sid = ?1)

-- name: next_purge
SELECT sid FROM purges LIMIT 1

-- name: drop_purge
DELETE FROM purges WHERE sid = ?

-- name: purge_some
DELETE FROM events WHERE pos IN (SELECT pos FROM events WHERE sid = ? AND seq > ? LIMIT ?)

-- name: drop_snapshots
DELETE FROM snapshots WHERE sid = ? AND seq > ?

-- name: drop_pinned
DELETE FROM snapshots WHERE sid = ? AND seq = ? AND pin IS NOT NULL

-- name: drop_base
DELETE FROM bases WHERE sid = ?

-- name: set_overwrite
-- Something was erased, and its bytes may still be in the files.
INSERT OR REPLACE INTO meta VALUES ('overwrite', 1)

-- name: drop_overwrite
DELETE FROM meta WHERE name = 'overwrite'

-- name: erasure_unfinished
SELECT 1 FROM meta WHERE name = 'overwrite' UNION ALL SELECT 1 FROM purges

-- name: ledger_counts
-- What the tables hold of ended sessions, for comparison with the ledger.
SELECT (SELECT count(*) FROM tombstones), (SELECT coalesce(sum(crc), 0) FROM tombstones),
       (SELECT count(*) FROM erased), (SELECT coalesce(sum(crc), 0) FROM erased)
