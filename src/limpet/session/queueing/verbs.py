"""The verbs of the queue: append_soon on a session, flush on Limpet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from limpet.errors import InvalidEvent
from limpet.model import Draft, Key, Prepared
from limpet.model import ops as op
from limpet.session.door import Door
from limpet.session.writer import Writer

NONE_GIVEN: Final[Mapping[str, Any]] = {}  # what an append sets, merges, … if it names nothing
_EMPTY: Final = ()  # the only one there is


class AppendsSoon:
    """Events of a session whose caller does not wait for each."""

    __slots__ = ()
    key: Key
    actor: str | None
    writer: Writer

    def append_soon(
        self,
        type: str,
        data: Mapping[str, Any] = NONE_GIVEN,
        *,
        actor: str | None = None,
        set: Mapping[str, Any] = NONE_GIVEN,
        merge: Mapping[str, Mapping[str, Any]] = NONE_GIVEN,
        add: Mapping[str, Sequence[Any]] = NONE_GIVEN,
        inc: Mapping[str, int | float] = NONE_GIVEN,
        delete: Iterable[str] = (),
        ops: Iterable[op.Op] = (),
        id: str | None = None,
        cause: str | None = None,
        invocation_id: str | None = None,
        correlation_id: str | None = None,
        wake_id: str | None = None,
        input: bool = False,
    ) -> str:
        """Queue an event without waiting; the id it will have. `await lp.flush()` records it.

        Takes what append takes, except `expect`, `partial` and temp: names. The form of the event
        is checked now, whether it fits the session when it is flushed. Until then it is in this
        process only: a crash loses it, and neither `s.state` nor `s.version` nor a reader shows it.
        Events of one session are recorded in their order, and before any later write to it. Raises
        QueueFull when too much waits.
        """
        prepared = self._prepare(
            type,
            data,
            actor,
            set,
            merge,
            add,
            inc,
            delete,
            ops,
            id,
            cause,
            invocation_id,
            correlation_id,
            wake_id,
            input=input,
        )
        if prepared.temp_ops:
            raise InvalidEvent("temp: names are not queued. Set them with append")
        return self.writer.journal.queue.add(self.key, self.writer, prepared)

    def _prepare(
        self,
        type: str,
        data: Mapping[str, Any],
        actor: str | None,
        set: Mapping[str, Any],
        merge: Mapping[str, Mapping[str, Any]],
        add: Mapping[str, Sequence[Any]],
        inc: Mapping[str, int | float],
        delete: Iterable[str],
        ops: Iterable[op.Op],
        id: str | None,
        cause: str | None,
        invocation_id: str | None,
        correlation_id: str | None,
        wake_id: str | None,
        *,
        input: bool,
    ) -> Prepared:
        """What an append was given, checked and encoded. Raises InvalidInput, StoreClosed."""
        journal = self.writer.journal
        if (  # most are so: no draft is made
            merge is NONE_GIVEN
            and add is NONE_GIVEN
            and inc is NONE_GIVEN
            and delete is _EMPTY
            and ops is _EMPTY
            and id is cause is invocation_id is correlation_id is wake_id is None
            and input is False
        ):
            flat = journal.prepare_flat(type, data, set, self.actor if actor is None else actor)
            if flat is not None:
                return flat
        draft = Draft(
            type=type,
            data=data,
            actor=actor,
            set=set,
            merge=merge,
            add=add,
            inc=inc,
            delete=delete,
            ops=ops,
            id=id,
            cause=cause,
            invocation_id=invocation_id,
            correlation_id=correlation_id,
            wake_id=wake_id,
            input=input,
        )
        return journal.prepare(draft, self.actor)


class Flushes(Door):
    """The store whose sessions queue events."""

    async def flush(self) -> None:
        """Record everything that append_soon has queued, durably, each session in its order.

        One commit serves many events. If the events of a session are refused, the others are
        recorded all the same, and FlushFailed names what was not: `error.unrecorded` has key,
        drafts and reason for each session. What it names has left the queue; sent again with
        append_many, no event is recorded twice. A cancelled flush leaves what was not recorded in
        the queue. What others queue meanwhile may wait for the next flush.
        """
        await self._journal.queue.flush()
