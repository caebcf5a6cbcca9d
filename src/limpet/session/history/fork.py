"""Fork: a new session that goes on from any event of another. Nothing is written to that one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limpet.model import EMPTY, Base, Commit, Fold, Head, Key, Prepared, checksum
from limpet.model.facts.forks import forked, inherited
from limpet.session.journal import Journal
from limpet.store.protocol import Committed


async def record_fork(
    journal: Journal,
    parent: Head,
    fold: Fold,
    key: Key,
    *,
    labels: Mapping[str, str] | None,
    actor: str,
) -> tuple[Committed, tuple[Prepared, ...]]:
    """Begin the session `key` on a state of its parent, in one commit.

    What the parent may not do now, the fork may not do, at whichever event it begins: `parent` is
    its newest head. The cost grows with the state, not with the history. Raises SessionExists,
    SessionNotFound.
    """
    sum_, head = checksum(fold.fields), fold.head
    of = (parent.key, parent.uid, head.version, head.link)
    base = Base(*of, fold.fields, fold.versions, sum_)
    named: dict[str, Any] = {"uid": parent.uid, "floor": head.version, "checksum": sum_}
    named |= {"schema_version": head.schema_version, "inherits": inherited(parent.facts)}
    fact = forked(key, parent.key, labels=EMPTY if labels is None else labels, **named)
    draft = journal.prepare(fact, actor)
    (committed,) = await journal.commit((Commit(key, (draft,), 0, base=base),))
    return committed, (draft,)
