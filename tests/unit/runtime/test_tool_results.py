"""What a tool may be, and what its result looks like: one value that JSON can hold."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import io
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pydantic
import pytest

import limpet
from limpet import Agent, ModelRequest, Reply, ToolCall
from limpet.errors import ToolInvalid
from tests.support.agents import World, a_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


async def streams(text: str) -> AsyncIterator[str]:
    yield text


def counts(text: str) -> Iterator[str]:
    yield text


class Streams:
    async def __call__(self, text: str) -> AsyncIterator[str]:
        yield text

    def counts(self) -> Iterator[str]:
        yield "one"


GENERATORS: dict[str, Callable[..., Any]] = {
    "async": streams,
    "plain": counts,
    "partial": functools.partial(streams, "now"),
    "object": Streams(),
    "method": Streams().counts,
}


@pytest.mark.parametrize("name", list(GENERATORS))
def test_a_generator_function_is_refused_where_it_is_declared(name: str) -> None:
    """Its result would be an object of the process; that it streams is not supported."""
    function = GENERATORS[name]
    declare: list[Callable[[], Any]] = [
        lambda: limpet.tool(name="look")(function),
        lambda: limpet.Tool("look", function=function),
        lambda: Agent(lambda _: "hi", [function]),
    ]
    for each in declare:
        with pytest.raises(ToolInvalid, match="generator function, and") as refused:
            each()
        assert refused.value.code == "tool.invalid"
    assert isinstance(refused.value, limpet.InvalidInput)


def test_a_function_that_returns_a_value_is_a_tool() -> None:
    """Also one that uses a generator inside, or is decorated."""

    @functools.lru_cache
    def look() -> str:
        """Look."""
        return ", ".join(each for each in "ab")

    assert limpet.tool(look)() == "a, b"


async def later() -> str:
    return "later"


@dataclasses.dataclass
class Holder:
    name: str
    held: Any


class Modelled(pydantic.BaseModel, arbitrary_types_allowed=True):
    held: Any


class Plain:
    """An object with the repr that every object has."""


LIVE: dict[str, tuple[Callable[[], Any], str]] = {
    "coroutine": (later, "coroutine"),
    "generator": (lambda: counts("x"), "generator"),
    "async generator": (lambda: streams("x"), "async_generator"),
    "file": (io.StringIO, "StringIO"),
    "bytes file": (lambda: io.BytesIO(b"x"), "BytesIO"),
    "map": (lambda: map(str, [1]), "map"),
    "function": (lambda: counts, "function"),
    "class": (lambda: Plain, "type"),
    "module": (lambda: asyncio, "module"),
    "lock": (threading.Lock, "lock"),
    "object": (Plain, "Plain"),
    "in a list": (lambda: [1, counts("x")], "generator"),
    "in a dict": (lambda: {"deep": {"er": [streams("x")]}}, "async_generator"),
    "in a dataclass": (lambda: Holder("h", io.StringIO()), "StringIO"),
    "in a model": (lambda: Modelled(held=Plain()), "Plain"),
    "in a tuple in a set": (lambda: ({counts},), "function"),
    "beside a date": (lambda: {"at": date(2026, 1, 2), "by": later()}, "coroutine"),
}


async def called(world: World, function: Callable[..., Any], **how: Any) -> dict[str, Any]:
    """The result that a model reads of a call of this function."""
    asked: list[Any] = []

    async def model(request: ModelRequest) -> Reply | str:
        asked.append(request)
        return "done" if len(asked) > 1 else Reply("", (ToolCall("", "look", {}),))

    await world.begin("go")
    (woken,) = await world.work(Agent(model, [limpet.tool(name="look", **how)(function)]))
    assert woken.reason == "end_turn"
    (result,) = [e.data for e in await world.log() if e.type == "agent.tool_result"]
    return dict(result)


@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize("name", list(LIVE))
async def test_a_live_object_is_an_error_result_that_names_its_type(
    world: World, name: str, pure: bool
) -> None:
    """Never its repr, which says nothing and changes with each process. The tool ran once."""
    make, type = LIVE[name]
    ran: list[int] = []

    async def look() -> Any:
        ran.append(1)
        return make()

    result = await called(world, look, pure=pure, retries=2)
    assert result["is_error"] is True
    assert f": {type}." in result["output"]
    assert "0x" not in result["output"]
    assert "do not repeat" in result["output"]
    assert len(ran) == 1
    assert "effect.failed" not in await world.types()


async def test_a_socket_is_an_error_result(world: World) -> None:
    """As any object that only its process can use."""
    with socket.socket() as made:

        async def look() -> Any:
            return made

        assert "socket" in (await called(world, look))["output"]


TEXTS: list[tuple[Any, Any]] = [
    (date(2026, 1, 2), "2026-01-02"),
    (datetime(2026, 1, 2, 3, 4, tzinfo=UTC), "2026-01-02T03:04:00Z"),
    ({"at": date(2026, 1, 2)}, {"at": "2026-01-02"}),
    ([timedelta(seconds=5)], ["PT5S"]),
    (Decimal("1.50"), "1.50"),
    (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (Path("a/b"), "a/b"),
    ([Path("a/b")], ["a/b"]),
    (Holder("h", date(2026, 1, 2)), {"name": "h", "held": "2026-01-02"}),
    (Modelled(held=date(2026, 1, 2)), {"held": "2026-01-02"}),
    ([Modelled(held=1)], [{"held": 1}]),
    (ValueError("no"), "no"),
    ({"a": 1}.keys(), ["a"]),
    (range(3), "range(0, 3)"),
    (1 + 2j, "(1+2j)"),
    (float("nan"), "nan"),
]


@pytest.mark.parametrize(("value", "shown"), TEXTS, ids=[repr(value) for value, _ in TEXTS])
async def test_a_value_that_has_a_text_is_shown(world: World, value: Any, shown: Any) -> None:
    """Dates, numbers, paths and models stay results, wherever they stand in one."""

    async def look() -> Any:
        return value

    result = await called(world, look)
    assert result["output"] == shown
    assert "is_error" not in result
