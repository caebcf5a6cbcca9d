"""Erasure: when it returns, nothing of the session is in the files."""

from __future__ import annotations

from pathlib import Path

import pytest

import limpet

NEEDLES = (b"needle-id", b"needle-label", b"needle-value", b"needle-data", b"needle-state")


def found(directory: Path) -> set[bytes]:
    """The needles that some file of the directory still holds."""
    files = [file.read_bytes() for file in directory.iterdir()]
    return {needle for needle in NEEDLES if any(needle in file for file in files)}


async def fill(lp: limpet.Limpet) -> limpet.Session:
    s = await lp.create(
        "a",
        "u",
        id="needle-id",
        state={"x": "needle-state"},
        labels={"needle-label": "needle-value"},
    )
    for n in range(50):
        await s.append("a.b", {"n": n, "text": "needle-data"}, actor="x", set={"y": "needle-state"})
    return s


@pytest.mark.parametrize("way", ["at once", "after delete", "after reopening", "large"])
async def test_nothing_of_an_erased_session_is_left(tmp_path: Path, way: str) -> None:
    """Database and log file are searched while the store is still open."""
    url = f"sqlite:///{tmp_path}/store.db"
    async with limpet.open(url) as lp:
        s = await fill(lp)
        if way == "large":
            for _ in range(5):
                await s.append_many(
                    [limpet.Draft(type="a.b", actor="x", data={"t": "needle-data"})] * 1_000
                )
        other = await lp.create("a", "u", id="other", state={"app:kept": 1})
    assert found(tmp_path) == set(NEEDLES)
    async with limpet.open(url) as lp:
        if way == "after delete":
            await lp.delete(s.key)
        if way == "at once":
            await lp.session(s.key, actor="x").append("a.b", {"text": "needle-data"})
        await lp.erase(s.key)
        assert found(tmp_path) == set()
        assert (await lp.get(other.key)).state == {"app:kept": 1}
        report = await lp.maintenance.verify()
        assert report.findings == ()


async def test_an_erasure_does_not_wait_for_those_who_look(tmp_path: Path) -> None:
    """Another instance that has the file open, and read from it, does not keep the bytes alive."""
    url = f"sqlite:///{tmp_path}/store.db"
    async with limpet.open(url) as lp, limpet.open(url) as other:
        s = await fill(lp)
        await other.get(s.key)
        await lp.erase(s.key)
        assert found(tmp_path) == set()
        with pytest.raises(limpet.errors.SessionErased):
            await other.get(s.key)


async def test_a_certificate_does_not_tell_the_key(tmp_path: Path) -> None:
    """The hash is keyed: the same key erased in two databases leaves different marks."""
    marks = set()
    for name in ("one", "two"):
        async with limpet.open(f"sqlite:///{tmp_path}/{name}.db") as lp:
            certificate = await lp.erase((await fill(lp)).key)
            assert certificate is not None
            marks.add(certificate.key_hash)
    assert len(marks) == 2
