"""Requests: what a turn waits for from outside, each answered once.

A request is open from the event that asks until its first answer: by a person, by its deadline, or
by an interrupt or the end of the session, which answer all of them. A second answer is refused
inside its commit. The head has its kind, its deadline and the seq of the event that asks; what was
asked is the event's (see `fold`), so that what was approved is what runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet import errors
from limpet.errors import InvalidEvent
from limpet.model.events import Draft, to_time
from limpet.model.facts.view import NO_TEXTS, Changes, Facts, Moment, Texts
from limpet.model.keys import Key
from limpet.model.limits import REQUEST_BYTES_MAX, REQUESTS_MAX
from limpet.model.values import EMPTY, FrozenDict, canonical

TOOL_USE: Final = "agent.tool_use"
CUSTOM_TOOL_USE: Final = "agent.custom_tool_use"
TOOL_RESULT: Final = "agent.tool_result"
CONFIRMATION: Final = "user.tool_confirmation"
CUSTOM_RESULT: Final = "user.custom_tool_result"
RESOLUTION: Final = "user.resolution"
ANSWERS: Final = frozenset((CONFIRMATION, CUSTOM_RESULT, RESOLUTION))

# approval: may this be done; question: answered from outside; unknown_effect: nobody knows whether
# it was done; mismatch: the harness does not make the calls that it made before.
RequestKind: TypeAlias = Literal["approval", "question", "unknown_effect", "mismatch"]
WaitingKind: TypeAlias = RequestKind | Literal["promotion"]  # which no session waits for
StoredKind: TypeAlias = RequestKind | Literal["effect"]  # as unknown_effect was called before
# A person settles with one of these what only they can know.
Decision: TypeAlias = Literal["happened", "run_again", "give_up"]
# The type of answer that each kind takes, and the verb that records it.
ANSWERED_BY: Final[Mapping[RequestKind, tuple[str, str]]] = {
    "approval": (CONFIRMATION, "confirm(request_id, allow=…)"),
    "question": (CUSTOM_RESULT, "answer(request_id, output)"),
    "unknown_effect": (
        RESOLUTION,
        "resolve(request_id, happened=result | run_again=True | give_up=True)",
    ),
    "mismatch": (RESOLUTION, "resolve(request_id, run_again=True | give_up=True)"),
}
DECISIONS: Final[Mapping[str, tuple[Decision, ...]]] = {
    "unknown_effect": ("happened", "run_again", "give_up"),
    "mismatch": ("run_again", "give_up"),
}


class Request(msgspec.Struct, frozen=True):
    """An open request that a session waits on."""

    id: str
    kind: WaitingKind
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
    replaces: str | None = None,
) -> Draft:
    """A request to the outside. One that it `replaces` is not open any more.

    Raises InvalidEvent if its input is too large.
    """
    check_input(name, input)
    data: dict[str, Any] = {"request_id": id, "name": name, "input": input, "awaits": kind}
    data["input_hash"] = input_hash
    if kind != "question":
        data["permission"] = "ask"
    if deadline_us is not None:
        data |= {"deadline_us": deadline_us, "otherwise": bool(otherwise)}
    if replaces is not None:
        data["replaces"] = replaces
    type = CUSTOM_TOOL_USE if kind == "question" else TOOL_USE
    return Draft(type=type, data=data, id=asked_id(id))


def check_input(name: str, input: Any) -> None:
    """Raise InvalidEvent if it is too large: it is kept with the state until it is answered."""
    if (size := len(canonical(input))) > REQUEST_BYTES_MAX:
        raise InvalidEvent(
            f"the input of {name!r} has {size:,} bytes, more than {REQUEST_BYTES_MAX:,}. Put it "
            "into a blob and pass its ref"
        )


def asked_id(id: str) -> str:
    """The id of the event that asks: by it the log says whether a request was ever made."""
    return f"{id}/asked"


def requests_in(facts: Facts) -> FrozenDict:
    """The requests of the turn under way, answered ones too, by id."""
    fields: FrozenDict = facts.get("requests", EMPTY)
    return fields


def open_requests(facts: Facts, texts: Texts = NO_TEXTS) -> tuple[Request, ...]:
    """Return what the session waits for, in the order of asking; without `texts`, or where the
    event cannot be read, without a name and an input."""
    unanswered = [
        (r.get("seq", 0), id, r) for id, r in requests_in(facts).items() if "answer" not in r
    ]
    shown = []
    for seq, id, r in sorted(unanswered, key=lambda each: int(each[0])):
        said = {**r, **texts.get(seq, EMPTY)}
        asked = (said.get("name", ""), said.get("input"), _time(r.get("deadline_us")))
        shown.append(Request(id, kind_of(r), *asked))
    return tuple(shown)


def kind_of(request: Mapping[str, Any]) -> RequestKind:
    """The kind of a request in the head, also of one that an earlier version asked."""
    kind: StoredKind = request["kind"]
    return "unknown_effect" if kind == "effect" else kind


def is_open(facts: Facts, id: str) -> bool:
    request = requests_in(facts).get(id)
    return request is not None and "answer" not in request


def deadline_us(facts: Facts, ids: Iterable[str]) -> int | None:
    """Return when the first of these is answered by default."""
    deadlines = [requests_in(facts).get(id, EMPTY).get("deadline_us") for id in ids]
    return min([at_us for at_us in deadlines if at_us is not None], default=None)


def overdue(facts: Facts, now_us: int) -> dict[str, bool]:
    """The open requests whose deadline has passed, and the answer that then stands."""
    return {
        id: bool(r.get("otherwise"))
        for id, r in requests_in(facts).items()
        if "answer" not in r and r.get("deadline_us", now_us + 1) <= now_us
    }


def fold_asked(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    if data.get("awaits") is None:
        return {}  # a tool that was used, and nothing is asked
    before, id = requests_in(facts), data["request_id"]
    if id in before:
        return {}  # asked already: asking again does not take the answer back
    kept = {"kind": data["awaits"], "seq": at.seq}
    kept |= {n: data[n] for n in ("deadline_us", "otherwise") if n in data}
    after = {**before, id: FrozenDict(kept)}
    if (old := data.get("replaces")) is not None and is_open(facts, old):
        after[old] = _with_answer(before[old], at)
    return {"requests": FrozenDict(after)}


def fold_answer(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    id = data.get("request_id")
    if not isinstance(id, str) or not is_open(facts, id):
        return {}
    before = requests_in(facts)
    return {"requests": FrozenDict({**before, id: _with_answer(before[id], at)})}


def closed(facts: Facts, at: Moment) -> Changes:
    """An interrupt, or the end of the session, answers all of them. They are kept until the turn
    is over, so that a later answer is refused."""
    before = requests_in(facts)
    if not before:
        return {}
    after = {id: r if "answer" in r else _with_answer(r, at) for id, r in before.items()}
    return {"requests": FrozenDict(after)}


def check_answer(key: Key, before: Facts, type: str, data: Mapping[str, Any]) -> None:
    """Raise RequestAnswered if the request has its answer, RequestMismatch if it takes another
    kind of answer, InvalidEvent if that has no output. What names no request of the turn is an
    event like any other."""
    id = data.get("request_id")
    request = requests_in(before).get(id) if isinstance(id, str) else None
    if request is None:
        return
    if "answer" in request:
        raise errors.RequestAnswered(key, str(id))
    kind = kind_of(request)
    wanted, verb = ANSWERED_BY[kind]
    decision = data.get("decision")
    if type != wanted or (type == RESOLUTION and decision not in DECISIONS[kind]):
        raise errors.RequestMismatch(str(id), kind, f"s.{verb}")
    if decision == "happened" and "output" not in data:
        raise InvalidEvent("a resolution that says that an effect happened has its output")


def check(before: Facts, after: Facts, data: Mapping[str, Any]) -> None:
    """Raise InvalidEvent if it was asked already, or too many would be open: a head stays small."""
    if data.get("awaits") is not None and data["request_id"] in requests_in(before):
        raise InvalidEvent(f"the request {data['request_id']!r} was asked already")
    if data.get("awaits") is not None:
        check_input(data["name"], data["input"])
    if len(open_requests(after)) > REQUESTS_MAX:
        raise InvalidEvent(f"the session would wait for more than {REQUESTS_MAX} requests")


def _with_answer(request: FrozenDict, at: Moment) -> FrozenDict:
    return FrozenDict({**request, "answer": at.seq})


def _time(at_us: int | None) -> datetime | None:
    return None if at_us is None else to_time(at_us)
