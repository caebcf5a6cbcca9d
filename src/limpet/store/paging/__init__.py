"""Pages: cursors, selections and bounds."""

from limpet.store.paging.pages import PageBytes, bare, newest, page, walk, within
from limpet.store.paging.select import newest_since, wanted

__all__ = [
    "PageBytes",
    "bare",
    "newest",
    "newest_since",
    "page",
    "walk",
    "wanted",
    "within",
]
