"""LimpetSessionStore: transcripts of the Claude Agent SDK in a Limpet.

The SDK hands over batches of entries as its process writes them, and asks for them again when a
conversation resumes, on this machine or another. A batch is one commit; an entry's uuid makes a
repeated batch harmless. The summary that the SDK lists sessions with is folded in the same commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from limpet import Head, Key, Limpet, ops
from limpet.adapters import claude_transcripts as transcripts
from limpet.adapters.claude_harness import as_harness
from limpet.adapters.shared_store import release_store, store_for
from limpet.adapters.transcript import TranscriptRecord
from limpet.errors import ExtraMissing, InvalidInput, SessionDeleted, SessionNotFound
from limpet.model import thaw
from limpet.store.pages import each_page

try:
    from claude_agent_sdk import (
        SessionKey,
        SessionListSubkeysKey,
        SessionStore,
        SessionStoreEntry,
        SessionStoreListEntry,
        SessionSummaryEntry,
        fold_session_summary,
    )
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "claude_agent_sdk":
        raise
    raise ExtraMissing("claude-agent-sdk", "claude-agent-sdk") from error

__all__ = ["LimpetSessionStore", "as_harness"]

_SUMMARY: Final = transcripts.SUMMARY


class LimpetSessionStore(SessionStore):  # type: ignore[misc]  # without the package its base is Any
    """A SessionStore of the Claude Agent SDK.

    `store` is a URL, opened at the first use and shared with all objects of that URL in this
    process; or an open Limpet. A project is the user of its sessions: `Key(app, project, session)`.
    """

    def __init__(self, store: str | Limpet, *, app: str = transcripts.APP) -> None:
        self._app = app
        self._store = store_for(self, store)

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Append the entries that are not there yet, in order and in one commit, durable when it
        returns. A batch larger than those that the SDK mirrors (500 entries, 8 MiB) takes several
        commits. Raises SessionDeleted if somebody has deleted the session."""
        place = self._key(key)
        if entries:
            await self._store.run(lambda lp: _append(lp, place, key, entries))

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return the entries, the oldest first; None if there are none, or they were deleted."""
        place = self._key(key)
        return await self._store.run(lambda lp: _load(lp, place))

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the sessions of a project, without those of subagents."""
        heads = await self._store.run(lambda lp: self._heads(lp, project_key))
        return [{"session_id": head.key.id, "mtime": _mtime(head)} for head, _ in heads]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return the summaries that were folded while the sessions of a project grew."""
        heads = await self._store.run(lambda lp: self._heads(lp, project_key))
        return [
            {"session_id": head.key.id, "mtime": _mtime(head), "data": state[_SUMMARY]}
            for head, state in heads
            if _SUMMARY in state
        ]

    async def delete(self, key: SessionKey) -> None:
        """Delete a session and its subagents', or one subagent's. Late writes are refused."""
        place = self._key(key)
        await self._store.run(lambda lp: self._delete(lp, place, alone="subpath" in key))

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the subpaths of a session's subagents."""
        place = self._key(key)
        keys = await self._store.run(lambda lp: self._subagents(lp, place))
        return [key.id.removeprefix(f"{place.id}/") for key in keys]

    async def close(self) -> None:
        """Close the store that a URL has opened, unless other objects of this process use it."""
        await release_store(self, self._store)

    # --- private --------------------------------------------------------------------------------

    def _key(self, key: Mapping[str, Any]) -> Key:
        subpath = key.get("subpath")
        if subpath == "":
            raise InvalidInput("subpath is empty. Leave it out for the main transcript.")
        return transcripts.key_of(key["project_key"], key["session_id"], subpath, app=self._app)

    async def _heads(self, lp: Limpet, project: str) -> list[tuple[Head, Mapping[str, Any]]]:
        app, labels = self._app, transcripts.MAIN
        return [
            (head, page.states.get(head.key, {}))
            async for page in each_page(
                lambda at: lp.list(
                    app=app, user=project, labels=labels, state=True, limit=500, cursor=at
                )
            )
            for head in page.items
        ]

    async def _subagents(self, lp: Limpet, place: Key) -> list[Key]:
        listed = lp.each(
            app=place.app, user=place.user, order="key", reverse=False, prefix=f"{place.id}/"
        )
        return [head.key async for head in listed]

    async def _delete(self, lp: Limpet, place: Key, *, alone: bool) -> None:
        keys = [place] if alone else [*await self._subagents(lp, place), place]
        for key in keys:
            try:
                await lp.delete(key)
            except (SessionNotFound, SessionDeleted):
                continue


async def _append(
    lp: Limpet, place: Key, key: SessionKey, entries: list[SessionStoreEntry]
) -> None:
    """Append the entries; those of a conversation with the summary that they leave."""
    if "subpath" in key:
        return await transcripts.append(lp, place, entries)
    session = await lp.find(place, tail=0)
    # An imported session has no summary yet: the first one covers all its entries.
    known = session is None or _SUMMARY in session.state
    earlier = [] if known else await _load(lp, place) or []
    await transcripts.append(
        lp, place, entries, lambda state, new: _summary(key, state, earlier, new)
    )


async def _load(lp: Limpet, place: Key) -> list[Any] | None:
    entries = [value async for _, value in transcripts.transcript(lp, place).records()]
    return entries or None


def _summary(
    key: SessionKey,
    state: Mapping[str, Any],
    earlier: list[Any],
    new: Sequence[TranscriptRecord],
) -> Sequence[ops.PlainOp]:
    """The summary with the new entries. A commit is decided on what was read, so none is lost."""
    if not new:
        return ()
    before: Any = state.get(_SUMMARY)
    entry: SessionSummaryEntry | None = (
        None
        if before is None
        else {"session_id": key["session_id"], "mtime": 0, "data": thaw(before)}
    )
    added = [record.value for record in new]
    folded = fold_session_summary(entry, key, added if entry else [*earlier, *added])
    return (ops.Set((_SUMMARY,), _in_utf8(folded["data"])),)


def _in_utf8(summary: Mapping[str, Any]) -> Any:
    """A summary without halves of surrogates: a prompt is cut anywhere, and state is UTF-8."""
    return json.loads(json.dumps(summary, ensure_ascii=False).encode(errors="replace"))


def _mtime(head: Head) -> int:
    return head.updated_us // 1_000
