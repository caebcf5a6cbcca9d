"""The log of a turn: what its run records, and what earlier runs of it have recorded.

A `TurnLog` writes under the wake's lease, with its ids. The beginning of a wake is recorded with
the first thing that it records, so that an empty turn takes one commit; nothing of a turn is ever
in the log before its beginning is. `TurnRecords` are found by kind, name and occurrence: a call of
the turn looks there first, and what it finds is returned instead of done again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import structs

from limpet.errors import (
    AccessDenied,
    EffectFailed,
    InvalidInput,
    InvalidValue,
    SessionCorrupt,
    SessionFenced,
    SessionSuspended,
    StoreError,
)
from limpet.model import (
    CHILD_ENDED,
    PROCESSED,
    Commit,
    Draft,
    Event,
    Fact,
    Facts,
    Key,
    Lease,
    Prepared,
    canonical,
    freeze,
    settle,
    unfit,
)
from limpet.model.facts.phases import roused_us
from limpet.model.facts.running.budgets import RESERVED, SETTLED, reservations, settled
from limpet.model.facts.running.children import CHILD_CREATED
from limpet.model.facts.running.requests import (
    ANSWERS,
    CUSTOM_TOOL_USE,
    TOOL_RESULT,
    TOOL_USE,
    RequestKind,
)
from limpet.model.facts.running.runs import (
    ERROR,
    INTENDED,
    OUTCOMES,
    SPAN_COMPLETED,
    SPAN_STARTED,
    STATUS_CHANGED,
    STATUS_IDLE,
    STEP,
    EffectOf,
    effect_unknown,
    span_completed,
)
from limpet.model.limits import NAME_CHARS_MAX, PAGE_MAX
from limpet.session.conversation.messages import UNKNOWN
from limpet.session.loggers import lease_lost
from limpet.session.session import Session
from limpet.session.writer import writer_of

EffectState: TypeAlias = Literal["intended", "succeeded", "failed", "unknown"]
# The calls that a later run may reach again.
CallKind: TypeAlias = Literal["step", "effect", "child", "request", "event"]
CHANGED: Final = "changed:"  # before the name of a change of the harness, which is kept as a step
DIED: Final = "the worker stopped before the end of the run"
_DIGITS: Final = 32
_CAUSES_MAX: Final = 64  # of an error, looked through
_EFFECTS: Final = "effect."  # their events, and those of compensations
_CALLS: Final = frozenset(
    (STEP, TOOL_USE, CUSTOM_TOOL_USE, *ANSWERS, CHILD_CREATED, CHILD_ENDED, ERROR)
)
_FAMILIES: Final = ("span.", "session.", "budget.", "state.", "checkpoint.", "document.")
_TRIES: Final = 4
_PAUSE_SECONDS: Final = 0.05
# Every turn records these, however short: made of plain values by their constructors.
_PLAIN: Final = frozenset((SPAN_STARTED, SPAN_COMPLETED, STATUS_CHANGED, STATUS_IDLE, PROCESSED))


class TurnLog:
    """Records for one wake. Facts are the worker's, everything else is the agent's."""

    def __init__(
        self, session: Session[Any], *, turn_id: str, wake_id: str, agent: str, worker: str
    ) -> None:
        self.session, self.turn_id, self.wake_id = session, turn_id, wake_id
        self._agent, self._worker = agent, worker
        self._first: list[Draft] = []  # the beginning of the wake, until it is recorded
        self._queued: dict[str, Draft] = {}
        self._beginning = asyncio.Lock()
        self.on_commit: Callable[[], None] | None = None  # called when something was recorded
        self.on_suspended: Callable[[], None] | None = None  # called when it was refused for that

    def begin(self, *drafts: Draft) -> None:
        """Record these before everything else."""
        self._first += drafts

    @property
    def is_begun(self) -> bool:
        """True if the log has the beginning of this wake."""
        return not self._first

    def queue(self, draft: Draft) -> None:
        """Record it with whatever comes next; it has an id, so that it is recorded once."""
        assert draft.id is not None
        self._queued[draft.id] = draft

    async def write(self, *drafts: Draft, beside: tuple[Commit, ...] = ()) -> tuple[Event, ...]:
        """Record the drafts, durably, or nothing; a lost answer is asked for again.

        `beside` are commits of other sessions that are recorded with it, all or nothing.
        """
        try:
            if self._first:
                async with self._beginning:
                    if self._first:
                        events = await self._begin_with(drafts, beside)
                        return events[len(events) - len(drafts) :]
            events = await self._commit([], drafts, beside)
        except SessionSuspended as error:
            if error.key == self.session.key and self.on_suspended is not None:
                self.on_suspended()
            raise
        return events[len(events) - len(drafts) :]

    async def write_outcome(self, *drafts: Draft) -> tuple[Event, ...]:
        """Record the outcome of an effect. If the session was suspended meanwhile, record only
        the facts that a suspended session accepts; the rest follows from them."""
        try:
            events = await self._commit([], drafts, ())
            return events[len(events) - len(drafts) :]
        except SessionSuspended as error:
            if error.key != self.session.key:
                raise
        facts = [self.prepare(draft) for draft in drafts if isinstance(draft, Fact)]
        events = await self._send(tuple(facts), ())
        if self.on_suspended is not None:
            self.on_suspended()
        return events

    async def publish(self, type: str, data: Mapping[str, Any], *, id: str, attempt: int) -> None:
        """Hand a partial event of the agent's to followers. Its data has texts that can be stored,
        and numbers: it is not looked at again. Raises AccessDenied, once the audit has it."""
        writer = writer_of(self.session)
        partial = Event(
            seq=0,
            id=id,
            type=type,
            actor=writer.journal.actor_of(self._agent),
            at_us=writer.journal.now_us(),
            data=freeze(data),
            invocation_id=self.turn_id,
            wake_id=self.wake_id,
            partial=True,
            attempt=attempt,
        )
        try:
            writer.publish_event(partial)
        except AccessDenied:
            await writer.journal.audit.settle(strict=True)
            raise

    def forget_queued(self) -> None:
        """Record nothing that waits to be recorded: the next run of the turn does it again."""
        self._queued.clear()

    async def flush(self) -> tuple[Event, ...]:
        """Record the beginning now, if it is not recorded yet. Does not call `on_commit`."""
        async with self._beginning:  # every other write waits until the beginning is recorded
            on_commit, self.on_commit = self.on_commit, None
            try:
                return await self._begin_with((), ()) if self._first else ()
            finally:
                self.on_commit = on_commit

    def closing(self, *drafts: Draft) -> tuple[Prepared, ...]:
        """All that is left to record, and these: for the commit that ends the wake.

        If that is its only one, nobody has seen it running: a change to that is not recorded.
        """
        first = [draft for draft in self._first if draft.type != STATUS_CHANGED]
        return tuple([self.prepare(d) for d in (*first, *self._queued.values(), *drafts)])

    async def close(self, drafts: tuple[Prepared, ...], lease: Lease) -> None:
        """Record the end of the wake and of its lease. Raises SessionFenced if that is lost.

        Nobody looks at the session through this object again, so it does not learn what was left.
        """
        writer = writer_of(self.session)
        known = writer.known
        last = Commit(
            known.key,
            drafts,
            None,
            lease.fence,
            classless=writer.classless,
            uid=known.uid,
            release=lease,
        )
        try:
            (left,) = await writer.journal.commit((last,))
        except SessionFenced as error:
            lease_lost(error, lease, "commit")
            raise
        if roused_us(left.head.facts) is not None:
            await writer.rouse()

    def prepare(self, draft: Draft) -> Prepared:
        """A draft as this wake records it."""
        journal = writer_of(self.session).journal
        if draft.wake_id is None or draft.invocation_id is None:
            wake_id, turn_id = draft.wake_id or self.wake_id, draft.invocation_id or self.turn_id
            draft = structs.replace(draft, wake_id=wake_id, invocation_id=turn_id)
        if not isinstance(draft, Fact):
            return journal.prepare(draft, self._agent)
        if draft.type in _PLAIN:
            return journal.prepare_plain(draft, self._worker)
        return journal.prepare(draft, self._worker)

    async def _begin_with(
        self, drafts: tuple[Draft, ...], beside: tuple[Commit, ...]
    ) -> tuple[Event, ...]:
        events = await self._commit(self._first, drafts, beside)
        self._first = []
        return events

    async def _commit(
        self, first: list[Draft], drafts: tuple[Draft, ...], beside: tuple[Commit, ...]
    ) -> tuple[Event, ...]:
        queued = dict(self._queued)
        prepared = tuple([self.prepare(each) for each in (*first, *queued.values(), *drafts)])
        try:
            events = await self._send(prepared, beside)
        except BaseException:
            if first:  # with their ids: if only the answer was lost, the next write finds them
                named = zip(first, prepared, strict=False)
                self._first = [structs.replace(draft, id=made.id) for draft, made in named]
            raise
        for id in queued:
            self._queued.pop(id, None)
        if self.on_commit is not None:
            self.on_commit()
        return events

    async def _send(
        self, prepared: tuple[Prepared, ...], beside: tuple[Commit, ...]
    ) -> tuple[Event, ...]:
        for left in reversed(range(_TRIES)):
            try:
                if beside:
                    return await self._commit_all(prepared, beside)
                return await writer_of(self.session).commit(prepared)
            except StoreError as error:
                if not error.retryable or not left:
                    raise
            # Its answer may be lost: what was recorded is found again by its id. Nobody needs to
            # look for an id that was made for the first try.
            prepared = tuple([structs.replace(each, caller_chose_id=True) for each in prepared])
            await asyncio.sleep(_PAUSE_SECONDS)
        raise AssertionError("the last try returns or raises")

    async def _commit_all(
        self, prepared: tuple[Prepared, ...], beside: tuple[Commit, ...]
    ) -> tuple[Event, ...]:
        writer = writer_of(self.session)
        known, lease = writer.known, writer.lease
        fence = None if lease is None else lease.fence
        mine = Commit(known.key, prepared, None, fence, uid=known.uid)
        committed, *_ = await writer.journal.commit((mine, *beside))
        known.absorb(committed, prepared)
        return committed.events


class EffectRecord(msgspec.Struct):
    """The state of one effect, folded from the events of all its tries."""

    key: str
    args_hash: str
    state: EffectState = "intended"  # of the last try
    tries: int = 0
    maybe: bool = False  # a try before the last may have performed it
    raised: int = 0  # tries that have raised since then, or since a person said "run again"
    result: Any = None
    error: str = ""
    span: str = ""
    wake: str = ""
    args: Any = None  # of the last try; None: the log does not have them
    name: str = ""
    call: str | None = None  # the id of the model's call that it is for
    since_us: int = 0  # the last try began
    worker: str = ""  # which made it

    @property
    def is_unknown(self) -> bool:
        """True if a try may have performed it, and nothing recorded since says what came of it."""
        return self.maybe or (self.tries > 0 and self.state in ("intended", "unknown"))

    @property
    def has_outcome(self) -> bool:
        """True if it is over. A failure without words is tried again."""
        return self.state == "succeeded" or (self.state == "failed" and bool(self.error))

    @property
    def outcome(self) -> tuple[Any, bool]:
        """The output for a model of one that is over, and whether that is an error."""
        return (self.result, False) if self.state == "succeeded" else (self.error, True)

    def take(self, event: Event) -> None:
        """Fold the next event of the effect."""
        data = event.data
        if event.type == INTENDED:
            self.maybe = self.is_unknown
            self.tries, self.state = data["tries"], "intended"
            self.raised = data.get("raised", 0)
            self.args_hash, self.args = data["args_hash"], data.get("args")
            self.span, self.wake = data["span_id"], event.wake_id or ""
            self.since_us, self.worker = event.at_us, event.actor
            return
        self.state = OUTCOMES[event.type]  # type: ignore[assignment]  # one of its states
        self.result, self.error = data.get("result"), data.get("error", "")
        if self.state == "unknown":
            self.maybe, self.tries = True, data.get("tries", self.tries)
            self.raised = data.get("raised", self.raised)
        elif self.state == "succeeded" or data.get("not_done"):
            self.maybe = False


class CallMade(msgspec.Struct, frozen=True):
    """A call that an earlier run of the turn has recorded."""

    name: str
    report: str = ""  # how it is reported if no later run makes it, unless that stops the turn


class TurnRecords:
    """The records of one turn, and which of the calls recorded before this run has reached."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.steps: dict[tuple[str, int], Event] = {}
        self.effects: dict[tuple[str, int], EffectRecord] = {}
        self.events: dict[str, Event] = {}  # what the harness recorded under an id of the turn
        self.asked: dict[str, Event] = {}
        self.asking: set[str] = set()  # requests that are being recorded
        self.calls: dict[str, Event] = {}  # of tools, by a model: each has one result in the end
        self.newest: dict[str, str] = {}  # of a request, the one that stands for it by now
        self.outcomes: dict[str, Any] = {}  # of requests, about to be recorded or just recorded
        self.answers: dict[str, Mapping[str, Any]] = {}  # their data
        self.children: dict[tuple[str, int], Event] = {}
        self.ended: dict[str, Event] = {}
        self.reserved: dict[str, Literal["open", "settled", "cut"]] = {}  # blocks and calls, by id
        self._counts: dict[tuple[str, str], int] = {}
        self._raised: list[EffectFailed] = []
        for event in events:
            self.add(event)
        self._left = self._calls_made()  # by earlier runs, and not reached by this one

    def occurrence(self, kind: str, name: str) -> int:
        """The number of this call among those of its kind and name in this run, from 1.

        Raises InvalidInput for what cannot be a name.
        """
        if why := unfit(name, NAME_CHARS_MAX):
            raise InvalidInput(f"turn.{kind} takes a name first, and it {why}.")
        number = self._counts[kind, name] = self._counts.get((kind, name), 0) + 1
        return number

    def count_from(self, kind: str, name: str, number: int) -> None:
        """Let the next call of this kind and name be the one with this number."""
        self._counts[kind, name] = number - 1

    def counted(self, kind: str, name: str) -> int:
        """The number of calls of this kind and name that this run has made."""
        return self._counts.get((kind, name), 0)

    def reach(self, kind: CallKind, *of: str | int) -> None:
        """This run makes a call that may have been made before."""
        self._left.pop((kind, *of), None)

    def reach_effect(self, place: str, occurrence: int) -> EffectRecord | None:
        """The record of an effect, which this run has reached."""
        self.reach("effect", place, occurrence)
        return self.effects.get((place, occurrence))

    def effect_left(self) -> tuple[int, EffectRecord] | None:
        """An effect of an earlier run that this one has not reached: its occurrence and record."""
        for kind, *of in self._left:
            if kind == "effect":
                place, occurrence = of
                return int(occurrence), self.effects[str(place), int(occurrence)]
        return None

    def effects_left(self, is_in: Callable[[str], bool]) -> list[tuple[int, EffectRecord]]:
        """Return what is left of all effects of a part of the harness, by their names."""
        left = [of for kind, *of in self._left if kind == "effect" and is_in(str(of[0]))]
        return [(int(number), self.effects[str(place), int(number)]) for place, number in left]

    def calls_left(self) -> list[str]:
        """Steps, streams and model calls of earlier runs that this one has not reached."""
        return [made.report for made in self._left.values() if made.report]

    @property
    def is_past(self) -> bool:
        """True if an earlier run came further than this one has come so far."""
        return bool(self._left)

    def pass_over(self, is_done: Callable[[str], bool]) -> None:
        """Count recorded calls as reached whose name, or id of a tool call, is that of a part of
        the harness which is done: this run leaves it out."""
        self._left = {of: made for of, made in self._left.items() if not is_done(made.name)}

    def _calls_made(self) -> dict[tuple[str | int, ...], CallMade]:
        """The calls that are recorded."""
        made: dict[tuple[str | int, ...], CallMade] = {}
        for (name, occurrence), event in self.steps.items():
            if not name.startswith(CHANGED) and "graph" not in event.data:
                said = f"step {name!r} ({occurrence})"
                made["step", name, occurrence] = CallMade(name.removeprefix("stream:"), said)
        made |= {("effect", *of): CallMade(of[0]) for of in self.effects}
        made |= {("child", *of): CallMade(of[0]) for of in self.children}
        for id, event in self.asked.items():
            if event.data["awaits"] in ("approval", "question"):
                made["request", id] = CallMade(event.data["name"])
        for event in self.asked.values():
            made.pop(("request", event.data.get("replaces", "")), None)
        for id, event in self.events.items():
            if event.wake_id is None or "/" in id or event.type.startswith(_FAMILIES):
                continue  # by somebody else, or part of another call
            made["event", id] = CallMade(event.type)
            if event.type == "agent.message" and "occurrence" in event.data:
                kind, member = ("stream",) * 2 if "stream" in event.data else ("model call", "call")
                name = str(event.data.get(member))
                said = f"{kind} {name!r} ({event.data['occurrence']})"
                made["event", id] = CallMade(name, said)
        return made

    def failure(self, name: str, occurrence: int, error: str) -> EffectFailed:
        """The error of an effect of this turn, to be raised in the harness."""
        self._raised.append(EffectFailed(name, occurrence, error))
        return self._raised[-1]

    def raised(self, error: BaseException) -> list[tuple[str, int]]:
        """The failed effects of this turn that an error comes from. Another session's effect, or
        one that a harness made up, may have the same name and is not among them."""
        effects: dict[tuple[str, int], None] = {}
        left, seen = [error], set[int]()
        while left and len(seen) < _CAUSES_MAX:
            each = left.pop()
            if id(each) in seen:
                continue
            seen.add(id(each))
            if isinstance(each, EffectFailed) and any(each is own for own in self._raised):
                effects[each.name, each.occurrence] = None
            if isinstance(each, BaseExceptionGroup):
                left += each.exceptions
            cause = each.__cause__ or each.__context__
            left += [] if cause is None else [cause]
        return list(effects)

    def dangling(self) -> list[tuple[tuple[str, int], EffectRecord]]:
        """Effects that were begun and have no outcome."""
        return [(of, record) for of, record in self.effects.items() if record.state == "intended"]

    def unknown_effects(self, turn_id: str, why: str) -> list[Draft]:
        """An outcome for each effect that was begun and has none."""
        drafts: list[Draft] = []
        for (place, occurrence), record in self.dangling():
            id = identity(turn_id, "effect.dangling", place, occurrence, record.tries)
            of = EffectOf(record.name, occurrence, record.args_hash, record.key, record.call)
            unknown = effect_unknown(id, of, why)
            end = span_completed(
                record.span, "tool", record.name, "error", parent=record.wake, error=why
            )
            # They belong to the wake that began it, so that its trace is whole.
            drafts += [
                structs.replace(each, wake_id=record.wake or None) for each in (unknown, end)
            ]
        return drafts

    def unanswered(self, why: str) -> list[Draft]:
        """An outcome for each tool call that has none: the conversation stays valid."""
        drafts = []
        for id in dict.fromkeys([*self.asked, *self.calls]):
            result = f"{id}/result"
            if result not in self.events and id not in self.outcomes:
                output, is_error = self._came_of(id, why)
                data = {"request_id": id, "output": output}
                data |= {"is_error": True} if is_error else {}
                drafts.append(Draft(type=TOOL_RESULT, data=data, id=result))
        return drafts

    def _came_of(self, id: str, why: str) -> tuple[Any, bool]:
        """The output of a call that its turn leaves open, and whether that is an error. Where its
        effect is recorded, as while the session was suspended, or may have come about, it does not
        say that nothing was done."""
        record = self.effects.get((id, 1))
        if record is not None and record.is_unknown:
            return UNKNOWN, True
        return record.outcome if record is not None and record.has_outcome else (why, True)

    def cut_reservations(self, facts: Facts) -> list[Draft]:
        """An end for each reservation of a run that was cut off: all of it counts as used."""
        held = reservations(facts)
        self.reserved |= dict.fromkeys(held, "cut")
        return [settled(id, of, cut=True) for id, of in held.items()]

    def waiting(self) -> list[str]:
        """The requests without an answer, those too that are being recorded."""
        return [id for id in (*self.asked, *self.asking) if id not in self.answers]

    def answers_of(self, kind: RequestKind) -> list[Mapping[str, Any]]:
        """The data of the answers to requests of this kind."""
        asked = [id for id, event in self.asked.items() if event.data["awaits"] == kind]
        return [self.answers[id] for id in asked if id in self.answers]

    def add(self, event: Event) -> None:
        """Take note of an event of the turn."""
        data, type = event.data, event.type
        if data is None:
            return
        if type == STEP and "call" not in data:  # of a tool, its result is looked for
            self.steps[data["name"], data["occurrence"]] = event
        elif type == INTENDED or type in OUTCOMES:
            self._add_effect(event)
        elif type in (TOOL_USE, CUSTOM_TOOL_USE) and "awaits" in data:
            self.asked[data["request_id"]] = event
            if (old := data.get("replaces")) is not None:
                first = next((f for f, last in self.newest.items() if last == old), old)
                self.newest[first] = data["request_id"]
        elif type in ANSWERS:
            self.answers.setdefault(str(data.get("request_id")), data)
        elif type == CHILD_CREATED:
            self.children[data["name"], data["occurrence"]] = event
        elif type == CHILD_ENDED:
            self.ended[data["child"]] = event
        elif type == RESERVED:
            self.reserved[data["reservation"]] = "open"
        elif type == SETTLED:
            self.reserved[data["reservation"]] = "cut" if "cut" in data else "settled"
        elif type == ERROR:
            for name, occurrence in data.get("effects", ()):
                record = self.effects.get((name, occurrence))
                if record is not None and record.state == "failed":
                    record.error = ""  # to be tried again
        else:
            self.events[event.id] = event
            if type == TOOL_USE and "message" in data:
                self.calls[data["request_id"]] = event

    def _add_effect(self, event: Event) -> None:
        data, call = event.data, event.data.get("call")
        of = (call or data["name"], data["occurrence"])
        record = self.effects.get(of)
        if record is None:
            record = self.effects[of] = EffectRecord(data["key"], data["args_hash"])
            record.name, record.call = data["name"], call
        record.take(event)


def identity(*parts: object) -> str:
    """A short id that is the same whenever the same call of the same turn is made."""
    return sha256(canonical([str(part) for part in parts])).hexdigest()[:_DIGITS]


def args_hash(*args: Any) -> str:
    """The hash of a call's arguments. Of one that cannot be stored, its type counts."""
    return sha256(canonical([plain(arg) for arg in args])).hexdigest()


def check_readable(key: Key, events: Iterable[Event]) -> None:
    """Raise SessionCorrupt if the record of a call cannot be read, perhaps only for now: what it
    says was done would be done again."""
    for event in events:
        if event.data is None and (event.type in _CALLS or event.type.startswith(_EFFECTS)):
            raise SessionCorrupt(key, f"event {event.seq} ({event.type}) cannot be read")


def plain(value: Any) -> Any:
    """A value that can be stored, with the names of types where it cannot."""
    try:
        return settle(value, "an argument")
    except InvalidInput:
        pass
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return {"$type": f"{type(value).__module__}.{type(value).__qualname__}"}


@contextmanager
def result_of(what: str) -> Iterator[None]:
    """Name what returned a value that cannot be recorded: its caller knows no `data`."""
    try:
        yield
    except InvalidValue as error:
        where = error.where.replace("data['result']", f"the result of {what}", 1)
        raise InvalidValue(where, error.reason) from error


async def events_since(session: Session[Any], seq: int) -> list[Event]:
    """Read the log of a turn, from its beginning."""
    events = session.events
    if events and events[0].seq <= seq + 1:
        return [event for event in events if event.seq > seq]
    read: list[Event] = []
    while page := await session.read(after=read[-1].seq if read else seq, limit=PAGE_MAX):
        read += page
    return read
