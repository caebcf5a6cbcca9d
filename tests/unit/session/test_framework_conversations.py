"""Conversations from data that the adapters record, read without any framework.

The events are written out here as docs/langgraph.md, docs/adk.md and docs/openai-agents.md
describe them. The suites in tests/adapters read what the real frameworks wrote.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

import limpet
from limpet.session.conversation.messages import messages_in

pytestmark = pytest.mark.quick


def log(*events: tuple[str, Any] | tuple[str, Any, dict[str, Any]]) -> list[limpet.Event]:
    """A log of these events: type, data, and more of its fields."""
    found = []
    for seq, (type, data, *more) in enumerate(events, 1):
        fields: dict[str, Any] = {"id": f"id-{seq}", "actor": "a", "at_us": seq, **dict(*more)}
        found.append(limpet.Event(seq=seq, type=type, data=data, **fields))
    return found


def shown(events: list[limpet.Event]) -> list[tuple[str, Any]]:
    """Role and first part of each message, in short."""
    found: list[tuple[str, Any]] = []
    for message in messages_in(events):
        part = message.parts[0]
        found.append((message.role, part.get("text", part.get("output", part.get("input")))))
    return found


def human(text: str, **more: Any) -> dict[str, Any]:
    return {"$": "message", "type": "human", "content": text, **more}


def ai(text: str, **more: Any) -> dict[str, Any]:
    return {"$": "message", "type": "ai", "content": text, **more}


LONG = "a question that is long enough to be referred to, not repeated, in what follows"
CALL = {"name": "search", "args": {"q": 1}, "id": "c1", "type": "tool_call"}
TOOL = {"$": "message", "type": "tool", "content": "found", "tool_call_id": "c1"}


def thread() -> list[Any]:
    """One turn: the input, the tasks' writes, checkpoints that refer to them, an answer."""
    given = {"__start__": {"messages": [human(LONG)]}}
    written = {"writes": [["messages", {"$": "input"}]], "path": "p"}
    return [
        ("langgraph.checkpoint", {"ts": 1, "values": given}, {"id": "k1"}),
        ("langgraph.writes", {"shape": written}, {"cause": "k1", "invocation_id": "t1"}),
        (
            "langgraph.checkpoint",
            {
                "ts": 2,
                "lists": {"messages": [0, [{"$": "written", "v": [1, 0, 0]}]]},
                "shape": {"back": 2, "values_gone": ["__start__"]},
            },
            {"id": "k2"},
        ),
        (
            "langgraph.writes",
            {"writes": [["messages", [ai("looking", tool_calls=[CALL])]]]},
            {"cause": "k2", "invocation_id": "t2"},
        ),
        (
            "langgraph.checkpoint",
            {"ts": 3, "shape": {"back": 2, "grown": {"messages": [[1, 0, 0]]}}},
            {"id": "k3"},
        ),
        (
            "langgraph.checkpoint",
            {
                "ts": 4,
                "lists": {"messages": [2, [TOOL, ai("it is 7")]], "notes": [0, ["x"]]},
                "shape": {"back": 1},
            },
            {"id": "k4"},
        ),
    ]


TURN = [
    ("user", LONG),
    ("assistant", "looking"),
    ("assistant", {"q": 1}),
    ("tool", "found"),
    ("assistant", "it is 7"),
]


def test_a_thread_of_langgraph_is_a_conversation() -> None:
    """References to inputs and writes are followed; a message names the event that recorded it."""
    events = log(*thread())
    assert shown(events) == TURN
    assert [message.event.seq for message in messages_in(events)] == [2, 4, 4, 6, 6]
    assert not any(message.synthetic for message in messages_in(events))


def test_a_shape_that_was_said_before_is_meant_again() -> None:
    """`as` names the event that first had the shape, by its number among the thread's events."""
    again = {"ts": 5, "lists": {"messages": [4, [human("thanks")]]}, "as": 6}
    events = log(*thread(), ("user.note", {}), ("langgraph.checkpoint", again, {"id": "k5"}))
    assert shown(events)[-1] == ("user", "thanks")


def test_an_outcome_comes_after_its_call() -> None:
    """Within one event too: an answer that stands before the call is not the call's."""
    items = [TOOL, ai("looking", tool_calls=[CALL])]
    event = ("langgraph.checkpoint", {"ts": 1, "lists": {"messages": [0, items]}}, {"id": "k1"})
    assert messages_in(log(event))[-1].synthetic
    event[1]["lists"]["messages"][1] = items[::-1]
    assert not messages_in(log(event))[-1].synthetic


def test_a_removed_checkpoint_shows_the_one_before() -> None:
    """What was pruned, or deleted with its run, is not the conversation any more."""
    removed = ("langgraph.removed", {"checkpoints": [["", "k4"]]})
    assert shown(log(*thread(), removed))[:3] == TURN[:3]
    assert messages_in(log(*thread(), removed))[-1].synthetic  # the call has no outcome now


def test_a_rewind_takes_back_what_frameworks_recorded() -> None:
    """A thread shows its newest checkpoint of then; a pop that was taken back popped nothing."""
    back = ("session.rewound", {"at": 5, "messages": True})
    assert shown(log(*thread(), back))[:3] == TURN[:3]
    kept = ("session.rewound", {"at": 5})
    assert shown(log(*thread(), kept)) == TURN
    said = [("user.message", {"text": "a"}), ("agent.message", {"text": "b"})]
    popped = log(*said, ("view.popped", {}), ("session.rewound", {"at": 2, "messages": True}))
    assert shown(popped) == [("user", "a"), ("assistant", "b")]


def test_a_subgraph_is_not_the_conversation() -> None:
    """Checkpoints of another namespace are a graph's own business."""
    inner = {"ts": 5, "lists": {"messages": [0, [human("inner")]]}, "shape": {"ns": "sub:1"}}
    assert shown(log(*thread(), ("langgraph.checkpoint", inner, {"id": "s1"}))) == TURN


@pytest.mark.parametrize("place", range(6))
def test_a_damaged_event_of_a_thread_leaves_what_does_not_stand_on_it(place: int) -> None:
    """The newest checkpoint that can be read is shown, and nothing is made up."""
    events = thread()
    events[place] = (events[place][0], None, events[place][2])
    # The tool's answer needs the call, the call needs the question.
    wanted = {0: [], 1: [], 2: [], 3: TURN[:1], 4: TURN[:1], 5: TURN[:3]}[place]
    assert shown(log(*events))[: len(wanted)] == wanted
    assert len(shown(log(*events))) <= len(wanted) + 1  # a call may get an outcome that says so


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"as": 9},
        {"shape": 3},
        {"lists": 1},
        {"lists": {"messages": [5, [human("five are missing")]]}},
        {"ts": 1},
    ],
)
def test_what_is_no_checkpoint_of_ours_says_nothing(data: Any) -> None:
    """An application may have events of that name; they do not break the reading."""
    assert shown(log(("langgraph.checkpoint", data), ("user.message", {"text": "hi"}))) == [
        ("user", "hi")
    ]


def test_a_delta_channel_is_gathered_from_its_writes() -> None:
    """From its last snapshot on: known ids are replaced or removed, the rest is appended."""
    snapshot = {"values": {"messages": {"$": "snapshot", "v": [human("one", id="h1")]}}, "ts": 1}
    written = [["messages", [human("ONE", id="h1"), ai("two", id="a1")]], ["messages", ai("three")]]
    gone = [["messages", {"$": "message", "type": "remove", "content": "", "id": "a1"}]]
    events = log(
        ("langgraph.checkpoint", snapshot, {"id": "k1"}),
        ("langgraph.writes", {"writes": written}, {"cause": "k1", "invocation_id": "t"}),
        (
            "langgraph.checkpoint",
            {"ts": 2, "shape": {"back": 2, "values_gone": ["messages"]}},
            {"id": "k2"},
        ),
        ("langgraph.writes", {"writes": gone}, {"cause": "k2", "invocation_id": "t"}),
        ("langgraph.checkpoint", {"ts": 3, "shape": {"back": 2}}, {"id": "k3"}),
    )
    assert shown(events[:3]) == [("user", "ONE"), ("assistant", "two"), ("assistant", "three")]
    assert shown(events) == [("user", "ONE"), ("assistant", "three")]


def test_what_was_said_beside_a_thread_has_its_place() -> None:
    """Events of ours between those of a thread come where they were recorded."""
    events = thread()
    events.insert(3, ("system.message", {"text": "be brief"}))
    assert shown(log(*events))[:3] == [TURN[0], ("system", "be brief"), TURN[1]]


# --- google-adk ---------------------------------------------------------------------------------


def adk(type: str, data: dict[str, Any], invocation: str, **whole: Any) -> Any:
    return type, {**data, "adk": json.dumps(whole)}, {"invocation_id": invocation}


def test_an_event_of_adk_is_read_as_what_it_says() -> None:
    """Text, a picture with its bytes in plain base64, a call and its answer."""
    parts = [{"text": "look"}, {"inline_data": {"mime_type": "image/png", "data": "-_8="}}]
    told = [{"type": "text", "text": "look"}, {"type": "image", "media_type": "image/png"}]
    told[1]["part"] = 1  # type: ignore[assignment]
    called = {"request_id": "c1", "name": "f", "input": {"x": 1}}
    answered = {"request_id": "c1", "name": "f", "output": {"y": 2}}
    events = log(
        adk("user.message", {"content": told}, "i1", content={"parts": parts}),
        adk("agent.tool_use", called, "i1"),
        adk("agent.tool_result", answered, "i1"),
        adk("adk.event", {}, "i1", actions={"state_delta": {"a": 1}}),
    )
    found = messages_in(events)
    assert [message.role for message in found] == ["user", "assistant", "tool"]
    image = {"type": "image", "media_type": "image/png", "data": "+/8="}
    assert found[0].parts == (told[0], image)
    assert found[2].parts[0]["output"] == {"y": 2}


def test_a_rewind_of_adk_takes_invocations_out_of_view() -> None:
    """From the first event of that invocation on; what follows the rewind is said."""
    back = {"rewind_before_invocation_id": "i2"}
    events = log(
        adk("user.message", {"text": "one"}, "i1"),
        adk("user.message", {"text": "two"}, "i2"),
        adk("agent.message", {"text": "2"}, "i2"),
        adk("user.message", {"text": "three"}, "i3"),
        adk("adk.event", {}, "i4", actions=back),
        adk("user.message", {"text": "again"}, "i5"),
    )
    assert shown(events) == [("user", "one"), ("user", "again")]
    unknown = adk("adk.event", {}, "i6", actions={"rewind_before_invocation_id": "none such"})
    assert shown(log(unknown, ("user.message", {"text": "hi"}))) == [("user", "hi")]


def test_bytes_of_adk_that_cannot_be_read_leave_the_part_as_it_is() -> None:
    """A damaged copy, or one in a blob beside the log, does not hide the message."""
    part = {"type": "image", "media_type": "image/png", "part": 0}
    for whole in (
        {"adk": "{"},
        {"adk": '{"content": {"parts": [3]}}'},
        {"adk_blob": {"hash": "x"}},
    ):
        (found,) = messages_in(log(("user.message", {"content": [part], **whole})))
        assert found.parts == (part,)


# --- openai-agents ------------------------------------------------------------------------------


def test_items_of_openai_agents_are_a_conversation() -> None:
    """Messages, calls and outcomes; what was popped or cleared is not said."""
    events = log(
        ("user.message", {"text": "gone", "openai_agents": "{}"}),
        ("view.cleared", {}),
        ("user.message", {"text": "hi", "openai_agents": "{}"}),
        ("agent.tool_use", {"request_id": "c", "name": "f", "input": {}, "openai_agents": "{}"}),
        ("agent.item", {"openai_agents": '{"type": "reasoning"}'}),
        ("agent.tool_result", {"request_id": "c", "output": "ok", "openai_agents": "{}"}),
        ("agent.message", {"text": "taken back", "openai_agents": "{}"}),
        ("view.popped", {}),
    )
    assert shown(events) == [("user", "hi"), ("assistant", {}), ("tool", "ok")]


def test_a_pop_may_name_what_it_takes_out_of_view() -> None:
    """Those events and no others, whatever was said since."""
    said = [("user.message", {"text": text}) for text in ("a", "secret", "b")]
    assert shown(log(*said, ("view.popped", {"seqs": [2]}))) == [("user", "a"), ("user", "b")]
    assert shown(log(*said, ("view.popped", {"seqs": []}))) == [("user", "a"), ("user", "secret")]
