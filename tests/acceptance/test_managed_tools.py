"""The managed tools: what a model may do with its own session, through a harness."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import limpet

ADA = "user:ada"
Use = Callable[[limpet.ManagedTools], Awaitable[Any]]


async def used(lp: limpet.Limpet, s: limpet.Session[Any], use: Use, **how: Any) -> Any:
    """What a harness gets that uses the tools in one turn."""
    found: list[Any] = []

    async def harness(turn: limpet.Turn) -> None:
        found.append(await use(limpet.ManagedTools(turn, lp, **how)))

    await s.append("user.message", {"text": "go"}, actor=ADA)
    woken = await lp.wake(s.key, harness)
    assert woken.error is None, woken.error
    return found[-1]


@pytest.fixture
async def own(lp: limpet.Limpet) -> limpet.Session[Any]:
    return await lp.create("support", "ada", "own", state={"step": 1})


async def test_every_tool_describes_itself(lp: limpet.Limpet, own: limpet.Session[Any]) -> None:
    """By a name, words, and a JSON schema that refuses what it does not know."""

    async def use(tools: limpet.ManagedTools) -> Any:
        return tools.specs

    specs = await used(lp, own, use)
    names = [spec["name"] for spec in specs]
    assert {
        *("session_delegate", "session_list_children", "session_run_child"),
        *("environment_describe", "vault_list", "permissions_describe"),
        *("session_list", "session_get_snapshot", "session_get_events", "session_get_trace"),
        *("memory_list", "outcome_read", "outcome_define"),
    } <= set(names)
    for spec in specs:
        assert spec["description"].endswith(".")
        assert spec["input_schema"]["type"] == "object"
        assert spec["input_schema"]["additionalProperties"] is False
    picked = await used(lp, own, use, only=["memory_list"])
    assert [spec["name"] for spec in picked] == ["memory_list"]


async def test_a_tool_sees_no_other_user_and_no_other_app(
    lp: limpet.Limpet, own: limpet.Session[Any]
) -> None:
    """Lists, snapshots, events and traces are of the user's own sessions of this app."""
    await lp.create("support", "ada", "mine")
    await lp.create("support", "bob", "theirs")
    await lp.create("shop", "ada", "elsewhere")

    async def use(tools: limpet.ManagedTools) -> Any:
        listed = await tools.call("session_list")
        ids = sorted(each["id"] for each in listed["sessions"])
        refused = [
            (await tools.call(name, {"id": id}))["error"]["code"]
            for name in ("session_get_snapshot", "session_get_events")
            for id in ("theirs", "elsewhere")
        ]
        return ids, refused

    ids, refused = await used(lp, own, use)
    assert ids == ["mine", "own"]
    assert set(refused) == {"session.not_found"}


async def test_a_session_is_read_by_snapshot_events_and_trace(
    lp: limpet.Limpet, own: limpet.Session[Any]
) -> None:
    """State and status; events after, before, around and the newest; a whole wake."""

    async def first(tools: limpet.ManagedTools) -> Any:
        return await tools.call("memory_list")

    await used(lp, own, first)
    await own.refresh()
    last = own.version

    async def use(tools: limpet.ManagedTools) -> Any:
        async def seqs(**input: Any) -> list[int]:
            found = await tools.call("session_get_events", input)
            return [event["seq"] for event in found["events"]]

        snapshot = await tools.call("session_get_snapshot")
        trace = await tools.call("session_get_trace")
        cut = await tools.call("session_get_trace", {"wake_id": trace["wake_id"], "limit": 2})
        both = await tools.call("session_get_events", {"after": 1, "before": 3})
        pages = [
            await seqs(after=1, limit=2),
            await seqs(before=4, limit=2),
            await seqs(around=3, limit=3),
            await seqs(types=["user.*"], limit=1),
        ]
        return snapshot, trace, cut, both, pages

    snapshot, trace, cut, both, pages = await used(lp, own, use)
    assert (snapshot["state"], snapshot["status"]) == ({"step": 1}, "running")
    assert trace["events"][0]["type"] == "span.started"
    assert trace["events"][-1]["seq"] <= last
    assert trace["spans"][0]["result"] == "success"
    assert len(trace["events"]) > 2
    assert len(cut["events"]) == 2
    assert both["error"]["code"] == "input.invalid"
    assert pages == [[2, 3], [2, 3], [2, 3, 4], [last + 1]]


async def test_memory_is_written_with_versions(lp: limpet.Limpet, own: limpet.Session[Any]) -> None:
    """A wrong version is an answer that the model reads; read-only stores are refused."""
    await own.memory.shell_state.write("cwd", actor=ADA)
    await own.checkpoint(actor=ADA)

    async def use(tools: limpet.ManagedTools) -> Any:
        async def write(**input: Any) -> Any:
            return await tools.call("memory_write", input)

        done = [
            await write(target="session_state", value={"goal": 1}, expect_version=0),
            await write(target="session_state", value={"goal": 2}, expect_version=0),
            await write(target="working_buffer", value="a"),
            await write(target="working_buffer", value="b", mode="append"),
            await write(target="shell_state", value="x"),
            await write(target="checkpoint", value="x"),
        ]
        read = await tools.call("memory_read", {"target": "checkpoint"})
        listed = await tools.call("memory_list")
        versions = await tools.call("memory_list_versions", {"target": "working_buffer"})
        return done, read, listed, versions

    done, read, listed, versions = await used(lp, own, use)
    assert [each.get("version") for each in done] == [1, None, 1, 2, None, None]
    assert done[1]["error"]["code"] == "memory.conflict"
    assert done[4]["error"]["code"] == done[5]["error"]["code"] == "input.invalid"
    assert read == {"target": "checkpoint", "version": 1, "value": {"step": 1}}
    names = [each["name"] for each in listed["stores"]]
    assert names == ["checkpoint", "shell_state", "session_state", "working_buffer"]
    assert [each["value"] for each in versions["versions"]] == ["ab", "a"]
    note = await own.memory.working_buffer.read()
    assert note is not None
    assert note.value == "ab", "what a run wrote is not overwritten at its end"


async def test_a_call_is_made_once_in_a_turn(lp: limpet.Limpet, own: limpet.Session[Any]) -> None:
    """When the turn runs again, results are those of before and nothing is written twice."""
    results: list[Any] = []

    async def harness(turn: limpet.Turn) -> None:
        tools = limpet.ManagedTools(turn, lp)
        value = {"target": "working_buffer", "value": "x", "mode": "append"}
        written = await tools.call("memory_write", value)
        defined = await tools.call("outcome_define", {"title": "deliver", "criteria": ["there"]})
        child = await tools.call("session_delegate", {"app": "research", "message": "look"})
        results.append((written, defined, child, await tools.call("memory_list")))
        await turn.ask("fx", {})

    await own.append("user.message", {"text": "go"}, actor=ADA)
    await lp.wake(own.key, harness)
    await own.refresh()
    await own.memory.session_state.write("meanwhile", actor=ADA)
    await own.answer(own.blocked_on[0].id, 5)
    await lp.wake(own.key, harness)
    assert len(results) == 2
    assert results[0] == results[1]
    note = await own.memory.working_buffer.read()
    assert note is not None
    assert (note.value, note.version) == ("x", 1)
    await own.refresh()
    assert len(await own.runs.children()) == 1
    assert own.outcome.current is not None
    assert own.outcome.current.title == "deliver"
    assert len(await own.outcome.history()) == 1
    assert own.head.pending == 0, "who defines an outcome is not woken by it"


async def test_a_tool_that_must_be_asked_for_is_asked_for(
    lp: limpet.Limpet, own: limpet.Session[Any]
) -> None:
    """A managed tool obeys the session's permissions, and so does what it leads to."""
    await lp.permissions.put(
        "p", {"tools": {"memory_write": "always_ask", "session_delegate": "deny"}}, actor=ADA
    )
    await own.setup.attach(permissions="p")

    async def writes(turn: limpet.Turn) -> None:
        tools = limpet.ManagedTools(turn, lp)
        await tools.call("memory_write", {"target": "session_state", "value": 1})

    async def delegates(turn: limpet.Turn) -> None:
        tools = limpet.ManagedTools(turn, lp)
        await tools.call("session_delegate", {"app": "research", "message": "look"})

    await own.append("user.message", {"text": "go"}, actor=ADA)
    assert (await lp.wake(own.key, writes)).reason == "requires_action"
    assert await own.memory.session_state.read() is None
    await own.refresh()
    await own.confirm(own.blocked_on[0].id, allow=True)
    await lp.wake(own.key, writes)
    assert await own.memory.session_state.read() is not None
    await own.append("user.message", {"text": "go"}, actor=ADA)
    assert isinstance((await lp.wake(own.key, delegates)).error, limpet.ToolDenied)

    async def asks(tools: limpet.ManagedTools) -> Any:
        check = {"tool": "session_delegate"}
        return (
            await tools.call("permissions_describe"),
            await tools.call("permissions_check", check),
        )

    described, checked = await used(lp, own, asks)
    assert described["tools"]["memory_write"] == "always_ask"
    assert checked["permission"] == "deny"


async def test_22_what_a_tool_read_is_no_evidence(
    lp: limpet.Limpet, own: limpet.Session[Any]
) -> None:
    """An agent that only reads its criteria has not met them."""
    await own.outcome.define("deliver", criteria=["the parcel has arrived"])

    async def reads(tools: limpet.ManagedTools) -> Any:
        for name in ("outcome_read", "outcome_history", "session_get_events"):
            assert "arrived" in str(await tools.call(name))

    def mentioned(outcome: limpet.Outcome, evidence: Any) -> list[bool]:
        texts = [str(dict(event.data)) for event in evidence]
        return [any(each in text for text in texts) for each in outcome.criteria]

    await used(lp, own, reads)
    assert (await own.outcome.evaluate(mentioned)).verdict == "fail"


async def test_what_a_tool_writes_is_in_the_trace_of_its_wake(
    lp: limpet.Limpet, own: limpet.Session[Any]
) -> None:
    """A buffer that a run wrote is found again with everything else of that run."""

    async def writes(tools: limpet.ManagedTools) -> Any:
        return await tools.call("memory_write", {"target": "session_state", "value": 1})

    await used(lp, own, writes)
    (wake,) = await own.runs.wakes()
    trace = await own.runs.trace(str(wake.wake_id))
    assert "session.memory_written" in [event.type for event in trace.events]


async def test_a_setup_is_described_without_secrets(lp: limpet.Limpet) -> None:
    """Environment, resources and setup in full, of vaults the names only."""
    await lp.environments.put("default", {"image": "python"}, actor=ADA)
    await lp.vaults.put("payments", {"stripe": "env:STRIPE_KEY"}, actor=ADA)
    await lp.resources.put("repo", {"mount": "/srv"}, actor=ADA)
    s = await lp.create("support", "ada", "own", environment="default")
    await s.setup.attach(resources=["repo"], vaults=["payments"])

    async def use(tools: limpet.ManagedTools) -> Any:
        names = ("environment_describe", "vault_list", "resources_list", "agent_describe_setup")
        found = {name: await tools.call(name) for name in names}
        await lp.resources.put("repo", {"mount": "/new"}, actor=ADA)
        return found, await tools.call("agent_compare_setup")

    found, compared = await used(lp, s, use)
    assert found["environment_describe"]["environment"]["value"] == {"image": "python"}
    assert found["vault_list"] == {"vaults": {"payments@1": ["stripe"]}}
    assert found["resources_list"]["resources"][0]["value"] == {"mount": "/srv"}
    assert found["agent_describe_setup"]["fingerprint"] == s.setup.current.fingerprint
    assert compared == {"changes": ["resource repo: repo@1 → repo@2"]}
    assert "STRIPE_KEY" not in str(found)


async def test_a_child_is_run_for_a_few_bounded_turns(
    lp: limpet.Limpet, own: limpet.Session[Any]
) -> None:
    """Only a direct child, as often as asked at most, and its end is the parent's news."""

    async def looks(turn: limpet.Turn) -> None:
        await turn.say("found")

    async def use(tools: limpet.ManagedTools) -> Any:
        made = await tools.call("session_delegate", {"app": "research", "message": "look"})
        children = await tools.call("session_list_children")
        ran = await tools.call("session_run_child", {"id": made["id"]})
        wrong = [
            await tools.call("session_run_child", {"id": "own"}),
            await tools.call("session_run_child", {"id": made["id"]}),  # it has ended
            await tools.call("session_run_child", {"id": "x", "cycles": 99}),
        ]
        ended = await tools.call("session_list_children", {"ended": True})
        return made, children, ran, wrong, ended

    made, children, ran, wrong, ended_ones = await used(lp, own, use, harnesses={"research": looks})
    assert [each["id"] for each in children["children"]] == [made["id"]]
    assert (ran["cycles"], ran["runs"], ran["ended"]) == (1, ["end_turn"], True)
    assert [each["error"]["code"] for each in wrong] == ["input.invalid"] * 3
    assert ended_ones["children"] == []
    (over,) = ended_ones["ended"]
    assert (over["id"], over["stop_reason"], over["output"]) == (made["id"], "end_turn", "found")
    await own.refresh()
    (ended,) = await own.read(types=["session.child_ended"])
    assert ended.data["output"] == "found"
    assert own.head.pending == 1


async def test_a_child_that_is_never_done_is_run_as_often_as_asked(
    lp: limpet.Limpet, own: limpet.Session[Any]
) -> None:
    """Three times if nothing is said, ten at most: a turn of the parent comes to its end."""
    runs: list[int] = []

    async def never_done(turn: limpet.Turn) -> None:
        runs.append(1)
        if len(runs) < 50:  # so that a tool without a bound fails, and does not hang
            await turn.session.append("user.message", {"text": "again"}, actor=ADA)

    async def use(tools: limpet.ManagedTools) -> Any:
        made = await tools.call("session_delegate", {"app": "research", "message": "look"})
        counts = []
        for cycles in ({}, {"cycles": 1}, {"cycles": 10}, {"cycles": 11}, {"cycles": 0}):
            ran = await tools.call("session_run_child", {"id": made["id"], **cycles})
            counts.append((ran.get("cycles"), ran.get("ended"), len(runs)))
        return counts

    counts = await used(lp, own, use, harnesses={"research": never_done})
    assert counts == [
        (3, False, 3),
        (1, False, 4),
        (10, False, 14),
        (None, None, 14),
        (None, None, 14),
    ]


async def test_a_child_is_delegated_with_a_title_a_budget_and_tools(
    lp: limpet.Limpet, own: limpet.Session[Any]
) -> None:
    """Each as the model asks for it; what it does not ask for is not given, a quarter of the budget
    excepted."""
    await own.tools.bind(
        limpet.ToolRegistry([limpet.Tool("search"), limpet.Tool("mail")]), actor=ADA
    )
    await own.runs.grant(1.0, actor=ADA)
    asked = {"title": "the invoice", "budget": 0.2, "tools": ["search"]}

    async def use(tools: limpet.ManagedTools) -> Any:
        plain = {"app": "research", "message": "look"}
        return [(await tools.call("session_delegate", plain | more))["id"] for more in (asked, {})]

    made = await used(lp, own, use)
    given, bare = [await lp.get("research", "ada", id) for id in made]
    titles = {kin.key.id: kin.title for kin in (await own.runs.tree()).children}
    assert titles == {given.id: "the invoice", bare.id: None}
    assert (given.runs.budget.limit.cost, bare.runs.budget.limit.cost) == (0.2, 0.2)  # type: ignore[union-attr]  # a quarter of 0.8
    assert (set(given.tools.bound), set(bare.tools.bound)) == ({"search"}, set())
    assert given.head.facts["delegation"]["tools"] == ["search"]


async def test_the_whole_trace_is_shown_unless_it_is_cut(
    lp: limpet.Limpet, own: limpet.Session[Any]
) -> None:
    """Every event of the wake, however many, as s.runs.trace has them."""

    async def speaks(turn: limpet.Turn) -> None:
        for number in range(250):
            await turn.append("note.taken", {"n": number})

    await own.append("user.message", {"text": "go"}, actor=ADA)
    woken = await lp.wake(own.key, speaks)
    assert woken.wake_id is not None

    async def use(tools: limpet.ManagedTools) -> Any:
        named = {"wake_id": woken.wake_id}
        return [await tools.call("session_get_trace", input) for input in ({}, named)]

    whole = [event.seq for event in (await own.runs.trace(woken.wake_id)).events]
    assert len(whole) > 250
    for trace in await used(lp, own, use):
        assert [event["seq"] for event in trace["events"]] == whole


async def test_a_child_of_another_app_is_looked_into_like_any_session(
    lp: limpet.Limpet, own: limpet.Session[Any]
) -> None:
    """At work, and after its end; a session of that app that is not a child stays unseen."""

    async def looks(turn: limpet.Turn) -> None:
        await turn.say("found")

    async def use(tools: limpet.ManagedTools) -> Any:
        made = await tools.call("session_delegate", {"app": "research", "message": "look"})
        of = {"id": made["id"]}
        at_work = [await tools.call(name, of) for name in LOOKING]
        await tools.call("session_run_child", of)
        ended = [await tools.call(name, of) for name in (*LOOKING, "session_get_trace")]
        other = [await tools.call(name, {"id": "other"}) for name in LOOKING]
        return made["id"], at_work, ended, other

    await lp.create("research", "ada", "other")
    found = await used(lp, own, use, harnesses={"research": looks})
    id, at_work, ended, other = found
    snapshot, events, _ = at_work
    assert (snapshot["id"], snapshot["app"], snapshot["pending"]) == (id, "research", 1)
    assert events["events"][-1]["data"] == {"text": "look"}
    assert (ended[0]["stop_reason"], ended[0]["pending"]) == ("end_turn", 0)
    assert [e["data"]["text"] for e in ended[3]["events"] if e["type"] == "agent.message"] == [
        "found"
    ]
    assert [each["changes"] for each in (at_work[2], ended[2])] == [[], []]
    assert [each["error"]["code"] for each in other] == ["session.not_found"] * 3


LOOKING = ("session_get_snapshot", "session_get_events", "agent_compare_setup")


async def test_promotion_through_a_tool_passes_the_gates(
    lp: limpet.Limpet, own: limpet.Session[Any]
) -> None:
    """What the gates refuse is an answer; without them it is in the memory that the tool lists."""

    async def use(tools: limpet.ManagedTools) -> Any:
        found = await tools.call("learning_list")
        input = {"learning": found["learnings"][0]["id"]}
        await lp.policies.gates("support", limpet.Gates(verdict="pass"))
        refused = await tools.call("memory_promote_note", input)
        await lp.policies.gates("support", None)
        done = await tools.call("memory_promote_note", input)
        return refused, done, await tools.call("learning_list")

    async def learns(turn: limpet.Turn) -> None:
        await turn.learn("correction", "The shop closes at five.")

    await own.append("user.message", {"text": "go"}, actor=ADA)
    await lp.wake(own.key, learns)
    refused, done, after = await used(lp, own, use)
    assert refused["error"]["code"] == "promotion.refused"
    assert done == {"agent": "support", "version": 1}
    assert "closes at five" in after["memory"]


@pytest.mark.parametrize(
    ("name", "input"),
    [
        ("nothing", {}),
        ("memory_read", {}),
        ("memory_read", {"target": "diary"}),
        ("memory_list", {"extra": 1}),
        ("memory_list", None),
        ("memory_list", ["extra"]),
        ("memory_list", "{}"),
        ("session_list", {"limit": 0}),
        ("session_list", {"limit": "many"}),
        ("memory_write", {"target": "session_state", "value": 1, "mode": "append"}),
    ],
)
async def test_what_does_not_fit_is_an_answer(
    lp: limpet.Limpet, own: limpet.Session[Any], name: str, input: Any
) -> None:
    """The model reads what was wrong, and the turn goes on."""

    async def use(tools: limpet.ManagedTools) -> Any:
        return await tools.call(name, input)

    assert (await used(lp, own, use))["error"]["code"] == "input.invalid"
