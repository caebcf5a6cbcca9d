"""Tables: groups of sessions and their numbers, from the cells of the roll-ups.

A table may stand on thousands of cells, so they are added up as arrays, column by column, and only
histograms that a column shows are unpacked. Rates are pooled: sums over sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from limpet.analytics.histogram import Counts, Histograms
from limpet.analytics.metrics import MILLION
from limpet.analytics.rollup import HISTOGRAMS, INDEX, SUM_MAX, SUMS, PackedTally

_QS: Final = (0.5, 0.95, 0.99)
_decoder: Final = msgspec.msgpack.Decoder(PackedTally)
Column = list[Any]


class Table(msgspec.Struct, frozen=True):
    """Groups and their numbers. Rows are dicts by column, `table["refund"]` is one group's."""

    dimension: str
    columns: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, dimension: str, columns: dict[str, Column]) -> Table:
        """Return the table with these columns."""
        names = tuple(columns)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return cls(dimension, names, tuple(rows))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __getitem__(self, value: str) -> dict[str, Any]:
        """Return the first row of a group. Raises KeyError."""
        for row in self.rows:
            if row[self.dimension] == value:
                return row
        raise KeyError(value)

    def column(self, name: str) -> tuple[Any, ...]:
        """Return one column, from top to bottom: a series to plot."""
        return tuple([row[name] for row in self.rows])

    @property
    def plain(self) -> dict[str, Any]:
        """Return its JSON form."""
        return {
            "dimension": self.dimension,
            "columns": list(self.columns),
            "rows": [list(row.values()) for row in self.rows],
        }


class Cells(NamedTuple):
    """Cells of groups, in columns: of the first cell, `groups[0]` is the place of its group in
    `values`, and `tallies[0]` what it holds, in its stored form."""

    values: list[str]
    groups: tuple[int, ...] = ()
    grains: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    tallies: tuple[bytes, ...] = ()

    @property
    def by_group(self) -> Tallies:
        """The sums of each group."""
        return Tallies(self.tallies, self.groups, len(self.values))

    @property
    def pooled(self) -> Tallies:
        """The sums of all groups together: one row."""
        return Tallies(self.tallies, [0] * len(self.tallies), 1)

    def table(self, dimension: str) -> Table:
        """Return a row for each group."""
        columns = tool_columns if dimension == "tool" else group_columns
        return Table.of(dimension, {dimension: self.values} | columns(self.by_group))


class Tallies:
    """The tallies of the rows of a table: `tallies["turns"]` has a sum for each row."""

    def __init__(self, raws: Sequence[bytes], rows: Iterable[int], size: int) -> None:
        """Add up cells in their stored form: each belongs to one of `size` rows."""
        self._cells = [_decoder.decode(raw) for raw in raws]
        self._rows = np.fromiter(rows, np.int64, len(self._cells))
        self.size = size
        flat = chain.from_iterable([cell.sums for cell in self._cells])
        sums = np.fromiter(flat, np.int64, len(self._cells) * len(SUMS)).reshape(-1, len(SUMS))
        if np.abs(sums, dtype=np.float64).sum(axis=0).max(initial=0) > SUM_MAX:
            most = SUM_MAX // len(sums)
            sums = sums.clip(-most, most)
        self._sums = np.zeros((size, len(SUMS)), np.int64)
        np.add.at(self._sums, self._rows, sums)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, name: str) -> Counts:
        """Return one of SUMS, for each row."""
        sums: Counts = self._sums[:, INDEX[name]]
        return sums

    def histograms(self, name: str) -> Histograms:
        """Return one of HISTOGRAMS, for each row."""
        return self._unpacked(name).merged(self._rows, self.size)

    def peaks(self, moments: Sequence[int]) -> Counts:
        """Return the most sessions that were at work in one second, for each row. Seconds of cells
        with the same moment add up, since they are the same seconds; of others the highest counts.
        """
        known, of = np.unique(np.array(moments, np.int64), return_inverse=True)
        rows = np.zeros(len(known), np.int64)
        rows[of] = self._rows
        peaks = np.zeros(self.size, np.int64)
        np.maximum.at(peaks, rows, self._unpacked("busy").merged(of, len(known)).peaks)
        return peaks

    def _unpacked(self, name: str) -> Histograms:
        index = HISTOGRAMS.index(name)
        return Histograms.unpacked([cell.histograms[index] for cell in self._cells])


def group_columns(of: Tallies) -> dict[str, Column]:
    """Return the numbers of groups of sessions."""
    n, ended, turns = of["sessions"], of["ended"], of["turns"]
    duration, state = of.histograms("duration"), of.histograms("state_size")
    p50_state, p99_state = state.quantiles((0.5, 0.99))
    return {
        "sessions": n.tolist(),
        "ended": ended.tolist(),
        "completion_rate": _ratio(of["completed"], ended),
        "error_rate": _error_rate(of, of["tool_invocations"] + of["generations"]),
        "repair_frequency": _ratio(of["repairs"], n),
        "repair_success_rate": _ratio(of["repairs_ok"], of["repairs"]),
        "hallucination_rate": _ratio(of["hallucinated"], of["reports"]),
        "verification_pass_rate": _ratio(of["passes"], of["evaluations"]),
        "mean_satisfaction": _ratio(of["satisfaction"], of["predicted"], MILLION),
        "mean_rating": _ratio(of["rating"], of["rated"], MILLION),
        "turns": turns.tolist(),
        "mean_duration": _ratio(of["duration_us"], ended, MILLION),
        **_seconds("duration", duration),
        "mean_time_to_first_response": _ratio(of["response_us"], of["responded"], MILLION),
        "mean_turn_latency": _ratio(of["latency_us"], turns, MILLION),
        **_seconds("turn_latency", of.histograms("turn_latency")),
        "tool_invocations": of["tool_invocations"].tolist(),
        "tokens_input": of["tokens_input"].tolist(),
        "tokens_output": of["tokens_output"].tolist(),
        "cost_usd": (of["cost"] / MILLION).tolist(),
        "cost_per_session": _ratio(of["cost"], n, MILLION),
        "cost_per_success": _ratio(of["cost"], of["completed"], MILLION),
        "suspensions_per_session": _ratio(of["suspensions"], n),
        "p50_peak_state_size": _known(p50_state),
        "p99_peak_state_size": _known(p99_state),
    }


def tool_columns(of: Tallies) -> dict[str, Column]:
    """Return the numbers of tools."""
    count, latency = of["tool_invocations"], of.histograms("turn_latency")
    return {
        "count": count.tolist(),
        "sessions": of["sessions"].tolist(),
        "errors": of["errors"].tolist(),
        "error_rate": _ratio(of["errors"], count),
        "mean_latency": _ratio(of["latency_us"], latency.totals, MILLION),
        **_seconds("latency", latency),
        "total_cost": (of["cost"] / MILLION).tolist(),
    }


def window_columns(of: Tallies, moments: Sequence[int], hours: Sequence[int]) -> dict[str, Column]:
    """Return the numbers of windows of so many hours each, with the peak of sessions at work by
    the moments of their cells. Rates are for an hour."""
    turns, ended, long = of["turns"], of["ended"], np.array(hours, np.int64)
    return {
        "started": of["sessions"].tolist(),
        "ended": ended.tolist(),
        "completed": of["completed"].tolist(),
        "completion_rate": _ratio(of["completed"], ended),
        "turns": turns.tolist(),
        "throughput": (turns / long).tolist(),
        "peak_concurrency": of.peaks(moments).tolist(),
        "errors": of["errors"].tolist(),
        "error_rate": _error_rate(of, of["generations"]),
        "mean_turn_latency": _ratio(of["latency_us"], turns, MILLION),
        **_seconds("turn_latency", of.histograms("turn_latency")),
        "tokens_input": of["tokens_input"].tolist(),
        "tokens_output": of["tokens_output"].tolist(),
        "cost_usd": (of["cost"] / MILLION).tolist(),
        "cost_rate": (of["cost"] / MILLION / long).tolist(),
    }


def _error_rate(of: Tallies, attempts: Counts) -> Column:
    rates: Column = (of["errors"] / np.maximum(attempts, 1)).tolist()
    return rates


def _seconds(name: str, of: Histograms) -> dict[str, Column]:
    """Return the quantiles of times in microseconds."""
    values = of.quantiles(_QS)
    return {
        f"p{q * 100:.0f}_{name}": _known(value / MILLION)
        for q, value in zip(_QS, values, strict=True)
    }


def _ratio(part: Counts, of: Counts, unit: int = 1) -> Column:
    """Return quotients; None where there is nothing to divide by."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return _known(np.where(of != 0, part / of, np.nan) / unit)


def _known(values: NDArray[np.float64]) -> Column:
    """Return a column with None for what is not a number."""
    column: Column = values.tolist()
    return [None if value != value else value for value in column]  # NaN
