"""Outcomes: what a session is to achieve, and how far it was found to be.

The criteria are a text to be judged by, and never a part of what is judged. The head has the
verdict and the seq of the event that defined the outcome; the words are that event's (see `fold`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet.errors import InvalidEvent
from limpet.model.events import Draft, Fact
from limpet.model.facts.view import NO_TEXTS, Changes, Facts, Moment, Texts
from limpet.model.values import EMPTY, FrozenDict

DEFINED: Final = "user.define_outcome"
EVALUATED: Final = "session.outcome_evaluated"
CRITERIA_MAX: Final = 32
_TEXT_CHARS_MAX: Final = 1_000

Grade: TypeAlias = Literal["missing", "blocked", "sleeping", "in_progress", "done_candidate"]
Verdict: TypeAlias = Literal["pass", "fail", "uncertain", "not_ready"]
Trend: TypeAlias = Literal["improving", "stable", "regressing"]


class Outcome(msgspec.Struct, frozen=True):
    """The goal of a session, and the last verdict on it."""

    title: str
    detail: str | None
    criteria: tuple[str, ...]
    seq: int  # of the event that defined it
    verdict: Verdict | None = None


class Evaluation(msgspec.Struct, frozen=True):
    """One verdict: which criteria are met, where that is known."""

    verdict: Verdict
    met: tuple[bool | None, ...] = ()
    trend: Trend = "stable"
    note: str | None = None


def outcome_defined(title: str, detail: str | None, criteria: Iterable[str]) -> Draft:
    """Define an outcome of the session. Raises InvalidEvent."""
    is_list = isinstance(criteria, Iterable) and not isinstance(criteria, str)
    listed = list(criteria) if is_list else []
    if not is_list or not _fits(title, detail, listed):
        raise InvalidEvent(
            f"an outcome has a title, a detail and up to {CRITERIA_MAX} criteria, each a text of "
            f"1 to {_TEXT_CHARS_MAX:,} characters"
        )
    data: dict[str, Any] = {"title": title, "criteria": listed}
    if detail is not None:
        data["detail"] = detail
    return Draft(type=DEFINED, data=data)


def outcome_evaluated(evaluation: Evaluation) -> Fact:
    """A verdict on the outcome."""
    data: dict[str, Any] = {"verdict": evaluation.verdict, "met": list(evaluation.met)}
    data["trend"] = evaluation.trend
    if evaluation.note is not None:
        data["note"] = evaluation.note
    return Fact(type=EVALUATED, data=data)


def outcome_in(facts: Facts, texts: Texts = NO_TEXTS) -> Outcome | None:
    """Return the outcome; without its words where the event cannot be read."""
    outcome = facts.get("outcome")
    if outcome is None:
        return None
    said = {**outcome, **texts.get(outcome["seq"], EMPTY)}
    criteria = tuple(said.get("criteria", ()))
    shown = (said.get("title", ""), said.get("detail"), criteria)
    return Outcome(*shown, outcome["seq"], outcome.get("verdict"))


def trend(before: Iterable[bool | None], after: Iterable[bool | None]) -> Trend:
    """More criteria met than before, fewer, or as many."""
    then, now = sum(m is True for m in before), sum(m is True for m in after)
    return "improving" if now > then else "regressing" if now < then else "stable"


def fold_defined(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    criteria = data.get("criteria")
    if not isinstance(criteria, list) or not _fits(data.get("title"), data.get("detail"), criteria):
        return {}  # an event like any other: these words are kept with the state
    return {"outcome": FrozenDict({"seq": at.seq})}


def _fits(title: Any, detail: Any, criteria: list[Any]) -> bool:
    texts = [title, *criteria, *([] if detail is None else [detail])]
    fits = all([isinstance(t, str) and 0 < len(t) <= _TEXT_CHARS_MAX for t in texts])
    return fits and len(criteria) <= CRITERIA_MAX


def fold_evaluated(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    if "outcome" not in facts:
        return {}
    outcome = {**facts["outcome"], "verdict": data["verdict"], "met": data["met"]}
    return {"outcome": FrozenDict(outcome)}
