"""Steps and effects: the events by which a turn remembers what it has done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from limpet.model.canonical import canonical
from limpet.model.events import Fact
from limpet.model.limits import EFFECT_ARGS_BYTES_MAX
from limpet.model.values import EMPTY

STEP: Final = "step.recorded"
INTENDED: Final = "effect.intended"
SUCCEEDED: Final = "effect.succeeded"
FAILED: Final = "effect.failed"
UNKNOWN: Final = "effect.unknown"
OUTCOMES: Final = {SUCCEEDED: "succeeded", FAILED: "failed", UNKNOWN: "unknown"}


def step_recorded(
    id: str, name: str, occurrence: int, args_hash: str, result: Any, *, call: str | None = None
) -> Fact:
    """A step of a turn has this result. `call` is the id of the model's call that it was for."""
    data = {"name": name, "occurrence": occurrence, "args_hash": args_hash, "result": result}
    return Fact(type=STEP, data=data if call is None else {**data, "call": call}, id=id)


def node_recorded(id: str, name: str, occurrence: int, result: Any, *, graph: str) -> Fact:
    """Nodes of a graph have run in a turn: a step whose result is the change of its checkpoint."""
    data = {"name": name, "occurrence": occurrence, "args_hash": "", "result": result}
    return Fact(type=STEP, data={**data, "graph": graph}, id=id)


def effect_intended(
    id: str,
    name: str,
    occurrence: int,
    args_hash: str,
    key: str,
    tries: int,
    span_id: str,
    compensate: Mapping[str, Any] | None = None,
    args: Mapping[str, Any] = EMPTY,
    *,
    call: str | None = None,
) -> Fact:
    """An action on the world is about to be performed; `compensate` says what would undo it. Its
    arguments are recorded, unless they are large: who is asked about it later sees them."""
    more: dict[str, Any] = {"tries": tries, "span_id": span_id}
    if args and len(canonical(args)) <= EFFECT_ARGS_BYTES_MAX:
        more["args"] = args
    if compensate is not None:
        more["compensate"] = compensate
    return _effect(INTENDED, id, name, occurrence, args_hash, key, call=call, **more)


def effect_succeeded(
    id: str,
    name: str,
    occurrence: int,
    args_hash: str,
    key: str,
    result: Any,
    *,
    call: str | None = None,
) -> Fact:
    """It was performed, with this result."""
    return _effect(SUCCEEDED, id, name, occurrence, args_hash, key, call=call, result=result)


def effect_failed(
    id: str,
    name: str,
    occurrence: int,
    args_hash: str,
    key: str,
    error: str,
    *,
    call: str | None = None,
) -> Fact:
    """It was not performed."""
    return _effect(FAILED, id, name, occurrence, args_hash, key, call=call, error=error)


def effect_unknown(
    id: str,
    name: str,
    occurrence: int,
    args_hash: str,
    key: str,
    error: str,
    *,
    call: str | None = None,
) -> Fact:
    """Nobody knows whether it was performed."""
    return _effect(UNKNOWN, id, name, occurrence, args_hash, key, call=call, error=error)


def _effect(
    type: str,
    id: str,
    name: str,
    occurrence: int,
    args_hash: str,
    key: str,
    *,
    call: str | None,
    **more: Any,
) -> Fact:
    data = {"name": name, "occurrence": occurrence, "args_hash": args_hash, "key": key}
    if call is not None:
        more["call"] = call
    return Fact(type=type, data={**data, **more}, id=id)
