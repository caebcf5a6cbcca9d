"""Integrity: the six checks that a session passes before it works again.

They are made on what is about to be recorded: the state that was restored, the tools that were
bound, and the newest head. Each failure is a reason of its own; none hides another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from limpet.errors import MigrationError
from limpet.model import Head, Key, checksum
from limpet.model.facts.tools import tools_in
from limpet.session.handle import Handle
from limpet.session.life.policy import Function, refusal


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a resumption has found so far."""

    tools: Mapping[str, Any]
    tokens: int | None
    tokens_min: int
    checksum: str | None = None  # what the state has to have; None: as the log gives it
    plan: Function | None = None


async def failures(session: Handle, head: Head, restored: Restored) -> tuple[str, ...]:
    """Why the session must not go on; each begins with the name of its check."""
    found = (
        _checksum(session, restored.checksum),
        _schema(session, head),
        _tools(head, restored.tools),
        _budget(restored),
        await _plan(session, restored.plan),
        await _children(session, head),
    )
    return tuple([reason for reason in found if reason is not None])


def _checksum(session: Handle, wanted: str | None) -> str | None:
    known = session.writer.known
    if known.damaged:
        return f"checksum: event {known.damaged[0]} cannot be read"
    if wanted is not None and checksum(known.fields).hex() != wanted:
        return "checksum: its state is not the one of the checkpoint"
    return None


def _schema(session: Handle, head: Head) -> str | None:
    """Its state has the version that this code is for, or one that it reads as its own."""
    typed, version = session.writer.typed, head.schema_version
    if typed is None or version is None:
        return None
    try:
        needs = bool(typed.way(version))
    except MigrationError as error:
        return f"schema: {error.summary}"
    return f"schema: its state is {version} and needs a migration" if needs else None


def _tools(head: Head, bound: Mapping[str, Any]) -> str | None:
    wanted = tools_in(head.facts).items()
    required = [name for name, kept in wanted if kept.get("required", True)]
    lacking = sorted(set(required) - set(bound))
    return f"tools: {', '.join(lacking)} not bound" if lacking else None


def _budget(restored: Restored) -> str | None:
    low = restored.tokens is not None and restored.tokens < restored.tokens_min
    return f"budget: {restored.tokens} tokens left" if low else None


async def _plan(session: Handle, plan: Function | None) -> str | None:
    reason = None if plan is None else await refusal(plan, session)
    return None if reason is None else f"plan: {reason}"


async def _children(session: Handle, head: Head) -> str | None:
    """A child that it waits for and that is not there would never end."""
    children = head.facts.get("children")
    if not isinstance(children, Mapping):
        return None
    keys = [_child_key(head.key, id, child) for id, child in children.items()]
    found = await session.writer.journal.store.load_many(keys, tail=0)
    lost = [key.id for key, each in zip(keys, found, strict=True) if each is None]
    return f"children: {', '.join(lost)} not found" if lost else None


def _child_key(parent: Key, id: str, child: Any) -> Key:
    app = child.get("app", parent.app) if isinstance(child, Mapping) else parent.app
    return Key(app, parent.user, id)
