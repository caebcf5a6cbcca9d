"""Adopting: an event that another store has recorded becomes a draft again, with its origin.

The draft is what the first store was given: the same names, the same encoded body. So the planner
gives it the same link, or refuses it. A run of them is linked event by event and folded at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from limpet.model import chain, head
from limpet.model import ops as op
from limpet.model.chain import header_digest
from limpet.model.events import Event, Origin, Prepared, is_input
from limpet.model.facts.inputs import PROCESSED
from limpet.model.fold import Fold, Recorded, event_of
from limpet.model.values import FrozenDict


def adopted(event: Event, raw: bytes, salt: bytes) -> Prepared:
    """The draft that recording makes this very event of. `raw` is its encoded body."""
    names = (
        event.id,
        event.type,
        event.actor,
        event.cause,
        event.invocation_id,
        event.correlation_id,
        event.wake_id,
    )
    by_type = is_input(event.type)
    marked = event.processed is not None and not by_type
    digest = header_digest(names, marked=marked)
    plain: Any = event.ops
    scoped = False
    for o in event.ops:
        if type(o) in op.REFS:
            plain = tuple([op.resolve(each, event.data) for each in event.ops])
        if ":" in o.path[0] and op.scope_of(str(o.path[0])) != "session":  # type: ignore[operator]  # a name
            scoped = True
    origin = Origin(event.seq, event.at_us, salt, event.link)
    body = (event.data, event.ops, plain, scoped, (), raw, digest)
    return Prepared(event.id, True, *names[1:], *body, by_type or marked, origin)  # type: ignore[arg-type]  # as named


def runs(drafts: Sequence[Prepared]) -> list[Sequence[Prepared]]:
    """Runs of drafts, each of which begins where inputs are marked: they are looked up before."""
    starts = [place for place, draft in enumerate(drafts) if place and draft.type == PROCESSED]
    edges = [0, *starts, len(drafts)]
    return [drafts[one:other] for one, other in pairwise(edges)]


def linked(fold: Fold, drafts: Sequence[Prepared]) -> tuple[head.Head, list[Recorded]]:
    """The events of a run of adopted drafts with the links that follow here, and the head after
    them. Whether these are the links of their origins is for the caller to look at."""
    after, made = fold.head, []
    for draft in drafts:
        origin = draft.origin
        assert origin is not None, "adopted"
        seq, at_us = after.version + 1, origin.at_us
        digest = chain.body_digest(origin.salt, draft.raw)
        link = chain.link(after.link, seq, at_us, draft.header, digest)
        event = event_of(draft, seq, at_us, link)
        made.append(Recorded(event, draft, origin.salt, digest))
        after = head.advance(after, draft.type, draft.data, at_us, link, at_us, input=draft.input)
    return after, made


def folded(fold: Fold, after: head.Head, drafts: Sequence[Prepared]) -> Fold:
    """The fold after a run of drafts, as one after the other would have left it.

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
        return Fold(after, fold.fields, fold.versions, fold.damaged)
    fields = op.apply(fold.fields, changes)
    kept = {name: seq for name, seq in fold.versions.items() if name not in last}
    kept |= {name: seq for name, seq in last.items() if name in fields}
    return Fold(after, fields, FrozenDict(kept), fold.damaged)
