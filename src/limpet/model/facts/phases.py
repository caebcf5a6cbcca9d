"""Phases: where a session stands in its life, and the one table of how it moves on.

A session without the member `phase` is active, as every session is that never made a transition, so
that an ordinary one pays nothing. `durations` holds how long each phase lasted, from the first
transition on. `standing` repeats a phase other than active, for the index. `resumes` says that the
next input ends a suspension, `roused_us` that it has come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet.errors import InvalidEvent, InvalidTransition
from limpet.model.events import Fact
from limpet.model.facts.view import Changes, Facts, Moment
from limpet.model.values import EMPTY, FrozenDict

Phase: TypeAlias = Literal[
    "init", "active", "suspended", "resumed", "completed", "terminated", "archived"
]
PhaseEvent: TypeAlias = Literal[
    "activate",
    "suspend",
    "timeout",
    "resume",
    "reactivate",
    "complete",
    "terminate",
    "expire",
    "archive",
    "unarchive",
]

INIT: Final = "init"
ACTIVE: Final = "active"
SUSPENDED: Final = "suspended"
RESUMED: Final = "resumed"
COMPLETED: Final = "completed"
TERMINATED: Final = "terminated"
ARCHIVED: Final = "archived"
PHASES: Final[tuple[Phase, ...]] = (
    INIT,
    ACTIVE,
    SUSPENDED,
    RESUMED,
    COMPLETED,
    TERMINATED,
    ARCHIVED,
)
TERMINAL: Final[frozenset[Phase]] = frozenset((COMPLETED, TERMINATED, ARCHIVED))
COUNTED: Final[tuple[Phase, ...]] = (INIT, ACTIVE, SUSPENDED, RESUMED)  # the clock stops at the end
EVENTS: Final[tuple[PhaseEvent, ...]] = PhaseEvent.__args__  # type: ignore[attr-defined]  # Literal


class Rule(msgspec.Struct, frozen=True):
    """One row of the table: where it leads, and what goes with it."""

    to: Phase
    guard: str  # what has to hold, in words; the session's room checks it
    effects: tuple[str, ...]


_SUSPENDING: Final = ("checkpoint", "flush_working_memory", "release_tools")
_ENDING: Final = ("compensate", "cleanup", "release_tools", "record_error")
TABLE: Final[Mapping[tuple[Phase, PhaseEvent], Rule]] = {
    (INIT, "activate"): Rule(
        ACTIVE,
        "its state fits its schema and its tools can be bound",
        ("bind_tools", "initialize_memory"),
    ),
    (INIT, "terminate"): Rule(TERMINATED, "", _ENDING),
    (ACTIVE, "suspend"): Rule(SUSPENDED, "its state can be read whole", _SUSPENDING),
    (ACTIVE, "timeout"): Rule(SUSPENDED, "its state can be read whole", _SUSPENDING),
    (ACTIVE, "complete"): Rule(
        COMPLETED,
        "all exit criteria hold and no child is open",
        ("checkpoint", "promote_memory", "release_tools"),
    ),
    (ACTIVE, "terminate"): Rule(TERMINATED, "", _ENDING),
    (SUSPENDED, "resume"): Rule(
        RESUMED,
        "its state can be read whole, a checkpoint can be trusted and its tools can be bound",
        ("bind_tools",),
    ),
    (SUSPENDED, "terminate"): Rule(TERMINATED, "", _ENDING),
    (SUSPENDED, "expire"): Rule(TERMINATED, "", _ENDING),
    (RESUMED, "reactivate"): Rule(ACTIVE, "its state can be read whole and fits its schema", ()),
    (RESUMED, "terminate"): Rule(TERMINATED, "", _ENDING),
    (COMPLETED, "archive"): Rule(ARCHIVED, "", ("move_to_archive",)),
    (TERMINATED, "archive"): Rule(ARCHIVED, "", ("move_to_archive",)),
    # Back to where it was: the event names the phase.
    (ARCHIVED, "unarchive"): Rule(COMPLETED, "", ("restore_from_archive",)),
}
# The event type that records each. Several events may lead to one phase.
TYPES: Final[Mapping[PhaseEvent, str]] = {
    "activate": "session.activated",
    "suspend": "session.suspended",
    "timeout": "session.suspended",
    "resume": "session.resumed",
    "reactivate": "session.reactivated",
    "complete": "session.completed",
    "terminate": "session.terminated",
    "expire": "session.terminated",
    "archive": "session.archived",
    "unarchive": "session.unarchived",
}
HOOK_FAILED: Final = "session.hook_failed"
TRANSITIONS: Final = frozenset(TYPES.values())


def rule(phase: Phase, event: PhaseEvent) -> Rule:
    """The row of the table. Raises InvalidTransition."""
    transition = TABLE.get((phase, event))
    if transition is None:
        raise InvalidTransition(phase, event, allowed(phase))
    return transition


def allowed(phase: Phase) -> tuple[str, ...]:
    """The events that a session in this phase accepts."""
    return tuple(event for of, event in TABLE if of == phase)


def transition(
    phase: Phase,
    event: PhaseEvent,
    *,
    reason: str | None = None,
    to: Phase | None = None,
    more: Mapping[str, Any] = EMPTY,
    delete: tuple[str, ...] = (),
    actor: str | None = None,
) -> Fact:
    """The session moves on from `phase`. Raises InvalidTransition; the commit may, too."""
    if reason is not None and (not isinstance(reason, str) or not reason):
        raise InvalidEvent("the reason of a transition is a text that is not empty")
    leads = rule(phase, event).to if to is None else to
    data: dict[str, Any] = {**more, "from": phase, "to": leads, "event": event}
    if reason is not None:
        data["reason"] = reason
    return Fact(type=TYPES[event], data=data, delete=delete, actor=actor)


def hook_failed(name: str, error: str, *, actor: str | None = None) -> Fact:
    """A hook failed after its transition was recorded, which it cannot undo."""
    return Fact(type=HOOK_FAILED, data={"hook": name, "error": error}, actor=actor)


def phase(facts: Facts) -> Phase:
    """Return the phase of the session; active unless an event says otherwise."""
    stored_phase: Phase = facts.get("phase", ACTIVE)
    return stored_phase


def fold_input(facts: Facts, at: Moment) -> Changes:
    """Input has come to a session that was suspended for the lack of it: it is to be resumed."""
    return {} if "roused_us" in facts else {"roused_us": at.at_us}


def roused_us(facts: Facts) -> int | None:
    """Return the arrival of the input that ends a suspension; None if there is none."""
    at_us: int | None = facts.get("roused_us")
    return at_us


def check_first(phase: Phase) -> Phase:
    """The phase that a session is created in. Raises InvalidEvent."""
    if phase not in (INIT, ACTIVE):
        raise InvalidEvent(f"a session begins in phase 'init' or 'active', not {phase!r}")
    return phase


def begin(data: Mapping[str, Any], at: Moment) -> Changes:
    """Return what a creation says of the phase: a session may begin before it is active."""
    if data.get("phase") != INIT:
        return {}
    return {"phase": INIT, "standing": INIT, "durations": FrozenDict({"since_us": at.at_us})}


def fold(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    """The phase it leads to, and the time spent in the one before."""
    to, before = data["to"], data["from"]
    spent = dict(facts.get("durations", EMPTY))
    since_us = spent.get("since_us", at.created_us)
    if before in COUNTED:
        spent[f"{before}_us"] = spent.get(f"{before}_us", 0) + max(0, at.at_us - since_us)
    spent["since_us"] = at.at_us
    if to == SUSPENDED:
        spent["suspensions"] = spent.get("suspensions", 0) + 1
    if to in TERMINAL:
        spent.setdefault("ended_us", at.at_us)
    shown = None if to == ACTIVE else to
    changes: Changes = {"phase": shown, "standing": shown, "durations": FrozenDict(spent)}
    changes["resumes"] = True if to == SUSPENDED and data.get("resumes") is True else None
    changes["roused_us"] = None
    changes["archived_from"] = before if to == ARCHIVED else None
    return changes


def check(before: Facts, after: Facts, data: Mapping[str, Any]) -> None:
    """Raise InvalidTransition unless the table has this transition from the newest phase."""
    now, event, to = phase(before), data["event"], data["to"]
    leads = before.get("archived_from") if event == "unarchive" else rule(now, event).to
    if data["from"] != now or to != leads:
        raise InvalidTransition(now, event, allowed(now))


def archive_place(facts: Facts) -> Mapping[str, Any] | None:
    """Return where the log is, if it is not in this store."""
    archive: Mapping[str, Any] | None = facts.get("archive")
    return archive


def is_stub(facts: Facts) -> bool:
    """True if the log is in the archive and not in this store."""
    return "archive" in facts


def creation_us(first: Mapping[str, Any], at_us: int) -> int:
    """Return when a session was created, by its first event: a stub's was when its log was."""
    archived = first.get("archived")
    return at_us if archived is None else int(archived["created_us"])


def stub_facts(data: Mapping[str, Any]) -> Changes:
    """Return the facts in the head of a stub."""
    archived = data["archived"]
    shown = {name: value for name, value in archived.items() if name != "facts"}
    standing = {"phase": "archived", "standing": "archived", "archive": FrozenDict(shown)}
    return {**archived.get("facts", EMPTY), **standing}
