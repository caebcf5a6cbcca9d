"""Names in memory: which events name a field, and who changed a shared name since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from limpet.model import Event, Key, ScopeKey, scope_of
from limpet.store.memory.log import MemoryLog
from limpet.store.memory.tables import MemoryTables
from limpet.store.paging import page
from limpet.store.protocol import NameSince


class Naming(MemoryTables):
    """What `limpet.store.protocol.Store` promises of names."""

    async def naming(
        self, key: Key, name: str, *, before: int, after: int, limit: int
    ) -> tuple[Event, ...]:
        kept = self._present(key)
        seqs = range(min(before - 1, kept.fold.head.version), after, -1)
        found = (seq for seq in seqs if _names(kept, seq, name))
        return page(kept.sized(seq) for seq in islice(found, limit))

    async def names_since(self, key: Key, seq: int, names: Sequence[str]) -> dict[str, NameSince]:
        kept, last = self._present(key), self._last_us()
        found = {name: self._since(kept, key, seq, name, last) for name in names}
        return {name: since for name, since in found.items() if since is not None}

    def _last_us(self) -> dict[str, int | None]:
        """When the sessions whose logs are gone were last written to, by uid; None: they are not
        gone. Of one that was erased nobody knows."""
        ended = [log.fold.head for logs in self._deleted.values() for log in logs]
        found: dict[str, int | None] = {head.uid: head.updated_us for head in ended}
        return found | {log.fold.head.uid: None for log in self._kept.values()}

    def _since(
        self, kept: MemoryLog, key: Key, seq: int, name: str, last: Mapping[str, int | None]
    ) -> NameSince | None:
        of: ScopeKey = (key.app, "" if scope_of(name) == "app" else key.user, name)
        values, at_us = self._scopes.get(of, []), kept.event(seq).at_us
        first, others = 0, False
        for version, (uid, by, when_us) in reversed([*enumerate(self._made_by.get(of, []), 1)]):
            if uid == kept.fold.head.uid:
                if by <= seq:
                    break
                first = version
            elif uid in last and (last[uid] or when_us) < at_us:
                break
            else:
                others = True
        if not first:
            return None
        return NameSince(values[first - 2] if first > 1 else None, len(values), others)


def _names(kept: MemoryLog, seq: int, name: str) -> bool:
    return any([op.path[0] == name for op in kept.event(seq).ops])
