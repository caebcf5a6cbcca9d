"""The inbox and the status of a store, as a person who looks after it asks for them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import limpet
from limpet.errors import InvalidCursor, InvalidQuery


async def ask(turn: limpet.Turn) -> None:
    """Asks for what the message says."""
    word = turn.inputs[0].data["text"]
    if word == "question":
        await turn.ask("which", {"of": [1, 2]})
    elif word == "fail":
        raise RuntimeError("no")
    elif word != "nothing":
        await turn.approve("refund", {"order": 7}, deadline=timedelta(hours=1), otherwise="deny")


async def begin(lp: limpet.Limpet, id: str, word: str, **key: str) -> limpet.Session:
    s = await lp.create(key.get("app", "support"), key.get("user", "ada"), id, actor="user:ada")
    await s.append("user.message", {"text": word}, actor="user:ada")
    await lp.wake(s.key, ask, retries=0)
    return await lp.get(s.key)


async def test_the_inbox_says_who_waits_for_what_since_when(lp: limpet.Limpet) -> None:
    """The oldest first, with the request as the session itself shows it."""
    one = await begin(lp, "one", "approve")
    two = await begin(lp, "two", "question", app="sales", user="bob")
    await begin(lp, "three", "nothing")
    page = await lp.inbox()
    assert [w.key for w in page.items] == [one.key, two.key]
    first, second = page.items
    assert isinstance(first, limpet.Waiting)
    assert (first.request,) == one.blocked_on
    assert (second.request,) == two.blocked_on
    assert (first.request.kind, first.request.input) == ("approval", {"order": 7})
    assert first.deadline is not None
    assert first.deadline - first.since < timedelta(hours=1, seconds=5)
    assert second.deadline is None
    assert one.head.created_at <= first.since <= second.since <= lp.now()


async def test_the_inbox_is_filtered_and_paged(lp: limpet.Limpet) -> None:
    """By app, user and kind; a cursor goes on where the page ended and fits its own query only."""
    for number in range(5):
        await begin(lp, f"a{number}", "approve")
    await begin(lp, "q", "question", user="bob")
    await begin(lp, "s", "question", app="sales")
    assert [w.key.id for w in (await lp.inbox(app="support", user="bob")).items] == ["q"]
    assert {w.key.id for w in (await lp.inbox(kind="question")).items} == {"q", "s"}
    met: list[str] = []
    cursor = None
    while True:
        page = await lp.inbox(app="support", limit=2, cursor=cursor)
        met += [w.key.id for w in page.items]
        if page.cursor is None:
            break
        cursor = page.cursor
    assert met == ["a0", "a1", "a2", "a3", "a4", "q"]
    with pytest.raises(InvalidCursor):
        await lp.inbox(app="sales", cursor=cursor)
    with pytest.raises(InvalidCursor):
        await lp.inbox(cursor="nonsense")
    with pytest.raises(InvalidQuery, match="kind is one of"):
        await lp.inbox(kind="anything")  # type: ignore[arg-type]
    with pytest.raises(InvalidQuery, match="name the app"):
        await lp.inbox(user="bob")


async def test_what_is_answered_leaves_the_inbox(lp: limpet.Limpet) -> None:
    """An answer, an interrupt and the end of the session each take it out."""
    one, two, three = [await begin(lp, id, "approve") for id in ("one", "two", "three")]
    await one.confirm(one.blocked_on[0].id, allow=True)
    await two.interrupt()
    assert [w.key for w in (await lp.inbox()).items] == [three.key]
    await three.terminate()
    assert (await lp.inbox()).items == ()


async def test_a_session_with_requests_in_the_inbox_is_sound(lp: limpet.Limpet) -> None:
    """The labels that find them are not the user's, and verification knows them."""
    one = await begin(lp, "one", "approve")
    assert dict(one.labels) == {}
    await one.label({"plan": "gold"}, actor="user:ada")
    assert dict(one.labels) == {"plan": "gold"}
    assert (await lp.maintenance.verify()).ok
    assert [w.key for w in (await lp.inbox()).items] == [one.key]
    assert [head.key for head in (await lp.list(app="support", labels={"plan": "gold"})).items]
    await one.confirm(one.blocked_on[0].id, allow=True)
    assert dict(one.labels) == {"plan": "gold"}
    assert (await lp.maintenance.verify()).ok


async def test_the_status_counts_sessions_by_what_they_need(lp: limpet.Limpet) -> None:
    """By status and phase, and due, leased, blocked and dead, of all apps or of one."""
    await begin(lp, "blocked", "approve")
    await begin(lp, "dead", "fail")
    await begin(lp, "idle", "nothing")
    await (await begin(lp, "ended", "nothing")).terminate()
    due = await lp.create("support", "ada", "due")
    await due.append("user.message", {"text": "hi"}, actor="user:ada")
    leased = await lp.create("sales", "ada", "leased")
    await lp.work.lock(leased.key, worker="w")
    status = await lp.status()
    assert (status.sessions, status.complete) == (6, True)
    assert (status.due, status.leased, status.blocked, status.dead, status.held) == (1, 1, 1, 1, 0)
    assert status.by_status == {"idle": 4, "running": 1, "rescheduling": 0, "terminated": 1}
    phases: dict[str, Any] = {name: n for name, n in status.by_phase.items() if n}
    assert phases == {"active": 5, "terminated": 1}
    assert status.pending == 3  # due; and the blocked and the dead one keep theirs
    sales = await lp.status(app="sales")
    assert (sales.sessions, sales.leased, sales.due) == (1, 1, 0)
    assert (await lp.status(app="nobody")).sessions == 0


def test_both_are_there_without_await(tmp_path: Any) -> None:
    """`limpet.sync` has the same verbs."""
    with limpet.open_sync(f"sqlite:///{tmp_path}/a.db") as lp:
        lp.create("support", "ada", "one")
        assert lp.inbox(app="support").items == ()
        assert lp.status().sessions == 1
