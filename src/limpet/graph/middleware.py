"""Middleware: an async callable `(state, next)` around a node that returns its update.

Middleware of a graph stands outside that of a node, and does not reach into subgraphs. Cancellation
and suspension pass through: they are not `Exception`s.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, Literal

import msgspec

from limpet.errors import EffectFailed, GraphInvalid, LimpetError
from limpet.graph.context import current_attempt, current_node
from limpet.graph.engine.loop import FATAL, Next
from limpet.graph.observers import raised

_LOG: Final = logging.getLogger("limpet.graph")


def full_jitter(base: float = 1.0, cap: float = 30.0) -> Callable[[int], float]:
    """Seconds to wait before the next attempt: random up to a bound that doubles each time."""

    def seconds(attempt: int) -> float:
        return random.uniform(0.0, min(cap, base * 2.0**attempt))  # nosec B311  # spreads retries

    return seconds


def is_transient(error: Exception, state: Any) -> bool:
    """True if another attempt may help: unless an error of Limpet says that it does not."""
    while isinstance(error, LimpetError):
        if error.retryable or isinstance(error, EffectFailed):  # which is recorded as not done
            return True
        if not isinstance(error.__cause__, Exception):
            return False
        error = error.__cause__
    return True


class RetryMiddleware:
    """Runs a node again when it fails, `max_attempts` times in all.

    `classifier(error, state)` says whether another attempt may help; by default every error does,
    but for those of Limpet that are not retryable. `backoff(attempt)` says how many seconds to
    wait before it, `on_retry(error, attempt)` is called before the wait.
    """

    def __init__(
        self,
        *,
        max_attempts: int = 3,
        classifier: Callable[[Exception, Any], bool] | None = None,
        backoff: Callable[[int], float] | None = None,
        on_retry: Callable[[Exception, int], Awaitable[None] | None] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if not isinstance(max_attempts, int) or max_attempts < 1:
            raise GraphInvalid("max_attempts is a number from 1. Pass 1 to run a node once.")
        self.max_attempts = max_attempts
        self.classifier = classifier or is_transient
        self.backoff = backoff or full_jitter()
        self._on_retry, self._sleep = on_retry, sleep

    async def __call__(self, state: Any, next: Next, /) -> Mapping[str, Any]:
        """The update of the first attempt that succeeds."""
        attempt = 0
        while True:
            try:
                return await next(state)
            except FATAL:
                raise
            except Exception as error:
                if attempt + 1 >= self.max_attempts or not self.classifier(error, state):
                    raise
                await _call_hook(self._on_retry, error, attempt)
            await self._sleep(self.backoff(attempt))
            attempt += 1


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """The duration and outcome of one call of a node."""

    node_name: str
    duration_ms: float
    outcome: Literal["success", "exception"]
    attempt_index: int = 0
    exception_type: str | None = None


class TimingMiddleware:
    """Measures a node and hands `on_complete` a Timing, whether the node succeeded or failed."""

    def __init__(
        self,
        *,
        on_complete: Callable[[Timing], Awaitable[None] | None],
        node_name: str | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._on_complete, self._node_name, self._clock = on_complete, node_name, clock

    async def __call__(self, state: Any, next: Next, /) -> Mapping[str, Any]:
        """The update of the node, measured."""
        begin = self._clock()
        try:
            update = await next(state)
        except Exception as error:
            await self._report_outcome(begin, "exception", type(error).__name__)
            raise
        await self._report_outcome(begin, "success", None)
        return update

    async def _report_outcome(
        self, begin: float, outcome: Literal["success", "exception"], kind: str | None
    ) -> None:
        timing = Timing(
            node_name=self._node_name or current_node() or "",
            duration_ms=(self._clock() - begin) * 1000.0,
            outcome=outcome,
            attempt_index=current_attempt(),
            exception_type=kind,
        )
        await _call_hook(self._on_complete, timing)


class FailureIsolationMiddleware:
    """Gives a degraded update when a node fails, and lets the run go on.

    `degraded_update` is the update, or a function of the state that returns it. Around an instance
    or a branch it has fields of the inner state: an instance is null where it lacks a field that
    is collected, and a branch leaves such a field of the outer state as it is. `catch` limits it
    to these error categories, of the error or of one of its causes; `predicate(error)` to errors
    for which it is true. Put it outside of a RetryMiddleware.
    """

    def __init__(
        self,
        *,
        degraded_update: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]],
        event_name: str = "failure_isolated",
        catch: Collection[str] | None = None,
        predicate: Callable[[Exception], bool] | None = None,
        on_caught: Callable[[Exception], Awaitable[None] | None] | None = None,
    ) -> None:
        if isinstance(catch, str):
            raise GraphInvalid("catch takes several categories. Pass a list of them.")
        self.degraded_update, self._event_name = degraded_update, event_name
        self._catch = None if catch is None else frozenset(catch)
        self._predicate, self._on_caught = predicate, on_caught

    async def __call__(self, state: Any, next: Next, /) -> Mapping[str, Any]:
        """The update of the node, or the degraded one."""
        try:
            return await next(state)
        except FATAL:
            raise
        except Exception as error:
            if self._catch is not None and not self._catch & _categories(error):
                raise
            if self._predicate is not None and not self._predicate(error):
                raise
            _LOG.warning(
                "failure isolated: event=%s node=%s error=%s",
                self._event_name,
                current_node(),
                type(error).__name__,
            )
            await _call_hook(self._on_caught, error)
            degraded = self.degraded_update
            return degraded(state) if callable(degraded) else degraded


def _categories(error: BaseException | None) -> set[str]:
    categories = set()
    while error is not None:
        if isinstance(category := getattr(error, "category", None), str):
            categories.add(category)
        error = error.__cause__
    return categories


async def _call_hook(hook: Callable[..., Any] | None, *args: Any) -> None:
    """Call a hook of the user's. If it fails, that is logged: the node's outcome stands."""
    if hook is None:
        return
    try:
        answer = hook(*args)
        if inspect.isawaitable(answer):
            await answer
    except Exception as error:
        _LOG.error("middleware hook failed: node=%s error=%s", current_node(), raised(error))
