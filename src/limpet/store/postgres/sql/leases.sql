-- name: renew
-- The clock is read once the row is held: a lease may end while its holder waits for it.
WITH held AS MATERIALIZED (
    SELECT sid FROM limpet.sessions WHERE app = $1 AND owner = $2 AND id = $3 AND fence = $4 FOR UPDATE
), n AS MATERIALIZED (SELECT held.sid, limpet.now_us() AS now_us FROM held)
UPDATE limpet.sessions s SET lease_us = n.now_us + $5, runnable_us = n.now_us + $5
FROM n WHERE s.sid = n.sid AND s.fence = $4 AND s.worker IS NOT NULL AND s.lease_us > n.now_us RETURNING s.lease_us

-- name: release
-- With a time to retry ($5) the session is held back: the lease's end without a worker. So it is, for
-- $6, if it was claimed and is due for nothing but what it was due for then: pending inputs ($7 of
-- them since $8) and timers ($9, names and times in JSON). Judged under the row's lock: what is recorded until
-- then counts.
WITH held AS MATERIALIZED (
    SELECT * FROM limpet.sessions WHERE app = $1 AND owner = $2 AND id = $3 AND fence = $4 FOR UPDATE
), n AS MATERIALIZED (SELECT held.*, limpet.now_us() AS now_us FROM held
), due AS MATERIALIZED (
    SELECT t.key AS name, (t.value ->> 'at_us')::bigint AS at_us FROM n, jsonb_each(n.timers) t
    WHERE coalesce(t.value ->> 'kind', 'wake') = 'wake' AND (t.value ->> 'at_us')::bigint <= n.now_us
), back AS MATERIALIZED (
    SELECT n.sid, n.now_us, n.now_us + CASE
        WHEN $5::bigint IS NOT NULL THEN $5
        WHEN (n.pending_us <= n.now_us OR EXISTS (SELECT FROM due))
            AND (n.pending = 0 OR (n.pending = $7::integer AND n.pending_us IS NOT DISTINCT FROM $8::bigint))
            AND NOT EXISTS (SELECT due.name, due.at_us FROM due
                            EXCEPT SELECT g.key, g.value::bigint FROM jsonb_each_text($9::text::jsonb) g)
        THEN $6::bigint END AS until_us
    FROM n
)
UPDATE limpet.sessions s SET lease_us = back.until_us, worker = NULL,
    runnable_us = coalesce(back.until_us, least(s.pending_us, s.wake_us))
FROM back WHERE s.sid = back.sid AND s.fence = $4 AND s.worker IS NOT NULL AND s.lease_us > back.now_us RETURNING s.sid

-- name: acquire
WITH held AS MATERIALIZED (
    SELECT sid FROM limpet.sessions
    WHERE app = $1 AND owner = $2 AND id = $3 AND deleted_us IS NULL FOR UPDATE
), n AS MATERIALIZED (SELECT held.sid, limpet.now_us() AS now_us FROM held)
UPDATE limpet.sessions s
SET fence = s.fence + 1, lease_us = n.now_us + $5, runnable_us = n.now_us + $5, worker = $4
FROM n WHERE s.sid = n.sid AND s.deleted_us IS NULL
    AND (s.worker IS NULL OR s.lease_us IS NULL OR s.lease_us <= n.now_us OR s.worker = $4)
RETURNING s.fence, s.lease_us, n.now_us, s.timers::text, s.pending, s.pending_us

-- name: claim
SELECT app, owner, id, fence, until_us, claimed_us, timers, pending, pending_us
FROM limpet.claim($1, $2, $3, $4)
