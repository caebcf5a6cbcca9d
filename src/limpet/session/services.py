"""Services: the part of an open store that its sessions share, beside the way to write.

One `Services` is made when a store is opened; every session and facet of it holds the same one. A
log that is read from its archive file has its own, with a journal on a store in memory. Whoever
acts as a principal has one with a guard: see `acting`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from limpet.model import Head, Key
from limpet.session.journal import Journal
from limpet.session.life.lifecycle_policy import NO_LIFECYCLE, Lifecycle
from limpet.session.loggers import SESSION

if TYPE_CHECKING:
    from limpet.security.access import Action, SessionView
    from limpet.security.guard import Deciders, Guard
    from limpet.security.guarded_store import GuardedStore
    from limpet.session.life.archive_storage import Archive
    from limpet.session.move.nodes import Nodes


class Services(msgspec.Struct, frozen=True, eq=False):
    """An open store: its journal, and what this process has declared or opened with it."""

    journal: Journal
    documents: Journal  # of the store that has the documents of these sessions
    metrics: Metrics
    lifecycles: dict[str, Lifecycle]  # by app, as `lp.policies.lifecycle` declared them here
    resume: Callable[[Services, Key], Awaitable[None]]  # a session that input has come for
    archive: Archive | None = None
    guard: Guard | None = None  # of the principal who acts; None: everything is allowed
    whole: Services | None = None  # of the store itself, if there is a guard
    nodes: Nodes | None = None  # this node and others; None: of what is read from a file
    # By memory, as `lp.policies.promotion` declared them here.
    promotion_gates: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def system(self) -> Services:
        """The services without the guard: for what the system does on behalf of a verb that was
        allowed."""
        return self if self.whole is None else self.whole

    def lifecycle(self, app: str) -> Lifecycle:
        """Return the lifecycle of an app; one that adds nothing if none was declared."""
        return self.lifecycles.get(app, NO_LIFECYCLE)

    async def resume_on_input(self, key: Key) -> None:
        """Resume a session whose suspension input has ended. The system does it: the sender of the
        input may write, but perhaps not resume."""
        await self.resume(self.system, key)

    @property
    def access(self) -> Deciders:
        """The deciders that every guard of this store asks, made when they are first needed."""
        journal = self.system.journal
        if journal.access is None:
            from limpet.security.guard import Deciders

            served = getattr(journal.store, "audits_itself", False)
            journal.access = Deciders(audit=None if served else journal.audit)
            if journal.policies is not None:
                journal.access.add(journal.policies)
        return journal.access

    async def approved(self, action: Action, key: Key) -> Services:
        """The services of the system, once the principal may do this to a session as a whole.

        For verbs that take all of it, or touch something beside the store. Raises AccessDenied.
        """
        if self.guard is not None:
            await self._guarded.check_whole(action, key)
        return self.system

    async def permitted(self, action: Action, key: Key) -> Services:
        """Approve a verb that need not see all of the session. Raises AccessDenied."""
        if self.guard is not None:
            await self._guarded.check(action, key)
        return self.system

    async def foreseen(self, action: Action, key: Key, actor: str, *, whole: bool = False) -> str:
        """Return who acts. Raises AccessDenied if a commit of this would be refused: for verbs
        that do more than a commit. What is allowed is recorded once, when it is committed."""
        if self.guard is not None:
            await self._guarded.foresee(action, key, whole=whole)
        return await self.actor(actor, key)

    async def check_completion(self, head: Head, *, recorded: bool) -> None:
        """Raise AccessDenied if a policy forbids to complete this session with its parent. What is
        allowed is recorded now, or with the commit."""
        if self.guard is not None:
            from limpet.security.access import Resource

            approved = None if recorded else list[Any]()
            resource = Resource.of(head.key, head)
            await self.guard.check("lifecycle", resource, approved, kin=True)

    async def approved_end(self, key: Key, *, forks: bool = False) -> Services:
        """Approve the end of a session that may be gone already, and of its `forks`."""
        if self.guard is not None:
            await self._guarded.check_end(key)
            if forks:
                await self._guarded.check_forks(key)
        return self.system

    async def visible(self, keys: Iterable[Any]) -> tuple[Any, ...]:
        """Return those of the sessions that may be named to the caller."""
        return tuple(keys) if self.guard is None else await self._guarded.listed(keys)

    async def approved_user_end(self, app: str, user: str) -> Services:
        """Approve the erasure of a user, with each of the sessions."""
        if self.guard is not None:
            await self._guarded.check_user_end(app, user)
        return self.system

    async def approved_app(
        self, action: Action, app: str | None, user: str | None = None
    ) -> Services:
        """Approve a verb for an app, or one user of it; None is the whole store."""
        if self.guard is not None:
            from limpet.security.access import Resource
            from limpet.security.guarded_store import STORE

            await self.guard.check(action, STORE if app is None else Resource("app", app, user))
        return self.system

    def eraser(self, actor: str | None) -> str:
        """Return who erases, for the certificate: the principal, if there is one."""
        if self.guard is not None:
            return self.guard.principal.id
        return actor or "system"

    def require(self, action: Action, app: str | None) -> None:
        """Raise AccessDenied unless it may do this for an app; None is the whole store. For verbs
        without await: what is refused is in the audit a moment later."""
        if self.guard is not None:
            from limpet.security.access import Resource
            from limpet.security.guarded_store import STORE

            self.guard.require(action, STORE if app is None else Resource("app", app))

    async def sweeping(self) -> tuple[Services, Callable[[Key], bool] | None]:
        """The services of the system, and the sessions that may be swept; None for all.

        For those who may work on every session of their app. Raises AccessDenied.
        """
        if self.guard is None:
            return self, None
        return self.system, await self._guarded.sweepable()

    async def actor(self, actor: str, key: Key) -> str:
        """Return who acts on a session: the principal, if there is one. Raises AccessDenied if
        it may not act as the one who is named."""
        if self.guard is None:
            return actor
        from limpet.security.access import Resource

        by = self.guard.actor(actor)
        await self.guard.check_actor(by, Resource.of(key))
        return by

    async def kept_apart(self, key: Key) -> tuple[bool, SessionView | None]:
        """Return whether its task or agent alone keeps the principal from a session, and what it
        would see of it: see `GuardedStore.kept_apart`."""
        return (False, None) if self.guard is None else await self._guarded.kept_apart(key)

    def agent(self, actor: str | None) -> str | None:
        """Return who uses a session, as its isolation names agents: the principal, here or at a
        server, or else the actor."""
        if self.guard is not None:
            return self.guard.principal.id
        return self.journal.bound_actor(None) or actor

    @property
    def _guarded(self) -> GuardedStore:
        store: GuardedStore = self.journal.store  # type: ignore[assignment]  # there is a guard
        return store


# --- metrics -------------------------------------------------------------------------------------


# Alerts listen for these names: docs/logging.md has each of them, with its values.
MetricName: TypeAlias = Literal[
    "session.absolute_timeout",
    "session.analytics",
    "session.checkpoint",
    "session.deadline_reached",
    "session.grace_expired",
    "session.idle_timeout",
    "session.migrated",
    "session.permanently_deleted",
    "session.resumed_by_input",
    "session.suspended_often",
]


class Metric(msgspec.Struct, frozen=True):
    """One measurement: its name and its values. docs/logging.md lists the names."""

    name: MetricName
    values: Mapping[str, Any]


Hook: TypeAlias = Callable[[Metric], None]


class Metrics:
    """The hooks of one process."""

    def __init__(self) -> None:
        self._hooks: list[Hook] = []

    def add(self, hook: Hook) -> None:
        self._hooks.append(hook)

    def record(self, name: MetricName, **values: Any) -> None:
        """Hand a measurement to every hook."""
        for hook in self._hooks:
            try:
                hook(Metric(name, values))
            except Exception as error:
                kind = type(error).__name__
                SESSION.warning("metric hook failed: error=%s metric=%s", kind, name)
