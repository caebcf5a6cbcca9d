"""Leaving: a child that is deleted or erased tells its parent first, which waits for it.

The news and what is left of its budget are one commit over both sessions. It comes before the
deletion: a process that dies in between leaves a child that nobody waits for, and deleting it again
finishes. The other way round a parent could wait for a child that is gone.
"""

from __future__ import annotations

from typing import Final

from limpet.errors import (
    SessionConflict,
    SessionDeleted,
    SessionEnded,
    SessionErased,
    SessionNotFound,
)
from limpet.model import UPDATE_TRIES_MAX, Commit, Draft, Head, Key
from limpet.model.facts.running import budgets, children
from limpet.model.facts.running.endings import is_untold
from limpet.session.journal import Journal
from limpet.store.protocol import Query

_BY: Final = "system:operator"
_GONE: Final = (SessionNotFound, SessionDeleted, SessionErased)


async def leave(journal: Journal, key: Key) -> None:
    """Tell the parent of this session that it ends, if one waits for it."""
    for left in reversed(range(UPDATE_TRIES_MAX)):
        head = await head_of(journal, key)
        if head is None:  # it is gone, or cannot be read: it can still be deleted
            return
        try:
            return await leave_at(journal, head)
        except SessionConflict:  # it went on meanwhile; perhaps it has told its parent itself
            if not left:
                raise


async def head_of(journal: Journal, key: Key) -> Head | None:
    """The head of a living session, or None. Nothing is opened for it: a sealed session can be
    deleted and erased while the keys of its bodies are out of reach, or gone."""
    query = Query(app=key.app, user=key.user, order="key", reverse=False, prefix=key.id)
    found = (await journal.store.heads(query, cursor=None, limit=1)).items
    return found[0] if found and found[0].key == key else None


async def leave_at(journal: Journal, head: Head) -> None:
    """The same, of a session at this version. Raises SessionConflict if it went on since."""
    parent = children.parent_in(head.facts)
    if parent is None or not is_untold(head.facts):
        return
    back: list[Draft] = []
    if "budget" in head.facts:
        back.append(budgets.returned(head.key.id, budgets.used_up(head.facts)))
    mine = _commit(journal, head.key, [children.delegation_ended(), *back], head)
    released = children.child_released(head.key)
    for news in ([*_ended(head), *back], [released, *back]):  # an ended parent takes its budget
        theirs = [_commit(journal, parent, news)] if news else []
        try:
            await journal.commit((mine, *theirs))
        except (*_GONE, SessionEnded) as error:
            if error.key != parent:  # the child: another call was faster
                return
        else:
            return


def _ended(head: Head) -> list[Draft]:
    """What the parent hears; nothing if it was interrupted with it, and waits no more."""
    found = children.delegation(head.facts)
    if found is not None and found.get("quiet"):
        return []
    return [children.child_ended(head.key, "terminated", summary="deleted", output=None)]


def _commit(journal: Journal, key: Key, drafts: list[Draft], at: Head | None = None) -> Commit:
    prepared = tuple([journal.prepare(each, _BY) for each in drafts])
    if at is None:
        return Commit(key, prepared)
    return Commit(key, prepared, at.version, uid=at.uid)
