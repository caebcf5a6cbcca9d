"""Children: sessions that a turn delegates work to, and the commit in which one of them ends.

Its parent learns of it in the very commit that closes the child's last turn, whichever worker ran
it; what is left of its budget goes back there too.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from limpet.errors import (
    InvalidInput,
    SessionDeleted,
    SessionEnded,
    SessionErased,
    SessionNotFound,
)
from limpet.model import (
    Commit,
    Draft,
    Event,
    Facts,
    FrozenDict,
    Key,
    Lease,
    Prepared,
    described,
    processed_by,
)
from limpet.model.facts import pending, timers_in
from limpet.model.facts.phases import COMPLETED
from limpet.model.facts.running import (
    INTERRUPT,
    REVISIT_SET,
    TIMERS_TAKEN,
    Budget,
    Share,
    budgets,
    children,
)
from limpet.model.facts.running.endings import has_ended
from limpet.model.facts.running.setup import usable_tools
from limpet.runtime.inheriting import allotted, inherited
from limpet.runtime.records import args_hash, identity
from limpet.runtime.under_way import UnderWay
from limpet.session.creation import creation
from limpet.session.session import Session

if TYPE_CHECKING:
    from limpet.runtime.log import TurnLog

_GONE: Final = (SessionNotFound, SessionDeleted, SessionErased, SessionEnded)


class Child:
    """A session at work for this turn."""

    def __init__(self, turn: UnderWay, key: Key) -> None:
        self._turn, self.key = turn, key

    @property
    def is_ended(self) -> bool:
        return self.key.id in self._turn.records.ended

    async def result(self) -> Mapping[str, Any]:
        """How it ended: stop_reason, summary, output. Pauses the turn until then.

        A child that was terminated may have neither a summary nor an output: both are None then.
        """
        turn = self._turn
        turn.driver.check()
        turn.pauses.check_outside("delegate(…).result")
        with turn.pauses.working():
            ended = turn.records.ended.get(self.key.id)
            if ended is None:
                await turn.pauses.block(self.key.id)
            return FrozenDict({"summary": None, "output": None, **ended.data})


async def delegate(
    turn: UnderWay,
    app: str,
    message: str | Mapping[str, Any],
    *,
    title: str | None,
    budget: Budget | Share | float | None,
    tools: Any,
    fields: Mapping[str, Any] | None,
    cascade: bool = True,
) -> Child:
    """Create a child, or find the one that was created before."""
    if not isinstance(message, (str, Mapping)):
        wanted = "a child works on a message, a text or a dict"
        raise InvalidInput(f"{wanted}, not {described(message)}.")
    Key(app, turn.session.user, "any")  # refuses what could not be an app
    records = turn.records
    occurrence = records.occurrence("delegate", app)
    hashed = args_hash(message, title, tools, fields)
    if (before := records.children.get((app, occurrence))) is not None:
        turn.check_same("the child of", app, occurrence, before.data["args_hash"], hashed)
        return Child(turn, Key(app, turn.session.user, before.data["child"]))
    budget = allotted(turn.session, budget)
    key = Key(app, turn.session.user, identity(turn.id, "child", app, occurrence))
    parent = turn.session
    made = children.child_created(key, occurrence, hashed, title, cascade=cascade)
    drafts: list[Draft] = [made]
    first = _first(turn, message, budget, tools)
    if budget is not None:
        given = budgets.budget_of(budget)
        drafts.append(budgets.lent(key.id, budgets.amount(given.cost, given.tokens)))
    created = _creation(parent, key, fields, first)
    (event, *_) = await turn.log.write(*drafts, beside=(created,))
    records.add(event)
    return Child(turn, key)


def _first(
    turn: UnderWay, message: str | Mapping[str, Any], budget: Budget | float | None, tools: Any
) -> list[Draft]:
    """What a child begins with: whom it works for, what it may use, and its task."""
    facts = turn.session.head.facts
    depth = children.depth(facts) + 1
    if tools is None and usable_tools(facts) is not None:
        tools = []  # it uses what it is given, as its parent does
    drafts: list[Draft] = [children.delegated(turn.session.key, turn.id, depth, tools)]
    drafts += inherited(turn.session, tools, turn.worker_permissions)
    if budget is not None:
        drafts.append(budgets.granted(budgets.budget_of(budget)))
    data = {"text": message} if isinstance(message, str) else dict(message)
    drafts.append(Draft(type="user.message", data=data))
    return drafts


def _creation(
    parent: Session[Any], key: Key, fields: Mapping[str, Any] | None, first: list[Draft]
) -> Commit:
    journal, actor = parent.writer.journal, f"agent:{parent.app}"[:320]
    how: dict[str, Any] = {"labels": None, "actor": actor, "migrations": None}
    how |= {"untyped": False, "reuse_deleted": False}
    new = creation(journal, key.app, key.user, key.id, state=fields or {}, **how)
    return new.commit(tuple([journal.prepare(draft, actor) for draft in first]))


class Ending:
    """The end of a child, if the turn that closes was its last."""

    def __init__(self, session: Session[Any], stop_reason: str, summary: str | None) -> None:
        self._session, self._stop_reason, self._summary = session, stop_reason, summary

    @classmethod
    def of(cls, session: Session[Any], stop_reason: str, summary: str | None) -> Ending | None:
        """None if the session works for nobody, or has ended before."""
        delegation = children.delegation(session.head.facts)
        if delegation is None or delegation.get("ended"):
            return None
        return cls(session, stop_reason, summary)

    def is_now(self, drafts: tuple[Prepared, ...]) -> bool:
        """Whether nothing is left after these: no input, no timer, no child of its own."""
        facts = self._session.head.facts
        if has_ended(facts):  # what was pending stays so
            return not self._kids(drafts)
        done, timers = pending(facts), _wakes(facts)
        for draft in drafts:
            done -= len(processed_by(draft.type, draft.data))
            if draft.type == TIMERS_TAKEN:
                timers -= set(draft.data["names"])
            elif draft.type == REVISIT_SET:
                timers.add(draft.data["name"])
        return done <= 0 and not timers and not self._kids(drafts)

    def _kids(self, drafts: tuple[Prepared, ...]) -> set[str]:
        """The children of its own that are left after these."""
        gone = {d.data["child"] for d in drafts if d.type == children.CHILD_RELEASED}
        return set(children.children_in(self._session.head.facts)) - gone

    async def commit(self, log: TurnLog, drafts: tuple[Prepared, ...], lease: Lease) -> None:
        """Close the child and tell its parent, in one commit, on the version that was looked at."""
        session, known = self._session, self._session.writer.known
        journal, facts = session.writer.journal, known.head.facts
        parent = children.delegation(facts)
        assert parent is not None
        used = budgets.used_up(facts)
        more = [children.delegation_ended()]
        to_parent: list[Draft] = []
        key = Key(parent["app"], parent["user"], parent["id"])
        if not parent.get("quiet"):  # it was not interrupted with its parent
            to_parent.append(await self._told())
        elif await self._is_awaited(key):  # which ended before it could let go of it
            to_parent.append(children.child_released(session.key))
        if "budget" in facts:
            more.append(budgets.returned(session.id, used))
            to_parent.append(budgets.returned(session.id, used))
        mine = Commit(
            session.key,
            (*drafts, *(log.prepare(each) for each in more)),
            known.version,
            lease.fence,
            uid=known.uid,
            release=lease,
        )
        released = [children.child_released(session.key)]
        ended = [*released, *(each for each in to_parent if each.type == budgets.RETURNED)]
        for news in (to_parent, ended):  # a parent that has ended takes back its budget
            told = [journal.prepare(each, f"agent:{session.app}"[:320]) for each in news]
            theirs = [Commit(key, tuple(told))] if told else []
            try:
                committed, *_ = await journal.commit((mine, *theirs))
            except _GONE as error:
                if getattr(error, "key", None) != key:
                    raise
            else:
                known.absorb(committed, mine.drafts)
                return
        committed, *_ = await journal.commit((mine,))
        known.absorb(committed, mine.drafts)

    async def _is_awaited(self, parent: Key) -> bool:
        """Whether the parent still counts this session among its children."""
        with suppress(*_GONE):
            store = self._session.writer.journal.store
            head = (await store.load(parent, tail=0, scopes=False)).head
            return children.is_open(head.facts, self._session.id)
        return False

    async def _told(self) -> Draft:
        """What the parent hears: the last message of the agent is the output, unless the session
        was completed with another."""
        output = await self._output()
        return children.child_ended(
            self._session.key, self._stop_reason, summary=self._summary, output=output
        )

    async def _output(self) -> Any:
        read = self._session.read
        last: dict[str, Any] = {"before": 2**53, "limit": 1}
        if self._session.head.phase == COMPLETED:
            (end,) = await read(types=["session.completed"], **last)
            if end.data is not None and "output" in end.data:
                return end.data["output"]
        said = await read(types=["agent.message"], **last)
        return None if not said or said[0].data is None else _said(said[0])


async def interrupt_all(session: Session[Any], note: str | None) -> list[Draft]:
    """Interrupt the children with their parent, and let go of them.

    Each under an id of its own: a run that does it again does nothing.
    """
    released: list[Draft] = []
    for id, child in children.children_in(session.head.facts).items():
        if not child.get("cascade", True):
            continue  # it goes on, and its end is an input like any other
        key = Key(child["app"], child["user"], id)
        other: Session[Any] = Session(session.writer.journal, key, actor=session.actor)
        data = {"by": "parent"} if note is None else {"by": "parent", "note": note}
        with suppress(*_GONE):
            await other.append(INTERRUPT, data, id=f"{id}/interrupt")
        released.append(children.child_released(key))
    return released


def _wakes(facts: Facts) -> set[str]:
    return {name for name, timer in timers_in(facts).items() if timer.kind == "wake"}


def _said(event: Event) -> Any:
    return event.data.get("text", event.data.get("content"))
