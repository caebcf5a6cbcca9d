"""Requests in the head: asked, answered once, replaced, closed, and bounded."""

from __future__ import annotations

from typing import Any, Final

import pytest

from limpet.errors import InvalidEvent, RequestAnswered, RequestMismatch
from limpet.model import EMPTY, Draft, FrozenDict, Key
from limpet.model.facts.running.requests import (
    ANSWERED_BY,
    CONFIRMATION,
    CUSTOM_RESULT,
    RESOLUTION,
    Request,
    asked,
    asked_id,
    check,
    check_answer,
    closed,
    deadline_us,
    fold_answer,
    fold_asked,
    is_open,
    open_requests,
    overdue,
    requests_in,
)
from limpet.model.facts.view import Facts, Moment, with_changes
from limpet.model.limits import REQUEST_BYTES_MAX, REQUESTS_MAX

KEY: Final = Key("shop", "ada", "one")
NOW_US: Final = 1_760_000_000_000_000


def ask(facts: Facts, id: str, kind: Any = "approval", *, seq: int = 1, **more: Any) -> Facts:
    draft = asked(id, kind, f"name of {id}", {"of": id}, input_hash=f"hash of {id}", **more)
    return with_changes(facts, fold_asked(facts, draft.data, Moment(seq, NOW_US)))


def answer(facts: Facts, id: Any, seq: int = 9) -> Facts:
    return with_changes(facts, fold_answer(facts, {"request_id": id}, Moment(seq, NOW_US)))


def test_a_request_says_what_is_asked() -> None:
    """What is shown to a person, and what the answer is bound to."""
    plain = asked("r", "approval", "wire", {"eur": 9}, input_hash="h")
    data = {"request_id": "r", "name": "wire", "input": {"eur": 9}, "awaits": "approval"}
    wanted = {**data, "input_hash": "h", "permission": "ask"}
    assert plain == Draft(type="agent.tool_use", data=wanted, id=asked_id("r"))
    assert asked_id("r") == "r/asked"
    more = asked("r", "unknown_effect", "wire", 1, input_hash="h", deadline_us=5, replaces="q")
    assert more.data["deadline_us"] == 5
    assert more.data["otherwise"] is False
    assert more.data["replaces"] == "q"
    allowed = asked("r", "mismatch", "wire", 1, input_hash="h", deadline_us=5, otherwise=True)
    assert allowed.data["otherwise"] is True
    question = asked("r", "question", "rate", 1, input_hash="h")
    assert (question.type, "permission" in question.data) == ("agent.custom_tool_use", False)


def test_requests_are_open_in_the_order_of_asking() -> None:
    """Until they are answered; what was asked is in the event that asks, and not in the head."""
    facts = ask(ask(EMPTY, "b", "question", seq=3, deadline_us=NOW_US), "a", seq=2)
    assert [r.id for r in open_requests(facts)] == ["a", "b"]
    first, second = open_requests(facts)
    assert first == Request("a", "approval", "", None)
    texts: Any = {2: asked("a", "approval", "wire", {"of": "a"}, input_hash="").data}
    assert open_requests(facts, texts) == (Request("a", "approval", "wire", {"of": "a"}), second)
    assert second.deadline is not None
    assert round(second.deadline.timestamp() * 1_000_000) == NOW_US
    after = answer(facts, "a")
    assert [r.id for r in open_requests(after)] == ["b"]
    assert (is_open(after, "a"), is_open(after, "b"), is_open(after, "c")) == (False, True, False)
    assert requests_in(after)["a"] == {**requests_in(facts)["a"], "answer": 9}
    assert requests_in(facts)["a"] == {"kind": "approval", "seq": 2}
    assert open_requests(EMPTY) == ()


def test_the_first_answer_stands() -> None:
    """Another one, and one to what nobody asked, changes nothing."""
    facts = answer(ask(EMPTY, "a"), "a")
    for id in ("a", "b", None, 5, ["a"]):
        assert fold_answer(facts, {"request_id": id}, Moment(10, NOW_US)) == {}


def test_asking_again_does_not_take_an_answer_back() -> None:
    """The first asking stands, answered or not; a tool that was used asks nothing."""
    facts = answer(ask(EMPTY, "a"), "a")
    again = asked("a", "question", "x", 1, input_hash="h")
    assert fold_asked(facts, again.data, Moment(2, NOW_US)) == {}
    assert fold_asked(facts, {"request_id": "b", "name": "x"}, Moment(2, NOW_US)) == {}


def test_a_request_closes_the_one_that_it_replaces() -> None:
    """An answer that came before stays what it was."""
    facts = ask(ask(ask(EMPTY, "a"), "b"), "c", replaces="a", seq=7)
    assert [r.id for r in open_requests(facts)] == ["b", "c"]
    assert requests_in(facts)["a"]["answer"] == 7
    answered = ask(answer(ask(EMPTY, "a"), "a", 3), "b", replaces="a", seq=7)
    assert requests_in(answered)["a"]["answer"] == 3
    assert [r.id for r in open_requests(ask(EMPTY, "b", replaces="unknown"))] == ["b"]


def test_an_interrupt_answers_all_of_them() -> None:
    """They are kept with the seq of what closed them; earlier answers stay."""
    facts = answer(ask(ask(EMPTY, "a"), "b"), "a", 3)
    after = with_changes(facts, closed(facts, Moment(8, NOW_US)))
    assert {id: r["answer"] for id, r in requests_in(after).items()} == {"a": 3, "b": 8}
    assert closed(EMPTY, Moment(8, NOW_US)) == {}


def test_the_first_deadline_of_those_that_are_awaited_counts() -> None:
    """One without a deadline has none; at its time it is over."""
    facts = ask(ask(EMPTY, "a"), "b", deadline_us=NOW_US, otherwise=True)
    facts = ask(facts, "c", deadline_us=NOW_US - 5)
    assert deadline_us(facts, ["a", "b", "c"]) == NOW_US - 5
    assert deadline_us(facts, ["a", "b"]) == NOW_US
    assert deadline_us(facts, ["a", "unknown"]) is None
    assert overdue(facts, NOW_US - 6) == {}
    assert overdue(facts, NOW_US - 1) == {"c": False}
    assert overdue(facts, NOW_US) == {"b": True, "c": False}
    assert overdue(answer(facts, "b"), NOW_US) == {"c": False}
    bare = FrozenDict(requests=FrozenDict(a=FrozenDict(kind="approval", deadline_us=NOW_US)))
    assert overdue(bare, NOW_US) == {"a": False}


@pytest.mark.parametrize("kind", [*ANSWERED_BY, "effect"])
@pytest.mark.parametrize("type", [CONFIRMATION, CUSTOM_RESULT, RESOLUTION])
def test_a_kind_of_request_takes_its_kind_of_answer(kind: Any, type: str) -> None:
    """The error names the request and the verb; once it is answered no kind fits. An earlier
    version called an unknown effect an effect."""
    facts, data = ask(EMPTY, "a", kind), {"request_id": "a", "decision": "run_again"}
    named = "unknown_effect" if kind == "effect" else kind
    assert open_requests(facts)[0].kind == named
    wanted, verb = ANSWERED_BY[named]
    if type == wanted:
        check_answer(KEY, facts, type, data)
    else:
        with pytest.raises(RequestMismatch) as wrong:
            check_answer(KEY, facts, type, data)
        assert (wrong.value.id, wrong.value.kind, wrong.value.verb) == ("a", named, f"s.{verb}")
    with pytest.raises(RequestAnswered) as late:
        check_answer(KEY, answer(facts, "a"), type, data)
    assert (late.value.key, late.value.id) == (KEY, "a")
    for other in ("b", None, 5, ["a"]):
        check_answer(KEY, facts, type, {"request_id": other})


def test_a_resolution_is_one_of_three() -> None:
    """A mismatch did not happen; what did happen has its result."""
    effect, mismatch = ask(EMPTY, "a", "unknown_effect"), ask(EMPTY, "a", "mismatch")
    for decision in ("happened", "run_again", "give_up"):
        data = {"request_id": "a", "decision": decision, "output": None}
        check_answer(KEY, effect, RESOLUTION, data)
        if decision != "happened":
            check_answer(KEY, mismatch, RESOLUTION, data)
    for facts, wrong in ((mismatch, "happened"), (effect, "again"), (effect, None)):
        with pytest.raises(RequestMismatch, match=r"resolve\(request_id, "):
            check_answer(KEY, facts, RESOLUTION, {"request_id": "a", "decision": wrong})
    with pytest.raises(InvalidEvent, match="has its output"):
        check_answer(KEY, effect, RESOLUTION, {"request_id": "a", "decision": "happened"})


def test_a_head_stays_small() -> None:
    """So many may be open, and so large is the input of each."""
    facts = EMPTY
    for number in range(REQUESTS_MAX + 1):
        before, facts = facts, ask(facts, f"r{number}")
    data = {"awaits": "approval", "request_id": f"r{REQUESTS_MAX}", "name": "x", "input": 1}
    check(EMPTY, before, {**data, "request_id": "new"})
    with pytest.raises(InvalidEvent, match=f"more than {REQUESTS_MAX} requests"):
        check(before, facts, data)
    check(before, answer(facts, "r0"), data)
    fits = "x" * (REQUEST_BYTES_MAX - 2)  # and its quotes
    asked("r", "approval", "x", fits, input_hash="h")
    check(EMPTY, EMPTY, {**data, "input": fits})
    with pytest.raises(InvalidEvent, match="'x' has 16,385 bytes, more than 16,384"):
        asked("r", "approval", "x", fits + "x", input_hash="h")
    with pytest.raises(InvalidEvent, match="into a blob"):
        check(EMPTY, EMPTY, {**data, "input": fits + "x"})
    with pytest.raises(InvalidEvent, match="'r0' was asked already"):
        check(before, before, {**data, "request_id": "r0"})
    check(before, before, {"request_id": "r0", "input": fits + "x"})  # a tool that was used
