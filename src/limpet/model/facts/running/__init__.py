"""Facts of running: wakes, steps, effects, requests, revisits, children, budgets."""

from limpet.model.facts.running.budgets import (
    RETURNED,
    Budget,
    BudgetView,
    Share,
    Usage,
    reservations,
    settled,
)
from limpet.model.facts.running.children import CHILD_RELEASED, children_in
from limpet.model.facts.running.requests import (
    ANSWERS,
    CONFIRMATION,
    CUSTOM_RESULT,
    CUSTOM_TOOL_USE,
    TOOL_RESULT,
    TOOL_USE,
    Request,
    asked,
    open_requests,
    requests_in,
)
from limpet.model.facts.running.revisits import (
    REVISIT_SET,
    TIMERS_TAKEN,
    Revisit,
    RevisitPriority,
    revisit_set,
    revisits_of,
    timers_taken,
)
from limpet.model.facts.running.runs import INTERRUPT, Status, StopReason, run_in, turn_in
from limpet.model.facts.running.steps import FAILED, STEP, SUCCEEDED, effect_unknown

__all__ = [
    "ANSWERS",
    "CHILD_RELEASED",
    "CONFIRMATION",
    "CUSTOM_RESULT",
    "CUSTOM_TOOL_USE",
    "FAILED",
    "INTERRUPT",
    "RETURNED",
    "REVISIT_SET",
    "STEP",
    "SUCCEEDED",
    "TIMERS_TAKEN",
    "TOOL_RESULT",
    "TOOL_USE",
    "Budget",
    "BudgetView",
    "Request",
    "Revisit",
    "RevisitPriority",
    "Share",
    "Status",
    "StopReason",
    "Usage",
    "asked",
    "children_in",
    "effect_unknown",
    "open_requests",
    "requests_in",
    "reservations",
    "revisit_set",
    "revisits_of",
    "run_in",
    "settled",
    "timers_taken",
    "turn_in",
]
