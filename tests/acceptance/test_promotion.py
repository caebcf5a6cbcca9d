"""Learnings of an agent, and the gates to its curated memory."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

import limpet
from limpet.model.commit import Commit
from limpet.session.documents import Internal
from limpet.store.memory import MemoryStore
from limpet.store.protocol import Committed

ADA = "user:ada"
LESSON = "Ask for the order number."


async def learns(turn: limpet.Turn) -> None:
    await turn.learn("lesson", LESSON)
    await turn.say("done")


async def learned(lp: limpet.Limpet, id: str) -> limpet.Session[Any]:
    """A session that has an outcome, and has learned a lesson."""
    s = await lp.create("support", "ada", id)
    await s.outcome.define("deliver", criteria=["it is there"])
    assert (await lp.wake(s.key, learns)).error is None
    return await s.refresh()


async def the_lesson(lp: limpet.Limpet) -> limpet.Learning:
    (found,) = await lp.learnings("support")
    return found


async def test_without_gates_a_learning_is_promoted_once(lp: limpet.Limpet) -> None:
    """An item of the memory is one document, put once; the text is rendered, not a transcript."""
    await learned(lp, "one")
    lesson = await the_lesson(lp)
    first = await lp.promote("support", lesson)
    assert await lp.promote("support", lesson) == first
    text = await lp.memory_of("support")
    assert text == f"# What support has learned\n\n## Lessons\n\n- {LESSON}\n"
    (item,) = (await Internal(lp._journal, "curated").list()).items
    assert (item.name, item.version) == (first.name, 1)


async def test_a_verdict_opens_the_gate(lp: limpet.Limpet) -> None:
    """Refused until the outcome was evaluated as good; the session records the promotion."""
    s = await learned(lp, "one")
    await lp.policies.gates("support", limpet.Gates(grade="done_candidate", verdict="pass"))
    lesson = await the_lesson(lp)
    for verdict in (None, False):
        if verdict is not None:
            await s.outcome.evaluate(lambda outcome, evidence: False)
        with pytest.raises(limpet.errors.PromotionRefused) as info:
            await lp.promote("support", lesson, session=s.key)
        found = "was not evaluated" if verdict is None else "was evaluated as fail"
        assert info.value.unmet == (f"the outcome {found}, and pass is needed",)
    assert await lp.memory_of("support") == ""
    await s.outcome.evaluate(lambda outcome, evidence: True)
    assert await s.outcome.unmet(limpet.Gates(verdict="pass")) == await s.outcome.unmet() == ()
    await lp.promote("support", lesson, session=s.key, actor=ADA)
    assert LESSON in await lp.memory_of("support")
    (event,) = await s.read(types=["audit.*"])
    assert (event.data["learning"], event.data["verdict"]) == (lesson.id, "pass")
    assert event.actor == ADA


async def test_a_grade_below_the_gate_is_refused(lp: limpet.Limpet) -> None:
    """A session that has work to do is not done, whatever was said of it before."""
    s = await learned(lp, "one")
    await s.outcome.evaluate(lambda outcome, evidence: True)
    await lp.policies.gates("support", limpet.Gates(grade="done_candidate"))
    await s.append("user.message", {"text": "and?"}, actor=ADA)
    with pytest.raises(limpet.errors.PromotionRefused, match="graded in_progress"):
        await lp.promote("support", await the_lesson(lp), session=s.key)


async def test_a_gate_on_an_outcome_needs_a_session_that_learned_it(lp: limpet.Limpet) -> None:
    """Without one, or with another session, nothing is promoted."""
    await learned(lp, "one")
    await lp.policies.gates("support", limpet.Gates(grade="missing"))
    lesson = await the_lesson(lp)
    with pytest.raises(limpet.errors.PromotionRefused, match="no session= was given"):
        await lp.promote("support", lesson)
    other = await lp.create("support", "bob", "two")
    with pytest.raises(limpet.errors.PromotionRefused, match="has not learned it"):
        await lp.promote("support", lesson, session=other.key)
    assert await lp.memory_of("support") == ""


async def test_sessions_that_learned_it_are_counted_once_each(lp: limpet.Limpet) -> None:
    """Twice by one session is once; the second session opens the gate. No user is named."""
    s = await learned(lp, "one")
    await s.append("user.message", {"text": "again"}, actor=ADA)
    await lp.wake(s.key, learns)
    await lp.policies.gates("support", limpet.Gates(sessions=2))
    with pytest.raises(limpet.errors.PromotionRefused, match="1 of 2 sessions"):
        await lp.promote("support", await the_lesson(lp))
    await learned(lp, "two")
    lesson = await the_lesson(lp)
    assert lesson.sessions == 2
    await lp.promote("support", lesson)
    (document,) = (await Internal(lp._journal, "learnings").list()).items
    assert re.search(r"\bada\b", str(dict(document.value))) is None


async def test_a_learning_that_says_it_was_learned_often_is_counted_again(
    lp: limpet.Limpet,
) -> None:
    """The store counts, not the object that was passed."""
    await learned(lp, "one")
    await lp.policies.gates("support", limpet.Gates(sessions=2))
    lesson = await the_lesson(lp)
    boast = limpet.Learning(lesson.id, lesson.kind, lesson.text, sessions=99)
    made_up = limpet.Learning("0" * 32, "lesson", "Trust me.", sessions=99)
    for each in (boast, made_up):
        with pytest.raises(limpet.errors.PromotionRefused):
            await lp.promote("support", each)


async def test_only_the_kinds_of_the_gate_are_promoted(lp: limpet.Limpet) -> None:
    """And taking the gates away lets everything in again; their history stays."""
    await learned(lp, "one")
    lesson = await the_lesson(lp)
    await lp.policies.gates("support", limpet.Gates(kinds=("correction",)))
    with pytest.raises(limpet.errors.PromotionRefused, match="it is a lesson"):
        await lp.promote("support", lesson)
    await lp.policies.gates("support", None)
    assert await lp.policies.gates_of("support") == limpet.Gates()
    await lp.promote("support", lesson)
    assert len(await Internal(lp._journal, "gates").history("support")) == 2


async def test_racing_promotions_lose_nothing(lp: limpet.Limpet) -> None:
    """Two learnings at once are both in the memory; one of them twice is in it once."""

    async def two(turn: limpet.Turn) -> None:
        await turn.learn("lesson", "one")
        await turn.learn("error", "two")

    s = await lp.create("support", "ada", "x")
    await s.append("user.message", {"text": "hi"}, actor=ADA)
    await lp.wake(s.key, two)
    found = await lp.learnings("support")
    await asyncio.gather(*(lp.promote("support", each, session=s.key) for each in found * 2))
    text = await lp.memory_of("support")
    assert (text.count("- one\n"), text.count("- two\n")) == (1, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"verdict": "good"},
        limpet.Gates(verdict="good"),  # type: ignore[arg-type]  # what is refused
        limpet.Gates(grade="done"),  # type: ignore[arg-type]
        limpet.Gates(sessions=0),
        limpet.Gates(kinds=()),
    ],
)
async def test_gates_are_checked_before_they_are_kept(lp: limpet.Limpet, wrong: Any) -> None:
    """What nobody could meet or read is refused."""
    with pytest.raises(limpet.InvalidInput):
        await lp.policies.gates("support", wrong)
    assert await lp.policies.gates_of("support") == limpet.Gates()


async def test_a_completed_session_still_promotes(lp: limpet.Limpet) -> None:
    """What was learned counts after the end of the session that learned it."""
    s = await learned(lp, "one")
    await s.outcome.evaluate(lambda outcome, evidence: True)
    await s.complete(actor=ADA)
    await lp.policies.gates("support", limpet.Gates(verdict="pass"))
    await lp.promote("support", await the_lesson(lp), session=s.key)
    assert LESSON in await lp.memory_of("support")


class Meddling(MemoryStore):
    """A store in which something happens just before a commit."""

    before: Callable[[], Awaitable[Any]] | None = None

    async def commit(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        if self.before is not None:
            before, self.before = self.before, None
            await before()
        return await super().commit(commits)


async def test_a_verdict_that_changes_meanwhile_is_looked_at_again() -> None:
    """The promotion is recorded on the version of the session that was judged, or not at all."""
    store = Meddling()
    async with limpet.Limpet("memory://", store=store) as lp:
        s = await learned(lp, "one")
        await s.outcome.evaluate(lambda outcome, evidence: True)
        await lp.policies.gates("support", limpet.Gates(verdict="pass"))
        lesson = await the_lesson(lp)
        store.before = lambda: lp.session(s.key, actor=ADA).outcome.evaluate(lambda o, e: False)
        with pytest.raises(limpet.errors.PromotionRefused, match="evaluated as fail"):
            await lp.promote("support", lesson, session=s.key)
        assert await lp.memory_of("support") == ""
