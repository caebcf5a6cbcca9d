"""Fork: a new session that goes on from any event of another. Nothing is written to that one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limpet.model import EMPTY, Base, Commit, Fold, Key, Prepared, checksum
from limpet.model.facts.forks import forked
from limpet.session.journal import Journal
from limpet.store.protocol import Committed


async def record_fork(
    journal: Journal,
    parent: tuple[Key, str],
    fold: Fold,
    key: Key,
    *,
    labels: Mapping[str, str] | None,
    actor: str,
) -> tuple[Committed, tuple[Prepared, ...]]:
    """Begin the session `key` on a state of its parent (key and uid), in one commit.

    Its cost grows with the state, not with the history. Raises SessionExists, SessionNotFound.
    """
    sum_, head = checksum(fold.fields), fold.head
    base = Base(parent[0], parent[1], head.version, head.link, fold.fields, fold.versions, sum_)
    named: dict[str, Any] = {"uid": parent[1], "floor": head.version, "checksum": sum_}
    named["schema_version"] = head.schema_version
    fact = forked(key, parent[0], labels=EMPTY if labels is None else labels, **named)
    draft = journal.prepare(fact, actor)
    (committed,) = await journal.commit((Commit(key, (draft,), 0, base=base),))
    return committed, (draft,)
