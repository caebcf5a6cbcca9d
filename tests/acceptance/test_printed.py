"""What a person sees who prints an answer: a few lines, with what is wrong and where."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Check, Diagnosis, Finding, Key, MigrationRegistry, Report
from limpet.store.protocol import Restored
from tests.support import chats

KEY = Key("shop", "ada", "1")


@pytest.fixture
async def lp() -> AsyncIterator[limpet.Limpet]:
    """The words are the same on every store."""
    async with limpet.open("memory://") as found:
        yield found


def test_a_report_lists_what_was_found() -> None:
    """The first twenty, with session and event, and how much was read."""
    assert str(Report(1, 2_000, ())) == "ok: 1 session, 2,000 events read, nothing is wrong."
    torn = Finding("event", "is torn", KEY, 7)
    told = str(Report(3, 30, (torn,) * 22)).splitlines()
    assert told[:20] == ["shop/ada/1 event 7 is torn"] * 20
    assert told[20:] == ["and 2 more", "22 findings: 3 sessions, 30 events read."]
    restored = str(Restored(Report(1, 1, ()), Path("old.db"))).splitlines()
    assert restored[1:] == ["The old store was kept as old.db."]


def test_a_diagnosis_lists_what_is_not_well() -> None:
    """With the advice; what is well is counted."""
    checks = (Check("log", "holds"), Check("disk", "is full", "problem", "Free some."))
    told = str(Diagnosis((*checks, Check("wal", "unseen", "skipped")), Report(1, 1, ())))
    assert told.splitlines() == [
        "problem: disk: is full",
        "  → Free some.",
        "skipped: wal: unseen",
        "not ok: 3 checks, 1 problem, 0 warnings, 1 skipped.",
    ]
    assert str(Diagnosis((), Report(1, 1, ()))) == "ok: 0 checks, 0 problems, 0 warnings."


async def test_a_migration_says_what_becomes_of_sessions(lp: limpet.Limpet) -> None:
    """A line for each fate with an example, what is left over, and the sum."""
    registry = MigrationRegistry("chats")

    @registry.migration("1.0.0", "2.0.0")
    def renamed(fields: dict[str, Any]) -> dict[str, Any]:
        return {"goal": fields.pop("plan"), **fields}

    await lp.create("support", "ada", "plain")
    await lp.create("support", "ada", "one", state=chats.Old(plan="a"))
    await lp.create("support", "ada", "two", state=chats.Old(plan="b"))
    untyped, migratable, said = str(await lp.maintenance.migrate(registry, chats.New)).splitlines()
    assert untyped == "untyped: 1 session"
    assert migratable.startswith("migratable: 2 sessions, the first support/ada/one: ")
    assert said == "ok: 2 sessions of 3 to be migrated to schema 2.0.0; nothing was written."
    plan = await lp.maintenance.migrate(registry, chats.New, apply=True)
    assert str(plan).splitlines()[-1] == "ok: 2 sessions of 3 migrated to schema 2.0.0."


async def test_what_has_moved_or_ended_is_counted(lp: limpet.Limpet, tmp_path: Path) -> None:
    """Copies, mirrors, compactions, rewinds, transitions and erasures."""
    s = await lp.create("shop", "ada", "1", state={"a": 1, "user:u": 1}, actor="user:ada")
    await s.append("note.made", set={"a": 2})
    async with limpet.open("memory://") as other:
        assert str(await lp.copy(s.key, to=other)) == (
            "1 session, 2 events, 0 shared names copied; left out: user:u"
        )
    assert str(await lp.maintenance.mirror(tmp_path / "mirror")) == "1 session, 2 events written"
    assert str(await lp.maintenance.compact()) == "0 events of 0 sessions moved"
    assert str(await s.rewind(1)) == "event 3 restored a"
    assert str(await s.rewind(1)) == "nothing to restore"
    assert str(await s.suspend()).startswith("suspend: active to suspended (checkpoint, ")
    erased = str(await lp.erase(s.key))
    assert " erased at version " in erased
    assert str(await lp.erase_user("shop", "ada")) == "0 sessions, 1 user: name erased"


async def test_a_failed_flush_says_how_much_and_what_to_do(lp: limpet.Limpet) -> None:
    """One event is an event; the reason and the next step are sentences."""
    lp.session("shop", "ada", "gone", actor="a").append_soon("a.b")
    with pytest.raises(limpet.errors.FlushFailed) as caught:
        await lp.flush()
    first, rest = str(caught.value).split(". ", 1)
    assert first == "not recorded: 1 event queued for shop/ada/gone"
    assert "append_many" in rest


async def test_a_conversation_is_printed_without_its_events(lp: limpet.Limpet) -> None:
    """A message shows who speaks, what is said, and where its event is."""
    s = await lp.create("shop", "ada", "1")
    await s.append("user.message", {"text": "Hello"}, actor="user:ada")
    said = "[Message(role='user', parts=({'type': 'text', 'text': 'Hello'},), seq=2)]"
    assert str(await s.messages()) == said
