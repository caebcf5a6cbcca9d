"""Roles: what an owner, an agent, a viewer, an auditor and an admin may do, and where.

The first decider that every guard asks. It knows nothing of isolation and needs no head: another
user's session is refused by its key alone, whether it exists or not. What a role grants is one
table; where it holds follows from the app and the user of the principal.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final

from msgspec import structs

from limpet.model import Head
from limpet.model.keys import AUDIT, AUDIT_NAMES
from limpet.security.access import (
    ACTIONS,
    ALLOWED,
    Action,
    Decision,
    Principal,
    Resource,
    Role,
    SessionView,
)

# Written by the audit alone: nobody else has a role for that.
AUDIT_APPS: Final = frozenset({AUDIT, AUDIT_NAMES})
EVERY_APP: Final = "*"  # the app of what belongs to the store as a whole

# Of sessions and fields, and of documents that belong to a user.
_OWN: Final[Mapping[Role, frozenset[Action]]] = {
    "owner": frozenset(ACTIONS) - {"keys", "audit"},
    "agent": frozenset({"read", "inspect", "create", "write", "lifecycle", "claim", "tool"}),
    "viewer": frozenset({"read", "inspect"}),
    "auditor": frozenset({"inspect"}),
    "admin": frozenset(ACTIONS),
}
# Of what all users of an app share: app: names, documents of an app or of the store, lists, claims.
_SHARED: Final[Mapping[Role, frozenset[Action]]] = {
    "owner": frozenset({"read", "inspect"}),
    "agent": frozenset({"read", "inspect", "write", "claim", "tool"}),
    "viewer": frozenset({"read", "inspect"}),
    "auditor": frozenset({"inspect", "audit"}),
    "admin": frozenset(ACTIONS),
}
# Of the store itself: backups, keys, verification of everything. For principals of no one app.
_STORE: Final[Mapping[Role, frozenset[Action]]] = {
    "owner": frozenset(),
    "agent": frozenset(),
    "viewer": frozenset(),
    "auditor": frozenset({"inspect", "audit"}),
    "admin": frozenset(ACTIONS),
}
_READS_AUDIT: Final[frozenset[Action]] = frozenset({"inspect", "audit"})
_HARMLESS: Final[frozenset[Action]] = frozenset({"read", "inspect", "audit", "tool"})


class RoleRules:
    """The rules of roles, as a Decider."""

    revision = 0
    needs_head = False
    needs_newest_head = False

    def decide(
        self, principal: Principal, action: Action, resource: Resource, address: str | None = None
    ) -> Decision:
        allowed = action in self._granted(principal, resource)
        return ALLOWED if allowed else Decision(False, "access_denied", f"role.{principal.role}")

    def grants(self, principal: Principal, action: Action) -> bool:
        """True if its role may do this where it is let in: see `Deciders.admits`."""
        return action in _OWN[principal.role]

    def depends_on(self, action: Action, resource: Resource) -> Hashable:
        named = resource.name if resource.name in AUDIT_APPS else None
        return (resource.kind, resource.app, resource.user, named)

    def view(
        self, principal: Principal, head: Head, address: str | None = None
    ) -> SessionView | None:
        return None

    def _granted(self, principal: Principal, resource: Resource) -> frozenset[Action]:
        role = principal.role
        if resource.name in AUDIT_APPS:
            named = structs.replace(resource, name=None)
            return self._granted(principal, named) & _READS_AUDIT
        if resource.kind == "store":
            everywhere = principal.app is None and principal.user is None
            return _STORE[role] if everywhere else frozenset()
        if resource.kind == "tool" and resource.user is None:  # a lock that all apps share
            return _OWN[role] & {"inspect", "tool"}
        if resource.app == EVERY_APP:  # documents of the whole store: everybody reads them
            limited = principal.app is not None or principal.user is not None
            return _SHARED[role] & _HARMLESS if limited else _SHARED[role]
        if principal.app not in (None, resource.app):
            return frozenset()
        if resource.user is not None:
            return _OWN[role] if principal.user in (None, resource.user) else frozenset()
        if principal.user is None:
            return _SHARED[role]
        # One who acts for a user changes nothing that other users see, unless it is an agent of
        # the app at work for this user.
        return _SHARED[role] - {"claim"} if role == "agent" else _SHARED[role] & _HARMLESS
