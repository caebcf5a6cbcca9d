"""Migrations: how state of one schema version becomes state of another.

A registry holds pure functions, each from one version to another. It finds the path from the
stored version to the version that the code declares, and runs its steps on a copy. It writes
nothing: the result becomes stored state only when the caller records it. `labels` does the same
for versions that are only names, without the rules below.

Three rules choose the path. PATCH never matters in any of them.

1. A migration accepts state of its source version and of every older minor of that MAJOR; its
   function must expect fields that were added since to be absent. Code reads older minors likewise.
2. A path stays in its MAJOR or moves towards the target MAJOR, never past it and never back. So a
   migration that was registered for a rollback is never used on the way forward.
3. The best path leaves the fewest minor versions to defaults, and then has the fewest steps. If
   several are equally good, the path is ambiguous and none is taken.

Where versions match exactly, this is simply the shortest path, without ties. Defaults matter only
where no exact path exists. Costs add up along a path, so each part of the best path is the best
path between its own ends, and migrations compose. --before
"""

from __future__ import annotations

import heapq
import inspect
import re
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import PurePath
from traceback import extract_tb
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from limpet.errors import (
    IntegrityViolation,
    InvalidInput,
    InvalidSchema,
    InvalidValue,
    Lifecycle,
    MigrationAmbiguous,
    MigrationFailed,
    MigrationMissing,
    SchemaIncompatible,
    Step,
)
from limpet.model.limits import MIGRATION_PATHS_SHOWN_MAX, STATE_DEPTH_MAX
from limpet.model.values import (
    FrozenDict,
    checksum,
    described,
    freeze,
    round_trip,
    settle,
    unfitting,
)

# The relation of stored state to the code that reads it:
#   same         the same MAJOR and MINOR
#   older_minor  the code has fields that the state lacks: their defaults fill them
#   newer_minor  written by newer code: refused, or kept as it is where the State class says so
#   migration    another MAJOR: a migration is needed
Relation: TypeAlias = Literal["same", "older_minor", "newer_minor", "migration"]
NewerMinor: TypeAlias = Literal["refuse", "keep"]  # what a State class says of newer code's state

# ASCII digits only, and so few that every number fits 64 bits.
_NUMBER: Final = "(0|[1-9][0-9]{0,17})"
_NUMBER_END: Final = 10**18
_VERSION: Final = rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}"
_WRITE: Final = "Write a version as MAJOR.MINOR.PATCH, as in '1.2.0'"


class SchemaVersion(msgspec.Struct, frozen=True, gc=False, order=True):
    """The version of a state's shape. Ordered by MAJOR, then MINOR, then PATCH."""

    major: int
    minor: int
    patch: int

    def __post_init__(self) -> None:
        for number in (self.major, self.minor, self.patch):
            if type(number) is not int or not 0 <= number < _NUMBER_END:
                raise InvalidSchema("the numbers of a version are integers from 0", _WRITE)

    @classmethod
    def parse(cls, text: str | SchemaVersion) -> SchemaVersion:
        """Return the version that a text names. Raises InvalidSchema if it names none."""
        if isinstance(text, SchemaVersion):
            return text
        if not isinstance(text, str):
            raise InvalidSchema(f"a version is text, and this is {type(text).__name__}", _WRITE)
        if (match := re.fullmatch(_VERSION, text)) is None:
            raise InvalidSchema(f"{text[:_SHOWN_CHARS]!a} {_problem(text)}", _WRITE)
        return cls(*map(int, match.groups()))

    @property
    def major_minor(self) -> tuple[int, int]:
        """MAJOR and MINOR: all that the shape depends on."""
        return (self.major, self.minor)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


def compatible(stored: SchemaVersion, code: SchemaVersion) -> bool:
    """True if code of one version reads state of another with only its defaults.

    The rule: the same MAJOR, and the code's MINOR is not older.
    """
    return stored.major == code.major and stored.minor <= code.minor


def relation(stored: SchemaVersion, code: SchemaVersion) -> Relation:
    """Return how the version of stored state relates to the code's version. PATCH never matters."""
    if stored.major != code.major:
        return "migration"
    if stored.minor == code.minor:
        return "same"
    return "older_minor" if stored.minor < code.minor else "newer_minor"


def _problem(text: str) -> str:
    if re.match(r"[0-9]+\.[0-9]+\.[0-9]+[-+]", text):
        return "names a pre-release or a build, which stored state never has"
    if re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", text):
        return "has a number with a leading zero or of more than 18 digits"
    return "is not MAJOR.MINOR.PATCH"


# --- migrations ------------------------------------------------------------------------------


Fields: TypeAlias = dict[str, Any]
Function: TypeAlias = Callable[[Fields], Fields]
F = TypeVar("F", bound=Function)
MajorMinor: TypeAlias = tuple[int, int]
Trail: TypeAlias = tuple["Trail", "Migration"] | None  # a way, last step first

_SHOWN_CHARS: Final = 64
_NEWER_MINOR: Final = (
    "newer code of the same MAJOR wrote it and no migration back is registered",
    "Deploy the newer code, register a migration back, or have this code work beside it with "
    'newer_minor = "keep" in its State class',
)


class Migration(msgspec.Struct, frozen=True):
    """One registered step: a pure function from state of one version to state of another."""

    source: SchemaVersion
    target: SchemaVersion
    fn: Function

    @property
    def step(self) -> Step:
        """Its two versions as text, as errors show them."""
        return (str(self.source), str(self.target))

    @property
    def name(self) -> str:
        """The name of its function."""
        return name_of(self.fn)

    def __str__(self) -> str:
        return f"{self.source} → {self.target}"


Way: TypeAlias = tuple[Migration, ...]


class Migrated(msgspec.Struct, frozen=True):
    """State of the new version, the steps taken, and the checksums before and after."""

    fields: FrozenDict
    path: Way  # empty if there was nothing to do
    checksum_before: str  # SHA-256 of the canonical encoding, as hex
    checksum_after: str


class MigrationRegistry:
    """The migrations of one kind of state. `description` names that kind in errors.

    They migrate session state unless `lifecycle` is "checkpoint"; its errors are of that kind.
    """

    def __init__(self, description: str = "", *, lifecycle: Lifecycle = "session") -> None:
        check_lifecycle(lifecycle)
        self.description, self.lifecycle = description, lifecycle
        self._steps: dict[tuple[MajorMinor, MajorMinor], Migration] = {}

    # --- registering ----------------------------------------------------------------------------

    def register(
        self,
        source: str | SchemaVersion,
        target: str | SchemaVersion,
        fn: Function,
    ) -> None:
        """Add the function that turns state of `source` into state of `target`.

        It receives a plain copy, which it may change, and returns a dict that can be stored. Raises
        InvalidSchema for invalid versions and versions that differ only in PATCH, and
        MigrationAmbiguous if this step is already registered.
        """
        made = Migration(SchemaVersion.parse(source), SchemaVersion.parse(target), fn)
        check_function(fn, made.step)
        if made.source.major_minor == made.target.major_minor:
            raise InvalidSchema(
                f"a migration {made} changes nothing, because PATCH never matters",
                "Register it between versions whose MAJOR or MINOR differ, or leave it out",
            )
        there = self._steps.setdefault((made.source.major_minor, made.target.major_minor), made)
        if there is not made:
            both = ((there.step,), (made.step,))
            raise MigrationAmbiguous(self.lifecycle, *made.step, both)

    def migration(
        self, source: str | SchemaVersion, target: str | SchemaVersion
    ) -> Callable[[F], F]:
        """Register a migration by decorator: `@registry.migration("1.2.0", "2.0.0")`."""

        def registered(fn: F) -> F:
            self.register(source, target, fn)
            return fn

        return registered

    # --- looking --------------------------------------------------------------------------------

    @property
    def migrations(self) -> Way:
        """All registered migrations, in version order."""
        return tuple(sorted(self._steps.values(), key=_versions))

    def __len__(self) -> int:
        return len(self._steps)

    def describe(self) -> str:
        """Return the description of the registry, if given, and a line for each migration."""
        lines = [f"{migration} ({migration.name})" for migration in self.migrations]
        return "\n".join([self.description] * bool(self.description) + lines) or "no migrations"

    def check(self, target: str | SchemaVersion) -> None:
        """Raise the first of `ambiguities`. Call it in a test or at startup, before any load."""
        for error in self.ambiguities(target):
            raise error

    def ambiguities(self, target: str | SchemaVersion) -> tuple[MigrationAmbiguous, ...]:
        """Return an error for each registered source whose path to `target` is ambiguous.

        If there are none, no stored version at all has an ambiguous path: an unregistered version
        takes the path of the next newer registered minor.
        """
        wanted = SchemaVersion.parse(target)
        ambiguous = []
        for source in {step.source.major_minor: step.source for step in self.migrations}.values():
            if len(ways := self._ways(source, wanted)) > 1:
                ambiguous.append(
                    MigrationAmbiguous(self.lifecycle, str(source), str(wanted), _shown(ways))
                )
        return tuple(ambiguous)

    def path(
        self,
        source: str | SchemaVersion,
        target: str | SchemaVersion,
        *,
        newer_minor: NewerMinor = "refuse",
    ) -> Way:
        """The steps from state stored under `source` to `target`; empty if none is needed.

        No step is needed if the two are compatible (see semver), or if the state has a newer minor
        that is to be kept and no migration back is registered. Raises MigrationAmbiguous,
        MigrationMissing, and SchemaIncompatible if the state is newer with no migration back.
        """
        stored, wanted = SchemaVersion.parse(source), SchemaVersion.parse(target)
        names = (str(stored), str(wanted))
        ways = self._ways(stored, wanted)
        if len(ways) > 1:
            raise MigrationAmbiguous(self.lifecycle, *names, _shown(ways))
        if ways:
            return ways[0]
        if stored.major == wanted.major:
            if newer_minor == "keep":
                return ()
            raise SchemaIncompatible(self.lifecycle, *names, *_NEWER_MINOR)
        if stored.major > wanted.major:
            reason = "newer code wrote it and no migration back is registered"
            raise SchemaIncompatible(self.lifecycle, *names, reason)
        raise MigrationMissing(self.lifecycle, *names, len(self), self.describe())

    # --- migrating ------------------------------------------------------------------------------

    def migrate(
        self,
        fields: Fields,
        source: str | SchemaVersion,
        target: str | SchemaVersion,
        *,
        expected: str | None = None,
        newer_minor: NewerMinor = "refuse",
    ) -> Migrated:
        """Migrate stored `fields` from version `source` to version `target` and return the result.

        All or nothing, on copies: if anything is raised, `fields` are unchanged. `expected` is the
        checksum that the state was stored with; it is compared before any function runs. Raises
        what `path` raises; IntegrityViolation; MigrationFailed with its cause; SchemaIncompatible
        if the stored version or state is invalid.
        """
        wanted = SchemaVersion.parse(target)
        try:
            stored, plain = SchemaVersion.parse(source), plain_copy(fields, "the state")
        except (InvalidSchema, InvalidValue) as error:
            raise SchemaIncompatible(
                self.lifecycle, _shortened(source), str(wanted), why(error)
            ) from error
        before = checksum(plain).hex()
        if expected is not None and expected != before:
            raise IntegrityViolation(f"the state of schema {stored}", expected, before)
        path = self.path(stored, wanted, newer_minor=newer_minor)
        failed = partial(MigrationFailed, self.lifecycle, str(stored), str(wanted))
        for migration in path:
            plain = applied(migration.fn, migration.step, plain, failed)
        after = checksum(plain).hex() if path else before
        return Migrated(freeze(plain), path, before, after)

    # --- finding the path -----------------------------------------------------------------------

    def _ways(self, stored: SchemaVersion, wanted: SchemaVersion) -> list[Way]:
        """The best paths by the rules above: one, none, or as many equals as an error shows.

        A search in order of cost (minors left to defaults, then steps). A node is expanded as
        often as it is reached at its lowest cost, up to that limit: ties survive to the end, and
        their number cannot explode.
        """
        onward = self._onward(stored, wanted)
        turn = count()  # decides between equal costs, so that trails are never compared
        heap: list[tuple[tuple[int, int], int, MajorMinor | None, Trail]]
        heap = [((0, 0), next(turn), stored.major_minor, None)]
        reached: dict[MajorMinor | None, list[tuple[int, int]]] = {}
        arrived: list[Way] = []
        while heap:
            cost, _, at, trail = heapq.heappop(heap)
            costs = reached.setdefault(at, [])
            if costs and (cost > costs[0] or len(costs) == MIGRATION_PATHS_SHOWN_MAX):
                continue
            costs.append(cost)
            if at is None:
                arrived.append(_forwards(trail))
                continue
            (major, minor), (gap, steps) = at, cost
            if compatible(SchemaVersion(major, minor, 0), wanted):
                arrival = (gap + wanted.minor - minor, steps)
                heapq.heappush(heap, (arrival, next(turn), None, trail))
            for step in onward.get(major, ()):
                if minor <= step.source.minor:
                    further = (gap + step.source.minor - minor, steps + 1)
                    heapq.heappush(
                        heap, (further, next(turn), step.target.major_minor, (trail, step))
                    )
        return arrived

    def _onward(self, stored: SchemaVersion, wanted: SchemaVersion) -> dict[int, list[Migration]]:
        """The steps that lead towards the target version, by the MAJOR they start from."""
        onward: dict[int, list[Migration]] = {}
        for step in self.migrations:  # sorted: the order of registration decides nothing
            source, target = step.source.major, step.target.major
            if stored.major <= wanted.major:
                towards = source <= target <= wanted.major
            else:
                towards = source >= target >= wanted.major
            if towards:
                onward.setdefault(source, []).append(step)
        return onward


def check_registry(migrations: object) -> MigrationRegistry:
    """The registry itself. Raises InvalidInput if it is not a MigrationRegistry."""
    if not isinstance(migrations, MigrationRegistry):
        raise InvalidInput(
            f"{described(migrations)} is not a registry. Pass a limpet.MigrationRegistry."
        )
    return migrations


def _versions(migration: Migration) -> tuple[SchemaVersion, SchemaVersion]:
    return (migration.source, migration.target)


def _forwards(trail: Trail) -> Way:
    steps = []
    while trail is not None:
        trail, step = trail
        steps.append(step)
    return tuple(reversed(steps))


def _shown(ways: list[Way]) -> tuple[tuple[Step, ...], ...]:
    ordered = sorted(ways, key=lambda way: [_versions(step) for step in way])
    return tuple(tuple(step.step for step in way) for way in ordered)


def _shortened(version: Any) -> str:
    """The stored version, shortened for an error."""
    if isinstance(version, (str, SchemaVersion)):
        return str(version)[:_SHOWN_CHARS]
    return type(version).__name__


# --- one step -------------------------------------------------------------------------------------
#
# A pure function that runs on a copy, and whose result is checked. `label_migrations` runs its
# steps here too.

_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


def check_lifecycle(lifecycle: Lifecycle) -> None:
    """Raise InvalidInput unless state has this lifecycle."""
    if lifecycle not in ("session", "checkpoint"):
        raise InvalidInput(
            f"{lifecycle!r} is not a lifecycle with state. Pass 'session' or 'checkpoint'."
        )


def check_function(fn: object, step: Step) -> None:
    """Raise InvalidInput unless `fn` is a plain function."""
    if not callable(fn) or inspect.iscoroutinefunction(fn):
        raise InvalidInput(
            f"the migration {step[0]} → {step[1]} is not a plain function. Pass one that takes a "
            "dict and returns a dict, without async."
        )


def name_of(fn: Function) -> str:
    """The name of a migration's function."""
    return str(getattr(fn, "__name__", type(fn).__name__))


def plain_copy(fields: Any, where: str) -> Fields:
    """A copy in plain values that shares nothing with `fields`. Raises InvalidValue."""
    if not isinstance(fields, dict):
        raise InvalidValue(where, unfitting(fields, "not a dict"))
    if (trip := round_trip(fields, _decode)) is not None:
        return trip[1]
    settled: Fields = settle(fields, where, depth_max=STATE_DEPTH_MAX)
    return settled


def applied(
    fn: Function, step: Step, fields: Fields, failed: Callable[[Step, str], MigrationFailed]
) -> Fields:
    """The fields after one step. Raises what `failed` makes, with the cause."""
    try:
        return plain_copy(fn(fields), "its result")
    except InvalidValue as error:
        reason = f"made a state that cannot be stored: {why(error)}"
        raise failed(step, reason) from error
    except MemoryError:
        raise  # not the migration's fault: it may be retried
    except Exception as error:
        raise failed(step, _raised(fn, error)) from error


def why(error: InvalidSchema | InvalidValue) -> str:
    """The reason of an error, with the place where it has one."""
    return f"{error.where} {error.reason}" if isinstance(error, InvalidValue) else error.reason


def _raised(fn: Function, error: Exception) -> str:
    """The type of the exception that a migration raised, with function, file and line.

    The exception's own text is left out because it may quote the state; it is in the cause.
    """
    where = ".".join([str(getattr(fn, "__module__", None) or "?"), name_of(fn)])
    frames = extract_tb(error.__traceback__)[1:]  # the first is our call of it
    if frames:
        home = getattr(getattr(fn, "__code__", None), "co_filename", frames[-1].filename)
        frame = next((frame for frame in reversed(frames) if frame.filename == home), frames[-1])
        where += f", {PurePath(frame.filename).name} line {frame.lineno}"
    return f"raised {type(error).__name__} in {where}"
