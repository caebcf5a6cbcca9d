"""A rewind takes the conversation along, wherever the session goes, and never under a turn."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import limpet
from tests.support.command import run
from tests.support.shape_rules import RULES

ADA = "user:ada"


async def talked(lp: limpet.Limpet, *texts: str) -> limpet.Session:
    """A session in which people and an agent said these things in turn, from event 2 on."""
    s = await lp.create("support", "ada", actor=ADA)
    for n, text in enumerate(texts):
        await s.append("agent.message" if n % 2 else "user.message", {"text": text})
    return s


async def texts(s: Any) -> list[str]:
    for shape, rules in RULES.items():
        rules((await s.context(shape=shape)).messages)
    return [message.text for message in await s.messages()]


async def test_a_rewind_takes_the_conversation_along(lp: limpet.Limpet) -> None:
    """Although the state is the same; what comes later is shown; again it records nothing."""
    s = await talked(lp, "a", "b", "c", "d")
    done = await s.rewind(3)
    assert done.event is not None
    assert (done.event.type, done.restored) == ("session.rewound", ())
    assert await texts(s) == ["a", "b"]
    assert (await s.rewind(3)).event is None
    await s.append("user.message", {"text": "e"})
    assert await texts(s) == ["a", "b", "e"]
    assert await texts(await lp.get(s.key)) == ["a", "b", "e"]
    assert len(await s.read(types=["user.message", "agent.message"])) == 5


async def test_a_rewind_may_leave_the_conversation(lp: limpet.Limpet) -> None:
    """With messages=False only state goes back; without a change of state nothing is recorded."""
    s = await talked(lp, "a", "b")
    assert (await s.rewind(2, messages=False)).event is None
    await s.append("agent.message", {"text": "c"}, set={"n": 1})
    done = await s.rewind(3, messages=False)
    assert done.restored == ("n",)
    assert await texts(s) == ["a", "b", "c"]
    with pytest.raises(limpet.InvalidInput):
        await s.rewind(2, messages="no")  # type: ignore[arg-type]


async def test_a_rewind_of_the_conversation_can_be_rewound(lp: limpet.Limpet) -> None:
    """The conversation is that of the place, whatever was rewound before it."""
    s = await talked(lp, "a", "b", "c", "d")
    first = await s.rewind(3)
    assert first.event is not None
    await s.append("user.message", {"text": "e"})
    await s.rewind(2)
    assert await texts(s) == ["a"]
    await s.append("user.message", {"text": "f"})
    await s.rewind(first.event.seq - 1)
    assert await texts(s) == ["a", "b", "c", "d"]
    await s.rewind(first.event.seq + 1)
    assert await texts(s) == ["a", "b", "e"]
    await s.rewind(1)
    assert await texts(s) == []


async def test_restoring_a_checkpoint_takes_the_conversation_along(lp: limpet.Limpet) -> None:
    """It is a rewind; messages=False leaves the conversation there too."""
    s = await talked(lp, "a", "b")
    ref = await s.checkpoint(full=True)
    await s.append("user.message", {"text": "c"}, set={"n": 1})
    await s.history.restore(ref, messages=False)
    assert await texts(s) == ["a", "b", "c"]
    await s.history.restore(ref)
    assert await texts(s) == ["a", "b"]


async def test_forks_copies_and_compacted_logs_show_the_same(
    lp: limpet.Limpet, tmp_path: Path
) -> None:
    """What was rewound stays out of view in a fork, a file, another store and a compacted log."""
    s = await talked(lp, "a", "b", "c", "d")
    await s.rewind(3)
    await s.append("user.message", {"text": "e"})
    assert await texts(await s.fork()) == ["a", "b", "e"]
    assert await texts(await s.fork(5)) == ["a", "b", "c", "d"]
    fork = await s.fork()
    await fork.rewind(2)
    assert (await texts(fork), await texts(s)) == (["a"], ["a", "b", "e"])
    await lp.export(s.key, tmp_path / "one.limpet")
    async with limpet.open("memory://") as other:
        key = await other.import_(tmp_path / "one.limpet")
        assert await texts(await other.get(key)) == ["a", "b", "e"]
    async with limpet.open("memory://") as other:
        await lp.copy(s.key, to=other)
        assert await texts(await other.get(s.key)) == ["a", "b", "e"]
    await s.history.retention(events=1)
    await lp.maintenance.compact()
    assert await texts(await lp.get(s.key)) == ["a", "b", "e"]


async def test_a_turn_that_is_not_over_is_never_rewound(lp: limpet.Limpet) -> None:
    """Paused or running: refused, with the next step; after the interrupt it is done."""
    s = await talked(lp, "a")
    refused: list[str] = []

    async def harness(turn: limpet.Turn) -> None:
        with pytest.raises(limpet.errors.TurnUnderway):
            await s.rewind(1)
        await turn.say("b")
        for handle in (s, turn.session):
            with pytest.raises(limpet.errors.TurnUnderway) as caught:
                await handle.rewind(1)
            refused.append(caught.value.code)
        await turn.approve("wire", {})

    await lp.wake(s.key, harness)
    assert refused == ["turn.underway"] * 2
    for messages in (True, False):
        with pytest.raises(limpet.errors.TurnUnderway, match=r"s\.interrupt\(\)"):
            await s.rewind(1, messages=messages)
    await s.interrupt(actor=ADA)
    await s.rewind(2)
    assert await texts(s) == ["a"]
    await lp.wake(s.key, harness)  # the end of the interrupted turn is recorded now
    assert await texts(s) == ["a"]
    await s.rewind(1)
    assert await texts(s) == []


async def test_an_input_that_waits_is_shown_by_the_turn_that_takes_it_up(lp: limpet.Limpet) -> None:
    """Inputs are not taken back: the turn that answers one shows it where it begins."""
    s = await talked(lp, "a", "b")
    await s.mark_processed([2])
    await s.append("user.message", {"text": "c"})
    await s.rewind(3)
    assert (await texts(s), s.head.pending) == (["a", "b"], 1)
    contexts: list[list[Any]] = []

    async def harness(turn: limpet.Turn) -> None:
        contexts.append([m["content"] for m in (await turn.context()).messages])
        await turn.say("d")

    await lp.wake(s.key, harness)
    assert contexts == [["a", "b", "c"]]
    assert await texts(s) == ["a", "b", "c", "d"]


async def test_a_rewind_into_the_middle_of_a_call_leaves_a_result(lp: limpet.Limpet) -> None:
    """The call is shown; what became of it was taken back."""
    s = await talked(lp, "a")
    await s.append("agent.tool_use", {"request_id": "r", "name": "search", "input": {}})
    await s.append("agent.tool_result", {"request_id": "r", "output": "found"})
    await s.rewind(3)
    *_, call, result = await s.messages()
    assert (call.parts[0]["name"], result.synthetic) == ("search", True)
    assert await texts(s) == ["a", "", ""]


def test_the_command_says_how_to_go_on_with_a_turn_underway(tmp_path: Path) -> None:
    """It is refused, and names the command that ends the turn."""

    async def fill() -> None:
        async with limpet.open(f"sqlite:///{tmp_path}/support.db") as lp:
            s = await lp.create("support", "ada", "1", actor=ADA)
            await s.append("user.message", {"text": "a"})

            async def asks(turn: limpet.Turn) -> None:
                await turn.ask("rating", {})

            await lp.wake(s.key, asks)

    asyncio.run(fill())
    done = run(tmp_path, "rewind", "support.db", "support/ada/1", "1")
    assert (done.returncode, "limpet interrupt" in done.stderr) == (3, True)


def test_the_facade_and_the_command_take_the_same_choice(tmp_path: Path) -> None:
    """s.rewind(messages=) without await, and limpet rewind --keep-messages."""

    async def fill() -> None:
        async with limpet.open(f"sqlite:///{tmp_path}/support.db") as lp:
            s = await lp.create("support", "ada", "1", actor=ADA)
            for n in range(4):
                await s.append("user.message", {"text": str(n)}, set={"n": n})

    asyncio.run(fill())
    where = ("support.db", "support/ada/1")
    assert run(tmp_path, "rewind", *where, "3", "--keep-messages").returncode == 0
    with limpet.open_sync(f"sqlite:///{tmp_path}/support.db") as lp:
        s = lp.get("support", "ada", "1", actor=ADA)
        assert (len(s.messages()), s.values["n"]) == (4, 1)
    done = run(tmp_path, "rewind", *where, "3")
    assert (done.returncode, "restored nothing" not in done.stdout) == (0, True)
    with limpet.open_sync(f"sqlite:///{tmp_path}/support.db") as lp:
        s = lp.get("support", "ada", "1", actor=ADA)
        assert len(s.messages()) == 2
        assert s.rewind(2, messages=True).event is not None
        assert len(s.messages()) == 1
