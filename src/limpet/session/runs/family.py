"""Family: a session and all that were delegated from it, read from their logs. Part of Session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from limpet.errors import SessionDeleted, SessionErased, SessionNotFound
from limpet.model import PAGE_MAX, Event, Key
from limpet.model.events import CHILD_ENDED
from limpet.model.facts.running.children import CHILD_CREATED, CHILD_RELEASED
from limpet.model.limits import DELEGATION_DEPTH_MAX

if TYPE_CHECKING:
    from limpet.session.journal import Journal
    from limpet.session.writer import Writer

_TYPES: Final = (CHILD_CREATED, CHILD_ENDED, CHILD_RELEASED)
_GONE: Final = (SessionNotFound, SessionDeleted, SessionErased)


class Kin(msgspec.Struct, frozen=True):
    """A session among those that were delegated from one, with its own children."""

    key: Key
    title: str | None = None
    stop_reason: str | None = None  # how it ended for its parent; None: it has not
    children: tuple[Kin, ...] = ()
    gone: bool = False  # it was deleted or erased since

    @property
    def edges(self) -> tuple[tuple[Key, Key], ...]:
        """Every (parent, child) of the tree, parents first."""
        own = [(self.key, child.key) for child in self.children]
        return (*own, *[edge for child in self.children for edge in child.edges])


class Family:
    """Who works for a session."""

    __slots__ = ()

    if TYPE_CHECKING:
        writer: Writer

    async def tree(self) -> Kin:
        """This session and all that were ever delegated from it, ended ones too, down to the last.

        Reads one log for each of them.
        """
        return await _kin(self.writer.journal, self.writer.known.key, {}, DELEGATION_DEPTH_MAX)


async def _kin(journal: Journal, key: Key, known: dict[str, Any], left: int) -> Kin:
    found: dict[str, dict[str, Any]] = {}
    try:
        events = await _events(journal, key)
    except _GONE:
        if not known:
            raise
        return Kin(key, **known, gone=True)
    for event in events:
        data = event.data
        if data is None:
            continue
        if event.type == CHILD_CREATED:
            child = Key(data["app"], data["user"], data["child"])
            found[child.id] = {"key": child, "title": data.get("title"), "stop_reason": None}
        elif data["child"] in found:
            ended = data.get("stop_reason", "interrupted")
            found[data["child"]]["stop_reason"] = ended
    children = []
    for of in found.values() if left else ():
        children.append(await _kin(journal, of.pop("key"), of, left - 1))
    return Kin(key, **known, children=tuple(children))


async def _events(journal: Journal, key: Key) -> list[Event]:
    events: list[Event] = []
    after = 0
    how: dict[str, Any] = {"limit": PAGE_MAX, "reverse": False, "types": _TYPES}
    while page := await journal.store.read(key, after=after, **how):
        events += page
        after = page[-1].seq
    return events
