"""What a log says in the conversation, entry by entry, in the words of our vocabulary.

Most events say one thing and are an entry as they stand, in the order of the `timeline`. What the
adapters of frameworks recorded about the conversation is followed here: items that were popped or
cleared from view, invocations that google-adk rewound, and the messages in the state of a LangGraph
thread. Pure: nothing is read, and no framework is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from limpet.model import Event
from limpet.model.facts.history import REWOUND
from limpet.session.conversing.message import Entry
from limpet.session.conversing.timeline import STRUCTURE, TurnInputs, in_view, timeline

POPPED: Final = "view.popped"
CLEARED: Final = "view.cleared"
GRAPHS: Final = "langgraph."
TYPES: Final = ("user.*", "system.*", "agent.*", "view.*", "adk.*", f"{GRAPHS}*", *STRUCTURE)
# What one pop takes out of view.
_MESSAGES: Final = ("user.message", "system.message", "agent.message")
_ITEMS: Final = (*_MESSAGES, "agent.tool_use", "agent.tool_result", "agent.item")
_ADK: Final = "adk"  # of an event's data: the event of google-adk, as JSON text
_ADK_EVENT: Final = "adk.event"
_REWIND: Final = "rewind_before_invocation_id"


def entries_of(events: Sequence[Event], turn: TurnInputs | None = None) -> list[Entry]:
    """Return what is in view of a log, or of a part of it, and can be read; for a model call, what
    its `turn` knows of."""
    graphs = [event for event in events if event.type.startswith(GRAPHS)]
    spoken = [event for event in events if not event.type.startswith(GRAPHS)]
    entries = [
        Entry(event.type, _opened(event), event)
        for event in _not_popped(timeline(spoken, turn))
        if isinstance(event.data, Mapping)
    ]
    if not graphs:
        return entries
    from limpet.session.conversing.graphs import entries_of_thread  # most logs have none

    shown = {event.seq for event in in_view(events)}
    return _merged(entries, entries_of_thread(graphs, shown))


def changes_earlier(event: Event) -> bool:
    """True if an event may change what earlier ones say in the conversation."""
    return event.type in (POPPED, CLEARED, REWOUND, _ADK_EVENT) or event.type.startswith(GRAPHS)


def _not_popped(events: Sequence[Event]) -> list[Event]:
    """What no later event took out of view. One that cannot be read has its place, too."""
    shown: list[Event] = []
    for event in events:
        if event.type == CLEARED:
            shown.clear()
        elif event.type == POPPED:
            places = (n for n in reversed(range(len(shown))) if shown[n].type in _ITEMS)
            if (newest := next(places, None)) is not None:
                del shown[newest]
        elif (target := _rewound(event)) is not None:
            begin = (n for n, each in enumerate(shown) if each.invocation_id == target)
            del shown[next(begin, len(shown)) :]
        else:
            shown.append(event)
    return shown


def _merged(native: list[Entry], graph: list[Entry]) -> list[Entry]:
    """Both in the order of the log. Those of either stay in the order of their list."""
    places: list[tuple[int, Entry]] = []
    for entries in (graph, native):
        newest = 0
        for entry in entries:
            newest = max(newest, entry.event.seq)
            places.append((newest, entry))
    return [entry for _, entry in sorted(places, key=lambda pair: pair[0])]


# --- google-adk ---------------------------------------------------------------------------------


def _rewound(event: Event) -> str | None:
    """The invocation before which google-adk went back, with all that came after it."""
    if event.type != _ADK_EVENT or not isinstance(event.data, Mapping):
        return None
    text = event.data.get(_ADK)
    if not isinstance(text, str) or _REWIND not in text:
        return None
    target = _member(_decoded(text), "actions", _REWIND)
    return target if isinstance(target, str) else None


def _opened(event: Event) -> Any:
    """The data of an event. Bytes that it holds within google-adk's event stand in their part."""
    data = event.data
    content = data.get("content")
    if _ADK not in data or not isinstance(content, (list, tuple)):
        return data
    parts = _member(_decoded(data[_ADK]), "content", "parts")
    if not isinstance(parts, list):
        return data
    return {**data, "content": [_with_bytes(part, parts) for part in content]}


def _with_bytes(part: Any, theirs: list[Any]) -> Any:
    place = part.get("part") if isinstance(part, Mapping) else None
    if type(place) is not int or not 0 <= place < len(theirs):
        return part
    shown = {name: value for name, value in part.items() if name not in ("part", "uri")}
    if isinstance(uri := part.get("uri"), str):
        return {**shown, "url": uri}
    encoded = _member(theirs[place], "inline_data", "data")
    if not isinstance(encoded, str):
        return part
    # They write the alphabet for URLs; the APIs of models read the other one.
    return {**shown, "data": encoded.translate(_PLAIN_BASE64)}


_PLAIN_BASE64: Final = str.maketrans("-_", "+/")


def _decoded(text: Any) -> Any:
    try:
        return msgspec.json.decode(text) if isinstance(text, str) else None
    except ValueError:  # a number that only Python's own reader takes: the event stays as it is
        return None


def _member(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
