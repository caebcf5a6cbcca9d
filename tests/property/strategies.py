"""What Hypothesis draws from: values, names, operations, drafts."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

import limpet
from limpet import ops

SESSION_NAMES: Final = ("a", "b", "list", "dict", "n")
SCOPED_NAMES: Final = ("app:n", "app:list", "app:dict", "user:n", "user:list")
TEMP_NAMES: Final = ("temp:t",)
NAMES: Final = (*SESSION_NAMES, *SCOPED_NAMES, *TEMP_NAMES)
TYPES: Final = ("user.said", "user.sent", "agent.said", "tool.ran", "agent.deep.thought")
GIVEN_IDS: Final = ("one", "two", "three", "01890a5d-ac96-774b-bcce-b302099a8057")

scalars: Final = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12),
    st.just("a text that is long enough to be worth a reference in an operation, is it not?"),
)
values: Final = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
names: Final = st.sampled_from(NAMES)
small_dicts: Final = st.dictionaries(st.sampled_from("kxy"), values, max_size=2)
numbers: Final = st.integers(-3, 3) | st.sampled_from([0.5, 2**62, 1e308])


def _paths() -> st.SearchStrategy[tuple[str | int, ...]]:
    deeper = st.sampled_from(["k", "x", 0, 1])
    return st.builds(lambda name, more: (name, *more), names, st.lists(deeper, max_size=2))


any_op: Final = st.one_of(
    st.builds(ops.Set, _paths(), values),
    st.builds(ops.Delete, _paths()),
    st.builds(ops.Add, _paths(), st.lists(values, max_size=2)),
    st.builds(ops.Insert, _paths(), st.integers(0, 2), st.lists(values, max_size=2)),
    st.builds(ops.Merge, _paths(), small_dicts),
    st.builds(ops.Inc, _paths(), numbers),
    st.builds(
        lambda path, start, more: ops.Cut(path, start, start + more),
        _paths(),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    st.builds(ops.SetRef, _paths(), st.sampled_from([("text",), ("deep", "er"), ("none",)])),
    st.builds(ops.AddRef, _paths(), st.sampled_from([("text",), ("deep",)])),
    st.builds(ops.MergeRef, _paths(), st.sampled_from([("deep",), ("text",)])),
)

# Mostly what fits, so that sessions grow; sometimes what does not, so that refusals are met.
_fitting: Final = st.fixed_dictionaries(
    {},
    optional={
        "set": st.dictionaries(
            st.sampled_from(["a", "b", "app:dict", "temp:t"]), values, max_size=2
        ),
        "merge": st.dictionaries(st.sampled_from(["dict", "app:dict"]), small_dicts, max_size=1),
        "add": st.dictionaries(
            st.sampled_from(["list", "app:list", "user:list"]),
            st.lists(values, max_size=2),
            max_size=2,
        ),
        "inc": st.dictionaries(
            st.sampled_from(["n", "app:n", "user:n"]), st.integers(-3, 3), max_size=2
        ),
    },
)
_anything: Final = st.fixed_dictionaries(
    {},
    optional={
        "set": st.dictionaries(names, values, max_size=2),
        "merge": st.dictionaries(names, small_dicts, max_size=1),
        "add": st.dictionaries(names, st.lists(values, max_size=2), max_size=1),
        "inc": st.dictionaries(names, numbers, max_size=2),
        "delete": st.lists(names, max_size=1),
        "ops": st.lists(any_op, max_size=2),
    },
)
_data: Final = st.fixed_dictionaries(
    {}, optional={"text": st.text(max_size=60), "deep": small_dicts, "x": values}
)


@st.composite
def drafts(draw: st.DrawFn, *, temp: bool = True) -> dict[str, Any]:
    """The arguments of an append, with or without changes to temp: names."""
    data = draw(_data)
    more = draw(_fitting if draw(st.integers(0, 3)) else _anything)
    made: dict[str, Any] = {"type": draw(st.sampled_from(TYPES)), "data": data, **more}
    if "text" in data and draw(st.booleans()):  # said and remembered: the very same object
        made["set"] = {**made.get("set", {}), "a": data["text"]}
    if draw(st.integers(0, 3)) == 0:
        made["id"] = draw(st.sampled_from(GIVEN_IDS))
    if draw(st.integers(0, 5)) == 0:
        made["cause"] = draw(st.sampled_from(GIVEN_IDS))
        made["correlation_id"] = "c-1"
    return made if temp else _without_temp(made)


def append_arguments(draft: dict[str, Any]) -> dict[str, Any]:
    """The same draft as Session.append takes it: with its ids in one trace."""
    made = dict(draft)
    ids = {name: made.pop(name) for name in ("cause", "correlation_id") if name in made}
    return {**made, "trace": limpet.Trace(**ids)} if ids else made


def _without_temp(made: dict[str, Any]) -> dict[str, Any]:
    left = dict(made)
    for verb in ("set", "merge", "add", "inc"):
        if verb in made:
            left[verb] = {name: v for name, v in made[verb].items() if name not in TEMP_NAMES}
    for verb in ("delete", "ops"):
        if verb in made:
            left[verb] = [item for item in made[verb] if _named(item) not in TEMP_NAMES]
    return left


def _named(item: Any) -> Any:
    return item if isinstance(item, str) else item.path[0]
