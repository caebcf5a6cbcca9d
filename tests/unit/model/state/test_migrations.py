"""The registry: which way is taken, what a migration may do, and how each failure is told."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, get_args

import pytest

import limpet
from limpet import InvalidInput, MigrationRegistry, SchemaVersion
from limpet.errors import (
    IntegrityViolation,
    InvalidSchema,
    InvalidValue,
    Lifecycle,
    MigrationAmbiguous,
    MigrationError,
    MigrationFailed,
    MigrationMissing,
    SchemaIncompatible,
    StateError,
)
from limpet.model.limits import MIGRATION_PATHS_SHOWN_MAX, VALUE_DEPTH_MAX
from limpet.model.values import FrozenDict, canonical, checksum, freeze
from tests.support.ids import plain

LIFECYCLES: tuple[Lifecycle, ...] = get_args(Lifecycle)
KINDS = {
    MigrationMissing: ("migration.missing", "migration_missing"),
    MigrationAmbiguous: ("migration.ambiguous", "migration_chain_ambiguous"),
    MigrationFailed: ("migration.failed", "migration_failed"),
    SchemaIncompatible: ("schema.incompatible", "incompatible"),
}
ARGUMENTS: dict[type[MigrationError], tuple[Any, ...]] = {
    MigrationMissing: ("1.0.0", "2.0.0", 0, ""),
    MigrationAmbiguous: ("1.0.0", "2.0.0", ()),
    MigrationFailed: ("1.0.0", "2.0.0", ("1.0.0", "2.0.0"), "failed"),
    SchemaIncompatible: ("1.0.0", "2.0.0", "it is newer"),
}
Fields = dict[str, Any]


def same(fields: Fields) -> Fields:
    return fields


def marks(name: str) -> Callable[[Fields], Fields]:
    """A migration that leaves its name in the state."""
    return lambda fields: {**fields, "trail": [*fields.get("trail", []), name]}


def registry_of(
    *steps: str, description: str = "", lifecycle: Lifecycle = "session"
) -> MigrationRegistry:
    """A registry of steps such as "1.0>2.0", each of which leaves its name."""
    registry = MigrationRegistry(description, lifecycle=lifecycle)
    for step in steps:
        source, target = step.split(">")
        registry.register(f"{source}.0", f"{target}.0", marks(step))
    return registry


def way(registry: MigrationRegistry, source: str, target: str) -> list[str]:
    """The steps taken between two versions, in the same notation."""
    path = registry.path(f"{source}.7", f"{target}.3")
    made = registry.migrate({}, f"{source}.7", f"{target}.3")
    assert made.path == path
    named = [
        "{}.{}>{}.{}".format(*step.source.major_minor, *step.target.major_minor) for step in path
    ]
    assert made.fields.get("trail", []) == named
    return named


# --- registering ---------------------------------------------------------------------------------


def test_a_registry_tells_what_it_holds() -> None:
    """Its length, its migrations in the order of versions, and a text for people."""
    registry = MigrationRegistry("orders")

    @registry.migration("2.0.0", "10.0.0")
    def split_names(fields: Fields) -> Fields:
        return fields

    registry.register(SchemaVersion(1, 2, 0), "2.0.0", same)
    assert len(registry) == 2
    assert [str(m) for m in registry.migrations] == ["1.2.0 → 2.0.0", "2.0.0 → 10.0.0"]
    assert registry.migrations[1].fn is split_names
    assert registry.describe() == "orders\n1.2.0 → 2.0.0 (same)\n2.0.0 → 10.0.0 (split_names)"
    assert MigrationRegistry().describe() == "no migrations"
    assert MigrationRegistry("orders").describe() == "orders"


@pytest.mark.parametrize(("source", "target"), [("1.0.0", "2.0.0"), ("1.0.5", "2.0.9")])
def test_a_step_is_registered_once(source: str, target: str) -> None:
    """A second between the same versions, but for PATCH, is refused at once and the first stays."""
    registry = registry_of("1.0>2.0")
    with pytest.raises(MigrationAmbiguous) as info:
        registry.register(source, target, same)
    assert info.value.category == "session_state_migration_chain_ambiguous"
    assert (info.value.from_version, info.value.to_version) == (source, target)
    assert info.value.paths == ((("1.0.0", "2.0.0"),), ((source, target),))
    assert way(registry, "1.0", "2.0") == ["1.0>2.0"]
    with pytest.raises(limpet.errors.MigrationAmbiguous):
        registry.migration(source, target)(same)
    registry = MigrationRegistry(lifecycle="checkpoint")
    registry.register("1.0.0", "2.0.0", same)
    for again in (registry.register, lambda *step: registry.migration(*step[:2])(step[2])):
        with pytest.raises(limpet.errors.MigrationAmbiguous) as other:
            again(source, target, same)
        assert other.value.category == "checkpoint_state_migration_chain_ambiguous"


@pytest.mark.parametrize(
    ("source", "target"),
    [("1.0.0", "1.0.0"), ("1.0.0", "1.0.1"), ("1.0", "2.0.0"), ("1.0.0", "2.0.0-rc1")],
)
def test_a_step_leads_from_one_version_to_another(source: str, target: str) -> None:
    """A version that is none is refused, and so is a step between two of one shape."""
    registry = MigrationRegistry()
    with pytest.raises(InvalidSchema):
        registry.register(source, target, same)
    with pytest.raises(InvalidSchema):
        registry.migration(source, target)(same)
    assert len(registry) == 0


async def _async(fields: Fields) -> Fields:
    return fields


@pytest.mark.parametrize("fn", [None, "same", _async], ids=plain)
def test_a_migration_is_a_plain_function(fn: Any) -> None:
    """What cannot be called, or would have to be awaited, is refused before it is needed."""
    registry = MigrationRegistry()
    with pytest.raises(InvalidInput, match="plain function"):
        registry.register("1.0.0", "2.0.0", fn)
    assert len(registry) == 0


# --- the way -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "source", "target", "taken"),
    [
        # Nothing to do.
        ("1.0>2.0", "2.0", "2.0", ""),
        ("1.0>2.0 2.0>3.0", "1.0", "1.0", ""),
        ("", "1.1", "1.3", ""),
        # The shortest path.
        ("1.0>2.0", "1.0", "2.0", "1.0>2.0"),
        ("1.0>2.0 2.0>3.0", "1.0", "3.0", "1.0>2.0 2.0>3.0"),
        ("1.0>2.0 2.0>3.0 1.0>3.0", "1.0", "3.0", "1.0>3.0"),
        ("1.0>2.0 2.0>3.0 3.0>4.0 1.0>3.0 2.0>4.0 1.0>4.0", "1.0", "4.0", "1.0>4.0"),
        # A migration takes older minors, not newer ones; the nearest first.
        ("1.2>2.0", "1.1", "2.0", "1.2>2.0"),
        ("1.1>2.0 1.2>2.0", "1.1", "2.0", "1.1>2.0"),
        ("1.1>2.0 1.2>2.0 1.4>2.0", "1.3", "2.0", "1.4>2.0"),
        # Between two steps too, as when a minor was released in between.
        ("1.0>2.0 2.1>3.0", "1.0", "3.0", "1.0>2.0 2.1>3.0"),
        ("1.0>2.0 2.1>3.0", "2.0", "3.0", "2.1>3.0"),
        # The code reads older minors; the nearest that can be had.
        ("1.0>2.0", "1.0", "2.4", "1.0>2.0"),
        ("1.0>2.0 1.0>2.1", "1.0", "2.4", "1.0>2.1"),
        ("1.0>2.0 1.0>2.5", "1.0", "2.4", "1.0>2.0"),
        # What is registered within a MAJOR is done, not left to defaults.
        ("1.1>1.2", "1.1", "1.2", "1.1>1.2"),
        ("1.1>1.2", "1.0", "1.3", "1.1>1.2"),
        ("1.0>2.0 2.0>2.1", "1.0", "2.1", "1.0>2.0 2.0>2.1"),
        ("1.1>1.2 1.2>2.0", "1.1", "2.0", "1.1>1.2 1.2>2.0"),
        # An exact path wins over a shorter one with defaults, whichever was registered first.
        ("1.2>3.0 1.1>2.0 2.0>3.0", "1.1", "3.0", "1.1>2.0 2.0>3.0"),
        ("1.0>2.0 1.0>2.5 2.5>3.0", "1.0", "3.0", "1.0>2.5 2.5>3.0"),
        # Equal in what is left to defaults: the fewest steps.
        ("1.1>2.0 2.1>3.0 1.2>3.0", "1.0", "3.0", "1.2>3.0"),
        # A step that leads nowhere is left aside.
        ("1.1>1.5 1.2>2.0", "1.1", "2.0", "1.2>2.0"),
        # Way back, for a rollback; no detour on the way forward.
        ("1.0>2.0 2.0>1.0", "2.0", "1.0", "2.0>1.0"),
        ("3.1>2.2 2.2>2.0 2.0>1.0", "3.0", "1.4", "3.1>2.2 2.2>2.0 2.0>1.0"),
        ("3.0>1.0 1.0>1.2", "3.0", "1.2", "3.0>1.0 1.0>1.2"),
        ("1.0>2.5 2.5>2.1", "1.0", "2.1", "1.0>2.5 2.5>2.1"),
        ("1.4>2.0 2.0>1.5", "1.1", "1.5", ""),
        ("1.0>2.0 2.0>3.0 3.0>2.3", "1.0", "2.3", "1.0>2.0"),
        ("1.0>2.0 2.0>1.0 2.0>3.0 3.0>2.0", "1.0", "3.0", "1.0>2.0 2.0>3.0"),
        # A way down from a newer minor.
        ("2.3>2.1", "2.3", "2.1", "2.3>2.1"),
        ("2.4>2.0", "2.3", "2.1", "2.4>2.0"),
    ],
)
def test_the_way_is_the_one_that_the_rules_say(
    steps: str, source: str, target: str, taken: str
) -> None:
    """Fewest minors left to defaults, then fewest steps, in whatever order they came."""
    for order in (steps.split(), steps.split()[::-1]):
        assert way(registry_of(*order), source, target) == taken.split()


@pytest.mark.parametrize(
    ("steps", "source", "target", "ways"),
    [
        ("1.0>1.1 1.0>1.2 1.1>2.0 1.2>2.0", "1.0", "2.0", ["1.0>1.1 1.1>2.0", "1.0>1.2 1.2>2.0"]),
        ("1.0>2.0 2.0>4.0 1.0>3.0 3.0>4.0", "1.0", "4.0", ["1.0>2.0 2.0>4.0", "1.0>3.0 3.0>4.0"]),
        ("1.0>1.1 1.0>1.2 1.1>1.3 1.2>1.3", "1.0", "1.3", ["1.0>1.1 1.1>1.3", "1.0>1.2 1.2>1.3"]),
        # Equal in defaults and in steps, though not in where the defaults are.
        ("1.1>2.0 1.2>2.1", "1.0", "2.1", ["1.1>2.0", "1.2>2.1"]),
    ],
)
@pytest.mark.parametrize("lifecycle", LIFECYCLES)
def test_a_tie_is_an_error_that_shows_it(
    steps: str, source: str, target: str, ways: list[str], lifecycle: Lifecycle
) -> None:
    """Ambiguous, with both ends and every way; and `check` finds it without any state."""
    registry = registry_of(*steps.split(), lifecycle=lifecycle)
    calls = [
        lambda: registry.path(f"{source}.0", f"{target}.0"),
        lambda: registry.migrate({}, f"{source}.0", f"{target}.0"),
    ]
    for call in calls:
        with pytest.raises(MigrationAmbiguous) as info:
            call()
        error = info.value
        assert (type(error), error.lifecycle) == (MigrationAmbiguous, lifecycle)
        assert (error.from_version, error.to_version) == (f"{source}.0", f"{target}.0")
        shown = [" ".join(f"{a[:-2]}>{b[:-2]}" for a, b in path) for path in error.paths]
        assert shown == ways
    with pytest.raises(MigrationAmbiguous):
        registry.check(f"{target}.0")


def test_a_tie_among_many_ways_is_found_at_once() -> None:
    """Of 2³⁰ ways some are shown; neither time nor the message explodes."""
    registry = MigrationRegistry()
    for major in range(0, 60, 2):
        for minor in (0, 1):
            registry.register(f"{major}.0.0", f"{major + 1}.{minor}.0", same)
            registry.register(f"{major + 1}.{minor}.0", f"{major + 2}.0.0", same)
    with pytest.raises(MigrationAmbiguous) as info:
        registry.path("0.0.0", "60.0.0")
    assert len(set(info.value.paths)) == MIGRATION_PATHS_SHOWN_MAX
    assert {len(path) for path in info.value.paths} == {60}


def test_check_reports_every_source_with_a_tie_and_nothing_else() -> None:
    """In the order of versions; a source that reaches the target by one way, or not, is fine."""
    registry = registry_of("1.0>2.0", "2.0>3.0", "2.0>4.0", "3.0>5.0", "4.0>5.0", "7.0>8.0")
    found = registry.ambiguities("5.0.0")
    assert [error.from_version for error in found] == ["1.0.0", "2.0.0"]
    assert {error.to_version for error in found} == {"5.0.0"}
    with pytest.raises(limpet.errors.MigrationAmbiguous) as info:
        registry.check("5.0.0")
    assert str(info.value) == str(found[0])
    registry.check("4.0.0")
    registry.check("8.0.0")
    with pytest.raises(InvalidSchema):
        registry.check("8")


# --- no way --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lifecycle", LIFECYCLES)
@pytest.mark.parametrize(
    ("steps", "source", "target"),
    [
        ("", "1.0", "2.0"),
        ("1.0>2.0", "1.1", "2.0"),  # the migration does not know what 1.1 added
        ("1.0>2.1", "1.0", "2.0"),  # it makes more than the code knows
        ("1.0>2.0 3.0>4.0", "1.0", "4.0"),
        ("2.0>1.0", "1.0", "2.0"),
        ("1.0>3.0 3.0>2.0", "1.0", "2.0"),  # past the MAJOR and back is no way
    ],
)
def test_a_missing_way_is_told_with_what_there_is(
    steps: str, source: str, target: str, lifecycle: Lifecycle
) -> None:
    """Both versions, how many migrations there are, and a description of them."""
    registry = registry_of(*steps.split(), description="orders", lifecycle=lifecycle)
    with pytest.raises(MigrationMissing) as info:
        registry.migrate({}, f"{source}.0", f"{target}.0")
    error = info.value
    assert (type(error), error.lifecycle) == (MigrationMissing, lifecycle)
    assert (error.from_version, error.to_version) == (f"{source}.0", f"{target}.0")
    assert error.registered_migrations_count == len(registry) == len(steps.split())
    assert error.registry_description == registry.describe()
    assert error.registry_description.startswith("orders")


@pytest.mark.parametrize("lifecycle", LIFECYCLES)
@pytest.mark.parametrize(
    ("fields", "source", "stored", "reason"),
    [
        ({}, "3.0.0", "3.0.0", "newer code wrote it"),
        ({}, "banana", "banana", "'banana' is not MAJOR.MINOR.PATCH"),
        ({}, "1" * 500, "1" * 64, "not MAJOR.MINOR.PATCH"),
        ({}, None, "NoneType", "is NoneType"),
        ([1], "1.0.0", "1.0.0", "the state is list, not a dict"),
        (None, "1.0.0", "1.0.0", "the state is NoneType, not a dict"),
        ({"a": {1: 2}}, "1.0.0", "1.0.0", "the state['a'] has the key 1"),
        ({"a": [float("nan")]}, "1.0.0", "1.0.0", "the state['a'][0] is nan"),
    ],
    ids=lambda part: ascii(part)[:20],
)
def test_state_that_cannot_be_used_is_incompatible(
    fields: Any, source: Any, stored: str, reason: str, lifecycle: Lifecycle
) -> None:
    """Of a newer MAJOR without a way back, or no version, or no state; the reason says which."""
    registry = registry_of("1.0>2.0", lifecycle=lifecycle)
    with pytest.raises(SchemaIncompatible) as info:
        registry.migrate(fields, source, "2.0.0")
    error = info.value
    assert (type(error), error.lifecycle) == (SchemaIncompatible, lifecycle)
    assert (error.stored, error.wanted) == (stored, "2.0.0")
    assert reason in error.reason
    assert reason in str(error)


@pytest.mark.parametrize("lifecycle", LIFECYCLES)
@pytest.mark.parametrize("steps", ["", "1.0>2.0", "2.1>2.3"])
def test_a_newer_minor_is_refused_unless_it_is_kept(steps: str, lifecycle: Lifecycle) -> None:
    """The error says what can be done: newer code, a way back, or the opt-in."""
    registry = registry_of(*steps.split(), lifecycle=lifecycle)
    for call in (registry.path, lambda *ends, **how: registry.migrate({}, *ends, **how)):
        with pytest.raises(SchemaIncompatible) as info:
            call("2.3.0", "2.1.9")
        assert (type(info.value), info.value.lifecycle) == (SchemaIncompatible, lifecycle)
        for words in ("Deploy the newer code", "register a migration back", 'newer_minor = "keep"'):
            assert words in str(info.value)
        call("2.3.0", "2.1.9", newer_minor="keep")
    assert registry.path("2.3.0", "2.1.9", newer_minor="keep") == ()


def test_a_registered_way_down_is_taken_though_a_newer_minor_would_be_kept() -> None:
    """Who registered a way back means it."""
    path = registry_of("2.3>2.1").path("2.3.0", "2.1.0", newer_minor="keep")
    assert [step.step for step in path] == [("2.3.0", "2.1.0")]


def test_what_the_code_declares_is_its_own_fault() -> None:
    """A bad target version, or a lifecycle that is none, is invalid input."""
    registry = registry_of("1.0>2.0")
    with pytest.raises(InvalidSchema):
        registry.migrate({}, "1.0.0", "2")
    with pytest.raises(InvalidInput, match="lifecycle"):
        MigrationRegistry(lifecycle="turn")  # type: ignore[arg-type]


# --- migrating -----------------------------------------------------------------------------------


def test_a_migration_gives_the_new_state_and_how_it_came_about() -> None:
    """Fields that are read-only, the steps, and checksums anybody can compute."""
    registry = MigrationRegistry()

    @registry.migration("1.0.0", "2.0.0")
    def split_name(fields: Fields) -> Fields:
        first, last = fields.pop("name").split()
        fields["first"], fields["last"] = first, last
        return fields

    before = {"name": "Ada Lovelace", "tags": ["x"]}
    made = registry.migrate(before, "1.0.0", "2.0.0")
    assert made.fields == {"first": "Ada", "last": "Lovelace", "tags": ["x"]}
    assert isinstance(made.fields, FrozenDict)
    assert made.path == registry.migrations
    assert made.checksum_before == hashlib.sha256(canonical(before)).hexdigest()
    assert made.checksum_after == hashlib.sha256(canonical(made.fields)).hexdigest()
    assert before == {"name": "Ada Lovelace", "tags": ["x"]}


@pytest.mark.parametrize("target", ["1.2.0", "1.2.9", "1.4.0", "1.0.0"])
def test_where_no_step_is_needed_everything_is_kept(target: str) -> None:
    """Fields that this code does not know, above all; the checksum stays the same."""
    stored = freeze({"unknown": {"variant": "new"}})
    made = MigrationRegistry().migrate(stored, "1.2.3", target, newer_minor="keep")
    assert made.fields == {"unknown": {"variant": "new"}}
    assert made.path == ()
    assert made.checksum_before == made.checksum_after


def test_a_function_cannot_reach_beyond_its_own_copy() -> None:
    """Not the caller's state, not what an earlier step kept hold of, not the result."""
    registry, kept = MigrationRegistry(), []

    def greedy(fields: Fields) -> Fields:
        for earlier in kept:
            earlier["list"].append("from outside")
        fields["list"].append(len(kept))
        kept.append(fields)
        return fields

    registry.register("1.0.0", "2.0.0", greedy)
    registry.register("2.0.0", "3.0.0", greedy)
    stored = {"list": [{"deep": []}]}
    made = registry.migrate(stored, "1.0.0", "3.0.0")
    kept[1]["list"].append("too late")
    assert stored == {"list": [{"deep": []}]}
    assert made.fields == {"list": [{"deep": []}, 0, 1]}
    assert checksum(made.fields).hex() == made.checksum_after


def test_a_function_is_given_plain_values() -> None:
    """Dicts and lists it may change, even where the stored state is read-only."""
    registry, seen = MigrationRegistry(), []

    @registry.migration("1.0.0", "2.0.0")
    def look(fields: Fields) -> Fields:
        seen.extend([type(fields), type(fields["a"]), type(fields["a"][0])])
        return fields

    registry.migrate(freeze({"a": [{}]}), "1.0.0", "2.0.0")
    assert seen == [dict, list, dict]


def test_the_deepest_state_there_can_be_is_migrated() -> None:
    """The longest path with the deepest value at its end; one level more was never stored."""
    deepest: Fields = {}
    for _ in range(2 * VALUE_DEPTH_MAX - 1):
        deepest = {"k": deepest}
    registry = registry_of("1.0>2.0")
    made = registry.migrate(deepest, "1.0.0", "2.0.0")
    assert made.fields["k"] == deepest["k"]
    with pytest.raises(SchemaIncompatible, match="nested"):
        registry.migrate({"k": deepest}, "1.0.0", "2.0.0")


def _cyclic(fields: Fields) -> Fields:
    fields["self"] = fields
    return fields


def _raises(fields: Fields) -> Fields:
    return {"name": fields["no such name"]}


@pytest.mark.parametrize("lifecycle", LIFECYCLES)
@pytest.mark.parametrize(
    ("fn", "cause", "reason"),
    [
        (_raises, KeyError, f"raised KeyError in {__name__}._raises, test_migrations.py line "),
        (lambda fields: None, InvalidValue, "its result is NoneType, not a dict"),
        (lambda fields: list(fields), InvalidValue, "its result is list, not a dict"),
        (lambda fields: {"a": {1, 2}}, InvalidValue, "its result['a'] is set"),
        (lambda fields: {"a": b"x"}, InvalidValue, "its result['a'] is bytes"),
        (lambda fields: {"a": [float("inf")]}, InvalidValue, "its result['a'][0] is inf"),
        (lambda fields: {"a": 2**64}, InvalidValue, "its result['a'] is an integer past 64 bits"),
        (lambda fields: {1: "a"}, InvalidValue, "its result has the key 1"),
        (lambda fields: {"a": "\ud800"}, InvalidValue, "surrogate"),
        (lambda fields: {"a": SchemaVersion(1, 0, 0)}, InvalidValue, "is SchemaVersion"),
        (_cyclic, InvalidValue, "contains itself"),
    ],
    ids=lambda part: getattr(part, "__name__", None) or str(part)[:24],
)
def test_a_failed_step_stops_the_way(
    fn: Callable[[Fields], Any], cause: type[Exception], reason: str, lifecycle: Lifecycle
) -> None:
    """The step, the reason and the cause are told; no later step runs, the state is untouched."""
    registry, ran = registry_of("1.0>2.0", lifecycle=lifecycle), []
    registry.register("2.0.0", "3.0.0", fn)
    registry.register("3.0.0", "4.0.0", lambda fields: ran.append(fields) or fields)
    stored = {"n": [1]}
    with pytest.raises(MigrationFailed) as info:
        registry.migrate(stored, "1.0.0", "4.0.0")
    error = info.value
    assert (type(error), error.lifecycle) == (MigrationFailed, lifecycle)
    assert (error.from_version, error.to_version) == ("1.0.0", "4.0.0")
    assert error.step == ("2.0.0", "3.0.0")
    assert reason in error.reason
    assert type(error.__cause__) is cause
    assert ran == []
    assert stored == {"n": [1]}


def _calls_deeper(fields: Fields) -> Fields:
    return dict(_raises(fields))


class _Callable:
    def __call__(self, fields: Fields) -> Fields:
        raise RuntimeError("two\nlines")


def test_a_failed_step_names_the_function_and_its_line() -> None:
    """The line of the user's own file where it was raised, however the function was made."""
    raises = _raises.__code__.co_firstlineno + 1
    call = _Callable.__call__.__code__.co_firstlineno + 1
    for fn, words in (
        (_raises, f"KeyError in {__name__}._raises, test_migrations.py line {raises}."),
        (_calls_deeper, f"KeyError in {__name__}._calls_deeper, test_migrations.py line {raises}."),
        (_Callable(), f"RuntimeError in {__name__}._Callable, test_migrations.py line {call}."),
        (len, "a state that cannot be stored"),
        (int, "raised TypeError in builtins.int."),
    ):
        registry = MigrationRegistry()
        registry.register("1.0.0", "2.0.0", fn)
        with pytest.raises(limpet.errors.MigrationFailed) as info:
            registry.migrate({"n": 1}, "1.0.0", "2.0.0")
        assert words in str(info.value)


def test_an_interruption_is_not_a_failed_step() -> None:
    """What is no Exception, such as a cancellation, passes through as it is."""

    def interrupted(fields: Fields) -> Fields:
        raise KeyboardInterrupt

    registry = MigrationRegistry()
    registry.register("1.0.0", "2.0.0", interrupted)
    with pytest.raises(KeyboardInterrupt):
        registry.migrate({}, "1.0.0", "2.0.0")


def test_a_message_says_nothing_of_what_is_in_the_state() -> None:
    """The text of the cause may quote it, and stays with the cause."""

    def quoting(fields: Fields) -> Fields:
        raise ValueError(f"bad password {fields['password']}")

    registry = MigrationRegistry()
    registry.register("1.0.0", "2.0.0", quoting)
    with pytest.raises(MigrationFailed) as info:
        registry.migrate({"password": "swordfish"}, "1.0.0", "2.0.0")
    assert "swordfish" not in str(info.value)
    assert "swordfish" in str(info.value.__cause__)


def test_a_checksum_is_verified_before_anything_runs() -> None:
    """The right one passes; any other stops the migration, whatever the way would have been."""
    registry, ran = MigrationRegistry(), []
    registry.register("1.0.0", "2.0.0", lambda fields: ran.append(1) or fields)
    state = {"b": 1, "a": 1.0}
    right = checksum(state).hex()
    assert registry.migrate(state, "1.0.0", "2.0.0", expected=right).checksum_before == right
    for changed, target in (({"b": 1, "a": 1}, "2.0.0"), ({"b": 2}, "9.0.0"), ({}, "1.0.0")):
        with pytest.raises(IntegrityViolation) as info:
            registry.migrate(changed, "1.0.0", target, expected=right)
        assert info.value.code == "integrity.violation"
        assert (info.value.expected, info.value.computed) == (right, checksum(changed).hex())
        assert info.value.what == "the state of schema 1.0.0"
    assert ran == [1]


# --- the errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("lifecycle", LIFECYCLES)
def test_each_kind_has_a_category_for_each_lifecycle(
    kind: type[MigrationError], lifecycle: Lifecycle
) -> None:
    """It begins with the lifecycle; the code is one, and trying again cannot help."""
    code, category = KINDS[kind]  # type: ignore[index]
    error = kind(lifecycle, *ARGUMENTS[kind])  # type: ignore[call-arg,index]
    assert (error.code, error.lifecycle) == (code, lifecycle)
    assert error.category == f"{lifecycle}_state_{category}"
    assert not error.retryable
    assert isinstance(error, MigrationError)
    assert isinstance(error, StateError)
    assert isinstance(error, limpet.SessionError)
