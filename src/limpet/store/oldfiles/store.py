"""The log store: sessions in a directory of plain files, written by one process.

Every commit is lines of the root log, made durable by one sync together with all that wait beside
it. What is needed to answer is in memory (`index`) or one read away. Reads run inline on the
caller's event loop; writes are those of `FilesWriter`.

With `?mode=ro` a directory is read while another process writes it: before each read the lines
that were appended since are applied.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar
from weakref import WeakSet

import msgspec
from msgspec import structs

from limpet.errors import (
    Asked,
    InvalidInput,
    LimpetError,
    PositionUnknown,
    SessionCorrupt,
    SessionDeleted,
    SessionError,
    SessionFenced,
    SessionHasForks,
    StoreClosed,
    StoreCorrupt,
    StoreForked,
    StoreReadOnly,
    StoreUnopened,
    UploadLost,
)
from limpet.model import (
    Base,
    Commit,
    Event,
    Fold,
    FrozenDict,
    Head,
    Key,
    Lease,
    ScopeKey,
    ScopeValue,
    checkpoints_of,
    forgotten_with,
    is_reserved,
    limits,
    owner_of,
    scope_of,
)
from limpet.model.facts.moves import departure
from limpet.model.facts.phases import Phase, is_stub
from limpet.model.facts.running.runs import run_in
from limpet.model.facts.running.waiting import open_in
from limpet.model.keys import CHECKPOINTS, owned_by
from limpet.model.lease import (
    Readiness,
    acquired,
    admits,
    given_back,
    is_ahead,
    is_leased,
    lasting,
    lease_of,
    measured_again,
    readiness,
    renewed,
    taken,
)
from limpet.model.limits import BLOB_UPLOAD_SECONDS_MAX, MARKS_SWEPT
from limpet.store import cursor as cursors
from limpet.store.blobs import (
    Blob,
    BlobRow,
    Blobs,
    check_open,
    opening,
    pack_blob,
    pack_chunk,
    read_blob,
    unpack_chunk,
)
from limpet.store.cache import TAIL_BYTES_MAX, TAIL_MAX
from limpet.store.clock import Clock
from limpet.store.coding.bodies import is_naming, store_identity
from limpet.store.coding.codec import UNHELD, Codec, Damaged
from limpet.store.coding.seal import Awaited, Unready, owners_of, refuse_locked, scope_owner
from limpet.store.jobs import Pace, WriteJob, WriterCall
from limpet.store.leases import Place, span_us
from limpet.store.live import MemoryChannel
from limpet.store.marks import Mark, Marks, added
from limpet.store.oldfiles.compaction import Compaction, finish
from limpet.store.oldfiles.disk import LOCK, DirectoryLock, LogDisk
from limpet.store.oldfiles.index import (
    ROW_BITS,
    IndexedSession,
    Ordered,
    packed_beginning,
    row_of,
    walked,
)
from limpet.store.oldfiles.lines import (
    BlobLine,
    ColdLine,
    EndLine,
    EraseLine,
    LogLine,
    MacLine,
    MarkLine,
    PinLine,
    RingLine,
    TakeLine,
)
from limpet.store.oldfiles.state import BLOBS, SESSIONS, FilesState, chunk_in, upload_name
from limpet.store.oldfiles.writer import FilesWriter, lease_line
from limpet.store.overview import AskedBy, Tally, WaitingPlace, WaitingQuery
from limpet.store.pages import PageBytes, bare, newest_since, page, walk, wanted, within
from limpet.store.protocol import (
    ChainedEvent,
    Check,
    Checked,
    Committed,
    Compacted,
    Ending,
    Erasure,
    Erasures,
    Exchange,
    FeedEntry,
    Forks,
    KeyOwner,
    Loaded,
    NameSince,
    Owner,
    Page,
    Progress,
    Query,
    Report,
    Seal,
    Standing,
    Touched,
    scope_fields,
)
from limpet.store.scopes import Scopes
from limpet.store.sqlite.file.filesystems import refuse_network
from limpet.store.system import PROCESS, in_thread, of_system

P = ParamSpec("P")
T = TypeVar("T")
_FEED_STEP: Final = 4_096  # entries that are looked at before others may run
_TOUCHED_MAX: Final = 10_000  # entries that one page of `touched` goes through
_BREATH: Final = 32  # sessions that are read before others may run
TAILS_MAX: Final = 256
_PAUSE_US: Final = BLOB_UPLOAD_SECONDS_MAX * 1_000_000


def _reading(
    read: Callable[Concatenate[FilesStore, P], T],
) -> Callable[Concatenate[FilesStore, P], Coroutine[Any, Any, T]]:
    """A read as a coroutine: made again once the keys are there, if it met sealed bodies."""

    @wraps(read)
    async def reading(store: FilesStore, /, *args: P.args, **named: P.kwargs) -> T:
        return await store.sealer.opening(partial(_once, store, read, args, named))

    return reading


async def _once(store: FilesStore, read: Any, args: Any, named: Any) -> Any:
    return store.read_now(lambda: read(store, *args, **named))


class FilesStore:
    """A directory. Open with `await FilesStore.open(path)`."""

    def __init__(
        self, state: FilesState, clock: Clock, pace: Pace | None, lock: DirectoryLock | None
    ) -> None:
        self.state, self._clock, self._pace, self._lock = state, clock, pace or Pace(), lock
        self._codec, self.sealer = state.codec, state.codec.sealer
        self.now_us: Callable[[], int] = clock
        self._channels: WeakSet[MemoryChannel] = WeakSet()
        self._writer: FilesWriter | None = None
        self._forks, self._open = PROCESS.forks, True
        self._closed = asyncio.Event()
        self._tails: dict[int, tuple[Event, ...]] = {}  # by row: the last events that were read
        self._heard: Callable[[], None] = lambda: None
        self.blobs: Blobs = FilesBlobs(self)
        self.marks: Marks = FilesMarks(self)

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        seal: Seal | None = None,
        clock: Clock | None = None,
        pace: Pace | None = None,
        check: Checked | None = None,
        read_only: bool = False,
        disk: LogDisk | None = None,
    ) -> FilesStore:
        """Open the directory, creating it if it is not there. Raises StoreError."""
        refuse_network(path)
        disk = disk or LogDisk()
        codec = Codec(seal, check)
        path = Path(os.path.abspath(path))  # noqa: PTH100, ASYNC240  # asks nothing of the disk
        state = FilesState(path, disk, codec, write=not read_only)
        lock = None
        try:
            if not read_only:
                _make_directory(disk, path)
                lock = DirectoryLock(path / LOCK)
            await in_thread(state.open)
        except BaseException as error:
            if hasattr(state, "log"):
                state.close()
            if lock is not None:
                lock.release()
            if isinstance(error, OSError):
                raise of_system(error, str(path), "read" if read_only else "change") from error
            raise
        codec.lock(sealed=state.index.ring is not None)
        return cls(state, clock or Clock(), pace, lock)

    @property
    def is_open(self) -> bool:
        return self._open

    # --- writing -------------------------------------------------------------------------------

    def commit(self, commits: Sequence[Commit]) -> Coroutine[Any, Any, tuple[Committed, ...]]:
        if self._codec.seals:
            return self._commit_sealed(commits)
        return self._write().jobs.submit(WriteJob(commits))

    async def _commit_sealed(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        """Keys first; the writer gives back what met others than were expected."""
        await self.sealer.ready(owners_of(commits, self._uid))
        while True:
            try:
                answers: tuple[Committed, ...] = await self._write().jobs.submit(WriteJob(commits))
                return answers
            except Unready as needed:
                await self.sealer.ready(needed.owners)

    def _uid(self, key: Key) -> str | None:
        entry = self.state.index.living.get(key)
        return None if entry is None else entry.head.uid

    async def delete(
        self, key: Key, *, ending: Ending = "deleted", at: Standing | None = None
    ) -> bool:
        def run(_: FilesWriter) -> bool:
            if at is not None and not self._stands(key, at):
                return False
            lines = self._end_lines(key, ending)
            self.state.put(lines)
            return bool(lines)

        done = await self._run(run)
        self._forget_partials(key)
        return done

    def _end_lines(self, key: Key, ending: Ending) -> list[LogLine]:
        entry = self.state.index.living.get(key)
        if entry is None:
            return []
        entries = [entry]
        if not is_reserved(key.app):
            log = self.state.index.living.get(checkpoints_of(key))
            entries += [log] if log is not None else []
        now_us = self._clock()
        return [EndLine(row=each.row, time=now_us, ending=ending) for each in entries]

    def _stands(self, key: Key, at: Standing) -> bool:
        session = self.state.index.living.get(key)
        log = self.state.index.living.get(checkpoints_of(key))
        if session is None:
            return False
        head = session.head
        return at.holds(head.uid, head.version, 0 if log is None else log.head.version)

    async def exchange(self, exchanges: Sequence[Exchange]) -> bool:
        def run(_: FilesWriter) -> bool:
            lines = self._exchange_lines(exchanges)
            if lines is None:
                return False
            self.state.put(lines)
            return True

        return await self.sealer.opening(lambda: self._run(run))

    def _exchange_lines(self, exchanges: Sequence[Exchange]) -> list[LogLine] | None:
        """Return the lines that hand keys over, or None if a step does not fit the keys as the
        earlier steps leave them."""
        lines: list[LogLine] = []
        index = self.state.index
        now: dict[Key, IndexedSession | None] = {}

        def holder(key: Key) -> IndexedSession | None:
            return now[key] if key in now else index.living.get(key)

        for each in exchanges:
            current, fence = holder(each.key), 0
            if each.at is not None:
                if current is None or current is not index.living.get(each.key):
                    return None
                if not self._stands(each.key, each.at):
                    return None
                fence = current.head.fence
                lines += self._end_lines(each.key, "moved")
                now[each.key] = now[checkpoints_of(each.key)] = None
            elif current is not None:
                return None
            if each.by is None:
                continue
            taking = holder(each.by)
            if taking is None or self.state.reader.key_hash(each.key) in index.erased:
                return None
            if each.by_at is not None and not self._stands(each.by, each.by_at):
                return None
            names = (each.key.app, each.key.user, each.key.id)
            fence = max(taking.head.fence, fence)
            lines.append(TakeLine(row=taking.row, session=names, fence=fence))
            if self._codec.marks and self.state.reader.holds(taking):
                mac = self._codec.head_mac(structs.replace(taking.head, key=each.key))
                assert mac is not None
                lines.append(MacLine(row=taking.row, mac=mac.hex()))
            now[each.by], now[each.key] = None, taking
        return lines

    async def compact(self, key: Key, *, upto: int) -> Compacted:
        """Events are compressed together by the compaction of the log; here the feed lets go of
        them, which is what cold means to readers."""

        def run(_: FilesWriter) -> Compacted:
            entry = self.state.reader.living(key)
            head = entry.head
            if is_stub(head.facts):  # it stays where every load reads it
                return Compacted()
            last, before = min(upto, head.version - 1), max(entry.floor, entry.cold)
            while last > before and entry.is_pending(last):
                last -= 1
            seqs = {*(entry.hot or ()), *range(before + 1, last + 1)}
            hot = tuple(sorted(filter(entry.is_pending, seqs)))
            moved = len(seqs) - len(hot)
            if moved:
                cold = max(entry.cold, last if last > before else 0)
                self.state.put([ColdLine(row=entry.row, upto=cold, hot=hot)])
            return Compacted(moved)

        return await self._run(run)

    async def unpin(self, key: Key, seqs: Sequence[int]) -> None:
        def run(_: FilesWriter) -> None:
            entry = self.state.reader.living(key)
            pinned = set((entry.pins or {}).values())
            self.state.put([PinLine(row=entry.row, seq=seq) for seq in seqs if seq in pinned])

        await self._run(run)

    async def erase(self, key: Key, *, forks: Forks = "refuse") -> Erasure | None:
        done = await self.sealer.erasing(
            lambda gone: self._run(lambda _: self._erase(key, forks, gone))
        )
        self._forget_partials(None)
        return done

    def _erase(self, key: Key, forks: Forks, gone: frozenset[KeyOwner]) -> Erasure | None:
        self.state.finish_erasures()  # one that failed is not done because it is asked for again
        mark = self.state.reader.key_hash(key)
        ends = self.state.index.ends_of(key)
        if not ends:
            return self.state.index.erased.get(mark)
        children = [fork.key for fork in self._forks_of(ends) if fork.key != key]
        if children and forks == "refuse":
            raise SessionHasForks(key, tuple(children))
        below = self._descent(key)[1:] if forks == "erase" else []
        self.sealer.require_forgotten(self._uids([key, *below]), gone)
        line = EraseLine()
        for each in below:
            self._forget(line, each, 0)
        self._forget(line, key, len(children) if forks == "keep" else 0)
        self.state.put([line])
        self.state.overwrite_erased()
        return self.state.index.erased[mark]

    def _forget(self, line: EraseLine, key: Key, forks_kept: int) -> None:
        """Put every session that has this key on the line, and its certificate."""
        ends = [e for e in self.state.index.ends_of(key) if e.row not in line.rows]
        if not ends:
            return
        line.rows = (*line.rows, *[entry.row for entry in ends])
        head, mark = ends[-1].head, self.state.reader.key_hash(key)
        made = (mark.hex(), head.version, head.link.hex(), self._clock(), forks_kept)
        line.certificates = (*line.certificates, made)
        for beside in forgotten_with(key):
            self._forget(line, beside, 0)

    def _uids(self, keys: Sequence[Key]) -> list[KeyOwner]:
        logs = [log for key in keys for log in forgotten_with(key)]
        ends = [end for key in (*keys, *logs) for end in self.state.index.ends_of(key)]
        return [end.head.uid for end in ends]

    async def erase_user(self, app: str, user: str) -> Erasures:
        done = await self.sealer.erasing(
            lambda gone: self._run(lambda _: self._erase_user(app, user, gone))
        )
        self._forget_partials(None)
        return done

    def _erase_user(self, app: str, user: str, gone: frozenset[KeyOwner]) -> Erasures:
        self.state.finish_erasures()
        index, reader, owner = self.state.index, self.state.reader, owner_of(app, user)
        mine = [
            key
            for key in dict.fromkeys([*index.deleted, *index.living])
            if (key.app, key.user) == (app, user) or (is_reserved(key.app) and key.user == owner)
        ]
        ends = [end for key in mine for end in index.ends_of(key)]
        left = [fork.key for fork in self._forks_of(ends) if fork.key not in set(mine)]
        self.sealer.require_forgotten([*self._uids(mine), scope_owner(app, user)], gone)
        line = EraseLine()
        for key in mine:
            kept = [f for f in self._forks_of(index.ends_of(key)) if f.key != key]
            self._forget(line, key, len(kept))
        names = len(index.names.get((app, user), {}))
        mark, own = reader.user_hash(app, user), set()
        line.owner = mark.hex() if names else ""
        own = {reader.key_hash(key) for key in mine if not is_reserved(key.app)}
        done = [
            Erasure(bytes.fromhex(m), v, bytes.fromhex(link), at, kept)
            for m, v, link, at, kept in line.certificates
        ]
        now_us = self._clock()
        erased = Erasures.of(mark, done, own, at_us=now_us, names=names, forks=left)
        if not done and not names and mark in index.erased:
            return structs.replace(erased, user=index.erased[mark])
        whole = erased.user
        made = (mark.hex(), whole.version, whole.link.hex(), whole.erased_us, whole.forks_kept)
        line.certificates = (*line.certificates, made)
        self.state.put([line])
        self.state.overwrite_erased()
        return erased

    def _forks_of(self, entries: Iterable[IndexedSession]) -> list[IndexedSession]:
        """The living ones, the oldest first; where one was deleted, its own in its place."""
        forks_below: list[IndexedSession] = []
        living, by_row = self.state.index.living, self.state.index.by_row
        for entry in entries:
            below: list[IndexedSession] = []
            for fork in entry.forks or ():
                if living.get(fork.key) is fork:
                    below.append(fork)
                elif by_row.get(fork.row) is fork:
                    below += self._forks_of([fork])
            forks_below += sorted(below, key=lambda fork: (fork.head.created_us, fork.row))
        return forks_below

    def _descent(self, key: Key) -> list[Key]:
        """The key, and those of all forks of what has it, of their forks, and so on."""
        family = [key]
        for each in family:  # grows as it is walked
            forks = [fork.key for fork in self._forks_of(self.state.index.ends_of(each))]
            family += [of for of in dict.fromkeys(forks) if of not in family]
        return family

    # --- leases --------------------------------------------------------------------------------

    async def claim(
        self, worker: str, *, limit: int, lease_seconds: float, app: str | None = None
    ) -> tuple[Lease, ...]:
        def run(_: FilesWriter) -> tuple[Lease, ...]:
            now_us = self._clock()
            self._measure_again(now_us)
            until_us = now_us + span_us(lease_seconds)
            index = self.state.index
            entries = [index.by_row[row] for row in islice(index.due(app, now_us), limit)]
            heads = [taken(entry.head, worker, now_us, until_us) for entry in entries]
            self._put_heads(heads)
            return tuple([lease_of(head, lease_seconds, now_us) for head in heads])

        return await self._run(run, "lease")

    async def renew(
        self, leases: Sequence[Lease], lease_seconds: float | None
    ) -> tuple[Lease | LimpetError, ...]:
        def run(_: FilesWriter) -> tuple[Lease | LimpetError, ...]:
            # A lease ends with the process that writes, so its end need not outlive it: nothing
            # is written.
            return tuple([self._renew(lease, lease_seconds) for lease in leases])

        return await self._run(run)

    def _renew(self, lease: Lease, lease_seconds: float | None) -> Lease | LimpetError:
        now_us = self._clock()
        seconds = lease.lease_seconds if lease_seconds is None else lease_seconds
        until_us = now_us + span_us(seconds)
        try:
            entry = self.state.reader.living(lease.key)
            self.state.set_head(entry, renewed(entry.head, lease, now_us, until_us))
        except SessionError as error:
            return error
        return lasting(lease, until_us, seconds)

    async def release(self, lease: Lease, retry_seconds: float | None = None) -> bool:
        def run(_: FilesWriter) -> bool:
            entry = self.state.index.living.get(lease.key)
            if entry is None:
                return False
            now_us = self._clock()
            retry_us = None if retry_seconds is None else now_us + span_us(retry_seconds)
            after = given_back(entry.head, lease, now_us, retry_us)
            if after is not None:
                self._put_heads([after])
            return after is not None

        return await self._run(run)

    async def acquire(self, key: Key, worker: str, lease_seconds: float) -> Lease:
        def run(_: FilesWriter) -> Lease:
            now_us = self._clock()
            until_us = now_us + span_us(lease_seconds)
            entry = self.state.reader.living(key)
            try:
                head = acquired(entry.head, worker, now_us, until_us)
            except SessionError:
                self._measure_again(now_us)
                head = acquired(entry.head, worker, now_us, until_us)
            self._put_heads([head])
            return lease_of(head, lease_seconds, now_us, lock=True)

        return await self._run(run, "lease")

    def _put_heads(self, heads: Sequence[Head]) -> None:
        """Leases are in the log because fences are: none is given out twice."""
        living = self.state.index.living
        self.state.put([lease_line(living[head.key].row, head) for head in heads])

    def _measure_again(self, now_us: int) -> None:
        """Leases of a clock that was set back since: nobody waits for the time it was ahead."""
        for row in list(self.state.index.leased):
            entry = self.state.index.by_row[row]
            if is_ahead(entry.head, now_us):
                self.state.set_head(entry, measured_again(entry.head, now_us))

    @_reading
    def expired(
        self, *, limit: int, after: Place | None = None
    ) -> tuple[tuple[Key, ...], Place | None]:
        now_us, index = self._clock(), self.state.index
        beyond = None if after is None else after[0] << ROW_BITS | after[1]
        overdue: list[tuple[int, IndexedSession]] = []
        for item in index.expired(now_us, beyond):
            entry = index.by_row[row_of(item)]
            if not is_leased(entry.head, now_us):
                overdue.append((item, entry))
                if len(overdue) == limit:
                    break
        last = (overdue[-1][0] >> ROW_BITS, overdue[-1][1].row) if len(overdue) == limit else None
        return tuple([entry.key for _, entry in overdue]), last

    @_reading
    def waiting(
        self, query: WaitingQuery, *, limit: int, after: WaitingPlace | None = None
    ) -> tuple[tuple[AskedBy, ...], WaitingPlace | None]:
        requests = sorted(
            ((request.label, entry.row), AskedBy(entry.key, request))
            for entry in self.state.index.asking()
            if _in_app(entry.key, query.app) and query.user in (None, entry.key.user)
            if departure(entry.head.facts) is None
            for request in open_in(entry.head.facts)
            if query.kind in (None, request.kind)
        )
        met = [each for each in requests if after is None or each[0] > after]
        more = met[limit - 1][0] if len(met) > limit else None
        return tuple([asked for _, asked in met[:limit]]), more

    @_reading
    def tally(self, app: str | None, *, limit: int) -> tuple[Tally, ...]:
        now_us = self._clock()
        counted: Counter[tuple[Phase, str, Readiness, bool]] = Counter()
        mine = (e.head for e in self.state.index.living.values() if _in_app(e.key, app))
        for head in islice((h for h in mine if departure(h.facts) is None), limit):
            stop, ready = run_in(head.facts).get("stop", ""), readiness(head, now_us)
            counted[head.phase, stop, ready, head.pending > 0] += 1
        return tuple([Tally(*kind, sessions=count) for kind, count in counted.items()])

    # --- reading -------------------------------------------------------------------------------

    @_reading
    def load(
        self,
        key: Key,
        *,
        tail: int,
        since_us: int | None = None,
        scopes: bool = True,
        at_least: str = "",
    ) -> Loaded:
        return self._load(key, tail, since_us, scopes=scopes)

    @_reading
    def head(self, key: Key) -> Head:
        reader = self.state.reader
        entry = reader.living(key)
        if reader.cached(entry) is None and not reader.holds(entry):  # what is cached was compared
            raise SessionCorrupt(key, f"its head {UNHELD}")
        return entry.head

    @_reading
    def keys_with(self, uid: str) -> tuple[Key, ...]:
        begins, keys = packed_beginning(uid), list[Key]()
        for key, entry in self.state.index.living.items():
            held = entry.held
            if held.startswith(begins) if isinstance(held, bytes) else held.uid == uid:
                keys.append(key)
        return tuple(keys)

    def _load(self, key: Key, tail: int, since_us: int | None, *, scopes: bool) -> Loaded:
        reader = self.state.reader
        entry = reader.living(key)  # first: what is gone needs no keys of its names
        names = reader.scopes(key.app, key.user) if scopes else Scopes()
        checkpoint = reader.checkpoint(key) if scopes else None
        fold = reader.fold(entry)
        events = newest_since(self._newest(entry, tail, since_us), since_us)
        damaged = fold.damaged
        own = [event.seq for event in events if event.damage and event.seq > entry.floor]
        if own:
            damaged = tuple(sorted({*damaged, *own}))
        state = (fold.head, fold.fields, fold.versions, names)
        return Loaded(*state, events, damaged, checkpoint, fold.texts)

    def _newest(self, entry: IndexedSession, tail: int, since_us: int | None) -> tuple[Event, ...]:
        """The last events, as many as fit a page, ascending; from memory if all are there."""
        reader, version = self.state.reader, entry.head.version
        live = reader.cached(entry)
        count = min(tail, version)
        kept = () if live is None else tuple(live.tail)
        if kept and kept[-1].seq == version and count <= len(kept):
            return kept[len(kept) - count :]

        def back() -> Iterator[tuple[Event, int]]:
            for seq in range(version, version - count, -1):
                event, size = reader.sized(entry, seq)
                yield event, size
                if since_us is not None and 0 < event.at_us < since_us:
                    return

        return bare(within(PageBytes(), back()))[::-1]

    async def load_many(self, keys: Sequence[Key], *, tail: int) -> tuple[Loaded | None, ...]:
        sessions: list[Loaded | None] = []
        for start in range(0, len(keys), _BREATH):
            sessions += await self._load_some(keys[start : start + _BREATH], tail)
            await asyncio.sleep(0)  # they are read inline: let others run
        return tuple(sessions)

    @_reading
    def _load_some(self, keys: Sequence[Key], tail: int) -> list[Loaded | None]:
        living = self.state.index.living
        return [self._load(k, tail, None, scopes=True) if k in living else None for k in keys]

    @_reading
    def fold_at(self, key: Key, seq: int) -> Fold:
        fold = self.state.reader.fold_at(self._at(key, seq), seq)
        return self._whole(key, seq, fold)

    @_reading
    def rung(self, key: Key, seq: int) -> Fold:
        of: IndexedSession | None = self._at(key, seq)
        while of is not None and seq <= of.floor:
            of = of.parent
        fold = None if of is None else self.state.reader.rung(of, of.head, seq)
        return self._whole(key, seq, fold)

    def _at(self, key: Key, seq: int) -> IndexedSession:
        entry = self.state.reader.present(key)
        if not 1 <= seq <= entry.head.version:
            raise InvalidInput(f"session {key} has no event {seq}.")
        return entry

    def _whole(self, key: Key, seq: int, fold: Fold | None) -> Fold:
        if fold is None:
            raise SessionCorrupt(key, f"event {seq} was removed with the session it forks")
        if fold.damaged:
            raise SessionCorrupt(key, f"event {fold.damaged[0]} cannot be read")
        return fold

    @_reading
    def read(
        self, key: Key, *, after: int, limit: int, reverse: bool, types: tuple[str, ...] | None
    ) -> tuple[Event, ...]:
        reader = self.state.reader
        entry = reader.present(key)
        version = entry.head.version
        seqs = range(min(after - 1 if after else version, version), 0, -1)
        if not reverse:
            seqs = range(after + 1, version + 1)
        if types is None and reverse:
            return self._read_back(entry, version, seqs, limit)
        matching: Iterable[int] = seqs
        if types is not None:
            matching = (seq for seq in seqs if wanted(reader.type_of(entry, seq), types))
        return page(reader.sized(entry, seq) for seq in islice(matching, limit))

    def _read_back(
        self, entry: IndexedSession, version: int, seqs: range, limit: int
    ) -> tuple[Event, ...]:
        """Events before one, descending. The last ones are asked for again and again: they are
        remembered, unless one of them could not be read."""
        live, want = self.state.reader.cached(entry), min(limit, len(seqs))
        link = entry.head.link
        for kept in (() if live is None else live.tail, self._tails.get(entry.row, ())):
            if kept and want and kept[-1].seq == version and kept[-1].link == link:
                first = kept[0].seq
                if seqs[want - 1] >= first:
                    return tuple([kept[seq - first] for seq in seqs[:want]])
        sized = within(PageBytes(), (self.state.reader.sized(entry, seq) for seq in seqs[:want]))
        events = bare(sized)
        small = len(events) <= TAIL_MAX and sum([n for _, n in sized]) <= TAIL_MAX * TAIL_BYTES_MAX
        if events and events[0].seq == version and small and not any([e.damage for e in events]):
            if len(self._tails) >= TAILS_MAX:
                self._tails.clear()
            self._tails[entry.row] = events[::-1]
        return events

    @_reading
    def read_ids(self, key: Key, ids: Sequence[str]) -> tuple[Event, ...]:
        reader = self.state.reader
        entry = reader.present(key)
        seqs = [reader.seq_of(entry, id) for id in ids]
        return tuple([reader.event(entry, seq) for seq in seqs if seq is not None])

    @_reading
    def pending_inputs(self, key: Key, *, limit: int) -> tuple[Event, ...]:
        reader = self.state.reader
        entry = reader.present(key)
        waiting = sorted(entry.pending or ())[:limit]
        return page(reader.sized(entry, seq) for seq in waiting)

    @_reading
    def records(self, key: Key, *, after: int, limit: int) -> tuple[ChainedEvent, ...]:
        reader = self.state.reader
        entry = reader.living(key)
        room, events = PageBytes(), list[ChainedEvent]()
        for seq in range(max(after, entry.floor) + 1, entry.head.version + 1):
            try:
                record = reader.record(entry, seq)[0]
            except Damaged:
                event = reader.event(entry, seq)
                record = ChainedEvent(event, None, b"", b"")
            events.append(record.undecoded)
            room.used += len(record.raw or b"")
            if len(events) == limit or room.full:
                break
        return tuple(events)

    @_reading
    def base(self, key: Key) -> Base | None:
        entry = self.state.reader.living(key)
        if not entry.floor:
            return None
        try:
            return self.state.reader.base(entry)
        except Damaged as error:
            raise SessionCorrupt(key, str(error)) from error

    @_reading
    def forks(self, key: Key) -> tuple[Key, ...]:
        index = self.state.index
        entries = index.deleted.get(key, [])
        if key in index.living:  # and what was archived and came back, or did not
            moved = [entry for entry in entries if entry.head.ending == "moved"]
            entries = [*moved, index.living[key]]
        return tuple([fork.key for fork in self._forks_of(entries)])

    @_reading
    def owners(self, app: str | None, *, after: Owner | None, limit: int) -> tuple[Owner, ...]:
        owners = [owner for owner in self.state.index.names if app in (None, owner[0])]
        return tuple(sorted(owner for owner in owners if after is None or owner > after)[:limit])

    @_reading
    def names_of(self, app: str, user: str) -> Mapping[str, ScopeValue]:
        reader = self.state.reader
        mine = self.state.index.names.get((app, user), {})
        if mine and self._codec.seals:
            self.sealer.require([scope_owner(app, user)])
        values = {name: reader.scope((app, user, name)) for name in mine}
        return {name: live.value for name, live in values.items() if live is not None}

    @_reading
    def naming(
        self, key: Key, name: str, *, before: int, after: int, limit: int
    ) -> tuple[Event, ...]:
        reader = self.state.reader
        entry = reader.present(key)
        seqs = range(min(before - 1, entry.head.version), after, -1)
        sized = (reader.sized(entry, seq) for seq in seqs)
        return page(islice((each for each in sized if is_naming(each[0], name)), limit))

    @_reading
    def names_since(self, key: Key, seq: int, names: Sequence[str]) -> dict[str, NameSince]:
        entry = self.state.reader.present(key)
        changes = {name: self._since(entry, key, seq, name) for name in names}
        return {name: since for name, since in changes.items() if since is not None}

    def _since(self, entry: IndexedSession, key: Key, seq: int, name: str) -> NameSince | None:
        reader, index = self.state.reader, self.state.index
        of: ScopeKey = (key.app, "" if scope_of(name) == "app" else key.user, name)
        named, at_us = reader.name(of), reader.event(entry, seq).at_us
        if named is None:
            return None
        uid, first, others = entry.head.uid, 0, False
        for version in range(named.last, 0, -1):
            try:
                line = reader.name_line(named, version)
            except Damaged:
                others = True
                continue
            if line.uid == uid:
                if line.seq <= seq:
                    break
                first = version
                continue
            writer = index.by_row.get(line.row)
            if writer is not None and writer.head.uid == line.uid:
                head = writer.head
                when_us = line.time if head.deleted_us is None else head.updated_us
                if when_us < at_us:
                    break
            others = True
        if not first:
            return None
        before = reader.scope_at(of, first - 1) if first > 1 else None
        return NameSince(before, named.last, others)

    # --- lists ---------------------------------------------------------------------------------

    @_reading
    def heads(
        self, query: Query, *, cursor: str | None, limit: int, states: bool = False
    ) -> Page[Head]:
        cursors.check(query)
        by_key = query.order == "key" or query.deleted
        rows = self._by_key(query, cursor) if by_key else self._by_time(query, cursor)
        now_us = self.now_us()
        met, last = walk(rows, lambda entry: _passes(entry.head, query, now_us), limit)
        shown: dict[Key, FrozenDict] = {}
        damaged: list[Key] = []
        if states:
            met, last = self._with_states(met, last, shown, damaged)
        heads = tuple([entry.head for entry in met])
        more = None if last is None else self._cursor(query, last, by_key=by_key)
        return Page(heads, more, shown, tuple(damaged))

    def _with_states(
        self,
        met: list[IndexedSession],
        last: IndexedSession | None,
        shown: dict[Key, FrozenDict],
        damaged: list[Key],
    ) -> tuple[list[IndexedSession], IndexedSession | None]:
        """The states of a page; it ends early once they are large."""
        reader, total = self.state.reader, 0
        if self._codec.seals:  # ask for the keys of the whole page, not for one at a time
            self.sealer.require([entry.head.uid for entry in met])
        for count, entry in enumerate(met):
            if total > limits.STATES_BYTES_MAX:
                return met[:count], met[count - 1]
            fold = reader.fold(entry)
            names = reader.scopes(entry.key.app, entry.key.user)
            total += entry.snapshot_bytes + entry.delta_bytes
            for owner in ((entry.key.app, ""), (entry.key.app, entry.key.user)):
                sizes = reader.names(*owner).values()
                total += sum([max(size, 0) + limits.STATES_NAME_BYTES for size in sizes])
            if fold.damaged:
                damaged.append(entry.key)
            else:
                shown[entry.key] = FrozenDict({**fold.fields, **scope_fields(names)})
        return met, last

    def _cursor(self, query: Query, last: IndexedSession, *, by_key: bool) -> str:
        if by_key:
            return cursors.write_key(query, last.key, last.row)
        head = last.head
        mark = head.updated_us if query.order == "updated" else head.created_us
        return cursors.write(query, mark, last.row)

    def _by_phase(self, query: Query, cursor: str | None) -> Iterator[IndexedSession]:
        """Yield sessions in the order of rows, as the index of phases has them in each app."""
        index, low, high = self.state.index, None, None
        if cursor is not None:
            row = cursors.read(cursor, query)[1]
            low, high = (None, row) if query.reverse else (row, None)
        apps: Iterable[str] = [query.app or ""]
        if query.app is None:
            every = index.apps.walk(None, reverse=False)
            apps = [app for app in every if query.reserved or not is_reserved(app)]
        orders = [index.standing(app, query.phase or "") for app in apps]
        parts = [order.walk(low=low, high=high, reverse=query.reverse) for order in orders]
        for item in merge(*parts, reverse=query.reverse):
            yield index.by_row[item]

    def _by_time(self, query: Query, cursor: str | None) -> Iterator[IndexedSession]:
        if cursors.by_phase(query):
            yield from self._by_phase(query, cursor)
            return
        index = self.state.index
        order: Ordered
        rest: dict[str, str] = {}
        if query.labels:
            (name, value), *more = query.labels.items()
            rest = dict(more)
            order = index.labeled(query.app or "", query.user, name, value)
        elif query.order == "updated":
            order = index.updated(query.app, query.user)
        else:
            order = index.created(query.app, query.user)
        own_us = query.updated_after_us if query.order == "updated" else query.created_after_us
        low = None if own_us is None else (own_us + 1 << ROW_BITS) - 1
        high = None
        if query.order != "updated" and query.created_before_us is not None:
            high = query.created_before_us << ROW_BITS
        if cursor is not None:
            at_us, row = cursors.read(cursor, query)
            at = at_us << ROW_BITS | row
            if query.reverse:
                high = at if high is None else min(high, at)
            else:
                low = at if low is None else max(low, at)
        for item in order.walk(low=low, high=high, reverse=query.reverse):
            entry = index.by_row[row_of(item)]
            if query.app is None and is_reserved(entry.key.app) and not query.reserved:
                continue
            if rest and not rest.items() <= entry.head.indexed_labels.items():
                continue
            yield entry

    def _by_key(self, query: Query, cursor: str | None) -> Iterator[IndexedSession]:
        index = self.state.index
        at = None if cursor is None else cursors.read_key(cursor, query)
        if query.deleted:
            keys = sorted(index.deleted, reverse=query.reverse)
            for key in keys:
                if _owns(key, query):
                    for entry in sorted(
                        index.deleted[key], key=lambda each: each.row, reverse=query.reverse
                    ):
                        place = (key, entry.row)
                        if at is None or (place < at if query.reverse else place > at):
                            yield entry
            return
        apps: Iterable[str] = index.apps.walk(at and at[0].app, reverse=query.reverse)
        for app in apps if query.app is None else [query.app]:
            if query.app is None and is_reserved(app) and not query.reserved:
                continue
            low = at[0].user if at is not None and at[0].app == app else None
            tree = index.users.get(app)
            users = () if tree is None else tree.walk(low, reverse=query.reverse)
            for user in users if query.user is None else [query.user]:
                yield from self._ids(query, app, user, at)

    def _ids(
        self, query: Query, app: str, user: str, at: tuple[Key, int] | None
    ) -> Iterator[IndexedSession]:
        index = self.state.index
        start = at[0].id if at is not None and (at[0].app, at[0].user) == (app, user) else None
        edge = query.prefix if not query.reverse else cursors.prefix_end(query.prefix)
        if query.prefix and start is None:
            start = edge
        for id in walked(index.ids_of(app, user), start, reverse=query.reverse):
            if query.prefix and not id.startswith(query.prefix):
                beyond = id < query.prefix if query.reverse else id > query.prefix
                if beyond:
                    return
                continue
            entry = index.living[Key(app, user, id)]
            place = (entry.key, entry.row)
            if at is None or (place < at if query.reverse else place > at):
                yield entry

    # --- the feed ------------------------------------------------------------------------------

    async def changes(
        self, after: str | None, *, app: str | None, key: Key | None, limit: int
    ) -> tuple[tuple[FeedEntry, ...], str]:
        start = self.read_now(lambda: self._feed_start(after))
        entries: list[FeedEntry] = []
        room = PageBytes()
        while True:
            step = partial(self._feed_step, start, app, key, limit, entries, room)
            start, done = await self.sealer.opening(partial(_awaited, self, step))
            if done:
                return tuple(entries), cursors.write_position(start)
            await asyncio.sleep(0)  # a stretch of the log was looked at: let others run

    def _feed_start(self, after: str | None) -> int:
        start = 0 if after is None else cursors.read_position(after, 1)[0]
        if after is not None and start > self._feed_end():
            raise PositionUnknown(after)
        return start

    def _feed_end(self) -> int:
        return self.state.index.feed_first - 1 + len(self.state.index.feed)

    def _feed_step(
        self,
        start: int,
        app: str | None,
        key: Key | None,
        limit: int,
        entries: list[FeedEntry],
        room: PageBytes,
    ) -> tuple[int, bool]:
        """Look at some entries beyond a position: where it ended, and whether the page is whole."""
        index, reader = self.state.index, self.state.reader
        place = start
        for place, item in self._feed(start, _FEED_STEP):
            row, seq = item >> 32, item & 0xFFFF_FFFF
            entry = index.by_row.get(row)
            if entry is None or index.living.get(entry.key) is not entry or not entry.is_hot(seq):
                continue
            of = entry.key
            if of != key if key is not None else not _in_app(of, app):
                continue
            event, size = reader.sized(entry, seq)
            entries.append(FeedEntry(cursors.write_position(place), of, event))
            room.used += size
            if len(entries) == limit or room.full:
                return place, True
        return place, place >= self._feed_end()

    def _feed(self, start: int, most: int) -> Iterator[tuple[int, int]]:
        """The entries beyond a position, each with its own: in frames first, then in memory."""
        index = self.state.index
        place = start + 1
        stop = min(start + most, self._feed_end())
        while place <= stop:
            if place >= index.feed_first:
                yield place, index.feed[place - index.feed_first]
                place += 1
                continue
            earlier = [each for each in index.feed_frames if each[0] <= place]
            first, at = earlier[-1]
            later = [each[0] for each in index.feed_frames if each[0] > place]
            end = min([*later, index.feed_first])
            try:
                numbers = self.state.feed_frame(at)
            except Damaged:
                place = end  # reported by verify
                continue
            while place < min(end, stop + 1, first + len(numbers)):
                yield place, numbers[place - first]
                place += 1
            if place >= first + len(numbers):  # a restore has left a gap
                place = max(place, end)
                stop = max(stop, min(place + most, self._feed_end()))

    @_reading
    def touched(self, after: str) -> Touched:
        index, start = self.state.index, self._feed_start(after)
        newest: dict[Key, int] = {}
        place = start
        for at, item in self._feed(start, _TOUCHED_MAX):
            place = at
            entry = index.by_row.get(item >> 32)
            seq = item & 0xFFFF_FFFF
            if entry is None or index.living.get(entry.key) is not entry or not entry.is_hot(seq):
                continue
            newest[entry.key] = max(seq, newest.get(entry.key, 0))
        more = place < self._feed_end()
        end = cursors.write_position(place)
        return Touched(newest, end, more=more, whole=True, ended=str(index.ended))

    @_reading
    def position(self) -> str:
        return cursors.write_position(self._feed_end())

    async def identity(self) -> str:
        return self.read_now(lambda: store_identity(self.state.secret))

    def pulse(self) -> int:
        if self._lock is None and self._open:
            self.read_now(lambda: None)
        return self._feed_end() + self.state.index.ended

    def channel(self) -> MemoryChannel:
        return MemoryChannel(self._channels)

    def _forget_partials(self, key: Key | None) -> None:
        for end in self._channels:
            if key is not None:
                end.forget(key)
            else:
                end.keep(self.state.index.living)

    # --- its keys ------------------------------------------------------------------------------

    async def ring(self) -> str | None:
        return self.read_now(lambda: self.state.index.ring)

    async def bind_ring(self, id: str) -> str:
        def run(_: FilesWriter) -> str:
            if self.state.index.ring is None:
                self.state.put([RingLine(ring=id)])
            assert self.state.index.ring is not None
            return self.state.index.ring

        return await self._run(run)

    async def accept_head(self, key: Key) -> bool:
        def run(_: FilesWriter) -> bool:
            entry = self.state.reader.living(key)
            if self.state.reader.holds(entry):
                return False
            head = entry.head
            mac = self._codec.head_mac(head)
            assert mac is not None
            self.state.put([MacLine(row=entry.row, mac=mac.hex())])
            self.state.reader.forget(entry)
            return True

        return await self.sealer.opening(lambda: self._run(run))

    # --- the whole directory -------------------------------------------------------------------

    async def verify(self, key: Key | None, progress: Progress | None = None) -> Report:
        from limpet.store.coding.seal import Unavailable
        from limpet.store.oldfiles.verify import FilesVerification

        self._check()
        self.sealer.doubt()  # as a process would see it that opens the store now
        codec = self._codec.waiting(asyncio.get_running_loop())
        reading = FilesVerification(self.state, codec)
        try:
            return await in_thread(lambda: reading.run(key, progress))
        except Unavailable as failed:
            raise failed.error from failed.error.__cause__

    async def examine(self) -> tuple[Check, ...]:
        from limpet.store.oldfiles import verify

        self._check()
        return await in_thread(lambda: verify.examine(self.state, self._pace))

    @property
    def derived_directory(self) -> Path | None:
        sealed = self._codec.seals or self.state.index.ring is not None
        return None if self._lock is None or sealed else self.state.directory / SESSIONS

    async def compact_log(self) -> Compacted:
        return await self._run(lambda writes: writes.chores.run())

    def take_changed(self) -> tuple[Key, ...]:
        with self.state.lock:
            living = self.state.index.living
            changed = [entry for entry in living.values() if entry.changed]
            for entry in changed:
                entry.changed = False
            keys = dict.fromkeys([_shown(entry.key) for entry in changed])
            return tuple([key for key in keys if key in living and not is_reserved(key.app)])

    def listen_compaction(self, heard: Callable[[], None]) -> None:
        self._heard = heard

    async def backup(self, target: Path, progress: Progress | None = None) -> None:
        from limpet.store.oldfiles.backup import (
            CapturedStore,
            back_up,
            captured_store,
            refuse_place,
        )

        self._check()
        refuse_place(target)
        if self._lock is None:
            captured = captured_store(self.state, self.read_now)
        else:
            captured = await self._run(lambda _: CapturedStore(self.state))
        where = self.state.directory
        await in_thread(lambda: back_up(captured, where, target, progress))

    async def close(self) -> None:
        if not self._open:
            await self._closed.wait()
            return
        self._open = False
        try:
            if self._forks == PROCESS.forks and self._writer is not None:
                await self._writer.end()
            if self._forks == PROCESS.forks and self._lock is not None:
                await in_thread(self._finish)
        finally:
            self.state.close()
            if self._lock is not None:
                self._lock.release()
            self._closed.set()

    def _finish(self) -> None:
        """A clean end: the newlines ahead go, and an index is written if reading the log again
        would take the next process long."""
        try:
            with self.state.lock:
                finish(self.state)
        except OSError:
            pass  # it costs the next process time, nothing else

    # --- private -------------------------------------------------------------------------------

    def _check(self) -> None:
        if not self._open:
            raise StoreClosed
        if self._forks != PROCESS.forks:
            raise StoreForked

    def read_now(self, query: Callable[[], T]) -> T:
        """Run a read, with errors of the system translated."""
        self._check()
        where = str(self.state.directory)
        try:
            return self.state.read(query)
        except (LimpetError, MemoryError, Awaited):
            raise
        except OSError as error:
            raise of_system(error, where, "read") from error
        except Exception as error:  # what is stored cannot be what was written
            raise StoreCorrupt(where, repr(error)) from error

    async def _run(self, run: Callable[[FilesWriter], T], asked: Asked = "change") -> T:
        """Run a function on the writer's thread, between two batches, under the lock."""
        result: T = await self._write().jobs.submit(WriterCall(run, asked))
        return result

    def _write(self) -> FilesWriter:
        if not self._open or self._forks != PROCESS.forks:
            self._check()
        writer = self._writer
        if writer is None or writer.jobs.failure is not None:
            if self._codec.locked:
                refuse_locked(str(self.state.directory))
            if self._lock is None:
                why = "it was opened read-only; reopen it to write"
                raise StoreReadOnly(str(self.state.directory), why)
            writer = self._writer = FilesWriter(self.state, self._clock, self._pace)
            writer.chores = Compaction(self.state, self._clock, lambda: self._heard())
            writer.start()
        return writer


async def _awaited(store: FilesStore, step: Callable[[], T]) -> T:
    return store.read_now(step)


def _make_directory(disk: LogDisk, path: Path) -> None:
    try:
        disk.make_directory(path)
    except (FileExistsError, NotADirectoryError) as error:
        reason = f"{path if path.exists() else path.parent} is a file; name a directory"
        raise StoreUnopened(str(path), reason) from error


def _in_app(key: Key, app: str | None) -> bool:
    return not is_reserved(key.app) if app is None else key.app == app


def _shown(key: Key) -> Key:
    """The session in whose files a log is shown: its own, or that of its checkpoints."""
    owner = owned_by(key.user) if key.app == CHECKPOINTS else None
    return key if owner is None else Key(*owner, key.id)


def _owns(key: Key, query: Query) -> bool:
    if query.app is None and is_reserved(key.app) and not query.reserved:
        return False
    owned = query.app in (None, key.app) and query.user in (None, key.user)
    return owned and key.id.startswith(query.prefix)


def _passes(head: Head, query: Query, now_us: int) -> bool:
    times = (head.created_us, head.updated_us)
    kept = cursors.passes(query, *times, head.schema_version, head.phase)
    return kept and cursors.works(query, head, now_us)


# --- marks ---------------------------------------------------------------------------------------


class FilesMarks:
    """Marks: a line each, the newest counts."""

    def __init__(self, store: FilesStore) -> None:
        self._store = store

    async def once(self, space: str, name: str, until_us: int, value: int = 0) -> bool:
        def run(_: FilesWriter) -> bool:
            now_us = self._store.now_us()
            if until_us <= now_us or self._living(space, name, now_us) is not None:
                return False
            self._put(Mark(space, name, value, until_us), now_us)
            return True

        return await self._store._run(run)

    async def put(self, space: str, name: str, until_us: int, value: int = 0) -> None:
        def run(_: FilesWriter) -> None:
            self._put(Mark(space, name, value, until_us), self._store.now_us())

        await self._store._run(run)

    async def add(self, space: str, name: str, until_us: int, by: int = 1) -> int:
        def run(_: FilesWriter) -> int:
            now_us = self._store.now_us()
            before = self._living(space, name, now_us)
            mark = Mark(space, name, added(0, by), until_us)
            if before is not None:
                mark = Mark(space, name, added(before.value, by), before.until_us)
            self._put(mark, now_us)
            return mark.value

        return await self._store._run(run)

    async def get(self, space: str, name: str) -> Mark | None:
        now_us = self._store.now_us()
        return self._store.read_now(lambda: self._living(space, name, now_us))

    async def sweep(self, limit: int) -> int:
        def run(_: FilesWriter) -> int:
            ended = self._ended(self._store.now_us(), limit)
            self._store.state.put([MarkLine(space=m.space, name=m.name) for m in ended])
            return len(ended)

        return await self._store._run(run)

    def _put(self, mark: Mark, now_us: int) -> None:
        ended = self._ended(now_us, MARKS_SWEPT)
        gone: list[LogLine] = [MarkLine(space=m.space, name=m.name) for m in ended]
        made = MarkLine(space=mark.space, name=mark.name, value=mark.value, until=mark.until_us)
        self._store.state.put([*gone, made])

    def _ended(self, now_us: int, limit: int) -> list[Mark]:
        marks = self._store.state.index.marks.values()
        return sorted(
            [mark for mark in marks if mark.until_us <= now_us], key=lambda mark: mark.until_us
        )[:limit]

    def _living(self, space: str, name: str, now_us: int) -> Mark | None:
        mark = self._store.state.index.marks.get((space, name))
        return None if mark is None or mark.until_us <= now_us else mark


# --- blobs ---------------------------------------------------------------------------------------


class FilesBlobs:
    """Blobs: a file for each chunk, and a line that makes the blob visible."""

    def __init__(self, store: FilesStore) -> None:
        self._store, self.codec = store, store.state.codec
        self._uploads: dict[str, tuple[int, int, int]] = {}  # row, chunks, and when the last came

    @opening
    async def put_chunk(self, key: Key, upload: str, number: int, data: bytes) -> None:
        entry = self._store.read_now(lambda: self._living(key))
        uid = entry.head.uid
        packed = await in_thread(lambda: pack_chunk(self.codec, uid, upload, number, data))

        def run(_: FilesWriter) -> None:
            self._same(key, entry)
            self._sweep()
            self._check_next(key, entry, upload, number)
            self._put(entry, upload, number, packed)
            self._uploads[upload] = (entry.row, number + 1, self._store.now_us())

        await self._store._run(run)

    @opening
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
        entry = self._store.read_now(lambda: self._living(key))
        uid, number = entry.head.uid, blob.chunks - 1
        packed = await in_thread(lambda: pack_chunk(self.codec, uid, upload, number, last))

        def run(_: FilesWriter) -> Blob:
            self._same(key, entry)
            head = entry.head
            if at is None:
                check_open(head)
            if fence is not None and not admits(head, fence, self._store.now_us()):
                raise SessionFenced(key, fence, head.fence)
            self._sweep()
            before = (entry.blobs or {}).get(blob.hash)
            if before is not None:  # the same content: its chunks are there, these are not needed
                self._drop(upload)
                return read_blob(self.codec, key, uid, before)
            self._check_next(key, entry, upload, number)
            self._put(entry, upload, number, packed)
            made = structs.replace(blob, version=head.version if at is None else at)
            line = BlobLine(row=entry.row, hash=blob.hash, version=made.version)
            line.chunks, line.upload = blob.chunks, upload
            line.put(*pack_blob(self.codec, uid, upload, made))
            self._store.state.put([line])
            self._uploads.pop(upload, None)
            return made

        return await self._store._run(run)

    async def drop(self, key: Key, upload: str) -> None:
        await self._store._run(lambda _: self._drop(upload))

    @opening
    async def find(self, key: Key, hash: str, *, own: bool = False) -> Blob | None:
        seen = self._store.read_now(lambda: self._seen(key, hash, own=own))
        return None if seen is None else read_blob(self.codec, key, seen[0].head.uid, seen[1])

    @opening
    async def chunk(self, key: Key, hash: str, number: int) -> bytes | None:
        seen = self._store.read_now(lambda: self._seen(key, hash, own=False))
        if seen is None or not 0 <= number < seen[1].chunks:
            return None
        entry, row = seen
        uid, disk = entry.head.uid, self._store.state.disk
        place = self._path(entry, row.upload) / str(number)
        try:
            packed = await in_thread(lambda: chunk_in(disk, place))
            return await in_thread(
                lambda: unpack_chunk(self.codec, uid, row.upload, number, packed)
            )
        except Damaged as error:
            raise SessionCorrupt(key, f"chunk {number} of blob {hash} {error}") from error

    @opening
    async def page(self, key: Key, *, after: str, limit: int) -> tuple[Blob, ...]:
        entry = self._store.read_now(lambda: self._living(key))
        own = entry.blobs or {}
        hashes = [hash for hash in sorted(own) if hash > after][:limit]
        return tuple([read_blob(self.codec, key, entry.head.uid, own[hash]) for hash in hashes])

    async def keys(self, app: str | None, *, after: Key | None, limit: int) -> tuple[Key, ...]:
        def read() -> list[Key]:
            living = self._store.state.index.living
            return [key for key, entry in living.items() if entry.blobs and app in (None, key.app)]

        keys = sorted(self._store.read_now(read))
        return tuple([key for key in keys if after is None or key > after][:limit])

    def _living(self, key: Key) -> IndexedSession:
        return self._store.state.reader.living(key)

    def _same(self, key: Key, entry: IndexedSession) -> None:
        """The session that a chunk was sealed for, not another that has its key by now."""
        if self._living(key) is not entry:
            raise SessionDeleted(key)

    def _seen(self, key: Key, hash: str, *, own: bool) -> tuple[IndexedSession, BlobRow] | None:
        """The blob of the session, or of its parents up to where it goes on from."""
        entry: IndexedSession | None = self._store.state.reader.present(key)
        ceiling: int | None = None
        while entry is not None:
            row = (entry.blobs or {}).get(hash)
            if row is not None and (ceiling is None or row.version < ceiling):
                return entry, row
            if own:
                return None
            ceiling = entry.floor if ceiling is None else min(ceiling, entry.floor)
            entry = entry.parent
        return None

    def _check_next(self, key: Key, entry: IndexedSession, upload: str, number: int) -> None:
        row, chunks, _ = self._uploads.get(upload, (entry.row, 0, 0))
        if chunks != number or row != entry.row:
            raise UploadLost(key)

    def _put(
        self, entry: IndexedSession, upload: str, number: int, packed: tuple[int, bytes, int]
    ) -> None:
        path, disk = self._path(entry, upload), self._store.state.disk
        disk.make_directory(path)
        disk.put_file(path / str(number), msgspec.msgpack.encode(packed))
        if number == 0:  # the names above it, too
            disk.sync_directory(path.parent)
            disk.sync_directory(path.parent.parent)
            disk.sync_directory(self._store.state.directory)

    def _path(self, entry: IndexedSession, upload: str) -> Path:
        return self._store.state.directory / BLOBS / str(entry.row) / upload_name(upload)

    def _drop(self, upload: str) -> None:
        begun = self._uploads.pop(upload, None)
        if begun is not None:
            place = self._store.state.directory / BLOBS / str(begun[0]) / upload_name(upload)
            shutil.rmtree(place, ignore_errors=True)

    def _sweep(self) -> None:
        before_us = self._store.now_us() - _PAUSE_US
        for upload, (_, _, at_us) in list(self._uploads.items()):
            if at_us < before_us:
                self._drop(upload)
