"""The arguments of a call, and its answer, as they travel: plain, compressed, or sealed.

From COMPRESS_BYTES on they are compressed by zstd, if that makes them smaller. A client that knows
the public key of the server's store (`limpet.open(url, seal_for=…)`) seals every call for that
store: a proxy that ends TLS sees the name of the method and the sizes. The known key is the one
that signs (`lp.keys.public_key`); it vouches for the key that calls are sealed for.

    sealed call     HPKE (RFC 9180: X25519, HKDF-SHA256, AES-256-GCM) of
                    reply key (32) ‖ form (1) ‖ arguments
    sealed answer   nonce (12) ‖ AES-256-GCM text under the reply key of form (1) ‖ answer

Both are bound to the server process, the client, the id of the call and its method: neither can be
used for another call. An answer is bound to whether it is a result or an error, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from limpet.errors import ExtraMissing, InvalidInput, SealBroken
from limpet.store.coding.codec import zstd
from limpet.store.remote.messages import MESSAGE_BYTES_MAX, UNREADABLE_MESSAGE, encode

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

COMPRESS_BYTES: Final = 4 * 1024
LEVEL: Final = 3  # of zstd
REPLY_KEY_BYTES: Final = 32
PLAIN, COMPRESSED, SEALED = 0, 1, 2  # the forms of what travels
_NONCE_BYTES: Final = 12
_VOUCHED: Final = b"limpet.sealing.1"
_CALL: Final = b"limpet.call.1"
_ANSWER: Final = b"limpet.answer.1"
_decode_bytes: Final = msgspec.msgpack.Decoder(bytes).decode


class Parcel(NamedTuple):
    """Arguments or an answer on their way, and in which form."""

    form: int
    data: bytes

    @property
    def raw(self) -> msgspec.Raw:
        """The data as it stands in a message."""
        return msgspec.Raw(self.data if self.form == PLAIN else encode(self.data))

    @classmethod
    def of(cls, form: int, raw: bytes) -> Parcel:
        """A parcel in a message. Raises InvalidInput."""
        if form == PLAIN:
            return cls(form, raw)
        try:
            return cls(form, _decode_bytes(raw))
        except UNREADABLE_MESSAGE as error:
            raise InvalidInput(f"a parcel cannot be read: {error}.") from error


def compress(plain: bytes) -> Parcel:
    """Compress what is large, if it gets smaller."""
    if len(plain) >= COMPRESS_BYTES:
        packed: bytes = zstd().compress(plain, LEVEL)
        if len(packed) < len(plain):
            return Parcel(COMPRESSED, packed)
    return Parcel(PLAIN, plain)


def expanded_bytes(parcel: Parcel) -> int:
    """The size of a parcel once it is expanded. Raises InvalidInput if that is not said, or is more
    than a message may have: nobody makes a small message that fills the memory."""
    if parcel.form != COMPRESSED:
        return len(parcel.data)
    try:
        size = zstd().get_frame_info(parcel.data).decompressed_size
    except zstd().ZstdError as error:
        raise InvalidInput(f"a parcel cannot be expanded: {error}.") from error
    if size is None or size > MESSAGE_BYTES_MAX:
        raise InvalidInput(
            f"a parcel does not say that it has {MESSAGE_BYTES_MAX:,} bytes at most."
        )
    return int(size)


def expand(parcel: Parcel) -> bytes:
    """Return what was compressed. Raises InvalidInput."""
    size = expanded_bytes(parcel)
    if parcel.form == PLAIN:
        return parcel.data
    tool = zstd().ZstdDecompressor()
    try:
        plain = bytes(tool.decompress(parcel.data, size))
    except (zstd().ZstdError, EOFError) as error:
        raise InvalidInput(f"a parcel cannot be expanded: {error}.") from error
    if not tool.eof or tool.unused_data or len(plain) != size:
        raise InvalidInput("a parcel has another size than it says.")
    return plain


# --- sealed --------------------------------------------------------------------------------------


def bound_to(server: str, client: str, id: int, method: str) -> bytes:
    """Return the bytes that bind a sealed call and its answer to their place."""
    return encode((server, client, id, method))


class SealedFor:
    """The client's side: every call is sealed for the store with a known public key."""

    def __init__(self, url: str, public_key: str | bytes) -> None:
        """Take the key of a store. Raises InvalidInput if it is not one of `lp.keys.public_key`."""
        self._url, self._known = url, _signing_key(public_key)
        self._sealing: Any = None

    def greet(self, sealing: bytes, signature: bytes) -> None:
        """Take the key that a server says its calls are sealed for, if the known key vouches for
        it. Raises SealBroken."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        if not sealing:
            raise SealBroken(self._url, "its store has no keys")
        try:
            self._known.verify(signature, _VOUCHED + sealing)
            self._sealing = X25519PublicKey.from_public_bytes(sealing)
        except (InvalidSignature, ValueError) as error:
            raise SealBroken(self._url, "its store has another key than the one given") from error

    def seal(self, parcel: Parcel, reply_key: bytes, bound: bytes) -> Parcel:
        plain = reply_key + bytes((parcel.form,)) + parcel.data
        return Parcel(SEALED, _suite().encrypt(plain, self._sealing, _CALL + bound))

    def open(self, parcel: Parcel, reply_key: bytes, bound: bytes, *, ok: bool) -> Parcel:
        """Open an answer. Raises SealBroken if it is not the server's to this call."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if parcel.form != SEALED:  # by somebody in between, or by a server that could not open it
            raise SealBroken(self._url, "the call or its answer was changed on its way")
        nonce, text = parcel.data[:_NONCE_BYTES], parcel.data[_NONCE_BYTES:]
        try:
            plain = AESGCM(reply_key).decrypt(nonce, text, _answers(bound, ok=ok))
        except (InvalidTag, ValueError) as error:
            raise SealBroken(self._url, "the call or its answer was changed on its way") from error
        return Parcel(plain[0], plain[1:])


class SealingKey:
    """The server's side: the key that calls are sealed for, and who vouches for it."""

    def __init__(self, secret: bytes, sign: Callable[[bytes], bytes]) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._private = X25519PrivateKey.from_private_bytes(secret)
        self.public = self._private.public_key().public_bytes_raw()
        self.signature = sign(_VOUCHED + self.public)

    def open(self, parcel: Parcel, bound: bytes) -> tuple[Parcel, bytes]:
        """Open a call; it, and the key for its answer. Raises SealBroken."""
        from cryptography.exceptions import InvalidTag

        try:
            plain = _suite().decrypt(parcel.data, self._private, _CALL + bound)
        except (InvalidTag, ValueError) as error:
            raise SealBroken("this store", "a call was changed, or sealed for another") from error
        if len(plain) <= REPLY_KEY_BYTES or plain[REPLY_KEY_BYTES] not in (PLAIN, COMPRESSED):
            raise SealBroken("this store", "a call was not sealed as one")
        inner = Parcel(plain[REPLY_KEY_BYTES], plain[REPLY_KEY_BYTES + 1 :])
        return inner, plain[:REPLY_KEY_BYTES]


def _answers(bound: bytes, *, ok: bool) -> bytes:
    return _ANSWER + bytes((ok,)) + bound


def seal_answer(parcel: Parcel, reply_key: bytes, bound: bytes, *, ok: bool) -> Parcel:
    """Seal an answer for whoever made the call. Each key seals one answer."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(_NONCE_BYTES)
    plain = bytes((parcel.form,)) + parcel.data
    return Parcel(SEALED, nonce + AESGCM(reply_key).encrypt(nonce, plain, _answers(bound, ok=ok)))


def _suite() -> Any:
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

    return Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


def _signing_key(given: str | bytes) -> Ed25519PublicKey:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError as error:
        raise ExtraMissing("cryptography", "security") from error
    try:
        key = load_pem_public_key(given.encode() if isinstance(given, str) else given)
    except (ValueError, TypeError, AttributeError, UnsupportedAlgorithm) as error:
        raise InvalidInput("seal_for is the text of lp.keys.public_key, in PEM.") from error
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidInput("seal_for is the key of a store (Ed25519), as lp.keys.public_key says.")
    return key
