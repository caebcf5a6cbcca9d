"""Commits on the event loop: few and quick ones, durable and answered as the thread's are."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

import limpet
from limpet.errors import StoreForked
from limpet.store import jobs as paces
from limpet.store.cache import Cache
from limpet.store.jobs import (
    HERE_BYTES_MAX,
    HERE_JOBS_MAX,
    JobQueue,
    Pace,
    WriteJob,
)
from limpet.store.sqlite import write_connection
from limpet.store.sqlite.batch import SQLiteBatch
from limpet.store.sqlite.file import connect
from limpet.store.sqlite.store import SQLiteStore
from limpet.store.sqlite.write_connection import Transaction, Wal
from limpet.store.sqlite.writer import SQLiteSnapshots
from limpet.testing.commits import add, addition, create, draft, key, load, log
from tests.support.forked import in_child
from tests.support.inside import as_one_batch
from tests.support.vfs import Faults, faulty

A = key("a")
KEYS = [key(f"k{n}") for n in range(HERE_JOBS_MAX + 1)]
SOON = 60.0


class Disk(Faults):
    """A disk that notes on which thread a commit is synced, and keeps a clock that only syncs
    move on."""

    def __init__(self) -> None:
        super().__init__()
        self.synced_by: list[int] = []
        self.now, self.delay = 0.0, 0.0
        self.at_sync: Callable[[], None] = lambda: None

    def meet(self, kind: str, file: str = "") -> None:
        if kind == "sync" and file.endswith("-wal"):
            self.synced_by.append(threading.get_ident())
            self.now += self.delay
            self.at_sync()

    def timer(self) -> float:
        return self.now

    def on_loop(self) -> list[bool]:
        """For each commit since the last call, whether it was made on this thread."""
        found = [ident == threading.get_ident() for ident in self.synced_by]
        self.synced_by.clear()
        return found


@pytest.fixture
def disk() -> Disk:
    return Disk()


@contextmanager
def a_pace(disk: Disk) -> Iterator[tuple[str, Pace]]:
    with faulty(disk) as vfs:
        yield vfs, Pace(timer=disk.timer)


@pytest.fixture
async def store(tmp_path: Path, disk: Disk) -> AsyncIterator[SQLiteStore]:
    """A store whose thread has begun, and rests."""
    with a_pace(disk) as (vfs, pace):
        store = await SQLiteStore.open(tmp_path / "a.db", vfs=vfs, pace=pace)
        for each in (A, *KEYS):
            await create(store, each)
        await at_rest(store)
        pace.average, pace.crowd, pace.commits, pace.longest = 0.0, 1, 0, 0.0
        disk.synced_by.clear()
        yield store
        await store.close()


async def at_rest(store: SQLiteStore) -> None:
    """Let the writer's thread finish what it was handed."""
    writer: Any = store._writer
    while writer.jobs._handed != writer.jobs._finished:
        await turns(1)
    with writer._hold:  # it counts first, then lets go
        pass


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# --- where ----------------------------------------------------------------------------------------


async def test_a_lone_commit_runs_on_the_loop(store: SQLiteStore, disk: Disk) -> None:
    """One after another, each is synced by the thread that asked for it."""
    for _ in range(5):
        await add(store, A)
    assert disk.on_loop() == [True] * 5
    assert (await load(store, A)).head.version == 6


async def test_one_who_is_alone_does_not_wait_for_the_end_of_the_turn(
    store: SQLiteStore, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could join: the loop takes no further turn, but after a millisecond, when it looks
    after the others again."""
    looked, selector = [], asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
    select = selector.select

    def selecting(timeout: float | None) -> Any:
        looked.append(disk.now)
        return select(timeout)

    monkeypatch.setattr(selector, "select", selecting)
    disk.delay = paces.HERE_SECONDS_MAX / 4
    for _ in range(21):
        await add(store, A)
    assert disk.on_loop() == [True] * 21
    assert 8 <= len(looked) <= 11  # twice for every fifth commit
    apart = [after - before for before, after in pairwise(looked)]
    assert max(apart) <= paces.HERE_SECONDS_MAX + disk.delay
    assert store._pace.longest <= paces.HERE_SECONDS_MAX + disk.delay


async def test_one_who_is_not_alone_waits_for_the_others_of_the_turn(
    store: SQLiteStore, disk: Disk
) -> None:
    """Who runs later in the same turn shares its commit, though it asks after the first."""
    await add(store, A)
    disk.on_loop()
    await asyncio.gather(add(store, KEYS[0]), add(store, KEYS[1]))
    assert disk.on_loop() == [True]


@pytest.mark.parametrize(("enabled", "crowd"), [(False, 1), (True, HERE_JOBS_MAX + 1)])
async def test_where_the_loop_does_not_commit_one_who_is_alone_is_gathered(
    enabled: bool, crowd: int
) -> None:
    """The thread is handed what a turn has gathered."""
    pace, here = Pace(enabled=enabled, timer=lambda: 0.0), []
    queue = JobQueue(here.append, pace)
    pace.crowd = crowd
    pace.begin_turn()
    asking = queue.submit(WriteJob([addition(A)]))
    asking.send(None)  # nothing else waits to run
    assert (here, queue.count()) == ([], 0)
    await turns(2)
    assert queue.count() == 1
    asking.close()


async def test_commits_of_one_turn_share_a_commit(store: SQLiteStore, disk: Disk) -> None:
    """As many as may run on the loop, gathered and synced once."""
    await asyncio.gather(*(add(store, each) for each in KEYS[:HERE_JOBS_MAX]))
    assert disk.on_loop() == [True]
    assert [(await load(store, each)).head.version for each in KEYS[:HERE_JOBS_MAX]] == [2] * 16


async def test_a_crowd_goes_to_the_thread(store: SQLiteStore, disk: Disk) -> None:
    """One more than may run on the loop; the next commit is the thread's too, then it is small."""
    await as_one_batch(store, *(add(store, each) for each in KEYS))
    await at_rest(store)
    assert disk.on_loop() == [False]
    for on_loop in (False, True):
        await add(store, A)
        await at_rest(store)
        assert disk.on_loop() == [on_loop]


async def test_a_large_commit_goes_to_the_thread(store: SQLiteStore, disk: Disk) -> None:
    """By its bytes, however few ask."""
    for size, on_loop in ((HERE_BYTES_MAX + 1, False), (1, True)):
        await add(store, A, draft(data={"text": "x" * size}))
        await at_rest(store)
        assert disk.on_loop()[0] is on_loop  # the thread goes on with a snapshot


async def test_what_runs_alone_goes_to_the_thread(store: SQLiteStore, disk: Disk) -> None:
    """A deletion, and the commit that was asked for before it in the same turn, in this order."""
    added = asyncio.create_task(add(store, A))
    deleted = asyncio.create_task(store.delete(A))
    assert (await added).head.version == 2
    assert await deleted
    assert True not in disk.on_loop()


async def test_a_commit_waits_for_what_the_thread_was_handed_before(
    store: SQLiteStore, disk: Disk
) -> None:
    """In the order in which they were asked for, even if the second alone could run here."""
    first = asyncio.create_task(add(store, A, draft(data={"text": "x" * HERE_BYTES_MAX})))
    await turns(2)
    second = asyncio.create_task(add(store, A))
    assert [(await first).head.version, (await second).head.version] == [2, 3]
    assert disk.on_loop()[0] is False


async def test_a_job_that_was_handed_over_stays_counted_after_an_interrupt(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With too few counted, the loop would take the thread for idle and overtake it."""
    queue = store._writer.jobs
    real = queue._turns_over

    class Interrupted:
        def put(self, jobs: object) -> None:
            real.put(jobs)
            raise KeyboardInterrupt

        def __getattr__(self, name: str) -> Any:  # the thread may ask it meanwhile
            return getattr(real, name)

    before = queue._handed
    monkeypatch.setattr(queue, "_turns_over", Interrupted())
    job = WriteJob([addition(A)])
    with pytest.raises(KeyboardInterrupt):
        queue.wake(job)
    monkeypatch.undo()
    assert queue._handed == before + 1
    await asyncio.wait([job.future])


async def test_a_turn_is_the_threads_while_it_has_something_left() -> None:
    """What it was handed in an earlier turn comes first."""
    asked: list[int] = []
    queue = JobQueue(lambda jobs: asked.append(len(jobs)), Pace())  # and answers none of them
    waiting = [asyncio.create_task(queue.submit(WriteJob([addition(A)]))) for _ in range(2)]
    await turns(3)
    waiting += [asyncio.create_task(queue.submit(WriteJob([addition(A)])))]
    await turns(3)
    assert asked == [2]
    assert queue.count() == 3
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_the_loop_does_not_wait_for_whoever_uses_the_connection(
    store: SQLiteStore, disk: Disk
) -> None:
    """The thread gets the commit, and the lock when it is free."""
    writer: Any = store._writer
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with writer._hold:
            held.set()
            done.wait(SOON)

    other = threading.Thread(target=hold)
    other.start()
    held.wait(SOON)
    task = asyncio.create_task(add(store, A))
    await turns(5)
    assert not task.done()
    done.set()
    other.join()
    assert (await task).head.version == 2
    assert disk.on_loop() == [False]


async def test_the_thread_makes_all_commits_if_the_url_says_so(tmp_path: Path) -> None:
    """?inline=off, which doctor shows."""
    async with limpet.open(f"sqlite:///{tmp_path / 'off.db'}?inline=off") as lp:
        s = await lp.create("a", "u", actor="x")
        await at_rest(lp._journal.store)  # type: ignore[arg-type]
        await s.append("x.y")
        (check,) = [c for c in (await lp.maintenance.doctor()).checks if c.name == "event loop"]
    assert (check.severity, "inline=off" in check.found) == ("ok", True)
    assert lp._opened is not None


async def test_doctor_tells_the_longest_time_that_the_loop_was_held(
    store: SQLiteStore, disk: Disk
) -> None:
    """And how many commits ran there; a long one is a warning, with what to do."""

    async def found() -> Any:
        (check,) = [c for c in await store.examine() if c.name == "event loop"]
        return check

    assert (await found()).found.startswith("no commit ran on it")
    for delay in (0.0001, 0.002, 0.0001):
        disk.delay = delay
        await add(store, A)
        await at_rest(store)
    assert (await found()).found == "held for 2.1 ms at most by 3 commits"
    assert (await found()).ok
    disk.delay, store._pace.average = 0.5, 0.0
    await add(store, A)
    assert (await found()).severity == "warning"
    assert "?inline=off" in (await found()).advice


# --- the disk, and others -------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [0.004, 0.05, 2.0])
async def test_a_slow_disk_moves_commits_to_the_thread(
    store: SQLiteStore, disk: Disk, delay: float
) -> None:
    """Within two commits; quick again, the loop has them back."""
    disk.delay = 0.0005
    for _ in range(20):
        await add(store, A)
    assert disk.on_loop() == [True] * 20
    disk.delay, slow = delay, []
    for _ in range(10):
        await add(store, A)
        await at_rest(store)
        slow += disk.on_loop()
    assert True not in slow[2:]
    disk.delay, quick = 0.0, []
    for _ in range(20):
        await add(store, A)
        await at_rest(store)
        quick += disk.on_loop()
    assert quick[-1] is True


def test_one_stall_is_soon_forgotten() -> None:
    """However long it was, a few quick commits are enough."""
    pace, job = Pace(), SimpleNamespace(size=100)
    pace.note([job], 60.0)
    assert not pace.admits([job])
    for _ in range(4):
        pace.note([job], 0.0002)
    assert pace.admits([job])


async def test_a_foreign_lock_never_blocks_the_loop(
    store: SQLiteStore, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the thread waits for another writer; the loop turns meanwhile."""
    waited: list[int] = []

    def sleep(seconds: float) -> None:
        waited.append(threading.get_ident())
        time.sleep(seconds)

    monkeypatch.setattr(connect, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    other = apsw.Connection(str(tmp_path / "a.db"))
    other.execute("BEGIN IMMEDIATE")
    task = asyncio.create_task(add(store, A))
    while not waited:
        await turns(1)
    assert not task.done()
    other.execute("ROLLBACK")
    other.close()
    async with asyncio.timeout(SOON):
        assert (await task).head.version == 2
    assert threading.get_ident() not in waited
    assert disk.on_loop() == [False]


async def test_what_another_process_wrote_is_seen_by_a_commit_on_the_loop(
    store: SQLiteStore, disk: Disk, tmp_path: Path
) -> None:
    """It builds on the newest state, as the thread does."""
    await add(store, A, draft(set={"n": 1}))
    other = await SQLiteStore.open(tmp_path / "a.db")
    await add(other, A, draft(inc={"n": 5}))
    await other.close()
    assert (await add(store, A, draft(inc={"n": 10}))).fields == {"n": 16}
    assert disk.on_loop() == [True, True]
    assert (await store.verify(None)).findings == ()


async def test_snapshots_and_checkpoints_stay_on_the_thread(
    store: SQLiteStore, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit on the loop that makes one due wakes the thread for it."""
    done: dict[str, list[int]] = {"snapshot": [], "checkpoint": []}
    write, checkpoint = SQLiteSnapshots._write, Wal._checkpoint

    def wrote(self: SQLiteSnapshots, live: Any) -> None:
        done["snapshot"].append(threading.get_ident())
        write(self, live)

    def copied(self: Wal) -> None:
        done["checkpoint"].append(threading.get_ident())
        checkpoint(self)

    monkeypatch.setattr(SQLiteSnapshots, "_write", wrote)
    monkeypatch.setattr(Wal, "_checkpoint", copied)
    monkeypatch.setattr(write_connection, "CHECKPOINT_PAGES", 40)
    for _ in range(12):
        await add(store, A, draft(data={"text": "x" * 8_000}))
        await at_rest(store)
    assert True in disk.on_loop()
    for idents in done.values():
        assert idents
        assert threading.get_ident() not in idents


# --- cancelling, closing, refusing ----------------------------------------------------------------


async def test_a_caller_cancelled_before_the_turn_ends_never_asked(
    store: SQLiteStore, disk: Disk
) -> None:
    """It takes nobody along who asked in the same turn."""
    first, second = [asyncio.create_task(add(store, A, draft(id=id))) for id in ("1", "2")]
    await turns(1)
    first.cancel()
    assert (await second).head.version == 2
    with pytest.raises(asyncio.CancelledError):
        await first
    assert [event.id for event in (await log(store, A))[1:]] == ["2"]
    assert disk.on_loop() == [True]


async def test_a_turn_whose_callers_are_all_cancelled_writes_nothing(
    store: SQLiteStore, disk: Disk
) -> None:
    """Neither here nor on the thread."""
    task = asyncio.create_task(add(store, A))
    await turns(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await at_rest(store)
    assert disk.on_loop() == []
    assert (await load(store, A)).head.version == 1


async def test_closing_finishes_a_turn_that_is_not_over(tmp_path: Path) -> None:
    """What was asked for before the close is recorded; what comes after is refused."""
    store = await SQLiteStore.open(tmp_path / "a.db")
    await create(store, A)
    task = asyncio.create_task(add(store, A))
    await turns(1)
    await store.close()
    assert (await task).head.version == 2
    with pytest.raises(limpet.errors.StoreClosed):
        await add(store, A)
    again = await SQLiteStore.open(tmp_path / "a.db")
    assert (await load(again, A)).head.version == 2
    await again.close()


async def test_a_refused_commit_fails_nobody_else_on_the_loop(
    store: SQLiteStore, disk: Disk
) -> None:
    """Each gets its own answer from the shared commit."""
    asked = [addition(A, expect=7), addition(A), addition(key("none"))]
    conflict, done, missing = await asyncio.gather(
        *(store.commit([one]) for one in asked), return_exceptions=True
    )
    assert isinstance(conflict, limpet.SessionConflict)
    assert isinstance(missing, limpet.SessionNotFound)
    assert not isinstance(done, BaseException)
    assert done[0].head.version == 2
    assert disk.on_loop() == [True]


@pytest.fixture
def strained(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> SQLiteStore:
    """On the loop, memory ends when everything is written and nothing committed."""
    write = SQLiteBatch.write

    def strain(self: SQLiteBatch) -> None:
        write(self)
        if threading.current_thread() is threading.main_thread():
            raise MemoryError

    monkeypatch.setattr(SQLiteBatch, "write", strain)
    return store


async def test_a_lone_commit_that_fails_on_the_loop_is_refused(
    strained: SQLiteStore, disk: Disk
) -> None:
    """As the thread refuses it: it can be sent again, and nothing of it is left."""
    for _ in range(2):
        with pytest.raises(limpet.errors.StoreFailed) as caught:
            await add(strained, A, draft(inc={"n": 1}))
        assert caught.value.retryable
    assert not strained._writer._writes.conn.in_transaction  # type: ignore[union-attr]
    assert (await load(strained, A)).head.version == 1
    assert True not in disk.on_loop()


async def test_commits_that_fail_together_on_the_loop_are_tried_by_the_thread(
    strained: SQLiteStore, disk: Disk
) -> None:
    """So that one of them fails nobody else; nothing of the first attempt is left in memory."""
    for total in (2, 4):
        both = (add(strained, A, draft(inc={"n": 1})) for _ in range(2))
        answers = await asyncio.gather(*both)
        assert max(answer.fields["n"] for answer in answers) == total
        await at_rest(strained)
    assert True not in disk.on_loop()
    assert (await strained.verify(None)).findings == ()


async def test_an_append_from_inside_a_commit_is_not_a_part_of_it(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a seal asks for in an eager task, say: the thread does it, after the commit."""
    writing, inside = SQLiteBatch._write_events, add(store, KEYS[0])

    def asks(batch: SQLiteBatch) -> None:
        monkeypatch.setattr(SQLiteBatch, "_write_events", writing)
        inside.send(None)
        writing(batch)

    await add(store, A)
    monkeypatch.setattr(SQLiteBatch, "_write_events", asks)
    assert (await add(store, A)).head.version == 3
    await at_rest(store)
    inside.close()
    assert (await load(store, A)).head.version == 3
    assert (await load(store, KEYS[0])).head.version == 2
    assert (await store.verify(None)).findings == ()


async def test_a_full_disk_is_told_on_the_loop(store: SQLiteStore, disk: Disk) -> None:
    """As the thread tells it, and the next commit goes through."""

    def full() -> None:
        disk.at_sync = lambda: None
        raise apsw.FullError("injected")

    disk.at_sync = full
    with pytest.raises(limpet.errors.StoreFull):
        await add(store, A)
    assert disk.on_loop() == [True]
    assert (await add(store, A)).head.version == 2
    assert (await store.verify(None)).findings == ()


# --- interrupts, loops, forks ---------------------------------------------------------------------


class Interrupted:
    """A store on a loop of our own, which an interrupt may leave at any moment."""

    def __init__(self, path: Path, vfs: str, pace: Pace) -> None:
        self.loop = asyncio.new_event_loop()
        self.store = self.run(SQLiteStore.open(path, vfs=vfs, pace=pace))
        self.run(create(self.store, A))
        self.run(at_rest(self.store))
        pace.average = 0.0

    def run(self, work: Coroutine[Any, Any, Any] | asyncio.Task[Any]) -> Any:
        return self.loop.run_until_complete(work)

    def check(self, version: int) -> None:
        """The file has just this version, memory agrees with it, and others may write."""
        assert self.run(add(self.store, A)).head.version == version + 1
        self.run(at_rest(self.store))
        writer: Any = self.store._writer
        assert not writer._writes.conn.in_transaction
        assert self.run(self.store.verify(None)).findings == ()
        ids = [event.id for event in self.run(log(self.store, A))]
        assert len(ids) == len(set(ids)) == version + 1
        self.run(self.store.close())
        self.loop.close()


@pytest.fixture
def interrupted(tmp_path: Path, disk: Disk) -> Iterator[Interrupted]:
    with a_pace(disk) as (vfs, pace):
        yield Interrupted(tmp_path / "a.db", vfs, pace)


def once(act: Callable[..., Any]) -> Callable[..., Any]:
    """`act`, and the first time an interrupt after it."""
    left = [None]

    def acted(*args: Any) -> Any:
        result = act(*args)
        if left and threading.current_thread() is threading.main_thread():
            left.pop()
            raise KeyboardInterrupt
        return result

    return acted


def test_an_interrupt_before_the_commit_is_durable_leaves_it_to_the_thread(
    interrupted: Interrupted, disk: Disk
) -> None:
    """Out of COMMIT: it is rolled back, the interrupt goes on, and the caller is answered."""
    disk.at_sync = once(lambda: None)
    task = interrupted.loop.create_task(add(interrupted.store, A))
    with pytest.raises(KeyboardInterrupt):
        interrupted.run(task)
    assert not interrupted.store._writer._writes.conn.in_transaction  # type: ignore[union-attr]
    assert interrupted.run(task).head.version == 2
    interrupted.check(2)


@pytest.mark.parametrize(
    ("of", "name"),
    [(Wal, "_committed"), (SQLiteBatch, "settle"), (WriteJob, "claim"), (Pace, "held")],
    ids=["in COMMIT", "after it", "when answered", "then"],
)
def test_an_interrupt_after_the_commit_is_durable_takes_no_answer_away(
    interrupted: Interrupted, monkeypatch: pytest.MonkeyPatch, of: type, name: str
) -> None:
    """It was recorded: the caller is told so, it is not recorded twice, and memory is right."""
    monkeypatch.setattr(of, name, once(getattr(of, name)))
    if name == "_committed":  # the hook was given to SQLite before
        writer: Any = interrupted.store._writer
        writer._writes.conn.set_wal_hook(writer._writes.wal._committed)
    task = interrupted.loop.create_task(add(interrupted.store, A))
    with pytest.raises(KeyboardInterrupt):
        interrupted.run(task)
    assert interrupted.run(task).head.version == 2
    interrupted.check(2)


def test_an_interrupt_between_begin_and_the_plan_leaves_no_transaction_open(
    interrupted: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write lock is let go, so that others may write."""
    cache = interrupted.store._writer.cache  # type: ignore[union-attr]
    monkeypatch.setattr(type(cache), "note_version", once(type(cache).note_version))
    task = interrupted.loop.create_task(add(interrupted.store, A))
    with pytest.raises(KeyboardInterrupt):
        interrupted.run(task)
    assert not interrupted.store._writer._writes.conn.in_transaction  # type: ignore[union-attr]
    assert interrupted.run(task).head.version == 2
    interrupted.check(2)


def test_two_interrupts_in_a_row_leave_nothing_old_in_memory(
    interrupted: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second comes before anything could be forgotten: the next commit reads again."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    writer: Any = interrupted.store._writer
    interrupted.run(add(interrupted.store, A))
    with monkeypatch.context() as patched:
        patched.setattr(writer, "_settle", interrupt)
        patched.setattr(writer, "_fail_here", interrupt)
        task = interrupted.loop.create_task(add(interrupted.store, A))
        with pytest.raises(KeyboardInterrupt):
            interrupted.run(task)
    task.cancel()  # so that the thread is not handed it either
    with pytest.raises(asyncio.CancelledError):
        interrupted.run(task)
    interrupted.check(3)


def test_an_interrupt_right_after_begin_leaves_no_transaction_open() -> None:
    """It comes out of the call that took the lock."""
    conn = apsw.Connection(":memory:")

    def execute(statement: str) -> Any:
        conn.execute(statement)
        if statement.startswith("BEGIN"):
            raise KeyboardInterrupt

    cursor: Any = SimpleNamespace(execute=execute, connection=conn)
    with pytest.raises(KeyboardInterrupt), Transaction(cursor, Cache()):
        pass
    assert not conn.in_transaction


async def test_two_loops_may_share_a_store(tmp_path: Path) -> None:
    """Each commits on its own thread or leaves it to the writer's; nothing is lost or doubled."""
    store = await SQLiteStore.open(tmp_path / "a.db", pace=Pace(timer=lambda: 0.0))
    await create(store, A)
    failed: list[BaseException] = []

    async def many() -> None:
        for _ in range(100):
            await add(store, A, draft(inc={"n": 1}))

    def apart() -> None:
        try:
            asyncio.run(many())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=apart) for _ in range(2)]
    for thread in threads:
        thread.start()
    async with asyncio.timeout(60):
        await many()
        for thread in threads:
            await asyncio.to_thread(thread.join)
    assert failed == []
    await at_rest(store)  # on a busy machine the thread may have made all of them
    before = store._pace.commits
    await add(store, A, draft(inc={"n": 1}))
    assert store._pace.commits == before + 1
    assert (await load(store, A)).fields == {"n": 301}
    assert (await store.verify(None)).findings == ()
    await store.close()


async def test_the_turns_of_another_loop_make_ours_neither_younger_nor_shorter(
    store: SQLiteStore, disk: Disk
) -> None:
    """Each loop looks after its own tasks once a millisecond, and is told how long it was held."""

    async def give_up_an_append() -> None:
        asking = asyncio.create_task(add(store, KEYS[0]))
        await turns(1)
        asking.cancel()
        await turns(2)  # a turn is over in which nobody asks for anything

    def another_loops() -> None:
        other = threading.Thread(target=asyncio.run, args=(give_up_an_append(),))
        other.start()
        other.join()

    await add(store, A)
    looked: list[float] = []
    asyncio.get_running_loop().call_later(0, lambda: looked.append(disk.now))
    disk.delay, disk.at_sync = paces.HERE_SECONDS_MAX / 4, another_loops
    for _ in range(12):
        await add(store, A)
    assert disk.on_loop() == [True] * 13
    assert looked
    assert looked[0] <= paces.HERE_SECONDS_MAX + disk.delay
    disk.delay = paces.HERE_SECONDS_MAX * 3
    await add(store, A)
    assert store._pace.longest >= disk.delay


async def test_closing_refuses_another_loops_latecomers(store: SQLiteStore) -> None:
    """A turn that ends after the writer's thread is gone is answered, not left waiting."""
    await store.close()
    job = WriteJob([addition(A)])
    queue = store._writer.jobs  # type: ignore[union-attr]
    queue._put([job])
    with pytest.raises(limpet.errors.StoreClosed):
        async with asyncio.timeout(SOON):
            await job.future


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_child_does_not_end_its_parents_turn(store: SQLiteStore, disk: Disk) -> None:
    """Forked while callers wait for the turn's end, it writes nothing; the parent does."""
    loop = asyncio.get_running_loop()
    writer: Any = store._writer
    task = asyncio.create_task(add(store, A))
    await turns(1)

    def child() -> str:
        (job,) = writer.jobs._turns[loop]
        writer.jobs._end_turn(loop)
        answers = [handle for handle in loop._ready if "deliver" in repr(handle)]  # type: ignore[attr-defined]
        answers[-1]._run()
        return f"{type(job.future.exception()).__name__} {len(disk.synced_by)}"

    assert in_child(child) == f"{StoreForked.__name__} 0"
    assert (await task).head.version == 2
    assert (await store.verify(None)).findings == ()


def test_the_bounds_are_those_that_the_documents_name() -> None:
    """16 callers, 64 KB, 1 ms."""
    assert (HERE_JOBS_MAX, HERE_BYTES_MAX, paces.HERE_SECONDS_MAX) == (16, 65_536, 0.001)
