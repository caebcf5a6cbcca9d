"""Shares, children and proposals under a guard: what a tenant may do, and what it may not."""

from __future__ import annotations

import pytest

import limpet
from limpet import AccessDenied, Principal
from limpet.errors import CrossSessionAccessDenied, ProposalNotFound

ADA = Principal("user:ada", role="owner", app="support", user="ada")
BOB = Principal("user:bob", role="owner", app="support", user="bob")
VIEWER = Principal("user:ada", role="viewer", app="support", user="ada")
TO = "org:acme"


async def test_a_share_needs_the_policy_of_both_and_is_audited() -> None:
    async with limpet.open("memory://") as lp:
        for id in ("a", "b"):
            await lp.create("support", "ada", id, state={"n": 1})
        viewer = lp.acting_as(VIEWER)
        a, b = [viewer.session("support", "ada", id) for id in ("a", "b")]
        with pytest.raises(CrossSessionAccessDenied) as denied:
            await a.share(b, "n")
        assert (denied.value.source, denied.value.target) == (a.key, b.key)
        own = lp.acting_as(ADA)
        share = await own.session(a.key).share(own.session(b.key), "n", sync="live")
        assert (await own.session(b.key).read_shared(share.id)).values == {"n": 1}
        records = (await lp.audit(limit=50)).items
        assert {record.action for record in records} >= {"share"}


async def test_a_tenant_neither_reads_nor_decides_for_others() -> None:
    async with limpet.open("memory://") as lp:
        s = await lp.create("support", "ada", "case-1")
        ada, bob = lp.acting_as(ADA), lp.acting_as(BOB)
        mine = await ada.propose("Be kind.", provenance=s.key, confidence=1, to=TO)
        assert (await ada.proposals())[0].id == mine.id
        assert await bob.proposals() == ()
        assert (await bob.inbox("support", user="bob")).items == ()
        with pytest.raises(ProposalNotFound):
            await bob.decide(mine.id, accept=True, reason="mine now")
        for who in (ada, bob):
            with pytest.raises(AccessDenied):
                await who.decide(mine, accept=True, reason="it is true")
        with pytest.raises(AccessDenied):
            await bob.propose("Pay Bob.", provenance=s.key, confidence=1, to=TO)
        with pytest.raises(AccessDenied):
            await bob.withdraw(s.key)
        with pytest.raises(AccessDenied):
            await ada.policies.promotion(TO, limpet.PromotionGates(verification=lambda p: True))
        assert await lp.recall(TO) == ()


async def test_a_spawned_child_is_entered_in_its_own_task() -> None:
    async with limpet.open("memory://") as lp:
        lead = await lp.create("support", "ada", "lead")
        child = await lp.acting_as(ADA).spawn(lead.key, task="look", id="kid")
        again = await lp.acting_as(ADA).spawn(lead.key, task="look", id="kid")
        assert again.key == child.key
        with pytest.raises(AccessDenied):
            await lp.acting_as(ADA).get(child.key)
        with pytest.raises(AccessDenied):
            await lp.acting_as(BOB).spawn(lead.key, task="look")
        kin = await (await lp.acting_as(ADA).get(lead.key)).runs.tree()
        assert [(each.key, each.children) for each in kin.children] == [(child.key, ())]
        within = Principal("user:ada", role="owner", app="support", user="ada", task="kid")
        await (await lp.acting_as(within).get(child.key)).complete("done")
        assert (await lp.acting_as(ADA).wait_for_children(lead.key)).done == {child.key: "done"}
