"""A mirror: sessions as files, a directory for each, in the layout that people know."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import limpet

ADA = "user:ada"
LAYOUT = [
    "events.jsonl",
    "runtime",
    "runtime/checkpoint.json",
    "runtime/session-state.md",
    "runtime/working-buffer.md",
    "session.json",
    "wake-queue.jsonl",
]


async def works(turn: limpet.Turn) -> None:
    turn.revisit(timedelta(hours=1), "check delivery", key="delivery", priority="high")
    await turn.delegate("research", "find it")
    await turn.ask("rate", {"pair": "EURUSD"})


async def worked(lp: limpet.Limpet) -> limpet.Session[Any]:
    """A session that waits, has notes, a checkpoint, a timer and a child."""
    s = await lp.create("support", "ada", "order-7", state={"n": 1, "user:lang": "en"}, actor=ADA)
    await s.append("user.message", {"text": "hi"}, actor=ADA)
    await s.lifecycle.set_timer("daily", datetime(2040, 1, 1, tzinfo=UTC), actor=ADA)
    await s.memory.session_state.write("- paid\n- shipped\n", actor=ADA)
    await s.checkpoint()
    await lp.wake(s.key, works)
    return await s.refresh()


def read(path: Path) -> Any:
    return json.loads(path.read_text())


async def test_a_session_is_written_in_the_layout(lp: limpet.Limpet, tmp_path: Path) -> None:
    """session.json, events.jsonl, wake-queue.jsonl and runtime/, as the store has them."""
    s = await worked(lp)
    written = await lp.maintenance.mirror(tmp_path, s.key)
    place = tmp_path / "support" / "ada" / "order-7"
    assert sorted([str(p.relative_to(place)) for p in place.rglob("*")]) == LAYOUT
    assert (written.sessions, written.events) == (1, s.version)
    lines = [json.loads(line) for line in (place / "events.jsonl").read_text().splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, s.version + 1))
    assert [line["id"] for line in lines] == [e.id for e in await s.read(limit=100)]
    shown = read(place / "session.json")
    assert (shown["status"], shown["stop_reason"]) == ("idle", "requires_action")
    assert (shown["state"], shown["blocked_on"][0]["name"]) == ({"n": 1}, "rate")
    (timer,) = [json.loads(line) for line in (place / "wake-queue.jsonl").read_text().splitlines()]
    assert (timer["name"], timer["at"]) == ("daily", "2040-01-01T00:00:00+00:00")
    assert (place / "runtime" / "session-state.md").read_text() == "- paid\n- shipped\n"
    assert read(place / "runtime" / "checkpoint.json")["number"] == 1


async def test_a_mirrored_session_says_what_it_runs_with(lp: limpet.Limpet, tmp_path: Path) -> None:
    """Agent, environment, resources and vaults by version, and for whom it works."""
    await lp.agents.put("support", {"model": "small"}, actor=ADA)
    await lp.environments.put("default", {"image": "python"}, actor=ADA)
    await lp.resources.put("repo", {"mount": "/srv"}, actor=ADA)
    await lp.vaults.put("payments", {"stripe": "env:KEY"}, actor=ADA)
    s = await lp.create("support", "ada", "c1", agent="support", environment="default", actor=ADA)
    await s.setup.attach(resources=["repo"], vaults=["payments"])
    await lp.maintenance.mirror(tmp_path, s.key)
    shown = read(tmp_path / "support" / "ada" / "c1" / "session.json")
    assert (shown["agent"], shown["environment"]) == ("support@1", "default@1")
    assert (shown["resources"], shown["vaults"]) == (["repo@1"], ["payments@1"])
    assert shown["parent"] is None


async def test_relations_are_mirrored_and_revisits_queued(
    lp: limpet.Limpet, tmp_path: Path
) -> None:
    """One file says who works for whom; one session leaves what is known of the others."""
    s = await worked(lp)
    (child,) = await s.runs.children()
    await lp.maintenance.mirror(tmp_path)
    relations = tmp_path / ".limpet-runtime" / "session-relations.json"
    (edge,) = read(relations)
    assert (edge["parent"]["id"], edge["child"]["id"], edge["ended"]) == (
        "order-7",
        child.id,
        False,
    )
    await s.answer(s.blocked_on[0].id, 1.1, actor=ADA)
    await lp.wake(s.key, works)
    await lp.maintenance.mirror(tmp_path, s.key)
    assert read(relations) == [edge]
    queue = (tmp_path / "support" / "ada" / "order-7" / "wake-queue.jsonl").read_text()
    (revisit, _) = [json.loads(line) for line in queue.splitlines()]
    assert (revisit["key"], revisit["reason"], revisit["priority"]) == (
        "delivery",
        "check delivery",
        "high",
    )
    assert read(tmp_path / "research" / "ada" / child.id / "session.json")["parent"] == {
        "app": "support",
        "user": "ada",
        "id": "order-7",
    }


async def test_every_kind_of_relation_is_mirrored_once(lp: limpet.Limpet, tmp_path: Path) -> None:
    """Peers, successors, references and forks too, whichever end is written; what is known of
    others stays."""
    a, b = [await lp.create("support", "ada", id, actor=ADA) for id in ("a", "b")]
    await a.relate(b, "peer", actor=ADA)
    await b.relate(a, "successor", actor=ADA)
    await a.relate(b, "reference", actor=ADA)
    fork = await a.fork(id="f", actor=ADA)
    await lp.maintenance.mirror(tmp_path, fork.key)
    await lp.maintenance.mirror(tmp_path, b.key)
    path = tmp_path / ".limpet-runtime" / "session-relations.json"
    some = read(path)
    await lp.maintenance.mirror(tmp_path)
    assert read(path) == some
    shown = [[*each.values()][:3] for each in some]
    assert [(kind, one["id"], other["id"]) for kind, one, other in shown] == [
        ("fork", "a", "f"),
        ("peer", "a", "b"),
        ("reference", "a", "b"),
        ("successor", "b", "a"),
    ]
    assert {each["actor"] for each in some if "actor" in each} == {ADA}


async def test_no_key_leads_out_of_the_directory(lp: limpet.Limpet, tmp_path: Path) -> None:
    """Names are escaped, and long ones cut; files are this user's alone, none is left half."""
    for id in ("..", ".", "a/b", "../../x", "ä" * 250, "ä" * 249 + "b"):
        await lp.create("support", "..", id)
    inside = tmp_path / "inside"
    assert (await lp.maintenance.mirror(inside, app="support")).sessions == 6
    kinds = (".json", ".jsonl", ".md", ".part")
    found = [path for path in tmp_path.rglob("*") if path.suffix in kinds]
    assert all(inside in path.parents for path in found)
    assert len([path for path in found if path.name == "session.json"]) == 6
    assert not [path for path in found if path.name.endswith(".part")]
    assert all((path.stat().st_mode & 0o077) == 0 for path in found)


async def test_no_two_keys_share_a_directory(lp: limpet.Limpet, tmp_path: Path) -> None:
    """Not even a long name and one that is what was made of it."""
    long = "u" * 250
    await lp.create("support", long, "one")
    await lp.maintenance.mirror(tmp_path / "first")
    (made,) = (tmp_path / "first" / "support").iterdir()
    users = [
        long,
        "u" * 249 + "v",
        made.name,
        made.name.replace("!", "-"),
        "%2E",
        ".",
        "a%b",
        "a%25b",
    ]
    for user in users[1:]:
        await lp.create("support", user, "one")
    assert (await lp.maintenance.mirror(tmp_path / "all")).sessions == len(users)
    found = [read(path)["session"]["user"] for path in (tmp_path / "all").rglob("session.json")]
    assert sorted(found) == sorted(users)


async def test_a_mirror_that_cannot_be_written_says_so(lp: limpet.Limpet, tmp_path: Path) -> None:
    """A file in the way, a key and an app at once, a session that is not there."""
    s = await lp.create("support", "ada", "one")
    (tmp_path / "file").write_text("")
    for how in ({"directory": tmp_path / "file"}, {"directory": tmp_path, "app": "support"}):
        with pytest.raises(limpet.InvalidInput):
            await lp.maintenance.mirror(key=s.key, **how)
    with pytest.raises(limpet.SessionNotFound):
        await lp.maintenance.mirror(tmp_path, "support", "ada", "none")


async def test_a_session_that_is_deleted_meanwhile_is_passed_over(
    lp: limpet.Limpet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are written; the one that was asked for by its key raises."""
    gone, kept = [await lp.create("support", "ada", id) for id in ("gone", "kept")]
    read, is_asked = limpet.Session.read, ContextVar("is_asked", default=False)
    is_asked.set(True)  # and not in the task that keeps a mirror of its own

    async def deleted_first(session: limpet.Session[Any], **how: Any) -> Any:
        if is_asked.get() and session.key == gone.key:
            await lp.delete(gone.key)
        return await read(session, **how)

    monkeypatch.setattr(limpet.Session, "read", deleted_first)
    to = tmp_path / "mirrored"
    assert (await lp.maintenance.mirror(to)).sessions == 1
    assert [path.parent.name for path in to.rglob("session.json")] == [kept.id]
    gone = await lp.create("support", "ada", "gone", reuse_deleted=True)
    with pytest.raises(limpet.errors.SessionDeleted):
        await lp.maintenance.mirror(to, gone.key)


async def test_a_file_of_relations_that_is_not_one_is_named(
    lp: limpet.Limpet, tmp_path: Path
) -> None:
    """One app keeps what is known of the others, so it has to be read; everything replaces it."""
    await lp.create("support", "ada", "one")
    relations = tmp_path / ".limpet-runtime" / "session-relations.json"
    relations.parent.mkdir()
    relations.write_text("[")
    with pytest.raises(limpet.InvalidInput):
        await lp.maintenance.mirror(tmp_path, app="support")
    await lp.maintenance.mirror(tmp_path)
    assert read(relations) == []


# --- kept up to date ------------------------------------------------------------------------------


@pytest.fixture(params=["files", "sqlite"])
def mirrored_store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """The URL of a store that is mirrored, and where."""
    if request.param == "files":
        return f"files:///{tmp_path}/store", tmp_path / "store" / "sessions"
    return (
        f"sqlite:///{tmp_path}/store.db?sync=normal&mirror={tmp_path}/mirror",
        tmp_path / "mirror",
    )


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what a follower does soon; it fails after a time that no machine needs."""
    for _ in range(3_000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the mirror does not follow")


def logged(place: Path) -> list[Any]:
    path = place / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def test_the_files_beside_a_store_follow_it(mirrored_store: tuple[str, Path]) -> None:
    """Nobody asks for them: a log grows, what was processed says so, and notes are there."""
    url, directory = mirrored_store
    place = directory / "support" / "ada" / "one"
    async with limpet.open(url) as lp:
        s = await lp.create("support", "ada", "one", state={"n": 0}, actor=ADA)
        await until(lambda: (place / "session.json").exists())
        for number in range(3):
            await s.append("a.b", {"n": number}, actor=ADA, set={"n": number})
        await until(lambda: len(logged(place)) == 4)
        await until(lambda: read(place / "session.json")["state"] == {"n": 2})
        await s.append("user.message", {"text": "hi"}, actor=ADA)
        await lp.wake(s.key, done)
        await lp.maintenance.compact()
        lines = logged(place)
        assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
        assert lines[4]["processed"] > 5
        await s.memory.session_state.write("- paid\n", actor=ADA)
        await until(lambda: (place / "runtime" / "session-state.md").read_text() == "- paid\n")
        await s.checkpoint()
        await until(lambda: read(place / "runtime" / "checkpoint.json") is not None)
        await s.append("a.b", {}, actor=ADA)
    assert len(logged(place)) == len(lines) + 2  # the last is written before it is closed


async def done(turn: limpet.Turn) -> None:
    await turn.append("agent.message", {"text": "done"})


async def test_the_next_process_goes_on_with_a_mirror(mirrored_store: tuple[str, Path]) -> None:
    """It writes what was written to meanwhile, also without it, and removes what has ended."""
    url, directory = mirrored_store
    async with limpet.open(url) as lp:
        for id in ("one", "two", "three"):
            await lp.create("support", "ada", id, actor=ADA)
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("session.json")}
    assert len(before) == 3
    async with limpet.open(url.replace("/mirror", "/elsewhere")) as lp:
        await lp.session("support", "ada", "two").append("a.b", {}, actor=ADA)
        store = lp._services.journal.store
        await store.delete(limpet.Key("support", "ada", "three"))
    async with limpet.open(url) as lp:
        await lp.maintenance.compact()
    after = {path: path.stat().st_mtime_ns for path in directory.rglob("session.json")}
    assert len(after) == 2
    assert len(logged(directory / "support" / "ada" / "two")) == 2
    one = directory / "support" / "ada" / "one" / "session.json"
    assert after[one] == before[one]


async def test_what_is_erased_leaves_the_mirror_before_the_answer(
    mirrored_store: tuple[str, Path],
) -> None:
    """A session, or a user: files, directories and relations."""
    url, directory = mirrored_store
    async with limpet.open(url) as lp:
        one, two = [await lp.create("support", user, "s", actor=ADA) for user in ("ada", "eve")]
        third = await lp.create("support", "eve", "third", actor=ADA)
        await third.relate(one, "reference", actor=ADA)
        await lp.maintenance.compact()
        assert (directory / "support" / "eve" / "s").is_dir()
        await lp.erase(two.key)
        assert not (directory / "support" / "eve" / "s").exists()
        await lp.erase_user("support", "eve")
        assert not (directory / "support" / "eve").exists()
        assert read(directory / ".limpet-runtime" / "session-relations.json") == []
        assert (directory / "support" / "ada" / "s").is_dir()


async def test_a_mirror_that_cannot_be_written_fails_no_commit(
    mirrored_store: tuple[str, Path],
) -> None:
    """The doctor says so, compact does, and it goes on once there is room."""
    url, directory = mirrored_store
    directory.parent.mkdir(exist_ok=True)
    async with limpet.open(url) as lp:
        await lp.maintenance.compact()
        shutil.rmtree(directory)
        directory.touch()  # in the place of the directory
        s = await lp.create("support", "ada", "one", actor=ADA)
        with pytest.raises(limpet.InvalidInput, match="nothing can be mirrored"):
            await lp.maintenance.compact()
        await s.append("a.b", {}, actor=ADA)
        checks = {check.name: check for check in (await lp.maintenance.doctor()).checks}
        assert checks["mirror"].severity == "problem"
        directory.unlink()
        await lp.maintenance.compact()
        assert len(logged(directory / "support" / "ada" / "one")) == 2
        assert (await lp.maintenance.doctor()).ok


async def test_a_full_disk_stops_a_mirror_and_no_commit(
    mirrored_store: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there stays whole, and the reason is named."""
    url, directory = mirrored_store
    async with limpet.open(url) as lp:
        s = await lp.create("support", "ada", "one", actor=ADA)
        await lp.maintenance.compact()
        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", full)
            await s.append("a.b", {}, actor=ADA)
            with pytest.raises(limpet.errors.StoreFull):
                await lp.maintenance.compact()
            await s.append("a.b", {}, actor=ADA)
        assert not list(directory.rglob("*.part"))
        await lp.maintenance.compact()
        assert len(logged(directory / "support" / "ada" / "one")) == 3


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


async def test_nothing_of_a_sealed_store_is_mirrored(tmp_path: Path) -> None:
    """Its files would be in plain text."""
    async with limpet.open(f"files:///{tmp_path}/store", keys="memory:") as lp:
        await lp.create("support", "ada", "one", actor=ADA)
        await lp.maintenance.compact()
        with pytest.raises(limpet.InvalidInput, match="sealed"):
            await lp.maintenance.mirror(tmp_path / "out", follow=True)
    assert not (tmp_path / "store" / "sessions").exists()
    with pytest.raises(limpet.errors.InvalidURL, match="sealed"):
        async with limpet.open(f"sqlite:///{tmp_path}/a.db?mirror={tmp_path}/m", keys="memory:"):
            pass


async def test_any_store_is_followed_by_who_asks_for_it(lp: limpet.Limpet, tmp_path: Path) -> None:
    """Until the call is cancelled, beside those who write."""
    following = asyncio.ensure_future(lp.maintenance.mirror(tmp_path, follow=True))
    s = await lp.create("support", "ada", "one", actor=ADA)
    place = tmp_path / "support" / "ada" / "one"
    await until(lambda: len(logged(place)) == 1)
    await s.append("a.b", {}, actor=ADA)
    await until(lambda: len(logged(place)) == 2)
    await lp.delete(s.key)
    await until(lambda: not place.exists())
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    with pytest.raises(limpet.InvalidInput, match="everything"):
        await lp.maintenance.mirror(tmp_path, app="support", follow=True)


async def test_what_is_archived_stays_as_it_was_mirrored_and_stops_no_other(
    url: str, tmp_path: Path
) -> None:
    """Its log is in another place; nothing is written from the stub that stands for it."""
    directory = tmp_path / "mirror"
    async with limpet.open(url, archive=f"file://{tmp_path / 'cold'}") as lp:
        s = await worked(lp)
        child = await lp.get((await s.runs.children())[0], actor=ADA)
        await child.complete({})
        await lp.wake(child.key, works)  # its parent learns of it
        await lp.maintenance.mirror(directory)
        await child.archive()
        before = read(directory / ".limpet-runtime" / "session-relations.json")
        files = {path: path.read_bytes() for path in directory.rglob(child.id + "/**/*.json*")}
        assert (await lp.maintenance.mirror(directory)).sessions == 1
        assert files == {path: path.read_bytes() for path in files}
        assert read(directory / ".limpet-runtime" / "session-relations.json") == before
        with pytest.raises(limpet.errors.SessionArchived):
            await lp.maintenance.mirror(directory, child.key)
