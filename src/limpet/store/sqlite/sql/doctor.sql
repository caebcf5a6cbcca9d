-- The questions of the doctor.

-- name: unfinished_removals
-- Logs of ended sessions that still have rows, and how many of those sessions were erased.
SELECT count(*), coalesce(sum(sid NOT IN (SELECT sid FROM tombstones)), 0) FROM purges

-- name: newest_update
SELECT max(updated_us) FROM sessions
