"""Laws of migration: the way is the best one there is, migrations compose, nothing is touched."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random
from typing import Any, TypeAlias

import pytest
from hypothesis import example, given, strategies as st

from limpet import MigrationRegistry
from limpet.errors import MigrationAmbiguous, MigrationFailed, MigrationMissing, SchemaIncompatible
from limpet.model.values import checksum, thaw
from tests.property.strategies import values
from tests.support.examples import examples

Line: TypeAlias = tuple[int, int]
Edge: TypeAlias = tuple[Line, Line]
Fields: TypeAlias = dict[str, Any]

lines = st.tuples(st.integers(0, 3), st.integers(0, 2))
edges = st.lists(st.tuples(lines, lines).filter(lambda e: e[0] != e[1]), max_size=9, unique=True)
upward = edges.map(lambda drawn: list(dict.fromkeys((min(e), max(e)) for e in drawn)))
states = st.dictionaries(st.sampled_from("abcd"), values, max_size=4)
patches = st.integers(0, 3)
# Ten equally good ways from 0.0 to 3.2: more than an error shows.
MANY_TIES = [((major, k), (major + 1, k)) for major in range(3) for k in range(3)]


def version(line: Line, patch: int = 0) -> str:
    return f"{line[0]}.{line[1]}.{patch}"


def registry_of(drawn: list[Edge], fn: Callable[[Fields], Fields] = dict) -> MigrationRegistry:
    registry = MigrationRegistry()
    for source, target in drawn:
        registry.register(version(source), version(target), fn)
    return registry


def lines_of(path: Any) -> tuple[Edge, ...]:
    return tuple((step.source.major_minor, step.target.major_minor) for step in path)


# --- the way -------------------------------------------------------------------------------------


def every_way(drawn: list[Edge], stored: Line, wanted: Line) -> Iterator[tuple[Edge, ...]]:
    """All sequences of different edges that the first two rules allow, by trying every one."""

    def allowed(edge: Edge) -> bool:
        (source, _), (target, _) = edge
        between = sorted((stored[0], wanted[0]))
        moved, needed = target - source, wanted[0] - stored[0]
        return between[0] <= target <= between[1] and moved * needed >= 0

    def onward(at: Line, taken: tuple[Edge, ...]) -> Iterator[tuple[Edge, ...]]:
        if at[0] == wanted[0] and at[1] <= wanted[1]:
            yield taken
        for edge in drawn:
            (major, minor), target = edge
            if edge not in taken and allowed(edge) and major == at[0] and minor >= at[1]:
                yield from onward(target, (*taken, edge))

    return onward(stored, ())


def defaults_and_steps(taken: tuple[Edge, ...], stored: Line, wanted: Line) -> tuple[int, int]:
    ends = [stored, *(place for edge in taken for place in edge), wanted]
    gaps = [after[1] - before[1] for before, after in zip(ends[::2], ends[1::2], strict=True)]
    return sum(gaps), len(taken)


def brute_force(drawn: list[Edge], stored: Line, wanted: Line) -> set[tuple[Edge, ...]]:
    """The best ways of all: none, one, or several."""
    cost = {
        taken: defaults_and_steps(taken, stored, wanted)
        for taken in every_way(drawn, stored, wanted)
    }
    return {taken for taken in cost if cost[taken] == min(cost.values())}


@examples(400)
@given(edges | upward, lines, lines, patches, patches)
@example(
    [((1, 0), (1, 1)), ((1, 0), (1, 2)), ((1, 1), (2, 0)), ((1, 2), (2, 0))], (1, 0), (2, 0), 0, 0
)
@example([((3, 0), (2, 0)), ((2, 1), (1, 0)), ((2, 2), (2, 1))], (3, 0), (1, 1), 0, 3)
@example(MANY_TIES, (0, 0), (3, 2), 0, 0)
def test_the_way_is_what_trying_every_way_finds(
    drawn: list[Edge], stored: Line, wanted: Line, patch: int, other: int
) -> None:
    """One best way is taken, several are ambiguous, none is missing; and PATCH never matters."""
    best = brute_force(drawn, stored, wanted)
    registry = registry_of(drawn)
    ends = (version(stored, patch), version(wanted, other))
    if len(best) > 1:
        with pytest.raises(MigrationAmbiguous) as info:
            registry.path(*ends)
        shown = {tuple((a, b) for a, b in path) for path in info.value.paths}
        named = {tuple((version(a), version(b)) for a, b in taken) for taken in best}
        assert shown <= named
        assert len(shown) == len(info.value.paths) == min(len(named), 8)
    elif best:
        assert {lines_of(registry.path(*ends))} == best
    elif stored[0] == wanted[0]:
        assert registry.path(*ends, newer_minor="keep") == ()
        with pytest.raises(SchemaIncompatible, match="newer_minor"):
            registry.path(*ends)
    else:
        kind = MigrationMissing if stored < wanted else SchemaIncompatible
        with pytest.raises(kind):
            registry.path(*ends)


def shortest(drawn: list[Edge], start: Line, end: Line) -> tuple[int, int] | None:
    """Length and number of the shortest exact paths, by breadth-first search."""
    found, queue = {start: (0, 1)}, deque([start])
    while queue:
        at = queue.popleft()
        length, number = found[at]
        for source, target in drawn:
            if source == at and target not in found:
                found[target] = (length + 1, number)
                queue.append(target)
            elif source == at and found[target][0] == length + 1:
                found[target] = (length + 1, found[target][1] + number)
    return found.get(end)


@examples(300)
@given(upward, lines, lines)
def test_an_exact_path_is_the_shortest_of_its_kind(
    drawn: list[Edge], stored: Line, wanted: Line
) -> None:
    """Where versions match exactly the plain rule holds: breadth first, and a tie is ambiguous."""
    exact = shortest(drawn, stored, wanted)
    if exact is None:
        return
    registry = registry_of(drawn)
    if exact[1] > 1:
        with pytest.raises(MigrationAmbiguous):
            registry.path(version(stored), version(wanted))
        return
    path = lines_of(registry.path(version(stored), version(wanted)))
    assert len(path) == exact[0]
    assert all(before[1] == after[0] for before, after in pairwise(path))


@examples(200)
@given(edges | upward, lines, st.randoms(use_true_random=False))
@example(MANY_TIES, (3, 2), Random(1))
def test_the_order_of_registration_does_not_matter(
    drawn: list[Edge], wanted: Line, random: Random
) -> None:
    """The same ways, the same ties, the same words, for every version there can be."""
    shuffled = random.sample(drawn, len(drawn))
    for stored in ((major, minor) for major in range(4) for minor in range(4)):
        told = [outcome(registry_of(order), stored, wanted) for order in (drawn, shuffled)]
        assert told[0] == told[1]


def outcome(registry: MigrationRegistry, stored: Line, wanted: Line) -> Any:
    try:
        return lines_of(registry.path(version(stored), version(wanted)))
    except (MigrationAmbiguous, MigrationMissing, SchemaIncompatible) as error:
        return type(error), str(error)


@examples(200)
@given(edges | upward, lines)
def test_a_registry_that_passes_the_check_is_never_ambiguous(
    drawn: list[Edge], wanted: Line
) -> None:
    """Not for registered sources, and not for any version between or beside them."""
    registry = registry_of(drawn)
    reported = {error.from_version for error in registry.ambiguities(version(wanted))}
    tied = set()
    for stored in ((major, minor) for major in range(4) for minor in range(4)):
        try:
            registry.path(version(stored), version(wanted))
        except MigrationAmbiguous:
            tied.add(version(stored))
        except (MigrationMissing, SchemaIncompatible):
            continue
    sources = {version(source) for source, _ in drawn}
    assert reported == tied & sources
    assert bool(reported) == bool(tied)


# --- migrating -----------------------------------------------------------------------------------


def functions() -> st.SearchStrategy[Callable[[Fields], Fields]]:
    """Pure functions that set, rename, drop and wrap, some of them in place."""

    def setting(name: str, value: Any) -> Callable[[Fields], Fields]:
        return lambda fields: {**fields, name: value}

    def dropping(name: str, _: Any) -> Callable[[Fields], Fields]:
        return lambda fields: {n: v for n, v in fields.items() if n != name}

    def wrapping(name: str, value: Any) -> Callable[[Fields], Fields]:
        def wrap(fields: Fields) -> Fields:
            fields[name] = [value, fields.pop(name, None), {"names": sorted(fields)}]
            return fields

        return wrap

    def renaming(name: str, _: Any) -> Callable[[Fields], Fields]:
        def rename(fields: Fields) -> Fields:
            for old in sorted(fields):
                fields[name + old] = fields.pop(old)
            return fields

        return rename

    kinds = st.sampled_from([setting, dropping, wrapping, renaming])
    return st.builds(
        lambda kind, name, value: kind(name, value), kinds, st.sampled_from("abx"), values
    )


@st.composite
def chains(draw: st.DrawFn) -> tuple[MigrationRegistry, list[str]]:
    """A registry with one way through all of its versions, and those versions."""
    steps = sorted(draw(st.sets(lines, min_size=2, max_size=6)))
    registry = MigrationRegistry()
    for source, target in pairwise(steps):
        registry.register(version(source), version(target), draw(functions()))
    return registry, [version(line, draw(patches)) for line in steps]


@examples(200)
@given(chains(), states, st.data())
def test_migrations_compose(
    chain: tuple[MigrationRegistry, list[str]], state: Fields, data: st.DataObject
) -> None:
    """From a to c is from a to b and then from b to c, in state, steps and checksums."""
    registry, versions = chain
    a, b, c = sorted(data.draw(st.integers(0, len(versions) - 1)) for _ in range(3))
    whole = registry.migrate(state, versions[a], versions[c])
    first = registry.migrate(state, versions[a], versions[b])
    second = registry.migrate(first.fields, versions[b], versions[c], expected=first.checksum_after)
    assert second.fields == whole.fields
    assert first.path + second.path == whole.path
    assert first.checksum_before == whole.checksum_before
    assert second.checksum_before == first.checksum_after
    assert second.checksum_after == whole.checksum_after == checksum(whole.fields).hex()


@examples(300)
@given(edges | upward, lines, lines)
@example([((3, 0), (1, 0)), ((1, 0), (1, 2))], (3, 0), (1, 2))
def test_each_part_of_a_way_is_the_way_between_its_own_ends(
    drawn: list[Edge], stored: Line, wanted: Line
) -> None:
    """In any registry, where a way goes through a version it can be broken off and taken up."""
    registry = registry_of(drawn)
    try:
        path = registry.path(version(stored), version(wanted))
    except (MigrationAmbiguous, MigrationMissing, SchemaIncompatible):
        return
    for done, step in enumerate(path, start=1):
        assert registry.path(version(stored), step.target) == path[:done]
        assert registry.path(step.target, version(wanted)) == path[done:]


@examples(150)
@given(chains(), states)
def test_a_migration_is_repeatable_and_touches_nothing(
    chain: tuple[MigrationRegistry, list[str]], state: Fields
) -> None:
    """The same state gives the same result, read-only or not, and is itself as it was."""
    registry, versions = chain
    before = copy.deepcopy(state)
    made = registry.migrate(state, versions[0], versions[-1])
    assert state == before
    assert checksum(state).hex() == made.checksum_before
    again = registry.migrate(made.fields, versions[-1], versions[-1])
    assert (again.fields, again.path) == (made.fields, ())
    assert registry.migrate(thaw(state), versions[0], versions[-1]) == made


@examples(150)
@given(st.integers(1, 6), st.data(), states, st.sampled_from(["raise", "nothing", "unfit"]))
def test_a_failing_step_stops_the_later_ones(
    length: int, data: st.DataObject, state: Fields, how: str
) -> None:
    """Those before it ran once and in order, those after it never; the state is as it was."""
    failing = data.draw(st.integers(0, length - 1))
    ran: list[int] = []
    raised = RuntimeError("no")

    def step(number: int) -> Callable[[Fields], Any]:
        def fn(fields: Fields) -> Any:
            ran.append(number)
            fields["seen"] = number
            if number != failing:
                return fields
            if how == "raise":
                raise raised
            return {"unfit": object()} if how == "unfit" else None

        return fn

    registry = MigrationRegistry()
    for number in range(length):
        registry.register(version((number, 0)), version((number + 1, 0)), step(number))
    before = copy.deepcopy(state)
    with pytest.raises(MigrationFailed) as info:
        registry.migrate(state, "0.0.0", version((length, 0)))
    assert info.value.step == (version((failing, 0)), version((failing + 1, 0)))
    assert info.value.__cause__ is not None
    assert (info.value.__cause__ is raised) == (how == "raise")
    assert ran == list(range(failing + 1))
    assert state == before
