"""Agents and what they share: definitions, environments, resources, permissions, vaults.

All of them are documents, each version kept. A session keeps the version of its agent.
"""

from __future__ import annotations

from typing import Any

from limpet.model.facts.running.budgets import Budget, budget_of, granted
from limpet.session.documents import Documents, versioned
from limpet.session.runs.permissions import Permissions
from limpet.session.runs.promoting import Promoting
from limpet.session.runs.vaults import Vaults


class Agents(Promoting):
    """What sessions of an agent have in common."""

    @property
    def agents(self) -> Documents:
        """Definitions of agents: lp.create(…, agent="support@3") runs version 3."""
        return Documents(self._journal, "agents")

    @property
    def environments(self) -> Documents:
        """Where agents run."""
        return Documents(self._journal, "environments")

    @property
    def resources(self) -> Documents:
        """What sessions work on: where it is, and whether they may change it."""
        return Documents(self._journal, "resources")

    @property
    def permissions(self) -> Permissions:
        """Which tools may be used: {"tools": {"refund": "always_ask", "*": "deny"}}."""
        return Permissions(self._journal, "permissions")

    @property
    def vaults(self) -> Vaults:
        """References to secrets, as in {"stripe": "env:STRIPE_KEY"}; never the secrets."""
        return Vaults(self._journal, "vaults")

    async def _set_up(
        self, agent: str | None, environment: str | None, budget: Budget | float | None
    ) -> dict[str, Any]:
        """What a session is created with beside its state, by version."""
        setup: dict[str, Any] = {}
        if agent is not None:
            setup["agent"] = await versioned(self.agents, agent)
        if environment is not None:
            setup["environment"] = await versioned(self.environments, environment)
        if budget is not None:
            setup["budget"] = granted(budget_of(budget)).data
        return setup
