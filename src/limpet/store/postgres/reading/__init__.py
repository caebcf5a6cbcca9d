"""Reading from a server: sessions, histories, states, pages and the feed."""

from limpet.store.postgres.reading.lineage import base_of, link_at
from limpet.store.postgres.reading.reader import LAST, Asked, Reader

__all__ = [
    "LAST",
    "Asked",
    "Reader",
    "base_of",
    "link_at",
]
