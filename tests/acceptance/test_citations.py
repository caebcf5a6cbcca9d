"""Citations: a session reads what a relation names of another, and nothing else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Isolation, Principal, errors
from limpet.model import Commit, Fact, canonical
from limpet.model.facts.creation import created
from limpet.model.facts.relations import ReadTerms, related
from limpet.model.facts.running.children import child_created, delegated
from limpet.security.access import principal_data
from limpet.server.serve import serving
from limpet.session.access_keys import AccessKeys
from limpet.session.limpet import journal_of

ADA = "user:ada"
BYTES = b"the report"
Pair = tuple[limpet.Session[Any], limpet.Session[Any]]


async def made(lp: limpet.Limpet, **how: Any) -> Pair:
    """A session that has worked, and one that comes after it."""
    before = await lp.create("support", "ada", "before", state={"n": 1, "m": 2}, actor=ADA, **how)
    return before, await lp.create("support", "ada", "after", actor=ADA)


async def says(turn: limpet.Turn) -> None:
    await turn.say("found")


async def test_a_successor_reads_the_output_of_its_predecessor(lp: limpet.Limpet) -> None:
    """With the blobs that it names, and nothing else; both ends know the relation."""
    before, after = await made(lp)
    ref = await before.blobs.put(BYTES, "text/plain")
    other = await before.blobs.put(b"a draft", "text/plain")
    await before.complete({"answer": 42, "report": ref.data}, actor=ADA)
    relation = await after.relate(before, "predecessor", outputs=True)
    assert relation == (await after.relations("predecessor"))[0]
    assert (relation.key, relation.direction, relation.outputs) == (before.key, "to", True)
    cited = await after.read_cited(relation.id)
    assert cited.output == {"answer": 42, "report": ref.data}
    assert (cited.source, cited.kind, cited.values) == (before.key, "predecessor", {})
    assert cited.blobs == (ref,)
    assert await after.blobs.get(ref) == BYTES
    assert [chunk async for chunk in after.blobs.stream(ref.data)] == [BYTES]
    with pytest.raises(errors.BlobNotFound):
        await after.blobs.get(other)
    (back,) = await before.relations()
    assert (back.kind, back.direction, back.outputs) == ("predecessor", "from", False)
    edges = {(e.source, e.target, e.kind) for e in (await lp.graph(after.key)).edges}
    assert edges == {(before.key, after.key, "successor")}


async def test_the_output_of_one_who_was_not_completed_is_its_last_message(
    lp: limpet.Limpet,
) -> None:
    """Of one that has said nothing there is none; and it is not read once it says more."""
    before, after = await made(lp)
    with pytest.raises(errors.InvalidInput, match="no output yet"):
        await after.relate(before, "reference", outputs=True)
    assert await after.relations() == ()
    await before.append("user.message", {"text": "look"}, actor=ADA)
    await lp.wake(before.key, says)
    relation = await after.relate(before, "reference", outputs=True)
    assert (await after.read_cited(relation)).output == "found"
    await before.append("agent.message", {"text": "found more"}, actor="agent:main")
    with pytest.raises(errors.CitedChanged, match="the output of session support/ada/before"):
        await after.read_cited(relation)
    again = await after.relate(before, "reference", outputs=True)
    assert (await after.read_cited(again)).output == "found more"


async def test_a_citation_is_recorded_by_the_session_that_cites_alone(lp: limpet.Limpet) -> None:
    """It reads the fields and blobs that it names, as they were."""
    before, after = await made(lp)
    ref = await before.blobs.put(BYTES, "text/plain")
    version = before.version
    relation = await after.cite(before, fields=("n",), blobs=(ref,), actor="agent:main")
    assert (await before.refresh()).version == version
    assert await before.relations() == ()
    (found,) = await after.relations("reference")
    assert (found.fields, found.blobs, found.actor) == (("n",), (ref,), "agent:main")
    cited = await after.read_cited(found.id)
    assert (cited.values, cited.output, cited.blobs) == ({"n": 1}, None, (ref,))
    assert await after.blobs.get(ref) == BYTES
    await before.append("note.made", actor=ADA, set={"m": 3})
    assert (await after.read_cited(relation)).values == {"n": 1}
    for change in ({"set": {"n": 2}}, {"delete": ["n"]}):
        await before.append("note.made", actor=ADA, **change)  # type: ignore[arg-type]
        with pytest.raises(errors.CitedChanged) as changed:
            await after.read_cited(relation)
        assert (changed.value.code, changed.value.name) == ("relation.changed", "the field 'n'")
    edges = {(e.source, e.target, e.kind) for e in (await lp.graph(after.key)).edges}
    assert edges == {(after.key, before.key, "reference")}


@pytest.mark.parametrize("end", ["complete", "terminate", "suspend"])
async def test_a_session_that_has_ended_can_be_cited_and_read(lp: limpet.Limpet, end: str) -> None:
    """Before or after its end."""
    before, after = await made(lp)
    first = await after.cite(before, fields=("n",))
    await getattr(before, end)(actor=ADA)
    second = await after.cite(before, fields=("m",))
    assert (await after.read_cited(first)).values == {"n": 1}
    assert (await after.read_cited(second)).values == {"m": 2}


async def test_an_archived_session_is_read_from_its_file(tmp_path: Path) -> None:
    """Cited before it was archived, or afterwards."""
    async with limpet.open("memory://", archive=f"file://{tmp_path}") as lp:
        before, after = await made(lp)
        ref = await before.blobs.put(BYTES, "text/plain")
        await before.complete({"report": ref.data}, actor=ADA)
        first = await after.relate(before, "predecessor", outputs=True)
        await before.archive(actor=ADA)
        second = await after.cite(before, fields=("m",))
        third = await after.relate(before, "predecessor", outputs=True)
        for relation in (first, third):
            assert (await after.read_cited(relation)).output == {"report": ref.data}
        assert (await after.read_cited(second)).values == {"m": 2}
        assert await after.blobs.get(ref) == BYTES
        with pytest.raises(errors.InvalidInput, match=r"as lp\.session\(key\)"):
            await after.cite(await lp.get(before.key, archived=True), fields=("n",))
        named = await after.cite(lp.session(before.key), fields=("n",))
        assert (await after.read_cited(named)).values == {"n": 1}
        await lp.unarchive(before.key)
        assert (await after.read_cited(second)).values == {"m": 2}
        assert await after.blobs.get(ref) == BYTES


@pytest.mark.parametrize("end", ["delete", "erase", "unrelate"])
async def test_what_has_ended_is_read_by_nobody(lp: limpet.Limpet, end: str) -> None:
    """Not even where another session has the key now."""
    before, after = await made(lp)
    ref = await before.blobs.put(BYTES, "text/plain")
    relation = await after.cite(before, fields=("n",), blobs=[ref])
    if end == "unrelate":
        await after.unrelate(relation.id)
        assert await after.relations() == ()
        assert (await lp.graph(after.key)).edges == ()
        with pytest.raises(errors.RelationNotFound):
            await after.unrelate(relation.id)
    else:
        await getattr(lp, end)(before.key)
        assert [each.id for each in await after.relations()] == [relation.id]
    if end == "delete":
        await lp.create("support", "ada", "before", state={"n": 1}, reuse_deleted=True, actor=ADA)
    with pytest.raises(errors.RelationNotFound):
        await after.read_cited(relation)
    with pytest.raises((errors.BlobNotFound, errors.RelationNotFound)):
        await after.blobs.get(ref)


async def test_either_end_ends_a_relation_of_both(lp: limpet.Limpet) -> None:
    """And it can be made again afterwards."""
    before, after = await made(lp)
    await before.complete("done", actor=ADA)
    for _ in range(2):
        relation = await after.relate(before, "predecessor", outputs=True)
        second = await after.relate(before, "predecessor", outputs=True)
        await after.unrelate(second)
        assert len(await before.relations()) == 1, "one relation is left"
        (back,) = await before.relations()
        await before.unrelate(back)
        assert await after.relations() == await before.relations() == ()
        with pytest.raises(errors.RelationNotFound):
            await after.read_cited(relation)
    for _ in range(2):
        plain = await after.relate(before, "peer")
        assert await after.relate(before, "peer") == plain, "recorded already"
        assert await after.relations() == (plain,)
        await before.unrelate((await before.relations())[0])
        assert await after.relations() == await before.relations() == ()


async def test_a_fork_begins_without_citations_and_a_copy_reads_nothing(lp: limpet.Limpet) -> None:
    """A copy in another store has the relation, and nothing to read."""
    before, after = await made(lp)
    relation = await after.cite(before, fields=("n",))
    fork = await after.fork(id="fork", actor=ADA)
    assert await fork.relations() == ()
    with pytest.raises(errors.RelationNotFound):
        await fork.read_cited(relation)
    async with limpet.open("memory://") as other:
        await lp.copy(after.key, to=other)
        copied = await other.get(after.key)
        assert len(await copied.relations()) == 1
        with pytest.raises(errors.RelationNotFound):
            await copied.read_cited(relation)


async def test_a_move_of_either_ends_what_may_be_read() -> None:
    """The relation stays; where the session arrived it names nothing to read, also once both are
    there."""
    async with (
        limpet.open("memory://", node="eu") as eu,
        limpet.open("memory://", node="us") as us,
    ):
        before, after = await made(eu)
        relation = await after.cite(before, fields=("n",))
        assert (await eu.move(before.key, us)).success
        with pytest.raises(errors.RelationNotFound):
            await after.read_cited(relation)
        assert (await us.move(before.key, eu)).success
        with pytest.raises(errors.RelationNotFound):  # also once it is back
            await after.read_cited(relation)
        again = await after.cite(eu.session(before.key), fields=("n",))
        assert (await after.read_cited(again)).values == {"n": 1}
        assert (await eu.move(before.key, us)).success
        assert (await eu.move(after.key, us)).success
        there = await us.get(after.key)
        assert {each.fields for each in await there.relations()} == {()}
        with pytest.raises(errors.RelationNotFound):
            await there.read_cited(relation)


async def test_the_mirror_leaves_out_relations_that_have_ended(tmp_path: Path) -> None:
    """One of several to the same session leaves the others."""
    file = tmp_path / ".limpet-runtime" / "session-relations.json"
    async with limpet.open("memory://") as lp:
        before, after = await made(lp)
        relations = [await after.cite(before, fields=(name,)) for name in ("n", "m")]
        shown = []
        for relation in (None, *relations):
            if relation is not None:
                await after.unrelate(relation)
            await lp.maintenance.mirror(tmp_path)
            shown.append([each["kind"] for each in json.loads(file.read_text())])
        assert shown == [["reference"], ["reference"], []]


# --- under a guard -------------------------------------------------------------------------------


def owner(user: str, task: str | None = None) -> Principal:
    return Principal(f"user:{user}", role="owner", app="support", user=user, task=task)


async def test_a_successor_in_another_task_reads_through_the_relation() -> None:
    """It may not enter its predecessor, and who made the relation may."""
    async with limpet.open("memory://") as lp:
        before = await lp.create(
            "support", "ada", "before", state={"n": 1}, isolation=Isolation("per_task", task="t1")
        )
        after = await lp.create(
            "support", "ada", "after", isolation=Isolation("per_task", task="t2")
        )
        reader = lp.acting_as(owner("ada", "t2"))
        own, hidden = reader.session(after.key), reader.session(before.key)
        with pytest.raises(errors.CrossSessionAccessDenied):
            await own.cite(hidden, fields=("n",))
        relation = await after.cite(before, fields=("n",))  # by a program without a guard
        assert (await own.read_cited(relation.id)).values == {"n": 1}
        stranger = lp.acting_as(owner("ada", "t3"))
        with pytest.raises(errors.AccessDenied):
            await stranger.session(after.key).read_cited(relation.id)


async def test_a_session_ends_what_another_one_reads_of_it() -> None:
    """Also if those who end it may not enter the one that reads; and it can be related again."""
    async with limpet.open("memory://") as lp:
        before, after = [
            await lp.create("support", "ada", id, isolation=Isolation("per_task", task=task))
            for id, task in (("before", "t1"), ("after", "t2"))
        ]
        await before.complete("done", actor=ADA)
        own = lp.acting_as(owner("ada", "t1")).session(before.key)
        for _ in range(2):
            relation = await after.relate(before, "predecessor", outputs=True, actor=ADA)
            assert (await after.read_cited(relation)).output == "done"
            await own.unrelate((await own.relations())[0])
            with pytest.raises(errors.RelationNotFound):
                await after.read_cited(relation)


async def test_nobody_makes_up_a_relation_to_read_by() -> None:
    """Neither in the name of another principal, nor of a session that they may not read."""
    async with limpet.open("memory://") as lp:
        task = Isolation("per_task", task="t1")
        hidden = await lp.create("support", "ada", "hidden", state={"n": 1}, isolation=task)
        open = await lp.create("support", "ada", "open", state={"n": 1})
        own = lp.acting_as(owner("ada")).session((await lp.create("support", "ada", "own")).key)
        itself = principal_data(owner("ada"))
        admin = {"id": "admin:x", "role": "admin"}
        for other, maker in ((open, admin), (open, None), (hidden, admin), (hidden, itself)):
            reads = ReadTerms(1, fields={"n": "0" * 64}, maker=maker)
            uid = other.head.uid
            with pytest.raises(errors.AccessDenied):
                await own.record(
                    related("reference", "to", other.key, uid, ADA, reads=reads, id="r")
                )
        assert await own.relations() == ()


@pytest.mark.parametrize("way", ["after other events", "in a child"])
async def test_no_way_to_record_goes_around_who_may_read(way: str) -> None:
    """Neither what was allowed a moment ago nor delegating lets one name another maker."""
    agent = Principal("agent:main", role="agent", app="support", user="ada", task="t1")
    apart, own = (Isolation("per_task", task=task) for task in ("t2", "t1"))
    async with limpet.open("memory://") as lp:
        secret = await lp.create("support", "ada", "s", state={"n": 1}, isolation=apart)
        acting = lp.acting_as(agent)
        mine, journal = (
            await acting.create("support", "ada", "m", isolation=own),
            journal_of(acting),
        )
        for n in range(2):  # nothing about the next one like them is decided again
            await mine.append("note.made", set={"n": n})
        hashes = {"n": sha256(canonical(1)).hexdigest()}
        reads = ReadTerms(1, fields=hashes, maker={"id": "root", "role": "admin"})
        forged = related(
            "reference", "to", secret.key, secret.head.uid, agent.id, reads=reads, id="r"
        )
        fact, child = journal.prepare(forged, None), limpet.Key("support", "ada", "child")
        begin = journal.prepare(created(child, isolation=own), None)
        works = journal.prepare(delegated(mine.key, mine.head.uid, "t", 1), None)
        named = journal.prepare(child_created(child, begin.id, 1, "0" * 64, None), None)
        commits = [Commit(mine.key, (fact,))]
        if way == "in a child":
            here = Commit(mine.key, (named,), uid=mine.head.uid)
            commits = [here, Commit(child, (begin, works, fact), 0)]
        with pytest.raises(errors.AccessDenied):
            await journal.commit(commits)


@pytest.mark.parametrize("reads", [[], None, {"version": "x"}])
async def test_a_relation_that_is_none_is_refused_as_one(lp: limpet.Limpet, reads: Any) -> None:
    """A client that speaks the protocol itself learns what is wrong with it."""
    before, after = await made(lp)
    own = lp.acting_as(owner("ada")).session(after.key)
    fact = related("reference", "to", before.key, before.head.uid, ADA)
    forged = Fact(type=fact.type, data={**fact.data, "reads": reads}, id="r")
    with pytest.raises(errors.InvalidEvent):
        await own.record(forged)


@pytest.mark.parametrize("value", [("a", "b"), {"a", "b"}, {"x": ("a",)}])
async def test_who_has_attributes_cites_as_everybody(lp: limpet.Limpet, value: Any) -> None:
    """Policies may ask for sets and tuples; the log has lists."""
    before, after = await made(lp)
    ada = lp.acting_as(
        Principal(ADA, role="owner", app="support", user="ada", attributes={"teams": value})
    )
    own = ada.session(after.key)
    relation = await own.cite(ada.session(before.key), fields=("n",))
    assert (await own.read_cited(relation)).values == {"n": 1}


async def test_who_may_only_read_another_users_session_cites_it() -> None:
    """As far as its isolation lets them in, and as long as who cited it may read it."""
    async with limpet.open("memory://") as lp:
        shared = await lp.create(
            "support",
            "bob",
            "shared",
            state={"n": 1},
            isolation=Isolation(users=("ada",)),
            actor="user:bob",
        )
        private = await lp.create("support", "bob", "private", state={"n": 1})
        mine = await lp.create("support", "ada", "mine")
        ada = lp.acting_as(owner("ada"))
        own = ada.session(mine.key)
        relation = await own.cite(ada.session(shared.key), fields=("n",))
        assert (await own.read_cited(relation)).values == {"n": 1}
        assert (await shared.refresh()).version == 1
        await shared.complete("done", actor="user:bob")
        output = await own.relate(ada.session(shared.key), "predecessor", outputs=True)
        assert (await own.read_cited(output)).output == "done"
        assert await shared.relations() == (), "it may not write there"
        for lp_of in (ada, lp):
            with pytest.raises(errors.CrossSessionAccessDenied):
                await lp_of.session(mine.key).cite(lp_of.session(private.key), fields=("n",))
        far = await lp.create("other", "ada", "far", state={"n": 1})
        with pytest.raises(errors.CrossSessionAccessDenied):
            await mine.cite(far, fields=("n",))


async def test_the_grant_of_the_maker_is_asked_at_each_read(tmp_path: Path) -> None:
    """A policy that forbids them the other session from now on ends what is read through it."""
    pytest.importorskip("cedarpy")
    policies = tmp_path / "p.cedar"
    policies.write_text("permit (principal, action, resource);\n")
    async with limpet.open("memory://", policies=policies) as lp:
        before, after = await made(lp)
        ref = await before.blobs.put(BYTES, "text/plain")
        ada = lp.acting_as(owner("ada"))
        own = ada.session(after.key)
        relation = await own.cite(ada.session(before.key), fields=("n",), blobs=(ref,))
        policies.write_text(
            "permit (principal, action, resource);\n"
            'forbid (principal == Principal::"user:ada", action == Action::"read",\n'
            '        resource == Session::"support/ada/before");\n'
        )
        for reader in (own, after):
            with pytest.raises(errors.CrossSessionAccessDenied):
                await reader.read_cited(relation)
            with pytest.raises(errors.CrossSessionAccessDenied):
                await reader.blobs.get(ref)


@pytest.fixture
async def served() -> AsyncIterator[tuple[limpet.Limpet, str]]:
    async with limpet.open("memory://") as lp, serving(lp) as url:
        yield lp, url


async def test_a_client_cites_and_reads_through_its_server(
    served: tuple[limpet.Limpet, str],
) -> None:
    """Its server remembers who it is, and records nothing that it makes up."""
    lp, url = served
    before, after = await made(lp)
    ref = await before.blobs.put(BYTES, "text/plain")
    await before.complete({"report": ref.data}, actor=ADA)
    _, token = await AccessKeys(journal_of(lp)).create(role="owner", app="support", user="ada")
    async with limpet.open(url, token=token) as client:
        own, other = await client.get(after.key), client.session(before.key)
        relation = await own.relate(other, "predecessor", outputs=True)
        assert (await own.read_cited(relation)).output == {"report": ref.data}
        assert await own.blobs.get(ref) == BYTES
        cited = await own.cite(other, fields=("n",), blobs=[ref])
        assert (await own.read_cited(cited.id)).values == {"n": 1}
        assert own.version == 3, "the object knows what was recorded"
        await own.unrelate(cited)
        with pytest.raises(errors.RelationNotFound):
            await own.read_cited(cited)
    (event,) = await after.read(types=["session.related"], limit=1)
    assert event.data["reads"]["maker"] == {
        "id": "user:ada",
        "role": "owner",
        "app": "support",
        "user": "ada",
    }


async def test_bad_arguments(lp: limpet.Limpet) -> None:
    """Each is refused before anything is recorded."""
    before, after = await made(lp)
    ref = await before.blobs.put(BYTES)
    wrong: list[dict[str, Any]] = [
        {},
        {"fields": "n"},
        {"fields": ("missing",)},
        {"fields": (1,)},
        {"fields": ("app:n",)},
        {"blobs": ref.sha256},
        {"blobs": ("x",)},
        {"fields": [f"f{n}" for n in range(65)]},
    ]
    for named in wrong:
        with pytest.raises(errors.InvalidInput):
            await after.cite(before, **named)
    with pytest.raises(errors.BlobNotFound):
        await after.cite(before, blobs=("0" * 64,))
    for other in (before.key, None, "before"):
        with pytest.raises(errors.InvalidInput):
            await after.cite(other, fields=("n",))  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidInput):
        await after.cite(after, fields=("n",))
    with pytest.raises(errors.SessionNotFound):
        await after.cite(lp.session("support", "ada", "never"), fields=("n",))
    for kind in ("successor", "peer"):
        with pytest.raises(errors.InvalidInput):
            await after.relate(before, kind, outputs=True)  # type: ignore[arg-type]
    for id in (None, "", 3):
        with pytest.raises(errors.InvalidInput):
            await after.read_cited(id)  # type: ignore[arg-type]
    with pytest.raises(errors.RelationNotFound):
        await after.read_cited("never")
    async with limpet.open("memory://") as elsewhere:
        far = await elsewhere.create("support", "ada", "before", state={"n": 1}, actor=ADA)
        with pytest.raises(errors.InvalidInput):
            await after.cite(far, fields=("n",))
    assert (await after.refresh()).version == 1
