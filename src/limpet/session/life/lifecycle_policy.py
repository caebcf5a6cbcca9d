"""Policies: what an app adds to the life of its sessions. They belong to this process.

Functions take (session) or (session, transition), sync or async. A guard returns True or a reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet.errors import InvalidInput
from limpet.model import DefaultActor, Event, described, unfit
from limpet.model.facts.phases import EVENTS, PHASES, TABLE, Phase, PhaseEvent
from limpet.model.facts.timeouts import Timeouts
from limpet.model.limits import NAME_CHARS_MAX

LIFECYCLE_ACTOR: Final = DefaultActor("system:lifecycle")
Function: TypeAlias = Callable[..., Any]
Cleanup: TypeAlias = Literal["flush", "release", "notify", "analytics", "promote", "scrub"]
CLEANUP: Final[tuple[Cleanup, ...]] = (
    "flush",
    "release",
    "notify",
    "analytics",
    "promote",
    "scrub",
)
CLEANUP_SECONDS: Final = 10.0
SUSPENSIONS_PER_DAY: Final = 24.0  # more often than this is worth a look


class Transition(msgspec.Struct, frozen=True):
    """A transition of a session: the phase it leads to, and its actions.

    `event` is its record, with actor, time and reason; None while it is only proposed.
    """

    phase: Phase
    side_effects: tuple[str, ...]
    event: Event | None
    before: Phase
    name: PhaseEvent
    reason: str | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.before} to {self.phase} ({', '.join(self.side_effects)})"


class Lifecycle(msgspec.Struct, frozen=True, kw_only=True):
    """Guards, hooks and defaults that an app adds. Everything is optional."""

    guards: Mapping[tuple[Phase, str], Function] = {}
    before: Mapping[tuple[Phase, Phase], Function] = {}
    after: Mapping[tuple[Phase, Phase], Function] = {}
    exit_criteria: Sequence[Function] = ()
    compensate: Sequence[Function] = ()
    compensations: Mapping[str, Function] = {}  # of effects, by the name they registered
    cleanup: Mapping[Cleanup, Function] = {}
    cleanup_seconds: float = CLEANUP_SECONDS
    resume_on_input: bool = True
    timeouts: Timeouts | None = None  # of sessions that are created without
    tools: Any = None  # a ToolRegistry: bound by activating, and again by resuming
    suspensions_per_day: float = SUSPENSIONS_PER_DAY

    def checked(self) -> Lifecycle:
        """Return the policy with copies of its parts. Raises InvalidInput if one is not valid."""
        steps = {(of, rule.to) for (of, _), rule in TABLE.items()} | {("archived", "terminated")}
        names = f"a phase ({', '.join(PHASES)}) and an event ({', '.join(EVENTS)})"
        _check_keys("guards", self.guards, set(TABLE) | {("active", "renew")}, names)
        _check_keys("before", self.before, steps, "two phases, as in ('active', 'suspended')")
        _check_keys("after", self.after, steps, "two phases, as in ('active', 'suspended')")
        _check_keys("cleanup", self.cleanup, set(CLEANUP), f"one of {', '.join(CLEANUP)}")
        _check_names("compensations", self.compensations)
        return msgspec.structs.replace(
            self,
            guards=dict(self.guards),
            before=dict(self.before),
            after=dict(self.after),
            cleanup=dict(self.cleanup),
            exit_criteria=_functions("exit_criteria", self.exit_criteria),
            compensate=_functions("compensate", self.compensate),
            compensations=dict(self.compensations),
        )


NO_LIFECYCLE: Final = Lifecycle()


def _functions(name: str, given: Iterable[Function]) -> tuple[Function, ...]:
    functions = tuple(given) if isinstance(given, Iterable) else ()
    if not isinstance(given, Iterable) or not all(map(callable, functions)):
        raise InvalidInput(f"{name} takes a list of functions, not {described(given)}.")
    return functions


def _check_names(name: str, given: Any) -> None:
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{name} takes a dict of functions, not {described(given)}.")
    for key, function in given.items():
        if reason := unfit(key, NAME_CHARS_MAX):
            raise InvalidInput(f"the name of a compensation {reason}.")
        if not callable(function):
            raise InvalidInput(f"{name} takes functions: {key!r} is {described(function)}.")


async def call_function(function: Function, *args: Any) -> Any:
    """Call it with as many of these arguments as it takes, and await what it returns."""
    result = function(*args[: _takes(function, len(args))])
    return await result if isinstance(result, Awaitable) else result


async def refusal(function: Function, *args: Any) -> str | None:
    """Return why a guard refuses; None if it does not."""
    result = await call_function(function, *args)
    if result is True:
        return None
    if isinstance(result, str) and result:
        return result
    return f"{function_name(function)} returned {result!r}"


def function_name(function: Function) -> str:
    """Return the name of a function for a message or a record."""
    return str(getattr(function, "__name__", type(function).__name__))


def _takes(function: Function, given: int) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin that does not say
        return 1
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return given
    placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return min(given, len(placed))


def _check_keys(name: str, given: Any, known: set[Any], words: str) -> None:
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{name} takes a dict of functions, not {described(given)}.")
    for key, function in given.items():
        if key not in known:
            raise InvalidInput(f"{name} has no place {key!r}. Name {words} of the table.")
        if not callable(function):
            raise InvalidInput(f"{name}[{key!r}] is {described(function)}. Pass a function.")
