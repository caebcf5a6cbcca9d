"""functions.sql and its number, by which releases know whose functions are newer."""

from __future__ import annotations

import hashlib

from limpet.store.postgres.server import schema
from limpet.store.postgres.sql import script

# One row for each release that changed functions.sql. A released row never changes.
DIGESTS = {1: "bbabced783253e84d82182e87ba950331f57eba03018899fe2af5139b126cc17"}


def test_functions_that_changed_have_a_new_number() -> None:
    """Or an older release would take them for its own, and a newer one not replace them."""
    text = script("functions").encode()
    assert DIGESTS[schema.FUNCTIONS] == hashlib.sha256(text).hexdigest(), (
        "functions.sql changed: raise FUNCTIONS in server/schema.py and add its digest here"
    )
    assert max(DIGESTS) == schema.FUNCTIONS
