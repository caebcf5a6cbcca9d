"""A session's past, as its owner uses it: states, diffs, forks, rewinds, merges, blame, bisect."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest

import limpet
from limpet import InvalidInput, MigrationRegistry, State, ops
from limpet.errors import MergeConflict

Made = limpet.Session[Any]


async def orders(lp: limpet.Limpet, id: str = "1") -> Made:
    """Six events: the total goes down and a list grows."""
    s = await lp.create("shop", "ada", id, state={"total": 30, "items": []}, actor="agent:main")
    for number in range(5):
        await s.append("agent.sold", inc={"total": -10}, add={"items": [{"n": number}]})
    return s


# --- states and diffs ----------------------------------------------------------------------------


async def test_a_state_is_that_after_an_event_a_time_or_a_checkpoint(lp: limpet.Limpet) -> None:
    """The same state by the seq of an event and by its time; a time in between is the event's."""
    s = await orders(lp)
    for event in await s.read():
        expected = {"total": 40 - 10 * event.seq, "items": [{"n": n} for n in range(event.seq - 1)]}
        assert await s.history.at(event.seq) == expected
        assert (await s.history.at(event.at))["total"] <= expected["total"]
    assert await s.history.at(datetime.now(UTC) + timedelta(days=1)) == s.state


async def test_a_text_names_a_place_as_the_command_line_does(lp: limpet.Limpet) -> None:
    """A seq, a time, a checkpoint: for state_at, diff, fork and rewind alike."""
    s = await orders(lp)
    third = (await s.read())[2]
    ref = await s.checkpoint()
    await s.append("order.item", set={"total": -1}, actor="agent:main")
    assert await s.history.at("3") == await s.history.at(3)
    assert await s.history.at(third.at.isoformat()) == await s.history.at(third.at)
    assert await s.history.at("#1") == await s.history.at(ref)
    assert await s.history.diff("2", "#1") == await s.history.diff(2, ref)
    assert (await s.fork("#1", id="fork")).state == await s.history.at(ref)
    await s.rewind("#1", actor="agent:main")
    assert s.state == await s.history.at(ref)


async def test_a_place_that_is_not_in_the_history_is_refused(lp: limpet.Limpet) -> None:
    """Before the beginning, beyond the newest event, without a zone, or of another kind."""
    s = await orders(lp)
    long_ago = datetime(2001, 1, 1, tzinfo=UTC)
    for when in (
        0,
        -1,
        7,
        long_ago,
        long_ago.replace(tzinfo=None),
        True,
        "7",
        "soon",
        "9" * 5_000,
        None,
    ):
        with pytest.raises(InvalidInput):
            await s.history.at(when)  # type: ignore[arg-type]
    with pytest.raises(limpet.errors.NoCheckpoint):
        await s.rewind("#1")
    elsewhere = limpet.CheckpointRef(limpet.Key("shop", "ada", "2"), 1, 2, "00")
    with pytest.raises(InvalidInput, match="checkpoint is of shop/ada/2"):
        await s.history.at(elsewhere)
    with pytest.raises(limpet.errors.CheckpointIntegrity):
        await s.history.at(limpet.CheckpointRef(s.key, 1, 2, "00"))


async def test_a_handle_of_a_session_that_was_replaced_sees_none_of_the_new_one(
    lp: limpet.Limpet,
) -> None:
    """After the key was reused, the older object is refused as on every other verb."""
    s = await orders(lp)
    await lp.delete(s.key)
    await lp.create("shop", "ada", "1", reuse_deleted=True)
    for ask in (s.history.at(1), s.fork(1), s.rewind(1), s.history.lineage()):
        with pytest.raises(limpet.errors.SessionDeleted):
            await ask


async def test_a_diff_is_what_changed_between_two_places(lp: limpet.Limpet) -> None:
    """Applied to the first state it gives the second; without a second place it goes to now."""
    s = await orders(lp)
    found = await s.history.diff(2, 5)
    assert found.apply(await s.history.at(2)) == await s.history.at(5)
    assert (await s.history.diff(5)).apply(await s.history.at(5)) == s.state
    assert not await s.history.diff(6)


# --- forks ---------------------------------------------------------------------------------------


async def test_a_fork_goes_on_from_any_event(lp: limpet.Limpet) -> None:
    """Its state, history and seqs are the parent's up to there; the parent is not written to."""
    s = await orders(lp)
    await s.append("user.said", {"text": "hm"})
    before = await lp.get(s.key)
    fork = await s.fork(3, id="try", labels={"plan": "b"}, actor="agent:other")
    assert (fork.version, fork.state, dict(fork.labels)) == (
        4,
        await s.history.at(3),
        {"plan": "b"},
    )
    await fork.append("agent.sold", inc={"total": 5})
    assert [event.seq for event in await fork.read()] == [1, 2, 3, 4, 5]
    assert (await fork.read())[:3] == (await s.read())[:3]
    again = await lp.get(s.key)
    assert (again.head, again.state) == (before.head, before.state)
    assert fork.head.pending == 0
    assert (await fork.read(after=3, limit=1))[0].actor == "agent:other"
    assert (await lp.maintenance.verify()).ok


async def test_a_fork_of_now_of_another_user_or_below_its_own_floor(lp: limpet.Limpet) -> None:
    """Without a place it goes on from the last event; a fork can be forked where its parent was."""
    s = await orders(lp)
    mine = await s.fork(user="bob")
    assert (mine.key.user, mine.version, mine.state) == ("bob", 7, s.state)
    deep = await mine.fork(2, id="deep")
    assert (deep.version, deep.state) == (3, await s.history.at(2))
    with pytest.raises(limpet.SessionExists):
        await s.fork(2, id="1")
    assert (await lp.maintenance.verify()).ok


async def test_a_fork_keeps_its_state_whatever_becomes_of_its_parent(lp: limpet.Limpet) -> None:
    """Deleted, the parent is still read through; erased with forks="keep", its events are not."""
    s = await orders(lp)
    fork, deeper = await s.fork(3, id="f"), await (await s.fork(5, id="g")).fork(4, id="h")
    await lp.delete(s.key)
    kept = await lp.get(fork.key)
    assert (kept.state, len(await kept.read())) == (fork.state, 4)
    assert await kept.history.at(2) == {"total": 20, "items": [{"n": 0}]}
    assert (await lp.get(deeper.key)).state["total"] == 0
    await lp._journal.store.erase(s.key, forks="keep")
    kept = await lp.get(fork.key)
    assert kept.state == fork.state
    assert [event.removed for event in await kept.read()] == [True, True, True, False]
    with pytest.raises(limpet.errors.SessionCorrupt):
        await kept.history.at(2)
    assert await kept.history.bisect(lambda state: False) == kept.events[-1]
    assert (await lp.maintenance.verify()).ok


# --- rewinds -------------------------------------------------------------------------------------


async def test_a_rewind_restores_exactly_and_can_be_rewound(lp: limpet.Limpet) -> None:
    """It is one event; labels, timers and inputs stay; the same state records nothing."""
    s = await orders(lp)
    await s.label({"plan": "gold"})
    await s.append("user.said", {"text": "hm"})
    then, now = await s.history.at(3), s.state
    done = await s.rewind(3, actor="user:ada")
    assert done.event is not None
    assert (done.event.type, done.event.actor) == ("session.rewound", "user:ada")
    assert (done.restored, done.left) == (("items", "total"), ())
    assert s.state == then == (await lp.get(s.key)).state
    assert (dict(s.labels), s.head.pending) == ({"plan": "gold"}, 1)
    assert (await s.rewind(3)).event is None
    await s.rewind(8)
    assert s.state == now
    assert (await lp.maintenance.verify()).ok


async def test_a_rewind_takes_back_only_shared_names_that_nobody_else_changed(
    lp: limpet.Limpet,
) -> None:
    """Back to what each was before this session changed it; the others are left, and named."""
    s, other = await orders(lp), await orders(lp, "2")
    await other.append("agent.did", set={"app:mine": "old", "user:both": 1, "app:early": 1})
    place = await s.append("agent.did", set={"app:mine": "before", "n": 1})
    await other.append("agent.did", set={"app:early": 2, "app:theirs": 1})
    await s.append(
        "agent.did",
        set={"app:mine": "new", "user:both": 2, "app:early": 3, "app:made": [1]},
    )
    await s.append("agent.did", delete=["app:made"], set={"app:gone": 1})
    await other.append("agent.did", set={"user:both": 3})
    done = await s.rewind(place.seq)
    assert done.left == ("app:early", "user:both")
    assert done.restored == ("app:gone", "app:mine")
    values = (await lp.get(s.key)).values
    assert (values["app:mine"], values["user:both"], values["app:early"]) == ("before", 3, 3)
    assert "app:gone" not in values
    assert values["app:theirs"] == 1
    assert (await lp.maintenance.verify()).ok


async def test_rewinds_of_many_writers_leave_the_state_of_then(lp: limpet.Limpet) -> None:
    """While others write, each rewind is decided again on the newest state until it fits."""
    s = await orders(lp)
    target = await s.history.at(2)
    handles = [await lp.get(s.key, actor="agent:w") for _ in range(3)]
    writes = [h.append("agent.did", inc={"total": 1}) for h in handles]
    done = await asyncio.gather(*writes, *[h.rewind(2) for h in handles])
    seqs = [r.event.seq for r in done[3:] if isinstance(r, limpet.Rewound) and r.event]
    assert seqs
    for seq in seqs:
        assert await s.history.at(seq) == target


async def test_what_is_written_between_reading_and_rewinding_is_not_left_over(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rewind is recorded on the very version that it was decided on, or decided again."""
    s = await orders(lp)
    await s.append("agent.did", set={"app:x": 1})
    store, other = lp._journal.store, await lp.get(s.key, actor="agent:other")
    names_since, raced = store.names_since, []

    async def racing(*args: Any) -> Any:
        if not raced:
            raced.append(await other.append("agent.did", set={"late": True}))
        return await names_since(*args)

    monkeypatch.setattr(store, "names_since", racing)
    await s.rewind(3)
    assert raced
    assert await s.history.at(s.version) == await s.history.at(3)


# --- merges --------------------------------------------------------------------------------------


async def test_a_merge_takes_in_what_the_other_changed_since_the_fork(lp: limpet.Limpet) -> None:
    """Both sides' changes are there; the other is not written to; nothing new records nothing."""
    s = await orders(lp)
    fork = await s.fork(6, id="f")
    assert (await s.merge(fork)).event is None
    await fork.append("agent.did", set={"note": "from the fork"}, inc={"total": 1})
    await s.append("agent.did", set={"own": 1})
    done = await s.merge(fork, actor="user:ada")
    assert done.event is not None
    assert done.event.type == "session.merged"
    assert (done.at, done.event.actor, done.event.data["other"]["id"]) == (8, "user:ada", "f")
    assert (s.state["note"], s.state["own"], s.state["total"]) == ("from the fork", 1, -19)
    assert len(s.state["items"]) == 5
    assert (await s.merge(fork.key)).event is None
    assert (await lp.get(fork.key)).version == fork.version
    assert (await lp.maintenance.verify()).ok


async def test_what_was_merged_once_is_the_base_of_the_next_merge(lp: limpet.Limpet) -> None:
    """A side that went on alone since a merge conflicts with nothing, in either direction."""
    s = await orders(lp)
    fork = await s.fork(6, id="f")
    await fork.append("agent.did", set={"x": 1, "only": "fork"})
    await s.merge(fork)
    await s.append("agent.did", set={"x": 2})
    await fork.append("agent.did", set={"y": 1})
    await s.merge(fork)
    assert (s.state["x"], s.state["y"]) == (2, 1)
    await fork.merge(s)
    assert fork.state == s.state
    await fork.append("agent.did", set={"x": 3})
    await s.merge(fork)
    assert s.state["x"] == 3


async def test_a_fork_that_took_in_its_parent_still_gives_back_its_own(lp: limpet.Limpet) -> None:
    """What the fork changed before it merged the parent is not lost to the parent's merge."""
    s = await orders(lp)
    fork = await s.fork(6, id="f")
    await fork.append("agent.did", set={"only": "fork"})
    await s.append("agent.did", set={"own": 1})
    await fork.merge(s)
    await fork.append("agent.did", set={"own": 2})
    await s.merge(fork)
    assert s.state == fork.state
    assert (s.state["only"], s.state["own"]) == ("fork", 2)


async def test_conflicts_are_decided_by_policy_or_reported_all(lp: limpet.Limpet) -> None:
    """Without a policy nothing is recorded and every conflict is named, with its three values."""
    s = await orders(lp)
    fork = await s.fork(6, id="f")
    await fork.append("agent.did", set={"a": 1, "b": 1, "total": 7})
    await s.append("agent.did", set={"a": 2, "b": 2, "total": 8})
    with pytest.raises(MergeConflict) as caught:
        await s.merge(fork)
    found = {each.path: (each.a, each.b) for each in caught.value.conflicts}
    assert found == {("a",): (2, 1), ("b",): (2, 1), ("total",): (8, 7)}
    assert (await lp.get(s.key)).version == s.version
    done = await s.merge(
        fork, policy=limpet.Priority(a=1, b=2), policies={"a": limpet.Priority(a=2, b=1)}
    )
    assert (s.state["a"], s.state["b"], s.state["total"]) == (2, 1, 7)
    assert {each.path for each in done.resolved} == {("a",), ("b",), ("total",)}


async def test_siblings_merge_on_what_they_share(lp: limpet.Limpet) -> None:
    """Two forks of one session, at different events, are compared with the earlier of the two."""
    s = await orders(lp)
    one, other = await s.fork(3, id="f"), await s.fork(5, id="g")
    await one.append("agent.did", set={"x": 1})
    await other.append("agent.did", set={"y": 1})
    await one.merge(other)
    assert one.state == {**(await s.history.at(5)), "x": 1, "y": 1}


async def test_sessions_without_a_common_history_are_not_merged(lp: limpet.Limpet) -> None:
    """Nor is a session with itself, or one that is not there."""
    s, other = await orders(lp), await orders(lp, "2")
    with pytest.raises(InvalidInput, match="no common history"):
        await s.merge(other)
    with pytest.raises(InvalidInput, match="the session itself"):
        await s.merge(s)
    with pytest.raises(limpet.SessionNotFound):
        await s.merge(("shop", "ada", "3"))
    async with limpet.open("memory://") as elsewhere:
        foreign = await orders(elsewhere)
        with pytest.raises(InvalidInput, match="another store"):
            await s.merge(foreign)


# --- blame ---------------------------------------------------------------------------------------


async def test_blame_names_every_change_of_a_value(lp: limpet.Limpet) -> None:
    """What replaces an ancestor counts, and so does a part; a merge of other names does not."""
    s = await lp.create("shop", "ada", state={"plan": {"steps": ["a"], "x": 1}}, actor="user:ada")
    await s.append("agent.did", set={"other": 1})
    await s.append("agent.did", merge={"plan": {"x": 2}}, actor="agent:x")
    await s.append("agent.did", ops=[ops.Add(("plan", "steps"), ["b"])], actor="agent:b")
    await s.append("agent.did", merge={"plan": {"steps": ["c"]}}, actor="agent:c")
    await s.append("agent.did", delete=["plan"], actor="agent:d")
    await s.append("agent.did", set={"plan": {"steps": []}, "last": 1}, actor="agent:e")
    await s.append("agent.did", set={"last": 2})
    found = await s.history.blame("plan.steps")
    assert [(each.event.seq, each.actor) for each in found] == [
        (7, "agent:e"),
        (6, "agent:d"),
        (5, "agent:c"),
        (4, "agent:b"),
        (1, "user:ada"),
    ]
    assert found[0].op == ops.Set(("plan",), {"steps": []})
    assert found[0].at == found[0].event.at
    assert [each.event.seq for each in await s.history.blame(("plan", "x"))] == [7, 6, 3, 1]
    assert [each.event.seq for each in await s.history.blame("last")] == [8, 7]
    assert await s.history.blame("never") == ()


async def test_blame_follows_items_of_lists_and_shared_names(lp: limpet.Limpet) -> None:
    """An item is the change of who added it; of a shared name, what this session did."""
    s = await orders(lp)
    await s.append("agent.did", set={"app:x": 1})
    await s.append("agent.did", ops=[ops.Cut(("items",), 0, 1)], set={"app:x": 2})
    assert [each.event.seq for each in await s.history.blame("items.1")] == [8, 3, 1]
    assert [each.event.seq for each in await s.history.blame("items.4")] == [8, 6, 1]
    assert [each.event.seq for each in await s.history.blame("app:x")] == [8, 7]
    for path in ("", (), (0,), 3, (None,)):
        with pytest.raises(InvalidInput):
            await s.history.blame(path)  # type: ignore[arg-type]


async def test_blame_takes_a_path_as_a_diff_shows_it(lp: limpet.Limpet) -> None:
    """Dots, indexes in brackets and names in quotes; anything else is refused."""
    s = await lp.create(
        "shop", "ada", actor="x", state={"plan": {"steps": [{"a.b": 1}], "it's": 2}}
    )
    await s.append("x.y", ops=[limpet.ops.Set(("plan", "steps", 0, "a.b"), 5)])
    (change,) = (await s.history.diff(1, 2)).changes
    shown = str(await s.history.diff(1, 2)).split()[1].rstrip(":")
    assert shown == "plan.steps[0]['a.b']"
    for path in (shown, "plan.steps[0]", "plan.steps.0", change.path):
        assert [each.event.seq for each in await s.history.blame(path)] == [2, 1], path
    for path in (
        "",
        ".plan",
        "plan.",
        "plan..x",
        "[0]",
        "plan[",
        "plan[x]",
        "plan['\\x']",
        "plan['\ud800']",
        "a[007]",
    ):
        with pytest.raises(limpet.InvalidInput, match="is not a path"):
            await s.history.blame(path)


async def test_blame_reads_through_to_the_parents(lp: limpet.Limpet) -> None:
    """Of a fork, the events before it are those of the session that it forked."""
    fork = await (await orders(lp)).fork(4, id="f")
    await fork.append("agent.did", set={"total": 0}, actor="agent:f")
    found = await fork.history.blame("total")
    assert [each.event.seq for each in found] == [6, 4, 3, 2, 1]


# --- bisect --------------------------------------------------------------------------------------


async def test_bisect_finds_the_event_in_few_states(lp: limpet.Limpet) -> None:
    """The first event after which it is false, by a function or a coroutine; None if it holds."""
    s = await lp.create("shop", "ada", state={"total": 100}, actor="agent:main")
    for _ in range(40):
        await s.append("agent.paid", inc={"total": -4})
    asked: list[int] = []

    def solvent(state: Any) -> bool:
        asked.append(state["total"])
        return bool(state["total"] >= 0)

    found = await s.history.bisect(solvent)
    assert found is not None
    assert found.seq == 27
    assert len(asked) <= math.ceil(math.log2(41)) + 1

    async def rich(state: Any) -> bool:
        return bool(state["total"] > -1_000)

    assert await s.history.bisect(rich) is None
    first = await s.history.bisect(lambda _: False)
    assert first is not None
    assert first.seq == 1
    with pytest.raises(InvalidInput):
        await s.history.bisect("total")  # type: ignore[arg-type]


# --- lineage -------------------------------------------------------------------------------------


async def test_a_lineage_is_a_tree_of_parents_forks_and_merges(lp: limpet.Limpet) -> None:
    """Upwards the parents, downwards forks and theirs; parents that ended are named."""
    s = await orders(lp)
    fork = await s.fork(3, id="f")
    deep = await fork.fork(4, id="g")
    await fork.append("agent.did", set={"x": 1})
    await s.merge(fork)
    tree = await s.history.lineage()
    assert (tree.key, tree.parent, tree.at) == (s.key, None, 0)
    assert [(each.key, each.at) for each in tree.forks] == [(fork.key, 3)]
    assert [each.key for each in tree.forks[0].forks] == [deep.key]
    assert [(m.key, m.at, m.seq) for m in tree.merges] == [(fork.key, 5, 7)]
    up = await deep.history.lineage()
    assert str(up).splitlines() == [
        str(s.key),
        f"  {fork.key} (from event 3)",
        f"    {deep.key} (from event 4)",
    ]
    assert str(tree).splitlines()[1] == f"  <- {fork.key} up to 5, in event 7"
    assert up.at == 4
    assert up.parent is not None
    assert up.parent.parent is not None
    assert (up.parent.key, up.parent.parent.key) == (fork.key, s.key)
    await lp.delete(fork.key)
    assert (await deep.history.lineage()).parent == limpet.Lineage(fork.key)


# --- typed state ---------------------------------------------------------------------------------


class Old(State):
    schema_version: ClassVar[str] = "1.0.0"
    cents: int = 0


class New(State):
    schema_version: ClassVar[str] = "2.0.0"
    euros: float = 0.0


def migrations() -> MigrationRegistry:
    registry = MigrationRegistry()
    registry.register("1.0.0", "2.0.0", lambda fields: {"euros": fields["cents"] / 100})
    return registry


async def test_typed_state_of_then_is_of_the_class_of_now(lp: limpet.Limpet) -> None:
    """A state of an older schema is migrated to be shown, rewound to or merged."""
    old = await lp.create("shop", "ada", "1", state=Old(cents=100), actor="agent:main")
    await old.apply({"cents": 250})
    fork = await old.fork(1, id="f")
    assert fork.state == Old(cents=100)
    await fork.apply({"cents": 900})
    s = await lp.get(old.key, state_type=New, migrations=migrations(), actor="agent:main")
    assert (s.state, await s.history.at(1)) == (New(euros=2.5), New(euros=1.0))
    found = await s.history.bisect(lambda state: state.euros < 2)
    assert found is not None
    assert found.seq == 2
    with pytest.raises(MergeConflict):
        await s.merge(fork)
    await s.merge(fork, policy=limpet.Priority(a=1, b=2))
    assert s.state == New(euros=9.0)
    await s.rewind(1)
    assert s.state == New(euros=1.0)
    assert s.head.schema_version == "2.0.0"


async def test_typed_state_goes_back_without_its_class_within_one_version(
    lp: limpet.Limpet,
) -> None:
    """What fitted then fits now; over a change of the schema the class is needed."""
    made = await lp.create("shop", "ada", "1", state=Old(cents=100), actor="agent:main")
    await made.apply({"cents": 250})
    plain = await lp.get(made.key, actor="cli:ada")
    await plain.rewind(1)
    assert (await lp.get(made.key, state_type=Old)).state == Old(cents=100)
    await lp.get(made.key, state_type=New, migrations=migrations())
    with pytest.raises(limpet.errors.SessionTyped):
        await plain.rewind(1)
