"""App: the sessions of one app, with what its code would repeat at every call bound once.

The name, the class of the state, the migrations and the actor are said in `lp.app(…)`; each verb
here hands them to the verb of Limpet with the same name. Nothing is read or written otherwise.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from limpet.errors import (
    InvalidInput,
    InvalidKey,
    SchemaViolation,
    SessionDeleted,
    SessionErased,
    SessionExists,
    SessionNotFound,
)
from limpet.model import Head, Lease, described, unfit
from limpet.model.facts.isolation import Isolation
from limpet.model.facts.phases import Phase
from limpet.model.facts.running.budgets import Budget
from limpet.model.facts.timeouts import Timeouts
from limpet.model.limits import KEY_PART_CHARS_MAX
from limpet.session.arguments import AnyKey, check_actor, check_sessions
from limpet.session.session import Session
from limpet.session.work import StoreWork
from limpet.store.protocol import FeedEntry, Order, Page

if TYPE_CHECKING:
    from limpet.model.state.migrations import MigrationRegistry

S = TypeVar("S")
_NONE: Final[Mapping[str, Any]] = {}


class Verbs(Protocol):
    """The verbs of Limpet that an app binds its own name to."""

    def create(self, *key: Any, **options: Any) -> Awaitable[Any]: ...
    def get(self, *key: Any, **options: Any) -> Awaitable[Any]: ...
    def session(self, *key: Any, **options: Any) -> Any: ...
    def list(self, *args: Any, **filters: Any) -> Awaitable[Page[Head]]: ...
    def watch(self, *args: Any, **filters: Any) -> AsyncGenerator[FeedEntry, None]: ...

    @property
    def work(self) -> StoreWork: ...


class App(Generic[S]):
    """The sessions of one app. `S` is what their state is: a State class, or else a mapping."""

    def __init__(
        self,
        lp: Verbs,
        name: str,
        *,
        state_type: type[S] | None = None,
        migrations: MigrationRegistry | None = None,
        actor: str | None = None,
        untyped: bool = False,
    ) -> None:
        if reason := unfit(name, KEY_PART_CHARS_MAX):
            raise InvalidKey("app", reason)
        check_sessions(name)
        self._lp = lp
        self.name = name
        self.state_type = state_type
        self.migrations = migrations
        self.actor = check_actor(actor)
        self._untyped = untyped

    def __repr__(self) -> str:
        of = "" if self.state_type is None else f" of {self.state_type.__name__}"
        return f"<limpet.App {self.name}{of}>"

    # --- sessions ------------------------------------------------------------------------------

    async def create(
        self,
        user: str,
        id: str | None = None,
        *,
        state: S | None = None,
        labels: Mapping[str, str] = _NONE,
        actor: str | None = None,
        reuse_deleted: bool = False,
        phase: Phase = "active",
        timeouts: Timeouts | None = None,
        agent: str | None = None,
        environment: str | None = None,
        budget: Budget | float | None = None,
        isolation: Isolation | None = None,
    ) -> Session[S]:
        """A new session. Without a state it begins with the defaults of the class, or empty.

        Raises SessionExists; InvalidInput if the class needs arguments and no state is given.
        """
        made: Session[S] = await self._lp.create(
            self.name,
            user,
            id,
            state=self._begin(state),
            labels=labels,
            actor=self._acting(actor),
            migrations=self.migrations if self.state_type else None,
            untyped=False if self.state_type else self._untyped,
            reuse_deleted=reuse_deleted,
            phase=phase,
            timeouts=timeouts,
            agent=agent,
            environment=environment,
            budget=budget,
            isolation=isolation,
        )
        return made

    async def get(
        self,
        user: str,
        id: str,
        *,
        tail: int | None = None,
        since: datetime | None = None,
        actor: str | None = None,
        at_least: str = "",
        archived: bool = False,
    ) -> Session[S]:
        """The session with its state and its last events: see Limpet.get."""
        session: Session[S] = await self._lp.get(
            self.name,
            user,
            id,
            state_type=self.state_type,
            migrations=self.migrations,
            tail=tail,
            since=since,
            at_least=at_least,
            actor=self._acting(actor),
            untyped=self._untyped,
            archived=archived,
        )
        return session

    async def find(
        self,
        user: str,
        id: str,
        *,
        tail: int | None = None,
        since: datetime | None = None,
        actor: str | None = None,
        at_least: str = "",
        archived: bool = False,
    ) -> Session[S] | None:
        """Like get, and None if there is no such session (any more)."""
        try:
            return await self.get(
                user, id, tail=tail, since=since, actor=actor, at_least=at_least, archived=archived
            )
        except (SessionNotFound, SessionDeleted, SessionErased):
            return None

    async def get_or_create(
        self,
        user: str,
        id: str,
        *,
        state: S | None = None,
        labels: Mapping[str, str] = _NONE,
        tail: int = 20,
        actor: str | None = None,
        isolation: Isolation | None = None,
    ) -> Session[S]:
        """The session of this key, created as `create` does if it is not there yet."""
        if state is not None:
            self._begin(state)  # of a wrong class in either case
        found = await self.find(user, id, tail=tail, actor=actor)
        if found is not None:
            return found
        try:
            return await self.create(
                user, id, state=state, labels=labels, actor=actor, isolation=isolation
            )
        except SessionExists:  # another was faster, which is as good
            return await self.get(user, id, tail=tail, actor=actor)

    def session(
        self, user: str, id: str, *, actor: str | None = None, lease: Lease | None = None
    ) -> Session[S]:
        """A handle, without I/O: see Limpet.session."""
        handle: Session[S] = self._lp.session(
            self.name,
            user,
            id,
            state_type=self.state_type,
            migrations=self.migrations,
            untyped=self._untyped,
            actor=self._acting(actor),
            lease=lease,
        )
        return handle

    async def list(
        self,
        *,
        user: str | None = None,
        labels: Mapping[str, str] | None = None,
        task: str | None = None,
        order: Order = "created",
        reverse: bool = True,
        prefix: str = "",
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        updated_after: datetime | None = None,
        schema_version: str | None = None,
        deleted: bool = False,
        state: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Head]:
        """A page of heads of this app: see Limpet.list."""
        return await self._lp.list(
            app=self.name,
            user=user,
            labels=labels,
            task=task,
            order=order,
            reverse=reverse,
            prefix=prefix,
            created_after=created_after,
            created_before=created_before,
            updated_after=updated_after,
            schema_version=schema_version,
            deleted=deleted,
            state=state,
            limit=limit,
            cursor=cursor,
        )

    def watch(
        self, *, key: AnyKey | None = None, after: str | None = None
    ) -> AsyncGenerator[FeedEntry, None]:
        """Every event of this app, or of one of its sessions: see Limpet.watch."""
        return self._lp.watch(app=self.name, key=key, after=after)

    async def claim(
        self, worker: str, *, limit: int = 1, lease_seconds: float = 30
    ) -> tuple[Lease, ...]:
        """Leases on sessions of this app that want to run: see Limpet.work.claim."""
        return await self._lp.work.claim(
            worker, limit=limit, lease_seconds=lease_seconds, app=self.name
        )

    # --- private -------------------------------------------------------------------------------

    def _acting(self, actor: str | None) -> str | None:
        return self.actor if actor is None else check_actor(actor)

    def _begin(self, state: S | None) -> Any:
        """What a new session begins with; of the class of the app, if it has one."""
        of = self.state_type
        if of is None:
            return _NONE if state is None else state
        if state is None:
            return _defaults(of)
        if type(state) is not of:  # a get would read it as another class than wrote it
            raise SchemaViolation("state", f"a {of.__name__}, as this app has", described(state))
        return state


def _defaults(of: type[S]) -> S:
    """The state that a class makes of nothing."""
    try:
        return of()
    except SchemaViolation as error:
        raise InvalidInput(
            f"{of.__name__}() needs {error.field}, so a session cannot begin without a state. Pass "
            f"state={of.__name__}({error.field}=…), or give the field a default."
        ) from error
