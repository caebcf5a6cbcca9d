"""Bringing a database of google-adk into a store: `limpet import-adk`. Needs no google-adk.

Event ids are kept, so a run that was interrupted goes on where it was: what is there is a beginning
of what ADK has. ADK's database is only read, from SQLite or PostgreSQL. DatabaseSessionService
(schema 1) and SqliteSessionService have the same tables: sessions, events with a JSON `event_data`,
app_states, user_states. An older schema holds pickled objects, which are not read: they could run
code.
"""

from __future__ import annotations

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import apsw
import msgspec

import limpet
from limpet import Key, Limpet, LimpetError, SessionConflict, StoreError
from limpet.adapters import adk_events
from limpet.errors import EventTooLarge, ExtraMissing, InvalidURL, InvalidValue, StoreFailed
from limpet.model import DefaultActor

IMPORTER: Final = DefaultActor("system:import-adk")
_TYPE: Final = "adk.imported"
_BATCH: Final = 200  # ADK events in one commit
_NAMES: Final = 500  # shared names in one commit
_CARRIER: Final = "import-adk"  # the id of a session through which shared names are written
_REFUSED_MAX: Final = 1_000
_DRIVER: Final = re.compile(r"^(sqlite|postgresql|postgres)(\+\w+)?://")
_ADVICE: Final = "Use sqlite:///adk.db or postgresql://user@host/database, as ADK has it"
_BUSY_MS: Final = 10_000


class Imported(msgspec.Struct, frozen=True):
    """The counts of an import; all zero if the store had everything."""

    sessions: int  # that were sent events, or were created
    events: int  # of ADK
    names: int  # app: and user: keys that the store did not have
    refused: tuple[limpet.Refused, ...] = ()  # the first 1,000
    refusals: int = 0

    @property
    def ok(self) -> bool:
        return not self.refusals


async def import_adk(
    url: str, lp: Limpet, *, progress: Callable[[int, int], None] | None = None
) -> Imported:
    """Bring all sessions of the ADK database at `url` into the store that `lp` has open.

    A session that was written to on both sides is refused and left as it is; the others go on. Safe
    to interrupt and run again. Raises InvalidURL if it is not a database of ADK.
    """
    async with open_source(url) as source:
        run = _Import(source, lp, progress)
        await run.names()
        await run.sessions()
        return run.result()


class _Import:
    """One import under way."""

    def __init__(self, source: AdkDatabase, lp: Limpet, progress: Any) -> None:
        self._source, self._lp, self._progress = source, lp, progress
        self._done = self._sessions = self._events = self._names = self._refusals = 0
        self._refused: list[limpet.Refused] = []

    def result(self) -> Imported:
        refused = tuple(self._refused)
        return Imported(self._sessions, self._events, self._names, refused, self._refusals)

    async def names(self) -> None:
        """app: and user: keys, where the store has none of that name."""
        for app, user, state in await self._source.shared():
            prefix = "user:" if user else "app:"
            there = await self._lp.names(app, user or None)
            named = {adk_events.stored_name(f"{prefix}{name}"): v for name, v in state.items()}
            missing = {name: value for name, value in named.items() if name not in there}
            try:
                await self._write(Key(app, user or _CARRIER, _CARRIER), missing)
            except StoreError:
                raise
            except LimpetError as error:
                self._refuse(f"{prefix} keys of {app}/{user}", error)

    async def sessions(self) -> None:
        """Every session, in the order of their last updates."""
        total = await self._source.count()
        for row in await self._source.sessions():
            stored = await self._source.read(row)
            if stored is None:
                continue
            try:
                await self._session(row, stored)
            except StoreError:
                raise  # of the store, not of this session: nothing more can be brought
            except LimpetError as error:
                self._refuse(f"{row.app}/{row.user}/{row.id}", error)
            self._done += len(stored.events)
            if self._progress is not None:
                self._progress(self._done, max(total, self._done))

    async def _session(self, row: AdkKey, stored: AdkSession) -> None:
        key = Key(row.app, row.user, row.id.strip())
        events = [adk_events.without_temp(event) for event in stored.events]
        session = await self._begun(key, stored.state, events)
        there = await _ids(session)
        ids = [str(event["id"]) for event in events]
        if there[: len(ids)] == ids:
            if len(there) > len(ids):
                return  # it was brought over before, and went on here
        elif ids[: len(there)] != there:
            raise SessionConflict(key, "log", len(there), session.version)
        await self._send(session, events[len(there) :])
        await _settle(session, stored.state, len(ids))

    async def _begun(
        self, key: Key, state: Mapping[str, Any], events: Sequence[Mapping[str, Any]]
    ) -> limpet.Session[Any]:
        """The session, created with the state that no event accounts for."""
        stored: limpet.Session[Any] | None = await self._lp.find(key, tail=0, actor=IMPORTER)
        if stored is not None:
            return stored
        changed = {name for event in events for name in adk_events.delta_of(event)}
        begin = adk_events.stored_state({n: v for n, v in state.items() if n not in changed})
        self._sessions += 1
        made: limpet.Session[Any]
        made = await self._lp.create(key.app, key.user, key.id, state=begin, actor=IMPORTER)
        return made

    async def _send(self, session: limpet.Session[Any], events: list[dict[str, Any]]) -> None:
        for start in range(0, len(events), _BATCH):
            batch = events[start : start + _BATCH]
            drafts = [d for e in batch for d in adk_events.drafts_of(e, session.user, shared=False)]
            try:
                await session.append_many(drafts, expect=session.version)
            except (InvalidValue, EventTooLarge, limpet.errors.CommitTooLarge):
                for event in batch:  # each in the form that can hold it
                    await adk_events.record_event(session, event, [], session.version, shared=False)
            self._events += len(batch)

    async def _write(self, key: Key, names: Mapping[str, Any]) -> None:
        """Set shared names through a session that is deleted afterwards."""
        if not names:
            return
        await self._lp.delete(key)  # of a run that was interrupted
        carrier = await self._lp.create(*_parts(key), actor=IMPORTER, reuse_deleted=True)
        entries = list(names.items())
        try:
            for start in range(0, len(entries), _NAMES):
                some = dict(entries[start : start + _NAMES])
                await carrier.append(_TYPE, set=some)
                self._names += len(some)
        finally:
            await self._lp.delete(key)

    def _refuse(self, what: str, error: LimpetError) -> None:
        self._refusals += 1
        if len(self._refused) < _REFUSED_MAX:
            self._refused.append(limpet.Refused(what, error.code, str(error)))


async def _ids(session: limpet.Session[Any]) -> list[str]:
    """The ids of the ADK events that a session has."""
    return [event.id async for event in adk_events.forwards(session) if adk_events.is_whole(event)]


async def _settle(session: limpet.Session[Any], state: Mapping[str, Any], count: int) -> None:
    """Make the state what ADK had stored, and the messages of the past no pending input."""
    await session.refresh(tail=0)
    wanted = adk_events.stored_state(
        {n: v for n, v in state.items() if not n.startswith(("app:", "user:"))}
    )
    shared = ("app:", "user:", adk_events.UPDATED)
    own = {n: v for n, v in session.values.items() if not n.startswith(shared)}
    changed = {n: v for n, v in wanted.items() if n not in own or own[n] != v}
    gone = [name for name in own if name not in wanted]
    if changed or gone:
        data = {"events": count}
        await session.append(_TYPE, data, set=changed, delete=gone, expect=session.version)
    while inputs := await session.pending(limit=1_000):
        await session.mark_processed([event.seq for event in inputs])


def _parts(key: Key) -> tuple[str, str, str]:
    return key.app, key.user, key.id


class AdkKey(NamedTuple):
    """The key of a session of ADK."""

    app: str
    user: str
    id: str


class AdkSession(NamedTuple):
    """A session in ADK's database: its own state, and its events in their JSON form."""

    state: Mapping[str, Any]
    events: list[dict[str, Any]]


class AdkDatabase(ABC):
    """An ADK database. Nothing in it is changed."""

    order = "id"  # of events with one timestamp
    where = ""

    @abstractmethod
    async def rows(self, sql: str, *args: str) -> list[tuple[Any, ...]]:
        """The rows of one query."""

    @abstractmethod
    def instant(self) -> AbstractAsyncContextManager[None]:
        """Read a consistent snapshot within the block."""

    async def check(self) -> None:
        """Raise InvalidURL unless these are tables of ADK that can be read."""
        try:
            await self.rows("SELECT state, update_time FROM sessions LIMIT 1")
            await self.rows("SELECT id, timestamp FROM events LIMIT 1")
        except _Missing:
            raise InvalidURL(self.where, "it is not a database of google-adk", _ADVICE) from None
        try:
            await self.rows("SELECT event_data FROM events LIMIT 1")
        except _Missing:
            reason = "its old schema has pickled objects, which are not read"
            raise InvalidURL(self.where, reason, "Migrate it with adk migrate session") from None

    async def count(self) -> int:
        """The number of events."""
        return int((await self.rows("SELECT count(*) FROM events"))[0][0])

    async def shared(self) -> list[tuple[str, str, Mapping[str, Any]]]:
        """App, user ("" for the app's own) and state, without prefixes."""
        apps = await self.rows("SELECT app_name, '', state FROM app_states")
        users = await self.rows("SELECT app_name, user_id, state FROM user_states")
        return [(app, user, _json(state)) for app, user, state in [*apps, *users]]

    async def sessions(self) -> list[AdkKey]:
        """Every session, the one that was updated last at the end."""
        query = "SELECT app_name, user_id, id FROM sessions ORDER BY update_time, user_id, id"
        return [AdkKey(*row) for row in await self.rows(query)]

    async def read(self, row: AdkKey) -> AdkSession | None:
        """A session, or None if it was deleted meanwhile."""
        async with self.instant():
            states = await self.rows(_STATE, *row)
            if not states:
                return None
            events = await self.rows(_EVENTS.format(order=self.order), *row)
        return AdkSession(_json(states[0][0]), [_event(*each) for each in events])


_STATE: Final = "SELECT state FROM sessions WHERE app_name = ?1 AND user_id = ?2 AND id = ?3"
_EVENTS: Final = (
    "SELECT id, invocation_id, timestamp, event_data FROM events "
    "WHERE app_name = ?1 AND user_id = ?2 AND session_id = ?3 ORDER BY timestamp, {order}"
)


class _Missing(Exception):
    """A table or a column is not there."""


@asynccontextmanager
async def open_source(url: str) -> AsyncIterator[AdkDatabase]:
    """Open the database that a URL of ADK names. Raises InvalidURL, StoreFailed."""
    match = _DRIVER.match(url)
    if match is None:
        raise InvalidURL(url, "it does not name a SQLite file or a PostgreSQL server", _ADVICE)
    opened = _SQLite.opened if match[1] == "sqlite" else _Postgres.opened
    async with opened(url, url[match.end() :]) as source:
        await source.check()
        yield source


class _SQLite(AdkDatabase):
    """A file. Its rows have the order of their insertion."""

    order = "rowid"

    def __init__(self, url: str, connection: apsw.Connection) -> None:
        self.where, self._connection = url, connection

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str, rest: str) -> AsyncIterator[AdkDatabase]:
        path = Path(unquote(rest.partition("?")[0].removeprefix("/")))
        if not await asyncio.to_thread(path.is_file):
            raise InvalidURL(url, "there is no such file", _ADVICE)
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        connection.set_busy_timeout(_BUSY_MS)
        try:
            yield cls(url, connection)
        finally:
            connection.close()

    async def rows(self, sql: str, *args: str) -> list[tuple[Any, ...]]:
        try:
            return await asyncio.to_thread(lambda: list(self._connection.execute(sql, args)))
        except apsw.SQLError as error:
            raise _Missing from error
        except apsw.NotADBError as error:
            raise InvalidURL(self.where, "it is not a SQLite file", _ADVICE) from error
        except apsw.Error as error:
            raise StoreFailed(self.where, str(error), "read") from error

    @asynccontextmanager
    async def instant(self) -> AsyncIterator[None]:
        await self.rows("BEGIN")
        try:
            yield
        finally:
            await self.rows("END")


class _Postgres(AdkDatabase):
    """A server."""

    def __init__(self, url: str, connection: Any) -> None:
        self.where, self._connection = url, connection

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str, rest: str) -> AsyncIterator[AdkDatabase]:
        try:
            import asyncpg
        except ModuleNotFoundError as error:
            raise ExtraMissing("asyncpg", "postgres") from error
        try:
            connection = await asyncpg.connect(f"postgresql://{rest}")
        except (OSError, asyncpg.PostgresError, ValueError) as error:
            raise StoreFailed("the ADK database", str(error), "read") from error
        try:
            yield cls(url, connection)
        finally:
            await connection.close()

    async def rows(self, sql: str, *args: str) -> list[tuple[Any, ...]]:
        import asyncpg

        try:
            return [
                tuple(row) for row in await self._connection.fetch(sql.replace("?", "$"), *args)
            ]
        except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
            raise _Missing from error
        except (OSError, asyncpg.PostgresError) as error:
            raise StoreFailed("the ADK database", str(error), "read") from error

    @asynccontextmanager
    async def instant(self) -> AsyncIterator[None]:
        async with self._connection.transaction(isolation="repeatable_read", readonly=True):
            yield


def _event(id: str, invocation_id: str, at: Any, data: Any) -> dict[str, Any]:
    """An event as ADK itself reads it: the columns count, but for the exact time in the data."""
    event = {**_json(data), "id": id, "invocation_id": invocation_id}
    event.setdefault("timestamp", _seconds(at))
    event.setdefault("author", "")
    event.setdefault("actions", {})
    return event


def _seconds(at: Any) -> float:
    """A column of times: seconds, or UTC without a zone, as text or not."""
    if isinstance(at, (int, float)):
        return float(at)
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    return float((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def _json(text: Any) -> dict[str, Any]:
    value = json.loads(text) if isinstance(text, (str, bytes)) else text
    return value if isinstance(value, dict) else {}
