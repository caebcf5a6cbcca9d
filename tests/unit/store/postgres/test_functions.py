"""functions.sql and its number, by which releases know whose functions are newer."""

from __future__ import annotations

import hashlib
from pathlib import Path

from limpet.store.postgres import connect

# One row for each release that changed functions.sql. A released row never changes.
DIGESTS = {1: "bdd221f1f71c77fa65682860660089ad4a90225429146632dd2a6c0e227c6fda"}


def test_functions_that_changed_have_a_new_number() -> None:
    """Or an older release would take them for its own, and a newer one not replace them."""
    text = Path(connect.__file__).with_name("functions.sql").read_bytes()
    assert DIGESTS[connect.FUNCTIONS] == hashlib.sha256(text).hexdigest(), (
        "functions.sql changed: raise FUNCTIONS in connect.py and add its digest here"
    )
    assert max(DIGESTS) == connect.FUNCTIONS
