-- Overview: open requests by their labels, and counts of sessions.

-- name: labeled_app_after
-- The next app that has labels: apps are few, and each is one step along the index.
SELECT min(app) FROM labels WHERE app > ?

-- name: standing_app_after
-- The next app that has a session in another phase than active.
SELECT min(app) FROM sessions WHERE app > ? AND standing IS NOT NULL

-- name: waiting_in_app
SELECT l.name, l.value, l.sid, s.app, s.user, s.id FROM labels l CROSS JOIN sessions s ON s.sid = l.sid
WHERE l.app = ?1 AND l.name >= '$asked:' AND l.name < '$asked;' AND (l.name, l.sid) > (?3, ?4)
  AND l.name >= ?3 AND (?5 IS NULL OR l.value = ?5)
ORDER BY l.name, l.sid LIMIT ?6

-- name: waiting_of_user
SELECT l.name, l.value, l.sid, s.app, s.user, s.id FROM labels l CROSS JOIN sessions s ON s.sid = l.sid
WHERE l.app = ?1 AND l.user = ?2 AND l.name >= '$asked:' AND l.name < '$asked;'
  AND (l.name, l.sid) > (?3, ?4) AND l.name >= ?3 AND (?5 IS NULL OR l.value = ?5)
ORDER BY l.name, l.sid LIMIT ?6

-- name: tally
-- What `model.readiness` says of each head, counted.
SELECT phase, stop, ready, has_input, count(*) FROM (
    SELECT coalesce(facts ->> '$.phase', 'active') AS phase,
           coalesce(facts ->> '$.run.stop', '') AS stop,
           coalesce(facts ->> '$.inputs.pending', 0) > 0 AS has_input,
           CASE
               WHEN worker IS NOT NULL AND lease_us > ?1 THEN 'leased'
               WHEN coalesce(lease_us, due_us) <= ?1 THEN 'due'
               WHEN facts -> '$.ending.held' IS NOT NULL THEN 'dead'
               WHEN coalesce(facts ->> '$.phase', '') NOT IN ('completed', 'terminated')
                   AND facts -> '$.run.dead' IS NOT NULL THEN 'dead'
               WHEN coalesce(facts ->> '$.phase', '') NOT IN ('completed', 'terminated')
                   AND coalesce(facts -> '$.run.paused', facts -> '$.run.needs') IS NOT NULL THEN 'blocked'
               WHEN lease_us IS NOT NULL THEN 'held'
               WHEN due_us IS NOT NULL AND facts ->> '$.run.stop' = 'rescheduling' THEN 'held'
               ELSE 'idle'
           END AS ready
    FROM sessions WHERE app >= ?3 AND app <= ?4 AND (app < '$' OR app >= '%') LIMIT ?2
) GROUP BY phase, stop, ready, has_input
