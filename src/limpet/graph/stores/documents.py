"""Documents: JSON objects under ids, each kept as one session of a Limpet.

A session record and a checkpoint record are both documents. Replacing one writes the difference as
the operations of one event, in one commit, so every document has its history. A write that meets a
faster writer compares again with what that one wrote: the last write wins, and no write is lost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias

from limpet import facts
from limpet.errors import (
    SessionConflict,
    SessionCorrupt,
    SessionDeleted,
    SessionErased,
    SessionExists,
    SessionNotFound,
)
from limpet.graph.stores.opened import Source
from limpet.model import (
    OPS_PER_EVENT_MAX,
    PAGE_MAX,
    UPDATE_TRIES_MAX,
    Delete,
    Head,
    Key,
    Lease,
    PlainOp,
    Set,
)
from limpet.model.diff.diff import diff
from limpet.session.commit import CommitBuilder
from limpet.session.limpet import Limpet
from limpet.session.session import Session
from limpet.store.protocol import Page

Fields: TypeAlias = Mapping[str, Any]
Labels: TypeAlias = Mapping[str, str | None]
Handle: TypeAlias = Session[Mapping[str, Any]]

SAVED: Final = "graph.saved"
_ACTOR: Final = "system:graph"
_REMEMBERED_MAX: Final = 1_024  # handles, so that a save after a load or a step reads nothing
RACES: Final = (  # another writer was faster: look again
    SessionConflict,
    SessionExists,
    SessionNotFound,
    SessionDeleted,
    SessionErased,
)


class Moved(Exception):
    """The document is not at the version that the caller expects. Never leaves this package."""

    def __init__(self, actual: int) -> None:
        super().__init__(actual)
        self.actual = actual


class Documents:
    """The documents of one app and user. No name of a field has a colon: that is another scope."""

    def __init__(self, source: Source, app: str, user: str) -> None:
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

        With `expected` only if it is at that version, 0 meaning that there is none; else Moved.
        """
        lp, session = await self.limpet(), self.remembered(id)
        look = session is not None or expected is not None  # else it is probably a new one
        for left in reversed(range(UPDATE_TRIES_MAX)):
            if look:
                session = await self.at(id, session, expected)
            try:
                session = await self._write(lp, id, session, fields, labels)
            except RACES:
                if not left:
                    raise
                session, look = None, True
            else:
                self.remember(id, session)
                return session.version
        raise AssertionError("the last try returns or raises")

    async def at(self, id: str, session: Handle | None, expected: int | None) -> Handle | None:
        """The session to write to; None if there is none. Raises Moved if not at `expected`.

        One that is remembered serves, unless another version is expected.
        """
        if session is not None and expected in (None, session.version):
            return session
        found = await self._living(await self.limpet(), id)
        version = 0 if found is None else found.version
        if expected is not None and version != expected:
            raise Moved(version)
        return found

    def put(
        self, c: CommitBuilder, id: str, session: Handle | None, fields: Fields, labels: Labels
    ) -> Handle:
        """Add to a commit what makes these the document's fields, on what `session` knows.

        Without a session it creates one, also under the key of a deleted one.
        """
        if session is None:
            return c.create(self.app, self.user, id, **_begin(fields, labels))
        check_whole(session)
        ops = ops_between(own(session), dict(fields))
        c.append(session, SAVED, ops=ops, expect=session.version)
        if changed := changed_labels(session, labels):
            c.record(session, facts.labeled(changed))
        return session

    def remembered(self, id: str) -> Handle | None:
        """The session that this object wrote or read last under this id, if it still has it."""
        return self._leased.get(id) or self._remembered.get(id)

    def at_hand(self, id: str) -> Handle | None:
        """The same, if its Limpet is the one that is open now."""
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

    async def page(self, *, labels: Mapping[str, str] | None = None, **how: Any) -> Page:
        """A page of `lp.list`, the oldest first unless `reverse`."""
        lp = await self.limpet()
        query = {"reverse": False, "limit": PAGE_MAX, **how}
        return await lp.list(app=self.app, user=self.user, labels=labels, **query)

    async def heads(self, labels: Mapping[str, str]) -> list[Head]:
        """The heads of all documents with these labels."""
        found: list[Head] = []
        cursor = None
        while True:
            page = await self.page(labels=labels, cursor=cursor)
            found += page.items
            cursor = page.cursor
            if cursor is None:
                return found

    # --- private -------------------------------------------------------------------------------

    async def _write(
        self, lp: Limpet, id: str, session: Handle | None, fields: Fields, labels: Labels
    ) -> Handle:
        """One commit. A new document needs no commit of several parts, which costs more."""
        if session is None:
            made: Handle = await lp.create(self.app, self.user, id, **_begin(fields, labels))
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
    """Without app: and user: names, which other sessions share."""
    return {name: value for name, value in values.items() if ":" not in name}


def check_whole(session: Handle) -> None:
    """Raise SessionCorrupt if an event of the session cannot be read."""
    if session.history.damaged:
        raise SessionCorrupt(session.key, f"event {session.history.damaged[0]} cannot be read")


def changed_labels(session: Handle, labels: Labels) -> dict[str, str | None]:
    """The labels to set or take off, so that the session has these."""
    return {name: text for name, text in labels.items() if session.labels.get(name) != text}


def _begin(fields: Fields, labels: Labels) -> dict[str, Any]:
    """How the session of a new document is created, also under the key of a deleted one."""
    given = {name: text for name, text in labels.items() if text is not None}
    how: dict[str, Any] = {"actor": _ACTOR, "untyped": True, "reuse_deleted": True}
    return {"state": dict(fields), "labels": given, **how}


def ops_between(before: Fields, after: Fields) -> tuple[PlainOp, ...]:
    """The operations from one to the other; whole fields, where they would be too many."""
    ops = diff(before, after).ops()
    if len(ops) <= OPS_PER_EVENT_MAX:
        return ops
    gone: list[PlainOp] = [Delete((name,)) for name in before if name not in after]
    changed = _names(ops)
    return (*gone, *[Set((name,), after[name]) for name in after if name in changed])


def _names(ops: Iterable[PlainOp]) -> set[str]:
    return {str(op.path[0]) for op in ops}
