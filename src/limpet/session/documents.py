"""Documents: named values with a history, kept as logs under reserved apps.

`lp.documents("agents")` is a collection. Each put is one event of the log
Key("$agents", owner, name) and is recorded by the journal like any other, so a put can also be part
of a commit over sessions: `c.put(agents, name, value)`. A deletion is an event too: it makes a
version, and the versions before it stay. The verbs for sessions refuse these logs, and nothing else
is ever recorded in them.

What Limpet itself reads is kept in `Internal` collections, whose apps begin with "$$". No name that
`lp.documents` accepts leads there, so a program cannot put a value of another shape in their place.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import msgspec

from limpet.errors import (
    DocumentConflict,
    DocumentNotFound,
    InvalidInput,
    InvalidKey,
    InvalidQuery,
    ReservedApp,
    SessionConflict,
    SessionCorrupt,
    SessionDeleted,
    SessionErased,
    SessionError,
    SessionExists,
    SessionNotFound,
)
from limpet.model import (
    Commit,
    DefaultActor,
    Event,
    Head,
    Key,
    described,
    is_reserved,
    owner_of,
    to_time,
    unfit,
)
from limpet.model.facts.documents import (
    ACTOR,
    DELETED,
    VALUE,
    VERSIONS,
    document_created,
    document_deleted,
    document_put,
)
from limpet.model.limits import KEY_PART_CHARS_MAX, PAGE_MAX, UPDATE_TRIES_MAX
from limpet.session.arguments import check_actor, check_before, check_expect, check_limit
from limpet.session.follow import feed_of
from limpet.session.journal import Journal, Tries
from limpet.session.loggers import SESSION
from limpet.store.pages import each_page
from limpet.store.protocol import Committed, FeedEntry, Query

if TYPE_CHECKING:
    from limpet.session.history.checkpoint_interval import CheckpointInterval

WHOLE_STORE: Final = "*"  # the owner of documents that belong to no user
T = TypeVar("T")
_GONE: Final = (SessionNotFound, SessionDeleted)
_NOBODY: Final = DefaultActor("system:documents")  # who deletes, if nobody is named


class Document(msgspec.Struct, frozen=True):
    """One version of a document. Its value is read-only."""

    name: str
    value: Any
    version: int  # 1 for the first put, and one more for each put and each deletion
    at: datetime
    actor: str
    deleted: bool = False  # this version is a deletion, and has no value


class DocumentPage(msgspec.Struct, frozen=True):
    """A page of documents; `cursor` is None on the last page."""

    items: tuple[Document, ...]
    cursor: str | None
    damaged: tuple[str, ...] = ()  # names of documents that cannot be read: not in `items`


class Documents:
    """A collection of documents: of the whole store, or of one user of an app."""

    _mark: ClassVar[str] = "$"  # with which the reserved app begins

    def __init__(
        self,
        journal: Journal,
        collection: str,
        *,
        owner: tuple[str, str] | None = None,
        actor: str | None = None,
    ) -> None:
        reason = unfit(collection, KEY_PART_CHARS_MAX - 1)
        if reason is None and is_reserved(collection):
            reason = "begins with '$'; leave that out"
        if reason:
            raise InvalidInput(
                f"the name of the collection {reason}. Pass a text, as in lp.documents('agents')."
            )
        self.collection, self.owner = collection, owner
        self.actor = check_actor(actor)
        self._user = WHOLE_STORE if owner is None else _check_owner(owner)
        self._journal = journal

    def __repr__(self) -> str:
        of = "" if self.owner is None else f" of {self.owner[0]}/{self.owner[1]}"
        return f"<limpet.Documents {self.collection}{of}>"

    async def put(
        self,
        name: str,
        value: Any,
        *,
        expect: int | None = None,
        actor: str | None = None,
        id: str | None = None,
    ) -> Document:
        """Replace the document, or create it, and return its new version. Durable when it returns.

        With `expect=n` it is put only if the document is at version n, with `expect=0` only if it
        does not exist; otherwise it raises DocumentConflict. A repeated `id` returns the version
        first put under it. A deleted document can be put again; its version numbers continue.
        """
        put = Put(self, name, value, expect=expect, actor=actor, id=id)
        _, (document,) = await commit_puts(self._journal, (), (put,))
        return document

    async def get(self, name: str, version: int | None = None) -> Document:
        """Return the newest version, or the given one. Raises DocumentNotFound.

        The versions of a deleted document from before the deletion can still be read.
        """
        key, after = self.key(name), 0
        if version is not None:
            after = (check_before(version) or 1) - 1
        events = await self._read(key, after, limit=1, reverse=version is None)
        if not events or events[0].type == DELETED or version not in (None, events[0].seq):
            raise DocumentNotFound(self.collection, name, version)
        return self.shown(_document(key, events[0]))

    async def find(self, name: str, version: int | None = None) -> Document | None:
        """Return what `get` returns, or None if there is no such document or version. Raises
        InvalidInput."""
        try:
            return await self.get(name, version)
        except DocumentNotFound:
            return None

    async def list(
        self, prefix: str = "", *, limit: int = 50, cursor: str | None = None
    ) -> DocumentPage:
        """Return a page of documents in the order of their names; `page.cursor` leads to the next.

        A page of large documents ends early, at about 4 MiB, and deleted documents are skipped:
        continue while there is a cursor. Raises InvalidCursor.
        """
        if not isinstance(prefix, str):
            raise InvalidQuery(f"prefix is the beginning of a name, not {described(prefix)}")
        app = self._mark + self.collection
        query = Query(app=app, user=self._user, order="key", reverse=False, prefix=prefix)
        store = self._journal.store
        page = await store.heads(query, cursor=cursor, limit=check_limit(limit), states=True)
        shown = [(h, page.states[h.key]) for h in page.items if h.key in page.states]
        items = [self.shown(_listed(head, state)) for head, state in shown if VALUE in state]
        return DocumentPage(tuple(items), page.cursor, tuple([key.id for key in page.damaged]))

    async def each(self, prefix: str = "") -> AsyncGenerator[Document, None]:
        """Yield every document that `list` would return: `async for document in documents.each()`.

        Raises as `list` does.
        """
        async for page in each_page(lambda at: self.list(prefix, limit=PAGE_MAX, cursor=at)):
            for document in page.items:
                yield document

    async def changes(self, after: str) -> tuple[tuple[Document, ...], str]:
        """Return a page of the puts and deletions after a position of the feed, and the next
        position.

        Start with `after=await lp.position()`. An empty page means that there is nothing more for
        now. Purged documents leave the feed without an entry. Raises InvalidCursor.
        """
        feed, app = feed_of(self._journal.store), self._mark + self.collection
        changed: list[Document] = []
        while not changed:
            entries, after = await feed.changes(after, app=app, key=None, limit=PAGE_MAX)
            if not entries:
                break
            for entry in entries:
                if entry.key.user == self._user and entry.event.type in VERSIONS:
                    changed += self._readable(entry)
        return tuple(changed), after

    async def history(
        self, name: str, *, limit: int = 100, before: int | None = None
    ) -> tuple[Document, ...]:
        """Return versions of a document, the newest first; continue with before= the last version.

        Deletions are versions too, with `deleted` set. A page of large versions ends early, at
        about 16 MiB; only an empty page is the end. Raises DocumentNotFound.
        """
        key, events = self.key(name), await self.recorded(name, limit=limit, before=before)
        if not events and before is None:
            raise DocumentNotFound(self.collection, name)
        return tuple([self.shown(_document(key, event)) for event in events])

    async def recorded(
        self, name: str, *, limit: int = 100, before: int | None = None
    ) -> tuple[Event, ...]:
        """Return the events behind `history`; empty if the document does not exist. Raises
        InvalidInput."""
        key, at = self.key(name), check_before(before)
        if at == 1:
            return ()
        return await self._read(key, at or 0, limit=check_limit(limit), reverse=True)

    async def delete(
        self, name: str, *, expect: int | None = None, actor: str | None = None
    ) -> bool:
        """Delete the document. Return False if there is none. Its history stays, and it can be put
        again.

        With `expect=n` only if it is at version n, else it raises DocumentConflict. `purge` removes
        the history too.
        """
        key, wanted = self.key(name), check_expect(expect)
        acting = (self.actor if actor is None else check_actor(actor)) or _NOBODY
        draft, version = self._journal.prepare(document_deleted(actor=acting), None), 0
        async for _ in Tries():
            newest = await self._read(key, 0, limit=1, reverse=True)
            version = newest[0].seq if newest and newest[0].type != DELETED else 0
            if wanted not in (None, version):
                raise DocumentConflict(self.collection, name, wanted or 0, version)
            if not version:
                return False
            try:
                await self._journal.commit((Commit(key, (draft,), version),))
            except (SessionConflict, *_GONE):  # it was put, deleted or purged meanwhile
                continue
            return True
        raise DocumentConflict(self.collection, name, version, None)

    async def purge(self, name: str) -> bool:
        """Remove the document with its history. Return False if it does not exist.

        A later put starts again at version 1. Raises InvalidInput for a malformed name.
        """
        key = self.key(name)
        removed = await self._journal.store.delete(key)
        self._journal.hub.touch(key)
        return removed

    def key(self, name: str) -> Key:
        """Return the key under which a document is stored, for lp.maintenance.verify. Raises
        InvalidInput."""
        return Key(self._mark + self.collection, self._user, name)

    def check(self, value: Any) -> None:
        """Raise if a value does not belong in this collection. Any value does, unless
        overridden."""

    def shown(self, document: Document) -> Document:
        """Return a document as this collection presents it."""
        return document

    def _readable(self, entry: FeedEntry) -> tuple[Document, ...]:
        """Return the document of an entry; empty, with a warning, if its event is damaged."""
        try:
            return (self.shown(_document(entry.key, entry.event)),)
        except SessionCorrupt:
            SESSION.warning("document cannot be read: session=%s", entry.key)
            return ()

    async def _read(self, key: Key, after: int, *, limit: int, reverse: bool) -> tuple[Event, ...]:
        """Versions as events; nothing if there is no such log."""
        store = self._journal.store
        try:
            return await store.read(key, after=after, limit=limit, reverse=reverse, types=VERSIONS)
        except (*_GONE, SessionErased):
            return ()


class Internal(Documents):
    """A collection that Limpet itself reads. `lp.documents` cannot name it."""

    _mark = "$$"

    @property
    def app(self) -> str:
        """The reserved app of this collection."""
        return self._mark + self.collection

    def decoded(self, document: Document, form: type[T]) -> T | None:
        """The value of a document in this form. None, and a warning, if it has another: one that
        was damaged, or written by another release, must not stop the work on all others."""
        try:
            return msgspec.convert(document.value, form)
        except (msgspec.ValidationError, InvalidInput):
            SESSION.warning("document has another form: session=%s", self.key(document.name))
            return None


class Put:
    """One put of a document, on its way into a commit."""

    __slots__ = (
        "_actor",
        "_create",
        "_number",
        "_over",
        "_replace",
        "_value",
        "collection",
        "creates",
        "documents",
        "expect",
        "id",
        "interval",
        "journal",
        "key",
    )

    def __init__(
        self,
        documents: Documents,
        name: str,
        value: Any,
        *,
        expect: int | None = None,
        actor: str | None = None,
        id: str | None = None,
        interval: CheckpointInterval | None = None,
    ) -> None:
        """With an `interval` that was looked at: it is put between these two checkpoints."""
        self.journal, self.documents, self.interval = documents._journal, documents, interval
        documents.check(value)
        self.collection, self.key = documents.collection, documents.key(name)
        self.expect = self._over = check_expect(expect)
        self._value = value
        self._actor = documents.actor if actor is None else check_actor(actor)
        self.id = self.journal.new_id() if id is None else id
        self.creates = self.expect == 0
        self.prepare()

    def renumber(self) -> None:
        """Make its event again if another checkpoint is the newest now: the interval is shared,
        and another of its users may have looked."""
        if self.interval is not None and self.interval.number != self._number:
            self.prepare()

    def prepare(self) -> None:
        """Make its event, in two forms. Both have one id: whichever is recorded, a repeat finds
        it."""
        prepare, number = self.journal.prepare, self._newest()
        put = document_put(self._value, id=self.id, actor=self._actor, checkpoint=number)
        new = document_created(
            self.key, self._value, id=self.id, actor=self._actor, checkpoint=number
        )
        self._replace, self._create = prepare(put, None), prepare(new, None)

    def _newest(self) -> int | None:
        """The number of the newest checkpoint, which its event names."""
        self._number = None if self.interval is None else self.interval.number
        return self._number

    def commit(self) -> Commit:
        """Return the commit of a replacement, or of a creation, which also takes the name of a
        purged document."""
        if self.creates:
            return Commit(self.key, (self._create,), 0, reuse=True)
        return Commit(self.key, (self._replace,), self._over)

    async def turn(self, error: SessionError) -> None:
        """Try the other form next, or raise what this refusal means for a document."""
        newest = await self.documents._read(self.key, 0, limit=1, reverse=True)
        expect = self.expect
        deleted = newest[0].seq if newest and newest[0].type == DELETED else None
        if expect == 0 and deleted is not None:  # to be created, and deleted: it goes on there
            self.creates, self._over = False, deleted
        elif expect is None and not isinstance(error, SessionConflict):
            self.creates = isinstance(error, _GONE)
        else:
            actual = getattr(error, "actual", None)
            absent = deleted is not None or isinstance(error, _GONE)
            actual_version = 0 if absent else actual if isinstance(actual, int) else None
            raise DocumentConflict(
                self.collection, self.key.id, expect or 0, actual_version
            ) from error


class Removal(Put):
    """The deletion of a document, on its way into a commit."""

    __slots__ = ()

    def __init__(
        self,
        documents: Documents,
        name: str,
        *,
        actor: str,
        interval: CheckpointInterval | None = None,
    ) -> None:
        super().__init__(documents, name, None, actor=actor, interval=interval)

    def prepare(self) -> None:
        deleted = document_deleted(actor=self._actor or _NOBODY, checkpoint=self._newest())
        self._replace = self.journal.prepare(deleted, None)

    def commit(self) -> Commit:
        return Commit(self.key, (self._replace,))


async def commit_puts(
    journal: Journal, commits: Sequence[Commit], puts: Sequence[Put]
) -> tuple[tuple[Committed, ...], tuple[Document, ...]]:
    """Record commits of sessions and puts of documents, all or nothing.

    Returns all answers, those of the commits first, and the documents. Whether a document is
    replaced or created is decided on what is stored: a refused commit has changed nothing, so it is
    sent again in the other form. So is, with its number, one that met a new checkpoint.
    """
    by_key = {put.key: put for put in puts}
    if len(by_key) != len(puts):
        raise InvalidInput("one document is put twice in one commit. Put its last value only.")
    intervals = {put.interval.log: put.interval for put in puts if put.interval is not None}
    left = UPDATE_TRIES_MAX + len(puts)
    while True:
        held = [commit for each in intervals.values() for commit in each.commits()]
        for put in puts:
            put.renumber()
        try:
            answers = await journal.commit((*commits, *(put.commit() for put in puts), *held))
        except (*_GONE, SessionExists, SessionConflict) as error:
            left -= 1
            if not left or error.key not in (*by_key, *intervals):  # else it is a session's
                raise
            await _change(error.key, error, by_key, intervals)
            continue
        end = len(commits) + len(puts)
        pairs = zip(puts, answers[len(commits) : end], strict=True)
        made = [(put, _document(put.key, answer.events[0])) for put, answer in pairs]
        return answers[:end], tuple([put.documents.shown(document) for put, document in made])


async def _change(
    key: Key,
    error: SessionError,
    puts: Mapping[Key, Put],
    intervals: Mapping[Key, CheckpointInterval],
) -> None:
    """Change what was refused at this key, so that it may be sent again; or raise what it means."""
    if key in puts:
        await puts[key].turn(error)
    else:
        await intervals[key].look_again()


async def versioned(documents: Documents, name: str) -> str:
    """`name@version`: the version that was asked for, or the newest. Raises DocumentNotFound."""
    document = await asked_version(documents, name)
    return f"{document.name}@{document.version}"


async def asked_version(documents: Documents, name: str) -> Document:
    """The version of a document that `support@3` names, or the newest of `support`. Raises
    DocumentNotFound."""
    if not isinstance(name, str):
        wanted = "a document is named by a text, as in 'support' or 'support@3'"
        raise InvalidInput(f"{wanted}, not by {described(name)}.")
    base, _, version = name.partition("@")
    if version and not version.isdecimal():
        raise InvalidInput(f"{name!r} does not name a version: write it as in 'support@3'.")
    return await documents.get(base, int(version) if version else None)


def _document(key: Key, event: Event) -> Document:
    if event.type == DELETED:
        return Document(key.id, None, event.seq, event.at, event.actor, deleted=True)
    if event.data is None or VALUE not in event.data:
        raise SessionCorrupt(key, f"event {event.seq} cannot be read")
    return Document(key.id, event.data[VALUE], event.seq, event.at, event.actor)


def _listed(head: Head, state: Mapping[str, Any]) -> Document:
    """Return the document from the head and the state: its log ends with a put."""
    return Document(head.key.id, state[VALUE], head.version, to_time(head.updated_us), state[ACTOR])


def _check_owner(owner: tuple[str, str]) -> str:
    if not isinstance(owner, tuple) or len(owner) != 2:
        raise InvalidInput(
            f"owner is {described(owner)}. Pass an app and a user of it, as in "
            "owner=('support', 'ada')."
        )
    for part, text in zip(("app", "user"), owner, strict=True):
        if reason := unfit(text, KEY_PART_CHARS_MAX):
            raise InvalidKey(part, reason)
    if is_reserved(owner[0]):
        raise ReservedApp(owner[0])
    return owner_of(*owner)
