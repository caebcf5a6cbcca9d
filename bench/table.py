"""Rows, targets, and how they are shown: a table for people, JSON lines for machines.

A ratio says how many times as good ours is: above 1 it is ahead, whether the number is a rate or
a time or a size. A target is a promise of the project, with the number it was judged by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from rich.console import Console
from rich.table import Table

from bench.rounds import Readings

Unit: TypeAlias = Literal["per second", "ms", "bytes", "KB", "MB", "ratio", "count"]


@dataclass(frozen=True)
class Target:
    """A number that has to be at least, or at most, a limit. No number: not measured."""

    name: str
    value: float | None
    limit: float
    sense: Literal["≥", "≤"]

    @property
    def met(self) -> bool | None:
        if self.value is None:
            return None
        return self.value >= self.limit if self.sense == "≥" else self.value <= self.limit


@dataclass(frozen=True)
class Row:
    """One thing measured, for everybody who was."""

    workload: str
    what: str
    unit: Unit
    readings: dict[str, list[float]]
    ours: float | None
    raw: float | None
    peer: float | None
    targets: tuple[Target, ...] = ()

    def against(self, other: float | None) -> float | None:
        """How many times as good ours is."""
        if not self.ours or not other:
            return None
        return self.ours / other if self.unit == "per second" else other / self.ours

    def record(self) -> dict[str, Any]:
        return {
            "workload": self.workload,
            "what": self.what,
            "unit": self.unit,
            "ours": self.ours,
            "raw": self.raw,
            "peer": self.peer,
            "against_raw": self.against(self.raw),
            "against_peer": self.against(self.peer),
            "targets": [
                {"name": t.name, "value": t.value, "sense": t.sense, "limit": t.limit, "met": t.met}
                for t in self.targets
            ],
            "readings": self.readings,
        }


def row(
    workload: str, what: str, unit: Unit, readings: Readings, name: str, *targets: Target
) -> Row:
    """The row of one named number."""
    return Row(
        workload,
        what,
        unit,
        {who: readings.of(who, name) for who in readings.values if readings.of(who, name)},
        readings.median("ours", name),
        readings.median("raw", name),
        readings.median("peer", name),
        targets,
    )


def at_least(limit: float, name: str, value: float | None) -> Target:
    return Target(name, value, limit, "≥")


def at_most(limit: float, name: str, value: float | None) -> Target:
    return Target(name, value, limit, "≤")


def ratio(top: float | None, bottom: float | None) -> float | None:
    return top / bottom if top is not None and bottom else None


def show(console: Console, title: str, rows: Sequence[Row]) -> None:
    """Print the rows of one workload."""
    table = Table(title=title, title_justify="left", title_style="bold", expand=False)
    for column in ("what", "unit"):
        table.add_column(column, overflow="fold")
    for column in ("limpet", "raw", "peer", "× raw", "× peer"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("target", "measured", "met"):
        table.add_column(column, justify="left" if column == "target" else "right")
    for each in rows:
        numbers = (each.ours, each.raw, each.peer)
        table.add_row(
            each.what,
            each.unit,
            *(_number(number) for number in numbers),
            *(_number(each.against(other)) for other in numbers[1:]),
            "\n".join(f"{t.name} {t.sense} {t.limit:g}" for t in each.targets),
            "\n".join(_number(t.value) for t in each.targets),
            "\n".join(_met(t) for t in each.targets),
        )
    console.print(table)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def _met(target: Target) -> str:
    if target.met is None:
        return "[dim]–[/]"
    return "[green]yes[/]" if target.met else "[red]no[/]"
