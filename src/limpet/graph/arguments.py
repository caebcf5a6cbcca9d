"""Arguments of session stores and checkpointers: all of ours check them here, and refuse the same.

A store in memory that took what a file refuses would let a program pass its tests and fail where it
runs.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from limpet.errors import InvalidInput, InvalidQuery, InvalidValue
from limpet.model import STATE_DEPTH_MAX, Key, described
from limpet.model.ops import check_name
from limpet.model.values import round_trip, settle
from limpet.session.arguments import moment_us

F = TypeVar("F")

_decode: Final = msgspec.json.Decoder().decode


def session_key(session_id: Any) -> str:
    """The id of a session: what may be the id in a key. Raises InvalidInput."""
    if not isinstance(session_id, str) or not session_id:
        raise InvalidInput(f"a session id is a text that is not empty, not {session_id!r}.")
    return Key("graph", "sessions", session_id).id


def invocation_key(invocation_id: Any) -> str:
    """The id of an invocation: what may be the id in a key. Raises InvalidKey."""
    return Key("graph", "invocations", invocation_id).id


def own_name(name: Any) -> str:
    """The name of a field of a session's own state. Raises InvalidOp or InvalidValue."""
    if isinstance(name, str) and ":" in name:
        raise InvalidValue("the state", f"has the name {name!r}; names have no colon")
    return check_name(name)


def filter_of(given: F | None, kind: type[F]) -> F:
    """The filter of a listing; one that matches everything if none is given."""
    wanted: Any = kind() if given is None else given
    if not isinstance(wanted, kind):
        raise InvalidQuery(f"a filter is a {kind.__name__}, not {described(wanted)}")
    limit = wanted.limit  # type: ignore[attr-defined]  # both filters have one
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InvalidQuery(f"a limit is a number from 1, or None for all, not {described(limit)}")
    for name in wanted.__struct_fields__:  # type: ignore[attr-defined]  # both are structs
        if name.endswith("_after"):
            moment_us(name, getattr(wanted, name))
    return wanted


def keep_of(keep: int | None) -> int | None:
    """How many completed invocations stay; None for all."""
    if keep is not None and (type(keep) is not int or keep < 1):
        raise InvalidInput(f"keep is a number of invocations from 1, not {keep!r}.")
    return keep


def checked_flush(flush_every: int) -> int:
    """How many steps inside a fan-out one commit has."""
    if type(flush_every) is not int or flush_every < 1:
        raise InvalidInput(f"flush_every is a number of steps from 1, not {flush_every!r}.")
    return flush_every


def exact(value: Any, where: str) -> Any:
    """A plain copy of a JSON value. Raises InvalidValue for what JSON would change, such as NaN."""
    trip = round_trip(value, _decode)
    return settle(value, where, depth_max=STATE_DEPTH_MAX) if trip is None else trip[1]
