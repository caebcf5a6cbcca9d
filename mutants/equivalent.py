"""Mutants that no test can notice, each with the reason.

Named by module, function and change, not by line, so that the table outlives edits elsewhere. The
check reports an entry that fits no mutant any more.
"""

from __future__ import annotations

from typing import Final

# (module, function, change): why it is the same program, or differs in nothing we promise.
EQUIVALENT: Final[dict[tuple[str, str, str], str]] = {
    (
        "limpet.session.loading",
        "Loading.load",
        "verified = True -> verified = False",
    ): "Verified again at every try: slower, and no less safe.",
    (
        "limpet.model.ops",
        "_Op",
        "frozen=True -> frozen=False",
    ): "No operation is of this class itself, and each says the same again.",
    (
        "limpet.model.ops",
        "_Op",
        "array_like=True -> array_like=False",
    ): "No operation is of this class itself, and each says the same again.",
}
