"""Rate limits and habits of requests, kept in a store: their number, and how they usually look.

Both are counted in marks, so that all processes share them and a restart keeps them. A mark costs a
durable write, so a process takes several requests at a time from the shared count of a busy window,
and writes what it has seen of a session's habits in growing steps. What it has taken and not used
is lost to the others: they may be limited a little early, never late.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from typing import Final, Generic, TypeVar

from limpet.errors import RateLimited
from limpet.store.marks import Marks

RATE: Final = "token.rate"
HISTORY: Final = "token.history"
_KNOWN_MAX: Final = 10_000  # windows, and sessions, that a process remembers
_SHARE: Final = 16  # at most this part of a limit is taken at a time
_HISTORY_US: Final = 7 * 86_400 * 1_000_000  # after that a session's habits are learned again
_STEP: Final = 32  # requests between two writes of a count, and half of it if that is more
_ADDRESSES_MAX: Final = 64  # of a session; any other stays a stranger
_SETTLED: Final = 10  # requests after which a new address is a signal
_VERSED: Final = 20  # requests after which a new operation is one
_QUIET: Final = 20  # requests in a window that are never too many
_SURGE: Final = 8  # times as many as in the session's other windows are too many
_WINDOWS_MIN: Final = 3  # of history, to judge a rate by
V = TypeVar("V")


class Recent(Generic[V]):
    """The values that were used last, by name; the others are forgotten."""

    def __init__(self, most: int = _KNOWN_MAX) -> None:
        self._values: OrderedDict[str, V] = OrderedDict()
        self._most = most

    def get(self, name: str) -> V | None:
        value = self._values.get(name)
        if value is not None:
            self._values.move_to_end(name)
        return value

    def put(self, name: str, value: V) -> None:
        self._values[name] = value
        self._values.move_to_end(name)
        if len(self._values) > self._most:
            self._values.popitem(last=False)


class _RateWindow:
    """One window of one session and operation, as this process counts it."""

    __slots__ = ("count", "full", "left", "until_us", "used")

    def __init__(self) -> None:
        self.until_us = 0  # 0: not known yet
        self.left = 0  # taken from the shared count, and not used
        self.used = 0  # by this process
        self.count = 0  # of all processes, when it was last asked for
        self.full = False


class RateLimits:
    """Requests by session and operation. A window begins with its first request."""

    def __init__(self, marks: Marks) -> None:
        self._marks, self._windows = marks, Recent[_RateWindow]()

    async def take(self, uid: str, operation: str, limit: tuple[int, int], now_us: int) -> int:
        """Count one request; return the number in its window, of all processes.

        Raises RateLimited, also if several processes have more of the limit in hand than is left.
        """
        most, per_us = limit
        name = digest(uid, operation)
        window = self._windows.get(name)
        if window is None or (window.until_us and window.until_us <= now_us):
            window = _RateWindow()
            self._windows.put(name, window)
        if not window.left and not window.full:
            await self._refill(window, name, limit, now_us)
        if window.left <= 0:
            seconds = max(0, window.until_us - now_us) / 1e6
            raise RateLimited(operation, most, min(seconds, per_us / 1e6))
        window.left -= 1
        window.used += 1
        return max(window.used, window.count - window.left)

    async def _refill(
        self, window: _RateWindow, name: str, limit: tuple[int, int], now_us: int
    ) -> None:
        """Take some of the shared count: as much as was used before, a sixteenth of it at most."""
        most, per_us = limit
        wanted = max(1, min(most // _SHARE, window.used))
        count = await self._marks.add(RATE, name, now_us + per_us, wanted)
        if count == wanted:  # the window begins here
            window.until_us = now_us + per_us
        elif not window.until_us:
            mark = await self._marks.get(RATE, name)
            window.until_us = now_us + per_us if mark is None else mark.until_us
        window.count = min(count, most)
        window.left += max(0, wanted - max(0, count - most))
        window.full = count >= most


class _SeenCount:
    """One count of a session's history: what is stored, and what this process adds to it."""

    __slots__ = ("pending", "since_us", "stored")

    def __init__(self, stored: int, since_us: int) -> None:
        self.stored, self.since_us, self.pending = stored, since_us, 0

    @property
    def total(self) -> int:
        return self.stored + self.pending


class RequestHistory:
    """The usual requests of a session: from where, for what, and how many."""

    def __init__(self, marks: Marks) -> None:
        self._marks, self._tallies = marks, Recent[_SeenCount](4 * _KNOWN_MAX)

    async def signals(
        self,
        uid: str,
        operation: str,
        address: str | None,
        in_window: int,
        per_us: int,
        now_us: int,
    ) -> tuple[str, ...]:
        """Return the ways in which a request is unlike the session's others. Changes nothing."""
        every, same = await self._of(uid, "", now_us), await self._of(uid, f"o:{operation}", now_us)
        signals = []
        windows = (now_us - same.since_us) / per_us
        if windows >= _WINDOWS_MIN:
            usual = max(0, same.total - in_window) / windows
            if in_window > max(_QUIET, _SURGE * usual):
                signals.append("rate")
        if address is not None and every.total >= _SETTLED:
            others = await self._of(uid, "a", now_us)
            if others.total and not (await self._of(uid, f"a:{address}", now_us)).total:
                signals.append("address")
        if not same.total and every.total >= _VERSED:
            signals.append("operations")
        return tuple(signals)

    async def note(self, uid: str, operation: str, address: str | None, now_us: int) -> None:
        """Remember a request that was let in."""
        await self._add(uid, "", now_us)
        await self._add(uid, f"o:{operation}", now_us)
        if address is None:
            return
        known = await self._of(uid, f"a:{address}", now_us)
        others = await self._of(uid, "a", now_us)
        if known.total or others.total < _ADDRESSES_MAX:
            if not known.total:
                await self._add(uid, "a", now_us)
            await self._add(uid, f"a:{address}", now_us)

    async def _of(self, uid: str, what: str, now_us: int) -> _SeenCount:
        name = digest(uid, what)
        tally = self._tallies.get(name)
        if tally is None or tally.since_us + _HISTORY_US <= now_us:
            mark = await self._marks.get(HISTORY, name)
            since_us = now_us if mark is None else mark.until_us - _HISTORY_US
            tally = _SeenCount(0 if mark is None else mark.value, since_us)
            self._tallies.put(name, tally)
        return tally

    async def _add(self, uid: str, what: str, now_us: int) -> None:
        """Count one more; written if it is the first, or if much is not written yet."""
        tally = await self._of(uid, what, now_us)
        tally.pending += 1
        if tally.stored and tally.pending < max(_STEP, tally.stored // 2):
            return
        adding, tally.pending = tally.pending, 0
        until_us = tally.since_us + _HISTORY_US
        tally.stored = await self._marks.add(HISTORY, digest(uid, what), until_us, adding)


def digest(*parts: str) -> str:
    """A name of fixed length for a mark, the same for the same parts only."""
    framed = b"".join([b"%d:%s" % (len(raw := part.encode()), raw) for part in parts])
    return sha256(framed).hexdigest()
