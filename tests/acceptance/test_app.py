"""An app: what is said once holds for all its sessions."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import limpet
from limpet import App, Key, Limpet, MigrationRegistry, State, errors
from limpet.session.sync import facade
from limpet.session.work import StoreWork


class Support(State):
    schema_version: ClassVar[str] = "2.0.0"
    step: str = "greet"


class Old(State):
    schema_version: ClassVar[str] = "1.0.0"
    stage: str = "greet"


class Needy(State):
    goal: str
    step: str = ""


@pytest.fixture
def migrations() -> MigrationRegistry:
    registry = MigrationRegistry()
    registry.register("1.0.0", "2.0.0", lambda fields: {"step": fields["stage"]})
    return registry


@pytest.fixture
def support(lp: Limpet, migrations: MigrationRegistry) -> App[Support]:
    return lp.app("support", state_type=Support, migrations=migrations, actor="agent:main")


async def test_what_is_bound_once_holds_for_every_verb(support: App[Support]) -> None:
    """The name, the class and the actor, in each way to a session."""
    made = await support.create("ada", "c1", labels={"plan": "gold"})
    assert (made.key, made.actor) == (Key("support", "ada", "c1"), "agent:main")
    assert made.events[0].actor == "agent:main"
    for s in (
        await support.get("ada", "c1"),
        await support.find("ada", "c1"),
        await support.get_or_create("ada", "c1"),
        await support.session("ada", "c1").refresh(),
    ):
        assert s is not None
        assert (s.key, s.actor, s.state) == (made.key, "agent:main", Support())
    assert (await support.get("ada", "c1", tail=0, actor="user:ada")).actor == "user:ada"
    assert await support.find("ada", "c2") is None
    assert (await support.get_or_create("ada", "c2", state=Support(step="x"))).state.step == "x"
    assert repr(support) == "<limpet.App support of Support>"


async def test_only_the_sessions_of_the_app_are_listed_watched_and_claimed(
    lp: Limpet, support: App[Support]
) -> None:
    """What another app has is not seen, however alike it is."""
    other = await lp.create("sales", "ada", "c1", labels={"plan": "gold"})
    await other.append("user.message", {"text": "hi"}, actor="user:ada")
    mine = await support.create("ada", "c1", labels={"plan": "gold"})
    await mine.append("user.message", {"text": "hi"})
    await support.create("bob", "c1")
    assert [head.key for head in (await support.list(labels={"plan": "gold"})).items] == [mine.key]
    assert len((await support.list(limit=1)).items) == 1
    assert [head.key.user for head in (await support.list(user="bob")).items] == ["bob"]
    async with asyncio.timeout(60):
        assert (await anext(support.watch())).key == mine.key
        assert (await anext(support.watch(key=("support", "bob", "c1")))).key.user == "bob"
    with pytest.raises(errors.InvalidInput, match="does not belong to the app"):
        support.watch(key=other.key)
    leases = await support.claim("w", limit=9)
    assert [lease.key for lease in leases] == [mine.key]
    held = support.session("ada", "c1", lease=leases[0])
    assert (await held.append("agent.message")).actor == "agent:main"


async def test_a_session_of_an_app_is_migrated_when_it_is_loaded(
    lp: Limpet, support: App[Support]
) -> None:
    """By the migrations that were named once."""
    await lp.create("support", "ada", "c1", state=Old(stage="answered"))
    s = await support.get("ada", "c1")
    assert (s.state.step, s.head.schema_version) == ("answered", "2.0.0")
    assert s.events[-1].actor == "agent:main"


async def test_a_session_begins_with_the_defaults_of_its_class(support: App[Support]) -> None:
    """They are stored under its version, as if the state had been given."""
    s = await support.create("ada")
    assert (s.values, s.head.schema_version) == ({"step": "greet"}, "2.0.0")
    assert (await support.create("ada", state=Support(step="x"))).state.step == "x"


async def test_a_class_that_needs_arguments_asks_for_a_state(lp: Limpet) -> None:
    """Nothing is created; what is there already needs none."""
    needy = lp.app("support", state_type=Needy)
    for make in (needy.create, needy.get_or_create):
        with pytest.raises(errors.InvalidInput, match=r"Needy\(\) needs goal.*state=Needy\(goal=…"):
            await make("ada", "c1")
    assert (await needy.list()).items == ()
    made = await needy.create("ada", "c1", state=Needy(goal="answer"))
    assert (await needy.get_or_create("ada", "c1")).state == made.state == Needy(goal="answer")


async def test_an_app_takes_states_of_its_own_class_only(support: App[Any]) -> None:
    """A state of another would be read as what it is not; found or not, it is refused."""

    class More(Support):
        extra: int = 0

    await support.create("ada", "c1")
    for state in (Old(), More(), {"step": "x"}, 5):
        for make in (support.create, support.get_or_create):
            with pytest.raises(errors.SchemaViolation, match="state must be a Support"):
                await make("ada", "c1", state=state)


async def test_an_app_without_a_class_has_plain_state(lp: Limpet) -> None:
    """A session begins empty, or with the dict that is given; the user counts as creator."""
    support = lp.app("support")
    s = await support.create("ada", "c1")
    assert (s.state, s.actor, s.events[0].actor) == ({}, None, "user:ada")
    assert (await support.create("ada", "c2", state={"step": 1})).state == {"step": 1}
    assert (await support.get("ada", "c2")).state == {"step": 1}


async def test_racing_creators_are_given_one_session(lp: Limpet) -> None:
    """Whoever loses the race loads what the winner made."""
    apps = [lp.app("support", state_type=Support, actor=f"agent:{n}") for n in range(5)]
    made = await asyncio.gather(*[app.get_or_create("ada", "c1") for app in apps])
    assert [s.version for s in made] == [1] * 5
    assert [s.actor for s in made] == [app.actor for app in apps]


def test_what_cannot_hold_is_refused_when_the_app_is_named(tmp_path: Path) -> None:
    """Not at its first session: a wrong name, class, registry or actor."""
    with limpet.open_sync("memory://") as lp:
        wrong: list[tuple[type[Exception], dict[str, Any]]] = [
            (errors.InvalidKey, {"name": ""}),
            (errors.InvalidInput, {"name": "a", "state_type": int}),
            (errors.InvalidInput, {"name": "a", "migrations": MigrationRegistry()}),
            (errors.InvalidInput, {"name": "a", "actor": ""}),
        ]
        for kind, how in wrong:
            with pytest.raises(kind):
                lp.app(**how)
    with pytest.raises(errors.StoreClosed):
        lp.app("a")


def test_an_app_is_used_without_await(tmp_path: Path) -> None:
    """The stand-in has the same verbs, and gives stand-ins."""
    with limpet.open_sync(f"sqlite:///{tmp_path}/a.db") as lp:
        support = lp.app("support", state_type=Support, actor="agent:main")
        assert isinstance(support, limpet.SyncApp)
        s = support.create("ada", "c1")
        assert isinstance(s, limpet.SyncSession)
        s.apply({"step": "answered"})
        assert support.get("ada", "c1").state.step == "answered"
        feed = support.watch()
        assert isinstance(feed, Iterator)
        assert next(feed).key == s.key
        assert support.name == "support"


@pytest.mark.parametrize("verb", facade.public(App))
def test_an_app_takes_what_limpet_takes(verb: str) -> None:
    """Each verb has the options of its namesake, but for those that the app has bound."""
    bound = {"self", "app", "key", "state_type", "migrations", "untyped"}
    of = StoreWork if verb == "claim" else Limpet
    theirs = inspect.signature(getattr(of, verb)).parameters
    if verb == "find":  # it hands its options to get
        theirs = inspect.signature(Limpet.get).parameters
    ours = inspect.signature(getattr(App, verb)).parameters
    assert {*ours} - bound == {*theirs} - bound
    for name in {*ours} - bound - {"state", "id", "user"}:
        assert ours[name].default == theirs[name].default
