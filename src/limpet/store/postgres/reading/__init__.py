"""Reading from a server: sessions, histories, states, pages and the feed."""

from limpet.store.postgres.reading.lineage import base_of, link_at
from limpet.store.postgres.reading.reader import LAST, Reader

__all__ = [
    "LAST",
    "Reader",
    "base_of",
    "link_at",
]
