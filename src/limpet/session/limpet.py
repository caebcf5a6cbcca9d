"""Limpet: the sessions of one store, and the way to them."""

from __future__ import annotations

import os
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    overload,
)

from msgspec.structs import replace

from limpet.errors import (
    ArchiveFailed,
    FlushFailed,
    InvalidInput,
    InvalidKey,
    InvalidQuery,
    SchemaViolation,
    SessionArchived,
    SessionDeleted,
    SessionErased,
    SessionExists,
    SessionHasForks,
    SessionNotFound,
    StoreClosed,
    StoreFailed,
)
from limpet.model import FrozenDict, Head, Key, Lease, described, to_time, unfit
from limpet.model.facts.isolation import TASK, Isolation
from limpet.model.facts.phases import ARCHIVED, Phase, archive_place, is_stub, rule
from limpet.model.facts.running.budgets import Budget
from limpet.model.facts.timeouts import Timeouts
from limpet.model.keys import Ids
from limpet.model.limits import KEY_PART_CHARS_MAX, PAGE_MAX
from limpet.session.arguments import (
    AnyKey,
    check_actor,
    check_app,
    check_flag,
    check_forks,
    check_lease,
    check_lease_seconds,
    check_limit,
    check_progress,
    check_sessions,
    check_tail,
    check_token,
    check_types,
    key_and,
    key_of,
    moment_us,
    one_or_all,
    tail_of,
    typed_of,
)
from limpet.session.commit import CommitBuilder
from limpet.session.creation import Begin, creation, is_plain, set_up
from limpet.session.documents import Document, Documents
from limpet.session.following.follow import feed_of, watch_feed
from limpet.session.history.checkpoints import journal_with_checkpoints
from limpet.session.journal import Journal
from limpet.session.keys import StoreKeys
from limpet.session.life.lifecycle_policy import LIFECYCLE_ACTOR, Function, Transition
from limpet.session.maintenance import StoreMaintenance
from limpet.session.policies import StorePolicies
from limpet.session.provenance import Provenance
from limpet.session.runs.runs import RETRIES, Harness, OnMismatch, WakeOptions, Woken
from limpet.session.runs.setup import Permission, Permissions, Vaults
from limpet.session.services import Metrics, Services
from limpet.session.session import Session
from limpet.session.work import StoreWork
from limpet.session.writer import writer_of
from limpet.store import cursor as cursors
from limpet.store.cursor import check_position
from limpet.store.open import TLS, open_store, scheme_of
from limpet.store.pages import each_page
from limpet.store.protocol import (
    Checked,
    DerivesFiles,
    Erasure,
    Erasures,
    FeedEntry,
    Forks,
    Order,
    Page,
    Progress,
    Query,
    Seal,
    Store,
    scope_fields,
)

if TYPE_CHECKING:
    import typing_extensions

    from limpet.model.envelope.record import Envelope
    from limpet.model.facts.running.requests import WaitingKind
    from limpet.model.state.migrations import MigrationRegistry
    from limpet.model.state.state import State
    from limpet.security.access import Principal
    from limpet.security.audit import AuditRecord
    from limpet.session.audit import AuditExport
    from limpet.session.life.archive_storage import Archive
    from limpet.session.life.resumption import Resumption, Retrieve
    from limpet.session.life.tools import ToolRegistry
    from limpet.session.move.adopter import Adopter
    from limpet.session.move.transfer import Copied
    from limpet.session.overview import StoreStatus, Waiting
    from limpet.session.relations import SessionGraph
    from limpet.session.runs.learnings import Learning
    from limpet.session.runs.promotion import MemoryItem, Proposal, ProposalStatus
    from limpet.session.runs.spawn import Children

S = TypeVar("S", bound="State")
A = TypeVar("A")
if TYPE_CHECKING:  # typing.TypeVar takes a default from Python 3.13 on
    T = typing_extensions.TypeVar("T", bound="State | Mapping[str, Any]", default=Mapping[str, Any])
else:
    T = TypeVar("T")
CopyTarget: TypeAlias = "Limpet | Adopter"  # the adopter of a Limpet that has its own loop
_NONE: Final[Mapping[str, Any]] = {}
_REOPENED: Final = frozenset({"sqlite", "postgresql", "postgres"})  # what a URL can open twice
_EACH_PAGE: Final = 200  # heads that `each` reads at a time
_CHECKED: Final[Mapping[Any, type[Documents]]] = {"permissions": Permissions, "vaults": Vaults}


class RunTurn(Protocol):
    """Run one turn of a session under a lease of `lease_seconds`: `limpet.runtime.wake.wake`."""

    async def __call__(
        self, lp: Limpet, key: Key, harness: Harness, options: WakeOptions, *, lease_seconds: float
    ) -> Woken: ...


class Limpet:
    """The door to a store. Open it with `async with limpet.open(url) as lp`."""

    # How `wake` runs a turn. The runtime stands above this room: the package binds it, once.
    _run_turn: ClassVar[RunTurn]

    def __init__(
        self,
        url: str,
        *,
        seal: Seal | None = None,
        connections: int | None = None,
        store: Store | None = None,
        archive: str | Archive | None = None,
        check: Checked | None = None,
        keys: str | None = None,
        keyring: str | None = None,
        policies: str | Path | None = None,
        provenance: Provenance | None = None,  # of a store that was opened with its keys
        token: str | None = None,
        tls: TLS | None = None,
    ) -> None:
        if isinstance(url, str) and url.startswith(("http://", "https://")) and store is None:
            local = {"seal": seal, "keys": keys, "archive": archive, "policies": policies}
            for name, given in local.items():
                if given is not None:
                    raise InvalidInput(f"{name}= belongs to the store. Pass it to limpet serve.")
        if store is not None and (seal is not None or keys is not None):
            raise InvalidInput("a store that is open has its own seal. Pass the seal to it.")
        if seal is not None and keys is not None:
            raise InvalidInput("keys make a seal of their own. Pass a seal or keys.")
        if keyring is not None and keys is None:
            raise InvalidInput("a key ring is opened with keys. Pass keys= beside keyring=.")
        self.url = url
        self._keys, self._keyring, self._provenance = keys, keyring, provenance
        self._seal, self._connections, self._check = seal, connections, check
        self._token, self._tls = token, tls
        self._policies = policies
        self._ready = store  # opened by the caller, and ours to close
        self._archive = _open_archive(archive)
        self._opened: Services | None = None

    def __repr__(self) -> str:
        """With its URL, unless a password may be in it."""
        from urllib.parse import unquote

        url = str(self.url)
        plain = unquote(url)  # a URL within it is encoded
        shown = f"{url.partition('://')[0]}://…" if "@" in plain or "password" in plain else url
        return f"<limpet.{type(self).__name__} {shown}>"

    def __await__(self) -> Generator[Any, None, Self]:
        """`lp = await limpet.open(url)`, for those who close it themselves."""
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        if self._opened is not None and self._opened.guard is not None:
            return self  # it acts as somebody: what it was made from is open
        if self._opened is not None:
            raise StoreClosed
        policies = None
        if self._policies is not None:
            from limpet.security.policies import CedarPolicies

            policies = CedarPolicies(self._policies)  # before the store: they may be refused
        store, self._ready = self._ready, None
        given = store is not None
        provenance = self._provenance
        if self._keys is not None:
            from limpet.security.binding import open_sealed

            store, opened = await open_sealed(
                self.url,
                self._keys,
                self._keyring,
                connections=self._connections,
                check=self._check,
            )
            provenance = Provenance(store, opened)
        elif store is None:
            store = await open_store(
                self.url,
                seal=self._seal,
                connections=self._connections,
                check=self._check,
                token=self._token,
                tls=self._tls,
            )
        ids = Ids(time.time_ns, os.urandom)
        metrics = Metrics()
        journal = journal_with_checkpoints(store, ids, store.now_us, metrics)
        journal.provenance, journal.policies = provenance, policies
        if policies is not None:
            policies.now_us = store.now_us
        if not given and self._seal is None and scheme_of(self.url) in _REOPENED:
            journal.reopen = self._store_again
        self._opened = Services(journal, journal, metrics, {}, _resume_on_input, self._archive)
        if isinstance(store, DerivesFiles) and store.derived_directory is not None:
            from limpet.session.move.mirror import DerivedFiles

            journal.derived = DerivedFiles(self._opened, store)
        return self

    async def _store_again(self) -> tuple[Store, Callable[[], Awaitable[None]]]:
        """Open the same store once more, for another event loop; and how to close it."""
        if self._keys is None:
            store = await open_store(self.url)
            return store, store.close
        from limpet.security.binding import open_sealed

        store, seal = await open_sealed(self.url, self._keys, self._keyring)

        async def close() -> None:
            await store.close()
            await seal.close()

        return store, close

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except FlushFailed as failed:
            if error is None:
                raise
            error.add_note(str(failed))  # what the block raised comes first

    async def close(self) -> None:
        """Finish what was handed over and close the store. Closing twice is fine.

        What append_soon has queued is flushed first. Raises FlushFailed if some of it could not be
        recorded; Limpet is closed all the same.
        """
        if self._opened is not None:
            await self._opened.journal.close()
        elif self._ready is not None:
            await self._ready.close()

    def acting_as(self, principal: Principal, *, address: str | None = None) -> Limpet:
        """Return the same verbs for a principal: every read and write is checked.

        What it writes has `principal.id` as actor; another is refused. Lists, feeds and claims show
        only what the principal may see. It shares everything with this Limpet, and closing it
        closes nothing. Of an acting one, only a principal that may do no more can be made. Raises
        AccessDenied. `address` is where the requests come from, for policies and the audit.
        """
        from limpet.security.access import Principal
        from limpet.security.tokens import check_address
        from limpet.session.acting import acting_as

        if not isinstance(principal, Principal):
            raise InvalidInput(
                f"acting_as takes a limpet.Principal, not {described(principal)}. Make one: "
                "limpet.Principal('user:ada', role='owner', app='support', user='ada')."
            )
        return self._with(acting_as(self._services, principal, check_address(address)))

    # --- facets --------------------------------------------------------------------------------

    @property
    def work(self) -> StoreWork:
        """Leases, dead letters and sweeps."""
        return StoreWork(self._services)

    @property
    def maintenance(self) -> StoreMaintenance:
        """Verify, examine, back up, compact, migrate and mirror the store."""
        return StoreMaintenance(self._services, self.url)

    @property
    def keys(self) -> StoreKeys:
        """The keys of a store that was opened with them: status, rotation, its public key."""
        return StoreKeys(self._services)

    @property
    def policies(self) -> StorePolicies:
        """Policies for all sessions of an app: lifecycle, checkpoints, retention, gates."""
        return StorePolicies(self._services)

    @property
    def agents(self) -> Documents:
        """Definitions of agents: lp.create(…, agent="support@3") runs version 3."""
        return Documents(self._journal, "agents")

    @property
    def environments(self) -> Documents:
        """Where agents run."""
        return Documents(self._journal, "environments")

    @property
    def resources(self) -> Documents:
        """The resources that sessions work on: where each is, and whether they may change it."""
        return Documents(self._journal, "resources")

    @property
    def permissions(self) -> Permissions:
        """Which tools may be used: {"tools": {"refund": "always_ask", "*": "deny"}}."""
        return Permissions(self._journal, "permissions")

    @property
    def vaults(self) -> Vaults:
        """References to secrets, as in {"stripe": "env:STRIPE_KEY"}; never the secrets."""
        return Vaults(self._journal, "vaults")

    def documents(
        self, collection: str, *, owner: tuple[str, str] | None = None, actor: str | None = None
    ) -> Documents:
        """Return a collection of named values with a history, without I/O: see Documents.

        `agents = lp.documents("agents")`, then `await agents.put("support", {…}, actor=…)`. With
        `owner=(app, user)` they are that user's, and erased with the user. `actor` is bound to it.
        """
        of = _CHECKED.get(collection, Documents) if type(collection) is str else Documents
        return of(self._journal, collection, owner=owner, actor=actor)

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
        isolation: Isolation | None = None,
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
        isolation: Isolation | None = None,
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
        isolation: Isolation | None = None,
    ) -> Session[Any]:
        """Create a session. Its first event holds the given state. Raises SessionExists.

        The state is a dict; or an object of a State class: the session is typed then; or an
        Envelope, whose schema version the session keeps, so that a load with a class migrates it
        or refuses; without a class its fields are left alone, unless `untyped` (see get). An actor
        given here is bound to the session; else the user counts as creator. The key of a deleted
        session stays taken (SessionDeleted), unless `reuse_deleted`; that of an archived one always
        does. With phase="init" it accepts everything and runs nothing until s.activate().
        `timeouts` are its own, else those of the app's policy (lp.policies.lifecycle). `agent`
        ("support", "support@3") and `environment` name documents; the session keeps their
        versions. `budget` is what it may use. `isolation` says from whom it is kept apart, for
        good; without one, from everybody but its user.
        """
        services = self._services
        setup = await set_up(services.journal, agent, environment, budget)
        new = creation(
            services,
            app,
            user,
            id,
            state=state,
            labels=labels,
            actor=actor,
            migrations=migrations,
            untyped=untyped,
            reuse_deleted=reuse_deleted,
            phase=phase,
            timeouts=timeouts,
            setup=setup,
            isolation=isolation,
        )
        session = new.session
        try:
            (committed,) = await services.journal.commit((new.commit(),))
        except StoreFailed as error:  # its draft cannot be sent again: a creation takes no id of it
            raise StoreFailed(error.where, error.reason, "create") from error
        writer_of(session).known.begin(committed, (new.draft,))
        if committed.repeated:  # under a lost answer: its answer has no shared names
            await session.refresh()
        return session

    async def get(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        state_type: type[T] | None = None,
        migrations: MigrationRegistry | None = None,
        tail: int | None = None,
        since: datetime | None = None,
        at_least: str = "",
        actor: str | None = None,
        untyped: bool = False,
        archived: bool = False,
    ) -> Session[T]:
        """Return the session with its state and its last events: `tail` of them, by default 20.

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
        services = self._services
        typed = typed_of(state_type, migrations, untyped=untyped)
        key = key_of(key, user, id)
        session: Session[Any] = Session(services, key, actor=actor, typed=typed, untyped=untyped)
        since_us, token = moment_us("since", since), check_token(at_least)
        await writer_of(session).load(
            tail=tail_of(tail, since), since_us=since_us, at_least=token, stub=True
        )
        if session.head.facts.get("phase") == "archived":
            session = await _open_archived(session, tail_of(tail, since), archived=archived)
        if (
            typed is not None
            and session.head.schema_version is not None
            and not session.history.damaged
        ):
            typed.prove(session.head, writer_of(session).known.fields)
        return session

    async def find(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        state_type: type[T] | None = None,
        migrations: MigrationRegistry | None = None,
        tail: int | None = None,
        since: datetime | None = None,
        at_least: str = "",
        actor: str | None = None,
        untyped: bool = False,
        archived: bool = False,
    ) -> Session[T] | None:
        """Return what get returns, or None if the session is missing or deleted."""
        try:
            return await self.get(
                key_of(key, user, id),
                state_type=state_type,
                migrations=migrations,
                tail=tail,
                since=since,
                at_least=at_least,
                actor=actor,
                untyped=untyped,
                archived=archived,
            )
        except (SessionNotFound, SessionDeleted, SessionErased):
            return None

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
        isolation: Isolation | None = None,
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
        isolation: Isolation | None = None,
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
        isolation: Isolation | None = None,
    ) -> Session[Any]:
        """Return the session of this key; create it with the given state if it is missing.

        With an object of a State class as state, it is typed in either case. One that is there
        keeps its own isolation.
        """
        lp: Any = self  # the overloads take a class, or none
        get = partial(
            lp.get,
            Key(app, user, id),
            state_type=None if is_plain(state) else type(state),
            migrations=migrations,
            tail=check_tail(tail),
            actor=actor,
            untyped=untyped,
        )
        session: Session[Any]
        with suppress(SessionNotFound, SessionDeleted, SessionErased):
            session = await get()
            return session
        try:
            session = await lp.create(
                app,
                user,
                id=id,
                state=state,
                labels=labels,
                actor=actor,
                migrations=migrations,
                untyped=untyped,
                isolation=isolation,
            )
        except SessionExists:  # another was faster, which is as good
            session = await get()
        return session

    async def get_many(
        self, keys: Iterable[AnyKey], *, tail: int = 20, actor: str | None = None
    ) -> tuple[Session[Mapping[str, Any]] | None, ...]:
        """Many sessions at once, as get gives each, in the order of the keys; None: not there, or
        archived.

        In as few round trips as the store can, up to 1,000 keys. Each is read from one instant, all
        of them from several. Typed state is read and not changed; use get for that.
        """
        if isinstance(keys, str) or not isinstance(keys, Iterable):
            raise InvalidQuery(f"get_many takes a list of keys, not {described(keys)}")
        wanted = [key_of(key) for key in keys]
        if len(wanted) > PAGE_MAX:
            raise InvalidQuery(
                f"it asks for {len(wanted):,} keys at once; the limit is {PAGE_MAX:,}"
            )
        found = await self._journal.store.load_many(wanted, tail=check_tail(tail))
        sessions: list[Session[Mapping[str, Any]] | None] = []
        for key, loaded in zip(wanted, found, strict=True):
            if loaded is None or is_stub(loaded.head.facts):
                sessions.append(None)
                continue
            session: Session[Mapping[str, Any]] = Session(self._services, key, actor=actor)
            writer_of(session).known.take(loaded)
            sessions.append(session)
        return tuple(sessions)

    def session(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        state_type: type[T] | None = None,
        migrations: MigrationRegistry | None = None,
        actor: str | None = None,
        lease: Lease | None = None,
        untyped: bool = False,
    ) -> Session[T]:
        """Return a handle, without I/O. Its appends need no load; refresh() reads the session.

        With a `lease` of this session, everything it writes is refused once the lease is not held.
        `untyped` as for get.
        """
        services = self._services
        key = key_of(key, user, id)
        if lease is not None and check_lease(lease).key != key:
            raise InvalidInput(
                f"this is a lease on {lease.key}, not on {key}. Pass the lease of this session."
            )
        typed = typed_of(state_type, migrations, untyped=untyped)
        return Session(services, key, actor=actor, lease=lease, typed=typed, untyped=untyped)

    def app(
        self,
        name: str,
        *,
        state_type: type[T] | None = None,
        migrations: MigrationRegistry | None = None,
        actor: str | None = None,
        untyped: bool = False,
    ) -> App[T]:
        """Return the verbs for one app, without I/O: name its class, migrations and actor once.

        `support = lp.app("support", state_type=Support)`, then `await support.get("ada", "c1")`.
        `untyped` as for get.
        """
        self._journal.check_open()
        typed_of(state_type, migrations, untyped=untyped)  # refuses what every verb would refuse
        bound: dict[str, Any] = {"state_type": state_type, "migrations": migrations}
        return App(self, name, actor=actor, untyped=untyped, **bound)

    # --- finding ---------------------------------------------------------------------------------

    async def graph(self, root: AnyKey, *, limit: int = 1_000) -> SessionGraph:
        """Return the sessions that hang together with `root`, and how, nearest first.

        Parents and children, forks, merges and relations are followed in both directions, up to
        `limit` sessions. One that was deleted is a node without a phase. Raises SessionNotFound.
        """
        from limpet.session.relations import GRAPH_NODES_MAX, session_graph

        if type(limit) is not int or not 1 <= limit <= GRAPH_NODES_MAX:
            raise InvalidQuery(f"limit is a number from 1 to {GRAPH_NODES_MAX:,}.")
        return await session_graph(self._journal.store, key_of(root), limit)

    async def spawn(
        self,
        parent: AnyKey | Session[Any],
        *,
        task: str | Mapping[str, Any],
        fields: Iterable[str] = (),
        tools: Iterable[str] = (),
        budget_fraction: float = 0.25,
        id: str | None = None,
        actor: str | None = None,
    ) -> Session[Any]:
        """Begin a child of an active session, from outside of its turns; turns use delegate.

        The child has the `task` as its first message, copies of these `fields` of its parent, these
        of its `tools` and no others, and `budget_fraction` of what is left of its budget. It is of
        the same app and user, in a task of its own, and kept as long as its parent is. When it
        ends, its parent learns of it in the same commit, and has back what is left; until then the
        parent cannot be completed. The same `id` and task return the same child.

        Raises SessionEnded, SessionSuspended, ToolAuthorizationFailed, BudgetReached; SessionExists
        if the id has another task.
        """
        from limpet.session.runs.spawn import spawn

        return await spawn(
            self._services,
            parent.key if isinstance(parent, Session) else key_of(parent),
            task=task,
            fields=fields,
            tools=tools,
            budget_fraction=budget_fraction,
            id=id,
            actor=check_actor(actor),
        )

    async def wait_for_children(
        self,
        parent: AnyKey | Session[Any],
        timeout: float | None = None,  # noqa: ASYNC109  # what is done by then is returned
    ) -> Children:
        """Return the outputs of all children of a session when the last one has ended.

        After `timeout` seconds it returns which are done by then and which are pending; with 0 it
        does not wait. Nothing is lost if the process dies: another one asks again.
        """
        from limpet.session.runs.spawn import wait_for_children

        key = parent.key if isinstance(parent, Session) else key_of(parent)
        return await wait_for_children(self._journal, key, timeout)

    async def list(
        self,
        *,
        app: str | None = None,
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
        """Return a page of heads, newest first; `page.cursor` leads to the next.

        By app, by app and user, by labels ({"plan": "gold"}), or by the `task` of their isolation
        (the label of an app, and of a user of it); in order of creation, of last
        update (for an app or a user), or of their keys (order="key": of an app, or of a user with
        the `prefix` of their ids; descending unless reverse=False). Between times, and of one
        schema version, in any of these orders. A page may be short, even empty, before the last: go
        on while there is a cursor.

        `deleted=True` lists what is left of deleted sessions, in the order of their keys: heads
        with key, uid, version, link, times and `deleted_at`. `state=True` also reads states:
        `page.states[key]` is what `values` of a loaded session would show, without temp: names.
        A session with an unreadable event is in `page.damaged` instead.
        """
        check_flag("deleted", deleted)
        check_flag("state", state)
        if deleted and state:
            raise InvalidQuery("a deleted session has no state: leave out state=True")
        query = Query(
            app=check_sessions(app),
            user=user,
            labels=_with_task(cursors.labels(labels), task),
            order=order,
            reverse=reverse,
            prefix=prefix,
            created_after_us=moment_us("created_after", created_after),
            created_before_us=moment_us("created_before", created_before),
            updated_after_us=moment_us("updated_after", updated_after),
            schema_version=schema_version,
            deleted=deleted,
        )
        store, limit = self._journal.store, check_limit(limit)
        return await store.heads(query, cursor=cursor, limit=limit, states=state)

    async def each(
        self,
        *,
        app: str | None = None,
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
    ) -> AsyncGenerator[Head, None]:
        """Yield every head that `list` shows, page after page: `async for head in lp.each(app=…)`.

        Takes the filters of `list`. Sessions that are created or change meanwhile may be missed, or
        come twice when ordered by their last update.
        """
        async for page in each_page(
            lambda cursor: self.list(
                app=app,
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
                limit=_EACH_PAGE,
                cursor=cursor,
            )
        ):
            for head in page.items:
                yield head

    async def inbox(
        self,
        app: str | None = None,
        *,
        user: str | None = None,
        kind: WaitingKind | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Waiting]:
        """A page of requests that wait for an answer, the oldest first: of all apps, of one, of a
        user of it, of one kind ("approval", "question", "unknown_effect", "mismatch"), and after
        them the proposals that wait for a person ("promotion").

        Answer with confirm, answer or resolve of `lp.session(waiting.key)`; about a proposal, with
        `lp.decide(waiting.request.id, …)`. The cost grows with what waits and with the proposals
        that were ever made, not with the store. A page may be short before the last: go on while
        there is a cursor.
        """
        from limpet.session.overview import inbox_page
        from limpet.store.overview import WaitingQuery

        query = WaitingQuery(app=app, user=user, kind=kind)
        return await inbox_page(self._services, query, limit=limit, cursor=cursor)

    async def status(self, app: str | None = None) -> StoreStatus:
        """How many sessions there are, by status and phase, and how many are due, leased, blocked
        and dead. One statement; counts at most a million sessions."""
        from limpet.session.overview import status_of

        return await status_of(self._journal, app)

    async def names(self, app: str, user: str | None = None) -> Mapping[str, Any]:
        """Return the app: names of an app, and the user: names of a user, without a session.

        Read-only, as `values` of a session shows them. A name that cannot be read is left out.
        """
        from limpet.session.move.adopter import names_in

        Key(app, "any" if user is None else user, "any")  # refuses what could not be one
        names = names_in(self._journal)
        owners = ("",) if user is None else ("", user)
        found = [scope_fields(await names.names_of(str(check_sessions(app)), o)) for o in owners]
        return FrozenDict({name: value for each in found for name, value in each.items()})

    def watch(
        self, *, app: str | None = None, key: AnyKey | None = None, after: str | None = None
    ) -> AsyncGenerator[FeedEntry, None]:
        """Yield every event of the store, of an app or of one session, as it is recorded.

        Each entry has a `position`: begin again with after=position and nothing is missed and
        nothing comes twice. Without `after`, from the first event; `after=await lp.position()`
        begins from now. What is deleted leaves the feed without an entry. Ends with StoreError
        if the store fails for longer than it waits: watch again from the last position.
        """
        feed = feed_of(self._journal.store)
        one, app = None if key is None else key_of(key), check_sessions(app)
        if one is not None and app not in (None, one.app):
            raise InvalidInput(
                f"the session {one} does not belong to the app {app!r}. Pass its own app, "
                "or the key alone."
            )
        return watch_feed(self._journal.hub, feed, app=app, key=one, after=check_position(after))

    async def position(self) -> str:
        """Return the end of the feed now: lp.watch(after=…) yields all that is recorded after it.

        On PostgreSQL, what was recorded while an older transaction was open may come as well.
        """
        return await feed_of(self._journal.store).position()

    def now(self) -> datetime:
        """Return the time by the store's clock (UTC), without I/O: new events are dated by it.

        Compare recorded times with it. On PostgreSQL it is the server's time as its replies tell
        it, which may differ from this machine's.
        """
        return to_time(self._journal.now_us())

    # --- writing and running ---------------------------------------------------------------------

    def commit(self) -> CommitBuilder:
        """Write to several sessions, all or nothing: `async with lp.commit() as c: …`."""
        return CommitBuilder(self._services)

    async def flush(self) -> None:
        """Record everything that append_soon has queued, durably, each session in its order.

        One commit serves many events. If the events of a session are refused, the others are
        recorded all the same, and FlushFailed names what was not: `error.unrecorded` has key,
        drafts and reason for each session. What it names has left the queue; sent again with
        append_many, no event is recorded twice. A cancelled flush leaves what was not recorded in
        the queue. What others queue meanwhile may wait for the next flush.
        """
        await self._journal.queue.flush()

    async def wake(
        self,
        key: AnyKey | str,
        *then: Any,
        harness: Harness | None = None,
        lease_seconds: float = 30,
        retries: int = RETRIES,
        on_mismatch: OnMismatch = "ask",
        version: str | None = None,
        permissions: Mapping[str, Permission] = _NONE,
        agent: str | None = None,
        state_type: type[Any] | None = None,
        migrations: MigrationRegistry | None = None,
    ) -> Woken:
        """Run one bounded turn of this session, or nothing: `woken.ran`, `woken.reason`.

        The harness comes after the key: `wake(key, harness)`, `wake(app, user, id, harness)`. There
        is no payload: what is to be done is in the log. Never raises what the harness raises: that
        is `woken.error`, and recorded. The options are those of limpet.Worker.
        """
        named, runs = key_and((key, *then), harness, "a harness")
        lp = await at_work(self, named)
        options = WakeOptions(
            retries=retries,
            on_mismatch=on_mismatch,
            version=version,
            permissions=permissions,
            agent=agent,
            state_type=state_type,
            migrations=migrations,
        )
        seconds = check_lease_seconds(lease_seconds)
        return await self._run_turn(lp, named, runs, options, lease_seconds=seconds)

    async def resume(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        tools: ToolRegistry | None = None,
        retrieve: Retrieve | None = None,
        memory: Sequence[str] | None = None,
        queries: Sequence[Any] | None = None,
        fresh_seconds: float = 3_600,
        deadline_seconds: float = 10,
        cache_seconds: float = 604_800,
        tokens: int | None = None,
        tokens_min: int = 1,
        plan: Function | None = None,
        role: str | Function | None = None,
        fallback: bool = False,
        activate: bool = True,
        state_type: type[Any] | None = None,
        actor: str | None = None,
    ) -> tuple[Session[Any], Resumption]:
        """Bring a suspended session back: restore, rehydrate, rebind, reconstruct, verify.

        restore: the newest checkpoint is verified; with `fallback`, an older one may stand in.
        rehydrate: `queries` (or the state's retrieval_queries) are answered from the cache if
        younger than `fresh_seconds`, else by `retrieve(query)` within `deadline_seconds`, which is
        cached for `cache_seconds`; `tokens` less what was used, or what is left of the session's
        own budget, must leave `tokens_min`. rebind: tools as `tools` has them now, or else the
        registry of the app's lifecycle. reconstruct: these layers of `memory`. `report.context` has
        what the agent begins with: the `role` (a text, or a function of the session), state,
        evidence and memory. verify: six checks, `plan(session)` among them. Then it is resumed,
        and active unless activate=False, in one commit. Raises NoCheckpoint, NoFullCheckpoint,
        CheckpointIntegrity, InsufficientTokenBudget, RequiredToolUnavailable,
        ToolAuthorizationFailed, SessionIntegrity: it stays suspended then.
        """
        from limpet.session.life.resumption import ResumptionRun, ResumptionSettings

        settings = ResumptionSettings(
            tools=tools,
            retrieve=retrieve,
            memory=memory,
            queries=queries,
            fresh_seconds=fresh_seconds,
            deadline_seconds=deadline_seconds,
            cache_seconds=cache_seconds,
            tokens=tokens,
            tokens_min=tokens_min,
            plan=plan,
            role=role,
            fallback=fallback,
            activate=activate,
        )
        typed = typed_of(state_type, None, untyped=False)
        session: Session[Any] = Session(
            self._services, key_of(key, user, id), actor=actor, typed=typed
        )
        await self._services.approved("lifecycle", session.key)
        return session, await ResumptionRun(session, settings, actor).run()

    async def unarchive(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        actor: str | None = None,
    ) -> Transition:
        """Bring an archived session back into the store, in the phase it had before.

        Its file is proved first, and removed from the archive at the end. Interrupted, it goes on
        when called again. Raises InvalidTransition if it is not archived, ArchiveFailed.
        """
        from limpet.session.life.archive import unarchive_session

        of = key_of(key, user, id)
        acting = await self._services.actor(check_actor(actor) or LIFECYCLE_ACTOR, of)
        session: Session[Any] = Session(
            await self._services.approved("lifecycle", of), of, untyped=True
        )
        done = await unarchive_session(session, acting)
        return replace(done, side_effects=rule(ARCHIVED, "unarchive").effects)

    # --- moving and ending -----------------------------------------------------------------------

    @overload
    async def export(
        self, key: AnyKey, path: str | Path, *, redact: Iterable[str] = ()
    ) -> None: ...

    @overload
    async def export(
        self, app: str, user: str, id: str, /, path: str | Path, *, redact: Iterable[str] = ()
    ) -> None: ...

    async def export(
        self, key: Any, *then: Any, path: str | Path | None = None, redact: Iterable[str] = ()
    ) -> None:
        """Write the session to a file that proves itself: its whole log, with bodies opened.

        The file must not exist yet; it appears complete or not at all, readable by this user only.
        Blobs, checkpoints, and session and episodic memory are in it; other snapshots and leases
        stay behind. Of a fork it has the state that it began on, not the log of its parent. Raises
        BundleRefused, and SessionCorrupt if an event cannot be read.

        Of events whose types are in `redact` ("user.message", "agent.*") it has the digests of the
        bodies alone. Such a file has only the log: it can be checked with a receipt, and not be
        imported.
        """
        from limpet.session.move.import_export import check_path, export_session

        named, target = key_and((key, *then), path, "a path")
        to, hidden = check_path(target), check_types(redact) or ()
        services = await self._services.approved("move", named)
        await export_session(services.journal, named, to, memory=True, redact=hidden)

    async def import_(self, path: str | Path) -> Key:
        """Adopt the session in a file: the same events, times and links, under the same key.

        The whole file is verified first: a truncated or changed one is refused and nothing is
        recorded (BundleDamaged). Importing again does nothing more, and goes on if an import was
        interrupted. Raises SessionConflict if the store has another log under the key,
        SessionDeleted or SessionErased if it was ended there. It writes no app: or user: name.
        """
        from limpet.session.move.import_export import check_path, import_session

        path, guard = check_path(path), self._services.guard
        if guard is not None:  # before the file of a stranger is looked at
            of = guard.principal
            await self._services.approved_app("move", of.app, of.user)
        return await import_session(self._journal, path)

    async def copy(
        self,
        key: AnyKey | str | None = None,
        user: str | None = None,
        id: str | None = None,
        *,
        app: str | None = None,
        to: CopyTarget,
        progress: Progress | None = None,
    ) -> Copied:
        """Copy one session, an app, or everything to another store, where it has less.

        Events keep their ids, times and links. Calling it again sends only what is missing, also
        after an interruption. Without a key it also sets the app: and user: names that the target
        never had; with one, `left_out` names them instead. One session raises what is in the way
        (SessionConflict, SessionDeleted, SessionCorrupt, …); among many, `refused` names those that
        were not copied. `progress(done, total)` counts events.
        """
        from limpet.session.move.adopter import Adopter
        from limpet.session.move.transfer import Transfer

        if key is not None and app is not None:
            raise InvalidInput("copy takes a key or an app, not both. Leave one out for the other.")
        if isinstance(key, str) and user is None and id is None:
            raise InvalidInput(f"copy takes a key, not {described(key)}. Name an app by app=….")
        one = one_or_all(key, user, id, reserved=True)
        if not isinstance(to, (Limpet, Adopter)) or getattr(to, "of", to) is self:
            raise InvalidInput(
                f"copy needs another store to copy to, not {described(to)}. Open one and pass it: "
                "await lp.copy(to=other)."
            )
        adopter = to if isinstance(to, Adopter) else Adopter(to._journal)
        done, app = check_progress(progress), check_app(app)
        if one is None:
            services = await self._services.approved_app("move", app)
        else:
            services = await self._services.approved("move", one)
        transfer = Transfer(services, adopter, done)
        return await (transfer.all(app) if one is None else transfer.one(one))

    async def delete(
        self, key: AnyKey | str, user: str | None = None, id: str | None = None, /
    ) -> bool:
        """Delete the session's log. Its key stays taken. False if there was nothing to delete.

        A session that waits for it as its child learns that it has ended.
        """
        from limpet.session.erasure import delete_session

        of = key_of(key, user, id)
        return await delete_session(await self._services.approved_end(of), of)

    async def erase(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        forks: Forks = "refuse",
        actor: str | None = None,
    ) -> Erasure | None:
        """Forget the session: nothing of it can be read from the store afterwards.

        If the store has keys, they are destroyed first, and `erasure.certificate` is signed: it
        says what was erased, when and by which `actor`.

        A SQLite file is rewritten, so that nothing is left in its pages either, which takes
        time by its size. Raises StoreBusy if a reader of another process keeps old pages alive too
        long: the session is erased then, and calling again finishes the overwriting. A PostgreSQL
        server keeps the bytes until it vacuums and its WAL and backups are recycled.

        If other sessions are forks of it, SessionHasForks names them. forks="erase" erases them
        too; forks="keep" leaves them the state they began on, and they read the events before
        that as removed. A session that waits for it as its child learns that it has ended.
        """
        from limpet.session.erasure import erase_session

        check_forks(forks)
        of = key_of(key, user, id)
        by = self._services.eraser(check_actor(actor))
        services = await self._services.approved_end(of, forks=forks == "erase")
        try:
            return await erase_session(services, of, forks, by)
        except SessionHasForks as error:
            raise SessionHasForks(of, await self._services.visible(error.forks)) from None

    async def erase_user(self, app: str, user: str, *, actor: str | None = None) -> Erasures:
        """Forget a user of an app: every session, deleted ones too, and every user: name.

        All at once as far as readers can see, and a SQLite file is rewritten once. The certificate
        counts sessions and names, and names the forks of other users, which keep the state they
        began on. Documents of the user are erased too; app: names stay. Sessions of other apps that
        wait for one of these as their child learn that it has ended. Those that these delegated to
        in other apps stay and are named in `children`: erase the user there too. Repeating it is
        harmless and finishes what was interrupted. Raises StoreBusy as `erase` does. If the store
        has keys, `erasures.certificate` is signed: see `erase`.
        """
        from limpet.session.erasure import erase_user

        key_of(Key(app, user, "any"))  # refuses what could not be one
        by = self._services.eraser(check_actor(actor))
        services = await self._services.approved_user_end(app, user)
        done, visible = await erase_user(services, app, user, by), self._services.visible
        forks, children = await visible(done.forks), await visible(done.children)
        return replace(done, forks=forks, children=children)

    # --- the audit ---------------------------------------------------------------------------

    async def audit(
        self,
        since: datetime | None = None,
        *,
        principal: str | None = None,
        session: AnyKey | None = None,
        denied: bool | None = None,
        app: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[AuditRecord]:
        """Return decisions about access, the newest first: every denial, every sensitive operation
        and every failed authentication.

        Of one principal ("user:ada"), about one session, only denials (denied=True) or none of
        them, of one app. `page.cursor` leads on; a page that passed over many records is short.
        Only auditors and admins may read it, of their own app if they have one. Raises
        AccessDenied.
        """
        from limpet.session.audit import approved_audit, audit_query

        query = audit_query(app, since, principal, session, denied=denied)
        services, query = await approved_audit(self._services, query)
        return await services.journal.audit.page(query, limit=check_limit(limit), cursor=cursor)

    async def export_audit(
        self,
        path: str | Path,
        *,
        app: str | None = None,
        since: datetime | None = None,
        principal: str | None = None,
        session: AnyKey | None = None,
        denied: bool | None = None,
    ) -> AuditExport:
        """Write the audit to a file of JSON lines that `limpet.check_audit` checks offline.

        The file must not exist yet. It has the chain of every log; of records that were not asked
        for only the digest. Note the links in the answer: with them the file cannot be replaced by
        another. A store with keys signs it, too.
        """
        from limpet.session.audit import approved_audit, audit_query, export_audit

        query = audit_query(app, since, principal, session, denied=denied)
        services, query = await approved_audit(self._services, query)
        return await export_audit(services.journal, path, query)

    # --- what agents have learned ----------------------------------------------------------------

    async def learnings(self, agent: str) -> tuple[Learning, ...]:
        """Return what sessions of this agent have learned, each lesson once."""
        from limpet.session.runs.learnings import all_learnings

        return tuple(await all_learnings(self._journal, agent))

    async def promote(
        self,
        agent: str,
        learning: Learning,
        *,
        session: AnyKey | None = None,
        actor: str | None = None,
    ) -> Document:
        """Take a learning into the agent's curated memory: lp.memory_of(agent) shows it.

        Raises PromotionRefused unless the gates of the agent hold (lp.policies.gates). Those on an
        outcome are about `session`, which has to be one that learned it; it records the promotion.
        """
        from limpet.session.runs.promotion import promote

        of = None if session is None else key_of(session)
        return await promote(self._services, agent, learning, session=of, actor=check_actor(actor))

    async def propose(
        self,
        text: str,
        *,
        provenance: AnyKey,
        confidence: float,
        to: str,
        ttl: timedelta | None = None,
        actor: str | None = None,
    ) -> Proposal:
        """Propose something that a session found out to the memory of an agent ("agent:NAME") or
        an organisation ("org:NAME").

        The gates of that memory judge it (lp.policies.promotion): without others, a person decides,
        whom `lp.inbox` shows it to. What is accepted leaves the memory after `ttl`, or when the
        gates say so. The session records proposal and decision.
        """
        from limpet.session.runs.promotion import propose

        return await propose(
            self._services,
            text,
            provenance=key_of(provenance),
            confidence=confidence,
            to=to,
            ttl=ttl,
            actor=check_actor(actor),
        )

    async def proposals(
        self, status: ProposalStatus | None = None, *, session: AnyKey | None = None
    ) -> tuple[Proposal, ...]:
        """Return what was proposed, the oldest first: open, accepted, refused, expired, withdrawn;
        of one session or of all."""
        from limpet.session.runs.promotion import proposals

        of = None if session is None else key_of(session)
        return await proposals(self._services, status, of)

    async def decide(
        self, proposal: Proposal | str, *, accept: bool, reason: str, actor: str | None = None
    ) -> Proposal:
        """Decide about an open proposal, or its id. The other gates are asked too: what they do not
        let pass is refused, with their reason. Raises ProposalNotFound, ProposalDecided."""
        from limpet.session.runs.promotion import decide

        by = check_actor(actor)
        return await decide(self._services, proposal, accept=accept, reason=reason, actor=by)

    async def recall(self, to: str) -> tuple[MemoryItem, ...]:
        """Return the items in the memory of an agent or organisation that have not expired."""
        from limpet.session.runs.promotion import recall

        return await recall(self._journal, to)

    async def withdraw(
        self, session: AnyKey, *, reason: str = "withdrawn", actor: str | None = None
    ) -> int:
        """Remove everything that one session contributed to any memory, also after it was deleted.
        Returns how many items went. Who may erase the session may do this."""
        from limpet.session.runs.promotion import withdraw

        key = key_of(session)
        services = await self._services.approved_end(key)
        by = self._services.eraser(check_actor(actor))
        return await withdraw(services, key, reason, by)

    async def memory_of(self, agent: str) -> str:
        """Return the agent's MEMORY.md: what was promoted, by kind; empty if nothing was."""
        from limpet.session.runs.promotion import memory_text

        return await memory_text(self._journal, agent)

    # --- private ---------------------------------------------------------------------------------

    def _with(self, services: Services) -> Limpet:
        """This Limpet with other services; its store is not its own to close."""
        lp = Limpet(self.url)
        lp._opened = services
        return lp

    @property
    def _services(self) -> Services:
        """Return what the sessions of this store share. Raises StoreClosed."""
        if self._opened is None:
            raise StoreClosed
        self._opened.journal.check_open()
        return self._opened

    @property
    def _journal(self) -> Journal:
        """The one way to write. Raises StoreClosed."""
        return self._services.journal


def journal_of(lp: Limpet) -> Journal:
    """Return the way to write to a Limpet's store, for the rest of the package.

    Raises StoreClosed.
    """
    return lp._journal


async def at_work(lp: Limpet, key: Key) -> Limpet:
    """Return the Limpet that a wake of this session works with: one that acts as an agent acts for
    the session's user alone. Raises AccessDenied, SessionNotFound."""
    services = lp._services
    if services.guard is None:
        return lp
    from limpet.session.acting import for_session

    return lp._with(await for_session(services, key, services.guard))


def bind_runtime(run_turn: RunTurn) -> None:
    """Let `lp.wake` run turns by this function: `limpet` does, when it is imported."""
    Limpet._run_turn = staticmethod(run_turn)


async def _open_archived(session: Session[Any], tail: int, *, archived: bool) -> Session[Any]:
    """An archived session as its file has it, to be read. Raises SessionArchived unless asked."""
    from limpet.session.life.archive import read_archived

    if not archived:
        raise SessionArchived(session.key)
    if archive_place(session.head.facts) is None:  # its log is still here
        return session
    writer = writer_of(session)
    system = await writer.services.permitted("read", session.key)  # before its file is opened

    def again(services: Services) -> Session[Any]:
        untyped = not writer.classless
        return Session(
            services, session.key, actor=session.actor, typed=writer.typed, untyped=untyped
        )

    services = writer.services
    try:
        apart = await read_archived(system, session.head)
    except ArchiveFailed:
        now = again(writer.services)
        await writer_of(now).load(tail=tail, stub=True)
        if now.head.uid == session.head.uid:
            raise
        # It was unarchived meanwhile, and the file that its stub named is gone.
        is_back = now.head.phase != ARCHIVED
        return now if is_back else await _open_archived(now, tail, archived=archived)
    if services.guard is not None:
        from limpet.session.acting import acting

        apart = acting(apart, services.guard)
    opened = again(apart)
    await writer_of(opened).load(tail=tail)
    return opened


def _with_task(labels: FrozenDict, task: str | None) -> FrozenDict:
    """The labels of a query for the sessions of a task too."""
    if task is None:
        return labels
    return FrozenDict({TASK: task, **labels})


def _open_archive(archive: str | Archive | None) -> Archive | None:
    if not isinstance(archive, str):
        return archive
    from limpet.session.life.archive_storage import open_archive  # most stores have none

    return open_archive(archive)


# --- the sessions of one app ---------------------------------------------------------------------


class App(Generic[A]):
    """The sessions of one app. `A` is what their state is: a State class, or else a mapping.

    What the code of an app would repeat at every call is bound once, in `lp.app(…)`; each verb
    hands it to the verb of Limpet with the same name.
    """

    def __init__(
        self,
        lp: Limpet,
        name: str,
        *,
        state_type: type[A] | None = None,
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
        state: A | None = None,
        labels: Mapping[str, str] = _NONE,
        actor: str | None = None,
        reuse_deleted: bool = False,
        phase: Phase = "active",
        timeouts: Timeouts | None = None,
        agent: str | None = None,
        environment: str | None = None,
        budget: Budget | float | None = None,
        isolation: Isolation | None = None,
    ) -> Session[A]:
        """A new session. Without a state it begins with the defaults of the class, or empty.

        Raises SessionExists; InvalidInput if the class needs arguments and no state is given.
        """
        lp: Any = self._lp  # the overloads take a class, or none
        made: Session[A] = await lp.create(
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
    ) -> Session[A]:
        """The session with its state and its last events: see Limpet.get."""
        lp: Any = self._lp
        session: Session[A] = await lp.get(
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
    ) -> Session[A] | None:
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
        state: A | None = None,
        labels: Mapping[str, str] = _NONE,
        tail: int = 20,
        actor: str | None = None,
        isolation: Isolation | None = None,
    ) -> Session[A]:
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
    ) -> Session[A]:
        """A handle, without I/O: see Limpet.session."""
        lp: Any = self._lp
        handle: Session[A] = lp.session(
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

    def _begin(self, state: A | None) -> Any:
        """Return the state of a new session; of the class of the app, if it has one."""
        of = self.state_type
        if of is None:
            return _NONE if state is None else state
        if state is None:
            return _defaults(of)
        if type(state) is not of:  # a get would read it as another class than wrote it
            raise SchemaViolation("state", f"a {of.__name__}, as this app has", described(state))
        return state


async def _resume_on_input(services: Services, key: Key) -> None:
    """Bound to the services of a store: writing comes before the transitions that it may cause."""
    from limpet.session.life.transitions import resume_on_input

    await resume_on_input(Session(services, key, untyped=True))


def _defaults(of: type[A]) -> A:
    """The state that a class makes of nothing."""
    try:
        return of()
    except SchemaViolation as error:
        raise InvalidInput(
            f"{of.__name__}() needs {error.field}, so a session cannot begin without a state. Pass "
            f"state={of.__name__}({error.field}=…), or give the field a default."
        ) from error
