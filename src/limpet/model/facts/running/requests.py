"""Requests: what a turn waits for from outside, each answered once.

A request is open from the event that asks until the first answer with its id. The head has its
kind, its deadline and the seq of that event; what was asked is the event's (see `texts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet.errors import InvalidEvent
from limpet.model.canonical import canonical
from limpet.model.events import Draft, to_time
from limpet.model.facts.view import NO_TEXTS, Changes, Facts, Moment, Texts
from limpet.model.limits import REQUEST_BYTES_MAX, REQUESTS_MAX
from limpet.model.values import EMPTY, FrozenDict

TOOL_USE: Final = "agent.tool_use"
CUSTOM_TOOL_USE: Final = "agent.custom_tool_use"
TOOL_RESULT: Final = "agent.tool_result"
CONFIRMATION: Final = "user.tool_confirmation"
CUSTOM_RESULT: Final = "user.custom_tool_result"
ANSWERS: Final = frozenset((CONFIRMATION, CUSTOM_RESULT))

# approval: may this be done; question: answered from outside; effect: was it done, do it again;
# mismatch: the harness takes another way than it took before.
RequestKind: TypeAlias = Literal["approval", "question", "effect", "mismatch"]


class Request(msgspec.Struct, frozen=True):
    """What a session waits for."""

    id: str
    kind: RequestKind
    name: str
    input: Any
    deadline: datetime | None = None


def asked(
    id: str,
    kind: RequestKind,
    name: str,
    input: Any,
    *,
    input_hash: str,
    deadline_us: int | None = None,
    otherwise: bool | None = None,
) -> Draft:
    """A request to the outside. Raises InvalidEvent if its input is too large."""
    if (size := len(canonical(input))) > REQUEST_BYTES_MAX:
        raise InvalidEvent(
            f"the input of {name!r} has {size:,} bytes, more than {REQUEST_BYTES_MAX:,}. Put it "
            "into a blob and pass its ref"
        )
    data: dict[str, Any] = {"request_id": id, "name": name, "input": input, "awaits": kind}
    data["input_hash"] = input_hash
    if kind != "question":
        data["permission"] = "ask"
    if deadline_us is not None:
        data |= {"deadline_us": deadline_us, "otherwise": bool(otherwise)}
    type = CUSTOM_TOOL_USE if kind == "question" else TOOL_USE
    return Draft(type=type, data=data, id=f"{id}/asked")


def requests_in(facts: Facts) -> FrozenDict:
    """The requests of the turn under way, answered ones too, by id."""
    found: FrozenDict = facts.get("requests", EMPTY)
    return found


def open_requests(facts: Facts, texts: Texts = NO_TEXTS) -> tuple[Request, ...]:
    """What the session waits for, in the order of asking; without `texts`, or where the event
    cannot be read, without a name and an input."""
    found = [(r.get("seq", 0), id, r) for id, r in requests_in(facts).items() if "answer" not in r]
    shown = []
    for seq, id, r in sorted(found, key=lambda each: int(each[0])):
        said = {**r, **texts.get(seq, EMPTY)}
        asked = (said.get("name", ""), said.get("input"), _time(r.get("deadline_us")))
        shown.append(Request(id, r["kind"], *asked))
    return tuple(shown)


def is_open(facts: Facts, id: str) -> bool:
    found = requests_in(facts).get(id)
    return found is not None and "answer" not in found


def deadline_us(facts: Facts, ids: Iterable[str]) -> int | None:
    """When the first of these is answered by default."""
    found = [requests_in(facts).get(id, EMPTY).get("deadline_us") for id in ids]
    return min([at_us for at_us in found if at_us is not None], default=None)


def overdue(facts: Facts, now_us: int) -> dict[str, bool]:
    """The open requests whose deadline has passed, and the answer that then stands."""
    return {
        id: bool(r["otherwise"])
        for id, r in requests_in(facts).items()
        if "answer" not in r and r.get("deadline_us", now_us + 1) <= now_us
    }


def fold_asked(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    kind, id = data.get("awaits"), data.get("request_id")
    if kind is None or not isinstance(id, str):
        return {}  # a tool that was used, and nothing is asked
    kept = {"kind": kind, "seq": at.seq}
    kept |= {n: data[n] for n in ("deadline_us", "otherwise") if n in data}
    return {"requests": FrozenDict({**requests_in(facts), id: FrozenDict(kept)})}


def fold_answer(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    id = data.get("request_id")
    if not isinstance(id, str) or not is_open(facts, id):
        return {}
    before = requests_in(facts)
    return {"requests": FrozenDict({**before, id: FrozenDict({**before[id], "answer": at.seq})})}


def check(before: Facts, after: Facts, data: Mapping[str, Any]) -> None:
    """Raise InvalidEvent if too many requests would be open: a head must stay small."""
    if len(open_requests(after)) > REQUESTS_MAX:
        raise InvalidEvent(f"the session would wait for more than {REQUESTS_MAX} requests")


def _time(at_us: int | None) -> datetime | None:
    return None if at_us is None else to_time(at_us)
