"""Limpet: the sessions of one store, and the way to them."""

from __future__ import annotations

import os
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
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
    SessionMoved,
    SessionNotFound,
    StoreClosed,
    StoreFailed,
)
from limpet.model import Draft, Event, FrozenDict, Head, Key, Lease, described, to_time, unfit
from limpet.model.facts.isolation import TASK, Isolation
from limpet.model.facts.moves import departure, last_epoch
from limpet.model.facts.phases import ARCHIVED, Phase, archive_place, is_stub, rule
from limpet.model.facts.running.budgets import Budget
from limpet.model.facts.running.runs import Status
from limpet.model.facts.timeouts import Timeouts
from limpet.model.facts.view import Facts
from limpet.model.keys import Ids
from limpet.model.lease import Readiness
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
    check_move,
    check_progress,
    check_reclaim,
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
from limpet.session.creation import Begin, creation, is_plain, learn_switches, set_up
from limpet.session.documents import Document, Documents
from limpet.session.follow import feed_of, watch_feed
from limpet.session.history.checkpoints import journal_with_checkpoints
from limpet.session.journal import Journal
from limpet.session.keys import StoreKeys
from limpet.session.life.lifecycle_policy import LIFECYCLE_ACTOR, Function, Transition
from limpet.session.maintenance import StoreMaintenance
from limpet.session.move.nodes import HOPS_MAX, Nodes, check_nodes, unnamed
from limpet.session.policies import StorePolicies
from limpet.session.provenance import Provenance
from limpet.session.runs.runs import RETRIES, Harness, OnMismatch, WakeOptions, Woken
from limpet.session.runs.setup import Permission, Permissions, Vaults
from limpet.session.services import Metrics, Services
from limpet.session.session import Session
from limpet.session.work import StoreWork
from limpet.session.writer import append_unloaded, writer_of
from limpet.store import cursor as cursors
from limpet.store.cursor import check_position
from limpet.store.open import TLS, open_store, refuse_missing, scheme_of
from limpet.store.pages import each_page, without_departed
from limpet.store.protocol import (
    Checked,
    Erasure,
    Erasures,
    FeedEntry,
    Forks,
    KeepsMirror,
    Order,
    Page,
    Performs,
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
    from limpet.session.move.arrivals import Arrivals
    from limpet.session.move.mover import DrainReport, Moved, Prestaged
    from limpet.session.move.reclaim import Reclaimed
    from limpet.session.move.routes import Home
    from limpet.session.move.transfer import Copied
    from limpet.session.overview import StoreStatus, Waiting
    from limpet.session.relations import SessionGraph
    from limpet.session.runs.learnings import Learning
    from limpet.session.runs.promotion import MemoryItem, Proposal, ProposalStatus
    from limpet.session.runs.spawn import Children

S = TypeVar("S", bound="State")
if TYPE_CHECKING:  # typing.TypeVar takes a default from Python 3.13 on
    A = typing_extensions.TypeVar("A", default=Any)
    T = typing_extensions.TypeVar("T", bound="State | Mapping[str, Any]", default=Mapping[str, Any])
else:
    A = TypeVar("A")
    T = TypeVar("T")
MoveTarget: TypeAlias = "Limpet | Adopter"
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
    """An open store. Open one with `async with limpet.open(url) as lp`.

    Every call that uses the store may raise StoreError (StoreClosed after `close`), and
    AccessDenied if it acts for a principal. A wrong argument raises InvalidInput.
    """

    # `wake` runs a turn with it. The runtime stands above this room: the package binds it, once.
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
        seal_for: str | None = None,
        node: str | None = None,
        nodes: Mapping[str, str | Limpet] | None = None,
        follow_moves: bool = False,
    ) -> None:
        served = isinstance(url, str) and url.lower().startswith(("http://", "https://"))
        if served and store is None:
            local = {"seal": seal, "keys": keys, "archive": archive, "policies": policies}
            for name, given in local.items():
                if given is not None:
                    raise InvalidInput(f"{name}= belongs to the store. Pass it to limpet serve.")
        elif seal_for is not None:
            raise InvalidInput(
                "seal_for= is for a server. A store that is opened has its own keys."
            )
        if store is not None and (seal is not None or keys is not None):
            raise InvalidInput("a store that is open has its own seal. Pass the seal to it.")
        if seal is not None and keys is not None:
            raise InvalidInput("keys make a seal of their own. Pass a seal or keys.")
        if keyring is not None and keys is None:
            raise InvalidInput("a key ring is opened with keys. Pass keys= beside keyring=.")
        check_flag("follow_moves", follow_moves)
        self._node, self._nodes = check_nodes(node, nodes)
        for name, place in self._nodes.items():
            if not isinstance(place, (str, Limpet)):
                raise InvalidInput(
                    f"node {name!r} is a URL or limpet.open(url, …), not {described(place)}."
                )
        self._follow_moves = follow_moves
        self.url = url
        self._keys, self._keyring, self._provenance = keys, keyring, provenance
        self._seal, self._connections, self._check = seal, connections, check
        self._token, self._tls, self._seal_for = token, tls, seal_for
        self._policies = policies
        self._ready = store  # opened by the caller, and ours to close
        self._archive = _open_archive(archive)
        self._opened: Services | None = None

    def __repr__(self) -> str:
        """Show its URL, unless a password may be in it."""
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
                seal_for=self._seal_for,
            )
        ids = Ids(time.time_ns, os.urandom)
        metrics = Metrics()
        if isinstance(store, Performs):  # on a server that performs verbs
            from limpet.session import served_verbs  # noqa: F401  # how they travel
        journal = journal_with_checkpoints(store, ids, store.now_us, metrics)
        journal.provenance, journal.policies = provenance, policies
        if policies is not None:
            policies.now_us = store.now_us
        if not given and self._seal is None and scheme_of(self.url) in _REOPENED:
            journal.reopen = self._store_again
        self._opened = Services(
            journal,
            journal,
            metrics,
            {},
            _resume_on_input,
            self._archive,
            nodes=Nodes(self.node, self._nodes, self._open_node, receiving),
        )
        if isinstance(store, KeepsMirror) and store.mirror_directory is not None:
            from limpet.session.move.mirror_follower import MirrorFollower

            follower = MirrorFollower(self._opened, store.mirror_directory, store.mirror_mark)
            follower.start()
            journal.mirror = follower
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
        """Finish pending writes and close the store. Closing twice is fine.

        Events queued by append_soon are flushed first. Raises FlushFailed if some could not be
        recorded; Limpet is closed all the same.
        """
        if self._opened is not None:
            if self._opened.guard is None and self._opened.nodes is not None:
                await self._opened.nodes.close()
            await self._opened.journal.close()
        elif self._ready is not None:
            await self._ready.close()

    def acting_as(
        self, principal: Principal, *, address: str | None = None, session: AnyKey | None = None
    ) -> Limpet:
        """Return the same verbs for a principal: every read and write is checked.

        Its writes have `principal.id` as their actor; another actor is refused. Lists, feeds and
        claims show only what the principal may see. It shares everything with this Limpet, and
        closing it has no effect. A principal can only be narrowed: one that may do more raises
        AccessDenied. `address` is where the requests come from, for policies and the audit. With
        `session` every other session is refused, as a token is for one: pass `claims.key`.
        """
        from limpet.security.access import Principal
        from limpet.security.tokens import check_address
        from limpet.session.acting import acting_as

        if not isinstance(principal, Principal):
            raise InvalidInput(
                f"acting_as takes a limpet.Principal, not {described(principal)}. Make one: "
                "limpet.Principal('user:ada', role='owner', app='support', user='ada')."
            )
        only = None if session is None else key_of(session)
        return self._with(acting_as(self._services, principal, check_address(address), only))

    @property
    def node(self) -> str:
        """The name of this store among the nodes that sessions move between."""
        return self._node or unnamed(str(self.url), id(self))

    async def _open_node(self, place: str | Limpet) -> tuple[Limpet, bool]:
        """Another node, open, and True if that happened here: a URL is entered as this store was,
        a Limpet that was not opened yet with what it was given. Raises StoreUnopened if there is
        none: a node that is gone does not begin again as an empty store."""
        if isinstance(place, Limpet):
            if place._opened is not None:
                return place, False
            if place._ready is None:
                await refuse_missing(place.url)
            return await place, True
        await refuse_missing(place)
        served = place.startswith(("http://", "https://"))
        entry: dict[str, Any] = {"token": self._token, "tls": self._tls} if served else {}
        return await Limpet(place, **entry), True

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
        """The keys of a store that was opened with them: status, rotation, public key."""
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
        """Definitions of the environments that agents run in."""
        return Documents(self._journal, "environments")

    @property
    def resources(self) -> Documents:
        """The resources that sessions work on: their locations, and whether sessions may change
        them."""
        return Documents(self._journal, "resources")

    @property
    def permissions(self) -> Permissions:
        """Permissions for tools: {"tools": {"refund": "always_ask", "*": "deny"}}."""
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
        `owner=(app, user)` they belong to that user and are erased with the user. `actor` is bound
        to the collection. Raises InvalidInput for a malformed name.
        """
        of = _CHECKED.get(collection, Documents) if type(collection) is str else Documents
        if collection == "moves":
            from limpet.session.move.arrivals import MoveDecisions

            of = MoveDecisions
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
        """Create a session and return it. Its first event holds the given state. Raises
        SessionExists; SessionMoved if the session of that key is at another node.

        The state is a dict, an object of a State class (the session is then typed), or an Envelope.
        The session keeps an envelope's schema version, so a load with a class migrates or refuses
        it; without a class its fields are not changed, unless `untyped` (see get). An actor given
        here is bound to the session; otherwise the user is its creator. The key of a deleted
        session stays taken (SessionDeleted), unless `reuse_deleted`; that of an archived session
        always does. With phase="init" it accepts everything and runs nothing until s.activate().
        `timeouts` override those of the app's policy (lp.policies.lifecycle). `agent` ("support",
        "support@3") and `environment` name documents; the session keeps their versions, and takes
        the resources and vaults that the agent's definition names. `budget` limits its use.
        `isolation` sets who may use it, permanently; by default only its user.
        """
        services = self._services
        setup = await set_up(services.journal, agent, environment, budget)
        if timeouts is None:
            await learn_switches(services, app)
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
            setup=setup.first,
            isolation=isolation,
        )
        session = new.session
        drafts = new.drafts_with(services.journal, setup.attached)
        try:
            (committed,) = await services.journal.commit((new.commit(drafts[1:]),))
        except SessionDeleted:
            await writer_of(session).refuse_elsewhere()
            raise
        except SessionExists:
            from limpet.session.move.routes import refuse_departed

            await refuse_departed(services, session.key)  # which has its key as long as its rows
            raise
        except StoreFailed as error:  # its draft cannot be sent again: a creation takes no id of it
            raise type(error)(error.where, error.reason, "create") from error
        writer_of(session).known.begin(committed, drafts)
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
        both, the last `tail` among those. Large events are limited to the newest that fit about 16
        MiB.

        With a `state_type` its state is of that class; state stored under another MAJOR is migrated
        by `migrations`, which is recorded, or MigrationError is raised. Without one, typed state
        can be read but not changed (SessionTyped), unless `untyped`: then writes bypass its class.
        `actor` is bound to the session. `at_least` is the token of a commit (c.token) that the read
        must include. Raises SessionNotFound; SessionArchived, unless `archived`: then it is read
        from the archive; SessionMoved if it is on another node, unless this store was opened with
        follow_moves=True and knows that node: then it is opened there.
        """
        key, lp, epoch = key_of(key, user, id), self, 0
        for hop in range(HOPS_MAX + 1):
            try:
                session: Session[T] = await lp._get(
                    key,
                    state_type=state_type,
                    migrations=migrations,
                    tail=tail,
                    since=since,
                    at_least=at_least if lp is self else "",
                    actor=actor,
                    untyped=untyped,
                    archived=archived,
                )
                return session
            except SessionMoved as moved:
                nodes = self._services.nodes
                if not self._follow_moves or hop == HOPS_MAX or moved.epoch <= epoch:
                    raise
                there = None if nodes is None else await nodes.limpet(moved.to)
                if there is None:
                    raise
                guard = self._services.guard
                if guard is not None:  # it may do there what it may do here, and no more
                    there = there.acting_as(guard.principal)
                lp, epoch = there, moved.epoch
        raise AssertionError("the last hop returns or raises")

    async def _get(
        self,
        key: Key,
        *,
        state_type: type[T] | None,
        migrations: MigrationRegistry | None,
        tail: int | None,
        since: datetime | None,
        at_least: str,
        actor: str | None,
        untyped: bool,
        archived: bool,
    ) -> Session[T]:
        """The session, if it is at this node."""
        check_flag("archived", archived)
        services = self._services
        typed = typed_of(state_type, migrations, untyped=untyped)
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
        """Return what `get` returns, or None if the session is missing or deleted.

        Raises what else `get` raises: SessionArchived, SessionMoved, MigrationError.
        """
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

        If the state is an object of a State class, the session is typed in both cases. An existing
        session keeps its own isolation. Raises SessionDeleted or SessionArchived if the key is
        taken by a session that is gone; MigrationError.
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
        """Return many sessions as get does, in the order of the keys; None for one that is missing,
        archived or on another node.

        Takes up to 1,000 keys, in as few round trips as the store allows. Each session is read at
        one instant, but not all at the same one. Typed state can be read but not changed; use get
        for that. Raises InvalidInput for more than 1,000 keys.
        """
        if isinstance(keys, str) or not isinstance(keys, Iterable):
            raise InvalidQuery(f"get_many takes a list of keys, not {described(keys)}")
        wanted = [key_of(key) for key in keys]
        if len(wanted) > PAGE_MAX:
            raise InvalidQuery(
                f"it asks for {len(wanted):,} keys at once; the limit is {PAGE_MAX:,}"
            )
        loadings = await self._journal.store.load_many(wanted, tail=check_tail(tail))
        sessions: list[Session[Mapping[str, Any]] | None] = []
        for key, loaded in zip(wanted, loadings, strict=True):
            gone = loaded is None or departure(loaded.head.facts) is not None
            if loaded is None or gone or is_stub(loaded.head.facts):
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

        With a `lease` of this session, its writes are refused once the lease is no longer held. See
        get for `untyped`. Raises InvalidInput for a malformed key; a missing session is noticed at
        its first call.
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
        """Return the verbs for one app, without I/O, with its class, migrations and actor bound.

        `support = lp.app("support", state_type=Support)`, then `await support.get("ada", "c1")`.
        See get for `untyped`. Raises InvalidInput for a malformed name.
        """
        self._journal.check_open()
        typed_of(state_type, migrations, untyped=untyped)  # refuses what every verb would refuse
        bound: dict[str, Any] = {"state_type": state_type, "migrations": migrations}
        return App(self, name, actor=actor, untyped=untyped, **bound)

    # --- finding ---------------------------------------------------------------------------------

    async def graph(
        self,
        root: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        *,
        limit: int = 1_000,
    ) -> SessionGraph:
        """Return the sessions connected with `root`, and their edges, nearest first.

        Parents and children, forks, merges and relations are followed in both directions, up to
        `limit` sessions. A deleted session is a node without a phase. Raises SessionNotFound.
        """
        from limpet.session.relations import GRAPH_NODES_MAX, session_graph

        if type(limit) is not int or not 1 <= limit <= GRAPH_NODES_MAX:
            raise InvalidQuery(f"limit is a number from 1 to {GRAPH_NODES_MAX:,}.")
        return await session_graph(self._journal.store, key_of(root, user, id), limit)

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
        """Start a child of an active session from outside its turns; turns use delegate.

        The child gets the `task` as its first message, copies of the parent's `fields`, only the
        given `tools`, and `budget_fraction` of the remaining budget. It has the same app and user,
        its own task, and is kept as long as its parent. When it ends, the same commit notifies the
        parent and returns the rest of the budget; until then the parent cannot be completed. The
        same `id` and task return the same child.

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

        After `timeout` seconds it returns which children are done and which are pending; with 0 it
        does not wait. If the process dies nothing is lost: call it again elsewhere. Raises
        SessionNotFound, SessionDeleted.
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
        phase: Phase | None = None,
        status: Status | None = None,
        ready: Readiness | None = None,
        deleted: bool = False,
        state: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Head]:
        """Return a page of heads, newest first; `page.cursor` leads to the next.

        Filter by app, app and user, labels ({"plan": "gold"}), or the `task` of their isolation
        (within an app, or a user of it). Order by creation, by last update (within an app or a
        user), or by key (order="key": within an app, or a user and a `prefix` of ids; descending
        unless reverse=False). Times, schema version and `phase` filter in each of these orders. A
        page before the last may be short or even empty: continue while there is a cursor. Sessions
        of a phase other than active, of all apps or one, have their own index, in the order in
        which this store received them. `status` (as `s.status`) and `ready` ("leased", "due",
        "blocked", "dead", "held" or "idle") are as of now; they go with the order of creation and
        without a phase.

        `deleted=True` lists the heads of deleted sessions by key, with key, uid, version, link,
        times and `deleted_at`. `state=True` also reads states: `page.states[key]` is what `values`
        of a loaded session would show, without temp: names. A session with an unreadable event is
        in `page.damaged` instead. Raises InvalidCursor if the cursor is not from such a list,
        InvalidQuery if filters and order do not go together.
        """
        check_flag("deleted", deleted)
        check_flag("state", state)
        if deleted and state:
            raise InvalidQuery("a deleted session has no state: leave out state=True")
        query = Query(
            app=check_sessions(app),
            user=user,
            lent=user is None,  # to a principal of one user: see `GuardedStore.heads`
            labels=_with_task(cursors.labels(labels), task),
            order=order,
            reverse=reverse,
            prefix=prefix,
            created_after_us=moment_us("created_after", created_after),
            created_before_us=moment_us("created_before", created_before),
            updated_after_us=moment_us("updated_after", updated_after),
            schema_version=schema_version,
            phase=phase,
            status=status,
            ready=ready,
            deleted=deleted,
        )
        cursors.check(query)  # the words of the store: a server could not read what is wrong
        store, limit = self._journal.store, check_limit(limit)
        page = await store.heads(query, cursor=cursor, limit=limit, states=state)
        return page if deleted else without_departed(page)

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
        phase: Phase | None = None,
        status: Status | None = None,
        ready: Readiness | None = None,
        deleted: bool = False,
    ) -> AsyncGenerator[Head, None]:
        """Yield every head that `list` returns, page after page: `async for head in
        lp.each(app=…)`.

        Takes the filters of `list`. Sessions created or changed meanwhile may be missed, or come
        twice when ordered by their last update. Raises as `list` does.
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
                phase=phase,
                status=status,
                ready=ready,
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
        """Return a page of requests that wait for an answer, the oldest first. Filter by app, user
        and kind ("approval", "question", "unknown_effect", "mismatch"). Proposals that wait for a
        person ("promotion") come after them.

        Answer a request with confirm, answer or resolve of `lp.session(waiting.key)`, a proposal
        with `lp.decide(waiting.request.id, …)`. The cost grows with the number of waiting requests
        and of proposals ever made, not with the store. A page before the last may be short:
        continue while there is a cursor. Raises InvalidCursor.
        """
        from limpet.session.overview import inbox_page
        from limpet.store.overview import WaitingQuery

        query = WaitingQuery(app=app, user=user, lent=user is None, kind=kind)
        return await inbox_page(self._services, query, limit=limit, cursor=cursor)

    async def status(self, app: str | None = None) -> StoreStatus:
        """Return the number of sessions by status and phase, and how many are due, leased, blocked
        and dead.

        It is one statement, which counts at most a million sessions. Raises InvalidInput for a
        malformed app.
        """
        from limpet.session.overview import status_of

        return await status_of(self._journal, app)

    async def names(self, app: str, user: str | None = None) -> Mapping[str, Any]:
        """Return the app: names of an app, and the user: names of a user, without a session.

        Read-only, as `values` of a session shows them. Unreadable names are left out. Raises
        InvalidInput for a malformed app or user.
        """
        from limpet.session.move.adopter import names_in

        Key(app, "any" if user is None else user, "any")  # refuses what could not be one
        names = names_in(self._journal)
        owners = ("",) if user is None else ("", user)
        fields = [scope_fields(await names.names_of(str(check_sessions(app)), o)) for o in owners]
        return FrozenDict({name: value for each in fields for name, value in each.items()})

    def watch(
        self, *, app: str | None = None, key: AnyKey | None = None, after: str | None = None
    ) -> AsyncGenerator[FeedEntry, None]:
        """Yield every event of the store, of an app or of one session, as it is recorded.

        Each entry has a `position`: restart with after=position to miss nothing and see nothing
        twice. Without `after` it starts at the first event; with `after=await lp.position()` it
        starts now. Deleted sessions leave the feed without an entry. Raises InvalidCursor if
        `after` is not a position of this store, and StoreError if the store fails for longer than
        it waits: watch again from the last position.
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
        """Return the current end of the feed: lp.watch(after=…) yields everything recorded later.

        On PostgreSQL it may also yield events recorded while an older transaction was open. Raises
        StoreError.
        """
        return await feed_of(self._journal.store).position()

    def now(self) -> datetime:
        """Return the time of the store's clock (UTC), which dates new events, without I/O.

        Compare recorded times with it. On PostgreSQL it is the server's time as of its last
        replies, which may differ from this machine's. Raises StoreClosed.
        """
        return to_time(self._journal.now_us())

    # --- writing and running ---------------------------------------------------------------------

    def commit(self) -> CommitBuilder:
        """Write to several sessions, all or nothing: `async with lp.commit() as c: …`.

        Returns a CommitBuilder. Leaving the block commits, or raises what refused it:
        SessionConflict, SessionNotFound, SessionFenced and the like; then nothing is recorded.
        """
        return CommitBuilder(self._services)

    async def flush(self) -> None:
        """Record everything that append_soon has queued, durably, each session in its order.

        One commit holds many events. If a session's events are refused, the others are still
        recorded, and it raises FlushFailed: `error.unrecorded` has key, drafts and reason for each
        session. These have left the queue; send them again with append_many, and no event is
        recorded twice. A cancelled flush leaves unrecorded events in the queue. Events queued
        meanwhile may wait for the next flush.
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
        """Run one bounded turn of this session, if there is work: `woken.ran`, `woken.reason`.

        The harness comes after the key: `wake(key, harness)`, `wake(app, user, id, harness)`. There
        is no payload: the work is in the log. An exception of the harness is not raised; it is
        recorded and returned as `woken.error`. The options are those of limpet.Worker. If another
        worker runs it, `reason` is "locked". Raises SessionNotFound, SessionDeleted.
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
        """Resume a suspended session by the whole protocol; return it with a report.

        restore: the newest checkpoint is verified; with `fallback`, an older one may stand in.
        rehydrate: `queries` (or the state's retrieval_queries) are answered from the cache if
        younger than `fresh_seconds`, else by `retrieve(query)` within `deadline_seconds`, which is
        cached for `cache_seconds`; `tokens` less what was used, or what is left of the session's
        own budget, must leave `tokens_min`. rebind: tools as `tools` has them now, or else the
        registry of the app's lifecycle. reconstruct: these layers of `memory`. `report.context` has
        what the agent begins with: the `role` (a text, or a function of the session), state,
        evidence and memory. verify: six checks, `plan(session)` among them. Then it is resumed, and
        active unless activate=False, in one commit.

        Raises NoCheckpoint, NoFullCheckpoint, CheckpointIntegrity, InsufficientTokenBudget,
        RequiredToolUnavailable, ToolAuthorizationFailed, SessionIntegrity: it stays suspended then.
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
        """Bring an archived session back into the store, in the phase it had before; return the
        transition.

        Its file is verified first, and finally removed from the archive. If interrupted, call it
        again to continue. Raises InvalidTransition if it is not archived, ArchiveFailed.
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
        """Write the session's whole log, decrypted, to a file that can be verified offline.

        The file must not exist yet; it appears complete or not at all, readable by this user only.
        It contains blobs, checkpoints, and session and episodic memory, but not other snapshots or
        leases. A fork's file has the state it started from, not the log of its parent. Raises
        BundleRefused, and SessionCorrupt if an event cannot be read.

        Events whose types are in `redact` ("user.message", "agent.*") are represented by the
        digests of their bodies. Such a file has only the log: it can be checked with a receipt, but
        not imported.
        """
        from limpet.session.move.import_export import check_path, export_session
        from limpet.session.move.routes import gone_or_moved

        named, target = key_and((key, *then), path, "a path")
        to, hidden = check_path(target), check_types(redact) or ()
        services = await self._services.approved("move", named)
        async with gone_or_moved(services):
            await export_session(services.journal, named, to, memory=True, redact=hidden)

    async def import_(self, path: str | Path) -> Key:
        """Import the session in a file and return its key: the same events, times and links.

        The whole file is verified first: a truncated or modified one is refused and nothing is
        recorded (BundleDamaged). Importing again changes nothing, and completes an interrupted
        import. Raises SessionConflict if the store has another log under the key, SessionDeleted or
        SessionErased if the session was deleted or erased there, SessionMoved if it has moved away
        from there. It writes no app: or user: names.
        """
        from limpet.session.move.import_export import check_path, import_session
        from limpet.session.move.routes import gone_or_moved

        path, guard = check_path(path), self._services.guard
        if guard is not None:  # before the file of a stranger is looked at
            of = guard.principal
            await self._services.approved_app("move", of.app, of.user)
        async with gone_or_moved(self._services):
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
        check: bool = False,
    ) -> Copied:
        """Copy one session, an app, one of its users, or everything to another store; return the
        counts.

        Events keep their ids, times and links. Calling it again sends only what is missing, also
        after an interruption. Without a key it also sets the app: and user: names that the target
        never had; with a key, `left_out` names them instead. Copying one session raises what
        prevents it (SessionConflict, SessionDeleted, SessionCorrupt, …); among many, `refused`
        names the sessions that were not copied. `progress(done, total)` counts events.

        With `app` and `user` it copies that family of sessions, to move it to another tier. `check`
        then compares every log with its copy (`checked`) and names those that differ in `refused`.
        """
        from limpet.session.move.adopter import Adopter
        from limpet.session.move.transfer import Transfer

        if key is not None and app is not None:
            raise InvalidInput("copy takes a key or an app, not both. Leave one out for the other.")
        if isinstance(key, str) and user is None and id is None:
            raise InvalidInput(f"copy takes a key, not {described(key)}. Name an app by app=….")
        family = None
        if app is not None and user is not None and id is None:
            family, user = check_app(user), None
        one = one_or_all(key, user, id, reserved=True)
        if check and one is not None:
            raise InvalidInput("check is for an app, a user of it, or everything.")
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
        if one is not None:
            return await transfer.one(one)
        copied = await transfer.all(app, family)
        return await transfer.check(copied, app, family) if check else copied

    @overload
    async def move(
        self,
        key: AnyKey,
        to: MoveTarget,
        *,
        deadline: float = ...,
        checkpoints: int = ...,
        tools: ToolRegistry | None = None,
        force: bool = False,
        progress: Progress | None = None,
    ) -> Moved: ...

    @overload
    async def move(
        self,
        app: str,
        user: str,
        id: str,
        /,
        to: MoveTarget,
        *,
        deadline: float = ...,
        checkpoints: int = ...,
        tools: ToolRegistry | None = None,
        force: bool = False,
        progress: Progress | None = None,
    ) -> Moved: ...

    async def move(
        self,
        key: Any,
        *then: Any,
        to: Any = None,
        deadline: float = 30.0,
        checkpoints: int = 3,
        tools: ToolRegistry | None = None,
        force: bool = False,
        progress: Progress | None = None,
    ) -> Moved:
        """Move a live session to another store and return how it went. From then on, this store
        raises SessionMoved for it.

        At most one store can write the session at any time. If either store or this process
        crashes, the next `move`, or a sweep that knows the node, finishes the move. It returns
        within `deadline` seconds. A turn in progress is waited for until then; with `force` it is
        ended, and its effects become unknown. It is refused while the session has open children or
        a parent, if its key is taken, or by lp.policies.arrivals at the target. `tools` are those
        of the target. The newest `checkpoints` keep their states. If the move did not happen,
        `moved.reason` says why.
        """
        from limpet.session.move.mover import Mover

        named, target = key_and((key, *then), to, "another store, as in lp.move(key, other)")
        check_move(deadline, checkpoints, force=force)
        done = check_progress(progress)
        services = await self._services.approved("move", named)
        arrivals = await self._arrivals(target, (named,))
        mover = Mover(
            services,
            self.node,
            arrivals,
            deadline=deadline,
            checkpoints=checkpoints,
            tools=tools,
            force=force,
            progress=done,
        )
        try:
            return await mover.move((named,))
        except SessionArchived:
            if services.archive is None:
                raise
        await self.unarchive(named)
        return await mover.move((named,))

    async def prestage(
        self, key: Any, *then: Any, to: Any = None, progress: Progress | None = None
    ) -> Prestaged:
        """Send ahead what a later move to the same store would send, while the session runs; return
        how much that was.

        It stays active here, and the target neither lists nor claims it. Raises SessionNotFound,
        SessionMoved; SessionExists, SessionDeleted or SessionErased if the target has its key.
        """
        from limpet.session.move.mover import Mover

        named, target = key_and((key, *then), to, "another store, as in lp.prestage(key, other)")
        done = check_progress(progress)
        services = await self._services.approved("move", named)
        arrivals = await self._arrivals(target, (named,))
        return await Mover(services, self.node, arrivals, progress=done).prestage(named)

    async def drain(
        self,
        to: Any,
        *,
        app: str | None = None,
        deadline: float = 30.0,
        force: bool = False,
        progress: Progress | None = None,
    ) -> DrainReport:
        """Move every session of an app, or of the store, to another store, parents and children
        together.

        Returns a report of what moved and what did not. Calling it again continues where it
        stopped. `progress(done, total)` counts sessions. Raises as `move` does for the whole; a
        session that cannot move is in the report.
        """
        from limpet.session.move.mover import drain

        check_move(deadline, 0, force=force)
        done, app = check_progress(progress), check_sessions(app)
        services = await self._services.approved_app("move", app)
        arrivals = await self._arrivals(to, (), app=app)
        limits = (deadline, force)
        return await drain(services, self.node, arrivals, app, *limits, progress=done)

    async def reclaim(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        target_is_lost: str,
        epoch: int,
        reason: str,
        actor: str | None = None,
    ) -> Reclaimed:
        """Take back a session whose target is lost for good: from then on it is active here, in a
        new epoch. Return the epoch, and the family that left with it and came back with it.

        `target_is_lost` and `epoch` are what SessionMoved said (`to` and `epoch`): by naming them
        you state that nobody runs that store any more. What it recorded since is not here. Only an
        admin of the app may do this. If the target comes back, no move accepts its copy, and
        doctor names it. Raises ReclaimRefused if the session is not away so, if a node that this
        store knows answers as the target, or if its rows were removed here.
        """
        from limpet.session.move.reclaim import Statement, reclaim
        from limpet.session.move.routes import MOVER

        named = key_of(key, user, id)
        check_reclaim(target_is_lost, epoch, reason)
        by = await self._services.actor(check_actor(actor) or MOVER, named)
        await self._services.approved_app("move", named.app)
        services = await self._services.approved("move", named)
        return await reclaim(services, Statement(named, target_is_lost, epoch, reason, by))

    async def home(
        self, key: AnyKey | str, user: str | None = None, id: str | None = None, /
    ) -> Home | None:
        """Return the node that owns a session, as far as this store knows, and since which epoch.

        None if the session is unknown here, or has never moved and this node has no name. Raises
        InvalidInput for a malformed key.
        """
        from limpet.session.move.routes import Home, route_of
        from limpet.session.runs.delegation import head_of

        named = key_of(key, user, id)
        services = self._services
        if services.guard is not None:
            from limpet.security.access import Resource

            await services.guard.check("inspect", Resource.of(named))
            services = services.system
        head = await head_of(services.journal, named)
        if head is None:
            return await route_of(services, named)
        away, epoch = departure(head.facts), last_epoch(head.facts)
        if away is not None:
            return Home(away["to"], epoch)
        if not epoch and self._node is None:
            return None
        return Home(self.node, epoch)

    async def _arrivals(self, to: Any, keys: Sequence[Key], *, app: str | None = None) -> Arrivals:
        """The side of another store that receives sessions. Raises AccessDenied."""
        from limpet.session.move.adopter import Adopter
        from limpet.session.move.arrivals import Arrivals

        of: Any = getattr(to, "of", to)
        if of is self or (isinstance(of, Limpet) and of._services.system is self._services.system):
            raise InvalidInput("both are the same store. Open another one to move to.")
        if not isinstance(of, Limpet):
            raise InvalidInput(
                f"move needs another store to move to, not {described(to)}. Open one and pass it: "
                "await lp.move(key, other)."
            )
        if of.node == self.node:
            raise InvalidInput(f"both stores are node {self.node!r}. Open them with other names.")
        services = of._services
        if services.guard is not None:
            from limpet.security.access import Resource

            for key in keys:
                await services.guard.check("move", Resource.of(key))
            if not keys:
                services = await services.approved_app("move", app)
            # An admin is believed what another store has recorded; of others it is decided.
            if services.guard is not None and services.guard.principal.role == "admin":
                services = services.system
        arrivals = Arrivals(services, of.node)
        lent: Any = to  # by a Limpet that has its own loop
        return lent.receiving(arrivals) if isinstance(to, Adopter) else arrivals

    async def delete(
        self, key: AnyKey | str, user: str | None = None, id: str | None = None, /
    ) -> bool:
        """Delete the session's log. Its key stays taken. Return False if there was nothing to
        delete.

        A parent that waits for it is notified that it has ended. Raises SessionMoved if it is on
        another node.
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
        """Erase the session and return its certificate: nothing of it can be read from the store
        afterwards.

        If the store has keys, the session's are destroyed first, and `erasure.certificate` is
        signed: it states what was erased, when and by which `actor`.

        A SQLite file is rewritten so that no deleted page keeps the data, which takes time
        proportional to its size. Raises StoreBusy if a reader in another process keeps old pages
        alive too long: the session is then erased, and calling again finishes the overwriting. A
        PostgreSQL server keeps the bytes until it vacuums and its WAL and backups are recycled.

        If other sessions are forks of it, SessionHasForks names them. forks="erase" erases them
        too; forks="keep" leaves them the state they started from, and earlier events read as
        removed. A parent that waits for it is notified that it has ended.
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
        """Erase all sessions of a user, deleted ones too, and user: names; return the certificates.

        Readers see it happen at once, and a SQLite file is rewritten once. The certificate counts
        sessions and names, and lists the forks owned by other users, which keep the state they
        started from. The user's documents are erased too; app: names stay. Parents in other apps
        that wait for one of these sessions are notified that it has ended. Children in other apps
        stay and are listed in `children`: erase the user there too. Repeating it is harmless and
        finishes an interrupted erasure. Raises StoreBusy as `erase` does. If the store has keys,
        `erasures.certificate` is signed: see `erase`.
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
        """Return access decisions, the newest first: every denial, every sensitive operation and
        every failed authentication.

        Filter by principal ("user:ada"), session, app, and denials (denied=True, or False for
        none). `page.cursor` leads to the next page; a page that skipped many records is short. Only
        auditors and admins may read it, within their own app if they have one. Raises AccessDenied.
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
        """Write the audit to a file of JSON lines that `limpet.check_audit` checks offline; return
        the links of its logs.

        The file must not exist yet. It has the chain of every log, with only the digest of records
        that the filters exclude. Keep the returned links: they prove that the file was not
        replaced. A store with keys also signs it. Raises InvalidInput if the file exists,
        AccessDenied.
        """
        from limpet.session.audit import approved_audit, audit_query, export_audit

        query = audit_query(app, since, principal, session, denied=denied)
        services, query = await approved_audit(self._services, query)
        return await export_audit(services.journal, path, query)

    # --- what agents have learned ----------------------------------------------------------------

    async def learnings(self, agent: str) -> tuple[Learning, ...]:
        """Return the lessons that this agent's sessions have learned, each once.

        Raises InvalidInput for a malformed name.
        """
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
        """Add a learning to the agent's curated memory, which lp.memory_of(agent) shows; return its
        document.

        Raises PromotionRefused unless the agent's gates hold (lp.policies.gates). Gates on an
        outcome refer to `session`, which must be one that learned it; it records the promotion.
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
        """Propose a session's finding for the memory of an agent ("agent:NAME") or an organisation
        ("org:NAME"); return the proposal.

        The gates of that memory judge it (lp.policies.promotion). By default a person decides;
        `lp.inbox` lists the proposal. An accepted item leaves the memory after `ttl`, or when the
        gates say so. The session records the proposal and the decision. Raises SessionNotFound,
        SessionDeleted, and InvalidInput for a confidence outside 0 to 1.
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
        """Return proposals, the oldest first, of one session or of all: open, accepted, refused,
        expired, withdrawn.

        Raises InvalidInput for an unknown status.
        """
        from limpet.session.runs.promotion import proposals

        of = None if session is None else key_of(session)
        return await proposals(self._services, status, of)

    async def decide(
        self, proposal: Proposal | str, *, accept: bool, reason: str, actor: str | None = None
    ) -> Proposal:
        """Accept or refuse an open proposal, given it or its id; return it as it was decided.

        The other gates are checked too; a proposal that fails one is refused with its reason.
        Raises ProposalNotFound, ProposalDecided.
        """
        from limpet.session.runs.promotion import decide

        by = check_actor(actor)
        return await decide(self._services, proposal, accept=accept, reason=reason, actor=by)

    async def recall(self, to: str) -> tuple[MemoryItem, ...]:
        """Return the unexpired items in the memory of an agent or organisation.

        Raises InvalidInput unless `to` is "agent:NAME" or "org:NAME".
        """
        from limpet.session.runs.promotion import recall

        return await recall(self._journal, to)

    async def withdraw(
        self,
        session: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        *,
        reason: str = "withdrawn",
        actor: str | None = None,
    ) -> int:
        """Remove everything that one session contributed to any memory, even after it was deleted.
        Return the number of items removed. Requires permission to erase the session.

        Raises AccessDenied without it.
        """
        from limpet.session.runs.promotion import withdraw

        key = key_of(session, user, id)
        services = await self._services.approved_end(key)
        by = self._services.eraser(check_actor(actor))
        return await withdraw(services, key, reason, by)

    async def memory_of(self, agent: str) -> str:
        """Return the agent's MEMORY.md: the promoted learnings by kind; empty if there are none.

        Raises InvalidInput for a malformed name.
        """
        from limpet.session.runs.promotion import memory_text

        return await memory_text(self._journal, agent)

    # --- private ---------------------------------------------------------------------------------

    def _with(self, services: Services) -> Limpet:
        """Return this Limpet with other services. Closing it leaves the store open."""
        lp = Limpet(self.url, node=self.node, follow_moves=self._follow_moves)
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


def has_archive_or_keys(lp: Limpet) -> bool:
    """True if verbs need what only this process has, and a client of its server does not."""
    return lp._services.archive is not None or lp._journal.provenance is not None


def journal_of(lp: Limpet) -> Journal:
    """Return the way to write to a Limpet's store, for the rest of the package.

    Raises StoreClosed.
    """
    return lp._journal


def append_to(
    lp: Limpet, key: Key, drafts: Sequence[Draft]
) -> Coroutine[Any, Any, tuple[tuple[Event, ...], Facts]]:
    """Record events that change no state, without a handle: see `writer.append_unloaded`."""
    return append_unloaded(lp._services, key, drafts)


def receiving(lp: Limpet, node: str) -> Arrivals:
    """Return the side of a store that receives sessions, as the node that others call so."""
    from limpet.session.move.arrivals import Arrivals

    return Arrivals(lp._services.system, node)


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
    """The sessions of one app. `A` is the type of their state: a State class, or else a mapping.

    `lp.app(…)` binds what the code of an app would otherwise repeat at every call; each verb passes
    it on to the verb of Limpet with the same name.
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
        """Create a session and return it. Without a state it starts with the class's defaults, or
        empty.

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
        """Return the session with its state and its last events: see Limpet.get.

        Raises as it does.
        """
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
        """Return what `get` returns, or None if the session is missing or deleted.

        Raises what else `get` raises.
        """
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
        """Return the session of this key; create it as `create` does if it is missing.

        Raises as Limpet.get_or_create does.
        """
        if state is not None:
            self._begin(state)  # of a wrong class in either case
        session = await self.find(user, id, tail=tail, actor=actor)
        if session is not None:
            return session
        try:
            return await self.create(
                user, id, state=state, labels=labels, actor=actor, isolation=isolation
            )
        except SessionExists:  # another was faster, which is as good
            return await self.get(user, id, tail=tail, actor=actor)

    def session(
        self, user: str, id: str, *, actor: str | None = None, lease: Lease | None = None
    ) -> Session[A]:
        """Return a handle, without I/O: see Limpet.session. Raises InvalidInput."""
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
        phase: Phase | None = None,
        status: Status | None = None,
        ready: Readiness | None = None,
        deleted: bool = False,
        state: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Head]:
        """Return a page of heads of this app: see Limpet.list. Raises as it does."""
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
            phase=phase,
            status=status,
            ready=ready,
            deleted=deleted,
            state=state,
            limit=limit,
            cursor=cursor,
        )

    def watch(
        self, *, key: AnyKey | None = None, after: str | None = None
    ) -> AsyncGenerator[FeedEntry, None]:
        """Yield every event of this app, or of one of its sessions: see Limpet.watch.

        Raises as it does.
        """
        return self._lp.watch(app=self.name, key=key, after=after)

    async def claim(
        self, worker: str, *, limit: int = 1, lease_seconds: float = 30
    ) -> tuple[Lease, ...]:
        """Lease runnable sessions of this app and return the leases: see Limpet.work.claim, also
        for what it raises."""
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
