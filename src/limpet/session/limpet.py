"""Limpet: the sessions of one store, and the way to them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from limpet.errors import (
    InvalidInput,
    SessionDeleted,
    SessionErased,
    SessionExists,
    SessionNotFound,
    StoreFailed,
)
from limpet.model import Key, Lease
from limpet.model.facts import Phase, Timeouts
from limpet.model.facts.running import Budget
from limpet.session.app import App
from limpet.session.arguments import (
    AnyKey,
    check_flag,
    check_lease,
    check_tail,
    check_token,
    key_of,
    moment_us,
    tail_of,
    typed_of,
)
from limpet.session.care import Care
from limpet.session.commit import CommitBuilder
from limpet.session.creation import Begin, creation, is_plain
from limpet.session.documents import Documents
from limpet.session.following.watch import Watching
from limpet.session.life.door import LongLife, opened_archived
from limpet.session.listing import Listing
from limpet.session.maintenance import StoreMaintenance
from limpet.session.move.moving import Moving
from limpet.session.policies import StorePolicies
from limpet.session.runs.agents import Agents
from limpet.session.runs.setup import Permissions, Vaults
from limpet.session.runs.waking import Waking
from limpet.session.session import Session
from limpet.session.work import StoreWork

if TYPE_CHECKING:
    from limpet.model.envelope.record import Envelope
    from limpet.model.state.migrations import MigrationRegistry
    from limpet.model.state.state import State

S = TypeVar("S", bound="State")
_NONE: Final[Mapping[str, Any]] = {}
_CHECKED: Final[Mapping[Any, type[Documents]]] = {"permissions": Permissions, "vaults": Vaults}


class Limpet(Agents, Care, Listing, LongLife, Moving, Waking, Watching):
    """The door to a store. Open it with `async with limpet.open(url) as lp`."""

    # --- facets --------------------------------------------------------------------------------

    @property
    def work(self) -> StoreWork:
        """Leases, dead letters and sweeps."""
        return StoreWork(self._journal)

    @property
    def maintenance(self) -> StoreMaintenance:
        """Verify, examine, back up, compact, migrate and mirror the store."""
        return StoreMaintenance(self._journal, self.url)

    @property
    def policies(self) -> StorePolicies:
        """What is decided for all sessions of an app: lifecycle, checkpoints, retention, gates."""
        return StorePolicies(self._journal)

    # --- sessions ------------------------------------------------------------------------------

    @overload
    async def create(
        self,
        app: str,
        user: str,
        id: str | None = None,
        *,
        state: S,
        labels: Mapping[str, str] = ...,
        actor: str | None = None,
        migrations: MigrationRegistry | None = None,
        reuse_deleted: bool = False,
        phase: Phase = "active",
        timeouts: Timeouts | None = None,
        agent: str | None = None,
        environment: str | None = None,
        budget: Budget | float | None = None,
    ) -> Session[S]: ...

    @overload
    async def create(
        self,
        app: str,
        user: str,
        id: str | None = None,
        *,
        state: Mapping[str, Any] | Envelope = ...,
        labels: Mapping[str, str] = ...,
        actor: str | None = None,
        untyped: bool = False,
        reuse_deleted: bool = False,
        phase: Phase = "active",
        timeouts: Timeouts | None = None,
        agent: str | None = None,
        environment: str | None = None,
        budget: Budget | float | None = None,
    ) -> Session[Mapping[str, Any]]: ...

    async def create(
        self,
        app: str,
        user: str,
        id: str | None = None,
        *,
        state: Begin = _NONE,
        labels: Mapping[str, str] = _NONE,
        actor: str | None = None,
        migrations: MigrationRegistry | None = None,
        untyped: bool = False,
        reuse_deleted: bool = False,
        phase: Phase = "active",
        timeouts: Timeouts | None = None,
        agent: str | None = None,
        environment: str | None = None,
        budget: Budget | float | None = None,
    ) -> Session[Any]:
        """A new session. Its first event holds the given state. Raises SessionExists.

        The state is a dict; or an object of a State class: the session is typed then; or an
        Envelope, whose schema version the session keeps, so that a load with a class migrates it
        or refuses; without a class its fields are left alone, unless `untyped` (see get). An actor
        given here is bound to the session; else the user counts as creator. The key of a deleted
        session stays taken (SessionDeleted), unless `reuse_deleted`; that of an archived one always
        does. With phase="init" it accepts everything and runs nothing until s.activate().
        `timeouts` are its own, else those of the app's policy (lp.policies.lifecycle). `agent`
        ("support", "support@3") and `environment` name documents; the session keeps their
        versions. `budget` is what it may use.
        """
        journal = self._journal
        setup = await self._set_up(agent, environment, budget)
        how: dict[str, Any] = {"state": state, "labels": labels, "actor": actor}
        how |= {"migrations": migrations, "untyped": untyped, "reuse_deleted": reuse_deleted}
        how |= {"phase": phase, "timeouts": timeouts, "setup": setup}
        new = creation(journal, app, user, id, **how)
        session = new.session
        try:
            (committed,) = await journal.commit((new.commit(),))
        except StoreFailed as error:  # its draft cannot be sent again: a creation takes no id of it
            raise StoreFailed(error.where, error.reason, "create") from error
        session.writer.known.begin(committed, (new.draft,))
        if committed.repeated:  # under a lost answer: its answer has no shared names
            await session.refresh()
        return session

    @overload
    async def get(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        state_type: type[S],
        migrations: MigrationRegistry | None = None,
        tail: int | None = None,
        since: datetime | None = None,
        at_least: str = "",
        actor: str | None = None,
        archived: bool = False,
    ) -> Session[S]: ...

    @overload
    async def get(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        tail: int | None = None,
        since: datetime | None = None,
        at_least: str = "",
        actor: str | None = None,
        untyped: bool = False,
        archived: bool = False,
    ) -> Session[Mapping[str, Any]]: ...

    async def get(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        state_type: type[Any] | None = None,
        migrations: MigrationRegistry | None = None,
        tail: int | None = None,
        since: datetime | None = None,
        at_least: str = "",
        actor: str | None = None,
        untyped: bool = False,
        archived: bool = False,
    ) -> Session[Any]:
        """The session with its state and its last events: `tail` of them, 20 if nothing is said.

        With `since`, every event at or after that time, the newest 1,000 if there are more; with
        both, the last `tail` among those.

        Of large events, as many of the newest as fit about 16 MiB.

        With a `state_type` its state is of that class; stored state of another MAJOR is brought
        there by `migrations`, which is recorded, or MigrationError is raised. Without one, typed
        state is read and not changed (SessionTyped), unless `untyped`: then all that is written
        passes its class by. `actor` is bound to it. `at_least` is the token of a commit (c.token)
        that the reading must see. Raises SessionNotFound; SessionArchived, unless `archived`: then
        it is read from the archive.
        """
        check_flag("archived", archived)
        journal = self._journal
        typed = typed_of(state_type, migrations, untyped=untyped)
        key = key_of(key, user, id)
        session: Session[Any] = Session(journal, key, actor=actor, typed=typed, untyped=untyped)
        since_us = moment_us("since", since)
        seen = {"since_us": since_us, "at_least": check_token(at_least)}
        await session.writer.load(tail=tail_of(tail, since), stub=True, **seen)  # type: ignore[arg-type]
        if session.head.facts.get("phase") == "archived":
            session = await opened_archived(session, tail_of(tail, since), archived=archived)
        if (
            typed is not None
            and session.head.schema_version is not None
            and not session.history.damaged
        ):
            typed.prove(session.head, session.writer.known.fields)
        return session

    @overload
    async def find(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        state_type: type[S],
        migrations: MigrationRegistry | None = None,
        tail: int | None = None,
        since: datetime | None = None,
        actor: str | None = None,
    ) -> Session[S] | None: ...

    @overload
    async def find(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        tail: int | None = None,
        since: datetime | None = None,
        actor: str | None = None,
        untyped: bool = False,
    ) -> Session[Mapping[str, Any]] | None: ...

    async def find(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        **how: Any,
    ) -> Session[Any] | None:
        """Like get, and None if there is no such session (any more)."""
        try:
            found: Session[Any] = await self.get(key_of(key, user, id), **how)
        except (SessionNotFound, SessionDeleted, SessionErased):
            return None
        return found

    @overload
    async def get_or_create(
        self,
        app: str,
        user: str,
        id: str,
        *,
        state: S,
        labels: Mapping[str, str] = ...,
        actor: str | None = None,
        tail: int = 20,
        migrations: MigrationRegistry | None = None,
    ) -> Session[S]: ...

    @overload
    async def get_or_create(
        self,
        app: str,
        user: str,
        id: str,
        *,
        state: Mapping[str, Any] | Envelope = ...,
        labels: Mapping[str, str] = ...,
        actor: str | None = None,
        tail: int = 20,
        untyped: bool = False,
    ) -> Session[Mapping[str, Any]]: ...

    async def get_or_create(
        self,
        app: str,
        user: str,
        id: str,
        *,
        state: Begin = _NONE,
        labels: Mapping[str, str] = _NONE,
        actor: str | None = None,
        tail: int = 20,
        migrations: MigrationRegistry | None = None,
        untyped: bool = False,
    ) -> Session[Any]:
        """The session of this key, created with the given state if it is not there yet.

        With an object of a State class as state, it is typed in either case.
        """
        how: dict[str, Any] = {"tail": check_tail(tail), "actor": actor, "migrations": migrations}
        how["untyped"] = untyped
        if not is_plain(state):
            how["state_type"] = type(state)
        key = Key(app, user, id)
        found: Session[Any] | None = await self.find(key, **how)
        if found is not None:
            return found
        begin: dict[str, Any] = {"state": state, "labels": labels, "actor": actor}
        begin["untyped"] = untyped
        try:
            made: Session[Any] = await self.create(app, user, id=id, migrations=migrations, **begin)
        except SessionExists:  # another was faster, which is as good
            made = await self.get(key, **how)
        return made

    @overload
    def session(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        state_type: type[S],
        migrations: MigrationRegistry | None = None,
        actor: str | None = None,
        lease: Lease | None = None,
    ) -> Session[S]: ...

    @overload
    def session(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        actor: str | None = None,
        lease: Lease | None = None,
        untyped: bool = False,
    ) -> Session[Mapping[str, Any]]: ...

    def session(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        state_type: type[Any] | None = None,
        migrations: MigrationRegistry | None = None,
        actor: str | None = None,
        lease: Lease | None = None,
        untyped: bool = False,
    ) -> Session[Any]:
        """A handle, without I/O. Its appends need no load; refresh() reads what there is.

        With a `lease` of this session, everything it writes is refused once the lease is not held.
        `untyped` as for get.
        """
        journal = self._journal
        key = key_of(key, user, id)
        if lease is not None and check_lease(lease).key != key:
            raise InvalidInput(
                f"this is a lease on {lease.key}, not on {key}. Pass the lease of this session."
            )
        typed = typed_of(state_type, migrations, untyped=untyped)
        return Session(journal, key, actor=actor, lease=lease, typed=typed, untyped=untyped)

    @overload
    def app(
        self,
        name: str,
        *,
        state_type: type[S],
        migrations: MigrationRegistry | None = None,
        actor: str | None = None,
    ) -> App[S]: ...

    @overload
    def app(
        self, name: str, *, actor: str | None = None, untyped: bool = False
    ) -> App[Mapping[str, Any]]: ...

    def app(
        self,
        name: str,
        *,
        state_type: type[Any] | None = None,
        migrations: MigrationRegistry | None = None,
        actor: str | None = None,
        untyped: bool = False,
    ) -> App[Any]:
        """The sessions of one app, without I/O: its class, migrations and actor are named once.

        `support = lp.app("support", state_type=Support)`, then `await support.get("ada", "c1")`.
        `untyped` as for get.
        """
        self._journal.check_open()
        typed_of(state_type, migrations, untyped=untyped)  # refuses what every verb would refuse
        bound: dict[str, Any] = {"state_type": state_type, "migrations": migrations}
        return App(self, name, actor=actor, untyped=untyped, **bound)

    def documents(
        self, collection: str, *, owner: tuple[str, str] | None = None, actor: str | None = None
    ) -> Documents:
        """A collection of named values with a history, without I/O: see Documents.

        `agents = lp.documents("agents")`, then `await agents.put("support", {…}, actor=…)`. With
        `owner=(app, user)` they are that user's, and erased with the user. `actor` is bound to it.
        """
        of = _CHECKED.get(collection, Documents) if type(collection) is str else Documents
        return of(self._journal, collection, owner=owner, actor=actor)

    def commit(self) -> CommitBuilder:
        """Events for several sessions, all or nothing: `async with lp.commit() as c: …`."""
        return CommitBuilder(self._journal)

    async def flush(self) -> None:
        """Record everything that append_soon has queued, durably, each session in its order.

        One commit serves many events. If the events of a session are refused, the others are
        recorded all the same, and FlushFailed names what was not: `error.unrecorded` has key,
        drafts and reason for each session. What it names has left the queue; sent again with
        append_many, no event is recorded twice. A cancelled flush leaves what was not recorded in
        the queue. What others queue meanwhile may wait for the next flush.
        """
        await self._journal.queue.flush()
