"""What stores answer with: commits, readings, pages, reports and certificates.

What a person may print is worded here: `str` of a report is a few lines, `repr` has every field.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from limpet.model import (
    EMPTY,
    NO_TEXTS,
    Event,
    FrozenDict,
    Head,
    Key,
    LastCheckpoint,
    ScopeValue,
    Texts,
    to_time,
)

Order: TypeAlias = Literal["created", "updated", "key"]
Ending: TypeAlias = Literal["deleted", "moved"]
Forks: TypeAlias = Literal["refuse", "erase", "keep"]  # what erase does to forks of a session
# What loads compare: the checksums of bodies, or the chain of events too.
Checked: TypeAlias = Literal["crc", "chain"]
Severity: TypeAlias = Literal["ok", "skipped", "warning", "problem"]  # skipped: it cannot be seen
# Whose keys a body is sealed with: a session by its uid; app: names, or one user's user: names, by
# a JSON array of app and user ("" for app: names), which no uid looks like.
KeyOwner: TypeAlias = str
Progress: TypeAlias = Callable[[int, int], None]  # done, total
Owner: TypeAlias = tuple[str, str]  # of shared names: an app and a user, or "" for the app's own
_FINDINGS_SHOWN: Final = 20


class Standing(NamedTuple):
    """Where a session stands: to remove it there, and not what was recorded since."""

    uid: str
    version: int | None  # None: any
    checkpoints: int | None = None  # the version of their log, 0 without one; None: any


class Exchange(msgspec.Struct, frozen=True):
    """One session takes the key of another, which ends as by `delete` with the ending "moved".

    It keeps its log, blobs, snapshots and uid, and fences count on from those of the other. Whoever
    reads the key finds the one session or the other.
    """

    key: Key
    at: Standing | None  # the session that ends under the key; None: no session may have it
    by: Key | None = None  # the key of the session that takes it; None: no session does


class Committed(msgspec.Struct, frozen=True, gc=False):
    """The result of one Commit: its events (first records for repeated drafts) and the session."""

    events: tuple[Event, ...]
    head: Head
    fields: FrozenDict
    versions: FrozenDict
    scopes: Mapping[str, ScopeValue]  # app: and user: names it changed; all of them if it created
    repeated: int = 0  # how many of the events were recorded before
    damaged: tuple[int, ...] = ()  # as of Loaded: what these events did is missing from fields
    token: str = ""  # names the commit to a causal read; empty where every read sees it
    texts: Texts = NO_TEXTS  # of the events that the head's facts name


class Loaded(msgspec.Struct, frozen=True):
    """A session as one consistent reading: head, state, scopes and the last events."""

    head: Head
    fields: FrozenDict
    versions: FrozenDict
    scopes: Mapping[str, ScopeValue]  # a value is unpacked when it is read; see store.scopes
    events: tuple[Event, ...]
    damaged: tuple[int, ...] = ()  # seqs whose bodies could not be read; state is without them
    checkpoint: LastCheckpoint | None = None  # None: not asked for, or it cannot be read
    texts: Texts = NO_TEXTS  # of the events that the head's facts name


class NameSince(msgspec.Struct, frozen=True, gc=False):
    """The changes of an app: or user: name since an event of a session that changed it."""

    before: ScopeValue | None  # before the session first changed it since; None: it never was
    version: int  # its newest
    others: bool  # whether another session changed it since, too


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which heads, in which order. Newest first unless `reverse` is False.

    `deleted` asks for tombstones instead of living sessions, in the order of their keys. Without an
    app, reserved apps (`$…`) are left out unless `reserved` is True.
    """

    app: str | None = None
    user: str | None = None
    labels: FrozenDict = EMPTY
    order: Order = "created"
    reverse: bool = True
    created_after_us: int | None = None
    created_before_us: int | None = None
    updated_after_us: int | None = None
    schema_version: str | None = None
    prefix: str = ""  # of the id, in order "key" of one user
    deleted: bool = False
    reserved: bool = False


class Page(msgspec.Struct, frozen=True):
    """Some heads, and where the next page begins (None: there is none).

    While there is a cursor a page may be short, even empty: a filter passed over many sessions, or
    states are large.
    """

    items: tuple[Head, ...]
    cursor: str | None
    # If they were asked for: session fields, app: and user: names in one mapping, by key.
    states: Mapping[Key, Mapping[str, Any]] = {}
    damaged: tuple[Key, ...] = ()  # sessions with an event that cannot be read: not in `states`


class Erasure(msgspec.Struct, frozen=True):
    """The certificate of a forgotten session: all that is left of it."""

    key_hash: bytes
    version: int
    link: bytes
    erased_us: int
    forks_kept: int = 0  # forks that keep the state they began on

    def __str__(self) -> str:
        at = to_time(self.erased_us).isoformat(timespec="seconds")
        kept = f"; {plural(self.forks_kept, 'fork')} kept" if self.forks_kept else ""
        return f"{self.key_hash.hex()[:16]} erased at version {self.version:,}, {at}{kept}"


class Erasures(msgspec.Struct, frozen=True):
    """The certificate of a forgotten user."""

    # Of the user as a whole: `version` counts the sessions, `link` covers them and the logs.
    user: Erasure
    sessions: tuple[Erasure, ...]
    names: int  # user: names of which every version was removed
    forks: tuple[Key, ...]  # of other users: they keep the state they began on
    children: tuple[Key, ...] = ()  # delegated by these sessions to other apps: they are left
    logs: tuple[Erasure, ...] = ()  # of the user's documents and of the sessions' checkpoints

    @classmethod
    def of(
        cls,
        mark: bytes,
        certificates: Sequence[Erasure],
        sessions: Collection[bytes],
        *,
        at_us: int,
        names: int,
        forks: Sequence[Key],
    ) -> Erasures:
        """All that was erased, told apart by the hashes of the keys that are sessions."""
        link = sha256(b"".join(sorted([each.link for each in certificates]))).digest()
        mine = tuple([each for each in certificates if each.key_hash in sessions])
        logs = tuple([each for each in certificates if each.key_hash not in sessions])
        whole = Erasure(mark, len(mine), link, at_us, len(forks))
        return cls(whole, mine, names, tuple(forks), logs=logs)

    def __str__(self) -> str:
        gone = f"{plural(len(self.sessions), 'session')}, {plural(self.names, 'user: name')} erased"
        kept = f"; kept, of other users: {', '.join(map(str, self.forks))}" if self.forks else ""
        left = f"; left in other apps: {', '.join(map(str, self.children))}"
        return gone + kept + (left if self.children else "")


class Finding(msgspec.Struct, frozen=True):
    """Something that is not as it should be, and where."""

    where: str
    problem: str
    key: Key | None = None
    seq: int | None = None

    def __str__(self) -> str:
        """One line: which session, which event, what is wrong."""
        place = "" if self.key is None else f"{self.key} "
        seq = "" if self.seq is None else f" {self.seq}"
        return f"{place}{self.where}{seq} {self.problem}"


class Report(msgspec.Struct, frozen=True):
    """The result of a verification: how much it read, and its findings."""

    sessions: int
    events: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not self.findings

    @property
    def read(self) -> str:
        """Return a line for people: how much was read."""
        return f"{plural(self.sessions, 'session')}, {plural(self.events, 'event')}"

    def __str__(self) -> str:
        if self.ok:
            return f"ok: {self.read} read, nothing is wrong."
        shown = list(map(str, self.findings[:_FINDINGS_SHOWN]))
        if more := len(self.findings) - len(shown):
            shown.append(f"and {more:,} more")
        return "\n".join([*shown, f"{plural(len(self.findings), 'finding')}: {self.read} read."])


class Restored(msgspec.Struct, frozen=True):
    """The result of a restore, and where it left what could not be replaced cleanly."""

    report: Report  # of the verification of what is in place now
    aside: Path | None  # None: there was nothing, or it was closed and replaced

    def __str__(self) -> str:
        aside = "" if self.aside is None else f"\nThe old store was kept as {self.aside}."
        return f"{self.report}{aside}"


class Check(msgspec.Struct, frozen=True):
    """One thing a doctor looked at: what was found and, where it is not well, what to do."""

    name: str
    found: str
    severity: Severity = "ok"
    advice: str = ""  # empty when ok

    @property
    def ok(self) -> bool:
        return self.severity == "ok"

    def __str__(self) -> str:
        advice = f"\n  → {self.advice}" if self.advice else ""
        return f"{self.severity}: {self.name}: {self.found}{advice}"


class Diagnosis(msgspec.Struct, frozen=True):
    """Every check of a store, and the report of its verification."""

    checks: tuple[Check, ...]
    report: Report

    @property
    def ok(self) -> bool:
        """No problem was found. Warnings, and what was skipped, are for those who read them."""
        return all(check.severity != "problem" for check in self.checks)

    @property
    def counted(self) -> str:
        """How many checks there are, and of which kind, for people."""
        found = [check.severity for check in self.checks]
        told = f"{plural(len(found), 'check')}, {plural(found.count('problem'), 'problem')}"
        told += f", {plural(found.count('warning'), 'warning')}"
        return told + (f", {found.count('skipped')} skipped" if "skipped" in found else "")

    def __str__(self) -> str:
        """Return a line for people: the problems, and the counts."""
        shown = [str(check) for check in self.checks if not check.ok]
        return "\n".join([*shown, f"{'ok' if self.ok else 'not ok'}: {self.counted}."])


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
