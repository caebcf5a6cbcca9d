"""Selecting: by type, by family, by page."""

from __future__ import annotations

from typing import Any

import pytest

from limpet.errors import InvalidQuery
from limpet.model.limits import PAGE_MAX
from limpet.session.arguments import check_limit, check_tail, check_types
from limpet.store.pages import wanted


@pytest.mark.parametrize(
    ("type", "types", "expected"),
    [
        ("user.message", None, True),
        ("user.message", (), False),
        ("user.message", ("user.message",), True),
        ("user.message", ("user.*",), True),
        ("user.message.edited", ("user.*",), True),
        ("user.message.edited", ("user.message",), False),
        ("user.message.edited", ("user.message.*",), True),
        ("user.message", ("user.message.*",), False),
        ("username.x", ("user.*",), False),
        ("User.x", ("user.*",), False),
        ("agent.x", ("user.*", "agent.x"), True),
        ("agent.x", ("agent.?", "agent.%"), False),
    ],
)
def test_a_name_selects_itself_and_a_family_its_members(
    type: str, types: tuple[str, ...] | None, expected: bool
) -> None:
    """Exactly: no wildcard but a final .* and no folding of case."""
    assert wanted(type, types) is expected


def test_types_may_be_any_iterable_of_names() -> None:
    """A list, a tuple, a set or a generator; None selects everything."""
    assert check_types(None) is None
    assert check_types(["a.b", "c.*"]) == ("a.b", "c.*")
    assert check_types(t for t in ("a.b",)) == ("a.b",)


@pytest.mark.parametrize("types", ["user.message", 5, [5], [""], [" x"], ["a\x00"], [None]])
def test_unfit_types_are_refused(types: Any) -> None:
    """A lone text is a likely mistake for a list of one."""
    with pytest.raises(InvalidQuery):
        check_types(types)


@pytest.mark.parametrize("limit", [0, -1, PAGE_MAX + 1, "5", 5.0, True, None])
def test_a_page_has_a_size(limit: Any) -> None:
    """From 1 to the bound, an integer."""
    with pytest.raises(InvalidQuery):
        check_limit(limit)


def test_the_bounds_themselves_are_allowed() -> None:
    """1, the bound, and 0 where a caller may ask for none."""
    assert (check_limit(1), check_limit(PAGE_MAX)) == (1, PAGE_MAX)
    assert (check_tail(0), check_tail(PAGE_MAX)) == (0, PAGE_MAX)
