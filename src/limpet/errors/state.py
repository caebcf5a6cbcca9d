"""Stored state does not match what the call needs."""

from __future__ import annotations

from typing import Any

from limpet.errors.root import LimpetError


class StateError(LimpetError):
    """Stored state does not match what the call needs."""

    code = "state.error"
    status = 409
    exit_code = 3


class DiffMismatch(StateError):
    code = "diff.mismatch"

    def __init__(self, path: str, expected: str, actual: str) -> None:
        self.path, self.expected, self.actual = path, expected, actual
        super().__init__(
            f"the diff expects {expected} at {path} but found {actual}; nothing was changed. "
            "Apply it to the value it was made from, or merge the two."
        )


class MergeConflict(StateError):
    code = "merge.conflict"

    def __init__(self, places: tuple[str, ...], conflicts: tuple[Any, ...] = ()) -> None:
        self.places, self.conflicts = places, conflicts  # each with base, a and b of its place
        named = ", ".join(places[:5])
        more = f" and {len(places) - 5:,} more" if len(places) > 5 else ""
        super().__init__(
            f"both sides changed {named}{more}. Resolve these places and merge again, or give "
            "them a policy."
        )


class ScopeFull(StateError):
    code = "scope.full"

    def __init__(self, app: str, user: str, what: str, size: int, size_max: int) -> None:
        self.app, self.user, self.what, self.size, self.size_max = app, user, what, size, size_max
        whose = f"user {user!r} of app {app!r}" if user else f"app {app!r}"
        super().__init__(
            f"{whose} would have {size:,} shared {what}; the limit is {size_max:,}. Nothing was "
            f"written. Delete {'user' if user else 'app'}: names that are not needed, reuse a "
            "name, or keep the values in a session's own fields."
        )


class IntegrityViolation(StateError):
    code = "integrity.violation"
    status = 500

    def __init__(self, what: str, expected: str, computed: str) -> None:
        self.what, self.expected, self.computed = what, expected, computed
        super().__init__(
            f"{what} is damaged: its checksum should be {expected} but is {computed}. Use another "
            "copy, or write it again from its source."
        )


class InvalidEnvelope(StateError):
    code = "envelope.invalid"
    status = 400

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"these bytes are not an envelope: {reason}. Pass the bytes from envelope.encode "
            "unchanged."
        )


class EnvelopeNewer(StateError):
    code = "envelope.newer"

    def __init__(self, found: int, known: int) -> None:
        self.found, self.known = found, known
        super().__init__(
            f"the envelope has format {found}; this release reads up to {known}. Upgrade limpet "
            "to read it."
        )
