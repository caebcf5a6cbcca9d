"""Drafts and events: what is admitted, how it is encoded, and that it is stored once."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, get_args

import msgspec
import pytest

from limpet import ops
from limpet.errors import (
    ActorMissing,
    EventTooLarge,
    InvalidEvent,
    InvalidInput,
    InvalidOp,
    InvalidValue,
    LimpetError,
    ReservedType,
)
from limpet.model import encode, ops as op
from limpet.model.events import (
    Body,
    Draft,
    Fact,
    Prepared,
    decode_body,
    path_opening,
    prepare,
    prepare_encoded,
    prepare_plain,
    to_time,
    to_us,
)
from limpet.model.facts import checkpoints
from limpet.model.facts.inputs import processed
from limpet.model.facts.running import runs
from limpet.model.limits import (
    ACTOR_CHARS_MAX,
    EVENT_BYTES_MAX,
    ID_CHARS_MAX,
    OPS_PER_EVENT_MAX,
    TYPE_CHARS_MAX,
)
from limpet.model.values import FrozenDict, FrozenList

LONG = "a text long enough to be worth a reference " * 3


def prepared(type: str = "note.made", *, reserved: bool = False, **more: Any) -> Prepared:
    more.setdefault("actor", "me")
    kind = Fact if reserved else Draft
    return prepare(kind(type=type, **more), id="made-id", actor=None)


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "type",
    [
        "",
        "plain",
        ".x",
        "x.",
        "a..b",
        "a. b",
        " a.b",
        "a.b\n",
        "a.b\x00",
        "a.\ud800",
        "a." + "b" * TYPE_CHARS_MAX,
        None,
        5,
        b"a.b",
        ["a.b"],
    ],
    ids=repr,
)
def test_a_type_is_dotted_text(type: Any) -> None:
    """Anything else is refused as an invalid event."""
    with pytest.raises(InvalidEvent) as info:
        prepared(type)
    assert info.value.code == "event.invalid"


@pytest.mark.parametrize("type", ["a.b", "user.said", "x.y.z", "my-app.Thing_1", "ä.ö"])
def test_types_are_open(type: str) -> None:
    """Any dotted name outside the reserved families may be used."""
    assert prepared(type).type == type


@pytest.mark.parametrize("data", [{}, {"txt": "hi"}, {"text": None}, {"text": None, "n": 1.5}])
def test_a_message_of_a_user_says_something(data: dict[str, Any]) -> None:
    """A wrong name of its text would be an empty message to the model. Another process that
    prepared it is not believed either."""
    with pytest.raises(InvalidEvent, match="text or content"):
        prepare(Draft(type="user.message", data=data), id="e1", actor="user:ada")
    names = ("e1", "user.message", "user:ada", None, None, None, None)
    with pytest.raises(InvalidEvent, match="text or content"):
        prepare_encoded(names, encode(Body(data, ())), caller_chose_id=True, input=True)


@pytest.mark.parametrize("data", [{"text": ""}, {"content": []}, {"text": "hi", "order": 7}])
def test_a_message_may_be_empty_and_hold_more(data: dict[str, Any]) -> None:
    """Screens send empty texts; and other types of the family say what they like."""
    assert prepare(Draft(type="user.message", data=data), id="e1", actor="user:ada").data == data
    assert prepare(Draft(type="user.clicked", data={}), id="e1", actor="user:ada").data == {}


@pytest.mark.parametrize("type", ["session.created", "state.updated", "audit.denied", "session.x"])
def test_reserved_types_are_ours(type: str) -> None:
    """They are refused from callers and admitted from our own verbs."""
    with pytest.raises(ReservedType):
        prepared(type)
    assert prepared(type, reserved=True).type == type


@pytest.mark.parametrize("type", ["sessions.x", "my.session.x", "stateful.x", "user.state.x"])
def test_only_whole_families_are_reserved(type: str) -> None:
    """A name that merely begins or continues like a reserved one is free."""
    assert prepared(type).type == type


def test_every_event_has_an_actor() -> None:
    """The draft's own comes first, then the bound one; with neither it is refused."""
    assert prepare(Draft(type="a.b", actor="x"), id="i", actor="y").actor == "x"
    assert prepare(Draft(type="a.b"), id="i", actor="y").actor == "y"
    with pytest.raises(ActorMissing):
        prepare(Draft(type="a.b"), id="i", actor=None)


@pytest.mark.parametrize(("own", "bound"), [("", "y"), ("", None), (None, ""), ("", "")])
def test_an_empty_actor_does_not_stand_for_none(own: str | None, bound: str | None) -> None:
    """Whoever passes "" meant to name somebody: another's name is not put in its place."""
    with pytest.raises(InvalidEvent, match="its actor is empty; name who acts"):
        prepare(Draft(type="a.b", actor=own), id="i", actor=bound)


@pytest.mark.parametrize("actor", [" x", "x\x00", "\ud800", "x" * (ACTOR_CHARS_MAX + 1), 5, ["x"]])
def test_an_unfit_actor_is_refused(actor: Any) -> None:
    """An actor is a name like any other."""
    with pytest.raises(InvalidEvent):
        prepared(actor=actor)


@pytest.mark.parametrize("name", ["id", "cause", "invocation_id", "correlation_id", "wake_id"])
@pytest.mark.parametrize("value", ["", " x", "x\n", "\udfff", "x" * (ID_CHARS_MAX + 1), 5, b"x"])
def test_an_unfit_id_is_refused_by_name(name: str, value: Any) -> None:
    """The error says which of the ids is wrong."""
    with pytest.raises(InvalidEvent, match=f"its {name} "):
        prepared(**{name: value})


def test_ids_that_are_one_object_are_checked_too() -> None:
    """Five times the same unfit text is as wrong as once."""
    names = ("id", "cause", "invocation_id", "correlation_id", "wake_id")
    with pytest.raises(InvalidEvent):
        prepared(**dict.fromkeys(names, ""))


def test_a_given_id_is_marked_as_given() -> None:
    """Only an id that the caller chose may have been recorded before."""
    assert (prepared().id, prepared().caller_chose_id) == ("made-id", False)
    assert (prepared(id="own").id, prepared(id="own").caller_chose_id) == ("own", True)


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [None, [], "text", 5, {"x": b""}, {1: 2}, {"x": {1}}], ids=repr)
def test_data_is_a_dict_of_values(data: Any) -> None:
    """Anything that is not, or holds what JSON cannot, is an invalid value."""
    with pytest.raises(InvalidValue) as info:
        prepared(data=data)
    assert str(info.value).startswith("data")


@pytest.mark.parametrize(
    "how",
    [
        {"set": {"x": math.nan}},
        {"set": {"x": {"y": 2**63}}},
        {"set": {"temp:x": b"x"}},
        {"set": {"app:x": {1}}},
        {"merge": {"x": {"y": b"x"}}},
        {"merge": {"x": {1: 2}}},
        {"add": {"x": [math.inf]}},
        {"inc": {"x": math.nan}},
        {"inc": {"x": 2**63}},
        {"inc": {"temp:x": math.inf}},
        {"ops": [ops.Set(("x", 2**70), 1)]},
        {"ops": [ops.Set(("x",), "\ud800")]},
    ],
    ids=repr,
)
def test_values_of_ops_are_checked_like_data(how: dict[str, Any]) -> None:
    """Whatever reaches state is a value, temp: names included."""
    with pytest.raises(InvalidValue):
        prepared(**how)


@pytest.mark.parametrize(
    "how",
    [
        {"set": {"": 1}},
        {"set": {" x": 1}},
        {"set": {5: 1}},
        {"merge": {"x": 5}},
        {"merge": {"x": [1]}},
        {"add": {"x": 5}},
        {"add": {"x": "abc"}},
        {"add": {"x": {"a": 1}}},
        {"inc": {"x": "1"}},
        {"inc": {"x": True}},
        {"inc": {"x": None}},
        {"delete": "name"},
        {"delete": [5]},
        {"delete": [""]},
        {"ops": ["set"]},
        {"ops": [{"op": "set"}]},
        {"ops": [ops.Set((), 1)]},
        {"ops": [ops.SetRef(("x",), ("missing",))]},
        {"ops": [ops.SetRef(("x",), (1.5,))]},  # type: ignore[arg-type]  # wrong on purpose
        {"ops": [ops.SetRef(("x",), ("\ud800",))]},
        {"ops": [ops.Set(("x", "a\ud800"), 1)]},
        {"ops": [ops.MergeRef(("x",), ())] * (OPS_PER_EVENT_MAX + 1)},
    ],
    ids=lambda how: repr(how)[:60],
)
def test_malformed_ops_are_refused(how: dict[str, Any]) -> None:
    """Wrong names, wrong arguments, unknown ops, dangling references and too many of them."""
    with pytest.raises(InvalidOp):
        prepared(**how)


@pytest.mark.parametrize(
    "how",
    [
        {"set": [1]},
        {"set": "x"},
        {"set": None},
        {"merge": [1]},
        {"add": [1]},
        {"inc": 5},
        {"delete": 5},
        {"ops": 5},
        {"ops": ops.Set(("x",), 1)},
    ],
    ids=repr,
)
def test_a_keyword_of_the_wrong_kind_is_our_error(how: dict[str, Any]) -> None:
    """A caller's mistake is never answered with a bare AttributeError or TypeError."""
    with pytest.raises(LimpetError):
        prepared(**how)


def test_an_event_over_the_bound_is_refused_with_its_size() -> None:
    """One byte too many is too many, and the bound itself is not."""
    room = EVENT_BYTES_MAX - len(b'{"data":{"x":""}}')
    assert len(prepared(data={"x": "a" * room}).raw) == EVENT_BYTES_MAX
    with pytest.raises(EventTooLarge) as info:
        prepared(data={"x": "a" * (room + 1)})
    assert (info.value.size_bytes, info.value.bytes_max) == (EVENT_BYTES_MAX + 1, EVENT_BYTES_MAX)


# --- encoding ------------------------------------------------------------------------------------


def test_what_goes_on_is_what_was_decoded() -> None:
    """Nothing of the caller's objects is kept: later changes to them change nothing."""
    data: dict[str, Any] = {"a": [1, (2, 3)]}
    made = prepared(data=data, set={"x": data["a"]})
    data["a"].append(9)
    assert made.data == {"a": [1, [2, 3]]}
    assert made.plain_ops == (ops.Set(("x",), [1, [2, 3]]),)
    assert type(made.data) is FrozenDict
    assert type(made.data["a"]) is FrozenList
    assert decode_body(made.raw) == Body(made.data, made.ops)


def test_short_forms_are_ops_in_their_order() -> None:
    """set, merge, add, inc, delete, then ops."""
    made = prepared(
        delete=["e"],
        ops=[ops.Cut(("f",), 0, 1)],
        inc={"d": 1},
        add={"c": [1, 2]},
        merge={"b": {"x": 1}},
        set={"a": 1},
    )
    assert made.ops == (
        ops.Set(("a",), 1),
        ops.Merge(("b",), {"x": 1}),
        ops.Add(("c",), [1, 2]),
        ops.Inc(("d",), 1),
        ops.Delete(("e",)),
        ops.Cut(("f",), 0, 1),
    )


def test_iterables_are_read_once() -> None:
    """delete and ops may be generators; add takes a tuple."""
    made = prepared(
        delete=(n for n in "ab"), ops=(ops.Inc((n,), 1) for n in "cd"), add={"t": (1, 2)}
    )
    assert [o.path[0] for o in made.ops] == ["t", "a", "b", "c", "d"]
    assert made.ops[0] == ops.Add(("t",), [1, 2])


@pytest.mark.parametrize(
    ("data", "how", "op", "plain"),
    [
        (
            {"text": LONG},
            lambda d: {"set": {"x": d["text"]}},
            ops.SetRef(("x",), ("text",)),
            ops.Set(("x",), LONG),
        ),
        (
            {"part": {"k": 1}},
            lambda d: {"set": {"x": d["part"]}},
            ops.SetRef(("x",), ("part",)),
            ops.Set(("x",), {"k": 1}),
        ),
        (
            {"k": 1},
            lambda d: {"set": {"x": d}},
            ops.SetRef(("x",), ()),
            ops.Set(("x",), {"k": 1}),
        ),
        (
            {"k": 1},
            lambda d: {"add": {"x": [d]}},
            ops.AddRef(("x",), ()),
            ops.Add(("x",), [{"k": 1}]),
        ),
    ],
    ids=["text", "part", "whole", "added"],
)
def test_what_is_said_and_remembered_is_stored_once(
    data: dict[str, Any], how: Any, op: Any, plain: Any
) -> None:
    """The same object in data and in state becomes a reference, and means the same."""
    made = prepared(data=data, **how(data))
    assert made.ops == (op,)
    assert made.plain_ops == (plain,)


def test_mixed_items_keep_their_order() -> None:
    """Items with and without a reference are added one after the other as given."""
    data = {"text": LONG}
    made = prepared(data=data, add={"x": [1, data, LONG[:3], data["text"]]})
    added = [item for o in made.plain_ops for item in o.items]
    assert added == [1, data, LONG[:3], LONG]


def test_short_text_is_not_worth_a_reference() -> None:
    """An equal but different object, or a short one, is stored as a value."""
    data = {"text": "hi", "copy": [1]}
    made = prepared(data=data, set={"x": data["text"], "y": [1]})
    assert made.ops == (ops.Set(("x",), "hi"), ops.Set(("y",), [1]))


def test_temporary_names_are_parted_from_the_rest() -> None:
    """They never reach the encoded body, and are resolved for the live object."""
    data = {"text": LONG}
    made = prepared(data=data, set={"temp:t": data["text"], "x": 1}, inc={"temp:n": 1})
    assert made.ops == (ops.Set(("x",), 1),)
    assert made.temp_ops == (ops.Set(("temp:t",), LONG), ops.Inc(("temp:n",), 1))
    assert b"temp:" not in made.raw


@pytest.mark.parametrize(
    ("name", "scoped"), [("x", False), ("temp:x", False), ("app:x", True), ("user:x", True)]
)
def test_a_draft_knows_whether_it_reaches_a_scope(name: str, scoped: bool) -> None:
    """Only app: and user: names do."""
    assert prepared(set={name: 1}).scoped is scoped


def test_the_stored_body_is_plain_json() -> None:
    """Data first, ops only if there are any: these bytes are in people's files."""
    assert prepared().raw == b'{"data":{}}'
    assert prepared(data={"a": 1}, inc={"n": 1}).raw == b'{"data":{"a":1},"ops":[["inc",["n"],1]]}'


@pytest.mark.parametrize("raw", [b"", b"null", b'{"data":[]}', b'{"data":{},"ops":[["eval","x"]]}'])
def test_a_body_that_is_not_one_does_not_decode(raw: bytes) -> None:
    """Stored bytes are data: what they do not spell in our few words is refused."""
    with pytest.raises(msgspec.MsgspecError):
        decode_body(raw)


# --- times ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "at",
    [
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(2030, 1, 1, 12, 30, 15, 999_999, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2024, 2, 29, 1, tzinfo=timezone(timedelta(hours=-7, minutes=-30))),
    ],
    ids=str,
)
def test_times_are_exact_to_the_microsecond(at: datetime) -> None:
    """There and back again gives the same moment, in UTC."""
    assert to_time(to_us(at)) == at
    assert to_time(to_us(at)).tzinfo is UTC


def test_a_time_without_a_zone_is_refused() -> None:
    """A naive datetime could mean any of two dozen moments."""
    with pytest.raises(InvalidEvent):
        to_us(datetime(2030, 1, 1))  # noqa: DTZ001  # wrong on purpose


def test_a_plain_fact_is_prepared_as_any_other() -> None:
    """The short way gives what the long way gives, frozen all through."""
    started = runs.wake_started(
        "w",
        "t",
        attempt=1,
        inputs=[2, 3],
        timers=["revisit:x"],
        worker="me",
        why="input",
        claimed_us=5,
        fence=1,
        answers=[4],
    )
    ended = runs.wake_completed("w", "t", "error", fence=2, error="no é")
    kept = checkpoints.recorded({"number": 3, "seq": 9, "full": True, "trigger": "é"}, [1])
    idle = runs.status_idle("end_turn", summary="x")
    for fact in (started, ended, idle, processed([1]), kept):
        short = prepare_plain(fact, id="e", actor="worker:w")
        assert short == prepare(fact, id="e", actor="worker:w")
        assert {type(value) for value in short.data.values()} <= {str, int, bool, FrozenList}


@pytest.mark.parametrize("name", ["total", 'a "quoted" é', "user:plan", "back\\slash"])
def test_the_path_of_every_operation_on_a_name_begins_alike_in_a_body(name: str) -> None:
    """Stores look for those bytes; a name that stands elsewhere in the data does not have them."""
    path, data = (name, "x", 0), {"d": {"e": 1}}
    every = [op.Set(path, 1), op.Delete(path), op.Add(path, [1]), op.Insert(path, 0, [1])]
    every += [op.Merge(path, {}), op.Inc(path, 1), op.Cut(path, 0, 1)]
    every += [op.SetRef(path, ("d",)), op.AddRef(path, ("d",)), op.MergeRef(path, ("d",))]
    assert {type(each) for each in every} == set(get_args(op.Op))
    for each in every:
        made = prepare(Draft(type="a.b", data=data, ops=[each]), id="e", actor="a")
        assert path_opening(name) in made.raw
    other = prepare(Draft(type="a.b", data={name: name, "x": ["y", name]}), id="e", actor="a")
    assert path_opening(name) not in other.raw


def test_a_plain_fact_that_cannot_be_stored_is_refused_like_any_other() -> None:
    """A lone surrogate in the name of a worker."""
    fact = Fact(type=runs.SPAN_COMPLETED, data={"worker": "\ud800"})
    with pytest.raises(InvalidInput):
        prepare_plain(fact, id="e", actor="worker:w")


@pytest.mark.parametrize(
    "id", ["01A1EDFF-8A6A-7001-B4A3-613911B419D9", "01a1edff8a6a7001b4a3613911b419d9----", 'q"']
)
def test_an_id_of_another_form_than_ours_counts_as_chosen(id: str) -> None:
    """Whatever a client says: stores keep new ids in a shorter form, which would change it."""
    raw, rest = encode(Body({}, ())), ("a.b", "user:ada", None, None, None, None)
    assert prepare_encoded((id, *rest), raw, caller_chose_id=False, input=False).caller_chose_id
    new = "01a1edff-8a6a-7001-b4a3-613911b419d9"
    draft = prepare_encoded((new, *rest), raw, caller_chose_id=False, input=False)
    assert not draft.caller_chose_id
