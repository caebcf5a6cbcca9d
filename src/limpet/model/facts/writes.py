"""Writes: which events a session accepts in a phase other than active."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from limpet.errors import SessionEnded, SessionSuspended
from limpet.model.facts.labels import LABELED
from limpet.model.facts.moves import MOVES
from limpet.model.facts.phases import (
    HOOK_FAILED,
    INIT,
    RESUMED,
    SUSPENDED,
    TERMINAL,
    TRANSITIONS,
    Phase,
)
from limpet.model.facts.priority import PRIORITIZED
from limpet.model.facts.relations import RELATED, UNRELATED
from limpet.model.facts.retention import RETENTION_SET
from limpet.model.facts.running import endings
from limpet.model.facts.running.budgets import (
    RETURNED as BUDGET_RETURNED,
    SETTLED as BUDGET_SETTLED,
)
from limpet.model.facts.running.children import CHILD_RELEASED, DELEGATION_ENDED
from limpet.model.facts.running.runs import (
    ERROR,
    OUTCOMES,
    REQUEUED,
    SPAN_COMPLETED,
    SPAN_STARTED,
    STATUS_CHANGED,
    STATUS_IDLE,
)
from limpet.model.facts.running.setup import TOOLS_BOUND
from limpet.model.facts.running.spawned import CHILD_DONE
from limpet.model.facts.schema import MIGRATED
from limpet.model.facts.scores import SCORED
from limpet.model.facts.shares import UNSHARED
from limpet.model.facts.timeouts import RENEWED, TIMEOUTS_SET
from limpet.model.facts.timers import TIMER_CLEARED, TIMER_SET
from limpet.model.keys import Key

REHYDRATED: Final = "session.rehydrated"
# In every phase: what is recorded about a transition, what the session is related to, where it
# moves, the ends of its spawned children, how it was judged, and who looked at what.
_ALWAYS: Final = frozenset(
    (CHILD_DONE, HOOK_FAILED, RELATED, SCORED, UNRELATED, UNSHARED, *TRANSITIONS, *MOVES)
)
_FAMILIES: Final = ("audit.", "checkpoint.")
_WAITING: Final = frozenset(
    (
        LABELED,
        TIMER_SET,
        TIMER_CLEARED,
        PRIORITIZED,
        RETENTION_SET,
        TIMEOUTS_SET,
        RENEWED,
        MIGRATED,
        BUDGET_RETURNED,  # by a child that has ended
        CHILD_RELEASED,
        DELEGATION_ENDED,  # of a child that is about to be deleted
        STATUS_CHANGED,  # in the commit that ends it
    )
)
# A run that was under way gives the session back: outcomes and ends, never a beginning.
_GIVEN_BACK: Final = frozenset((*OUTCOMES, SPAN_COMPLETED, BUDGET_SETTLED, ERROR, STATUS_IDLE))
_ACCEPTED: Final[Mapping[Phase, frozenset[str]]] = {
    SUSPENDED: _ALWAYS | _WAITING | _GIVEN_BACK,
    RESUMED: _ALWAYS | _WAITING | _GIVEN_BACK | {TOOLS_BOUND, REHYDRATED, "session.rewound"},
}
_ENDED: Final = _ALWAYS | {TIMEOUTS_SET, RETENTION_SET}  # how it is kept may still be decided
# Before it is archived, what was begun may be settled: outcomes and ends, never a beginning.
# Nothing here comes from a harness; effects are only ever undone.
_SETTLED: Final = frozenset(
    (
        *OUTCOMES,
        endings.COMPENSATING,
        endings.COMPENSATED,
        endings.NOT_COMPENSATED,
        endings.MAYBE_COMPENSATED,
        endings.CASCADED,
        endings.FINISHED,
        SPAN_STARTED,
        SPAN_COMPLETED,
        BUDGET_SETTLED,
        BUDGET_RETURNED,
        CHILD_RELEASED,
        DELEGATION_ENDED,
        ERROR,  # of a worker that died while it undid
        REQUEUED,
    )
)


def check_write(key: Key, phase: Phase, type: str, *, input: bool) -> None:
    """Raise SessionSuspended or SessionEnded if this phase does not accept the event.

    Whether a transition is one of the table is checked with its own fact.
    """
    if phase == INIT or type.startswith(_FAMILIES):
        return
    if phase in TERMINAL:
        if type not in _ENDED and (phase not in endings.ENDED or type not in _SETTLED):
            raise SessionEnded(key, phase)
    elif not input and type not in _ACCEPTED[phase]:
        raise SessionSuspended(key, phase)
