"""The checkpoint log: the checkpoints of one session, in a log of their own beside it.

A checkpoint changes no version: it is an event of that log, recorded in one commit that also checks
that the session is there and, for a full one, pins its snapshot. An incremental one is the seq and
the checksum of the state there; the session's own log is the delta.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from typing import Final, Literal, TypeAlias

import msgspec

from limpet.errors import (
    InvalidInput,
    SessionConflict,
    SessionCorrupt,
    SessionDeleted,
    SessionError,
    SessionExists,
    SessionNotFound,
)
from limpet.model import EMPTY, Commit, DefaultActor, Fact, FrozenDict, Head, Key, to_time, to_us
from limpet.model.facts import checkpoints as facts
from limpet.model.keys import checkpoints_of
from limpet.session.history.checkpoint_policy import STORE, CheckpointPolicy
from limpet.session.history.checkpoint_tiers import CheckpointFile, CheckpointTiers
from limpet.session.journal import Journal, Tries
from limpet.store.protocol import Store

CheckpointKind: TypeAlias = Literal["full", "incremental"]
KINDS: Final[dict[bool, CheckpointKind]] = {True: "full", False: "incremental"}
SYSTEM: Final = DefaultActor("system:checkpoints")  # who acts where nobody is named


class CheckpointRef(msgspec.Struct, frozen=True):
    """Names a checkpoint. The checksum is that of the session's own fields there."""

    key: Key
    number: int  # counts up within the session, from 1
    seq: int
    checksum: str  # SHA-256 of the canonical encoding, in hex


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint as it was recorded."""

    ref: CheckpointRef
    kind: CheckpointKind
    trigger: str
    at: datetime
    size: int  # of the state, encoded, in bytes
    place: CheckpointFile | None = None  # of its file, if a policy named a tier
    manual: bool = False  # somebody asked for it, and no policy lets it go

    @property
    def tier(self) -> str:
        """Return where it is stored besides the store; "store" if nowhere else."""
        return STORE if self.place is None else self.place.tier

    @property
    def number(self) -> int:
        """Its number among the checkpoints of the session, from 1."""
        return self.ref.number

    @property
    def seq(self) -> int:
        """The seq of the event after which it was made."""
        return self.ref.seq

    @property
    def at_us(self) -> int:
        """The time it was made, in microseconds."""
        return to_us(self.at)

    @property
    def full(self) -> bool:
        """True if it stores the state itself."""
        return self.kind == "full"


class CheckpointPage(msgspec.Struct, frozen=True):
    """A page of checkpoints, the newest first; `cursor` is None on the last page."""

    items: tuple[Checkpoint, ...]
    cursor: str | None


class StateToCheckpoint(msgspec.Struct, frozen=True):
    """A state to make a checkpoint of."""

    uid: str
    seq: int
    checksum: str
    size: int
    newest: bool = False  # it is recorded only if the session has not moved on
    fields: FrozenDict = EMPTY
    schema_version: str | None = None


class CheckpointRequest(msgspec.Struct, frozen=True):
    """The reason for a checkpoint, its actor and its kind; full=None: as the policy says."""

    trigger: str
    full: bool | None = None
    actor: str | None = None
    manual: bool = False  # somebody asked for it: it stays until it is unpinned


class _CheckpointIndex(msgspec.Struct, frozen=True):
    """The numbers of the checkpoints of a log by what they are, each in order."""

    fulls: list[int]
    manual: list[int]
    automatic: list[int]  # made by a policy or a transition: these a policy counts

    def after(self, made: Checkpoint, dropped: Sequence[Checkpoint]) -> _CheckpointIndex:
        """Return the index after one was made and others were dropped."""
        gone = {each.number for each in dropped}
        fulls = [each for each in self.fulls if each not in gone] if gone else self.fulls
        others = [each for each in self.automatic if each not in gone] if gone else self.automatic
        new = [made.number]
        return _CheckpointIndex(
            fulls + new if made.full else fulls,
            self.manual + new if made.manual else self.manual,
            others if made.manual else others + new,
        )


class CheckpointLog:
    """The checkpoints of one session."""

    def __init__(self, journal: Journal, key: Key, tiers: CheckpointTiers) -> None:
        self._journal, self.key, self._log = journal, key, checkpoints_of(key)
        self._tiers = tiers
        self._version = 0  # of the log; 0: it is not there, or was not read
        self._state: FrozenDict = EMPTY
        self._index: _CheckpointIndex | None = None  # of what is in it, if it was looked for

    async def read(self, uid: str) -> tuple[Checkpoint, ...]:
        """All that are kept of this session, the oldest first."""
        try:
            loaded = await self._journal.store.load(self._log, tail=0, scopes=False)
        except (SessionNotFound, SessionDeleted):
            self._learn(0, EMPTY)
        else:
            self._learn(loaded.head.version, loaded.fields)
        return self._shown(uid)

    async def record(
        self, taken: StateToCheckpoint, asked: CheckpointRequest, policy: CheckpointPolicy
    ) -> Checkpoint:
        """Record one more. Raises SessionConflict if the session has moved on and that matters: a
        full one pins the newest state, and what was `taken` may have to be it."""
        if not self._version:
            await self.read(taken.uid)
        async for left in Tries():
            made, dropped = self._next(taken, asked, policy)
            begun, version, index = self._begun(taken.uid), self._version, self._index
            if policy.tier != STORE:  # others may record meanwhile: it is decided on this version
                made = await self._placed(made, taken, policy.tier)
            new = [*begun, facts.recorded(_row(made), _numbers(dropped))]
            pin = made.number if made.full else None
            at = taken.seq if made.full or taken.newest else None
            session = Commit(self.key, (), at, uid=taken.uid, pin=pin)
            try:
                after = await self._commit(version, new, session, asked.actor, last=not left)
            except (SessionError, InvalidInput):  # and nothing else: it may have been recorded
                await self._discard(made)
                raise
            if after is not None:
                if index is not None and not begun:
                    self._index = index.after(made, dropped)
                if dropped:
                    await self._let_go(dropped, after)
                return made
            await self._discard(made)
            await self.read(taken.uid)
        raise AssertionError("the last try returns or raises")

    async def unpin(self, numbers: Sequence[int], uid: str, actor: str | None) -> None:
        """Let go of checkpoints; their states are still in the log."""
        async for left in Tries():
            gone = [each for each in await self.read(uid) if each.number in numbers]
            session = Commit(self.key, (), uid=uid)
            if not gone:
                return
            new, last = [facts.unpinned(_numbers(gone))], not left
            after = await self._commit(self._version, new, session, actor, last=last)
            if after is not None:
                return await self._let_go(gone, after)

    def _shown(self, uid: str) -> tuple[Checkpoint, ...]:
        # Those of another session that had this key are not shown.
        return self._in(self._state) if self._same(uid) else ()

    def _in(self, state: FrozenDict) -> tuple[Checkpoint, ...]:
        kept = sorted(state[facts.KEPT].items(), key=_number)
        return tuple([self._checkpoint(int(number), row) for number, row in kept])

    def _checkpoint(self, number: int, row: FrozenDict) -> Checkpoint:
        ref = CheckpointRef(self.key, number, row["seq"], row["checksum"])
        place = row.get("place")
        placed = None if place is None else msgspec.convert(place, CheckpointFile)
        kind, at = KINDS[row["full"]], to_time(row["at_us"])
        return Checkpoint(ref, kind, row["trigger"], at, row["size"], placed, _is_manual(row))

    def _next(
        self, taken: StateToCheckpoint, asked: CheckpointRequest, policy: CheckpointPolicy
    ) -> tuple[Checkpoint, list[Checkpoint]]:
        """The checkpoint as it would be recorded, and those that a policy lets go with it."""
        same = self._same(taken.uid)
        kept = self._state[facts.KEPT] if same else EMPTY  # in the order of their numbers
        full = asked.full
        if full is None:
            since = islice(reversed(kept.values()), policy.full_every - 1)
            full = not any([row["full"] for row in since])
        number = self._state[facts.LAST] + 1 if same else 1
        ref = CheckpointRef(self.key, number, taken.seq, taken.checksum)
        at = to_time(self._journal.now_us())
        made = Checkpoint(ref, KINDS[full], asked.trigger, at, taken.size, manual=asked.manual)
        if asked.manual or len(kept) < policy.keep:
            return made, []
        if self._index is None:
            of = {int(number): row for number, row in kept.items()}
            manual = [number for number, row in of.items() if _is_manual(row)]
            fulls = [number for number, row in of.items() if row["full"]]
            self._index = _CheckpointIndex(fulls, manual, sorted(of.keys() - set(manual)))
        index = self._index
        over = len(index.automatic) + 1 - policy.keep
        gone = _oldest(index, over, full=full) if over > 0 else []
        return made, [self._checkpoint(each, kept[str(each)]) for each in gone]

    async def _placed(self, made: Checkpoint, taken: StateToCheckpoint, tier: str) -> Checkpoint:
        """The checkpoint with its file in a tier."""
        base = None if made.full else await self._base(taken.uid, tier)
        state = (taken.seq, taken.schema_version, taken.fields)
        place = await self._tiers.put(tier, (self.key, taken.uid), state, base)
        return msgspec.structs.replace(made, place=place)

    async def _base(self, uid: str, tier: str) -> tuple[str, FrozenDict] | None:
        """The file of the newest full one there, and the state in it, if the store can give it."""
        fulls = [each for each in self._shown(uid) if each.full]
        place = fulls[-1].place if fulls else None
        if place is None or place.tier != tier:
            return None
        try:
            return place.file, (await self._journal.store.fold_at(self.key, fulls[-1].seq)).fields
        except (SessionCorrupt, InvalidInput):
            return None

    async def _discard(self, made: Checkpoint) -> None:
        """Remove the file of one that was not recorded."""
        if made.place is not None:
            await self._tiers.remove(self.key, made.place.tier, [made.place.file])

    def _same(self, uid: str) -> bool:
        return bool(self._state.get(facts.OF) == uid)

    def _begun(self, uid: str) -> list[Fact]:
        """Return the facts to record first: the log begins, or is another session's now."""
        if not self._version:
            return [facts.checkpoints_created(self._log, uid)]
        return [] if self._same(uid) else [facts.begun_again(uid)]

    async def _commit(
        self, version: int, new: Sequence[Fact], session: Commit, actor: str | None, *, last: bool
    ) -> FrozenDict | None:
        """Record facts of the log at this version, if the session is there; the state of the log
        then. None if another was faster."""
        drafts = tuple([self._journal.prepare_plain(fact, actor or SYSTEM) for fact in new])
        mine = Commit(self._log, drafts, version, reuse=not version)
        try:
            _, answer = await self._journal.commit((session, mine))
        except (SessionConflict, SessionExists, SessionNotFound, SessionDeleted) as error:
            if error.key != self._log or last:
                raise
            return None
        self._learn(answer.head.version, answer.fields)
        return self._state

    def _learn(self, version: int, state: FrozenDict) -> None:
        self._version, self._state, self._index = version, state, None

    async def _let_go(self, gone: Sequence[Checkpoint], after: FrozenDict) -> None:
        """Free their snapshots and files, as far as those that are kept `after` it do not need
        them. If this is not reached they only take space."""
        kept = self._in(after)
        await self._remove_files([each.place for each in gone if each.place is not None], kept)
        still = {each.seq for each in kept if each.full}
        seqs = [each.seq for each in gone if each.full and each.seq not in still]
        if seqs:
            await self._journal.store.unpin(self.key, seqs)

    async def _remove_files(
        self, gone: Sequence[CheckpointFile], kept: Sequence[Checkpoint]
    ) -> None:
        """Remove the files of dropped checkpoints, and the ones that only they needed."""
        places = [each.place for each in kept if each.place is not None]
        used = {file for place in places for file in (place.file, place.base)}
        for place in gone:
            files = [file for file in (place.file, place.base) if file and file not in used]
            await self._tiers.remove(self.key, place.tier, files)


async def read_ref(store: Store, head: Head, number: int) -> CheckpointRef | None:
    """Return the reference of the session's checkpoint with this number; None if it has none."""
    try:
        state = (await store.load(checkpoints_of(head.key), tail=0, scopes=False)).fields
    except (SessionNotFound, SessionDeleted):
        return None
    row = state[facts.KEPT].get(str(number)) if state.get(facts.OF) == head.uid else None
    return None if row is None else CheckpointRef(head.key, number, row["seq"], row["checksum"])


def _row(made: Checkpoint) -> dict[str, object]:
    ref = made.ref
    row: dict[str, object] = {
        "number": ref.number,
        "seq": ref.seq,
        "checksum": ref.checksum,
        "full": made.full,
        "trigger": made.trigger,
        "size": made.size,
        "at_us": made.at_us,
    }
    if made.manual:
        row["manual"] = True
    return row if made.place is None else {**row, "place": msgspec.to_builtins(made.place)}


def _is_manual(row: FrozenDict) -> bool:
    """True if somebody asked for it. Older rows say it by their trigger alone."""
    return bool(row.get("manual", row["trigger"] == "manual"))


def _oldest(index: _CheckpointIndex, over: int, *, full: bool) -> list[int]:
    """The oldest automatic ones to let go of: so many, but what is kept begins with a full one,
    and an incremental one that somebody asked for keeps the full one before it."""
    from bisect import bisect_left, bisect_right

    fulls, manual = index.fulls, index.manual
    oldest = index.automatic[: over + 1]
    if not (full and len(oldest) == over):  # else the new one is all that is kept
        place = bisect_right(fulls, oldest[-1])
        begins = fulls[place - 1] if place else 0
        stays = bisect_right(manual, begins) > bisect_left(manual, begins)  # whatever we let go
        oldest = oldest[:over] if stays else [each for each in oldest if each < begins]
    gone = []
    for each in oldest:
        place = bisect_right(fulls, each)
        is_full = place > 0 and fulls[place - 1] == each
        until = bisect_left(manual, fulls[place]) if place < len(fulls) else len(manual)
        if not is_full or bisect_right(manual, each) == until:
            gone.append(each)
    return gone


def _numbers(checkpoints: Sequence[Checkpoint]) -> list[int]:
    return [each.number for each in checkpoints]


def _number(item: tuple[str, object]) -> int:
    return int(item[0])
