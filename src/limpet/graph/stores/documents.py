"""Documents: JSON objects under ids, each kept as one session of a Limpet.

A session record and a checkpoint record are both documents. Replacing one writes the difference as
the operations of one event, in one commit, so every document has its history. A write that meets a
faster writer compares again with what that one wrote: the last write wins, and no write is lost.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any, Final, TypeAlias

from limpet import facts
from limpet.errors import (
    InvalidValue,
    SessionConflict,
    SessionCorrupt,
    SessionDeleted,
    SessionErased,
    SessionExists,
    SessionNotFound,
)
from limpet.graph.stores.opened import Source
from limpet.model.diff.diff import diff
from limpet.model.head import Head
from limpet.model.keys import Key
from limpet.model.limits import OPS_PER_EVENT_MAX, PAGE_MAX, UPDATE_TRIES_MAX
from limpet.model.ops import Delete, PlainOp, Set
from limpet.session.commit import CommitBuilder
from limpet.session.limpet import Limpet
from limpet.session.session import Session
from limpet.store.protocol import Page

Fields: TypeAlias = Mapping[str, Any]
Labels: TypeAlias = Mapping[str, str | None]
Handle: TypeAlias = Session[Mapping[str, Any]]

SAVED: Final = "graph.saved"
UNSAVED: Final = "graph.unsaved"  # a label: made for a commit that has not been recorded yet
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
    """The documents of one app and user."""

    def __init__(self, source: Source, app: str, user: str) -> None:
        Key(app, user, "id")  # raises InvalidKey
        self.source, self.app, self.user = source, app, user
        self._remembered: OrderedDict[str, Handle] = OrderedDict()
        self._lp: Limpet | None = None  # whose sessions are remembered

    async def limpet(self) -> Limpet:
        """The open Limpet. Sessions of one that was closed since are forgotten."""
        lp = await self.source.limpet()
        if lp is not self._lp:
            self._remembered.clear()
            self._lp = lp
        return lp

    # --- one document --------------------------------------------------------------------------

    async def find(self, id: str) -> Handle | None:
        """The session of the newest document of this id; None if there is none.

        Raises SessionCorrupt if an event cannot be read: what is left would pass for the whole.
        """
        _, session = await self._living(await self.limpet(), id)
        if session is None or UNSAVED in session.labels:
            return None
        check_whole(session)
        self.remember(id, session)
        return session

    async def replace(
        self, id: str, fields: Fields, labels: Labels, *, expected: int | None = None
    ) -> int:
        """Make these the document's fields and labels, in one commit. Returns its version.

        With `expected` only if it is at that version, 0 meaning that there is none; else Moved.
        """
        lp, session = await self.limpet(), self._remembered.get(id)
        look = session is not None or expected is not None  # else it is probably a new one
        for left in reversed(range(UPDATE_TRIES_MAX)):
            key = self._key(id, 1)
            if look:
                key, session = await self._at(lp, id, session, expected)
            try:
                session = await self._write(lp, key, session, fields, labels)
            except RACES:
                if not left:
                    raise
                session, look = None, True
            else:
                self.remember(id, session)
                return session.version
        raise AssertionError("the last try returns or raises")

    def put(self, c: CommitBuilder, session: Handle, fields: Fields, labels: Labels) -> None:
        """Add to a commit what makes these the document's fields, on what `session` knows."""
        check_whole(session)
        ops = ops_between(own(session), _checked(fields))
        c.append(session, SAVED, ops=ops, expect=session.version)
        changed = changed_labels(session, labels)
        if changed:
            c.record(session, facts.labeled(changed))

    async def prepared(self, id: str, expected: int | None = None) -> Handle:
        """A session to `put` into, made without a document if there is none. Raises Moved.

        Until a commit puts one into it, nobody sees it: a crash in between leaves no document.
        """
        lp = await self.limpet()
        for left in reversed(range(UPDATE_TRIES_MAX)):
            key, session = await self._at(lp, id, None, expected)
            try:
                return session or await self._create(lp, key, {}, {UNSAVED: "yes"})
            except RACES:
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def remembered(self, id: str) -> Handle | None:
        """The session that this object wrote or read last under this id, if it still has it."""
        return self._remembered.get(id)

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
        key, session = await self._living(lp, id)
        return session is not None and await lp.delete(key)

    # --- many of them --------------------------------------------------------------------------

    async def page(self, *, labels: Mapping[str, str] | None = None, **how: Any) -> Page:
        """A page of `lp.list`, the oldest first unless `reverse`; it may hold unsaved ones."""
        lp = await self.limpet()
        query = {"reverse": False, "limit": PAGE_MAX, **how}
        return await lp.list(app=self.app, user=self.user, labels=labels, **query)

    async def heads(self, labels: Mapping[str, str]) -> list[Head]:
        """The heads of all documents with these labels."""
        found: list[Head] = []
        cursor = None
        while True:
            page = await self.page(labels=labels, cursor=cursor)
            found += [head for head in page.items if UNSAVED not in head.labels]
            cursor = page.cursor
            if cursor is None:
                return found

    # --- private -------------------------------------------------------------------------------

    async def _at(
        self, lp: Limpet, id: str, session: Handle | None, expected: int | None
    ) -> tuple[Key, Handle | None]:
        """The session to write to. What is remembered serves unless it is not at `expected`."""
        if session is not None and expected in (None, version_of(session)):
            return session.key, session
        key, found = await self._living(lp, id)
        if expected is not None and version_of(found) != expected:
            raise Moved(version_of(found))
        return key, found

    async def _write(
        self, lp: Limpet, key: Key, session: Handle | None, fields: Fields, labels: Labels
    ) -> Handle:
        """Create the document, or change it to these fields on what `session` knows."""
        if session is None:
            return await self._create(lp, key, fields, labels)
        async with lp.commit() as c:
            self.put(c, session, fields, labels)
        return session

    async def _create(self, lp: Limpet, key: Key, fields: Fields, labels: Labels) -> Handle:
        given = {name: text for name, text in labels.items() if text is not None}
        how: dict[str, Any] = {"labels": given, "actor": _ACTOR, "untyped": True}
        return await lp.create(key.app, key.user, key.id, state=_checked(fields), **how)

    def _key(self, id: str, number: int) -> Key:
        """The key of the nth session of a document. An id that looks numbered always is."""
        plain = number == 1 and not (isinstance(id, str) and _NUMBER(id))
        return Key(self.app, self.user, id if plain else f"{id}~{number}")

    async def _living(self, lp: Limpet, id: str) -> tuple[Key, Handle | None]:
        """The key that this id has now, and the session under it, if there is one.

        A deleted key cannot be used again, so the next document of the id gets a number behind it.
        """
        for number in count(1):
            key = self._key(id, number)
            try:
                return key, await lp.get(key, tail=0, actor=_ACTOR, untyped=True)
            except SessionNotFound:
                return key, None
            except (SessionDeleted, SessionErased):
                continue
        raise AssertionError("numbers do not end")


_NUMBER: Final = re.compile(r"(.*)~([0-9]+)", re.DOTALL).fullmatch


def id_of(key: Key) -> str:
    """The document's id, without the number of its session."""
    found = _NUMBER(key.id)
    return key.id if found is None else found[1]


def version_of(session: Handle | None) -> int:
    """The version of a document; 0 if there is none."""
    return 0 if session is None or UNSAVED in session.labels else session.version


def own(session: Handle) -> dict[str, Any]:
    """The session's own fields."""
    return own_fields(session.values)


def own_fields(values: Fields) -> dict[str, Any]:
    """Without app: and user: names, which other sessions share."""
    return {name: value for name, value in values.items() if ":" not in name}


def check_whole(session: Handle) -> None:
    """Raise SessionCorrupt if an event of the session cannot be read."""
    if session.damaged:
        raise SessionCorrupt(session.key, f"event {session.damaged[0]} cannot be read")


def changed_labels(session: Handle, labels: Labels) -> dict[str, str | None]:
    """The labels to set or take off, so that the session has these and is a saved one."""
    wanted = {**labels, UNSAVED: None}
    return {name: text for name, text in wanted.items() if session.labels.get(name) != text}


def _checked(fields: Fields) -> dict[str, Any]:
    """The fields, if all of them are the document's own. Raises InvalidValue."""
    for name in fields:
        if isinstance(name, str) and ":" in name:
            raise InvalidValue("the state", f"has the name {name!r}; names have no colon")
    return dict(fields)


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
