"""One session, as its owner holds it: the verbs that read it and add to it.

`cached_state` holds what the object knows, `writer` decides and retries writes. The object changes
only after a commit has succeeded, and then shows exactly what was stored. It may be shared by tasks
of one event loop: appends queue, and the object never goes backwards.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar, overload

from msgspec import UNSET

from limpet.errors import (
    AccessDenied,
    CrossSessionAccessDenied,
    InvalidEvent,
    InvalidInput,
    RequestAnswered,
    RequestNotFound,
    SessionConflict,
    SessionNotLoaded,
)
from limpet.model import (
    DefaultActor,
    Draft,
    Event,
    Key,
    Lease,
    Trace,
    ops as op,
    traced,
    unfit,
)
from limpet.model.facts.inputs import processed
from limpet.model.facts.isolation import Isolation
from limpet.model.facts.labels import labeled
from limpet.model.facts.phases import RESUMED, TERMINAL, PhaseEvent
from limpet.model.facts.relations import RelationKind
from limpet.model.facts.running.requests import (
    CONFIRMATION,
    CUSTOM_RESULT,
    RESOLUTION,
    Request,
    asked_id,
    check_answer,
    open_requests,
    requests_in,
)
from limpet.model.facts.running.runs import INTERRUPT, Status, StopReason, run_in
from limpet.model.facts.schema import drafted
from limpet.model.facts.shares import ShareAccess, ShareSync
from limpet.model.lease import status_at
from limpet.model.limits import ID_CHARS_MAX
from limpet.session.arguments import (
    AnyKey,
    check_actor,
    check_attempt,
    check_before,
    check_change,
    check_expect,
    check_flag,
    check_ids,
    check_limit,
    check_many,
    check_seq,
    check_tail,
    check_types,
    key_of,
    own_key,
)
from limpet.session.blobs import AnyRef, SessionBlobs
from limpet.session.conversation.messages import read_messages
from limpet.session.history.checkpoint_log import CheckpointRef
from limpet.session.history.history import SessionHistory
from limpet.session.history.point_in_time import When, fold_of, head_now
from limpet.session.journal import is_not_about_the_version, retrying
from limpet.session.keys import provenance_of
from limpet.session.life.lifecycle import SessionLifecycle
from limpet.session.life.lifecycle_policy import LIFECYCLE_ACTOR, Transition
from limpet.session.life.tools import SessionTools
from limpet.session.performed import ask_server, server_of
from limpet.session.runs.outcomes import SessionOutcome
from limpet.session.runs.runs import SessionRuns
from limpet.session.runs.setup import SessionSetup
from limpet.session.services import Services
from limpet.session.writer import Handle, Writer, writer_of

if TYPE_CHECKING:
    import typing_extensions

    from limpet.model import Path
    from limpet.model.diff.merge import Policy
    from limpet.model.envelope.envelope import Format
    from limpet.security.receipts import Proof, Receipt
    from limpet.session.citations import Cited
    from limpet.session.conversation.context import Context, Count, Summarize
    from limpet.session.conversation.shapes import Message, Shape
    from limpet.session.history.branches import MergedSession
    from limpet.session.history.rewind import Rewound
    from limpet.session.life.memory import Memory
    from limpet.session.relations import Relation
    from limpet.session.schema.typed import Typed
    from limpet.session.sharing import ImportedContext, Shared

NONE_GIVEN: Final[Mapping[str, Any]] = {}  # what an append sets, merges, … if it names nothing
_TAIL: Final = 20
if TYPE_CHECKING:  # a plain `Session` is one of any state; typing.TypeVar has defaults from 3.13 on
    S = typing_extensions.TypeVar("S", covariant=True, default=Any)
else:
    S = TypeVar("S", covariant=True)


class Session(Handle, Generic[S]):
    """A session, or a handle on one. The bound `actor` is used for appends that name none.

    With a `lease`, its writes are refused (SessionFenced) once the lease is no longer held. `S` is
    the type of its state: the given State class, or else a mapping.

    Every call that uses the store may also raise StoreError, and AccessDenied if it acts for a
    principal. A wrong argument raises InvalidInput, and so does a write without an actor
    (ActorMissing).
    """

    # A server may hold a hundred thousand: nothing is made before it is needed.
    __slots__ = ("_remembers",)

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
        super().__init__(services, key, actor=actor, lease=lease, typed=typed, untyped=untyped)
        self._remembers: Memory | None = None

    def __repr__(self) -> str:
        known = self._writer.known
        version = "not loaded" if known.maybe_head is None else f"version {known.version}"
        return f"<limpet.Session {self.key} {version}>"

    # --- what is known of it -------------------------------------------------------------------

    @property
    def lease(self) -> Lease | None:
        """The lease that protects writes made here, if any."""
        return self._writer.lease

    @property
    def version(self) -> int:
        """The seq of the last event that this object knows of. Raises SessionNotLoaded."""
        return self._writer.known.head.version

    @property
    def labels(self) -> Mapping[str, str]:
        """The session's labels, by name. Raises SessionNotLoaded."""
        return self._writer.known.head.labels

    @property
    def isolation(self) -> Isolation:
        """The isolation: the people who may use it besides its user, and the fields of each
        agent."""
        return self._writer.known.head.isolation

    @property
    def state(self) -> S:
        """The session's own fields as its State class, if one was given; else `values`.

        Raises SchemaViolation if what is stored does not fit the class.
        """
        typed, known = self._writer.typed, self._writer.known
        if typed is None:
            return self.values  # type: ignore[return-value]  # S is a mapping then
        if known.maybe_head is None:
            raise SessionNotLoaded("the state")
        view: S = typed.view(known.maybe_head, known.fields)
        return view

    @property
    def values(self) -> Mapping[str, Any]:
        """Session fields, app:, user: and temp: names in one read-only dict of plain values.

        The session's own fields are those of `version`; app: and user: names are as of the last
        load or write here (refresh reads them again).
        """
        return self._writer.known.values

    def checksum(self) -> str:
        """Return the SHA-256 of the session's own fields in their canonical encoding, in hex.

        A checkpoint of this state has the same one. It covers neither app:, user: and temp: names
        nor labels, timers and the log. Who sees a part of the state gets that of this part. It is
        computed when it is asked for, and kept until a field changes. Raises SessionCorrupt if an
        event is damaged, SessionNotLoaded.
        """
        return self._writer.known.checksum()

    @property
    def events(self) -> tuple[Event, ...]:
        """The loaded tail: the newest events this object knows of, without a gap."""
        return self._writer.known.tail

    @property
    def status(self) -> Status:
        """idle, running, rescheduling or terminated, as far as this object knows.

        It is running while a worker holds its lease.
        """
        return status_at(self._writer.known.head, self._writer.journal.now_us())

    @property
    def stop_reason(self) -> StopReason | None:
        """The reason why the last run stopped; None if there was none."""
        head = self._writer.known.head
        if head.phase in TERMINAL:
            return "terminated"
        reason: StopReason | None = run_in(head.facts).get("stop")
        return reason

    @property
    def blocked_on(self) -> tuple[Request, ...]:
        """The open requests of its turn. Answer with confirm, answer or resolve, depending on
        the kind."""
        known = self._writer.known
        return open_requests(known.head.facts, known.texts)

    # --- facets --------------------------------------------------------------------------------

    @property
    def history(self) -> SessionHistory[S]:
        """The past: state at a time, diff, blame, bisect, lineage, checkpoints, retention."""
        return SessionHistory(self._writer)

    @property
    def lifecycle(self) -> SessionLifecycle:
        """Timeouts, timers, priority, and the time spent in each phase."""
        return SessionLifecycle(self)

    @property
    def tools(self) -> SessionTools:
        """The bound tools."""
        return SessionTools(self)

    @property
    def runs(self) -> SessionRuns:
        """Wakes and their traces, usage and budget, parent and children."""
        return SessionRuns(self._writer)

    @property
    def blobs(self) -> SessionBlobs:
        """Large binary values stored beside the log."""
        return SessionBlobs(self._writer, _cited_blob)

    @property
    def outcome(self) -> SessionOutcome:
        """The outcome that the session should achieve, and its progress."""
        return SessionOutcome(self._writer)

    @property
    def setup(self) -> SessionSetup:
        """Agent, environment, permissions, resources and vaults."""
        return SessionSetup(self._writer)

    @property
    def memory(self) -> Memory:
        """Working, session, episodic, semantic and procedural memory: get, put, list, search."""
        if self._remembers is None:
            from limpet.session.life.memory import Memory

            self._remembers = Memory(self._writer)
        return self._remembers

    # --- reading -------------------------------------------------------------------------------

    async def refresh(self, *, tail: int = 20) -> Session[S]:
        """Load the newest head, state and tail into this object, and return it.

        Typed state of another MAJOR is migrated, which is recorded. Raises SessionNotFound,
        SessionDeleted, SessionArchived if its log was archived, SessionMoved, MigrationError.
        """
        await self._writer.load(tail=check_tail(tail))
        return self

    def envelope(self, *, format: Format = "json") -> bytes:
        """Return the session's own fields for another system: see limpet.envelope.

        Raises SessionCorrupt if an event is damaged, since the envelope would vouch for unknown
        data.
        """
        from limpet.model.envelope import envelope as envelopes

        head = self.head
        if not self._writer.known.is_loaded:
            raise SessionNotLoaded("the state")
        self._writer.known.check_whole()
        return envelopes.encode(
            self._writer.known.fields,
            schema_version=head.schema_version,
            state_version=head.version,
            serialized_at_us=self._writer.journal.now_us(),
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
        """Return a page of the events with after < seq < before, the oldest first.

        With reverse=True, or with `before` alone, the newest come first: the page that ends there.
        Continue with after= or before= the last seq of the page. `types` selects exact types or
        families (`user.*`). A page of large events ends early, at about 16 MiB, and may hold fewer
        than `limit` though more follow. Only an empty page is the end. Raises SessionNotFound,
        SessionDeleted.
        """
        after, before = check_seq(after), check_before(before)
        if reverse is None:
            reverse = before is not None and after == 0
        limit = check_limit(limit)
        if before is not None:  # seqs are dense: no more can lie between; 1 asks if it is there
            limit = max(1, min(limit, before - after - 1))
        start = (before or 0) if reverse else after
        page = await self._writer.journal.store.read(
            self.key, after=start, limit=limit, reverse=reverse, types=check_types(types)
        )
        return tuple([e for e in page if after < e.seq and (before is None or e.seq < before)])

    async def read_ids(self, ids: Iterable[str]) -> tuple[Event, ...]:
        """Return the events of its own log with these ids, in log order; skip unknown ids.

        Raises SessionNotFound, SessionDeleted.
        """
        wanted = check_ids(ids)
        return await self._writer.journal.store.read_ids(self.key, wanted) if wanted else ()

    def follow(
        self, *, after: int = 0, types: Iterable[str] | None = None, partials: bool = True
    ) -> AsyncGenerator[Event, None]:
        """Yield the events after seq `after` as they are recorded: in order, each once.

        `types` selects exact types or families (`user.*`), as in read. Partial events are included,
        from any process, unless partials=False: they are marked `partial` and have seq 0 and the id
        of the event that will be recorded; they never come after it. Partials may be lost; recorded
        events never are. Raises SessionDeleted when the session is deleted, StoreClosed when Limpet
        is closed, FollowerBehind when unread partials pile up.
        """
        journal, after = self._writer.journal, check_seq(after)
        journal.check_open()
        check_flag("partials", partials)
        return journal.hub.follow(self.key, after, check_types(types), partials=partials)

    async def pending(self, *, limit: int = 100) -> tuple[Event, ...]:
        """Return the inputs that are not processed yet, the oldest first, from the store.

        Inputs are user.* and system.* events, and those appended with input=True. A page of large
        inputs ends early, as in `read`: call again until none are left. The cost grows with the
        number of pending inputs. Raises SessionNotFound, SessionDeleted.
        """
        return await self._writer.journal.store.pending_inputs(self.key, limit=check_limit(limit))

    async def messages(self, *, correlation_id: str | None = None) -> list[Message]:
        """Return the whole conversation, the oldest message first; with `correlation_id`, only the
        conversation that was recorded with it.

        It has the messages to and from the model, the model's tool calls, and their results;
        approvals and questions of a turn or the runtime are not part of it. It is valid for every
        model: each call is followed by exactly one result, and a call whose result was never
        recorded has one that says it was interrupted. A message that arrived during a turn stands
        where the turn that processes it begins; until then, at the end. Messages undone by a
        rewind, or popped, cleared or rewound by a framework's adapter, are left out. Raises
        SessionNotFound, SessionDeleted.
        """
        return await read_messages(self.read, correlation_id)

    async def context(
        self,
        *,
        tokens: int | None = None,
        shape: Shape = "openai",
        count: Count | None = None,
        system: str = "",
        pinned: Iterable[int] = (),
        summarize: Summarize | None = None,
        correlation_id: str | None = None,
    ) -> Context:
        """Return the conversation for a model, in the form of its API, within a budget of tokens.

        The newest messages are kept, and those pinned by seq or recorded with "pinned": true. A
        tool call stays with its result. `count(text)` counts the tokens of a text (a message is
        counted as JSON); by default four characters are one token. `summarize(messages)` returns a
        text that replaces the messages that were dropped. `system` comes first. With
        `correlation_id`, only the conversation recorded with it. Raises InsufficientTokenBudget if
        the required parts do not fit.
        """
        from limpet.session.conversation.context import compile_context

        return await compile_context(
            self.key,
            await self.messages(correlation_id=correlation_id),
            tokens=tokens,
            shape=shape,
            count=count,
            system=system,
            pinned=pinned,
            summarize=summarize,
        )

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
        trace: Trace | None = None,
        expect: int | None = None,
        input: bool = False,
        partial: bool = False,
        attempt: int = 1,
    ) -> Event:
        """Record one event and its changes to state, durably, or nothing. Return the event.

        Without `expect` it rebases: if the session has moved on, the ops are checked against the
        newest state and applied to it. With `expect=n` it is recorded only if the session is at
        version n, else SessionConflict. A repeated `id` returns the first record, with
        `event.repeated` True. An `input` of any type is pending until it is processed.

        A `partial` event is not recorded; only followers see it. Give it the `id` of the final
        event, and increase `attempt` if you start that event again.

        If typed state has another MAJOR than when it was loaded, it is migrated first or
        MigrationError is raised. Raises SessionTyped if it would change typed state and this object
        has no State class; SessionNotFound, SessionDeleted; SessionSuspended unless it is an input;
        SessionEnded; EventTooLarge.
        """
        writer = self._writer
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
            input=input,
        )
        prepared = self._writer.journal.prepare(traced(draft, trace), self.actor)
        if partial:
            await writer.services.foreseen("write", self.key, prepared.actor)
            try:
                return writer.publish(prepared, check_attempt(attempt))
            except AccessDenied:
                await writer.journal.audit.settle(strict=True)  # durable before it is answered
                raise
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
        """Record several events in order, all or nothing. Return them.

        With `expect=n` they are recorded only if the session is at version n, else SessionConflict.
        Raises as append does.
        """
        actor = self._writer.actor_or_none(actor)
        drafts = list(check_many(drafts))
        prepared = tuple([self._writer.journal.prepare(draft, actor) for draft in drafts])
        may_repeat = any([draft.id is not None for draft in drafts])
        if not prepared:
            return ()
        return await self._writer.append(prepared, check_expect(expect), may_repeat=may_repeat)

    async def update(
        self,
        change: Callable[[S], Mapping[str, Any] | None],
        *,
        type: str | None = None,
        data: Mapping[str, Any] = NONE_GIVEN,
        actor: str | None = None,
        id: str | None = None,
        trace: Trace | None = None,
    ) -> Event | None:
        """Read, compute, commit: `change(state)` returns the names to set (None: nothing).

        With a `type` the event is of that type, with your data, and an empty dict records just the
        event; otherwise it is a state.updated. If the `id` was recorded before, the first record is
        returned and `change` is not called.

        If a name that `change` read or sets has changed meanwhile, `change` is called again on the
        newest state; SessionConflict after too many tries. Iterating over all names, or copying the
        state, notices new session fields but not new app: or user: names. With typed state it
        returns an update as `apply` takes it, and is repeated if anything was written. Raises
        SessionCorrupt if an event, or a name that was read, cannot be read: the result would miss
        it.
        """
        check_change(change)
        by = self._writer.actor_or_none(actor)
        draft = traced(drafted(type, data, by, id), trace)
        return await self._writer.update(change, draft)

    @overload
    async def apply(
        self,
        update: Mapping[str, Any],
        *,
        type: str,
        data: Mapping[str, Any] = ...,
        actor: str | None = None,
        id: str | None = None,
        trace: Trace | None = None,
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
        trace: Trace | None = None,
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
        trace: Trace | None = None,
        expect: int | None = None,
    ) -> Event | None:
        """Update typed state through the reducers of its fields, as one event; return it, or None
        if nothing changed.

        Values are checked before anything is written. If a reducer reads a field and another writer
        was faster, the update is repeated on the newest state. With a `type` the event is of that
        type, with your data; otherwise it is a state.updated. With `expect=n` it is recorded only
        if the session is at version n, else SessionConflict. Raises SchemaViolation, and what
        append raises.
        """
        if self._writer.typed is None:
            raise InvalidInput(
                "apply needs typed state. Open the session with get(key, state_type=MyState)."
            )
        by = self._writer.actor_or_none(actor)
        draft = traced(drafted(type, data, by, id), trace)
        return await self._writer.apply(update, draft, check_expect(expect))

    def append_soon(
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
        trace: Trace | None = None,
        input: bool = False,
    ) -> str:
        """Queue an event without waiting and return its id. `await lp.flush()` records it.

        Takes the arguments of append, except `expect`, `partial` and temp: names. The event's form
        is checked now, and whether it fits the session when it is flushed. Until then it exists
        only in this process: a crash loses it, and `s.state`, `s.version` and readers do not show
        it. Events of one session are recorded in order, and before any later write to it. Raises
        QueueFull when too much is waiting.
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
            input=input,
        )
        prepared = self._writer.journal.prepare(traced(draft, trace), self.actor)
        if prepared.temp_ops:
            raise InvalidEvent("temp: names are not queued. Set them with append")
        return self._writer.journal.queue.add(self.key, self._writer, prepared)

    async def label(self, labels: Mapping[str, str | None], *, actor: str | None = None) -> Event:
        """Set labels and return the event; None removes a label.

        Find sessions by their labels with lp.list(labels=…). Raises InvalidEvent if a label is too
        long or there would be more than 64, SessionNotFound, SessionDeleted.
        """
        return (await self.record(labeled(labels), actor=actor))[0]

    async def mark_processed(self, seqs: Iterable[int], *, actor: str | None = None) -> Event:
        """Mark these inputs (pending user.* events) as processed, and return the event that says
        so.

        Raises NotPending if one of them is not an unprocessed input, SessionNotFound,
        SessionDeleted.
        """
        return (await self.record(processed(seqs), actor=actor))[0]

    # --- answering -----------------------------------------------------------------------------

    async def confirm(
        self,
        request_id: str,
        *,
        allow: bool,
        note: str | None = None,
        actor: str | None = None,
    ) -> Event:
        """Allow or deny what a turn asked for, a request of kind "approval". Return the answer's
        event.

        When the approval is used, permission, phase, budget and deadline are checked again. Raises
        RequestNotFound, RequestAnswered, RequestMismatch.
        """
        _check_request(request_id)
        if not isinstance(allow, bool):
            raise InvalidInput("confirm takes allow=True or allow=False.")
        data: dict[str, Any] = {"request_id": request_id, "allow": allow}
        if note is not None:
            data["note"] = note
        return await self._answer(CONFIRMATION, data, actor)

    async def answer(
        self,
        request_id: str,
        output: Any,
        *,
        is_error: bool = False,
        note: str | None = None,
        actor: str | None = None,
    ) -> Event:
        """Provide the output of a tool that a turn asked for, a request of kind "question". Return
        the answer's event.

        Raises RequestNotFound, RequestAnswered, RequestMismatch.
        """
        _check_request(request_id)
        data: dict[str, Any] = {"request_id": request_id, "output": output}
        if is_error:
            data["is_error"] = True
        if note is not None:
            data["note"] = note
        return await self._answer(CUSTOM_RESULT, data, actor)

    async def resolve(
        self,
        request_id: str,
        *,
        happened: Any = UNSET,
        run_again: bool = False,
        give_up: bool = False,
        note: str | None = None,
        actor: str | None = None,
    ) -> Event:
        """Settle an unknown effect or a mismatch, and return the event that does. Pass exactly one
        of the three.

        `happened=result`: the effect was performed, and this is its result; not for a mismatch.
        `run_again=True` performs the effect again under the same idempotency key; for a mismatch it
        runs the turn again, with every check on. `give_up=True` raises EffectUnknown in the turn (a
        model's tool call gets an error result); for a mismatch it ends the turn, and its inputs are
        processed. Raises RequestNotFound, RequestAnswered, RequestMismatch.
        """
        _check_request(request_id)
        given = {"happened": happened is not UNSET, "run_again": run_again, "give_up": give_up}
        chosen = [name for name, is_given in given.items() if is_given is not False]
        if len(chosen) != 1 or given[chosen[0]] is not True:
            raise InvalidInput(
                "resolve takes exactly one of happened=result, run_again=True and give_up=True."
            )
        data: dict[str, Any] = {"request_id": request_id, "decision": chosen[0]}
        if happened is not UNSET:
            data["output"] = happened
        if note is not None:
            data["note"] = note
        return await self._answer(RESOLUTION, data, actor)

    async def interrupt(self, note: str | None = None, *, actor: str | None = None) -> Event:
        """Stop its turn and return the event that does; open requests and revisits are dropped.

        A running harness sees Interrupted at its next await. Works even if no worker is alive.
        Raises SessionNotFound, SessionEnded.
        """
        if note is not None and (not isinstance(note, str) or not note):
            raise InvalidInput("the note of an interrupt is a text that is not empty.")
        data = {} if note is None else {"note": note}
        draft = Draft(type=INTERRUPT, data={**data, "at": "now"})
        prepared = self._writer.journal.prepare(draft, self._writer.acting(actor))
        return (await self._writer.commit((prepared,)))[0]

    # --- its past ------------------------------------------------------------------------------

    async def fork(
        self,
        at: When | None = None,
        *,
        id: str | None = None,
        user: str | None = None,
        labels: Mapping[str, str] | None = None,
        actor: str | None = None,
    ) -> Session[S]:
        """Return a new session that continues from an event of this one, by default the last.

        Its history includes this one's, and its seqs continue without a gap. It has only the given
        labels, and no pending inputs, timers or leases. It has this session's current permissions,
        bound tools and timeouts, and every limit of its budget set to zero: use `fork.grant`.
        Nothing is written to this session. The cost grows with the state, not with the history.
        Raises SessionMoved if this session is at another node.
        """
        from limpet.session.history.branches import record_fork

        writer, bound = self._writer, check_actor(self.actor if actor is None else actor)
        journal, typed = writer.journal, writer.typed
        await writer.services.approved("read", self.key)
        head = await head_now(writer)
        head.check_here()  # what it goes on from is elsewhere
        fold = await fold_of(writer, head.version if at is None else at)
        key = own_key(self.key.app, self.key.user if user is None else user, id or journal.new_id())
        creator = bound or DefaultActor(f"user:{key.user}")
        made, drafts = await record_fork(journal, head, fold, key, labels=labels, actor=creator)
        again = None if typed is None else type(typed)(typed.of, typed.migrations)
        untyped = typed is None and not writer.classless
        fork: Session[S] = Session(writer.services, key, actor=bound, typed=again, untyped=untyped)
        writer_of(fork).known.begin(made, drafts)
        return fork

    async def relate(
        self,
        other: Session[Any],
        kind: RelationKind,
        *,
        outputs: bool = False,
        actor: str | None = None,
    ) -> Relation:
        """Record that `other` is a successor, a predecessor, a peer or a reference of this session,
        and return the relation.

        Both sessions record it in one commit, even if they have ended; repeating it changes
        nothing. With `outputs`, of a predecessor or a reference, this session may read the output
        that the other has now: see `read_cited`. Then the other may also be archived, or one that
        may only be read: it records nothing. Raises SessionNotFound, SessionDeleted,
        SessionArchived; with `outputs` also CrossSessionAccessDenied.
        """
        from limpet.session.relations import check_kind, relate

        there, by = writer_of(_other(other)), self._writer.acting(actor)
        check_flag("outputs", outputs)
        if not outputs:
            return await relate(self._writer, there, kind, by)
        from limpet.session.citations import relate_outputs

        return await relate_outputs(self._writer, there, check_kind(kind), by)

    async def cite(
        self,
        other: Session[Any],
        *,
        fields: Iterable[str] = (),
        blobs: Iterable[AnyRef] = (),
        actor: str | None = None,
    ) -> Relation:
        """Let this session read top-level fields and blobs of another, as they are now, and return
        the relation: a reference that only this session records.

        Whoever cites must be allowed to read what is cited; the other session may have ended, or be
        archived. See `read_cited`. Raises CrossSessionAccessDenied, SessionNotFound,
        SessionDeleted, BlobNotFound, InvalidInput.
        """
        from limpet.session.citations import cite

        there = writer_of(_other(other))
        return await cite(self._writer, there, fields, blobs, self._writer.acting(actor))

    async def read_cited(self, relation: Relation | str) -> Cited:
        """Return what a relation, or its id, lets this session read of the other: its output, or
        the values of fields and the Refs of blobs. `s.blobs.get(ref)` has their content.

        Each read is decided by both sides. Raises RelationNotFound if the relation has ended, also
        by the end of a session; CitedChanged if it is not what was cited any more;
        CrossSessionAccessDenied if whoever made the relation may not read it any more.
        """
        from limpet.session.citations import read_cited

        return await read_cited(self._writer, _relation_id(relation))

    async def unrelate(self, relation: Relation | str, *, actor: str | None = None) -> None:
        """End a relation of this session, given it or its id: at both ends, if the other records
        it and may be written. Raises RelationNotFound."""
        from limpet.session.relations import unrelate

        await unrelate(self._writer, _relation_id(relation), self._writer.acting(actor))

    async def relations(self, kind: RelationKind | None = None) -> tuple[Relation, ...]:
        """Return its relations to other sessions, of one kind or all, the oldest first.

        They are visible from both ends: `direction` is "to", "from" or "both"; a citation only from
        the session that cites. A relation to a deleted session stays. Children are in `runs`, forks
        and merges in `history`, all of them in `lp.graph`. Raises SessionNotFound, SessionDeleted.
        """
        from limpet.session.relations import check_kind, relations_of

        head = await head_now(self._writer)
        return tuple(await relations_of(self._writer.journal.store, head, check_kind(kind)))

    async def share(
        self,
        other: Session[Any],
        *fields: str,
        access: ShareAccess = "read",
        sync: ShareSync = "snapshot",
        ttl: timedelta | None = None,
        actor: str | None = None,
    ) -> Shared:
        """Share top-level fields of this session with another session of the same app and user;
        return the share.

        A snapshot has the current values; live fields follow this session until unshare, `ttl` or
        the end of either session. With access="write" the other session may set them. Both record
        it in one commit. Raises CrossSessionAccessDenied if the sessions differ in app or user, or
        a policy forbids it; SessionNotFound, SessionEnded.
        """
        from limpet.session.sharing import share

        by = self._writer.acting(actor)
        target = writer_of(_other(other))
        try:
            by = await self._writer.services.foreseen("share", self.key, by)
            return await share(
                self._writer, target, fields, access=access, sync=sync, ttl=ttl, actor=by
            )
        except AccessDenied as denied:  # by the policy of either
            raise CrossSessionAccessDenied(self.key, target.known.key) from denied

    async def unshare(self, id: str, *, actor: str | None = None) -> None:
        """End a share that this session granted, or received. Raises ShareNotFound."""
        from limpet.session.sharing import unshare

        await unshare(self._writer, id, self._writer.acting(actor))

    @property
    def shared(self) -> Mapping[str, Shared]:
        """The shares that other sessions granted to this one and that have not expired, by id."""
        from limpet.session.sharing import received_shares

        return received_shares(self._writer.known.head, self._writer.journal.now_us())

    async def read_shared(
        self, id: str, *, at_least: Mapping[str, int] | int | None = None
    ) -> ImportedContext:
        """Return the values of a share, with the version of each field. Raises ShareNotFound.

        With `at_least` it waits until the source, or each named field, has reached this version.
        """
        from limpet.session.sharing import SharedReader

        context = await SharedReader(self._writer, id).read(at_least)
        self._note_shared(id, context.versions)
        return context

    async def follow_shared(self, id: str) -> AsyncGenerator[ImportedContext, None]:
        """Yield the values of a share, and again after each change, until the share ends.

        Each change is yielded, in order, also to one that is slower than the writer; changes of one
        event are one. What was not consumed when the share ends is not read any more. Raises
        ShareNotFound.
        """
        from limpet.session.sharing import SharedReader

        async for context in SharedReader(self._writer, id).follow():
            self._note_shared(id, context.versions)
            yield context

    async def write_shared(
        self,
        id: str,
        values: Mapping[str, Any],
        *,
        expect: Mapping[str, int] | None = None,
        actor: str | None = None,
    ) -> Mapping[str, int]:
        """Set fields of the source of a share with access="write"; return their new versions.

        Raises SessionConflict unless they still have the versions that this object last read.
        `expect` names other versions, also of shared fields that are not set. Both sessions record
        it in one commit. Raises ShareNotFound, CrossSessionAccessDenied.
        """
        from limpet.session.sharing import SharedReader, check_shared_write

        reads = self._writer.shared_versions or {}
        check_shared_write(values, expect)
        seen = {name: at for name, at in reads.get(id, {}).items() if name in values}
        expected, by = {**seen, **(expect or {})}, self._writer.acting(actor)
        written = await SharedReader(self._writer, id).write(values, expected, by)
        known = (self._writer.shared_versions or {}).get(id, {})  # others may have read meanwhile
        self._note_shared(id, {**known, **written})
        return written

    def _note_shared(self, id: str, versions: Mapping[str, int]) -> None:
        reads = self._writer.shared_versions or {}
        self._writer.shared_versions = {**reads, id: versions}

    async def rewind(
        self, when: When, *, messages: bool = True, actor: str | None = None
    ) -> Rewound:
        """Set the state back to a place in the history, by one event, and return what changed.

        The session's own fields become exactly what they were. An app: or user: name that only this
        session has changed since is set back too; names that another session changed are left, and
        listed in `left` of the result. Labels, timers, inputs and phase stay. The conversation is
        rewound too: `messages` and `context` leave out everything between `when` and the rewind,
        unless messages=False. A pending input is shown once a turn processes it. If state and
        conversation are unchanged nothing is recorded. A rewind can be rewound. Raises TurnUnderway
        while a turn runs or is paused: interrupt it first; InvalidInput if there is no such place.
        """
        from limpet.session.history.rewind import rewind

        check_flag("messages", messages)
        await self._writer.services.approved("write", self.key)
        fold = await fold_of(self._writer, when)
        return await rewind(
            self._writer, fold, actor=self._writer.actor_or_none(actor), data={}, messages=messages
        )

    async def merge(
        self,
        other: Session[Any] | AnyKey,
        *,
        policy: Policy | None = None,
        policies: Mapping[str | Path, Policy] | None = None,
        actor: str | None = None,
    ) -> MergedSession:
        """Merge what another session changed since the two last agreed, as one event.

        They last agreed at the last merge between them, otherwise where one forked the other or
        both forked a third. A place changed by only one side takes that change; where both changed
        it, `policy` decides (limpet.LastWriter, Priority, any function of a Conflict), or the entry
        of `policies` for that path or one above it. Returns the changes and the decisions. Nothing
        is written to the other session, and app: and user: names are never merged. If the other has
        nothing new, nothing is recorded. Raises MergeConflict, which lists all remaining
        `conflicts`; then nothing is recorded.
        """
        from limpet.model.diff.merge import escalate
        from limpet.session.history.branches import merge_session

        if isinstance(other, Session):
            if writer_of(other).journal.root is not self._writer.journal.root:
                raise InvalidInput(f"{other.key} is open in another store. Copy it here first.")
            other = other.key
        theirs = key_of(other)
        await self._writer.services.approved("write", self.key)
        await self._writer.services.approved("read", theirs)
        return await merge_session(
            self._writer,
            theirs,
            policy=policy or escalate,
            policies=policies,
            actor=self._writer.actor_or_none(actor),
        )

    async def checkpoint(
        self, trigger: str = "manual", *, full: bool | None = None, actor: str | None = None
    ) -> CheckpointRef:
        """Create a verifiable restore point and return its ref. Never changes the version.

        A `full` one stores the state itself, an incremental one its seq and checksum; the log has
        the rest. By default the app's policy decides; without one, every tenth is full. It is kept
        until `unpin`. Raises SessionCorrupt if an event cannot be read. Raises SessionNotFound.
        """
        from limpet.session.history.checkpoint_log import CheckpointRequest
        from limpet.session.history.checkpoints import checkpoint

        by = self._writer.actor_or_none(actor)
        if by is not None:
            by = await self._writer.services.actor(by, self.key)
        return await checkpoint(self._writer, CheckpointRequest(trigger, full, by, manual=True))

    # --- its life ------------------------------------------------------------------------------

    async def activate(self, *, actor: str | None = None) -> Transition:
        """Start the work, from init or resumed, and return the transition.

        Raises InvalidTransition, GuardFailed, SessionNotFound.
        """
        from limpet.session.life.transitions import load_to_move

        await load_to_move(self._writer, "activate")
        event: PhaseEvent = "reactivate" if self.phase == RESUMED else "activate"
        return (await self._move(event, actor=actor))[-1]

    async def suspend(self, reason: str | None = None, *, actor: str | None = None) -> Transition:
        """Pause the work and return the transition. Inputs are recorded and wait; other writes are
        refused.

        Raises InvalidTransition unless it is active, GuardFailed, SessionNotFound.
        """
        return (await self._move("suspend", reason=reason, actor=actor))[-1]

    async def resume(self, *, activate: bool = True, actor: str | None = None) -> Transition:
        """Continue a suspended session and return the transition: resumed and active in one commit.

        activate=False only resumes. For the whole protocol, with tools, memory and retrieval, use
        lp.resume(key). Raises InvalidTransition unless it is suspended, GuardFailed,
        SessionNotFound.
        """
        events: tuple[PhaseEvent, ...] = ("resume", "reactivate") if activate else ("resume",)
        return (await self._move(*events, actor=actor))[-1]

    async def complete(self, output: Any = None, *, actor: str | None = None) -> Transition:
        """End the session, its work done, and return the transition.

        Children that have finished their work are completed with it, in the same commit. Raises
        GuardFailed unless all exit criteria hold, theirs too, and no child has anything left to do;
        InvalidTransition, SessionNotFound.
        """
        more = {} if output is None else {"output": output}
        return (await self._move("complete", actor=actor, more=more))[-1]

    async def terminate(self, reason: str | None = None, *, actor: str | None = None) -> Transition:
        """End the session early and return the transition: compensations run, then cleanup hooks,
        in order.

        Raises InvalidTransition if it has ended already, GuardFailed, SessionNotFound.
        """
        return (await self._move("terminate", reason=reason, actor=actor))[-1]

    async def archive(self, *, actor: str | None = None) -> Transition:
        """Move a completed or terminated session to the archive, and return the transition.

        Its log becomes one verified file there; then its rows are removed from the store, and its
        head stays listed. Without an archive (limpet.open(url, archive=…)) the log stays where it
        is. An interrupted call is finished by the next call or sweep. Raises InvalidTransition if
        there is nothing to finish, GuardFailed, ArchiveFailed.
        """
        from limpet.session.life.archive import archive_session

        by = self._writer.actor_or_none(actor) or LIFECYCLE_ACTOR
        by = await self._writer.services.foreseen("lifecycle", self.key, by, whole=True)
        return await archive_session(self, by)

    # --- what can be proven --------------------------------------------------------------------

    async def receipt(self) -> Receipt:
        """Return a signed statement of the session's version, its link, and the root of a Merkle
        tree over its events. For a completed session it is the one signed at completion.

        Check it with limpet.check_receipt and lp.keys.public_key. Raises KeysMissing.
        """
        await self._writer.services.approved("read", self.key)
        if (server := server_of(self._writer.journal)) is not None:  # which has the keys
            served: Receipt = await ask_server(server, "receipt", self.key, self._writer.known.uid)
            return served
        signing = provenance_of(self._writer.journal, "receipt")
        await self._writer.services.permitted("inspect", self.key)
        return await signing.receipt(await head_now(self._writer))

    async def prove(self, seq: int, *, version: int | None = None) -> Proof:
        """Return the proof that an event is covered by the receipt of this version, by default the
        current one. It contains this event and no other. Raises KeysMissing, InvalidInput."""
        await self._writer.services.approved("read", self.key)
        if (server := server_of(self._writer.journal)) is not None:
            sent = (self.key, self._writer.known.uid, seq, version)
            served: Proof = await ask_server(server, "prove", *sent)
            return served
        signing = provenance_of(self._writer.journal, "prove")
        await self._writer.services.approved("read", self.key)
        head = await head_now(self._writer)
        return await signing.prove(head, seq, head.version if version is None else version)

    # --- private -------------------------------------------------------------------------------

    async def _answer(self, type: str, data: Mapping[str, Any], actor: str | None) -> Event:
        """Recorded on the version at which the request was seen: the commit refuses a second
        answer, and an answer of the wrong kind."""
        writer, id = self._writer, data["request_id"]
        prepared = writer.journal.prepare(Draft(type=type, data=data), self._writer.acting(actor))

        async def attempt() -> Event:
            await writer.load(tail=_TAIL)
            facts = writer.known.head.facts
            if id not in requests_in(facts):
                await self._check_asked(id)
            check_answer(self.key, facts, type, data)
            return (await writer.commit((prepared,), writer.known.version))[0]

        return await retrying(attempt, SessionConflict, unless=is_not_about_the_version)

    async def _check_asked(self, id: str) -> NoReturn:
        """The turn of this request is over, or there never was one: the log knows."""
        asked = await self._writer.journal.store.read_ids(self.key, [asked_id(id)])
        raise (RequestAnswered if asked else RequestNotFound)(self.key, id)

    async def _move(
        self,
        *events: PhaseEvent,
        reason: str | None = None,
        actor: str | None = None,
        more: dict[str, Any] | None = None,
    ) -> tuple[Transition, ...]:
        from limpet.session.life.transitions import PhaseChange

        actor = self._writer.actor_or_none(actor)
        change = PhaseChange(self, events, reason=reason, actor=actor, more=more)
        return await change.run()


def _relation_id(relation: object) -> str:
    id = relation if isinstance(relation, str) else getattr(relation, "id", None)
    if not isinstance(id, str) or not id:
        raise InvalidInput("name a relation by itself or its id, as s.relations() returns it.")
    return id


def _cited_blob(writer: Writer, hash: str) -> AsyncGenerator[bytes, None]:
    from limpet.session.citations import cited_blob

    return cited_blob(writer, hash)


def _check_request(id: str) -> None:
    if reason := unfit(id, ID_CHARS_MAX):
        raise InvalidInput(f"the id of a request {reason}. Pass `request.id` of s.blocked_on.")


def _other(session: object) -> Session[Any]:
    if not isinstance(session, Session):
        raise InvalidInput("name the other session by its object. Pass lp.session(key).")
    return session
