"""Policies: which value wins where both sides of a merge changed the same place differently.

A policy is any function of a conflict. Its return value is used; ABSENT removes the name; and
returning the conflict itself leaves it open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from limpet.errors import InvalidInput
from limpet.model.ops import Path
from limpet.model.values import same


class Conflict(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A place that both sides changed differently. ABSENT where there is no value."""

    path: Path
    base: Any
    a: Any
    b: Any

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is Conflict
            and self.path == other.path
            and same(self.base, other.base)
            and same(self.a, other.a)
            and same(self.b, other.b)
        )

    def __hash__(self) -> int:
        return hash(self.path)


Policy: TypeAlias = Callable[[Conflict], Any]


class _Ranked(msgspec.Struct, frozen=True, gc=False):
    a: Any
    b: Any

    def __post_init__(self) -> None:
        try:
            ordered = self.a < self.b or self.b < self.a or self.a == self.b
        except TypeError:
            ordered = False
        if not ordered:
            raise InvalidInput(
                f"{type(self).__name__} cannot put {self.a!r} and {self.b!r} in order. Give both "
                "sides numbers, or both times with a time zone."
            )

    def __call__(self, conflict: Conflict) -> Any:
        if self.a == self.b:
            return conflict
        return conflict.a if self.a > self.b else conflict.b


class LastWriter(_Ranked, frozen=True, gc=False):
    """The later side wins: give each side's time, or its version. A tie is left undecided."""


class Priority(_Ranked, frozen=True, gc=False):
    """The side with the higher number wins. A tie is left undecided."""


def escalate(conflict: Conflict) -> Any:
    """Decide nothing: the conflict is reported and the place stays as it was in the base."""
    return conflict
