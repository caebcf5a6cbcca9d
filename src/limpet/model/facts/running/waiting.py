"""Waiting: the labels by which a store finds open requests, the oldest first.

Each open request has a reserved label. Its name has the time and the seq of the event that asks, so
that a range of the labels' index is in the order of asking; its value is the kind of the request.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from limpet.model.facts import labels
from limpet.model.facts.running import requests
from limpet.model.facts.view import Changes, Facts, Moment
from limpet.model.values import FrozenDict

ASKED: Final = "$asked:"
KINDS: Final = ("approval", "question", "unknown_effect", "mismatch")
_LABEL: Final = re.compile(r"\$asked:([0-9]{17}):([0-9]{16})")


class OpenRequest(msgspec.Struct, frozen=True, order=True):
    """An open request as an index has it: since when, the event that asks, and its kind."""

    since_us: int
    seq: int
    kind: str

    @property
    def label(self) -> str:
        return f"{ASKED}{self.since_us:017}:{self.seq:016}"


def open_request(label: str, kind: str) -> OpenRequest | None:
    """The request that a reserved label stands for; None if it is another label."""
    match = _LABEL.fullmatch(label)
    return None if match is None else OpenRequest(int(match[1]), int(match[2]), kind)


def open_in(facts: Facts) -> list[OpenRequest]:
    """The open requests of a session by their labels, the oldest first."""
    requests = [open_request(*label) for label in labels.labels_in(facts).items()]
    return sorted([each for each in requests if each is not None])


def relabeled(before: Facts, facts: Facts, at: Moment) -> Changes:
    """The labels after an event that changed the requests of a session; what is new since `at`."""
    if before.get("requests") is facts.get("requests"):
        return {}
    known = {each.seq: each for each in open_in(facts)}
    wanted: dict[str, str] = {}
    for request in requests.requests_in(facts).values():
        if "answer" not in request:
            seq, kind = request.get("seq", at.seq), request["kind"]
            kind = "unknown_effect" if kind == "effect" else kind
            made = known.get(seq) or OpenRequest(at.at_us, seq, kind)
            wanted[made.label] = made.kind
    current = labels.labels_in(facts)
    others = {n: value for n, value in current.items() if _LABEL.fullmatch(n) is None}
    after = FrozenDict({**others, **wanted})
    return {} if after == current else {"labels": after or None}
