"""The timeline of a conversation: which events of a log are in view, and in which order they stand.

A rewind leaves out what lies between its place and itself. A message that arrived while a turn ran
stands where the turn that took it up begins: the model had not read it before. Pure: nothing is
read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from limpet.model import Event
from limpet.model.facts.history import REWOUND
from limpet.model.facts.running.runs import SPAN_STARTED
from limpet.session.conversation.shapes import Entry

STRUCTURE: Final = (SPAN_STARTED, REWOUND)  # they order the other events and say nothing
_PEOPLE: Final = ("user.", "system.")
_Place: TypeAlias = tuple[int, int, int]  # by which events are sorted
_LATEST: Final = 2**62


class TurnInputs(msgspec.Struct, frozen=True):
    """The turn for whose model a conversation is read: its id, and the seqs of its inputs and of
    the interrupt that began it."""

    id: str
    seqs: frozenset[int]


class _TurnStart(msgspec.Struct):
    """The beginning of a turn: the seq of its first wake, and the seqs that it took up."""

    seq: int
    inputs: Sequence[int]
    last: int = 0  # the seq of the last thing that its agent said or did


def timeline(events: Sequence[Event], turn: TurnInputs | None = None) -> list[Event]:
    """Return the events of a conversation in the order in which a model reads them.

    `events` are those of a log in its order. For a `turn`, inputs that wait for another one are
    left out.
    """
    shown = in_view(events)
    said = {event.seq: event for event in shown if event.type not in STRUCTURE}
    starts = _starts(shown, turn)
    if not starts:
        return list(said.values())
    by_agents = []  # the seqs of what the agent said and did in turns
    for event in said.values():
        start = starts.get(event.invocation_id)
        if start is not None and event.type.startswith("agent."):
            by_agents.append(event.seq)
            start.last = event.seq
    places = _inputs_moved(starts, by_agents, events, said)
    taken = {seq for start in starts.values() for seq in start.inputs}
    for seq, event in list(said.items()):
        if seq in taken or event.invocation_id in starts or not event.type.startswith(_PEOPLE):
            continue
        if turn is not None and event.processed == 0:
            del said[seq]
        elif (behind := _turn_end(event, starts, by_agents)) is not None:
            places[seq] = (behind, 1, seq)
    return sorted(said.values(), key=lambda e: places.get(e.seq, (e.seq, 0, e.seq)))


def in_view(events: Sequence[Event]) -> list[Event]:
    """Return the events that no later rewind has taken out of the conversation.

    After a rewind to event n the conversation is the one after event n, whatever was rewound
    before: so this goes back from the newest event, and jumps wherever a rewind did.
    """
    if not any([event.type == REWOUND for event in events]):
        return list(events)
    shown: list[Event] = []
    upto = _LATEST
    for event in reversed(events):
        if event.seq <= upto:
            if (at := _rewound_to(event)) is None:
                shown.append(event)
            else:
                upto = at
    return shown[::-1]


def _rewound_to(event: Event) -> int | None:
    """The seq to which an event took the conversation back."""
    if event.type != REWOUND or not isinstance(event.data, Mapping):
        return None
    at = event.data.get("at")
    takes_along = event.data.get("messages") is True and type(at) is int and at < event.seq
    return at if takes_along else None


def _starts(shown: Sequence[Event], turn: TurnInputs | None) -> dict[str | None, _TurnStart]:
    """The beginnings of the turns in view, by turn. That of `turn` may not be recorded yet."""
    starts: dict[str | None, _TurnStart] = {}
    for event in shown:
        if event.type != SPAN_STARTED or not isinstance(event.data, Mapping):
            continue
        data: Mapping[str, Any] = event.data
        if data.get("kind") == "wake" and data["turn"] not in starts:
            redirect = [data["redirect"]] if "redirect" in data else []
            starts[data["turn"]] = _TurnStart(event.seq, [*data["inputs"], *redirect])
    if turn is not None and turn.id not in starts:
        starts[turn.id] = _TurnStart(_LATEST, sorted(turn.seqs))
    return starts


def _inputs_moved(
    starts: Mapping[str | None, _TurnStart],
    by_agents: Sequence[int],
    events: Sequence[Event],
    said: dict[int, Event],
) -> dict[int, _Place]:
    """The places of inputs that came before the end of an earlier turn: they stand at the beginning
    of the turn that took them up. One that a rewind left out is in view again by that."""
    places: dict[int, _Place] = {}
    by_seq: dict[int, Event] = {}
    for start in starts.values():
        inputs = [seq for seq in start.inputs if seq < start.seq]
        if not inputs:
            continue
        later = bisect_right(by_agents, min(inputs))
        hidden = [seq for seq in inputs if seq not in said]
        if hidden:
            by_seq = by_seq or {event.seq: event for event in events}
            said |= {seq: by_seq[seq] for seq in hidden if seq in by_seq}
        if hidden or (later < len(by_agents) and by_agents[later] < start.seq):
            places |= {seq: (start.seq, 0, seq) for seq in inputs}
    return places


def _turn_end(
    event: Event, starts: Mapping[str | None, _TurnStart], by_agents: Sequence[int]
) -> int | None:
    """The end of the turn behind which an event stands that no turn took up: of the turn that ran
    when it came; while it is pending, of the last one. None: it stands where it is."""
    if event.processed == 0:
        last = by_agents[-1] if by_agents else 0
        return last if last > event.seq else None
    for start in starts.values():
        if start.seq < event.seq < start.last:
            return start.last
    return None


# --- entries -------------------------------------------------------------------------------------


POPPED: Final = "view.popped"
CLEARED: Final = "view.cleared"
GRAPHS: Final = "langgraph."
TYPES: Final = ("user.*", "system.*", "agent.*", "view.*", "adk.*", f"{GRAPHS}*", *STRUCTURE)
# One pop takes one of these out of view.
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
    from limpet.session.conversation.graphs import entries_of_thread  # most logs have none

    shown = {event.seq for event in in_view(events)}
    return _merge(entries, entries_of_thread(graphs, shown))


def changes_earlier(event: Event) -> bool:
    """True if an event may change what earlier ones say in the conversation."""
    return event.type in (POPPED, CLEARED, REWOUND, _ADK_EVENT) or event.type.startswith(GRAPHS)


def _not_popped(events: Sequence[Event]) -> list[Event]:
    """Return what no later event took out of view. One that cannot be read has its place, too."""
    shown: list[Event] = []
    for event in events:
        if event.type == CLEARED:
            shown.clear()
        elif event.type == POPPED and (seqs := popped_seqs(event)):
            shown = [each for each in shown if each.seq not in seqs]
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


def popped_seqs(event: Event) -> frozenset[int]:
    """Return the events that a pop names; empty: it takes the newest item out of view."""
    seqs = event.data.get("seqs") if isinstance(event.data, Mapping) else None
    return frozenset(seqs) if isinstance(seqs, list) else frozenset()


def _merge(native: list[Entry], graph: list[Entry]) -> list[Entry]:
    """Merge both in the order of the log. Those of either stay in the order of their list."""
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
    target = _member(_decode(text), "actions", _REWIND)
    return target if isinstance(target, str) else None


def _opened(event: Event) -> Any:
    """The data of an event. Bytes that it holds within google-adk's event stand in their part."""
    data = event.data
    content = data.get("content")
    if _ADK not in data or not isinstance(content, (list, tuple)):
        return data
    parts = _member(_decode(data[_ADK]), "content", "parts")
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


def _decode(text: Any) -> Any:
    try:
        return msgspec.json.decode(text) if isinstance(text, str) else None
    except ValueError:  # a number that only Python's own reader takes: the event stays as it is
        return None


def _member(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
