"""What the sessions of an open store share beside the way to write.

One `Services` is made when a store is opened; every session and facet of it holds the same one. A
log that is read from its archive file has its own, with a journal on a store in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from limpet.session.journal import Journal
from limpet.session.life.lifecycle_policy import Lifecycles
from limpet.session.metrics import Metrics

if TYPE_CHECKING:
    from limpet.session.life.archive_storage import Archive


class Services(msgspec.Struct, frozen=True, eq=False):
    """An open store: its journal, and what this process has declared or opened with it."""

    journal: Journal
    documents: Journal  # of the store that has the documents of these sessions
    metrics: Metrics
    lifecycles: Lifecycles
    archive: Archive | None = None
