"""A migration beside others who write the same session: tried again, so often and no more."""

from __future__ import annotations

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

    async def load(self, key: Key, **how: Any) -> Loaded:
        loaded = await super().load(key, **how)
        self.loads += 1
        if self.writes:
            self.writes -= 1
            await add(self, key, draft())
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
