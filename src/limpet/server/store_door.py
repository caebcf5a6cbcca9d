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
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import islice
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from limpet.errors import (
    InvalidEvent,
    InvalidInput,
    InvalidQuery,
    LimpetError,
    SealBroken,
    SessionCorrupt,
    StoreBusy,
    StoreFailed,
    StoreRefused,
)
from limpet.model import Base, Commit, Key
from limpet.model.keys import ARRIVALS
from limpet.server.access import Caller
from limpet.server.limits import (
    ANSWER_KEPT_BYTES,
    ANSWERS_KEPT_BYTES_MAX,
    ANSWERS_KEPT_BYTES_PER_KEY_MAX,
    ANSWERS_KEPT_SECONDS,
    ANSWERS_WAITING_BYTES_MAX,
    CALLS_PER_CONNECTION_MAX,
    CLIENTS_KEPT_MAX,
    DROPPED_MAX,
    EXPANDED_BYTES_MAX,
    SLOW_READER_SECONDS,
)
from limpet.server.loggers import SERVER
from limpet.server.meter import Meter
from limpet.server.partials import Relay
from limpet.server.requests import KeyShare, Owner, read_body
from limpet.session.acting import ActingJournal
from limpet.session.follow import Hub
from limpet.session.journal import Journal
from limpet.session.limpet import Limpet, has_archive_or_keys, journal_of
from limpet.session.performed import perform
from limpet.store.live import Packed
from limpet.store.logs import error_name
from limpet.store.protocol import Live, Performs
from limpet.store.remote.commits import SentCommit, unpack_commit
from limpet.store.remote.forms import pack_error
from limpet.store.remote.messages import (
    CLIENT_HEADER,
    NOTHING,
    PROTOCOL_HEADER,
    UNREADABLE_MESSAGE,
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
from limpet.store.remote.packing import (
    COMPRESSED,
    SEALED,
    Parcel,
    SealingKey,
    bound_to,
    compress,
    expand,
    expanded_bytes,
    seal_answer,
)

_decode_packed: Final = msgspec.msgpack.Decoder(tuple[Packed, ...]).decode
_decode_wanted: Final = msgspec.msgpack.Decoder(tuple[str, str, str, bool]).decode
_VERBS: Final = frozenset(("perform", "consult"))
_GRANTS: Final = frozenset(("claim", "acquire"))
_PROGRESS_SECONDS: Final = 0.05  # the least time between two reports of one call
_LOOKED_AT: Final = 8  # clients of a key, to find one that has gone


class StoreDoor:
    """The store protocol of one server process."""

    def __init__(self, lp: Limpet, meter: Meter, share: KeyShare) -> None:
        self._lp, self._meter, self._share = lp, meter, share
        self.server = secrets.token_hex(8)
        self._since_us = journal_of(lp).now_us()
        self._clients = ClientMemory(AnswerMemory())
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.pulse = Pulse(lp)
        self.relay = Relay(journal_of(lp).store)
        self._memory = ExpandedMemory()
        provenance = journal_of(lp).provenance
        self._sealing: SealingKey | None = (
            None if provenance is None else provenance.seal.sealing_key()
        )

    @property
    def connected(self) -> int:
        """The number of open websockets."""
        return len(self._connections)

    def hello(self, caller: Caller) -> Hello:
        journal = journal_of(caller.lp)
        abilities, live = abilities_of(journal.store), isinstance(journal.store, Live)
        vouched = (b"", b"")
        if self._sealing is not None:
            vouched = (self._sealing.public, self._sealing.signature)
        offered = (*abilities, Performs.__name__)
        if not isinstance(
            journal, ActingJournal
        ):  # --dev: it does itself what it has the means for
            offered = offered if has_archive_or_keys(caller.lp) else abilities
            return Hello(self.server, offered, live, None, (), *vouched)
        guard = journal.guard
        return Hello(self.server, offered, live, guard.principal.id, guard.writes_as, *vouched)

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
        sent = _read(await read_body(request, self._share))
        client = self.client(request, caller)
        client.forget(sent.answered)
        tasks = [self.start(call, caller, client, None) for call in sent.calls if call.id]
        answers = [await asyncio.shield(task) for task in tasks if task is not None]
        news = () if sent.calls else (News("hello", msgspec.Raw(encode(self.hello(caller)))),)
        return encode(Answers(journal_of(caller.lp).now_us(), tuple(answers), news))

    def client(self, connection: WebSocket | Request, caller: Caller) -> Client:
        """Return the memory of a client. Its id is a secret and belongs to its principal."""
        id = connection.headers.get(CLIENT_HEADER) or secrets.token_hex(16)
        role = None if caller.principal is None else caller.principal.role
        return self._clients.client((caller.app, caller.name), role, id[:64])

    def start(
        self, call: Call, caller: Caller, client: Client, report: Report | None
    ) -> asyncio.Task[Answer] | None:
        """Begin a call, or return the one that it repeats; None if that answer was received."""
        task = client.calls.get(call.id)
        if task is not None:
            return task
        if call.id <= client.answered:
            return None
        method = methods().get(call.method)
        forgotten = client.forgot(call.id) and not (method is not None and method.repeatable)
        made = self._counted(call, caller, client.id, report, forgotten=forgotten)
        task = asyncio.get_running_loop().create_task(made)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if method is not None and not method.reads and not forgotten:
            client.remember(call.id, task)
        return task

    async def _counted(
        self, call: Call, caller: Caller, client: str, report: Report | None, *, forgotten: bool
    ) -> Answer:
        began = time.monotonic()
        answer = await self._opened(call, caller, client, report, forgotten=forgotten)
        name = call.method if call.method in methods() else "none"
        self._meter.call(name, ok=answer.ok, seconds=time.monotonic() - began)
        return answer

    async def _opened(
        self, call: Call, caller: Caller, client: str, report: Report | None, *, forgotten: bool
    ) -> Answer:
        """Open the arguments of a call, make it, and pack its answer as the call was packed. One
        that was made before, and whose answer is `forgotten`, is not made twice."""
        parcel, reply_key, bound = Parcel(0, b""), b"", b""
        try:
            parcel = Parcel.of(call.form, call.args)
            if parcel.form == SEALED:
                if self._sealing is None:
                    raise SealBroken("this store", "it has no keys")
                bound = bound_to(self.server, client, call.id, call.method)
                parcel, reply_key = self._sealing.open(parcel, bound)
            elif parcel.form not in (0, COMPRESSED):
                raise InvalidInput(f"a parcel has the form {parcel.form}, which nobody knows.")
            if forgotten:
                reason = "it made this call before and does not remember the answer any more"
                raise StoreFailed("the server", reason, "change")
            if parcel.form == COMPRESSED:
                async with self._memory.taken(expanded_bytes(parcel)):
                    ok, value = await self._made(call, expand(parcel), caller, report)
            else:
                ok, value = await self._made(call, parcel.data, caller, report)
        except LimpetError as error:
            ok, value = False, encode(pack_error(error))
        answer = compress(value)
        if reply_key:
            answer = seal_answer(answer, reply_key, bound, ok=ok)
        return Answer(call.id, ok, answer.raw, answer.form)

    async def _made(
        self, call: Call, args: bytes, caller: Caller, report: Report | None
    ) -> tuple[bool, bytes]:
        """Make a call: True and its result, or False and its error."""
        try:
            method = methods().get(call.method)
            if method is None:
                raise InvalidInput(f"the store protocol has no method {call.method[:100]!r}.")
            hub = journal_of(self._lp).hub
            return True, await _call(method, call, args, caller, hub, report, self._since_us)
        except LimpetError as error:
            return False, encode(pack_error(error))
        except MemoryError:
            busy = StoreBusy("the server", "it has no memory left", "send less at a time")
            return False, encode(pack_error(busy))
        except Exception as error:
            SERVER.exception("call failed: method=%s error=%s", call.method, error_name(error))
            reason = f"its code failed ({error_name(error)}); its log says where"
            failed = StoreRefused("the server", reason, "Report this as a bug")
            return False, encode(pack_error(failed))

    async def close(self) -> None:
        """Finish what is at work, and let go of the connections."""
        for connection in tuple(self._connections):
            connection.leave()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self.pulse.close()
        await self.relay.close()


class ExpandedMemory:
    """The memory that compressed calls at work take once they are expanded: those beyond the
    bound wait."""

    def __init__(self) -> None:
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """Wait until there is room for so many bytes."""
        while self._taken and self._taken + size > EXPANDED_BYTES_MAX and size:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            try:
                await waiting
            finally:
                with suppress(ValueError):
                    self._waiting.remove(waiting)
        self._taken += size
        try:
            yield
        finally:
            self._taken -= size
            for waiting in self._waiting:  # whoever fits is next
                if not waiting.done():
                    waiting.set_result(None)


def _excused(result: Any, since_us: int) -> Any:
    """Leases, or one. Where one ran out before them that was held when this server began, its
    holder may not have reached the store, and may live."""
    if isinstance(result, tuple):
        return tuple([_excused(lease, since_us) for lease in result])
    expired = result.expired
    if expired is None or expired.leased_us >= since_us:
        return result
    excused = msgspec.structs.replace(expired, excused=True)
    return msgspec.structs.replace(result, expired=excused)


Report = Callable[[int, int, int], None]  # call id, done, total


async def _call(
    method: Method,
    call: Call,
    sent: bytes,
    caller: Caller,
    hub: Hub,
    report: Report | None,
    since_us: int,
) -> bytes:
    """The encoded result of a method. `since_us` is when this server began. Raises what it raises,
    InvalidInput if its arguments are none."""
    journal = journal_of(caller.lp)
    try:
        args = method.decode(sent)
        if method.name == "commit":
            given: list[Any] = [_commits(args[0], call, caller)]
        else:
            given = method.unpack(args)
    except UNREADABLE_MESSAGE as error:
        if method.name in ("heads", "waiting"):
            raise InvalidQuery(str(error)) from error
        raise InvalidInput(f"the arguments of {method.name} cannot be read: {error}.") from error
    if method.progress is not None:
        reports = given[method.progress] and report is not None
        given[method.progress] = _reporting(call.id, report) if reports else None
    if method.name == "commit":
        for commit in given[0]:
            if commit.base is not None and commit.drafts[0].origin is None:
                await _check_base(journal, commit.base)
        return method.encode_answer(await journal.commit(given[0]))
    if method.name in _VERBS:
        from limpet.session import served_verbs  # noqa: F401  # what `perform` performs

        reads = method.name == "consult"
        return method.encode_answer(await perform(caller.lp, *given, reads=reads))
    of = getattr(journal.store, method.part) if method.part else journal.store
    result = await getattr(of, method.verb)(**dict(zip(_names(method), given, strict=True)))
    if method.name in _GRANTS:
        result = _excused(result, since_us)
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
            adopts = any([draft.origin for draft in each.drafts])
            # The guard decides on the staged events of a move one by one.
            if each.names_of is not None or (adopts and each.key[0] != ARRIVALS):
                raise InvalidInput("only an admin adopts what another store has recorded.")
    return tuple([unpack_commit(each, again=call.again) for each in sent])


async def _check_base(journal: Journal, base: Base) -> None:
    """Refuse a log that begins on another state than its parent had there."""
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
    """Read a message. Raises InvalidInput, also for too many calls at a time."""
    try:
        sent = decode_calls(message)
    except UNREADABLE_MESSAGE as error:
        raise InvalidInput(f"the message cannot be read: {error}.") from error
    most = CALLS_PER_CONNECTION_MAX
    if len(sent.calls) > most and sum([call.id != 0 for call in sent.calls]) > most:
        raise InvalidInput(f"a message has more than {most:,} calls.")
    return sent


class AnswerMemory:
    """Bounds the answers that are remembered for repeats: of each key, and in all.

    The oldest answers of a key go first; if all together are too many, those of the key that has
    most. Whoever repeats a call whose answer went has it made again if that changes nothing, and is
    told else that its outcome is unknown.
    """

    def __init__(self) -> None:
        self._kept: dict[Owner, dict[tuple[Client, int], int]] = {}  # sizes, the oldest first
        self._bytes: dict[Owner, int] = {}
        self.bytes = 0

    def add(self, client: Client, id: int, size: int) -> None:
        owner = client.owner
        self._kept.setdefault(owner, {})[client, id] = size
        self._bytes[owner] = self._bytes.get(owner, 0) + size
        self.bytes += size
        while self._bytes.get(owner, 0) > ANSWERS_KEPT_BYTES_PER_KEY_MAX:
            self._drop_oldest(owner)
        while self.bytes > ANSWERS_KEPT_BYTES_MAX:
            self._drop_oldest(max(self._bytes, key=self._bytes.__getitem__))

    def remove(self, client: Client, id: int) -> None:
        """Its answer is not needed any more."""
        kept = self._kept.get(client.owner, {})
        size = kept.pop((client, id), 0)
        self.bytes -= size
        if kept:
            self._bytes[client.owner] -= size
        else:
            self._kept.pop(client.owner, None)
            self._bytes.pop(client.owner, None)

    def _drop_oldest(self, owner: Owner) -> None:
        client, id = next(iter(self._kept[owner]))
        client.drop(id)


class ClientMemory:
    """The clients that are remembered. One that is connected always is, others for a minute.

    If there are too many, the key that has most gives way: nobody makes another client's repeated
    call a new one by coming with many ids.
    """

    def __init__(self, answers: AnswerMemory) -> None:
        self._answers = answers
        # By key; of the clients of each the newest last.
        self._kept: dict[Owner, dict[tuple[str | None, str], Client]] = {}
        self._count = 0

    def client(self, owner: Owner, role: str | None, id: str) -> Client:
        """Return the memory of a client, which comes now."""
        now, own = time.monotonic(), self._kept.setdefault(owner, {})
        client = own.pop((role, id), None)
        if client is None:
            client = Client(id, self._answers, owner)
            self._count += 1
        client.seen = now
        own[role, id] = client
        other = next(iter(self._kept))
        self._kept[other] = self._kept.pop(other)  # looked at in turn: it may not come again
        for each in (owner, other):
            self._forget_oldest(each, client, before=now - ANSWERS_KEPT_SECONDS)
        if self._count > CLIENTS_KEPT_MAX:
            most = max(self._kept, key=lambda each: len(self._kept[each]))
            self._forget_oldest(most, client, before=now + 1)
        return client

    def _forget_oldest(self, owner: Owner, coming: Client, before: float) -> None:
        """Forget the client of a key that came first, if it has gone and was not seen since."""
        own = self._kept.get(owner, {})
        for name, client in [*islice(own.items(), _LOOKED_AT)]:
            if client.connections or client is coming:
                own[name] = own.pop(name)  # seen now
            elif client.seen >= before:
                return
            else:
                own.pop(name).clear()
                self._count -= 1
                if not own:
                    del self._kept[owner]
                return


class Client:
    """The memory of one client, across all of its connections."""

    __slots__ = (
        "_forgot_up_to",
        "_memory",
        "_since",
        "answered",
        "calls",
        "connections",
        "dropped",
        "id",
        "owner",
        "seen",
    )

    def __init__(self, id: str, memory: AnswerMemory, owner: Owner) -> None:
        self.id, self._memory, self.owner = id, memory, owner
        self.calls: dict[int, asyncio.Task[Answer]] = {}  # that write, by id, the oldest first
        self._since: dict[int, float] = {}  # when each began, then when it was done
        self.dropped: set[int] = set()  # calls whose answers were forgotten before it had them
        self._forgot_up_to = 0  # of more dropped calls than are counted one by one
        self.answered = 0  # it has every answer up to this one
        self.connections = 0
        self.seen = 0.0

    def remember(self, id: int, task: asyncio.Task[Answer]) -> None:
        """Answer from memory if the call comes again."""
        self.calls[id], self._since[id] = task, time.monotonic()
        task.add_done_callback(partial(self._weigh, id))

    def forget(self, answered: int) -> None:
        """It has all answers up to this id; and what is older than a minute nobody asks for."""
        if answered > self.answered:
            self.answered = answered
            if self.dropped:
                self.dropped = {id for id in self.dropped if id > answered}
        late = time.monotonic() - ANSWERS_KEPT_SECONDS
        while self.calls:
            id = next(iter(self.calls))
            if id > self.answered and not (self.calls[id].done() and self._since[id] < late):
                return
            if id > self.answered:
                self.drop(id)
            else:
                self._remove(id)

    def drop(self, id: int) -> None:
        """Forget an answer that may still be asked for."""
        self.dropped.add(id)
        if len(self.dropped) > DROPPED_MAX:
            self._forgot_up_to = max(self.dropped)
            self.dropped.clear()
        self._remove(id)

    def forgot(self, id: int) -> bool:
        """True if this call may have been made before, and its answer was forgotten."""
        return id in self.dropped or id <= self._forgot_up_to

    def clear(self) -> None:
        """Forget everything: the client is gone."""
        for id in tuple(self.calls):
            self._remove(id)

    def _remove(self, id: int) -> None:
        del self.calls[id], self._since[id]
        self._memory.remove(self, id)

    def _weigh(self, id: int, task: asyncio.Task[Answer]) -> None:
        if self.calls.get(id) is task and not task.cancelled():
            self._since[id] = time.monotonic()  # it may have taken longer than a minute
            self._memory.add(self, id, len(task.result().value) + ANSWER_KEPT_BYTES)


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
        self._waiting_bytes = 0  # of answers that the client has not taken
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
            while (
                self._working >= CALLS_PER_CONNECTION_MAX
                or self._waiting_bytes > ANSWERS_WAITING_BYTES_MAX
            ):
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
            answer = task.result()
            self._answers.append(answer)
            self._waiting_bytes += len(answer.value)
            self._bell.set()

    def _report(self, id: int, done: int, total: int) -> None:
        self.tell("progress", (id, done, total))

    async def _noted(self, call: Call) -> None:
        """Handle a client's hint, such as which sessions it follows. Hints may be lost."""
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
        except UNREADABLE_MESSAGE as error:
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
            self._waiting_bytes -= sum([len(answer.value) for answer in answers])
            self._room.set()


class Pulse:
    """Notifies connections of new records by any writer: one watcher serves all of them."""

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
