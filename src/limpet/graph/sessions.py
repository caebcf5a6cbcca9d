"""Sessions of a graph: the store protocol, the store in memory, and the session of one invocation.

The engine needs `load` and `save` of a store; it calls `save(session_id, record)` without keywords
unless the graph was bound with conflicts="raise". `delete` and `list` are for applications. Locks
are a second protocol. A store of your own needs no base class: four coroutines with these names are
enough. All stores of ours check their arguments here and refuse the same: one in memory that took
what a file refuses would let a program pass its tests and fail in production.

A `Binding` loads, migrates and merges at the entry and saves at the end. The loaded state is the
base. Of the caller's initial state only fields that were set explicitly are folded in, through the
reducers: a new message is added to the history, and defaults replace nothing. With
on_load="replace" the stored fields replace what was given. Only the fields of the session's own
State class are stored; all others belong to one invocation.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from limpet.errors import (
    InvalidCursor,
    InvalidInput,
    InvalidQuery,
    InvalidSchema,
    InvalidValue,
    MappingReferencesUndeclaredField,
    SessionLoadFailed,
    SessionSaveFailed,
    SessionWriteConflict,
    error_text,
)
from limpet.graph.state import ExplicitMapping, Projection, StatePlan
from limpet.model import Key, described, unfit
from limpet.model.limits import LABEL_VALUE_CHARS_MAX, STATE_DEPTH_MAX
from limpet.model.ops import check_name
from limpet.model.state.label_migrations import LabelRegistry
from limpet.model.values import round_trip, settle
from limpet.session.arguments import moment_us

T = TypeVar("T")
F = TypeVar("F")
_decode: Final = msgspec.json.Decoder().decode
Conflicts: TypeAlias = Literal["overwrite", "raise"]
OnLoad: TypeAlias = Literal["merge", "replace"]


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A session as a store keeps it. `state` is plain JSON data, in the shape of `schema_version`.

    The store sets the times and `version`, a number that grows with every save; the engine leaves
    them None.
    """

    session_id: str
    state: dict[str, Any]
    schema_version: str = ""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    version: int | None = None


class SessionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A session in a listing, without its state."""

    session_id: str
    schema_version: str = ""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    version: int | None = None


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the sessions that match every field that is given. Times are exclusive.

    With `limit` a listing has at most that many; pass its `cursor` to get the next ones.
    """

    updated_after: datetime | None = None
    created_after: datetime | None = None
    schema_version: str | None = None
    limit: int | None = None
    cursor: str | None = None


class RecordListing(tuple[T, ...], Generic[T]):
    """A page of a listing: a tuple, with the `cursor` of the next page, or None at the end."""

    cursor: str | None = None

    @classmethod
    def of(cls, items: Any, cursor: str | None = None) -> RecordListing[T]:
        """A listing of these items."""
        made = cls(items)
        made.cursor = cursor
        return made


@runtime_checkable
class SessionStore(Protocol):
    """Keeps one record for each session id."""

    async def load(self, session_id: str, /) -> SessionRecord | None:
        """The newest record; None if there is none. A record of any schema version is returned."""
        ...

    async def save(self, session_id: str, record: SessionRecord, /) -> object:
        """Replace the session's record, all or nothing, durable on return. The last save wins.

        A store may also accept `expected_version=`: the `version` of the record that the caller
        loaded, 0 if there was none. It then raises SessionWriteConflict, and changes nothing, if
        the stored version is another one, and returns the new version. A save after a delete
        starts a new session.
        """
        ...

    async def delete(self, session_id: str, /) -> None:
        """Remove the session. Does nothing if there is none."""
        ...

    async def list(self, filter: SessionFilter | None = None, /) -> RecordListing[SessionSummary]:
        """Summaries of the sessions that match the filter; of all sessions without one."""
        ...


@runtime_checkable
class SessionLocks(Protocol):
    """Locks that applications may take around invocations. The engine takes none."""

    async def acquire_lock(self, session_id: str, /) -> object:
        """Wait for the session's lock and take it. The session need not exist."""
        ...

    async def release_lock(self, session_id: str, /) -> None:
        """Release the lock that this store object holds. Does nothing if it holds none."""
        ...


class InMemorySessionStore:
    """A session store for tests and experiments: everything ends with the process.

    It refuses what the other stores refuse. A version is never used twice for one id, also if the
    session is deleted in between.
    """

    def __init__(self) -> None:
        self._records: dict[str, SessionRecord] = {}
        self._versions: dict[str, int] = {}  # the last one of each id, deleted or not
        self._locks: dict[str, asyncio.Lock] = {}

    async def load(self, session_id: str, /) -> SessionRecord | None:
        """The newest record, as a copy."""
        record = self._records.get(session_key(session_id))
        return None if record is None else _copy(record)

    async def save(
        self, session_id: str, record: SessionRecord, /, *, expected_version: int | None = None
    ) -> int:
        """Replace the record. Returns its version."""
        old = self._records.get(session_key(session_id))
        current = 0 if old is None else self._versions[session_id]
        made = _copy(check_record(record))
        if expected_version is not None and expected_version != current:
            raise SessionWriteConflict(session_id, expected_version, current)
        now, version = datetime.now(UTC), self._versions.get(session_id, 0) + 1
        self._versions[session_id] = version
        self._records[session_id] = msgspec.structs.replace(
            made,
            session_id=session_id,
            created_at=now if old is None else old.created_at,
            updated_at=now,
            version=version,
        )
        return version

    async def delete(self, session_id: str, /) -> None:
        """Remove the session, if there is one."""
        self._records.pop(session_key(session_id), None)

    async def list(self, filter: SessionFilter | None = None, /) -> RecordListing[SessionSummary]:
        """Summaries in the order of their ids."""
        wanted = filter_of(filter, SessionFilter)
        summaries = [_summary(self._records[name]) for name in sorted(self._records)]
        summaries = [item for item in summaries if _matches(item, wanted)]
        return page_of(
            summaries, [item.session_id for item in summaries], wanted.limit, wanted.cursor
        )

    async def acquire_lock(self, session_id: str, /) -> None:
        """Wait for the session's lock and take it."""
        await self._locks.setdefault(session_key(session_id), asyncio.Lock()).acquire()

    async def release_lock(self, session_id: str, /) -> None:
        """Release the lock, if it is held."""
        lock = self._locks.get(session_key(session_id))
        if lock is not None and lock.locked():
            lock.release()


def _copy(record: SessionRecord) -> SessionRecord:
    return msgspec.structs.replace(record, state=exact(record.state, "the state"))


def _summary(record: SessionRecord) -> SessionSummary:
    return SessionSummary(
        session_id=record.session_id,
        schema_version=record.schema_version,
        created_at=record.created_at,
        updated_at=record.updated_at,
        version=record.version,
    )


def _matches(item: SessionSummary, wanted: SessionFilter) -> bool:
    times = (
        (item.updated_at, wanted.updated_after),
        (item.created_at, wanted.created_after),
    )
    if any(after is not None and (at is None or at <= after) for at, after in times):
        return False
    return wanted.schema_version is None or item.schema_version == wanted.schema_version


def page_of(
    items: list[T], ids: list[str], limit: int | None, cursor: str | None
) -> RecordListing[T]:
    """The page of sorted items that begins after the id in `cursor`."""
    if cursor is not None and not isinstance(cursor, str):
        raise InvalidCursor
    start = sum(1 for name in ids if name <= cursor) if cursor is not None else 0
    stop = len(items) if limit is None else min(len(items), start + limit)
    after = ids[stop - 1] if start < stop < len(items) else None
    return RecordListing.of(items[start:stop], after)


def check_record(record: Any) -> SessionRecord:
    """The record, if a store can keep one like it. Raises InvalidInput, or what is wrong in it."""
    if not isinstance(record, SessionRecord):
        raise InvalidInput(f"{described(record)} is not a SessionRecord. Pass one.")
    if not isinstance(record.state, dict) or not isinstance(record.schema_version, str):
        raise InvalidInput("a session record has a dict as its state and a text as schema_version.")
    for name in record.state:
        own_name(name)
    schema_label(record.schema_version)
    return record


def session_key(session_id: Any) -> str:
    """The id of a session: what may be the id in a key. Raises InvalidInput."""
    if not isinstance(session_id, str) or not session_id:
        raise InvalidInput(f"a session id is a text that is not empty, not {session_id!r}.")
    return Key("graph", "sessions", session_id).id


def own_name(name: Any) -> str:
    """The name of a field of a session's own state. Raises InvalidOp or InvalidValue."""
    if isinstance(name, str) and ":" in name:
        raise InvalidValue("the state", f"has the name {name!r}; names have no colon")
    return check_name(name)


def filter_of(given: F | None, kind: type[F]) -> F:
    """The filter of a listing; one that matches everything if none is given."""
    wanted: Any = kind() if given is None else given
    if not isinstance(wanted, kind):
        raise InvalidQuery(f"a filter is a {kind.__name__}, not {described(wanted)}")
    limit = wanted.limit  # type: ignore[attr-defined]  # both filters have one
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InvalidQuery(f"a limit is a number from 1, or None for all, not {described(limit)}")
    for name in wanted.__struct_fields__:  # type: ignore[attr-defined]  # both are structs
        if name.endswith("_after"):
            moment_us(name, getattr(wanted, name))
    return wanted


def exact(value: Any, where: str) -> Any:
    """A plain copy of a JSON value. Raises InvalidValue for what JSON would change, such as NaN."""
    trip = round_trip(value, _decode)
    return settle(value, where, depth_max=STATE_DEPTH_MAX) if trip is None else trip[1]


def label_text(text: str) -> str:
    """The text itself, or quoted where a label cannot hold it; a digest where it is too long."""
    if unfit(text, LABEL_VALUE_CHARS_MAX) is None and not text.startswith('"'):
        return text
    quoted = json.dumps(text)
    if len(quoted) <= LABEL_VALUE_CHARS_MAX:
        return quoted
    return f'"sha256:{hashlib.sha256(quoted.encode()).hexdigest()}'


def schema_label(version: str) -> str:
    """The label of a schema version. Raises InvalidSchema if it cannot be read back."""
    label = label_text(version)
    if schema_of(label) != version:
        advice = "Name a version by a short text, such as 'v1' or '2026-05'"
        raise InvalidSchema(f"a version of {len(version):,} characters cannot be stored", advice)
    return label


def schema_of(label: str) -> str:
    """The schema version that a label holds."""
    if not label.startswith('"') or not label.endswith('"'):
        return label
    return str(json.loads(label))


class SessionConfig:
    """The session settings of a graph, compiled."""

    def __init__(
        self,
        store: SessionStore,
        plan: StatePlan[Any],
        session: StatePlan[Any] | None,
        projection: Projection,
        migrations: LabelRegistry,
        *,
        auto_save: bool,
        conflicts: Conflicts,
        on_load: OnLoad = "merge",
    ) -> None:
        self.store, self.auto_save, self.conflicts = store, auto_save, conflicts
        self.on_load = on_load
        self.plan, self.session, self.migrations = plan, session, migrations
        self.inward: dict[str, str] = {}  # field of the state ← field of the session
        self.outward: dict[str, str] = {}  # field of the session ← field of the state
        if session is not None:
            state, kept = self.plan.fields, session.fields
            inward = dict(projection.inward(tuple(state), tuple(kept)))
            outward = dict(projection.outward(tuple(state), tuple(kept)))
            if isinstance(projection, ExplicitMapping):  # one direction stands for both
                outward = dict(projection.outputs or {})
            inward, outward = _orient(inward, state, kept), _orient(outward, kept, state)
            declared = hasattr(projection, "in_fields")  # both directions are complete as listed
            self.inward = inward or ({} if declared else {of: name for name, of in outward.items()})
            self.outward = outward or (
                {} if declared else {of: name for name, of in inward.items()}
            )
            for name, of in self.inward.items():
                _check(name, self.plan, of, session)
            for name, of in self.outward.items():
                _check(of, self.plan, name, session)
            for name in kept:
                if name not in self.outward and not declared:
                    raise MappingReferencesUndeclaredField("session", name, self.plan.name)
        migrations.check(self.stored.version)

    @property
    def stored(self) -> StatePlan[Any]:
        """The class whose fields are stored."""
        return self.plan if self.session is None else self.session

    def loads(self, name: str) -> bool:
        """True if a session gives this field of the state its value."""
        return self.session is None or name in self.inward


class Binding:
    """The session of one invocation."""

    def __init__(self, config: SessionConfig, session_id: str) -> None:
        self._config, self.session_id = config, session_id
        self._held: Any = None  # what was loaded, as the class that is stored
        self._version: int | None = 0
        self._saving = asyncio.Lock()  # saves take effect in the order of their calls

    async def load(self) -> bool:
        """Load the session and migrate it; False if there is none. Nothing has run if it raises."""
        config = self._config
        try:
            record = await config.store.load(self.session_id)
            if record is None:
                return False
            plain, version = record.state, record.schema_version
            if not isinstance(plain, Mapping):
                raise TypeError(f"the record's state is a {type(plain).__name__}, not a dict")
            self._version = getattr(record, "version", None)
            self._check_versions()
        except Exception as error:
            raise SessionLoadFailed(self.session_id, error_text(error)) from error
        wanted = config.stored.version
        if version != wanted:
            plain = config.migrations.migrate(dict(plain), version, wanted)
        self._held = config.stored.load(plain, f"the state of session {self.session_id!r}")
        return True

    def start_state(self, initial: Any) -> Any:
        """The state that the run starts with."""
        held, config, plan = self._held, self._config, self._config.plan
        if held is None:
            return initial
        replaces = config.on_load == "replace"
        if config.session is None:
            return held if replaces else plan.fold_in(held, initial)
        values = {name: getattr(held, of) for name, of in config.inward.items()}
        base = plan.overlay(initial, values, f"the state of session {self.session_id!r}")
        if replaces:
            return base
        outward = [name for name in values if name in initial.model_fields_set]
        return plan.apply(base, {n: getattr(initial, n) for n in outward}, "the initial state")

    def record(self, state: Any) -> SessionRecord:
        """The record of a state. Raises StateValidationError if it does not fit the session."""
        config, kept = self._config, state
        if config.session is not None:
            values = {} if self._held is None else dict(self._held.__dict__)
            values |= {name: getattr(state, of) for name, of in config.outward.items()}
            kept = config.session.validate(values, f"the state of session {self.session_id!r}")
        plain = config.stored.dump(kept)
        return SessionRecord(
            session_id=self.session_id, state=plain, schema_version=config.stored.version
        )

    async def save(self, state: Any, *, result: Any = None) -> None:
        """Save the session once: a store that refuses or fails is not asked again."""
        async with self._saving:
            try:
                record = self.record(state)
                self._check_versions()
                if self.expected is None:
                    version = await self._config.store.save(self.session_id, record)
                else:
                    save: Any = self._config.store.save  # one that takes the optional keyword
                    version = await save(self.session_id, record, expected_version=self.expected)
            except SessionWriteConflict as error:
                error.result = result
                raise
            except Exception as error:
                raise SessionSaveFailed(self.session_id, error_text(error), result) from error
            self.note_version(version)

    async def wait_saved(self) -> None:
        """Wait until no save is under way, nor waits for another."""
        async with self._saving:
            pass

    def _check_versions(self) -> None:
        """Refuse rather than overwrite: without a version a conflict could not be seen."""
        if self._config.conflicts == "raise" and self._version is None:
            raise TypeError("the store gives no version, which conflicts='raise' needs")

    @property
    def store(self) -> SessionStore:
        """The store that has the session."""
        return self._config.store

    @property
    def auto_save(self) -> bool:
        """True if the session is saved when the run ends or is suspended."""
        return self._config.auto_save

    @property
    def expected(self) -> int | None:
        """The version that the store must still have; None if the last save wins."""
        return self._version if self._config.conflicts == "raise" else None

    def note_version(self, version: object) -> None:
        """Note the version that a save returned."""
        known = isinstance(version, int) and not isinstance(version, bool)
        self._version = version if known else None  # type: ignore[assignment]  # an int, as checked


def _orient(
    mapping: Mapping[str, str], targets: Mapping[str, Any], sources: Mapping[str, Any]
) -> dict[str, str]:
    """The mapping as target ← source, also if it was written the other way round."""
    fits = all(n in targets and of in sources for n, of in mapping.items())
    turned = all(n in sources and of in targets for n, of in mapping.items())
    return {of: n for n, of in mapping.items()} if turned and not fits else dict(mapping)


def _check(name: str, plan: StatePlan[Any], of: str, session: StatePlan[Any]) -> None:
    if name not in plan.fields:
        raise MappingReferencesUndeclaredField("session", name, plan.name)
    if of not in session.fields:
        raise MappingReferencesUndeclaredField("session", of, session.name)


class KeyedLocks:
    """A lock for each name that somebody has or waits for; no other is kept.

    `async with turns.of(name):`
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[str, _KeyedLock] = {}

    def of(self, name: str) -> _KeyedLock:
        """The turn of this name, to be entered at once."""
        turn = self._held.get(name)
        if turn is None:
            turn = self._held[name] = _KeyedLock(self._held, name)
        return turn

    def __contains__(self, name: str) -> bool:
        return name in self._held


class _KeyedLock:
    __slots__ = ("_held", "_lock", "_name", "_users")

    def __init__(self, held: dict[str, _KeyedLock], name: str) -> None:
        self._held, self._name = held, name
        self._lock, self._users = asyncio.Lock(), 0

    async def __aenter__(self) -> None:
        self._users += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
        self._leave()

    def _leave(self) -> None:
        self._users -= 1
        if not self._users:
            del self._held[self._name]
