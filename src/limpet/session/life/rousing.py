"""Rousing: input to a session that was suspended for idleness makes it active again.

The input is recorded first, and waits. Then the session is resumed, in a commit of its own, by the
process that recorded the input; if that dies in between, by the next sweep.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from limpet.errors import InvalidTransition, LimpetError, SessionConflict
from limpet.model import Head, Key
from limpet.model.facts.phases import roused_us
from limpet.session.logs import SESSION


def is_roused(head: Head) -> bool:
    """Whether it is suspended, and input has come that ends this."""
    return roused_us(head.facts) is not None


async def rouse(key: Key, resume: Callable[[], Awaitable[Any]]) -> None:
    """Resume it. If that is refused, it stays suspended: the input is recorded all the same."""
    try:
        await resume()
    except (InvalidTransition, SessionConflict):
        pass  # another was faster
    except LimpetError as error:
        SESSION.warning("session not resumed by input: session=%s code=%s", key, error.code)
    except Exception as error:
        SESSION.warning("hook refused resuming: session=%s error=%s", key, type(error).__name__)
