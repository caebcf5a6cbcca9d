"""Planning a commit: from what is asked and what is there to what is to be written.

Pure but for the view it is given, and the same for every store: a store shows the planner its
present state, then writes the plan in one transaction. A refused commit raises here, before
anything was written, so it cannot harm its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.errors import (
    NotPending,
    SessionConflict,
    SessionExists,
    SessionFenced,
    SessionNotFound,
)
from holdfast.model.events import Commit, Event, Prepared
from holdfast.model.fold import (
    Fold,
    Record,
    ScopeKey,
    ScopeValue,
    ScopeWrite,
    record,
    scope_next,
    scope_ops,
)
from holdfast.model.head import CREATED, PROCESSED, blank
from holdfast.model.keys import Key
from holdfast.model.ops import scope_of
from holdfast.store.protocol import Committed


class View(Protocol):
    """A store's present state, as the planner asks for it. Must not change while planning."""

    def fold(self, key: Key) -> Fold | None:
        """The session now, None if it never was; raises SessionDeleted or SessionErased."""
        ...

    def recorded(self, key: Key, id: str) -> Event | None:
        """The event of a living session that was recorded under this id."""
        ...

    def pending(self, key: Key, seq: int) -> bool:
        """Whether this event is an input that no later event has processed."""
        ...

    def scope(self, key: ScopeKey) -> ScopeValue | None:
        """The newest version of a scope name."""
        ...

    def scopes(self, app: str, user: str) -> dict[str, ScopeValue]:
        """The newest version of every name that this user's sessions see."""
        ...


class Plan:
    """What a set of commits will write, and what to answer."""

    __slots__ = (
        "_now_us",
        "_salt",
        "_view",
        "answers",
        "folds",
        "given",
        "records",
        "scopes",
        "writes",
    )

    def __init__(self, view: View, now_us: int, salt: Callable[[], bytes]) -> None:
        self._view, self._now_us, self._salt = view, now_us, salt
        self.given: dict[tuple[Key, str], Event] = {}
        self.folds: dict[Key, Fold] = {}
        self.records: list[tuple[Key, Record]] = []
        self.scopes: dict[ScopeKey, ScopeValue] = {}
        self.writes: list[tuple[Key, ScopeWrite]] = []
        self.answers: tuple[Committed, ...] = ()

    def add(self, commits: Sequence[Commit]) -> None:
        """Plan the commits in order. Raises on the first that must be refused: drop the plan."""
        self.answers = tuple([self._add(commit) for commit in commits])

    def _add(self, commit: Commit) -> Committed:
        fold = self._fold(commit.key)
        events: list[Event | None] = [self._repeat(fold, commit.key, d) for d in commit.drafts]
        repeated = len(events) - events.count(None)
        scopes = self._scopes(commit.key) if fold is None else {}
        if repeated < len(events) or not events:
            fold = self._admit(commit, fold)
            for place, draft in enumerate(commit.drafts):
                if events[place] is None:
                    again = self._again(commit.key, draft) if draft.given else None
                    if again is not None:  # the same id twice in one commit: one event
                        events[place], repeated = again, repeated + 1
                        continue
                    fold, events[place] = self._record(commit.key, fold, draft, scopes)
            self.folds[commit.key] = fold
        assert fold is not None
        return Committed(
            tuple([event for event in events if event is not None]),
            fold.head,
            fold.fields,
            fold.versions,
            scopes,
            repeated,
        )

    def _fold(self, key: Key) -> Fold | None:
        return self.folds.get(key) or self._view.fold(key)

    def _repeat(self, fold: Fold | None, key: Key, draft: Prepared) -> Event | None:
        if not draft.given or fold is None:
            return None
        return self._again(key, draft) or self._view.recorded(key, draft.id)

    def _again(self, key: Key, draft: Prepared) -> Event | None:
        return self.given.get((key, draft.id))

    def _admit(self, commit: Commit, fold: Fold | None) -> Fold:
        """Compare the commit's conditions with what is there; the fold to record onto."""
        key, expect = commit.key, commit.expect
        if fold is None:
            if expect != 0:
                raise SessionNotFound(key)
            assert commit.drafts[0].type == CREATED
            return Fold(blank(key, commit.drafts[0].id, self._now_us))
        if expect == 0:
            raise SessionExists(key)
        if expect is not None and expect != fold.head.version:
            raise SessionConflict(key, "the session", expect, fold.head.version)
        if commit.fence is not None and commit.fence != fold.head.fence:
            raise SessionFenced(key, commit.fence, fold.head.fence)
        for name, version in commit.guards.items():
            actual = self._version_of(key, fold, name)
            if actual != version:
                raise SessionConflict(key, name, version, actual)
        return fold

    def _version_of(self, key: Key, fold: Fold, name: str) -> int:
        """The version of a name in state, whatever its scope; 0 if it is not there."""
        kind = scope_of(name)
        if kind == "session":
            return int(fold.versions.get(name, 0))
        scope = self._scope((key.app, "" if kind == "app" else key.user, name))
        return 0 if scope is None else scope.version

    def _record(
        self, key: Key, fold: Fold, draft: Prepared, scopes: dict[str, ScopeValue]
    ) -> tuple[Fold, Event]:
        if draft.type == PROCESSED:
            self._check_pending(key, draft)
        after, rec = record(fold, draft, self._now_us, self._salt())
        if draft.scoped:
            for scope_key, op in scope_ops(draft, key.app, key.user):
                value = scope_next(scope_key, self._scope(scope_key), op)
                self.scopes[scope_key] = scopes[scope_key[2]] = value
                write = ScopeWrite(scope_key, value, op, rec.event.seq)
                self.writes.append((key, write))
        self.records.append((key, rec))
        if draft.given:
            self.given[key, draft.id] = rec.event
        return after, rec.event

    def _check_pending(self, key: Key, draft: Prepared) -> None:
        done = {
            seq
            for planned, rec in self.records
            if planned == key and rec.event.type == PROCESSED and rec.event.data
            for seq in rec.event.data["seqs"]
        }
        new = {
            rec.event.seq
            for planned, rec in self.records
            if planned == key and rec.event.type.startswith("user.")
        }
        for seq in draft.data["seqs"]:
            if seq in done or not (seq in new or self._view.pending(key, seq)):
                raise NotPending(seq)

    def _scopes(self, key: Key) -> dict[str, ScopeValue]:
        """What a new session finds: stored names, and those this plan has written already."""
        found = self._view.scopes(key.app, key.user)
        planned = {
            k[2]: v for k, v in self.scopes.items() if k[0] == key.app and k[1] in ("", key.user)
        }
        return {**found, **planned}

    def _scope(self, key: ScopeKey) -> ScopeValue | None:
        return self.scopes.get(key) or self._view.scope(key)
