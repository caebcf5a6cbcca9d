"""Laws of reading."""

from limpet.testing.laws.reads.feed import FeedLaws
from limpet.testing.laws.reads.heads import HeadLaws
from limpet.testing.laws.reads.listing import ListLaws
from limpet.testing.laws.reads.live import LiveLaws
from limpet.testing.laws.reads.lookup import LookupLaws
from limpet.testing.laws.reads.pages import PageLaws
from limpet.testing.laws.reads.reading import ReadLaws
from limpet.testing.laws.reads.snapshots import SnapshotLaws

__all__ = [
    "FeedLaws",
    "HeadLaws",
    "ListLaws",
    "LiveLaws",
    "LookupLaws",
    "PageLaws",
    "ReadLaws",
    "SnapshotLaws",
]
