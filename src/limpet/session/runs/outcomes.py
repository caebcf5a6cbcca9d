"""The outcome of a session: define, grade and evaluate what it is to achieve. `s.outcome`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from limpet.errors import InvalidInput
from limpet.model import EMPTY, Event, described
from limpet.model.facts import outcomes
from limpet.model.facts.inputs import pending
from limpet.model.facts.outcomes import DEFINED, EVALUATED, Evaluation, Grade, Outcome
from limpet.model.facts.running.requests import open_requests
from limpet.model.facts.running.runs import STEP, turn_in
from limpet.model.facts.timers import is_revisit
from limpet.model.limits import PAGE_MAX
from limpet.session.arguments import check_limit
from limpet.session.runs.learnings import Gates, check_gates, unmet_outcome

if TYPE_CHECKING:
    from limpet.session.writer import Writer

# Given the outcome and what the agent said and did since: whether each criterion is met, or a text.
Evaluator: TypeAlias = Callable[[Outcome, Sequence[Event]], Any]
_PASSED: Final = Gates(verdict="pass")
_EVIDENCE = ("agent.*", "effect.succeeded", STEP)
MANAGED: Final = "managed."  # steps of managed tools, which may have read the criteria


class SessionOutcome:
    """The outcome that a session is to achieve: `s.outcome`."""

    __slots__ = ("_writer",)

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    @property
    def current(self) -> Outcome | None:
        """The outcome that was defined last, with the last verdict on it; None if there is none."""
        known = self._writer.known
        return outcomes.outcome_in(known.head.facts, known.texts)

    async def define(
        self,
        title: str,
        detail: str | None = None,
        criteria: Iterable[str] = (),
        *,
        actor: str | None = None,
    ) -> Event:
        """Define what the session should achieve and the criteria that judge it; return the event,
        an input.

        Raises InvalidInput, SessionEnded, SessionNotFound.
        """
        draft = outcomes.outcome_defined(title, detail, criteria)
        prepared = self._writer.journal.prepare(draft, self._writer.acting(actor))
        return (await self._writer.commit((prepared,)))[0]

    async def grade(self) -> Grade:
        """Return how far it is, from the log alone: nothing defined (missing), waiting for a person
        (blocked) or for a time (sleeping), at work (in_progress), or perhaps done.

        Raises SessionNotFound.
        """
        await self._writer.load(tail=20)
        facts = self._writer.known.head.facts
        if "outcome" not in facts:
            return "missing"
        if open_requests(facts):
            return "blocked"
        if pending(facts) or turn_in(facts) is not None:
            return "in_progress"
        if any(map(is_revisit, facts.get("timers", EMPTY).values())):
            return "sleeping"
        return "done_candidate"

    async def evaluate(
        self, evaluator: Evaluator | None = None, *, actor: str | None = None
    ) -> Evaluation:
        """Record a verdict on the outcome and return it. Without an evaluator it is uncertain.

        The evaluator gets the outcome, and what the agent said and did after it was defined; never
        the text of the criteria as evidence. It returns a bool for each criterion, or one for all.
        Raises InvalidInput if the evaluator returns anything else, SessionNotFound.
        """
        if evaluator is not None and not callable(evaluator):
            raise InvalidInput("an evaluator is a function of the outcome and the evidence.")
        judged = await self._judge(evaluator)
        before = self._writer.known.head.facts.get("outcome", EMPTY).get("met", ())
        trend = outcomes.trend(before, judged.met)
        verdict = Evaluation(judged.verdict, judged.met, trend, judged.note)
        if self.current is not None:
            fact = outcomes.outcome_evaluated(verdict)
            prepared = self._writer.journal.prepare(fact, self._writer.acting(actor))
            await self._writer.commit((prepared,))
        return verdict

    async def unmet(self, gates: Gates = _PASSED) -> tuple[str, ...]:
        """Return the gates on the outcome that do not hold now, in words; empty if all do.

        Without gates its last verdict must be pass. As an exit criterion: a session completes only
        if its outcome passed. Raises SessionNotFound.
        """
        check_gates(gates)
        grade, outcome = await self.grade(), self.current
        return tuple(unmet_outcome(gates, grade, None if outcome is None else outcome.verdict))

    async def history(self, *, limit: int = 50) -> tuple[Event, ...]:
        """Return definitions and verdicts, the newest first. Raises SessionNotFound."""
        types = (DEFINED, EVALUATED)
        return await self._read(types, after=0, limit=check_limit(limit), reverse=True)

    async def _judge(self, evaluator: Evaluator | None) -> Evaluation:
        grade = await self.grade()
        outcome = self.current
        if outcome is None or grade != "done_candidate":
            return Evaluation("not_ready", note=grade)
        if evaluator is None:
            return Evaluation("uncertain", (None,) * len(outcome.criteria))
        evidence = await self._read(_EVIDENCE, after=outcome.seq, limit=PAGE_MAX)
        answer = evaluator(outcome, tuple([event for event in evidence if not is_managed(event)]))
        if inspect.isawaitable(answer):
            answer = await answer
        criteria = len(outcome.criteria)
        if isinstance(answer, Evaluation):
            return answer
        met = [answer] * max(1, criteria) if isinstance(answer, bool) or answer is None else answer
        if not isinstance(met, (list, tuple)) or len(met) not in (criteria, 1):
            raise InvalidInput(
                f"an evaluator returns a bool for each of the {criteria} criteria, not "
                f"{described(answer)}."
            )
        if any([each is False for each in met]):
            return Evaluation("fail", tuple(met))
        return Evaluation("pass" if all(met) else "uncertain", tuple(met))

    async def _read(
        self, types: tuple[str, ...], *, after: int, limit: int, reverse: bool = False
    ) -> tuple[Event, ...]:
        store, key = self._writer.journal.store, self._writer.known.key
        return await store.read(key, after=after, limit=limit, reverse=reverse, types=types)


def is_managed(event: Event) -> bool:
    """True for the step of a managed tool: it read the session and is not what the agent did."""
    return event.type == STEP and event.data is not None and event.data["name"].startswith(MANAGED)
