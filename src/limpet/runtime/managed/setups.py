"""Tools about what a session runs with: environment, vaults, permissions, resources, setup."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from limpet.runtime.managed.asking import Caller, Tool
from limpet.session.documents import Document


class EnvironmentDescribe(Tool, frozen=True):
    """Describe the environment that this session runs in."""

    name: ClassVar[str] = "environment_describe"

    async def run(self, caller: Caller) -> Any:
        found = await caller.session.setup.environment()
        return {"environment": None if found is None else _shown(found)}


class VaultList(Tool, frozen=True):
    """List the names of the secrets that this session may use; never where they are kept."""

    name: ClassVar[str] = "vault_list"

    async def run(self, caller: Caller) -> Any:
        found = await caller.session.setup.vaults()
        return {"vaults": {name: list(names) for name, names in found.items()}}


class PermissionsDescribe(Tool, frozen=True):
    """Show which tools may be used: always_allow, always_ask or deny; * is every other tool."""

    name: ClassVar[str] = "permissions_describe"

    async def run(self, caller: Caller) -> Any:
        return {"tools": dict(caller.turn.permissions)}


class PermissionsCheck(Tool, frozen=True):
    """Say whether one tool may be used: always_allow, always_ask or deny."""

    name: ClassVar[str] = "permissions_check"
    tool: str

    async def run(self, caller: Caller) -> Any:
        return {"tool": self.tool, "permission": caller.turn.permission(self.tool)}


class ResourcesList(Tool, frozen=True):
    """List what this session works on."""

    name: ClassVar[str] = "resources_list"

    async def run(self, caller: Caller) -> Any:
        return {"resources": [_shown(each) for each in await caller.session.setup.resources()]}


class AgentDescribeSetup(Tool, frozen=True):
    """Show what this session was set up with, by version, and its fingerprint."""

    name: ClassVar[str] = "agent_describe_setup"

    async def run(self, caller: Caller) -> Any:
        setup = caller.session.setup.current
        return {**msgspec.to_builtins(setup), "fingerprint": setup.fingerprint}


class AgentCompareSetup(Tool, frozen=True):
    """Show what differs from another session's setup, or from the newest versions."""

    name: ClassVar[str] = "agent_compare_setup"
    id: str | None = None

    async def run(self, caller: Caller) -> Any:
        other = None
        if self.id is not None:
            other = (await (await caller.other(self.id)).refresh(tail=0)).setup.current
        changes = await caller.session.setup.compare(other)
        return {"changes": [str(change) for change in changes]}


def _shown(document: Document) -> dict[str, Any]:
    return {"name": document.name, "version": document.version, "value": document.value}


TOOLS = (
    EnvironmentDescribe,
    VaultList,
    PermissionsDescribe,
    PermissionsCheck,
    ResourcesList,
    AgentDescribeSetup,
    AgentCompareSetup,
)
