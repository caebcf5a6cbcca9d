"""The view: what a principal sees of a session some of whose fields are hidden from it.

A hidden field is absent everywhere: from state and its versions, from the operations of events and
the data that these refer to, and from everything that is computed of them. Hashes of the whole
state are left out too, since they would confirm a guess. All of it is pure; the guarded store
applies it to every answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from limpet.errors import InvalidInput
from limpet.model import ABSENT, EMPTY, NO_TEXTS, Event, FrozenDict, FrozenList, Op, Texts, scope_of
from limpet.model.facts.checkpoints import KEPT, RECORDED
from limpet.model.facts.creation import FORKED
from limpet.model.facts.history import MERGED, REWOUND
from limpet.model.facts.running.runs import STEP
from limpet.model.facts.schema import MIGRATED
from limpet.model.facts.shares import SHARED
from limpet.model.ops import AddRef, MergeRef, Path, SetRef, resolve
from limpet.security.access import SessionView

# Members of events that are hashes of the whole state, without a salt.
_HASHES: Final[Mapping[str, frozenset[str]]] = {
    FORKED: frozenset({"base"}),
    MERGED: frozenset({"checksum"}),
    REWOUND: frozenset({"checksum"}),
    MIGRATED: frozenset({"checksum_before", "checksum_after"}),
}
# Events whose data may have more of the state than their operations say.
COPYING: Final = frozenset({*_HASHES, SHARED, STEP})
# Events by which a session takes on a state as a whole: nobody records one who sees a part.
WHOLE_STATE: Final = frozenset({FORKED, MERGED, REWOUND, MIGRATED})
# Steps of managed tools whose results have the state of a session, and where.
_SHOWN_STATE: Final = {"managed.session_get_snapshot": "state", "managed.memory_read": "value"}
# The adapter of google-adk keeps an event as it was given in one of these: its text, or a blob.
_ADK_TEXT, _ADK_BLOB = "adk", "adk_blob"
_TELLING_CHARS: Final = 16  # a text within a hidden value that says something by itself


class FieldView(msgspec.Struct, frozen=True):
    """The names in state that a principal may read: those that are `shown` (None: all of them),
    without those that are `hidden`; `user:` names only of its own user."""

    shown: frozenset[str] | None = None
    hidden: frozenset[str] = frozenset()
    user_names: bool = True

    def sees(self, name: str) -> bool:
        """True if this name in state may be read: a field, an app: or a user: name."""
        if name in self.hidden:
            return False
        if ":" not in name:  # a field of the session, as most are
            return self.shown is None or name in self.shown
        scope = scope_of(name)
        if scope == "temp":
            return True
        if scope == "user" and not self.user_names:
            return False
        return self.shown is None or name in self.shown

    def names(self, names: Mapping[str, Any]) -> FrozenDict:
        """Names in state and what belongs to them, without hidden ones."""
        return FrozenDict({name: value for name, value in names.items() if self.sees(name)})

    def event(self, event: Event) -> Event:
        """The event without operations on hidden names, and without the data they refer to.

        Data that equals what such an operation puts into state counts as referred to: whether it
        is stored once or twice is a matter of space. The same object if there is nothing to hide.
        """
        if event.type not in COPYING:  # most of these show everything, and there are many
            for op in event.ops:
                if not self.sees(str(op.path[0])):
                    break
            else:
                return event
        hashes = _HASHES.get(event.type)
        hidden = [op for op in event.ops if not self.sees(str(op.path[0]))]
        if event.type in (SHARED, STEP) and event.data is not None:
            event = self._without_copies(event)
        if not hidden and hashes is None:
            return event
        ops = tuple([op for op in event.ops if self.sees(str(op.path[0]))])
        if event.data is None:
            return msgspec.structs.replace(event, ops=ops)
        data: Any = event.data
        if hashes is not None:
            data = FrozenDict({n: value for n, value in data.items() if n not in hashes})
        try:
            left = _without(_without_delta(data, ops) if hidden else data, *_referred(hidden, data))
            if left is not data:  # what the others refer to may have moved, or be gone
                ops = tuple([resolve(op, event.data) for op in ops])
        except (InvalidInput, LookupError, TypeError):  # a reference that leads nowhere
            left, ops = EMPTY, ()
        return msgspec.structs.replace(event, data=EMPTY if left is ABSENT else left, ops=ops)

    def _without_copies(self, event: Event) -> Event:
        """The event without hidden fields in a copy of state that Limpet itself put into its data:
        the values of a share, and what a managed tool has shown of a session."""
        within: Any = event.data
        way: tuple[str, ...] = ("values",)
        if event.type == STEP:
            way = ("result", _SHOWN_STATE.get(within.get("name"), ""))
        for member in way:
            within = within.get(member) if isinstance(within, dict) else None
        if not isinstance(within, dict) or all(map(self.sees, within)):
            return event
        left: Any = self.names(within)
        if event.type == STEP:
            left = FrozenDict({**event.data["result"], way[1]: left})
        return msgspec.structs.replace(event, data=FrozenDict({**event.data, way[0]: left}))

    def events(self, events: Iterable[Event]) -> tuple[Event, ...]:
        """Some events, each as `event` gives it."""
        return tuple(map(self.event, events))

    def texts(self, texts: Texts, events: Iterable[Event]) -> Texts:
        """The texts of events that a head names, as far as the data of these events is shown.

        `events` are those events. The text of one that is missing there is left out.
        """
        if not texts:
            return texts
        said: dict[Any, Any] = {}
        for event in events:
            text, data = texts.get(event.seq), self.event(event).data
            if text is not None and data is not None:
                kept = {n: data[n] for n, value in text.items() if data.get(n, ABSENT) == value}
                said[event.seq] = FrozenDict(kept)
        shown: Texts = FrozenDict(said)  # type: ignore[assignment]  # the names are seqs
        return shown or NO_TEXTS


class CheckpointView(msgspec.Struct, frozen=True):
    """The view of a log of checkpoints, of one who sees a part of the states: without checksums and
    sizes of the whole, which would confirm a guess."""

    def sees(self, name: str) -> bool:
        return True

    def fields(self, fields: Mapping[str, Any]) -> FrozenDict:
        kept = fields.get(KEPT)
        if not isinstance(kept, dict):  # of versions it is a number
            return FrozenDict(fields)
        rows = FrozenDict({number: _unmeasured(row) for number, row in kept.items()})
        return FrozenDict({**fields, KEPT: rows})

    def event(self, event: Event) -> Event:
        if event.type != RECORDED or event.data is None:
            return event
        return msgspec.structs.replace(event, data=_unmeasured(event.data))

    def texts(self, texts: Texts, events: Iterable[Event]) -> Texts:
        return texts


class _SeenByAll(FieldView, frozen=True, kw_only=True):
    """Several views at once: a field is seen if all of them show it."""

    views: tuple[SessionView, ...]

    def sees(self, name: str) -> bool:
        return all([view.sees(name) for view in self.views])


def seen_by_all(views: Sequence[SessionView]) -> SessionView | None:
    """Return what all of these views show; None if there are none."""
    if len(views) < 2:
        return views[0] if views else None
    return _SeenByAll(views=tuple(views))


def _without_delta(data: FrozenDict, shown: Sequence[Op]) -> FrozenDict:
    """The data of an event without the copy of its changes that the adapter of google-adk keeps
    beside them: in a JSON text, of which those stay that are `shown`, or in a blob."""
    if _ADK_BLOB in data:
        return FrozenDict({name: value for name, value in data.items() if name != _ADK_BLOB})
    text = data.get(_ADK_TEXT)
    if not isinstance(text, str):
        return data
    names = {op.path[0] for op in shown}
    try:
        event = msgspec.json.decode(text, type=dict[str, Any])
        delta = event["actions"]["state_delta"]
        event["actions"]["state_delta"] = {n: delta[n] for n in delta if n in names}
        left = msgspec.json.encode(event).decode()
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError):
        return FrozenDict({name: value for name, value in data.items() if name != _ADK_TEXT})
    return FrozenDict({**data, _ADK_TEXT: left})


def _unmeasured(row: Mapping[str, Any]) -> FrozenDict:
    return FrozenDict({**row, "checksum": "", "size": 0})


def _referred(ops: Iterable[Op], data: Mapping[str, Any]) -> tuple[list[Path], list[Any]]:
    """The paths of the data that some operations refer to, and the values they put into state."""
    paths: list[Path] = []
    values: list[Any] = []
    for op in ops:
        if isinstance(op, (SetRef, AddRef, MergeRef)):
            paths.append(op.ref)
        plain = resolve(op, data)
        items = getattr(plain, "items", ())
        for value in (getattr(plain, "value", None), items, *items):
            _collect(value, values, outermost=True)
    return paths, values


def _collect(value: Any, values: list[Any], *, outermost: bool = False) -> None:
    """Texts and containers that would show a hidden value where they stand in data."""
    if isinstance(value, str):
        if value and (outermost or len(value) >= _TELLING_CHARS):
            values.append(value)
    elif isinstance(value, (dict, list)) and value:
        values.append(value)
        for part in value.values() if isinstance(value, dict) else value:
            _collect(part, values)


def _without(value: Any, paths: Sequence[Path], values: Sequence[Any]) -> Any:
    """A value without what is at these paths, and without what equals one of these values; ABSENT
    if nothing is left, the same object if nothing was taken."""
    if () in paths:
        return ABSENT
    if isinstance(value, str):
        return ABSENT if value in values else value
    if not isinstance(value, (dict, list)):
        return value
    if value and any([type(each) is type(value) and each == value for each in values]):
        return ABSENT
    named = value.items() if isinstance(value, dict) else enumerate(value)
    kept: list[tuple[Any, Any]] = []
    changed = False
    for name, part in list(named):
        left = _without(part, [path[1:] for path in paths if path[0] == name], values)
        changed = changed or left is not part
        if left is not ABSENT:
            kept.append((name, left))
    if not changed:
        return value
    return FrozenDict(kept) if isinstance(value, dict) else FrozenList([part for _, part in kept])
