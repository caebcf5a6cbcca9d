"""One session, as its owner holds it: the verbs that read it and add to it.

What is known of it is `known`, how writes are decided and retried is `writer`. The object changes
only after a commit has succeeded, and then shows exactly what was stored. It may be shared by tasks
of one event loop: appends queue, and the object never goes backwards.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from limpet.errors import InvalidInput, SessionNotLoaded
from limpet.model import Draft, Event, Fact, Head, Key, Lease
from limpet.model import ops as op
from limpet.model.facts import (
    drafted,
)
from limpet.session.arguments import (
    check_actor,
    check_attempt,
    check_before,
    check_change,
    check_expect,
    check_fact,
    check_flag,
    check_ids,
    check_limit,
    check_many,
    check_seq,
    check_tail,
    check_types,
)
from limpet.session.blobs import HoldsBlobs
from limpet.session.conversing.conversation import Conversation
from limpet.session.history.verbs import History
from limpet.session.journal import Journal
from limpet.session.known import Known
from limpet.session.life.verbs import Life
from limpet.session.queueing.verbs import NONE_GIVEN, AppendsSoon
from limpet.session.runs.family import Family
from limpet.session.runs.outcomes import Achieving
from limpet.session.runs.running import Running
from limpet.session.runs.scheduling import Scheduling
from limpet.session.runs.setup import SettingUp
from limpet.session.writer import Writer

if TYPE_CHECKING:
    from limpet.model.envelope.envelope import Format
    from limpet.session.typing.typed import Typed

S = TypeVar("S", covariant=True)


class Session(
    Achieving,
    AppendsSoon,
    Conversation,
    Family,
    Life,
    Running,
    Scheduling,
    SettingUp,
    HoldsBlobs,
    History[S],
    Generic[S],
):
    """A session, or a handle on one. A bound `actor` stands for appends that name none.

    With a `lease`, everything it writes is refused (SessionFenced) once the lease is not held.
    `S` is what its state is: a State class that was given, or else a mapping.
    """

    # A server may hold a hundred thousand: nothing is made before it is needed.
    __slots__ = ("__weakref__", "actor", "key", "writer")

    def __init__(
        self,
        journal: Journal,
        key: Key,
        *,
        actor: str | None = None,
        lease: Lease | None = None,
        typed: Typed[Any] | None = None,
        untyped: bool = False,
    ) -> None:
        self.key = key
        self.actor = check_actor(actor)
        self._remembers = None
        # For the rest of the package: what is known, and the way to write.
        how: dict[str, Any] = {"lease": lease, "typed": typed, "untyped": untyped}
        self.writer = Writer(journal, Known(key), self, **how)

    def __repr__(self) -> str:
        known = self.writer.known
        version = "not loaded" if known.maybe_head is None else f"version {known.version}"
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
    def lease(self) -> Lease | None:
        """The lease that everything written here is under, if any."""
        return self.writer.lease

    @property
    def head(self) -> Head:
        """Where the session stands: labels, pending inputs, timers, times."""
        return self.writer.known.head

    @property
    def version(self) -> int:
        """The seq of the last event this object knows of."""
        return self.writer.known.head.version

    @property
    def labels(self) -> Mapping[str, str]:
        return self.writer.known.head.labels

    @property
    def damaged(self) -> tuple[int, ...]:
        """The seqs of events that could not be read; the state lacks what they did."""
        return self.writer.known.damaged

    @property
    def state(self) -> S:
        """The session's own fields as its State class, if one was given; else `values`.

        Raises SchemaViolation if what is stored does not fit the class.
        """
        typed, known = self.writer.typed, self.writer.known
        if typed is None:
            return self.values  # type: ignore[return-value]  # S is a mapping then
        if known.maybe_head is None:
            raise SessionNotLoaded("the state")
        view: S = typed.view(known.maybe_head, known.fields)
        return view

    @property
    def values(self) -> Mapping[str, Any]:
        """Session fields, app:, user: and temp: names in one read-only dict of plain values.

        The session's own fields are those of `version`; app: and user: names are as last loaded
        or written here (refresh reads them again).
        """
        return self.writer.known.values

    @property
    def events(self) -> tuple[Event, ...]:
        """The loaded tail: the newest events this object knows of, without a gap."""
        return self.writer.known.tail

    # --- reading -------------------------------------------------------------------------------

    async def refresh(self, *, tail: int = 20) -> Session[S]:
        """Load the newest head, state and tail into this object. Raises SessionNotFound.

        SessionArchived, if its log was moved to the archive. Typed state of another MAJOR is
        migrated, which is recorded. Raises MigrationError then.
        """
        await self.writer.load(tail=check_tail(tail))
        return self

    def envelope(self, *, format: Format = "json") -> bytes:
        """The session's own fields on their way to another system: see limpet.envelope.

        Raises SessionCorrupt if an event is damaged: what is not known would be vouched for.
        """
        from limpet.model.envelope import envelope as envelopes

        head = self.head
        if not self.writer.known.is_loaded:
            raise SessionNotLoaded("the state")
        self.writer.known.check_whole()
        return envelopes.encode(
            self.writer.known.fields,
            schema_version=head.schema_version,
            state_version=head.version,
            serialized_at_us=self.writer.journal.now_us(),
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
        page = await self.writer.journal.store.read(
            self.key, after=start, limit=limit, reverse=reverse, types=check_types(types)
        )
        return tuple([e for e in page if after < e.seq and (before is None or e.seq < before)])

    async def read_ids(self, ids: Iterable[str]) -> tuple[Event, ...]:
        """The events of this session's own log with these ids, in their order; no unknown ones."""
        wanted = check_ids(ids)
        return await self.writer.journal.store.read_ids(self.key, wanted) if wanted else ()

    def follow(
        self, *, after: int = 0, types: Iterable[str] | None = None, partials: bool = True
    ) -> AsyncGenerator[Event, None]:
        """Events after seq `after` as they are recorded: none lost, none doubled, in order.

        `types` selects exact types or families (`user.*`), as in read. Partial events come too,
        from any process, unless partials=False: marked `partial`, with seq 0 and the id of the
        event that will be recorded, never after it. They may be lost; recorded events never are.
        Ends with SessionDeleted when the session is deleted, StoreClosed when Limpet is closed,
        FollowerBehind when partials pile up unread.
        """
        journal, after = self.writer.journal, check_seq(after)
        journal.check_open()
        check_flag("partials", partials)
        return journal.hub.follow(self.key, after, check_types(types), partials=partials)

    # --- writing -------------------------------------------------------------------------------

    async def append(
        self,
        type: str,
        data: Mapping[str, Any] = NONE_GIVEN,
        *,
        actor: str | None = None,
        set: Mapping[str, Any] = NONE_GIVEN,
        merge: Mapping[str, Mapping[str, Any]] = NONE_GIVEN,
        add: Mapping[str, Sequence[Any]] = NONE_GIVEN,
        inc: Mapping[str, int | float] = NONE_GIVEN,
        delete: Iterable[str] = (),
        ops: Iterable[op.Op] = (),
        id: str | None = None,
        cause: str | None = None,
        invocation_id: str | None = None,
        correlation_id: str | None = None,
        wake_id: str | None = None,
        expect: int | None = None,
        input: bool = False,
        partial: bool = False,
        attempt: int = 1,
    ) -> Event:
        """Record one event and its changes to state, durably, or nothing.

        Without `expect` it rebases: if the session moved on, the ops are checked on the newest
        state and applied there. With `expect=n` it is recorded only if the session is at version
        n, else SessionConflict. A repeated `id` returns the first record, with `event.repeated`
        True. An `input` is pending until it is processed, whatever its type. A `partial` event is
        not recorded: it only reaches followers. Give it the `id` that the final event will have,
        and count `attempt` up when you begin that event again.

        Typed state of another MAJOR than was loaded is not changed: raises MigrationError, or
        migrates it first. SessionTyped if it would change typed state and this object has no State
        class.
        """
        writer = self.writer
        prepared = self._prepare(
            type,
            data,
            actor,
            set,
            merge,
            add,
            inc,
            delete,
            ops,
            id,
            cause,
            invocation_id,
            correlation_id,
            wake_id,
            input=input,
        )
        if partial:
            return writer.publish(prepared, check_attempt(attempt))
        if attempt != 1:
            check_attempt(attempt, partial=False)
        if expect is not None:
            check_expect(expect)
        if writer.typed is None:
            return (await writer.commit((prepared,), expect))[0]
        return (await writer.append((prepared,), expect, may_repeat=id is not None))[0]

    async def append_many(
        self, drafts: Iterable[Draft], *, actor: str | None = None, expect: int | None = None
    ) -> tuple[Event, ...]:
        """Record several events in order, all or nothing."""
        actor = self._acting(actor)
        drafts = list(check_many(drafts))
        prepared = tuple([self.writer.journal.prepare(draft, actor) for draft in drafts])
        may_repeat = any([draft.id is not None for draft in drafts])
        if not prepared:
            return ()
        return await self.writer.append(prepared, check_expect(expect), may_repeat=may_repeat)

    async def update(
        self,
        change: Callable[[S], Mapping[str, Any] | None],
        *,
        type: str | None = None,
        data: Mapping[str, Any] = NONE_GIVEN,
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
        draft = drafted(
            type,
            data=data,
            actor=self._acting(actor),
            id=id,
            cause=cause,
            invocation_id=invocation_id,
            correlation_id=correlation_id,
            wake_id=wake_id,
        )
        return await self.writer.update(change, draft)

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
        data: Mapping[str, Any] = NONE_GIVEN,
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
        if self.writer.typed is None:
            raise InvalidInput(
                "apply needs typed state. Open the session with get(key, state_type=MyState)."
            )
        draft = drafted(
            type,
            data=data,
            actor=self._acting(actor),
            id=id,
            cause=cause,
            invocation_id=invocation_id,
            correlation_id=correlation_id,
            wake_id=wake_id,
        )
        return await self.writer.apply(update, draft, check_expect(expect))

    async def record(self, *facts: Fact, actor: str | None = None) -> tuple[Event, ...]:
        """Record facts about the session, as limpet.facts makes them, in order, all or nothing."""
        acting = self._acting(actor)
        prepared = tuple([self.writer.journal.prepare(check_fact(fact), acting) for fact in facts])
        return await self.writer.commit(prepared) if prepared else ()
