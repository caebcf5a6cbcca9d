"""OpenTelemetry spans of turns: wakes, models, tools, effects and steps, as they run.

    async with limpet.open(url) as lp:
        limpet.otel.instrument(lp)  # or instrument(lp, tracer_provider=provider)
        await limpet.Worker(lp, agent, app="support").run()

A span is current while its part runs, so what an HTTP client or a tool records becomes its child.
Names follow the semantic conventions for generative AI, which stand in one table below. No text of
a conversation, no input and no result is ever in a span. The packages are an extra,
`pip install 'limpet[otel]'`; without `instrument` nothing here is loaded. A graph may run without
a Limpet to instrument, so its tracer is given to its builder: see `limpet.graph.otel`.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final

from limpet.errors import ExtraMissing, Interrupted, InvalidInput
from limpet.session.limpet import Limpet, journal_of
from limpet.session.runs.tracing import PartNotes, TracedPart

try:
    from opentelemetry import trace
except ModuleNotFoundError as error:
    raise ExtraMissing("opentelemetry", "otel") from error

if TYPE_CHECKING:
    from limpet.runtime.worker import Worker

# The names of the conventions as of 1.41, status Development; those that begin with limpet. are
# ours. When the conventions change, this table changes and nothing else.
NAMES: Final = {
    "operation": "gen_ai.operation.name",
    "agent": "gen_ai.agent.name",
    "session": "gen_ai.conversation.id",
    "provider": "gen_ai.provider.name",
    "model": "gen_ai.request.model",
    "input": "gen_ai.usage.input_tokens",
    "output": "gen_ai.usage.output_tokens",
    "cache_read": "gen_ai.usage.cache_read.input_tokens",
    "stop_reason": "gen_ai.response.finish_reasons",
    "tool": "gen_ai.tool.name",
    "tool_type": "gen_ai.tool.type",
    "call": "gen_ai.tool.call.id",
    "error": "error.type",
    "session_id": "limpet.session_id",
    "app": "limpet.app",
    "turn_id": "limpet.turn_id",
    "wake_id": "limpet.wake_id",
    "attempt": "limpet.attempt",
    "name": "limpet.name",
    "kind": "limpet.kind",
    "cost": "limpet.cost",
    "outcome": "limpet.outcome",
}
# The operation of each kind of part. Effects and steps are ours: the conventions have none.
OPERATIONS: Final = {"wake": "invoke_agent", "model": "chat", "tool": "execute_tool"}


def instrument(
    target: Limpet | Worker, tracer_provider: trace.TracerProvider | None = None
) -> None:
    """Open a span for every part of the turns that this process runs on an open store, or on that
    of a worker. Without a provider, the global one. Calling it again replaces the provider."""
    lp = target if isinstance(target, Limpet) else getattr(target, "lp", None)
    if not isinstance(lp, Limpet):
        raise InvalidInput("instrument takes an open Limpet, or a Worker.")
    tracer = trace.get_tracer("limpet", tracer_provider=tracer_provider)
    journal_of(lp).tracing = TurnTracer(tracer)


def uninstrument(target: Limpet | Worker) -> None:
    """Open no more spans for it."""
    lp = target if isinstance(target, Limpet) else target.lp
    journal_of(lp).tracing = None


class TurnTracer:
    """Opens an OpenTelemetry span around each part of a turn."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def span(self, part: TracedPart, /) -> AbstractContextManager[PartNotes]:
        """The span of one part, current while the block runs."""
        return self._open(part)

    @contextmanager
    def _open(self, part: TracedPart) -> Iterator[PartNotes]:
        opened = self._tracer.start_as_current_span(
            _span_name(part, part.name),
            kind=trace.SpanKind.CLIENT if part.kind == "model" else trace.SpanKind.INTERNAL,
            attributes=_attributes(part),
            record_exception=False,  # an error may quote what was said; a pause is none
            set_status_on_exception=False,
        )
        notes = PartNotes()
        with opened as span:
            try:
                yield notes
            except (CancelledError, Interrupted):  # it waits, or was stopped
                span.set_attribute(NAMES["outcome"], "stopped")
                raise
            except BaseException as error:
                span.set_attribute(NAMES["error"], type(error).__qualname__)
                span.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))
                raise
            finally:
                _note(span, part, notes)


def _span_name(part: TracedPart, of: str) -> str:
    return f"{OPERATIONS.get(part.kind, part.kind)} {of}"


def _attributes(part: TracedPart) -> dict[str, str | int]:
    """Identity and place of the part; what does not apply is left out."""
    attributes: dict[str, str | int | None] = {
        "operation": OPERATIONS.get(part.kind),
        "kind": part.kind,
        "name": part.name,
        "session": part.key.id,
        "session_id": part.key.id,
        "app": part.key.app,
        "turn_id": part.turn_id,
        "wake_id": part.wake_id,
        "attempt": part.attempt,
        "agent": part.name if part.kind == "wake" else None,
        "tool": part.name if part.kind == "tool" else None,
        "tool_type": "function" if part.kind == "tool" else None,
        "call": part.call,
    }
    return {NAMES[name]: value for name, value in attributes.items() if value is not None}


def _note(span: trace.Span, part: TracedPart, notes: PartNotes) -> None:
    """Set the attributes that are known at the end of the part."""
    if notes.model is not None:
        span.update_name(_span_name(part, notes.model))
    said: dict[str, Any] = {"model": notes.model, "cost": notes.cost, "outcome": notes.outcome}
    said["provider"] = notes.provider
    said |= {name: count for name, count in (notes.usage or {}).items() if name in NAMES}
    if notes.stop_reason is not None:
        said["stop_reason"] = [notes.stop_reason]
    for name, value in said.items():
        if value is not None:
            span.set_attribute(NAMES[name], value)
    if notes.error is not None:
        span.set_attribute(NAMES["error"], notes.error)
        span.set_status(trace.Status(trace.StatusCode.ERROR, notes.error))
