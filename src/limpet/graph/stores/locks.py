"""Locks on session ids: a lease on a small session of its own, renewed while it is held."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

from limpet.errors import SessionLocked
from limpet.graph.stores.leases import Leases
from limpet.graph.stores.opened import Source
from limpet.model import Key

_ACTOR: Final = "system:graph"
_PAUSE_SECONDS: Final = 0.05  # between two looks at a lock that another holds


class Locks:
    """The locks that one store object holds."""

    def __init__(self, source: Source, app: str, user: str, **how: Any) -> None:
        self._source, self._app, self._user = source, app, user
        self._leases = Leases(**how)

    async def acquire(self, id: str) -> None:
        """Wait for the lock of this id and take it."""
        lp, key = await self._source.limpet(), self._key(id)
        await lp.get_or_create(key.app, key.user, key.id, actor=_ACTOR, tail=0)
        worker = f"graph:{uuid4().hex}"  # a name of its own: a second caller here waits as well
        while True:
            with suppress(SessionLocked):
                await self._leases.take(lp, key, worker)
                return
            await asyncio.sleep(_PAUSE_SECONDS)

    async def release(self, id: str) -> None:
        """Release the lock of this id, if this object holds it."""
        await self._leases.release(self._key(id))

    async def release_all(self) -> None:
        """Release everything that this object holds, when it is closed."""
        await self._leases.release_all()

    def _key(self, id: str) -> Key:
        return Key(f"{self._app}.locks", self._user, id)
