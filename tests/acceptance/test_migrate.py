"""Migrating a whole store from a program: every fate, other writers, other sessions."""

from __future__ import annotations

import asyncio
import re
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import pytest

import limpet
from limpet import MigrationRegistry, errors
from limpet.model.limits import EVENT_BYTES_MAX
from limpet.session.writer import Loading
from tests.support import chats


def registry() -> MigrationRegistry:
    found = MigrationRegistry("chats")

    @found.migration("1.0.0", "2.0.0")
    def renamed(fields: dict[str, Any]) -> dict[str, Any]:
        fields["goal"] = fields.pop("plan")
        return fields

    return found


async def many(lp: limpet.Limpet, count: int, app: str = "support") -> None:
    await asyncio.gather(
        *(lp.create(app, "ada", id=str(n), state=chats.Old(plan=str(n))) for n in range(count))
    )


async def test_every_session_is_met_once_over_many_pages(lp: limpet.Limpet) -> None:
    """Progress ends where the count does; nothing is written until it is asked for."""
    await many(lp, 1_050)
    seen: list[tuple[int, int]] = []
    plan = await lp.maintenance.migrate(registry(), chats.New, progress=lambda *at: seen.append(at))
    assert (plan.ok, plan.applied, plan.target) == (True, False, "2.0.0")
    assert (plan.sessions, plan.count("migratable")) == (1_050, 1_050)
    assert seen[-1] == (1_050, 1_050)
    assert all(done <= total == 1_050 for done, total in seen)
    assert sorted(seen) == seen
    assert all(head.version == 1 for head in (await lp.list(limit=1_000)).items)


async def test_the_event_is_the_one_that_a_load_records(lp: limpet.Limpet) -> None:
    """Same type, data and operations, by the same actor: there is one way to migrate."""
    await many(lp, 2)
    await lp.get(("support", "ada", "0"), state_type=chats.New, migrations=registry())
    plan = await lp.maintenance.migrate(registry(), chats.New, apply=True)
    assert (plan.count("compatible"), plan.count("migrated")) == (1, 1)
    one, two = [(await lp.get(("support", "ada", id))).events[-1] for id in ("0", "1")]
    assert (one.type, two.type) == ("state.migrated", "state.migrated")
    assert (one.actor, one.data) != (two.actor, two.data)  # another state, other checksums
    assert (one.actor, one.data["from"], one.data["to"], one.data["steps"]) == (
        two.actor,
        two.data["from"],
        two.data["to"],
        two.data["steps"],
    )
    assert [op.path for op in one.ops] == [op.path for op in two.ops]
    assert (await lp.maintenance.verify()).ok


async def test_beside_live_writers_nothing_is_lost(lp: limpet.Limpet) -> None:
    """Appends before, between and after: all are there, and every session is migrated once."""
    await many(lp, 40)
    stop = asyncio.Event()

    async def write(n: int) -> int:
        session, written = lp.session(("support", "ada", str(n)), actor="w", untyped=True), 0
        while not stop.is_set() and written < 100:
            await session.append("agent.step", set={"step": written})
            await asyncio.sleep(0)  # in memory nothing else would let others run
            written += 1
        return written

    writers = {str(n): asyncio.create_task(write(n)) for n in range(0, 40, 4)}
    plan = await lp.maintenance.migrate(registry(), chats.New, apply=True)
    stop.set()
    written = {id: await writer for id, writer in writers.items()}
    assert plan.count("migrated") == 40
    for head in (await lp.list()).items:
        events = await lp.session(head.key).read(limit=1_000)
        assert sum(event.type == "state.migrated" for event in events) == 1
        steps = sum(event.type == "agent.step" for event in events)
        assert steps == written.get(head.key.id, 0)
    assert (await lp.maintenance.verify()).ok


async def test_two_runs_at_once_migrate_every_session_once(lp: limpet.Limpet) -> None:
    """Whoever is second finds it compatible."""
    await many(lp, 60)
    plans = await asyncio.gather(
        *(lp.maintenance.migrate(registry(), chats.New, apply=True) for _ in range(2))
    )
    assert sum(plan.count("migrated") for plan in plans) == 60
    assert sum(plan.sessions for plan in plans) == 120
    assert {head.version for head in (await lp.list(limit=100)).items} == {2}


async def test_a_session_that_is_deleted_meanwhile_is_not_counted(lp: limpet.Limpet) -> None:
    """Its head was read, and it is gone when its turn comes."""
    await many(lp, 3)
    found = MigrationRegistry()

    @found.migration("1.0.0", "2.0.0")
    def renamed(fields: dict[str, Any]) -> dict[str, Any]:
        return {"goal": fields["plan"]}

    deleted: list[bool] = []
    load, is_asked = lp._journal.store.load, ContextVar("is_asked", default=False)
    is_asked.set(True)  # and not in the task that keeps a mirror

    async def deleting(key: limpet.Key, **how: Any) -> Any:
        if is_asked.get() and key.id == "1" and not deleted:
            deleted.append(await lp._journal.store.delete(key))
        return await load(key, **how)

    lp._journal.store.load = deleting  # type: ignore[method-assign]  # the moment between two calls
    plan = await lp.maintenance.migrate(found, chats.New)
    assert (deleted, plan.sessions) == ([True], 2)


async def test_names_that_others_share_are_not_a_migrations_to_write(
    lp: limpet.Limpet,
) -> None:
    """It fails, on a load too, before anything is written."""
    await many(lp, 1)
    found = MigrationRegistry()
    found.register("1.0.0", "2.0.0", lambda fields: {"goal": "", "app:plan": fields["plan"]})
    plan = await lp.maintenance.migrate(found, chats.New, apply=True)
    (outcome,) = plan.outcomes
    assert (outcome.fate, outcome.ok, plan.ok) == ("failed", False, False)
    assert "'app:plan'" in outcome.reason
    key = ("support", "ada", "0")
    with pytest.raises(errors.MigrationFailed):
        await lp.get(key, state_type=chats.New, migrations=found)
    session = await lp.get(key)
    assert (session.version, session.values) == (1, {"plan": "0"})


async def test_what_is_too_much_for_an_event_is_seen_by_the_plan(lp: limpet.Limpet) -> None:
    """The whole event is made and measured, not only the state."""
    await many(lp, 1)
    found = MigrationRegistry()
    found.register("1.0.0", "2.0.0", lambda fields: {f"f{n}": n for n in range(2_000)})
    (outcome,) = (await lp.maintenance.migrate(found)).outcomes
    assert outcome.fate == "failed"


async def test_too_many_bytes_for_an_event_name_the_last_step() -> None:
    """The steps are one event: the error says which way was taken and how large it became."""
    found = MigrationRegistry()
    found.register("1.0.0", "2.0.0", lambda fields: fields)
    found.register("2.0.0", "3.0.0", lambda fields: {"goal": "x" * EVENT_BYTES_MAX})
    async with limpet.open("memory://") as lp:
        await many(lp, 1)
        (outcome,) = (await lp.maintenance.migrate(found)).outcomes
    assert outcome.fate == "failed"
    assert "migrating from schema 1.0.0 to 3.0.0, the step 2.0.0 → 3.0.0 changes" in outcome.reason
    assert re.search(r"too much for one event \(8,\d{3},\d{3} bytes\)", outcome.reason)


async def test_the_report_says_why_in_bounds_and_what_is_left_behind(lp: limpet.Limpet) -> None:
    """What a function raised is quoted, up to a length; an error of ours has said it already. Names
    that nobody declares are counted in every session that has them."""
    await many(lp, 4)

    def fails(fields: dict[str, Any]) -> dict[str, Any]:
        if fields["plan"] == "0":
            raise ValueError("long " * 1_000)
        if fields["plan"] == "1":
            raise errors.InvalidInput("not this one.")
        return {"goal": fields["plan"], "left": 1}

    found = MigrationRegistry("chats")
    found.register("1.0.0", "2.0.0", fails)
    plan = await lp.maintenance.migrate(found, chats.New)
    by_fate = {outcome.fate: outcome for outcome in plan.outcomes}
    said = dict(by_fate["failed"].named)
    long, ours = said[limpet.Key("support", "ada", "0")], said[limpet.Key("support", "ada", "1")]
    assert long.partition("It said: ")[2] == ("long " * 100)[:300]
    assert "It said" not in ours
    assert (by_fate["failed"].left_off, by_fate["failed"].ok) == (0, False)
    assert (by_fate["migratable"].named, by_fate["migratable"].left_off) == ((), 0)
    assert dict(plan.leftovers) == {"left": 2}


LOCKED = limpet.Key("support", "ada", "0")


@pytest.mark.parametrize(
    ("error", "fate"),
    [
        (errors.SessionLocked(LOCKED, "worker", datetime(2030, 1, 1, tzinfo=UTC)), "busy"),
        (errors.SessionConflict(LOCKED, "session", 1, 2), "busy"),
        (errors.SessionCorrupt(LOCKED, "an event cannot be read"), "damaged"),
        (errors.StoreCorrupt("a.db", "a page cannot be read"), "damaged"),
        (errors.IntegrityViolation("the state", "aa", "bb"), "damaged"),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, Exception) else given,
)
async def test_what_keeps_a_session_from_being_migrated_is_reported(
    monkeypatch: pytest.MonkeyPatch, error: Exception, fate: str
) -> None:
    """Under a fate of its own, with the words of the error; the others are migrated."""
    load = Loading.load

    async def fails(self: Any, *args: Any, **how: Any) -> Any:
        if self._key == LOCKED:
            raise error
        return await load(self, *args, **how)

    async with limpet.open("memory://") as lp:
        await many(lp, 3)
        monkeypatch.setattr(Loading, "load", fails)
        plan = await lp.maintenance.migrate(registry(), chats.New, apply=True)
    (stuck,) = [outcome for outcome in plan.outcomes if not outcome.ok]
    assert (stuck.fate, stuck.named) == (fate, ((LOCKED, str(error)),))
    assert plan.count("migrated") == 2


async def test_only_the_sessions_of_an_app_are_migrated(lp: limpet.Limpet) -> None:
    """Those of another stay as they are."""
    await many(lp, 3)
    await many(lp, 2, app="billing")
    plan = await lp.maintenance.migrate(registry(), app="billing", apply=True)
    assert plan.count("migrated") == plan.sessions == 2
    assert {head.version for head in (await lp.list(app="support")).items} == {1}


async def test_a_wrong_registry_or_class_is_refused(lp: limpet.Limpet) -> None:
    """Before any session is looked at."""
    with pytest.raises(errors.InvalidInput, match="is not a registry"):
        await lp.maintenance.migrate({})  # type: ignore[arg-type]  # on purpose
    with pytest.raises(errors.InvalidInput, match="is not a State class"):
        await lp.maintenance.migrate(registry(), dict)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(errors.InvalidInput, match="no version to migrate to"):
        await lp.maintenance.migrate(MigrationRegistry())


def test_without_await_too(tmp_path: Any) -> None:
    """The sync façade hands the plan through."""
    with limpet.open_sync(f"sqlite:///{tmp_path}/a.db") as lp:
        lp.create("support", "ada", id="1", state=chats.Old(plan="p"))
        assert lp.maintenance.migrate(registry(), chats.New, apply=True).count("migrated") == 1
