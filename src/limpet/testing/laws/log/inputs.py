"""Inputs: which events are, and that what an event was appended as stays with it."""

from __future__ import annotations

import pytest

from limpet.store.protocol import Store
from limpet.testing.commits import add, create, draft, key, load, log
from limpet.testing.laws.log.facts import processed

A = key("a")


class InputLaws:
    @pytest.mark.parametrize(
        ("type", "pending"),
        [
            ("user.said", True),
            ("system.woke", True),
            ("session.child_ended", True),
            ("username.x", False),
            ("systems.x", False),
            ("agent.said", False),
            ("tool.asked", False),
            ("session.child_began", False),
        ],
    )
    async def test_some_types_are_inputs_by_themselves(
        self, store: Store, type: str, *, pending: bool
    ) -> None:
        """Pending until they are processed; any other type is not."""
        await create(store, A)
        data = {"child": "c1"} if type == "session.child_ended" else {}
        made = await add(store, A, draft(type, data))
        assert made.events[0].processed == (0 if pending else None)
        assert made.head.pending == int(pending)
        assert await store.pending_inputs(A, limit=9) == (made.events if pending else ())

    async def test_any_event_may_be_appended_as_an_input(self, store: Store) -> None:
        """It is pending, is processed as any other, and verifies before and after."""
        await create(store, A)
        made = await add(store, A, draft("tool.asked", {"a": 1}, input=True), draft("tool.asked"))
        assert [event.processed for event in made.events] == [0, None]
        assert await store.pending_inputs(A, limit=9) == made.events[:1]
        assert (await store.verify(None)).findings == ()
        done = await add(store, A, processed(2))
        asked = (await log(store, A))[1]
        assert (asked.processed, asked.processed_us) == (4, done.events[0].at_us)
        assert (await load(store, A)).head.pending == 0
        assert (await store.verify(None)).findings == ()

    async def test_what_an_event_was_appended_as_is_in_its_link(self, store: Store) -> None:
        """The same event as an input has another digest of its header."""
        plain, marked = draft("tool.asked", id="x"), draft("tool.asked", id="x", input=True)
        assert plain.header != marked.header
        said, again = draft("user.said", id="y"), draft("user.said", id="y", input=True)
        assert said.header == again.header
        await create(store, A)
        await add(store, A, marked)
        assert (await add(store, A, plain)).events[0].processed == 0  # a repeat of the first

    async def test_an_input_shows_which_event_processed_it(self, store: Store) -> None:
        """In every read: by page, by id, in the tail, and as a repeat."""
        await create(store, A)
        await add(store, A, draft("user.said", id="x"), draft("user.said", id="y"))
        done = await add(store, A, processed(2), draft())
        seen = (done.events[0].seq, done.events[0].at_us)
        reads = [
            (await log(store, A))[1],
            (await load(store, A)).events[1],
            (await store.read_ids(A, ["x"]))[0],
            (await add(store, A, draft(id="x"))).events[0],
        ]
        assert [(event.processed, event.processed_us) for event in reads] == [seen] * 4
        assert (await store.read_ids(A, ["y"]))[0].processed == 0
