"""The life of sessions, from the door of a store: policies and sweeps. A part of Limpet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from limpet.errors import InvalidInput
from limpet.model.facts.phases import Phase
from limpet.model.facts.timeouts import Timeouts, timeouts_data
from limpet.session.arguments import check_flag, check_sessions
from limpet.session.door import Door
from limpet.session.life.policy import (
    CLEANUP_SECONDS,
    SUSPENSIONS_PER_DAY,
    Cleanup,
    Function,
    policy,
)


class LongLife(Door):
    """What is decided for all sessions of an app, and done to those whose time has come."""

    def lifecycle(
        self,
        app: str,
        *,
        guards: Mapping[tuple[Phase, str], Function] | None = None,
        before: Mapping[tuple[Phase, Phase], Function] | None = None,
        after: Mapping[tuple[Phase, Phase], Function] | None = None,
        exit_criteria: Sequence[Function] = (),
        compensate: Sequence[Function] = (),
        cleanup: Mapping[Cleanup, Function] | None = None,
        cleanup_seconds: float = CLEANUP_SECONDS,
        resume_on_input: bool = True,
        timeouts: Timeouts | None = None,
        suspensions_per_day: float = SUSPENSIONS_PER_DAY,
    ) -> None:
        """Say what goes with the transitions of an app's sessions, in this process.

        Functions take (session) or (session, transition), sync or async. Guards by (phase, event)
        and exit criteria return True or a reason; `before` and `after` hooks go by (from, to).
        `compensate` runs before a termination, then `cleanup` in the order flush, release, notify,
        analytics, promote, scrub; scrub returns names in state to delete. Each of them is bounded
        by `cleanup_seconds`. `timeouts` are those of new sessions without their own. Input resumes
        a session that was suspended for idleness, unless resume_on_input=False. A second call
        replaces the first.
        """
        check_sessions(app)
        check_flag("resume_on_input", resume_on_input)
        if not cleanup_seconds > 0:
            raise InvalidInput("cleanup_seconds is a number above 0: how long a step may take.")
        if timeouts is not None:
            timeouts_data(timeouts)
        self._journal.lifecycles[app] = policy(
            guards=guards,
            before=before,
            after=after,
            cleanup=cleanup,
            exit_criteria=exit_criteria,
            compensate=compensate,
            cleanup_seconds=cleanup_seconds,
            resume_on_input=resume_on_input,
            timeouts=timeouts,
            suspensions_per_day=suspensions_per_day,
        )
