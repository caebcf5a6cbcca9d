"""Spans of a run, as OpenTelemetry exports them, and what a graph costs without it."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from limpet.errors import NodeException
from limpet.graph import (
    END,
    GraphBuilder,
    InMemoryCheckpointer,
    RetryMiddleware,
    State,
    SuspensionDescriptor,
    append,
    suspend,
)
from limpet.graph.context import IdentityFilter

otel = pytest.importorskip("opentelemetry.sdk.trace", reason="the extra otel is not installed")

from opentelemetry import trace  # noqa: E402  # only where it is installed
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler  # noqa: E402
from opentelemetry.sdk._logs.export import (  # noqa: E402
    InMemoryLogRecordExporter,
    SimpleLogRecordProcessor,
)
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import (  # noqa: E402
    InMemorySpanExporter,
)

from limpet.graph.otel import IdentitySpanProcessor, OpenTelemetryTracer  # noqa: E402

ROOT = Path(__file__).parents[2]


class Spans:
    """A provider that exports to memory, and the tracer of a graph on it."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = otel.TracerProvider()
        self.provider.add_span_processor(IdentitySpanProcessor())
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = OpenTelemetryTracer(self.provider)

    def all(self) -> list[Any]:
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time)

    def named(self, name: str) -> Any:
        (found,) = [span for span in self.all() if span.name == name]
        return found

    def tree(self) -> list[str]:
        """Every span with the names of those around it, in the order in which they began."""
        by_id = {span.context.span_id: span for span in self.all()}

        def path(span: Any) -> str:
            outer = span.parent and by_id[span.parent.span_id]
            return f"{path(outer)} > {span.name}" if outer else span.name

        return [path(span) for span in self.all()]


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()


class Work(State):
    items: list[str] = ["a", "b"]
    item: str = ""
    done: Annotated[list[Any], append] = []


async def work(state: Work) -> dict[str, Any]:
    return {"done": ["x"]}


def inner(node: Any = work) -> Any:
    return GraphBuilder(Work).add_node("in", node).add_edge("in", END).set_entry("in").compile()


def one(node: Any, spans: Spans, **how: Any) -> Any:
    builder = GraphBuilder(Work).add_node("node", node, **how).add_edge("node", END)
    return builder.set_entry("node").with_tracer(spans.tracer)


# --- spans ---------------------------------------------------------------------------------------


async def test_every_part_of_a_run_has_a_span_under_the_part_around_it(spans: Spans) -> None:
    """The invocation, its nodes, subgraphs, instances of a fan-out and branches."""
    builder = GraphBuilder(Work).add_node("first", work).add_edge("first", "sub").set_entry("first")
    builder.add_subgraph_node("sub", inner()).add_edge("sub", "each")
    builder.add_fan_out_node(
        "each",
        subgraph=inner(),
        items_field="items",
        item_field="item",
        collect_field="done",
        target_field="done",
        concurrency=1,
    ).add_edge("each", "both")
    builder.add_parallel_branches_node("both", branches={"left": inner()}).add_edge("both", END)
    await builder.with_tracer(spans.tracer).compile().invoke(Work())
    tree = spans.tree()
    root = tree[0]
    assert root.startswith("invocation")
    assert [path.removeprefix(f"{root} > ") for path in tree[1:]] == [
        "node first",
        "node sub",
        "node sub > subgraph sub",
        "node sub > subgraph sub > node in",
        "node each",
        "node each > fan_out_instance each",
        "node each > fan_out_instance each > node in",
        "node each > fan_out_instance each",
        "node each > fan_out_instance each > node in",
        "node both",
        "node both > branch left",
        "node both > branch left > node in",
    ]
    indexes = [s.attributes.get("limpet.graph.fan_out_index") for s in spans.all()]
    assert [index for index in indexes if index is not None] == [0, 0, 1, 1]


async def test_the_ids_are_on_every_span_and_a_session_only_where_there_is_one(
    spans: Spans,
) -> None:
    """Those of our spans, and of the spans that a node opens itself, which are its children."""
    tracer = spans.provider.get_tracer("application")

    async def node(state: Work) -> dict[str, Any]:
        with tracer.start_as_current_span("model call"):
            return {}

    graph = one(node, spans).compile()
    await graph.invoke(Work(), session_id="s", invocation_id="i", correlation_id="c")
    ids = {"limpet.session_id": "s", "limpet.invocation_id": "i", "limpet.correlation_id": "c"}
    assert len(spans.all()) == 3
    assert all(ids.items() <= dict(span.attributes).items() for span in spans.all())
    assert spans.tree()[-1].endswith("node node > model call")
    spans.exporter.clear()
    await graph.invoke(Work(), correlation_id="c")
    assert all("limpet.session_id" not in span.attributes for span in spans.all())
    with tracer.start_as_current_span("outside"):
        pass
    assert not spans.named("outside").attributes


async def test_a_span_says_what_failed(spans: Spans) -> None:
    """The attempt that failed is in error, one that succeeded is not; each attempt has a span."""
    failures = [ConnectionError("down")]

    async def flaky(state: Work) -> dict[str, Any]:
        if failures:
            raise failures.pop()
        return {}

    retry = RetryMiddleware(max_attempts=2, backoff=lambda attempt: 0)
    await one(flaky, spans, middleware=[retry]).compile().invoke(Work())
    first, second = [span for span in spans.all() if span.name == "node node"]
    assert first.status.status_code is trace.StatusCode.ERROR
    assert first.events[0].attributes["exception.type"] == "ConnectionError"
    assert second.status.status_code is trace.StatusCode.UNSET
    indexes = [span.attributes["limpet.graph.attempt_index"] for span in (first, second)]
    assert indexes == [0, 1]


async def test_a_failed_invocation_names_its_category(spans: Spans) -> None:
    """The root span of a run that raised is in error."""

    async def broken(state: Work) -> dict[str, Any]:
        raise ZeroDivisionError

    with pytest.raises(NodeException):
        await one(broken, spans).compile().invoke(Work())
    root = spans.all()[0]
    assert root.status.status_code is trace.StatusCode.ERROR
    assert root.attributes["limpet.error.category"] == "node_exception"


async def test_to_suspend_is_not_an_error(spans: Spans) -> None:
    """The spans around say that they wait, and for what."""

    async def ask(state: Work) -> dict[str, Any]:
        kind = {"kind": "review", "urgent": True, "by": {"team": "finance"}, "pool": ["a", "b"]}
        await suspend(SuspensionDescriptor("approval", {**kind, "none": None}))
        return {}

    graph = one(ask, spans).with_checkpointer(InMemoryCheckpointer()).compile()
    await graph.invoke(Work())
    assert all(span.status.status_code is trace.StatusCode.OK for span in spans.all())
    assert all(span.attributes["limpet.outcome"] == "suspended" for span in spans.all())
    node = spans.named("node node")
    found = {n: v for n, v in node.attributes.items() if n.startswith("limpet.suspension.")}
    assert found == {
        "limpet.suspension.signal_id": "approval",
        "limpet.suspension.metadata.kind": "review",
        "limpet.suspension.metadata.urgent": True,
        "limpet.suspension.metadata.by.team": "finance",
        "limpet.suspension.metadata.pool": '["a","b"]',
    }
    assert not [n for n in spans.all()[0].attributes if n.startswith("limpet.suspension.")]
    (done,) = await finished(graph, spans)
    assert done.status.status_code is trace.StatusCode.OK


async def finished(graph: Any, spans: Spans) -> list[Any]:
    """The root span of the run that took the signal."""
    id = spans.all()[0].attributes["limpet.invocation_id"]
    spans.exporter.clear()
    await graph.invoke(resume_invocation=id, signal_payload={})
    return [span for span in spans.all() if span.parent is None]


async def test_a_completed_run_has_a_root_span_that_is_ok(spans: Spans) -> None:
    """Whether it is bound to a session or not; a run that failed is in error."""
    graph = one(work, spans).compile()
    await graph.invoke(Work(), session_id="s")
    await graph.invoke(Work())
    roots = [span for span in spans.all() if span.parent is None]
    assert [span.status.status_code for span in roots] == [trace.StatusCode.OK] * 2
    assert "limpet.outcome" not in roots[0].attributes


async def test_our_spans_name_the_session_without_the_help_of_a_processor() -> None:
    """The tracer alone gives every span its ids, the root and all inside it."""
    exporter, provider = InMemorySpanExporter(), otel.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    builder = GraphBuilder(Work).add_subgraph_node("sub", inner()).add_edge("sub", END)
    builder.set_entry("sub").with_tracer(OpenTelemetryTracer(provider))
    graph = builder.compile()
    await graph.invoke(Work(), session_id="s")
    bound = exporter.get_finished_spans()
    assert len(bound) == 4
    assert [span.attributes.get("limpet.session_id") for span in bound] == ["s"] * 4
    exporter.clear()
    await graph.invoke(Work())
    assert all("limpet.session_id" not in span.attributes for span in exporter.get_finished_spans())
    provider.shutdown()


@pytest.mark.filterwarnings("ignore:.*LoggingHandler.*:DeprecationWarning")
async def test_exported_log_records_carry_the_ids_and_the_span(spans: Spans) -> None:
    """A handler of OpenTelemetry with the filter: ids as attributes, in the trace of the node."""
    exporter, provider = InMemoryLogRecordExporter(), LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    handler = LoggingHandler(logger_provider=provider)
    handler.addFilter(IdentityFilter())
    log = logging.getLogger("tracing-test")
    log.addHandler(handler)

    async def node(state: Work) -> dict[str, Any]:
        log.warning("inside")
        return {}

    try:
        await one(node, spans).compile().invoke(Work(), session_id="s")
        await one(node, spans).compile().invoke(Work())
    finally:
        log.removeHandler(handler)
        provider.shutdown()
    bound, unbound = [item.log_record for item in exporter.get_finished_logs()]
    assert bound.attributes["session_id"] == "s"
    assert "session_id" not in unbound.attributes
    assert unbound.attributes["invocation_id"] != bound.attributes["invocation_id"]
    nodes = [span for span in spans.all() if span.name == "node node"]
    assert bound.span_id == nodes[0].context.span_id


# --- without it ----------------------------------------------------------------------------------

ABSENT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] == 'opentelemetry':
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)
sys.meta_path.insert(0, Absent())
import asyncio, limpet
from limpet.graph import END, GraphBuilder, State
class Empty(State): pass
async def node(state): return {}
graph = GraphBuilder(Empty).add_node('n', node).add_edge('n', END).set_entry('n').compile()
asyncio.run(graph.invoke(Empty()))
try:
    import limpet.graph.otel
except limpet.errors.ExtraMissing as error:
    print(error)
"""


def test_a_graph_runs_where_opentelemetry_is_not_installed(tmp_path: Path) -> None:
    """Only the module of the tracer needs it, and names the extra."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ABSENT],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "limpet[otel]" in done.stdout
