"""Finding sessions: pages of heads, and many sessions at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from limpet.errors import InvalidQuery
from limpet.model import PAGE_MAX, FrozenDict, Key, described
from limpet.model.facts.archive import is_stub
from limpet.session.arguments import (
    AnyKey,
    check_flag,
    check_limit,
    check_sessions,
    check_tail,
    key_of,
    moment_us,
)
from limpet.session.door import Door
from limpet.session.session import Session
from limpet.store.paging import cursor as cursors
from limpet.store.protocol import Order, Page, Query, scope_fields


class Listing(Door):
    """What there is in a store."""

    async def get_many(
        self, keys: Iterable[AnyKey], *, tail: int = 20, actor: str | None = None
    ) -> tuple[Session[Mapping[str, Any]] | None, ...]:
        """Many sessions at once, as get gives each, in the order of the keys; None: not there, or
        archived.

        In as few round trips as the store can, up to 1,000 keys. Each is read from one instant, all
        of them from several. Typed state is read and not changed; use get for that.
        """
        if isinstance(keys, str) or not isinstance(keys, Iterable):
            raise InvalidQuery(f"get_many takes a list of keys, not {described(keys)}")
        wanted = [key_of(key) for key in keys]
        if len(wanted) > PAGE_MAX:
            raise InvalidQuery(
                f"it asks for {len(wanted):,} keys at once; the limit is {PAGE_MAX:,}"
            )
        found = await self._journal.store.load_many(wanted, tail=check_tail(tail))
        sessions: list[Session[Mapping[str, Any]] | None] = []
        for key, loaded in zip(wanted, found, strict=True):
            if loaded is None or is_stub(loaded.head.facts):
                sessions.append(None)
                continue
            session: Session[Mapping[str, Any]] = Session(self._journal, key, actor=actor)
            session.writer.known.take(loaded)
            sessions.append(session)
        return tuple(sessions)

    async def names(self, app: str, user: str | None = None) -> Mapping[str, Any]:
        """The app: names of an app, and the user: names of a user, without any session of theirs.

        Read-only, as `values` of a session shows them. A name that cannot be read is left out.
        """
        from limpet.session.move.adopter import names_in

        Key(app, "any" if user is None else user, "any")  # refuses what could not be one
        names = names_in(self._journal)
        owners = ("",) if user is None else ("", user)
        found = [scope_fields(await names.names_of(str(check_sessions(app)), o)) for o in owners]
        return FrozenDict({name: value for each in found for name, value in each.items()})

    async def list(
        self,
        *,
        app: str | None = None,
        user: str | None = None,
        labels: Mapping[str, str] | None = None,
        order: Order = "created",
        reverse: bool = True,
        prefix: str = "",
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        updated_after: datetime | None = None,
        schema_version: str | None = None,
        deleted: bool = False,
        state: bool = False,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        """A page of heads, newest first; `page.cursor` leads to the next.

        By app, by app and user, or by labels ({"plan": "gold"}); in order of creation, of last
        update (for an app or a user), or of their keys (order="key": of an app, or of a user with
        the `prefix` of their ids; descending unless reverse=False). Between times, and of one
        schema version, in any of these orders. A page may be short, even empty, before the last: go
        on while there is a cursor.

        `deleted=True` lists what is left of deleted sessions, in the order of their keys: heads
        with key, uid, version, link, times and `deleted_at`. `state=True` also reads states:
        `page.states[key]` is what `values` of a loaded session would show, without temp: names.
        A session with an unreadable event is in `page.damaged` instead.
        """
        check_flag("deleted", deleted)
        check_flag("state", state)
        if deleted and state:
            raise InvalidQuery("a deleted session has no state: leave out state=True")
        query = Query(
            app=check_sessions(app),
            user=user,
            labels=cursors.labels(labels),
            order=order,
            reverse=reverse,
            prefix=prefix,
            created_after_us=moment_us("created_after", created_after),
            created_before_us=moment_us("created_before", created_before),
            updated_after_us=moment_us("updated_after", updated_after),
            schema_version=schema_version,
            deleted=deleted,
        )
        store, limit = self._journal.store, check_limit(limit)
        return await store.heads(query, cursor=cursor, limit=limit, states=state)
