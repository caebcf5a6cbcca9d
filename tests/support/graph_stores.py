"""The session stores and checkpointers that a law of graphs is tried on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import limpet
from limpet.graph.checkpoint import InMemoryCheckpointer
from limpet.graph.sessions import InMemorySessionStore
from limpet.graph.stores.checkpoints import (
    LimpetCheckpointer,
    PostgresCheckpointer,
    SQLiteCheckpointer,
)
from limpet.graph.stores.sessions import (
    LimpetSessionStore,
    PostgresSessionStore,
    SQLiteSessionStore,
)

KINDS: Final = ["memory", "limpet-memory", "sqlite", "postgresql"]


class Place(NamedTuple):
    """A kind of store, and where it is."""

    kind: str
    where: str


def place(request: pytest.FixtureRequest) -> Place:
    """The place of a fixture's parameter, empty. A server is started only when one is needed."""
    if request.param == "sqlite":
        path: Path = request.getfixturevalue("tmp_path")
        return Place("sqlite", str(path / "graph.db"))
    if request.param == "postgresql":
        return Place("postgresql", request.getfixturevalue("postgres_store_url"))
    return Place(request.param, "")


@asynccontextmanager
async def session_store(place: Place) -> AsyncIterator[Any]:
    """A session store there."""
    if place.kind == "memory":
        yield InMemorySessionStore()
    elif place.kind == "limpet-memory":
        async with limpet.open("memory://") as lp:
            yield LimpetSessionStore(lp, "support", "ada")
    else:
        kind = SQLiteSessionStore if place.kind == "sqlite" else PostgresSessionStore
        async with kind(place.where) as store:
            yield store


@asynccontextmanager
async def checkpointer(place: Place, **how: Any) -> AsyncIterator[Any]:
    """A checkpointer there."""
    if place.kind == "memory":
        yield InMemoryCheckpointer(**how)
    elif place.kind == "limpet-memory":
        async with limpet.open("memory://") as lp:
            yield LimpetCheckpointer(lp, "support", **how)
    else:
        kind = SQLiteCheckpointer if place.kind == "sqlite" else PostgresCheckpointer
        async with kind(place.where, **how) as made:
            yield made
