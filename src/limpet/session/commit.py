"""A commit over several sessions: gathered in `async with lp.commit()`, recorded at its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET, structs

from limpet.errors import (
    InvalidInput,
    SessionDeleted,
    SessionExists,
    SessionFenced,
    SessionNotLoaded,
    StoreError,
)
from limpet.model import (
    EMPTY,
    Commit,
    Draft,
    Event,
    Fact,
    FrozenDict,
    Head,
    Key,
    Lease,
    Prepared,
    Trace,
    blank,
    described,
    ops as op,
    scope_of,
    traced,
)
from limpet.model.facts.isolation import Isolation
from limpet.model.facts.phases import Phase, roused_us
from limpet.model.facts.schema import drafted
from limpet.model.facts.timeouts import Timeouts
from limpet.session.arguments import check_actor, check_expect, check_fact, check_lease
from limpet.session.cached_state import changes_fields, own_ops
from limpet.session.creation import Creation, creation
from limpet.session.documents import Document, Documents, Put, commit_puts
from limpet.session.journal import Journal
from limpet.session.loggers import lease_lost
from limpet.session.services import Services
from limpet.session.session import Session
from limpet.session.writer import writer_of
from limpet.store.protocol import Committed

if TYPE_CHECKING:
    from limpet.model.envelope.record import Envelope
    from limpet.model.state.migrations import MigrationRegistry
    from limpet.model.state.state import State

_NONE: Final[Mapping[str, Any]] = {}


class _Planned:
    """The state that typed updates of one session are planned on, from its first mention on."""

    __slots__ = ("fields", "head", "raised", "versions")

    def __init__(self, head: Head, fields: FrozenDict, versions: FrozenDict) -> None:
        self.head, self.fields, self.versions = head, fields, versions
        self.raised = False


class CommitBuilder:
    """All of the appends or none. Leaving the block with an exception records nothing.

    `events` has the records afterwards, in the order of the appends, and `documents` what was put.
    """

    def __init__(self, services: Services) -> None:
        self._services, self._journal = services, services.journal
        self._sessions: list[Session[Any]] = []
        self._drafts: list[Prepared] = []
        self._expect: dict[Key, int] = {}
        self._created: dict[Key, Creation] = {}
        self._released: dict[Key, Lease] = {}
        self._known: dict[Key, _Planned] = {}
        self._guards: dict[Key, dict[str, int]] = {}
        self._schemas: dict[Key, str | None] = {}
        self._begun = self._done = False
        self._puts: list[Put] = []
        self.events: tuple[Event, ...] = ()
        self.documents: tuple[Document, ...] = ()
        # Of the commit, for a read that must see it: lp.get(key, at_least=c.token).
        self.token = ""  # nosec B105  # no secret

    def create(
        self,
        app: str,
        user: str,
        id: str | None = None,
        *,
        state: Mapping[str, Any] | Envelope | State = _NONE,
        labels: Mapping[str, str] = _NONE,
        actor: str | None = None,
        migrations: MigrationRegistry | None = None,
        untyped: bool = False,
        reuse_deleted: bool = False,
        phase: Phase = "active",
        timeouts: Timeouts | None = None,
        isolation: Isolation | None = None,
    ) -> Session[Any]:
        """Create a session within this commit, and return it. Takes what Limpet.create takes.

        It can be read once the block has ended. Until then it can be written to within this block.
        The commit raises SessionExists if the key is taken.
        """
        new = creation(
            self._services,
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
            isolation=isolation,
        )
        key = new.session.key
        if key in self._created:
            raise SessionExists(key)
        self._put(new.session, new.draft)
        self._created[key] = new
        begins = new.begins
        facts = FrozenDict(
            {
                "schema_version": begins.schema_version,
                "field_policies": begins.field_policies,
            }
        )
        head = structs.replace(blank(key, new.draft.id, 0), facts=facts)
        self._known[key] = _Planned(head, op.apply(EMPTY, own_ops(new.draft)), EMPTY)
        return new.session

    def expect(self, session: Session[Any], version: int) -> None:
        """Record only if `session` is at this version; otherwise the commit raises
        SessionConflict."""
        expected = check_expect(version)
        if expected is None:
            raise InvalidInput("expect takes a version. Pass the one that the session was read at.")
        self._check(session)
        if self._expect.setdefault(session.key, expected) != expected:
            raise InvalidInput(
                f"{session.key} is expected at two versions in one commit. Expect one of them."
            )

    def guard(self, session: Session[Any], name: str, version: int) -> None:
        """Record only if `name` in the state of `session` still has this version.

        The version of a session's own name is the seq that last set it; an app: or user: name has
        a counter. 0 means that the name is absent. The commit raises SessionConflict otherwise.
        """
        expected = check_expect(version)
        if not isinstance(name, str) or expected is None or scope_of(name) == "temp":
            raise InvalidInput("guard takes a session, a name in its state, and a version.")
        self._check(session)
        self._guards.setdefault(session.key, {})[name] = expected

    def release(self, lease: Lease) -> None:
        """End this lease with the commit; if it is not held, the commit raises SessionFenced.

        The commit has to hold an event of the lease's session: the last of the work.
        """
        self._released[check_lease(lease).key] = lease

    def append(
        self,
        session: Session[Any],
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
        trace: Trace | None = None,
        expect: int | None = None,
        input: bool = False,
    ) -> None:
        """Add an event of `session` to the commit. Takes what Session.append takes, except
        `partial`.

        A change of typed state is checked now, against the loaded session. The commit raises
        SessionConflict if another writer has changed a field that the check read. Raises as
        Session.append does, now or at the commit.
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
        self._add(session, traced(draft, trace), expect=expect)

    def apply(
        self,
        session: Session[Any],
        update: Mapping[str, Any],
        *,
        type: str | None = None,
        data: Mapping[str, Any] = _NONE,
        actor: str | None = None,
        id: str | None = None,
        trace: Trace | None = None,
    ) -> None:
        """Update typed state as Session.apply does, on what the session knows, within this commit.

        It is not tried again: if another writer was faster, the commit raises SessionConflict.
        """
        typed = writer_of(_checked(session)).typed
        if typed is None:
            raise InvalidInput("apply needs typed state. Open the session with a state_type.")
        known = self._know(session)
        typed.check(known.head)
        if known.head.schema_version is not None:
            typed.prove(known.head, writer_of(session).known.fields)
        by = check_actor(session.actor if actor is None else actor)
        planned = typed.plan(known.fields, update, by)
        if not planned.ops and type is None:
            return
        raising = None if known.raised else typed.raising(known.head, known.fields, planned.ops)
        draft = traced(drafted(type, data, actor, id, planned.ops), trace)
        facts = [] if raising is None else [structs.replace(raising, actor=actor)]
        prepared = [self._journal.prepare(fact, session.actor) for fact in facts]
        prepared.append(self._journal.prepare(draft, session.actor))
        for each in prepared:
            self._put(session, each)
        known.raised = True
        self._guard(session, known, planned.guards)

    def record(self, session: Session[Any], *facts: Fact) -> None:
        """Add facts about `session`, as limpet.facts makes them: labels, timers, inputs processed.

        An answer and "this was answered" are then recorded together or not at all. The commit
        raises as Session.record does.
        """
        for fact in facts:
            self._add(session, check_fact(fact))

    def put(
        self,
        documents: Documents,
        name: str,
        value: Any,
        *,
        expect: int | None = None,
        actor: str | None = None,
        id: str | None = None,
    ) -> None:
        """Put a document of this collection as Documents.put does, within this commit.

        If it is not at the expected version, the commit raises DocumentConflict.
        """
        if not isinstance(documents, Documents):
            raise InvalidInput(
                f"{described(documents)} is not a collection. Pass lp.documents('agents')."
            )
        put = Put(documents, name, value, expect=expect, actor=actor, id=id)
        self._check_place(put.journal)
        self._puts.append(put)

    def _add(self, session: Session[Any], draft: Draft, *, expect: int | None = None) -> None:
        if check_expect(expect) is not None:
            assert expect is not None
            self.expect(session, expect)
        prepared = self._journal.prepare(draft, _checked(session).actor)
        typed = writer_of(session).typed
        if typed is not None and changes_fields(prepared):
            known = self._know(session)
            typed.check(known.head)
            self._guard(session, known, typed.fit_after(known.fields, [prepared]))
        self._put(session, prepared)

    def _check(self, session: Session[Any]) -> None:
        self._check_place(writer_of(_checked(session)).journal)

    def _put(self, session: Session[Any], prepared: Prepared) -> None:
        self._check(session)
        known = self._known.get(session.key)
        if known is not None:
            known.fields = op.apply(known.fields, own_ops(prepared))
        self._drafts.append(prepared)
        self._sessions.append(session)

    def _check_place(self, journal: Journal) -> None:
        """The commit is under way, and what is written to is of its store."""
        if self._done:
            raise InvalidInput("this commit is over. Begin another with lp.commit().")
        if not self._begun:  # or all that is added would be forgotten without a word
            raise InvalidInput("a commit is a block. Use it as `async with lp.commit() as c`.")
        if journal is not self._journal:
            raise InvalidInput(
                "this session is of another Limpet than the commit. Begin a commit for each store."
            )

    def _guard(self, session: Session[Any], known: _Planned, names: Iterable[str]) -> None:
        """Record only under this schema, and if these fields are still what was looked at."""
        if session.key in self._created:  # nobody else has written to it
            return
        guards = {name: int(known.versions.get(name, 0)) for name in names}
        self._guards.setdefault(session.key, {}).update(guards)
        self._schemas[session.key] = known.head.schema_version

    def _know(self, session: Session[Any]) -> _Planned:
        """State as this commit will leave it so far: one for a key, whatever object names it."""
        known = self._known.get(session.key)
        if known is None:
            loaded = writer_of(session).known
            if loaded.maybe_head is None:
                raise SessionNotLoaded("the state")
            loaded.check_whole()
            known = _Planned(loaded.maybe_head, loaded.fields, loaded.versions)
            for owner, draft in zip(self._sessions, self._drafts, strict=True):
                if owner.key == session.key:
                    known.fields = op.apply(known.fields, own_ops(draft))
            self._known[session.key] = known
        return known

    async def __aenter__(self) -> CommitBuilder:
        self._begun = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._done = True
        if kind is not None:
            return
        guarded = {*self._expect, *self._guards, *self._released}
        empty = guarded - {session.key for session in self._sessions}
        if empty:
            raise InvalidInput(
                f"the commit has a condition on {min(empty)} but no event for it. Append one to it."
            )
        if self._drafts or self._puts:
            await self._record()

    async def _record(self) -> None:
        by_key: dict[object, list[int]] = {}
        for place, session in enumerate(self._sessions):
            by_key.setdefault(session.key, []).append(place)
        commits = tuple(self._commit(places) for places in by_key.values())
        for session in dict.fromkeys(self._sessions):
            writer_of(session).known.check_temp(self._of(session))
        try:
            answers = await self._send(commits)
        except StoreError as error:
            drafts = [draft.id for draft in self._drafts]  # in the order of the appends
            ids = (*drafts, *(put.id for put in self._puts))
            raise error.naming(ids) from error.__cause__
        except SessionFenced as error:
            leases = [s.lease for s in self._sessions if s.key == error.key and s.lease]
            lease_lost(error, leases[0] if leases else None, "commit")
            raise
        except SessionDeleted as error:
            for session in self._sessions:
                if session.key == error.key:
                    await writer_of(session).refuse_elsewhere()
            raise
        self.token = answers[-1].token
        events: dict[int, Event] = {}
        for places, answer in zip(by_key.values(), answers[: len(by_key)], strict=True):
            events.update(zip(places, answer.events, strict=True))
            for session in dict.fromkeys(self._sessions[place] for place in places):
                mine = [self._drafts[p] if self._sessions[p] is session else None for p in places]
                new, known = self._created.get(session.key), writer_of(session).known
                learn = known.begin if new is not None and new.session is session else known.absorb
                learn(answer, tuple(mine))  # type: ignore[arg-type]  # all are its own
        self.events = tuple(events[place] for place in range(len(self._drafts)))
        for answer in answers[: len(by_key)]:
            if roused_us(answer.head.facts) is not None:
                await self._services.resume_on_input(answer.head.key)

    async def _send(self, commits: tuple[Commit, ...]) -> Sequence[Committed]:
        if not self._puts:
            return await self._journal.commit(commits)
        answers, self.documents = await commit_puts(self._journal, commits, self._puts)
        return answers

    def _of(self, session: Session[Any]) -> list[Prepared]:
        pairs = zip(self._sessions, self._drafts, strict=True)
        return [draft for owner, draft in pairs if owner is session]

    def _commit(self, places: list[int]) -> Commit:
        sessions = [self._sessions[place] for place in places]
        key, drafts = sessions[0].key, tuple(self._drafts[place] for place in places)
        new = self._created.get(key)
        if new is not None:
            return new.commit(drafts[1:])
        return Commit(
            key,
            drafts,
            self._expect.get(key),
            _fence(sessions),
            self._guards.get(key, {}),
            self._schemas.get(key, UNSET),
            any([self._is_classless(place) for place in places]),
            _uid(sessions),
            release=self._released.get(key),
        )

    def _is_classless(self, place: int) -> bool:
        """True if this draft changes fields and was not checked against a State class."""
        session, draft = self._sessions[place], self._drafts[place]
        return writer_of(session).classless and changes_fields(draft)


def _fence(sessions: Iterable[Session[Any]]) -> int | None:
    """The fence that one session is written under, if any."""
    fences = {session.lease.fence for session in sessions if session.lease is not None}
    if len(fences) > 1:
        raise InvalidInput(
            "one session is written under two leases in one commit. Use the newer lease for both."
        )
    return fences.pop() if fences else None


def _uid(sessions: Iterable[Session[Any]]) -> str | None:
    """Return the uid of the session that these objects have loaded. Two of one key: one is gone."""
    uids = {uid for session in sessions if (uid := writer_of(session).known.uid) is not None}
    leases = [session.lease for session in sessions if session.lease is not None]
    uids |= {lease.uid for lease in leases if lease.uid}
    if len(uids) > 1:
        raise SessionDeleted(next(iter(sessions)).key)
    return uids.pop() if uids else None


def _checked(session: Session[Any]) -> Session[Any]:
    """Raise InvalidInput unless this is a session: a key cannot be written to."""
    if not isinstance(session, Session):
        raise InvalidInput(
            f"{described(session)} is not a session. Pass lp.session(key), or what lp.get returned."
        )
    return session
