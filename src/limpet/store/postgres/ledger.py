"""The ledger in PostgreSQL: rows of `meta`, changed inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping

from limpet.store.ledger import Ledger
from limpet.store.postgres.server.settings import Connection
from limpet.store.postgres.sql import SQL


async def begin(conn: Connection) -> None:
    """Keep a ledger from now on, if there is none. Before a transaction ends its first session."""
    await conn.execute(SQL["begin_ledger"])


async def enter(conn: Connection, sid: int, change: Ledger) -> None:
    """Last in a transaction: who ends another session may wait for this one from here on."""
    await conn.execute(SQL["enter_ledger"], sid, *change)


def read(meta: Mapping[str, bytes]) -> Ledger | None:
    """Read the ledger; None if there is none. Raises ValueError."""
    kept = Ledger()
    for name, value in meta.items():
        if name.startswith("ledger"):
            numbers = [int(number) for number in value.decode().strip("{}").split(",")]
            if len(numbers) != len(kept):
                raise ValueError(name)
            kept = kept.plus(Ledger(*numbers))
    return kept if "ledger" in meta else None


async def count(conn: Connection) -> Ledger:
    """Count what the tables hold."""
    return Ledger(*await conn.fetchrow(SQL["verify_ledger"]))
