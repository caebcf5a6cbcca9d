"""Verification: sessions against their logs from the first event on, shared names row by row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

import msgspec

from limpet.errors import LimpetError
from limpet.model import (
    CREATED,
    EMPTY,
    Base,
    Event,
    Facts,
    Fold,
    Head,
    Key,
    ScopeKey,
    ScopeValue,
    blank,
    canonical,
    chain,
    checksum,
    is_input,
    processed_by,
    replay_any,
    scope_of,
)
from limpet.model.facts import phases
from limpet.model.facts.creation import FORKED
from limpet.model.facts.inputs import pending
from limpet.model.keys import is_staged
from limpet.store.coding.bodies import BY_OP, ScopeRow, scope_after, start_fold, unpack_scope
from limpet.store.coding.codec import Codec, Damaged
from limpet.store.protocol import ChainedEvent, Finding

Stored: TypeAlias = tuple[
    Event, bytes | None, bytes, bytes
]  # event, body if readable, salt, digest
_FOLDED: Final = ("version", "link", "updated_us", "active_us")  # leases are not in the log
Snapshots: TypeAlias = Mapping[int, Fold | None]  # by seq: the fold, if it can be read


def verify_session(
    now: Fold,
    stored: Iterable[Stored],
    snapshots: Snapshots = EMPTY,  # type: ignore[assignment]  # no seqs
    base: Base | None = None,
) -> Iterator[Finding]:
    """Every way in which the log, its chain and what was folded from it disagree."""
    log = LogVerifier(now, snapshots, base)
    for each in stored:
        yield from log.add(each)
    yield from log.end()


class LogVerifier:
    """One session's log, read event by event and compared with what was folded from it."""

    def __init__(self, now: Fold, snapshots: Snapshots, base: Base | None = None) -> None:
        self._now, self._snapshots, self._key = now, snapshots, now.head.key
        self._base = base
        blank_head = blank(now.head.key, now.head.uid, now.head.created_us)
        self._fold = Fold(blank_head) if base is None else start_fold(now.head, base)
        self._processed: dict[int, int] = {}  # by what events of processing say
        self._claimed: dict[int, int] = {}  # by what the inputs themselves say
        self._whole = True
        self._held = False  # inputs may wait since before the time that the log has

    def add(self, stored: Stored) -> Iterator[Finding]:
        """Yield the problems of the next event."""
        event, key, before = stored[0], self._key, self._fold.head
        expected = before.version + 1
        if not _follows(before, *stored):
            for problem in event_problems(before, *stored, expected):
                yield Finding("event", problem, key, event.seq)
        if event.seq == self._now.head.floor + 1:
            yield from _first_problems(key, self._now.head, event, self._base)
        self._whole = self._whole and event.data is not None and event.seq == expected
        if event.processed:
            self._claimed[event.seq] = event.processed
        done = processed_by(event.type, event.data)
        if done:
            self._processed.update(dict.fromkeys(done, event.seq))
        if not self._whole:  # what follows a hole cannot be folded; its own chain and body can be
            self._fold = Fold(_skip(before, event))
            return
        self._fold, applied = replay_any(self._fold, event)
        if self._fold.head.pending:
            fresh = not before.pending or done
            self._held = event.at_us == before.updated_us or (self._held and not fresh)
        if not applied:
            yield Finding("event", "has operations that do not fit the state", key, event.seq)
        if event.seq in self._snapshots:
            yield from _snapshot_problems(key, self._snapshots[event.seq], self._fold)

    def end(self) -> Iterator[Finding]:
        """Yield the problems of the whole log, after the last event."""
        key, now = self._key, self._now
        for seq in self._snapshots:
            if not now.head.floor < seq <= now.head.version:
                yield Finding("snapshot", "is of a version that is not in the log", key, seq)
        if self._whole:
            yield from _fold_problems(key, now, self._fold)
            if not self._waits(now.head.pending_us, self._fold.head.pending_us):
                yield Finding("head", "has another pending_us than its log says", key)
            if self._processed != self._claimed:
                yield Finding("event", "inputs are processed by other events than the log's", key)
        elif now.head.version != self._fold.head.version:
            yield Finding("head", f"is at version {now.head.version}, the log ends earlier", key)

    def _waits(self, since_us: int | None, folded_us: int | None) -> bool:
        """True if inputs may wait since then. By the clock, which is behind the log's time where it
        was set back: there an event has the very time of the one it follows."""
        if since_us is None or folded_us is None or not self._held:
            return since_us == folded_us
        return since_us <= folded_us


def _follows(before: Head, event: Event, raw: bytes | None, salt: bytes, digest: bytes) -> bool:
    """True if `event_problems` would find nothing: told at once, since nearly every event does."""
    if event.seq != before.version + 1 or event.damage is not None or raw is None:
        return False
    by_type, marked = is_input(event.type), event.processed is not None
    if event.at_us < before.updated_us or (by_type and not marked):
        return False
    names = (event.id, event.type, event.actor, event.cause, event.invocation_id)
    header = chain.header_digest(
        (*names, event.correlation_id, event.wake_id), marked=marked and not by_type
    )
    place = (before.link, event.seq, event.at_us, header, salt, raw)
    return chain.chained(*place) == (digest, event.link)


def event_problems(
    before: Head, event: Event, raw: bytes | None, salt: bytes, digest: bytes, expected: int
) -> Iterator[str]:
    """Every way in which an event does not follow the head before it."""
    if event.seq != expected:
        yield f"has seq {event.seq} where {expected} should follow"
        return
    if event.damage is not None:
        yield event.damage
    elif raw is not None and chain.body_digest(salt, raw) != digest:
        yield "has a body that its digest does not match"
    if event.at_us < before.updated_us:
        yield "was recorded before the event it follows"
    names = (event.id, event.type, event.actor, event.cause, event.invocation_id)
    by_type = is_input(event.type)
    marked = event.processed is not None and not by_type
    header = chain.header_digest((*names, event.correlation_id, event.wake_id), marked=marked)
    if chain.link(before.link, event.seq, event.at_us, header, digest) != event.link:
        yield "breaks the chain"
    if by_type and event.processed is None:
        yield "is an input and is not marked as one"


def _first_problems(key: Key, head: Head, event: Event, base: Base | None) -> Iterator[Finding]:
    if event.type != (CREATED if base is None else FORKED) or event.id != head.uid:
        yield Finding("event", "is not the creation of this session", key, event.seq)
    elif event.data is not None:
        if base is not None and event.data.get("base") != checksum(base.fields).hex():
            yield Finding("base", "is another state than the one the session began on", key)
        said = (event.data.get("app"), event.data.get("user"), event.data.get("id"))
        if said != (key.app, key.user, key.id) and not is_staged(key.app):
            yield Finding("head", "has another key than the one it was created with", key)
    if head.created_us != phases.creation_us(event.data or EMPTY, event.at_us):
        yield Finding("head", "has another time of creation than its first event", key)


def _snapshot_problems(key: Key, kept: Fold | None, fold: Fold) -> Iterator[Finding]:
    seq = fold.head.version
    if kept is None:
        yield Finding("snapshot", "cannot be read or fails its checksum", key, seq)
    elif _differ(kept, fold) or kept.head.link != fold.head.link:
        yield Finding("snapshot", "does not match the log", key, seq)
    elif _unlike(kept.head.facts, fold.head.facts):
        yield Finding("snapshot", "has other facts than the log", key, seq)
    elif _fold_digest(kept) != _fold_digest(fold):
        yield Finding("snapshot", "has other texts than the log", key, seq)


def _differ(one: Fold, other: Fold) -> bool:
    """Compare by canonical bytes: to Python 1, 1.0 and True are equal, and they are not the
    same."""
    return canonical([one.fields, one.versions]) != canonical([other.fields, other.versions])


def _fold_digest(fold: Fold) -> bytes:
    return canonical({str(seq): data for seq, data in fold.texts.items()})


def _fold_problems(key: Key, now: Fold, fold: Fold) -> Iterator[Finding]:
    for name in _FOLDED:
        if getattr(now.head, name) != getattr(fold.head, name):
            yield Finding("head", f"has another {name} than its log says", key)
    for name in _unlike(now.head.facts, fold.head.facts):
        yield Finding("head", f"has other {name} than its log says", key)
    leased = now.head.lease_us is not None  # or held back, which has no worker
    since = now.head.leased_us is not None
    if (now.head.worker is not None and not leased) or now.head.fence < leased or since != leased:
        yield Finding("head", "has a lease without an end or a fence", key)
    if _differ(now, fold):
        yield Finding("state", "does not match the log", key)


def _unlike(one: Facts, other: Facts) -> list[str]:
    """The facts that differ. `LogVerifier` compares since when inputs wait, by the clock."""
    names = {*one, *other} - {"inputs"}
    unlike = sorted(n for n in names if canonical(one.get(n)) != canonical(other.get(n)))
    return [*unlike, *(["inputs"] if pending(one) != pending(other) else [])]


def _skip(head: Head, event: Event) -> Head:
    times = (head.created_us, event.at_us, head.active_us)
    return Head(head.key, head.uid, event.seq, event.link, *times, floor=head.floor)


class ScopeCounter:
    """Counts what logs say of shared names, to compare it with their rows."""

    def __init__(self) -> None:
        self.writes = 0  # by events that were recorded here
        self.unread = 0  # events whose body cannot be read: what they did is not known
        self.adopted: set[tuple[str, int]] = set()  # uid and seq of adopted events that name some

    def add(self, uid: str, record: ChainedEvent, *, adopted: bool) -> Stored:
        """Count one event; what `LogVerifier.add` takes of it."""
        event = record.event
        scoped = 0
        if event.ops:
            scoped = sum([scope_of(str(op.path[0])) in ("app", "user") for op in event.ops])
        # An adopted event wrote no shared names, unless it was recorded here and came back.
        if not adopted:
            self.writes += scoped
        elif scoped:
            self.adopted.add((uid, event.seq))
        self.unread += event.data is None
        return event, record.raw, record.salt, record.digest

    def compare(self, rows: int) -> Iterator[Finding]:
        """Compare with the number of rows that no adopted event made."""
        if not self.unread and rows != self.writes:
            yield Finding("scope", "rows are missing or too many: the logs speak of another number")


class NameVerifier:
    """Every version of every name, in order, each made again from the one before."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._last: ScopeKey | None = None
        self._value: ScopeValue | None = None

    def add(self, key: ScopeKey, row: ScopeRow) -> Iterator[Finding]:
        before = self._value if key == self._last else None
        expected = 1 if before is None else before.version + 1
        where = f"version {row.version} of {key[2]} in {key[0]}/{key[1]}"
        if row.version != expected:
            yield Finding("scope", f"{where} stands where {expected} should")
        try:
            now = self._made(key, before, row)
        except (Damaged, msgspec.MsgspecError, LimpetError, AssertionError) as error:
            yield Finding("scope", f"{where} cannot be made: {error}")
            now = ScopeValue(row.version, None, False, "unknown")
        self._last, self._value = key, now

    def _made(self, key: ScopeKey, before: ScopeValue | None, row: ScopeRow) -> ScopeValue:
        raw = unpack_scope(self._codec, key, row)
        if row.form == BY_OP:
            assert row.base < row.version, "it has no base"
        else:
            assert row.base == row.version, "it needs no base and names one"
        return scope_after(key, before, row.version, row.form, raw)
