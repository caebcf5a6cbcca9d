"""A session object that several tasks share: one reads a hole while another is about to decide."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Key, Limpet, State
from limpet.model.commit import Commit
from limpet.store.protocol import Committed
from limpet.store.sqlite.store import SQLiteStore
from tests.acceptance.test_unreadable import Moody

KEY = Key("a", "u", "one")


class Counting(State):
    n: int = 0


class Pausing(SQLiteStore):
    """A store whose first commit is asked for, and then something else happens before it."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    def commit(self, commits: Sequence[Commit]) -> Coroutine[Any, Any, tuple[Committed, ...]]:
        return self._later(commits)

    async def _later(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return await super().commit(commits)


@pytest.mark.parametrize("typed", [False, True], ids=["plain", "typed"])
async def test_an_update_is_not_computed_on_a_hole_that_came_meanwhile(
    tmp_path: Path, *, typed: bool
) -> None:
    """While it asks whether its id was recorded before, another task may read state with a hole."""
    seal = Moody()
    async with limpet.open(f"sqlite:///{tmp_path}/a.db", seal=seal) as lp:
        state: Any = Counting() if typed else {"n": 0}
        made = await lp.create("a", "u", id="one", state=state, actor="b")
        await made.append("a.raised", id="raised", inc={"n": 5})
        await made.append("a.raised", inc={"n": 1})
    store = await Pausing.open(tmp_path / "a.db", seal=seal)
    async with Limpet("sqlite:///", store=store) as lp:
        how: dict[str, Any] = {"state_type": Counting} if typed else {}
        s = await lp.get(KEY, actor="a", **how)

        async def read_a_hole() -> None:
            seal.forget("raised")
            await s.refresh()
            seal.recover()
            assert s.history.damaged == (2,)

        store.meanwhile = read_a_hole
        await s.update(lambda found: {"n": (found.n if typed else found["n"]) + 1}, id="mine")
        assert (await lp.get(KEY)).values["n"] == 7
