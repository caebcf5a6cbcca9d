"""Roll-ups: what sessions add up to, by user, task type, agent version, tool and window.

A cell holds sums and histograms of integers. What a session adds to a cell is a function of its
fold, so a change of the session is its new tally minus its old one, and an erased session leaves
nothing behind. The one exception is `busy`, how the number of sessions at work changes from second
to second: when hours are rolled up into a day, the day keeps the highest of their peaks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from limpet.analytics.histogram import Histogram, bin_of, merge, quantiles, union
from limpet.analytics.metrics import HOUR_US, MILLION, SessionFold

Dimension: TypeAlias = Literal["user", "task_type", "agent_version", "tool", "window"]
Grain: TypeAlias = Literal["all", "hour", "day", "month"]
DIMENSIONS: Final[tuple[Dimension, ...]] = Dimension.__args__  # type: ignore[attr-defined]  # Literal
GRAINS: Final[tuple[Grain, ...]] = ("all", "hour", "day", "month")
ALL, HOUR, DAY, MONTH = range(4)
SUMS: Final = (
    "sessions",
    "ended",
    "completed",
    "turns",
    "latency_us",
    "user_messages",
    "agent_messages",
    "tool_invocations",
    "generations",
    "errors",
    "retrieval_queries",
    "repairs",
    "repairs_ok",
    "tokens_input",
    "tokens_output",
    "cost",
    "api_calls",
    "checkpoints",
    "evaluations",
    "passes",
    "reports",
    "hallucinated",
    "duration_us",
    "active_us",
    "suspended_us",
    "suspensions",
    "responded",
    "response_us",
    "rated",
    "rating",
    "predicted",
    "satisfaction",
)
# Of logarithms, but for the satisfaction, which is in hundredths, and `busy`: changes by second.
HISTOGRAMS: Final = (
    "turn_latency",
    "first_response",
    "duration",
    "cost",
    "state_size",
    "satisfaction",
    "busy",
)
_LATENCY, _RESPONSE, _DURATION, _COST, _STATE, _SATISFACTION, _BUSY = range(len(HISTOGRAMS))
PEAK: Final = -2  # the bin of `busy` that holds a peak, where seconds were rolled up
# A user's windows are days at least: with hours there would be a cell for nearly every session.
_FINEST: Final[Mapping[str, int]] = {"user": DAY}


class CellKey(NamedTuple):
    """The cell of a tally, before it is known how old its hour is."""

    app: str
    dimension: str
    value: str
    hour: int


class CellTally(msgspec.Struct, array_like=True):
    """One session's contribution to a cell, or a cell itself: sums in the order of SUMS."""

    sums: list[int]
    histograms: list[Histogram]

    @classmethod
    def empty(cls) -> CellTally:
        return cls([0] * len(SUMS), [{} for _ in HISTOGRAMS])

    def plus(self, other: CellTally, times: int = 1) -> None:
        """Add another, or with times=-1 take it out."""
        mine = self.sums
        for index, value in enumerate(other.sums):
            if value:
                mine[index] += times * value
        for to, histogram in zip(self.histograms, other.histograms, strict=True):
            if histogram:
                merge(to, histogram, times)

    @property
    def is_empty(self) -> bool:
        return not any(self.sums) and not any(self.histograms)

    def __getitem__(self, name: str) -> int:
        return self.sums[_INDEX[name]]

    def histogram(self, name: str) -> Histogram:
        """Return one of HISTOGRAMS."""
        return self.histograms[HISTOGRAMS.index(name)]


class PackedTally(msgspec.Struct, array_like=True):
    """A tally as it is stored: sums that are zero are left out."""

    sums: dict[int, int]
    histograms: dict[int, Histogram]


_INDEX: Final = {name: index for index, name in enumerate(SUMS)}
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(PackedTally)


def pack(tally: CellTally) -> bytes:
    sums = {index: value for index, value in enumerate(tally.sums) if value}
    return _encoder.encode(PackedTally(sums, {i: h for i, h in enumerate(tally.histograms) if h}))


def unpack(raw: bytes) -> CellTally:
    packed, tally = _decoder.decode(raw), CellTally.empty()
    for index, value in packed.sums.items():
        tally.sums[index] = value
    for index, histogram in packed.histograms.items():
        tally.histograms[index] = histogram
    return tally


# --- the tallies of a session ---------------------------------------------------------------------


def tallies_of(fold: SessionFold) -> dict[CellKey, CellTally]:
    """Return what a session adds, by cell. Groups count it in the hour of its creation; windows
    count what it did in the hour when it did it."""
    app, hour = fold.app, fold.created_us // HOUR_US
    whole = _whole(fold)
    tallies = {
        CellKey(app, "user", fold.user, hour): whole,
        CellKey(app, "task_type", fold.task_type, hour): whole,
        CellKey(app, "agent_version", fold.agent_version, hour): whole,
    }
    for name, tool in fold.tools.items():
        tally = CellTally.empty()
        _set(tally, sessions=1, tool_invocations=tool.count, errors=tool.errors)
        _set(tally, latency_us=tool.latency_us, cost=tool.cost)
        tally.histograms[_LATENCY] = dict(tool.latencies)  # the fold goes on changing its own
        tallies[CellKey(app, "tool", name, hour)] = tally
    for index, did in fold.hours.items():
        tally = tallies[CellKey(app, "window", "", index)] = CellTally.empty()
        _set(tally, turns=did.turns, latency_us=did.latency_us, cost=did.cost, errors=did.errors)
        _set(tally, tokens_input=did.tokens_input, tokens_output=did.tokens_output)
        _set(tally, generations=did.attempts)
        tally.histograms[_LATENCY] = dict(did.latencies)
        tally.histograms[_BUSY] = dict(did.busy)
    _window(tallies, app, hour, sessions=1)
    if fold.ended_us:
        ended = fold.ended_us // HOUR_US
        _window(tallies, app, ended, ended=1, completed=int(fold.task_completed))
    return tallies


def _window(tallies: dict[CellKey, CellTally], app: str, hour: int, **sums: int) -> None:
    key = CellKey(app, "window", "", hour)
    _set(tallies.setdefault(key, CellTally.empty()), **sums)


def _whole(fold: SessionFold) -> CellTally:
    tally = CellTally.empty()
    _set(
        tally,
        sessions=1,
        completed=int(fold.task_completed),
        turns=fold.turns,
        latency_us=fold.latency_us,
        user_messages=fold.user_messages,
        agent_messages=fold.agent_messages,
        tool_invocations=fold.tool_invocations,
        generations=fold.generations,
        errors=fold.errors,
        retrieval_queries=fold.retrieval_queries,
        repairs=fold.repairs,
        repairs_ok=fold.repairs_ok,
        tokens_input=fold.tokens_input,
        tokens_output=fold.tokens_output,
        cost=fold.cost,
        api_calls=fold.api_calls,
        checkpoints=fold.checkpoints,
        evaluations=fold.evaluations,
        passes=fold.passes,
        reports=fold.reports,
        hallucinated=fold.hallucinated,
        suspensions=fold.suspensions,
    )
    histograms = tally.histograms
    histograms[_LATENCY] = fold.latencies
    if fold.ended_us:
        took_us = fold.ended_us - fold.created_us
        _set(tally, ended=1, duration_us=took_us)
        _set(tally, active_us=fold.active_us, suspended_us=fold.suspended_us)
        histograms[_DURATION] = {bin_of(took_us): 1}
        histograms[_COST] = {bin_of(fold.cost): 1}
    if fold.responded_us:
        waited_us = fold.responded_us - fold.created_us
        _set(tally, responded=1, response_us=waited_us)
        histograms[_RESPONSE] = {bin_of(waited_us): 1}
    if fold.peak_state:
        histograms[_STATE] = {bin_of(fold.peak_state): 1}
    if fold.rating >= 0:
        _set(tally, rated=1, rating=fold.rating)
    if fold.satisfaction >= 0:
        _set(tally, predicted=1, satisfaction=fold.satisfaction)
        histograms[_SATISFACTION] = {fold.satisfaction // 10_000: 1}
    return tally


def _set(tally: CellTally, **values: int) -> None:
    for name, value in values.items():
        tally.sums[_INDEX[name]] = value


# --- windows --------------------------------------------------------------------------------------


class Horizons(msgspec.Struct, frozen=True):
    """Hours before `day` are kept as days, days before `month` as months. Both are hours since
    1970, at the beginning of a day and of a month."""

    day: int = 0
    month: int = 0

    def place(self, dimension: str, hour: int) -> tuple[int, int]:
        """Return the grain and the start (an hour) of the cell that has this hour."""
        finest = _FINEST.get(dimension, HOUR)
        if hour < self.month:
            return MONTH, month_start(hour)
        if hour < self.day or finest == DAY:
            return DAY, day_start(hour)
        return HOUR, hour


def day_start(hour: int) -> int:
    return hour - hour % 24


def month_start(hour: int) -> int:
    at = _at(hour)
    return hours_since(datetime(at.year, at.month, 1, tzinfo=UTC))


def start_of(grain: int, hour: int) -> int:
    """Return the first hour of the window of this grain."""
    return {HOUR: hour, DAY: day_start(hour), MONTH: month_start(hour)}.get(grain, 0)


def hours_in(grain: int, start: int) -> int:
    """Return how many hours a window has."""
    if grain != MONTH:
        return 24 if grain == DAY else 1
    at = _at(start)
    after = datetime(at.year + at.month // 12, at.month % 12 + 1, 1, tzinfo=UTC)
    return hours_since(after) - start


def hours_since(at: datetime) -> int:
    return int(at.timestamp()) // 3_600


def _at(hour: int) -> datetime:
    return datetime.fromtimestamp(hour * 3_600, tz=UTC)


def rolled(tally: CellTally) -> CellTally:
    """Return the tally of a window that goes into a coarser one: of its seconds, the peak."""
    histograms = list(tally.histograms)
    busy = histograms[_BUSY]
    histograms[_BUSY] = {PEAK: peak_of(busy)} if busy else {}
    return CellTally(tally.sums, histograms)


def add_rolled(to: CellTally, tally: CellTally) -> None:
    """Add a rolled tally: counts add up, peaks do not."""
    before, more = to.histograms[_BUSY], tally.histograms[_BUSY]
    highest = max(peak_of(before), peak_of(more))
    to.plus(CellTally(tally.sums, [*tally.histograms[:_BUSY], {}]))
    to.histograms[_BUSY] = {PEAK: highest} if highest else {}


def peak_of(busy: Mapping[int, int]) -> int:
    """Return the most sessions that were at work in one second."""
    peak, running = busy.get(PEAK, 0), 0
    for second in sorted(busy):
        if second != PEAK:
            running += busy[second]
            peak = max(peak, running)
    return peak


def without_seconds(tally: CellTally) -> CellTally:
    """Return a tally without its seconds, for a window that has only their peak."""
    return CellTally(tally.sums, [*tally.histograms[:_BUSY], {}])


# --- tables ---------------------------------------------------------------------------------------


class Table(msgspec.Struct, frozen=True):
    """Groups and their numbers. Rows are dicts by column, `table["refund"]` is one group's."""

    dimension: str
    columns: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]

    def __len__(self) -> int:
        return len(self.rows)

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


def window_name(grain: int, start: int) -> str:
    """Return the beginning of a window as text: 2026-11-17T20:00Z, 2026-11-17 or 2026-11."""
    at = _at(start)
    return at.strftime({HOUR: "%Y-%m-%dT%H:00Z", DAY: "%Y-%m-%d", MONTH: "%Y-%m"}[grain])


def group_row(tally: CellTally) -> dict[str, Any]:
    """Return the numbers of a group of sessions. Rates are pooled: sums over sums."""
    n, turns = tally["sessions"], tally["turns"]
    latency = quantiles(tally.histograms[_LATENCY], _QS)
    duration = quantiles(tally.histograms[_DURATION], _QS)
    state = quantiles(tally.histograms[_STATE], (0.5, 0.99))
    return {
        "sessions": n,
        "ended": tally["ended"],
        "completion_rate": _ratio(tally["completed"], tally["ended"]),
        "error_rate": tally["errors"] / max(tally["tool_invocations"] + tally["generations"], 1),
        "repair_frequency": _ratio(tally["repairs"], n),
        "repair_success_rate": _ratio(tally["repairs_ok"], tally["repairs"]),
        "hallucination_rate": _ratio(tally["hallucinated"], tally["reports"]),
        "verification_pass_rate": _ratio(tally["passes"], tally["evaluations"]),
        "mean_satisfaction": _ratio(tally["satisfaction"], tally["predicted"], MILLION),
        "mean_rating": _ratio(tally["rating"], tally["rated"], MILLION),
        "turns": turns,
        "mean_duration": _ratio(tally["duration_us"], tally["ended"], MILLION),
        "p50_duration": _seconds(duration[0]),
        "p95_duration": _seconds(duration[1]),
        "p99_duration": _seconds(duration[2]),
        "mean_time_to_first_response": _ratio(tally["response_us"], tally["responded"], MILLION),
        "mean_turn_latency": _ratio(tally["latency_us"], turns, MILLION),
        "p50_turn_latency": _seconds(latency[0]),
        "p95_turn_latency": _seconds(latency[1]),
        "p99_turn_latency": _seconds(latency[2]),
        "tool_invocations": tally["tool_invocations"],
        "tokens_input": tally["tokens_input"],
        "tokens_output": tally["tokens_output"],
        "cost_usd": tally["cost"] / MILLION,
        "cost_per_session": _ratio(tally["cost"], n, MILLION),
        "cost_per_success": _ratio(tally["cost"], tally["completed"], MILLION),
        "suspensions_per_session": _ratio(tally["suspensions"], n),
        "p50_peak_state_size": state[0],
        "p99_peak_state_size": state[1],
    }


def tool_row(tally: CellTally) -> dict[str, Any]:
    """Return the numbers of a tool."""
    count = tally["tool_invocations"]
    latency = quantiles(tally.histograms[_LATENCY], _QS)
    answered = sum(tally.histograms[_LATENCY].values())
    return {
        "count": count,
        "sessions": tally["sessions"],
        "errors": tally["errors"],
        "error_rate": _ratio(tally["errors"], count),
        "mean_latency": _ratio(tally["latency_us"], answered, MILLION),
        "p50_latency": _seconds(latency[0]),
        "p95_latency": _seconds(latency[1]),
        "p99_latency": _seconds(latency[2]),
        "total_cost": tally["cost"] / MILLION,
    }


def window_row(tally: CellTally, hours: int) -> dict[str, Any]:
    """Return the numbers of a window of so many hours. Rates are for an hour."""
    turns = tally["turns"]
    latency = quantiles(tally.histograms[_LATENCY], _QS)
    return {
        "started": tally["sessions"],
        "ended": tally["ended"],
        "completed": tally["completed"],
        "completion_rate": _ratio(tally["completed"], tally["ended"]),
        "turns": turns,
        "throughput": turns / hours,
        "peak_concurrency": peak_of(tally.histograms[_BUSY]),
        "errors": tally["errors"],
        "error_rate": tally["errors"] / max(tally["generations"], 1),
        "mean_turn_latency": _ratio(tally["latency_us"], turns, MILLION),
        "p50_turn_latency": _seconds(latency[0]),
        "p95_turn_latency": _seconds(latency[1]),
        "p99_turn_latency": _seconds(latency[2]),
        "tokens_input": tally["tokens_input"],
        "tokens_output": tally["tokens_output"],
        "cost_usd": tally["cost"] / MILLION,
        "cost_rate": tally["cost"] / MILLION / hours,
    }


def merged(tallies: Iterable[CellTally]) -> CellTally:
    """Return the sum of tallies, which may be rolled. Histograms are added as arrays: a table of
    many windows merges hundreds of them."""
    cells = list(tallies)
    if len(cells) == 1:
        return rolled(cells[0])
    whole = CellTally.empty()
    whole.sums = [sum(each) for each in zip(*[cell.sums for cell in cells], strict=True)]
    for index in range(_BUSY):
        whole.histograms[index] = union([cell.histograms[index] for cell in cells])
    highest = max([peak_of(cell.histograms[_BUSY]) for cell in cells], default=0)
    whole.histograms[_BUSY] = {PEAK: highest} if highest else {}
    return whole


_QS: Final = (0.5, 0.95, 0.99)


def _ratio(part: int, of: int, unit: int = 1) -> float | None:
    return part / of / unit if of else None


def _seconds(us: float | None) -> float | None:
    return None if us is None else us / MILLION
