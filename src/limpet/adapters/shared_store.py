"""The store behind an adapter: a URL, opened once for all objects of this process, or a Limpet.

A program makes an adapter's object for each conversation, often for each request. Those of one URL
share a store, so that one writer gathers what all of them add.
"""

from __future__ import annotations

import threading
from typing import Final
from weakref import WeakSet

from limpet import Limpet, SharedLimpet

_opening: Final = threading.Lock()
_opened: Final[dict[str, tuple[SharedLimpet, WeakSet[object]]]] = {}


def store_for(user: object, store: str | Limpet) -> SharedLimpet:
    """Return the store of a URL or an open Limpet. A store in memory is its user's alone."""
    if not isinstance(store, str) or store.startswith("memory:"):
        return SharedLimpet(store)
    with _opening:
        shared, users = _opened.setdefault(store, (SharedLimpet(store), WeakSet()))
        users.add(user)
    return shared


async def release_store(user: object, shared: SharedLimpet) -> None:
    """Close the store unless others use it. An open Limpet stays open for its owner."""
    with _opening:
        for url in [url for url, (each, _) in _opened.items() if each is shared]:
            users = _opened[url][1]
            users.discard(user)
            if users:
                return
            del _opened[url]
    await shared.close()
