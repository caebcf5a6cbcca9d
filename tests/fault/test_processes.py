"""Several processes on one file."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import limpet
from limpet import Event, Key, Limpet, Session
from tests.support.processes import Child
from tests.support.worker import KEY

WRITERS = 4
QUOTA = 120


@contextmanager
def workers(path: Path, *roles: tuple[str, str, int]) -> Iterator[list[Child]]:
    """Processes that are all ready, and begin together."""
    with ExitStack() as stack:
        children = [
            stack.enter_context(Child("tests.support.worker", role, path, name, count))
            for role, name, count in roles
        ]
        for child in children:
            child.expect("ready")
        for child in children:
            child.tell("go")
        yield children


def test_a_process_has_the_environment_of_its_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the test which needed a process first."""
    told = "import os; print(os.environ['LIMPET_MARK'], flush=True)"
    for mark in ("one", "two"):
        monkeypatch.setenv("LIMPET_MARK", mark)
        with Child("timeit", "-n1", "-r1", told) as child:
            child.expect(mark)


def test_a_process_that_is_killed_at_once_leaves_nothing_open() -> None:
    """It had no time to take its streams."""
    folder = Path("/proc/self/fd")
    with Child("tests.support.worker"):
        before = len(list(folder.iterdir()))
    for _ in range(5):
        with Child("tests.support.worker"):
            pass
    gc.collect()
    assert len(list(folder.iterdir())) <= before


async def prepared(path: Path) -> None:
    async with limpet.open(f"sqlite:///{path}") as lp:
        await lp.create(KEY.app, KEY.user, id=KEY.id, state={"n": 0, "log": []})
        for number in range(WRITERS):
            await lp.create(KEY.app, KEY.user, id=f"w{number}", state={"n": 0})


async def whole_log(session: Session) -> list[Event]:
    events: list[Event] = []
    while page := await session.read(after=len(events), limit=1_000):
        events += page
    return events


def shares(events: list[Event], names: list[str]) -> dict[str, float]:
    """How much of its quota each had written when the first was through with its own."""
    counts = dict.fromkeys(names, 0)
    for event in events:
        if event.actor.startswith("worker:"):
            name = event.actor.removeprefix("worker:")
            counts[name] += 1
            if counts[name] == QUOTA:
                break
    return {name: count / QUOTA for name, count in counts.items()}


async def check_counts(lp: Limpet, names: list[str]) -> list[Event]:
    session = await lp.get(KEY)
    events = await whole_log(session)
    assert [event.seq for event in events] == list(range(1, session.version + 1))
    ids = [event.id for event in events]
    assert len(set(ids)) == len(ids)
    assert {f"{name}.{n}" for name in names for n in range(QUOTA)} <= set(ids)
    assert session.state["n"] == len(names) * QUOTA
    assert session.state["app:n"] == len(names) * QUOTA * 11 // 10
    listed = [event.id for event in events if any(op.path == ("log",) for op in event.ops)]
    assert session.state["log"] == listed[1:]  # the first set it
    assert sorted(session.state["user:log"]) == sorted(listed[1:])
    return events


async def added_by_all(path: Path) -> list[Event]:
    """Four processes add to one session, app: and user:; the sums are exact. The log of it."""
    await prepared(path)
    names = [f"w{n}" for n in range(WRITERS)]
    with workers(path, *(("incrementer", name, QUOTA) for name in names)) as children:
        for child, name in zip(children, names, strict=True):
            child.expect(f"done {name}")
            child.end()
    async with limpet.open(f"sqlite:///{path}") as lp:
        events = await check_counts(lp, names)
        assert (await lp.maintenance.verify()).findings == ()
    return events


async def test_no_update_is_lost(tmp_path: Path) -> None:
    """Four processes add to one session, app: and user:."""
    await added_by_all(tmp_path / "a.db")


@pytest.mark.torture
async def test_writers_of_several_processes_share_the_file(tmp_path: Path) -> None:
    """When the first of four has written its quota, each has written some of its own.

    By the clock: a machine that is busy otherwise may not let all of them run.
    """
    events = await added_by_all(tmp_path / "a.db")
    progress = shares(events, [f"w{n}" for n in range(WRITERS)])
    print(progress)
    assert min(progress.values()) > 0.02


async def test_no_writer_starves(tmp_path: Path) -> None:
    """Two processes append without a pause; a third gets its turns all the same."""
    path = tmp_path / "a.db"
    await prepared(path)
    with workers(path, ("appender", "p0", 0), ("appender", "p1", 0)) as pressing:
        for child in pressing:
            child.expect("did 0")
        with workers(path, ("incrementer", "w0", 30)) as (child,):
            child.expect("done w0")
            child.end()
        async with limpet.open(f"sqlite:///{path}") as lp:
            assert await lp.delete(KEY)
        for child in pressing:
            assert list(child.lines())[-1] == "deleted", child.complaint()
            child.end()


async def test_read_modify_write_loses_nothing_among_processes(tmp_path: Path) -> None:
    """update() in three processes while a fourth appends: every computation counts once."""
    path = tmp_path / "a.db"
    await prepared(path)
    roles = [("updater", f"u{n}", 40) for n in range(3)] + [("incrementer", "w0", QUOTA)]
    with workers(path, *roles) as children:
        for child, (_, name, _) in zip(children, roles, strict=True):
            child.expect(f"done {name}")
            child.end()
    async with limpet.open(f"sqlite:///{path}") as lp:
        session = await lp.get(KEY)
        assert session.state["u"] == 3 * 40
        assert session.state["app:u"] == 3 * 40
        await check_counts(lp, ["w0"])
        assert (await lp.maintenance.verify()).findings == ()


async def test_a_follower_in_another_process_sees_every_event_once(tmp_path: Path) -> None:
    """In order and without a gap, whoever writes them."""
    path = tmp_path / "a.db"
    await prepared(path)
    writers = [("incrementer", f"w{n}", QUOTA) for n in range(2)]
    followers = [("follower", f"f{n}", 2 * QUOTA) for n in range(2)]
    with workers(path, *followers) as following:
        for child in following:
            child.expect("following")
        with workers(path, *writers) as writing:
            for child in writing:
                assert child.line() is not None
                child.end()
        for child in following:
            line = child.line()
            assert line is not None
            assert [int(seq) for seq in line.split()] == list(range(2, 2 * QUOTA + 2))
            child.end()


@pytest.mark.parametrize(
    "rounds", [pytest.param(3, id="some"), pytest.param(100, marks=pytest.mark.torture, id="many")]
)
async def test_a_new_file_may_be_opened_by_all_at_once(tmp_path: Path, rounds: int) -> None:
    """Five processes create the database and its first session together; one comes of it."""
    names = [f"c{n}" for n in range(5)]
    for round_ in range(rounds):
        path = tmp_path / f"{round_}.db"
        with workers(path, *(("creator", name, 1) for name in names)) as children:
            for child, name in zip(children, names, strict=True):
                child.expect(f"done {name}")
                child.end()
        async with limpet.open(f"sqlite:///{path}") as lp:
            session = await lp.get(KEY)
            assert (session.version, session.state["n"], session.state["app:n"]) == (6, 5, 5)
            assert len((await lp.list()).items) == 1
            assert (await lp.maintenance.verify()).findings == ()


async def test_deleting_while_another_process_appends_is_before_or_after(tmp_path: Path) -> None:
    """Every append is recorded before the end or refused after it; nothing rises again."""
    path = tmp_path / "a.db"
    await prepared(path)
    with workers(path, ("appender", "w0", 0), ("appender", "w1", 0)) as children:
        async with limpet.open(f"sqlite:///{path}") as lp:
            for child in children:
                line = child.line()
                assert line is not None
                assert line.startswith("did")
            assert await lp.delete(KEY)
            for child in children:
                said = list(child.lines())
                assert said[-1] == "deleted", child.complaint()
                child.end()
            with pytest.raises(limpet.errors.SessionDeleted):
                await lp.get(KEY)
            with pytest.raises(limpet.errors.SessionDeleted):
                await lp.create(KEY.app, KEY.user, id=KEY.id)
            report = await lp.maintenance.verify()
            assert report.findings == ()
            assert report.sessions == WRITERS


async def test_a_process_that_dies_with_the_lock_blocks_nobody(tmp_path: Path) -> None:
    """What it had half written is nobody's, and the next write goes through."""
    path = tmp_path / "a.db"
    await prepared(path)
    async with limpet.open(f"sqlite:///{path}") as lp:
        session = await lp.get(KEY)
        for number in range(3):
            with workers(path, ("dier", "d", 0)) as (child,):
                assert list(child.lines()) == []
                child.kill()
            await session.append("x.y", actor="a:b", inc={"n": 1})
            assert session.version == number + 2
        again = await lp.get(KEY)
        assert (again.version, again.state["n"]) == (4, 3)
        assert (await lp.maintenance.verify()).findings == ()


async def test_a_process_sees_at_once_what_another_wrote(tmp_path: Path) -> None:
    """Caches do not outlive their truth: after another's commit reads and writes build on it."""
    path = tmp_path / "a.db"
    await prepared(path)
    async with limpet.open(f"sqlite:///{path}") as lp:
        session = await lp.get(KEY)
        await session.append("x.y", actor="a:b", inc={"n": 1, "app:n": 1})
        with workers(path, ("incrementer", "w0", QUOTA)) as (child,):
            child.expect("done w0")
            assert (await lp.get(KEY)).state["n"] == QUOTA + 1
            made = await session.append("x.y", actor="a:b", inc={"n": 1, "app:n": 1})
            assert made.seq == QUOTA + 3
            assert session.state["n"] == QUOTA + 2
            assert session.state["app:n"] == QUOTA * 11 // 10 + 2
            child.end()
        own = await lp.get(Key(KEY.app, KEY.user, "w0"))
        assert own.state["n"] == QUOTA // 10
