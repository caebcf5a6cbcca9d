"""What a model sees of any history that the runtime can produce is valid for every provider.

Hypothesis drives real wakes: models call tools that ask, fail, hang, are denied or unknown; workers
die at any commit; people interrupt, answer, rewind and fork; logs are compacted and work is
delegated. Each context, of every model call and from outside, is checked by each API's own rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeAlias

from hypothesis import given, settings, strategies as st

import limpet
from limpet import ModelRequest, Piece, Reply, ToolCall
from limpet.errors import InsufficientTokenBudget, TurnUnderway
from limpet.runtime.wake import Wake, harness_options
from tests.support import seeds
from tests.support.agents import World, a_world, decide
from tests.support.shape_rules import RULES

SHAPES: Any = tuple(RULES)
OURS = ("wire", "rating", "sum")  # what the harness asks and does, which no model calls
OPTIONS: Any = {"permissions": {"sum": "always_ask"}, "retries": 1}
Action: TypeAlias = tuple[Any, ...]


@limpet.tool(pure=True)
def look() -> str:
    """Look."""
    return "seen"


@limpet.tool(permission="always_ask")
async def pay(idempotency_key: str) -> dict[str, int]:
    """Pay."""
    await asyncio.sleep(0)
    return {"paid": 1}


@limpet.tool
async def fail() -> None:
    """Fail."""
    raise KeyError("gone")


@limpet.tool
async def hang() -> None:
    """Take too long: nobody knows what it has done."""
    raise TimeoutError


@limpet.tool(on_unknown="retry")
async def again() -> str:
    """Take nothing, and say nothing."""
    return " "


TOOLS = [look, pay, fail, hang, again, limpet.Tool("pick", "1.0.0", {"type": "object"})]
NAMES = [*[tool.name for tool in TOOLS], "nonsense", "bad name/é", ""]
NATIVE = {
    "anthropic": {"type": "thinking", "thinking": "hm", "signature": "s"},
    "openai-responses": {"type": "reasoning", "id": "rs_1", "summary": []},
}

replies = st.tuples(
    st.sampled_from(["", " ", "Well."]),
    st.lists(st.sampled_from(NAMES), max_size=3),
    st.sampled_from(SHAPES),
    st.booleans(),  # with thoughts
)
endings = st.sampled_from(["say", "approve", "ask", "effect", "delegate", "raise", "nothing"])
actions = st.one_of(
    st.tuples(st.just("send")),
    st.tuples(st.just("work")),
    st.tuples(st.just("work")),
    st.tuples(st.just("die"), st.integers(1, 8), st.booleans()),
    st.tuples(st.just("decide"), st.booleans()),
    st.tuples(st.just("decide"), st.booleans()),
    st.tuples(st.just("interrupt"), st.sampled_from([None, "otherwise, please"])),
    st.tuples(st.just("later"), st.sampled_from([31, 3_600])),
    st.tuples(st.just("rewind"), st.integers(0, 40), st.booleans()),
    st.tuples(st.just("fork"), st.integers(0, 40), st.booleans()),
    st.tuples(st.just("compact")),
)


class Histories:
    """A session, an agent that does what a script says, and people who act on it."""

    def __init__(self, world: World, said: Sequence[Any], ends: Sequence[str]) -> None:
        self._world, self._said, self._ends = world, iter(said), iter(ends)
        self._plans: dict[str, str] = {}  # how a turn ends: the same in each of its runs
        self._calls = self._sent = 0

    def model(self, request: ModelRequest) -> Any:
        """Check what is asked, and say what comes next in the script."""
        RULES[request.shape](list(request.messages))
        check_hidden(str(request.messages))
        text, names, _, thinks = next(self._said, ("Enough.", [], None, False))
        self._calls += 1
        calls = tuple([ToolCall("same", name, {}) for name in names])
        if thinks and request.shape in NATIVE:
            return thinking(Reply(text, calls), NATIVE[request.shape])
        return Reply(text, calls)

    async def harness(self, turn: limpet.Turn) -> None:
        """The loop, and then something that the model knows nothing of."""
        shapes = [SHAPES[(self._calls + n) % len(SHAPES)] for n in range(4)]
        for shape in shapes:
            await self._check_inputs(turn)
            reply = await turn.model("model", self.model, tools=TOOLS, shape=shape)
            if not reply.tool_calls:
                break
            if reply.text == " ":
                return  # the calls are ignored
            if reply.text:
                await self.send()
            await asyncio.gather(*[turn.tool(call) for call in reply.tool_calls])
        await self._end(turn, self._plans.setdefault(turn.id, next(self._ends, "say")))

    async def _check_inputs(self, turn: limpet.Turn) -> None:
        """Check that a turn sees what it is about, and nothing that waits for another one."""
        said = str((await turn.context()).messages)
        for event in turn.inputs:
            assert event.type != "user.message" or event.data["text"] in said, "an input is missing"
        for event in await turn.news():
            assert event.type != "user.message" or event.data["text"] not in said, "it waits"

    async def send(self) -> None:
        self._sent += 1
        await self._world.send(f"Message {self._sent}.")

    async def _end(self, turn: limpet.Turn, how: str) -> None:
        if how == "say":
            await turn.say("Done.")
        elif how == "approve":
            await turn.approve("wire", {}, deadline=timedelta(minutes=5))
        elif how == "ask":
            await turn.ask("rating", {})
        elif how == "effect":
            await turn.effect("sum", total)
        elif how == "delegate":
            child = await turn.delegate("helper", "help")
            await child.result()
        elif how == "raise":
            raise RuntimeError("no")

    async def act(self, action: Action) -> None:
        """Do one thing to the session; what is refused is refused, and nothing else happens."""
        world, (kind, *given) = self._world, action
        await world.session.refresh()
        if kind == "send":
            await self.send()
        elif kind == "work":
            for woken in await world.work(self.harness, **OPTIONS):
                if isinstance(woken.error, AssertionError):
                    raise woken.error
            await self._work_of_children()
        elif kind == "die":
            await world.die(self.harness, given[0], recorded=given[1])
            world.later()
        elif kind == "decide":
            for request in world.session.blocked_on:
                if request.kind == "question":
                    await world.session.answer(request.id, "red", actor="user:ada")
                else:
                    await decide(world.session, request, allow=given[0])
        elif kind == "interrupt":
            await world.session.interrupt(given[0], actor="user:ada")
        elif kind == "later":
            world.later(given[0])
        elif kind == "compact":
            await world.session.history.retention(events=3, actor="user:ada")
            await world.lp.maintenance.compact()
        else:
            await self._go_back(kind, *given)

    async def _work_of_children(self) -> None:
        async def help(turn: limpet.Turn) -> None:
            await turn.say("Helped.")

        for _ in range(9):
            leases = await self._world.lp.work.claim("h", lease_seconds=30, app="helper", limit=9)
            for lease in leases:
                await Wake(self._world.lp, lease, harness_options(help)).run()

    async def _go_back(self, kind: str, seq: int, choice: bool) -> None:  # drawn
        session = self._world.session
        at = min(max(seq, 1), session.version)
        if kind == "rewind":
            try:
                await session.rewind(at, messages=choice, actor="user:ada")
            except TurnUnderway:
                return
        else:
            fork = await session.fork(at, actor="user:ada")
            await checked(fork)
            self._world.session = fork if choice else session


async def total() -> int:
    return 3


async def thinking(reply: Reply, native: dict[str, Any]) -> Any:
    """A reply in pieces, with what its provider wants back."""
    yield Piece(native=native)
    yield Piece(text=reply.text)
    for number, call in enumerate(reply.tool_calls):
        tool = {"index": number, "id": call.id, "name": call.name, "arguments": "{}"}
        yield Piece(tool={**tool, "signature": "c2lnbmVk"})


def check_hidden(text: str) -> None:
    """Raise if something is shown that was between the harness and people."""
    for name in OURS:
        assert f"'{name}'" not in text, f"{name} is not the model's"
    assert "'allow'" not in text, "an approval is not a result"


async def checked(session: limpet.Session[Any]) -> None:
    """Check what is seen from outside, in every shape and with little room."""
    messages = await session.messages()
    check_hidden(str([message.parts for message in messages]))
    for shape in SHAPES:
        RULES[shape]((await session.context(shape=shape)).messages)
        with suppress(InsufficientTokenBudget):
            RULES[shape]((await session.context(shape=shape, tokens=150)).messages)
    calls = [m.parts[0]["request_id"] for m in messages if m.parts[0]["type"] == "tool_use"]
    results = [m.parts[0]["request_id"] for m in messages if m.role == "tool"]
    assert calls == results, "every call has one result, in the order of the calls"
    await check_complete(session, calls)


async def check_complete(session: limpet.Session[Any], calls: list[str]) -> None:
    """Where nothing was rewound, every call that a model made is shown."""
    events = [e async for e in everything(session)]
    if any(e.type == "session.rewound" and e.data.get("messages") for e in events):
        return
    made = [e for e in events if e.type == "agent.tool_use" and "awaits" not in e.data]
    assert [e.data["request_id"] for e in made] == calls


async def everything(session: limpet.Session[Any]) -> Any:
    after = 0
    while page := await session.read(after=after, limit=1_000):
        for event in page:
            yield event
        after = page[-1].seq


@given(
    st.lists(replies, max_size=12),
    st.lists(endings, max_size=6),
    st.lists(actions, min_size=1, max_size=20),
)
@settings(max_examples=2_000 if seeds.fresh() else 60)
def test_every_history_of_the_runtime_gives_a_valid_context(
    said: list[Any], ends: list[str], acts: list[Action]
) -> None:
    """Denied, timed out, interrupted, unknown, crashed, rewound, forked, compacted, delegated."""

    async def within() -> None:
        async with a_world() as world:
            await world.begin("Hello.")
            histories = Histories(world, said, ends)
            for action in [*acts, ("later", 3_600), ("work",), ("decide", True), ("work",)]:
                await histories.act(action)
                await checked(world.session)

    asyncio.run(within())
