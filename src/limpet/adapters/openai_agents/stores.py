"""Which store a session is in: sessions of one URL share it, in the whole process.

A program makes a LimpetSession for each conversation, often for each request. They must not each
open the database: one writer gathers what all of them add.
"""

from __future__ import annotations

import threading
from typing import Final
from weakref import WeakSet

from limpet import Limpet, SharedLimpet

_opening: Final = threading.Lock()
_opened: Final[dict[str, tuple[SharedLimpet, WeakSet[object]]]] = {}


def store_for(user: object, store: str | Limpet) -> SharedLimpet:
    """The store that a URL or an open Limpet names. A store in memory is its user's alone."""
    if not isinstance(store, str) or store.startswith("memory:"):
        return SharedLimpet(store)
    with _opening:
        shared, users = _opened.setdefault(store, (SharedLimpet(store), WeakSet()))
        users.add(user)
    return shared


async def let_go(user: object, shared: SharedLimpet) -> None:
    """Close the store unless others use it. An open Limpet stays open for its owner."""
    with _opening:
        for url in [url for url, (each, _) in _opened.items() if each is shared]:
            users = _opened[url][1]
            users.discard(user)
            if users:
                return
            del _opened[url]
    await shared.close()
