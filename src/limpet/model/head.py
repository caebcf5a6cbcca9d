"""The head: the row that says where a session stands, folded from its events.

Pending inputs, labels and timers are not kept by anyone: they are what the log amounts to. The
facts that change them are the reserved events below, written by the session's own verbs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet.errors import InvalidEvent
from limpet.model.chain import genesis
from limpet.model.events import to_time, to_us
from limpet.model.keys import Key, unfit
from limpet.model.limits import (
    LABEL_BYTES_MAX,
    LABEL_VALUE_CHARS_MAX,
    LABELS_MAX,
    NAME_CHARS_MAX,
    PRIORITY_MAX,
    TIMERS_MAX,
)
from limpet.model.values import EMPTY, FrozenDict, described

CREATED: Final = "session.created"
LABELED: Final = "session.labeled"
TIMER_SET: Final = "session.timer_set"
TIMER_CLEARED: Final = "session.timer_cleared"
PROCESSED: Final = "session.processed"
PRIORITIZED: Final = "session.prioritized"
MIGRATED: Final = "state.migrated"
INPUT: Final = "user."

TimerKind: TypeAlias = Literal["wake", "deadline"]


class Timer(msgspec.Struct, frozen=True, gc=False):
    """A moment the session asked for: to be woken, or to be ended."""

    at_us: int
    kind: TimerKind = "wake"

    @property
    def at(self) -> datetime:
        return to_time(self.at_us)


class Head(msgspec.Struct, frozen=True, gc=False):
    """Where a session stands. `version` is the seq of its last event."""

    key: Key
    uid: str  # this session for ever, whatever its key: the id of its first event
    version: int
    link: bytes
    created_us: int
    updated_us: int
    labels: FrozenDict = EMPTY
    pending: int = 0  # user.* events not yet processed
    pending_us: int | None = None  # since when they wait: the first came, or others were processed
    timers: Mapping[str, Timer] = EMPTY
    priority: int = 0  # the higher is claimed first
    schema_version: str | None = None  # of typed state; None: never typed
    # Not folded, and no part of the log: who may run it.
    fence: int = 0  # the number of the last lease
    lease_us: int | None = None  # until when it is leased; without a worker: held back until then
    worker: str | None = None  # to whom
    deleted_us: int | None = None  # of a tombstone, which has none of the above but key to updated

    @property
    def created_at(self) -> datetime:
        return to_time(self.created_us)

    @property
    def updated_at(self) -> datetime:
        return to_time(self.updated_us)

    @property
    def deleted_at(self) -> datetime | None:
        """When the session was deleted; None of a living one."""
        return None if self.deleted_us is None else to_time(self.deleted_us)


def blank(key: Key, uid: str, at_us: int) -> Head:
    """The head before the first event."""
    return Head(key, uid, 0, genesis(uid), at_us, at_us)


def buried(head: Head, deleted_us: int) -> Head:
    """What a tombstone keeps of a head."""
    times = (head.created_us, head.updated_us)
    return Head(head.key, head.uid, head.version, head.link, *times, deleted_us=deleted_us)


def advance(
    head: Head,
    type: str,
    data: Mapping[str, Any],
    at_us: int,
    link: bytes,
    now_us: int | None = None,
) -> Head:
    """The head after one more event. Total: whatever the event, there is a next head.

    `now_us` is the clock at its recording, for which `at_us` stands when it is read back. The two
    differ where the clock was set back behind the event before: input waits from the clock's time
    on, not from the log's, or it would be due only when the clock has caught up.
    """
    due_us = at_us if now_us is None else now_us
    since_us = None if head.pending_us is None else min(head.pending_us, due_us)
    labels, timers = head.labels, head.timers
    pending, pending_us, priority = head.pending, since_us, head.priority
    schema_version = head.schema_version
    if type.startswith(INPUT):
        pending, pending_us = pending + 1, due_us if pending_us is None else pending_us
    elif type.startswith("session.") and data:  # none: the body of this fact is damaged
        if type in (CREATED, LABELED):
            labels = _labeled(labels, data.get("labels", EMPTY))
            schema_version = data.get("schema_version", schema_version)
        elif type == TIMER_SET:
            timer = Timer(data["at_us"], data["kind"])
            timers = FrozenDict({**timers, data["name"]: timer})
        elif type == TIMER_CLEARED:
            timers = FrozenDict({n: t for n, t in timers.items() if n != data["name"]})
        elif type == PROCESSED:
            pending -= len(data["seqs"])
            pending_us = due_us if pending else None
        elif type == PRIORITIZED:
            priority = data["priority"]
    elif type == MIGRATED and data:
        schema_version = data["to"]
    return Head(
        head.key,
        head.uid,
        head.version + 1,
        link,
        head.created_us,
        at_us,
        labels,
        pending,
        pending_us,
        timers,
        priority,
        schema_version,
        head.fence,
        head.lease_us,
        head.worker,
    )


def _labeled(labels: FrozenDict, changes: Mapping[str, str | None]) -> FrozenDict:
    if not changes:
        return labels
    merged = {**labels, **changes}
    return FrozenDict({name: value for name, value in merged.items() if value is not None})


# --- the data of the reserved events, checked ---------------------------------------------------


def created_data(
    key: Key, labels: Mapping[str, str], schema_version: str | None = None
) -> dict[str, Any]:
    """What the first event says: whose it is, so that a stored row cannot change hands unseen."""
    data: dict[str, Any] = {"app": key.app, "user": key.user, "id": key.id}
    if schema_version is not None:
        data["schema_version"] = schema_version
    return {**data, **labeled_data(labels)} if labels != EMPTY else data


def labeled_data(changes: Mapping[str, str | None]) -> dict[str, Any]:
    if not isinstance(changes, Mapping):
        said = described(changes)
        raise InvalidEvent(f"labels are a dict of texts, as in {{'plan': 'gold'}}, not {said}")
    if len(changes) > LABELS_MAX:
        raise InvalidEvent(f"{len(changes)} labels, more than {LABELS_MAX}")
    for name, value in changes.items():
        if reason := unfit(name, NAME_CHARS_MAX):
            raise InvalidEvent(f"the label {name!r} {reason}")
        if value is not None and (reason := unfit(value, LABEL_VALUE_CHARS_MAX)):
            raise InvalidEvent(f"the value of label {name!r} {reason}")
        if len(f"{name}{value or ''}".encode()) > LABEL_BYTES_MAX:
            raise InvalidEvent(f"the label {name!r} has more than {LABEL_BYTES_MAX:,} bytes")
    return {"labels": dict(changes)}


def timer_name(name: str) -> dict[str, Any]:
    if reason := unfit(name, NAME_CHARS_MAX):
        raise InvalidEvent(f"the timer's name {reason}")
    return {"name": name}


def timer_data(name: str, at: datetime, kind: TimerKind) -> dict[str, Any]:
    named = timer_name(name)
    if not isinstance(at, datetime):
        raise InvalidEvent(f"a timer's time is an aware datetime, not {described(at)}")
    if kind not in ("wake", "deadline"):
        raise InvalidEvent(f"a timer's kind is 'wake' or 'deadline', not {kind!r}")
    return {**named, "at_us": to_us(at), "kind": kind}


def processed_data(seqs: Iterable[int]) -> dict[str, Any]:
    given = list(seqs) if isinstance(seqs, Iterable) else []
    if not given or any(type(seq) is not int or seq < 1 for seq in given):
        raise InvalidEvent("processed takes the seqs of one or more pending events")
    return {"seqs": sorted(set(given))}


def prioritized_data(priority: int) -> dict[str, Any]:
    if type(priority) is not int or abs(priority) > PRIORITY_MAX:
        raise InvalidEvent(
            f"a priority is an integer from {-PRIORITY_MAX} to {PRIORITY_MAX}, "
            f"not {described(priority)}"
        )
    return {"priority": priority}


def check_bounds(head: Head) -> None:
    """What one event may leave behind: a head stays a row, not a table."""
    if len(head.labels) > LABELS_MAX:
        raise InvalidEvent(f"the session would have more than {LABELS_MAX} labels")
    if len(head.timers) > TIMERS_MAX:
        raise InvalidEvent(f"the session would have more than {TIMERS_MAX} timers")
