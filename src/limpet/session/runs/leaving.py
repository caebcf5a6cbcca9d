"""Leaving: the commit in which a child ends, over it and its parent.

The news and what is left of its budget are one commit over both sessions. A child that is deleted
or erased tells its parent before: a process that dies in between leaves a child that nobody waits
for, and deleting it again finishes. The other way round a parent could wait for a child that is
gone. Who the parent is, the child says; whether it has this child, the parent's own log says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import structs

from limpet import errors
from limpet.errors import (
    SessionConflict,
    SessionDeleted,
    SessionEnded,
    SessionErased,
    SessionNotFound,
)
from limpet.model import UPDATE_TRIES_MAX, Commit, Draft, Head, Key, Prepared
from limpet.model.facts.running import budgets, children
from limpet.model.facts.running.endings import is_untold
from limpet.session.journal import Journal
from limpet.store.protocol import Committed, Query

_BY: Final = "system:operator"
_GONE: Final = (SessionNotFound, SessionDeleted, SessionErased, SessionEnded)


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
    if not is_untold(head.facts):
        return
    ended = None
    if not head.facts["delegation"].get("quiet"):  # else its parent was interrupted with it
        how: dict[str, str | None] = {"summary": "deleted", "output": None}
        ended = children.child_ended(head.key, head.uid, "terminated", **how)
    mine = Commit(head.key, (), head.version, uid=head.uid)
    try:
        await end_delegation(
            journal, head, mine, ended, lambda draft: journal.prepare(draft, _BY), by=_BY
        )
    except _GONE as error:
        if error.key != head.key:
            raise
        return  # another call was faster


async def end_delegation(
    journal: Journal,
    head: Head,
    mine: Commit,
    ended: Draft | None,
    prepare: Callable[[Draft], Prepared],
    *,
    by: str,
) -> tuple[Committed, tuple[Prepared, ...]]:
    """Record the end of a child with `mine`, and beside it what its parent accepts of it. Returns
    what was recorded of the child, and its drafts, which `prepare` makes.

    `ended` is the news, recorded by `by`; None: the parent was interrupted with it and waits no
    more. A parent that has ended takes back its budget only. One that is gone, or has no such
    child, takes nothing, and the child keeps what is left.
    """
    found = children.delegation(head.facts)
    assert found is not None
    parent = Key(found["app"], found["user"], found["id"])
    account = budgets.returned(head.key, head.uid, head.facts)
    news = [(account, children.child_released(head.key, head.uid)), (account, None), ()]
    for told in [(account, ended), *news] if ended is not None else news:
        own = [children.delegation_ended(), budgets.given_back(head.facts) if told else None]
        drafts = (*mine.drafts, *[prepare(each) for each in own if each is not None])
        commits = [structs.replace(mine, drafts=drafts)]
        if theirs := tuple([journal.prepare(each, by) for each in told if each is not None]):
            commits.append(Commit(parent, theirs, uid=found.get("uid", "")))
        try:
            committed, *_ = await journal.commit(commits)
        except (*_GONE, errors.ChildNotFound) as error:
            if not theirs or getattr(error, "key", parent) != parent:
                raise
        else:
            return committed, drafts
    raise AssertionError("the last try returns or raises")
