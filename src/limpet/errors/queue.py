"""Events that were queued by append_soon could not be queued, or could not be recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from limpet.errors.store import StoreError


class Unrecorded:
    """Events of one session that a flush could not record, in their order, and why.

    `drafts` are limpet.Draft objects with their ids: `await s.append_many(each.drafts)`.
    """

    __slots__ = ("drafts", "error", "key")

    def __init__(self, key: Any, drafts: tuple[Any, ...], error: Exception) -> None:
        self.key, self.drafts, self.error = key, drafts, error

    def __repr__(self) -> str:
        return f"<{len(self.drafts)} events of {self.key} not recorded: {self.error}>"

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple([draft.id for draft in self.drafts])


class QueueFull(StoreError):
    code = "queue.full"
    retryable = True

    def __init__(self, what: str, waiting: int, waiting_max: int) -> None:
        self.waiting, self.waiting_max = waiting, waiting_max
        super().__init__(
            f"{waiting:,} {what} wait for a flush; the limit is {waiting_max:,}. This event was "
            "not queued: await lp.flush(), then append it again."
        )


class FlushFailed(StoreError):
    code = "flush.failed"
    status = 409

    def __init__(
        self, unrecorded: Sequence[Unrecorded], during: Literal["flush", "write"] = "flush"
    ) -> None:
        self.unrecorded, self.during = tuple(unrecorded), during
        self.ids = tuple([id for each in self.unrecorded for id in each.ids])
        first = self.unrecorded[0]
        more = f" and of {len(unrecorded) - 1:,} more sessions" if len(unrecorded) > 1 else ""
        what = f"{len(self.ids):,} queued events of {first.key}{more} were not recorded"
        super().__init__(f"{what} ({first.error}) {_NEXT[during]}")


_NEXT = {
    "flush": "They have left the queue. error.unrecorded has their drafts: send these again with "
    "append_many; none is recorded twice.",
    "write": "So this write was not tried. lp.flush() names them too; then try this write again.",
}
