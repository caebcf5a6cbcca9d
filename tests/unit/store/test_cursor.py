"""Cursors: passed back unchanged, or refused."""

from __future__ import annotations

import base64
import json
import string
from typing import Any

import pytest

from limpet.errors import InvalidCursor, InvalidQuery
from limpet.model.values import FrozenDict
from limpet.store import cursor
from limpet.store.protocol import Query

QUERIES = [
    Query(),
    Query(app="shop"),
    Query(app="shop", user="ada"),
    Query(app="shop", labels=FrozenDict({"plan": "gold"})),
    Query(app="shop", labels=FrozenDict({"plan": "free", "ü": "😀"})),
    Query(app="shop", order="updated"),
    Query(app="shop", order="updated", updated_after_us=5),
    Query(reverse=False),
    Query(created_after_us=5),
]


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_a_cursor_reads_back_for_its_own_query_only(query: Query) -> None:
    """Mark and row come back exactly; every other query refuses it."""
    made = cursor.write(query, 2**62, 7)
    assert cursor.read(made, query) == (2**62, 7)
    for other in QUERIES:
        if other != query:
            with pytest.raises(InvalidCursor):
                cursor.read(made, other)


def test_a_cursor_is_safe_in_a_url() -> None:
    """Nothing in it needs quoting."""
    made = cursor.write(QUERIES[4], 1, 2)
    assert set(made) <= set(string.ascii_letters + string.digits + "-_")


def test_labels_in_another_order_are_the_same_query() -> None:
    """A cursor does not depend on how the caller's dict was built."""
    one = Query(app="a", labels=FrozenDict({"x": "1", "y": "2"}))
    two = Query(app="a", labels=FrozenDict({"y": "2", "x": "1"}))
    assert cursor.read(cursor.write(one, 1, 2), two) == (1, 2)


def _spelled(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "x",
        "!!!!",
        "é",
        "\ud800",
        _spelled(None),
        _spelled([]),
        _spelled([{}, "1", 2]),
        _spelled([{}, 1, None]),
        _spelled([{"labels": [1]}, 1, 2]),
        _spelled([{"labels": "x"}, 1, 2]),
        _spelled([5, 1, 2]),
        None,
        5,
        b"bytes",
        ["list"],
    ],
    ids=repr,
)
def test_what_is_no_cursor_is_refused(wrong: Any) -> None:
    """Whatever a caller passes, the answer is InvalidCursor."""
    with pytest.raises(InvalidCursor) as info:
        cursor.read(wrong, Query())
    assert info.value.code == "query.cursor"


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_indexed_queries_pass(query: Query) -> None:
    """Every query that an index serves is admitted."""
    cursor.check(query)


def test_labels_are_texts() -> None:
    """None means no label; anything but texts is an invalid query."""
    assert cursor.labels(None) == {}
    assert cursor.labels({"plan": "gold"}) == {"plan": "gold"}
    for wrong in ({"plan": 5}, {5: "x"}, {"plan": None}, ["plan"], "plan", 5):
        with pytest.raises(InvalidQuery):
            cursor.labels(wrong)  # type: ignore[arg-type]  # wrong on purpose
