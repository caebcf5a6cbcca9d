"""Documents: named values with a history, through every door that may write or must refuse them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import limpet
from limpet import facts
from limpet.model.events import RESERVED
from limpet.model.keys import owner_of
from tests.support.seal import FixedKeySeal

WHO = "user:ada"
KEY = ("$agents", "*", "support")


class Chat(limpet.State):
    schema_version = "1.0.0"
    step: int = 0


@pytest.fixture
def agents(lp: limpet.Limpet) -> limpet.Documents:
    """A collection with an actor bound to it."""
    return lp.documents("agents", actor=WHO)


# --- a document ---------------------------------------------------------------------------------


async def test_a_put_replaces_and_every_version_stays(agents: limpet.Documents) -> None:
    """Versions count the puts from 1, and each can be read as it was put."""
    one = await agents.put("support", {"model": "small", "tools": ["search"]})
    two = await agents.put("support", {"model": "large"}, actor="user:bob")
    assert (one.name, one.version, one.actor) == ("support", 1, WHO)
    assert (two.version, two.value, two.actor) == (2, {"model": "large"}, "user:bob")
    assert two.at >= one.at
    assert await agents.get("support") == two
    assert await agents.get("support", 1) == one
    assert await agents.get("support", version=2) == two
    assert await agents.history("support") == (two, one)


async def test_changes_are_what_was_put_and_deleted_since(
    lp: limpet.Limpet, agents: limpet.Documents
) -> None:
    """Of this collection and owner alone, in order, once; a purge leaves without an entry."""
    await agents.put("before", 0)
    position = await lp.position()
    assert (await agents.changes(position))[0] == ()
    await lp.documents("other", actor=WHO).put("support", 1)
    await lp.documents("agents", owner=("app", "ada"), actor=WHO).put("support", 2)
    await agents.put("support", 3)
    await agents.put("gone", 4)
    await agents.delete("support")
    await agents.purge("gone")
    seen: list[tuple[str, Any, bool]] = []
    changed, position = await agents.changes(position)
    while changed:
        seen += [(each.name, each.value, each.deleted) for each in changed]
        changed, position = await agents.changes(position)
    assert seen == [("support", 3, False), ("support", None, True)]


@pytest.mark.parametrize("value", [None, 0, "", "x" * 200, [], [1, {"a": None}], {}, {"a": [1]}])
async def test_a_value_is_any_json(agents: limpet.Documents, value: Any) -> None:
    """What was put is what get, list and history give."""
    put = await agents.put("a", value)
    assert put.value == value
    assert await agents.get("a") == put
    assert (await agents.list()).items == (put,)
    assert await agents.history("a") == (put,)


async def test_a_missing_document_is_an_error(agents: limpet.Documents) -> None:
    """No document, no such version, or deleted: DocumentNotFound; find gives None."""
    await agents.put("a", 1)
    await agents.put("gone", 1)
    await agents.delete("gone")
    for name, version in (("b", None), ("a", 2), ("gone", None), ("gone", 2)):
        with pytest.raises(limpet.errors.DocumentNotFound) as info:
            await agents.get(name, version)
        assert (info.value.name, info.value.version) == (name, version)
        assert await agents.find(name, version) is None
    with pytest.raises(limpet.errors.DocumentNotFound):
        await agents.history("b")


async def test_expect_0_creates_only(agents: limpet.Documents) -> None:
    """The second creation is a conflict and changes nothing."""
    assert (await agents.put("a", 1, expect=0)).version == 1
    with pytest.raises(limpet.errors.DocumentConflict) as info:
        await agents.put("a", 2, expect=0)
    assert info.value.expected == 0
    assert len(await agents.history("a")) == 1


async def test_a_put_expects_the_version_that_was_read(agents: limpet.Documents) -> None:
    """At another version, or if there is none, it is a conflict that names both."""
    await agents.put("a", 1)
    await agents.put("a", 2, expect=1)
    with pytest.raises(limpet.errors.DocumentConflict) as info:
        await agents.put("a", 3, expect=1)
    assert (info.value.expected, info.value.actual) == (1, 2)
    with pytest.raises(limpet.errors.DocumentConflict) as info:
        await agents.put("b", 3, expect=1)
    assert (info.value.expected, info.value.actual) == (1, 0)
    assert (await agents.get("a")).value == 2
    assert await agents.find("b") is None


async def test_a_deleted_document_keeps_its_history(agents: limpet.Documents) -> None:
    """It is not there and not listed; its versions are, and the deletion says who did it."""
    old = await agents.put("a", "old")
    assert await agents.delete("a", actor="user:bob") is True
    assert await agents.delete("a") is False
    assert await agents.find("a") is None
    assert (await agents.list()).items == ()
    assert await agents.get("a", 1) == old
    gone, first = await agents.history("a")
    assert (gone.version, gone.value, gone.deleted, gone.actor) == (2, None, True, "user:bob")
    assert first == old


@pytest.mark.parametrize("expect", [None, 0, 2])
async def test_a_deleted_document_is_put_again(
    agents: limpet.Documents, expect: int | None
) -> None:
    """Its versions count on, also for who only creates, and for who saw the deletion."""
    await agents.put("a", "old")
    await agents.delete("a")
    again = await agents.put("a", "new", expect=expect)
    assert again.version == 3
    assert await agents.get("a") == again
    assert [d.deleted for d in await agents.history("a")] == [False, True, False]
    assert (await agents.list()).items == (again,)


async def test_a_delete_expects_the_version_that_was_read(agents: limpet.Documents) -> None:
    """At another version, or if there is none, it is a conflict and nothing is deleted."""
    await agents.put("a", 1)
    await agents.put("a", 2)
    for expect in (0, 1, 3):
        with pytest.raises(limpet.errors.DocumentConflict) as info:
            await agents.delete("a", expect=expect)
        assert (info.value.expected, info.value.actual) == (expect, 2)
    assert (await agents.get("a")).value == 2
    assert await agents.delete("a", expect=2) is True
    with pytest.raises(limpet.errors.DocumentConflict) as info:
        await agents.delete("a", expect=2)
    assert info.value.actual == 0
    assert await agents.delete("never", expect=0) is False


async def test_a_put_on_a_version_from_before_a_delete_is_a_conflict(
    agents: limpet.Documents,
) -> None:
    """It says that the document is absent, and what was deleted stays deleted."""
    await agents.put("a", 1)
    await agents.delete("a")
    with pytest.raises(limpet.errors.DocumentConflict, match="does not exist") as info:
        await agents.put("a", 2, expect=1)
    assert info.value.actual == 0
    assert await agents.find("a") is None


async def test_racing_deletes_and_puts_lose_nothing(agents: limpet.Documents) -> None:
    """One of several deletes wins; every put and every deletion is one version."""
    await agents.put("a", 0)
    deleted = await asyncio.gather(*(agents.delete("a") for _ in range(4)))
    assert sorted(deleted) == [False, False, False, True]
    created = await asyncio.gather(
        *(agents.put("a", n, expect=0) for n in range(4)), return_exceptions=True
    )
    assert len([d for d in created if isinstance(d, limpet.Document)]) == 1
    await asyncio.gather(agents.put("a", 9), agents.delete("a"), agents.put("a", 10))
    versions = [document.version for document in await agents.history("a")]
    assert versions == list(range(6, 0, -1))


async def test_a_purged_document_begins_again(agents: limpet.Documents) -> None:
    """A put under its name starts at version 1, with or without expect=0; the old is gone."""
    for expect in (None, 0, None):
        await agents.put("a", "old", expect=expect)
        await agents.delete("a")
        assert await agents.purge("a") is True
        assert await agents.purge("a") is False
        with pytest.raises(limpet.errors.DocumentNotFound):
            await agents.history("a")
    again = await agents.put("a", "new", expect=0)
    assert again.version == 1
    assert await agents.history("a") == (again,)


async def test_a_delete_needs_nobody_to_be_named(lp: limpet.Limpet) -> None:
    """Then the history says that the system did it."""
    agents = lp.documents("agents")
    await agents.put("a", 1, actor=WHO)
    assert await agents.delete("a") is True
    assert (await agents.history("a"))[0].actor == "system:documents"


async def test_deleted_documents_are_verified_and_copied(
    lp: limpet.Limpet, agents: limpet.Documents
) -> None:
    """The deletion is a part of the log like every put."""
    await agents.put("a", 1)
    await agents.delete("a")
    report = await lp.maintenance.verify()
    assert (report.ok, report.events) == (True, 2)
    async with limpet.open("memory://") as to:
        await lp.copy(to=to)
        assert await to.documents("agents").history("a") == await agents.history("a")
        assert await to.documents("agents").find("a") is None


async def test_a_repeated_id_is_put_once(agents: limpet.Documents) -> None:
    """Sent again with its id, a put returns the version that it made, first or later."""
    one = await agents.put("a", 1, id="p1")
    two = await agents.put("a", 2, id="p2")
    assert await agents.put("a", 1, id="p1") == one
    assert await agents.put("a", 2, id="p2", expect=1) == two
    assert (await agents.get("a")).version == 2


async def test_racing_puts_all_count(agents: limpet.Documents) -> None:
    """Without expect each racing put makes a version, also of a document that is not there."""
    put = await asyncio.gather(*(agents.put("a", n) for n in range(8)))
    assert sorted(document.version for document in put) == list(range(1, 9))


async def test_one_of_racing_creations_wins(agents: limpet.Documents) -> None:
    """With expect=0 exactly one of them creates."""
    put = await asyncio.gather(
        *(agents.put("a", n, expect=0) for n in range(6)), return_exceptions=True
    )
    won = [each for each in put if isinstance(each, limpet.Document)]
    assert len(won) == 1
    assert all(isinstance(e, (limpet.Document, limpet.errors.DocumentConflict)) for e in put)


async def test_names_are_listed_in_order_by_prefix_and_page(agents: limpet.Documents) -> None:
    """Every document once, in the order of the names; a prefix selects."""
    for name in ("b/2", "a", "b/1", "c", "b"):
        await agents.put(name, name.upper())
    assert [d.name for d in (await agents.list()).items] == ["a", "b", "b/1", "b/2", "c"]
    assert [d.value for d in (await agents.list("b/")).items] == ["B/1", "B/2"]
    met: list[str] = []
    cursor = None
    while True:
        page = await agents.list(limit=2, cursor=cursor)
        met += [document.name for document in page.items]
        cursor = page.cursor
        if cursor is None:
            break
    assert met == ["a", "b", "b/1", "b/2", "c"]


async def test_each_goes_through_every_page(agents: limpet.Documents) -> None:
    """Pages of a store on a disk end early, at about 4 MiB; `each` goes on until the last."""
    for name in "abcdef":
        await agents.put(name, name * 900_000)
    assert [document.name async for document in agents.each()] == list("abcdef")
    assert [document.name async for document in agents.each("d")] == ["d"]
    assert [document.name async for document in agents.each("z")] == []


async def test_history_is_read_by_page(agents: limpet.Documents) -> None:
    """before= the last version leads on, down to an empty page."""
    for n in range(5):
        await agents.put("a", n)
    first = await agents.history("a", limit=3)
    assert [d.version for d in first] == [5, 4, 3]
    assert [d.value for d in await agents.history("a", before=3)] == [1, 0]
    assert await agents.history("a", before=1) == ()


async def test_collections_and_owners_are_apart(lp: limpet.Limpet) -> None:
    """The same name in another collection, or of another owner, is another document."""
    places = [
        lp.documents("agents"),
        lp.documents("memory"),
        lp.documents("memory", owner=("a/b", "c")),
        lp.documents("memory", owner=("a", "b/c")),
        lp.documents("memory", owner=("a" * 250, "b" * 250)),
    ]
    for number, place in enumerate(places):
        await place.put("x", number, actor=WHO)
    assert [(await place.get("x")).value for place in places] == [0, 1, 2, 3, 4]
    assert [len((await place.list()).items) for place in places] == [1, 1, 1, 1, 1]


def test_no_two_owners_are_one() -> None:
    """An app and a user that could be read as others are kept apart, however long."""
    pairs = [("a/b", "c"), ("a", "b/c"), ("1", "a/b"), ("a" * 256, "b"), ("a" * 255, "ab")]
    assert len({owner_of(*pair) for pair in pairs}) == len(pairs)
    assert "*" not in {owner_of(*pair) for pair in pairs}


async def test_an_actor_is_needed(lp: limpet.Limpet) -> None:
    """A put that names nobody, from a collection with nobody bound, is refused."""
    with pytest.raises(limpet.errors.ActorMissing):
        await lp.documents("agents").put("a", 1)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda lp: lp.documents("$agents"),
        lambda lp: lp.documents(""),
        lambda lp: lp.documents("agents", owner="ada"),
        lambda lp: lp.documents("agents", owner=("$x", "ada")),
        lambda lp: lp.documents("agents", owner=("x", "")),
        lambda lp: lp.documents("agents", actor=""),
    ],
)
async def test_a_collection_has_a_name_and_an_owner(
    lp: limpet.Limpet, wrong: Callable[[limpet.Limpet], Any]
) -> None:
    """What cannot be a collection is refused before anything is asked."""
    with pytest.raises(limpet.InvalidInput):
        wrong(lp)


# --- with sessions ------------------------------------------------------------------------------


async def test_a_put_is_recorded_with_the_events_of_a_commit(
    lp: limpet.Limpet, agents: limpet.Documents
) -> None:
    """A new document and one that is replaced, beside an event: all of them."""
    s = await lp.create("support", "ada")
    await agents.put("old", 1)
    async with lp.commit() as c:
        c.append(s, "note.made", actor=WHO)
        c.put(agents, "new", {"a": 1})
        c.put(agents, "old", 2, expect=1, actor="user:bob")
    assert [(d.name, d.version, d.actor) for d in c.documents] == [
        ("new", 1, WHO),
        ("old", 2, "user:bob"),
    ]
    assert [event.type for event in c.events] == ["note.made"]
    assert (await agents.get("new")).value == {"a": 1}
    assert s.version == 2


async def test_a_refused_put_records_nothing_of_its_commit(
    lp: limpet.Limpet, agents: limpet.Documents
) -> None:
    """Neither the events nor the other documents, and the conflict names the document."""
    s = await lp.create("support", "ada")
    await agents.put("old", 1)
    c = lp.commit()
    await c.__aenter__()
    c.append(s, "note.made", actor=WHO)
    c.put(agents, "new", 1)
    c.put(agents, "old", 2, expect=7)
    with pytest.raises(limpet.errors.DocumentConflict) as info:
        await c.__aexit__(None, None, None)
    assert (info.value.name, info.value.actual) == ("old", 1)
    assert await agents.find("new") is None
    assert (await s.refresh()).version == 1


async def test_a_refused_event_puts_nothing(lp: limpet.Limpet, agents: limpet.Documents) -> None:
    """The conflict of a session is that of a session, and the document is as it was."""
    s = await lp.create("support", "ada")
    c = lp.commit()
    await c.__aenter__()
    c.append(s, "note.made", actor=WHO, expect=9)
    c.put(agents, "new", 1)
    with pytest.raises(limpet.SessionConflict):
        await c.__aexit__(None, None, None)
    assert await agents.find("new") is None


async def test_a_commit_of_documents_alone(lp: limpet.Limpet, agents: limpet.Documents) -> None:
    """Several documents are put all or nothing, without any session; each of them once."""
    async with lp.commit() as c:
        for name in "abc":
            c.put(agents, name, name)
    assert [d.name for d in c.documents] == ["a", "b", "c"]
    c = lp.commit()
    await c.__aenter__()
    c.put(agents, "a", 1)
    c.put(agents, "a", 2)
    with pytest.raises(limpet.InvalidInput, match="twice"):
        await c.__aexit__(None, None, None)
    with pytest.raises(limpet.InvalidInput, match="collection"):
        async with lp.commit() as c:
            c.put("agents", "a", 1)  # type: ignore[arg-type]  # what is refused
    assert (await agents.get("a")).value == "a"


# --- what the other verbs make of it ------------------------------------------------------------


REFUSING: list[Callable[[limpet.Limpet], Any]] = [
    lambda lp: lp.create("$agents", "ada"),
    lambda lp: lp.get(KEY),
    lambda lp: lp.find(KEY),
    lambda lp: lp.get_or_create(*KEY),
    lambda lp: lp.session(KEY),
    lambda lp: lp.app("$agents"),
    lambda lp: lp.list(app="$agents"),
    lambda lp: lp.watch(app="$agents"),
    lambda lp: lp.watch(key=KEY),
    lambda lp: lp.work.claim("w", app="$agents"),
    lambda lp: lp.work.lock(KEY, worker="w"),
    lambda lp: lp.delete(KEY),
    lambda lp: lp.erase(KEY),
    lambda lp: lp.erase_user("$agents", "*"),
    lambda lp: lp.get_many([KEY]),
    lambda lp: lp.export(KEY, "bundle"),
    lambda lp: lp.maintenance.migrate(limpet.MigrationRegistry(), Chat, app="$agents"),
]


@pytest.mark.parametrize("verb", REFUSING)
async def test_verbs_for_sessions_refuse_reserved_apps(
    lp: limpet.Limpet, agents: limpet.Documents, verb: Callable[[limpet.Limpet], Any]
) -> None:
    """Each says that the app is reserved, and the document is as it was."""
    before = await agents.put("support", 1)

    async def call() -> None:
        found = verb(lp)
        if hasattr(found, "__await__"):
            await found

    with pytest.raises(limpet.errors.ReservedApp, match="documents"):
        await call()
    assert await agents.history("support") == (before,)


async def test_lists_feeds_and_claims_without_an_app_skip_documents(
    lp: limpet.Limpet, agents: limpet.Documents
) -> None:
    """They meet sessions only, before and after a document is deleted."""
    await agents.put("support", 1)
    s = await lp.create("support", "ada")
    await s.append("user.message", {"text": "hi"}, actor=WHO)
    await agents.put("support", 2)
    await agents.put("gone", 1)
    await agents.delete("gone")
    assert [head.key for head in (await lp.list()).items] == [s.key]
    assert (await lp.list(deleted=True)).items == ()
    assert [lease.key for lease in await lp.work.claim("w", limit=10)] == [s.key]
    feed = lp.watch()
    assert [(await anext(feed)).key for _ in range(2)] == [s.key] * 2
    waiting = asyncio.ensure_future(anext(feed))
    await agents.put("support", 3)
    await s.append("note.made", actor=WHO)
    assert (await waiting).key == s.key
    await feed.aclose()


async def test_documents_are_verified(lp: limpet.Limpet, agents: limpet.Documents) -> None:
    """With everything, by doctor, and one by its key."""
    await agents.put("support", 1)
    await agents.put("support", 2)
    report = await lp.maintenance.verify()
    assert (report.ok, report.sessions, report.internal, report.events) == (True, 0, 1, 2)
    assert (await lp.maintenance.doctor()).report == report
    assert (await lp.maintenance.verify(agents.key("support"))).events == 2
    assert (await lp.maintenance.verify(*KEY)).ok


async def test_a_user_is_erased_with_the_documents_of_that_user(lp: limpet.Limpet) -> None:
    """Those of other users and of the whole store stay."""
    mine = lp.documents("memory", owner=("support", "ada"), actor=WHO)
    others = [
        lp.documents("memory", owner=("support", "bob"), actor=WHO),
        lp.documents("memory", actor=WHO),
    ]
    for place in (mine, *others):
        await place.put("likes", "tea")
    await mine.put("gone", 1)
    await mine.delete("gone")
    erasures = await lp.erase_user("support", "ada")
    assert (len(erasures.sessions), len(erasures.logs)) == (0, 2)
    assert await mine.find("likes") is None
    assert [(await place.get("likes")).value for place in others] == ["tea", "tea"]
    assert (await lp.maintenance.verify()).ok


async def test_a_copy_of_everything_has_the_documents(
    lp: limpet.Limpet, agents: limpet.Documents
) -> None:
    """With every version, and without them only if an app is named."""
    await agents.put("support", 1)
    await agents.put("support", 2)
    await lp.create("shop", "ada")
    async with limpet.open("memory://") as to:
        await lp.copy(app="shop", to=to)
        assert (await to.documents("agents").list()).items == ()
        await lp.copy(to=to)
        assert await to.documents("agents").history("support") == await agents.history("support")


async def test_a_backup_has_the_documents(tmp_path: Path, file_url: str) -> None:
    """The copy gives every version."""
    async with limpet.open(file_url) as lp:
        agents = lp.documents("agents", actor=WHO)
        await agents.put("support", 1)
        await agents.put("support", 2)
        await lp.maintenance.backup(tmp_path / "copy.db")
        history = await agents.history("support")
    async with limpet.open(f"sqlite:///{tmp_path}/copy.db") as lp:
        assert await lp.documents("agents").history("support") == history


async def test_a_sealed_store_keeps_no_value_in_the_clear(tmp_path: Path, file_url: str) -> None:
    """The bytes of a value are in none of the files, and another key does not read it."""
    secret = "the tea is in the red tin"
    async with limpet.open(file_url, seal=FixedKeySeal()) as lp:
        await lp.documents("memory", actor=WHO).put("a", {"secret": secret})
        for file in tmp_path.iterdir():
            assert secret.encode() not in file.read_bytes()
    async with limpet.open(file_url, seal=FixedKeySeal(bytes(32))) as lp:
        with pytest.raises(limpet.errors.SessionCorrupt):
            await lp.documents("memory").get("a")
        assert (await lp.documents("memory").list()).damaged == ("a",)


# --- reserved names -----------------------------------------------------------------------------


@pytest.mark.parametrize("family", RESERVED)
async def test_no_door_records_a_reserved_type(lp: limpet.Limpet, family: str) -> None:
    """append, append_many, update, a commit: each refuses every family before it records."""
    s = await lp.create("support", "ada")
    type = f"{family}made"
    with pytest.raises(limpet.errors.ReservedType):
        await s.append(type, actor=WHO)
    with pytest.raises(limpet.errors.ReservedType):
        await s.append(type, actor=WHO, partial=True)
    with pytest.raises(limpet.errors.ReservedType):
        await s.append_many([limpet.Draft(type=type, actor=WHO)])
    with pytest.raises(limpet.errors.ReservedType):
        await s.update(lambda _: {}, type=type, actor=WHO)
    with pytest.raises(limpet.errors.ReservedType):
        async with lp.commit() as c:
            c.append(s, type, actor=WHO)
    assert (await s.refresh()).version == 1


async def test_no_door_records_a_put_in_a_session(lp: limpet.Limpet) -> None:
    """Not even a Fact that somebody made by hand."""
    s = await lp.create("support", "ada")
    forged = facts.Fact(type="document.put", data={"value": 1})
    with pytest.raises(limpet.errors.ReservedType):
        await s.record(forged, actor=WHO)
    with pytest.raises(limpet.errors.ReservedType):
        async with lp.commit() as c:
            c.record(s, msgspec.structs.replace(forged, actor=WHO))
    assert (await s.refresh()).version == 1


def test_the_error_names_the_reserved_families() -> None:
    """All of them, as the model has them."""
    *first, last = [f"{family}*" for family in RESERVED]
    assert f"outside {', '.join(first)} and {last}, or" in limpet.errors.ReservedType.template


async def test_labels_that_begin_with_a_dollar_are_refused(lp: limpet.Limpet) -> None:
    """At the creation, later, and as a fact; also to take one off."""
    with pytest.raises(limpet.errors.InvalidEvent, match="reserved"):
        await lp.create("support", "ada", labels={"$plan": "gold"})
    s = await lp.create("support", "ada")
    for value in ("gold", None):
        with pytest.raises(limpet.errors.InvalidEvent, match="reserved"):
            await s.label({"$plan": value}, actor=WHO)
    with pytest.raises(limpet.errors.InvalidEvent, match="reserved"):
        facts.labeled({"$plan": "gold"})


# --- without await ------------------------------------------------------------------------------


def test_documents_without_await() -> None:
    """The same verbs, alone and in a commit."""
    with limpet.open_sync("memory://") as lp:
        agents = lp.documents("agents", actor=WHO)
        assert agents.put("a", 1).version == 1
        s = lp.create("support", "ada")
        with lp.commit() as c:
            c.append(s, "note.made", actor=WHO)
            c.put(agents, "a", 2)
        assert [d.version for d in c.documents] == [2]
        assert [d.value for d in agents.history("a")] == [2, 1]
        assert [d.name for d in agents.list().items] == ["a"]
        assert agents.delete("a")
