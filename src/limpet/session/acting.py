"""Acting as somebody: the services of an open store, for one principal.

`lp.acting_as(principal)` is a Limpet whose journal speaks to a guarded store. It shares everything
else with the Limpet it was made from: followers and the live channel, checkpoints, provenance,
metrics and declared policies. What it records passes the journal of that Limpet, so that whoever
follows is told and what follows from a commit is done once, by the system.

Three ways lead around the guarded store, and each asks the guard itself: followers share what one
of them read (`ActingHub`); some verbs touch files or other logs before they ask the store
(`Services.approved`); and the system finishes what a verb began (`Services.system`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING

from msgspec import structs

from limpet.model import Commit, DefaultActor, Draft, Event, Fact, Key, Prepared
from limpet.model.facts.schema import MIGRATED
from limpet.security.access import Principal, Resource
from limpet.security.guard import Guard
from limpet.security.guarded_store import GuardedStore, guarded
from limpet.session.append_queue import Appender, Queue
from limpet.session.follow import Bell, Hub
from limpet.session.journal import Journal, check_size
from limpet.session.services import Services
from limpet.store.pages import wanted
from limpet.store.protocol import Committed, Store
from limpet.store.system import PROCESS

if TYPE_CHECKING:
    from limpet.security.audit import Audit
    from limpet.session.runs.tracing import Tracing


def acting(services: Services, guard: Guard) -> Services:
    """The services of an open store, for one principal."""
    whole = services.system
    journal = ActingJournal(whole.journal, guard)
    same = whole.documents is whole.journal
    documents = journal if same else ActingJournal(whole.documents, guard)
    return structs.replace(whole, journal=journal, documents=documents, guard=guard, whole=whole)


def acting_as(
    services: Services,
    principal: Principal,
    address: str | None = None,
    session: Key | None = None,
) -> Services:
    """The services for a principal; of an acting one, only for one that may do no more. Raises
    AccessDenied."""
    guard = services.guard
    if guard is not None:
        return acting(services, guard.narrowed(principal, address, session))
    return acting(services, Guard(principal, services.access, address=address, session=session))


async def for_session(services: Services, key: Key, guard: Guard) -> Services:
    """The services of one wake: an agent of an app acts for the user of the session, and for
    nobody else. Raises AccessDenied, SessionNotFound."""
    store = services.journal.store
    assert isinstance(store, GuardedStore)
    await store.check("claim", key)
    return acting(services, guard.at_work(await store.met(key)))


class ActingJournal(Journal):
    """The one way to write, for one principal."""

    def __init__(self, whole: Journal, guard: Guard) -> None:
        self.guard = guard
        self._whole = whole
        self._store: Store | None = None  # see `store`
        self._guarded: GuardedStore = guarded(whole.store, guard, whole.commit)
        self._forks = PROCESS.forks
        self.hub: Hub = ActingHub(whole.hub, self._guarded)
        self.new_id, self.now_us = whole.new_id, whole.now_us
        self.queue: Queue = _ActingQueue(self)
        self._contended = whole._contended
        self.hooks, self.provenance = whole.hooks, whole.provenance

    @property
    def tracing(self) -> Tracing | None:
        return self._whole.tracing

    @tracing.setter
    def tracing(self, tracing: Tracing | None) -> None:
        self._whole.tracing = tracing

    @property
    def store(self) -> Store:
        self._whole.check_open()
        return self._guarded

    @property
    def audit(self) -> Audit:
        return self._whole.audit

    def check_open(self) -> None:
        self._whole.check_open()

    @property
    def root(self) -> Journal:
        return self._whole

    def actor_of(self, actor: str) -> str:
        return str(self.guard.actor(actor))

    def prepare(self, draft: Draft, actor: str | None) -> Prepared:
        """Prepare as Journal.prepare does: the principal acts where nobody is named, or the
        system is."""
        named = getattr(draft, "actor", None)
        if type(named) is DefaultActor:
            draft = structs.replace(draft, actor=self.guard.actor(named))
        return self._whole.prepare(draft, self.guard.actor(actor))

    def prepare_plain(self, fact: Fact, actor: str) -> Prepared:
        return self._whole.prepare_plain(fact, self.guard.actor(actor))

    async def commit(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        if len(commits) != 1 or len(commits[0].drafts) != 1:
            check_size(commits)
        if self.queue.events:
            await self.queue.before(commits)
        return await self._guarded.commit(commits)

    async def close(self) -> None:
        """Closes nothing: what is queued is recorded when the store is closed."""


class _ActingQueue(Queue):
    """The queue of one principal. The whole journal flushes it when it is closed."""

    def __init__(self, journal: ActingJournal) -> None:
        super().__init__(journal.commit)
        self._of = journal

    def add(self, key: Key, appender: Appender, draft: Prepared) -> str:
        id = super().add(key, appender, draft)
        self._of._whole.queued.add(self)
        return id


class ActingHub(Hub):
    """Followers and watchers, for one principal: the view is applied to each, what they read is
    shared."""

    def __init__(self, whole: Hub, store: GuardedStore) -> None:
        self._whole, self._guarded = whole, store

    def notify(self, answer: Committed) -> None:
        self._whole.notify(answer)

    def touch(self, key: Key, version: int = 0) -> None:
        self._whole.touch(key, version)

    def publish(self, key: Key, partial: Event, version: int, uid: str | None = None) -> None:
        """Publish a partial. Raises AccessDenied before anybody receives it."""
        self._guarded.check_partial(key, partial)
        self._whole.publish(key, partial, version, uid)

    async def follow(
        self,
        key: Key,
        after: int,
        types: tuple[str, ...] | None = None,
        *,
        partials: bool = True,
    ) -> AsyncGenerator[Event, None]:
        revision, view = await self._guarded.followed(key)
        read = types if types is None else (*types, MIGRATED)
        following = self._whole.follow(key, after, read, partials=partials)
        try:
            async for event in following:
                guard = self._guarded.guard
                outdated = guard.needs_newest_head or revision != guard.rules.revision
                if outdated or event.type == MIGRATED:  # which may hide other fields from now on
                    revision, view = await self._guarded.followed(key)
                if wanted(event.type, types):
                    yield event if view is None else view.event(event)
        finally:
            await following.aclose()

    @contextmanager
    def waiting(self, *, app: str | None = None, key: Key | None = None) -> Iterator[asyncio.Event]:
        own = self._guarded.guard.principal
        with self._whole.waiting(app=own.app if app is None else app, key=key) as bell:
            yield bell

    def listening(self, key: Key) -> AbstractAsyncContextManager[Bell]:  # type: ignore[override]  # the same, made by the whole one
        self._guarded.guard.require("inspect", Resource.of(key))
        return self._whole.listening(key)

    def check_open(self) -> None:
        self._whole.check_open()

    async def close(self) -> None:
        """Closes nothing."""
