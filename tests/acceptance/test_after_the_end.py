"""Use before open, after close and after os.fork."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast
from holdfast import Draft, Holdfast, Session, errors
from tests.support.forked import in_child
from tests.support.views import shown

KEY = holdfast.Key("support", "ada", "one")
CALLS: dict[str, Callable[[Holdfast, Session], Awaitable[Any]]] = {
    "create": lambda hf, s: hf.create("a", "u"),
    "get": lambda hf, s: hf.get(KEY),
    "find": lambda hf, s: hf.find(KEY),
    "get_or_create": lambda hf, s: hf.get_or_create("a", "u", id="i"),
    "list": lambda hf, s: hf.list(),
    "delete": lambda hf, s: hf.delete(KEY),
    "erase": lambda hf, s: hf.erase(KEY),
    "verify": lambda hf, s: hf.verify(KEY),
    "backup": lambda hf, s: hf.backup("nowhere.db"),
    "append": lambda hf, s: s.append("a.b", actor="x", set={"n": 9, "temp:t": 9}),
    "append partial": lambda hf, s: s.append("a.b", actor="x", partial=True),
    "append_many": lambda hf, s: s.append_many([Draft(type="a.b", actor="x")]),
    "update": lambda hf, s: s.update(lambda _: {"n": 9}, actor="x"),
    "label": lambda hf, s: s.label({"a": "b"}, actor="x"),
    "mark_processed": lambda hf, s: s.mark_processed([2], actor="x"),
    "refresh": lambda hf, s: s.refresh(),
    "read": lambda hf, s: s.read(),
}
PLAIN: dict[str, Callable[[Holdfast, Session], Any]] = {
    "session": lambda hf, s: hf.session(KEY),
    "commit": lambda hf, s: hf.commit(),
    "follow": lambda hf, s: s.follow(),
}


async def test_every_call_after_close_is_told(hf: Holdfast, s: Session) -> None:
    """StoreClosed, and the object still shows what it knew."""
    before = shown(s)
    await hf.close()
    await hf.close()
    for call in CALLS.values():
        with pytest.raises(errors.StoreClosed):
            await call(hf, s)
    for plain in PLAIN.values():
        with pytest.raises(errors.StoreClosed):
            plain(hf, s)
    assert shown(s) == before


async def test_every_call_before_open_is_told(url: str) -> None:
    """An instance that was not entered is not open."""
    hf = holdfast.open(url)
    s = Session(hf, KEY)
    for call in CALLS.values():
        with pytest.raises(errors.StoreClosed):
            await call(hf, s)
    for plain in PLAIN.values():
        with pytest.raises(errors.StoreClosed):
            plain(hf, s)
    await hf.close()


async def test_an_instance_is_opened_once(url: str) -> None:
    """Entering it again, open or closed, is an error; another instance is another."""
    hf = holdfast.open(url)
    async with hf:
        with pytest.raises(errors.StoreClosed):
            await hf.__aenter__()
        await hf.create("a", "u")
    with pytest.raises(errors.StoreClosed):
        await hf.__aenter__()


async def test_a_commit_begun_before_close_records_nothing_after(hf: Holdfast, s: Session) -> None:
    """What was gathered is refused with the store."""
    with pytest.raises(errors.StoreClosed):  # noqa: PT012  # the error comes at the end
        async with hf.commit() as c:
            c.append(s, "a.b", actor="x")
            await hf.close()
    assert s.version == 2


async def test_closing_waits_for_what_was_handed_over(file_url: str) -> None:
    """Everything acknowledged before or during the close is there when opened again."""
    async with holdfast.open(file_url) as hf:
        s = await hf.create("a", "u", id="1")
        tasks = [asyncio.create_task(s.append("a.b", actor="x", id=str(n))) for n in range(20)]
        await asyncio.sleep(0)
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    told = {a.id for a in answers if isinstance(a, holdfast.Event)}
    async with holdfast.open(file_url) as hf:
        there = {e.id for e in await hf.session(("a", "u", "1")).read(after=1)}
    assert told == there
    assert {type(a) for a in answers} <= {holdfast.Event, errors.StoreClosed}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_every_call_after_fork_is_told(hf: Holdfast, s: Session) -> None:
    """In the child everything is refused and nothing is touched; the parent goes on."""

    def child() -> str:
        codes = set()
        for call in CALLS.values():
            try:
                call(hf, s).send(None)  # type: ignore[attr-defined]  # a coroutine, run by hand
            except errors.HoldfastError as error:
                codes.add(error.code)
            except StopIteration:
                codes.add("no error")
        for plain in PLAIN.values():
            try:
                plain(hf, s)
            except errors.HoldfastError as error:
                codes.add(error.code)
        return " ".join(sorted(codes))

    assert in_child(child) == "store.forked"
    assert (await s.append("a.b", actor="x")).seq == 3
    assert (await hf.verify()).ok


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_may_open_its_own(file_url: str) -> None:
    """After a fork the child opens the file anew and both write to it."""

    async def write(actor: str) -> int:
        async with holdfast.open(file_url) as hf:
            s = await hf.get_or_create("a", "u", id="1")
            return (await s.append("a.b", actor=actor)).seq

    assert asyncio.run(write("parent")) == 2
    assert in_child(lambda: str(asyncio.run(write("child")))) == "3"
    assert asyncio.run(write("parent")) == 4


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_closing_in_a_child_does_not_close_the_parent(hf: Holdfast, s: Session) -> None:
    """The child lets go of its copy and the parent notices nothing."""

    def child() -> str:
        try:
            hf.close().send(None)
        except StopIteration:
            return "closed"
        return "still closing"

    assert in_child(child) == "closed"
    assert (await s.append("a.b", actor="x")).seq == 3
