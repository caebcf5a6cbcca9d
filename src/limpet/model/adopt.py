"""Adopting: an event that another store has recorded becomes a draft again, with its origin.

The draft is what the first store was given: the same names, the same encoded body. So the planner
gives it the same link, or refuses it. A run of them is linked event by event and folded at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec

from limpet.errors import InvalidEvent, LimpetError, SessionConflict
from limpet.model import chain, head, ops as op
from limpet.model.commit import Base
from limpet.model.events import (
    Event,
    Origin,
    Prepared,
    check_recorded,
    decode_body,
    is_input,
    ops_in,
)
from limpet.model.facts.inputs import processed_by
from limpet.model.facts.shapes import check_shape
from limpet.model.fold import Fold, Recorded, event_of, record, texts_after
from limpet.model.keys import Key, is_reserved, unfit
from limpet.model.limits import ID_CHARS_MAX, INT_MAX, STATE_DEPTH_MAX
from limpet.model.values import EMPTY, FrozenDict, settle

_LINK_BYTES: Final = 32
# Errors of folding an event that does not fit those before it.
UNFIT: Final = (
    LimpetError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


def adopted(event: Event, raw: bytes, salt: bytes, compressed: bytes | None = None) -> Prepared:
    """The draft that recording makes this very event of. `raw` is its encoded body; `compressed` is
    the same in fewer bytes, if the other store had it so.

    The event may come without its data and ops. Then they are read from the body, the data only if
    the head or an operation looks into it: most of a log is moved without being decoded. Raises
    msgspec.MsgspecError if the body is not one.
    """
    by_type = is_input(event.type)
    marked = event.processed is not None and not by_type
    data, ops = event.data, event.ops
    if data is None:
        data, ops = _content(event.type, raw)
    plain: Any = ops
    scoped = False
    for o in ops:
        if type(o) in op.REFS:
            data = decode_body(raw).data if data is None else data
            plain = tuple([op.resolve(each, data) for each in ops])
        if ":" in o.path[0] and op.scope_of(str(o.path[0])) != "session":  # type: ignore[operator]  # a name
            scoped = True
    names = (
        event.id,
        event.type,
        event.actor,
        event.cause,
        event.invocation_id,
        event.correlation_id,
        event.wake_id,
    )
    origin = Origin(event.seq, event.at_us, salt, event.link)
    body = (data, ops, plain, scoped, (), raw, chain.header_digest(names, marked=marked))
    return Prepared(event.id, True, *names[1:], *body, by_type or marked, origin, compressed)  # type: ignore[arg-type]  # as named


def _content(type: str, raw: bytes) -> tuple[Any, tuple[op.Op, ...]]:
    """Return the ops of a body, and its data if the head looks into it, else None."""
    if not head.reads(type):
        return None, ops_in(raw)
    body = decode_body(raw)
    return body.data, body.ops


def check_base(base: Base) -> None:
    """Check a state that a log recorded elsewhere begins on. Raises InvalidInput."""
    if not 1 <= base.floor < INT_MAX or len(base.link) != _LINK_BYTES:
        raise InvalidEvent("it begins on a state without a place in the log of its parent")
    if is_reserved(base.parent.app) or unfit(base.uid, ID_CHARS_MAX):
        raise InvalidEvent("it begins on the state of something that is not a session")
    settle(base.fields, "the state that it begins on", depth_max=STATE_DEPTH_MAX)
    for name in base.fields:
        if op.scope_of(op.check_name(name)) != "session":
            raise InvalidEvent(f"it begins on a state with the shared name {name!r}")
    versions = base.versions
    fits = all([type(seq) is int and 1 <= seq <= base.floor for seq in versions.values()])
    if versions.keys() != base.fields.keys() or not fits:
        raise InvalidEvent("it begins on a state whose names have other versions")


def proven(fold: Fold, event: Event, raw: bytes, salt: bytes) -> Fold:
    """The fold after one more event of a log that was recorded elsewhere, whole and checked as a
    commit of our own would be: its form, its phase, its bounds, and what follows from it. Raises
    one of UNFIT if it does not fit; its link is for the caller to compare."""
    from limpet.model.facts import adopted_shapes  # most processes adopt nothing

    before = fold.head
    check_recorded(event, raw)
    adopted_shapes.check_data(event.type, event.data, first=before.version == before.floor)
    after, made = record(fold, adopted(event, raw, salt), 0, b"")
    facts = after.head.facts
    if before.facts:
        head.check_phase(before, event.type, input=made.draft.input)
    if facts is not before.facts:
        adopted_shapes.check_document(facts)
    head.check_facts(before.facts, facts, event.type, event.data)
    return after


def whole(rec: Recorded) -> Recorded:
    """Return the record with the data of its event."""
    if rec.event.data is not None:
        return rec
    event = msgspec.structs.replace(rec.event, data=decode_body(rec.raw).data)
    return msgspec.structs.replace(rec, event=event)


def runs(drafts: Sequence[Prepared]) -> list[Sequence[Prepared]]:
    """Runs of drafts, each of which begins where inputs are marked: they are looked up before."""
    marking = [bool(processed_by(draft.type, draft.data)) for draft in drafts]
    starts = [place for place, marks in enumerate(marking) if place and marks]
    edges = [0, *starts, len(drafts)]
    return [drafts[one:other] for one, other in pairwise(edges)]


def linked(key: Key, fold: Fold, drafts: Sequence[Prepared]) -> tuple[Fold, list[Recorded]]:
    """The events of a run of adopted drafts with the links that follow here, and the fold with the
    head and the texts after them. Whether these are the links of their origins is for the caller to
    look at; the fields come with `folded`. Raises InvalidEvent if a fact does not fit those before
    it."""
    try:
        after, texts, made = fold.head, fold.texts, []
        for draft in drafts:
            origin = draft.origin
            assert origin is not None, "adopted"
            seq, at_us = after.version + 1, origin.at_us
            salt, raw = origin.salt, draft.raw
            digest, link = chain.chained(after.link, seq, at_us, draft.header, salt, raw)
            event = event_of(draft, seq, at_us, link)
            made.append(Recorded(event, draft, salt, digest))
            data, before = draft.data or EMPTY, after.facts
            if data:
                check_shape(draft.type, data)
            after = head.advance(after, draft.type, data, at_us, link, at_us, input=draft.input)
            texts = texts_after(texts, before, after.facts, draft.type, data, seq)
        return Fold(after, fold.fields, fold.versions, fold.damaged, texts), made
    except LimpetError:
        raise
    except UNFIT as error:
        raise InvalidEvent(f"an event of {key} does not fit those before it") from error


def check_followed(before: FrozenDict, after: FrozenDict) -> None:
    """Raise InvalidEvent unless the results of adopted events have the form that every reader of
    the head relies on."""
    if after is not before:
        from limpet.model.facts import adopted_shapes  # most processes adopt nothing

        adopted_shapes.check_document(after)


def check_origin(key: Key, version: int, updated_us: int, rec: Recorded) -> None:
    """Raise SessionConflict unless what was recorded elsewhere fits here just as it is."""
    origin = rec.draft.origin
    assert origin is not None
    fits = rec.event.seq == origin.seq and rec.event.link == origin.link
    if not fits or origin.at_us < updated_us:
        raise SessionConflict(key, "log", origin.seq - 1, version)


def folded(fold: Fold, after: Fold, drafts: Sequence[Prepared]) -> Fold:
    """The fold after a run of drafts that were `linked`, as one after the other would have left it.

    Raises InvalidInput if an operation does not fit.
    """
    changes: list[Any] = []
    last: dict[Any, int] = {}  # the seq that changed each name last
    for seq, draft in enumerate(drafts, fold.head.version + 1):
        plain: Any = draft.plain_ops
        if draft.scoped:
            plain = [each for each in plain if op.scope_of(str(each.path[0])) == "session"]
        changes += plain
        for each in plain:
            last[each.path[0]] = seq
    if not changes:
        return after
    fields = op.apply(fold.fields, changes)
    kept = {name: seq for name, seq in fold.versions.items() if name not in last}
    kept |= {name: seq for name, seq in last.items() if name in fields}
    return Fold(after.head, fields, FrozenDict(kept), fold.damaged, after.texts)
