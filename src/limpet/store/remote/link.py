"""The link of a client to its server: calls go out together, answers come back by their ids.

One websocket carries everything. What waits when the loop turns goes out in one message. If the
connection is lost, the link connects again, with pauses that grow and vary, and sends what was not
answered again under the same ids: a server that knows them answers from memory, and another one
looks for the ids of drafts. No call waits longer than PATIENCE_SECONDS for a server.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import secrets
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from typing import Any, Final

import msgspec

from limpet.errors import (
    CommitTooLarge,
    EntryRefused,
    ExtraMissing,
    InvalidCursor,
    InvalidInput,
    LimpetError,
    ProtocolMismatch,
    StoreClosed,
    StoreFailed,
    StoreUnopened,
)
from limpet.model.keys import is_lone
from limpet.store.logs import REMOTE, error_name
from limpet.store.protocol import Progress, Traffic
from limpet.store.remote.address import Address
from limpet.store.remote.forms import unpack_error
from limpet.store.remote.messages import (
    CALLS_MAX,
    CLIENT_HEADER,
    FRAME_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    PROTOCOL_HEADER,
    Answer,
    Assembler,
    Call,
    Calls,
    Hello,
    News,
    decode_answers,
    encode,
    frames,
)
from limpet.store.remote.methods import Method, version
from limpet.store.remote.packing import (
    REPLY_KEY_BYTES,
    Parcel,
    SealedFor,
    bound_to,
    compress,
    expand,
)
from limpet.store.remote.posting import PostTransport, post

try:
    import picows
except ImportError as error:
    raise ExtraMissing("picows", "client") from error

PATIENCE_SECONDS: Final = 12.0  # how long a call waits for a server
CONNECT_SECONDS: Final = 5.0
IDLE_SECONDS: Final = 5.0  # without a word from the server it is asked whether it is there
PAUSE_SECONDS: Final = (0.05, 2.0)  # between two tries to connect: the first, and the longest
BRIEF_SECONDS: Final = 1.0  # a connection that lasted no longer is not replaced at once
MESSAGE_BYTES: Final = 4 * 2**20  # calls that wait are sent together up to this size
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] ([0-9]{3})\b")
_decode_error: Final = msgspec.msgpack.Decoder(tuple[str, str, dict[str, Any]]).decode
_decode_hello: Final = msgspec.msgpack.Decoder(Hello).decode
_decode_progress: Final = msgspec.msgpack.Decoder(tuple[int, int, int]).decode


class Pending:
    """A call that has no answer yet."""

    __slots__ = (
        "args",
        "bound",
        "future",
        "id",
        "method",
        "progress",
        "reply_key",
        "sent_to",
        "since",
    )

    def __init__(
        self, id: int, method: Method, args: Parcel, future: asyncio.Future[Answer]
    ) -> None:
        self.id, self.method, self.args, self.future = id, method, args, future
        # Of a sealed call. A server that is asked again answers what it answered: the key stays.
        self.reply_key, self.bound = b"", b""
        self.progress: Progress | None = None
        self.sent_to: str | None = None  # the server process that may know of it
        self.since = time.monotonic()


class Link:
    """The calls of one client, and its connection."""

    def __init__(
        self,
        address: Address,
        on_news: Callable[[str, msgspec.Raw], None],
        on_connect: Callable[[], None],
        on_refusal: Callable[[], None],
        sealed_for: SealedFor | None = None,
    ) -> None:
        """`on_news` gets what the server says unasked; `on_connect` is called for each connection,
        which may be to another server than before, and `on_refusal` if no other will be made.
        `sealed_for` seals every call."""
        self.address, self._on_news = address, on_news
        self._on_connect, self._on_refusal = on_connect, on_refusal
        self._sealed_for, self.traffic = sealed_for, Traffic()
        self.hello: Hello | None = None
        self._client = secrets.token_hex(16)
        self._loop = asyncio.get_running_loop()
        self._last_id = 0
        self._pending: dict[int, Pending] = {}
        self._outbox: deque[Pending] = deque()
        self._notes: list[Call] = []  # that wait to be sent, and for no answer
        self._transport: picows.WSTransport | PostTransport | None = None
        self._writes, self._scheduled = True, False
        self._room: deque[asyncio.Future[None]] = deque()
        self._connecting: asyncio.Task[None] | None = None
        self._lost_at = time.monotonic()
        self._open = True  # takes calls
        self._ended = False  # tries to connect no more
        self._begun_at, self._brief = float("-inf"), 0.0  # the connection, the pause after it
        self._said = (0, time.monotonic_ns())  # the server's time, and when it came

    def now_us(self) -> int:
        """The server's time, carried on by the clock of this process: never ahead of it."""
        now_us, came_ns = self._said
        return now_us + (time.monotonic_ns() - came_ns) // 1_000

    # --- calls ---------------------------------------------------------------------------------

    async def call(self, method: Method, args: Sequence[Any], given: Mapping[str, Any]) -> Any:
        """Call a method of the server's store. Raises what it raises there, and StoreFailed if no
        server answers."""
        bound = method.bind(*args, **given)
        try:
            payload = encode(method.pack(bound))
        except UnicodeEncodeError as error:
            raise _unencodable(bound) from error
        if len(payload) > MESSAGE_BYTES_MAX - 1_024:
            raise CommitTooLarge("bytes", len(payload), MESSAGE_BYTES_MAX - 1_024)
        if not self._open:
            raise StoreClosed
        while len(self._pending) >= CALLS_MAX:
            await self._wait_for_room()
        self._last_id += 1
        parcel = compress(payload)
        pending = Pending(self._last_id, method, parcel, self._loop.create_future())
        self.traffic.count(len(payload), len(parcel.data))
        if self._sealed_for is not None:
            pending.reply_key = secrets.token_bytes(REPLY_KEY_BYTES)
        if method.progress is not None:
            pending.progress = getattr(bound, method.bind.__struct_fields__[method.progress])
        self._pending[pending.id] = pending
        self._outbox.append(pending)
        self._send_soon()
        answer = await self._answered(pending)
        parcel = Parcel.of(answer.form, answer.value)
        if self._sealed_for is not None:
            of_call = (pending.reply_key, pending.bound)
            parcel = self._sealed_for.open(parcel, *of_call, ok=answer.ok)
        value = expand(parcel)
        self.traffic.count(len(value), len(parcel.data))
        if answer.ok:
            return method.read_answer(value)
        raise unpack_error(_decode_error(value))

    def note(self, name: str, value: object) -> None:
        """Tell the server something, soon. Nobody waits for an answer, and it may be lost."""
        if self._transport is not None:
            self._notes.append(Call(0, name, False, msgspec.Raw(encode(value))))
            self._send_soon()

    async def _answered(self, pending: Pending) -> Answer:
        """Wait for the answer. A write that was sent is waited for even if its caller is
        cancelled: then it has happened, or never will, when CancelledError is raised."""
        future = pending.future
        try:
            return await future
        except asyncio.CancelledError:
            if pending.sent_to is None or pending.method.reads:
                self._drop(pending)
                raise
            await self._settled(pending)
            raise

    async def _settled(self, pending: Pending) -> None:
        """Wait until a call has an answer, whoever is cancelled meanwhile."""
        if pending.future.cancelled() and pending.id in self._pending:
            pending.future = self._loop.create_future()  # it was cancelled with its caller
        while not pending.future.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([pending.future])
        if not pending.future.cancelled():
            pending.future.exception()

    def _drop(self, pending: Pending) -> None:
        """Forget a call that nobody waits for."""
        self._pending.pop(pending.id, None)
        with suppress(ValueError):
            self._outbox.remove(pending)
        self._make_room()

    async def _wait_for_room(self) -> None:
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._room.append(waiting)
        try:
            await waiting
        finally:
            with suppress(ValueError):
                self._room.remove(waiting)
        if not self._open:
            raise StoreClosed

    def _make_room(self) -> None:
        while self._room and (len(self._pending) < CALLS_MAX or not self._open):
            waiting = self._room.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return

    # --- sending -------------------------------------------------------------------------------

    def _send_soon(self) -> None:
        if not self._scheduled and self._transport is not None and self._writes:
            self._scheduled = True
            self._loop.call_soon(self._send)
        elif self._transport is None:
            self._connect_soon()

    def _send(self) -> None:
        """Send what waits, together."""
        self._scheduled = False
        while (self._outbox or self._notes) and self._transport is not None and self._writes:
            assert self.hello is not None
            calls, size = self._notes, 0
            self._notes = []
            while self._outbox and size < MESSAGE_BYTES:
                pending = self._outbox.popleft()
                again = pending.sent_to is not None
                pending.sent_to = self.hello.server
                parcel = self._sealed(pending)
                calls.append(Call(pending.id, pending.method.name, again, parcel.raw, parcel.form))
                size += len(parcel.data)
            message = encode(Calls(self._answered_up_to(), tuple(calls)))
            for frame in frames(message):
                self._transport.send(picows.WSMsgType.BINARY, frame)

    def _sealed(self, pending: Pending) -> Parcel:
        """The arguments of a call as they travel to the server of this connection."""
        if self._sealed_for is None:
            return pending.args
        assert self.hello is not None
        pending.bound = bound_to(self.hello.server, self._client, pending.id, pending.method.name)
        return self._sealed_for.seal(pending.args, pending.reply_key, pending.bound)

    def _answered_up_to(self) -> int:
        """Up to which id the server need not remember its answers."""
        first = next(iter(self._pending), None)
        return self._last_id if first is None else first - 1

    # --- receiving -----------------------------------------------------------------------------

    def _received(self, message: bytes) -> None:
        batch = decode_answers(message)
        self._said = (batch.now_us, time.monotonic_ns())
        for news in batch.news:  # the progress of a call comes before its answer
            self._tell(news)
        for answer in batch.answers:
            pending = self._pending.pop(answer.id, None)
            if pending is not None and not pending.future.done():
                pending.future.set_result(answer)
        if self._room:
            self._make_room()

    def _tell(self, news: News) -> None:
        if news.kind != "progress":
            self._on_news(news.kind, news.value)
            return
        id, done, total = _decode_progress(news.value)
        pending = self._pending.get(id)
        if pending is None or pending.progress is None or pending.future.done():
            return
        try:
            pending.progress(done, total)
        except Exception as error:  # as if the store here had called it
            self._pending.pop(id)
            pending.future.set_exception(error)

    # --- connecting ----------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect. Raises StoreFailed if no server answers for PATIENCE_SECONDS."""
        self._lost_at, reason, pause = time.monotonic(), "", 0.0
        while True:
            left = self._lost_at + PATIENCE_SECONDS - time.monotonic()
            if left <= 0:
                raise self._unreachable(reason, "read")
            try:
                await self._connect(min(left, CONNECT_SECONDS))
                return
            except _Unreachable as error:
                reason, pause = str(error), _next_pause(pause)
            await asyncio.sleep(min(pause, left))

    def _connect_soon(self) -> None:
        if not self._ended and (self._connecting is None or self._connecting.done()):
            self._connecting = self._loop.create_task(self._reconnect())

    async def _reconnect(self) -> None:
        pause = 0.0
        if time.monotonic() - self._begun_at < BRIEF_SECONDS:  # it would be lost again
            pause = self._brief = _next_pause(self._brief)
            await asyncio.sleep(pause)
        else:
            self._brief = 0.0
        while not self._ended and self._transport is None:
            try:
                await self._connect(CONNECT_SECONDS)
            except _Unreachable as error:
                pause = min(_next_pause(pause), self._give_up(str(error)))
            except LimpetError as error:  # it will not help to try again
                self._fail(list(self._pending.values()), lambda _, error=error: error)  # type: ignore[misc]
                self._on_refusal()  # who waits for news has no call that could fail
                return
            else:
                return
            await asyncio.sleep(pause)

    def _give_up(self, reason: str) -> float:
        """Fail the calls that have waited long enough; how long the next one still waits."""
        now, waits = time.monotonic(), PATIENCE_SECONDS
        late = []
        for pending in self._pending.values():
            left = max(self._lost_at, pending.since) + PATIENCE_SECONDS - now
            if left <= 0:
                late.append(pending)
            else:
                waits = min(waits, left)
        self._fail(late, lambda pending: self._unreachable(reason, pending.method.asked))
        return waits

    def _unreachable(self, reason: str, asked: Any) -> StoreFailed:
        seconds = f"{PATIENCE_SECONDS:.0f} s"
        why = f"no server answered within {seconds} ({reason}); check that limpet serve runs there"
        return StoreFailed(self.address.url, why, asked)

    def _fail(self, calls: Sequence[Pending], error: Callable[[Pending], LimpetError]) -> None:
        for pending in calls:
            self._drop(pending)
            if not pending.future.done():
                pending.future.set_exception(error(pending))

    async def _connect(self, seconds: float) -> None:
        """Connect, once. Raises _Unreachable if it may be tried again."""
        socket = _Socket(self)
        headers = {PROTOCOL_HEADER: version(), CLIENT_HEADER: self._client}
        if self.address.token is not None:
            headers["authorization"] = f"Bearer {self.address.token}"
        try:
            async with asyncio.timeout(seconds):
                transport, _ = await picows.ws_connect(
                    lambda: socket,
                    self.address.socket_url,
                    ssl_context=self.address.tls,
                    use_aiofastnet=False if self.address.pinned else None,
                    websocket_handshake_timeout=seconds,
                    enable_auto_ping=True,
                    auto_ping_idle_timeout=IDLE_SECONDS,
                    auto_ping_reply_timeout=IDLE_SECONDS,
                    max_frame_size=FRAME_BYTES_MAX,
                    extra_headers=headers,
                    max_redirects=0,
                    proxy=None,
                )
                if transport.is_disconnected:  # picows does not say so before the upgrade
                    raise _Unreachable(f"it closed the connection unanswered; {self._of_tls()}")
                try:
                    hello = await socket.greeted
                except BaseException:
                    transport.disconnect(graceful=False)
                    raise
        except picows.WSHandshakeError as error:
            refused = self._refused(error)
            by_proxy = isinstance(refused, _Unreachable) and _status(error) is not None
            if by_proxy and not self.address.pinned and await self._post_instead(headers, seconds):
                return
            raise refused from error
        except ssl.SSLError as error:
            raise self._untrusted(error) from error
        except (OSError, TimeoutError, picows.WSError) as error:
            reason = str(error) or "it did not answer in time"
            raise _Unreachable(f"{error_name(error)}: {reason}") from error
        spoken = transport.response.headers.get(PROTOCOL_HEADER)
        if spoken != version():
            transport.disconnect(graceful=False)
            raise ProtocolMismatch(self.address.url, str(spoken), version())
        try:
            self._greet(hello)
        except LimpetError:
            transport.disconnect(graceful=False)
            raise
        self._begin(transport, hello)

    async def _post_instead(self, headers: Mapping[str, str], seconds: float) -> bool:
        """Use POST, if the server answers it: something on the way passes no websocket."""
        greeting = encode(Calls(self._answered_up_to(), ()))
        try:
            async with asyncio.timeout(seconds):
                status, content, spoken = await asyncio.to_thread(
                    post, self.address, headers, greeting
                )
        except (OSError, TimeoutError, HTTPException):
            return False
        if status != 200 or spoken != version():
            return False
        batch = decode_answers(content)
        self._said = (batch.now_us, time.monotonic_ns())
        hello = _decode_hello(batch.news[0].value)
        self._greet(hello)
        self._begin(PostTransport(self.address, headers, self._received, self._lost), hello)
        return True

    def _greet(self, hello: Hello) -> None:
        """Raise SealBroken unless the server's store is the one that calls are sealed for."""
        if self._sealed_for is not None:
            self._sealed_for.greet(hello.sealing, hello.signature)

    @property
    def posts(self) -> bool:
        """True if the server says nothing unasked."""
        return isinstance(self._transport, PostTransport)

    def _untrusted(self, error: ssl.SSLError) -> LimpetError | _Unreachable:
        """A failed handshake, as an error: to try again helps only if it was cut off."""
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = getattr(error, "verify_message", None) or str(error)
            return StoreUnopened(
                self.address.url,
                f"its certificate is not trusted ({reason}); name its CA and its pin, as in "
                "tls=limpet.Tls(ca='ca.pem')",
            )
        if "WRONG_VERSION" in (error.reason or ""):  # what came is not TLS
            reason = "it does not speak TLS; write http:// if it was started without --tls-cert"
            return StoreUnopened(self.address.url, reason)
        if "ALERT" in (error.reason or "") or "VERSION" in (error.reason or ""):
            return EntryRefused(
                self.address.url,
                f"TLS failed ({error.reason})",
                f"I{self._of_tls()[1:]}",
            )
        return _Unreachable(f"{error_name(error)}: {error}")

    def _of_tls(self) -> str:
        """The advice about TLS to who finds a server that ends every connection."""
        if self.address.tls is None:
            return "if it has TLS, write https://"
        return "if it asks for a client certificate, pass tls=limpet.Tls(cert=…, key=…)"

    def _refused(self, error: Any) -> LimpetError | _Unreachable:
        """The answer of a server that does not take the connection, as an error."""
        with suppress(AttributeError, ValueError, LookupError, TypeError):
            body = json.loads(error.raw_body)["error"]
            refusal = unpack_error((body["code"], body["message"], body.get("fields", {})))
            if not refusal.retryable:
                return refusal
        status = _status(error)
        said = "no HTTP" if status is None else f"status {status}"
        return _Unreachable(f"it answers with {said}, not as limpet serve does")

    def _begin(self, transport: Any, hello: Hello) -> None:
        """Use a new connection: what was sent on the last one and not answered is sent again."""
        if self.hello is not None:
            seconds = time.monotonic() - self._lost_at
            REMOTE.info("connection regained: store=%s seconds=%.3f", self.address.url, seconds)
        self._transport, self.hello, self._writes = transport, hello, True
        self._begun_at = time.monotonic()
        lost = [
            pending
            for pending in self._pending.values()
            if pending.sent_to not in (None, hello.server) and not pending.method.repeatable
        ]
        self._fail(
            lost,
            lambda pending: StoreFailed(
                self.address.url, "the server was restarted", pending.method.asked
            ),
        )
        self._outbox = deque(self._pending.values())
        self._notes.clear()
        self._on_connect()
        self._send_soon()

    def _lost(self, transport: Any) -> None:
        """The connection is gone."""
        if transport is not self._transport:
            return
        self._transport, self._lost_at = None, time.monotonic()
        if not self._ended:
            REMOTE.warning("connection lost: store=%s", self.address.url)
            self._connect_soon()

    async def close(self) -> None:
        """Wait for what was sent, then let go of the server. Closing twice is fine."""
        if not self._open:
            return
        self._open = False
        self._make_room()
        writes = [each.future for each in self._pending.values() if not each.method.reads]
        if writes:
            await asyncio.wait(writes, timeout=PATIENCE_SECONDS)
        self._ended = True
        self._fail(list(self._pending.values()), lambda _: StoreClosed())
        while self._room:
            self._make_room()
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.send_close(picows.WSCloseCode.OK)
            transport.disconnect()
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await transport.wait_disconnected()


class _Unreachable(Exception):
    """No server is there, or none that takes connections now."""


class _Socket(picows.WSListener):
    """One connection, as picows calls it."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link
        self._assembler = Assembler()
        self.greeted: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()

    def on_ws_frame(self, transport: Any, frame: Any) -> None:
        if frame.msg_type == picows.WSMsgType.CLOSE:
            transport.disconnect()
            return
        if frame.msg_type != picows.WSMsgType.BINARY:
            return
        message = self._assembler.add(frame.get_payload_as_bytes())
        if message is None:
            return
        if not self.greeted.done():
            answers = decode_answers(message)
            self._link._said = (answers.now_us, time.monotonic_ns())
            self.greeted.set_result(_decode_hello(answers.news[0].value))
            return
        self._link._received(message)

    def on_ws_disconnected(self, transport: Any) -> None:
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionResetError("the server closed the connection"))
            self.greeted.exception()
        self._link._lost(transport)
        ending = asyncio.ensure_future(transport.wait_disconnected())
        ending.add_done_callback(_retrieved)

    def pause_writing(self) -> None:
        self._link._writes = False

    def resume_writing(self) -> None:
        self._link._writes = True
        self._link._send_soon()


def _status(error: picows.WSHandshakeError) -> int | None:
    """The status of a refused handshake, also of a proxy that speaks HTTP/1.0; None without one."""
    match = _STATUS_LINE.match(error.raw_header or b"")
    return None if match is None else int(match[1])


def _retrieved(ending: asyncio.Future[None]) -> None:
    """Retrieve why a connection ended, since nobody else does."""
    if not ending.cancelled():
        ending.exception()


def _next_pause(pause: float) -> float:
    """The pause before the next try: twice as long, up to a bound, and never the same for all."""
    least, most = PAUSE_SECONDS
    return random.uniform(0.5, 1.0) * min(most, max(least, pause * 2.5))  # nosec B311  # spreads retries


def _unencodable(bound: Any) -> InvalidInput:
    """The error for arguments with half of a pair of surrogates: no store issues such a text."""
    for name, of in (("cursor", "page"), ("after", "feed")):
        given = getattr(bound, name, None)
        if isinstance(given, str) and any(map(is_lone, given)):
            return InvalidCursor(of)  # type: ignore[arg-type]  # one of two
    return InvalidInput("an argument holds a lone surrogate, which no encoding has.")
