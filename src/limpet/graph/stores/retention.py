"""Retention: how many completed invocations a checkpointer keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from limpet.graph.checkpoint import is_over, keep_of
from limpet.graph.stores.documents import Documents

_PAGE: Final = 100  # records that one page reads


class Retention:
    """Deletes the completed invocations that were saved longest ago, beyond the newest `keep`.

    Those that were resumed as one that has completed count too. Invocations that run or are
    suspended are never deleted. What other processes complete, and what was resumed, is seen when
    the list is read again, after `keep` invocations of this one.
    """

    def __init__(self, documents: Documents, keep: int | None) -> None:
        self._documents, self._keep = documents, keep_of(keep)
        self._kept: list[str] | None = None  # the one that was completed first is first
        self._since_read = 0

    async def completed(self, invocation_id: str) -> None:
        """One more invocation is complete: delete what is too many."""
        if self._keep is None:
            return
        if self._kept is None or self._since_read >= self._keep:
            self._kept, self._since_read = await self._read(), 0
        elif invocation_id not in self._kept:
            self._kept.append(invocation_id)
        self._since_read += 1
        while len(self._kept) > self._keep:
            await self._documents.delete(self._kept.pop(0))

    async def _read(self) -> list[str]:
        found: list[tuple[int, str]] = []
        documents: dict[str, Mapping[str, Any]] = {}
        cursor = None
        while True:
            page = await self._documents.page(limit=_PAGE, cursor=cursor, state=True)
            found += [(head.updated_us, head.key.id) for head in page.items]
            documents |= {head.key.id: page.states.get(head.key, {}) for head in page.items}
            cursor = page.cursor
            if cursor is None:
                return [id for _, id in sorted(found) if is_over(id, documents)]
