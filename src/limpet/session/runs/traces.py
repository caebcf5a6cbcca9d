"""Traces: every wake can be read again as a tree of spans with times, from the log alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from limpet.errors import InvalidInput
from limpet.model import Event, to_time
from limpet.model.facts.running.runs import SPAN_COMPLETED, SPAN_STARTED, STEP, TRACED
from limpet.model.limits import PAGE_MAX
from limpet.session.runs.outcomes import is_managed
from limpet.session.writer import Writer

_SPANS: Final = (SPAN_STARTED, SPAN_COMPLETED)


class Span(msgspec.Struct, frozen=True):
    """An interval of work. Without an end, none was recorded yet.

    `kind` is wake, model, tool (including effects) or step. A wake begins when it was claimed. A
    successful model call has its tokens by kind and its cost, if the model reported them.
    """

    id: str
    parent: str | None
    kind: str
    name: str
    started_us: int
    ended_us: int | None = None
    result: str | None = None
    error: str | None = None
    model: str | None = None
    usage: Mapping[str, int] | None = None
    cost: float | None = None

    @property
    def started_at(self) -> datetime:
        """The time it started."""
        return to_time(self.started_us)

    @property
    def took(self) -> timedelta | None:
        """The time it took; None while it runs."""
        if self.ended_us is None:
            return None
        return timedelta(microseconds=self.ended_us - self.started_us)


class Activation(msgspec.Struct, frozen=True):
    """One activation of a session: the reason, the time, the worker, and how the wake ended."""

    wake_id: str
    turn_id: str
    attempt: int
    why: str
    worker: str
    fence: int
    claimed_us: int
    started_us: int
    inputs: tuple[int, ...] = ()
    timers: tuple[str, ...] = ()
    answers: tuple[int, ...] = ()
    ended_us: int | None = None
    result: str | None = None
    error: str | None = None

    @property
    def claimed_at(self) -> datetime:
        """The time of the claim, by the store's clock."""
        return to_time(self.claimed_us)


class WakeTrace(msgspec.Struct, frozen=True):
    """One wake: its spans, that of the wake first, and all of its events in order."""

    wake_id: str
    turn_id: str
    attempt: int
    worker: str
    spans: tuple[Span, ...]
    events: tuple[Event, ...]
    activation: Activation

    @property
    def span(self) -> Span:
        """The span of the wake itself, above all others."""
        return self.spans[0]


async def trace_of(writer: Writer, wake_id: str) -> WakeTrace:
    """The wake with this id. Raises InvalidInput if the session has none such."""
    start, end = await _bounds(writer, wake_id)
    # Behind a guard, here or at a server, an auditor finds them without their bodies.
    is_guarded = writer.services.agent(None) is not None
    types = TRACED if is_guarded else None
    events: list[Event] = []
    after = start.seq - 1
    while after < end:
        page = await writer.journal.store.read(
            writer.known.key, after=after, limit=PAGE_MAX, reverse=False, types=types
        )
        if not page:
            break
        events += [e for e in page if e.seq <= end and e.wake_id == wake_id]
        after = page[-1].seq
    ends = [e for e in events if e.type == SPAN_COMPLETED and e.data["span_id"] == wake_id]
    woken = _activation(start, ends[-1] if ends else None)
    return WakeTrace(
        wake_id, woken.turn_id, woken.attempt, woken.worker, _spans(events), tuple(events), woken
    )


async def wakes_of(writer: Writer, limit: int, before: int | None) -> tuple[Event, ...]:
    """The beginnings of the newest wakes, or of those before a seq, the newest first."""
    wakes: list[Event] = []
    async for event in _backwards(writer, before or 0):
        if _is_wake(event) and event.type == SPAN_STARTED:
            wakes.append(event)
            if len(wakes) == limit:
                break
    return tuple(wakes)


async def activations_of(writer: Writer, limit: int) -> tuple[Activation, ...]:
    """The newest wakes, the newest first, each with its end if it has one."""
    activations: list[Activation] = []
    ends: dict[str, Event] = {}
    async for event in _backwards(writer):
        if not _is_wake(event):
            continue
        if event.type == SPAN_COMPLETED:
            ends[event.data["span_id"]] = event
            continue
        activations.append(_activation(event, ends.pop(event.data["span_id"], None)))
        if len(activations) == limit:
            break
    return tuple(activations)


async def _bounds(writer: Writer, wake_id: str) -> tuple[Event, int]:
    """The event that began a wake, and the seq of the last that may belong to it."""
    end: int | None = None
    async for event in _backwards(writer):
        end = event.seq if end is None else end
        if event.wake_id == wake_id and _is_wake(event):
            if event.type == SPAN_STARTED:
                return event, end
            end = event.seq
    known = "See s.runs.wakes(), or limpet trace --list."
    raise InvalidInput(f"session {writer.known.key} has no wake {wake_id!r}. {known}")


async def _backwards(writer: Writer, before: int = 0) -> Any:
    """The events of spans, the newest first; with `before`, those of smaller seqs."""
    while True:
        page = await writer.journal.store.read(
            writer.known.key, after=before, limit=PAGE_MAX, reverse=True, types=_SPANS
        )
        for event in page:
            if event.data is not None:
                yield event
        if not page:
            return
        before = page[-1].seq


def _activation(start: Event, end: Event | None) -> Activation:
    data = start.data
    made = Activation(
        wake_id=data["span_id"],
        turn_id=data["turn"],
        attempt=data["attempt"],
        why=data.get("why", "input"),  # logs from before it was recorded
        worker=data["worker"],
        fence=data.get("fence", 0),
        claimed_us=data.get("claimed_us", start.at_us),
        started_us=start.at_us,
        inputs=tuple(data["inputs"]),
        timers=tuple(data["timers"]),
        answers=tuple(data.get("answers", ())),
    )
    if end is None:
        return made
    return msgspec.structs.replace(
        made, ended_us=end.at_us, result=end.data["result"], error=end.data.get("error")
    )


def _is_wake(event: Event) -> bool:
    return bool(event.data.get("kind") == "wake")


def _spans(events: Iterable[Event]) -> tuple[Span, ...]:
    spans: dict[str, Span] = {}
    replies: dict[str, str] = {}  # the message that a call of a model is to record: its span
    for event in events:
        if event.data is None:
            continue
        if event.type == SPAN_STARTED:
            span = _begun(event)
            spans[span.id] = span
            replies[event.id.rpartition("/started/")[0]] = span.id
        elif event.type == SPAN_COMPLETED and event.data["span_id"] in spans:
            span = spans[event.data["span_id"]]
            spans[span.id] = _end_span(span, event)
        elif event.type == STEP and ("graph" in event.data or is_managed(event)):
            continue  # the nodes or the managed tool that it records have spans of their own
        elif event.type == STEP or (event.type == "agent.message" and "stream" in event.data):
            spans[event.id] = _step(event)
        elif event.type == "agent.message" and event.id in replies:
            span = spans[replies[event.id]]
            spans[span.id] = msgspec.structs.replace(span, **_model_usage(event))
    return tuple(spans.values())


def _begun(event: Event) -> Span:
    data = event.data
    started_us = data.get("claimed_us", event.at_us)  # a wake begins with its claim
    return Span(data["span_id"], data.get("parent_span_id"), data["kind"], data["name"], started_us)


def _end_span(span: Span, event: Event) -> Span:
    data = event.data
    started_us = span.started_us
    if "took_us" in data:  # its beginning was recorded with its end
        started_us = event.at_us - data["took_us"]
    return msgspec.structs.replace(
        span,
        started_us=started_us,
        ended_us=event.at_us,
        result=data["result"],
        error=data.get("error"),
    )


def _step(event: Event) -> Span:
    """A step is one event, and so is a stream, which is a call of a model. The step of a tool that
    only looks is the span of the tool."""
    data = event.data
    kind = "model" if "stream" in data else "tool" if "call" in data else "step"
    name = data.get("stream") or data.get("name", "")
    started_us = data.get("started_us", event.at_us)
    span = Span(event.id, event.wake_id, kind, name, started_us, event.at_us, "success")
    return msgspec.structs.replace(span, **_model_usage(event)) if kind == "model" else span


def _model_usage(event: Event) -> dict[str, Any]:
    """Return what a message says of the model that wrote it."""
    return {name: event.data.get(name) for name in ("model", "usage", "cost")}
