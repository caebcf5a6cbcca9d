"""The ledger in a database file: one row of `meta`, changed inside the caller's transaction."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import apsw
import msgspec

from limpet.store.ledger import Ledger
from limpet.store.sqlite.sql import SQL

NAME: Final = "ledger"
UNREADABLE: Final = (msgspec.MsgspecError, TypeError, ValueError)  # what `read` raises on damage
_decode: Final = msgspec.json.Decoder(Ledger).decode


def read(conn: apsw.Connection) -> Ledger | None:
    """Read the ledger; None in a file from before there was one. Raises UNREADABLE."""
    row = conn.execute(SQL["meta"], (NAME,)).fetchone()
    if row is not None and not isinstance(row[0], str):  # one flipped bit makes a blob of a text
        raise TypeError("the ledger is not a text")
    return None if row is None else _decode(row[0])


def count(conn: apsw.Connection) -> Ledger:
    """Count what the tables hold."""
    counts: tuple[Any, ...] = conn.execute(SQL["ledger_counts"]).fetchall()[0]
    return Ledger(*counts)


def begin(conn: apsw.Connection) -> None:
    """Keep a ledger from now on, if there is none."""
    if read(conn) is None:
        _write(conn, count(conn))


def enter(conn: apsw.Connection, change: Ledger) -> None:
    """Called after the tables were changed.

    A ledger that is damaged stays so, for verify to find: it keeps nobody from deleting.
    """
    with suppress(*UNREADABLE):
        kept = read(conn)
        _write(conn, count(conn) if kept is None else kept.plus(change))


def _write(conn: apsw.Connection, ledger: Ledger) -> None:
    value = msgspec.json.encode(ledger).decode()
    conn.execute(SQL["put_meta"], (NAME, value))
