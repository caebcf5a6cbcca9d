"""The checkpoint saver: LangGraph's threads as sessions, its checkpoints as events.

A thread is the session Key(app, user, thread_id). Every put is one event, recorded atomically on
the version that it was decided on; a put that another process overtook is decided again on the
newest tree. What is cached of a thread is brought up to date before every read, so several
processes may share a store.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    SerializerProtocol,
    get_checkpoint_metadata,
)

from limpet import Event, Key, Limpet, Seal, Session, Trace
from limpet.adapters.langgraph.event_loop import LoopBound, on_store_loop
from limpet.adapters.langgraph.thread import (
    CHECKPOINT,
    REMOVED,
    TYPES,
    WRITES,
    CheckpointNode,
    Thread,
    ThreadEvent,
    UnreadableCheckpoint,
)
from limpet.adapters.langgraph.values import ValueCodec, Values
from limpet.errors import (
    InvalidInput,
    SessionConflict,
    SessionCorrupt,
    SessionDeleted,
    SessionError,
    SessionExists,
    SessionNotFound,
)
from limpet.model import DefaultActor
from limpet.session.journal import Tries
from limpet.store.pages import each_page

_THREADS_MAX: Final = 256  # whose trees are kept in memory
_GO_ON: Final = "Read the thread again and go on from its latest checkpoint"
OnConflict = Literal["raise", "fork"]
SEEN: Final = "__limpet_seen"  # in a config: the log of the thread as its reader knew it
ACTOR: Final = DefaultActor("langgraph")
PAGE: Final = 1_000
_TAIL: Final = 20  # events that a read brings, where another process may have written


class SyncSaver(LoopBound, BaseCheckpointSaver):  # type: ignore[misc]  # no types where it is checked
    """The methods of a saver without await, over those whose names begin with `a`."""

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._wait(self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        return self._step(self.alist(config, filter=filter, before=before, limit=limit))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self._wait(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        self._wait(self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        self._wait(self.adelete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._wait(self.adelete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self._wait(self.acopy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self._wait(self.aprune(thread_ids, strategy=strategy))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return self._wait(self.aget_delta_channel_history(config=config, channels=channels))


class LimpetSaver(SyncSaver):
    """Checkpoints of LangGraph in a Limpet store.

    `store` is a URL or an open Limpet. `codecs` are classes, or ValueCodecs, of values that are
    neither JSON nor messages; `serde` stores what no codec knows. If two runs go on from one
    checkpoint, the second put raises SessionConflict, or with on_conflict="fork" both are kept.
    """

    def __init__(
        self,
        store: Limpet | str,
        *,
        app: str = "langgraph",
        user: str = "threads",
        codecs: Iterable[ValueCodec | type[Any]] = (),
        serde: SerializerProtocol | None = None,
        on_conflict: OnConflict = "raise",
        seal: Seal | None = None,
    ) -> None:
        super().__init__(serde=serde)
        if on_conflict not in ("raise", "fork"):
            raise InvalidInput("on_conflict is 'raise' or 'fork'.")
        self.app, self.user, self.on_conflict = app, user, on_conflict
        self._values = Values(codecs, serde)
        self._threads: OrderedDict[str, OpenThread] = OrderedDict()
        self._take(store, seal)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        app: str = "langgraph",
        user: str = "threads",
        codecs: Iterable[ValueCodec | type[Any]] = (),
        serde: SerializerProtocol | None = None,
        on_conflict: OnConflict = "raise",
        seal: Seal | None = None,
    ) -> LimpetSaver:
        """A saver on the store that `url` names: `async with LimpetSaver.from_url(url) as saver`.

        Also `with`, for graphs that are invoked without await. Takes what LimpetSaver takes.
        """
        return cls(
            url,
            app=app,
            user=user,
            codecs=codecs,
            serde=serde,
            on_conflict=on_conflict,
            seal=seal,
        )

    def with_allowlist(self, extra_allowlist: Iterable[Any]) -> LimpetSaver:
        """The saver itself: it never imports what stored data names, so nothing needs a list."""
        return self

    def get_next_version(self, current: Any, channel: None = None) -> Any:
        """Count up. In a thread that came from a saver with texts for versions, they stay texts,
        which are compared with those that are there."""
        if isinstance(current, str):
            return f"{int(current.partition('.')[0]) + 1:032}.{0:016}"
        return super().get_next_version(current, channel)

    # --- reading -------------------------------------------------------------------------------

    @on_store_loop
    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        place = place_in(config)
        opened = self._open_thread(place.thread)
        async with opened.lock:
            if not await opened.load(self._lp):
                return None
            node = node_at(opened, place)
            return None if node is None else tuple_of(opened, node)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        left = limit
        async for thread in self._thread_ids(config):
            for checkpoint in await self._list_thread(thread, config, filter, before, left):
                if left is not None:
                    left -= 1
                yield checkpoint
            if left is not None and left <= 0:
                return

    async def _thread_ids(self, config: RunnableConfig | None) -> AsyncIterator[str]:
        """The ids of the threads that a listing is about."""
        if config is not None and config["configurable"].get("thread_id") is not None:
            yield place_in(config).thread
            return
        async for page in each_page(self._page):
            for head in page.items:
                yield head.key.id

    @on_store_loop
    async def _page(self, cursor: str | None) -> Any:
        return await self._lp.list(
            app=self.app, user=self.user, order="key", reverse=False, limit=PAGE, cursor=cursor
        )

    @on_store_loop
    async def _list_thread(
        self,
        thread: str,
        config: RunnableConfig | None,
        filter: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Any:
        opened = self._open_thread(thread)
        tuples: Any = []
        async with opened.lock:
            if not await opened.load(self._lp):
                return tuples
            for node in selected(opened.tree, config, before):
                if limit is not None and len(tuples) >= limit:
                    break
                metadata = opened.tree.metadata(node)
                if all(metadata.get(name) == value for name, value in (filter or {}).items()):
                    tuples.append(tuple_of(opened, node))
        return tuples

    @on_store_loop
    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        place = place_in(config)
        opened = self._open_thread(place.thread)
        async with opened.lock:
            node = await opened.load(self._lp) and node_at(opened, place)
            if not node:
                return {name: {"writes": []} for name in channels}
            return opened.tree.history(node, channels)

    # --- writing -------------------------------------------------------------------------------

    @on_store_loop
    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        place = place_in(config)
        opened = self._open_thread(place.thread)
        kept = get_checkpoint_metadata(config, metadata)
        async with opened.lock:
            known = opened.tree.has(place.ns, checkpoint["id"])
            async for _ in Tries():
                if opened.session is None and (place.id is not None or place.uid is not None):
                    await self._need(opened, place)
                self._check(opened, place, checkpoint["id"])
                described = opened.tree.describe(place.ns, place.id, checkpoint, kept, new_versions)
                # If it is there now, the answer to this very put was lost: the first record stands.
                if await self._record_on(opened, described, first=place.id is None) or (
                    not known and opened.tree.has(place.ns, checkpoint["id"])
                ):
                    return config_at(opened, place.ns, checkpoint["id"])
        raise SessionConflict(opened.key, "session", opened.tree.version, "a later one")

    async def _record_on(self, opened: OpenThread, described: ThreadEvent, *, first: bool) -> bool:
        """Record a checkpoint on the tree it was described on. False: the tree has moved on."""
        try:
            if opened.session is None:
                await self._begin(opened, CHECKPOINT, described)
                return True
            event = await append(opened.session, CHECKPOINT, described)
            if not event.repeated:
                opened.learn(event, described)
                return True
            await opened.load(self._lp)
        except (SessionConflict, SessionExists):
            await opened.load(self._lp)
        except SessionDeleted:
            opened.forget()
            if not first:
                raise SessionDeleted(opened.key, _GO_ON) from None
        return False

    async def _begin(self, opened: OpenThread, type: str, described: ThreadEvent) -> None:
        """A new thread with its first event. Raises SessionExists."""
        opened.forget()
        async with self._lp.commit() as c:
            key = opened.key
            # Only a run that begins with no checkpoint takes the place of a deleted thread.
            reuse = type == CHECKPOINT
            session = c.create(key.app, key.user, key.id, actor=ACTOR, reuse_deleted=reuse)
            trace = Trace(cause=described.cause, invocation_id=described.invocation_id)
            c.append(session, type, described.data, id=described.id, trace=trace)
        opened.session = session
        opened.tree.fold(c.events[0])
        opened.tree.fold(c.events[1], described)

    async def _need(self, opened: OpenThread, place: CheckpointPlace) -> None:
        """The thread that a write builds upon, or why it is not there."""
        if not await opened.load(self._lp):
            raise SessionDeleted(opened.key, _GO_ON)

    def _check(self, opened: OpenThread, place: CheckpointPlace, id: str) -> None:
        """Refuse what builds on something that is gone, or that another run went on from."""
        session = opened.session
        if place.uid is not None and (session is None or session.head.uid != place.uid):
            raise SessionDeleted(opened.key, _GO_ON)
        if place.id is None:
            return
        tree, key = opened.tree, opened.key
        if tree.find(place.ns, place.id) is None:
            raise SessionError(
                f"checkpoint {place.id} is not in thread {key}: it was deleted, or it is of "
                f"another thread. {_GO_ON}."
            )
        if place.seen is not None and self.on_conflict == "raise":
            later = tree.late_sibling(place.ns, place.id, id, place.seen)
            if later is not None:
                raise SessionConflict(key, "session", place.seen, later)

    @on_store_loop
    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        place = place_in(config)
        if place.id is None:
            raise InvalidInput("put_writes takes the config of a checkpoint: it has no id.")
        opened = self._open_thread(place.thread)
        async with opened.lock:
            # LangGraph may send writes before the checkpoint that they are under.
            if opened.session is None and not await opened.load(self._lp) and place.uid:
                raise SessionDeleted(opened.key, _GO_ON)
            async for _ in Tries():
                self._check_writes(opened, place)
                described = opened.tree.writes(
                    place.ns, place.id, tuple(writes), task_id, task_path
                )
                if described is None or await self._record_writes(opened, described):
                    return
        raise SessionConflict(opened.key, "session", opened.tree.version, "a later one")

    async def _record_writes(self, opened: OpenThread, described: ThreadEvent) -> bool:
        """Record the writes of a task. False: the tree that they refer to has moved on."""
        try:
            if opened.session is None:
                await self._begin(opened, WRITES, described)
            else:
                opened.learn(await append(opened.session, WRITES, described), described)
            return True
        except (SessionConflict, SessionExists):
            await opened.load(self._lp)
            return False
        except SessionDeleted:
            opened.forget()
            raise SessionDeleted(opened.key, _GO_ON) from None

    def _check_writes(self, opened: OpenThread, place: CheckpointPlace) -> None:
        assert place.id is not None
        uid = None if opened.session is None else opened.session.head.uid
        if place.uid not in (None, uid):
            raise SessionDeleted(opened.key, _GO_ON)
        if opened.tree.is_removed(place.ns, place.id):
            raise SessionError(f"checkpoint {place.id} of {opened.key} was deleted. {_GO_ON}.")

    # --- forgetting and copying ----------------------------------------------------------------

    @on_store_loop
    async def adelete_thread(self, thread_id: str) -> None:
        opened = self._open_thread(str(thread_id))
        async with opened.lock:
            await self._lp.delete(opened.key)
            opened.forget()

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Hide the checkpoints of these runs, in every thread. Looks at every thread."""
        runs = {str(run) for run in run_ids}
        if runs:
            async for thread in self._thread_ids(None):
                await self._hide(thread, lambda tree: of_runs(tree, runs))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        if strategy not in ("keep_latest", "delete"):
            raise InvalidInput(f"{strategy!r} is not a strategy. Use 'keep_latest' or 'delete'.")
        for thread in thread_ids:
            if strategy == "delete":
                await self.adelete_thread(thread)
            else:
                await self._hide(str(thread), all_but_latest)

    @on_store_loop
    async def _hide(self, thread: str, select: Any) -> None:
        """Record which checkpoints are hidden from now on, decided on the newest tree."""
        opened = self._open_thread(thread)
        async with opened.lock:
            async for left in Tries():
                nodes = select(opened.tree) if await opened.load(self._lp) else ()
                if not nodes:
                    return
                assert opened.session is not None
                data = {"checkpoints": [[node.ns, node.id] for node in nodes]}
                try:
                    version = opened.tree.version
                    opened.learn(await opened.session.append(REMOVED, data, expect=version))
                    return
                except SessionConflict:
                    if not left:
                        raise

    @on_store_loop
    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy the events of a thread to a new one, all or nothing."""
        session = await self._lp.find(self._key(str(source_thread_id)), tail=0)
        if session is None:
            return
        opened = self._open_thread(str(target_thread_id))
        drafts: Any = []
        after = 0
        while events := await session.read(after=after, limit=PAGE):
            after = events[-1].seq
            drafts += [event for event in events if event.type in TYPES]
        async with opened.lock, self._lp.commit() as c:
            key = opened.key
            made = c.create(key.app, key.user, key.id, actor=ACTOR, reuse_deleted=True)
            for event in drafts:
                if event.data is None:
                    raise SessionCorrupt(session.key, f"event {event.seq} cannot be read")
                trace = Trace(cause=event.cause, invocation_id=event.invocation_id)
                named = event.type == CHECKPOINT and "id" not in event.data
                c.append(made, event.type, event.data, id=event.id if named else None, trace=trace)
            opened.forget()

    # --- private -------------------------------------------------------------------------------

    def _key(self, thread: str) -> Key:
        return Key(self.app, self.user, thread)

    def _open_thread(self, thread: str) -> OpenThread:
        """The thread in memory. The one that was not used for longest makes room."""
        opened = self._threads.get(thread)
        if opened is None:
            opened = self._threads[thread] = OpenThread(self._key(thread), self._values)
            if len(self._threads) > _THREADS_MAX:
                self._threads.popitem(last=False)
        else:
            self._threads.move_to_end(thread)
        return opened


class CheckpointPlace(NamedTuple):
    """A config, parsed: the thread, the namespace, a checkpoint, and the log as seen."""

    thread: str
    ns: str
    id: str | None
    uid: str | None
    seen: int | None


class OpenThread:
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
        session = self.session
        while self.tree.version < session.version:
            events: Sequence[Event] = session.events
            if not events or events[0].seq > self.tree.version + 1:
                events = await session.read(after=self.tree.version, limit=PAGE)
            for event in events:
                if event.seq == self.tree.version + 1:
                    self.tree.fold(event)
            if not events:
                raise SessionCorrupt(self.key, f"event {self.tree.version + 1} is missing")
        return True

    def learn(self, event: Event, described: ThreadEvent | None = None) -> None:
        """Take in an event of ours. If others came before it, the next load reads them all."""
        if event.seq == self.tree.version + 1:
            self.tree.fold(event, described)


async def append(session: Session[Any], type: str, described: ThreadEvent) -> Event:
    return await session.append(
        type,
        described.data,
        id=described.id,
        trace=Trace(cause=described.cause, invocation_id=described.invocation_id),
        expect=described.expect,
    )


def place_in(config: RunnableConfig) -> CheckpointPlace:
    given = config.get("configurable") or {}
    if given.get("thread_id") is None:
        raise InvalidInput('no thread is named. Pass config={"configurable": {"thread_id": …}}.')
    uid, _, seen = str(given.get(SEEN) or "").partition(":")
    id = given.get("checkpoint_id") or None
    ns = given.get("checkpoint_ns") or ""
    return CheckpointPlace(
        str(given["thread_id"]), ns, id, uid or None, int(seen) if seen else None
    )


def config_at(opened: OpenThread, ns: str, id: str, **more: Any) -> RunnableConfig:
    place = {"thread_id": opened.key.id, "checkpoint_ns": ns, "checkpoint_id": id}
    return {"configurable": place | more}


def node_at(opened: OpenThread, place: CheckpointPlace) -> CheckpointNode | None:
    try:
        return opened.tree.find(place.ns, place.id)
    except UnreadableCheckpoint as error:
        reason = f"an event that checkpoint {error} stands on cannot be read"
        raise SessionCorrupt(opened.key, reason) from None


def tuple_of(opened: OpenThread, node: CheckpointNode) -> CheckpointTuple:
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
) -> Iterator[CheckpointNode]:
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


def of_runs(tree: Thread, runs: set[str]) -> list[CheckpointNode]:
    nodes = [node for ns in tree.namespaces() for node in tree.nodes(ns)]
    return [node for node in nodes if str(tree.metadata(node).get("run_id")) in runs]


def all_but_latest(tree: Thread) -> list[CheckpointNode]:
    return [node for ns in tree.namespaces() for node in tree.nodes(ns)[1:]]
