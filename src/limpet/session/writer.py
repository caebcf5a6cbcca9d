"""Writing to one session: plain commits, and writes that are decided on what is known of it.

A decision (an update, typed state) is recorded only on the versions of the names it looked at. If
another writer was faster, it is read again and made again, a bounded number of times.

Loading reads a session as it is stored, and first brings it forward if the code expects another
version: planned, verified and recorded on one reading, on that version of the session or not at
all. The object that asked sees nothing before all of it is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET, UnsetType, structs

from limpet import errors
from limpet.errors import (
    EventTooLarge,
    InvalidEvent,
    LimpetError,
    OpPathUnknown,
    OpTypeMismatch,
    SchemaViolation,
    SessionArchived,
    SessionConflict,
    SessionCorrupt,
    SessionDeleted,
    SessionFenced,
)
from limpet.model import (
    EMPTY,
    Commit,
    DefaultActor,
    Draft,
    Event,
    Fact,
    Head,
    Key,
    Lease,
    Prepared,
    Reads,
)
from limpet.model.facts.isolation import agent_tools
from limpet.model.facts.phases import Phase, archive_place, is_stub, roused_us
from limpet.model.facts.view import Facts
from limpet.model.lease import is_leased, locked
from limpet.model.limits import UPDATE_TRIES_MAX
from limpet.session.arguments import check_actor, check_fact
from limpet.session.cached_state import CachedState, changes_fields
from limpet.session.documents import Put, commit_puts
from limpet.session.journal import Journal, Tries
from limpet.session.loggers import SESSION, lease_lost
from limpet.session.runs.delegation import head_of
from limpet.session.services import Services
from limpet.store.protocol import Committed, Loaded

if TYPE_CHECKING:
    from limpet.security.access import SessionView
    from limpet.session.schema.typed import Typed
    from limpet.session.schema.upgrade import Upgrade

Change = Callable[[Any], Mapping[str, Any] | None]
_NONE: Final[Mapping[str, Any]] = {}
_TAIL: Final = 20  # events that a refresh between two tries brings
# A draft does not fit the state that was known, or that could not be read whole.
_MISFITS: Final = (SchemaViolation, OpPathUnknown, OpTypeMismatch, SessionCorrupt)


def acting_agent(writer: Writer) -> str | None:
    """Return the agent that uses a session through an object: see `Services.agent`."""
    return writer.services.agent(writer.actor_or_none(None))


def own_tools(writer: Writer, facts: Facts) -> Collection[str] | None:
    """Return the tools that a session keeps for the agent that uses it through an object; None if
    it says nothing of them."""
    if "agents" not in facts.get("isolation", EMPTY):  # as in most: nobody asks who acts
        return None
    return agent_tools(facts, acting_agent(writer))


class Writer:
    """The writes of one object to its session. With a lease, all of them carry its fence."""

    __slots__ = (
        "_owner",
        "classless",
        "journal",
        "known",
        "lease",
        "services",
        "shared_removals",
        "shared_versions",
        "typed",
        "working_memory",
    )

    def __init__(
        self,
        services: Services,
        known: CachedState,
        owner: Handle,
        *,
        lease: Lease | None,
        typed: Typed[Any] | None,
        untyped: bool,
    ) -> None:
        self.services, self.journal = services, services.journal
        self.known, self.lease, self.typed = known, lease, typed
        self._owner = owner
        self.shared_versions: dict[str, Mapping[str, int]] | None = None  # as last read, by share
        # Fields that the source of a share does not have: up to which version they were looked for.
        self.shared_removals: dict[str, tuple[int, Mapping[str, int]]] | None = None
        self.working_memory: dict[str, Any] | None = None  # see `life.memory`
        # Without a class it leaves the fields of typed state alone, unless that is what is wanted.
        self.classless = typed is None and not untyped
        if typed is not None and services.guard is not None:
            typed.hidden_from = self._hidden_from

    @property
    def view(self) -> SessionView | None:
        """The principal's view of the session; None if nothing is hidden."""
        guard, head = self.services.guard, self.known.maybe_head
        return None if guard is None or head is None else guard.view(head)

    def _hidden_from(self, name: str) -> str | None:
        """The principal that does not see this field; None if it does."""
        guard, view = self.services.guard, self.view
        return None if guard is None or view is None or view.sees(name) else guard.principal.id

    async def absorb(
        self, journal: Journal, committed: Committed, drafts: tuple[Prepared, ...]
    ) -> None:
        """Take in what was recorded here through another object. Its journal may be somebody
        else's, who sees other fields: then the session is read again."""
        if journal is self.journal:
            self.known.absorb(committed, drafts)
        else:
            await self.load(tail=0)

    def actor_or_none(self, actor: str | None) -> str | None:
        """Return who acts: the one named, or the one bound; None if there is neither."""
        return check_actor(self._owner.actor if actor is None else actor)

    def acting(self, actor: str | None) -> str:
        """Return who acts: the one named, the one bound, or the user."""
        return self.actor_or_none(actor) or DefaultActor(f"user:{self.known.key.user}")

    async def load(
        self,
        *,
        tail: int,
        since_us: int | None = None,
        at_least: str = "",
        stub: bool = False,
    ) -> None:
        """Read it, brought forward to the version of its class; if that fails, nothing changes.

        Raises SessionDeleted if the key belongs to another session by now, SessionArchived if its
        log was moved to the archive, SessionMoved if it is at another node; with `stub`, an object
        that knew nothing of the session yet gets to know what stands for it in the store.
        """
        loading = Loading(self.journal, self.known.key, self._owner.actor, self.lease)
        try:
            loaded, moved = await loading.load(
                self.typed, tail=tail, since_us=since_us, at_least=at_least
            )
            head = loaded.head
            head.check_here()
            if is_stub(head.facts) and not stub and self.known.uid in (None, head.uid):
                raise SessionArchived(head.key)
            self.known.take(loaded)
        except SessionDeleted:
            await self.refuse_elsewhere()
            raise
        if moved is not None:
            self.known.absorb(moved, (None,))

    def take(self, loaded: Loaded) -> bool:
        """Know what was read together with other sessions. False if that will not do: its State
        class has another version, so that it has to be loaded and brought forward."""
        if self.typed is not None and self.typed.way(loaded.head.schema_version):
            return False
        self.known.take(loaded)
        return True

    async def commit(
        self,
        drafts: tuple[Prepared, ...],
        expect: int | None = None,
        guards: Mapping[str, int] = _NONE,
        schema: str | UnsetType | None = UNSET,
        *,
        classless: bool | None = None,
        release: Lease | None = None,
        puts: Sequence[Put] = (),
        before: Sequence[Commit] = (),
        beside: Sequence[Commit] = (),
    ) -> tuple[Event, ...]:
        """Record the drafts, durably, or nothing. `classless` False: they are known to fit. A lease
        to release ends with the commit; documents are put by it, and other sessions record in it
        what comes `before` and what is `beside` it."""
        known, lease = self.known, self.lease
        for draft in drafts:
            if draft.temp_ops:
                known.check_temp(drafts)
                break
        fence, head = None, known.maybe_head
        uid = None if head is None else head.uid
        if lease is not None:
            fence, uid = self._fence_and_uid()
        if classless is None:
            classless = self.classless
        commit = Commit(known.key, drafts, expect, fence, guards, schema, classless, uid)
        if release is not None:
            commit = structs.replace(commit, release=release)
        answers: Sequence[Committed]
        try:
            if puts:
                answers, _ = await commit_puts(self.journal, (*before, commit, *beside), puts)
            else:
                answers = await self.journal.commit((*before, commit, *beside))
            committed = answers[len(before)]
        except SessionFenced as error:
            lease_lost(error, lease, "commit")
            raise
        except SessionDeleted as error:
            if error.key != known.key:
                raise
            return await self._commit_archived(commit)
        known.absorb(committed, drafts)
        head = committed.head
        if (
            head.facts
            and roused_us(head.facts) is not None
            and not self.journal.queue.rouses_later(self)
        ):
            await self.rouse()
        return committed.events

    async def _commit_archived(self, commit: Commit) -> tuple[Event, ...]:
        """Commit to the stub of an archived session, which decides: how it is kept may be said.

        Raises SessionDeleted if it was deleted, SessionEnded if it is archived, SessionArchived if
        it is on its way, SessionMoved if it is at another node.
        """
        stub = await self._stub()
        if stub is not None:
            there = structs.replace(commit, uid=stub.uid, expect=None, fence=None)
            with suppress(SessionDeleted):  # or else the stub is gone by now
                return (await self.journal.commit((there,)))[0].events
        await self.refuse_elsewhere()
        return (await self.journal.commit((commit,)))[0].events  # it was deleted, or is back

    async def refuse_elsewhere(self) -> None:
        """Raise SessionArchived if what seems deleted is in the archive, SessionMoved if it is at
        another node."""
        from limpet.session.move.routes import refuse_moved

        if await self._stub() is not None:
            raise SessionArchived(self.known.key)
        await refuse_moved(self.services, self.known.key)

    async def _stub(self) -> Head | None:
        """Return the stub that stands in the store for this session while its log is in the
        archive. It belongs to the system."""
        head = await head_of(self.services.system.journal, self.known.key)
        place = None if head is None else archive_place(head.facts)
        return None if place is None or self.known.uid not in (None, place["uid"]) else head

    # --- for the queue: see `append_queue` ------------------------------------------------------

    def terms(self) -> object | None:
        """Return the conditions of its writes; None with a State class, which checks what it
        has."""
        return None if self.typed is not None else (*self._fence_and_uid(), self.classless)

    def propose(self, drafts: tuple[Prepared, ...]) -> Commit | None:
        """The commit of drafts without temp: names; None if its State class has to look at them."""
        if self.typed is not None and any(map(changes_fields, drafts)):
            return None
        fence, uid = self._fence_and_uid()
        return Commit(self.known.key, drafts, None, fence, {}, UNSET, self.classless, uid)

    def settle(self, committed: Committed) -> bool:
        """Learn what a commit of proposed drafts left; True if their input has to resume the
        session."""
        self.known.absorb(committed, ())
        return bool(committed.head.facts) and roused_us(committed.head.facts) is not None

    async def rouse(self) -> None:
        """Resume the session, which was suspended until input came."""
        await self.services.resume_on_input(self.known.key)
        await self.load(tail=_TAIL)

    def note_refusal(self, error: Exception) -> None:
        """Report a lost lease, if that is why the commit was refused."""
        if isinstance(error, SessionFenced):
            lease_lost(error, self.lease, "flush")

    def _fence_and_uid(self) -> tuple[int | None, str | None]:
        """Return what every commit is under: the lease, and the session that is known."""
        known, lease = self.known, self.lease
        if lease is None:
            return None, known.uid
        return lease.fence, known.uid or lease.uid or None

    def append(
        self, drafts: tuple[Prepared, ...], expect: int | None, *, may_repeat: bool = False
    ) -> Coroutine[Any, Any, tuple[Event, ...]]:
        """Record events of the caller's. Those that change typed state are checked on the newest
        that is known, and are recorded under its version and on the fields that were looked at.

        If those have moved on, it is done again; a load says whether this code may: not over a
        MAJOR. Drafts that `may_repeat` may have been recorded before, when they did fit.
        """
        typed = self.typed
        if typed is None or not any(map(changes_fields, drafts)):
            return self.commit(drafts, expect)
        return self._append_typed(typed, drafts, expect, may_repeat=may_repeat)

    async def _append_typed(
        self,
        typed: Typed[Any],
        drafts: tuple[Prepared, ...],
        expect: int | None,
        *,
        may_repeat: bool,
    ) -> tuple[Event, ...]:
        known = self.known
        if not known.is_loaded or known.damaged:
            await self.load(tail=_TAIL)
        async for left in Tries():
            if not typed.way(known.head.schema_version):
                try:
                    known = self.known
                    known.check_whole()
                    guards = known.guards(typed.fit_after(known.fields, drafts))
                    return await self.commit(drafts, expect, guards, known.head.schema_version)
                except _MISFITS:
                    if may_repeat and (repeats := await self._repeats([d.id for d in drafts])):
                        return repeats
                    version = known.version
                    await self.load(tail=_TAIL)
                    if known.version == version or not left:
                        raise  # it was checked on the newest state
                    continue
                except SessionConflict as error:
                    if error.on == "session" or not left:
                        raise
            await self.load(tail=_TAIL)
        raise AssertionError("a load brings state forward, or raises")

    async def update(self, change: Change, draft: Draft) -> Event | None:
        """Read, compute, commit, until no other writer was faster on a name that was looked at."""
        await self.load_whole()  # "nothing to do" must be decided on the newest state too
        return await self.persist(lambda: self._try_update(change, draft))

    async def apply(
        self, update: Mapping[str, Any], draft: Draft, expect: int | None
    ) -> Event | None:
        """Update typed state through its reducers; with `expect`, on that version alone."""
        if expect is not None:
            return await self._apply_at(update, draft, expect)
        try:
            await self._know()
            event = await self.persist(lambda: self._try_apply(update, draft))
        except (SchemaViolation, SessionCorrupt):
            event = await self._repeat(draft)
            if event is None:
                raise
        return event if event is not None else await self._repeat(draft)

    def publish(self, draft: Prepared, attempt: int) -> Event:
        """Hand a partial event to those who follow; it is not recorded."""
        if draft.ops or draft.temp_ops:
            raise InvalidEvent("a partial event is not recorded, so it cannot change state")
        event = Event(
            seq=0,
            id=draft.id,
            type=draft.type,
            actor=draft.actor,
            at_us=self.journal.now_us(),
            data=draft.data,
            cause=draft.cause,
            invocation_id=draft.invocation_id,
            correlation_id=draft.correlation_id,
            wake_id=draft.wake_id,
            partial=True,
            attempt=attempt,
        )
        self.publish_event(event)
        return event

    def publish_event(self, partial: Event) -> None:
        """Hand on a partial event that was made of plain values, as `publish` does."""
        journal, known = self.journal, self.known
        journal.check_open()
        uid = None if known.maybe_head is None else known.maybe_head.uid
        journal.hub.publish(known.key, partial, known.version, uid)

    async def persist(
        self, attempt: Callable[[], Awaitable[Event | None]], *, whole: bool = True
    ) -> Event | None:
        """Try until no other writer was faster; SessionConflict after too many tries.

        If it has to be `whole`, SessionCorrupt once an event cannot be read.
        """
        load = self.load_whole if whole else self._load_any
        with suppress(SessionConflict):
            return await attempt()
        key = self.known.key
        async with self.journal.contention_lock(key.app):
            async for left in Tries():
                tries = UPDATE_TRIES_MAX - left
                SESSION.debug("update retried: session=%s tries=%d", key, tries)
                await load()
                try:
                    return await attempt()
                except SessionConflict:
                    if not left:
                        raise
        raise AssertionError("the last try returns or raises")

    async def load_whole(self) -> None:
        """Read the newest state to decide on. Raises SessionCorrupt if a part of it is missing."""
        await self.load(tail=_TAIL)
        self.known.check_whole()

    # --- private -------------------------------------------------------------------------------

    async def _load_any(self) -> None:
        await self.load(tail=0)

    async def _try_update(self, change: Change, draft: Draft) -> Event | None:
        # Asked after the state was read: what is computed never builds on its own record.
        repeat = await self._repeat(draft)
        if repeat is not None:
            return repeat
        await self._know()  # meanwhile another task may have read a hole into what is known
        known, typed = self.known, self.typed
        if typed is not None:
            typed.check(known.head)
            update = change(typed.fresh(known.fields))  # its own: it may be called again
            if update is None:
                return None
            return await self._try_apply(update, draft, expect=known.version)
        reads = Reads(known.values)
        changes = change(reads)
        if changes is None:
            return None
        if isinstance(draft, Fact) and isinstance(changes, Mapping) and not changes:
            return None
        prepared = self.journal.prepare(structs.replace(draft, set=changes), None)
        seen = reads.names.union(changes, (known.scopes or ()) if reads.all else ())
        expect = known.version if reads.all else None  # it saw which names there are
        return (await self.commit((prepared,), expect, known.guards(seen)))[0]

    async def _try_apply(
        self, update: Mapping[str, Any], draft: Draft, *, expect: int | None = None
    ) -> Event | None:
        typed, known = self.typed, self.known
        assert typed is not None
        head = known.head
        if typed.way(head.schema_version):  # migrated by others: to be loaded again
            raise SessionConflict(known.key, "schema", str(typed.code), head.schema_version)
        if head.schema_version is not None:
            typed.prove(head, known.fields)
        planned = typed.plan(known.fields, update, draft.actor)
        if not planned.ops and isinstance(draft, Fact):
            return None
        drafts = [self.journal.prepare(structs.replace(draft, ops=planned.ops), None)]
        raising = typed.raising(head, known.fields, planned.ops)
        if raising is not None:
            drafts.insert(0, self.journal.prepare(raising, draft.actor))
        guards = known.guards(planned.guards)
        return (await self.commit(tuple(drafts), expect, guards, head.schema_version))[-1]

    async def _apply_at(self, update: Mapping[str, Any], draft: Draft, expect: int) -> Event | None:
        """Plan on the state of this very version; not again on another."""
        repeat = await self._repeat(draft)
        if repeat is not None:
            return repeat
        known = self.known
        await self._know()
        if known.version != expect:
            await self.load_whole()
        if known.version != expect:
            raise SessionConflict(known.key, "session", expect, known.version)
        return await self._try_apply(update, draft, expect=expect)

    async def _repeat(self, draft: Draft) -> Event | None:
        """Return what was recorded under the draft's id before; a plan on newer state need not fit
        it."""
        if draft.id is None:
            return None
        self.journal.prepare(structs.replace(draft, ops=()), None)  # refuses what is wrong with it
        repeats = await self._repeats([draft.id])
        return repeats[0] if repeats else None

    async def _repeats(self, ids: Sequence[str]) -> tuple[Event, ...]:
        """The records of these ids, if every one of them was recorded before."""
        events = await self.journal.store.read_ids(self.known.key, ids)
        if len(events) < len(ids):
            return ()
        return tuple([structs.replace(event, repeated=True) for event in events])

    async def _know(self) -> None:
        """Have state to decide on: read, if it was not yet, or if a part of it was missing."""
        if not self.known.is_loaded or self.known.damaged:
            await self.load_whole()


class Handle:
    """A session, as the modules below `session.Session` use it: its key, who acts, its writer."""

    __slots__ = ("__weakref__", "_writer", "actor", "key")

    def __init__(
        self,
        services: Services,
        key: Key,
        *,
        actor: str | None = None,
        lease: Lease | None = None,
        typed: Typed[Any] | None = None,
        untyped: bool = False,
    ) -> None:
        self.key = key
        self.actor = check_actor(actor)  # migrates, if a load has to
        if services.guard is not None:
            self.actor = services.guard.actor(self.actor)
        else:
            self.actor = services.journal.bound_actor(self.actor)
        self._writer = Writer(
            services, CachedState(key), self, lease=lease, typed=typed, untyped=untyped
        )

    @property
    def app(self) -> str:
        """The app of its key."""
        return self.key.app

    @property
    def user(self) -> str:
        """The user of its key."""
        return self.key.user

    @property
    def id(self) -> str:
        """The id of its key."""
        return self.key.id

    @property
    def head(self) -> Head:
        """The session's head: labels, pending inputs, timers, times. Raises SessionNotLoaded."""
        return self._writer.known.head

    @property
    def phase(self) -> Phase:
        """init, active, suspended, resumed, completed, terminated or archived."""
        return self._writer.known.head.phase

    async def record(self, *facts: Fact, actor: str | None = None) -> tuple[Event, ...]:
        """Record facts about the session, as limpet.facts makes them, in order, all or nothing.

        Returns their events. Raises as Session.append does.
        """
        writer, acting = self._writer, self._writer.actor_or_none(actor)
        prepared = tuple([writer.journal.prepare(check_fact(fact), acting) for fact in facts])
        return await writer.commit(prepared) if prepared else ()


def writer_of(session: Handle) -> Writer:
    """Return the writer of a session, for the rest of the package."""
    return session._writer


async def append_unloaded(
    services: Services, key: Key, drafts: Sequence[Draft]
) -> tuple[tuple[Event, ...], Facts]:
    """Record events that change no state, of a session that nobody has loaded, all or nothing:
    them, and the facts of its head afterwards. As `append_many` of a new handle, without one: a
    server records most of what it is sent this way.
    """
    journal = services.journal
    prepared = tuple([journal.prepare(draft, None) for draft in drafts])
    commit = Commit(key, prepared, None, None, _NONE, UNSET, True, None)
    (committed,) = await journal.commit((commit,))
    facts = committed.head.facts
    if facts and roused_us(facts) is not None:
        await services.resume_on_input(key)
    return committed.events, facts


# --- loading -------------------------------------------------------------------------------------


# The actor of a migration when no other is bound.
MIGRATOR: Final = DefaultActor("system:migrations")


class Loading:
    """One session to be read, for an actor who may hold its lease."""

    def __init__(
        self, journal: Journal, key: Key, actor: str | None = None, lease: Lease | None = None
    ) -> None:
        self._journal, self._key, self._actor, self._lease = journal, key, actor, lease

    async def load(
        self,
        upgrade: Upgrade | None,
        *,
        tail: int,
        since_us: int | None = None,
        scopes: bool = True,
        at_least: str,
    ) -> tuple[Loaded, Committed | None]:
        """Return what is stored, and the migration that was recorded on it if there had to be one.

        Raises what the store's load raises; MigrationError, SchemaViolation; SessionCorrupt if it
        is damaged, SessionLocked if another runs it, SessionConflict if others never pause.
        """
        store, verified = self._journal.store, False
        async for left in Tries():
            loaded = await store.load(
                self._key, tail=tail, since_us=since_us, scopes=scopes, at_least=at_least
            )
            head = loaded.head
            if upgrade is None or is_stub(head.facts) or not upgrade.way(head.schema_version):
                return loaded, None
            if not verified:  # once: what is written meanwhile was not read back from a disk
                await self._verify()
                verified = True
            prepared = self._propose(upgrade, loaded)
            try:
                committed = await self._record(prepared, loaded)
                text = "state migrated: session=%s from=%s to=%s version=%d"
                stored, version = loaded.head.schema_version, committed.head.version
                SESSION.info(text, self._key, stored, upgrade.code, version)
                return loaded, committed
            except SessionConflict:  # somebody wrote, or migrated it, meanwhile
                if not left:
                    raise
            except SessionFenced as error:  # somebody was given a lease meanwhile; or ours is over
                lease_lost(error, self._lease, "migration")
                if not left or self._lease is not None:
                    raise
            tries = UPDATE_TRIES_MAX - left
            SESSION.debug("migration retried: session=%s tries=%d", self._key, tries)
        raise AssertionError("the last try returns or raises")

    def _propose(self, upgrade: Upgrade, loaded: Loaded) -> Prepared:
        try:
            return self.propose(upgrade, loaded)
        except LimpetError as error:
            text = "state migration failed: session=%s from=%s to=%s code=%s"
            stored = loaded.head.schema_version
            SESSION.warning(text, self._key, stored, upgrade.code, error.code)
            raise

    def propose(self, upgrade: Upgrade, loaded: Loaded) -> Prepared:
        """Return what would be recorded, whole and checked; there must be a way.

        Raises MigrationError, SchemaViolation, SessionCorrupt.
        """
        if loaded.damaged:
            raise SessionCorrupt(self._key, f"event {loaded.damaged[0]} cannot be read")
        draft = upgrade.migration(loaded.head, loaded.fields)
        assert draft is not None
        try:
            actor = MIGRATOR if self._actor is None else self._actor
            return self._journal.prepare(draft, actor)
        except EventTooLarge as error:
            stored, step = str(loaded.head.schema_version), tuple(draft.data["steps"][-1])
            reason = f"changes too much for one event ({error.size_bytes:,} bytes)"
            raise errors.MigrationFailed(
                "session", stored, str(upgrade.code), step, reason
            ) from error

    async def _verify(self) -> None:
        """Integrity first, before any function runs: a migration must not build on damage."""
        report = await self._journal.store.verify(self._key)
        if not report.ok:
            raise SessionCorrupt(self._key, report.findings[0].problem)

    async def _record(self, prepared: Prepared, loaded: Loaded) -> Committed:
        head, lease = loaded.head, self._lease
        mine = lease is not None and lease.fence == head.fence
        if not mine and is_leased(head, self._journal.now_us()):
            raise locked(head)  # its runner may be of the old version: not under its hands
        # 0 admits only what was never leased. Of a later lease there is no such sign.
        fence = lease.fence if lease is not None else 0 if head.fence == 0 else None
        commit = Commit(self._key, (prepared,), head.version, fence, {}, head.schema_version)
        (committed,) = await self._journal.commit((commit,))
        return committed
