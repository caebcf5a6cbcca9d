"""A deterministic simulation: workers, people and faults on one store, scheduled by a seed.

Every call of the store waits at a gate. The scheduler opens one gate at a time, moves the clock,
sends messages, answers, interrupts, and kills workers: before their call is done, or just after it.
The same seed gives the same schedule.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import limpet
from limpet.model.commit import Commit
from limpet.model.lease import Lease
from limpet.runtime import wake as wakes
from limpet.runtime.wake import Wake, harness_options
from limpet.session.runs.runs import WakeOptions
from limpet.store.memory import MemoryStore
from limpet.store.protocol import Committed
from limpet.testing.clock import FakeClock
from tests.support.agents import decide

APP = "support"
LEASE_SECONDS = 30.0
_OUTCOMES = ("effect.intended", "effect.succeeded", "effect.failed", "effect.unknown")
ROUNDS = 40  # of the event loop, in which tasks come to their next gate
_worker: ContextVar[asyncio.Task[Any] | None] = ContextVar("simulated_worker", default=None)


class GatedStore(MemoryStore):
    """Commits of simulated workers wait until the scheduler lets them pass."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock.clock())
        self.gates: dict[asyncio.Task[Any], asyncio.Future[str]] = {}

    async def commit(self, commits: Sequence[Commit]) -> tuple[Committed, ...]:
        task = _worker.get()  # whose call this is
        if task is None:
            return await super().commit(commits)
        gate = asyncio.get_running_loop().create_future()
        self.gates[task] = gate
        order = await gate
        if order == "die_before":
            await asyncio.get_running_loop().create_future()  # for ever: the process is gone
        answers = await super().commit(commits)
        if order == "die_after":
            await asyncio.get_running_loop().create_future()
        return answers


class Receiver:
    """The world: what was done to it, by idempotency key."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.undone: Counter[str] = Counter()  # by the key of the effect
        self.order: list[str] = []

    async def undo(self, session: limpet.Session[Any], effect: limpet.PastEffect) -> None:
        self.undone[effect.key] += 1
        self.order.append(effect.key)
        await asyncio.sleep(0)

    async def act(self, text: str, idempotency_key: str) -> str:
        self.calls[idempotency_key] += 1
        await asyncio.sleep(0)
        is_down = sum(idempotency_key.encode()) % 2 and 1 < self.calls[idempotency_key] < 4
        if is_down:  # for whoever tries again
            raise ConnectionError("503")
        return f"did {text}"


class Simulation:
    """One seed."""

    def __init__(self, seed: int, lp: limpet.Limpet, store: GatedStore, clock: FakeClock) -> None:
        self.random, self.lp, self.store, self.clock = random.Random(seed), lp, store, clock
        self.receiver = Receiver()
        self.sessions: list[limpet.Session[Any]] = []
        self.sent: dict[str, str] = {}
        self.interrupted: set[limpet.Key] = set()
        self.notes: dict[limpet.Key, list[str]] = {}  # of its interrupts, in their order
        self.allowed: Counter[str] = Counter()  # retries of an unknown effect that were allowed
        self.ended: set[limpet.Key] = set()
        self.requeued: Counter[limpet.Key] = Counter()
        self.ends = seed % 3 == 0  # sessions are terminated in this schedule
        lp.policies.lifecycle(APP, compensations={"undo": self.receiver.undo})
        self.workers: dict[asyncio.Task[Any], Wake] = {}
        self.dead: list[asyncio.Task[Any]] = []

    async def harness(self, turn: limpet.Turn) -> None:
        """Steps, an effect, sometimes an approval; an answer to every message, and to a note."""
        if turn.note is not None:
            assert not turn.inputs
            await turn.say(f"heard {turn.note}")
        for message in turn.inputs:
            text = message.data["text"]
            kind = int(text.split("-")[1])
            plan = await turn.step("plan", lambda t: t.upper(), text)
            how: Any = "retry" if kind % 2 else "ask"
            try:
                undo: Any = {"on_unknown": how, "compensate": "undo"}
                done = await turn.effect("act", self.receiver.act, text=text, **undo)
            except limpet.EffectUnknown:
                done = "unknown"
            if kind % 5 == 0 and not await turn.approve("ship", {"text": text}):
                done = "denied"
            await turn.say(f"{text}: {plan} {done}")
        if turn.inputs and self._coin(turn.inputs[0].data["text"]):
            turn.revisit(timedelta(seconds=20), "again", "k")

    def _coin(self, text: str) -> bool:
        return sum(text.encode()) % 3 == 0

    async def run(self, steps: int) -> None:
        for number in range(3):
            self.sessions.append(await self.lp.create(APP, "ada", id=f"s{number}"))
        for _ in range(steps):
            await self._step(self.random.random())
            await self._settle()
        await self._finish()
        await self._check()

    async def _step(self, dice: float) -> None:
        if dice < 0.14:
            await self._send()
        elif dice < 0.17:
            await self._interrupt()
        elif dice < 0.27:
            await self._answer()
        elif dice < 0.42:
            await self._claim()
        elif dice < 0.47:
            self.clock.advance(timedelta(seconds=self.random.choice([1, 5, 31, 400])))
        else:
            await self._open_gate(deadly=dice > 0.93)

    async def _settle(self) -> None:
        """Let every task come to its next gate."""
        for _ in range(ROUNDS):
            await asyncio.sleep(0)
        for task in [task for task in self.workers if task.done()]:
            self.workers.pop(task)
            error = task.exception()
            if error is not None:
                raise error

    async def _send(self) -> None:
        self.clock.advance(timedelta(milliseconds=1))
        if (session := self._alive()) is None:
            return
        text = f"m-{len(self.sent)}"
        event = await session.append("user.message", {"text": text}, actor="user:ada", id=text)
        self.sent[text] = event.id
        if self.random.random() < 0.2:
            await session.append("user.message", {"text": text}, actor="user:ada", id=text)

    def _alive(self) -> limpet.Session[Any] | None:
        session = self.random.choice(self.sessions)
        return None if session.key in self.ended else session

    async def _interrupt(self) -> None:
        if (session := self._alive()) is None:
            return
        if self.ends and self.random.random() < 0.5:
            self.ended.add(session.key)
            await session.terminate("enough", actor="user:ada")
            return
        notes = self.notes.setdefault(session.key, [])
        await session.interrupt(f"note-{len(notes)}", actor="user:ada")
        notes.append(f"note-{len(notes)}")
        self.interrupted.add(session.key)

    async def _answer(self) -> None:
        if (session := self._alive()) is None:
            return
        await session.refresh()
        for request in session.blocked_on[:1]:
            allow = self.random.random() < 0.6
            if request.kind == "unknown_effect" and allow:
                self.allowed[request.input["idempotency_key"]] += 1
            await decide(session, request, allow=allow)

    async def _claim(self) -> None:
        for lease in await self.lp.work.claim("sim", app=APP, lease_seconds=LEASE_SECONDS):
            self._start(lease)

    def _start(self, lease: Lease) -> None:
        self._run(Wake(self.lp, lease, harness_options(self.harness, WakeOptions(retries=1_000))))

    def _run(self, wake: Wake) -> None:
        async def run() -> Any:
            _worker.set(asyncio.current_task())
            return await wake.run()

        self.workers[asyncio.get_running_loop().create_task(run())] = wake

    async def _open_gate(self, *, deadly: bool) -> None:
        waiting = self._at_gates()
        if not waiting:
            return
        task = self.random.choice(waiting)
        gate = self.store.gates.pop(task)
        order = self.random.choice(["die_before", "die_after"]) if deadly else "pass"
        gate.set_result(order)
        if deadly:  # the process is gone: nothing of it runs any more
            await self._settle_one()
            self.workers.pop(task)
            self.dead.append(task)

    def _at_gates(self) -> list[asyncio.Task[Any]]:
        """Workers whose commit waits; a call that was cancelled has left its gate."""
        gates = self.store.gates
        return [task for task in self.workers if task in gates and not gates[task].done()]

    async def _settle_one(self) -> None:
        for _ in range(ROUNDS):
            await asyncio.sleep(0)

    async def _finish(self) -> None:
        """No more faults: whatever is open is answered, and time passes, until all is done."""
        for _ in range(2_000):
            await self._claim()
            await self._settle()
            while self._at_gates():
                await self._open_gate(deadly=False)
                await self._settle()
            if not self.workers and not await self._answer_all():
                self.clock.advance(timedelta(seconds=31))
                if not any([await self._is_due(s) for s in self.sessions]):
                    return
        raise AssertionError("it does not come to an end")

    async def _is_due(self, session: limpet.Session[Any]) -> bool:
        await session.refresh()
        return limpet.runnable_at(session.head) is not None

    async def _answer_all(self) -> bool:
        found = False
        for session in self.sessions:
            await session.refresh()
            if session.key in self.ended:
                found = await self._requeue(session) or found
                continue
            for request in session.blocked_on:
                found = True
                if request.kind == "unknown_effect":
                    self.allowed[request.input["idempotency_key"]] += 1
                await decide(session, request, allow=True)
        return found

    async def _requeue(self, session: limpet.Session[Any]) -> bool:
        """A person has looked at what nobody knew of."""
        if "held" not in session.head.facts.get("ending", {}):
            return False
        self.requeued[session.key] += 1
        await self.lp.work.requeue(session.key)
        return True

    # --- what must hold --------------------------------------------------------------------------

    async def _check(self) -> None:
        for session in self.sessions:
            await session.refresh()
            log = await self._log(session)
            if session.key in self.ended:
                self._check_ended(session, log)
            else:
                self._check_idle(session, log)
                self._check_answers(session, log)
                self._check_notes(session, log)
            self._check_effects(log)
        assert (await self.lp.maintenance.verify()).ok

    def _check_ended(self, session: limpet.Session[Any], log: list[limpet.Event]) -> None:
        """No span is open, and what may have been done is undone once, the newest first."""
        assert session.status == "terminated"
        opened = [e.data["span_id"] for e in log if e.type == "span.started"]
        closed = [e.data["span_id"] for e in log if e.type == "span.completed"]
        assert sorted(opened) == sorted(closed)
        last = {e.data["key"]: e.type for e in log if e.type in _OUTCOMES}
        done = [key for key, type in last.items() if type != "effect.failed"]
        undone = [e.data["of"] for e in log if e.type == "effect.compensated"]
        assert sorted(undone) == sorted(done)
        tried = Counter(e.data["of"] for e in log if e.type == "effect.compensating")
        for key in done:
            calls = self.receiver.undone[key]
            assert 1 <= calls <= tried[key]
            retried = [e for e in log if e.type == "effect.intended" and e.data["key"] == key]
            if retried[0].data["compensate"]["on_unknown"] == "ask":
                assert calls <= 1 + self.requeued[session.key]
        if not self.requeued[session.key]:
            began = {e.data["key"]: e.seq for e in log if e.type == "effect.intended"}
            assert undone == sorted(undone, key=lambda key: -began[key])

    async def _log(self, session: limpet.Session[Any]) -> list[limpet.Event]:
        log: list[limpet.Event] = []
        while page := await session.read(after=len(log), limit=1000):
            log += page
        return log

    def _check_notes(self, session: limpet.Session[Any], log: list[limpet.Event]) -> None:
        """Each is heard at most once, in their order, and the last of them is."""
        said = [e.data["text"] for e in log if e.type == "agent.message"]
        heard = [text.removeprefix("heard ") for text in said if text.startswith("heard ")]
        notes = self.notes.get(session.key, [])
        assert heard == [note for note in notes if note in heard]
        assert heard[-1:] == notes[-1:]

    def _check_idle(self, session: limpet.Session[Any], log: list[limpet.Event]) -> None:
        """No session is left running, no span open, no input pending, no tool without outcome."""
        assert session.status == "idle", session.status
        assert session.head.pending == 0
        assert not session.blocked_on
        opened = [e.data["span_id"] for e in log if e.type == "span.started"]
        closed = [e.data["span_id"] for e in log if e.type == "span.completed"]
        assert sorted(opened) == sorted(closed)
        asked = [e.data["request_id"] for e in log if e.type == "agent.tool_use"]
        results = [e.data["request_id"] for e in log if e.type == "agent.tool_result"]
        assert sorted(asked) == sorted(results)

    def _check_answers(self, session: limpet.Session[Any], log: list[limpet.Event]) -> None:
        """Every input is answered once; after an interrupt, at most once."""
        said = Counter(e.data["text"].split(":")[0] for e in log if e.type == "agent.message")
        assert all(number == 1 for number in said.values()), said
        if session.key not in self.interrupted:
            messages = [e.data["text"] for e in log if e.type == "user.message"]
            assert sorted(messages) == sorted(said)

    def _check_effects(self, log: list[limpet.Event]) -> None:
        """Each action was done once; or it was unknown, and its policy or a person said again. As
        only a try after an unknown one raises, none is ever recorded as failed."""
        assert not [e for e in log if e.type == "effect.failed"]
        for event in log:
            if event.type == "effect.intended":
                key = event.data["key"]
                tries = [e for e in log if e.type == "effect.intended" and e.data["key"] == key]
                assert self.receiver.calls[key] <= len(tries)
        done = Counter(e.data["key"] for e in log if e.type == "effect.succeeded")
        assert all(number == 1 for number in done.values()), done
        for key, calls in self.receiver.calls.items():
            own = [e for e in log if e.type == "effect.intended" and e.data["key"] == key]
            if own and self._asks(log, own[0]):
                assert calls <= 1 + self.allowed[key], (key, calls, self.allowed[key])

    def _asks(self, log: list[limpet.Event], intent: limpet.Event) -> bool:
        """Whether this effect is one that asks: its message has an even number."""
        steps = [
            e
            for e in log
            if e.type == "step.recorded"
            and e.invocation_id == intent.invocation_id
            and e.data["occurrence"] == intent.data["occurrence"]
        ]
        return bool(steps) and int(steps[0].data["result"].split("-")[1]) % 2 == 0


async def simulate(seed: int, steps: int = 120, kind: type[Simulation] = Simulation) -> None:
    """One schedule; raises what does not hold."""
    clock = FakeClock()
    store = GatedStore(clock)
    random.seed(seed)  # of the runtime's own dice, which spread retries
    # Every other schedule has workers that hear of interrupts while they run; the rest never do.
    wakes.LISTEN_AFTER_SECONDS = 0.0 if seed % 2 else 3_600.0
    async with limpet.Limpet("memory://", store=store) as lp:
        lp._journal.now_us = lambda: clock.now_us  # type: ignore[method-assign]
        simulation = kind(seed, lp, store, clock)
        try:
            await simulation.run(steps)
        finally:
            left = [*simulation.dead, *simulation.workers]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
