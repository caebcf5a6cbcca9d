"""The messages between a client and a server, in MessagePack, and their bounds.

A client sends calls, as many as were waiting; a server sends answers and news, as many as there
are, with its time. A message that is larger than a piece travels in several frames, so that none
is long on the way and a reader that has stopped is noticed. The first byte of such frames begins
no message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from limpet.errors import InvalidInput
from limpet.model.limits import COMMIT_BYTES_MAX

PATH: Final = "/limpet/v1/store"
PROTOCOL_HEADER: Final = "limpet-protocol"
CLIENT_HEADER: Final = "limpet-client"
MEDIA_TYPE: Final = "application/vnd.limpet+msgpack"
PIECE_BYTES: Final = 256 * 1024
FRAME_BYTES_MAX: Final = PIECE_BYTES + 16
MESSAGE_BYTES_MAX: Final = COMMIT_BYTES_MAX + 32 * 2**20  # what a commit holds beside its bodies
CALLS_MAX: Final = 4_096  # of one client, without an answer; further callers wait
_MORE: Final = b"\xc1\x00"  # no message of MessagePack begins with 0xc1
_LAST: Final = b"\xc1\x01"


class Call(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One call of a method."""

    id: int  # grows with every call of a client; 0: nobody waits for an answer
    method: str
    again: bool  # it was sent before, and the answer was lost
    args: msgspec.Raw
    form: int = 0  # of its arguments: see `packing`


class Calls(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message of a client."""

    answered: int  # up to this id every answer has come: the server may forget them
    calls: tuple[Call, ...]


class Answer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The result of a call, or its error."""

    id: int
    ok: bool
    value: msgspec.Raw
    form: int = 0


class News(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """News that a server sends unasked."""

    kind: str
    value: msgspec.Raw


class Answers(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message of a server."""

    now_us: int  # the time by the store's clock
    answers: tuple[Answer, ...]
    news: tuple[News, ...] = ()


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """The first news of a connection."""

    server: str  # which process: answers are remembered by it
    abilities: tuple[str, ...]  # of its store
    live: bool  # partials travel
    actor: str | None = None  # the principal that this client is; None: it may be anybody
    writes_as: tuple[str, ...] = ()  # how other actors begin that it may name
    sealing: bytes = b""  # the key that calls can be sealed for, if the store has keys
    signature: bytes = b""  # of the store's signing key, which vouches for it


encode: Final = msgspec.msgpack.Encoder().encode
# Errors of bytes that are not a message: text that is not UTF-8 has an error of its own.
UNREADABLE_MESSAGE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
decode_calls: Final = msgspec.msgpack.Decoder(Calls).decode
decode_answers: Final = msgspec.msgpack.Decoder(Answers).decode
NOTHING: Final = msgspec.Raw(encode(None))


def frames(message: bytes) -> Iterator[bytes]:
    """Return a message as the frames in which it travels."""
    if len(message) <= PIECE_BYTES:
        yield message
        return
    for start in range(0, len(message), PIECE_BYTES):
        last = start + PIECE_BYTES >= len(message)
        yield (_LAST if last else _MORE) + message[start : start + PIECE_BYTES]


class Assembler:
    """Frames on their way to becoming messages again."""

    __slots__ = ("_pieces", "_size")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, frame: bytes) -> bytes | None:
        """Return the message that is whole with this frame. Raises InvalidInput if too large."""
        if frame[:1] != b"\xc1":
            if self._pieces:
                raise InvalidInput("a message began before the last one ended.")
            return frame
        self._size += len(frame)
        if self._size > MESSAGE_BYTES_MAX:
            raise InvalidInput(f"a message is larger than {MESSAGE_BYTES_MAX:,} bytes.")
        self._pieces.append(frame[2:])
        if frame[:2] == _MORE:
            return None
        whole = b"".join(self._pieces)
        self._pieces, self._size = [], 0
        return whole
