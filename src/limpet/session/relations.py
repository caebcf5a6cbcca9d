"""Relations between sessions, and the graph of all sessions that can be reached from one."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import structs

from limpet.errors import (
    AccessDenied,
    InvalidInput,
    LimpetError,
    RelationNotFound,
    SealUnavailable,
    SessionError,
    SessionMoved,
)
from limpet.model import EMPTY, Commit, Event, Head, Key, described, to_time
from limpet.model.facts.history import MERGED
from limpet.model.facts.moves import ARRIVED, departure
from limpet.model.facts.phases import Phase
from limpet.model.facts.relations import (
    RELATED,
    RELATION_KINDS,
    UNRELATED,
    Direction,
    ReadTerms,
    RelationKind,
    key_in,
    related,
    unrelated,
)
from limpet.model.facts.running.children import CHILD_CREATED, parent_in
from limpet.model.facts.running.spawned import CHILD_SPAWNED
from limpet.model.facts.shares import SHARE_RECEIVED, SHARED
from limpet.model.limits import PAGE_MAX
from limpet.model.state.types import Ref
from limpet.session.history.point_in_time import head_now
from limpet.session.runs.delegation import head_in
from limpet.session.writer import Writer

if TYPE_CHECKING:
    from limpet.store.protocol import Store

EdgeKind: TypeAlias = Literal["child", "fork", "merge", "share", "successor", "peer", "reference"]
GRAPH_NODES_MAX: Final = 10_000
_READ: Final = (CHILD_CREATED, CHILD_SPAWNED, MERGED, RELATED, SHARED, SHARE_RECEIVED)


class Relation(msgspec.Struct, frozen=True):
    """One relation of a session: `key` is the other's, `actor` who related them.

    `outputs`, `fields` and `blobs` are what this session may read of the other by it, with
    `s.read_cited(id)`.
    """

    kind: RelationKind
    direction: Direction
    key: Key
    at: datetime
    actor: str
    id: str = ""
    outputs: bool = False
    fields: tuple[str, ...] = ()
    blobs: tuple[Ref[Any], ...] = ()


class InForce(NamedTuple):
    """A relation as a log has it: with the uid of the other session, and what may be read of it."""

    relation: Relation
    uid: str
    reads: ReadTerms | None


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


async def relate(
    own: Writer, other: Writer, kind: object, actor: str, *, reads: ReadTerms | None = None
) -> Relation:
    """Record the relation in both logs, in one commit. Recorded already, nothing changes; with
    `reads` it is another one each time."""
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
    store, journal = own.journal.store, own.journal
    ways: tuple[Direction, Direction] = ("both", "both") if checked == "peer" else ("to", "from")
    ended = [
        await _ended_before(store, here, checked, ways[0], there.uid),
        await _ended_before(store, there, checked, ways[1], here.uid),
    ]
    id = None if reads is None else journal.new_id()
    facts = (
        related(checked, ways[0], there.key, there.uid, actor, before=ended[0], reads=reads, id=id),
        related(checked, ways[1], here.key, here.uid, actor, before=ended[1]),
    )
    sides = ((own, here), (other, there))
    drafts = [journal.prepare(fact, actor) for fact in facts]
    commits = [
        Commit(
            head.key, (draft,), fence=None if side.lease is None else side.lease.fence, uid=head.uid
        )
        for (side, head), draft in zip(sides, drafts, strict=True)
    ]
    answers = await journal.commit(commits)
    for (side, _), draft, answer in zip(sides, drafts, answers, strict=True):
        await side.absorb(journal, answer, (draft,))
    # One who may write here and not read is answered without what was recorded before.
    return relation_in(structs.replace(answers[0].events[0], data=drafts[0].data))


async def _ended_before(
    store: Store, head: Head, kind: RelationKind, way: Direction, uid: str
) -> int:
    """Return how many relations of this kind and direction to the other session have ended."""
    base = f"related/{kind}/{way}/{uid}"
    ended = 0
    async for event in _events(store, head, (UNRELATED,)):
        if event.data is not None and event.data["relation"] in (base, f"{base}/{ended}"):
            ended += 1
    return ended


async def unrelate(own: Writer, id: str, actor: str) -> None:
    """End a relation, at both ends if the other can be written. Raises RelationNotFound."""
    journal, head = own.journal, await head_now(own)
    known = await relations_in_force(journal.store, head)
    recorded = next((each for each in known if each.relation.id == id), None)
    if recorded is None:
        raise RelationNotFound(id)
    draft = journal.prepare(unrelated(id), actor)
    fence = None if own.lease is None else own.lease.fence
    mine = Commit(head.key, (draft,), fence=fence, uid=head.uid)
    alike = [each for each in known if _ends(each) == _ends(recorded)]
    theirs = None
    # By a relation to another one it may have several to read from; the other has one to them all.
    if len(alike) == 1 or recorded.relation.direction != "to":
        theirs = await _ends_there(own, recorded, head, actor)
    try:
        answers = await journal.commit((mine,) if theirs is None else (mine, theirs))
    except (AccessDenied, SessionError) as error:
        if theirs is None or getattr(error, "key", theirs.key) != theirs.key:
            raise
        answers = await journal.commit((mine,))
    own.known.absorb(answers[0], (draft,))


def _ends(of: InForce) -> tuple[str, str, str]:
    return (of.relation.kind, of.relation.direction, of.uid)


async def _ends_there(own: Writer, recorded: InForce, here: Head, actor: str) -> Commit | None:
    """The end of a relation at the other session; None if that is gone or knows nothing of it."""
    store, mirrored = own.journal.store, {"to": "from", "from": "to", "both": "both"}
    try:
        there = (await store.load(recorded.relation.key, tail=0, scopes=False)).head
        known = await relations_in_force(store, there)
    except (AccessDenied, SessionError, SealUnavailable):
        return None
    way = mirrored[recorded.relation.direction]
    ids = [of.relation.id for of in known if _ends(of) == (recorded.relation.kind, way, here.uid)]
    if there.uid != recorded.uid or departure(there.facts) is not None or not ids:
        return None
    drafts = [own.journal.prepare(unrelated(id), actor) for id in ids]
    return Commit(there.key, tuple(drafts), uid=there.uid)


async def relations_of(store: Store, head: Head, kind: RelationKind | None) -> list[Relation]:
    """Read the relations of a session from its own log, the oldest first."""
    known = [each.relation for each in await relations_in_force(store, head)]
    return [each for each in known if kind in (None, each.kind)]


async def relations_in_force(store: Store, head: Head) -> list[InForce]:
    """Read the relations that have not ended, the oldest first. Those by which a session reads from
    another let it read nothing where it has moved to."""
    known: dict[str, InForce] = {}
    async for event in _events(store, head, (RELATED, UNRELATED, ARRIVED)):
        data = event.data
        if event.type == ARRIVED:
            known = {id: InForce(_plain(of.relation), of.uid, None) for id, of in known.items()}
        elif data is not None and event.type == UNRELATED:
            known.pop(data["relation"], None)
        elif data is not None:
            reads = msgspec.convert(data["reads"], ReadTerms) if "reads" in data else None
            known[event.id] = InForce(relation_in(event), data["uid"], reads)
    return list(known.values())


def _plain(relation: Relation) -> Relation:
    return structs.replace(relation, outputs=False, fields=(), blobs=())


def relation_in(event: Event) -> Relation:
    data = event.data
    reads = data.get("reads", EMPTY)
    return Relation(
        data["kind"],
        data["direction"],
        key_in(data),
        to_time(event.at_us),
        event.actor,
        event.id,
        "output" in reads,
        tuple(reads.get("fields", ())),
        tuple([Ref.parse(each) for each in reads.get("blobs", ())]),
    )


async def session_graph(store: Store, root: Key, limit: int) -> SessionGraph:
    """Walk from `root` along every edge, in both directions, up to `limit` sessions."""
    nodes: dict[Key, SessionNode] = {}
    edges: dict[SessionEdge, None] = {}
    hidden: set[Key] = set()
    waiting, known, truncated = deque([root]), {root}, False
    while waiting:
        key = waiting.popleft()
        try:
            node, own = await _node_with_edges(store, key, is_root=key == root)
        except AccessDenied:  # nor what leads there
            if key == root:
                raise
            hidden.add(key)
            continue
        nodes[key] = node
        for edge in own:
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


async def _node_with_edges(
    store: Store, key: Key, *, is_root: bool
) -> tuple[SessionNode, list[SessionEdge]]:
    try:
        head = (await store.load(key, tail=0, scopes=False)).head
        return _node(head), await _edges_of(store, head)
    except AccessDenied:
        raise
    except (SessionError, SealUnavailable) as error:
        if is_root:
            raise
        return await _node_without_log(store, key, error), []


async def _node_without_log(store: Store, key: Key, error: LimpetError) -> SessionNode:
    """A session whose log cannot be read here, as far as it is known: one that was archived has its
    phase and labels, and what it led to is in its file."""
    if isinstance(error, SessionMoved):
        return SessionNode(key, moved_to=error.to)
    head = None
    try:
        head = await head_in(store, key)
    except AccessDenied as denied:  # a list of another user's, who may let this one in
        try:
            head = (await store.load(key, tail=0, scopes=False)).head
        except (SessionError, SealUnavailable):
            raise denied from None
    return SessionNode(key) if head is None else _node(head)


def _node(head: Head) -> SessionNode:
    at, away = head.facts.get("parent", {}).get("at"), departure(head.facts)
    moved_to = None if away is None else away["to"]
    return SessionNode(head.key, head.phase, dict(head.labels), at, moved_to)


async def _edges_of(store: Store, head: Head) -> list[SessionEdge]:
    key = head.key
    edges: list[SessionEdge] = []
    if (parent := parent_in(head.facts)) is not None:
        edges.append(SessionEdge(parent, key, "child"))
    if (origin := head.facts.get("parent")) is not None:
        edges.append(SessionEdge(key_in(origin), key, "fork"))
    edges += [SessionEdge(key, fork, "fork") for fork in await store.forks(key)]
    related = {of.relation.id for of in await relations_in_force(store, head)}
    async for event in _events(store, head, _READ):
        if event.data is not None and (event.type != RELATED or event.id in related):
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
    ends, kind = (key, key_in(data)), data["kind"]
    if kind == "peer":
        ends = (min(ends), max(ends))
    elif (data["direction"] == "from") is not (kind == "predecessor"):
        ends = (ends[1], ends[0])
    return SessionEdge(*ends, "successor" if kind == "predecessor" else kind)


async def _events(store: Store, head: Head, types: tuple[str, ...]) -> AsyncIterator[Event]:
    """Yield the events of these types in the session's own log, not those of a fork's original."""
    after = head.floor
    while page := await store.read(
        head.key, after=after, limit=PAGE_MAX, reverse=False, types=types
    ):
        for event in page:
            yield event
        after = page[-1].seq
