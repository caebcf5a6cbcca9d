"""Finishing: what is left to do for a session that was completed or terminated.

The run that was under way is closed, children are terminated with it, its effects are compensated,
and its parent learns of the end. Each step is recorded as it is done and the session stays due
until the last of them, so a worker that dies in between is followed by one that goes on.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from limpet.errors import (
    InvalidTransition,
    SessionConflict,
    SessionDeleted,
    SessionErased,
    SessionFenced,
    SessionNotFound,
    StoreError,
)
from limpet.model import Draft, Key, Lease
from limpet.model.facts.running import budgets, children, endings, readable, runs
from limpet.runtime.children import Ending, open_child
from limpet.runtime.closing import commit_last
from limpet.runtime.compensating import Compensations
from limpet.runtime.driving import Driver
from limpet.runtime.hold import Hold
from limpet.runtime.log import TurnLog
from limpet.runtime.opening import DIED, records_of, unknown_effects
from limpet.session.logs import SESSION
from limpet.session.session import Session

_TRIES: Final = 8
_GONE: Final = (SessionNotFound, SessionDeleted, SessionErased)
_WHY: Final = "the session ended"


class Finishing:
    """One wake of a session that has ended."""

    def __init__(
        self,
        log: TurnLog,
        lease: Lease,
        driver: Driver,
        hold: Hold,
        *,
        retries: int,
        backoff_us: Any,
    ) -> None:
        self._log, self._lease, self._driver = log, lease, driver
        self._session: Session[Any] = log.session
        self._retries, self._backoff_us = retries, backoff_us
        self._undoing = Compensations(log, driver, hold)
        self._last: list[Draft] = []  # for the closing commit

    async def run(self) -> None:
        """All of it, under the lease, which the last commit gives back."""
        log, lease = self._log, self._lease
        log.begin(
            runs.wake_started(
                log.wake_id,
                log.turn_id,
                attempt=endings.ending_in(self._session.head.facts).get("fails", 0) + 1,
                inputs=(),
                timers=(),
                worker=lease.worker,
                why="ended",
                claimed_us=lease.claimed_us,
                fence=lease.fence,
                name="finish",
            )
        )
        await self._close_run()
        await self._cascade()
        error = await self._driver.run(self._compensate, None)
        if isinstance(error, (SessionFenced, StoreError)):
            raise error
        stopped = self._driver.stopped
        if error is not None and stopped is None:  # it counts, so that it comes to an end
            what = (self._session.key, type(error).__name__)
            SESSION.warning("not compensated: session=%s error=%s", *what)
            self._last = [self._tried(again=True)]
        if stopped != "lost":
            await self._close(error)

    async def _close_run(self) -> None:
        """The run that was under way when it ended: every effect and reservation has an outcome."""
        facts = self._session.head.facts
        drafts: list[Draft] = []
        turn = runs.turn_in(facts)
        if turn is not None:
            records = await records_of(self._session, turn)
            drafts += unknown_effects(turn["id"], records, _WHY)
        drafts += [budgets.settled(id, of) for id, of in budgets.reservations(facts).items()]
        if turn is not None and turn["span"] is not None:
            how: Any = {"fence": self._lease.fence, "error": _WHY}
            drafts.append(runs.wake_completed(turn["span"], turn["id"], "blocked", **how))
        if (died := endings.ending_in(facts).get("span")) is not None:
            more: Any = {"fence": self._lease.fence - 1, "error": DIED, "name": "finish"}
            drafts.append(runs.wake_completed(died, died, "error", **more))
        if drafts:
            await self._log.write(*drafts)

    async def _cascade(self) -> None:
        """Terminate the children that end with it, and let go of the others."""
        session = self._session
        if not endings.to_cascade(session.head.facts):
            return
        drafts: list[Draft] = []
        ended: list[str] = []
        for id, child in children.children_in(session.head.facts).items():
            key = Key(child["app"], child["user"], id)
            if child.get("cascade", True) and await self._terminate(key):
                ended.append(id)
            else:
                drafts.append(children.child_released(key))
        await self._log.write(*drafts, endings.cascaded(ended))

    async def _terminate(self, key: Key) -> bool:
        """Whether there is a child whose end has yet to come back."""
        try:
            child = await open_child(self._session, key)
            with suppress(InvalidTransition):  # it has ended, and will tell
                await child.terminate("its parent ended", actor="system:runtime")
        except _GONE:
            return False
        except StoreError:
            raise
        except Exception as error:  # a guard or a hook of the child's app keeps it alive
            SESSION.warning("child not terminated: session=%s error=%s", key, error)
            return False
        delegation = children.delegation(child.head.facts)
        return delegation is not None and not delegation.get("ended")

    async def _compensate(self, _: Any) -> None:
        if endings.to_compensate(self._session.head.facts):
            await self._undoing.run()
            self._last = [self._tried(again=self._undoing.retryable)]

    def _tried(self, *, again: bool) -> Draft:
        """What came of the compensations, and when those left are tried again; else held."""
        undoing, retry_us = self._undoing, None
        fails = endings.ending_in(self._session.head.facts).get("fails", 0) + 1
        if again and fails <= self._retries:
            retry_us = self._session.writer.journal.now_us() + self._backoff_us(fails)
        return endings.finished(undoing.done, undoing.left, retry_us=retry_us)

    async def _close(self, error: Exception | None) -> None:
        log, session = self._log, self._session
        stop = "end_turn" if session.head.phase == "completed" else "terminated"
        how: Any = {"fence": self._lease.fence, "name": "finish"}
        if error is not None:
            how["error"] = readable(f"{type(error).__name__}: {error}")
        is_whole = error is None and self._driver.stopped is None
        result: runs.SpanResult = "success" if is_whole else "error"
        for left in reversed(range(_TRIES)):
            ending = Ending.of(session, stop, None)
            end = runs.wake_completed(log.wake_id, log.turn_id, result, **how)
            drafts = log.closing(*self._last, end)
            try:
                await commit_last(log, drafts, ending, self._lease)
                return
            except SessionConflict:
                if not left:
                    raise
                await session.refresh()
