"""Parts of requests that are kept as a client sent them, and the types of the fields that we know.

An agent, a session or a credential is stored with all fields that its client gave it, also with
those of a newer API. A known field of another type is refused: the official client could not read
an answer that has it, nor any list that the object is in.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from limpet.errors import InvalidInput

Name = Annotated[str, Meta(min_length=1)]


class PolicyPart(msgspec.Struct):
    """A permission policy."""

    type: Literal["always_allow", "always_ask", "auto"]


class ToolConfigPart(msgspec.Struct, kw_only=True):
    """The settings of a tool, or of all that a toolset has."""

    enabled: bool | None = None
    permission_policy: PolicyPart | None = None


class NamedToolPart(ToolConfigPart, kw_only=True):
    """The settings of one tool of a toolset."""

    name: Name


class ToolsetPart(msgspec.Struct, kw_only=True):
    """A toolset of the agent's."""

    default_config: ToolConfigPart | None = None
    configs: list[NamedToolPart] | None = None


class McpToolsetPart(ToolsetPart, kw_only=True):
    """The tools of an MCP server."""

    mcp_server_name: Name


class ToolSchemaPart(msgspec.Struct):
    """The schema of a tool's input."""

    type: Literal["object"] = "object"
    properties: dict[str, Any] | None = None
    required: list[str] | None = None


class CustomToolPart(msgspec.Struct):
    """A tool of the client's."""

    name: Name
    description: str | None = None
    input_schema: ToolSchemaPart | None = None


class EffortPart(msgspec.Struct):
    """The effort of a model."""

    type: Literal["low", "medium", "high", "xhigh", "max"]


class ModelPart(msgspec.Struct):
    """A model with its settings."""

    id: Name
    effort: Literal["low", "medium", "high", "xhigh", "max"] | EffortPart | None = None
    speed: Literal["standard", "fast"] | None = None
    inference_geo: str | None = None


class SkillPart(msgspec.Struct):
    """A skill of an agent."""

    type: Literal["anthropic", "custom"]
    skill_id: Name
    version: str | None = None


class McpServerPart(msgspec.Struct):
    """An MCP server of an agent."""

    type: Literal["url"]
    name: Name
    url: Name


class NetworkPart(msgspec.Struct):
    """The hosts that an environment may reach."""

    type: Literal["unrestricted", "limited"] = "unrestricted"
    allowed_hosts: list[str] | None = None
    allow_mcp_servers: bool | None = None
    allow_package_managers: bool | None = None


class PackagesPart(msgspec.Struct):
    """The packages of an environment."""

    type: Literal["packages"] = "packages"
    apt: list[str] | None = None
    cargo: list[str] | None = None
    gem: list[str] | None = None
    go: list[str] | None = None
    npm: list[str] | None = None
    pip: list[str] | None = None


class ConfigPart(msgspec.Struct):
    """The configuration of an environment."""

    type: Literal["cloud", "self_hosted"]
    networking: NetworkPart | None = None
    packages: PackagesPart | None = None


class CheckoutPart(msgspec.Struct):
    """The branch or commit of a repository."""

    type: Literal["branch", "commit"]
    name: str | None = None
    sha: str | None = None


class ResourcePart(msgspec.Struct):
    """A resource of a session."""

    mount_path: str | None = None
    access: Literal["read_write", "read_only"] | None = None
    instructions: str | None = None
    checkout: CheckoutPart | None = None


class TokenAuthPart(msgspec.Struct):
    """The way in which a client of OAuth says who it is."""

    type: Literal["none", "client_secret_basic", "client_secret_post"]


class RefreshPart(msgspec.Struct):
    """The refreshing of an OAuth token."""

    client_id: str
    refresh_token: str
    token_endpoint: str
    token_endpoint_auth: TokenAuthPart
    scope: str | None = None
    resource: str | None = None


class HostsPart(msgspec.Struct):
    """The hosts that a secret is sent to."""

    type: Literal["unrestricted", "limited"]
    allowed_hosts: list[str] | None = None


class InjectionPart(msgspec.Struct):
    """The places of a request in which a secret may stand."""

    body: bool | None = None
    header: bool | None = None


class BearerPart(msgspec.Struct):
    """A credential that is a token."""

    token: str
    mcp_server_url: str


class OauthPart(msgspec.Struct):
    """A credential of OAuth."""

    access_token: str
    mcp_server_url: str
    expires_at: datetime | None = None
    refresh: RefreshPart | None = None


class VariablePart(msgspec.Struct):
    """A credential that is a variable of the environment."""

    secret_name: str
    secret_value: str
    networking: HostsPart
    injection_location: InjectionPart | None = None


# The tools of this toolset; a later one may have others.
BUILT_IN: Final = "agent_toolset_20260401"
BUILT_IN_TOOLS: Final = ["bash", "edit", "glob", "grep", "read", "web_fetch", "web_search", "write"]
TOOLS: Final[Mapping[str, type[msgspec.Struct]]] = {
    "custom": CustomToolPart,
    "mcp_toolset": McpToolsetPart,
}
CREDENTIALS: Final[Mapping[str, type[msgspec.Struct]]] = {
    "static_bearer": BearerPart,
    "mcp_oauth": OauthPart,
    "environment_variable": VariablePart,
}


def check(value: object, part: type[msgspec.Struct], name: str) -> None:
    """Raise InvalidInput, with the place, unless the known fields have their types."""
    try:
        msgspec.convert(value, part)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{name} is not as it should be: {error}.") from None
