"""google-adk on Limpet: LimpetSessionService, a BaseSessionService, and an agent in a worker.

    runner = Runner(agent=agent, app_name="support", session_service=LimpetSessionService(url))
    worker = limpet.Worker(lp, as_harness(agent), app="support")

An ADK session is one of our sessions. Nothing in the caller's objects changes before the commit has
succeeded. Whether a session object is stale is decided by the session's version, never by a clock.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

import limpet
from limpet import Key, Limpet, SessionConflict, SessionExists, SessionNotFound, SharedLimpet
from limpet.adapters import adk_events
from limpet.adapters.adk_harness import as_harness
from limpet.errors import ExtraMissing, InvalidKey, SessionDeleted, SessionErased

try:
    from google.adk.errors._stale_session_error import StaleSessionError
    from google.adk.errors.already_exists_error import AlreadyExistsError
    from google.adk.errors.session_not_found_error import SessionNotFoundError
    from google.adk.events.event import Event
    from google.adk.sessions.base_session_service import (
        BaseSessionService,
        GetSessionConfig,
        ListSessionsResponse,
    )
    from google.adk.sessions.session import Session
    from pydantic import BaseModel
    from pydantic_core import to_jsonable_python
except ModuleNotFoundError as error:
    raise ExtraMissing("google-adk", "adk") from error

__all__ = ["LimpetSessionService", "as_harness", "register"]

SCHEMES: Final = ("limpet+sqlite", "limpet+postgresql", "limpet+postgres", "limpet+memory")
CACHE_BYTES: Final = 64 * 2**20
_HANDLES_MAX: Final = 512  # sessions whose state is kept at hand between two appends
_MARKER: Final = "_storage_update_marker"  # the private attribute that ADK has for services
_STALE: Final = (
    "The session has been modified in storage since it was loaded. "
    "Please reload the session before appending more events."
)
_GONE: Final = (SessionNotFound, SessionDeleted, SessionErased)


class _Mark(NamedTuple):
    """The session, and its version, that a session object was read at."""

    uid: str
    version: int

    @classmethod
    def on(cls, session: Session) -> _Mark | None:
        """None for a session object that no service has made."""
        version, at, uid = (_private(session).get(_MARKER) or "").partition("@")
        return cls(uid, int(version)) if at and version.isdecimal() else None

    def put(self, session: Session) -> None:
        _private(session)[_MARKER] = f"{self.version}@{self.uid}"


def _private(session: Session) -> dict[str, Any]:
    """ADK's private attributes, where pydantic keeps them: its own way there is slow."""
    if session.__pydantic_private__ is None:
        session.__pydantic_private__ = {}
    private: dict[str, Any] = session.__pydantic_private__
    return private


class _AppendResult(NamedTuple):
    """The result of an append: its delta, its time, and the first record of a repeat."""

    delta: Mapping[str, Any]
    updated: float
    repeat: Event | None


class LimpetSessionService(BaseSessionService):  # type: ignore[misc]  # not installed here
    """Sessions of google-adk in a Limpet store.

    `store` is a URL, which any event loop and thread may use and which close() closes; or an open
    Limpet, which belongs to the loop that opened it and stays open. What a call has acknowledged is
    durable, so there is nothing to flush. About `cache_bytes` of decoded events are kept at hand.
    """

    def __init__(self, store: str | Limpet, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._limpet = SharedLimpet(store)
        self._reader = AdkEventReader(cache_bytes)
        self._opened: WeakKeyDictionary[Limpet, _Handles] = WeakKeyDictionary()

    # --- sessions ------------------------------------------------------------------------------

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """A new session. The state given here is its first event. Raises AlreadyExistsError."""
        id = (session_id or "").strip() or None
        plain: dict[str, Any] = to_jsonable_python(state or {}, serialize_unknown=True)
        begin = adk_events.stored_state(plain)

        async def create(lp: Limpet) -> limpet.Session[Any]:
            made = await lp.create(app_name, user_id, id, state=begin, reuse_deleted=True)
            self._handles(lp).keep(made)
            return made

        try:
            made = await self._limpet.run(create)
        except SessionExists as error:
            raise AlreadyExistsError(f"Session with id {id} already exists.") from error
        return _session_of(made, [])

    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> Session | None:
        """The session with its events, as many as `config` asks for; None if there is none."""
        config = config or GetSessionConfig()
        key = _key(app_name, user_id, session_id)
        if key is None:
            return None
        count, after = config.num_recent_events, config.after_timestamp
        read = await self._limpet.run(lambda lp: self._reader.read(lp, key, count, after))
        return None if read is None else _session_of(*read)

    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        """Sessions without their events, the one that was updated last at the end."""
        listed = await self._limpet.run(lambda lp: adk_events.list_sessions(lp, app_name, user_id))
        sessions = [_session(head, state, []) for head, state in listed]
        sessions.sort(key=lambda s: (s.last_update_time, s.user_id, s.id))
        return ListSessionsResponse(sessions=sessions)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session, if there is one. app: and user: state stay."""
        key = _key(app_name, user_id, session_id)
        if key is not None:
            await self._limpet.run(lambda lp: self._delete(lp, key))

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """The user's state without the prefix `user:`, whether or not the user has a session."""
        names = await self._limpet.run(lambda lp: lp.names(app_name, user_id))
        state = adk_events.adk_state({n: v for n, v in names.items() if n.startswith("user:")})
        return {name.removeprefix("user:"): value for name, value in state.items()}

    # --- events --------------------------------------------------------------------------------

    async def append_event(self, session: Session, event: Event) -> Event:
        """Record an event and its changes to state, durably, or nothing.

        The session object changes only once that has succeeded. Raises StaleSessionError if the
        session was changed since the object was read, SessionNotFoundError. An event id that was
        recorded before is not recorded again: the first record is returned.
        """
        if event.partial:
            return event
        delta = event.actions.state_delta
        temporary = {name for name in delta if name.startswith(adk_events.TEMP)}
        left_out: Any = {"actions": {"state_delta": temporary}} if temporary else None
        whole = event.model_dump(mode="json", exclude_none=True, exclude=left_out)
        try:
            done = await self._limpet.run(lambda lp: self._append(lp, session, event, whole))
        except SessionConflict as error:
            raise StaleSessionError(_STALE) from error
        except _GONE as error:
            raise SessionNotFoundError(f"Session {session.id} not found.") from error
        if done.repeat is not None and any(e.id == event.id for e in session.events):
            return done.repeat
        if done.repeat is not None:
            event = done.repeat
            delta, temporary = event.actions.state_delta, set()
        session.state.update(delta)
        if temporary:
            event.actions.state_delta = {n: v for n, v in delta.items() if n not in temporary}
        if done.delta:  # a rewind: what ADK could not know
            event.actions.state_delta.update(done.delta)
            session.state.update(done.delta)
        session.events.append(event)
        session.last_update_time = done.updated
        return event

    async def flush(self) -> None:
        """Does nothing: an event is durable when append_event returns."""

    async def close(self) -> None:
        """Close what a URL has opened. Closing twice is fine; an open Limpet stays open."""
        await self._limpet.close()

    async def __aenter__(self) -> LimpetSessionService:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- on the store's loop -------------------------------------------------------------------

    async def _append(
        self, lp: Limpet, session: Session, event: Event, whole: dict[str, Any]
    ) -> _AppendResult:
        key = Key(session.app_name, session.user_id, session.id)
        handles = self._handles(lp)
        lock = handles.locks.setdefault(key, asyncio.Lock())
        async with lock:  # tasks may share a session object
            mark = _Mark.on(session)
            handle = await handles.handle(key, mark)
            last = session.events[-1].id if session.events else None
            version = mark.version if mark else await adk_events.version_with(lp, key, last)
            rewound = event.actions.rewind_before_invocation_id
            restored = {}
            if rewound:
                restored = await adk_events.restore_initial_state(handle, whole, rewound)
            is_last = handle.head.pending and event.author != "user" and event.is_final_response()
            more = await adk_events.processed_fact(handle, whole, version) if is_last else []
            updated = adk_events.later(session.last_update_time, event.timestamp)
            events = await adk_events.record_event(handle, whole, more, version, updated=updated)
            repeated = [event for event in events if event.repeated]
            if not repeated or events[0].seq == version + 1:
                _Mark(handle.head.uid, events[-1].seq).put(session)
            repeat: Event | None = None
            if events[0].repeated:
                repeat = Event.model_validate(
                    json.loads(await adk_events.text_in(handle, events[0]))
                )
                updated = adk_events.later(session.last_update_time, repeat.timestamp)
            return _AppendResult(restored, updated, repeat)

    async def _delete(self, lp: Limpet, key: Key) -> None:
        self._handles(lp).handles.pop(key, None)
        self._reader.forget(key)
        await lp.delete(key)

    def _handles(self, lp: Limpet) -> _Handles:
        handles = self._opened.get(lp)
        if handles is None:
            handles = self._opened[lp] = _Handles(lp)
        return handles


class _Handles:
    """Session handles and locks for writing, on the loop of one open Limpet."""

    def __init__(self, lp: Limpet) -> None:
        self._lp = ref(lp)
        self.handles: OrderedDict[Key, limpet.Session[Any]] = OrderedDict()
        # A lock that nobody holds or waits for is collected.
        self.locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()

    async def handle(self, key: Key, mark: _Mark | None) -> limpet.Session[Any]:
        """The session that is meant, not another that was created under its key since."""
        handle = self.handles.get(key)
        if handle is None or mark is None or handle.head.uid != mark.uid:
            lp = self._lp()
            assert lp is not None  # whoever asks has it
            handle = await lp.get(key, tail=0, actor=adk_events.ACTOR)
        if mark is not None and handle.head.uid != mark.uid:
            raise SessionDeleted(key)
        self.keep(handle)
        return handle

    def keep(self, handle: limpet.Session[Any]) -> None:
        self.handles[handle.key] = handle
        self.handles.move_to_end(handle.key)
        if len(self.handles) > _HANDLES_MAX:
            self.handles.popitem(last=False)


def register() -> None:
    """Let ADK's commands take limpet+sqlite:///… and limpet+postgresql://… as session services.

    For a services.py in the agents directory: `from limpet.adapters.adk import register`, then
    `register()`. `adk web --session_service_uri=limpet+sqlite:///support.db agents` uses it.
    """
    from google.adk.cli.service_registry import get_service_registry

    for scheme in SCHEMES:
        get_service_registry().register_session_service(scheme, _made_for)


def _made_for(uri: str, **_: Any) -> LimpetSessionService:
    """Called by ADK's registry. Its other arguments are for services of its own."""
    return LimpetSessionService(uri.removeprefix("limpet+"))


def _session_of(session: limpet.Session[Any], events: list[Event]) -> Session:
    return _session(session.head, session.values, events)


def _session(head: limpet.Head, state: Mapping[str, Any], events: list[Event]) -> Session:
    key = head.key
    session = Session(
        id=key.id,
        app_name=key.app,
        user_id=key.user,
        state=adk_events.adk_state(state),
        events=events,
        last_update_time=adk_events.updated_at(state, head.updated_us / 1e6),
    )
    _Mark(head.uid, head.version).put(session)
    return session


def _key(app_name: str, user_id: str, session_id: str) -> Key | None:
    """The key of a session; None where there cannot be one. An id is taken without its padding."""
    try:
        return Key(app_name, user_id, session_id.strip())
    except InvalidKey:
        return None


# --- reading -------------------------------------------------------------------------------------


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
        """The time that ADK gives it. NaN, which has no place in any order, if this version of ADK
        cannot read it."""
        if self._timestamp is None:
            event = self._decode()
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
            self._mold = mold_of(self._decode())
            assert self._mold is not None  # it is a model
        made: Event = self._mold()
        return made

    def _decode(self) -> Event | None:
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
        wanted = _select_events(known, count, after)
        while len(wanted) != count and not _is_all(known, after):
            known, many = await _longer(session, known, count), len(known.events)
            if not is_small:
                await _look_at_all(known.events[: len(known.events) - many])
            wanted = _select_events(known, count, after)
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
    """Return the newest part that fits, and its size."""
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


def _select_events(
    known: _CachedTail, count: int | None, after: float | None
) -> list[_CachedEvent]:
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
    """Return the tail with one more page of older events."""
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
        return (lambda: _fill(value.copy(), parts)) if parts else value.copy
    if kind is list:
        items = _parts(enumerate(value))
        return (lambda: _fill(value.copy(), items)) if items else value.copy
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
        for name, mold in parts:  # as _fill does: this is most of the work
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


def _fill(holder: Any, parts: list[tuple[Any, Callable[[], Any]]]) -> Any:
    for name, mold in parts:
        holder[name] = mold()
    return holder
