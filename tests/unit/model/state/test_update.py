"""Updates: checked before anything, compiled to operations, guarded where they must be."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, Field, field_validator, model_validator

from limpet import Record, Replace, State
from limpet.errors import SchemaViolation
from limpet.model import ops
from limpet.model.ops import Add, Cut, Merge, Set
from limpet.model.state.reducers import append, bounded_append, dedupe_append, merge, merge_by_key
from limpet.model.state.state import decode_fields, encode_fields
from limpet.model.state.update import Planned, plan_update
from limpet.model.values import freeze
from tests.support.declared import Message, Reduced, Role

HI = {"id": "1", "text": "hi", "role": "user"}
YO = {"id": "2", "text": "yo", "role": "agent"}


def test_an_update_is_the_operations_of_its_reducers() -> None:
    """Records, plain dicts for records, and plain values; in the order they were given."""
    planned = plan_update(
        Reduced,
        {"appended": [HI]},
        {
            "appended": [Message(id="2", text="yo", role=Role.AGENT)],
            "last": [{"id": "1", "text": "hi"}],
            "merged": {"a": 1},
            "all_merged": [{"a": 1}, {"b": 2}],
            "concat": [[Message(id="1", text="hi")], []],
            "tuple_": (Message(id="1", text="hi"),),
        },
    )
    assert planned == Planned(
        (
            Add(("appended",), [YO]),
            Set(("last",), [HI]),
            Merge(("merged",), {"a": 1}),
            Merge(("all_merged",), {"a": 1, "b": 2}),
            Add(("concat",), [HI]),
            Add(("tuple_",), [HI]),
        )
    )


def test_what_was_looked_at_is_guarded() -> None:
    """The fields whose operations rest on what they held, and no others."""
    message = Message(id="9", text="")
    update = {name: [message] for name in ("appended", "bounded", "dedupe", "keyed")}
    fields = {"bounded": [HI, HI, HI], "dedupe": [HI], "keyed": [{**HI, "id": "9", "new": 1}]}
    planned = plan_update(Reduced, freeze(fields), update)
    nine = {"id": "9", "text": "", "role": "user"}
    assert planned.guards == ("bounded", "dedupe", "keyed")
    assert planned.ops == (
        Add(("appended",), [nine]),
        Add(("bounded",), [nine]),
        Cut(("bounded",), 0, 1),
        Add(("dedupe",), [nine]),
        Merge(("keyed", 0), {"text": ""}),
    )


@pytest.mark.parametrize(
    ("update", "field", "expected"),
    [
        ({"nothing": 1}, "nothing", "a field of Reduced"),
        ({7: 1}, "7", "a field of Reduced"),
        ({"app:x": 1}, "app:x", "a field of Reduced"),
        ({"schema_version": "2.0.0"}, "schema_version", "a field of Reduced"),
        ({"appended": Message(id="1", text="")}, "appended", "list of Message"),
        ({"appended": [1]}, "appended[0]", "Message"),
        ({"appended": [{"id": "1", "text": 2}]}, "appended[0].text", "str"),
        ({"appended": [{"id": "1", "text": "", "z": 1}]}, "appended[0].z", "a field of Message"),
        ({"appended": (Message(id="1", text=""),)}, "appended", "list of Message"),
        ({"concat": [Message(id="1", text="")]}, "concat[0]", "list of Message"),
        ({"merged": [1]}, "merged", "dict of str to int"),
        ({"merged": {"a": "1"}}, "merged.a", "int"),
        ({"all_merged": {"a": 1}}, "all_merged", "list of dict of str to int"),
        ({"last": None}, "last", "list of Message"),
        ({"tuple_": [Message(id="1", text="")]}, "tuple_", "tuple of Message"),
        ([("last", [])], "update", "a dict of fields"),
    ],
    ids=str,
)
def test_a_wrong_update_is_refused_before_anything(update: Any, field: str, expected: str) -> None:
    """Also when the rest of it is right, and whatever the fields hold."""
    if isinstance(update, dict):
        update = {"merged": {"fine": 1}, **update}
    with pytest.raises(SchemaViolation) as caught:
        plan_update(Reduced, {"merged": "damaged"}, update)
    assert (caught.value.field, caught.value.expected) == (field, expected)


def test_a_field_that_holds_another_kind_is_a_violation() -> None:
    """What other code left there is named, not overwritten."""
    with pytest.raises(SchemaViolation) as caught:
        plan_update(Reduced, {"appended": {"a": 1}}, {"appended": []})
    assert caught.value.field == "appended"


class Seeded(State):
    notes: Annotated[list[str], append] = ["first"]
    limits: Annotated[dict[str, int], merge] = Field(default_factory=lambda: {"tries": 3})
    few: Annotated[list[str], bounded_append(2)] = ["x", "y"]
    plain: int = 7


def test_a_default_that_was_never_stored_is_part_of_the_field() -> None:
    """Updating a field that newer code declared begins from its default, as the view shows it."""
    update = {"notes": ["second"], "limits": {"seconds": 9}, "few": ["z"], "plain": 8}
    planned = plan_update(Seeded, {}, update)
    fields = ops.apply(freeze({}), planned.ops)
    assert fields == {
        "notes": ["first", "second"],
        "limits": {"tries": 3, "seconds": 9},
        "few": ["y", "z"],
        "plain": 8,
    }
    assert planned.guards == ("notes", "limits", "few")
    assert plan_update(Seeded, fields, {"notes": ["x"]}) == Planned((Add(("notes",), ["x"]),))


def test_appending_looks_at_no_item_that_is_there() -> None:
    """Ten thousand messages or none: nothing of them is validated, encoded or copied."""

    class Untouchable(list[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("the old items were looked at")

        __getitem__ = __iter__  # type: ignore[assignment]

    update = {"appended": [Message(id="2", text="yo", role=Role.AGENT)], "merged": {}}
    held = Untouchable([HI] * 10_000)
    planned = plan_update(Reduced, {"appended": held, "merged": {}}, update)
    assert planned == Planned((Add(("appended",), [YO]),))


# --- rules about the whole value -----------------------------------------------------------------


class Bounded(State):
    few: Annotated[list[int], append, Field(max_length=2)] = []
    odd: Annotated[list[int], append, AfterValidator(lambda v: _all_odd(v))] = []
    name: Annotated[str, Field(max_length=3)] = ""


def _all_odd(value: list[int]) -> list[int]:
    if not all(item % 2 for item in value):
        raise ValueError("even numbers are odd here")
    return value


def test_a_constraint_on_a_field_is_held_by_the_result() -> None:
    """The value that the update leads to is validated whole, and the field is guarded."""
    planned = plan_update(Bounded, {"few": [1]}, {"few": [2]})
    assert planned == Planned((Add(("few",), [2]),), ("few",))
    with pytest.raises(SchemaViolation) as caught:
        plan_update(Bounded, {"few": [1, 2]}, {"few": [3]})
    assert caught.value.field == "few"
    assert caught.value.expected.startswith("list of int (")
    with pytest.raises(SchemaViolation, match="even numbers"):
        plan_update(Bounded, {"odd": [1]}, {"odd": [2]})


def test_a_constraint_on_a_replaced_field_is_held_by_the_update() -> None:
    """The update is the whole value: nothing else need be looked at, or guarded."""
    assert plan_update(Bounded, {"name": "abc"}, {"name": "abd"}).guards == ()
    with pytest.raises(SchemaViolation) as caught:
        plan_update(Bounded, {}, {"name": "abcd"})
    assert caught.value.field == "name"


class Ranged(State):
    low: int = 0
    high: int = 10
    notes: Annotated[list[str], append] = []

    @model_validator(mode="after")
    def _ordered(self) -> Ranged:
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


def test_a_model_validator_sees_the_state_that_would_be() -> None:
    """And every field is guarded, because the verdict rests on all of them."""
    fields = encode_fields(Ranged(low=5))
    assert plan_update(Ranged, fields, {"high": 6}) == Planned(
        (Set(("high",), 6),), ("low", "high", "notes")
    )
    with pytest.raises(SchemaViolation, match="low is above high") as caught:
        plan_update(Ranged, fields, {"high": 4})
    assert caught.value.field == "Ranged"
    assert plan_update(Ranged, fields, {"high": 1, "low": 1}).ops


class Titled(State):
    title: str = ""
    other: str = ""
    tags: Annotated[list[str], dedupe_append()] = []

    @field_validator("title")
    @classmethod
    def _trimmed(cls, value: str) -> str:
        return value.strip()

    @field_validator("tags")
    @classmethod
    def _few(cls, value: list[str]) -> list[str]:
        if len(value) > 2:
            raise ValueError("too many tags")
        return value


def test_a_field_validator_is_asked_and_what_it_gives_is_stored() -> None:
    """As if the state had been made with the value; fields without one are not concerned."""
    planned = plan_update(Titled, {}, {"title": "  hi ", "tags": ["a"]})
    assert planned.ops == (Set(("title",), "hi"), Add(("tags",), ["a"]))
    assert planned.guards == ("title", "other", "tags")
    assert plan_update(Titled, {}, {"other": " x "}) == Planned((Set(("other",), " x "),))
    with pytest.raises(SchemaViolation, match="too many tags") as caught:
        plan_update(Titled, {"tags": ["a", "b"]}, {"tags": ["c"]})
    assert caught.value.field == "tags"


def test_newer_names_survive_an_update_by_key() -> None:
    """What only newer code knows about an item stays when an older one updates it."""
    fields = freeze({"keyed": [{**HI, "mood": "fine"}]})
    planned = plan_update(Reduced, fields, {"keyed": [Message(id="1", text="bye")]})
    assert ops.apply(fields, planned.ops)["keyed"] == [{**HI, "text": "bye", "mood": "fine"}]


def test_an_unknown_variant_passes_through_an_update() -> None:
    """Read, moved to another field, written: the raw value is not changed."""
    fields = freeze({"appended": [{**HI, "role": "judge"}]})
    read = decode_fields(Reduced, fields)
    (op,) = plan_update(Reduced, fields, {"last": read.appended}).ops
    assert op == Set(("last",), [{**HI, "role": "judge"}])


class Step(Record):
    name: str
    done: bool = False
    low: int = 0
    high: int = 10

    @model_validator(mode="after")
    def _ordered(self) -> Step:
        if self.low > self.high:
            raise ValueError("low is above high")
        return self


class Plan(State):
    steps: Annotated[list[Step], merge_by_key("name")] = []


@pytest.mark.parametrize("given", [{"name": "a", "high": 9}, Step(name="a", high=9)], ids=str)
def test_what_an_item_was_not_given_leaves_the_old_item_as_it_was(given: Any) -> None:
    """Defaults fill in new items only, whether a record or a plain dict was given."""
    fields = freeze(encode_fields(Plan(steps=[Step(name="a", done=True, low=3)])))
    planned = plan_update(Plan, fields, {"steps": [given, {"name": "b"}, {"name": "b", "low": 1}]})
    assert planned.ops == (
        Merge(("steps", 0), {"high": 9}),
        Add(("steps",), [{"name": "b", "done": False, "low": 1, "high": 10}]),
    )
    assert planned.guards == ("steps",)
    assert plan_update(Plan, fields, {"steps": [{"name": "a"}]}).ops == ()
    (op,) = plan_update(Plan, fields, {"steps": [Step(name="a", done=False)]}).ops
    assert op == Merge(("steps", 0), {"done": False})


@pytest.mark.parametrize("at", [0, 1])
def test_an_item_that_comes_of_merging_is_checked(at: int) -> None:
    """What was given is fit with the defaults, and not with what the item holds."""
    fields = freeze(encode_fields(Plan(steps=[Step(name="0", low=5)])))
    update = [{"name": str(at), "low": 5}, {"name": str(at), "high": 4}]
    with pytest.raises(SchemaViolation, match="low is above high") as caught:
        plan_update(Plan, fields, {"steps": update})
    assert caught.value.field == f"steps[{at}]"


def test_many_partly_given_items_are_merged_alike() -> None:
    """Also when so many change that the list is written as a whole."""
    fields = freeze(encode_fields(Plan(steps=[Step(name=str(n), done=True) for n in range(300)])))
    (op,) = plan_update(
        Plan, fields, {"steps": [{"name": str(n), "low": 1} for n in range(300)]}
    ).ops
    assert isinstance(op, Set)
    assert all(step["done"] and step["low"] == 1 for step in op.value)


class Raising(State):
    inverse: Annotated[float, AfterValidator(lambda value: 1 / value)] = 1.0
    known: int = 0
    seeded: Annotated[list[int], append] = Field(default_factory=lambda: [{}["x"]])

    @field_validator("known")
    @classmethod
    def _known(cls, value: int) -> int:
        return {0: 0, 1: 1}[value]


@pytest.mark.parametrize(
    ("update", "cause"),
    [({"inverse": 0.0}, ZeroDivisionError), ({"known": 2}, KeyError), ({"seeded": [1]}, KeyError)],
    ids=str,
)
def test_whatever_a_validator_raises_is_a_violation(
    update: dict[str, Any], cause: type[Exception]
) -> None:
    """Its own error is kept as the cause, and named; so it is when a state is made."""
    with pytest.raises(SchemaViolation, match=cause.__name__) as caught:
        plan_update(Raising, {}, update)
    assert isinstance(caught.value.__cause__, cause)
    with pytest.raises(SchemaViolation, match=cause.__name__) as caught:
        Raising(**{"seeded": [], **update} if "seeded" not in update else {})
    assert isinstance(caught.value.__cause__, cause)


class Wide(State):
    a: Annotated[list[Step], merge_by_key("name")] = []
    b: Annotated[list[Step], merge_by_key("name")] = []
    c: Annotated[list[Step], merge_by_key("name")] = []
    d: Annotated[list[Step], merge_by_key("name")] = []
    log: Annotated[list[int], append] = []


def test_an_update_has_no_more_operations_than_an_event_holds() -> None:
    """Fields with many changes are then replaced as a whole, and guarded."""
    held = [Step(name=str(n), done=True) for n in range(256)]
    fields = freeze(encode_fields(Wide(a=held, b=held, c=held, d=held)))
    changed = [{"name": str(n), "low": 1} for n in range(256)]
    few = plan_update(Wide, fields, {"a": changed, "b": changed, "c": changed})
    assert len(few.ops) == 768
    many = plan_update(Wide, fields, {"log": [1], **dict.fromkeys("abcd", changed)})
    assert [type(op) for op in many.ops] == [Add, Set, Set, Set, Set]
    assert many.guards == ("a", "b", "c", "d")
    after = ops.apply(fields, many.ops)
    assert after["a"] == ops.apply(fields, few.ops)["a"] == after["d"]


# --- replacing -----------------------------------------------------------------------------------


class Ruled(State):
    """Fields with a reducer and rules of their own, and one that a validator looks at."""

    few: Annotated[list[int], append, Field(max_length=2)] = []
    sorted_: Annotated[list[int], append, AfterValidator(sorted)] = []


class Judged(State):
    log: Annotated[list[str], append] = []

    @field_validator("log")
    @classmethod
    def _trimmed(cls, log: list[str]) -> list[str]:
        if "bad" in log:
            raise ValueError("bad is in it")
        return [entry.strip() for entry in log]


def test_a_replaced_field_is_set_as_a_whole() -> None:
    """Past its reducer, with plain dicts for records; without a guard, as it looks at nothing."""
    held = freeze({"appended": [HI], "merged": {"a": 1}, "keyed": [HI]})
    yo = {**YO, "role": Role.AGENT}
    update = {"appended": Replace([]), "merged": Replace({"b": 2}), "keyed": Replace([yo])}
    planned = plan_update(Reduced, held, {**update, "bounded": [Message(id="1", text="hi")]})
    assert planned == Planned(
        (
            Set(("appended",), []),
            Set(("merged",), {"b": 2}),
            Set(("keyed",), [YO]),
            Add(("bounded",), [HI]),
        ),
        ("bounded",),
    )


@pytest.mark.parametrize(
    ("update", "field", "expected"),
    [
        ({"nothing": Replace(1)}, "nothing", "a field of Reduced"),
        ({"app:x": Replace(1)}, "app:x", "a field of Reduced"),
        ({"appended": Replace(None)}, "appended", "list of Message"),
        ({"appended": Replace([{"id": 1, "text": ""}])}, "appended[0].id", "str"),
        ({"appended": [Replace([])]}, "appended[0]", "Message"),
        ({"appended": Replace(Replace([]))}, "appended", "list of Message"),
        ({"concat": Replace([[]])}, "concat[0]", "Message"),
        ({"merged": Replace({"a": "1"})}, "merged.a", "int"),
    ],
)
def test_a_replacement_that_does_not_fit_is_refused(
    update: dict[str, Any], field: str, expected: str
) -> None:
    """By the type of the field, not by what its reducer takes."""
    with pytest.raises(SchemaViolation) as caught:
        plan_update(Reduced, {}, update)
    assert (caught.value.field, caught.value.expected) == (field, expected)


def test_the_rules_of_a_field_hold_for_what_replaces_it() -> None:
    """And what a validator makes of the value is what is stored."""
    with pytest.raises(SchemaViolation):
        plan_update(Ruled, {}, {"few": Replace([1, 2, 3])})
    planned = plan_update(Ruled, {"few": [1, 2]}, {"few": Replace([3]), "sorted_": Replace([2, 1])})
    assert planned == Planned((Set(("few",), [3]), Set(("sorted_",), [1, 2])))
    with pytest.raises(SchemaViolation):
        plan_update(Judged, {}, {"log": Replace(["bad"])})
    planned = plan_update(Judged, {"log": ["x"]}, {"log": Replace([" y "])})
    assert planned == Planned((Set(("log",), ["y"]),), ("log",))
