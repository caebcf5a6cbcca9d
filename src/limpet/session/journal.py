"""The journal: the one way to write.

Every draft becomes a `Prepared` here and every commit passes `commit`, whoever asks: a session, a
commit over several, a migration on load, and all that records facts. It checks the size of a
commit, names the ids to send again when the store fails, and wakes those who follow.

It is also the one way to try again: a write that another writer was faster than is decided once
more, a bounded number of times, with a short random pause before each new try, so that writers who
met do not meet again. `retrying` suits an attempt that is one function; `Tries` a loop that learns
from each refusal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from msgspec import structs

from limpet.errors import (
    CommitTooLarge,
    FlushFailed,
    InvalidInput,
    LimpetError,
    SessionConflict,
    StoreClosed,
    StoreError,
    StoreForked,
    Unrecorded,
)
from limpet.model import Commit, Draft, Fact, Key, Prepared, prepare, prepare_plain
from limpet.model.keys import Ids
from limpet.model.limits import (
    COMMIT_BYTES_MAX,
    DRAFTS_PER_COMMIT_MAX,
    SESSIONS_PER_COMMIT_MAX,
    UPDATE_TRIES_MAX,
)
from limpet.session.append_queue import Queue
from limpet.session.follow import Hub
from limpet.session.provenance import Provenance
from limpet.session.runs.tracing import Tracing
from limpet.store.protocol import ActsAs, Check, Committed, Store
from limpet.store.system import PROCESS

if TYPE_CHECKING:
    from limpet.security.audit import Audit, Reopen
    from limpet.security.guard import Deciders
    from limpet.security.policies import CedarPolicies

T = TypeVar("T")
_PAUSE_SECONDS_MAX: Final = 0.002


class Mirror(Protocol):
    """Files for people that follow the log: see `move.mirror_follower`."""

    async def write(self) -> object: ...

    async def remove(self, keys: Collection[Key]) -> None: ...

    async def remove_user(self, app: str, user: str) -> None: ...

    def check(self) -> Check: ...

    async def close(self) -> None: ...


class CommitHooks:
    """Hooks of a journal before and after commits. These do nothing: see `history.checkpoints`."""

    def concerns(self, commits: Sequence[Commit]) -> bool:
        """True if `before` and `after` are to be called. Quick: every commit asks."""
        return False

    async def before(self, commits: Sequence[Commit]) -> None:
        """Do what has to be durable before these commits. If it raises, they are not tried."""

    async def after(self, answers: Sequence[Committed]) -> None:
        """Do what follows from what was recorded. Raises nothing of ours."""

    async def close(self) -> None:
        """Stop what is done in the background."""


class Journal:
    """A store that is open in this process, with its followers, its ids and its clock."""

    def __init__(
        self,
        store: Store,
        hub: Hub,
        ids: Ids,
        clock: Callable[[], int],
    ) -> None:
        self.hub, self.new_id, self.now_us = hub, ids, clock
        self._store: Store | None = store
        self._acts_as: ActsAs | None = store if isinstance(store, ActsAs) else None
        self._forks = PROCESS.forks
        self.queue = Queue(self.commit)  # what append_soon has queued: see `append_queue`
        self.queued: set[Queue] = set()  # by those who act as somebody: see `acting`
        self._contended: dict[str, asyncio.Lock] = {}
        self.hooks = CommitHooks()
        self.provenance: Provenance | None = None  # if the store was opened with keys
        self.mirror: Mirror | None = None  # if files for people are kept beside the store
        self._audit: Audit | None = None
        self.reopen: Reopen | None = None  # the store, for the audit; None: it cannot be
        self.policies: CedarPolicies | None = None  # the user's own, if it was opened with them
        self.access: Deciders | None = None  # what guards ask: see Services.access
        self.tracing: Tracing | None = None  # what watches turns while they run

    @property
    def store(self) -> Store:
        """The store. Raises StoreClosed; StoreForked in a child of the process that opened it."""
        if self._store is None:
            raise StoreClosed
        if self._forks != PROCESS.forks:
            raise StoreForked
        return self._store

    @property
    def audit(self) -> Audit:
        """The log in which decisions about access are recorded. Raises StoreClosed, StoreForked."""
        if self._audit is None:
            from limpet.security.audit import Audit

            self._audit = Audit(self.store, self.commit, self.new_id, self.reopen)
        return self._audit

    def check_open(self) -> None:
        """Raise StoreClosed or StoreForked if nothing can be asked any more."""
        if self._store is None or self._forks != PROCESS.forks:
            _ = self.store

    @property
    def root(self) -> Journal:
        """The journal of the open store, which those who act as somebody share."""
        return self

    def actor_of(self, actor: str) -> str:
        """The actor that events name which are written by this one."""
        acts = self._acts_as
        return str(actor if acts is None else acts.actor_for(actor))  # a DefaultActor, too

    def bound_actor(self, actor: str | None) -> str | None:
        """The actor that a handle is bound to: the principal of a store elsewhere, if nobody is
        named."""
        return actor if self._acts_as is None else self._acts_as.actor_for(actor)

    def prepare(self, draft: Draft, actor: str | None) -> Prepared:
        """A draft checked and encoded, by `actor` if it names nobody. Raises InvalidInput."""
        if self._store is None or self._forks != PROCESS.forks:
            self.check_open()
        if not isinstance(draft, Draft):
            raise InvalidInput(
                f"{type(draft).__name__} is not a draft. Make one with "
                "limpet.Draft(type=…, data=…)."
            )
        if self._acts_as is not None:
            actor = self._acts_as.actor_for(actor if draft.actor is None else draft.actor)
            draft = structs.replace(draft, actor=actor)
        return prepare(draft, id=self.new_id(), actor=actor)

    def prepare_plain(self, fact: Fact, actor: str) -> Prepared:
        """A fact with nothing in it that needs to be looked at: see `model.events`."""
        if self._acts_as is not None:
            actor = self.actor_of(actor)
        return prepare_plain(fact, id=self.new_id(), actor=actor)

    async def commit(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        """Record all of the commits or none, durably, and wake who follows these sessions.

        Raises what the store's commit raises, CommitTooLarge. A StoreError has the ids to send
        again: they may have been recorded.
        """
        if len(commits) != 1 or len(commits[0].drafts) != 1:
            check_size(commits)
        hooks = self.hooks if self.hooks.concerns(commits) else None
        try:
            if self.queue.events:
                await self.queue.before(commits)
            if hooks is not None:
                await hooks.before(commits)
            answers = await self.store.commit(commits)
        except StoreError as error:
            ids = tuple([draft.id for commit in commits for draft in commit.drafts])
            raise error.naming(ids) from error.__cause__
        for answer in answers:
            self.hub.notify(answer)
        if self.provenance is not None and self.provenance.note(commits, answers):
            await self.provenance.settle(answers)
        if hooks is not None:
            await hooks.after(answers)
        return answers

    def contention_lock(self, app: str) -> asyncio.Lock:
        """Held by updates of an app that met a conflict: one by one, each round has a winner."""
        return self._contended.setdefault(app, asyncio.Lock())

    async def close(self) -> None:
        """Finish what was handed over and let go of the store. Closing twice is fine.

        Raises FlushFailed if something that was queued could not be recorded; it is closed then.
        """
        here = self._forks == PROCESS.forks
        try:
            if here and self._store is not None:
                await self._close_queues()
        finally:
            if here and self._store is not None and self.mirror is not None:
                await self.mirror.close()
            if here and self._store is not None and self._audit is not None:
                await self._audit.close()
            store, self._store = self._store, None
            if store is not None and here:
                await self.hooks.close()
                await self.hub.close()
                if self.provenance is not None:
                    await self.provenance.close()
                await store.close()
                if self.provenance is not None:
                    await self.provenance.seal.close()

    async def _close_queues(self) -> None:
        """Flush what was queued here, and by those who act as somebody."""
        unrecorded: list[Unrecorded] = []
        for queue in (*self.queued, self.queue):
            try:
                if queue.events:
                    await queue.close()
            except FlushFailed as error:
                unrecorded += error.unrecorded
        if unrecorded:
            raise FlushFailed(unrecorded)


def check_size(commits: Sequence[Commit]) -> None:
    """Raise CommitTooLarge if it holds more than one commit may."""
    drafts = sum([len(commit.drafts) for commit in commits])
    size = sum([len(draft.raw) for commit in commits for draft in commit.drafts])
    if len(commits) > SESSIONS_PER_COMMIT_MAX:
        raise CommitTooLarge("sessions", len(commits), SESSIONS_PER_COMMIT_MAX)
    if drafts > DRAFTS_PER_COMMIT_MAX:
        raise CommitTooLarge("events", drafts, DRAFTS_PER_COMMIT_MAX)
    if size > COMMIT_BYTES_MAX:
        raise CommitTooLarge("bytes", size, COMMIT_BYTES_MAX)


# --- trying again --------------------------------------------------------------------------------


class Tries:
    """`async for left in Tries()`: how many tries are left after this one; 0 is the last.

    Pauses before each but the first. Not a generator: one that is left early costs the loop a task.
    """

    def __init__(self) -> None:
        self._left = UPDATE_TRIES_MAX

    def __aiter__(self) -> Tries:
        return self

    async def __anext__(self) -> int:
        if not self._left:
            raise StopAsyncIteration
        if self._left < UPDATE_TRIES_MAX:
            import random  # most attempts meet no other

            await asyncio.sleep(random.uniform(0, _PAUSE_SECONDS_MAX))  # nosec B311  # spreads retries
        self._left -= 1
        return self._left


async def retrying(
    attempt: Callable[[], Awaitable[T]],
    *errors: type[LimpetError],
    unless: Callable[[LimpetError], bool] = lambda error: False,
) -> T:
    """Return what `attempt()` returns, made again after one of these errors.

    Raises the last one after UPDATE_TRIES_MAX tries, and at once if `unless` says so.
    """
    async for left in Tries():
        try:
            return await attempt()
        except errors as error:
            if not left or unless(error):
                raise
    raise AssertionError("the last try returns or raises")


def is_not_about_the_version(error: LimpetError) -> bool:
    """True of a conflict that another try would meet again, if only the version is read again."""
    return isinstance(error, SessionConflict) and error.on != "session"
