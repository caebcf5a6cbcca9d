"""Use before open, after close and after os.fork."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import limpet
from limpet import Draft, Limpet, Session, errors
from tests.support.forked import in_child
from tests.support.views import shown

KEY = limpet.Key("support", "ada", "one")
CALLS: dict[str, Callable[[Limpet, Session], Awaitable[Any]]] = {
    "create": lambda lp, s: lp.create("a", "u"),
    "get": lambda lp, s: lp.get(KEY),
    "find": lambda lp, s: lp.find(KEY),
    "get_or_create": lambda lp, s: lp.get_or_create("a", "u", id="i"),
    "list": lambda lp, s: lp.list(),
    "delete": lambda lp, s: lp.delete(KEY),
    "erase": lambda lp, s: lp.erase(KEY),
    "verify": lambda lp, s: lp.maintenance.verify(KEY),
    "backup": lambda lp, s: lp.maintenance.backup("nowhere.db"),
    "append": lambda lp, s: s.append("a.b", actor="x", set={"n": 9, "temp:t": 9}),
    "append plain": lambda lp, s: s.append("a.b", {"n": 1}, actor="x"),
    "append partial": lambda lp, s: s.append("a.b", actor="x", partial=True),
    "append_many": lambda lp, s: s.append_many([Draft(type="a.b", actor="x")]),
    "update": lambda lp, s: s.update(lambda _: {"n": 9}, actor="x"),
    "label": lambda lp, s: s.label({"a": "b"}, actor="x"),
    "mark_processed": lambda lp, s: s.mark_processed([2], actor="x"),
    "refresh": lambda lp, s: s.refresh(),
    "read": lambda lp, s: s.read(),
}
PLAIN: dict[str, Callable[[Limpet, Session], Any]] = {
    "session": lambda lp, s: lp.session(KEY),
    "commit": lambda lp, s: lp.commit(),
    "follow": lambda lp, s: s.follow(),
    "append_soon": lambda lp, s: s.append_soon("a.b", actor="x"),
    "append_soon with an id": lambda lp, s: s.append_soon("a.b", actor="x", id="e9"),
}


async def test_every_call_after_close_is_told(lp: Limpet, s: Session) -> None:
    """StoreClosed, and the object still shows what it knew."""
    before = shown(s)
    await lp.close()
    await lp.close()
    for call in CALLS.values():
        with pytest.raises(errors.StoreClosed):
            await call(lp, s)
    for plain in PLAIN.values():
        with pytest.raises(errors.StoreClosed):
            plain(lp, s)
    assert shown(s) == before


async def test_every_call_before_open_is_told(url: str) -> None:
    """An instance that was not entered is not open."""
    async with limpet.open("memory://") as other:
        s = other.session(KEY)  # a session is had from an open one only
    lp = limpet.open(url)
    for call in CALLS.values():
        with pytest.raises(errors.StoreClosed):
            await call(lp, s)
    for plain in PLAIN.values():
        with pytest.raises(errors.StoreClosed):
            plain(lp, s)
    await lp.close()


async def test_an_instance_is_opened_once(url: str) -> None:
    """Entering it again, open or closed, is an error; another instance is another."""
    lp = limpet.open(url)
    async with lp:
        with pytest.raises(errors.StoreClosed):
            await lp.__aenter__()
        await lp.create("a", "u")
    with pytest.raises(errors.StoreClosed):
        await lp.__aenter__()


async def test_a_commit_begun_before_close_records_nothing_after(lp: Limpet, s: Session) -> None:
    """What was gathered is refused with the store."""
    with pytest.raises(errors.StoreClosed):  # noqa: PT012  # the error comes at the end
        async with lp.commit() as c:
            c.append(s, "a.b", actor="x")
            await lp.close()
    assert s.version == 2


async def test_closing_waits_for_what_was_handed_over(file_url: str) -> None:
    """Everything acknowledged before or during the close is there when opened again."""
    async with limpet.open(file_url) as lp:
        s = await lp.create("a", "u", id="1")
        tasks = [asyncio.create_task(s.append("a.b", actor="x", id=str(n))) for n in range(20)]
        await asyncio.sleep(0)
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    told = {a.id for a in answers if isinstance(a, limpet.Event)}
    async with limpet.open(file_url) as lp:
        there = {e.id for e in await lp.session(("a", "u", "1")).read(after=1)}
    assert told == there
    assert {type(a) for a in answers} <= {limpet.Event, errors.StoreClosed}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_every_call_after_fork_is_told(lp: Limpet, s: Session) -> None:
    """In the child everything is refused and nothing is touched; the parent goes on."""

    def child() -> str:
        codes = set()
        for call in CALLS.values():
            try:
                call(lp, s).send(None)  # type: ignore[attr-defined]  # a coroutine, run by hand
            except errors.LimpetError as error:
                codes.add(error.code)
            except StopIteration:
                codes.add("no error")
        for plain in PLAIN.values():
            try:
                plain(lp, s)
            except errors.LimpetError as error:
                codes.add(error.code)
            else:
                codes.add("no error")
        return " ".join(sorted(codes))

    assert in_child(child) == "store.forked"
    assert (await s.append("a.b", actor="x")).seq == 3
    assert (await lp.maintenance.verify()).ok


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_may_open_its_own(file_url: str) -> None:
    """After a fork the child opens the file anew and both write to it."""

    async def write(actor: str) -> int:
        async with limpet.open(file_url) as lp:
            s = await lp.get_or_create("a", "u", id="1")
            return (await s.append("a.b", actor=actor)).seq

    assert asyncio.run(write("parent")) == 2
    assert in_child(lambda: str(asyncio.run(write("child")))) == "3"
    assert asyncio.run(write("parent")) == 4


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_closing_in_a_child_does_not_close_the_parent(lp: Limpet, s: Session) -> None:
    """The child lets go of its copy and the parent notices nothing."""

    def child() -> str:
        try:
            lp.close().send(None)
        except StopIteration:
            return "closed"
        return "still closing"

    assert in_child(child) == "closed"
    assert (await s.append("a.b", actor="x")).seq == 3
