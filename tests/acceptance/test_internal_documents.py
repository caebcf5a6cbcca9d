"""What Limpet itself keeps as documents: no program reaches it, and no bad value stops the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.session.documents import Internal

WHO = "user:ada"
NAMES = (
    "archive-moves",
    "checkpointing",
    "compaction",
    "curated",
    "gates",
    "learnings",
    "memory",
    "names",
    "retention",
    "retrieval",
    "tools",
)
ODD: tuple[Any, ...] = (None, 7, "x", [1], {}, {"events": "many", "every": [], "to": "store"})


@pytest.fixture
async def archived(url: str, tmp_path: Path) -> AsyncIterator[limpet.Limpet]:
    """Limpet on every store, with an archive."""
    async with limpet.open(url, archive=f"file://{tmp_path}/a/b/c/cold") as opened:
        yield opened


def move(place: str, owner: tuple[str, str] = ("shop", "ada"), **more: Any) -> dict[str, Any]:
    file = {"place": place, "uid": "u", "version": 1, "bytes": 1, "sha256": "0"}
    return {"to": "store", "owner": [*owner], **file, "timeouts": {}, "retention": {}, **more}


async def works(lp: limpet.Limpet) -> None:
    """Every session is kept, swept and compacted as always."""
    await lp.policies.retention("shop", events=1)
    s = await lp.create("shop", "ada", "one")
    for n in range(200):
        s.append_soon("app.note", {"n": n}, actor=WHO)
    await lp.flush()
    await lp.work.sweep()
    await lp.maintenance.compact()
    assert (await lp.maintenance.verify()).ok


async def test_a_programs_documents_are_never_taken_for_our_own(archived: limpet.Limpet) -> None:
    """Under the plain name of each of our collections, for the store and for a user."""
    for name in NAMES:
        for value in ODD:
            await archived.documents(name, actor=WHO).put("shop", value)
            await archived.documents(name, owner=("shop", "ada"), actor=WHO).put("one", value)
    await works(archived)
    s = await archived.get("shop", "ada", "one")
    assert await s.memory.session.list() == ()


async def test_a_program_cannot_name_our_own_collections(lp: limpet.Limpet) -> None:
    """Nor the logs behind them."""
    for name in NAMES:
        for reserved in (f"$${name}", f"${name}"):
            with pytest.raises(limpet.InvalidInput):
                lp.documents(reserved)
        with pytest.raises(limpet.InvalidInput):
            await lp.get(f"$${name}", "*", "shop")


async def test_documents_called_names_are_copied_like_all_others(
    lp: limpet.Limpet, tmp_path: Path
) -> None:
    """The log of copied names has a name that no collection can have."""
    await lp.documents("names", actor=WHO).put("ada", {"called": "Ada"})
    async with limpet.open(f"sqlite:///{tmp_path}/other.db") as other:
        assert (await lp.copy(to=other)).ok
        assert (await other.documents("names").get("ada")).value == {"called": "Ada"}


@pytest.mark.parametrize("value", ODD, ids=repr)
async def test_a_document_of_ours_in_another_form_is_skipped(
    archived: limpet.Limpet, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and every other session is kept, swept and compacted."""
    journal = archived._journal
    for name in NAMES:
        if name == "names":
            continue
        await Internal(journal, name, actor=WHO).put("broken", value)
        await Internal(journal, name, owner=("shop", "bob"), actor=WHO).put("one", value)
        await Internal(journal, name, owner=("shop", "ada"), actor=WHO).put("one", value)
    await works(archived)
    await archived.create("broken", "ada", "one")
    assert await archived.learnings("broken") == ()
    assert await archived.memory_of("broken") == ""
    if value:  # an empty one says nothing, which is fine
        assert "document has another form: session=$$retention/*/broken" in caplog.text
        assert "document has another form: session=$$archive-moves/4/shop/ada/one" in caplog.text


PLACES = ("../../../victim", "/victim", "a/../../../../victim", "a//../../../../victim", "..")


@pytest.mark.parametrize("place", PLACES)
async def test_no_stored_name_leads_out_of_the_archive(
    archived: limpet.Limpet, tmp_path: Path, place: str
) -> None:
    """Neither through a document of a move, nor through the archive itself."""
    victim = tmp_path / "a" / "victim"
    victim.parent.mkdir(parents=True)
    victim.write_text("kept")
    named = str(victim) if place == "/victim" else place
    await archived.create("shop", "ada", "one")
    for owner in (("shop", "ada"), ("shop", "bob")):
        intents = Internal(archived._journal, "archive-moves", owner=("shop", "ada"), actor=WHO)
        await intents.put("one", move(named, owner))
        await archived.work.sweep()
        assert victim.read_text() == "kept"
    cold: Any = archived._services.archive
    with pytest.raises(limpet.errors.ArchiveFailed, match="leads out of the archive"):
        await cold.remove(named)
    with pytest.raises(limpet.errors.ArchiveFailed, match="leads out of the archive"):
        await cold.remove_all(named)
    with pytest.raises(limpet.errors.ArchiveFailed, match="leads out of the archive"):
        await cold.fetch(named, tmp_path / "fetched")
    with pytest.raises(limpet.errors.ArchiveFailed, match="leads out of the archive"):
        await cold.put(named, victim)
    assert victim.read_text() == "kept"


async def test_a_move_never_names_the_file_of_another_session(
    archived: limpet.Limpet, tmp_path: Path
) -> None:
    """A document that does is skipped, and the other's file stays."""
    theirs = await archived.create("shop", "bob", "one")
    await theirs.complete()
    await theirs.archive()
    (file,) = (tmp_path / "a").rglob("*.limpet")
    place = file.relative_to(tmp_path / "a" / "b" / "c" / "cold").as_posix()
    mine = await archived.create("shop", "ada", "one")
    intents = Internal(archived._journal, "archive-moves", owner=("shop", "ada"), actor=WHO)
    await intents.put("one", move(place, uid=mine.head.uid))
    await archived.work.sweep()
    assert file.exists()


async def test_the_doctor_names_what_an_earlier_build_kept_in_plain_collections(
    archived: limpet.Limpet,
) -> None:
    """It is not read any more, and the advice says how to keep it."""
    own = archived.documents("memory", owner=("shop", "ada"), actor=WHO)
    await own.put("preferences", {"lang": "en"})  # of a program, which may have such a collection
    assert "collections" not in [
        check.name for check in (await archived.maintenance.doctor()).checks
    ]
    await own.put("session/3-one/fact", {"paid": True})
    await archived.documents("retention", actor=WHO).put("shop", {"events": 5})
    (found,) = [
        check
        for check in (await archived.maintenance.doctor()).checks
        if check.name == "collections"
    ]
    assert (found.severity, "memory, retention" in found.found) == ("warning", True)
    assert "lp.policies.retention" in found.advice
