"""Checkpoints, as an owner uses them: made, listed, restored, let go, and made by policies."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import timedelta
from typing import Any

import pytest

import limpet
from limpet import CheckpointPolicy, InvalidInput
from limpet.errors import NoCheckpoint, NoFullCheckpoint
from limpet.model.keys import checkpoints_of
from limpet.model.values import canonical
from limpet.session.documents import Documents
from limpet.session.history import checkpoints as keeping
from limpet.session.history.checkpoint_log import CheckpointRequest
from limpet.session.history.checkpoint_policy import interval_us

Made = limpet.Session[Any]


async def session(lp: limpet.Limpet, id: str = "1", events: int = 3) -> Made:
    s = await lp.create("shop", "ada", id, state={"n": 0}, actor="agent:main")
    for _ in range(events):
        await s.append("agent.did", inc={"n": 1})
    return s


async def kinds(s: Made) -> list[str]:
    return [each.kind for each in (await s.history.checkpoints()).items[::-1]]


# --- making and listing --------------------------------------------------------------------------


async def test_a_checkpoint_names_a_state_and_changes_no_version(lp: limpet.Limpet) -> None:
    """Its seq is that of the last event, its checksum that of the fields there."""
    s = await session(lp)
    head = (await lp.get(s.key)).head
    ref = await s.checkpoint("before refund")
    assert (ref.key, ref.number, ref.seq) == (s.key, 1, 4)
    assert ref.checksum == hashlib.sha256(canonical({"n": 3})).hexdigest()
    again = await lp.get(s.key)
    assert again.head == head
    await s.append("agent.did", inc={"n": 1})
    assert await s.history.at(ref) == {"n": 3}
    (only,) = (await s.history.checkpoints()).items
    assert (only.ref, only.full, only.trigger, only.size) == (ref, True, "before refund", 7)
    assert (await lp.maintenance.verify()).ok


async def test_checkpoints_are_listed_newest_first_in_pages(lp: limpet.Limpet) -> None:
    """The cursor leads through all of them; the first is full, then every tenth."""
    s = await session(lp)
    refs = [await s.checkpoint(f"c{number}") for number in range(12)]
    assert [ref.number for ref in refs] == list(range(1, 13))
    page = await s.history.checkpoints(limit=5)
    found = [*page.items]
    while page.cursor is not None:
        page = await s.history.checkpoints(limit=5, cursor=page.cursor)
        found += page.items
    assert [each.ref for each in found] == refs[::-1]
    assert [each.number for each in found if each.full] == [11, 1]
    with pytest.raises(limpet.errors.InvalidCursor):
        await s.history.checkpoints(cursor="x")


async def test_full_and_incremental_can_be_asked_for(lp: limpet.Limpet) -> None:
    """A full one keeps its state in the store; an incremental one does not."""
    s = await session(lp)
    for full in (True, False, True, None):
        await s.append("agent.did", inc={"n": 1})
        await s.checkpoint(full=full)
    assert await kinds(s) == ["full", "incremental", "full", "incremental"]
    assert (await lp.maintenance.verify()).ok


async def test_checkpoints_of_two_handles_are_numbered_once(lp: limpet.Limpet) -> None:
    """Also while both make full ones of a session that others write to."""
    s = await session(lp)
    other = await lp.get(s.key, actor="agent:other")
    writes = [other.append("agent.did", inc={"n": 1}) for _ in range(5)]
    made = [h.checkpoint(full=full) for h in (s, other) for full in (True, None, False)]
    done = await asyncio.gather(*made, *writes)
    assert sorted(ref.number for ref in done[:6]) == [1, 2, 3, 4, 5, 6]  # type: ignore[union-attr]
    for each in (await s.history.checkpoints()).items:
        assert await s.history.at(each.ref)
    assert (await lp.maintenance.verify()).ok


@pytest.mark.parametrize("full", [True, False])
async def test_a_checkpoint_is_of_the_newest_state(lp: limpet.Limpet, *, full: bool) -> None:
    """Also by an object that does not know what others have written since it was loaded."""
    s = await session(lp)
    await (await lp.get(s.key, actor="agent:other")).append("agent.did", set={"n": 9})
    ref = await s.checkpoint(full=full)
    assert (ref.seq, await s.history.at(ref)) == (5, {"n": 9})


@pytest.mark.arguments
async def test_wrong_arguments_are_refused(lp: limpet.Limpet) -> None:
    """Nothing is recorded then."""
    s = await session(lp)
    bad: list[dict[str, Any]] = [{"trigger": ""}, {"trigger": 3}, {"full": "yes"}, {"full": 1}]
    for wrong in bad:
        with pytest.raises(InvalidInput):
            await s.checkpoint(**wrong)
    assert (await s.history.checkpoints()).items == ()


# --- restoring and letting go --------------------------------------------------------------------


async def test_restoring_rewinds_to_the_checkpoint(lp: limpet.Limpet) -> None:
    """By an event that names it; what came after is still in the log."""
    s = await session(lp)
    ref = await s.checkpoint()
    await s.append("agent.did", set={"n": 99, "extra": True})
    done = await s.history.restore(ref, actor="user:ada")
    assert done.event is not None
    assert (done.event.actor, done.event.data["checkpoint"], done.event.data["at"]) == (
        "user:ada",
        1,
        4,
    )
    assert s.state == {"n": 3}
    assert (await s.history.restore(ref)).event is None
    assert await s.history.at(5) == {"n": 99, "extra": True}


async def test_what_cannot_be_restored_is_refused(lp: limpet.Limpet) -> None:
    """One that is not there, of another session, without a full one below, or a forged one."""
    s, other = await session(lp), await session(lp, "2")
    nothing = limpet.CheckpointRef(s.key, 1, 2, "00")
    with pytest.raises(NoCheckpoint):
        await s.history.restore(nothing)
    ref = await s.checkpoint(full=False)
    with pytest.raises(NoFullCheckpoint):
        await s.history.restore(ref)
    with pytest.raises(InvalidInput, match="of shop/ada/2"):
        await s.history.restore(await other.checkpoint())
    full = await s.checkpoint(full=True)
    forged = limpet.CheckpointRef(s.key, full.number, 2, full.checksum)
    with pytest.raises(limpet.errors.CheckpointIntegrity):
        await s.history.restore(forged)
    with pytest.raises(InvalidInput):
        await s.history.restore("1")  # type: ignore[arg-type]


async def test_a_checkpoint_that_was_let_go_is_gone_but_its_state_is_not(
    lp: limpet.Limpet,
) -> None:
    """Its number is not used again; another full one at the same event keeps its state."""
    s = await session(lp)
    first, second = await s.checkpoint(full=True), await s.checkpoint(full=True)
    await s.history.unpin(first)
    assert [each.ref for each in (await s.history.checkpoints()).items] == [second]
    with pytest.raises(NoCheckpoint):
        await s.history.unpin(first)
    assert await s.history.at(first.seq) == {"n": 3}
    await s.history.unpin(second)
    assert (await s.checkpoint()).number == 3
    assert (await lp.maintenance.verify()).ok


async def test_checkpoints_end_with_their_session(lp: limpet.Limpet) -> None:
    """Deleted or erased, no trace of them is left; who has the key next begins with none."""
    s = await session(lp)
    await s.checkpoint("secret word")
    await lp.delete(s.key)
    new = await lp.create("shop", "ada", "1", reuse_deleted=True, actor="agent:main")
    assert (await new.history.checkpoints()).items == ()
    assert (await new.checkpoint()).number == 1
    with pytest.raises(limpet.errors.SessionDeleted):
        await s.checkpoint()
    await lp.erase(s.key)
    store = lp._journal.store
    with pytest.raises(limpet.errors.SessionErased):
        await store.load(checkpoints_of(s.key), tail=1)
    assert (await lp.maintenance.verify()).ok


async def test_a_fork_has_checkpoints_of_its_own(lp: limpet.Limpet) -> None:
    """It can begin on a checkpoint; those of its parent are not restored in it."""
    s = await session(lp)
    ref = await s.checkpoint()
    await s.append("agent.did", inc={"n": 1})
    fork = await s.fork(ref, id="f")
    assert fork.state == {"n": 3}
    assert (await fork.history.checkpoints()).items == ()
    with pytest.raises(InvalidInput):
        await fork.history.restore(ref)


# --- policies ------------------------------------------------------------------------------------


async def test_a_policy_makes_checkpoints_on_events(lp: limpet.Limpet) -> None:
    """After those of its types and families; a change of the session's life forces a full one."""
    await lp.policies.checkpointing(
        "shop", CheckpointPolicy(events=("agent.tool_use", "session.labeled"))
    )
    s = await session(lp, events=2)
    await s.append("agent.tool_use", {"name": "refund"}, inc={"n": 1})
    await s.append("agent.tool_use", {"name": "refund"}, inc={"n": 1})
    await s.label({"plan": "gold"})
    found = (await s.history.checkpoints()).items[::-1]
    assert [(c.seq, c.kind, c.trigger) for c in found] == [
        (4, "full", "agent.tool_use"),
        (5, "incremental", "agent.tool_use"),
        (6, "full", "session.labeled"),
    ]
    await lp.policies.checkpointing("shop", None)
    await s.append("agent.tool_use", {"name": "refund"})
    assert len((await s.history.checkpoints()).items) == 3


async def test_a_policy_makes_checkpoints_before_mutations(lp: limpet.Limpet) -> None:
    """Of the state before; full before the types that are named; also within lp.commit()."""
    s = await session(lp, events=1)
    await lp.policies.checkpointing("shop", CheckpointPolicy(before=("agent.refund",)))
    await s.append("agent.did", inc={"n": 1})
    await s.append("agent.refund", inc={"n": -5})
    async with lp.commit() as c:
        c.append(s, "agent.refund", inc={"n": -5}, actor="agent:main")
    found = (await s.history.checkpoints()).items[::-1]
    assert [(c.seq, c.kind) for c in found] == [(3, "full"), (4, "full")]
    assert found[0].trigger == "before agent.refund"
    await s.history.restore(found[0].ref)
    assert s.state == {"n": 2}
    await lp.policies.checkpointing("shop", CheckpointPolicy(before=True))
    await s.append("agent.noted", {"text": "changes nothing"})
    await s.append("agent.did", inc={"n": 1})
    assert await kinds(s) == ["full", "full", "incremental"]


async def test_a_policy_makes_checkpoints_as_time_passes(lp: limpet.Limpet) -> None:
    """At the first write after the span; what is not written to needs none."""
    now = [lp._journal.now_us()]
    lp._journal.now_us = lambda: now[0]
    await lp.policies.checkpointing("shop", CheckpointPolicy(every=timedelta(minutes=5)))
    s = await session(lp, events=0)
    begun = s.head.created_us
    for minute, count in ((4, 0), (5, 1), (9, 1), (11, 2)):
        now[0] = begun + minute * 60_000_000
        await s.append("agent.did", inc={"n": 1})
        assert len((await s.history.checkpoints()).items) == count, minute


async def test_other_processes_follow_a_policy_soon(lp: limpet.Limpet, url: str) -> None:
    """Read with the store when an app is first written to, and again after a while."""
    if url == "memory://":
        pytest.skip("of one process")
    s = await session(lp)
    async with limpet.open(url) as elsewhere:
        theirs = await elsewhere.get(s.key, actor="agent:main")
        await theirs.append("agent.tool_use", {})
        await lp.policies.checkpointing("shop", CheckpointPolicy(events=("agent.*",)))
        later = elsewhere._journal.now_us() + keeping.FRESH_US + 1
        elsewhere._journal.now_us = lambda: later
        await theirs.append("agent.tool_use", {})
    assert len((await s.history.checkpoints()).items) == 1


async def test_a_crowd_reads_a_policy_once(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits that come while the policy of their app is read wait for that reading."""
    many = await asyncio.gather(*[session(lp, str(n), events=0) for n in range(20)])
    asked: list[str] = []
    find = Documents.find

    async def counted(self: Any, name: str) -> Any:
        asked.append(self.collection)
        await asyncio.sleep(0)
        return await find(self, name)

    monkeypatch.setattr(Documents, "find", counted)
    keeping.store_checkpoints(lp._journal).forget("shop")
    await asyncio.gather(*[s.append("agent.did") for s in many])
    assert len(asked) == len(set(asked))


async def test_a_policy_keeps_so_many_and_the_full_one_they_need(lp: limpet.Limpet) -> None:
    """The oldest that is kept is full, so that each can be restored."""
    policy = CheckpointPolicy(events=("agent.did",), full_every=3, keep=4)
    await lp.policies.checkpointing("shop", policy)
    s = await session(lp, events=12)
    found = (await s.history.checkpoints()).items[::-1]
    assert [(c.number, c.full) for c in found] == [
        (7, True),
        (8, False),
        (9, False),
        (10, True),
        (11, False),
        (12, False),
    ]
    await s.history.restore(found[2].ref)
    assert s.state == {"n": 9}
    assert (await lp.maintenance.verify()).ok


def kept_after(kept: list[tuple[int, bool]], new: tuple[int, bool], keep: int) -> Any:
    """What is kept with one more: as few as may be, but it begins with a full one, if one is."""
    every = [*kept, new]
    over = max(0, len(every) - keep)
    while over and not every[over][1]:
        over -= 1
    return every[over:]


@pytest.mark.parametrize("keep", [1, 2, 4])
async def test_what_is_let_go_follows_from_what_is_kept(lp: limpet.Limpet, keep: int) -> None:
    """Whatever was full, let go by hand, or made through another object meanwhile."""
    await lp.policies.checkpointing("shop", CheckpointPolicy(keep=keep))
    s = await session(lp, events=1)
    kept: list[tuple[int, bool]] = []
    for number, kind in enumerate("iiifiifffiiiiuiiiifiiiufif", 1):
        if kind == "u":
            first = (await s.history.checkpoints()).items[0]
            await s.history.unpin(first.ref)
            kept.remove((first.number, first.full))
            kind = "i"
        asked = CheckpointRequest(f"number {number}", kind == "f")  # as a policy does
        made = await keeping.store_checkpoints(lp._journal).checkpoint(s.key, asked)
        assert made.number == number
        kept = kept_after(kept, (number, kind == "f"), keep)
        if number % 9 == 0:  # not each time: a listing reads what is kept again
            found = (await s.history.checkpoints()).items[::-1]
            assert [(c.number, c.full) for c in found] == kept
    found = (await s.history.checkpoints()).items[::-1]
    assert [(c.number, c.full) for c in found] == kept
    assert (await lp.maintenance.verify()).ok


async def test_a_checkpoint_that_somebody_asked_for_stays_until_it_is_let_go(
    lp: limpet.Limpet,
) -> None:
    """However many there are, with or without a policy, which counts only its own."""
    s = await session(lp, events=1)
    first = await s.checkpoint("mine")
    for _ in range(100):
        await s.checkpoint()
    assert [c.number for c in (await s.history.checkpoints(limit=200)).items] == [
        *range(101, 0, -1)
    ]
    await s.history.restore(first)
    await lp.policies.checkpointing("shop", CheckpointPolicy(events=("agent.did",), keep=2))
    for _ in range(5):
        await s.append("agent.did")
    found = (await s.history.checkpoints(limit=200)).items
    assert [c.number for c in found if c.manual] == [*range(101, 0, -1)]
    assert len([c for c in found if not c.manual]) == 2
    await s.history.unpin(first)
    assert len((await s.history.checkpoints(limit=200)).items) == 102


async def test_a_policy_keeps_the_full_one_that_a_manual_one_needs(lp: limpet.Limpet) -> None:
    """Each that is kept can be restored, though its log is damaged: a full one is before it."""
    await lp.policies.checkpointing("shop", CheckpointPolicy(keep=2))
    s, made = await session(lp, events=1), keeping.store_checkpoints(lp._journal)
    for number, kind in enumerate("fiIiffIfiiFiifi", 1):
        asked = CheckpointRequest(f"number {number}", kind.lower() == "f", manual=kind.isupper())
        await made.checkpoint(s.key, asked)
        found = (await s.history.checkpoints()).items[::-1]
        fulls = [c.number for c in found if c.full]
        assert all([c.full or min(fulls) < c.number for c in found])
    assert [c.number for c in found if c.manual] == [3, 7, 11]
    assert [c.number for c in found] == [1, 3, 6, 7, 11, 14, 15]
    for each in found:
        await s.history.restore(each.ref, fallback=True)


def test_the_adaptive_interval_is_bounded_on_both_sides() -> None:
    """max(shortest, base ÷ rate), capped; without mutations the longest."""
    second = 1_000_000
    spans = (timedelta(seconds=2), timedelta(seconds=60), timedelta(seconds=300))
    policy = CheckpointPolicy(adaptive=spans)
    assert interval_us(policy, 0, 10 * second) == 300 * second
    assert interval_us(policy, 10, 10 * second) == 60 * second
    assert interval_us(policy, 20, 10 * second) == 30 * second
    assert interval_us(policy, 10_000, 10 * second) == 2 * second
    assert interval_us(policy, 1, 100 * second) == 300 * second
    assert interval_us(CheckpointPolicy(), 5, second) is None


async def test_an_adaptive_policy_follows_the_pace(lp: limpet.Limpet) -> None:
    """The busier the session, the sooner its next checkpoint."""
    now = [lp._journal.now_us()]
    lp._journal.now_us = lambda: now[0]
    spans = (timedelta(seconds=1), timedelta(seconds=10), timedelta(seconds=100))
    await lp.policies.checkpointing("shop", CheckpointPolicy(adaptive=spans))
    slow, fast = await session(lp, "slow", 0), await session(lp, "fast", 0)
    for s, pause_us in ((slow, 2_000_000), (fast, 200_000)):
        now[0] = s.head.created_us
        for _ in range(10):
            now[0] += pause_us
            await s.append("agent.did", inc={"n": 1})
    assert len((await slow.history.checkpoints()).items) == 1  # 20 s at one in two seconds
    assert len((await fast.history.checkpoints()).items) == 1  # 2 s at five a second


@pytest.mark.parametrize(
    "wrong",
    [
        {"every": timedelta(0)},
        {"every": 5},
        {"adaptive": (timedelta(2), timedelta(1), timedelta(1))},
        {"full_every": 0},
        {"keep": 0},
        {"keep": True},
        {"events": "agent.did"},
        {"before": (1,)},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    """When it is made, not when it is needed."""
    with pytest.raises(InvalidInput):
        CheckpointPolicy(**wrong)


async def test_a_policy_is_of_an_app(lp: limpet.Limpet) -> None:
    """Not of all, nor of a reserved one, and of its class."""
    bad: list[tuple[Any, Any]] = [(None, None), ("$x", None), ("shop", {"every": 5})]
    for app, policy in bad:
        with pytest.raises(InvalidInput):
            await lp.policies.checkpointing(app, policy)


# --- what is measured ----------------------------------------------------------------------------


async def test_each_checkpoint_is_measured(lp: limpet.Limpet) -> None:
    """Session, number, type, size and trigger; a hook that fails harms nobody."""
    seen: list[limpet.Metric] = []

    def broken(_: limpet.Metric) -> None:
        raise ValueError

    lp.maintenance.on_metric(broken)
    lp.maintenance.on_metric(seen.append)
    s = await session(lp)
    ref = await s.checkpoint("why", full=False)
    (metric,) = seen
    assert metric.name == "session.checkpoint"
    assert metric.values == {
        "session": s.key,
        "number": ref.number,
        "type": "incremental",
        "size": 7,
        "trigger": "why",
    }
    with pytest.raises(InvalidInput):
        lp.maintenance.on_metric(3)  # type: ignore[arg-type]


# --- what a session knows of them ----------------------------------------------------------------


async def test_a_session_knows_its_newest_checkpoint(lp: limpet.Limpet, url: str) -> None:
    """Its number and time: at once where it was made, elsewhere when it is loaded or refreshed."""
    s = await session(lp)
    other = await lp.get(s.key)
    assert (s.history.checkpoint_seq, s.history.last_checkpoint_at) == (0, None)
    assert (other.history.checkpoint_seq, other.history.last_checkpoint_at) == (0, None)
    version = s.version
    await s.checkpoint()
    await s.checkpoint("again", full=False)
    newest = (await s.history.checkpoints()).items[0]
    loaded, (many,) = await lp.get(s.key), await lp.get_many([s.key])
    assert many is not None
    for each in (s, other, loaded, many):
        assert (each.history.checkpoint_seq, each.history.last_checkpoint_at) == (2, newest.at)
        assert each.version == version
    await s.history.unpin(newest.ref)
    assert (await lp.get(s.key)).history.checkpoint_seq == 2  # its number is not used again
    if url != "memory://":
        async with limpet.open(url) as elsewhere:
            far = await elsewhere.get(s.key, actor="agent:far")
            assert (far.history.checkpoint_seq, far.history.last_checkpoint_at) == (2, newest.at)
            await far.checkpoint()
        assert s.history.checkpoint_seq == 2
        assert (await s.refresh()).history.checkpoint_seq == 3
    assert (await lp.maintenance.verify()).ok


async def test_a_session_knows_the_checkpoints_that_a_policy_makes(lp: limpet.Limpet) -> None:
    """Without being loaded again."""
    await lp.policies.checkpointing("shop", CheckpointPolicy(events=("agent.did",)))
    s = await session(lp, events=2)
    assert (s.history.checkpoint_seq, s.history.last_checkpoint_at) == (
        2,
        (await s.history.checkpoints()).items[0].at,
    )


async def test_who_has_the_key_next_has_no_checkpoints(lp: limpet.Limpet) -> None:
    """Nor has a fork; a handle that was never loaded does not know."""
    s = await session(lp)
    await s.checkpoint()
    fork = await s.fork()
    assert (fork.history.checkpoint_seq, (await lp.get(fork.key)).history.checkpoint_seq) == (0, 0)
    await lp.delete(s.key)
    again = await lp.create("shop", "ada", "1", reuse_deleted=True)
    assert (again.history.checkpoint_seq, (await lp.get(s.key)).history.checkpoint_seq) == (0, 0)
    with pytest.raises(limpet.errors.SessionNotLoaded):
        _ = lp.session(again.key).history.checkpoint_seq
    handle = lp.session(again.key, actor="a")
    await handle.checkpoint()
    assert handle.history.checkpoint_seq == 1
