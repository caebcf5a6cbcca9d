"""A closing commit on a failing disk: its last event and the end of the lease, or neither."""

from __future__ import annotations

from pathlib import Path

import msgspec

from limpet.errors import LimpetError
from limpet.model.commit import Commit
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.commits import add, create, draft, key, load
from limpet.testing.laws.log.facts import processed
from tests.support.vfs import WRITES, Faults, faulty

A = key("a")


async def closed_at(path: Path, number: int) -> bool:
    """Close a turn while the nth writing call fails; whether that call was reached."""
    faults = Faults()
    with faulty(faults) as vfs:
        store = await SQLiteStore.open(path, vfs=vfs, busy_seconds=0.5)
        await create(store, A)
        await add(store, A, draft("user.said"))
        (lease,) = await store.claim("w", limit=1, lease_seconds=3_600)
        faults.kinds, faults.calls, faults.at = WRITES, 0, number
        commit = Commit(A, (processed(2), draft("agent.said", id="last")), release=lease)
        try:
            await store.commit([commit])
            failed = False
        except LimpetError:
            failed = True
        faults.mend()
        struck = bool(faults.struck)
        await store.close()
    store = await SQLiteStore.open(path)
    head = (await load(store, A)).head
    assert (head.version, head.worker, head.pending) in ((2, "w", 1), (4, None, 0)), number
    if not failed:
        assert head.version == 4
    (again,) = await store.commit([msgspec.structs.replace(commit, drafts=commit.drafts[1:])])
    assert again.head.worker is None  # a retry closes what was not, and repeats what was
    assert (await store.verify(None)).findings == ()
    await store.close()
    return struck


async def test_a_turn_is_closed_whole_or_not_at_all(tmp_path: Path) -> None:
    """Whichever write fails, until one run meets no fault."""
    number = 1
    while await closed_at(tmp_path / f"{number}.db", number):
        number += 1
    assert number > 2
