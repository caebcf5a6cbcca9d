"""Helpers for building commits and for reading everything that a store holds."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import pytest

from limpet.errors import LimpetError
from limpet.model import Commit, Draft, Event, Fact, Key, Prepared, prepare
from limpet.model.facts.creation import created
from limpet.model.facts.isolation import Isolation
from limpet.model.keys import Ids
from limpet.store.protocol import Committed, Loaded, Query, Store

ACTOR: Final = "test:contract"
ALL: Final = 1_000
_new_id: Final = Ids(time.time_ns, os.urandom)


def key(id: str = "one", *, app: str = "shop", user: str = "ada") -> Key:
    return Key(app, user, id)


def draft(type: str = "note.made", data: Mapping[str, Any] | None = None, **more: Any) -> Prepared:
    """A prepared draft. Takes the arguments of Draft."""
    return ready(Fact(type=type, data=data or {}, **more))


def ready(made: Draft) -> Prepared:
    """A draft, prepared for a store."""
    return prepare(made, id=_new_id(), actor=ACTOR)


def creation(
    of: Key,
    state: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    isolation: Isolation | None = None,
    **more: Any,
) -> Commit:
    """The commit that creates a session."""
    first = created(of, labels=labels or {}, fields=state or {}, isolation=isolation)
    return Commit(of, (ready(msgspec.structs.replace(first, **more)),), 0)


def addition(
    to: Key,
    *drafts: Prepared,
    expect: int | None = None,
    fence: int | None = None,
    guards: Mapping[str, int] | None = None,
) -> Commit:
    """A commit with these drafts, or with one plain note."""
    return Commit(to, drafts or (draft(),), expect, fence, guards or {})


async def create(store: Store, of: Key, state: Mapping[str, Any] | None = None) -> Committed:
    (committed,) = await store.commit([creation(of, state)])
    return committed


async def add(store: Store, to: Key, *drafts: Prepared, **conditions: Any) -> Committed:
    (committed,) = await store.commit([addition(to, *drafts, **conditions)])
    return committed


async def load(store: Store, of: Key, tail: int = ALL) -> Loaded:
    return await store.load(of, tail=tail)


async def log(store: Store, of: Key) -> tuple[Event, ...]:
    """The events of a session, up to one page."""
    return await store.read(of, after=0, limit=ALL, reverse=False, types=None)


async def picture(store: Store) -> tuple[Loaded, ...]:
    """Everything a store returns about its live sessions, comparable with an earlier picture."""
    page = await store.heads(Query(), cursor=None, limit=ALL)
    return tuple([await load(store, head.key) for head in page.items])


@asynccontextmanager
async def refused(
    store: Store, error: type[LimpetError]
) -> AsyncIterator[pytest.ExceptionInfo[LimpetError]]:
    """The block raises exactly this error, and the store is unchanged."""
    before = await picture(store)
    with pytest.raises(error) as info:
        yield info
    assert info.type is error
    assert await picture(store) == before
