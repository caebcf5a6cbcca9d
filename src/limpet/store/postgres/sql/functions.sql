-- The functions of the store, brought in whenever they differ from those that are there. An old
-- process goes on with the functions it knows: one whose arguments change is added beside its old
-- form, and no form that a running release may call is dropped.

-- The advisory lock that whoever listens for hints shares.
CREATE OR REPLACE FUNCTION limpet.listening() RETURNS bigint LANGUAGE sql IMMUTABLE AS $$ SELECT 5210131961453309284 $$;

CREATE OR REPLACE FUNCTION limpet.now_us() RETURNS bigint
LANGUAGE sql VOLATILE AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- Lock scope names, in one order for everybody, until the transaction ends. A name that is not
-- there yet has no row to lock, so the lock is on the name's hash: one of so many, because every lock
-- takes a place in a table that all databases of the server share.
CREATE OR REPLACE FUNCTION limpet.lock_names(n_app text[], n_owner text[], n_name text[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    mark bigint;
BEGIN
    FOR mark IN
        SELECT DISTINCT hashtextextended(app || chr(1) || owner || chr(1) || name, 7) & 1023 | 5210131961453300736
        FROM unnest(n_app, n_owner, n_name) AS n (app, owner, name) ORDER BY 1
    LOOP
        PERFORM pg_advisory_xact_lock(mark);
    END LOOP;
END $$;

-- By what an id is found among those of cold events: the first 64 bits of its SHA-256.
CREATE OR REPLACE FUNCTION limpet.mark(id text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT ('x' || left(encode(sha256(convert_to(id, 'UTF8')), 'hex'), 16))::bit(64)::bigint
$$;

-- Whether a transaction, by its place in the feed, is visible to this statement. One from before the
-- numbers began again is not waited for: it was restored, or it is lost.
--
-- A standby does not list in its snapshots which transactions below xmax are under way: by the snapshot
-- alone, one would be seen as soon as a later one is. There the status is asked, which is of this moment:
-- ask before the statement that reads.
CREATE OR REPLACE FUNCTION limpet.seen(token bigint) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT CASE WHEN x.id < 3 THEN true
           WHEN x.id::text::xid8 >= pg_snapshot_xmax(s) THEN false
           WHEN x.id::text::xid8 < pg_snapshot_xmin(s) THEN true
           WHEN pg_is_in_recovery() THEN coalesce(pg_xact_status(x.id::text::xid8), 'committed') = 'committed'
           ELSE pg_visible_in_snapshot(x.id::text::xid8, s) END
    FROM (SELECT token - limpet.epoch()) AS x (id), pg_current_snapshot() AS s
$$;

-- One of the byte strings that come joined.
CREATE OR REPLACE FUNCTION limpet.part(joined bytea, ends integer[], i integer) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT substr(joined, coalesce(ends[i - 1], 0) + 1, ends[i] - coalesce(ends[i - 1], 0))
$$;

-- Record a batch: the commits of many callers ("jobs"), each all or nothing, planned by the
-- caller on the versions it knows. First the locks (heads in key order, then scope names), then
-- the look for repeats and for versions that moved, then the writing of what still holds. A job
-- that does not hold is answered with a reason and harms no other; what was planned on top of it
-- does not hold either.
--
--   h_*  the sessions of the batch, each once, in key order; sid NULL: to be created, after `floor` and with
--        the parent at place h_parent; version NULL: it only has to live
--   b_*  the states that created sessions begin on
--   n_*  the scope names of the batch, each once, with the event that made the version it was planned on; a
--        name '' stands for all of an owner's: n_base and n_seq are how many there may be, and may ever
--        have been, before the batch adds its own
--   v_*  what a job changes of a session besides adding events (the last job that holds wins); facts NULL:
--        as they were; active NULL: as updated, if the last event is active. A session without is only moved
--        on to its last event
--   l_*  a job needs a session to live
--   w_*  a job needs a scope name
--   e_*  the events, in order     p_*  inputs processed     s_*  new versions of scope names     k_*  pins
--
-- A column that is NULL throughout may come as an empty array: subscripts past its end are NULL. Of the
-- types, actors and times of events one stands for all, if they are the same. Byte strings come joined, with
-- the place where each ends unless all have 32 bytes (MACs: 36): the driver of the caller takes long over an array.
-- Rows are taken by subscript and not by unnest, which would fill one temporary store a column.
--
-- The caller dates events and links them into their chains. Here is checked that the head has the
-- version and the link that it planned on, that times do not run backwards, and that they are no more
-- than a second ahead of this clock, unless the session is already or another store recorded the event. The
-- caller planned by planned_us; if that is more than late_us ago, its clock is to be corrected too.
-- Leases are judged by the clock here.
--
-- The feed orders events by transaction, so a session's events must not be written by an older
-- transaction than those before them: a head that a younger one has moved is stale to this one,
-- even at the version that was planned on. The next attempt is younger.
--
-- The answer is a JSON object: now_us, the clock by which jobs were judged; token, which names the
-- transaction; listened, whether anybody waits for hints; refused, a reason or null for each job, if any was;
-- sids, if sessions were made; fences, leases, workers and leaseds of the heads, if any was ever leased. One
-- value: for a row of columns the server would look up their types at every call.
CREATE OR REPLACE FUNCTION limpet.commit(
    planned_us bigint, late_us bigint, jobs integer,
    h_sid bigint[], h_uid text[], h_base bigint[], h_link bytea, h_link_end integer[], h_app text[], h_owner text[],
    h_id text[], h_hash bytea[], h_created bigint[], h_floor bigint[], h_parent integer[], h_reuse boolean[],
    b_head integer[], b_flags integer[], b_body bytea[], b_crc bigint[],
    n_app text[], n_owner text[], n_name text[], n_base bigint[], n_uid text[], n_seq bigint[],
    v_job integer[], v_head integer[], v_fence bigint[], v_active bigint[], v_facts text[], v_due bigint[],
    v_priority integer[], v_relabel boolean[], v_deadline bigint[], v_release bigint[], v_adopted bigint[],
    l_job integer[], l_head integer[],
    w_job integer[], w_name integer[],
    e_job integer[], e_head integer[], e_seq bigint[], e_id text[], e_given boolean[], e_type text[], e_actor text[],
    e_at bigint[], e_flags integer[], e_body bytea, e_body_end integer[], e_crc bigint[], e_salt bytea,
    e_salt_end integer[], e_digest bytea, e_link bytea, e_cause text[], e_invocation text[], e_correlation text[],
    e_wake text[], e_processed bigint[], e_adopted boolean[], e_active boolean[], e_mac bytea,
    p_job integer[], p_head integer[], p_seq bigint[], p_by bigint[],
    s_job integer[], s_name integer[], s_version bigint[], s_base bigint[], s_form integer[], s_flags integer[],
    s_body bytea[], s_crc bigint[], s_head integer[], s_seq bigint[], s_more integer[], s_first integer[],
    k_job integer[], k_head integer[], k_seq bigint[], k_flags integer[], k_body bytea[], k_crc bigint[], k_pin bigint[]
) RETURNS text LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now_us   bigint;
    refused  text[] := array_fill(NULL::text, ARRAY[jobs]);
    sids     bigint[] := h_sid;
    fences   bigint[];
    leases   bigint[];
    workers  text[];
    leaseds  bigint[];
    listened boolean;
    heads    integer := cardinality(h_sid);
    stale    boolean[] := array_fill(true, ARRAY[heads]);
    at_time  bigint[] := array_fill(0::bigint, ARRAY[heads]);
    last     integer[] := array_fill(0, ARRAY[heads]); -- the place of each one's last event
    more     integer[]; -- the place of what else is changed of each
    spans    bigint[];
    made     boolean[];
    moved    boolean[];
    doubt    boolean := false;
    mine     xid8 := limpet.stamp(pg_current_xact_id());
    place    bigint := (mine::text::bigint & 4294967295) * 1000003;
    r        record;
    h        integer;
    at_us    bigint;
    new_sid  bigint;
BEGIN
    -- New sessions first: an insert waits for a rival's insert of the same key, and then sees it.
    IF array_position(h_sid, NULL) IS NOT NULL THEN
        made := array_fill(false, ARRAY[heads]);
        FOR i IN 1 .. heads LOOP
            CONTINUE WHEN h_sid[i] IS NOT NULL;
            INSERT INTO limpet.sessions (app, owner, id, uid, version, link, created_us, updated_us, active_us, floor)
            VALUES (h_app[i], h_owner[i], h_id[i], h_uid[i], h_base[i], limpet.part(h_link, h_link_end, i), h_created[i], h_created[i],
                    h_created[i], h_floor[i])
            ON CONFLICT (app, owner, id) DO NOTHING RETURNING sid INTO new_sid;
            IF FOUND THEN
                sids[i] := new_sid;
                made[i] := true;
                -- Deleted or erased while this was on its way: not made again; the next look says so. Whoever
                -- erases what was deleted removes its tombstones first: this waits for it, and then sees it.
                PERFORM FROM limpet.tombstones t
                WHERE t.app = h_app[i] AND t.owner = h_owner[i] AND t.id = h_id[i] FOR SHARE;
                stale[i] := (FOUND AND h_reuse[i] IS NOT TRUE)
                    OR EXISTS (SELECT FROM limpet.erased WHERE key_hash = h_hash[i]);
            END IF;
        END LOOP;
    END IF;

    FOR r IN SELECT h.i, s.version, s.link, s.updated_us, s.fence, s.lease_us, s.worker, s.leased_us, s.xid
             FROM generate_subscripts(h_sid, 1) AS h (i) JOIN limpet.sessions s ON s.sid = h_sid[h.i]
             ORDER BY s.app, s.owner, s.id FOR UPDATE OF s
    LOOP
        stale[r.i] := r.version <> h_base[r.i] OR r.link <> limpet.part(h_link, h_link_end, r.i) OR r.xid > mine;
        IF h_base[r.i] IS NULL THEN stale[r.i] := false; END IF;
        at_time[r.i] := r.updated_us;
        IF r.fence > 0 THEN
            IF fences IS NULL THEN
                fences := array_fill(0::bigint, ARRAY[heads]);
                leases := array_fill(NULL::bigint, ARRAY[heads]);
                workers := array_fill(NULL::text, ARRAY[heads]);
                leaseds := array_fill(NULL::bigint, ARRAY[heads]);
            END IF;
            fences[r.i] := r.fence;
            leases[r.i] := r.lease_us;
            workers[r.i] := r.worker;
            leaseds[r.i] := r.leased_us;
        END IF;
    END LOOP;
    doubt := true = ANY (stale);

    IF cardinality(n_name) > 0 THEN
        PERFORM limpet.lock_names(n_app, n_owner, n_name);
        -- The same number may be another version, if all of them were removed meanwhile.
        FOR r IN SELECT n.i, v.version, v.uid, v.seq
                 FROM generate_subscripts(n_name, 1) AS n (i)
                 LEFT JOIN LATERAL (
                     SELECT s.version, s.uid, s.seq FROM limpet.scopes s
                     WHERE s.app = n_app[n.i] AND s.owner = n_owner[n.i] AND s.name = n_name[n.i]
                     ORDER BY s.version DESC LIMIT 1) v ON true
                 WHERE n_name[n.i] <> ''
        LOOP
            moved[r.i] := coalesce(r.version, 0) <> n_base[r.i]
                OR (n_uid[r.i] IS NOT NULL AND (r.uid, r.seq) IS DISTINCT FROM (n_uid[r.i], n_seq[r.i]));
            doubt := doubt OR moved[r.i];
        END LOOP;
        -- Who adds names holds the lock on their owner's '': nobody else adds to its number.
        FOR r IN SELECT n.i, coalesce(o.names, 0) AS names, coalesce(o.ever, 0) AS ever
                 FROM generate_subscripts(n_name, 1) AS n (i)
                 LEFT JOIN limpet.scope_owners o ON o.app = n_app[n.i] AND o.owner = n_owner[n.i]
                 WHERE n_name[n.i] = ''
        LOOP
            moved[r.i] := r.names > n_base[r.i] OR r.ever > n_seq[r.i];
            doubt := doubt OR moved[r.i];
        END LOOP;
    END IF;

    -- Repeats, now that nobody else can add to these sessions.
    IF true = ANY (e_given) THEN
        -- OFFSET 0 keeps this a look into the index for each id: joined freely, a plan made while the
        -- table was small compares every event with every id, and is kept when the table is not.
        FOR r IN SELECT DISTINCT e_job[e.i] AS job FROM generate_subscripts(e_job, 1) AS e (i)
                 CROSS JOIN LATERAL (SELECT FROM limpet.events x
                                     WHERE x.id = e_id[e.i] AND x.sid = sids[e_head[e.i]] OFFSET 0) x
                 WHERE e_given[e.i]
                 UNION SELECT e_job[e.i] FROM generate_subscripts(e_job, 1) AS e (i)
                 CROSS JOIN LATERAL (SELECT FROM limpet.segment_ids m
                                     WHERE m.sid = sids[e_head[e.i]] AND m.mark = limpet.mark(e_id[e.i]) OFFSET 0) m
                 WHERE e_given[e.i]
        LOOP
            refused[r.job] := 'repeat';
            doubt := true;
        END LOOP;
    END IF;

    -- A fence is good for as long as its lease is held; 0 stands for never leased. What was given back
    -- to be retried has an end, and no worker.
    now_us := limpet.now_us();
    FOR j IN 1 .. cardinality(v_fence) LOOP
        h := v_head[j];
        IF v_fence[j] <> coalesce(fences[h], 0)
            OR (v_fence[j] > 0 AND (workers[h] IS NULL OR coalesce(leases[h], 0) <= now_us))
        THEN
            refused[v_job[j]] := 'fenced';
            doubt := true;
        END IF;
    END LOOP;

    FOR i IN 1 .. cardinality(e_job) LOOP
        h := e_head[i];
        at_us := coalesce(e_at[i], e_at[1]);
        IF at_us < at_time[h] OR (e_adopted[i] IS NULL
            AND (at_us > greatest(now_us + 1000000, at_time[h]) OR planned_us < now_us - late_us))
        THEN
            refused[e_job[i]] := coalesce(refused[e_job[i]], 'clock');
            doubt := true;
        END IF;
        at_time[h] := at_us;
        last[h] := i;
    END LOOP;

    -- Which jobs hold. One that does not takes with it what was planned on top of it: events and
    -- needs come in the order of their jobs, so one pass each way over both is enough.
    IF doubt THEN
        FOR u IN 1 .. jobs LOOP
            IF refused[u] IS NULL AND (
                EXISTS (SELECT FROM generate_subscripts(e_job, 1) j WHERE e_job[j] = u AND stale[e_head[j]])
                OR EXISTS (SELECT FROM generate_subscripts(l_job, 1) j WHERE l_job[j] = u AND stale[l_head[j]])
                OR EXISTS (SELECT FROM generate_subscripts(w_job, 1) j WHERE w_job[j] = u AND moved[w_name[j]]))
            THEN
                refused[u] := 'stale';
            END IF;
            CONTINUE WHEN refused[u] IS NULL;
            FOR j IN 1 .. cardinality(e_job) LOOP
                IF e_job[j] = u THEN stale[e_head[j]] := true; END IF;
            END LOOP;
            FOR j IN 1 .. cardinality(w_job) LOOP
                IF w_job[j] = u THEN moved[w_name[j]] := true; END IF;
            END LOOP;
        END LOOP;
        last := array_fill(0, ARRAY[heads]);
        FOR i IN 1 .. cardinality(e_job) LOOP
            IF refused[e_job[i]] IS NULL THEN last[e_head[i]] := i; END IF;
        END LOOP;
    END IF;

    INSERT INTO limpet.events (xid, pos, sid, seq, id, type, actor, at_us, cause, invocation_id, correlation_id,
                               wake_id, flags, body, crc, salt, digest, link, processed)
    SELECT mine, i, sids[e_head[i]], e_seq[i], e_id[i], coalesce(e_type[i], e_type[1]), coalesce(e_actor[i], e_actor[1]),
           coalesce(e_at[i], e_at[1]), e_cause[i], e_invocation[i], e_correlation[i], e_wake[i], coalesce(e_flags[i], 0),
           limpet.part(e_body, e_body_end, i), e_crc[i] # ((place + i) & 4294967295), limpet.part(e_salt, e_salt_end, i),
           substr(e_digest, 32 * i - 31, 32), substr(e_link, 32 * i - 31, 32), e_processed[i]
    FROM generate_subscripts(e_job, 1) i WHERE refused[e_job[i]] IS NULL;

    IF cardinality(p_job) > 0 THEN
        UPDATE limpet.events x SET processed = p_by[i]
        FROM generate_subscripts(p_job, 1) i
        WHERE refused[p_job[i]] IS NULL AND x.sid = sids[p_head[i]] AND x.seq = p_seq[i];
    END IF;

    IF cardinality(s_job) > 0 THEN
        INSERT INTO limpet.scopes (app, owner, name, version, base, form, flags, body, crc, uid, seq)
        SELECT n_app[s_name[i]], n_owner[s_name[i]], n_name[s_name[i]], s_version[i], s_base[i], s_form[i],
               s_flags[i], s_body[i], s_crc[i], h_uid[s_head[i]], s_seq[i]
        FROM generate_subscripts(s_job, 1) i WHERE refused[s_job[i]] IS NULL;
        -- Last among the locks, in one order for everybody.
        IF cardinality(s_more) > 0 THEN
            INSERT INTO limpet.scope_owners AS o (app, owner, names, ever)
            SELECT n_app[s_name[i]], n_owner[s_name[i]], sum(s_more[i]), sum(s_first[i])
            FROM generate_subscripts(s_job, 1) i WHERE refused[s_job[i]] IS NULL AND s_more[i] IS NOT NULL
            GROUP BY 1, 2 ORDER BY 1, 2
            ON CONFLICT (app, owner) DO UPDATE SET names = o.names + excluded.names, ever = o.ever + excluded.ever;
        END IF;
    END IF;

    FOR j IN 1 .. cardinality(v_job) LOOP
        CONTINUE WHEN refused[v_job[j]] IS NOT NULL;
        h := v_head[j];
        more[h] := j;
        IF v_release[j] IS NOT NULL THEN
            spans[h] := v_release[j];
            leases[h] := CASE WHEN v_release[j] > 0 THEN now_us + v_release[j] END;
            workers[h] := NULL;
            leaseds[h] := CASE WHEN v_release[j] > 0 THEN now_us END;
        END IF;
    END LOOP;
    -- Most batches change nothing of a head that is set out in indexes or in facts.
    IF made IS NULL AND spans IS NULL
        AND cardinality(v_facts) + cardinality(v_deadline) + cardinality(v_adopted) = 0
    THEN
        UPDATE limpet.sessions s SET version = e_seq[v.i], link = substr(e_link, 32 * v.i - 31, 32),
            mac = nullif(substr(e_mac, 36 * v.i - 35, 36), ''), updated_us = coalesce(e_at[v.i], e_at[1]),
            active_us = coalesce(v_active[more[v.h]], CASE WHEN e_active[v.i] THEN coalesce(e_at[v.i], e_at[1]) END,
                s.active_us), xid = mine
        FROM (SELECT h, last[h] AS i, h_sid[h] AS sid FROM generate_subscripts(last, 1) h WHERE last[h] > 0) v
        WHERE s.sid = v.sid;
    ELSE
        UPDATE limpet.sessions s SET
            version = e_seq[v.i], link = substr(e_link, 32 * v.i - 31, 32),
            mac = nullif(substr(e_mac, 36 * v.i - 35, 36), ''), updated_us = coalesce(e_at[v.i], e_at[1]),
            active_us = coalesce(v_active[v.j], CASE WHEN e_active[v.i] THEN coalesce(e_at[v.i], e_at[1]) END, s.active_us),
            facts = CASE WHEN v.changed THEN nullif(v_facts[v.j], '{}')::jsonb ELSE s.facts END,
            due_us = CASE WHEN v.changed THEN v_due[v.j] ELSE s.due_us END,
            priority = CASE WHEN v.changed THEN v_priority[v.j] ELSE s.priority END,
            deadline_us = CASE WHEN v.changed THEN v_deadline[v.j] ELSE coalesce(v_deadline[v.j], s.deadline_us) END,
            adopted = coalesce(v_adopted[v.j], s.adopted),
            parent = CASE WHEN made[v.h] THEN sids[h_parent[v.h]] ELSE s.parent END,
            lease_us = CASE WHEN spans[v.h] IS NULL THEN s.lease_us ELSE leases[v.h] END,
            leased_us = CASE WHEN spans[v.h] IS NULL THEN s.leased_us ELSE leaseds[v.h] END,
            worker = CASE WHEN spans[v.h] IS NULL THEN s.worker END,
            xid = mine
        FROM (SELECT l.h, last[l.h] AS i, more[l.h] AS j, sids[l.h] AS sid, v_facts[more[l.h]] IS NOT NULL AS changed
              FROM generate_subscripts(last, 1) AS l (h) WHERE last[l.h] > 0) v
        WHERE s.sid = v.sid;
    END IF;

    IF cardinality(v_relabel) > 0 THEN
        DELETE FROM limpet.labels l USING generate_subscripts(v_relabel, 1) j
        WHERE v_relabel[j] AND l.sid = sids[v_head[j]];
        INSERT INTO limpet.labels (app, name, value, created_us, sid, owner)
        SELECT s.app, l.key, l.value, s.created_us, s.sid, s.owner
        FROM limpet.sessions s, jsonb_each_text(s.facts -> 'labels') l
        WHERE s.sid IN (SELECT sids[v_head[j]] FROM generate_subscripts(v_relabel, 1) j WHERE v_relabel[j]);
    END IF;

    IF cardinality(b_head) > 0 THEN
        INSERT INTO limpet.bases (sid, flags, body, crc)
        SELECT sids[b_head[i]], b_flags[i], b_body[i], b_crc[i]
        FROM generate_subscripts(b_head, 1) i WHERE made[b_head[i]] AND last[b_head[i]] > 0;
    END IF;
    IF cardinality(k_job) > 0 THEN
        INSERT INTO limpet.snapshots (sid, seq, flags, body, crc, pin)
        SELECT sids[k_head[i]], k_seq[i], k_flags[i], k_body[i], k_crc[i], k_pin[i]
        FROM generate_subscripts(k_job, 1) i WHERE refused[k_job[i]] IS NULL
        ON CONFLICT (sid, seq) DO UPDATE
        SET flags = excluded.flags, body = excluded.body, crc = excluded.crc, pin = excluded.pin;
    END IF;

    -- A head that was made for a job that did not hold was never there.
    IF made IS NOT NULL THEN
        DELETE FROM limpet.sessions s USING generate_subscripts(sids, 1) i
        WHERE made[i] AND last[i] = 0 AND s.sid = sids[i];
    END IF;

    -- Every listener shares this lock for as long as it listens: taken alone, nobody does.
    listened := NOT pg_try_advisory_xact_lock(limpet.listening());
    IF doubt OR made IS NOT NULL OR fences IS NOT NULL THEN
        RETURN json_strip_nulls(json_build_object('now_us', now_us, 'token', mine::text, 'listened', listened,
            'refused', CASE WHEN doubt THEN refused END, 'sids', CASE WHEN made IS NOT NULL THEN sids END,
            'fences', fences, 'leases', leases, 'workers', workers, 'leaseds', leaseds));
    END IF;
    RETURN '{"now_us":' || now_us || ',"token":"' || mine::text || '","listened":' || listened || '}';
END $$;

-- Every name of one owner, and of its newest version the base and the form. Skips from name to name
-- along the index: the cost does not grow with the number of versions.
CREATE OR REPLACE FUNCTION limpet.names_of(of_app text, of_owner text)
RETURNS TABLE (name text, base bigint, form integer) LANGUAGE sql STABLE AS $$
    WITH RECURSIVE names (name) AS (
        (SELECT s.name FROM limpet.scopes s WHERE s.app = of_app AND s.owner = of_owner ORDER BY s.name LIMIT 1)
        UNION ALL
        SELECT (SELECT s.name FROM limpet.scopes s
                WHERE s.app = of_app AND s.owner = of_owner AND s.name > names.name ORDER BY s.name LIMIT 1)
        FROM names WHERE names.name IS NOT NULL
    )
    SELECT n.name, b.base, b.form
    FROM names n
    CROSS JOIN LATERAL (SELECT s.base, s.form FROM limpet.scopes s
                        WHERE s.app = of_app AND s.owner = of_owner AND s.name = n.name
                        ORDER BY s.version DESC LIMIT 1) b
    WHERE n.name IS NOT NULL
$$;

-- The newest value of every name of one owner, as the rows from its base on.
CREATE OR REPLACE FUNCTION limpet.scopes_of(of_app text, of_owner text)
RETURNS TABLE (name text, version bigint, base bigint, form integer, flags integer, body bytea, crc bigint,
               uid text, seq bigint)
LANGUAGE sql STABLE AS $$
    SELECT r.name, r.version, r.base, r.form, r.flags, r.body, r.crc, r.uid, r.seq
    FROM limpet.names_of(of_app, of_owner) n
    -- OFFSET 0 keeps this a look into the index for each name: joined freely, the planner may read
    -- every version of every name once.
    CROSS JOIN LATERAL (SELECT s.* FROM limpet.scopes s
                        WHERE s.app = of_app AND s.owner = of_owner AND s.name = n.name AND s.version >= n.base
                        OFFSET 0) r
    ORDER BY r.name, r.version
$$;

-- Up to which seq the log of a deleted session is read by living sessions that began on it, or on one
-- that began on it; 0 if by none.
CREATE OR REPLACE FUNCTION limpet.needed(of_sid bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
    WITH RECURSIVE down (sid, lives, top) AS (
        SELECT s.sid, true, s.floor FROM limpet.sessions s WHERE s.parent = of_sid
        UNION ALL
        SELECT t.sid, false, t.floor FROM limpet.tombstones t WHERE t.parent = of_sid
        UNION ALL
        SELECT c.sid, c.lives, least(d.top, c.floor) FROM down d CROSS JOIN LATERAL (
            SELECT s.sid, true AS lives, s.floor FROM limpet.sessions s WHERE s.parent = d.sid
            UNION ALL
            SELECT t.sid, false, t.floor FROM limpet.tombstones t WHERE t.parent = d.sid) c
        WHERE NOT d.lives
    )
    SELECT coalesce(max(d.top) FILTER (WHERE d.lives), 0) FROM down d
$$;

-- Remove of a deleted session what nobody reads any more; then of the one that it began on, if that was
-- deleted too, and so on. Under the tombstones' locks: of two that end at once, the second sees the first.
CREATE OR REPLACE FUNCTION limpet.purge(of_sid bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    ended bigint := of_sid;
    up    record;
    most  bigint;
BEGIN
    WHILE ended IS NOT NULL LOOP
        SELECT t.parent, t.floor INTO up FROM limpet.tombstones t WHERE t.sid = ended FOR UPDATE;
        EXIT WHEN NOT FOUND;
        most := limpet.needed(ended);
        DELETE FROM limpet.events e WHERE e.sid = ended AND e.seq > most;
        DELETE FROM limpet.snapshots n WHERE n.sid = ended AND n.seq > most;
        DELETE FROM limpet.segments g WHERE g.sid = ended AND g.first > most;
        DELETE FROM limpet.segment_ids m WHERE m.sid = ended AND m.seq > most;
        PERFORM limpet.drop_blobs(ARRAY(SELECT b.bid FROM limpet.blobs b
            WHERE b.sid = ended AND (b.version IS NULL OR b.version >= most)));
        IF most <= up.floor THEN
            DELETE FROM limpet.bases b WHERE b.sid = ended;
        END IF;
        ended := up.parent;
    END LOOP;
END $$;

-- Whose rows a session's log is read from, itself first: of each those with low < seq <= high. `floors` and
-- `begans` are where and when the logs began that lead there. Ends above 0 if a parent was erased.
CREATE OR REPLACE FUNCTION limpet.line(of_sid bigint)
RETURNS TABLE (sid bigint, uid text, low bigint, high bigint, floors bigint[], begans bigint[])
LANGUAGE sql STABLE AS $$
    WITH RECURSIVE line (sid, uid, low, high, floors, begans, floor, created_us, parent) AS (
        SELECT s.sid, s.uid, s.floor, s.version, '{}'::bigint[], '{}'::bigint[], s.floor, s.created_us, s.parent
        FROM limpet.sessions s WHERE s.sid = of_sid
        UNION ALL
        SELECT p.sid, p.uid, least(l.low, p.floor), l.low, l.floors || l.floor, l.begans || l.created_us,
               p.floor, p.created_us, p.parent
        FROM line l CROSS JOIN LATERAL (
            SELECT s.sid, s.uid, s.floor, s.created_us, s.parent FROM limpet.sessions s WHERE s.sid = l.parent
            UNION ALL
            SELECT t.sid, t.uid, t.floor, t.created_us, t.parent FROM limpet.tombstones t WHERE t.sid = l.parent) p
        WHERE l.low > 0
    )
    SELECT l.sid, l.uid, l.low, l.high, l.floors, l.begans FROM line l
$$;

-- The ledger of ended sessions, in rows of meta: the number of tombstones and the sum of their
-- checksums, the same of erased sessions. A row `ledger` is what there was when it was begun; changes
-- are added to one of eight more, so that few who end sessions at once wait for each other.
CREATE OR REPLACE FUNCTION limpet.begin_ledger() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM limpet.meta WHERE name = 'ledger') THEN RETURN; END IF;
    PERFORM pg_advisory_xact_lock(5210131961453309285);  -- one counts, and the others find it done
    INSERT INTO limpet.meta
    SELECT 'ledger', convert_to(ARRAY[t.number, t.total, e.number, e.total]::bigint[]::text, 'UTF8')
    FROM (SELECT count(*) AS number, coalesce(sum(crc), 0) AS total FROM limpet.tombstones) t,
         (SELECT count(*) AS number, coalesce(sum(crc), 0) AS total FROM limpet.erased) e
    ON CONFLICT DO NOTHING;
END $$;

CREATE OR REPLACE FUNCTION limpet.enter(sid bigint, change bigint[]) RETURNS void LANGUAGE sql AS $$
    INSERT INTO limpet.meta AS m VALUES ('ledger' || (sid & 7), convert_to(change::text, 'UTF8'))
    ON CONFLICT (name) DO UPDATE SET value = convert_to((
        SELECT array_agg(kept + change[place] ORDER BY place)
        FROM unnest(convert_from(m.value, 'UTF8')::bigint[]) WITH ORDINALITY AS k (kept, place))::text, 'UTF8')
$$;

-- Leases that were granted by a clock since set back end as long after now as they were granted for. Waits
-- for nobody: a row that somebody holds is looked at the next time.
CREATE OR REPLACE FUNCTION limpet.measure_again(now_us bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE limpet.sessions s SET lease_us = now_us + (s.lease_us - s.leased_us), leased_us = now_us
    FROM (SELECT a.sid FROM limpet.sessions a
          WHERE a.lease_us IS NOT NULL AND a.leased_us > now_us + 1000000 FOR UPDATE SKIP LOCKED) a
    WHERE s.sid = a.sid
$$;

-- Lease sessions that are due, the highest priority first, then the longest due. Locks without
-- waiting and looks at each row again under its lock, so no session is given to two workers. The
-- statements are planned for the app or for all but the reserved, each on an index of its own. The lease
-- tells when it was given and, in the facts, what the session was due for.
CREATE OR REPLACE FUNCTION limpet.claim(of_worker text, most integer, span_us bigint, of_app text)
RETURNS TABLE (app text, owner text, id text, uid text, fence bigint, until_us bigint, claimed_us bigint, facts text)
LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint := limpet.now_us();
    in_app text := CASE WHEN of_app IS NULL THEN 'AND (s.app < ''$'' OR s.app >= ''%'')' ELSE 'AND s.app = $1' END;
    level  integer := 2147483647;
    got    bigint;
BEGIN
    IF EXISTS (SELECT FROM limpet.sessions s WHERE s.lease_us IS NOT NULL AND s.leased_us > now_us + 1000000) THEN
        PERFORM limpet.measure_again(now_us);
    END IF;
    WHILE most > 0 LOOP
        EXECUTE 'SELECT s.priority FROM limpet.sessions s WHERE coalesce(s.lease_us, s.due_us) IS NOT NULL
                 AND s.priority < $2 ' || in_app || ' ORDER BY s.priority DESC LIMIT 1'
            INTO level USING of_app, level;
        EXIT WHEN level IS NULL;
        RETURN QUERY EXECUTE
            'WITH due AS (
                 SELECT s.sid, coalesce(s.lease_us, s.due_us) AS since FROM limpet.sessions s
                 WHERE s.priority = $2 AND coalesce(s.lease_us, s.due_us) <= $3 ' || in_app || '
                 ORDER BY coalesce(s.lease_us, s.due_us), s.sid LIMIT $4 FOR UPDATE SKIP LOCKED),
             leased AS (
                 UPDATE limpet.sessions s SET fence = s.fence + 1, lease_us = $5, leased_us = $3, worker = $6
                 FROM due WHERE s.sid = due.sid
                 RETURNING s.app, s.owner, s.id, s.uid, s.fence, s.lease_us, s.facts, due.since, s.sid)
             SELECT l.app, l.owner, l.id, l.uid, l.fence, l.lease_us, $3, l.facts::text
             FROM leased l ORDER BY l.since, l.sid'
            USING of_app, level, now_us, most, now_us + span_us, of_worker;
        GET DIAGNOSTICS got = ROW_COUNT;
        most := most - got;
    END LOOP;
END $$;

-- Remove blobs, or uploads, with their chunks.
CREATE OR REPLACE FUNCTION limpet.drop_blobs(of_bids bigint[]) RETURNS void LANGUAGE sql AS $$
    DELETE FROM limpet.blob_chunks c WHERE c.bid = ANY (of_bids);
    DELETE FROM limpet.blobs b WHERE b.bid = ANY (of_bids)
$$;

-- The upload whose next chunk is `number`; 0 begins one, and clears up some that nobody goes on with.
-- NULL if there is none, if it paused for too long, or if that is not its next chunk.
CREATE OR REPLACE FUNCTION limpet.upload(of_sid bigint, of_upload text, number bigint, pause_us bigint, most integer)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint := limpet.now_us();
    begun  record;
    made   bigint;
BEGIN
    SELECT b.bid, b.chunks INTO begun FROM limpet.blobs b
    WHERE b.upload = of_upload AND b.sid = of_sid AND b.hash IS NULL AND b.touched_us >= now_us - pause_us FOR UPDATE;
    IF FOUND THEN
        RETURN CASE WHEN begun.chunks = number THEN begun.bid END;
    ELSIF number > 0 THEN
        RETURN NULL;
    END IF;
    INSERT INTO limpet.blobs (sid, upload, chunks, touched_us) VALUES (of_sid, of_upload, 0, now_us)
    RETURNING bid INTO made;
    PERFORM limpet.drop_blobs(ARRAY(SELECT b.bid FROM limpet.blobs b
        WHERE b.hash IS NULL AND b.touched_us < now_us - pause_us
        ORDER BY b.touched_us LIMIT most FOR UPDATE SKIP LOCKED));
    RETURN made;
END $$;

-- Add a chunk to an upload of the session with this uid: 'done'; 'gone' if there is no such session;
-- 'lost' if the upload does not go on there. The lock on the session's row keeps it from ending meanwhile.
CREATE OR REPLACE FUNCTION limpet.put_chunk(
    of_app text, of_owner text, of_id text, of_uid text, of_upload text, of_number bigint,
    of_flags integer, of_body bytea, of_crc bigint, pause_us bigint, most integer
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    of_sid bigint;
    of_bid bigint;
BEGIN
    SELECT s.sid INTO of_sid FROM limpet.sessions s
    WHERE s.app = of_app AND s.owner = of_owner AND s.id = of_id AND s.uid = of_uid FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN 'gone';
    END IF;
    of_bid := limpet.upload(of_sid, of_upload, of_number, pause_us, most);
    IF of_bid IS NULL THEN
        RETURN 'lost';
    END IF;
    INSERT INTO limpet.blob_chunks (bid, number, flags, body, crc)
    VALUES (of_bid, of_number, of_flags, of_body, of_crc);
    UPDATE limpet.blobs SET chunks = of_number + 1, touched_us = limpet.now_us() WHERE bid = of_bid;
    RETURN 'done';
END $$;

-- Add the last chunk and make the blob visible. As above; 'there' if the session has this content
-- already, 'fenced' if the lease of the fence is not held. The lock makes of racing uploads one blob.
CREATE OR REPLACE FUNCTION limpet.finish_blob(
    of_app text, of_owner text, of_id text, of_uid text, of_upload text, of_hash bytea, of_version bigint,
    of_chunks bigint, of_fence bigint, last_flags integer, last_body bytea, last_crc bigint,
    of_flags integer, of_body bytea, of_crc bigint, pause_us bigint, most integer, closed text[]
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    s      record;
    of_bid bigint;
BEGIN
    SELECT h.sid, h.fence, h.lease_us, h.worker, h.facts ->> 'phase' AS phase, h.facts ? 'departed' AS away
    INTO s FROM limpet.sessions h
    WHERE h.app = of_app AND h.owner = of_owner AND h.id = of_id AND h.uid = of_uid FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'gone';
    ELSIF s.away AND cardinality(closed) > 0 THEN
        RETURN 'departed';
    ELSIF s.phase = ANY (closed) THEN
        RETURN s.phase;
    ELSIF of_fence <> s.fence OR (of_fence > 0 AND (s.worker IS NULL OR s.lease_us <= limpet.now_us())) THEN
        RETURN 'fenced';
    ELSIF EXISTS (SELECT FROM limpet.blobs b WHERE b.sid = s.sid AND b.hash = of_hash) THEN
        PERFORM limpet.drop_upload(of_upload);
        RETURN 'there';
    END IF;
    of_bid := limpet.upload(s.sid, of_upload, of_chunks - 1, pause_us, most);
    IF of_bid IS NULL THEN
        RETURN 'lost';
    END IF;
    INSERT INTO limpet.blob_chunks (bid, number, flags, body, crc)
    VALUES (of_bid, of_chunks - 1, last_flags, last_body, last_crc);
    UPDATE limpet.blobs SET hash = of_hash, version = of_version, chunks = of_chunks, flags = of_flags,
        body = of_body, crc = of_crc WHERE bid = of_bid;
    RETURN 'done';
END $$;

CREATE OR REPLACE FUNCTION limpet.drop_upload(of_upload text) RETURNS void LANGUAGE sql AS $$
    SELECT limpet.drop_blobs(ARRAY(SELECT b.bid FROM limpet.blobs b
        WHERE b.upload = of_upload AND b.hash IS NULL FOR UPDATE))
$$;

-- Remove some marks that have ended, and how many were. Waits for nobody, so that two who wrote a mark
-- each and now sweep do not wait for each other.
CREATE OR REPLACE FUNCTION limpet.sweep_marks(most integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    swept integer;
BEGIN
    DELETE FROM limpet.marks m USING (
        SELECT e.space, e.name FROM limpet.marks e WHERE e.until_us <= limpet.now_us()
        ORDER BY e.until_us LIMIT most FOR UPDATE SKIP LOCKED) e
    WHERE m.space = e.space AND m.name = e.name;
    GET DIAGNOSTICS swept = ROW_COUNT;
    RETURN swept;
END $$;

CREATE OR REPLACE FUNCTION limpet.mark_once(of_space text, of_name text, until bigint, of_value bigint, most integer)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint := limpet.now_us();
    made   boolean := false;
BEGIN
    IF until > now_us THEN
        INSERT INTO limpet.marks AS m (space, name, until_us, value) VALUES (of_space, of_name, until, of_value)
        ON CONFLICT (space, name) DO UPDATE SET until_us = excluded.until_us, value = excluded.value
        WHERE m.until_us <= now_us;
        made := FOUND;
    END IF;
    PERFORM limpet.sweep_marks(most);
    RETURN made;
END $$;

CREATE OR REPLACE FUNCTION limpet.mark_put(of_space text, of_name text, until bigint, of_value bigint, most integer)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO limpet.marks (space, name, until_us, value) VALUES (of_space, of_name, until, of_value)
    ON CONFLICT (space, name) DO UPDATE SET until_us = excluded.until_us, value = excluded.value;
    PERFORM limpet.sweep_marks(most);
END $$;

CREATE OR REPLACE FUNCTION limpet.mark_add(of_space text, of_name text, until bigint, change bigint, most integer)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint := limpet.now_us();
    added  bigint;
    bound  constant numeric := 9223372036854775807;
BEGIN
    INSERT INTO limpet.marks AS m (space, name, until_us, value)
    VALUES (of_space, of_name, until, greatest(-bound, change))
    ON CONFLICT (space, name) DO UPDATE SET
        until_us = CASE WHEN m.until_us <= now_us THEN excluded.until_us ELSE m.until_us END,
        value = CASE WHEN m.until_us <= now_us THEN excluded.value
                     ELSE least(bound, greatest(-bound, m.value::numeric + excluded.value))::bigint END
    RETURNING m.value INTO added;
    PERFORM limpet.sweep_marks(most);
    RETURN added;
END $$;
