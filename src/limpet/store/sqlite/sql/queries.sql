-- Reading and writing sessions. What stands in braces is put in by __init__.py.

-- name: head
SELECT {head} FROM sessions s WHERE app = ? AND user = ? AND id = ?

-- name: standing
-- What has changed in a head if anything has.
SELECT sid, version, link, fence, lease_us, worker, leased_us
FROM sessions WHERE app = ? AND user = ? AND id = ?

-- name: log_of
-- The last column is true where more of the head is needed.
SELECT sid, uid, version, link, floor > 0 OR standing IS 'archived' FROM sessions WHERE app = ? AND user = ? AND id = ?

-- name: head_at
SELECT {head} FROM sessions s WHERE sid = ?

-- name: mac
SELECT mac FROM sessions WHERE sid = ?

-- name: set_mac
UPDATE sessions SET mac = ? WHERE sid = ?

-- name: facts
SELECT facts FROM sessions WHERE app = ? AND user = ? AND id = ?

-- name: any_in_app
SELECT 1 FROM sessions WHERE app = ? LIMIT 1

-- name: tombstone_at
SELECT {tombstone} FROM tombstones WHERE sid = ?

-- name: is_buried
SELECT 1 FROM tombstones WHERE app = ? AND user = ? AND id = ? LIMIT 1

-- name: ended_as
SELECT 1 FROM tombstones WHERE app = ? AND user = ? AND id = ? AND uid = ? LIMIT 1

-- name: parent
SELECT parent FROM sessions WHERE sid = ?

-- name: sid_of
SELECT sid FROM sessions WHERE app = ? AND user = ? AND id = ?

-- name: erased
SELECT key_hash, version, link, erased_us, forks_kept FROM erased WHERE key_hash = ?

-- name: secret
SELECT value FROM meta WHERE name = 'secret'

-- name: event_by_id
SELECT {event} FROM events e WHERE e.id = ? AND e.sid = ?

-- name: ids_recorded
-- Those of some ids that any session has recorded.
SELECT id FROM events WHERE id IN ({ids})

-- name: event_at
SELECT {event} FROM events e WHERE e.sid = ? AND e.seq = ?

-- name: link_at
SELECT link FROM events WHERE sid = ? AND seq = ?

-- name: time_at
SELECT at_us FROM events WHERE sid = ? AND seq = ?

-- name: events_after
SELECT {event} FROM events e WHERE e.sid = ? AND e.seq > ? AND e.seq <= ? AND ({types}) ORDER BY e.seq LIMIT ?

-- name: events_last
SELECT {event} FROM events e WHERE e.sid = ? AND e.seq < ? AND e.seq > ? AND ({types}) ORDER BY e.seq DESC LIMIT ?

-- name: events_naming
-- Those whose bodies have the beginning of a path with the name, and those whose bodies cannot be looked into: compressed or sealed.
SELECT {event} FROM events e WHERE e.sid = ? AND e.seq < ? AND e.seq > ?
  AND (e.flags & 3 OR instr(e.body, ?) > 0) ORDER BY e.seq DESC LIMIT ?

-- name: scope_makers
-- Who made each version of a name, the newest first, and when. Of a session that was deleted, when it
-- was last written to.
SELECT c.version, c.uid, c.seq, coalesce(
    (SELECT e.at_us FROM sessions s JOIN events e ON e.sid = s.sid AND e.seq = c.seq WHERE s.uid = c.uid),
    (SELECT g.last_us FROM sessions s JOIN segments g ON g.sid = s.sid AND g.first <= c.seq AND g.last >= c.seq
     WHERE s.uid = c.uid),
    (SELECT max(t.updated_us) FROM tombstones t WHERE t.uid = c.uid))
FROM scopes c WHERE c.app = ? AND c.user = ? AND c.name = ? ORDER BY c.version DESC

-- name: scope_at
SELECT version, base, form, flags, body, crc, uid, seq FROM scopes
WHERE app = ?1 AND user = ?2 AND name = ?3 AND version <= ?4 AND version >= (
    SELECT b.base FROM scopes b WHERE b.app = ?1 AND b.user = ?2 AND b.name = ?3 AND b.version = ?4)
ORDER BY version

-- name: pending_inputs
SELECT {event} FROM events e WHERE e.sid = ? AND e.seq > ? AND e.seq <= ? AND e.processed = 0 ORDER BY e.seq LIMIT ?

-- name: delta_bytes
SELECT coalesce(sum(length(body)), 0) FROM events WHERE sid = ? AND seq > ? AND seq <= ?

-- name: feed
SELECT s.app, s.user, s.id, s.uid, {event}
FROM events e JOIN sessions s ON s.sid = e.sid
WHERE e.pos > ? AND e.pos <= ?
  AND (?3 IS NOT NULL OR s.app < '$' OR s.app >= '%')
  AND (?3 IS NULL OR s.app = ?3) AND (?4 IS NULL OR (s.user = ?4 AND s.id = ?5))
ORDER BY e.pos LIMIT ?6

-- name: feed_positions
SELECT e.pos, s.app, s.user, s.id, s.uid, e.seq
FROM events e JOIN sessions s ON s.sid = e.sid
WHERE e.pos > ? AND e.pos <= ?
  AND (?3 IS NOT NULL OR s.app < '$' OR s.app >= '%')
  AND (?3 IS NULL OR s.app = ?3) AND (?4 IS NULL OR (s.user = ?4 AND s.id = ?5))
ORDER BY e.pos LIMIT ?6

-- name: feed_next
SELECT min(pos), (SELECT max(pos) FROM events) FROM events WHERE pos > ?

-- name: feed_issued
-- The highest position that was ever handed out, also to events that are gone.
SELECT max(coalesce((SELECT max(pos) FROM events), 0), coalesce((SELECT value FROM meta WHERE name = 'feed'), 0))

-- name: is_recorded
SELECT 1 FROM events WHERE pos = ? AND id = ?

-- name: is_pending
SELECT 1 FROM events WHERE sid = ? AND seq = ? AND processed = 0

-- name: snapshot
SELECT seq, flags, body, crc FROM snapshots WHERE sid = ? AND seq <= ? ORDER BY seq DESC LIMIT 1

-- name: base
SELECT flags, body, crc FROM bases WHERE sid = ?

-- name: state_sizes
-- What it takes to read each session's state. The lists of these four are JSON.
SELECT w.value, coalesce(length(n.body), 0) + coalesce(
    (SELECT sum(length(e.body) + {overhead}) FROM events e WHERE e.sid = w.value AND e.seq > coalesce(n.seq, 0)), 0)
FROM json_each(?) w LEFT JOIN snapshots n
    ON n.sid = w.value AND n.seq = (SELECT max(m.seq) FROM snapshots m WHERE m.sid = w.value)

-- name: snapshots_of
SELECT n.sid, n.seq, n.flags, n.body, n.crc, (SELECT link FROM events WHERE sid = n.sid AND seq = n.seq)
FROM json_each(?) w CROSS JOIN snapshots n
    ON n.sid = w.value AND n.seq = (SELECT max(m.seq) FROM snapshots m WHERE m.sid = w.value)

-- name: events_of
-- Of each session those beyond a seq, in order: sessions are taken one by one, and each along the index.
SELECT e.sid, {event} FROM json_each(?) w
CROSS JOIN events e ON e.sid = json_extract(w.value, '$[0]') AND e.seq > json_extract(w.value, '$[1]')
ORDER BY w.key, e.seq

-- name: scopes_of
-- The newest value of every name of some owners, as the rows from its base on: from name to name
-- along the index, so that older versions are not looked at.
WITH RECURSIVE names (app, user, name) AS (
    SELECT json_extract(w.value, '$[0]'), json_extract(w.value, '$[1]'),
           (SELECT min(s.name) FROM scopes s
            WHERE s.app = json_extract(w.value, '$[0]') AND s.user = json_extract(w.value, '$[1]'))
    FROM json_each(?) w
    UNION ALL
    SELECT n.app, n.user, (SELECT min(s.name) FROM scopes s WHERE s.app = n.app AND s.user = n.user AND s.name > n.name)
    FROM names n WHERE n.name IS NOT NULL
)
SELECT n.app, n.user, n.name, r.version, r.base, r.form, r.flags, r.body, r.crc, r.uid, r.seq
FROM names n CROSS JOIN scopes r
    ON r.app = n.app AND r.user = n.user AND r.name = n.name AND r.version >= (
        SELECT b.base FROM scopes b WHERE b.app = n.app AND b.user = n.user AND b.name = n.name
        ORDER BY b.version DESC LIMIT 1)
WHERE n.name IS NOT NULL ORDER BY n.app, n.user, n.name, r.version

-- name: scope_sizes_of
-- The bytes of each name of some owners, one owner after the other, up to a number of names. A row
-- without a size says that the owner has no more.
WITH RECURSIVE names (place, app, user, name) AS (
    SELECT w.key, json_extract(w.value, '$[0]'), json_extract(w.value, '$[1]'),
           (SELECT min(s.name) FROM scopes s
            WHERE s.app = json_extract(w.value, '$[0]') AND s.user = json_extract(w.value, '$[1]'))
    FROM json_each(?1) w
    UNION ALL
    SELECT n.place, n.app, n.user,
           (SELECT min(s.name) FROM scopes s WHERE s.app = n.app AND s.user = n.user AND s.name > n.name)
    FROM names n WHERE n.name IS NOT NULL
    ORDER BY 1 LIMIT ?2
)
SELECT n.place, (SELECT sum(length(r.body)) FROM scopes r
                 WHERE r.app = n.app AND r.user = n.user AND r.name = n.name AND r.version >= (
                     SELECT b.base FROM scopes b WHERE b.app = n.app AND b.user = n.user AND b.name = n.name
                     ORDER BY b.version DESC LIMIT 1))
FROM names n

-- name: scope_any
SELECT 1 FROM scopes WHERE app = ? AND user IN ('', ?) LIMIT 1

-- name: scopes
-- Every name that a user's sessions see, as the rows that its newest value is made of. Skips from name
-- to name along the index: the cost does not grow with the number of versions.
WITH RECURSIVE names (user, name) AS (
    SELECT o.user, (SELECT min(s.name) FROM scopes s WHERE s.app = ?1 AND s.user = o.user)
    FROM (SELECT '' AS user UNION SELECT ?2) o
    UNION ALL
    SELECT n.user, (SELECT min(s.name) FROM scopes s WHERE s.app = ?1 AND s.user = n.user AND s.name > n.name)
    FROM names n WHERE n.name IS NOT NULL
)
SELECT n.user, n.name, s.version, s.base, s.form, s.flags, s.body, s.crc, s.uid, s.seq
FROM names n CROSS JOIN scopes s
WHERE n.name IS NOT NULL AND s.app = ?1 AND s.user = n.user AND s.name = n.name
  AND s.version >= (SELECT b.base FROM scopes b WHERE b.app = ?1 AND b.user = n.user AND b.name = n.name
                    ORDER BY b.version DESC LIMIT 1)

-- name: scope_names
-- The names of one owner: the form of the newest version, and the bytes that it is made of. SQLite
-- knows the length of a body without reading it.
WITH RECURSIVE names (name) AS (
    SELECT (SELECT min(name) FROM scopes WHERE app = ?1 AND user = ?2)
    UNION ALL
    SELECT (SELECT min(s.name) FROM scopes s WHERE s.app = ?1 AND s.user = ?2 AND s.name > names.name)
    FROM names WHERE names.name IS NOT NULL
)
SELECT n.name, b.form, (SELECT sum(length(s.body)) FROM scopes s
                        WHERE s.app = ?1 AND s.user = ?2 AND s.name = n.name AND s.version >= b.base)
FROM names n CROSS JOIN scopes b
WHERE n.name IS NOT NULL AND b.app = ?1 AND b.user = ?2 AND b.name = n.name
  AND b.version = (SELECT max(s.version) FROM scopes s WHERE s.app = ?1 AND s.user = ?2 AND s.name = n.name)

-- name: keys_with
SELECT app, user, id FROM sessions WHERE uid = ?

-- name: first_owner
SELECT app, user FROM scopes WHERE (app, user) >= (?, ?) ORDER BY app, user LIMIT 1

-- name: next_owner
SELECT app, user FROM scopes WHERE (app, user) > (?, ?) ORDER BY app, user LIMIT 1

-- name: scope_version
SELECT coalesce(max(version), 0) FROM scopes WHERE app = ? AND user = ? AND name = ?

-- name: scope_newest
SELECT version, base, form, flags, body, crc, uid, seq FROM scopes
WHERE app = ? AND user = ? AND name = ? ORDER BY version DESC LIMIT 1

-- name: scope_since
SELECT version, base, form, flags, body, crc, uid, seq FROM scopes
WHERE app = ? AND user = ? AND name = ? AND version >= ? ORDER BY version

-- name: add_session
INSERT INTO sessions (app, user, id, uid, version, link, created_us, updated_us, active_us, slot, facts, due_us,
                      deadline_us, priority, floor, parent, mac)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: add_event
INSERT INTO events (pos, sid, seq, id, type, actor, at_us, cause, invocation_id, correlation_id, wake_id,
                    flags, body, crc, salt, digest, link, processed)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: add_scope
INSERT INTO scopes (app, user, name, version, base, form, flags, body, crc, uid, seq)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: set_processed
UPDATE events SET processed = ? WHERE sid = ? AND seq = ?

-- name: set_hot
-- What every event changes. Each of these names no column more than has changed: an index of a column
-- that is named is written, whether its value changed or not.
UPDATE sessions SET version = ?, link = ?, mac = ?, updated_us = ?, active_us = ? WHERE sid = ?

-- name: set_facts
UPDATE sessions SET facts = ? WHERE sid = ?

-- name: set_moved
UPDATE sessions SET version = ?, link = ?, mac = ?, updated_us = ?, active_us = ?, slot = ? WHERE sid = ?

-- name: set_folded
-- One search for what would be two statements. So are the next two.
UPDATE sessions SET version = ?, link = ?, mac = ?, updated_us = ?, active_us = ?, facts = ? WHERE sid = ?

-- name: set_moved_folded
UPDATE sessions SET version = ?, link = ?, mac = ?, updated_us = ?, active_us = ?, slot = ?, facts = ?
WHERE sid = ?

-- name: set_awaited
UPDATE sessions SET version = ?, link = ?, mac = ?, updated_us = ?, active_us = ?, facts = ?,
  due_us = ?, deadline_us = ?, priority = ?
WHERE sid = ?

-- name: set_turned
-- The end of a turn changes all of it at once: one search, and each index is written once.
UPDATE sessions SET version = ?, link = ?, mac = ?, updated_us = ?, active_us = ?, slot = ?, facts = ?,
  due_us = ?, deadline_us = ?, priority = ?, fence = ?, lease_us = ?, worker = ?, leased_us = ?
WHERE sid = ?

-- name: set_due
UPDATE sessions SET due_us = ?, deadline_us = ?, priority = ? WHERE sid = ?

-- name: add_label
INSERT INTO labels (app, name, value, created_us, sid, user) VALUES (?, ?, ?, ?, ?, ?)

-- name: drop_label
DELETE FROM labels WHERE app = ? AND name = ? AND value = ? AND created_us = ? AND sid = ? AND user = ?

-- name: put_snapshot
INSERT OR REPLACE INTO snapshots (sid, seq, flags, body, crc, pin) VALUES (?, ?, ?, ?, ?, ?)

-- name: keep_snapshot
-- One that is not pinned does not take the place of one that is.
INSERT OR IGNORE INTO snapshots (sid, seq, flags, body, crc) VALUES (?, ?, ?, ?, ?)

-- name: thin_snapshots
-- The rung before this one goes if it takes more than its share of what the log has grown by since the
-- rung below. Pinned ones stay, and those that a segment ends on.
DELETE FROM snapshots AS n WHERE n.sid = ?1 AND n.pin IS NULL
  AND n.seq = (SELECT max(m.seq) FROM snapshots m WHERE m.sid = ?1 AND m.seq < ?2 AND m.pin IS NULL)
  AND n.seq > coalesce((SELECT max(g.last) FROM segments g WHERE g.sid = ?1), 0)
  AND ?3 * length(n.body) > (
    SELECT coalesce(sum(length(e.body) + {overhead}), 0) FROM events e
    WHERE e.sid = ?1 AND e.seq <= n.seq
      AND e.seq > coalesce((SELECT max(m.seq) FROM snapshots m WHERE m.sid = ?1 AND m.seq < n.seq), 0))

-- name: add_base
INSERT INTO bases (sid, flags, body, crc) VALUES (?, ?, ?, ?)
