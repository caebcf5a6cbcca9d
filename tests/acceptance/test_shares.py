"""Shares: a session uses fields of another, as they were or as they are."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import errors
from limpet.model import Commit
from limpet.model.facts.phases import transition
from limpet.model.facts.shares import SHARES_MAX
from limpet.session.limpet import journal_of
from limpet.session.sharing import SharedReader
from limpet.store.protocol import Store

ADA = "user:ada"
Pair = tuple[limpet.Session[Any], limpet.Session[Any]]


async def made(lp: limpet.Limpet, **fields: Any) -> Pair:
    """A source with these fields, and a target."""
    a = await lp.create("support", "ada", "a", state=fields or {"draft": "one"}, actor=ADA)
    return a, await lp.create("support", "ada", "b", actor=ADA)


async def test_a_snapshot_stays_what_it_was(lp: limpet.Limpet) -> None:
    a, b = await made(lp, draft={"text": "one"}, secret=1)
    share = await a.share(b, "draft")
    assert (share.source, share.target, share.fields) == (a.key, b.key, ("draft",))
    assert (share.access, share.sync, share.source_version) == ("read", "snapshot", 1)
    assert b.shared == {share.id: share}, "known without reading"
    await a.append("note.made", actor=ADA, set={"draft.text": "two"})
    context = await b.read_shared(share.id)
    assert context.values == {"draft": {"text": "one"}}
    assert (context.sync, context.source_version) == ("snapshot", 1)
    await a.complete(actor=ADA)
    assert (await b.read_shared(share.id)).values == {"draft": {"text": "one"}}, "a copy"


async def test_a_live_share_follows_with_a_version_for_each_field(lp: limpet.Limpet) -> None:
    a, b = await made(lp, draft="one", other=0)
    share = await a.share(b, "draft", "later", sync="live")
    first = await b.read_shared(share.id)
    assert (first.values, first.versions) == ({"draft": "one"}, {"draft": 1, "later": 0})
    await a.append("note.made", actor=ADA, set={"draft": "two", "other": 1})
    second = await b.read_shared(share.id)
    assert second.values == {"draft": "two"}
    assert second.versions["draft"] > first.versions["draft"]
    await a.rewind(1, actor=ADA)
    third = await b.read_shared(share.id)
    assert third.values == {"draft": "one"}
    assert third.versions["draft"] > second.versions["draft"], "the value returned, it did not"


async def test_a_field_that_is_removed_goes_on_in_its_versions(lp: limpet.Limpet) -> None:
    """They never go backwards: who waits for the removal wakes, and nobody writes over it."""
    source, target = await made(lp, draft="x", other=1)
    share = await source.share(target, "draft", "later", access="write", sync="live")
    seen = await target.read_shared(share.id)
    assert (seen.values, seen.versions) == ({"draft": "x"}, {"draft": 1, "later": 0})
    following = target.follow_shared(share.id)
    await anext(following)
    gone = await source.append("note.made", actor=ADA, delete=["draft"])
    await source.append("note.made", actor=ADA, set={"other": 2})
    for reader in (target, await lp.get(target.key)):
        seen = await reader.read_shared(share.id, at_least={"draft": gone.seq})
        assert (seen.values, seen.versions) == ({}, {"draft": gone.seq, "later": 0})
    for stale in (0, 1):
        with pytest.raises(errors.SessionConflict):
            await target.write_shared(share.id, {"draft": "y"}, expect={"draft": stale}, actor=ADA)
    written = await target.write_shared(share.id, {"draft": "y", "later": 1}, actor=ADA)
    await source.rewind(gone.seq, actor=ADA)
    seen = await target.read_shared(share.id)
    assert (seen.values, seen.versions["draft"]) == ({}, written["draft"] + 1)
    told = [await anext(following) for _ in range(3)]
    assert [each.values.get("draft") for each in told] == [None, "y", None]
    assert [each.versions["draft"] for each in told] == [
        gone.seq,
        written["draft"],
        written["draft"] + 1,
    ]
    await following.aclose()


async def test_a_read_waits_for_a_version(lp: limpet.Limpet) -> None:
    a, b = await made(lp)
    share = await a.share(b, "draft", sync="live")
    known = await b.read_shared(share.id)
    least = {"draft": known.versions["draft"] + 1}
    waiting = asyncio.create_task(b.read_shared(share.id, at_least=least))
    await a.append("note.made", actor=ADA, set={"other": 1})
    await asyncio.sleep(0)
    assert not waiting.done()
    await a.append("note.made", actor=ADA, set={"draft": "two"})
    assert (await waiting).values == {"draft": "two"}
    at_version = await b.read_shared(share.id, at_least=a.version)
    assert at_version.source_version >= a.version


async def test_changes_are_followed_until_the_share_ends(lp: limpet.Limpet) -> None:
    a, b = await made(lp)
    share = await a.share(b, "draft", sync="live")
    seen: list[Any] = []
    async with aclosing(b.follow_shared(share.id)) as changes:
        seen.append((await anext(changes)).values["draft"])
        await a.append("note.made", actor=ADA, set={"other": 1})
        await a.append("note.made", actor=ADA, set={"draft": "two"})
        seen.append((await anext(changes)).values["draft"])
        await a.unshare(share.id)
        async for context in changes:
            seen.append(context.values)
    assert seen == ["one", "two"]


async def test_changes_that_come_while_a_page_is_read_keep_their_order(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are shown after the changes that were there, and once."""
    a, b = await made(lp)
    share, store = await a.share(b, "draft", sync="live"), journal_of(lp).store
    read = store.read

    async def late(key: Any, **asked: Any) -> Any:
        monkeypatch.setattr(store, "read", read)
        await a.append("note.made", actor=ADA, set={"draft": "four"})
        return await read(key, **asked)

    async with aclosing(b.follow_shared(share.id)) as changes:
        await anext(changes)
        for text in ("two", "three"):
            await a.append("note.made", actor=ADA, set={"draft": text})
        live = SharedReader._live

        async def loaded(reader: Any, terms: Any) -> Any:
            monkeypatch.setattr(SharedReader, "_live", live)
            newest = await live(reader, terms)
            monkeypatch.setattr(store, "read", late)
            return newest

        monkeypatch.setattr(SharedReader, "_live", loaded)
        seen = [(await anext(changes)).values["draft"] for _ in range(3)]
        await a.append("note.made", actor=ADA, set={"draft": "five"})
        seen.append((await anext(changes)).values["draft"])
    assert seen == ["two", "three", "four", "five"]


@pytest.mark.parametrize("ending", ["unshared", "completed", "deleted", "erased", "replaced"])
async def test_a_slow_subscriber_reads_nothing_after_the_end(
    lp: limpet.Limpet, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waited for it when the share ended is not shown; nor is another session of that key."""
    monkeypatch.setattr("limpet.session.sharing.PAGE_MAX", 2)
    a, b = await made(lp)
    share = await a.share(b, "draft", sync="live")
    async with aclosing(b.follow_shared(share.id)) as changes:
        seen = [(await anext(changes)).values["draft"]]
        for text in ("two", "three", "four", "five"):
            await a.append("note.made", actor=ADA, set={"draft": text})
        seen += [(await anext(changes)).values["draft"] for _ in range(3)]
        if ending == "unshared":
            await a.unshare(share.id)
        elif ending == "completed":
            await a.complete()
        elif ending == "erased":
            await lp.erase(a.key)
        else:
            await lp.delete(a.key)
        if ending == "replaced":
            other = await lp.create(a.app, a.user, a.id, actor=ADA, reuse_deleted=True)
            for text in ("six", "seven", "eight", "nine"):
                await other.append("note.made", actor=ADA, set={"draft": text})
        seen += [context.values["draft"] async for context in changes]
    assert seen == ["one", "two", "three", "four"]


async def test_a_subscriber_that_is_slow_misses_no_change(lp: limpet.Limpet) -> None:
    """Each value with its version, in order, a rewind and a write of the target's own among them;
    what changed other fields is not shown."""
    a, b = await made(lp)
    share = await a.share(b, "draft", access="write", sync="live")
    async with aclosing(b.follow_shared(share.id)) as changes:
        await anext(changes)
        versions = []
        for text in ("two", "three"):
            event = await a.append("note.made", actor=ADA, set={"draft": text})
            await a.append("note.made", actor=ADA, set={"other": text})
            versions.append(event.seq)
        await a.rewind(versions[0], actor=ADA)
        versions.append((await a.refresh()).version)
        written = await b.write_shared(share.id, {"draft": "four"}, expect={"draft": versions[-1]})
        versions.append(written["draft"])
        await a.append("note.made", actor=ADA, delete=["draft"])
        versions.append(a.version)
        await a.append("note.made", actor=ADA, set={"other": "last"})
        seen = [await anext(changes) for _ in versions]
        assert [context.values.get("draft") for context in seen] == [
            *("two", "three", "two", "four", None)
        ]
        assert [context.source_version for context in seen[:-1]] == versions[:-1]
        assert seen[0].versions["draft"] < seen[1].versions["draft"] < seen[2].versions["draft"]


async def test_a_taken_back_share_shows_nothing_more(lp: limpet.Limpet) -> None:
    a, b = await made(lp)
    for sync in ("snapshot", "live"):
        share = await a.share(b, "draft", sync=sync)  # type: ignore[arg-type]
        await a.unshare(share.id)
        await a.unshare(share.id)
        with pytest.raises(errors.ShareNotFound):
            await b.read_shared(share.id)
    assert (await b.refresh()).shared == {}
    with pytest.raises(errors.ShareNotFound):
        await a.unshare("never")


async def test_who_received_a_share_can_give_it_back(lp: limpet.Limpet) -> None:
    """Both ends record it, as if the source had ended it; also after the source is gone."""
    a, b = await made(lp)
    for sync in ("snapshot", "live"):
        share = await a.share(b, "draft", sync=sync)  # type: ignore[arg-type]
        await b.unshare(share.id, actor=ADA)
        assert b.shared == {}
        for each in (a, b):
            assert (await each.read())[-1].type == "session.unshared"
        with pytest.raises(errors.ShareNotFound):
            await b.read_shared(share.id)
        with pytest.raises(errors.ShareNotFound):
            await b.unshare(share.id)
    share = await a.share(b, "draft")
    await lp.erase(a.key)
    await b.unshare(share.id)
    assert (await b.refresh()).shared == {}


async def test_the_end_of_either_session_ends_a_live_share(lp: limpet.Limpet) -> None:
    a, b = await made(lp)
    share = await a.share(b, "draft", sync="live")
    c = await lp.create("support", "ada", "c", actor=ADA)
    other = await a.share(c, "draft", sync="live")
    await c.complete(actor=ADA)
    with pytest.raises(errors.ShareNotFound):
        await c.read_shared(other.id)
    await a.complete(actor=ADA)
    with pytest.raises(errors.ShareNotFound):
        await b.read_shared(share.id)
    with pytest.raises(errors.SessionEnded):
        await a.share(b, "draft")


@pytest.mark.parametrize("end", ["completed", "deleted"])
async def test_who_follows_or_waits_learns_that_its_own_session_has_ended(
    lp: limpet.Limpet, end: str
) -> None:
    """Though the source has nothing new: they would wait for ever."""
    a, b = await made(lp)
    share = await a.share(b, "draft", sync="live")
    async with aclosing(b.follow_shared(share.id)) as changes:
        await anext(changes)
        following = asyncio.ensure_future(anext(changes, "ended"))
        waiting = asyncio.ensure_future(b.read_shared(share.id, at_least=10**6))
        await asyncio.sleep(0)
        if end == "completed":
            await b.complete(actor=ADA)
        else:
            await lp.delete(b.key)
        async with asyncio.timeout(60):
            ends = await asyncio.gather(following, waiting, return_exceptions=True)
    gone = errors.ShareNotFound if end == "completed" else errors.SessionDeleted
    assert isinstance(ends[1], gone)
    assert ends[0] == "ended" or isinstance(ends[0], gone)


async def test_a_share_expires(lp: limpet.Limpet) -> None:
    a, b = await made(lp)
    share = await a.share(b, "draft", ttl=timedelta(microseconds=1))
    assert share.expires_at is not None
    while lp.now() <= share.expires_at:  # noqa: ASYNC110  # the store's clock
        await asyncio.sleep(0)
    with pytest.raises(errors.ShareNotFound):
        await b.read_shared(share.id)
    assert b.shared == {}, "known without reading"


async def test_shares_that_expired_take_no_place(lp: limpet.Limpet) -> None:
    """A session has so many shares at most; those whose time has passed do not count."""
    a, b = await made(lp)
    for _ in range(SHARES_MAX):
        last = await a.share(b, "draft", ttl=timedelta(microseconds=1))
    assert last.expires_at is not None
    while lp.now() <= last.expires_at:  # noqa: ASYNC110  # the store's clock
        await asyncio.sleep(0)
    share = await a.share(b, "draft")
    assert list(b.shared) == [share.id]
    assert list((await b.refresh()).head.facts["shares"]) == [share.id]


async def test_a_session_has_so_many_shares_at_most(lp: limpet.Limpet) -> None:
    """The refusal is recorded nowhere, and taking one back makes a place."""
    a, b = await made(lp)
    shares = [await a.share(b, "draft") for _ in range(SHARES_MAX)]
    before = a.version
    with pytest.raises(errors.InvalidEvent):
        await a.share(b, "draft")
    assert (await a.refresh()).version == before
    await a.unshare(shares[0].id)
    await a.share(b, "draft")


@pytest.mark.parametrize("end", ["complete", "terminate", "delete", "erase"])
async def test_a_live_share_whose_source_ended_is_not_listed(lp: limpet.Limpet, end: str) -> None:
    """Its target learns the end; a snapshot of a source that has only ended stays."""
    a, b = await made(lp)
    await a.share(b, "draft", sync="live")
    copied = await a.share(b, "draft")
    ends = {"delete": lp.delete, "erase": lp.erase}
    await (ends[end](a.key) if end in ends else getattr(a, end)(actor=ADA))
    assert list((await b.refresh()).shared) == [copied.id]
    await b.complete(actor=ADA)
    assert b.shared == {}, "of an ended session nothing can be read through a share"


async def test_live_shares_whose_sources_ended_take_no_place(lp: limpet.Limpet) -> None:
    """Also where their end was recorded with the source alone."""
    a, b = await made(lp)
    for number in range(SHARES_MAX):
        source = await lp.create("support", "ada", f"s{number}", state={"x": 1}, actor=ADA)
        share = await source.share(b, "x", sync="live")
        if number % 2:
            await source.complete(actor=ADA)
            continue
        # As a process leaves it that died between the two records.
        await journal_of(lp).commit((completion(lp, source),))
        with pytest.raises(errors.ShareNotFound):
            await b.read_shared(share.id)
    kept = [await a.share(b, "draft") for _ in range(SHARES_MAX)]
    assert list((await b.refresh()).shared) == [each.id for each in kept]
    with pytest.raises(errors.InvalidEvent):
        await a.share(b, "draft")


def completion(lp: limpet.Limpet, s: limpet.Session[Any]) -> Commit:
    """The end of a session, and nothing beside it."""
    draft = journal_of(lp).prepare(transition("active", "complete"), ADA)
    return Commit(s.key, (draft,), uid=s.head.uid)


async def test_unshare_during_reads_ends_them(lp: limpet.Limpet) -> None:
    """Whoever reads again and again sees values, then that the share has ended; nothing after."""
    a, b = await made(lp)
    share = await a.share(b, "draft", sync="live")
    began = asyncio.Event()

    async def read_on() -> list[Any]:
        seen: list[Any] = []
        while True:
            try:
                seen.append((await b.read_shared(share.id)).values["draft"])
            except errors.ShareNotFound:
                return seen
            began.set()
            await asyncio.sleep(0)

    readers = [asyncio.create_task(read_on()) for _ in range(3)]
    await began.wait()
    await a.append("note.made", actor=ADA, set={"draft": "two"})
    await a.unshare(share.id)
    await a.append("note.made", actor=ADA, set={"draft": "not for b"})
    for seen in await asyncio.gather(*readers):
        assert seen == sorted(seen)
        assert "not for b" not in seen


async def test_the_target_writes_under_the_version_that_it_read(lp: limpet.Limpet) -> None:
    a, b = await made(lp)
    share = await a.share(b, "draft", access="write", sync="live")
    with pytest.raises(errors.InvalidInput):
        await b.write_shared(share.id, {"draft": "blind"})
    await b.read_shared(share.id)
    written = await b.write_shared(share.id, {"draft": "two"}, actor="agent:b")
    await a.refresh()
    assert a.values["draft"] == "two"
    event = a.events[-1]
    assert (event.actor, event.data["target"]["id"]) == ("agent:b", "b")
    assert b.events[-1].actor == "agent:b"
    assert written == {"draft": a.version}
    await b.write_shared(share.id, {"draft": "three"})
    await a.append("note.made", actor=ADA, set={"draft": "four"})
    with pytest.raises(errors.SessionConflict):
        await b.write_shared(share.id, {"draft": "five"})
    assert (await a.refresh()).values["draft"] == "four"
    current = await b.read_shared(share.id)
    await b.write_shared(share.id, {"draft": "five"}, expect=current.versions)


async def test_a_write_may_depend_on_fields_that_it_does_not_set(lp: limpet.Limpet) -> None:
    """What `expect` names has to have these versions; what is not shared is no condition."""
    a, b = await made(lp, draft="one", plan="long", secret=1)
    share = await a.share(b, "draft", "plan", access="write", sync="live")
    seen = await b.read_shared(share.id)
    await a.append("note.made", actor=ADA, set={"plan": "short"})
    with pytest.raises(errors.SessionConflict):
        await b.write_shared(share.id, {"draft": "two"}, expect=seen.versions)
    await b.write_shared(share.id, {"draft": "two"}, expect={"plan": 3})
    for wrong in ({"secret": 1}, {"darft": 3}):
        with pytest.raises(errors.CrossSessionAccessDenied):
            await b.write_shared(share.id, {"draft": "three"}, expect=wrong)
    with pytest.raises(errors.CrossSessionAccessDenied):
        await b.write_shared(share.id, {"secret": 2})
    assert (await a.refresh()).values == {"draft": "two", "plan": "short", "secret": 1}


async def test_a_thousand_subscribers_cost_the_writer_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source's store is called, and written, as if nobody followed; each subscriber reads for
    itself, and has the last value."""
    url = f"sqlite:///{tmp_path}/shares.db?sync=normal&inline=off"
    many = 1_000
    async with limpet.open(url) as lp, limpet.open(url) as others:
        a, b = await made(lp, draft=0)
        share = await a.share(b, "draft", sync="live")
        calls = counted(monkeypatch, journal_of(lp).store)
        await a.append("note.made", actor=ADA, set={"draft": 1})
        alone = calls.copy()
        seen: list[int] = []
        ready = asyncio.Event()

        async def follow() -> None:
            reader = others.session(b.key)
            async with aclosing(reader.follow_shared(share.id)) as changes:
                async for context in changes:
                    seen.append(context.values["draft"])
                    if len(seen) == many:
                        ready.set()
                    if context.values["draft"] == 3:
                        return

        following = [asyncio.create_task(follow()) for _ in range(many)]
        await ready.wait()
        calls.clear()
        await a.append("note.made", actor=ADA, set={"draft": 2})
        assert calls == alone
        await a.append("note.made", actor=ADA, set={"draft": 3})
        assert calls == alone + alone
        await asyncio.gather(*following)
        assert seen.count(3) == many
        assert [event.type for event in a.events] == [
            *("session.created", "session.shared", "note.made", "note.made", "note.made")
        ]


def counted(monkeypatch: pytest.MonkeyPatch, store: Any) -> Counter[str]:
    """Count the calls of a store's methods, by name; not those for policies, which are read again
    every few seconds."""
    calls: Counter[str] = Counter()

    def wrapped(name: str, method: Any) -> Any:
        async def call(*args: Any, **named: Any) -> Any:
            if not (args and isinstance(args[0], limpet.Key) and args[0].app.startswith("$$")):
                calls[name] += 1
            return await method(*args, **named)

        return call

    for name in vars(Store):
        if not name.startswith("_") and inspect.iscoroutinefunction(getattr(Store, name)):
            monkeypatch.setattr(store, name, wrapped(name, getattr(store, name)))
    return calls


async def test_a_snapshot_is_written_back_unless_its_source_has_changed(lp: limpet.Limpet) -> None:
    """Against the versions that were copied; what it shows stays what it was."""
    a, b = await made(lp, draft="one", other=0)
    await a.append("note.made", actor=ADA, set={"other": 1})
    share = await a.share(b, "draft", "other", access="write")
    context = await b.read_shared(share.id)
    assert (context.sync, context.access) == ("snapshot", "write")
    assert context.versions == {"draft": 1, "other": 2}, "of each field, not of the session"
    written = await b.write_shared(share.id, {"draft": "two"}, actor="agent:b")
    assert (await a.refresh()).values["draft"] == "two"
    assert (await b.read_shared(share.id)).values["draft"] == "one", "a copy"
    with pytest.raises(errors.SessionConflict):
        await b.write_shared(share.id, {"draft": "three"})
    await b.write_shared(share.id, {"draft": "three"}, expect=written)
    assert (await a.refresh()).values == {"draft": "three", "other": 1}


async def test_a_write_through_a_share_says_who_wrote_and_who_let_it(lp: limpet.Limpet) -> None:
    """The source's log has both: who shared, and who wrote; the target's has who wrote."""
    a, b = await made(lp)
    share = await a.share(b, "draft", access="write", sync="live", actor="user:grace")
    await b.read_shared(share.id)
    await b.write_shared(share.id, {"draft": "two"}, actor="agent:b")
    events = {event.type: event for event in await a.read()}
    assert events["session.shared"].actor == "user:grace"
    written = events["session.share_written"]
    assert (written.actor, written.data["share"]) == ("agent:b", share.id)
    assert (await b.read())[-1].actor == "agent:b"


async def test_a_write_after_unshare_changes_nothing_anywhere(lp: limpet.Limpet) -> None:
    a, b = await made(lp)
    share = await a.share(b, "draft", access="write", sync="live")
    versions = (await b.read_shared(share.id)).versions
    await a.unshare(share.id)
    before = ((await a.refresh()).version, (await b.refresh()).version)
    with pytest.raises(errors.ShareNotFound):
        await b.write_shared(share.id, {"draft": "two"}, expect=versions)
    assert ((await a.refresh()).version, (await b.refresh()).version) == before


async def test_only_what_was_granted(lp: limpet.Limpet) -> None:
    a, b = await made(lp, draft="one", secret=1)
    read = await a.share(b, "draft", sync="live")
    write = await a.share(b, "draft", access="write", sync="live")
    for share, name in ((read, "draft"), (write, "secret")):
        with pytest.raises(errors.CrossSessionAccessDenied):
            await b.write_shared(share.id, {name: 2}, expect={name: 1})
    for values, expect in (({"draft": 2, "secret": 3}, None), ({"draft": 2}, {"secret": 1})):
        with pytest.raises(errors.CrossSessionAccessDenied, match="the field 'secret'") as info:
            await b.write_shared(write.id, values, expect=expect)
        assert info.value.field == "secret"
    with pytest.raises(errors.CrossSessionAccessDenied, match="may only be read"):
        await b.write_shared(read.id, {"draft": 2}, expect={"draft": 1})
    eve = await lp.create("support", "eve", "e", actor="user:eve")
    with pytest.raises(errors.CrossSessionAccessDenied) as info:
        await a.share(eve, "draft")
    assert (info.value.source, info.value.target) == (a.key, eve.key)
    for session in (a, eve):
        with pytest.raises(errors.ShareNotFound):
            await session.read_shared(write.id)


async def test_erasing_the_source_removes_what_was_imported(lp: limpet.Limpet) -> None:
    a, b = await made(lp)
    share = await a.share(b, "draft")
    await lp.erase(a.key)
    with pytest.raises(errors.ShareNotFound):
        await b.read_shared(share.id)
    events = await b.read()
    assert "one" not in repr([event.data for event in events])
    again = await lp.create("support", "ada", "a2", state={"draft": "new"}, actor=ADA)
    assert again.key != a.key


async def test_a_fork_begins_without_shares(lp: limpet.Limpet) -> None:
    a, b = await made(lp)
    await a.share(b, "draft")
    assert (await b.fork(id="f", actor=ADA)).shared == {}


async def test_racing_writers_lose_nothing(lp: limpet.Limpet) -> None:
    """Each write is either on the newest version or refused."""
    a, _ = await made(lp, count=0)
    targets = [await lp.create("support", "ada", f"t{n}", actor=ADA) for n in range(4)]
    shares = [await a.share(t, "count", access="write", sync="live") for t in targets]

    async def count_up(target: limpet.Session[Any], id: str) -> None:
        done = 0
        while done < 5:
            context = await target.read_shared(id)
            try:
                await target.write_shared(id, {"count": context.values["count"] + 1})
                done += 1
            except errors.SessionConflict:
                continue

    await asyncio.gather(*[count_up(t, s.id) for t, s in zip(targets, shares, strict=True)])
    assert (await a.refresh()).values["count"] == 20


async def test_bad_arguments(lp: limpet.Limpet) -> None:
    a, b = await made(lp)
    calls: list[Any] = [
        lambda: a.share(b),
        lambda: a.share(b, "missing"),
        lambda: a.share(b, "app:plan"),
        lambda: a.share(b, "draft", "draft"),
        lambda: a.share(b, "draft", access="all"),  # type: ignore[arg-type]
        lambda: a.share(b, "draft", sync="push"),  # type: ignore[arg-type]
        lambda: a.share(b, "draft", ttl=timedelta()),
        lambda: a.share(a, "draft"),
        lambda: a.share(b.key, "draft"),  # type: ignore[arg-type]
        lambda: b.read_shared(3),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(errors.InvalidInput):
            await call()
    share = await a.share(b, "draft", sync="live")
    for at_least in ("1", {"other": 1}, -1):
        with pytest.raises(errors.InvalidInput):
            await b.read_shared(share.id, at_least=at_least)  # type: ignore[arg-type]
