"""Lines of a log store that were acknowledged and cannot be read any more, and what follows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import limpet
from limpet.errors import SessionCorrupt

ADA = "user:ada"
APP, USER = "support", "ada"


def url(path: Path, options: str = "") -> str:
    return f"files:///{path}{options}"


async def filled(path: Path, *, later: bool) -> None:
    """Three sessions of three events; `later`: one of them has the last events in the log."""
    async with limpet.open(url(path)) as lp:
        sessions = [await lp.create(APP, USER, f"s{n}", actor=ADA) for n in range(3)]
        for n, s in enumerate(sessions):
            for number in (2, 3):
                await s.append("a.b", {"text": f"event {n}.{number}"}, set={"n": number})
        if later:
            await sessions[0].append("a.b", {"text": "later"})


def damage(path: Path, session: str, seqs: tuple[int, ...], how: Callable[[bytes], bytes]) -> None:
    """Damage the lines of these events."""
    log = path / "log" / "00000001.jsonl"
    lines = log.read_bytes().split(b"\n")
    for place, line in enumerate(lines):
        named = re.search(rb'"session":\["support","ada","(\w+)"\],"seq":(\d+)', line)
        if named and named[1].decode() == session and int(named[2]) in seqs:
            lines[place] = how(line)
    log.write_bytes(b"\n".join(lines))


def flipped(line: bytes) -> bytes:
    """One bit of the salt: who it is of can still be read."""
    at = line.index(b'"time":') + 8
    return line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]


def torn(line: bytes) -> bytes:
    return line[:-9]


def wiped(line: bytes) -> bytes:
    return b"#" * len(line)


@pytest.mark.parametrize("later", [True, False], ids=["in the middle", "at the end"])
@pytest.mark.parametrize("how", [flipped, wiped])
@pytest.mark.parametrize("seqs", [(3,), (2, 3)])
async def test_a_session_whose_newest_lines_are_damaged_is_not_written_on(
    tmp_path: Path, seqs: tuple[int, ...], how: Callable[[bytes], bytes], *, later: bool
) -> None:
    """Verify and doctor name it, and it refuses writes with a reason, at every opening and after a
    compaction, until a person accepts the damage."""
    path = tmp_path / "store"
    await filled(path, later=later)
    damage(path, "s2", seqs, how)
    for _ in range(2):
        async with limpet.open(url(path)) as lp:
            key = limpet.Key(APP, USER, "s2")
            report = await lp.maintenance.verify()
            (said,) = [str(finding) for finding in report.findings if finding.key == key]
            assert f"s2 event {min(seqs) - 1} may not be the last" in said
            assert not (await lp.maintenance.doctor()).ok
            with pytest.raises(SessionCorrupt, match="damage=accept"):
                await lp.session(key).append("a.b", {}, actor=ADA)
            assert (await lp.get(key)).version == min(seqs) - 1
            await lp.maintenance.compact()
    async with limpet.open(url(path, "?damage=accept")) as lp:
        await lp.session(key).append("a.b", {}, actor=ADA)
    async with limpet.open(url(path)) as lp:
        s = await lp.session(key).append("a.b", {}, actor=ADA)
        assert s.seq == min(seqs) + 1
        assert key not in {finding.key for finding in (await lp.maintenance.verify()).findings}


@pytest.mark.parametrize("how", [flipped, wiped])
@pytest.mark.parametrize("later", [True, False], ids=["in the middle", "at the end"])
async def test_a_key_whose_lines_are_all_damaged_is_not_created_again(
    tmp_path: Path, how: Callable[[bytes], bytes], *, later: bool
) -> None:
    """Nothing says which key it was: no unknown one is created until a person accepts the damage,
    and sessions with later events are written on."""
    path = tmp_path / "store"
    await filled(path, later=later)
    damage(path, "s2", (1, 2, 3), how)
    for _ in range(2):
        async with limpet.open(url(path)) as lp:
            assert not (await lp.maintenance.verify()).ok
            assert not (await lp.maintenance.doctor()).ok
            for id in ("s2", "new"):
                with pytest.raises(SessionCorrupt, match="damage=accept"):
                    await lp.create(APP, USER, id, actor=ADA)
            if later:
                await lp.session(APP, USER, "s0").append("a.b", {}, actor=ADA)
            await lp.maintenance.compact()
    async with limpet.open(url(path, "?damage=accept")) as lp:
        assert (await lp.create(APP, USER, "new", actor=ADA)).version == 1


async def test_damage_that_names_its_session_holds_up_no_other(tmp_path: Path) -> None:
    """Other sessions are written on, and new ones are created."""
    path = tmp_path / "store"
    await filled(path, later=False)
    damage(path, "s1", (3,), flipped)
    async with limpet.open(url(path)) as lp:
        for id in ("s0", "s2"):
            await lp.session(APP, USER, id).append("a.b", {}, actor=ADA)
        await lp.create(APP, USER, "new", actor=ADA)
        with pytest.raises(SessionCorrupt):
            await lp.session(APP, USER, "s1").append("a.b", {}, actor=ADA)


async def test_a_session_that_lacks_its_newest_lines_may_be_deleted(tmp_path: Path) -> None:
    """Which decides, too: then its key is free."""
    path = tmp_path / "store"
    await filled(path, later=False)
    damage(path, "s1", (3,), flipped)
    async with limpet.open(url(path)) as lp:
        await lp.delete(APP, USER, "s1")
        await lp.create(APP, USER, "s1", actor=ADA, reuse_deleted=True)
    async with limpet.open(url(path)) as lp:
        await lp.session(APP, USER, "s1").append("a.b", {}, actor=ADA)


async def test_a_torn_end_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    """After a kill nothing says how many lines there were: a line with its end was written whole,
    one without was never acknowledged."""
    path = tmp_path / "store"
    for how, kept in ((flipped, False), (torn, True)):
        await filled(path / how.__name__, later=False)
        (path / how.__name__ / "closed.json").unlink()
        damage(path / how.__name__, "s2", (3,), how)
        async with limpet.open(url(path / how.__name__)) as lp:
            assert (await lp.maintenance.verify()).ok == kept
            s = lp.session(APP, USER, "s2", actor=ADA)
            if kept:
                assert (await s.append("a.b", {})).seq == 3
            else:
                with pytest.raises(SessionCorrupt):
                    await s.append("a.b", {})
