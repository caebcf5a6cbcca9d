"""Items of openai-agents as events of ours, and back.

An item is recorded under the type that says what it is, with the data of that type, so that every
reader of the log understands it. The item itself stands beside it under one member, as the JSON
text that the framework's own sessions keep, and comes back unchanged. A long text is in the data of
the event already, so the item is kept without it and with the place where it belongs. An event that
another door recorded is read as the nearest item.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from limpet import Draft, Event
from limpet.errors import InvalidValue
from limpet.model import DefaultActor

Item: TypeAlias = dict[str, Any]

MEMBER: Final = "openai_agents"  # of an event's data: the framework's item, as JSON text
PLACE: Final = "openai_agents_text"  # where in the item the text of the event belongs
USE: Final = "agent.tool_use"
RESULT: Final = "agent.tool_result"
OTHER: Final = "agent.item"  # reasoning, hosted tools, and what later versions bring
_TYPES: Final[Mapping[Any, str]] = {
    "user": "user.message",
    "system": "system.message",
    "developer": "system.message",
    "assistant": "agent.message",
}
INPUTS: Final = ("user.message", "system.message")  # what waits for an agent
_ROLES: Final = {"user.message": "user", "system.message": "system", "agent.message": "assistant"}
ITEMS: Final = (*_ROLES, USE, RESULT, OTHER)
_TEXTS: Final = ("input_text", "output_text", "text")
_CHARS_MIN: Final = 64  # of a text that is not kept twice
_json: Final = json.JSONEncoder(ensure_ascii=False).encode  # dumps would make one for every item
_PLACES: Final[Mapping[str, tuple[Any, ...]]] = {
    "output": ("output",),
    "content": ("content",),
    "part": ("content", 0, "text"),
}


def draft_of(item: Mapping[str, Any], user: str) -> Draft:
    """The event that records an item, as it is now. Raises InvalidValue if it is not JSON."""
    type = _type_of(item)
    data = {**_request(type, item), **_said(type, item)}
    place = _place_of(type, item, data)
    try:
        text = _json(_with_text(item, _PLACES[place], "") if place else item)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue("the item", f"cannot be written as JSON: {error}") from error
    data[MEMBER] = text
    if place:
        data[PLACE] = place
    actor = DefaultActor(f"user:{user}" if type == "user.message" else "agent:openai-agents")
    return Draft(type=type, data=data, actor=actor)


def bare(draft: Draft) -> Draft:
    """The same with the item alone, in ASCII, and what names it: for what does not fit otherwise.

    What a model wrote may be no value of ours, or too large to stand in an event twice.
    """
    data = {name: draft.data[name] for name in ("request_id", "name") if name in draft.data}
    text = json.dumps(_whole(draft.type, draft.data))
    return Draft(type=draft.type, data={**data, MEMBER: text}, actor=draft.actor)


def item_of(event: Event) -> Item | None:
    """The item that an event records; None if it cannot be read, or says nothing."""
    if event.data is None:
        return None
    if not isinstance(event.data.get(MEMBER), str):
        return _nearest_item(event)
    try:
        item = _whole(event.type, event.data)
    except (IndexError, KeyError, TypeError, ValueError):
        return None
    return item if isinstance(item, dict) else None


# --- a text that is kept once -------------------------------------------------------------------


def _place_of(type: str, item: Mapping[str, Any], data: Mapping[str, Any]) -> str | None:
    """Where the item has the text that is in the event's data; None if it is kept in both."""
    text = data.get(_member_of(type))
    if not isinstance(text, str) or len(text) < _CHARS_MIN:
        return None
    if type == RESULT:
        return "output"
    content = item.get("content")
    if not isinstance(content, list):
        return "content"
    return "part" if content[0].get("text") == text else None  # or it is a refusal


def _member_of(type: str) -> str:
    return "output" if type == RESULT else "text"


def _with_text(item: Any, place: Sequence[Any], text: str) -> Any:
    """A copy of an item with another text in its place. Raises if it has no such place."""
    if not place:
        return text
    inner = _with_text(item[place[0]], place[1:], text)
    if isinstance(item, list):
        return [inner, *item[1:]]
    return {**item, place[0]: inner}


def _whole(type: str, data: Mapping[str, Any]) -> Any:
    """The item again, with its text. Raises if it cannot be read."""
    item = json.loads(data[MEMBER])
    place = data.get(PLACE)
    return _with_text(item, _PLACES[place], data[_member_of(type)]) if place else item


# --- an item as data of ours --------------------------------------------------------------------


def _type_of(item: Mapping[str, Any]) -> str:
    kind = item.get("type")
    if kind in (None, "message"):
        return _TYPES.get(item.get("role"), OTHER)
    if isinstance(kind, str) and isinstance(item.get("call_id"), str):
        if kind.endswith("_output"):
            return RESULT
        if kind.endswith("_call"):
            return USE
    return OTHER  # a hosted tool has no call_id: its outcome is within the item


def _request(type: str, item: Mapping[str, Any]) -> dict[str, Any]:
    if type == USE:
        name = item.get("name")
        named = name if isinstance(name, str) and name else str(item["type"])
        return {"request_id": item["call_id"], "name": named}
    return {"request_id": item["call_id"]} if type == RESULT else {}


def _said(type: str, item: Mapping[str, Any]) -> dict[str, Any]:
    if type == USE:
        return {"input": _input(item)}
    if type == RESULT:
        return {"output": item.get("output")}
    return {} if type == OTHER else _content(item.get("content"))


def _input(item: Mapping[str, Any]) -> Any:
    """The input of a tool call. Arguments are the text that a model wrote: not always JSON."""
    given = item.get("arguments", item.get("input", item.get("action", {})))
    if not isinstance(given, str):
        return given
    try:
        parsed = msgspec.json.decode(given)
    except msgspec.DecodeError:
        return {"input": given}
    return parsed if isinstance(parsed, dict) else {"input": parsed}


def _content(content: Any) -> dict[str, Any]:
    if not isinstance(content, list):
        return {"text": content} if isinstance(content, str) else {}
    parts = [_part(part) for part in content]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return {"text": parts[0]["text"]}
    return {"content": parts}


def _part(part: Any) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in _TEXTS and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return {"type": "text", "text": part["refusal"]}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        return {"type": "image", **_image(part["image_url"])}
    if kind == "input_file":
        return {**part, "type": "file"}
    return {"type": "data", "data": part}


def _image(url: str) -> dict[str, str]:
    """An image in its URL as data and media type, as other models want it."""
    head, comma, data = url.partition(";base64,")
    if not comma or not head.startswith("data:"):
        return {"url": url}
    return {"media_type": head.removeprefix("data:"), "data": data}


# --- data of ours as an item --------------------------------------------------------------------


def _nearest_item(event: Event) -> Item | None:
    """The nearest item to an event that another door recorded."""
    data, id = event.data, event.data.get("request_id") or event.id
    if event.type == USE:
        call: Item = {"type": "function_call", "call_id": id, "name": str(data.get("name", "tool"))}
        return {**call, "arguments": json.dumps(data.get("input", {}))}
    if event.type == RESULT:
        output = data.get("output")
        text = output if isinstance(output, str) else json.dumps(output)
        return {"type": "function_call_output", "call_id": id, "output": text}
    role, text = _ROLES.get(event.type), _text(data)
    return {"role": role, "content": text} if role and text else None


def _text(data: Mapping[str, Any]) -> str:
    """The text of a message, or of its parts."""
    content = data.get("content")
    given = content if isinstance(content, list) else [content or data.get("text")]
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in given]
    return "\n".join([text for text in texts if isinstance(text, str)])
