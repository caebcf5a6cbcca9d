"""Requests by kind: confirm, answer and resolve each answer only their own, on every store."""

from __future__ import annotations

from typing import Any

import pytest

import limpet

KINDS = ("approval", "question", "unknown_effect", "mismatch")


class Asks:
    """A harness that asks in one of the four ways."""

    def __init__(self, kind: str) -> None:
        self.kind, self.runs, self.paid = kind, 0, list[str]()

    async def run(self, turn: limpet.Turn) -> None:
        self.runs += 1
        match self.kind:
            case "approval":
                await turn.say(f"allowed {bool(await turn.approve('wire', {'eur': 9}))}")
            case "question":
                await turn.say(f"answered {await turn.ask('rate', {})}")
            case "unknown_effect":
                await turn.say(await turn.effect("pay", self._pay, eur=9))
            case _:
                await turn.step("look", lambda n: n, self.runs == 2)
                await turn.approve("go", {})

    async def _pay(self, eur: int) -> str:
        self.paid.append(limpet.idempotency_key())
        if len(self.paid) == 1:
            raise TimeoutError
        return f"paid {eur}"


async def blocked(lp: limpet.Limpet, harness: Asks) -> tuple[limpet.Session[Any], limpet.Request]:
    """A session that waits for what this harness asks."""
    s = await lp.create("support", "ada", actor="user:ada")
    await s.append("user.message", {"text": "hi"})
    await lp.wake(s.key, harness)
    await s.refresh()
    if harness.kind == "mismatch":
        await s.confirm(s.blocked_on[0].id, allow=True)
        await lp.wake(s.key, harness)
        await s.refresh()
    (request,) = s.blocked_on
    assert request.kind == harness.kind
    return s, request


async def said(s: limpet.Session[Any]) -> list[str]:
    return [event.data["text"] for event in await s.read(types=["agent.message"])]


@pytest.mark.parametrize("kind", KINDS)
async def test_each_verb_answers_only_its_own_kind(lp: limpet.Limpet, kind: str) -> None:
    """The wrong verb is refused in its commit, also written by hand, and the right one is named."""
    s, request = await blocked(lp, Asks(kind))
    id, verbs = request.id, {"approval": "s.confirm(", "question": "s.answer("}
    tries: dict[str, Any] = {
        "approval": [lambda: s.confirm(id, allow=True)],
        "question": [lambda: s.answer(id, 1)],
        "unknown_effect": [lambda: s.resolve(id, happened=1)],
        "mismatch": [
            lambda: s.resolve(id, run_again=True),
            lambda: s.resolve(id, give_up=True),
        ],
    }
    if kind == "unknown_effect":
        tries["mismatch"].clear()
    raw = {
        "approval": ("user.tool_confirmation", {"allow": True}),
        "question": ("user.custom_tool_result", {"output": 1}),
        "unknown_effect": ("user.resolution", {"decision": "happened", "output": 1}),
    }
    version = s.version
    for other in KINDS:
        if other == kind:
            continue
        for wrong in tries[other]:
            with pytest.raises(limpet.errors.RequestMismatch) as refused:
                await wrong()
            assert refused.value.kind == kind
            assert verbs.get(kind, "s.resolve(") in str(refused.value)
        if other in raw:
            type, data = raw[other]
            with pytest.raises(limpet.errors.RequestMismatch):
                await s.append(type, {"request_id": id, **data})
    assert (await s.refresh()).version == version
    await tries[kind][0]()
    with pytest.raises(limpet.errors.RequestAnswered):
        await tries[kind][0]()
    assert (await lp.maintenance.verify()).ok


async def test_exactly_one_of_the_three_is_given(lp: limpet.Limpet) -> None:
    """None is a result like any other; what is not True is not a choice."""
    s, request = await blocked(lp, Asks("unknown_effect"))
    wrong: list[dict[str, Any]] = [
        {},
        {"happened": 1, "run_again": True},
        {"run_again": True, "give_up": True},
        {"happened": None, "give_up": True},
        {"run_again": "yes"},
        {"give_up": 1},
        {"run_again": None},
    ]
    for given in wrong:
        with pytest.raises(limpet.InvalidInput, match="exactly one of"):
            await s.resolve(request.id, **given)
    event = await s.resolve(request.id, happened=None, note="no receipt", actor="user:eve")
    data = {"request_id": request.id, "decision": "happened", "output": None, "note": "no receipt"}
    assert (event.type, event.actor, dict(event.data)) == ("user.resolution", "user:eve", data)


async def test_an_unknown_effect_shows_what_a_person_needs_to_look_it_up(
    lp: limpet.Limpet,
) -> None:
    """What was intended, under which key, since when, by whom; then it is settled."""
    harness = Asks("unknown_effect")
    s, request = await blocked(lp, harness)
    (intent,) = await s.read(types=["effect.intended"])
    shown = request.input
    assert (shown["effect"], shown["args"]) == ("pay", {"eur": 9})
    assert shown["idempotency_key"] == intent.data["key"] == harness.paid[0]
    assert shown["since"] == intent.at.isoformat()
    assert (shown["worker"], shown["wake_id"]) == (intent.actor, intent.wake_id)
    assert (shown["tries"], shown["why"]) == (1, "it took too long")
    await s.resolve(request.id, happened="paid, says the bank")
    await lp.wake(s.key, harness)
    assert (await said(s), len(harness.paid)) == (["paid, says the bank"], 1)


async def test_an_unknown_effect_runs_again_or_is_given_up(lp: limpet.Limpet) -> None:
    """Again is under the same key; given up, it ends the turn with an error and no retry."""
    again = Asks("unknown_effect")
    s, request = await blocked(lp, again)
    await s.resolve(request.id, run_again=True)
    await lp.wake(s.key, again)
    assert (await said(s), len(again.paid), len(set(again.paid))) == (["paid 9"], 2, 1)
    never = Asks("unknown_effect")
    s, request = await blocked(lp, never)
    await s.resolve(request.id, give_up=True, note="ask ada")
    woken = await lp.wake(s.key, never)
    assert (woken.reason, len(never.paid)) == ("end_turn", 1)
    assert isinstance(woken.error, limpet.EffectUnknown)
    (error,) = await s.read(types=["session.error"])
    assert (error.data["code"], error.data["counts"]) == ("effect.unknown", False)
    assert "Asks" not in error.data["message"]
    assert "_pay" in error.data["traceback"] or "turn.effect" in error.data["traceback"]
    assert (await s.refresh()).head.pending == 0


async def test_a_mismatch_is_run_again_or_given_up(lp: limpet.Limpet) -> None:
    """Given up, its inputs are processed; run again, it is checked as before."""
    harness = Asks("mismatch")
    s, request = await blocked(lp, harness)
    with pytest.raises(limpet.errors.RequestMismatch, match=r"run_again=True \| give_up=True"):
        await s.resolve(request.id, happened=1)
    await s.resolve(request.id, run_again=True)
    assert (await lp.wake(s.key, harness)).reason == "end_turn"
    harness = Asks("mismatch")
    s, request = await blocked(lp, harness)
    await s.resolve(request.id, give_up=True)
    woken = await lp.wake(s.key, harness)
    assert (woken.reason, harness.runs) == ("end_turn", 2)
    assert (await s.refresh()).head.pending == 0


async def test_a_suspended_session_takes_a_resolution(lp: limpet.Limpet) -> None:
    """As it takes any answer: the turn goes on once the session is resumed."""
    harness = Asks("unknown_effect")
    s, request = await blocked(lp, harness)
    await s.suspend()
    await s.resolve(request.id, happened="yes")
    assert not (await lp.wake(s.key, harness)).ran
    await s.resume()
    await lp.wake(s.key, harness)
    assert await said(s) == ["yes"]


async def test_the_log_may_have_only_the_hash_of_the_arguments(lp: limpet.Limpet) -> None:
    """With record_args=False no event has them, not even the question what became of it."""

    async def slow(card: str) -> None:
        raise TimeoutError

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("charge", slow, card="a card number", record_args=False)

    s = await lp.create("support", "ada", actor="user:ada")
    await s.append("user.message", {"text": "hi"})
    await lp.wake(s.key, harness)
    (request,) = (await s.refresh()).blocked_on
    (intent,) = await s.read(types=["effect.intended"])
    assert request.input["args_hash"] == intent.data["args_hash"]
    assert "a card number" not in repr([event.data for event in await s.read()])
