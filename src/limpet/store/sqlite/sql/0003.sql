-- Schema 3: the schema version of typed state, folded like the rest of the head.

ALTER TABLE sessions ADD COLUMN schema_version TEXT;
