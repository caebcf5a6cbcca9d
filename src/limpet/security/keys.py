"""The built-in seal: a random data key for each session, app and user, wrapped in a ring.

    sealed = format (1 byte) ‖ key number (4) ‖ nonce (12, random) ‖ AES-256-GCM text with its tag

The additional data is `Place.aad()`, which binds an event to its seq, time, header digest and link:
no row can change its actor, move or be swapped unseen. Data keys are made durable in the ring
before the first body is sealed with them. A key commitment stands beside each wrapped key.

`KeySeal` also knows up to which version of a session bodies may be in plain text, because they were
written before the store had keys. Every other plain body is damage.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from time import monotonic
from typing import Final

import msgspec

from limpet.errors import ExtraMissing, KeysInvalid, SealUnavailable
from limpet.model import EMPTY, Facts, Head, Key, canonical
from limpet.security.masters import (
    KEY_BYTES,
    NONCE_BYTES,
    Masters,
    WrappedKey,
    WrongMaster,
    commitment_to,
    local_masters,
    subkey,
)
from limpet.security.ring import Ring, RingRow, ring_of
from limpet.store.coding.codec import MAC_BYTES
from limpet.store.coding.seal import OWNERS_MAX, KeyRenewed, is_scope_owner
from limpet.store.protocol import KeyOwner, Place, Progress
from limpet.store.remote.packing import SealingKey
from limpet.store.system import PROCESS

try:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.hmac import HMAC
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
except ImportError as error:
    raise ExtraMissing("cryptography", "security") from error

FORMAT: Final = 1
SIGNER: Final = "$signer"  # the owner of the signing key; no uid and no scope looks like it
SCOPE_SECONDS: Final = 5.0  # after which the keys of apps and users are read from the ring again
BATCH_MAX: Final = 512  # owners whose keys are made in one transaction of the ring
_FETCHES_MAX: Final = 8  # of keys that others remove meanwhile
_NONCES_DRAWN: Final = 256
_HEAD: Final = struct.Struct("!BI")
_number: Final = struct.Struct("!I").pack
_version: Final = struct.Struct(">q").pack
_ANCHOR: Final = b"limpet.anchor.1"
_HEAD_MAC: Final = b"limpet.head.1"
_PLAIN: Final = b"limpet.plain.1"
_PSEUDONYM: Final = b"limpet.pseudonym.1"
_SEALING: Final = b"limpet.sealing.1"
_NAME_THE_RING: Final = (
    "Bring its ring back, or name where it is (keyring=URL, or --keyring on the command line)"
)
_wrapped: Final = msgspec.msgpack.Decoder(WrappedKey).decode


class Anchor(msgspec.Struct, frozen=True):
    """The position of a session when it was last anchored, under a MAC of its data key."""

    version: int
    link: bytes
    mac: bytes
    app: str
    user: str
    id: str


_anchored: Final = msgspec.msgpack.Decoder(Anchor).decode


class KeysStatus(msgspec.Struct, frozen=True):
    """The keys of a store: how many of them each master key wraps."""

    ring: str  # its id
    where: str
    provider: str
    newest: str  # the id of the master that wraps new keys
    masters: Mapping[str, int]  # keys that each master wraps; an older one with 0 can be retired
    sessions: int
    scopes: int
    signer: str

    @property
    def pending(self) -> int:
        """The number of keys that `rotate` would rewrap."""
        return sum([count for master, count in self.masters.items() if master != self.newest])

    @property
    def ok(self) -> bool:
        """True if every key can be unwrapped."""
        return True

    def __str__(self) -> str:
        left = f"{self.pending:,} keys wait for limpet keys rotate" if self.pending else "rotated"
        return f"ring {self.ring} ({self.where}), master {self.newest} of {self.provider}: {left}."


class _OwnerKeys:
    """The data keys of one owner, and up to where its bodies may be in plain text."""

    __slots__ = (
        "absent",
        "anchors",
        "begin",
        "cipher",
        "ciphers",
        "heads",
        "mark",
        "named",
        "names",
        "number",
        "plain",
        "secrets",
    )

    def __init__(
        self, keys: Mapping[int, bytes], plain: Mapping[str, int], absent: Collection[int]
    ) -> None:
        self.number = max(keys)
        self.ciphers = {number: AESGCM(key) for number, key in keys.items()}
        self.cipher, self.begin = self.ciphers[self.number], _HEAD.pack(FORMAT, self.number)
        self.secrets = {number: subkey(key, _ANCHOR) for number, key in keys.items()}
        # Copied for each MAC: taking in the key again costs three times as much.
        self.anchors = {number: HMAC(key, SHA256()) for number, key in self.secrets.items()}
        self.heads = {n: HMAC(subkey(key, _HEAD_MAC), SHA256()) for n, key in keys.items()}
        self.mark = _number(self.number)
        # The key and facts of the last head that a MAC was made of, and their encoding.
        self.named: tuple[Key | None, Facts, bytes] = (None, EMPTY, b"")
        self.absent = frozenset(absent) - keys.keys()  # looked for in the ring: they are not there
        self.allow(plain)

    def allow(self, plain: Mapping[str, int]) -> None:
        """Accept plain bodies up to these versions; "" is that of a session."""
        self.plain, self.names = plain.get("", 0), plain


class _Nonces(threading.local):
    """Random nonces, drawn from the system many at a time: each call of it gives up the
    interpreter's lock, and a writer beside a busy event loop waits long to have it again."""

    _drawn, _at, _forks = b"", 0, -1

    def take(self) -> bytes:
        """The next one. None is used twice: a forked process draws its own."""
        at = self._at
        if at == len(self._drawn) or self._forks != PROCESS.forks:
            self._drawn, at = os.urandom(NONCE_BYTES * _NONCES_DRAWN), 0
            self._forks = PROCESS.forks
        self._at = at + NONCE_BYTES
        return self._drawn[at : at + NONCE_BYTES]


_NONCES: Final = _Nonces()


class KeySeal:
    """A seal on a ring. Open its ring with `open_ring`; then it is what `limpet.Seal` asks for."""

    def __init__(self, masters: Masters, ring: Ring) -> None:
        self.masters, self.ring = masters, ring
        self.id = ""  # of the ring, once it is open
        self.fresh = False  # True if the ring has not been bound to a store yet
        self._own = b""  # of the ring itself: it signs, and other keys follow from it
        self._signer: Ed25519PrivateKey | None = None
        self._owners: OrderedDict[KeyOwner, _OwnerKeys] = OrderedDict()
        self._scopes: set[KeyOwner] = set()  # those of apps and users among them
        self._stale: set[KeyOwner] = set()  # of these, to be read from the ring again
        self._looked_for: dict[KeyOwner, set[int]] = {}  # numbers of keys that were not at hand
        self._lapse_at = monotonic() + SCOPE_SECONDS
        self._wanted: dict[KeyOwner, None] = {}
        self._lock = asyncio.Lock()

    @classmethod
    def of(cls, url: str, keys: str, keyring: str | None) -> KeySeal:
        """The seal that `limpet.open(url, keys=…, keyring=…)` asks for; nothing is opened yet."""
        return cls(open_masters(keys), ring_of(url, keyring))

    async def open_ring(self, expected: str | None) -> None:
        """Open the ring whose id the store remembers; with None the usual one, made if need be.

        Raises SealUnavailable: the ring is missing, is another, or the masters do not fit it.
        """
        try:
            if not await self.ring.open(create=expected is None):
                raise self._not_its_ring(f"the ring {expected} is missing")
            await self._read_ring(expected)
        except (SealUnavailable, KeysInvalid):
            await self.ring.close()
            raise
        except Exception as error:  # of a driver, or of a key service
            await self.ring.close()
            raise self._refused(str(error) or repr(error)) from error

    async def _read_ring(self, expected: str | None) -> None:
        if expected is None:
            await self.ring.add([RingRow("meta", "id", "", os.urandom(16).hex().encode())])
        rows = {row.owner: row.value for row in await self.ring.get("meta", ["id", "bound"])}
        self.id = rows.get("id", b"").decode()
        if expected is not None and self.id != expected:
            reason = f"the store is sealed with the ring {expected}, not {self.id}"
            raise self._not_its_ring(reason)
        self.fresh = "bound" not in rows
        await self._fetch([SIGNER])
        # The first key of the ring signs, so that renewing others never changes who signed.
        self._own = self._owners[SIGNER].secrets[1]
        self._signer = Ed25519PrivateKey.from_private_bytes(self._own)

    async def mark_bound(self, plain: Iterable[tuple[KeyOwner, str, int]]) -> None:
        """Remember what the store held in plain text when it got this ring; once."""
        if [row for row in await self.ring.page("key", None, 2) if row.owner != SIGNER]:
            # Else whoever removes the mark could have everything taken for plain text from before.
            bound = await self.ring.get("meta", ["bound"])
            if not bound:
                raise self._refused("this ring has keys, and the mark that it was bound is gone")
            self.fresh = False  # another process was faster
            return
        marks = [(owner, name, _version(upto)) for owner, name, upto in plain]
        rows = [RingRow("plain", o, n, upto + self._plain_mac(o, n, upto)) for o, n, upto in marks]
        await self.ring.put([*rows, RingRow("meta", "bound", "", b"1")])
        self.fresh = False
        allowed: dict[KeyOwner, dict[str, int]] = {}
        for row in rows:
            allowed.setdefault(row.owner, {})[row.part] = self._plain_until(row)
        for owner in allowed.keys() & self._owners.keys():  # read while it was looked at
            self._owners[owner].allow(allowed[owner])

    def _plain_mac(self, owner: KeyOwner, name: str, upto: bytes) -> bytes:
        """Under the ring's own key: who can write a ring cannot allow plain text."""
        secret = subkey(self._own, _PLAIN)
        return hmac.digest(secret, canonical((owner, name)) + upto, "sha256")

    def _plain_until(self, row: RingRow) -> int:
        """Return the version up to which bodies may be plain text; 0 if the row was changed."""
        upto, mac = row.value[:8], row.value[8:]
        if not hmac.compare_digest(self._plain_mac(row.owner, row.part, upto), mac):
            return 0
        return int.from_bytes(upto, "big", signed=True)

    async def close(self) -> None:
        self._owners.clear()
        await self.ring.close()

    # --- what a store asks ----------------------------------------------------------------------

    async def ready(self, owners: Sequence[KeyOwner]) -> None:
        missing = [owner for owner in owners if self._is_missing(owner)]
        if missing:
            self._wanted |= dict.fromkeys(missing)
            async with self._lock:  # whoever comes first asks for all who wait
                wanted = {**self._wanted, **dict.fromkeys(missing)}
                asked = [owner for owner in wanted if self._is_missing(owner)]
                self._wanted.clear()
                for start in range(0, len(asked), BATCH_MAX):
                    await self._fetch(asked[start : start + BATCH_MAX])
        for owner in owners:
            if owner in self._owners:  # it may be forgotten by now
                self._owners.move_to_end(owner)
        # A store's sealer remembers OWNERS_MAX of them, and asks again for any other.
        while len(self._owners) > 2 * OWNERS_MAX + len(owners):
            self._scopes.discard(self._owners.popitem(last=False)[0])

    def lapsed(self) -> Sequence[KeyOwner]:
        """Apps and users, every few seconds: a user may be erased by another process and come
        back, with another key. A session never does."""
        now = monotonic()
        if now < self._lapse_at:
            return ()
        self._lapse_at = now + SCOPE_SECONDS
        self._stale |= self._scopes
        return tuple(self._scopes)

    def doubt(self, owners: Sequence[KeyOwner]) -> None:
        self._stale.update(owners)

    def _is_missing(self, owner: KeyOwner) -> bool:
        return owner not in self._owners or owner in self._stale

    def _at_hand(self, owner: KeyOwner) -> _OwnerKeys:
        """Return its keys. Raises KeyRenewed if they were forgotten since it was ready."""
        keys = self._owners.get(owner)
        if keys is None:
            raise KeyRenewed
        return keys

    def seal(self, plain: bytes, place: Place) -> bytes:
        keys = self._at_hand(place.owner)
        nonce = _NONCES.take()
        return keys.begin + nonce + keys.cipher.encrypt(nonce, plain, place.aad())

    def open(self, sealed: bytes, place: Place) -> bytes:
        form, number = _HEAD.unpack_from(sealed)
        if form != FORMAT:
            raise ValueError(f"its format is {form}, and this release reads {FORMAT}")
        keys = self._at_hand(place.owner)
        if number not in keys.ciphers:
            self._look_for(place.owner, keys, number)
        cipher = keys.ciphers[number]
        start = _HEAD.size + NONCE_BYTES
        return cipher.decrypt(sealed[_HEAD.size : start], sealed[start:], place.aad())

    def allows_plain(self, place: Place) -> bool:
        """True if a body at this place was written before the store had keys."""
        keys = self._at_hand(place.owner)
        if not keys.names:
            return False
        if place.kind == "scope":
            name, _, version = place.id.rpartition("@")
            return int(version) <= keys.names.get(name, 0)
        return _version_of(place) <= keys.plain

    def _look_for(self, owner: KeyOwner, keys: _OwnerKeys, number: int) -> None:
        """Another process may have made this key: raise KeyRenewed, unless the ring was asked."""
        if number in keys.absent:
            raise ValueError("its key was destroyed")
        self._looked_for.setdefault(owner, set()).add(number)
        self._stale.add(owner)
        raise KeyRenewed

    async def renew(self, owner: KeyOwner) -> int:
        """Make another data key, with which everything is sealed from now on; its number. What was
        sealed before stays readable, with the keys before it."""
        rows = await self.ring.get("key", [owner])
        if not rows:
            raise SealUnavailable([owner], "it has no key in the ring")
        number = 1 + max([int(row.part) for row in rows])
        made = RingRow("key", owner, str(number), await self._wrapped(owner, number, _new_key()))
        await self.ring.add([made])  # or the one of another process that does the same
        async with self._lock:
            await self._fetch([owner])
        return self._owners[owner].number

    async def forget(self, owner: KeyOwner) -> None:
        async with self._lock:  # else a fetch that read its row before could bring it back
            await self.ring.remove(owner)
            self._owners.pop(owner, None)
            self._scopes.discard(owner)

    # --- anchors and signatures -----------------------------------------------------------------

    def mac(self, head: Head) -> bytes:
        """The number of the newest key, and its MAC of a head."""
        keys = self._at_hand(head.uid)
        return keys.mark + _mac(keys.heads[keys.number], _head_message(keys, head))

    def holds(self, head: Head, mac: bytes | None) -> bool:
        keys = self._at_hand(head.uid)
        if mac is None:
            return head.version <= keys.plain
        if not self._has_key_of(mac, head.uid):
            return False
        made = _mac(keys.heads[_key_number(mac)], _head_message(keys, head))
        return hmac.compare_digest(made, mac[4:])

    def _has_key_of(self, mac: bytes, owner: KeyOwner) -> bool:
        """True if the key is there that a MAC names. Raises KeyRenewed."""
        if len(mac) != MAC_BYTES:
            return False
        keys, number = self._at_hand(owner), _key_number(mac)
        if number not in keys.ciphers:
            if number in keys.absent:
                return False
            self._look_for(owner, keys, number)
        return True

    async def vouches(self, owner: KeyOwner, anchor: Anchor) -> bool:
        """True if an anchor is as the keys of its session made it."""
        await self.ready([owner])
        try:
            there = self._has_key_of(anchor.mac, owner)
        except KeyRenewed:
            await self.ready([owner])
            there = self._has_key_of(anchor.mac, owner)
        if not there:
            return False
        kept = self._owners[owner].anchors[_key_number(anchor.mac)]
        return hmac.compare_digest(_mac(kept, _place(anchor.version, anchor.link)), anchor.mac[4:])

    async def anchor(
        self, places: Mapping[KeyOwner, tuple[Key, int, bytes]], *, back: bool = False
    ) -> int:
        """Remember where sessions stand: those whose keys are at hand and still in the ring.

        An anchor moves forward, whatever order processes write in; with `back`, also backward.
        """
        rows = []
        for uid in await self.held([uid for uid in places if uid in self._owners]):
            key, version, link = places[uid]
            keys = self._owners[uid]
            mac = keys.mark + _mac(keys.anchors[keys.number], _place(version, link))
            made = Anchor(version, link, mac, *key_parts(key))
            rows.append(RingRow("anchor", uid, "", msgspec.msgpack.encode(made)))
        if back:
            await self.ring.put(rows)
            return len(rows)
        kept = {row.owner: row for row in await self.ring.get("anchor", list(places))}
        new = [row for row in rows if row.owner not in kept]
        await self.ring.add(new)
        changes = [
            (kept[row.owner], row.value)
            for row in rows
            if row.owner in kept and _anchor_in(kept[row.owner]).version < places[row.owner][1]
        ]
        return len(new) + await self.ring.swap(changes)

    async def held(self, owners: Sequence[KeyOwner]) -> list[KeyOwner]:
        """Those of them that have keys in the ring. An erased session has none."""
        there = {row.owner for row in await self.ring.get("key", owners)}
        return [owner for owner in owners if owner in there]

    async def anchors(
        self, owners: Sequence[KeyOwner] | None
    ) -> AsyncIterator[tuple[KeyOwner, Anchor]]:
        """Return the position of these sessions when they were last anchored; with None, of all."""
        if owners is not None:
            for row in await self.ring.get("anchor", owners):
                yield row.owner, _anchor_in(row)
            return
        after = None
        while rows := await self.ring.page("anchor", after):
            after = (rows[-1].owner, rows[-1].part)
            for row in rows:
                yield row.owner, _anchor_in(row)

    async def keep_receipt(self, owner: KeyOwner, receipt: bytes) -> None:
        await self.ring.put([RingRow("receipt", owner, "", receipt)])

    async def kept_receipt(self, owner: KeyOwner) -> bytes | None:
        """The receipt that was signed when the session was completed."""
        rows = await self.ring.get("receipt", [owner])
        return rows[0].value if rows else None

    async def keep_certificate(self, subject: str, key: Key, certificate: bytes) -> None:
        await self.ring.put(
            [RingRow("certificate", self._pseudonym(subject, key), "", certificate)]
        )

    async def kept_certificate(self, subject: str, key: Key) -> bytes | None:
        """Return the signed certificate of an erasure, finished or under way."""
        rows = await self.ring.get("certificate", [self._pseudonym(subject, key)])
        return rows[0].value if rows else None

    def _pseudonym(self, subject: str, key: Key) -> str:
        """Return the name under which an erased key is found again with the masters."""
        secret = subkey(self._own, _PSEUDONYM)
        return hmac.digest(secret, canonical((subject, *key_parts(key))), "sha256").hex()

    def sign(self, message: bytes) -> bytes:
        assert self._signer is not None
        return self._signer.sign(message)

    def sealing_key(self) -> SealingKey:
        """The key that calls to this store are sealed for, under the signature of `public_key`."""
        secret = subkey(self._own, _SEALING)
        return SealingKey(secret, self.sign)

    @property
    def public_key(self) -> str:
        """The key that checks receipts, and that calls are sealed for, as PEM."""
        assert self._signer is not None
        made = self._signer.public_key()
        return made.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    @property
    def public_bytes(self) -> bytes:
        assert self._signer is not None
        return self._signer.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    # --- rotation -------------------------------------------------------------------------------

    async def rotate(self, progress: Progress | None = None) -> int:
        """Wrap every key with the newest master that is not yet. Bodies are not touched.

        Each page is one transaction of the ring. After an interruption, call it again;
        until it ends both masters are needed.
        """
        newest, done = await self.masters.newest(), 0
        total = (await self.counted()).get("total", 0)
        seen, after = 0, None
        while rows := await self.ring.page("key", after):
            after = (rows[-1].owner, rows[-1].part)
            changes = []
            for row in rows:
                wrapped = _wrapped(row.value)
                if wrapped.master != newest:
                    key = await self._unwrapped(row, wrapped)
                    changes.append((row, await self._wrapped(row.owner, int(row.part), key)))
            done += await self.ring.swap(changes)
            seen += len(rows)
            if progress is not None:
                progress(seen, max(total, seen))
        return done

    async def status(self) -> KeysStatus:
        counts: dict[str, int] = {}
        owners: set[str] = set()
        after = None
        while rows := await self.ring.page("key", after):
            after = (rows[-1].owner, rows[-1].part)
            for row in rows:
                master = _wrapped(row.value).master
                counts[master] = counts.get(master, 0) + 1
                owners.add(row.owner)
        owners.discard(SIGNER)
        newest = await self.masters.newest()
        scopes = len([owner for owner in owners if owner.startswith("[")])
        return KeysStatus(
            self.id,
            self.ring.where,
            self.masters.name,
            newest,
            {newest: 0} | counts,
            len(owners) - scopes,
            scopes,
            signer_id(self.public_bytes),
        )

    async def counted(self) -> dict[str, int]:
        """Return how many keys the ring has."""
        after, total = None, 0
        while rows := await self.ring.page("key", after):
            after, total = (rows[-1].owner, rows[-1].part), total + len(rows)
        return {"total": total}

    # --- private --------------------------------------------------------------------------------

    async def _fetch(self, owners: Sequence[KeyOwner]) -> None:
        """Read the keys of these owners, and make those that are not there."""
        rows = await self.ring.get("key", owners)
        # Keys that were added may be another process's by now, or gone with a user who is erased.
        for _ in range(_FETCHES_MAX):
            missing = list(set(owners) - {row.owner for row in rows})
            if not missing:
                break
            made = [RingRow("key", o, "1", await self._wrapped(o, 1, _new_key())) for o in missing]
            await self.ring.add(made)
            rows += await self.ring.get("key", missing)
        keys: dict[KeyOwner, dict[int, bytes]] = {}
        for row in rows:
            key = await self._unwrapped(row, _wrapped(row.value))
            keys.setdefault(row.owner, {})[int(row.part)] = key
        plain: dict[KeyOwner, dict[str, int]] = {}
        for row in await self.ring.get("plain", owners):
            plain.setdefault(row.owner, {})[row.part] = self._plain_until(row)
        if gone := [owner for owner in owners if owner not in keys]:
            raise SealUnavailable(gone, "its key is removed as often as one is made")
        for owner in owners:
            known = self._owners.get(owner)
            absent = self._looked_for.pop(owner, set()) | (known.absent if known else set())
            self._owners[owner] = _OwnerKeys(keys[owner], plain.get(owner, {}), absent)
            self._stale.discard(owner)
            if is_scope_owner(owner):
                self._scopes.add(owner)

    async def _wrapped(self, owner: KeyOwner, number: int, key: bytes) -> bytes:
        commitment = commitment_to(key, owner.encode())
        context = self._context(owner, number, commitment)
        master, body = await self.masters.wrap(key, owner.encode(), context)
        return msgspec.msgpack.encode(WrappedKey(master, body, commitment))

    async def _unwrapped(self, row: RingRow, wrapped: WrappedKey) -> bytes:
        owner = row.owner.encode()
        context = self._context(row.owner, int(row.part), wrapped.commitment)
        key = await self.masters.unwrap(wrapped.master, wrapped.body, owner, context)
        if not hmac.compare_digest(commitment_to(key, owner), wrapped.commitment):
            raise WrongMaster(f"the key of {row.owner} is not the one that was committed to")
        return key

    def _context(self, owner: KeyOwner, number: int, commitment: bytes) -> bytes:
        return msgspec.msgpack.encode((self.id, owner, number, commitment))

    def _refused(self, reason: str) -> SealUnavailable:
        return SealUnavailable([self.ring.where], reason)

    def _not_its_ring(self, reason: str) -> SealUnavailable:
        return SealUnavailable([self.ring.where], reason, advice=_NAME_THE_RING)


def signer_id(public_key: bytes) -> str:
    """The short name of a signing key: of its SHA-256, the first half."""
    from hashlib import sha256

    return sha256(public_key).hexdigest()[:32]


def _mac(keyed: HMAC, message: bytes) -> bytes:
    made = keyed.copy()
    made.update(message)
    return made.finalize()


def _key_number(mac: bytes) -> int:
    return int.from_bytes(mac[:4], "big")


def _place(version: int, link: bytes) -> bytes:
    return _version(version) + link


def _head_message(keys: _OwnerKeys, head: Head) -> bytes:
    """Return what the MAC of a head covers: the position of the session, its key and its facts.

    Most commits change neither: these are encoded once.
    """
    key, facts, named = keys.named
    if key is not head.key or facts is not head.facts:
        named = canonical((*key_parts(head.key), head.facts))
        keys.named = (head.key, head.facts, named)
    return _place(head.version, head.link) + named


def _anchor_in(row: RingRow) -> Anchor:
    """The anchor in a row; one that nobody vouches for, if the row cannot be read."""
    try:
        return _anchored(row.value)
    except (msgspec.MsgspecError, ValueError):
        return Anchor(0, b"", b"", "?", "?", row.owner)


def key_parts(key: Key) -> tuple[str, str, str]:
    return (key.app, key.user, key.id)


def _new_key() -> bytes:
    return os.urandom(KEY_BYTES)


def _version_of(place: Place) -> int:
    """The version of a session that a body belongs to; 1 where a place does not tell it."""
    if place.kind == "event":
        return int(place.bound.partition(b"/")[0] or 2**63)  # a partial is never in plain text
    if place.kind == "snapshot":
        return int(place.id.partition("/")[0])
    if place.kind == "segment":
        return int(place.id.partition("-")[2])
    return int(place.id) + 1 if place.kind == "base" else 1


def open_masters(keys: str) -> Masters:
    """The masters that `keys=` names. Raises KeysInvalid, ExtraMissing."""
    if not isinstance(keys, str):
        raise KeysInvalid("of this type", "pass a text such as env:NAME or file:///path")
    scheme = keys.partition(":")[0]
    if scheme == "vault":
        from limpet.security.vault import VaultMasters

        return VaultMasters(keys)
    if scheme == "pkcs11":
        from limpet.security.pkcs11 import HardwareMasters

        return HardwareMasters(keys)
    masters = local_masters(keys)
    if masters is None:
        known = "env:NAME, file:///path, vault://host/mount/key, pkcs11:token/key or memory:"
        raise KeysInvalid(f"{scheme}:…", f"write {known}")
    return masters
