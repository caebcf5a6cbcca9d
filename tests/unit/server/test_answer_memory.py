"""What a server remembers for repeated calls is bounded: of each key, and in all."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from limpet.server import store_door
from limpet.server.limits import ANSWER_KEPT_BYTES
from limpet.server.store_door import AnswerMemory, Client, ClientMemory
from limpet.store.remote.messages import Answer

ADA, BOB = ("support", "user:ada"), ("support", "user:bob")


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three answers of 1,000 bytes of a key, four in all."""
    each = 1_000 + ANSWER_KEPT_BYTES
    monkeypatch.setattr(store_door, "ANSWERS_KEPT_BYTES_PER_KEY_MAX", 3 * each)
    monkeypatch.setattr(store_door, "ANSWERS_KEPT_BYTES_MAX", 4 * each)


async def answered(client: Client, *ids: int) -> None:
    """Calls of a client, each with an answer of 1,000 bytes."""

    async def answer(id: int) -> Answer:
        return Answer(id, True, msgspec.Raw(b"x" * 1_000))

    for id in ids:
        task: asyncio.Task[Any] = asyncio.ensure_future(answer(id))
        client.remember(id, task)
        await task
        await asyncio.sleep(0)  # its callbacks


async def test_the_oldest_answers_of_a_key_go_first(bounds: None) -> None:
    """With however many clients it comes: their ids cost nothing to make."""
    memory = AnswerMemory()
    clients = [Client("me", memory, ADA) for _ in range(5)]
    for client in clients:
        await answered(client, 1)
    assert [bool(client.calls) for client in clients] == [False, False, True, True, True]
    assert [1 in client.dropped for client in clients] == [True, True, False, False, False]
    assert memory.bytes == 3 * (1_000 + ANSWER_KEPT_BYTES)


async def test_who_has_most_gives_way_to_the_others(bounds: None) -> None:
    """A key with many answers does not push out those of another."""
    memory = AnswerMemory()
    ada, bob = Client("me", memory, ADA), Client("me", memory, BOB)
    await answered(bob, 1)
    await answered(ada, 1, 2, 3, 4, 5, 6)
    assert list(bob.calls) == [1]
    assert list(ada.calls) == [4, 5, 6]
    await answered(bob, 2)
    assert (list(ada.calls), list(bob.calls)) == ([5, 6], [1, 2])


async def test_what_was_received_takes_no_room(bounds: None) -> None:
    memory = AnswerMemory()
    ada = Client("me", memory, ADA)
    await answered(ada, 1, 2, 3, 4)
    ada.forget(4)
    assert (ada.calls, ada.dropped, memory.bytes) == ({}, set(), 0)
    await answered(ada, 5)
    ada.clear()
    assert (ada.calls, memory.bytes) == ({}, 0)


async def test_an_answer_that_is_forgotten_in_time_is_not_taken_for_one_that_never_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a minute without a word the server knows that it made the call; a call that took longer
    is remembered from its end on."""
    ada = Client("me", AnswerMemory(), ADA)
    clock = [100.0]
    monkeypatch.setattr(store_door.time, "monotonic", lambda: clock[0])

    async def slow() -> Answer:
        clock[0] += 61.0
        return Answer(1, True, msgspec.Raw(b"x"))

    task = asyncio.ensure_future(slow())
    ada.remember(1, task)
    await task
    await asyncio.sleep(0)
    ada.forget(0)
    assert list(ada.calls) == [1]
    clock[0] += 61.0
    ada.forget(0)
    assert (list(ada.calls), ada.forgot(1), ada.forgot(2)) == ([], True, False)


async def test_what_was_dropped_is_known_without_bound_in_little_room(
    bounds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who never says that an answer came fills no memory with ids."""
    monkeypatch.setattr(store_door, "DROPPED_MAX", 4)
    ada = Client("me", AnswerMemory(), ADA)
    await answered(ada, *range(1, 21))
    assert len(ada.dropped) <= 4
    assert [id for id in range(1, 22) if ada.forgot(id)] == [*range(1, 18)]


def test_many_clients_of_one_key_push_out_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that is connected nor one that lost its connection a moment ago."""
    monkeypatch.setattr(store_door, "CLIENTS_KEPT_MAX", 10)
    clients = ClientMemory(AnswerMemory())
    gone, there = clients.client(BOB, "owner", "gone"), clients.client(BOB, "owner", "there")
    own = clients.client(ADA, "owner", "own")
    there.connections = own.connections = 1
    for n in range(50):
        clients.client(ADA, "owner", f"c{n}")
    assert clients.client(BOB, "owner", "gone") is gone
    assert clients.client(BOB, "owner", "there") is there
    assert clients.client(ADA, "owner", "own") is own
    assert sum(len(each) for each in clients._kept.values()) <= 10
