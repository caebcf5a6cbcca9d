"""Inputs: events that are pending until a later event marks them as processed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from limpet.errors import InvalidEvent
from limpet.model.events import Fact
from limpet.model.facts.view import Changes, View

PROCESSED: Final = "session.processed"
_FAMILY: Final = "user."


def is_input(type: str) -> bool:
    """Whether events of this type are inputs: user.* are."""
    return type.startswith(_FAMILY)


def processed(seqs: Iterable[int], *, actor: str | None = None) -> Fact:
    """These inputs were processed. Raises InvalidEvent; the commit may raise NotPending."""
    given = list(seqs) if isinstance(seqs, Iterable) else []
    if not given or any(type(seq) is not int or seq < 1 for seq in given):
        raise InvalidEvent("processed takes the seqs of one or more pending events")
    return Fact(type=PROCESSED, data={"seqs": sorted(set(given))}, actor=actor)


def fold_input(head: View, data: Mapping[str, Any], now_us: int) -> Changes:
    """One more input is pending, since now if it is the first."""
    since_us = now_us if head.pending_us is None else min(head.pending_us, now_us)
    return {"pending": head.pending + 1, "pending_us": since_us}


def fold_processed(head: View, data: Mapping[str, Any], now_us: int) -> Changes:
    pending = head.pending - len(data["seqs"])
    return {"pending": pending, "pending_us": now_us if pending else None}
