-- Schema 2. `mac` of a session in a store that has keys: a MAC of its version and link by its data key,
-- renewed with every commit. NULL in every other store.

ALTER TABLE sessions ADD COLUMN mac BLOB;
