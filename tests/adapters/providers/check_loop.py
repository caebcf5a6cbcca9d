"""The agent loop on the official clients: what a provider wants back is given back to it."""

from __future__ import annotations

import base64
from typing import Any

import pytest

import limpet
from tests.adapters.providers.check_wire import SHAPES, model_of, weather
from tests.support.provider_server import Provider, Said, serving

CALLS = (
    ("call_1", "weather", ('{"city": ', '"Kyiv"}')),
    ("call_2", "weather", ('{"city": "Rome"}',)),
)


async def asked_twice(shape: str, *said: Said) -> Provider:
    """Run an agent whose model says these, in one turn each; every request is checked."""
    with serving(*said) as provider:
        async with model_of(shape, provider.url) as model, limpet.open("memory://") as lp:
            s = await lp.create("support", "ada", actor="user:ada")
            await s.append("user.message", {"text": "How is it?"})
            woken = await lp.wake(s.key, limpet.Agent(model, [weather], system="Be kind."))
            assert (woken.reason, woken.error) == ("end_turn", None)
            await s.append("user.message", {"text": "Thanks."})
            assert (await lp.wake(s.key, limpet.Agent(model, [weather]))).reason == "end_turn"
    assert provider.wrong == []
    assert len(provider.bodies) == 3
    return provider


def messages_of(shape: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = body[
        {"gemini": "contents", "openai-responses": "input"}.get(shape, "messages")
    ]
    return [each for each in found if each.get("role") != "system"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("texts", [(), ("Let me ", "look.")])
async def test_a_loop_of_two_calls_is_accepted(shape: str, texts: tuple[str, ...]) -> None:
    """Two parallel calls, their results, and the next turn: every request keeps the rules, and
    signed thoughts stand where the provider wants them."""
    first = Said(texts, CALLS, thinking="hm")
    provider = await asked_twice(shape, first, Said(("It rains.",), thinking="so"), Said(("Bye.",)))
    second, third = [messages_of(shape, body) for body in provider.bodies[1:]]
    assert third[: len(second)] == second
    assert NATIVE[shape](second, bool(texts))


def _chat(messages: list[dict[str, Any]], has_text: bool) -> bool:
    _, said, *results = messages
    assert said["content"] == ("Let me look." if has_text else None)
    assert "reasoning_content" not in said
    assert [r["tool_call_id"] for r in results] == [c["id"] for c in said["tool_calls"]]
    return True


def _responses(items: list[dict[str, Any]], has_text: bool) -> bool:
    kinds = [item.get("type", item.get("role")) for item in items]
    said = ["assistant"] if has_text else []
    assert kinds == [
        *["user", "reasoning", *said],
        *["function_call"] * 2,
        *["function_call_output"] * 2,
    ]
    summary = [{"type": "summary_text", "text": "hm"}]
    assert items[1] == {"id": "rs_1", "type": "reasoning", "summary": summary}
    return True


def _anthropic(messages: list[dict[str, Any]], has_text: bool) -> bool:
    first, *rest = messages[1]["content"]
    assert first == {"type": "thinking", "thinking": "hm", "signature": "signed"}
    said = ["text"] if has_text else []
    assert [block["type"] for block in rest] == [*said, "tool_use", "tool_use"]
    return True


def _gemini(contents: list[dict[str, Any]], has_text: bool) -> bool:
    parts = contents[1]["parts"]
    calls = [part for part in parts if "functionCall" in part]
    assert len(parts) == len(calls) + has_text
    signed = base64.b64encode(b"signed").decode()
    assert [part["thoughtSignature"] for part in calls] == [signed] * 2
    return True


NATIVE = {
    "openai": _chat,
    "openai-responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
}
