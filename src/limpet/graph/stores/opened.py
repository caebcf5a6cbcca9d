"""Where stores and checkpointers get their Limpet from: one they were given, or one they open.

A store that is made from a path or a DSN opens its database at its first use, so it can be made at
import time, outside any event loop. Stores of one URL share one Limpet: a checkpointer and a
session store on the same file can then write in one commit.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote
from weakref import WeakSet, WeakValueDictionary

from limpet.errors import InvalidInput, InvalidURL
from limpet.model import described
from limpet.session.limpet import Limpet


class Source(Protocol):
    """What gives a store its Limpet."""

    async def limpet(self) -> Limpet:
        """The open Limpet. Raises StoreError if it cannot be opened."""
        ...

    def current(self) -> Limpet | None:
        """The Limpet, if it is open for this process and event loop."""
        ...

    async def close(self, user: object) -> None:
        """`user` needs it no more."""
        ...


class Opened:
    """A Limpet that the caller opened, and closes."""

    def __init__(self, lp: Limpet) -> None:
        if not isinstance(lp, Limpet):
            raise InvalidInput(f"{described(lp)} is not an open Limpet. Pass limpet.open(url).")
        self.lp = lp

    async def limpet(self) -> Limpet:
        """The Limpet that was given."""
        return self.lp

    def current(self) -> Limpet | None:
        """The Limpet that was given."""
        return self.lp

    async def close(self, user: object) -> None:
        """Nothing to do: the caller closes it."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opened) and other.lp is self.lp

    def __hash__(self) -> int:
        return id(self.lp)


class Shared:
    """A Limpet that is opened at its first use, and closed by the last of its users.

    A use after that opens it again. A connection to a server belongs to an event loop, so another
    loop opens its own; so does a forked process.
    """

    def __init__(self, url: str) -> None:
        self.url, self._on_server = url, not url.startswith(("sqlite:", "memory:"))
        self._users: WeakSet[object] = WeakSet()
        self._lp: Limpet | None = None
        self._opening: asyncio.Task[Limpet] | None = None
        self._home: tuple[int, asyncio.AbstractEventLoop | None] | None = None

    def use(self, user: object) -> Shared:
        """Count a user, whose `close` is waited for."""
        self._users.add(user)
        return self

    async def limpet(self) -> Limpet:
        """The open Limpet. The first of several callers opens it, the others wait."""
        if (open_now := self.current()) is not None:
            return open_now
        loop, home = asyncio.get_running_loop(), self._here()
        if self._opening is None or self._opening.get_loop() is not loop:
            self._opening = loop.create_task(self._open())
        opening = self._opening
        try:
            lp = await asyncio.shield(opening)  # a cancelled caller must not cancel the others
        finally:
            if self._opening is opening and opening.done():
                self._opening = None
        self._lp, self._home = lp, home
        return lp

    def current(self) -> Limpet | None:
        """The Limpet, if it is open here."""
        return self._lp if self._home == self._here() else None

    async def _open(self) -> Limpet:
        return await Limpet(self.url)

    async def close(self, user: object) -> None:
        """Close the Limpet if nobody else uses it.

        One of a loop that has ended, or of the process that forked this one, cannot be closed from
        here: it is only let go.
        """
        self._users.discard(user)
        if not self._users and self._lp is not None:
            lp, self._lp = self._lp, None
            if self._home == self._here():
                await lp.close()

    def _here(self) -> tuple[int, asyncio.AbstractEventLoop | None]:
        """The process, and the event loop where a connection belongs to one."""
        return (os.getpid(), asyncio.get_running_loop() if self._on_server else None)


_SHARED: Final[WeakValueDictionary[str, Shared]] = WeakValueDictionary()


def shared(url: str, user: object) -> Shared:
    """The Limpet of this URL, which `user` uses from now on."""
    if url == "memory://":  # two stores in memory have nothing in common
        return Shared(url).use(user)
    source = _SHARED.get(url)
    if source is None:
        source = _SHARED[url] = Shared(url)
    return source.use(user)


def sqlite_url(path: str | os.PathLike[str]) -> str:
    """The URL of a SQLite file. `:memory:` is a store that ends with the process."""
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidInput(f"{described(path)} is not the path of a file. Pass a text or a Path.")
    if path == ":memory:":
        return "memory://"
    return f"sqlite:///{quote(str(Path(path).absolute()))}"


def postgres_url(dsn: str) -> str:
    """The URL of a PostgreSQL database, checked for its scheme."""
    if not isinstance(dsn, str) or not dsn.startswith(("postgresql://", "postgres://")):
        raise InvalidURL(str(dsn), "it does not begin with postgresql://")
    return dsn
