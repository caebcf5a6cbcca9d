-- name: renew
-- Many at once, each of them held. The clock is read once the rows are locked: a lease may end while its
-- holder waits for it. The name of the holder ($7, bare: $8) says whether it runs the session alone ($9).
WITH held AS MATERIALIZED (
    SELECT k.i, k.fence, k.span_us, k.worker, k.bare, s.sid
    FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::text[], $8::text[])
        WITH ORDINALITY AS k (app, owner, id, fence, span_us, uid, worker, bare, i)
    JOIN limpet.sessions s ON s.app = k.app AND s.owner = k.owner AND s.id = k.id AND s.fence = k.fence
        AND k.uid IN ('', s.uid)
    ORDER BY s.app, s.owner, s.id FOR UPDATE OF s
), n AS MATERIALIZED (SELECT held.*, limpet.now_us() AS now_us FROM held)
UPDATE limpet.sessions s SET lease_us = n.now_us + n.span_us, leased_us = n.now_us,
    worker = CASE WHEN s.worker IN (n.bare, n.bare || $9) THEN n.worker ELSE s.worker END
FROM n WHERE s.sid = n.sid AND s.fence = n.fence AND s.worker IS NOT NULL AND s.lease_us > n.now_us
RETURNING n.i, s.lease_us, n.now_us

-- name: release
-- With a time to retry ($5) the session is held back: the lease's end without a worker. Without, a session
-- that is not due is released. One that is due is not, unless it was locked ($6): the model has to judge
-- by `facts` whether it is due for anything new.
WITH held AS MATERIALIZED (
    SELECT * FROM limpet.sessions
    WHERE app = $1 AND owner = $2 AND id = $3 AND fence = $4 AND $7::text IN ('', uid) FOR UPDATE
), n AS MATERIALIZED (SELECT held.*, limpet.now_us() AS now_us FROM held
), h AS MATERIALIZED (SELECT n.* FROM n WHERE n.worker IS NOT NULL AND n.lease_us > n.now_us
), done AS (
    UPDATE limpet.sessions s SET lease_us = h.now_us + $5, worker = NULL,
        leased_us = CASE WHEN $5::bigint IS NOT NULL THEN h.now_us END
    FROM h WHERE s.sid = h.sid AND s.fence = $4 AND ($5::bigint IS NOT NULL OR $6 OR coalesce(s.due_us > h.now_us, true))
    RETURNING s.sid
)
SELECT h.now_us, h.version, h.facts::text, EXISTS (SELECT FROM done) AS done FROM h

-- name: release_judged
-- As the model judged it: held back for $6 if that is not NULL. Not if something was recorded meanwhile.
WITH held AS MATERIALIZED (
    SELECT * FROM limpet.sessions WHERE app = $1 AND owner = $2 AND id = $3 AND fence = $4 AND version = $5
        AND $7::text IN ('', uid) FOR UPDATE
), n AS MATERIALIZED (SELECT held.*, limpet.now_us() AS now_us FROM held)
UPDATE limpet.sessions s SET lease_us = n.now_us + $6, worker = NULL,
    leased_us = CASE WHEN $6::bigint IS NOT NULL THEN n.now_us END
FROM n WHERE s.sid = n.sid AND s.fence = $4 AND s.version = $5 AND s.worker IS NOT NULL AND s.lease_us > n.now_us
RETURNING s.sid

-- name: withdraw
-- The holder came back too late, and before anybody else: the next claim counts no death.
UPDATE limpet.sessions SET worker = $6
WHERE app = $1 AND owner = $2 AND id = $3 AND fence = $4 AND $5::text IN ('', uid)
  AND worker IS NOT NULL AND lease_us <= (SELECT limpet.now_us())

-- name: acquire
-- With the lease that was there before, and when the server was started: see `expired` in the model.
WITH held AS MATERIALIZED (
    SELECT sid, worker, lease_us, leased_us FROM limpet.sessions WHERE app = $1 AND owner = $2 AND id = $3 FOR UPDATE
), n AS MATERIALIZED (SELECT held.*, limpet.now_us() AS now_us FROM held)
UPDATE limpet.sessions s
SET fence = s.fence + 1, lease_us = n.now_us + $5, leased_us = n.now_us, worker = $4
FROM n WHERE s.sid = n.sid
    AND (s.worker IS NULL OR s.lease_us IS NULL OR s.lease_us <= n.now_us OR s.worker = $4)
RETURNING s.fence, s.lease_us, n.now_us, s.facts::text, s.uid, n.worker, n.lease_us, n.leased_us,
    (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint

-- name: claim
-- The rows beside the leases are as the statement found them: with the lease that was there before. Each is
-- looked up by itself (LIMIT): nobody knows how many leases the function returns, and for a thousand the
-- planner would read the whole table.
SELECT c.app, c.owner, c.id, c.uid, c.fence, c.until_us, c.claimed_us, c.facts, s.worker, s.lease_us, s.leased_us,
    (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint
FROM limpet.claim($1, $2, $3, $4) WITH ORDINALITY AS c (app, owner, id, uid, fence, until_us, claimed_us, facts, i)
LEFT JOIN LATERAL (
    SELECT l.worker, l.lease_us, l.leased_us FROM limpet.sessions l
    WHERE l.app = c.app AND l.owner = c.owner AND l.id = c.id AND l.fence = c.fence - 1 LIMIT 1
) s ON true
ORDER BY c.i

-- name: measure_again
SELECT limpet.measure_again(limpet.now_us())

-- name: expired
-- Those whose deadline has come and that nobody holds, along the index of deadlines.
SELECT s.deadline_us, s.sid, s.app, s.owner, s.id FROM limpet.sessions s
WHERE s.deadline_us <= (SELECT limpet.now_us()) AND (s.deadline_us, s.sid) > ($2::bigint, $3::bigint)
  AND (s.worker IS NULL OR s.lease_us <= (SELECT limpet.now_us()))
  AND (s.app < '$' OR s.app >= '%')
ORDER BY s.deadline_us, s.sid LIMIT $1
