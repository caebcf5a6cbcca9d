"""The head: one row that summarizes a session, folded from its events.

Labels, timers and pending inputs are never written on their own: they follow from the log. Each
fact that changes them has a module in `facts`; the table below maps event types to those modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from limpet.model.chain import genesis
from limpet.model.events import to_time
from limpet.model.facts import creation, inputs, labels, priority, schema, timers
from limpet.model.facts.inputs import is_input
from limpet.model.facts.view import Bound, Fold
from limpet.model.keys import Key
from limpet.model.values import EMPTY, FrozenDict

# What each reserved event changes, and what a commit with it must leave within bounds. One static
# table, so that folding is the same in every process and total.
_FOLDS: Final[Mapping[str, Fold]] = {
    creation.CREATED: creation.fold,
    labels.LABELED: labels.fold,
    timers.TIMER_SET: timers.fold_set,
    timers.TIMER_CLEARED: timers.fold_cleared,
    inputs.PROCESSED: inputs.fold_processed,
    priority.PRIORITIZED: priority.fold,
    schema.MIGRATED: schema.fold,
}
_BOUNDS: Final[Mapping[str, Bound]] = {
    creation.CREATED: labels.check,
    labels.LABELED: labels.check,
    timers.TIMER_SET: timers.check,
}


class Head(msgspec.Struct, frozen=True, gc=False):
    """The summary of a session. `version` is the seq of its last event."""

    key: Key
    uid: str  # the id of the first event; identifies this session, never reused
    version: int
    link: bytes
    created_us: int
    updated_us: int
    labels: FrozenDict = EMPTY
    pending: int = 0  # user.* events not yet processed
    pending_us: int | None = None  # since when they wait: the first came, or others were processed
    timers: Mapping[str, timers.Timer] = EMPTY
    priority: int = 0  # the higher is claimed first
    schema_version: str | None = None  # of typed state; None if never typed
    # Not folded and not part of the log: who may run the session.
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
        """When the session was deleted; None for a live session."""
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
    """The head after one more event. Total: every event gives a next head.

    `now_us` is the clock's time at recording; on replay `at_us` stands in for it. They differ if
    the clock was set back to before the previous event. Input then waits from the clock's time, not
    the event's; otherwise it would become due only when the clock has caught up.
    """
    due_us = at_us if now_us is None else now_us
    if is_input(type):
        changes = inputs.fold_input(head, data, due_us)
    elif data and (fold := _FOLDS.get(type)) is not None:  # no data: the fact's body is damaged
        changes = fold(head, data, due_us)
    else:
        changes = {}
    if "pending_us" not in changes and head.pending_us is not None and due_us < head.pending_us:
        changes["pending_us"] = due_us
    if changes:
        head = msgspec.structs.replace(head, **changes)
    return Head(
        head.key,
        head.uid,
        head.version + 1,
        link,
        head.created_us,
        at_us,
        head.labels,
        head.pending,
        head.pending_us,
        head.timers,
        head.priority,
        head.schema_version,
        head.fence,
        head.lease_us,
        head.worker,
    )


def check_bounds(head: Head, type: str) -> None:
    """Raise InvalidEvent if an event of this type leaves the head over a limit."""
    bound = _BOUNDS.get(type)
    if bound is not None:
        bound(head)
