"""Load and read: consistent snapshots, and pages that return every event once."""

from __future__ import annotations

import asyncio

import pytest

from limpet.errors import LimpetError, SessionDeleted, SessionErased, SessionNotFound
from limpet.model import Event, Fold, FrozenDict, blank, replay_all
from limpet.model.values import FrozenList
from limpet.store.pages import wanted
from limpet.store.protocol import Store
from limpet.testing.commits import ALL, add, create, draft, key, load, log, picture

A = key("a")
# Some of these would match each other under LIKE, GLOB, or without regard to case.
TYPES = (
    "user.message",
    "user.message.edited",
    "user.x",
    "User.message",
    "username.x",
    "agent.message",
    "a_b.x",
    "axb.x",
    "a%b.x",
    "a[b].x",
    "ab.x",
)


async def _pages(
    store: Store, size: int, *, reverse: bool = False, types: tuple[str, ...] | None = None
) -> list[Event]:
    """Everything that paging in one direction returns."""
    met: list[Event] = []
    after = 0
    while page := await store.read(A, after=after, limit=size, reverse=reverse, types=types):
        assert len(page) <= size
        met += page
        assert len(met) <= ALL, "paging does not come to an end"
        after = page[-1].seq
        if reverse and after == 1:
            break
    return met


class ReadLaws:
    async def test_load_gives_the_last_events_ascending(self, store: Store) -> None:
        """`tail` limits the events; head and state are always complete."""
        await create(store, A, {"n": 0})
        for _ in range(9):
            await add(store, A, draft(inc={"n": 1}))
        everything = await log(store, A)
        for tail in (0, 1, 3, 10, 50):
            loaded = await load(store, A, tail)
            assert loaded.events == (everything[-tail:] if tail else ())
            assert (loaded.head.version, loaded.fields) == (10, {"n": 9})
            assert loaded.damaged == ()

    async def test_load_since_a_time_includes_that_time(self, store: Store) -> None:
        """Only events recorded at or after the time are loaded, at most the tail."""
        await create(store, A)
        for _ in range(5):
            await add(store, A)
        events = await log(store, A)
        for since_us in (0, events[3].at_us, events[-1].at_us, events[-1].at_us + 1):
            for tail in (0, 2, 100):
                loaded = await store.load(A, tail=tail, since_us=since_us)
                last = events[-tail:] if tail else ()
                assert loaded.events == tuple(e for e in last if e.at_us >= since_us)

    async def test_state_matches_the_log(self, store: Store) -> None:
        """Replaying the log gives the head, the fields and their versions."""
        made = await create(store, A, {"n": 0, "list": [], "gone": 1})
        await add(store, A, draft("user.said", {"text": "x" * 60}, add={"list": [1, "two"]}))
        await add(store, A, draft(inc={"n": 2}, delete=["gone"], set={"app:a": 1}))
        await add(store, A, draft("session.labeled", {"labels": {"plan": "gold"}}))
        loaded = await load(store, A)
        start = Fold(blank(A, made.head.uid, made.head.created_us))
        assert Fold(loaded.head, loaded.fields, loaded.versions) == replay_all(
            start, await log(store, A)
        )
        assert loaded.versions == {"n": 3, "list": 2}

    async def test_a_load_is_of_one_instant(self, store: Store) -> None:
        """While a writer is active, head, fields, scopes and events are always consistent."""
        await create(store, A, {"n": 0, "app:n": 0})
        writing = asyncio.gather(
            *(add(store, A, draft(inc={"n": 1, "app:n": 1})) for _ in range(40))
        )
        while not writing.done():
            loaded = await load(store, A, 3)
            assert loaded.fields["n"] == loaded.scopes["app:n"].value == loaded.head.version - 1
            assert loaded.events[-1].seq == loaded.head.version
            assert loaded.events[-1].link == loaded.head.link
            await asyncio.sleep(0)
        await writing

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
    @pytest.mark.parametrize("reverse", [False, True])
    async def test_pages_meet_every_event_once(
        self, store: Store, size: int, *, reverse: bool
    ) -> None:
        """Paging in both directions returns the whole log in order, for any page size."""
        await create(store, A)
        await add(store, A, *(draft() for _ in range(13)))
        met = await _pages(store, size, reverse=reverse)
        seqs = [event.seq for event in met]
        assert seqs == (list(range(14, 0, -1)) if reverse else list(range(1, 15)))

    async def test_reading_beyond_either_end_gives_nothing(self, store: Store) -> None:
        """There are no events after the newest and none before the first."""
        await create(store, A)
        await add(store, A, draft(), draft())
        assert await store.read(A, after=3, limit=9, reverse=False, types=None) == ()
        assert await store.read(A, after=99, limit=9, reverse=False, types=None) == ()
        assert await store.read(A, after=1, limit=9, reverse=True, types=None) == ()
        behind = await store.read(A, after=99, limit=9, reverse=True, types=None)
        assert [event.seq for event in behind] == [3, 2, 1]

    @pytest.mark.parametrize(
        "types",
        [
            ("user.message",),
            ("user.*",),
            ("user.message.*",),
            ("user.*", "user.message", "agent.message"),
            ("a_b.x",),
            ("a_b.*",),
            ("a%b.*", "a[b].*"),
            ("a[b].x",),
            ("USER.*",),
            ("nothing.*", "not.there"),
            (),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("reverse", [False, True])
    async def test_types_select_exactly(
        self, store: Store, types: tuple[str, ...], *, reverse: bool
    ) -> None:
        """A name selects itself, a family its members, once each, in order, also by pages."""
        await create(store, A)
        await add(store, A, *(draft(type, {"text": "hi"}) for type in TYPES * 2))
        expected = [event for event in await log(store, A) if wanted(event.type, types)]
        if reverse:
            expected.reverse()
        for size in (1, 2, 100):
            assert await _pages(store, size, reverse=reverse, types=types) == expected

    async def test_what_is_read_is_read_only(self, store: Store) -> None:
        """Every call returns data and state in containers that cannot be changed."""
        await create(store, A, {"plan": {"steps": [1]}})
        await add(store, A, draft(data={"parts": [{}]}, set={"app:a": [1]}))
        loaded = await load(store, A)
        data = loaded.events[-1].data
        assert type(loaded.fields) is type(data) is FrozenDict
        assert type(loaded.fields["plan"]["steps"]) is type(data["parts"]) is FrozenList
        assert type(loaded.scopes["app:a"].value) is FrozenList

    @pytest.mark.parametrize(
        "value",
        [
            {"int": [2**63 - 1, -(2**63), 0], "float": [0.1, -0.0, 1e308, 5e-324, 1.0]},
            {"text": ["", " ", "\x00", "\u2028", "🎉", "\ufffe", "a" * 70_000]},
            {"none": None, "bool": [True, False], "empty": [{}, []], "": {"": ""}},
        ],
        ids=["numbers", "text", "rest"],
    )
    async def test_values_survive_exactly(self, store: Store, value: dict[str, object]) -> None:
        """Stored values equal the given ones, including their types."""
        await create(store, A, {"value": value, "app:value": value})
        await add(store, A, draft(data=value))
        loaded = await load(store, A)
        for back in (
            loaded.fields["value"],
            loaded.scopes["app:value"].value,
            (await log(store, A))[1].data,
        ):
            assert repr(back) == repr(value)

    async def test_large_states_load_as_they_were_written(self, store: Store) -> None:
        """A state of many large events, beyond every cache limit, is exact."""
        await create(store, A, {"log": []})
        for place in range(60):
            text = f"{place:04}" * 600
            await add(store, A, draft("note.made", {"text": text}, add={"log": [text]}))
        loaded = await load(store, A, 5)
        assert loaded.fields["log"] == [f"{place:04}" * 600 for place in range(60)]
        assert [event.seq for event in loaded.events] == [57, 58, 59, 60, 61]

    async def test_reading_changes_nothing(self, store: Store) -> None:
        """Load, read, heads and verify do not change the store."""
        await create(store, A, {"n": 0})
        before = await picture(store)
        await log(store, A)
        await store.verify(None)
        assert await picture(store) == before

    @pytest.mark.parametrize(
        ("ending", "error"),
        [("none", SessionNotFound), ("delete", SessionDeleted), ("erase", SessionErased)],
    )
    async def test_what_is_not_there_is_said_so(
        self, store: Store, ending: str, error: type[LimpetError]
    ) -> None:
        """Load, read and verify distinguish missing, deleted and erased sessions."""
        if ending != "none":
            await create(store, A)
            await (store.delete(A) if ending == "delete" else store.erase(A))
        with pytest.raises(error):
            await load(store, A)
        with pytest.raises(error):
            await log(store, A)
        with pytest.raises(error):
            await store.verify(A)
