"""A turn cannot go on, or an answer does not belong to anything that was asked."""

from __future__ import annotations

from limpet.errors.input import InvalidInput
from limpet.errors.session import SessionError


class TurnError(SessionError):
    """A turn of an agent cannot go on as it was written."""

    code = "turn.error"


class Interrupted(TurnError):
    """Raised in a running harness at its next await. The turn closes as interrupted."""

    code = "turn.interrupted"

    def __init__(self, key: object, note: str | None = None) -> None:
        self.key, self.note = key, note
        said = f" ({note})" if note else ""
        super().__init__(
            f"the turn of {key} was interrupted{said}. Clean up and return; what the turn still "
            "records is refused."
        )


class TurnMismatch(TurnError):
    """A harness that runs again takes another way than it took before."""

    code = "turn.mismatch"

    def __init__(self, what: str, name: str, occurrence: int, why: str) -> None:
        self.what, self.name, self.occurrence, self.why = what, name, occurrence, why
        super().__init__(
            f"{what} {name!r} (call {occurrence} of that name in the turn) {why}. Put what is not "
            "deterministic into turn.step or turn.stream; confirm the request to go on with what "
            "is recorded."
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
    """Nobody knows whether an effect was performed, and it was decided not to try again."""

    code = "effect.unknown"

    def __init__(self, name: str, occurrence: int = 1, note: str | None = None) -> None:
        self.name, self.occurrence, self.note = name, occurrence, note
        said = f" ({note})" if note else ""
        super().__init__(
            f"it is not known whether the effect {name!r} was performed, and it was not tried "
            f"again{said}. Look at the other side, then answer the user."
        )


class BudgetReached(TurnError):
    """A call may need more than is left of the budget."""

    code = "budget.reached"

    def __init__(self, name: str, amount: float, left: float) -> None:
        self.name, self.amount, self.left = name, amount, left
        super().__init__(
            f"the budget has {left:g} {name} left and {amount:g} was to be reserved. Ask for less, "
            "or grant the session more."
        )


class RequestNotFound(TurnError, LookupError):
    """No open request has this id."""

    code = "request.not_found"
    status = 404

    def __init__(self, key: object, id: str) -> None:
        self.key, self.id = key, id
        super().__init__(
            f"session {key} has no open request {id!r}: it was never asked, or its turn is over. "
            "s.blocked_on lists the open ones."
        )


class RequestAnswered(TurnError):
    """A request takes one answer, and has it."""

    code = "request.answered"

    def __init__(self, key: object, id: str) -> None:
        self.key, self.id = key, id
        super().__init__(
            f"request {id!r} of session {key} was answered before. The first answer stands; "
            "refresh to see what came of it."
        )


class RequestMismatch(TurnError, InvalidInput):
    """The answer is of another kind than the request."""

    code = "request.mismatch"
    exit_code = InvalidInput.exit_code
    status = InvalidInput.status

    def __init__(self, id: str, kind: str, verb: str) -> None:
        self.id, self.kind, self.verb = id, kind, verb
        super().__init__(f"request {id!r} is of the kind {kind!r}. Use s.{verb} to answer it.")


class ToolDenied(TurnError):
    """A tool may not be used, or the person who was asked said no."""

    code = "tool.denied"
    status = 403

    def __init__(self, name: str, note: str | None = None) -> None:
        self.name, self.note = name, note
        said = f" ({note})" if note else ""
        super().__init__(
            f"the tool {name!r} may not be used{said}. Tell the user, or choose another."
        )


class ToolFailed(TurnError):
    """Who was asked answered with an error."""

    code = "tool.failed"

    def __init__(self, name: str, output: object) -> None:
        self.name, self.output = name, output
        super().__init__(
            f"the custom tool {name!r} was answered with an error: {output}. Handle the error; "
            "the answer stands."
        )
