"""Citations: what one session reads of another by a relation, and nothing else.

A relation names what may be read: the output of the other session, fields of its state, blobs. It
has the hash of each, so what is read is what was cited, or it is an error. Whoever makes it must be
allowed to read all of that, and is remembered. Each read asks both sides again: whoever reads must
be allowed to read the citing session, and the maker must still be allowed to read the other.
Nothing is copied, so nothing outlives the session that it comes from.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import msgspec

from limpet.errors import (
    AccessDenied,
    BlobNotFound,
    CitedChanged,
    CrossSessionAccessDenied,
    InvalidInput,
    LimpetError,
    RelationNotFound,
    SessionArchived,
    SessionCorrupt,
    SessionDeleted,
    SessionErased,
    SessionMoved,
    SessionNotFound,
)
from limpet.model import EMPTY, Commit, Head, Key, canonical, described, scope_of, to_time
from limpet.model.facts.isolation import isolation_in
from limpet.model.facts.moves import ARRIVED
from limpet.model.facts.phases import TYPES, archive_place
from limpet.model.facts.relations import CITED_MAX, UNRELATED, ReadTerms, RelationKind, related
from limpet.model.limits import PAGE_MAX
from limpet.model.state.types import Ref
from limpet.model.values import FrozenDict
from limpet.session.blobs import AnyRef, hash_of, kept_blob, read_blob_chunk
from limpet.session.history.point_in_time import head_now
from limpet.session.journal import Journal
from limpet.session.performed import ask_server, server_of
from limpet.session.relations import InForce, Relation, relate, relations_in_force
from limpet.session.services import Services
from limpet.session.writer import Writer

if TYPE_CHECKING:
    from limpet.store.protocol import Loaded

_GONE: Final[tuple[type[LimpetError], ...]] = (
    SessionNotFound,
    SessionDeleted,
    SessionErased,
    SessionMoved,
)
_COMPLETED: Final = TYPES["complete"]
_SAID: Final = "agent.message"
_TAIL: Final = 20
_NOT_ANY_MORE: Final = "who made the relation may not read it any more"


class Cited(msgspec.Struct, frozen=True):
    """Content of another session that a relation lets one read: its output, values of its fields,
    and blobs, whose content `s.blobs.get(ref)` of the session that cites them returns.

    The output of a session is what it was completed with, or else the last message of its agent.
    """

    id: str
    kind: RelationKind
    source: Key
    output: Any
    values: Mapping[str, Any]
    blobs: tuple[Ref[Any], ...]
    source_version: int
    at: datetime


# --- the session that is read --------------------------------------------------------------------


class Source:
    """A session that another one reads, as one principal sees it: from the store, or from its file
    if it is archived."""

    def __init__(self, journal: Journal, loaded: Loaded, uid: str) -> None:
        self.journal, self.uid = journal, uid
        self.head, self.fields = loaded.head, loaded.fields

    @classmethod
    async def opened(cls, services: Services, key: Key) -> Source:
        """Open it. Raises AccessDenied, SessionNotFound, SessionDeleted, SessionMoved."""
        journal, system = services.journal, await services.permitted("read", key)
        loaded = await journal.store.load(key, tail=0, scopes=False)
        head = loaded.head
        head.check_here()
        place = archive_place(head.facts)
        if place is None:
            return cls(journal, loaded, head.uid)
        from limpet.session.life.archive import read_archived

        apart = await read_archived(system, head)
        if services.guard is not None:
            from limpet.session.acting import acting

            apart = acting(apart, services.guard)
        return cls(
            apart.journal,
            await apart.journal.store.load(key, tail=0, scopes=False),
            str(place["uid"]),
        )

    async def output(self) -> Any:
        """Return what it was completed with, else the last message of its agent; None if neither
        is there."""
        store, key = self.journal.store, self.head.key
        for type in (_COMPLETED, _SAID):
            newest = await store.read(key, after=0, limit=1, reverse=True, types=(type,))
            data = EMPTY if not newest or newest[0].data is None else newest[0].data
            if type == _COMPLETED:
                if data.get("output") is not None:
                    return data["output"]
            elif newest:
                return data.get("text", data.get("content"))
        return None

    async def blob(self, hash: str) -> Ref[Any] | None:
        return await kept_blob(self.journal, self.head.key, hash)


def _fingerprint(value: Any) -> str:
    return sha256(canonical(value)).hexdigest()


def check_reaches(source: Key, head: Head, citing: Key) -> None:
    """Raise CrossSessionAccessDenied unless a session may read this one at all: it is of the same
    app, and of the same user or of one whom it lets in."""
    isolation = isolation_in(head.facts)
    if source.app != citing.app:
        raise CrossSessionAccessDenied(source, citing, reason="they are of two apps")
    if isolation.model != "global" and citing.user not in (source.user, *isolation.users):
        reason = f"its isolation does not let the user {citing.user!r} in"
        raise CrossSessionAccessDenied(source, citing, reason=reason)


# --- making one ----------------------------------------------------------------------------------


async def pinned(
    own: Writer,
    other: Key,
    actor: str,
    *,
    outputs: bool = False,
    fields: Iterable[str] = (),
    blobs: Iterable[AnyRef] = (),
) -> tuple[ReadTerms, str]:
    """Return what the session may read of the other, as it is now, and the uid of the other. Raises
    CrossSessionAccessDenied, InvalidInput if there is nothing of that name, BlobNotFound."""
    names, hashes = _names(fields), _hashes(blobs)
    services, citing = own.services, own.known.key
    await services.foreseen("write", citing, actor)
    if other == citing:
        raise InvalidInput(f"{other} reads its own state anyway. Name another session.")
    if other.app != citing.app:
        raise CrossSessionAccessDenied(other, citing, reason="they are of two apps")
    try:
        source = await Source.opened(services, other)
    except AccessDenied as denied:
        reason = "who cites it may not read it"
        raise CrossSessionAccessDenied(other, citing, reason=reason) from denied
    check_reaches(other, source.head, citing)
    output = await source.output() if outputs else None
    if outputs and output is None:
        raise InvalidInput(
            f"{other} has no output yet: it was not completed with one, and its agent has said "
            "nothing. Relate it without outputs, or once it is done."
        )
    if missing := [name for name in names if name not in source.fields]:
        raise InvalidInput(f"{other} has no field {missing[0]!r}. Cite fields that it has.")
    refs = [await source.blob(hash) for hash in hashes]
    for hash, ref in zip(hashes, refs, strict=True):
        if ref is None:
            raise BlobNotFound(other, hash)
    for hash in _hashes_in(output)[: CITED_MAX - len(refs)]:  # what the output names goes with it
        refs.append(await source.blob(hash) if hash not in hashes else None)
    maker = None
    if services.guard is not None:
        from limpet.security.access import principal_data

        maker = principal_data(services.guard.principal)
    reads = ReadTerms(
        source.head.version,
        _fingerprint(output) if outputs else None,
        {name: _fingerprint(source.fields[name]) for name in names},
        tuple([ref.data for ref in refs if ref is not None]),
        maker,
    )
    return reads, source.uid


async def cite(
    own: Writer, there: Writer, fields: Iterable[str], blobs: Iterable[AnyRef], actor: str
) -> Relation:
    """Record with the citing session what it may read of the other, and return it."""
    other = _key_here(own, there)
    fields, blobs = tuple(_names(fields)), tuple(_hashes(blobs))
    if not fields and not blobs:
        raise InvalidInput("cite names fields, blobs, or both: fields=('draft',), blobs=(ref,).")
    if (server := server_of(own.journal)) is not None:
        made: Relation = await ask_server(
            server, "cite", own.known.key, other, fields, blobs, actor
        )
        await own.load(tail=_TAIL)
        return made
    reads, uid = await pinned(own, other, actor, fields=fields, blobs=blobs)
    return await _record(own, other, uid, "reference", reads, actor)


async def relate_outputs(
    own: Writer, other: Writer, kind: RelationKind | None, actor: str
) -> Relation:
    """Record that the session may read the output of its predecessor or reference. Both record the
    relation, or the session alone where the other cannot be written."""
    key = _key_here(own, other)
    if kind not in ("predecessor", "reference"):
        raise InvalidInput(
            "outputs are read of a predecessor or a reference: s.relate(other, 'predecessor', "
            "outputs=True)."
        )
    if (server := server_of(own.journal)) is not None:
        made: Relation = await ask_server(server, "relate_outputs", own.known.key, key, kind, actor)
        await own.load(tail=_TAIL)
        return made
    reads, uid = await pinned(own, key, actor, outputs=True)
    try:
        return await relate(own, other, kind, actor, reads=reads)
    except (AccessDenied, SessionArchived):
        return await _record(own, key, uid, kind, reads, actor)


async def _record(
    own: Writer, other: Key, uid: str, kind: RelationKind, reads: ReadTerms, actor: str
) -> Relation:
    """Record a relation with the citing session alone."""
    id, head = own.journal.new_id(), await head_now(own)
    fact = related(kind, "to", other, uid, actor, reads=reads, id=id)
    draft = own.journal.prepare(fact, actor)
    fence = None if own.lease is None else own.lease.fence
    (answer,) = await own.journal.commit((Commit(head.key, (draft,), fence=fence, uid=head.uid),))
    own.known.absorb(answer, (draft,))
    return (await _in_force(own, id)).relation


async def _in_force(own: Writer, id: str) -> InForce:
    """Return a relation in force, by its id. Raises RelationNotFound."""
    head = await head_now(own)
    for each in await relations_in_force(own.journal.store, head):
        if each.relation.id == id:
            return each
    raise RelationNotFound(id)


def _key_here(own: Writer, other: Writer) -> Key:
    """The key of another session of the same store. Raises InvalidInput. Two principals of one
    store may have opened them."""
    key = other.known.key
    if other.services.system.journal is not own.services.system.journal:
        raise InvalidInput(
            f"{key} is open in another store, or was read from its archived file. Cite sessions of "
            "one store, an archived one as lp.session(key)."
        )
    return key


def _names(fields: Iterable[str]) -> list[str]:
    wrong = isinstance(fields, (str, Mapping)) or not isinstance(fields, Iterable)
    names = [] if wrong else list(dict.fromkeys(fields))
    if wrong or not all([isinstance(n, str) and n and scope_of(n) == "session" for n in names]):
        raise InvalidInput(
            "fields are names of top-level fields of the other session, as in fields=('draft',). "
            "app: and user: names are shared by all of an app or user anyway."
        )
    return _bounded("fields", names)


def _hashes(blobs: Iterable[AnyRef]) -> list[str]:
    if isinstance(blobs, (str, Mapping)) or not isinstance(blobs, Iterable):
        raise InvalidInput(f"blobs are Refs, as in blobs=(ref,), not {described(blobs)}.")
    return _bounded("blobs", list(dict.fromkeys(map(hash_of, blobs))))


def _bounded(what: str, named: list[str]) -> list[str]:
    if len(named) > CITED_MAX:
        raise InvalidInput(f"a session cites up to {CITED_MAX} {what} at once, not {len(named)}.")
    return named


def _hashes_in(value: Any) -> list[str]:
    """The hashes of the blobs that an output names, by their Refs."""
    hashes: dict[str, None] = {}
    waiting = [value]
    for each in waiting:
        if isinstance(each, Mapping):
            if isinstance(each.get("uri"), str) and isinstance(each.get("sha256"), str):
                hashes[each["sha256"]] = None
            waiting += each.values()
        elif isinstance(each, (list, tuple)):
            waiting += each
    return list(hashes)


# --- reading -------------------------------------------------------------------------------------


async def read_cited(own: Writer, id: str) -> Cited:
    """Return what a relation lets the session read: see `Session.read_cited`."""
    if (server := server_of(own.journal)) is not None:
        cited: Cited = await ask_server(server, "read_cited", own.known.key, id)
        return cited
    await own.services.permitted("read", own.known.key)
    recorded = await _in_force(own, id)
    relation, reads = recorded.relation, recorded.reads
    if reads is None:
        raise RelationNotFound(id)
    source = await _source(own, recorded)

    output = None if reads.output is None else await source.output()
    if reads.output is not None and _fingerprint(output) != reads.output:
        raise CitedChanged(id, relation.key, "the output")
    values = {
        name: _cited_field(source.fields, name, hash, id, relation.key)
        for name, hash in reads.fields.items()
    }
    await _in_force(own, id)  # what is handed out was read while it was in force
    return Cited(
        id,
        relation.kind,
        relation.key,
        output,
        FrozenDict(values),
        relation.blobs,
        reads.version,
        to_time(source.head.updated_us),
    )


def _cited_field(fields: Mapping[str, Any], name: str, hash: str, id: str, key: Key) -> Any:
    if name not in fields or _fingerprint(fields[name]) != hash:
        raise CitedChanged(id, key, f"the field {name!r}")
    return fields[name]


async def _source(own: Writer, recorded: InForce) -> Source:
    """Open the session that a relation lets this one read, as its maker may read it now.

    Raises RelationNotFound if that is gone, CrossSessionAccessDenied if the maker may not read it
    any more.
    """
    relation, reads = recorded.relation, recorded.reads
    assert reads is not None
    services, citing = own.services.system, own.known.key
    if reads.maker is not None:
        from limpet.security.access import principal_in
        from limpet.session.acting import acting_as

        services = acting_as(services, principal_in(reads.maker))
    try:
        source = await Source.opened(services, relation.key)
    except _GONE:
        raise RelationNotFound(relation.id) from None
    except AccessDenied as denied:
        raise CrossSessionAccessDenied(relation.key, citing, reason=_NOT_ANY_MORE) from denied
    if source.uid != recorded.uid:  # another session has the key
        raise RelationNotFound(relation.id)
    if await _is_ended_there(source, recorded, (await head_now(own)).uid):
        raise RelationNotFound(relation.id)
    check_reaches(relation.key, source.head, citing)
    if services.guard is not None:
        from limpet.security.access import Resource

        key = relation.key
        for name in reads.fields:
            field = Resource("field", key.app, key.user, key.id, name, source.head)
            if not services.guard.allows("read", field):
                raise CrossSessionAccessDenied(key, citing, reason=_NOT_ANY_MORE)
    return source


async def _is_ended_there(source: Source, recorded: InForce, citing: str) -> bool:
    """True if the other session has been at another node since it was cited, or has itself ended
    its relations of this kind with the one that cites it, whose uid this is."""
    assert recorded.reads is not None
    store, key, after = source.journal.store, source.head.key, recorded.reads.version
    mirrored = f"related/{recorded.relation.kind}/from/{citing}"
    types = (ARRIVED, UNRELATED)
    while page := await store.read(key, after=after, limit=PAGE_MAX, reverse=False, types=types):
        for event in page:
            ended = "" if event.data is None else event.data.get("relation", "")
            if event.type == ARRIVED or ended == mirrored or ended.startswith(f"{mirrored}/"):
                return True
        after = page[-1].seq
    return False


async def cited_chunk(own: Writer, hash: str, number: int) -> tuple[bytes, int]:
    """Return one chunk of a blob that a relation lets the session read, and how many there are.
    Raises BlobNotFound if none does, and what refuses the newest that did."""
    if (server := server_of(own.journal)) is not None:
        sent: tuple[bytes, int] = await ask_server(
            server, "cited_chunk", own.known.key, hash, number
        )
        return sent
    await own.services.permitted("read", own.known.key)
    refused: LimpetError = BlobNotFound(own.known.key, hash)
    for recorded in reversed(await relations_in_force(own.journal.store, await head_now(own))):
        if hash not in [ref.sha256 for ref in recorded.relation.blobs]:
            continue
        try:
            source = await _source(own, recorded)
            return await read_blob_chunk(source.journal, source.head.key, hash, number)
        except LimpetError as error:
            refused = error
    raise refused


async def cited_blob(own: Writer, hash: str) -> AsyncGenerator[bytes, None]:
    """Yield a blob that a relation lets the session read, chunk by chunk."""
    number, chunks, content = 0, 1, sha256()
    while number < chunks:
        chunk, chunks = await cited_chunk(own, hash, number)
        number += 1
        content.update(chunk)
        if number == chunks and content.hexdigest() != hash:
            raise SessionCorrupt(
                own.known.key, f"the cited blob {hash} has another content than its hash says"
            )
        yield chunk
