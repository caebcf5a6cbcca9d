"""Looking after a store: read its clock, verify, examine, migrate, back up, delete and erase."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import structs

from limpet.errors import (
    SealUnavailable,
    SessionError,
)
from limpet.model import PAGE_MAX, Head, Key, to_time
from limpet.model.facts.running.children import parent_in
from limpet.session.arguments import (
    AnyKey,
    check_forks,
    key_of,
)
from limpet.session.door import Door
from limpet.session.runs.delegation import head_of, notify_parent
from limpet.store.protocol import (
    Erasure,
    Erasures,
    Forks,
    Query,
)

if TYPE_CHECKING:
    pass


class Care(Door):
    """What is done for a store rather than in its sessions."""

    def now(self) -> datetime:
        """The time by the store's clock (UTC), without I/O, as a new event is dated.

        Compare recorded times with it. On PostgreSQL it is the server's time as its replies tell
        it, which may differ from this machine's.
        """
        return to_time(self._journal.now_us())

    async def delete(
        self, key: AnyKey | str, user: str | None = None, id: str | None = None, /
    ) -> bool:
        """Delete the session's log. Its key stays taken. False if there was nothing to delete.

        A session that waits for it as its child learns that it has ended.
        """
        from limpet.session.life.archiving import end_session
        from limpet.session.life.memory import forget_memory

        key = key_of(key, user, id)
        await notify_parent(self._journal, key)
        await self._forget_files(key)
        await forget_memory(self._journal, key)
        deleted = await end_session(self._journal, key)
        await self._forget_files(key)  # of checkpoints that were made meanwhile
        self._journal.hub.touch(key)
        return deleted

    async def erase(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        forks: Forks = "refuse",
    ) -> Erasure | None:
        """Forget the session: nothing of it can be read from the store afterwards.

        A SQLite file is rewritten, so that nothing is left in its pages either, which takes
        time by its size. Raises StoreBusy if a reader of another process keeps old pages alive too
        long: the session is erased then, and calling again finishes the overwriting. A PostgreSQL
        server keeps the bytes until it vacuums and its WAL and backups are recycled.

        If other sessions are forks of it, SessionHasForks names them. forks="erase" erases them
        too; forks="keep" leaves them the state they began on, and they read the events before
        that as removed. A session that waits for it as its child learns that it has ended.
        """
        from limpet.session.life import archiving
        from limpet.session.life.memory import forget_memory

        key = key_of(key, user, id)
        check_forks(forks)
        store, hub = self._journal.store, self._journal.hub
        children = () if forks == "keep" else await store.forks(key)
        gone = await self._below(key) if forks == "erase" else [] if children else [key]
        if gone:  # else it is refused
            for each in gone:
                if (head := await head_of(self._journal, each)) is not None:
                    await archiving.remove_file(self._journal, head)
            await notify_parent(self._journal, key)
        await self._forget_files(*gone)
        for each in gone:
            await forget_memory(self._journal, each, promoted=True)
        erasure = await store.erase(key, forks=forks)
        await self._forget_files(*gone)  # of checkpoints that were made meanwhile
        for each in gone:  # and of what was archived meanwhile, or was on its way
            await archiving.forget_moves(self._journal, each, erased=True)
            await archiving.remove_unnamed(self._journal, each)
        for each in (key, *children):
            hub.touch(each)
        return erasure

    async def _below(self, key: Key) -> list[Key]:
        """The session, its forks, and theirs."""
        found = {key: None}
        for each in (waiting := [key]):
            new = [fork for fork in await self._journal.store.forks(each) if fork not in found]
            found |= dict.fromkeys(new)
            waiting += new
        return list(found)

    async def _forget_files(self, *keys: Key) -> None:
        """What ends has no checkpoints in other places either. Raises ArchiveFailed."""
        from limpet.session.history.checkpoints import store_checkpoints

        for key in keys:
            await store_checkpoints(self._journal).tiers.forget(key.app, key.user, key.id)

    async def erase_user(self, app: str, user: str) -> Erasures:
        """Forget a user of an app: every session, deleted ones too, and every user: name.

        All at once as far as readers can see, and a SQLite file is rewritten once. The certificate
        counts sessions and names, and names the forks of other users, which keep the state they
        began on. Documents of the user are erased too; app: names stay. Sessions of other apps that
        wait for one of these as their child learn that it has ended. Those that these delegated to
        in other apps stay and are named in `children`: erase the user there too. Repeating it is
        harmless and finishes what was interrupted. Raises StoreBusy as `erase` does.
        """
        from limpet.session.history.checkpoints import store_checkpoints
        from limpet.session.life import archiving

        of = key_of(Key(app, user, "any"))  # refuses what could not be one
        store, hub = self._journal.store, self._journal.hub
        query, cursor = Query(app=of.app, user=of.user), None
        ended: list[Key] = []
        children: list[Key] = []
        waited: list[Key] = []  # for by sessions of other apps, which stay
        while True:
            page = await store.heads(query, cursor=cursor, limit=PAGE_MAX)
            ended += [head.key for head in page.items]
            waited += [head.key for head in page.items if _works_for_another_app(head)]
            for head in page.items:
                children += await self._children(head)
                await archiving.remove_file(self._journal, head)
            cursor = page.cursor
            if cursor is None:
                break
        for key in waited:
            await notify_parent(self._journal, key)
        tiers = store_checkpoints(self._journal).tiers
        await tiers.forget(of.app, of.user)
        erasures = await store.erase_user(of.app, of.user)
        await tiers.forget(of.app, of.user)  # of checkpoints that were made meanwhile
        await archiving.forget_user(self._journal, of.app, of.user)
        for key in ended:
            hub.touch(key)
        left = [key for key in dict.fromkeys(children) if await head_of(self._journal, key)]
        return structs.replace(erasures, children=tuple(left))

    async def _children(self, head: Head) -> list[Key]:
        """Those that work for this session in other apps, and those that work for them."""
        from limpet.session.runs.delegation import children_elsewhere

        found: dict[Key, None] = {}
        heads = [head]
        for each in heads:  # grows as it is walked
            try:
                below = await children_elsewhere(self._journal, each)
            except (SealUnavailable, SessionError):  # what cannot be read can still be erased
                continue
            new = [key for key in below if key not in found and key != head.key]
            found |= dict.fromkeys(new)
            heads += [at for key in new if (at := await head_of(self._journal, key)) is not None]
        own = (head.key.app, head.key.user)
        return [key for key in found if (key.app, key.user) != own]


def _works_for_another_app(head: Head) -> bool:
    parent = parent_in(head.facts)
    return parent is not None and (parent.app, parent.user) != (head.key.app, head.key.user)
