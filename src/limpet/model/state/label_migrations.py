"""Migrations between versions that are only names: "v1", "2026-05", and "" for none.

Graphs and session stores use these. A version is text, compared as it is and never parsed, so no
version is older than another: the path is the shortest one over the registered steps, in whichever
direction they lead. Typed sessions declare SemVer and use `migrations`, which has rules for it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from limpet.errors import (
    InvalidSchema,
    InvalidValue,
    Lifecycle,
    MigrationAmbiguous,
    MigrationFailed,
    MigrationMissing,
    SchemaIncompatible,
    Step,
)
from limpet.model.limits import MIGRATION_PATHS_SHOWN_MAX, NAME_CHARS_MAX
from limpet.model.state.migrations import (
    Fields,
    Function,
    applied,
    check_function,
    check_lifecycle,
    name_of,
    plain_copy,
    why,
)

_WRITE: Final = "Name a version by a text, such as 'v1', '2026-05' or '' for none"


class LabelMigration(msgspec.Struct, frozen=True):
    """One registered step: a pure function from state of one version to state of another."""

    source: str
    target: str
    fn: Function

    @property
    def step(self) -> Step:
        """Its two versions, as errors show them."""
        return (self.source, self.target)

    def __str__(self) -> str:
        source, target = (version or repr(version) for version in self.step)
        return f"{source} → {target} ({name_of(self.fn)})"


LabelWay: TypeAlias = tuple[LabelMigration, ...]


class LabelRegistry:
    """The migrations of one graph's sessions, or of its checkpoints. `description` names them.

    `lifecycle` decides which errors it raises: session_state_migration_… or
    checkpoint_state_migration_….
    """

    def __init__(self, description: str = "", *, lifecycle: Lifecycle = "session") -> None:
        check_lifecycle(lifecycle)
        self.description, self.lifecycle = description, lifecycle
        self._steps: dict[Step, LabelMigration] = {}

    def register(self, source: str, target: str, fn: Function) -> None:
        """Add the function that turns state of `source` into state of `target`.

        It receives a plain copy, which it may change, and returns a dict that can be stored. Raises
        InvalidSchema for a version that is not text or a step that leads nowhere, and
        MigrationAmbiguous if this step is already registered.
        """
        step = (check_label(source), check_label(target))
        check_function(fn, step)
        if source == target:
            raise InvalidSchema(
                f"a migration from {source!r} to itself changes nothing",
                "Register it between two different versions, or leave it out",
            )
        made = LabelMigration(source, target, fn)
        if self._steps.setdefault(step, made) is not made:
            raise MigrationAmbiguous(self.lifecycle, *step, ((step,), (step,)))

    @property
    def migrations(self) -> LabelWay:
        """All registered migrations, in the order of their versions' texts."""
        return tuple([self._steps[step] for step in sorted(self._steps)])

    def __len__(self) -> int:
        return len(self._steps)

    def describe(self) -> str:
        """The description of the registry, if given, and a line for each migration."""
        lines = [str(migration) for migration in self.migrations]
        return "\n".join([self.description] * bool(self.description) + lines) or "no migrations"

    def check(self, target: str) -> None:
        """Raise MigrationAmbiguous if several shortest paths lead from a source to `target`.

        If it raises nothing, no load can find an ambiguous path to this version.
        """
        for source in dict.fromkeys(migration.source for migration in self.migrations):
            if source != target and len(ways := self._shortest(source, target)) > 1:
                raise self._ambiguous(source, target, ways)

    def reaches(self, source: str, target: str) -> bool:
        """True if registered steps lead from one version to the other."""
        return source == target or bool(self._shortest(source, target))

    def path(self, source: str, target: str) -> LabelWay:
        """The steps of the one shortest path; empty if the versions are the same text.

        Raises MigrationMissing and MigrationAmbiguous.
        """
        if source == check_label(target):
            return ()
        ways = self._shortest(source, target)
        if not ways:
            raise MigrationMissing(
                self.lifecycle, source, target, len(self), self.describe(), self._advice()
            )
        if len(ways) > 1:
            raise self._ambiguous(source, target, ways)
        return ways[0]

    def migrate(self, fields: Fields, source: str, target: str) -> Fields:
        """Stored `fields` of version `source` as plain fields of version `target`.

        All or nothing, on copies: `fields` never change. Raises what `path` raises;
        MigrationFailed with its cause, after which no later step runs; SchemaIncompatible if the
        stored version or state is not valid.
        """
        try:
            check_label(source)
            plain = plain_copy(fields, "the state")
        except (InvalidSchema, InvalidValue) as error:
            raise SchemaIncompatible(
                self.lifecycle, _shortened(source), target, why(error)
            ) from error
        failed = partial(MigrationFailed, self.lifecycle, source, target)
        for migration in self.path(source, target):
            plain = applied(migration.fn, migration.step, plain, failed)
        return plain

    def _shortest(self, source: str, target: str) -> list[LabelWay]:
        """The shortest paths: one, none, or as many equals as an error shows.

        Breadth first, a layer at a time. A version keeps as many ways as an error shows: ties
        survive to the end, and their number cannot explode.
        """
        onward: dict[str, list[LabelMigration]] = {}
        for migration in self.migrations:  # sorted: the order of registration decides nothing
            onward.setdefault(migration.source, []).append(migration)
        layer: dict[str, list[LabelWay]] = {source: [()]}
        seen = {source}
        while layer and target not in layer:
            reached: dict[str, list[LabelWay]] = {}
            for at, ways in layer.items():
                for migration in onward.get(at, ()):
                    if migration.target not in seen:
                        longer = [(*way, migration) for way in ways]
                        reached.setdefault(migration.target, []).extend(longer)
            seen.update(reached)
            layer = {at: ways[:MIGRATION_PATHS_SHOWN_MAX] for at, ways in reached.items()}
        return layer.get(target, [])

    def _ambiguous(self, source: str, target: str, ways: list[LabelWay]) -> MigrationAmbiguous:
        paths = tuple([tuple([migration.step for migration in way]) for way in ways])
        return MigrationAmbiguous(self.lifecycle, source, target, paths)

    def _advice(self) -> str:
        verb = "with_session_migration" if self.lifecycle == "session" else "with_state_migration"
        return f"Register one on the graph's builder: {verb}(from_version, to_version, function)"


def check_label(version: Any) -> str:
    """Return the version. Raises InvalidSchema if it is not a text of a sensible length."""
    if not isinstance(version, str):
        raise InvalidSchema(f"a version is text, and this is {type(version).__name__}", _WRITE)
    if len(version) > NAME_CHARS_MAX:
        raise InvalidSchema(f"a version has at most {NAME_CHARS_MAX} characters", _WRITE)
    return version


def _shortened(version: Any) -> str:
    """The stored version, shortened for an error."""
    return version[:64] if isinstance(version, str) else type(version).__name__
