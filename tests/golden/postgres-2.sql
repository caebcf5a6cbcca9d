--
-- PostgreSQL database dump
--


-- Dumped from database version 16.14
-- Dumped by pg_dump version 16.14

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: limpet; Type: SCHEMA; Schema: -; Owner: -
--

CREATE SCHEMA limpet;


--
-- Name: begin_ledger(); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.begin_ledger() RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF EXISTS (SELECT FROM limpet.meta WHERE name = 'ledger') THEN RETURN; END IF;
    PERFORM pg_advisory_xact_lock(5210131961453309285);  -- one counts, and the others find it done
    INSERT INTO limpet.meta
    SELECT 'ledger', convert_to(ARRAY[t.number, t.total, e.number, e.total]::bigint[]::text, 'UTF8')
    FROM (SELECT count(*) AS number, coalesce(sum(crc), 0) AS total FROM limpet.tombstones) t,
         (SELECT count(*) AS number, coalesce(sum(crc), 0) AS total FROM limpet.erased) e
    ON CONFLICT DO NOTHING;
END $$;


--
-- Name: claim(text, integer, bigint, text); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.claim(of_worker text, most integer, span_us bigint, of_app text) RETURNS TABLE(app text, owner text, id text, uid text, fence bigint, until_us bigint, claimed_us bigint, facts text)
    LANGUAGE plpgsql
    AS $_$
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
END $_$;


--
-- Name: commit(bigint, bigint, integer, bigint[], text[], bigint[], bytea, integer[], text[], text[], text[], bytea[], bigint[], bigint[], integer[], boolean[], integer[], integer[], bytea[], bigint[], text[], text[], text[], bigint[], text[], bigint[], integer[], integer[], bigint[], bigint[], text[], bigint[], integer[], boolean[], bigint[], bigint[], bigint[], integer[], integer[], integer[], integer[], integer[], integer[], bigint[], text[], boolean[], text[], text[], bigint[], integer[], bytea, integer[], bigint[], bytea, integer[], bytea, bytea, text[], text[], text[], text[], bigint[], boolean[], boolean[], bytea, integer[], integer[], bigint[], bigint[], integer[], integer[], bigint[], bigint[], integer[], integer[], bytea[], bigint[], integer[], bigint[], integer[], integer[], integer[], integer[], bigint[], integer[], bytea[], bigint[], bigint[]); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.commit(planned_us bigint, late_us bigint, jobs integer, h_sid bigint[], h_uid text[], h_base bigint[], h_link bytea, h_link_end integer[], h_app text[], h_owner text[], h_id text[], h_hash bytea[], h_created bigint[], h_floor bigint[], h_parent integer[], h_reuse boolean[], b_head integer[], b_flags integer[], b_body bytea[], b_crc bigint[], n_app text[], n_owner text[], n_name text[], n_base bigint[], n_uid text[], n_seq bigint[], v_job integer[], v_head integer[], v_fence bigint[], v_active bigint[], v_facts text[], v_due bigint[], v_priority integer[], v_relabel boolean[], v_deadline bigint[], v_release bigint[], v_adopted bigint[], l_job integer[], l_head integer[], w_job integer[], w_name integer[], e_job integer[], e_head integer[], e_seq bigint[], e_id text[], e_given boolean[], e_type text[], e_actor text[], e_at bigint[], e_flags integer[], e_body bytea, e_body_end integer[], e_crc bigint[], e_salt bytea, e_salt_end integer[], e_digest bytea, e_link bytea, e_cause text[], e_invocation text[], e_correlation text[], e_wake text[], e_processed bigint[], e_adopted boolean[], e_active boolean[], e_mac bytea, p_job integer[], p_head integer[], p_seq bigint[], p_by bigint[], s_job integer[], s_name integer[], s_version bigint[], s_base bigint[], s_form integer[], s_flags integer[], s_body bytea[], s_crc bigint[], s_head integer[], s_seq bigint[], s_more integer[], s_first integer[], k_job integer[], k_head integer[], k_seq bigint[], k_flags integer[], k_body bytea[], k_crc bigint[], k_pin bigint[]) RETURNS text
    LANGUAGE plpgsql
    AS $$
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
        FOR r IN SELECT DISTINCT e_job[e.i] AS job FROM generate_subscripts(e_job, 1) AS e (i)
                 JOIN limpet.events x ON x.id = e_id[e.i] AND x.sid = sids[e_head[e.i]]
                 WHERE e_given[e.i]
                 UNION SELECT e_job[e.i] FROM generate_subscripts(e_job, 1) AS e (i)
                 JOIN limpet.segment_ids m ON m.sid = sids[e_head[e.i]] AND m.mark = limpet.mark(e_id[e.i])
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


--
-- Name: drop_blobs(bigint[]); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.drop_blobs(of_bids bigint[]) RETURNS void
    LANGUAGE sql
    AS $$
    DELETE FROM limpet.blob_chunks c WHERE c.bid = ANY (of_bids);
    DELETE FROM limpet.blobs b WHERE b.bid = ANY (of_bids)
$$;


--
-- Name: drop_upload(text); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.drop_upload(of_upload text) RETURNS void
    LANGUAGE sql
    AS $$
    SELECT limpet.drop_blobs(ARRAY(SELECT b.bid FROM limpet.blobs b
        WHERE b.upload = of_upload AND b.hash IS NULL FOR UPDATE))
$$;


--
-- Name: enter(bigint, bigint[]); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.enter(sid bigint, change bigint[]) RETURNS void
    LANGUAGE sql
    AS $$
    INSERT INTO limpet.meta AS m VALUES ('ledger' || (sid & 7), convert_to(change::text, 'UTF8'))
    ON CONFLICT (name) DO UPDATE SET value = convert_to((
        SELECT array_agg(kept + change[place] ORDER BY place)
        FROM unnest(convert_from(m.value, 'UTF8')::bigint[]) WITH ORDINALITY AS k (kept, place))::text, 'UTF8')
$$;


--
-- Name: epoch(); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.epoch() RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$ SELECT 0::bigint $$;


--
-- Name: finish_blob(text, text, text, text, text, bytea, bigint, bigint, bigint, integer, bytea, bigint, integer, bytea, bigint, bigint, integer, text[]); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.finish_blob(of_app text, of_owner text, of_id text, of_uid text, of_upload text, of_hash bytea, of_version bigint, of_chunks bigint, of_fence bigint, last_flags integer, last_body bytea, last_crc bigint, of_flags integer, of_body bytea, of_crc bigint, pause_us bigint, most integer, closed text[]) RETURNS text
    LANGUAGE plpgsql
    AS $$
DECLARE
    s      record;
    of_bid bigint;
BEGIN
    SELECT h.sid, h.fence, h.lease_us, h.worker, h.facts ->> 'phase' AS phase INTO s FROM limpet.sessions h
    WHERE h.app = of_app AND h.owner = of_owner AND h.id = of_id AND h.uid = of_uid FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'gone';
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


--
-- Name: line(bigint); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.line(of_sid bigint) RETURNS TABLE(sid bigint, uid text, low bigint, high bigint, floors bigint[], begans bigint[])
    LANGUAGE sql STABLE
    AS $$
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


--
-- Name: listening(); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.listening() RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$ SELECT 5210131961453309284 $$;


--
-- Name: lock_names(text[], text[], text[]); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.lock_names(n_app text[], n_owner text[], n_name text[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: mark(text); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.mark(id text) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT ('x' || left(encode(sha256(convert_to(id, 'UTF8')), 'hex'), 16))::bit(64)::bigint
$$;


--
-- Name: mark_add(text, text, bigint, bigint, integer); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.mark_add(of_space text, of_name text, until bigint, change bigint, most integer) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: mark_once(text, text, bigint, bigint, integer); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.mark_once(of_space text, of_name text, until bigint, of_value bigint, most integer) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: mark_put(text, text, bigint, bigint, integer); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.mark_put(of_space text, of_name text, until bigint, of_value bigint, most integer) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO limpet.marks (space, name, until_us, value) VALUES (of_space, of_name, until, of_value)
    ON CONFLICT (space, name) DO UPDATE SET until_us = excluded.until_us, value = excluded.value;
    PERFORM limpet.sweep_marks(most);
END $$;


--
-- Name: measure_again(bigint); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.measure_again(now_us bigint) RETURNS void
    LANGUAGE sql
    AS $$
    UPDATE limpet.sessions s SET lease_us = now_us + (s.lease_us - s.leased_us), leased_us = now_us
    FROM (SELECT a.sid FROM limpet.sessions a
          WHERE a.lease_us IS NOT NULL AND a.leased_us > now_us + 1000000 FOR UPDATE SKIP LOCKED) a
    WHERE s.sid = a.sid
$$;


--
-- Name: names_of(text, text); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.names_of(of_app text, of_owner text) RETURNS TABLE(name text, base bigint, form integer)
    LANGUAGE sql STABLE
    AS $$
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


--
-- Name: needed(bigint); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.needed(of_sid bigint) RETURNS bigint
    LANGUAGE sql STABLE
    AS $$
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


--
-- Name: now_us(); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.now_us() RETURNS bigint
    LANGUAGE sql
    AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;


--
-- Name: part(bytea, integer[], integer); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.part(joined bytea, ends integer[], i integer) RETURNS bytea
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT substr(joined, coalesce(ends[i - 1], 0) + 1, ends[i] - coalesce(ends[i - 1], 0))
$$;


--
-- Name: purge(bigint); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.purge(of_sid bigint) RETURNS void
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: put_chunk(text, text, text, text, text, bigint, integer, bytea, bigint, bigint, integer); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.put_chunk(of_app text, of_owner text, of_id text, of_uid text, of_upload text, of_number bigint, of_flags integer, of_body bytea, of_crc bigint, pause_us bigint, most integer) RETURNS text
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: scopes_of(text, text); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.scopes_of(of_app text, of_owner text) RETURNS TABLE(name text, version bigint, base bigint, form integer, flags integer, body bytea, crc bigint, uid text, seq bigint)
    LANGUAGE sql STABLE
    AS $$
    SELECT r.name, r.version, r.base, r.form, r.flags, r.body, r.crc, r.uid, r.seq
    FROM limpet.names_of(of_app, of_owner) n
    -- OFFSET 0 keeps this a look into the index for each name: joined freely, the planner may read
    -- every version of every name once.
    CROSS JOIN LATERAL (SELECT s.* FROM limpet.scopes s
                        WHERE s.app = of_app AND s.owner = of_owner AND s.name = n.name AND s.version >= n.base
                        OFFSET 0) r
    ORDER BY r.name, r.version
$$;


--
-- Name: seen(bigint); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.seen(token bigint) RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
    SELECT CASE WHEN token - limpet.epoch() < 3 THEN true
           ELSE pg_visible_in_snapshot((token - limpet.epoch())::text::xid8, pg_current_snapshot()) END
$$;


--
-- Name: stamp(xid8); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.stamp(of xid8) RETURNS xid8
    LANGUAGE sql STABLE
    AS $$ SELECT (limpet.epoch() + of::text::bigint)::text::xid8 $$;


--
-- Name: sweep_marks(integer); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.sweep_marks(most integer) RETURNS integer
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: upload(bigint, text, bigint, bigint, integer); Type: FUNCTION; Schema: limpet; Owner: -
--

CREATE FUNCTION limpet.upload(of_sid bigint, of_upload text, number bigint, pause_us bigint, most integer) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
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


SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: bases; Type: TABLE; Schema: limpet; Owner: -
--

CREATE TABLE limpet.bases (
    sid bigint NOT NULL,
    flags integer NOT NULL,
    body bytea NOT NULL,
    crc bigint NOT NULL
);


--
-- Name: blob_chunks; Type: TABLE; Schema: limpet; Owner: -
--

CREATE TABLE limpet.blob_chunks (
    bid bigint NOT NULL,
    number bigint NOT NULL,
    flags integer NOT NULL,
    body bytea NOT NULL,
    crc bigint NOT NULL
);
ALTER TABLE ONLY limpet.blob_chunks ALTER COLUMN body SET STORAGE EXTERNAL;


--
-- Name: blobs; Type: TABLE; Schema: limpet; Owner: -
--

CREATE TABLE limpet.blobs (
    bid bigint NOT NULL,
    sid bigint NOT NULL,
    upload text NOT NULL COLLATE pg_catalog."C",
    hash bytea,
    version bigint,
    chunks bigint NOT NULL,
    touched_us bigint NOT NULL,
    flags integer,
    body bytea,
    crc bigint
);


--
-- Name: blobs_bid_seq; Type: SEQUENCE; Schema: limpet; Owner: -
--

ALTER TABLE limpet.blobs ALTER COLUMN bid ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME limpet.blobs_bid_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: erased; Type: TABLE; Schema: limpet; Owner: -
--

CREATE TABLE limpet.erased (
    key_hash bytea NOT NULL,
    version bigint NOT NULL,
    link bytea NOT NULL,
    erased_us bigint NOT NULL,
    forks_kept bigint NOT NULL,
    crc bigint NOT NULL
);


--
-- Name: events; Type: TABLE; Schema: limpet; Owner: -
--

CREATE TABLE limpet.events (
    xid xid8 NOT NULL,
    pos bigint NOT NULL,
    sid bigint NOT NULL,
    seq bigint NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL COLLATE pg_catalog."C",
    actor text NOT NULL COLLATE pg_catalog."C",
    at_us bigint NOT NULL,
    cause text COLLATE pg_catalog."C",
    invocation_id text COLLATE pg_catalog."C",
    correlation_id text COLLATE pg_catalog."C",
    wake_id text COLLATE pg_catalog."C",
    flags integer NOT NULL,
    body bytea NOT NULL,
    crc bigint NOT NULL,
    salt bytea NOT NULL,
    digest bytea NOT NULL,
    link bytea NOT NULL,
    processed bigint
);


--
-- Name: labels; Type: TABLE; Schema: limpet; Owner: -
--

CREATE TABLE limpet.labels (
    app text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    value text NOT NULL COLLATE pg_catalog."C",
    created_us bigint NOT NULL,
    sid bigint NOT NULL,
    owner text NOT NULL COLLATE pg_catalog."C"
);


--
-- Name: marks; Type: TABLE; Schema: limpet; Owner: -
--

CREATE TABLE limpet.marks (
    space text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    until_us bigint NOT NULL,
    value bigint NOT NULL
);


--
-- Name: meta; Type: TABLE; Schema: limpet; Owner: -
--

CREATE TABLE limpet.meta (
    name text NOT NULL,
    value bytea NOT NULL
);


--
-- Name: scope_owners; Type: TABLE; Schema: limpet; Owner: -
--

CREATE TABLE limpet.scope_owners (
    app text NOT NULL COLLATE pg_catalog."C",
    owner text NOT NULL COLLATE pg_catalog."C",
    names bigint NOT NULL,
    ever bigint NOT NULL
);


--
-- Name: scopes; Type: TABLE; Schema: limpet; Owner: -
--

CREATE TABLE limpet.scopes (
    app text NOT NULL COLLATE pg_catalog."C",
    owner text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    base bigint NOT NULL,
    form integer NOT NULL,
    flags integer NOT NULL,
    body bytea NOT NULL,
    crc bigint NOT NULL,
    uid text NOT NULL COLLATE pg_catalog."C",
    seq bigint NOT NULL
);


--
-- Name: segment_ids; Type: TABLE; Schema: limpet; Owner: -
--

CREATE TABLE limpet.segment_ids (
    sid bigint NOT NULL,
    mark bigint NOT NULL,
    seq bigint NOT NULL
);


--
-- Name: segments; Type: TABLE; Schema: limpet; Owner: -
--

CREATE TABLE limpet.segments (
    sid bigint NOT NULL,
    first bigint NOT NULL,
    last bigint NOT NULL,
    flags integer NOT NULL,
    body bytea NOT NULL,
    crc bigint NOT NULL,
    previous bytea NOT NULL,
    link bytea NOT NULL,
    last_us bigint NOT NULL
);


--
-- Name: sessions; Type: TABLE; Schema: limpet; Owner: -
--

CREATE TABLE limpet.sessions (
    sid bigint NOT NULL,
    app text NOT NULL COLLATE pg_catalog."C",
    owner text NOT NULL COLLATE pg_catalog."C",
    id text NOT NULL COLLATE pg_catalog."C",
    uid text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    link bytea NOT NULL,
    created_us bigint NOT NULL,
    updated_us bigint NOT NULL,
    slot bigint GENERATED ALWAYS AS ((updated_us >> 18)) STORED,
    active_us bigint NOT NULL,
    facts jsonb,
    due_us bigint,
    deadline_us bigint,
    priority integer DEFAULT 0 NOT NULL,
    standing text GENERATED ALWAYS AS ((facts ->> 'standing'::text)) STORED COLLATE pg_catalog."C",
    fence bigint DEFAULT 0 NOT NULL,
    lease_us bigint,
    leased_us bigint,
    worker text COLLATE pg_catalog."C",
    floor bigint DEFAULT 0 NOT NULL,
    parent bigint,
    adopted bigint DEFAULT 0 NOT NULL,
    xid xid8 DEFAULT '0'::xid8 NOT NULL,
    mac bytea
)
WITH (fillfactor='70');


--
-- Name: sessions_sid_seq; Type: SEQUENCE; Schema: limpet; Owner: -
--

ALTER TABLE limpet.sessions ALTER COLUMN sid ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME limpet.sessions_sid_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: snapshots; Type: TABLE; Schema: limpet; Owner: -
--

CREATE TABLE limpet.snapshots (
    sid bigint NOT NULL,
    seq bigint NOT NULL,
    flags integer NOT NULL,
    body bytea NOT NULL,
    crc bigint NOT NULL,
    pin bigint
);


--
-- Name: tombstones; Type: TABLE; Schema: limpet; Owner: -
--

CREATE TABLE limpet.tombstones (
    sid bigint NOT NULL,
    app text NOT NULL COLLATE pg_catalog."C",
    owner text NOT NULL COLLATE pg_catalog."C",
    id text NOT NULL COLLATE pg_catalog."C",
    uid text NOT NULL COLLATE pg_catalog."C",
    version bigint NOT NULL,
    link bytea NOT NULL,
    created_us bigint NOT NULL,
    updated_us bigint NOT NULL,
    active_us bigint NOT NULL,
    floor bigint NOT NULL,
    parent bigint,
    deleted_us bigint NOT NULL,
    ending text NOT NULL COLLATE pg_catalog."C",
    crc bigint NOT NULL
);


--
-- Data for Name: bases; Type: TABLE DATA; Schema: limpet; Owner: -
--

INSERT INTO limpet.bases VALUES (3, 0, '\x7b226669656c6473223a7b226e223a317d2c2276657273696f6e73223a7b226e223a327d2c22636865636b73756d223a2232626664313466343364313766633763656132346530393137613838373962346232663838306238626165656331623964393066626161643635356537316264222c226c696e6b223a2230366165323833376465373639633034396663626631393437386562303462386133663433366664316236313661366262373039646634333961353236393666222c22666c6f6f72223a322c22706172656e74223a5b2273686f70222c22616461222c226d61696e225d2c22756964223a2230316131656334642d323561342d373030302d626338302d313231313032316365643866227d', 2235352379);


--
-- Data for Name: blob_chunks; Type: TABLE DATA; Schema: limpet; Owner: -
--

INSERT INTO limpet.blob_chunks VALUES (1, 0, 1, '\x28b52ffd6000045508000410000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9fa0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff010000fd07aa3505', 4077735747);


--
-- Data for Name: blobs; Type: TABLE DATA; Schema: limpet; Owner: -
--

INSERT INTO limpet.blobs OVERRIDING SYSTEM VALUE VALUES (1, 1, '01a1ec4d-271a-7000-b4f2-266f259c232b', '\xd414b085826eb06778483ba35564dc849e643359f69ed9747878ba6e54985bed', 4, 1, 1794965841715812, 0, '\x7b2273697a65223a313238302c226d656469615f74797065223a22696d6167652f706e67222c226368756e6b73223a312c2276657273696f6e223a342c2275706c6f6164223a2230316131656334642d323731612d373030302d623466322d323636663235396332333262227d', 1185322367);


--
-- Data for Name: erased; Type: TABLE DATA; Schema: limpet; Owner: -
--

INSERT INTO limpet.erased VALUES ('\x89e19dc3ec67003f5571940b0de1cdc11f587cdef7a4a674d2d3294d0c20099d', 1, '\xba59505df6328a26fbb00362852379b9bb1997b45eb026a34fa78500724c59cd', 1794965842575305, 0, 2310320706);


--
-- Data for Name: events; Type: TABLE DATA; Schema: limpet; Owner: -
--

INSERT INTO limpet.events VALUES ('747', 1, 1, 1, '01a1ec4d-25a4-7000-bc80-1211021ced8f', 'session.created', 'user:ada', 1794965841482536, NULL, NULL, NULL, NULL, 0, '\x7b2264617461223a7b22617070223a2273686f70222c2275736572223a22616461222c226964223a226d61696e222c226c6162656c73223a7b22706c616e223a22676f6c64227d7d2c226f7073223a5b5b22736574222c5b226e225d2c305d2c5b22736574222c5b22757365723a6c616e67225d2c22656e225d2c5b22736574222c5b226170703a766973697473225d2c315d5d7d', 2489649384, '\x2f78597f6003c4d43e8e3b7260429d04', '\x4e82db28cc18b1e67afbdce91e396b03d9c64150ace12742f41ff9ab32666d16', '\xa76179947cb895aeae8ba52db4038987cc0a37a0b7d92ff96ad6b808521c5b9b', NULL);
INSERT INTO limpet.events VALUES ('748', 1, 1, 2, 'm2', 'user.message', 'user:ada', 1794965841528948, NULL, NULL, NULL, NULL, 0, '\x7b2264617461223a7b2274657874223a226869227d2c226f7073223a5b5b22696e63222c5b226e225d2c315d5d7d', 788086344, '\xe3f9c5c66f7c5329db72c7873348e3cf', '\x61c0ab74cafb36407fdf072efd8a43c89ce6faf54ce84354d3f15d63f8eca2ab', '\x06ae2837de769c049fcbf19478eb04b8a3f436fd1b616a6bb709df439a52696f', 0);
INSERT INTO limpet.events VALUES ('749', 1, 1, 3, 'm3', 'tool.ran', 'user:ada', 1794965841536332, NULL, NULL, NULL, NULL, 1, '\x28b52ffd60d2055d020082040f15a017b6188894b59350677ffb17d93f0c328104d5c3e90e50370990c17dd8ea162c61ab3371b3f1297ba545aa116a501c3d6b1e1774cb688c06cc5103003963a812b8ff8c7f3a01', 3285902489, '\x61e3f55d0464721e6915c123761772fc', '\x34d112f970d9c31fa68a729d7607ae6491fc68d6a08f70ace88f0a870fcf85ac', '\x0e483e6a55bbc98f6e3a7e81e7c3717733ec1891d5c175fa261e71e98b7f1f9b', NULL);
INSERT INTO limpet.events VALUES ('750', 1, 1, 4, '01a1ec4d-2692-7000-8217-6e44895ff7bb', 'session.timer_set', 'user:ada', 1794965841554541, NULL, NULL, NULL, NULL, 0, '\x7b2264617461223a7b226e616d65223a226e6170222c2261745f7573223a313839333435363030303030303030302c226b696e64223a2277616b65227d7d', 1320948127, '\x3e5b1234f359a600e5a7e8d54c6e0555', '\xeb7691737e24afcef03f8a82d175f15c8e08a7ecac782d4116d1744777eb8af0', '\x706e9371640e819e339a076f8638ebc907df2d489921ad190b7c3db0f892b7f8', NULL);
INSERT INTO limpet.events VALUES ('751', 1, 2, 1, '01a1ec4d-26ba-7000-a598-a84e0637a198', 'session.created', 'user:ada', 1794965841654270, NULL, NULL, NULL, NULL, 0, '\x7b2264617461223a7b22617070223a222424636865636b706f696e7473222c2275736572223a22342f73686f702f616461222c226964223a226d61696e227d2c226f7073223a5b5b22736574222c5b226f66225d2c2230316131656334642d323561342d373030302d626338302d313231313032316365643866225d2c5b22736574222c5b226c617374225d2c305d2c5b22736574222c5b226b657074225d2c7b7d5d5d7d', 3951383637, '\xc38b8073a637890a09f1336e19374b3c', '\x2e688ccd17f43a644024147870f23a3eb6eb780fb10650672a3cc6376323fbd9', '\xd0cb8b12dd113a43bf5f24c892821f41ca2464f8ebd0480f5bcbadc70e816a59', NULL);
INSERT INTO limpet.events VALUES ('751', 2, 2, 2, '01a1ec4d-26ba-7001-b190-903f1a465bf4', 'checkpoint.recorded', 'user:ada', 1794965841654270, NULL, NULL, NULL, NULL, 0, '\x7b2264617461223a7b226e756d626572223a312c22736571223a342c22636865636b73756d223a2265303735373536643965313939343432313235313862333132373164356364663064303934306632616239326138326130396531336364336237396662303361222c2266756c6c223a747275652c2274726967676572223a22676f6c64656e222c2273697a65223a31392c2261745f7573223a313739343936353834313539343332352c226d616e75616c223a747275657d2c226f7073223a5b5b22736574222c5b226c617374225d2c315d2c5b2273657440222c5b226b657074222c2231225d2c5b5d5d5d7d', 3648359366, '\x5aa510d04527e1545dfecfad2201203e', '\x0d96e5dfd36f038c57843f16839825ca54572bee644b0f12536faaf2a351365a', '\x9f7ee50d6431d35550fe051a71895ee92caf803494fa0b43b41d6feb5ddbeb8d', NULL);
INSERT INTO limpet.events VALUES ('753', 1, 3, 3, '01a1ec4d-27bd-7000-baeb-a9fe4b06c900', 'session.forked', 'agent:tried', 1794965841866045, NULL, NULL, NULL, NULL, 0, '\x7b2264617461223a7b22617070223a2273686f70222c2275736572223a22616461222c226964223a22666f726b222c22706172656e74223a7b22617070223a2273686f70222c2275736572223a22616461222c226964223a226d61696e222c22756964223a2230316131656334642d323561342d373030302d626338302d313231313032316365643866227d2c226174223a322c2262617365223a2232626664313466343364313766633763656132346530393137613838373962346232663838306238626165656331623964393066626161643635356537316264227d7d', 584192345, '\x87d240ac062dd6776943a39c6bb530b6', '\x4a44416babf85433028c6eaa22def81fe6e782cf2c916f35d15fbe04f7596e62', '\xccb8a3d2f307db0814a053a14019e27b185facdcb0875a6a01e683d5ad4e7981', NULL);
INSERT INTO limpet.events VALUES ('754', 1, 3, 4, '01a1ec4d-27d5-7000-a6ca-99f6ce149fe6', 'agent.message', 'agent:tried', 1794965841877685, NULL, NULL, NULL, NULL, 0, '\x7b2264617461223a7b2274657874223a226f7220736f227d2c226f7073223a5b5b22736574222c5b227472696564225d2c747275655d2c5b22696e63222c5b226170703a766973697473225d2c325d5d7d', 1315375712, '\x394490248c5ab7544b549490e5f12a29', '\xca36e92f23cb0e5dfa627186961df56902565d42f6ed3f2084ac9f2883cc4234', '\xb99001d5e6948d3f1a644dfcdc30d1c1c8cada705d3fd181b0d9d3b48b47b051', NULL);
INSERT INTO limpet.events VALUES ('755', 1, 4, 1, '01a1ec4d-27e2-7000-8adf-19066df6f06d', 'session.created', 'user:ada', 1794965841910406, NULL, NULL, NULL, NULL, 0, '\x7b2264617461223a7b22617070223a22246167656e7473222c2275736572223a222a222c226964223a22737570706f7274222c2276616c7565223a7b226d6f64656c223a22736d616c6c227d7d2c226f7073223a5b5b2273657440222c5b2276616c7565225d2c5b2276616c7565225d5d2c5b22736574222c5b226163746f72225d2c22757365723a616461225d5d7d', 641222827, '\xeda6c6c2a63b3c2635d1a5dbc8c5d3f7', '\xe7a5efc237bb5529c903f808597f4cc94981fd61e64deeaa2b8c612a35c9b6a6', '\x6dc9acd01765973f2ef8a39018c316ed5d2b3116851cef6b57cf2dc2992b60d9', NULL);
INSERT INTO limpet.events VALUES ('756', 1, 4, 2, '01a1ec4d-2802-7000-9a21-a7983f34b25e', 'document.put', 'user:ada', 1794965841922503, NULL, NULL, NULL, NULL, 0, '\x7b2264617461223a7b2276616c7565223a7b226d6f64656c223a226c61726765227d7d2c226f7073223a5b5b2273657440222c5b2276616c7565225d2c5b2276616c7565225d5d2c5b22736574222c5b226163746f72225d2c22757365723a616461225d5d7d', 82510041, '\xbb1614def30b3d57f94ca380321bc1b9', '\x2d2c482428124edb546fb04a066410108e79e1eb4ea166f9b3b50818d7431ff1', '\x9eb51b1784a2b88a9f9fc7280356a95b8f2e4febbbe86a4b83ffee2f3d6bdb02', NULL);


--
-- Data for Name: labels; Type: TABLE DATA; Schema: limpet; Owner: -
--

INSERT INTO limpet.labels VALUES ('shop', 'plan', 'gold', 1794965841482536, 1, 'ada');


--
-- Data for Name: marks; Type: TABLE DATA; Schema: limpet; Owner: -
--



--
-- Data for Name: meta; Type: TABLE DATA; Schema: limpet; Owner: -
--

INSERT INTO limpet.meta VALUES ('schema', '\x32');
INSERT INTO limpet.meta VALUES ('functions', '\x322064363165613536363362623635613966396136663131393730373665626430316664383062653332336539376239393837316332363031346339313436626637');
INSERT INTO limpet.meta VALUES ('home', '\x373730393331393535333635333137323635392f31');
INSERT INTO limpet.meta VALUES ('secret', '\x7b5ee909a8c19c534802afbcb1112aa2b3af6e41426ffe0765f5206e2c82da89');
INSERT INTO limpet.meta VALUES ('secret_crc', '\x34313935353837353737');
INSERT INTO limpet.meta VALUES ('ledger', '\x7b302c302c302c307d');
INSERT INTO limpet.meta VALUES ('ledger5', '\x7b312c3934373930373939322c302c307d');
INSERT INTO limpet.meta VALUES ('ledger6', '\x7b302c302c312c323331303332303730367d');


--
-- Data for Name: scope_owners; Type: TABLE DATA; Schema: limpet; Owner: -
--

INSERT INTO limpet.scope_owners VALUES ('shop', '', 1, 1);
INSERT INTO limpet.scope_owners VALUES ('shop', 'ada', 1, 1);


--
-- Data for Name: scopes; Type: TABLE DATA; Schema: limpet; Owner: -
--

INSERT INTO limpet.scopes VALUES ('shop', 'ada', 'user:lang', 1, 1, 0, 0, '\x22656e22', 1034916237, '01a1ec4d-25a4-7000-bc80-1211021ced8f', 1);
INSERT INTO limpet.scopes VALUES ('shop', '', 'app:visits', 1, 1, 0, 0, '\x31', 388107015, '01a1ec4d-25a4-7000-bc80-1211021ced8f', 1);
INSERT INTO limpet.scopes VALUES ('shop', '', 'app:visits', 2, 2, 0, 0, '\x33', 3082569925, '01a1ec4d-27bd-7000-baeb-a9fe4b06c900', 4);


--
-- Data for Name: segment_ids; Type: TABLE DATA; Schema: limpet; Owner: -
--



--
-- Data for Name: segments; Type: TABLE DATA; Schema: limpet; Owner: -
--



--
-- Data for Name: sessions; Type: TABLE DATA; Schema: limpet; Owner: -
--

INSERT INTO limpet.sessions OVERRIDING SYSTEM VALUE VALUES (1, 'shop', 'ada', 'main', '01a1ec4d-25a4-7000-bc80-1211021ced8f', 4, '\x706e9371640e819e339a076f8638ebc907df2d489921ad190b7c3db0f892b7f8', 1794965841482536, 1794965841554541, DEFAULT, 1794965841528948, '{"inputs": {"pending": 1, "since_us": 1794965841528948}, "labels": {"plan": "gold"}, "timers": {"nap": {"seq": 4, "kind": "wake", "at_us": 1893456000000000}}}', 1794965841528948, NULL, 0, DEFAULT, 0, NULL, NULL, NULL, 0, NULL, 0, '750', NULL);
INSERT INTO limpet.sessions OVERRIDING SYSTEM VALUE VALUES (2, '$$checkpoints', '4/shop/ada', 'main', '01a1ec4d-26ba-7000-a598-a84e0637a198', 2, '\x9f7ee50d6431d35550fe051a71895ee92caf803494fa0b43b41d6feb5ddbeb8d', 1794965841654270, 1794965841654270, DEFAULT, 1794965841654270, '{"checkpoint": {"at_us": 1794965841594325, "number": 1}}', NULL, NULL, 0, DEFAULT, 0, NULL, NULL, NULL, 0, NULL, 0, '751', NULL);
INSERT INTO limpet.sessions OVERRIDING SYSTEM VALUE VALUES (3, 'shop', 'ada', 'fork', '01a1ec4d-27bd-7000-baeb-a9fe4b06c900', 4, '\xb99001d5e6948d3f1a644dfcdc30d1c1c8cada705d3fd181b0d9d3b48b47b051', 1794965841866045, 1794965841877685, DEFAULT, 1794965841877685, '{"parent": {"at": 2, "id": "main", "app": "shop", "uid": "01a1ec4d-25a4-7000-bc80-1211021ced8f", "user": "ada"}}', NULL, NULL, 0, DEFAULT, 0, NULL, NULL, NULL, 2, 1, 0, '754', NULL);
INSERT INTO limpet.sessions OVERRIDING SYSTEM VALUE VALUES (4, '$agents', '*', 'support', '01a1ec4d-27e2-7000-8adf-19066df6f06d', 2, '\x9eb51b1784a2b88a9f9fc7280356a95b8f2e4febbbe86a4b83ffee2f3d6bdb02', 1794965841910406, 1794965841922503, DEFAULT, 1794965841910406, NULL, NULL, NULL, 0, DEFAULT, 0, NULL, NULL, NULL, 0, NULL, 0, '756', NULL);


--
-- Data for Name: snapshots; Type: TABLE DATA; Schema: limpet; Owner: -
--

INSERT INTO limpet.snapshots VALUES (1, 4, 0, '\x7b226669656c6473223a7b226e223a322c226c6f67223a5b2278225d7d2c2276657273696f6e73223a7b226e223a332c226c6f67223a337d2c22636865636b73756d223a2265303735373536643965313939343432313235313862333132373164356364663064303934306632616239326138326130396531336364336237396662303361222c226c696e6b223a2237303665393337313634306538313965333339613037366638363338656263393037646632643438393932316164313930623763336462306638393262376638222c22757064617465645f7573223a313739343936353834313535343534312c226163746976655f7573223a313739343936353834313532383934382c226661637473223a7b226c6162656c73223a7b22706c616e223a22676f6c64227d2c22696e70757473223a7b2270656e64696e67223a312c2273696e63655f7573223a313739343936353834313532383934387d2c2274696d657273223a7b226e6170223a7b2261745f7573223a313839333435363030303030303030302c226b696e64223a2277616b65222c22736571223a347d7d7d2c227465787473223a7b7d7d', 866045405, 1);


--
-- Data for Name: tombstones; Type: TABLE DATA; Schema: limpet; Owner: -
--

INSERT INTO limpet.tombstones VALUES (5, 'shop', 'eve', 'gone', '01a1ec4d-2807-7000-9f44-cfea8b4776a0', 1, '\xc6a7484968a8635caeaaa9369f1e326bf711630b0590dd2af4e3cf2ec9a82923', 1794965841937022, 1794965841937022, 1794965841937022, 0, NULL, 1794965842324501, 'deleted', 947907992);


--
-- Name: blobs_bid_seq; Type: SEQUENCE SET; Schema: limpet; Owner: -
--

SELECT pg_catalog.setval('limpet.blobs_bid_seq', 1, true);


--
-- Name: sessions_sid_seq; Type: SEQUENCE SET; Schema: limpet; Owner: -
--

SELECT pg_catalog.setval('limpet.sessions_sid_seq', 6, true);


--
-- Name: bases bases_pkey; Type: CONSTRAINT; Schema: limpet; Owner: -
--

ALTER TABLE ONLY limpet.bases
    ADD CONSTRAINT bases_pkey PRIMARY KEY (sid);


--
-- Name: blob_chunks blob_chunks_pkey; Type: CONSTRAINT; Schema: limpet; Owner: -
--

ALTER TABLE ONLY limpet.blob_chunks
    ADD CONSTRAINT blob_chunks_pkey PRIMARY KEY (bid, number);


--
-- Name: blobs blobs_pkey; Type: CONSTRAINT; Schema: limpet; Owner: -
--

ALTER TABLE ONLY limpet.blobs
    ADD CONSTRAINT blobs_pkey PRIMARY KEY (bid);


--
-- Name: erased erased_pkey; Type: CONSTRAINT; Schema: limpet; Owner: -
--

ALTER TABLE ONLY limpet.erased
    ADD CONSTRAINT erased_pkey PRIMARY KEY (key_hash);


--
-- Name: labels labels_pkey; Type: CONSTRAINT; Schema: limpet; Owner: -
--

ALTER TABLE ONLY limpet.labels
    ADD CONSTRAINT labels_pkey PRIMARY KEY (app, name, value, created_us, sid);


--
-- Name: marks marks_pkey; Type: CONSTRAINT; Schema: limpet; Owner: -
--

ALTER TABLE ONLY limpet.marks
    ADD CONSTRAINT marks_pkey PRIMARY KEY (space, name);


--
-- Name: meta meta_pkey; Type: CONSTRAINT; Schema: limpet; Owner: -
--

ALTER TABLE ONLY limpet.meta
    ADD CONSTRAINT meta_pkey PRIMARY KEY (name);


--
-- Name: scope_owners scope_owners_pkey; Type: CONSTRAINT; Schema: limpet; Owner: -
--

ALTER TABLE ONLY limpet.scope_owners
    ADD CONSTRAINT scope_owners_pkey PRIMARY KEY (app, owner);


--
-- Name: scopes scopes_pkey; Type: CONSTRAINT; Schema: limpet; Owner: -
--

ALTER TABLE ONLY limpet.scopes
    ADD CONSTRAINT scopes_pkey PRIMARY KEY (app, owner, name, version);


--
-- Name: segment_ids segment_ids_pkey; Type: CONSTRAINT; Schema: limpet; Owner: -
--

ALTER TABLE ONLY limpet.segment_ids
    ADD CONSTRAINT segment_ids_pkey PRIMARY KEY (sid, mark, seq);


--
-- Name: segments segments_pkey; Type: CONSTRAINT; Schema: limpet; Owner: -
--

ALTER TABLE ONLY limpet.segments
    ADD CONSTRAINT segments_pkey PRIMARY KEY (sid, first);


--
-- Name: sessions sessions_app_owner_id_key; Type: CONSTRAINT; Schema: limpet; Owner: -
--

ALTER TABLE ONLY limpet.sessions
    ADD CONSTRAINT sessions_app_owner_id_key UNIQUE (app, owner, id);


--
-- Name: sessions sessions_pkey; Type: CONSTRAINT; Schema: limpet; Owner: -
--

ALTER TABLE ONLY limpet.sessions
    ADD CONSTRAINT sessions_pkey PRIMARY KEY (sid);


--
-- Name: snapshots snapshots_pkey; Type: CONSTRAINT; Schema: limpet; Owner: -
--

ALTER TABLE ONLY limpet.snapshots
    ADD CONSTRAINT snapshots_pkey PRIMARY KEY (sid, seq);


--
-- Name: tombstones tombstones_pkey; Type: CONSTRAINT; Schema: limpet; Owner: -
--

ALTER TABLE ONLY limpet.tombstones
    ADD CONSTRAINT tombstones_pkey PRIMARY KEY (sid);


--
-- Name: blobs_by_hash; Type: INDEX; Schema: limpet; Owner: -
--

CREATE UNIQUE INDEX blobs_by_hash ON limpet.blobs USING btree (sid, hash);


--
-- Name: blobs_by_touched; Type: INDEX; Schema: limpet; Owner: -
--

CREATE INDEX blobs_by_touched ON limpet.blobs USING btree (touched_us) WHERE (hash IS NULL);


--
-- Name: blobs_by_upload; Type: INDEX; Schema: limpet; Owner: -
--

CREATE INDEX blobs_by_upload ON limpet.blobs USING btree (upload) WHERE (hash IS NULL);


--
-- Name: events_by_id; Type: INDEX; Schema: limpet; Owner: -
--

CREATE UNIQUE INDEX events_by_id ON limpet.events USING btree (id, sid);


--
-- Name: events_by_seq; Type: INDEX; Schema: limpet; Owner: -
--

CREATE UNIQUE INDEX events_by_seq ON limpet.events USING btree (sid, seq) INCLUDE (type);


--
-- Name: events_feed; Type: INDEX; Schema: limpet; Owner: -
--

CREATE UNIQUE INDEX events_feed ON limpet.events USING btree (xid, pos);


--
-- Name: events_pending; Type: INDEX; Schema: limpet; Owner: -
--

CREATE INDEX events_pending ON limpet.events USING btree (sid, seq) WHERE (processed = 0);


--
-- Name: labels_by_owner; Type: INDEX; Schema: limpet; Owner: -
--

CREATE INDEX labels_by_owner ON limpet.labels USING btree (app, owner, name, value, created_us, sid);


--
-- Name: labels_by_session; Type: INDEX; Schema: limpet; Owner: -
--

CREATE INDEX labels_by_session ON limpet.labels USING btree (sid);


--
-- Name: marks_by_until; Type: INDEX; Schema: limpet; Owner: -
--

CREATE INDEX marks_by_until ON limpet.marks USING btree (until_us);


--
-- Name: sessions_by_app_created; Type: INDEX; Schema: limpet; Owner: -
--

CREATE INDEX sessions_by_app_created ON limpet.sessions USING btree (app, created_us, sid);


--
-- Name: sessions_by_app_due; Type: INDEX; Schema: limpet; Owner: -
--

CREATE INDEX sessions_by_app_due ON limpet.sessions USING btree (app, priority, COALESCE(lease_us, due_us), sid) WHERE (COALESCE(lease_us, due_us) IS NOT NULL);


--
-- Name: sessions_by_app_slot; Type: INDEX; Schema: limpet; Owner: -
--

CREATE INDEX sessions_by_app_slot ON limpet.sessions USING btree (app, slot, sid);


--
-- Name: sessions_by_created; Type: INDEX; Schema: limpet; Owner: -
--

CREATE INDEX sessions_by_created ON limpet.sessions USING btree (created_us, sid);


--
-- Name: sessions_by_deadline; Type: INDEX; Schema: limpet; Owner: -
--

CREATE INDEX sessions_by_deadline ON limpet.sessions USING btree (deadline_us) WHERE (deadline_us IS NOT NULL);


--
-- Name: sessions_by_due; Type: INDEX; Schema: limpet; Owner: -
--

CREATE INDEX sessions_by_due ON limpet.sessions USING btree (priority, COALESCE(lease_us, due_us), sid) WHERE (COALESCE(lease_us, due_us) IS NOT NULL);


--
-- Name: sessions_by_leased; Type: INDEX; Schema: limpet; Owner: -
--

CREATE INDEX sessions_by_leased ON limpet.sessions USING btree (leased_us) WHERE (lease_us IS NOT NULL);


--
-- Name: sessions_by_owner_created; Type: INDEX; Schema: limpet; Owner: -
--

CREATE INDEX sessions_by_owner_created ON limpet.sessions USING btree (app, owner, created_us, sid);


--
-- Name: sessions_by_owner_slot; Type: INDEX; Schema: limpet; Owner: -
--

CREATE INDEX sessions_by_owner_slot ON limpet.sessions USING btree (app, owner, slot, sid);


--
-- Name: sessions_by_parent; Type: INDEX; Schema: limpet; Owner: -
--

CREATE INDEX sessions_by_parent ON limpet.sessions USING btree (parent, floor) WHERE (parent IS NOT NULL);


--
-- Name: sessions_by_standing; Type: INDEX; Schema: limpet; Owner: -
--

CREATE INDEX sessions_by_standing ON limpet.sessions USING btree (app, standing, sid) WHERE (standing IS NOT NULL);


--
-- Name: sessions_by_uid; Type: INDEX; Schema: limpet; Owner: -
--

CREATE INDEX sessions_by_uid ON limpet.sessions USING btree (uid);


--
-- Name: tombstones_by_key; Type: INDEX; Schema: limpet; Owner: -
--

CREATE INDEX tombstones_by_key ON limpet.tombstones USING btree (app, owner, id, sid);


--
-- Name: tombstones_by_parent; Type: INDEX; Schema: limpet; Owner: -
--

CREATE INDEX tombstones_by_parent ON limpet.tombstones USING btree (parent, floor) WHERE (parent IS NOT NULL);


--
-- Name: tombstones_by_uid; Type: INDEX; Schema: limpet; Owner: -
--

CREATE INDEX tombstones_by_uid ON limpet.tombstones USING btree (uid);


--
-- PostgreSQL database dump complete
--


