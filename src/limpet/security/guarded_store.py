"""A store behind a guard: every method of the store's protocols, for one principal.

`guarded(store, guard)` wraps any store. It has the same optional protocols as the store that it
wraps, and each of their methods is written here: nothing is passed through by default, and a test
fails when a protocol has a method that this module does not know. What is asked about a session is
decided by its key first, before the store is asked; so nobody learns whether another user's session
exists. Answers are filtered here, above the caches of the store, which stay whole.

Logs of reserved apps (`$…`) are documents and what the system keeps of sessions: `access_of` says
to whom each of them belongs, and `ROOMS` which action each room needs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    KeysView,
    Mapping,
    Sequence,
)
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from msgspec import structs

from limpet.errors import (
    Denial,
    InvalidEvent,
    LimpetError,
    SessionCorrupt,
    SessionDeleted,
    SessionErased,
    SessionHasForks,
    SessionNotFound,
)
from limpet.model import (
    CHECKPOINTS,
    CHILD_ENDED,
    EMPTY,
    NO_TEXTS,
    Base,
    Commit,
    Event,
    Fold,
    FrozenDict,
    Head,
    Key,
    Lease,
    Origin,
    Prepared,
    ScopeValue,
    Texts,
    is_reserved,
    owner_of,
    scope_of,
)
from limpet.model.events import RESERVED, VIA, with_via
from limpet.model.facts.creation import CREATED, FORKED
from limpet.model.facts.documents import VALUE
from limpet.model.facts.history import MERGED
from limpet.model.facts.isolation import (
    LENT_TO,
    field_policies_in,
    is_lent,
    lent_labels,
)
from limpet.model.facts.moves import (
    CHECKPOINTS_PART,
    EXPECTED,
    LOG,
    MOVES,
    RECLAIMED,
    departure,
    stage_part,
    stage_prefix,
    stage_session,
)
from limpet.model.facts.outcomes import DEFINED
from limpet.model.facts.phases import TRANSITIONS, TYPES
from limpet.model.facts.relations import RELATED, key_in
from limpet.model.facts.running.budgets import GRANTED, RETURNED
from limpet.model.facts.running.children import (
    CHILD_CREATED,
    CHILD_RELEASED,
    DELEGATED,
    created_id,
    works_for,
)
from limpet.model.facts.running.requests import ANSWERS
from limpet.model.facts.running.runs import (
    INTERRUPT,
    SPAN_COMPLETED,
    SPAN_STARTED,
    STATUS_CHANGED,
    STEP,
    TRACED,
    is_at_work,
)
from limpet.model.facts.running.setup import ATTACHED, TOOLS_BOUND
from limpet.model.facts.running.spawned import CHILD_DONE
from limpet.model.facts.schema import MIGRATED
from limpet.model.facts.shapes import check_shape
from limpet.model.facts.shares import SHARE_RECEIVED, SHARED, UNSHARED
from limpet.model.facts.timeouts import TIMEOUTS_SET
from limpet.model.keys import (
    ARCHIVE_MOVES,
    ARRIVALS,
    AUDIT,
    DEPARTURES,
    RECLAIMS,
    ROUTES,
    first_part,
    hashed,
    is_hashed,
    owned_by,
)
from limpet.model.lease import readiness
from limpet.model.limits import PAGE_MAX, SESSIONS_PER_COMMIT_MAX
from limpet.security.access import (
    Action,
    AllowedOperation,
    Resource,
    ResourceKind,
    SessionView,
    principal_data,
)
from limpet.security.guard import Guard
from limpet.security.isolation import SIBLINGS, is_isolated
from limpet.security.roles import AUDIT_APPS, EVERY_APP
from limpet.security.view import COPYING, WHOLE_STATE, CheckpointView
from limpet.store.blobs import Blob, Blobs, KeepsBlobs
from limpet.store.coding.seal import Sealing
from limpet.store.leases import Deadlines, Leases, Place
from limpet.store.marks import KeepsMarks, Mark, Marks
from limpet.store.overview import AskedBy, Overview, Tally, WaitingPlace, WaitingQuery
from limpet.store.pages import each_head
from limpet.store.protocol import (
    Backups,
    ChainedEvent,
    Channel,
    Check,
    Committed,
    Compacted,
    Compacts,
    Ending,
    Erasure,
    Erasures,
    Examined,
    Exchange,
    Feed,
    FeedEntry,
    Forks,
    Hints,
    Live,
    Loaded,
    Names,
    NameSince,
    Owner,
    Page,
    Partial,
    Probed,
    Progress,
    Query,
    Records,
    Report,
    RingBinding,
    SingleHeads,
    Standing,
    Store,
    Touched,
    UidIndex,
    scope_fields,
)

T = TypeVar("T")
L = TypeVar("L", Loaded, Fold, Committed)
A = TypeVar("A", Loaded, Committed)
Send: TypeAlias = Callable[[Sequence[Commit]], Awaitable[tuple[Committed, ...]]]

STORE: Final = Resource("store", EVERY_APP)
WHOLE_STORE: Final = "*"  # the user under which reserved apps keep what belongs to no user
# Spans say who worked when on what, and for how long: an auditor reads them without bodies.
TRACES: Final = frozenset({SPAN_STARTED, SPAN_COMPLETED})
# The data of other events than spans that a trace tells, beside who recorded which when.
_TRACED_DATA: Final[Mapping[str, frozenset[str]]] = {
    STEP: frozenset({"name", "started_us", "call", "graph"}),
    "agent.message": frozenset({"stream", "model", "usage", "cost"}),
}
MEMORY: Final = "$$memory"
PROPOSALS: Final = "$$proposals"
_HEADS_REMEMBERED: Final = 4_096
_READING: Final[frozenset[Action]] = frozenset({"read", "inspect"})
_LOOKED_AT: Final = 16  # sessions of others that are looked at one by one: see `_lending`
_CLAIMS: Final = 64  # rounds of claims that look for sessions which may be worked on
_GONE: Final = (SessionNotFound, SessionDeleted, SessionErased)
_STARTS: Final = frozenset({CREATED, FORKED})
# Prefixes of actors that are not other people.
_NOBODY: Final = ("agent:", "system:", "worker:", "cli:")
# Types that a move records of a session, the ends of its live shares among them. An admin's key may
# have recorded them, and the checkpoint of the move beside them.
_CARRIED: Final = (MOVES | {UNSHARED}) - {RECLAIMED}
_BESIDE: Final = frozenset({CHECKPOINTS, MEMORY})  # what is staged beside the log of a session
# The action of a draft of this type; any other is a write.
_ACTIONS: Final[Mapping[str, Action]] = {
    **dict.fromkeys(TRANSITIONS, "lifecycle"),
    **dict.fromkeys(_STARTS, "create"),
    GRANTED: "policy",
    ATTACHED: "policy",
    TOOLS_BOUND: "tool",
    TIMEOUTS_SET: "lifecycle",  # they end it; and those that delete it are an erasure, too
    **dict.fromkeys((SHARED, SHARE_RECEIVED, UNSHARED), "share"),
    **dict.fromkeys(MOVES, "move"),
}
# The words of a user to the runs of their session: approvals, answers, resolutions, goals.
_STEERING: Final = frozenset({*ANSWERS, INTERRUPT, DEFINED})
_NOT_PLAIN: Final = frozenset({*_ACTIONS, *WHOLE_STATE, RELATED})


class Room(NamedTuple):
    """The actions needed to read and to write a log of a reserved app."""

    read: Action
    write: Action
    # The app in the name of a log that belongs to no user; None if it has none.
    app: Callable[[str], str | None] = lambda name: None
    kind: ResourceKind = "document"


def _named(name: str) -> str | None:
    return name


def _in_name(name: str) -> str | None:
    """The app in "semantic/7/support/…", as `name_part` made it."""
    return first_part(name.partition("/")[2])


# The rooms of the system: what it keeps of sessions and apps for a verb that was allowed.
ROOMS: Final[Mapping[str, Room]] = {
    CHECKPOINTS: Room("read", "write"),
    MEMORY: Room("read", "write", _in_name),
    "$$retrieval": Room("read", "write"),
    ARCHIVE_MOVES: Room("read", "write"),
    "$$tools": Room("inspect", "tool", kind="tool"),
    "$$learnings": Room("tool", "tool"),
    "$$curated": Room("read", "policy"),
    "$$gates": Room("read", "policy"),
    "$$promotion": Room("read", "policy"),
    PROPOSALS: Room("read", "write"),
    "$$expiries": Room("read", "policy"),
    "$$checkpointing": Room("read", "policy", _named),
    "$$retention": Room("read", "policy", _named),
    "$$arriving": Room("read", "policy", _named),
    ARRIVALS: Room("move", "move"),
    DEPARTURES: Room("move", "move"),
    RECLAIMS: Room("move", "move"),
    ROUTES: Room("inspect", "move"),
    "$$switches": Room("read", "policy", _named),
}
_COLLECTION: Final = Room("read", "write")


class Asked(NamedTuple):
    """A resource, and the actions that reading and writing it are."""

    resource: Resource
    read: Action = "read"
    write: Action = "write"


def access_of(key: Key) -> Asked:
    """Return what a key names: a session, a user's or app's document, or a log of the system."""
    if not is_reserved(key.app):
        return Asked(Resource("session", key.app, key.user, key.id))
    if key.app in AUDIT_APPS:  # the audit alone writes it
        app = key.id if key.app == AUDIT else (owned_by(key.user) or (EVERY_APP,))[0]
        kind: ResourceKind = "store" if app == EVERY_APP else "app"
        return Asked(Resource(kind, app, name=key.app), "audit", "write")
    room = ROOMS.get(key.app, _COLLECTION)
    if key.app.startswith("$$") and key.app not in ROOMS:
        return Asked(STORE, "policy", "policy")
    name = f"{key.app}/{key.id}"
    if key.user != WHOLE_STORE:
        app, user = owned_by(key.user) or (EVERY_APP, key.user)
        if app == EVERY_APP:  # hashed, and so unknown: for those of the whole store
            return Asked(Resource("store", EVERY_APP, name=name), "policy", "policy")
        if user != WHOLE_STORE:
            return Asked(Resource("document", app, user, name=name), room.read, room.write)
        shared = Resource("document", app, name=name)
        return Asked(shared, room.read, "policy" if room is _COLLECTION else room.write)
    shared = Resource(room.kind, room.app(key.id) or EVERY_APP, name=name)
    return Asked(shared, room.read, "policy" if room is _COLLECTION else room.write)


def session_id_in(key: Key) -> str | None:
    """The id, or what it is hashed to, of the session whose checkpoints, own memory or proposals a
    log of a reserved app has; None if it is of no one session. Episodes are not: a child reads
    those of its parent, which works on another task.
    """
    if key.app == CHECKPOINTS:
        return key.id
    if key.app == PROPOSALS:
        return first_part(key.id)
    kind, _, rest = key.id.partition("/")
    if key.app != MEMORY or kind not in ("session", "own"):
        return None
    return first_part(rest)


class ShownNames(dict[str, bool]):
    """True for the names in state that a view shows, as far as they were asked for."""

    __slots__ = ("_hidden", "_names", "view")

    def __init__(self, view: SessionView) -> None:
        self.view = view
        # The names that `of` met last, and those of them that are hidden: mostly the same again.
        self._names: KeysView[str] = EMPTY.keys()
        self._hidden: tuple[str, ...] = ()

    def __missing__(self, name: str) -> bool:
        if len(self) >= _HEADS_REMEMBERED:
            self.clear()
        shown = self[name] = self.view.sees(name)
        return shown

    def of(self, names: FrozenDict) -> FrozenDict:
        """Names in state and what belongs to them, without hidden ones."""
        if names.keys() != self._names:
            self._hidden = tuple([name for name in names if not self[name]])
            self._names = names.keys()
        if not self._hidden:
            return names
        shown = FrozenDict(names)
        for name in self._hidden:
            dict.__delitem__(shown, name)  # nobody has seen it yet
        return shown

    def show(self, events: Sequence[Event]) -> bool:
        """True if nothing of these events is hidden, for all that their operations say."""
        for event in events:
            if event.type in COPYING:
                return False
            for op in event.ops:
                if not self[op.path[0]]:  # type: ignore[index]  # it begins with a name
                    return False
        return True


class Clearance:
    """A session that the principal may read and write to, what it sees of it, and the fields that
    it wrote.

    Nothing about it is decided again while the rules stay what they are: most loads and appends
    come again and again. Only if no rule asks for labels or phases, which change.
    """

    __slots__ = ("_isolated", "_policies", "names", "revision", "shown", "uid", "view")

    def __init__(self, revision: tuple[int, ...], head: Head, view: SessionView | None) -> None:
        self.revision, self.uid, self.view = revision, head.uid, view
        self._isolated, self._policies = is_isolated(head.facts), head.facts.get("field_policies")
        self.shown = None if view is None else ShownNames(view)
        self.names: set[str] | None = None  # None: it has not written yet

    def holds(self, head: Head) -> bool:
        """True if this head is of the same session, under the same policies of its fields. What
        else isolates a session is said in its first event."""
        if head.uid != self.uid:
            return False
        if not self._isolated:
            return not is_isolated(head.facts)
        return bool(head.facts.get("field_policies") == self._policies)

    def of(self, whole: A) -> A | None:
        """Return an answer as the view shows it, if the view hides only fields; else None."""
        shown = self.shown
        if shown is None:
            return whole
        if whole.texts or whole.scopes or not shown.show(whole.events):
            return None
        fields, versions = shown.of(whole.fields), shown.of(whole.versions)
        return structs.replace(whole, fields=fields, versions=versions)


class GuardedStore:
    """The methods that every store has. Make one with `guarded`."""

    def __init__(self, store: Store, guard: Guard, commit: Send | None = None) -> None:
        self._inner: Any = store
        self.guard = guard
        self._send: Send = store.commit if commit is None else commit
        self._heads: dict[Key, Head] = {}  # of sessions that were met: see `_head`
        self._reads_heads = hasattr(type(self), "head")
        self._cleared: dict[Key, Clearance] = {}  # of those that nothing is hidden of
        self._long_ids: dict[tuple[str, str, str], Key] = {}  # by what they are hashed to

    # --- deciding --------------------------------------------------------------------------------

    async def _check(
        self,
        action: Action,
        key: Key,
        head: Head | None = None,
        approved: list[AllowedOperation] | None = None,
    ) -> Head | None:
        """Raise AccessDenied unless it may do this to a session. Decided by the key, then, if a
        decider needs it, by the head, which is returned."""
        guard, resource = self.guard, self._resource(key)
        if not guard.allows(action, resource):
            head = await self._admitted(action, key)
            if head is None:
                await guard.check(action, resource)
        if resource.kind == "session" and guard.needs_head:
            if head is None:
                head = await self._head(key)
            resource = structs.replace(resource, head=head)
        await guard.check(action, resource, approved)
        if resource.kind != "session":
            await self._check_behind(action, key)
        return head

    async def _admitted(self, action: Action, key: Key) -> Head | None:
        """The head of another user's session whose isolation names this principal's user.

        Read each time: one that is there must not be refused faster than one that is missing.
        """
        own = self.guard.principal
        if is_reserved(key.app) or own.user is None or own.app not in (None, key.app):
            return None
        try:
            head = await self._newest(key)
        except LimpetError:
            return None
        if not self.guard.is_admitted(action, head):
            return None
        self._meet(head)
        return head

    def _resource(self, key: Key) -> Resource:
        return self._access(key).resource

    def _access(self, key: Key) -> Asked:
        """Return what `access_of` does; a hashed owner is known if it is the principal's user."""
        own = self.guard.principal
        if not is_reserved(key.app) or own.app is None or own.user is None:
            return access_of(key)
        room = ROOMS.get(key.app, None if key.app.startswith("$$") else _COLLECTION)
        if room is None or key.user != owner_of(own.app, own.user):
            return access_of(key)
        mine = Resource("document", own.app, own.user, name=f"{key.app}/{key.id}")
        return Asked(mine, room.read, room.write)

    async def _head(self, key: Key) -> Head:
        """The head of a session as it was last met: what deciders look at belongs to its uid."""
        head = self._heads.get(key)
        if head is None or self.guard.needs_newest_head:
            head = await self._newest(key)
            self._meet(head)
        return head

    async def _newest(self, key: Key) -> Head:
        """The head as it is in the store; without its state, where the store can read it so."""
        if self._reads_heads:
            head: Head = await self._inner.head(key)
            return head
        loaded: Loaded = await self._inner.load(key, tail=0, scopes=False)
        return loaded.head

    def _meet(self, head: Head) -> None:
        if len(self._heads) >= _HEADS_REMEMBERED:
            self._heads.clear()
        self._heads[head.key] = head

    async def _reading(
        self, key: Key, read: Callable[[], Awaitable[T]], action: Action | None = None
    ) -> tuple[T, SessionView | None]:
        """Return a session's reading and the principal's view of it. Raises AccessDenied.

        Decided by the head of the session that was read, not of one that had the key before.
        """
        asked = self._access(key)
        action = asked.read if action is None else action
        while True:
            clearance = self._clearance(key)
            if clearance is not None:
                reading = await read()
                if clearance.holds(await self._newest(key)):
                    return reading, clearance.view
                self._cleared.pop(key, None)
                self._heads.pop(key, None)
            known = self._heads.get(key)
            if known is not None and not self.guard.allows(action, _with(asked.resource, known)):
                del self._heads[key]  # it may be of another session: decide by what is there now
            head = await self._check(action, key)
            reading = await read()
            if head is None:
                return reading, CheckpointView() if await self._sees_part(key) else None
            self._heads.pop(key, None)
            if (await self._head(key)).uid == head.uid:
                return reading, self.guard.view(head)

    async def _check_whole(self, action: Action, key: Key) -> None:
        """Raise AccessDenied unless it may do this, and sees everything of the session."""
        head = await self._check(action, key)
        if head is not None and self.guard.view(head) is not None:
            own = self.guard.principal.user in (None, key.user)
            code: Denial = "field_access_denied" if own else "access_denied"
            await self.guard.deny(code, action, Resource.of(key, head))
        if await self._sees_part(key):
            await self.guard.deny("field_access_denied", action, self._resource(key))

    async def kept_apart(self, key: Key) -> tuple[bool, SessionView | None]:
        """True if nothing but its task, or the agent that it works for, keeps the principal from
        reading a session; and its view of it: what the session itself shares it may have."""
        guard = self.guard
        resource = Resource.of(key, await self._newest(key))
        decision = guard.decide("read", resource)
        apart = decision.denial == "cross_task_access_denied" or decision.policy == SIBLINGS
        otherwise = guard.allows("read", Resource.of(key))
        if not apart or not otherwise or not guard.decide("read", resource, kin=True).allowed:
            return False, None
        assert resource.head is not None
        return True, guard.view(resource.head)

    async def check(self, action: Action, key: Key) -> None:
        """Check a verb that acts beside the store. Raises AccessDenied, SessionNotFound."""
        await self._check(action, key)
        if action not in _READING:
            await self._check_own(key)

    async def foresee(self, action: Action, key: Key, *, whole: bool = False) -> None:
        """Raise AccessDenied if it may not do this, or does not see the `whole` session. What is
        allowed is not recorded yet."""
        head = await self._check(action, key, approved=[])
        if whole and head is not None and self.guard.view(head) is not None:
            await self._check_whole("read", key)

    async def check_whole(self, action: Action, key: Key) -> None:
        """Check a verb that takes a session as a whole. Raises AccessDenied, SessionNotFound."""
        await self._check_whole(action, key)

    async def followed(self, key: Key) -> tuple[tuple[int, ...], SessionView | None]:
        """Raise AccessDenied unless it may follow the session; for which revision of the rules
        that holds, and what it sees."""
        revision = self.guard.rules.revision
        self._heads.pop(key, None)
        head = await self._check("read", key)
        if head is None:
            return revision, CheckpointView() if await self._sees_part(key) else None
        return revision, self.guard.view(head)

    def check_partial(self, key: Key, partial: Event) -> None:
        """Raise AccessDenied unless it may publish this. From memory: a partial waits for nothing.

        A session whose head was never met cannot be decided about, if a decider needs it. Whoever
        publishes awaits the record of a denial before it goes on: see `Audit.settle`."""
        guard, resource = self.guard, _with(self._resource(key), self._heads.get(key))
        if guard.needs_head and resource.head is None:
            guard.refuse_soon("access_denied", "write", resource)
        if not guard.may_write_as(partial.actor):
            guard.refuse_soon("access_denied", "write", resource, "actor")
        decision = guard.decide("write", resource)
        if not decision.allowed:
            code = decision.denial or "access_denied"
            guard.refuse_soon(code, "write", resource, decision.policy or "")

    async def sees_blob(self, key: Key, hash: str) -> bool:
        """False if hidden fields of a session name this blob, and no visible one does. Raises
        AccessDenied."""
        head = await self._check("read", key)
        view = None if head is None else self.guard.view(head)
        if view is None:
            return True
        loaded: Loaded = await self._inner.load(key, tail=0)
        names = {**loaded.fields, **scope_fields(loaded.scopes)}
        naming = [view.sees(name) for name, value in names.items() if _names(value, hash)]
        return not naming or any(naming)

    # --- writing ---------------------------------------------------------------------------------

    async def commit(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        if len(commits) == 1 and (cleared := self._cleared_commit(commits[0])) is not None:
            try:
                (answer,) = await self._send((cleared,))
            except SessionDeleted:
                self._cleared.pop(cleared.key, None)
                if cleared is commits[0]:
                    raise
            else:
                clearance = self._cleared.get(cleared.key)
                if clearance is not None and clearance.holds(answer.head):
                    seen = clearance.of(answer)
                    return (await self._seen(answer, clearance.view) if seen is None else seen,)
                self._cleared.pop(cleared.key, None)
                return (await self._answer(answer),)
        new = {commit.key for commit in commits if _begins(commit)}
        kin = await self._kin(commits) if len(commits) > 1 else frozenset()
        approved: list[AllowedOperation] = []
        admitted = [await self._admit(commit, new, approved, kin) for commit in commits]
        try:
            answers = await self._send([*admitted, *await self._records(approved, len(admitted))])
        except SessionDeleted:
            named = [a for a, c in zip(admitted, commits, strict=True) if a.uid != c.uid]
            if not named:
                raise
            for each in named:  # the key belongs to another session by now: decide about that one
                self._heads.pop(each.key, None)
            approved.clear()
            admitted = [await self._admit(commit, new, approved, kin) for commit in commits]
            answers = await self._send([*admitted, *await self._records(approved, len(admitted))])
        shown = tuple([await self._answer(answer) for answer in answers[: len(commits)]])
        if len(commits) == 1 and self._is_plain(commits[0]) and self._is_own(commits[0].key):
            self._clear(answers[0].head, [str(op.path[0]) for op in commits[0].drafts[0].plain_ops])
        return shown

    def _clear(self, head: Head, names: Iterable[str] | None = None) -> None:
        """Remember what was decided about a session, if it holds for what comes next."""
        guard = self.guard
        if guard.needs_newest_head or is_reserved(head.key.app):
            return
        clearance = self._clearance(head.key)
        if clearance is None or not clearance.holds(head):
            if not guard.allows("read", Resource.of(head.key, head)):
                return
            if len(self._cleared) >= _HEADS_REMEMBERED:
                self._cleared.clear()
            clearance = Clearance(guard.rules.revision, head, guard.view(head))
            self._cleared[head.key] = clearance
        if names is not None:
            clearance.names = (clearance.names or set()).union(names)

    def _clearance(self, key: Key) -> Clearance | None:
        """Return the session's clearance, unless the rules have changed since it was given."""
        clearance = self._cleared.get(key)
        if clearance is None or clearance.revision == self.guard.rules.revision:
            return clearance
        del self._cleared[key]
        return None

    def _is_plain(self, commit: Commit) -> bool:
        """True if it is one event that changes nothing but fields of its own session."""
        if len(commit.drafts) != 1 or commit.expect == 0 or commit.guards or commit.names_of:
            return False
        draft = commit.drafts[0]
        if draft.scoped or draft.origin is not None or draft.type in _NOT_PLAIN:
            return False
        if VIA in draft.data and draft.type.startswith("user."):
            return False
        return commit.pin is None and commit.base is None and commit.release is None

    def _cleared_commit(self, commit: Commit) -> Commit | None:
        """Return the commit if all of it was allowed before; None if it has to be decided."""
        clearance = self._clearance(commit.key)
        if clearance is None or clearance.names is None or not self._is_plain(commit):
            return None
        draft, names = commit.drafts[0], clearance.names
        for op in draft.plain_ops:
            if op.path[0] not in names:
                return None
        if not self.guard.may_write_as(draft.actor) or commit.uid not in (None, clearance.uid):
            return None
        return commit if commit.uid is not None else structs.replace(commit, uid=clearance.uid)

    async def _records(
        self, approved: Sequence[AllowedOperation], beside: int
    ) -> tuple[Commit, ...]:
        """Return the audit records of sensitive operations, for the same commit."""
        if not approved:
            return ()
        audit = self.guard.rules.audit
        records = await audit.commits(self.guard.principal, approved, self.guard.address)
        if beside + len(records) <= SESSIONS_PER_COMMIT_MAX:
            return records
        await self._send(records)  # it is full: then they are recorded first
        return ()

    async def _kin(self, commits: Sequence[Commit]) -> frozenset[Key]:
        """The children that a session of this commit delegates to or is completed with, and the
        parents of sessions of this commit that learn of their end. Both work in an app and a
        task of their own, and who may write to the one tells the other: the log of each names it.
        """
        kin: set[Key] = set()
        for commit in commits:
            kin |= {each.key for each in commits if self._is_child(each, commit)}
            for child in commits:
                if _tells_parent(commit, child) and await self._exists(child.key):
                    head = await self._head(child.key)
                    uids = {draft.data.get("uid") for draft in commit.drafts}
                    works = works_for(head.facts, commit.key, str(commit.uid))
                    if works and uids == {head.uid} and await self._is_account_true(commit):
                        kin.add(commit.key)
                if _completes_with(child, commit) and await self._has_finished(child, commit):
                    kin.add(child.key)
        # Somebody has to be entered in the usual way.
        return frozenset() if kin.issuperset([each.key for each in commits]) else frozenset(kin)

    async def _has_finished(self, child: Commit, parent: Commit) -> bool:
        """True if a child has finished what it did for its parent. If the commit names an earlier
        version of it, it is refused for that."""
        if child.expect is None or child.uid is None or not await self._exists(child.key):
            return False
        head = await self._newest(child.key)
        if head.uid != child.uid or not works_for(head.facts, parent.key, str(parent.uid)):
            return False
        if head.version != child.expect:
            return head.version > child.expect
        return bool(head.facts["delegation"].get("ended")) and not is_at_work(head.facts)

    async def _is_account_true(self, commit: Commit) -> bool:
        """True if a spawned child that gives back its budget says what it was given."""
        for draft in commit.drafts:
            if draft.type == CHILD_DONE:
                made = await self._inner.read_ids(commit.key, (created_id(draft.data["child"]),))
                lent = [event.data.get("lent") for event in made if event.data is not None]
                if lent != [draft.data.get("lent")]:
                    return False
        return True

    def _is_child(self, commit: Commit, parent: Commit) -> bool:
        """True if a commit begins the child that its parent says it has created: what an agent does
        by delegating."""
        if self.guard.principal.role != "agent" or not _begins(commit) or not _is_bare(commit):
            return False
        if commit.drafts[0].type != CREATED or _begins_again(commit):
            return False
        key, uid = commit.key, commit.drafts[0].id
        of = (parent.key.app, parent.key.user, parent.key.id)
        named = [
            (d.data["app"], d.data["user"], d.data["child"], d.data.get("uid"))
            for d in parent.drafts
            if d.type == CHILD_CREATED and d.origin is None
        ]
        works = [
            (d.data["app"], d.data["user"], d.data["id"])
            for d in commit.drafts
            if d.type == DELEGATED
        ]
        return (key.app, key.user, key.id, uid) in named and works == [of] and key.user == of[1]

    async def _admit(
        self,
        commit: Commit,
        new: Collection[Key],
        approved: list[AllowedOperation],
        kin: Collection[Key] = (),
    ) -> Commit:
        """The commit, if the principal may do all of it; `new` are the sessions that begin with it,
        `kin` those that it may write to because of another (see `_kin`).

        What the audit is to record of it is added to `approved`. Raises AccessDenied.
        """
        key, drafts, guard = commit.key, commit.drafts, self.guard
        asked = self._access(key)
        if drafts and drafts[0].type in _STARTS and guard.principal.role != "admin":
            await self._check_uid(drafts[0].id, asked.resource)
        if key in kin:
            await self._attributed(commit, asked.resource, approved)  # nobody else is named there
            await self._check_kin(commit, asked.resource)
            if _is_completion(commit):
                there = _with(asked.resource, await self._newest(key))
                await guard.check("lifecycle", there, approved, kin=True)
            return commit
        resource, head = asked.resource, None
        if resource.kind == "session":
            if _begins_again(commit):  # else it would be decided as one that nobody has rules for
                await guard.deny("access_denied", "create", resource)
            if _stands_for_a_file(commit):  # which may be of any session: the system says of which
                await guard.deny("access_denied", "lifecycle", resource)
            for action in self._actions(commit):
                if action == "create" or (key in new and not await self._exists(key)):
                    await guard.check(action, resource, approved)
                else:
                    head = await self._check(action, key, head, approved)
            if any([draft.type == RECLAIMED and draft.origin is None for draft in drafts]):
                await guard.check("move", Resource("app", key.app), approved)  # as lp.reclaim asks
            await self._check_appends(commit)
        elif drafts or commit.pin is not None:
            await guard.check(asked.write, resource, approved)
            await self._check_behind("write", key)
            await self._check_vouching(key, resource)
            if key.app == ARRIVALS and guard.principal.role != "admin":
                await self._check_arrival(commit, resource)
        else:
            await guard.check(asked.read, resource)
            await self._check_behind("read", key)
        if any([draft.origin is None and draft.type.startswith("user.") for draft in drafts]):
            drafts = await self._attributed(commit, resource, approved)
            commit = structs.replace(commit, drafts=drafts)
        for draft in drafts:
            names_itself = draft.origin is not None or guard.may_write_as(draft.actor)
            if not names_itself and not self._is_attributed(draft, key):
                await guard.check_actor(draft.actor, resource)
            if draft.origin is not None and key.app == ARRIVALS:
                continue  # it writes no shared name, and its fields are of a session to come
            if draft.origin is not None and guard.principal.role != "admin":
                await self._check_brought_by(draft.actor, resource)
            if draft.scoped or head is not None or (draft.plain_ops and draft.origin is None):
                await self._check_names(draft, commit, head)
            if draft.type in WHOLE_STATE and head is not None:
                await self._check_taking(draft, key, head)
            if draft.type == RELATED and "reads" in draft.data:
                await self._check_reads(draft, resource)
        if commit.guards:
            await self._check_guards(commit, head)
        if commit.base is not None:
            adopts = bool(drafts) and drafts[0].origin is not None
            if adopts and not await self._exists(commit.base.parent):
                await self._check_any("read", commit.base.parent)
            else:
                await self._check_whole("read", commit.base.parent)
        if commit.release is not None:
            await self._check("claim", key, head)
        if commit.names_of is not None:
            await guard.check("move", Resource("app", *commit.names_of))
        if head is not None and drafts and commit.uid is None and commit.expect != 0:
            return structs.replace(commit, uid=head.uid)
        return commit

    async def _attributed(
        self, commit: Commit, resource: Resource, approved: list[AllowedOperation]
    ) -> tuple[Prepared, ...]:
        """The drafts of a commit; what a principal records as said by the session's user names the
        principal, and is in the audit. Nobody else says via whom a user spoke."""
        guard, drafts = self.guard, list[Prepared]()
        for draft in commit.drafts:
            if draft.origin is None and draft.type.startswith("user."):
                spoken = _is_appended(draft) and not guard.may_write_as(draft.actor)
                if spoken and guard.speaks_as(draft.actor, commit.key):
                    via = guard.principal.id
                    draft = with_via(draft, via)
                    approved.append(AllowedOperation("write", resource, via=via))
                elif VIA in draft.data:
                    raise InvalidEvent(
                        f"{VIA!r} in the data of {draft.type} is recorded by Limpet, when somebody "
                        "speaks for a user; use another name"
                    )
            drafts.append(draft)
        return tuple(drafts)

    def _is_attributed(self, draft: Prepared, key: Key) -> bool:
        """True of a user's words that name the principal that records them: see `_attributed`."""
        said = draft.type.startswith("user.") and VIA in draft.data
        return said and self.guard.speaks_as(draft.actor, key)

    async def _check_uid(self, uid: str, resource: Resource) -> None:
        """Raise AccessDenied if a log of another owner has the uid that one is to begin with: they
        would share its keys, and who erases the one would destroy the other."""
        inner = self._inner
        if isinstance(inner, Sealing) and inner.sealer.seals and isinstance(inner, UidIndex):
            for key in await inner.keys_with(uid):
                of = access_of(key).resource
                if (of.app, of.user) != (resource.app, resource.user):
                    await self.guard.deny("access_denied", "create", resource)

    async def _check_arrival(self, commit: Commit, resource: Resource) -> None:
        """Raise AccessDenied unless one who is not an admin may stage these events of a session.

        An admin is believed what another store has recorded. An owner brings what an owner could
        have recorded here, each event decided as if it were recorded now; and of a session that
        left from here, the log that left, which is compared by its links.
        """
        key, events = commit.key, list(commit.drafts)
        part = stage_part(key.id)
        if part == EXPECTED:
            return  # it says of which session the rest is
        if part is None:
            await self.guard.deny("access_denied", "move", resource)
        if not all([draft.origin for draft in events]):  # nothing begins or goes on in a stage
            await self.guard.deny("access_denied", "move", resource)
        if events and part == LOG:
            session = await self._arriving(key, resource)
            head = await self._left(session, resource)
            if commit.base is not None:  # the state of a fork, which nothing here vouches for
                await self.guard.deny("access_denied", "move", resource)
            events = await self._beyond(session, head, events, resource)
            for draft in events:
                await self._check_arriving(draft, session, head)
        for draft in events:
            beside = part == CHECKPOINTS_PART or (part != LOG and draft.type == CREATED)
            carried = beside or draft.type in _CARRIED or _is_of_runs(draft)
            if carried and draft.actor.startswith("key:"):
                continue  # an admin or a worker of the app, whom another store knows by it
            await self._check_brought_by(draft.actor, resource)

    async def _check_brought_by(self, actor: str, resource: Resource) -> None:
        """Raise AccessDenied if an event of another store is said to be by somebody else: only an
        admin is believed that."""
        if not actor.startswith(_NOBODY):
            await self.guard.check_actor(actor, resource)

    async def _arriving(self, stage: Key, resource: Resource) -> Key:
        """The session that a staged log is of, as was said before it was staged. Raises
        AccessDenied if that was not said, or cannot be."""
        place = structs.replace(stage, id=f"{stage.id.removesuffix(LOG)}{EXPECTED}")
        with suppress(*_GONE, TypeError):
            loaded: Loaded = await self._inner.load(place, tail=0, scopes=False)
            session = Key(*loaded.fields.get(VALUE, ()))
            owner = owner_of(session.app, session.user)
            if owner == stage.user and stage.id.startswith(stage_prefix(session)):
                return session
        return await self.guard.deny("access_denied", "move", resource)

    async def _left(self, session: Key, resource: Resource) -> Head | None:
        """The route of a session that has left; None if there is none. Raises AccessDenied if
        another session has its key."""
        try:
            head = await self._newest(session)
        except _GONE:
            return None
        if departure(head.facts) is None:
            await self.guard.deny("access_denied", "move", resource)
        return head

    async def _beyond(
        self, session: Key, head: Head | None, events: list[Prepared], resource: Resource
    ) -> list[Prepared]:
        """The events that this store did not record itself before the session left. Raises
        AccessDenied if those before are others: the link of the last one covers all."""
        known = [draft for draft in events if head and _origin(draft).seq <= head.version]
        if known:
            last = _origin(known[-1])
            if not await self._has_link(session, last.seq, last.link):
                await self.guard.deny("access_denied", "move", resource)
        return events[len(known) :]

    async def _has_link(self, key: Key, seq: int, link: bytes) -> bool:
        """True if the log under a key has this link at this place."""
        records = await self._inner.records(key, after=seq - 1, limit=1)
        return [(each.event.seq, each.event.link) for each in records] == [(seq, link)]

    async def _check_arriving(self, draft: Prepared, session: Key, head: Head | None) -> None:
        """Raise AccessDenied unless it could record this event of a session here."""
        guard, own = self.guard, Resource.of(session, head)
        action = _ACTIONS.get(draft.type, "write")
        await guard.check("move" if action == "create" else action, own)
        for name in {str(op.path[0]): None for op in draft.plain_ops}:
            if scope_of(name) not in ("app", "user"):  # which are not written by it
                resource = Resource("field", session.app, session.user, session.id, name, head)
                await guard.check("write", resource)
        if draft.type in WHOLE_STATE and head is not None:
            await self._check_taking(draft, session, head)

    async def _check_taking_key(self, each: Exchange) -> None:
        """Raise AccessDenied unless a staged log may take this key for one who is not an admin: the
        key of its own session, which nobody has, or which that session left from here; or the same
        place in the stage of another epoch."""
        stage, key = each.by, each.key
        assert stage is not None
        resource, part = self._resource(stage), stage_part(stage.id)
        if not is_reserved(key.app):
            session = await self._arriving(stage, resource) if part == LOG else None
            head = await self._left(key, resource)
            staged = await self._newest(stage)
            left = None if head is None else Standing(head.uid, head.version)
            # It may have been staged before the session came here and left: compared once more.
            same = head is None or (
                head.uid == staged.uid and await self._has_link(stage, head.version, head.link)
            )
            if session != key or each.at != left or not same or departure(staged.facts) is None:
                await self.guard.deny("access_denied", "move", resource)
        elif key.app == ARRIVALS:
            same = (key.user, stage_session(key.id)) == (stage.user, stage_session(stage.id))
            if not same or part is None or stage_part(key.id) != part or each.at is not None:
                await self.guard.deny("access_denied", "move", resource)
        elif key.app not in _BESIDE:
            await self.guard.deny("access_denied", "move", resource)

    async def _check_kin(self, commit: Commit, resource: Resource) -> None:
        """Raise AccessDenied unless what `_kin` lets in stays within its own session: it writes as
        somebody that the principal may write as, to no name that others share, and reads nothing
        else than the principal; and the user's policies let a child begin there."""
        app, user = commit.owner
        for draft in commit.drafts:
            await self.guard.check_actor(draft.actor, resource)
            if draft.type == RELATED and "reads" in draft.data:
                await self._check_reads(draft, resource)
            for name in {str(op.path[0]): None for op in draft.plain_ops}:
                scope = scope_of(name)
                if scope in ("app", "user"):
                    of = user if scope == "user" else None
                    await self.guard.check("write", Resource("app", app, of, name=name))
        if _begins(commit):
            await self.guard.check("create", resource, kin=True)

    async def _check_behind(self, action: Action, key: Key) -> None:
        """Raise AccessDenied if a log of the system is of a session that it may not enter."""
        of = await self._behind(key)
        if of is not None:
            await self._check_any(action if action in _READING else "write", of)

    async def _enters_behind(self, action: Action, key: Key) -> bool:
        """The same for lists: what they leave out is not a denial."""
        of = await self._behind(key)
        if of is None:
            return True
        resource = self._resource(of)
        head = await self._head(of) if await self._exists(of) else None
        return self.guard.allows(action, _with(resource, head)) or (
            head is not None and self.guard.is_admitted(action, head)
        )

    async def _behind(self, key: Key) -> Key | None:
        """The session that a log of the system is of; None if it is of none, or if no decision
        needs its head. What was decided of a session that had its key before says nothing."""
        id = session_id_in(key) if is_reserved(key.app) else None
        if id is None or not self.guard.needs_head:
            return None
        own = self.guard.principal
        owner = owned_by(key.user)
        if owner is None and own.app and own.user and key.user == owner_of(own.app, own.user):
            owner = (own.app, own.user)
        if owner is None or not id:
            return None
        of = Key(*owner, id)
        # A session may have an id that looks hashed: what stands in the name of the log counts.
        if is_hashed(key.id.partition("/")[2] if key.app == MEMORY else key.id):
            of = await self._long_named(*owner, id)
        self._heads.pop(of, None)
        return of

    async def _long_named(self, app: str, user: str, id: str) -> Key:
        """The session whose id is too long for a name and is hashed to this one. One that is gone
        is decided by its owner."""
        known = self._long_ids.get((app, user, id))
        if known is not None:
            return known
        async for head in each_head(self._inner, Query(app=app, user=user, reverse=False)):
            if hashed(head.key.id) == id:
                if len(self._long_ids) >= _HEADS_REMEMBERED:
                    self._long_ids.clear()
                self._long_ids[app, user, id] = head.key
                return head.key
        return Key(app, user, id)

    async def _view_of(self, head: Head) -> SessionView | None:
        """The view of a session or of a system log. A partial view of states has no checksums."""
        key = head.key
        if not is_reserved(key.app):
            return self.guard.view(head)
        return CheckpointView() if await self._sees_part(key) else None

    async def _sees_part(self, key: Key) -> bool:
        """True if a log has checkpoints of a session that it sees in part."""
        of = await self._behind(key) if key.app == CHECKPOINTS else None
        if of is None or not await self._exists(of):
            return False
        return self.guard.view(await self._head(of)) is not None

    async def _check_vouching(self, key: Key, resource: Resource) -> None:
        """Raise AccessDenied if it would change checkpoints of states that it sees in part."""
        if await self._sees_part(key):
            await self.guard.deny("field_access_denied", "write", resource)

    async def _check_any(self, action: Action, key: Key) -> None:
        """As `_check`, also of a session that is gone: that is decided by its key."""
        if await self._exists(key):
            await self._check(action, key)
        else:
            await self.guard.check(action, self._resource(key))
            await self._check_behind(action, key)

    async def _exists(self, key: Key) -> bool:
        """True if a session is there to be looked at. What was deleted may begin again."""
        try:
            await self._head(key)
        except _GONE:
            return False
        return True

    def _actions(self, commit: Commit) -> Iterable[Action]:
        """Return the actions that a commit performs on its session."""
        drafts = commit.drafts
        if len(drafts) == 1 and drafts[0].plain:  # as most are
            return _WRITE if drafts[0].origin is None else _MOVE
        if not drafts:
            return _INSPECT if commit.pin is None else _WRITE
        if drafts[0].origin is not None:
            return _MOVE
        actions = dict.fromkeys([_ACTIONS.get(draft.type, "write") for draft in drafts])
        if "create" in actions:  # a new session may begin with anything
            return ("create",)
        if any([_deletes_later(draft) for draft in drafts]):
            actions["erase"] = None
        return tuple(actions)

    async def _check_appends(self, commit: Commit) -> None:
        """Raise AccessDenied if one whom the session of another user lets in does more than append:
        labels, timers, what was processed and the like are its own user's."""
        if not all([_is_appended(draft) for draft in commit.drafts]) or commit.pin is not None:
            await self._check_own(commit.key)

    async def _check_own(self, key: Key) -> None:
        """Raise AccessDenied if it only enters because the session of another user lets it in."""
        if not self._is_own(key):
            await self.guard.deny("access_denied", "write", self._resource(key))

    def _is_own(self, key: Key) -> bool:
        """True unless it is a session of another user."""
        return is_reserved(key.app) or self.guard.principal.user in (None, key.user)

    async def _check_names(self, draft: Prepared, commit: Commit, head: Head | None) -> None:
        """Check what a draft changes: names that others share; the fields that are its to write."""
        key, guard = commit.key, self.guard
        app, user = commit.owner
        for name in {str(op.path[0]): None for op in draft.plain_ops}:
            scope = scope_of(name)
            if scope == "app":
                await guard.check("write", Resource("app", app, name=name))
            elif scope == "user":
                await guard.check("write", Resource("app", app, user, name=name))
            if not is_reserved(key.app):  # of a new session, too, which has no head
                await guard.check("write", Resource("field", app, user, key.id, name, head))

    async def _check_taking(self, draft: Prepared, key: Key, head: Head) -> None:
        """Raise AccessDenied if a state is taken over as a whole by one who sees a part of it."""
        if self.guard.view(head) is not None:
            await self.guard.deny("field_access_denied", "write", Resource.of(key, head))
        if draft.type == MIGRATED and "field_policies" in draft.data:
            # A principal that may not write a field must not change its policy.
            now, then = draft.data["field_policies"] or EMPTY, field_policies_in(head.facts)
            for name in [name for name in then if now.get(name) != then[name]]:
                field = Resource("field", key.app, key.user, key.id, name, head)
                await self.guard.check("write", field)
        if draft.type == MERGED and draft.origin is None:
            other = draft.data["other"]
            await self._check_whole("read", Key(other["app"], other["user"], other["id"]))

    async def _check_reads(self, draft: Prepared, resource: Resource) -> None:
        """Raise AccessDenied unless the principal may read what a relation lets a session read, and
        is the one who is remembered for it. An admin is believed what another store recorded."""
        check_shape(draft.type, draft.data)
        maker, own = draft.data["reads"].get("maker"), self.guard.principal
        if draft.origin is not None and own.role == "admin":
            return
        if maker != principal_data(own):
            await self.guard.deny("access_denied", "write", resource)
        if draft.origin is not None:
            return  # where it comes from is not here
        of = key_in(draft.data)
        await self._check("read", of)
        head = await self._head(of)
        for name in draft.data["reads"].get("fields", ()):
            field = Resource("field", of.app, of.user, of.id, name, head)
            await self.guard.check("read", field)

    async def _check_guards(self, commit: Commit, head: Head | None) -> None:
        """A condition on a name tells its version: only for those who see it."""
        view = None if head is None else self.guard.view(head)
        if view is None and (head is not None or is_reserved(commit.key.app)):
            return
        for name in commit.guards:  # of a new session, which has no head, they are shared names
            resource = Resource("field", commit.key.app, commit.key.user, commit.key.id, name, head)
            if view is None:
                await self.guard.check("read", resource)
            elif not view.sees(name):
                await self.guard.check("read", resource)  # which says why
                await self.guard.deny("field_access_denied", "read", resource)

    async def _answer(self, answer: Committed) -> Committed:
        """The answer to a commit, as far as the principal may read the session."""
        head = answer.head
        if self.guard.needs_head and not is_reserved(head.key.app):
            self._meet(head)
        asked = self._access(head.key)
        if not self.guard.allows(asked.read, _with(asked.resource, head)):
            events = tuple([without_body(e) if e.repeated else e for e in answer.events])
            return structs.replace(
                answer,
                events=events,
                fields=EMPTY,
                versions=EMPTY,
                scopes=EMPTY,
                texts=NO_TEXTS,
            )
        view = await self._view_of(head)
        if view is None:
            return answer
        return await self._seen(answer, view)

    async def _seen(self, whole: L, view: SessionView | None) -> L:
        """An answer with the state of a session, as a view shows it."""
        if view is None:
            return whole
        changes: dict[str, Any] = {
            "fields": visible(whole.fields, view),
            "versions": visible(whole.versions, view),
        }
        events: tuple[Event, ...] = ()
        if isinstance(whole, (Loaded, Committed)):
            events = whole.events
            changes["events"] = tuple(map(view.event, events))
            if whole.scopes:
                changes["scopes"] = visible(whole.scopes, view)
        if whole.texts:
            named = await self._named(whole.head.key, whole.texts, events)
            changes["texts"] = view.texts(whole.texts, named)
        return structs.replace(whole, **changes)

    async def _named(self, key: Key, texts: Texts, known: Iterable[Event]) -> list[Event]:
        """The events that texts are of: what is hidden in one, its operations say."""
        named = [event for event in known if event.seq in texts]
        for seq in {*texts} - {event.seq for event in named}:
            named += await self._inner.read(key, after=seq - 1, limit=1, reverse=False, types=None)
        return named

    def _view(self, head: Head) -> SessionView | None:
        return None if is_reserved(head.key.app) else self.guard.view(head)

    # --- reading ---------------------------------------------------------------------------------

    async def load(
        self,
        key: Key,
        *,
        tail: int,
        since_us: int | None = None,
        scopes: bool = True,
        at_least: str = "",
    ) -> Loaded:
        clearance = self._clearance(key)
        if clearance is not None:
            whole: Loaded = await self._inner.load(
                key, tail=tail, since_us=since_us, scopes=scopes, at_least=at_least
            )
            if clearance.holds(whole.head) and not whole.damaged:
                shown = clearance.of(whole)
                return await self._seen(whole, clearance.view) if shown is None else shown
            self._cleared.pop(key, None)
            return await self._loaded(whole, head_alone=not scopes and not tail)
        asked = self._access(key)
        reads = self.guard.allows(asked.read, asked.resource)
        if not reads and not scopes and not tail:  # the head alone
            await self._check("inspect", key)
        elif not reads:
            await self._check(asked.read, key)
        if is_reserved(key.app):
            await self._check_behind("read", key)
        loaded: Loaded = await self._inner.load(
            key, tail=tail, since_us=since_us, scopes=scopes, at_least=at_least
        )
        return await self._loaded(loaded, head_alone=not scopes and not tail)

    async def _loaded(self, loaded: Loaded, *, head_alone: bool = False) -> Loaded:
        """Return the part of a reading that the principal may see. Raises AccessDenied."""
        head, guard = loaded.head, self.guard
        asked = self._access(head.key)
        if head.version in loaded.damaged and self._reads_heads:
            await self._inner.head(head.key)  # nothing is decided by a head that was changed
        if asked.resource.kind == "session" and guard.needs_head:
            self._meet(head)
        read = _with(asked.resource, head)
        if not guard.allows(asked.read, read):
            if head_alone and guard.allows("inspect", read):
                return Loaded(head, EMPTY, EMPTY, EMPTY, ())
            await self._check(asked.read, head.key, head)
        self._clear(head)
        view = await self._view_of(head)
        return loaded if view is None else await self._seen(loaded, view)

    async def load_many(self, keys: Sequence[Key], *, tail: int) -> tuple[Loaded | None, ...]:
        for key in keys:
            asked = self._access(key)
            if not self.guard.allows(asked.read, asked.resource):
                await self._check(asked.read, key)
            if is_reserved(key.app):
                await self._check_behind("read", key)
        sessions = await self._inner.load_many(keys, tail=tail)
        return tuple([None if each is None else await self._loaded(each) for each in sessions])

    async def fold_at(self, key: Key, seq: int) -> Fold:
        fold: Fold
        fold, view = await self._reading(key, lambda: self._inner.fold_at(key, seq))
        return fold if view is None else await self._seen(fold, view)

    async def rung(self, key: Key, seq: int) -> Fold:
        fold: Fold
        fold, view = await self._reading(key, lambda: self._inner.rung(key, seq))
        return fold if view is None else await self._seen(fold, view)

    async def read(
        self,
        key: Key,
        *,
        after: int,
        limit: int,
        reverse: bool,
        types: tuple[str, ...] | None,
    ) -> tuple[Event, ...]:
        asked = self._access(key)
        action: Action = asked.read
        reads = self.guard.allows(action, asked.resource)
        if types is not None and not reads and (types == TRACED or TRACES.issuperset(types)):
            action = "inspect"
        if types == TRACED:  # of everything that a wake recorded: for an auditor without bodies
            types = None
        page, view = await self._reading(
            key,
            lambda: self._inner.read(key, after=after, limit=limit, reverse=reverse, types=types),
            action,
        )
        if types is None and action == "inspect":
            page = tuple(map(traced, page))
        return _events(page, view)

    async def read_ids(self, key: Key, ids: Sequence[str]) -> tuple[Event, ...]:
        events, view = await self._reading(key, lambda: self._inner.read_ids(key, ids))
        return _events(events, view)

    async def naming(
        self, key: Key, name: str, *, before: int, after: int, limit: int
    ) -> tuple[Event, ...]:
        page, view = await self._reading(
            key,
            lambda: self._inner.naming(key, name, before=before, after=after, limit=limit),
        )
        if view is not None and not view.sees(name):  # as a name that never was
            return ()
        return _events(page, view)

    async def names_since(
        self, key: Key, seq: int, names: Sequence[str]
    ) -> Mapping[str, NameSince]:
        since, view = await self._reading(key, lambda: self._inner.names_since(key, seq, names))
        return since if view is None else {n: s for n, s in since.items() if view.sees(n)}

    async def pending_inputs(self, key: Key, *, limit: int) -> tuple[Event, ...]:
        page, view = await self._reading(key, lambda: self._inner.pending_inputs(key, limit=limit))
        return _events(page, view)

    # --- lists -----------------------------------------------------------------------------------

    async def heads(
        self, query: Query, *, cursor: str | None, limit: int, states: bool = False
    ) -> Page[Head]:
        narrowed = await self._narrowed(query, "read" if states else "inspect")
        page: Page[Head] = await self._inner.heads(
            narrowed, cursor=cursor, limit=limit, states=states
        )
        items = tuple([head for head in page.items if await self._lists(head, states=states)])
        shown = {head.key: head for head in items}
        values = {k: await self._state(shown[k], s) for k, s in page.states.items() if k in shown}
        damaged = tuple([key for key in page.damaged if key in shown])
        return Page(items, page.cursor, values, damaged)

    async def _narrowed(self, query: Query, action: Action) -> Query:
        """The query within what the principal may list. Raises AccessDenied for what it names."""
        guard, own = self.guard, self.guard.principal
        if query.app in AUDIT_APPS:  # of its own app: see `_lists`
            await guard.check("audit", STORE if own.app is None else Resource("app", own.app))
            return query
        if query.app is not None and is_reserved(query.app):
            named = Key(query.app, query.user or WHOLE_STORE, query.prefix or "any")
            asked = self._access(named)
            await self._check_behind("read", named)
            resource = asked.resource if query.user is not None else STORE
            await guard.check(asked.read if query.user is not None else action, resource)
            return query
        if query.app is None and own.app is None:
            if query.reserved:
                await guard.check(action, STORE)
            return query
        app = own.app if query.app is None else query.app
        user = own.user if query.user is None else query.user
        await guard.check(action, Resource("app", str(app), user))
        return structs.replace(query, app=app, user=user, reserved=False)

    async def _lists(self, head: Head, *, states: bool) -> bool:
        asked = self._access(head.key)
        if asked.resource.kind == "session":
            if head.deleted_us is not None and self._may_be_kept_from():
                return False
            return self.guard.allows("read" if states else "inspect", _with(asked.resource, head))
        # The query was allowed as a whole.
        action: Action = asked.read if states else "inspect"
        if not self.guard.allows(action, asked.resource):
            return False
        return await self._enters_behind("read" if states else "inspect", head.key)

    def _may_be_kept_from(self) -> bool:
        """True of an agent, and of one who works on a task: a tombstone does not say any more
        whether its session was isolated from them."""
        own = self.guard.principal
        return own.role == "agent" or (own.task is not None and own.role != "admin")

    async def _state(self, head: Head, state: Mapping[str, Any]) -> Any:
        view = await self._view_of(head)
        return state if view is None else visible(state, view)

    async def forks(self, key: Key) -> tuple[Key, ...]:
        await self._check_any("inspect", key)
        return await self.listed(await self._inner.forks(key))

    # --- ending ----------------------------------------------------------------------------------

    async def delete(
        self, key: Key, *, ending: Ending = "deleted", at: Standing | None = None
    ) -> bool:
        await self.check_end(key)
        deleted: bool = await self._inner.delete(key, ending=ending, at=at)
        self._heads.pop(key, None)
        return deleted

    async def check_end(self, key: Key) -> None:
        """Raise AccessDenied unless it may end this log. One that is missing is decided by key."""
        asked = self._access(key)
        if asked.resource.kind != "session":
            await self.guard.check(asked.write, asked.resource)
            await self._check_behind("write", key)
            await self._check_vouching(key, asked.resource)
            return
        try:
            await self._check("erase", key)
        except _GONE:  # it may be a tombstone, which the store knows
            await self.guard.check("erase", asked.resource)

    async def exchange(self, exchanges: Sequence[Exchange]) -> bool:
        for each in exchanges:
            for key in (each.key, each.by):
                if key is not None:
                    await self.check_end(key)
            staged = each.by is not None and each.by.app == ARRIVALS
            if staged and self.guard.principal.role != "admin":
                await self._check_taking_key(each)
        exchanged: bool = await self._inner.exchange(exchanges)
        self._heads.clear()
        return exchanged

    async def unpin(self, key: Key, seqs: Sequence[int]) -> None:
        await self._check_whole("write", key)
        await self._inner.unpin(key, seqs)

    async def erase(self, key: Key, *, forks: Forks = "refuse") -> Erasure | None:
        await self.check_end(key)
        if forks == "erase":
            await self.check_forks(key)
        try:
            erasure: Erasure | None = await self._inner.erase(key, forks=forks)
        except SessionHasForks as error:
            raise SessionHasForks(key, await self.listed(error.forks)) from None
        self._heads.pop(key, None)
        return erasure

    async def check_forks(self, key: Key) -> None:
        """Raise AccessDenied unless it may erase every fork of a session, and theirs."""
        waiting = [key]
        met = {key}
        for each in waiting:  # grows as it is walked
            for fork in await self._inner.forks(each):
                if fork not in met:
                    await self._check_any("erase", fork)
                    met.add(fork)
                    waiting.append(fork)

    async def erase_user(self, app: str, user: str) -> Erasures:
        await self.check_user_end(app, user)
        erasures: Erasures = await self._inner.erase_user(app, user)
        self._heads.clear()
        return structs.replace(erasures, forks=await self.listed(erasures.forks))

    async def check_user_end(self, app: str, user: str) -> None:
        """Raise AccessDenied unless it may erase a user: all that is the user's, and each of the
        sessions, which may have rules of their own."""
        await self.guard.check("erase", Resource("app", app, user))
        if not self.guard.needs_head:
            return
        async for head in each_head(self._inner, Query(app=app, user=user, reverse=False)):
            resource = Resource.of(head.key, head)
            if not self.guard.allows("erase", resource):
                await self.guard.check("erase", resource)  # which says why

    async def listed(self, keys: Iterable[Any]) -> tuple[Key, ...]:
        """Those of the sessions that it may know of."""
        named = list(keys)
        lending = await self._lending("inspect", named)
        return tuple([key for key in named if await self._may_meet(key, lending)])

    async def _lending(self, action: Action, keys: Iterable[Key]) -> dict[Key, Head]:
        """The newest heads of those of other users' sessions that let this principal in for this.

        Of few sessions each is looked at. Of more, those that are lent are listed instead: mostly
        they are few, however many others there are.
        """
        own, only = self.guard.principal, self.guard.session
        others = [
            key
            for key in dict.fromkeys(keys)
            if not self._is_own(key) and own.app in (None, key.app) and only in (None, key)
        ]
        if not others:
            return {}
        heads = await self._all_lent(others) if len(others) > _LOOKED_AT else None
        if heads is None:
            heads = {}
            for key in others:
                with suppress(*_GONE, SessionCorrupt):
                    heads[key] = await self._newest(key)
        user = str(own.user)
        return {
            key: head
            for key, head in heads.items()
            if is_lent(head.indexed_labels, user)
            and self.guard.allows(action, Resource.of(key, head))
        }

    async def _all_lent(self, keys: Iterable[Key]) -> dict[Key, Head] | None:
        """Those of the sessions that are listed as lent to its user; None if too many are."""
        wanted, heads = set(keys), dict[Key, Head]()
        user = self.guard.principal.user
        assert user is not None
        for app in {key.app for key in wanted}:
            for label in lent_labels(user):
                query = Query(app=app, labels=FrozenDict({label: LENT_TO}))
                page = await self._inner.heads(query, cursor=None, limit=PAGE_MAX)
                if page.cursor is not None:
                    return None
                heads |= {head.key: head for head in page.items if head.key in wanted}
        return heads

    async def _may_meet(self, key: Key, lending: Mapping[Key, Head]) -> bool:
        """True if it may know that there is such a session; of one that is gone, by its key."""
        asked = self._access(key)
        if not self.guard.allows("inspect", asked.resource):
            return key in lending
        if asked.resource.kind != "session":
            return await self._enters_behind("inspect", key)
        if not self.guard.needs_head:
            return True
        try:
            return self.guard.allows("inspect", _with(asked.resource, await self._head(key)))
        except SessionCorrupt:
            return False
        except _GONE:
            return True

    async def verify(self, key: Key | None, progress: Progress | None = None) -> Report:
        if key is None:
            await self.guard.check("inspect", STORE)
        else:
            asked = self._access(key)
            session = asked.resource.kind == "session"
            await self._check_any("inspect" if session else asked.read, key)
        report: Report = await self._inner.verify(key, progress)
        return report

    # --- for workers -----------------------------------------------------------------------------

    async def met(self, key: Key) -> Head:
        """The head of a session that it may work on: what its work is narrowed to."""
        return await self._head(key)

    async def sweepable(self) -> Callable[[Key], bool] | None:
        """Return the sessions that it may sweep; None for all. Raises AccessDenied if there are
        none."""
        own = self.guard.principal
        if own.app is None and own.user is None and self.guard.allows("claim", STORE):
            return None
        await self.guard.check("claim", Resource("app", own.app or EVERY_APP))
        return lambda key: self.guard.allows("claim", self._resource(key))

    # --- the store itself ------------------------------------------------------------------------

    def now_us(self) -> int:
        now: int = self._inner.now_us()
        return now

    async def identity(self) -> str:
        identity: str = await self._inner.identity()
        return identity

    def pulse(self) -> int:
        pulse: int = self._inner.pulse()
        return pulse

    async def close(self) -> None:
        """Closes nothing: the store belongs to others too."""


class _GuardedFeed(GuardedStore):
    async def changes(
        self, after: str | None, *, app: str | None, key: Key | None, limit: int
    ) -> tuple[tuple[FeedEntry, ...], str]:
        own = self.guard.principal
        if key is not None:  # also of a session that is still to come
            await self._check_any(self._access(key).read, key)
        elif app is not None and is_reserved(app):
            pass  # documents: whether one is shown is decided for each entry
        elif app is not None or own.app is not None:
            app = own.app if app is None else app
            await self.guard.check("read", Resource("app", str(app), own.user))
        while True:
            entries, after = await self._inner.changes(after, app=app, key=key, limit=limit)
            for entry in entries:  # whose key may belong to another session by now
                self._heads.pop(entry.key, None)
            lending = await self._lending("read", [entry.key for entry in entries])
            shown = [each for e in entries if (each := await self._entry(e, lending)) is not None]
            if shown or not entries:  # an empty page would mean the end
                return tuple(shown), after
            await asyncio.sleep(0)

    async def _entry(self, entry: FeedEntry, lending: Mapping[Key, Head]) -> FeedEntry | None:
        asked = self._access(entry.key)
        if not self.guard.allows(asked.read, asked.resource):
            head = lending.get(entry.key)
            if head is None:
                return None
            view = self.guard.view(head)
            event = entry.event if view is None else view.event(entry.event)
            return structs.replace(entry, event=event)
        if not self.guard.needs_head:
            return entry
        if asked.resource.kind != "session":
            if not await self._enters_behind("read", entry.key):
                return None
            part = await self._sees_part(entry.key)
            event = CheckpointView().event(entry.event) if part else entry.event
            return structs.replace(entry, event=event)
        try:
            head = await self._head(entry.key)
        except (*_GONE, SessionCorrupt):
            return None
        if not self.guard.allows(asked.read, _with(asked.resource, head)):
            return None
        view = self._view(head)
        event = entry.event if view is None else view.event(entry.event)
        return structs.replace(entry, event=event)

    async def touched(self, after: str) -> Touched:
        touched: Touched = await self._inner.touched(after)
        seen = await self.listed(touched.sessions)
        return structs.replace(touched, sessions={key: touched.sessions[key] for key in seen})

    async def position(self) -> str:
        position: str = await self._inner.position()
        return position


class _GuardedHeads(GuardedStore):
    async def head(self, key: Key) -> Head:
        asked = self._access(key)
        if asked.resource.kind != "session":
            await self._check(asked.read, key)
        else:
            self._heads.pop(key, None)
            await self._check("inspect", key)
        head: Head = await self._inner.head(key)
        if asked.resource.kind == "session":
            await self._check("inspect", key, head)
        return head


class _GuardedRecords(GuardedStore):
    async def records(self, key: Key, *, after: int, limit: int) -> tuple[ChainedEvent, ...]:
        asked = self._access(key)
        session = asked.resource.kind == "session"
        await self._check_whole("move" if session else asked.read, key)
        page: tuple[ChainedEvent, ...] = await self._inner.records(key, after=after, limit=limit)
        return page

    async def base(self, key: Key) -> Base | None:
        await self._check_whole(self._access(key).read, key)
        base: Base | None = await self._inner.base(key)
        return base


class _GuardedNames(GuardedStore):
    async def owners(
        self, app: str | None, *, after: Owner | None, limit: int
    ) -> tuple[Owner, ...]:
        own = self.guard.principal
        app = own.app if app is None else app
        await self.guard.check("move", STORE if app is None else Resource("app", app))
        owners: tuple[Owner, ...] = await self._inner.owners(app, after=after, limit=limit)
        return owners

    async def names_of(self, app: str, user: str) -> Mapping[str, ScopeValue]:
        await self.guard.check("read", Resource("app", app, user or None))
        names: Mapping[str, ScopeValue] = await self._inner.names_of(app, user)
        return {name: each for name, each in names.items() if self._shows(app, user, name)}

    def _shows(self, app: str, user: str, name: str) -> bool:
        """True if no policy hides a name from it: in no session, so there is no head to ask."""
        return self.guard.allows("read", Resource("field", app, user or None, name=name))


class _GuardedCompacts(GuardedStore):
    async def compact(self, key: Key, *, upto: int) -> Compacted:
        await self._check(self._access(key).write, key)
        await self._check_own(key)
        compacted: Compacted = await self._inner.compact(key, upto=upto)
        return compacted


class _GuardedHints(GuardedStore):
    async def listen(self, heard: Callable[[], None]) -> None:
        await self._inner.listen(heard)


class _GuardedChannel:
    """One end of the live channel, for one principal."""

    def __init__(self, channel: Channel, store: GuardedStore) -> None:
        self._channel, self._store = channel, store

    async def publish(self, partials: Sequence[Partial]) -> None:
        for partial in partials:
            await self._store._check_any("write", partial.key)
            guard = self._store.guard
            await guard.check_actor(partial.event.actor, self._store._resource(partial.key))
        await self._channel.publish(partials)

    async def subscribe(self, heard: Callable[[], None]) -> None:
        await self._channel.subscribe(heard)

    def received(self, wanted: Callable[[Key], bool]) -> tuple[Partial, ...]:
        store = self._store

        def may(key: Key) -> bool:
            """A session that was never met here cannot be decided without its head."""
            head = store._heads.get(key)
            if store.guard.needs_head and head is None:
                return False
            return wanted(key) and store.guard.allows("read", _with(store._resource(key), head))

        partials = [self._shown(partial) for partial in self._channel.received(may)]
        return tuple([partial for partial in partials if partial is not None])

    def _shown(self, partial: Partial) -> Partial | None:
        """A partial as the principal sees it; None of a session that has its key since another one
        was met there, for which nothing was decided."""
        head = self._store._heads.get(partial.key)
        if head is None:
            return partial
        if partial.uid != head.uid:
            del self._store._heads[partial.key]
            return None
        view = self._store._view(head)
        if view is None:
            return partial
        return structs.replace(partial, event=view.event(partial.event))

    async def unsubscribe(self) -> None:
        await self._channel.unsubscribe()

    async def close(self) -> None:
        await self._channel.close()


class _GuardedLive(GuardedStore):
    def channel(self) -> Channel:
        return _GuardedChannel(self._inner.channel(), self)


class _GuardedBackups(GuardedStore):
    async def backup(self, target: Path, progress: Progress | None = None) -> None:
        await self.guard.check("move", STORE)
        await self._inner.backup(target, progress)


class _GuardedExamined(GuardedStore):
    async def examine(self) -> tuple[Check, ...]:
        await self.guard.check("inspect", STORE)
        checks: tuple[Check, ...] = await self._inner.examine()
        return checks


class _GuardedProbed(GuardedStore):
    async def probe(self) -> tuple[Check, ...]:
        await self.guard.check("inspect", STORE)
        checks: tuple[Check, ...] = await self._inner.probe()
        return checks


class _GuardedRing(GuardedStore):
    async def ring(self) -> str | None:
        await self.guard.check("keys", STORE)
        ring: str | None = await self._inner.ring()
        return ring

    async def accept_head(self, key: Key) -> bool:
        await self.guard.check("keys", STORE)
        accepted: bool = await self._inner.accept_head(key)
        return accepted

    async def bind_ring(self, id: str) -> str:
        await self.guard.check("keys", STORE)
        bound: str = await self._inner.bind_ring(id)
        return bound


class _GuardedSealing(GuardedStore):
    @property
    def sealer(self) -> Any:
        """Return the seal for files of sessions: no allowed file is written in plain text."""
        return self._inner.sealer


class _GuardedLeases(GuardedStore):
    async def claim(
        self, worker: str, *, limit: int, lease_seconds: float, app: str | None = None
    ) -> tuple[Lease, ...]:
        guard, own = self.guard, self.guard.principal
        app = own.app if app is None else app
        if own.user is not None or app is not None:
            await guard.check("claim", Resource("app", app or EVERY_APP))
        claimed: list[Lease] = []
        refused: list[Lease] = []
        try:
            for _ in range(_CLAIMS):
                left = limit - len(claimed)
                leases = await self._inner.claim(
                    worker, limit=left, lease_seconds=lease_seconds, app=app
                )
                for lease in leases:
                    (claimed if await self._may_claim(lease.key) else refused).append(lease)
                if len(leases) < left or len(claimed) == limit:
                    break
        finally:  # for others, who may be waiting for them
            for lease in refused:
                await self._inner.release(lease, 0.0)
        return tuple(claimed)

    async def _may_claim(self, key: Key) -> bool:
        resource = self._resource(key)
        if not self.guard.allows("claim", resource):
            return False
        if not self.guard.needs_head:
            return True
        try:
            return self.guard.allows("claim", _with(resource, await self._head(key)))
        except _GONE:
            return False

    async def renew(
        self, leases: Sequence[Lease], lease_seconds: float | None
    ) -> tuple[Lease | LimpetError, ...]:
        for lease in leases:
            await self._check_lease(lease.key)
        renewed: tuple[Lease | LimpetError, ...] = await self._inner.renew(leases, lease_seconds)
        return renewed

    async def release(self, lease: Lease, retry_seconds: float | None = None) -> bool:
        await self._check_lease(lease.key)
        released: bool = await self._inner.release(lease, retry_seconds)
        return released

    async def acquire(self, key: Key, worker: str, lease_seconds: float) -> Lease:
        asked = self._access(key)
        if asked.resource.kind == "session":
            await self._check("claim", key)
        else:
            await self._check(asked.write, key)
        lease: Lease = await self._inner.acquire(key, worker, lease_seconds)
        return lease

    async def _check_lease(self, key: Key) -> None:
        """By the key alone: a lease that was granted can be given back."""
        asked = self._access(key)
        session = asked.resource.kind == "session"
        await self.guard.check("claim" if session else asked.write, asked.resource)


class _GuardedDeadlines(GuardedStore):
    async def expired(
        self, *, limit: int, after: Place | None = None
    ) -> tuple[tuple[Key, ...], Place | None]:
        keys, place = await self._inner.expired(limit=limit, after=after)
        return await self.listed(keys), place


class _GuardedOverview(GuardedStore):
    async def waiting(
        self, query: WaitingQuery, *, limit: int, after: WaitingPlace | None = None
    ) -> tuple[tuple[AskedBy, ...], WaitingPlace | None]:
        own = self.guard.principal
        app = own.app if query.app is None else query.app
        user = query.user
        if app is not None:
            user = own.user if user is None else user
            await self.guard.check("read", Resource("app", app, user))
        narrowed = structs.replace(query, app=app, user=user)
        requests, place = await self._inner.waiting(narrowed, limit=limit, after=after)
        lending = await self._lending("read", [asked.key for asked in requests])
        return tuple([a for a in requests if await self._may_read(a.key, lending)]), place

    async def _may_read(self, key: Key, lending: Mapping[Key, Head]) -> bool:
        resource = self._resource(key)
        if not self.guard.allows("read", resource):
            return key in lending
        if not self.guard.needs_head:
            return True
        try:
            return self.guard.allows("read", _with(resource, await self._head(key)))
        except _GONE:
            return False

    async def tally(self, app: str | None, *, limit: int) -> tuple[Tally, ...]:
        own = self.guard.principal
        app = own.app if app is None else app
        if app is not None:
            await self.guard.check("inspect", Resource("app", app, own.user))
        if self.guard.lists_every_session:
            counts: tuple[Tally, ...] = await self._inner.tally(app, limit=limit)
            return counts
        return await self._counted(Query(app=app, lent=True), limit)

    async def _counted(self, query: Query, limit: int) -> tuple[Tally, ...]:
        """Counted from the heads that it may see: an index knows nothing of principals."""
        counts: Counter[Tally] = Counter()
        cursor: str | None = None
        while True:
            page = await self.heads(query, cursor=cursor, limit=PAGE_MAX)
            now_us = self.now_us()
            for head in page.items[: limit - counts.total()]:
                run = head.facts.get("run", EMPTY)
                ready = readiness(head, now_us)
                kind = Tally(head.phase, run.get("stop") or "", ready, bool(head.pending), 0)
                counts[kind] += 1
            cursor = page.cursor
            if cursor is None or counts.total() >= limit:
                return tuple([kind._replace(sessions=n) for kind, n in counts.items()])
            await asyncio.sleep(0)


class _BlobsBehindGuard:
    """The blobs of sessions, for one principal."""

    def __init__(self, blobs: Blobs, store: GuardedStore) -> None:
        self._blobs, self._store = blobs, store

    async def put_chunk(self, key: Key, upload: str, number: int, data: bytes) -> None:
        await self._store._check("write", key)
        await self._blobs.put_chunk(key, upload, number, data)

    async def finish(
        self,
        key: Key,
        upload: str,
        blob: Blob,
        last: bytes,
        *,
        fence: int | None = None,
        at: int | None = None,
    ) -> Blob:
        await self._store._check("write" if at is None else "move", key)
        return await self._blobs.finish(key, upload, blob, last, fence=fence, at=at)

    async def drop(self, key: Key, upload: str) -> None:
        await self._store.guard.check("write", self._store._resource(key))
        await self._blobs.drop(key, upload)

    async def find(self, key: Key, hash: str, *, own: bool = False) -> Blob | None:
        if not await self._store.sees_blob(key, hash):
            return None
        return await self._blobs.find(key, hash, own=own)

    async def chunk(self, key: Key, hash: str, number: int) -> bytes | None:
        if not await self._store.sees_blob(key, hash):
            return None
        return await self._blobs.chunk(key, hash, number)

    async def page(self, key: Key, *, after: str, limit: int) -> tuple[Blob, ...]:
        await self._store._check_whole("read", key)
        return await self._blobs.page(key, after=after, limit=limit)

    async def keys(self, app: str | None, *, after: Key | None, limit: int) -> tuple[Key, ...]:
        guard = self._store.guard
        app = guard.principal.app if app is None else app
        await guard.check("move", STORE if app is None else Resource("app", app))
        return await self._blobs.keys(app, after=after, limit=limit)


class _GuardedBlobs(GuardedStore):
    @property
    def blobs(self) -> Blobs:
        return _BlobsBehindGuard(self._inner.blobs, self)


class _MarksBehindGuard:
    """The marks of a store. They belong to the store itself."""

    def __init__(self, marks: Marks, guard: Guard) -> None:
        self._marks, self._guard = marks, guard

    async def once(self, space: str, name: str, until_us: int, value: int = 0) -> bool:
        await self._guard.check("policy", STORE)
        return await self._marks.once(space, name, until_us, value)

    async def put(self, space: str, name: str, until_us: int, value: int = 0) -> None:
        await self._guard.check("policy", STORE)
        await self._marks.put(space, name, until_us, value)

    async def add(self, space: str, name: str, until_us: int, by: int = 1) -> int:
        await self._guard.check("policy", STORE)
        return await self._marks.add(space, name, until_us, by)

    async def get(self, space: str, name: str) -> Mark | None:
        await self._guard.check("policy", STORE)
        return await self._marks.get(space, name)

    async def sweep(self, limit: int) -> int:
        await self._guard.check("policy", STORE)
        return await self._marks.sweep(limit)


class _GuardedMarks(GuardedStore):
    @property
    def marks(self) -> Marks:
        return _MarksBehindGuard(self._inner.marks, self.guard)


# Each optional protocol of a store, and its methods behind a guard.
ABILITIES: Final[Mapping[type, type[GuardedStore]]] = {
    Feed: _GuardedFeed,
    SingleHeads: _GuardedHeads,
    Records: _GuardedRecords,
    Names: _GuardedNames,
    Compacts: _GuardedCompacts,
    Hints: _GuardedHints,
    Live: _GuardedLive,
    Backups: _GuardedBackups,
    Examined: _GuardedExamined,
    Probed: _GuardedProbed,
    RingBinding: _GuardedRing,
    Sealing: _GuardedSealing,
    Leases: _GuardedLeases,
    Deadlines: _GuardedDeadlines,
    Overview: _GuardedOverview,
    KeepsBlobs: _GuardedBlobs,
    KeepsMarks: _GuardedMarks,
}
_CLASSES: Final[dict[type, type[GuardedStore]]] = {}
_WRITE: Final[tuple[Action, ...]] = ("write",)
_MOVE: Final[tuple[Action, ...]] = ("move",)
_INSPECT: Final[tuple[Action, ...]] = ("inspect",)


def guarded(store: Store, guard: Guard, commit: Send | None = None) -> GuardedStore:
    """A store behind a guard, with the abilities of the store. `commit` records what was admitted,
    if not the store itself."""
    kind = type(store)
    of = _CLASSES.get(kind)
    if of is None:
        parts = tuple([has for ability, has in ABILITIES.items() if isinstance(store, ability)])
        of = _CLASSES[kind] = type("GuardedStore", parts or (GuardedStore,), {})
    return of(store, guard, commit)


# --- what a view leaves --------------------------------------------------------------------------


def _origin(draft: Prepared) -> Origin:
    assert draft.origin is not None
    return draft.origin


def _begins(commit: Commit) -> bool:
    """True if a session begins with this commit: created, or adopted from its first event on."""
    return bool(commit.drafts) and commit.drafts[0].type in _STARTS


def _begins_again(commit: Commit) -> bool:
    """True if a draft would begin a session anywhere but at its first event."""
    starts = [n for n, d in enumerate(commit.drafts) if d.type in _STARTS and d.origin is None]
    return bool(starts) and (starts != [0] or commit.expect != 0)


def _stands_for_a_file(commit: Commit) -> bool:
    """True if it begins the stub of an archived session, which names the file with its log."""
    return any([draft.type == CREATED and "archived" in draft.data for draft in commit.drafts])


def _deletes_later(draft: Prepared) -> bool:
    """True if a draft has the session deleted some time after its end."""
    return draft.type == TIMEOUTS_SET and "expiry_us" in (draft.data.get("timeouts") or EMPTY)


def _is_appended(draft: Prepared) -> bool:
    """True of what is said in a conversation, and of changes to state; not of what steers runs."""
    if draft.type.startswith(RESERVED):
        return draft.type.startswith("state.")
    return draft.type not in _STEERING


def _is_of_runs(draft: Prepared) -> bool:
    """True of what runs of a session record, and their agents: not of what people say, decide and
    permit, where it matters who did."""
    type, in_wake = draft.type, draft.wake_id is not None
    if type.startswith("user."):
        return in_wake and type == DEFINED  # the goal of a run, which an agent may set
    return type not in _ACTIONS and (in_wake or type.startswith(("agent.", *RESERVED)))


# The events by which a child notifies its parent of its end.
_TOLD: Final = frozenset({CHILD_DONE, CHILD_ENDED, CHILD_RELEASED, RETURNED})
# The events by which a finished child is completed with its parent.
_COMPLETION: Final = TYPES["complete"]
_COMPLETING: Final = frozenset(
    {TYPES["resume"], TYPES["reactivate"], _COMPLETION, STATUS_CHANGED, TOOLS_BOUND}
)


def _tells_parent(commit: Commit, child: Commit) -> bool:
    """True if a commit may be what a child's end tells its parent, of the same user."""
    if child.key == commit.key or child.key.user != commit.key.user:
        return False
    types = [draft.type for draft in commit.drafts]
    if commit.uid is None or not types or not _TOLD.issuperset(types):
        return False
    return _is_bare(commit) and not any([draft.plain_ops for draft in commit.drafts])


def _is_completion(commit: Commit) -> bool:
    """True if a commit completes a session and does nothing else to it."""
    types = [draft.type for draft in commit.drafts]
    if _COMPLETION not in types or not _COMPLETING.issuperset(types):
        return False
    plain = all([draft.origin is None and not draft.plain_ops for draft in commit.drafts])
    return plain and _is_bare(commit)


def _completes_with(child: Commit, parent: Commit) -> bool:
    """True if a commit completes a session beside the end of another of the same user."""
    if child.key == parent.key or child.key.user != parent.key.user or parent.uid is None:
        return False
    return _is_completion(child) and _COMPLETION in [draft.type for draft in parent.drafts]


def _is_bare(commit: Commit) -> bool:
    """True if a commit is its drafts, and asks for nothing beside them."""
    beside = (commit.base, commit.pin, commit.release, commit.names_of)
    return not commit.guards and all([each is None for each in beside])


def without_body(event: Event) -> Event:
    """The event without what it says."""
    return structs.replace(event, data=EMPTY, ops=())


def traced(event: Event) -> Event:
    """The event as an auditor finds it in a trace."""
    if event.type in TRACES or event.data is None:
        return event
    kept = _TRACED_DATA.get(event.type, frozenset())
    data = FrozenDict({name: value for name, value in event.data.items() if name in kept})
    return structs.replace(event, data=data, ops=())


def _names(value: Any, text: str) -> bool:
    """True if a text stands somewhere in a value of state."""
    if isinstance(value, dict):
        return any([_names(part, text) for part in value.values()])
    if isinstance(value, list):
        return any([_names(part, text) for part in value])
    return bool(value == text)


def visible(names: Mapping[str, Any], view: SessionView) -> FrozenDict:
    """The names in state that a view shows."""
    if isinstance(view, CheckpointView):
        return view.fields(names)
    shown = [name for name in names if view.sees(name)]
    if len(shown) == len(names) and isinstance(names, FrozenDict):
        return names
    return FrozenDict({name: names[name] for name in shown})


def _events(page: Sequence[Event], view: SessionView | None) -> tuple[Event, ...]:
    return tuple(page) if view is None else tuple(map(view.event, page))


def _with(resource: Resource, head: Head | None) -> Resource:
    if resource.kind != "session" or head is None:
        return resource
    return Resource("session", resource.app, resource.user, resource.id, head=head)
