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

-- Record a batch: the commits of many callers ("jobs"), each all or nothing, planned by the
-- caller on the versions it knows. First the locks (heads in key order, then scope names), then
-- the look for repeats and for versions that moved, then the writing of what still holds. A job
-- that does not hold is answered with a reason and harms no other; what was planned on top of it
-- does not hold either.
--
--   h_*  the sessions of the batch, each once, in key order; sid NULL: to be created
--   n_*  the scope names of the batch, each once; a name '' stands for all of an owner's: n_base is how
--        many there may be before the batch adds its own
--   v_*  a job leaves a session at this head (the last job that holds wins); NULL: as it was
--   w_*  a job needs a scope name
--   e_*  the events, in order     p_*  inputs processed     s_*  new versions of scope names
--
-- A column that is NULL throughout may come as an empty array: subscripts past its end are NULL.
-- Rows are taken by subscript and not by unnest, which would fill one temporary store a column.
--
-- v_since: the event (by its place) since which inputs are pending; 0 as before, -1 none. They wait from
-- the clock's time on: an event's own time may be later, where the clock was set back.
-- The feed orders events by transaction, so a session's events must not be written by an older
-- transaction than those before them: a head that a younger one has moved is stale to this one,
-- even at the version that was planned on. The next attempt is younger.
--
-- A form from before the first release, whose arguments had other names, is dropped: names cannot be
-- replaced.
DO $$
DECLARE
    form regprocedure;
BEGIN
    FOR form IN SELECT oid FROM pg_proc
                WHERE pronamespace = 'limpet'::regnamespace AND proname = 'commit' AND 'heard' = ANY (proargnames)
    LOOP
        EXECUTE format('DROP FUNCTION %s', form);
    END LOOP;
END $$;
CREATE OR REPLACE FUNCTION limpet.commit(
    h_sid bigint[], h_app text[], h_owner text[], h_id text[], h_uid text[], h_base bigint[], h_link bytea[],
    h_hash bytea[],
    n_app text[], n_owner text[], n_name text[], n_base bigint[],
    jobs integer,
    v_job integer[], v_head integer[], v_fence bigint[], v_labels text[], v_pending integer[], v_since integer[],
    v_timers text[], v_wake bigint[], v_deadline bigint[], v_priority integer[], v_schema text[],
    w_job integer[], w_name integer[],
    e_job integer[], e_head integer[], e_id text[], e_given boolean[], e_type text[], e_actor text[],
    e_cause text[], e_invocation text[], e_correlation text[], e_wake text[], e_flags integer[], e_body bytea[],
    e_crc bigint[], e_salt bytea[], e_digest bytea[], e_header bytea[],
    p_job integer[], p_head integer[], p_seq bigint[], p_event integer[],
    s_job integer[], s_name integer[], s_version bigint[], s_base bigint[], s_form integer[], s_flags integer[],
    s_body bytea[], s_crc bigint[], s_head integer[], s_seq bigint[],
    OUT now_us bigint, OUT listeners boolean, OUT refused text[], OUT sids bigint[], OUT made boolean[],
    OUT fences bigint[], OUT leases bigint[], OUT workers text[], OUT ats bigint[], OUT links bytea[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    heads    integer := cardinality(h_sid);
    stale    boolean[] := array_fill(true, ARRAY[heads]);
    at_seq   bigint[] := h_base;
    at_link  bytea[] := array_fill(NULL::bytea, ARRAY[heads]);
    at_time  bigint[] := array_fill(0::bigint, ARRAY[heads]);
    last     integer[] := array_fill(0, ARRAY[heads]);
    moved    boolean[];
    seqs     bigint[] := array_fill(0::bigint, ARRAY[cardinality(e_job)]);
    doubt    boolean := false;
    mine     xid8 := limpet.stamp(pg_current_xact_id());
    r        record;
    h        integer;
    new_sid  bigint;
BEGIN
    sids := h_sid;
    ats := array_fill(0::bigint, ARRAY[cardinality(e_job)]);
    links := array_fill(NULL::bytea, ARRAY[cardinality(e_job)]);
    refused := array_fill(NULL::text, ARRAY[jobs]);

    -- New sessions first: an insert waits for a rival's insert of the same key, and then sees it.
    IF array_position(h_sid, NULL) IS NOT NULL THEN
        made := array_fill(false, ARRAY[heads]);
        FOR i IN 1 .. heads LOOP
            CONTINUE WHEN h_sid[i] IS NOT NULL;
            INSERT INTO limpet.sessions (app, owner, id, uid, version, link, created_us, updated_us)
            VALUES (h_app[i], h_owner[i], h_id[i], h_uid[i], 0, h_link[i], 0, 0)
            ON CONFLICT (app, owner, id) DO NOTHING RETURNING sid INTO new_sid;
            IF FOUND THEN
                sids[i] := new_sid;
                made[i] := true;
                -- Erased while this was on its way: not made again; the next look says so.
                stale[i] := EXISTS (SELECT FROM limpet.erased WHERE key_hash = h_hash[i]);
                at_link[i] := h_link[i];
            END IF;
        END LOOP;
    END IF;

    FOR r IN SELECT h.i, s.version, s.link, s.updated_us, s.fence, s.lease_us, s.worker, s.deleted_us, s.xid
             FROM generate_subscripts(h_sid, 1) AS h (i) JOIN limpet.sessions s ON s.sid = h_sid[h.i]
             ORDER BY s.app, s.owner, s.id FOR UPDATE OF s
    LOOP
        stale[r.i] := r.version <> h_base[r.i] OR r.deleted_us IS NOT NULL OR r.xid > mine;
        at_link[r.i] := r.link;
        at_time[r.i] := r.updated_us;
        IF r.fence > 0 THEN
            IF fences IS NULL THEN
                fences := array_fill(0::bigint, ARRAY[heads]);
                leases := array_fill(NULL::bigint, ARRAY[heads]);
                workers := array_fill(NULL::text, ARRAY[heads]);
            END IF;
            fences[r.i] := r.fence;
            leases[r.i] := r.lease_us;
            workers[r.i] := r.worker;
        END IF;
    END LOOP;
    doubt := true = ANY (stale);

    IF cardinality(n_name) > 0 THEN
        PERFORM limpet.lock_names(n_app, n_owner, n_name);
        FOR r IN SELECT n.i, coalesce((
                     SELECT s.version FROM limpet.scopes s
                     WHERE s.app = n_app[n.i] AND s.owner = n_owner[n.i] AND s.name = n_name[n.i]
                     ORDER BY s.version DESC LIMIT 1), 0) AS newest
                 FROM generate_subscripts(n_name, 1) AS n (i) WHERE n_name[n.i] <> ''
        LOOP
            moved[r.i] := r.newest <> n_base[r.i];
            doubt := doubt OR moved[r.i];
        END LOOP;
        -- Who adds names holds the lock on their owner's '': all that are there are counted.
        FOR r IN SELECT n.i, (SELECT count(*) FROM limpet.names_of(n_app[n.i], n_owner[n.i]) c WHERE c.form <> 2) AS held
                 FROM generate_subscripts(n_name, 1) AS n (i) WHERE n_name[n.i] = ''
        LOOP
            moved[r.i] := r.held > n_base[r.i];
            doubt := doubt OR moved[r.i];
        END LOOP;
    END IF;

    -- Repeats, now that nobody else can add to these sessions.
    IF true = ANY (e_given) THEN
        FOR r IN SELECT DISTINCT e_job[e.i] AS job FROM generate_subscripts(e_job, 1) AS e (i)
                 JOIN limpet.events x ON x.id = e_id[e.i] AND x.sid = sids[e_head[e.i]]
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

    -- Which jobs hold. One that does not takes with it what was planned on top of it: visits and
    -- needs come in the order of their jobs, so one pass each way over both is enough.
    IF doubt THEN
        FOR u IN 1 .. jobs LOOP
            IF refused[u] IS NULL AND (
                EXISTS (SELECT FROM generate_subscripts(v_job, 1) j WHERE v_job[j] = u AND stale[v_head[j]])
                OR EXISTS (SELECT FROM generate_subscripts(w_job, 1) j WHERE w_job[j] = u AND moved[w_name[j]]))
            THEN
                refused[u] := 'stale';
            END IF;
            CONTINUE WHEN refused[u] IS NULL;
            FOR j IN 1 .. cardinality(v_job) LOOP
                IF v_job[j] = u THEN stale[v_head[j]] := true; END IF;
            END LOOP;
            FOR j IN 1 .. cardinality(w_job) LOOP
                IF w_job[j] = u THEN moved[w_name[j]] := true; END IF;
            END LOOP;
        END LOOP;
    END IF;

    FOR i IN 1 .. cardinality(e_job) LOOP
        CONTINUE WHEN refused[e_job[i]] IS NOT NULL;
        h := e_head[i];
        at_seq[h] := at_seq[h] + 1;
        at_time[h] := greatest(now_us, at_time[h]);  -- never backwards within a session
        at_link[h] := sha256(at_link[h] || int8send(at_seq[h]) || int8send(at_time[h]) || e_header[i] || e_digest[i]);
        seqs[i] := at_seq[h];
        ats[i] := at_time[h];
        links[i] := at_link[h];
    END LOOP;

    INSERT INTO limpet.events (sid, seq, id, type, actor, at_us, cause, invocation_id, correlation_id, wake_id,
                                 flags, body, crc, salt, digest, link, xid)
    SELECT sids[e_head[i]], seqs[i], e_id[i], e_type[i], e_actor[i], ats[i], e_cause[i], e_invocation[i],
           e_correlation[i], e_wake[i], e_flags[i], e_body[i], e_crc[i], e_salt[i], e_digest[i], links[i], mine
    FROM generate_subscripts(e_job, 1) i WHERE links[i] IS NOT NULL;

    IF cardinality(p_job) > 0 THEN
        UPDATE limpet.events x SET processed_us = ats[p_event[i]]
        FROM generate_subscripts(p_job, 1) i
        WHERE refused[p_job[i]] IS NULL AND x.sid = sids[p_head[i]] AND x.seq = p_seq[i];
    END IF;

    IF cardinality(s_job) > 0 THEN
        INSERT INTO limpet.scopes (app, owner, name, version, base, form, flags, body, crc, uid, seq)
        SELECT n_app[s_name[i]], n_owner[s_name[i]], n_name[s_name[i]], s_version[i], s_base[i], s_form[i],
               s_flags[i], s_body[i], s_crc[i], h_uid[s_head[i]], s_seq[i]
        FROM generate_subscripts(s_job, 1) i WHERE refused[s_job[i]] IS NULL;
    END IF;

    FOR j IN 1 .. cardinality(v_job) LOOP
        IF refused[v_job[j]] IS NULL THEN last[v_head[j]] := j; END IF;
    END LOOP;
    UPDATE limpet.sessions s SET
        version = at_seq[v.h], link = at_link[v.h], updated_us = at_time[v.h], xid = mine,
        created_us = CASE WHEN made[v.h] THEN at_time[v.h] ELSE s.created_us END,
        labels = coalesce(v_labels[v.j]::jsonb, s.labels),
        priority = coalesce(v_priority[v.j], s.priority),
        schema_version = coalesce(v_schema[v.j], s.schema_version),
        pending = coalesce(v_pending[v.j], s.pending),
        pending_us = CASE WHEN v.since > 0 OR (v.since = 0 AND s.pending_us > now_us) THEN now_us
                     WHEN v.since = 0 THEN s.pending_us END,
        timers = coalesce(v_timers[v.j]::jsonb, s.timers),
        wake_us = CASE WHEN v.retimed THEN v_wake[v.j] ELSE s.wake_us END,
        deadline_us = CASE WHEN v.retimed THEN v_deadline[v.j] ELSE s.deadline_us END,
        runnable_us = coalesce(s.lease_us, least(
            CASE WHEN v.since > 0 OR (v.since = 0 AND s.pending_us > now_us) THEN now_us
                     WHEN v.since = 0 THEN s.pending_us END,
            CASE WHEN v.retimed THEN v_wake[v.j] ELSE s.wake_us END))
    FROM (SELECT l.h, last[l.h] AS j, sids[l.h] AS sid, coalesce(v_since[last[l.h]], 0) AS since,
                 v_timers[last[l.h]] IS NOT NULL AS retimed
          FROM generate_subscripts(last, 1) AS l (h) WHERE last[l.h] > 0) v
    WHERE s.sid = v.sid;

    IF cardinality(v_labels) > 0 THEN
        DELETE FROM limpet.labels l USING generate_subscripts(v_labels, 1) j
        WHERE v_labels[j] IS NOT NULL AND l.sid = sids[v_head[j]];
        INSERT INTO limpet.labels (app, name, value, created_us, sid, owner)
        SELECT s.app, l.key, l.value, s.created_us, s.sid, s.owner
        FROM limpet.sessions s, jsonb_each_text(s.labels) l
        WHERE s.deleted_us IS NULL AND s.sid IN (
            SELECT sids[v_head[j]] FROM generate_subscripts(v_labels, 1) j WHERE v_labels[j] IS NOT NULL);
    END IF;

    -- A head that was made for a job that did not hold was never there.
    IF made IS NOT NULL THEN
        DELETE FROM limpet.sessions s USING generate_subscripts(sids, 1) i
        WHERE made[i] AND s.sid = sids[i] AND s.version = 0;
    END IF;

    IF NOT doubt THEN
        refused := NULL;
    END IF;
    -- Every listener shares this lock for as long as it listens: taken alone, nobody does.
    listeners := NOT pg_try_advisory_xact_lock(limpet.listening());
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

-- The ledger of ended sessions, in rows of meta: the number of tombstones and the sum of their
-- checksums, the same of erased sessions. A row `ledger` is what there was when it was begun; changes
-- are added to one of eight more, so that few who end sessions at once wait for each other.
CREATE OR REPLACE FUNCTION limpet.begin_ledger() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM limpet.meta WHERE name = 'ledger') THEN RETURN; END IF;
    PERFORM pg_advisory_xact_lock(5210131961453309285);  -- one counts, and the others find it done
    INSERT INTO limpet.meta
    SELECT 'ledger', convert_to(ARRAY[t.number, t.total, e.number, e.total]::bigint[]::text, 'UTF8')
    FROM (SELECT count(*) AS number, coalesce(sum(tomb_crc), 0) AS total
          FROM limpet.sessions WHERE deleted_us IS NOT NULL) t,
         (SELECT count(*) AS number, coalesce(sum(crc), 0) AS total FROM limpet.erased) e
    ON CONFLICT DO NOTHING;
END $$;

CREATE OR REPLACE FUNCTION limpet.enter(sid bigint, change bigint[]) RETURNS void LANGUAGE sql AS $$
    INSERT INTO limpet.meta AS m VALUES ('ledger' || (sid & 7), convert_to(change::text, 'UTF8'))
    ON CONFLICT (name) DO UPDATE SET value = convert_to((
        SELECT array_agg(kept + change[place] ORDER BY place)
        FROM unnest(convert_from(m.value, 'UTF8')::bigint[]) WITH ORDINALITY AS k (kept, place))::text, 'UTF8')
$$;

-- Lease sessions that are due, the highest priority first, then the longest due. Locks without
-- waiting and looks at each row again under its lock, so no session is given to two workers. The
-- statements are planned for the app or for all, each on an index of its own.
--
-- Dropped first, because what a function returns cannot be replaced; what it returned before is still
-- among it. The lease tells when it was given and what the session was due for.
DROP FUNCTION IF EXISTS limpet.claim(text, integer, bigint, text);
CREATE FUNCTION limpet.claim(of_worker text, most integer, span_us bigint, of_app text)
RETURNS TABLE (app text, owner text, id text, fence bigint, until_us bigint, claimed_us bigint, timers text,
               pending integer, pending_us bigint)
LANGUAGE plpgsql AS $$
DECLARE
    now_us bigint := limpet.now_us();
    in_app text := CASE WHEN of_app IS NULL THEN '' ELSE 'AND s.app = $1' END;
    level  integer := 2147483647;
    got    bigint;
BEGIN
    WHILE most > 0 LOOP
        EXECUTE format('SELECT s.priority FROM limpet.sessions s WHERE s.runnable_us IS NOT NULL
                        AND s.priority < $2 %s ORDER BY s.priority DESC LIMIT 1', in_app)
            INTO level USING of_app, level;
        EXIT WHEN level IS NULL;
        RETURN QUERY EXECUTE format(
            'WITH due AS (
                 SELECT s.sid, s.runnable_us FROM limpet.sessions s
                 WHERE s.priority = $2 AND s.runnable_us <= $3 %s
                 ORDER BY s.runnable_us, s.sid LIMIT $4 FOR UPDATE SKIP LOCKED),
             leased AS (
                 UPDATE limpet.sessions s
                 SET fence = s.fence + 1, lease_us = $5, runnable_us = $5, worker = $6
                 FROM due WHERE s.sid = due.sid
                 RETURNING s.app, s.owner, s.id, s.fence, s.lease_us, s.timers, s.pending, s.pending_us,
                           due.runnable_us, s.sid)
             SELECT l.app, l.owner, l.id, l.fence, l.lease_us, $3, l.timers::text, l.pending, l.pending_us
             FROM leased l ORDER BY l.runnable_us, l.sid', in_app)
            USING of_app, level, now_us, most, now_us + span_us, of_worker;
        GET DIAGNOSTICS got = ROW_COUNT;
        most := most - got;
    END LOOP;
END $$;
