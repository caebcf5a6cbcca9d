"""Moving a family, the sessions of one user of an app, to another tier: a copy, and a check."""

from __future__ import annotations

from pathlib import Path

import limpet


async def test_a_family_is_copied_whole_and_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/two.db"
    async with limpet.open("memory://") as lp, limpet.open(url) as other:
        for user in ("ada", "bob"):
            s = await lp.create("support", user, "one", state={"n": 0})
            await s.append(
                "agent.step", actor="agent:a", set={"n": 1, "user:plan": user, "app:shared": 1}
            )
        await lp.create("sales", "ada", "one")
        copied = await lp.copy(app="support", user="ada", to=other, check=True)
        assert (copied.sessions, copied.checked, copied.ok) == (1, 1, True)
        heads = (await other.list()).items
        assert [head.key for head in heads] == [limpet.Key("support", "ada", "one")]
        there = await other.get("support", "ada", "one")
        assert dict(there.state) == {"n": 1, "user:plan": "ada", "app:shared": 1}


async def test_the_check_names_what_differs(tmp_path: Path) -> None:
    """Written to since it was copied: the copy alone would say that all is well."""
    async with limpet.open("memory://") as lp, limpet.open("memory://") as other:
        s = await lp.create("support", "ada", "one")
        await lp.copy(app="support", user="ada", to=other)
        there = await other.get(s.key)
        await there.append("agent.step", actor="agent:a")  # here, and not at the source
        plain = await lp.copy(app="support", user="ada", to=other)
        assert plain.ok
        checked = await lp.copy(app="support", user="ada", to=other, check=True)
        assert not checked.ok
        assert [(each.key, each.code) for each in checked.refused] == [(s.key, "copy.differs")]
