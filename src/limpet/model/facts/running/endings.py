"""Endings: what a session leaves to be done when it is completed or terminated.

A run is to be closed, children are to be terminated with it, effects are to be compensated, and the
parent is to learn of it. The session is due for that like any other, so a worker that dies in the
middle is followed by one that goes on. `ending` holds what would be slow to ask the log for: that
there is something to compensate, that the children know, when to try again, and what is held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from limpet.model.events import Fact
from limpet.model.facts import labels, phases
from limpet.model.facts.phases import COMPLETED, TERMINATED
from limpet.model.facts.running import budgets, children, deaths, requests, runs
from limpet.model.facts.running.spawned import children_open
from limpet.model.facts.view import Changes, Facts, Moment, with_changes
from limpet.model.values import EMPTY, FrozenDict

COMPENSATING: Final = "effect.compensating"
COMPENSATED: Final = "effect.compensated"
NOT_COMPENSATED: Final = "effect.compensation_failed"
MAYBE_COMPENSATED: Final = "effect.compensation_unknown"
CASCADED: Final = "session.cascaded"
FINISHED: Final = "session.compensated"
ENDED: Final = frozenset((COMPLETED, TERMINATED))  # phases in which something may be left to do


# --- the events -----------------------------------------------------------------------------------


def compensating(id: str, of: str, name: str, key: str, tries: int) -> Fact:
    """The effect with the key `of` is about to be undone, under an idempotency key of its own."""
    data = {"of": of, "name": name, "key": key, "tries": tries}
    return Fact(type=COMPENSATING, data=data, id=id)


def compensated(
    id: str, of: str, name: str, key: str, result: Any, note: str | None = None
) -> Fact:
    """Return the fact that an effect was undone. `note` says why its result is not recorded, if
    it is not."""
    data = {"of": of, "name": name, "key": key, "result": result}
    if note is not None:
        data["note"] = note
    return Fact(type=COMPENSATED, data=data, id=id)


def not_compensated(
    id: str, of: str, name: str, key: str, error: str, *, not_done: bool = False
) -> Fact:
    """Return the fact that an effect was not undone. With `not_done` its function has said so of
    every try, also of those that had no outcome."""
    data: dict[str, Any] = {"of": of, "name": name, "key": key, "error": error}
    if not_done:
        data["not_done"] = True
    return Fact(type=NOT_COMPENSATED, data=data, id=id)


def maybe_compensated(id: str, of: str, name: str, key: str, error: str) -> Fact:
    """Return the fact that nobody knows whether the effect was undone."""
    data = {"of": of, "name": name, "key": key, "error": error}
    return Fact(type=MAYBE_COMPENSATED, data=data, id=id)


def cascaded(ids: Iterable[str]) -> Fact:
    """Return the fact that these children were terminated with their parent."""
    return Fact(type=CASCADED, data={"children": list(ids)})


def finished(done: int, left: Iterable[str], *, retry_us: int | None = None) -> Fact:
    """Every compensation was tried. What is left is tried again then, or held for a person."""
    data: dict[str, Any] = {"done": done, "left": list(left)}
    if retry_us is not None:
        data["retry_us"] = retry_us
    return Fact(type=FINISHED, data=data)


# --- what follows from them -----------------------------------------------------------------------


def ending_in(facts: Facts) -> FrozenDict:
    fields: FrozenDict = facts.get("ending", EMPTY)
    return fields


def is_held(facts: Facts) -> bool:
    """True if compensations are left that only a person may have tried again."""
    return "held" in ending_in(facts)


def has_ended(facts: Facts) -> bool:
    return facts.get("phase") in ENDED


def to_cascade(facts: Facts) -> bool:
    """True if it has children that do not know yet that it ended."""
    return children_open(facts) > 0 and "cascaded" not in ending_in(facts)


def to_compensate(facts: Facts) -> bool:
    """True if effects are to be undone: only a termination undoes."""
    ending = ending_in(facts)
    return facts.get("phase") == TERMINATED and "undo" in ending and "held" not in ending


def to_tell(facts: Facts) -> bool:
    """True if a parent waits for its end, and no child of its own is left."""
    return is_untold(facts) and not children.children_in(facts)


def is_untold(facts: Facts) -> bool:
    """True if a parent waits for its end."""
    works_for = children.delegation(facts)
    return works_for is not None and not works_for.get("ended")


def is_owed(facts: Facts) -> bool:
    """True if others rely on what is left to do: then its log is not put away before."""
    return has_ended(facts) and (
        to_compensate(facts) or is_untold(facts) or to_cascade(facts)  # or nobody ends its children
    )


def to_close(facts: Facts) -> bool:
    """True if a run was under way when it ended; or one that was to finish it has died."""
    turn = runs.turn_in(facts)
    return (turn is not None and turn["span"] is not None) or "span" in ending_in(facts)


def is_left(facts: Facts) -> bool:
    """True if anything is left to be done for a session that has ended."""
    if not has_ended(facts):
        return False
    return to_close(facts) or to_cascade(facts) or to_tell(facts) or to_compensate(facts)


def due_us(facts: Facts) -> int | None:
    """Return when an ended session has work left to finish; None if it has none."""
    if not is_left(facts):
        return None
    ended_us: int = facts.get("durations", EMPTY).get("ended_us", 0)
    only_undone = not (to_close(facts) or to_cascade(facts) or to_tell(facts))
    return int(ending_in(facts).get("retry_us", ended_us)) if only_undone else ended_us


# --- folds ----------------------------------------------------------------------------------------


def fold_transition(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    """The phase it leads to. A session that ends waits for no answer, and is not a suspect."""
    changes = phases.fold(facts, data, at)
    if data["to"] not in ENDED:
        return changes
    changes |= requests.closed(facts, at)
    return changes | deaths.cleared(with_changes(facts, changes), at)


def fold_intended(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    """An effect that can be undone: a termination has to look for it."""
    if "compensate" not in data or "undo" in ending_in(facts):
        return {}
    return _ending(facts, undo=True)


def fold_started(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    if data.get("kind") == "wake" and data.get("name") == "finish":
        return _ending(facts, span=data["span_id"])
    return runs.fold_started(facts, data, at)


def fold_completed(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    if data.get("kind") == "wake" and data["span_id"] == ending_in(facts).get("span"):
        return _ending(facts, span=None) | budgets.fold_compute(facts, data)
    return runs.fold_completed(facts, data, at)


def fold_cascaded(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    return _ending(facts, cascaded=True)


def fold_finished(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    left = data["left"]
    changes = deaths.cleared(facts, at)
    facts = with_changes(facts, changes)
    return changes | _tried(facts, data, left, at)


def _tried(facts: Facts, data: Mapping[str, Any], left: Any, at: Moment) -> Changes:
    if not left:
        return _ending(facts, undo=None, fails=None, retry_us=None)
    if (retry_us := data.get("retry_us")) is not None:
        fails = ending_in(facts).get("fails", 0) + 1
        return _ending(facts, fails=fails, retry_us=retry_us)
    changes = _ending(facts, held=left, retry_us=None)
    return changes | labels.fold(facts, {"labels": {runs.DEAD: "yes"}}, at)


def fold_requeued(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    changes = runs.fold_requeued(facts, data, at)
    if not is_held(facts):
        return changes
    return changes | _ending(facts, held=None, fails=None, retry_us=None)


def _ending(facts: Facts, **changes: Any) -> Changes:
    merged = {**ending_in(facts), **changes}
    kept = FrozenDict({name: value for name, value in merged.items() if value is not None})
    return {"ending": kept if kept else None}
