"""Transcripts of Claude Code and the Claude Agent SDK as sessions, without the SDK.

A transcript is a file of JSON lines, one entry a line: what a person or the model said, tool calls,
tool results, and marks such as titles. An entry's `uuid` is the id of its event, so an entry that
is appended again is recorded once. The transcript of a subagent is a session of its own beside that
of its conversation.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from limpet import Key, Limpet, ops
from limpet.adapters.transcript import (
    RESULT,
    USE,
    Change,
    Statement,
    Transcript,
    TranscriptRecord,
    size_of,
    statements_of,
)
from limpet.errors import InvalidInput

APP: Final = "claude"
MEMBER: Final = "claude"
ENTRY: Final = "claude.entry"  # says nothing that our vocabulary has a word for
MAIN: Final = {"transcript": "main"}
SUBAGENT: Final = {"transcript": "subagent"}
SUMMARY: Final = "summary"  # the name in state: what the SDK lists sessions with
_BATCH_ENTRIES: Final = 500  # what one commit holds: the SDK sends no more at once,
_BATCH_BYTES: Final = 8 * 2**20  # except when it copies a whole transcript
_SIDECAR: Final = ".meta.json"  # beside a subagent's transcript, instead of .jsonl


class ImportedTranscript(NamedTuple):
    """One transcript that was read: its session, its entries, and the lines that are none."""

    key: Key
    entries: int
    unreadable: tuple[str, ...]  # file:line of what is not a JSON object


def key_of(project: str, session: str, subpath: str | None = None, *, app: str = APP) -> Key:
    """The session of a transcript. The project is its owner, so that others do not see it."""
    return Key(app, project, session if subpath is None else f"{session}/{subpath}")


def transcript(lp: Limpet, key: Key) -> Transcript:
    """The transcript of a session."""
    labels = SUBAGENT if "/" in key.id else MAIN
    return Transcript(lp, key, member=MEMBER, labels=labels)


async def append(
    lp: Limpet, key: Key, entries: Sequence[Mapping[str, Any]], change: Change | None = None
) -> None:
    """Append the entries that are not there yet, in one commit if they fit into one."""
    await _append(lp, key, [record_of(entry) for entry in entries], change)


async def import_transcripts(
    lp: Limpet, directory: str | Path, *, app: str = APP
) -> AsyncIterator[ImportedTranscript]:
    """Bring every transcript below a directory in, and yield what each brought.

    The directory is that of all projects (`~/.claude/projects`) or of one. A second run adds only
    what is new. Entries without a uuid are told apart by their line. What the SDK keeps beside a
    subagent's transcript becomes an entry of it, as when it is mirrored.
    """
    for file, key in _files(Path(directory), app):
        entries, unreadable = await asyncio.to_thread(_read_file, file)
        records = [
            record_of(entry, id=None if _id_of(entry) else f"line-{line}")
            for line, entry in entries
        ]
        records += await asyncio.to_thread(_sidecar_of, file)
        await _append(lp, key, records, _without_summary)
        yield ImportedTranscript(key, len(entries), unreadable)


def record_of(entry: Mapping[str, Any], *, id: str | None = None) -> TranscriptRecord:
    """The record of an entry. Raises InvalidInput if it is not a JSON object."""
    if not isinstance(entry, Mapping):
        raise InvalidInput(f"an entry is a dict, not {type(entry).__name__}. Pass dicts.")
    return TranscriptRecord(entry, list(_statements(entry)), id or _id_of(entry))


# --- private ------------------------------------------------------------------------------------


def _without_summary(
    state: Mapping[str, Any], new: Sequence[TranscriptRecord]
) -> Sequence[ops.PlainOp]:
    """Drop a summary that lacks what is imported: only the SDK can fold one."""
    return (ops.Delete((SUMMARY,)),) if new and SUMMARY in state else ()


def _id_of(entry: Mapping[str, Any]) -> str | None:
    uuid = entry.get("uuid")
    return uuid if isinstance(uuid, str) and uuid else None


async def _append(
    lp: Limpet, key: Key, records: Sequence[TranscriptRecord], change: Change | None
) -> None:
    batch: list[TranscriptRecord] = []
    size = 0
    for record in records:
        size += (added := size_of(record))
        if batch and (len(batch) == _BATCH_ENTRIES or size > _BATCH_BYTES):
            await transcript(lp, key).append(batch, change=change, type=ENTRY)
            batch, size = [], added
        batch.append(record)
    if batch:
        await transcript(lp, key).append(batch, change=change, type=ENTRY)


def _statements(entry: Mapping[str, Any]) -> Iterator[Statement]:
    message = entry.get("message")
    if entry.get("type") not in ("user", "assistant") or not isinstance(message, Mapping):
        return iter(())
    content, model = message.get("content"), message.get("model")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    said = [each for block in blocks if isinstance(block, Mapping) for each in _contents(block)]
    if entry["type"] == "user":
        return statements_of("user.message", said)
    named = {"model": model} if isinstance(model, str) else {}
    return statements_of("agent.message", said, **named)


def _contents(block: Mapping[str, Any]) -> Iterator[Statement | Mapping[str, Any]]:
    if block.get("type") == "tool_use" and isinstance(block.get("id"), str):
        name = block.get("name")
        call = {"request_id": block["id"], "name": name if isinstance(name, str) else "tool"}
        yield USE, {**call, "input": block.get("input") or {}}
    if block.get("type") == "tool_result" and isinstance(block.get("tool_use_id"), str):
        result = {"request_id": block["tool_use_id"], "output": _output(block.get("content"))}
        yield RESULT, {**result, **({"is_error": True} if block.get("is_error") else {})}
    yield from _parts(block)


def _output(content: Any) -> Any:
    """The text of a result if it is text alone."""
    if not isinstance(content, list):
        return content
    texts = [block.get("text") for block in content if isinstance(block, Mapping)]
    said = [text for text in texts if isinstance(text, str)]
    return "\n".join(said) if len(said) == len(content) else content


def _parts(block: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    kind, text, source = block.get("type"), block.get("text"), block.get("source")
    if kind == "text" and isinstance(text, str) and text:
        return [{"type": "text", "text": text}]
    if kind == "image" and isinstance(source, Mapping) and source.get("type") == "base64":
        image = {"media_type": source.get("media_type"), "data": source.get("data")}
        return [{"type": "image", **image}]
    return []  # thinking, and what later versions bring


def _files(root: Path, app: str) -> list[tuple[Path, Key]]:
    """The transcripts below a directory: PROJECT/SESSION.jsonl, and subagents' below SESSION/."""
    if not root.is_dir():
        raise InvalidInput(f"{root} is not a directory. Pass the directory of the transcripts.")
    base = root.parent if any(root.glob("*.jsonl")) else root
    files: list[tuple[Path, Key]] = []
    for file in sorted(root.rglob("*.jsonl")):
        project, *rest = file.relative_to(base).with_suffix("").parts
        if rest:
            subpath = "/".join(rest[1:]) or None
            files.append((file, key_of(project, rest[0], subpath, app=app)))
    return files


def _sidecar_of(file: Path) -> list[TranscriptRecord]:
    """The record of what is kept beside a subagent's transcript, if it can be read."""
    try:
        text = file.with_suffix(_SIDECAR).read_bytes()
        fields = json.loads(text)
    except (FileNotFoundError, ValueError):
        return []
    if not isinstance(fields, dict):
        return []
    digest = hashlib.sha256(text).hexdigest()
    return [record_of({**fields, "type": "agent_metadata"}, id=f"meta-{digest}")]


def _read_file(file: Path) -> tuple[list[tuple[int, Mapping[str, Any]]], tuple[str, ...]]:
    entries: list[tuple[int, Mapping[str, Any]]] = []
    bad: list[str] = []
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if isinstance(entry, dict):
            entries.append((number, entry))
        else:
            bad.append(f"{file.name}:{number}")
    return entries, tuple(bad)
