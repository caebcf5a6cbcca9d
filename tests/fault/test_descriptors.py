"""A process that has run out of file descriptors: the error says so, and nothing is half done."""

from __future__ import annotations

import gc
import os
import resource
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import limpet
from limpet.store.open import backup_store, look_at, restore_store
from tests.support.processes import Interpreter

LIMIT = 512
ENOUGH = 9  # more than any of these opens at once
KEY = ("shop", "ada", "one")


@contextmanager
def descriptors(left: int) -> Iterator[None]:
    """Only so many files can be opened in this process."""
    gc.collect()  # what earlier tests have left open is closed now, not in the middle
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(LIMIT, hard), hard))
    held: list[int] = []
    try:
        try:
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        for _ in range(left):
            os.close(held.pop())
        yield
    finally:
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    async with limpet.open(f"sqlite:///{tmp_path}/a.db") as lp:
        await (await lp.create(*KEY)).append("user.message", {"text": "hi"}, actor="user:ada")
        await lp.maintenance.backup(tmp_path / "good.db")
    return tmp_path / "a.db"


@pytest.fixture
async def lp(file: Path) -> AsyncIterator[limpet.Limpet]:
    """A store that was opened while there were enough."""
    async with limpet.open(f"sqlite:///{file}") as found:
        await found.get(*KEY)
        yield found


async def opened(file: Path) -> None:
    async with limpet.open(f"sqlite:///{file}") as lp:
        await lp.session(*KEY).append("user.message", {"text": "hi"}, actor="user:ada")


async def made(file: Path) -> None:
    async with limpet.open(f"sqlite:///{file.with_name('new.db')}") as lp:
        await lp.get_or_create(*KEY)


async def looked_at(file: Path) -> None:
    url = f"sqlite:///{file}"
    async with limpet.Limpet(url, store=await look_at(url)) as lp:
        assert (await lp.maintenance.doctor()).report.ok


async def backed_up(file: Path) -> None:
    target = file.with_name("copy.db")
    target.unlink(missing_ok=True)
    await backup_store(f"sqlite:///{file}", target, verify=True)


async def restored(file: Path) -> None:
    url = f"sqlite:///{file.with_name('back.db')}"
    restore_store(file.with_name("good.db"), url, replace=True, damaged=False)


@pytest.mark.parametrize("work", [opened, made, looked_at, backed_up, restored])
async def test_a_lack_of_descriptors_is_told_as_such(
    file: Path, work: Callable[[Path], Awaitable[None]]
) -> None:
    """Never as a missing right, never raw; a retry helps once there are some again."""
    await work(file)  # what is imported when it is first used has been
    for left in range(ENOUGH):
        with descriptors(left):
            try:
                await work(file)
            except limpet.errors.StoreBusy as error:
                found = error
            else:
                continue
        assert found.retryable
        assert "no file descriptor is free (Too many open files)" in str(found)
        assert "ulimit -n" in str(found)
    await work(file)
    assert [each.name for each in file.parent.iterdir() if ".part" in each.name] == []


async def test_an_open_store_without_descriptors_blames_no_file(
    lp: limpet.Limpet, file: Path
) -> None:
    """The doctor does not send anybody to a backup for it; writing and reading go on."""
    s = lp.session(*KEY, actor="user:ada")
    await s.append("user.message", {"text": "hi"})
    assert (await lp.maintenance.doctor()).report.ok
    with descriptors(0):
        await s.append("user.message", {"text": "still"})
        assert (await lp.get(*KEY)).version == 4
    for call in (
        lp.maintenance.doctor,
        lp.maintenance.verify,
        lambda: lp.maintenance.backup(file.with_name("copy.db")),
    ):
        # Each by itself: a thread may close a file meanwhile, and so free a descriptor.
        with (
            descriptors(0),
            pytest.raises(limpet.errors.StoreBusy, match="no file descriptor is free"),
        ):
            await call()
    for left in range(1, ENOUGH):
        with descriptors(left):
            try:
                checks = (await lp.maintenance.doctor()).checks
            except limpet.errors.StoreBusy:
                continue
        assert [check for check in checks if check.severity == "problem"] == []


def test_no_verb_used_for_the_first_time_fails_raw(tmp_path: Path) -> None:
    """Each in a fresh process: the modules that it loads need descriptors, too."""
    with Interpreter("tests.support.first_use", tmp_path) as process:
        raised = dict(line.split() for line in process.lines())
        process.end()
    assert len(raised) > 100
    assert {"Session.fork", "Limpet.wake", "SessionHistory.blame"} <= raised.keys()
    assert raised["Session.fork"] == raised["Limpet.erase"] == "StoreBusy"
    errors = {verb: error for verb, error in raised.items() if error != "-"}
    assert {verb for verb, error in errors.items() if not hasattr(limpet.errors, error)} == set()


async def test_a_verb_whose_modules_could_not_be_loaded_works_later(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is retryable, and nothing is left half loaded."""
    name = "limpet.session.history.blame"
    monkeypatch.delitem(sys.modules, name, raising=False)
    s = lp.session(*KEY, actor="user:ada")
    with (
        descriptors(0),
        pytest.raises(limpet.errors.StoreBusy, match="no file descriptor is free") as refused,
    ):
        await s.history.blame("n")
    assert refused.value.retryable
    assert name not in sys.modules
    assert await s.history.blame("n") == ()
