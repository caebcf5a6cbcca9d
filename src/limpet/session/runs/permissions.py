"""Permissions: documents that say which tools may be used, and how several of them combine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, Literal, TypeAlias

from limpet.errors import InvalidInput
from limpet.model import described
from limpet.model.facts.running.setup import Setup
from limpet.session.documents import Documents

Permission: TypeAlias = Literal["always_allow", "always_ask", "deny"]
PERMISSIONS: Final[tuple[Permission, ...]] = ("always_allow", "always_ask", "deny")
ALL_TOOLS: Final = "*"
# What a harness hands to a model for its own session, see `runtime.managed`. They are bound by no
# registry, so a binding says nothing of them.
MANAGED_TOOLS: Final = frozenset(
    (
        "agent_compare_setup",
        "agent_describe_setup",
        "environment_describe",
        "learning_list",
        "memory_list",
        "memory_list_versions",
        "memory_promote_note",
        "memory_read",
        "memory_write",
        "outcome_define",
        "outcome_history",
        "outcome_read",
        "permissions_check",
        "permissions_describe",
        "resources_list",
        "session_delegate",
        "session_get_events",
        "session_get_snapshot",
        "session_get_trace",
        "session_list",
        "session_list_children",
        "session_run_child",
        "vault_list",
    )
)


class Permissions(Documents):
    """The collection of permissions."""

    def check(self, value: Any) -> None:
        """Refuse what does not say permissions by tool."""
        permitted(value)


def permitted(value: Any) -> Mapping[str, Permission]:
    """The permissions that a document says. Raises InvalidInput."""
    tools = value.get("tools") if isinstance(value, Mapping) else None
    if not isinstance(tools, Mapping) or not all([p in PERMISSIONS for p in tools.values()]):
        raise InvalidInput(
            f"permissions are {{'tools': {{name: permission}}}}, each one of "
            f"{', '.join(PERMISSIONS)}. Put the document again in that form."
        )
    return tools


def check_permissions(given: Any) -> Mapping[str, Permission]:
    """The permissions of a worker, by tool. Raises InvalidInput."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all([isinstance(name, str) for name in given]):
        raise InvalidInput(
            f"permissions are a dict of permissions by tool, not {described(given)}. "
            "Pass them as in {'refund': 'always_ask'}."
        )
    for name, permission in given.items():
        if permission not in PERMISSIONS:
            raise InvalidInput(
                f"the permission of {name!r} is {described(permission)}. "
                f"Use one of {', '.join(PERMISSIONS)}."
            )
    return dict(given)


def stricter(*said: Mapping[str, Any]) -> dict[str, Permission]:
    """What all of these allow: for each tool that one of them names, the strictest answer."""
    names = sorted({name for each in said for name in each})
    return {name: max([permission_for(s, name) for s in said], key=_strictness) for name in names}


def limits_of(setup: Setup) -> dict[str, Permission]:
    """What its bound tools say, and those of the sessions that it works for."""
    bound = {name: tool.get("permission") for name, tool in setup.tools.items()}
    said = {name: permission for name, permission in bound.items() if permission is not None}
    return stricter(said, setup.limits)


def permission_for(said: Mapping[str, Any], tool: str) -> Permission:
    """What is said of a tool, or of every other one; else it is allowed.

    Where something else than a permission is said, the tool is denied.
    """
    found: Permission = said.get(tool, said.get(ALL_TOOLS, "always_allow"))
    return found if found in PERMISSIONS else "deny"


def permission_within(
    said: Mapping[str, Any], usable: Collection[str] | None, tool: str
) -> Permission:
    """What is said of a tool, where only these are `usable`: see `usable_tools`."""
    if usable is not None and tool not in usable and tool not in MANAGED_TOOLS:
        return "deny"
    return permission_for(said, tool)


def within(said: Mapping[str, Any], usable: Collection[str] | None) -> dict[str, Permission]:
    """What is said of each tool, and that every other one is denied if only these are usable."""
    if usable is None:
        return dict(said)
    return stricter(said, {**dict.fromkeys(usable, "always_allow"), ALL_TOOLS: "deny"})


def _strictness(permission: Permission) -> int:
    return PERMISSIONS.index(permission)
