"""One migration step: a pure function that runs on a copy, and whose result is checked.

Both kinds of registry run their steps here: `migrations` (versions in SemVer) and `labels`
(versions that are only names). Nothing here chooses a path.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import PurePath
from traceback import extract_tb
from typing import Any, Final, TypeAlias

import msgspec

from limpet.errors import (
    InvalidInput,
    InvalidSchema,
    InvalidValue,
    Lifecycle,
    MigrationFailed,
    Step,
)
from limpet.model.limits import STATE_DEPTH_MAX
from limpet.model.values import round_trip, settle, unfitting

Fields: TypeAlias = dict[str, Any]
Function: TypeAlias = Callable[[Fields], Fields]

_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


def check_lifecycle(lifecycle: Lifecycle) -> None:
    """Raise InvalidInput unless state has this lifecycle."""
    if lifecycle not in ("session", "checkpoint"):
        raise InvalidInput(
            f"{lifecycle!r} is not a lifecycle with state. Pass 'session' or 'checkpoint'."
        )


def check_function(fn: object, step: Step) -> None:
    """Raise InvalidInput unless `fn` is a plain function."""
    if not callable(fn) or inspect.iscoroutinefunction(fn):
        raise InvalidInput(
            f"the migration {step[0]} → {step[1]} is not a plain function. Pass one that takes a "
            "dict and returns a dict, without async."
        )


def name_of(fn: Function) -> str:
    """The name of a migration's function."""
    return str(getattr(fn, "__name__", type(fn).__name__))


def plain_copy(fields: Any, where: str) -> Fields:
    """A copy in plain values that shares nothing with `fields`. Raises InvalidValue."""
    if not isinstance(fields, dict):
        raise InvalidValue(where, unfitting(fields, "not a dict"))
    if (trip := round_trip(fields, _decode)) is not None:
        return trip[1]
    settled: Fields = settle(fields, where, depth_max=STATE_DEPTH_MAX)
    return settled


def applied(
    fn: Function, step: Step, fields: Fields, failed: Callable[[Step, str], MigrationFailed]
) -> Fields:
    """The fields after one step. Raises what `failed` makes, with the cause."""
    try:
        return plain_copy(fn(fields), "its result")
    except InvalidValue as error:
        reason = f"made a state that cannot be stored: {why(error)}"
        raise failed(step, reason) from error
    except MemoryError:
        raise  # not the migration's fault: it may be retried
    except Exception as error:
        raise failed(step, _raised(fn, error)) from error


def why(error: InvalidSchema | InvalidValue) -> str:
    """The reason of an error, with the place where it has one."""
    return f"{error.where} {error.reason}" if isinstance(error, InvalidValue) else error.reason


def _raised(fn: Function, error: Exception) -> str:
    """The type of the exception that a migration raised, with function, file and line.

    The exception's own text is left out because it may quote the state; it is in the cause.
    """
    where = ".".join([str(getattr(fn, "__module__", None) or "?"), name_of(fn)])
    frames = extract_tb(error.__traceback__)[1:]  # the first is our call of it
    if frames:
        home = getattr(getattr(fn, "__code__", None), "co_filename", frames[-1].filename)
        frame = next((frame for frame in reversed(frames) if frame.filename == home), frames[-1])
        where += f", {PurePath(frame.filename).name} line {frame.lineno}"
    return f"raised {type(error).__name__} in {where}"
