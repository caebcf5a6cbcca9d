"""Tools about sessions: list, look into, delegate, and run a child for a few turns."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal

from limpet.errors import InvalidInput
from limpet.model import EMPTY, NO_TEXTS, Key
from limpet.model.facts.running.children import delegation, works_for
from limpet.runtime.children import open_child
from limpet.runtime.managed.asking import (
    LIMIT,
    LIMIT_MAX,
    Caller,
    Tool,
    check_limit,
    event_shown,
    head_shown,
)
from limpet.session.runs.delegation import Kin, kin_of
from limpet.session.session import Session
from limpet.store.protocol import Query

CYCLES: Final = 3
CYCLES_MAX: Final = 10


class SessionList(Tool, frozen=True):
    """List the user's sessions of this app, the newest first: status, outcome, what waits.

    lineage "children" lists only those delegated from this session that are still at work.
    """

    name: ClassVar[str] = "session_list"
    limit: int = LIMIT
    cursor: str | None = None
    lineage: Literal["all", "children"] = "all"

    async def run(self, caller: Caller) -> Any:
        if self.lineage == "children":
            return await SessionListChildren().run(caller)
        own = caller.session
        query = Query(app=own.app, user=own.user)
        store = own.writer.journal.store
        page = await store.heads(query, cursor=self.cursor, limit=check_limit(self.limit))
        named = [head.key for head in page.items if "outcome" in head.facts]
        found = await store.load_many(named, tail=0) if named else ()
        texts = {each.head.key: each.texts for each in found if each is not None}
        shown = [head_shown(head, texts.get(head.key, NO_TEXTS)) for head in page.items]
        return {"sessions": shown, "cursor": page.cursor}


class SessionGetSnapshot(Tool, frozen=True):
    """Show where a session stands: status, state, outcome, budget, setup. Default: this one."""

    name: ClassVar[str] = "session_get_snapshot"
    id: str | None = None

    async def run(self, caller: Caller) -> Any:
        asked = await caller.other(self.id)
        session: Session[Any] = Session(asked.writer.journal, asked.key)
        await session.refresh(tail=0)
        used, left, parent = session.runs.usage, session.runs.budget, session.runs.parent
        return {
            **head_shown(session.head, session.writer.known.texts),
            "status": session.status,
            "state": {n: v for n, v in session.values.items() if not n.startswith("temp:")},
            "usage": {"turns": used.turns, "tokens": used.tokens, "cost": used.cost},
            "remaining": None if left is None else left.remaining.cost,
            "parent": None if parent is None else {"id": parent.id, "app": parent.app},
            "agent": session.setup.current.agent,
            "environment": session.setup.current.environment,
            "fingerprint": session.setup.current.fingerprint,
        }


class SessionGetEvents(Tool, frozen=True):
    """Read events of a session in order: after a seq, before a seq, or around one; the newest if
    nothing is said. `types` are exact ("agent.message") or families ("user.*")."""

    name: ClassVar[str] = "session_get_events"
    id: str | None = None
    after: int | None = None
    before: int | None = None
    around: int | None = None
    types: list[str] | None = None
    limit: int = LIMIT

    async def run(self, caller: Caller) -> Any:
        if sum(each is not None for each in (self.after, self.before, self.around)) > 1:
            raise InvalidInput("pass one of after, before and around.")
        session, limit = await caller.other(self.id), check_limit(self.limit)
        how: dict[str, Any] = {"types": self.types}
        if self.around is not None:
            half = limit // 2
            older = await session.read(before=self.around, limit=max(1, half), reverse=True, **how)
            newer = await session.read(after=self.around - 1, limit=limit - half, **how)
            events = [*older[::-1], *newer]
        elif self.after is not None:
            events = list(await session.read(after=self.after, limit=limit, **how))
        else:
            found = await session.read(before=self.before, limit=limit, reverse=True, **how)
            events = list(found[::-1])
        return {"events": [event_shown(event) for event in events]}


class SessionGetTrace(Tool, frozen=True):
    """Read one wake of a session again, with its spans and all of its events. Default: the newest
    wake that has ended. A limit cuts the events, the oldest first."""

    name: ClassVar[str] = "session_get_trace"
    wake_id: str | None = None
    id: str | None = None
    limit: int | None = None

    async def run(self, caller: Caller) -> Any:
        session = await caller.other(self.id)
        if self.limit is not None and self.limit < 1:
            raise InvalidInput(f"limit is a number from 1, not {self.limit}.")
        wakes = () if self.wake_id is not None else await session.runs.wakes(limit=2)
        ended = [str(w.wake_id) for w in wakes if w.wake_id != caller.turn.wake_id]
        if self.wake_id is None and not ended:
            raise InvalidInput(f"session {session.key} has no wakes that have ended.")
        trace = await session.runs.trace(ended[0] if self.wake_id is None else self.wake_id)
        events = trace.events if self.limit is None else trace.events[: self.limit]
        spans = [
            {"id": s.id, "parent": s.parent, "kind": s.kind, "name": s.name, "result": s.result}
            for s in trace.spans
        ]
        shown = [event_shown(event) for event in events]
        return {"wake_id": trace.wake_id, "spans": spans, "events": shown}


class SessionListChildren(Tool, frozen=True):
    """List the sessions that were delegated from this one and are still at work; with ended also
    the newest that have ended, with their outputs."""

    name: ClassVar[str] = "session_list_children"
    ended: bool = False

    async def run(self, caller: Caller) -> Any:
        own = caller.session
        journal = own.writer.journal
        found = await journal.store.load_many(list(await own.runs.children()), tail=0)
        of = (own.key, own.head.uid)
        at_work = [each for each in found if each and works_for(each.head.facts, *of)]
        shown = {"children": [head_shown(each.head, each.texts) for each in at_work]}
        if not self.ended:
            return shown
        kin = await kin_of(journal, own.key, 1)
        over = [_ended(child) for child in kin.children if child.stop_reason is not None]
        return {**shown, "ended": over[-LIMIT_MAX:]}


class SessionDelegate(Tool, frozen=True):
    """Create a child session of an app that works on a message. Its end wakes this session."""

    name: ClassVar[str] = "session_delegate"
    records: ClassVar[bool] = True
    app: str
    message: str
    title: str | None = None
    budget: float | None = None
    tools: list[str] | None = None

    async def run(self, caller: Caller) -> Any:
        how: dict[str, Any] = {"title": self.title, "budget": self.budget, "tools": self.tools}
        child = await caller.turn.delegate(self.app, self.message, **how)
        return {"id": child.key.id, "app": child.key.app}


class SessionRunChild(Tool, frozen=True):
    """Run one direct child of this session for a few turns, until nothing is left to do."""

    name: ClassVar[str] = "session_run_child"
    id: str
    cycles: int = CYCLES

    async def run(self, caller: Caller) -> Any:
        if not 1 <= self.cycles <= CYCLES_MAX:
            raise InvalidInput(f"cycles is a number from 1 to {CYCLES_MAX}, not {self.cycles}.")
        key = await _direct_child(caller, self.id)
        if caller.lp is None or key.app not in caller.harnesses:
            raise InvalidInput(f"no harness for {key.app!r} was given here. A worker runs it.")
        permissions = caller.turn.limits  # of the worker, too: a child may not do more
        reasons: list[str] = []
        while len(reasons) < self.cycles:
            harness = caller.harnesses[key.app]
            woken = await caller.lp.wake(key, harness, permissions=permissions)
            if not woken.ran:
                break
            reasons.append(woken.reason)
        child: Session[Any] = Session(caller.session.writer.journal, key)
        await child.refresh(tail=0)
        shown = head_shown(child.head, child.writer.known.texts)
        ended = bool((delegation(child.head.facts) or EMPTY).get("ended"))
        return {**shown, "cycles": len(reasons), "runs": reasons, "ended": ended}


def _ended(kin: Kin) -> dict[str, Any]:
    told = {"stop_reason": kin.stop_reason, "summary": kin.summary, "output": kin.output}
    return {"id": kin.key.id, "app": kin.key.app, "title": kin.title, **told}


async def _direct_child(caller: Caller, id: str) -> Key:
    found = [key for key in await caller.session.runs.children() if key.id == id]
    if not found:
        raise InvalidInput(f"{id!r} is not a child of this session that is at work.")
    return (await open_child(caller.session, found[0])).key


TOOLS = (
    SessionList,
    SessionGetSnapshot,
    SessionGetEvents,
    SessionGetTrace,
    SessionListChildren,
    SessionDelegate,
    SessionRunChild,
)
