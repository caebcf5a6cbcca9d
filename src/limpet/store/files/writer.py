"""The writer of a log store: commits that wait together become one write and one sync.

Plan under the lock, write and sync without it, apply under it again: readers see the state before
or the state after, and nothing that is not durable. Whoever writes, thread or loop, holds `_hold`;
a loop never waits for it. Queue and pace are those of the SQLite store.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from limpet.errors import (
    Asked,
    LimpetError,
    SessionCorrupt,
    SessionError,
    StoreClosed,
    StoreCorrupt,
    StoreFailed,
    StoreFull,
)
from limpet.model import (
    EMPTY,
    PROCESSING,
    SALT_BYTES,
    Base,
    Commit,
    Event,
    Fold,
    FrozenDict,
    Head,
    Key,
    Recorded,
    ScopeKey,
    ScopeValue,
    ScopeWrite,
    decode_body,
    ops,
    processed_by,
)
from limpet.model.limits import SNAPSHOT_FLOOR_BYTES
from limpet.store import logs
from limpet.store.cache import CachedScope, CachedSession
from limpet.store.coding import bodies
from limpet.store.coding.codec import UNHELD, Codec, Damaged
from limpet.store.coding.seal import Awaited, Unready
from limpet.store.files.compaction import Compaction
from limpet.store.files.index import IndexedSession
from limpet.store.files.lines import (
    BaseLine,
    EventLine,
    LeaseLine,
    LogLine,
    NameLine,
    PinLine,
    SnapshotLine,
    changes_by_sets,
    changes_of,
    encode_line,
)
from limpet.store.files.state import FilesState, group
from limpet.store.plan import Plan
from limpet.store.protocol import Committed
from limpet.store.scopes import DELETED, Scopes, Sizes
from limpet.store.sqlite.writer import (
    BATCH_BYTES_MAX,
    BATCH_MAX,
    GATHER_SECONDS,
    SNAPSHOTS_PER_BATCH,
    JobAnswer,
    JobQueue,
    Pace,
    SQLiteJob,
    WriterCall,
    answer,
    answer_here,
)
from limpet.store.system import in_thread, is_full_disk, reported

_SALTS: Final = 1_024  # taken from the system at a time


class FilesView:
    """The planner's view of a log store."""

    def __init__(self, state: FilesState) -> None:
        self._state, self._reader = state, state.reader
        self.entries: dict[Key, IndexedSession] = {}

    def fold(self, key: Key, *, reuse: bool = False) -> Fold | None:
        entry = self._reader.find(key, reuse=reuse)
        if entry is None:
            return None
        self.entries[key] = entry
        known = not self._state.codec.marks or self._reader.cached(entry) is not None
        if not known and not self._reader.holds(entry):
            raise SessionCorrupt(key, f"its head {UNHELD}")
        return self._reader.fold(entry)

    def ended(self, key: Key, uid: str) -> bool:
        return any([e.head.uid == uid for e in self._state.index.deleted.get(key, ())])

    def link_at(self, key: Key, seq: int) -> bytes | None:
        entry = self._state.index.living.get(key)
        if entry is None or not 1 <= seq <= entry.head.version:
            return None
        return self._reader.link_at(entry, seq)

    def recorded(self, key: Key, id: str) -> Event | None:
        entry = self._state.index.living.get(key)
        seq = None if entry is None else self._reader.seq_of(entry, id)
        return None if entry is None or seq is None else self._reader.event(entry, seq)

    def pending(self, key: Key, seq: int) -> bool:
        entry = self._state.index.living.get(key)
        return entry is not None and entry.is_pending(seq)

    def scope(self, key: ScopeKey) -> ScopeValue | None:
        live = self._reader.scope(key)
        return None if live is None else live.value

    def scope_version(self, key: ScopeKey) -> int:
        entry = self._reader.name(key)
        return 0 if entry is None else entry.last

    def scopes(self, app: str, user: str) -> Scopes:
        return self._reader.scopes(app, user)

    def names(self, app: str, user: str) -> Sizes:
        return self._reader.names(app, user)


class FilesBatch:
    """Commits of several callers on their way into the log: each caller's lines are a group."""

    def __init__(self, state: FilesState, now_us: int, salt: Callable[[], bytes]) -> None:
        self._state, self._codec = state, state.codec
        self._view = FilesView(state)
        self.plan = Plan(self._view, now_us, salt)
        self.lines: list[LogLine] = []
        self.places: list[int] = []
        self._heads: dict[int, Head] = {}  # by place in `lines`: the head that an event leaves
        self._recorded: dict[int, Recorded] = {}
        self._now: dict[Key, tuple[int, Head | None, Any]] = {}  # row, head and fields by now
        self._rows = state.index.rows
        self._scopes: dict[ScopeKey, CachedScope] = {}

    def add(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        """Plan one caller's commits and make their lines. Nothing is left of what is refused."""
        plan = self.plan
        marks = (len(plan.records), len(plan.writes), len(plan.pins))
        answers = plan.add(commits)
        if len(commits) == 1 and self._add_plain(commits[0], marks):
            return answers
        records = plan.records[marks[0] :]
        lines: list[LogLine] = []
        last = {key: place for place, (key, _) in enumerate(records)}
        writes: dict[tuple[Key, int], list[ScopeWrite]] = {}
        for key, write in plan.writes[marks[1] :]:
            writes.setdefault((key, write.seq), []).append(write)
        start = len(self.lines)
        for place, (key, rec) in enumerate(records):
            final = plan.folds[key] if last[key] == place else None
            row, before, fields = self._stand(key)
            if before is None and (base := plan.bases.get(key)) is not None and row > self._rows:
                lines.append(self._base_line(row, key, rec, base))
            line, fields = self._event_line(row, key, rec, before, fields, final)
            self._recorded[start + len(lines)] = rec
            if final is not None:
                self._heads[start + len(lines)] = final.head
            lines.append(line)
            if row > self._rows:
                self._rows = row
            head = before if final is None else final.head
            self._now[key] = (row, head or _ANY, fields)
            for write in writes.get((key, rec.event.seq), ()):
                lines.append(self._name_line(row, plan.folds[key].head.uid, rec.event, write))
        for key in dict.fromkeys([commit.key for commit in commits if commit.release is not None]):
            head = plan.folds[key].head if key in plan.folds else None
            if head is not None:
                lines.append(lease_line(self._stand(key)[0], head))
        for key, number, fold in plan.pins[marks[2] :]:
            row = self._stand(key)[0]
            lines.append(snapshot_line(row, fold, self._codec))
            lines.append(PinLine(row=row, seq=fold.head.version, number=number))
        if lines:
            group(lines)
            self.lines += lines
        return answers

    def _add_plain(self, commit: Commit, marks: tuple[int, int, int]) -> bool:
        """The common case on the hot path: one event of a session that is there, and nothing else.
        False: it is something else."""
        plan, key = self.plan, commit.key
        counts = (len(plan.records), len(plan.writes), len(plan.pins))
        if counts != (marks[0] + 1, marks[1], marks[2]) or commit.release is not None:
            return False
        row, before, fields = self._stand(key)
        if before is None:
            return False
        rec, fold, at = plan.records[-1][1], plan.folds[key], len(self.lines)
        line, _ = self._event_line(row, key, rec, before, fields, fold)
        self._recorded[at], self._heads[at] = rec, fold.head
        self._now[key] = (row, fold.head, fold.fields)
        self.lines.append(line)
        return True

    def _stand(self, key: Key) -> tuple[int, Head | None, Any]:
        """row, head and fields of a session as this batch leaves it so far."""
        found = self._now.get(key)
        if found is None:
            entry = self._view.entries.get(key)
            if entry is None or self._state.index.living.get(key) is not entry:
                found = (self._rows + 1, None, None)
            else:
                fold = self._state.reader.fold(entry)
                found = (entry.row, fold.head, fold.fields)
            self._now[key] = found
        return found

    def _event_line(
        self,
        row: int,
        key: Key,
        rec: Recorded,
        before: Head | None,
        fields: Any,
        final: Fold | None,
    ) -> tuple[EventLine, Any]:
        event, draft = rec.event, rec.draft
        line = EventLine(
            row=row,
            session=(key.app, key.user, key.id),
            seq=event.seq,
            id=event.id,
            type=event.type,
            time=event.at_us,
            actor=event.actor,
            link=event.link.hex(),
        )
        if not draft.plain:
            line.cause, line.invocation_id = event.cause, event.invocation_id
            line.correlation_id, line.wake_id = event.correlation_id, event.wake_id
            line.input, line.adopted = event.processed is not None, draft.origin is not None
            if event.type in PROCESSING:
                data = draft.data
                if data is None:
                    data = decode_body(rec.raw).data
                line.processes = tuple(processed_by(event.type, data))
        elif event.cause or event.invocation_id or event.correlation_id or event.wake_id:
            line.cause, line.invocation_id = event.cause, event.invocation_id
            line.correlation_id, line.wake_id = event.correlation_id, event.wake_id
        changes: Any = None  # what is described, encoded with the line
        if draft.plain_ops:
            if fields is None:  # a new session
                base = self.plan.bases.get(key)
                fields = EMPTY if base is None else base.fields
            if draft.sets is not None:
                changes = changes_by_sets(fields, draft.sets)
            else:
                changes = changes_of(fields, draft.plain_ops)
            if final is not None:
                fields = final.fields
            elif draft.sets is not None:
                if type(fields) is not dict:
                    fields = dict(fields)  # ours: the events of a run change it in turn
                fields.update(draft.sets)
            else:
                own = [op for op in draft.plain_ops if ops.scope_of(str(op.path[0])) == "session"]
                fields = ops.apply(FrozenDict(fields), own)
        self._put_body(line, key, rec, changes)
        if before is None:
            head = self.plan.folds[key].head
            line.floor = head.floor
            line.created = head.created_us if head.created_us != event.at_us else 0
            base = self.plan.bases.get(key)
            if base is not None:
                line.parent = self._row_of(base)
        if final is not None:
            head = final.head
            if head.active_us != event.at_us:
                line.active = head.active_us
            if head.facts if before is None else before.facts is not head.facts:
                line.facts = Raw(encode_line(head.facts))
            mac = self._codec.head_mac(head.uid, head.version, head.link)
            line.mac = "" if mac is None else mac.hex()
        return line, fields

    def _put_body(self, line: EventLine, key: Key, rec: Recorded, changes: Any) -> None:
        codec = self._codec
        if not codec.seals:
            line.body, line.salt = Raw(rec.raw), rec.salt.hex()
            if changes:
                line.changes = changes
            return
        event, uid = rec.event, self.plan.folds[key].head.uid
        bound = (event.seq, event.at_us, rec.draft.header, event.link)
        place = codec.event_place(uid, event.id, event.type, *bound)
        plain = rec.salt + rec.raw
        if changes:
            plain += b"\n" + encode_line(changes)
        flags, stored, _ = codec.pack(plain, place)
        line.put(flags, stored, 0)
        line.digest = rec.digest.hex()

    def _row_of(self, base: Base) -> int:
        """The row of the parent, if it is here: what is adopted may come without."""
        key = base.parent
        if key in self._now:
            head = self.plan.folds[key].head if key in self.plan.folds else self._now[key][1]
            return self._now[key][0] if head is not None and head.uid == base.uid else 0
        entry = self._state.index.living.get(key)
        return entry.row if entry is not None and entry.head.uid == base.uid else 0

    def _base_line(self, row: int, key: Key, rec: Recorded, base: Base) -> BaseLine:
        line = BaseLine(row=row, session=(key.app, key.user, key.id))
        place = bodies.base_place(self.plan.folds[key].head.uid, base.floor)
        line.put(*self._codec.pack(bodies.base_body(base), place, bound=True))
        return line

    def _name_line(self, row: int, uid: str, event: Event, write: ScopeWrite) -> NameLine:
        before = self._scopes.get(write.key) or self._state.reader.scope(write.key)
        since = -1 if before is None else before.since_base
        form, raw, since_base = bodies.scope_body(write, since)
        version = write.at.version
        base = version if form != bodies.BY_OP or before is None else before.base
        self._scopes[write.key] = CachedScope(write.at, base, since_base, 0)
        place = bodies.scope_place(write.key, version, base, form, uid, write.seq)
        app, user, name = write.key
        line = NameLine(app=app, user=user, name=name, version=version, base=base, form=form)
        line.row, line.uid, line.seq, line.time = row, uid, write.seq, event.at_us
        line.size = DELETED if write.at.deleted else len(write.whole)
        flags, stored, crc = self._codec.pack(raw, place, bound=True)
        line.put(flags, stored or b'""', crc)
        if not stored:
            line.body, line.packed = UNSET, ""
        return line

    def settle(self) -> list[tuple[IndexedSession, CachedSession]]:
        """The lines are durable: apply them; the sessions that were written to."""
        state, reader, heads = self._state, self._state.reader, self._heads
        touched: dict[int, IndexedSession] = {}
        recorded = self._recorded
        for at, (place, line) in enumerate(zip(self.places, self.lines, strict=True)):
            if at not in recorded:
                state.apply(place, line)  # type: ignore[arg-type]  # one of them
                continue
            assert isinstance(line, EventLine)
            state.apply_event(place, line, heads.get(at))
            entry = state.index.by_row[line.row]
            touched[line.row] = entry
            rec, live = recorded[at], reader.cached(entry)
            if live is None:
                fold = self.plan.folds[entry.key]
                live = CachedSession(entry.row, fold, 0, 0, 0)
                reader.cache.keep(entry.key, live)
            live.add(rec)
            ids = reader.known_ids(line.row)
            if ids is not None:
                ids[line.id] = line.seq
            elif line.seq == entry.first:
                reader.keep_ids(line.row, {line.id: line.seq})
        for key, fold in self.plan.folds.items():
            written = state.index.living.get(key)
            live = None if written is None else reader.cached(written)
            if live is not None:
                live.fold = fold
                reader.cache.keep(key, live)
        for scope_key, scope in self._scopes.items():
            reader.cache.keep_scope(scope_key, scope)
        found = [(entry, reader.cached(entry)) for entry in touched.values()]
        return [(entry, live) for entry, live in found if live is not None]


_ANY: Final = Head(Key("x", "x", "x"), "", 0, b"", 0, 0, 0)  # stands for a head that is not known


def lease_line(row: int, head: Head) -> LeaseLine:
    line = LeaseLine(row=row, fence=head.fence, lease_us=head.lease_us, worker=head.worker)
    line.leased_us = head.leased_us
    return line


def snapshot_line(row: int, fold: Fold, codec: Codec) -> SnapshotLine:
    """The state of a session as a line. Raises Unready."""
    seq, packed, size = bodies.packed_snapshot(fold, codec)
    line = SnapshotLine(row=row, seq=seq, size=size)
    line.put(*packed)
    return line


class FilesWriter(threading.Thread):
    """The only one who writes to the directory."""

    def __init__(self, state: FilesState, clock: Callable[[], int], pace: Pace) -> None:
        super().__init__(name="limpet-writer", daemon=True)
        self.state, self.clock, self._pace = state, clock, pace
        self.jobs = JobQueue(self._do_here, pace)
        self._hold = threading.RLock()
        self._writing = False
        self._unsettled = False  # memory may differ from the log: it is read again
        self._due: dict[int, tuple[IndexedSession, CachedSession]] = {}  # for snapshots
        self._taken: list[SQLiteJob] = []
        self._salts: list[bytes] = []
        self.chores: Compaction = Compaction(state, clock, _nobody)

    # --- for callers, on their event loop ------------------------------------------------------

    async def end(self) -> None:
        self.jobs.end()
        await in_thread(self.join)

    def _do_here(self, jobs: list[SQLiteJob]) -> None:
        """Commit on this loop, if that is quick. What has no answer then is for the thread."""
        if not self._pace.admits(jobs):
            return
        jobs = [job for job in jobs if job.ticket and not job.future.done()]
        if not jobs or any([job.run for job in jobs]):
            return
        try:
            if self._hold.acquire(blocking=False) and not self._writing:
                self._commit_here(jobs)
        finally:
            try:  # noqa: SIM105  # no call before it, from which an interrupt could come
                self._hold.release()
            except RuntimeError:  # the thread, or another loop, has it
                pass

    def _commit_here(self, jobs: list[SQLiteJob]) -> None:
        began = self._pace.timer()
        answers: list[JobAnswer] = []
        try:
            self._commit(jobs, answers)
        except Unready as error:
            if len(jobs) == 1:
                answer_here([(jobs[0], None, error)])
            return
        except Exception as error:
            if isinstance(error, OSError) or len(jobs) == 1:
                self._log_failed(error, len(jobs))
                answer_here([(job, None, self._failure(error)) for job in jobs])
            return  # else the thread tries each alone
        except BaseException:
            if not self._writing and answers:
                answer_here(answers)
            raise
        finally:
            self._writing = False
        answer_here(answers)
        seconds = self._pace.timer() - began
        self._pace.held(jobs, seconds)
        logs.slow_commit(logs.FILES, self.state.directory, seconds, jobs)
        if self._due:
            self.jobs.wake(WriterCall(_nothing))

    # --- the thread ----------------------------------------------------------------------------

    def run(self) -> None:
        try:
            while (job := self.jobs.get()) is not None:
                with self._hold:
                    count, alone = self._work(job)
                    if alone is not None:
                        count += self._work(alone)[0]
                    self._rest()
                    self.jobs.finished(count)
            self.jobs.refuse(StoreClosed(), ())
        except BaseException as error:
            self.jobs.refuse(self._failure(error, "read"), self._taken)
            logs.FILES.error(
                "writer stopped: store=%s error=%s", self.state.directory, logs.error_name(error)
            )

    def _work(self, first: SQLiteJob) -> tuple[int, SQLiteJob | None]:
        """Do `first` and what waits behind it; a job that must run alone is handed back."""
        self._taken = [first]
        if first.run is not None:
            self._run_alone(first)
            return 1, None
        self._gather()
        batch, size, alone = [first], first.size, None
        waiting = self.jobs.waiting()
        while waiting and len(batch) < BATCH_MAX and size < BATCH_BYTES_MAX:
            job = waiting.popleft()
            self._taken.append(job)
            if job.run is not None:
                alone = job
                break
            batch.append(job)
            size += job.size
        self._pace.crowd = len(batch)
        self._run_batch([job for job in batch if job.claim()])
        return len(batch), alone

    def _gather(self) -> None:
        """Let a crowd come together, as the SQLite writer does."""
        waiting = -1
        while waiting < self.jobs.count() < self._pace.crowd - 1:
            waiting = self.jobs.count()
            time.sleep(GATHER_SECONDS)

    def _run_batch(self, jobs: list[SQLiteJob]) -> None:
        if not jobs:
            return
        began = self._pace.timer()
        answers: list[JobAnswer] = []
        try:
            self._commit(jobs, answers)
        except Exception as error:
            if len(jobs) > 1 and not isinstance(error, (OSError, MemoryError)):
                for job in jobs:  # one of them cannot be written: it fails nobody else
                    self._run_batch([job])
                return
            if isinstance(error, Unready):
                answer([(jobs[0], None, error)])
                return
            self._log_failed(error, len(jobs))
            answer([(job, None, self._failure(error)) for job in jobs])
            return
        finally:
            self._writing = False
        answer(answers)
        seconds = self._pace.timer() - began
        self._pace.note(jobs, seconds)
        logs.slow_commit(logs.FILES, self.state.directory, seconds, jobs)

    def _commit(self, jobs: Sequence[SQLiteJob], answers: list[JobAnswer]) -> None:
        """One write and one sync for all of them. If it raises an Exception, nobody's commit is
        acknowledged, and none of it is applied."""
        state = self.state
        with state.lock:
            self._resettle()
            self._writing = True
            batch = FilesBatch(state, self.clock(), self._salt)
            for job in jobs:
                try:
                    answers.append((job, batch.add(job.commits), None))
                except LimpetError as error:
                    answers.append((job, None, error))
                except (Awaited, OSError, MemoryError):
                    raise
                except Exception as error:
                    if len(jobs) > 1:
                        raise
                    raise self._failure(error) from error
        if batch.lines:
            batch.places = state.log.append(batch.lines)
            with state.lock:
                self._unsettled = True
                for entry, live in batch.settle():
                    if (
                        live.delta_bytes >= SNAPSHOT_FLOOR_BYTES
                        and live.delta_bytes >= live.snapshot_bytes
                    ):
                        self._due[entry.row] = (entry, live)
                self._unsettled = False
        self._writing = False

    def _salt(self) -> bytes:
        if not self._salts:
            drawn = os.urandom(SALT_BYTES * _SALTS)
            self._salts = [drawn[at : at + SALT_BYTES] for at in range(0, len(drawn), SALT_BYTES)]
        return self._salts.pop()

    def _resettle(self) -> None:
        """After an interrupt while lines were applied: the files say what is true."""
        if self._unsettled:
            self.state.log.close()
            self.state.load()
            self._due.clear()
            self._unsettled = False

    def _run_alone(self, job: SQLiteJob) -> None:
        if not job.claim():
            return
        assert job.run is not None
        failure: BaseException | None
        try:
            with self.state.lock:
                self._resettle()
                # Nothing is answered while a failed write may still be found in the log.
                self.state.log.clean()
                result, failure = job.run(self), None  # type: ignore[arg-type]  # made for this
        except (SessionError, Awaited) as error:
            result, failure = None, error
        except Exception as error:
            if not isinstance(error, LimpetError):
                self._log_failed(error, 0)
            result, failure = None, self._failure(error, job.asked)
        answer([(job, result, failure)])

    # --- when there is time --------------------------------------------------------------------

    def _rest(self) -> None:
        """What fails here fails for nobody and is tried again."""
        try:
            while self._due and not self.jobs.count():
                self._snapshot()
            if not self.jobs.count():
                self.chores.when_due()
        except Exception as error:
            self._due.clear()
            text = "housekeeping failed: store=%s error=%s"
            logs.FILES.warning(text, self.state.directory, logs.error_name(error))

    def _snapshot(self) -> None:
        """Write some snapshots: folds beside the log, so that a load need not read all of it."""
        lines: list[LogLine] = []
        with self.state.lock:
            for row in list(self._due)[:SNAPSHOTS_PER_BATCH]:
                entry, live = self._due.pop(row)
                current = self.state.reader.cached(entry) is live and not live.fold.damaged
                if not current or self.state.index.by_row.get(row) is not entry:
                    continue
                try:
                    line = snapshot_line(row, live.fold, self.state.codec)
                except (Unready, RecursionError, ValueError, TypeError):
                    continue  # it costs time and never data
                lines.append(line)
                live.snapshot_bytes, live.delta_bytes = line.size, 0
            if lines:
                self.state.put(lines)

    def _log_failed(self, error: BaseException, commits: int) -> None:
        text = "write failed: store=%s error=%s commits=%d"
        logs.FILES.warning(text, self.state.directory, logs.error_name(error), commits)

    def _failure(self, error: BaseException, asked: Asked = "write") -> LimpetError:
        return files_failure(error, str(self.state.directory), asked)


def files_failure(error: BaseException, where: str, asked: Asked) -> LimpetError:
    """Any error as ours. A new object, unless it is ours already."""
    if isinstance(error, LimpetError):
        return error
    failure: LimpetError = StoreFailed(where, repr(error), asked)
    if isinstance(error, OSError):
        full = is_full_disk(error)
        failure = StoreFull(where) if full else StoreFailed(where, reported(error), asked)
    elif isinstance(error, (Damaged, msgspec.MsgspecError)):
        failure = StoreCorrupt(where, str(error))
    failure.__cause__ = error
    return failure


def _nobody() -> None:
    """Nobody listens."""


def _nothing(_: object) -> None:
    """A job that only wakes the thread."""
