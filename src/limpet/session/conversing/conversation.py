"""The conversation in a log: its messages in an order that every model accepts.

The log is read and left as it is. Each call of a tool is followed by its outcome, wherever that was
recorded; a call without one gets a synthetic outcome that says so. What has no text, or cannot be
read, is left out. How messages look in the form of an API is in `shapes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from limpet.model import EMPTY, Event
from limpet.session.conversing.message import Entry, Message, Part, Role

if TYPE_CHECKING:
    pass

USES: Final = ("agent.tool_use", "agent.custom_tool_use")
RESULTS: Final = ("agent.tool_result", "user.custom_tool_result")
CONFIRMATION: Final = "user.tool_confirmation"
INTERRUPT: Final = "user.interrupt"
OUTCOME: Final = "user.define_outcome"
UNKNOWN: Final = "This call was interrupted. Whether it had an effect is not known."
DENIED: Final = "The user did not allow this call."
_OURS: Final = ("tool_use", "tool_result")  # calls are recorded as events, not within a text
_ROLES: Final[Mapping[str, Role]] = {"user": "user", "system": "system"}


def messages_in(events: Sequence[Event]) -> list[Message]:
    """The messages of a log, or of a part of it, in an order that every model accepts."""
    from limpet.session.conversing.entries import entries_of

    entries = entries_of(events)
    outcomes = _Outcomes(entries)
    found: list[Message] = []
    calls: list[int] = []  # the places of those whose outcomes come next
    seen: set[str] = set()

    def settle() -> None:
        found.extend(outcomes.of(place, entries[place]) for place in calls)
        calls.clear()

    for place, entry in enumerate(entries):
        if entry.type in USES:
            if (id := request_id(entry)) not in seen:  # the same call recorded again
                seen.add(id)
                found.append(Message("assistant", (_call(entry),), entry.event))
                calls.append(place)
        elif entry.type in RESULTS:
            settle()
        elif (message := _said(entry)) is not None:
            settle()
            found.append(message)
    settle()
    return found


def request_id(entry: Entry) -> str:
    """By which a call and its outcome are matched."""
    found = entry.data.get("request_id")
    return found if isinstance(found, str) and found else entry.event.id


class _Outcomes:
    """What became of each call: its first result after it, a refusal, or nothing that is known."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._results: dict[str, list[tuple[int, Entry]]] = {}
        self._refusals: dict[str, list[tuple[int, Entry]]] = {}
        for place, entry in enumerate(entries):
            if entry.type in RESULTS:
                self._results.setdefault(request_id(entry), []).append((place, entry))
            elif entry.type == CONFIRMATION and entry.data.get("allow") is False:
                self._refusals.setdefault(request_id(entry), []).append((place, entry))

    def of(self, place: int, call: Entry) -> Message:
        result = _first_after(place, self._results.get(request_id(call), ()))
        if result is not None:
            data, error = result.data, result.data.get("is_error")
            return self._message(call, data.get("output"), result.event, error=error)
        refusal = _first_after(place, self._refusals.get(request_id(call), ()))
        if refusal is None:
            return self._message(call, UNKNOWN, call.event, error=True, synthetic=True)
        note = refusal.data.get("note")
        text = f"{DENIED} {note}" if isinstance(note, str) and note else DENIED
        return self._message(call, text, refusal.event, error=True, synthetic=True)

    def _message(
        self, call: Entry, output: Any, event: Event, *, error: Any, synthetic: bool = False
    ) -> Message:
        part: dict[str, Any] = {"type": "tool_result", "request_id": request_id(call)}
        part |= {"name": _name(call), "output": output, "is_error": bool(error)}
        return Message("tool", (part,), event, synthetic)


def _first_after(place: int, found: Iterable[tuple[int, Entry]]) -> Entry | None:
    return next((entry for at, entry in found if at > place), None)


def _call(entry: Entry) -> Part:
    given = entry.data.get("input", EMPTY)
    part = {"type": "tool_use", "request_id": request_id(entry), "name": _name(entry)}
    return {**part, "input": given if isinstance(given, Mapping) else {"input": given}}


def _name(entry: Entry) -> str:
    found = entry.data.get("name")
    return found if isinstance(found, str) and found else "tool"


def _said(entry: Entry) -> Message | None:
    """What an entry says in the conversation; None: nothing."""
    family = entry.type.partition(".")[0]
    role = "assistant" if entry.type == "agent.message" else _ROLES.get(family)
    if role is None or entry.type == CONFIRMATION:
        return None
    special = _SPECIAL.get(entry.type)
    parts = _parts(entry.data) if special is None else _parts({"text": special(entry.data)})
    return Message(role, parts, entry.event) if parts else None


def _parts(data: Mapping[str, Any]) -> tuple[Part, ...]:
    """The parts of a message, without texts that are blank: no model accepts those."""
    content = data.get("content")
    given = list(content) if isinstance(content, (list, tuple)) else [content or data.get("text")]
    parts = [_part(each) for each in given if each is not None]
    return tuple(part for part in parts if part["type"] != "text" or str(part["text"]).strip())


def _part(given: Any) -> Part:
    if isinstance(given, str):
        return {"type": "text", "text": given}
    if not isinstance(given, Mapping) or not isinstance(given.get("type"), str):
        return {"type": "data", "data": given}
    if given["type"] in _OURS or (given["type"] == "text" and type(given.get("text")) is not str):
        return {"type": "data", "data": given}
    return given


def _interrupted(data: Mapping[str, Any]) -> str:
    note = data.get("note")
    return f"[interrupted] {note}" if isinstance(note, str) and note else "[interrupted]"


def _outcome(data: Mapping[str, Any]) -> str:
    criteria = data.get("criteria") or ()
    lines = [f"Wanted outcome: {data.get('title', '')}", str(data.get("detail") or "")]
    lines += [f"- {each}" for each in criteria if isinstance(criteria, (list, tuple))]
    return "\n".join(line for line in lines if line)


_SPECIAL: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    INTERRUPT: _interrupted,
    OUTCOME: _outcome,
}
