-- Schema 2: leases and priorities. Everything but `fence`, `lease_us`, `worker` and `deleted_us` is
-- folded from the session's events.

ALTER TABLE sessions ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN lease_us INTEGER;
ALTER TABLE sessions ADD COLUMN worker TEXT;

-- A claim skips from priority to priority, of which there are few, and in each takes the first.
DROP INDEX sessions_runnable;
CREATE INDEX sessions_by_due ON sessions (priority, runnable_us, sid) WHERE runnable_us IS NOT NULL;
CREATE INDEX sessions_by_app_due ON sessions (app, priority, runnable_us, sid) WHERE runnable_us IS NOT NULL;
