"""google-adk on Limpet: LimpetSessionService, a BaseSessionService.

    runner = Runner(agent=agent, app_name="support", session_service=LimpetSessionService(url))

An ADK session is one of our sessions. Nothing in the caller's objects changes before the commit has
succeeded. Whether a session object is stale is decided by the session's version, never by a clock.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

import limpet
from limpet import Key, Limpet, SessionConflict, SessionExists, SessionNotFound, SharedLimpet
from limpet.adapters import adk_events
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
    from pydantic_core import to_jsonable_python

    from limpet.adapters.adk_reader import AdkEventReader
except ModuleNotFoundError as error:
    raise ExtraMissing("google-adk", "adk") from error

__all__ = ["LimpetSessionService", "register"]

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
