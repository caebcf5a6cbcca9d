-- name: load
-- One row for each thing: the head, its snapshot, the events since the snapshot or of the tail, and
-- the rows of the shared names. `kind` says which; a column that a kind does not have is NULL. Of the
-- tail ($4 events) as many of the newest as fit a page of $7 bytes: their sizes are known without their
-- bodies. A tail of 2^62 is the whole log.
WITH s AS (SELECT * FROM limpet.sessions WHERE app = $1 AND owner = $2 AND id = $3),
     n AS (SELECT n.* FROM limpet.snapshots n JOIN s USING (sid)),
     t AS (SELECT min(b.seq) - 1 AS start FROM (
         SELECT e.seq, sum(octet_length(e.body)) OVER (ORDER BY e.seq DESC) - octet_length(e.body) AS newer
         FROM s JOIN limpet.events e ON e.sid = s.sid AND e.seq > s.version - $4
     ) b WHERE b.newer < $7 OR $4 >= 4611686018427387904)
SELECT 'head' AS kind, s.sid, s.uid, s.version, s.link,
       -- of a head
       s.created_us, s.updated_us, s.labels::text, s.pending, s.pending_us, s.timers::text, s.priority,
       s.schema_version, s.fence, s.lease_us, s.worker, s.deleted_us,
       -- of a stored body
       NULL::bigint AS seq, NULL::integer AS flags, NULL::bytea AS body, NULL::bigint AS crc,
       -- of an event
       NULL::text AS id, NULL::text AS type, NULL::text AS actor, NULL::bigint AS at_us, NULL::text AS cause,
       NULL::text AS invocation_id, NULL::text AS correlation_id, NULL::text AS wake_id, NULL::bigint AS processed_us,
       -- of a shared name
       NULL::text AS owner, NULL::text AS name, NULL::bigint AS base, NULL::integer AS form
FROM s
UNION ALL
SELECT 'snapshot', n.sid, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       n.seq, n.flags, n.body, n.crc,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL
FROM n
UNION ALL
(SELECT 'event', e.sid, NULL, NULL, e.link,
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        e.seq, e.flags, e.body, e.crc,
        e.id, e.type, e.actor, e.at_us, e.cause, e.invocation_id, e.correlation_id, e.wake_id, e.processed_us,
        NULL, NULL, NULL, NULL
 FROM s JOIN limpet.events e ON e.sid = s.sid
 WHERE e.seq > least(coalesce((SELECT seq FROM n), 0), coalesce((SELECT start FROM t), s.version))
   AND ($6::bigint IS NULL OR e.at_us >= $6 OR e.seq > coalesce((SELECT seq FROM n), 0)) ORDER BY e.seq)
UNION ALL
SELECT 'name', NULL, c.uid, c.version, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       c.seq, c.flags, c.body, c.crc,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       o.owner, c.name, c.base, c.form
FROM s, (VALUES (''), ($2)) AS o (owner), LATERAL limpet.scopes_of($1, o.owner) c WHERE $5

-- name: states
-- The end of a statement that begins WITH page AS …: the heads of a page, as heads.py asks for them,
-- and their `place` in it. Brings what the states of the first $1 of them are made of, in no order: the
-- heads, their snapshots, the events since, and the rows of the shared names, of each owner once. `within`
-- says whether a head has its snapshot and events here: once $2 bytes of those and of shared names were
-- met there are no more. An event counts $3 bytes more than its body, a name $4 bytes for each head that
-- shows it.
, shown AS (SELECT * FROM page p WHERE p.passes ORDER BY p.place LIMIT $1
), named AS MATERIALIZED (
    SELECT o.*, (z.number * $4::bigint) AS places, z.bytes
    FROM (SELECT w.app, w.owner, min(w.place) AS first FROM (
              SELECT shown.app, shown.owner, shown.place FROM shown
              UNION ALL SELECT shown.app, '', shown.place FROM shown) w GROUP BY w.app, w.owner) o
    CROSS JOIN LATERAL (SELECT count(*) AS number, coalesce(sum(octet_length(c.body)), 0) AS bytes
                        FROM limpet.scopes_of(o.app, o.owner) c) z
), sized AS MATERIALIZED (
    SELECT shown.sid, shown.app, shown.owner, shown.place, coalesce(n.seq, 0) AS since,
           coalesce(octet_length(n.body), 0) + coalesce((
               SELECT sum(octet_length(e.body) + $3::bigint) FROM limpet.events e
               WHERE e.sid = shown.sid AND e.seq > coalesce(n.seq, 0)), 0)
           + a.places + CASE WHEN a.first = shown.place THEN a.bytes ELSE 0 END
           + u.places + CASE WHEN u.first = shown.place THEN u.bytes ELSE 0 END AS size
    FROM shown
    JOIN named a ON a.app = shown.app AND a.owner = ''
    JOIN named u ON u.app = shown.app AND u.owner = shown.owner
    LEFT JOIN limpet.snapshots n ON n.sid = shown.sid
), had AS MATERIALIZED (
    SELECT * FROM (SELECT sized.*, sum(size) OVER (ORDER BY place) - size AS before FROM sized) z
    WHERE z.before <= $2::bigint
)
SELECT 'head' AS kind, p.sid, p.uid, p.version, p.link,
       -- of a head, and its place on the page
       p.session_id, p.created_us, p.updated_us, p.labels, p.pending, p.pending_us, p.timers, p.priority,
       p.schema_version, p.fence, p.lease_us, p.worker, p.deleted_us, p.n, p.passes, p.place,
       had.sid IS NOT NULL AS within,
       -- of a stored body
       NULL::bigint AS seq, NULL::integer AS flags, NULL::bytea AS body, NULL::bigint AS crc,
       -- of an event
       NULL::text AS id, NULL::text AS type, NULL::text AS actor, NULL::bigint AS at_us, NULL::text AS cause,
       NULL::text AS invocation_id, NULL::text AS correlation_id, NULL::text AS wake_id, NULL::bigint AS processed_us,
       -- of a head or a shared name, and of a name alone
       p.app, p.owner, NULL::text AS name, NULL::bigint AS base, NULL::integer AS form
FROM page p LEFT JOIN had USING (sid)
UNION ALL
SELECT 'snapshot', n.sid, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       n.seq, n.flags, n.body, n.crc,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL
FROM had JOIN limpet.snapshots n ON n.sid = had.sid
UNION ALL
SELECT 'event', e.sid, NULL, NULL, e.link,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       e.seq, e.flags, e.body, e.crc,
       e.id, e.type, e.actor, e.at_us, e.cause, e.invocation_id, e.correlation_id, e.wake_id, e.processed_us,
       NULL, NULL, NULL, NULL, NULL
FROM had JOIN limpet.events e ON e.sid = had.sid AND e.seq > had.since
UNION ALL
SELECT 'name', NULL, c.uid, c.version, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       c.seq, c.flags, c.body, c.crc,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       o.app, o.owner, c.name, c.base, c.form
FROM (SELECT had.app, had.owner FROM had UNION SELECT had.app, '' FROM had) o,
     LATERAL limpet.scopes_of(o.app, o.owner) c

-- name: read
-- Events after seq $4, at most $5 of them and as many as fit a page of $6 bytes. Types: those in $7,
-- or like one of the patterns in $8; all where $7 is NULL.
SELECT s.sid, s.uid, s.deleted_us, e.seq, e.id, e.type, e.actor, e.at_us, e.cause, e.invocation_id,
       e.correlation_id, e.wake_id, e.flags, e.body, e.crc, e.link, e.processed_us
FROM limpet.sessions s
LEFT JOIN LATERAL (
    SELECT p.* FROM (
        SELECT l.*, sum(octet_length(l.body)) OVER (ORDER BY l.seq) - octet_length(l.body) AS before
        FROM (SELECT * FROM limpet.events e WHERE e.sid = s.sid AND e.seq > $4
              AND ($7::text[] IS NULL OR e.type = ANY ($7) OR e.type LIKE ANY ($8::text[]))
              ORDER BY e.seq LIMIT $5) l
    ) p WHERE p.before < $6
) e ON true
WHERE s.app = $1 AND s.owner = $2 AND s.id = $3
ORDER BY e.seq

-- name: read_reverse
-- The same, before seq $4 and from there back.
SELECT s.sid, s.uid, s.deleted_us, e.seq, e.id, e.type, e.actor, e.at_us, e.cause, e.invocation_id,
       e.correlation_id, e.wake_id, e.flags, e.body, e.crc, e.link, e.processed_us
FROM limpet.sessions s
LEFT JOIN LATERAL (
    SELECT p.* FROM (
        SELECT l.*, sum(octet_length(l.body)) OVER (ORDER BY l.seq DESC) - octet_length(l.body) AS before
        FROM (SELECT * FROM limpet.events e WHERE e.sid = s.sid AND e.seq < $4
              AND ($7::text[] IS NULL OR e.type = ANY ($7) OR e.type LIKE ANY ($8::text[]))
              ORDER BY e.seq DESC LIMIT $5) l
    ) p WHERE p.before < $6
) e ON true
WHERE s.app = $1 AND s.owner = $2 AND s.id = $3
ORDER BY e.seq DESC

-- name: pending_inputs
-- The head knows how many there are: back from the end, in stretches that double, until as many were
-- met. Each is a range of the index with two ends, which the server takes for few rows: it goes by the
-- index, whatever it knows or does not know of the log.
WITH RECURSIVE s AS (SELECT * FROM limpet.sessions WHERE app = $1 AND owner = $2 AND id = $3),
back (since, stretch, met) AS (
    SELECT s.version + 1, 32::bigint, 0::bigint FROM s
    UNION ALL
    SELECT back.since - back.stretch, back.stretch * 2, back.met + (
        SELECT count(*) FROM limpet.events e
        WHERE e.sid = s.sid AND e.seq >= back.since - back.stretch AND e.seq < back.since
          AND e.processed_us IS NULL AND e.type LIKE 'user.%')
    FROM back, s WHERE back.met < s.pending AND back.since > 1
)
SELECT s.sid, s.uid, s.deleted_us, e.seq, e.id, e.type, e.actor, e.at_us, e.cause, e.invocation_id,
       e.correlation_id, e.wake_id, e.flags, e.body, e.crc, e.link, e.processed_us
FROM s LEFT JOIN LATERAL (
    SELECT p.* FROM (
        SELECT l.*, sum(octet_length(l.body)) OVER (ORDER BY l.seq) - octet_length(l.body) AS before FROM (
            SELECT * FROM limpet.events e
            WHERE e.sid = s.sid AND e.seq >= (SELECT min(back.since) FROM back) AND e.seq <= s.version
              AND e.processed_us IS NULL AND e.type LIKE 'user.%'
            ORDER BY e.seq LIMIT $4
        ) l
    ) p WHERE p.before < $5
) e ON true
ORDER BY e.seq

-- name: recorded
SELECT k.i, e.seq, e.id, e.type, e.actor, e.at_us, e.cause, e.invocation_id, e.correlation_id, e.wake_id,
       e.flags, e.body, e.crc, e.link, e.processed_us
FROM unnest($1::bigint[], $2::text[]) WITH ORDINALITY AS k (sid, id, i)
JOIN limpet.events e ON e.id = k.id AND e.sid = k.sid

-- name: pending
SELECT k.i FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS k (sid, seq, i)
JOIN limpet.events e ON e.sid = k.sid AND e.seq = k.seq
WHERE e.processed_us IS NULL AND e.type LIKE 'user.%'

-- name: names
SELECT k.i, r.version, r.base, r.form, r.flags, r.body, r.crc, r.uid, r.seq
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS k (app, owner, name, i)
CROSS JOIN LATERAL (SELECT s.base FROM limpet.scopes s WHERE s.app = k.app AND s.owner = k.owner AND s.name = k.name
                    ORDER BY s.version DESC LIMIT 1) b
CROSS JOIN LATERAL (SELECT s.* FROM limpet.scopes s WHERE s.app = k.app AND s.owner = k.owner AND s.name = k.name
                    AND s.version >= b.base OFFSET 0) r
ORDER BY k.i, r.version

-- name: name_versions
SELECT k.i, (SELECT s.version FROM limpet.scopes s WHERE s.app = k.app AND s.owner = k.owner AND s.name = k.name
             ORDER BY s.version DESC LIMIT 1) AS version
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS k (app, owner, name, i)

-- name: name_sizes
-- What is stored of each name of one owner. The server knows the length of a body without reading it.
SELECT n.name, n.form, (SELECT sum(length(s.body)) FROM limpet.scopes s
                        WHERE s.app = $1 AND s.owner = $2 AND s.name = n.name AND s.version >= n.base)::bigint AS size
FROM limpet.names_of($1, $2) n

-- name: scopes
SELECT o.owner, c.* FROM (VALUES (''), ($2)) AS o (owner), LATERAL limpet.scopes_of($1, o.owner) c

-- name: lock
SELECT s.sid FROM unnest($1::text[], $2::text[], $3::text[]) AS k (app, owner, id)
JOIN limpet.sessions s ON s.app = k.app AND s.owner = k.owner AND s.id = k.id
ORDER BY s.app, s.owner, s.id FOR UPDATE OF s

-- name: put_snapshot
INSERT INTO limpet.snapshots (sid, seq, flags, body, crc) SELECT $1, $2, $3, $4, $5
WHERE EXISTS (SELECT FROM limpet.sessions WHERE sid = $1 AND deleted_us IS NULL FOR SHARE)
ON CONFLICT (sid) DO UPDATE SET seq = excluded.seq, flags = excluded.flags, body = excluded.body,
    crc = excluded.crc
WHERE excluded.seq > limpet.snapshots.seq

-- name: feed
-- Only what lies below the horizon: no transaction that is still open can add behind it. The last
-- event there comes along, in a row of its own if there is nothing else: all up to it was looked at.
-- Not the horizon itself: a crash gives the numbers of transactions that left no trace again.
-- `many` says how many there were before those were left off that do not fit the page.
WITH h AS MATERIALIZED (SELECT limpet.stamp(pg_snapshot_xmin(pg_current_snapshot())) AS xid)
SELECT h.xid::text::bigint AS horizon, l.xid::text::bigint AS last_xid, l.pos AS last_pos, e.*
FROM h LEFT JOIN LATERAL (
    SELECT e.xid, e.pos FROM limpet.events e WHERE e.xid < h.xid ORDER BY e.xid DESC, e.pos DESC LIMIT 1
) l ON true LEFT JOIN LATERAL (
    SELECT p.* FROM (
        SELECT f.*, count(*) OVER () AS many,
               sum(octet_length(f.body)) OVER (ORDER BY f.xid, f.pos) - octet_length(f.body) AS before
        FROM (
            SELECT e.xid::text::bigint AS xid, e.pos, s.app, s.owner, s.id AS session_id, s.uid, e.seq, e.id, e.type,
                   e.actor, e.at_us, e.cause, e.invocation_id, e.correlation_id, e.wake_id, e.flags, e.body, e.crc,
                   e.link, e.processed_us
            FROM limpet.events e JOIN limpet.sessions s USING (sid)
            WHERE (e.xid, e.pos) > ($1::text::xid8, $2) AND e.xid < h.xid
              AND s.deleted_us IS NULL AND ($3::text IS NULL OR s.app = $3)
              AND ($4::text IS NULL OR (s.owner = $4 AND s.id = $5))
            ORDER BY e.xid, e.pos LIMIT $6
        ) f
    ) p WHERE p.before < $7
) e ON true ORDER BY e.xid, e.pos

-- name: feed_end
SELECT e.xid::text::bigint, e.pos FROM limpet.events e
WHERE e.xid < limpet.stamp(pg_snapshot_xmin(pg_current_snapshot()))
ORDER BY e.xid DESC, e.pos DESC LIMIT 1

-- name: secret
SELECT value FROM limpet.meta WHERE name = 'secret'

-- name: lock_names
SELECT limpet.lock_names($1, $2, $3)

-- name: lock_timeout
-- For the rest of the transaction.
SELECT set_config('lock_timeout', $1, true)

-- name: is_standby
SELECT pg_is_in_recovery()

-- name: notify
-- A hint need not be durable. Without this setting the server would flush its log for every hint, and
-- the next commit would wait for that flush.
SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, '')

-- name: hold_listening
-- Held for as long as the connection lives. By it, committers know that somebody listens.
SELECT pg_advisory_lock_shared(limpet.listening())
