"""Promotion: what sessions have learned, taken into their agent's curated memory. A part of Limpet.

The gates are decided on one version of the session whose outcome counts, and the promotion is
recorded on that very version: a verdict that changed meanwhile is looked at again.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from limpet.errors import DocumentConflict, InvalidInput, SessionConflict
from limpet.model import UPDATE_TRIES_MAX, Commit
from limpet.session.arguments import AnyKey, check_actor, key_of
from limpet.session.documents import Document, commit_puts
from limpet.session.door import Door
from limpet.session.policies import StorePolicies
from limpet.session.runs import learnings
from limpet.session.runs.learnings import Gates, Learning
from limpet.session.session import Session

_RUNTIME: Final = "system:runtime"


class Promoting(Door):
    """What agents have learned, and what of it all of their sessions are shown."""

    async def learnings(self, agent: str) -> tuple[Learning, ...]:
        """What sessions of this agent have learned, each once."""
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
        by, gates = (
            check_actor(actor) or _RUNTIME,
            await StorePolicies(self._journal).gates_of(agent),
        )
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

    async def _allowed(
        self, agent: str, learning: Learning, gates: Gates, of: Session[Any] | None, by: str
    ) -> tuple[Commit, ...]:
        """What the session records, on the version that was looked at. Raises PromotionRefused."""
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
