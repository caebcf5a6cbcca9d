"""Binding: an invocation and its session. Load, migrate and merge at the entry; save at the end.

The loaded state is the base. Of the caller's initial state only fields that were set explicitly are
folded in, through the reducers: a new message is added to the history, and defaults replace
nothing. With on_load="replace" nothing is folded in: what is stored replaces what was given. Only
the fields of the session's own State class are stored; all others belong to one invocation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from limpet.errors import (
    MappingReferencesUndeclaredField,
    SessionLoadFailed,
    SessionSaveFailed,
    SessionWriteConflict,
)
from limpet.errors.graph import said
from limpet.graph.project import ExplicitMapping, Projection
from limpet.graph.sessions import SessionRecord, SessionStore
from limpet.graph.state import StatePlan
from limpet.model.state.labels import LabelRegistry

Conflicts: TypeAlias = Literal["overwrite", "raise"]
OnLoad: TypeAlias = Literal["merge", "replace"]


class SessionConfig:
    """How a graph keeps its sessions, compiled."""

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
            self._map(session, projection)
        migrations.check(self.stored.version)

    @property
    def stored(self) -> StatePlan[Any]:
        """The class whose fields are stored."""
        return self.plan if self.session is None else self.session

    def loads(self, name: str) -> bool:
        """True if a session gives this field of the state its value."""
        return self.session is None or name in self.inward

    def _map(self, session: StatePlan[Any], projection: Projection) -> None:
        state, kept = self.plan.fields, session.fields
        inward = dict(projection.inward(tuple(state), tuple(kept)))
        outward = dict(projection.outward(tuple(state), tuple(kept)))
        if isinstance(projection, ExplicitMapping):  # one direction stands for both
            outward = dict(projection.outputs or {})
        inward, outward = _oriented(inward, state, kept), _oriented(outward, kept, state)
        declared = hasattr(projection, "in_fields")  # both directions are complete as listed
        self.inward = inward or ({} if declared else {of: name for name, of in outward.items()})
        self.outward = outward or ({} if declared else {of: name for name, of in inward.items()})
        for name, of in self.inward.items():
            _check(name, self.plan, of, session)
        for name, of in self.outward.items():
            _check(of, self.plan, name, session)
        for name in kept:
            if name not in self.outward and not declared:
                raise MappingReferencesUndeclaredField("session", name, self.plan.name)


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
            raise SessionLoadFailed(self.session_id, said(error)) from error
        wanted = config.stored.version
        if version != wanted:
            plain = config.migrations.migrate(dict(plain), version, wanted)
        self._held = config.stored.load(plain, f"the state of session {self.session_id!r}")
        return True

    def merged(self, initial: Any) -> Any:
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
            kept = config.session.made(values, f"the state of session {self.session_id!r}")
        plain = config.stored.dump(kept)
        return SessionRecord(
            session_id=self.session_id, state=plain, schema_version=config.stored.version
        )

    async def save(self, state: Any, *, result: Any = None) -> None:
        """Save the session once: a store that refuses or fails is not asked again."""
        async with self._saving:
            await self._save(state, result)

    async def settled(self) -> None:
        """Wait until no save is under way, nor waits for another."""
        async with self._saving:
            pass

    async def _save(self, state: Any, result: Any) -> None:
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
            raise SessionSaveFailed(self.session_id, said(error), result) from error
        self.saved(version)

    def _check_versions(self) -> None:
        """Without a version a conflict could not be seen: refuse rather than overwrite."""
        if self._config.conflicts == "raise" and self._version is None:
            raise TypeError("the store gives no version, which conflicts='raise' needs")

    @property
    def store(self) -> SessionStore:
        """The store that has the session."""
        return self._config.store

    @property
    def auto_save(self) -> bool:
        """Whether the session is saved when the run ends or is suspended."""
        return self._config.auto_save

    @property
    def expected(self) -> int | None:
        """The version that the store must still have; None if the last save wins."""
        return self._version if self._config.conflicts == "raise" else None

    def saved(self, version: object) -> None:
        """Note the version that a save returned."""
        known = isinstance(version, int) and not isinstance(version, bool)
        self._version = version if known else None  # type: ignore[assignment]  # an int, as checked


def _oriented(
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
