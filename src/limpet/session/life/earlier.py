"""What builds before 0.1.0 kept in collections that programs may use: the doctor points it out.

Limpet reads these documents from reserved apps now. Moving them by itself would take documents of a
program for its own.
"""

from __future__ import annotations

from typing import Final

from limpet.store.protocol import Check, Query, Store

_POLICIES: Final = ("checkpointing", "retention", "learnings", "curated", "gates")
_MEMORY: Final = ("session/", "episodic/", "own/", "promoted/", "semantic/", "procedural/")
_ADVICE: Final = (
    "If a build before 0.1.0 has put them there, say policies and gates again "
    "(lp.policies.checkpointing, lp.policies.retention, lp.policies.gates), and put what "
    "sessions remember again: "
    "lp.documents('memory', owner=(app, user)).list() shows it, s.memory.session.put keeps it. "
    "Then delete the old documents."
)


async def earlier_documents(store: Store) -> tuple[Check, ...]:
    """A warning if there are documents where Limpet does not read its own any more."""
    found = [name for name in _POLICIES if await _has(store, name)]
    if await _has_memory(store):
        found.append("memory")
    if not found:
        return ()
    text = f"documents in {', '.join(sorted(found))} are not read by Limpet itself"
    return (Check("collections", text, "warning", _ADVICE),)


async def _has(store: Store, collection: str) -> bool:
    query = Query(app=f"${collection}", order="key", reverse=False)
    return bool((await store.heads(query, cursor=None, limit=1)).items)


async def _has_memory(store: Store) -> bool:
    """Whether the first of them have the names that Limpet gave to what sessions remember."""
    query = Query(app="$memory", order="key", reverse=False)
    page = await store.heads(query, cursor=None, limit=100)
    return any([head.key.id.startswith(_MEMORY) for head in page.items])
