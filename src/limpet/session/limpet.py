"""Limpet: the sessions of one store, and the way to them.

Every write of every session passes `_committing`, every draft `_prepare`: there is no second way.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterable, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from limpet.errors import (
    BackupRefused,
    CommitTooLarge,
    ExtraMissing,
    InvalidInput,
    InvalidQuery,
    SessionDeleted,
    SessionErased,
    SessionExists,
    SessionFenced,
    SessionNotFound,
    StoreClosed,
    StoreFailed,
    StoreForked,
)
from limpet.model.events import Commit, Draft, Prepared, prepare
from limpet.model.facts.creation import created
from limpet.model.ids import Entropy, Ids
from limpet.model.keys import Key
from limpet.model.lease import Lease
from limpet.model.limits import (
    COMMIT_BYTES_MAX,
    DRAFTS_PER_COMMIT_MAX,
    SESSIONS_PER_COMMIT_MAX,
)
from limpet.model.values import EMPTY, described
from limpet.session.app import App
from limpet.session.arguments import (
    AnyKey,
    check_actor,
    check_flag,
    check_progress,
    key_of,
    moment_us,
    tail_of,
)
from limpet.session.commit import CommitBuilder
from limpet.session.follow import Hub
from limpet.session.given import Begin, given, is_plain
from limpet.session.logs import SESSION, lease_lost
from limpet.session.session import Session
from limpet.session.watch import feed_of, watch
from limpet.store import cursor as cursors
from limpet.store.cursor import check_app, check_position
from limpet.store.doctor import read_checks
from limpet.store.leases import (
    Leases,
    check_claim,
    check_lease,
    check_lease_seconds,
    check_retry_seconds,
    check_worker,
)
from limpet.store.open import open_store, refuse_uncopied
from limpet.store.protocol import (
    Backups,
    Committed,
    Diagnosis,
    Erasure,
    Examined,
    FeedEntry,
    Order,
    Page,
    Progress,
    Query,
    Report,
    Seal,
    Store,
)
from limpet.store.select import check_limit, check_tail

if TYPE_CHECKING:
    from limpet.model.envelope.envelope import Envelope
    from limpet.model.state.migrations import MigrationRegistry
    from limpet.model.state.state import State
    from limpet.session.migrate import Failure, MigrationPlan
    from limpet.session.typed import Typed

S = TypeVar("S", bound="State")
_NONE: Final[Mapping[str, Any]] = {}


class Limpet:
    """The door to a store. Open it with `async with limpet.open(url) as lp`."""

    def __init__(
        self,
        url: str,
        *,
        seal: Seal | None = None,
        connections: int | None = None,
        store: Store | None = None,
    ) -> None:
        self.url = url
        self._seal, self._connections = seal, connections
        self._store = store
        self._pid = 0
        self._hub: Hub
        self._new_id: Ids
        self._locks: dict[str, asyncio.Lock] = {}

    def __await__(self) -> Generator[Any, None, Limpet]:
        """`lp = await limpet.open(url)`, for those who close it themselves."""
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Limpet:
        if self._pid:
            raise StoreClosed
        if self._store is None:
            self._store = await open_store(self.url, seal=self._seal, connections=self._connections)
        self._hub = Hub(self._store)
        self._new_id = Ids(_now_ms, Entropy(os.urandom))
        self._pid = os.getpid()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish what was handed over and let go of the store. Closing twice is fine."""
        store, self._store = self._store, None
        if store is not None and self._pid == os.getpid():
            await self._hub.close()
            await store.close()

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
    ) -> Session[Any]:
        """A new session. Its first event holds the given state. Raises SessionExists.

        The state is a dict; or an object of a State class: the session is typed then; or an
        Envelope, whose schema version the session keeps, so that a load with a class migrates it
        or refuses; without a class its fields are left alone, unless `untyped` (see get). An actor
        given here is bound to the session; else the user counts as creator.
        """
        self._store_now()
        key = Key(app, user, self._new_id() if id is None else id)
        bound = check_actor(actor)
        actor = f"user:{key.user}" if actor is None else actor
        begin = given(state, migrations)
        draft = created(
            key,
            labels=EMPTY if labels is None else labels,
            schema_version=begin.schema_version,
            fields=begin.fields or EMPTY,
        )
        prepared = self._prepare(draft, actor)
        _check_untyped(begin.typed, untyped=untyped)
        session: Session[Any] = Session(self, key, actor=bound, typed=begin.typed, untyped=untyped)
        session._check_temp((prepared,))
        try:
            (committed,) = await self._committing((Commit(key, (prepared,), 0),))
        except StoreFailed as error:  # its draft cannot be sent again: a creation takes no id of it
            raise StoreFailed(error.where, error.reason, "create") from error
        self._hub.touch(key, committed.head.version)
        session._begin(committed, (prepared,))
        if committed.repeated:  # under a lost answer: what it sees was not told again
            await session.refresh()
        return session

    @overload
    async def get(
        self,
        key: AnyKey,
        /,
        *,
        state_type: type[S],
        migrations: MigrationRegistry | None = None,
        tail: int | None = None,
        since: datetime | None = None,
        actor: str | None = None,
    ) -> Session[S]: ...

    @overload
    async def get(
        self,
        app: str,
        user: str,
        id: str,
        /,
        *,
        state_type: type[S],
        migrations: MigrationRegistry | None = None,
        tail: int | None = None,
        since: datetime | None = None,
        actor: str | None = None,
    ) -> Session[S]: ...

    @overload
    async def get(
        self,
        key: AnyKey,
        /,
        *,
        tail: int | None = None,
        since: datetime | None = None,
        actor: str | None = None,
        untyped: bool = False,
    ) -> Session[Mapping[str, Any]]: ...

    @overload
    async def get(
        self,
        app: str,
        user: str,
        id: str,
        /,
        *,
        tail: int | None = None,
        since: datetime | None = None,
        actor: str | None = None,
        untyped: bool = False,
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
        actor: str | None = None,
        untyped: bool = False,
    ) -> Session[Any]:
        """The session with its state and its last events: `tail` of them, 20 if nothing is said.

        With `since`, every event at or after that time, the newest 1,000 if there are more; with
        both, the last `tail` among those.

        Of large events, as many of the newest as fit about 16 MiB.

        With a `state_type` its state is of that class; stored state of another MAJOR is brought
        there by `migrations`, which is recorded, or MigrationError is raised. Without one, typed
        state is read and not changed (SessionTyped), unless `untyped`: then whatever is written
        passes its class by. `actor` is bound to it. Raises SessionNotFound.
        """
        self._store_now()
        typed = _typed(state_type, migrations)
        _check_untyped(typed, untyped=untyped)
        key = key_of(key, user, id)
        session: Session[Any] = Session(self, key, actor=actor, typed=typed, untyped=untyped)
        since_us = moment_us("since", since)
        await session._load(tail=tail_of(tail, since), since_us=since_us)
        if typed is not None and session.head.schema_version is not None and not session.damaged:
            typed.prove(session.head, session._fields)
        return session

    @overload
    async def find(
        self,
        key: AnyKey,
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
        app: str,
        user: str,
        id: str,
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
        key: AnyKey,
        /,
        *,
        tail: int | None = None,
        since: datetime | None = None,
        actor: str | None = None,
        untyped: bool = False,
    ) -> Session[Mapping[str, Any]] | None: ...

    @overload
    async def find(
        self,
        app: str,
        user: str,
        id: str,
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
        key: AnyKey,
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
        app: str,
        user: str,
        id: str,
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
        key: AnyKey,
        /,
        *,
        actor: str | None = None,
        lease: Lease | None = None,
        untyped: bool = False,
    ) -> Session[Mapping[str, Any]]: ...

    @overload
    def session(
        self,
        app: str,
        user: str,
        id: str,
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

        With a `lease` of this session, whatever it writes is refused once the lease is not held.
        `untyped` as for get.
        """
        self._store_now()
        key = key_of(key, user, id)
        if lease is not None and check_lease(lease).key != key:
            raise InvalidInput(
                f"the lease is of {lease.key}, not of {key}. Pass the lease that was given "
                "on this session."
            )
        typed = _typed(state_type, migrations)
        _check_untyped(typed, untyped=untyped)
        return Session(self, key, actor=actor, lease=lease, typed=typed, untyped=untyped)

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
        self._store_now()
        typed = _typed(state_type, migrations)  # refuses now what every verb would refuse
        _check_untyped(typed, untyped=untyped)
        bound: dict[str, Any] = {"state_type": state_type, "migrations": migrations}
        return App(self, name, actor=actor, untyped=untyped, **bound)

    async def list(
        self,
        *,
        app: str | None = None,
        user: str | None = None,
        labels: Mapping[str, str] | None = None,
        order: Order = "created",
        reverse: bool = True,
        created_after: datetime | None = None,
        updated_after: datetime | None = None,
        schema_version: str | None = None,
        deleted: bool = False,
        state: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        """A page of heads, newest first; `page.cursor` leads to the next.

        By app, by app and user, or by labels ({"plan": "gold"}); in order of creation, or of last
        update (for an app or a user). Later than a time, and of one schema version, in any of these
        orders. A page may be short, even empty, before the last: go on while there is a cursor.

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
            app=app,
            user=user,
            labels=cursors.labels(labels),
            order=order,
            reverse=reverse,
            created_after_us=moment_us("created_after", created_after),
            updated_after_us=moment_us("updated_after", updated_after),
            schema_version=schema_version,
            deleted=deleted,
        )
        store, limit = self._store_now(), check_limit(limit)
        return await store.heads(query, cursor=cursor, limit=limit, states=state)

    def commit(self) -> CommitBuilder:
        """Events for several sessions, all or nothing: `async with lp.commit() as c: …`."""
        self._store_now()
        return CommitBuilder(self)

    @overload
    async def delete(self, key: AnyKey, /) -> bool: ...

    @overload
    async def delete(self, app: str, user: str, id: str, /) -> bool: ...

    async def delete(
        self, key: AnyKey | str, user: str | None = None, id: str | None = None, /
    ) -> bool:
        """Delete the session's log. Its key stays taken. False if there was nothing to delete."""
        key = key_of(key, user, id)
        deleted = await self._store_now().delete(key)
        self._hub.touch(key)
        return deleted

    @overload
    async def erase(self, key: AnyKey, /) -> Erasure | None: ...

    @overload
    async def erase(self, app: str, user: str, id: str, /) -> Erasure | None: ...

    async def erase(
        self, key: AnyKey | str, user: str | None = None, id: str | None = None, /
    ) -> Erasure | None:
        """Forget the session: nothing of it can be read from the store afterwards.

        A SQLite file is written anew, so that nothing is left in its pages either, which takes
        time by its size. Raises StoreBusy if a reader of another process keeps old pages alive too
        long: the session is erased then, and calling again finishes the overwriting. A PostgreSQL
        server keeps the bytes until it vacuums and its WAL and backups are recycled.
        """
        key = key_of(key, user, id)
        erasure = await self._store_now().erase(key)
        self._hub.touch(key)
        return erasure

    def watch(
        self, *, app: str | None = None, key: AnyKey | None = None, after: str | None = None
    ) -> AsyncGenerator[FeedEntry, None]:
        """Every event of the store, of an app or of one session, as it is recorded.

        Each entry has a `position`: begin again with after=position and nothing is missed and
        nothing comes twice. Without `after`, from the first event; `after=await lp.position()`
        begins from now. What is deleted leaves the feed without an entry. Ends with StoreError
        if the store fails for longer than it waits: watch again from the last position.
        """
        feed = feed_of(self._store_now())
        one, app = None if key is None else key_of(key), check_app(app)
        if one is not None and app not in (None, one.app):
            raise InvalidInput(
                f"the session {one} is not of the app {app!r}. Name the app, or the key alone."
            )
        return watch(self._hub, feed, app=app, key=one, after=check_position(after))

    async def position(self) -> str:
        """The end of the feed now: lp.watch(after=…) gives all that is recorded from here on.

        On PostgreSQL, what was recorded while an older transaction was open may come as well.
        """
        return await feed_of(self._store_now()).position()

    @overload
    async def verify(
        self, key: AnyKey | None = None, /, *, progress: Progress | None = None
    ) -> Report: ...

    @overload
    async def verify(
        self, app: str, user: str, id: str, /, *, progress: Progress | None = None
    ) -> Report: ...

    async def verify(
        self,
        key: AnyKey | str | None = None,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        progress: Progress | None = None,
    ) -> Report:
        """Read one session (or, without a key, everything) back and check it against its chain."""
        one = None if key is None and user is None and id is None else key_of(key, user, id)
        return await self._store_now().verify(one, check_progress(progress))

    async def doctor(self, *, progress: Progress | None = None) -> Diagnosis:
        """Verify everything, and look at how the store is kept; each finding says what to do."""
        store = self._store_now()
        report = await store.verify(None, check_progress(progress))
        kept = await store.examine() if isinstance(store, Examined) else ()
        return Diagnosis((*read_checks(report), *kept), report)

    async def migrate(
        self,
        migrations: MigrationRegistry,
        state_type: type[State] | None = None,
        *,
        app: str | None = None,
        apply: bool = False,
        actor: str | None = None,
        failure: Failure | None = None,
        progress: Progress | None = None,
    ) -> MigrationPlan:
        """Say what becomes of every session (of an app) on the way to a schema version.

        That of the State class, which what comes out has to fit; without one, the newest that the
        migrations lead to. Nothing is written unless `apply`: then each session that can be is
        migrated as get() would, in a commit of its own, and the others are left as they are. Done
        twice it does nothing more; interrupted, it goes on when called again. What is recorded is
        by `actor`, or by system:migrations. The plan names up to 1,000 sessions of each kind of
        failure; `failure(key, fate, reason)` is called for every one.
        """
        self._store_now()
        from limpet.session.migrate import Migrating, forward_of

        with _pydantic():
            forward = forward_of(migrations, state_type)
        how: dict[str, Any] = {"actor": check_actor(actor), "failure": failure}
        migrating = Migrating(self, forward, app=check_app(app), apply=apply, **how)
        return await migrating.run(check_progress(progress))

    async def backup(self, target: str | Path, *, progress: Progress | None = None) -> None:
        """Copy the whole store to a file while it is in use. The copy is whole or not there."""
        store = self._store_now()
        check_progress(progress)
        if not isinstance(target, (str, os.PathLike)):
            raise InvalidInput(f"{described(target)} names no file. Pass a path.")
        if not isinstance(store, Backups):
            refuse_uncopied(self.url)
            raise BackupRefused(self.url, "is not kept in a file; its store makes no copies")
        await store.backup(Path(target), progress)

    # --- work ----------------------------------------------------------------------------------

    async def claim(
        self, worker: str, *, limit: int = 1, lease_seconds: float = 30, app: str | None = None
    ) -> tuple[Lease, ...]:
        """Leases on sessions that want to run: highest priority first, then longest due.

        Nobody else is given them until the lease ends. Write with lp.session(key, lease=lease);
        renew the lease in time, release it when done. `lease.claimed_at` is when it was given,
        `lease.timers` the names of the timers that were due then.
        """
        work = self._work_now()
        check_worker(worker)
        check_lease_seconds(lease_seconds)
        limit, app = check_claim(limit), check_app(app)
        return await work.claim(worker, limit=limit, lease_seconds=lease_seconds, app=app)

    async def renew(self, lease: Lease, *, lease_seconds: float | None = None) -> Lease:
        """Hold the lease for so long from now: without a number, for as long as it was given.

        Raises SessionFenced if it is not held any more.
        """
        seconds = check_lease(lease).lease_seconds if lease_seconds is None else lease_seconds
        try:
            return await self._work_now().renew(lease, check_lease_seconds(seconds))
        except SessionFenced as error:
            lease_lost(error, lease, "renewal")
            raise

    async def release(self, lease: Lease, *, retry_seconds: float | None = None) -> bool:
        """Give the lease back. False if it was not held any more.

        With `retry_seconds` nobody is given the session by a claim before then, not even if input
        comes: for work that failed, so that others have their turn. acquire_lock may take it.
        Without, a claimed session that is due for nothing but what it was claimed for (timers that
        still stand, inputs of which none was processed) is held back for a second.
        """
        work = self._work_now()
        held = await work.release(check_lease(lease), check_retry_seconds(retry_seconds))
        if not held:
            text = "lease already over: session=%s worker=%s fence=%d"
            SESSION.info(text, lease.key, lease.worker, lease.fence)
        return held

    @overload
    async def acquire_lock(
        self, key: AnyKey, /, *, worker: str, lease_seconds: float = 30
    ) -> Lease: ...

    @overload
    async def acquire_lock(
        self, app: str, user: str, id: str, /, *, worker: str, lease_seconds: float = 30
    ) -> Lease: ...

    async def acquire_lock(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        worker: str,
        lease_seconds: float = 30,
    ) -> Lease:
        """A lease on this very session, due or not. Raises SessionLocked if another holds it.

        Give it back with release. `lease.timers` names the timers that are due. Given
        back, it is as due as it was.
        """
        work = self._work_now()
        seconds = check_lease_seconds(lease_seconds)
        return await work.acquire(key_of(key, user, id), check_worker(worker), seconds)

    # --- private: the one way in ---------------------------------------------------------------

    def _store_now(self) -> Store:
        if self._store is None or not self._pid:
            raise StoreClosed
        if self._pid != os.getpid():
            raise StoreForked
        return self._store

    def _work_now(self) -> Leases:
        store = self._store_now()
        if not isinstance(store, Leases):
            raise InvalidQuery(f"{self.url} gives no leases: its store is without work")
        return store

    def _prepare(self, draft: Draft, actor: str | None) -> Prepared:
        self._store_now()
        if not isinstance(draft, Draft):
            raise InvalidInput(
                f"{type(draft).__name__} is no draft. Make one with limpet.Draft(type=…, data=…)."
            )
        return prepare(draft, id=self._new_id(), actor=actor)

    def _committing(
        self, commits: tuple[Commit, ...]
    ) -> Coroutine[Any, Any, tuple[Committed, ...]]:
        """The one way to write: to be awaited, and its answers told to the hub."""
        if len(commits) != 1 or len(commits[0].drafts) != 1:
            _check_size(commits)
        return self._store_now().commit(commits)

    def _updating(self, app: str) -> asyncio.Lock:
        """One after the other: updates of an app that met a conflict."""
        return self._locks.setdefault(app, asyncio.Lock())

    def _now_us(self) -> int:
        return time.time_ns() // 1_000


def _typed(state_type: type[Any] | None, migrations: MigrationRegistry | None) -> Typed[Any] | None:
    if state_type is None:
        if migrations is not None:
            raise InvalidInput("migrations are of typed state. Give a state_type with them.")
        return None
    with _pydantic():
        from limpet.session.typed import Typed
    return Typed(state_type, migrations)


def _check_untyped(typed: Typed[Any] | None, *, untyped: bool) -> None:
    if typed is not None and untyped:
        raise InvalidInput(
            "untyped=True writes past the State class that was given. Leave out one of the two."
        )


@contextmanager
def _pydantic() -> Generator[None]:
    """Around what imports typed state: names the extra if it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("pydantic"):
            raise
        raise ExtraMissing("pydantic", "state") from error


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _check_size(commits: Iterable[Commit]) -> None:
    sessions = drafts = size = 0
    for commit in commits:
        sessions += 1
        drafts += len(commit.drafts)
        for draft in commit.drafts:
            size += len(draft.raw)
    if sessions > SESSIONS_PER_COMMIT_MAX:
        raise CommitTooLarge("sessions", sessions, SESSIONS_PER_COMMIT_MAX)
    if drafts > DRAFTS_PER_COMMIT_MAX:
        raise CommitTooLarge("events", drafts, DRAFTS_PER_COMMIT_MAX)
    if size > COMMIT_BYTES_MAX:
        raise CommitTooLarge("bytes", size, COMMIT_BYTES_MAX)
