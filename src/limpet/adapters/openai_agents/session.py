"""LimpetSession: a conversation of openai-agents as one session of ours.

Each call is one commit or one reading, run where the store is, so a LimpetSession may be used from
any thread and any event loop. Sessions of one URL share a store in the whole process: a program
makes a LimpetSession for each conversation, often for each request, and one writer gathers what all
of them add. Beside a handle on the session, nothing is kept between calls but which user messages
this object has added and not seen answered.

The log keeps every item. `view.popped` takes the newest item out of view, `view.cleared` all that
were recorded before it. What they do follows from their type and their place alone, so a writer
need not look before it pops, and damage to one body changes nothing else.
"""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeAlias

import msgspec

from limpet import Draft, Event, Key, Limpet, Session, facts
from limpet.adapters.shared_store import release_store, store_for
from limpet.errors import (
    CommitTooLarge,
    EventTooLarge,
    ExtraMissing,
    InvalidInput,
    InvalidValue,
    NotPending,
    SessionExists,
    SessionNotFound,
)
from limpet.model import DefaultActor
from limpet.session.conversation.timeline import CLEARED, POPPED, popped_seqs

Item: TypeAlias = dict[str, Any]

MEMBER: Final = "openai_agents"  # of an event's data: the framework's item, as JSON text
PLACE: Final = "openai_agents_text"  # where in the item the text of the event belongs
USE: Final = "agent.tool_use"
RESULT: Final = "agent.tool_result"
OTHER: Final = "agent.item"  # reasoning, hosted tools, and what later versions bring
_ITEM_TYPES: Final[Mapping[Any, str]] = {
    "user": "user.message",
    "system": "system.message",
    "developer": "system.message",
    "assistant": "agent.message",
}
INPUTS: Final = ("user.message", "system.message")  # what waits for an agent
_ROLES: Final = {"user.message": "user", "system.message": "system", "agent.message": "assistant"}
ITEMS: Final = (*_ROLES, USE, RESULT, OTHER)
_TEXTS: Final = ("input_text", "output_text", "text")
_CHARS_MIN: Final = 64  # of a text that is not kept twice
_json: Final = json.JSONEncoder(ensure_ascii=False).encode  # dumps would make one for every item
_PLACES: Final[Mapping[str, tuple[Any, ...]]] = {
    "output": ("output",),
    "content": ("content",),
    "part": ("content", 0, "text"),
}
_ACTOR: Final = DefaultActor("agent:openai-agents")
_UNFIT: Final = (InvalidValue, EventTooLarge, CommitTooLarge)
_PENDING_MAX: Final = 1_000  # user messages that one commit marks as answered
_TYPES: Final = (*ITEMS, POPPED, CLEARED)
_PAGE: Final = 1_000
try:
    from agents.memory import SessionSettings
    from agents.memory.session_settings import coerce_session_settings, resolve_session_limit
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "agents":
        raise
    raise ExtraMissing("openai-agents", "openai-agents") from error


class LimpetSession:
    """A Session of openai-agents that is kept in a Limpet.

    `store` is a URL, opened at the first use and shared with all sessions of that URL in this
    process; or an open Limpet, which is used on its own event loop. `session_settings` is a
    SessionSettings or a dict. `app` and `user` are the first parts of its key.
    """

    def __init__(
        self,
        session_id: str,
        store: str | Limpet,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        *,
        app: str = "openai-agents",
        user: str = "default",
    ) -> None:
        self.key = Key(app, user, session_id)
        self.session_id = session_id
        given = SessionSettings() if session_settings is None else session_settings
        self.session_settings: SessionSettings | None = coerce_session_settings(given)
        self._store = store_for(self, store)
        self._handle: tuple[Limpet, Session[Any]] | None = None
        self._lock = threading.Lock()  # over the next: calls come from several threads
        # Seqs of user messages without an answer. None: not read yet, others may have left some.
        self._waiting: list[int] | None = None

    def __repr__(self) -> str:
        return f"<LimpetSession {self.key}>"

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """The newest `limit` items in view, the oldest first; without a limit, all of them.

        The limit of session_settings holds where none is given. An item that cannot be read is
        left out, and does not count.
        """
        most = resolve_session_limit(limit, self.session_settings)
        if most is not None and type(most) is not int:
            raise InvalidInput(f"limit is {most!r}. Pass a whole number, or None for all items.")
        if most is not None and most <= 0:
            return []
        return await self._store.run(lambda lp: newest_items(self._session(lp), most))

    async def add_items(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Add all of the items, in order, or none: one commit, durable when it returns.

        The session is created by its first items. Raises InvalidValue if an item is not JSON, and
        SessionDeleted if somebody has deleted the session.
        """
        drafts = [self._draft(item) for item in items]
        if drafts:
            await self._store.run(lambda lp: self._add(lp, drafts))

    async def pop_item(self) -> Item | None:
        """Take the newest item out of view and return it; None if nothing is in view.

        The log keeps it. Of several who pop at once, each gets an item of its own. Items that
        cannot be read are popped on the way.
        """
        return await self._store.run(self._pop)

    async def clear_session(self) -> None:
        """Take every item out of view. The log keeps them: see Limpet.erase to remove them."""
        await self._store.run(self._clear)

    async def close(self) -> None:
        """Close the store that a URL has opened, unless other sessions of this process use it."""
        await release_store(self, self._store)

    async def __aenter__(self) -> LimpetSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- private --------------------------------------------------------------------------------

    def _draft(self, item: Mapping[str, Any]) -> Draft:
        if type(item) is not dict and not isinstance(item, Mapping):
            raise InvalidInput(f"an item is a dict, not {type(item).__name__}. Pass dicts.")
        return draft_of(item, self.key.user)

    # All that follows runs on an event loop of the store.

    def _session(self, lp: Limpet) -> Session[Any]:
        """The handle, as long as it is of this Limpet: other event loops have another."""
        known = self._handle
        if known is None or known[0] is not lp:
            known = self._handle = (lp, lp.session(self.key, actor=_ACTOR))
        return known[1]

    async def _add(self, lp: Limpet, drafts: list[Draft]) -> None:
        try:
            if self._waiting == [] and not any([draft.type in INPUTS for draft in drafts]):
                await self._write(lp, drafts, [])  # in the middle of a run: nobody waits for it
            else:
                await self._record(lp, drafts)
        except _UNFIT:  # it may be what stands beside the items: then they go without
            await self._record(lp, [bare(draft) for draft in drafts])

    async def _pop(self, lp: Limpet) -> Item | None:
        session = self._session(lp)
        while await newest_event(session) is not None:  # or nothing is recorded
            pop = await session.append(POPPED)
            taken = await newest_event(session, before=pop.seq)
            if taken is None:  # another was faster, and popped the last
                return None
            if (item := item_of(taken)) is not None:
                return item
        return None

    async def _clear(self, lp: Limpet) -> None:
        if await newest_event(self._session(lp)) is not None:
            self._forget()  # nobody will answer what is out of view, whoever added it
            await self._record(lp, [Draft(type=CLEARED, actor=_ACTOR)])

    async def _record(self, lp: Limpet, drafts: list[Draft]) -> None:
        """Record the drafts in one commit. What an agent says answers the user messages before."""
        inputs = [n for n, draft in enumerate(drafts) if draft.type in INPUTS]
        last = max([n for n, draft in enumerate(drafts) if draft.type not in INPUTS], default=-1)
        answered = await self._take_waiting(lp) if last >= 0 else []
        try:
            events = await self._write(lp, drafts, answered)
        except BaseException:
            if answered:  # or they would wait until another object looks for them
                self._forget()
            raise
        with self._lock:
            if self._waiting is not None:
                self._waiting += [events[n].seq for n in inputs if n > last]
        if within := [events[n].seq for n in inputs if n < last]:
            await self._mark(lp, within)

    async def _take_waiting(self, lp: Limpet) -> list[int]:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        return await self._pending(lp) if waiting is None else waiting

    async def _pending(self, lp: Limpet) -> list[int]:
        try:
            events = await self._session(lp).pending(limit=_PENDING_MAX)
        except SessionNotFound:
            return []
        return [event.seq for event in events]

    async def _mark(self, lp: Limpet, seqs: list[int]) -> None:
        """User messages that were added together with their answers."""
        try:
            await self._session(lp).mark_processed(seqs)
        except NotPending:  # another session has seen to it
            self._forget()

    def _forget(self) -> None:
        """Read what is waiting again, the next time."""
        with self._lock:
            self._waiting = None

    async def _write(
        self, lp: Limpet, drafts: list[Draft], answered: list[int]
    ) -> tuple[Event, ...]:
        while True:
            try:
                if not answered:
                    return await self._session(lp).append_many(drafts)
                return await self._commit(lp, drafts, answered)
            except NotPending:  # another has marked some of them: what is left of them is fewer
                still = set(await self._pending(lp))
                answered = [seq for seq in answered if seq in still]
            except SessionNotFound:
                try:
                    return await self._commit(lp, drafts, answered, new=True)
                except SessionExists:  # another was faster
                    continue

    async def _commit(
        self, lp: Limpet, drafts: list[Draft], answered: list[int], *, new: bool = False
    ) -> tuple[Event, ...]:
        async with lp.commit() as c:
            app, user, id = self.key.app, self.key.user, self.key.id
            session = c.create(app, user, id, actor=_ACTOR) if new else self._session(lp)
            for draft in drafts:
                c.append(session, draft.type, draft.data, actor=draft.actor)
            if answered:
                c.record(session, facts.processed(answered, actor=_ACTOR))
        return c.events[1:] if new else c.events


async def newest_items(session: Session[Any], most: int | None) -> list[Item]:
    """The newest items in view, the oldest first. One that cannot be read is left out."""
    items: list[Item] = []
    async with aclosing(_events_in_view(session, page=most)) as events:
        async for event in events:
            if (item := item_of(event)) is not None:
                items.append(item)
                if len(items) == most:
                    break
    items.reverse()
    return items


async def newest_event(session: Session[Any], *, before: int | None = None) -> Event | None:
    """The event of the newest item in view, now or just before a seq; None if there is none."""
    async with aclosing(_events_in_view(session, before=before, page=1)) as events:
        return await anext(events, None)


async def _events_in_view(
    session: Session[Any], *, before: int | None = None, page: int | None = None
) -> AsyncGenerator[Event, None]:
    """The events of items in view, the newest first.

    A log only grows, so the pages together are the view as it was at the first of them.
    """
    popped, limit = 0, min(page or _PAGE, _PAGE)
    named: set[int] = set()  # by pops that name what they take
    while events := await _read(session, before, limit):
        for event in events:
            if event.type == CLEARED:
                return
            if event.type == POPPED and (seqs := popped_seqs(event)):
                named |= seqs
            elif event.type == POPPED:
                popped += 1
            elif event.seq in named:
                continue
            elif popped:
                popped -= 1
            else:
                yield event
        before = events[-1].seq
        if before <= 2:  # the first event of a session is its creation
            return
        limit = min(2 * limit + 16, _PAGE)


async def _read(session: Session[Any], before: int | None, limit: int) -> tuple[Event, ...]:
    try:
        return await session.read(before=before, limit=limit, reverse=True, types=_TYPES)
    except SessionNotFound:  # nobody has written to it yet
        return ()


# --- items ---------------------------------------------------------------------------------------


def draft_of(item: Mapping[str, Any], user: str) -> Draft:
    """The event that records an item, as it is now. Raises InvalidValue if it is not JSON."""
    type = _type_of(item)
    data = {**_request(type, item), **_said(type, item)}
    if type == "user.message" and not data:  # it says nothing that is a text or a list of parts
        data["content"] = []
    place = _place_of(type, item, data)
    try:
        text = _json(_with_text(item, _PLACES[place], "") if place else item)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue("the item", f"cannot be written as JSON: {error}") from error
    data[MEMBER] = text
    if place:
        data[PLACE] = place
    actor = DefaultActor(f"user:{user}" if type == "user.message" else "agent:openai-agents")
    return Draft(type=type, data=data, actor=actor)


def bare(draft: Draft) -> Draft:
    """The same with the item alone, in ASCII, and what names it: for what does not fit otherwise.

    What a model wrote may be no value of ours, or too large to stand in an event twice.
    """
    data = {name: draft.data[name] for name in ("request_id", "name") if name in draft.data}
    data |= {"content": []} if draft.type == "user.message" else {}  # it stands in the item alone
    text = json.dumps(_whole(draft.type, draft.data))
    return Draft(type=draft.type, data={**data, MEMBER: text}, actor=draft.actor)


def item_of(event: Event) -> Item | None:
    """The item that an event records; None if it cannot be read, or says nothing."""
    if event.data is None:
        return None
    if not isinstance(event.data.get(MEMBER), str):
        return _nearest_item(event)
    try:
        item = _whole(event.type, event.data)
    except (IndexError, KeyError, TypeError, ValueError):
        return None
    return item if isinstance(item, dict) else None


# --- a text that is kept once -------------------------------------------------------------------


def _place_of(type: str, item: Mapping[str, Any], data: Mapping[str, Any]) -> str | None:
    """Return where the item has the text that is in the event's data; None if it is kept in
    both."""
    text = data.get(_member_of(type))
    if not isinstance(text, str) or len(text) < _CHARS_MIN:
        return None
    if type == RESULT:
        return "output"
    content = item.get("content")
    if not isinstance(content, list):
        return "content"
    return "part" if content[0].get("text") == text else None  # or it is a refusal


def _member_of(type: str) -> str:
    return "output" if type == RESULT else "text"


def _with_text(item: Any, place: Sequence[Any], text: str) -> Any:
    """A copy of an item with another text in its place. Raises if it has no such place."""
    if not place:
        return text
    inner = _with_text(item[place[0]], place[1:], text)
    if isinstance(item, list):
        return [inner, *item[1:]]
    return {**item, place[0]: inner}


def _whole(type: str, data: Mapping[str, Any]) -> Any:
    """The item again, with its text. Raises if it cannot be read."""
    item = json.loads(data[MEMBER])
    place = data.get(PLACE)
    return _with_text(item, _PLACES[place], data[_member_of(type)]) if place else item


# --- an item as data of ours --------------------------------------------------------------------


def _type_of(item: Mapping[str, Any]) -> str:
    kind = item.get("type")
    if kind in (None, "message"):
        return _ITEM_TYPES.get(item.get("role"), OTHER)
    if isinstance(kind, str) and isinstance(item.get("call_id"), str):
        if kind.endswith("_output"):
            return RESULT
        if kind.endswith("_call"):
            return USE
    return OTHER  # a hosted tool has no call_id: its outcome is within the item


def _request(type: str, item: Mapping[str, Any]) -> dict[str, Any]:
    if type == USE:
        name = item.get("name")
        named = name if isinstance(name, str) and name else str(item["type"])
        return {"request_id": item["call_id"], "name": named}
    return {"request_id": item["call_id"]} if type == RESULT else {}


def _said(type: str, item: Mapping[str, Any]) -> dict[str, Any]:
    if type == USE:
        return {"input": _input(item)}
    if type == RESULT:
        return {"output": item.get("output")}
    return {} if type == OTHER else _content(item.get("content"))


def _input(item: Mapping[str, Any]) -> Any:
    """The input of a tool call. Arguments are the text that a model wrote: not always JSON."""
    given = item.get("arguments", item.get("input", item.get("action", {})))
    if not isinstance(given, str):
        return given
    try:
        parsed = msgspec.json.decode(given)
    except msgspec.DecodeError:
        return {"input": given}
    return parsed if isinstance(parsed, dict) else {"input": parsed}


def _content(content: Any) -> dict[str, Any]:
    if not isinstance(content, list):
        return {"text": content} if isinstance(content, str) else {}
    parts = [_part(part) for part in content]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return {"text": parts[0]["text"]}
    return {"content": parts}


def _part(part: Any) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in _TEXTS and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return {"type": "text", "text": part["refusal"]}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        return {"type": "image", **_image(part["image_url"])}
    if kind == "input_file":
        return {**part, "type": "file"}
    return {"type": "data", "data": part}


def _image(url: str) -> dict[str, str]:
    """An image in its URL as data and media type, as other models want it."""
    head, comma, data = url.partition(";base64,")
    if not comma or not head.startswith("data:"):
        return {"url": url}
    return {"media_type": head.removeprefix("data:"), "data": data}


# --- data of ours as an item --------------------------------------------------------------------


def _nearest_item(event: Event) -> Item | None:
    """The nearest item to an event that another door recorded."""
    data, id = event.data, event.data.get("request_id") or event.id
    if event.type == USE:
        call: Item = {"type": "function_call", "call_id": id, "name": str(data.get("name", "tool"))}
        return {**call, "arguments": json.dumps(data.get("input", {}))}
    if event.type == RESULT:
        output = data.get("output")
        text = output if isinstance(output, str) else json.dumps(output)
        return {"type": "function_call_output", "call_id": id, "output": text}
    role, text = _ROLES.get(event.type), _text(data)
    return {"role": role, "content": text} if role and text else None


def _text(data: Mapping[str, Any]) -> str:
    """The text of a message, or of its parts."""
    content = data.get("content")
    given = content if isinstance(content, list) else [content or data.get("text")]
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in given]
    return "\n".join([text for text in texts if isinstance(text, str)])
