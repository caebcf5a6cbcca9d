"""Pages of heads: one index range each, put together from what the query names; and the overview.

With states, one round trip brings the page's heads, snapshots, later events and names.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Final

from limpet.errors import SessionCorrupt, SessionDeleted, SessionErased, SessionNotFound
from limpet.model import FrozenDict, Head, Key, ScopeKey, limits
from limpet.model.facts.isolation import lent_labels
from limpet.model.facts.phases import ACTIVE
from limpet.model.facts.running.waiting import ASKED, open_request
from limpet.model.limits import EVENT_OVERHEAD_BYTES, STATES_BYTES_MAX, STATES_NAME_BYTES
from limpet.store import cursor as cursors
from limpet.store.coding.bodies import NamesByOwner, ScopeNameReader, replay_events
from limpet.store.coding.codec import UNHELD
from limpet.store.coding.seal import scope_owner
from limpet.store.overview import AskedBy, Tally, WaitingPlace, WaitingQuery
from limpet.store.postgres import rows
from limpet.store.postgres.reading.reader import PostgresReader
from limpet.store.postgres.server.settings import Connection
from limpet.store.postgres.sql import SQL
from limpet.store.protocol import Page, Query, scope_fields

_COMMON: Final = (
    "s.sid, s.app, s.owner, s.id AS session_id, s.uid, s.version, s.link, s.created_us, "
    "s.updated_us, s.active_us, s.floor"
)
_LIVING: Final = (
    f"{_COMMON}, s.facts::text, s.fence, s.lease_us, s.leased_us, s.worker, "
    "NULL::bigint AS deleted_us, s.mac"
)
_DELETED: Final = f"{_COMMON}, s.deleted_us, s.ending"
_UNRESERVED: Final = "(s.app < '$' OR s.app >= '%')"


async def page(conn: Connection, query: Query, *, cursor: str | None, limit: int) -> Page[Head]:
    """One page, and the cursor to the next if there is one."""
    sql, args = statement(query, cursor, limit)
    met, more = on_page(await conn.fetch(sql, *args), query, limit)
    read = rows.tombstone_from if query.deleted else rows.head_from
    return Page(tuple([read(rows.key_from(row), row) for row in met]), more)


async def vouched(reader: PostgresReader, conn: Connection, key: Key) -> Head | None:
    """The head of one session that is there. Raises SessionCorrupt if its keys do not vouch for
    it, Unready."""
    first = Query(app=key.app, user=key.user, order="key", reverse=False, prefix=key.id)
    sql, args = statement(first, None, 1)
    row = await conn.fetchrow(sql, *args)
    if row is None or rows.key_from(row) != key:  # no id with this prefix sorts before it
        return None
    head = rows.head_from(key, row)
    if not reader.codec.head_holds(head, row["mac"]):
        raise SessionCorrupt(key, f"its head {UNHELD}")
    return head


async def page_with_states(
    reader: PostgresReader, conn: Connection, query: Query, *, cursor: str | None, limit: int
) -> Page[Head]:
    """A page of heads with their states, all from one snapshot of the server."""
    sizes = (STATES_BYTES_MAX, EVENT_OVERHEAD_BYTES, STATES_NAME_BYTES)
    bounds = (limit, *sizes)
    asked, args = statement(query, cursor, limit, *bounds)
    # Statements are put together from our own texts and column names; values are parameters.
    page = f"SELECT q.*, row_number() OVER () AS place FROM ({asked}) q"  # nosec B608
    sql = f"WITH page AS MATERIALIZED ({page}){SQL['states']}"
    kinds = rows.by_kind(await conn.fetch(sql, *args))
    met, more = on_page(sorted(kinds["head"], key=itemgetter("place")), query, limit)
    kept = [row for row in met if row["within"]]
    if len(kept) < len(met):
        more = cursor_after(kept[-1], query)
    _require_keys(reader, kinds)
    names, since = _names(reader, kinds["name"]), _by_session(kinds["event"])
    starts = {row["sid"]: row for row in kinds["snapshot"] + kinds["base"]}
    listed = tuple([rows.head_from(rows.key_from(row), row) for row in kept])
    states: dict[Key, FrozenDict] = {}
    for head, row in zip(listed, kept, strict=True):
        sid = row["sid"]
        fields = await _fields(reader, conn, head, starts.get(sid), since.get(sid, []))
        if fields is not None and reader.codec.head_holds(head, row["mac"]):
            states[head.key] = FrozenDict({**fields, **_shared_fields(names, head.key)})
    damaged = tuple([head.key for head in listed if head.key not in states])
    return Page(listed, more, states, damaged)


def statement(query: Query, cursor: str | None, limit: int, *first: Any) -> tuple[str, list[Any]]:
    """The statement for a page: one row more than it has, to know whether there is another.

    Its parameters come after the `first`, which are the caller's.

    Where the order's index does not serve a filter, the rows of the range are counted as they are
    met, and looked at up to a bound: the last one comes along, whether it passes or not.
    """
    cursors.check(query)
    args: list[Any] = list(first)
    if cursors.by_phase(query):
        most = limits.WALK_MAX if cursors.filters(query) else limit + 1
        source, where, columns = _by_phase(query, cursor, args, most)
    else:
        source, where, columns = _in_order(query, cursor, args, limit)
    if query.app is None and not query.reserved:
        where.append(_UNRESERVED)
    way = "DESC" if query.reverse else "ASC"
    order = ", ".join([f"{column} {way}" for column in columns])
    if cursors.by_work(query):
        source += " CROSS JOIN (SELECT limpet.now_us() AS now_us) n"
    passes, walked = _passing(query, args), _walked(query)
    number = f"row_number() OVER (ORDER BY {order})" if passes else "0"
    shown = _DELETED if query.deleted else _LIVING
    sql = f"SELECT {shown}, {number} AS n, "
    sql += f"{passes or 'true'} AS passes FROM {source} "
    sql += f"WHERE {' AND '.join(where)} " if where else ""
    # Written out: of a page whose size it does not know, the server thinks a tenth of the table,
    # and then plans the statement again on every call.
    sql += f"ORDER BY {order} LIMIT {walked if passes else limit + 1}"
    if passes:
        met = f"passes OR n = {walked}"
        sql = f"SELECT * FROM ({sql}) w WHERE {met} LIMIT {limit + 1}"  # nosec B608  # numbers
    return sql, args


def _in_order(
    query: Query, cursor: str | None, args: list[Any], limit: int
) -> tuple[str, list[str], list[str]]:
    """The range of an index; or a page of each that the query is put together from, each row once
    (see `cursors.parts`)."""
    at: Any
    if query.deleted or query.order == "key":
        range_of: Any = _by_key
        at = None if cursor is None else cursors.read_key(cursor, query)
    else:
        range_of = _range
        at = None if cursor is None else cursors.read(cursor, query)
    parts = [range_of(part, at, args) for part in cursors.parts(query)]
    if len(parts) == 1:
        source, where, columns = parts[0]
        return source, where, columns
    most = _walked(query) if cursors.filters(query) else limit + 1
    way = "DESC" if query.reverse else "ASC"
    pages = []
    for source, where, columns in parts:
        order = ", ".join([f"{column} {way}" for column in columns])
        chosen = " AND ".join(where)
        # Put together from our own texts and column names; values are parameters.
        page = f"SELECT s.* FROM {source} WHERE {chosen} ORDER BY {order} LIMIT {most}"  # nosec B608
        pages.append(f"({page})")
    by_key = query.order == "key"
    columns = ["s.owner", "s.id"] if by_key else [f"s.{query.order}_us", "s.sid"]
    once = ", ".join(columns)
    union = " UNION ALL ".join(pages)
    return f"(SELECT DISTINCT ON ({once}) s.* FROM ({union}) s) s", [], columns  # nosec B608


def on_page(rows: list[Any], query: Query, limit: int) -> tuple[list[Any], str | None]:
    """The rows of a page among those that its statement brought, and the cursor to the next."""
    met = [row for row in rows if row["passes"]]
    if len(met) > limit:
        return met[:limit], cursor_after(met[limit - 1], query)
    walked = bool(rows) and rows[-1]["n"] == _walked(query)
    return met, cursor_after(rows[-1], query) if walked else None


def cursor_after(row: Any, query: Query) -> str:
    """The cursor after a page that ends with this row."""
    if query.deleted or query.order == "key":
        return cursors.write_key(query, rows.key_from(row), row["sid"])
    return cursors.write(query, row[f"{query.order}_us"], row["sid"])


def _walked(query: Query) -> int:
    """The heads that a page looks at, at most, while it filters."""
    return limits.SCAN_MAX if cursors.by_work(query) else limits.WALK_MAX


def _passing(query: Query, args: list[Any]) -> str:
    """The filters that the order does not go by, as a condition; empty if there are none."""
    if not cursors.filters(query) and not (query.deleted and _has_range(query)):
        return ""
    wanted = []
    for condition, at_us in (
        ("s.created_us >", query.created_after_us),
        ("s.created_us <", query.created_before_us),
        ("s.updated_us >", query.updated_after_us),
    ):
        if at_us is not None:
            wanted.append(f"{condition} {_bind(args, at_us)}")
    if query.schema_version is not None:
        version = _bind(args, query.schema_version)
        wanted.append(f"s.facts ->> 'schema_version' IS NOT DISTINCT FROM {version}")
    if query.phase is not None:
        standing = None if query.phase == ACTIVE else query.phase
        wanted.append(f"s.standing IS NOT DISTINCT FROM {_bind(args, standing)}")
    for name, value in (("status", query.status), ("readiness", query.ready)):
        if value is not None:
            wanted.append(f"({SQL[name]}) = {_bind(args, value)}")
    return f"({' AND '.join(wanted)})"


def _has_range(query: Query) -> bool:
    return query.created_after_us is not None or query.created_before_us is not None


def _range(
    query: Query, place: tuple[int, int] | None, args: list[Any]
) -> tuple[str, list[str], list[str]]:
    """The range of an index after this place: its source, its conditions, and the columns that
    order it."""
    source, where, mark = _source(query, args)
    row = "l0.sid" if query.labels else "s.sid"
    columns = [mark, row]
    at = None if place is None else list(place)
    if query.order == "updated":  # indexed by the slot, and sorted within it
        columns.insert(0, "s.slot")
        after_us = query.updated_after_us
        if after_us is not None:
            where.append(f"s.slot >= {_bind(args, after_us >> rows.SLOT_BITS)}")
            where.append(f"{mark} > {_bind(args, after_us)}")
        if at is not None:
            at.insert(0, at[0] >> rows.SLOT_BITS)
    else:
        for sign, at_us in ((">", query.created_after_us), ("<", query.created_before_us)):
            if at_us is not None:
                where.append(f"{mark} {sign} {_bind(args, at_us)}")
    if at is not None:
        where.append(_beyond(columns, at, args, reverse=query.reverse))
    return source, where, columns


def _by_key(
    query: Query, place: tuple[Key, int] | None, args: list[Any]
) -> tuple[str, list[str], list[str]]:
    """Return heads in the order of keys, after this place; those deleted under one key in the order
    of their rows."""
    owner = [value for value in (query.app, query.user) if value is not None]
    columns = ["s.app", "s.owner", "s.id"]
    rest = columns[len(owner) :]
    source = f"limpet.{'tombstones' if query.deleted else 'sessions'} s"
    if query.labels:
        source, where, _ = _source(query, args)
    else:
        named = zip(columns[: len(owner)], owner, strict=True)
        where = [f"{column} = {_bind(args, value)}" for column, value in named]
    if query.prefix:
        where.append(f"s.id >= {_bind(args, query.prefix)}")
        if (past := cursors.prefix_end(query.prefix)) is not None:
            where.append(f"s.id < {_bind(args, past)}")
    if query.deleted:
        rest.append("s.sid")
    if place is not None and cursors.is_elsewhere(query, place[0]):
        if not cursors.is_ahead(query, place[0]):
            where.append("false")
    elif place is not None:
        at, row = place
        marks = [at.app, at.user, at.id, row][len(owner) :]
        where.append(_beyond(rest, marks[: len(rest)], args, reverse=query.reverse))
    return source, where, rest


def _by_phase(
    query: Query, cursor: str | None, args: list[Any], most: int
) -> tuple[str, list[str], list[str]]:
    """Return heads in the order of rows, which is that of the index of phases in each app. The
    apps are few, and each is one step along the index; of each, one page."""
    where = [f"s.standing = {_bind(args, query.phase)}"]
    if cursor is not None:
        row = _bind(args, cursors.read(cursor, query)[1])
        where.append(f"s.sid {'<' if query.reverse else '>'} {row}")
    if query.app is not None:
        where.insert(0, f"s.app = {_bind(args, query.app)}")
        return "limpet.sessions s", where, ["s.sid"]
    step = "SELECT min(app) FROM limpet.sessions WHERE standing IS NOT NULL"
    page = f"WHERE s.app = a.app AND {' AND '.join(where)}"
    way = "DESC" if query.reverse else "ASC"
    source = (  # our own texts; values are parameters
        f'(WITH RECURSIVE apps (app) AS (SELECT ({step}) COLLATE "C" UNION ALL '  # nosec B608
        f'SELECT ({step} AND app > a.app) COLLATE "C" FROM apps a WHERE a.app IS NOT NULL) '
        f"SELECT l.* FROM apps a CROSS JOIN LATERAL (SELECT * FROM limpet.sessions s {page} "
        f"ORDER BY s.sid {way} LIMIT {most}) l) s"
    )
    return source, [], ["s.sid"]


def _beyond(columns: list[str], at: list[Any], args: list[Any], *, reverse: bool) -> str:
    """The condition that a row comes after the one that a cursor names."""
    marks = ", ".join([_bind(args, value) for value in at])
    return f"({', '.join(columns)}) {'<' if reverse else '>'} ({marks})"


def _source(query: Query, args: list[Any]) -> tuple[str, list[str], str]:
    """The source of the rows: the heads themselves, or the rows of a label."""
    where: list[str] = []
    if not query.labels:
        for column, value in (("app", query.app), ("owner", query.user)):
            if value is not None:
                where.append(f"s.{column} = {_bind(args, value)}")
        return "limpet.sessions s", where, f"s.{query.order}_us"
    source = ""
    for place, (name, value) in enumerate(query.labels.items()):
        source += (" JOIN " if place else "") + f"limpet.labels l{place}"
        if place:
            source += f" ON l{place}.sid = l0.sid AND l{place}.created_us = l0.created_us"
        for column, text in (("app", query.app), ("name", name), ("value", value)):
            where.append(f"l{place}.{column} = {_bind(args, text)}")
        if query.user is not None:
            where.append(f"l{place}.owner = {_bind(args, query.user)}")
    mark = "s.updated_us" if query.order == "updated" else "l0.created_us"
    return f"{source} JOIN limpet.sessions s ON s.sid = l0.sid", where, mark


def _bind(args: list[Any], value: Any) -> str:
    args.append(value)
    return f"${len(args)}"


def _require_keys(reader: PostgresReader, kinds: dict[str, list[Any]]) -> None:
    """The keys of the whole page, not of one session at a time."""
    uids = {row["sid"]: row["uid"] for row in kinds["head"]}
    bodies = [
        row
        for row in (*kinds["snapshot"], *kinds["event"])
        if reader.codec.needs_keys(row["flags"])
    ]
    names = [row for row in kinds["name"] if reader.codec.needs_keys(row["flags"])]
    owners = [uids[row["sid"]] for row in bodies if row["sid"] in uids]
    owners += [scope_owner(row["app"], row["owner"]) for row in names]
    reader.codec.sealer.require(owners)


def _by_session(events: list[Any]) -> dict[int, list[Any]]:
    """Rows of events in the order of their seqs, by the number of their session."""
    rows: dict[int, list[Any]] = {}
    for row in sorted(events, key=itemgetter("seq")):
        rows.setdefault(row["sid"], []).append(row)
    return rows


async def _fields(
    reader: PostgresReader, conn: Connection, head: Head, start: Any, since: list[Any]
) -> FrozenDict | None:
    """The session's own fields at its head; None if an event of it cannot be read."""
    events = [rows.event_from(each, head.uid, reader.codec) for each in since]
    begun = reader.start(head, start, events[0] if events else None)
    if begun is None:
        try:
            loaded = await reader.load(conn, head.key)
        except (SessionNotFound, SessionDeleted, SessionErased):  # it ended since the page was read
            return None
        return None if loaded.live.fold.damaged else loaded.live.fold.fields
    fold = replay_events(begun[0], events, head.version)
    return None if fold.damaged else fold.fields


def _names(reader: PostgresReader, name_rows: list[Any]) -> NamesByOwner:
    """The newest version of every shared name, by its owner."""
    names: dict[ScopeKey, ScopeNameReader] = {}
    for row in sorted(name_rows, key=itemgetter("version")):
        key = (row["app"], row["owner"], row["name"])
        names.setdefault(key, ScopeNameReader(key, reader.codec)).add(rows.scope_row(row))
    values: NamesByOwner = {}
    for (app, owner, called), name in names.items():
        if name.value is not None:
            values.setdefault((app, owner), {})[called] = name.value
    return values


def _shared_fields(names: NamesByOwner, key: Key) -> dict[str, Any]:
    app, user = names.get((key.app, ""), {}), names.get((key.app, key.user), {})
    return {**scope_fields(app), **scope_fields(user)}


# --- the overview: open requests by their labels, and counts of sessions ------------------------

_LAST_APP: Final = chr(0x10FFFF)


async def waiting(
    conn: Connection, query: WaitingQuery, limit: int, after: WaitingPlace | None
) -> tuple[tuple[AskedBy, ...], WaitingPlace | None]:
    """One page of open requests."""
    asked = (query.app, query.user, query.kind, *(after or (ASKED, 0)), limit + 1)
    met = list(await conn.fetch(SQL["waiting"], *asked))
    if query.lent and query.user is not None and query.app is not None:
        met += await conn.fetch(SQL["waiting_lent"], *asked, list(lent_labels(query.user)))
        met.sort(key=itemgetter("name", "sid"))
    last = met[limit - 1] if len(met) > limit else None
    places = [(rows.key_from(row), open_request(row["name"], row["value"])) for row in met[:limit]]
    asking = tuple([AskedBy(key, request) for key, request in places if request is not None])
    return asking, None if last is None else (last["name"], last["sid"])


async def tally(conn: Connection, app: str | None, limit: int) -> tuple[Tally, ...]:
    """Return how many sessions there are of each kind."""
    between = ("", _LAST_APP) if app is None else (app, app)
    return tuple([Tally(*row) for row in await conn.fetch(SQL["tally"], limit, *between)])
