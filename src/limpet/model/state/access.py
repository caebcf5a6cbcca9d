"""Access: which roles may read and write a field of typed state, declared with the field.

A role is the part of an actor before its colon: `agent` in `agent:main`. Sessions enforce it on
writes. What is declared is kept with the session; `lp.acting_as(principal)` holds reads and writes
to it, by the role of the principal and without the class. Other code that shows state to a reader
knows who reads, and asks `allows` itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet.errors import InvalidSchema
from limpet.model.keys import unfit
from limpet.model.limits import KEY_PART_CHARS_MAX

Operation: TypeAlias = Literal["read", "write"]


class Access(msgspec.Struct, frozen=True):
    """The roles that may read and write. None means everybody."""

    read: frozenset[str] | None = None
    write: frozenset[str] | None = None

    def allows(self, operation: Operation, actor: str) -> bool:
        roles = self.read if operation == "read" else self.write
        return roles is None or actor.partition(":")[0] in roles

    @property
    def form(self) -> dict[str, list[str]]:
        """Plain values to be kept with a session; empty if everybody may do everything."""
        roles = {"read": self.read, "write": self.write}
        return {name: sorted(of) for name, of in roles.items() if of is not None}


OPEN: Final = Access()


def access(*, read: Iterable[str] | None = None, write: Iterable[str] | None = None) -> Access:
    """For a field: `Annotated[str, access(write=["agent"])]`. Raises InvalidSchema."""
    return Access(_roles("read", read), _roles("write", write))


def access_of(metadata: Iterable[Any]) -> Access:
    """The access among a field's annotations."""
    return next((item for item in metadata if isinstance(item, Access)), OPEN)


def _roles(what: str, given: Iterable[str] | None) -> frozenset[str] | None:
    if given is None:
        return None
    roles = [given] if isinstance(given, str) else list(given)
    for role in roles:
        if reason := unfit(role, KEY_PART_CHARS_MAX):
            raise InvalidSchema(f"a role that may {what} {reason}")
        if ":" in role:
            raise InvalidSchema(
                f"the role {role!r} has a colon; it is the part of an actor before that"
            )
    return frozenset(roles)
