"""The setup of a session: the documents it runs with, and which tools it may use. `s.setup`.

Permissions and vaults are documents, each version kept, and a session names the versions that it
runs with. A vault holds the names of secrets and references to them ("env:STRIPE_KEY"), never the
secrets: whoever uses a reference resolves it there, and what is read from a vault does not show its
references when it is printed or logged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet.errors import InvalidInput, ToolAuthorizationFailed
from limpet.model import Event, Fact, Head, described
from limpet.model.facts.running.setup import (
    Setup,
    SetupChange,
    attached,
    is_usable,
    setup_in,
    tools_bound,
    tools_in,
    usable_tools,
)
from limpet.session.documents import Document, Documents, versioned
from limpet.session.history.point_in_time import head_now
from limpet.session.writer import Writer, own_tools

Permission: TypeAlias = Literal["always_allow", "always_ask", "deny"]
PERMISSIONS: Final[tuple[Permission, ...]] = ("always_allow", "always_ask", "deny")  # by strictness
ALL_TOOLS: Final = "*"
# The tools of `limpet.ManagedTools`. No registry binds them, so a binding does not restrict them.
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
# A scheme and a place, or the name of an environment variable.
_REFERENCE: Final = r"[a-z][a-z0-9+.-]{1,31}:\S{1,1000}|[A-Z][A-Z0-9_]{0,127}"
_FORM: Final = (
    "A vault maps names to references, as in {'stripe': 'env:STRIPE_KEY'}: a scheme, a colon and "
    "where the secret is kept; or the name of an environment variable. Never put the secret itself."
)


class SessionSetup:
    """The documents and tools a session runs with: `s.setup`."""

    __slots__ = ("_writer",)

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    @property
    def current(self) -> Setup:
        """Agent, environment, permissions, tools, resources and vaults, by version; as far as
        this object knows. Its `fingerprint` is the same for the same setup."""
        return setup_in(self._writer.known.head.facts)

    async def attach(
        self,
        *,
        resources: Iterable[str] | None = None,
        vaults: Iterable[str] | None = None,
        permissions: str | None = None,
        actor: str | None = None,
    ) -> Event:
        """Attach these documents, in the versions named (`repo@2`) or the newest; return the event.

        They replace those of the same kind; what is None stays. Raises DocumentNotFound,
        SessionNotFound.
        """
        named: dict[str, Any] = {
            kind: [await versioned(self._documents(kind), each) for each in _names(kind, given)]
            for kind, given in (("resources", resources), ("vaults", vaults))
            if given is not None
        }
        if permissions is not None:
            (name,) = _names("permissions", (permissions,))
            named["permissions"] = await versioned(self._documents("permissions"), name)
        if not named:
            raise InvalidInput("attach takes resources, vaults or permissions.")
        prepared = self._writer.journal.prepare(attached(**named), self._writer.acting(actor))
        return (await self._writer.commit((prepared,)))[0]

    async def compare(self, other: Setup | None = None) -> tuple[SetupChange, ...]:
        """Return the changes to another setup; without one, to the newest versions of the
        documents.

        A document that was deleted counts as removed. Raises SessionNotFound.
        """
        if not isinstance(other, Setup | None):
            raise InvalidInput(f"compare takes the setup of a session, not {described(other)}.")
        mine = setup_in((await head_now(self._writer)).facts)
        return mine.compare(await self._newest(mine) if other is None else other)

    async def environment(self) -> Document | None:
        """Return the environment it runs in, in its version; None if it has none. Raises
        DocumentNotFound."""
        name = setup_in((await head_now(self._writer)).facts).environment
        return None if name is None else await self._get("environments", name)

    async def resources(self) -> tuple[Document, ...]:
        """Return the resources it works on, each in its version. Raises DocumentNotFound."""
        names = setup_in((await head_now(self._writer)).facts).resources
        return tuple([await self._get("resources", name) for name in names])

    async def vaults(self) -> dict[str, tuple[str, ...]]:
        """Return the names of the secrets in each of its vaults; never where they are kept.

        Raises DocumentNotFound.
        """
        names = setup_in((await head_now(self._writer)).facts).vaults
        vaults = {name: await self._get("vaults", name) for name in names}
        return {name: tuple(sorted(vault.value)) for name, vault in vaults.items()}

    async def permissions(self) -> dict[str, Permission]:
        """Return the permission of each tool; `*` is every other one.

        They come from the attached permissions, the bound tools, and the sessions that it works
        for; where several speak, the strictest counts. Where tools are bound, all others are
        denied, apart from managed tools. Raises SessionNotFound.
        """
        facts = (await head_now(self._writer)).facts
        said = await self._permissions_in(setup_in(facts))
        return permissions_within(said, usable_tools(facts), own_tools(self._writer, facts))

    async def check_permission(self, tool: str) -> Permission:
        """Return always_allow, always_ask or deny for one tool. Raises SessionNotFound."""
        if type(tool) is not str or not tool:
            raise InvalidInput(f"a tool is named by a text, not {described(tool)}.")
        facts = (await head_now(self._writer)).facts
        said = await self._permissions_in(setup_in(facts))
        return permission_within(said, usable_tools(facts), tool, own_tools(self._writer, facts))

    async def _permissions_in(self, setup: Setup) -> dict[str, Permission]:
        said: list[Mapping[str, Any]] = [limits_of(setup)]
        if setup.permissions is not None:
            said.append(
                parse_permissions((await self._get("permissions", setup.permissions)).value)
            )
        return strictest(*said)

    async def _newest(self, setup: Setup) -> Setup:
        async def now(kind: str, name: str | None) -> str | None:
            if name is None:
                return None
            document = await self._documents(kind).find(name.partition("@")[0])
            return None if document is None else f"{document.name}@{document.version}"

        many: dict[str, Any] = {}
        for kind, names in (("resources", setup.resources), ("vaults", setup.vaults)):
            newest = [await now(kind, name) for name in names]
            many[kind] = tuple([name for name in newest if name is not None])
        return Setup(
            await now("agents", setup.agent),
            await now("environments", setup.environment),
            await now("permissions", setup.permissions),
            setup.tools,
            **many,
            limits=setup.limits,
        )

    async def _get(self, kind: str, name: str) -> Document:
        base, _, version = name.partition("@")
        return await self._documents(kind).get(base, int(version))

    def _documents(self, kind: str) -> Documents:
        return (Vaults if kind == "vaults" else Documents)(self._writer.journal, kind)


async def permissions_for(
    writer: Writer, worker: Mapping[str, Permission]
) -> Mapping[str, Permission]:
    """Return what a worker and the session both allow, as far as its object knows.

    Nothing is read if the session was set up with neither permissions nor tools.
    """
    facts = writer.known.head.facts
    if "setup" not in facts and not tools_in(facts):
        return worker
    own = SessionSetup(writer)
    setup = own.current
    if setup.permissions is None and not setup.tools and not setup.limits:
        return worker
    return strictest(worker, await own._permissions_in(setup))


def _names(kind: str, given: Iterable[str]) -> list[str]:
    """Check that these are names of documents; one text alone is refused."""
    names: list[Any] = [given] if not isinstance(given, Iterable) else list(given)
    if isinstance(given, str) or not all([type(name) is str and name for name in names]):
        raise InvalidInput(f"{kind} takes names of documents, not {described(given)}.")
    return names


# --- permissions ----------------------------------------------------------------------------------


class Permissions(Documents):
    """The collection of permissions."""

    def check(self, value: Any) -> None:
        """Raise InvalidInput unless the value maps tools to permissions."""
        parse_permissions(value)


def parse_permissions(value: Any) -> Mapping[str, Permission]:
    """Return the permissions in a document's value. Raises InvalidInput."""
    tools = value.get("tools") if isinstance(value, Mapping) else None
    if not isinstance(tools, Mapping) or not all([p in PERMISSIONS for p in tools.values()]):
        raise InvalidInput(
            f"permissions are {{'tools': {{name: permission}}}}, each one of "
            f"{', '.join(PERMISSIONS)}. Put the document again in that form."
        )
    return tools


def check_permissions(given: Any) -> Mapping[str, Permission]:
    """Return the permissions of a worker, by tool. Raises InvalidInput."""
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


def strictest_of(*said: Permission) -> Permission:
    """Return the strictest of several permissions of one tool."""
    return max(said, key=PERMISSIONS.index)


def strictest(*said: Mapping[str, Any]) -> dict[str, Permission]:
    """Return what all of these allow: for each tool that one of them names, the strictest."""
    names = sorted({name for each in said for name in each})
    return {
        name: max([permission_for(s, name) for s in said], key=PERMISSIONS.index) for name in names
    }


def limits_of(setup: Setup) -> dict[str, Permission]:
    """Return the permissions of its bound tools, and of those of the sessions it works for."""
    bound = {name: tool.get("permission") for name, tool in setup.tools.items()}
    said = {name: permission for name, permission in bound.items() if permission is not None}
    return strictest(said, setup.limits)


def permission_for(said: Mapping[str, Any], tool: str) -> Permission:
    """Return the permission of a tool, or of every other one; else it is allowed.

    A value that is not a permission denies the tool.
    """
    permission: Permission = said.get(tool, said.get(ALL_TOOLS, "always_allow"))
    return permission if permission in PERMISSIONS else "deny"


def permission_within(
    said: Mapping[str, Any],
    usable: Collection[str] | None,
    tool: str,
    own: Collection[str] | None = None,
) -> Permission:
    """Return the permission of a tool where only these are `usable` (see `usable_tools`), and of
    those, and of managed tools, only those that are the agent's `own`."""
    if own is not None and tool not in own:
        return "deny"
    if usable is not None and tool not in usable and tool not in MANAGED_TOOLS:
        return "deny"
    return permission_for(said, tool)


def permissions_within(
    said: Mapping[str, Any],
    usable: Collection[str] | None,
    own: Collection[str] | None = None,
) -> dict[str, Permission]:
    """Return the permissions by tool; every other one is denied if only these are usable, or the
    agent's `own`."""
    permissions = dict(said)
    for names in (usable, own):
        if names is not None:
            only = {**dict.fromkeys(names, "always_allow"), ALL_TOOLS: "deny"}
            permissions = strictest(permissions, only)
    return permissions


# --- vaults ---------------------------------------------------------------------------------------


class VaultDocument(Document, frozen=True):
    """One version of a vault. Its repr shows names only."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the secrets it refers to."""
        return () if self.deleted else tuple(sorted(self.value))

    def __repr__(self) -> str:
        return f"<limpet.VaultDocument {self.name}@{self.version} names={list(self.names)}>"

    __str__ = __repr__

    def __rich_repr__(self) -> Any:
        yield "name", self.name
        yield "version", self.version
        yield "names", self.names


class Vaults(Documents):
    """The collection of vaults."""

    def check(self, value: Any) -> None:
        """Raise unless the value maps names to references; the error does not show it."""
        if not isinstance(value, Mapping) or not value:
            raise InvalidInput(f"the value of a vault is not a mapping with names. {_FORM}")
        for name, reference in value.items():
            if not isinstance(name, str) or not 0 < len(name) <= 128:
                raise InvalidInput(f"a vault has a name that is not a short text. {_FORM}")
            if not _refers(reference):
                raise InvalidInput(f"the vault's {name!r} is not a reference. {_FORM}")

    def shown(self, document: Document) -> VaultDocument:
        """Return the document as a VaultDocument, whose repr hides the references."""
        return VaultDocument(**msgspec.structs.asdict(document))


def _refers(value: Any) -> bool:
    """True if every text in a value is a reference."""
    if isinstance(value, Mapping):
        return all(_refers(each) for each in value.values())
    if isinstance(value, (list, tuple)):
        return all(map(_refers, value))
    return isinstance(value, str) and re.fullmatch(_REFERENCE, value) is not None


# --- of a child ----------------------------------------------------------------------------------


def inherited_tools(
    parent: Head, names: Iterable[str], of_worker: Mapping[str, Permission], agent: str | None
) -> list[Fact]:
    """The facts by which a child gets its tools and permissions. Raises ToolAuthorizationFailed
    for a tool that its parent, or the parent's agent, does not have.

    `of_worker` are the permissions of the worker that runs the parent.
    """
    facts = parent.facts
    bound = tools_in(facts)
    for name in names:
        if not is_usable(facts, name, agent):
            raise ToolAuthorizationFailed(parent.key, name, "it delegates only tools that it has")
    drafts = []
    if "tools" in facts:  # an empty binding too: without one, a child could use everything
        drafts.append(tools_bound({name: bound[name] for name in names}))
    setup = setup_in(facts)
    limits = _limits(strictest(limits_of(setup), of_worker))
    if setup.permissions is not None or limits:
        drafts.append(attached(permissions=setup.permissions, limits=limits))
    return drafts


def _limits(limits: Mapping[str, Permission]) -> dict[str, Permission]:
    """The permissions that do not simply allow a tool."""
    every = ALL_TOOLS in limits  # then what is allowed has to be said
    return {name: said for name, said in limits.items() if every or said != "always_allow"}


def tool_names(tools: Any) -> list[str]:
    """The tools that a child is given, in the form that is recorded. Raises InvalidInput."""
    wrong = isinstance(tools, str) or not isinstance(tools, Iterable)
    names = [] if wrong else list(tools)
    if wrong or not all([isinstance(name, str) for name in names]):
        raise InvalidInput(f"tools is a list of names, not {described(tools)}.")
    return names
