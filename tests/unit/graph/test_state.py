"""State of a graph: folding, validation, the stored form, and changes as operations."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Annotated, Any
from uuid import UUID

import pytest
from annotated_types import MaxLen
from hypothesis import given, strategies as st
from pydantic import BaseModel, Field, field_serializer, model_validator

import limpet
from limpet.graph import (
    Message,
    Reducer,
    Replace,
    State,
    append,
    bounded_append,
    concat_flatten,
    dedupe_append,
    merge,
    merge_all,
    merge_by_key,
)
from limpet.graph.state import Contributions, plan_of
from limpet.model.ops import apply
from limpet.model.values import freeze


class Task(BaseModel):
    id: int
    title: str = ""
    done: bool = False


class Board(State):
    n: int = 0
    words: Annotated[list[str], append] = []
    flat: Annotated[list[int], concat_flatten] = []
    facts: Annotated[dict[str, int], merge] = {}
    all: Annotated[dict[str, int], merge_all] = {}
    recent: Annotated[list[int], bounded_append(max_len=3)] = []
    unique: Annotated[list[Task], dedupe_append("id")] = []
    distinct: Annotated[list[int], dedupe_append()] = []
    tasks: Annotated[list[Task], merge_by_key(key="id")] = []
    told: Annotated[list[Task], dedupe_append(key=lambda task: task.title.lower())] = []
    named: Annotated[list[Task], merge_by_key(lambda task: task.title.lower())] = []
    bare: Annotated[list, concat_flatten] = []  # type: ignore[type-arg]  # of anything
    loose: Annotated[dict, merge_all] = {}  # type: ignore[type-arg]  # of anything
    few: Annotated[list[int], append, MaxLen(3)] = []
    pair: Annotated[tuple[int, ...], append] = ()


PLAN = plan_of(Board)


@pytest.mark.parametrize(
    ("field", "updates", "expected"),
    [
        ("n", [1, 5], 5),
        ("words", [["a"], ["b", "c"], []], ["a", "b", "c"]),
        ("flat", [[[1], [2, 3]], [[]], [[4]]], [1, 2, 3, 4]),
        ("facts", [{"a": 1, "b": 2}, {"b": 3}], {"a": 1, "b": 3}),
        ("all", [[{"a": 1}, {"b": 2}], [{"a": 3}]], {"a": 3, "b": 2}),
        ("recent", [[1, 2], [3, 4]], [2, 3, 4]),
        ("unique", [[Task(id=1)], [Task(id=1, title="x"), Task(id=2)]], [Task(id=1), Task(id=2)]),
        ("distinct", [[1, 2], [2, 3, 3]], [1, 2, 3]),
        (
            "tasks",
            [[Task(id=1, title="a")], [Task(id=1, done=True), Task(id=2)]],
            [Task(id=1, done=True), Task(id=2)],  # whole: nothing of the old one is kept
        ),
        (
            "tasks",
            [Replace([Task(id=1), Task(id=1, title="b"), Task(id=2)]), [Task(id=1, title="c")]],
            [Task(id=1), Task(id=1, title="c"), Task(id=2)],  # the last of those that it has
        ),
        (
            "tasks",
            [[Task(id=1)], [Task(id=3), Task(id=2), Task(id=1, title="x"), Task(id=3, done=True)]],
            [Task(id=1, title="x"), Task(id=3, done=True), Task(id=2)],
        ),
        (
            "told",
            [[Task(id=1, title="a")], [Task(id=2, title="A"), Task(id=3, title="b")]],
            [Task(id=1, title="a"), Task(id=3, title="b")],  # the first wins
        ),
        (
            "named",
            [[Task(id=1, title="a")], [Task(id=2, title="A"), Task(id=3, title="b")]],
            [Task(id=2, title="A"), Task(id=3, title="b")],
        ),
        ("words", [["a"], Replace(["z"])], ["z"]),
        ("pair", [[1], (2, 3)], (1, 2, 3)),
        ("tasks", [[{"id": 7, "title": "from a dict"}]], [Task(id=7, title="from a dict")]),
    ],
)
def test_a_reducer_folds_updates_in(field: str, updates: list[Any], expected: Any) -> None:
    """Each reducer combines what the field holds with what a node returns."""
    state = Board()
    for update in updates:
        state = PLAN.apply(state, {field: update}, "node")
    assert getattr(state, field) == expected
    assert isinstance(state, Board)


@pytest.mark.parametrize(
    ("update", "error", "fields"),
    [
        ({"words": "abc"}, limpet.errors.ReducerError, None),
        ({"words": None}, limpet.errors.ReducerError, None),
        ({"facts": [1]}, limpet.errors.ReducerError, None),
        ({"flat": [1]}, limpet.errors.ReducerError, None),
        ({"flat": [["many"]]}, limpet.errors.StateValidationError, ("flat.0.0",)),
        ({"bare": [["a"], "not a list"]}, limpet.errors.ReducerError, None),
        ({"bare": [["a"], None]}, limpet.errors.ReducerError, None),
        ({"loose": [{"a": 1}, ["b"]]}, limpet.errors.ReducerError, None),
        ({"told": [Task(id=1), 7]}, limpet.errors.StateValidationError, ("told.1",)),
        ({"tasks": [{"title": "no key"}]}, limpet.errors.StateValidationError, ("tasks.0.id",)),
        ({"words": [1]}, limpet.errors.StateValidationError, ("words.0",)),
        ({"n": "many"}, limpet.errors.StateValidationError, ("n",)),
        ({"few": [1, 2, 3, 4]}, limpet.errors.StateValidationError, ("few",)),
        ({"nothing": 1}, limpet.errors.StateValidationError, ("nothing",)),
        ({3: 1}, limpet.errors.StateValidationError, ("3",)),
        (None, limpet.errors.StateValidationError, ()),
        ([("n", 1)], limpet.errors.StateValidationError, ()),
    ],
)
def test_a_wrong_update_names_its_field_and_changes_nothing(
    update: Any, error: type[Exception], fields: Any
) -> None:
    """The error has the state from before, the node, and which fields are wrong."""
    before = Board(words=["a"])
    with pytest.raises(error) as info:
        PLAN.apply(before, update, "node")
    assert info.value.recoverable_state is before  # type: ignore[attr-defined]
    assert info.value.node == "node"  # type: ignore[attr-defined]
    if fields is not None:
        assert info.value.invalid_fields == fields  # type: ignore[attr-defined]
    assert before == Board(words=["a"])


class Faulty(Reducer, frozen=True):
    def fold(self, old: Any, update: Any, field: str = "field") -> Any:
        raise KeyError("nobody home")


class Own(State):
    word: Annotated[str, Faulty()] = ""


def test_a_reducer_that_raises_is_a_reducer_error_with_its_cause() -> None:
    """Whatever a reducer of the user's own raises is kept as the cause."""
    with pytest.raises(limpet.errors.ReducerError, match="nobody home") as info:
        plan_of(Own).apply(Own(), {"word": "x"}, "node")
    assert isinstance(info.value.__cause__, KeyError)


def test_a_state_is_frozen_and_forbids_what_it_does_not_declare() -> None:
    """Neither a node nor a caller changes a state in place."""
    with pytest.raises(ValueError, match="frozen"):
        Board().n = 3  # type: ignore[misc]
    with pytest.raises(ValueError, match="Extra inputs"):
        Board(nothing=1)  # type: ignore[call-arg]


def test_an_update_does_not_alias_what_the_node_keeps() -> None:
    """A node that goes on changing its list changes no state."""
    mine = ["a"]
    state = PLAN.apply(Board(), {"words": mine}, "node")
    mine.append("b")
    assert state.words == ["a"]


class Checked(State):
    low: int = 0
    high: int = 10
    log: Annotated[list[str], append] = []

    @model_validator(mode="after")
    def _ordered(self) -> Checked:
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


def test_a_class_with_validators_is_validated_whole() -> None:
    """A rule between fields holds at every node boundary."""
    plan = plan_of(Checked)
    state = plan.apply(Checked(), {"low": 5, "log": ["a"]}, "node")
    with pytest.raises(limpet.errors.StateValidationError, match="low is above high") as info:
        plan.apply(state, {"high": 1}, "node")
    assert info.value.recoverable_state is state
    assert plan.changes(Checked(), state, {"low": 5, "log": ["a"]}, ("s",))


# --- the stored form ------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"


class Anything(State):
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    took: timedelta = timedelta(seconds=1)
    price: Decimal = Decimal("1.10")
    who: UUID = UUID(int=7)
    raw: bytes = b"\xff\x00"
    tags: set[str] = {"a"}
    by_number: dict[int, str] = {1: "one"}
    colour: Colour = Colour.RED
    path: PurePosixPath = PurePosixPath("/tmp")
    task: Task | None = None
    pets: list[Annotated[int | str, Field(union_mode="left_to_right")]] = [1, "two"]
    message: Message = Message(role="user", content="hi")


def test_any_pydantic_type_comes_back_from_its_stored_form() -> None:
    """Fields are stored in JSON mode and read back as what they were."""
    plan, state = plan_of(Anything), Anything(task=Task(id=1))
    plain = plan.dump(state)
    assert plan.load(plain, "here") == state
    assert plain["at"] == "2026-01-01T00:00:00Z"
    assert plain["raw"] == "_wA="


class Odd(State):
    ratio: complex = 1j

    @field_serializer("ratio")
    def _pair(self, ratio: complex) -> str:
        return str(ratio)


def test_serializers_of_the_class_are_used() -> None:
    """A field that needs a serializer of its own is stored by it, also as a change."""
    plan = plan_of(Odd)
    new = plan.apply(Odd(), {"ratio": 2 + 1j}, "node")
    assert plan.load(plan.dump(new), "here") == new
    ops = plan.changes(Odd(), new, {"ratio": 2 + 1j}, ())
    assert [op.value for op in ops] == ["(2+1j)"]  # type: ignore[union-attr]


@pytest.mark.parametrize("plain", [{"n": "x"}, {"extra": 1}, {"n": object()}])
def test_a_stored_state_that_does_not_fit_is_refused(plain: dict[str, Any]) -> None:
    """What a store returns is validated like anything else."""
    with pytest.raises(limpet.errors.StateValidationError, match="the session"):
        PLAN.load(plain, "the session")


_tasks = st.lists(
    st.builds(Task, id=st.integers(0, 5), title=st.sampled_from(["", "a", "b"])), max_size=3
)
_updates = st.fixed_dictionaries(
    {},
    optional={
        "n": st.integers(0, 9),
        "words": st.lists(st.sampled_from("abc"), max_size=3)
        | st.builds(Replace, st.lists(st.sampled_from("abc"), max_size=3)),
        "flat": st.lists(st.lists(st.integers(0, 3), max_size=2), max_size=2),
        "facts": st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), max_size=2)
        | st.builds(Replace, st.dictionaries(st.sampled_from("ab"), st.integers(0, 3))),
        "all": st.lists(st.dictionaries(st.sampled_from("ab"), st.integers(0, 3)), max_size=2),
        "recent": st.lists(st.integers(0, 9), max_size=4),
        "unique": _tasks,
        "distinct": st.lists(st.integers(0, 9), max_size=3),
        "tasks": _tasks,
        "few": st.lists(st.integers(0, 9), max_size=1),
        "pair": st.lists(st.integers(0, 9), max_size=2),
    },
)


@given(st.lists(_updates | st.lists(_updates, max_size=3).map(Contributions), max_size=8))
def test_changes_lead_from_one_stored_form_to_the_next(updates: list[Any]) -> None:
    """Applied to the stored state before, the operations give the stored state after."""
    state, stored = Board(), freeze({"s": PLAN.dump(Board())})
    for update in updates:
        try:
            new = PLAN.apply(state, update, "node")
        except limpet.errors.StateValidationError:
            continue  # more items than `few` may have
        stored = apply(stored, PLAN.changes(state, new, update, ("s",)))
        state = new
        assert stored["s"] == PLAN.dump(state)


def test_adding_to_a_long_list_stores_the_addition() -> None:
    """One new message in a list of a thousand is one operation with one item."""
    old = Board(words=["w"] * 1_000)
    new = PLAN.apply(old, {"words": ["one"], "n": 1}, "node")
    ops = PLAN.changes(old, new, {"words": ["one"], "n": 1}, ("s",))
    assert [(type(op).__name__, op.path) for op in ops] == [
        ("Add", ("s", "words")),
        ("Set", ("s", "n")),
    ]
    assert ops[0].items == ["one"]  # type: ignore[union-attr]
