"""What the APIs of models accept, from their published references: for checking, not for making.

Each function raises AssertionError with the rule that is broken. Nothing here imports Limpet.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any

ID = re.compile(r"^[a-zA-Z0-9_-]+$")
NAME = re.compile(r"^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$")


def openai(messages: list[dict[str, Any]]) -> None:
    """Chat Completions: every tool_call is answered at once, every tool message answers one."""
    waiting: list[str] = []
    used: set[str] = set()
    for message in messages:
        role = message["role"]
        assert role in ("system", "user", "assistant", "tool"), role
        if role == "tool":
            assert message["tool_call_id"] in waiting, "a tool message answers no preceding call"
            assert waiting.pop(0) == message["tool_call_id"], "results stand in the order of calls"
            assert isinstance(message["content"], str)
            continue
        assert not waiting, "calls must be answered before anything else"
        if role == "assistant":
            calls = message.get("tool_calls")
            assert message.get("content") or calls, "an assistant message needs content or calls"
            assert calls is None or calls, "tool_calls may not be an empty list"
            for call in calls or []:
                assert call["type"] == "function"
                assert len(call["id"]) <= 40
                assert call["id"] not in used, "call ids are unique"
                used.add(call["id"])
                assert NAME.match(call["function"]["name"]), call["function"]["name"]
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
                waiting.append(call["id"])
        else:
            assert message["content"], "content may not be empty"
            if not isinstance(message["content"], str):
                assert all(p["type"] in ("text", "image_url") for p in message["content"])
    assert not waiting, "the last calls are not answered"


def responses(items: list[dict[str, Any]]) -> None:
    """Responses: each function_call has one output after it, and no output is without a call. The
    calls of a reply come first, then their outputs in that order; reasoning stands before what came
    of it, a message of the model or a call."""
    called: set[str] = set()
    answered: set[str] = set()
    open_calls: list[str] = []
    kinds = [item.get("type", item.get("role")) for item in items]
    for place, item in enumerate(items):
        if item.get("type") == "reasoning":
            assert item["id"]
            assert isinstance(item["summary"], list)
            after = next((kind for kind in kinds[place:] if kind != "reasoning"), None)
            assert after in ("assistant", "function_call"), "reasoning without its following item"
            continue
        if item.get("type") == "function_call":
            open_calls.append(item["call_id"])
            assert item["call_id"] not in called
            called.add(item["call_id"])
            assert len(item["call_id"]) <= 64
            assert NAME.match(item["name"])
            assert isinstance(json.loads(item["arguments"]), dict)
        elif item.get("type") == "function_call_output":
            assert item["call_id"] in called - answered, "no tool call found for this output"
            assert open_calls.pop(0) == item["call_id"], "outputs are in the order of the calls"
            answered.add(item["call_id"])
            assert isinstance(item["output"], str)
        else:
            assert item["role"] in ("system", "user", "assistant")
            assert item["content"]
            assert not open_calls, "calls are answered before anything else"
    assert called == answered, "no tool output found for a function call"


def anthropic(messages: list[dict[str, Any]]) -> None:
    """Messages: roles take turns from the user on; tool_use is followed by its tool_results, in
    their order; signed thinking is first in the model's turn and never its end."""
    waiting: list[str] = []
    used: set[str] = set()
    for place, message in enumerate(messages):
        wanted = "user" if place % 2 == 0 else "assistant"
        assert message["role"] == wanted, "roles must alternate, beginning with user"
        content = message["content"]
        assert content, "content may not be empty"
        results = [b["tool_use_id"] for b in content if b["type"] == "tool_result"]
        assert results == waiting, "tool_use without tool_result right after it, in order"
        kinds = [b["type"] for b in content]
        assert kinds[: len(results)] == ["tool_result"] * len(results), "tool_results come first"
        thoughts = [b for b in content if b["type"] in ("thinking", "redacted_thinking")]
        assert content[: len(thoughts)] == thoughts, "thinking comes first"
        assert len(thoughts) < len(content), "the final block may not be thinking"
        waiting = []
        for block in content:
            if block in thoughts:
                assert wanted == "assistant"
                assert block.get("signature") or block.get("data"), "thinking is signed"
            elif block["type"] == "text":
                assert block["text"].strip(), "text may not be blank"
            elif block["type"] == "tool_use":
                assert wanted == "assistant"
                assert ID.match(block["id"])
                assert block["id"] not in used, "tool_use ids must be unique"
                used.add(block["id"])
                assert NAME.match(block["name"])
                assert isinstance(block["input"], dict)
                waiting.append(block["id"])
            elif block["type"] == "tool_result":
                assert block["content"]
            else:
                assert block["type"] == "image"
                assert block["source"]["type"] in ("url", "base64")
    assert not waiting, "the last tool_use has no tool_result"
    if messages and messages[-1]["role"] == "assistant":
        last = messages[-1]["content"][-1]
        assert last["type"] != "text" or last["text"] == last["text"].rstrip(), "trailing space"


def gemini(contents: list[dict[str, Any]]) -> None:
    """Contents: a function call turn comes after a user turn, and is followed by one response for
    each call, in a turn of its own."""
    calls: list[str] = []
    for place, content in enumerate(contents):
        role, parts = content["role"], content["parts"]
        assert role in ("user", "model")
        assert parts, "parts may not be empty"
        assert place or role == "user", "contents begin with the user"
        answers = [p["functionResponse"]["name"] for p in parts if "functionResponse" in p]
        assert answers == calls, "the number of responses must equal the number of calls"
        assert not answers or len(answers) == len(parts), "a turn of responses has nothing else"
        calls = [p["functionCall"]["name"] for p in parts if "functionCall" in p]
        if calls:
            assert role == "model"
            assert contents[place - 1]["role"] == "user", "a call comes after a user turn"
        for part in parts:
            (kind,) = [name for name in part if name != "thoughtSignature"]
            if "thoughtSignature" in part:
                assert kind == "functionCall"
                assert base64.b64decode(part["thoughtSignature"], validate=True)
            if kind == "text":
                assert part["text"].strip()
            elif kind == "functionCall":
                assert NAME.match(part[kind]["name"])
                assert isinstance(part[kind]["args"], dict)
            elif kind == "functionResponse":
                assert role == "user"
                assert isinstance(part[kind]["response"], dict)
            else:
                assert kind in ("inlineData", "fileData")
    assert not calls, "the last calls have no responses"


RULES = {
    "openai": openai,
    "openai-responses": responses,
    "anthropic": anthropic,
    "gemini": gemini,
}
