"""Deaths: a session was in flight when the process of its worker died.

A death says nothing about who caused it, so every session that was in flight becomes a suspect. A
suspect is next run alone in its worker, after a delay that grows with its deaths. Deaths alone are
counted apart: only they make a dead letter. A wake that ends by itself clears the suspect.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet.model.facts import labels
from limpet.model.facts.view import Changes, Facts, Moment, replaced
from limpet.model.values import EMPTY, FrozenDict

DIED: Final = "turn.died"  # the code of the session.error that records a death
SUSPECT: Final = "$suspect"  # the label of suspects, by which they are listed
DELAY_SECONDS: Final = 2.0  # after the second death; the first is followed up at once
DELAY_SECONDS_MAX: Final = 300.0

# The circumstances of a death: beside other sessions of its worker, or as the only one.
Death: TypeAlias = Literal["shared", "alone"]
# The reason of a dead letter: its runs died with their worker, or they raised.
DeadReason: TypeAlias = Literal["died", "raised"]


class Deaths(msgspec.Struct, frozen=True, gc=False):
    """The deaths of a session since it last ended a wake by itself."""

    shared: int = 0
    alone: int = 0
    at_us: int = 0  # when the last one was recorded

    @property
    def total(self) -> int:
        return self.shared + self.alone

    def after(self, death: Death, *, got_on: bool) -> Deaths:
        """The deaths after one more. A run that had recorded something new did not die in vain:
        what it got on by starts the count of deaths alone again."""
        shared, alone = self.shared + (death == "shared"), self.alone + (death == "alone")
        return Deaths(max(shared, 1) if got_on else shared, 0 if got_on else alone, self.at_us)


def deaths_in(facts: Facts) -> Deaths:
    fields = facts.get("run", EMPTY).get("deaths")
    return Deaths() if fields is None else Deaths(**fields)


def is_suspect(facts: Facts) -> bool:
    """True if it was in flight in a death, and has not ended a wake since."""
    return "deaths" in facts.get("run", EMPTY)


def is_killer(deaths: Deaths, retries: int) -> bool:
    """True if it died alone as often as it may."""
    return deaths.alone >= max(1, retries)


def dead_reason(facts: Facts) -> DeadReason | None:
    """Return why its turn is a dead letter, or its compensations are held; None if neither is."""
    run = facts.get("run", EMPTY)
    if (dead := run.get("dead")) is not None:
        return "died" if dead.get("code") == DIED else "raised"
    if "held" not in facts.get("ending", EMPTY):
        return None
    return "died" if run.get("error", EMPTY).get("code") == DIED else "raised"


def delay_us(deaths: int) -> int:
    """Return how long after a worker was last heard of the session waits, with this many deaths:
    not at all after the first, then two seconds, doubled with each, up to five minutes."""
    if deaths < 2:
        return 0
    return round(min(DELAY_SECONDS_MAX, DELAY_SECONDS * 2.0 ** (deaths - 2)) * 1_000_000)


def held_until_us(others: Iterable[Deaths]) -> int:
    """Return until when no suspect is run, by the deaths of all suspects of its app.

    If several sessions died alone, one after another, the fault is hardly theirs: a bad release or
    a sick machine kills them all. Then they wait together, longer with each, and nobody is made a
    dead letter in a hurry.
    """
    died_alone = [deaths for deaths in others if deaths.alone]
    if not died_alone:
        return 0
    return max([deaths.at_us for deaths in died_alone]) + delay_us(len(died_alone))


# --- folds ----------------------------------------------------------------------------------------


def fold_died(facts: Facts, death: Any, at: Moment) -> Changes:
    """The members of `run` and the labels after a death."""
    before = deaths_in(facts)
    after = before.after("alone" if death == "alone" else "shared", got_on=False)
    fields = FrozenDict({"shared": after.shared, "alone": after.alone, "at_us": at.now_us})
    marked = {} if is_suspect(facts) else labels.fold(facts, {"labels": {SUSPECT: "yes"}}, at)
    return {**marked, **_with(facts, fields)}


def got_on(facts: Facts) -> Changes:
    """The run that died had recorded something new."""
    if not is_suspect(facts):
        return {}
    deaths = deaths_in(facts)
    fields = {"shared": max(1, deaths.shared), "alone": 0, "at_us": deaths.at_us}
    return _with(facts, FrozenDict(fields))


def cleared(facts: Facts, at: Moment) -> Changes:
    """It is a suspect no longer."""
    if not is_suspect(facts):
        return {}
    return {**labels.fold(facts, {"labels": {SUSPECT: None}}, at), **_with(facts, None)}


def _with(facts: Facts, deaths: FrozenDict | None) -> Changes:
    return {"run": replaced(facts.get("run", EMPTY), {"deaths": deaths})}
