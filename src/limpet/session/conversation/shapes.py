"""Shapes: messages in the forms that the APIs of models take.

Each form has rules beyond its fields, and what is rendered here keeps them: outcomes follow their
calls at once, no text is blank, ids and names have allowed characters, and where a conversation has
to begin with the user it does. --before
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet.model import Event

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Part: TypeAlias = Mapping[str, Any]


class Message(msgspec.Struct, frozen=True):
    """One message: who speaks, what is said, and the event that recorded it.

    Parts are {type: text | image | file | data, …} as recorded, {type: "tool_use", request_id,
    name, input, signature?} and {type: "tool_result", request_id, name, output, is_error}. The
    event of a synthetic outcome is that of the call. `native` is what the provider wants back with
    it, in its own `shape`: {shape, items}, such as signed blocks of thinking.
    """

    role: Role
    parts: tuple[Part, ...]
    event: Event
    synthetic: bool = False
    native: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        """Short enough to print a conversation: of the event, its seq."""
        return f"Message(role={self.role!r}, parts={self.parts!r}, seq={self.event.seq})"

    @property
    def text(self) -> str:
        """The words of the message: its text parts, one after another."""
        return "".join(part["text"] for part in self.parts if part.get("type") == "text")


class Entry(msgspec.Struct, frozen=True):
    """One thing that was said or done, in the words of our vocabulary: what messages are made of.

    A framework's event may say several things, so one event may be that of several entries.
    """

    type: str
    data: Any
    event: Event


# --- shapes ----------------------------------------------------------------------------------


Shape: TypeAlias = Literal["openai", "openai-responses", "anthropic", "gemini"]
Rendered: TypeAlias = tuple[str, list[dict[str, Any]]]  # the system text, and the messages
SHAPES: Final[tuple[Shape, ...]] = Shape.__args__  # type: ignore[attr-defined]  # a Literal
BEGINNING: Final = "(What was said before is left out.)"
_THINKING: Final = ("thinking", "redacted_thinking")
_REASONING: Final = ("reasoning",)
_CHARS: Final = 40  # of an id: the shortest that an API allows
_NAME_CHARS: Final = 64
_UNFIT: Final = re.compile(r"[^a-zA-Z0-9_-]")


def render(shape: Shape, system: str, messages: Sequence[Message]) -> Rendered:
    """The system text, where the API takes it apart, and the messages in its form."""
    return _RENDERERS[shape](system, messages)


def text_of(value: Any) -> str:
    """Return what a model reads of any value."""
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def _native_items(shape: Shape, message: Message, types: Sequence[str]) -> list[dict[str, Any]]:
    """Return what a provider wants back with a message, if this is its API: items of these
    types."""
    native = message.native
    if native is None or native.get("shape") != shape:
        return []
    items = [item for item in native["items"] if isinstance(item, Mapping)]
    return [_thawed(item) for item in items if item.get("type") in types]


def _thawed(value: Any) -> Any:
    """A plain copy of a stored value: the clients of providers change what they are given."""
    if isinstance(value, Mapping):
        return {name: _thawed(each) for name, each in value.items()}
    return [_thawed(each) for each in value] if isinstance(value, (list, tuple)) else value


def safe_id(id: str) -> str:
    """An id that every API accepts; another for another id."""
    if len(id) <= _CHARS and not _UNFIT.search(id):
        return id
    return f"{_UNFIT.sub('_', id)[: _CHARS - 17]}_{sha256(id.encode()).hexdigest()[:16]}"


def safe_name(name: str) -> str:
    """The name of a tool in the characters that every API accepts."""
    fit = _UNFIT.sub("_", name)[:_NAME_CHARS] or "tool"
    return fit if fit[0].isalpha() or fit[0] == "_" else f"_{fit}"[:_NAME_CHARS]


def _described(part: Part) -> str:
    """A part that this API takes no other way, as text."""
    if part["type"] == "text":
        return str(part["text"])
    if part["type"] == "data" and "data" in part:
        return text_of(part["data"])
    shown = {name: value for name, value in part.items() if name != "data"}
    return f"[{part['type']}: {text_of(shown)}]"


def _join(message: Message) -> str:
    return "\n".join([_described(part) for part in message.parts])


def _source(part: Part) -> tuple[str, str, str] | None:
    """Return the URL of an image, or its base64 data, and its media type."""
    media = part.get("media_type")
    media = media if isinstance(media, str) and media else "image/png"
    url, data = part.get("url"), part.get("data")
    if part["type"] != "image":
        return None
    if isinstance(url, str) and url:
        return "url", url, media
    return ("data", data, media) if isinstance(data, str) and data else None


# --- OpenAI -------------------------------------------------------------------------------------


def _openai(system: str, messages: Sequence[Message]) -> Rendered:
    """Chat Completions. System messages stay where they are."""
    out: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for message in messages:
        part = message.parts[0]
        if message.role == "tool":
            answer = {"role": "tool", "tool_call_id": safe_id(part["request_id"])}
            out.append({**answer, "content": _output_text(part)})
        elif message.role == "assistant":
            _add_openai_assistant(out, message)
        elif message.role == "user":
            out.append({"role": "user", "content": _openai_content(message)})
        else:
            out.append({"role": "system", "content": _join(message)})
    return "", out


def _add_openai_assistant(out: list[dict[str, Any]], message: Message) -> None:
    """Text and calls that follow one another are one message."""
    if not out or out[-1]["role"] != "assistant":
        out.append({"role": "assistant", "content": None})
    last, part = out[-1], message.parts[0]
    if part["type"] == "tool_use":
        call = {"name": safe_name(part["name"]), "arguments": text_of(part["input"])}
        made = {"id": safe_id(part["request_id"]), "type": "function", "function": call}
        last.setdefault("tool_calls", []).append(made)
    else:
        said = _join(message)
        last["content"] = said if last["content"] is None else f"{last['content']}\n{said}"


def _openai_content(message: Message) -> str | list[dict[str, Any]]:
    if not any(map(_source, message.parts)):
        return _join(message)
    return [_openai_part(part, "text", "image_url") for part in message.parts]


def _openai_part(part: Part, text: str, image: str) -> dict[str, Any]:
    source = _source(part)
    if source is None:
        return {"type": text, "text": _described(part)}
    kind, content, media = source
    url = content if kind == "url" else f"data:{media};base64,{content}"
    return {"type": image, "image_url": {"url": url} if image == "image_url" else url}


def _responses(system: str, messages: Sequence[Message]) -> Rendered:
    """The Responses API: a list of items, calls and outcomes among them. Items of reasoning stand
    before what the model said or called after them."""
    out: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for message in messages:
        part = message.parts[0]
        out += _native_items("openai-responses", message, _REASONING)
        if part["type"] == "tool_use":
            call = {"type": "function_call", "call_id": safe_id(part["request_id"])}
            call |= {"name": safe_name(part["name"]), "arguments": text_of(part["input"])}
            out.append(call)
        elif message.role == "tool":
            done = {"type": "function_call_output", "call_id": safe_id(part["request_id"])}
            out.append({**done, "output": _output_text(part)})
        elif message.role == "user" and any(map(_source, message.parts)):
            parts = [_openai_part(each, "input_text", "input_image") for each in message.parts]
            out.append({"role": "user", "content": parts})
        else:
            out.append({"role": message.role, "content": _join(message)})
    return "", out


def _output_text(part: Part) -> str:
    said = text_of(part["output"])
    return f"Error: {said}" if part["is_error"] else said


# --- Anthropic ----------------------------------------------------------------------------------


def _anthropic(system: str, messages: Sequence[Message]) -> Rendered:
    """Messages. Roles take turns; outcomes come first in the user's turn after their calls, and
    signed thinking first in the model's."""
    system, rest = _opening(system, messages)
    out: list[dict[str, Any]] = []
    for message in rest:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = [_anthropic_block(message, part) for part in message.parts]
        _take_turn(out, role, "content", blocks)
        if thoughts := _native_items("anthropic", message, _THINKING):
            content = out[-1]["content"]
            before = [block for block in content if block["type"] in _THINKING]
            content[len(before) : len(before)] = thoughts
    _begin_with_user(out, "content", {"type": "text", "text": BEGINNING})
    if out and out[-1]["role"] == "assistant" and out[-1]["content"][-1]["type"] == "text":
        last = out[-1]["content"][-1]  # the model goes on from here: it may not end in a space
        last["text"] = last["text"].rstrip()
    return system, out


def _anthropic_block(message: Message, part: Part) -> dict[str, Any]:
    if part["type"] == "tool_use" and message.role == "assistant":
        made = {"type": "tool_use", "id": safe_id(part["request_id"])}
        return {**made, "name": safe_name(part["name"]), "input": _thawed(part["input"])}
    if message.role == "tool":
        done = {"type": "tool_result", "tool_use_id": safe_id(part["request_id"])}
        said = text_of(part["output"])
        done["content"] = said if said.strip() else "(nothing)"
        return {**done, "is_error": True} if part["is_error"] else done
    source = _source(part) if message.role == "user" else None
    if source is None:
        return {"type": "text", "text": _marked(message, part)}
    kind, content, media = source
    if kind == "url":
        return {"type": "image", "source": {"type": "url", "url": content}}
    source_of = {"type": "base64", "media_type": media, "data": content}
    return {"type": "image", "source": source_of}


# --- Gemini -------------------------------------------------------------------------------------


def _gemini(system: str, messages: Sequence[Message]) -> Rendered:
    """Contents. Outcomes are a turn of their own, with one part for each call before it."""
    system, rest = _opening(system, messages)
    out: list[dict[str, Any]] = []
    for message in rest:
        role = "model" if message.role == "assistant" else "user"
        parts = [_gemini_part(message, part) for part in message.parts]
        answers = bool(out) and "functionResponse" in out[-1]["parts"][-1]
        if role == "user" and answers != (message.role == "tool"):
            out.append({"role": role, "parts": parts})
        else:
            _take_turn(out, role, "parts", parts)
    _begin_with_user(out, "parts", {"text": BEGINNING})
    return system, out


def _gemini_part(message: Message, part: Part) -> dict[str, Any]:
    if part["type"] == "tool_use" and message.role == "assistant":
        made = {"functionCall": {"name": safe_name(part["name"]), "args": _thawed(part["input"])}}
        signed = part.get("signature")
        return made if signed is None else {**made, "thoughtSignature": signed}
    if message.role == "tool":
        said = {"error" if part["is_error"] else "output": _thawed(part["output"])}
        return {"functionResponse": {"name": safe_name(part["name"]), "response": said}}
    source = _source(part) if message.role == "user" else None
    if source is None:
        return {"text": _marked(message, part)}
    kind, content, media = source
    if kind == "url":
        return {"fileData": {"mimeType": media, "fileUri": content}}
    return {"inlineData": {"mimeType": media, "data": content}}


# --- what both have in common -------------------------------------------------------------------


def _opening(system: str, messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    """System messages before anything else belong to the system text."""
    texts = [system] if system else []
    for place, message in enumerate(messages):
        if message.role != "system":
            return "\n\n".join(texts), messages[place:]
        texts.append(_join(message))
    return "\n\n".join(texts), ()


def _marked(message: Message, part: Part) -> str:
    said = _described(part)
    return f"<system>{said}</system>" if message.role == "system" else said


def _take_turn(out: list[dict[str, Any]], role: str, name: str, parts: list[Any]) -> None:
    if out and out[-1]["role"] == role:
        out[-1][name] += parts
    else:
        out.append({"role": role, name: parts})


def _begin_with_user(out: list[dict[str, Any]], name: str, filler: Mapping[str, Any]) -> None:
    if out and out[0]["role"] != "user":
        out.insert(0, {"role": "user", name: [dict(filler)]})


_RENDERERS: Final[Mapping[Shape, Callable[[str, Sequence[Message]], Rendered]]] = {
    "openai": _openai,
    "openai-responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
}
