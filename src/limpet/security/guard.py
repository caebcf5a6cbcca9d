"""The guard: one principal, the rules that decide, and the audit that remembers.

A `Guard` stands between a principal and a store (`guarded_store`). It asks its deciders in turn:
roles (`roles`), isolation (`isolation`), the user's policies. All must allow; the first that
denies gives the answer. Answers are remembered by what they depend on, until the `revision` of a
decider changes. Every denial and every sensitive operation is in the audit before the answer.

Where others plug in: `Deciders` of the open Limpet (`Services.access`) is shared by all of its
guards. `add` puts a decider behind the others; its `view(principal, head)` is the field view that
the guarded store applies to every answer; `admits` lets in a user that a session names; `audit`
is where decisions are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, NoReturn, Protocol

from limpet.errors import AccessDenied, Denial
from limpet.model import Commit, Head, Key, acting_actor
from limpet.security.access import (
    ALLOWED,
    SENSITIVE,
    Action,
    AllowedOperation,
    Decider,
    Decision,
    Principal,
    Resource,
    SessionView,
)
from limpet.security.isolation import SIBLINGS, IsolationRules, narrowed_to, sibling_denial
from limpet.security.roles import EVERY_APP, RoleRules
from limpet.security.view import seen_by_all

_REMEMBERED: Final = 4_096  # answers of one guard and one decider
# Actors that an agent of no one user may write as: the agents of its app, and the runtime.
_AGENT: Final = "agent:"
_AGENTS: Final = (_AGENT, "system:")


_FIXED: Final = (RoleRules, IsolationRules)  # whose answers never change


class AuditSink(Protocol):
    """The log in which a guard records what it decided."""

    async def record(
        self,
        principal: Principal,
        action: str,
        resource: Resource,
        *,
        allowed: bool,
        code: str | None = None,
        policy: str | None = None,
        address: str | None = None,
    ) -> None:
        """Make a decision durable. Raises StoreError: then the answer is not given."""
        ...

    async def commits(
        self,
        principal: Principal,
        approved: Sequence[AllowedOperation],
        address: str | None = None,
    ) -> tuple[Commit, ...]:
        """Return commits that record operations which were allowed, to be made with these."""
        ...

    def record_now(
        self,
        principal: Principal,
        action: str,
        resource: Resource,
        *,
        code: str,
        policy: str | None = None,
        address: str | None = None,
    ) -> None:
        """Record a denial as `record` does, for callers that cannot await: it blocks instead."""
        ...

    def note(
        self,
        principal: Principal,
        action: str,
        resource: Resource,
        *,
        code: str,
        policy: str | None = None,
        address: str | None = None,
    ) -> None:
        """Record a denial soon, for callers that await `settle` before they answer."""
        ...


class NoAudit:
    """Records nothing."""

    async def record(
        self,
        principal: Principal,
        action: str,
        resource: Resource,
        *,
        allowed: bool,
        code: str | None = None,
        policy: str | None = None,
        address: str | None = None,
    ) -> None:
        return None

    async def commits(
        self,
        principal: Principal,
        approved: Sequence[AllowedOperation],
        address: str | None = None,
    ) -> tuple[Commit, ...]:
        return ()

    def record_now(
        self,
        principal: Principal,
        action: str,
        resource: Resource,
        *,
        code: str,
        policy: str | None = None,
        address: str | None = None,
    ) -> None:
        return None

    def note(
        self,
        principal: Principal,
        action: str,
        resource: Resource,
        *,
        code: str,
        policy: str | None = None,
        address: str | None = None,
    ) -> None:
        return None


class Deciders:
    """The rules and the audit of one open store: every guard of it shares them."""

    def __init__(
        self, deciders: Sequence[Decider] | None = None, audit: AuditSink | None = None
    ) -> None:
        isolation = IsolationRules()
        self.all: tuple[Decider, ...] = (
            (RoleRules(), isolation) if deciders is None else tuple(deciders)
        )
        self._changing = tuple([each for each in self.all if type(each) not in _FIXED])
        self.audit: AuditSink = NoAudit() if audit is None else audit
        # True if a session of another user lets this principal in: isolation says so.
        self.admits: Callable[[Principal, Action, Head], bool] = isolation.admits

    def add(self, decider: Decider) -> None:
        """Ask this one too, after the others."""
        self.all = (*self.all, decider)
        self._changing = (*self._changing, decider)

    @property
    def revision(self) -> tuple[int, ...]:
        """Another value once an answer may be another."""
        return tuple([each.revision for each in self._changing]) if self._changing else ()


class Guard:
    """Decides what one principal may do. Guards are cheap: make one for each request."""

    def __init__(
        self,
        principal: Principal,
        deciders: Sequence[Decider] | Deciders,
        audit: AuditSink | None = None,
        *,
        writes_as: tuple[str, ...] | None = None,
        address: str | None = None,
        session: Key | None = None,
        home: Head | None = None,
    ) -> None:
        """`writes_as` are beginnings of actors that it may name beside its own id; `address` is
        where its requests come from, if that is known; `session` the only one that it may enter;
        `home` the one that it works in, during a wake.
        """
        self.principal, self.address, self.session = principal, address, session
        self.home = home
        self.rules = deciders if isinstance(deciders, Deciders) else Deciders(deciders, audit)
        if writes_as is None:
            is_app_agent = principal.role == "agent" and principal.user is None
            writes_as = _AGENTS if is_app_agent else ()
        self.writes_as = writes_as
        self._revision = self.rules.revision
        self._remembered: dict[Hashable, Decision] = {}

    # --- deciding --------------------------------------------------------------------------------

    @property
    def needs_head(self) -> bool:
        """True if a decision about a session depends on its head."""
        return any([each.needs_head for each in self.rules.all])

    @property
    def lists_every_session(self) -> bool:
        """True if no rule hides a session of its apps from this principal. What another decider
        hides cannot be told: a policy may name users, labels or anything else."""
        if self.principal.user is not None or self.session is not None:
            return False
        for each in self.rules.all:
            match each:
                case RoleRules() if type(each) is RoleRules:
                    seen = each.grants(self.principal, "inspect")
                case IsolationRules() if type(each) is IsolationRules:
                    seen = not each.hides_sessions_from(self.principal)
                case _:
                    seen = False
            if not seen:
                return False
        return True

    @property
    def needs_newest_head(self) -> bool:
        """True if it depends on what changes in it."""
        return any([each.needs_newest_head for each in self.rules.all])

    def decide(self, action: Action, resource: Resource, *, kin: bool = False) -> Decision:
        """The answer, from memory. Records nothing. Of `kin`, which one session lets into another,
        the user's policies alone are asked."""
        if self.session is not None and not self._is_within(action, resource):
            return Decision(False, "access_denied", "session")
        if self._revision != (revision := self.rules.revision):
            self._remembered.clear()
            self._revision = revision
        for number, decider in enumerate(self.rules.all):
            if kin and isinstance(decider, _FIXED):
                continue
            headless = resource.head is None and action != "create"  # which has none
            if headless and decider.needs_head and resource.kind in _WITH_HEAD:
                continue  # asked once the head is read: see `check`
            decision = self._decision(number, decider, action, resource)
            if decision.allowed:
                continue
            if isinstance(decider, RoleRules) and self.is_admitted(action, resource.head):
                continue  # the others are asked all the same
            return decision
        return ALLOWED if kin else self._at_home(action, resource)

    def _at_home(self, action: Action, resource: Resource) -> Decision:
        """The answer to what runs in a session, about another one."""
        home, head = self.home, resource.head
        if home is None or head is None or resource.kind not in _OF_SESSIONS:
            return ALLOWED
        denial = sibling_denial(home, action, head, self.principal.id)
        return ALLOWED if denial is None else Decision(False, denial, SIBLINGS)

    def is_admitted(self, action: Action, head: Head | None) -> bool:
        """True if a session of another user lets this principal in, and its role allows it."""
        if head is None or not self.rules.admits(self.principal, action, head):
            return False
        if self.session not in (None, head.key):
            return False
        return RoleRules().grants(self.principal, action)

    def _is_within(self, action: Action, resource: Resource) -> bool:
        """True unless a resource is another session than the one that it may enter, or what it
        would do reaches other sessions too: as erasing a user does."""
        if resource.id is None or resource.kind not in _OF_SESSIONS:
            return action not in SENSITIVE
        return Key(resource.app, str(resource.user), resource.id) == self.session

    def _decision(
        self, number: int, decider: Decider, action: Action, resource: Resource
    ) -> Decision:
        on = decider.depends_on(action, resource)
        if on is None:
            return decider.decide(self.principal, action, resource, self.address)
        known = (number, action, on)
        try:
            decision = self._remembered.get(known)
        except TypeError:  # what names no resource: the store says so
            return decider.decide(self.principal, action, resource, self.address)
        if decision is None:
            decision = decider.decide(self.principal, action, resource, self.address)
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            self._remembered[known] = decision
        return decision

    def allows(self, action: Action, resource: Resource) -> bool:
        """True if it may. For filters: what they leave out is not a denial."""
        return self.decide(action, resource).allowed

    async def check(
        self,
        action: Action,
        resource: Resource,
        approved: list[AllowedOperation] | None = None,
        *,
        kin: bool = False,
    ) -> None:
        """Raise AccessDenied unless it may; in the audit first, as every sensitive operation is.

        With `approved`, a sensitive operation that is allowed is added there instead: the caller
        has it recorded in the same commit (`AuditSink.commits`). For `kin`, see `decide`.
        """
        decision = self.decide(action, resource, kin=kin)
        if not decision.allowed or (action in SENSITIVE and approved is None):
            await self.record(action, resource, decision)
        elif action in SENSITIVE and approved is not None:
            approved.append(AllowedOperation(action, resource, decision.policy))
        decision.check(action, resource)

    def refuse(self, denial: Denial, action: str, resource: Resource, policy: str = "") -> NoReturn:
        """Raise AccessDenied where nothing can be awaited; in the audit first."""
        self.rules.audit.record_now(
            self.principal,
            action,
            resource,
            code=denial,
            policy=policy or None,
            address=self.address,
        )
        raise AccessDenied(denial, action, str(resource), policy=policy or None)

    def refuse_soon(
        self, denial: Denial, action: str, resource: Resource, policy: str = ""
    ) -> NoReturn:
        """Raise AccessDenied to one who awaits `Audit.settle` before it answers."""
        self.rules.audit.note(
            self.principal,
            action,
            resource,
            code=denial,
            policy=policy or None,
            address=self.address,
        )
        raise AccessDenied(denial, action, str(resource), policy=policy or None)

    async def record(self, action: Action, resource: Resource, decision: Decision) -> None:
        """Put a decision into the audit."""
        await self.rules.audit.record(
            self.principal,
            action,
            resource,
            allowed=decision.allowed,
            code=decision.denial,
            policy=decision.policy,
            address=self.address,
        )

    def require(self, action: Action, resource: Resource) -> None:
        """Check as `check` does, for verbs without await: recording a denial blocks."""
        decision = self.decide(action, resource)
        if not decision.allowed:
            code = decision.denial or "access_denied"
            self.refuse(code, action, resource, decision.policy or "")

    async def deny(self, denial: Denial, action: Action, resource: Resource) -> NoReturn:
        """Raise AccessDenied, in the audit first."""
        decision = Decision(False, denial)
        await self.record(action, resource, decision)
        raise AccessDenied(denial, action, str(resource))

    def view(self, head: Head) -> SessionView | None:
        """Return its view of a session that it may read; None means everything."""
        views = [each.view(self.principal, head, self.address) for each in self.rules.all]
        return seen_by_all([view for view in views if view is not None])

    # --- who it writes as ------------------------------------------------------------------------

    def may_write_as(self, actor: str) -> bool:
        """True if what it writes may have this actor."""
        return actor == self.principal.id or actor.startswith(self.writes_as)

    def speaks_as(self, actor: str, key: Key) -> bool:
        """True if it may record that the user of a session said something: see `Principal`."""
        return self.principal.speaks_for == "user" and actor == f"user:{key.user}"

    def actor(self, actor: str | None) -> str:
        """Return who acts where `actor` is named: itself if nobody is, and in the place of an agent
        that is only the default."""
        return str(acting_actor(actor, self.principal.id, self.writes_as))

    async def check_actor(self, actor: str, resource: Resource) -> None:
        """Raise AccessDenied unless what it writes may have this actor."""
        if not self.may_write_as(actor):
            decision = Decision(False, "access_denied", "actor")
            await self.record("write", resource, decision)
            raise AccessDenied("access_denied", "write", str(resource), policy="actor", actor=actor)

    # --- narrowing -------------------------------------------------------------------------------

    def narrowed(
        self, principal: Principal, address: str | None = None, session: Key | None = None
    ) -> Guard:
        """The guard of a principal that may do no more than this one. Raises AccessDenied, also
        for another address: policies may allow more from there."""
        own = self.principal
        if address is not None and self.address not in (None, address):
            self._refuse_wider(principal)
        if session is not None and self.session not in (None, session):
            self._refuse_wider(principal)
        for name in ("app", "user", "task"):
            if getattr(own, name) not in (None, getattr(principal, name)):
                self._refuse_wider(principal)
        if principal.role not in (own.role, _READER_OF.get(own.role)):
            self._refuse_wider(principal)
        if principal.speaks_for not in (None, own.speaks_for):
            self._refuse_wider(principal)
        if principal.attributes != own.attributes or not self.may_write_as(principal.id):
            self._refuse_wider(principal)
        kept = self.writes_as if principal.role == own.role else ()
        return Guard(
            principal,
            self.rules,
            writes_as=kept,
            address=address or self.address,
            session=session or self.session,
            home=self.home,
        )

    def _refuse_wider(self, principal: Principal) -> NoReturn:
        app = principal.app or EVERY_APP
        self.refuse("access_denied", "acting_as", Resource("app", app, principal.user))

    def at_work(self, head: Head) -> Guard:
        """This guard at work in one session, for its user and its task: what a wake runs under."""
        return Guard(
            narrowed_to(self.principal, head),
            self.rules,
            writes_as=self.writes_as,
            address=self.address,
            session=self.session,
            home=head,
        )


_OF_SESSIONS: Final = frozenset({"session", "field", "tool"})
_WITH_HEAD: Final = frozenset({"session", "tool"})  # a field of a new session has none
# The role that reads what another role reads, and does nothing else.
_READER_OF: Final = {"owner": "viewer", "admin": "viewer"}
