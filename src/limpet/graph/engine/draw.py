"""Drawing: a graph as a Mermaid flowchart.

A conditional edge may lead to any node, so it is drawn dotted: to the targets that were declared
for it, or to every node and the end.
"""

from __future__ import annotations

from typing import Any

from limpet.graph.plan import GraphPlan

_SHAPES = {
    "function": ("[", "]"),
    "subgraph": ("[[", "]]"),
    "fan_out": ("[/", "/]"),
    "branches": ("{{", "}}"),
}


def mermaid(graph: GraphPlan[Any]) -> str:
    """The Mermaid text of a graph."""
    ids = {name: f"n{at}" for at, name in enumerate(graph.steps)}
    lines = ["flowchart TD", "    start([start])", "    finish([END])"]
    for name, step in graph.steps.items():
        opening, closing = _SHAPES[step.kind]
        lines.append(f'    {ids[name]}{opening}"{_label(name, step)}"{closing}')
    lines.append(f"    start --> {ids[graph.entry]}")
    for name, step in graph.steps.items():
        edge = step.next
        if edge.fn is None:
            lines.append(f"    {ids[name]} --> {ids.get(edge.target or '', 'finish')}")
            continue
        targets: tuple[str | None, ...] = (*graph.steps, None)
        for target in targets if edge.drawn is None else edge.drawn:
            lines.append(f"    {ids[name]} -.-> {ids.get(target or '', 'finish')}")
    return "\n".join(lines) + "\n"


def _label(name: str, step: Any) -> str:
    text = name.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    if step.kind == "branches":
        inside = ", ".join(str(branch) for branch in step.branches)
        text += ": " + inside.replace('"', "&quot;")
    return text
