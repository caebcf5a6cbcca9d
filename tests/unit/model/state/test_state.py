"""State: how it is made, stored, read back, and how it meets fields of another edition."""

from __future__ import annotations

import enum
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from pydantic import BeforeValidator, ConfigDict, Field, ValidationError

from limpet import TTL, Draft, Record, Ref, State, UnknownVariant, diff, envelope, merge
from limpet.errors import InvalidValue, SchemaViolation
from limpet.model.events import prepare
from limpet.model.state.state import decode_fields, encode_fields
from limpet.model.values import canonical, freeze
from tests.support.declared import Called, Everything, Level, Message, Node, Point, Role, Said
from tests.support.ids import plain

IST = timezone(timedelta(hours=5, minutes=30))


def state_of(type_: Any, value: Any) -> State:
    kind = type("Made", (State,), {"__annotations__": {"field": type_}})
    made: State = kind(field=value)
    return made


@pytest.mark.parametrize(
    ("type_", "value", "stored"),
    [
        (int, 2**63 - 1, 2**63 - 1),
        (int, Level.HIGH, 2),
        (float, 1, 1.0),
        (float, -0.0, 0.0),
        (str, "é\0", "é\0"),
        (bytes, b"\x00\xfb\xff", "APv/"),
        (datetime, datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), "2026-01-02T03:04:05.000006Z"),
        (datetime, datetime(2026, 1, 2, tzinfo=IST), "2026-01-01T18:30:00Z"),
        (date, date(26, 1, 2), "0026-01-02"),
        (timedelta, timedelta(), "PT0S"),
        (timedelta, timedelta(days=1, hours=2, minutes=3, seconds=4.5), "P1DT2H3M4.5S"),
        (timedelta, timedelta(microseconds=-1), "-PT0.000001S"),
        (timedelta, timedelta(days=-2), "-P2D"),
        (timedelta, timedelta.min, "-P999999999D"),
        (timedelta, timedelta.max, "P999999999DT23H59M59.999999S"),
        (TTL, TTL(hours=1), "PT1H"),
        (uuid.UUID, uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (Decimal, Decimal("1.10"), "1.10"),
        (Role, Role.AGENT, "agent"),
        (Level, Level.LOW, 1),
        (int | None, None, None),
        (tuple[int, str], (1, "a"), [1, "a"]),
        (set[int], {10, 9, -1}, [-1, 10, 9]),
        (frozenset[str], frozenset("ba"), ["a", "b"]),
        (dict[int, str], {7: "x"}, {"7": "x"}),
        (dict[Role, int], {Role.USER: 1}, {"user": 1}),
        (Point, Point(x=1), {"x": 1, "y": 0.0}),
        (Ref[Point], Ref("urn:x", "0" * 64), {"uri": "urn:x", "sha256": "0" * 64}),
        (list[Said | Called], [Said(text="hi")], [{"kind": "said", "text": "hi"}]),
        (Any, ({"a": (1,)},), [{"a": [1]}]),
    ],
    ids=plain,
)
def test_each_type_has_its_stored_form(type_: Any, value: Any, stored: Any) -> None:
    """Plain JSON that other languages read, and that reads back as an equal value."""
    made = state_of(type_, value)
    assert canonical(encode_fields(made)) == canonical({"field": stored})
    assert decode_fields(type(made), {"field": stored}) == made


@pytest.mark.parametrize(
    ("type_", "value", "field", "expected", "actual"),
    [
        (int, "1", "field", "int", "str '1'"),
        (int, True, "field", "int", "bool True"),
        (int, 1.0, "field", "int", "float 1.0"),
        (int, 2**63, "field", "int (an int has 64 bits)", f"int {2**63}"),
        (float, float("nan"), "field", "float", "float nan"),
        (float, 2**53 + 1, "field", "float", f"int {2**53 + 1}"),
        (str, "\ud800", "field", "str", "str '\\ud800'"),
        (str, b"x", "field", "str", "bytes b'x'"),
        (datetime, "2026-01-02", "field", "aware datetime", "str '2026-01-02'"),
        (timedelta, 1, "field", "timedelta", "int 1"),
        (TTL, timedelta(1), "field", "TTL", "timedelta datetime.timedelta(days=1)"),
        (Decimal, Decimal("NaN"), "field", "finite Decimal", "Decimal Decimal('NaN')"),
        (Role, "user", "field", "a member of Role", "str 'user'"),
        (Role, Level.LOW, "field", "a member of Role", "Level <Level.LOW: 1>"),
        (int | None, "x", "field", "int or None", "str 'x'"),
        (list[Message], {}, "field", "list of Message", "dict {}"),
        (list[Message], None, "field", "list of Message", "None"),
        (list[Message], [{"id": 1, "text": ""}], "field[0].id", "str", "int 1"),
        (list[Message], [{"id": "1"}], "field[0].text", "str", "nothing"),
        (dict[str, list[int]], {"a": [1, "x"]}, "field.a[1]", "int", "str 'x'"),
        (tuple[int, str], (1, 2), "field[1]", "str", "int 2"),
        (set[int], [1], "field", "set of int", "list [1]"),
        (list[Said | Called], [{"kind": "called"}], "field[0].tool", "str", "nothing"),
        (Any, [{"a": {1}}], "field", "any JSON value", "list [{'a': {1}}]"),
        (Ref[Point], "s3://x", "field", "Ref", "str 's3://x'"),
        (Node, {"name": "", "children": [{"name": 1}]}, "field.children[0].name", "str", "int 1"),
    ],
    ids=str,
)
def test_a_violation_says_where_what_and_what_instead(
    type_: Any, value: Any, field: str, expected: str, actual: str
) -> None:
    """In the user's words: the path of the field, the declared type, the type that was found."""
    with pytest.raises(SchemaViolation) as caught:
        encode_fields(state_of(type_, value))
    error = caught.value
    assert (error.field, error.expected, error.actual) == (field, expected, actual)
    assert "pydantic" not in str(error)


def test_the_cause_of_a_violation_is_kept() -> None:
    """Whoever wants every complaint finds pydantic's own error below ours."""
    with pytest.raises(SchemaViolation) as caught:
        Point(x="1")  # type: ignore[arg-type]
    assert isinstance(caught.value.__cause__, ValidationError)
    assert caught.value.status == 422


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("value", [10**6_000, Mute(), [Mute()]], ids=["long", "mute", "inside"])
def test_what_cannot_be_shown_is_a_violation_all_the_same(value: Any) -> None:
    """An integer too long to print, an object that fails to show itself."""
    with pytest.raises(SchemaViolation) as caught:
        Point(x=value)
    assert caught.value.actual.startswith(type(value).__name__)


def test_a_schema_for_other_tools_can_be_had() -> None:
    """What pydantic offers about its models still works: a description for a model or an API."""
    described = Everything.model_json_schema()
    assert described["properties"].keys() == Everything.model_fields.keys()
    assert "['user', 'agent']" in str(described["properties"]["role"])


def test_defaults_may_be_validated() -> None:
    """Also when a stored state is read, where everything else is JSON."""

    class Made(State):
        model_config = ConfigDict(validate_default=True)

        ref: Ref[bytes] = Ref.to("urn:x", b"")
        at: datetime = datetime(2026, 1, 2, tzinfo=IST)
        ttl: TTL = TTL(hours=1)
        role: Role = Role.USER
        any_: Any = None
        score: float = 0

    assert decode_fields(Made, {}) == Made() == decode_fields(Made, encode_fields(Made()))


def test_read_only_values_of_a_session_may_be_given() -> None:
    """What state and events hand out goes into a typed state as lists and dicts do."""
    given = freeze({"messages": [{"id": "1", "text": ""}], "title": None})
    assert Chat(**given) == Chat(messages=[Message(id="1", text="")])


def test_a_long_value_is_shortened_in_a_message() -> None:
    """A megabyte in the wrong place does not become a megabyte of log."""
    with pytest.raises(SchemaViolation) as caught:
        Point(x="x" * 1_000_000)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 250


def test_a_state_is_frozen_and_takes_no_unknown_names() -> None:
    """Neither do the records in it."""
    point = Point(x=1)
    with pytest.raises(TypeError, match=r"read-only.*apply"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(TypeError, match="read-only"):
        del point.x
    with pytest.raises(SchemaViolation) as caught:
        Point(x=1, z=2)  # type: ignore[call-arg]
    assert (caught.value.field, caught.value.expected) == ("z", "a field of Point")
    with pytest.raises(SchemaViolation) as caught:
        Node(name="", children=[{"name": "", "z": 1}])  # type: ignore[list-item]
    assert (caught.value.field, caught.value.expected) == ("children[0].z", "a field of Node")


class Chat(State):
    messages: list[Message] = []
    title: str | None = None


def test_what_was_put_in_unchecked_is_checked_before_it_is_written() -> None:
    """model_copy and model_construct do not look; encoding does, and says where."""
    message = Message(id="1", text="").model_copy(update={"text": 7})
    with pytest.raises(SchemaViolation) as caught:
        encode_fields(Chat().model_copy(update={"messages": [message]}))
    assert (caught.value.field, caught.value.actual) == ("messages[0].text", "int 7")
    with pytest.raises(SchemaViolation) as caught:
        encode_fields(Chat.model_construct(messages=[Message.model_construct(id="1")]))
    assert (caught.value.field, caught.value.actual) == ("messages[0].text", "nothing")
    with pytest.raises(SchemaViolation):
        encode_fields({"messages": []})  # type: ignore[arg-type]


class Longer(Message):
    more: str = ""


def test_a_subclass_in_place_of_a_record_is_refused() -> None:
    """Its own fields would be lost in silence."""
    with pytest.raises(SchemaViolation) as caught:
        encode_fields(Chat(messages=[Longer(id="1", text="")]))
    assert caught.value.field == "messages[0]"


def test_nesting_without_end_is_a_violation() -> None:
    """Never a RecursionError, in a typed tree or in free JSON."""
    node = Node(name="")
    for _ in range(100_000):
        node = Node.model_construct(name="", children=[node])
    with pytest.raises(SchemaViolation):
        encode_fields(state_of(Node, node))
    free: Any = 1
    for _ in range(100_000):
        free = [free]
    with pytest.raises(SchemaViolation):
        state_of(Any, free)
    while isinstance(free, list):  # taken apart by hand: the interpreter would recurse
        free = free.pop()
    while node.children:
        node, node.__dict__["children"] = node.children[0], []


def test_a_moment_is_written_alike_whatever_class_it_is_of() -> None:
    """A subclass that writes itself otherwise does not change what is stored."""

    class Zulu(datetime):
        def isoformat(self, *args: Any, **named: Any) -> str:
            return "about noon"

        def astimezone(self, tz: Any = None) -> datetime:
            return self

    class Made(State):
        at: datetime

    made = Made(at=Zulu(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert encode_fields(made) == {"at": "2026-01-02T03:04:05Z"}


# --- other editions ------------------------------------------------------------------------------


def test_none_is_stored_and_absent_is_not_none() -> None:
    """An explicit None is a value; a field that is not there takes its default."""

    class Made(State):
        plan: str | None = "default"

    assert encode_fields(Made(plan=None)) == {"plan": None}
    assert decode_fields(Made, {"plan": None}).plan is None
    assert decode_fields(Made, {}).plan == "default"


def test_a_new_optional_field_takes_its_default_in_old_fields() -> None:
    """Adding a field with a default needs no migration, nested records included."""

    class Step(Record):
        name: str
        tries: int = 0

    class Made(State):
        steps: list[Step]
        tags: list[str] = Field(default_factory=lambda: ["new"])

    made = decode_fields(Made, {"steps": [{"name": "a"}]})
    assert made == Made(steps=[Step(name="a", tries=0)], tags=["new"])


def test_a_new_required_field_is_a_violation_in_old_fields() -> None:
    """It is named; only a migration can know its value."""
    with pytest.raises(SchemaViolation) as caught:
        decode_fields(Chat, {"messages": [{"id": "1"}]})
    assert (caught.value.field, caught.value.actual) == ("messages[0].text", "nothing")


def test_a_retyped_field_is_a_violation_in_old_fields() -> None:
    """A value of the old type is never bent into the new one."""
    with pytest.raises(SchemaViolation) as caught:
        decode_fields(Chat, {"title": 7})
    assert (caught.value.field, caught.value.expected) == ("title", "str or None")


def test_what_newer_code_added_is_passed_over() -> None:
    """Fields at the top and in records, and names of other scopes."""
    fields = {
        "messages": [{"id": "1", "text": "", "role": "user", "mood": "fine"}],
        "title": None,
        "summary": {"new": True},
        "app:limit": 3,
    }
    read = decode_fields(Chat, freeze(fields))
    assert read.model_dump() == Chat(messages=[Message(id="1", text="")]).model_dump()


def test_a_record_keeps_what_newer_code_added_and_writes_it_back() -> None:
    """At any depth, in lists and dicts, through a copy; a record made anew has none of it."""

    class Cost(Record):
        cents: int

    class Step(Record):
        name: str
        costs: list[Cost] = []

    class Plan(State):
        steps: list[Step] = []
        by_day: dict[str, Step] = {}

    step = {"name": "a", "costs": [{"cents": 1, "taxes": [1.0, None, {"vat": "é"}]}], "place": {}}
    fields = {"steps": [step], "by_day": {"mon": step}}
    read = decode_fields(Plan, freeze(fields))
    assert canonical(encode_fields(read)) == canonical(fields)
    renamed = Plan(steps=[read.steps[0].model_copy(update={"name": "b"})], by_day=read.by_day)
    assert encode_fields(renamed)["steps"] == [{**step, "name": "b"}]
    anew = Step(name="a", costs=[Cost(cents=1)])
    assert encode_fields(Plan(steps=[anew]))["steps"] == [{"name": "a", "costs": [{"cents": 1}]}]


def test_records_with_different_unknown_names_are_different() -> None:
    """A set of them loses none."""

    class Tag(Record):
        name: str

    class Tagged(State):
        tags: frozenset[Tag] = frozenset()

    fields = {"tags": [{"colour": "red", "name": "a"}, {"name": "a"}]}
    read = decode_fields(Tagged, fields)
    assert len(read.tags) == 2
    assert canonical(encode_fields(read)) == canonical(fields)
    assert decode_fields(Tagged, {"tags": [{"name": "a"}]}).tags == {Tag(name="a")}


def test_a_variant_that_newer_code_added_is_kept_and_written_back() -> None:
    """The old reader sees that it does not know it, and the raw value is not changed."""
    fields = {"messages": [{"id": "1", "text": "", "role": "judge"}], "title": None}
    read = decode_fields(Chat, freeze(fields))
    assert read.messages[0].role == UnknownVariant("judge", Role)
    assert read.messages[0].role.value == "judge"
    assert canonical(encode_fields(read)) == canonical(fields)


def test_unknown_variants_are_kept_wherever_enums_are() -> None:
    """As keys, in sets, as numbers, in optional fields."""

    class Made(State):
        keys: dict[Role, int]
        levels: dict[Level, int]
        set_: set[Role]
        level: Level | None
        row: tuple[Role, Level]

    fields = {
        "keys": {"judge": 1},
        "levels": {"1": 1, "9": 1},
        "set_": ["judge", "user"],
        "level": 9,
        "row": ["jury", 7],
    }
    read = decode_fields(Made, fields)
    assert canonical(encode_fields(read)) == canonical(fields)
    assert set(read.levels) == {Level.LOW, UnknownVariant(9, Level)}


def test_a_variant_of_another_kind_is_a_violation() -> None:
    """A text is no variant that newer code could have added to an enum of numbers."""

    class Made(State):
        level: Level = Level.LOW
        levels: dict[Level, int] = {}

    for fields in ({"level": "high"}, {"level": 1.5}, {"levels": {"high": 1}}):
        with pytest.raises(SchemaViolation):
            decode_fields(Made, fields)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Literal[0, 1], True),
        (Literal[0, 1], 1.0),
        (Literal[True], 1),
        (list[Literal[1, "a", None]], [True]),
        (Level, True),
        (Level, 1.0),
        (Level | bool, 1.0),
    ],
    ids=str,
)
def test_one_and_true_are_different_values_of_literals_and_enums(type_: Any, value: Any) -> None:
    """Whether a caller gives the value or it was stored."""
    made = type("Made", (State,), {"__annotations__": {"field": type_}})
    with pytest.raises(SchemaViolation):
        made(field=value)
    with pytest.raises(SchemaViolation):
        decode_fields(made, {"field": value})


@pytest.mark.parametrize(
    ("type_", "stored"),
    [
        *[(dict[int, int], {"1": 1, name: 2}) for name in ("01", "1_0", " 1", "+1", "1.0", "-0")],
        *[(dict[Annotated[int, Field(ge=0)], int], {name: 2}) for name in ("01", "-1")],
        (dict[uuid.UUID, int], {"{00000000-0000-0000-0000-000000000001}": 1}),
        (uuid.UUID, "00000000000000000000000000000001"),
        (datetime, "1577836800"),
        (datetime, "2026-01-02T00:00:00+00:00"),
        (datetime, "2026-01-02T00:00:00.1234567Z"),
        (datetime, "2026-01-02 00:00:00Z"),
        (datetime, 1577836800),
        (date, "20260102"),
        *[
            (timedelta, t)
            for t in ("P1Y", "P1W", "PT60S", "P", "PT", "-PT0S", "01:00:00", "PT1.50S")
        ],
        (timedelta, "P999999999DT24H"),
        (timedelta, 3600),
        (TTL, "PT60M"),
    ],
    ids=str,
)
def test_what_was_not_written_so_is_not_read(type_: Any, stored: Any) -> None:
    """Another form of a value would be lost in silence, or hide another name of a dict."""
    made = type("Made", (State,), {"__annotations__": {"field": type_}})
    with pytest.raises(SchemaViolation):
        decode_fields(made, {"field": stored})


def test_a_name_that_is_refused_is_named_with_the_type_of_names() -> None:
    """Not with the type of what it holds."""

    class Made(State):
        field: dict[int, str]

    with pytest.raises(SchemaViolation) as caught:
        decode_fields(Made, {"field": {"01": "x"}})
    assert (caught.value.field, caught.value.expected) == ("field.01", "int")


def test_a_validator_may_read_what_others_wrote() -> None:
    """It stands before the form of the type, on stored fields too."""

    class Made(State):
        at: Annotated[datetime, BeforeValidator(_moment)]

    read = decode_fields(Made, {"at": "2026-01-02T00:00:00+00:00"})
    assert encode_fields(read) == {"at": "2026-01-02T00:00:00Z"}


def _moment(value: Any) -> Any:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


@pytest.mark.parametrize(
    ("type_", "value"),
    [(str, "\ud800"), (list[str], ["\udfff"]), (dict[str, int], {"a\ud800": 1})],
    ids=ascii,
)
def test_a_lone_surrogate_is_refused_when_a_state_is_made(type_: Any, value: Any) -> None:
    """No file can hold it; text that looks like it is fine."""
    with pytest.raises(SchemaViolation):
        state_of(type_, value)
    assert state_of(str, "\\ud800 \U0001f600")


def test_a_ttl_in_a_field_of_timedelta_is_a_timedelta() -> None:
    """As it is when it is read back, also inside of collections and with a constraint."""

    class Made(State):
        plain: timedelta
        many: list[timedelta]
        long: Annotated[timedelta, Field(ge=timedelta(hours=1))]
        short: TTL

    hour = TTL(hours=1)
    made = Made(plain=hour, many=[hour], long=hour, short=hour)
    kinds = [type(value) for value in (made.plain, made.many[0], made.long, made.short)]
    assert kinds == [timedelta, timedelta, timedelta, TTL]
    assert decode_fields(Made, encode_fields(made)) == made
    with pytest.raises(SchemaViolation):
        Made(plain=hour, many=[hour], long=TTL(minutes=1), short=hour)


def test_a_literal_beside_its_plain_type_leaves_values_as_they_are() -> None:
    """True is the literal and 1 is the number, given and read back."""

    class Made(State):
        field: Literal[True] | int
        level: Level | bool

    for field, level in ((True, Level.LOW), (1, True)):
        made = Made(field=field, level=level)  # type: ignore[arg-type]
        stored = encode_fields(made)
        assert canonical(stored) == canonical({"field": field, "level": level})
        read = decode_fields(Made, stored)
        assert (type(read.field), type(read.level)) == (type(field), type(level))


def test_a_caller_may_pass_on_an_unknown_variant_but_not_make_one_up() -> None:
    """What decoding gave may be put into another record; a raw value may not."""
    known = UnknownVariant("judge", Role)
    assert Message(id="1", text="", role=known).role == known  # type: ignore[arg-type]
    for wrong in ("judge", UnknownVariant(9, Level), UnknownVariant("user", Role)):
        with pytest.raises(SchemaViolation):
            Message(id="1", text="", role=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        Message.model_validate_json('{"id": "1", "text": "", "role": "judge"}')


def test_an_enum_may_say_itself_what_it_does_with_unknown_values() -> None:
    """Its own _missing_ comes first."""

    class Mood(enum.Enum):
        FINE = "fine"
        OTHER = "other"

        @classmethod
        def _missing_(cls, value: object) -> Mood:
            return cls.OTHER

    class Made(State):
        mood: Mood

    assert decode_fields(Made, {"mood": "odd"}).mood is Mood.OTHER


def test_what_no_json_holds_is_a_violation_when_it_is_decoded() -> None:
    """decode_fields is given plain values; anything else is refused in words."""
    for wrong in ({"title": {1, 2}}, {"title": object()}, {"title": "\ud800"}):
        with pytest.raises(SchemaViolation):
            decode_fields(Chat, wrong)


class Plain(State):
    n: int = 0


@pytest.mark.parametrize(
    "misuse",
    [
        lambda: diff(Plain(), {}),
        lambda: diff({}, Plain(n=1)),
        lambda: diff({"points": [Point(x=1)]}, {"points": []}),
        lambda: merge({}, {"n": 1}, Plain()),
        lambda: envelope.encode(
            Plain(),  # type: ignore[arg-type]
            schema_version=None,
            state_version=1,
            serialized_at_us=0,
        ),
        lambda: prepare(Draft(type="a.b", data={"state": Plain()}), id="1", actor="x"),
        lambda: prepare(Draft(type="a.b", data=Plain()), id="1", actor="x"),  # type: ignore[arg-type]
    ],
    ids=["diff old", "diff new", "diff records", "merge", "envelope", "within data", "as data"],
)
def test_typed_state_in_the_place_of_plain_values_is_told_where_those_are(misuse: Any) -> None:
    """Whoever passes s.state where values are wanted reads of s.values."""
    with pytest.raises(InvalidValue, match=r"s\.values"):
        misuse()
