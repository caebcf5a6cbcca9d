"""ADK events as the suites write them."""

from __future__ import annotations

from typing import Any

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.genai import types


def content(*parts: types.Part | str, role: str = "model") -> types.Content:
    return types.Content(
        role=role, parts=[types.Part(text=p) if isinstance(p, str) else p for p in parts]
    )


def said(*parts: types.Part | str, author: str = "bot", **more: Any) -> Event:
    """An event with these parts, and whatever else it has."""
    delta = more.pop("delta", None)
    if delta is not None:
        more["actions"] = EventActions(state_delta=delta)
    more.setdefault("invocation_id", "i1")
    role = "user" if author == "user" else "model"
    return Event(author=author, content=content(*parts, role=role) if parts else None, **more)


def called(name: str, id: str = "c1", **args: Any) -> types.Part:
    return types.Part(function_call=types.FunctionCall(id=id, name=name, args=args))


def answered(name: str, id: str = "c1", **response: Any) -> types.Part:
    return types.Part(function_response=types.FunctionResponse(id=id, name=name, response=response))
