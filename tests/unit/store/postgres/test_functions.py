"""functions.sql and its number, by which releases know whose functions are newer."""

from __future__ import annotations

import hashlib

from limpet.store.postgres.server import schema
from limpet.store.postgres.sql import SCRIPTS

# One row for each release that changed functions.sql. A released row never changes.
DIGESTS = {
    1: "db59852a7d524b7f2d05515ddabbd3cb9cdfa2f0423e92d335c85b65b99f7a08",
    2: "d61ea5663bb65a9f9a6f1197076ebd01fd80be323e97b99871c26014c9146bf7",
    3: "4fb6d79f1359929c81598b648e0968e68b4aa2d7ee07dc3bd11126b84684a121",
    4: "8340cfae49d72299f02fed1b4cf01c792ff68eb1acf4352a7a02f433ae86b5e6",
}


def test_functions_that_changed_have_a_new_number() -> None:
    """Or an older release would take them for its own, and a newer one not replace them."""
    text = SCRIPTS["functions"].encode()
    assert DIGESTS[schema.FUNCTIONS] == hashlib.sha256(text).hexdigest(), (
        "functions.sql changed: raise FUNCTIONS in server/schema.py and add its digest here"
    )
    assert max(DIGESTS) == schema.FUNCTIONS
