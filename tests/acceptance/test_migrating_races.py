"""A migration beside others who write the same session: tried again, so often and no more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from limpet import Limpet, MigrationRegistry, errors
from limpet.model.keys import Key
from limpet.model.limits import UPDATE_TRIES_MAX
from limpet.store.memory import MemoryStore
from limpet.store.protocol import Loaded
from limpet.testing.commits import add, draft
from tests.support import chats

KEY = Key("support", "ada", "1")
MIGRATIONS = MigrationRegistry("chats")


@MIGRATIONS.migration("1.0.0", "2.0.0")
def renamed(fields: dict[str, Any]) -> dict[str, Any]:
    fields["goal"] = fields.pop("plan")
    return fields


class Busy(MemoryStore):
    """Somebody else writes after each of the next loads."""

    writes = 0
    loads = 0
    then: Callable[[int], Awaitable[None]] | None = None  # done after a load, by its number

    async def load(self, key: Key, **how: Any) -> Loaded:
        loaded = await super().load(key, **how)
        self.loads += 1
        if self.writes:
            self.writes -= 1
            await add(self, key, draft())
        if self.then is not None:
            await self.then(self.loads)
        return loaded


async def busy(writes: int) -> tuple[Busy, Limpet]:
    """A session of the old version, and a store that is written to so many times."""
    store = Busy()
    lp = await Limpet("test://", store=store).__aenter__()
    await lp.create(KEY.app, KEY.user, id=KEY.id, state=chats.Old(plan="p"))
    store.writes, store.loads = writes, 0
    return store, lp


async def test_a_migration_outlasts_writers_who_pause_in_time() -> None:
    """The last of its tries is as good as the first; it is recorded on what they wrote."""
    store, lp = await busy(UPDATE_TRIES_MAX - 1)
    found = await lp.get(KEY, state_type=chats.New, migrations=MIGRATIONS)
    assert (found.state.goal, found.head.schema_version) == ("p", "2.0.0")
    assert (store.loads, found.version) == (UPDATE_TRIES_MAX, UPDATE_TRIES_MAX + 1)
    assert found.events[-1].actor == "system:migrations"
    await lp.close()


async def test_a_migration_among_writers_who_never_pause_is_a_conflict() -> None:
    """The caller is told, after so many tries, and nothing was migrated."""
    store, lp = await busy(UPDATE_TRIES_MAX)
    with pytest.raises(errors.SessionConflict):
        await lp.get(KEY, state_type=chats.New, migrations=MIGRATIONS)
    assert store.loads == UPDATE_TRIES_MAX
    found = await lp.get(KEY)
    assert (found.head.schema_version, found.version) == ("1.0.0", UPDATE_TRIES_MAX + 1)
    await lp.close()


@pytest.mark.parametrize("late", [False, True])
async def test_a_session_that_is_leased_for_the_first_time_meanwhile_is_read_again(
    late: bool,  # a parameter of the test
) -> None:
    """As after any other write: the last try succeeds, and there is none after it."""
    store, lp = await busy(UPDATE_TRIES_MAX - 2 + late)

    async def lease(load: int) -> None:
        if load == UPDATE_TRIES_MAX - 1 + late:
            assert await lp.work.release(await lp.work.lock(KEY, worker="w"))

    store.then = lease
    if late:
        with pytest.raises(errors.SessionFenced):
            await lp.get(KEY, state_type=chats.New, migrations=MIGRATIONS)
    else:
        found = await lp.get(KEY, state_type=chats.New, migrations=MIGRATIONS)
        assert found.head.schema_version == "2.0.0"
    assert store.loads == UPDATE_TRIES_MAX
    await lp.close()


async def test_a_worker_that_loses_its_lease_migrates_nothing_and_hears_it_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another runs the session now: trying again could only write under its hands."""
    store, lp = await busy(0)
    mine = await lp.work.lock(KEY, worker="one")
    handle = lp.session(KEY, state_type=chats.New, migrations=MIGRATIONS, actor="a", lease=mine)

    async def taken(load: int) -> None:
        store.then = None
        assert await lp.work.release(mine)
        await lp.work.lock(KEY, worker="two")

    store.then, store.loads = taken, 0
    with pytest.raises(errors.SessionFenced):
        await handle.refresh()
    assert store.loads == 1
    assert "lease taken over" in caplog.text
    assert "during=migration " in caplog.text
    assert (await lp.get(KEY)).head.schema_version == "1.0.0"
    await lp.close()


async def test_a_lease_that_was_taken_over_before_the_load_is_not_ours() -> None:
    """Whoever runs the session now is named; nothing is sent that its fence would refuse."""
    _, lp = await busy(0)
    mine = await lp.work.lock(KEY, worker="one")
    handle = lp.session(KEY, state_type=chats.New, migrations=MIGRATIONS, actor="a", lease=mine)
    assert await lp.work.release(mine)
    await lp.work.lock(KEY, worker="two")
    with pytest.raises(errors.SessionLocked) as info:
        await handle.refresh()
    assert "two" in str(info.value)
    await lp.close()
