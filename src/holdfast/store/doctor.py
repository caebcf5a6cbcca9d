"""What a verification found, as checks: the part of a diagnosis that is the same for every store.

A store's own doctor looks at how it is kept (settings, versions, clocks); this looks at what was
read. Pure: a report goes in, checks come out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.store.codec import NO_SEAL
from holdfast.store.protocol import Check, Finding, Report

# Which findings belong to which check: the name, where they are found, what holds if there are
# none, and what to do if there are some.
_READ: Final = (
    (
        "log",
        ("event", "session"),
        "chain, checksums and seqs hold",
        "Keep a copy of the store as it is. Sessions that are not named are whole; restore those "
        "that are from a backup, and look at the disk and the memory of this machine.",
    ),
    (
        "folds",
        ("head", "state", "snapshot", "scope"),
        "heads and state are what the log amounts to",
        "Something else than Holdfast wrote to the store, or it rotted. Keep a copy and restore "
        "what is named from a backup.",
    ),
    (
        "indexes",
        ("label", "file"),
        "nothing disagrees with the tables",
        "Keep a copy, then restore from a backup. Do not write to the store before.",
    ),
)
_UNSEALED: Final = "Call hf.doctor() in a program that opens the store with its seal."
_SHOWN: Final = 3


def read_checks(report: Report) -> tuple[Check, ...]:
    """One check for each kind of thing that a verification reads."""
    locked = [finding for finding in report.findings if NO_SEAL in finding.problem]
    broken = [finding for finding in report.findings if NO_SEAL not in finding.problem]
    checks = [
        _of([f for f in broken if f.where in wheres], name, _holds(name, holds, report), advice)
        for name, wheres, holds, advice in _READ
    ]
    if locked:
        found = "sealed bodies could not be opened; their chain and checksums were checked"
        checks.append(Check("seal", found, "warning", _UNSEALED))
    return tuple(checks)


def listed(items: Iterable[str]) -> str:
    """The first few of many, for people."""
    items = list(items)
    more = len(items) - _SHOWN
    return "; ".join(items[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def finding_line(finding: Finding) -> str:
    """A finding in one line: which session, which event, what is wrong."""
    place = "" if finding.key is None else f"{finding.key} "
    seq = "" if finding.seq is None else f" {finding.seq}"
    return f"{place}{finding.where}{seq} {finding.problem}"


def plural(count: int, what: str) -> str:
    """So many of them, for people."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def size(count: float) -> str:
    """Bytes, for people."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1_024:
            return f"{count:.0f} {unit}"
        count /= 1_024
    return f"{count:.1f} GiB"


def _holds(name: str, holds: str, report: Report) -> str:
    if name != "log":
        return holds
    return f"{plural(report.sessions, 'session')}, {plural(report.events, 'event')}: {holds}"


def _of(findings: list[Finding], name: str, holds: str, advice: str) -> Check:
    if not findings:
        return Check(name, holds)
    return Check(name, listed(map(finding_line, findings)), "problem", advice)
