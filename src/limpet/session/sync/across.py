"""A store that adopts sessions on its own loop, for a copy that runs on another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from limpet.model import Commit, Key, ScopeValue
from limpet.session.limpet import Limpet, journal_of
from limpet.session.move.adopter import Adopter, Newest
from limpet.session.sync.loop import Loop
from limpet.store.blobs import Blob
from limpet.store.protocol import Committed, Owner


class Across(Adopter):
    """An Adopter whose every call is handed to the loop of its store."""

    def __init__(self, of: Limpet, loop: Loop) -> None:
        super().__init__(journal_of(of))
        self.of, self._loop = of, loop

    async def is_empty(self) -> bool:
        return await self._loop.await_(super().is_empty())

    async def newest(self, key: Key) -> Newest:
        return await self._loop.await_(super().newest(key))

    async def check_prefix(self, key: Key, seq: int, link: bytes) -> None:
        await self._loop.await_(super().check_prefix(key, seq, link))

    async def commit(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        return await self._loop.await_(super().commit(commits))

    async def names_of(self, app: str, user: str) -> Mapping[str, ScopeValue]:
        return await self._loop.await_(super().names_of(app, user))

    async def has_blob(self, key: Key, hash: str) -> bool:
        return await self._loop.await_(super().has_blob(key, hash))

    async def put_chunk(self, key: Key, upload: str, blob: Blob, number: int, data: bytes) -> str:
        return await self._loop.await_(super().put_chunk(key, upload, blob, number, data))

    async def write_names(self, owner: Owner, values: Mapping[str, Any]) -> None:
        await self._loop.await_(super().write_names(owner, values))
