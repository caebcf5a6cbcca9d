"""Chain check: the events of a load against the chain, if the store was opened to do so.

A CRC finds what rotted. It does not find what somebody changed who computed it again: the link
does, which follows from the link before, the names, the time and the body of the event.
"""

from __future__ import annotations

from struct import error as StructError  # noqa: N812  # a class
from typing import Final

import msgspec

from limpet.model import Event, chain, is_input

CHANGED: Final = "is not what the chain says: it was changed after it was recorded"


def checked(event: Event, salt: bytes, raw: bytes | None, previous: bytes | None) -> Event:
    """The event as it was read; marked as damaged if its link does not follow from that.

    `raw` is its encoded body, None if it has none, and `previous` the link before it, None if that
    is not known: then it is not compared.
    """
    if raw is None or previous is None or event.damage is not None:
        return event
    names = (event.id, event.type, event.actor, event.cause, event.invocation_id)
    marked = event.processed is not None and not is_input(event.type)
    header = chain.header_digest((*names, event.correlation_id, event.wake_id), marked=marked)
    try:
        _, link = chain.chained(previous, event.seq, event.at_us, header, salt, raw)
    except (TypeError, ValueError, StructError):  # a column of another kind
        link = b""
    return event if link == event.link else changed(event)


def changed(event: Event) -> Event:
    """Return the placeholder for an event that was changed after it was recorded."""
    return msgspec.structs.replace(event, data=None, ops=(), damage=CHANGED)
