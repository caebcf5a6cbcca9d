"""Children: sessions that a turn delegates work to, and the commit in which one of them ends.

Its parent is notified in the very commit that closes the child's last turn, whichever worker ran
it; what is left of its budget goes back there too. A child never has more permissions than its
parent: its tools are a subset of those that the parent has bound, or was given itself; the limits
of the parent's tools, of its worker and of its budget hold at the child too, whichever worker runs
it. Fields, resources and vaults are given only if the harness says so.
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
    DefaultActor,
    Draft,
    Facts,
    FrozenDict,
    Key,
    Lease,
    Prepared,
    described,
    processed_by,
)
from limpet.model.facts.inputs import pending
from limpet.model.facts.isolation import child_isolation, child_policies
from limpet.model.facts.phases import COMPLETED
from limpet.model.facts.running import budgets, children
from limpet.model.facts.running.budgets import Budget, Share
from limpet.model.facts.running.endings import has_ended
from limpet.model.facts.running.runs import INTERRUPT, StopReason
from limpet.model.facts.running.setup import usable_tools
from limpet.model.facts.timers import REVISIT_SET, TIMERS_TAKEN, timers_in
from limpet.runtime.run import TurnRun
from limpet.runtime.turn_log import args_hash, identity
from limpet.session.creation import creation, learn_switches
from limpet.session.runs.delegation import end_delegation
from limpet.session.runs.setup import inherited_tools, tool_names
from limpet.session.services import Services
from limpet.session.session import Session
from limpet.session.writer import acting_agent, writer_of

if TYPE_CHECKING:
    from limpet.runtime.turn_log import TurnLog

_GONE: Final = (SessionNotFound, SessionDeleted, SessionErased, SessionEnded)


class ChildResult(FrozenDict):
    """The end of a child: a mapping with `child`, `stop_reason`, `summary` and `output`."""

    __slots__ = ()

    @property
    def stop_reason(self) -> StopReason:
        """The reason of its last stop, such as `end_turn` or `terminated`."""
        reason: StopReason = self["stop_reason"]
        return reason

    @property
    def summary(self) -> str | None:
        """The text that it ended with; None if it said nothing."""
        summary: str | None = self["summary"]
        return summary

    @property
    def output(self) -> Any:
        """The output of the child as its message has it; None if it said nothing."""
        return self["output"]


class Child:
    """A child session that works for this turn."""

    def __init__(self, turn: TurnRun, key: Key) -> None:
        self._turn, self.key = turn, key

    @property
    def is_ended(self) -> bool:
        """True if the child has ended."""
        return self.key.id in self._turn.records.ended

    async def result(self) -> ChildResult:
        """Return how it ended: stop_reason, summary, output. Pauses the turn until then.

        A terminated child may have neither a summary nor an output; both are then None. Raises
        SessionDeleted if it was deleted.
        """
        turn = self._turn
        turn.driver.check()
        turn.pauses.check_outside("delegate(…).result")
        with turn.pauses.working():
            ended = turn.records.ended.get(self.key.id)
            if ended is None:
                await turn.pauses.block(self.key.id)
            return ChildResult({"summary": None, "output": None, **ended.data})


async def delegate(
    turn: TurnRun,
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
    tools = None if tools is None else tool_names(tools)
    records = turn.records
    occurrence = records.occurrence("delegate", app)
    hashed = args_hash(message, title, tools, fields)
    records.reach("child", app, occurrence)
    if (before := records.children.get((app, occurrence))) is not None:
        now = {"message": message, "title": title, "tools": tools, "fields": fields}
        hashes, values = (before.data["args_hash"], hashed), (None, now)
        turn.check_same("the child of", app, occurrence, hashes, values)
        return Child(turn, Key(app, turn.session.user, before.data["child"]))
    key = Key(app, turn.session.user, identity(turn.id, "child", app, occurrence))
    parent = turn.session
    given = budgets.allotted(parent.head.facts, budget)
    await learn_switches(writer_of(parent).services, app)
    created = _creation(parent, key, fields, _first(turn, message, given, tools))
    uid = created.drafts[0].id
    made = children.child_created(key, uid, occurrence, hashed, title, cascade=cascade)
    drafts: list[Draft] = [made]
    if given is not None:
        drafts.append(budgets.lent(key, uid, budgets.amount(given.cost, given.tokens)))
    (event, *_) = await turn.log.write(*drafts, beside=(created,))
    records.add(event)
    return Child(turn, key)


def _first(
    turn: TurnRun, message: str | Mapping[str, Any], budget: Budget | None, tools: Any
) -> list[Draft]:
    """The first events of a child: its parent, its tools and permissions, and its task."""
    head = turn.session.head
    depth = children.depth(head.facts) + 1
    if tools is None and usable_tools(head.facts) is not None:
        tools = []  # it uses what it is given, as its parent does
    drafts: list[Draft] = [children.delegated(head.key, head.uid, turn.id, depth, tools)]
    drafts += inherited_tools(
        head, tools or (), turn.worker_permissions, acting_agent(writer_of(turn.session))
    )
    if budget is not None:
        drafts.append(budgets.granted(budget))
    data = {"text": message} if isinstance(message, str) else dict(message)
    drafts.append(Draft(type="user.message", data=data))
    return drafts


def _creation(
    parent: Session[Any], key: Key, fields: Mapping[str, Any] | None, first: list[Draft]
) -> Commit:
    writer, actor = writer_of(parent), DefaultActor(f"agent:{parent.app}"[:320])
    new = creation(
        writer.services,
        key.app,
        key.user,
        key.id,
        state=fields or {},
        labels=None,
        actor=actor,
        migrations=None,
        untyped=False,
        reuse_deleted=False,
        isolation=child_isolation(parent.head.facts, key),
        field_policies=child_policies(parent.head.facts, fields or ()),
    )
    return new.commit(tuple([writer.journal.prepare(draft, actor) for draft in first]))


class ChildEnd:
    """The end of a child, if the turn that closes was its last."""

    def __init__(self, session: Session[Any], stop_reason: str, summary: str | None) -> None:
        self._session, self._stop_reason, self._summary = session, stop_reason, summary

    @classmethod
    def of(cls, session: Session[Any], stop_reason: str, summary: str | None) -> ChildEnd | None:
        """Return the end of a child; None if the session works for nobody, or has ended before."""
        delegation = children.delegation(session.head.facts)
        if delegation is None or delegation.get("ended"):
            return None
        return cls(session, stop_reason, summary)

    def is_now(self, drafts: tuple[Prepared, ...]) -> bool:
        """True if nothing is left after these: no input, no timer, no child of its own."""
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
        """Close the child and notify its parent, in one commit, on the version it looked at."""
        session, known = self._session, writer_of(self._session).known
        head, delegation = known.head, children.delegation(known.head.facts)
        assert delegation is not None
        quiet = delegation.get("quiet")  # its parent was interrupted with it
        ended = None if quiet else await self._message()
        mine = Commit(session.key, drafts, head.version, lease.fence, uid=head.uid, release=lease)
        journal, by = writer_of(session).journal, DefaultActor(f"agent:{session.app}"[:320])
        committed, recorded = await end_delegation(journal, head, mine, ended, log.prepare, by=by)
        known.absorb(committed, recorded)

    async def _message(self) -> Draft:
        """The message to the parent: the agent's last message is the output, unless the session
        was completed with another."""
        output = await self._output()
        key, uid = self._session.key, self._session.head.uid
        return children.child_ended(
            key, uid, self._stop_reason, summary=self._summary, output=output
        )

    async def _output(self) -> Any:
        read = self._session.read
        last: dict[str, Any] = {"before": 2**53, "limit": 1}
        if self._session.head.phase == COMPLETED:
            (end,) = await read(types=["session.completed"], **last)
            if end.data is not None and "output" in end.data:
                return end.data["output"]
        said = await read(types=["agent.message"], **last)
        data = said[0].data if said else None
        return None if data is None else data.get("text", data.get("content"))


async def commit_last(
    log: TurnLog, drafts: tuple[Prepared, ...], end: ChildEnd | None, lease: Lease
) -> None:
    """Make the last commit of a wake; of a child that has ended, together with its parent."""
    if end is not None and end.is_now(drafts):
        await end.commit(log, drafts, lease)
    else:
        await log.close(drafts, lease)


async def open_child(
    parent: Session[Any], key: Key, services: Services | None = None
) -> Session[Any]:
    """The session of this key, loaded, if it says that it works for this parent, whose log names
    it. Raises SessionNotFound if another session has the key."""
    by = writer_of(parent).services if services is None else services
    child: Session[Any] = Session(by, key, actor=parent.actor, untyped=True)
    await child.refresh(tail=0)
    if not children.works_for(child.head.facts, parent.key, parent.head.uid):
        raise SessionNotFound(key)
    return child


async def interrupt_all(session: Session[Any], note: str | None) -> list[Draft]:
    """Interrupt the children with their parent, and let go of them.

    Each under an id of its own: a run that does it again does nothing.
    """
    released: list[Draft] = []
    for id, child in children.children_in(session.head.facts).items():
        if not child.get("cascade", True):
            continue  # it goes on, and its end is an input like any other
        key = Key(child["app"], child["user"], id)
        data = {"by": "parent"} if note is None else {"by": "parent", "note": note}
        with suppress(*_GONE):
            # The system does, for the parent: a child works in an app and a task of its own.
            other = await open_child(session, key, writer_of(session).services.system)
            await other.append(INTERRUPT, data, id=f"{id}/interrupt")
        released.append(children.child_released(key))
    return released


def _wakes(facts: Facts) -> set[str]:
    return {name for name, timer in timers_in(facts).items() if timer.kind == "wake"}
