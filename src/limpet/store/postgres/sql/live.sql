-- The live channel: partial events from process to process. Nothing of it is kept.

-- name: live_hold
-- Held for as long as the connection lives. By it, publishers know that somebody listens.
SELECT pg_advisory_lock_shared(5210131961453309286)

-- name: live_notify
-- Every listener shares the lock: taken alone, nobody but this connection listens, and nothing is sent.
-- A partial need not be durable: without the setting the server would flush its log for it.
WITH l AS MATERIALIZED (
    SELECT NOT pg_try_advisory_xact_lock(5210131961453309286) AS heard, set_config('synchronous_commit', 'off', true)
)
SELECT pg_notify($1, p.piece) FROM l CROSS JOIN unnest($2::text[]) p (piece) WHERE l.heard
