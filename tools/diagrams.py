"""Draw the flowcharts of the documentation as SVG: the part of Mermaid that `graph.draw()` writes.

The site loads no script to draw them, and needs no network to build them. Boxes stand in rows from
above: each one row below the lowest that leads to it. An arrow that leads back, to its own box or
past a row bends around the boxes.
"""

from __future__ import annotations

import re
from html import escape, unescape
from typing import Final, NamedTuple

_NODE: Final = re.compile(r"^(\w+)(?:\(\[(.+)\]\)|\[\"?(.+?)\"?\])$")
_EDGE: Final = re.compile(r"^(\w+) (-->|-\.->) (\w+)$")
_HEIGHT: Final = 34
_ROW: Final = 78
_GAP: Final = 28


class Box(NamedTuple):
    """A node: its text, its middle, and half of its width."""

    text: str
    round: bool
    x: float
    y: float
    half: float


class Arrow(NamedTuple):
    """An edge; a dotted one is taken if its condition holds."""

    source: str
    target: str
    dotted: bool


def svg(flowchart: str) -> str:
    """Return a flowchart as SVG in one line. Raises ValueError for what we do not draw."""
    names: dict[str, tuple[str, bool]] = {}
    arrows: list[Arrow] = []
    first, *lines = [line.strip() for line in flowchart.strip().splitlines()]
    if first != "flowchart TD":
        raise ValueError(f"only flowcharts from above are drawn, not {first!r}")
    for line in lines:
        if edge := _EDGE.match(line):
            arrows.append(Arrow(edge[1], edge[3], edge[2] == "-.->"))
        elif node := _NODE.match(line):
            names[node[1]] = (unescape(node[2] or node[3]), node[2] is not None)
        else:
            raise ValueError(f"this line is not drawn: {line!r}")
    rows = _rows(names, arrows)
    boxes = _placed(names, rows)
    width = max(box.x + box.half for box in boxes.values()) + 2 * _GAP
    height = _ROW * max(rows.values()) + _HEIGHT + 4
    drawn = [_arrow(boxes, rows, arrow) for arrow in arrows]
    drawn += [_box(box) for box in boxes.values()]
    marker = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
    marker += (
        'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="currentColor"/></marker>'
    )
    size = f'viewBox="{-2 * _GAP:.0f} -2 {width + 2 * _GAP:.0f} {height:.0f}"'
    told = escape(", ".join(text for text, _ in names.values()))
    return (
        f'<svg class="flowchart" {size} width="{width + 2 * _GAP:.0f}" role="img" '
        f'aria-label="Flowchart: {told}"><defs>{marker}</defs>{"".join(drawn)}</svg>'
    )


def _rows(names: dict[str, tuple[str, bool]], arrows: list[Arrow]) -> dict[str, int]:
    """The row of each node: below all that lead to it, but for arrows that lead back."""
    rows = dict.fromkeys(names, 0)
    below: dict[str, list[str]] = {name: [] for name in names}
    for arrow in arrows:
        if arrow.source != arrow.target and not _reaches(below, arrow.target, arrow.source):
            below[arrow.source].append(arrow.target)
    for _ in names:  # the longest way has as many steps as there are nodes, at most
        for name, targets in below.items():
            for target in targets:
                rows[target] = max(rows[target], rows[name] + 1)
    return rows


def _reaches(below: dict[str, list[str]], start: str, end: str) -> bool:
    return start == end or any(_reaches(below, each, end) for each in below[start])


def _placed(names: dict[str, tuple[str, bool]], rows: dict[str, int]) -> dict[str, Box]:
    """Every row centered under the others, in the order of the nodes."""
    half = {name: max(34.0, 4.2 * len(text) + 16) for name, (text, _) in names.items()}
    members = {row: [name for name in names if rows[name] == row] for row in set(rows.values())}
    spans = {
        row: sum(2 * half[name] for name in inside) + _GAP * (len(inside) - 1)
        for row, inside in members.items()
    }
    boxes = {}
    for row, inside in members.items():
        x = (max(spans.values()) - spans[row]) / 2
        for name in inside:
            text, is_round = names[name]
            boxes[name] = Box(text, is_round, x + half[name], row * _ROW, half[name])
            x += 2 * half[name] + _GAP
    return {name: boxes[name] for name in names}


def _arrow(boxes: dict[str, Box], rows: dict[str, int], arrow: Arrow) -> str:
    a, b = boxes[arrow.source], boxes[arrow.target]
    if rows[arrow.target] == rows[arrow.source] + 1:
        middle = (a.y + _HEIGHT + b.y) / 2
        path = f"M{a.x:.0f} {a.y + _HEIGHT:.0f}C{a.x:.0f} {middle:.0f} {b.x:.0f} {middle:.0f} "
        path += f"{b.x:.0f} {b.y:.0f}"
    else:  # around the boxes, on their right
        out = max(box.x + box.half for box in boxes.values()) + _GAP
        path = f"M{a.x + a.half:.0f} {a.y + 24:.0f}C{out:.0f} {a.y + 24:.0f} {out:.0f} "
        path += f"{b.y + 10:.0f} {b.x + b.half:.0f} {b.y + 10:.0f}"
    dashes = ' stroke-dasharray="3 4"' if arrow.dotted else ""
    return f'<path d="{path}" fill="none" stroke="currentColor"{dashes} marker-end="url(#head)"/>'


def _box(box: Box) -> str:
    corner = _HEIGHT / 2 if box.round else 5
    return (
        f'<rect x="{box.x - box.half:.0f}" y="{box.y:.0f}" width="{2 * box.half:.0f}" '
        f'height="{_HEIGHT}" rx="{corner:.0f}"/>'
        f'<text x="{box.x:.0f}" y="{box.y + 21:.0f}" text-anchor="middle">{escape(box.text)}</text>'
    )
