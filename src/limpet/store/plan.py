"""Planning commits: from what is asked and what is there to what is to be written.

Pure but for the view it is given, and the same for every store: a store shows the planner its
present state, adds the commits of its callers one after the other, then writes the plan in one
transaction. A refused commit raises here, before anything was written, and leaves the plan as it
was, so it cannot harm its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from msgspec import UNSET, structs

from limpet.errors import (
    InvalidEvent,
    LimpetError,
    NotPending,
    SessionConflict,
    SessionCorrupt,
    SessionDeleted,
    SessionExists,
    SessionFenced,
    SessionNotFound,
    SessionTyped,
)
from limpet.model import (
    CREATED,
    PROCESSING,
    Base,
    Commit,
    Event,
    Fold,
    Key,
    Prepared,
    Recorded,
    ScopeKey,
    ScopeValue,
    ScopeWrite,
    based,
    blank,
    checksum,
    encode,
    is_run,
    processed_by,
    record,
    record_run,
    scope_next,
    scope_of,
    scope_ops,
)
from limpet.model.adopt import check_followed, check_origin, folded, linked, runs, whole
from limpet.model.facts.creation import FORKED
from limpet.model.lease import admits, is_of, left_until, released
from limpet.store.protocol import Committed
from limpet.store.scopes import ScopeLimits, Scopes, Sizes

_STARTS: Final = frozenset({CREATED, FORKED})


class View(Protocol):
    """A store's present state, as the planner asks for it. Must not change while planning."""

    def fold(self, key: Key, *, reuse: bool = False) -> Fold | None:
        """The session now, None if it never was; raises SessionDeleted or SessionErased.

        `reuse`: None also if it was deleted, because the key may belong to a new session.
        """
        ...

    def ended(self, key: Key, uid: str) -> bool:
        """True if a session with this uid was deleted under the key."""
        ...

    def link_at(self, key: Key, seq: int) -> bytes | None:
        """The link of an event of a living session, if it has one with this seq. None, too, if that
        was removed with a session above."""
        ...

    def recorded(self, key: Key, id: str) -> Event | None:
        """The event that the session recorded under this id, if there is such a session."""
        ...

    def pending(self, key: Key, seq: int) -> bool:
        """True if this event is an input that no later event has processed."""
        ...

    def scope(self, key: ScopeKey) -> ScopeValue | None:
        """The newest version of a scope name."""
        ...

    def scope_version(self, key: ScopeKey) -> int:
        """The number of its newest version, which needs no value; 0 if it never was."""
        ...

    def scopes(self, app: str, user: str) -> Scopes:
        """The newest version of every name that this user's sessions see."""
        ...

    def names(self, app: str, user: str) -> Sizes | None:
        """Every name of one owner with its size, for `ScopeLimits`; None if it was not read."""
        ...


class Plan:
    """The writes of some commits: sessions as they will be, new records, new scope versions."""

    __slots__ = (
        "_inputs",
        "_lease_now_us",
        "_now_us",
        "_processed",
        "_salt",
        "_scanned",
        "_undo",
        "_view",
        "bases",
        "by_chosen_id",
        "folds",
        "pins",
        "records",
        "scope_limits",
        "scopes",
        "writes",
    )

    def __init__(
        self,
        view: View,
        now_us: int,
        salt: Callable[[], bytes],
        *,
        lease_now_us: int | None = None,
    ) -> None:
        """Events are dated `now_us`; leases are judged by it, or by `lease_now_us` if given."""
        self._view, self._now_us, self._salt = view, now_us, salt
        self._lease_now_us = now_us if lease_now_us is None else lease_now_us
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []
        self._scanned = 0
        self._inputs: set[tuple[Key, int]] = set()
        self._processed: dict[tuple[Key, int], Event] = {}
        self.folds: dict[Key, Fold] = {}
        self.records: list[tuple[Key, Recorded]] = []
        self.by_chosen_id: dict[tuple[Key, str], Recorded] = {}  # of `records`
        self.scopes: dict[ScopeKey, ScopeValue] = {}
        self.writes: list[tuple[Key, ScopeWrite]] = []
        self.bases: dict[Key, Base] = {}  # of sessions that this plan creates
        self.pins: list[tuple[Key, int, Fold]] = []  # states to keep, and the number of each
        self.scope_limits = ScopeLimits(view)

    def add(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        """Plan one caller's commits, all or none: a refusal raises and takes everything back."""
        if len(commits) == 1 and (answer := self.add_plain(commits[0])) is not None:
            return (answer,)
        records, writes, pins = len(self.records), len(self.writes), len(self.pins)
        self._undo.clear()
        self.scope_limits.begin()
        try:
            answers = tuple([self._add(commit) for commit in commits])
            self.scope_limits.settle()
            return answers
        except BaseException:
            for key, rec in self.records[records:]:
                self.by_chosen_id.pop((key, rec.event.id), None)
            del self.records[records:], self.writes[writes:], self.pins[pins:]
            if self._scanned > records:
                self._scanned = 0
                self._inputs.clear()
                self._processed.clear()
            for kept, key, before in reversed(self._undo):
                if before is None:
                    del kept[key]
                else:
                    kept[key] = before
            raise

    def add_plain(self, commit: Commit) -> Committed | None:
        """The common case on the hot path: one new event of a session that is there, plain or an
        input, and no conditions. It adds one record and nothing else. None if the commit is
        anything else, and then nothing was planned."""
        if (
            len(commit.drafts) != 1
            or commit.expect is not None
            or commit.fence is not None
            or commit.guards
            or commit.schema is not UNSET
            or commit.pin is not None
            or commit.release is not None
        ):
            return None
        (draft,) = commit.drafts
        is_input = draft.input and not draft.plain_ops
        if draft.caller_chose_id or not (draft.plain or is_input):  # what is adopted is chosen, too
            return None
        key = commit.key
        fold = self.folds.get(key) or self._view.fold(key)
        if fold is None or fold.damaged:
            return None
        head, uid = fold.head, commit.uid
        if uid is not None and uid != head.uid:
            return None
        if commit.classless and head.facts and head.schema_version is not None:
            return None
        after, rec = record(fold, draft, self._now_us, self._salt())
        self.records.append((key, rec))
        self.folds[key] = after
        left = (after.head, after.fields, after.versions)
        return Committed((rec.event,), *left, {}, texts=after.texts)

    def _add(self, commit: Commit) -> Committed:
        key = commit.key
        if not commit.drafts:
            return self._look(commit)
        fold = self.folds.get(key) or self._view.fold(key, reuse=commit.reuse)
        if fold is not None and commit.uid is not None and commit.uid != fold.head.uid:
            raise SessionDeleted(key)  # that one was; this is another under its key
        if fold is None and commit.reuse:
            self._check_retry(commit)
        scopes: dict[str, ScopeValue] = {}
        adopts = commit.drafts[0].origin is not None  # and asks for no shared names
        seen = self._scopes(key) if fold is None and not adopts else None
        events = [self._repeat(fold, key, d) if d.caller_chose_id else None for d in commit.drafts]
        before = len(self.records)
        if None in events:
            fold = self._admit(commit, fold)
            if adopts and events.count(None) == len(events):
                fold, events = self._adopt(key, fold, commit.drafts)
            elif len(events) > 1 and is_run(fold, commit.drafts):
                fold, recorded = record_run(fold, commit.drafts, self._now_us, self._salt)
                self.records += [(key, rec) for rec in recorded]
                events = [rec.event for rec in recorded]
            for place, draft in enumerate(commit.drafts):
                if events[place] is None and draft.caller_chose_id:
                    events[place] = self._twice(key, draft)  # the same id twice in one commit
                if events[place] is None:
                    fold, events[place] = self._record(commit, fold, draft, scopes)
            if commit.classless and fold.head.schema_version is not None:
                self._check_typed(key, fold.head.schema_version, before)
            fold = self._release(commit, fold)
            self._put(self.folds, key, fold)
            if commit.pin is not None:
                self.pins.append((key, commit.pin, fold))
        assert fold is not None
        if seen is not None:
            seen.learn(scopes)
        return Committed(
            tuple(events),  # type: ignore[arg-type]  # no None is left
            fold.head,
            fold.fields,
            fold.versions,
            scopes if seen is None else seen,
            len(events) - (len(self.records) - before),
            fold.damaged,
            texts=fold.texts,
        )

    def _check_retry(self, commit: Commit) -> None:
        """Raise SessionDeleted if this very creation was recorded, and what it made was deleted:
        a retry must not make another session with its uid."""
        first = commit.drafts[0]
        if (
            first.caller_chose_id
            and first.origin is None
            and self._view.ended(commit.key, first.id)
        ):
            raise SessionDeleted(commit.key)

    def _look(self, commit: Commit) -> Committed:
        """A commit without events: the session has to be there, and may be given a snapshot."""
        key, expect = commit.key, commit.expect
        if commit.pin is None and commit.uid is None:
            raise InvalidEvent(f"a commit to {key} has no events")
        fold = self.folds.get(key) or self._view.fold(key)
        if fold is None:
            raise SessionNotFound(key)
        if commit.uid not in (None, fold.head.uid):
            raise SessionDeleted(key)
        fold.head.check_here()
        if expect not in (None, fold.head.version):
            raise SessionConflict(key, "session", expect, fold.head.version)
        if commit.pin is not None:
            if fold.damaged:  # a snapshot must not hide that the log is damaged
                raise SessionCorrupt(key, f"event {fold.damaged[0]} cannot be read")
            self.pins.append((key, commit.pin, fold))
        return Committed((), fold.head, fold.fields, fold.versions, {}, texts=fold.texts)

    def _repeat(self, fold: Fold | None, key: Key, draft: Prepared) -> Event | None:
        origin = draft.origin
        if fold is None or (origin is not None and origin.seq > fold.head.version):
            return None  # adopted, and beyond what is here: it cannot be here
        event = self._planned_event(key, draft.id) or self._view.recorded(key, draft.id)
        if event is not None and origin is not None and event.link != origin.link:
            raise SessionConflict(key, "log", origin.seq - 1, event.seq)
        if event is None or event.processed is None:
            return _repeat_of(event)
        self._scan()
        by = self._processed.get((key, event.seq))  # by a commit of this very plan?
        if by is not None:
            event = structs.replace(event, processed=by.seq, processed_us=by.at_us)
        return _repeat_of(event)

    def _planned_event(self, key: Key, id: str) -> Event | None:
        """Return the event that this plan has recorded under an id that the caller chose."""
        planned = self.by_chosen_id.get((key, id))
        return None if planned is None else whole(planned).event

    def _twice(self, key: Key, draft: Prepared) -> Event | None:
        """The record that a draft before it, in this plan, made under its id."""
        event = self._planned_event(key, draft.id)
        if event is not None and draft.origin is not None:  # two events of one log never share one
            raise SessionConflict(key, "log", draft.origin.seq - 1, event.seq)
        return _repeat_of(event)

    def _admit(self, commit: Commit, fold: Fold | None) -> Fold:
        """Compare the commit's conditions with what is there; the fold to record onto."""
        key, expect = commit.key, commit.expect
        first = commit.drafts[0]
        if len(commit.drafts) > 1 and any([_is_start(draft) for draft in commit.drafts[1:]]):
            raise InvalidEvent("a session begins once, with its first event")
        creates = first.type == CREATED or commit.base is not None
        creates = creates and (expect == 0 or first.origin is not None)
        if fold is None:
            if not creates:
                raise SessionNotFound(key)
            fold = self._begin(commit)
            self._check_guards(commit, fold)
            return fold
        if expect is not None and expect != fold.head.version:
            if creates:
                raise SessionExists(key)
            raise SessionConflict(key, "session", expect, fold.head.version)
        if _is_start(first):
            raise SessionExists(key)
        fence = commit.fence if commit.release is None else commit.release.fence
        if commit.release is not None and not is_of(commit.release, fold.head):
            raise SessionFenced(key, commit.release.fence, fold.head.fence)
        if fence is not None and not admits(fold.head, fence, self._lease_now_us):
            raise SessionFenced(key, fence, fold.head.fence)
        if commit.schema is not UNSET and commit.schema != fold.head.schema_version:
            raise SessionConflict(key, "schema", commit.schema, fold.head.schema_version)
        # A decision may rest on the missing event, and a kept state would hide that it is missing.
        if fold.damaged and (commit.guards or commit.pin is not None):
            raise SessionCorrupt(key, f"event {fold.damaged[0]} cannot be read")
        self._check_guards(commit, fold)
        return fold

    def _check_guards(self, commit: Commit, fold: Fold) -> None:
        for name, version in commit.guards.items():
            actual = self._version_of(commit, fold, name)
            if actual != version:
                raise SessionConflict(commit.key, "name", version, actual, name)

    def _begin(self, commit: Commit) -> Fold:
        """Return the fold that a new session begins on: empty, or a state."""
        key, base, first = commit.key, commit.base, commit.drafts[0]
        at_us = self._now_us if first.origin is None else first.origin.at_us
        if base is None:
            return Fold(blank(key, first.id, at_us))
        named = (first.data or {}).get("base")
        if named != base.checksum.hex() or checksum(base.fields) != base.checksum:
            raise InvalidEvent(f"the first event of {key} names another state than it begins on")
        self._check_parent(base, adopts=first.origin is not None)
        self._put(self.bases, key, base)
        head = based(key, first.id, at_us, base.floor, base.link)
        return Fold(head, base.fields, base.versions)

    def _check_parent(self, base: Base, *, adopts: bool) -> None:
        """The parent is there and has the event that the new log goes on from.

        A log that is adopted may come without its parent: it has the state.
        """
        try:
            parent = self.folds.get(base.parent) or self._view.fold(base.parent)
        except LimpetError:
            parent = None
            if not adopts:
                raise
        if parent is None or parent.head.uid != base.uid:
            if adopts:
                return
            raise SessionNotFound(base.parent)
        if not adopts:
            parent.head.check_here()
        link = self._view.link_at(base.parent, base.floor)
        if link is None and 0 < base.floor <= parent.head.floor:
            return  # the parent began there on a session that is gone: there is nothing to compare
        if link != base.link:
            raise SessionConflict(base.parent, "session", base.floor, parent.head.version)

    def _release(self, commit: Commit, fold: Fold) -> Fold:
        """The fold without its lease, if the commit ends it."""
        if commit.release is None:
            return fold
        # The time that dates events decides if it is due for anything new.
        retry_us = left_until(fold.head, commit.release, self._now_us)
        after = released(fold.head, commit.release.fence, self._lease_now_us, retry_us)
        assert after is not None, "the fence was admitted"
        return Fold(after, fold.fields, fold.versions, fold.damaged, fold.texts)

    def _check_typed(self, key: Key, schema_version: str, before: int) -> None:
        """Raise SessionTyped if what was just recorded changes the fields of typed state.

        Looked at afterwards: the commit itself may have given the session its version.
        """
        for _, rec in self.records[before:]:
            if any([scope_of(str(op.path[0])) == "session" for op in rec.draft.plain_ops]):
                raise SessionTyped(key, schema_version)

    def _version_of(self, commit: Commit, fold: Fold, name: str) -> int:
        """The version of a name in state, whatever its scope; 0 if it is not there."""
        kind = scope_of(name)
        if kind == "session":
            return int(fold.versions.get(name, 0))
        app, user = commit.owner
        of: ScopeKey = (app, "" if kind == "app" else user, name)
        planned = self.scopes.get(of)
        return self._view.scope_version(of) if planned is None else planned.version

    def _record(
        self, commit: Commit, fold: Fold, draft: Prepared, scopes: dict[str, ScopeValue]
    ) -> tuple[Fold, Event]:
        key = commit.key
        if draft.type in PROCESSING:
            self._check_pending(key, draft)
        origin = draft.origin
        salt = self._salt() if origin is None else origin.salt
        after, rec = record(fold, draft, self._now_us, salt)
        if origin is not None:
            check_origin(key, fold.head.version, fold.head.updated_us, rec)
        if draft.scoped and origin is None:  # shared names are not the adopted session's to write
            for scope_key, op in scope_ops(draft, *commit.owner):
                before = self.scopes.get(scope_key) or self._view.scope(scope_key)
                value = scope_next(scope_key, before, op)
                whole = b"" if value.deleted else encode(value.value)
                self.scope_limits.put(scope_key, before, value, len(whole))
                self._put(self.scopes, scope_key, value)
                scopes[scope_key[2]] = value
                self.writes.append((key, ScopeWrite(scope_key, value, op, rec.event.seq, whole)))
        self.records.append((key, rec))
        if draft.caller_chose_id:
            self.by_chosen_id[key, draft.id] = rec
        return after, rec.event

    def _adopt(
        self, key: Key, fold: Fold, drafts: Sequence[Prepared]
    ) -> tuple[Fold, list[Event | None]]:
        """Record a run of events that another store has recorded, none of which is here."""
        made: list[Event | None] = []
        before = fold.head.facts
        for some in runs(drafts):
            if some[0].type in PROCESSING:
                self._check_pending(key, some[0])
            after, recorded = linked(key, fold, some)
            at_us = fold.head.updated_us
            for rec in recorded:
                event, of = rec.event, (key, rec.event.id)
                check_origin(key, event.seq - 1, at_us, rec)
                if of in self.by_chosen_id:  # two events of one log never share one
                    twice = self.by_chosen_id[of].event
                    raise SessionConflict(key, "log", event.seq - 1, twice.seq)
                self.by_chosen_id[of] = rec
                self.records.append((key, rec))
                made.append(event)
                at_us = event.at_us
            fold = folded(fold, after, some)
        check_followed(before, fold.head.facts)
        return fold, made

    def _check_pending(self, key: Key, draft: Prepared) -> None:
        done = processed_by(draft.type, draft.data)
        if done:
            self._scan()
        for seq in done:
            new = (key, seq) in self._inputs
            if (key, seq) in self._processed or not (new or self._view.pending(key, seq)):
                raise NotPending(seq)

    def _scan(self) -> None:
        """Note which inputs the records of this plan bring and process, each record once."""
        for key, rec in self.records[self._scanned :]:
            event = rec.event
            if event.processed is not None:
                self._inputs.add((key, event.seq))
            elif event.type in PROCESSING:
                done = processed_by(event.type, event.data)
                self._processed.update({(key, seq): event for seq in done})
        self._scanned = len(self.records)

    def _scopes(self, key: Key) -> Scopes:
        """Return the names that a new session sees: stored, and written by this plan already."""
        scopes = self._view.scopes(key.app, key.user).copy()
        planned = self.scopes.items()
        seen = {of[2]: v for of, v in planned if of[0] == key.app and of[1] in ("", key.user)}
        scopes.learn(seen)
        return scopes

    def _put(self, kept: dict[Any, Any], key: Any, value: object) -> None:
        self._undo.append((kept, key, kept.get(key)))
        kept[key] = value


def _is_start(draft: Prepared) -> bool:
    """True if a session begins with this event. What another store recorded has its place."""
    return draft.type in _STARTS and draft.origin is None


def _repeat_of(event: Event | None) -> Event | None:
    """The record as it is returned for a repeat. A copy: the first answer may have the record."""
    return None if event is None else structs.replace(event, repeated=True)
