"""An event loop in a thread of its own, for callers who do not await.

Whoever waits for it can be interrupted, and takes back what it asked for; whoever waits when it is
stopped is answered. It knows nothing of what it runs.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from limpet.errors import InvalidInput, StoreClosed, StoreForked
from limpet.session.limpet import Limpet
from limpet.store.protocol import Seal
from limpet.store.system import join

R = TypeVar("R")
_LOOK_SECONDS: Final = 0.5  # after which a waiting caller looks whether it was interrupted
_FINISH_SECONDS: Final = 5.0  # for calls of other threads, once the store is closed


class Loop:
    """An event loop in a daemon thread, and a way to run things on it from outside."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="limpet-sync", daemon=True
        )
        self._thread.start()
        self._calls = CrossLoopCalls(self._loop)
        # Not only forks that Python has made: a server's workers may be forked by C code.
        self._pid = os.getpid()
        self._lock = threading.Lock()  # over "is it open" and handing over: nobody waits in vain
        self._ending = False
        self._streams: set[asyncio.Task[None]] = set()  # those that are being ended

    def call(self, function: Any, *args: Any, **named: Any) -> Any:
        """Return what the function gives on the loop. A caller who is interrupted takes it back."""
        self.check_caller()
        answer = self._hand_over(_settled(function, args, named))
        try:
            result, error = _awaited(answer)
        except CancelledError as error:
            raise StoreClosed from error
        except BaseException:  # Ctrl-C: what nobody waits for must not go on waiting
            answer.cancel()
            raise
        if error is not None:
            raise error
        return result

    async def await_(self, work: Coroutine[Any, Any, R]) -> R:
        """Return what a coroutine gives on this loop, for those who run on another one.

        A caller who is cancelled takes it back, and hears of it when it is over: a write that was
        handed to the disk is never in doubt.
        """
        if self.is_here():
            return await work
        with self._lock:
            if self._ending:
                work.close()
                raise StoreClosed
            ticket = self._calls.send(work)
        result: R = await self._calls.answer(ticket)
        return result

    def end(self, stream: Stream) -> None:
        """End a dropped stream: the collector may do so in any thread, at any time, in
        the middle of any call of ours. So it takes no lock and waits for nothing."""
        if self.is_open():
            with suppress(RuntimeError):  # it closes now, and with it every stream
                self._loop.call_soon_threadsafe(self._end, stream)

    def _end(self, stream: Stream) -> None:
        task = self._loop.create_task(stream.end())
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)

    def check_caller(self) -> None:
        """Refuse those who would never be answered: a forked child, and what runs on the loop."""
        if self._pid != os.getpid():
            raise StoreForked
        if self.is_here():
            raise InvalidInput(
                "a function that Limpet calls cannot make a blocking call to Limpet. Make the call "
                "before or after."
            )

    def is_here(self) -> bool:
        return threading.current_thread() is self._thread

    def is_open(self) -> bool:
        """True if calls are answered. Once Python ends, the loop's thread does not run any more."""
        return self._pid == os.getpid() and not self._ending and not sys.is_finalizing()

    def stop(self) -> None:
        """End the thread. A second call does not wait."""
        with self._lock:
            if self._ending:
                return
            self._ending = True
        asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        join(self._thread)
        self._loop.close()

    def _hand_over(self, work: Coroutine[Any, Any, R]) -> Future[R]:
        with self._lock:
            if self._ending:
                work.close()
                raise StoreClosed
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _finish(self) -> None:
        """Let other threads' calls end, which they do now that the store is closed."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            _, left = await asyncio.wait(left, timeout=_FINISH_SECONDS)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._loop.shutdown_asyncgens()


def _awaited(answer: Future[R]) -> R:
    """The answer, however long it takes. Python notices a signal that comes just before it begins
    to wait only when it wakes again: so it wakes now and then."""
    while not answer.done():
        with suppress(TimeoutError):
            return answer.result(_LOOK_SECONDS)
    return answer.result()  # or what was raised, a TimeoutError of its own perhaps


async def _settled(
    function: Any, args: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[Any, BaseException | None]:
    """Return what a function gives or raises. asyncio would end the loop's thread with the last
    two."""
    try:
        result = function(*args, **named)
        return (await result if inspect.isawaitable(result) else result), None
    except (KeyboardInterrupt, SystemExit) as error:
        return None, error


class Stream:
    """An async iterator that is stepped from outside, and can be ended while it waits."""

    def __init__(self, events: AsyncGenerator[Any]) -> None:
        self._events = events
        self._step: asyncio.Task[Any] | None = None

    async def next(self) -> Any:
        self._step = asyncio.current_task()
        return await anext(self._events)

    async def end(self) -> None:
        if self._step is not None and not self._step.done():  # its caller was interrupted
            self._step.cancel()
            await asyncio.wait([self._step])
        await self._events.aclose()


# --- crossing ------------------------------------------------------------------------------------
# To wake a loop in another thread is slow: a system call, and both threads compete for the
# interpreter. So what is handed over while a loop has not yet woken goes with the first, in either
# direction: many callers at once cost about one wake-up.


class _Mail:
    """Tickets for one loop: put in by any thread, taken out on that loop."""

    def __init__(self, take: Callable[[_Ticket], None]) -> None:
        self._take = take
        self._waiting: deque[_Ticket] = deque()
        self._waking = False

    def put(self, ticket: _Ticket, loop: asyncio.AbstractEventLoop) -> None:
        self._waiting.append(ticket)
        if not self._waking:  # else the loop has yet to look, and will see this one, too
            self._waking = True
            loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        self._waking = False  # first: what is put in from now on wakes the loop again
        while self._waiting:
            self._take(self._waiting.popleft())


class _Ticket:
    """One piece of work, and who waits for it."""

    __slots__ = ("answer", "caller", "task", "work")

    def __init__(self, work: Coroutine[Any, Any, Any], caller: asyncio.AbstractEventLoop) -> None:
        self.work, self.caller = work, caller
        self.answer: asyncio.Future[Any] = caller.create_future()
        self.task: asyncio.Task[Any] | None = None

    def deliver(self) -> None:
        """Tell the caller, on its own loop."""
        task, answer = self.task, self.answer
        assert task is not None
        if task.cancelled():
            error: BaseException | None = StoreClosed()  # or the caller took it back, and knows
        else:
            error = task.exception()
        if not answer.done():
            if error is None:
                answer.set_result(task.result())
            else:
                answer.set_exception(error)

    def take_back(self) -> None:
        if self.task is not None:
            self.task.cancel()


class CrossLoopCalls:
    """The way to one loop."""

    def __init__(self, home: asyncio.AbstractEventLoop) -> None:
        self._home = home
        self._there = _Mail(self._begin)
        self._back: WeakKeyDictionary[asyncio.AbstractEventLoop, _Mail] = WeakKeyDictionary()

    def send(self, work: Coroutine[Any, Any, Any]) -> _Ticket:
        """Hand work over from the running loop."""
        ticket = _Ticket(work, asyncio.get_running_loop())
        self._there.put(ticket, self._home)
        return ticket

    async def answer(self, ticket: _Ticket) -> Any:
        """Return what the work gives. A caller who is cancelled takes it back, and hears of it when
        the work is over: a write that was handed to the disk is never in doubt."""
        try:
            return await ticket.answer
        except asyncio.CancelledError:
            if ticket.answer.cancelled():  # or the answer was there already
                await self._take_back(ticket)
            raise

    async def _take_back(self, ticket: _Ticket) -> None:
        if ticket.task is not None and ticket.task.done():
            return  # it was over before it could be taken back
        ticket.answer = ticket.caller.create_future()
        self._home.call_soon_threadsafe(ticket.take_back)
        while not ticket.answer.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([ticket.answer])
        ticket.answer.exception()  # nobody else looks at it

    def _begin(self, ticket: _Ticket) -> None:
        ticket.task = self._home.create_task(ticket.work)
        ticket.task.add_done_callback(lambda _: self._reply(ticket))

    def _reply(self, ticket: _Ticket) -> None:
        mail = self._back.get(ticket.caller)
        if mail is None:
            mail = self._back[ticket.caller] = _Mail(_Ticket.deliver)
        try:
            mail.put(ticket, ticket.caller)
        except RuntimeError:  # the caller's loop is closed: nobody waits there
            self._back.pop(ticket.caller, None)


# --- a shared Limpet -----------------------------------------------------------------------------


class SharedLimpet:
    """A store for any thread and any event loop: `await shared.run(work)`.

    `store` is a URL, opened at first use and closed by close(); or an open Limpet, which is used on
    its own loop only and never closed here. The key for the URL of a server is LIMPET_TOKEN, of the
    environment, and its TLS is in LIMPET_TLS_CA, _CERT, _KEY and _PIN.
    """

    def __init__(
        self, store: str | Limpet, *, seal: Seal | None = None, connections: int | None = None
    ) -> None:
        if not isinstance(store, (str, Limpet)):
            raise InvalidInput(
                f"{type(store).__name__} is not a store. Pass a URL, such as sqlite:///support.db, "
                "or an open Limpet."
            )
        self.url = store if isinstance(store, str) else store.url
        self._limpet = store if isinstance(store, Limpet) else None
        self._lock = threading.Lock()  # over the next three
        self._closed = False
        self._home: asyncio.AbstractEventLoop | None = None  # the first that asked
        self._loop: Loop | None = None  # for all others
        self._at_home = _Opening(self.url, seal, connections)
        self._elsewhere = _Opening(self.url, seal, connections)

    async def run(self, work: Callable[[Limpet], Awaitable[R]]) -> R:
        """Run `work(lp)` on the store's loop and return its result. Raises what it raises,
        StoreClosed.

        A cancelled caller is resumed once the work has been undone or has finished.
        """
        if self._is_home(asyncio.get_running_loop()):
            return await work(self._limpet or self._at_home.lp or await self._at_home.opened())
        return await self._start().await_(self._run(work))

    def call(self, work: Callable[[Limpet], Awaitable[R]]) -> R:
        """Do the same without await, for threads without an event loop."""
        if self._limpet is not None:
            raise InvalidInput(
                "an open Limpet belongs to its event loop and cannot be called without await. "
                "Pass its URL instead."
            )
        result: R = self._start().call(self._run, work)
        return result

    async def close(self) -> None:
        """Close the store that a URL opened; an open Limpet stays open. Closing twice is fine."""
        with self._lock:
            self._closed = True
            home, self._home = self._home, None
        if home is not None and self._at_home.lp is not None:
            closing = self._at_home.lp.close()
            if home is asyncio.get_running_loop() or not home.is_running():
                await closing
            else:
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(closing, home))
        await asyncio.to_thread(self._stop)

    async def __aenter__(self) -> SharedLimpet:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- private -------------------------------------------------------------------------------

    def _is_home(self, here: asyncio.AbstractEventLoop) -> bool:
        """True if the store that this loop may touch is its own. Raises InvalidInput if it has to
        be and is not: two loops would share what only one may touch."""
        if self._home is here:
            return True
        with self._lock:
            self._check_open()
            if self._home is None and not self._is_shared_only():
                self._home = here
        if self._limpet is not None and self._home is not here:
            raise InvalidInput(
                "this Limpet is used on another event loop already. Pass its URL instead of the "
                "open Limpet, to use it from several."
            )
        return self._home is here

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("this store", "It was closed with close(): make another object")

    def _is_shared_only(self) -> bool:
        """True if there is one store for all loops. A memory store that is opened twice is two
        stores, and connections to a server cannot outlive the loop that they are on."""
        return self._limpet is None and not self.url.startswith("sqlite:")

    def _start(self) -> Loop:
        loop = self._loop
        if loop is None:
            with self._lock:
                self._check_open()
                if self._loop is None:
                    self._loop = Loop()
                loop = self._loop
        loop.check_caller()
        return loop

    async def _run(self, work: Callable[[Limpet], Awaitable[R]]) -> R:
        return await work(self._elsewhere.lp or await self._elsewhere.opened())

    def _stop(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None and loop.is_open():
            try:
                with suppress(StoreClosed):
                    loop.call(self._elsewhere.close)
            finally:
                loop.stop()


class _Opening:
    """A Limpet that the first who asks opens, for all who come at the same time."""

    def __init__(self, url: str, seal: Seal | None, connections: int | None) -> None:
        self._url, self._seal, self._connections = url, seal, connections
        self.lp: Limpet | None = None
        self._lock: asyncio.Lock | None = None

    async def opened(self) -> Limpet:
        """Open it; if it fails, the next one tries again."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if self.lp is None:
                token, tls = None, None
                if self._url.lower().startswith(("http://", "https://")):
                    from limpet.store.remote.tls import tls_from_environment

                    token, tls = os.environ.get("LIMPET_TOKEN"), tls_from_environment(self._url)
                self.lp = await Limpet(
                    self._url,
                    seal=self._seal,
                    connections=self._connections,
                    token=token,
                    tls=tls,
                )
            return self.lp

    async def close(self) -> None:
        if self.lp is not None:
            await self.lp.close()
