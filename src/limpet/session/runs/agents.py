"""Agents and what their sessions share: documents, and what was learned. A part of Limpet.

Definitions, environments, resources, permissions and vaults are documents, each version kept; a
session names the version of its agent. A learning is promoted into the agent's curated memory if
the gates hold. They are decided on one version of the session whose outcome counts, and the
promotion is recorded on that version: if the verdict changed meanwhile, they are decided again.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from limpet.errors import DocumentConflict, InvalidInput, SessionConflict
from limpet.model import UPDATE_TRIES_MAX, Commit
from limpet.model.facts.running.budgets import Budget, budget_of, granted
from limpet.session.arguments import AnyKey, check_actor, key_of
from limpet.session.documents import Document, Documents, commit_puts, versioned
from limpet.session.door import Door
from limpet.session.policies import StorePolicies
from limpet.session.runs import learnings
from limpet.session.runs.learnings import Gates, Learning
from limpet.session.runs.setup import Permissions, Vaults
from limpet.session.session import Session

_RUNTIME: Final = "system:runtime"


class Agents(Door):
    """The documents, learnings and memory that the sessions of an agent share."""

    @property
    def agents(self) -> Documents:
        """Definitions of agents: lp.create(…, agent="support@3") runs version 3."""
        return Documents(self._journal, "agents")

    @property
    def environments(self) -> Documents:
        """Descriptions of where agents run."""
        return Documents(self._journal, "environments")

    @property
    def resources(self) -> Documents:
        """Descriptions of what sessions work on: where it is, and whether they may change it."""
        return Documents(self._journal, "resources")

    @property
    def permissions(self) -> Permissions:
        """Which tools may be used, as in {"tools": {"refund": "always_ask", "*": "deny"}}."""
        return Permissions(self._journal, "permissions")

    @property
    def vaults(self) -> Vaults:
        """References to secrets, as in {"stripe": "env:STRIPE_KEY"}; never the secrets."""
        return Vaults(self._journal, "vaults")

    async def learnings(self, agent: str) -> tuple[Learning, ...]:
        """List what sessions of this agent have learned, each once."""
        return tuple(await learnings.all_learnings(self._journal, agent))

    async def promote(
        self,
        agent: str,
        learning: Learning,
        *,
        session: AnyKey | None = None,
        actor: str | None = None,
    ) -> Document:
        """Take a learning into the agent's curated memory: lp.memory_of(agent) shows it.

        Raises PromotionRefused unless the gates of the agent hold (lp.policies.gates). Those on an
        outcome are about `session`, which has to be one that learned it; it records the promotion.
        """
        if not isinstance(learning, Learning):
            raise InvalidInput("promote takes a learning, as lp.learnings(agent) returns them.")
        by = check_actor(actor) or _RUNTIME
        gates = await StorePolicies(self._journal).gates_of(agent)
        of = None if session is None else Session[Any](self._journal, key_of(session))
        for left in reversed(range(UPDATE_TRIES_MAX)):
            commits = await self._allowed(agent, learning, gates, of, by)
            found, put = await learnings.promotion(self._journal, agent, learning, by)
            if put is None:
                assert found is not None
                return found
            try:
                _, (document,) = await commit_puts(self._journal, commits, (put,))
                return document
            except (DocumentConflict, SessionConflict):  # either moved on: look again
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def memory_of(self, agent: str) -> str:
        """The agent's MEMORY.md: what was promoted, by kind; empty if nothing was."""
        documents = learnings.curated(self._journal)
        found = await documents.find(agent)
        read = None if found is None else documents.decoded(found, learnings.Curated)
        return "" if read is None else read.text

    async def _set_up(
        self, agent: str | None, environment: str | None, budget: Budget | float | None
    ) -> dict[str, Any]:
        """Resolve what a session is created with beside its state to versions."""
        setup: dict[str, Any] = {}
        if agent is not None:
            setup["agent"] = await versioned(self.agents, agent)
        if environment is not None:
            setup["environment"] = await versioned(self.environments, environment)
        if budget is not None:
            setup["budget"] = granted(budget_of(budget)).data
        return setup

    async def _allowed(
        self, agent: str, learning: Learning, gates: Gates, of: Session[Any] | None, by: str
    ) -> tuple[Commit, ...]:
        """Return what the session records, on the version it read. Raises PromotionRefused."""
        nobody = msgspec.structs.replace(learning, sessions=0)
        found = await learnings.find_learning(self._journal, agent, learning.id)
        counted, sources = (nobody, ()) if found is None else found
        reasons = [] if gates == Gates() else learnings.unmet_learning(gates, counted)
        if of is None:
            if gates.asks_for_outcome:
                reasons.append("its outcome counts, and no session= was given")
            learnings.refuse(agent, learning, reasons)
            return ()
        grade = await of.outcome.grade()
        outcome = of.outcome.current
        verdict = None if outcome is None else outcome.verdict
        reasons += learnings.unmet_outcome(gates, grade, verdict)
        if learnings.source(of.key) not in sources:
            reasons.append(f"session {of.key} has not learned it")
        learnings.refuse(agent, learning, reasons)
        fact = learnings.promoted(agent, learning, grade=grade, verdict=verdict)
        draft = self._journal.prepare(fact, by)
        return (Commit(of.key, (draft,), of.version, uid=of.head.uid),)
