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
from limpet.session.blobs import SessionBlobs
from limpet.session.conversing.conversation import read_messages
from limpet.session.history.checkpoint_log import CheckpointRef
from limpet.session.history.history import SessionHistory
from limpet.session.history.point_in_time import When, fold_of, head_now
from limpet.session.journal import is_not_about_the_version, retrying
from limpet.session.keys import provenance_of
from limpet.session.life.lifecycle import SessionLifecycle
from limpet.session.life.lifecycle_policy import LIFECYCLE_ACTOR, Transition
from limpet.session.life.tools import SessionTools
from limpet.session.runs.outcomes import SessionOutcome
from limpet.session.runs.runs import SessionRuns, status_at
from limpet.session.runs.setup import SessionSetup
from limpet.session.services import Services
from limpet.session.writer import Handle, writer_of

if TYPE_CHECKING:
    from limpet.model import Path
    from limpet.model.diff.merge import Policy
    from limpet.model.envelope.envelope import Format
    from limpet.security.receipts import Proof, Receipt
    from limpet.session.conversing.context import Context, Count, Summarize
    from limpet.session.conversing.shapes import Message, Shape
    from limpet.session.history.branches import MergedSession
    from limpet.session.history.rewind import Rewound
    from limpet.session.life.memory import Memory
    from limpet.session.relations import Relation
    from limpet.session.sharing import ImportedContext, Shared
    from limpet.session.typing.typed import Typed

NONE_GIVEN: Final[Mapping[str, Any]] = {}  # what an append sets, merges, … if it names nothing
_TAIL: Final = 20
S = TypeVar("S", covariant=True)


class Session(Handle, Generic[S]):
    """A session, or a handle on one. A bound `actor` stands for appends that name none.

    With a `lease`, everything it writes is refused (SessionFenced) once the lease is not held.
    `S` is what its state is: a State class that was given, or else a mapping.
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
        """The lease that everything written here is under, if any."""
        return self._writer.lease

    @property
    def version(self) -> int:
        """The seq of the last event this object knows of."""
        return self._writer.known.head.version

    @property
    def labels(self) -> Mapping[str, str]:
        return self._writer.known.head.labels

    @property
    def isolation(self) -> Isolation:
        """From whom it is kept apart, and which of its fields each agent has."""
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

        The session's own fields are those of `version`; app: and user: names are as last loaded
        or written here (refresh reads them again).
        """
        return self._writer.known.values

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
        """Why the last run stopped; None if there was none."""
        head = self._writer.known.head
        if head.phase in TERMINAL:
            return "terminated"
        found: StopReason | None = run_in(head.facts).get("stop")
        return found

    @property
    def blocked_on(self) -> tuple[Request, ...]:
        """The open requests of its turn: answer with confirm, answer or resolve, by its kind."""
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
        """The tools that are bound."""
        return SessionTools(self)

    @property
    def runs(self) -> SessionRuns:
        """Wakes and their traces, usage and budget, parent and children."""
        return SessionRuns(self._writer)

    @property
    def blobs(self) -> SessionBlobs:
        """Large contents beside the log."""
        return SessionBlobs(self._writer)

    @property
    def outcome(self) -> SessionOutcome:
        """The outcome that the session is to achieve, and how far it is."""
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
        """Load the newest head, state and tail into this object. Raises SessionNotFound.

        SessionArchived, if its log was moved to the archive. Typed state of another MAJOR is
        migrated, which is recorded. Raises MigrationError then.
        """
        await self._writer.load(tail=check_tail(tail))
        return self

    def envelope(self, *, format: Format = "json") -> bytes:
        """Return the session's own fields for another system: see limpet.envelope.

        Raises SessionCorrupt if an event is damaged: what is not known would be vouched for.
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
        page = await self._writer.journal.store.read(
            self.key, after=start, limit=limit, reverse=reverse, types=check_types(types)
        )
        return tuple([e for e in page if after < e.seq and (before is None or e.seq < before)])

    async def read_ids(self, ids: Iterable[str]) -> tuple[Event, ...]:
        """Return the events of its own log with these ids, in log order; skip unknown ids."""
        wanted = check_ids(ids)
        return await self._writer.journal.store.read_ids(self.key, wanted) if wanted else ()

    def follow(
        self, *, after: int = 0, types: Iterable[str] | None = None, partials: bool = True
    ) -> AsyncGenerator[Event, None]:
        """Yield the events after seq `after` as they are recorded: in order, each once.

        `types` selects exact types or families (`user.*`), as in read. Partial events come too,
        from any process, unless partials=False: marked `partial`, with seq 0 and the id of the
        event that will be recorded, never after it. They may be lost; recorded events never are.
        Ends with SessionDeleted when the session is deleted, StoreClosed when Limpet is closed,
        FollowerBehind when partials pile up unread.
        """
        journal, after = self._writer.journal, check_seq(after)
        journal.check_open()
        check_flag("partials", partials)
        return journal.hub.follow(self.key, after, check_types(types), partials=partials)

    async def pending(self, *, limit: int = 100) -> tuple[Event, ...]:
        """Return the inputs that are not processed yet, the oldest first.

        Inputs are user.* and system.* events, and those appended with input=True. Read from the
        store. Who processes them calls again until nothing is left: a page of large ones ends
        early, as that of `read` does. The cost grows with what is pending.
        """
        return await self._writer.journal.store.pending_inputs(self.key, limit=check_limit(limit))

    async def messages(self, *, correlation_id: str | None = None) -> list[Message]:
        """The whole conversation, the oldest message first; or one of several that the session
        holds: what was recorded with this correlation_id.

        What was said to and by the model: messages, the calls that it made, and their results.
        Approvals, questions of a turn and of the runtime are not part of it. Valid for every
        model: each call is followed by exactly one result. A call whose result was never recorded
        has one that says it was interrupted. A message that came while a turn ran stands where the
        turn that took it up begins; until then, at the end. What a rewind took back is left out.
        What the adapter of a framework recorded reads the same; what was popped, cleared or
        rewound there is left out.
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

        The newest messages are kept, and those pinned: by seq, or recorded with "pinned": true. A
        tool call stays with its outcome. `count(text)` counts the tokens of a text (a message is
        counted as JSON); else four characters are taken for one. `summarize(messages)` returns a
        text that stands for what fell out. `system` goes before everything. With `correlation_id`
        only the conversation that was recorded with it. Raises InsufficientTokenBudget if what has
        to be there does not fit.
        """
        from limpet.session.conversing.context import compile_context

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
        """Record several events in order, all or nothing."""
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
        by = self._writer.actor_or_none(actor)
        draft = traced(drafted(type, data=data, actor=by, id=id), trace)
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
        """Update typed state through the reducers of its fields, as one event; None: no change.

        Values are checked before anything is written (SchemaViolation). Where a reducer looks at
        what the field holds and another writer was faster, it is done again on the newest state.
        With a `type` the event is yours, with its data; else it is a state.updated. With
        `expect=n` it is recorded only if the session is at version n, else SessionConflict.
        """
        if self._writer.typed is None:
            raise InvalidInput(
                "apply needs typed state. Open the session with get(key, state_type=MyState)."
            )
        by = self._writer.actor_or_none(actor)
        draft = traced(drafted(type, data=data, actor=by, id=id), trace)
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
        """Queue an event without waiting; the id it will have. `await lp.flush()` records it.

        Takes what append takes, except `expect`, `partial` and temp: names. The form of the event
        is checked now, whether it fits the session when it is flushed. Until then it is in this
        process only: a crash loses it, and neither `s.state` nor `s.version` nor a reader shows it.
        Events of one session are recorded in their order, and before any later write to it. Raises
        QueueFull when too much waits.
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
        """Set labels; None takes one off. Labels are for finding sessions: lp.list(labels=…)."""
        return (await self.record(labeled(labels), actor=actor))[0]

    async def mark_processed(self, seqs: Iterable[int], *, actor: str | None = None) -> Event:
        """Say that these inputs (pending user.* events) were dealt with. Raises NotPending."""
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
        """Allow or deny what a turn asked for: a request of the kind "approval".

        When the approval is used, it is checked again: permission, phase, budget and deadline.
        Raises RequestNotFound, RequestAnswered, RequestMismatch.
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
        actor: str | None = None,
    ) -> Event:
        """Bring the output of a tool that a turn asked for: a request of the kind "question".

        Raises RequestNotFound, RequestAnswered, RequestMismatch.
        """
        _check_request(request_id)
        data: dict[str, Any] = {"request_id": request_id, "output": output}
        if is_error:
            data["is_error"] = True
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
        """Settle an unknown effect or a mismatch. Pass exactly one of the three.

        `happened=result`: the effect was performed, and this is its result; not for a mismatch.
        `run_again=True` performs the effect again under the same idempotency key; of a mismatch it
        runs the turn again, with every check on. `give_up=True` raises EffectUnknown in the turn
        (for a model's tool call it is an error result); of a mismatch it ends the turn, and its
        inputs are processed. Raises RequestNotFound, RequestAnswered, RequestMismatch.
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
        """Stop its turn: what it waits for is dropped, and its revisits.

        A running harness sees Interrupted at its next await. Works with no worker alive.
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
        """Return a new session that continues from an event of this one, the last by default.

        Its history reads through to this one's and its seqs go on densely. Labels are only those
        given; inputs that were pending here, timers and leases are not pending or set there. It has
        the permissions, bound tools and timeouts that this session has now, and every limit of its
        budget with nothing in it: `fork.grant` gives it something to spend. Nothing is written to
        this session. The cost grows with the state, not with the history.
        """
        from limpet.session.history.branches import record_fork

        writer, bound = self._writer, check_actor(self.actor if actor is None else actor)
        journal, typed = writer.journal, writer.typed
        await writer.services.approved("read", self.key)
        head = await head_now(writer)
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
        self, other: Session[Any], kind: RelationKind, *, actor: str | None = None
    ) -> None:
        """Record that `other` is its successor, its peer, or what it refers to (reference).

        Both sessions record it in one commit, also if they have ended; again, nothing changes.
        Raises SessionNotFound, SessionDeleted, SessionArchived.
        """
        from limpet.session.relations import relate

        await relate(self._writer, writer_of(_other(other)), kind, self._writer.acting(actor))

    async def relations(self, kind: RelationKind | None = None) -> tuple[Relation, ...]:
        """Return its relations to other sessions, of one kind or all, the oldest first.

        Seen from either end: `direction` is "to", "from" or "both". One whose other end was
        deleted stays. Children are in `runs`, forks and merges in `history`, all in `lp.graph`.
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
        """Let another session of the same app and user use top-level fields of this one.

        A snapshot has the values of now; live ones follow this session, until unshare, `ttl` or
        the end of either session. With access="write" the other may set them. Both record it in
        one commit. Raises CrossSessionAccessDenied.
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
        """End a share that this session granted. Raises ShareNotFound."""
        from limpet.session.sharing import unshare

        await unshare(self._writer, id, self._writer.acting(actor))

    @property
    def shared(self) -> Mapping[str, Shared]:
        """The shares that others granted to this session, by id."""
        from limpet.session.sharing import received_shares

        return received_shares(self._writer.known.head)

    async def read_shared(
        self, id: str, *, at_least: Mapping[str, int] | int | None = None
    ) -> ImportedContext:
        """Return the values of a share, with the version of each field. Raises ShareNotFound.

        `at_least` waits until the source, or each field that it names, has this version.
        """
        from limpet.session.sharing import SharedReader

        context = await SharedReader(self._writer, id).read(at_least)
        self._note_shared(id, context.versions)
        return context

    async def follow_shared(self, id: str) -> AsyncGenerator[ImportedContext, None]:
        """Yield the values of a share, and again after each change, until the share ends.

        Changes that come faster than they are taken are yielded as one; none goes backwards.
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
        """Set fields of the source of a share with access="write". Return their new versions.

        Only if they still have the versions in `expect`, by default those that this object last
        read: else SessionConflict. Both sessions record it in one commit. Raises ShareNotFound,
        CrossSessionAccessDenied.
        """
        from limpet.session.sharing import SharedReader

        reads = self._writer.shared_versions or {}
        expected = {**reads.get(id, {}), **(expect or {})}
        if not isinstance(values, Mapping) or not values:
            raise InvalidInput("write_shared takes the fields to set, as in {'draft': …}.")
        reader = SharedReader(self._writer, id)
        if not set(values) <= set(expected):
            await reader.read(None)  # refuses what is not there
            raise InvalidInput("read_shared comes first, or pass expect={field: version}.")
        written = await reader.write(values, expected, self._writer.acting(actor))
        self._note_shared(id, {**expected, **written})
        return written

    def _note_shared(self, id: str, versions: Mapping[str, int]) -> None:
        reads = self._writer.shared_versions or {}
        self._writer.shared_versions = {**reads, id: versions}

    async def rewind(
        self, when: When, *, messages: bool = True, actor: str | None = None
    ) -> Rewound:
        """Make the state what it was at a place in the history, by one event; nothing is deleted.

        The session's own fields become exactly those of then. An app: or user: name that only this
        session changed since goes back to what it was before; those that another session changed
        too are left, and named in `left`. Labels, timers, inputs and phase stay. The conversation
        goes back too: `messages` and `context` leave out what lies between `when` and the rewind,
        unless messages=False. An input that is still pending is shown once a turn takes it up. If
        state and conversation are the same nothing is recorded. A rewind can be rewound. Raises
        TurnUnderway while a turn runs or is paused: interrupt it first.
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
        """Take in what another session changed since the two last agreed, by one event.

        They last agreed at the last merge between them, or else where one forked the other, or
        both forked a third. Where only one side changed a place, its change is taken; where both
        did, `policy` decides (limpet.LastWriter, Priority, any function of a Conflict), at or below
        a path the policy in `policies`. MergeConflict has all `conflicts` that are left, and
        nothing is recorded then. Nothing is written to the other session, and app: and user: names
        are never merged. If the other has nothing new, nothing is recorded.
        """
        from limpet.model.diff.merge import escalate
        from limpet.session.history.branches import merge_session

        if isinstance(other, Session):
            if writer_of(other).journal is not self._writer.journal:
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
        """Make a verifiable place to come back to, and return its ref. Never changes the version.

        A `full` one keeps the state itself, an incremental one its seq and checksum: the log is
        the rest. None: as the policy of the app says, by default every tenth is full. It stays
        until `unpin` lets it go. Raises SessionCorrupt while an event cannot be read.
        """
        from limpet.session.history.checkpoint_log import CheckpointRequest
        from limpet.session.history.checkpoints import checkpoint

        by = self._writer.actor_or_none(actor)
        if by is not None:
            by = await self._writer.services.actor(by, self.key)
        return await checkpoint(self._writer, CheckpointRequest(trigger, full, by, manual=True))

    # --- its life ------------------------------------------------------------------------------

    async def activate(self, *, actor: str | None = None) -> Transition:
        """Begin the work: from init, or from resumed. Raises InvalidTransition, GuardFailed."""
        from limpet.session.life.transitions import load_to_move

        await load_to_move(self._writer, "activate")
        event: PhaseEvent = "reactivate" if self.phase == RESUMED else "activate"
        return (await self._move(event, actor=actor))[-1]

    async def suspend(self, reason: str | None = None, *, actor: str | None = None) -> Transition:
        """Stop the work for a while. Inputs are recorded and wait; other writes are refused."""
        return (await self._move("suspend", reason=reason, actor=actor))[-1]

    async def resume(self, *, activate: bool = True, actor: str | None = None) -> Transition:
        """Go on: resumed and active again in one commit; only resumed with activate=False.

        For the whole protocol, with tools, memory and retrieval, use lp.resume(key).
        """
        events: tuple[PhaseEvent, ...] = ("resume", "reactivate") if activate else ("resume",)
        return (await self._move(*events, actor=actor))[-1]

    async def complete(self, output: Any = None, *, actor: str | None = None) -> Transition:
        """End it: the work is done. Raises GuardFailed unless all exit criteria hold and every
        child has ended."""
        more = {} if output is None else {"output": output}
        return (await self._move("complete", actor=actor, more=more))[-1]

    async def terminate(self, reason: str | None = None, *, actor: str | None = None) -> Transition:
        """End it before the work is done: compensations run, then cleanup hooks, in order."""
        return (await self._move("terminate", reason=reason, actor=actor))[-1]

    async def archive(self, *, actor: str | None = None) -> Transition:
        """Move it to the archive: from completed or terminated.

        Its log becomes one verified file there; then its rows leave the store, and its head stays
        listed. Without an archive (limpet.open(url, archive=…)) the log stays where it is.
        Interrupted, it is finished by the next call, or the next sweep. Raises InvalidTransition
        once there is nothing to finish, GuardFailed, ArchiveFailed.
        """
        from limpet.session.life.archive import archive_session

        by = self._writer.actor_or_none(actor) or LIFECYCLE_ACTOR
        by = await self._writer.services.foreseen("lifecycle", self.key, by, whole=True)
        return await archive_session(self, by)

    # --- what can be proven --------------------------------------------------------------------

    async def receipt(self) -> Receipt:
        """A signed statement of where the session stands: its version, its link, and the root of a
        Merkle tree over its events. Of a completed session, the one that was signed then.

        Check it with limpet.check_receipt and lp.keys.public_key. Raises KeysMissing.
        """
        await self._writer.services.approved("read", self.key)
        signing = provenance_of(self._writer.journal, "receipt")
        await self._writer.services.permitted("inspect", self.key)
        return await signing.receipt(await head_now(self._writer))

    async def prove(self, seq: int, *, version: int | None = None) -> Proof:
        """Proof that an event is covered by a receipt of this version, the present one if not
        given. It holds this event and shows no other. Raises KeysMissing, InvalidInput.
        """
        await self._writer.services.approved("read", self.key)
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


def _check_request(id: str) -> None:
    if reason := unfit(id, ID_CHARS_MAX):
        raise InvalidInput(f"the id of a request {reason}. Pass `request.id` of s.blocked_on.")


def _other(session: object) -> Session[Any]:
    if not isinstance(session, Session):
        raise InvalidInput("name the other session by its object. Pass lp.session(key).")
    return session
