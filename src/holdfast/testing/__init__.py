"""Suites and doubles that others can run against their own stores.

`contract.StoreContract` holds a store to the words of `holdfast.store.protocol`; `clock.FakeClock`
moves time by hand. Needs pytest and pytest-asyncio, which a plain install of holdfast does not.
"""
