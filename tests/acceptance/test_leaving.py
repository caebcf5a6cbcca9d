"""Children that are deleted or erased: their parents wait no longer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import limpet
from limpet.model.limits import UPDATE_TRIES_MAX
from limpet.session.life.archive_storage import open_archive
from limpet.session.runs.delegation import head_of, notify_parent
from limpet.store.memory import MemoryStore
from limpet.store.protocol import KeyOwner
from tests.support.seal import FixedKeySeal

ADA = "user:ada"
Ways = Callable[[limpet.Limpet, limpet.Key], Awaitable[Any]]
WAYS: dict[str, Ways] = {
    "delete": lambda lp, key: lp.delete(key),
    "erase": lambda lp, key: lp.erase(key),
    "erase and keep forks": lambda lp, key: lp.erase(key, forks="keep"),
    "erase_user": lambda lp, key: lp.erase_user(key.app, key.user),
}


async def waits(turn: limpet.Turn) -> None:
    if turn.inputs[0].type == "user.message":
        child = await turn.delegate("research", "look", budget=0.2)
        result = await child.result()
        await turn.say(f"{result['stop_reason']}, {result['summary']}, {result['output']}")


async def spends(turn: limpet.Turn) -> None:
    await turn.say("so far", cost=0.05)
    await turn.ask("shell", {})


async def begun(lp: limpet.Limpet) -> tuple[limpet.Session[Any], limpet.Key]:
    """A parent that waits, and its child, which has used a part of its budget."""
    s = await lp.create("support", "ada", "p", budget=1.0)
    await s.append("user.message", {"text": "hi"}, actor=ADA)
    await lp.wake(s.key, waits)
    (child,) = await s.runs.children()
    await lp.wake(child, spends)
    return s, child


async def said(s: limpet.Session[Any]) -> list[str]:
    return [event.data["text"] for event in await s.read(types=["agent.message"])]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_a_parent_is_woken_when_its_child_is_removed(lp: limpet.Limpet, way: Ways) -> None:
    """It learns how the child ended, and has back what the child had not used."""
    s, child = await begun(lp)
    await way(lp, child)
    assert [lease.key for lease in await lp.work.claim("w", app="support")] == [s.key]
    await s.refresh()
    assert await s.runs.children() == ()
    assert s.runs.budget is not None
    assert s.runs.budget.remaining.cost == pytest.approx(0.95)
    with pytest.raises(
        (limpet.errors.SessionDeleted, limpet.errors.SessionErased, limpet.SessionNotFound)
    ):
        await lp.get(child)


async def test_the_turn_goes_on_with_a_result(lp: limpet.Limpet) -> None:
    """As of a child that was terminated, with the reason in words; once, however often deleted."""
    s, child = await begun(lp)
    assert await lp.delete(child)
    assert not await lp.delete(child)
    assert (await lp.wake(s.key, waits)).error is None
    assert await said(s) == ["terminated, deleted, None"]
    assert len(await s.read(types=["session.child_ended"])) == 1


async def test_a_deletion_that_died_in_the_middle_is_finished_by_the_next(
    lp: limpet.Limpet,
) -> None:
    """The parent has its result; the child that is left works for nobody, and tells nobody."""
    s, child = await begun(lp)
    await notify_parent(lp._journal, child)  # and the process dies
    await (await lp.get(child)).append("user.message", {"text": "go on"}, actor=ADA)
    assert (await lp.wake(child, spends)).error is None
    assert await lp.delete(child)
    assert (await lp.wake(s.key, waits)).error is None
    assert await said(s) == ["terminated, deleted, None"]
    assert len(await s.read(types=["session.child_ended"])) == 1
    assert (await lp.maintenance.verify()).ok


class BusyStore(MemoryStore):
    """A store in which a session goes on whenever somebody has looked at its head."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on: Callable[[], Awaitable[Any]] | None = None
        self.left = 0

    async def heads(self, *args: Any, **how: Any) -> Any:
        found = await super().heads(*args, **how)
        if self.goes_on is not None and self.left:
            self.left -= 1
            await self.goes_on()
        return found


async def test_a_child_that_goes_on_meanwhile_is_looked_at_again() -> None:
    """As often as it takes, and not without an end: then nobody was told."""
    store = BusyStore()
    async with limpet.Limpet("memory://", store=store) as lp:
        s, child = await begun(lp)
        busy = lp.session(child, actor=ADA)
        store.goes_on = lambda: busy.append("note.taken", {})
        store.left = UPDATE_TRIES_MAX
        with pytest.raises(limpet.SessionConflict):
            await notify_parent(lp._journal, child)
        assert (await s.runs.children(), store.left) == ((child,), 0)
        store.left = 2
        await notify_parent(lp._journal, child)
        (ended,) = await s.read(types=["session.child_ended"])
        assert (ended.actor, await s.runs.children()) == ("system:operator", ())


async def test_a_child_that_was_interrupted_with_its_parent_is_removed_without_news(
    lp: limpet.Limpet,
) -> None:
    """Also if the worker of the parent died before it let go of it: the budget comes back."""
    s, child = await begun(lp)
    await lp.session(child, actor=ADA).append("user.interrupt", {"by": "parent"})
    await lp.delete(child)
    assert await s.runs.children() == ()
    assert await s.read(types=["session.child_ended"]) == ()
    assert s.runs.budget is not None
    assert s.runs.budget.remaining.cost == pytest.approx(0.95)


async def test_a_session_is_found_beside_those_whose_ids_begin_with_its_own(
    lp: limpet.Limpet,
) -> None:
    """By the whole key; nothing is found for a key that is only the beginning of one."""
    for id in ("order", "order-7", "order-8"):
        await lp.create("support", "ada", id)
    found = await head_of(lp._journal, limpet.Key("support", "ada", "order"))
    assert found is not None
    assert found.key.id == "order"
    assert await head_of(lp._journal, limpet.Key("support", "ada", "ord")) is None


async def test_a_fork_of_a_child_is_removed_alone(lp: limpet.Limpet) -> None:
    """It works for nobody."""
    s, child = await begun(lp)
    fork = await (await lp.get(child)).fork(actor=ADA)
    assert await lp.delete(fork.key)
    assert await s.runs.children() == (child,)
    assert await s.read(types=["session.child_ended"]) == ()


async def test_a_suspended_child_is_removed_like_any_other(lp: limpet.Limpet) -> None:
    """Its parent waited for it, in this phase as in others."""
    s, child = await begun(lp)
    await (await lp.get(child)).suspend(actor=ADA)
    await lp.delete(child)
    assert (await lp.wake(s.key, waits)).error is None
    assert await said(s) == ["terminated, deleted, None"]


async def test_what_is_refused_tells_nobody(lp: limpet.Limpet) -> None:
    """A child that has forks stays, and its parent waits on."""
    s, child = await begun(lp)
    await (await lp.get(child)).fork(actor=ADA)
    with pytest.raises(limpet.errors.SessionHasForks):
        await lp.erase(child)
    assert await s.runs.children() == (child,)


@pytest.mark.parametrize("how", ["terminate", "delete"])
async def test_a_child_outlives_its_parent_and_is_removed(lp: limpet.Limpet, how: str) -> None:
    """A parent that has ended hears nothing, and the child goes all the same."""
    s, child = await begun(lp)
    if how == "delete":
        await lp.delete(s.key)
    else:
        await s.terminate(actor=ADA)
    assert await lp.delete(child)
    if how != "delete":
        await s.refresh()
        assert (await s.runs.children(), await s.read(types=["session.child_ended"])) == ((), ())
    assert (await lp.maintenance.verify()).ok


async def test_erasing_a_user_erases_parents_and_children_of_the_app(lp: limpet.Limpet) -> None:
    """Nobody is woken who goes too."""

    async def delegates(turn: limpet.Turn) -> None:
        await (await turn.delegate("support", "look")).result()

    s = await lp.create("support", "ada", "p")
    await s.append("user.message", {"text": "hi"}, actor=ADA)
    await lp.wake(s.key, delegates)
    assert len((await lp.erase_user("support", "ada")).sessions) == 2
    assert await lp.work.claim("w", app="support") == ()


class Unreachable(FixedKeySeal):
    """A seal whose keys cannot be fetched. What keeps them can still destroy them."""

    async def ready(self, owners: Sequence[KeyOwner]) -> None:
        raise ConnectionError("the key service does not answer")


@pytest.mark.parametrize("way", WAYS)
async def test_a_session_ends_without_the_keys_of_its_bodies(tmp_path: Path, way: str) -> None:
    """Nothing of it is opened to find whether another session waits for it."""
    url = f"sqlite:///{tmp_path}/store.db"
    async with limpet.open(url, seal=FixedKeySeal()) as lp:
        state = {"secret": 1, "app:motd": "sealed, too, and it stays"}
        s = await lp.create("support", "ada", "c", state=state, actor=ADA)
        await s.append("note.made", {"text": "sealed"})
    async with limpet.open(url, seal=Unreachable()) as lp:
        with pytest.raises(limpet.errors.SealUnavailable):
            await lp.get(s.key)
        await WAYS[way](lp, s.key)
        with pytest.raises((limpet.errors.SessionDeleted, limpet.errors.SessionErased)):
            await lp.get(s.key)
        assert await lp.get_many([s.key, ("support", "ada", "never")]) == (None, None)


@pytest.mark.parametrize("archived", [False, True])
async def test_children_in_other_apps_are_named_when_their_user_is_erased(
    lp: limpet.Limpet, tmp_path: Path, archived: bool
) -> None:
    """They have the words of the user, and stay: also if the log that names them is archived."""
    archive = open_archive(f"file://{tmp_path}/cold")
    lp._opened = structs.replace(lp._services, archive=archive)

    async def delegates(turn: limpet.Turn) -> None:
        if turn.inputs[0].type == "user.message":
            await turn.delegate("research", turn.inputs[0].data["text"])

    s = await lp.create("support", "ada", "p", budget=1.0)
    await s.append("user.message", {"text": "my secret"}, actor=ADA)
    await limpet.Worker(lp, delegates, app="support", idle_exit=True).run()
    (child,) = await s.runs.children()
    if archived:
        await lp.session(child).complete(actor=ADA)
        for app in ("research", "support"):
            await limpet.Worker(lp, delegates, app=app, idle_exit=True).run()
        await s.terminate(actor=ADA)
        await limpet.Worker(lp, delegates, app="support", idle_exit=True).run()
        await lp.session(s.key).archive(actor=ADA)
    done = await lp.erase_user("support", "ada")
    assert done.children == (child,)
    assert f"left in other apps: {child}" in str(done)
    assert (await lp.erase_user("research", "ada")).children == ()
    assert await lp.find(child) is None
