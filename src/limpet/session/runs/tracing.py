"""Tracing: what watches the parts of a turn while they run, if anything does.

A journal has at most one `Tracing`; `limpet.otel.instrument` sets it. Without one, a part costs one
look at an attribute.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from limpet.model import Key

PartKind: TypeAlias = Literal["wake", "model", "tool", "effect", "step"]


class TracedPart(msgspec.Struct, frozen=True):
    """A part of a turn that begins: what it is, and of which session, turn and wake."""

    kind: PartKind
    name: str
    key: Key
    turn_id: str
    wake_id: str
    attempt: int
    call: str | None = None  # the id of the model's call that it is for


class PartNotes(msgspec.Struct):
    """Notes on a part, taken while it runs."""

    model: str | None = None
    provider: str | None = None
    usage: Mapping[str, int] | None = None
    cost: float | None = None
    stop_reason: str | None = None
    outcome: str | None = None
    error: str | None = None  # what went wrong, though nothing was raised


class Tracing(Protocol):
    """Watches the parts of turns."""

    def span(self, part: TracedPart, /) -> AbstractContextManager[PartNotes]:
        """Enter before the part runs, leave after it. Must not raise, nor suppress what the part
        raises."""
        ...


# Shared by all parts that nobody watches: what is noted there is never read.
UNTRACED: Final[AbstractContextManager[PartNotes]] = nullcontext(PartNotes())
