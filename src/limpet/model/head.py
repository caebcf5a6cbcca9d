"""The head: one row that summarizes a session, folded from its events.

Labels, timers and pending inputs are never written on their own: they follow from the log. They are
members of one document, `facts`. Each subject has a module in `facts`; the tables below map event
types to those modules. A new fact changes no store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec

from limpet.errors import SessionArchived, SessionDeleted
from limpet.model.chain import genesis
from limpet.model.events import CHILD_ENDED, Fact, to_time
from limpet.model.facts import (
    checkpoints,
    creation,
    inputs,
    isolation,
    labels,
    moves,
    outcomes,
    phases,
    priority,
    retention,
    schema,
    shares,
    timeouts,
    timers,
    writes,
)
from limpet.model.facts.running import (
    budgets,
    children,
    endings,
    memory,
    requests,
    runs,
    setup,
    spawned,
    waiting,
)
from limpet.model.facts.view import Check, Facts, Fold, Moment, replaced, with_changes
from limpet.model.keys import Key
from limpet.model.values import EMPTY, FrozenDict

# For each reserved event the fold of its data, and the bounds that a commit must keep. One static
# table, so that folding is the same in every process and total.
_FOLDS: Final[Mapping[str, Fold]] = {
    creation.CREATED: creation.fold_created,
    creation.FORKED: creation.fold_forked,
    labels.LABELED: labels.fold,
    timers.TIMER_SET: timers.fold_timer_set,
    timers.TIMER_CLEARED: timers.fold_timer_cleared,
    inputs.PROCESSED: runs.fold_processed,
    runs.SPAN_STARTED: endings.fold_started,
    runs.SPAN_COMPLETED: endings.fold_completed,
    runs.STATUS_IDLE: runs.fold_idle,
    runs.ERROR: runs.fold_error,
    runs.REQUEUED: endings.fold_requeued,
    runs.INTENDED: endings.fold_intended,
    endings.CASCADED: endings.fold_cascaded,
    endings.FINISHED: endings.fold_finished,
    requests.TOOL_USE: requests.fold_asked,
    requests.CUSTOM_TOOL_USE: requests.fold_asked,
    timers.REVISIT_SET: timers.fold_revisit_set,
    timers.TIMERS_TAKEN: timers.fold_taken,
    children.CHILD_CREATED: children.fold_created,
    children.CHILD_RELEASED: children.fold_ended,
    children.DELEGATED: children.fold_delegated,
    children.DELEGATION_ENDED: children.fold_delegation_ended,
    spawned.CHILD_SPAWNED: spawned.fold_spawned,
    spawned.CHILD_DONE: spawned.fold_done,
    budgets.GRANTED: budgets.fold_granted,
    budgets.RESERVED: budgets.fold_reserved,
    budgets.SETTLED: budgets.fold_settled,
    budgets.LENT: budgets.fold_lent,
    budgets.RETURNED: budgets.fold_returned,
    "agent.message": budgets.fold_message,
    outcomes.EVALUATED: outcomes.fold_evaluated,
    memory.WRITTEN: memory.fold,
    setup.ATTACHED: setup.fold,
    checkpoints.RECORDED: checkpoints.fold_recorded,
    checkpoints.UNPINNED: checkpoints.fold_unpinned,
    priority.PRIORITIZED: priority.fold,
    retention.RETENTION_SET: retention.fold,
    schema.MIGRATED: schema.fold,
    timeouts.TIMEOUTS_SET: timeouts.fold_set,
    timeouts.RENEWED: timeouts.fold_renewed,
    setup.TOOLS_BOUND: setup.fold_bound,
    shares.SHARE_RECEIVED: shares.fold_received,
    shares.UNSHARED: shares.fold_unshared,
    moves.DEPARTED: moves.fold_departed,
    moves.ARRIVED: moves.fold_settled,
    moves.RETURNED: moves.fold_settled,
    moves.RECLAIMED: moves.fold_reclaimed,
    **dict.fromkeys(phases.TRANSITIONS, endings.fold_transition),
}
# Inputs that do more than wait to be processed.
_INPUT_FOLDS: Final[Mapping[str, Fold]] = {
    runs.INTERRUPT: runs.fold_interrupt,
    requests.CONFIRMATION: runs.fold_answer,
    requests.CUSTOM_RESULT: runs.fold_answer,
    requests.RESOLUTION: runs.fold_answer,
    CHILD_ENDED: runs.fold_child_ended,
    outcomes.DEFINED: outcomes.fold_defined,
}
_CHECKS: Final[Mapping[str, Check]] = {
    creation.CREATED: labels.check,
    creation.FORKED: labels.check,
    labels.LABELED: labels.check,
    timers.TIMER_SET: timers.check_timers,
    requests.TOOL_USE: requests.check,
    requests.CUSTOM_TOOL_USE: requests.check,
    timers.REVISIT_SET: timers.check_timers,
    runs.INTENDED: budgets.check_call,
    children.CHILD_CREATED: children.check_created,
    children.CHILD_RELEASED: children.check_ended,
    CHILD_ENDED: children.check_ended,
    spawned.CHILD_SPAWNED: spawned.check_spawned,
    budgets.RESERVED: budgets.check,
    budgets.LENT: budgets.check,
    budgets.RETURNED: budgets.check_returned,
    memory.WRITTEN: memory.check,
    shares.SHARE_RECEIVED: shares.check_received,
    shares.SHARE_USED: shares.check_known,
    timeouts.RENEWED: timeouts.check_renewed,
    moves.DEPARTED: moves.check_departed,
    moves.ARRIVED: moves.check_settled,
    moves.RETURNED: moves.check_settled,
    moves.RECLAIMED: moves.check_reclaimed,
    **dict.fromkeys(phases.TRANSITIONS, phases.check),
}
_ACTIVE: Final = ("user.", "agent.", "step.", "effect.")
_STARTS: Final = frozenset((creation.CREATED, creation.FORKED))


class Head(msgspec.Struct, frozen=True, gc=False, repr_omit_defaults=True):
    """The summary of a session. `version` is the seq of its last event."""

    key: Key
    uid: str  # the id of the first own event; identifies this session, never reused
    version: int
    link: bytes
    created_us: int
    updated_us: int
    active_us: int  # of the last event that counts as activity; leases and labels do not
    facts: Facts = EMPTY
    floor: int = 0  # the log begins after this version; what is below belongs to its parent
    # Not folded and not part of the log: who may run the session.
    fence: int = 0  # the number of the last lease
    lease_us: int | None = None  # until when it is leased; without a worker: held back until then
    worker: str | None = None  # to whom
    leased_us: int | None = None  # since when: granted or renewed, by the store's clock
    # Of a tombstone, which has no facts.
    deleted_us: int | None = None
    ending: Literal["deleted", "moved"] | None = None

    @property
    def labels(self) -> FrozenDict:
        """The labels set by users."""
        return labels.own_labels(labels.labels_in(self.facts))

    @property
    def indexed_labels(self) -> FrozenDict:
        """All labels that a store indexes: the users', and those set by Limpet ($dead,
        $asked:…)."""
        return labels.labels_in(self.facts)

    @property
    def pending(self) -> int:
        """Inputs not yet processed."""
        return inputs.pending(self.facts)

    @property
    def pending_us(self) -> int | None:
        """Since when inputs have been waiting: the arrival of the first, or the last time others
        were processed."""
        return inputs.pending_us(self.facts)

    @property
    def timers(self) -> Mapping[str, timers.Timer]:
        """The timers that are set, by name."""
        return timers.timers_in(self.facts)

    @property
    def priority(self) -> int:
        """Higher priorities are claimed first."""
        return priority.priority(self.facts)

    @property
    def schema_version(self) -> str | None:
        """The schema version of typed state; None if it was never typed."""
        version: str | None = self.facts.get("schema_version")
        return version

    @property
    def phase(self) -> phases.Phase:
        """Its phase; active until a transition changes it."""
        return phases.phase(self.facts)

    @property
    def timeouts(self) -> timeouts.Timeouts | None:
        """Times after which a sweep suspends, terminates and deletes it; None is never."""
        return timeouts.timeouts_in(self.facts)

    @property
    def isolation(self) -> isolation.Isolation:
        """Its isolation; per user, unless set at creation."""
        return isolation.isolation_in(self.facts)

    @property
    def created_at(self) -> datetime:
        """The time the session was created."""
        return to_time(self.created_us)

    @property
    def updated_at(self) -> datetime:
        """The time of its last event."""
        return to_time(self.updated_us)

    @property
    def deleted_at(self) -> datetime | None:
        """The time the session was deleted; None for a live session."""
        return None if self.deleted_us is None else to_time(self.deleted_us)

    def check_here(self) -> None:
        """Raise SessionMoved if the session has departed to another node."""
        if "departed" in self.facts:
            moves.check_here(self.key, self.facts)


def blank(key: Key, uid: str, at_us: int) -> Head:
    """The head before the first event."""
    return Head(key, uid, 0, genesis(uid), at_us, at_us, at_us)


def based(key: Key, uid: str, at_us: int, floor: int, link: bytes) -> Head:
    """The head before the first own event of a log that begins on a state."""
    return Head(key, uid, floor, link, at_us, at_us, at_us, EMPTY, floor)


def buried(head: Head, deleted_us: int, ending: Literal["deleted", "moved"] = "deleted") -> Head:
    """Return the head that a tombstone keeps."""
    times = (head.created_us, head.updated_us, head.active_us)
    return Head(
        head.key,
        head.uid,
        head.version,
        head.link,
        *times,
        floor=head.floor,
        deleted_us=deleted_us,
        ending=ending,
    )


def advance(
    head: Head,
    type: str,
    data: Mapping[str, Any],
    at_us: int,
    link: bytes,
    now_us: int | None = None,
    *,
    input: bool = False,
) -> Head:
    """The head after one more event. Total: every event gives a next head.

    `now_us` is the clock's time at recording; on replay `at_us` stands in for it. They differ if
    the clock was set back to before the previous event. Input then waits from the clock's time, not
    the event's; otherwise it would become due only when the clock has caught up.
    """
    facts, seq = head.facts, head.version + 1
    traits = _traits(type)
    if input or facts or (data and traits.fold is not None):
        at = Moment(seq, at_us if now_us is None else now_us, at_us, head.created_us)
        facts = _advanced(facts, type, data, at, input=input)
    starts, created_us = traits.starts, head.created_us
    if seq == head.floor + 1:
        starts, created_us = True, phases.creation_us(data, created_us)
    if traits.background and timeouts.counts_background(facts):
        starts = True
    return Head(
        head.key,
        head.uid,
        seq,
        link,
        created_us,
        at_us,
        at_us if starts or traits.active else head.active_us,
        facts,
        head.floor,
        head.fence,
        head.lease_us,
        head.worker,
        head.leased_us,
    )


def _advanced(
    facts: Facts, type: str, data: Mapping[str, Any], at: Moment, *, input: bool
) -> Facts:
    """The document of facts after one more event; the same object if nothing in it changes."""
    before = facts
    if input:
        facts = with_changes(facts, inputs.fold_input(facts, data, at))
        if "resumes" in facts:
            facts = with_changes(facts, phases.fold_input(facts, at))
        # No data: its body is damaged. That there was an interrupt its type says.
        if (data or type == runs.INTERRUPT) and (fold := _INPUT_FOLDS.get(type)) is not None:
            facts = with_changes(facts, fold(facts, data, at))
    elif data and (fold := _FOLDS.get(type)) is not None:  # no data: the fact's body is damaged
        facts = with_changes(facts, fold(facts, data, at))
    if "inputs" in facts and (late := inputs.hasten(facts, at.now_us)):
        facts = with_changes(facts, late)
    if "requests" in before or "requests" in facts:
        facts = with_changes(facts, waiting.relabeled(before, facts, at))
    return facts


def is_moved(head: Head) -> bool:
    """True if an event that is not an input and of which no fact follows (see `activity_of`) only
    moves the head: it is not its first, and none of its facts changes by it or refuses it."""
    facts = head.facts
    if facts and ("inputs" in facts or "phase" in facts or "departed" in facts):
        return False
    return head.version != head.floor


@lru_cache(maxsize=1_024)
def activity_of(type: str) -> bool | None:
    """True if events of this type count as activity; None if facts follow from them."""
    return None if type in _FOLDS or type in _CHECKS else type.startswith(_ACTIVE)


@lru_cache(maxsize=1_024)
def _only_waits(type: str) -> bool:
    """True if nothing follows from an input of this type but that it waits, and nothing refuses
    it; and it counts as activity."""
    folds = type in _INPUT_FOLDS or type in _CHECKS
    return not folds and type.startswith(_ACTIVE)


def with_input(head: Head, type: str, now_us: int) -> Facts | None:
    """Return the facts after an input that only has to wait, as most do; None if the
    general fold decides."""
    facts = head.facts
    if head.version == head.floor or not _only_waits(type):
        return None
    if "phase" in facts or "departed" in facts or "requests" in facts:
        return None
    return replaced(facts, inputs.one_more(facts, now_us))


def moved(head: Head, version: int, link: bytes, at_us: int, *, active: bool, facts: Facts) -> Head:
    """The head after events that only moved it (see `is_moved`), or left these facts."""
    return Head(
        head.key,
        head.uid,
        version,
        link,
        head.created_us,
        at_us,
        at_us if active else head.active_us,
        facts,
        head.floor,
        head.fence,
        head.lease_us,
        head.worker,
        head.leased_us,
    )


class _Traits(msgspec.Struct, frozen=True):
    """The traits of an event that follow from its type alone."""

    fold: Fold | None
    starts: bool
    background: bool
    active: bool


@lru_cache(maxsize=1_024)
def _traits(type: str) -> _Traits:
    background = type.startswith(timeouts.BACKGROUND)
    return _Traits(_FOLDS.get(type), type in _STARTS, background, type.startswith(_ACTIVE))


def reads(type: str) -> bool:
    """True if the head looks into the data of events of this type."""
    return type in _FOLDS or type in _INPUT_FOLDS


def check_phase(head: Head, type: str, *, input: bool) -> None:
    """Raise SessionSuspended or SessionEnded if the session's phase refuses this event;
    SessionArchived if it is a transition, and the log that it belongs to is in the archive;
    SessionMoved if it has departed: then only what settles that follows."""
    if "departed" in head.facts and type not in moves.SETTLES:
        moves.check_here(head.key, head.facts)
    phase = head.facts.get("phase")
    if phase is not None:
        writes.check_write(head.key, phase, type, input=input)
        if type in phases.TRANSITIONS and phases.is_stub(head.facts):
            raise SessionArchived(head.key)


def check_answer(head: Head, type: str, data: Mapping[str, Any]) -> None:
    """Raise RequestAnswered or RequestMismatch if this input is an answer that comes too late, or
    of the wrong kind."""
    if type in requests.ANSWERS:
        requests.check_answer(head.key, head.facts, type, data)


def check_facts(before: Facts, after: Facts, type: str, data: Mapping[str, Any]) -> None:
    """Raise if the subject of this event refuses what it would leave: a limit, a budget."""
    check = _CHECKS.get(type)
    if check is not None:
        check(before, after, data)


# --- archived sessions ---------------------------------------------------------------------------

# The facts of an archived session that its stub keeps.
_STUB_KEEPS: Final = (
    "labels",
    "timeouts",
    "retention",
    "durations",
    "archived_from",
    "schema_version",
    "isolation",
    "field_policies",
)


def stub(head: Head, place: str, size: int, sha256: str, children: Sequence[Key] = ()) -> Fact:
    """The log of this archived session is at `place` in the archive from now on. `children` in
    other apps are named, since nobody reads the log to find them."""
    key, facts = head.key, head.facts
    data: dict[str, Any] = {"app": key.app, "user": key.user, "id": key.id}
    data["archived"] = {
        "key": [key.app, key.user, key.id],
        "place": place,
        "bytes": size,
        "sha256": sha256,
        "uid": head.uid,
        "version": head.version,
        "link": head.link.hex(),
        "created_us": head.created_us,
        "facts": {name: facts[name] for name in _STUB_KEEPS if name in facts},
    }
    if children:
        data["archived"]["children"] = [[child.app, child.user, child.id] for child in children]
    return Fact(type="session.created", data=data)


def check_present(head: Head, uid: str | None) -> None:
    """Raise SessionArchived if the log of this session (None: whichever has the key) is in the
    archive, SessionDeleted if the key belongs to another by now."""
    place = phases.archive_place(head.facts)
    if place is not None and uid in (None, head.uid, place["uid"]):
        raise SessionArchived(head.key)
    if uid not in (None, head.uid):
        raise SessionDeleted(head.key)
