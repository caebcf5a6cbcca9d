"""The metrics of a session written down a second time: over the whole log at once, by definition.

Slow and plain on purpose. It shares no code with limpet.analytics: what the fold keeps in a running
state is found here by looking through the list of events again for each number.
"""

from __future__ import annotations

from math import ceil, log
from typing import Any

from limpet.model import Event

ENDS = ("session.completed", "session.terminated", "session.archived")
TRANSITIONS = (
    "session.activated",
    "session.suspended",
    "session.resumed",
    "session.reactivated",
    "session.unarchived",
    *ENDS,
)
ANSWERS = ("user.tool_confirmation", "user.custom_tool_result", "user.resolution")
NO_REQUEST = ("user.feedback", "user.define_outcome", "user.interrupt", *ANSWERS)


class Log:
    """A log, and every number that can be read from it."""

    def __init__(self, events: list[Event]) -> None:
        self.events = [event for event in events if event.data is not None]
        self.created_us = events[0].at_us

    def of(self, *types: str) -> list[Event]:
        return [event for event in self.events if event.type in types]

    def spans(self, end: str, kind: str) -> list[Event]:
        return [e for e in self.of(f"span.{end}") if e.data.get("kind") == kind]

    # --- turns -----------------------------------------------------------------------------------

    def requests(self) -> list[Event]:
        return [
            e
            for e in self.events
            if (
                e.type.startswith(("user.", "system."))
                or e.type == "session.child_ended"
                or e.processed is not None
            )
            and e.type not in NO_REQUEST
        ]

    def turns(self) -> list[tuple[int, int]]:
        """When each was asked for, and when it was over."""
        return sorted(self.runtime_turns() + self.plain_turns(), key=lambda turn: turn[1])

    def wakes(self) -> list[Event]:
        return [e for e in self.spans("started", "wake") if e.data.get("name") == "wake"]

    def taken(self) -> dict[int, int]:
        """By the seq of an input, the seq of the wake that took it first."""
        found: dict[int, int] = {}
        for wake in self.wakes():
            for seq in wake.data.get("inputs") or ():
                found.setdefault(seq, wake.seq)
        return found

    def overs(self) -> list[Event]:
        on = ("requires_action", "rescheduling", "retries_exhausted")
        return [
            e
            for e in self.of("session.status_idle")
            if e.data.get("stop_reason") not in on and e.data.get("needs") is None
        ]

    def answered(self) -> dict[int, int]:
        """By the seq of a request, that of the message outside of wakes that came next."""
        said = [
            e
            for e in self.of("agent.message")
            if e.wake_id is None
            and not (e.data.get("usage") and e.data.get("text") == "" and not e.data.get("content"))
        ]
        found = {}
        for request in self.requests():
            after = [e.seq for e in said if e.seq > request.seq]
            if after:
                found[request.seq] = after[0]
        return found

    def runtime_turns(self) -> list[tuple[int, int]]:
        turns = []
        at = {e.seq: e for e in self.requests()}
        answered = self.answered()
        last = 0
        for over in self.overs():
            inside = [w for w in self.wakes() if last < w.seq < over.seq]
            last = over.seq
            if not inside:
                continue
            # The turn of the last wake; it began with the first wake that had its id.
            turn = inside[-1].data["turn"]
            first = inside[-1]
            for one in reversed(inside):  # wakes of another turn between cut it
                if one.data["turn"] != turn:
                    break
                first = one
            gone = [s for w in self.wakes() if w.seq < first.seq for s in w.data["inputs"]]
            inputs = [
                at[s].at_us
                for s in first.data["inputs"]
                if s in at
                and s < first.seq
                and s not in gone
                and answered.get(s, first.seq) >= first.seq
            ]
            claimed = first.data.get("claimed_us", first.at_us)
            turns.append((min(inputs) if inputs else claimed, over.at_us))
        return turns

    def plain_turns(self) -> list[tuple[int, int]]:
        taken, answered, at = self.taken(), self.answered(), {e.seq: e.at_us for e in self.events}
        first: dict[int, int] = {}
        for request, answer in sorted(answered.items()):
            if taken.get(request, answer) >= answer:
                first.setdefault(answer, at[request])
        return [(asked, at[answer]) for answer, asked in first.items()]

    # --- counts ----------------------------------------------------------------------------------

    def calls(self) -> dict[str, Event]:
        """The first use of each request id."""
        found: dict[str, Event] = {}
        for use in self.of("agent.tool_use", "agent.custom_tool_use"):
            id, name = use.data.get("request_id"), use.data.get("name")
            if not isinstance(id, str) or not isinstance(name, str):
                continue
            if use.data.get("awaits") not in ("unknown_effect", "effect", "mismatch"):
                found.setdefault(id, use)
        return found

    def uses(self) -> list[tuple[str, Event, Event | None, int]]:
        """The tool of each use without a call, its first try, its outcome, and when it began."""
        ends = [e.seq for e in self.overs()]
        found = []
        by_key: dict[str, list[Event]] = {}
        for e in self.of("effect.intended", "effect.succeeded", "effect.failed"):
            if "call" not in e.data and not (e.type == "effect.failed" and e.data["error"] == ""):
                by_key.setdefault(str(e.data.get("key")), []).append(e)
        for events in by_key.values():
            tries: list[Event] = []
            for e in events:
                if tries and any([tries[0].seq < end < e.seq for end in ends]):
                    found.append(
                        (tries[0].data["tool"], tries[0], None, 0)
                    )  # given up with its turn
                    tries = []
                if e.type != "effect.intended":
                    if tries:
                        found.append((tries[0].data["tool"], tries[0], e, tries[-1].at_us))
                    tries = []
                elif tries or isinstance(e.data.get("tool"), str):
                    tries.append(e)
            if tries:
                found.append((tries[0].data["tool"], tries[0], None, 0))
        return found

    def tool_costs(self) -> dict[str, int]:
        """What was settled for each tool, in millionths: of the spans of its uses."""
        found: dict[str, int] = {}
        spans: dict[str, str] = {}
        overs = {e.seq for e in self.overs()}
        for e in self.events:
            if e.seq in overs or e in self.wakes():
                spans = {}
            elif e.type == "effect.intended" and (tool := self.tool_of(e)) is not None:
                spans[e.data["span_id"]] = tool
            elif e.type == "span.completed" and e.data.get("kind") == "tool":
                spans.pop(e.data["span_id"], None)
            elif e.type == "budget.settled":
                tool, cost = spans.pop(e.data["reservation"], None), e.data.get("cost")
                if tool is not None and type(cost) is int and 0 < cost < 2**40:
                    found[tool] = found.get(tool, 0) + cost
        return found

    def tool_of(self, intent: Event) -> str | None:
        """The tool that an effect is a use of: that of its call, or the bound one."""
        if "call" not in intent.data:
            of = [
                tool
                for tool, first, over, _ in self.uses()
                if first.data["key"] == intent.data["key"]
                and first.seq <= intent.seq < (over.seq if over is not None else 10**9)
            ]
            return of[-1] if of else None
        call = self.calls().get(intent.data["call"])
        if call is None or call.seq > intent.seq:
            return None
        done = [r.seq for use, r, _ in self.results() if use is call]
        ends = [e.seq for e in self.overs()]
        over = any([call.seq < seq < intent.seq for seq in [*done, *ends]])
        return None if over else str(call.data["name"])

    def invocations(self) -> int:
        return len(self.calls()) + len(self.uses())

    def results(self) -> list[tuple[Event, Event, int]]:
        """Each call with its first result in the same turn, and when it began."""
        ends = [e.seq for e in self.overs()]
        pairs = []
        for use in self.calls().values():
            id = use.data["request_id"]
            end = min([e for e in ends if e > use.seq], default=10**9)
            found = [
                e
                for e in self.of("agent.tool_result", "user.custom_tool_result")
                if e.data.get("request_id") == id and use.seq < e.seq < end
            ]
            if found:
                start = use.at_us
                for e in self.of("effect.intended", "step.recorded"):
                    if e.data.get("call") == id and use.seq < e.seq < found[0].seq:
                        began = e.data.get("started_us") if e.type == "step.recorded" else None
                        start = began if type(began) is int else e.at_us
                pairs.append((use, found[0], start))
        return pairs

    def generations(self) -> int:
        said = [
            e
            for e in self.of("agent.message")
            if e.data.get("usage")
            and not ("call" in e.data and e.wake_id is not None)
            and not self.is_in_span(e)
        ]
        begun = {e.data.get("span_id") for e in self.spans("started", "model")}
        alone = [
            e
            for e in self.spans("completed", "model")
            if "took_us" in e.data and e.data.get("span_id") not in begun
        ]
        return len(self.spans("started", "model")) + len(said) + len(alone)

    def is_in_span(self, said: Event) -> bool:
        """True if a model runs: its span has begun and not ended, nor its wake or turn."""
        over = {e.seq for e in [*self.wakes(), *self.overs()]}
        for begun in self.spans("started", "model"):
            ends = [
                e.seq
                for e in self.spans("completed", "model")
                if e.data["span_id"] == begun.data["span_id"]
            ]
            after = [seq for seq in [*over, *ends] if seq > begun.seq]
            if begun.seq < said.seq < min(after, default=said.seq + 1):
                return True
        return False

    def errors(self) -> int:
        tools = sum(1 for _, r, _ in self.results() if r.data.get("is_error") is True)
        tools += sum(1 for *_, o, _ in self.uses() if o is not None and o.type == "effect.failed")
        models = [e for e in self.spans("completed", "model") if e.data.get("result") == "error"]
        return tools + len(models)

    def repairs(self) -> tuple[int, int]:
        attempts = good = 0
        failed = repairing = False
        overs = {e.seq for e in self.overs()}
        for e in self.events:
            if e.type == "session.error":
                failed, repairing = True, False
            elif e in self.wakes() and failed:
                attempts, failed, repairing = attempts + 1, False, True
            elif e.seq in overs:
                good += repairing and e.data.get("stop_reason") == "end_turn"
                failed = repairing = False
        return attempts, good

    def tokens(self, side: str) -> int:
        found = [e.data.get("usage") for e in self.of("agent.message")]
        counts = [u.get(side) for u in found if hasattr(u, "get")]
        return sum([c for c in counts if type(c) is int and 0 < c < 2**40])

    def cost(self) -> int:
        said = [e.data.get("cost") for e in self.of("agent.message")]
        spent = [round(c * 1e6) for c in said if type(c) in (int, float) and 0 <= c < 2**40 / 1e6]
        settled = [e.data.get("cost") for e in self.of("budget.settled")]
        return sum(spent) + sum([c for c in settled if type(c) is int and 0 < c < 2**40])

    # --- phases and quality ----------------------------------------------------------------------

    def clocks(self, now_us: int) -> dict[str, int]:
        phase = self.events[0].data.get("phase", "active")
        since, clocks = (
            self.created_us,
            dict.fromkeys(("init", "active", "suspended", "resumed"), 0),
        )
        for e in self.of(*TRANSITIONS):
            if e.data["from"] in clocks:
                clocks[e.data["from"]] += e.at_us - since
            since, phase = e.at_us, e.data["to"]
        if phase in clocks and not self.ended_us():
            clocks[phase] += now_us - since
        return clocks

    def ended_us(self) -> int:
        return min([e.at_us for e in self.of(*ENDS)], default=0)

    def completed(self) -> bool:
        ends = self.of(*ENDS)
        if not ends or ends[0].type != "session.completed":
            return False
        defined = [e.seq for e in self.of("user.define_outcome")]
        if not defined:
            return True
        verdicts = [
            e.data.get("verdict")
            for e in self.of("session.outcome_evaluated")
            if e.seq > defined[-1]
        ]
        return bool(verdicts) and verdicts[-1] == "pass"

    def first_response_us(self) -> int | None:
        for e in self.of("agent.message"):
            text = e.data.get("text")
            if e.data.get("content") or (isinstance(text, str) and text.strip()):
                return e.at_us - self.created_us
        return None

    def features(self, now_us: int) -> list[float]:
        evaluations = self.of("session.outcome_evaluated")
        passed = [e for e in evaluations if e.data.get("verdict") == "pass"]
        waited = self.first_response_us()
        if waited is None:
            waited = (self.ended_us() or now_us) - self.created_us
        ends = self.of(*ENDS)
        normal = not ends or ends[0].type == "session.completed"
        return [
            log(waited / 1e6 + 1),
            log(len(self.turns()) + 1),
            float(self.completed()),
            1 - self.errors() / max(self.invocations() + self.generations(), 1),
            len(passed) / len(evaluations) if evaluations else 1.0,
            -log(self.repairs()[0] + 1),
            float(normal),
            -log(self.cost() / 1e6 + 1),
        ]

    def p99_us(self) -> int | None:
        latencies = sorted([over - asked for asked, over in self.turns()])
        return latencies[ceil(0.99 * len(latencies)) - 1] if latencies else None

    def tools(self) -> dict[str, tuple[int, int, int, int]]:
        """Calls, errors, latency and cost of each tool."""
        found: dict[str, list[int]] = {}
        for use in self.calls().values():
            found.setdefault(use.data["name"], [0, 0, 0, 0])[0] += 1
        for use, result, start in self.results():
            tool = found[use.data["name"]]
            tool[1] += result.data.get("is_error") is True
            tool[2] += max(0, result.at_us - start)
        for name, _, over, start in self.uses():
            tool = found.setdefault(name, [0, 0, 0, 0])
            tool[0] += 1
            if over is not None:
                tool[1] += over.type == "effect.failed"
                tool[2] += max(0, over.at_us - start)
        for name, cost in self.tool_costs().items():
            found[name][3] += cost
        return {name: tuple(of) for name, of in found.items()}  # type: ignore[misc]  # of four

    def rates(self) -> dict[str, Any]:
        evaluations = self.of("session.outcome_evaluated")
        passed = sum(1 for e in evaluations if e.data.get("verdict") == "pass")
        feedback = [e.data.get("hallucinated") for e in self.of("user.feedback")]
        said = [each for each in feedback if type(each) is bool]
        attempts, good = self.repairs()
        return {
            "task_completion": float(self.completed()),
            "error_rate": self.errors() / max(self.invocations() + self.generations(), 1),
            "repair_success_rate": good / attempts if attempts else None,
            "hallucination_rate": sum(said) / len(said) if said else None,
            "verification_pass_rate": passed / len(evaluations) if evaluations else None,
        }
