"""The writer of a journal: commits that wait together become one write and one sync.

Plan under the lock, write and sync without it, apply under it again: readers see the state before
or the state after, and nothing that is not durable. Whoever writes, thread or loop, holds `_hold`;
a loop never waits for it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Final

import msgspec

from limpet.errors import (
    Asked,
    LimpetError,
    SessionError,
    StoreClosed,
    StoreCorrupt,
    StoreFailed,
    StoreFull,
)
from limpet.model import SALT_BYTES
from limpet.model.limits import SNAPSHOT_FLOOR_BYTES
from limpet.store import logs
from limpet.store.coding.codec import Damaged
from limpet.store.coding.seal import Awaited, Unready
from limpet.store.files.batch import JournalBatch, snapshot_line
from limpet.store.files.compaction import Compaction
from limpet.store.files.journal import Group
from limpet.store.files.lines import AnyLine
from limpet.store.files.records import JournaledLog
from limpet.store.files.state import JournaledStore
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
from limpet.store.system import in_thread, is_full_disk, join, reported

_SALTS: Final = 1_024  # taken from the system at a time
_JOINING_BYTES_MAX: Final = 128 * 2**10  # of a snapshot that is written with a batch


class FilesWriter(threading.Thread):
    """The only one who writes to the directory."""

    def __init__(self, store: JournaledStore, pace: Pace) -> None:
        super().__init__(name="limpet-writer", daemon=True)
        self.store, self.journal, self._pace = store, store.journal, pace
        self.jobs = JobQueue(self._do_here, pace)
        self._hold = threading.RLock()
        self._writing = False
        self._unsettled = False  # memory may differ from the journal: it is read again
        self._due: dict[int, JournaledLog] = {}  # for snapshots
        self._taken: list[WriteJob] = []
        self._salts: list[bytes] = []
        self.compaction = Compaction(store)

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
        logs.slow_commit(logs.FILES, self.store.directory, seconds, jobs)
        if (
            self._due and self._large()
        ) or self.compaction.is_due():  # work for the thread, which would sleep on
            self.jobs.wake(WriterCall(nothing))

    def _large(self) -> list[JournaledLog]:
        """Sessions whose snapshot may take too long for a batch that callers wait for. A state is
        seldom larger than the snapshot and the log that it comes from."""
        return [log for log in self._due.values() if log.state_bytes > _JOINING_BYTES_MAX]

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
                "writer stopped: store=%s error=%s", self.store.directory, logs.error_name(error)
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
        logs.slow_commit(logs.FILES, self.store.directory, seconds, jobs)

    def _commit(self, jobs: Sequence[WriteJob], answers: list[JobAnswer]) -> None:
        """One write and one sync for all of them. If it raises an Exception, nobody's commit is
        acknowledged, and none of it is applied."""
        store = self.store
        with store.lock:
            self._resettle()
            self._writing = True
            batch = JournalBatch(store, store.codec, store.now_us(), self._salt)
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
            if batch.groups and self._due:
                try:
                    batch.groups[:0] = [[line] for line in self._snapshot_lines(joining=True)]
                except Exception as error:  # no caller asked for it
                    self._give_up_snapshots(error)
        if batch.groups:
            places = self.journal.append(batch.groups)
            with store.lock:
                self._unsettled = True
                for log in store.settle(batch, places):
                    live = log.cached
                    if live is not None and live.delta_bytes >= max(
                        SNAPSHOT_FLOOR_BYTES, live.snapshot_bytes
                    ):
                        self._due[log.row] = log
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
            self.journal.close()
            self.store.replay()
            self._due.clear()
            self._unsettled = False

    def _run_alone(self, job: WriteJob) -> None:
        if not job.claim():
            return
        assert job.run is not None
        failure: BaseException | None
        try:
            with self.store.lock:
                self._resettle()
            # Nothing is answered while a failed write may still be found in the journal.
            self.journal.clean()
            result, failure = job.run(self), None
        except (SessionError, Awaited) as error:
            result, failure = None, error
        except Exception as error:
            if not isinstance(error, LimpetError):
                self._log_failed(error, 0)
            result, failure = None, self._failure(error, job.asked)
        answer([(job, result, failure)])

    def put(self, lines: Group) -> None:
        """Write a group of lines that record no event, sync it, then apply it."""
        places = self.journal.append([lines])
        with self.store.lock:
            self._unsettled = True
            for place, line in zip(places, lines, strict=True):
                self.store.apply(place, line)  # type: ignore[arg-type]  # none is plain
            self._unsettled = False

    # --- when there is time --------------------------------------------------------------------

    def _rest(self) -> None:
        """Run in the background: a failure reaches no caller, and the next run tries again."""
        try:
            while self._due and not self.jobs.count():
                with self.store.lock:
                    lines = self._snapshot_lines(joining=False)
                if lines:
                    self.put(lines)
            if not self.jobs.is_ending:  # also if somebody waits: a busy store is never idle
                self.compaction.when_due()
        except Exception as error:
            self._give_up_snapshots(error)

    def _give_up_snapshots(self, error: Exception) -> None:
        """Their sessions go without, which costs time and never data."""
        self._due.clear()
        text = "housekeeping failed: store=%s error=%s"
        logs.FILES.warning(text, self.store.directory, logs.error_name(error))

    def _snapshot_lines(self, *, joining: bool) -> list[AnyLine]:
        """Take some snapshots: folds beside the log, so that a load need not read all of it.
        `joining`: for a batch that callers wait for, so the large ones are left."""
        lines: list[AnyLine] = []
        for row, log in list(self._due.items()):
            if len(lines) == SNAPSHOTS_PER_BATCH:
                break
            if joining and log.state_bytes > _JOINING_BYTES_MAX:
                continue
            del self._due[row]
            live = log.cached
            if live is None or live.fold.damaged or self.store.log_of(log.head.key) is not log:
                continue
            try:
                line = snapshot_line(row, live.fold, self.store.codec)
            except (Unready, RecursionError, ValueError, TypeError):
                continue  # it costs time and never data
            lines.append(line)
            live.snapshot_bytes, live.delta_bytes = line.size, 0
        return lines

    def _log_failed(self, error: BaseException, commits: int) -> None:
        text = "write failed: store=%s error=%s commits=%d"
        logs.FILES.warning(text, self.store.directory, logs.error_name(error), commits)

    def _failure(self, error: BaseException, asked: Asked = "write") -> LimpetError:
        return files_failure(error, str(self.store.directory), asked)


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
