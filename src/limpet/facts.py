"""limpet.facts: the facts about a session that you can record beside your own events.

await s.record(facts.labeled({"plan": "gold"}), facts.prioritized(5))

async with lp.commit() as c:
    c.append(s, "agent.message", {"text": "done"}, actor="agent:main")
    c.record(s, facts.processed([3]), facts.timer_cleared("reminder"))
"""

from limpet.model import Fact
from limpet.model.facts.inputs import processed
from limpet.model.facts.labels import labeled
from limpet.model.facts.priority import prioritized
from limpet.model.facts.scores import scored
from limpet.model.facts.timeouts import timeouts_set
from limpet.model.facts.timers import timer_cleared, timer_set

__all__ = [
    "Fact",
    "labeled",
    "prioritized",
    "processed",
    "scored",
    "timeouts_set",
    "timer_cleared",
    "timer_set",
]


def __dir__() -> list[str]:
    return __all__
