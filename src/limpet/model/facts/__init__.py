"""Facts: the reserved events, and how they change the head.

One module per subject. It owns the constructor that returns a checked Fact, the fold that changes
the head, and the limit that a commit must keep. `head` dispatches through one static table. To add
a fact, add a module here, a row in that table, and tests.
"""

from limpet.model.facts.creation import created
from limpet.model.facts.inputs import pending, processed
from limpet.model.facts.labels import labeled
from limpet.model.facts.phases import ACTIVE, ARCHIVED, INIT, RESUMED, TERMINAL, Phase, PhaseEvent
from limpet.model.facts.priority import prioritized
from limpet.model.facts.schema import drafted, migrated
from limpet.model.facts.timeouts import Timeouts, timeouts_data, timeouts_set
from limpet.model.facts.timers import Timer, TimerKind, timer_cleared, timer_set, timers_in
from limpet.model.facts.tools import degraded_in, tools_bound, tools_in

__all__ = [
    "ACTIVE",
    "ARCHIVED",
    "INIT",
    "RESUMED",
    "TERMINAL",
    "Phase",
    "PhaseEvent",
    "Timeouts",
    "Timer",
    "TimerKind",
    "created",
    "degraded_in",
    "drafted",
    "labeled",
    "migrated",
    "pending",
    "prioritized",
    "processed",
    "timeouts_data",
    "timeouts_set",
    "timer_cleared",
    "timer_set",
    "timers_in",
    "tools_bound",
    "tools_in",
]
