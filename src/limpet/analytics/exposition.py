"""Exposition: the totals of every app in the text format of Prometheus, and as OpenTelemetry
instruments that read them when they are collected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from typing import Any, Final, NamedTuple, TypeAlias

from limpet.analytics.file import AnalyticsFile
from limpet.analytics.tables import group_columns
from limpet.errors import ExtraMissing

_GROUPS: Final = 10_000
_TOOLS: Final = 1_000


class Measure(NamedTuple):
    """One instrument: what it counts or gauges."""

    name: str
    kind: str  # counter or gauge
    help: str
    read: Callable[[dict[str, Any]], Any]


Measured: TypeAlias = tuple[Measure, dict[str, str], int | float]  # with its labels and value


def _column(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda row: row[name]


APP_MEASURES: Final = (
    Measure("sessions", "counter", "Sessions that were created.", _column("sessions")),
    Measure("sessions_ended", "counter", "Sessions that have ended.", _column("ended")),
    Measure("turns", "counter", "Turns that are over.", _column("turns")),
    Measure("tool_invocations", "counter", "Tool calls.", _column("tool_invocations")),
    Measure("tokens_input", "counter", "Tokens that models read.", _column("tokens_input")),
    Measure("tokens_output", "counter", "Tokens that models wrote.", _column("tokens_output")),
    Measure("cost_usd", "counter", "Cost.", _column("cost_usd")),
    Measure("error_rate", "gauge", "Errors by tool calls and generations.", _column("error_rate")),
    Measure("completion_rate", "gauge", "Completed of ended tasks.", _column("completion_rate")),
    Measure("satisfaction", "gauge", "Mean predicted satisfaction.", _column("mean_satisfaction")),
    Measure(
        "turn_latency_p50_seconds", "gauge", "Turn latency, median.", _column("p50_turn_latency")
    ),
    Measure("turn_latency_p95_seconds", "gauge", "Turn latency, p95.", _column("p95_turn_latency")),
    Measure("turn_latency_p99_seconds", "gauge", "Turn latency, p99.", _column("p99_turn_latency")),
)
TOOL_MEASURES: Final = (
    Measure("tool_calls", "counter", "Calls of each tool.", _column("count")),
    Measure("tool_errors", "counter", "Calls that ended in an error.", _column("errors")),
    Measure("tool_latency_p99_seconds", "gauge", "Latency of calls, p99.", _column("p99_latency")),
)


def measured(file: AnalyticsFile, app: str | None = None) -> Iterator[Measured]:
    """Yield every instrument with its labels and its value now."""
    for each in file.apps() if app is None else [app]:
        yield from _of_app(file, each, APP_MEASURES)
        yield from _of_tools(file, each, TOOL_MEASURES)


def _of_app(file: AnalyticsFile, app: str, measures: Iterable[Measure]) -> Iterator[Measured]:
    whole = group_columns(file.totals(app, "task_type", _GROUPS).pooled)
    row = {name: column[0] for name, column in whole.items()}
    yield from _values(measures, {"app": app}, row)


def _of_tools(file: AnalyticsFile, app: str, measures: Iterable[Measure]) -> Iterator[Measured]:
    for tool in file.totals(app, "tool", _TOOLS).table("tool").rows:
        yield from _values(measures, {"app": app, "tool": tool["tool"]}, tool)


def _values(
    measures: Iterable[Measure], labels: dict[str, str], row: dict[str, Any]
) -> Iterator[Measured]:
    for measure in measures:
        if (value := measure.read(row)) is not None:
            yield measure, labels, value


def prometheus_text(file: AnalyticsFile, app: str | None = None) -> str:
    """Return the text that a Prometheus server scrapes."""
    lines: dict[str, list[str]] = {}
    for measure, labels, value in measured(file, app):
        total = "_total" if measure.kind == "counter" else ""
        name = f"limpet_{measure.name}{total}"
        head = [f"# HELP {name} {measure.help}", f"# TYPE {name} {measure.kind}"]
        shown = ",".join([f'{key}="{_escaped(text)}"' for key, text in labels.items()])
        lines.setdefault(name, head).append(f"{name}{{{shown}}} {value}")
    return "".join([f"{line}\n" for group in lines.values() for line in group])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Observer:
    """Reads values when somebody collects them, on any thread and a connection of its own."""

    def __init__(self, file: AnalyticsFile) -> None:
        """Open the connection."""
        self._file: AnalyticsFile | None = file.another()
        self._lock = Lock()  # one collector at a time

    def values(self, measure: Measure) -> list[Measured]:
        """Return the values of an instrument now; none once this is closed."""
        of = _of_tools if measure in TOOL_MEASURES else _of_app
        with self._lock:
            if self._file is None:
                return []
            self._file.changed_elsewhere()  # names may have other ids by now
            apps = self._file.apps()
            return [each for app in apps for each in of(self._file, app, (measure,))]

    def close(self) -> None:
        """Close the connection, once nobody reads."""
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                file.close()


def instrument(file: AnalyticsFile, meter_provider: Any = None) -> Observer:
    """Offer the same numbers as OpenTelemetry instruments, until what is returned is closed. Raises
    ExtraMissing."""
    try:
        from opentelemetry import metrics
    except ModuleNotFoundError as error:
        raise ExtraMissing("opentelemetry", "otel") from error
    meter = metrics.get_meter("limpet.analytics", meter_provider=meter_provider)
    observer = Observer(file)

    def observing(measure: Measure) -> Callable[[Any], list[Any]]:
        def observe(_: Any) -> list[Any]:
            values = observer.values(measure)
            return [metrics.Observation(value, labels) for _, labels, value in values]

        return observe

    for measure in (*APP_MEASURES, *TOOL_MEASURES):
        named: dict[str, Any] = {"callbacks": [observing(measure)], "description": measure.help}
        if measure.kind == "counter":
            meter.create_observable_counter(f"limpet.{measure.name}", **named)
        else:
            meter.create_observable_gauge(f"limpet.{measure.name}", **named)
    return observer
