"""Memory: five layers of what a session knows beyond its log.

Working memory lives on the live object and is gone when the session is suspended. The others are
documents: session and episodic memory belong to the user and are erased with them; semantic memory
is shared by an app; procedural memory is shared by sessions of an app with the same task (their
label `task`). Completing a session promotes its episodes: other sessions of the user see them then.

A delegated session sees its parent's: semantic memory is read through and written apart, episodes
are read only. Beside the layers a session has buffers, which are events of its own log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet.errors import InvalidInput, SessionEnded, SessionNotFound, SessionSuspended
from limpet.model import (
    Commit,
    DefaultActor,
    Event,
    Head,
    Key,
    name_part,
    owner_of,
    unfit,
    without_length,
)
from limpet.model.facts.documents import CHECKPOINT, DELETED
from limpet.model.facts.phases import RESUMED, SUSPENDED, TERMINAL
from limpet.model.facts.running.children import delegation
from limpet.model.values import round_trip, settle
from limpet.session.conversation.shapes import text_of
from limpet.session.documents import Document, Documents, Internal, Put, Removal, commit_puts
from limpet.session.history.checkpoint_interval import CheckpointInterval
from limpet.session.history.checkpoint_log import Checkpoint
from limpet.session.journal import Journal
from limpet.session.runs.buffers import Buffers
from limpet.session.runs.delegation import parent_of
from limpet.session.writer import Writer
from limpet.store.coding.seal import forget_keys
from limpet.store.pages import each_head
from limpet.store.protocol import Order, Query

LayerName: TypeAlias = Literal["working", "session", "episodic", "semantic", "procedural"]
LAYERS: Final[tuple[LayerName, ...]] = (
    "working",
    "session",
    "episodic",
    "semantic",
    "procedural",
)
COLLECTION: Final = "memory"
MEMORY_APP: Final = f"$${COLLECTION}"
PROMOTED: Final = "promoted/"
PARENT: Final = "parent/"
_ACTOR: Final = DefaultActor("system:memory")
_NAME_CHARS_MAX: Final = 96


class Remembered(msgspec.Struct, frozen=True):
    """One entry of a layer."""

    name: str
    value: Any
    version: int = 1


class Memory(Buffers):
    """The layers of one session, and its buffers."""

    def __init__(self, writer: Writer) -> None:
        journal = writer.services.documents
        self._writer, self._working = writer, WorkingMemory(writer)
        key = writer.known.key
        self._own = Internal(journal, COLLECTION, owner=(key.app, key.user))
        self._interval = CheckpointInterval(journal, key)

    @property
    def working(self) -> WorkingMemory:
        """Return the memory of this object alone, which lasts while the session is active."""
        return self._working

    @property
    def session(self) -> SessionLayer:
        """Return this session's own memory. Resuming from an older checkpoint takes it back too."""
        place = own_places(self._writer.known.key.id)[0]
        return SessionLayer(self._writer, self._own, place, self._interval)

    @property
    def episodic(self) -> Layer:
        """Return what happened in this session, and in the user's completed ones.

        A delegated session also sees its parent's episodes (`parent/…`).
        """
        return self._by_head(lambda head: _episodic(self._writer, head))

    @property
    def semantic(self) -> Layer:
        """Return what all sessions of the app know.

        A delegated session reads what its parent's app knows, and keeps what it writes for itself.
        """
        key = self._writer.known.key
        return self._by_head(lambda head: _semantic(self._writer, key, head))

    @property
    def procedural(self) -> Layer:
        """Return how things are done, by the task that the session's label `task` names."""
        return self._by_head(lambda head: _procedural(self._writer, head))

    def _by_head(self, made: Callable[[Head | None], Layer]) -> Layer:
        """A layer whose place the head decides: whom the session works for, or on what."""
        head = self._writer.known.maybe_head
        return UnreadLayer(self._writer, made) if head is None else made(head)

    def layer(self, name: LayerName) -> WorkingMemory | Layer:
        """Return the layer of this name."""
        layer: WorkingMemory | Layer = getattr(self, name)
        return layer


class WorkingMemory:
    """Memory of the live object: gone with it, and when the session is suspended."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def put(self, name: str, value: Any) -> Remembered:
        """Remember a value under a name, and return the entry."""
        _check_name(name)
        trip = round_trip(value, msgspec.json.decode)
        plain = settle(value, "the value") if trip is None else trip[1]
        if self._writer.working_memory is None:
            self._writer.working_memory = {}
        before = self._entries.get(name)
        entry = Remembered(name, plain, 1 if before is None else before.version + 1)
        self._writer.working_memory[name] = entry
        return entry

    async def get(self, name: str) -> Any:
        """Return the value, or None."""
        entry = self._entries.get(name)
        return None if entry is None else entry.value

    async def list(self, prefix: str = "") -> tuple[Remembered, ...]:
        """Return the entries whose names begin with `prefix`."""
        entries = self._entries
        return tuple(entries[name] for name in sorted(entries) if name.startswith(prefix))

    async def search(self, text: str, *, limit: int = 10) -> tuple[Remembered, ...]:
        """Return the entries that have the most of these words, the best first."""
        return _ranked(await self.list(), text, limit)

    def reset(self) -> None:
        """Forget everything."""
        self._writer.working_memory = None

    @property
    def _entries(self) -> Mapping[str, Remembered]:
        return self._writer.working_memory or {}


class Layer:
    """One durable layer: documents whose names begin with a prefix.

    What is a session's `own` stays as it was while the session is suspended.
    """

    def __init__(
        self, writer: Writer, documents: Documents, prefix: str, *, own: bool = False
    ) -> None:
        self._writer, self._documents, self._prefix = writer, documents, prefix
        self._own = own

    async def put(self, name: str, value: Any, *, actor: str | None = None) -> Remembered:
        """Store a value under a name and return the entry; an older one stays in its history.

        Raises InvalidInput if it cannot be stored.
        """
        _check_name(name)
        head = await _head_of(self._writer)
        if head is not None and head.phase in TERMINAL:
            raise SessionEnded(self._writer.known.key, head.phase)
        if head is not None and self._own and head.phase in (SUSPENDED, RESUMED):
            raise SessionSuspended(self._writer.known.key, head.phase)
        by = self._writer.acting(actor)
        return self._shown(await self._put(self._prefix + name, value, by))

    async def get(self, name: str) -> Any:
        """Return the newest value, or None."""
        document = await self._documents.find(self._prefix + _check_name(name))
        return None if document is None else document.value

    async def list(self, prefix: str = "") -> tuple[Remembered, ...]:
        """Return the entries whose names begin with `prefix`, in the order of names."""
        return await self._all(self._prefix + prefix)

    async def search(self, text: str, *, limit: int = 10) -> tuple[Remembered, ...]:
        """Return the entries that have the most of these words, the best first."""
        return _ranked(await self.list(), text, limit)

    async def _all(self, prefix: str) -> tuple[Remembered, ...]:
        return tuple([self._shown(each) async for each in self._documents.each(prefix)])

    async def _put(self, name: str, value: Any, actor: str) -> Document:
        if not self._own:
            return await self._documents.put(name, value, actor=actor)
        # Only while the session is there: another under its key would begin with it.
        uid, put = self._writer.known.uid, Put(self._documents, name, value, actor=actor)
        held = () if uid is None else (Commit(self._writer.known.key, (), uid=uid),)
        _, (document,) = await commit_puts(put.journal, held, (put,))
        return document

    def _shown(self, document: Document) -> Remembered:
        name = document.name.removeprefix(self._prefix)
        return Remembered(name, document.value, document.version)


class UnreadLayer(Layer):
    """A layer of a session of which this object has read nothing: each verb reads its head first,
    or a child would write to what it may only read."""

    def __init__(self, writer: Writer, made: Callable[[Head | None], Layer]) -> None:
        self._writer, self._made = writer, made

    async def put(self, name: str, value: Any, *, actor: str | None = None) -> Remembered:
        return await (await self._layer()).put(name, value, actor=actor)

    async def get(self, name: str) -> Any:
        return await (await self._layer()).get(name)

    async def list(self, prefix: str = "") -> tuple[Remembered, ...]:
        return await (await self._layer()).list(prefix)

    async def _layer(self) -> Layer:
        return self._made(await _head_of(self._writer))


class SessionLayer(Layer):
    """The memory of one session alone. Each entry knows which checkpoint it follows."""

    def __init__(
        self, writer: Writer, documents: Documents, prefix: str, interval: CheckpointInterval
    ) -> None:
        super().__init__(writer, documents, prefix, own=True)
        self._interval = interval

    async def back_to(self, checkpoint: Checkpoint) -> tuple[Put, ...]:
        """Return the puts that make it what it was at a checkpoint. Entries that were not there yet
        are deleted; their histories stay."""
        interval = await self._now()
        puts: list[Put] = []
        for each in await self.list():
            name = self._prefix + each.name
            past = await self._version_at(name, checkpoint)
            if past is None or past.type == DELETED:
                puts.append(Removal(self._documents, name, actor=_ACTOR, interval=interval))
            elif past.seq != each.version:
                value = (await self._documents.get(name, past.seq)).value
                puts.append(Put(self._documents, name, value, actor=_ACTOR, interval=interval))
        return tuple(puts)

    async def _version_at(self, name: str, checkpoint: Checkpoint) -> Event | None:
        """The newest version of an entry at a checkpoint, however many there are since."""
        before: int | None = None
        while page := await self._documents.recorded(name, before=before):
            for event in page:
                # True if a version of an entry was there when a checkpoint was recorded. It is
                # judged by its date if it has no number: it was not put by way of its layer, or is
                # damaged.
                number = None if event.data is None else event.data.get(CHECKPOINT)
                if event.at <= checkpoint.at if number is None else number < checkpoint.number:
                    return event
            before = page[-1].seq
        return None

    async def _put(self, name: str, value: Any, actor: str) -> Document:
        put = Put(self._documents, name, value, actor=actor, interval=await self._now())
        _, (document,) = await commit_puts(put.journal, (), (put,))
        return document

    async def _now(self) -> CheckpointInterval:
        await self._interval.look(self._writer.known.uid)
        return self._interval


class Overlay(Layer):
    """Semantic memory of a delegated session: what is not its own is read from its parent's, and
    nothing is written there."""

    def __init__(self, writer: Writer, documents: Documents, prefix: str, head: Head) -> None:
        super().__init__(writer, documents, prefix)
        self._head = head

    async def get(self, name: str) -> Any:
        """Return the newest value, this session's own before that of its parent; or None."""
        own = await self._documents.find(self._prefix + _check_name(name))
        if own is not None:
            return own.value
        above = await self._above()
        return None if above is None else await above.get(name)

    async def list(self, prefix: str = "") -> tuple[Remembered, ...]:
        """Return the entries whose names begin with `prefix`; its own hide its parent's."""
        above = await self._above()
        entries = {} if above is None else {each.name: each for each in await above.list(prefix)}
        entries |= {each.name: each for each in await super().list(prefix)}
        return tuple([entries[name] for name in sorted(entries)])

    async def _above(self) -> Layer | None:
        """Return what its parent sees, which may be delegated itself; None if it has no parent."""
        parent = await parent_of(self._writer.services.documents, self._head)
        return None if parent is None else _semantic(self._writer, parent.key, parent)


def _semantic(writer: Writer, key: Key, head: Head | None) -> Layer:
    """Semantic memory as the session of this key sees it."""
    journal = writer.services.documents
    if head is None or delegation(head.facts) is None:
        return Layer(writer, Internal(journal, COLLECTION), shared_places(key.app)[0])
    own = Internal(journal, COLLECTION, owner=(key.app, key.user))
    return Overlay(writer, own, f"own/{name_part(key.id)}/", head)


def _procedural(writer: Writer, head: Head | None) -> Layer:
    task = "default" if head is None else head.labels.get("task", "default")
    place = f"{shared_places(writer.known.key.app)[1]}{name_part(task)}/"
    return Layer(writer, Internal(writer.services.documents, COLLECTION), place)


async def _head_of(writer: Writer) -> Head | None:
    """The head that this object knows, or else the newest; None if there is no session."""
    known = writer.known.maybe_head
    if known is not None:
        return known
    with suppress(SessionNotFound):
        return (await writer.journal.store.load(writer.known.key, tail=0, scopes=False)).head
    return None


class Episodes(Layer):
    """Episodes: this session's own, and those that completed sessions left."""

    def __init__(
        self, writer: Writer, documents: Documents, prefix: str, child: Head | None = None
    ) -> None:
        super().__init__(writer, documents, prefix, own=True)
        self._child = child  # the session itself, if it is delegated

    async def get(self, name: str) -> Any:
        """Return the newest value, or None; `parent/…` is one of its parent's."""
        if self._child is not None and name.startswith(PARENT):
            above = await self._above()
            return None if above is None else await above.get(name.removeprefix(PARENT))
        return await super().get(name)

    async def put(self, name: str, value: Any, *, actor: str | None = None) -> Remembered:
        """Store what happened and return the entry. Raises InvalidInput for its parent's
        episodes."""
        if self._child is not None and isinstance(name, str) and name.startswith(PARENT):
            raise InvalidInput(f"{name!r} is an episode of its parent, which is read only.")
        return await super().put(name, value, actor=actor)

    async def list(self, prefix: str = "") -> tuple[Remembered, ...]:
        """Return this session's own entries, its parent's (`parent/…`), then those of the user's
        completed sessions (`promoted/…`)."""
        own = await self._all(self._prefix + prefix)
        above = await self._above()
        read = () if above is None else await above.list()
        theirs = [msgspec.structs.replace(each, name=PARENT + each.name) for each in read]
        promoted = [_readable(each) for each in await self._all(PROMOTED)]
        shown = [each for each in (*theirs, *promoted) if each.name.startswith(prefix)]
        return (*own, *shown)

    async def _above(self) -> Layer | None:
        """The parent's own episodes, which are read only; None if nobody is its parent."""
        journal = self._writer.services.documents
        parent = None if self._child is None else await parent_of(journal, self._child)
        if parent is None:
            return None
        theirs = Internal(journal, COLLECTION, owner=(parent.key.app, parent.key.user))
        return Layer(self._writer, theirs, f"episodic/{name_part(parent.key.id)}/")


def _episodic(writer: Writer, head: Head | None) -> Episodes:
    journal, prefix = writer.services.documents, f"episodic/{name_part(writer.known.key.id)}/"
    own = Internal(journal, COLLECTION, owner=(writer.known.key.app, writer.known.key.user))
    is_child = head is not None and delegation(head.facts) is not None
    return Episodes(writer, own, prefix, head if is_child else None)


async def promotions(writer: Writer, actor: str) -> tuple[Put, ...]:
    """The puts that let other sessions of the user see what happened in this one."""
    layer = _episodic(writer, None)
    place = f"{PROMOTED}{name_part(writer.known.key.id)}/"
    return tuple(
        [
            Put(layer._documents, place + each.name, each.value, actor=actor)
            for each in await layer._all(layer._prefix)
        ]
    )


async def forget_memory(journal: Journal, key: Key) -> None:
    """Remove what belonged to this session alone: another under its key must not begin with it.

    What it promoted is the user's, and stays.
    """
    own = Internal(journal, COLLECTION, owner=(key.app, key.user))
    async for head in memory_logs(journal, key, own_places(key.id)):
        await own.purge(head.key.id)


async def erase_memory(journal: Journal, key: Key) -> int:
    """Remove it for good, with what the session promoted, and destroy the keys of all of it first:
    also of what was removed before. Returns how many documents there were."""
    own = Internal(journal, COLLECTION, owner=(key.app, key.user))
    places = (*own_places(key.id), f"{PROMOTED}{name_part(key.id)}/")
    removed = [head.uid async for head in memory_logs(journal, key, places, deleted=True)]
    await forget_keys(journal.store, removed)
    erased = 0
    async for head in memory_logs(journal, key, places):
        await forget_keys(journal.store, [head.uid])
        erased += await own.purge(head.key.id)
    return erased


def own_places(id: str) -> tuple[str, ...]:
    """Return the prefixes of the documents that belong to a session alone."""
    part = name_part(id)
    return (f"session/{part}/", f"episodic/{part}/", f"own/{part}/")


def shared_places(app: str) -> tuple[str, ...]:
    """Return the prefixes of the documents that all sessions of an app share."""
    return (f"semantic/{name_part(app)}/", f"procedural/{name_part(app)}/")


def memory_key(key: Key, name: str) -> Key:
    """The log of a document of a session's user."""
    return Key(MEMORY_APP, owner_of(key.app, key.user), name)


async def memory_logs(
    journal: Journal, key: Key, places: Sequence[str], *, deleted: bool = False
) -> AsyncIterator[Head]:
    """The heads of a user's documents in these places, by name; also of those that say that they
    were deleted: their histories are still there. `deleted`: of those that were purged."""
    of = memory_key(key, "any")
    for place in places:
        order: Order = "created" if deleted else "key"
        query = Query(
            app=of.app, user=of.user, order=order, reverse=False, prefix=place, deleted=deleted
        )
        async for head in each_head(journal.store, query):
            yield head


def _ranked(entries: tuple[Remembered, ...], text: str, limit: int) -> tuple[Remembered, ...]:
    words = text.lower().split()
    texts = [f"{each.name} {text_of(each.value)}".lower() for each in entries]
    scored = [
        (sum(word in said for word in words), each)
        for said, each in zip(texts, entries, strict=True)
    ]
    ranked = sorted([s for s in scored if s[0]], key=lambda s: (-s[0], s[1].name))
    return tuple(each for _, each in ranked[:limit])


def _readable(promoted: Remembered) -> Remembered:
    """Return it with the name that a person reads: `promoted/`, session id, episode."""
    name = PROMOTED + without_length(promoted.name.removeprefix(PROMOTED))
    return msgspec.structs.replace(promoted, name=name)


def _check_name(name: str) -> str:
    if reason := unfit(name, _NAME_CHARS_MAX):
        raise InvalidInput(f"the name of what is remembered {reason}.")
    return name


def summary(layers: Mapping[str, int]) -> str:
    """Return how much is in each layer, in words."""
    return ", ".join(f"{count} {name}" for name, count in layers.items())
