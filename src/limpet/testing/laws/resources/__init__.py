"""Laws of shared names, documents, blobs, marks and users."""

from limpet.testing.laws.resources.blobs import BlobLaws, DurableBlobLaws, SharedBlobLaws
from limpet.testing.laws.resources.documents import DocumentLaws
from limpet.testing.laws.resources.marks import DurableMarkLaws, MarkLaws, SharedMarkLaws
from limpet.testing.laws.resources.names import NameLaws
from limpet.testing.laws.resources.scopes import ScopeLaws
from limpet.testing.laws.resources.shared import SharedLaws
from limpet.testing.laws.resources.users import UserLaws

__all__ = [
    "BlobLaws",
    "DocumentLaws",
    "DurableBlobLaws",
    "DurableMarkLaws",
    "MarkLaws",
    "NameLaws",
    "ScopeLaws",
    "SharedBlobLaws",
    "SharedLaws",
    "SharedMarkLaws",
    "UserLaws",
]
