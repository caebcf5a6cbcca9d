"""The conversation in a LangGraph thread, from the events that LimpetSaver recorded.

A thread's messages are a list in its state. Checkpoints record how a list grew, so the newest
checkpoint in view is followed from the first one it was made from. A DeltaChannel is not in the
checkpoints: its writes are gathered as `add_messages` would. Works on the stored form alone, needs
no LangGraph, and leaves out what cannot be read. docs/langgraph.md describes the stored form.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from limpet.model import EMPTY, Event
from limpet.session.conversation.shapes import Entry

_CHECKPOINT: Final = "langgraph.checkpoint"
_WRITES: Final = "langgraph.writes"
_REMOVED: Final = "langgraph.removed"
_FORM: Final = "$"
_CHANNEL: Final = "messages"
_START: Final = "__start__"
_REMOVE_ALL: Final = "__remove_all__"
_Item: TypeAlias = tuple[Any, Event]  # a value in a list, and the event that recorded it


class _Items(list[_Item]):
    """A list in the state of a graph."""


class _Step(NamedTuple):
    """An event of the thread: its number among them, and what it shares with others."""

    number: int
    event: Event
    shape: Mapping[str, Any]

    @property
    def ns(self) -> str:
        return str(self.shape.get("ns", ""))

    @property
    def id(self) -> str:
        """The id of the checkpoint that it records, or that its writes are under."""
        if self.event.type == _CHECKPOINT:
            return str(self.event.data.get("id", self.event.id))
        return str(self.event.data.get("checkpoint", self.event.cause))


def entries_of_thread(events: Iterable[Event], shown: Collection[int]) -> list[Entry]:
    """Return what the newest checkpoint that can be read holds as its conversation; of those whose
    seqs are in `shown`, if a rewind has taken others out of view."""
    thread = _Thread(events)
    for newest in reversed(thread.checkpoints()):
        if newest.event.seq not in shown:
            continue
        try:
            items = thread.conversation(newest)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            continue  # an event that it stands on cannot be read
        return [entry for item, event in items for entry in entries_of_message(item, event)]
    return []


class _Thread:
    """The events of a thread by their numbers."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._steps: dict[int, _Step] = {}
        self._by_id: dict[tuple[str, str], _Step] = {}  # checkpoints
        self._under: dict[tuple[str, str], list[_Step]] = {}  # writes, by their checkpoint
        self._hidden: set[tuple[str, str]] = set()
        shapes: dict[Any, Mapping[str, Any]] = {}
        kinds = (_CHECKPOINT, _WRITES, _REMOVED)
        for number, event in enumerate([e for e in events if e.type in kinds], 1):
            data = event.data
            if not isinstance(data, Mapping):
                continue
            shape = shapes.get(data["as"]) if "as" in data else data.get("shape", EMPTY)
            if "shape" in data:
                shapes[number] = data["shape"]
            if event.type == _REMOVED:
                self._hidden |= {(ns, id) for ns, id in data.get("checkpoints", ())}
            elif isinstance(shape, Mapping):
                self._add(_Step(number, event, shape))

    def _add(self, step: _Step) -> None:
        self._steps[step.number] = step
        place = (step.ns, step.id)
        if step.event.type == _WRITES:
            self._under.setdefault(place, []).append(step)
        else:
            self._by_id[place] = step

    def checkpoints(self) -> list[_Step]:
        """Return the checkpoints in view of the graph itself, not of the graphs in it."""
        return [
            step
            for place, step in self._by_id.items()
            if not place[0] and place not in self._hidden
        ]

    def conversation(self, newest: _Step) -> Sequence[_Item]:
        """The list of messages at a checkpoint. Raises if a step on the way is missing."""
        values: dict[str, Any] = {}
        written: dict[Any, _Item] = {}
        before: _Step | None = None
        for step in [*self._back_from(newest)][::-1]:
            held = _held(values, _CHANNEL)
            self._change(values, step)
            if isinstance(values.get(_CHANNEL), _Items):
                written = {}
            elif before is not None:  # a DeltaChannel: the value that it had, and what was written
                written = written or {_id(item) or object(): (item, by) for item, by in held}
                for value, event in self._ordered(before):
                    _gather(written, value, event)
            before = step
        lists = {name: held for name, held in values.items() if isinstance(held, _Items)}
        for items in (lists.pop(_CHANNEL, ()), written.values(), *lists.values()):
            if any(is_message(item) for item, _ in items):
                return [*items]
        return ()

    def _back_from(self, step: _Step) -> Iterator[_Step]:
        """A checkpoint, the one that it was made from, and so on to the first."""
        yield step
        while (back := step.shape.get("back")) is not None:
            step = self._steps[step.number - back]
            yield step

    # --- lists ----------------------------------------------------------------------------------

    def _change(self, values: dict[str, Any], step: _Step) -> None:
        """Make the values of a checkpoint of those that it was made from."""
        data, shape = step.event.data, step.shape
        new = {name: _snapshot(v, step.event) for name, v in data.get("values", EMPTY).items()}
        for name, (keep, items, *tail) in data.get("lists", EMPTY).items():
            held = new[name] = _held(values, name)
            if keep + sum(tail) > len(held):
                raise IndexError(name)
            held[keep : len(held) - sum(tail)] = [self._item(item, step) for item in items]
        for name, refs in shape.get("grown", EMPTY).items():
            held = new[name] = _held(values, name)
            held += [self._referred(ref, step) for ref in refs]
        for name in shape.get("values_gone", ()):
            values.pop(name, None)
        values |= dict.fromkeys(shape.get("nulls", ()))
        values |= new

    def _item(self, item: Any, step: _Step) -> _Item:
        is_ref = isinstance(item, Mapping) and item.get(_FORM) == "written"
        return self._referred(item["v"], step) if is_ref else (item, step.event)

    def _referred(self, ref: Sequence[int], step: _Step) -> _Item:
        """An item that a task wrote before this checkpoint."""
        back, place, at = ref
        written = self._steps[step.number - back]
        value = self._rows(written)[place][1]
        return (value if at < 0 else value[at]), written.event

    # --- writes ---------------------------------------------------------------------------------

    def _rows(self, step: _Step) -> list[Any]:
        """Channel, value and, if it is not the place in this list, index of each write."""
        data = step.event.data
        rows: Any = data["writes"] if "writes" in data else step.shape["writes"]
        return [[row[0], self._written(row, step), *row[2:]] for row in rows]

    def _written(self, row: Sequence[Any], step: _Step) -> Any:
        """Return what a task wrote. It may be what the graph was begun with at its checkpoint."""
        if row[1] != {_FORM: "input"}:
            return row[1]
        for each in self._back_from(self._by_id[step.ns, step.id]):
            values = each.event.data.get("values", EMPTY)
            if _START in values:
                return values[_START][row[0]]
        raise KeyError(_START)

    def _ordered(self, checkpoint: _Step) -> Iterator[_Item]:
        """The writes to the channel under a checkpoint, in the order LangGraph applies them."""
        items: dict[tuple[str, str, int], _Item] = {}
        for step in self._under.get((checkpoint.ns, checkpoint.id), ()):
            task = str(step.event.data.get("task", step.event.invocation_id))
            for place, (channel, value, *at) in enumerate(self._rows(step)):
                if channel == _CHANNEL:
                    index = at[0] if at else place
                    where = (str(step.shape.get("path", "")), task, index)
                    items.setdefault(where, (value, step.event))
        return (items[where] for where in sorted(items))


def _held(values: Mapping[str, Any], name: str) -> _Items:
    held = values.get(name)
    return held if isinstance(held, _Items) else _Items()


def _snapshot(value: Any, event: Event) -> Any:
    """A value, or the list of a DeltaChannel that was stored whole."""
    if not isinstance(value, Mapping) or value.get(_FORM) != "snapshot":
        return value
    return _Items([(item, event) for item in value["v"]])


def _gather(items: dict[Any, _Item], value: Any, event: Event) -> None:
    """Gather messages as add_messages does: a known id is replaced or removed, others are
    appended."""
    if isinstance(value, Mapping) and value.get(_FORM) == "overwrite":
        items.clear()
        value = value["v"]["value"]
    for item in value if isinstance(value, list) else [value]:
        if not is_message(item):
            continue
        id = _id(item)
        if item["type"] != "remove":
            items[id or object()] = (item, event)
        elif id == _REMOVE_ALL:
            items.clear()
        else:
            items.pop(id, None)


def _id(message: Any) -> str | None:
    id = message.get("id") if isinstance(message, Mapping) else None
    return id if isinstance(id, str) else None


# --- messages of LangChain -----------------------------------------------------------------------


_TYPES: Final[Mapping[str, str]] = {
    "human": "user.message",
    "system": "system.message",
    "ai": "agent.message",
    # The roles of a ChatMessage.
    "user": "user.message",
    "developer": "system.message",
    "assistant": "agent.message",
}
_RESULTS: Final = ("tool", "function")
# Parts of a content that are not said: calls are in tool_calls, and thoughts are the model's own.
_CALLS: Final = ("tool_use", "tool_call", "tool_call_chunk", "invalid_tool_call", "function_call")
_THOUGHTS: Final = ("thinking", "redacted_thinking", "reasoning", "reasoning_content")
_SILENT: Final = frozenset((*_CALLS, *_THOUGHTS, "input_json_delta"))


def is_message(value: Any) -> bool:
    """True if a stored value is a message."""
    return isinstance(value, Mapping) and value.get("$") == "message" and "type" in value


def entries_of_message(message: Any, event: Event) -> Iterator[Entry]:
    """Return what a message says: a text, calls of tools, or the outcome of a call."""
    if not is_message(message):
        return
    kind = str(message["type"]).removesuffix("-chunk")
    if kind in _RESULTS:
        yield Entry("agent.tool_result", _result(message), event)
        return
    role = str(message.get("role")) if kind == "chat" else kind
    type = _TYPES.get(role)
    if type is None:
        return
    yield Entry(type, {"content": _parts(message.get("content"))}, event)
    calls = message.get("tool_calls")
    for place, call in enumerate(calls if isinstance(calls, list) else ()):
        if isinstance(call, Mapping):
            yield Entry("agent.tool_use", _call(call, f"{message.get('id')}:{place}"), event)


def _call(call: Mapping[str, Any], otherwise: str) -> dict[str, Any]:
    request = {"request_id": call.get("id") or otherwise, "name": call.get("name")}
    return {**request, "input": call.get("args", EMPTY)}


def _result(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    output = content if isinstance(content, str) else _parts(content)
    id = message.get("tool_call_id") or message.get("name")
    return {"request_id": id, "output": output, "is_error": message.get("status") == "error"}


def _parts(content: Any) -> list[Any]:
    given = content if isinstance(content, list) else [content]
    return [_part(part) for part in given if part is not None and not _is_silent(part)]


def _is_silent(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in _SILENT


def _part(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    kind = part.get("type")
    if kind in ("text", "text-plain") and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind in ("image", "image_url") and (source := _image(part)) is not None:
        return {"type": "image", **source}
    return part if kind == "file" else {"type": "data", "data": part}


def _image(part: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the address of an image, in the forms that LangChain and the models' APIs give it."""
    inner = part.get("image_url") or part.get("source") or part
    if isinstance(inner, str):
        inner = {"url": inner}
    if not isinstance(inner, Mapping):
        return None
    data = inner.get("base64") or inner.get("data")
    if isinstance(data, str) and data:
        media = inner.get("mime_type") or inner.get("media_type") or "image/png"
        return {"media_type": media, "data": data}
    url = inner.get("url")
    if not isinstance(url, str) or not url:
        return None
    head, comma, encoded = url.partition(";base64,")
    if comma and head.startswith("data:"):
        return {"media_type": head.removeprefix("data:"), "data": encoded}
    return {"url": url}
