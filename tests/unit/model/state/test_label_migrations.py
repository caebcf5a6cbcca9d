"""Laws of migration between versions that are only names."""

from __future__ import annotations

from itertools import pairwise, permutations
from typing import Any

import pytest
from hypothesis import given, strategies as st

from limpet import InvalidInput
from limpet.errors import (
    InvalidSchema,
    MigrationAmbiguous,
    MigrationFailed,
    MigrationMissing,
    SchemaIncompatible,
)
from limpet.model.state.label_migrations import LabelRegistry
from tests.support.examples import examples

Edge = tuple[str, str]
NAMES = ["", "v1", "v2", "2026-05", "1.0.0"]


def registry_of(edges: list[Edge], **how: Any) -> LabelRegistry:
    """A registry whose steps write down the way that was taken."""
    registry = LabelRegistry(**how)
    for source, target in edges:
        registry.register(source, target, lambda old, t=target: {"way": [*old["way"], t]})
    return registry


def taken(registry: LabelRegistry, source: str, target: str) -> list[str]:
    return registry.migrate({"way": [source]}, source, target)["way"]


# --- the path ------------------------------------------------------------------------------------


def test_any_text_is_a_version() -> None:
    """Dates, names, nothing at all and what looks like SemVer are only names."""
    registry = registry_of([("", "v1"), ("v1", "2026-05"), ("2026-05", "1.0.0")])
    assert taken(registry, "", "1.0.0") == ["", "v1", "2026-05", "1.0.0"]


def test_a_version_is_never_read_as_a_number() -> None:
    """1.0.0 and 1.0.1 are two versions, and only a registered step leads from one to the other."""
    registry = registry_of([("2.0.0", "1.0.0")])
    assert taken(registry, "2.0.0", "1.0.0") == ["2.0.0", "1.0.0"]
    with pytest.raises(MigrationMissing):
        registry.path("1.0.0", "1.0.1")


def test_the_same_version_takes_no_step() -> None:
    """State of the version that is wanted is returned as an equal copy."""
    fields = {"deep": {"list": [1]}}
    copy = LabelRegistry().migrate(fields, "v1", "v1")
    assert copy == fields
    assert copy["deep"]["list"] is not fields["deep"]["list"]


def test_the_shortest_path_is_taken() -> None:
    """A direct step is preferred to a chain."""
    registry = registry_of([("v1", "v2"), ("v2", "v3"), ("v1", "v3")])
    assert taken(registry, "v1", "v3") == ["v1", "v3"]


@given(st.lists(st.permutations(NAMES).map(lambda p: (p[0], p[1])), max_size=12, unique=True))
@examples(150)
def test_the_path_is_the_one_that_trying_all_of_them_finds(edges: list[Edge]) -> None:
    """Against brute force: missing if there is none, ambiguous if several are equally short."""
    registry = registry_of(edges)
    ways = [
        ("", *between, "v2")
        for count in range(len(NAMES) - 1)
        for between in permutations(["v1", "2026-05", "1.0.0"], count)
        if all(pair in edges for pair in pairwise(("", *between, "v2")))
    ]
    shortest = [way for way in ways if len(way) == min(map(len, ways))]
    if len(shortest) == 1:
        assert taken(registry, "", "v2") == list(shortest[0])
        return
    kind = MigrationAmbiguous if shortest else MigrationMissing
    with pytest.raises(kind) as raised:
        registry.path("", "v2")
    if shortest:
        assert len(raised.value.paths) == len(shortest)
        with pytest.raises(MigrationAmbiguous):
            registry.check("v2")


def test_a_check_finds_every_ambiguity_before_a_load_does() -> None:
    """A diamond is ambiguous from its top and nowhere else."""
    registry = registry_of([("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])
    registry.check("b")
    with pytest.raises(MigrationAmbiguous, match="a → b, b → d; or a → c, c → d") as raised:
        registry.check("d")
    assert (raised.value.from_version, raised.value.to_version) == ("a", "d")


def test_a_great_number_of_equal_paths_is_cut_short() -> None:
    """Ten diamonds in a row have 1,024 shortest paths; the error names eight."""
    edges = [
        edge
        for n in range(10)
        for side in "xy"
        for edge in ((f"{n}", f"{n}{side}"), (f"{n}{side}", f"{n + 1}"))
    ]
    with pytest.raises(MigrationAmbiguous) as raised:
        registry_of(edges).path("0", "10")
    assert len(raised.value.paths) == 8


# --- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize("lifecycle", ["session", "checkpoint"])
def test_the_lifecycle_names_the_category(lifecycle: Any) -> None:
    """Each error has its category, which begins with the lifecycle."""
    registry = registry_of([("v1", "v2")], lifecycle=lifecycle)
    with pytest.raises(MigrationMissing) as none:
        registry.path("v0", "v2")
    with pytest.raises(MigrationAmbiguous) as twice:
        registry.register("v1", "v2", dict)
    with pytest.raises(MigrationFailed) as broken:
        registry.migrate({}, "v1", "v2")
    categories = [raised.value.category for raised in (none, twice, broken)]
    tails = ["missing", "chain_ambiguous", "failed"]
    assert categories == [f"{lifecycle}_state_migration_{tail}" for tail in tails]


def test_a_missing_path_names_what_there_is() -> None:
    """Both versions, the number of registered steps, and each of them with its function."""

    def rename(old: dict[str, Any]) -> dict[str, Any]:
        return old

    registry = LabelRegistry("the support graph")
    registry.register("", "v2", rename)
    with pytest.raises(MigrationMissing) as raised:
        registry.path("v1", "v2")
    error = raised.value
    assert (error.from_version, error.to_version) == ("v1", "v2")
    assert error.registered_migrations_count == 1
    assert error.registry_description == "the support graph\n'' → v2 (rename)"


def test_an_empty_version_is_seen_in_the_message() -> None:
    """A state without a version is at "", and the sentence says so."""
    with pytest.raises(MigrationMissing, match=r'from schema "" to v1.*with_session_migra'):
        LabelRegistry().path("", "v1")


def test_a_step_that_raises_ends_the_migration() -> None:
    """The cause is kept, no later step runs, and the given state is unchanged."""
    ran = []
    registry = LabelRegistry()
    registry.register("v1", "v2", lambda old: old.pop("n") and {}["gone"])
    registry.register("v2", "v3", lambda old: ran.append(old) or old)
    fields = {"n": 1}
    with pytest.raises(MigrationFailed, match="raised KeyError in") as raised:
        registry.migrate(fields, "v1", "v3")
    assert isinstance(raised.value.__cause__, KeyError)
    assert (raised.value.step, fields, ran) == (("v1", "v2"), {"n": 1}, [])


def test_a_result_that_cannot_be_stored_is_refused() -> None:
    """A step returns a dict of plain values, or it has failed."""
    registry = LabelRegistry()
    registry.register("v1", "v2", lambda old: {"x": object()})
    registry.register("v1", "v3", lambda old: None)  # type: ignore[arg-type,return-value]
    for target in ("v2", "v3"):
        with pytest.raises(MigrationFailed, match="cannot be stored"):
            registry.migrate({}, "v1", target)


@pytest.mark.parametrize(
    ("source", "target", "fn", "error"),
    [
        (1, "v2", dict, InvalidSchema),
        ("v1", None, dict, InvalidSchema),
        ("v1", "v1", dict, InvalidSchema),
        ("v1", "v" * 300, dict, InvalidSchema),
        ("v1", "v2", "not a function", InvalidInput),
    ],
)
def test_a_step_that_makes_no_sense_is_refused(
    source: Any, target: Any, fn: Any, error: type[Exception]
) -> None:
    """Versions are short texts, two different ones, and what leads between them is a function."""
    registry = LabelRegistry()
    with pytest.raises(error):
        registry.register(source, target, fn)
    assert len(registry) == 0


def test_an_async_function_is_refused() -> None:
    """A migration is pure: there is nothing to wait for."""

    async def later(old: dict[str, Any]) -> dict[str, Any]:
        return old

    with pytest.raises(InvalidInput, match="without async"):
        LabelRegistry().register("v1", "v2", later)  # type: ignore[arg-type]


@pytest.mark.parametrize(("fields", "source"), [({}, 7), ({}, None), ([], "v1"), ({1: 2}, "v1")])
def test_a_stored_record_that_is_not_one_is_refused(fields: Any, source: Any) -> None:
    """A version that is not text, or a state that is not a dict of names, is incompatible."""
    with pytest.raises(SchemaIncompatible):
        LabelRegistry().migrate(fields, source, "v2")
