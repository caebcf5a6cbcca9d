"""The logger of sessions: leases lost, state migrated, writes tried again.

Sessions are named by their keys and workers by their names; no body and no state is logged.
docs/logging.md lists every message.
"""

from __future__ import annotations

import logging
from typing import Final

from limpet.errors import SessionFenced
from limpet.model import Lease

SESSION: Final = logging.getLogger("limpet.session")


def lease_lost(error: SessionFenced, lease: Lease | None, during: str) -> None:
    """Warn that a worker has lost its lease: it was too slow, or another worker has it now."""
    if lease is None:
        return
    fields = (error.key, lease.worker, lease.fence, during)
    if error.current == lease.fence:
        SESSION.warning("lease expired: session=%s worker=%s fence=%d during=%s", *fields)
    else:
        text = "lease taken over: session=%s worker=%s fence=%d during=%s new_fence=%d"
        SESSION.warning(text, *fields, error.current)
