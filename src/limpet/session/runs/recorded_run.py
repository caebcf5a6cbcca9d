"""The run of a graph, read back from the log of the session that it ran in."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from limpet.model import Event, PlainOp, freeze, thaw
from limpet.model.ops import apply
from limpet.session.session import Session

_STEP: Final = "step.recorded"
_PAGE: Final = 200
_EVENTS_MAX: Final = 4_000


class NodeVisit(msgspec.Struct, frozen=True):
    """A node that ran, the event that recorded it, and the state after it."""

    node: str
    seq: int
    state: Any


class RecordedRun(msgspec.Struct, frozen=True):
    """The graph of a turn as it was drawn, the nodes that ran in order, and which runs next.

    `stop_reason` is why the session stopped; None: it runs. Of a log that has no drawing, nodes and
    edges are those of the way that was taken.
    """

    graph: str | None = None
    entry: str | None = None
    nodes: tuple[tuple[str, str], ...] = ()
    edges: tuple[tuple[str, str | None, bool], ...] = ()
    path: tuple[NodeVisit, ...] = ()
    current: str | None = None
    stop_reason: str | None = None


async def run_of(session: Session[Any]) -> RecordedRun:
    """The newest run of a graph in a session; empty if there is none."""
    steps: list[Event] = []  # the newest first
    before: int | None = None
    while len(steps) < _EVENTS_MAX:
        page = await session.read(before=before, types=[_STEP], limit=_PAGE, reverse=True)
        for event in page:
            if event.data is not None and "graph" in event.data:
                steps.append(event)
                if str(event.data["name"]).startswith("@") and event.data["occurrence"] == 1:
                    stopped = None if session.status == "running" else session.stop_reason
                    return msgspec.structs.replace(_read(steps[::-1]), stop_reason=stopped)
        if not page:
            break
        before = page[-1].seq
    return RecordedRun()


def _read(steps: list[Event]) -> RecordedRun:
    document: Any = freeze({})
    drawing: dict[str, Any] | None = None
    visits: list[NodeVisit] = []
    for event in steps:
        saved = thaw(event.data["result"])
        drawing = saved.get("drawing", drawing)
        if "record" in saved:
            document = freeze(saved["record"])
        elif "ops" in saved:
            document = apply(document, msgspec.convert(saved["ops"], tuple[PlainOp, ...]))
        for change in saved.get("nodes", ()):
            if change[0] == "done" and "/" not in change[1]:
                visits.append(NodeVisit(change[1], event.seq, _frame(document).get("state", {})))
    current = _frame(document).get("node")
    if drawing is None:
        drawing = _drawn(visits, current)
    return RecordedRun(
        graph=steps[0].data["graph"],
        entry=drawing["entry"],
        nodes=tuple([(name, kind) for name, kind in drawing["nodes"]]),
        edges=tuple([(a, b, choice) for a, b, choice in drawing["edges"]]),
        path=tuple(visits),
        current=current,
    )


def _frame(document: Any) -> Any:
    """The outermost graph of the stack."""
    cursor = thaw(document.get("cursor", ()))
    return cursor[0] if cursor else {}


def _drawn(visits: list[NodeVisit], current: str | None) -> dict[str, Any]:
    names = [visit.node for visit in visits] + ([] if current is None else [current])
    ways = list(zip(names, [*names[1:], None], strict=True))
    if current is not None:
        ways.pop()
    nodes = [[name, "function"] for name in dict.fromkeys(names)]
    edges = [[a, b, False] for a, b in dict.fromkeys(ways)]
    return {"entry": names[0] if names else None, "nodes": nodes, "edges": edges}
