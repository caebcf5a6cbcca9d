"""Adopting: an event that another store has recorded becomes a draft again, with its origin.

The draft is what the first store was given: the same names, the same encoded body. So the planner
gives it the same link, or refuses it.
"""

from __future__ import annotations

from typing import Any

from limpet.model import ops as op
from limpet.model.chain import header_digest
from limpet.model.events import Event, Origin, Prepared, is_input


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
