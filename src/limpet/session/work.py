"""The work of a store: who runs which session, what is due, what failed. `lp.work`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, get_args, overload

from msgspec import UNSET, UnsetType

from limpet.errors import (
    InvalidInput,
    InvalidQuery,
    LimpetError,
    SessionConflict,
    SessionError,
    SessionFenced,
)
from limpet.model import DefaultActor, Event, FrozenDict, Head, Key, Lease, described
from limpet.model.facts.running.deaths import DeadReason, dead_reason
from limpet.model.facts.running.endings import is_held
from limpet.model.facts.running.runs import DEAD, is_dead, requeued
from limpet.model.limits import PAGE_MAX
from limpet.session.arguments import (
    AnyKey,
    check_actor,
    check_claim,
    check_lease,
    check_lease_seconds,
    check_limit,
    check_retry_seconds,
    check_sessions,
    check_worker,
    key_of,
)
from limpet.session.loggers import SESSION, lease_lost
from limpet.session.performed import ask_server, server_of
from limpet.session.session import Session
from limpet.session.writer import writer_of
from limpet.store.leases import Leases
from limpet.store.pages import without_departed
from limpet.store.protocol import Page, Query

if TYPE_CHECKING:
    from limpet.session.life.sweep import Swept
    from limpet.session.services import Services
    from limpet.session.session import Session

REASONS: Final = get_args(DeadReason)
_TRIES: Final = 8


class StoreWork:
    """Leases, dead letters and sweeps: `lp.work`."""

    __slots__ = ("_journal", "_services")

    def __init__(self, services: Services) -> None:
        self._services, self._journal = services, services.journal

    async def claim(
        self, worker: str, *, limit: int = 1, lease_seconds: float = 30, app: str | None = None
    ) -> tuple[Lease, ...]:
        """Lease sessions that are due and return the leases: highest priority first, then longest
        due.

        Nobody else is given them until the lease ends. Write with lp.session(key, lease=lease);
        renew the lease in time, release it when done. `lease.claimed_at` is when it was given,
        `lease.timers` the names of the timers that were due then. Raises InvalidInput if the lease
        or the limit is out of bounds.
        """
        work = self._leases()
        check_worker(worker)
        check_lease_seconds(lease_seconds)
        limit, app = check_claim(limit), check_sessions(app)
        return await work.claim(worker, limit=limit, lease_seconds=lease_seconds, app=app)

    @overload
    async def renew(self, lease: Lease, *, lease_seconds: float | None = None) -> Lease: ...

    @overload
    async def renew(
        self, lease: Iterable[Lease], *, lease_seconds: float | None = None
    ) -> tuple[Lease | None, ...]: ...

    async def renew(
        self, lease: Lease | Iterable[Lease], *, lease_seconds: float | None = None
    ) -> Lease | tuple[Lease | None, ...]:
        """Extend the lease and return it: by `lease_seconds` from now, or else by its first length.

        Raises SessionFenced if it is not held any more. Given many leases, all are renewed at once,
        and None stands in the place of each that is lost.
        """
        seconds = None if lease_seconds is None else check_lease_seconds(lease_seconds)
        many = not isinstance(lease, Lease) and isinstance(lease, Iterable)
        leases = tuple(map(check_lease, lease)) if many else (check_lease(lease),)  # type: ignore[arg-type]
        for each in leases if seconds is None else ():
            check_lease_seconds(each.lease_seconds)
        renewed = await self._leases().renew(leases, seconds) if leases else ()
        for before, after in zip(leases, renewed, strict=True):
            if isinstance(after, SessionFenced):
                lease_lost(after, before, "renewal")
            if isinstance(after, LimpetError) and not many:
                raise after
        return tuple([a if isinstance(a, Lease) else None for a in renewed]) if many else renewed[0]  # type: ignore[return-value]

    async def release(self, lease: Lease, *, retry_seconds: float | None = None) -> bool:
        """Release the lease. Return False if it was not held any more.

        With `retry_seconds` no claim is given the session before then, not even if input comes: for
        work that failed, so that others have their turn. `lock` may take it. Without it, a session
        that is still due only for the reason of its claim (timers that are still set, inputs of
        which none was processed) is held back for a second. Raises InvalidInput.
        """
        work = self._leases()
        held = await work.release(check_lease(lease), check_retry_seconds(retry_seconds))
        if not held:
            text = "lease already over: session=%s worker=%s fence=%d"
            SESSION.info(text, lease.key, lease.worker, lease.fence)
        return held

    async def lock(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        worker: str,
        lease_seconds: float = 30,
    ) -> Lease:
        """Lease this session, due or not, and return the lease. Release it with `release`.

        `lease.timers` names the timers that are due. Once released, it is as due as it was. Raises
        SessionLocked if another worker holds it, SessionNotFound, SessionDeleted.
        """
        work = self._leases()
        seconds = check_lease_seconds(lease_seconds)
        return await work.acquire(key_of(key, user, id), check_worker(worker), seconds)

    async def dead_letters(
        self, *, app: str, limit: int = 50, cursor: str | None = None
    ) -> Page[Head]:
        """Return the sessions of an app whose turn or compensation failed on every attempt.

        Each is held until `requeue`. `head.facts["run"]["dead"]` has the code of the error, and
        `s.runs.failure` of the loaded session what it said; of a session that was terminated,
        `head.facts["ending"]["held"]` names the effects that are not undone. Raises InvalidCursor.
        """
        query = Query(app=check_sessions(app), labels=FrozenDict({DEAD: "yes"}))
        page = await self._journal.store.heads(query, cursor=cursor, limit=check_limit(limit))
        return without_departed(page)

    @overload
    async def requeue(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        *,
        actor: str | None = None,
    ) -> Event: ...

    @overload
    async def requeue(
        self,
        *,
        app: str | None = None,
        reason: DeadReason | None = None,
        actor: str | None = None,
    ) -> int: ...

    async def requeue(
        self,
        key: AnyKey | str | UnsetType = UNSET,
        user: str | None = None,
        id: str | None = None,
        *,
        app: str | None = None,
        reason: DeadReason | None = None,
        actor: str | None = None,
    ) -> Event | int:
        """Try a dead letter again, with all its attempts, and return the event that says so.

        Without a key, all dead letters of an app, or of every app, and return how many. `reason` is
        "died" (its process died while it ran nothing else) or "raised"; None: both. Those that are
        suspended, archived or cannot be read are left out: the program's log names them. Raises
        InvalidInput, also if the session is not a dead letter; SessionNotFound.
        """
        by = check_actor(actor) or DefaultActor("system:operator")
        if key is not UNSET:
            if app is not None or reason is not None:
                raise InvalidInput("requeue takes the key of one session, or app= and reason=.")
            return await self._requeue(key_of(key, user, id), by)
        if user is not None or id is not None:
            raise InvalidInput("requeue takes the whole key of a session: app, user and id.")
        if reason is not None and reason not in REASONS:
            raise InvalidInput(f"reason is 'died' or 'raised', not {described(reason)}.")
        if check_sessions(app) is None:
            query = Query(ready="dead")
        else:
            query = Query(app=app, labels=FrozenDict({DEAD: "yes"}))
        count, cursor = 0, None
        while True:
            page = await self._journal.store.heads(query, cursor=cursor, limit=PAGE_MAX)
            for head in without_departed(page).items:
                if reason in (None, dead_reason(head.facts) or "raised"):
                    count += await self._requeue_again(head.key, by)
            if (cursor := page.cursor) is None:
                return count

    async def _requeue_again(self, key: Key, by: str) -> bool:
        """Requeue one of many; False if somebody else was faster, or if it takes no more work for
        now, as a suspended one: the others do not wait for it."""
        for left in reversed(range(_TRIES)):
            try:
                await self._requeue(key, by)
            except SessionConflict:  # input has come meanwhile
                if not left:
                    raise
            except (InvalidInput, SessionError) as error:
                SESSION.info("not requeued: session=%s code=%s", key, error.code)
                return False
            else:
                return True
        raise AssertionError("the last try returns or raises")

    async def _requeue(self, key: Key, by: str) -> Event:
        session: Session[Any] = Session(self._services, key)
        await session.refresh(tail=0)
        facts = session.head.facts
        if not is_dead(facts) and not is_held(facts):
            raise InvalidInput(f"session {session.key} is not a dead letter. Send it an input.")
        prepared = self._journal.prepare(requeued(), by)
        return (await writer_of(session).commit((prepared,), session.version))[0]

    async def sweep(self, *, limit: int = 1_000) -> Swept:
        """Act on every timeout that has passed, for at most `limit` sessions; return what was done.

        An idle session is suspended, one past its absolute timeout or its grace is terminated, one
        past its expiry is deleted, and one that was suspended for idleness and has input since is
        resumed. A leased session is left for the next sweep. Any number of processes may sweep one
        store: each session is dealt with once. What cannot be done is in `failed`. Raises
        StoreError if the store itself fails.
        """
        from limpet.session.life.sweep import Sweep

        if type(limit) is not int or limit < 1:
            raise InvalidInput(f"limit is how many sessions to deal with, not {described(limit)}.")
        if (server := server_of(self._journal)) is not None:
            swept: Swept = await ask_server(server, "sweep", limit)
            return swept
        return await Sweep(*await self._services.sweeping()).run(limit)

    def _leases(self) -> Leases:
        store = self._journal.store
        if not isinstance(store, Leases):
            raise InvalidQuery("this store does not support leases")
        return store
