"""The briefing: what an agent is given when its session is resumed.

Role, restored state, what was retrieved again, and a summary of its memory, as one value and as one
text within a token budget. The session's messages are not in it: see `s.context`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from limpet.model import EMPTY
from limpet.session.life.memory import Remembered
from limpet.session.life.retrieval import Evidence

ENTRIES_MAX: Final = 20  # of each layer: the summary of it
_CHARS_PER_TOKEN: Final = 4


class Briefing(msgspec.Struct, frozen=True):
    """What a resumed session begins with. `str(briefing)` is the text for a system prompt."""

    role: str | None = None
    state: Mapping[str, Any] = EMPTY
    evidence: Mapping[str, Evidence] = EMPTY
    memory: Mapping[str, tuple[Remembered, ...]] = EMPTY  # by layer, in the order of its list
    tokens: int | None = None  # what the text may take

    def text(self, tokens: int | None = None, count: Callable[[str], int] | None = None) -> str:
        """The parts in order, as many whole lines as fit; `count` says how many tokens a text has.

        The role is always in it. Then come the state, the evidence and the memory.
        """
        most, count = self.tokens if tokens is None else tokens, count or _estimate
        lines = [] if self.role is None else [self.role]
        used, left_out = sum(map(count, lines)), 0
        for line in self._lines():
            used += count(line)
            if most is not None and used > most:
                left_out += 1
            else:
                lines.append(line)
        if left_out:
            lines.append(f"({left_out} lines were left out: the token budget is used up.)")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    def _lines(self) -> list[str]:
        lines = ["State:"] if self.state else []
        lines += [f"- {name}: {_shown(value)}" for name, value in self.state.items()]
        lines += ["Evidence:"] if self.evidence else []
        for each in self.evidence.values():
            lines.append(f"- {_shown(each.query)}: {_shown(each.value)} ({each.source})")
        for layer, entries in self.memory.items():
            lines += [f"Memory, {layer}:"] if entries else []
            lines += [f"- {entry.name}: {_shown(entry.value)}" for entry in entries]
        return lines


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _estimate(text: str) -> int:
    return -(-len(text) // _CHARS_PER_TOKEN)
