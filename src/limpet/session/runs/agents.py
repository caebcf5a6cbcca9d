"""Agents and what they share: definitions, environments, vaults, and what was learned.

All of them are documents, each version kept. A session keeps the version of its agent.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet.errors import DocumentConflict, InvalidInput
from limpet.model.facts.running.budgets import Budget, budget_of, granted
from limpet.model.limits import PAGE_MAX, UPDATE_TRIES_MAX
from limpet.session.arguments import check_actor
from limpet.session.documents import Document, Documents
from limpet.session.door import Door
from limpet.session.journal import Journal

LearningKind: TypeAlias = Literal["lesson", "correction", "error"]
KINDS: Final[tuple[LearningKind, ...]] = ("lesson", "correction", "error")
_TEXT_CHARS_MAX: Final = 2_000
_RUNTIME: Final = "system:runtime"


class Learning(msgspec.Struct, frozen=True):
    """Something that an agent has learned; `id` is the same for the same text."""

    id: str
    kind: LearningKind
    text: str


class Agents(Door):
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
    def vaults(self) -> Documents:
        """References to secrets. Put names here, never contents."""
        return Documents(self._journal, "vaults")

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

    async def learnings(self, agent: str) -> tuple[Learning, ...]:
        """What sessions of this agent have learned, each once."""
        found: list[Learning] = []
        documents, cursor = _learned(self._journal), None
        documents.key(agent)  # refuses what names no document
        while True:
            page = await documents.list(f"{agent}/", limit=PAGE_MAX, cursor=cursor)
            found += [msgspec.convert(dict(d.value), Learning) for d in page.items]
            cursor = page.cursor
            if cursor is None:
                return tuple(found)

    async def promote(
        self, agent: str, learning: Learning, *, actor: str | None = None
    ) -> Document:
        """Take a learning into the agent's curated memory: lp.memory_of(agent) shows it."""
        if not isinstance(learning, Learning):
            raise InvalidInput("promote takes a learning, as lp.learnings(agent) returns them.")
        documents, by = _curated(self._journal), check_actor(actor) or _RUNTIME
        for left in reversed(range(UPDATE_TRIES_MAX)):
            found = await documents.find(agent)
            entries = [] if found is None else [dict(e) for e in found.value["entries"]]
            if any([entry["id"] == learning.id for entry in entries]):
                assert found is not None
                return found
            entries.append(msgspec.structs.asdict(learning))
            value = {"entries": entries, "text": rendered(agent, entries)}
            expect = 0 if found is None else found.version
            try:
                return await documents.put(agent, value, expect=expect, actor=by)
            except DocumentConflict:
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def memory_of(self, agent: str) -> str:
        """The agent's MEMORY.md: what was promoted, by kind; empty if nothing was."""
        found = await _curated(self._journal).find(agent)
        return "" if found is None else str(found.value["text"])


def learning_of(kind: LearningKind, text: str) -> Learning:
    """Raises InvalidInput."""
    if kind not in KINDS:
        raise InvalidInput(f"a learning is a 'lesson', a 'correction' or an 'error', not {kind!r}.")
    if not isinstance(text, str) or not text.strip() or len(text) > _TEXT_CHARS_MAX:
        raise InvalidInput(f"what was learned is a text of 1 to {_TEXT_CHARS_MAX:,} characters.")
    text = " ".join(text.split())
    return Learning(sha256(f"{kind} {text.lower()}".encode()).hexdigest()[:32], kind, text)


async def learn(journal: Journal, agent: str, learning: Learning, actor: str) -> None:
    """Keep it, once for all sessions of the agent."""
    name, value = f"{agent}/{learning.id}", msgspec.structs.asdict(learning)
    with suppress(DocumentConflict):  # it was learned before
        await _learned(journal).put(name, value, expect=0, actor=actor)


async def versioned(documents: Documents, name: str) -> str:
    """`name@version`: the version that was asked for, or the newest. Raises DocumentNotFound."""
    base, _, version = name.partition("@")
    if version and not version.isdecimal():
        raise InvalidInput(f"{name!r} does not name a version: write it as in 'support@3'.")
    found = await documents.get(base, int(version) if version else None)
    return f"{base}@{found.version}"


def rendered(agent: str, entries: list[dict[str, Any]]) -> str:
    """Curated memory as Markdown, by kind."""
    lines = [f"# What {agent} has learned"]
    for kind in KINDS:
        texts = [entry["text"] for entry in entries if entry["kind"] == kind]
        if texts:
            lines += ["", f"## {kind.capitalize()}s", "", *[f"- {text}" for text in texts]]
    return "\n".join(lines) + "\n"


def _learned(journal: Journal) -> Documents:
    return Documents(journal, "learnings")


def _curated(journal: Journal) -> Documents:
    return Documents(journal, "curated")
