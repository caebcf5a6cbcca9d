"""Every decoder of what comes from outside: mutated input gives a value or a declared error.

Whoever can write a file, a row, a ring, a cursor or a message hands us bytes. `make torture` tries
a million of them for each decoder, on fresh seeds; the suite some thousands.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Final, Literal, NamedTuple, TypeVar
from zlib import crc32

import msgspec
import pytest
from backports import zstd
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

import limpet
from limpet import Diff, envelope
from limpet.errors import InvalidInput, LimpetError, TokenInvalid
from limpet.model import Base, Commit, Draft, Event, Fold, Head, Key, blank, decode_body
from limpet.model.events import prepare
from limpet.model.values import FrozenDict, checksum
from limpet.security import audit_check, receipt_check
from limpet.security.keys import Anchor, KeySeal, open_masters
from limpet.security.masters import _decoded, new_master
from limpet.security.policy_cases import _case, _csv_rows, _json_rows
from limpet.security.receipts import Receipt
from limpet.security.ring import MemoryRing, RingRow
from limpet.security.signing_keys import SigningKeys, add_signing_key, decoded_payload
from limpet.security.tokens import TokenPayload
from limpet.session import served_verbs
from limpet.session.move.bundle import BundleReader
from limpet.session.performed import perform
from limpet.store import cursor as cursors
from limpet.store.coding import bodies
from limpet.store.coding.bodies import UNREADABLE, base_in, scope_after, snapshot_in
from limpet.store.coding.codec import COMPRESSED, Codec, Damaged
from limpet.store.coding.files import FileSeal
from limpet.store.coding.seal import Sealer, Unready
from limpet.store.files.disk import LogDisk
from limpet.store.files.earlier import EarlierStore
from limpet.store.files.journal import read_line
from limpet.store.files.lines import finished
from limpet.store.postgres import rows as postgres
from limpet.store.protocol import ErasureCertificate, Place, Query
from limpet.store.remote.commits import unpack_commit
from limpet.store.remote.messages import UNREADABLE_MESSAGE, Call, Calls, decode_calls, encode
from limpet.store.remote.methods import methods
from limpet.store.remote.packing import Parcel, SealedFor, SealingKey, expand, seal_answer
from limpet.store.sqlite.rows import event_from, head_from
from tests.golden import files
from tests.support.keys import memory_seal
from tests.support.seeds import seed

SHORT: Final = 3_000
LONG: Final = 1_000_000
GOLDEN: Final = Path(__file__).parents[1] / "golden"
UID: Final = "01a1eab1-c1ef-7000-aa77-1e0204b60184"
KEY: Final = Key("support", "ada", "c1")
PLACE: Final = Place("event", UID, "e1", "user.message")
_BYTES: Final = (0, 1, 0x7F, 0x80, 0xFF, *b'"{}[],:\\-0e.')


T = TypeVar("T")


class Decoder(NamedTuple):
    """What is decoded, from what, and what it may raise."""

    decode: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    errors: tuple[type[BaseException], ...] = (LimpetError,)


def done(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine that waits for nothing returns."""
    try:
        work.send(None)
    except StopIteration as ended:
        found: T = ended.value
        return found
    raise AssertionError("it waits")


def mutated(raw: bytes, random: random.Random) -> bytes:
    """A few changes, as rot, cuts and forgers make them."""
    found = bytearray(raw)
    for _ in range(random.randint(1, 4)):
        at, size = random.randrange(len(found) + 1), random.randint(1, 8)
        kind = random.randrange(7)
        if kind == 0 and found:
            found[at % len(found)] ^= 1 << random.randrange(8)
        elif kind == 1 and found:
            found[at % len(found)] = random.choice(_BYTES)
        elif kind == 2:
            del found[at : at + size]
        elif kind == 3:
            found[at:at] = bytes(random.choices(_BYTES, k=size))
        elif kind == 4:
            found[at:at] = found[at : at + 40] * random.randint(1, 3)
        elif kind == 5:
            del found[at:]
        else:
            other = random.randrange(len(found) + 1)
            found[at : at + size] = found[other : other + size]
    return bytes(found)


# --- what is sealed -----------------------------------------------------------------------------


def sealed_codec() -> tuple[Codec, KeySeal]:
    seal = memory_seal()
    codec = Codec(seal)
    done(codec.sealer.ready([UID]))
    return codec, seal


def sealed_bodies() -> Decoder:
    """Also under the checksum that whoever can write a row would give it."""
    codec, _ = sealed_codec()
    packed = [codec.pack(raw, PLACE) for raw in (b'{"data":{"n":1}}', b'{"data":"' + b"a" * 3_000)]

    def decode(raw: bytes) -> bytes:
        flags, body = raw[0] if raw else 0, raw[1:]
        for _ in range(2):  # the number of a key may be looked for
            try:
                return codec.unpack(flags & ~8, body, crc32(body), lambda: PLACE)
            except Unready as needed:
                done(codec.sealer.ready(needed.owners))
        raise AssertionError("it is looked for again and again")

    return Decoder(decode, tuple([bytes([f]) + body for f, body, _ in packed]), (Damaged,))


def plain_bodies() -> Decoder:
    """Compressed or not, and what the model makes of them."""
    codec = Codec()
    packed = [codec.pack(raw, None) for raw in (b'{"data":{"n":1}}', b'{"data":"' + b"a" * 3_000)]
    made = b'{"data":{"text":"hi"},"ops":[["set",["n"],1],["inc",["n"],2]]}'

    def decode(raw: bytes) -> object:
        flags, body = raw[0] & COMPRESSED if raw else 0, raw[1:]
        return decode_body(codec.unpack(flags, body, crc32(body), lambda: PLACE))

    seeds = (b"\0" + made, *[bytes([f]) + body for f, body, _ in packed])
    return Decoder(decode, seeds, (Damaged, msgspec.MsgspecError, UnicodeDecodeError))


def event_rows() -> Decoder:
    """A row whose columns are of any kind is an event that says its damage."""
    codec, _ = sealed_codec()
    flags, body, crc = codec.pack(b"0" * 16 + b'{"data":{"n":1}}', PLACE)
    row = (1, 2, b"1" * 16, "user.message", "user:ada", 3, None, None, None, None)
    whole = msgspec.msgpack.encode((*row, flags, body, crc ^ 1, b"2" * 32, None, None))

    def decode(raw: bytes) -> object:
        found = msgspec.msgpack.decode(raw)
        if not isinstance(found, list) or len(found) != 16 or type(found[0]) is not int:
            return None
        return event_from(tuple(found), UID, codec)

    return Decoder(decode, (whole,), (msgspec.MsgspecError, ValueError))


def server_rows() -> Decoder:
    """The same of PostgreSQL, whose columns have their kinds: the body is what may be changed."""
    names = dict.fromkeys(("cause", "invocation_id", "correlation_id", "wake_id", "processed"))
    row = {**names, "seq": 2, "id": "e", "type": "user.message", "actor": "a", "at_us": 3}
    row |= {"xid": 5, "pos": 6, "processed_us": None, "link": b"2" * 32, "flags": 0}

    def decode(raw: bytes) -> object:
        stored = {**row, "body": raw, "crc": postgres.placed(crc32(raw), row)}
        return postgres.event_from(stored, UID, Codec())

    return Decoder(decode, (b'{"data":{"text":"hi"},"ops":[["set",["n"],1]]}',), ())


def head_rows() -> Decoder:
    row = (1, "support", "ada", "c1", b"1" * 16, 5, b"2" * 32, 1, 2, 3, '{"labels":{"a":"b"}}', 0)
    whole = msgspec.msgpack.encode((*row, 0, None, None, None))

    def decode(raw: bytes) -> object:
        found = msgspec.msgpack.decode(raw)
        return head_from(tuple(found)) if isinstance(found, list) and len(found) == 16 else None

    return Decoder(decode, (whole,), (Damaged, msgspec.MsgspecError, ValueError))


def head() -> Head:
    return msgspec.structs.replace(blank(KEY, UID, 5), version=3, link=b"3" * 32, floor=2)


def snapshots() -> Decoder:
    """One that cannot be read is passed over."""
    codec, fold = Codec(), Fold(head(), FrozenDict({"n": 1}), FrozenDict({"n": 3}))

    def decode(raw: bytes) -> object:
        place = bodies.snapshot_place(UID, 3, b"3" * 32)
        crc = crc32(place.aad(), crc32(raw))
        return snapshot_in(codec, head(), 3, b"3" * 32, (0, raw, crc))

    return Decoder(decode, (bodies.snapshot_body(fold),), ())


def bases() -> Decoder:
    codec, fields = Codec(), FrozenDict({"n": 1})
    base = Base(KEY, UID, 2, b"2" * 32, fields, FrozenDict({"n": 1}), checksum(fields))
    first = Event(3, "e", "session.forked", "x", 1, {"base": base.checksum.hex()})

    def decode(raw: bytes) -> object:
        crc = crc32(bodies.base_place(UID, 2).aad(), crc32(raw))
        return base_in(codec, head(), (0, raw, crc), first)

    return Decoder(decode, (bodies.base_body(base),), (Damaged,))


def shared_names() -> Decoder:
    def decode(raw: bytes) -> object:
        form = raw[0] % 3 if raw else 0
        return scope_after(("a", "b", "user:n"), None, 1, form, raw[1:])

    made = (b'\0{"n":1}', b'\1["set",["user:n"],1]', b'\1["set",[],1]')
    return Decoder(decode, made, UNREADABLE)


def sealed_files() -> Decoder:
    """An archive, from outside."""
    codec, _ = sealed_codec()
    of = FileSeal(codec.sealer, "session", UID, "a/b")
    return Decoder(of.opened, (of.sealed(b"content" * 9), of.sealed(b"")))


# --- the ring -----------------------------------------------------------------------------------


def ring_rows(kind: Literal["key", "plain"]) -> Decoder:
    """Rows that somebody changed: keys cannot be had, or nothing is allowed by them."""
    ring = MemoryRing()
    seal = memory_seal(ring)
    done(seal.mark_bound([(UID, "", 7)]))
    done(seal.ready([UID]))
    part = "1" if kind == "key" else ""
    (row,) = done(ring.get(kind, [UID]))

    def decode(raw: bytes) -> object:
        done(ring.put([RingRow(kind, UID, part, raw)]))
        sealer = Sealer(other)
        other._owners.pop(UID, None)
        done(sealer.ready([UID]))
        if raw != row.value:
            assert not other.allows_plain(Place("event", UID, "e", "t", b"1/2/")) or kind == "key"
        return None

    async def nothing() -> None:
        """No master is added meanwhile."""

    masters: Any = open_masters("memory:")
    masters._reload = nothing
    other = KeySeal(masters, ring)
    done(other.open_ring(seal.id))
    return Decoder(decode, (row.value,))


def anchors() -> Decoder:
    """A changed anchor is one that nobody vouches for."""
    ring = MemoryRing()
    seal = memory_seal(ring)
    done(seal.ready([UID]))
    done(seal.anchor({UID: (KEY, 5, b"5" * 32)}))
    (row,) = done(ring.get("anchor", [UID]))
    whole = msgspec.msgpack.decode(row.value, type=Anchor)

    def decode(raw: bytes) -> object:
        done(ring.put([RingRow("anchor", UID, "", raw)]))

        async def vouched() -> bool:
            found = [each async for each in seal.anchors([UID])]
            same = (found[0][1].version, found[0][1].link) == (whole.version, whole.link)
            return same or not await seal.vouches(*found[0])

        assert done(vouched())
        return None

    return Decoder(decode, (row.value,), ())


def master_files() -> Decoder:
    def decode(raw: bytes) -> object:
        return _decoded("file:///x", raw.decode("ascii", errors="replace"))

    return Decoder(decode, (f"{new_master()}\n{new_master()}\n".encode(),))


# --- what is handed out -------------------------------------------------------------------------


def receipts(what: Literal["receipt", "proof", "certificate", "export"]) -> Decoder:
    """As the script reads them: it says that they are not valid."""
    with limpet.open_sync("memory://", keys="memory:") as lp:
        s = lp.create("support", "ada", "c1", state={"n": 1.5})
        s.append("user.message", {"text": "hi"}, actor="user:ada")
        receipt, proof, public = s.receipt(), s.prove(2), lp.keys.public_key
        lines = _lines(lp)
        done = lp.erase(s.key)
    assert done is not None
    assert done.certificate is not None
    key = receipt_check.public_key_of(public)
    signed = receipt_check._receipt(msgspec.to_builtins(receipt), key)

    def decode(raw: bytes) -> object:
        if what == "export":
            return receipt_check.check_export(raw.splitlines(keepends=True), signed)
        said = json.loads(raw)
        if what == "receipt":
            return receipt_check._receipt(said, key)
        if what == "certificate":
            return receipt_check._certificate(said, key, None)
        for name in ("header", "salt", "body", "digest", "previous"):
            said[name] = None if said[name] is None else said[name].encode()
        return receipt_check.check_proof(said, receipt.version, receipt.root)

    made = {"receipt": receipt, "proof": proof, "certificate": done.certificate}
    seeds = (lines,) if what == "export" else (msgspec.json.encode(made[what]),)
    caught = (receipt_check.NotValid, ValueError, LookupError, TypeError, RecursionError)
    return Decoder(decode, seeds, (*caught, AttributeError))


def _lines(lp: limpet.SyncLimpet) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        lp.export(KEY, Path(folder) / "x.limpet")
        return zstd.decompress((Path(folder) / "x.limpet").read_bytes())


def structs(form: type[Receipt | ErasureCertificate]) -> Decoder:
    """As `limpet verify --against` reads them."""
    made = dict.fromkeys(form.__struct_fields__, 1)
    decode = msgspec.json.Decoder(form).decode
    return Decoder(decode, (json.dumps(made).encode(),), (msgspec.MsgspecError, ValueError))


def envelopes() -> Decoder:
    seeds = tuple(
        [(GOLDEN / f"envelope-1.{kind}").read_bytes() for kind in ("json", "msgpack", "pb")]
    )
    return Decoder(envelope.decode, seeds)


def diffs() -> Decoder:
    return Decoder(Diff.from_bytes, ((GOLDEN / "diff-1.json").read_bytes(),))


class _Bytes(NamedTuple):
    raw: bytes

    def open(self, mode: Literal["rb"], /) -> IO[bytes]:
        return io.BytesIO(self.raw)


def bundles(*, packed: bool) -> Decoder:
    """As it is compressed, and what is compressed: a line that is changed is not what it was."""
    whole = files.BUNDLE.read_bytes()

    def decode(raw: bytes) -> object:
        reader = BundleReader(_Bytes(raw if packed else zstd.compress(raw, 1)))
        try:
            found = 0
            while part := reader.read(100, 2**20):
                found += len(part)
            return found
        finally:
            reader.close()

    return Decoder(decode, (whole if packed else zstd.decompress(whole),))


def audits() -> Decoder:
    lines = [
        {"limpet": audit_check.FORMAT, "at": "2026", "logs": [], "receipts": []},
        {"seq": 1, "at_us": 1, "link": "00", "header": "[]", "digest": "00", "redacted": True},
    ]
    seeds = tuple([b"\n".join([json.dumps(line).encode() for line in lines[:n]]) for n in (1, 2)])
    caught = (audit_check.AuditNotValid, OSError, ValueError, KeyError, TypeError)

    def decode(raw: bytes) -> object:
        return audit_check.check_lines(raw.splitlines(), {})

    return Decoder(decode, seeds, caught)


def cursor_texts() -> Decoder:
    query = Query(app="support")

    def decode(raw: bytes) -> object:
        text = raw.decode("utf-8", errors="replace")
        for read in (cursors.read, cursors.read_key):
            try:
                read(text, query)
            except LimpetError:
                continue
        cursors.check_position(text)
        return cursors.read_position(text, 2)

    seeds = (cursors.write(query, 5, 6), cursors.write_key(query, KEY, 1), "p1.2")
    return Decoder(
        decode, tuple([each.encode() for each in (*seeds, cursors.write_position(1, 2))])
    )


# --- what travels between a client and a server ---------------------------------------------------


def calls() -> Decoder:
    """Messages of a client: calls, their parcels, and the arguments of their methods."""
    said = Draft(type="user.message", data={"text": "hi"}, set={"n": 1})
    draft = prepare(said, id="e1", actor="a")
    given: dict[str, tuple[Any, ...]] = {
        "commit": ((Commit(KEY, (draft,), 3, uid=UID),),),
        "heads": (Query(app="support"),),
        "read_ids": (KEY, ("e1", "e2")),
        "perform": ("delete", encode([["support", "ada", "c1"]])),
    }
    kept = {"heads": {"cursor": None, "limit": 5}}
    sent = []
    for number, (name, args) in enumerate(given.items()):
        method = methods()[name]
        raw = encode(method.pack(method.bind(*args, **kept.get(name, {}))))
        for parcel in (Parcel(0, raw), Parcel(1, zstd.compress(raw))):
            call = Call(number + 1, name, False, parcel.raw, parcel.form)
            sent.append(encode(Calls(0, (call,))))

    def decode(raw: bytes) -> object:
        for call in decode_calls(raw).calls:
            method = methods().get(call.method)
            if method is not None and call.form in (0, 1):
                args = method.decode(expand(Parcel.of(call.form, call.args)))
                if method.name == "commit":
                    [unpack_commit(each, again=call.again) for each in args[0]]
                else:
                    method.unpack(args)
        return raw

    return Decoder(decode, tuple(sent), (LimpetError, *UNREADABLE_MESSAGE))


def sealed_calls() -> Decoder:
    """By the server, and answers by the client."""
    signing = Ed25519PrivateKey.generate()
    key, bound, reply = SealingKey(b"1" * 32, signing.sign), b"bound", b"2" * 32
    public = signing.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    client = SealedFor("http://127.0.0.1", public)
    client.greet(key.public, key.signature)
    call = client.seal(Parcel(0, b"\x91\x01"), reply, bound)
    answer = seal_answer(Parcel(0, b"\x91\x02"), reply, bound, ok=True)

    def decode(raw: bytes) -> object:
        with suppress(LimpetError):
            expand(key.open(Parcel(2, raw), bound)[0])
        with suppress(LimpetError):
            client.greet(raw, key.signature)
        return expand(client.open(Parcel(2, raw), reply, bound, ok=True))

    return Decoder(decode, (call.data, answer.data, key.public))


def verbs() -> Decoder:
    """The arguments of every verb that a server performs."""
    key = ["support", "ada", "c1"]
    given = ([key], [key, "keep", None], ["support", "ada", "a"], [key, None, "now", "full", None])

    def decode(raw: bytes) -> object:
        for name, verb in served_verbs.VERBS.items():
            with suppress(InvalidInput, NoVerb):
                done(perform(_Verbless(), name, raw, reads=verb.reads))
        return raw

    return Decoder(decode, tuple([encode(each) for each in given]))


class NoVerb(Exception):
    """The arguments were read."""


class _Verbless:
    """A Limpet that was asked for a verb."""

    def __getattr__(self, name: str) -> Any:
        raise NoVerb


def log_lines() -> Decoder:
    """The lines of a journal with something of most kinds, under the checksum that whoever can
    write a line would give it."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        with limpet.open_sync(f"files:///{folder}/s", keys="memory:") as lp:
            s = lp.create("support", "ada", "c1", state={"n": 1.5, "user:u": 1}, actor="user:ada")
            s.append("user.message", {"text": "hi"}, actor="user:ada", add={"l": [1]})
            s.fork(id="fork", actor="user:ada")
            s.blobs.put(b"blob")
            lp.work.claim("w")
            lp.delete("support", "ada", "fork")
            lp.maintenance.compact()
            s.append("user.message", {"text": "on"}, actor="user:ada", add={"l": [2]})
        paths = sorted(Path(folder).glob("s/log/*.jsonl"))
        lines = b"".join([path.read_bytes() for path in paths]).splitlines(keepends=True)

    def decode(raw: bytes) -> object:
        return read_line(finished(raw)[0][:-1]), read_line(raw)

    whole = [line[: line.rindex(b',"crc":"')] for line in lines]
    return Decoder(decode, (*lines, *whole))


def log_indexes() -> Decoder:
    """Of an earlier format, under the hash that whoever can write the directory would give it."""
    import tarfile
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(Path(files.__file__).with_name("files-2-compacted.tar.xz")) as archive:
            archive.extractall(folder, filter="data")
        root = Path(folder)
        content = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    (index,) = [path for path in content if path.name.startswith("index-")]

    def decode(raw: bytes) -> object:
        packed = zstd.compress(raw)
        current = {"index": index.name, "sha256": sha256(packed).hexdigest()}
        changed = {index: packed, root / "current.json": msgspec.json.encode(current)}
        with tempfile.TemporaryDirectory() as again:
            for path, before in content.items():
                place = Path(again) / path.relative_to(root)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(changed.get(path, before))
            return list(EarlierStore(Path(again), LogDisk()).checked_lines())

    return Decoder(decode, (zstd.decompress(content[index]),))


def tokens() -> Decoder:
    """A token that is let in is the one that was signed: test_tokens."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        add_signing_key(Path(folder) / "tokens.pem")
        keys = SigningKeys(f"file://{folder}/tokens.pem")
    names = {"jti": "j", "chain": "j", "app": "support", "user": "ada", "session": "c1", "sub": "x"}
    times = {"iat": 1.0, "exp": 2.0, "first": 1.0}
    token = keys.sign(TokenPayload(**names, **times, role="owner", scope=("read",)))

    def decode(raw: bytes) -> object:
        if raw[:1] == b"{":
            return decoded_payload(raw)
        return keys.opened(raw.decode("latin-1"))

    payload = msgspec.json.encode(keys.opened(token))
    return Decoder(decode, (token.encode(), payload), (TokenInvalid,))


def policy_tables() -> Decoder:
    """Cases, as a table and as JSON."""

    def decode(raw: bytes) -> object:
        text = raw.decode("latin-1")
        rows = _csv_rows(text) if text[:1] == "p" else _json_rows(text, Path("cases"))
        return [_case(str(line), row) for line, row in rows]

    row = {"principal": "user:ada", "role": "owner", "app": "support", "user": "ada"}
    row |= {"action": "write", "resource": "support/ada/c1#n", "expect": "allow", "label.x": "1"}
    row |= {"at": "2026-11-17T08:30:00Z", "address": "10.0.0.1", "principal.team": "x"}
    table = f"{','.join(row)}\n{','.join(row.values())}\n"
    seeds = (table, json.dumps(row), json.dumps([row, row], indent=1))
    return Decoder(decode, tuple(map(str.encode, seeds)), (LimpetError, csv.Error))


def packed_exports() -> Decoder:
    """As the script decompresses them where Python does not."""
    plain = b"".join([b'{"seq":%d,"text":"%d"}\n' % (n, n * n * 7_919) for n in range(60)])
    levels = [{zstd.CompressionParameter.compression_level: level} for level in (-5, 3, 19)]
    seeds = tuple([zstd.compress(plain, options=options) for options in levels])
    errors = (receipt_check.NotValid, ValueError, LookupError, TypeError)

    def decode(raw: bytes) -> int:
        return sum(map(len, receipt_check._decompressed(io.BytesIO(raw))))

    return Decoder(decode, seeds, errors)


DECODERS: Final[dict[str, Callable[[], Decoder]]] = {
    "sealed bodies": sealed_bodies,
    "plain bodies": plain_bodies,
    "rows of events": event_rows,
    "rows of events of a server": server_rows,
    "rows of heads": head_rows,
    "snapshots": snapshots,
    "bases": bases,
    "shared names": shared_names,
    "sealed files": sealed_files,
    "wrapped keys": lambda: ring_rows("key"),
    "plain marks": lambda: ring_rows("plain"),
    "anchors": anchors,
    "master keys": master_files,
    "receipts": lambda: receipts("receipt"),
    "proofs": lambda: receipts("proof"),
    "certificates": lambda: receipts("certificate"),
    "checked exports": lambda: receipts("export"),
    "receipts of a command": lambda: structs(Receipt),
    "certificates of a command": lambda: structs(ErasureCertificate),
    "envelopes": envelopes,
    "diffs": diffs,
    "bundles": lambda: bundles(packed=True),
    "lines of bundles": lambda: bundles(packed=False),
    "audits": audits,
    "cursors": cursor_texts,
    "calls": calls,
    "sealed calls": sealed_calls,
    "verbs": verbs,
    "lines of a log store": log_lines,
    "indexes of a log store": log_indexes,
    "tokens": tokens,
    "tables of cases": policy_tables,
    "compressed exports": packed_exports,
}


def run(name: str, count: int) -> None:
    decoder, chosen = DECODERS[name](), random.Random(seed(name))
    for whole in decoder.seeds:
        for raw in (whole, b"", whole[: len(whole) // 2]):
            _decode(decoder, raw)
    pool = list(decoder.seeds)
    for number in range(count):
        raw = mutated(chosen.choice(decoder.seeds if number % 2 else pool), chosen)
        if number % 50 == 0 and len(pool) < 200:
            pool.append(raw)  # changes upon changes
        _decode(decoder, raw)


def _decode(decoder: Decoder, raw: bytes) -> None:
    try:
        decoder.decode(raw)
    except decoder.errors:
        return
    except BaseException as error:
        pytest.fail(f"{raw!r} raised {error!r}")


@pytest.mark.parametrize("name", DECODERS)
def test_mutated_input_is_a_value_or_a_declared_error(name: str) -> None:
    """Never anything else, whatever was changed."""
    run(name, SHORT)


@pytest.mark.torture
@pytest.mark.parametrize("name", DECODERS)
def test_a_million_mutated_inputs(name: str) -> None:
    """The same, on a fresh seed."""
    run(name, LONG)
