"""Items of openai-agents as events of ours, and back.

An item is recorded under the type that says what it is, with the data of that type, so that every
reader of the log understands it. The item itself stands beside it under one member, as the JSON
text that the framework's own sessions keep, and comes back unchanged. An event that another door
recorded is read as the nearest item.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec

from limpet import Draft, Event
from limpet.errors import InvalidValue

Item: TypeAlias = dict[str, Any]

MEMBER: Final = "openai_agents"  # of an event's data: the framework's item, as JSON text
USE: Final = "agent.tool_use"
RESULT: Final = "agent.tool_result"
OTHER: Final = "agent.item"  # reasoning, hosted tools, and what later versions bring
_TYPES: Final[Mapping[Any, str]] = {
    "user": "user.message",
    "system": "system.message",
    "developer": "system.message",
    "assistant": "agent.message",
}
_ROLES: Final = {"user.message": "user", "system.message": "system", "agent.message": "assistant"}
ITEMS: Final = (*_ROLES, USE, RESULT, OTHER)
_TEXTS: Final = ("input_text", "output_text", "text")


def drafted(item: Mapping[str, Any], user: str) -> Draft:
    """The event that records an item, as it is now. Raises InvalidValue if it is not JSON."""
    type = _type_of(item)
    try:
        text = json.dumps(item, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue("the item", f"cannot be written as JSON: {error}") from error
    data = {**_named(type, item), **_said(type, item), MEMBER: text}
    actor = f"user:{user}" if type == "user.message" else "agent:openai-agents"
    return Draft(type=type, data=data, actor=actor)


def bare(draft: Draft) -> Draft:
    """The same with the item alone, in ASCII, and what names it: for what does not fit otherwise.

    What a model wrote may be no value of ours, or too large to stand in an event twice.
    """
    data = {name: draft.data[name] for name in ("request_id", "name") if name in draft.data}
    text = json.dumps(json.loads(draft.data[MEMBER]))
    return Draft(type=draft.type, data={**data, MEMBER: text}, actor=draft.actor)


def item_of(event: Event) -> Item | None:
    """The item that an event records; None if it cannot be read, or says nothing."""
    if event.data is None:
        return None
    text = event.data.get(MEMBER)
    if not isinstance(text, str):
        return _translated(event)
    try:
        item = json.loads(text)
    except ValueError:
        return None
    return item if isinstance(item, dict) else None


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


def _named(type: str, item: Mapping[str, Any]) -> dict[str, Any]:
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
    """What a tool is called with. Arguments are the text that a model wrote: not always JSON."""
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


def _translated(event: Event) -> Item | None:
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
