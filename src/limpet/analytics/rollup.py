"""Roll-ups: what sessions add up to, by user, task type, agent version, tool and window.

A cell holds sums and histograms of integers. What a session adds to a cell is a function of its
fold, so a change of the session is its new tally minus its old one, and an erased session leaves
nothing behind. The one exception is `busy`, how the number of sessions at work changes from second
to second: when hours are rolled up into a day, the day keeps the highest of their peaks.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from limpet.analytics.histogram import (
    PEAK,
    Histogram,
    bin_of,
    merge,
    pack as pack_histogram,
    unpack as unpack_histogram,
)
from limpet.analytics.metrics import HOUR_US, SessionFold, spent_us

Dimension: TypeAlias = Literal["user", "task_type", "agent_version", "tool", "window"]
Grain: TypeAlias = Literal["all", "hour", "day", "month"]
DIMENSIONS: Final[tuple[Dimension, ...]] = Dimension.__args__  # type: ignore[attr-defined]  # Literal
GRAINS: Final[tuple[Grain, ...]] = ("all", "hour", "day", "month")
ALL, HOUR, DAY, MONTH = range(4)
FIRST_HOUR: Final = -17_259_888  # of the year 1: no datetime is earlier
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

    def weight(self, dimension: str) -> int:
        """The size of a group with this tally: its sessions, or the calls of a tool."""
        return self["tool_invocations" if dimension == "tool" else "sessions"]

    @property
    def is_empty(self) -> bool:
        return not any(self.sums) and not any(self.histograms)

    def __getitem__(self, name: str) -> int:
        return self.sums[INDEX[name]]

    def histogram(self, name: str) -> Histogram:
        """Return one of HISTOGRAMS."""
        return self.histograms[HISTOGRAMS.index(name)]


class PackedTally(msgspec.Struct, array_like=True, gc=False):
    """A tally as it is stored: its sums, and its histograms as `histogram.pack` makes them."""

    sums: list[int]
    histograms: list[bytes]


# Sums are added up in 64 bits. Whoever writes absurd numbers gets wrong ones, and stops nobody.
SUM_MAX: Final = 2**62
INDEX: Final = {name: index for index, name in enumerate(SUMS)}
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(PackedTally)


def pack(tally: CellTally) -> bytes:
    """Return the stored form of a tally."""
    sums = [max(-SUM_MAX, min(each, SUM_MAX)) for each in tally.sums]
    return _encoder.encode(PackedTally(sums, [pack_histogram(h) for h in tally.histograms]))


def unpack(raw: bytes) -> CellTally:
    """Return the tally of a stored form."""
    packed = _decoder.decode(raw)
    return CellTally(packed.sums, [unpack_histogram(each) for each in packed.histograms])


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
        took_us = spent_us(fold.created_us, fold.ended_us)
        _set(tally, ended=1, duration_us=took_us)
        _set(tally, active_us=fold.active_us, suspended_us=fold.suspended_us)
        histograms[_DURATION] = {bin_of(took_us): 1}
        histograms[_COST] = {bin_of(fold.cost): 1}
    if fold.responded_us:
        waited_us = spent_us(fold.created_us, fold.responded_us)
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
        tally.sums[INDEX[name]] = value


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
    return 24 * monthrange(at.year, at.month)[1]


def hours_since(at: datetime) -> int:
    return int(at.timestamp()) // 3_600


def _at(hour: int) -> datetime:
    return datetime.fromtimestamp(hour * 3_600, tz=UTC)


def window_name(grain: int, start: int) -> str:
    """Return the beginning of a window as text: 2026-11-17T20:00Z, 2026-11-17 or 2026-11."""
    at = _at(start)
    return at.strftime({HOUR: "%Y-%m-%dT%H:00Z", DAY: "%Y-%m-%d", MONTH: "%Y-%m"}[grain])


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
