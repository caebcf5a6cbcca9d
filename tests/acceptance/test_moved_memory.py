"""What a session remembers travels with it: in a file and to another store, in all directions."""

from __future__ import annotations

from pathlib import Path

import pytest

import limpet
from limpet import Key, Limpet
from limpet.session.documents import commit_puts
from limpet.session.life.memory import memory_key, own_places

KEY = Key("support", "ada", "c1")
KINDS = ("memory", "sqlite", "postgresql")
PAIRS = [f"{one}-{other}" for one in KINDS for other in KINDS if (one, other) != (KINDS[2],) * 2]


@pytest.fixture(params=PAIRS)
def kinds(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def go_back(lp: Limpet) -> None:
    """What a resumption from the first checkpoint does to what a session remembers."""
    s = await lp.get(KEY)
    (first,) = [each for each in (await s.history.checkpoints()).items if each.number == 1]
    puts = await s.memory.session.back_to(first)
    await commit_puts(lp._journal, (), puts)


async def remembering(lp: Limpet) -> limpet.Session:
    """A session with every memory of its own, some of it changed after a checkpoint."""
    s = await lp.create("support", "ada", "c1", state={"n": 0}, actor="agent:main")
    await s.memory.session.put("plan", "first")
    await s.memory.session.put("gone", "soon")
    await s.memory.episodic.put("asked", {"for": "a refund"})
    await s.memory.session_state.write("notes")
    await s.checkpoint("before", full=True)
    await s.memory.session.put("plan", "second")
    await s.memory.session.put("later", "new")
    return s


async def remembered(lp: Limpet) -> dict[str, object]:
    s = await lp.get(KEY)
    found: dict[str, object] = {f"session/{e.name}": e.value for e in await s.memory.session.list()}
    found |= {f"episodic/{each.name}": each.value for each in await s.memory.episodic.list()}
    note = await s.memory.session_state.read()
    return found | {"session_state": None if note is None else note.value}


async def move(source: Limpet, target: Limpet, how: str, path: Path) -> None:
    if how == "file":
        path.unlink(missing_ok=True)
        await source.export(KEY, path)
        await target.import_(path)
    elif how == "copy":
        await source.copy(KEY, to=target)
    else:
        await source.copy(app="support", to=target)


@pytest.mark.parametrize("how", ["file", "copy", "app"])
async def test_a_session_that_moves_still_remembers(
    pair: tuple[Limpet, Limpet], how: str, tmp_path: Path
) -> None:
    """Session and episodic memory and its buffers, with their versions; moving on brings the
    rest, and moving again nothing."""
    source, target = pair
    s = await remembering(source)
    await move(source, target, how, tmp_path / "s.limpet")
    assert await remembered(target) == await remembered(source)
    assert (await remembered(target))["session/plan"] == "second"
    await s.memory.session.put("plan", "third")
    await s.append("agent.message", {"text": "on"})
    for _ in range(2):
        await move(source, target, how, tmp_path / "s.limpet")
        assert await remembered(target) == await remembered(source)
    there = (await target.get(KEY)).memory.session
    assert [each.version for each in await there.list("plan")] == [3]
    assert (await target.maintenance.verify()).ok


@pytest.mark.parametrize("how", ["file", "copy"])
async def test_a_moved_session_is_resumed_as_it_was_at_a_checkpoint(
    pair: tuple[Limpet, Limpet], how: str, tmp_path: Path
) -> None:
    """Its memory goes back with its state, as it would have where it came from."""
    source, target = pair
    s = await remembering(source)
    await s.suspend()
    await move(source, target, how, tmp_path / "s.limpet")
    resumed, report = await target.resume(KEY, memory=["session", "episodic"], actor="user:ada")
    assert resumed.phase == "active"
    assert "second" in str(report.context)
    assert "a refund" in str(report.context)
    for lp in pair:
        await go_back(lp)
    assert await remembered(source) == await remembered(target)
    assert (await remembered(target))["session/plan"] == "first"
    assert "session/later" not in await remembered(target)


async def test_a_file_never_brings_what_other_sessions_see(
    pair: tuple[Limpet, Limpet], tmp_path: Path
) -> None:
    """What a session promoted is its user's: a file puts nothing before the user's others."""
    source, target = pair
    s = await remembering(source)
    await s.complete()
    await move(source, target, "file", tmp_path / "s.limpet")
    other = await target.create("support", "ada", "c2")
    assert await other.memory.episodic.list() == ()
    assert (await remembered(target))["episodic/asked"] == {"for": "a refund"}


async def test_an_app_is_copied_with_what_its_sessions_share(pair: tuple[Limpet, Limpet]) -> None:
    """Semantic and procedural memory, and promoted episodes; nothing of another app."""
    source, target = pair
    s = await remembering(source)
    await s.memory.semantic.put("refunds", "within 30 days")
    await s.memory.procedural.put("steps", ["ask"])
    await s.complete()
    theirs = await source.create("other", "ada", "c1")
    await theirs.memory.semantic.put("secret", 1)
    await theirs.memory.session.put("secret", 1)
    copied = await source.copy(app="support", to=target)
    assert copied.ok
    assert copied.sessions == 1
    there = await target.create("support", "ada", "c2")
    assert await there.memory.semantic.get("refunds") == "within 30 days"
    assert await there.memory.procedural.get("steps") == ["ask"]
    assert [each.name for each in await there.memory.episodic.list()] == ["promoted/c1/asked"]
    elsewhere = await target.create("other", "ada", "c1")
    assert await elsewhere.memory.semantic.list() == ()
    assert await elsewhere.memory.session.list() == ()


async def test_memory_that_went_another_way_refuses_the_whole_file(
    pair: tuple[Limpet, Limpet], tmp_path: Path
) -> None:
    """Nothing is recorded then: neither the session nor the rest of what it remembers."""
    source, target = pair
    s = await remembering(source)
    await move(source, target, "file", tmp_path / "one.limpet")
    there = await target.get(KEY)
    await there.memory.session.put("plan", "theirs")
    await s.memory.session.put("plan", "ours")
    await s.append("agent.message", {"text": "on"})
    await source.export(KEY, tmp_path / "two.limpet")
    before = (await target.get(KEY)).version, await remembered(target)
    with pytest.raises(limpet.SessionConflict):
        await target.import_(tmp_path / "two.limpet")
    assert ((await target.get(KEY)).version, await remembered(target)) == before


async def test_a_deleted_session_leaves_nothing_that_it_remembered(
    pair: tuple[Limpet, Limpet],
) -> None:
    """Not even the histories of entries that were deleted before."""
    source, _ = pair
    await remembering(source)
    await go_back(source)  # deletes an entry
    await source.delete(KEY)
    store = source._journal.store
    for place in own_places(KEY.id):
        for name in ("plan", "gone", "later", "asked"):
            with pytest.raises((limpet.errors.SessionDeleted, limpet.SessionNotFound)):
                await store.load(memory_key(KEY, place + name), tail=0)
