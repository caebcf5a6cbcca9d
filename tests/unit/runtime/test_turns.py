"""Turns: what is recorded, what is returned from the record, and how a turn ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import limpet
from limpet.model.facts.timers import revisits_of
from limpet.model.limits import REVISITS_PER_TURN_MAX, TIMERS_MAX
from limpet.runtime import run
from limpet.session.writer import writer_of
from tests.support.agents import Bank, World, a_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


async def test_an_empty_turn_is_a_claim_and_one_commit(world: World) -> None:
    """A harness that does nothing costs the claim and the closing commit."""

    async def harness(turn: limpet.Turn) -> None:
        pass

    await world.begin("hi")
    before = world.store.commits
    (woken,) = await world.work(harness)
    assert (woken.ran, woken.reason) == (True, "end_turn")
    assert world.store.commits == before + 1
    session = world.session
    assert (session.status, session.stop_reason, session.head.pending) == ("idle", "end_turn", 0)
    types = [t for t in await world.types() if not t.startswith("user")]
    assert types[1:] == [
        "span.started",
        "span.completed",
        "session.status_idle",
    ]


async def test_a_wake_without_work_is_a_no_op_with_a_reason(world: World) -> None:
    """Nothing pending and nothing due: nothing is recorded."""

    async def harness(turn: limpet.Turn) -> None:
        raise AssertionError("it runs")

    session = await world.begin()
    woken = await world.lp.wake(session.key, harness)
    assert (woken.ran, woken.reason) == (False, "nothing_pending")
    assert await world.types() == ["session.created"]


async def test_a_leased_session_is_not_woken(world: World) -> None:
    """Another worker has it: the wake says so and does nothing."""
    session = await world.begin("hi")
    await world.lp.work.claim("other", lease_seconds=60)
    await session.refresh()
    assert session.status == "running"
    assert (await world.lp.wake(session.key, print)).reason == "locked"


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("at", range(1, 13))
async def test_a_turn_that_dies_anywhere_is_finished_by_the_next_worker(
    world: World, at: int, recorded: bool
) -> None:
    """Steps, messages and effects are recorded once, inputs processed once; nothing stays open."""
    bank, thoughts = Bank(), 0

    def think(text: str) -> str:
        nonlocal thoughts
        thoughts += 1
        return f"{text}!{thoughts}"

    async def model() -> AsyncIterator[str]:
        for piece in ("so", "on"):
            yield piece

    async def harness(turn: limpet.Turn) -> None:
        for message in turn.inputs:
            plan = await turn.step("plan", think, message.data["text"])
            await turn.stream("answer", model())
            paid = await turn.effect("refund", bank.refund, order=7, on_unknown="retry")
            await turn.say(f"{plan} {paid['order']}")

    await world.begin("one", "two")
    died = await world.die(harness, at, recorded=recorded)
    assert died == (at < 12), "it makes eleven commits"
    world.later()
    await world.work(harness)
    session, said = world.session, await world.said()
    assert session.status == "idle"
    assert session.stop_reason == "end_turn"
    assert not session.head.pending
    assert said[0::2] == ["soon", "soon"]
    assert [text[:3] for text in said[1::2]] == ["one", "two"]
    assert len(set(bank.done)) == 2, "two actions, each under its own key"
    types = await world.types()
    assert types.count("span.started") == types.count("span.completed")
    assert types.count("step.recorded") == types.count("effect.succeeded") == 2
    assert (await world.lp.maintenance.verify()).ok


async def test_a_step_that_was_recorded_is_not_computed_again(world: World) -> None:
    """The result of the first run is what every later run gets."""
    results = []

    async def harness(turn: limpet.Turn) -> None:
        results.append(await turn.step("now", lambda: len(results)))
        await turn.approve("go", {})

    session = await world.begin("hi")
    await world.work(harness)
    await session.confirm(session.blocked_on[0].id, allow=True)
    await world.work(harness)
    assert results == [0, 0]


async def test_another_argument_than_the_recorded_one_stops_the_turn(world: World) -> None:
    """The error names the call, the inputs stay pending, and a person is asked."""
    runs = 0

    async def harness(turn: limpet.Turn) -> None:
        nonlocal runs
        runs += 1
        await turn.step("plan", lambda run: run, runs)
        await turn.approve("go", {})

    session = await world.begin("hi")
    await world.work(harness)
    await session.confirm(session.blocked_on[0].id, allow=True)
    (woken,) = await world.work(harness)
    assert isinstance(woken.error, limpet.errors.TurnMismatch)
    assert session.stop_reason == "requires_action"
    assert session.head.pending == 2
    (request,) = session.blocked_on
    assert (request.kind, request.name) == ("mismatch", "plan")
    error = [e for e in await world.log() if e.type == "session.error"][-1]
    assert error.data["code"] == "turn.mismatch"
    runs = 0
    await session.resolve(request.id, run_again=True)
    (woken,) = await world.work(harness)
    assert woken.reason == "end_turn"
    assert not session.head.pending


async def test_a_mismatch_that_is_given_up_ends_the_turn(world: World) -> None:
    """The harness does not run again, and its inputs count as processed."""
    runs = 0

    async def harness(turn: limpet.Turn) -> None:
        nonlocal runs
        runs += 1
        await turn.step("plan", lambda run: run, runs)
        await turn.approve("go", {})

    session = await world.begin("hi")
    await world.work(harness)
    await session.confirm(session.blocked_on[0].id, allow=True)
    await world.work(harness)
    await session.resolve(session.blocked_on[0].id, give_up=True, note="ada was called")
    await world.work(harness)
    assert (session.stop_reason, session.head.pending) == ("end_turn", 0)
    assert runs == 2
    (*_, error) = await session.read(types=["session.error"])
    assert (error.data["code"], error.data["counts"]) == ("turn.mismatch", False)
    assert error.data["message"].endswith("ada was called")
    await world.send("again")
    await world.work(harness)
    assert session.blocked_on, "the next message has a turn of its own"


async def test_an_effect_that_a_new_run_does_not_reach_stops_the_turn(world: World) -> None:
    """Checked before the closing commit; accepted if that is what was chosen."""
    bank, runs = Bank(), 0

    async def harness(turn: limpet.Turn) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            await turn.effect("refund", bank.refund, order=1)
            await turn.approve("go", {})

    session = await world.begin("hi")
    await world.work(harness)
    await session.confirm(session.blocked_on[0].id, allow=True)
    (woken,) = await world.work(harness)
    assert isinstance(woken.error, limpet.errors.TurnMismatch)
    assert "refund" in str(woken.error)
    assert session.head.pending
    await session.resolve(session.blocked_on[0].id, run_again=True)
    (woken,) = await world.work(harness, on_mismatch="accept")
    assert woken.reason == "end_turn"
    assert len(bank.done) == 1


async def test_mismatches_are_accepted_where_that_was_chosen(world: World) -> None:
    """With on_mismatch="accept" the recorded result counts, and nobody is asked."""
    results = []

    async def harness(turn: limpet.Turn) -> None:
        results.append(await turn.step("plan", lambda run: run, len(results)))
        await turn.approve("go", {})

    session = await world.begin("hi")
    await world.work(harness)
    await session.confirm(session.blocked_on[0].id, allow=True)
    (woken,) = await world.work(harness, on_mismatch="accept")
    assert (woken.reason, results) == ("end_turn", [0, 0])


async def test_news_wait_for_the_next_turn(world: World) -> None:
    """A message in mid-run is not lost: the session is due again at once."""
    seen: list[list[str]] = []

    async def harness(turn: limpet.Turn) -> None:
        seen.append([m.data["text"] for m in turn.inputs])
        if len(seen) == 1:
            await world.send("second")
            assert [m.data["text"] for m in await turn.news()] == ["second"]

    await world.begin("first")
    await world.work(harness)
    assert seen == [["first"], ["second"]]
    assert world.session.head.pending == 0


async def test_a_re_sent_input_is_harmless(world: World) -> None:
    """The same id again, after it was processed, wakes nobody."""

    async def harness(turn: limpet.Turn) -> None:
        await turn.say("ok")

    session = await world.begin()
    for _ in range(2):
        await session.append("user.message", {"text": "hi"}, id="m1", actor="user:ada")
        await world.work(harness)
    assert await world.said() == ["ok"]
    assert session.status == "idle"


async def test_pieces_reach_followers_with_the_id_of_the_message(world: World) -> None:
    """Partials carry the id of the final event and the number of the attempt."""
    pieces: list[limpet.Event] = []

    async def model() -> AsyncIterator[Any]:
        yield "so"
        yield {"text": "on", "usage": {"input": 3, "output": 2}}

    async def harness(turn: limpet.Turn) -> None:
        assert await turn.stream("answer", model()) == "soon"

    async def follow(session: limpet.Session[Any]) -> limpet.Event:
        async for event in session.follow(types=["agent.message"]):
            if not event.partial:
                return event
            pieces.append(event)
        raise AssertionError

    session = await world.begin("hi")
    following = asyncio.ensure_future(follow(session))
    await asyncio.sleep(0)
    await world.work(harness)
    final = await following
    assert {(p.id, p.attempt) for p in pieces} <= {(final.id, 1)}
    assert final.data["text"] == "soon"
    assert session.runs.usage.tokens == 5


async def test_a_harness_that_raises_closes_its_span_and_is_tried_again(world: World) -> None:
    """Back-off grows, then it is a dead letter that is listed and can be requeued."""
    waits = []

    async def harness(turn: limpet.Turn) -> None:
        raise ValueError("no")

    session = await world.begin("hi")
    for _ in range(3):
        (woken,) = await world.work(harness, retries=3)
        assert isinstance(woken.error, ValueError)
        assert (session.status, session.stop_reason) == ("rescheduling", "rescheduling")
        error = [e for e in await world.log() if e.type == "session.error"][-1]
        waits.append(error.data["retry_us"] - world.clock.now_us)
        assert not await world.lp.work.claim("w")
        world.later(waits[-1] / 1_000_000)
    assert waits[0] < waits[1] < waits[2]
    await world.work(harness, retries=3)
    assert session.stop_reason == "retries_exhausted"
    await world.send("more")
    assert not await world.work(harness), "new inputs wait"
    page = await world.lp.work.dead_letters(app="support")
    assert [head.key for head in page.items] == [session.key]
    types = await world.types()
    assert types.count("span.started") == types.count("span.completed") == 4

    async def better(turn: limpet.Turn) -> None:
        await turn.say(f"{len(turn.inputs)}")

    await world.lp.work.requeue(session.key)
    await world.work(better)
    assert await world.said() == ["1", "1"]
    assert not (await world.lp.work.dead_letters(app="support")).items
    with pytest.raises(limpet.InvalidInput, match="not a dead letter"):
        await world.lp.work.requeue(session.key)


async def test_a_turn_that_kills_its_worker_every_time_becomes_a_dead_letter(world: World) -> None:
    """Also if nothing of it was ever recorded but that it began."""

    async def harness(turn: limpet.Turn) -> None:
        raise AssertionError("killed at its first commit")

    session = await world.begin("hi")
    for _ in range(4):
        await world.die(_dies, 2, recorded=False)
        world.later()
    await world.work(harness, retries=2)
    assert session.stop_reason == "retries_exhausted"
    assert (await world.types()).count("session.error") >= 3


async def test_a_run_that_died_and_had_got_on_does_not_count_as_failed(world: World) -> None:
    """A long turn outlives as many workers as it has steps."""

    async def harness(turn: limpet.Turn) -> None:
        for number in range(10):
            await turn.step("one", lambda n: n, number)

    session = await world.begin("hi")
    for _ in range(9):
        assert await world.die(harness, 3, recorded=False)
        world.later()
    await world.work(harness, retries=0)
    assert session.stop_reason == "end_turn"


async def test_an_effect_that_kills_its_worker_every_time_becomes_a_dead_letter(
    world: World,
) -> None:
    """That it was begun once more is no progress."""
    bank = Bank()

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("refund", bank.refund, order=1, on_unknown="retry")

    session = await world.begin("hi")
    await world.die(harness, 2, recorded=False)
    for _ in range(3):
        world.later()
        assert await world.die(harness, 3, recorded=False)
    world.later()
    await world.work(harness, retries=2)
    assert session.stop_reason == "retries_exhausted"
    assert len(bank.done) == 4


async def _dies(turn: limpet.Turn) -> None:
    await turn.step("a", lambda: 1)
    await turn.step("b", lambda: 2)


async def test_revisits_are_all_delivered_by_priority_then_time(world: World) -> None:
    """Durable, deduped by key, lost never: also not if the turn that gets them fails."""
    delivered: list[list[str]] = []

    async def harness(turn: limpet.Turn) -> None:
        if turn.inputs:
            for key, minutes, priority in (("a", 2, "low"), ("b", 3, "normal"), ("c", 1, "high")):
                turn.revisit(timedelta(minutes=minutes), f"see {key}", key, priority)  # type: ignore[arg-type]
            turn.revisit(timedelta(minutes=9), "again", "b")
            return
        delivered.append([r.reason for r in turn.revisits])
        if len(delivered) == 1:
            raise ValueError

    await world.begin("hi")
    await world.work(harness)
    world.later(60 * 5)
    await world.work(harness)
    world.later(60)
    await world.work(harness)
    assert delivered == [["see c", "see b", "see a"]] * 2
    assert not world.session.head.timers


async def test_a_revisit_is_replaced_when_asked(world: World) -> None:
    """The newer due time and priority win with replace=True; more than 16 are refused."""

    async def harness(turn: limpet.Turn) -> None:
        turn.revisit(timedelta(minutes=1), "old", "k")
        turn.revisit(timedelta(minutes=2), "new", "k", "high", replace=True)
        for number in range(14):
            turn.revisit(timedelta(hours=1), "more", f"{number}")
        with pytest.raises(limpet.errors.TurnMisused):
            turn.revisit(timedelta(hours=1), "too many")

    await world.begin("hi")
    await world.work(harness)
    known = writer_of(world.session).known
    (revisit,) = revisits_of(known.head.facts, ["revisit:k"], known.texts)
    assert (revisit.reason, revisit.priority) == ("new", "high")


async def test_a_plain_timer_wakes_a_turn_and_is_cleared(world: World) -> None:
    """A wake timer of the session is delivered like a revisit."""
    seen = []

    async def harness(turn: limpet.Turn) -> None:
        seen.extend([r.key for r in turn.revisits])

    session = await world.begin()
    at = limpet.Timer(world.clock.now_us + 1_000_000).at
    await session.lifecycle.set_timer("remind", at, actor="user:ada")
    world.later(2)
    await world.work(harness)
    assert seen == ["remind"]
    assert not session.head.timers


async def test_an_error_whose_text_cannot_be_stored_is_recorded_all_the_same(world: World) -> None:
    """What is no character is replaced: the run is closed, and counts."""

    async def harness(turn: limpet.Turn) -> None:
        raise ValueError("\ud800 no")

    session = await world.begin("hi")
    (woken,) = await world.work(harness, retries=0)
    assert woken.reason == "retries_exhausted"
    assert session.runs.failure == limpet.RunFailure("turn.failed", "ValueError: ? no", 1)


async def test_an_end_that_cannot_be_recorded_is_a_failure_like_any_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many timers for one session: the turn backs off and becomes a dead letter. An effect that
    it left open has an outcome in the end."""
    monkeypatch.setattr(run, "GRACE_SECONDS", 0.1)  # which the effect left open takes whole
    begun, never = asyncio.Event(), asyncio.Event()
    left: list[asyncio.Task[Any]] = []

    async def pays() -> None:
        begun.set()
        await never.wait()

    async def harness(turn: limpet.Turn) -> None:
        left.append(asyncio.ensure_future(turn.effect("pay", pays)))
        await begun.wait()
        turn.revisit(timedelta(hours=1), "one too many")

    session = await world.begin("hi")
    for number in range(TIMERS_MAX):
        at = datetime(2040, 1, 1, tzinfo=UTC)
        await session.lifecycle.set_timer(f"t{number}", at, actor="user:ada")
    (woken,) = await world.work(harness, retries=0)
    assert woken.reason == "retries_exhausted"
    assert isinstance(woken.error, limpet.errors.InvalidEvent)
    assert session.head.pending == 1
    types = await world.types()
    assert types.count("session.error") == 1
    assert types.count("effect.unknown") == types.count("effect.intended") == 1
    assert types.count("span.started") == types.count("span.completed")
    left[0].cancel()
    await asyncio.wait(left)


@pytest.mark.parametrize(
    ("when", "how"),
    [
        (timedelta.max, {}),
        (timedelta.min, {}),
        (datetime(2030, 1, 1), {}),  # noqa: DTZ001  # without a time zone
        ("soon", {}),
        (timedelta(1), {"reason": ""}),
        (timedelta(1), {"reason": "x" * 1_001}),
        (timedelta(1), {"key": "x" * 257}),
        (timedelta(1), {"key": 5}),
        (timedelta(1), {"priority": "urgent"}),
        (timedelta(1), {"reason": "\ud800"}),
    ],
)
async def test_a_revisit_that_makes_no_sense_is_refused_where_it_is_asked_for(
    world: World, when: Any, how: dict[str, Any]
) -> None:
    """In the harness, not when its end is recorded."""
    refused = []

    async def harness(turn: limpet.Turn) -> None:
        try:
            turn.revisit(when, **{"reason": "back", **how})
        except limpet.InvalidInput as error:
            refused.append(error)

    session = await world.begin("hi")
    await world.work(harness)
    assert len(refused) == 1
    assert (session.stop_reason, session.head.timers) == ("end_turn", {})


async def test_a_turn_asks_for_so_many_revisits_and_no_more(world: World) -> None:
    """The one too many is refused in the harness; the others are recorded."""

    async def harness(turn: limpet.Turn) -> None:
        for number in range(REVISITS_PER_TURN_MAX):
            turn.revisit(timedelta(days=1), f"number {number}")
        with pytest.raises(limpet.errors.TurnMisused, match="at most"):
            turn.revisit(timedelta(days=1), "one more")

    session = await world.begin("hi")
    (woken,) = await world.work(harness)
    assert (woken.reason, len(session.head.timers)) == ("end_turn", REVISITS_PER_TURN_MAX)


@pytest.mark.parametrize("verb", ["effect", "approve", "ask", "delegate", "result"])
@pytest.mark.parametrize("outer", ["step", "stream", "effect"])
async def test_a_call_that_may_pause_or_act_is_made_by_the_harness_itself(
    world: World, verb: str, outer: str
) -> None:
    """Inside the function of another call it would wait without end, or be passed by next time."""

    async def harness(turn: limpet.Turn) -> None:
        child = await turn.delegate("research", "look")

        async def inside() -> str:
            if verb == "effect":
                await turn.effect("pay", lambda: 1)
            elif verb == "result":
                await child.result()
            else:
                await getattr(turn, verb)("x", "y")
            return "never"

        async def pieces() -> AsyncIterator[str]:
            yield await inside()

        if outer == "stream":
            await turn.stream("outer", pieces())
        else:
            await getattr(turn, outer)("outer", inside)

    await world.begin("hi")
    (woken,) = await world.work(harness, retries=0)
    assert "was called inside the" in str(woken.error)
    assert "agent.tool_use" not in await world.types()


async def test_what_outlives_its_turn_acts_no_more(world: World) -> None:
    """A task that the harness did not wait for is refused once the turn is over."""
    go, refused, done = asyncio.Event(), [], []

    async def late(turn: limpet.Turn) -> None:
        await go.wait()
        try:
            await turn.effect("pay", lambda: done.append(1))
        except limpet.errors.TurnMisused as error:
            refused.append(error)

    tasks = []

    async def harness(turn: limpet.Turn) -> None:
        tasks.append(asyncio.ensure_future(late(turn)))

    await world.begin("hi")
    await world.work(harness)
    go.set()
    await asyncio.gather(*tasks)
    assert (len(refused), done) == (1, [])


@pytest.mark.parametrize("name", ["", "x" * 257, 5, "a\x00b", None], ids=repr)
@pytest.mark.parametrize("verb", ["step", "stream", "effect", "approve", "ask"])
async def test_a_call_has_a_name(world: World, verb: str, name: Any) -> None:
    """It is what its record is found by; anything else is refused before anything is done."""
    done = []

    async def harness(turn: limpet.Turn) -> None:
        what: Any = [] if verb == "stream" else lambda: done.append(1)
        await getattr(turn, verb)(name, {} if verb in ("approve", "ask") else what)

    await world.begin("hi")
    (woken,) = await world.work(harness, retries=0)
    assert isinstance(woken.error, limpet.InvalidInput)
    assert done == []


@pytest.mark.parametrize(
    ("verb", "how"),
    [
        ("effect", {"key": ""}),
        ("effect", {"key": 5}),
        ("effect", {"timeout": -1}),
        ("effect", {"timeout": timedelta(0)}),
        ("effect", {"timeout": "x"}),
        ("effect", {"timeout": float("nan")}),
        ("effect", {"timeout": float("inf")}),
        ("effect", {"timeout": True}),
        ("effect", {"retries": -1}),
        ("effect", {"retries": "2"}),
        ("effect", {"compensate": len}),
        ("effect", {"on_unknown": "hope"}),
        ("effect", {"max_cost": -1}),
        ("approve", {"deadline": 5}),
        ("approve", {"deadline": timedelta(0)}),
        ("approve", {"deadline": timedelta.max}),
        ("approve", {"deadline": timedelta(days=3_651)}),
        ("approve", {"otherwise": "deny"}),
        ("approve", {"deadline": timedelta(1), "otherwise": "perhaps"}),
    ],
    ids=str,
)
async def test_what_a_call_cannot_mean_is_refused_before_it_is_recorded(
    world: World, verb: str, how: dict[str, Any]
) -> None:
    """Nothing is done and nothing is asked."""
    done = []

    async def harness(turn: limpet.Turn) -> None:
        what: Any = {} if verb == "approve" else lambda: done.append(1)
        await getattr(turn, verb)("pay", what, **how)

    session = await world.begin("hi")
    (woken,) = await world.work(harness, retries=0)
    assert isinstance(woken.error, limpet.InvalidInput)
    assert (done, session.blocked_on) == ([], ())
    assert not {"effect.intended", "agent.tool_use"} & set(await world.types())


@pytest.mark.parametrize(
    "call",
    [
        lambda turn: turn.say(),
        lambda turn: turn.say("hi", content=[]),
        lambda turn: turn.effect("pay", "the bill"),
        lambda turn: turn.stream("answer", 5),
        lambda turn: turn.stream("answer", [5]),
        lambda turn: turn.delegate("research", 5),
        lambda turn: turn.delegate("", "look"),
    ],
    ids=["nothing", "both", "no function", "no pieces", "no text", "no message", "no app"],
)
async def test_what_a_call_cannot_use_is_refused_before_it_is_recorded(
    world: World, call: Any
) -> None:
    """The harness has the error, and the log nothing of the call."""

    async def harness(turn: limpet.Turn) -> None:
        with pytest.raises(limpet.InvalidInput):
            await call(turn)

    session = await world.begin("hi")
    (woken,) = await world.work(harness)
    assert (woken.reason, woken.error) == ("end_turn", None)
    kinds = {type.partition(".")[0] for type in await world.types()}
    assert kinds == {"session", "user", "span"}
    assert not await session.runs.children()


async def test_an_interrupt_leaves_a_dead_letter_one(world: World) -> None:
    """It is held, and says so, until it is requeued; then the interrupt ends its turn."""

    async def broken(turn: limpet.Turn) -> None:
        raise ValueError("no")

    async def echo(turn: limpet.Turn) -> None:
        for message in turn.inputs:
            await turn.say(message.data["text"])

    session = await world.begin("bad")
    await world.work(broken, retries=0)
    await session.interrupt("stop", actor="user:ada")
    assert session.stop_reason == "retries_exhausted"
    await world.send("good")
    assert not await world.work(echo)
    await world.lp.work.requeue(session.key)
    world.later(1)
    await world.work(echo)
    assert await world.said() == ["good"]
    assert (await world.lp.work.dead_letters(app="support")).items == ()


async def test_a_result_that_cannot_be_recorded_is_named(world: World) -> None:
    """By the step or effect that returned it; nobody knows of the event it would be in."""

    async def computes(turn: limpet.Turn) -> None:
        await turn.step("look up", lambda: {"rows": [object()]})

    async def acts(turn: limpet.Turn) -> None:
        await turn.effect("refund", object)

    session = await world.begin("hi")
    woken = await world.lp.wake(session.key, computes)
    assert str(woken.error).startswith("the result of the step 'look up'['rows'][0] is object,")
    session = await world.begin("hi")
    woken = await world.lp.wake(session.key, acts)
    assert str(woken.error).startswith("the result of the effect 'refund' is object,")
    assert [e.type for e in await session.read(types=["effect.*"])][-1] == "effect.unknown"


# --- statuses ------------------------------------------------------------------------------------


async def statuses(session: limpet.Session[Any]) -> list[tuple[str, str, str]]:
    found = await session.read(types=["session.status_changed"])
    return [(e.data["from"], e.data["to"], e.data["reason"]) for e in found]


async def test_followers_see_a_session_run_and_come_to_rest(world: World) -> None:
    """Running is recorded with the first thing that a turn records, and its end with the last."""

    async def harness(turn: limpet.Turn) -> None:
        await turn.say("hi")
        if turn.attempt == 1:
            raise ValueError("once")

    session = await world.begin("hi")
    world.store.commits = 0
    await world.work(harness)
    assert world.store.commits == 2
    assert await statuses(session) == [
        ("idle", "running", "input"),
        ("running", "rescheduling", "rescheduling"),
    ]
    world.later(60)
    await world.work(harness)
    assert (await statuses(session))[2:] == [("rescheduling", "idle", "end_turn")]
    types = await world.types()
    first = types.index("session.status_changed")
    assert types[first - 1 : first + 2] == [
        "span.started",
        "session.status_changed",
        "agent.message",
    ]


async def test_a_turn_of_one_commit_is_never_seen_running(world: World) -> None:
    """Nobody could: its beginning and its end are recorded together."""

    async def nothing(turn: limpet.Turn) -> None:
        pass

    session = await world.begin("hi")
    world.store.commits = 0
    await world.work(nothing)
    assert world.store.commits == 1
    assert await statuses(session) == []


async def test_the_end_of_a_session_is_a_change_of_its_status(world: World) -> None:
    """In the commit that ends it, from whatever it was."""

    async def harness(turn: limpet.Turn) -> None:
        await turn.say("hi")
        await world.lp.session(turn.session.key).terminate("fraud", actor="user:eve")

    session = await world.begin("hi")
    await world.work(harness)
    assert (await statuses(session))[-1] == ("running", "terminated", "fraud")
    other = await world.lp.create("support", "ada", actor="user:ada")
    version = other.version
    done = await other.complete()
    assert done.event is not None
    assert (other.version, done.event.seq) == (version + 2, version + 2)
    assert await statuses(other) == [("idle", "terminated", "complete")]
    await other.archive()
    assert len(await statuses(other)) == 1
    waiting = await world.lp.create("support", "ada", actor="user:ada")
    await waiting.suspend()
    await waiting.terminate()
    assert await statuses(waiting) == [("idle", "terminated", "terminate")]
