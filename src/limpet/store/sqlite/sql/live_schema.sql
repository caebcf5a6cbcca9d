-- The database of the live channel, beside the main one. It is made whole and never migrated: a
-- release that knows another format leaves it alone.
CREATE TABLE ring (
    n INTEGER PRIMARY KEY AUTOINCREMENT,  -- never given twice: a reader goes on from the last it has seen
    at_us INTEGER NOT NULL,
    sender BLOB NOT NULL,
    app TEXT NOT NULL, user TEXT NOT NULL, id TEXT NOT NULL, uid TEXT NOT NULL,
    mark INTEGER NOT NULL,
    event_id TEXT NOT NULL, type TEXT NOT NULL,
    flags INTEGER NOT NULL, body BLOB NOT NULL, crc INTEGER NOT NULL
) STRICT;

CREATE TABLE subscribers (id BLOB PRIMARY KEY, until_us INTEGER NOT NULL) STRICT, WITHOUT ROWID;

PRAGMA user_version = 1;
