-- Schema 2: leases and priorities.

ALTER TABLE limpet.sessions ADD COLUMN priority integer NOT NULL DEFAULT 0;
ALTER TABLE limpet.sessions ADD COLUMN lease_us bigint;
ALTER TABLE limpet.sessions ADD COLUMN worker text COLLATE "C";

-- A claim skips from priority to priority, of which there are few, and in each takes the first.
DROP INDEX limpet.sessions_runnable;
CREATE INDEX sessions_by_due ON limpet.sessions (priority, runnable_us, sid) WHERE runnable_us IS NOT NULL;
CREATE INDEX sessions_by_app_due ON limpet.sessions (app, priority, runnable_us, sid) WHERE runnable_us IS NOT NULL;
