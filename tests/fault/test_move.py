"""A move is killed with SIGKILL at each of its points; the next one finishes it."""

from __future__ import annotations

from pathlib import Path

import pytest

import limpet
from limpet import Key, Limpet
from limpet.testing.histories import fork, recorded
from tests.support.mover import APP, USER
from tests.support.processes import Child

A, B, OTHER = Key(APP, USER, "c1"), Key(APP, USER, "c2"), Key(APP, "bob", "c3")
MARK = "mark-of-ada"


async def fill(path: Path) -> None:
    """Three sessions and a fork, with names of the app and of two users."""
    async with limpet.open(f"sqlite:///{path}?sync=normal") as lp:
        for key in (A, B, OTHER):
            named = {"n": 0, f"user:{key.user}": MARK if key.user == USER else "x", "app:all": 1}
            s = await lp.create(key.app, key.user, key.id, state=named)
            for turn in range(7):
                said = {"text": MARK if key.user == USER else "y", "turn": turn}
                await s.append("user.message", said, actor="user:x", inc={"n": 1})
        await fork(lp._journal.store, Key(APP, "bob", "fork"), A, 5)


def killed_at(what: str, target: Path, writes: int, *more: Path) -> bool:
    """Let a process move until its next write, and kill it. False if it came to its end."""
    with Child("tests.support.mover", what, target, writes, *more) as child:
        line = child.line()
        assert line in ("halted", "done"), child.complaint()
        child.kill()
        return line == "halted"


async def log_of(lp: Limpet, key: Key) -> tuple[object, ...]:
    return await recorded(lp._journal.store, key)


@pytest.mark.parametrize("writes", [0, 1, 4, 8, 10, 12])
async def test_a_killed_copy_leaves_prefixes_and_is_finished_by_the_next(
    tmp_path: Path, writes: int
) -> None:
    """Each log in the target is a beginning of the source's, and no event is sent twice."""
    source, target = tmp_path / "source.db", tmp_path / "target.db"
    await fill(source)
    assert killed_at("copy", target, writes, source) == (writes < 12)
    async with (
        limpet.open(f"sqlite:///{source}") as one,
        limpet.open(f"sqlite:///{target}") as other,
    ):
        keys = [head.key for head in (await one.list()).items]
        there = {head.key for head in (await other.list()).items}
        before = 0
        for key in there:
            found = await log_of(other, key)
            assert found == (await log_of(one, key))[: len(found)]
            before += len(found)
        assert (await other.maintenance.verify()).findings == ()
        copied = await one.copy(to=other)
        assert copied.ok
        assert before + copied.events == sum([len(await log_of(one, key)) for key in keys])
        for key in keys:
            assert await log_of(other, key) == await log_of(one, key)
            assert (await other.get(key)).values == (await one.get(key)).values
        assert (await other.maintenance.verify()).findings == ()
        assert await one.copy(to=other) == limpet.Copied(0, 0)


@pytest.mark.parametrize("writes", [0, 1, 2, 3])
async def test_a_killed_import_is_finished_by_importing_again(tmp_path: Path, writes: int) -> None:
    """Nothing, or a beginning of the file's log; then all of it."""
    source, target, file = (tmp_path / name for name in ("source.db", "target.db", "a.limpet"))
    await fill(source)
    async with limpet.open(f"sqlite:///{source}") as one:
        await one.export(A, file)
        whole = await log_of(one, A)
    assert killed_at("import", target, writes, file) == (writes < 3)
    async with limpet.open(f"sqlite:///{target}") as other:
        heads = (await other.list()).items
        assert sum([head.version for head in heads]) == min(3 * writes, len(whole))
        assert (await other.maintenance.verify()).findings == ()
        assert await other.import_(file) == A
        assert await log_of(other, A) == whole
        assert (await other.maintenance.verify()).findings == ()


@pytest.mark.parametrize("writes", [0, 1, 2, 4, 99])
async def test_a_killed_erasure_of_a_user_did_all_or_nothing_and_is_finished_by_the_next(
    tmp_path: Path, writes: int
) -> None:
    """Either everything of the user is there or nothing can be read; then no byte is left."""
    path = tmp_path / "store.db"
    await fill(path)
    assert killed_at("erase-user", path, writes) == (writes < 99)
    async with limpet.open(f"sqlite:///{path}") as lp:
        left = (await lp.list(app=APP, user=USER)).items
        assert len(left) == (0 if writes else 2)
        if writes:
            with pytest.raises(limpet.errors.SessionErased):
                await lp.get(A)
        assert (await lp.maintenance.verify()).findings == ()
        done = await lp.erase_user(APP, USER)
        assert done.user.version == 2
        assert done.user.forks_kept == 1
        assert (await lp.get(OTHER)).values["user:bob"] == "x"
        assert (await lp.maintenance.verify()).findings == ()
    assert MARK.encode() not in b"".join(
        each.read_bytes() for each in tmp_path.iterdir() if each.is_file()
    )
