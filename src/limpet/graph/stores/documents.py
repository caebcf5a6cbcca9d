"""Record documents: JSON objects under ids, each kept as one session of a Limpet.

A session record and a checkpoint record are both documents. Replacing one writes the difference as
the operations of one event, in one commit, so every document has its history. A write that meets a
faster writer compares again with what that one wrote: the last write wins, and no write is lost.

The Limpet is one that the caller opened, or one that is opened at the first use of a path or DSN,
so a store can be made at import time, outside any event loop. Stores of one URL share one Limpet: a
checkpointer and a session store on the same file can then write in one commit.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias
from urllib.parse import quote
from weakref import WeakSet, WeakValueDictionary

from limpet import facts
from limpet.errors import (
    InvalidInput,
    InvalidURL,
    SessionConflict,
    SessionCorrupt,
    SessionDeleted,
    SessionErased,
    SessionExists,
    SessionNotFound,
)
from limpet.model import DefaultActor, Delete, Head, Key, Lease, PlainOp, Set, described
from limpet.model.diff.diff import diff
from limpet.model.limits import OPS_PER_EVENT_MAX, PAGE_MAX
from limpet.session.commit import CommitBuilder
from limpet.session.journal import Tries
from limpet.session.limpet import Limpet
from limpet.session.session import Session
from limpet.store.protocol import Page

Fields: TypeAlias = Mapping[str, Any]
Labels: TypeAlias = Mapping[str, str | None]
Handle: TypeAlias = Session[Mapping[str, Any]]
SAVED: Final = "graph.saved"
_ACTOR: Final = DefaultActor("system:graph")
_REMEMBERED_MAX: Final = 1_024  # handles, so that a save after a load or a step reads nothing
RACES: Final = (  # another writer was faster: look again
    SessionConflict,
    SessionExists,
    SessionNotFound,
    SessionDeleted,
    SessionErased,
)


class VersionMismatch(Exception):
    """The document is not at the version that the caller expects. Never leaves this package."""

    def __init__(self, actual: int) -> None:
        super().__init__(actual)
        self.actual = actual


class LimpetSource(Protocol):
    """Gives a store its open Limpet."""

    async def limpet(self) -> Limpet:
        """The open Limpet. Raises StoreError if it cannot be opened."""
        ...

    def current(self) -> Limpet | None:
        """The Limpet, if it is open for this process and event loop."""
        ...

    async def close(self, user: object) -> None:
        """`user` needs it no more."""
        ...


class RecordDocuments:
    """The documents of one app and user. No name of a field has a colon: that is another scope."""

    def __init__(self, source: LimpetSource, app: str, user: str) -> None:
        Key(app, user, "id")  # raises InvalidKey
        self.source, self.app, self.user = source, app, user
        self._remembered: OrderedDict[str, Handle] = OrderedDict()
        self._leased: dict[str, Handle] = {}  # what is written through these is under a lease
        self._lp: Limpet | None = None  # whose sessions are remembered

    def key(self, id: str) -> Key:
        """The key of this document's session."""
        return Key(self.app, self.user, id)

    async def limpet(self) -> Limpet:
        """The open Limpet. Sessions of one that was closed since are forgotten."""
        lp = await self.source.limpet()
        if lp is not self._lp:
            self._remembered.clear()
            self._leased.clear()
            self._lp = lp
        return lp

    # --- one document --------------------------------------------------------------------------

    async def find(self, id: str) -> Handle | None:
        """The session of the newest document of this id; None if there is none.

        Raises SessionCorrupt if an event cannot be read: what is left would pass for the whole.
        """
        session = await self._living(await self.limpet(), id)
        if session is not None:
            check_whole(session)
            self.remember(id, session)
        return session

    async def replace(
        self, id: str, fields: Fields, labels: Labels, *, expected: int | None = None
    ) -> int:
        """Make these the document's fields and labels, in one commit. Returns its version.

        With `expected`, raises VersionMismatch unless it is at that version; 0 means that there
        is none.
        """
        lp, session = await self.limpet(), self.remembered(id)
        look = session is not None or expected is not None  # else it is probably a new one
        async for left in Tries():
            if look:
                session = await self.at(id, session, expected)
            try:
                session = await self._write(lp, id, session, fields, labels)
                self.remember(id, session)
                return session.version
            except RACES:
                if not left:
                    raise
                session, look = None, True
        raise AssertionError("the last try returns or raises")

    async def at(self, id: str, session: Handle | None, expected: int | None) -> Handle | None:
        """The session to write to; None if there is none. Raises VersionMismatch if it is not at
        `expected`.

        One that is remembered serves, unless another version is expected.
        """
        if session is not None and expected in (None, session.version):
            return session
        stored = await self._living(await self.limpet(), id)
        version = 0 if stored is None else stored.version
        if expected is not None and version != expected:
            raise VersionMismatch(version)
        return stored

    def put(
        self, c: CommitBuilder, id: str, session: Handle | None, fields: Fields, labels: Labels
    ) -> Handle:
        """Add to a commit what makes these the document's fields, on what `session` knows.

        Without a session it creates one, also under the key of a deleted one.
        """
        if session is None:
            return c.create(
                self.app,
                self.user,
                id,
                state=dict(fields),
                labels=_given_labels(labels),
                actor=_ACTOR,
                untyped=True,
                reuse_deleted=True,
            )
        check_whole(session)
        ops = ops_between(own(session), dict(fields))
        c.append(session, SAVED, ops=ops, expect=session.version)
        if changed := changed_labels(session, labels):
            c.record(session, facts.labeled(changed))
        return session

    def remembered(self, id: str) -> Handle | None:
        """The session that this object wrote or read last under this id, if it still has it."""
        return self._leased.get(id) or self._remembered.get(id)

    def remembered_here(self, id: str) -> Handle | None:
        """Return the remembered session, if its Limpet is the one that is open now."""
        lp = self.source.current()
        return self.remembered(id) if lp is not None and lp is self._lp else None

    async def lease(self, lease: Lease) -> None:
        """Write to this document under the lease from now on: refused once it is not held."""
        lp = await self.limpet()
        session = lp.session(lease.key, actor=_ACTOR, lease=lease, untyped=True)
        await session.refresh(tail=0)
        self._leased[lease.key.id] = session

    def leased(self, id: str) -> Handle | None:
        """The session that is written under a lease, if there is one."""
        return self._leased.get(id)

    def unlease(self, id: str) -> None:
        """Write to it as to any other."""
        if self._leased.pop(id, None) is not None:
            self.forget(id)

    def remember(self, id: str, session: Handle) -> None:
        """Write to this session the next time, without reading it again."""
        self._remembered[id] = session
        self._remembered.move_to_end(id)
        if len(self._remembered) > _REMEMBERED_MAX:
            self._remembered.popitem(last=False)

    def forget(self, id: str) -> None:
        """Read it again the next time."""
        self._remembered.pop(id, None)

    async def delete(self, id: str) -> bool:
        """Delete the document's session. False if there was none."""
        lp = await self.limpet()
        self.forget(id)
        return await lp.delete(self.key(id))

    # --- many of them --------------------------------------------------------------------------

    async def page(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        created_after: datetime | None = None,
        updated_after: datetime | None = None,
        limit: int = PAGE_MAX,
        cursor: str | None = None,
        state: bool = False,
    ) -> Page[Head]:
        """A page of these documents' heads, the oldest first."""
        lp = await self.limpet()
        return await lp.list(
            app=self.app,
            user=self.user,
            labels=labels,
            reverse=False,
            created_after=created_after,
            updated_after=updated_after,
            limit=limit,
            cursor=cursor,
            state=state,
        )

    async def newest(self, limit: int) -> tuple[Head, ...]:
        """The heads of the documents that were saved last, the newest first."""
        lp = await self.limpet()
        page = await lp.list(app=self.app, user=self.user, order="updated", limit=limit)
        return page.items

    async def heads(self, labels: Mapping[str, str]) -> list[Head]:
        """The heads of all documents with these labels."""
        lp = await self.limpet()
        heads = lp.each(app=self.app, user=self.user, labels=labels, reverse=False)
        return [head async for head in heads]

    # --- private -------------------------------------------------------------------------------

    async def _write(
        self, lp: Limpet, id: str, session: Handle | None, fields: Fields, labels: Labels
    ) -> Handle:
        """One commit. A new document needs no commit of several parts, which costs more."""
        if session is None:
            made: Handle = await lp.create(
                self.app,
                self.user,
                id,
                state=dict(fields),
                labels=_given_labels(labels),
                actor=_ACTOR,
                untyped=True,
                reuse_deleted=True,
            )
            return made
        async with lp.commit() as c:
            return self.put(c, id, session, fields, labels)

    async def _living(self, lp: Limpet, id: str) -> Handle | None:
        """The session of this id, if there is one; that which is leased, if it is."""
        if (leased := self._leased.get(id)) is not None:
            with suppress(SessionNotFound, SessionDeleted, SessionErased):
                return await leased.refresh(tail=0)
            return None
        return await lp.find(self.key(id), tail=0, actor=_ACTOR, untyped=True)


def own(session: Handle) -> dict[str, Any]:
    """The session's own fields."""
    return own_fields(session.values)


def own_fields(values: Fields) -> dict[str, Any]:
    """Return the fields without app: and user: names, which other sessions share."""
    return {name: value for name, value in values.items() if ":" not in name}


def check_whole(session: Handle) -> None:
    """Raise SessionCorrupt if an event of the session cannot be read."""
    if session.history.damaged:
        raise SessionCorrupt(session.key, f"event {session.history.damaged[0]} cannot be read")


def changed_labels(session: Handle, labels: Labels) -> dict[str, str | None]:
    """The labels to set or take off, so that the session has these."""
    return {name: text for name, text in labels.items() if session.labels.get(name) != text}


def _given_labels(labels: Labels) -> dict[str, str]:
    return {name: text for name, text in labels.items() if text is not None}


def ops_between(before: Fields, after: Fields) -> tuple[PlainOp, ...]:
    """The operations from one to the other; whole fields, where they would be too many."""
    ops = diff(before, after).ops()
    if len(ops) <= OPS_PER_EVENT_MAX:
        return ops
    gone: list[PlainOp] = [Delete((name,)) for name in before if name not in after]
    changed = {str(op.path[0]) for op in ops}
    return (*gone, *[Set((name,), after[name]) for name in after if name in changed])


class OpenLimpet:
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
        """Do nothing: the caller closes it."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpenLimpet) and other.lp is self.lp

    def __hash__(self) -> int:
        return id(self.lp)


class LazyLimpet:
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

    def use(self, user: object) -> LazyLimpet:
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


_SHARED: Final[WeakValueDictionary[str, LazyLimpet]] = WeakValueDictionary()


def shared(url: str, user: object) -> LazyLimpet:
    """The Limpet of this URL, which `user` uses from now on."""
    if url == "memory://":  # two stores in memory have nothing in common
        return LazyLimpet(url).use(user)
    source = _SHARED.get(url)
    if source is None:
        source = _SHARED[url] = LazyLimpet(url)
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
