"""The same verbs without await, for scripts and notebooks.

Nothing is implemented twice: an event loop runs in a thread of its own, and each verb here hands
its call to the async method it is made of, with that method's signature, types and docstring. What
comes back is wrapped only if it has verbs itself. A verb of an async class needs one line here; a
test compares the names.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from limpet.errors import StoreClosed
from limpet.model import Commit, Key, ScopeValue
from limpet.session.blobs import SessionBlobs
from limpet.session.commit import CommitBuilder
from limpet.session.documents import Documents
from limpet.session.history.history import SessionHistory
from limpet.session.keys import StoreKeys
from limpet.session.life.lifecycle import SessionLifecycle
from limpet.session.life.memory import Layer, Memory, WorkingMemory
from limpet.session.life.tools import SessionTools
from limpet.session.limpet import App, Limpet, journal_of
from limpet.session.maintenance import StoreMaintenance
from limpet.session.move.adopter import Adopter, Newest
from limpet.session.policies import StorePolicies
from limpet.session.runs.buffers import Buffer
from limpet.session.runs.outcomes import SessionOutcome
from limpet.session.runs.runs import SessionRuns
from limpet.session.runs.setup import SessionSetup, Vaults
from limpet.session.session import Session
from limpet.session.sync.facade import (
    Attribute,
    Facade,
    blocking,
    iterating,
    plain,
    returning,
    without_await,
)
from limpet.session.sync.loop import Loop
from limpet.session.work import StoreWork
from limpet.store.blobs import Blob
from limpet.store.open import TLS
from limpet.store.protocol import Checked, Committed, Owner, Seal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from pathlib import Path as FilePath

    import typing_extensions

    from limpet.model import Path
    from limpet.model.diff.merge import Policy
    from limpet.model.events import Event
    from limpet.model.facts.isolation import Isolation
    from limpet.model.facts.outcomes import Outcome
    from limpet.model.facts.phases import Phase
    from limpet.model.facts.running.budgets import BudgetView, Usage
    from limpet.model.facts.running.requests import Request
    from limpet.model.facts.running.runs import RunFailure, Status, StopReason
    from limpet.model.facts.running.setup import Setup
    from limpet.model.facts.timeouts import Timeouts
    from limpet.model.head import Head
    from limpet.model.keys import Key
    from limpet.model.lease import Lease
    from limpet.model.state.migrations import MigrationRegistry
    from limpet.security.access import Principal
    from limpet.session.arguments import AnyKey
    from limpet.session.documents import Document
    from limpet.session.history.branches import MergedSession
    from limpet.session.history.retention import RetentionLimits
    from limpet.session.life.memory import LayerName
    from limpet.session.life.transitions import Durations
    from limpet.session.move.arrivals import Arrivals
    from limpet.session.move.transfer import Copied
    from limpet.session.sharing import Shared
    from limpet.store.protocol import Progress

# A is what the state of an app is, which it also takes. Of a session and an app, any by default.
if TYPE_CHECKING:
    S = typing_extensions.TypeVar("S", covariant=True, default=Any)
    A = typing_extensions.TypeVar("A", default=Any)
    Q = typing_extensions.TypeVar("Q", default=Mapping[str, Any])
else:
    S = TypeVar("S", covariant=True)
    A = TypeVar("A")
    Q = TypeVar("Q")
R = TypeVar("R")
P = ParamSpec("P")

# --- verbs that take or give a session ---------------------------------------------------------


def opening(
    verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, Session[Q]]],
) -> Callable[Concatenate[Any, P], SyncSession[Q]]:
    """Return a verb that gives a session, without await."""
    return without_await(verb)


def opening_with(
    verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, tuple[Session[Q], R]]],
) -> Callable[Concatenate[Any, P], tuple[SyncSession[Q], R]]:
    """Return a verb that gives a session and a report of it, without await."""
    return without_await(verb)


def finding(
    verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, Session[Q] | None]],
) -> Callable[Concatenate[Any, P], SyncSession[Q] | None]:
    """Return a verb that gives a session or None, without await."""
    return without_await(verb)


def finding_many(
    verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, tuple[Session[Q] | None, ...]]],
) -> Callable[Concatenate[Any, P], tuple[SyncSession[Q] | None, ...]]:
    """Return a verb that gives many sessions, without await."""
    return without_await(verb)


def handle(
    verb: Callable[Concatenate[Any, P], Session[Q]],
) -> Callable[Concatenate[Any, P], SyncSession[Q]]:
    """Return a verb that gives a session without I/O."""
    return without_await(verb)


def bound_app(
    verb: Callable[Concatenate[Any, P], App[Q]],
) -> Callable[Concatenate[Any, P], SyncApp[Q]]:
    """Return a verb that gives an app."""
    return without_await(verb)


def with_session(
    verb: Callable[Concatenate[Any, Session[Any], P], R],
) -> Callable[Concatenate[Any, SyncSession[Any], P], R]:
    """Return a verb whose first argument is a session."""
    return without_await(verb)


def blocking_with_session(
    verb: Callable[Concatenate[Any, Session[Any], P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, SyncSession[Any], P], R]:
    """Return a verb whose first argument is a session, without await."""
    return without_await(verb)


def opening_child(
    verb: Callable[Concatenate[Any, AnyKey | Session[Any], P], Coroutine[Any, Any, Session[Q]]],
) -> Callable[Concatenate[Any, AnyKey | SyncSession[Any], P], SyncSession[Q]]:
    """Return a verb that gives a child of a session or key, without await."""
    return without_await(verb)


def blocking_with_parent(
    verb: Callable[Concatenate[Any, AnyKey | Session[Any], P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, AnyKey | SyncSession[Any], P], R]:
    """Return a verb whose first argument is a session or a key, without await."""
    return without_await(verb)


def with_documents(
    verb: Callable[Concatenate[Any, Documents, P], R],
) -> Callable[Concatenate[Any, SyncDocuments, P], R]:
    """Return a verb whose first argument is a collection of documents."""
    return without_await(verb)


# --- the stand-ins -----------------------------------------------------------------------------


class SyncHistory(Facade[SessionHistory[S]], Generic[S], of=SessionHistory):
    """The past of a session, without await."""

    at = blocking(SessionHistory[S].at)
    diff = blocking(SessionHistory[S].diff)
    blame = blocking(SessionHistory[S].blame)
    bisect = blocking(SessionHistory[S].bisect)
    checkpoint_seq: Attribute[int]
    last_checkpoint_at: Attribute[datetime | None]
    checkpoints = blocking(SessionHistory[S].checkpoints)
    restore = blocking(SessionHistory[S].restore)
    unpin = blocking(SessionHistory[S].unpin)
    retention = blocking(SessionHistory[S].retention)
    limits: Attribute[RetentionLimits | None]
    lineage = blocking(SessionHistory[S].lineage)
    damaged: Attribute[tuple[int, ...]]


class SyncLifecycle(Facade[SessionLifecycle], of=SessionLifecycle):
    """Timeouts, timers and priority of a session, without await."""

    timeouts: Attribute[Timeouts | None]
    set_timeouts = blocking(SessionLifecycle.set_timeouts)
    renew = blocking(SessionLifecycle.renew)
    durations: Attribute[Durations]
    suspended_often: Attribute[bool]
    set_timer = blocking(SessionLifecycle.set_timer)
    clear_timer = blocking(SessionLifecycle.clear_timer)
    set_priority = blocking(SessionLifecycle.set_priority)


class SyncTools(Facade[SessionTools], of=SessionTools):
    """The tools of a session, without await."""

    bound: Attribute[Mapping[str, Mapping[str, Any]]]
    bind = blocking(SessionTools.bind)
    lock = blocking(SessionTools.lock)


class SyncRuns(Facade[SessionRuns], of=SessionRuns):
    """The runs of a session, without await."""

    usage: Attribute[Usage]
    budget: Attribute[BudgetView | None]
    grant = blocking(SessionRuns.grant)
    failure: Attribute[RunFailure | None]
    wakes = blocking(SessionRuns.wakes)
    activations = blocking(SessionRuns.activations)
    trace = blocking(SessionRuns.trace)
    parent: Attribute[Key | None]
    children = blocking(SessionRuns.children)
    tree = blocking(SessionRuns.tree)


class SyncBlobs(Facade[SessionBlobs], of=SessionBlobs):
    """The blobs of a session, without await."""

    put = blocking(SessionBlobs.put)
    get = blocking(SessionBlobs.get)
    stream = iterating(SessionBlobs.stream)


class SyncOutcome(Facade[SessionOutcome], of=SessionOutcome):
    """The outcome of a session, without await."""

    current: Attribute[Outcome | None]
    define = blocking(SessionOutcome.define)
    grade = blocking(SessionOutcome.grade)
    evaluate = blocking(SessionOutcome.evaluate)
    unmet = blocking(SessionOutcome.unmet)
    history = blocking(SessionOutcome.history)


class SyncSetup(Facade[SessionSetup], of=SessionSetup):
    """The setup of a session, without await."""

    current: Attribute[Setup]
    attach = blocking(SessionSetup.attach)
    compare = blocking(SessionSetup.compare)
    environment = blocking(SessionSetup.environment)
    resources = blocking(SessionSetup.resources)
    vaults = blocking(SessionSetup.vaults)
    permissions = blocking(SessionSetup.permissions)
    check_permission = blocking(SessionSetup.check_permission)


class SyncWorking(Facade[WorkingMemory], of=WorkingMemory):
    """Working memory, without await."""

    put = blocking(WorkingMemory.put)
    get = blocking(WorkingMemory.get)
    list = blocking(WorkingMemory.list)
    search = blocking(WorkingMemory.search)
    reset = plain(WorkingMemory.reset)


class SyncLayer(Facade[Layer], of=Layer):
    """A layer of memory, without await."""

    put = blocking(Layer.put)
    get = blocking(Layer.get)
    list = blocking(Layer.list)
    search = blocking(Layer.search)


class SyncBuffer(Facade[Buffer], of=Buffer):
    """A buffer of a session, without await."""

    name: Attribute[str]
    read = blocking(Buffer.read)
    write = blocking(Buffer.write)
    append = blocking(Buffer.append)
    history = blocking(Buffer.history)


class SyncMemory(Facade[Memory], of=Memory):
    """The memory of a session, without await."""

    working: Attribute[SyncWorking]
    session: Attribute[SyncLayer]
    episodic: Attribute[SyncLayer]
    semantic: Attribute[SyncLayer]
    procedural: Attribute[SyncLayer]

    def layer(self, name: LayerName) -> SyncWorking | SyncLayer:
        layer: SyncWorking | SyncLayer = self._call("layer", name)
        return layer

    session_state: Attribute[SyncBuffer]
    working_buffer: Attribute[SyncBuffer]
    shell_state: Attribute[SyncBuffer]
    buffers = blocking(Memory.buffers)


class SyncSession(Facade[Session[S]], Generic[S], of=Session):
    """A session, or a handle on one, without await."""

    key: Attribute[Key]
    actor: str | None
    app: Attribute[str]
    user: Attribute[str]
    id: Attribute[str]
    lease: Attribute[Lease | None]
    head: Attribute[Head]
    version: Attribute[int]
    isolation: Attribute[Isolation]
    labels: Attribute[Mapping[str, str]]
    state: Attribute[S]
    values: Attribute[Mapping[str, Any]]
    events: Attribute[tuple[Event, ...]]
    status: Attribute[Status]
    stop_reason: Attribute[StopReason | None]
    blocked_on: Attribute[tuple[Request, ...]]
    phase: Attribute[Phase]
    shared: Attribute[Mapping[str, Shared]]
    history: Attribute[SyncHistory[S]]
    lifecycle: Attribute[SyncLifecycle]
    tools: Attribute[SyncTools]
    runs: Attribute[SyncRuns]
    blobs: Attribute[SyncBlobs]
    outcome: Attribute[SyncOutcome]
    setup: Attribute[SyncSetup]
    memory: Attribute[SyncMemory]
    refresh = opening(Session[S].refresh)
    envelope = plain(Session[S].envelope)
    checksum = plain(Session[S].checksum)
    read = blocking(Session[S].read)
    read_ids = blocking(Session[S].read_ids)
    follow = iterating(Session[S].follow)
    pending = blocking(Session[S].pending)
    messages = blocking(Session[S].messages)
    context = blocking(Session[S].context)
    append = blocking(Session[S].append)
    append_many = blocking(Session[S].append_many)
    update = blocking(Session[S].update)
    apply = blocking(Session[S].apply)
    record = blocking(Session[S].record)
    append_soon = plain(Session[S].append_soon)
    label = blocking(Session[S].label)
    mark_processed = blocking(Session[S].mark_processed)
    confirm = blocking(Session[S].confirm)
    answer = blocking(Session[S].answer)
    resolve = blocking(Session[S].resolve)
    interrupt = blocking(Session[S].interrupt)
    fork = opening(Session[S].fork)
    relate = blocking_with_session(Session[S].relate)
    relations = blocking(Session[S].relations)
    cite = blocking_with_session(Session[S].cite)
    unrelate = blocking(Session[S].unrelate)
    read_cited = blocking(Session[S].read_cited)
    share = blocking_with_session(Session[S].share)
    unshare = blocking(Session[S].unshare)
    read_shared = blocking(Session[S].read_shared)
    follow_shared = iterating(Session[S].follow_shared)
    write_shared = blocking(Session[S].write_shared)
    rewind = blocking(Session[S].rewind)
    checkpoint = blocking(Session[S].checkpoint)
    activate = blocking(Session[S].activate)
    suspend = blocking(Session[S].suspend)
    resume = blocking(Session[S].resume)
    complete = blocking(Session[S].complete)
    terminate = blocking(Session[S].terminate)
    archive = blocking(Session[S].archive)
    receipt = blocking(Session[S].receipt)
    prove = blocking(Session[S].prove)

    def merge(
        self,
        other: SyncSession[Any] | AnyKey,
        *,
        policy: Policy | None = None,
        policies: Mapping[str | Path, Policy] | None = None,
        actor: str | None = None,
    ) -> MergedSession:
        merged: MergedSession = self._call(
            "merge", other, policy=policy, policies=policies, actor=actor
        )
        return merged


class SyncDocuments(Facade[Documents], of=Documents):
    """A collection of documents, without await."""

    collection: Attribute[str]
    owner: Attribute[tuple[str, str] | None]
    actor: str | None
    put = blocking(Documents.put)
    get = blocking(Documents.get)
    find = blocking(Documents.find)
    list = blocking(Documents.list)
    each = iterating(Documents.each)
    changes = blocking(Documents.changes)
    history = blocking(Documents.history)
    recorded = blocking(Documents.recorded)
    delete = blocking(Documents.delete)
    purge = blocking(Documents.purge)
    key = plain(Documents.key)
    check = plain(Documents.check)
    shown = plain(Documents.shown)


class SyncVaults(SyncDocuments, of=Vaults):
    """The collection of vaults, without await."""

    check = plain(Vaults.check)
    shown = plain(Vaults.shown)


class SyncCommit(Facade[CommitBuilder], of=CommitBuilder):
    """A commit over several sessions, without await: `with lp.commit() as c: …`."""

    events: Attribute[tuple[Event, ...]]
    token: Attribute[str]
    documents: Attribute[tuple[Document, ...]]
    create = handle(CommitBuilder.create)
    expect = with_session(CommitBuilder.expect)
    guard = with_session(CommitBuilder.guard)
    release = plain(CommitBuilder.release)
    append = with_session(CommitBuilder.append)
    apply = with_session(CommitBuilder.apply)
    record = with_session(CommitBuilder.record)
    put = with_documents(CommitBuilder.put)


class SyncApp(Facade[App[A]], Generic[A], of=App):
    """The sessions of one app, without await."""

    name: Attribute[str]
    state_type: Attribute[type[A] | None]
    migrations: Attribute[MigrationRegistry | None]
    actor: str | None
    create = opening(App[A].create)
    get = opening(App[A].get)
    find = finding(App[A].find)
    get_or_create = opening(App[A].get_or_create)
    session = handle(App[A].session)
    list = blocking(App[A].list)
    watch = iterating(App[A].watch)
    claim = blocking(App[A].claim)


class SyncWork(Facade[StoreWork], of=StoreWork):
    """Leases, dead letters and sweeps, without await."""

    claim = blocking(StoreWork.claim)
    renew = blocking(StoreWork.renew)
    release = blocking(StoreWork.release)
    lock = blocking(StoreWork.lock)
    dead_letters = blocking(StoreWork.dead_letters)
    requeue = blocking(StoreWork.requeue)
    sweep = blocking(StoreWork.sweep)


class SyncMaintenance(Facade[StoreMaintenance], of=StoreMaintenance):
    """Looking after a store, without await."""

    verify = blocking(StoreMaintenance.verify)
    doctor = blocking(StoreMaintenance.doctor)
    backup = blocking(StoreMaintenance.backup)
    compact = blocking(StoreMaintenance.compact)
    migrate = blocking(StoreMaintenance.migrate)
    mirror = blocking(StoreMaintenance.mirror)
    on_metric = plain(StoreMaintenance.on_metric)


class SyncKeys(Facade[StoreKeys], of=StoreKeys):
    """The keys of a store, without await."""

    public_key: Attribute[str]
    rotate = blocking(StoreKeys.rotate)
    renew = blocking(StoreKeys.renew)
    status = blocking(StoreKeys.status)
    anchor = blocking(StoreKeys.anchor)
    compare = blocking(StoreKeys.compare)


class SyncPolicies(Facade[StorePolicies], of=StorePolicies):
    """The policies of apps and agents, without await."""

    lifecycle = plain(StorePolicies.lifecycle)
    checkpointing = blocking(StorePolicies.checkpointing)
    checkpointing_of = blocking(StorePolicies.checkpointing_of)
    retention = blocking(StorePolicies.retention)
    retention_of = blocking(StorePolicies.retention_of)
    arrivals = blocking(StorePolicies.arrivals)
    switch_tool = blocking(StorePolicies.switch_tool)
    fresh_evidence = blocking(StorePolicies.fresh_evidence)
    longer_idle = blocking(StorePolicies.longer_idle)
    switches = blocking(StorePolicies.switches)
    gates = blocking(StorePolicies.gates)
    gates_of = blocking(StorePolicies.gates_of)
    promotion = blocking(StorePolicies.promotion)


class SyncLimpet(Facade[Limpet], of=Limpet):
    """Limpet without await, open at once: use it in a `with` block, or call close()."""

    def __init__(
        self,
        url: str,
        *,
        seal: Seal | None = None,
        connections: int | None = None,
        archive: str | None = None,
        check: Checked | None = None,
        keys: str | None = None,
        keyring: str | None = None,
        token: str | None = None,
        tls: TLS | None = None,
        seal_for: str | None = None,
        policies: str | FilePath | None = None,
        node: str | None = None,
        nodes: Mapping[str, str | Limpet] | None = None,
        follow_moves: bool = False,
    ) -> None:
        limpet = Limpet(
            url,
            seal=seal,
            connections=connections,
            archive=archive,
            check=check,
            keys=keys,
            keyring=keyring,
            token=token,
            tls=tls,
            seal_for=seal_for,
            policies=policies,
            node=node,
            nodes=nodes,
            follow_moves=follow_moves,
        )
        super().__init__(limpet, Loop())
        try:
            super().__enter__()
        except BaseException:
            self._loop.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def acting_as(
        self, principal: Principal, *, address: str | None = None, session: AnyKey | None = None
    ) -> SyncLimpet:
        acting = SyncLimpet.__new__(SyncLimpet)
        act = partial(self._of.acting_as, principal, address=address, session=session)
        made = self._loop.call(act)
        Facade.__init__(acting, made, self._loop)
        acting._owns_loop = False
        return acting

    _owns_loop = True  # False: it acts as somebody, on the loop of another

    def close(self) -> None:
        """Finish what was handed over and let go of everything. Closing twice is fine."""
        if self._owns_loop and self._loop.is_open():
            self._loop.check_caller()
            try:
                with suppress(StoreClosed):  # another thread was faster
                    self._loop.call(self._of.close)
            finally:
                self._loop.stop()

    url: Attribute[str]
    node: Attribute[str]
    work: Attribute[SyncWork]
    maintenance: Attribute[SyncMaintenance]
    policies: Attribute[SyncPolicies]
    keys: Attribute[SyncKeys]
    agents: Attribute[SyncDocuments]
    environments: Attribute[SyncDocuments]
    resources: Attribute[SyncDocuments]
    permissions: Attribute[SyncDocuments]
    vaults: Attribute[SyncVaults]
    documents = returning(SyncDocuments, Limpet.documents)
    create = opening(Limpet.create)
    get = opening(Limpet.get)
    find = finding(Limpet.find)
    get_or_create = opening(Limpet.get_or_create)
    get_many = finding_many(Limpet.get_many)
    session = handle(Limpet.session)
    app = bound_app(Limpet.app)
    graph = blocking(Limpet.graph)
    spawn = opening_child(Limpet.spawn)
    wait_for_children = blocking_with_parent(Limpet.wait_for_children)
    list = blocking(Limpet.list)
    inbox = blocking(Limpet.inbox)
    status = blocking(Limpet.status)
    each = iterating(Limpet.each)
    names = blocking(Limpet.names)
    watch = iterating(Limpet.watch)
    position = blocking(Limpet.position)
    now = plain(Limpet.now)
    commit = returning(SyncCommit, Limpet.commit)
    flush = blocking(Limpet.flush)
    wake = blocking(Limpet.wake)
    resume = opening_with(Limpet.resume)
    unarchive = blocking(Limpet.unarchive)
    export = blocking(Limpet.export)
    import_ = blocking(Limpet.import_)
    move = blocking(Limpet.move)
    prestage = blocking(Limpet.prestage)
    drain = blocking(Limpet.drain)
    reclaim = blocking(Limpet.reclaim)
    home = blocking(Limpet.home)
    delete = blocking(Limpet.delete)
    erase = blocking(Limpet.erase)
    erase_user = blocking(Limpet.erase_user)
    audit = blocking(Limpet.audit)
    export_audit = blocking(Limpet.export_audit)
    learnings = blocking(Limpet.learnings)
    promote = blocking(Limpet.promote)
    propose = blocking(Limpet.propose)
    proposals = blocking(Limpet.proposals)
    decide = blocking(Limpet.decide)
    recall = blocking(Limpet.recall)
    withdraw = blocking(Limpet.withdraw)
    memory_of = blocking(Limpet.memory_of)

    def copy(
        self,
        key: AnyKey | str | None = None,
        user: str | None = None,
        id: str | None = None,
        *,
        app: str | None = None,
        to: SyncLimpet,
        progress: Progress | None = None,
        check: bool = False,
    ) -> Copied:
        copied: Copied = self._call(
            "copy", key, user, id, app=app, to=to, progress=progress, check=check
        )
        return copied

    def _lent(self) -> Any:
        """Return what receives a copy. It works on this object's own loop: a store belongs to the
        loop that opened it."""

        return LoopAdopter(self._of, self._loop)


class LoopAdopter(Adopter):
    """An Adopter whose every call is handed to the loop of its store."""

    def __init__(self, of: Limpet, loop: Loop) -> None:
        super().__init__(journal_of(of))
        self.of, self._loop = of, loop

    async def is_empty(self) -> bool:
        return await self._loop.await_(super().is_empty())

    async def newest(self, key: Key) -> Newest:
        return await self._loop.await_(super().newest(key))

    async def check_prefix(self, key: Key, seq: int, link: bytes) -> None:
        await self._loop.await_(super().check_prefix(key, seq, link))

    async def commit(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        return await self._loop.await_(super().commit(commits))

    async def names_of(self, app: str, user: str) -> Mapping[str, ScopeValue]:
        return await self._loop.await_(super().names_of(app, user))

    async def has_blob(self, key: Key, hash: str) -> bool:
        return await self._loop.await_(super().has_blob(key, hash))

    async def put_chunk(self, key: Key, upload: str, blob: Blob, number: int, data: bytes) -> str:
        return await self._loop.await_(super().put_chunk(key, upload, blob, number, data))

    async def write_names(self, owner: Owner, values: Mapping[str, Any]) -> None:
        await self._loop.await_(super().write_names(owner, values))

    def receiving(self, arrivals: Arrivals) -> Arrivals:
        """Return the side of this store that receives sessions, on its own loop."""
        return LoopArrivals(arrivals, self._loop)  # type: ignore[return-value]  # the same verbs


class LoopArrivals:
    """Arrivals whose every call is handed to the loop of its store."""

    def __init__(self, of: Arrivals, loop: Loop) -> None:
        self._of, self._loop, self.node, self.traffic = of, loop, of.node, of.traffic

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        verb = getattr(self._of, name)

        async def handed(*args: Any, **kwargs: Any) -> Any:
            return await self._loop.await_(verb(*args, **kwargs))

        return handed
