"""OpenTelemetry spans of turns, as an exporter gets them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import limpet
from limpet.errors import InvalidInput

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="the extra otel is not installed")

from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import (  # noqa: E402
    InMemorySpanExporter,
)

from limpet import otel  # noqa: E402

SECRET = "the text of a conversation"


@limpet.tool
def weather(city: str) -> str:
    """Say how the weather is."""
    return SECRET


def model(request: limpet.ModelRequest) -> limpet.Reply:
    usage = {"input": 9, "output": 4, "cost": 0.25}
    if request.messages[-1]["role"] == "user":
        call = limpet.ToolCall("call_1", "weather", {"city": SECRET})
        return limpet.Reply("", (call,), usage, "tool_calls")
    return limpet.Reply(SECRET, (), usage, "stop")


model.name = "gpt-5"  # type: ignore[attr-defined]  # as those of limpet.providers have one


async def harness(turn: limpet.Turn) -> None:
    await limpet.Agent(model, [weather]).run(turn)
    await turn.step("price", lambda: SECRET)
    await turn.effect("pay", lambda note: SECRET, note=SECRET)
    if turn.inputs[0].data["text"] == "fail":
        raise RuntimeError(SECRET)
    if turn.inputs[0].data["text"] == "ask":
        await turn.approve("more", {})


async def spans_of(text: str, **how: Any) -> tuple[limpet.Session[Any], list[Any]]:
    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with limpet.open("memory://") as lp:
        worker = limpet.Worker(lp, harness, app="support", idle_exit=True, retries=0)
        otel.instrument(worker if how.get("worker") else lp, tracer_provider=provider)
        s = await lp.create("support", "ada", "c1", actor="user:ada")
        await s.append("user.message", {"text": text})
        await worker.run()
        return s, list(exporter.get_finished_spans())


async def test_a_turn_is_a_tree_of_spans_with_the_names_of_the_conventions() -> None:
    """Wake, model, tool, effect and step, each with the session; usage on the model's."""
    session, spans = await spans_of("hi", worker=True)
    by_id = {span.context.span_id: span for span in spans}
    shown = [(s.name, by_id[s.parent.span_id].name if s.parent else None) for s in spans]
    wake = "invoke_agent agent:support"
    assert sorted(shown, key=str) == sorted(
        [
            ("chat gpt-5", wake),
            ("effect weather", "execute_tool weather"),
            ("execute_tool weather", wake),
            ("chat gpt-5", wake),
            ("step price", wake),
            ("effect pay", wake),
            (wake, None),
        ],
        key=str,
    )
    for span in spans:
        assert span.attributes["gen_ai.conversation.id"] == session.id
        assert span.attributes["limpet.session_id"] == session.id
        assert span.status.is_ok
        assert SECRET not in span.to_json()
    chat = next(span for span in spans if span.name.startswith("chat"))
    assert dict(chat.attributes) | {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "gpt-5",
        "gen_ai.usage.input_tokens": 9,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "limpet.cost": 0.25,
    } == dict(chat.attributes)
    tool = next(span for span in spans if span.name.startswith("execute_tool"))
    assert tool.attributes["gen_ai.operation.name"] == "execute_tool"
    assert tool.attributes["gen_ai.tool.name"] == "weather"
    assert tool.attributes["gen_ai.tool.call.id"] == "call_1"


async def test_a_failure_is_an_error_and_a_pause_is_none() -> None:
    """The type of the error is in the span, its text is not."""
    _, spans = await spans_of("fail")
    wake = next(span for span in spans if span.name.startswith("invoke_agent"))
    assert wake.attributes["error.type"] == "RuntimeError"
    assert not wake.status.is_ok
    assert all(SECRET not in span.to_json() for span in spans)
    _, spans = await spans_of("ask")
    wake = next(span for span in spans if span.name.startswith("invoke_agent"))
    assert (wake.status.is_ok, wake.attributes["limpet.outcome"]) == (True, "paused")


def test_without_it_nothing_is_loaded_and_nothing_is_watched() -> None:
    """A process that does not ask for spans never imports the packages."""
    code = "import limpet, limpet.runtime.worker, sys; print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    with pytest.raises(InvalidInput):
        otel.instrument("memory://")  # type: ignore[arg-type]
