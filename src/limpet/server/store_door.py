"""The door of the store protocol: calls come in by websocket or POST and go to the store.

Each call is a task of its own, so those that came together reach the store together, and share its
commit. Commits are prepared again from what travelled. What a client is answered is remembered
until it says that the answer came, and for a minute at most: a call that is sent again is not made
again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from limpet.errors import (
    InvalidEvent,
    InvalidInput,
    InvalidQuery,
    LimpetError,
    SessionCorrupt,
    StoreBusy,
    StoreRefused,
)
from limpet.model import Commit, Key
from limpet.server.access import Caller
from limpet.server.limits import (
    ANSWERS_KEPT_BYTES_MAX,
    ANSWERS_KEPT_SECONDS,
    CALLS_PER_CONNECTION_MAX,
    CLIENTS_KEPT_MAX,
    SLOW_READER_SECONDS,
)
from limpet.server.loggers import SERVER
from limpet.server.meter import Meter
from limpet.server.partials import Relay
from limpet.server.requests import KeyShare, read_body
from limpet.session.acting import ActingJournal
from limpet.session.following.follow import Hub
from limpet.session.journal import Journal
from limpet.session.limpet import Limpet, journal_of
from limpet.store.live import Packed
from limpet.store.logs import error_name
from limpet.store.protocol import Live
from limpet.store.remote.commits import SentCommit, unpack_commit
from limpet.store.remote.forms import pack_error
from limpet.store.remote.messages import (
    CLIENT_HEADER,
    MESSAGE_BYTES_MAX,
    NOTHING,
    PROTOCOL_HEADER,
    Answer,
    Answers,
    Assembler,
    Call,
    Calls,
    Hello,
    News,
    decode_calls,
    encode,
    frames,
)
from limpet.store.remote.methods import Method, abilities_of, methods, version

_decode_packed: Final = msgspec.msgpack.Decoder(tuple[Packed, ...]).decode
_decode_wanted: Final = msgspec.msgpack.Decoder(tuple[str, str, str, bool]).decode
_PROGRESS_SECONDS: Final = 0.05  # the least time between two reports of one call


class StoreDoor:
    """The store protocol of one server process."""

    def __init__(self, lp: Limpet, meter: Meter, share: KeyShare) -> None:
        self._lp, self._meter, self._share = lp, meter, share
        self.server = secrets.token_hex(8)
        self._clients: dict[tuple[str | None, ...], Client] = {}
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.pulse = Pulse(lp)
        self.relay = Relay(journal_of(lp).store)

    @property
    def connected(self) -> int:
        """How many websockets are open."""
        return len(self._connections)

    def hello(self, caller: Caller) -> Hello:
        journal = journal_of(caller.lp)
        offered = (self.server, abilities_of(journal.store), isinstance(journal.store, Live))
        if not isinstance(journal, ActingJournal):
            return Hello(*offered)
        return Hello(*offered, journal.guard.principal.id, journal.guard.writes_as)

    async def serve(self, socket: WebSocket, caller: Caller) -> None:
        """Answer one websocket until it ends."""
        headers = [(PROTOCOL_HEADER.encode(), version().encode())]
        await socket.accept(headers=headers)
        connection = Connection(self, socket, caller, self.client(socket, caller))
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            self.pulse.leave(connection)
            await self.relay.leave(connection)

    async def answer(self, request: Request, caller: Caller) -> bytes:
        """Answer one POST: all of its calls."""
        sent = _read(await read_body(request, self._share, most=MESSAGE_BYTES_MAX + 1))
        client = self.client(request, caller)
        client.forget(sent.answered)
        tasks = [self.start(call, caller, client, None) for call in sent.calls if call.id]
        answers = [await asyncio.shield(task) for task in tasks if task is not None]
        news = () if sent.calls else (News("hello", msgspec.Raw(encode(self.hello(caller)))),)
        return encode(Answers(journal_of(caller.lp).now_us(), tuple(answers), news))

    def client(self, connection: WebSocket | Request, caller: Caller) -> Client:
        """What is remembered of a client. Its id is a secret, and goes with who it is."""
        id = connection.headers.get(CLIENT_HEADER) or secrets.token_hex(16)
        role = None if caller.principal is None else caller.principal.role
        of = (caller.app, caller.name, role, id[:64])
        now = time.monotonic()
        client = self._clients.pop(of, None) or Client()
        client.seen = now
        self._clients[of] = client  # the newest last
        for other, each in [*self._clients.items()][:2]:
            stale = now - each.seen > ANSWERS_KEPT_SECONDS and not each.connections
            if (stale or len(self._clients) > CLIENTS_KEPT_MAX) and each is not client:
                del self._clients[other]
        return client

    def start(
        self, call: Call, caller: Caller, client: Client, report: Report | None
    ) -> asyncio.Task[Answer] | None:
        """Begin with a call, or find the one that it repeats; None: its answer was received."""
        task = client.calls.get(call.id)
        if task is not None:
            return task
        if call.id <= client.answered:
            return None
        task = asyncio.get_running_loop().create_task(self._counted(call, caller, report))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if call.method in methods() and not methods()[call.method].reads:
            client.remember(call.id, task)
        return task

    async def _counted(self, call: Call, caller: Caller, report: Report | None) -> Answer:
        began = time.monotonic()
        answer = await self._made(call, caller, report)
        name = call.method if call.method in methods() else "none"
        self._meter.call(name, ok=answer.ok, seconds=time.monotonic() - began)
        return answer

    async def _made(self, call: Call, caller: Caller, report: Report | None) -> Answer:
        """Make a call; its answer is its result, or its error."""
        try:
            method = methods().get(call.method)
            if method is None:
                raise InvalidInput(f"the store protocol has no method {call.method[:100]!r}.")
            value = await _call(method, call, caller, journal_of(self._lp).hub, report)
            return Answer(call.id, True, msgspec.Raw(value))
        except LimpetError as error:
            return Answer(call.id, False, msgspec.Raw(encode(pack_error(error))))
        except MemoryError:
            busy = StoreBusy("the server", "it has no memory left", "send less at a time")
            return Answer(call.id, False, msgspec.Raw(encode(pack_error(busy))))
        except Exception as error:
            SERVER.exception("call failed: method=%s error=%s", call.method, error_name(error))
            reason = f"its code failed ({error_name(error)}); its log says where"
            failed = StoreRefused("the server", reason, "Report this as a bug")
            return Answer(call.id, False, msgspec.Raw(encode(pack_error(failed))))

    async def close(self) -> None:
        """Finish what is at work, and let go of the connections."""
        for connection in tuple(self._connections):
            connection.leave()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.pulse.close()
        await self.relay.close()


Report = Callable[[int, int, int], None]  # call id, done, total


async def _call(
    method: Method, call: Call, caller: Caller, hub: Hub, report: Report | None
) -> bytes:
    """The encoded result of a method. Raises what it raises, InvalidInput if its arguments are
    none."""
    journal = journal_of(caller.lp)
    try:
        args = method.decode(call.args)
        if method.name == "commit":
            given: list[Any] = [_commits(args[0], call, caller)]
        else:
            given = method.unpack(args)
    except msgspec.MsgspecError as error:
        if method.name in ("heads", "waiting"):
            raise InvalidQuery(str(error)) from error
        raise InvalidInput(f"the arguments of {method.name} cannot be read: {error}.") from error
    if method.progress is not None:
        told = given[method.progress] and report is not None
        given[method.progress] = _reporting(call.id, report) if told else None
    if method.name == "commit":
        for commit in given[0]:
            await _check_base(journal, commit)
        return method.encode_answer(await journal.commit(given[0]))
    of = getattr(journal.store, method.part) if method.part else journal.store
    result = await getattr(of, method.verb)(**dict(zip(_names(method), given, strict=True)))
    if method.name in ("delete", "erase"):
        hub.touch(given[0])
    elif method.name in ("exchange", "erase_user"):
        hub.ring()
    return method.encode_answer(result)


def _names(method: Method) -> tuple[str, ...]:
    return method.bind.__struct_fields__  # type: ignore[no-any-return]


def _commits(sent: Sequence[SentCommit], call: Call, caller: Caller) -> tuple[Commit, ...]:
    """Commits of a client, prepared again. Raises InvalidInput."""
    if not caller.admin:
        for each in sent:
            if each.names_of is not None or any([draft.origin for draft in each.drafts]):
                raise InvalidInput("only an admin adopts what another store has recorded.")
    return tuple([unpack_commit(each, again=call.again) for each in sent])


async def _check_base(journal: Journal, commit: Commit) -> None:
    """Refuse a log that begins on another state than its parent had there."""
    base = commit.base
    if base is None or commit.drafts[0].origin is not None:
        return
    try:
        fold = await journal.store.fold_at(base.parent, base.floor)
    except SessionCorrupt:
        raise
    except LimpetError:
        return  # there is no such place: the store refuses it
    same = (fold.head.uid, fold.head.link) == (base.uid, base.link)
    if same and (fold.fields, fold.versions) != (base.fields, base.versions):
        raise InvalidEvent(f"it begins on another state than {base.parent} has there")


def _reporting(id: int, report: Report | None) -> Callable[[int, int], None]:
    """A progress callback that reports now and then, from any thread."""
    assert report is not None
    loop, last = asyncio.get_running_loop(), float("-inf")

    def progress(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _PROGRESS_SECONDS or done == total:
            last = now
            loop.call_soon_threadsafe(report, id, done, total)

    return progress


def _read(message: bytes) -> Calls:
    try:
        return decode_calls(message)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"the message cannot be read: {error}.") from error


class Client:
    """What is remembered of one client, over all of its connections."""

    __slots__ = ("_since", "_size", "answered", "calls", "connections", "seen")

    def __init__(self) -> None:
        self.calls: dict[int, asyncio.Task[Answer]] = {}  # that write, by id, the oldest first
        self._since: dict[int, float] = {}  # when each began
        self._size = 0  # of the answers that are remembered
        self.answered = 0  # it has every answer up to this one
        self.connections = 0
        self.seen = 0.0

    def remember(self, id: int, task: asyncio.Task[Answer]) -> None:
        """Answer from memory if the call comes again."""
        self.calls[id], self._since[id] = task, time.monotonic()
        task.add_done_callback(partial(self._weigh, id))

    def forget(self, answered: int) -> None:
        """It has all answers up to this id; and what is older than a minute nobody asks for."""
        self.answered = max(self.answered, answered)
        late = time.monotonic() - ANSWERS_KEPT_SECONDS
        while self.calls:
            id = next(iter(self.calls))
            task, stale = self.calls[id], self._since[id] < late
            full = self._size > ANSWERS_KEPT_BYTES_MAX
            if id > self.answered and not (task.done() and (stale or full)):
                return
            del self.calls[id], self._since[id]
            if task.done():
                self._size -= _size(task)

    def _weigh(self, id: int, task: asyncio.Task[Answer]) -> None:
        if self.calls.get(id) is task:
            self._size += _size(task)


def _size(task: asyncio.Task[Answer]) -> int:
    return 0 if task.cancelled() else len(task.result().value)


class Connection:
    """One websocket: calls come in, answers and news go out together."""

    def __init__(self, door: StoreDoor, socket: WebSocket, caller: Caller, client: Client) -> None:
        self._door, self._socket, self._caller, self._client = door, socket, caller, client
        self._journal = journal_of(caller.lp)
        self._guarded = None if caller.principal is None else self._journal.store
        self._answers: list[Answer] = []
        self._news: list[News] = [News("hello", msgspec.Raw(encode(door.hello(caller))))]
        self._bell = asyncio.Event()
        self._bell.set()
        self._reads: set[asyncio.Task[Answer]] = set()  # nobody else waits for them
        self._working = 0
        self._room = asyncio.Event()
        self._leaving = False

    async def run(self) -> None:
        self._client.connections += 1
        sending = asyncio.create_task(self._send())
        receiving = asyncio.create_task(self._receive())
        lapsing = asyncio.create_task(self._caller.lapsed.wait())  # its key opens the door no more
        tasks = (sending, receiving, lapsing)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._client.connections -= 1
            self._client.seen = time.monotonic()
            for task in (*tasks, *self._reads):
                task.cancel()
            ended = await asyncio.gather(sending, receiving, return_exceptions=True)
            await self._say_why(ended)

    async def _say_why(self, ended: Sequence[BaseException | None]) -> None:
        code = 1001 if self._leaving else 1000
        for error in ended:
            if isinstance(error, (LimpetError, TimeoutError)):
                code = 1008
            elif isinstance(error, Exception) and not isinstance(error, WebSocketDisconnect):
                SERVER.error("connection failed: error=%s", error_name(error))
                code = 1011
        if self._socket.application_state is WebSocketState.CONNECTED:
            with suppress(Exception):
                async with asyncio.timeout(SLOW_READER_SECONDS):
                    await self._socket.close(code)

    def leave(self) -> None:
        """End soon: the server stops."""
        self._leaving = True
        self._bell.set()

    # --- receiving -----------------------------------------------------------------------------

    async def _receive(self) -> None:
        assembler = Assembler()
        while True:
            frame = await self._socket.receive_bytes()
            message = assembler.add(frame)
            if message is None:
                continue
            sent = _read(message)
            self._client.forget(sent.answered)
            for call in sent.calls:
                if call.method.startswith("$"):
                    await self._noted(call)
                else:
                    self._start(call)
            while self._working >= CALLS_PER_CONNECTION_MAX:
                self._room.clear()
                await self._room.wait()

    def _start(self, call: Call) -> None:
        task = self._door.start(call, self._caller, self._client, self._report)
        if task is None:
            return
        self._working += 1
        if call.id not in self._client.calls:
            self._reads.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Answer]) -> None:
        self._working -= 1
        self._room.set()
        self._reads.discard(task)
        if not task.cancelled():
            self._answers.append(task.result())
            self._bell.set()

    def _report(self, id: int, done: int, total: int) -> None:
        self.tell("progress", (id, done, total))

    async def _noted(self, call: Call) -> None:
        """What a client says of its own wishes. It may be lost, so little is answered."""
        relay = self._door.relay
        try:
            match call.method:
                case "$watch":
                    self._door.pulse.join(self)
                case "$subscribe":
                    await relay.subscribe(self, self._guarded)
                case "$unsubscribe":
                    await relay.leave(self)
                case "$publish":
                    await relay.publish(self, self._guarded, _decode_packed(call.args))
                case "$wanted":
                    app, user, id, wanted = _decode_wanted(call.args)
                    relay.wants(self, Key(app, user, id), wanted=wanted)
        except msgspec.MsgspecError as error:
            raise InvalidInput(f"the note {call.method} cannot be read: {error}.") from error
        if call.id:
            self._answers.append(Answer(call.id, True, NOTHING))
            self._bell.set()

    # --- sending -------------------------------------------------------------------------------

    def tell(self, kind: str, value: object) -> None:
        """Send news, soon."""
        self._news.append(News(kind, msgspec.Raw(encode(value))))
        self._bell.set()

    async def _send(self) -> None:
        """Send what there is, together. A client that reads nothing for a while is cut off."""
        while not (self._leaving and not self._working):
            await self._bell.wait()
            self._bell.clear()
            if not self._answers and not self._news:
                continue
            answers, self._answers = self._answers, []
            news, self._news = self._news, []
            message = encode(Answers(self._journal.now_us(), tuple(answers), tuple(news)))
            for frame in frames(message):
                async with asyncio.timeout(SLOW_READER_SECONDS):
                    await self._socket.send_bytes(frame)


class Pulse:
    """Tells connections that something was recorded, whoever did: one watcher for all of them."""

    def __init__(self, lp: Limpet) -> None:
        self._lp = lp
        self._joined: set[Connection] = set()
        self._watching: asyncio.Task[None] | None = None

    def join(self, connection: Connection) -> None:
        self._joined.add(connection)
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    def leave(self, connection: Connection) -> None:
        self._joined.discard(connection)
        if not self._joined and self._watching is not None:
            self._watching.cancel()
            self._watching = None

    async def _watch(self) -> None:
        with journal_of(self._lp).hub.waiting() as bell:
            while True:
                await bell.wait()
                bell.clear()
                for connection in self._joined:
                    connection.tell("pulse", None)

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
