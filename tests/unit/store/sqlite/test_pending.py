"""What is pending is found by its own index: its cost is that of what is pending."""

from __future__ import annotations

from pathlib import Path

from limpet.model.events import Event
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.commits import add, create, draft, key
from limpet.testing.laws.log.facts import processed

A = key("a")


async def pending(store: SQLiteStore) -> tuple[tuple[Event, ...], int, int]:
    """The pending inputs, the rows that were met on the way and the instructions it took."""
    conn, rows, steps = store._reader.conn, 0, 0

    def row(cursor: object, found: tuple[object, ...]) -> tuple[object, ...]:
        nonlocal rows
        rows += 1
        return found

    def step() -> bool:
        nonlocal steps
        steps += 1
        return False

    conn.row_trace = row
    conn.set_progress_handler(step, 1)
    found = await store.pending_inputs(A, limit=100)
    conn.row_trace = None
    conn.set_progress_handler(None)
    return found, rows, steps


async def test_one_old_input_among_thousands_costs_what_it_costs_alone(tmp_path: Path) -> None:
    """It waits since the beginning, and 10,000 events came and were processed after it."""
    store = await SQLiteStore.open(tmp_path / "a.db", sync="off")
    await create(store, A)
    old = (await add(store, A, draft("user.said"))).events
    costs = [await pending(store)]
    for _ in range(10):
        last = (await add(store, A, *(draft("user.said") for _ in range(500)))).head.version
        await add(store, A, processed(*range(last - 499, last + 1)))
        await add(store, A, *(draft("agent.said") for _ in range(499)))
    costs.append(await pending(store))
    (first, rows, steps), (found, rows_then, steps_then) = costs
    assert first == found == old
    assert rows_then == rows == 2  # the head, and the input
    assert steps_then <= steps + 5
    await store.close()
