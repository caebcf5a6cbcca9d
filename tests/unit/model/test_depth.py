"""Depth: bounded for paths and for values, so that no state is too deep to be written down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

import limpet
from limpet import Limpet, Session, ops
from limpet.errors import InvalidOp
from limpet.model.limits import VALUE_DEPTH_MAX


def nested(depth: int) -> dict[str, Any]:
    """Dicts in each other, so many levels."""
    made: dict[str, Any] = {}
    for _ in range(depth - 1):
        made = {"k": made}
    return made


def depth_of(value: Any) -> int:
    depth = 0
    while value is not None:
        depth, value = depth + 1, value.get("k")
    return depth


async def deepest(session: Session, name: str) -> int:
    """Grow a name as deep as it may become; its depth."""
    path: tuple[str, ...] = (name,)
    await session.append("a.b", set={name: nested(VALUE_DEPTH_MAX - 1)})
    path += ("k",) * (VALUE_DEPTH_MAX - 1)
    assert len(path) == VALUE_DEPTH_MAX
    await session.append("a.b", ops=[ops.Set(path, nested(VALUE_DEPTH_MAX - 2))])
    return depth_of((await session.refresh()).state[name])


@pytest.mark.parametrize(
    "op", [ops.Set, ops.Add, ops.Inc, ops.Merge, ops.Delete], ids=lambda op: op.__name__
)
async def test_a_path_longer_than_a_value_is_deep_is_refused(op: Any) -> None:
    """Whichever operation it belongs to; one step less is about the state, not about the path."""
    arguments = {ops.Set: (1,), ops.Add: ([1],), ops.Inc: (1,), ops.Merge: ({},)}.get(op, ())
    async with limpet.open("memory://") as lp:
        session = await lp.create("a", "u", actor="x", state={"r": {}})
        for name in ("r", "app:r", "user:r", "temp:r"):
            path = (name, *["k"] * VALUE_DEPTH_MAX)
            with pytest.raises(InvalidOp) as info:
                await session.append("a.b", ops=[op(path, *arguments)])
            assert info.value.code == "op.invalid"
        assert session.version == 1


async def test_the_deepest_state_is_written_read_and_verified(tmp_path: Path) -> None:
    """In the log, in a snapshot and as a shared name; and no neighbour feels it."""
    url = f"sqlite:///{tmp_path / 'a.db'}?sync=normal"
    async with limpet.open(url) as lp:
        session = await lp.create("a", "u", id="deep", actor="x")
        other = await lp.create("a", "u", id="other", actor="x")
        depths = [await deepest(session, name) for name in ("r", "app:r", "user:r")]
        assert min(depths) > VALUE_DEPTH_MAX
        for _ in range(10):
            await session.append("a.b", {"pad": "y" * 20_000})
        await other.append("a.b", set={"n": 1})
        await check(lp, depths)
    conn = apsw.Connection(str(tmp_path / "a.db"))
    assert conn.execute("SELECT max(seq) FROM snapshots").get == 17
    conn.close()
    async with limpet.open(url) as lp:
        await check(lp, depths)


async def check(lp: Limpet, depths: list[int]) -> None:
    session = await lp.get(("a", "u", "deep"))
    assert [depth_of(session.state[name]) for name in ("r", "app:r", "user:r")] == depths
    assert session.history.damaged == ()
    assert (await lp.get(("a", "u", "other"))).state["n"] == 1
    assert (await lp.maintenance.verify()).findings == ()
