"""Moving a live session to another store: prepare, transfer, commit.

    prepare    the target is asked: is the key free, is there capacity, are schema and tools known
    stage      the log is adopted at the target while the session still runs
    depart     the session is locked, and `session.departed` ends what the source may record
    transfer   what came since is staged; the target's copy is compared with the source's
    commit     the target decides: `session.arrived`, or a refusal of the epoch

Between departure and decision nobody may write the session, and whoever comes next can find out
how far it got from the two logs and the document of the epoch alone: another `move`, or a sweep
that knows the node. A mover holds no state that anybody needs. Only the target decides about an
epoch, and only once; the source records `session.returned` after it has read a refusal.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from limpet.errors import (
    InvalidEvent,
    LimpetError,
    SessionArchived,
    SessionConflict,
    SessionDeleted,
    SessionErased,
    SessionExists,
    SessionFenced,
    SessionLocked,
    SessionMoved,
    StoreBusy,
    StoreError,
    StoreFull,
)
from limpet.model import Base, Commit, Fact, Head, Key, Lease, checkpoints_of
from limpet.model.facts.moves import (
    EXPECTED,
    FAMILY_MAX,
    KEPT_US,
    departed,
    departure,
    family_in,
    kin_of,
    last_epoch,
    leads_to,
    returned,
    stage_prefix,
)
from limpet.model.facts.phases import is_stub
from limpet.model.facts.relations import key_in
from limpet.model.facts.running.setup import tools_in
from limpet.model.facts.running.spawned import CHILD_DONE, CHILD_SPAWNED, spawned_in
from limpet.model.facts.shares import shares_in, unshared
from limpet.model.keys import ARRIVALS
from limpet.model.limits import PAGE_MAX
from limpet.session.documents import Put, commit_puts
from limpet.session.journal import Journal, Tries
from limpet.session.move.adopter import (
    PIECE_EVENTS,
    Newest,
    check_whole,
    names_in,
    records_in,
)
from limpet.session.move.arrivals import (
    Arrival,
    ArrivalNeeds,
    ArrivalRefused,
    Arrivals,
    Decision,
    MoveReason,
    StagedLog,
    expected_sessions,
)
from limpet.session.move.attachments import (
    PINS_MAX,
    blobs_in,
    blobs_of,
    chunks_of,
    load_log,
    logs_of,
    marks_read,
    piece_beside,
    pinning_commits,
    records_beside,
)
from limpet.session.move.bundle import zstd_module
from limpet.session.move.departures import (
    Departure,
    departures,
    open_departures,
    settle_departure,
)
from limpet.session.move.reclaim import reclaims, was_reclaimed
from limpet.session.move.routes import MOVER, gone_or_moved, keep_route, route_key
from limpet.session.move.transfer import missing
from limpet.session.runs.delegation import head_of
from limpet.session.sharing import live_shares_given
from limpet.store.leases import Leases
from limpet.store.pages import each_head
from limpet.store.protocol import (
    ChainedEvent,
    Check,
    Exchange,
    Progress,
    Query,
    Standing,
    Traffic,
    plural,
    traffic_of,
)

if TYPE_CHECKING:
    from limpet.session.life.tools import ToolRegistry
    from limpet.session.move.nodes import Nodes
    from limpet.session.services import Services

DEADLINE_SECONDS: Final = 30.0
CHECKPOINTS: Final = 3
_LEVEL: Final = 3  # of zstd
_LOCK_SECONDS: Final = 60.0  # a mover that dies holds the session no longer
_WAIT_SECONDS: Final = 0.05
_DEPARTED_SECONDS: Final = 10.0  # of the deadline: to arrive, or to be refused and return
_REFUSE_SECONDS: Final = 5.0
_CLEAR_SECONDS: Final = 5.0
_FOLLOWS: Final = 40  # waits of that length for a mover that was faster
_ROUNDS: Final = 4  # of staging while the session runs, each with less to send than the last
_SMALL: Final = 64  # events that are sent during the pause rather than in one more round
# Reasons why a session cannot be staged.
_IN_THE_WAY: Final[Mapping[str, Callable[[Key], LimpetError]]] = {
    "exists": SessionExists,
    "deleted": SessionDeleted,
    "erased": SessionErased,
}


class Moved(msgspec.Struct, frozen=True):
    """The result of a move.

    `reason` is None if the session is at the target. Otherwise it is still here, unless the reason
    is "unknown": then the target cannot be reached, no store owns the session until it can, and the
    next move or sweep finishes. `seconds` has suspend, serialize, transfer, deserialize, rebind,
    verify, commit, pause (from departure to arrival) and total.
    """

    success: bool
    reason: MoveReason | None
    epoch: int
    bundle_bytes: int = 0
    compressed_bytes: int = 0
    seconds: Mapping[str, float] = {}
    left_out: tuple[str, ...] = ()  # app: and user: names that the target does not have
    detail: str = ""  # the reason, for people
    events: int = 0  # that were sent

    def __str__(self) -> str:
        if not self.success:
            return f"not moved ({self.reason}): {self.detail}"
        ratio = self.compressed_bytes / self.bundle_bytes if self.bundle_bytes else 1.0
        pause = f"{self.seconds.get('pause', 0.0) * 1_000:.0f} ms pause"
        return f"moved in epoch {self.epoch}: {self.events:,} events, ratio {ratio:.2f}, {pause}"


class Prestaged(msgspec.Struct, frozen=True):
    """The result of a prestage."""

    events: int
    bundle_bytes: int
    compressed_bytes: int


class MoveMeter:
    """The measurements of a move: bytes, events, and seconds by term.

    To and from a server the bytes are those that travel, as the link counts them. Between stores
    that this process has open nothing travels: then they are what bodies and blobs have, and would
    have.
    """

    def __init__(
        self, progress: Progress | None = None, links: Sequence[Traffic | None] = ()
    ) -> None:
        self._links = [link for link in links if link is not None]
        self._before = self._travelled()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.bytes = self.compressed = self.events = self.total = 0
        self._progress = progress
        self._began = time.perf_counter()

    @contextmanager
    def term(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - began

    def sent(self, bodies: Iterable[bytes], events: int) -> None:
        """Count what is sent."""
        joined = b"".join(bodies)
        self.bytes += len(joined)
        if joined and not self._links:
            self.compressed += len(zstd_module().compress(joined, _LEVEL))
        self.events += events
        if self._progress is not None:
            self._progress(self.events, max(self.events, self.total))

    def _travelled(self) -> tuple[int, int]:
        return sum([each.plain for each in self._links]), sum([each.sent for each in self._links])

    @property
    def sizes(self) -> tuple[int, int]:
        """The bytes of the bundle, and compressed."""
        if not self._links:
            return self.bytes, self.compressed
        (plain, sent), before = self._travelled(), self._before
        return plain - before[0], sent - before[1]

    def moved(
        self,
        epoch: int,
        reason: MoveReason | None = None,
        detail: str = "",
        left_out: tuple[str, ...] = (),
    ) -> Moved:
        self.seconds["total"] = time.perf_counter() - self._began
        seconds = dict(self.seconds)
        sent = (*self.sizes, seconds)
        return Moved(reason is None, reason, epoch, *sent, left_out, detail, self.events)


def _until(at: float) -> asyncio.Timeout:
    """A bound on what is awaited: until this time, as time.monotonic has it."""
    return asyncio.timeout(max(0.0, at - time.monotonic()))


class _Member:
    """A session that moves, and how much of it the target is known to have."""

    def __init__(self, head: Head, epoch: int) -> None:
        self.head, self.epoch = head, epoch
        self.key, self.uid = head.key, head.uid
        self.staged = Newest()
        self.begun = False
        self.blobs: set[str] = set()
        self.beside: dict[Key, Newest] = {}  # the stages of logs beside its own
        self.checkpoints: StagedLog | None = None
        self.memory: dict[str, StagedLog] = {}

    def arrival(self, source: str) -> Arrival:
        memory = tuple([self.memory[name] for name in sorted(self.memory)])
        at = (self.head.version, self.head.link)
        return Arrival(self.key, self.uid, self.epoch, source, *at, self.checkpoints, memory)


class Mover:
    """One move under way, of one session or of a family."""

    def __init__(
        self,
        services: Services,
        node: str,
        target: Arrivals,
        *,
        deadline: float = DEADLINE_SECONDS,
        checkpoints: int = CHECKPOINTS,
        tools: ToolRegistry | None = None,
        force: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self._services, self._journal, self._node = services, services.journal, node
        self._target, self._tools, self._force = target, tools, force
        self._deadline, self._pins = deadline, checkpoints
        self._ends = time.monotonic() + deadline  # everything is over then
        self._departs = self._ends - min(_DEPARTED_SECONDS, deadline / 2)  # by then, or not at all
        self._meter = MoveMeter(progress, (traffic_of(self._journal.store), target.traffic))
        self._blobs = blobs_in(self._journal)
        self._worker = f"move:{self._journal.new_id()}"
        self._is_asked = self._departing = False
        self._departed_at: float | None = None
        self._left_out: tuple[str, ...] = ()

    # --- the whole way -------------------------------------------------------------------------

    async def move(self, keys: Sequence[Key]) -> Moved:
        """Move these sessions together, or finish a move of them that was interrupted.

        Raises SessionMoved if they went elsewhere; else what is in the way is in the answer.
        """
        heads = [await self._head(key) for key in keys]
        away = [departure(head.facts) for head in heads]
        if any(away):
            return await self._resumed(keys, heads)
        members = [_Member(head, last_epoch(head.facts) + 1) for head in heads]
        epoch = members[0].epoch
        try:
            async with _until(self._departs):
                await self._prepare(members)
                async with self._locked(members) as leases:
                    for each in members:
                        await self._stage(each)
                    with self._meter.term("suspend"):
                        await self._depart(members, leases)
                    leases.clear()  # they ended with it
        except (ArrivalRefused, SessionConflict, SessionDeleted, SessionMoved) as error:
            heads = [await self._head(key) for key in keys]  # another mover may have been faster
            if any([departure(head.facts) for head in heads]):
                return await self._follow(keys, heads)
            if not isinstance(error, ArrivalRefused):
                raise
            return self._meter.moved(epoch, error.reason, error.detail)
        except (SessionLocked, SessionFenced) as error:  # or the lock was lost on the way
            return self._meter.moved(epoch, "busy", str(error))
        except (StoreError, OSError, TimeoutError) as error:
            if not self._departing:
                if isinstance(error, StoreError) and not error.retryable:
                    raise
                if isinstance(error, TimeoutError):
                    return await self._late(keys, epoch)
                full = isinstance(error, StoreFull)
                return self._meter.moved(epoch, "capacity" if full else "unreachable", str(error))
            heads = [await self._head(key) for key in keys]  # it may have been recorded
            if any([departure(head.facts) for head in heads]):
                return await self._resumed(keys, heads)
            return self._meter.moved(epoch, "unknown", str(error))
        return await self._finish(members)

    async def _late(self, keys: Sequence[Key], epoch: int) -> Moved:
        """Return why there was no time for the sessions to depart."""
        with suppress(TimeoutError):
            async with _until(self._ends):
                for key in keys:
                    head = await self._head(key)
                    if head.worker not in (None, self._worker) and head.lease_us is not None:
                        detail = f"{key} is leased to {head.worker!r}"
                        return self._meter.moved(epoch, "busy", detail)
        reason: MoveReason = "deadline" if self._is_asked else "unreachable"
        detail = f"{self._too_late}; it has not left"
        return self._meter.moved(epoch, reason, detail)

    @property
    def _too_late(self) -> str:
        return f"not done within {self._deadline:g} seconds"

    async def prestage(self, key: Key) -> Prestaged:
        """Send ahead what the target does not have, while the session runs."""
        head = await self._head(key)
        if (away := departure(head.facts)) is not None:
            raise SessionMoved(key, away["to"], away["epoch"])
        member = _Member(head, last_epoch(head.facts) + 1)
        try:
            await self._target.begin(member.arrival(self._node))
        except ArrivalRefused as error:
            raise _IN_THE_WAY[error.reason](key) from error
        await self._stage(member)
        return Prestaged(self._meter.events, *self._meter.sizes)

    async def _follow(self, keys: Sequence[Key], heads: Sequence[Head]) -> Moved:
        """Wait for what another mover makes of these sessions, and finish it if that takes long:
        two who stage the same log at once would be in each other's way."""
        with suppress(TimeoutError):
            async with _until(self._departs):
                for _ in range(_FOLLOWS):
                    left = next((head for head in heads if departure(head.facts) is not None), None)
                    if left is None or not await self._leads_there(left):
                        break
                    members = [_Member(head, last_epoch(head.facts)) for head in heads]
                    if await self._target.decided([each.arrival(self._node) for each in members]):
                        break
                    await asyncio.sleep(_WAIT_SECONDS)
                    heads = [await self._head(key) for key in keys]
        if not any([departure(head.facts) for head in heads]):
            epoch = last_epoch(heads[0].facts)
            return self._meter.moved(epoch, "refused", "another move was refused; move again")
        return await self._resumed(keys, heads)

    async def _resumed(self, keys: Sequence[Key], heads: Sequence[Head]) -> Moved:
        """Go on with a move that an earlier mover began."""
        first = next(head for head in heads if departure(head.facts) is not None)
        away = departure(first.facts)
        assert away is not None
        try:
            async with _until(self._ends):
                there = await self._leads_there(first)
        except (StoreError, OSError, TimeoutError) as error:
            return self._meter.moved(away["epoch"], "unknown", str(error) or self._too_late)
        if not there:
            raise SessionMoved(first.key, away["to"], away["epoch"])
        members, at = [], (away["to"], away.get("family"))  # others may have left again since
        for key in family_in(away) or (first.key,):
            head = await head_of(self._journal, key)
            own = None if head is None else departure(head.facts)
            together = own is not None and (own["to"], own.get("family")) == at
            if head is not None and own is not None and together:
                members.append(_Member(head, own["epoch"]))
        if not members:  # meanwhile another mover has read the refusal
            return self._meter.moved(away["epoch"], "refused", "the session has returned")
        return await self._finish(members)

    async def _leads_there(self, head: Head) -> bool:
        """True if a session that has departed is on its way to the target.

        A copy of the target's file has the same identity. What it lacks, unless it stands under the
        name that the session left for, is what was staged there before the session departed.
        """
        away, target = departure(head.facts), self._target
        if away is None or not leads_to(away, target.node, await target.identity()):
            return False
        if away["to"] == target.node:
            return True
        return await target.expects(_Member(head, away["epoch"]).arrival(self._node))

    async def _finish(self, members: Sequence[_Member]) -> Moved:
        """Bring departed sessions to a decision, and do what it says."""
        self._departed_at = self._departed_at or time.perf_counter()
        epoch, detail = members[0].epoch, ""
        reason: MoveReason = "refused"
        arrivals = [each.arrival(self._node) for each in members]
        decision: Decision | None = None
        try:
            left = max(0.0, self._ends - time.monotonic())
            async with _until(self._ends - min(_REFUSE_SECONDS, left / 3)):
                decision = await self._target.decided(arrivals)
                if decision is None:
                    arrivals = await self._transfer(members)
                    with self._meter.term("commit"):
                        decision = await self._target.publish(arrivals)
        except ArrivalRefused as error:
            reason, detail = error.reason, error.detail
        except TimeoutError:
            reason, detail = "deadline", self._too_late
        except (LimpetError, OSError) as error:
            reason, detail = "transfer", f"{type(error).__name__}: {error}"
        if decision is None:
            try:
                async with _until(self._ends):
                    decision = await self._target.refuse(arrivals, reason)
            except (LimpetError, OSError, TimeoutError) as error:
                detail = detail or f"{type(error).__name__}: {error}"
                return self._meter.moved(epoch, "unknown", detail)
        if decision == "refused":
            await self._return(members, reason)
            return self._meter.moved(epoch, reason, detail or "the target had refused this epoch")
        self._meter.seconds["pause"] = time.perf_counter() - self._departed_at
        with suppress(LimpetError, OSError, TimeoutError):  # it has arrived all the same
            async with _until(min(self._ends, time.monotonic() + _CLEAR_SECONDS)):
                await self._target.clear(arrivals)
        settled = await self._settle(members)
        moved = self._meter.moved(epoch, left_out=self._left_out)
        self._record(settled, moved)
        return moved

    # --- prepare -------------------------------------------------------------------------------

    async def _prepare(self, members: Sequence[_Member]) -> None:
        """Ask the target, send what can be sent while the sessions run, and ask once more with
        what is known then. Raises ArrivalRefused."""
        keys = [each.key for each in members]
        if len(keys) > FAMILY_MAX:
            detail = f"{keys[0]} works with {len(keys) - 1:,} others; {FAMILY_MAX} at most move "
            raise ArrivalRefused("family", f"{detail}together. Let some of them end first")
        for each in members:
            kin = await _kin(self._journal, each.head)
            if left := [key for key in kin if key not in keys]:
                detail = f"{each.key} works with {left[0]}. Move them together with limpet drain"
                raise ArrivalRefused("family", detail)
        for each in members:
            await self._target.begin(each.arrival(self._node))
        await self._ask(members, 0)
        self._is_asked = True
        self._left_out = await self._names_left(keys)
        for each in members:
            await self._mark(each)
        self._meter.total = sum([each.head.version - each.head.floor for each in members])
        for each in members:
            for _ in range(_ROUNDS):
                before = self._meter.events
                await self._stage(each)
                if self._meter.events - before <= _SMALL:
                    break
        await self._ask(members, self._meter.bytes)

    async def _ask(self, members: Sequence[_Member], size: int) -> None:
        """Raise ArrivalRefused unless the target accepts the sessions."""
        for app in {each.key.app for each in members}:
            own = [each.head for each in members if each.key.app == app]
            tools: dict[str, str] = {}
            for head in own:
                bound = tools_in(head.facts).items()
                tools |= {n: str(t.get("version", "")) for n, t in bound if t.get("required", True)}
            schemas = {head.schema_version for head in own if head.schema_version is not None}
            needs = ArrivalNeeds(app, len(own), size, tuple(sorted(schemas)), tools)
            with self._meter.term("rebind"):
                await self._target.check(needs, self._tools)

    async def _mark(self, member: _Member) -> None:
        """Make a checkpoint of the session before it leaves: the place that a resumption at the
        target is verified against."""
        from limpet.session.history.checkpoint_log import CheckpointRequest
        from limpet.session.history.checkpoints import checkpoint
        from limpet.session.session import Session
        from limpet.session.writer import writer_of

        session: Session[Any] = Session(self._services, member.key, actor=MOVER, untyped=True)
        await writer_of(session).load(tail=0)
        request = CheckpointRequest("migration", None, MOVER, manual=True)
        with self._meter.term("suspend"):
            await checkpoint(writer_of(session), request)

    async def _names_left(self, keys: Sequence[Key]) -> tuple[str, ...]:
        """Return the shared names that these sessions see and the target never had."""
        left: dict[str, None] = {}
        source = names_in(self._journal)
        for owner in dict.fromkeys([(k.app, u) for k in keys for u in ("", k.user)]):
            lacking = await missing(source, self._target, owner)
            left |= dict.fromkeys([*lacking.values, *lacking.unread])
        return tuple(left)

    # --- depart --------------------------------------------------------------------------------

    @asynccontextmanager
    async def _locked(self, members: Sequence[_Member]) -> AsyncIterator[list[Lease | None]]:
        """Hold the sessions, so that no worker begins a turn; those who have one are waited for,
        until the deadline. Raises SessionLocked. With force, theirs is what ends."""
        store, leases = self._journal.store, list[Lease | None]()
        worker = self._worker
        try:
            for each in members:
                leases.append(await self._lock(each.key, worker))
            yield leases
        finally:
            for lease in leases:
                if lease is not None and lease.worker == worker:
                    assert isinstance(store, Leases)
                    with suppress(LimpetError, OSError):  # it departed with it, or it expires
                        await store.release(lease)

    async def _lock(self, key: Key, worker: str) -> Lease | None:
        store = self._journal.store
        if not isinstance(store, Leases):
            return None
        while True:
            try:
                return await store.acquire(key, worker, _LOCK_SECONDS)
            except SessionLocked:
                if self._force:
                    head = await self._head(key)
                    if head.worker is not None and head.lease_us is not None:
                        until = (head.fence, head.lease_us)
                        return Lease(key, head.worker, *until, uid=head.uid)
                elif time.monotonic() + _WAIT_SECONDS > self._departs:
                    raise
            with self._meter.term("suspend"):
                await asyncio.sleep(_WAIT_SECONDS)

    async def _depart(self, members: Sequence[_Member], leases: list[Lease | None]) -> None:
        """Record the departure of all of them, in one commit, with their leases and their live
        shares ended by it."""
        journal, to = self._journal, self._target.node
        store = await self._target.identity()
        keys = [each.key for each in members]
        async for left in Tries():
            commits: dict[Key, Commit] = {}
            puts: list[Put] = []
            for each, lease in zip(members, leases, strict=True):
                ended = await self._live_shares(each)
                fact = departed(to, store, each.epoch, source=self._node, family=keys)
                own = [*ended.pop(each.key, ()), fact]
                for key, facts in (*ended.items(), (each.key, own)):
                    drafts = tuple([journal.prepare(fact, MOVER) for fact in facts])
                    known = commits.get(key, Commit(key, ()))
                    commits[key] = msgspec.structs.replace(known, drafts=known.drafts + drafts)
                commits[each.key] = msgspec.structs.replace(
                    commits[each.key], uid=each.uid, release=lease
                )
                value = {
                    "uid": each.uid,
                    "epoch": each.epoch,
                    "to": to,
                    "owner": [each.key.app, each.key.user],
                }
                puts.append(Put(departures(journal, each.key), each.key.id, value, actor=MOVER))
            ordered = sorted(commits.values(), key=lambda commit: commit.key not in keys)
            self._departed_at, self._departing = time.perf_counter(), True
            try:
                answers, _ = await commit_puts(journal, ordered, puts)
            except InvalidEvent as error:  # what it works with has changed meanwhile
                raise ArrivalRefused("family", str(error)) from error
            except SessionFenced:  # the turn that force ends has a new lease, or ended by itself
                if not left or not self._force:
                    raise
                worker = self._worker
                leases[:] = [await self._lock(key, worker) for key in keys]
                continue
            by_key = {answer.head.key: answer.head for answer in answers}
            for each in members:
                each.head = by_key[each.key]
            return

    async def _live_shares(self, member: _Member) -> dict[Key, list[Fact]]:
        """Return the ends of the live shares that the session has or gives, by session."""
        ended: dict[Key, list[Fact]] = {}
        for id, terms in shares_in((await self._head(member.key)).facts).items():
            if terms["sync"] == "live":
                ended.setdefault(member.key, []).append(unshared(id))
                source = await head_of(self._journal, key_in(terms["source"]))
                if source is not None and source.uid == terms["source"]["uid"]:
                    ended.setdefault(source.key, []).append(unshared(id))
        given = await live_shares_given(self._journal.store, member.head, limit=PIECE_EVENTS // 2)
        for id, of in given.items():
            head = await head_of(self._journal, of.target)
            if head is not None and of.is_received(id, head):
                ended.setdefault(member.key, []).append(unshared(id))
                ended.setdefault(of.target, []).append(unshared(id))
        return ended

    # --- transfer ------------------------------------------------------------------------------

    async def _transfer(self, members: Sequence[_Member]) -> list[Arrival]:
        """Stage the rest of each log, and compare what the target has with what is here."""
        for each in members:
            arrival = each.arrival(self._node)
            if not each.begun:
                await self._target.begin(arrival)
                if await self._target.has_key(arrival):  # nothing is left to send
                    await self._beside(each, send=False)
                    continue
            await self._stage(each)
            with self._meter.term("deserialize"):
                there = await self._target.staged_end(arrival.stage)
            with self._meter.term("verify"):
                if there != Newest(each.head.version, each.head.link):
                    raise SessionConflict(each.key, "log", each.head.version, there.seq)
            await self._check_away(each)
        return [each.arrival(self._node) for each in members]

    async def _check_away(self, member: _Member) -> None:
        """Raise ArrivalRefused if the session has been taken back here while its target was out of
        reach: it must not arrive as well."""
        head = await head_of(self._journal, member.key)
        if head is not None and last_epoch(head.facts) > member.epoch:
            detail = f"{member.key} has gone on here, in epoch {last_epoch(head.facts)}"
            raise ArrivalRefused("refused", detail)

    async def _stage(self, member: _Member) -> None:
        """Send what the target does not have of the session, up to its newest event; of one that
        has departed, that is the departure."""
        try:
            await self._stage_log(member)
        except SessionConflict:
            # The staged log is not a prefix of this one: the source was restored from a backup.
            await self._target.drop_stage(member.arrival(self._node))
            member.staged, member.begun = Newest(), False
            member.blobs.clear()
            member.beside.clear()
            await self._stage_log(member)

    async def _stage_log(self, member: _Member) -> None:
        key, source = member.key, records_in(self._journal)
        stage = member.arrival(self._node).stage
        # Before the head is read: an event that a checkpoint stands on is in the log.
        marks = marks_read(await load_log(self._journal.store, key), member.uid)
        if departure(member.head.facts) is None:
            member.head = await self._head(key)
            if departure(member.head.facts) is not None or member.head.uid != member.uid:
                raise SessionConflict(key, "session", member.head.version, None)
        head = member.head
        if not member.begun:
            member.staged = await self._target.staged_end(stage)
            member.begun = True
        newest = sorted(marks.pins)[-self._pins :] if self._pins else []
        pins = {seq: marks.pins[seq] for seq in newest}
        after, begins = max(member.staged.seq, head.floor), not member.staged.seq
        base = await source.base(key) if head.floor and begins else None
        if not begins:
            await self._send_blobs(member, stage)
        while after < head.version:
            alone = begins and await self._has_blobs(key)
            limit = 1 if alone else min(PIECE_EVENTS, head.version - after)
            with self._meter.term("serialize"):
                records = await source.records(key, after=after, limit=limit)
                check_whole(key, records, after)
                self._count(records)
            await self._adopt(stage, records, pins, base)
            last = records[-1].event
            member.staged, after = Newest(last.seq, last.link), last.seq
            base, begins = None, False
            if alone:
                await self._send_blobs(member, stage)
        if member.staged.seq == head.version and member.staged.link != head.link:
            raise SessionConflict(key, "log", head.version, member.staged.seq)
        await self._beside(member, send=True)

    async def _adopt(
        self,
        stage: Key,
        records: Sequence[ChainedEvent],
        pins: Mapping[int, int],
        base: Base | None,
    ) -> None:
        commits = pinning_commits(stage, records, pins, base)
        first = commits[0].drafts[0].origin
        if base is not None or (first is not None and first.seq == 1):
            commits[0] = msgspec.structs.replace(commits[0], reuse=True)
        with self._meter.term("transfer"):
            for at in range(0, len(commits), PINS_MAX):
                await self._target.commit(commits[at : at + PINS_MAX])

    async def _beside(self, member: _Member, *, send: bool) -> None:
        """Send the logs beside the session's own: of its checkpoints, and of its memory."""
        arrival, journal = member.arrival(self._node), self._journal
        log = await head_of(journal, checkpoints_of(member.key))
        member.checkpoints = None
        if log is not None:
            member.checkpoints = StagedLog(log.uid, log.version)
            if send:
                await self._send_beside(member, log, arrival.checkpoint_stage)
        member.memory.clear()
        async for each in logs_of(journal, member.key):
            member.memory[each.key.id] = StagedLog(each.uid, each.version, each.key.id)
            if send:
                await self._send_beside(member, each, arrival.memory_stage(each.key.id))

    async def _send_beside(self, member: _Member, log: Head, stage: Key) -> None:
        here = member.beside.get(stage)
        if here is None:
            here = await self._target.staged_end(stage)
        if here.seq > log.version:  # it began again since
            await self._target.drop_staged((stage,))
            here = Newest()
        async for record in records_beside(self._journal, log.key, log.version, here.seq):
            self._count(record)
            with self._meter.term("transfer"):
                await self._target.commit((piece_beside(stage, record),))
        member.beside[stage] = Newest(log.version, log.link)

    async def _send_blobs(self, member: _Member, stage: Key) -> None:
        if self._blobs is None:
            return
        async for blob in blobs_of(self._blobs, member.key):
            if blob.hash in member.blobs:
                continue
            if not await self._target.has_blob(stage, blob.hash):
                upload = ""
                async for chunk in chunks_of(self._blobs, member.key, blob):
                    self._meter.sent((chunk.data,), 0)
                    with self._meter.term("transfer"):
                        upload = await self._target.put_chunk(
                            stage, upload, chunk.blob, chunk.number, chunk.data
                        )
            member.blobs.add(blob.hash)

    async def _has_blobs(self, key: Key) -> bool:
        return self._blobs is not None and bool(await self._blobs.page(key, after="", limit=1))

    def _count(self, records: Sequence[ChainedEvent]) -> None:
        self._meter.sent([each.raw or b"" for each in records], len(records))

    # --- after the decision --------------------------------------------------------------------

    async def _return(self, members: Sequence[_Member], reason: str) -> None:
        """The target has refused the epoch: the sessions are active here again."""
        commits: list[Commit] = []
        for each in members:
            head = await self._head(each.key)
            away = departure(head.facts)
            if away is not None and (head.uid, away["epoch"]) == (each.uid, each.epoch):
                fact = returned(self._node, each.epoch, reason)
                draft = self._journal.prepare(fact, MOVER)
                commits.append(Commit(each.key, (draft,), head.version, uid=each.uid))
        if commits:
            with suppress(SessionConflict):  # another mover has recorded it
                await self._journal.commit(commits)
        await self._settle(members)

    async def _settle(self, members: Sequence[_Member]) -> list[_Member]:
        """Mark these departures as finished; those that were open, which nobody has counted."""
        journal = self._journal
        return [
            each
            for each in members
            if await settle_departure(journal, each.key, each.uid, each.epoch)
        ]

    def _record(self, members: Sequence[_Member], moved: Moved) -> None:
        metrics, seconds = self._services.metrics, moved.seconds
        for each in members:
            metrics.record(
                "session.migrated",
                session=each.key,
                **{"from": self._node, "to": self._target.node},
                bundle_size=moved.compressed_bytes,
                transfer_latency_ms=seconds.get("transfer", 0.0) * 1_000,
                total_latency_ms=seconds["total"] * 1_000,
            )

    async def _head(self, key: Key) -> Head:
        """Return the newest head. Raises SessionNotFound, SessionDeleted, SessionArchived,
        SessionMoved."""
        head = await head_of(self._journal, key)
        if head is None:
            async with gone_or_moved(self._services):
                head = (await self._journal.store.load(key, tail=0, scopes=False)).head
        if is_stub(head.facts):
            raise SessionArchived(key)
        return head


# --- moves that were interrupted -----------------------------------------------------------------


async def finish_moves(services: Services) -> tuple[int, list[tuple[Key, Exception]]]:
    """Finish the moves that were interrupted: from here to nodes that are known, and to here; how
    many, and what failed. Remove what attempts have staged here and nobody goes on with."""
    nodes, done = services.nodes, 0
    failed: list[tuple[Key, Exception]] = []
    if nodes is None:
        return done, failed
    for departure_of in await open_departures(services.journal):
        try:
            done += await _finish_departure(services, nodes, departure_of)
        except Exception as error:  # a node that is out of reach must stop no other work
            failed.append((departure_of.key, error))
    silent: set[str] = set()  # nodes that cannot be asked
    for head in await arriving(services):
        try:
            done += await finish_arrival(services, head, silent)
        except Exception as error:
            failed.append((head.key, error))
    await _drop_old_stages(services)
    return done, failed


async def _finish_departure(services: Services, nodes: Nodes, of: Departure) -> bool:
    head = await head_of(services.journal, of.key)
    away = None if head is None else departure(head.facts)
    if head is None or away is None or (head.uid, away["epoch"]) != (of.uid, of.epoch):
        await settle_departure(services.journal, of.key, of.uid, of.epoch)
        return False
    if not nodes.knows(of.to):
        return False  # another process does
    there = await nodes.arrivals(of.to)
    assert there is not None
    moved = await Mover(services, nodes.name, there).move((of.key,))
    if moved.reason == "unknown":
        raise StoreBusy(f"node {of.to}", moved.detail, "sweep again when it can be reached")
    return True


async def arriving(services: Services) -> list[Head]:
    """Return the sessions that have their key here and did not arrive yet."""
    heads: list[Head] = []
    for key in await expected_sessions(services.journal):
        head = await head_of(services.journal, key)
        if head is not None and await _is_arriving(services, head):
            heads.append(head)
    return heads


async def _is_arriving(services: Services, head: Head) -> bool:
    """True if the session has departed to this store, which expects it."""
    away, nodes = departure(head.facts), services.nodes
    if away is None or nodes is None:
        return False
    if not leads_to(away, nodes.name, await services.journal.store.identity()):
        return False
    here = Arrivals(services, nodes.name)
    return await here.expects(_Member(head, away["epoch"]).arrival(away["from"]))


async def finish_arrival(services: Services, head: Head, silent: set[str]) -> bool:
    """Let a session arrive whose whole log is here, with those that left in one commit with it:
    all of them took their keys together. False if the epoch was refused.

    This store arrives under the name that it was moved to by. A source that it can ask may have
    reclaimed the session meanwhile: then its epoch is refused. A node that cannot be asked joins
    `silent`.
    """
    away, nodes = departure(head.facts), services.nodes
    assert away is not None
    assert nodes is not None
    family: list[Arrival] = []
    for key in family_in(away) or (head.key,):
        each = await head_of(services.journal, key)
        own = None if each is None else departure(each.facts)
        if each is None or own is None:
            continue  # it was erased, or has gone on: it is decided
        if (own["to"], own.get("family")) == (away["to"], away.get("family")):
            at = (own["epoch"], own["from"], each.version, each.link)
            family.append(Arrival(each.key, each.uid, *at))
    arrivals = Arrivals(services, away["to"])
    if family and await was_reclaimed(nodes, head, silent):
        decision = await arrivals.refuse(family, "its source has reclaimed the session")
        if decision == "refused":
            return False
    if not family or await arrivals.publish(family) == "arrived":
        await arrivals.clear(family)
        return True
    for arrival in family:
        await arrivals.take_back(arrival)
    return False


async def _drop_old_stages(services: Services) -> None:
    """Remove what was staged long ago, and has not taken its key: all of it is still where it came
    from. That may have been erased there, so nothing of it is kept here for good.

    The events of a stage have the times that they had at their source, which say nothing about
    when they came: what says that is the document beside them, by the clock of this store.
    """
    journal = services.journal
    before_us = journal.now_us() - KEPT_US
    query = Query(app=ARRIVALS, order="key", reverse=False)
    awaited = {stage_prefix(head.key, head.uid) for head in await arriving(services)}
    recent: set[tuple[str, str]] = set()
    async for head in each_head(journal.store, query):
        stage = head.key.id.removesuffix(EXPECTED)
        if stage != head.key.id and head.updated_us >= before_us:
            recent.add((head.key.user, stage))
    async for head in each_head(journal.store, query):
        stage = "/".join(head.key.id.split("/", 3)[:3]) + "/"
        if (head.key.user, stage) in recent or head.key.id.startswith(tuple(awaited)):
            continue
        if head.updated_us < before_us:
            at = Standing(head.uid, head.version)
            await journal.store.delete(head.key, ending="moved", at=at)


async def remove_departed(services: Services, key: Key) -> bool:
    """Remove what a session has left here, and remember where it is. False if nobody knows yet
    that it has arrived, or if it is back."""
    from limpet.session.history.checkpoints import store_checkpoints

    journal = services.journal
    head = await head_of(journal, key)
    if head is None or departure(head.facts) is None or await _is_arriving(services, head):
        return False
    if await head_of(journal, departures(journal, key).key(key.id)) is not None:
        return False
    await keep_route(services, head)
    ends = [Exchange(key, Standing(head.uid, head.version))]
    async for log in logs_of(journal, key):
        ends.append(Exchange(log.key, Standing(log.uid, log.version)))
    if not await journal.store.exchange(ends):
        return False  # it is back
    await store_checkpoints(journal).tiers.forget(key.app, key.user, key.id)
    journal.hub.touch(key)
    return True


async def erase_moves(services: Services, key: Key) -> None:
    """Erase what moves of an erased session have left: stages, its route, its departure."""
    journal = services.journal
    stages = [head.key async for head, _, _ in Arrivals(services, "").staged(key)]
    beside = (departures(journal, key).key(key.id), reclaims(journal, key).key(key.id))
    for each in (*stages, route_key(services, key), *beside):
        if each.app == ARRIVALS or await head_of(journal, each) is not None:
            await journal.store.erase(each)


async def move_checks(services: Services) -> tuple[Check, ...]:
    """Return the doctor's checks of unfinished moves."""
    if services.nodes is None:
        return ()
    checks: list[Check] = []
    if left := await open_departures(services.journal):
        first = left[0]
        text = f"{plural(len(left), 'departure')} not settled, the first {first.key} to {first.to}"
        advice = (
            f"Open the store with nodes={{{first.to!r}: URL}} and sweep, or move it again. If "
            f"{first.to} is lost for good, take the session back with limpet reclaim."
        )
        checks.append(Check("moves", text, "warning", advice))
    if half := await arriving(services):
        text = f"{plural(len(half), 'session')} arriving, the first {half[0].key}"
        advice = "Sweep this store: the sessions arrive, or free their keys."
        checks.append(Check("arrivals", text, "warning", advice))
    return tuple(checks)


# --- draining ------------------------------------------------------------------------------------


class Undrained(msgspec.Struct, frozen=True):
    """A session that could not be moved, and why."""

    key: Key
    reason: str
    detail: str


class DrainReport(msgspec.Struct, frozen=True):
    """The counts of a drain. Sessions that were not moved are still here, and are named."""

    sessions: int
    events: int
    bundle_bytes: int
    compressed_bytes: int
    refused: tuple[Undrained, ...] = ()

    @property
    def ok(self) -> bool:
        """True if no session is left here."""
        return not self.refused

    def __str__(self) -> str:
        moved = f"{plural(self.sessions, 'session')}, {plural(self.events, 'event')} moved"
        if not self.refused:
            return moved
        first = self.refused[0]
        return f"{moved}; {len(self.refused):,} not moved, the first {first.key}: {first.detail}"


async def drain(
    services: Services,
    node: str,
    target: Arrivals,
    app: str | None,
    deadline: float,
    force: bool,  # noqa: FBT001  # named by its only caller
    *,
    progress: Progress | None = None,
) -> DrainReport:
    """Move every session of an app, or all, families together; and finish what was interrupted."""
    journal = services.journal
    query = Query(app=app, reverse=False)
    keys = [h.key async for h in each_head(journal.store, query) if departure(h.facts) is None]
    left = [each.key for each in await open_departures(journal, app)]
    done: set[Key] = set()
    moved_sessions = events = size = compressed = 0
    refused: list[Undrained] = []
    for key in (*left, *keys):
        if key in done:
            continue
        try:
            family = await _family(journal, key)
            done.update(family)
            limits = Mover(services, node, target, deadline=deadline, force=force)
            moved = await limits.move(family)
        except LimpetError as error:
            done.add(key)
            refused.append(Undrained(key, error.code, str(error)))
            continue
        finally:
            if progress is not None:
                progress(len(done), max(len(done), len(keys) + len(left)))
        events, size = events + moved.events, size + moved.bundle_bytes
        compressed += moved.compressed_bytes
        if moved.success:
            moved_sessions += len(family)
        else:
            reason = moved.reason or "unknown"
            refused += [Undrained(each, reason, moved.detail) for each in family]
    return DrainReport(moved_sessions, events, size, compressed, tuple(refused))


async def _family(journal: Journal, key: Key) -> tuple[Key, ...]:
    """Return the sessions that work with this one, directly or by way of others."""
    family, waiting = [key], [key]
    while waiting:
        head = await head_of(journal, waiting.pop())
        if head is None:
            continue
        away = departure(head.facts)
        if away is not None and (left := family_in(away)):
            return left
        for relative in await _kin(journal, head):
            if relative not in family:
                family.append(relative)
                waiting.append(relative)
    return tuple(family)


async def _kin(journal: Journal, head: Head) -> tuple[Key, ...]:
    """Return the sessions that work with this one; of spawned children its head has a number, and
    its log says which they are."""
    kin = kin_of(head.facts)
    if not spawned_in(head.facts):
        return kin
    spawned: dict[Key, None] = {}
    after, types = head.floor, (CHILD_SPAWNED, CHILD_DONE)
    while page := await journal.store.read(
        head.key, after=after, limit=PAGE_MAX, reverse=False, types=types
    ):
        for event in page:
            data = event.data or {}
            child = Key(data["app"], data["user"], data["child"])
            if event.type == CHILD_SPAWNED:
                spawned[child] = None
            else:
                spawned.pop(child, None)
        after = page[-1].seq
    return (*kin, *spawned)
