"""Pages of heads: one index range each, put together from what the query names; and the overview.

With states, a few statements read the whole page's snapshots, later events and shared names, in the
instant in which its heads are read. If a page of the file is broken, each session is read alone, so
that only that one is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from heapq import merge
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import apsw
import msgspec

from limpet.model import Fold, FrozenDict, Head, Key, blank, is_reserved, limits, replay_any
from limpet.model.facts.isolation import lent_labels
from limpet.model.facts.phases import ACTIVE
from limpet.model.facts.running.waiting import ASKED, open_request
from limpet.store import cursor as cursors
from limpet.store.coding.bodies import NamesByOwner
from limpet.store.coding.seal import Unready
from limpet.store.overview import AskedBy, Tally, WaitingPlace, WaitingQuery
from limpet.store.pages import walk
from limpet.store.protocol import Page, Query, scope_fields
from limpet.store.sqlite import rows
from limpet.store.sqlite.reading.reader import SQLiteReader
from limpet.store.sqlite.sql import SQL

HeadRow: TypeAlias = tuple[Any, ...]  # of HEAD_COLUMNS, or of TOMBSTONE_COLUMNS
_COLUMNS = ", ".join(f"s.{column}" for column in rows.HEAD_COLUMNS.split(", "))
_CREATED, _UPDATED, _FACTS = 7, 8, 10  # in a row of either; facts are in a row of heads
_decode_facts = msgspec.json.Decoder(dict[str, Any]).decode


class _Range(NamedTuple):
    """A range of an index: its source, its conditions, the columns of its order, and the values."""

    source: str
    where: list[str]
    order: list[str]
    args: list[Any]


KnownFold: TypeAlias = Callable[[Head], Fold | None]  # what is in memory of a session at this head
_BROKEN = (apsw.CorruptError, UnicodeDecodeError)


def page(
    conn: apsw.Connection, query: Query, now_us: int, *, cursor: str | None, limit: int
) -> Page[Head]:
    """One page, and the cursor to the next if there is one."""
    page_rows, more = rows_of(conn, query, now_us, cursor=cursor, limit=limit)
    made = rows.tombstone_from if query.deleted else rows.head_from
    return Page(tuple([made(row) for row in page_rows]), more)


def rows_of(
    conn: apsw.Connection, query: Query, now_us: int, *, cursor: str | None, limit: int
) -> tuple[list[HeadRow], str | None]:
    """The rows of one page, and the cursor to the next if there is one."""
    cursors.check(query)
    if cursors.by_work(query):
        return _by_work(conn, query, now_us, cursor, limit)
    most = limits.WALK_MAX if cursors.filters(query) else limit + 1
    # Row by row: what lies beyond the page is not read. Closed, or its reading would go on.
    with ExitStack() as stack:
        reading: Iterable[HeadRow]
        if cursors.by_phase(query):
            reading = _by_phase(conn, stack, query, cursor, most)
        else:
            columns = rows.TOMBSTONE_COLUMNS if query.deleted else _COLUMNS
            reading = _in_order(
                query,
                [
                    _opened(conn, stack).execute(
                        _select(columns, each.source, each.where, each.order, query),
                        (*each.args, most),
                    )
                    for each in _ranges(query, cursor)
                ],
            )
        met, last = walk(reading, lambda row: _passes(row, query), limit)
    return met, None if last is None else cursor_after(last, query)


def _ranges(query: Query, cursor: str | None) -> list[_Range]:
    """The ranges of indexes that a page is put together from: see `cursors.parts`."""
    if _is_by_key(query):
        place = None if cursor is None else cursors.read_key(cursor, query)
        return [_by_key(part, place) for part in cursors.parts(query)]
    at = None if cursor is None else cursors.read(cursor, query)
    return [_range(part, at) for part in cursors.parts(query)]


def _in_order(query: Query, readings: list[apsw.Cursor]) -> Iterable[HeadRow]:
    """The rows of several ranges in the order of the query, each row once."""
    if len(readings) == 1:
        return readings[0]
    by_key = _is_by_key(query)
    mark = _UPDATED if query.order == "updated" else _CREATED

    def place(row: HeadRow) -> Any:
        return row[1:4] if by_key else (row[mark], row[0])

    merged = merge(*readings, key=place, reverse=query.reverse)
    return (next(same) for _, same in groupby(merged, key=itemgetter(0)))


def _by_work(
    conn: apsw.Connection, query: Query, now_us: int, cursor: str | None, limit: int
) -> tuple[list[HeadRow], str | None]:
    """The rows of a page that do now what is asked for. SQLite compares them where they lie, up to
    the last row that a page may look at."""
    ranges = _ranges(query, cursor)
    edges = [edge for each in ranges if (edge := _edge(conn, query, each)) is not None]
    edge = (max if query.reverse else min)(edges) if edges else None
    with ExitStack() as stack:
        readings: list[apsw.Cursor] = []
        for source, where, order, args in ranges:
            if edge is not None:
                where.append(f"({', '.join(order)}) {'>=' if query.reverse else '<='} (?, ?)")
                args += edge
            for name, value in (("status", query.status), ("readiness", query.ready)):
                if value is not None:
                    where.append(f"({SQL[name]}) = ?")
                    args.append(value)
            timed = f"{source} CROSS JOIN (SELECT ? AS now_us)"
            sql = _select(_COLUMNS, timed, where, order, query)
            asked = (now_us, *args, limits.SCAN_MAX)
            readings.append(_opened(conn, stack).execute(sql, asked))
        heads = _in_order(query, readings)
        met, last = walk(heads, lambda row: _passes(row, query), limit)
    if last is not None:
        return met, cursor_after(last, query)
    return met, None if edge is None else cursors.write(query, *edge)


def _edge(conn: apsw.Connection, query: Query, of: _Range) -> tuple[int, int] | None:
    """The place of the last head that a page may look at; None if the range ends before it."""
    source, where, order, args = of
    sql = _select(", ".join(order), source, where, order, query)
    place: tuple[int, int] | None = conn.execute(
        f"{sql} OFFSET ?", (*args, 1, limits.SCAN_MAX - 1)
    ).get
    return place


def cursor_after(row: HeadRow, query: Query) -> str:
    """The cursor after a page that ends with this row."""
    if _is_by_key(query):
        return cursors.write_key(query, rows.key_of(row), row[0])
    mark = row[_UPDATED] if query.order == "updated" else row[_CREATED]
    return cursors.write(query, mark, row[0])


def page_with_states(
    reader: SQLiteReader,
    known: KnownFold,
    query: Query,
    now_us: int,
    *,
    cursor: str | None,
    limit: int,
) -> Page[Head]:
    """A page of heads with their states. To be called within one instant."""
    page_rows, more = rows_of(reader.conn, query, now_us, cursor=cursor, limit=limit)
    kept = [(row[0], rows.head_from(row)) for row in page_rows]
    folds = {head.key: fold for _, head in kept if (fold := known(head)) is not None}
    count = _fitting_count(reader, kept, [sid for sid, head in kept if head.key not in folds])
    if count < len(kept):
        kept, more = kept[:count], cursor_after(page_rows[count - 1], query)
    try:
        folds |= _read_folds(reader, [(sid, head) for sid, head in kept if head.key not in folds])
        names = _names(reader, [head.key for _, head in kept])
    except Unready as needed:  # ask for the keys of the whole page, not for one at a time
        reader.codec.sealer.require([*needed.owners, *[head.uid for _, head in kept]])
        raise
    listed = tuple([head for _, head in kept])
    states = {
        head.key: FrozenDict({**folds[head.key].fields, **_shared_fields(names, head.key)})
        for head in listed
        if head.key in folds and _owners(head.key) <= names.keys()
    }
    damaged = tuple([head.key for head in listed if head.key not in states])
    return Page(listed, more, states, damaged)


def _is_by_key(query: Query) -> bool:
    return query.deleted or query.order == "key"


def _passes(row: HeadRow, query: Query) -> bool:
    facts: dict[str, Any] = {}
    asks = query.schema_version is not None or query.phase is not None
    if asks and row[_FACTS] is not None:
        facts = _decode_facts(row[_FACTS])
    schema, phase = facts.get("schema_version"), facts.get("phase", ACTIVE)
    return cursors.passes(query, row[_CREATED], row[_UPDATED], schema, phase)


def _opened(conn: apsw.Connection, stack: ExitStack) -> apsw.Cursor:
    return stack.enter_context(closing(conn.cursor()))


def _by_phase(
    conn: apsw.Connection, stack: ExitStack, query: Query, cursor: str | None, most: int
) -> Iterator[HeadRow]:
    """Return heads in the order of rows, which is that of the index of phases in each app."""
    row = None if cursor is None else cursors.read(cursor, query)[1]
    where = ["s.app = ?", "s.standing = ?"]
    if row is not None:
        where.append(f"s.sid {'<' if query.reverse else '>'} ?")
    sql = _select(_COLUMNS, "sessions s", where, ["s.sid"], query)
    rest = (query.phase, *([] if row is None else [row]), most)
    one = None if query.app is None else [query.app]
    apps = one or _apps(conn, "standing_app_after", reserved=query.reserved)
    parts = [_opened(conn, stack).execute(sql, (app, *rest)) for app in apps]
    return merge(*parts, key=itemgetter(0), reverse=query.reverse)


def _range(query: Query, at: tuple[int, int] | None) -> _Range:
    """The range of an index in the order of times, after this place: of everything, an app, a
    user, or labels."""
    source, mark = "sessions s", "s.created_us"
    where, args = _owner_condition(query)
    if query.labels:
        source, mark, where, args = _by_label(query)
    if query.order == "updated":
        mark = "s.updated_us"
    row = "l0.sid" if query.labels else "s.sid"
    _add_range(query, mark, where, args)
    order = [mark, row]
    if query.order == "updated":  # by slots, as the index has them, and sorted within each
        order.insert(0, "s.slot")
    if at is not None:
        sign = "<" if query.reverse else ">"
        if query.order == "updated":
            where.append(f"s.slot {sign}= ?")
            args.append(at[0] >> limits.UPDATE_SLOT_BITS)
        where.append(f"({mark}, {row}) {sign} (?, ?)")
        args += at
    return _Range(source, where, order, args)


def _owner_condition(query: Query) -> tuple[list[str], list[Any]]:
    """The condition for the owner: an app, a user, or anybody."""
    if query.app is None:
        reserved = "(s.app < '$' OR s.app >= '%')"
        return ([] if query.reserved else [reserved]), []
    if query.user is None:
        return ["s.app = ?"], [query.app]
    return ["s.app = ?", "s.user = ?"], [query.app, query.user]


def _add_range(query: Query, mark: str, where: list[str], args: list[Any]) -> None:
    """The times between which the order's index is read."""
    if query.order == "updated":
        if query.updated_after_us is not None:
            where += ["s.slot >= ?", f"{mark} > ?"]
            args += [query.updated_after_us >> limits.UPDATE_SLOT_BITS, query.updated_after_us]
        return
    for sign, bound in ((">", query.created_after_us), ("<", query.created_before_us)):
        if bound is not None:
            where.append(f"{mark} {sign} ?")
            args.append(bound)


def _select(columns: str, source: str, where: list[str], order: list[str], query: Query) -> str:
    way = "DESC" if query.reverse else "ASC"
    chosen = f" WHERE {' AND '.join(where)}" if where else ""
    ordered = ", ".join(f"{column} {way}" for column in order)
    # Put together from our own texts and column names; values are parameters.
    return f"SELECT {columns} FROM {source}{chosen} ORDER BY {ordered} LIMIT ?"  # nosec B608


def _by_key(query: Query, at: tuple[Key, int] | None) -> _Range:
    """Return heads in the order of keys, after this place: living sessions, or those that were
    deleted."""
    source = "tombstones s" if query.deleted else "sessions s"
    where, args = _owner_condition(query)
    if query.labels:
        source, _, where, args = _by_label(query)
    columns = ["s.app", "s.user", "s.id", "s.sid"]
    rest = columns if query.app is None else columns[1 if query.user is None else 2 :]
    if query.prefix:
        where.append("s.id >= ? AND substr(s.id, 1, ?) = ?")
        args += [query.prefix, len(query.prefix), query.prefix]
        last = cursors.prefix_end(query.prefix)
        if last is not None:
            where.append("s.id < ?")
            args.append(last)
    if at is not None and cursors.is_elsewhere(query, at[0]):
        if not cursors.is_ahead(query, at[0]):
            where.append("0")
    elif at is not None:
        key, row = at
        marks = ", ".join("?" for _ in rest)
        where.append(f"({', '.join(rest)}) {'<' if query.reverse else '>'} ({marks})")
        args += [key.app, key.user, key.id, row][-len(rest) :]
    return _Range(source, where, rest, args)


def _by_label(query: Query) -> tuple[str, str, list[str], list[Any]]:
    """The first label is an index range; each further one is looked up for every row of it."""
    source, where, args = "", [], []
    for place, (name, value) in enumerate(query.labels.items()):
        source += (" CROSS JOIN " if place else "") + f"labels l{place}"
        where += [f"l{place}.app = ?", f"l{place}.name = ?", f"l{place}.value = ?"]
        args += [query.app, name, value]
        if query.user is not None:
            where.append(f"l{place}.user = ?")
            args.append(query.user)
        if place:
            where += [f"l{place}.created_us = l0.created_us", f"l{place}.sid = l0.sid"]
    where.append("s.sid = l0.sid")
    return source + " CROSS JOIN sessions s", "l0.created_us", where, args


def _fitting_count(reader: SQLiteReader, kept: list[tuple[int, Head]], unread: list[int]) -> int:
    """The number of sessions whose states fit a page by their bytes: one at least."""
    try:
        fetched: Any = reader.conn.execute(SQL["state_sizes"], (_json_list(unread),)).fetchall()
        shared = _shared_sizes(reader, [head.key for _, head in kept])
    except _BROKEN:
        return len(kept)
    sizes, total = dict(fetched), 0
    for count, (sid, head) in enumerate(kept):
        if total > limits.STATES_BYTES_MAX:
            return count
        total += sizes.get(sid, 0) + shared[head.key]
    return len(kept)


def _shared_sizes(reader: SQLiteReader, keys: list[Key]) -> dict[Key, int]:
    """The bytes that the names of each session add to a page: their values for the first who sees
    them, a place in its state for everybody. No more of them are met than fit a page."""
    owners = list(dict.fromkeys([(key.app, user) for key in keys for user in ("", key.user)]))
    most = limits.STATES_BYTES_MAX // limits.STATES_NAME_BYTES + 1 + len(owners)
    names, values = [0] * len(owners), [0] * len(owners)
    ended: set[int] = set()
    for place, size in reader.conn.execute(SQL["scope_sizes_of"], (_json_list(owners), most)):
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


def _read_folds(reader: SQLiteReader, wanted: list[tuple[int, Head]]) -> dict[Key, Fold]:
    """The sessions at their heads, without those of which an event cannot be read."""
    if not wanted:
        return {}
    try:
        folds = _in_bulk(reader, wanted)
    except _BROKEN:
        folds = {head.key: _read_alone(reader, sid, head) for sid, head in wanted}
    return {key: fold for key, fold in folds.items() if fold is not None}


def _in_bulk(reader: SQLiteReader, wanted: list[tuple[int, Head]]) -> dict[Key, Fold | None]:
    by_sid = dict(wanted)
    folds = {sid: Fold(blank(head.key, head.uid, head.created_us)) for sid, head in wanted}
    apart = {sid for sid, head in wanted if head.floor}  # that begin on a state
    for sid, *row in reader.conn.execute(SQL["snapshots_of"], (_json_list(by_sid),)):
        snapshot = reader.snapshot_in(tuple(row), by_sid[sid])
        if snapshot is None:
            apart.add(sid)
        else:
            folds[sid] = snapshot[0]
            apart.discard(sid)
    folds = {sid: fold for sid, fold in folds.items() if sid not in apart}
    whole = dict.fromkeys(folds, True)
    since = _json_list([[sid, fold.head.version] for sid, fold in folds.items()])
    for sid, *row in reader.conn.execute(SQL["events_of"], (since,)):
        event = reader.event_from(tuple(row), by_sid[sid].uid)
        dense = event.seq == folds[sid].head.version + 1
        folds[sid], readable = replay_any(folds[sid], event)
        whole[sid] = whole[sid] and dense and readable
    for sid, fold in folds.items():
        reached = fold.head.version == by_sid[sid].version
        whole[sid] = whole[sid] and reached and reader.holds(sid, by_sid[sid])
    made = {by_sid[sid].key: fold if whole[sid] else None for sid, fold in folds.items()}
    return made | {by_sid[sid].key: _read_alone(reader, sid, by_sid[sid]) for sid in apart}


def _read_alone(reader: SQLiteReader, sid: int, head: Head) -> Fold | None:
    try:
        loaded = reader.load_fold(sid, head)
    except _BROKEN:
        return None
    return None if loaded.fold.damaged else loaded.fold


# --- shared names --------------------------------------------------------------------------------


def _owners(key: Key) -> set[tuple[str, str]]:
    """The owners whose names a session sees: its app, and its user."""
    return {(key.app, ""), (key.app, key.user)}


def _names(reader: SQLiteReader, keys: Iterable[Key]) -> NamesByOwner:
    """The newest version of every name that these sessions see, each owner's read once.

    An owner whose names lie on a broken page of the file is left out.
    """
    owners = sorted({owner for key in keys for owner in _owners(key)})
    try:
        return _names_of(reader, owners)
    except _BROKEN:
        names: NamesByOwner = {}
        for owner in owners:
            with suppress(*_BROKEN):
                names |= _names_of(reader, [owner])
        return names


def _names_of(reader: SQLiteReader, owners: list[tuple[str, str]]) -> NamesByOwner:
    names: NamesByOwner = {owner: {} for owner in owners}
    for app, user, name, *row in reader.conn.execute(SQL["scopes_of"], (_json_list(owners),)):
        of = names[app, user]
        of[name] = reader.scopes.after((app, user, name), of.get(name), tuple(row))
    return names


def _shared_fields(names: NamesByOwner, key: Key) -> dict[str, Any]:
    return {**scope_fields(names[key.app, ""]), **scope_fields(names[key.app, key.user])}


def _json_list(items: Iterable[Any]) -> str:
    """Numbers or names as JSON, for json_each."""
    return msgspec.json.encode(list(items)).decode()


# --- the overview: open requests by their labels, and counts of sessions ------------------------

_LAST_APP: Final = chr(0x10FFFF)


def waiting(
    conn: apsw.Connection, query: WaitingQuery, limit: int, after: WaitingPlace | None
) -> tuple[tuple[AskedBy, ...], WaitingPlace | None]:
    """One page of open requests. To be called within one instant."""
    name = "waiting_in_app" if query.user is None else "waiting_of_user"
    rest = (query.user, *(after or (ASKED, 0)), query.kind, limit + 1)
    apps = _apps(conn, "labeled_app_after") if query.app is None else [query.app]
    pages: list[Any] = [conn.execute(SQL[name], (app, *rest)).fetchall() for app in apps]
    if query.lent and query.user is not None and query.app is not None:
        pages += [
            conn.execute(SQL["waiting_lent"], (query.app, *rest, label)).fetchall()
            for label in lent_labels(query.user)
        ]
    met = list(islice(merge(*pages, key=lambda row: (row[0], row[2])), limit + 1))
    more = (met[limit - 1][0], met[limit - 1][2]) if len(met) > limit else None
    places = [(Key(*row[3:]), open_request(row[0], row[1])) for row in met[:limit]]
    return tuple([AskedBy(key, asked) for key, asked in places if asked is not None]), more


def tally(conn: apsw.Connection, app: str | None, now_us: int, limit: int) -> tuple[Tally, ...]:
    """Return how many sessions there are of each kind."""
    between = ("", _LAST_APP) if app is None else (app, app)
    counts: Any = conn.execute(SQL["tally"], (now_us, limit, *between)).fetchall()
    return tuple([Tally(row[0], row[1], row[2], bool(row[3]), row[4]) for row in counts])


def _apps(conn: apsw.Connection, after: str, *, reserved: bool = False) -> list[str]:
    """The apps that have labels, or sessions that are not active; each is one step of an index."""
    apps, last = list[str](), ""
    while True:
        app: Any = conn.execute(SQL[after], (last,)).get
        if app is None:
            return apps
        last = app
        if reserved or not is_reserved(app):
            apps.append(app)
