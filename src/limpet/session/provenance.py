"""Provenance: where the sessions of a sealed store stand, and what the store signs of them.

A commit costs nothing more here: where sessions stand is noted, and written to the ring as anchors
when a session is checkpointed or completed, and when the store is closed. `verify` compares them
with the log, which finds a tail that was cut off and a head that was rolled back.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from limpet.errors import InvalidInput, LimpetError, SessionCorrupt
from limpet.model import Commit, Head, Key, canonical, chain, is_input, to_time
from limpet.model.facts.phases import COMPLETED, archive_place
from limpet.model.limits import PAGE_MAX
from limpet.store.pages import each_head
from limpet.store.protocol import (
    ChainedEvent,
    Check,
    Committed,
    ErasedSession,
    Erasure,
    ErasureCertificate,
    Finding,
    Query,
    Records,
    RingBinding,
    Store,
)

if TYPE_CHECKING:
    from limpet.security.keys import Anchor, KeySeal
    from limpet.security.receipts import Proof, Receipt

NOTED_MAX: Final = 10_000  # sessions whose place is noted before all of them are anchored
_COMPLETED: Final = "session.completed"
_LOG: Final = logging.getLogger("limpet.keys")


class ErasureCount:
    """Counts what an erasure removes, for its certificate."""

    def __init__(self, subject: Literal["session", "user"], key: Key, by: str) -> None:
        self.subject, self.key = subject, key
        # A certificate stays, and must not keep the name of whom it is about.
        self.by = (
            "the user" if by == f"user:{key.user}" else str(by)
        )  # no DefaultActor: it is encoded
        self.heads: list[Head] = []
        self.names = self.documents = self.files = 0

    def add(self, head: Head) -> None:
        """Count a session that goes."""
        self.heads.append(head)


class Provenance:
    """The position of each session of a store, as its ring remembers it, and what it signs of
    them."""

    def __init__(self, store: Store, seal: KeySeal) -> None:
        self._store, self.seal = store, seal
        self._noted: dict[str, Head] = {}

    # --- around commits -------------------------------------------------------------------------

    def note(self, commits: Sequence[Commit], answers: Sequence[Committed]) -> bool:
        """Note where sessions stand. True if `settle` has something to do."""
        noted = self._noted
        completed = False
        for answer in answers:
            head = answer.head
            noted[head.uid] = head
            if "phase" in head.facts and head.facts["phase"] == COMPLETED:
                completed = True
        if completed:
            return True
        return len(noted) > NOTED_MAX or any([commit.pin is not None for commit in commits])

    async def settle(self, answers: Sequence[Committed]) -> None:
        """Anchor what was noted, and sign what was completed. The commit has happened, so nothing
        is raised: what could not be written is written with the next anchors."""
        try:
            await self.anchor_noted()
            for answer in answers:
                if any([event.type == _COMPLETED for event in answer.events]):
                    await self.sign(answer.head)
        except (LimpetError, OSError) as error:
            _LOG.warning("anchors not written: error=%r", error)

    async def anchor_noted(self) -> None:
        """Write where sessions stand to the ring."""
        noted, self._noted = self._noted, {}
        try:
            await self._anchor(noted.values())
        except BaseException:
            self._noted = noted | self._noted
            raise

    async def close(self) -> None:
        """Anchor what was noted, as far as the ring can be reached."""
        try:
            await self.anchor_noted()
        except Exception as error:
            _LOG.warning("anchors not written: error=%r", error)

    async def anchor_all(self) -> int:
        """Accept every session as it stands, and that sessions are missing. What was erased, and
        came back with a backup, stays without keys."""
        assert isinstance(self._store, RingBinding)
        done = 0
        there: set[str] = set()
        async for head in each_head(self._store, Query(reverse=False, reserved=True)):
            standing = _standing(head)
            held = await self.seal.held(list(standing))
            if head.uid in held:
                await self._store.accept_head(head.key)
            done += await self._anchor([standing[uid] for uid in held], back=True)
            there |= standing.keys()
        async for head in each_head(self._store, Query(reverse=False, reserved=True, deleted=True)):
            there |= _standing(head).keys()
        missing = [uid async for uid, _ in self.seal.anchors(None) if uid not in there]
        await self.seal.ring.drop("anchor", missing)
        return done

    async def _anchor(self, heads: Iterable[Head], *, back: bool = False) -> int:
        """Anchor those whose keys are in the ring: an erased session stays forgotten."""
        by_uid = {head.uid: head for head in heads}
        await self.seal.ready(await self.seal.held(list(by_uid)))
        return await self.seal.anchor(
            {uid: (head.key, head.version, head.link) for uid, head in by_uid.items()}, back=back
        )

    async def renew(self, key: Key) -> int:
        """Give a session, or its archived log, another data key; return its number."""
        loaded = await self._store.load(key, tail=0, scopes=False)
        numbers = [await self.seal.renew(uid) for uid in _standing(loaded.head)]
        return numbers[0]

    # --- verification ---------------------------------------------------------------------------

    async def findings(self, key: Key | None) -> list[Finding]:
        """Compare the anchors with the log: of one session, or of all."""
        if key is None:
            heads = await self._heads()
        else:
            heads = _standing((await self._store.load(key, tail=0, scopes=False)).head)
        problems: list[Finding] = []
        async for uid, anchor in self.seal.anchors(None if key is None else list(heads)):
            problem = await self._compare(heads.get(uid), uid, anchor)
            if problem is not None and key is not None and "departed" in heads[uid].facts:
                # It is on its way back: what is staged of it goes further than what it left.
                problem = await self._compare((await self._heads()).get(uid), uid, anchor)
            if problem is not None:
                where = heads[uid].key if uid in heads else Key(anchor.app, anchor.user, anchor.id)
                problems.append(Finding("session", problem, where, anchor.version))
        return problems

    async def compared(self, uid: str, version: int, link: bytes) -> tuple[Finding, ...]:
        """Compare a place in the history of a session, from elsewhere, with its log."""
        head = (await self._heads()).get(uid)
        problem = await self._problem(head, version, link, "receipt")
        key = None if head is None else head.key
        return () if problem is None else (Finding("session", problem, key, version),)

    async def _heads(self) -> dict[str, Head]:
        """Return the position of every session by its uid; deleted and archived ones too.

        One that came back, from another store or from the archive, stands where it is now and not
        where it left a tombstone; of several logs, as while one is staged, the longest counts.
        """
        heads: dict[str, Head] = {}
        for deleted in (True, False):
            standing: dict[str, Head] = {}
            query = Query(reverse=False, reserved=True, deleted=deleted)
            async for head in each_head(self._store, query):
                for uid, each in _standing(head).items():
                    if uid not in standing or standing[uid].version < each.version:
                        standing[uid] = each
            heads |= standing
        return heads

    async def _compare(self, head: Head | None, uid: str, anchor: Anchor) -> str | None:
        if not await self.seal.vouches(uid, anchor):
            return "has an anchor in the key ring that was changed"
        return await self._problem(head, anchor.version, anchor.link, "anchor in the key ring")

    async def _problem(
        self, head: Head | None, version: int, link: bytes, source: str
    ) -> str | None:
        """Return what is wrong with a session that stood at this version and link, as `source`
        says."""
        if head is None:
            return f"is missing, and there is its {source}: its log was removed"
        if head.version < version:
            return (
                f"ends at version {head.version:,}, before its {source}: its tail was cut off, or "
                "it was rolled back. After restoring a backup on purpose, call lp.keys.anchor()"
            )
        there = head.link
        if head.version > version:
            if head.deleted_us is not None or "archive" in head.facts:
                return None  # of its log, only the end is here
            assert isinstance(self._store, Records)
            records = await self._store.records(head.key, after=version - 1, limit=1)
            there = records[0].event.link if records else b""
        return None if there == link else f"has another link than its {source}"

    def checks(self, data: str) -> tuple[Check, ...]:
        """A warning for the doctor if ring and data are in one directory."""
        ring = self.seal.ring.path
        if ring is None:
            return (Check("keys", f"ring {self.seal.id} at {self.seal.ring.where}"),)
        from limpet.store.open import files_path, scheme_of, sqlite_path

        paths = {"sqlite": sqlite_path, "files": files_path}
        path_of = paths.get(scheme_of(data))
        beside = path_of is not None and path_of(data).absolute().parent == ring.parent
        if not beside:
            return (Check("keys", f"ring {self.seal.id} at {ring}"),)
        text = f"the key ring {ring.name} is in the directory of the data"
        return (Check("keys", text, "warning", _APART),)

    # --- receipts -------------------------------------------------------------------------------

    async def sign(self, head: Head, *, keep: bool = True) -> Receipt:
        """Sign where a session stands; `keep` remembers it in the ring."""
        from limpet.security.keys import signer_id
        from limpet.security.receipts import MerkleTree, Receipt, hashed_key

        links = [record.event.link async for record in self._read_chain(head)]
        root = MerkleTree(links).root
        at, signer = to_time(self._store.now_us()), signer_id(self.seal.public_bytes)
        names = (hashed_key(head.key, head.uid), head.uid, head.version, head.link, root, at)
        draft = Receipt(*names, signer, b"")
        receipt = msgspec.structs.replace(draft, signature=self.seal.sign(draft.message))
        if keep:
            await self.seal.keep_receipt(head.uid, msgspec.msgpack.encode(receipt))
        return receipt

    async def receipt(self, head: Head) -> Receipt:
        """The receipt of completion if the session still stands there, else a new one."""
        from limpet.security.receipts import Receipt

        kept = await self.seal.kept_receipt(head.uid)
        if kept is not None:
            try:
                decoded = msgspec.msgpack.decode(kept, type=Receipt)
            except (msgspec.MsgspecError, ValueError) as error:
                raise SessionCorrupt(head.key, "its receipt in the key ring was changed") from error
            if (decoded.version, decoded.link) == (head.version, head.link):
                return decoded
        return await self.sign(head, keep=False)

    # --- certificates of erasure ----------------------------------------------------------------

    async def begin_certificate(self, count: ErasureCount) -> None:
        """Remember in the ring what is about to be erased: it cannot be counted afterwards, and an
        erasure that is cut short is certified when it is done again."""
        if count.heads:
            draft = msgspec.msgpack.encode(_certificate(count))
            await self.seal.keep_certificate(count.subject, count.key, draft)

    async def certify(self, count: ErasureCount, erasure: Erasure) -> ErasureCertificate:
        """Sign that it was erased; if that was done before, return what was signed then."""
        from limpet.security.certificates import signed
        from limpet.security.keys import signer_id

        kept = await self.seal.kept_certificate(count.subject, count.key)
        certificate = _certificate(count)
        if kept is not None:
            with suppress(
                msgspec.MsgspecError, ValueError
            ):  # else it was changed: sign what is known
                certificate = _decode_certificate(kept)
        at = to_time(erasure.erased_us)
        same = (certificate.key_hash, certificate.at) == (erasure.key_hash, at)
        if same and certificate.signature:
            return certificate
        if certificate.signature:  # of what was erased before, under the same name
            certificate = _certificate(count)
        draft = msgspec.structs.replace(
            certificate,
            key_hash=erasure.key_hash,
            at=at,
            names=max(count.names, certificate.names),
            documents=max(count.documents, certificate.documents),
            forks_kept=erasure.forks_kept,
            signer=signer_id(self.seal.public_bytes),
            signature=b"",
        )
        made = signed(draft, self.seal.sign)
        await self.seal.keep_certificate(count.subject, count.key, msgspec.msgpack.encode(made))
        return made

    async def prove(self, head: Head, seq: int, version: int) -> Proof:
        from limpet.security.receipts import MerkleTree, Proof

        if not head.floor < seq <= version <= head.version:
            own = f"{head.floor + 1} to {version}"
            raise InvalidInput(f"{seq} is not an event of this session's own. Pass one of {own}.")
        previous = link = before = b""
        links: list[bytes] = []
        record: ChainedEvent | None = None
        async for each in self._read_chain(head, version):
            previous, link = link, each.event.link
            links.append(link)
            if each.event.seq == seq:
                before = previous or await self._before(head)
                record = each
        assert record is not None
        event = record.event
        path = MerkleTree(links).path(seq - head.floor - 1)
        names = _names(record)
        return Proof(
            seq,
            event.at_us,
            canonical(names),
            record.salt,
            record.raw,
            record.digest,
            before,
            head.floor,
            version - head.floor,
            path,
        )

    async def _read_chain(
        self, head: Head, until: int | None = None
    ) -> AsyncIterator[ChainedEvent]:
        """The session's own events, each compared with the chain. Raises SessionCorrupt."""
        store, seq, last = self._store, head.floor, head.version if until is None else until
        assert isinstance(store, Records)
        link = await self._before(head)
        while seq < last:
            page = await store.records(head.key, after=seq, limit=min(PAGE_MAX, last - seq))
            if not page:
                break
            for record in page:
                event = record.event
                header = chain.header_digest(_names(record)[:7], marked=_is_marked(record))
                digest = record.digest
                if record.raw is not None:
                    digest = chain.body_digest(record.salt, record.raw)
                link = chain.link(link, seq + 1, event.at_us, header, digest)
                if event.seq != seq + 1 or link != event.link or event.damage is not None:
                    raise SessionCorrupt(head.key, f"event {seq + 1} does not follow its chain")
                seq += 1
                yield record
        if seq < last or (until is None and link != head.link):
            raise SessionCorrupt(head.key, "its log does not lead to its head")

    async def _before(self, head: Head) -> bytes:
        """The link that the session's own events follow."""
        if not head.floor:
            return chain.genesis(head.uid)
        assert isinstance(self._store, Records)
        base = await self._store.base(head.key)
        if base is None:
            raise SessionCorrupt(head.key, "the state that its log begins on is not there")
        return base.link


_APART: Final = (
    "Whoever copies the directory has both. Put the ring elsewhere: move the file while no process "
    "has the store open, and pass keyring='sqlite:////other/place' from then on."
)


def _standing(head: Head) -> dict[str, Head]:
    """Return the position of a session by its uid; of an archived one also by that of its log."""
    heads = {head.uid: head}
    if (archived := archive_place(head.facts)) is not None:
        link = bytes.fromhex(archived["link"])
        there = {"uid": archived["uid"], "version": archived["version"], "link": link}
        heads[archived["uid"]] = msgspec.structs.replace(head, **there)
    return heads


def _certificate(count: ErasureCount) -> ErasureCertificate:
    """Return what an erasure removes, before it is known when it was done."""
    from limpet.security.receipts import hashed_key

    sessions = [
        ErasedSession(hashed_key(head.key, head.uid), head.uid, head.version, head.link)
        for head in count.heads
    ]
    return ErasureCertificate(
        count.subject,
        b"",
        count.by,
        to_time(0),
        tuple(sessions),
        sum([head.version - head.floor for head in count.heads]),
        count.names,
        count.documents,
        count.files,
        0,
    )


_decode_certificate: Final = msgspec.msgpack.Decoder(ErasureCertificate).decode


def _is_marked(record: ChainedEvent) -> bool:
    event = record.event
    return event.processed is not None and not is_input(event.type)


def _names(record: ChainedEvent) -> tuple[str | None, ...]:
    event = record.event
    names = (event.id, event.type, event.actor, event.cause, event.invocation_id)
    header = (*names, event.correlation_id, event.wake_id)
    return (*header, "input") if _is_marked(record) else header
