"""Cursors: where a page of heads ended, in a form that callers pass back and cannot misuse."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import structs

from limpet.errors import InvalidCursor, InvalidKey, InvalidQuery
from limpet.model import EMPTY, FrozenDict, Head, Key, unfit
from limpet.model.facts.isolation import LENT_TO, lent_labels
from limpet.model.facts.phases import ACTIVE, PHASES
from limpet.model.facts.running.runs import STATUSES
from limpet.model.facts.running.waiting import open_request
from limpet.model.lease import READINESS, readiness, status_at
from limpet.model.limits import INT_MAX, KEY_PART_CHARS_MAX, QUERY_LABELS_MAX
from limpet.store.overview import WaitingPlace, WaitingQuery
from limpet.store.protocol import Query


class _Cursor(msgspec.Struct, frozen=True, array_like=True):
    query: Query
    mark: int  # the time that the order goes by
    row: int  # among equal times: the row


class _KeyCursor(msgspec.Struct, frozen=True, array_like=True):
    query: Query
    key: tuple[str, str, str]
    row: int  # among those deleted under one key: the row


class _WaitingCursor(msgspec.Struct, frozen=True, array_like=True):
    query: WaitingQuery
    label: str
    row: int


_DIGITS_MAX: Final = 19


def write(query: Query, mark: int, row: int) -> str:
    return _written(_Cursor(query, mark, row))


def write_key(query: Query, key: Key, row: int) -> str:
    """Return the cursor after a page in the order of keys."""
    return _written(_KeyCursor(query, (key.app, key.user, key.id), row))


def read(cursor: str, query: Query) -> tuple[int, int]:
    """mark and row of a cursor that this very query returned; raises InvalidCursor."""
    place: _Cursor = _read(cursor, _Cursor)
    if place.query != query or not max(abs(place.mark), abs(place.row)) <= INT_MAX:
        raise InvalidCursor
    return place.mark, place.row


def read_key(cursor: str, query: Query) -> tuple[Key, int]:
    """Key and row of a cursor that this very query returned; raises InvalidCursor."""
    place: _KeyCursor = _read(cursor, _KeyCursor)
    if place.query != query or abs(place.row) > INT_MAX:
        raise InvalidCursor
    try:
        return Key(*place.key), place.row
    except InvalidKey:
        raise InvalidCursor from None


def write_waiting(query: WaitingQuery, place: WaitingPlace) -> str:
    """Return the cursor after a page of open requests."""
    return _written(_WaitingCursor(query, *place))


def read_waiting(cursor: str, query: WaitingQuery) -> WaitingPlace:
    """The place in a cursor that this very query returned; raises InvalidCursor."""
    place: _WaitingCursor = _read(cursor, _WaitingCursor)
    known = open_request(place.label, "") is not None and 0 <= place.row <= INT_MAX
    if place.query != query or not known:
        raise InvalidCursor
    return place.label, place.row


def _written(cursor: _Cursor | _KeyCursor | _WaitingCursor) -> str:
    raw = msgspec.json.encode(cursor)
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _read(cursor: str, form: type[_Cursor | _KeyCursor | _WaitingCursor]) -> Any:
    try:
        raw = base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4))
        return msgspec.json.decode(raw, type=form, dec_hook=lambda kind, value: kind(value))
    except (AttributeError, UnicodeError, binascii.Error, msgspec.MsgspecError):
        raise InvalidCursor from None


def write_position(*numbers: int) -> str:
    """A position in a feed, as text."""
    return ".".join(map(str, numbers))


def read_position(position: str, count: int) -> tuple[int, ...]:
    """The numbers of a position in a feed; raises InvalidCursor."""
    parts = position.split(".") if isinstance(position, str) else []
    if len(parts) != count or not all(map(_is_number, parts)):
        raise InvalidCursor("feed")
    numbers = tuple(map(int, parts))
    if max(numbers) > INT_MAX:
        raise InvalidCursor("feed")
    return numbers


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


def check_position(position: str | None) -> str | None:
    """A text in the form of a position. Only the store knows whether it is one of its own."""
    if position is not None:
        read_position(position, position.count(".") + 1 if isinstance(position, str) else 1)
    return position


def check(query: Query) -> None:
    """Refuse what no index serves, in every store alike."""
    if query.order not in ("created", "updated", "key"):
        raise InvalidQuery(f"order is 'created', 'updated' or 'key', not {query.order!r}")
    texts = (query.app, query.user, query.schema_version, *query.labels, *query.labels.values())
    for text in texts:
        if text is not None and (reason := unfit(text, KEY_PART_CHARS_MAX)):
            raise InvalidQuery(f"the name {text!r} {reason}")
    if len(query.labels) > QUERY_LABELS_MAX:
        raise InvalidQuery(f"{len(query.labels)} labels at once, more than {QUERY_LABELS_MAX}")
    if query.user is not None and query.app is None:
        raise InvalidQuery("a user belongs to an app: name the app too")
    if query.labels and query.app is None:
        raise InvalidQuery("labels belong to an app: name the app too")
    if query.order == "updated" and (query.app is None or query.labels):
        raise InvalidQuery(
            "no index serves order='updated' for everything, nor with labels: name an app, or an "
            "app and a user, and no label; or leave the order to 'created', which serves all four"
        )
    if query.order == "key" and (query.app is None or query.labels):
        raise InvalidQuery(
            "order='key' is for an app, or an app and a user, without labels: name the app"
        )
    if query.phase not in (None, *PHASES):
        raise InvalidQuery(f"phase is one of {', '.join(PHASES)}, not {query.phase!r}")
    check_work(query.status, query.ready)
    if by_work(query) and (query.order != "created" or query.phase or query.deleted):
        raise InvalidQuery(
            "status and ready go with order='created' and without a phase: leave out the phase, or "
            "compare the sessions of the phase"
        )
    if not isinstance(query.prefix, str) or len(query.prefix) > KEY_PART_CHARS_MAX:
        raise InvalidQuery(f"prefix is the beginning of an id, not {query.prefix!r}")
    by_key = query.order == "key" or query.deleted
    if query.prefix and (not by_key or query.user is None):
        raise InvalidQuery("a prefix of the id goes with order='key', an app and a user")
    if query.deleted:
        _check_deleted(query)


def _check_deleted(query: Query) -> None:
    """A tombstone keeps its key and its times, and nothing else to go by."""
    if query.order != "created":
        raise InvalidQuery("deleted sessions come in the order of their keys: leave out the order")
    if query.labels or query.schema_version is not None or query.phase is not None:
        raise InvalidQuery(
            "a deleted session has neither labels, a phase nor a schema version: name an app or a "
            "user"
        )


def has_lent(query: Query) -> bool:
    """True if it asks for sessions of other users, too, that let its user in. A tombstone does not
    say whom it let in, and a prefix is of the user's own ids."""
    return query.lent and query.user is not None and not query.deleted and not query.prefix


def parts(query: Query) -> tuple[Query, ...]:
    """The queries that it is put together from, each of one index: the user's own sessions, those
    that name the user, and those of everybody. A session may be in two of them."""
    if query.user is None or not has_lent(query):
        return (query,)
    own = structs.replace(query, lent=False)
    labels = [FrozenDict({label: LENT_TO, **query.labels}) for label in lent_labels(query.user)]
    return (own, *[structs.replace(own, user=None, labels=each) for each in labels])


def is_elsewhere(query: Query, at: Key) -> bool:
    """True if a page in the order of keys ended with a session of another user than this one."""
    return query.user not in (None, at.user)


def is_ahead(query: Query, at: Key) -> bool:
    """True if then all sessions of the user come after that place, not before it."""
    user = query.user or ""
    return user < at.user if query.reverse else user > at.user


def by_phase(query: Query) -> bool:
    """True if the index of phases serves it: its rows come in the order of the rows."""
    asks = query.phase not in (None, ACTIVE) and query.order == "created"
    return asks and query.user is None and not query.labels


def check_work(status: object, ready: object) -> None:
    """Raise InvalidQuery for a status or a readiness that there is not."""
    if status not in (None, *STATUSES):
        raise InvalidQuery(f"status is one of {', '.join(STATUSES)}, not {status!r}")
    if ready not in (None, *READINESS):
        raise InvalidQuery(f"ready is one of {', '.join(READINESS)}, not {ready!r}")


def by_work(query: Query) -> bool:
    """True if it asks for what sessions do now, which changes with time and has no index."""
    return query.status is not None or query.ready is not None


def works(query: Query, head: Head, now_us: int) -> bool:
    """True if a head has the status and the readiness that are asked for, at this time."""
    return query.status in (None, status_at(head, now_us)) and (
        query.ready in (None, readiness(head, now_us))
    )


def passes(
    query: Query, created_us: int, updated_us: int, schema_version: str | None, phase: str
) -> bool:
    """True if a head that was met passes the filters that its order does not go by."""
    return (
        (query.created_after_us is None or created_us > query.created_after_us)
        and (query.created_before_us is None or created_us < query.created_before_us)
        and (query.updated_after_us is None or updated_us > query.updated_after_us)
        and (query.schema_version is None or schema_version == query.schema_version)
        and query.phase in (None, phase)
    )


def filters(query: Query) -> bool:
    """True if a page may have to pass over heads of the range it reads."""
    times = [query.created_after_us, query.created_before_us, query.updated_after_us]
    if by_phase(query):
        return query.schema_version is not None or any(time is not None for time in times)
    if query.order == "created":  # the range that is read is between these two
        times[:2] = []
    elif query.order == "updated":
        times[2:] = []
    asked = (query.schema_version, query.phase, query.status, query.ready, *times)
    return any(each is not None for each in asked)


def labels(wanted: Mapping[str, Any] | None) -> FrozenDict:
    """The labels of a query, checked to be texts."""
    if wanted is None:
        return EMPTY
    pairs = wanted.items() if isinstance(wanted, Mapping) else [(None, None)]
    if not all(isinstance(text, str) for pair in pairs for text in pair):
        raise InvalidQuery("labels takes names and values that are text, as in {'plan': 'gold'}")
    return FrozenDict(wanted)


def prefix_end(prefix: str) -> str | None:
    """The first text, by code points, after every one that begins so; None if there is none."""
    for end in range(len(prefix), 0, -1):
        point = ord(prefix[end - 1]) + 1
        if point == 0xD800:  # surrogates are not text
            point = 0xE000
        if point <= 0x10FFFF:
            return prefix[: end - 1] + chr(point)
    return None
