"""Names in memory: which events name a field, and who changed a shared name since."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from limpet.model import Event, Key, ScopeKey, scope_of
from limpet.store.memory.log import Log
from limpet.store.memory.tables import Tables
from limpet.store.paging import page
from limpet.store.protocol import NameSince


class Naming(Tables):
    """What `limpet.store.protocol.Store` promises of names."""

    async def naming(
        self, key: Key, name: str, *, before: int, after: int, limit: int
    ) -> tuple[Event, ...]:
        kept = self._present(key)
        seqs = range(min(before - 1, kept.fold.head.version), after, -1)
        found = (seq for seq in seqs if _names(kept, seq, name))
        return page(kept.sized(seq) for seq in islice(found, limit))

    async def names_since(self, key: Key, seq: int, names: Sequence[str]) -> dict[str, NameSince]:
        kept = self._present(key)
        found = {name: self._since(kept, key, seq, name) for name in names}
        return {name: since for name, since in found.items() if since is not None}

    def _since(self, kept: Log, key: Key, seq: int, name: str) -> NameSince | None:
        of: ScopeKey = (key.app, "" if scope_of(name) == "app" else key.user, name)
        values, at_us = self._scopes.get(of, []), kept.event(seq).at_us
        first, others = 0, False
        for version, (uid, by, when_us) in reversed([*enumerate(self._made_by.get(of, []), 1)]):
            if uid == kept.fold.head.uid:
                if by <= seq:
                    break
                first = version
            elif when_us < at_us:
                break
            else:
                others = True
        if not first:
            return None
        return NameSince(values[first - 2] if first > 1 else None, len(values), others)


def _names(kept: Log, seq: int, name: str) -> bool:
    return any([op.path[0] == name for op in kept.event(seq).ops])
