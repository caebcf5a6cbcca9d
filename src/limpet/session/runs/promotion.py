"""Promotion: what sessions have learned, taken into their agent's curated memory.

The gates are decided on one version of the session whose outcome counts, and the promotion is
recorded on that very version: a verdict that changed meanwhile is looked at again.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from limpet.errors import DocumentConflict, InvalidInput, SessionConflict
from limpet.model import Commit, DefaultActor, Key
from limpet.session.documents import Document, commit_puts
from limpet.session.journal import Journal, retrying
from limpet.session.policies import StorePolicies
from limpet.session.runs import learnings
from limpet.session.runs.learnings import Gates, Learning
from limpet.session.services import Services
from limpet.session.session import Session

_RUNTIME: Final = DefaultActor("system:runtime")


async def promote(
    services: Services,
    agent: str,
    learning: Learning,
    *,
    session: Key | None,
    actor: str | None,
) -> Document:
    """Take a learning into the agent's curated memory: see `Limpet.promote`."""
    if not isinstance(learning, Learning):
        raise InvalidInput("promote takes a learning, as lp.learnings(agent) returns them.")
    by, gates = actor or _RUNTIME, await StorePolicies(services).gates_of(agent)
    journal = services.journal
    of = None if session is None else Session[Any](services, session)

    async def attempt() -> Document:
        commits = await _allowed_commits(journal, agent, learning, gates, of, by)
        found, put = await learnings.promotion(journal, agent, learning, by)
        if put is None:
            assert found is not None
            return found
        _, (document,) = await commit_puts(journal, commits, (put,))
        return document

    return await retrying(attempt, DocumentConflict, SessionConflict)


async def _allowed_commits(
    journal: Journal, agent: str, learning: Learning, gates: Gates, of: Session[Any] | None, by: str
) -> tuple[Commit, ...]:
    """Return what the session records, on the version that was looked at. Raises
    PromotionRefused."""
    nobody = msgspec.structs.replace(learning, sessions=0)
    found = await learnings.find_learning(journal, agent, learning.id)
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
    draft = journal.prepare(fact, by)
    return (Commit(of.key, (draft,), of.version, uid=of.head.uid),)
