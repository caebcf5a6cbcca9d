"""A handle without a State class: it reads typed state, and leaves its fields to the class."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

import pytest

import limpet
from limpet import Draft, InvalidInput, Limpet, Session, State
from limpet.errors import SessionTyped
from limpet.store.memory import MemoryStore

KEY = ("shop", "ada", "one")


class Claim(State):
    schema_version: ClassVar[str] = "1.0.0"
    text: str = ""
    approved: Annotated[bool, limpet.access(write={"supervisor"})] = False


async def committed(lp: Limpet, s: Session[Any]) -> None:
    async with lp.commit() as c:
        c.append(s, "a.b")
        c.append(s, "a.b", set={"approved": True})


WRITES: dict[str, Any] = {
    "append set": lambda lp, s: s.append("a.b", set={"approved": True}),
    "append delete": lambda lp, s: s.append("a.b", delete=["text"]),
    "append undeclared": lambda lp, s: s.append("a.b", set={"other": 1}),
    "append mixed": lambda lp, s: s.append("a.b", set={"app:n": 1, "text": "x"}),
    "append_many": lambda lp, s: s.append_many(
        [Draft(type="a.b"), Draft(type="a.b", inc={"n": 1})]
    ),
    "update": lambda lp, s: s.update(lambda state: {"approved": True}),
    "commit": committed,
}


async def handles(lp: Limpet, **how: Any) -> list[Session[Any]]:
    made = await lp.get_or_create(*KEY[:2], id=KEY[2], actor="agent:a", **how)
    found = await lp.find(KEY, actor="agent:a", **how)
    assert found is not None
    handle = lp.session(KEY, actor="agent:a", **how)
    return [await lp.get(KEY, actor="agent:a", **how), handle, made, found]


@pytest.mark.parametrize("way", WRITES)
async def test_an_untyped_handle_does_not_change_typed_state(lp: Limpet, way: str) -> None:
    """Whichever verb: neither the types nor the rights of the class are passed by."""
    await lp.create(*KEY[:2], id=KEY[2], state=Claim(text="t"))
    for s in await handles(lp):
        with pytest.raises(SessionTyped) as info:
            await WRITES[way](lp, s)
        assert (info.value.code, info.value.schema_version) == ("session.typed", "1.0.0")
    now = await lp.get(KEY)
    assert (now.version, dict(now.values)) == (1, {"text": "t", "approved": False})


@pytest.mark.parametrize("way", WRITES)
async def test_a_handle_that_says_untyped_does(lp: Limpet, way: str) -> None:
    """For tools that repair state by hand."""
    await lp.create(*KEY[:2], id=KEY[2], state=Claim(text="t"))
    for number, s in enumerate(await handles(lp, untyped=True)):
        if way == "append delete" and number:
            continue  # it is gone
        await WRITES[way](lp, s)
    assert (await lp.get(KEY)).version > 1


async def test_all_else_is_recorded_by_an_untyped_handle(lp: Limpet) -> None:
    """Events, inputs, labels, timers, priorities, shared and temporary names; in a block too."""
    await lp.create(*KEY[:2], id=KEY[2], state=Claim(text="t"))
    s = lp.session(KEY, actor="agent:a")
    await s.append("user.message", {"text": "hi"}, set={"app:n": 1, "temp:t": 1}, inc={"user:n": 1})
    await s.label({"plan": "gold"})
    await s.lifecycle.set_timer("tea", datetime(2040, 1, 1, tzinfo=UTC))
    await s.lifecycle.clear_timer("tea")
    await s.lifecycle.set_priority(1)
    await s.mark_processed([2])
    async with lp.commit() as c:
        c.append(s, "a.b", inc={"app:n": 1})
        c.record(s, limpet.facts.labeled({"plan": None}))
    await s.refresh()
    await s.update(lambda state: {"app:n": state["app:n"] + 1})
    now = await lp.get(KEY, state_type=Claim)
    assert (now.version, now.state, now.values["app:n"]) == (10, Claim(text="t"), 3)


async def test_an_untyped_session_is_written_as_before(lp: Limpet) -> None:
    """No version, no class that could be passed by."""
    s = await lp.create(*KEY[:2], id=KEY[2], state={"n": 0}, actor="agent:a")
    await s.append("a.b", inc={"n": 1})
    await s.update(lambda state: {"n": state["n"] + 1})
    assert s.state["n"] == 2


async def test_a_session_that_became_typed_is_left_alone_from_then_on(lp: Limpet) -> None:
    """The handle read it before: the store compares, not the handle."""
    old = await lp.create(*KEY[:2], id=KEY[2], state={"text": "t"}, actor="agent:a")
    new = await lp.get(KEY, state_type=Claim, actor="agent:b")
    await new.apply({"text": "u"})
    assert old.head.schema_version is None
    with pytest.raises(SessionTyped):
        await old.append("a.b", set={"text": "v"})
    with pytest.raises(SessionTyped):
        await old.update(lambda state: {"text": "v"})


class Overtaken(MemoryStore):
    """A store in which a typed writer is faster than the first change of text."""

    faster: Any = None

    async def commit(self, commits: Any) -> Any:
        if self.faster is not None and commits[0].classless:
            faster, self.faster = self.faster, None
            await faster()
        return await super().commit(commits)


async def test_a_race_with_the_first_typed_write_is_lost() -> None:
    """Between the handle's look and its commit the session became typed."""
    store = Overtaken()
    async with Limpet("memory://", store=store) as lp:
        s = await lp.create(*KEY[:2], id=KEY[2], state={"text": "t"}, actor="agent:a")
        new = await lp.get(KEY, state_type=Claim, actor="agent:b")
        store.faster = lambda: new.apply({"text": "u"})
        with pytest.raises(SessionTyped):
            await s.update(lambda state: {"text": state["text"] + "!"})
        assert (await lp.get(KEY)).values["text"] == "u"


@pytest.mark.parametrize("begin", [{"text": "t"}, Claim(text="t")], ids=["untyped", "typed"])
async def test_a_typed_handle_does_not_cover_for_an_untyped_one(lp: Limpet, begin: Any) -> None:
    """In one commit block, before the session has a version and after."""
    await lp.create(*KEY[:2], id=KEY[2], state=begin)
    typed = await lp.get(KEY, state_type=Claim, actor="agent:a")
    plain = lp.session(KEY, actor="agent:a")

    async def both(**change: Any) -> None:
        async with lp.commit() as c:
            c.apply(typed, {"text": "u"})
            c.append(plain, "a.b", **change)

    with pytest.raises(SessionTyped):
        await both(set={"approved": True})
    await both()
    assert (await lp.get(KEY, state_type=Claim)).state == Claim(text="u")


async def test_a_repeated_id_is_found_though_the_session_is_typed_by_now(lp: Limpet) -> None:
    """What was recorded before the session was typed is told again, not refused."""
    s = await lp.create(*KEY[:2], id=KEY[2], state={"text": "t"}, actor="agent:a")
    first = await s.append("a.b", set={"text": "u"}, id="once")
    await (await lp.get(KEY, state_type=Claim, actor="agent:b")).apply({"text": "v"})
    assert await s.append("a.b", set={"text": "u"}, id="once") == first


async def test_a_session_made_of_an_envelope_is_typed(lp: Limpet) -> None:
    """It has the envelope's version: its fields are left alone, unless the handle says untyped."""
    made = await lp.create("shop", "ada", state=Claim(text="t"))
    for untyped in (False, True):
        found = limpet.envelope.decode(made.envelope())
        s = await lp.create("shop", "ada", state=found, actor="agent:a", untyped=untyped)
        writing = s.append("a.b", set={"text": "u"})
        if untyped:
            await writing
        else:
            with pytest.raises(SessionTyped):
                await writing


async def test_a_class_and_untyped_are_not_given_together(lp: Limpet) -> None:
    """One of them would be without meaning."""
    how: dict[str, Any] = {"state_type": Claim, "untyped": True}
    with pytest.raises(InvalidInput, match="untyped"):
        lp.session(KEY, **how)
    with pytest.raises(InvalidInput, match="untyped"):
        await lp.get(KEY, **how)
    with pytest.raises(InvalidInput, match="untyped"):
        await lp.create(*KEY[:2], state=Claim(), untyped=True)  # type: ignore[call-overload]


def test_the_same_holds_without_await() -> None:
    """The synchronous face is the same verbs."""
    with limpet.open_sync("memory://") as lp:
        lp.create(*KEY[:2], id=KEY[2], state=Claim(text="t"))
        with pytest.raises(SessionTyped):
            lp.get(KEY, actor="agent:a").append("a.b", set={"text": "u"})
        with pytest.raises(SessionTyped):
            lp.session(KEY, actor="agent:a").update(lambda state: {"text": "u"})
        lp.get(KEY, actor="agent:a", untyped=True).append("a.b", set={"text": "u"})
        assert lp.get(KEY, state_type=Claim).state.text == "u"


async def test_many_untyped_writers_lose_to_one_class(lp: Limpet) -> None:
    """Whoever comes before it is recorded, whoever comes after is refused, and nothing between."""
    await lp.create(*KEY[:2], id=KEY[2], state={"text": "t", "n": 0})
    typed = await lp.get(KEY, state_type=Claim, actor="agent:b")

    async def write() -> bool:
        try:
            await lp.session(KEY, actor="agent:a").append("a.b", inc={"n": 1})
        except SessionTyped:
            return False
        return True

    writers = [asyncio.create_task(write()) for _ in range(20)]
    await typed.apply({"text": "u"})
    done = await asyncio.gather(*writers)
    now = await lp.get(KEY)
    assert now.values["n"] == sum(done)
    kinds = [event.type for event in await now.read()]
    assert "a.b" not in kinds[kinds.index("state.migrated") :]
