"""A mirror that is kept up to date: one follower of the feed, for every store.

It looks for new events a few times a second and writes the files of the sessions that have some.
No commit waits for it, and none fails because of it: what it cannot write it tries again, and
`problem` says so. How far it has come is noted, so that the next process goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Final

import msgspec
from msgspec import structs

from limpet.errors import InvalidInput, LimpetError, PositionUnknown, SessionError
from limpet.model import Key, is_reserved
from limpet.model.keys import CHECKPOINTS, owned_by
from limpet.session.loggers import SESSION
from limpet.session.move.mirror import (
    Known,
    Mirrored,
    mirror,
    mirrored_keys,
    remove_mirrored,
    remove_mirrored_user,
)
from limpet.session.services import Services
from limpet.store.coding.seal import Sealing
from limpet.store.protocol import Check, Feed, RingBinding, SingleHeads, Store
from limpet.store.system import in_thread

MARK: Final = Path(".limpet-runtime", "mirror.json")
_POLL_SECONDS: Final = 0.7
_SHARE: Final = 6  # it pauses so many times as long as writing took: a busy store comes first
_PAUSE_SECONDS_MAX: Final = 5.0
_CLOSE_SECONDS_MAX: Final = 10.0
_RETRY_SECONDS: Final = 15.0  # after a failure: a full disk is full for a while


class _MirrorMark(msgspec.Struct, frozen=True):
    """The place up to which a mirror has come: the store, the position in its feed, and the text
    that is another once a session has ended."""

    store: str
    position: str
    ended: str


async def refuse_sealed(store: object) -> None:
    """Raise InvalidInput for a store with keys: its files would be in plain text."""
    sealed = isinstance(store, Sealing) and store.sealer.seals
    if sealed or (isinstance(store, RingBinding) and await store.ring() is not None):
        raise InvalidInput("a sealed store is not mirrored: the files would be in plain text.")


class MirrorFollower:
    """Keeps the files of a directory as the sessions of a store are."""

    def __init__(self, services: Services, directory: Path, mark: Path | None = None) -> None:
        store = services.journal.store
        if not isinstance(store, Feed):
            raise InvalidInput("this store has no feed that a mirror could follow.")
        self._services, self._directory = services, directory
        self._store: Store = store
        self._feed: Feed = store
        self._path = mark or directory / MARK
        self._mark: _MirrorMark | None = None
        self._is_read = False  # the mark
        self._pulse: int | None = None
        self._known: Known = {}
        self._lock = asyncio.Lock()
        self._bell = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.problem = ""  # why files are not up to date

    def start(self) -> None:
        """Follow from now on, in a task."""
        self._task = asyncio.get_running_loop().create_task(self.run())

    async def run(self) -> None:
        """Follow until it is cancelled or closed."""
        while not self._bell.is_set():
            began = monotonic()
            try:
                await self.write()
                seconds = max(
                    _POLL_SECONDS, min(_PAUSE_SECONDS_MAX, _SHARE * (monotonic() - began))
                )
            except (LimpetError, OSError):
                seconds = _RETRY_SECONDS
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._bell.wait(), seconds)

    async def write(self) -> Mirrored:
        """Write what is not up to date. Raises InvalidInput, StoreFull."""
        async with self._lock:
            pulse = self._store.pulse()
            if pulse == self._pulse:
                return Mirrored()
            try:
                written = await self._write()
            except (LimpetError, OSError) as error:
                if not self.problem:
                    SESSION.warning("mirror stopped: error=%s", type(error).__name__)
                self.problem = str(error)
                raise
            self._pulse = pulse
            if self.problem:
                SESSION.info("mirror goes on")
            self.problem = ""
            return written

    async def remove(self, keys: Collection[Key]) -> None:
        """Remove the files of sessions that have ended."""
        async with self._lock:
            for key in keys:
                self._known.pop(key, None)
            await in_thread(lambda: remove_mirrored(self._directory, keys))

    async def remove_user(self, app: str, user: str) -> None:
        """Remove the files of a user's sessions."""
        async with self._lock:
            self._known.clear()
            await in_thread(lambda: remove_mirrored_user(self._directory, app, user))

    def check(self) -> Check:
        """The check that the doctor shows."""
        if not self.problem:
            return Check("mirror", f"the files in {self._directory} follow the store")
        advice = "Make room or name another directory; it is tried again and again meanwhile."
        return Check("mirror", f"stopped: {self.problem}", "problem", advice)

    async def close(self) -> None:
        """Write what is left, if that does not take long, and follow no more. The next process goes
        on from there."""
        self._bell.set()
        task, self._task = self._task, None
        if task is None:
            return
        await asyncio.wait([task], timeout=_CLOSE_SECONDS_MAX)
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
            return
        with suppress(LimpetError, OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self.write(), _CLOSE_SECONDS_MAX)

    # --- private -------------------------------------------------------------------------------

    async def _write(self) -> Mirrored:
        identity = await self._store.identity()
        if not self._is_read:
            self._mark, self._is_read = await in_thread(self._read_mark), True
        mark = self._mark
        if mark is not None and mark.store == identity:
            with suppress(PositionUnknown):  # else the store was put back to an earlier time
                return await self._write_since(mark)
        position = await self._feed.position()
        ended = (await self._feed.touched(position)).ended
        written = await mirror(self._services, self._directory, None, None, self._known)
        await self._remove_gone()
        await self._note(_MirrorMark(identity, position, ended))
        return written

    async def _write_since(self, mark: _MirrorMark) -> Mirrored:
        keys: dict[Key, None] = {}
        position, ended, more = mark.position, mark.ended, True
        while more:
            touched = await self._feed.touched(position)
            for log in touched.sessions:
                key = _shown(log)
                keys[key] = None
                if key != log and (before := self._known.get(key)) is not None:
                    self._known[key] = structs.replace(before, notes=False)
            position, ended, more = touched.position, touched.ended, touched.more
        chosen = tuple([key for key in keys if not is_reserved(key.app)])
        written = Mirrored()
        if chosen:
            written = await mirror(self._services, self._directory, chosen, None, self._known)
        if ended != mark.ended:
            await self._remove_gone()
        if (position, ended) != (mark.position, mark.ended):
            await self._note(_MirrorMark(mark.store, position, ended))
        return written

    async def _remove_gone(self) -> None:
        """Remove the files of sessions that are not there any more."""
        keys = await in_thread(lambda: mirrored_keys(self._directory))
        gone: list[Key] = []
        for key in keys:
            try:
                if isinstance(self._store, SingleHeads):
                    await self._store.head(key)
                else:
                    await self._store.load(key, tail=0, scopes=False)
            except SessionError:
                gone.append(key)
        if gone:
            for key in gone:
                self._known.pop(key, None)
            await in_thread(lambda: remove_mirrored(self._directory, gone))

    def _read_mark(self) -> _MirrorMark | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_MirrorMark)
        except (OSError, msgspec.DecodeError):
            return None

    async def _note(self, mark: _MirrorMark) -> None:
        def write() -> None:
            part = self._path.with_name(f"{self._path.name}.part")
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            part.write_bytes(msgspec.json.encode(mark) + b"\n")
            part.replace(self._path)

        await in_thread(write)
        self._mark = mark


def _shown(key: Key) -> Key:
    """The session whose files change with a log: its checkpoints are shown with it."""
    owner = owned_by(key.user) if key.app == CHECKPOINTS else None
    return key if owner is None else Key(*owner, key.id)
