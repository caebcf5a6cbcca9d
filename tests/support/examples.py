"""How much a property or a fault loop is tried: little in a hurry, all of it when there is time.

A test names the whole count. The suite tries a tenth of it, `make quick` a twentieth. On fresh
seeds `make torture` runs the same tests again (`tiers.goes_deeper`) with three times the examples
and every point of the loops.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, TypeVar

import pytest
from hypothesis import settings

from tests.support import seeds

VARIABLE: Final = "LIMPET_QUICK"
_LEAST: Final = 5
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def examples(worth: int) -> Callable[[F], F]:
    """The decorator of a property that is worth so many examples."""
    tried = settings(max_examples=count(worth))
    return lambda test: pytest.mark.deeper(tried(test))


def tries(few: T, all: T) -> T:
    """What a fault loop goes through: in the suite, and where fresh seeds are asked for."""
    return all if seeds.fresh() else few


def schedules(few: int, all: int) -> int:
    """How many schedules a simulation goes through: of the few, `make quick` tries a tenth."""
    return max(1, few // 10) if in_a_hurry() else tries(few, all)


def in_a_hurry() -> bool:
    """Whether this is `make quick`."""
    return bool(os.environ.get(VARIABLE)) and not seeds.fresh()


def count(worth: int = 100) -> int:
    """How many of so many examples are tried; a property that says nothing is worth a hundred."""
    if seeds.fresh():
        return worth * 3
    if in_a_hurry():
        return max(_LEAST, worth // 20)
    return max(min(worth, 2 * _LEAST), worth // 10)
