"""Retrieval: evidence that a context held, served from a cache by its age or retrieved again."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, TypeAlias

import msgspec

from limpet.errors import LimpetError
from limpet.model import Key, canonical
from limpet.session.documents import Internal
from limpet.session.journal import Journal
from limpet.session.life.policy import call_function

Retrieve: TypeAlias = Callable[[Any], "Any | Awaitable[Any]"]
COLLECTION: Final = "retrieval"
_ACTOR: Final = "system:retrieval"
_AT_ONCE: Final = 8


class Evidence(msgspec.Struct, frozen=True):
    """What a query gives: fresh, from the cache, or stale because it could not be retrieved."""

    query: Any
    value: Any
    source: str  # retrieved | cached | stale


class _Cached(msgspec.Struct, frozen=True):
    """What is kept of a query, and until when."""

    query: Any
    value: Any
    at_us: int
    until_us: float = math.inf


class Retrieval:
    """The queries of one session."""

    def __init__(
        self,
        journal: Journal,
        key: Key,
        retrieve: Retrieve | None,
        *,
        fresh_seconds: float,
        deadline_seconds: float,
        cache_seconds: float,
    ) -> None:
        self._journal, self._retrieve = journal, retrieve
        self._cache = Internal(journal, COLLECTION, owner=(key.app, key.user))
        self._fresh_us = round(fresh_seconds * 1_000_000)
        self._cache_us = round(cache_seconds * 1_000_000)
        self._deadline_seconds = deadline_seconds
        self.warnings: list[str] = []

    async def all(self, queries: Sequence[Any]) -> dict[str, Evidence]:
        """The evidence of every query, by its id. What cannot be had is a warning."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def one(query: Any) -> Evidence | None:
            async with room:
                return await self._one(query)

        found = await asyncio.gather(*[one(query) for query in queries])
        return {id_of(e.query): e for e in found if e is not None}

    async def _one(self, query: Any) -> Evidence | None:
        name = sha256(canonical(query)).hexdigest()
        cached = await self._cached(name)
        if cached is not None and self._is_fresh(cached):
            return Evidence(query, cached.value, "cached")
        if self._retrieve is not None:
            try:
                async with asyncio.timeout(self._deadline_seconds):
                    value = await call_function(self._retrieve, query)
                await self._cache.put(name, self._kept(query, value), actor=_ACTOR)
            except LimpetError:
                raise
            except Exception as error:
                self.warnings.append(f"retrieval failed: {id_of(query)} ({_reason(error)})")
            else:
                return Evidence(query, value, "retrieved")
        if cached is None:
            self.warnings.append(f"no evidence: {id_of(query)}")
            return None
        self.warnings.append(f"stale evidence: {id_of(query)}")
        return Evidence(query, cached.value, "stale")

    async def _cached(self, name: str) -> _Cached | None:
        """What is kept of a query; it is removed once its time is over."""
        found = await self._cache.find(name)
        read = None if found is None else self._cache.decoded(found, _Cached)
        if read is not None and self._journal.now_us() >= read.until_us:
            await self._cache.purge(name)
            return None
        return read

    def _is_fresh(self, cached: _Cached) -> bool:
        return self._journal.now_us() - cached.at_us < self._fresh_us

    def _kept(self, query: Any, value: Any) -> dict[str, Any]:
        now_us = self._journal.now_us()
        kept = {"query": query, "value": value, "at_us": now_us}
        return {**kept, "until_us": now_us + self._cache_us}


def id_of(query: Any) -> str:
    """What a query is called: its own id, or its text."""
    if isinstance(query, Mapping):
        return str(
            query.get("id") or query.get("query") or sha256(canonical(query)).hexdigest()[:12]
        )
    return str(query)


def _reason(error: Exception) -> str:
    return "too slow" if isinstance(error, TimeoutError) else type(error).__name__
