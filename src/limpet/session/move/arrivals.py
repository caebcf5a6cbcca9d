"""The receiving side of a move between nodes: staging, the decision of an epoch, the arrival.

What arrives is adopted under a key of the reserved app `$$arrivals`, where nothing lists, claims or
sweeps it. A stage belongs to one session (its uid) and one epoch, so it never holds more than the
log up to the departure of that epoch. When all of it is there, the stage takes the session's key;
the log ends with `session.departed` then, whose fold keeps it inert. The commit of
`session.arrived` makes this store the owner. The same commit creates the document of the epoch in
`$moves`; a refusal creates the same document, so of the two exactly one can ever happen.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import structs

from limpet.errors import (
    DocumentConflict,
    InvalidInput,
    LimpetError,
    SessionConflict,
    SessionDeleted,
    SessionErased,
    SessionExists,
)
from limpet.model import (
    EMPTY,
    Commit,
    Head,
    Key,
    checkpoints_of,
    described,
    owner_of,
)
from limpet.model.facts.documents import VALUE, document_created, document_put
from limpet.model.facts.moves import (
    EXPECTED,
    KEPT_US,
    arrived,
    departure,
    last_epoch,
    leads_to,
    reclaimed_in,
    short_digest,
    stage_prefix,
)
from limpet.model.keys import ARRIVALS
from limpet.session.documents import Documents, Internal, Put, commit_puts
from limpet.session.journal import Tries
from limpet.session.life.memory import memory_key
from limpet.session.life.tools import ToolRegistry
from limpet.session.move.adopter import (
    PIECE_EVENTS,
    Adopter,
    Newest,
    check_whole,
    piece,
    records_in,
)
from limpet.session.move.attachments import blobs_in, copy_blobs, logs_of, newest_beside
from limpet.session.move.routes import MOVER, forget_route
from limpet.session.runs.delegation import head_of
from limpet.store.overview import Overview
from limpet.store.pages import each_head, head_pages
from limpet.store.protocol import Exchange, Query, Standing, traffic_of

if TYPE_CHECKING:
    from limpet.session.journal import Journal
    from limpet.session.services import Services

DECISIONS: Final = "moves"
CAPACITY: Final = "arriving"  # the collection of what each app accepts here
Decision: TypeAlias = Literal["arrived", "refused"]
# The reason of a failed move. unknown: the target cannot be reached, and decides when it can.
MoveReason: TypeAlias = Literal[
    "exists",
    "deleted",
    "erased",
    "capacity",
    "schema",
    "tools",
    "family",
    "busy",
    "deadline",
    "transfer",
    "unreachable",
    "refused",
    "unknown",
]
_TAKES_MAX: Final = 3
_GONE_MAX: Final = 100  # tombstones of one key that are looked at


class ArrivalRefused(Exception):
    """This store does not accept the session. Never leaves the room: a move answers with it."""

    def __init__(self, reason: MoveReason, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


class MoveDecisions(Documents):
    """`lp.documents("moves", owner=…)`: what was decided about each epoch. Read only."""

    def check(self, value: Any) -> None:
        raise InvalidInput("decisions about moves are written by lp.move alone. Read them here.")

    async def delete(self, name: str, **_: Any) -> bool:
        self.check(name)
        return False

    async def purge(self, name: str) -> bool:
        self.check(name)
        return False


class ArrivalPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """The limits on what an app accepts from other nodes: `lp.policies.arrivals`."""

    sessions: int | None = None  # that the app may have here, with the one that arrives
    bytes: int | None = None  # of one session's bundle
    schema: str | None = None  # the version of typed state that is understood here


class ArrivalNeeds(msgspec.Struct, frozen=True):
    """The needs of one app's sessions at the target."""

    app: str
    sessions: int
    bytes: int
    schemas: tuple[str, ...] = ()
    tools: Mapping[str, str] = {}  # required ones, and the version of each


class StagedLog(msgspec.Struct, frozen=True):
    """A log beside a session's own, as the source has it at the departure."""

    uid: str
    version: int
    name: str = ""  # of a document of its memory


class Arrival(msgspec.Struct, frozen=True):
    """A session on its way to this store."""

    key: Key
    uid: str
    epoch: int
    source: str = ""  # the node that it departs from
    # Known when it has departed: where its log ends, and what travels beside it.
    version: int = 0
    link: bytes = b""
    checkpoints: StagedLog | None = None
    memory: tuple[StagedLog, ...] = ()

    @property
    def stage(self) -> Key:
        """Return the key of its log until it takes its own."""
        return self._staged("log")

    @property
    def checkpoint_stage(self) -> Key:
        return self._staged("checkpoints")

    def memory_stage(self, name: str) -> Key:
        return self._staged(f"memory/{short_digest(name)}")

    def _staged(self, part: str) -> Key:
        owner = owner_of(self.key.app, self.key.user)  # with whom it is erased
        return Key(ARRIVALS, owner, f"{stage_prefix(self.key, self.uid)}{self.epoch}/{part}")

    @property
    def decision_name(self) -> str:
        """Return the name of the document that decides about this epoch."""
        return f"{self.uid}/{self.epoch}"


class Arrivals(Adopter):
    """A store that receives sessions, and the node that it is."""

    def __init__(self, services: Services, node: str) -> None:
        super().__init__(services.journal)
        self._services, self.node = services, node
        self.traffic = traffic_of(services.journal.store)

    # --- prepare -------------------------------------------------------------------------------

    async def check(self, needs: ArrivalNeeds, tools: ToolRegistry | None) -> None:
        """Raise ArrivalRefused if there is no capacity, the schema is newer than what is
        understood here, or a required tool is missing."""
        policy = await arrival_policy(self._services, needs.app)
        if policy.bytes is not None and needs.bytes > policy.bytes:
            detail = f"{needs.bytes:,} bytes arrive; {self.node} accepts {policy.bytes:,}"
            raise ArrivalRefused("capacity", detail)
        if policy.sessions is not None:
            count = await self._count(needs.app, policy.sessions)
            if count + needs.sessions > policy.sessions:
                detail = f"{self.node} has {count:,} of {policy.sessions:,} sessions of {needs.app}"
                raise ArrivalRefused("capacity", detail)
        for version in needs.schemas if policy.schema is not None else ():
            _check_schema(version, str(policy.schema))
        tools = tools or self._services.lifecycle(needs.app).tools
        for name, version in needs.tools.items() if tools is not None else ():
            assert tools is not None
            if tools.resolve(name, version) is None:
                detail = f"the required tool {name} {version} is not known at {self.node}"
                raise ArrivalRefused("tools", detail)

    async def _count(self, app: str, upto: int) -> int:
        store = self.journal.store
        if isinstance(store, Overview):
            return sum([kind.sessions for kind in await store.tally(app, limit=upto + 1)])
        heads = each_head(store, Query(app=app))  # those that have left do not count
        return len([0 async for head in heads if departure(head.facts) is None])

    async def identity(self) -> str:
        """Return what tells this store apart from others, even of the same name."""
        return await self.journal.store.identity()

    async def expects(self, arrival: Arrival) -> bool:
        """True if this epoch of the session was staged here, or decided about."""
        place = arrival._staged(EXPECTED)
        if await head_of(self.journal, place) is not None:
            return True
        return await self.decision(arrival) is not None

    async def decision(self, arrival: Arrival) -> Decision | None:
        """Return the decision about this epoch; None if there is none yet."""
        document = await self._decisions(arrival).find(arrival.decision_name)
        decided = None if document is None else document.value.get("decision")
        return decided if decided in ("arrived", "refused") else None

    async def decided(self, arrivals: Sequence[Arrival]) -> Decision | None:
        """Return the decision about sessions that move together; None if there is none yet.

        It is decided about all of them at once. Of some the log may be gone where they came from,
        so each is asked.
        """
        for each in arrivals:
            if (decided := await self.decision(each)) is not None:
                return decided
        return None

    async def begin(self, arrival: Arrival) -> None:
        """Make ready to stage this epoch: what is here of the session becomes its beginning.

        Raises ArrivalRefused if the key belongs to another session, or to one that was deleted
        or erased here; or if this epoch has arrived: then whoever brings it once more has an older
        copy of the source, perhaps with events of its own, which would be lost.
        """
        key = arrival.key
        if await self.decision(arrival) == "arrived":
            detail = f"{self.node} has received {key} in epoch {arrival.epoch} before"
            raise ArrivalRefused("exists", detail)
        head = await head_of(self.journal, key)
        if head is None:
            await self._refuse_ended(key)
            await self._reuse_stage(arrival)
            return await self._expect(arrival)
        away, back = departure(head.facts), reclaimed_in(head.facts)
        if head.uid == arrival.uid and back is not None:
            detail = f"{self.node} has reclaimed {key} from {back[0]}, in epoch {back[1]}"
            raise ArrivalRefused("exists", f"{detail}: what comes is a copy from before")
        if head.uid != arrival.uid or (away is None and last_epoch(head.facts) != arrival.epoch):
            which = f"{key} itself" if head.uid == arrival.uid else f"another session under {key}"
            raise ArrivalRefused("exists", f"{self.node} has {which}")
        if away is None or away["epoch"] == arrival.epoch:
            return None  # it has arrived, or is about to
        if away["epoch"] > arrival.epoch:
            raise ArrivalRefused("exists", f"{self.node} knows a later epoch of {key}")
        # It left from here before: its own log is what the coming one begins with.
        await self._reuse_stage(arrival)
        await self._expect(arrival)
        with suppress(SessionDeleted):  # a sweep has removed it meanwhile: then all of it travels
            await self._stage_own(head, arrival.stage)
        return None

    async def _expect(self, arrival: Arrival) -> None:
        """Remember that the session is to arrive, so that a sweep here finds it if nobody is left
        to finish, and when that was said last. It goes with what is staged."""
        journal, place = self.journal, arrival._staged(EXPECTED)
        value = [arrival.key.app, arrival.key.user, arrival.key.id]
        async for _ in Tries():
            head = await head_of(journal, place)
            if head is None:
                draft = journal.prepare(document_created(place, value, actor=MOVER), None)
                commit = Commit(place, (draft,), 0, reuse=True)
            elif head.updated_us < journal.now_us() - KEPT_US // 2:
                draft = journal.prepare(document_put(value, actor=MOVER), None)
                commit = Commit(place, (draft,), head.version, uid=head.uid)
            else:
                return
            with suppress(SessionExists, SessionConflict, SessionDeleted):  # others came between
                await journal.commit((commit,))
                return

    async def _stage_own(self, head: Head, stage: Key) -> None:
        """Stage the log that the session left here, so that only what came since has to travel.
        It stays under its key, departed, until the whole log takes its place."""
        key, source, blobs = head.key, records_in(self.journal), blobs_in(self.journal)
        after = max((await self.staged_end(stage)).seq, head.floor)
        begins = after == head.floor
        base = await source.base(key) if head.floor and begins else None
        while after < head.version:
            limit = 1 if begins else min(PIECE_EVENTS, head.version - after)
            records = await source.records(key, after=after, limit=limit)
            check_whole(key, records, after)
            made = structs.replace(piece(stage, records, base), reuse=begins)
            await self.commit((made,))
            if begins and blobs is not None:
                await copy_blobs(blobs, self, key, stage)
            after, base, begins = records[-1].event.seq, None, False

    async def _refuse_ended(self, key: Key) -> None:
        """Raise ArrivalRefused if the session was deleted or erased here; it may have left."""
        store = self.journal.store
        query = Query(app=key.app, user=key.user, prefix=key.id, deleted=True)
        dead = (await store.heads(query, cursor=None, limit=_GONE_MAX)).items
        if any([head.key == key and head.ending == "deleted" for head in dead]):
            raise ArrivalRefused("deleted", f"{key} was deleted at {self.node}")
        try:
            await store.read(key, after=0, limit=1, reverse=False, types=None)
        except SessionErased:
            raise ArrivalRefused("erased", f"{key} was erased at {self.node}") from None
        except LimpetError:
            return

    async def _reuse_stage(self, arrival: Arrival) -> None:
        """Take what an earlier epoch has staged: it is a prefix of the same log."""
        newest = 0
        staged: list[tuple[int, Head, str]] = []
        async for head, epoch, part in self.staged(arrival.key, arrival.uid):
            if epoch <= arrival.epoch:
                staged.append((epoch, head, part))
                newest = max(newest, epoch)
        if not newest or newest == arrival.epoch:
            return
        swaps = [
            Exchange(arrival._staged(part), None, head.key)
            for epoch, head, part in staged
            if epoch == newest
        ]
        await self.journal.store.exchange(swaps)  # if another was faster, it is looked at again

    async def staged(
        self, key: Key, uid: str | None = None
    ) -> AsyncIterator[tuple[Head, int, str]]:
        """Every log that is staged for a session: its head, its epoch and its part."""
        prefix = stage_prefix(key, uid)
        owner = owner_of(key.app, key.user)
        query = Query(app=ARRIVALS, user=owner, order="key", reverse=False, prefix=prefix)
        async for head in each_head(self.journal.store, query):
            _, _, epoch, part = head.key.id.split("/", 3)
            yield head, int(epoch), part

    # --- transfer ------------------------------------------------------------------------------

    async def staged_end(self, stage: Key) -> Newest:
        """Return where a staged log ends; 0 if nothing is staged."""
        return await newest_beside(self, stage)

    async def drop_stage(self, arrival: Arrival) -> None:
        """Remove what is staged for this epoch: it does not belong to the log that comes. That the
        session is expected stays."""
        own = [
            head.key
            async for head, epoch, part in self.staged(arrival.key, arrival.uid)
            if epoch == arrival.epoch and part != EXPECTED
        ]
        await self.drop_staged(own)

    async def drop_staged(self, stages: Sequence[Key]) -> None:
        """Remove staged logs that nobody needs."""
        for stage in stages:
            await self.journal.store.delete(stage, ending="moved")

    # --- commit --------------------------------------------------------------------------------

    async def publish(self, arrivals: Sequence[Arrival]) -> Decision:
        """Give the staged sessions their keys, and record that they have arrived, all or none.

        The commit is the point of no return. Returns what was decided, maybe by another. Raises
        ArrivalRefused if a key is taken; SessionConflict if something is not staged as it was.
        """
        decided = await self.decided(arrivals)
        if decided is not None:
            return decided
        await self._take_keys(arrivals)
        commits: list[Commit] = []
        for each in arrivals:
            fact = arrived(self.node, each.epoch, source=each.source or "elsewhere")
            draft = self.journal.prepare(fact, MOVER)
            commits.append(Commit(each.key, (draft,), each.version, uid=each.uid))
        try:
            await commit_puts(self.journal, commits, self._puts(arrivals, "arrived"))
        except (DocumentConflict, SessionConflict):
            decided = await self.decided(arrivals)
            if decided is None:
                raise
            return decided
        return "arrived"

    async def clear(self, arrivals: Sequence[Arrival]) -> None:
        """Remove what sessions that have arrived do not need any more: what was staged, and the
        route to where they were. If nobody does, a sweep removes it in a day."""
        for each in arrivals:
            await forget_route(self._services, each.key)
            await self.drop_staged(
                [head.key async for head, _, _ in self.staged(each.key, each.uid)]
            )

    async def refuse(self, arrivals: Sequence[Arrival], reason: str) -> Decision:
        """Decide that these sessions never arrive in this epoch, unless it is decided already."""
        try:
            await commit_puts(self.journal, (), self._puts(arrivals, "refused", reason))
        except DocumentConflict:
            decided = await self.decided(arrivals)
            assert decided is not None, "only these two are ever put"
            if decided == "arrived":
                return decided
            for each in arrivals:  # of some, others may not have known
                with suppress(DocumentConflict):
                    await commit_puts(self.journal, (), self._puts((each,), "refused", reason))
        for each in arrivals:
            await self.take_back(each)
        return "refused"

    async def take_back(self, arrival: Arrival) -> None:
        """Free the key of a session that was refused after it had taken it."""
        key = arrival.key
        head = await head_of(self.journal, key)
        away = None if head is None else departure(head.facts)
        if head is None or away is None or head.uid != arrival.uid:
            return
        here = leads_to(away, self.node, await self.identity())
        if here and away["epoch"] == arrival.epoch:
            ends = [Exchange(key, Standing(head.uid, head.version))]
            async for log in logs_of(self.journal, key):
                ends.append(Exchange(log.key, Standing(log.uid, None)))
            await self.journal.store.exchange(ends)
            self.journal.hub.touch(key)

    async def has_key(self, arrival: Arrival) -> bool:
        """True if the staged log has taken its key."""
        return _is_there(await head_of(self.journal, arrival.key), arrival)

    async def _take_keys(self, arrivals: Sequence[Arrival]) -> None:
        """Let every stage take its key, in one transaction, unless they have them."""
        for _ in range(_TAKES_MAX):  # a sweep may remove what was left here at the same moment
            if await self._take_once(arrivals):
                return
        await self._refuse_ended(arrivals[0].key)
        raise SessionConflict(arrivals[0].key, "session", arrivals[0].version, None)

    async def _take_once(self, arrivals: Sequence[Arrival]) -> bool:
        """True if the sessions have their keys. Raises ArrivalRefused if another has one."""
        heads = [await head_of(self.journal, each.key) for each in arrivals]
        pairs = list(zip(heads, arrivals, strict=True))
        if all([_is_there(head, each) for head, each in pairs]):
            return True
        ends: dict[Key, Standing] = {}
        for head, each in pairs:
            if head is not None and not _has_left(head, each):
                raise ArrivalRefused("exists", f"{self.node} has a session under {each.key}")
            if head is not None:  # what it left here when it left before
                ends[each.key] = Standing(head.uid, head.version)
        if await self.journal.store.exchange(_swaps(arrivals, ends)):
            return True
        # Documents that an earlier session left under the same key end.
        for each in arrivals:
            names = [memory_key(each.key, log.name) for log in each.memory]
            beside = [] if each.key in ends else [checkpoints_of(each.key)]
            for key in (*beside, *names):
                left = await head_of(self.journal, key)
                if left is not None:
                    ends[key] = Standing(left.uid, None)
        return bool(ends) and await self.journal.store.exchange(_swaps(arrivals, ends))

    def _decisions(self, arrival: Arrival) -> Documents:
        owner = (arrival.key.app, arrival.key.user)
        return Documents(self.journal, DECISIONS, owner=owner)

    def _puts(
        self, arrivals: Sequence[Arrival], decision: Decision, reason: str = ""
    ) -> tuple[Put, ...]:
        made = []
        for each in arrivals:
            value = {"decision": decision, "from": each.source, "to": self.node}
            if reason:
                value["reason"] = reason
            documents = self._decisions(each)
            made.append(Put(documents, each.decision_name, value, expect=0, actor=MOVER))
        return tuple(made)


def _swaps(arrivals: Sequence[Arrival], ends: Mapping[Key, Standing]) -> list[Exchange]:
    """Return the exchanges by which stages take their keys, and what ends under these."""
    swaps: list[Exchange] = []
    for each in arrivals:
        key = each.key
        # Only the whole log may take the key: its last event is what keeps it inert.
        swaps.append(Exchange(key, ends.get(key), each.stage, Standing(each.uid, each.version)))
        if each.checkpoints is not None:
            place, at = (
                checkpoints_of(key),
                Standing(each.checkpoints.uid, each.checkpoints.version),
            )
            swaps.append(Exchange(place, ends.get(place), each.checkpoint_stage, at))
        for log in each.memory:
            place, at = memory_key(key, log.name), Standing(log.uid, log.version)
            swaps.append(Exchange(place, ends.get(place), each.memory_stage(log.name), at))
    return swaps


def _is_there(head: Head | None, arrival: Arrival) -> bool:
    return head is not None and (head.uid, head.version) == (arrival.uid, arrival.version)


def _has_left(head: Head, arrival: Arrival) -> bool:
    """True if this is what the session left here in an earlier epoch."""
    away = departure(head.facts)
    return head.uid == arrival.uid and away is not None and away["epoch"] < arrival.epoch


def _check_schema(stored: str, known: str) -> None:
    from limpet.model.state.migrations import SchemaVersion, compatible

    if not compatible(SchemaVersion.parse(stored), SchemaVersion.parse(known)):
        raise ArrivalRefused("schema", f"its state has version {stored}; {known} is understood")


async def expected_sessions(journal: Journal) -> list[Key]:
    """Return the sessions that are to arrive here."""
    query = Query(app=ARRIVALS, order="key", reverse=False)
    keys: list[Key] = []
    async for page in head_pages(journal.store, query, states=True):
        for head in page.items:
            value = page.states.get(head.key, EMPTY).get(VALUE)
            if head.key.id.endswith(f"/{EXPECTED}") and isinstance(value, (list, tuple)):
                keys.append(Key(*value))
    return keys


# --- policies ------------------------------------------------------------------------------------


async def arrival_policy(services: Services, app: str) -> ArrivalPolicy:
    """Return what an app accepts here; everything, if nothing was said."""
    documents = Internal(services.journal, CAPACITY)
    document = await documents.find(app)
    policy = None if document is None else documents.decoded(document, ArrivalPolicy)
    return ArrivalPolicy() if policy is None else policy


def check_arrivals(sessions: Any, bytes: Any, schema: Any) -> dict[str, Any]:
    """Return a policy in the form of its document. Raises InvalidInput, InvalidSchema."""
    for name, count in (("sessions", sessions), ("bytes", bytes)):
        if count is not None and (type(count) is not int or count < 0):
            raise InvalidInput(f"{name} is a number of them, or None, not {described(count)}.")
    if schema is not None:
        from limpet.model.state.migrations import SchemaVersion

        schema = str(SchemaVersion.parse(schema))
    said: dict[str, Any] = msgspec.to_builtins(ArrivalPolicy(sessions, bytes, schema))
    return said
