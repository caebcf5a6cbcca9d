"""Items as the Responses API has them, one of each kind that matters to a session."""

from __future__ import annotations

from typing import Any


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
    return {**message, "content": [part]}


def call(id: str, arguments: str = '{"city": "Oslo"}') -> dict[str, Any]:
    named = {"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": "weather"}
    return {**named, "arguments": arguments, "status": "completed"}


def output(id: str, text: str = "rain") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": text}


PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0", "detail": "auto"}
EVERY_KIND: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "input_text", "text": "What is this?"}, PICTURE]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA=="},
    call("call_1"),
    output("call_1"),
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
    {"type": "shell_call", "call_id": "call_2", "action": {"commands": ["ls"]}},
    {"type": "shell_call_output", "call_id": "call_2", "output": [{"stdout": "a", "stderr": ""}]},
    {"type": "item_reference", "id": "msg_0"},
    {"type": "of a later version", "nested": {"none": None, "float": 1.0, "empty": [{}]}},
    {"__enc__": 1, "payload": "no role and no type"},
    assistant("A red square."),
]
