"""Creating a session: what it begins with, and the first event that records it.

It begins with a dict, a State, or an Envelope from elsewhere. Whichever it is, the creation records
plain fields and the schema version they follow, if they follow one: a later load with a class then
knows whether it may read them as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from limpet.errors import InvalidInput
from limpet.model import EMPTY, Commit, DefaultActor, Fact, Prepared, scope_of
from limpet.model.facts.creation import created
from limpet.model.facts.isolation import InheritedIsolation, Isolation
from limpet.model.facts.phases import ACTIVE, Phase
from limpet.model.facts.running.budgets import Budget, budget_of, granted
from limpet.model.facts.running.setup import attached
from limpet.model.facts.timeouts import Timeouts
from limpet.session.arguments import check_actor, check_flag, check_untyped, own_key
from limpet.session.documents import Documents, asked_version, versioned
from limpet.session.journal import Journal
from limpet.session.services import Services
from limpet.session.session import Session
from limpet.session.writer import writer_of

if TYPE_CHECKING:
    from limpet.model.envelope.record import Envelope
    from limpet.model.state.migrations import MigrationRegistry
    from limpet.model.state.state import State
    from limpet.session.schema.typed import Typed

Begin: TypeAlias = "Mapping[str, Any] | Envelope | State"


class Beginning(msgspec.Struct, frozen=True):
    """The first fields of a session, the version they follow, and the class they are seen by."""

    fields: Mapping[str, Any]
    schema_version: str | None = None
    typed: Any = None  # a Typed, which is not imported before it is needed
    field_policies: Mapping[str, Any] = EMPTY


class Creation(msgspec.Struct, frozen=True):
    """A session that is to be created: the object, its first event, and its fields and version."""

    session: Session[Any]
    draft: Prepared
    begins: Beginning
    reuse: bool

    def commit(self, more: tuple[Prepared, ...] = ()) -> Commit:
        """The commit that creates it, with further events of its own."""
        return Commit(self.session.key, (self.draft, *more), 0, reuse=self.reuse)

    def drafts_with(self, journal: Journal, fact: Fact | None) -> tuple[Prepared, ...]:
        """Its first event, and a fact beside it, by who creates it."""
        more = () if fact is None else (journal.prepare(fact, self.draft.actor),)
        return (self.draft, *more)


def creation(
    services: Services,
    app: str,
    user: str,
    id: str | None,
    *,
    state: Begin,
    labels: Mapping[str, str] | None,
    actor: str | None,
    migrations: MigrationRegistry | None,
    untyped: bool,
    reuse_deleted: bool,
    phase: Phase = ACTIVE,
    timeouts: Timeouts | None = None,
    setup: Mapping[str, Any] = EMPTY,
    isolation: Isolation | InheritedIsolation | None = None,
    field_policies: Mapping[str, Any] = EMPTY,
) -> Creation:
    """Check everything that has to hold before a session is created. Raises InvalidInput.

    `field_policies` are those of a state without a class."""
    journal = services.journal
    key = own_key(app, user, journal.new_id() if id is None else id)
    bound = check_actor(actor)
    check_flag("reuse_deleted", reuse_deleted)
    begins = beginning(state, migrations)
    draft = created(
        key,
        labels=EMPTY if labels is None else labels,
        schema_version=begins.schema_version,
        fields=begins.fields or EMPTY,
        phase=phase,
        limits=_timeouts_of(services, key.app) if timeouts is None else timeouts,
        setup=setup,
        isolation=isolation,
        field_policies=begins.field_policies or field_policies,
    )
    by = DefaultActor(f"user:{key.user}") if actor is None else actor
    prepared = journal.prepare(draft, by)
    if begins.typed is not None:
        check_untyped(untyped=untyped)
    session: Session[Any] = Session(services, key, actor=bound, typed=begins.typed, untyped=untyped)
    writer_of(session).known.check_temp((prepared,))
    return Creation(session, prepared, begins, reuse_deleted)


async def learn_switches(services: Services, app: str) -> None:
    """Read the switches that a new session of this app may follow, if there are such."""
    from limpet.session.history.checkpoints import store_checkpoints

    declared = services.lifecycle(app).timeouts if isinstance(app, str) else None
    if declared is not None and declared.idle is not None:
        await store_checkpoints(services.journal).switches(app)


def _timeouts_of(services: Services, app: str) -> Timeouts | None:
    """The timeouts of an app's new sessions: those of its lifecycle, the idle timeout as long as it
    is switched."""
    from limpet.session.history.checkpoints import store_checkpoints

    declared = services.lifecycle(app).timeouts
    if declared is None or declared.idle is None:
        return declared
    switched = store_checkpoints(services.journal).known_switches(app).idle_seconds
    idle = min(timedelta(seconds=switched), declared.idle_max or timedelta.max)
    return declared if idle <= declared.idle else msgspec.structs.replace(declared, idle=idle)


def beginning(state: Begin, migrations: MigrationRegistry | None) -> Beginning:
    """The beginning that `state` stands for. Raises SchemaViolation, InvalidInput."""
    if not is_plain(state):
        from limpet.session.schema.typed import Typed, encoded

        fields, version = encoded(state)
        typed: Typed[Any] = Typed(type(state), migrations)
        typed.trust()
        return Beginning(fields, version, typed, typed.field_policies)
    if migrations is not None:
        raise InvalidInput(
            "migrations need typed state. Create the session without them, then load it with "
            "get(key, state_type=MyState, migrations=registry)."
        )
    if isinstance(state, Mapping):
        return Beginning(state)
    return _unpacked(state)  # type: ignore[arg-type]  # plain and no dict: an envelope


def is_plain(state: Begin) -> bool:
    """True if a session that begins with this is seen without a class."""
    if isinstance(state, Mapping):
        return True
    from limpet.model.envelope.record import Envelope

    return isinstance(state, Envelope)


def _unpacked(envelope: Envelope) -> Beginning:
    """Its fields under its version. An envelope is of one session: what others share is refused."""
    for name in envelope.fields:
        if scope_of(name) != "session":
            raise InvalidInput(
                f"the envelope holds {name!r}, which is not one of the session's own fields. Take "
                "such names out before it is encoded, as s.envelope() does."
            )
    from limpet.model.state.migrations import SchemaVersion

    version = envelope.schema_version
    # As a session may have it: an envelope may also name a pre-release, which no load could read.
    return Beginning(
        envelope.fields, None if version is None else str(SchemaVersion.parse(version))
    )


class SetUp(msgspec.Struct, frozen=True):
    """The setup of a new session: documents by version and a budget, in its first event; and the
    resources and vaults of its agent, in a second one."""

    first: Mapping[str, Any]
    attached: Fact | None = None


async def set_up(
    journal: Journal, agent: str | None, environment: str | None, budget: Budget | float | None
) -> SetUp:
    """Return what a session is created with beside its state. Raises DocumentNotFound, InvalidInput
    if the definition of the agent names no documents where it should."""
    setup: dict[str, Any] = {}
    fact = None
    if agent is not None:
        definition = await asked_version(Documents(journal, "agents"), agent)
        setup["agent"] = f"{definition.name}@{definition.version}"
        fact = await _attached(journal, setup["agent"], definition.value)
    if environment is not None:
        setup["environment"] = await versioned(Documents(journal, "environments"), environment)
    if budget is not None:
        setup["budget"] = granted(budget_of(budget)).data
    return SetUp(setup, fact)


async def _attached(journal: Journal, agent: str, definition: Any) -> Fact | None:
    """The resources and vaults that the definition of an agent names, in their versions."""
    named: dict[str, list[str]] = {}
    for kind in ("resources", "vaults"):
        names = definition.get(kind) if isinstance(definition, Mapping) else None
        if names is None:
            continue
        if not isinstance(names, list) or not all([isinstance(n, str) and n for n in names]):
            raise InvalidInput(
                f"the definition {agent} has {kind} that are not a list of names, as in "
                f"{{'{kind}': ['repo', 'wiki@2']}}. Put the definition again in that form."
            )
        named[kind] = [await versioned(Documents(journal, kind), name) for name in names]
    if not any(named.values()):
        return None
    return attached(resources=named.get("resources"), vaults=named.get("vaults"))
