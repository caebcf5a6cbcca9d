"""The journal: what every write passes."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

import limpet
from limpet import Limpet, MigrationRegistry, State, errors
from limpet.store.memory import MemoryStore

KEY = ("chat", "ada", "c1")


class Old(State):
    schema_version: ClassVar[str] = "1.0.0"
    plan: str = ""


class New(State):
    schema_version: ClassVar[str] = "2.0.0"
    goal: str = ""


REGISTRY = MigrationRegistry()


@REGISTRY.migration("1.0.0", "2.0.0")
def _renamed(fields: dict[str, Any]) -> dict[str, Any]:
    return {"goal": fields["plan"]}


class Failing(MemoryStore):
    """Fails where it is told to, without saying whether it has recorded anything."""

    fails = False

    async def commit(self, commits: Any) -> Any:
        answers = await super().commit(commits)
        if self.fails:
            raise errors.StoreFailed("memory", "the answer was lost")
        return answers


async def test_a_failed_write_names_the_ids_to_send_again() -> None:
    """One event, several, and those of a commit over several sessions, in order."""
    store = Failing()
    async with Limpet("memory://", store=store) as lp:
        one = await lp.create(*KEY, actor="x")
        two = await lp.create("chat", "bob", "c1", actor="x")
        store.fails = True
        with pytest.raises(errors.StoreFailed) as info:
            await one.append("a.b", id="e1")
        assert info.value.ids == ("e1",)
        c = lp.commit()
        await c.__aenter__()
        c.append(one, "a.b", id="e2")
        c.append(two, "a.b", id="e3")
        with pytest.raises(errors.StoreFailed) as info:
            await c.__aexit__(None, None, None)
        assert info.value.ids == ("e2", "e3")
        store.fails = False
        assert (await one.append("a.b", id="e1")).repeated


async def test_a_failed_migration_on_load_names_the_ids_too() -> None:
    """What was recorded is found under that id, and the next load does nothing more."""
    store = Failing()
    async with Limpet("memory://", store=store) as lp:
        await lp.create(*KEY, state=Old(plan="p"), actor="x")
        store.fails = True
        with pytest.raises(errors.StoreFailed) as info:
            await lp.get(*KEY, state_type=New, migrations=REGISTRY)
        store.fails = False
        (migrated,) = await (await lp.get(*KEY)).read(types=["state.migrated"])
        assert info.value.ids == (migrated.id,)
        again = await lp.get(*KEY, state_type=New, migrations=REGISTRY)
        assert (again.state.goal, again.version) == ("p", 2)


async def test_nothing_is_asked_of_a_closed_journal() -> None:
    """Every verb of a session that outlives its Limpet raises StoreClosed."""
    async with limpet.open("memory://") as lp:
        s = await lp.create(*KEY, actor="x")
    for call in (
        lambda: s.append("a.b"),
        lambda: s.refresh(),
        lambda: s.update(lambda state: {"n": 1}),
        lambda: s.record(limpet.facts.prioritized(1)),
        lambda: s.append("a.b", partial=True),
    ):
        with pytest.raises(errors.StoreClosed):
            await call()


async def test_record_takes_facts_only() -> None:
    """A draft of a reserved type that no constructor made is refused, alone and in a commit."""
    async with limpet.open("memory://") as lp:
        s = await lp.create(*KEY, actor="x")
        forged: Any = limpet.Draft(type="session.labeled", data={"labels": 5})
        with pytest.raises(errors.InvalidInput, match=r"limpet\.facts"):
            await s.record(forged)
        with pytest.raises(errors.ReservedType):
            await s.append_many([forged])
        with pytest.raises(errors.InvalidInput, match=r"limpet\.facts"):
            async with lp.commit() as c:
                c.record(s, forged)
        events = await s.record(limpet.facts.labeled({"a": "b"}), limpet.facts.prioritized(3))
        assert [event.type for event in events] == ["session.labeled", "session.prioritized"]
        assert (s.labels, s.head.priority, s.version) == ({"a": "b"}, 3, 3)
