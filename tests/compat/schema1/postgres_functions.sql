-- The functions of the store. Replaced as a whole whenever the schema is brought forward.

CREATE OR REPLACE FUNCTION limpet.now_us() RETURNS bigint
LANGUAGE sql VOLATILE AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- Lock scope names, in one order for everybody, until the transaction ends. A name that is not
-- there yet has no row to lock, so the lock is on the name's hash.
CREATE OR REPLACE FUNCTION limpet.lock_names(n_app text[], n_owner text[], n_name text[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    mark bigint;
BEGIN
    FOR mark IN
        SELECT DISTINCT hashtextextended(app || chr(1) || owner || chr(1) || name, 7)
        FROM unnest(n_app, n_owner, n_name) AS n (app, owner, name) ORDER BY 1
    LOOP
        PERFORM pg_advisory_xact_lock(mark);
    END LOOP;
END $$;

-- Record a batch: the commits of many callers ("units"), each all or nothing, planned by the
-- caller on the versions it knows. First the locks (heads in key order, then scope names), then
-- the look for repeats and for versions that moved, then the writing of what still holds. A unit
-- that does not hold is answered with a reason and harms no other; whatever was planned on top of
-- it does not hold either.
--
--   h_*  the sessions of the batch, each once, in key order; sid NULL: to be created
--   n_*  the scope names of the batch, each once
--   v_*  a unit leaves a session at this head (the last unit that holds wins)
--   w_*  a unit needs a scope name
--   e_*  the events, in order     p_*  inputs processed     s_*  new versions of scope names
--
-- v_pending_event: the event (by its place) since which inputs are pending; 0 as before, -1 none.
CREATE OR REPLACE FUNCTION limpet.commit(
    h_sid bigint[], h_app text[], h_owner text[], h_id text[], h_uid text[], h_base bigint[], h_link bytea[],
    n_app text[], n_owner text[], n_name text[], n_base bigint[],
    units integer,
    v_unit integer[], v_head integer[], v_fence bigint[], v_version bigint[], v_labels text[],
    v_pending integer[], v_pending_event integer[], v_timers text[], v_wake bigint[], v_deadline bigint[],
    w_unit integer[], w_name integer[],
    e_unit integer[], e_head integer[], e_id text[], e_given boolean[], e_type text[], e_actor text[],
    e_cause text[], e_invocation text[], e_correlation text[], e_wake text[], e_flags integer[], e_body bytea[],
    e_crc bigint[], e_salt bytea[], e_digest bytea[], e_header bytea[],
    p_unit integer[], p_head integer[], p_seq bigint[], p_event integer[],
    s_unit integer[], s_name integer[], s_version bigint[], s_base bigint[], s_form integer[], s_flags integer[],
    s_body bytea[], s_crc bigint[], s_head integer[], s_seq bigint[]
) RETURNS TABLE (what text, place integer, number bigint, bytes bytea)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now_us   bigint;
    sids     bigint[] := h_sid;
    made     boolean[] := array_fill(false, ARRAY[cardinality(h_sid)]);
    stale    boolean[] := array_fill(true, ARRAY[cardinality(h_sid)]);
    at_seq   bigint[] := h_base;
    at_link  bytea[] := h_link;
    at_time  bigint[] := array_fill(0::bigint, ARRAY[cardinality(h_sid)]);
    at_fence bigint[] := array_fill(0::bigint, ARRAY[cardinality(h_sid)]);
    moved    boolean[] := array_fill(false, ARRAY[greatest(cardinality(n_name), 1)]);
    refused  text[] := array_fill(NULL::text, ARRAY[greatest(units, 1)]);
    seqs     bigint[] := array_fill(0::bigint, ARRAY[greatest(cardinality(e_unit), 1)]);
    ats      bigint[] := array_fill(0::bigint, ARRAY[greatest(cardinality(e_unit), 1)]);
    links    bytea[] := array_fill(NULL::bytea, ARRAY[greatest(cardinality(e_unit), 1)]);
    doubt    boolean := false;
    r        record;
    x        record;
    new_sid  bigint;
BEGIN
    -- New sessions first: an insert waits for a rival's insert of the same key, and then sees it.
    IF array_position(h_sid, NULL) IS NOT NULL THEN
        FOR r IN SELECT * FROM unnest(h_sid, h_app, h_owner, h_id, h_uid, h_link)
                 WITH ORDINALITY AS h (sid, app, owner, id, uid, link, i) WHERE h.sid IS NULL ORDER BY h.i
        LOOP
            INSERT INTO limpet.sessions (app, owner, id, uid, version, link, created_us, updated_us)
            VALUES (r.app, r.owner, r.id, r.uid, 0, r.link, 0, 0)
            ON CONFLICT (app, owner, id) DO NOTHING RETURNING sid INTO new_sid;
            IF FOUND THEN
                sids[r.i] := new_sid;
                made[r.i] := true;
                stale[r.i] := false;
            END IF;
        END LOOP;
    END IF;

    FOR r IN SELECT h.i, h.base, s.version, s.link, s.updated_us, s.fence, s.deleted_us
             FROM unnest(h_sid, h_base) WITH ORDINALITY AS h (sid, base, i)
             JOIN limpet.sessions s ON s.sid = h.sid
             ORDER BY s.app, s.owner, s.id FOR UPDATE OF s
    LOOP
        stale[r.i] := r.version <> r.base OR r.deleted_us IS NOT NULL;
        at_link[r.i] := r.link;
        at_time[r.i] := r.updated_us;
        at_fence[r.i] := r.fence;
    END LOOP;
    doubt := true = ANY (stale);

    IF cardinality(n_name) > 0 THEN
        PERFORM limpet.lock_names(n_app, n_owner, n_name);
        FOR r IN SELECT n.i, n.base, coalesce((
                     SELECT max(s.version) FROM limpet.scopes s
                     WHERE s.app = n.app AND s.owner = n.owner AND s.name = n.name), 0) AS newest
                 FROM unnest(n_app, n_owner, n_name, n_base) WITH ORDINALITY AS n (app, owner, name, base, i)
        LOOP
            moved[r.i] := r.newest <> r.base;
            doubt := doubt OR r.newest <> r.base;
        END LOOP;
    END IF;

    -- Repeats, now that nobody else can add to these sessions.
    IF true = ANY (e_given) THEN
        FOR r IN SELECT DISTINCT e.unit
                 FROM unnest(e_unit, e_head, e_id, e_given) AS e (unit, head, id, given)
                 JOIN limpet.events x ON x.id = e.id AND x.sid = sids[e.head]
                 WHERE e.given
        LOOP
            refused[r.unit] := 'repeat';
            doubt := true;
        END LOOP;
    END IF;

    FOR r IN SELECT v.unit FROM unnest(v_unit, v_head, v_fence) AS v (unit, head, fence)
             WHERE v.fence IS NOT NULL AND v.fence <> at_fence[v.head]
    LOOP
        refused[r.unit] := 'fenced';
        doubt := true;
    END LOOP;

    -- Which units hold. One that does not takes with it what was planned on top of it.
    IF doubt THEN
        FOR u IN 1 .. units LOOP
            IF refused[u] IS NULL AND (
                EXISTS (SELECT FROM unnest(v_unit, v_head) AS v (unit, head) WHERE v.unit = u AND stale[v.head])
                OR EXISTS (SELECT FROM unnest(w_unit, w_name) AS w (unit, name) WHERE w.unit = u AND moved[w.name]))
            THEN
                refused[u] := 'stale';
            END IF;
            CONTINUE WHEN refused[u] IS NULL;
            FOR x IN SELECT v.head FROM unnest(v_unit, v_head) AS v (unit, head) WHERE v.unit = u LOOP
                stale[x.head] := true;
            END LOOP;
            FOR x IN SELECT w.name FROM unnest(w_unit, w_name) AS w (unit, name) WHERE w.unit = u LOOP
                moved[x.name] := true;
            END LOOP;
        END LOOP;
    END IF;

    now_us := limpet.now_us();
    FOR r IN SELECT * FROM unnest(e_unit, e_head, e_header, e_digest) WITH ORDINALITY AS e (unit, head, header, digest, i)
             ORDER BY e.i
    LOOP
        CONTINUE WHEN refused[r.unit] IS NOT NULL;
        at_seq[r.head] := at_seq[r.head] + 1;
        at_time[r.head] := greatest(now_us, at_time[r.head]);  -- never backwards within a session
        at_link[r.head] := sha256(at_link[r.head] || int8send(at_seq[r.head]) || int8send(at_time[r.head])
                                  || r.header || r.digest);
        seqs[r.i] := at_seq[r.head];
        ats[r.i] := at_time[r.head];
        links[r.i] := at_link[r.head];
    END LOOP;

    INSERT INTO limpet.events (sid, seq, id, type, actor, at_us, cause, invocation_id, correlation_id, wake_id,
                                 flags, body, crc, salt, digest, link)
    SELECT sids[e.head], e.seq, e.id, e.type, e.actor, e.at_us, e.cause, e.invocation, e.correlation, e.wake,
           e.flags, e.body, e.crc, e.salt, e.digest, e.link
    FROM unnest(e_head, seqs, e_id, e_type, e_actor, ats, e_cause, e_invocation, e_correlation, e_wake,
                e_flags, e_body, e_crc, e_salt, e_digest, links)
         WITH ORDINALITY AS e (head, seq, id, type, actor, at_us, cause, invocation, correlation, wake,
                               flags, body, crc, salt, digest, link, i)
    WHERE e.link IS NOT NULL ORDER BY e.i;

    IF cardinality(p_unit) > 0 THEN
        UPDATE limpet.events x SET processed_us = ats[p.event]
        FROM unnest(p_unit, p_head, p_seq, p_event) AS p (unit, head, seq, event)
        WHERE refused[p.unit] IS NULL AND x.sid = sids[p.head] AND x.seq = p.seq;
    END IF;

    IF cardinality(s_unit) > 0 THEN
        INSERT INTO limpet.scopes (app, owner, name, version, base, form, flags, body, crc, uid, seq)
        SELECT n_app[s.name], n_owner[s.name], n_name[s.name], s.version, s.base, s.form, s.flags, s.body, s.crc,
               h_uid[s.head], s.seq
        FROM unnest(s_unit, s_name, s_version, s_base, s_form, s_flags, s_body, s_crc, s_head, s_seq)
             AS s (unit, name, version, base, form, flags, body, crc, head, seq)
        WHERE refused[s.unit] IS NULL;
    END IF;

    UPDATE limpet.sessions s SET
        version = at_seq[v.head], link = at_link[v.head], updated_us = at_time[v.head],
        created_us = CASE WHEN made[v.head] THEN at_time[v.head] ELSE s.created_us END,
        pending = v.pending,
        pending_us = CASE WHEN v.pending_event > 0 THEN ats[v.pending_event]
                          WHEN v.pending_event = 0 THEN s.pending_us END,
        labels = coalesce(v.labels::jsonb, s.labels),
        timers = coalesce(v.timers::jsonb, s.timers),
        wake_us = v.wake, deadline_us = v.deadline,
        runnable_us = least(CASE WHEN v.pending_event > 0 THEN ats[v.pending_event]
                                 WHEN v.pending_event = 0 THEN s.pending_us END, v.wake)
    FROM (SELECT DISTINCT ON (v.head) v.*
          FROM unnest(v_unit, v_head, v_labels, v_pending, v_pending_event, v_timers, v_wake, v_deadline)
               AS v (unit, head, labels, pending, pending_event, timers, wake, deadline)
          WHERE refused[v.unit] IS NULL ORDER BY v.head, v.unit DESC) v
    WHERE s.sid = sids[v.head];

    IF cardinality(array_remove(v_labels, NULL)) > 0 THEN
        DELETE FROM limpet.labels l WHERE l.sid IN (
            SELECT sids[v.head] FROM unnest(v_head, v_labels) AS v (head, labels) WHERE v.labels IS NOT NULL);
        INSERT INTO limpet.labels (app, name, value, created_us, sid, owner)
        SELECT s.app, l.key, l.value, s.created_us, s.sid, s.owner
        FROM limpet.sessions s, jsonb_each_text(s.labels) l
        WHERE s.deleted_us IS NULL AND s.sid IN (
            SELECT sids[v.head] FROM unnest(v_head, v_labels) AS v (head, labels) WHERE v.labels IS NOT NULL);
    END IF;

    -- A head that was made for a unit that did not hold was never there.
    IF true = ANY (made) THEN
        DELETE FROM limpet.sessions s WHERE s.version = 0
            AND s.sid IN (SELECT sids[i] FROM generate_subscripts(sids, 1) i WHERE made[i]);
    END IF;

    RETURN QUERY SELECT refused[i]::text, i, NULL::bigint, NULL::bytea
                 FROM generate_series(1, units) i WHERE refused[i] IS NOT NULL;
    RETURN QUERY SELECT 'sid', i, sids[i], NULL::bytea FROM generate_subscripts(sids, 1) i WHERE made[i];
    RETURN QUERY SELECT 'event', i, ats[i], links[i] FROM generate_subscripts(links, 1) i WHERE links[i] IS NOT NULL;
END $$;

-- The newest value of every name of one owner, as the rows from its base on. Skips from name to
-- name along the index: the cost does not grow with the number of versions.
CREATE OR REPLACE FUNCTION limpet.scopes_of(of_app text, of_owner text)
RETURNS TABLE (name text, version bigint, base bigint, form integer, flags integer, body bytea, crc bigint,
               uid text, seq bigint)
LANGUAGE sql STABLE AS $$
    WITH RECURSIVE names (name) AS (
        (SELECT s.name FROM limpet.scopes s WHERE s.app = of_app AND s.owner = of_owner ORDER BY s.name LIMIT 1)
        UNION ALL
        SELECT (SELECT s.name FROM limpet.scopes s
                WHERE s.app = of_app AND s.owner = of_owner AND s.name > names.name ORDER BY s.name LIMIT 1)
        FROM names WHERE names.name IS NOT NULL
    )
    SELECT r.name, r.version, r.base, r.form, r.flags, r.body, r.crc, r.uid, r.seq
    FROM names n
    CROSS JOIN LATERAL (SELECT s.base FROM limpet.scopes s
                        WHERE s.app = of_app AND s.owner = of_owner AND s.name = n.name
                        ORDER BY s.version DESC LIMIT 1) b
    JOIN limpet.scopes r ON r.app = of_app AND r.owner = of_owner AND r.name = n.name AND r.version >= b.base
    WHERE n.name IS NOT NULL
    ORDER BY r.name, r.version
$$;
