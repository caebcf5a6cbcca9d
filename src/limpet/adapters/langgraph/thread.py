"""One thread: the tree of checkpoints that its log of events describes.

Three types of events are recorded, and nothing else is stored. A `langgraph.checkpoint` says how a
checkpoint differs from the one it was made from: what changed, and of lists what was added. Its id
is the id of the event. A `langgraph.writes` holds the writes of one task (its invocation) under a
checkpoint (its cause). A `langgraph.removed` names checkpoints that are hidden from then on; what
was made from them still stands.

Graphs go in circles, so most of what an event says was said before: `shape` holds that part, and
an event of a known shape says only `as`, where it stands; what is new each time is its `data`.
Events refer to others by their number among those of this module, from 1, so a copy of a thread
needs no changes.

Pure: events go in, checkpoints and new events come out. Reading and recording are `saver`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import is_, itemgetter
from typing import Any, Final, NamedTuple

import msgspec
from langgraph.checkpoint.base import WRITES_IDX_MAP, writes_sort_key

from limpet import Event
from limpet.adapters.langgraph.values import FORM, Values, fields_shot, is_message
from limpet.model.values import ABSENT

CHECKPOINT: Final = "langgraph.checkpoint"
WRITES: Final = "langgraph.writes"
REMOVED: Final = "langgraph.removed"
TYPES: Final = (CHECKPOINT, WRITES, REMOVED)
_WRITTEN: Final = "written"  # the form of an item that a write before this checkpoint has already
_INPUT: Final = "input"  # the form of a write that the input of the graph has already
_START: Final = "__start__"
_REFER_BYTES_MIN: Final = 64  # a shorter item is not worth a reference
_PARTS: Final = ("id", "ts", "channel_values", "channel_versions", "versions_seen")
_EMPTY: Final[Mapping[str, Any]] = {}
_SHAPE_BYTES_MAX: Final = 16  # a longer text in metadata is rarely the same twice
_ID_CHARS_MAX: Final = 256
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_IN_UTC: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", re.ASCII).fullmatch
raw: Final = msgspec.json.Encoder().encode


class Write(NamedTuple):
    """One write of a task to a channel."""

    task: str
    channel: str
    data: Any
    path: str


class CheckpointNode:
    """A checkpoint, whole: what its event says, on top of the one it was made from."""

    def __init__(self, ns: str, id: str, parent: str | None, number: int, seq: int) -> None:
        self.ns, self.id, self.parent, self.number, self.seq = ns, id, parent, number, seq
        self.ts: Any = ""  # as data
        self.rest: dict[str, Any] = {}  # v and other members of the checkpoint, as data
        self.meta: dict[str, Any] = {}
        self.versions: dict[str, Any] = {}
        self.seen: dict[str, Any] = {}
        self.values: dict[str, Any] = {}  # data, or a List
        self.children: dict[str, int] = {}  # the ids of checkpoints made from this one, and seqs
        self.hidden = False

    def read(self, on: CheckpointNode, data: Mapping[str, Any], shape: Mapping[str, Any]) -> None:
        """Take what its event says, on top of another node; lists are not part of it."""
        new = {**changed(on.meta, shape, "metadata"), **data.get("metadata", {})}
        if "step" in shape:
            new["step"] = on.meta["step"] + shape["step"]
        self.meta = new
        versions = changed(on.versions, shape, "versions") | data.get("versions", {})
        versions |= dict.fromkeys(shape.get("raised", ()), _top(on.versions) + 1)
        seen = changed(on.seen, shape, "seen") | data.get("seen", {})
        for node, names in shape.get("saw", {}).items():
            seen[node] = {name: on.versions[name] for name in names}
        self.versions, self.seen = versions, seen
        self.values = {**changed(on.values, shape, "values"), **data.get("values", {})}
        self.values |= dict.fromkeys(shape.get("nulls", ()))
        self.rest = changed(on.rest, shape, "rest")
        if shape.get("updated"):
            self.rest["updated_channels"] = touched(data, shape)


class NodeContent(NamedTuple):
    """The content of a checkpoint's node besides its lists, as it was when it was described:
    its own event need not be read for it."""

    meta: dict[str, Any]
    versions: dict[str, Any]
    seen: dict[str, Any]
    values: dict[str, Any]
    rest: dict[str, Any]


class ThreadEvent(NamedTuple):
    """An event to be recorded; of a checkpoint, how its lists grow, and the rest of its node."""

    data: dict[str, Any]
    growths: Mapping[str, Growth] = {}
    id: str | None = None
    cause: str | None = None
    invocation_id: str | None = None
    expect: int | None = None  # it refers to others, so it holds on this version only
    after: NodeContent | None = None


class UnreadableCheckpoint(Exception):
    """The events that a checkpoint stands on cannot be read."""


class Thread:
    """The tree, as of event `version`."""

    def __init__(self, codec: Values) -> None:
        self._codec = codec
        self.version = 0
        self._nodes: dict[
            str, dict[str, CheckpointNode | None]
        ] = {}  # by namespace and id; None: broken
        self._count = 0  # of the events of this module
        self._ids: set[str] = set()  # that events have
        self._by_number: dict[int, CheckpointNode | None] = {}
        self._writes: dict[tuple[str, str], dict[tuple[str, int], Write]] = {}
        self._written: dict[int, Sequence[Any]] = {}
        self._shapes: dict[int, Mapping[str, Any]] = {}
        self._shaped: dict[bytes, int] = {}

    # --- reading -------------------------------------------------------------------------------

    def namespaces(self) -> list[str]:
        return list(self._nodes)

    def nodes(self, ns: str) -> list[CheckpointNode]:
        """The checkpoints of a namespace that are not hidden, the newest first."""
        nodes = self._nodes.get(ns, {}).values()
        return [node for node in reversed(nodes) if node is not None and not node.hidden]

    def find(self, ns: str, id: str | None) -> CheckpointNode | None:
        """The checkpoint of this id, or the newest one. Raises UnreadableCheckpoint."""
        nodes = self._nodes.get(ns, {})
        for place in reversed(nodes) if id is None else (id,):
            node = nodes.get(place)
            if node is None and place in nodes:
                raise UnreadableCheckpoint(place)
            if node is not None and not node.hidden:
                return node
        return None

    def has(self, ns: str, id: str) -> bool:
        return id in self._nodes.get(ns, {})

    def is_removed(self, ns: str, id: str) -> bool:
        node = self._nodes.get(ns, {}).get(id)
        return node is not None and node.hidden

    def is_before(self, ns: str, id: str, other: str) -> bool:
        """True if one was recorded before the other; by their ids if the other is not here."""
        order = self._nodes.get(ns, {})
        if other not in order:
            return id < other
        for each in order:
            if each in (id, other):
                return each == id and id != other
        return False

    def checkpoint(self, node: CheckpointNode) -> dict[str, Any]:
        decode = self._codec.decode
        rest = {name: decode(data) for name, data in node.rest.items()}
        values = {
            name: held.values(self._codec) if isinstance(held, List) else decode(held)
            for name, held in node.values.items()
        }
        seen = {name: dict(versions) for name, versions in node.seen.items()}
        whole = {
            "id": node.id,
            "ts": long_time(node.ts),
            "channel_values": values,
            "versions_seen": seen,
        }
        return {"updated_channels": None, **rest, **whole, "channel_versions": dict(node.versions)}

    def metadata(self, node: CheckpointNode) -> Any:
        return self._codec.decode(node.meta)

    def pending(self, ns: str, id: str) -> list[tuple[str, str, Any]]:
        """The writes under a checkpoint, in the order in which LangGraph applies them."""
        stored = self._writes.get((ns, id), {})
        ordered = sorted(stored, key=lambda at: writes_sort_key(stored[at].path, *at))
        decode = self._codec.decode
        return [(w.task, w.channel, decode(w.data)) for w in (stored[at] for at in ordered)]

    def history(self, node: CheckpointNode, channels: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The writes to each channel on the way from its last stored value to this checkpoint.

        Hidden checkpoints count: what was removed from view can still be built upon.
        """
        histories: dict[str, dict[str, Any]] = {name: {"writes": []} for name in channels}
        left = set(histories)
        parent = self._parent(node)
        while parent is not None and left:
            for write in reversed(self.pending(parent.ns, parent.id)):
                if write[1] in left:
                    histories[write[1]]["writes"].append(write)
            for name in left & parent.values.keys():
                histories[name]["seed"] = self._value(parent, name)
                left.discard(name)
            parent = self._parent(parent)
        for entry in histories.values():
            entry["writes"].reverse()
        return histories

    def _parent(self, node: CheckpointNode) -> CheckpointNode | None:
        return None if node.parent is None else self._nodes[node.ns].get(node.parent)

    def _value(self, node: CheckpointNode, name: str) -> Any:
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
    ) -> ThreadEvent:
        """The event for a new checkpoint. It holds only as the very next event of the thread.

        `new` names the channels that were written to; others with the same version are the same.
        The event has the checkpoint's id, unless another event has it already.
        """
        base = None if parent is None else self._nodes.get(ns, {}).get(parent)
        on = base or CheckpointNode(ns, "", None, self._count, 0)
        id: str = checkpoint["id"]
        data: dict[str, Any] = {"ts": short_time(checkpoint["ts"])}
        shape: dict[str, Any] = {"ns": ns} if ns else {}
        if base is not None:
            shape["back"] = self._count + 1 - base.number
        named = id not in self._ids and is_id(id)
        if not named:
            data["id"] = id
        encode = self._codec.encode
        kept = encode(dict(meta))
        set_metadata(data, shape, on.meta, kept)
        set_versions(data, shape, on, checkpoint)
        values: dict[str, Any] = {}
        growths = self._set_values(data, shape, on, checkpoint, new, values)
        rest = {name: encode(part) for name, part in checkpoint.items() if name not in _PARTS}
        self._set_rest(data, shape, on, rest)
        described = self._shaped_data(data, shape)
        seen = {node: dict(versions) for node, versions in checkpoint["versions_seen"].items()}
        after = NodeContent(kept, dict(checkpoint["channel_versions"]), seen, values, rest)
        return ThreadEvent(
            described, growths, id if named else None, expect=self.version, after=after
        )

    def _set_rest(
        self,
        data: dict[str, Any],
        shape: dict[str, Any],
        on: CheckpointNode,
        rest: Mapping[str, Any],
    ) -> None:
        kept, updated = on.rest, rest.get("updated_channels")
        if updated is not None and updated == touched(data, shape):
            shape["updated"] = True
            rest = {n: part for n, part in rest.items() if n != "updated_channels"}
            kept = {n: part for n, part in on.rest.items() if n != "updated_channels"}
        set_changes(shape, "rest", kept, rest)

    def _set_values(
        self,
        data: dict[str, Any],
        shape: dict[str, Any],
        on: CheckpointNode,
        checkpoint: Mapping[str, Any],
        written: Collection[str],
        after: dict[str, Any],
    ) -> dict[str, Growth]:
        """Describe what is new in the channels; `after` gets their new content, but for lists that
        change."""
        values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
        whole: dict[str, Any] = {}
        growths: dict[str, Growth] = {}
        for name, value in values.items():
            held = on.values.get(name, ABSENT)
            is_old = name not in written and on.versions.get(name) == versions.get(name)
            if held is not ABSENT and is_old:
                after[name] = held
                continue
            if type(value) is list:
                before = held if isinstance(held, List) else List()
                growths[name] = before.compare(self._codec, value)
                continue
            new = self._codec.encode(value)
            after[name] = new
            if held is ABSENT or isinstance(held, List) or raw(held) != raw(new):
                whole[name] = new
        set_part(shape, "nulls", [name for name, held in whole.items() if held is None])
        set_part(data, "values", {name: held for name, held in whole.items() if held is not None})
        set_part(shape, "values_gone", [name for name in on.values if name not in values])
        self._set_lists(data, shape, on, growths)
        return growths

    def _set_lists(
        self,
        data: dict[str, Any],
        shape: dict[str, Any],
        on: CheckpointNode,
        growths: Mapping[str, Growth],
    ) -> None:
        written = self._written_since() if growths else {}
        lists, grown = {}, {}
        for name, by in growths.items():
            held = on.values.get(name)
            keeps = by.keep == (held.count if isinstance(held, List) else -1) and not by.tail
            refs = [written.get(name, {}).get(raw(item)) for item in by.data]
            if keeps and None not in refs:
                grown[name] = refs
            else:
                pairs = zip(by.data, refs, strict=True)
                items = [i if r is None else {FORM: _WRITTEN, "v": r} for i, r in pairs]
                lists[name] = [by.keep, items, by.tail] if by.tail else [by.keep, items]
        set_part(data, "lists", lists)
        set_part(shape, "grown", grown)

    def _written_since(self) -> dict[str, dict[bytes, list[int]]]:
        """Return by channel the items that were written since the last checkpoint, and where
        each is."""
        places: dict[str, dict[bytes, list[int]]] = {}
        for number in range(self._count, 0, -1):
            rows = self._written.get(number)
            if rows is None:
                return places
            for place, (channel, value, *_) in enumerate(rows):
                items = enumerate(value) if isinstance(value, list) else [(-1, value)]
                for at, item in items:
                    if len(text := raw(item)) >= _REFER_BYTES_MIN:
                        places.setdefault(channel, {})[text] = [self._count + 1 - number, place, at]
        return places

    def writes(
        self, ns: str, id: str, writes: Sequence[tuple[str, Any]], task: str, path: str
    ) -> ThreadEvent | None:
        """The event for the writes of a task; None if all are recorded."""
        known = self._writes.get((ns, id), {})
        given = self._input(ns, id)
        rows: list[Any] = []
        for place, (channel, value) in enumerate(writes):
            at = WRITES_IDX_MAP.get(channel, place)
            if at < 0 or (task, at) not in known:
                data = self._codec.encode(value)
                if given.get(channel, ABSENT) is not ABSENT and raw(given[channel]) == raw(data):
                    data = {FORM: _INPUT}
                rows.append([channel, data] if at == len(rows) else [channel, data, at])
        if not rows:
            return None
        repeats = all(row[1] is None or row[1] == {FORM: _INPUT} for row in rows)
        described: dict[str, Any] = {} if repeats else {"writes": rows}
        shape = {"writes": rows} if repeats else {}
        set_part(shape, "path", path)
        set_part(shape, "ns", ns)
        for name, value in (("checkpoint", id), ("task", task)):
            if not is_id(value):
                described[name] = value
        ids = (None, id if is_id(id) else None, task if is_id(task) else None)
        refers = any(row[1] == {FORM: _INPUT} for row in rows)
        return ThreadEvent(
            self._shaped_data(described, shape), {}, *ids, expect=self.version if refers else None
        )

    def _input(self, ns: str, id: str) -> Mapping[str, Any]:
        """The input that a graph was started with at this checkpoint, by channel."""
        node = self._nodes.get(ns, {}).get(id)
        held = None if node is None else node.values.get(_START)
        return held if isinstance(held, dict) and FORM not in held else {}

    def _shaped_data(self, data: dict[str, Any], shape: dict[str, Any]) -> dict[str, Any]:
        known = self._shaped.get(raw(shape))
        if known is not None:
            return {**data, "as": known}
        return {**data, "shape": shape} if shape else data

    # --- folding -------------------------------------------------------------------------------

    def fold(self, event: Event, described: ThreadEvent | None = None) -> None:
        """Take in the next event. `described` is what it was recorded from, if that was here."""
        self.version = event.seq
        if event.type not in TYPES:
            return
        self._count += 1
        self._ids.add(event.id)
        data = event.data
        if data is None:
            return
        shape = data.get("shape", _EMPTY)
        if "as" in data:
            shape = self._shapes.get(data["as"])
        elif "shape" in data:
            self._shapes[self._count] = shape
            self._shaped.setdefault(raw(shape), self._count)
        if event.type == CHECKPOINT:
            self._fold_checkpoint(event, shape, described)
        elif event.type == REMOVED:
            for ns, id in data["checkpoints"]:
                if (node := self._nodes.get(ns, {}).get(id)) is not None:
                    node.hidden = True
        elif shape is not None:
            self._fold_writes(event, shape)

    def _fold_checkpoint(
        self, event: Event, shape: Mapping[str, Any] | None, described: ThreadEvent | None
    ) -> None:
        data = event.data
        id = data.get("id", event.id)
        if shape is None:
            return
        nodes = self._nodes.setdefault(shape.get("ns", ""), {})
        back = shape.get("back")
        base = None if back is None else self._by_number.get(self._count - back)
        try:
            if back is not None and base is None:
                raise UnreadableCheckpoint(id)
            node = self._node(event, id, shape, base, described)
        except (
            UnreadableCheckpoint,
            IndexError,
            KeyError,
        ):  # an event that it stands on is damaged
            nodes[id] = None
            return
        nodes[id] = self._by_number[self._count] = node
        if base is not None:
            base.children[id] = event.seq

    def _node(
        self,
        event: Event,
        id: str,
        shape: Mapping[str, Any],
        base: CheckpointNode | None,
        described: ThreadEvent | None,
    ) -> CheckpointNode:
        data = event.data
        parent = None if base is None else base.id
        node = CheckpointNode(shape.get("ns", ""), id, parent, self._count, event.seq)
        on = base or node
        node.ts = data["ts"]
        if described is not None and described.after is not None:
            node.meta, node.versions, node.seen, node.values, node.rest = described.after
            growths: Mapping[str, Growth] = described.growths
        else:
            node.read(on, data, shape)
            growths = self._growths(data, shape, on)
        for name, by in growths.items():
            held = on.values.get(name)
            node.values[name] = (held if isinstance(held, List) else List()).grow(by)
        return node

    def _growths(
        self, data: Mapping[str, Any], shape: Mapping[str, Any], on: CheckpointNode
    ) -> Mapping[str, Growth]:
        growths = {}
        for name, (keep, items, *tail) in data.get("lists", {}).items():
            growths[name] = Growth(keep, [self._item(i) for i in items], tail[0] if tail else 0)
        for name, refs in shape.get("grown", {}).items():
            growths[name] = Growth(on.values[name].count, [self._write(ref) for ref in refs])
        return growths

    def _item(self, item: Any) -> Any:
        is_ref = isinstance(item, dict) and item.get(FORM) == _WRITTEN
        return self._write(item["v"]) if is_ref else item

    def _write(self, ref: Sequence[int]) -> Any:
        back, place, at = ref
        value = self._written[self._count - back][place][1]
        return value if at < 0 else value[at]

    def _fold_writes(self, event: Event, shape: Mapping[str, Any]) -> None:
        data, ns = event.data, shape.get("ns", "")
        id, task = str(data.get("checkpoint", event.cause)), event.invocation_id
        task = str(data.get("task", task))
        rows = data["writes"] if "writes" in data else shape["writes"]
        given = self._input(ns, id)
        rows = [[r[0], given.get(r[0]) if r[1] == {FORM: _INPUT} else r[1], *r[2:]] for r in rows]
        self._written[self._count] = rows
        under = self._writes.setdefault((ns, id), {})
        for place, (channel, value, *at) in enumerate(rows):
            index = at[0] if at else place
            write = Write(task, channel, value, shape.get("path", ""))
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


def set_metadata(
    data: dict[str, Any], shape: dict[str, Any], old: Mapping[str, Any], new: dict[str, Any]
) -> None:
    """Metadata by what changed. The step counts up; long texts are not part of a shape."""
    step, before = new.get("step"), old.get("step")
    counts = type(step) is int and type(before) is int
    if counts:
        shape["step"] = step - before  # type: ignore[operator]  # both are numbers
    short: dict[str, Any] = {}
    long: dict[str, Any] = {}
    for name, part in new.items():
        if _is_other(old, name, part) and not (counts and name == "step"):
            (short if _is_short(part) else long)[name] = part
    set_part(shape, "metadata", short)
    set_part(data, "metadata", long)
    set_part(shape, "metadata_gone", [name for name in old if name not in new])


def _is_other(old: Mapping[str, Any], name: str, new: Any) -> bool:
    """True if a name is new, or has another value or type: 1 is not True, also inside."""
    if name not in old:
        return True
    before = old[name]
    return before is not new and (before != new or raw(before) != raw(new))


def _is_short(part: Any) -> bool:
    return len(raw(part)) <= _SHAPE_BYTES_MAX


def set_versions(
    data: dict[str, Any], shape: dict[str, Any], on: CheckpointNode, checkpoint: Mapping[str, Any]
) -> None:
    """Versions that count up by one, and nodes that saw the versions that were, are a shape."""
    changes: dict[str, Any] = {}
    set_changes(changes, "versions", on.versions, checkpoint["channel_versions"])
    set_changes(changes, "seen", on.seen, checkpoint["versions_seen"])
    top = _top(on.versions)
    raised = [name for name, version in changes.get("versions", {}).items() if version == top + 1]
    if raised and len(raised) == len(changes["versions"]) and top >= 0:
        shape["raised"] = raised
        del changes["versions"]
    saw = {node: list(seen) for node, seen in changes.get("seen", {}).items()}
    if saw and all(
        seen == {n: on.versions.get(n, ABSENT) for n in seen} for seen in changes["seen"].values()
    ):
        shape["saw"] = saw
        del changes["seen"]
    for name, part in changes.items():
        (shape if name.endswith("_gone") else data)[name] = part


def _top(versions: Mapping[str, Any]) -> int:
    """The newest version, if they are numbers; else -1, and none follows from it."""
    if not versions:
        return 0
    counts = versions.values()
    return max(counts) if all([type(count) is int for count in counts]) else -1


def set_changes(
    described: dict[str, Any], name: str, old: Mapping[str, Any], new: Mapping[str, Any]
) -> None:
    """Describe the names that are new, changed or gone."""
    set_part(
        described, name, {key: value for key, value in new.items() if _is_other(old, key, value)}
    )
    set_part(described, f"{name}_gone", [key for key in old if key not in new])


def changed(old: Mapping[str, Any], described: Mapping[str, Any], name: str) -> dict[str, Any]:
    gone = described.get(f"{name}_gone", ())
    kept = {key: value for key, value in old.items() if key not in gone} if gone else old
    return {**kept, **described.get(name, {})}


def set_part(described: dict[str, Any], name: str, part: Any) -> None:
    if part:
        described[name] = part


def touched(data: Mapping[str, Any], shape: Mapping[str, Any]) -> list[str]:
    """The channels that an event gives values to, in order."""
    lists = (*data.get("lists", ()), *shape.get("grown", ()))
    return sorted({*data.get("values", ()), *shape.get("nulls", ()), *lists})


def short_time(ts: str) -> Any:
    """A time as microseconds since 1970, if they give it back exactly."""
    try:
        return (datetime.fromisoformat(ts) - _EPOCH) // _US if _IN_UTC(ts) else ts
    except ValueError:  # the 30th of February
        return ts


def long_time(ts: Any) -> str:
    if not isinstance(ts, int):
        return str(ts)
    return (_EPOCH + timedelta(microseconds=ts)).isoformat(timespec="microseconds")


def is_id(text: str) -> bool:
    return 0 < len(text) <= _ID_CHARS_MAX and text.isprintable()


# --- lists of messages ---------------------------------------------------------------------------


_raw: Final = msgspec.json.Encoder().encode
_NEWEST: Final = 64  # messages whose every field is compared
_content: Final = itemgetter("content")
_NO_SHOT: Final[Mapping[str, Any]] = {"": None}  # equal to the fields of no message
_UNWRITABLE: Final = (TypeError, ValueError, RecursionError)  # by the next
# Values that are not JSON are distinguished by class and attributes.
_exact: Final = msgspec.json.Encoder(
    enc_hook=lambda of: [type(of).__qualname__, getattr(of, "__dict__", None)]
).encode


class Growth(NamedTuple):
    """The difference between two lists: items kept, new items, items kept at the end.

    `live` and `shots` are the new items as objects, taken when `data` was: an object may be changed
    by its owner at any time.
    """

    keep: int
    data: Sequence[Any]
    tail: int = 0
    live: Sequence[Any] = ()
    shots: Sequence[Mapping[str, Any]] = ()


def grown(keep: int, data: Sequence[Any], tail: int, values: Sequence[Any]) -> Growth:
    live = [value if is_message(value) else None for value in values]
    shots = [_NO_SHOT if value is None else fields_shot(value) for value in live]
    return Growth(keep, data, tail, live, shots)


class _Run:
    """Items in the order they were added, with the objects that are handed out for them."""

    __slots__ = ("contents", "data", "exacts", "fields", "live", "parted", "raws", "shots")

    def __init__(self) -> None:
        self.data: list[Any] = []
        self.live: list[Any] = []  # messages; None where there is no object, or not a message
        self.shots: list[Mapping[str, Any]] = []
        self.fields: list[Mapping[str, Any]] = []  # of the objects, as they are now
        self.contents: list[Any] = []  # of the messages as they were, which are texts mostly
        self.parted: list[int] = []  # where they are not
        # The fields that may hold numbers, and their bytes.
        self.exacts: dict[int, tuple[Callable[[Mapping[str, Any]], Any], bytes]] = {}
        self.raws: list[bytes] = []  # made when first compared

    def add(
        self, data: Sequence[Any], live: Sequence[Any], shots: Sequence[Mapping[str, Any]]
    ) -> None:
        missing, begin = len(data) - len(live), len(self.data)
        self.data += data
        self.live += [*live, *([None] * missing)]
        self.shots += [*shots, *([_NO_SHOT] * missing)]
        self.contents += [None] * len(data)
        self.fields += [_NO_SHOT] * len(data)
        for place in range(begin, begin + len(live)):
            self._note(place)

    def show(self, place: int, value: Any) -> None:
        """Hold the object that is handed out for an item."""
        if is_message(value):
            self.live[place], self.shots[place] = value, fields_shot(value)
            self._note(place)

    def _note(self, place: int) -> None:
        if self.live[place] is not None:
            self.fields[place] = self.live[place].__dict__
        self._note_exact(place)
        content = self.contents[place] = self.shots[place].get("content")
        if type(content) is not str and place not in self.parted:
            self.parted.append(place)

    def _note_exact(self, place: int) -> None:
        shot = self.shots[place]
        names = [name for name, value in shot.items() if not _is_certain(value)]
        if not names:
            self.exacts.pop(place, None)
            return
        of = itemgetter(*names)
        try:
            self.exacts[place] = of, _exact(of(shot))
        except _UNWRITABLE:
            self.exacts[place] = of, b""  # the bytes of nothing

    def is_same(self, place: int, fields: Mapping[str, Any]) -> bool:
        """True if these are the fields of the message there, as they were."""
        return fields == self.shots[place] and self._is_exact([(place, fields)])

    def _is_exact(self, looked: Iterable[tuple[int, Mapping[str, Any]]]) -> bool:
        """True if fields that are equal are also of the same types."""
        exacts = self.exacts
        compared = [(exacts[place], fields) for place, fields in looked if place in exacts]
        then = b",".join([raw for (_, raw), _ in compared])
        try:  # in one call: this is asked of 64 messages in every turn
            return _exact([of(fields) for (of, _), fields in compared]) == b"[%b]" % then
        except _UNWRITABLE:
            return False

    def begins_with(self, messages: Sequence[Any]) -> bool:
        """True if these are the first items of the run: the same objects, or others like them."""
        if all(map(is_, messages, self.live)):
            return True
        for place, (new, held) in enumerate(zip(messages, self.live, strict=False)):
            if new is not held and not (type(new) is type(held) and self._is_like(place, new)):
                return False
        return True

    def _is_like(self, place: int, message: Any) -> bool:
        return is_message(message) and self.is_same(place, message.__dict__)

    def is_unchanged(self, count: int) -> bool:
        """True if the first items of the run are messages and still what they were."""
        try:
            if list(map(_content, self.fields[:count])) != self.contents[:count]:
                return False
        except KeyError:  # an item that is not a message
            return False
        newest = range(max(0, count - _NEWEST), count)
        looked = [*newest, *[place for place in self.parted if place < newest.start]]
        if not all([self.fields[place] == self.shots[place] for place in looked]):
            return False
        return not self.exacts or self._is_exact([(place, self.fields[place]) for place in looked])

    def part(self, begin: int, end: int) -> tuple[list[Any], list[Any], list[Any]]:
        return self.data[begin:end], self.live[begin:end], self.shots[begin:end]

    def raw(self, count: int) -> list[bytes]:
        self.raws += [_raw(item) for item in self.data[len(self.raws) : count]]
        return self.raws[:count]


class List:
    """One version of a list."""

    __slots__ = ("_run", "count")

    def __init__(self, run: _Run | None = None, count: int = 0) -> None:
        self._run, self.count = run or _Run(), count

    def data(self) -> list[Any]:
        return self._run.data[: self.count]

    def grow(self, by: Growth) -> List:
        """The list that follows. This one stays as it is."""
        run, count, keep, tail = self._run, self.count, by.keep, by.tail
        if keep + tail > count:
            raise IndexError(f"a list of {count} items has not {keep} first and {tail} last ones")
        if tail or keep != len(run.data):  # not the newest of its run, or not only longer
            mine, run = run, _Run()
            run.add(*mine.part(0, keep))
            run.add(by.data, by.live, by.shots)
            run.add(*mine.part(count - tail, count))
        else:
            run.add(by.data, by.live, by.shots)
        return List(run, keep + len(by.data) + tail)

    def values(self, codec: Values) -> list[Any]:
        """The items as objects. A message that somebody changed in place is made again."""
        run, count = self._run, self.count
        if run.is_unchanged(count):
            return run.live[:count]
        return [self._value(codec, place) for place in range(count)]

    def _value(self, codec: Values, place: int) -> Any:
        run = self._run
        message = run.live[place]
        if message is not None and run.is_same(place, message.__dict__):
            return message
        value = codec.decode(run.data[place])
        run.show(place, value)
        return value

    def compare(self, codec: Values, new: list[Any]) -> Growth:
        """The growth from this list to `new`. Raises InvalidInput if it cannot be stored."""
        count = self.count
        run = self._run
        if len(new) >= count and run.begins_with(new[:count]) and run.is_unchanged(count):
            added = new[count:]
            return grown(count, [codec.encode(item) for item in added], 0, added)
        data = [codec.encode(item) for item in new]
        mine, theirs = run.raw(count), [_raw(item) for item in data]
        keep = _common(mine, theirs)
        tail = _common(mine[keep:][::-1], theirs[keep:][::-1])
        end = len(data) - tail
        return grown(keep, data[keep:end], tail, new[keep:end])


def _is_certain(value: Any) -> bool:
    """True if whatever equals it has its type, too."""
    kind = type(value)
    return kind is str or value is None or (kind in (dict, list) and not value)


def _common(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    place = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        place += 1
    return place
