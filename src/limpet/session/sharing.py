"""Shares: fields of one session that another may read, or write, of the same app and user.

Both ends record a share in one commit. Whoever reads looks at the source first and at the own
session afterwards: what is handed out was read while the share was in force.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from limpet.errors import (
    AccessDenied,
    CrossSessionAccessDenied,
    InvalidInput,
    LimpetError,
    SessionConflict,
    SessionCorrupt,
    SessionDeleted,
    SessionEnded,
    SessionErased,
    SessionNotFound,
    ShareNotFound,
)
from limpet.model import (
    EMPTY,
    Commit,
    Event,
    Fold,
    Head,
    Key,
    checksum,
    described,
    ops as op,
    replay_any,
    scope_of,
    to_time,
)
from limpet.model.facts.moves import DEPARTED, departure
from limpet.model.facts.phases import TERMINAL, TRANSITIONS, is_stub
from limpet.model.facts.relations import key_in, named
from limpet.model.facts.shares import (
    SHARED,
    SHARED_FIELDS_MAX,
    SHARES_MAX,
    UNSHARED,
    ShareAccess,
    ShareSync,
    ShareTerms,
    share_received,
    share_used,
    share_written,
    shared,
    shared_id,
    shares_in,
    unshared,
)
from limpet.model.limits import PAGE_MAX
from limpet.model.values import FrozenDict
from limpet.session.history.point_in_time import head_now
from limpet.session.journal import Journal
from limpet.session.runs.delegation import head_of
from limpet.session.writer import Writer
from limpet.store.protocol import Loaded, Store

_GONE: Final[tuple[type[LimpetError], ...]] = (SessionNotFound, SessionDeleted, SessionErased)
_ENDS: Final = (*TRANSITIONS, UNSHARED, DEPARTED)  # events of the target that may end a share


class Shared(msgspec.Struct, frozen=True):
    """A share: the fields of `source` that the session `target` may use, and how."""

    id: str
    source: Key
    target: Key
    fields: tuple[str, ...]
    access: ShareAccess
    sync: ShareSync
    source_version: int
    at: datetime
    expires_at: datetime | None = None


class ImportedContext(msgspec.Struct, frozen=True):
    """The values of a share: current ones if it is live, those of its creation if it is a snapshot.

    Fields that the source does not have are missing. `versions` has the version of each field,
    which rises with every change, even if the value returns to an earlier one or the field is
    removed; 0 is a field that the source has not had since the share began. Those of a snapshot
    stay: what is written against them is refused once the source has changed.
    """

    values: Mapping[str, Any]
    versions: Mapping[str, int]
    at: datetime
    source_version: int
    access: ShareAccess
    sync: ShareSync


# --- granting ------------------------------------------------------------------------------------


async def share(
    source: Writer,
    target: Writer,
    fields: Sequence[str],
    *,
    access: ShareAccess,
    sync: ShareSync,
    ttl: timedelta | None,
    actor: str,
) -> Shared:
    """Record the share at both ends, in one commit."""
    journal = source.journal
    _check_terms(fields, access, sync, ttl)
    if target.journal.root is not journal.root:
        raise InvalidInput(f"{target.known.key} is open in another store. Share within one store.")
    here, there = source.known.key, target.known.key
    if here == there:
        raise InvalidInput(f"{here} has its own fields. Share them with another session.")
    if (here.app, here.user) != (there.app, there.user):
        raise CrossSessionAccessDenied(here, there)
    loaded = await _load(journal, here)
    if source.known.uid not in (None, loaded.head.uid):
        raise SessionDeleted(here)
    if sync == "snapshot" and (missing := [name for name in fields if name not in loaded.fields]):
        raise InvalidInput(f"{here} has no field {missing[0]!r}. Share fields that it has.")
    other = await head_now(target)
    for head in (loaded.head, other):
        if head.phase in TERMINAL:
            raise SessionEnded(head.key, head.phase)
    id, now_us = journal.new_id(), journal.now_us()
    expires_us = None if ttl is None else now_us + ttl // timedelta(microseconds=1)
    terms = ShareTerms(id, tuple(fields), access, sync, loaded.head.version, expires_us)
    values = {name: loaded.fields[name] for name in fields} if sync == "snapshot" else None
    values_hash = None if values is None else checksum(values).hex()
    versions = _guards(loaded, values or ())
    drafts = (
        journal.prepare(shared(terms, there, other.uid, values, versions), actor),
        # Those that have ended take no place among the shares that a session can have.
        *[journal.prepare(unshared(past), actor) for past in await _over(source, other, now_us)],
        journal.prepare(share_received(terms, here, loaded.head.uid, values_hash), actor),
    )
    # A snapshot names a version of the source: of values that changed meanwhile none is taken.
    answers = await journal.commit(
        (
            Commit(here, drafts[:1], guards=versions, uid=loaded.head.uid),
            Commit(there, drafts[1:], uid=other.uid),
        )
    )
    source.known.absorb(answers[0], drafts[:1])
    await target.absorb(journal, answers[1], drafts[1:])
    return _shared(id, there, shares_in(answers[1].head.facts)[id])


async def _over(source: Writer, target: Head, now_us: int) -> list[str]:
    """Return the shares of the target that have expired and, if it has no place left, those that
    their sources have ended without its log."""
    over = [id for id, terms in shares_in(target.facts).items() if _is_past(terms, now_us)]
    if len(shares_in(target.facts)) - len(over) < SHARES_MAX:
        return over
    journal = source.services.system.journal  # sources may be sessions that who shares may not see
    for id, terms in shares_in(target.facts).items():
        if id not in over:
            head = await head_of(journal, key_in(terms["source"]))
            # A snapshot outlives the end of its source, as long as its log is here.
            kept = terms["sync"] == "snapshot" and head is not None and not is_stub(head.facts)
            if not (_is_source(terms, head) if kept else _is_live(terms, head)):
                over.append(id)
    return over


def _is_source(terms: Mapping[str, Any], head: Head | None) -> bool:
    return head is not None and head.uid == terms["source"]["uid"]


def _is_live(terms: Mapping[str, Any], source: Head | None) -> bool:
    """True if the source of a share is there, and has not ended or departed."""
    if source is None or not _is_source(terms, source) or source.phase in TERMINAL:
        return False
    # The rows that a departed source left here are not its state now.
    return departure(source.facts) is None


class Given(NamedTuple):
    """A live share that a session has granted, as its log says: to whom, and by which session."""

    target: Key
    source: Mapping[str, Any]

    def is_received(self, id: str, target: Head) -> bool:
        """True if the target says so too: a log may name a share that is another session's."""
        terms = shares_in(target.facts).get(id)
        return terms is not None and terms["source"] == self.source


async def live_shares_given(store: Store, head: Head, *, limit: int = PAGE_MAX) -> dict[str, Given]:
    """Return the live shares that a session has granted and not taken back, by id."""
    given: dict[str, Given] = {}
    after, source = head.floor, named(head.key, head.uid)
    while page := await store.read(
        head.key, after=after, limit=limit, reverse=False, types=(SHARED, UNSHARED)
    ):
        for event in page:
            if event.data is None:
                continue
            if event.type == UNSHARED:
                given.pop(event.data["share"], None)
            elif event.data["sync"] == "live":
                given[event.data["share"]] = Given(key_in(event.data["target"]), source)
        after = page[-1].seq
    return given


async def notify_targets(journal: Journal, given: Mapping[str, Given], actor: str) -> None:
    """Record the end of live shares with those that received them, now that their source has ended.

    It has ended them by that. Where this is not recorded, a share cannot be used, is listed until
    the target has no place left for another, and takes none from it.
    """
    for target in dict.fromkeys([of.target for of in given.values()]):
        with suppress(LimpetError):
            head = await head_of(journal, target)
            if head is None:
                continue
            to = [id for id, of in given.items() if of.target == target]
            ends = [unshared(id) for id in to if given[id].is_received(id, head)]
            if ends:
                drafts = tuple([journal.prepare(end, actor) for end in ends])
                await journal.commit((Commit(target, drafts, uid=head.uid),))


def _is_past(terms: Mapping[str, Any], now_us: int) -> bool:
    expires_us = terms.get("expires_us")
    return expires_us is not None and expires_us <= now_us


def _guards(loaded: Loaded | Fold, names: Sequence[str] | Mapping[str, Any]) -> dict[str, int]:
    return {name: int(loaded.versions.get(name, 0)) for name in names}


async def unshare(own: Writer, id: str, actor: str) -> None:
    """End a share at both ends, in one commit, by either. Ended already, nothing changes."""
    journal = own.journal
    head = await head_now(own)
    received = shares_in(head.facts).get(_check_id(id))
    if received is not None:
        end = received["source"]
    else:
        (event, *_) = await journal.store.read_ids(head.key, (shared_id(id),)) or (None,)
        if event is None or event.data is None:
            raise ShareNotFound(id)
        end = event.data["target"]
    draft, other = journal.prepare(unshared(id), actor), journal.prepare(unshared(id), actor)
    commits = [Commit(head.key, (draft,), uid=head.uid)]
    try:
        there = (await _load(journal, key_in(end))).head
    except _GONE:
        there = None
    # One that has departed takes nothing more, and reads the share nowhere else.
    away = there is not None and departure(there.facts) is not None
    if there is not None and there.uid == end["uid"] and not away:
        if received is None and id not in shares_in(there.facts):
            return
        commits.append(Commit(there.key, (other,), uid=there.uid))
    answers = await journal.commit(commits)
    own.known.absorb(answers[0], (draft,))


def _check_terms(
    fields: Sequence[str], access: object, sync: object, ttl: timedelta | None
) -> None:
    if not fields or len(fields) > SHARED_FIELDS_MAX:
        raise InvalidInput(f"share names 1 to {SHARED_FIELDS_MAX} fields, not {len(fields)}.")
    for name in fields:
        if not isinstance(name, str) or not name or scope_of(name) != "session":
            raise InvalidInput(
                f"{described(name)} is not a field of a session. app: and user: names are shared "
                "by all of an app or user anyway."
            )
    if len(set(fields)) < len(fields):
        raise InvalidInput("a field is named twice. Name each once.")
    if access not in ("read", "write"):
        raise InvalidInput(f'access is "read" or "write", not {described(access)}.')
    if sync not in ("snapshot", "live"):
        raise InvalidInput(f'sync is "snapshot" or "live", not {described(sync)}.')
    if ttl is not None and (not isinstance(ttl, timedelta) or ttl <= timedelta()):
        raise InvalidInput(f"ttl is a timedelta greater than 0, not {described(ttl)}.")


def _check_id(id: object) -> str:
    if not isinstance(id, str) or not id:
        raise InvalidInput(f"a share is named by its id, not {described(id)}.")
    return id


# --- using ---------------------------------------------------------------------------------------


def received_shares(head: Head, now_us: int) -> Mapping[str, Shared]:
    """Return the shares that a session has received and that have not ended, by id."""
    if head.phase in TERMINAL or departure(head.facts) is not None:
        return EMPTY
    shares = shares_in(head.facts).items()
    return FrozenDict(
        {id: _shared(id, head.key, terms) for id, terms in shares if not _is_past(terms, now_us)}
    )


def _shared(id: str, target: Key, terms: Mapping[str, Any]) -> Shared:
    expires_us = terms.get("expires_us")
    return Shared(
        id,
        key_in(terms["source"]),
        target,
        tuple(terms["fields"]),
        terms["access"],
        terms["sync"],
        terms["version"],
        to_time(terms["at_us"]),
        None if expires_us is None else to_time(expires_us),
    )


class SharedReader:
    """Reads, follows and writes one share for the session that received it."""

    def __init__(self, target: Writer, id: str) -> None:
        self._target, self._id = target, _check_id(id)
        self._journal = target.journal
        self._source = target.journal  # which reads the source: see `_open`
        self._own_version = 0  # of the own head in which the share was seen last

    async def read(self, at_least: Mapping[str, int] | int | None) -> ImportedContext:
        """Return its values, once they have at least these versions. Raises ShareNotFound."""
        terms = await self._open(await self._terms())
        _check_at_least(at_least, terms["fields"])
        if terms["sync"] == "snapshot":
            context = await self._snapshot(terms)
            if not _reached(context, at_least):
                raise InvalidInput("a snapshot never changes. Read it without at_least.")
            return context
        while True:
            context = await self._live(terms)
            if _reached(context, at_least):
                return context
            await self._changed(terms, context.source_version)

    async def follow(self) -> AsyncGenerator[ImportedContext, None]:
        """Yield its values, and again after each change of one of them, until it ends."""
        terms = await self._open(await self._terms())
        context = await self.read(None)
        yield context
        while terms["sync"] == "live":
            try:
                await self._changed(terms, context.source_version)
                terms = await self._open(await self._terms())  # it may be kept from it by now
                newest = await self._live(terms)
                behind = newest.source_version > context.source_version + 1
                async with aclosing(self._since(terms, context, newest)) as since:
                    async for newer in since:
                        changed = newer.versions != context.versions
                        context = newer
                        if changed and behind:  # the share may have ended since they were read
                            await self._check(terms)
                        if changed:
                            yield context
            except ShareNotFound:
                return

    async def _since(
        self, terms: FrozenDict, known: ImportedContext, newest: ImportedContext
    ) -> AsyncGenerator[ImportedContext, None]:
        """Yield the values as they were after each event since `known` that may have changed one of
        them, and the newest: who is slower than the writer misses none. Raises ShareNotFound if the
        source is gone."""
        source, names, store = key_in(terms["source"]), terms["fields"], self._source.store
        version, versions = known.source_version, dict(known.versions)
        fold: Fold | None = None
        try:
            while version + 1 < newest.source_version:
                page = await store.read(
                    source, after=version, limit=PAGE_MAX, reverse=False, types=None
                )
                if not page:
                    raise ShareNotFound(self._id)
                fold = fold or await store.fold_at(source, version)
                for event in page:
                    if event.seq >= newest.source_version:
                        break
                    before, had = dict(versions), fold.fields
                    fold, whole = replay_any(fold, event)
                    if not whole:  # its body was removed: the store may have a snapshot beyond it
                        fold = await store.fold_at(source, event.seq)
                    for name in names:
                        if name in fold.fields:
                            versions[name] = fold.versions[name]
                        elif name in had or _changes(event, name):
                            versions[name] = event.seq
                    if versions != before:
                        yield _live_context(terms, fold, versions)
                version = page[-1].seq
        except _GONE:
            raise ShareNotFound(self._id) from None
        yield newest

    async def write(
        self, values: Mapping[str, Any], expect: Mapping[str, int], actor: str
    ) -> Mapping[str, int]:
        """Set fields of the source if they, and whatever else is named, still have these versions.
        Return the new ones.

        Raises SessionConflict, ShareNotFound, CrossSessionAccessDenied; InvalidInput for a field
        without a version.
        """
        terms, journal = await self._terms(), self._journal
        source, target = key_in(terms["source"]), self._target.known.key
        for name in (*values, *expect):
            if name not in terms["fields"]:
                raise CrossSessionAccessDenied(source, target, field=name)
        if terms["access"] != "write":
            raise CrossSessionAccessDenied(source, target, reason="this share may only be read")
        if not set(values) <= set(expect):
            raise InvalidInput("read_shared comes first, or pass expect={field: version}.")
        loaded = await self._load_source(terms)
        head = await self._head(terms)
        guards = await self._expected(terms, loaded, expect)
        ops = [op.Set((name,), value) for name, value in values.items()]
        written = journal.prepare(share_written(self._id, target, head.uid, ops), actor)
        used = journal.prepare(share_used(self._id, tuple(values)), actor)
        answers = await journal.commit(
            (
                Commit(
                    source,
                    (written,),
                    guards=guards,
                    classless=True,
                    uid=loaded.head.uid,
                ),
                Commit(target, (used,), uid=head.uid),
            )
        )
        self._target.known.absorb(answers[1], (used,))
        return dict.fromkeys(values, answers[0].head.version)

    async def _expected(
        self, terms: FrozenDict, loaded: Loaded, expect: Mapping[str, int]
    ) -> Mapping[str, int]:
        """Return the versions under which the store takes the write: it knows a field that is not
        there by 0. Raises SessionConflict."""
        absent = [name for name in expect if name not in loaded.fields]
        if not absent:
            return expect
        versions = await self._versions(terms, loaded)
        for name in absent:
            if expect[name] != versions[name]:
                key = key_in(terms["source"])
                raise SessionConflict(key, "name", expect[name], versions[name], name)
        return {**expect, **dict.fromkeys(absent, 0)}

    async def _open(self, terms: FrozenDict) -> FrozenDict:
        """Have the source read by the system, if the share is all that lets the reader in: its task
        or its agent is another one's. Return the terms with the fields that the reader may see.
        Raises ShareNotFound, AccessDenied."""
        services, source = self._target.services, key_in(terms["source"])
        self._source = self._journal
        if services.guard is None:
            return terms
        with suppress(*_GONE):
            apart, view = await services.kept_apart(source)
            if apart:
                self._source = services.system.journal
                await self._check_granted(terms, source)
                fields = [name for name in terms["fields"] if view is None or view.sees(name)]
                if terms["sync"] == "snapshot" and len(fields) < len(terms["fields"]):
                    raise AccessDenied("field_access_denied", "read", str(source))
                return FrozenDict({**terms, "fields": tuple(fields)})
        return terms

    async def _check_granted(self, terms: FrozenDict, source: Key) -> None:
        """Raise ShareNotFound unless the log of the source says that it shares this with the
        session, and has not ended it: what the session says of it alone opens nothing."""
        store, own = self._source.store, self._target.known
        (event, *_) = await store.read_ids(source, (shared_id(self._id),)) or (None,)
        if event is None or event.data is None:
            raise ShareNotFound(self._id)
        said, head = event.data, await head_now(self._target)
        same = all([said[name] == terms[name] for name in ("fields", "sync", "access")])
        if not same or said["target"] != named(own.key, head.uid):
            raise ShareNotFound(self._id)
        after = event.seq
        while page := await store.read(
            source, after=after, limit=PAGE_MAX, reverse=False, types=(UNSHARED,)
        ):
            if any([each.data is not None and each.data["share"] == self._id for each in page]):
                raise ShareNotFound(self._id)
            after = page[-1].seq

    async def _terms(self) -> FrozenDict:
        head = await head_now(self._target)
        terms: FrozenDict | None = shares_in(head.facts).get(self._id)
        if terms is None or self._ended(head, terms):
            raise ShareNotFound(self._id)
        self._own_version = head.version
        return terms

    async def _head(self, terms: FrozenDict) -> Head:
        """Return the own head, in which the share is still in force."""
        head = await head_now(self._target)
        if self._id not in shares_in(head.facts) or self._ended(head, terms):
            raise ShareNotFound(self._id)
        self._own_version = head.version
        return head

    async def _check(self, terms: FrozenDict) -> None:
        """Raise ShareNotFound if the share has ended, at either of its sessions."""
        self._check_source(terms, await head_of(self._source, key_in(terms["source"])))
        await self._head(terms)

    def _check_source(self, terms: FrozenDict, head: Head | None) -> None:
        if not _is_live(terms, head):
            raise ShareNotFound(self._id)

    def _ended(self, target: Head, terms: FrozenDict) -> bool:
        return _is_past(terms, self._journal.now_us()) or target.phase in TERMINAL

    async def _load_source(self, terms: FrozenDict) -> Loaded:
        try:
            loaded = await _load(self._source, key_in(terms["source"]))
        except _GONE:
            raise ShareNotFound(self._id) from None
        self._check_source(terms, loaded.head)
        return loaded

    async def _live(self, terms: FrozenDict) -> ImportedContext:
        loaded = await self._load_source(terms)
        versions = await self._versions(terms, loaded)
        await self._head(terms)  # afterwards: see the module
        return _live_context(terms, loaded, versions)

    async def _versions(self, terms: FrozenDict, loaded: Loaded) -> Mapping[str, int]:
        """Return the version of each field. That of one that the source does not have is the event
        that took it away: with 0 it would go backwards, and who waits for it would not wake."""
        versions = _guards(loaded, terms["fields"])
        absent = [name for name in versions if name not in loaded.fields]
        if not absent:
            return versions
        begins: tuple[int, Mapping[str, int]] = (terms["version"], {})
        after, removals = (self._target.shared_removals or {}).get(self._id, begins)
        at = loaded.head.version
        if after > at:  # another read of this object was faster
            after, removals = begins
        for name in absent:
            newest = await self._last_change(terms, name, after, at)
            versions[name] = newest or removals.get(name, 0)
        known = self._target.shared_removals or {}
        self._target.shared_removals = {**known, self._id: (at, {n: versions[n] for n in absent})}
        return versions

    async def _last_change(self, terms: FrozenDict, name: str, after: int, at: int) -> int:
        """Return the newest event of the source up to `at` that changed a field; 0 if there is none
        beyond `after`. The store finds it without decoding what does not name the field."""
        source, store, before = key_in(terms["source"]), self._source.store, at + 1
        try:
            while page := await store.naming(
                source, name, before=before, after=after, limit=PAGE_MAX
            ):
                for event in page:
                    if _changes(event, name):
                        return event.seq
                before = page[-1].seq
        except _GONE:
            raise ShareNotFound(self._id) from None
        return 0

    async def _snapshot(self, terms: FrozenDict) -> ImportedContext:
        source = terms["source"]
        try:
            events = await self._source.store.read_ids(key_in(source), (shared_id(self._id),))
        except _GONE:
            events = ()
        if not events or (data := events[0].data) is None:
            raise ShareNotFound(self._id)
        values = data["values"]
        if hidden := [name for name in terms["fields"] if name not in values]:
            raise AccessDenied("field_access_denied", "read", f"{key_in(source)}#{hidden[0]}")
        if checksum(values).hex() != terms["hash"]:
            raise SessionCorrupt(key_in(source), f"what it shared in {events[0].seq} has changed")
        await self._head(terms)
        return ImportedContext(
            values,
            data.get("versions") or dict.fromkeys(values, terms["version"]),
            to_time(terms["at_us"]),
            terms["version"],
            terms["access"],
            "snapshot",
        )

    async def _changed(self, terms: FrozenDict, version: int) -> None:
        """Return when the source has an event beyond `version`, or the share may have ended: it
        expires, or one of the two sessions ends."""
        expires_us = terms.get("expires_us")
        left = None if expires_us is None else (expires_us - self._journal.now_us()) / 1e6
        source, own = key_in(terms["source"]), self._target.known.key
        waits = (
            asyncio.ensure_future(_next(self._source, source, version, None)),
            asyncio.ensure_future(_next(self._journal, own, self._own_version, _ENDS)),
        )
        try:
            done, _ = await asyncio.wait(
                waits,
                timeout=None if left is None else max(left, 0),
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        for wait in done:
            with suppress(*_GONE):
                wait.result()


async def _next(journal: Journal, key: Key, version: int, types: tuple[str, ...] | None) -> None:
    """Return when a session has an event, of these types, beyond a version."""
    events = journal.hub.follow(key, version, types, partials=False)
    async with aclosing(events):
        await anext(events)


def _live_context(
    terms: FrozenDict, of: Loaded | Fold, versions: Mapping[str, int]
) -> ImportedContext:
    return ImportedContext(
        FrozenDict({name: of.fields[name] for name in terms["fields"] if name in of.fields}),
        FrozenDict(versions),
        to_time(of.head.updated_us),
        of.head.version,
        terms["access"],
        "live",
    )


def _changes(event: Event, name: str) -> bool:
    """True if the event has an operation on the field, or may have had one."""
    return event.removed or event.damage is not None or name in [o.path[0] for o in event.ops]


def check_shared_write(values: object, expect: object) -> None:
    """Raise InvalidInput unless these are fields to set, and versions of some of them."""
    if not isinstance(values, Mapping) or not values:
        raise InvalidInput("write_shared takes the fields to set, as in {'draft': …}.")
    if expect is None:
        return
    if not isinstance(expect, Mapping) or any(
        not isinstance(name, str) or type(version) is not int for name, version in expect.items()
    ):
        raise InvalidInput("expect has versions of shared fields, as in {'draft': 7}.")


def _check_at_least(at_least: object, fields: Sequence[str]) -> None:
    if at_least is None or (type(at_least) is int and at_least >= 0):
        return
    if not isinstance(at_least, Mapping) or any(
        name not in fields or type(version) is not int for name, version in at_least.items()
    ):
        raise InvalidInput(
            "at_least is a version of the source, or a version for each of the shared fields."
        )


def _reached(context: ImportedContext, at_least: Mapping[str, int] | int | None) -> bool:
    if at_least is None:
        return True
    if isinstance(at_least, int):
        return context.source_version >= at_least
    return all([context.versions.get(name, 0) >= least for name, least in at_least.items()])


async def _load(journal: Journal, key: Key) -> Loaded:
    loaded = await journal.store.load(key, tail=0, scopes=False)
    if loaded.damaged:
        raise SessionCorrupt(key, f"event {loaded.damaged[0]} cannot be read")
    return loaded
