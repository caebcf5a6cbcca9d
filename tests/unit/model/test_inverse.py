"""Every op has an exact inverse: random states, random ops, and back again."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import assume, given, strategies as st

from limpet import ops
from limpet.errors import LimpetError
from limpet.model.ops import apply, check, inverse
from limpet.model.values import canonical, freeze
from tests.support.examples import examples

NAMES = st.sampled_from(["a", "b", "c", "app:d"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | st.sampled_from(["", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)
STATES = st.dictionaries(NAMES, VALUES, max_size=4).map(freeze)
PATHS = st.tuples(NAMES).flatmap(
    lambda first: st.lists(NAMES | st.integers(0, 3), max_size=2).map(lambda rest: (*first, *rest))
)
OPS = st.one_of(
    st.builds(ops.Set, PATHS, VALUES.map(freeze)),
    st.builds(ops.Delete, PATHS),
    st.builds(ops.Add, PATHS, st.lists(VALUES, max_size=3).map(freeze)),
    st.builds(ops.Insert, PATHS, st.integers(0, 3), st.lists(VALUES, max_size=3).map(freeze)),
    st.builds(ops.Merge, PATHS, st.dictionaries(NAMES, VALUES, max_size=3).map(freeze)),
    st.builds(ops.Inc, PATHS, st.integers(-3, 3) | st.floats(-1e300, 1e300)),
    st.builds(
        lambda path, a, b: ops.Cut(path, min(a, b), max(a, b)),
        PATHS,
        st.integers(0, 3),
        st.integers(0, 3),
    ),
)


@st.composite
def fitting(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    """A state and some ops that apply to it, one after the other."""
    state = draw(STATES)
    now, fit = state, []
    for op in draw(st.lists(OPS, min_size=1, max_size=8)):
        try:
            now = apply(now, [check(op)])
        except LimpetError:
            continue
        fit.append(op)
    assume(fit)
    return state, fit


@examples(100)
@given(fitting())
def test_the_inverses_in_reverse_give_the_original(case: tuple[Any, list[Any]]) -> None:
    """Not merely equal: the canonical bytes, kinds of number included, are the same."""
    state, given_ops = case
    now, back = state, []
    for op in given_ops:
        back.append(inverse(now, op))
        now = apply(now, [op])
    for inverses in reversed(back):
        now = apply(now, [check(op) for op in inverses])
    assert canonical(now) == canonical(state)


@examples(60)
@given(fitting())
def test_applying_at_once_is_applying_one_by_one(case: tuple[Any, list[Any]]) -> None:
    """A batch of ops is the ops in order."""
    state, given_ops = case
    one_by_one = state
    for op in given_ops:
        one_by_one = apply(one_by_one, [op])
    assert canonical(apply(state, given_ops)) == canonical(one_by_one)


@examples(60)
@given(STATES, st.lists(OPS, max_size=6))
def test_no_op_ever_touches_the_given_state(state: Any, given_ops: list[Any]) -> None:
    """Whether it applies or is refused, what went in is unchanged, and only our errors come out."""
    before = canonical(state)
    with suppress(LimpetError):
        apply(state, given_ops)
    assert canonical(state) == before
