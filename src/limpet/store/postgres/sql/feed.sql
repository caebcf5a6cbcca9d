-- Where followers look: which sessions have new events, and whether one has ended.

-- name: feed_touched
-- Everything that can be read beyond the position, also above the horizon: a follower reads its own
-- session, so for it nothing is inserted behind. The position itself never goes above the horizon.
-- The ledger changes in every transaction that deletes or erases a session.
WITH h AS MATERIALIZED (
    SELECT limpet.stamp(pg_snapshot_xmin(pg_current_snapshot())) AS xid
), r AS MATERIALIZED (
    SELECT e.xid, e.pos, e.sid, e.seq FROM limpet.events e
    WHERE (e.xid, e.pos) > ($1::text::xid8, $2) ORDER BY e.xid, e.pos LIMIT $3
)
SELECT h.xid::text::bigint AS horizon, n.many, b.xid::text::bigint AS last_xid, b.pos AS last_pos,
       b.below, l.ended, s.app, s.owner, s.id AS session_id, f.seq
FROM h
CROSS JOIN (SELECT count(*) AS many FROM r) n
CROSS JOIN (
    SELECT coalesce(string_agg(m.name || encode(m.value, 'escape'), ' ' ORDER BY m.name), '') AS ended
    FROM limpet.meta m WHERE m.name LIKE 'ledger%'
) l
LEFT JOIN LATERAL (
    SELECT r.xid, r.pos, count(*) OVER () AS below FROM r WHERE r.xid < h.xid ORDER BY r.xid DESC, r.pos DESC LIMIT 1
) b ON true
LEFT JOIN (SELECT r.sid, max(r.seq) AS seq FROM r GROUP BY r.sid) f ON true
LEFT JOIN limpet.sessions s ON s.sid = f.sid
