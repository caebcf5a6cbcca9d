"""Diffs: the form each kind of change takes, and what becomes of diffs that do not fit."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from limpet import Change, Diff, Kind, diff
from limpet.cli.render import diff_table
from limpet.errors import DiffMismatch, IntegrityViolation, InvalidDiff, InvalidOp, InvalidValue
from limpet.model import ops
from limpet.model.limits import VALUE_DEPTH_MAX
from limpet.model.values import ABSENT, FrozenDict, FrozenList, canonical, freeze, same

GOLDEN = Path(__file__).parents[3] / "golden" / "diff-1.json"
BEFORE = {
    "count": 1,
    "flag": True,
    "gone": None,
    "messages": [{"id": 1, "text": "hi"}, {"id": 2, "text": "there"}],
    "plan": {"owner": "ada", "steps": ["look", "think", "act"], "a.b": 0.0},
    "queue": [1, 2, 3, 4],
}
AFTER = {
    "app:limit": 9007199254740993,
    "count": 1.0,
    "flag": 1,
    "messages": [
        {"id": 1, "text": "hi"},
        {"id": 2, "text": "there, é 😀"},
        {"id": 3, "text": "\x00\x1b"},
    ],
    "plan": {"": [], "owner": "ada", "steps": ["look", "act"], "a.b": -0.0, "z": {"deep": [[]]}},
    "queue": [3, 4, 5],
}


def shown(a: Any, b: Any) -> list[str]:
    return str(diff(a, b)).splitlines()


def forged(changes: Any, format: Any = 1) -> bytes:
    """Bytes with a checksum that fits, whatever they say."""
    body = canonical({"changes": changes, "format": format})
    digest = hashlib.sha256(body).hexdigest().encode()
    return body[:-1] + b',"sha256":"' + digest + b'"}'


# --- sameness -----------------------------------------------------------------------------------


DISTINCT = [None, False, True, 0, 1, 0.0, -0.0, 1.0, "", "1", [], {}, [1], [True], {"a": 0.0}]


@pytest.mark.parametrize("one", DISTINCT, ids=repr)
def test_values_are_the_same_only_as_themselves(one: Any) -> None:
    """1, 1.0 and True are three values, 0.0 and -0.0 two, and no value at all is another."""
    copies = [other for other in DISTINCT if same(one, other)]
    assert [repr(copy) for copy in copies] == [repr(one)]
    assert same(freeze(one), one)
    assert not same(one, ABSENT)
    assert not same(ABSENT, one)
    assert same(ABSENT, ABSENT)


def test_diffs_are_equal_only_if_every_value_is_the_same() -> None:
    """As sets and dicts of diffs see it, too."""
    one, other = diff({"n": 0}, {"n": 1}), diff({"n": 0}, {"n": True})
    assert one != other
    assert len({one, other, diff({"n": 0}, {"n": 1})}) == 2
    assert not diff({"n": 1}, {"n": 1})
    assert one


# --- the form of changes ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "lines"),
    [
        ({"n": 1}, {"n": 1.0}, ["~ n: 1 → 1.0"]),
        ({"n": 1}, {}, ["- n: 1"]),
        ({}, {"b": 1, "a": 2}, ["+ a: 2", "+ b: 1"]),
        ({"p": {"q": {"r": 1}}}, {"p": {"q": {"r": 2}}}, ["~ p.q.r: 1 → 2"]),
        ({"p": [1]}, {"p": {"a": 1}}, ['~ p: [1] → {"a":1}']),
        ({"l": [1, 2]}, {"l": [1, 2, 3]}, ["+ l[2]: 3"]),
        ({"l": [1, 2]}, {"l": [1, 2, 3, 4]}, ["+ l[2:4]: [3,4]"]),
        ({"l": [1, 2, 3]}, {"l": [1]}, ["- l[1:3]: [2,3]"]),
        ({"l": [1, 2, 3]}, {"l": [1, 9, 3]}, ["~ l[1]: 2 → 9"]),
        ({"l": [1, 2, 3]}, {"l": [8, 2, 9]}, ["~ l[0]: 1 → 8", "~ l[2]: 3 → 9"]),
        ({"l": [1, 2, 3, 4]}, {"l": [1, 8, 9, 7, 4]},
         ["~ l[1]: 2 → 8", "~ l[2]: 3 → 9", "+ l[3]: 7"]),
        ({"l": [1, 2, 3, 4]}, {"l": [2, 3, 4, 5]}, ["- l[0]: 1", "+ l[3]: 5"]),
        ({"l": [1, 2, 3, 4, 5]}, {"l": [1, 9, 2, 3, 5]}, ["+ l[1]: 9", "- l[4]: 4"]),
        ({"l": [[], [1]]}, {"l": [[0], [1], 2]}, ["+ l[0][0]: 0", "+ l[2]: 2"]),
        ({"l": []}, {"l": [None]}, ["+ l[0]: null"]),
        ({"a.b": 1, "": 1}, {"a.b": 2, "": 2}, ["~ ['']: 1 → 2", "~ ['a.b']: 1 → 2"]),
        (1, 2, ["~ the root: 1 → 2"]),
        ([1], [1, 2], ["+ [1]: 2"]),
    ],
)  # fmt: skip
def test_a_change_takes_the_smallest_form(a: Any, b: Any, lines: list[str]) -> None:
    """Only what changed is named, a grown list by its tail, a moved item by where it went."""
    assert shown(a, b) == lines
    assert same(diff(a, b).apply(a), b)


def test_one_more_message_is_one_change_with_one_message() -> None:
    """However long the conversation is, and whether the two share anything or not."""
    messages = [{"role": "user", "text": f"m{n}"} for n in range(1_500)]
    (change,) = diff({"m": messages}, {"m": [*messages, {"role": "bot", "text": "x"}]}).changes
    assert change == Change(("m", 1_500), Kind.ADD, None, [{"role": "bot", "text": "x"}], 1_500)
    assert type(change.new) is FrozenList
    assert type(change.new[0]) is FrozenDict


def test_a_number_of_another_kind_is_found_anywhere() -> None:
    """Even where `==` sees no difference among thousands of items."""
    a = {"m": [{"n": 1, "z": [0.0]} for _ in range(1_500)], **{f"f{n}": n for n in range(700)}}
    b = {**a, "m": [*a["m"][:777], {"n": True, "z": [-0.0]}, *a["m"][778:]], "f600": 600.0}
    assert shown(a, b) == [
        "~ f600: 600 → 600.0",
        "~ m[777].n: 1 → true",
        "~ m[777].z[0]: 0.0 → -0.0",
    ]


@pytest.mark.parametrize("depth", [10, 90])
def test_lists_in_lists_cost_no_more_for_each_level(depth: int) -> None:
    """Items that moved at every level are found without comparing any level twice."""
    a: Any = [1]
    b: Any = [2]
    for level in range(depth):
        a, b = [f"x{level}", f"y{level}", a], [f"y{level}", f"z{level}", b]
    found = diff({"l": a}, {"l": b})
    assert same(found.apply({"l": a}), {"l": b})
    assert len(found.changes) <= 3 * depth + 1


def test_the_order_of_names_means_nothing() -> None:
    """Not in thousands of items either, and a real change among them is found."""
    a = {"m": [{"id": n, "tags": {"x": 1, "y": 2}} for n in range(1_500)]}
    b = {"m": [{"tags": {"y": 2, "x": 1}, "id": n} for n in range(1_500)]}
    assert not diff(a, b)
    b["m"][900]["tags"]["x"] = 1.0  # type: ignore[index]  # a dict, as above
    assert shown(a, b) == ["~ m[900].tags.x: 1 → 1.0"]


def test_no_path_is_longer_than_an_operation_allows() -> None:
    """What differs further down is one change at the deepest place that can be named."""
    a: Any = 1
    b: Any = 2
    for _ in range(VALUE_DEPTH_MAX + 20):
        a, b = {"k": a}, {"k": b}
    found = diff(freeze(a), freeze(b))
    (change,) = found.changes
    assert len(change.path) == VALUE_DEPTH_MAX
    assert same(ops.apply(freeze(a), found.ops()), freeze(b))
    assert Diff.from_bytes(found.to_bytes()) == found


@pytest.mark.parametrize(
    ("b", "where"),
    [
        ({"x": {"y": float("nan")}}, "the value at x.y"),
        ({"x": {"y": b"raw"}}, "the value at x.y"),
        ({"x": {"y": 2**70}}, "the value at x.y"),
        ({"x": {"y": 1, 7: 1}}, "the value at x"),
        ({"x": {"y": 1, "\ud800": 1}}, "a name"),
        ({"x": {"y": "\ud800"}}, "the value at x.y"),
        ({"x": {"y": [1, {2}]}}, "the value at x.y[1]"),
        ({"l": [1, 2, {3}]}, "the value at l"),
    ],
    ids=repr,
)
def test_what_no_state_can_hold_is_refused_by_its_place(b: Any, where: str) -> None:
    """Not by an encoder's error, and never let through as something like it."""
    with pytest.raises(InvalidValue) as info:
        diff({"x": {"y": None}, "l": [1]}, {"l": [1], "x": {"y": None}} | b)
    assert info.value.where.startswith(where)


def test_a_value_that_contains_itself_is_refused() -> None:
    """Wherever the circle closes."""
    loop: list[Any] = [1]
    loop.append(loop)
    with pytest.raises(InvalidValue):
        diff({"l": [1, [1]]}, {"l": loop})


# --- applying -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "path", "expected", "actual"),
    [
        ({"p": {"n": 2}, "l": [1]}, "p.n", "1", "2"),
        ({"p": {"n": True}, "l": [1]}, "p.n", "1", "true"),
        ({"p": {}, "l": [1]}, "p.n", "1", "nothing"),
        ({"p": [], "l": [1]}, "p.n", "1", "nothing"),
        ({"p": 5, "l": [1]}, "p", "a dict", "5"),
        ({"l": [1]}, "p", "a dict", "nothing"),
        ({"p": {"n": 1}, "l": [1, 2]}, "l", "a list of 1", "one of 2"),
        ({"p": {"n": 1}, "l": {}}, "l", "a list", "a dict"),
        ({"p": {"n": 1}, "l": [1], "new": 0}, "new", "nothing", "0"),
        ([], "l", "a list", "nothing"),
    ],
)
def test_a_diff_applies_only_where_the_old_values_are(
    state: Any, path: str, expected: str, actual: str
) -> None:
    """The error names the place and both sides; the state is as it was."""
    found = diff({"p": {"n": 1}, "l": [1]}, {"p": {"n": 3}, "l": [1, 2], "new": 1})
    before = canonical(state)
    with pytest.raises(DiffMismatch) as info:
        found.apply(state)
    assert (info.value.path, info.value.expected, info.value.actual) == (path, expected, actual)
    assert info.value.code == "diff.mismatch"
    assert canonical(state) == before


def test_taking_items_off_wants_these_very_items() -> None:
    """Equal in number is not enough."""
    with pytest.raises(DiffMismatch):
        diff({"l": [1, 2]}, {"l": [1]}).apply({"l": [1, 2.0]})


def test_what_did_not_change_is_shared() -> None:
    """Applying copies the containers on the way to a change and nothing else."""
    state = freeze({"big": [1, 2], "p": {"n": 1, "same": {"x": 1}}})
    after = diff(state, {"big": [1, 2], "p": {"n": 2, "same": {"x": 1}}}).apply(state)
    assert after["big"] is state["big"]
    assert after["p"]["same"] is state["p"]["same"]


# --- cost ---------------------------------------------------------------------------------------


def test_the_cost_is_the_bytes_to_be_moved() -> None:
    """Each path and what is put there; what is taken away costs its path only."""
    assert diff({"a": 1}, {"a": 1}).cost() == 0
    assert diff({"a": 1}, {"a": "xyz"}).cost() == len('["a"]"xyz"')
    assert diff({"a": "x" * 1_000}, {}).cost() == len('["a"]')
    assert diff({"a": [1]}, {"a": [1, 2]}).cost() == len('["a",1][2]')


def test_the_caller_may_weigh_by_kind_and_type() -> None:
    """The sum of what a function says of each change."""
    table = {(Kind.ADD, "list"): 1, (Kind.MODIFY, "float"): 10, (Kind.DELETE, "null"): 100}
    found = diff({"l": [], "n": 1, "x": None}, {"l": [1], "n": 1.0})
    assert [change.type for change in found.changes] == ["list", "float", "null"]
    assert found.cost(lambda change: table[change.kind, change.type]) == 111


# --- operations ---------------------------------------------------------------------------------


def test_each_change_becomes_the_smallest_operation() -> None:
    """Add for a tail, Cut, Insert, Set, Delete, and Merge for several names of one dict."""
    a = {"log": [1], "cut": [1, 2, 3], "ins": [1, 2], "n": 1, "gone": 1, "d": {"x": 1, "y": {}}}
    b = {"log": [1, 2], "cut": [1, 3], "ins": [1, 9, 2], "n": 2,
         "d": {"x": 2, "y": {"p": 1, "q": 2}, "z": 3}, "app:new": 1}  # fmt: skip
    assert diff(a, b).ops() == (
        ops.Set(("app:new",), 1),
        ops.Cut(("cut",), 1, 2),
        ops.Merge(("d",), {"x": 2, "z": 3}),
        ops.Merge(("d", "y"), {"p": 1, "q": 2}),
        ops.Delete(("gone",)),
        ops.Insert(("ins",), 1, [9]),
        ops.Add(("log",), [2]),
        ops.Set(("n",), 2),
    )


@pytest.mark.parametrize(
    ("a", "b"),
    [(1, 2), ([1], [1, 2]), ({}, {"": 1}), ({}, {" pad": 1}), ({"a\n": 1}, {}), ([0], {"a": 1})],
)
def test_what_no_operation_can_reach_is_refused(a: Any, b: Any) -> None:
    """The root itself, and names that state cannot have."""
    with pytest.raises(InvalidOp):
        diff(a, b).ops()


def test_a_reference_has_to_be_resolved_first() -> None:
    """A diff knows no event whose data it could look into."""
    with pytest.raises(InvalidOp):
        Diff.of({}, [ops.SetRef(("a",), ("text",))])  # type: ignore[list-item]


def test_operations_change_nothing_but_a_state() -> None:
    """A list or a number has no names."""
    with pytest.raises(InvalidOp):
        Diff.of([1], [ops.Set("a", 1)])


def test_operations_become_what_they_change_in_the_end() -> None:
    """Not what they touch on the way; and their values stay the caller's own."""
    items = [{"x": 1}]
    found = Diff.of({"n": 1, "l": []}, [ops.Inc(("n",), 2), ops.Set("m", 1), ops.Delete("m"),
                    ops.Add(("l",), items)])  # fmt: skip
    assert str(found).splitlines() == ['+ l[0]: {"x":1}', "~ n: 1 → 3"]
    assert type(items[0]) is dict


# --- bytes --------------------------------------------------------------------------------------


def test_the_first_format_is_read_for_ever() -> None:
    """The file was written by the first release; it is read to the same diff and written again."""
    raw = GOLDEN.read_bytes()
    assert Diff.from_bytes(raw) == diff(BEFORE, AFTER)
    assert diff(BEFORE, AFTER).to_bytes() == raw
    assert same(Diff.from_bytes(raw).apply(BEFORE), AFTER)
    assert same(Diff.from_bytes(raw).inverse().apply(AFTER), BEFORE)


@pytest.mark.parametrize("flip", [1, 2, 32, 128, 255])
def test_every_byte_is_covered(flip: int) -> None:
    """Whichever one changes, somebody who reads it is told."""
    raw = GOLDEN.read_bytes()
    for at in range(len(raw)):
        changed = raw[:at] + bytes([raw[at] ^ flip]) + raw[at + 1 :]
        with pytest.raises((IntegrityViolation, InvalidDiff)):
            Diff.from_bytes(changed)


def test_a_violation_says_both_checksums() -> None:
    """What the bytes claim and what they amount to."""
    raw = diff({"n": 1}, {"n": 2}).to_bytes()
    with pytest.raises(IntegrityViolation) as info:
        Diff.from_bytes(raw.replace(b"1,2", b"1,3"))
    assert info.value.expected == raw[-66:-2].decode()
    assert info.value.computed != info.value.expected
    assert info.value.code == "integrity.violation"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"null",
        diff({}, {"a": 1}).to_bytes()[:-1],
        diff({}, {"a": 1}).to_bytes() + b"\n",
        " not bytes",
        forged([], 2),
        forged([], "1"),
        forged({}),
        forged([1]),
        forged([[["a"], "set", 1, 2, None]]),
        forged([[["a"], "add", 1, 2, None]]),
        forged([[["a"], "delete", 1, 2, None]]),
        forged([[["a"], "add", None, 2, 1]]),
        forged([[["a"], "modify", 1, 2, 1]]),
        forged([[["a", 0], "add", None, 2, 1]]),
        forged([[["a", 0], "add", None, [], 1]]),
        forged([[["a", 0], "add", None, [1], None]]),
        forged([[["a", 2], "add", None, [1], 1]]),
        forged([[["a", 1], "delete", [1], None, 1]]),
        forged([[["a", -1], "modify", 1, 2, None]]),
        forged([[["a", True], "modify", 1, 2, None]]),
        forged([[[], "add", None, 1, None]]),
        forged([[[], "delete", 1, None, None]]),
        forged([[["a"] * (VALUE_DEPTH_MAX + 1), "modify", 1, 2, None]]),
        forged([[["a"], "modify", 1, 2**63, None]]),
    ],
    ids=repr,
)
def test_bytes_that_are_no_diff_are_refused(raw: Any) -> None:
    """Also when their checksum fits: it is no signature."""
    with pytest.raises(InvalidDiff) as info:
        Diff.from_bytes(raw)
    assert info.value.code == "diff.invalid"


def test_a_huge_nesting_is_refused_and_not_fatal() -> None:
    """Bytes may nest deeper than any interpreter can follow."""
    body = b'{"changes":[[["a"],"modify",1,' + b"[" * 9_000 + b"]" * 9_000 + b']],"format":1}'
    digest = hashlib.sha256(body).hexdigest().encode()
    with pytest.raises(InvalidDiff):
        Diff.from_bytes(body[:-1] + b',"sha256":"' + digest + b'"}')


# --- for people ---------------------------------------------------------------------------------


def test_long_values_are_shown_where_they_begin_to_differ() -> None:
    """What both begin with says nothing, so little of it is shown."""
    long = "All work and no play makes Jack a dull boy, or so they say, at least "
    (line,) = str(diff({"t": long + "here"}, {"t": long + "there"})).splitlines()
    assert line == '~ t: …y, at least here" → …y, at least there"'
    (line,) = str(diff({"t": "no" + long}, {"t": long})).splitlines()
    assert line.startswith('~ t: "noAll work and')


def test_long_values_are_cut_and_controls_are_spelled_out() -> None:
    """A line stays a line on any terminal, whatever the values hold."""
    (line,) = shown({"x": "\x9b31m" + "é" * 500}, {"x": ["\u202e", "\x1b[2J"]})
    assert line == '~ x: "\\u009b31m' + "é" * 54 + '… → ["\\u202e","\\u001b[2J"]'


@pytest.mark.parametrize("width", [24, 60, 140])
def test_the_table_fits_the_terminal(width: int) -> None:
    """Every line within the width, every path and sign there, and no markup of values obeyed."""
    found = diff(BEFORE, {**AFTER, "x": "[red]bold[/red] " * 40})
    console = Console(width=width, color_system=None, file=io.StringIO())
    with console.capture() as capture:
        console.print(diff_table(found))
    text = capture.get()
    assert max(len(line) for line in text.splitlines()) <= width
    assert {line[0] for line in text.splitlines()} >= {"+", "~", "-"}
    folded = "".join(text.split())
    assert "count" in folded
    assert width < 60 or "[red]bold[/red]" in text
