"""A stored message of LangChain, as what it says in the conversation.

The stored form is a dict whose "$" is "message", with the fields that are not what a new message
would have. Thoughts and the second copies of tool calls within a content are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from limpet.model import EMPTY, Event
from limpet.session.conversing.message import Entry

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
    """Whether a stored value is a message."""
    return isinstance(value, Mapping) and value.get("$") == "message" and "type" in value


def entries_of_message(message: Any, event: Event) -> Iterator[Entry]:
    """What a message says: a text, calls of tools, or the outcome of a call."""
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
    """Where an image is, in the forms that LangChain and the models' APIs give it."""
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
