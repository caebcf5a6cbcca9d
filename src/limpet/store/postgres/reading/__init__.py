"""Reading from a server: sessions, histories, states, pages and the feed."""

from limpet.store.postgres.reading.lineage import base_of, link_at
from limpet.store.postgres.reading.reader import LAST, LoadRequest, PostgresReader

__all__ = [
    "LAST",
    "LoadRequest",
    "PostgresReader",
    "base_of",
    "link_at",
]
