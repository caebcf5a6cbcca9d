-- Schema 2. `mac` of a session in a store that has keys: a MAC of its key, version, link and facts by its data key,
-- renewed with every commit. NULL in every other store.

ALTER TABLE sessions ADD COLUMN mac BLOB;
