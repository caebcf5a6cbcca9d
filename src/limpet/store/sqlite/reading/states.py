"""States of a page of sessions, read together: snapshots, events since, and shared names.

A few statements for the whole page, in the instant in which its heads are read. If a page of the
file is broken, each session is read by itself, so that only that one is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeAlias

import apsw
import msgspec

from limpet.model import Fold, FrozenDict, Head, Key, ScopeValue, blank, limits, replay_any
from limpet.store.coding import Unready
from limpet.store.protocol import Page, Query, scope_fields
from limpet.store.sqlite import rows
from limpet.store.sqlite.reading import heads
from limpet.store.sqlite.reading.reader import SQLiteReader
from limpet.store.sqlite.sql import SQL

KnownFold: TypeAlias = Callable[[Head], Fold | None]  # what is in memory of a session at this head
NamesByOwner: TypeAlias = dict[tuple[str, str], dict[str, ScopeValue]]  # by app and user
_BROKEN = (apsw.CorruptError, UnicodeDecodeError)


def page(
    reader: SQLiteReader, known: KnownFold, query: Query, *, cursor: str | None, limit: int
) -> Page:
    """A page of heads with their states. To be called within one instant."""
    found, more = heads.rows_of(reader.conn, query, cursor=cursor, limit=limit)
    kept = [(row[0], rows.head_from(row)) for row in found]
    folds = {head.key: fold for _, head in kept if (fold := known(head)) is not None}
    count = _within(reader, kept, [sid for sid, head in kept if head.key not in folds])
    if count < len(kept):
        kept, more = kept[:count], heads.cursor_after(found[count - 1], query)
    try:
        folds |= _folded(reader, [(sid, head) for sid, head in kept if head.key not in folds])
        names = _names(reader, [head.key for _, head in kept])
    except Unready as needed:  # ask for the keys of the whole page, not for one at a time
        reader.codec.sealer.require([*needed.owners, *[head.uid for _, head in kept]])
        raise
    listed = tuple([head for _, head in kept])
    states = {
        head.key: FrozenDict({**folds[head.key].fields, **_shared(names, head.key)})
        for head in listed
        if head.key in folds and _owners(head.key) <= names.keys()
    }
    damaged = tuple([head.key for head in listed if head.key not in states])
    return Page(listed, more, states, damaged)


def _within(reader: SQLiteReader, kept: list[tuple[int, Head]], unread: list[int]) -> int:
    """How many of them to read, by the bytes that it takes: one at least."""
    try:
        found: Any = reader.conn.execute(SQL["state_sizes"], (_listed(unread),)).fetchall()
        shared = _shared_sizes(reader, [head.key for _, head in kept])
    except _BROKEN:
        return len(kept)
    sizes, total = dict(found), 0
    for count, (sid, head) in enumerate(kept):
        if total > limits.STATES_BYTES_MAX:
            return count
        total += sizes.get(sid, 0) + shared[head.key]
    return len(kept)


def _shared_sizes(reader: SQLiteReader, keys: list[Key]) -> dict[Key, int]:
    """What the names that each session sees add to a page: their values for the first who sees
    them, a place in its state for everybody. No more of them are met than fit a page."""
    owners = list(dict.fromkeys([(key.app, user) for key in keys for user in ("", key.user)]))
    most = limits.STATES_BYTES_MAX // limits.STATES_NAME_BYTES + 1 + len(owners)
    names, values = [0] * len(owners), [0] * len(owners)
    ended: set[int] = set()
    for place, size in reader.conn.execute(SQL["scope_sizes_of"], (_listed(owners), most)):
        if size is None:
            ended.add(place)
        else:
            names[place] += 1
            values[place] += size
    for place in set(range(len(owners))) - ended:  # it alone is more than fits
        values[place] += limits.STATES_BYTES_MAX + 1
    places, sizes = {owner: place for place, owner in enumerate(owners)}, {}
    for key in keys:
        seen = [places[key.app, ""], places[key.app, key.user]]
        sizes[key] = sum(names[place] * limits.STATES_NAME_BYTES + values[place] for place in seen)
        for place in seen:
            values[place] = 0
    return sizes


def _folded(reader: SQLiteReader, wanted: list[tuple[int, Head]]) -> dict[Key, Fold]:
    """The sessions at their heads, without those of which an event cannot be read."""
    if not wanted:
        return {}
    try:
        found = _in_bulk(reader, wanted)
    except _BROKEN:
        found = {head.key: _alone(reader, sid, head) for sid, head in wanted}
    return {key: fold for key, fold in found.items() if fold is not None}


def _in_bulk(reader: SQLiteReader, wanted: list[tuple[int, Head]]) -> dict[Key, Fold | None]:
    by_sid = dict(wanted)
    folds = {sid: Fold(blank(head.key, head.uid, head.created_us)) for sid, head in wanted}
    apart = {sid for sid, head in wanted if head.floor}  # that begin on a state
    for sid, *row in reader.conn.execute(SQL["snapshots_of"], (_listed(by_sid),)):
        found = reader.snapshot_in(tuple(row), by_sid[sid])
        if found is None:
            apart.add(sid)
        else:
            folds[sid] = found[0]
            apart.discard(sid)
    folds = {sid: fold for sid, fold in folds.items() if sid not in apart}
    whole = dict.fromkeys(folds, True)
    since = _listed([[sid, fold.head.version] for sid, fold in folds.items()])
    for sid, *row in reader.conn.execute(SQL["events_of"], (since,)):
        event = reader.event_from(tuple(row), by_sid[sid].uid)
        dense = event.seq == folds[sid].head.version + 1
        folds[sid], readable = replay_any(folds[sid], event)
        whole[sid] = whole[sid] and dense and readable
    for sid, fold in folds.items():
        whole[sid] = whole[sid] and fold.head.version == by_sid[sid].version
    made = {by_sid[sid].key: fold if whole[sid] else None for sid, fold in folds.items()}
    return made | {by_sid[sid].key: _alone(reader, sid, by_sid[sid]) for sid in apart}


def _alone(reader: SQLiteReader, sid: int, head: Head) -> Fold | None:
    try:
        found = reader.found(sid, head)
    except _BROKEN:
        return None
    return None if found.fold.damaged else found.fold


# --- shared names --------------------------------------------------------------------------------


def _owners(key: Key) -> set[tuple[str, str]]:
    """Whose names a session sees: its app's own, and its user's."""
    return {(key.app, ""), (key.app, key.user)}


def _names(reader: SQLiteReader, keys: Iterable[Key]) -> NamesByOwner:
    """The newest version of every name that these sessions see, each owner's read once.

    An owner whose names lie on a broken page of the file is left out.
    """
    owners = sorted({owner for key in keys for owner in _owners(key)})
    try:
        return _names_of(reader, owners)
    except _BROKEN:
        found: NamesByOwner = {}
        for owner in owners:
            with suppress(*_BROKEN):
                found |= _names_of(reader, [owner])
        return found


def _names_of(reader: SQLiteReader, owners: list[tuple[str, str]]) -> NamesByOwner:
    found: NamesByOwner = {owner: {} for owner in owners}
    for app, user, name, *row in reader.conn.execute(SQL["scopes_of"], (_listed(owners),)):
        of = found[app, user]
        of[name] = reader.scopes.after((app, user, name), of.get(name), tuple(row))
    return found


def _shared(names: NamesByOwner, key: Key) -> dict[str, Any]:
    return {**scope_fields(names[key.app, ""]), **scope_fields(names[key.app, key.user])}


def _listed(items: Iterable[Any]) -> str:
    """Numbers or names as JSON, for json_each."""
    return msgspec.json.encode(list(items)).decode()
