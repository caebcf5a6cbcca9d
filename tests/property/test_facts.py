"""Facts of any shape: a commit with one is refused by an error of ours, or leaves a whole head."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, strategies as st

from limpet.errors import LimpetError
from limpet.model import Draft, Event, Fact, Key, Prepared, head, prepare
from limpet.model.due import deadline_us, due_us, reasons_at, runnable_us
from limpet.model.facts import checkpoints, outcomes, relations, retention, timers
from limpet.model.facts.creation import created
from limpet.model.facts.running import (
    budgets,
    children,
    endings,
    memory,
    requests,
    runs,
    setup,
)
from limpet.model.facts.shapes import _SHAPES, check_shape
from limpet.model.fold import Fold, record, replay
from limpet.model.values import FrozenDict
from limpet.session.relations import relation_in
from limpet.store.sqlite.rows import due_columns, facts_text
from tests.property.strategies import values
from tests.support.examples import examples

KEY: Final = Key("shop", "ada", "one")
NOW_US: Final = 1_760_000_000_000_000
SPAN: Final = {"span_id": "w1", "kind": "wake", "name": "wake"}
# One good example of every event that the head looks into.
GOOD: Final[dict[str, dict[str, Any]]] = {
    "session.labeled": {"labels": {"plan": "gold", "tier": None}},
    "session.timer_set": {"name": "t", "at_us": NOW_US, "kind": "wake"},
    "session.timer_cleared": {"name": "t"},
    "session.processed": {"seqs": [2]},
    "span.started": {**SPAN, "turn": "t1", "attempt": 1, "inputs": [2], "timers": ["t"]},
    "span.completed": {**SPAN, "result": "success", "fence": 1},
    "session.status_idle": {
        "stop_reason": "requires_action",
        "blocked_on": ["r1"],
        "processed": [],
        "needs": {"cost": 5},
    },
    "session.error": {"code": "x.y", "message": "no", "attempt": 1, "retry_us": NOW_US},
    "session.requeued": {"fails": 0},
    "effect.intended": {"name": "e", "compensate": {"name": "undo"}},
    "session.cascaded": {"children": ["c1"]},
    "session.compensated": {"done": 1, "left": ["k"], "retry_us": NOW_US},
    "agent.tool_use": {
        "request_id": "r1",
        "awaits": "approval",
        "name": "wire",
        "input": {"eur": 9},
        "deadline_us": NOW_US,
        "otherwise": True,
        "replaces": "r0",
    },
    "agent.custom_tool_use": {"request_id": "r2", "awaits": "question", "name": "q", "input": 1},
    "session.revisit_set": {
        "name": "revisit:k",
        "at_us": NOW_US,
        "reason": "why",
        "priority": "high",
        "replace": False,
    },
    "session.timers_taken": {"names": ["t"]},
    "session.child_created": {"child": "c1", "app": "shop", "user": "ada", "cascade": True},
    "session.child_released": {"child": "c1"},
    "session.child_ended": {"child": "c1", "stop_reason": "end_turn"},
    "session.child_spawned": {
        "child": "c2",
        "app": "shop",
        "user": "ada",
        "uid": "u2",
        "task_hash": "h",
        "lent": {"cost": 1, "tokens": 1},
    },
    "session.child_done": {
        "child": "c2",
        "app": "shop",
        "user": "ada",
        "uid": "u2",
        "stop_reason": "end_turn",
        "lent": {"cost": 1, "tokens": 1},
        "account": {"cost": 1, "tokens": 1, "limit": {"tokens": 1}},
    },
    "session.delegated": {"app": "shop", "user": "ada", "id": "p", "turn": "t", "depth": 1},
    "session.delegation_ended": {"ended": True},
    "budget.granted": {"cost": 10, "tokens": 10},
    "budget.reserved": {"reservation": "b", "cost": 1, "tokens": 1},
    "budget.settled": {"reservation": "b", "cost": 1, "tokens": 1},
    "budget.delegated": {"child": "c1", "cost": 1, "tokens": 1},
    "budget.returned": {"child": "c1", "cost": 1, "tokens": 1},
    "agent.message": {"text": "hi", "usage": {"input": 1, "output": 2}, "cost": 0.5},
    "session.outcome_evaluated": {"verdict": "pass", "met": [True, None]},
    "session.memory_written": {"name": "shell_state", "value": 1, "expect": 0},
    "session.attached": {"resources": ["a@1"], "vaults": [], "permissions": "p@1", "limits": {}},
    "checkpoint.recorded": {"number": 1, "at_us": NOW_US},
    "checkpoint.unpinned": {"of": "u"},
    "session.prioritized": {"priority": 5},
    "session.share_received": {
        "share": "s1",
        "fields": ["plan"],
        "access": "read",
        "sync": "live",
        "version": 3,
        "source": {"app": "support", "user": "eve", "id": "other", "uid": "u2"},
    },
    "session.unshared": {"share": "s1"},
    "session.departed": {
        "to": "eu-2",
        "from": "eu-1",
        "epoch": 1,
        "family": [["shop", "ada", "1"], ["shop", "ada", "2"]],
    },
    "session.arrived": {"node": "eu-2", "from": "eu-1", "epoch": 1},
    "session.returned": {"node": "eu-1", "epoch": 1, "reason": "capacity"},
    "session.reclaimed": {
        "node": "eu-1",
        "epoch": 2,
        "lost": "eu-2",
        "store": "s2",
        "reason": "its disk is gone",
    },
    "session.retention_set": {"retention": {"events": 5, "age_us": 1}},
    "state.migrated": {"from": None, "to": "1.0.0", "steps": []},
    "session.timeouts_set": {"timeouts": {"idle_us": 60_000_000, "absolute_us": 3_600_000_000}},
    "session.renewed": {"idle_us": 1_000_000},
    "session.tools_bound": {"tools": {"search": {"version": "1", "cost": 0.1}}},
    "session.activated": {"from": "init", "to": "active", "event": "activate"},
    "session.suspended": {"from": "active", "to": "suspended", "event": "timeout", "resumes": True},
    "session.resumed": {"from": "suspended", "to": "resumed", "event": "resume"},
    "session.reactivated": {"from": "resumed", "to": "active", "event": "reactivate"},
    "session.completed": {"from": "active", "to": "completed", "event": "complete"},
    "session.terminated": {"from": "active", "to": "terminated", "event": "terminate"},
    "session.archived": {"from": "terminated", "to": "archived", "event": "archive"},
    "session.unarchived": {"from": "archived", "to": "terminated", "event": "unarchive"},
    "user.interrupt": {"note": "stop", "by": "parent"},
    "user.tool_confirmation": {"request_id": "r1", "allow": True},
    "user.custom_tool_result": {"request_id": "r2", "output": 1},
    "user.resolution": {"request_id": "r3", "decision": "happened", "output": 1},
    "user.define_outcome": {"title": "t", "detail": "d", "criteria": ["a"]},
}
# And of those that only readers of a log look into.
LOGGED: Final[dict[str, dict[str, Any]]] = {
    "session.related": {
        "kind": "predecessor",
        "direction": "to",
        "app": "support",
        "user": "eve",
        "id": "other",
        "uid": "u2",
        "reads": {
            "version": 3,
            "output": "0" * 64,
            "fields": {"plan": "1" * 64},
            "blobs": [
                {
                    "uri": f"blob:sha256:{'2' * 64}",
                    "sha256": "2" * 64,
                    "size": 3,
                    "media_type": "text/plain",
                }
            ],
            "maker": {
                "id": "user:eve",
                "role": "owner",
                "app": "support",
                "user": "eve",
                "task": "t",
                "attributes": {"team": "a"},
            },
        },
    },
    "session.unrelated": {"relation": "r1"},
}
FIRST: Final[dict[str, dict[str, Any]]] = {
    "session.created": {
        "labels": {"plan": "gold"},
        "schema_version": "1.0.0",
        "phase": "init",
        "setup": {"agent": "a@1", "environment": "e@1", "budget": {"cost": 1, "tokens": 1}},
        "timeouts": {"idle_us": 60_000_000},
        "archived": {"created_us": NOW_US, "facts": {"labels": {"a": "b"}, "durations": {}}},
    },
    "session.forked": {
        "parent": {"app": "shop", "user": "ada", "id": "p", "uid": "u"},
        "at": 3,
        "base": "00",
        "labels": {"plan": "gold"},
    },
}

hostile: Final = st.one_of(
    values,
    st.sampled_from([-1, 0, 2**53, 2**63 - 1, -(2**63), "", "x" * 3_000, [], {}, [[]], [{}], True]),
)


@st.composite
def shaped(draw: st.DrawFn, of: dict[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """An event with members missing, of other types, far too large, or quite another."""
    type = draw(st.sampled_from(sorted(of)))
    data = dict(of[type])
    for name in draw(st.lists(st.sampled_from(sorted(data)), max_size=3)):
        if draw(st.booleans()):
            data.pop(name, None)
        elif isinstance(data.get(name), dict) and draw(st.booleans()):
            inner = draw(st.sampled_from([*data[name], "other"]))
            data[name] = {**data[name], inner: draw(hostile)}
        else:
            data[name] = draw(hostile)
    return type, data


def ready(type: str, data: dict[str, Any], number: int) -> Prepared:
    reserved = Fact if type.partition(".")[0] not in ("user", "agent") else Draft
    return prepare(reserved(type=type, data=data), id=f"e{number}", actor="test:facts")


def begun() -> Fold:
    """A session with a little of every fact."""
    fold = Fold(head.blank(KEY, "e0", NOW_US))
    first = prepare(created(KEY), id="e0", actor="test:facts")
    fold, _ = record(fold, first, NOW_US, b"s" * 16)
    for number, name in enumerate(
        ("user.define_outcome", "budget.granted", "session.child_created", "session.timer_set"), 1
    ):
        fold, _ = record(fold, ready(name, GOOD[name], number), NOW_US, b"s" * 16)
    return fold


BEGUN: Final = begun()


def look(found: head.Head) -> None:
    """Everything that a claim, a sweep, a listing or a wake reads of a head."""
    facts = found.facts
    assert all(us is None or abs(us) < 2**63 for us in due_columns(found) if isinstance(us, int))
    assert msgspec.json.decode(facts_text(found) or "{}") == facts
    for times in (runnable_us(found), deadline_us(found), due_us(facts)):
        assert times is None or abs(times) < 2**63
    reasons_at(found, NOW_US)
    assert isinstance(found.priority, int)
    assert all(isinstance(value, str) for value in found.labels.values())
    assert len([timer.at for timer in found.timers.values()]) == len(found.timers)
    assert len(timers.revisits_of(facts, tuple(found.timers))) == len(found.timers)
    assert found.timeouts is None or found.facts["timeouts"]
    requests.open_requests(facts)
    requests.overdue(facts, NOW_US)
    budgets.view(facts)
    budgets.usage(facts)
    budgets.used_up(facts)
    budgets.reservations(facts)
    children.parent_in(facts)
    for id, child in children.children_in(facts).items():
        Key(child["app"], child["user"], id)
    assert endings.is_left(facts) in (True, False)
    runs.is_short(facts)
    assert len(setup.setup_in(facts).fingerprint) == 64
    outcomes.outcome_in(facts)
    checkpoints.last_checkpoint(facts)
    retention.retention_in(facts)
    setup.tools_in(facts)
    for name in memory.BUFFERS:
        memory.version_in(facts, name)


def follow(fold: Fold, steps: list[tuple[str, dict[str, Any]]]) -> None:
    """Record what is not refused; afterwards replaying it leaves the same head."""
    replayed = fold
    for number, (type, data) in enumerate(steps, 10):
        try:
            fold, made = record(fold, ready(type, data, number), NOW_US + number, b"s" * 16)
        except LimpetError:
            continue
        look(fold.head)
        replayed = replay(replayed, stored(made.event, made.raw))
        assert replayed.head == fold.head


def stored(event: Event, raw: bytes) -> Event:
    """The event as a store reads it back."""
    body = msgspec.json.decode(raw)
    return msgspec.structs.replace(event, data=FrozenDict(body.get("data", body)))


@examples(1_000)
@given(st.lists(shaped(GOOD), min_size=1, max_size=6))
def test_a_fact_of_a_wrong_shape_is_refused_or_folds(steps: list[tuple[str, Any]]) -> None:
    """No exception but ours comes out of a commit, and no head is left that cannot be read."""
    follow(BEGUN, steps)


@examples(300)
@given(shaped(LOGGED))
def test_a_relation_of_a_wrong_shape_is_refused_or_read(step: tuple[str, Any]) -> None:
    """What is accepted can be shown, and says what may be read."""
    type, data = step
    try:
        _, made = record(BEGUN, ready(type, data, 10), NOW_US, b"s" * 16)
    except LimpetError:
        return
    event = stored(made.event, made.raw)
    if type == relations.RELATED:
        assert relation_in(event).key == relations.key_in(event.data)
        if "reads" in event.data:
            msgspec.convert(event.data["reads"], relations.ReadTerms)


@examples(300)
@given(shaped(FIRST), st.lists(shaped(GOOD), max_size=2))
def test_a_first_event_of_a_wrong_shape_is_refused_or_folds(
    first: tuple[str, Any], steps: list[tuple[str, Any]]
) -> None:
    """A creation and a fork bring more of a head than any other event."""
    follow(Fold(head.blank(KEY, "e0", NOW_US)), [first, *steps])


@pytest.mark.parametrize("type", sorted({**GOOD, **FIRST, **LOGGED}))
def test_the_good_example_of_a_fact_fits(type: str) -> None:
    """Otherwise the examples would show nothing."""
    check_shape(type, {**GOOD, **FIRST, **LOGGED}[type])


@pytest.mark.parametrize("type", sorted(_SHAPES))
def test_a_fact_without_its_data_is_refused(type: str) -> None:
    """As an error of ours, unless nothing of it has to be there."""
    fold = Fold(head.blank(KEY, "e0", NOW_US))
    if type in ("session.created", "session.attached"):
        record(fold, ready(type, {}, 10), NOW_US, b"s" * 16)
        return
    with pytest.raises(LimpetError):
        record(fold, ready(type, {}, 10), NOW_US, b"s" * 16)


def test_every_fact_of_the_head_has_an_example() -> None:
    """A new one is tried with wrong shapes too."""
    assert {*GOOD, *FIRST} == {*head._FOLDS, *head._INPUT_FOLDS}
