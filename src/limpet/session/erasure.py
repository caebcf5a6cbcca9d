"""Deleting and erasing: a session, or a user, with everything that is kept of it elsewhere.

Checkpoints in other places, memory, files in the archive and waiting parents are looked after
before the log goes, and once more afterwards, for what was made meanwhile.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from limpet.errors import SealUnavailable, SessionError
from limpet.model import DefaultActor, Head, Key
from limpet.model.facts.phases import is_stub
from limpet.model.facts.running.children import parent_in
from limpet.session.arguments import key_of
from limpet.session.journal import Journal
from limpet.session.performed import ask_server, server_of
from limpet.session.provenance import ErasureCount
from limpet.session.runs.delegation import head_of, notify_parent
from limpet.session.services import Services
from limpet.session.sharing import Given, live_shares_given, notify_targets
from limpet.store.pages import each_head
from limpet.store.protocol import Erasure, Erasures, Forks, Query

_OPERATOR: Final = DefaultActor("system:operator")


async def delete_session(services: Services, key: Key) -> bool:
    """Delete the session's log: see `Limpet.delete`."""
    from limpet.session.life.archive import end_session
    from limpet.session.life.memory import forget_memory

    journal = services.journal
    if (server := server_of(journal)) is not None:
        deleted: bool = await ask_server(server, "delete", key)
        journal.hub.touch(key)
        return deleted
    head = await head_of(journal, key)
    if head is not None:  # what it left here says where it is
        head.check_here()
    await notify_parent(journal, key)
    given = await _live_shares(journal, key)
    await _forget_checkpoints(journal, key)
    await forget_memory(journal, key)
    deleted = await end_session(services, key)
    if journal.mirror is not None:
        await journal.mirror.remove([key])
    await notify_targets(journal, given, _OPERATOR)
    await _forget_checkpoints(journal, key)  # of checkpoints that were made meanwhile
    journal.hub.touch(key)
    return deleted


async def erase_session(services: Services, key: Key, forks: Forks, by: str) -> Erasure | None:
    """Erase the session: see `Limpet.erase`."""
    from limpet.session.life import archive as archiving
    from limpet.session.life.memory import erase_memory
    from limpet.session.move.mover import erase_moves
    from limpet.session.runs.promotion import erase_contributions

    journal = services.journal
    store, hub = journal.store, journal.hub
    if (server := server_of(journal)) is not None:
        erased: Erasure | None = await ask_server(server, "erase", key, forks, by)
        hub.touch(key)
        return erased
    children = () if forks == "keep" else await store.forks(key)
    gone = await _below(journal, key) if forks == "erase" else [] if children else [key]
    count = ErasureCount("session", key, by)
    given: dict[str, Given] = {}
    if gone:  # else it is refused
        for each in gone:
            given |= await _live_shares(journal, each)
            if (head := await _last_head(journal, each)) is not None:
                count.add(head)
                count.files += await archiving.remove_file(services, head)
        await notify_parent(journal, key)
    await _forget_checkpoints(journal, *gone)
    for each in gone:
        count.documents += await erase_memory(journal, each)
    count.documents += await erase_contributions(journal, *gone)
    if journal.provenance is not None:
        await journal.provenance.begin_certificate(count)
    erasure = await store.erase(key, forks=forks)
    if journal.mirror is not None and erasure is not None:
        await journal.mirror.remove(gone or [key])
    await notify_targets(journal, given, _OPERATOR)
    if erasure is not None and journal.provenance is not None:
        certificate = await journal.provenance.certify(count, erasure)
        erasure = structs.replace(erasure, certificate=certificate)
    await _forget_checkpoints(journal, *gone)  # of checkpoints that were made meanwhile
    await erase_contributions(journal, *gone)  # and of what was proposed meanwhile
    for each in gone:  # and of what was archived meanwhile, or was on its way
        await erase_moves(services, each)
        await archiving.forget_moves(services, each, erased=True)
        await archiving.remove_unnamed(services, each)
    for each in (key, *children):
        hub.touch(each)
    return erasure


async def erase_user(services: Services, app: str, user: str, by: str) -> Erasures:
    """Erase everything of a user of an app: see `Limpet.erase_user`."""
    from limpet.session.history.checkpoints import store_checkpoints
    from limpet.session.life import archive as archiving
    from limpet.session.runs.promotion import erase_contributions

    of = key_of(Key(app, user, "any"))  # refuses what could not be one
    journal = services.journal
    store, hub = journal.store, journal.hub
    if (server := server_of(journal)) is not None:
        gone: Erasures = await ask_server(server, "erase_user", of.app, of.user, by)
        hub.ring()
        return gone
    ended: list[Key] = []
    children: list[Key] = []
    waited: list[Key] = []  # for by sessions of other apps, which stay
    count = ErasureCount("user", Key(of.app, of.user, "*"), by)
    contributed: list[Key] = []
    async for head in each_head(store, Query(app=of.app, user=of.user, deleted=True)):
        count.add(head)
        contributed.append(head.key)
    async for head in each_head(store, Query(app=of.app, user=of.user)):
        ended.append(head.key)
        count.add(head)
        if _works_for_another_app(head):
            waited.append(head.key)
        children += await _children(journal, head)
        count.files += await archiving.remove_file(services, head)
    for key in waited:
        await notify_parent(journal, key)
    contributed = list(dict.fromkeys([*contributed, *ended]))
    await erase_contributions(journal, *contributed)
    tiers = store_checkpoints(journal).tiers
    await tiers.forget(of.app, of.user)
    if journal.provenance is not None:
        await journal.provenance.begin_certificate(count)
    erasures = await store.erase_user(of.app, of.user)
    if journal.mirror is not None:
        await journal.mirror.remove_user(of.app, of.user)
    count.names, count.documents = erasures.names, len(erasures.logs)
    if journal.provenance is not None:
        certificate = await journal.provenance.certify(count, erasures.user)
        erasures = structs.replace(erasures, certificate=certificate)
    await tiers.forget(of.app, of.user)  # of checkpoints that were made meanwhile
    await erase_contributions(journal, *contributed)  # and of what was proposed meanwhile
    await archiving.forget_user(services, of.app, of.user)
    for key in ended:
        hub.touch(key)
    left = [key for key in dict.fromkeys(children) if await head_of(journal, key)]
    return structs.replace(erasures, children=tuple(left))


async def _last_head(journal: Journal, key: Key) -> Head | None:
    """Return the head of a session, also of one that was deleted."""
    if (head := await head_of(journal, key)) is not None:
        return head
    query = Query(app=key.app, user=key.user, prefix=key.id, deleted=True, reverse=False)
    async for dead in each_head(journal.store, query):
        if dead.key == key:
            return dead
    return None


async def _live_shares(journal: Journal, key: Key) -> dict[str, Given]:
    """Return the live shares that a session has granted; none of one whose log cannot be read."""
    head = await head_of(journal, key)
    if head is None or is_stub(head.facts):
        return {}
    try:
        return await live_shares_given(journal.store, head)
    except (SealUnavailable, SessionError):
        return {}


async def _below(journal: Journal, key: Key) -> list[Key]:
    """Return the session, its forks, and theirs."""
    below = {key: None}
    for each in (waiting := [key]):
        new = [fork for fork in await journal.store.forks(each) if fork not in below]
        below |= dict.fromkeys(new)
        waiting += new
    return list(below)


async def _forget_checkpoints(journal: Journal, *keys: Key) -> None:
    """Remove the checkpoints of these sessions from other places. Raises ArchiveFailed."""
    from limpet.session.history.checkpoints import store_checkpoints

    for key in keys:
        await store_checkpoints(journal).tiers.forget(key.app, key.user, key.id)


async def _children(journal: Journal, head: Head) -> list[Key]:
    """Return those that work for this session in other apps, and those that work for them."""
    from limpet.session.runs.delegation import children_elsewhere

    children: dict[Key, None] = {}
    heads = [head]
    for each in heads:  # grows as it is walked
        try:
            below = await children_elsewhere(journal, each)
        except (SealUnavailable, SessionError):  # what cannot be read can still be erased
            continue
        new = [key for key in below if key not in children and key != head.key]
        children |= dict.fromkeys(new)
        heads += [at for key in new if (at := await head_of(journal, key)) is not None]
    own = (head.key.app, head.key.user)
    return [key for key in children if (key.app, key.user) != own]


def _works_for_another_app(head: Head) -> bool:
    parent = parent_in(head.facts)
    return parent is not None and (parent.app, parent.user) != (head.key.app, head.key.user)
