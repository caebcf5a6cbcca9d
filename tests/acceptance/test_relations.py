"""Relations: both ends in one commit, read from either end, and as a graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import errors

ADA = "user:ada"


async def made(lp: limpet.Limpet, *ids: str) -> list[limpet.Session[Any]]:
    return [await lp.create("support", "ada", id, actor=ADA) for id in ids]


async def test_both_ends_know_it(lp: limpet.Limpet) -> None:
    a, b = await made(lp, "a", "b")
    await a.relate(b, "successor", actor="agent:main")
    (to,) = await a.relations()
    (back,) = await b.relations()
    assert (to.kind, to.direction, to.key, to.actor) == ("successor", "to", b.key, "agent:main")
    assert (back.kind, back.direction, back.key) == ("successor", "from", a.key)
    assert (a.version, b.version) == (2, 2), "both objects know what was recorded"
    assert await a.relations("peer") == ()


async def test_peers_see_each_other_alike_and_once(lp: limpet.Limpet) -> None:
    a, b = await made(lp, "a", "b")
    await a.relate(b, "peer")
    await b.relate(a, "peer")
    assert [each.direction for each in await a.relations("peer")] == ["both"]
    assert (await a.refresh()).version == 2
    graph = await lp.graph(b.key)
    assert [edge.kind for edge in graph.edges] == ["peer"]


async def test_references_in_both_directions_are_two(lp: limpet.Limpet) -> None:
    a, b = await made(lp, "a", "b")
    await a.relate(b, "reference")
    await b.relate(a, "reference")
    assert sorted(each.direction for each in await a.relations()) == ["from", "to"]


async def test_sessions_that_ended_can_be_related(lp: limpet.Limpet) -> None:
    a, b = await made(lp, "a", "b")
    await a.complete(actor=ADA)
    await b.suspend(actor=ADA)
    await a.relate(b, "successor")
    assert (await b.relations())[0].key == a.key


async def test_one_end_that_is_gone_refuses_both(lp: limpet.Limpet) -> None:
    """Nothing is recorded at the other."""
    a, b = await made(lp, "a", "b")
    await lp.delete(b.key)
    with pytest.raises(errors.SessionDeleted):
        await a.relate(b, "reference")
    with pytest.raises(errors.SessionNotFound):
        await a.relate(lp.session("support", "ada", "never"), "reference")
    assert (await a.refresh()).version == 1


async def test_deleting_one_end_leaves_the_other_readable(lp: limpet.Limpet) -> None:
    a, b = await made(lp, "a", "b")
    await a.relate(b, "reference")
    await lp.delete(b.key)
    assert [each.key for each in await a.relations()] == [b.key]
    nodes = {node.key: node.phase for node in (await lp.graph(a.key)).nodes}
    assert nodes == {a.key: "active", b.key: None}


async def test_a_fork_begins_without_relations(lp: limpet.Limpet) -> None:
    a, b = await made(lp, "a", "b")
    await a.relate(b, "reference")
    fork = await a.fork(id="f", actor=ADA)
    assert await fork.relations() == ()


async def delegates(turn: limpet.Turn) -> None:
    await turn.delegate("research", "look", cascade=False)


async def test_the_graph_has_every_kind_of_edge(lp: limpet.Limpet) -> None:
    a, b, c = await made(lp, "a", "b", "c")
    await a.append("user.message", {"text": "hi"}, actor=ADA, input=True, set={"n": 1})
    fork = await a.fork(id="f", actor=ADA)
    await fork.append("note.made", actor=ADA, set={"n": 2})
    await a.merge(fork, actor=ADA)
    await a.relate(b, "successor")
    await b.relate(c, "reference")
    await a.share(c, "n")
    await lp.wake(a.key, delegates)
    (child,) = await (await a.refresh()).runs.children()
    for root in (a.key, c.key, child):
        graph = await lp.graph(root)
        assert graph == await lp.graph(root.app, root.user, root.id)
        assert {node.key for node in graph.nodes} == {a.key, b.key, c.key, fork.key, child}
        assert {(e.source.id, e.target.id, e.kind) for e in graph.edges} == {
            ("a", child.id, "child"),
            ("a", "f", "fork"),
            ("a", "f", "merge"),
            ("a", "b", "successor"),
            ("b", "c", "reference"),
            ("a", "c", "share"),
        }
        assert not graph.truncated
    text = str(await lp.graph(a.key))
    assert "  successor support/ada/b\n    reference support/ada/c" in text
    assert "  shares with support/ada/c" in text
    assert (await lp.graph(a.key)).mermaid().startswith("graph LR\n    s0[")


async def test_a_graph_shows_neighbours_whose_logs_are_not_here(tmp_path: Path) -> None:
    """Archived, deleted, erased and moved: each is a node, and what is beyond others stays."""
    async with (
        limpet.open("memory://", archive=f"file://{tmp_path}", node="eu") as lp,
        limpet.open("memory://", node="us") as us,
    ):
        a, archived, deleted, erased, moved, beyond = await made(
            lp, "a", "archived", "deleted", "erased", "moved", "beyond"
        )
        for each in (archived, deleted, erased, moved, beyond):
            await a.relate(each, "reference")
        fork = await archived.fork(id="fork", actor=ADA)
        await archived.complete(actor=ADA)
        await archived.archive(actor=ADA)
        await lp.delete(deleted.key)
        await lp.erase(erased.key)
        assert (await lp.move(moved.key, us)).success
        graph = await lp.graph(a.key)
        nodes = {node.key.id: (node.phase, node.moved_to) for node in graph.nodes}
        assert nodes == {
            "a": ("active", None),
            "archived": ("archived", None),
            "deleted": (None, None),
            "erased": (None, None),
            "moved": ("active", "us"),
            "beyond": ("active", None),
        }
        assert {edge.target.id for edge in graph.edges} == nodes.keys() - {"a"}
        assert "support/ada/archived (archived)" in str(graph)
        parent = (await fork.history.lineage()).parent
        assert parent is not None
        assert parent.key == archived.key
        nodes = {node.key.id: (node.phase, None) for node in (await lp.graph(fork.key)).nodes}
        assert nodes == {"fork": ("active", None), "archived": ("archived", None)}
        with pytest.raises(errors.SessionArchived):
            await lp.graph(archived.key)


@pytest.mark.parametrize("end", ["archived", "deleted", "erased"])
async def test_a_neighbour_of_another_user_may_end(tmp_path: Path, end: str) -> None:
    """A graph goes on beside one that let its reader in and was archived or deleted since."""
    bob = limpet.Principal("user:bob", role="owner", app="support", user="bob")
    url, files = f"sqlite:///{tmp_path}/one.db", f"file://{tmp_path}/files"
    async with limpet.open(url, archive=files) as lp:
        lent = limpet.Isolation(users=("bob",))
        theirs = await lp.create("support", "ada", "a", state={"n": 1}, isolation=lent)
        await lp.create("support", "bob", "b")
        acting = lp.acting_as(bob)
        own = acting.session("support", "bob", "b")
        await own.cite(acting.session(theirs.key), fields=("n",))
        assert len((await acting.graph(own.key)).nodes) == 2
        await theirs.complete(actor=ADA)
        if end == "archived":
            await theirs.archive(actor=ADA)
        else:
            await {"deleted": lp.delete, "erased": lp.erase}[end](theirs.key)
        beside = {"a": "archived"} if end == "archived" else {}
        for reader in (acting, lp.acting_as(bob)):
            graph = await reader.graph(own.key)
            shown = {node.key.id: node.phase for node in graph.nodes}
            assert shown == {"b": "active", **beside}


async def test_a_graph_is_bounded_and_says_so(lp: limpet.Limpet) -> None:
    a, b, c = await made(lp, "a", "b", "c")
    await a.relate(b, "peer")
    await b.relate(c, "peer")
    graph = await lp.graph(a.key, limit=2)
    assert (len(graph.nodes), graph.truncated) == (2, True)
    assert {end for edge in graph.edges for end in (edge.source, edge.target)} <= {a.key, b.key}


async def test_bad_arguments(lp: limpet.Limpet) -> None:
    a, b = await made(lp, "a", "b")
    for kind in ("friend", None, 3):
        with pytest.raises(errors.InvalidInput):
            await a.relate(b, kind)  # type: ignore[arg-type]
    for other in (a, b.key, None):
        with pytest.raises(errors.InvalidInput):
            await a.relate(other, "peer")  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidInput):
        await a.relations("friend")  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidQuery):
        await lp.graph(a.key, limit=0)
    async with limpet.open("memory://") as elsewhere:
        far = await elsewhere.create("support", "ada", "far", actor=ADA)
        with pytest.raises(errors.InvalidInput):
            await a.relate(far, "peer")
