"""Marks in the database: one row and one call each, by the server's clock."""

from __future__ import annotations

from typing import Any

from limpet.model.limits import MARKS_SWEPT
from limpet.store.marks import Mark
from limpet.store.postgres.server.pool import Pools
from limpet.store.postgres.sql import SQL


class PostgresMarks:
    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    async def once(self, space: str, name: str, until_us: int, value: int = 0) -> bool:
        return bool(await self._write("mark_once", space, name, until_us, value, MARKS_SWEPT))

    async def put(self, space: str, name: str, until_us: int, value: int = 0) -> None:
        await self._write("mark_put", space, name, until_us, value, MARKS_SWEPT)

    async def add(self, space: str, name: str, until_us: int, by: int = 1) -> int:
        return int(await self._write("mark_add", space, name, until_us, by, MARKS_SWEPT))

    async def get(self, space: str, name: str) -> Mark | None:
        found = await self._pools.run(lambda conn: conn.fetchrow(SQL["mark"], space, name))
        return None if found is None else Mark(space, name, *found)

    async def sweep(self, limit: int) -> int:
        return int(await self._write("sweep_marks", limit))

    async def _write(self, statement: str, *args: Any) -> Any:
        """Not repeated if the answer is lost: a nonce would be refused, a counter count twice."""
        return await self._pools.run(
            lambda conn: conn.fetchval(SQL[statement], *args), asked="change", repeatable=False
        )
