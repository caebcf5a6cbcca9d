"""The door to a store: opening it, and closing it again."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from limpet.errors import FlushFailed, InvalidInput, StoreClosed
from limpet.model.ids import Ids
from limpet.session.following.follow import Hub
from limpet.session.history.checkpoints import StoreCheckpoints
from limpet.session.journal import Journal
from limpet.store.answers import Checked
from limpet.store.open import open_store
from limpet.store.protocol import Seal, Store

if TYPE_CHECKING:
    from limpet.session.life.archives import Archive

Self = TypeVar("Self", bound="Door")


class Door:
    """A store that is open between entering and leaving an `async with` block."""

    def __init__(
        self,
        url: str,
        *,
        seal: Seal | None = None,
        connections: int | None = None,
        store: Store | None = None,
        archive: str | Archive | None = None,
        check: Checked | None = None,
    ) -> None:
        if store is not None and seal is not None:
            raise InvalidInput("a store that is open has its own seal. Pass the seal to it.")
        self.url = url
        self._how: Any = {"seal": seal, "connections": connections, "check": check}
        self._ready = store  # opened by the caller, and ours to close
        self._archive = _opened_archive(archive)
        self._opened: Journal | None = None

    def __repr__(self) -> str:
        """With its URL, unless a password may be in it."""
        from urllib.parse import unquote

        url = str(self.url)
        plain = unquote(url)  # a URL within it is encoded
        shown = f"{url.partition('://')[0]}://…" if "@" in plain or "password" in plain else url
        return f"<limpet.{type(self).__name__} {shown}>"

    def __await__(self: Self) -> Generator[Any, None, Self]:
        """`lp = await limpet.open(url)`, for those who close it themselves."""
        return self.__aenter__().__await__()

    async def __aenter__(self: Self) -> Self:
        if self._opened is not None:
            raise StoreClosed
        store, self._ready = self._ready, None
        if store is None:
            store = await open_store(self.url, **self._how)
        ids = Ids(time.time_ns, os.urandom)
        self._opened = Journal(store, Hub(store), ids, store.now_us, StoreCheckpoints)
        self._opened.archive = self._archive
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except FlushFailed as failed:
            if error is None:
                raise
            error.add_note(str(failed))  # what the block raised comes first

    async def close(self) -> None:
        """Finish what was handed over and let go of the store. Closing twice is fine.

        What append_soon has queued is flushed first. Raises FlushFailed if some of it could not be
        recorded; Limpet is closed all the same.
        """
        if self._opened is not None:
            await self._opened.close()
        elif self._ready is not None:
            await self._ready.close()

    @property
    def _journal(self) -> Journal:
        """The one way to write. Raises StoreClosed."""
        if self._opened is None:
            raise StoreClosed
        self._opened.check_open()
        return self._opened


def _opened_archive(archive: str | Archive | None) -> Archive | None:
    if not isinstance(archive, str):
        return archive
    from limpet.session.life.archives import open_archive  # most stores have none

    return open_archive(archive)
