"""Facts: pending inputs, labels and timers follow from the log."""

from __future__ import annotations

import pytest

from limpet.errors import InvalidEvent, NotPending, SessionDeleted, SessionErased, SessionNotFound
from limpet.model import Prepared, deadline_us, runnable_us
from limpet.model.facts.timers import Timer
from limpet.model.limits import LABELS_MAX, TIMERS_MAX
from limpet.store.protocol import Store
from limpet.testing.commits import add, addition, create, creation, draft, key, load, log, refused

A = key("a")


def processed(*seqs: int) -> Prepared:
    return draft("session.processed", {"seqs": list(seqs)})


def idle(*seqs: int) -> Prepared:
    """The end of a turn that has processed these."""
    data = {"stop_reason": "end_turn", "blocked_on": [], "processed": list(seqs)}
    return draft("session.status_idle", data)


def timer(name: str, at_us: int, kind: str = "wake") -> Prepared:
    return draft("session.timer_set", {"name": name, "at_us": at_us, "kind": kind})


class FactLaws:
    async def test_inputs_are_pending_until_processed(self, store: Store) -> None:
        """user.* events count as pending from their time on, and no others do."""
        await create(store, A)
        assert runnable_us((await load(store, A)).head) is None
        made = await add(store, A, draft("user.said"), draft("agent.said"), draft("user.sent"))
        assert (made.head.pending, made.head.pending_us) == (2, made.events[0].at_us)
        assert runnable_us(made.head) == made.events[0].at_us
        made = await add(store, A, processed(2))
        assert made.head.pending == 1
        made = await add(store, A, processed(4))
        assert (made.head.pending, made.head.pending_us) == (0, None)
        assert (await load(store, A)).head == made.head

    async def test_a_processed_input_shows_when_it_was(self, store: Store) -> None:
        """Every later read returns the input with the time of the event that processed it."""
        await create(store, A)
        await add(store, A, draft("user.said"), draft("user.said"))
        done = await add(store, A, processed(2))
        read = await log(store, A)
        assert [event.processed_us for event in read] == [None, done.events[0].at_us, None, None]
        assert (await load(store, A)).events == read
        (back,) = await store.read(A, after=3, limit=1, reverse=True, types=None)
        assert back == read[1]

    @pytest.mark.parametrize("seq", [1, 3, 5, 99])
    async def test_only_what_is_pending_can_be_processed(self, store: Store, seq: int) -> None:
        """Other events, processed inputs and missing seqs are refused."""
        await create(store, A)
        await add(store, A, draft("user.said"), draft("user.said"), draft("agent.said"))
        await add(store, A, processed(3))
        async with refused(store, NotPending):
            await add(store, A, processed(2, seq))

    async def test_the_end_of_a_turn_processes_its_inputs(self, store: Store) -> None:
        """It is refused like any other for what is not pending, and its commit with it."""
        await create(store, A)
        await add(store, A, draft("user.said"), draft("user.said"), draft("user.said"))
        done = await add(store, A, draft("agent.said"), idle(2, 4))
        assert (done.head.pending, done.head.pending_us) == (1, done.events[1].at_us)
        read = await log(store, A)
        assert [event.processed for event in read] == [None, 6, 0, 6, None, None]
        assert (await load(store, A)).events == read
        for again in (idle(4), idle(1), processed(2)):
            async with refused(store, NotPending):
                await add(store, A, draft("agent.said"), again)
        async with refused(store, NotPending):
            await add(store, A, processed(3), idle(3))
        assert (await add(store, A, idle())).head.pending == 1
        assert (await load(store, A)).head.pending == 1

    async def test_nothing_is_pending_in_a_session_just_begun(self, store: Store) -> None:
        """Creating a session and processing a missing input in one call is refused."""
        async with refused(store, NotPending):
            await store.commit([creation(A), addition(A, processed(7))])

    async def test_an_input_is_processed_once(self, store: Store) -> None:
        """Twice in one commit, in one event or two, is refused as it is in two commits."""
        await create(store, A)
        await add(store, A, draft("user.said"))
        async with refused(store, NotPending):
            await add(store, A, processed(2), processed(2))

    async def test_an_input_may_be_processed_in_its_own_commit(self, store: Store) -> None:
        """A commit may record an input and its processing together."""
        await create(store, A)
        made = await add(store, A, draft("user.said"), processed(2))
        assert made.head.pending == 0
        assert (await log(store, A))[1].processed_us == made.events[1].at_us

    async def test_what_is_pending_is_given_oldest_first(self, store: Store) -> None:
        """Returns the unprocessed inputs as they are stored, and nothing else."""
        await create(store, A)
        assert await store.pending_inputs(A, limit=9) == ()
        await add(store, A, *(draft(f"{who}.said") for who in ("user", "agent", "user", "user")))
        await add(store, A, draft("username.said"), draft("user.left"), processed(4))
        read = await log(store, A)
        assert await store.pending_inputs(A, limit=9) == (read[1], read[4], read[6])
        assert await store.pending_inputs(A, limit=2) == (read[1], read[4])
        await add(store, A, processed(2, 5, 7))
        assert await store.pending_inputs(A, limit=9) == ()

    async def test_what_is_pending_is_found_however_long_the_log(self, store: Store) -> None:
        """Finds the first of many pending inputs, and a single old one."""
        await create(store, A)
        await add(store, A, *(draft("user.said") for _ in range(300)))
        first = await store.pending_inputs(A, limit=3)
        assert [event.seq for event in first] == [2, 3, 4]
        await add(store, A, processed(*(seq for seq in range(2, 302) if seq not in (7, 301))))
        await add(store, A, *(draft("agent.said") for _ in range(50)))
        left = await store.pending_inputs(A, limit=3)
        assert [event.seq for event in left] == [7, 301]

    @pytest.mark.parametrize("ending", ["none", "delete", "erase"])
    async def test_nothing_is_pending_in_what_is_not_there(self, store: Store, ending: str) -> None:
        """Missing, deleted and erased sessions raise the usual errors."""
        errors = {"none": SessionNotFound, "delete": SessionDeleted, "erase": SessionErased}
        if ending != "none":
            await create(store, A)
            await add(store, A, draft("user.said"))
            await (store.delete(A) if ending == "delete" else store.erase(A))
        with pytest.raises(errors[ending]):
            await store.pending_inputs(A, limit=9)

    async def test_timers_are_set_replaced_and_cleared(self, store: Store) -> None:
        """A name has one timer, and the earliest of a kind makes the session due."""
        await create(store, A)
        await add(store, A, timer("a", 900), timer("b", 500), timer("end", 300, "deadline"))
        made = await add(store, A, timer("b", 1_000))
        assert made.head.timers == {
            "a": Timer(900, seq=2),
            "b": Timer(1_000, seq=5),
            "end": Timer(300, "deadline", seq=4),
        }
        assert (runnable_us(made.head), deadline_us(made.head)) == (900, 300)
        for name in ("a", "end", "never"):
            made = await add(store, A, draft("session.timer_cleared", {"name": name}))
        assert made.head.timers == {"b": Timer(1_000, seq=5)}
        assert (await load(store, A)).head == made.head

    async def test_a_head_stays_within_its_bounds(self, store: Store) -> None:
        """One label or timer too many is refused with the whole commit."""
        await create(store, A)
        await add(store, A, *(timer(f"t{n}", n) for n in range(TIMERS_MAX)))
        async with refused(store, InvalidEvent):
            await add(store, A, draft(), timer("more", 1))
        labels = {f"l{n}": "x" for n in range(LABELS_MAX)}
        await add(store, A, draft("session.labeled", {"labels": labels}))
        async with refused(store, InvalidEvent):
            await add(store, A, draft("session.labeled", {"labels": {"more": "x"}}))
