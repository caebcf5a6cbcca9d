"""The tiers: which cases the marker `arguments` leaves out, and what torture tries more of."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from limpet import errors
from tests.support import seeds, tiers
from tests.support.examples import schedules, tries


def item(test: str, *, marked: bool = True, **params: object) -> Any:
    return SimpleNamespace(
        path=Path("test_x.py"),
        originalname=test,
        callspec=SimpleNamespace(params=params),
        get_closest_marker=lambda name: marked and name == "arguments",
    )


def test_arguments_are_tried_on_memory_and_once_per_error_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On another store the first case of each test with each error class is kept."""
    monkeypatch.delenv(seeds.VARIABLE, raising=False)
    key, value = errors.InvalidKey, errors.InvalidValue
    kept = [
        item("test_a", url="memory", error=key),
        item("test_a", url="memory", error=key),
        item("test_a", url="sqlite", error=key),
        item("test_a", url="sqlite", error=value),
        item("test_a", url="postgresql", error=key),
        item("test_b", url="sqlite"),
        item("test_c", url="sqlite", marked=False),
        item("test_c", url="sqlite", marked=False),
    ]
    again = [item("test_a", url="sqlite", error=key), item("test_b", url="sqlite")]
    assert tiers.repeated_arguments([*kept, *again]) == again


def test_fresh_seeds_try_every_case_on_every_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is time for all of them then."""
    monkeypatch.setenv(seeds.VARIABLE, "fresh")
    assert tiers.repeated_arguments([item("test_a", url="sqlite") for _ in range(3)]) == []


async def _a_fault_loop() -> int:
    return sum(range(tries(1, 2)))


def _a_simulation() -> int:
    return schedules(1, 2)


@given(st.integers())
def _a_property(number: int) -> None:
    assert number == number


def _once() -> int:
    return seeds.seed("once")


@pytest.mark.parametrize(
    ("test", "deeper"),
    [(_a_fault_loop, True), (_a_simulation, True), (_a_property, True), (_once, False)],
)
def test_what_has_more_to_try_is_tried_by_torture(test: Any, deeper: bool) -> None:
    """Nobody has to mark it, so that nobody can forget to."""
    found: Any = SimpleNamespace(obj=test)
    assert tiers.goes_deeper(found) == deeper
