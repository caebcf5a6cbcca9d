"""The agent: a model that calls tools in a loop until it has nothing more to call.

`limpet.Agent` is a harness, and all it does is written with `Turn.model` and `Turn.tool`: the same
loop can be written by hand in ten lines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from limpet.errors import InvalidInput
from limpet.model import described, unfit
from limpet.model.facts.running.runs import MAX_STEPS
from limpet.model.limits import NAME_CHARS_MAX
from limpet.runtime import effects
from limpet.runtime.model_call import Call
from limpet.runtime.tool import tools_of
from limpet.session.life.tools import Tool

if TYPE_CHECKING:
    from limpet.runtime.turn import Turn

STEPS: Final = 20
System: TypeAlias = "str | Callable[[Turn], str | Awaitable[str]] | None"


class Agent:
    """A harness for a Worker or `lp.wake`: asks the model, runs its tools, and asks again.

    `model` is a function of a ModelRequest, or one of `limpet.providers`. `tools` are functions or
    `limpet.Tool`s. `system` is a text, or a function of the turn that returns one. After
    `max_steps` replies the turn ends with a note; each call of the last one has its result.
    """

    def __init__(
        self,
        model: Call,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        system: System = None,
        max_steps: int = STEPS,
        name: str | None = None,
        *,
        tokens: int | None = None,
        max_cost: float | None = None,
        max_tokens: int | None = None,
    ) -> None:
        if not callable(model):
            raise InvalidInput(f"an agent takes a model first: a function, not {described(model)}.")
        if type(max_steps) is not int or max_steps < 1:
            raise InvalidInput(f"max_steps is a number from 1, not {described(max_steps)}.")
        if name is not None and (why := unfit(name, NAME_CHARS_MAX)):
            raise InvalidInput(f"the name of an agent {why}.")
        self.model, self.system, self.max_steps, self.name = model, system, max_steps, name
        self.tools = tools_of(tools)
        self._tokens, self._max_cost, self._max_tokens = tokens, max_cost, max_tokens

    def __repr__(self) -> str:
        name = "" if self.name is None else f" {self.name}"
        return f"<limpet.Agent{name} {[each.name for each in self.tools]}>"

    async def run(self, turn: Turn) -> None:
        """Run one turn: ask the model, run its tools, and ask again. Raises what the model
        raises."""
        system = self.system
        if callable(system):
            system = await effects.call(system, turn)
        for _ in range(self.max_steps):
            reply = await turn.model(
                "model",
                self.model,
                tools=self.tools,
                system=system,
                tokens=self._tokens,
                max_cost=self._max_cost,
                max_tokens=self._max_tokens,
            )
            if not reply.tool_calls:
                return
            calls = [turn.tool(call) for call in reply.tool_calls]
            # One that fails ends the turn only after the others have recorded what they did.
            for result in await asyncio.gather(*calls, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result
        note = f"(Stopped after {self.max_steps} steps.)"
        await turn.append("agent.message", {"text": note, "limit": MAX_STEPS})
