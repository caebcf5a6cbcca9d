"""Scope names in a batch: those that its jobs write, and those that they only rely on.

Whether a name moved, and whether its owner has room for another, the server judges under a lock.
"""

from __future__ import annotations

from collections.abc import Container

from limpet.model import (
    SCOPE_NAMES_EVER_MAX,
    SCOPE_NAMES_MAX,
    Commit,
    Key,
    ScopeKey,
    ScopeWrite,
    scope_of,
)
from limpet.store.cache import CachedScope
from limpet.store.coding import BY_OP, Codec, scope_body, scope_place
from limpet.store.planning.plan import Plan
from limpet.store.postgres.writing.columns import BatchTables
from limpet.store.postgres.writing.view import PostgresView
from limpet.store.protocol import Owner


class BatchNames:
    """Belongs to one batch, and adds to its tables."""

    def __init__(self, plan: Plan, view: PostgresView, codec: Codec, tables: BatchTables) -> None:
        self._plan, self._view, self._codec, self._tables = plan, view, codec, tables
        self._places: dict[ScopeKey, int] = {}
        self._now: dict[ScopeKey, CachedScope] = {}
        self._added: dict[Owner, set[str]] = {}  # names that are not stored yet
        self._first: dict[Owner, set[str]] = {}  # of those, names that never were
        self._left: list[tuple[int, ScopeKey, CachedScope]] = []

    def write(self, job: int, head: int, uid: str, write: ScopeWrite) -> None:
        """A new version of a name, by a job and an event of the session at `head`."""
        name, version = write.key, write.at.version
        stored = self._view.known.get(name)
        before = self._now.get(name) or stored
        place = self._places.get(name)
        if place is None:
            made_by = (None, None) if stored is None else stored.made_by
            place = self._places[name] = self._tables["n"].add(*name, version - 1, *made_by)
        self._tables["w"].add(job, place)
        if not write.at.deleted and (stored is None or stored.value.deleted):
            self._add(job, name, never=stored is None)
        form, raw, since = scope_body(write, -1 if before is None else before.since_base)
        base = version if form != BY_OP or before is None else before.base
        size, made_by = len(write.whole), (uid, write.seq)
        live = CachedScope(write.at, base, since, self._view.era, size, made_by)
        self._now[name] = live
        self._left.append((job, name, live))
        place_of = scope_place(name, version, base, form, uid, write.seq)
        packed = self._codec.pack(raw, place_of, bound=True)
        row = (job, place, version, base, form, *packed, head, write.seq)
        self._tables["s"].add(*row, *_counted(before, write))

    def guard(self, job: int, commit: Commit) -> None:
        """Names that were only looked at must not have moved either."""
        app, user = commit.owner
        for name in commit.guards:
            kind = scope_of(name)
            if kind in ("app", "user"):
                key = (app, "" if kind == "app" else user, name)
                place = self._places.get(key)
                if place is None:
                    base = self._view.scope_version(key)
                    place = self._places[key] = self._tables["n"].add(*key, base, None, None)
                self._tables["w"].add(job, place)

    def find(self, job: int, key: Key) -> None:
        """The job creates a session, whose creator is shown what jobs before it write."""
        for name in self._now:
            if name[0] == key.app and name[1] in ("", key.user):
                self._tables["w"].add(job, self._places[name])

    def make_room(self) -> None:
        """How many names each owner may have before those of this batch are added."""
        for owner, added in self._added.items():
            place, first = self._places[*owner, ""], len(self._first.get(owner, ()))
            live, ever = self._plan.room.live(owner), self._view.names(*owner) or ()
            most = max(SCOPE_NAMES_MAX - len(added), live)
            past = max(SCOPE_NAMES_EVER_MAX - first, len(ever))
            self._tables["n"].rows[place - 1] = (*owner, "", most, "", past)

    def left(self, refused: Container[int]) -> dict[ScopeKey, CachedScope]:
        """The names as all jobs but these left them."""
        return {key: live for job, key, live in self._left if job not in refused}

    def _add(self, job: int, name: ScopeKey, *, never: bool) -> None:
        """The job adds a name to those that are stored: whether there is room for it the server
        knows, under a lock. Each name once, however often the batch writes it."""
        owner = name[:2]
        place = self._places.get((*owner, ""))
        if place is None:
            place = self._places[*owner, ""] = self._tables["n"].add(*owner, "", 0, "", 0)
        self._tables["w"].add(job, place)
        self._added.setdefault(owner, set()).add(name[2])
        if never:
            self._first.setdefault(owner, set()).add(name[2])


def _counted(before: CachedScope | None, write: ScopeWrite) -> tuple[int | None, int | None]:
    """By how many names, and by how many that never were, a write changes those of its owner."""
    was = before is not None and not before.value.deleted
    more, first = (not write.at.deleted) - was, int(before is None)
    return (more, first) if more or first else (None, None)
