"""Fold: a session's state and head, computed from its events.

`record` is the only place where a prepared draft becomes an event; `replay` folds stored events
again. Every store calls these two and computes state in no other way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from limpet.errors import InvalidInput, SessionCorrupt
from limpet.model import head, ops
from limpet.model.chain import chained
from limpet.model.events import Event, Prepared
from limpet.model.facts import outcomes, timers
from limpet.model.facts.running import requests, runs
from limpet.model.facts.shapes import check_shape
from limpet.model.facts.view import NO_TEXTS, Facts, Texts
from limpet.model.head import Head
from limpet.model.values import ABSENT, EMPTY, FrozenDict

_put: Final[Any] = dict.__setitem__  # into a FrozenDict that nobody else has seen yet
_join: Final[Any] = dict.update
_drop: Final[Any] = dict.pop


class Fold(msgspec.Struct, frozen=True, gc=False):
    """A session at one version: head, own fields, the seq that last changed each field, and the
    texts that the head does not have."""

    head: Head
    fields: FrozenDict = EMPTY
    versions: FrozenDict = EMPTY
    damaged: tuple[int, ...] = ()  # seqs that could not be read: their changes are missing here
    texts: Texts = NO_TEXTS  # of events that the head's facts name


class Recorded(msgspec.Struct, frozen=True, gc=False):
    """An event, the draft it was made from, and the bytes that a store keeps."""

    event: Event
    draft: Prepared
    salt: bytes
    digest: bytes

    @property
    def raw(self) -> bytes:
        return self.draft.raw


def record(fold: Fold, draft: Prepared, now_us: int, salt: bytes) -> tuple[Fold, Recorded]:
    """Assign the draft its seq, time and link, and fold it in.

    Session ops are checked on the fold as they are applied. The caller applies scope ops (see
    `shared.scope_ops`). Raises InvalidInput and changes nothing.
    """
    before, sets = fold.head, draft.sets
    facts, active = before.facts, None
    if draft.caller_chose_id:  # what is adopted has a chosen id, too
        pass
    elif draft.plain:
        active = head.activity_of(draft.type) if head.is_moved(before) else None
    elif draft.input and not draft.plain_ops:
        waiting = head.with_input(before, draft.type, now_us)
        if waiting is not None:
            check_shape(draft.type, draft.data)
            facts, active = waiting, True
    if active is None:
        return _record_any(fold, draft, now_us, salt)
    # The common cases on the hot path: it moves the head, and sets names or waits as an input.
    seq, at_us = before.version + 1, before.updated_us
    if now_us > at_us:
        at_us = now_us
    digest, link = chained(before.link, seq, at_us, draft.header, salt, draft.raw)
    recorded = Recorded(event_of(draft, seq, at_us, link), draft, salt, digest)
    after = head.moved(before, seq, link, at_us, active=active, facts=facts)
    fields, versions = fold.fields, fold.versions
    if sets is not None:
        fields, versions = FrozenDict(fields), FrozenDict(versions)
        _join(fields, sets)
        _join(versions, dict.fromkeys(sets, seq))
    return Fold(after, fields, versions, fold.damaged, fold.texts), recorded


def _record_any(fold: Fold, draft: Prepared, now_us: int, salt: bytes) -> tuple[Fold, Recorded]:
    before, origin = fold.head, draft.origin
    seq = before.version + 1
    at_us = max(now_us, before.updated_us)  # time never runs backwards within a session
    if origin is not None:
        at_us = now_us = origin.at_us
        salt = origin.salt
    digest, link = chained(before.link, seq, at_us, draft.header, salt, draft.raw)
    event = event_of(draft, seq, at_us, link)
    data = draft.data or EMPTY  # what is adopted may come undecoded
    if data or origin is None:
        check_shape(draft.type, data)
    after = head.advance(before, draft.type, data, at_us, link, now_us, input=draft.input)
    if origin is None:
        if before.facts:
            head.check_phase(before, draft.type, input=draft.input)
            if draft.input:
                head.check_answer(before, draft.type, draft.data)
        head.check_facts(before.facts, after.facts, draft.type, draft.data)
    recorded = Recorded(event, draft, salt, digest)
    texts = texts_after(fold.texts, before.facts, after.facts, draft.type, data, seq)
    return _folded(fold, after, texts, draft.plain_ops, scoped=draft.scoped), recorded


def event_of(draft: Prepared, seq: int, at_us: int, link: bytes) -> Event:
    """The event that a draft becomes in this place."""
    return Event(
        seq,
        draft.id,
        draft.type,
        draft.actor,
        at_us,
        draft.data,
        draft.ops,
        draft.cause,
        draft.invocation_id,
        draft.correlation_id,
        draft.wake_id,
        0 if draft.input else None,
        None,
        link,
    )


def is_run(fold: Fold, drafts: Sequence[Prepared]) -> bool:
    """True if `record_run` may record these: new plain ones, which change no fact of the head."""
    for draft in drafts:
        if not draft.plain or draft.caller_chose_id or head.activity_of(draft.type) is None:
            return False
    return head.is_moved(fold.head)


def record_run(
    fold: Fold, drafts: Sequence[Prepared], now_us: int, salt: Callable[[], bytes]
) -> tuple[Fold, list[Recorded]]:
    """Return what `record` makes of a run of drafts (see `is_run`), one after the other: each is
    linked, and all of them are folded at once."""
    before = fold.head
    at_us = max(now_us, before.updated_us)
    seq, link, active, recorded = before.version, before.link, False, []
    fields, versions = FrozenDict(fold.fields), FrozenDict(fold.versions)
    for draft in drafts:
        seq, salted = seq + 1, salt()
        digest, link = chained(link, seq, at_us, draft.header, salted, draft.raw)
        recorded.append(Recorded(event_of(draft, seq, at_us, link), draft, salted, digest))
        if draft.sets is not None:
            _join(fields, draft.sets)
            _join(versions, dict.fromkeys(draft.sets, seq))
        if not active and head.activity_of(draft.type):
            active = True
    after = head.moved(before, seq, link, at_us, active=active, facts=before.facts)
    return Fold(after, fields, versions, fold.damaged, fold.texts), recorded


def replay(fold: Fold, event: Event) -> Fold:
    """The fold after one stored event. A damaged event moves the head, not the state."""
    data, before, texts = EMPTY if event.data is None else event.data, fold.head, fold.texts
    marked = event.processed is not None
    active = None if marked else head.activity_of(event.type)
    if active is not None and head.is_moved(before):  # as most do: see `record`
        seq = before.version + 1
        at_us, facts = event.at_us, before.facts
        after = head.moved(before, seq, event.link, at_us, active=active, facts=facts)
    else:
        after = head.advance(before, event.type, data, event.at_us, event.link, input=marked)
        texts = texts_after(texts, before.facts, after.facts, event.type, data, event.seq)
    if not event.ops:
        return Fold(after, fold.fields, fold.versions, fold.damaged, texts)
    plain = tuple([ops.resolve(op, data) for op in event.ops])
    return _folded(fold, after, texts, plain, scoped=True)


def replay_any(fold: Fold, event: Event) -> tuple[Fold, bool]:
    """Replay what can be replayed; False if the event is damaged or its body was removed, or does
    not apply because an earlier one is damaged. One bad event must not make a session unreadable.
    """
    try:
        return replay(fold, event), event.damage is None and not event.removed
    except (InvalidInput, LookupError, TypeError, ValueError, AttributeError):
        without = msgspec.structs.replace(event, data=None, ops=(), damage="does not fit")
        return replay(fold, without), False


def _folded(
    fold: Fold, after: Head, texts: Texts, plain: tuple[ops.PlainOp, ...], *, scoped: bool
) -> Fold:
    if scoped:
        plain = tuple([op for op in plain if ops.scope_of(str(op.path[0])) == "session"])
    if not plain:
        return Fold(after, fold.fields, fold.versions, fold.damaged, texts)
    fields = ops.apply(fold.fields, plain)
    versions = FrozenDict(fold.versions)  # ours until it is returned
    for op in plain:
        name = op.path[0]
        if name in fields:
            _put(versions, name, after.version)
        else:
            _drop(versions, name, None)
    return Fold(after, fields, versions, fold.damaged, texts)


def replay_all(fold: Fold, events: Iterable[Event]) -> Fold:
    """The fold after a whole log."""
    for event in events:
        fold = replay(fold, event)
    return fold


# --- shared names ---------------------------------------------------------------------------------

ScopeKey: TypeAlias = tuple[str, str, str]  # app, user ("" for the app's own), name with its prefix


class ScopeValue(msgspec.Struct, frozen=True, gc=False):
    """One app: or user: name at one version. A deleted name has no value and keeps its version."""

    version: int
    value: Any
    deleted: bool = False
    damage: str | None = None  # why the stored value could not be read; there is no value then


class ScopeWrite(msgspec.Struct, frozen=True, gc=False):
    """One more version of a scope name: the op that made it and what it now is."""

    key: ScopeKey
    at: ScopeValue
    op: ops.PlainOp
    seq: int
    whole: bytes  # the value, encoded; nothing if it was deleted


def scope_ops(draft: Prepared, app: str, user: str) -> list[tuple[ScopeKey, ops.PlainOp]]:
    """A draft's app: and user: operations with the full name of what each changes."""
    scoped: list[tuple[ScopeKey, ops.PlainOp]] = []
    if draft.scoped:
        for op in draft.plain_ops:
            name = str(op.path[0])
            scope = ops.scope_of(name)
            if scope == "app":
                scoped.append(((app, "", name), op))
            elif scope == "user":
                scoped.append(((app, user, name), op))
    return scoped


def scope_next(key: ScopeKey, before: ScopeValue | None, op: ops.PlainOp) -> ScopeValue:
    """The next version of a scope name. Raises InvalidInput if the op does not match its value."""
    name = key[2]
    fields, version = EMPTY, 1
    if before is not None:
        version = before.version + 1
        if before.damage is not None:
            if type(op) is not ops.Set or len(op.path) > 1:
                raise SessionCorrupt(f"{name} of {key[0]}", before.damage)
        elif not before.deleted:
            fields = FrozenDict({name: before.value})
    value = ops.apply(fields, (op,)).get(name, ABSENT)
    return ScopeValue(version, None, True) if value is ABSENT else ScopeValue(version, value)


# The words of each: what else an event has may be large, and is read from the log.
_SPOKEN: Final[Mapping[str, tuple[str, ...]]] = {
    requests.TOOL_USE: ("name", "input"),
    requests.CUSTOM_TOOL_USE: ("name", "input"),
    outcomes.DEFINED: ("title", "detail", "criteria"),
    timers.REVISIT_SET: ("reason",),
    runs.ERROR: ("message",),
}


def texts_after(
    texts: Texts, before: Facts, after: Facts, type: str, data: Mapping[str, Any], seq: int
) -> Texts:
    """The texts after an event that left the facts `after`: its own, if they name it, and those
    before that they still name."""
    if after is before or (not texts and type not in _SPOKEN):
        return texts
    kept = {}
    for named in _seqs(after):
        if named == seq:
            kept[seq] = FrozenDict({n: data[n] for n in _SPOKEN.get(type, ()) if n in data})
        elif named in texts:
            kept[named] = texts[named]
    frozen: Any = FrozenDict(kept)  # type: ignore[arg-type]  # by seq
    return frozen or NO_TEXTS


def _seqs(facts: Facts) -> Iterator[Any]:
    """The events whose words somebody may ask for."""
    for request in requests.requests_in(facts).values():
        if "answer" not in request:
            yield request.get("seq")
    for timer in facts.get("timers", EMPTY).values():
        if timers.is_revisit(timer):
            yield timer["seq"]
    yield facts.get("outcome", EMPTY).get("seq")
    yield runs.run_in(facts).get("error", EMPTY).get("seq")
