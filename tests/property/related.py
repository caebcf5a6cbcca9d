"""States that have something to do with each other: one is made from the other by small edits."""

from __future__ import annotations

import copy
from typing import Any, Final

from hypothesis import strategies as st

from limpet.model.values import thaw

TOP_NAMES: Final = ("a", "b", "plan", "app:n", "user:x", "temp:t", "é", "日本", "a.b", "x[0]", "0")
INNER_NAMES: Final = (*TOP_NAMES, "", " ", "\n", "'", "…", "\x7f")

# Values that `==` confuses, and a few that it does not.
scalars: Final = st.sampled_from(
    [None, True, False, 0, 1, -1, 0.0, -0.0, 1.0, 1e22, 5e-324, 2**63 - 1, -(2**63)]
) | st.sampled_from(["", "1", "a", "é", "\x00\x1b[31m", "😀", 'quote " and \\', "long " * 30])
values: Final[st.SearchStrategy[Any]] = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.sampled_from(INNER_NAMES), inner, max_size=4)
    ),
    max_leaves=12,
)
states: Final = st.dictionaries(st.sampled_from(TOP_NAMES), values, max_size=5)


def nested(depth: int, leaf: Any) -> Any:
    """A value under so many levels, dicts and lists by turns."""
    for level in range(depth):
        leaf = {"k": leaf, "s": level} if level % 2 else [level, leaf]
    return leaf


@st.composite
def edited(draw: st.DrawFn, value: Any) -> Any:
    """The value after one small edit somewhere inside; the given one is left as it is."""
    value = copy.copy(value)
    if isinstance(value, dict) and value and draw(st.integers(0, 3)):
        name = draw(st.sampled_from(sorted(value)))
        match draw(st.integers(0, 4)):
            case 0:
                del value[name]
            case 1:
                value = {other: value[other] for other in reversed(value)}
            case _:
                value[name] = draw(edited(value[name]))
        return value
    if isinstance(value, list) and value and draw(st.integers(0, 4)):
        return _edited_list(draw, value)
    if isinstance(value, dict):
        value[draw(st.sampled_from(TOP_NAMES))] = draw(values)
        return value
    return draw(values)


def _edited_list(draw: st.DrawFn, value: list[Any]) -> list[Any]:
    at = draw(st.integers(0, len(value) - 1))
    match draw(st.integers(0, 7)):
        case 0:
            value += draw(st.lists(values, min_size=1, max_size=2))
        case 1:
            del value[at:]
        case 2:
            del value[at]
        case 3:
            value.insert(at, draw(values))
        case 4:
            value = [*value[at:], *value[:at]]
        case 5:
            value = [*value[1:], draw(values)]
        case _:
            value[at] = draw(edited(value[at]))
    return value


@st.composite
def versions(draw: st.DrawFn, of: st.SearchStrategy[Any] = states) -> tuple[Any, Any]:
    """Two states: mostly one a few edits after the other, sometimes strangers."""
    before = draw(of | _deep() | _wide()) if of is states else draw(of)
    if draw(st.integers(0, 4)) == 0:
        return before, draw(of)
    after = copy.deepcopy(before)
    for _ in range(draw(st.integers(0, 4))):
        after = draw(edited(after))
    return before, (after if isinstance(after, dict) or of is not states else {"a": after})


def _deep() -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda depth, leaf: {"deep": nested(depth, leaf)}, st.integers(1, 40), scalars)


def _wide() -> st.SearchStrategy[dict[str, Any]]:
    """More items and names than are compared one by one."""
    item = st.sampled_from([0.0, -0.0, 1, True, "x", None])
    return st.builds(
        lambda count, leaf, flat: {
            "wide": [leaf if flat else {"i": i, "v": [leaf]} for i in range(count)],
            "names": {f"n{i}": leaf for i in range(count)},
        },
        st.sampled_from([9, 70, 515]),
        item,
        st.booleans(),
    )


@st.composite
def sides(draw: st.DrawFn) -> tuple[Any, Any, Any]:
    """A base and what two sides made of it."""
    base, a = draw(versions())
    b = copy.deepcopy(base)
    for _ in range(draw(st.integers(0, 4))):
        b = draw(edited(b))
    return base, a, (b if isinstance(b, dict) else {"a": thaw(b)})
