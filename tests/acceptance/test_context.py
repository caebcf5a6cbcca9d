"""The conversation as a model sees it: always valid for its API, within its budget of tokens."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

import limpet
from limpet.session.conversation.context import compile_context
from limpet.session.conversation.messages import DENIED, UNKNOWN, messages_in
from limpet.session.conversation.shapes import SHAPES, render
from tests.support.shape_rules import RULES

KEY = limpet.Key("support", "ada", "one")
ASK = {"request_id": "r1", "name": "search", "input": {"q": "x"}}


async def told(lp: limpet.Limpet, *events: tuple[str, dict[str, Any]]) -> limpet.Session:
    s = await lp.create("support", "ada", actor="agent:main")
    for type, data in events:
        await s.append(type, data)
    return s


async def valid(s: limpet.Session, **how: Any) -> dict[str, limpet.Context]:
    """The context in every shape, each checked by the rules of its API."""
    found = {shape: await s.context(shape=shape, **how) for shape in SHAPES}
    for shape, context in found.items():
        RULES[shape](context.messages)
    return found


async def test_a_conversation_is_shown_in_each_shape(lp: limpet.Limpet) -> None:
    """Texts, a call and its outcome look as each API wants them."""
    s = await told(
        lp,
        ("system.message", {"text": "be brief"}),
        ("user.message", {"text": "hi"}),
        ("agent.message", {"text": "looking"}),
        ("agent.tool_use", ASK),
        ("agent.tool_result", {"request_id": "r1", "output": {"n": 1}}),
        ("agent.message", {"text": "found 1"}),
    )
    shown = await valid(s)
    call = {"name": "search", "arguments": '{"q":"x"}'}
    assert shown["openai"].messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "looking",
            "tool_calls": [{"id": "r1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "r1", "content": '{"n":1}'},
        {"role": "assistant", "content": "found 1"},
    ]
    assert shown["anthropic"].system == shown["gemini"].system == "be brief"
    assert shown["anthropic"].messages[1]["content"][1] == {
        "type": "tool_use",
        "id": "r1",
        "name": "search",
        "input": {"q": "x"},
    }
    assert shown["gemini"].messages[2]["parts"] == [
        {"functionResponse": {"name": "search", "response": {"output": {"n": 1}}}}
    ]
    assert shown["openai-responses"].messages[3:5] == [
        {"type": "function_call", "call_id": "r1", **call},
        {"type": "function_call_output", "call_id": "r1", "output": '{"n":1}'},
    ]
    assert [c.dropped for c in shown.values()] == [0] * 4


async def test_messages_name_the_event_that_recorded_them(lp: limpet.Limpet) -> None:
    """Each message has its role, its parts and its event."""
    s = await told(lp, ("user.message", {"content": [{"type": "text", "text": "a"}, "b"]}))
    (message,) = await s.messages()
    assert message.role == "user"
    assert [part["text"] for part in message.parts] == ["a", "b"]
    assert message.event.seq == 2


async def test_a_session_holds_several_conversations(lp: limpet.Limpet) -> None:
    """Each is what was recorded with its correlation_id; the log and the state are one."""
    s = await lp.create("support", "ada", actor="user:ada")
    for n, name in enumerate(("refund", "weather", "refund")):
        await s.append(
            "user.message", {"text": f"{n}"}, trace=limpet.Trace(correlation_id=name), inc={"n": 1}
        )
    await s.append("agent.tool_use", ASK, trace=limpet.Trace(correlation_id="refund"))
    texts = [m.text for m in await s.messages(correlation_id="refund")]
    assert texts[:2] == ["0", "2"]
    assert [m.role for m in await s.messages(correlation_id="refund")][2:] == ["assistant", "tool"]
    assert [m.text for m in await s.messages(correlation_id="weather")] == ["1"]
    shown = await s.context(correlation_id="weather", tokens=50)
    assert shown.messages == [{"role": "user", "content": "1"}]
    assert (len(await s.messages()), s.values["n"]) == (5, 3)


async def test_the_text_of_a_message_is_what_it_says_in_words(lp: limpet.Limpet) -> None:
    """Its text parts, one after another; a tool call says nothing in words."""
    image = {"type": "image", "url": "https://example.org/x.png"}
    parts = [{"type": "text", "text": "one, "}, image, {"type": "text", "text": "two"}]
    s = await told(lp, ("user.message", {"content": parts}), ("agent.tool_use", ASK))
    assert [message.text for message in await s.messages()][:2] == ["one, two", ""]


async def test_a_call_without_an_outcome_gets_one_that_says_so(lp: limpet.Limpet) -> None:
    """A process that died between a call and its outcome leaves a log that every model accepts."""
    s = await told(
        lp,
        ("user.message", {"text": "hi"}),
        ("agent.tool_use", ASK),
        ("user.message", {"text": "are you there?"}),
    )
    messages = await s.messages()
    assert [(m.role, m.synthetic) for m in messages] == [
        ("user", False),
        ("assistant", False),
        ("tool", True),
        ("user", False),
    ]
    assert messages[2].parts[0]["output"] == UNKNOWN
    assert s.version == 4  # the log is untouched
    await valid(s)


async def test_an_outcome_that_came_late_is_shown_with_its_call(lp: limpet.Limpet) -> None:
    """Results stand after their calls, wherever they were recorded, and once."""
    s = await told(
        lp,
        ("user.message", {"text": "hi"}),
        ("agent.tool_use", ASK),
        ("agent.tool_use", {**ASK, "request_id": "r2"}),
        ("user.message", {"text": "hurry"}),
        ("agent.tool_result", {"request_id": "r2", "output": "two"}),
        ("user.custom_tool_result", {"request_id": "r1", "output": "one"}),
        ("agent.tool_result", {"request_id": "r1", "output": "again"}),
    )
    roles = [m.role for m in await s.messages()]
    assert roles == ["user", "assistant", "assistant", "tool", "tool", "user"]
    shown = await valid(s)
    assert [m.get("content") for m in shown["openai"].messages[2:4]] == ["one", "two"]


async def test_a_refused_call_says_that_it_was_refused(lp: limpet.Limpet) -> None:
    """A confirmation that denies a call is its outcome."""
    s = await told(
        lp,
        ("user.message", {"text": "hi"}),
        ("agent.tool_use", ASK),
        ("user.tool_confirmation", {"request_id": "r1", "allow": False, "note": "too dear"}),
    )
    assert (await s.messages())[-1].parts[0]["output"] == f"{DENIED} too dear"
    await valid(s)


async def test_the_newest_messages_are_kept_within_the_budget(lp: limpet.Limpet) -> None:
    """What is shown never has more tokens than asked for; the rest is counted."""
    s = await told(lp, *[("user.message", {"text": f"{n} " + "x" * 100}) for n in range(20)])
    for shape, context in (await valid(s, tokens=200)).items():
        assert context.tokens <= 200, shape
        assert context.dropped > 0
        assert "19 " in str(context.messages[-1])
    everything = await s.context()
    assert (everything.dropped, len(everything.messages)) == (0, 20)


async def test_pinned_messages_are_kept_first(lp: limpet.Limpet) -> None:
    """A message pinned by its data or by its seq stays, however old it is."""
    events = [("user.message", {"text": f"{n} " + "x" * 100}) for n in range(20)]
    s = await told(lp, ("user.message", {"text": "rule", "pinned": True}), *events)
    shown = await s.context(tokens=200, pinned=[5])
    texts = [m["content"][:4].strip() for m in shown.messages]
    assert texts[0] == "rule"
    assert texts[1].startswith("2 ")
    assert texts[-1].startswith("19")


async def test_a_call_is_never_kept_without_its_outcome(lp: limpet.Limpet) -> None:
    """Whatever the budget, what is shown is valid for its API."""
    turn = [("user.message", {"text": "x" * 30}), ("agent.message", {"text": "y" * 30})]
    calls = []
    for n in range(12):
        calls += [*turn, ("agent.tool_use", {**ASK, "request_id": f"r{n}"})]
        if n % 3:
            calls.append(("agent.tool_result", {"request_id": f"r{n}", "output": "z" * 30}))
    s = await told(lp, *calls)
    for tokens in range(90, 700, 16):
        for context in (await valid(s, tokens=tokens)).values():
            assert context.tokens <= tokens


async def test_what_falls_out_can_be_summarized(lp: limpet.Limpet) -> None:
    """The summary hook sees what did not fit, and its text stands for it."""
    s = await told(lp, *[("user.message", {"text": f"{n} " + "x" * 100}) for n in range(20)])
    seen: list[int] = []

    async def summarize(messages: list[limpet.Message]) -> str:
        seen.extend(m.event.seq for m in messages)
        return "they counted"

    context = await s.context(tokens=300, shape="anthropic", summarize=summarize)
    assert context.system.endswith("they counted")
    assert seen
    assert min(seen) == 2
    assert context.tokens <= 300


async def test_a_budget_that_the_newest_does_not_fit_is_refused(lp: limpet.Limpet) -> None:
    """An empty context would be a lie: the error says what is needed."""
    s = await told(lp, ("user.message", {"text": "x" * 1_000}))
    with pytest.raises(limpet.errors.InsufficientTokenBudget) as caught:
        await s.context(tokens=20)
    assert caught.value.available == 20
    assert caught.value.needed > 200


async def test_tokens_are_counted_by_the_callers_function(lp: limpet.Limpet) -> None:
    """`count` measures each message."""
    s = await told(lp, *[("user.message", {"text": str(n)}) for n in range(9)])
    context = await s.context(tokens=3, count=lambda text: 1)
    assert (context.tokens, context.dropped) == (3, 6)


async def test_images_take_the_form_of_each_api(lp: limpet.Limpet) -> None:
    """An image by URL or by data is an image in every shape."""
    parts = [{"type": "text", "text": "look"}, {"type": "image", "url": "https://x/a.png"}]
    parts.append({"type": "image", "data": "aGk=", "media_type": "image/jpeg"})
    s = await told(lp, ("user.message", {"content": [*parts, {"type": "file", "name": "a.pdf"}]}))
    shown = await valid(s)
    kinds = [part["type"] for part in shown["anthropic"].messages[0]["content"]]
    assert kinds == ["text", "image", "image", "text"]
    image = shown["openai"].messages[0]["content"][2]["image_url"]["url"]
    assert image == "data:image/jpeg;base64,aGk="
    assert "fileData" in shown["gemini"].messages[0]["parts"][1]


@pytest.mark.arguments
@pytest.mark.parametrize(
    "wrong", [{"shape": "other"}, {"tokens": 0}, {"tokens": 1.5}, {"count": 3}, {"system": 7}]
)
async def test_wrong_arguments_are_refused(lp: limpet.Limpet, wrong: dict[str, Any]) -> None:
    """What cannot be meant is the caller's mistake."""
    s = await told(lp, ("user.message", {"text": "hi"}))
    with pytest.raises(limpet.InvalidInput):
        await s.context(**wrong)


# --- what a provider wants back -------------------------------------------------------------------

THINKING = {"type": "thinking", "thinking": "hm", "signature": "s"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}


def thought(shape: str, *items: Any, text: str = "") -> tuple[str, dict[str, Any]]:
    return "agent.message", {"text": text, "native": {"shape": shape, "items": [*items]}}


async def test_signed_thoughts_go_back_to_their_provider_only(lp: limpet.Limpet) -> None:
    """Thinking first in the model's turn, reasoning before its call, a signature beside its call;
    in the other forms nothing of it is seen."""
    for shape, item in (("anthropic", THINKING), ("openai-responses", REASONING)):
        s = await told(
            lp,
            ("user.message", {"text": "hi"}),
            ("agent.message", {"text": "one moment"}),
            thought(shape, item),
            ("agent.tool_use", {**ASK, "signature": "c2lnbmVk"}),
        )
        contexts = await valid(s)
        for other in {*SHAPES} - {shape}:
            assert item["type"] not in str(contexts[other].messages)
        signed = [p.get("thoughtSignature") for p in contexts["gemini"].messages[1]["parts"]]
        assert signed == [None, "c2lnbmVk"]
        messages = contexts[shape].messages
        if shape == "anthropic":
            kinds = [block["type"] for block in messages[1]["content"]]
            assert (kinds, messages[1]["content"][0]) == (["thinking", "text", "tool_use"], item)
        else:
            kinds = [each.get("type", each.get("role")) for each in messages[1:4]]
            assert (kinds, messages[2]) == (["assistant", "reasoning", "function_call"], item)
        assert "c2lnbmVk" not in str([contexts[n].messages for n in SHAPES if n != "gemini"])


async def test_a_message_with_thoughts_only_is_not_shown(lp: limpet.Limpet) -> None:
    """No API takes thoughts without what came of them; what is not theirs is left out."""
    s = await told(
        lp,
        ("user.message", {"text": "hi"}),
        thought("anthropic", THINKING),
        thought("openai-responses", REASONING),
        ("user.message", {"text": "and?"}),
        thought("anthropic", {"type": "text", "text": "x"}, 5, text="so"),
        ("agent.message", {"text": "x", "native": "y"}),
    )
    assert [m.role for m in await s.messages()] == ["user", "user", "assistant", "assistant"]
    await valid(s)


# --- any log at all -----------------------------------------------------------------------------

TEXTS = ("", " ", "hi", "two words ", "é\n", "x" * 50)
IDS = ("r1", "r2", "r3", "bad id/é", "y" * 90, None, 7)
NAMES = ("search", "9lives", "a b/ü", "", None, "n" * 100)


def any_event(rng: random.Random) -> tuple[str, Any]:
    """One event as a harness, a user, a crash or a careless adapter may leave it."""
    data: dict[str, Any] = {}
    type = rng.choice(
        [
            *["user.message", "agent.message", "agent.tool_use", "agent.tool_result"] * 3,
            *["agent.custom_tool_use", "user.custom_tool_result", "system.message"],
            *["user.tool_confirmation", "user.interrupt", "user.define_outcome", "agent.thought"],
        ]
    )
    if "tool" in type:
        data["request_id"] = rng.choice(IDS)
        data |= {"name": rng.choice(NAMES), "input": rng.choice([{}, {"q": 1}, [1], "x", None])}
        data |= {"output": rng.choice(["", "ok", {"n": [1]}, None, 3]), "allow": rng.random() < 0.5}
        data["is_error"] = rng.random() < 0.2
    elif rng.random() < 0.8:
        data["text"] = rng.choice(TEXTS)
    else:
        parts = [rng.choice(TEXTS), {"type": "text", "text": rng.choice(TEXTS)}]
        parts += [{"type": "image", "url": "https://x"}, {"type": "tool_use", "id": 1}, 5]
        data["content"] = rng.sample(parts, rng.randrange(6))
    if "tool" in type and rng.random() < 0.3:
        data["awaits"] = rng.choice(["approval", "question", "unknown_effect", "mismatch", 3])
    if "tool_use" in type and rng.random() < 0.2:
        data["signature"] = rng.choice(["c2lnbmVk", "", 5])
    if type == "agent.message" and rng.random() < 0.3:
        items = [rng.choice([THINKING, REASONING, {"type": "text"}, 5]) for _ in range(2)]
        data["native"] = rng.choice([{"shape": rng.choice(SHAPES), "items": items}, {}, 7])
    if rng.random() < 0.05:
        data["pinned"] = True
    return type, None if rng.random() < 0.03 else data


def any_log(rng: random.Random) -> list[limpet.Event]:
    """Events in any order, as interleaved writers, crashes and interrupts leave them."""
    found, turn = [], None
    for seq in range(1, rng.randrange(2, 30)):
        type, data = any_event(rng)
        if rng.random() < 0.1:
            type, data = "session.rewound", {"at": rng.randrange(seq), "messages": True}
        elif rng.random() < 0.1:
            turn, inputs = f"t{seq}", rng.sample(range(1, 30), 2)
            type, data = "span.started", {"kind": "wake", "turn": turn, "inputs": inputs}
        more = {"processed": rng.choice([None, 0, 5])} if type.startswith("user.") else {}
        of = turn if type.startswith("agent.") and rng.random() < 0.7 else None
        event = limpet.Event(seq, f"id-{seq}", type, "a", seq, data, invocation_id=of, **more)
        found.append(event)
    return found


def check_any(first: int, last: int) -> None:
    for seed in range(first, last):
        rng = random.Random(seed)
        messages = messages_in(any_log(rng))
        for shape in SHAPES:
            try:
                RULES[shape](render(shape, "", messages)[1])
                check_window(rng, shape, messages)
            except AssertionError as broken:
                raise AssertionError(f"seed {seed}, {shape}: {broken}") from broken


def check_window(rng: random.Random, shape: Any, messages: list[limpet.Message]) -> None:
    """Within a budget it is valid for its API too, has the newest, and has what is pinned."""
    budget, left = rng.randrange(20, 500), []
    pins = rng.sample(range(1, 30), 2) if rng.random() < 0.5 else []
    how: dict[str, Any] = {"count": None, "system": rng.choice(["", "be brief"]), "pinned": pins}

    def summarize(fell_out: list[limpet.Message]) -> str:
        left.extend(fell_out)
        return ""

    making = compile_context(KEY, messages, tokens=budget, shape=shape, summarize=summarize, **how)
    try:
        making.send(None)
    except limpet.errors.InsufficientTokenBudget:
        return
    except StopIteration as made:
        context = made.value
    RULES[shape](context.messages)
    texts = [
        json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in context.messages
    ]
    tokens = sum(
        [max(1, (len(text) + 3) // 4) for text in [*texts, *filter(None, [context.system])]]
    )
    assert tokens <= budget, "more tokens than there is room for"
    assert context.dropped >= len(left), "what fell out is counted"
    pinned = {m.event.seq for m in messages if m.event.seq in pins or m.event.data.get("pinned")}
    assert not pinned & {m.event.seq for m in left}, "what is pinned stays"
    if not pinned:
        assert left == messages[: len(left)], "the oldest go first"


def test_any_log_is_valid_for_every_api() -> None:
    """Messages, calls, crashes and interrupts in any order leave nothing that an API refuses."""
    check_any(0, 300)


@pytest.mark.torture
def test_ten_thousand_logs_are_valid_for_every_api() -> None:
    """The same, many more times."""
    check_any(300, 10_300)
