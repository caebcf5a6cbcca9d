"""Opening a wake: what the turn is, what of it is recorded, and what a dead run left open.

Reads only. What has to be recorded first comes back as drafts, which go with the first commit of
the wake: so a dead run is settled, and the new one begun, in one step.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import structs

from limpet.model import (
    CHILD_ENDED,
    EMPTY,
    PAGE_MAX,
    TURN_INPUTS_MAX,
    Draft,
    Event,
    Facts,
    FrozenDict,
    Lease,
    Texts,
    due_for,
)
from limpet.model.facts.running import (
    ANSWERS,
    CUSTOM_TOOL_USE,
    FAILED,
    STEP,
    SUCCEEDED,
    TOOL_RESULT,
    TOOL_USE,
    Revisit,
    effect_unknown,
    requests,
    reservations,
    revisits_of,
    runs,
    settled,
    timers_taken,
)
from limpet.runtime.children import interrupt_all
from limpet.runtime.records import Records, check_readable, identity
from limpet.session.session import Session
from limpet.store.protocol import Loaded

TAIL: Final = 8  # it mostly has the pending inputs, which then need not be read
CONTROL: Final = frozenset((runs.INTERRUPT, *ANSWERS))  # they wake a session and are not inputs
# A run that died after one of these was not in vain: it does not count as failed.
_PROGRESS: Final = frozenset((STEP, SUCCEEDED, FAILED, "agent.message", TOOL_USE, CUSTOM_TOOL_USE))
DIED: Final = "the worker stopped before the end of the run"


class Opening(msgspec.Struct):
    """What a wake begins with."""

    turn_id: str
    attempt: int
    why: runs.Why = "input"
    inputs: tuple[Event, ...] = ()
    revisits: tuple[Revisit, ...] = ()
    timers: tuple[str, ...] = ()  # the names of what `revisits` shows
    control: tuple[int, ...] = ()  # seqs of answers and interrupts that are pending
    redirect: Event | None = None  # the interrupt that began the turn: its note is what it is about
    records: Records = msgspec.field(default_factory=Records)
    drafts: list[Draft] = msgspec.field(default_factory=list)  # to be recorded first
    fails: int = 0  # runs of this turn that failed or died
    died: bool = False  # the run before this one did, and had not got on
    is_eager: bool = False  # record the beginning before the harness runs
    has_turn: bool = True  # False: an interrupt is all there was
    by_default: bool = False  # requests are answered by their deadlines, if nobody was faster


async def open_wake(
    session: Session[Any], lease: Lease, loaded: Loaded | None = None
) -> Opening | str:
    """The beginning of a wake; or why there is nothing to run.

    `loaded` is the session as it was read after its claim, with TAIL events.
    """
    now_us = lease.claimed_us  # by the store's clock
    if loaded is None or not session.writer.take(loaded):
        await session.writer.load(tail=TAIL)
    if "resumes" in session.head.facts:  # it was suspended for idleness, and input waits
        await session.writer.rouse()
    facts = session.head.facts
    if session.head.phase != "active":
        return session.head.phase
    if runs.is_dead(facts):
        return "dead_letter"
    overdue = requests.overdue(facts, now_us)
    if runs.is_paused(facts) and not overdue:
        return "requires_action"
    if runs.is_short(facts):
        return "budget_reached"
    pending = await _pending(session)
    return await _opened(session, lease, pending, overdue)


async def _opened(
    session: Session[Any],
    lease: Lease,
    pending: tuple[Event, ...],
    overdue: dict[str, bool],
) -> Opening | str:
    facts = session.head.facts
    turn, new_id = runs.turn_in(facts), session.writer.journal.new_id
    control = tuple([event.seq for event in pending if event.type in CONTROL])
    settling: list[Draft] = []
    records, died = Records(), False
    if turn is not None:
        settling, records = await _settle(session, turn, lease)
        died = any([d.type == runs.ERROR and d.data["counts"] for d in settling])
    redirect = None if turn is not None else await _event(session, pending, runs.redirect_in(facts))
    if runs.is_interrupted(facts):
        redirect = await interrupted_by(session, pending)
        gone = _interrupted_inputs(facts, turn, pending)
        settling += _interrupted(facts, turn, records, {*gone, *control}, redirect)
        pending = tuple([e for e in pending if e.seq not in gone and e.type not in CONTROL])
        turn, records, died = None, Records(), False
        control = tuple([seq for seq in control if redirect is not None and seq > redirect.seq])
        control = control if redirect is None else (redirect.seq, *control)
        settling[:0] = await interrupt_all(session, None)
    if turn is not None:
        opening = await _going_on(session, turn, records, pending)
        opening.fails = runs.run_in(facts).get("fails", 0) + died
        for id, allow in overdue.items():
            settling.append(answer := _by_default(id, allow=allow))
            records.answers[id] = answer.data
        opening.by_default = bool(overdue)
    else:
        texts = session.writer.known.texts
        opening = _new(new_id(), pending, facts, lease, records, texts, redirect)
        if not opening.has_turn and not settling and not control:
            return "nothing_pending"
    opening.control, opening.drafts, opening.died = control, settling, died
    opening.why = _why(facts, opening, overdue=bool(overdue), crashed=bool(settling))
    fence = runs.run_in(facts).get("fence", 0)
    opening.is_eager = bool(settling) or lease.fence > fence + 1
    return opening


def _why(facts: Facts, opening: Opening, *, overdue: bool, crashed: bool) -> runs.Why:
    """What made it due: the first of the reasons, in the order in which they count."""
    run, turn = runs.run_in(facts), runs.turn_in(facts)
    if runs.is_interrupted(facts) or runs.redirect_in(facts) is not None:
        return "interrupt"
    if run.get("requeued"):
        return "requeue"
    if turn is None:
        types = {event.type for event in opening.inputs}
        return ("child" if types == {CHILD_ENDED} else "input") if types else "timer"
    if overdue:
        return "deadline"
    if crashed:
        return "died"
    if run.get("stop") in ("rescheduling", "budget_reached"):
        return "retry"
    ended = [event for event in opening.records.ended.values() if event.processed == 0]
    return "answer" if opening.control else "child" if ended else "asked"


def _new(
    turn_id: str,
    pending: tuple[Event, ...],
    facts: Facts,
    lease: Lease,
    records: Records,
    texts: Texts,
    redirect: Event | None,
) -> Opening:
    """A turn that begins: it fixes what it is about. One that an interrupt begins is about its
    note: inputs and timers wait for the next."""
    if redirect is not None:
        return Opening(turn_id, 1, records=records, redirect=redirect)
    inputs = tuple([e for e in pending if e.type not in CONTROL])[:TURN_INPUTS_MAX]
    timers: tuple[str, ...] = ()
    if "timers" in facts:
        timers = tuple([name for name, _ in due_for(facts, lease.claimed_us).timers])
    revisits = revisits_of(facts, timers, texts) if timers else ()
    has_turn = bool(inputs or timers)
    how: Any = {"revisits": revisits, "timers": timers, "has_turn": has_turn}
    return Opening(turn_id, 1, inputs=inputs, records=records, **how)


async def _going_on(
    session: Session[Any], turn: FrozenDict, records: Records, pending: tuple[Event, ...]
) -> Opening:
    """A turn that was begun: the same inputs, and what it has recorded."""
    by_seq = {event.seq: event for event in pending}
    inputs = []
    for seq in turn["inputs"]:
        # Somebody may have marked it as processed: it is the turn's all the same.
        found = by_seq.get(seq) or await _event(session, (), seq)
        assert found is not None, "a turn's inputs are in its log"
        inputs.append(found)
    timers = tuple(turn["timers"])
    revisits = revisits_of(session.head.facts, timers, session.writer.known.texts)
    redirect = await _event(session, pending, turn.get("redirect"))
    how: Any = {"revisits": revisits, "timers": timers, "records": records, "redirect": redirect}
    return Opening(turn["id"], turn["attempt"] + 1, inputs=tuple(inputs), **how)


async def _settle(
    session: Session[Any], turn: FrozenDict, lease: Lease
) -> tuple[list[Draft], Records]:
    """What has to be recorded of a run that died, and the records of its turn."""
    events = await _since(session, turn["from"])
    check_readable(session.key, events)
    records = Records(events)
    if turn["span"] is None:
        return [], records
    drafts = unknown_effects(turn["id"], records, DIED)
    for _, record in records.dangling():
        record.state = "unknown"
    drafts += cut_off(session.head.facts, records)
    got_on = any([e.wake_id == turn["span"] and e.type in _PROGRESS for e in events])
    drafts.append(runs.failed("turn.died", DIED, turn["attempt"], counts=not got_on))
    end = runs.wake_completed(turn["span"], turn["id"], "error", fence=lease.fence - 1, error=DIED)
    return [*drafts, end], records


async def records_of(session: Session[Any], turn: FrozenDict) -> Records:
    """What the runs of a turn have recorded."""
    return Records(await _since(session, turn["from"]))


def unknown_effects(turn_id: str, records: Records, why: str) -> list[Draft]:
    """An outcome for each effect that has none."""
    found: list[Draft] = []
    for (name, occurrence), record in records.dangling():
        id = identity(turn_id, "effect.dangling", name, occurrence, record.tries)
        of = (name, occurrence, record.args_hash, record.key)
        how: Any = {"parent": record.wake, "error": why}
        end = runs.span_completed(record.span, "tool", name, "error", **how)
        # They belong to the wake that began it, so that its trace is whole.
        drafts = (effect_unknown(id, *of, why), end)
        found += [structs.replace(draft, wake_id=record.wake or None) for draft in drafts]
    return found


def cut_off(facts: Facts, records: Records) -> list[Draft]:
    """An end for each reservation of a run that was cut off: all of it counts as used."""
    held = reservations(facts)
    records.reserved |= dict.fromkeys(held, "cut")
    return [settled(id, of, cut=True) for id, of in held.items()]


def unanswered(records: Records, why: str) -> list[Draft]:
    """An outcome for each tool call of a turn that has none: the conversation stays valid."""
    found = []
    for id in records.asked:
        result = f"{id}/result"
        if result not in records.events and id not in records.outcomes:
            data = {"request_id": id, "output": why, "is_error": True}
            found.append(Draft(type=TOOL_RESULT, data=data, id=result))
    return found


def _interrupted_inputs(
    facts: Facts, turn: FrozenDict | None, pending: tuple[Event, ...]
) -> set[int]:
    """The inputs that an interrupt ends: those of the turn; of a child whose parent was
    interrupted, all that came before."""
    waiting = {event.seq for event in pending}
    if facts.get("delegation", EMPTY).get("quiet"):
        return {seq for seq in waiting if seq < runs.run_in(facts)["interrupt"]}
    return set() if turn is None else waiting & set(turn["inputs"])


def _interrupted(
    facts: Facts,
    turn: FrozenDict | None,
    records: Records,
    done: set[int],
    redirect: Event | None,
) -> list[Draft]:
    """The end of a turn that was interrupted while nobody ran it."""
    drafts = unanswered(records, "interrupted") if turn is not None else []
    if turn is not None and turn["timers"]:
        drafts.append(timers_taken(turn["timers"]))
    done = {*done, runs.run_in(facts)["interrupt"]}
    if redirect is None:
        return [*drafts, runs.status_idle("interrupted", processed=done)]
    done = {seq for seq in done if seq < redirect.seq}
    idle = runs.status_idle("interrupted", processed=done, redirect=redirect.seq)
    return [*drafts, idle]


async def interrupted_by(session: Session[Any], pending: tuple[Event, ...]) -> Event | None:
    """The interrupt that was not dealt with, if its note begins a turn."""
    event = await _event(session, pending, runs.run_in(session.head.facts).get("interrupt"))
    return event if event is not None and runs.redirects(event.data) else None


async def _event(
    session: Session[Any], pending: tuple[Event, ...], seq: int | None
) -> Event | None:
    """The event with this seq, which mostly is a pending one."""
    if seq is None:
        return None
    for event in pending:
        if event.seq == seq:
            return event
    (found,) = await session.read(after=seq - 1, limit=1)
    return found


def _by_default(id: str, *, allow: bool) -> Draft:
    """The answer of a deadline. If somebody was faster, its commit is refused: RequestAnswered."""
    data = {"request_id": id, "allow": allow, "note": "the deadline passed"}
    return Draft(type=requests.CONFIRMATION, data=data, id=f"{id}/default", actor="system:runtime")


async def _pending(session: Session[Any]) -> tuple[Event, ...]:
    """The inputs that are not processed: from the tail, if it has them all."""
    known = session.head.pending
    if not known:
        return ()
    found = tuple([event for event in session.events if event.processed == 0])
    return found if len(found) == known else await session.pending(limit=PAGE_MAX)


async def _since(session: Session[Any], seq: int) -> list[Event]:
    """The log of a turn, from its beginning."""
    events = session.events
    if events and events[0].seq <= seq + 1:
        return [event for event in events if event.seq > seq]
    found: list[Event] = []
    while page := await session.read(after=found[-1].seq if found else seq, limit=PAGE_MAX):
        found += page
    return found
