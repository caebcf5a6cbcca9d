"""Reading a database: sessions, histories, states, pages and the feed."""

from limpet.store.sqlite.reading.feed import retire
from limpet.store.sqlite.reading.records import sized

__all__ = [
    "retire",
    "sized",
]
