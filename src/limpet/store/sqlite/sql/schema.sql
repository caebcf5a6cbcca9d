-- What belongs to the file: its definitions, its meta values, where the feed begins.

-- name: count_definitions
SELECT count(*) FROM sqlite_schema

-- name: meta
SELECT value FROM meta WHERE name = ?

-- name: keep_meta
INSERT OR IGNORE INTO meta VALUES (?, ?)

-- name: put_meta
INSERT OR REPLACE INTO meta VALUES (?, ?)
