"""The conversation in a log: what was said to and by the model, as every model accepts it.

This is the one place that decides what a model sees: messages, the calls that it made, and their
results. What the runtime asks people (approvals, questions, unknown effects, mismatches) is not
part of it, unless it is about a call that the model made; then the call is shown once, with its one
result. The log is read and left as it is. A call without a result gets a synthetic one that says
so. What has no text, or cannot be read, is left out. How messages look in the form of an API is in
`shapes`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from limpet.model import EMPTY, Event
from limpet.model.facts.running.requests import ANSWERS
from limpet.model.limits import PAGE_MAX
from limpet.session.conversation.shapes import Entry, Message, Part, Role
from limpet.store.pages import wanted

if TYPE_CHECKING:
    from limpet.session.conversation.timeline import TurnInputs

USES: Final = ("agent.tool_use", "agent.custom_tool_use")
CUSTOM_RESULT: Final = "user.custom_tool_result"
RESULTS: Final = ("agent.tool_result", CUSTOM_RESULT)
MESSAGE: Final = "agent.message"
CONFIRMATION: Final = "user.tool_confirmation"
INTERRUPT: Final = "user.interrupt"
OUTCOME: Final = "user.define_outcome"
# Of a call that may have had its effect: called again, under a new key, it would have it twice.
UNKNOWN: Final = "Outcome unknown, do not repeat: this call may have had its effect."
DENIED: Final = "The user did not allow this call."
_OURS: Final = ("tool_use", "tool_result")  # calls are recorded as events, not within a text
_ROLES: Final[Mapping[str, Role]] = {"user": "user", "system": "system"}


ReadEvents: TypeAlias = Callable[..., Awaitable[Sequence[Event]]]  # Session.read


def messages_in(events: Sequence[Event], turn: TurnInputs | None = None) -> list[Message]:
    """Return the messages of a log, or of a part of it, in an order that every model accepts; for a
    model call, what its `turn` knows of."""
    from limpet.session.conversation.timeline import entries_of

    entries = entries_of(events, turn)
    outcomes = _Outcomes(entries)
    messages: list[Message] = []
    calls: dict[str, int] = {}  # the places of those whose outcomes come next
    seen: set[str] = set()
    native: Mapping[str, Any] | None = None  # of a message without text: its first call has it

    def settle() -> None:
        messages.extend([outcomes.of(place, entries[place]) for place in calls.values()])
        calls.clear()

    for place, entry in enumerate(entries):
        id = request_id(entry)
        if entry.type in USES:
            if "awaits" not in entry.data and id not in seen:  # the same call recorded again
                seen.add(id)
                messages.append(Message("assistant", (_call(entry),), entry.event, native=native))
                native = None
                calls[id] = place
        elif entry.type in RESULTS:
            if id in calls:
                settle()
        elif (message := _said(entry)) is not None or entry.type == MESSAGE:
            settle()
            native = None if message is not None else _native(entry)
            messages += () if message is None else (message,)
    settle()
    return messages


async def read_messages(read: ReadEvents, correlation_id: str | None) -> list[Message]:
    """Read the conversation of a session, or one of several that it holds."""
    return messages_in(_recorded_with(await read_spoken(read, 0), correlation_id))


async def read_spoken(read: ReadEvents, after: int) -> list[Event]:
    """Read the events after a seq that say something in the conversation, or order it."""
    from limpet.session.conversation.timeline import TYPES

    events: list[Event] = []
    while page := await read(after=after, limit=PAGE_MAX, types=TYPES):
        events += page
        after = page[-1].seq
    return events


@lru_cache(maxsize=1024)
def is_spoken(type: str) -> bool:
    """True for the types that `read_spoken` reads."""
    from limpet.session.conversation.timeline import TYPES

    return wanted(type, TYPES)


class TurnConversation:
    """The conversation as the model calls of one turn see it.

    Each call reads only what was recorded since the one before. What was said before the turn began
    does not change meanwhile, so its messages are kept.
    """

    def __init__(self, read: ReadEvents, turn: TurnInputs, began: int) -> None:
        """`began` is the seq before the turn's first event."""
        self._read, self._turn, self._began = read, turn, began
        self._events: list[Event] = []
        self._before: dict[str | None, list[Message]] = {}  # by correlation id

    async def messages(
        self, correlation_id: str | None = None, tail: Sequence[Event] = ()
    ) -> list[Message]:
        """Return the messages as they stand now. `tail` are the newest events, without a gap, if
        they are known: the log is read only where it does not reach back far enough."""
        after = self._events[-1].seq if self._events else 0
        if tail and tail[0].seq <= after + 1:
            new = [event for event in tail if event.seq > after and is_spoken(event.type)]
        else:
            new = await read_spoken(self._read, after)
        last = self._events[-1].seq if self._events else 0  # another call may have read meanwhile
        self._events += [event for event in new if event.seq > last]
        events = _recorded_with(self._events, correlation_id)
        own = [event for event in events if event.seq > self._began]
        if _reaches_back(own):
            return messages_in(events, self._turn)
        if correlation_id not in self._before:
            earlier = events[: len(events) - len(own)]
            self._before[correlation_id] = messages_in(earlier, self._turn)
        return [*self._before[correlation_id], *messages_in(own, self._turn)]


def _reaches_back(events: Sequence[Event]) -> bool:
    """True if the messages of earlier events may change by these."""
    from limpet.session.conversation.timeline import changes_earlier

    calls = {request_id(e) for e in events if e.type in USES and isinstance(e.data, Mapping)}
    for event in events:
        if changes_earlier(event):
            return True
        is_result = event.type in RESULTS and isinstance(event.data, Mapping)
        if is_result and request_id(event) not in calls:
            return True
    return False


def _recorded_with(events: list[Event], correlation_id: str | None) -> list[Event]:
    if correlation_id is None:
        return events
    from limpet.session.conversation.timeline import STRUCTURE

    return [e for e in events if e.correlation_id == correlation_id or e.type in STRUCTURE]


def request_id(of: Entry | Event) -> str:
    """Return the id by which a call and its outcome are matched."""
    id = of.data.get("request_id")
    event_id: str = of.id if isinstance(of, Event) else of.event.id
    return id if isinstance(id, str) and id else event_id


class _Outcomes:
    """Return the result of each call: the first one after it, a refusal, or nothing that is known.

    Of a call that the runtime has asked about, an answer is not a result: the runtime records that
    itself. Only where it died before, what a client answered is the result of its own tool.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._results: dict[str, list[tuple[int, Entry]]] = {}
        self._answers: dict[str, list[tuple[int, Entry]]] = {}
        self._refusals: dict[str, list[tuple[int, Entry]]] = {}
        asked = {
            request_id(e): e.data["awaits"]
            for e in entries
            if e.type in USES and "awaits" in e.data
        }
        for place, entry in enumerate(entries):
            id = request_id(entry)
            if entry.type == CUSTOM_RESULT and id in asked:
                if asked[id] == "question":
                    self._answers.setdefault(id, []).append((place, entry))
            elif entry.type in RESULTS:
                self._results.setdefault(id, []).append((place, entry))
            elif entry.type == CONFIRMATION and entry.data.get("allow") is False:
                self._refusals.setdefault(id, []).append((place, entry))

    def of(self, place: int, call: Entry) -> Message:
        id = request_id(call)
        result = _first_after(place, self._results.get(id, ()))
        result = result or _first_after(place, self._answers.get(id, ()))
        if result is not None:
            data, error = result.data, result.data.get("is_error")
            return self._message(call, data.get("output"), result.event, error=error)
        refusal = _first_after(place, self._refusals.get(id, ()))
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


def _first_after(place: int, entries: Iterable[tuple[int, Entry]]) -> Entry | None:
    return next((entry for at, entry in entries if at > place), None)


def _call(entry: Entry) -> Part:
    given = entry.data.get("input", EMPTY)
    part: dict[str, Any] = {"type": "tool_use", "request_id": request_id(entry)}
    part["name"] = _name(entry)
    part["input"] = given if isinstance(given, Mapping) else {"input": given}
    if isinstance(signature := entry.data.get("signature"), str) and signature:
        part["signature"] = signature
    return part


def _name(entry: Entry) -> str:
    name = entry.data.get("name")
    return name if isinstance(name, str) and name else "tool"


def _said(entry: Entry) -> Message | None:
    """Return the message of an entry; None if it has none."""
    family = entry.type.partition(".")[0]
    role = "assistant" if entry.type == MESSAGE else _ROLES.get(family)
    if role is None or entry.type in ANSWERS:
        return None
    special = _SPECIAL.get(entry.type)
    parts = _parts(entry.data) if special is None else _parts({"text": special(entry.data)})
    return Message(role, parts, entry.event, native=_native(entry)) if parts else None


def _native(entry: Entry) -> Mapping[str, Any] | None:
    """Return what the provider wants back with a message of its model."""
    native = entry.data.get("native") if entry.type == MESSAGE else None
    if not isinstance(native, Mapping) or not isinstance(native.get("items"), (list, tuple)):
        return None
    return native


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
