"""Bringing a database of google-adk into a store: `limpet import-adk`. Needs no google-adk.

Event ids are kept, so a run that was interrupted goes on where it was: what is there is a beginning
of what ADK has. ADK's database is only read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

import limpet
from limpet import Key, Limpet, LimpetError, SessionConflict, StoreError
from limpet.adapters import adk_events as ours
from limpet.adapters import adk_log as log
from limpet.adapters.adk_source import Row, Source, Stored, open_source
from limpet.errors import EventTooLarge, InvalidValue

IMPORTER: Final = "system:import-adk"
_TYPE: Final = "adk.imported"
_BATCH: Final = 200  # ADK events in one commit
_NAMES: Final = 500  # shared names in one commit
_CARRIER: Final = "import-adk"  # the id of a session through which shared names are written
_REFUSED_MAX: Final = 1_000


class Imported(msgspec.Struct, frozen=True):
    """What an import has brought. Nothing, if the store had everything."""

    sessions: int  # that were sent events, or were created
    events: int  # of ADK
    names: int  # app: and user: keys that the store did not have
    refused: tuple[limpet.Refused, ...] = ()  # the first 1,000
    refusals: int = 0

    @property
    def ok(self) -> bool:
        return not self.refusals


async def import_adk(
    url: str, lp: Limpet, *, progress: Callable[[int, int], None] | None = None
) -> Imported:
    """Bring all sessions of the ADK database at `url` into the store that `lp` has open.

    A session that was written to on both sides is refused and left as it is; the others go on. Safe
    to interrupt and run again. Raises InvalidURL if it is not a database of ADK.
    """
    async with open_source(url) as source:
        run = _Import(source, lp, progress)
        await run.names()
        await run.sessions()
        return run.result()


class _Import:
    """One import under way."""

    def __init__(self, source: Source, lp: Limpet, progress: Any) -> None:
        self._source, self._lp, self._progress = source, lp, progress
        self._done = self._sessions = self._events = self._names = self._refusals = 0
        self._refused: list[limpet.Refused] = []

    def result(self) -> Imported:
        refused = tuple(self._refused)
        return Imported(self._sessions, self._events, self._names, refused, self._refusals)

    async def names(self) -> None:
        """app: and user: keys, where the store has none of that name."""
        for app, user, state in await self._source.shared():
            prefix = "user:" if user else "app:"
            there = await self._lp.names(app, user or None)
            named = {ours.stored_name(f"{prefix}{name}"): v for name, v in state.items()}
            missing = {name: value for name, value in named.items() if name not in there}
            try:
                await self._write(Key(app, user or _CARRIER, _CARRIER), missing)
            except StoreError:
                raise
            except LimpetError as error:
                self._refuse(f"{prefix} keys of {app}/{user}", error)

    async def sessions(self) -> None:
        """Every session, in the order of their last updates."""
        total = await self._source.count()
        for row in await self._source.sessions():
            stored = await self._source.read(row)
            if stored is None:
                continue
            try:
                await self._session(row, stored)
            except StoreError:
                raise  # of the store, not of this session: nothing more can be brought
            except LimpetError as error:
                self._refuse(f"{row.app}/{row.user}/{row.id}", error)
            self._done += len(stored.events)
            if self._progress is not None:
                self._progress(self._done, max(total, self._done))

    async def _session(self, row: Row, stored: Stored) -> None:
        key = Key(row.app, row.user, row.id.strip())
        events = [ours.without_temp(event) for event in stored.events]
        session = await self._begun(key, stored.state, events)
        there = await _ids(session)
        ids = [str(event["id"]) for event in events]
        if there[: len(ids)] == ids:
            if len(there) > len(ids):
                return  # it was brought over before, and went on here
        elif ids[: len(there)] != there:
            raise SessionConflict(key, "log", len(there), session.version)
        await self._send(session, events[len(there) :])
        await _settle(session, stored.state, len(ids))

    async def _begun(
        self, key: Key, state: Mapping[str, Any], events: Sequence[Mapping[str, Any]]
    ) -> limpet.Session[Any]:
        """The session, created with the state that no event accounts for."""
        found: limpet.Session[Any] | None = await self._lp.find(key, tail=0, actor=IMPORTER)
        if found is not None:
            return found
        changed = {name for event in events for name in ours.delta_of(event)}
        begin = ours.stored_state({n: v for n, v in state.items() if n not in changed})
        self._sessions += 1
        made: limpet.Session[Any]
        made = await self._lp.create(key.app, key.user, key.id, state=begin, actor=IMPORTER)
        return made

    async def _send(self, session: limpet.Session[Any], events: list[dict[str, Any]]) -> None:
        for start in range(0, len(events), _BATCH):
            batch = events[start : start + _BATCH]
            drafts = [d for e in batch for d in ours.drafts_of(e, session.user, shared=False)]
            try:
                await session.append_many(drafts, expect=session.version)
            except (InvalidValue, EventTooLarge, limpet.errors.CommitTooLarge):
                for event in batch:  # each in the form that can hold it
                    await log.recorded(session, event, [], session.version, shared=False)
            self._events += len(batch)

    async def _write(self, key: Key, names: Mapping[str, Any]) -> None:
        """Set shared names through a session that is deleted afterwards."""
        if not names:
            return
        await self._lp.delete(key)  # of a run that was interrupted
        carrier = await self._lp.create(*_parts(key), actor=IMPORTER, reuse_deleted=True)
        entries = list(names.items())
        try:
            for start in range(0, len(entries), _NAMES):
                some = dict(entries[start : start + _NAMES])
                await carrier.append(_TYPE, set=some)
                self._names += len(some)
        finally:
            await self._lp.delete(key)

    def _refuse(self, what: str, error: LimpetError) -> None:
        self._refusals += 1
        if len(self._refused) < _REFUSED_MAX:
            self._refused.append(limpet.Refused(what, error.code, str(error)))


async def _ids(session: limpet.Session[Any]) -> list[str]:
    """The ids of the ADK events that a session has."""
    return [event.id async for event in log.forwards(session) if ours.is_whole(event)]


async def _settle(session: limpet.Session[Any], state: Mapping[str, Any], count: int) -> None:
    """Make the state what ADK had stored, and the messages of the past no pending input."""
    await session.refresh(tail=0)
    wanted = ours.stored_state(
        {n: v for n, v in state.items() if not n.startswith(("app:", "user:"))}
    )
    shared = ("app:", "user:", ours.UPDATED)
    own = {n: v for n, v in session.values.items() if not n.startswith(shared)}
    changed = {n: v for n, v in wanted.items() if n not in own or own[n] != v}
    gone = [name for name in own if name not in wanted]
    if changed or gone:
        data = {"events": count}
        await session.append(_TYPE, data, set=changed, delete=gone, expect=session.version)
    while inputs := await session.pending(limit=1_000):
        await session.mark_processed([event.seq for event in inputs])


def _parts(key: Key) -> tuple[str, str, str]:
    return key.app, key.user, key.id
