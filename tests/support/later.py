"""A later release's schema, for tests of the way there: one more numbered file after ours.

Run as a program it is such a release that dies while it migrates a file: in the transaction, after
its statements and before the commit.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Final

import apsw
import pytest

from limpet.store.sqlite import doctor, verify
from limpet.store.sqlite.file import backup, connect, schema
from limpet.store.sqlite.file.schema import SCHEMA

LATER: Final = SCHEMA + 1
_SQL: Final = """
CREATE TABLE moods (sid INTEGER PRIMARY KEY, mood TEXT NOT NULL) STRICT;
INSERT INTO moods SELECT sid, 'calm ' || version FROM sessions;
CREATE INDEX moods_by_mood ON moods (mood);
"""
_MODULES: Final = (schema, connect, backup, verify, doctor)


def release(patch: pytest.MonkeyPatch, sql: str = _SQL) -> None:
    """From now on this process is the later release."""
    patch.setattr(schema, "SCRIPTS", {**schema.SCRIPTS, f"{LATER:04}": sql})
    for module in _MODULES:
        patch.setattr(module, "SCHEMA", LATER)
    verify._definitions.cache_clear()
    patch.setattr(verify, "_definitions", verify._definitions.__wrapped__)


def of(path: Path) -> int:
    """The number in a file."""
    conn = apsw.Connection(str(path))
    try:
        return int(conn.pragma("user_version"))
    finally:
        conn.close()


def moods(path: Path) -> list[str] | None:
    """What the later schema adds; None if it is not there."""
    conn = apsw.Connection(str(path))
    try:
        if not conn.execute("SELECT 1 FROM sqlite_schema WHERE name = 'moods'").fetchall():
            return None
        return [str(mood) for (mood,) in conn.execute("SELECT mood FROM moods ORDER BY sid")]
    finally:
        conn.close()


def _die(path: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        release(patch)
        patch.setattr(schema.ledger, "begin", lambda _: os.kill(os.getpid(), signal.SIGKILL))
        connect.Database(Path(path), sync="full", vfs=None).prepare()


if __name__ == "__main__":
    _die(sys.argv[1])
