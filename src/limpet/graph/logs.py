"""Log records that say which invocation they belong to.

The filter goes on a handler, and needs no package beside the standard library:

    handler.addFilter(IdentityFilter())

Every record that is emitted inside an invocation then has `invocation_id` and `correlation_id`, and
`session_id` if the invocation is bound to a session. Outside of one a record has none of them.
"""

from __future__ import annotations

import logging

from limpet.graph.context import (
    current_correlation_id,
    current_invocation_id,
    current_session_id,
)


class IdentityFilter(logging.Filter):
    """Passes every record, and gives it the ids of the invocation that emitted it.

    With a QueueHandler it belongs there: the listener runs in a thread that has no invocation.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Always True."""
        for name, value in identity().items():
            setattr(record, name, value)
        return True


def identity() -> dict[str, str]:
    """The ids that are bound here, by name: none outside of an invocation."""
    ids = {
        "session_id": current_session_id(),
        "invocation_id": current_invocation_id(),
        "correlation_id": current_correlation_id(),
    }
    return {name: value for name, value in ids.items() if value is not None}
