"""Laws of what stands beside a session: names, documents, blobs, marks."""

from limpet.testing.laws.beside.blobs import BlobLaws, DurableBlobLaws, SharedBlobLaws
from limpet.testing.laws.beside.documents import DocumentLaws
from limpet.testing.laws.beside.marks import DurableMarkLaws, MarkLaws, SharedMarkLaws
from limpet.testing.laws.beside.names import NameLaws
from limpet.testing.laws.beside.scopes import ScopeLaws
from limpet.testing.laws.beside.shared import SharedLaws
from limpet.testing.laws.beside.users import UserLaws

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
