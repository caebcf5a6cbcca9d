"""A thread that is in memory, and what LangGraph's configs and tuples say about one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from limpet import Event, Key, Limpet, Session, Trace
from limpet.adapters.langgraph.node import Broken, Node, Told
from limpet.adapters.langgraph.thread import Thread
from limpet.adapters.langgraph.values import Values
from limpet.errors import InvalidInput, SessionCorrupt, SessionDeleted, SessionNotFound

SEEN: Final = "__limpet_seen"  # in a config: the log of the thread as its reader knew it
ACTOR: Final = "langgraph"
PAGE: Final = 1_000
_TAIL: Final = 20  # events that a read brings, where another process may have written


class Place(NamedTuple):
    """What a config says: the thread, the namespace, a checkpoint, and what was seen."""

    thread: str
    ns: str
    id: str | None
    uid: str | None
    seen: int | None


class Opened:
    """A thread that is in memory: the session, its tree, and the lock of those who write to it."""

    def __init__(self, key: Key, codec: Values) -> None:
        self.key, self._codec = key, codec
        self.lock = asyncio.Lock()
        self.session: Session[Any] | None = None
        self.tree = Thread(codec)

    def forget(self) -> None:
        self.session, self.tree = None, Thread(self._codec)

    async def load(self, lp: Limpet) -> bool:
        """Bring the tree up to date. False if there is no such thread (any more)."""
        try:
            if self.session is None:
                self.session = await lp.get(self.key, tail=PAGE, actor=ACTOR)
            else:
                await self.session.refresh(tail=_TAIL)
        except (SessionNotFound, SessionDeleted):
            was_open = self.session is not None
            self.forget()
            # The key may belong to a new thread by now.
            return await self.load(lp) if was_open else False
        await self._catch_up(self.session)
        return True

    async def _catch_up(self, session: Session[Any]) -> None:
        while self.tree.version < session.version:
            events: Sequence[Event] = session.events
            if not events or events[0].seq > self.tree.version + 1:
                events = await session.read(after=self.tree.version, limit=PAGE)
            for event in events:
                if event.seq == self.tree.version + 1:
                    self.tree.fold(event)
            if not events:
                raise SessionCorrupt(self.key, f"event {self.tree.version + 1} is missing")

    def learn(self, event: Event, told: Told | None = None) -> None:
        """Take in an event of ours. If others came before it, the next load reads them all."""
        if event.seq == self.tree.version + 1:
            self.tree.fold(event, told)


async def append(session: Session[Any], type: str, told: Told) -> Event:
    return await session.append(
        type,
        told.data,
        id=told.id,
        trace=Trace(cause=told.cause, invocation_id=told.invocation_id),
        expect=told.expect,
    )


def place_of(config: RunnableConfig) -> Place:
    given = config.get("configurable") or {}
    if given.get("thread_id") is None:
        raise InvalidInput('no thread is named. Pass config={"configurable": {"thread_id": …}}.')
    uid, _, seen = str(given.get(SEEN) or "").partition(":")
    id = given.get("checkpoint_id") or None
    ns = given.get("checkpoint_ns") or ""
    return Place(str(given["thread_id"]), ns, id, uid or None, int(seen) if seen else None)


def config_at(opened: Opened, ns: str, id: str, **more: Any) -> RunnableConfig:
    place = {"thread_id": opened.key.id, "checkpoint_ns": ns, "checkpoint_id": id}
    return {"configurable": place | more}


def found_at(opened: Opened, place: Place) -> Node | None:
    try:
        return opened.tree.find(place.ns, place.id)
    except Broken as error:
        reason = f"an event that checkpoint {error} stands on cannot be read"
        raise SessionCorrupt(opened.key, reason) from None


def tuple_of(opened: Opened, node: Node) -> CheckpointTuple:
    assert opened.session is not None
    tree, ns = opened.tree, node.ns
    seen = {SEEN: f"{opened.session.head.uid}:{tree.version}"}
    return CheckpointTuple(
        config=config_at(opened, ns, node.id, **seen),
        checkpoint=tree.checkpoint(node),
        metadata=tree.metadata(node),
        parent_config=None if node.parent is None else config_at(opened, ns, node.parent),
        pending_writes=tree.pending(ns, node.id),
    )


def selected(
    tree: Thread, config: RunnableConfig | None, before: RunnableConfig | None
) -> Iterator[Node]:
    """The checkpoints that a listing is about, the newest of each namespace first."""
    asked = {} if config is None else config["configurable"]
    ns, id = asked.get("checkpoint_ns"), asked.get("checkpoint_id")
    limit = None if before is None else before["configurable"].get("checkpoint_id")
    for each in tree.namespaces() if ns is None else (ns,):
        for node in tree.nodes(each):
            if id and node.id != id:
                continue
            if limit is None or tree.is_before(each, node.id, limit):
                yield node


def of_runs(tree: Thread, runs: set[str]) -> list[Node]:
    nodes = [node for ns in tree.namespaces() for node in tree.nodes(ns)]
    return [node for node in nodes if str(tree.metadata(node).get("run_id")) in runs]


def all_but_latest(tree: Thread) -> list[Node]:
    return [node for ns in tree.namespaces() for node in tree.nodes(ns)[1:]]
