"""Tools: a registry of what there is, bindings of sessions, and locks on exclusive tools.

A binding is a fact in the head of a session; it names the tool and its version. A session with a
binding uses the tools in it, each under the name that it is bound by, and no others: `ToolUse`
decides at each use. A lock is a lease on a document of the tool, so that it expires if its
holder dies, and belongs to one session at a time in all processes.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from limpet.errors import (
    AccessDenied,
    DocumentConflict,
    InvalidInput,
    LimpetError,
    RequiredToolUnavailable,
    SessionError,
    SessionLocked,
    ToolAuthorizationFailed,
    ToolDenied,
    ToolInvalid,
    ToolLocked,
)
from limpet.model import (
    EMPTY,
    DefaultActor,
    Fact,
    Facts,
    FrozenDict,
    Key,
    Lease,
    described,
    name_part,
)
from limpet.model.facts.running.setup import degraded_in, tools_bound, tools_in, usable_tools
from limpet.model.state.migrations import SchemaVersion
from limpet.session.arguments import check_lease_seconds
from limpet.session.documents import Internal
from limpet.session.history.checkpoints import store_checkpoints
from limpet.session.life.lifecycle_policy import LIFECYCLE_ACTOR, call_function
from limpet.session.runs.setup import PERMISSIONS, Permission, strictest
from limpet.session.writer import Handle, acting_agent, own_tools, writer_of
from limpet.store.clock import steady_ns
from limpet.store.leases import Leases

if TYPE_CHECKING:
    from limpet.security.guard import Guard

# (tool, session) → True, or the reason why this caller may not use it.
Authorize: TypeAlias = Callable[..., "bool | str | Awaitable[bool | str]"]
# After a crash in the middle of an effect: ask a person, or try again under its key.
OnUnknown: TypeAlias = Literal["ask", "retry"]
COLLECTION: Final = "tools"
TOOL_NAME_CHARS_MAX: Final = 128
LOCK_SECONDS: Final = 30.0
_ACTOR: Final = DefaultActor("system:tools")
_GENERATORS: Final = {
    "an async generator function": inspect.isasyncgenfunction,
    "a generator function": inspect.isgeneratorfunction,
}


class Tool(msgspec.Struct, frozen=True):
    """A tool: its name and JSON schema for a model, how a session binds it, and its function.

    Without a function it runs elsewhere: in the client, which answers the request, or in code that
    uses `Turn.effect`. `substitutes` may stand in for it, the first first. `on_unknown`, `pure`,
    `timeout`, `retries` and `record_args` say how `Turn.tool` runs the function; `limpet.tool`
    makes a Tool of one.
    """

    name: str
    version: str = "1.0.0"
    schema: Mapping[str, Any] = EMPTY
    required: bool = True
    cost: float = 0.0
    permission: Permission = "always_allow"
    exclusive: bool = False
    substitutes: tuple[str, ...] = ()
    description: str = ""
    function: Callable[..., Any] | None = None
    on_unknown: OnUnknown = "ask"
    pure: bool = False
    timeout: float | timedelta | None = None
    record_args: bool = True
    retries: int = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself. Nothing is recorded."""
        if self.function is None:
            raise InvalidInput(f"the tool {self.name!r} has no function: its client runs it.")
        return self.function(*args, **kwargs)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 0 < len(self.name) <= TOOL_NAME_CHARS_MAX:
            raise InvalidInput(
                f"the name of a tool is a text of 1 to {TOOL_NAME_CHARS_MAX} characters."
            )
        SchemaVersion.parse(self.version)
        if self.permission not in PERMISSIONS:
            raise InvalidInput(
                f"the permission of {self.name!r} is {described(self.permission)}. "
                f"Use one of {', '.join(PERMISSIONS)}."
            )
        if type(self.cost) not in (int, float) or not 0 <= self.cost < math.inf:
            raise InvalidInput("the cost of a tool is a number from 0: what one use of it costs.")
        given = self.timeout
        seconds = given.total_seconds() if isinstance(given, timedelta) else given
        if seconds is not None and (type(seconds) not in (int, float) or not seconds > 0):
            raise InvalidInput(
                f"the timeout of {self.name!r} is a number of seconds above 0, "
                f"not {described(given)}."
            )
        _check_function(self.name, self.function)
        if type(self.retries) is not int or self.retries < 0:
            raise InvalidInput(
                f"retries of {self.name!r} is a number from 0, not {described(self.retries)}."
            )

    @property
    def binding(self) -> dict[str, Any]:
        """Return what a session records about it."""
        kept: dict[str, Any] = {"version": self.version, "required": self.required}
        kept |= {"permission": self.permission, "cost": self.cost}
        if self.exclusive:
            kept["exclusive"] = True
        return {**kept, "substitutes": list(self.substitutes)} if self.substitutes else kept


class ToolRegistry:
    """The tools of this process. `authorize(tool, session)` returns True or a reason."""

    def __init__(self, tools: Iterable[Tool] = (), *, authorize: Authorize | None = None) -> None:
        self._tools: dict[str, list[Tool]] = {}
        self._authorize = authorize
        for tool in tools:
            self.add(tool)

    def add(self, tool: Tool) -> None:
        """Register a tool; one name may have several versions.

        Raises InvalidInput unless it is a Tool.
        """
        if not isinstance(tool, Tool):
            raise InvalidInput(f"{described(tool)} is not a tool. Pass a limpet.Tool.")
        same = self._tools.setdefault(tool.name, [])
        same[:] = sorted(
            [t for t in same if t.version != tool.version] + [tool],
            key=lambda t: SchemaVersion.parse(t.version),
        )

    def remove(self, name: str) -> None:
        """Remove every version of a tool. Sessions that have it bound keep the binding. Raises
        nothing."""
        self._tools.pop(name, None)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the registered tools."""
        return tuple(sorted(self._tools))

    def resolve(self, name: str, version: str | None = None) -> Tool | None:
        """Return the newest version compatible with `version` (the same MAJOR and not older), or
        None."""
        versions = self._tools.get(name, [])
        if version is None:
            return versions[-1] if versions else None
        wanted = SchemaVersion.parse(version)
        fits = [t for t in versions if _is_compatible(SchemaVersion.parse(t.version), wanted)]
        return fits[-1] if fits else None

    async def substitute(self, names: Iterable[str], session: Handle) -> Tool | None:
        """Return the newest version of the first of these names that is registered and
        permitted, or None."""
        for tool in map(self.resolve, names):
            if tool is not None and await self.refusal(tool, session) is None:
                return tool
        return None

    async def refusal(self, tool: Tool, session: Handle) -> str | None:
        """Return why this session may not use the tool; None if it may."""
        if tool.permission == "deny":
            return "its permission is deny"
        if self._authorize is None:
            return None
        result = await call_function(self._authorize, tool, session)
        return None if result is True else str(result or "the caller is not authorized")


def check_bindable(registry: Any, names: Iterable[Any]) -> None:
    """Raise InvalidInput unless these are a registry and names of tools."""
    if not isinstance(registry, ToolRegistry):
        raise InvalidInput(f"{described(registry)} has no tools. Pass a limpet.ToolRegistry first.")
    for name in names:
        if not isinstance(name, str):
            wanted = "Pass each name by itself, as in bind_tools(registry, 'search', 'refund')"
            raise InvalidInput(f"a tool is named by a text, not by {described(name)}. {wanted}.")


class Bound(msgspec.Struct):
    """The result of binding: bound tools, tools left out with their bindings, and substitutes."""

    tools: dict[str, dict[str, Any]] = {}
    degraded: dict[str, dict[str, Any]] = {}
    substituted: dict[str, str] = {}

    @property
    def fact(self) -> Fact:
        """Return the fact that records this binding."""
        return tools_bound(self.tools, degraded=self.degraded, substituted=self.substituted)

    def is_in(self, facts: Facts) -> bool:
        """True if a head has this binding already, or there was nothing to bind."""
        if "tools" not in facts and not self.tools and not self.degraded:
            return True
        known = "tools" in facts and self.tools == tools_in(facts)
        return known and self.degraded == degraded_in(facts)


async def bind(
    registry: ToolRegistry, wanted: Mapping[str, Mapping[str, Any]], session: Handle
) -> Bound:
    """Bind each of these (as a session keeps them) to what the registry has now.

    A tool that is not there is substituted, left out if it is optional, or raises
    RequiredToolUnavailable. One that is refused raises ToolAuthorizationFailed if it is required.
    """
    bound = Bound({}, {}, {})
    for name, kept in wanted.items():
        tool = registry.resolve(name, kept.get("version"))
        reason = None if tool is None else await registry.refusal(tool, session)
        if tool is None:
            tool = await registry.substitute(kept.get("substitutes", ()), session)
        if tool is not None and reason is None:
            # A binding for the tool as it is now; what was asked for, and asked about, stays so.
            # The version that is wanted is that of the tool by its own name, so that it is taken
            # again once it is there. Of two permissions the stricter holds.
            rest = {n: kept[n] for n in ("required", "substitutes") if n in kept}
            made = {**tool.binding, **rest}
            said = kept.get("permission", tool.permission)
            made["permission"] = strictest({name: said}, {name: tool.permission})[name]
            if kept.get("exclusive"):
                made["exclusive"] = True
            if tool.name != name:
                made |= {
                    "version": kept.get("version", tool.version),
                    "as": tool.name,
                    "as_version": tool.version,
                }
            bound.tools[name] = made
            if tool.name != name:
                bound.substituted[name] = tool.name
        elif not kept.get("required", True):
            bound.degraded[name] = dict(kept)
        elif reason is not None:
            raise ToolAuthorizationFailed(session.key, name, reason)
        else:
            raise RequiredToolUnavailable(session.key, name)
    return bound


async def binding(registry: ToolRegistry | None, session: Handle) -> Fact | None:
    """The record of binding what the session has bound, and what it lacks, or else all there is, to
    a registry as it is now; None if that changes nothing. Raises as `bind` does."""
    if registry is None:
        return None
    facts = session.head.facts
    usable = usable_tools(facts)  # of a child that was given some by name: those, and no others
    names = [name for name in registry.names if usable is None or name in usable]
    resolved = {name: registry.resolve(name) for name in names}
    every = {name: tool.binding for name, tool in resolved.items() if tool is not None}
    wanted = wanted_in(facts) if "tools" in facts else every
    bound = await bind(registry, wanted, session)
    return None if bound.is_in(facts) else bound.fact


async def returned(registry: ToolRegistry | None, session: Handle) -> Fact | None:
    """The record of binding the optional tools that the session lacks and that are there again;
    None if none is. Whatever else is bound stays as it is."""
    facts = session.head.facts
    lacking = degraded_in(facts)
    if registry is None or not any(_might_bind(registry, *each) for each in lacking.items()):
        return None
    bound = await bind(
        registry, {name: {**kept, "required": False} for name, kept in lacking.items()}, session
    )
    if not bound.tools:
        return None
    bound.tools = {**{name: dict(kept) for name, kept in tools_in(facts).items()}, **bound.tools}
    return bound.fact


def wanted_in(facts: Facts) -> dict[str, Mapping[str, Any]]:
    """Return the bindings that a session has, and those that it lacks."""
    return {**degraded_in(facts), **tools_in(facts)}


def _might_bind(registry: ToolRegistry, name: str, kept: Mapping[str, Any]) -> bool:
    """True if the tool, or one that may stand in for it, is registered. It does not ask if the
    caller may use it."""
    if registry.resolve(name, kept.get("version")) is not None:
        return True
    return any(registry.resolve(other) is not None for other in kept.get("substitutes", ()))


class ToolUse:
    """The use of tools by one session, tied to what it has bound.

    A tool is known by the name that it is bound by, also if another stands in for it. `registry` is
    what this process has of the app's tools: without one, the binding alone counts.
    """

    def __init__(self, session: Handle, registry: ToolRegistry | None) -> None:
        self._session, self._registry = session, registry

    def denial(self, name: str) -> str | None:
        """Return why the session's binding does not have this tool; None if it has."""
        facts, writer = self._session.head.facts, writer_of(self._session)
        usable = usable_tools(facts)
        if usable is None:
            return None
        own = own_tools(writer, facts)
        if name in usable:
            if own is None or name in own:
                return None
            return f"the session keeps it from {acting_agent(writer)}"
        if name in degraded_in(facts):
            return "the session was bound without it: it was not available, or not authorized"
        return "the session has not bound it"

    def is_bound(self, name: str) -> bool:
        """True if the session has tools bound, and this one."""
        return name in (usable_tools(self._session.head.facts) or ())

    async def check_circuit(self, name: str) -> None:
        """Raise ToolDenied while the app's circuit of this tool is open."""
        journal = writer_of(self._session).journal
        switches = await store_checkpoints(journal).switches(self._session.app)
        if (switch := switches.tools.get(name)) is not None and switch.is_open(journal.now_us()):
            raise ToolDenied(name, "its circuit is open: it is switched off for now")

    async def check(self, name: str) -> None:
        """Raise ToolDenied if the session has tools bound, and not this one, or its caller is not
        authorized now; RequiredToolUnavailable if this process has no version that fits."""
        if (why := self.denial(name)) is not None:
            raise ToolDenied(name, why)
        if (guard := writer_of(self._session).services.guard) is not None:
            await self._check_access(guard, name)
        if self._registry is None:
            return
        kept = tools_in(self._session.head.facts).get(name)
        if kept is None:
            tool = self._registry.resolve(name)
        else:
            used = kept.get("as", name)
            version = kept.get("as_version" if "as" in kept else "version")
            if (tool := self._registry.resolve(used, version)) is None:
                raise RequiredToolUnavailable(self._session.key, name)
        if tool is not None and (why := await self._registry.refusal(tool, self._session)):
            raise ToolDenied(name, why)

    async def _check_access(self, guard: Guard, name: str) -> None:
        from limpet.security.access import Resource

        key, head = self._session.key, self._session.head
        try:
            await guard.check("tool", Resource("tool", key.app, key.user, key.id, name, head))
        except AccessDenied as error:
            policy = "" if error.policy is None else f" by {error.policy}"
            raise ToolDenied(name, f"{error.denial}{policy}") from error

    def is_exclusive(self, name: str) -> bool:
        """True if one session at a time may use the tool."""
        return bool(tools_in(self._session.head.facts).get(name, EMPTY).get("exclusive"))


def _check_function(name: str, function: Callable[..., Any] | None) -> None:
    """Raise ToolInvalid for a generator function, sync or async: a tool has one result."""
    called: list[Any] = [function, getattr(function, "__call__", None)]  # noqa: B004  # an object's
    for kind, is_kind in _GENERATORS.items():
        if any([is_kind(each) for each in called]):
            why = f"is {kind}, and a tool has one result. Return it instead of yielding"
            raise ToolInvalid(name, why)


class HeldTool:
    """An exclusive tool in use. A process that stood still may have lost it without a sign, so it
    looks at its own clock, from before the lock was taken, and where that is in doubt asks the
    store."""

    def __init__(self, key: Key, name: str, leases: Leases, lease: Lease, since_ns: int) -> None:
        self._of, self._leases, self._lease = (key, name), leases, lease
        self._until_ns = since_ns + round(lease.lease_seconds * 1e9)

    async def renew(self) -> None:
        """Renew the lock until cancelled."""
        while True:
            await asyncio.sleep(self._lease.lease_seconds / 3)
            with suppress(LimpetError):
                await self._renewed()

    async def check(self) -> None:
        """Return while the tool is held; raise ToolLocked if another session may have it."""
        while steady_ns() >= self._until_ns:  # again: it may have stood still meanwhile
            if not await self._renewed():
                raise ToolLocked(*self._of, self._lease.until)

    async def _renewed(self) -> bool:
        since_ns = steady_ns()
        (renewed,) = await self._leases.renew([self._lease], None)
        if isinstance(renewed, Lease):
            self._until_ns = since_ns + round(renewed.lease_seconds * 1e9)
        return isinstance(renewed, Lease)


class ToolLocks:
    """Locks of one session on exclusive tools."""

    def __init__(self, session: Handle) -> None:
        self._session = session
        self._documents = Internal(writer_of(session).journal, COLLECTION)
        self._worker = f"session:{session.head.uid}"

    async def lock(self, name: str, seconds: float) -> Lease:
        """Hold the tool for `seconds`. Raises ToolLocked if another session does."""
        document = self._name(name)
        with suppress(DocumentConflict):
            await self._documents.put(document, {"tool": document}, expect=0, actor=_ACTOR)
        try:
            return await self._leases.acquire(self._documents.key(document), self._worker, seconds)
        except SessionLocked as error:
            raise ToolLocked(self._session.key, name, error.until) from error

    @asynccontextmanager
    async def held(self, name: str) -> AsyncIterator[HeldTool]:
        """Hold the tool while it is used, however long that takes. Raises ToolLocked.

        A lock that this session has taken with `lock` stays when the use is over.
        """
        since_ns = steady_ns()
        own = await self._own(name)
        lease = await self.lock(name, LOCK_SECONDS) if own is None else own
        held = HeldTool(self._session.key, name, self._leases, lease, since_ns)
        renewing = asyncio.ensure_future(held.renew())
        try:
            yield held
        finally:
            renewing.cancel()
            await asyncio.wait([renewing])
            if own is None:
                with suppress(LimpetError):  # it expires
                    await self._leases.release(lease)

    async def _own(self, name: str) -> Lease | None:
        """The lock that this session holds by now, for as long as a use may take at least."""
        key = self._documents.key(self._name(name))
        store = writer_of(self._session).journal.store
        try:
            head = (await store.load(key, tail=0, scopes=False)).head
        except SessionError:  # nobody has ever locked it
            return None
        if head.worker != self._worker or head.lease_us is None or head.leased_us is None:
            return None
        seconds = max(LOCK_SECONDS, (head.lease_us - head.leased_us) / 1_000_000)
        mine = Lease(key, self._worker, head.fence, head.lease_us, seconds, uid=head.uid)
        (renewed,) = await self._leases.renew([mine], None)
        return renewed if isinstance(renewed, Lease) else None

    async def release_all(self) -> tuple[str, ...]:
        """Release every exclusive tool that this session holds; return their names."""
        bound = tools_in(self._session.head.facts)
        released = []
        for name in [name for name, kept in bound.items() if kept.get("exclusive")]:
            with suppress(SessionError):  # another's, or never locked
                key = self._documents.key(self._name(name))
                lease = await self._leases.acquire(key, self._worker, 1)
                await self._leases.release(lease)
                released.append(name)
        return tuple(released)

    @property
    def _leases(self) -> Leases:
        store = writer_of(self._session).journal.store
        if not isinstance(store, Leases):
            raise InvalidInput("this store does not support leases, which locks on tools need.")
        return store

    def _name(self, tool: str) -> str:
        """Return the lock's name, by the tool that is really used, which may be a substitute."""
        used = tools_in(self._session.head.facts).get(tool, EMPTY).get("as", tool)
        return f"{name_part(self._session.app)}/{name_part(used)}"


class SessionTools:
    """The tools that a session has bound: `s.tools`."""

    __slots__ = ("_session",)

    def __init__(self, session: Handle) -> None:
        self._session = session

    @property
    def bound(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the bound tools by name: version, required, permission and so on. An agent with
        tools of its own sees those."""
        writer = writer_of(self._session)
        facts = writer.known.head.facts
        own, tools = own_tools(writer, facts), tools_in(facts)
        if own is None:
            return tools
        return FrozenDict({name: kept for name, kept in tools.items() if name in own})

    async def bind(
        self,
        registry: ToolRegistry,
        *names: str,
        actor: str | None = None,
    ) -> Mapping[str, Mapping[str, Any]]:
        """Bind these tools of a registry, or all of them; return the bindings, which replace the
        old ones.

        From then on the turns of this session use these tools and no others. Raises
        RequiredToolUnavailable, ToolAuthorizationFailed: nothing is bound then. Optional tools that
        cannot be bound are left out, and bound when they are there again.
        """
        check_bindable(registry, names)
        await writer_of(self._session).load(tail=20)
        tools = {name: registry.resolve(name) for name in names or registry.names}
        wanted = {name: {} if tool is None else tool.binding for name, tool in tools.items()}
        bound = await bind(registry, wanted, self._session)
        by = writer_of(self._session).actor_or_none(actor) or LIFECYCLE_ACTOR
        await self._session.record(bound.fact, actor=by)
        return self.bound

    async def lock(self, name: str, *, seconds: float = 30) -> Lease:
        """Lock an exclusive tool until the lease ends, is released, or the session is suspended;
        return the lease.

        Release it with lp.work.release(lease). Raises ToolLocked if another session holds it.
        """
        if not self.bound.get(name, {}).get("exclusive"):
            raise InvalidInput(f"{name!r} is not bound as an exclusive tool. Bind it first.")
        locks = ToolLocks(self._session)
        return await locks.lock(name, check_lease_seconds(seconds))


def _is_compatible(version: SchemaVersion, wanted: SchemaVersion) -> bool:
    return version.major == wanted.major and version >= wanted
