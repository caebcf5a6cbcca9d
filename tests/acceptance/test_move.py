"""Moving sessions: export, import and copy, between every two kinds of store."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import apsw
import msgspec
import pytest
from backports import zstd
from msgspec import structs

import limpet
from limpet import Key, Limpet
from limpet.model.facts.documents import names_key
from limpet.session.move import adopter, transfer
from limpet.store.coding import codec
from limpet.store.protocol import Query
from limpet.testing.histories import fork, recorded
from tests.support.seal import FixedKeySeal

A: Final = Key("support", "ada", "c1")
B: Final = Key("support", "bob", "c2")
PAIRS: Final = ["memory-sqlite", "sqlite-memory", "sqlite-sqlite"]
SERVERS: Final = ["sqlite-postgresql", "postgresql-sqlite", "postgresql-memory"]


@pytest.fixture(params=[*PAIRS, *SERVERS])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Two empty stores; a server is started only when one is needed."""
    found = []
    for number, kind in enumerate(request.param.split("-")):
        if kind == "postgresql":
            found.append(request.getfixturevalue("postgres_store_url"))
        else:
            file = f"sqlite:///{tmp_path}/{number}.db?sync=normal"
            found.append("memory://" if kind == "memory" else file)
    return found[0], found[1]


@pytest.fixture
async def pair(urls: tuple[str, str]) -> AsyncIterator[tuple[Limpet, Limpet]]:
    async with limpet.open(urls[0]) as one, limpet.open(urls[1]) as other:
        yield one, other


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[tuple[Limpet, Limpet]]:
    """A store in memory, and a file: where the kind of store does not matter."""
    url = f"sqlite:///{tmp_path}/two.db?sync=normal"
    async with limpet.open("memory://") as one, limpet.open(url) as other:
        yield one, other


async def filled(lp: Limpet, key: Key = A, turns: int = 3) -> None:
    """A session with labels, a timer, inputs, ids and shared names."""
    begun = {"n": 0, "list": [], "app:catalog": {"v": 1}, "user:lang": "en"}
    s = await lp.create(*msgspec.structs.astuple(key), state=begun, labels={"plan": "gold"})
    for turn in range(turns):
        said = {"text": f"hi {turn}", "more": ["é", 2**63 - 1, 0.5]}
        asked = await s.append("user.message", said, actor="user:ada", id=f"m{turn}")
        await s.append(
            "agent.message",
            {"text": "ok"},
            actor="agent:a",
            trace=limpet.Trace(cause=asked.id),
            inc={"n": 1},
            add={"list": [turn]},
            set={"app:catalog": {"v": turn}},
        )
    await s.append(
        "tool.asked", {"what": "x"}, actor="agent:a", input=True, trace=limpet.Trace(wake_id="w")
    )
    await s.record(limpet.facts.processed([2]), actor="agent:a")


async def same(one: Limpet, other: Limpet, key: Key) -> None:
    """The session is the same in both stores, but for leases and shared names."""
    was, now = [await lp._journal.store.load(key, tail=100, scopes=False) for lp in (one, other)]
    assert now == was
    assert await recorded(other._journal.store, key) == await recorded(one._journal.store, key)
    pending = [await lp._journal.store.pending_inputs(key, limit=99) for lp in (one, other)]
    assert pending[0] == pending[1]
    assert (await other.maintenance.verify()).findings == ()


# --- copying --------------------------------------------------------------------------------------


async def test_a_copy_has_every_session_and_every_shared_name(pair: tuple[Limpet, Limpet]) -> None:
    """Events, times, links, state, labels, inputs, timers and names are the source's."""
    source, target = pair
    await filled(source, A)
    await filled(source, B, turns=7)
    copied = await source.copy(to=target)
    assert copied.ok
    events = sum([h.version for h in (await source.list()).items])
    assert (copied.sessions, copied.events, copied.names) == (2, events, 3)
    for key in (A, B):
        await same(source, target, key)
        assert (await target.get(key)).values == (await source.get(key)).values
    assert await source.copy(to=target) == limpet.Copied(0, 0)
    assert (await source.maintenance.verify()).findings == ()


async def test_a_copied_session_goes_on_and_the_next_copy_refuses_it(
    pair: tuple[Limpet, Limpet],
) -> None:
    """What was appended to the copy stays; if the source went on too, the logs differ."""
    source, target = pair
    await filled(source)
    await source.copy(to=target)
    s = await target.get(A)
    await s.append(
        "agent.message", {"text": "here"}, actor="agent:a", set={"app:catalog": {"v": 9}}
    )
    assert await source.copy(to=target) == limpet.Copied(0, 0)  # only longer: nothing is missing
    await source.session(A).append("agent.message", {"text": "there"}, actor="agent:a")
    copied = await source.copy(to=target)
    assert (copied.sessions, copied.refusals, copied.ok) == (0, 1, False)
    assert (copied.refused[0].key, copied.refused[0].code) == (A, "session.conflict")
    with pytest.raises(limpet.SessionConflict) as info:
        await source.copy(A, to=target)
    assert info.value.on == "log"
    assert (await target.get(A)).events[-1].data == {"text": "here"}
    assert (await target.get(A)).values["app:catalog"] == {"v": 9}


async def test_a_second_copy_sends_only_what_is_missing(
    pair: tuple[Limpet, Limpet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces of two events, with a log that grew and a session that is new."""
    for module in (adopter, transfer):
        monkeypatch.setattr(module, "PIECE_EVENTS", 2)
    source, target = pair
    await filled(source)
    await source.copy(to=target)
    await source.session(A).append("agent.message", {"text": "more"}, actor="agent:a")
    await filled(source, B)
    copied = await source.copy(to=target)
    mine = (await source.get(B)).head.version
    assert (copied.sessions, copied.events) == (2, 1 + mine)
    for key in (A, B):
        await same(source, target, key)


async def test_copying_an_app_leaves_the_others(two: tuple[Limpet, Limpet]) -> None:
    """Its sessions and its names, of users without a session too; nothing of other apps."""
    source, target = two
    await filled(source, A)
    await filled(source, B)
    await source.delete(B)
    await filled(source, Key("shop", "eve", "1"))
    copied = await source.copy(app="support", to=target)
    assert (copied.sessions, copied.names) == (1, 3)
    assert [head.key for head in (await target.list()).items] == [A]
    fresh = await target.create("support", "bob")
    assert fresh.values == {"app:catalog": {"v": 2}, "user:lang": "en"}
    assert (await target.create("shop", "eve")).values == {}


async def test_names_that_the_target_has_are_left_alone(pair: tuple[Limpet, Limpet]) -> None:
    """Also those that were deleted there, and those of a session that began there."""
    source, target = pair
    await filled(source)
    mine = {"app:catalog": {"v": "mine"}, "user:lang": "de"}
    there = await target.create("support", "ada", "other", state=mine)
    await there.append("note.made", actor="agent:a", delete=["user:lang"])
    await source.create("support", "ada", "x", state={"app:new": [1]})
    copied = await source.copy(to=target)
    assert copied.names == 1
    shared = (await target.get(A)).values
    assert {n: v for n, v in shared.items() if ":" in n} == {
        "app:catalog": {"v": "mine"},
        "app:new": [1],
    }
    assert (await target.maintenance.verify()).findings == ()


async def test_copying_one_session_says_which_names_it_left_out(
    pair: tuple[Limpet, Limpet],
) -> None:
    """Those that it sees and the target does not have."""
    source, target = pair
    await filled(source)
    copied = await source.copy(A, to=target)
    assert set(copied.left_out) == {"app:catalog", "user:lang"}
    assert (copied.sessions, copied.names) == (1, 0)
    assert "user:lang" not in (await target.get(A)).values
    await target.create("support", "ada", "x", state={"user:lang": "fr"})
    assert (await source.copy(A, to=target)).left_out == ("app:catalog",)


async def test_names_are_copied_once_and_through_a_log_of_their_own(
    two: tuple[Limpet, Limpet],
) -> None:
    """Reserved, so nobody meets it; not copied on; and forgotten with its user."""
    source, target = two
    await filled(source)
    await source.copy(to=target)
    log = names_key("support", "ada")
    assert [head.key for head in (await target.list()).items] == [A]
    found = await target._journal.store.read(log, after=0, limit=9, reverse=False, types=None)
    assert [event.type for event in found] == ["session.created", "state.copied"]
    async with limpet.open("memory://") as third:
        copied = await target.copy(to=third)
        assert (copied.sessions, copied.names) == (1, 2)
        await same(source, third, A)
    done = await target.erase_user("support", "ada")
    assert done.names == 1
    with pytest.raises(limpet.errors.SessionErased):
        await target._journal.store.load(log, tail=0)
    assert (await target.maintenance.verify()).findings == ()
    again = await source.copy(to=target)
    assert {each.code for each in again.refused} == {"session.erased", "name.not_copied"}
    assert (await target.create("support", "ada")).values == {"app:catalog": {"v": 2}}


async def test_copies_at_the_same_time_send_everything_once(pair: tuple[Limpet, Limpet]) -> None:
    """Events are repeats for the slower one; a name has one version, whoever was first."""
    source, target = pair
    await filled(source, A)
    await filled(source, B)
    both = await asyncio.gather(*[source.copy(to=target) for _ in range(3)])
    assert all(copied.ok for copied in both)
    events = sum([head.version for head in (await source.list()).items])
    assert sum(copied.events for copied in both) == events
    assert sum(copied.names for copied in both) == 3
    await source.create("support", "ada", "x", state={"app:new": 1})
    both = await asyncio.gather(*[source.copy(to=target) for _ in range(3)])
    assert sum(copied.names for copied in both) == 1
    loaded = await target._journal.store.load(A, tail=0)
    assert {scope.version for scope in loaded.scopes.values()} == {1}
    for key in (A, B):
        await same(source, target, key)


async def test_a_name_too_large_for_one_event_is_named(two: tuple[Limpet, Limpet]) -> None:
    """It grew by appending; the other names of its owner are copied."""
    source, target = two
    s = await source.create("support", "ada", "c1", state={"user:log": [], "user:lang": "en"})
    for _ in range(3):
        await s.append("note.made", actor="agent:a", add={"user:log": ["x" * 3_000_000]})
    copied = await source.copy(to=target)
    assert (copied.names, copied.refusals) == (1, 1)
    assert copied.refused[0].what == "user:log of support/ada"
    assert (await target.create("support", "ada")).values == {"user:lang": "en"}


async def test_parents_are_copied_before_their_forks(
    pair: tuple[Limpet, Limpet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork of a fork reads through in the target as it does in the source."""
    source, target = pair
    await filled(source)
    store = source._journal.store
    child, grandchild = Key("support", "bob", "f1"), Key("support", "bob", "f2")
    await fork(store, child, A, 4)
    await source.session(child).append("note.made", actor="agent:a", set={"own": 1})
    await fork(store, grandchild, child, 6)
    order = Transfer_order(monkeypatch, [grandchild, child, A])
    copied = await source.copy(to=target)
    assert order.met
    assert (copied.sessions, copied.cut) == (3, ())
    for key in (A, child, grandchild):
        await same(source, target, key)
        logs = [
            await lp._journal.store.read(key, after=0, limit=99, reverse=False, types=None)
            for lp in pair
        ]
        assert logs[0] == logs[1]
    assert await target._journal.store.forks(A) == (child,)


class Transfer_order:  # noqa: N801  # a helper that reads as a verb
    """Lets a copy meet sessions in this order, as after a clock that was set back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, keys: list[Key]) -> None:
        self.met = False
        whole = transfer.Transfer._heads

        async def heads(of: Any, *which: Any) -> AsyncIterator[limpet.Head]:
            found = {head.key: head async for head in whole(of, *which)}
            self.met = True
            for key in keys:
                yield found[key]

        monkeypatch.setattr(transfer.Transfer, "_heads", heads)


async def test_a_fork_without_its_parent_is_named(two: tuple[Limpet, Limpet]) -> None:
    """Copied alone, or after its parent was deleted, it has its state and not what is before."""
    source, target = two
    await filled(source)
    child = Key("support", "bob", "f1")
    await fork(source._journal.store, child, A, 4)
    copied = await source.copy(child, to=target)
    assert (copied.sessions, copied.cut) == (1, (child,))
    assert (await target.get(child)).values["n"] == (await source.get(child)).values["n"]
    async with limpet.open("memory://") as third:
        await source.delete(A)
        assert (await source.copy(to=third)).cut == (child,)
        assert (await third.maintenance.verify()).findings == ()


async def test_blobs_are_copied_before_the_events_that_name_them(
    pair: tuple[Limpet, Limpet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large ones too; a copy that stops in between goes on; the fork sees its parent's."""
    source, target = pair
    await filled(source)
    s = await source.get(A)
    content = bytes(range(256)) * 10_000
    refs = [await s.blobs.put(content, "image/png"), await s.blobs.put(b"small", "text/plain")]
    for ref in refs:
        await s.append("agent.message", {"file": ref.sha256}, actor="agent:a")
    child = Key("support", "bob", "f1")
    await fork(source._journal.store, child, A, s.version)
    put = adopter.Adopter.put_chunk

    async def fails(*_: object) -> str:
        raise limpet.errors.StoreBusy("the test")

    monkeypatch.setattr(adopter.Adopter, "put_chunk", fails)
    with pytest.raises(limpet.errors.StoreBusy):
        await source.copy(to=target)
    assert (await target.get(A)).version == 1
    monkeypatch.setattr(adopter.Adopter, "put_chunk", put)
    assert (await source.copy(to=target)).ok
    for key in (A, child):
        there = await target.get(key)
        assert [await there.blobs.get(ref) for ref in refs] == [content, b"small"]
        await same(source, target, key)
    late = await s.blobs.put(b"late", "text/plain")
    await source.copy(to=target)
    assert await (await target.get(A)).blobs.get(late) == b"late"
    assert (await target.maintenance.verify()).findings == ()


async def test_everything_includes_reserved_apps(two: tuple[Limpet, Limpet]) -> None:
    """Documents are logs like any other."""
    source, target = two
    from limpet.testing.commits import creation

    document = Key("$agents", "support/ada", "main")
    await source._journal.store.commit([creation(document, {"model": "x"})])
    assert (await source.copy(to=target)).sessions == 1
    query = Query(reserved=True)
    page = await target._journal.store.heads(query, cursor=None, limit=9)
    assert [head.key for head in page.items] == [document]


async def test_an_ended_session_is_not_brought_back(pair: tuple[Limpet, Limpet]) -> None:
    """A tombstone or a certificate in the target refuses, and stops no other session."""
    source, target = pair
    for key in (A, B, Key("support", "eve", "c3")):
        await filled(source, key)
    await source.copy(to=target)
    await target.delete(A)
    await target.erase(B)
    copied = await source.copy(to=target)
    assert {(each.key, each.code) for each in copied.refused} == {
        (A, "session.deleted"),
        (B, "session.erased"),
    }
    with pytest.raises(limpet.errors.SessionDeleted):
        await source.copy(A, to=target)
    with pytest.raises(limpet.errors.SessionErased):
        await source.copy(B, to=target)


@pytest.mark.parametrize("rot", [True, False])
async def test_a_damaged_session_is_named_and_the_others_are_copied(
    tmp_path: Path, rot: bool
) -> None:
    """What cannot be read is never skipped in silence, nor copied in part without a word; also if
    the checksum of the bytes is right."""
    path = tmp_path / "damaged.db"
    async with limpet.open(f"sqlite:///{path}") as source:
        await filled(source, A)
        await filled(source, B)
    conn = apsw.Connection(str(path))
    ((pos,),) = conn.execute("SELECT pos FROM events WHERE sid = 1 AND seq = 4")
    crc = 0 if rot else crc32(b"x") ^ pos
    conn.execute("UPDATE events SET body = x'78', crc = ? WHERE pos = ?", (crc, pos))
    conn.close()
    async with limpet.open(f"sqlite:///{path}") as source, limpet.open("memory://") as target:
        copied = await source.copy(to=target)
        assert (copied.sessions, copied.refusals) == (1, 1)
        assert (copied.refused[0].key, copied.refused[0].code) == (A, "session.corrupt")
        assert "event 4" in copied.refused[0].reason
        with pytest.raises(limpet.errors.SessionCorrupt, match="event 4"):
            await source.copy(A, to=target)
        with pytest.raises(limpet.errors.SessionCorrupt, match="event 4"):
            await source.export(A, tmp_path / "a.limpet")
        assert not [each for each in tmp_path.iterdir() if "limpet" in each.name]


async def test_a_sealed_store_is_copied_into_one_with_another_seal(tmp_path: Path) -> None:
    """Bodies are opened on the way; without the key they are refused by name."""
    url = f"sqlite:///{tmp_path}/sealed.db"
    other = f"sqlite:///{tmp_path}/other.db"
    async with (
        limpet.open(url, seal=FixedKeySeal()) as source,
        limpet.open(other, seal=FixedKeySeal(bytes(32))) as target,
    ):
        await filled(source)
        assert (await source.copy(to=target)).ok
        await same(source, target, A)
        await source.export(A, tmp_path / "open.limpet")
    async with limpet.open(url) as source, limpet.open("memory://") as target:
        copied = await source.copy(to=target)
        assert {each.code for each in copied.refused} == {"session.corrupt", "name.not_copied"}
        assert await target.import_(tmp_path / "open.limpet") == A


@pytest.mark.parametrize("sealed", [False, True])
async def test_a_compressed_body_is_copied_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sealed: bool
) -> None:
    """It is not compressed again, unless it is sealed on the way; then it is, with its salt."""
    compressed: list[bytes] = []

    def counted(raw: bytes, compress: Callable[[bytes], bytes] = codec._compressed) -> bytes:
        compressed.append(raw)
        return compress(raw)

    seal = FixedKeySeal() if sealed else None
    async with (
        limpet.open(f"sqlite:///{tmp_path}/one.db") as one,
        limpet.open(f"sqlite:///{tmp_path}/two.db", seal=seal) as two,
    ):
        s = await one.create("shop", "ada", "long", actor="user:ada")
        await s.append("note.made", {"text": "long " * 999})
        monkeypatch.setattr(codec, "_compressed", counted)
        assert (await one.copy(to=two)).events == 2
        assert len(compressed) == sealed
        assert (await (await two.get(s.key)).read()) == await s.read()
        assert (await two.maintenance.verify()).findings == ()


async def test_a_copy_counts_its_events_as_it_goes(two: tuple[Limpet, Limpet]) -> None:
    """Progress ends at the total, and never goes back."""
    source, target = two
    await filled(source, A)
    await filled(source, B)
    seen: list[tuple[int, int]] = []
    copied = await source.copy(to=target, progress=lambda *at: seen.append(at))
    assert seen[-1] == (copied.events, copied.events)
    assert seen == sorted(seen)


async def test_followers_of_the_target_hear_of_a_copy(two: tuple[Limpet, Limpet]) -> None:
    """A copy is recorded as everything is."""
    source, target = two
    await filled(source)
    await source.copy(A, to=target)
    await source.session(A).append("agent.message", {"text": "new"}, actor="agent:a")
    follower = target.session(A).follow(after=(await target.get(A)).head.version)
    await source.copy(A, to=target)
    assert (await anext(follower)).data == {"text": "new"}
    await follower.aclose()


async def test_wrong_arguments_of_copy_are_refused(two: tuple[Limpet, Limpet]) -> None:
    """A key and an app, no target, the same store."""
    source, target = two
    for call in (
        lambda: source.copy(A, app="support", to=target),
        lambda: source.copy(to=source),
        lambda: source.copy(to="memory://"),  # type: ignore[arg-type]
        lambda: source.copy(A, to=target, progress=1),  # type: ignore[arg-type]
    ):
        with pytest.raises(limpet.InvalidInput):
            await call()
    with pytest.raises(limpet.SessionNotFound):
        await source.copy(A, to=target)


def test_the_sync_verbs_copy_between_two_loops(tmp_path: Path) -> None:
    """Each store stays on the loop that opened it."""
    url = f"sqlite:///{tmp_path}/sync.db"
    with limpet.open_sync("memory://") as one, limpet.open_sync(url) as other:
        one.create("support", "ada", "c1", state={"user:lang": "en"})
        assert one.copy(to=other).names == 1
        one.export(A, tmp_path / "a.limpet")
        with limpet.open_sync("memory://") as third:
            assert third.import_(tmp_path / "a.limpet") == A
        with pytest.raises(limpet.InvalidInput):
            one.copy(to=one)


# --- files ----------------------------------------------------------------------------------------


async def test_an_exported_session_is_imported_as_it_was(
    pair: tuple[Limpet, Limpet], tmp_path: Path
) -> None:
    """Importing again changes nothing; the file is for its owner alone."""
    source, target = pair
    await filled(source, turns=9)
    path = tmp_path / "ada.limpet"
    await source.export(A, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert await target.import_(str(path)) == A
    await same(source, target, A)
    assert await target.import_(path) == A
    await target.session(A).append("note.made", actor="agent:a")
    assert await target.import_(path) == A  # it only went on
    assert (await target.get(A)).head.version == (await source.get(A)).head.version + 1


async def test_a_file_continues_a_log_that_is_shorter(
    two: tuple[Limpet, Limpet], tmp_path: Path
) -> None:
    """A later export of the same session brings what came since."""
    source, target = two
    await filled(source)
    await source.copy(A, to=target)
    await source.session(A).append("agent.message", {"text": "new"}, actor="agent:a")
    await source.export(A, tmp_path / "later.limpet")
    await target.import_(tmp_path / "later.limpet")
    await same(source, target, A)


async def test_a_fork_travels_with_the_state_it_began_on(
    two: tuple[Limpet, Limpet], tmp_path: Path
) -> None:
    """Without its parent; what is before the fork reads as removed."""
    source, target = two
    await filled(source)
    child = Key("support", "bob", "f1")
    await fork(source._journal.store, child, A, 4)
    await source.session(child).append("note.made", actor="agent:a", set={"own": 1})
    await source.export(child, tmp_path / "fork.limpet")
    assert await target.import_(tmp_path / "fork.limpet") == child
    assert (await target.get(child)).head == (await source.get(child)).head
    found = await target._journal.store.read(child, after=0, limit=9, reverse=False, types=None)
    assert [event.removed for event in found] == [True] * 4 + [False] * 2
    assert (await target.maintenance.verify()).findings == ()


async def test_a_file_carries_the_blobs_of_its_session(
    pair: tuple[Limpet, Limpet], tmp_path: Path
) -> None:
    """Large, small and empty ones; a changed part is refused whole."""
    source, target = pair
    await filled(source)
    s = await source.get(A)
    contents = [bytes(range(256)) * 10_000, b"small", b""]
    refs = [await s.blobs.put(content, "text/plain") for content in contents]
    await s.append("agent.message", {"files": [ref.sha256 for ref in refs]}, actor="agent:a")
    path = tmp_path / "blobs.limpet"
    await source.export(A, path)
    lines = zstd.decompress(path.read_bytes()).splitlines(keepends=True)[:-1]
    parts = [at for at, line in enumerate(lines) if line.startswith(b'{"blob"')]
    assert parts[0] == 2
    large = max(parts, key=lambda at: len(lines[at]))
    first = lines[large].index(b'"data":"') + 9
    changed = lines[large][:first] + b"////" + lines[large][first + 4 :]
    wrong = [
        [*lines[:large], changed, *lines[large + 1 :]],
        [*lines[:large], *lines[large + 1 :]],
        [*lines[:large], lines[large], *lines[large:]],
        [lines[0], lines[2], lines[1], *lines[3:]],
        [line.replace(b'"media_type":"text/plain"', b'"media_type":""') for line in lines],
    ]
    await refused_all(target, tmp_path, [zstd.compress(_ended(each)) for each in wrong])
    assert await target.import_(path) == A
    assert await target.import_(path) == A
    there = await target.get(A)
    assert [await there.blobs.get(ref) for ref in refs] == contents
    await same(source, target, A)


def _ended(lines: list[bytes]) -> bytes:
    """The lines with a trailer that fits them."""
    events = sum([line.startswith(b'{"seq"') for line in lines])
    text = b"".join(lines)
    trailer = {"end": True, "events": events, "sha256": sha256(text).hexdigest()}
    return text + msgspec.json.encode(trailer) + b"\n"


@pytest.mark.parametrize("turns", [1, 3, 9])
async def test_a_file_of_another_log_is_a_conflict(
    two: tuple[Limpet, Limpet], tmp_path: Path, turns: int
) -> None:
    """One that began under the same key, shorter, as long or longer; nothing is recorded."""
    source, target = two
    await filled(source)
    await source.export(A, tmp_path / "a.limpet")
    await filled(target, turns=turns)
    before = await target._journal.store.load(A, tail=99)
    with pytest.raises(limpet.SessionConflict):
        await target.import_(tmp_path / "a.limpet")
    assert await target._journal.store.load(A, tail=99) == before
    await target.delete(A)
    with pytest.raises(limpet.errors.SessionDeleted):
        await target.import_(tmp_path / "a.limpet")
    await target.erase(A)
    with pytest.raises(limpet.errors.SessionErased):
        await target.import_(tmp_path / "a.limpet")


async def test_a_truncated_file_is_refused_whole(
    two: tuple[Limpet, Limpet], tmp_path: Path
) -> None:
    """Wherever it ends, compressed or within."""
    source, target = two
    await filled(source)
    whole = tmp_path / "whole.limpet"
    await source.export(A, whole)
    packed = whole.read_bytes()
    lines = zstd.decompress(packed).splitlines(keepends=True)
    cuts = [packed[:size] for size in range(0, len(packed), 97)]
    cuts += [zstd.compress(b"".join(lines[:count])) for count in range(len(lines))]
    cuts.append(zstd.compress(b"".join(lines)[:-1]))
    await refused_all(target, tmp_path, cuts)


async def test_a_changed_file_is_refused_whole(two: tuple[Limpet, Limpet], tmp_path: Path) -> None:
    """A flipped bit, a changed text, a line left out, doubled or moved; also with a new digest."""
    source, target = two
    await filled(source)
    whole = tmp_path / "whole.limpet"
    await source.export(A, whole)
    packed = whole.read_bytes()
    flipped = [
        packed[:at] + bytes((packed[at] ^ 1,)) + packed[at + 1 :]
        for at in range(0, len(packed), 53)
    ]
    await refused_all(target, tmp_path, flipped)
    *lines, end = zstd.decompress(packed).splitlines(keepends=True)
    text = [line.replace(b"hi 1", b"hi 7") for line in lines]
    wrong = [
        text,
        [line.replace(b'"agent:a"', b'"agent:b"') for line in lines],
        lines[:3] + lines[4:],
        [*lines[:4], *lines[3:]],
        [*lines[:3], lines[4], lines[3], *lines[5:]],
        [lines[0].replace(b'"ada"', b'"eve"'), *lines[1:]],
        [lines[0].replace(b'"version":1', b'"version":2'), *lines[1:]],
        [lines[0].replace(b"limpet.session", b"limpet.another"), *lines[1:]],
        lines[:1],
        [*lines, b'{"seq": 1}\n'],
        [*lines, b"not JSON\n"],
        [],
    ]
    await refused_all(target, tmp_path, [zstd.compress(b"".join(each) + end) for each in wrong])
    await refused_all(target, tmp_path, [zstd.compress(sealed_again(each)) for each in wrong])
    told = msgspec.json.decode(end)
    ends = [{**told, "sha256": sha256(b"").hexdigest()}, {**told, "events": told["events"] + 1}]
    lies = [b"".join(lines) + msgspec.json.encode(each) + b"\n" for each in ends]
    await refused_all(target, tmp_path, [zstd.compress(each) for each in lies])
    more = zstd.compress(b"".join(lines) + end + b"more\n")
    await refused_all(target, tmp_path, [more, packed + packed, b"", b"text", zstd.compress(b"")])
    assert await target.import_(whole) == A


@pytest.mark.parametrize("what", ["body", "blob"])
async def test_what_is_not_what_was_recorded_is_not_exported(
    two: tuple[Limpet, Limpet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Another body, or another content of a blob: the file could be imported nowhere."""
    source, _ = two
    await filled(source)
    await source.session(A, actor="user:ada").blobs.put(b"large" * 100, "text/plain")
    store: Any = source._journal.store
    records, chunk = store.records, store.blobs.chunk

    async def changed(*args: Any, **how: Any) -> Any:
        found = await records(*args, **how)
        return tuple([structs.replace(one, raw=one.raw.replace(b"hi", b"ho")) for one in found])

    async def backwards(*args: Any) -> bytes:
        return (await chunk(*args))[::-1]  # type: ignore[no-any-return]  # a chunk is bytes

    if what == "body":
        monkeypatch.setattr(store, "records", changed)
    else:
        monkeypatch.setattr(store.blobs, "chunk", backwards)
    with pytest.raises(limpet.errors.SessionCorrupt, match=r"another (body|content) than"):
        await source.export(A, tmp_path / "a.limpet")
    assert not [each for each in tmp_path.iterdir() if "limpet" in each.name]


def sealed_again(lines: list[bytes]) -> bytes:
    """The lines with a trailer that fits them, as a forger would write it."""
    text = b"".join(lines)
    trailer = {"end": True, "events": max(len(lines) - 1, 0), "sha256": sha256(text).hexdigest()}
    return text + msgspec.json.encode(trailer) + b"\n"


async def refused_all(target: Limpet, tmp_path: Path, contents: list[bytes]) -> None:
    for content in contents:
        (tmp_path / "wrong.limpet").write_bytes(content)
        with pytest.raises(limpet.errors.BundleDamaged):
            await target.import_(tmp_path / "wrong.limpet")
    assert (await target.list()).items == ()


async def test_an_export_appears_complete_or_not_at_all(
    two: tuple[Limpet, Limpet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It overwrites nothing, and leaves nothing behind when it fails."""
    source, _ = two
    await filled(source)
    taken = tmp_path / "taken"
    taken.write_text("mine")
    for path in (taken, tmp_path, tmp_path / "no" / "where"):
        with pytest.raises(limpet.errors.BundleRefused):
            await source.export(A, path)
    assert taken.read_text() == "mine"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(limpet.errors.StoreFull, match=r"full\.limpet.*Free some space"):
        await source.export(A, tmp_path / "full.limpet")
    assert [path.name for path in tmp_path.iterdir() if "full" in path.name] == []


async def test_wrong_arguments_of_export_and_import_are_refused(
    two: tuple[Limpet, Limpet], tmp_path: Path
) -> None:
    """No path, no file, no session, a reserved app."""
    source, _ = two
    with pytest.raises(limpet.InvalidInput):
        await source.export(A, 7)  # type: ignore[arg-type]
    with pytest.raises(limpet.InvalidInput):
        await source.import_("")
    with pytest.raises(limpet.errors.BundleRefused):
        await source.import_(tmp_path / "missing.limpet")
    with pytest.raises(limpet.SessionNotFound):
        await source.export(A, tmp_path / "none.limpet")
    with pytest.raises(limpet.errors.ReservedApp):
        await source.export(("$agents", "ada", "1"), tmp_path / "none.limpet")


# --- forgetting -----------------------------------------------------------------------------------


async def test_a_user_is_forgotten_whole(lp: Limpet) -> None:
    """Sessions, deleted ones too, and every version of user: names; others keep theirs."""
    await filled(lp, A)
    await filled(lp, Key("support", "ada", "c9"))
    await lp.delete("support", "ada", "c9")
    await filled(lp, B)
    done = await lp.erase_user("support", "ada")
    assert (len(done.sessions), done.names, done.forks) == (2, 1, ())
    with pytest.raises(limpet.errors.SessionErased):
        await lp.get(A)
    assert (await lp.get(B)).values["user:lang"] == "en"
    assert (await lp.create("support", "ada")).values == {"app:catalog": {"v": 2}}
    assert (await lp.maintenance.verify()).findings == ()
    with pytest.raises(limpet.errors.InvalidKey):
        await lp.erase_user("support", "")


async def test_what_becomes_of_forks_is_said_by_who_erases(lp: Limpet) -> None:
    """Refused and named, erased too, or kept with the state they began on."""
    await filled(lp)
    store, child = lp._journal.store, Key("support", "bob", "f1")
    await fork(store, child, A, 4)
    with pytest.raises(limpet.errors.SessionHasForks) as info:
        await lp.erase(A)
    assert info.value.forks == (child,)
    with pytest.raises(limpet.InvalidInput):
        await lp.erase(A, forks="all")  # type: ignore[arg-type]
    done = await lp.erase(A, forks="keep")
    assert done is not None
    assert done.forks_kept == 1
    await fork(store, B, child, 5)
    await lp.erase(child, forks="erase")
    with pytest.raises(limpet.errors.SessionErased):
        await lp.get(B)
