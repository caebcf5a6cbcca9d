"""How many pages of the file an append writes: they, not Python, bound a lone writer."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import pytest

from limpet.model import Prepared
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.clock import FakeClock
from limpet.testing.commits import add, create, draft, key

A = key("a")
HEADER, FRAME = 32, 24


def transactions(path: Path) -> list[int]:
    """The pages in each transaction of a WAL: a frame that ends one says how long the file is."""
    data = path.with_name(f"{path.name}-wal").read_bytes()
    step, salts, found, pages = FRAME + struct.unpack_from(">I", data, 8)[0], data[16:24], [], 0
    for at in range(HEADER, len(data) - step + 1, step):
        if data[at + 8 : at + 16] != salts:
            break
        pages += 1
        if struct.unpack_from(">I", data, at + 4)[0]:
            found.append(pages)
            pages = 0
    return found


@pytest.mark.parametrize("name", ["ours", "chosen"])
async def test_an_append_writes_four_pages(tmp_path: Path, name: str) -> None:
    """The head, the event and its two indexes. Two more where one of these grows by a page: the new
    one, and the first of the file, which counts them; a step of time moves the order of updates."""
    path = tmp_path / "a.db"
    store = await SQLiteStore.open(path, sync="normal", clock=FakeClock().clock())
    await create(store, A)

    def said(n: int) -> Prepared:
        chosen = {"id": f"mine-{n}"} if name == "chosen" else {}
        return draft("tool.result", {"text": "x" * 200}, set={"step": n}, **chosen)

    for n in range(20):
        await add(store, A, said(n))
    before = len(transactions(path))
    for n in range(20, 120):
        await add(store, A, said(n))
    found = Counter(transactions(path)[before:])
    await store.close()
    assert found.total() >= 100
    assert found.most_common(1)[0][0] == 4
    assert found[4] >= 85
    assert sum([pages * count for pages, count in found.items()]) <= 4.5 * found.total()
