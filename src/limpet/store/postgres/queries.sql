-- name: load
-- kind 0 the head, 1 the snapshot, 2 events since the snapshot or of the tail, 3 scope rows. Of the
-- tail, as many of the newest as fit a page: their sizes are known without their bodies.
WITH s AS (SELECT * FROM limpet.sessions WHERE app = $1 AND owner = $2 AND id = $3),
     n AS (SELECT n.* FROM limpet.snapshots n JOIN s USING (sid)),
     t AS (SELECT min(b.seq) - 1 AS start FROM (
         SELECT e.seq, sum(octet_length(e.body)) OVER (ORDER BY e.seq DESC) - octet_length(e.body) AS newer
         FROM s JOIN limpet.events e ON e.sid = s.sid AND e.seq > s.version - $4
     ) b WHERE b.newer < {page_bytes} OR $4 >= 4611686018427387904)
SELECT 0 AS kind, s.sid, s.version AS seq, s.uid AS id, s.labels::text AS type, s.timers::text AS actor,
       s.created_us AS at_us, s.worker AS cause, s.lease_us::text AS invocation_id,
       s.priority::text AS correlation_id, s.schema_version AS wake_id, s.pending AS flags, NULL::bytea AS body, s.fence AS crc, s.link, s.pending_us AS processed_us,
       s.updated_us AS more, s.deleted_us AS last
FROM s
UNION ALL
SELECT 1, n.sid, n.seq, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, n.flags, n.body, n.crc, NULL, NULL, NULL, NULL FROM n
UNION ALL
(SELECT 2, e.sid, e.seq, e.id, e.type, e.actor, e.at_us, e.cause, e.invocation_id, e.correlation_id, e.wake_id,
        e.flags, e.body, e.crc, e.link, e.processed_us, NULL, NULL
 FROM s JOIN limpet.events e ON e.sid = s.sid
 WHERE e.seq > least(coalesce((SELECT seq FROM n), 0), coalesce((SELECT start FROM t), s.version))
   AND ($6::bigint IS NULL OR e.at_us >= $6 OR e.seq > coalesce((SELECT seq FROM n), 0)) ORDER BY e.seq)
UNION ALL
SELECT 3, NULL, c.version, o.owner, c.name, NULL, c.base, c.uid, NULL, NULL, NULL, c.flags, c.body, c.crc, NULL, c.form, c.seq, NULL
FROM s, (VALUES (''), ($2)) AS o (owner), LATERAL limpet.scopes_of($1, o.owner) c WHERE $5

-- name: states
-- A page of heads ({page}, of which {limit} are shown) with what their states are made of, in no order.
-- kind 0: a head and its snapshot; `within` says whether its events are there too: once {bytes} of
-- snapshots, events and shared names were met there are no more. kind 1: a row of a shared name, of each owner once.
-- kind 2: an event since the snapshot.
WITH p AS MATERIALIZED (SELECT q.*, row_number() OVER () AS place FROM ({page}) q
), shown AS (SELECT * FROM p WHERE p.passes ORDER BY p.place LIMIT {limit}
), named AS MATERIALIZED (
    SELECT o.*, (z.number * {name}) AS places, z.bytes
    FROM (SELECT w.app, w.owner, min(w.place) AS first FROM (
              SELECT shown.app, shown.owner, shown.place FROM shown
              UNION ALL SELECT shown.app, '', shown.place FROM shown) w GROUP BY w.app, w.owner) o
    CROSS JOIN LATERAL (SELECT count(*) AS number, coalesce(sum(octet_length(c.body)), 0) AS bytes
                        FROM limpet.scopes_of(o.app, o.owner) c) z
), sized AS MATERIALIZED (
    SELECT shown.sid, shown.app, shown.owner, shown.place, coalesce(n.seq, 0) AS since,
           coalesce(octet_length(n.body), 0) + coalesce((
               SELECT sum(octet_length(e.body) + {overhead}) FROM limpet.events e
               WHERE e.sid = shown.sid AND e.seq > coalesce(n.seq, 0)), 0)
           + a.places + CASE WHEN a.first = shown.place THEN a.bytes ELSE 0 END
           + u.places + CASE WHEN u.first = shown.place THEN u.bytes ELSE 0 END AS size
    FROM shown
    JOIN named a ON a.app = shown.app AND a.owner = ''
    JOIN named u ON u.app = shown.app AND u.owner = shown.owner
    LEFT JOIN limpet.snapshots n ON n.sid = shown.sid
), had AS MATERIALIZED (
    SELECT * FROM (SELECT sized.*, sum(size) OVER (ORDER BY place) - size AS before FROM sized) z
    WHERE z.before <= {bytes}
)
SELECT 0 AS kind, p.*, had.sid IS NOT NULL AS within, c.seq AS snap_seq, c.flags AS snap_flags,
       c.body AS snap_body, c.crc AS snap_crc
FROM p LEFT JOIN had USING (sid) LEFT JOIN limpet.snapshots c ON c.sid = had.sid
UNION ALL
SELECT 1, NULL, o.app, o.owner, s.name, s.uid, s.version, NULL, s.base, s.seq, NULL, s.form, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, s.flags, s.body, s.crc
FROM (SELECT had.app, had.owner FROM had UNION SELECT had.app, '' FROM had) o,
     LATERAL limpet.scopes_of(o.app, o.owner) s
UNION ALL
SELECT 2, e.sid, NULL, NULL, e.id, e.type, e.seq, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, e.flags, e.body, e.crc
FROM had JOIN limpet.events e ON e.sid = had.sid AND e.seq > had.since

-- name: read
SELECT s.sid, s.uid, s.deleted_us, e.seq, e.id, e.type, e.actor, e.at_us, e.cause, e.invocation_id,
       e.correlation_id, e.wake_id, e.flags, e.body, e.crc, e.link, e.processed_us
FROM limpet.sessions s
LEFT JOIN LATERAL (
    SELECT p.* FROM (
        SELECT l.*, sum(octet_length(l.body)) OVER (ORDER BY l.seq {way}) - octet_length(l.body) AS before
        FROM (SELECT * FROM limpet.events e WHERE e.sid = s.sid AND {where} ORDER BY e.seq {way} LIMIT $5) l
    ) p WHERE p.before < {page_bytes}
) e ON true
WHERE s.app = $1 AND s.owner = $2 AND s.id = $3
ORDER BY e.seq {way}

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
    ) p WHERE p.before < {page_bytes}
) e ON true
ORDER BY e.seq

-- name: erased
SELECT key_hash, version, link, erased_us FROM limpet.erased WHERE key_hash = $1

-- name: erased_crc
SELECT crc FROM limpet.erased WHERE key_hash = $1 FOR UPDATE

-- name: put_erased
INSERT INTO limpet.erased (key_hash, version, link, erased_us, crc) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (key_hash) DO UPDATE
SET version = excluded.version, link = excluded.link, erased_us = excluded.erased_us, crc = excluded.crc

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

-- name: bury
UPDATE limpet.sessions SET deleted_us = limpet.now_us(), labels = '{}', timers = '{}', pending = 0,
    pending_us = NULL, wake_us = NULL, runnable_us = NULL, deadline_us = NULL, lease_us = NULL, worker = NULL
WHERE app = $1 AND owner = $2 AND id = $3 AND deleted_us IS NULL
RETURNING sid, uid, version, link, created_us, updated_us, deleted_us

-- name: put_tomb
UPDATE limpet.sessions SET tomb_crc = $2 WHERE sid = $1

-- name: unmake
DELETE FROM limpet.sessions WHERE app = $1 AND owner = $2 AND id = $3
RETURNING sid, version, link, limpet.now_us() AS at_us, deleted_us, tomb_crc

-- name: feed
-- Only what lies below the horizon: no transaction that is still open can add behind it. The last
-- event there comes along, in a row of its own if there is nothing else: all up to it was looked at.
-- Not the horizon itself: a crash gives the numbers of transactions that left no trace again.
-- `many` says how many there were before those were left off that do not fit the page.
WITH h AS MATERIALIZED (SELECT limpet.stamp(pg_snapshot_xmin(pg_current_snapshot())) AS xid)
SELECT h.xid::text::bigint AS horizon, l.xid::text::bigint AS last_x, l.pos AS last_pos, e.*
FROM h LEFT JOIN LATERAL (
    SELECT e.xid, e.pos FROM limpet.events e WHERE e.xid < h.xid ORDER BY e.xid DESC, e.pos DESC LIMIT 1
) l ON true LEFT JOIN LATERAL (
    SELECT p.* FROM (
        SELECT f.*, count(*) OVER () AS many,
               sum(octet_length(f.body)) OVER (ORDER BY f.x, f.pos) - octet_length(f.body) AS before
        FROM (
            SELECT e.xid::text::bigint AS x, e.pos, s.app, s.owner, s.id AS session_id, s.uid, e.seq, e.id, e.type,
                   e.actor, e.at_us, e.cause, e.invocation_id, e.correlation_id, e.wake_id, e.flags, e.body, e.crc,
                   e.link, e.processed_us
            FROM limpet.events e JOIN limpet.sessions s USING (sid)
            WHERE (e.xid, e.pos) > ($1::text::xid8, $2) AND e.xid < h.xid
              AND s.deleted_us IS NULL AND ($3::text IS NULL OR s.app = $3)
              AND ($4::text IS NULL OR (s.owner = $4 AND s.id = $5))
            ORDER BY e.xid, e.pos LIMIT $6
        ) f
    ) p WHERE p.before < {page_bytes}
) e ON true ORDER BY e.x, e.pos

-- name: feed_end
SELECT e.xid::text::bigint, e.pos FROM limpet.events e
WHERE e.xid < limpet.stamp(pg_snapshot_xmin(pg_current_snapshot()))
ORDER BY e.xid DESC, e.pos DESC LIMIT 1

-- name: audit_count
SELECT count(*) FROM limpet.sessions WHERE deleted_us IS NULL

-- name: audit_keys
SELECT sid, app, owner, id FROM limpet.sessions WHERE deleted_us IS NULL AND sid > $1 ORDER BY sid LIMIT $2

-- name: audit_events
SELECT p.* FROM (
    SELECT l.*, sum(octet_length(l.body)) OVER (ORDER BY l.seq) - octet_length(l.body) AS before
    FROM (SELECT * FROM limpet.events WHERE sid = $1 AND seq > $2 ORDER BY seq LIMIT $3) l
) p WHERE p.before < {page_bytes} ORDER BY p.seq

-- name: audit_tombs
SELECT sid, app, owner, id, uid, version, link, created_us, updated_us, deleted_us, tomb_crc,
    labels <> '{}' OR timers <> '{}' OR pending <> 0 OR num_nonnulls(pending_us, wake_us, runnable_us, deadline_us) > 0
    AS stirs
FROM limpet.sessions WHERE deleted_us IS NOT NULL AND sid > $1 ORDER BY sid LIMIT $2

-- name: audit_erased
SELECT key_hash, version, link, erased_us, crc FROM limpet.erased WHERE key_hash > $1 ORDER BY key_hash LIMIT $2

-- name: audit_ledger
SELECT (SELECT count(*) FROM limpet.sessions WHERE deleted_us IS NOT NULL),
       (SELECT coalesce(sum(tomb_crc), 0) FROM limpet.sessions WHERE deleted_us IS NOT NULL)::bigint,
       (SELECT count(*) FROM limpet.erased), (SELECT coalesce(sum(crc), 0) FROM limpet.erased)::bigint

-- name: audit_columns
SELECT runnable_us, deadline_us, wake_us, xid FROM limpet.sessions WHERE sid = $1

-- name: audit_labels
SELECT app, owner, created_us, name, value FROM limpet.labels WHERE sid = $1 ORDER BY name

-- name: audit_scopes
SELECT c.app, c.owner, c.name, c.version, c.base, c.form, c.flags, c.body, c.crc, c.uid, c.seq,
       EXISTS (SELECT FROM limpet.sessions s WHERE s.uid = c.uid AND s.deleted_us IS NULL) AS lives
FROM (
    SELECT l.*, sum(octet_length(l.body)) OVER (ORDER BY l.app, l.owner, l.name, l.version) - octet_length(l.body)
        AS before
    FROM (
        SELECT * FROM limpet.scopes c WHERE (c.app, c.owner, c.name, c.version) > ($1, $2, $3, $4)
        ORDER BY c.app, c.owner, c.name, c.version LIMIT $5
    ) l
) c WHERE c.before < {page_bytes}
ORDER BY c.app, c.owner, c.name, c.version

-- name: audit_orphans
SELECT 'event', count(*) FROM limpet.events e
WHERE NOT EXISTS (SELECT FROM limpet.sessions s WHERE s.sid = e.sid AND s.deleted_us IS NULL)
UNION ALL
SELECT 'label', count(*) FROM limpet.labels l
WHERE NOT EXISTS (SELECT FROM limpet.sessions s WHERE s.sid = l.sid AND s.deleted_us IS NULL)
UNION ALL
SELECT 'snapshot', count(*) FROM limpet.snapshots n
WHERE NOT EXISTS (SELECT FROM limpet.sessions s WHERE s.sid = n.sid AND s.deleted_us IS NULL)
