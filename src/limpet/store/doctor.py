"""The findings of a verification as checks, the same for every store.

A store's own doctor looks at how it is kept (settings, versions, clocks); this looks at what was
read. Pure: a report goes in, checks come out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from limpet.store.coding.codec import NO_SEAL
from limpet.store.protocol import Check, Finding, Report

_PARTS: Final = {"event": "log", "session": "log", "label": "indexes", "file": "indexes"}
_HOLDS: Final = {
    "log": "chain, checksums and seqs hold",
    "folds": "heads and state match the log",
    "indexes": "nothing disagrees with the tables",
}
_ADVICE: Final = {
    "log": "Keep a copy of the store as it is. Sessions that are not named are whole: restore the "
    "whole store from a backup, or open the backup beside it and carry the state of those that "
    "are named over. Look at the disk and the memory of this machine.",
    "folds": "If a build before 0.1.0 has written to the store, copy it with limpet copy STORE NEW "
    "and go on with NEW: a copy folds every log again. Otherwise something else than Limpet wrote "
    "to the store, or it rotted. Keep a copy; restore the whole store from a backup, or open the "
    "backup beside it and carry the state of the sessions that are named over.",
    "indexes": "Keep a copy, then restore the whole store from a backup. Do not write to the "
    "store before.",
}
_UNSEALED: Final = (
    "Pass --keys (or LIMPET_KEYS). With a seal of your own, call lp.maintenance.doctor() in a "
    "program that opens the store with it."
)
_SHOWN: Final = 3


def read_checks(report: Report) -> tuple[Check, ...]:
    """One check for each kind of thing that a verification reads."""
    locked = [finding for finding in report.findings if NO_SEAL in finding.problem]
    broken = damage(report)
    checks = [_part(name, report, [f for f in broken if _name(f) == name]) for name in _HOLDS]
    if locked:
        text = "sealed bodies could not be opened; their chain and checksums were checked"
        checks.append(Check("seal", text, "warning", _UNSEALED))
    return tuple(checks)


def damage(report: Report) -> tuple[Finding, ...]:
    """Return the findings, except sealed bodies that could not be opened without a seal."""
    return tuple(finding for finding in report.findings if NO_SEAL not in finding.problem)


def listed(items: Iterable[str]) -> str:
    """The first few of many, for people."""
    items = list(items)
    more = len(items) - _SHOWN
    return "; ".join(items[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _name(finding: Finding) -> str:
    """The check that a finding belongs to: what is not of the log or an index is folded."""
    return _PARTS.get(finding.where, "folds")


def _part(name: str, report: Report, findings: list[Finding]) -> Check:
    if findings:
        return Check(name, listed(map(str, findings)), "problem", _ADVICE[name])
    if name != "log":
        return Check(name, _HOLDS[name])
    return Check(name, f"{report.read}: {_HOLDS[name]}")
