"""One session, as its owner holds it: what was read of it, and the verbs that add to it.

The object changes only after a commit has succeeded, and then shows exactly what was stored. It
may be shared by tasks of one event loop: appends queue, and the object never goes backwards.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

from msgspec import UNSET, UnsetType, structs

from limpet.errors import (
    InvalidEvent,
    InvalidInput,
    OpPathUnknown,
    OpTypeMismatch,
    SchemaViolation,
    SessionConflict,
    SessionCorrupt,
    SessionFenced,
    SessionNotLoaded,
    StoreError,
)
from limpet.model import head as facts
from limpet.model import ops as op
from limpet.model.events import Commit, Draft, Event, Prepared
from limpet.model.fold import ScopeValue
from limpet.model.head import Head, TimerKind
from limpet.model.keys import Key
from limpet.model.lease import Lease
from limpet.model.limits import INT_MAX, TAIL_KEPT, UPDATE_TRIES_MAX
from limpet.model.values import EMPTY, FrozenDict, Reads, described
from limpet.session.arguments import check_actor, check_change, check_many, timer_at
from limpet.session.loading import Loading
from limpet.session.logs import SESSION, lease_lost
from limpet.store.protocol import Committed, Loaded, scope_fields
from limpet.store.scopes import Scopes
from limpet.store.select import check_before, check_limit, check_seq, check_tail, check_types

if TYPE_CHECKING:
    from limpet.model.envelope import Format
    from limpet.session.sessions import Limpet
    from limpet.session.typed import Typed

_NONE: Final[Mapping[str, Any]] = {}
_PAUSE_SECONDS_MAX: Final = 0.002
_NEVER: Final = INT_MAX  # a version that no session is at: only a repeat gets past it
# On the state that was known.
_MISFITS: Final = (SchemaViolation, OpPathUnknown, OpTypeMismatch, SessionCorrupt)


S = TypeVar("S", covariant=True)


class Session(Generic[S]):
    """A session, or a handle on one. A bound `actor` stands for appends that name none.

    With a `lease`, everything it writes is refused (SessionFenced) once the lease is not held.
    `S` is what its state is: a State class that was given, or else a mapping.
    """

    def __init__(
        self,
        lp: Limpet,
        key: Key,
        *,
        actor: str | None = None,
        lease: Lease | None = None,
        typed: Typed[Any] | None = None,
        untyped: bool = False,
    ) -> None:
        self._lp = lp
        self.key = key
        self.actor = check_actor(actor)
        self.lease = lease
        self.damaged: tuple[int, ...] = ()
        self._head: Head | None = None
        self._fields: FrozenDict = EMPTY
        self._versions: FrozenDict = EMPTY
        self._scopes: Scopes | None = None  # None: never loaded
        self._temp: FrozenDict = EMPTY
        self._events: deque[Event] = deque(maxlen=TAIL_KEPT)
        self._state: FrozenDict | None = None
        self._typed = typed
        # Without a class it leaves the fields of typed state alone, unless that is what is wanted.
        self._classless = typed is None and not untyped

    def __repr__(self) -> str:
        version = "not loaded" if self._head is None else f"version {self._head.version}"
        return f"<limpet.Session {self.key} {version}>"

    # --- what is known of it -------------------------------------------------------------------

    @property
    def app(self) -> str:
        return self.key.app

    @property
    def user(self) -> str:
        return self.key.user

    @property
    def id(self) -> str:
        return self.key.id

    @property
    def head(self) -> Head:
        """Where the session stands: labels, pending inputs, timers, times."""
        if self._head is None:
            raise SessionNotLoaded("the head")
        return self._head

    @property
    def version(self) -> int:
        """The seq of the last event this object knows of."""
        return self.head.version

    @property
    def labels(self) -> Mapping[str, str]:
        return self.head.labels

    @property
    def state(self) -> S:
        """The session's own fields as its State class, if one was given; else `values`.

        Raises SchemaViolation if what is stored does not fit the class.
        """
        if self._typed is None:
            return self.values  # type: ignore[return-value]  # S is a mapping then
        if self._head is None:
            raise SessionNotLoaded("the state")
        view: S = self._typed.view(self._head, self._fields)
        return view

    @property
    def values(self) -> Mapping[str, Any]:
        """Session fields, app:, user: and temp: names in one read-only dict of plain values.

        The session's own fields are those of `version`; app: and user: names are as last loaded
        or written here (refresh reads them anew).
        """
        if self._scopes is None:
            raise SessionNotLoaded("the state")
        if self._state is None:
            merged = {**self._fields, **scope_fields(self._scopes), **self._temp}
            self._state = FrozenDict(merged)
        return self._state

    @property
    def events(self) -> tuple[Event, ...]:
        """The loaded tail: the newest events this object knows of, without a gap."""
        return tuple(self._events)

    # --- reading -------------------------------------------------------------------------------

    async def refresh(self, *, tail: int = 20) -> Session[S]:
        """Load the newest head, state and tail into this object. Raises SessionNotFound.

        Typed state of another MAJOR is migrated, which is recorded. Raises MigrationError then.
        """
        await self._load(tail=check_tail(tail))
        return self

    def envelope(self, *, format: Format = "json") -> bytes:
        """The session's own fields on their way to another system: see limpet.envelope.

        Raises SessionCorrupt if an event is damaged: what is not known would be vouched for.
        """
        from limpet.model import envelope as envelopes

        head = self.head
        if self._scopes is None:
            raise SessionNotLoaded("the state")
        self._check_whole()
        return envelopes.encode(
            self._fields,
            schema_version=head.schema_version,
            state_version=head.version,
            serialized_at_us=self._lp._now_us(),
            format=format,
        )

    async def read(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = 100,
        reverse: bool | None = None,
        types: Iterable[str] | None = None,
    ) -> tuple[Event, ...]:
        """A page of the events with after < seq < before, the oldest first.

        With reverse=True, or with `before` alone, the newest first: the page that ends there. Read
        on with after= or before= the last seq of the page. `types` selects exact types or families
        (`user.*`). A page of large events ends early, at about 16 MiB: it may hold fewer than
        `limit` though more follow. Only an empty page is the end.
        """
        after, before = check_seq(after), check_before(before)
        if reverse is None:
            reverse = before is not None and after == 0
        limit = check_limit(limit)
        if before is not None:  # seqs are dense: no more can lie between; 1 asks if it is there
            limit = max(1, min(limit, before - after - 1))
        start = (before or 0) if reverse else after
        page = await self._lp._store_now().read(
            self.key, after=start, limit=limit, reverse=reverse, types=check_types(types)
        )
        return tuple([e for e in page if after < e.seq and (before is None or e.seq < before)])

    async def pending(self, *, limit: int = 100) -> tuple[Event, ...]:
        """What is still to be dealt with: user.* events not processed yet, the oldest first.

        Read from the store, whatever this object knows. Who processes them calls again until
        nothing is left: a page of large ones ends early, as that of `read` does. The cost grows
        with what was recorded since the oldest of them.
        """
        return await self._lp._store_now().pending_inputs(self.key, limit=check_limit(limit))

    def follow(
        self, *, after: int = 0, types: Iterable[str] | None = None
    ) -> AsyncGenerator[Event, None]:
        """Events after seq `after` as they are recorded: none lost, none doubled, in order.

        `types` selects exact types or families (`user.*`), as in read. Partial events of this
        process come too, marked `partial`. Ends with SessionDeleted when the session is deleted,
        StoreClosed when Limpet is closed, FollowerBehind when partials pile up unread.
        """
        self._lp._store_now()
        return self._lp._hub.follow(self.key, check_seq(after), check_types(types))

    # --- writing -------------------------------------------------------------------------------

    async def append(
        self,
        type: str,
        data: Mapping[str, Any] = _NONE,
        *,
        actor: str | None = None,
        set: Mapping[str, Any] = _NONE,
        merge: Mapping[str, Mapping[str, Any]] = _NONE,
        add: Mapping[str, Sequence[Any]] = _NONE,
        inc: Mapping[str, int | float] = _NONE,
        delete: Iterable[str] = (),
        ops: Iterable[op.Op] = (),
        id: str | None = None,
        cause: str | None = None,
        invocation_id: str | None = None,
        correlation_id: str | None = None,
        wake_id: str | None = None,
        expect: int | None = None,
        partial: bool = False,
    ) -> Event:
        """Record one event and its changes to state, durably, or nothing.

        Without `expect` it rebases: if the session moved on, the ops are checked on the newest
        state and applied there. With `expect=n` it is recorded only if the session is at version
        n, else SessionConflict. A repeated `id` returns the first record, with `event.repeated`
        True. A `partial` event only reaches followers. Typed state of another MAJOR than was
        loaded is not changed: raises MigrationError, or migrates it first. SessionTyped if it would
        change typed state and this object has no State class.
        """
        draft = Draft(
            type=type,
            data=data,
            actor=actor,
            set=set,
            merge=merge,
            add=add,
            inc=inc,
            delete=delete,
            ops=ops,
            id=id,
            cause=cause,
            invocation_id=invocation_id,
            correlation_id=correlation_id,
            wake_id=wake_id,
        )
        prepared = self._lp._prepare(draft, self.actor)
        if partial:
            return self._publish(prepared)
        return (await self._append((prepared,), expect, named=id is not None))[0]

    async def append_many(
        self, drafts: Iterable[Draft], *, actor: str | None = None, expect: int | None = None
    ) -> tuple[Event, ...]:
        """Record several events in order, all or nothing."""
        actor = self._acting(actor)
        drafts = check_many(drafts)
        prepared = tuple([self._lp._prepare(draft, actor) for draft in drafts])
        named = any([draft.id is not None for draft in drafts])
        return await self._append(prepared, expect, named=named) if prepared else ()

    async def update(
        self,
        change: Callable[[S], Mapping[str, Any] | None],
        *,
        type: str | None = None,
        data: Mapping[str, Any] = _NONE,
        actor: str | None = None,
        id: str | None = None,
        cause: str | None = None,
        invocation_id: str | None = None,
        correlation_id: str | None = None,
        wake_id: str | None = None,
    ) -> Event | None:
        """Read, compute, commit: `change(state)` returns the names to set (None: nothing).

        With a `type` the event is yours, with its data, and an empty dict records it alone; else
        it is a state.updated. If the `id` was recorded before, the first record is returned and
        `change` is not asked.

        If a name that `change` looked at or sets has changed in the meantime, whoever changed it,
        `change` is called again on the newest state; SessionConflict after too many tries. Going
        through all names, or copying the state, notices new session fields, not new app: or user:
        names. With typed state it returns an update as `apply` takes it, made again if anything
        was written. SessionCorrupt if an event, or a name that was looked at, cannot be read: it
        would be missing from what is computed.
        """
        check_change(change)
        draft = Draft(
            type="state.updated" if type is None else type,
            data=data,
            actor=self._acting(actor),
            id=id,
            cause=cause,
            invocation_id=invocation_id,
            correlation_id=correlation_id,
            wake_id=wake_id,
        )
        await self._refresh_whole()  # "nothing to do" must be decided on the newest state too
        return await self._persist(lambda: self._try_update(change, draft, reserved=type is None))

    @overload
    async def apply(
        self,
        update: Mapping[str, Any],
        *,
        type: str,
        data: Mapping[str, Any] = ...,
        actor: str | None = None,
        id: str | None = None,
        cause: str | None = None,
        invocation_id: str | None = None,
        correlation_id: str | None = None,
        wake_id: str | None = None,
        expect: int | None = None,
    ) -> Event: ...

    @overload
    async def apply(
        self,
        update: Mapping[str, Any],
        *,
        type: str | None = None,
        data: Mapping[str, Any] = ...,
        actor: str | None = None,
        id: str | None = None,
        cause: str | None = None,
        invocation_id: str | None = None,
        correlation_id: str | None = None,
        wake_id: str | None = None,
        expect: int | None = None,
    ) -> Event | None: ...

    async def apply(
        self,
        update: Mapping[str, Any],
        *,
        type: str | None = None,
        data: Mapping[str, Any] = _NONE,
        actor: str | None = None,
        id: str | None = None,
        cause: str | None = None,
        invocation_id: str | None = None,
        correlation_id: str | None = None,
        wake_id: str | None = None,
        expect: int | None = None,
    ) -> Event | None:
        """Update typed state through the reducers of its fields, as one event; None: no change.

        Values are checked before anything is written (SchemaViolation). Where a reducer looks at
        what the field holds and another writer was faster, it is done again on the newest state.
        With a `type` the event is yours, with its data; else it is a state.updated. With
        `expect=n` it is recorded only if the session is at version n, else SessionConflict.
        """
        if self._typed is None:
            raise InvalidInput(
                "apply needs typed state. Open the session with get(key, state_type=MyState)."
            )
        draft = Draft(
            type="state.updated" if type is None else type,
            data=data,
            actor=self._acting(actor),
            id=id,
            cause=cause,
            invocation_id=invocation_id,
            correlation_id=correlation_id,
            wake_id=wake_id,
        )
        if check_expect(expect) is not None:
            return await self._apply_at(update, draft, expect, reserved=type is None)
        try:
            await self._know()
            event = await self._persist(
                lambda: self._try_apply(update, draft, reserved=type is None)
            )
        except (SchemaViolation, SessionCorrupt):
            event = await self._repeat(draft)
            if event is None:
                raise
        return event if event is not None else await self._repeat(draft)

    async def label(self, labels: Mapping[str, str | None], *, actor: str | None = None) -> Event:
        """Set labels; None takes one off. Labels are for finding sessions: lp.list(labels=…)."""
        return await self._record(facts.LABELED, facts.labeled_data(labels), actor)

    async def set_timer(
        self,
        name: str,
        at: datetime | timedelta,
        *,
        kind: TimerKind = "wake",
        actor: str | None = None,
    ) -> Event:
        """Ask to be due at a time, so that a claim gives the session. The same name replaces.

        A timedelta counts from now, by the clock of this process.
        Time passing records nothing: the session stays due until whoever did what the timer was
        for clears it, or sets it anew, best in the commit that records the work (c.clear_timer).
        A kind="deadline" is recorded, listed with the head and told by limpet.deadline_at;
        nothing acts on it yet, and it makes no session due.
        """
        at = timer_at(at, self._lp._now_us())
        return await self._record(facts.TIMER_SET, facts.timer_data(name, at, kind), actor)

    async def clear_timer(self, name: str, *, actor: str | None = None) -> Event:
        """Take a timer back. Clearing one that is not set changes nothing but the log."""
        return await self._record(facts.TIMER_CLEARED, facts.timer_name(name), actor)

    async def set_priority(self, priority: int, *, actor: str | None = None) -> Event:
        """Say how urgent it is, from -1000 to 1000: among due sessions the highest go first."""
        return await self._record(facts.PRIORITIZED, facts.prioritized_data(priority), actor)

    async def mark_processed(self, seqs: Iterable[int], *, actor: str | None = None) -> Event:
        """Say that these inputs (pending user.* events) were dealt with. Raises NotPending."""
        return await self._record(facts.PROCESSED, facts.processed_data(seqs), actor)

    # --- private -------------------------------------------------------------------------------

    def _acting(self, actor: str | None) -> str | None:
        """Who acts: the one named, or the one bound."""
        return check_actor(self.actor if actor is None else actor)

    async def _persist(self, attempt: Callable[[], Awaitable[Event | None]]) -> Event | None:
        """Try until no other writer was faster; SessionConflict after too many tries."""
        with suppress(SessionConflict):
            return await attempt()
        # In this process those who met a conflict go one by one, so that each round has a winner.
        async with self._lp._updating(self.key.app):
            for tries in range(UPDATE_TRIES_MAX):
                SESSION.debug("update retried: session=%s tries=%d", self.key, tries + 1)
                await self._refresh_whole()
                with suppress(SessionConflict):
                    return await attempt()
                await asyncio.sleep(random.uniform(0, _PAUSE_SECONDS_MAX))
            await self._refresh_whole()
            return await attempt()

    async def _try_apply(
        self,
        update: Mapping[str, Any],
        draft: Draft,
        *,
        reserved: bool,
        expect: int | None = None,
    ) -> Event | None:
        assert self._typed is not None
        if self._typed.way(self.head.schema_version):  # migrated by others: to be loaded anew
            code = str(self._typed.code)
            raise SessionConflict(self.key, "the schema", code, self.head.schema_version)
        if self.head.schema_version is not None:
            self._typed.prove(self.head, self._fields)
        planned = self._typed.plan(self._fields, update, draft.actor)
        if not planned.ops and reserved:
            return None
        draft = structs.replace(draft, ops=planned.ops)
        drafts = [self._lp._prepare(draft, None, reserved=reserved)]
        raising = self._typed.raising(self.head, self._fields, planned.ops)
        if raising is not None:
            drafts.insert(0, self._lp._prepare(raising, draft.actor, reserved=True))
        guards, schema = self._guards(planned.guards), self.head.schema_version
        return (await self._commit(tuple(drafts), expect, guards, schema))[-1]

    async def _apply_at(
        self, update: Mapping[str, Any], draft: Draft, expect: int | None, *, reserved: bool
    ) -> Event | None:
        """Plan on the state of this very version; not again on another."""
        repeat = await self._repeat(draft)
        if repeat is not None:
            return repeat
        await self._know()
        if self.version != expect:
            await self._refresh_whole()
        if self.version != expect:
            raise SessionConflict(self.key, "the session", expect, self.version)
        return await self._try_apply(update, draft, reserved=reserved, expect=expect)

    async def _repeat(self, draft: Draft) -> Event | None:
        """What was recorded under the draft's id before; a plan on newer state need not fit it."""
        if draft.id is None:
            return None
        prepared = self._lp._prepare(structs.replace(draft, ops=()), None, reserved=True)
        with suppress(SessionConflict):
            return (await self._commit((prepared,), _NEVER))[0]
        return None

    async def _append(
        self, drafts: tuple[Prepared, ...], expect: int | None, *, named: bool = False
    ) -> tuple[Event, ...]:
        """Record events of the caller's. Those that change typed state are checked on the newest
        that is known, and are recorded under its version and on the fields that were looked at.

        If those have moved on, it is done again; refresh says whether this code may: not over a
        MAJOR. `named` drafts may have been recorded before, when they did fit.
        """
        typed = self._typed
        if typed is None or not any(map(changes_fields, drafts)):
            return await self._commit(drafts, expect)
        if self._head is None or self._scopes is None or self.damaged:
            await self.refresh()
        for left in reversed(range(UPDATE_TRIES_MAX)):
            if not typed.way(self.head.schema_version):
                try:
                    self._check_whole()
                    guards = self._guards(typed.fit_after(self._fields, drafts))
                    schema = self.head.schema_version
                    return await self._commit(drafts, expect, guards, schema)
                except _MISFITS:
                    if named:
                        with suppress(SessionConflict):
                            return await self._commit(drafts, _NEVER)
                    known = self.version
                    await self.refresh()
                    if self.version == known or not left:
                        raise  # it was checked on the newest state
                    continue
                except SessionConflict as error:
                    if error.what == "the session" or not left:
                        raise
            await self.refresh()
        raise AssertionError("refresh brings state forward, or raises")

    async def _load(self, *, tail: int, since_us: int | None = None) -> None:
        """Read it, brought forward to the version of its class; if that fails, nothing changes."""
        loading = Loading(self._lp, self.key, self.actor, self.lease)
        loaded, moved = await loading.load(self._typed, tail=tail, since_us=since_us)
        self._take(loaded)
        if moved is not None:
            self._absorb(moved, (None,))

    async def _try_update(
        self, change: Callable[[Any], Mapping[str, Any] | None], draft: Draft, *, reserved: bool
    ) -> Event | None:
        # Asked after the state was read: what is computed never builds on its own record.
        repeat = await self._repeat(draft)
        if repeat is not None:
            return repeat
        await self._know()  # meanwhile another task may have read a hole into this object
        if self._typed is not None:
            self._typed.check(self.head)
            update = change(self._typed.fresh(self._fields))  # its own: it may be called again
            if update is None:
                return None
            return await self._try_apply(update, draft, reserved=reserved, expect=self.version)
        reads = Reads(self.values)
        changes = change(reads)
        if changes is None or (reserved and not changes):
            return None
        draft = structs.replace(draft, set=changes)
        prepared = self._lp._prepare(draft, None, reserved=reserved)
        seen = reads.names.union(changes, (self._scopes or ()) if reads.all else ())
        guards = self._guards(seen)
        expect = self.version if reads.all else None  # it saw which names there are
        return (await self._commit((prepared,), expect, guards))[0]

    async def _record(self, type: str, data: Mapping[str, Any], actor: str | None) -> Event:
        draft = Draft(type=type, data=data, actor=self._acting(actor))
        prepared = self._lp._prepare(draft, None, reserved=True)
        return (await self._commit((prepared,), None))[0]

    async def _commit(
        self,
        drafts: tuple[Prepared, ...],
        expect: int | None,
        guards: Mapping[str, int] = _NONE,
        schema: str | UnsetType | None = UNSET,
    ) -> tuple[Event, ...]:
        check_expect(expect)
        self._check_temp(drafts)
        fence = None if self.lease is None else self.lease.fence
        commits = (Commit(self.key, drafts, expect, fence, guards, schema, self._classless),)
        try:
            (committed,) = await self._lp._committing(commits)
        except StoreError as error:
            error.ids = tuple(draft.id for draft in drafts)
            raise
        except SessionFenced as error:
            lease_lost(error, self.lease, "commit")
            raise
        self._lp._hub.touch(self.key, committed.head.version)
        self._absorb(committed, drafts)
        return committed.events

    async def _know(self) -> None:
        """Have state to decide on: read, if it was not yet, or if a part of it was missing."""
        if self._head is None or self._scopes is None or self.damaged:
            await self._refresh_whole()

    async def _refresh_whole(self) -> None:
        await self.refresh()
        self._check_whole()

    def _check_whole(self) -> None:
        if self.damaged:
            raise SessionCorrupt(self.key, f"event {self.damaged[0]} cannot be read")

    def _check_temp(self, drafts: Iterable[Prepared]) -> None:
        """Raise before anything is recorded if a temp: operation does not fit."""
        temp = self._temp
        for draft in drafts:
            if draft.temp_ops:
                temp = op.apply(temp, draft.temp_ops)

    def _begin(self, committed: Committed, drafts: tuple[Prepared, ...]) -> None:
        """Show a session just created: its commit also told all app: and user: names."""
        self._scopes = Scopes()
        self._absorb(committed, drafts)

    def _absorb(self, committed: Committed, drafts: tuple[Prepared | None, ...]) -> None:
        """Show what a commit left. An answer older than what is shown adds only what is new.

        `drafts` go with the commit's events; None stands for one that another object proposed.
        """
        known = 0 if self._head is None else self._head.version
        if self._head is None or committed.head.version > known:
            self._head, self._state = committed.head, None
            self._fields, self._versions = committed.fields, committed.versions
            self._extend(committed.events, known)
            unread = [event.seq for event in self._events if event.damage]
            self.damaged = tuple(sorted({*committed.damaged, *unread}))
        if self._scopes is not None and committed.scopes:
            self._learn(committed.scopes)
        if any([draft is not None and draft.temp_ops for draft in drafts]):
            self._absorb_temp(committed, drafts)

    def _absorb_temp(self, committed: Committed, drafts: tuple[Prepared | None, ...]) -> None:
        """temp: operations of the drafts that were recorded now, not of repeats."""
        before = committed.head.version - (len(drafts) - committed.repeated)
        new = {event.seq: draft for draft, event in zip(drafts, committed.events, strict=True)}
        for seq, draft in new.items():
            if seq > before and draft is not None:
                with suppress(InvalidInput):  # it fitted when checked; another append was faster
                    self._temp, self._state = op.apply(self._temp, draft.temp_ops), None

    def _learn(self, scopes: Mapping[str, ScopeValue]) -> None:
        """Take over the newer ones among app: and user: names."""
        assert self._scopes is not None
        if self._scopes.learn(scopes):
            self._state = None

    def _extend(self, events: tuple[Event, ...], known: int) -> None:
        for event in events:
            if event.type == facts.PROCESSED and event.data is not None:
                self._mark_processed(event.data["seqs"], event.at_us)
            if event.seq > known:
                if event.seq != known + 1:  # others wrote between: no gap in the tail
                    self._events.clear()
                if event.repeated:  # of that write's answer only: the tail shows what is recorded
                    event = structs.replace(event, repeated=False)
                self._events.append(event)
                known = event.seq
        if known != self.version:  # repeats, and others wrote since: the tail ends at the version
            self._events.clear()

    def _mark_processed(self, seqs: Iterable[int], at_us: int) -> None:
        """Show in the tail what an event says about earlier ones."""
        done = set(seqs)
        for place, event in enumerate(self._events):
            if event.seq in done:
                self._events[place] = structs.replace(event, processed_us=at_us)

    def _take(self, loaded: Loaded) -> None:
        if self._scopes is None:
            self._scopes = Scopes()
        self._learn(loaded.scopes)
        if self._head is not None and self._head.version > loaded.head.version:
            return  # a commit of this process was faster than the load
        self._head, self._fields, self._versions = loaded.head, loaded.fields, loaded.versions
        self._state = None
        self._events = deque(loaded.events, max(TAIL_KEPT, len(loaded.events)))
        self.damaged = loaded.damaged

    def _guards(self, names: Iterable[str]) -> dict[str, int]:
        """The version of each name as this object knows it: what a decision was based on."""
        assert self._scopes is not None
        found: dict[str, int] = {}
        for name in names:
            kind = op.scope_of(name)
            if kind == "session":
                found[name] = self._versions.get(name, 0)
            elif kind != "temp":
                found[name] = self._scope_version(name)
        return found

    def _scope_version(self, name: str) -> int:
        """Raises SessionCorrupt if the value was looked at, and could not be read."""
        assert self._scopes is not None
        damage = self._scopes.damage(name)
        if damage is not None:
            raise SessionCorrupt(f"{name} of {self.key.app}", damage)
        return self._scopes.version(name)

    def _publish(self, draft: Prepared) -> Event:
        if draft.ops or draft.temp_ops:
            raise InvalidEvent("a partial event is not recorded, so it cannot change state")
        event = Event(
            seq=0,
            id=draft.id,
            type=draft.type,
            actor=draft.actor,
            at_us=self._lp._now_us(),
            data=draft.data,
            cause=draft.cause,
            invocation_id=draft.invocation_id,
            correlation_id=draft.correlation_id,
            wake_id=draft.wake_id,
            partial=True,
        )
        version = 0 if self._head is None else self._head.version
        self._lp._hub.publish(self.key, event, version)
        return event


def changes_fields(draft: Prepared) -> bool:
    """Whether a draft changes the session's own state."""
    return bool(own_ops(draft))


def own_ops(draft: Prepared) -> list[op.PlainOp]:
    """The operations of a draft on the session's own names."""
    return [o for o in draft.plain_ops if op.scope_of(str(o.path[0])) == "session"]


def check_expect(expect: object) -> int | None:
    """A version to expect, or none; True is not 1 here."""
    if expect is None:
        return None
    if type(expect) is not int or not 0 <= expect <= INT_MAX:
        raise InvalidInput(
            f"expect is a version, not {described(expect)}. Pass the version that the session was "
            "read at, or leave it out."
        )
    return expect
