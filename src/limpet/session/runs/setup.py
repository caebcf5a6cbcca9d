"""The setup of a session: what it runs with, what of that changed, what is permitted. `s.setup`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from limpet.errors import InvalidInput
from limpet.model import Event, described
from limpet.model.facts import tools_in
from limpet.model.facts.running.setup import (
    Setup,
    SetupChange,
    attached,
    setup_in,
    usable_tools,
)
from limpet.session.documents import Document, Documents, versioned
from limpet.session.history.at import head_now
from limpet.session.runs.permissions import (
    Permission,
    limits_of,
    permission_within,
    permitted,
    stricter,
    within,
)
from limpet.session.runs.vaults import Vaults

if TYPE_CHECKING:
    from limpet.session.writer import Writer


class SessionSetup:
    """What a session runs with: `s.setup`."""

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
        """Have it run with these documents, in the versions named (`repo@2`) or the newest.

        They replace those of the same kind; what is None stays. Raises DocumentNotFound.
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
        """What differs in another setup; without one, in the newest versions of the documents.

        A document that was deleted counts as removed.
        """
        if not isinstance(other, Setup | None):
            raise InvalidInput(f"compare takes the setup of a session, not {described(other)}.")
        mine = setup_in((await head_now(self._writer)).facts)
        return mine.compare(await self._newest(mine) if other is None else other)

    async def environment(self) -> Document | None:
        """The environment it runs in, in its version; None if it has none."""
        name = setup_in((await head_now(self._writer)).facts).environment
        return None if name is None else await self._get("environments", name)

    async def resources(self) -> tuple[Document, ...]:
        """What it works on, each in its version."""
        names = setup_in((await head_now(self._writer)).facts).resources
        return tuple([await self._get("resources", name) for name in names])

    async def vaults(self) -> dict[str, tuple[str, ...]]:
        """The names of the secrets in each of its vaults; never where they are kept."""
        names = setup_in((await head_now(self._writer)).facts).vaults
        found = {name: await self._get("vaults", name) for name in names}
        return {name: tuple(sorted(vault.value)) for name, vault in found.items()}

    async def permissions(self) -> dict[str, Permission]:
        """What may be used, by tool; `*` is every other one.

        From the attached permissions, the bound tools, and those of the sessions that it works
        for; where several speak, the strictest counts. Where tools are bound, all others are
        denied, apart from managed tools.
        """
        facts = (await head_now(self._writer)).facts
        return within(await self._permissions_in(setup_in(facts)), usable_tools(facts))

    async def check_permission(self, tool: str) -> Permission:
        """always_allow, always_ask or deny."""
        if type(tool) is not str or not tool:
            raise InvalidInput(f"a tool is named by a text, not {described(tool)}.")
        facts = (await head_now(self._writer)).facts
        said = await self._permissions_in(setup_in(facts))
        return permission_within(said, usable_tools(facts), tool)

    async def _permissions_in(self, setup: Setup) -> dict[str, Permission]:
        said: list[Mapping[str, Any]] = [limits_of(setup)]
        if setup.permissions is not None:
            said.append(permitted((await self._get("permissions", setup.permissions)).value))
        return stricter(*said)

    async def _newest(self, setup: Setup) -> Setup:
        async def now(kind: str, name: str | None) -> str | None:
            if name is None:
                return None
            found = await self._documents(kind).find(name.partition("@")[0])
            return None if found is None else f"{found.name}@{found.version}"

        many: dict[str, Any] = {}
        for kind, names in (("resources", setup.resources), ("vaults", setup.vaults)):
            found = [await now(kind, name) for name in names]
            many[kind] = tuple([name for name in found if name is not None])
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
    return stricter(worker, await own._permissions_in(setup))


def _names(kind: str, given: Iterable[str]) -> list[str]:
    """The names of documents, checked: a text is no list of them."""
    names: list[Any] = [given] if not isinstance(given, Iterable) else list(given)
    if isinstance(given, str) or not all([type(name) is str and name for name in names]):
        raise InvalidInput(f"{kind} takes names of documents, not {described(given)}.")
    return names
