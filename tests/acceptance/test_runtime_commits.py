"""What a turn costs a store, counted on every one of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import limpet
from limpet import Limpet

WRITES = ("commit", "claim", "release", "renew", "acquire")


async def counted(lp: Limpet, harness: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The writes of one worker for one turn; claims that found nothing are reads."""
    session = await lp.create("support", "ada", actor="user:ada")
    await session.append("user.message", {"text": "hi"}, actor="user:ada")
    store, found = lp._journal.store, []

    def count(name: str) -> None:
        before: Any = getattr(store, name)

        async def writes(*args: Any, **how: Any) -> Any:
            answer = await before(*args, **how)
            if name != "claim" or answer:
                found.append(name)
            return answer

        monkeypatch.setattr(store, name, writes)

    for name in WRITES:
        count(name)
    async with asyncio.timeout(60):
        rates = await limpet.Worker(lp, harness, app="support", idle_exit=True).run()
    assert rates.turns == 1
    return found


async def test_an_empty_turn_takes_two_commits(lp: Limpet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim, and the end with everything in it, the lease given back too."""

    async def empty(turn: limpet.Turn) -> None:
        pass

    assert await counted(lp, empty, monkeypatch) == ["claim", "commit"]


async def test_a_turn_that_answers_takes_three_commits(
    lp: Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim, the answer with the beginning of the turn, and the end."""

    async def answers(turn: limpet.Turn) -> None:
        for message in turn.inputs:
            await turn.say(message.data["text"])

    assert await counted(lp, answers, monkeypatch) == ["claim", "commit", "commit"]
