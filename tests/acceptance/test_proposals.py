"""Proposals: what a session found out, the gates to a memory, and how it leaves again."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Any

import pytest

import limpet
from limpet import errors
from limpet.session.documents import Internal

ADA = "user:ada"
TEXT = "Ask for the order number first."
TO = "agent:support"


async def session(lp: limpet.Limpet, id: str = "case-1", user: str = "ada") -> limpet.Session[Any]:
    return await lp.create("support", user, id, actor=f"user:{user}")


async def proposed(
    lp: limpet.Limpet, s: limpet.Session[Any], text: str = TEXT, to: str = TO, **more: Any
) -> limpet.Proposal:
    return await lp.propose(text, provenance=s.key, confidence=0.8, to=to, **more)


def easy(**gates: Any) -> limpet.PromotionGates:
    """Gates that let pass what no other gate stops."""
    return limpet.PromotionGates(**{"verification": lambda proposal: True, **gates})


async def texts(lp: limpet.Limpet, to: str = TO) -> list[str]:
    return [item.text for item in await lp.recall(to)]


async def test_a_person_decides_and_the_inbox_shows_it(lp: limpet.Limpet) -> None:
    s = await session(lp)
    proposal = await proposed(lp, s)
    assert (proposal.status, proposal.provenance) == ("open", s.key)
    assert await texts(lp) == []
    (waiting,) = (await lp.inbox("support")).items
    assert (waiting.key, waiting.request.kind) == (s.key, "promotion")
    assert (waiting.request.name, waiting.request.input["text"]) == (TO, TEXT)
    assert (await lp.inbox("other")).items == ()
    decided = await lp.decide(waiting.request.id, accept=True, reason="seen it work", actor=ADA)
    assert (decided.status, decided.reason, decided.decided_by) == ("accepted", "seen it work", ADA)
    assert (await lp.inbox()).items == ()
    (item,) = await lp.recall(TO)
    assert (item.text, item.provenance, item.confidence) == (TEXT, s.key, 0.8)
    assert item.expires_at is not None
    events = await s.read(types=["audit.*"])
    assert [event.type for event in events] == [
        "audit.promotion_proposed",
        "audit.promotion_decided",
    ]
    assert events[1].data["reason"] == "seen it work"
    assert TEXT in await lp.memory_of("support"), "one memory, whichever way it came"


async def test_a_refusal_has_its_reason_and_stands(lp: limpet.Limpet) -> None:
    proposal = await proposed(lp, await session(lp))
    refused = await lp.decide(proposal, accept=False, reason="only true for one shop")
    assert (refused.status, refused.reason) == ("refused", "only true for one shop")
    assert await lp.decide(proposal, accept=False, reason="again") == refused
    with pytest.raises(errors.ProposalDecided):
        await lp.decide(proposal, accept=True, reason="after all")
    assert await texts(lp) == []
    assert await lp.proposals("refused") == (refused,)
    assert await lp.proposals("open") == ()


@pytest.mark.parametrize("second", [True, False])
async def test_of_two_people_who_decide_at_once_one_is_refused(
    lp: limpet.Limpet, second: bool
) -> None:
    """Who was not first learns the decision that stands, whether or not it is the one wanted."""
    proposal = await proposed(lp, await session(lp))
    results = await asyncio.gather(
        lp.decide(proposal, accept=True, reason="by Ada", actor=ADA),
        lp.decide(proposal, accept=second, reason="by Bob", actor="user:bob"),
        return_exceptions=True,
    )
    (decided,) = [each for each in results if isinstance(each, limpet.Proposal)]
    (refused,) = [each for each in results if isinstance(each, BaseException)]
    assert isinstance(refused, errors.ProposalDecided)
    assert (refused.decision, refused.actor) == (decided.status, decided.decided_by)
    assert await lp.proposals() == (decided,)


async def test_a_person_may_repeat_the_own_decision_and_nobody_elses(lp: limpet.Limpet) -> None:
    """A repeated call of the same person returns what was decided; a call of another does not."""
    s = await session(lp)
    proposal, same = await proposed(lp, s), await proposed(lp, s)
    for each in (proposal, same):  # of the second, a gate decides
        decided = await lp.decide(each, accept=True, reason="good", actor=ADA)
        assert await lp.decide(each, accept=True, reason="good", actor=ADA) == decided
        for accept, by in ((True, "user:bob"), (False, ADA)):
            with pytest.raises(errors.ProposalDecided, match="by user:ada"):
                await lp.decide(each, accept=accept, reason="x", actor=by)
    assert [each.status for each in await lp.proposals()] == ["accepted", "refused"]
    await lp.withdraw(s.key, actor=ADA)
    with pytest.raises(errors.ProposalDecided):
        await lp.decide(proposal, accept=True, reason="good", actor=ADA)


async def test_functions_decide_where_they_are_the_gates(lp: limpet.Limpet) -> None:
    s = await session(lp)

    async def verified(proposal: limpet.Proposal) -> bool | str:
        return True if proposal.confidence > 0.5 else "not sure enough"

    await lp.policies.promotion(TO, easy(verification=verified))
    assert (await proposed(lp, s)).status == "accepted"
    assert (await lp.inbox()).items == ()
    unsure = await lp.propose("Another.", provenance=s.key, confidence=0.1, to=TO)
    assert (unsure.status, unsure.reason) == ("refused", "verification: not sure enough")


async def test_each_gate_refuses(lp: limpet.Limpet) -> None:
    s = await session(lp)
    await lp.policies.promotion(TO, easy(expiry=None))
    none = await proposed(lp, s)
    assert none.reason is not None
    assert none.reason.startswith("expiry:")
    day = timedelta(days=1)
    assert (await proposed(lp, s, ttl=day)).status == "accepted"
    again = await proposed(lp, s, f"  {TEXT.upper()} ", ttl=day)
    assert again.reason == "duplicate: the memory has this text already"
    named = await proposed(lp, s, "Ada likes tea.", ttl=day)
    assert named.reason == "generalisable: it names its user"

    def alike(proposal: limpet.Proposal, items: Any) -> bool | str:
        return f"like {items[0].text!r}" if items else True

    await lp.policies.promotion(TO, easy(duplicate=alike, generalisable=lambda p: True))
    like = await proposed(lp, s, "Ask for the number of the order.")
    assert like.reason == f"duplicate: like {TEXT!r}"
    await lp.policies.promotion(TO, easy(generalisable=lambda p: False))
    assert (await proposed(lp, s, "x")).reason == "generalisable: the gate refused it"
    assert len(await texts(lp)) == 1
    assert len(await lp.proposals("refused", session=s.key)) == 5


async def test_a_person_cannot_pass_the_other_gates(lp: limpet.Limpet) -> None:
    s, other = await session(lp), await session(lp, "case-2")
    first, second = await proposed(lp, s), await proposed(lp, other)
    await asyncio.gather(
        *[lp.decide(each, accept=True, reason="good") for each in (first, second, first)]
    )
    assert await texts(lp) == [TEXT], "once, though both were open"
    (refused,) = await lp.proposals("refused")
    assert refused.reason == "duplicate: the memory has this text already"


async def test_a_gate_of_another_process_is_waited_for(lp: limpet.Limpet) -> None:
    s = await session(lp)
    await lp.policies.promotion(TO, easy())
    lp._services.promotion_gates.clear()  # as in a process that declares nothing
    proposal = await proposed(lp, s)
    assert proposal.status == "open"
    assert (await lp.inbox()).items == (), "no person is asked"
    await lp.policies.promotion(TO, easy(generalisable=lambda p: True))
    lp._services.promotion_gates.clear()
    with pytest.raises(errors.InvalidInput, match="declares the gate generalisable"):
        await lp.decide(proposal, accept=True, reason="x")


async def test_items_expire_and_the_sweep_removes_them(lp: limpet.Limpet) -> None:
    s = await session(lp)
    await lp.policies.promotion(TO, easy(expiry=timedelta(days=1)))
    proposal = await proposed(lp, s, ttl=timedelta(microseconds=1))
    assert proposal.status == "accepted"
    stays = await proposed(lp, s, "It stays.", ttl=timedelta(days=400))
    at = lp.now()
    while lp.now() <= at:  # noqa: ASYNC110  # the store's clock
        await asyncio.sleep(0)
    assert await texts(lp) == ["It stays."], "also before the sweep"
    (item,) = await lp.recall(TO)
    assert item.expires_at is not None
    assert item.expires_at - item.at <= timedelta(days=1, seconds=1), "no longer than the gate says"
    assert (await lp.work.sweep()).expired == 1
    assert (await lp.work.sweep()).expired == 0
    items = Internal(lp._journal, "curated")
    assert len((await items.list()).items) == 1
    (expired,) = await lp.proposals("expired")
    assert expired.id == proposal.id
    assert (await lp.proposals("accepted"))[0].id == stays.id


async def test_one_call_removes_what_a_session_contributed(lp: limpet.Limpet) -> None:
    s, other = await session(lp), await session(lp, "case-2")
    for to in (TO, "org:acme"):
        await lp.policies.promotion(to, easy())
        await proposed(lp, s, to=to)
        await proposed(lp, other, "From the other.", to=to)
    waiting = await proposed(lp, s, to="org:else")
    await lp.delete(s.key)
    assert await lp.withdraw(s.key, reason="it was lied to", actor=ADA) == 2
    for to in (TO, "org:acme"):
        assert await texts(lp, to) == ["From the other."]
    assert {each.status for each in await lp.proposals(session=s.key)} == {"withdrawn"}
    with pytest.raises(errors.ProposalDecided):
        await lp.decide(waiting, accept=True, reason="late")
    assert await lp.withdraw(s.key.app, s.key.user, s.key.id) == 0


@pytest.mark.parametrize("how", ["session", "user"])
async def test_erasing_removes_contributions_with_every_version(
    lp: limpet.Limpet, how: str
) -> None:
    s, other = await session(lp), await session(lp, "case-2", "bob")
    await lp.policies.promotion(TO, easy())
    await proposed(lp, s)
    await proposed(lp, s, "Refused, for Ada.")
    await proposed(lp, other, "From another.")

    async def learns(turn: limpet.Turn) -> None:
        await turn.learn("error", f"Slow, says {turn.session.user}.")

    for each in (s, other):
        await each.append("user.message", {"text": "hi"}, actor=ADA)
        await lp.wake(each.key, learns)
    for learning in await lp.learnings("support"):
        await lp.promote("support", learning)
    assert len(await lp.recall(TO)) == 4
    await (lp.erase(s.key) if how == "session" else lp.erase_user("support", "ada"))
    assert sorted(await texts(lp)) == ["From another.", "Slow, says bob."]
    assert [learning.text for learning in await lp.learnings("support")] == ["Slow, says bob."]
    assert {each.provenance for each in await lp.proposals()} == {other.key}
    for collection in ("curated", "learnings"):
        for document in (await Internal(lp._journal, collection).list()).items:
            assert re.search(r"\bada\b", str(document.value).lower()) is None


async def test_bad_arguments(lp: limpet.Limpet) -> None:
    s = await session(lp)
    for wrong in ({"to": "support"}, {"to": "agent:"}, {"to": "team:x"}, {"ttl": timedelta(0)}):
        with pytest.raises(errors.InvalidInput):
            await proposed(lp, s, **wrong)
    for confidence in (-1, 2, "high"):
        with pytest.raises(errors.InvalidInput):
            await lp.propose(TEXT, provenance=s.key, confidence=confidence, to=TO)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidInput):
        await proposed(lp, s, "")
    with pytest.raises(errors.SessionNotFound):
        await lp.propose(TEXT, provenance=("support", "ada", "x"), confidence=1, to=TO)
    with pytest.raises(errors.ProposalNotFound):
        await lp.decide("nothing", accept=True, reason="x")
    proposal = await proposed(lp, s)
    for reason in ("", "  ", None):
        with pytest.raises(errors.InvalidInput):
            await lp.decide(proposal, accept=True, reason=reason)  # type: ignore[arg-type]
    for gates in (
        {"duplicate": True},
        limpet.PromotionGates(verification="nobody"),  # type: ignore[arg-type]
        limpet.PromotionGates(expiry=timedelta(0)),
        limpet.PromotionGates(generalisable=None),  # type: ignore[arg-type]
    ):
        with pytest.raises(errors.InvalidInput):
            await lp.policies.promotion(TO, gates)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidInput):
        await lp.proposals("new")  # type: ignore[arg-type]
