"""The door to the managed tools: their descriptions for a model, and one call that runs any.

A call is recorded in the turn and returned when the turn runs again, like a step. What the tool
refuses is a result too, so that the model reads why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from limpet.errors import InvalidInput, LimpetError, SessionFenced, StoreError, TurnError
from limpet.runtime.managed import knowledge, sessions, setups
from limpet.runtime.managed.asking import Caller, Tool
from limpet.runtime.records import identity
from limpet.runtime.turn import Turn
from limpet.session.runs.outcomes import MANAGED

if TYPE_CHECKING:
    from limpet.session.limpet import Limpet

_ALL: Final = (*sessions.TOOLS, *setups.TOOLS, *knowledge.TOOLS)
BY_NAME: Final[Mapping[str, type[Tool]]] = {tool.name: tool for tool in _ALL}
_NONE: Final[Mapping[str, Any]] = {}


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
            return _refused(InvalidInput(f"there is no tool {name!r} here."))
        if not isinstance(input, Mapping):
            found = type(input).__name__
            wanted = f"the input of {name} is an object with its arguments, not {found}."
            return _refused(InvalidInput(wanted))
        turn = self._turn
        asked = await turn.permitted(name, dict(input))
        number = turn.records.occurrence("managed", name)
        caller = Caller(turn, self._lp, self._harnesses, identity(turn.id, "managed", name, number))
        if BY_NAME[name].records:
            return await _run(name, asked, caller)
        return await turn.step(MANAGED + name, lambda given: _run(name, given, caller), asked)


async def _run(name: str, input: Mapping[str, Any], caller: Caller) -> Any:
    try:
        tool = msgspec.convert(dict(input), BY_NAME[name])
        return msgspec.to_builtins(await tool.run(caller))
    except msgspec.ValidationError as error:
        return _refused(InvalidInput(f"the input does not fit {name}: {error}."))
    except (TurnError, StoreError, SessionFenced):  # not the model's to know
        raise
    except LimpetError as error:
        return _refused(error)


def _refused(error: LimpetError) -> dict[str, Any]:
    return {"error": {"code": error.code, "message": str(error)}}


def _spec(tool: type[Tool]) -> dict[str, Any]:
    schema = msgspec.json.schema(tool)
    body = dict(schema["$defs"][tool.__name__])
    for name in ("title", "description"):
        body.pop(name, None)
    words = " ".join((tool.__doc__ or "").split())
    return {"name": tool.name, "description": words, "input_schema": body}
