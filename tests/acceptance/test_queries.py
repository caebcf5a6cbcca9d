"""Questions at and beyond their bounds: answered or refused, never passed on to a database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from limpet import Limpet, Session
from limpet.errors import InvalidCursor, InvalidQuery
from limpet.model.limits import QUERY_LABELS_MAX, QUERY_TYPES_MAX
from limpet.store import cursor as cursors
from limpet.store.protocol import Query

Ask = Callable[[Limpet, Session], Awaitable[Any]]


def labels(count: int) -> dict[str, str]:
    return {f"l{number}": "x" for number in range(count)}


def types(count: int) -> list[str]:
    return [f"a.b{number}" for number in range(count)]


REFUSED: dict[str, Ask] = {
    "app with a surrogate": lambda lp, s: lp.list(app="\ud800"),
    "app with a zero": lambda lp, s: lp.list(app="a\0b"),
    "app too long": lambda lp, s: lp.list(app="a" * 257),
    "app empty": lambda lp, s: lp.list(app=""),
    "app of another kind": lambda lp, s: lp.list(app=5),  # type: ignore[arg-type]  # wrong on purpose
    "user with a surrogate": lambda lp, s: lp.list(app="a", user="\udfff"),
    "label with a surrogate": lambda lp, s: lp.list(app="a", labels={"\ud800": "x"}),
    "label value with a surrogate": lambda lp, s: lp.list(app="a", labels={"x": "\ud800"}),
    "many labels": lambda lp, s: lp.list(app="a", labels=labels(70)),
    "one label too many": lambda lp, s: lp.list(app="a", labels=labels(QUERY_LABELS_MAX + 1)),
    "after past 64 bits": lambda lp, s: s.read(after=2**64),
    "after at 63 bits": lambda lp, s: s.read(after=2**63),
    "before past 64 bits": lambda lp, s: s.read(before=2**64),
    "many types": lambda lp, s: s.read(types=types(5_000)),
    "one type too many": lambda lp, s: s.read(types=types(QUERY_TYPES_MAX + 1)),
    "type with a surrogate": lambda lp, s: s.read(types=["a.\ud800"]),
    "type of another kind": lambda lp, s: s.read(types=[5]),  # type: ignore[list-item]  # wrong on purpose
}


@pytest.mark.parametrize("ask", REFUSED.values(), ids=REFUSED.keys())
async def test_a_question_that_no_store_can_answer_is_refused(
    lp: Limpet, s: Session, ask: Ask
) -> None:
    """The same in every store, and the next question is answered."""
    with pytest.raises(InvalidQuery):
        await ask(lp, s)
    assert (await s.read(after=1))[0].seq == 2


async def test_a_question_at_its_bounds_is_answered(lp: Limpet, s: Session) -> None:
    """The most labels, the most types, the largest seq."""
    assert (await lp.list(app="support", labels=labels(QUERY_LABELS_MAX))).items == ()
    assert await s.read(types=types(QUERY_TYPES_MAX)) == ()
    assert await s.read(after=2**63 - 1) == ()
    assert [e.seq for e in await s.read(before=2**63 - 1)] == [2, 1]


@pytest.mark.parametrize(
    ("mark", "row"), [(2**70, 1), (1, 2**70), (-(2**70), 1), (1, -(2**70)), (2**63, 2**63)]
)
@pytest.mark.usefixtures("s")
async def test_a_forged_cursor_is_refused(lp: Limpet, mark: int, row: int) -> None:
    """Numbers that no page ends at do not reach a database."""
    query = Query(app="support", reverse=True, lent=True)
    assert len((await lp.list(app="support", cursor=cursors.write(query, 2**62, 1))).items) == 1
    with pytest.raises(InvalidCursor):
        await lp.list(app="support", cursor=cursors.write(query, mark, row))
