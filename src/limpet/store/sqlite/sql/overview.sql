-- Overview: open requests by their labels, and counts of sessions.

-- name: labeled_app_after
-- The next app that has labels: apps are few, and each is one step along the index.
SELECT min(app) FROM labels WHERE app > ?

-- name: standing_app_after
-- The next app that has a session in another phase than active.
SELECT min(app) FROM sessions WHERE app > ? AND standing IS NOT NULL

-- name: waiting_in_app
-- One that has departed is answered where it is.
SELECT l.name, l.value, l.sid, s.app, s.user, s.id FROM labels l CROSS JOIN sessions s ON s.sid = l.sid
WHERE l.app = ?1 AND l.name >= '$asked:' AND l.name < '$asked;' AND (l.name, l.sid) > (?3, ?4)
  AND l.name >= ?3 AND (?5 IS NULL OR l.value = ?5) AND s.facts -> '$.departed' IS NULL
ORDER BY l.name, l.sid LIMIT ?6

-- name: waiting_of_user
SELECT l.name, l.value, l.sid, s.app, s.user, s.id FROM labels l CROSS JOIN sessions s ON s.sid = l.sid
WHERE l.app = ?1 AND l.user = ?2 AND l.name >= '$asked:' AND l.name < '$asked;'
  AND (l.name, l.sid) > (?3, ?4) AND l.name >= ?3 AND (?5 IS NULL OR l.value = ?5)
  AND s.facts -> '$.departed' IS NULL
ORDER BY l.name, l.sid LIMIT ?6

-- name: waiting_lent
-- Of the sessions of others that let the user in: their own labels have the requests.
SELECT a.key, a.value, s.sid, s.app, s.user, s.id
FROM labels l CROSS JOIN sessions s ON s.sid = l.sid CROSS JOIN json_each(s.facts, '$.labels') a
WHERE l.app = ?1 AND l.name = ?7 AND l.value = 'yes' AND s.user <> ?2
  AND a.key >= '$asked:' AND a.key < '$asked;' AND (a.key, s.sid) > (?3, ?4)
  AND (?5 IS NULL OR a.value = ?5) AND s.facts -> '$.departed' IS NULL
ORDER BY a.key, s.sid LIMIT ?6

-- name: status
-- What `model.lease.status_at` says of a head `s` at the time `now_us`: a part of statements.
CASE
    WHEN s.standing IN ('completed', 'terminated', 'archived') THEN 'terminated'
    WHEN s.worker IS NOT NULL AND s.lease_us > now_us THEN 'running'
    WHEN s.facts ->> '$.run.stop' = 'rescheduling' THEN 'rescheduling'
    ELSE 'idle'
END

-- name: readiness
-- The same of `model.lease.readiness`.
CASE
    WHEN s.worker IS NOT NULL AND s.lease_us > now_us THEN 'leased'
    WHEN coalesce(s.lease_us, s.due_us) <= now_us THEN 'due'
    WHEN s.facts -> '$.ending.held' IS NOT NULL THEN 'dead'
    WHEN coalesce(s.standing, '') NOT IN ('completed', 'terminated')
        AND s.facts -> '$.run.dead' IS NOT NULL THEN 'dead'
    WHEN coalesce(s.standing, '') NOT IN ('completed', 'terminated')
        AND coalesce(s.facts -> '$.run.paused', s.facts -> '$.run.needs') IS NOT NULL THEN 'blocked'
    WHEN s.lease_us IS NOT NULL THEN 'held'
    WHEN s.due_us IS NOT NULL AND s.facts ->> '$.run.stop' = 'rescheduling' THEN 'held'
    ELSE 'idle'
END

-- name: tally
SELECT phase, stop, ready, has_input, count(*) FROM (
    SELECT coalesce(s.standing, 'active') AS phase,
           coalesce(s.facts ->> '$.run.stop', '') AS stop,
           coalesce(s.facts ->> '$.inputs.pending', 0) > 0 AS has_input,
           {readiness} AS ready
    FROM sessions s CROSS JOIN (SELECT ?1 AS now_us)
    WHERE s.app >= ?3 AND s.app <= ?4 AND (s.app < '$' OR s.app >= '%')
      AND s.facts -> '$.departed' IS NULL LIMIT ?2
) GROUP BY phase, stop, ready, has_input
