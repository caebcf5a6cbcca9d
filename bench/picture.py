"""The picture of a run: a plain SVG with a group of bars for each row.

Ours, the peer and the limit (raw SQLite, or pgbench) as ratios: how many times as good as the peer,
or as the limit where there is no peer. The scale is logarithmic: each line is ten times the one
before. It needs nothing but text, and follows the reader's light or dark theme.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Any, Final, NamedTuple

from bench.table import Row

_LEFT, _RIGHT, _TOP = 330, 70, 96  # for labels, for values beyond the bars, for title and legend
_WIDTH: Final = 960
_BAR, _GAP = 15, 16
_WHO: Final = ("limpet", "peer", "limit")
_STYLE: Final = """
  text { font-family: system-ui, "Segoe UI", Roboto, sans-serif; font-size: 13px; fill: #1f2328; }
  .title { font-size: 18px; font-weight: 600; }
  .small, .axis { font-size: 10.5px; fill: #59636e; }
  .line { stroke: #d1d9e0; }
  .one { stroke: #59636e; stroke-dasharray: 3 3; }
  .limpet { fill: #0969da; } .peer { fill: #bc4c00; } .limit { fill: #afb8c1; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .small, .axis { fill: #9198a1; }
    .line { stroke: #3d444d; }
    .one { stroke: #9198a1; }
    .limpet { fill: #4493f8; } .peer { fill: #db6d28; } .limit { fill: #656c76; }
  }
"""


class Group(NamedTuple):
    """The bars of one row: who, and how many times as good as the reference."""

    label: str
    bars: tuple[tuple[str, float], ...]


def picture(rows: Iterable[Row], about: Mapping[str, Any]) -> str:
    """The SVG of every row that was measured beside a peer or a limit."""
    groups = [group for row in newest(rows) if (group := _group(row)) is not None]
    values = [value for group in groups for _, value in group.bars] or [1.0]
    low, high = floor(log10(min(values)) - 0.3), ceil(log10(max(values)))
    low, high = min(low, -1), max(high, 1)
    height = _TOP + sum(_height(group) for group in groups) + 62
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
            f'width="{_WIDTH}" height="{height}" role="img" '
            'aria-label="Limpet, its peers and the limit, as ratios">',
            f"<style>{_STYLE}</style>",
            *_header(about),
            *_axis(low, high, height),
            *_bars(groups, low, high),
            "</svg>\n",
        ]
    )


def newest(rows: Iterable[Row]) -> list[Row]:
    """Of rows that differ in their size alone, the last, which is the largest."""
    kept: dict[tuple[str, str], Row] = {}
    for row in rows:
        kept[row.workload, re.sub(r"[\d,.]+", "#", row.what)] = row
    return list(kept.values())


def _group(row: Row) -> Group | None:
    reference = row.peer or row.raw
    if not row.ours or not reference:
        return None
    found = zip(_WHO, (row.ours, row.peer, row.raw), strict=True)
    bars = [(who, _good(row, value, reference)) for who, value in found if value]
    return Group(f"{row.workload} · {row.what}", tuple(bars))


def _good(row: Row, value: float, reference: float) -> float:
    return value / reference if row.unit == "per second" else reference / value


def _height(group: Group) -> int:
    return len(group.bars) * _BAR + _GAP


def _header(about: Mapping[str, Any]) -> list[str]:
    swatches = []
    texts = ("limpet", "peer = 1 ×", "limit: the same bytes without our promises")
    for place, (who, text) in enumerate(zip(_WHO, texts, strict=True)):
        x = 24 + place * 130
        swatches.append(f'<rect class="{who}" x="{x}" y="52" width="12" height="12" rx="2"/>')
        swatches.append(_text(x + 18, 63, text))
    head = "How many times as good as the peer (or as the limit, where there is no peer)"
    machine = " · ".join(f"{name} {about[name]}" for name in _SHOWN if name in about)
    machine += " · quick run" if about.get("quick") else ""
    return [_text(24, 32, head, "title"), *swatches, _text(24, 84, machine, "small")]


_SHOWN: Final = ("limpet", "python", "sqlite", "peer", "file system", "cores", "load", "at")


def _axis(low: int, high: int, height: int) -> list[str]:
    lines = []
    for power in range(low, high + 1):
        x = _x(10.0**power, low, high)
        kind = "one" if power == 0 else "line"
        lines.append(
            f'<line class="{kind}" x1="{x:.0f}" x2="{x:.0f}" y1="{_TOP}" y2="{height - 44}"/>'
        )
        lines.append(_text(x, height - 26, f"{10.0**power:g} ×", "axis", anchor="middle"))
    return lines


def _bars(groups: Sequence[Group], low: int, high: int) -> list[str]:
    found, y = [], _TOP + 8
    for group in groups:
        middle = y + len(group.bars) * _BAR / 2 + 4
        found.append(_text(_LEFT - 12, middle, _short(group.label), anchor="end"))
        for who, value in group.bars:
            x = _x(value, low, high)
            width = max(x - _LEFT, 1)
            shape = f'x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR - 3}" rx="2"'
            found.append(f'<rect class="{who}" {shape}/>')
            found.append(_text(x + 6, y + _BAR - 5, f"{_number(value)} ×", "small"))
            y += _BAR
        y += _GAP
    return found


def _x(value: float, low: int, high: int) -> float:
    share = (log10(value) - low) / (high - low)
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _short(label: str, most: int = 46) -> str:
    return label if len(label) <= most else label[: most - 1] + "…"


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "") -> str:
    attributes = f'x="{x:.0f}" y="{y:.0f}"'
    attributes += f' class="{kind}"' if kind else ""
    attributes += f' text-anchor="{anchor}"' if anchor else ""
    return f"<text {attributes}>{escape(text)}</text>"
