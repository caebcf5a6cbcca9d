"""Work that callers on other event loops hand to one loop, and the answers on their way back.

To wake a loop in another thread is slow: a system call, and both threads compete for the
interpreter. So what is handed over while a loop has not yet woken goes with the first, in either
direction: many callers at once cost about one wake-up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from limpet.errors import StoreClosed

R = TypeVar("R")


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


class Crossing:
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
        """What the work gives. A caller who is cancelled takes it back, and hears of it when the
        work is over: a write that was handed to the disk is never in doubt."""
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
