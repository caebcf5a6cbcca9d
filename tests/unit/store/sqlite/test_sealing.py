"""A sealed database: nothing of a body in its files, and nothing readable without the key."""

from __future__ import annotations

from pathlib import Path

import pytest

import limpet
from tests.support.seal import FixedKeySeal

SECRET = "the very secret word"


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A database with the secret in data, state, scopes and a snapshot."""
    path = tmp_path / "sealed.db"
    async with limpet.open(f"sqlite:///{path}", seal=FixedKeySeal()) as lp:
        s = await lp.create("a", "u", id="1", state={"x": SECRET, "app:x": SECRET})
        for n in range(40):
            await s.append(
                "a.b", {"n": n, "text": SECRET + "!" * 3_000}, actor="x", add={"log": [SECRET]}
            )
    return path


async def test_the_files_show_nothing(path: Path) -> None:
    """Neither the database nor what lies beside it has a byte of a body in clear."""
    for file in path.parent.iterdir():
        assert SECRET.encode() not in file.read_bytes()


async def test_the_key_opens_everything(path: Path) -> None:
    """With it, the session is as it was and verifies."""
    async with limpet.open(f"sqlite:///{path}", seal=FixedKeySeal()) as lp:
        s = await lp.get(("a", "u", "1"))
        assert (s.state["x"], s.state["app:x"], len(s.state["log"])) == (SECRET, SECRET, 40)
        assert s.history.damaged == ()
        assert (await lp.maintenance.verify()).findings == ()


@pytest.mark.parametrize("seal", [None, FixedKeySeal(b"k" * 32)], ids=["no key", "wrong key"])
async def test_without_the_key_the_headers_are_readable_and_the_bodies_are_not(
    path: Path, seal: FixedKeySeal | None
) -> None:
    """Who did what when is served; what was said is damage that names the reason."""
    async with limpet.open(f"sqlite:///{path}", seal=seal) as lp:
        s = await lp.get(("a", "u", "1"), tail=3)
        assert [(e.seq, e.type, e.data) for e in s.events] == [
            (39, "a.b", None),
            (40, "a.b", None),
            (41, "a.b", None),
        ]
        assert all("seal" in (e.damage or "") for e in s.events)
        assert SECRET not in str(dict(s.state))
        report = await lp.maintenance.verify()
        assert not report.ok
