"""The writer of a log store: commits that wait together become one write and one sync.

Plan under the lock, write and sync without it, apply under it again: readers see the state before
or the state after, and nothing that is not durable. Whoever writes, thread or loop, holds `_hold`;
a loop never waits for it.
"""

from __future__ import annotations

import os
import threading
from binascii import hexlify
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
    ABSENT,
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
    Prepared,
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
from limpet.store.jobs import (
    SNAPSHOTS_PER_BATCH,
    JobAnswer,
    JobQueue,
    Pace,
    WriteJob,
    WriterCall,
    answer,
    answer_here,
    nothing,
)
from limpet.store.oldfiles.compaction import Compaction
from limpet.store.oldfiles.index import IndexedSession
from limpet.store.oldfiles.lines import (
    BaseLine,
    EventLine,
    FieldChange,
    LeaseLine,
    LogLine,
    NameLine,
    PinLine,
    PlainLine,
    SnapshotLine,
    change_of,
    changes_by_sets,
    changes_of,
    encode_line,
    kind_text,
    session_text,
)
from limpet.store.oldfiles.state import FilesState, group
from limpet.store.plan import Plan
from limpet.store.protocol import Committed
from limpet.store.scopes import DELETED, Scopes, Sizes
from limpet.store.system import in_thread, is_full_disk, join, reported

_SALTS: Final = 1_024  # taken from the system at a time
_JOINING_BYTES_MAX: Final = 128 * 2**10  # of a snapshot that is written with a batch


class WrittenSession:
    """A session as a batch leaves it so far."""

    __slots__ = ("_text", "entry", "fields", "head", "ids", "key", "live", "row")

    def __init__(
        self, row: int, key: Key, entry: IndexedSession | None = None, fold: Fold | None = None
    ) -> None:
        """Without an entry and a fold, the batch creates the session."""
        self.row, self.key, self.entry = row, key, entry
        self._text = None if entry is None else entry.text
        self.head = None if fold is None else fold.head
        self.fields: Any = None if fold is None else fold.fields
        # Cached once its lines are durable.
        self.live: CachedSession | None = None
        self.ids: dict[str, int] | None = None

    @property
    def text(self) -> bytes:
        """The name that lines give it: made once for as long as it is written to."""
        if self._text is None:
            key = self.key
            self._text = session_text(self.row, (key.app, key.user, key.id))
            if self.entry is not None:
                self.entry.text = self._text
        return self._text


class FilesView:
    """The planner's view of a log store."""

    __slots__ = ("_reader", "_state", "sessions")

    def __init__(self, state: FilesState) -> None:
        self._state, self._reader = state, state.reader
        self.sessions: dict[Key, WrittenSession] = {}  # that were there before the batch

    def fold(self, key: Key, *, reuse: bool = False) -> Fold | None:
        reader = self._reader
        entry = reader.find(key, reuse=reuse)
        if entry is None:
            return None
        live = reader.cached(entry)
        if live is not None:
            fold = live.fold
        else:
            if self._state.codec.marks and not reader.holds(entry):
                raise SessionCorrupt(key, f"its head {UNHELD}")
            fold = reader.fold(entry)
        self.sessions[key] = WrittenSession(entry.row, key, entry, fold)
        return fold

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
        self.lines: list[LogLine | PlainLine] = []
        self.places: list[int] = []
        # For each line, its session, the event that it records, and the head that this leaves, if
        # it is the last of its session in a group. None for other lines.
        self._recorded: list[tuple[WrittenSession, Recorded, Head | None] | None] = []
        self._sessions = self._view.sessions
        self._rows = state.index.rows
        self._scopes: dict[ScopeKey, CachedScope] = {}

    def add(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        """Plan one caller's commits and make their lines. Nothing is left of what is refused."""
        plan = self.plan
        if len(commits) == 1 and (answer := plan.add_plain(commits[0])) is not None:
            key, rec = plan.records[-1]
            session, fold = self._sessions[key], plan.folds[key]
            self.lines.append(self._line(session, key, rec, fold))
            self._recorded.append((session, rec, fold.head))
            return (answer,)
        first, writes, pins = len(plan.records), len(plan.writes), len(plan.pins)
        answers = plan.add(commits)
        self._add_group(commits, first, writes, pins)
        return answers

    def _add_group(self, commits: Sequence[Commit], first: int, writes: int, pins: int) -> None:
        """Make the lines of what was planned since these numbers of records, writes and pins."""
        plan, records = self.plan, self.plan.records[first:]
        lines: list[LogLine | PlainLine] = []
        recorded: list[tuple[WrittenSession, Recorded, Head | None] | None] = []
        last = {key: place for place, (key, _) in enumerate(records)}
        named: dict[tuple[Key, int], list[ScopeWrite]] = {}
        for key, write in plan.writes[writes:]:
            named.setdefault((key, write.seq), []).append(write)
        for place, (key, rec) in enumerate(records):
            session, final = self._session(key), plan.folds[key] if last[key] == place else None
            if session.head is None and (base := plan.bases.get(key)) is not None:
                lines.append(self._base_line(session.row, key, rec, base))
                recorded.append(None)
            shared = named.get((key, rec.event.seq), ()) if named else ()
            lines.append(self._line(session, key, rec, final, shared))
            recorded.append((session, rec, None if final is None else final.head))
            for write in shared:
                uid = plan.folds[key].head.uid
                lines.append(self._name_line(session.row, uid, rec.event, write))
                recorded.append(None)
        for key in dict.fromkeys([commit.key for commit in commits if commit.release is not None]):
            if key in plan.folds:
                lines.append(lease_line(self._session(key).row, plan.folds[key].head))
        for key, number, fold in plan.pins[pins:]:
            row = self._session(key).row
            lines.append(snapshot_line(row, fold, self._codec))
            lines.append(PinLine(row=row, seq=fold.head.version, number=number))
        group(lines)
        self.lines += lines
        self._recorded += recorded + [None] * (len(lines) - len(recorded))

    def add_first(self, lines: Sequence[LogLine]) -> None:
        """Put lines that record no event before the others, each a group of its own."""
        self.lines[:0] = lines
        self._recorded[:0] = [None] * len(lines)

    def _session(self, key: Key) -> WrittenSession:
        session = self._sessions.get(key)
        if session is None:
            self._rows += 1
            session = self._sessions[key] = WrittenSession(self._rows, key)
        return session

    def _line(
        self,
        session: WrittenSession,
        key: Key,
        rec: Recorded,
        final: Fold | None,
        shared: Sequence[ScopeWrite] = (),
    ) -> EventLine | PlainLine:
        """The line of an event. `final` is the session as the group leaves it, if the event is its
        last there; `shared` are the versions of app: and user: names that it makes."""
        event, draft, before = rec.event, rec.draft, session.head
        changes: Any = self._changes(session, key, draft, final) if draft.plain_ops else UNSET
        if shared:
            changes += self._shared_changes(shared)
        session.head = final.head if final is not None else before or _ANY
        if (
            before is None
            or self._codec.seals
            or not (draft.plain or _is_plain(draft))
            or event.cause
            or event.invocation_id
            or event.correlation_id
            or event.wake_id
            or (final is not None and final.head.facts is not before.facts)
        ):
            return self._event_line(session, key, rec, before, changes, final)
        more = b"" if changes is UNSET else b',"changes":' + encode_line(changes)
        if final is not None and final.head.active_us != event.at_us:
            more += b',"active":%d' % final.head.active_us
        text = _PLAIN_TEXT % (
            session.text,
            event.seq,
            encode_line(event.id),  # whoever chose it: a client of a server names its own
            kind_text(event.type, event.actor),
            event.at_us,
            draft.raw,
            hexlify(event.link),
            hexlify(rec.salt),
            more,
        )
        return PlainLine(session.row, event.seq, text)

    def _event_line(
        self,
        session: WrittenSession,
        key: Key,
        rec: Recorded,
        before: Head | None,
        changes: Any,
        final: Fold | None,
    ) -> EventLine:
        event, draft = rec.event, rec.draft
        line = EventLine(
            row=session.row,
            session=(key.app, key.user, key.id),
            seq=event.seq,
            id=event.id,
            type=event.type,
            time=event.at_us,
            actor=event.actor,
            link=event.link.hex(),
        )
        line.cause, line.invocation_id = event.cause, event.invocation_id
        line.correlation_id, line.wake_id = event.correlation_id, event.wake_id
        if not draft.plain:
            line.input, line.adopted = event.processed is not None, draft.origin is not None
            if event.type in PROCESSING:
                data = draft.data
                if data is None:
                    data = decode_body(rec.raw).data
                line.processes = tuple(processed_by(event.type, data))
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
            mac = self._codec.head_mac(head)
            line.mac = "" if mac is None else mac.hex()
        return line

    def _changes(
        self, session: WrittenSession, key: Key, draft: Prepared, final: Fold | None
    ) -> list[FieldChange]:
        """Describe what an event does to the fields of its session, which are then those that it
        leaves."""
        fields, sets = session.fields, draft.sets
        if fields is None:  # a new session
            base = self.plan.bases.get(key)
            fields = EMPTY if base is None else base.fields
        if sets is not None:
            changes = changes_by_sets(fields, sets, len(draft.raw))
        else:
            changes = changes_of(fields, draft.plain_ops)
        if final is not None:
            session.fields = final.fields
        elif sets is not None:
            if type(fields) is not dict:
                session.fields = fields = dict(fields)  # ours: the events of a run change it
            fields.update(sets)
        else:
            own = [op for op in draft.plain_ops if ops.scope_of(str(op.path[0])) == "session"]
            session.fields = ops.apply(FrozenDict(fields), own)
        return changes

    def _shared_changes(self, writes: Sequence[ScopeWrite]) -> list[FieldChange]:
        """Describe what an event does to app: and user: names."""
        changes, now = list[FieldChange](), dict[str, Any]()
        for write in writes:
            name = write.key[2]
            if name not in now:
                before = self._scopes.get(write.key) or self._state.reader.scope(write.key)
                if before is not None and not before.value.deleted:
                    now[name] = before.value.value
            changes.append(change_of(now, write.op))
            now[name] = ABSENT if write.at.deleted else write.at.value
        return changes

    def _put_body(self, line: EventLine, key: Key, rec: Recorded, changes: Any) -> None:
        codec = self._codec
        if not codec.seals:
            line.body, line.salt, line.changes = Raw(rec.raw), rec.salt.hex(), changes
            return
        event, uid = rec.event, self.plan.folds[key].head.uid
        bound = (event.seq, event.at_us, rec.draft.header, event.link)
        place = codec.event_place(uid, event.id, event.type, *bound)
        plain = rec.salt + rec.raw
        if changes is not UNSET:
            plain += b"\n" + encode_line(changes)
        flags, stored, _ = codec.pack(plain, place)
        line.put(flags, stored, 0)
        line.digest = rec.digest.hex()

    def _row_of(self, base: Base) -> int:
        """The row of the parent, if it is here: what is adopted may come without."""
        key = base.parent
        session = self._sessions.get(key)
        if session is not None:
            head = self.plan.folds[key].head if key in self.plan.folds else session.head
            return session.row if head is not None and head.uid == base.uid else 0
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
        state = self._state
        touched: list[tuple[IndexedSession, CachedSession]] = []
        for place, line, recorded in zip(self.places, self.lines, self._recorded, strict=True):
            if recorded is None:
                state.apply(place, line)  # type: ignore[arg-type]  # one of them
                continue
            session, rec, head = recorded
            entry, event = session.entry, rec.event
            if type(line) is PlainLine:
                assert entry is not None
                state.apply_plain(place, entry, event.seq, len(rec.draft.raw), head)
            else:
                entry = session.entry = state.apply_event(place, line, head)  # type: ignore[arg-type]  # of an event
            live = session.live
            if live is None:
                live = session.live = self._cached(entry)
                session.ids = state.reader.known_ids(entry.row)
                if session.ids is None and event.seq == entry.first:
                    session.ids = state.reader.keep_ids(entry.row)
                touched.append((entry, live))
            live.add(rec)
            if session.ids is not None:
                session.ids[event.id] = event.seq
        cache, folds = state.reader.cache, self.plan.folds
        for entry, live in touched:
            live.fold = folds[entry.key]
            cache.keep(entry.key, live)
        for scope_key, scope in self._scopes.items():
            cache.keep_scope(scope_key, scope)
        return touched

    def _cached(self, entry: IndexedSession) -> CachedSession:
        live = self._state.reader.cached(entry)
        if live is None:
            live = CachedSession(entry.row, self.plan.folds[entry.key], 0, 0, 0)
        return live


def _is_plain(draft: Prepared) -> bool:
    """True if the line of an event says no more than what it changed."""
    return not draft.input and draft.origin is None and draft.type not in PROCESSING


_PLAIN_TEXT: Final = b'%b,"seq":%d,"id":%b,%b,"time":%d,"body":%b,"link":"%b","salt":"%b"%b'
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


def _is_large(live: CachedSession) -> bool:
    """True if a snapshot may take too long for a batch that callers wait for. A state is
    seldom larger than the snapshot and the log that it comes from."""
    return live.snapshot_bytes + live.delta_bytes > _JOINING_BYTES_MAX


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
        self._taken: list[WriteJob] = []
        self._salts: list[bytes] = []
        self.chores: Compaction = Compaction(state, clock, _nobody)

    # --- for callers, on their event loop ------------------------------------------------------

    async def end(self) -> None:
        self.jobs.end()
        await in_thread(lambda: join(self))

    def _do_here(self, jobs: list[WriteJob]) -> None:
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

    def _commit_here(self, jobs: list[WriteJob]) -> None:
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
        large = self._due and any([_is_large(live) for _, live in self._due.values()])
        if large or self.chores.is_due():  # work for the thread, which would sleep on
            self.jobs.wake(WriterCall(nothing))

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

    def _work(self, first: WriteJob) -> tuple[int, WriteJob | None]:
        """Do `first` and what waits behind it; a job that must run alone is handed back."""
        self._taken = [first]
        if first.run is not None:
            self._run_alone(first)
            return 1, None
        batch, alone = self.jobs.batch(first, self._taken)
        self._run_batch([job for job in batch if job.claim()])
        return len(batch), alone

    def _run_batch(self, jobs: list[WriteJob]) -> None:
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

    def _commit(self, jobs: Sequence[WriteJob], answers: list[JobAnswer]) -> None:
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
            if batch.lines and self._due:
                try:
                    batch.add_first(self._snapshot_lines(joining=True))
                except Exception as error:  # no caller asked for it
                    self._give_up_snapshots(error)
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

    def _run_alone(self, job: WriteJob) -> None:
        if not job.claim():
            return
        assert job.run is not None
        failure: BaseException | None
        try:
            with self.state.lock:
                self._resettle()
                # Nothing is answered while a failed write may still be found in the log.
                self.state.log.clean()
                result, failure = job.run(self), None
        except (SessionError, Awaited) as error:
            result, failure = None, error
        except Exception as error:
            if not isinstance(error, LimpetError):
                self._log_failed(error, 0)
            result, failure = None, self._failure(error, job.asked)
        answer([(job, result, failure)])

    # --- when there is time --------------------------------------------------------------------

    def _rest(self) -> None:
        """Run in the background: a failure reaches no caller, and the next run tries again."""
        try:
            while self._due and not self.jobs.count():
                with self.state.lock:
                    self.state.put(self._snapshot_lines(joining=False))
            if not self.jobs.count() and not self.jobs.is_ending:
                self.chores.when_due()
        except Exception as error:
            self._give_up_snapshots(error)

    def _give_up_snapshots(self, error: Exception) -> None:
        """Their sessions go without, which costs time and never data."""
        self._due.clear()
        text = "housekeeping failed: store=%s error=%s"
        logs.FILES.warning(text, self.state.directory, logs.error_name(error))

    def _snapshot_lines(self, *, joining: bool) -> list[LogLine]:
        """Take some snapshots: folds beside the log, so that a load need not read all of it.
        `joining`: for a batch that callers wait for, so the large ones are left."""
        lines: list[LogLine] = []
        for row, (entry, live) in list(self._due.items()):
            if len(lines) == SNAPSHOTS_PER_BATCH:
                break
            if joining and _is_large(live):
                continue
            del self._due[row]
            current = self.state.reader.cached(entry) is live and not live.fold.damaged
            if not current or self.state.index.by_row.get(row) is not entry:
                continue
            try:
                line = snapshot_line(row, live.fold, self.state.codec)
            except (Unready, RecursionError, ValueError, TypeError):
                continue  # it costs time and never data
            lines.append(line)
            live.snapshot_bytes, live.delta_bytes = line.size, 0
        return lines

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
