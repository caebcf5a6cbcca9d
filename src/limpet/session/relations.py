"""Relations between sessions, and the graph of all sessions that can be reached from one."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from limpet.errors import AccessDenied, InvalidInput, SessionDeleted, SessionErased, SessionNotFound
from limpet.model import Commit, Event, Head, Key, described, to_time
from limpet.model.facts.history import MERGED
from limpet.model.facts.moves import departure
from limpet.model.facts.phases import Phase
from limpet.model.facts.relations import (
    RELATED,
    RELATION_KINDS,
    Direction,
    RelationKind,
    key_in,
    related,
)
from limpet.model.facts.running.children import CHILD_CREATED, parent_in
from limpet.model.facts.running.spawned import CHILD_SPAWNED
from limpet.model.facts.shares import SHARE_RECEIVED, SHARED
from limpet.model.limits import PAGE_MAX
from limpet.session.history.point_in_time import head_now
from limpet.session.writer import Writer

if TYPE_CHECKING:
    from limpet.store.protocol import Store

EdgeKind: TypeAlias = Literal["child", "fork", "merge", "share", "successor", "peer", "reference"]
GRAPH_NODES_MAX: Final = 10_000
_READ: Final = (CHILD_CREATED, CHILD_SPAWNED, MERGED, RELATED, SHARED, SHARE_RECEIVED)


class Relation(msgspec.Struct, frozen=True):
    """One relation of a session: `key` is the other's, `actor` who related them."""

    kind: RelationKind
    direction: Direction
    key: Key
    at: datetime
    actor: str


class SessionNode(msgspec.Struct, frozen=True):
    """A session in a graph. `phase` is None if it was deleted, erased or never created; `forked_at`
    is the last event that a fork has in common with its original. One that has moved away is shown
    as it left, and `moved_to` names the node."""

    key: Key
    phase: Phase | None = None
    labels: dict[str, str] = {}
    forked_at: int | None = None
    moved_to: str | None = None


class SessionEdge(msgspec.Struct, frozen=True, order=True):
    """An edge from `source` to `target`: a child, fork, successor, reference, merge or share."""

    source: Key
    target: Key
    kind: EdgeKind


class SessionGraph(msgspec.Struct, frozen=True):
    """The sessions that can be reached from `root`, nearest first, and their edges."""

    root: Key
    nodes: tuple[SessionNode, ...]
    edges: tuple[SessionEdge, ...]
    truncated: bool = False  # there are more sessions than were asked for

    def mermaid(self) -> str:
        """Return the graph as Mermaid text, for pages that draw it."""
        names = {node.key: f"s{number}" for number, node in enumerate(self.nodes)}
        lines = ["graph LR"]
        for node in self.nodes:
            lines.append(f'    {names[node.key]}["{_mermaid_text(_node_text(node))}"]')
        for edge in self.edges:
            arrow = "---" if edge.kind == "peer" else "-->"
            lines.append(f"    {names[edge.source]} {arrow}|{edge.kind}| {names[edge.target]}")
        return "\n".join(lines)

    def __str__(self) -> str:
        """Return the graph as a tree from its root, a line for each way to a session."""
        return "\n".join("  " * depth + text for depth, text in self.lines())

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield depth and text of each line of the tree. A session's edges are shown once."""
        nodes = {node.key: node for node in self.nodes}
        near: dict[Key, list[tuple[SessionEdge, Key]]] = {key: [] for key in nodes}
        for edge in self.edges:
            near[edge.source].append((edge, edge.target))
            near[edge.target].append((edge, edge.source))
        shown: set[SessionEdge] = set()
        stack = [(0, _node_text(nodes[self.root]), self.root)]
        visited: set[Key] = set()
        while stack:
            depth, text, key = stack.pop()
            again = key in visited
            yield depth, text + (" (above)" if again and near[key] else "")
            if again:
                continue
            visited.add(key)
            below: list[tuple[int, str, Key]] = []
            for edge, other in near[key]:
                if edge not in shown:
                    shown.add(edge)
                    word = _edge_word(edge, key)
                    below.append((depth + 1, f"{word} {_node_text(nodes[other])}", other))
            stack.extend(reversed(below))


def _edge_word(edge: SessionEdge, seen_from: Key) -> str:
    if edge.kind == "peer":
        return "peer"
    forward = {"merge": "merged", "share": "shares with"}
    backward = {
        "child": "child of",
        "fork": "fork of",
        "merge": "merged into",
        "share": "shared by",
        "successor": "successor of",
        "reference": "referred to by",
    }
    return forward.get(edge.kind, edge.kind) if edge.source == seen_from else backward[edge.kind]


def _node_text(node: SessionNode) -> str:
    if node.moved_to is not None:
        return f"{node.key} (at {node.moved_to})"
    return str(node.key) + ("" if node.phase == "active" else f" ({node.phase or 'gone'})")


def _mermaid_text(text: str) -> str:
    """Write what Mermaid would read as markup in entities."""
    return "".join(c if c.isalnum() or c in " /_-.:()" else f"#{ord(c)};" for c in text)


def check_kind(kind: object) -> RelationKind | None:
    """Return the kind of a relation. Raises InvalidInput."""
    for known in RELATION_KINDS:
        if kind == known:
            return known
    if kind is None:
        return None
    kinds = ", ".join(RELATION_KINDS)
    raise InvalidInput(f"the kind of a relation is one of {kinds}, not {described(kind)}.")


async def relate(own: Writer, other: Writer, kind: object, actor: str) -> None:
    """Record the relation in both logs, in one commit. Recorded already, nothing changes."""
    checked = check_kind(kind)
    if checked is None:
        raise InvalidInput(f"name the kind of the relation: {', '.join(RELATION_KINDS)}.")
    if other.journal.root is not own.journal.root:
        raise InvalidInput(
            f"{other.known.key} is open in another store. Relate sessions of one store."
        )
    if other.known.key == own.known.key:
        raise InvalidInput(f"{own.known.key} cannot be related to itself. Name another session.")
    here, there = await head_now(own), await head_now(other)
    ways: tuple[Direction, Direction] = ("both", "both") if checked == "peer" else ("to", "from")
    sides = ((own, here, there, ways[0]), (other, there, here, ways[1]))
    drafts = [
        own.journal.prepare(related(checked, way, head.key, head.uid, actor), actor)
        for _, _, head, way in sides
    ]
    commits = [
        Commit(
            head.key, (draft,), fence=None if side.lease is None else side.lease.fence, uid=head.uid
        )
        for (side, head, _, _), draft in zip(sides, drafts, strict=True)
    ]
    answers = await own.journal.commit(commits)
    for (side, _, _, _), draft, answer in zip(sides, drafts, answers, strict=True):
        await side.absorb(own.journal, answer, (draft,))


async def relations_of(store: Store, head: Head, kind: RelationKind | None) -> list[Relation]:
    """Read the relations of a session from its own log, the oldest first."""
    return [
        Relation(
            event.data["kind"],
            event.data["direction"],
            key_in(event.data),
            to_time(event.at_us),
            event.actor,
        )
        async for event in _events(store, head, (RELATED,))
        if event.data is not None and kind in (None, event.data["kind"])
    ]


async def session_graph(store: Store, root: Key, limit: int) -> SessionGraph:
    """Walk from `root` along every edge, in both directions, up to `limit` sessions."""
    nodes: dict[Key, SessionNode] = {}
    edges: dict[SessionEdge, None] = {}
    hidden: set[Key] = set()
    waiting, known, truncated = deque([root]), {root}, False
    while waiting:
        key = waiting.popleft()
        try:
            head = (await store.load(key, tail=0, scopes=False)).head
        except (SessionNotFound, SessionDeleted, SessionErased):
            if key == root:
                raise
            nodes[key] = SessionNode(key)
            continue
        except AccessDenied:  # nor what leads there
            if key == root:
                raise
            hidden.add(key)
            continue
        at, away = head.facts.get("parent", {}).get("at"), departure(head.facts)
        moved_to = None if away is None else away["to"]
        nodes[key] = SessionNode(key, head.phase, dict(head.labels), at, moved_to)
        for edge in await _edges_of(store, head):
            other = edge.target if edge.source == key else edge.source
            if other not in known:
                if len(known) >= limit:
                    truncated = True
                    continue
                known.add(other)
                waiting.append(other)
            edges[edge] = None
    shown = [edge for edge in edges if not hidden & {edge.source, edge.target}]
    return SessionGraph(root, tuple(nodes.values()), tuple(shown), truncated)


async def _edges_of(store: Store, head: Head) -> list[SessionEdge]:
    key = head.key
    edges: list[SessionEdge] = []
    if (parent := parent_in(head.facts)) is not None:
        edges.append(SessionEdge(parent, key, "child"))
    if (origin := head.facts.get("parent")) is not None:
        edges.append(SessionEdge(key_in(origin), key, "fork"))
    edges += [SessionEdge(key, fork, "fork") for fork in await store.forks(key)]
    async for event in _events(store, head, _READ):
        if event.data is not None:
            edges.append(_edge_in(key, event.type, event.data))
    return edges


def _edge_in(key: Key, type: str, data: Any) -> SessionEdge:
    if type in (CHILD_CREATED, CHILD_SPAWNED):
        return SessionEdge(key, Key(data["app"], data["user"], data["child"]), "child")
    if type == MERGED:
        return SessionEdge(key, key_in(data["other"]), "merge")
    if type == SHARED:
        return SessionEdge(key, key_in(data["target"]), "share")
    if type == SHARE_RECEIVED:
        return SessionEdge(key_in(data["source"]), key, "share")
    return relation_edge(key, data)


def relation_edge(key: Key, data: Mapping[str, Any]) -> SessionEdge:
    """The edge of a relation that a session has recorded: the same from either end."""
    ends = (key, key_in(data))
    if data["kind"] == "peer":
        ends = (min(ends), max(ends))
    elif data["direction"] == "from":
        ends = (ends[1], ends[0])
    return SessionEdge(*ends, data["kind"])


async def _events(store: Store, head: Head, types: tuple[str, ...]) -> AsyncIterator[Event]:
    """Yield the events of these types in the session's own log, not those of a fork's original."""
    after = head.floor
    while page := await store.read(
        head.key, after=after, limit=PAGE_MAX, reverse=False, types=types
    ):
        for event in page:
            yield event
        after = page[-1].seq
