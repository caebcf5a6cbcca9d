"""Scores and feedback: what was judged of a session, one turn of it or one tool call, and when to
step in.

None of these changes what a session does: feedback is an input that begins no turn. A score may
also be recorded after the end of a session, when most judgements are made; an intervention is
suggested at most once.
"""

from __future__ import annotations

import math
from typing import Any, Final

from limpet.errors import InvalidEvent
from limpet.model.events import Fact
from limpet.model.keys import unfit
from limpet.model.limits import ID_CHARS_MAX, NAME_CHARS_MAX
from limpet.model.values import described

FEEDBACK: Final = "user.feedback"
SCORED: Final = "session.scored"
INTERVENTION: Final = "session.intervention_suggested"
_NOTE_CHARS_MAX: Final = 1_000


def scored(
    name: str,
    value: float,
    *,
    turn: str | None = None,
    call: str | None = None,
    note: str | None = None,
    actor: str | None = None,
    id: str | None = None,
) -> Fact:
    """The session, a turn (its id) or a tool call (its request id) has this score, from 0 to 1.

    Raises InvalidEvent.
    """
    if why := unfit(name, NAME_CHARS_MAX):
        raise InvalidEvent(f"the name of a score {why}")
    if type(value) not in (int, float) or not (math.isfinite(value) and 0 <= value <= 1):
        raise InvalidEvent(f"a score is a number from 0 to 1, not {described(value)}")
    if turn is not None and call is not None:
        raise InvalidEvent("a score is of a turn or of a call: pass `turn` or `call`")
    data: dict[str, Any] = {"name": name, "value": value}
    for member, of in (("turn", turn), ("call", call)):
        if of is not None:
            if why := unfit(of, ID_CHARS_MAX):
                raise InvalidEvent(f"the {member} of a score {why}")
            data[member] = of
    if note is not None:
        if not isinstance(note, str) or len(note) > _NOTE_CHARS_MAX:
            raise InvalidEvent(f"a note is a text of up to {_NOTE_CHARS_MAX:,} characters")
        data["note"] = note
    return Fact(type=SCORED, data=data, actor=actor, id=id)


def intervention_suggested(
    id: str, satisfaction: float, threshold: float, model: int, *, actor: str | None = None
) -> Fact:
    """The predicted satisfaction fell below the threshold: somebody should step in."""
    data = {"satisfaction": satisfaction, "threshold": threshold, "model": model}
    return Fact(type=INTERVENTION, data=data, id=id, actor=actor)
