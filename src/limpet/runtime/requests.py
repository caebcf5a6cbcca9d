"""Requests: a turn asks the outside, pauses, and goes on with the answer.

Each is answered once, and bound to the hash of what was asked: an approval is of that input alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet.errors import InvalidInput, ToolFailed, TurnMismatch
from limpet.model import Draft, canonical, settle
from limpet.model.facts.running.requests import TOOL_RESULT, Decision, RequestKind, asked
from limpet.model.limits import REQUESTS_MAX
from limpet.runtime.run import TurnRun
from limpet.runtime.turn_log import args_hash, identity, plain

Otherwise: TypeAlias = Literal["allow", "deny"]
DEADLINE_PASSED: Final = "the deadline passed"
DEADLINE_MAX: Final = timedelta(days=3_650)
SHOWN_BYTES_MAX: Final = 4 * 2**10  # of one value; a request has a bound
_BOUND: Final = (
    "approval",
    "unknown_effect",
)  # their answers let something be done: this input alone


class Approval(msgspec.Struct, frozen=True):
    """A person's answer. True if they allowed the action; `input` is what they allowed."""

    allow: bool
    note: str | None
    input: Any

    def __bool__(self) -> bool:
        return self.allow


async def approve(
    turn: TurnRun, name: str, input: Any, deadline: timedelta | None, otherwise: Otherwise | None
) -> Approval:
    """Ask whether this may be done; pause until somebody says, or the deadline does."""
    if otherwise not in (None, "allow", "deny"):
        raise InvalidInput(f"otherwise is 'allow' or 'deny', not {otherwise!r}.")
    if deadline is not None:
        if not isinstance(deadline, timedelta) or not timedelta(0) < deadline <= DEADLINE_MAX:
            days = DEADLINE_MAX.days
            raise InvalidInput(f"a deadline is a timedelta above 0 and up to {days:,} days.")
    elif otherwise is not None:
        raise InvalidInput("otherwise is what counts after a deadline: pass a deadline too.")
    input = settle(input, f"the input of {name!r}")
    occurrence = turn.records.occurrence("approve", name)
    before = turn.approved_before
    id = None if before is None else before(name, occurrence, args_hash(input))
    id = id or approval_id(turn.id, name, occurrence)
    more = {"deadline": deadline, "otherwise": otherwise == "allow"}
    id, data = await request(turn, id, "approval", name, input, occurrence=occurrence, **more)  # type: ignore[arg-type]
    allowed, note = _usable(turn, id, data)
    queue_result(turn, id, data, output={"allow": allowed, "note": note})
    return Approval(allowed, note, turn.records.asked[id].data["input"])


def approval_id(turn_id: str, name: str, occurrence: int) -> str:
    """The id of the request of an approval, before anything else stands for it."""
    return identity(turn_id, "approve", name, occurrence)


def _usable(turn: TurnRun, id: str, data: Mapping[str, Any]) -> tuple[bool, str | None]:
    """The answer to an approval, and its note, when it is used. A yes that is not used before the
    deadline has passed counts no more, unless the deadline itself would have said yes."""
    used = turn.records.events.get(f"{id}/result")  # by an earlier run: that stands
    output = turn.records.outcomes.get(id) if used is None else used.data.get("output")
    if isinstance(output, Mapping):
        return output.get("allow") is True, output.get("note")
    allowed, asked = data.get("allow") is True, turn.records.asked[id].data
    is_late = turn.now_us >= asked.get("deadline_us", turn.now_us + 1)
    if allowed and is_late and not asked.get("otherwise"):
        return False, DEADLINE_PASSED
    return allowed, data.get("note")


async def ask(turn: TurnRun, name: str, input: Any) -> Any:
    """Ask for something that only the outside knows. Raises ToolFailed if that is an error."""
    input = settle(input, f"the input of {name!r}")
    occurrence = turn.records.occurrence("ask", name)
    id = identity(turn.id, "ask", name, occurrence)
    id, data = await request(turn, id, "question", name, input, occurrence=occurrence)
    failed = data.get("is_error") is True
    queue_result(turn, id, data, output=data.get("output"), is_error=failed)
    if failed:
        raise ToolFailed(name, data.get("output"))
    return data.get("output")


async def request(
    turn: TurnRun,
    id: str,
    kind: RequestKind,
    name: str,
    input: Any,
    *,
    hashed: str | None = None,
    occurrence: int = 1,
    deadline: timedelta | None = None,
    otherwise: bool = False,
) -> tuple[str, Mapping[str, Any]]:
    """The request and the data of its answer. Asks, if that was not done, and pauses, if there is
    none.

    What a person allowed is one input. A turn that goes on with another one, although that is not
    what it recorded, asks again.
    """
    records = turn.records
    hashed = args_hash(input) if hashed is None else hashed
    id, replaced = records.newest.get(id, id), None
    records.reach("request", id)
    before = records.asked.get(id)
    if before is not None:
        recorded = before.data.get("input_hash", hashed)  # another system may have asked without
        hashes = (recorded, hashed)
        turn.check_same(f"the {kind}", name, occurrence, hashes, (before.data["input"], input))
        if kind in _BOUND and hashed != recorded:
            replaced, before = id, None
            id = identity(id, "instead", hashed)
    if before is None:
        await _room_for(turn, id)
        at_us = None if deadline is None else turn.now_us + deadline // timedelta(microseconds=1)
        draft = asked(
            id,
            kind,
            name,
            input,
            input_hash=hashed,
            deadline_us=at_us,
            otherwise=otherwise,
            replaces=replaced,
        )
        records.asking.add(id)
        try:
            (event,) = await turn.log.write(draft)
        finally:
            records.asking.discard(id)
        records.add(event)
        if id not in records.asked:  # the log has another event under this id
            why = "is recorded as something else"
            raise TurnMismatch(f"the {kind}", name, occurrence, why)
    if id not in records.answers:
        await turn.pauses.block(id)
    return id, records.answers[id]


async def _room_for(turn: TurnRun, id: str) -> None:
    """Return if the session may wait for one request more; else pause: the next run, after one of
    the others was answered, asks."""
    waiting = turn.records.waiting()
    if len(waiting) >= REQUESTS_MAX and id not in waiting:
        await turn.pauses.block(waiting[0])


def show_value(value: Any, most: int = SHOWN_BYTES_MAX) -> Any:
    """Return what a request of the runtime shows of a value: all of it, or its beginning, in
    `most` bytes also if every character of the text is escaped."""
    if len(raw := canonical(shown := plain(value))) <= most:
        return shown
    return f"{raw[: most // 2].decode(errors='ignore')}… ({len(raw):,} bytes)"


def decision_in(data: Mapping[str, Any]) -> Decision:
    """Return what a person decided about an unknown effect or a mismatch. Logs of earlier versions
    have a confirmation or an output instead."""
    if "decision" in data:
        decision: Decision = data["decision"]
        return decision
    if "output" in data:
        return "happened"
    return "run_again" if data.get("allow") is True else "give_up"


def queue_result(
    turn: TurnRun, id: str, data: Mapping[str, Any], *, output: Any = None, is_error: bool = False
) -> None:
    """Give the tool call its outcome, with whatever is recorded next."""
    if f"{id}/result" in turn.records.events:
        return
    shown = dict(data) if output is None else output
    result: dict[str, Any] = {"request_id": id, "output": shown}
    if is_error:
        result["is_error"] = True
    turn.log.queue(Draft(type=TOOL_RESULT, data=result, id=f"{id}/result"))
    turn.records.outcomes[id] = shown
