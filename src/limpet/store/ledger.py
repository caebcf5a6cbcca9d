"""The ledger: how many tombstones and certificates there are, so that one that is lost is missed.

No log is left of a deleted session, nor of an erased one. So a store keeps
their number and the sum of their checksums beside them, changed in the transaction that ends a
session. Both are independent of order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from limpet.store.protocol import Finding


class Ledger(NamedTuple):
    """Counts and sums of checksums; as a change, what is added to them."""

    tombs: int = 0
    tomb_sum: int = 0
    erased: int = 0
    erased_sum: int = 0

    def plus(self, change: Ledger) -> Ledger:
        return Ledger(*[mine + more for mine, more in zip(self, change, strict=True)])


def buried(crc: int) -> Ledger:
    """The change by one more tombstone."""
    return Ledger(1, crc)


def unburied(crc: int) -> Ledger:
    """The change by one tombstone less."""
    return Ledger(-1, -crc)


def erased(crc: int) -> Ledger:
    """The change by one more certificate."""
    return Ledger(0, 0, 1, crc)


def compare(kept: Ledger, ledger: Ledger) -> Iterator[Finding]:
    """Yield the findings: rows that are missing, added, or not as they were written."""
    if kept[:2] != ledger[:2]:
        yield Finding("tombstone", _differ(kept.tombs, ledger.tombs))
    if kept[2:] != ledger[2:]:
        yield Finding("erasure", _differ(kept.erased, ledger.erased))


def _differ(kept: int, counted: int) -> str:
    if kept == counted:
        return "is not in the store's ledger"
    return f"rows are missing or too many: {counted:,} where the store's ledger has {kept:,}"
