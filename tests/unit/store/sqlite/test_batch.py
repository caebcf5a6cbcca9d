"""A batch looks for the ids that callers chose once, and finds what was recorded under them."""

from __future__ import annotations

from pathlib import Path

import limpet


async def test_many_ids_of_one_commit_are_found_where_they_were_recorded(tmp_path: Path) -> None:
    """More than one statement takes: those of this session are repeats, those of another are not,
    whatever form an id has."""
    ids = [f"id-{n}" for n in range(400)]
    ids[7], ids[300] = (
        "0198c0de-0000-7000-8000-00000000000a",
        "0198C0DE-0000-7000-8000-00000000000B",
    )
    drafts = [limpet.Draft(type="user.note", data={"n": n}, id=id) for n, id in enumerate(ids)]
    async with limpet.open(f"sqlite:///{tmp_path}/ids.db") as lp:
        one, other = await lp.create("a", "ada"), await lp.create("a", "eve")
        await one.append_many([drafts[n] for n in (7, 20, 300)], actor="user:ada")
        await other.append_many([drafts[n] for n in (8, 301)], actor="user:ada")
        found = await one.append_many(drafts, actor="user:ada")
        assert [n for n, event in enumerate(found) if event.repeated] == [7, 20, 300]
        assert [event.id for event in found] == ids
        assert all([event.repeated for event in await one.append_many(drafts, actor="user:ada")])
        assert one.version == 1 + len(ids)
