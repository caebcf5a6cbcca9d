-- name: load
-- Sessions by their keys ($1, $2, $3). One row for each thing: the head, its newest snapshot below $8 or
-- else what its log begins on, the events since the snapshot or of the tail, the rows of the shared
-- names, and of the log of its checkpoints ($9, $10, at its place) the head's facts. `kind` says which; a column that a kind does not have is NULL. Of the tail ($4 events) as many of the
-- newest as fit a page of $7 bytes: their sizes are known without their bodies. A snapshot has the link of the
-- event that it stands on.
WITH s AS MATERIALIZED (
    SELECT k.place, s.* FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS k (app, owner, id, place)
    JOIN limpet.sessions s ON s.app = k.app AND s.owner = k.owner AND s.id = k.id
), n AS MATERIALIZED (
    SELECT s.place, n.*, CASE WHEN n.seq = s.version THEN s.link ELSE coalesce((
        SELECT e.link FROM limpet.events e WHERE e.sid = s.sid AND e.seq = n.seq), (
        SELECT g.link FROM limpet.segments g WHERE g.sid = s.sid AND g.last = n.seq)) END AS link
    FROM s CROSS JOIN LATERAL (
        SELECT * FROM limpet.snapshots p WHERE p.sid = s.sid AND p.seq < $8 AND p.seq <= s.version
        ORDER BY p.seq DESC LIMIT 1) n
), f AS MATERIALIZED (
    SELECT s.place, s.sid, coalesce(n.seq, 0) AS since,
           least(coalesce(n.seq, 0), coalesce(t.start, s.version)) AS after
    FROM s LEFT JOIN n USING (place) LEFT JOIN LATERAL (
        SELECT min(b.seq) - 1 AS start FROM (
            SELECT e.seq, sum(octet_length(e.body)) OVER (ORDER BY e.seq DESC) - octet_length(e.body) AS newer
            FROM limpet.events e WHERE e.sid = s.sid AND e.seq > s.version - $4) b
        WHERE b.newer < $7) t ON true
)
SELECT 'head' AS kind, s.place, s.sid, s.uid, s.version, s.link,
       -- of a head
       s.created_us, s.updated_us, s.active_us, s.facts::text, s.fence, s.lease_us, s.leased_us, s.worker, s.floor,
       s.mac,
       -- of a stored body
       NULL::bigint AS seq, NULL::integer AS flags, NULL::bytea AS body, NULL::bigint AS crc,
       -- of an event
       NULL::xid8 AS xid, NULL::bigint AS pos, NULL::text AS id, NULL::text AS type, NULL::text AS actor,
       NULL::bigint AS at_us, NULL::text AS cause, NULL::text AS invocation_id, NULL::text AS correlation_id,
       NULL::text AS wake_id, NULL::bigint AS processed, NULL::bigint AS processed_us,
       -- of a shared name
       NULL::text AS app, NULL::text AS owner, NULL::text AS name, NULL::bigint AS base, NULL::integer AS form,
       -- of an event that is compared with the chain ($11)
       NULL::bytea AS salt, NULL::bytea AS previous
FROM s
UNION ALL
SELECT 'snapshot', n.place, n.sid, NULL, NULL, n.link,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       n.seq, n.flags, n.body, n.crc,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM n
UNION ALL
SELECT 'base', s.place, s.sid, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, b.flags, b.body, b.crc,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM s JOIN limpet.bases b USING (sid) WHERE s.floor > 0 AND s.place NOT IN (SELECT n.place FROM n)
UNION ALL
SELECT 'event', e.place, e.sid, NULL, NULL, e.link,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       e.seq, e.flags, e.body, e.crc,
       e.xid, e.pos, e.id, e.type, e.actor, e.at_us, e.cause, e.invocation_id, e.correlation_id, e.wake_id,
       e.processed, CASE WHEN e.processed > 0 THEN (
           SELECT b.at_us FROM limpet.events b WHERE b.sid = e.sid AND b.seq = e.processed) END,
       NULL, NULL, NULL, NULL, NULL,
       CASE WHEN $11 THEN e.salt END, CASE WHEN $11 THEN coalesce((
           SELECT b.link FROM limpet.events b WHERE b.sid = e.sid AND b.seq = e.seq - 1), (
           SELECT g.link FROM limpet.segments g WHERE g.sid = e.sid AND g.last = e.seq - 1)) END
FROM (SELECT f.place, e.* FROM f JOIN limpet.events e ON e.sid = f.sid AND e.seq > f.after
      WHERE $6::bigint IS NULL OR e.at_us >= $6 OR e.seq > f.since ORDER BY f.place, e.seq) e
UNION ALL
SELECT 'name', NULL, NULL, c.uid, c.version, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       c.seq, c.flags, c.body, c.crc,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       o.app, o.owner, c.name, c.base, c.form, NULL, NULL
FROM (SELECT s.app, '' AS owner FROM s UNION SELECT s.app, s.owner FROM s) o,
     LATERAL limpet.scopes_of(o.app, o.owner) c WHERE $5
UNION ALL
SELECT 'checkpoint', k.place, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, c.facts::text, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM unnest($9::text[], $10::text[]) WITH ORDINALITY AS k (owner, id, place)
JOIN limpet.sessions c ON c.app = '$$checkpoints' AND c.owner = k.owner AND c.id = k.id

-- name: states
-- The end of a statement that begins WITH page AS ...: the heads of a page, as heads.py asks for them,
-- and their `place` in it. Brings what the states of the first $1 of them are made of, in no order: the
-- heads, their newest snapshots or what their logs begin on, the events since, and the rows of the shared names, of each owner once. `within`
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
    SELECT shown.sid, shown.app, shown.owner, shown.place, shown.floor, coalesce(n.seq, 0) AS since,
           CASE WHEN n.seq = shown.version THEN shown.link ELSE coalesce((
               SELECT e.link FROM limpet.events e WHERE e.sid = shown.sid AND e.seq = n.seq), (
               SELECT g.link FROM limpet.segments g WHERE g.sid = shown.sid AND g.last = n.seq)) END AS link,
           coalesce(octet_length(n.body), 0) + coalesce((
               SELECT sum(octet_length(e.body) + $3::bigint) FROM limpet.events e
               WHERE e.sid = shown.sid AND e.seq > coalesce(n.seq, 0)), 0)
           + a.places + CASE WHEN a.first = shown.place THEN a.bytes ELSE 0 END
           + u.places + CASE WHEN u.first = shown.place THEN u.bytes ELSE 0 END AS size
    FROM shown
    JOIN named a ON a.app = shown.app AND a.owner = ''
    JOIN named u ON u.app = shown.app AND u.owner = shown.owner
    LEFT JOIN LATERAL (SELECT * FROM limpet.snapshots p WHERE p.sid = shown.sid AND p.seq <= shown.version
                       ORDER BY p.seq DESC LIMIT 1) n ON true
), had AS MATERIALIZED (
    SELECT * FROM (SELECT sized.*, sum(size) OVER (ORDER BY place) - size AS before FROM sized) z
    WHERE z.before <= $2::bigint
)
SELECT 'head' AS kind, p.sid, p.uid, p.version, p.link,
       -- of a head, and its place on the page
       p.session_id, p.created_us, p.updated_us, p.active_us, p.facts, p.fence, p.lease_us, p.leased_us, p.worker,
       p.floor, p.mac, p.deleted_us, p.n, p.passes, p.place, had.sid IS NOT NULL AS within,
       -- of a stored body
       NULL::bigint AS seq, NULL::integer AS flags, NULL::bytea AS body, NULL::bigint AS crc,
       -- of an event
       NULL::xid8 AS xid, NULL::bigint AS pos, NULL::text AS id, NULL::text AS type, NULL::text AS actor,
       NULL::bigint AS at_us, NULL::text AS cause, NULL::text AS invocation_id, NULL::text AS correlation_id,
       NULL::text AS wake_id, NULL::bigint AS processed, NULL::bigint AS processed_us,
       -- of a head or a shared name, and of a name alone
       p.app, p.owner, NULL::text AS name, NULL::bigint AS base, NULL::integer AS form
FROM page p LEFT JOIN had USING (sid)
UNION ALL
SELECT 'snapshot', n.sid, NULL, NULL, had.link,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       n.seq, n.flags, n.body, n.crc,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL
FROM had JOIN limpet.snapshots n ON n.sid = had.sid AND n.seq = had.since
UNION ALL
SELECT 'base', b.sid, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, b.flags, b.body, b.crc,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL
FROM had JOIN limpet.bases b ON b.sid = had.sid WHERE had.floor > 0 AND had.since = 0
UNION ALL
SELECT 'event', e.sid, NULL, NULL, e.link,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       e.seq, e.flags, e.body, e.crc,
       e.xid, e.pos, e.id, e.type, e.actor, e.at_us, e.cause, e.invocation_id, e.correlation_id, e.wake_id,
       e.processed, NULL,
       NULL, NULL, NULL, NULL, NULL
FROM had JOIN limpet.events e ON e.sid = had.sid AND e.seq > had.since
UNION ALL
SELECT 'name', NULL, c.uid, c.version, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       c.seq, c.flags, c.body, c.crc,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       o.app, o.owner, c.name, c.base, c.form
FROM (SELECT had.app, had.owner FROM had UNION SELECT had.app, '' FROM had) o,
     LATERAL limpet.scopes_of(o.app, o.owner) c

-- name: read
-- Events after seq $4, at most $5 of them and as many as fit a page of $6 bytes. Types: those in $7,
-- or like one of the patterns in $8; all where $7 is NULL. Only the session's own.
SELECT s.sid, s.uid, s.floor, s.version,
       EXISTS (SELECT FROM limpet.segments g WHERE g.sid = s.sid) AS cold, e.seq, e.id, e.type, e.actor, e.at_us, e.cause, e.invocation_id, e.correlation_id, e.wake_id,
       e.flags, e.body, e.crc, e.link, e.xid, e.pos, e.processed,
       CASE WHEN e.processed > 0 THEN (
           SELECT b.at_us FROM limpet.events b WHERE b.sid = e.sid AND b.seq = e.processed) END AS processed_us
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
  AND (s.standing IS DISTINCT FROM 'archived' OR NOT s.facts ? 'archive')
ORDER BY e.seq

-- name: read_reverse
-- The same, before seq $4 and from there back.
SELECT s.sid, s.uid, s.floor, s.version,
       EXISTS (SELECT FROM limpet.segments g WHERE g.sid = s.sid) AS cold, e.seq, e.id, e.type, e.actor, e.at_us, e.cause, e.invocation_id, e.correlation_id, e.wake_id,
       e.flags, e.body, e.crc, e.link, e.xid, e.pos, e.processed,
       CASE WHEN e.processed > 0 THEN (
           SELECT b.at_us FROM limpet.events b WHERE b.sid = e.sid AND b.seq = e.processed) END AS processed_us
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
  AND (s.standing IS DISTINCT FROM 'archived' OR NOT s.facts ? 'archive')
ORDER BY e.seq DESC

-- name: read_line
-- The same as `read`, of the logs too that the session began on. Nothing is read from `bottom` down.
SELECT s.sid, e.of_uid AS uid, (SELECT min(l.low) FROM limpet.line(s.sid) l) AS bottom,
       EXISTS (SELECT FROM limpet.line(s.sid) l JOIN limpet.segments g USING (sid)) AS cold, e.floors, e.begans, s.floor, s.version, e.seq, e.id, e.type, e.actor, e.at_us, e.cause, e.invocation_id, e.correlation_id, e.wake_id,
       e.flags, e.body, e.crc, e.link, e.xid, e.pos, e.processed,
       CASE WHEN e.processed > 0 THEN (
           SELECT b.at_us FROM limpet.events b WHERE b.sid = e.sid AND b.seq = e.processed) END AS processed_us
FROM limpet.sessions s
LEFT JOIN LATERAL (
    SELECT p.* FROM (
        SELECT l.*, sum(octet_length(l.body)) OVER (ORDER BY l.seq) - octet_length(l.body) AS before
        FROM (SELECT l.uid AS of_uid, l.floors, l.begans, e.*
              FROM limpet.line(s.sid) l CROSS JOIN LATERAL (
                  SELECT * FROM limpet.events e WHERE e.sid = l.sid AND e.seq > l.low AND e.seq <= l.high AND e.seq > $4
                  AND ($7::text[] IS NULL OR e.type = ANY ($7) OR e.type LIKE ANY ($8::text[]))
                  ORDER BY e.seq LIMIT $5) e
              ORDER BY e.seq LIMIT $5) l
    ) p WHERE p.before < $6
) e ON true
WHERE s.app = $1 AND s.owner = $2 AND s.id = $3
  AND (s.standing IS DISTINCT FROM 'archived' OR NOT s.facts ? 'archive')
ORDER BY e.seq

-- name: read_line_reverse
-- The same, before seq $4 and from there back.
SELECT s.sid, e.of_uid AS uid, (SELECT min(l.low) FROM limpet.line(s.sid) l) AS bottom,
       EXISTS (SELECT FROM limpet.line(s.sid) l JOIN limpet.segments g USING (sid)) AS cold, e.floors, e.begans, s.floor, s.version, e.seq, e.id, e.type, e.actor, e.at_us, e.cause, e.invocation_id, e.correlation_id, e.wake_id,
       e.flags, e.body, e.crc, e.link, e.xid, e.pos, e.processed,
       CASE WHEN e.processed > 0 THEN (
           SELECT b.at_us FROM limpet.events b WHERE b.sid = e.sid AND b.seq = e.processed) END AS processed_us
FROM limpet.sessions s
LEFT JOIN LATERAL (
    SELECT p.* FROM (
        SELECT l.*, sum(octet_length(l.body)) OVER (ORDER BY l.seq DESC) - octet_length(l.body) AS before
        FROM (SELECT l.uid AS of_uid, l.floors, l.begans, e.*
              FROM limpet.line(s.sid) l CROSS JOIN LATERAL (
                  SELECT * FROM limpet.events e WHERE e.sid = l.sid AND e.seq > l.low AND e.seq <= l.high AND e.seq < $4
                  AND ($7::text[] IS NULL OR e.type = ANY ($7) OR e.type LIKE ANY ($8::text[]))
                  ORDER BY e.seq DESC LIMIT $5) e
              ORDER BY e.seq DESC LIMIT $5) l
    ) p WHERE p.before < $6
) e ON true
WHERE s.app = $1 AND s.owner = $2 AND s.id = $3
  AND (s.standing IS DISTINCT FROM 'archived' OR NOT s.facts ? 'archive')
ORDER BY e.seq DESC

-- name: naming
-- Events before seq $4, from there back, whose bodies have the beginning of a path $7, and those whose bodies cannot be
-- looked into: compressed or sealed. At most $5 that fit a page of $6 bytes.
SELECT s.sid, e.of_uid AS uid, e.floors, e.begans, e.seq, e.id, e.type, e.actor, e.at_us, e.cause,
       e.invocation_id, e.correlation_id, e.wake_id, e.flags, e.body, e.crc, e.link, e.xid, e.pos, e.processed,
       CASE WHEN e.processed > 0 THEN (
           SELECT b.at_us FROM limpet.events b WHERE b.sid = e.sid AND b.seq = e.processed) END AS processed_us
FROM limpet.sessions s
LEFT JOIN LATERAL (
    SELECT p.* FROM (
        SELECT l.*, sum(octet_length(l.body)) OVER (ORDER BY l.seq DESC) - octet_length(l.body) AS before
        FROM (SELECT l.uid AS of_uid, l.floors, l.begans, e.*
              FROM limpet.line(s.sid) l CROSS JOIN LATERAL (
                  SELECT * FROM limpet.events e WHERE e.sid = l.sid AND e.seq > l.low AND e.seq <= l.high AND e.seq < $4
                  AND e.seq > $8 AND (e.flags & 3 > 0 OR position($7::bytea IN e.body) > 0)
                  ORDER BY e.seq DESC LIMIT $5) e
              ORDER BY e.seq DESC LIMIT $5) l
    ) p WHERE p.before < $6
) e ON true
WHERE s.app = $1 AND s.owner = $2 AND s.id = $3
  AND (s.standing IS DISTINCT FROM 'archived' OR NOT s.facts ? 'archive')
ORDER BY e.seq DESC

-- name: scope_makers
-- Who made each version of a name below $4, the newest $5, and when. Of a session that was deleted, when
-- it was last written to.
SELECT c.version, c.uid, c.seq, coalesce(
    (SELECT e.at_us FROM limpet.sessions s JOIN limpet.events e ON e.sid = s.sid AND e.seq = c.seq WHERE s.uid = c.uid),
    (SELECT g.last_us FROM limpet.sessions s JOIN limpet.segments g ON g.sid = s.sid AND g.first <= c.seq
     AND g.last >= c.seq WHERE s.uid = c.uid),
    (SELECT max(t.updated_us) FROM limpet.tombstones t WHERE t.uid = c.uid)) AS at_us
FROM limpet.scopes c WHERE c.app = $1 AND c.owner = $2 AND c.name = $3 AND c.version < $4
ORDER BY c.version DESC LIMIT $5

-- name: scope_at
SELECT version, base, form, flags, body, crc, uid, seq FROM limpet.scopes
WHERE app = $1 AND owner = $2 AND name = $3 AND version <= $4 AND version >= (
    SELECT b.base FROM limpet.scopes b WHERE b.app = $1 AND b.owner = $2 AND b.name = $3 AND b.version = $4)
ORDER BY version

-- name: time_at
SELECT e.at_us FROM limpet.line($1) l JOIN limpet.events e ON e.sid = l.sid AND e.seq = $2
WHERE l.low < $2 AND l.high >= $2

-- name: pending_inputs
-- The oldest $4 that fit a page of $5 bytes, from an index of nothing but what is pending.
SELECT s.sid, s.uid, e.seq, e.id, e.type, e.actor, e.at_us, e.cause, e.invocation_id, e.correlation_id, e.wake_id,
       e.flags, e.body, e.crc, e.link, e.xid, e.pos, e.processed,
       NULL::bigint AS processed_us
FROM limpet.sessions s LEFT JOIN LATERAL (
    SELECT p.* FROM (
        SELECT l.*, sum(octet_length(l.body)) OVER (ORDER BY l.seq) - octet_length(l.body) AS before
        FROM (SELECT * FROM limpet.events e WHERE e.sid = s.sid AND e.processed = 0 ORDER BY e.seq LIMIT $4) l
    ) p WHERE p.before < $5
) e ON true
WHERE s.app = $1 AND s.owner = $2 AND s.id = $3
  AND (s.standing IS DISTINCT FROM 'archived' OR NOT s.facts ? 'archive')
ORDER BY e.seq

-- name: records
-- Own events after seq $4, with what their chain needs of them.
SELECT s.sid, s.uid, e.seq, e.id, e.type, e.actor, e.at_us, e.cause, e.invocation_id, e.correlation_id, e.wake_id,
       e.flags, e.body, e.crc, e.link, e.xid, e.pos, e.processed,
       CASE WHEN e.processed > 0 THEN (
           SELECT b.at_us FROM limpet.events b WHERE b.sid = e.sid AND b.seq = e.processed) END AS processed_us, e.salt, e.digest
FROM limpet.sessions s
LEFT JOIN LATERAL (
    SELECT p.* FROM (
        SELECT l.*, sum(octet_length(l.body)) OVER (ORDER BY l.seq) - octet_length(l.body) AS before
        FROM (SELECT * FROM limpet.events e WHERE e.sid = s.sid AND e.seq > $4 ORDER BY e.seq LIMIT $5) l
    ) p WHERE p.before < $6
) e ON true
WHERE s.app = $1 AND s.owner = $2 AND s.id = $3
ORDER BY e.seq

-- name: read_ids
SELECT s.sid, s.uid, e.seq, e.id, e.type, e.actor, e.at_us, e.cause, e.invocation_id, e.correlation_id, e.wake_id,
       e.flags, e.body, e.crc, e.link, e.xid, e.pos, e.processed,
       CASE WHEN e.processed > 0 THEN (
           SELECT b.at_us FROM limpet.events b WHERE b.sid = e.sid AND b.seq = e.processed) END AS processed_us
FROM limpet.sessions s LEFT JOIN limpet.events e ON e.sid = s.sid AND e.id = ANY ($4::text[])
WHERE s.app = $1 AND s.owner = $2 AND s.id = $3
  AND (s.standing IS DISTINCT FROM 'archived' OR NOT s.facts ? 'archive')

-- name: recorded
SELECT k.i, e.seq, e.id, e.type, e.actor, e.at_us, e.cause, e.invocation_id, e.correlation_id, e.wake_id,
       e.flags, e.body, e.crc, e.link, e.xid, e.pos, e.processed,
       CASE WHEN e.processed > 0 THEN (
           SELECT b.at_us FROM limpet.events b WHERE b.sid = e.sid AND b.seq = e.processed) END AS processed_us
FROM unnest($1::bigint[], $2::text[]) WITH ORDINALITY AS k (sid, id, i)
JOIN limpet.events e ON e.id = k.id AND e.sid = k.sid

-- name: pending
SELECT k.i FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS k (sid, seq, i)
JOIN limpet.events e ON e.sid = k.sid AND e.seq = k.seq
WHERE e.processed = 0

-- name: unpin
WITH s AS (SELECT sid FROM limpet.sessions WHERE app = $1 AND owner = $2 AND id = $3),
     gone AS (DELETE FROM limpet.snapshots n USING s
              WHERE n.sid = s.sid AND n.seq = ANY ($4::bigint[]) AND n.pin IS NOT NULL)
SELECT count(*) FROM s

-- name: link_at
-- Of a living session, or of the one that it began on.
SELECT e.link FROM limpet.line($1) l JOIN limpet.events e ON e.sid = l.sid AND e.seq = $2
WHERE $2 > l.low AND $2 <= l.high

-- name: origin
-- A session by its number, living or not: for those that began on it.
SELECT sid, app, owner, id AS session_id, uid, version, floor, created_us, parent FROM limpet.sessions WHERE sid = $1
UNION ALL
SELECT sid, app, owner, id, uid, version, floor, created_us, parent FROM limpet.tombstones WHERE sid = $1

-- name: living
SELECT sid, app, owner, id AS session_id, uid, version, floor, created_us, parent, adopted,
       standing = 'archived' AND facts ? 'archive' AS archived FROM limpet.sessions
WHERE app = $1 AND owner = $2 AND id = $3

-- name: gone
-- What became of a session that was not found: its log is in the archive, it was deleted, or its key
-- was erased. If there is one all the same, and not in the archive, it came since.
SELECT EXISTS (SELECT FROM limpet.sessions WHERE app = $1 AND owner = $2 AND id = $3) AS living,
       EXISTS (SELECT FROM limpet.sessions WHERE app = $1 AND owner = $2 AND id = $3
               AND standing = 'archived' AND facts ? 'archive') AS archived,
       EXISTS (SELECT FROM limpet.tombstones WHERE app = $1 AND owner = $2 AND id = $3) AS deleted,
       EXISTS (SELECT FROM limpet.erased WHERE key_hash = $4) AS erased

-- name: snapshot_below
-- The newest at or below seq $2, with the link of the event that it stands on.
SELECT n.seq, n.flags, n.body, n.crc, coalesce(e.link, (
           SELECT g.link FROM limpet.segments g WHERE g.sid = n.sid AND g.last = n.seq)) AS link
FROM limpet.snapshots n LEFT JOIN limpet.events e ON e.sid = n.sid AND e.seq = n.seq
WHERE n.sid = $1 AND n.seq <= $2 ORDER BY n.seq DESC LIMIT 1

-- name: base_of
SELECT flags, body, crc FROM limpet.bases WHERE sid = $1

-- name: events_between
SELECT e.seq, e.id, e.type, e.actor, e.at_us, e.cause, e.invocation_id, e.correlation_id, e.wake_id,
       e.flags, e.body, e.crc, e.link, e.xid, e.pos, e.processed,
       CASE WHEN e.processed > 0 THEN (
           SELECT b.at_us FROM limpet.events b WHERE b.sid = e.sid AND b.seq = e.processed) END AS processed_us
FROM limpet.events e WHERE e.sid = $1 AND e.seq > $2 AND e.seq <= $3 ORDER BY e.seq

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
SELECT $1::text AS app, o.owner, c.* FROM (VALUES (''), ($2)) AS o (owner), LATERAL limpet.scopes_of($1, o.owner) c

-- name: names_of
SELECT $1::text AS app, $2::text AS owner, c.* FROM limpet.scopes_of($1, $2) c

-- name: keys_with
SELECT app, owner, id FROM limpet.sessions WHERE uid = $1

-- name: owners
SELECT app, owner FROM limpet.scope_owners
WHERE ($1::text IS NULL OR app = $1) AND ($2::text IS NULL OR (app, owner) > ($2, $3::text))
ORDER BY app, owner LIMIT $4

-- name: lock
-- In key order, as everybody locks. With the number of this transaction, by which a reader knows that it
-- sees what was recorded before.
SELECT s.sid, limpet.stamp(pg_current_xact_id())::text AS token FROM unnest($1::text[], $2::text[], $3::text[]) AS k (app, owner, id)
JOIN limpet.sessions s ON s.app = k.app AND s.owner = k.owner AND s.id = k.id
ORDER BY s.app, s.owner, s.id FOR UPDATE OF s

-- name: put_snapshot
INSERT INTO limpet.snapshots (sid, seq, flags, body, crc) SELECT $1, $2, $3, $4, $5
WHERE EXISTS (SELECT FROM limpet.sessions WHERE sid = $1 FOR SHARE)
ON CONFLICT DO NOTHING

-- name: thin_snapshots
-- The rung before this one goes if it takes more than its share of what the log has grown by since the
-- rung below. Pinned ones stay, and those that a segment ends on.
DELETE FROM limpet.snapshots n WHERE n.sid = $1 AND n.pin IS NULL
  AND n.seq = (SELECT max(m.seq) FROM limpet.snapshots m WHERE m.sid = $1 AND m.seq < $2 AND m.pin IS NULL)
  AND n.seq > coalesce((SELECT max(g.last) FROM limpet.segments g WHERE g.sid = $1), 0)
  AND $3::bigint * octet_length(n.body) > (
    SELECT coalesce(sum(octet_length(e.body) + $4::bigint), 0) FROM limpet.events e
    WHERE e.sid = $1 AND e.seq <= n.seq AND e.seq > coalesce(
        (SELECT max(m.seq) FROM limpet.snapshots m WHERE m.sid = $1 AND m.seq < n.seq), 0))

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
                   e.link, e.processed, CASE WHEN e.processed > 0 THEN (
                       SELECT b.at_us FROM limpet.events b WHERE b.sid = e.sid AND b.seq = e.processed) END AS processed_us
            FROM limpet.events e JOIN limpet.sessions s USING (sid)
            WHERE (e.xid, e.pos) > ($1::text::xid8, $2) AND e.xid < h.xid
              AND CASE WHEN $3::text IS NULL THEN s.app < '$' OR s.app >= '%' ELSE s.app = $3 END
              AND ($4::text IS NULL OR (s.owner = $4 AND s.id = $5))
            ORDER BY e.xid, e.pos LIMIT $6
        ) f
    ) p WHERE p.before < $7
) e ON true ORDER BY e.xid, e.pos

-- name: feed_end
SELECT e.xid::text::bigint, e.pos FROM limpet.events e
WHERE e.xid < limpet.stamp(pg_snapshot_xmin(pg_current_snapshot()))
ORDER BY e.xid DESC, e.pos DESC LIMIT 1

-- name: seen
SELECT limpet.seen($1)

-- name: now
SELECT limpet.now_us()

-- name: opening
SELECT
    (SELECT value FROM limpet.meta WHERE name = 'secret'),
    limpet.now_us(),
    EXISTS (SELECT FROM limpet.meta WHERE name = 'ring')

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

-- name: set_mac
-- Unless it was written since.
UPDATE limpet.sessions SET mac = $4 WHERE sid = $1 AND version = $2 AND link = $3

-- name: ended_as
SELECT 1 FROM limpet.tombstones WHERE app = $1 AND owner = $2 AND id = $3 AND uid = $4 LIMIT 1
