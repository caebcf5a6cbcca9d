"""ADK events as our events, and back; how they are recorded in a log and read from it.

One ADK event becomes one of our events that carries it whole under `adk`, described in our own
vocabulary: a message, a tool call or a tool result. If it says several of these things at once, the
others follow it in the same commit, without `adk`. It is carried as JSON text: text holds every
number that ADK can write, and ADK reads it back in one pass. Needs no google-adk.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

import limpet
from limpet import Draft, Event, Key, Limpet, SessionConflict, facts
from limpet.errors import EventTooLarge, InvalidValue
from limpet.model import DefaultActor
from limpet.session.journal import Tries
from limpet.store.pages import each_page

ACTOR: Final = DefaultActor("agent:adk")
_log: Final = logging.getLogger("limpet.adapters.adk")
_PAGE: Final = 1_000
# Others may record these types beside ADK without making its session objects stale.
_BESIDE: Final = ("session.", "span.", "audit.", "budget.", "checkpoint.")
WHOLE: Final = "adk"  # the ADK event, as JSON text
AS_BLOB: Final = "adk_blob"  # the Ref of the same: it is too large for an event
OTHER: Final = "adk.event"  # says nothing that our vocabulary has a word for
TEMP: Final = "temp:"
UPDATED: Final = "%updated"  # in state: the time of the last update. No key of ADK's is kept so
_SHARED: Final = ("app:", "user:")
_CUT_CHARS: Final = 16_384  # of a text that describes what cannot be held itself
_INT_MAX: Final = 2**63 - 1
_ID_CHARS: Final = 256
# Names in state: ADK takes any text, we keep ':' for scopes and refuse padding and control marks.
_PLAIN: Final = re.compile(r"[\w.\-]+").fullmatch
_UNFIT: Final = re.compile(r"[%:\x00-\x1f\x7f]|\A\s|\s\Z")
_ESCAPED: Final = re.compile(r"%u([0-9A-F]{4})|%([0-9A-F]{2})")
_EMPTY: Final = "%"


def stored_name(name: str) -> str:
    """The name under which a key of ADK's state is kept. Ordinary names are kept as they are."""
    for prefix in _SHARED:
        if name.startswith(prefix):
            return prefix + _escape(name[len(prefix) :])
    return _escape(name)


def adk_name(name: str) -> str:
    """The key of ADK's state that is kept under this name."""
    if "%" not in name:
        return name
    for prefix in _SHARED:
        if name.startswith(prefix):
            return prefix + _unescape(name[len(prefix) :])
    return _unescape(name)


def adk_state(values: Mapping[str, Any]) -> dict[str, Any]:
    """State as ADK shows it: a plain dict that its owner may change."""
    return {adk_name(n): copy.deepcopy(value) for n, value in values.items() if n != UPDATED}


def updated_at(values: Mapping[str, Any], recorded: float) -> float:
    """The time of the last update as ADK has it; when it was recorded, if nothing says so."""
    updated = values.get(UPDATED)
    return float(updated) if isinstance(updated, (int, float)) else recorded


def later(before: float, timestamp: Any) -> float:
    """The time of the last update after an event: its own, unless time would run backwards."""
    known = isinstance(timestamp, (int, float)) and math.isfinite(timestamp)
    return max(before, float(timestamp)) if known else before


def stored_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a new session. temp: keys are never kept."""
    return {stored_name(k): v for k, v in state.items() if not k.startswith(TEMP)}


def drafts_of(
    event: Mapping[str, Any],
    user: str,
    *,
    cut: bool = False,
    blob: Any = None,
    shared: bool = True,
    updated: float | None = None,
) -> list[Draft]:
    """The drafts that record an ADK event, given in its JSON form without temp: keys.

    The first holds it, or the Ref of the `blob` that does. With `cut`, it is described without the
    numbers that plain values cannot hold, and without long texts. Without `shared`, its changes to
    app: and user: names are not made. `updated` is the time of the last update from now on.
    """
    whole = {WHOLE: text_of(event)} if blob is None else {AS_BLOB: blob}
    changes = {
        stored_name(name): value
        for name, value in delta_of(event).items()
        if shared or not name.startswith(_SHARED)
    }
    if updated is not None:
        changes[UPDATED] = updated
    (kind, data), *more = _parts_of(_cut(event) if cut or blob is not None else event)
    common: dict[str, Any] = {"actor": _actor(event, user)}
    common["invocation_id"] = _fit(event.get("invocation_id"))
    first = str(event["id"])
    drafts = [Draft(type=kind, data={**data, **whole}, set=changes, id=first, **common)]
    for number, (kind, data) in enumerate(more, 1):
        drafts.append(Draft(type=kind, data=data, id=f"{first}/{number}", cause=first, **common))
    return drafts


def text_of(event: Mapping[str, Any]) -> str:
    """An ADK event as JSON text.

    The fast encoder writes null for numbers that are not finite and refuses others. So where it
    does, the other one is asked, which writes every number; and escapes a lone surrogate, which
    UTF-8 cannot encode.
    """
    try:
        raw = msgspec.json.encode(event)
    except (OverflowError, UnicodeEncodeError):
        return json.dumps(event)
    return json.dumps(event) if b"null" in raw else raw.decode()


def is_whole(event: Event) -> bool:
    """True if an event of ours holds an ADK event."""
    data = event.data
    return data is not None and (WHOLE in data or AS_BLOB in data)


def delta_of(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """The changes that an ADK event makes to state."""
    actions = event.get("actions") or {}
    delta: Mapping[str, Any] = actions.get("state_delta") or {}
    return delta


def without_temp(event: dict[str, Any]) -> dict[str, Any]:
    """The same ADK event without temp: keys, which another store may have kept."""
    delta = delta_of(event)
    if not any(name.startswith(TEMP) for name in delta):
        return event
    kept = {name: value for name, value in delta.items() if not name.startswith(TEMP)}
    return {**event, "actions": {**event["actions"], "state_delta": kept}}


# --- what an event says -------------------------------------------------------------------------
def _parts_of(event: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Types and data in our vocabulary, in the order of ADK's parts; one at least."""
    parts = (event.get("content") or {}).get("parts") or []
    spoken = [said for number, part in enumerate(parts) if (said := _part(number, part))]
    described: list[tuple[str, dict[str, Any]]] = []
    if spoken:
        kind = "user.message" if event.get("author") == "user" else "agent.message"
        described.append((kind, _message(event, spoken)))
    elif used := _usage(event):  # its answer is a call, and its tokens count all the same
        described.append(("agent.message", {"text": "", **_named_model(event), **used}))
    for number, part in enumerate(parts):
        described += _tool_events(part, f"{event['id']}:{number}")
    return described or [(OTHER, {})]


def _part(number: int, part: Mapping[str, Any]) -> dict[str, Any] | None:
    """A part of a message. Its bytes stay where they are, in part `number` of ADK's content."""
    if part.get("thought"):
        return None
    if part.get("text"):
        return {"type": "text", "text": part["text"]}
    for name in ("inline_data", "file_data"):
        if content := part.get(name):
            media = str(content.get("mime_type") or "application/octet-stream")
            kind = "image" if media.startswith("image/") else "file"
            described = {"type": kind, "media_type": media, "part": number}
            return (
                {**described, "uri": content["file_uri"]} if content.get("file_uri") else described
            )
    for name in ("executable_code", "code_execution_result"):
        if part.get(name):
            return {"type": "data", "data": {name: part[name]}}
    return None


def _message(event: Mapping[str, Any], spoken: list[dict[str, Any]]) -> dict[str, Any]:
    only = spoken[0] if len(spoken) == 1 else {}
    data: dict[str, Any] = {"text": only["text"]} if "text" in only else {"content": spoken}
    return {**data, **_named_model(event), **_usage(event)}


def _named_model(event: Mapping[str, Any]) -> dict[str, Any]:
    return {"model": event["model_version"]} if event.get("model_version") else {}


def _usage(event: Mapping[str, Any]) -> dict[str, Any]:
    counts = event.get("usage_metadata") or {}
    usage = {
        "input": counts.get("prompt_token_count"),
        "output": counts.get("candidates_token_count"),
        "cache_read": counts.get("cached_content_token_count"),
    }
    known = {name: count for name, count in usage.items() if count is not None}
    return {"usage": known} if known else {}


def _tool_events(part: Mapping[str, Any], otherwise: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if call := part.get("function_call"):
        request = {"request_id": call.get("id") or otherwise, "name": call.get("name") or ""}
        yield "agent.tool_use", {**request, "input": call.get("args") or {}}
    if answer := part.get("function_response"):
        request = {"request_id": answer.get("id") or otherwise, "name": answer.get("name") or ""}
        output = answer.get("response")
        failed = isinstance(output, Mapping) and bool(output.get("error"))
        yield (
            "agent.tool_result",
            {**request, "output": output, **({"is_error": True} if failed else {})},
        )


def _actor(event: Mapping[str, Any], user: str) -> str:
    author = str(event.get("author") or "").strip()
    if author == "user":
        return DefaultActor(f"user:{user}")
    if not author.isprintable() or len(author) > _ID_CHARS:  # ADK's own stays within the event
        author = "".join([c if c.isprintable() else "?" for c in author[:_ID_CHARS]]).strip()
    return DefaultActor(f"agent:{author or 'adk'}")


def _fit(id: Any) -> str | None:
    """An id that is fit to stand beside the event; ADK's own stays within it in any case."""
    fits = isinstance(id, str) and 0 < len(id) <= _ID_CHARS and id.isprintable()
    return id if fits and id == id.strip() else None


def _cut(value: Any) -> Any:
    """A description that can be stored of what cannot: long texts cut, odd numbers left out."""
    match value:
        case str():
            short = value if len(value) <= _CUT_CHARS else value[:_CUT_CHARS] + "…"
            return short.encode(errors="replace").decode()
        case float() if not math.isfinite(value):
            return None
        case int() if not -_INT_MAX <= value <= _INT_MAX:
            return str(value)
        case Mapping():
            return {_cut(name): _cut(inner) for name, inner in value.items()}
        case list():
            return [_cut(inner) for inner in value]
    return value


def _escape(name: str) -> str:
    if _PLAIN(name):
        return name
    return _UNFIT.sub(_mark, name) or _EMPTY


def _mark(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"%{code:02X}" if code < 256 else f"%u{code:04X}"


def _unescape(name: str) -> str:
    if name == _EMPTY:
        return ""
    return _ESCAPED.sub(lambda match: chr(int(match[1] or match[2], 16)), name)


# --- writing ------------------------------------------------------------------------------------
async def record_event(
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
    cut, blob = False, None
    while True:
        own = drafts_of(whole, handle.key.user, cut=cut, blob=blob, shared=shared, updated=updated)
        try:
            return await _commit(handle, [*own, *more], version)
        except InvalidValue:
            if cut or blob is not None:
                raise  # it is a value of state that cannot be stored
            cut = True
        except EventTooLarge:
            if blob is not None:
                raise
            content = text_of(whole).encode()
            ref = await handle.blobs.put(content, "application/json")
            cut, blob = False, ref.data


async def _commit(
    handle: limpet.Session[Any], drafts: list[Draft], version: int
) -> tuple[limpet.Event, ...]:
    """Record the drafts on this version, or on a later one that differs in nothing ADK sees."""
    async for left in Tries():
        try:
            return await handle.append_many(drafts, expect=version)
        except SessionConflict as error:
            newer = await _unchanged_version(handle, version)
            if newer is None or newer == version or not left:
                raise error
            version = newer
    raise AssertionError("the last try returns or raises")


async def _unchanged_version(handle: limpet.Session[Any], version: int) -> int | None:
    """The newest version, if since `version` only labels, timers and the like were recorded."""
    while page := await handle.read(after=version, limit=_PAGE):
        if any(event.ops or not event.type.startswith(_BESIDE) for event in page):
            return None
        version = page[-1].seq
    return version


async def processed_fact(
    handle: limpet.Session[Any], whole: Mapping[str, Any], version: int
) -> list[Draft]:
    """The fact that a final answer has dealt with the user's messages before it."""
    if not whole.get("content"):
        return []
    seqs = [event.seq for event in await handle.pending(limit=_PAGE) if event.seq <= version]
    if not seqs:
        return []
    return [replace(facts.processed(seqs), id=f"{whole['id']}/processed", actor=ACTOR)]


async def restore_initial_state(
    handle: limpet.Session[Any], whole: dict[str, Any], target: str
) -> dict[str, Any]:
    """Restore the initial values that a rewind to before the invocation `target` would delete.

    ADK computes a rewind from the events it knows. The state that a session was created with is
    not among them, so it would delete that state. Here it is put back into the event's changes.
    """
    delta = whole["actions"]["state_delta"]
    if not any(value is None for value in delta.values()):
        return {}
    begin: dict[str, Any] = {}
    async for event in forwards(handle):
        if event.type == "session.created":
            begin = {adk_name(str(op.path[0])): op.value for op in event.ops}  # type: ignore[union-attr]
        elif is_whole(event):
            whole_event = json.loads(await text_in(handle, event))
            if whole_event.get("invocation_id") == target:
                break
            begin = {n: v for n, v in begin.items() if n not in delta_of(whole_event)}
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
        if is_whole(event):
            newest = event.id
            break
    if newest != last:
        raise SessionConflict(key, "session", "another", stored.version)
    return stored.version


async def list_sessions(
    lp: Limpet, app: str, user: str | None
) -> list[tuple[limpet.Head, Mapping[str, Any]]]:
    """Heads and states of all sessions. In the order of creation, which no write changes."""
    sessions: list[tuple[limpet.Head, Mapping[str, Any]]] = []
    async for page in each_page(
        lambda at: lp.list(app=app, user=user, state=True, reverse=False, limit=_PAGE, cursor=at)
    ):
        for head in page.items:
            state = page.states.get(head.key)
            if state is None:  # it has an event that cannot be read: what the others made
                damaged = await lp.find(head.key, tail=0)
                state = {} if damaged is None else damaged.values
            sessions.append((head, state))
    return sessions


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
    if AS_BLOB in event.data:
        return (await session.blobs.get(event.data[AS_BLOB])).decode()
    return str(event.data[WHOLE])
