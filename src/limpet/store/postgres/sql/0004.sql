-- Schema 4: checksums of what has no log to be held against. NULL: from before.

ALTER TABLE limpet.sessions ADD COLUMN tomb_crc bigint;
ALTER TABLE limpet.erased ADD COLUMN crc bigint;

-- A transaction's place in the feed is its number and an offset, which is raised when numbers begin
-- anew: on another server, after the server was put back in time, or when a standby took its place.
DO $$ BEGIN
    EXECUTE format('CREATE OR REPLACE FUNCTION limpet.epoch() RETURNS bigint LANGUAGE sql IMMUTABLE '
                   'AS ''SELECT %s::bigint''', limpet.epoch() << 48);
END $$;
CREATE OR REPLACE FUNCTION limpet.stamp(of xid8) RETURNS xid8
LANGUAGE sql STABLE AS $$ SELECT (limpet.epoch() + of::text::bigint)::text::xid8 $$;
