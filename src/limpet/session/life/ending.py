"""Ending: what is done before a session ends: compensations, then cleanup in its order.

A termination compensates and cleans up. A completed session is cleaned up before it is archived.

Each step is isolated and bounded in time, and what became of it is recorded with the termination. A
step that fails does not keep the session alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from limpet.session.handle import Handle
from limpet.session.life.policy import (
    CLEANUP,
    Function,
    Lifecycle,
    Transition,
    call_function,
    function_name,
)
from limpet.session.logs import SESSION


class Ending:
    """What was done, and what of it belongs into the record."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self.scrubbed: tuple[str, ...] = ()
        self.effects: tuple[str, ...] = ()

    @classmethod
    async def run(cls, policy: Lifecycle, session: Handle, step: Transition) -> Ending:
        """Compensate, if it is terminated; then clean up."""
        self = cls()
        done = []
        for function in () if step.name == "archive" else policy.compensate:
            done.append(await _guarded(function_name(function), function, policy, session, step))
        cleaned = []
        for name in CLEANUP:
            hook = policy.cleanup.get(name)
            if hook is not None:
                report = await _guarded(name, hook, policy, session, step)
                found = report.pop("result", None)
                if name == "scrub":
                    self.scrubbed = _names(session, found)
                cleaned.append(report)
        for report in done:
            report.pop("result", None)
        if done:
            self.data["compensated"] = done
        if cleaned:
            self.data["cleanup"] = cleaned
        ran = [*(f"compensate {each['name']}" for each in done)]
        ran += [f"cleanup {each['name']}" for each in cleaned]
        self.effects = tuple(ran)
        return self


async def _guarded(
    name: str, function: Function, policy: Lifecycle, session: Handle, step: Transition
) -> dict[str, Any]:
    """Call it, for so long and no longer; how it went."""
    try:
        async with asyncio.timeout(policy.cleanup_seconds):
            result = await call_function(function, session, step)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        if isinstance(error, TimeoutError):
            what = f"took longer than {policy.cleanup_seconds:g} seconds"
        SESSION.warning("step before the end failed: session=%s step=%s", session.key, name)
        return {"name": name, "error": what}
    return {"name": name, "result": result}


def _names(session: Handle, found: Any) -> tuple[str, ...]:
    """The session's own fields, among the names that a scrubbing hook returned."""
    if isinstance(found, str) or not isinstance(found, Iterable):
        return ()
    own = session.writer.known.fields
    return tuple(dict.fromkeys(name for name in found if name in own))
