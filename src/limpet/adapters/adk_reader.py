"""Reading ADK events, the newest of each session decoded once and kept at hand.

To decode an ADK event takes ten times as long as to read it. Agents read a session at every turn,
and nearly all of it is what they read before. Recorded events never change, so what was decoded
stays true; what was recorded since is read from the store. Callers get copies of their own.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from google.adk.events.event import Event
from pydantic import BaseModel

import limpet
from limpet import Key, Limpet
from limpet.adapters import adk_events as ours
from limpet.adapters import adk_log as log

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


class _Decoded:
    """An ADK event and its place in the log; None if this version of ADK cannot read it."""

    __slots__ = ("_mold", "at_us", "event", "seq", "size")

    def __init__(self, seq: int, at_us: int, event: Event | None, size: int) -> None:
        self.seq, self.at_us, self.event, self.size = seq, at_us, event, size
        self._mold: Callable[[], Any] | None = None

    def copied(self) -> Event:
        """A copy for a caller of its own."""
        if self._mold is None:
            self._mold = mold_of(self.event)
            assert self._mold is not None  # it is a model
        made: Event = self._mold()
        return made


class _Known(NamedTuple):
    """The end of a session's log, decoded: every ADK event with floor < seq <= version."""

    uid: str
    floor: int
    version: int
    events: Sequence[_Decoded] = ()


class Reader:
    """The ADK events of sessions. It keeps about `bytes_max` of decoded ones, or none for 0."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._known: OrderedDict[Key, tuple[_Known, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.RLock()  # over the two: several loops may read

    async def read(
        self, lp: Limpet, key: Key, count: int | None, after: float | None
    ) -> tuple[limpet.Session[Any], list[Event]] | None:
        """A session and its last `count` ADK events, of those dated at or after `after`, in order.

        From one instant. None if there is no such session.
        """
        session = await lp.find(key, tail=0, actor=log.ACTOR)
        if session is None:
            self.forget(key)
            return None
        if count == 0:
            return session, []
        known = await self._up_to_date(session)
        known_after = known.floor  # what is before is decoded now, for this caller alone
        while not _is_enough(known, count, after):
            known = await _longer(session, known, count)
        shared_after = min(known_after, self._keep(key, known))
        return session, [
            each.copied() if each.seq > shared_after else each.event
            for each in _wanted(known, count, after)
            if each.event is not None
        ]

    def forget(self, key: Key) -> None:
        """Let go of a session."""
        with self._lock:
            _, size = self._known.pop(key, (None, 0))
            self._bytes -= size

    async def _up_to_date(self, session: limpet.Session[Any]) -> _Known:
        """What is known of a session, with what was recorded since."""
        head = session.head
        known, _ = self._known.get(session.key, (None, 0))
        since = -1 if known is None or known.uid != head.uid else head.version - known.version
        if known is None or not 0 <= since <= _PAGE:
            return _Known(head.uid, head.version, head.version)
        if not since:
            return known
        newer: list[_Decoded] = []
        at = known.version
        while at < head.version:
            page = await session.read(after=at, before=head.version + 1, limit=_PAGE)
            newer += await _decoded(session, page)
            at = page[-1].seq if page else head.version
        return _Known(head.uid, known.floor, head.version, [*known.events, *newer])

    def _keep(self, key: Key, known: _Known) -> int:
        """Keep the newest part of it, as far as there is room; the seq after which it is kept."""
        with self._lock:
            before, _ = self._known.get(key, (None, 0))
            if known is before:
                self._known.move_to_end(key)
                return known.floor
        kept, size = _newest(known, self._bytes_max // _SHARE)
        with self._lock:
            before, _ = self._known.get(key, (None, 0))
            if before is not None and before.uid == known.uid and before.version > known.version:
                return 0  # somebody has read more meanwhile, and may share all of this
            self.forget(key)
            self._known[key] = (kept, size)
            self._bytes += size
            while self._bytes > self._bytes_max and len(self._known) > 1:
                self.forget(next(iter(self._known)))
        return kept.floor


def _newest(known: _Known, room: int) -> tuple[_Known, int]:
    """As much of the end as fits, and its size."""
    first, size = len(known.events), 0
    while first and size + known.events[first - 1].size <= room:
        first -= 1
        size += known.events[first].size
    if not first:
        return known, size
    floor = known.events[first - 1].seq
    return known._replace(floor=floor, events=known.events[first:]), size


def _is_enough(known: _Known, count: int | None, after: float | None) -> bool:
    """Whether nothing older has to be read."""
    if known.floor == 0:
        return True
    if count is not None and len(_wanted(known, count, after)) >= count:
        return True
    oldest = known.events[0] if known.events else None
    return oldest is not None and after is not None and oldest.at_us < after * 1e6 - _AHEAD_US


def _wanted(known: _Known, count: int | None, after: float | None) -> list[_Decoded]:
    """The last `count` of those that can be read and are dated at or after `after`, in order."""
    found: list[_Decoded] = []
    for each in reversed(known.events):
        if each.event is not None and (after is None or each.event.timestamp >= after):
            found.append(each)
            if len(found) == count:
                break
    return found[::-1]


async def _longer(session: limpet.Session[Any], known: _Known, count: int | None) -> _Known:
    """The same with a page more of what was before."""
    limit = _PAGE if count is None else min(_PAGE, count + count // 4 + 4)
    page = await session.read(before=known.floor + 1, limit=limit)
    older = await _decoded(session, page[::-1])
    floor = page[-1].seq - 1 if page else 0
    return known._replace(floor=floor, events=[*older, *known.events])


async def _decoded(session: limpet.Session[Any], page: Sequence[limpet.Event]) -> list[_Decoded]:
    """The ADK events in a page. One that cannot be read does not hide the others."""
    found: list[_Decoded] = []
    for event in page:
        if event.damage is not None:
            _log.warning("event %d of %s cannot be read: left out", event.seq, session.key)
        if not ours.is_whole(event):
            continue
        text = await log.text_in(session, event)
        size = len(text) * 2 + _OBJECT_BYTES
        found.append(_Decoded(event.seq, event.at_us, _event(text, event, session.key), size))
        if not len(found) % _BETWEEN:
            await asyncio.sleep(0)
    return found


def _event(text: str, of: limpet.Event, key: Key) -> Event | None:
    """ADK's own object; None, with a warning, if this version of ADK cannot read it."""
    try:
        return Event.model_validate_json(text)
    except ValueError:  # it may be a lone surrogate, which only the other way lets pass
        try:
            return Event.model_validate(json.loads(text))
        except ValueError as error:
            _log.warning("event %s of %s is left out: %s", of.id, key, error)
            return None


def mold_of(value: Any) -> Callable[[], Any] | None:
    """What makes copies that share nothing that can be changed; None if nothing in it can.

    As copy.deepcopy, for what was decoded from JSON: it holds no object twice, and which parts have
    to be copied is found out once.
    """
    kind = type(value)
    if kind in _ATOMS:
        return None
    if kind is dict:
        parts = _parts(value.items())
        return lambda: _filled(value.copy(), parts)
    if kind is list:
        items = _parts(enumerate(value))
        return lambda: _filled(value.copy(), items)
    if isinstance(value, BaseModel):
        return _model_mold(value)
    return lambda: copy.deepcopy(value)


def _model_mold(model: BaseModel) -> Callable[[], Any]:
    kind, fields, given = type(model), model.__dict__, model.__pydantic_fields_set__
    parts = _parts(fields.items())
    extra, private = mold_of(model.__pydantic_extra__), mold_of(model.__pydantic_private__)

    def make() -> Any:
        new = object.__new__(kind)
        _put(new, "__dict__", _filled(fields.copy(), parts))
        _put(new, "__pydantic_fields_set__", given.copy())
        _put(new, "__pydantic_extra__", extra and extra())
        _put(new, "__pydantic_private__", private and private())
        return new

    return make


def _parts(items: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Callable[[], Any]]]:
    found = [(name, mold_of(value)) for name, value in items]
    return [(name, mold) for name, mold in found if mold is not None]


def _filled(holder: Any, parts: list[tuple[Any, Callable[[], Any]]]) -> Any:
    for name, mold in parts:
        holder[name] = mold()
    return holder
