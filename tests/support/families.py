"""A deterministic simulation of parents and children: delegation, budgets, deadlines, interrupts.

Built on `simulation`: the same gates, deaths and clock. Parents delegate with a part of their
budget, wait for the result and answer; children reserve, spend, ask with a deadline, and sometimes
fail. Whatever happens, the sum over each tree stays what was granted, and nothing is left waiting.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import limpet
from limpet.model.lease import Lease
from limpet.runtime.wake import Wake, harness_options
from limpet.session.runs.runs import WakeOptions
from tests.support.agents import decide
from tests.support.simulation import APP, LEASE_SECONDS, Simulation

CHILD = "research"
GRANTED = 10.0


class Families(Simulation):
    """One seed."""

    async def harness(self, turn: limpet.Turn) -> None:
        """Delegate, several at once for some messages, and answer with what comes back."""
        for message in turn.inputs:
            if message.type != "user.message":
                continue  # the end of a child that nobody waits for any more
            text = message.data["text"]
            kind = int(text.split("-")[1])
            async with turn.reserve(cost=0.02) as held:
                await turn.step("think", str.upper, text, max_cost=0.01)
                held.settle(cost=0.005)
            many = 1 + kind % 2
            how: Any = {"cascade": kind % 4 != 3}
            if kind % 3 != 1:  # else a part of what is left
                how["budget"] = 0.1
            found = [await turn.delegate(CHILD, f"{text}.{n}", **how) for n in range(many)]
            if kind % 5 == 4:
                await turn.say(f"{text}: not waiting", cost=0.001)
                continue
            ends = await asyncio.gather(*[child.result() for child in found])
            said = ",".join([str(end["output"]) for end in ends])
            await turn.say(f"{text}: {said}", cost=0.001)

    async def child(self, turn: limpet.Turn) -> None:
        for message in turn.inputs:
            text = message.data["text"]
            kind = int(text.split("-")[1].partition(".")[0])
            if kind % 6 == 5 and turn.attempt == 1:
                raise RuntimeError("not this time")
            if kind % 3 == 0:
                await turn.approve("look", {"of": text}, timedelta(seconds=20), "deny")
            await turn.stream("answer", [text, {"text": "!", "cost": 0.004}], max_cost=0.05)

    def _start(self, lease: Lease) -> None:
        harness = self.harness if lease.key.app == APP else self.child
        wake = Wake(self.lp, lease, harness_options(harness, WakeOptions(retries=1_000)))
        self._run(wake)

    async def _claim(self) -> None:
        for lease in await self.lp.work.claim("sim", lease_seconds=LEASE_SECONDS):
            self._start(lease)

    async def run(self, steps: int) -> None:
        for number in range(2):
            how: Any = {"id": f"s{number}", "budget": GRANTED}
            self.sessions.append(await self.lp.create(APP, "ada", **how))
        for _ in range(steps):
            await self._step(self.random.random())
            await self._settle()
        await self._finish()
        await self._check()

    async def _answer(self) -> None:
        session = self.random.choice(await self._all())
        if session.head.phase != "active":
            return
        for request in session.blocked_on[:1]:
            await decide(session, request, allow=True)

    async def _answer_all(self) -> bool:
        return False  # deadlines answer

    async def _is_due(self, session: limpet.Session[Any]) -> bool:
        return any([limpet.runnable_at(each.head) is not None for each in await self._all()])

    async def _all(self) -> list[limpet.Session[Any]]:
        heads = (await self.lp.list(limit=1000)).items
        return [await self.lp.get(head.key) for head in heads]

    # --- what must hold --------------------------------------------------------------------------

    async def _check(self) -> None:
        everyone = await self._all()
        for session in everyone:
            log = await self._log(session)
            self._check_closed(session, log)
            if session.app == APP and session.key not in self.ended:
                self._check_answers(session, log)
        for root in self.sessions:
            await root.refresh()
            self._check_sum(root, [s for s in everyone if s.app == CHILD])
        assert (await self.lp.maintenance.verify()).ok

    def _check_closed(self, session: limpet.Session[Any], log: list[limpet.Event]) -> None:
        """No span is open, nothing is reserved or lent, no child at work."""
        opened = [e.data["span_id"] for e in log if e.type == "span.started"]
        closed = [e.data["span_id"] for e in log if e.type == "span.completed"]
        assert sorted(opened) == sorted(closed)
        facts = session.head.facts
        assert "reserved" not in facts.get("budget", {}), facts["budget"]
        assert "lent" not in facts.get("budget", {}), facts["budget"]
        assert "children" not in facts, facts["children"]
        assert session.status == ("terminated" if session.head.phase != "active" else "idle")
        if session.head.phase == "active":
            assert session.head.pending == 0

    def _check_sum(self, root: limpet.Session[Any], below: list[limpet.Session[Any]]) -> None:
        """What was granted is what is left at the root and what everybody has used."""
        mine = [s for s in below if s.head.facts["delegation"]["id"] == root.id]
        assert root.runs.budget is not None
        used = sum(s.runs.usage.cost for s in [root, *mine])
        assert round(root.runs.budget.remaining.cost + used, 6) == GRANTED  # type: ignore[operator]
