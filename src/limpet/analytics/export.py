"""Export: one row for each session in a Parquet file. The one module that imports pyarrow."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, Final

from limpet.analytics.destination import destination
from limpet.analytics.file import AnalyticsFile
from limpet.analytics.metrics import SessionAnalytics, analytics_of
from limpet.errors import ExtraMissing

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ModuleNotFoundError as error:
    raise ExtraMissing("pyarrow", "parquet") from error

_ROWS: Final = 10_000  # of a row group
_TEXT: Final = pa.string()
_TIME: Final = pa.timestamp("us", tz="UTC")
_TOOL: Final = pa.struct(
    [
        ("name", _TEXT),
        ("count", pa.int64()),
        ("errors", pa.int64()),
        ("total_latency", pa.float64()),
        ("total_cost", pa.float64()),
    ]
)
_SCHEMA: Final = pa.schema(
    [
        *[(name, _TEXT) for name in ("app", "user", "id", "uid", "task_type", "agent_version")],
        ("phase", _TEXT),
        ("final", pa.bool_()),
        ("created_at", _TIME),
        ("computed_at", _TIME),
        *[(name, pa.float64()) for name in ("total", "active", "suspended", "init", "resumed")],
        ("suspensions", pa.int64()),
        *[
            (name, pa.float64())
            for name in ("time_to_first_response", "mean_turn_latency", "p99_turn_latency")
        ],
        *[
            (name, pa.int64())
            for name in (
                "turns",
                "user_messages",
                "agent_messages",
                "tool_invocations",
                "retrieval_queries",
                "repair_cycles",
                "generations",
                "tokens_input",
                "tokens_output",
                "api_calls",
                "checkpoints",
                "peak_state_size",
            )
        ],
        *[
            (name, pa.float64())
            for name in (
                "cost_usd",
                "compute_seconds",
                "task_completion",
                "error_rate",
                "repair_success_rate",
                "hallucination_rate",
                "verification_pass_rate",
                "rating",
                "satisfaction",
            )
        ],
        ("tools", pa.list_(_TOOL)),
    ]
)


def write_parquet(file: AnalyticsFile, path: Path, now_us: int, app: str | None = None) -> int:
    """Write every session, or those of an app, in row groups; their number. The file appears whole
    or not at all. Raises InvalidInput if it cannot be written there."""
    folds, rows = (fold for fold in file.folds() if app in (None, fold.app)), 0
    partial = path.with_name(f"{path.name}.partial")
    with destination(path), ExitStack() as leaving:
        leaving.callback(partial.unlink, missing_ok=True)
        with pq.ParquetWriter(partial, _SCHEMA, compression="zstd") as writer:
            while group := [_row(analytics_of(f, now_us)) for f in islice(folds, _ROWS)]:
                writer.write_table(pa.Table.from_pylist(group, schema=_SCHEMA))
                rows += len(group)
        partial.replace(path)
    return rows


def _row(of: SessionAnalytics) -> dict[str, Any]:
    row: dict[str, Any] = {"app": of.key.app, "user": of.key.user, "id": of.key.id}
    for group in (of, of.temporal, of.interaction, of.resource, of.quality):
        row |= {name: getattr(group, name) for name in group.__struct_fields__ if name in _NAMES}
    row["tools"] = [
        {"name": name, **{field: getattr(tool, field) for field in tool.__struct_fields__}}
        for name, tool in of.tools.items()
    ]
    return row


_NAMES: Final = frozenset(_SCHEMA.names) - {"tools"}
