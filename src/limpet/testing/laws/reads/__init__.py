"""Laws of reading."""

from limpet.testing.laws.reads.feed import FeedLaws
from limpet.testing.laws.reads.heads import HeadLaws
from limpet.testing.laws.reads.ladder import LadderLaws
from limpet.testing.laws.reads.listing import ListLaws
from limpet.testing.laws.reads.live import LiveLaws
from limpet.testing.laws.reads.pages import PageLaws
from limpet.testing.laws.reads.reading import ReadLaws
from limpet.testing.laws.reads.reads import LookupLaws

__all__ = [
    "FeedLaws",
    "HeadLaws",
    "LadderLaws",
    "ListLaws",
    "LiveLaws",
    "LookupLaws",
    "PageLaws",
    "ReadLaws",
]
