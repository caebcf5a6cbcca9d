"""The archive: what stays in a store of a session whose log was moved to cold storage.

A log of one event under the same key: its head is listed, has the labels and the timeouts, and says
where the log is. It accepts nothing but what an archived session does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from limpet.errors import SessionArchived, SessionDeleted
from limpet.model.events import Fact
from limpet.model.facts.view import Changes, Facts
from limpet.model.keys import Key
from limpet.model.values import EMPTY, FrozenDict

_CREATED: Final = "session.created"
_KEPT: Final = ("labels", "timeouts", "retention", "durations", "archived_from", "schema_version")


class Stubbed(Protocol):
    """The members of a head that a stub keeps."""

    @property
    def key(self) -> Key: ...
    @property
    def uid(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def link(self) -> bytes: ...
    @property
    def created_us(self) -> int: ...
    @property
    def facts(self) -> Facts: ...


def stub(head: Stubbed, place: str, size: int, sha256: str, children: Sequence[Key] = ()) -> Fact:
    """The log of this archived session is at `place` in the archive from now on. `children` in
    other apps are named, since nobody reads the log to find them."""
    key, facts = head.key, head.facts
    data: dict[str, Any] = {"app": key.app, "user": key.user, "id": key.id}
    data["archived"] = {
        "key": [key.app, key.user, key.id],
        "place": place,
        "bytes": size,
        "sha256": sha256,
        "uid": head.uid,
        "version": head.version,
        "link": head.link.hex(),
        "created_us": head.created_us,
        "facts": {name: facts[name] for name in _KEPT if name in facts},
    }
    if children:
        data["archived"]["children"] = [[child.app, child.user, child.id] for child in children]
    return Fact(type=_CREATED, data=data)


def place(facts: Facts) -> Mapping[str, Any] | None:
    """Where the log is, if it is not in this store."""
    found: Mapping[str, Any] | None = facts.get("archive")
    return found


def is_stub(facts: Facts) -> bool:
    """True if the log is in the archive and not in this store."""
    return "archive" in facts


def check_present(head: Stubbed, uid: str | None) -> None:
    """Raise SessionArchived if the log of this session (None: whichever has the key) is in the
    archive, SessionDeleted if the key belongs to another by now."""
    found = place(head.facts)
    if found is not None and uid in (None, head.uid, found["uid"]):
        raise SessionArchived(head.key)
    if uid not in (None, head.uid):
        raise SessionDeleted(head.key)


def created_us(first: Mapping[str, Any], at_us: int) -> int:
    """When a session was created, by its first event: a stub's was when its log was."""
    archived = first.get("archived")
    return at_us if archived is None else int(archived["created_us"])


def kept(data: Mapping[str, Any]) -> Changes:
    """Return the facts in the head of a stub."""
    archived = data["archived"]
    shown = {name: value for name, value in archived.items() if name != "facts"}
    standing = {"phase": "archived", "standing": "archived", "archive": FrozenDict(shown)}
    return {**archived.get("facts", EMPTY), **standing}
