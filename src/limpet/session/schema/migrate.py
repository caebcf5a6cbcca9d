"""Migrating a whole store: what would become of every session, and making it so.

Goes through the heads in the order of creation, page by page. Heads have the schema version, so
only sessions that have to be migrated are loaded; each goes the way that a load goes, alone and in
one commit of its own. The outcome of one session is reported, and the next one follows. An
interrupted run has done some of the work; the next run finds the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from limpet.errors import (
    IntegrityViolation,
    InvalidInput,
    LimpetError,
    MigrationAmbiguous,
    MigrationError,
    MigrationFailed,
    MigrationMissing,
    SchemaIncompatible,
    SchemaViolation,
    SessionConflict,
    SessionCorrupt,
    SessionDeleted,
    SessionErased,
    SessionLocked,
    SessionMoved,
    SessionNotFound,
    StoreCorrupt,
)
from limpet.model import Head, Key, apply
from limpet.model.facts.moves import departure
from limpet.model.facts.phases import is_stub
from limpet.model.state.migrations import MigrationRegistry, check_registry
from limpet.session.journal import Journal
from limpet.session.loggers import SESSION
from limpet.session.schema.upgrade import Upgrade
from limpet.session.writer import Loading
from limpet.store.pages import head_pages
from limpet.store.protocol import Page, Progress, Query, plural

# The outcome for a session:
#   untyped       it has no schema version and is left alone
#   compatible    it is read as it is
#   migratable    a way leads to the target, it was walked and the outcome can be recorded
#   migrated      the same, and it was recorded
#   missing       no way leads from its version to the target
#   ambiguous     several do, equally good
#   failed        a migration raised, or made what cannot be recorded
#   incompatible  newer code wrote it and there is no way back, or its version is none
#   unfit         what comes out does not fit the State class
#   damaged       what is stored is not what was written
#   busy          a worker holds its lease, or other writers were faster, again and again
Fate: TypeAlias = Literal[
    "untyped",
    "compatible",
    "migratable",
    "migrated",
    "missing",
    "ambiguous",
    "failed",
    "incompatible",
    "unfit",
    "damaged",
    "busy",
]
FATES: Final[tuple[Fate, ...]] = get_args(Fate)
Failure: TypeAlias = Callable[[Key, Fate, str], None]  # told of a session, its fate and the reason
_POSSIBLE: Final = FATES[:4]
NAMED_MAX: Final = 1_000  # for each fate: what a person works through, and memory holds
_SAID_CHARS: Final = 300  # of what a migration raised
_AT_ONCE: Final = 32  # sessions under way: enough to share round trips and fsyncs

# The first that fits counts.
_REASONS: Final[tuple[tuple[type[LimpetError], Fate], ...]] = (
    (MigrationMissing, "missing"),
    (MigrationAmbiguous, "ambiguous"),
    (MigrationFailed, "failed"),
    (SchemaIncompatible, "incompatible"),
    (SchemaViolation, "unfit"),
    (InvalidInput, "failed"),  # too large for an event, or beyond the reach of operations
    (IntegrityViolation, "damaged"),
    (SessionCorrupt, "damaged"),
    (StoreCorrupt, "damaged"),
    (SessionConflict, "busy"),
    (SessionLocked, "busy"),
)
_IMPOSSIBLE: Final = tuple(kind for kind, _ in _REASONS)
_GONE: Final = (SessionNotFound, SessionDeleted, SessionErased, SessionMoved)


class MigrationOutcome(msgspec.Struct, frozen=True):
    """The number of sessions with the same fate, and the first of them with the reason."""

    fate: Fate
    sessions: int
    key: Key
    reason: str  # the way that is taken, or the words of the error; empty if there is none
    # If it is impossible, every session with its reason, up to NAMED_MAX of them; migrate passes
    # all of them to its `failure`.
    named: tuple[tuple[Key, str], ...] = ()

    @property
    def ok(self) -> bool:
        """True if the session is at the target version, or can be."""
        return self.fate in _POSSIBLE

    @property
    def left_off(self) -> int:
        """The number of impossible sessions that are not named."""
        return 0 if self.ok else self.sessions - len(self.named)

    def __str__(self) -> str:
        """One line: how many, and the first of them with the reason, if there is one."""
        line = f"{self.fate}: {plural(self.sessions, 'session')}"
        return f"{line}, the first {self.key}: {self.reason}" if self.reason else line


class MigrationPlan(msgspec.Struct, frozen=True):
    """The fate of every session on the way to `target`; with `applied`, the results."""

    target: str
    applied: bool
    outcomes: tuple[MigrationOutcome, ...]  # one for each fate that was met, in the order of FATES
    # Names that migrated state still holds and the class does not declare, in how many sessions:
    # left alone, and perhaps forgotten by a migration. Told by a dry run with a class.
    leftovers: Mapping[str, int] = {}

    @property
    def ok(self) -> bool:
        """True if every session can be migrated."""
        return all(outcome.ok for outcome in self.outcomes)

    @property
    def sessions(self) -> int:
        """The number of sessions that were looked at."""
        return sum(outcome.sessions for outcome in self.outcomes)

    def count(self, *fates: Fate) -> int:
        """Return the number of sessions with one of these fates."""
        return sum(outcome.sessions for outcome in self.outcomes if outcome.fate in fates)

    @property
    def summary(self) -> str:
        """Return in a sentence how many can be migrated, or were, and how many cannot."""
        able = self.count("migrated" if self.applied else "migratable")
        verb = "migrated" if self.applied else "to be migrated"
        text = f"{plural(able, 'session')} of {self.sessions:,} {verb} to schema {self.target}"
        stuck = sum(outcome.sessions for outcome in self.outcomes if not outcome.ok)
        if self.applied:
            left = f", {stuck:,} could not be migrated and are unchanged" if stuck else ""
        else:
            left = (f", {stuck:,} cannot be migrated" if stuck else "") + "; nothing was written"
        return f"{'ok' if self.ok else 'not ok'}: {text}{left}."

    def __str__(self) -> str:
        """A line for each fate, and the summary."""
        left = [
            f"left over: {name}, in {plural(n, 'session')}" for name, n in self.leftovers.items()
        ]
        return "\n".join([*map(str, self.outcomes), *left, self.summary])


class _Tally:
    """Counts, the first session of each fate, and those for which there is no way."""

    def __init__(self, failure: Failure | None) -> None:
        self.done = 0
        self._failure = failure
        self._counts: dict[Fate, int] = {}
        self._first: dict[Fate, tuple[Key, str]] = {}
        self._named: dict[Fate, list[tuple[Key, str]]] = {}
        self.leftovers: dict[str, int] = {}

    def add(self, key: Key, fate: Fate, reason: str = "") -> None:
        self.done += 1
        self._counts[fate] = self._counts.get(fate, 0) + 1
        self._first.setdefault(fate, (key, reason))
        if fate in _POSSIBLE:
            return
        if self._counts[fate] <= NAMED_MAX:
            self._named.setdefault(fate, []).append((key, reason))
        if self._failure is not None:
            self._failure(key, fate, reason)

    def outcomes(self) -> tuple[MigrationOutcome, ...]:
        return tuple(self._outcome(fate) for fate in FATES if fate in self._counts)

    def _outcome(self, fate: Fate) -> MigrationOutcome:
        named = tuple(self._named.get(fate, ()))
        return MigrationOutcome(fate, self._counts[fate], *self._first[fate], named)


class Migrating:
    """One run over a store."""

    def __init__(
        self,
        journal: Journal,
        upgrade: Upgrade,
        *,
        app: str | None,
        apply: bool,
        actor: str | None = None,
        failure: Failure | None = None,
    ) -> None:
        self._journal, self._upgrade, self._app, self._apply = journal, upgrade, app, apply
        self._actor = actor
        self._ways: dict[str, str | MigrationError] = {}  # by stored version
        self._tally = _Tally(failure)

    async def run(self, progress: Progress | None) -> MigrationPlan:
        total = 0
        if progress is not None:
            total = sum([len(page.items) async for page in self._pages()])
        async for page in self._pages():
            waiting = [head for head in page.items if not self._settle(head)]
            for start in range(0, len(waiting), _AT_ONCE):
                await self._several(waiting[start : start + _AT_ONCE])
                if progress is not None:
                    progress(self._tally.done, max(total, self._tally.done))
        if progress is not None:
            progress(self._tally.done, self._tally.done)
        target, outcomes = str(self._upgrade.code), self._tally.outcomes()
        plan = MigrationPlan(target, self._apply, outcomes, self._tally.leftovers)
        if self._apply:
            stuck = sum(outcome.sessions for outcome in outcomes if not outcome.ok)
            fields = (target, plan.sessions, plan.count("migrated"), stuck)
            text = "sessions migrated: to=%s sessions=%d migrated=%d impossible=%d"
            SESSION.log(logging.WARNING if stuck else logging.INFO, text, *fields)
        return plan

    def _pages(self) -> AsyncIterator[Page[Head]]:
        """Oldest first, which no write changes: each session is met once."""
        return head_pages(self._journal.store, Query(app=self._app, reverse=False))

    def _settle(self, head: Head) -> bool:
        """True if the version alone tells what becomes of the session."""
        if departure(head.facts) is not None:
            return True  # it is migrated where it is
        version = head.schema_version
        if version is None:
            self._tally.add(head.key, "untyped")
            return True
        way = self._way(version)
        if isinstance(way, MigrationError):
            self._tally.add(head.key, _fate(way), str(way))
        elif not way:
            self._tally.add(head.key, "compatible")
        return isinstance(way, MigrationError) or not way

    def _way(self, version: str) -> str | MigrationError:
        """The way from a version in words; empty if there is nothing to do."""
        if version not in self._ways:
            try:
                way = self._upgrade.way(version)
                stops = (version, *(str(step.target) for step in way)) if way else ()
                self._ways[version] = " → ".join(stops)
            except MigrationError as error:
                self._ways[version] = error
        return self._ways[version]

    async def _several(self, heads: list[Head]) -> None:
        """Some sessions side by side; when one stops the run, the others are waited for."""
        ended = await asyncio.gather(*map(self._one, heads), return_exceptions=True)
        for head, met in zip(heads, ended, strict=True):
            if isinstance(met, BaseException):
                raise met
            if met is not None:
                self._tally.add(head.key, *met)

    async def _one(self, head: Head) -> tuple[Fate, str] | None:
        """Return what becomes of a session whose version asks for a way; None if it is gone."""
        try:
            needed = await (self._migrate(head.key) if self._apply else self._try(head.key))
        except _GONE:
            return None  # deleted since its head was read, or moved
        except _IMPOSSIBLE as error:
            return _fate(error), _reason(error)
        if not needed:  # another was faster
            return "compatible", ""
        return "migrated" if self._apply else "migratable", str(
            self._way(head.schema_version or "")
        )

    async def _migrate(self, key: Key) -> bool:
        loading = Loading(self._journal, key, self._actor)
        _, moved = await loading.load(self._upgrade, tail=0, scopes=False, at_least="")
        return moved is not None

    async def _try(self, key: Key) -> bool:
        """Do everything that comes before the commit, except verifying the whole log."""
        loaded = await self._journal.store.load(key, tail=0, scopes=False)
        if is_stub(loaded.head.facts) or not self._upgrade.way(loaded.head.schema_version):
            return False  # what is archived is brought forward when it comes back and is loaded
        prepared = Loading(self._journal, key, self._actor).propose(self._upgrade, loaded)
        for name in self._upgrade.undeclared(apply(loaded.fields, prepared.plain_ops)):
            self._tally.leftovers[name] = self._tally.leftovers.get(name, 0) + 1
        return True


def upgrade_of(migrations: MigrationRegistry, state_type: type | None) -> Upgrade:
    """Return the target of the migrations: the class, or the newest version that one of them
    makes."""
    check_registry(migrations)
    if state_type is not None:
        from limpet.session.schema.typed import Typed

        return Typed(state_type, migrations)
    if not len(migrations):
        raise InvalidInput(
            "the registry holds no migration, so there is no version to migrate to. Register one, "
            "or give the State class too."
        )
    # Without a class no code is named that could not read a newer minor: that is left alone.
    return Upgrade(max(step.target for step in migrations.migrations), migrations, "keep")


def _reason(error: LimpetError) -> str:
    """Return the text of an error, including what a failed migration function raised."""
    cause = error.__cause__
    if not isinstance(error, MigrationFailed) or cause is None or isinstance(cause, LimpetError):
        return str(error)
    said = " ".join(str(cause).split())[:_SAID_CHARS]
    return f"{error} It said: {said}" if said else str(error)


def _fate(error: LimpetError) -> Fate:
    return next(fate for kind, fate in _REASONS if isinstance(error, kind))
