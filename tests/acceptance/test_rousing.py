"""Input in a commit over several sessions rouses those that wait for it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import limpet
from tests.support.deadlines import passed

NOW = timedelta(microseconds=1)  # over when `passed` returns


async def test_a_commit_over_sessions_resumes_each_that_its_input_rouses(lp: limpet.Limpet) -> None:
    """Of three sessions suspended for idleness, the two with input in the commit are active."""
    for id in ("one", "two", "three"):
        await lp.create("support", "ada", id, timeouts=limpet.Timeouts(idle=NOW), actor="user:ada")
    await passed(lp, 3)
    assert (await lp.work.sweep()).suspended == 3
    one, two, three = [await lp.get("support", "ada", id) for id in ("one", "two", "three")]
    async with lp.commit() as c:
        c.append(one, "user.message", {"text": "back"}, actor="user:ada")
        c.append(two, "user.message", {"text": "back"}, actor="user:ada")
    phases = [(await each.refresh()).phase for each in (one, two, three)]
    assert phases == ["active", "active", "suspended"]
    assert [event.type for event in one.events][-3:] == [
        "user.message",
        "session.resumed",
        "session.reactivated",
    ]


async def test_input_in_a_commit_resumes_for_one_who_may_only_write(tmp_path: Path) -> None:
    """The system resumes the session: what a write brings about needs no rights of its own."""
    rules = tmp_path / "rules.cedar"
    rules.write_text(
        "permit(principal, action, resource);\n"
        'forbid(principal, action == Action::"lifecycle", resource);\n'
    )
    agent = limpet.Principal("agent:main", role="agent", app="support")
    async with limpet.open("memory://", policies=rules) as lp:
        await lp.create("support", "ada", "one", timeouts=limpet.Timeouts(idle=NOW))
        await passed(lp, 1)
        assert (await lp.work.sweep()).suspended == 1
        acting = lp.acting_as(agent)
        async with acting.commit() as c:
            c.append(acting.session("support", "ada", "one"), "user.message", {"text": "back"})
        assert (await lp.get("support", "ada", "one")).phase == "active"
