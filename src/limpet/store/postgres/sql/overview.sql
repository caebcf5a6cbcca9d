-- Overview: open requests by their labels, and counts of sessions.

-- name: waiting
-- The apps that have labels are few, and each is one step along the index; of each, one page. One
-- that has departed is answered where it is.
WITH RECURSIVE apps (app) AS (
    SELECT coalesce($1::text, (SELECT min(app) FROM limpet.labels)) COLLATE "C"
    UNION ALL
    SELECT (SELECT min(l.app) FROM limpet.labels l WHERE l.app > a.app) COLLATE "C"
    FROM apps a WHERE a.app IS NOT NULL AND $1::text IS NULL
)
SELECT p.name, p.value, p.sid, s.app, s.owner, s.id AS session_id FROM (
    SELECT l.* FROM apps a CROSS JOIN LATERAL (
        SELECT l.name, l.value, l.sid FROM limpet.labels l JOIN limpet.sessions h ON h.sid = l.sid
        WHERE (h.facts ? 'departed') IS NOT TRUE AND l.app = a.app AND l.name >= '$asked:' AND l.name < '$asked;'
          AND l.name >= $4 AND (l.name, l.sid) > ($4, $5)
          AND ($2::text IS NULL OR l.owner = $2) AND ($3::text IS NULL OR l.value = $3)
        ORDER BY l.name, l.sid LIMIT $6
    ) l
    WHERE a.app IS NOT NULL AND ($1::text IS NOT NULL OR a.app < '$' OR a.app >= '%')
    ORDER BY l.name, l.sid LIMIT $6
) p JOIN limpet.sessions s ON s.sid = p.sid
ORDER BY p.name, p.sid

-- name: waiting_lent
-- Of the sessions of others that let the user in: their own labels have the requests.
SELECT a.key COLLATE "C" AS name, a.value, s.sid, s.app, s.owner, s.id AS session_id
FROM limpet.labels l JOIN limpet.sessions s ON s.sid = l.sid
    CROSS JOIN LATERAL jsonb_each_text(s.facts -> 'labels') a
WHERE l.app = $1 AND l.name = ANY ($7::text[]) AND l.value = 'yes' AND s.owner <> $2
  AND (s.facts ? 'departed') IS NOT TRUE AND a.key COLLATE "C" >= '$asked:' AND a.key COLLATE "C" < '$asked;'
  AND (a.key COLLATE "C", s.sid) > ($4, $5) AND ($3::text IS NULL OR a.value = $3)
ORDER BY a.key COLLATE "C", s.sid LIMIT $6

-- name: status
-- What `model.lease.status_at` says of a head `s`: a part of statements.
CASE
    WHEN s.standing IN ('completed', 'terminated', 'archived') THEN 'terminated'
    WHEN s.worker IS NOT NULL AND s.lease_us > n.now_us THEN 'running'
    WHEN s.facts #>> '{run,stop}' = 'rescheduling' THEN 'rescheduling'
    ELSE 'idle'
END

-- name: readiness
-- The same of `model.lease.readiness`.
CASE
    WHEN s.worker IS NOT NULL AND s.lease_us > n.now_us THEN 'leased'
    WHEN coalesce(s.lease_us, s.due_us) <= n.now_us THEN 'due'
    WHEN s.facts #> '{ending,held}' IS NOT NULL THEN 'dead'
    WHEN coalesce(s.standing, '') NOT IN ('completed', 'terminated')
        AND s.facts #> '{run,dead}' IS NOT NULL THEN 'dead'
    WHEN coalesce(s.standing, '') NOT IN ('completed', 'terminated')
        AND coalesce(s.facts #> '{run,paused}', s.facts #> '{run,needs}') IS NOT NULL THEN 'blocked'
    WHEN s.lease_us IS NOT NULL THEN 'held'
    WHEN s.due_us IS NOT NULL AND s.facts #>> '{run,stop}' = 'rescheduling' THEN 'held'
    ELSE 'idle'
END

-- name: tally
SELECT phase, stop, ready, has_input, count(*) AS sessions FROM (
    SELECT coalesce(s.standing, 'active') AS phase,
           coalesce(s.facts #>> '{run,stop}', '') AS stop,
           coalesce((s.facts #>> '{inputs,pending}')::bigint, 0) > 0 AS has_input,
           /* readiness */ AS ready
    FROM limpet.sessions s CROSS JOIN (SELECT limpet.now_us() AS now_us) n
    WHERE s.app >= $2 AND s.app <= $3 AND (s.app < '$' OR s.app >= '%')
      AND (s.facts ? 'departed') IS NOT TRUE
    LIMIT $1
) t GROUP BY phase, stop, ready, has_input
