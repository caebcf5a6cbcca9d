"""A turn cannot continue, or an answer does not match an open request."""

from __future__ import annotations

from typing import Any

from limpet.errors.input import InvalidInput
from limpet.errors.session import SessionError


class TurnError(SessionError):
    """A turn of an agent cannot continue."""

    code = "turn.error"


class Interrupted(TurnError):
    """Raised in a running harness at its next await. The turn closes as interrupted."""

    code = "turn.interrupted"

    def __init__(self, key: object, note: str | None = None) -> None:
        self.key, self.note = key, note
        said = f" ({note})" if note else ""
        super().__init__(
            f"the turn of {key} was interrupted{said}. Clean up and return; the turn can "
            "record nothing more."
        )


class TurnMismatch(TurnError):
    """A harness that runs again does not make the calls that its turn recorded before. `recorded`
    is what the call was made with then, as far as the log has it, and `now` what it is made with.
    """

    code = "turn.mismatch"

    def __init__(
        self,
        what: str,
        name: str,
        occurrence: int,
        why: str,
        recorded: Any = None,
        now: Any = None,
    ) -> None:
        self.what, self.name, self.occurrence, self.why = what, name, occurrence, why
        self.recorded, self.now = recorded, now
        super().__init__(
            f"{what} {name!r} (call {occurrence} of that name in the turn) {why}. Move "
            "nondeterministic code into turn.step or turn.stream; confirm the request to continue "
            "with what is recorded."
        )


class TurnMisused(TurnError, InvalidInput):
    """A turn was used after its end, or in a way that cannot be recorded."""

    code = "turn.misused"
    exit_code = InvalidInput.exit_code
    status = InvalidInput.status


class EffectFailed(TurnError):
    """The function of an effect raised, as often as it was tried."""

    code = "effect.failed"

    def __init__(self, name: str, occurrence: int, error: str) -> None:
        self.name, self.occurrence, self.error = name, occurrence, error
        super().__init__(
            f"the effect {name!r} failed: {error}. It is recorded as not done; handle the error, "
            "or let it end the turn, which tries it again."
        )


class EffectUnknown(TurnError):
    """It is not known whether an effect was performed, and it is not tried again. Uncaught, it ends
    the turn; or, if the effect has on_unknown="retry", this run of it: the next one tries again."""

    code = "effect.unknown"
    tried_later = False  # by the next run of the turn

    def __init__(self, name: str, occurrence: int = 1, note: str | None = None) -> None:
        self.name, self.occurrence, self.note = name, occurrence, note
        said = f" ({note})" if note else ""
        super().__init__(
            f"it is not known whether the effect {name!r} was performed, and it was not tried "
            f"again{said}. Check the remote system, then answer the user."
        )


class BudgetReached(TurnError):
    """A call may need more than is left of the budget; or nothing is left of it."""

    code = "budget.reached"

    def __init__(self, name: str, amount: float | None, left: float) -> None:
        self.name, self.amount, self.left = name, amount, left
        if amount is not None:
            said = (
                f"the budget has {left:g} {name} left, and the call needs to reserve {amount:g}. "
                "Ask for less, or grant the session more."
            )
        else:
            over = f": {-left:g} more was spent than the limit allows" if left < 0 else ""
            said = (
                f"the budget has no {name} left{over}. Grant the session more with s.runs.grant(…)."
            )
        super().__init__(said)


class ChildNotFound(TurnError, LookupError):
    """The session has no such child at work."""

    code = "child.not_found"
    status = 404

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(
            f"the session has no child {id!r} at work: it was never delegated from here, or has "
            "ended. s.runs.children() lists those at work."
        )


class RequestNotFound(TurnError, LookupError):
    """No request has this id."""

    code = "request.not_found"
    status = 404

    def __init__(self, key: object, id: str) -> None:
        self.key, self.id = key, id
        super().__init__(
            f"session {key} has never asked for {id!r}. s.blocked_on lists its open requests."
        )


class RequestAnswered(TurnError):
    """The request already has its one answer."""

    code = "request.answered"

    def __init__(self, key: object, id: str) -> None:
        self.key, self.id = key, id
        super().__init__(
            f"request {id!r} of session {key} was already answered. The first answer "
            "stands; refresh to see its result."
        )


class RequestMismatch(TurnError, InvalidInput):
    """The answer does not match the kind of the request."""

    code = "request.mismatch"
    exit_code = InvalidInput.exit_code
    status = InvalidInput.status

    def __init__(self, id: str, kind: str, verb: str) -> None:
        self.id, self.kind, self.verb = id, kind, verb
        super().__init__(f"request {id!r} has the kind {kind!r}. Use s.{verb} to answer it.")


class ToolDenied(TurnError):
    """A tool may not be used, or the person who was asked said no. Uncaught, it ends the turn."""

    code = "tool.denied"
    status = 403

    def __init__(self, name: str, note: str | None = None) -> None:
        self.name, self.note = name, note
        said = f" ({note})" if note else ""
        super().__init__(
            f"the tool {name!r} may not be used{said}. Tell the user, or use another tool."
        )


class ToolFailed(TurnError):
    """The answer to a custom tool call is an error."""

    code = "tool.failed"

    def __init__(self, name: str, output: object) -> None:
        self.name, self.output = name, output
        super().__init__(
            f"the custom tool {name!r} was answered with an error: {output}. Handle the error; "
            "the answer stands."
        )
