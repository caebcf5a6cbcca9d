"""The report of a resumption: its five phases, what each found, and what was left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from limpet.model import EMPTY, Key
from limpet.session.life.briefing import Briefing
from limpet.session.life.retrieval import Evidence

StepName: TypeAlias = Literal["restore", "rehydrate", "rebind", "reconstruct", "verify"]


class Step(msgspec.Struct, frozen=True):
    """One phase of the protocol."""

    name: StepName
    seconds: float
    found: str


class Resumption(msgspec.Struct, frozen=True):
    """How a session was resumed. `print(report)` shows it."""

    key: Key
    steps: tuple[Step, ...]
    checkpoint: int
    version: int
    tools: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()  # optional tools that are not there any more
    substituted: Mapping[str, str] = EMPTY
    evidence: Mapping[str, Evidence] = EMPTY
    tokens_left: int | None = None
    memory: Mapping[str, int] = EMPTY
    warnings: tuple[str, ...] = ()
    fell_back: bool = False  # to an older full checkpoint, or to the file in a tier
    context: Briefing = Briefing()  # role, state, evidence and memory, for the agent

    @property
    def figures(self) -> dict[str, Any]:
        """What the record of the resumption holds."""
        figures: dict[str, Any] = {"checkpoint": self.checkpoint, "state_version": self.version}
        figures |= {"tools_bound": len(self.tools), "tools_degraded": len(self.degraded)}
        figures["evidence"] = len(self.evidence)
        if self.tokens_left is not None:
            figures["tokens_left"] = self.tokens_left
        return figures

    def __str__(self) -> str:
        lines = [f"resumed {self.key} from checkpoint {self.checkpoint}, version {self.version}"]
        lines += [f"  {s.name:<12}{s.seconds * 1_000:>8.1f} ms  {s.found}" for s in self.steps]
        lines += [f"  warning     {each}" for each in self.warnings]
        return "\n".join(lines)
