"""Texts: what was said in the events that the facts rely on, which is not in the head.

A head is stored as it is, also under a seal, and listed without a key. So its facts have ids,
kinds, times and numbers; for the words they have the seq of an event. The fold keeps the words of
these events for as long as the facts name them: an open request, the outcome, a revisit, the last
error. A fold is stored in snapshots, which are sealed as events are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from limpet.model.facts import outcomes
from limpet.model.facts.running import requests, revisits, runs
from limpet.model.facts.view import NO_TEXTS, Facts, Texts
from limpet.model.values import EMPTY, FrozenDict

# The words of each: what else an event has may be large, and is read from the log.
_SPOKEN: Final[Mapping[str, tuple[str, ...]]] = {
    requests.TOOL_USE: ("name", "input"),
    requests.CUSTOM_TOOL_USE: ("name", "input"),
    outcomes.DEFINED: ("title", "detail", "criteria"),
    revisits.REVISIT_SET: ("reason",),
    runs.ERROR: ("message",),
}


def texts_after(
    texts: Texts, before: Facts, after: Facts, type: str, data: Mapping[str, Any], seq: int
) -> Texts:
    """The texts after an event that left the facts `after`: its own, if they name it, and those
    before that they still name."""
    if after is before or (not texts and type not in _SPOKEN):
        return texts
    kept = {}
    for named in _seqs(after):
        if named == seq:
            kept[seq] = FrozenDict({n: data[n] for n in _SPOKEN.get(type, ()) if n in data})
        elif named in texts:
            kept[named] = texts[named]
    return by_seq(kept)


def by_seq(found: Mapping[int, Mapping[str, Any]]) -> Texts:
    """The data of some events that nobody changes."""
    texts: Any = FrozenDict(found)  # type: ignore[arg-type]  # the names are seqs
    return texts if texts else NO_TEXTS


def _seqs(facts: Facts) -> Iterator[Any]:
    """The events whose words somebody may ask for."""
    for request in requests.requests_in(facts).values():
        if "answer" not in request:
            yield request.get("seq")
    for timer in facts.get("timers", EMPTY).values():
        if revisits.is_revisit(timer):
            yield timer["seq"]
    yield facts.get("outcome", EMPTY).get("seq")
    yield runs.run_in(facts).get("error", EMPTY).get("seq")
