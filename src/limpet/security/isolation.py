"""Isolation rules: which principals a session lets in, and which of its fields each may use.

The second decider that a guard asks, after the roles. It answers from the facts in the head of the
session (`limpet.model.facts.isolation`): the task and the agents that were named when the session
was created, and the policies of its State class. Most sessions have neither, and need no more than
a look. Another user's session is refused before this is asked, unless `admits` lets its user in.

Each model contains the rules of the one outside it: per_agent ⊂ per_task ⊂ per_user ⊂ global.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final

import msgspec

from limpet.errors import Denial
from limpet.model import EMPTY, Facts, Head, scope_of
from limpet.model.facts.isolation import agent_tools, field_policies_in
from limpet.model.facts.running.children import works_for
from limpet.model.facts.running.setup import agent_in
from limpet.security.access import ALLOWED, Action, Decision, Principal, Resource
from limpet.security.view import FieldView

_OF_SESSIONS: Final = frozenset({"session", "field", "tool"})
_READING: Final[frozenset[Action]] = frozenset({"read", "inspect"})
# Actions of a user whom a session names.
_ADMITTED: Final[frozenset[Action]] = frozenset({"read", "inspect", "write"})
# Lifecycle, moves and the audit of all users: these roles have no task, and are no agents.
_ABOVE: Final = frozenset({"admin", "auditor"})
_NONE: Final[Mapping[str, Any]] = EMPTY


SIBLINGS: Final = "isolation.siblings"  # the rule of `sibling_denial`


class IsolationRules:
    """The rules of isolation, as a Decider."""

    revision = 0
    needs_head = True
    needs_newest_head = False

    def decide(
        self, principal: Principal, action: Action, resource: Resource, address: str | None = None
    ) -> Decision:
        head = resource.head
        if head is None or resource.kind not in _OF_SESSIONS or not is_isolated(head.facts):
            return ALLOWED
        denial = _session_denial(principal, action, head)
        if denial is None and resource.kind == "field" and resource.name is not None:
            denial = field_denial(principal, action, resource.name, head)
        if denial is None and resource.kind == "tool" and action == "tool":
            own = agent_tools(head.facts, principal.id)
            if own is not None and resource.name not in own:
                denial = "agent_write_denied"
        if denial is None:
            return ALLOWED
        return Decision(False, denial, f"isolation.{_model(head.facts)}")

    def depends_on(self, action: Action, resource: Resource) -> Hashable:
        """All that is not isolated is answered alike. The isolation of a session never changes, and
        the policies of its fields change with its schema version."""
        head = resource.head
        if head is None or not is_isolated(head.facts):
            return True
        return (head.uid, head.facts.get("schema_version"), resource.kind, resource.name)

    def view(
        self, principal: Principal, head: Head, address: str | None = None
    ) -> FieldView | None:
        return view_of(principal, head)

    def hides_sessions_from(self, principal: Principal) -> bool:
        """True if a session may be closed to a principal that its role lets in."""
        return principal.user is not None or principal.role not in _ABOVE

    def admits(self, principal: Principal, action: Action, head: Head) -> bool:
        """True if this session of another user lets the principal's user in, for this action."""
        return action in _ADMITTED and _is_admitted(principal, head)


def is_isolated(facts: Facts) -> bool:
    """True if a session has rules of its own, besides that it belongs to its user."""
    return "isolation" in facts or "field_policies" in facts


def view_of(principal: Principal, head: Head) -> FieldView | None:
    """The fields that a principal sees of a session which it may read; None for all."""
    facts = head.facts
    if not is_isolated(facts):
        return None
    is_own = principal.user in (None, head.key.user)
    own = _agent_fields(principal, facts)
    if own is None and is_own and "field_policies" not in facts:
        return None
    role = _role(principal, head)
    policies = field_policies_in(facts)
    hidden = frozenset([name for name, of in policies.items() if not _may(of.get("read"), role)])
    if own is None:
        return FieldView(None, hidden, is_own) if hidden or not is_own else None
    return FieldView(frozenset([*own.get("owns", ()), *own.get("reads", ())]), hidden, is_own)


def field_denial(principal: Principal, action: Action, name: str, head: Head) -> Denial | None:
    """Return why a principal may not read or change a field; None if it may. To delete is to
    change."""
    facts = head.facts
    own = _agent_fields(principal, facts)
    reading = action in _READING
    if scope_of(name) == "user" and principal.user not in (None, head.key.user):
        return "access_denied"  # a session is shared, not what its user keeps beside it
    if own is not None and name not in own.get("owns", ()):
        if not reading:
            return _foreign(principal, head, "agent_write_denied")
        if name not in own.get("reads", ()):
            return _foreign(principal, head, "agent_read_denied")
    roles = field_policies_in(facts).get(name, _NONE).get("read" if reading else "write")
    return None if _may(roles, _role(principal, head)) else "field_access_denied"


def sibling_denial(home: Head, action: Action, head: Head, agent: str | None) -> Denial | None:
    """Return why an `agent` that works in one session, its `home`, may not do this to another; None
    if it may: the sessions of one agent know of each other, those of others only if they say so.
    What a session has delegated it looks after, and what lets in everybody, or names the agents
    that it is for, lets these in too."""
    if head.key == home.key or _agent_at_work(head) == _agent_at_work(home):
        return None
    isolation = head.facts.get("isolation", _NONE)
    named = isolation.get("model") == "per_agent" and agent in isolation.get("agents", _NONE)
    if isolation.get("siblings") or isolation.get("model") == "global" or named:
        return None
    if works_for(head.facts, home.key, home.uid):
        return None
    denial: Denial = "agent_read_denied" if action in _READING else "agent_write_denied"
    return denial if head.key.user == home.key.user else "access_denied"


def _agent_at_work(head: Head) -> tuple[bool, str]:
    """The agent of a session; one in its setup is never that of an app with the same name."""
    return head.facts.get("agent") is not None, agent_in(head.key, head.facts)


def narrowed_to(principal: Principal, head: Head) -> Principal:
    """The principal at work in one session: for its user, and in its task, if it had none.

    One that may enter several apps still may: sessions delegate to other apps of the same user.
    """
    facts = head.facts
    task = principal.task
    if task is None:
        task = facts.get("isolation", _NONE).get("task")
    if (principal.user, principal.task) == (head.key.user, task):
        return principal
    # A harness never speaks for the user of its session.
    return msgspec.structs.replace(principal, user=head.key.user, task=task, speaks_for=None)


def _session_denial(principal: Principal, action: Action, head: Head) -> Denial | None:
    """Return why a principal may not do this to a session at all."""
    facts = head.facts
    if principal.user not in (None, head.key.user):
        return None if action in _ADMITTED and _is_admitted(principal, head) else "access_denied"
    if principal.role in _ABOVE:
        return None
    if not _is_in_task(principal, action, facts):
        return "cross_task_access_denied"
    if _is_unknown_agent(principal, facts):
        return "agent_read_denied" if action in _READING else "agent_write_denied"
    return None


def _is_admitted(principal: Principal, head: Head) -> bool:
    """True if a session names the user of a principal, or everybody. The task and the agents that
    it is kept for hold for them too."""
    isolation = head.facts.get("isolation", _NONE)
    named = isolation.get("model") == "global" or principal.user in isolation.get("users", ())
    if not named or principal.app not in (None, head.key.app):
        return False
    return _is_in_task(principal, "read", head.facts) and not _is_unknown_agent(
        principal, head.facts
    )


def _is_in_task(principal: Principal, action: Action, facts: Facts) -> bool:
    isolation = facts.get("isolation", _NONE)
    if "task" not in isolation or isolation.get("model") not in ("per_task", "per_agent"):
        return True
    if principal.task is None and action == "claim":  # then it works in the task: `narrowed_to`
        return principal.role == "agent"
    return bool(principal.task == isolation["task"])


def _is_unknown_agent(principal: Principal, facts: Facts) -> bool:
    """True if it is an agent, and the session is kept for others."""
    own = _agent_fields(principal, facts)
    return own is not None and own is _NONE


def _agent_fields(principal: Principal, facts: Facts) -> Mapping[str, Any] | None:
    """The fields that an agent has in a session; None if they are not told apart for it, and none
    at all if the session does not name it."""
    isolation = facts.get("isolation", _NONE)
    if isolation.get("model") != "per_agent":
        return None
    own: Mapping[str, Any] | None = isolation.get("agents", _NONE).get(principal.id)
    if own is None and principal.role == "agent":
        return _NONE
    return own


def _role(principal: Principal, head: Head) -> str:
    """The role by which the policies of fields go. Who owns other sessions does not own this."""
    if principal.role == "owner" and principal.user not in (None, head.key.user):
        return "viewer"
    return principal.role


def _may(roles: Any, role: str) -> bool:
    return roles is None or role in roles


def _foreign(principal: Principal, head: Head, denial: Denial) -> Denial:
    """The codes of agents are for one's own user."""
    return denial if principal.user in (None, head.key.user) else "access_denied"


def _model(facts: Facts) -> str:
    return str(facts.get("isolation", _NONE).get("model", "per_user"))
