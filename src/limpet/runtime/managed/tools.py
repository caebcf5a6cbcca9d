"""The door to the managed tools: their descriptions for a model, and one call that runs any.

A call is recorded in the turn and returned when the turn runs again, like a step, and has a span in
the trace of its wake. What the tool refuses is a result too, so that the model reads why: nothing
that a model sends ends the turn.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import structs

from limpet.errors import (
    BudgetReached,
    InvalidInput,
    LimpetError,
    SessionFenced,
    StoreError,
    TurnError,
)
from limpet.model import EVENT_BYTES_MAX, Draft, described, settle
from limpet.model.facts.running import readable, span_completed, span_started
from limpet.runtime.managed import knowledge, sessions, setups
from limpet.runtime.managed.asking import Caller, Tool
from limpet.runtime.records import identity
from limpet.runtime.turn import Turn
from limpet.session.logs import SESSION
from limpet.session.runs.outcomes import MANAGED

if TYPE_CHECKING:
    from limpet.session.limpet import Limpet

_ALL: Final = (*sessions.TOOLS, *setups.TOOLS, *knowledge.TOOLS)
BY_NAME: Final[Mapping[str, type[Tool]]] = {tool.name: tool for tool in _ALL}
_NONE: Final[Mapping[str, Any]] = {}
_RESULT_BYTES_MAX: Final = EVENT_BYTES_MAX // 2  # encoded: it is recorded, and goes to a model


class ManagedTools:
    """The tools of one turn: hand `specs` to a model, and `call` what it asks for.

    `lp` is needed for learnings and for running children, whose `harnesses` go by app. `only`
    names the tools that there are; all of them, if nothing is said.
    """

    def __init__(
        self,
        turn: Turn,
        lp: Limpet | None = None,
        *,
        harnesses: Mapping[str, Any] = _NONE,
        only: Iterable[str] | None = None,
    ) -> None:
        names = list(BY_NAME if only is None else only)
        if unknown := [name for name in names if name not in BY_NAME]:
            raise InvalidInput(f"there is no managed tool {unknown[0]!r}. See ManagedTools.names.")
        self._turn, self._lp, self._harnesses = turn, lp, harnesses
        self.names = tuple(names)

    @property
    def specs(self) -> list[dict[str, Any]]:
        """What a model is told of each tool: name, description, and a JSON schema of its input."""
        return [_spec(BY_NAME[name]) for name in self.names]

    async def call(self, name: str, input: Mapping[str, Any] = _NONE) -> Any:
        """Run a tool as a recorded call of the turn, and return plain JSON.

        What the tool refuses is {"error": {"code", "message"}}. A tool that must be asked for
        pauses the turn. Raises ToolDenied, and whatever ends the turn.
        """
        if name not in self.names:
            return _refused(InvalidInput(f"there is no tool {described(name)} here."))
        if not isinstance(input, Mapping):
            found = type(input).__name__
            wanted = f"the input of {name} is an object with its arguments, not {found}."
            return _refused(InvalidInput(wanted))
        turn = self._turn
        try:  # it is hashed, may be shown to a person, and is recorded: it has to be plain JSON
            given = settle(dict(input), f"the input of {name}")
            asked = await turn.permitted(name, given)
        except TurnError:
            raise
        except InvalidInput as error:
            return _refused(error)
        number = turn.records.occurrence("managed", name)
        caller = Caller(turn, self._lp, self._harnesses, identity(turn.id, "managed", name, number))
        if BY_NAME[name].records:
            return await _traced(name, asked, caller)
        return await turn.step(MANAGED + name, lambda given: _traced(name, given, caller), asked)


async def _traced(name: str, input: Mapping[str, Any], caller: Caller) -> Any:
    """Run a tool. Its span is recorded with whatever is recorded next: with its result, if that is
    a step; no call takes another commit for it."""
    turn, began = caller.turn, time.perf_counter_ns()
    result, refusal = await _run(name, input, caller)
    span = identity(caller.id, "span")
    if f"{span}/completed" not in turn.records.events:  # an earlier run has made this very call
        took_us = (time.perf_counter_ns() - began) // 1_000
        how: Any = {"parent": turn.wake_id, "error": refusal, "took_us": took_us}
        ended: Any = "success" if refusal is None else "error"
        drafts: tuple[Draft, ...] = (
            structs.replace(
                span_started(span, "tool", name, parent=turn.wake_id), id=f"{span}/started"
            ),
            structs.replace(
                span_completed(span, "tool", name, ended, **how), id=f"{span}/completed"
            ),
        )
        for draft in drafts:
            turn.log.queue(draft)
    return result


async def _run(name: str, input: Mapping[str, Any], caller: Caller) -> tuple[Any, str | None]:
    """What a tool returns, and why it refused, if it did."""
    try:
        tool = msgspec.convert(dict(input), BY_NAME[name])
        result = msgspec.to_builtins(await tool.run(caller))
        if (size := len(msgspec.json.encode(result))) > _RESULT_BYTES_MAX:
            raise InvalidInput(
                f"the result has {size:,} bytes, more than {_RESULT_BYTES_MAX:,}. Ask for less."
            )
    except msgspec.ValidationError as error:
        refusal: LimpetError = InvalidInput(f"the input does not fit {name}: {error}.")
    except BudgetReached as error:  # a budget that the model asks for, not one that the turn needs
        refusal = error
    except (TurnError, StoreError, SessionFenced):  # not the model's to know
        raise
    except LimpetError as error:
        refusal = error
    except Exception as error:  # our mistake: the model may go on without this tool
        what = (caller.session.key, name, type(error).__name__)
        SESSION.error("managed tool broke: session=%s tool=%s error=%s", *what)
        refusal = InvalidInput(f"{name} cannot be run with this input ({type(error).__name__}).")
    else:
        return result, None
    refused = _refused(refusal)
    return refused, refused["error"]["message"]


def _refused(error: LimpetError) -> dict[str, Any]:
    return {"error": {"code": error.code, "message": readable(str(error))}}


def _spec(tool: type[Tool]) -> dict[str, Any]:
    schema = msgspec.json.schema(tool)
    body = dict(schema["$defs"][tool.__name__])
    for name in ("title", "description"):
        body.pop(name, None)
    words = " ".join((tool.__doc__ or "").split())
    return {"name": tool.name, "description": words, "input_schema": body}
