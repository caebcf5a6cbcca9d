"""A log with one wrong event is refused by an import, or every reader of it makes do."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from hypothesis import given, strategies as st

import limpet
from limpet.model import Commit, Event, Key, encode, thaw
from limpet.model.events import Body, prepare_encoded
from limpet.model.facts.running.runs import ERROR
from limpet.session.limpet import journal_of
from tests.support.examples import examples

KEY: Final = Key("shop", "ada", "one")
ADA: Final = "user:ada"
RAW: Final = ("KeyError", "TypeError", "AttributeError", "IndexError")
MISSING: Final = object()
WRONG: Final[tuple[Any, ...]] = (
    MISSING,
    None,
    5,
    -1,
    True,
    "x",
    "y" * 300,
    [],
    [None],
    {},
    {"x": None},
)


# --- a log with an event of every kind that readers look into -------------------------------------


@limpet.tool
async def search(q: str) -> str:
    """Look it up."""
    return "found"


async def unpay(*_: object, **__: object) -> None:
    """Undo what was paid."""


async def pay() -> str:
    return "paid"


async def fail() -> None:
    raise OSError("no")


async def speak(_: object) -> limpet.Reply:
    return limpet.Reply(text="hello", usage={"input": 5, "output": 3})


async def use(_: object) -> limpet.Reply:
    return limpet.Reply(text="", tool_calls=(limpet.ToolCall("c1", "search", {"q": "x"}),))


async def harness(turn: limpet.Turn) -> None:
    if turn.session.key.app == "helper":
        await turn.append("agent.message", {"text": "done"})
        return
    await turn.step("plan", lambda: {"a": 1})
    await turn.effect("pay", pay, compensate="unpay")
    try:
        await turn.effect("fail", fail)
    except limpet.errors.EffectFailed:
        await turn.append("agent.message", {"text": "it failed"})
    await turn.model("speak", speak)
    await (await turn.delegate("helper", "do it", title="Do it")).result()
    await turn.ask("where", {"of": [1]})
    await turn.stream("say", [{"text": "a", "usage": {"input": 1, "output": 1}}])
    for call in (await turn.model("use", use, tools=[search])).tool_calls:
        await turn.tool(call, search)
    await turn.approve("wire", {"eur": 1})


@asynccontextmanager
async def opened() -> AsyncIterator[limpet.Limpet]:
    async with limpet.open("memory://") as lp:
        lp.policies.lifecycle("shop", compensations={"unpay": unpay})
        yield lp


async def recorded() -> tuple[Event, ...]:
    async with opened() as lp:
        s = await lp.create(*_names(), actor=ADA, budget=limpet.Budget(cost=5.0, tokens=10_000))
        await s.append("user.message", {"text": "go"})
        while s.stop_reason != "end_turn":
            await lp.wake(KEY, harness)
            for head in (await lp.list(app="helper")).items:
                await lp.wake(head.key, harness)
            await s.refresh()
            for request in s.blocked_on:
                if request.kind == "approval":
                    await s.confirm(request.id, allow=True)
                elif request.kind == "question":
                    await s.answer(request.id, 1)
        await s.label({"plan": "gold"})
        await s.append("user.message", {"text": "again"})
        return await s.read(limit=1_000)


def _names() -> tuple[str, str, str]:
    return KEY.app, KEY.user, KEY.id


@cache
def good() -> tuple[Event, ...]:
    return asyncio.run(recorded())


# --- one member of it is wrong --------------------------------------------------------------------


@st.composite
def spoiled(draw: st.DrawFn) -> tuple[int, int, Any]:
    """How much of the log is there, the seq of an event in it, and the wrong data of that."""
    events = good()
    seq = draw(st.integers(1, len(events)))
    data = thaw(events[seq - 1].data) or {}
    inside = data
    while inside and isinstance(inside, dict):
        name, wrong = draw(st.sampled_from(sorted(inside))), draw(st.sampled_from(WRONG))
        deeper = inside[name]
        if isinstance(deeper, dict) and deeper and draw(st.booleans()):
            inside = deeper
            continue
        inside.pop(name) if wrong is MISSING else inside.update({name: wrong})
        break
    upto = draw(st.one_of(st.just(len(events)), st.integers(seq, len(events))))
    return upto, seq, data


async def write(lp: limpet.Limpet, events: tuple[Event, ...], seq: int, data: Any) -> None:
    """Record a log by hand, with this data in one of its events."""
    store = journal_of(lp).store
    for event in events:
        names = (event.id, event.type, event.actor, event.cause, event.invocation_id)
        raw = encode(Body(data if event.seq == seq else thaw(event.data), event.ops))
        by_type = event.type.startswith(("user.", "system."))
        draft = prepare_encoded(
            (*names, event.correlation_id, event.wake_id),
            raw,
            caller_chose_id=False,
            input=event.processed is not None and not by_type,
        )
        await store.commit([Commit(KEY, (draft,), 0 if event.seq == 1 else None)])


def readers(lp: limpet.Limpet, s: limpet.Session[Any]) -> list[Callable[[], Awaitable[object]]]:
    async def traces() -> None:
        for wake in await s.runs.wakes():
            await s.runs.trace(str(wake.wake_id))

    async def shown() -> object:
        return s.status, s.stop_reason, s.blocked_on, s.runs.budget, s.runs.failure, s.head.timers

    return [
        shown,
        lambda: s.read(limit=1_000),
        s.messages,
        lambda: s.context(tokens=1_000),
        s.pending,
        s.runs.wakes,
        s.runs.activations,
        traces,
        s.runs.children,
        s.runs.tree,
        s.history.lineage,
        lambda: s.history.blame("n"),
        s.outcome.history,
        lp.inbox,
        lambda: lp.graph(KEY),
        s.relations,
        lambda: lp.wake(KEY, harness),
        lp.work.sweep,
        s.terminate,
        lambda: lp.wake(KEY, harness),
    ]


async def hold(upto: int, seq: int, data: Any, folder: Path) -> None:
    events = good()[:upto]
    async with opened() as source, opened() as lp:
        try:
            await write(source, events, seq, data)
            await source.export(KEY, folder / "log.limpet")
            await lp.import_(folder / "log.limpet")
        except limpet.LimpetError:
            return
        s = await lp.get(KEY, actor=ADA)
        for read in readers(lp, s):
            try:
                await read()
            except limpet.LimpetError:
                continue
        failures = [e.data for e in await s.read(limit=1_000) if e.type == ERROR and e.data]
        raised = [str(each.get("message")) for each in failures if each is not data]
        assert [each for each in raised if each.startswith(RAW)] == []


@examples(300)
@given(spoiled())
def test_a_wrong_event_is_refused_or_every_reader_copes(
    log: tuple[int, int, Any],
) -> None:
    """No reader raises but an error of ours: neither what a person asks for nor a turn that goes
    on, and what undoes it."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(hold(*log, Path(folder)))


def test_the_log_without_a_wrong_event_is_adopted_and_read() -> None:
    """Otherwise the examples would show nothing."""
    events = good()
    types = {event.type for event in events}
    assert {
        "step.recorded",
        "effect.failed",
        "session.child_created",
        "session.child_ended",
    } <= types
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(hold(len(events), 0, None, Path(folder)))
        assert (Path(folder) / "log.limpet").exists()
