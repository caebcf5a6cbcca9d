"""Switches: what is turned on, off or up for the tools of an app while its workers run.

They are one document for each app, kept with the store. Workers read it with the other policies of
the app, at most every few seconds, and follow it from the next tool call on: a call that has begun
ends as it began.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from limpet.errors import InvalidInput
from limpet.model import described
from limpet.session.documents import Internal
from limpet.session.journal import Journal

COLLECTION: Final = "switches"


class ToolSwitch(msgspec.Struct, frozen=True, kw_only=True):
    """The switches of one tool of an app.

    An open circuit refuses its calls, or hands them to the `fallback`, until `until_us`; effects of
    its name that a harness makes are refused.
    `cache_seconds` is for tools that are pure: how long a user's result is used again for the same
    input in one process. `timeout_seconds` bounds each try where neither call nor tool does.
    """

    open: bool = False
    fallback: str | None = None
    until_us: int | None = None  # None: until it is closed
    cache_seconds: float = 0.0
    timeout_seconds: float | None = None

    def is_open(self, now_us: int) -> bool:
        """True if the tool must not be called now."""
        return self.open and (self.until_us is None or now_us < self.until_us)


class AppSwitches(msgspec.Struct, frozen=True, kw_only=True):
    """The switches of an app. `fresh_seconds` is how long evidence retrieved by lp.resume counts as
    fresh, if that is longer than the caller asks for; `idle_seconds` how long new sessions with the
    app's own idle timeout may be idle, if that is longer."""

    tools: Mapping[str, ToolSwitch] = {}
    fresh_seconds: float = 0.0
    idle_seconds: float = 0.0


NO_SWITCHES: Final = AppSwitches()
CLOSED: Final = ToolSwitch()


def switches_documents(journal: Journal, actor: str | None = None) -> Internal:
    """Return the collection of all apps' switches."""
    return Internal(journal, COLLECTION, actor=actor)


async def switches_of(journal: Journal, app: str) -> AppSwitches:
    """Read the switches of an app. One that cannot be read switches nothing."""
    documents = switches_documents(journal)
    document = await documents.find(app)
    switches = None if document is None else documents.decoded(document, AppSwitches)
    return NO_SWITCHES if switches is None else switches


def checked(switch: Any) -> ToolSwitch:
    """Return a switch whose every part was looked at. Raises InvalidInput."""
    if not isinstance(switch, ToolSwitch):
        raise InvalidInput(f"a switch is a limpet.ToolSwitch, not {described(switch)}.")
    if switch.fallback is not None and not isinstance(switch.fallback, str):
        raise InvalidInput("the fallback of a switch is the name of a tool.")
    for name in ("cache_seconds", "timeout_seconds"):
        value = getattr(switch, name)
        if value is None and name == "timeout_seconds":
            continue
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            raise InvalidInput(f"{name} is a number from 0, not {described(value)}.")
    return switch
