"""What a harness may catch: whatever it waits for is raised where it waits."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

import limpet
from limpet.runtime.run import Driver
from tests.support.agents import World, a_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as made:
        yield made


async def test_a_harness_catches_the_error_of_what_it_waits_for(world: World) -> None:
    """Also of a bare future, which a store of files or a client of a server hands out."""

    async def harness(turn: limpet.Turn) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, ValueError("no"))
        try:
            await future
        except ValueError as error:
            await turn.say(f"it said {error}")

    await world.begin("hi")
    (woken,) = await world.work(harness)
    assert woken.error is None
    assert await world.said() == ["it said no"]


async def test_an_error_that_a_harness_does_not_catch_is_its_own(world: World) -> None:
    """It ends the turn as any other does, after the harness has cleaned up."""
    cleaned: list[str] = []

    async def harness(turn: limpet.Turn) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, ValueError("no"))
        try:
            await future
        except ValueError:
            cleaned.append("up")
            raise

    await world.begin("hi")
    (woken,) = await world.work(harness)
    assert isinstance(woken.error, ValueError)
    assert cleaned == ["up"]


@pytest.mark.filterwarnings("error")
async def test_a_harness_that_is_stopped_before_its_first_step_is_let_go() -> None:
    """Its coroutine is closed: none is left that was never awaited."""
    began = []

    async def harness(turn: limpet.Turn) -> None:
        began.append(1)

    driver = Driver("key")
    running = asyncio.ensure_future(driver.run(harness, None))
    await asyncio.sleep(0)
    driver.stop("stopped")
    assert await running is None
    gc.collect()
    assert began == []


@pytest.mark.filterwarnings("error")
async def test_a_harness_that_somebody_else_cancels_before_its_first_step_is_over() -> None:
    """Whoever waits for it is told, and its coroutine is closed."""

    async def harness(turn: limpet.Turn) -> None:
        raise AssertionError("it has no first step")

    driver = Driver("key")
    running = asyncio.ensure_future(driver.run(harness, None))
    before = asyncio.all_tasks()
    await asyncio.sleep(0)
    (task,) = asyncio.all_tasks() - before
    task.cancel()
    async with asyncio.timeout(60):
        assert isinstance(await running, limpet.errors.TurnMisused)
    gc.collect()
