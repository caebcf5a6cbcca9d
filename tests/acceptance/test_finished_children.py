"""Children that have finished are completed with their parent, before it and in its commit."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Principal, errors
from limpet.model import Commit
from limpet.model.facts.phases import transition
from limpet.server.serve import serving
from limpet.session.access_keys import AccessKeys
from limpet.session.life import transitions
from limpet.session.limpet import journal_of
from tests.support.keys import key_file

ADA = "user:ada"
Sessions = list[limpet.Session[Any]]


async def says(turn: limpet.Turn) -> None:
    await turn.say("found")


async def finished(lp: limpet.Limpet, *ids: str) -> tuple[limpet.Session[Any], Sessions]:
    """A session, and children that a worker has finished."""
    lead = await lp.create("support", "ada", "lead", actor=ADA)
    made = [await lp.spawn(lead, task="look", id=id) for id in ids]
    for each in made:
        await lp.wake(each.key, says)
    return await lead.refresh(), made


async def completions(lp: limpet.Limpet, count: int) -> list[tuple[str, Any]]:
    """The sessions in the order in which they were completed, and when, as a watcher sees them."""
    seen: list[tuple[str, Any]] = []
    async with aclosing(lp.watch()) as entries:
        while len(seen) < count:
            entry = await anext(entries)
            if entry.event.type == "session.completed":
                seen.append((entry.key.id, entry.event.at))
    return seen


async def test_a_finished_child_is_completed_before_its_parent(lp: limpet.Limpet) -> None:
    """Until then it takes messages, and while it has one the parent is refused."""
    lead, (one, two) = await finished(lp, "one", "two")
    assert (await one.refresh()).phase == "active"
    await one.append("user.message", {"text": "and then?"}, actor=ADA)
    with pytest.raises(errors.GuardFailed, match="support/ada/one has more to do"):
        await lead.complete(actor=ADA)
    assert [(await each.refresh()).phase for each in (lead, one, two)] == ["active"] * 3
    await lp.wake(one.key, says)
    await lead.complete("done", actor=ADA)
    assert [id for id, _ in await completions(lp, 3)] == ["one", "two", "lead"]
    for each in (one, two):
        done = (await each.refresh()).events[-1]
        assert (each.phase, done.actor, done.data["reason"]) == (
            "completed",
            ADA,
            "its parent was completed",
        )
        with pytest.raises(errors.SessionEnded):
            await each.append("user.message", {"text": "more"}, actor=ADA)
    assert [kid.stop_reason for kid in (await lead.runs.tree()).children] == ["end_turn"] * 2


async def test_one_commit_completes_all_of_them_or_none(lp: limpet.Limpet) -> None:
    """A message that comes to a child at the last moment keeps all of them active."""
    lead, (one, two) = await finished(lp, "one", "two")

    async def writes(session: limpet.Session[Any]) -> None:
        if session.key == lead.key:
            await two.append("user.message", {"text": "wait"}, actor=ADA)

    lp.policies.lifecycle("support", before={("active", "completed"): writes})
    with pytest.raises(errors.GuardFailed, match="two has more to do"):
        await lead.complete(actor=ADA)
    assert [(await each.refresh()).phase for each in (lead, one, two)] == ["active"] * 3


async def test_children_of_delegated_children_are_completed_too(lp: limpet.Limpet) -> None:
    """The lowest first; those that ended otherwise stay as they are."""

    async def delegates(turn: limpet.Turn) -> None:
        if turn.inputs[0].type == "user.message":
            below = {"support": "research", "research": "reading"}[turn.session.app]
            await turn.delegate(below, "look")

    lead = await lp.create("support", "ada", "lead", actor=ADA)
    await lead.append("user.message", {"text": "hi"}, actor=ADA)
    await lp.wake(lead.key, delegates)
    (child,) = await lead.runs.children()
    await lp.wake(child, delegates)
    (below,) = await lp.session(child).runs.children()
    for key in (below, child, lead.key):
        await lp.wake(key, says)
    ended = await lp.spawn(lead, task="look", id="ended")
    await ended.terminate("not needed", actor=ADA)
    gone = await lp.spawn(lead, task="look", id="gone")
    await lp.delete(gone.key)
    await lead.complete(actor=ADA)
    order = await completions(lp, 3)
    assert [id for id, _ in order] == [below.id, child.id, lead.id]
    assert (await ended.refresh()).phase == "terminated"


async def test_a_child_that_may_not_be_completed_keeps_its_parent(lp: limpet.Limpet) -> None:
    """The exit criteria of its app hold for it; one that was suspended is resumed first."""
    lead, (one, two) = await finished(lp, "one", "two")

    def answered(session: limpet.Session[Any]) -> bool | str:
        return session.key != two.key or "answer" in session.values or "no answer yet"

    lp.policies.lifecycle("support", exit_criteria=[answered])
    with pytest.raises(errors.GuardFailed, match="ada/two cannot be completed: no answer yet"):
        await lead.complete(actor=ADA)
    assert (await one.refresh()).phase == "active"
    await two.append("note.made", actor=ADA, set={"answer": 42})
    await one.suspend(actor=ADA)
    await lead.complete(actor=ADA)
    phases = [event.type for event in await one.read() if event.type.startswith("session.re")]
    assert phases == ["session.resumed", "session.reactivated"]
    assert [(await each.refresh()).phase for each in (one, two)] == ["completed"] * 2


async def test_many_children_are_completed_some_at_a_time(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of them with the parent: what dies between two commits leaves it active, and the
    next call finishes."""
    monkeypatch.setattr(transitions, "FINISHED_PER_COMMIT_MAX", 2)
    lead, made = await finished(lp, *"abcde")
    done: list[str] = []

    def dies(session: limpet.Session[Any]) -> None:
        done.append(session.id)
        if session.key == lead.key and done.count(lead.id) == 1:
            raise OSError("as if the process had died")

    lp.policies.lifecycle("support", before={("active", "completed"): dies})
    with pytest.raises(OSError, match="died"):
        await lead.complete(actor=ADA)
    phases = [(await each.refresh()).phase for each in (*made, lead)]
    assert phases == ["completed"] * 4 + ["active"] * 2
    await lead.complete(actor=ADA)
    order = await completions(lp, 6)
    assert [id for id, _ in order] == [*"abcde", "lead"]
    assert [done.count(id) for id in "abcd"] == [1] * 4, "hooks of what was completed ran once"


async def test_hooks_after_its_completion_see_the_child(lp: limpet.Limpet) -> None:
    """As of any session that is completed, with the event."""
    seen = []

    def after(session: limpet.Session[Any], done: limpet.Transition) -> None:
        seen.append((session.id, session.phase, done.event and done.event.type))

    lp.policies.lifecycle("support", after={("active", "completed"): after})
    lead, _ = await finished(lp, "one")
    await lead.complete(actor=ADA)
    assert seen == [(id, "completed", "session.completed") for id in ("one", "lead")]


@pytest.mark.parametrize("served", [False, True])
async def test_who_may_complete_the_parent_completes_children_in_their_own_tasks(
    served: bool,
) -> None:
    """In its process in one commit; a client that may not enter them has the server do it."""
    async with limpet.open("memory://") as lp, serving(lp) as url:
        lead, (one,) = await finished(lp, "one")
        key, token = await AccessKeys(journal_of(lp)).create(
            role="owner", app="support", user="ada"
        )
        ada = limpet.open(url, token=token) if served else lp.acting_as(key.principal)
        viewer = lp.acting_as(Principal("user:ada", role="viewer", app="support", user="ada"))
        async with ada:
            for who in (viewer, ada):
                with pytest.raises(errors.AccessDenied):
                    await who.get(one.key)
            with pytest.raises(errors.AccessDenied):
                await viewer.session(lead.key).complete()
            assert (await one.refresh()).phase == "active"
            await one.append("user.message", {"text": "more"}, actor=ADA)
            with pytest.raises(errors.GuardFailed, match="more to do"):
                await ada.session(lead.key).complete()
            await lp.wake(one.key, says)
            await ada.session(lead.key).complete()
        (first, at), (last, end) = await completions(lp, 2)
        assert (first, last) == ("one", "lead")
        assert served or at <= end
        done = (await one.refresh()).events[-1]
        assert (one.phase, done.actor) == ("completed", ADA)
        if not served:
            acts = [(each.resource, each.action) for each in (await lp.audit(limit=9)).items]
            assert {(f"support/ada/{id}", "lifecycle") for id in ("one", "lead")} <= set(acts)


@pytest.mark.parametrize("ahead", [0, 1])
async def test_a_child_at_work_is_not_completed_by_naming_a_version_to_come(ahead: int) -> None:
    """Who may not enter it cannot wait for the moment in which a commit would fit."""
    async with limpet.open("memory://") as lp:
        lead, (one,) = await finished(lp, "one")
        await one.append("user.message", {"text": "more"}, actor=ADA)
        owner = Principal(ADA, role="owner", app="support", user="ada")
        journal = journal_of(lp.acting_as(owner))
        done = [
            journal.prepare(transition("active", "complete", to="completed"), ADA) for _ in range(2)
        ]
        parent = Commit(lead.key, (done[0],), uid=lead.head.uid)
        child = Commit(one.key, (done[1],), one.version + ahead, uid=one.head.uid)
        with pytest.raises(errors.AccessDenied):
            await journal.commit((child, parent))
        assert (await one.refresh()).phase == "active"


async def test_a_completed_child_of_a_sealed_store_has_its_receipt(tmp_path: Path) -> None:
    """Signed when it was completed, as that of its parent."""
    keys = key_file(tmp_path / "masters")
    url = f"sqlite:///{tmp_path}/limpet.db"
    async with limpet.open(url, keys=keys, keyring=f"sqlite:///{tmp_path}/ring.db") as lp:
        lead, (one,) = await finished(lp, "one")
        await lead.complete(actor=ADA)
        for each in (lead, await one.refresh()):
            receipt = await each.receipt()
            assert receipt.version == each.version
            limpet.check_receipt(receipt, public_key=lp.keys.public_key)


async def test_racing_completions_complete_each_once(lp: limpet.Limpet) -> None:
    """One of the callers ends the parent; the other finds it ended."""
    lead, (one,) = await finished(lp, "one")
    again = await lp.get(lead.key)
    results = await asyncio.gather(
        lead.complete(actor=ADA), again.complete(actor=ADA), return_exceptions=True
    )
    refused = [each for each in results if isinstance(each, BaseException)]
    assert [type(each) for each in refused] == [errors.InvalidTransition]
    types = [event.type for event in await one.read()]
    assert types.count("session.completed") == 1


@pytest.mark.parametrize("way", ["in one commit", "some at a time", "served"])
async def test_a_policy_that_keeps_a_child_keeps_its_parent(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who completes a parent ends no session that the user's policies hold; and what is ended of
    its children is in the audit."""
    pytest.importorskip("cedarpy")
    policies = tmp_path / "p.cedar"
    policies.write_text(
        "permit (principal, action, resource);\n"
        '@id("held") forbid (principal, action == Action::"lifecycle", resource)\n'
        'when { resource.hasTag("hold") };\n'
    )
    if way == "some at a time":
        monkeypatch.setattr(transitions, "FINISHED_PER_COMMIT_MAX", 1)
    async with limpet.open("memory://", policies=policies) as lp, serving(lp) as url:
        lead, (one, two) = await finished(lp, "one", "two")
        key, token = await AccessKeys(journal_of(lp)).create(
            role="owner", app="support", user="ada"
        )
        ada = limpet.open(url, token=token) if way == "served" else lp.acting_as(key.principal)
        async with ada:
            for held in (one, two):
                await held.label({"hold": "yes"}, actor=ADA)
                with pytest.raises(errors.AccessDenied, match=f"support/ada/{held.id}"):
                    await ada.session(lead.key).complete()
                phases = [(await each.refresh()).phase for each in (one, two, lead)]
                assert phases == ["active"] * 3
                await held.label({"hold": None}, actor=ADA)
            await ada.session(lead.key).complete()
        audit = (await lp.audit(principal=ADA, denied=False, limit=50)).items
        ended = {each.resource for each in audit if each.action == "lifecycle"}
        assert ended == {f"support/ada/{id}" for id in ("one", "two", "lead")}
