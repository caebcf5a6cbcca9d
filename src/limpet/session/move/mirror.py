"""A mirror: sessions as files that people and their tools read, a directory for each.

    DIRECTORY/.limpet-runtime/session-relations.json    children, forks and relations
    DIRECTORY/app/user/id/session.json                  what it is and where it stands
                          events.jsonl                  the log, a line for each event
                          wake-queue.jsonl              when it wants to be woken, and why
                          runtime/checkpoint.json       its newest checkpoint
                          runtime/session-state.md      the notes it keeps between runs
                          runtime/working-buffer.md

It is only written, never read back: the store alone says what a session is. Each file appears
complete or not at all, readable by this user only, since bodies are in plain text.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from contextlib import contextmanager, suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

import msgspec

from limpet.errors import (
    InvalidInput,
    LimpetError,
    SessionArchived,
    SessionDeleted,
    SessionErased,
    SessionMoved,
    SessionNotFound,
    StoreFull,
)
from limpet.model import PROCESSING, Event, Head, Key, Texts
from limpet.model.facts.relations import RELATED, UNRELATED, key_in
from limpet.model.facts.running import children
from limpet.model.facts.running.memory import WRITTEN
from limpet.model.facts.timers import revisits_of
from limpet.model.limits import PAGE_MAX
from limpet.session.json_forms import event_form, head_form, key_form, time_form
from limpet.session.move.bundle import NO_SPACE
from limpet.session.relations import relation_edge
from limpet.session.services import Services
from limpet.session.session import Session
from limpet.session.writer import writer_of
from limpet.store.pages import each_head
from limpet.store.protocol import Query, plural
from limpet.store.system import in_thread

_Ends: TypeAlias = tuple[str, Key, Key]  # the kind of a relation, and from whom to whom
_KNOWN_MAX: Final = 4_096
_AT_ONCE: Final = 16  # sessions
_GONE: Final = (SessionNotFound, SessionDeleted, SessionErased, SessionMoved)


class Written(msgspec.Struct, frozen=True):
    """The state of the files of a session: up to which event of which one they go."""

    uid: str
    version: int
    notes: bool  # its checkpoint and its notes are up to date


Known: TypeAlias = dict[Key, Written]


class Mirrored(msgspec.Struct, frozen=True):
    """The counts of what was written."""

    sessions: int = 0
    events: int = 0

    def __str__(self) -> str:
        return f"{plural(self.sessions, 'session')}, {plural(self.events, 'event')} written"


async def mirror(
    services: Services,
    directory: Path,
    key: Key | Sequence[Key] | None,
    app: str | None,
    known: Known | None = None,
) -> Mirrored:
    """Write one session, some, an app, or everything. Raises InvalidInput if it cannot be written,
    and StoreFull if there is no space: what is there then is whole. What is archived, or has moved
    away, stays as it was written before; SessionArchived or SessionMoved if it was asked for.

    `known` are sessions whose files were written before: they are gone on with."""
    sessions = events = 0
    goes_on, known = known is not None, {} if known is None else known
    related: dict[_Ends, Any] = {}
    archived: set[Key] = set()
    try:
        async for some in _some(_sessions(services, key, app)):
            reading = [_read(session, directory, known) for session in some]
            answers = await asyncio.gather(*reading, return_exceptions=True)
            ready = [answer.finish for answer in answers if isinstance(answer, _Files)]
            await in_thread(lambda ready=ready: _finish(ready))  # type: ignore[misc]  # bound now
            for session, answer in zip(some, answers, strict=True):
                if isinstance(answer, (SessionArchived, *_GONE)) and not isinstance(key, Key):
                    archived |= {session.key} if isinstance(answer, SessionArchived) else set()
                    continue
                if isinstance(answer, BaseException):
                    raise answer
                related |= _works_for(session) | answer.related
                sessions, events = sessions + 1, events + answer.lines
        kept, path = archived if key is None and app is None else None, directory / RELATIONS
        if related or not goes_on or kept is not None or not path.exists():
            await in_thread(lambda: _relate(path, related, kept))
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidInput(
            f"nothing can be mirrored to {directory}: {error}. Name a directory that is writable."
        ) from error
    return Mirrored(sessions, events)


async def _sessions(
    services: Services, key: Key | Sequence[Key] | None, app: str | None
) -> AsyncIterator[Session[Any]]:
    if key is not None:
        for each in [key] if isinstance(key, Key) else key:
            yield Session(services, each, untyped=True)
        return
    async for head in each_head(services.journal.store, Query(app=app)):
        yield Session(services, head.key, untyped=True)


async def _some(sessions: AsyncIterator[Session[Any]]) -> AsyncIterator[list[Session[Any]]]:
    """Some sessions at a time: most of writing a short one is waiting for the thread that does."""
    some: list[Session[Any]] = []
    async for each in sessions:
        some.append(each)
        if len(some) == _AT_ONCE:
            yield some
            some = []
    if some:
        yield some


class _Files(NamedTuple):
    """The files of a session, which `finish` writes: how many events they show, and which relations
    these record. Most logs are short, and those of many sessions are written in one go."""

    lines: int
    related: dict[_Ends, Any]
    finish: Callable[[], None]


def _finish(ready: Sequence[Callable[[], None]]) -> None:
    """Write the files of some sessions. One that fails keeps no other from being written."""
    failed: BaseException | None = None
    for finish in ready:
        try:
            finish()
        except (OSError, LimpetError) as error:
            failed = failed or error
    if failed is not None:
        raise failed


async def _read(session: Session[Any], directory: Path, known: Known) -> _Files:
    """Read a session, and write its log but for the last page."""
    await session.refresh(tail=0)
    key, head, place = session.key, session.head, session_directory(directory, session.key)
    before = known.pop(key, None)
    if before is not None and before.uid != head.uid:
        before = None
    log, lines, related, noted = await _log(session, place, before)
    try:
        rest = await _rest(session, place, notes=noted or before is None or not before.notes)
    except BaseException:
        await in_thread(lambda: log.close(keep=False))
        raise

    def finish() -> None:
        try:
            log.finish()
        except BaseException:
            log.close(keep=False)
            raise
        log.close()
        rest()
        known[key] = Written(head.uid, head.version, notes=True)
        if len(known) > _KNOWN_MAX:
            del known[next(iter(known))]

    return _Files(lines, related, finish)


async def _log(
    session: Session[Any], place: Path, before: Written | None
) -> tuple[_AtomicFile, int, dict[_Ends, Any], bool]:
    """events.jsonl, written but for its last page: how many events there are, the relations among
    them, and True if notes are."""
    noted = False
    head, file = session.head, _AtomicFile(place / "events.jsonl")
    after, version = head.floor, head.version
    related: dict[_Ends, Any] = {}
    by_id: dict[str, _Ends] = {}
    page: Sequence[Event] = ()
    if before is not None:
        page = await session.read(after=before.version, limit=PAGE_MAX)
        if before.version > version or len(page) == PAGE_MAX or _changes_earlier(page):
            page = ()
        else:
            after, file = before.version, _GrowingFile(place / "events.jsonl")
    lines = after - head.floor
    try:
        while after < version:
            page = page or await session.read(after=after, limit=PAGE_MAX)
            some = [event for event in page if event.seq <= version]
            if not some:
                break
            if file.last:
                await in_thread(file.finish)
            file.last = some
            for event in some:
                new = _relation(session.key, event)
                related |= new
                by_id |= dict.fromkeys([event.id], *new) if new else {}
                if event.type == UNRELATED and event.data is not None:
                    ends = by_id.pop(event.data["relation"], None)
                    if ends is not None and ends not in by_id.values():
                        related[ends] = None  # not kept from an earlier run either
                noted = noted or event.type == WRITTEN
            after, lines, page = some[-1].seq, lines + len(some), ()
    except BaseException:
        await in_thread(lambda: file.close(keep=False))
        raise
    return file, lines, related, noted


def _changes_earlier(page: Sequence[Event]) -> bool:
    """True if some of these events change what is written of events before them."""
    return any([event.type in PROCESSING or event.type == UNRELATED for event in page])


async def _rest(session: Session[Any], place: Path, *, notes: bool) -> Callable[[], None]:
    """Return what writes the other files; checkpoint and notes only if they may have changed."""
    head = session.head
    texts = writer_of(session).known.texts
    timers = [_timer(name, timer, texts) for name, timer in head.facts.get("timers", {}).items()]
    timers.sort(key=lambda timer: str(timer["at"]))
    values: dict[str, Any] = {}
    newest: list[dict[str, Any]] = []
    if notes:
        values = {name: await getattr(session.memory, name).read() for name in _NOTES}
        last = await session.history.checkpoints(limit=1)
        newest = [_checkpoint(each) for each in last.items]
    summary = _summary(session, head)

    def write() -> None:
        _json(place / "session.json", summary)
        queue = place / "wake-queue.jsonl"
        if timers or notes or queue.stat().st_size:
            with _AtomicFile(queue) as file:
                file.lines(timers)
        if notes:
            _json(place / "runtime" / "checkpoint.json", newest[0] if newest else None)
        for name, note in values.items():
            with _AtomicFile(place / "runtime" / _NOTES[name]) as file:
                file.text("" if note is None else _shown(note.value))

    return write


_NOTES: Final = {"session_state": "session-state.md", "working_buffer": "working-buffer.md"}


def _summary(session: Session[Any], head: Head) -> dict[str, Any]:
    setup, works_for = session.setup.current, children.delegation(head.facts)
    return {
        **head_form(head),
        "agent": setup.agent,
        "environment": setup.environment,
        "resources": setup.resources,
        "vaults": setup.vaults,
        "status": session.status,
        "stop_reason": session.stop_reason,
        "blocked_on": msgspec.to_builtins(session.blocked_on),
        "usage": msgspec.to_builtins(session.runs.usage),
        "parent": None if works_for is None else _parent(works_for),
        "state": writer_of(session).known.fields,
    }


def _checkpoint(checkpoint: Any) -> dict[str, Any]:
    ref = checkpoint.ref
    shown = {"number": ref.number, "seq": ref.seq, "checksum": ref.checksum}
    return {**shown, "trigger": checkpoint.trigger, "at": checkpoint.at.isoformat()}


def _timer(name: str, timer: Mapping[str, Any], texts: Texts) -> dict[str, Any]:
    (revisit,) = revisits_of({"timers": {name: timer}}, [name], texts)  # type: ignore[arg-type]  # read only
    shown = {"name": name, "key": revisit.key, "at": time_form(revisit.at_us)}
    return {**shown, "kind": timer["kind"], "reason": revisit.reason, "priority": revisit.priority}


def _works_for(session: Session[Any]) -> dict[_Ends, Any]:
    """Whom this session works for, and what it is a fork of."""
    key, facts = session.key, session.head.facts
    related: dict[_Ends, Any] = {}
    works_for, origin = children.delegation(facts), facts.get("parent")
    if works_for is not None:
        parent, ended = key_in(works_for), bool(works_for.get("ended"))
        ends = {"kind": "child", "parent": key_form(parent), "child": key_form(key)}
        related["child", parent, key] = {**ends, "depth": works_for["depth"], "ended": ended}
    if origin is not None:
        ends = {"kind": "fork", "parent": key_form(key_in(origin)), "child": key_form(key)}
        related["fork", key_in(origin), key] = ends
    return related


def _relation(key: Key, event: Event) -> dict[_Ends, Any]:
    """The relation that an event of this session records."""
    if event.type != RELATED or event.data is None:
        return {}
    edge = relation_edge(key, event.data)
    ends = {"kind": edge.kind, "source": key_form(edge.source), "target": key_form(edge.target)}
    shown = {**ends, "at": time_form(event.at_us), "actor": event.actor}
    return {(edge.kind, edge.source, edge.target): shown}


def _parent(works_for: Mapping[str, Any]) -> dict[str, str]:
    return {name: works_for[name] for name in ("app", "user", "id")}


def _relate(path: Path, related: dict[_Ends, Any], kept: Set[Key] | None) -> None:
    """Keep what is known of these sessions; None keeps all, since only some were read."""
    before: list[dict[str, Any]] = []
    if kept != set() and path.exists():
        before = msgspec.json.decode(path.read_bytes(), type=list[dict[str, Any]])
    known = {_ends(each): each for each in before}
    if kept is not None:
        known = {ends: known[ends] for ends in known if not kept.isdisjoint(ends[1:])}
    known |= related
    _json(path, [known[ends] for ends in sorted(known) if known[ends] is not None])


def _ends(relation: Mapping[str, Any]) -> _Ends:
    """The two ends of a relation in the file."""
    names = ("source", "target") if "source" in relation else ("parent", "child")
    source, target = [msgspec.convert(relation.get(name), Key) for name in names]
    return str(relation.get("kind", "child")), source, target


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.format(_encode(value)).decode()


def _json(path: Path, value: Any) -> None:
    with _AtomicFile(path) as file:
        file.text(msgspec.json.format(_encode(value)).decode() + "\n")


_encode: Final = msgspec.json.Encoder(enc_hook=str).encode


class _AtomicFile:
    """A file that takes its place when it is whole."""

    def __init__(self, path: Path) -> None:
        self._path, self._part = path, path.with_name(f"{path.name}.part")
        self.last: Sequence[Event] = ()  # that `finish` writes

    def __enter__(self) -> _AtomicFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(keep=kind is None)

    def text(self, text: str) -> None:
        with self._checked():
            self._opened.write(text.encode())

    def lines(self, values: Iterable[Any]) -> None:
        with self._checked():
            self._opened.write(b"".join([_encode(value) + b"\n" for value in values]))

    def finish(self) -> None:
        """Write the last events that were read."""
        self.lines(map(event_form, self.last))
        self.last = ()

    def close(self, *, keep: bool = True) -> None:
        """Let the file take its place; or drop it."""
        try:
            with self._checked() if keep else suppress(OSError):
                self._opened.close()
                self._take_place(keep=keep)
        finally:
            if not keep:
                self._part.unlink(missing_ok=True)

    @cached_property
    def _opened(self) -> IO[bytes]:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        return os.fdopen(os.open(self._part, flags, 0o600), "wb")

    def _take_place(self, *, keep: bool) -> None:
        if keep:
            try:
                self._part.replace(self._path)
            except BaseException:
                self._part.unlink(missing_ok=True)
                raise

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in NO_SPACE:
                raise StoreFull(str(self._path)) from error
            raise


class _GrowingFile(_AtomicFile):
    """A file that lines are added to."""

    @cached_property
    def _opened(self) -> IO[bytes]:
        return self._path.open("ab")

    def _take_place(self, *, keep: bool) -> None:
        """It has it."""


# --- where the files are --------------------------------------------------------------------------

RELATIONS: Final = Path(".limpet-runtime", "session-relations.json")
_NAME_CHARS_MAX: Final = 200  # of a directory; a longer one is named by its hash


def session_directory(root: Path, key: Key) -> Path:
    """Return the directory of the files of a session."""
    return root.joinpath(*[_name_of(part) for part in (key.app, key.user, key.id)])


def _name_of(part: str) -> str:
    """A part of a key as the name of a directory: none leads out of its place, and no two parts
    have the same."""
    named = quote(part, safe=" @+=,")
    if named.startswith("."):
        named = f"%2E{named[1:]}"
    if len(named) > _NAME_CHARS_MAX:  # no name that is short enough has a "!"
        named = f"{named[: _NAME_CHARS_MAX - 33]}!{sha256(part.encode()).hexdigest()[:32]}"
    return named


def mirrored_keys(root: Path) -> list[Key]:
    """The sessions that have files in a directory."""
    keys: list[Key] = []
    for path in root.glob("*/*/*/session.json"):
        with suppress(OSError, msgspec.DecodeError):
            keys.append(msgspec.json.decode(path.read_bytes(), type=_Named).session)
    return keys


class _Named(msgspec.Struct):
    session: Key


def remove_mirrored(root: Path, keys: Collection[Key]) -> None:
    """Remove the files of sessions, and what the file of relations says of them. Raises OSError."""
    _remove(root, [session_directory(root, key) for key in keys], {*keys}.__contains__)


def remove_mirrored_user(root: Path, app: str, user: str) -> None:
    """Remove the files of a user's sessions. Raises OSError."""
    place = session_directory(root, Key(app, user, "any")).parent
    _remove(root, [place], lambda key: (key.app, key.user) == (app, user))


def _remove(root: Path, places: Iterable[Path], gone: Callable[[Key], bool]) -> None:
    for place in places:
        if place.is_dir():
            shutil.rmtree(place)
        for above in place.parents:
            if above == root or not above.is_relative_to(root):
                break
            with suppress(OSError):  # there is another session of this user, or of this app
                above.rmdir()
    path = root / RELATIONS
    if path.exists():
        related = msgspec.json.decode(path.read_bytes(), type=list[dict[str, Any]])
        left = [each for each in related if not any(map(gone, _ends(each)[1:]))]
        if left != related:
            _json(path, left)
