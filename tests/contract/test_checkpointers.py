"""Laws of checkpointers, each on memory, on a Limpet, on a SQLite file and on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

import limpet
from limpet.errors import (
    CheckpointRecordInvalid,
    InvalidInput,
    InvalidQuery,
    SessionWriteConflict,
)
from limpet.graph.checkpoint import (
    CheckpointFilter,
    CheckpointRecord,
    Frame,
    InMemoryCheckpointer,
    JointCheckpointer,
    LeasingCheckpointer,
    Position,
)
from limpet.graph.sessions import InMemorySessionStore, SessionRecord
from limpet.graph.state import State
from limpet.graph.stores.checkpoints import LimpetCheckpointer, SQLiteCheckpointer
from limpet.graph.stores.sessions import LimpetSessionStore, SQLiteSessionStore
from limpet.ops import Add, Set
from limpet.store.memory import MemoryStore
from limpet.testing.clock import START, FakeClock
from tests.support import graph_stores
from tests.support.graph_stores import KINDS, Place
from tests.support.graphs import gives, line

NOW = datetime(2026, 5, 17, tzinfo=UTC)


class Count(State):
    n: int = 0


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Place:
    return graph_stores.place(request)


@pytest.fixture
async def cp(place: Place) -> AsyncIterator[Any]:
    """Every checkpointer, empty."""
    async with graph_stores.checkpointer(place) as opened:
        yield opened


def record(id: str = "i", state: dict[str, Any] | None = None, **how: Any) -> CheckpointRecord:
    """A record of a run that goes on at node `b`."""
    frame = Frame(node="b", state=state or {"messages": []})
    given = {"correlation_id": "c", "last_saved_at": NOW, "schema_version": "v1", **how}
    return CheckpointRecord(
        invocation_id=id, state=frame.state, cursor=given.pop("cursor", (frame,)), **given
    )


def kept(found: CheckpointRecord | None) -> CheckpointRecord:
    """A loaded record, but for the revision and the time, which are the store's."""
    assert found is not None
    return msgspec.structs.replace(found, revision=1, last_saved_at=NOW)


def unasked() -> NoReturn:
    raise AssertionError("the whole record was asked for")


def messages(*items: str) -> Any:
    return Add(("cursor", 0, "state", "messages"), list(items))


# --- one record ----------------------------------------------------------------------------------


def test_a_checkpointer_of_ours_can_store_changes_and_let_one_resume(cp: Any) -> None:
    """Both abilities beyond the plain protocol."""
    assert isinstance(cp, LeasingCheckpointer)


async def test_an_invocation_that_never_was_is_none(cp: Any) -> None:
    """Loading is no error, and makes nothing."""
    assert await cp.load("i") is None
    assert await cp.latest("c") is None
    assert await cp.list() == ()


async def test_a_record_is_loaded_as_it_was_saved(cp: Any) -> None:
    """With everything in it: cursor, positions, parents' states, suspension."""
    saved = record(
        state={"n": [1, 2.5, None, {"deep": "λ"}]},
        completed_positions=(
            Position(node="a", step=1),
            Position(node="x", step=2, parents=("sub",), fan_out_index=3, branch_name="left"),
        ),
        session_id="s",
        status="suspended",
        suspension={"signal_id": "x", "metadata": {}},
        graph="abc",
    )
    await cp.save(saved)
    assert kept(await cp.load("i")) == saved


async def test_a_record_without_a_cursor_is_kept_as_well(cp: Any) -> None:
    """Such a record has its states beside its positions."""
    saved = record(state={"n": 1}, cursor=None, parent_states=({"p": 1},))
    await cp.save(saved)
    assert kept(await cp.load("i")) == saved


async def test_a_save_replaces_the_record(cp: Any) -> None:
    """Nothing of the old one is left."""
    await cp.save(record(state={"old": 1}, session_id="s"))
    newer = record(state={"new": 1})
    await cp.save(newer)
    assert kept(await cp.load("i")) == newer


async def test_the_store_counts_the_saves_of_a_record_and_says_when_they_were(cp: Any) -> None:
    """Neither the revision nor the time of what is saved is taken over: clients differ in both."""
    await cp.save(record(revision=9, last_saved_at=NOW))
    found = [await cp.load("i")]
    await cp.save_changes("i", (messages("hi"),), unasked)
    found.append(await cp.load("i"))
    await cp.save(record(revision=9, last_saved_at=NOW))
    found.append(await cp.load("i"))
    revisions, times = [r.revision for r in found], [r.last_saved_at for r in found]
    assert revisions == sorted(set(revisions))
    assert revisions[0] == 1
    assert NOW < times[0] <= times[1] <= times[2]
    if (session := await cp.session("i") if hasattr(cp, "session") else None) is not None:
        assert (times[2], revisions[2]) == (session.head.updated_at, session.version)


async def test_a_client_whose_clock_is_wrong_does_not_date_a_checkpoint() -> None:
    """The store's clock does, for every step and in listings."""
    clock = FakeClock()
    store = MemoryStore(clock.clock())
    async with limpet.Limpet("memory://", store=store) as lp:
        cp = LimpetCheckpointer(lp, "support")
        graph = line(Count, a=gives(n=1), b=gives(n=2)).with_checkpointer(cp).compile()
        await graph.invoke(invocation_id="i")
        found = await cp.load("i")
        assert found is not None
        assert found.last_saved_at == START
        (listed,) = await cp.list()
        assert listed.last_saved_at == found.last_saved_at


async def test_a_change_is_applied_to_the_stored_record(cp: Any) -> None:
    """Operations on the document, without the whole record being asked for."""
    await cp.save(record())
    await cp.save_changes("i", (messages("hi"),), unasked)
    await cp.save_changes("i", (messages("ho"),), unasked)
    assert (await cp.load("i")).state == {"messages": ["hi", "ho"]}


async def test_overlapping_changes_keep_the_order_in_which_they_were_made(cp: Any) -> None:
    """Fifty saves under way at a time."""
    await cp.save(record())
    names = [str(number) for number in range(50)]
    await asyncio.gather(*[cp.save_changes("i", (messages(n),), unasked) for n in names])
    assert (await cp.load("i")).state == {"messages": names}


async def test_steps_that_overlap_with_the_first_save_come_after_it(cp: Any) -> None:
    """A fan-out may complete several instances while its first record is being written."""
    items: list[str] = []

    def grown(name: str) -> CheckpointRecord:
        items.append(name)
        return record(state={"messages": list(items)}, revision=len(items))

    def step(name: str) -> Any:
        return cp.save_changes("i", (messages(name),), lambda: grown(name))

    await asyncio.gather(cp.save(record()), *[step(str(number)) for number in range(9)])
    assert (await cp.load("i")).state == {"messages": [str(number) for number in range(9)]}


async def test_a_change_of_an_unknown_record_saves_it_whole(cp: Any) -> None:
    """For one whose record was deleted, and for a new object that has not seen it."""
    whole = record(state={"messages": ["hi"]})
    await cp.save_changes("i", (messages("hi"),), lambda: whole)
    assert kept(await cp.load("i")) == whole


async def test_a_change_that_is_too_large_for_an_event_saves_the_record_whole(cp: Any) -> None:
    """More operations than an event holds."""
    await cp.save(record(state={"n": 0}))
    many = tuple([Set(("cursor", 0, "state", "n"), n) for n in range(1, 1500)])
    await cp.save_changes("i", many, lambda: record(state={"n": 1499}))
    assert (await cp.load("i")).state == {"n": 1499}


async def test_one_of_several_resumers_gets_the_record(cp: Any) -> None:
    """Each saw the same revision; a later one, and one of no record at all, is refused."""
    await cp.save(record(status="suspended"))
    taken, revision = record(status="running"), (await cp.load("i")).revision
    answers = await asyncio.gather(*[cp.claim(taken, revision) for _ in range(6)])
    assert sorted(answers) == [False] * 5 + [True]
    assert not await cp.claim(taken, revision)
    assert not await cp.claim(record("none"), 1)
    assert (await cp.load("i")).status == "running"
    assert await cp.load("none") is None


async def test_one_of_several_that_begin_an_invocation_gets_it(cp: Any) -> None:
    """Revision 0 is that of no record; of a deleted one as well. Its steps follow the claim."""
    for _ in range(2):
        answers = await asyncio.gather(*[cp.claim(record(), 0) for _ in range(6)])
        assert sorted(answers) == [False] * 5 + [True]
        assert not await cp.claim(record(), 0)
        await cp.save_changes("i", (messages("hi"),), unasked)
        assert (await cp.load("i")).state == {"messages": ["hi"]}
        await cp.delete("i")


async def test_delete_removes_a_record_and_is_idempotent(cp: Any) -> None:
    """A record that is not there is deleted as well as one that is; a save makes it again."""
    await cp.delete("i")
    await cp.save(record(state={"n": 1}))
    await cp.delete("i")
    await cp.delete("i")
    assert await cp.load("i") is None
    assert await cp.list() == ()
    await cp.save(record(state={"n": 2}))
    assert (await cp.load("i")).state == {"n": 2}


# --- many records --------------------------------------------------------------------------------


async def test_a_listing_has_summaries_that_match_the_filter(cp: Any) -> None:
    """By correlation, session, schema version, status and time, one or several at once."""
    await cp.save(record("a", correlation_id="c1", session_id="s1"))
    await cp.save(record("b", correlation_id="c1", session_id="s2", status="suspended"))
    await cp.save(record("d", correlation_id=" odd ", schema_version="", status="completed"))
    before = (await cp.load("d")).last_saved_at
    await cp.save(record("e"))

    async def ids(**how: Any) -> list[str]:
        return sorted(item.invocation_id for item in await cp.list(CheckpointFilter(**how)))

    assert await ids() == ["a", "b", "d", "e"]
    assert await ids(correlation_id="c1") == ["a", "b"]
    assert await ids(correlation_id="c1", status="suspended") == ["b"]
    assert await ids(correlation_id=" odd ") == ["d"]
    assert await ids(session_id="s1") == ["a"]
    assert await ids(schema_version="") == ["d"]
    assert await ids(saved_after=before) == ["e"]
    assert await ids(status="suspended", session_id="s1") == []
    (found,) = await cp.list(CheckpointFilter(saved_after=before))
    assert found == (await cp.load("e")).summary()


async def test_the_first_run_of_a_correlation_is_listed_with_the_others(cp: Any) -> None:
    """It has the correlation's id for its own: listed once, page by page, and found as latest."""
    await cp.save(record("c", correlation_id="other", session_id="s"))
    await cp.save(record("d", correlation_id="c"))

    async def ids(**how: Any) -> list[str]:
        cursor, found = None, []
        while True:
            page = await cp.list(CheckpointFilter(correlation_id="c", cursor=cursor, **how))
            found += [item.invocation_id for item in page]
            if (cursor := page.cursor) is None:
                return found

    assert await ids() == ["d"]  # a stranger's id is not a correlation
    assert (await cp.latest("c")).invocation_id == "d"
    await cp.save(record("c", correlation_id="c", session_id="s"))
    await cp.save(record("e", correlation_id="c"))
    for limit in (None, 1, 2, 3):
        assert await ids(limit=limit) == ["c", "d", "e"]
    assert await ids(session_id="s") == ["c"]
    assert (await cp.latest("c")).invocation_id == "e"
    assert (await cp.latest("c", session_id="s")).invocation_id == "c"
    await cp.delete("d")
    await cp.delete("e")
    assert (await cp.latest("c")).invocation_id == "c"
    assert await cp.latest("d") is None


async def test_the_first_run_of_a_correlation_is_found_however_long_ago_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if it is not among the invocations that were saved last."""
    monkeypatch.setattr("limpet.graph.stores.checkpoints._PAGE", 1)
    async with limpet.open("memory://") as lp:
        cp = LimpetCheckpointer(lp, "support")
        for id in "cde":
            await cp.save(record(id, correlation_id=id))
        found = await cp.latest("c")
        assert found is not None
        assert found.invocation_id == "c"
        assert await cp.latest(" odd ") is None


async def test_a_status_that_a_step_changed_is_found(cp: Any) -> None:
    """The last step of a run says that it is completed."""
    await cp.save(record())
    await cp.save_changes("i", (Set(("status",), "completed"),), unasked)
    assert await cp.list(CheckpointFilter(status="running")) == ()
    (found,) = await cp.list(CheckpointFilter(status="completed"))
    assert (found.invocation_id, found.status) == ("i", "completed")


async def test_pages_meet_every_record_once(cp: Any) -> None:
    """With a limit and the cursor of the page before."""
    for number in range(7):
        await cp.save(record(f"i{number}", session_id="s" if number % 2 else None))
    for session_id, count in ((None, 7), ("s", 3)):
        met, cursor, pages = [], None, 0
        while pages == 0 or cursor is not None:
            page = await cp.list(CheckpointFilter(session_id=session_id, limit=2, cursor=cursor))
            assert len(page) <= 2
            met += [item.invocation_id for item in page]
            cursor, pages = page.cursor, pages + 1
        assert len(met) == len(set(met)) == count


async def test_the_latest_is_the_one_that_was_saved_last(cp: Any) -> None:
    """Not the one that began last; and never one of another correlation id."""
    for id in ("old", "new"):
        await cp.save(record(id))
    await cp.save(record("other", correlation_id="another"))
    assert (await cp.latest("c")).invocation_id == "new"
    await cp.save_changes("old", (messages("hi"),), unasked)
    assert (await cp.latest("c")).invocation_id == "old"
    assert await cp.latest("none") is None


async def test_the_latest_of_a_session_needs_no_table_of_its_invocations(cp: Any) -> None:
    """Whatever their correlation ids are; with both given, both count."""
    for id, session_id in (("one", "s"), ("two", "s"), ("three", "other"), ("four", None)):
        await cp.save(record(id, session_id=session_id, correlation_id=f"c-{id}"))
    assert (await cp.latest(session_id="s")).invocation_id == "two"
    assert (await cp.latest("c-one", session_id="s")).invocation_id == "one"
    assert (await cp.latest()).invocation_id == "four"
    assert await cp.latest("c-three", session_id="s") is None
    assert await cp.latest(session_id="none") is None


async def test_the_latest_is_found_behind_many_others(cp: Any) -> None:
    """Even where a hundred other invocations were saved since."""
    await cp.save(record("first", correlation_id="mine"))
    await cp.save(record("second", correlation_id="mine"))
    for number in range(105):
        await cp.save(record(f"i{number}"))
    assert (await cp.latest("mine")).invocation_id == "second"


# --- retention -----------------------------------------------------------------------------------


async def test_only_so_many_completed_invocations_are_kept(place: Place) -> None:
    """The ones that were completed last; those that run or wait are never deleted."""
    async with graph_stores.checkpointer(place, keep=2) as cp:
        await cp.save(record("running"))
        await cp.save(record("waiting", status="suspended"))
        for number in range(5):
            await cp.save(record(f"i{number}"))
            await cp.save_changes(f"i{number}", (Set(("status",), "completed"),), unasked)
        kept = sorted(item.invocation_id for item in await cp.list())
        assert kept == ["i3", "i4", "running", "waiting"]


@pytest.mark.parametrize("keep", [0, -1, "2", True])
def test_a_number_to_keep_that_is_none_is_refused(keep: Any) -> None:
    """At once, not when the first invocation is complete."""
    with pytest.raises(InvalidInput, match="keep is a number"):
        SQLiteCheckpointer("x.db", keep=keep)
    with pytest.raises(InvalidInput, match="keep is a number"):
        InMemoryCheckpointer(keep=keep)


@pytest.mark.arguments
@pytest.mark.parametrize("id", ["", " i", "i\n", "i" * 300, 5, None])
async def test_an_invocation_id_that_no_key_holds_is_refused(place: Place, id: Any) -> None:
    """By every checkpointer, the one in memory too."""
    async with graph_stores.checkpointer(place) as cp:
        for call in (cp.save(record(id)), cp.load(id), cp.delete(id)):
            with pytest.raises(limpet.errors.InvalidKey):
                await call
        assert await cp.list() == ()


@pytest.mark.arguments
@pytest.mark.parametrize(
    "wrong",
    [
        CheckpointFilter(limit=0),
        CheckpointFilter(limit="1"),  # type: ignore[arg-type]
        CheckpointFilter(saved_after=datetime(2026, 1, 1)),  # noqa: DTZ001  # without a time zone
        {"status": "running"},
    ],
)
async def test_a_filter_that_is_none_is_refused(place: Place, wrong: Any) -> None:
    """By every checkpointer in the same words."""
    async with graph_stores.checkpointer(place) as cp:
        with pytest.raises(InvalidQuery):
            await cp.list(wrong)


# --- together with a session ---------------------------------------------------------------------


def session(state: dict[str, Any]) -> SessionRecord:
    return SessionRecord(session_id="s", state=state, schema_version="v1")


async def test_a_record_and_a_session_of_one_limpet_are_saved_in_one_commit() -> None:
    """Both are there, and both were recorded at one moment, as often as it is done."""
    async with limpet.open("memory://") as lp:
        cp, store = LimpetCheckpointer(lp, "support"), LimpetSessionStore(lp, "support", "ada")
        assert isinstance(cp, JointCheckpointer)
        assert cp.joins(store)
        for number in (1, 2, 3):
            suspended = record(status="suspended")
            await cp.save_with_session(suspended, store, session({"n": number}))
            assert kept(await cp.load("i")) == suspended
            found = await store.load("s")
            assert found is not None
            assert (found.state, found.schema_version) == ({"n": number}, "v1")
            heads = [(await lp.get(*key)).head for key in (("support", "invocations", "i"),)]
            heads.append((await lp.get("support", "ada", "s")).head)
            assert heads[0].updated_us == heads[1].updated_us
        assert [item.invocation_id for item in await cp.list()] == ["i"]


async def test_a_conflict_saves_neither_the_session_nor_the_record() -> None:
    """With an expected version that is not the stored one, nothing is there afterwards."""
    async with limpet.open("memory://") as lp:
        cp, store = LimpetCheckpointer(lp, "support"), LimpetSessionStore(lp, "support", "ada")
        with pytest.raises(SessionWriteConflict):
            await cp.save_with_session(record(), store, session({}), expected_version=3)
        assert (await cp.load("i"), await store.load("s")) == (None, None)
        assert (await cp.list(), await store.list()) == ((), ())
        version = await cp.save_with_session(record(), store, session({}), expected_version=0)
        newer = await store.save("s", session({"n": 1}))
        with pytest.raises(SessionWriteConflict) as raised:
            await cp.save_with_session(
                record(state={"n": 2}), store, session({"n": 2}), expected_version=version
            )
        assert raised.value.actual_version == newer
        assert kept(await cp.load("i")) == record()


async def test_a_step_after_the_file_was_closed_opens_it_again(tmp_path: Path) -> None:
    """What was remembered of the closed file is not used: the record is saved whole."""
    cp = SQLiteCheckpointer(tmp_path / "a.db")
    await cp.save(record())
    await cp.close()
    await cp.save_changes("i", (messages("hi"),), lambda: record(state={"messages": ["hi"]}))
    assert (await cp.load("i")).state == {"messages": ["hi"]}  # type: ignore[union-attr]
    await cp.close()


async def test_stores_join_where_they_share_a_file(tmp_path: Path) -> None:
    """One path, one database; another path, another Limpet or memory do not join."""
    cp, store = SQLiteCheckpointer(tmp_path / "a.db"), SQLiteSessionStore(tmp_path / "a.db")
    assert cp.joins(store)
    assert not cp.joins(SQLiteSessionStore(tmp_path / "b.db"))
    assert not cp.joins(InMemorySessionStore())
    await cp.save_with_session(record(), store, session({"n": 1}))
    assert (await store.load("s")).state == {"n": 1}  # type: ignore[union-attr]
    with pytest.raises(InvalidInput, match="elsewhere"):
        await cp.save_with_session(record(), InMemorySessionStore(), session({}))
    await cp.close()
    await store.close()


# --- what is stored ------------------------------------------------------------------------------


async def test_a_step_records_what_it_changed_and_nothing_more() -> None:
    """One event a step, of the same size after a thousand steps as after one."""
    async with limpet.open("memory://") as lp:
        cp = LimpetCheckpointer(lp, "support")
        await cp.save(record())
        for number in range(300):
            await cp.save_changes("i", (messages(f"message {number:03}"),), unasked)
        s = await cp.session("i")
        assert s is not None
        events = await s.read(after=1, limit=1000)
        assert len(events) == 300
        sizes = {len(msgspec.json.encode(event.ops)) for event in events}
        assert len(sizes) == 1


async def test_what_is_stored_and_is_not_a_record_is_refused() -> None:
    """A session of the application that happens to have an invocation's key."""
    async with limpet.open("memory://") as lp:
        await lp.create("support", "invocations", "i", state={"n": 1})
        with pytest.raises(CheckpointRecordInvalid, match="not a record"):
            await LimpetCheckpointer(lp, "support").load("i")


@pytest.mark.parametrize("kind", ["limpet-memory", "sqlite"])
async def test_joint_saves_race_with_others_and_none_is_lost(kind: str, tmp_path: Path) -> None:
    """Records and sessions that are saved together, and sessions that are saved alone."""
    url = "memory://" if kind == "limpet-memory" else f"sqlite:///{tmp_path}/race.db?sync=normal"
    async with limpet.open(url) as lp:
        cp, store = LimpetCheckpointer(lp, "support"), LimpetSessionStore(lp, "support", "ada")
        joint = [
            cp.save_with_session(record(f"i{number}"), store, session({"joint": number}))
            for number in range(6)
        ]
        alone = [store.save("s", session({"alone": number})) for number in range(6)]
        versions = await asyncio.gather(*joint, *alone)
        assert len(set(versions)) == 12
        found = await store.load("s")
        assert found is not None
        assert found.version == max(versions)
        assert len(found.state) == 1
        assert len(await cp.list()) == 6
        log = await lp.session("support", "ada", "s").read(types=["graph.saved"])
        assert len(log) >= 11  # all but the one that created the session
        assert (await lp.maintenance.verify()).ok


@pytest.fixture(params=KINDS[1:])
def bounded_place(request: pytest.FixtureRequest) -> Place:
    """Where an event has a largest size."""
    return graph_stores.place(request)


async def test_a_state_that_is_too_large_is_refused_whole(bounded_place: Place) -> None:
    """More than an event may hold: nothing of it is stored, and the last record stands."""
    async with graph_stores.checkpointer(bounded_place) as cp:
        await cp.save(record(state={"n": 1}))
        with pytest.raises(limpet.errors.EventTooLarge):
            await cp.save(record(state={"n": "x" * 9 * 2**20}))
        assert (await cp.load("i")).state == {"n": 1}
