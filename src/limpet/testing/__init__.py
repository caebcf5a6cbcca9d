"""Suites and doubles that others can run against their own stores.

`contract.StoreContract` tests a store against `limpet.store.protocol`; `clock.FakeClock` moves time
by hand. The suites need pytest and pytest-asyncio, which a plain install of limpet does not
include; the clock does not need them.
"""

import sys

if "pytest" in sys.modules:
    import pytest

    # Before these modules are imported, so that a failed assertion of theirs shows its values.
    pytest.register_assert_rewrite("limpet.testing.commits", "limpet.testing.laws")
