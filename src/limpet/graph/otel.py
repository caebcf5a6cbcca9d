"""OpenTelemetry spans of a run: the invocation, its nodes, subgraphs, instances and branches.

    graph = GraphBuilder(State)….with_tracer(OpenTelemetryTracer()).compile()

A span is current while its part runs, so the spans that a node opens become its children. The
packages are an extra, `pip install 'limpet[otel]'`; a graph without a tracer never loads them.
Turns have `limpet.otel`, which instruments an open Limpet; a graph may run without one.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import msgspec

from limpet.errors import ExtraMissing
from limpet.graph.context import SuspendSignal, identity
from limpet.graph.observers import GraphSpan

try:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import SpanProcessor
except ModuleNotFoundError as error:
    raise ExtraMissing("opentelemetry", "otel") from error

_PREFIX: Final = "limpet."


class OpenTelemetryTracer:
    """Opens an OpenTelemetry span around each part of a run.

    Without a provider it uses the global one. Every span has `limpet.invocation_id` and
    `limpet.correlation_id`, and `limpet.session_id` if the invocation is bound to a session.
    """

    def __init__(self, tracer_provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("limpet.graph", tracer_provider=tracer_provider)

    def span(self, span: GraphSpan, /) -> AbstractContextManager[None]:
        """The span of one part, current while the block runs."""
        return self._open(span)

    @contextmanager
    def _open(self, span: GraphSpan) -> Iterator[None]:
        opened = self._tracer.start_as_current_span(
            f"{span.kind} {span.name}".rstrip(),
            attributes=_attributes(span),
            record_exception=False,  # suspension passes as an exception and is none
            set_status_on_exception=False,
        )
        with opened as own:
            try:
                yield
            except BaseException as error:
                _end_span(own, span, error)
                raise
            if span.kind == "invocation":
                own.set_status(trace.StatusCode.OK)


class IdentitySpanProcessor(SpanProcessor):  # type: ignore[misc, unused-ignore]  # untyped if absent
    """Adds the ids of the invocation to every span that starts inside it.

    `tracer_provider.add_span_processor(IdentitySpanProcessor())`, before the exporter's.
    """

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Add the ids that are bound."""
        for name, value in identity().items():
            span.set_attribute(_PREFIX + name, value)


def _attributes(span: GraphSpan) -> dict[str, str | int]:
    """Identity and place of the part; what does not apply is left out."""
    attributes = {
        "session_id": span.session_id,
        "invocation_id": span.invocation_id,
        "correlation_id": span.correlation_id,
        "graph.kind": span.kind,
        "graph.node": span.namespace[-1] if span.namespace else None,
        "graph.namespace": "/".join(span.namespace) or None,
        "graph.attempt_index": span.attempt_index if span.kind == "node" else None,
        "graph.fan_out_index": span.fan_out_index,
        "graph.branch_name": span.branch_name,
    }
    return {_PREFIX + name: value for name, value in attributes.items() if value is not None}


def _end_span(span: trace.Span, part: GraphSpan, error: BaseException) -> None:
    """Say how a part ended that did not complete. To suspend is not an error."""
    if isinstance(error, SuspendSignal):
        span.set_status(trace.StatusCode.OK)
        span.set_attribute(_PREFIX + "outcome", "suspended")
        if part.kind == "node":
            waits = error.descriptor
            span.set_attribute(_PREFIX + "suspension.signal_id", waits.signal_id)
            for name, value in _flat(waits.metadata, _PREFIX + "suspension.metadata"):
                span.set_attribute(name, value)
    elif isinstance(error, CancelledError):
        span.set_attribute(_PREFIX + "graph.cancelled", True)
    else:
        category = getattr(error, "category", None)
        if isinstance(category, str):
            span.set_attribute(_PREFIX + "error.category", category)
        span.record_exception(error)
        span.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))


def _flat(value: Any, name: str) -> Iterator[tuple[str, str | bool | int | float]]:
    """JSON data as attributes: dicts by dotted names, lists as JSON, nothing for null."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}")
    elif isinstance(value, (str, bool, int, float)):
        yield name, value
    elif value is not None:
        yield name, msgspec.json.encode(value).decode()
