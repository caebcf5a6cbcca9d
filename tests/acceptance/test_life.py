"""The life of a session: transitions, guards, hooks, and what each phase accepts."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any, ClassVar

import pytest

import limpet
from limpet.model.facts.phases import EVENTS, PHASES

WAYS: dict[str, tuple[str, ...]] = {
    "init": (),
    "active": ("activate",),
    "suspended": ("activate", "suspend"),
    "resumed": ("activate", "suspend", "resume_only"),
    "completed": ("activate", "complete"),
    "terminated": ("activate", "terminate"),
}


async def session_in(lp: limpet.Limpet, phase: str) -> limpet.Session:
    """A session that was led to a phase by its own verbs."""
    s = await lp.create("support", "ada", phase="init", actor="user:ada")
    for step in WAYS[phase]:
        if step == "resume_only":
            await s.resume(activate=False)
        else:
            await getattr(s, step)()
    assert s.phase == phase
    return s


async def test_a_session_goes_through_its_life(lp: limpet.Limpet) -> None:
    """Every transition is one event with its actor, and returns the phase and what was done."""
    s = await lp.create("support", "ada", phase="init")
    assert s.phase == "init"
    assert (await s.activate()).phase == "active"
    t = await s.suspend("lunch", actor="user:ada")
    assert (t.phase, s.phase) == ("suspended", "suspended")
    assert "session.suspended" in t.side_effects
    assert t.event is not None
    assert t.event.actor == "user:ada"
    wanted = {"from": "active", "to": "suspended", "event": "suspend", "reason": "lunch"}
    assert t.event.data == {**wanted, "checkpoint": 1, "state_version": 2}
    assert (await s.history.checkpoints()).items[0].ref.seq == 2
    t = await s.resume()
    assert (t.phase, s.phase) == ("active", "active")
    done = await s.complete(output={"n": 1})
    assert done.event is not None
    assert done.event.data["output"] == {"n": 1}
    types = [event.type for event in await s.read(types=["session.*"])]
    assert types == [
        "session.created",
        "session.activated",
        "session.suspended",
        "session.resumed",
        "session.reactivated",
        "session.status_changed",
        "session.completed",
    ]
    assert (await lp.get(s.key)).phase == "completed"
    assert (await lp.maintenance.verify()).ok


async def test_a_plain_session_is_active_and_has_no_facts(lp: limpet.Limpet) -> None:
    """A session that uses none of this is what it was."""
    s = await lp.create("support", "ada")
    assert s.phase == "active"
    assert s.head.facts == {}
    await s.append("agent.message", {"text": "hi"}, actor="agent:main")
    assert s.head.facts == {}


@pytest.mark.parametrize("phase", list(WAYS))
async def test_every_verb_in_every_phase(lp: limpet.Limpet, phase: str) -> None:
    """A verb that the phase has no transition for raises InvalidTransition and records nothing."""
    allowed = {
        "activate": {"init", "resumed"},
        "suspend": {"active"},
        "resume": {"suspended"},
        "complete": {"active"},
        "terminate": {"init", "active", "suspended", "resumed"},
    }
    for verb, phases in allowed.items():
        s = await session_in(lp, phase)
        version = s.version
        if phase in phases:
            assert (await getattr(s, verb)()).phase != phase
        else:
            with pytest.raises(limpet.errors.InvalidTransition) as caught:
                await getattr(s, verb)()
            assert caught.value.phase == phase
            assert (await s.refresh()).version == version


def test_the_table_is_complete() -> None:
    """The product of phases and events is that of the model's own test."""
    assert len(PHASES) * len(EVENTS) == 70


async def test_a_suspended_session_records_inputs_and_nothing_else(lp: limpet.Limpet) -> None:
    """Inputs wait, labels and timers are taken, anything else is SessionSuspended."""
    s = await session_in(lp, "suspended")
    hi = await s.append("user.message", {"text": "hi"})
    await s.label({"plan": "gold"})
    await s.lifecycle.set_timeouts(limpet.Timeouts())
    for write in (
        s.append("agent.message", {"text": "x"}),
        s.update(lambda state: {"n": 1}),
        s.mark_processed([hi.seq]),
    ):
        with pytest.raises(limpet.errors.SessionSuspended):
            await write
    assert await lp.work.claim("w") == ()  # it runs nothing
    await s.resume()
    assert [lease.key for lease in await lp.work.claim("w")] == [s.key]


@pytest.mark.parametrize("phase", ["completed", "terminated"])
async def test_an_ended_session_accepts_no_work(lp: limpet.Limpet, phase: str) -> None:
    """In a terminal phase every write but those about retention is SessionEnded."""
    s = await session_in(lp, phase)
    version = s.version
    for write in (
        s.append("user.message", {"text": "x"}),
        s.append("agent.message", {"text": "x"}),
        s.label({"plan": "gold"}),
        s.lifecycle.set_timer("t", limpet.deadline_at(s.head) or s.head.created_at),
    ):
        with pytest.raises(limpet.SessionEnded) as caught:
            await write
        assert caught.value.phase == phase
    assert (await s.refresh()).version == version
    await s.lifecycle.set_timeouts(limpet.Timeouts())


async def test_a_session_in_init_takes_everything_and_runs_nothing(lp: limpet.Limpet) -> None:
    """Before it is activated a session can be prepared, and no worker is given it."""
    s = await session_in(lp, "init")
    await s.append("user.message", {"text": "hi"}, set={"n": 1})
    await s.append("agent.message", {"text": "x"})
    assert await lp.work.claim("w") == ()
    await s.activate()
    assert len(await lp.work.claim("w")) == 1


async def test_a_guard_that_fails_changes_nothing(lp: limpet.Limpet) -> None:
    """GuardFailed has the phase, the event and the reason; the session is as it was."""
    lp.policies.lifecycle("support", guards={("active", "suspend"): lambda s: "it is busy"})
    s = await session_in(lp, "active")
    version = s.version
    with pytest.raises(limpet.errors.GuardFailed) as caught:
        await s.suspend()
    failed = caught.value
    assert (failed.phase, failed.event, failed.reason) == ("active", "suspend", "it is busy")
    assert (await s.refresh()).version == version
    lp.policies.lifecycle("support")
    await s.suspend()


class Order(limpet.State):
    schema_version: ClassVar[str] = "1.0.0"

    items: int = 0


@pytest.mark.parametrize("phase", ["init", "resumed"])
async def test_a_state_that_does_not_fit_its_class_is_not_activated(
    lp: limpet.Limpet, phase: str
) -> None:
    """The newest state counts, also for an object whose last look at it was fine."""
    s = await lp.create("support", "ada", state=Order(items=1), phase="init", actor="user:ada")
    raw = lp.session(s.key, untyped=True, actor="user:ada")
    bad = {"items": "many"}
    if phase == "init":
        await raw.append("agent.message", {}, set=bad)
    else:
        await s.activate()
        await raw.append("agent.message", {}, set=bad)
        await raw.suspend()
        await raw.resume(activate=False)
    for handle in (s, lp.session(s.key, state_type=Order, actor="user:ada")):
        with pytest.raises(limpet.errors.GuardFailed, match="items must be int") as caught:
            await handle.activate()
        assert caught.value.phase == phase
    assert (await raw.refresh()).phase == phase


async def test_exit_criteria_must_all_hold(lp: limpet.Limpet) -> None:
    """complete() asks every criterion, sync or async, on the newest state."""

    async def answered(session: limpet.Session) -> Any:
        return session.values.get("answered") is True or "no answer yet"

    lp.policies.lifecycle("support", exit_criteria=[lambda s: True, answered])
    s = await session_in(lp, "active")
    with pytest.raises(limpet.errors.GuardFailed, match="no answer yet"):
        await s.complete()
    other = await lp.get(s.key, actor="agent:main")
    await other.append("agent.message", {"text": "x"}, set={"answered": True})
    assert (await s.complete()).phase == "completed"


async def test_criteria_of_an_iterator_hold_too(lp: limpet.Limpet) -> None:
    """Checking them must not use them up."""
    refusing = [lambda session: "never"]
    lp.policies.lifecycle("support", exit_criteria=(each for each in refusing))  # type: ignore[arg-type]
    s = await session_in(lp, "active")
    with pytest.raises(limpet.errors.GuardFailed, match="never"):
        await s.complete()


async def test_hooks_run_before_and_after_the_commit(lp: limpet.Limpet) -> None:
    """A hook before sees the old phase, one after the new one and the record."""
    seen: list[Any] = []

    def before(session: limpet.Session, step: limpet.Transition) -> None:
        seen.append((session.phase, step.phase, step.event))

    async def after(session: limpet.Session, step: limpet.Transition) -> None:
        assert step.event is not None
        seen.append((session.phase, step.event.type))

    at = ("active", "suspended")
    lp.policies.lifecycle("support", before={at: before}, after={at: after})
    s = await session_in(lp, "active")
    await s.suspend()
    assert seen == [("active", "suspended", None), ("suspended", "session.suspended")]


async def test_a_hook_before_runs_before_side_effects(lp: limpet.Limpet) -> None:
    """When it runs there is no checkpoint yet; one that refuses leaves none behind."""
    kept: list[int] = []

    async def before(session: limpet.Session) -> Any:
        kept.append(len((await session.history.checkpoints()).items))
        return "not now" if len(kept) == 1 else None

    lp.policies.lifecycle("support", before={("active", "suspended"): before})
    s = await session_in(lp, "active")
    with pytest.raises(limpet.errors.GuardFailed, match="not now"):
        await s.suspend()
    await s.suspend()
    assert kept == [0, 0]
    assert len((await s.history.checkpoints()).items) == 1


async def test_resuming_needs_a_checkpoint(lp: limpet.Limpet) -> None:
    """If every one was let go, a session stays suspended until another is made."""
    s = await session_in(lp, "suspended")
    for kept in (await s.history.checkpoints()).items:
        await s.history.unpin(kept.ref)
    with pytest.raises(limpet.errors.GuardFailed, match="no checkpoint") as caught:
        await s.resume()
    assert (caught.value.phase, caught.value.event) == ("suspended", "resume")
    await s.checkpoint(full=True)
    await s.resume()


async def test_each_transition_says_what_was_done_with_it(lp: limpet.Limpet) -> None:
    """Side effects are those that were performed, in their order, and its trace."""
    s = await lp.create("support", "ada", phase="init", actor="user:ada")
    done = [(await getattr(s, verb)()).side_effects for verb in ("activate", "suspend")]
    done += [(await s.resume(activate=False)).side_effects, (await s.activate()).side_effects]
    done += [(await s.complete()).side_effects, (await s.archive()).side_effects]
    other = await session_in(lp, "active")
    done.append((await other.terminate("operator")).side_effects)
    assert done == [
        ("initialize_memory", "session.activated"),
        ("checkpoint", "flush_working_memory", "release_tools", "session.suspended"),
        ("session.resumed",),
        ("session.reactivated",),
        ("checkpoint", "promote_memory", "release_tools", "session.completed"),
        ("move_to_archive", "session.archived"),
        ("release_tools", "record_error", "session.terminated"),
    ]


async def test_activating_begins_with_empty_working_memory(lp: limpet.Limpet) -> None:
    """What was tried while it was prepared is not the work's; session memory stays."""
    s = await lp.create("support", "ada", phase="init", actor="user:ada")
    await s.memory.working.put("draft", "x")
    await s.memory.session.put("note", "x")
    await s.activate()
    assert await s.memory.working.list() == ()
    assert [each.name for each in await s.memory.session.list()] == ["note"]


async def test_a_session_has_the_nine_parts_of_the_chapter(lp: limpet.Limpet) -> None:
    """Id, state, phase, isolation, memory, tools, history, persistence policy and metadata."""
    lp.policies.lifecycle("support", tools=limpet.ToolRegistry([limpet.Tool("search")]))
    how: dict[str, Any] = {"labels": {"task": "refund"}, "state": {"n": 1}}
    how["timeouts"] = limpet.Timeouts(idle=timedelta(hours=1), expiry=timedelta(days=30))
    s = await lp.create("support", "ada", phase="init", actor="user:ada", **how)
    await s.activate()
    await s.history.retention(events=50)
    await s.memory.session.put("note", "x")
    assert uuid.UUID(s.head.uid).version == 7
    assert (dict(s.values), s.phase) == ({"n": 1}, "active")
    assert (s.app, s.user, s.setup.current.limits, await s.runs.children()) == (
        "support",
        "ada",
        {},
        (),
    )
    assert [each.name for each in await s.memory.session.list()] == ["note"]
    assert set(s.tools.bound) == {"search"}
    assert [event.seq for event in await s.read()] == list(range(1, s.version + 1))
    assert s.lifecycle.timeouts is not None  # its lifetime, beside the bounds of its history
    assert (s.lifecycle.timeouts.idle, s.head.facts["retention"]["events"]) == (
        timedelta(hours=1),
        50,
    )
    assert limpet.deadline_at(s.head) is not None
    assert (s.head.created_at.tzinfo is not None, s.labels) == (True, {"task": "refund"})
    assert (await s.history.lineage()).key == s.key


async def test_a_hook_before_that_fails_changes_nothing(lp: limpet.Limpet) -> None:
    """What it raises reaches the caller, and nothing is recorded."""

    def fails(session: limpet.Session) -> None:
        raise RuntimeError("no")

    lp.policies.lifecycle("support", before={("active", "suspended"): fails})
    s = await session_in(lp, "active")
    with pytest.raises(RuntimeError, match="no"):
        await s.suspend()
    assert (await s.refresh()).phase == "active"


@pytest.mark.parametrize("verb", ["suspend", "complete", "terminate"])
async def test_a_hook_after_that_fails_is_recorded_and_undoes_nothing(
    lp: limpet.Limpet, verb: str
) -> None:
    """The transition stands, in a terminal phase too, and the log says that the hook failed."""

    def fails(session: limpet.Session) -> None:
        raise RuntimeError("no")

    ends = {"suspend": "suspended", "complete": "completed", "terminate": "terminated"}
    lp.policies.lifecycle("support", after={("active", ends[verb]): fails})  # type: ignore[dict-item]
    s = await session_in(lp, "active")
    assert (await getattr(s, verb)()).phase == ends[verb]
    event = (await s.refresh()).events[-1]
    assert event.type == "session.hook_failed"
    assert event.data == {"hook": "fails", "error": "RuntimeError: no"}


async def test_a_termination_compensates_and_cleans_up_in_order(lp: limpet.Limpet) -> None:
    """Steps run in the order of the checklist; one that fails is recorded and stops nothing."""
    ran: list[str] = []

    def step(name: str) -> Any:
        def run(session: limpet.Session) -> Any:
            ran.append(name)
            if name == "notify":
                raise RuntimeError("gone")
            return ["secret", "unknown"] if name == "scrub" else None

        return run

    async def hangs(session: limpet.Session) -> None:
        ran.append("undo")
        await asyncio.Event().wait()

    names = ("scrub", "promote", "analytics", "notify", "release", "flush")
    cleanup = {name: step(name) for name in names}
    lp.policies.lifecycle("support", compensate=[hangs], cleanup=cleanup, cleanup_seconds=0.01)  # type: ignore[arg-type]
    s = await lp.create("support", "ada", state={"secret": "x", "n": 1}, actor="user:ada")
    t = await s.terminate("operator")
    assert ran == ["undo", "flush", "release", "notify", "analytics", "promote", "scrub"]
    assert t.event is not None
    data = t.event.data
    assert data["compensated"] == [{"name": "hangs", "error": "took longer than 0.01 seconds"}]
    assert [each["name"] for each in data["cleanup"]] == ran[1:]
    assert data["cleanup"][2]["error"] == "RuntimeError: gone"
    assert s.values == {"n": 1}
    assert t.side_effects[0] == "compensate hangs"


async def test_a_parent_completes_only_after_its_children(lp: limpet.Limpet) -> None:
    """While the head knows of a child that has not ended, complete() is refused."""
    from limpet.model.values import freeze
    from limpet.session.life.lifecycle_policy import Transition
    from limpet.session.life.transitions import open_children

    step = Transition("completed", (), None, "active", "complete")
    assert open_children(freeze({}), step) is None
    assert "c1" in str(open_children(freeze({"children": {"c1": {}}}), step))


async def test_transitions_race_with_writers_and_each_other(lp: limpet.Limpet) -> None:
    """Of racing suspensions one wins; appends beside them are recorded or refused, never lost."""
    s = await session_in(lp, "active")
    handles = [await lp.get(s.key, actor=f"user:{n}") for n in range(4)]

    async def write(n: int) -> int:
        try:
            return (await handles[n % 4].append("agent.message", {"n": n})).seq
        except limpet.errors.SessionSuspended:
            return 0

    async def suspend(n: int) -> bool:
        try:
            await handles[n].suspend(f"{n}")
        except limpet.errors.InvalidTransition:
            return False
        return True

    results = await asyncio.gather(*[write(n) for n in range(20)], *[suspend(n) for n in range(4)])
    written, suspended = [r for r in results[:20] if r], results[20:]
    assert sum(suspended) == 1
    await s.refresh()
    assert s.phase == "suspended"
    log = await s.read(types=["agent.message"], limit=100)
    assert sorted(event.seq for event in log) == sorted(written)
    assert (await lp.maintenance.verify()).ok


async def test_a_lease_holder_cannot_write_into_a_suspended_session(lp: limpet.Limpet) -> None:
    """Suspending stops the work under way: its next write is refused."""
    s = await session_in(lp, "active")
    await s.append("user.message", {"text": "hi"})
    (lease,) = await lp.work.claim("w")
    worker = lp.session(s.key, lease=lease, actor="agent:main")
    await s.suspend()
    with pytest.raises(limpet.errors.SessionSuspended):
        await worker.append("agent.message", {"text": "late"})


@pytest.mark.arguments
@pytest.mark.parametrize(
    "wrong",
    [
        {"guards": {("active", "fly"): lambda s: True}},
        {"before": {("active", "init"): lambda s: True}},
        {"after": {("active", "suspended"): 5}},
        {"cleanup": {"mop": lambda s: None}},
        {"exit_criteria": [5]},
        {"cleanup_seconds": 0},
        {"guards": 5},
    ],
)
async def test_a_policy_that_cannot_be_meant_is_refused(
    lp: limpet.Limpet, wrong: dict[str, Any]
) -> None:
    """A hook at a place that no transition passes would never be called."""
    with pytest.raises(limpet.InvalidInput):
        lp.policies.lifecycle("support", **wrong)


@pytest.mark.arguments
@pytest.mark.parametrize("wrong", ["suspended", "completed", "ready", 5])
async def test_a_session_begins_in_init_or_active(lp: limpet.Limpet, wrong: Any) -> None:
    """No other phase can be the first."""
    with pytest.raises(limpet.InvalidInput):
        await lp.create("support", "ada", phase=wrong)
