"""Holdfast: durable sessions for AI agents.

    async with holdfast.open("sqlite:///support.db") as hf:
        s = await hf.create("support", "ada", state={"step": 0})
        await s.append("user.message", {"text": "hi"}, actor="user:ada", set={"step": 1})

A session is an append-only log of events; every change to anything is one atomic commit to it.
"""

from __future__ import annotations

from holdfast import errors as errors
from holdfast.errors import *  # noqa: F403  # the error tree is public by name
from holdfast.errors import HoldfastError as HoldfastError
from holdfast.model import ops as ops
from holdfast.model.due import deadline_at as deadline_at
from holdfast.model.due import runnable_at as runnable_at
from holdfast.model.events import Draft as Draft
from holdfast.model.events import Event as Event
from holdfast.model.head import Head as Head
from holdfast.model.head import Timer as Timer
from holdfast.model.keys import Key as Key
from holdfast.session.session import Session as Session
from holdfast.session.sessions import Holdfast as Holdfast
from holdfast.store.protocol import (
    Erasure as Erasure,
)
from holdfast.store.protocol import (
    Finding as Finding,
)
from holdfast.store.protocol import (
    Page as Page,
)
from holdfast.store.protocol import (
    Report as Report,
)
from holdfast.store.protocol import (
    Seal as Seal,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.session.sync import SyncHoldfast

__version__ = "0.1.0"


def open(url: str, *, seal: Seal | None = None) -> Holdfast:
    """Holdfast on the store that `url` names, for use as `async with holdfast.open(url) as hf`.

    memory:// · sqlite:///relative.db · sqlite:////absolute.db, with ?sync=full (default) or
    ?sync=normal. `seal` encrypts stored bodies.
    """
    return Holdfast(url, seal=seal)


def open_sync(url: str, *, seal: Seal | None = None) -> SyncHoldfast:
    """The same without await, for scripts and notebooks: `with holdfast.open_sync(url) as hf`."""
    from holdfast.session.sync import SyncHoldfast

    return SyncHoldfast(url, seal=seal)
