"""Reading ADK events, the newest of each session kept at hand.

To decode an ADK event takes ten times as long as to read it. Agents read a session at every turn,
and nearly all of it is what they read before. Recorded events never change, so what was read stays
true; what was recorded since is read from the store. Every caller gets events of its own: the first
one what was decoded for it, later ones copies, for which a mold is made when they first ask.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from google.adk.events.event import Event
from pydantic import BaseModel

import limpet
from limpet import Key, Limpet
from limpet.adapters import adk_events

_log: Final = logging.getLogger("limpet.adapters.adk")
_PAGE: Final = 1_000
_BETWEEN: Final = 100  # events that are decoded before other tasks get their turn
_OBJECT_BYTES: Final = 8_192  # what a decoded event takes beside its text
_SHARE: Final = 4  # one session has at most this part of the room
# ADK dates its events itself. One that it dates after t was recorded after this long before t: no
# clock is so far ahead of the store's.
_AHEAD_US: Final = 86_400_000_000
_ATOMS: Final = frozenset((type(None), bool, int, float, str, bytes))
_put: Final = object.__setattr__


class _CachedEvent:
    """The text of an ADK event and its place in the log. It is decoded when somebody asks."""

    __slots__ = ("_fresh", "_mold", "_name", "_timestamp", "at_us", "seq", "size", "text")

    def __init__(self, of: limpet.Event, key: Key, text: str) -> None:
        self.seq, self.at_us, self.text = of.seq, of.at_us, text
        self.size = len(text) * 3 + _OBJECT_BYTES
        self._name = (of.id, key)
        self._fresh: list[Event] = []  # decoded, and given to nobody yet
        self._timestamp: float | None = None
        self._mold: Callable[[], Any] | None = None

    @property
    def timestamp(self) -> float:
        """When ADK dates it. NaN if this version of ADK cannot read it: that is before nothing and
        after nothing."""
        if self._timestamp is None:
            event = self._decoded()
            if event is not None:
                self._fresh.append(event)
            self._timestamp = math.nan if event is None else event.timestamp
        return self._timestamp

    def take(self) -> Event:
        """An event for a caller of its own. Only for one that is readable."""
        try:
            return self._fresh.pop()  # by one thread: a list pops an item once
        except IndexError:
            pass
        if self._mold is None:
            self._mold = mold_of(self._decoded())
            assert self._mold is not None  # it is a model
        made: Event = self._mold()
        return made

    def _decoded(self) -> Event | None:
        return _event(self.text, *self._name)


class _CachedTail(NamedTuple):
    """The end of a session's log: every ADK event with floor < seq <= version."""

    uid: str
    floor: int
    version: int
    events: Sequence[_CachedEvent] = ()


class AdkEventReader:
    """The ADK events of sessions. It keeps about `bytes_max` of them, or none for 0."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._known: OrderedDict[Key, tuple[_CachedTail, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.RLock()  # over the two: several loops may read

    async def read(
        self, lp: Limpet, key: Key, count: int | None, after: float | None
    ) -> tuple[limpet.Session[Any], list[Event]] | None:
        """A session and its last `count` ADK events, of those dated at or after `after`, in order.

        From one instant. None if there is no such session.
        """
        session = await lp.find(key, tail=0, actor=adk_events.ACTOR)
        if session is None:
            self.forget(key)
            return None
        if count == 0:
            return session, []
        is_small = after is None and count is not None and count <= _BETWEEN
        known = await self._up_to_date(session)
        wanted = _wanted(known, count, after)
        while len(wanted) != count and not _is_all(known, after):
            known, many = await _longer(session, known, count), len(known.events)
            if not is_small:
                await _look_at_all(known.events[: len(known.events) - many])
            wanted = _wanted(known, count, after)
        self._keep(key, known)
        return session, [each.take() for each in wanted]

    def forget(self, key: Key) -> None:
        """Let go of a session."""
        with self._lock:
            _, size = self._known.pop(key, (None, 0))
            self._bytes -= size

    async def _up_to_date(self, session: limpet.Session[Any]) -> _CachedTail:
        """The cached tail of a session, with the events recorded since."""
        head = session.head
        known, _ = self._known.get(session.key, (None, 0))
        since = -1 if known is None or known.uid != head.uid else head.version - known.version
        if known is None or not 0 <= since <= _PAGE:
            return _CachedTail(head.uid, head.version, head.version)
        if not since:
            return known
        newer: list[_CachedEvent] = []
        at = known.version
        while at < head.version:
            page = await session.read(after=at, before=head.version + 1, limit=_PAGE)
            newer += await _texts_in(session, page)
            at = page[-1].seq if page else head.version
        return _CachedTail(head.uid, known.floor, head.version, [*known.events, *newer])

    def _keep(self, key: Key, known: _CachedTail) -> None:
        """Keep the newest part of it, as far as there is room."""
        with self._lock:
            before, _ = self._known.get(key, (None, 0))
            if known is before:
                self._known.move_to_end(key)
                return
        kept, size = _newest(known, self._bytes_max // _SHARE)
        with self._lock:
            before, _ = self._known.get(key, (None, 0))
            if before is not None and before.uid == known.uid and before.version > known.version:
                return  # somebody has read more meanwhile
            self.forget(key)
            self._known[key] = (kept, size)
            self._bytes += size
            while self._bytes > self._bytes_max and len(self._known) > 1:
                self.forget(next(iter(self._known)))


def _newest(known: _CachedTail, room: int) -> tuple[_CachedTail, int]:
    """As much of the end as fits, and its size."""
    first, size = len(known.events), 0
    while first and size + known.events[first - 1].size <= room:
        first -= 1
        size += known.events[first].size
    if not first:
        return known, size
    floor = known.events[first - 1].seq
    return known._replace(floor=floor, events=known.events[first:]), size


def _is_all(known: _CachedTail, after: float | None) -> bool:
    """True if nothing older has to be read, however many events are wanted."""
    if known.floor == 0:
        return True
    oldest = known.events[0] if known.events else None
    return oldest is not None and after is not None and oldest.at_us < after * 1e6 - _AHEAD_US


def _wanted(known: _CachedTail, count: int | None, after: float | None) -> list[_CachedEvent]:
    """The last `count` of those that can be read and are dated at or after `after`, in order."""
    wanted: list[_CachedEvent] = []
    begin = -math.inf if after is None else after
    for each in reversed(known.events):
        if each.timestamp >= begin:  # NaN is not
            wanted.append(each)
            if len(wanted) == count:
                break
    return wanted[::-1]


async def _longer(
    session: limpet.Session[Any], known: _CachedTail, count: int | None
) -> _CachedTail:
    """The same with a page more of what was before."""
    limit = _PAGE if count is None else min(_PAGE, count + count // 4 + 4)
    page = await session.read(before=known.floor + 1, limit=limit)
    older = await _texts_in(session, page[::-1])
    floor = page[-1].seq - 1 if page else 0
    return known._replace(floor=floor, events=[*older, *known.events])


async def _texts_in(
    session: limpet.Session[Any], page: Sequence[limpet.Event]
) -> list[_CachedEvent]:
    """The ADK events in a page. One that cannot be read does not hide the others."""
    events: list[_CachedEvent] = []
    for event in page:
        if event.damage is not None:
            _log.warning("event %d of %s cannot be read: left out", event.seq, session.key)
        if adk_events.is_whole(event):
            events.append(
                _CachedEvent(event, session.key, await adk_events.text_in(session, event))
            )
    return events


async def _look_at_all(events: Iterable[_CachedEvent]) -> None:
    """Decode many, and let other tasks have their turn in between."""
    for number, each in enumerate(events, 1):
        _ = each.timestamp
        if not number % _BETWEEN:
            await asyncio.sleep(0)


def _event(text: str, id: str, key: Key) -> Event | None:
    """ADK's own object; None, with a warning, if this version of ADK cannot read it."""
    try:
        return Event.model_validate_json(text)
    except ValueError:  # it may be a lone surrogate, which only the other way lets pass
        try:
            return Event.model_validate(json.loads(text))
        except ValueError as error:
            _log.warning("event %s of %s is left out: %s", id, key, error)
            return None


def mold_of(value: Any) -> Callable[[], Any] | None:
    """A function that makes copies sharing nothing mutable; None if nothing in it is mutable.

    As copy.deepcopy, for what was decoded from JSON: it holds no object twice, and which parts have
    to be copied is found out once.
    """
    kind = type(value)
    if kind in _ATOMS:
        return None
    if kind is dict:
        parts = _parts(value.items())
        return (lambda: _filled(value.copy(), parts)) if parts else value.copy
    if kind is list:
        items = _parts(enumerate(value))
        return (lambda: _filled(value.copy(), items)) if items else value.copy
    if isinstance(value, BaseModel):
        return _model_mold(value)
    return lambda: copy.deepcopy(value)


def _model_mold(model: BaseModel) -> Callable[[], Any]:
    kind, fields, given = type(model), model.__dict__, model.__pydantic_fields_set__
    parts = _parts(fields.items())
    extra, private = mold_of(model.__pydantic_extra__), mold_of(model.__pydantic_private__)

    def make() -> Any:
        new = object.__new__(kind)
        mine = fields.copy()
        for name, mold in parts:  # as _filled does: this is most of the work
            mine[name] = mold()
        _put(new, "__dict__", mine)
        _put(new, "__pydantic_fields_set__", given.copy())
        _put(new, "__pydantic_extra__", extra and extra())
        _put(new, "__pydantic_private__", private and private())
        return new

    return make


def _parts(items: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Callable[[], Any]]]:
    molds = [(name, mold_of(value)) for name, value in items]
    return [(name, mold) for name, mold in molds if mold is not None]


def _filled(holder: Any, parts: list[tuple[Any, Callable[[], Any]]]) -> Any:
    for name, mold in parts:
        holder[name] = mold()
    return holder
