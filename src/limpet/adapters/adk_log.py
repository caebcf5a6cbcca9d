"""ADK events in the log of a session: how they are recorded, and how they are read back.

Needs no google-adk: events are given and returned in their JSON form. `adk_events` has what one of
them looks like.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final

from msgspec.structs import replace

import limpet
from limpet import Draft, Key, Limpet, SessionConflict, facts
from limpet.adapters import adk_events as ours
from limpet.errors import EventTooLarge, InvalidValue

ACTOR: Final = "agent:adk"
_log: Final = logging.getLogger("limpet.adapters.adk")
_PAGE: Final = 1_000
_TRIES_MAX: Final = 16
# What others may record beside ADK without making its session objects stale.
_BESIDE: Final = ("session.", "span.", "audit.", "budget.", "checkpoint.")


# --- writing ------------------------------------------------------------------------------------


async def recorded(
    handle: limpet.Session[Any],
    whole: dict[str, Any],
    more: list[Draft],
    version: int,
    *,
    shared: bool = True,
    updated: float | None = None,
) -> tuple[limpet.Event, ...]:
    """Record an ADK event in the form that can hold it. A form that cannot is refused before
    anything is written."""
    how: dict[str, Any] = {"shared": shared}
    while True:
        drafts = [*ours.drafts_of(whole, handle.key.user, updated=updated, **how), *more]
        try:
            return await _commit(handle, drafts, version)
        except InvalidValue:
            if len(how) > 1:
                raise  # it is a value of state that cannot be stored
            how = {"shared": shared, "cut": True}
        except EventTooLarge:
            if "blob" in how:
                raise
            content = ours.text_of(whole).encode()
            ref = await handle.blobs.put(content, "application/json")
            how = {"shared": shared, "blob": ref.data}


async def _commit(
    handle: limpet.Session[Any], drafts: list[Draft], version: int
) -> tuple[limpet.Event, ...]:
    """Record the drafts on this version, or on a later one that differs in nothing ADK sees."""
    for _ in range(_TRIES_MAX):
        try:
            return await handle.append_many(drafts, expect=version)
        except SessionConflict as error:
            newer = await _unchanged_until(handle, version)
            if newer is None or newer == version:
                raise error
            version = newer
    return await handle.append_many(drafts, expect=version)


async def _unchanged_until(handle: limpet.Session[Any], version: int) -> int | None:
    """The newest version, if since `version` only labels, timers and the like were recorded."""
    while page := await handle.read(after=version, limit=_PAGE):
        if any(event.ops or not event.type.startswith(_BESIDE) for event in page):
            return None
        version = page[-1].seq
    return version


async def processed(
    handle: limpet.Session[Any], whole: Mapping[str, Any], version: int
) -> list[Draft]:
    """The fact that a final answer has dealt with the user's messages before it."""
    if not whole.get("content"):
        return []
    seqs = [event.seq for event in await handle.pending(limit=_PAGE) if event.seq <= version]
    return (
        [replace(facts.processed(seqs), id=f"{whole['id']}/processed", actor=ACTOR)] if seqs else []
    )


async def restored(
    handle: limpet.Session[Any], whole: dict[str, Any], target: str
) -> dict[str, Any]:
    """What a rewind to before the invocation `target` has to leave as it was at creation.

    ADK computes a rewind from the events it knows. The state that a session was created with is
    not among them, so it would delete that state. Here it is put back into the event's changes.
    """
    delta = whole["actions"]["state_delta"]
    if not any(value is None for value in delta.values()):
        return {}
    begin: dict[str, Any] = {}
    async for event in forwards(handle):
        if event.type == "session.created":
            begin = {ours.adk_name(str(op.path[0])): op.value for op in event.ops}  # type: ignore[union-attr]
        elif ours.is_whole(event):
            found = json.loads(await text_in(handle, event))
            if found.get("invocation_id") == target:
                break
            begin = {n: v for n, v in begin.items() if n not in ours.delta_of(found)}
    kept = {
        name: copy.deepcopy(begin[name]) for name, v in delta.items() if v is None and name in begin
    }
    delta.update(kept)
    return kept


# --- reading ------------------------------------------------------------------------------------


async def version_with(lp: Limpet, key: Key, last: str | None) -> int:
    """The version of a session whose newest ADK event is `last`, if that is so.

    Raises SessionConflict if another is the newest.
    """
    stored = await lp.get(key, tail=100)
    newest: str | None = None
    async for event in backwards(stored, 100):
        if ours.is_whole(event):
            newest = event.id
            break
    if newest != last:
        raise SessionConflict(key, "session", "another", stored.version)
    return stored.version


async def listed(
    lp: Limpet, app: str, user: str | None
) -> list[tuple[limpet.Head, Mapping[str, Any]]]:
    """Heads and states of all sessions. In the order of creation, which no write changes."""
    found: list[tuple[limpet.Head, Mapping[str, Any]]] = []
    cursor: str | None = None
    while True:
        how: dict[str, Any] = {"reverse": False, "limit": _PAGE, "cursor": cursor}
        page = await lp.list(app=app, user=user, state=True, **how)
        for head in page.items:
            state = page.states.get(head.key)
            if state is None:  # it has an event that cannot be read: what the others made
                damaged = await lp.find(head.key, tail=0)
                state = {} if damaged is None else damaged.values
            found.append((head, state))
        cursor = page.cursor
        if cursor is None:
            return found


async def backwards(session: limpet.Session[Any], page: int) -> AsyncIterator[limpet.Event]:
    """The events of a session as it was loaded, the newest first."""
    events: Iterable[limpet.Event] = reversed(session.events)
    before = session.version + 1
    while True:
        for event in events:
            before = event.seq
            if event.damage is None:
                yield event
            else:
                _log.warning("event %d of %s cannot be read: left out", event.seq, session.key)
        if before <= 1:
            return
        events = await session.read(before=before, limit=max(page, 20))
        if not events:
            return


async def forwards(session: limpet.Session[Any]) -> AsyncIterator[limpet.Event]:
    after = 0
    while page := await session.read(after=after, limit=_PAGE):
        for event in page:
            yield event
        after = page[-1].seq


async def text_in(session: limpet.Session[Any], event: limpet.Event) -> str:
    """The JSON text of the ADK event in one of ours."""
    if ours.AS_BLOB in event.data:
        return (await session.blobs.get(event.data[ours.AS_BLOB])).decode()
    return str(event.data[ours.WHOLE])
