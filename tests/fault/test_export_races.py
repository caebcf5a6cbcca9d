"""An export while others archive, bring back and replace the session that it reads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.errors import SessionArchived, SessionDeleted, SessionNotFound
from limpet.session.writer import writer_of

KEY = limpet.Key("race", "ada", "one")
READS = ("load", "base", "records")
GONE = (SessionArchived, SessionDeleted, SessionNotFound)


async def archived(lp: limpet.Limpet) -> None:
    if (await lp.get(KEY, archived=True)).phase == "completed":
        await lp.session(KEY).archive()


async def brought_back(lp: limpet.Limpet) -> None:
    if (await lp.get(KEY, archived=True)).phase == "archived":
        await lp.unarchive(KEY)


async def replaced(lp: limpet.Limpet) -> None:
    await lp.delete(KEY)
    s = await lp.create("race", "ada", id="one", actor="user:ada")
    for n in range(5):
        await s.append("a.b", {"n": n})


Meddling = Callable[[limpet.Limpet], Awaitable[None]]


@pytest.mark.parametrize(
    ("meddling", "then"),
    [(archived, None), (archived, brought_back), (replaced, None)],
    ids=["archived", "archived and brought back", "replaced"],
)
async def test_an_export_has_one_log_whatever_is_put_under_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meddling: Meddling, then: Meddling | None
) -> None:
    """Before any two of its reads the log goes, and comes back: the file proves itself, or there is
    none."""
    monkeypatch.setattr("limpet.session.move.import_export.PIECE_EVENTS", 2)
    done = False
    for first in range(30):
        for second in range(first + 1, first + 4 if then else first + 2):
            async with limpet.open("memory://", archive=f"file://{tmp_path}/cold") as lp:
                await prepare(lp)
                target = tmp_path / f"{first}-{second}.limpet"
                meddlings = {first: meddling, second: then}
                calls = Calls(lp, {n: m for n, m in meddlings.items() if m})
                with monkeypatch.context() as patched:
                    calls.listen(patched)
                    try:
                        await lp.export(KEY, target)
                    except GONE:
                        assert not target.exists()
                    else:
                        patched.undo()
                        async with limpet.open("memory://") as elsewhere:
                            assert await elsewhere.import_(target) == KEY
                done = calls.count <= first
        if done:
            break
    assert done
    assert first > 4


async def prepare(lp: limpet.Limpet) -> None:
    s = await lp.create("race", "ada", id="one", actor="user:ada")
    await s.append("user.message", {"text": "first"})
    for n in range(4):
        await s.append("a.b", {"n": n}, set={"n": n})
    await s.complete()


class Calls:
    """The reads of the store, before some of which something happens."""

    def __init__(self, lp: limpet.Limpet, meddlings: dict[int, Meddling]) -> None:
        self.lp, self.meddlings = lp, meddlings
        self.store: Any = writer_of(lp.session(KEY)).journal.store
        self.count, self.inside = 0, False

    def listen(self, patched: pytest.MonkeyPatch) -> None:
        for name in READS:
            patched.setattr(self.store, name, self._after(getattr(self.store, name)))

    def _after(self, read: Callable[..., Any]) -> Callable[..., Any]:
        async def reading(*args: Any, **named: Any) -> Any:
            if not self.inside:
                number, self.count = self.count, self.count + 1
                if number in self.meddlings:
                    self.inside = True
                    try:
                        await self.meddlings[number](self.lp)
                    finally:
                        self.inside = False
            return await read(*args, **named)

        return reading
