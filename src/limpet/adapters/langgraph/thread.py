"""One thread: the tree of checkpoints that its log of events describes.

Three types of events are recorded, and nothing else is stored. A `langgraph.checkpoint` says how a
checkpoint differs from the one it was made from (`base`, the seq of that one's event): the versions
that changed, the values that changed, and of lists what was added. A `langgraph.writes` holds the
writes of one task. A `langgraph.removed` names checkpoints that are hidden from then on; what was
made from them still stands.

Pure: events go in, checkpoints and new event data come out. Reading and recording are `saver`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from langgraph.checkpoint.base import WRITES_IDX_MAP, writes_sort_key

from limpet.adapters.langgraph.lists import Growth, List
from limpet.adapters.langgraph.values import FORM, Values
from limpet.model.events import Event

CHECKPOINT: Final = "langgraph.checkpoint"
WRITES: Final = "langgraph.writes"
REMOVED: Final = "langgraph.removed"
_WRITTEN: Final = "written"  # the form of an item that a write of the same thread has already
_REFER_BYTES_MIN: Final = 64  # a shorter item is not worth a reference
_PARTS: Final = ("v", "id", "ts", "channel_values", "channel_versions", "versions_seen")
_raw: Final = msgspec.json.Encoder().encode


class Write(NamedTuple):
    """One write of a task to a channel."""

    task: str
    channel: str
    data: Any
    path: str


class Node:
    """A checkpoint, whole: what its event says, on top of the one it was made from."""

    def __init__(self, ns: str, id: str, parent: str | None, seq: int) -> None:
        self.ns, self.id, self.parent, self.seq = ns, id, parent, seq
        self.rest: Mapping[str, Any] = {}  # v, ts and other members of the checkpoint, as data
        self.meta: Any = {}
        self.versions: dict[str, Any] = {}
        self.seen: dict[str, Any] = {}
        self.values: dict[str, Any] = {}  # data, or a List
        self.children: dict[str, int] = {}  # the ids of checkpoints made from this one, and seqs
        self.hidden = False


class Broken(Exception):
    """The events that a checkpoint stands on cannot be read."""


class Thread:
    """The tree, as of event `version`."""

    def __init__(self, codec: Values) -> None:
        self._codec = codec
        self.version = 0
        self._nodes: dict[str, dict[str, Node | None]] = {}  # by namespace and id; None: broken
        self._by_seq: dict[int, Node | None] = {}
        self._writes: dict[tuple[str, str], dict[tuple[str, int], Write]] = {}
        self._written: dict[int, Sequence[Any]] = {}

    # --- reading -------------------------------------------------------------------------------

    def namespaces(self) -> list[str]:
        return list(self._nodes)

    def nodes(self, ns: str) -> list[Node]:
        """The checkpoints of a namespace that are not hidden, the newest first."""
        found = self._nodes.get(ns, {}).values()
        return [node for node in reversed(found) if node is not None and not node.hidden]

    def find(self, ns: str, id: str | None) -> Node | None:
        """The checkpoint of this id, or the newest one. Raises Broken."""
        nodes = self._nodes.get(ns, {})
        for place in reversed(nodes) if id is None else (id,):
            node = nodes.get(place)
            if node is None and place in nodes:
                raise Broken(place)
            if node is not None and not node.hidden:
                return node
        return None

    def is_removed(self, ns: str, id: str) -> bool:
        node = self._nodes.get(ns, {}).get(id)
        return node is not None and node.hidden

    def is_before(self, ns: str, id: str, other: str) -> bool:
        """Whether one was recorded before the other; by their ids if the other is not here."""
        order = self._nodes.get(ns, {})
        if other not in order:
            return id < other
        for each in order:
            if each in (id, other):
                return each == id and id != other
        return False

    def checkpoint(self, node: Node) -> dict[str, Any]:
        decode = self._codec.decode
        rest = {name: decode(data) for name, data in node.rest.items()}
        values = {
            name: held.values(self._codec) if isinstance(held, List) else decode(held)
            for name, held in node.values.items()
        }
        seen = {name: dict(versions) for name, versions in node.seen.items()}
        whole = {"id": node.id, "channel_values": values, "versions_seen": seen}
        return {"updated_channels": None, **rest, **whole, "channel_versions": dict(node.versions)}

    def metadata(self, node: Node) -> Any:
        return self._codec.decode(node.meta)

    def pending(self, ns: str, id: str) -> list[tuple[str, str, Any]]:
        """The writes under a checkpoint, in the order in which LangGraph applies them."""
        stored = self._writes.get((ns, id), {})
        ordered = sorted(stored, key=lambda at: writes_sort_key(stored[at].path, *at))
        decode = self._codec.decode
        return [(w.task, w.channel, decode(w.data)) for w in (stored[at] for at in ordered)]

    def history(self, node: Node, channels: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The writes to each channel on the way from its last stored value to this checkpoint.

        Hidden checkpoints count: what was removed from view can still be built upon.
        """
        found: dict[str, dict[str, Any]] = {name: {"writes": []} for name in channels}
        left = set(found)
        parent = self._parent(node)
        while parent is not None and left:
            for write in reversed(self.pending(parent.ns, parent.id)):
                if write[1] in left:
                    found[write[1]]["writes"].append(write)
            for name in left & parent.values.keys():
                found[name]["seed"] = self._value(parent, name)
                left.discard(name)
            parent = self._parent(parent)
        for entry in found.values():
            entry["writes"].reverse()
        return found

    def _parent(self, node: Node) -> Node | None:
        return None if node.parent is None else self._nodes[node.ns].get(node.parent)

    def _value(self, node: Node, name: str) -> Any:
        held = node.values[name]
        return held.values(self._codec) if isinstance(held, List) else self._codec.decode(held)

    # --- what is to be recorded ----------------------------------------------------------------

    def describe(
        self,
        ns: str,
        parent: str | None,
        checkpoint: Mapping[str, Any],
        meta: Mapping[str, Any],
        new: Collection[str],
    ) -> tuple[dict[str, Any], dict[str, Growth]]:
        """The data of the event for a new checkpoint, and how its lists grow.

        `new` names the channels that were written to; others with the same version are the same.
        """
        base = None if parent is None else self._nodes.get(ns, {}).get(parent)
        encode = self._codec.encode
        data: dict[str, Any] = {"id": checkpoint["id"], "v": checkpoint["v"]}
        data |= {"ts": checkpoint["ts"], "metadata": encode(meta)}
        if ns:
            data["ns"] = ns
        if base is not None:
            data["base"] = base.seq
        more = {name: part for name, part in checkpoint.items() if name not in _PARTS}
        if any(part is not None for part in more.values()):
            data["more"] = encode(more)
        on = base or Node(ns, "", None, self.version)
        _differ(data, "versions", on.versions, checkpoint["channel_versions"])
        _differ(data, "seen", on.seen, checkpoint["versions_seen"])
        return data, self._describe_values(data, on, checkpoint, new)

    def _describe_values(
        self,
        data: dict[str, Any],
        on: Node,
        checkpoint: Mapping[str, Any],
        changed: Collection[str],
    ) -> dict[str, Growth]:
        values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
        whole: dict[str, Any] = {}
        growths: dict[str, Growth] = {}
        for name, value in values.items():
            held = on.values.get(name, self)  # self: it has none
            if held is not self and name not in changed:
                if on.versions.get(name) == versions.get(name):
                    continue
            if type(value) is list:
                before = held if isinstance(held, List) else List()
                growths[name] = before.compare(self._codec, value)
                continue
            new = self._codec.encode(value)
            if held is self or isinstance(held, List) or _raw(held) != _raw(new):
                whole[name] = new
        if whole:
            data["values"] = whole
        if growths:
            written = self._written_under(on)
            data["lists"] = {n: _listed(by, written.get(n, {})) for n, by in growths.items()}
        if gone := [name for name in on.values if name not in values]:
            data["values_gone"] = gone
        return growths

    def _written_under(self, node: Node) -> dict[str, dict[bytes, list[int]]]:
        """By channel, the items that tasks have written under a checkpoint, and where each is."""
        found: dict[str, dict[bytes, list[int]]] = {}
        for seq, event in self._written_at(node):
            for place, (channel, value, *_) in enumerate(event):
                items = enumerate(value) if isinstance(value, list) else [(-1, value)]
                for at, item in items:
                    if len(raw := _raw(item)) >= _REFER_BYTES_MIN:
                        found.setdefault(channel, {})[raw] = [seq, place, at]
        return found

    def _written_at(self, node: Node) -> Iterable[tuple[int, Sequence[Any]]]:
        """The events of writes since this checkpoint, which are those under it or a sibling."""
        for seq in range(self.version, node.seq, -1):
            if (event := self._written.get(seq)) is not None:
                yield seq, event
            elif seq in self._by_seq:
                return

    def writes(
        self, ns: str, id: str, writes: Sequence[tuple[str, Any]], task: str, path: str
    ) -> dict[str, Any] | None:
        """The data of the event for the writes of a task; None if all are recorded."""
        known = self._writes.get((ns, id), {})
        rows = []
        for place, (channel, value) in enumerate(writes):
            at = WRITES_IDX_MAP.get(channel, place)
            if at < 0 or (task, at) not in known:
                row = [channel, self._codec.encode(value)]
                rows.append(row if at == len(rows) else [*row, at])
        if not rows:
            return None
        data = {"checkpoint": id, "task": task, "writes": rows}
        return data | ({"path": path} if path else {}) | ({"ns": ns} if ns else {})

    # --- folding -------------------------------------------------------------------------------

    def fold(self, event: Event, growths: Mapping[str, Growth] | None = None) -> None:
        """Take in the next event. `growths`: as describe gave them, with their objects."""
        self.version = event.seq
        data = event.data
        if event.type == CHECKPOINT:
            self._by_seq[event.seq] = None
            if data is not None:
                self._fold_checkpoint(event.seq, data, growths)
        elif data is None:
            return
        elif event.type == WRITES:
            self._fold_writes(event.seq, data)
        elif event.type == REMOVED:
            for ns, id in data["checkpoints"]:
                if (node := self._nodes.get(ns, {}).get(id)) is not None:
                    node.hidden = True

    def _fold_checkpoint(
        self, seq: int, data: Mapping[str, Any], growths: Mapping[str, Growth] | None
    ) -> None:
        ns, id, at = data.get("ns", ""), data["id"], data.get("base")
        base = None if at is None else self._by_seq.get(at)
        nodes = self._nodes.setdefault(ns, {})
        if at is not None and base is None:
            nodes[id] = None
            return
        node = Node(ns, id, None if base is None else base.id, seq)
        node.rest = {"v": data["v"], "ts": data["ts"], **data.get("more", {})}
        node.meta = data["metadata"]
        on = base or node
        node.versions = _changed(on.versions, data, "versions")
        node.seen = _changed(on.seen, data, "seen")
        node.values = _changed(on.values, data, "values")
        try:
            for name, row in data.get("lists", {}).items():
                held = on.values.get(name)
                before = held if isinstance(held, List) else List()
                by = growths[name] if growths is not None else self._growth(row)
                node.values[name] = before.grow(by)
        except (IndexError, KeyError):  # the event with the items is damaged
            nodes[id] = None
            return
        nodes[id] = self._by_seq[seq] = node
        if base is not None:
            base.children[id] = seq

    def _growth(self, row: Sequence[Any]) -> Growth:
        keep, items, *tail = row
        data = [self._item(item) for item in items]
        return Growth(keep, data, tail[0] if tail else 0)

    def _item(self, item: Any) -> Any:
        if not isinstance(item, dict) or item.get(FORM) != _WRITTEN:
            return item
        seq, place, at = item["v"]
        value = self._written[seq][place][1]
        return value if at < 0 else value[at]

    def _fold_writes(self, seq: int, data: Mapping[str, Any]) -> None:
        under = self._writes.setdefault((data.get("ns", ""), data["checkpoint"]), {})
        rows = self._written[seq] = data["writes"]
        task, path = data["task"], data.get("path", "")
        for place, (channel, value, *at) in enumerate(rows):
            index = at[0] if at else place
            write = Write(task, channel, value, path)
            if index < 0:  # an error, an interrupt: the last one counts
                under[task, index] = write
            else:
                under.setdefault((task, index), write)

    def late_sibling(self, ns: str, parent: str, id: str, seen: int) -> int | None:
        """The seq of another checkpoint made from this parent after event `seen`, if there is."""
        node = self._nodes.get(ns, {}).get(parent)
        if node is None:
            return None
        later = [seq for child, seq in node.children.items() if child != id and seq > seen]
        return max(later, default=None)


def _differ(
    data: dict[str, Any], name: str, old: Mapping[str, Any], new: Mapping[str, Any]
) -> None:
    """Add to the data what is new or other, and the names that are gone."""
    none = object()
    if changed := {key: value for key, value in new.items() if old.get(key, none) != value}:
        data[name] = changed
    if gone := [key for key in old if key not in new]:
        data[f"{name}_gone"] = gone


def _changed(old: Mapping[str, Any], data: Mapping[str, Any], name: str) -> dict[str, Any]:
    gone = data.get(f"{name}_gone", ())
    kept = {key: value for key, value in old.items() if key not in gone} if gone else old
    return {**kept, **data.get(name, {})}


def _listed(by: Growth, written: Mapping[bytes, list[int]]) -> list[Any]:
    """A growth as data, with references to items that a write has already."""
    items = by.data
    if written:
        refs = [written.get(_raw(item)) for item in items]
        pairs = zip(items, refs, strict=True)
        items = [item if ref is None else {FORM: _WRITTEN, "v": ref} for item, ref in pairs]
    return [by.keep, items, by.tail] if by.tail else [by.keep, items]


def relocated(data: Mapping[str, Any], moved: Mapping[int, int]) -> dict[str, Any]:
    """The data of an event for another log, where the events it refers to have other seqs."""
    new = dict(data)
    if "base" in new:
        new["base"] = moved[new["base"]]
    if "lists" in new:
        new["lists"] = {name: _relisted(row, moved) for name, row in new["lists"].items()}
    return new


def _relisted(row: Sequence[Any], moved: Mapping[int, int]) -> list[Any]:
    items = []
    for item in row[1]:
        if isinstance(item, dict) and item.get(FORM) == _WRITTEN:
            seq, place, at = item["v"]
            item = {FORM: _WRITTEN, "v": [moved[seq], place, at]}
        items.append(item)
    return [row[0], items, *row[2:]]
