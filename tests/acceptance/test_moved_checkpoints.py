"""Checkpoints travel with their session: in a file, to another store, to the archive and back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from backports import zstd

import limpet
from limpet import Key, Limpet
from limpet.model.keys import CHECKPOINTS, checkpoints_of
from limpet.session.history.checkpoint_log import (
    CheckpointLog,
    CheckpointRequest,
    StateToCheckpoint,
)
from limpet.session.history.checkpoint_tiers import CheckpointTiers
from limpet.store.protocol import Query
from limpet.testing.histories import recorded

KEY = Key("support", "ada", "c1")
PAIRS = ["memory-sqlite", "sqlite-sqlite", "sqlite-postgresql", "postgresql-memory"]


@pytest.fixture(params=PAIRS)
def kinds(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def lp(url: str, tmp_path: Path) -> AsyncIterator[Limpet]:
    async with limpet.open(url, archive=f"file://{tmp_path}/cold") as opened:
        yield opened


async def filled(lp: Limpet, key: Key = KEY) -> list[limpet.CheckpointRef]:
    """A session with full and incremental checkpoints, one of which was let go."""
    s = await lp.create(*msgspec.structs.astuple(key), state={"n": 0}, actor="agent:main")
    refs = []
    for number in range(8):
        await s.append("agent.message", {"text": f"{number}"}, set={"n": number})
        refs.append(await s.checkpoint(f"turn {number}", full=number % 4 == 0))
    await s.history.unpin(refs.pop(3))
    return refs


async def shown(lp: Limpet, key: Key = KEY) -> tuple[limpet.Checkpoint, ...]:
    return (await (await lp.get(key)).history.checkpoints(limit=100)).items


async def pinned(lp: Limpet, key: Key = KEY) -> list[int]:
    """The seqs at which the store itself keeps a state, read from the rungs of its ladder."""
    store, found = lp._journal.store, set()
    for seq in range(1, (await store.load(key, tail=0)).head.version + 1):
        found.add((await store.rung(key, seq)).head.version)
    return sorted(found)


async def test_a_file_has_the_checkpoints_of_its_session(
    pair: tuple[Limpet, Limpet], tmp_path: Path
) -> None:
    """After the import they have the same numbers, seqs and checksums, and can be restored."""
    source, target = pair
    refs = await filled(source)
    await source.export(KEY, tmp_path / "a.limpet")
    assert await target.import_(tmp_path / "a.limpet") == KEY
    assert await shown(target) == await shown(source)
    assert [each.ref for each in await shown(target)] == refs[::-1]
    assert {2, 6} <= set(await pinned(target))
    s = await target.get(KEY, actor="agent:main")
    await s.history.restore(refs[2])
    assert s.state["n"] == 2
    made = await s.checkpoint("after")
    assert made.number == 9  # it goes on counting
    assert (await target.maintenance.verify()).findings == ()


async def test_importing_again_brings_only_later_checkpoints(
    pair: tuple[Limpet, Limpet], tmp_path: Path
) -> None:
    """A second import does nothing, and a later file brings what was made and let go since."""
    source, target = pair
    refs = await filled(source)
    await source.export(KEY, tmp_path / "a.limpet")
    await target.import_(tmp_path / "a.limpet")
    before = await recorded(target._journal.store, checkpoints_of(KEY))
    await target.import_(tmp_path / "a.limpet")
    assert await recorded(target._journal.store, checkpoints_of(KEY)) == before
    s = await source.get(KEY, actor="agent:main")
    await s.checkpoint("later")
    await s.history.unpin(refs[0])
    await source.export(KEY, tmp_path / "b.limpet")
    await target.import_(tmp_path / "b.limpet")
    assert await shown(target) == await shown(source)
    await target.import_(tmp_path / "a.limpet")  # older: nothing of it is missing
    assert await shown(target) == await shown(source)


async def test_checkpoints_that_went_another_way_are_a_conflict(
    pair: tuple[Limpet, Limpet], tmp_path: Path
) -> None:
    """If both stores made checkpoints since, the file is refused and nothing is recorded."""
    source, target = pair
    await filled(source)
    await source.export(KEY, tmp_path / "a.limpet")
    await target.import_(tmp_path / "a.limpet")
    await (await target.get(KEY)).checkpoint("there")
    here = await source.get(KEY, actor="agent:main")
    await here.append("agent.message", set={"n": 100})
    await here.checkpoint("here")
    await source.export(KEY, tmp_path / "b.limpet")
    before = (await target.get(KEY)).version
    with pytest.raises(limpet.SessionConflict):
        await target.import_(tmp_path / "b.limpet")
    assert (await target.get(KEY)).version == before
    copied = await source.copy(app="support", to=target)
    assert [each.code for each in copied.refused] == ["session.conflict"]


def rewritten(path: Path, change: Any) -> None:
    """Change the lines of a file, and make its trailer right again."""
    lines = zstd.decompress(path.read_bytes()).splitlines()[:-1]
    lines = change(lines)
    whole = b"".join([line + b"\n" for line in lines])
    events = sum([line.startswith(b'{"seq":') for line in lines])
    end = {"end": True, "events": events, "sha256": sha256(whole).hexdigest()}
    path.write_bytes(zstd.compress(whole + msgspec.json.encode(end) + b"\n"))


async def test_checkpoints_in_a_file_are_verified(tmp_path: Path) -> None:
    """A checkpoint that the file's own log contradicts refuses the whole file."""
    path = tmp_path / "a.limpet"
    async with limpet.open("memory://") as source, limpet.open("memory://") as other:
        await filled(source)
        s = await other.create(*msgspec.structs.astuple(KEY), actor="agent:main")
        await s.append("agent.message", set={"n": 1})
        await s.checkpoint("foreign")
        await source.export(KEY, path)
        whole = path.read_bytes()
        await other.export(KEY, tmp_path / "b.limpet")
    foreign = [
        line
        for line in zstd.decompress((tmp_path / "b.limpet").read_bytes()).splitlines()
        if line.startswith(b'{"checkpoint":')
    ]

    def last_events(lines: list[bytes]) -> list[bytes]:
        return lines[:-3]  # the log is shorter than its checkpoints say

    def late(lines: list[bytes]) -> list[bytes]:
        return [*lines[:1], *lines[2:], lines[1]]

    def of_another(lines: list[bytes]) -> list[bytes]:
        return [lines[0], *foreign, *[x for x in lines[1:] if not x.startswith(b'{"checkpoint"')]]

    def changed(lines: list[bytes]) -> list[bytes]:
        return [line.replace(b'"turn 1"', b'"turn 7"') for line in lines]

    for change in (last_events, late, of_another, changed):
        path.write_bytes(whole)
        rewritten(path, change)
        async with limpet.open("memory://") as target:
            with pytest.raises(limpet.errors.BundleDamaged):
                await target.import_(path)
            query = Query(reserved=True)
            assert not (await target._journal.store.heads(query, cursor=None, limit=9)).items
    path.write_bytes(whole)
    rewritten(path, lambda lines: lines)
    async with limpet.open("memory://") as target:
        await target.import_(path)  # the way of changing it is not what was refused


async def test_a_checkpoint_of_another_state_is_refused(tmp_path: Path) -> None:
    """Its log is whole, but its checksum is not that of the state which the session's log gives."""
    path = tmp_path / "a.limpet"
    async with limpet.open("memory://") as source, limpet.open("memory://") as target:
        await filled(source)
        s = await source.get(KEY)
        wrong = StateToCheckpoint(s.head.uid, s.version, "00" * 32, 1)
        kept = CheckpointLog(source._journal, KEY, CheckpointTiers(source._journal))
        await kept.record(wrong, CheckpointRequest("wrong", full=False), limpet.CheckpointPolicy())
        await source.export(KEY, path)
        with pytest.raises(
            limpet.errors.BundleDamaged, match="another state than its checkpoint says"
        ):
            await target.import_(path)


@pytest.mark.parametrize("what", ["key", "app", "everything"])
async def test_a_copy_brings_the_checkpoints_of_its_sessions(
    pair: tuple[Limpet, Limpet], what: str
) -> None:
    """Of one session, of an app or of everything; a second copy sends what came since."""
    source, target = pair
    await filled(source)
    how: dict[str, Any] = {"key": {"key": KEY}, "app": {"app": "support"}, "everything": {}}[what]
    copied = await source.copy(to=target, **how)
    assert (copied.sessions, copied.events, copied.checkpoints, copied.ok) == (1, 9, 10, True)
    assert await shown(target) == await shown(source)
    assert {2, 6} <= set(await pinned(target))
    assert await source.copy(to=target, **how) == limpet.Copied(0, 0)
    s = await source.get(KEY, actor="agent:main")
    await s.append("agent.message", set={"n": 100})
    await s.checkpoint("later", full=True)
    copied = await source.copy(to=target, **how)
    assert (copied.events, copied.checkpoints) == (1, 1)
    assert await shown(target) == await shown(source)
    assert {2, 6, 10} <= set(await pinned(target))
    assert (await target.maintenance.verify()).findings == ()


async def test_what_is_adopted_makes_no_checkpoints_of_its_own(
    pair: tuple[Limpet, Limpet],
) -> None:
    """A policy of the target makes none while a session arrives: it brings its own."""
    source, target = pair
    await filled(source)
    often = limpet.CheckpointPolicy(every=timedelta(microseconds=1), events=("agent.*",))
    await target.policies.checkpointing("support", often)
    await source.copy(KEY, to=target)
    assert await shown(target) == await shown(source)


async def test_checkpoints_go_to_the_archive_and_come_back(lp: Limpet, tmp_path: Path) -> None:
    """Archived they are read from the file, and unarchived they are as they were."""
    refs = await filled(lp)
    s = await lp.get(KEY, actor="agent:main")
    created_at = s.head.created_at
    await s.complete()
    before = await shown(lp)
    await s.archive()
    (head,) = (await lp.list(app="support")).items
    assert head.created_at == created_at
    query = Query(app=CHECKPOINTS, reserved=True)
    assert not (await lp._journal.store.heads(query, cursor=None, limit=9)).items
    cold = await lp.get(KEY, archived=True)
    assert (await cold.history.checkpoints(limit=100)).items == before
    assert (await cold.history.at(refs[2]))["n"] == 2
    await lp.unarchive(KEY)
    assert await shown(lp) == before
    assert {2, 6} <= set(await pinned(lp))
    assert (await lp.get(KEY)).head.created_at == created_at
    assert (await lp.maintenance.verify()).findings == ()


async def test_a_listing_by_creation_has_a_stub_where_its_session_was(lp: Limpet) -> None:
    """Archiving the oldest session does not make it the newest."""
    for number in range(3):
        s = await lp.create("support", "ada", f"c{number}", actor="agent:main")
        await s.complete()
    await (await lp.get("support", "ada", "c0", actor="agent:main")).archive()
    page = await lp.list(app="support")
    assert [head.key.id for head in page.items] == ["c2", "c1", "c0"]
