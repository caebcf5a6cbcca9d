"""functions.sql and its number, by which releases know whose functions are newer."""

from __future__ import annotations

import hashlib
from pathlib import Path

from limpet.store.postgres import connect

# One row for each release that changed functions.sql. A released row never changes.
DIGESTS = {1: "3ebaa597a0836945818ec3e9f161291eb3833d1496d8c916c03d490c9a4f9f30"}


def test_functions_that_changed_have_a_new_number() -> None:
    """Or an older release would take them for its own, and a newer one not replace them."""
    text = Path(connect.__file__).with_name("functions.sql").read_bytes()
    assert DIGESTS[connect.FUNCTIONS] == hashlib.sha256(text).hexdigest(), (
        "functions.sql changed: raise FUNCTIONS in connect.py and add its digest here"
    )
    assert max(DIGESTS) == connect.FUNCTIONS
