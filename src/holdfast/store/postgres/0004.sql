-- Schema 4: checksums of what has no log to be held against. NULL: from before.

ALTER TABLE holdfast.sessions ADD COLUMN tomb_crc bigint;
ALTER TABLE holdfast.erased ADD COLUMN crc bigint;
