"""Learnings: what sessions of an agent have learned, and the gates to its curated memory.

A learning is a document of the agent, the same text once, and counts the sessions that learned it
(by a hash: erasing a user leaves no name behind). What is promoted is an item of the agent's
memory: see `promotion`.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet.errors import DocumentConflict, InvalidInput, PromotionRefused, SessionCorrupt
from limpet.model import Fact, Head, Key, name_part
from limpet.model.facts.outcomes import Grade, Verdict
from limpet.model.facts.running.setup import agent_in
from limpet.session.documents import Internal
from limpet.session.journal import Journal, retrying

LearningKind: TypeAlias = Literal["lesson", "correction", "error"]
KINDS: Final[tuple[LearningKind, ...]] = ("lesson", "correction", "error")
GRADES: Final[tuple[Grade, ...]] = (
    "missing",
    "blocked",
    "sleeping",
    "in_progress",
    "done_candidate",
)
VERDICTS: Final[tuple[Verdict, ...]] = ("fail", "not_ready", "uncertain", "pass")
PROMOTED: Final = "audit.learning_promoted"
_TEXT_CHARS_MAX: Final = 2_000
_SESSIONS_MAX: Final = 1_000  # of which a learning remembers that they learned it


class Learning(msgspec.Struct, frozen=True):
    """A lesson that an agent has learned; equal texts have the same `id`."""

    id: str
    kind: LearningKind
    text: str
    sessions: int = 1  # how many have learned it


class StoredLearning(msgspec.Struct, frozen=True):
    """A learning as the value of its document."""

    id: str
    kind: LearningKind
    text: str
    sources: tuple[str, ...] = ()


class Gates(msgspec.Struct, frozen=True):
    """Conditions that must hold before a learning is promoted. None and 1 require nothing.

    `grade` and `verdict` are minimums for the outcome of the session that learned it (missing <
    blocked < sleeping < in_progress < done_candidate; fail < not_ready < uncertain < pass).
    `sessions` is how many sessions must have learned it.
    """

    grade: Grade | None = None
    verdict: Verdict | None = None
    sessions: int = 1
    kinds: tuple[LearningKind, ...] = KINDS

    @property
    def asks_for_outcome(self) -> bool:
        """True if a gate asks for the outcome of a session."""
        return self.grade is not None or self.verdict is not None


def learning_of(kind: LearningKind, text: str) -> Learning:
    """Return the learning of a text, with its id. Raises InvalidInput."""
    if kind not in KINDS:
        raise InvalidInput(f"a learning is a 'lesson', a 'correction' or an 'error', not {kind!r}.")
    if not isinstance(text, str) or not text.strip() or len(text) > _TEXT_CHARS_MAX:
        raise InvalidInput(f"what was learned is a text of 1 to {_TEXT_CHARS_MAX:,} characters.")
    text = " ".join(text.split())
    return Learning(sha256(f"{kind} {text.lower()}".encode()).hexdigest()[:32], kind, text)


def check_gates(gates: Gates) -> Gates:
    """Return the gates. Raises InvalidInput if they are not valid."""
    if not isinstance(gates, Gates):
        raise InvalidInput("gates are a limpet.Gates, as in Gates(verdict='pass').")
    if gates.grade not in (None, *GRADES):
        raise InvalidInput(f"a grade is one of {', '.join(GRADES)}, not {gates.grade!r}.")
    if gates.verdict not in (None, *VERDICTS):
        raise InvalidInput(f"a verdict is one of {', '.join(VERDICTS)}, not {gates.verdict!r}.")
    if type(gates.sessions) is not int or not 1 <= gates.sessions <= _SESSIONS_MAX:
        raise InvalidInput(f"sessions is a number from 1 to {_SESSIONS_MAX:,}.")
    kinds = gates.kinds if isinstance(gates.kinds, (tuple, list)) else ()
    if not kinds or any([kind not in KINDS for kind in kinds]):
        raise InvalidInput(f"kinds are some of {', '.join(KINDS)}.")
    return gates


def unmet_outcome(gates: Gates, grade: Grade, verdict: Verdict | None) -> list[str]:
    """List the gates that an outcome does not pass, in words."""
    reasons = []
    if gates.grade is not None and GRADES.index(grade) < GRADES.index(gates.grade):
        reasons.append(f"the outcome is graded {grade}, and {gates.grade} is needed")
    if gates.verdict is not None and (
        verdict is None or VERDICTS.index(verdict) < VERDICTS.index(gates.verdict)
    ):
        state = "was not evaluated" if verdict is None else f"was evaluated as {verdict}"
        reasons.append(f"the outcome {state}, and {gates.verdict} is needed")
    return reasons


def unmet_learning(gates: Gates, learning: Learning) -> list[str]:
    """List the gates that a learning does not pass on its own, in words."""
    reasons = []
    if learning.kind not in gates.kinds:
        reasons.append(f"it is a {learning.kind}, and only {', '.join(gates.kinds)} may be")
    if learning.sessions < gates.sessions:
        reasons.append(f"{learning.sessions} of {gates.sessions} sessions have learned it")
    return reasons


def agent_of(head: Head) -> str:
    """Return the agent whose learnings a session shares: that of its setup, or its app."""
    return agent_in(head.key, head.facts)


async def learn(journal: Journal, agent: str, learning: Learning, of: Key, actor: str) -> Learning:
    """Keep it, once for all sessions of the agent, and that this session has learned it."""
    documents, mine = learned(journal), source(of)

    async def attempt() -> Learning:
        document = await documents.find(_name(agent, learning.id))
        known = None if document is None else documents.decoded(document, StoredLearning)
        sources = () if known is None else known.sources
        if known is not None and (mine in sources or len(sources) >= _SESSIONS_MAX):
            return _learning(known)
        made = StoredLearning(learning.id, learning.kind, learning.text, (*sources, mine))
        expect = 0 if document is None else document.version
        put = msgspec.to_builtins(made)
        await documents.put(_name(agent, learning.id), put, expect=expect, actor=actor)
        return _learning(made)

    return await retrying(attempt, DocumentConflict)  # another session learns it at this moment


def _learning(stored: StoredLearning) -> Learning:
    return Learning(stored.id, stored.kind, stored.text, max(1, len(stored.sources)))


async def all_learnings(journal: Journal, agent: str) -> list[Learning]:
    """List what sessions of this agent have learned, each once."""
    documents = learned(journal)
    documents.key(agent)  # refuses what names no document
    stored = documents.each(prefix_of(agent))
    read = [documents.decoded(document, StoredLearning) async for document in stored]
    return [_learning(each) for each in read if each is not None]


async def find_learning(
    journal: Journal, agent: str, id: str
) -> tuple[Learning, tuple[str, ...]] | None:
    """A learning, and by what the sessions are counted that learned it."""
    documents = learned(journal)
    document = await documents.find(_name(agent, id))
    read = None if document is None else documents.decoded(document, StoredLearning)
    return None if read is None else (_learning(read), read.sources)


def source(key: Key) -> str:
    """A hash by which a session is counted without naming it."""
    return sha256("\0".join((key.app, key.user, key.id)).encode()).hexdigest()[:16]


def promoted(agent: str, learning: Learning, *, grade: str, verdict: str | None) -> Fact:
    """This session's outcome let a learning into the agent's memory."""
    data: dict[str, Any] = {"agent": agent, "learning": learning.id, "grade": grade}
    return Fact(type=PROMOTED, data={**data, "verdict": verdict})


def refuse(agent: str, learning: Learning, reasons: list[str]) -> None:
    """Raise PromotionRefused if there are any."""
    if reasons:
        raise PromotionRefused(agent, learning.text, tuple(reasons))


def learned(journal: Journal) -> Internal:
    return Internal(journal, "learnings")


def gates_kept(journal: Journal) -> Internal:
    return Internal(journal, "gates")


async def gates_of(journal: Journal, agent: str) -> Gates:
    """Return what must hold before a learning of this agent is promoted."""
    documents = gates_kept(journal)
    document = await documents.find(agent)
    if document is None:
        return Gates()
    read = documents.decoded(document, Gates)
    if read is None:  # what cannot be read lets nothing through
        raise SessionCorrupt(
            documents.key(agent), "the gates cannot be read; set them again with lp.policies.gates"
        )
    return read


def prefix_of(agent: str) -> str:
    """The prefix of the names of this agent's learnings, and of no other agent's."""
    return f"{name_part(agent)}/"


def _name(agent: str, id: str) -> str:
    return prefix_of(agent) + id
