"""Copying app: and user: names: their present values, where the target has none.

Each owner's missing names are one commit, guarded by "the target never had this name". So a name is
copied once, whoever else copies or writes at the same time, and a copy that was killed goes on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final

import msgspec

from limpet.errors import (
    InvalidInput,
    ScopeFull,
    SessionConflict,
    SessionDeleted,
    SessionErased,
    SessionExists,
)
from limpet.model import OPS_PER_EVENT_MAX, encode
from limpet.session.move.adopter import Adopter
from limpet.store.protocol import Names, Owner

_OWNERS: Final = 100
_TRIES: Final = 16
_PART_BYTES: Final = 2**20
_FASTER: Final = (SessionConflict, SessionExists)
_UNABLE: Final = (InvalidInput, ScopeFull, SessionDeleted, SessionErased)


class Missing(msgspec.Struct):
    """The names of one owner that a target does not have, and those that cannot be copied."""

    values: dict[str, Any]
    unread: dict[str, str]  # and why


async def owners(source: Names, app: str | None) -> AsyncIterator[Owner]:
    """Everybody who has names, in order."""
    after: Owner | None = None
    while page := await source.owners(app, after=after, limit=_OWNERS):
        for owner in page:
            yield owner
        after = page[-1]


async def missing(source: Names, target: Adopter, owner: Owner) -> Missing:
    """What an owner has in the source and never had in the target."""
    has = await source.names_of(*owner)
    there = await target.names_of(*owner) if has else {}
    found = Missing({}, {})
    for name in has:
        scope = has[name]
        if scope.deleted or name in there:
            continue
        if scope.damage is not None:
            found.unread[name] = scope.damage
        else:
            found.values[name] = scope.value
    return found


async def copy_names(source: Names, target: Adopter, owner: Owner) -> tuple[int, dict[str, str]]:
    """Copy an owner's missing names: how many were set, and why others could not be.

    A value that is too large for one event cannot be copied; nor can a name for which the target
    has no room, or whose owner was erased there.
    """
    unable: dict[str, str] = {}
    done = 0
    for _ in range(_TRIES):
        found = await missing(source, target, owner)
        waiting = _shared({n: v for n, v in found.values.items() if n not in unable})
        try:
            for values in waiting:
                done += await _write(target, owner, values, unable)
        except _FASTER:
            continue  # another writer was first: see what is still missing
        return done, found.unread | unable
    raise SessionConflict(f"{owner[0]}/{owner[1]}", "name", 0, "another", "a shared name")


async def _write(
    target: Adopter, owner: Owner, values: Mapping[str, Any], unable: dict[str, str]
) -> int:
    """Set these names, or each by itself if together they are refused."""
    try:
        await target.write_names(owner, values)
    except _FASTER:
        raise
    except _UNABLE as error:
        if len(values) == 1:
            unable |= dict.fromkeys(values, str(error))
            return 0
        return sum([await _write(target, owner, {n: v}, unable) for n, v in values.items()])
    return len(values)


def _shared(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The names in parts that fit an event; a value that is larger has one to itself."""
    part: dict[str, Any] = {}
    size = 0
    for name, value in values.items():
        more = len(encode(value))
        if part and (size + more > _PART_BYTES or len(part) == OPS_PER_EVENT_MAX):
            yield part
            part, size = {}, 0
        part[name] = value
        size += more
    if part:
        yield part
