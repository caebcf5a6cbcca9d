"""What an error says at the command line."""

from __future__ import annotations

import re

import pytest

import limpet
from limpet import errors
from limpet.cli.render import at_the_shell

# These come of a program's own mistakes, or a command gives its own advice instead.
OF_PROGRAMS = {
    "ActorMissing",
    "BlobNotFound",
    "ChildNotFound",
    "FollowerBehind",
    "InvalidOp",
    "NotPending",
    "RelationNotFound",
    "CitedChanged",
    "QueueFull",
    "ReservedType",
    "SessionExists",
    "SessionNotFound",
    "SessionNotLoaded",
    "StoreClosed",
    "TooLittleFeedback",
}
PYTHON = re.compile(
    r"\b(?:lp|s|c|turn)\.[a-z_]+|limpet\.[a-z_]+\b|\w+=(?:True|False|…|None)|\bawait\b"
    r"|\b(?:None|True|False|dict|str)\b|\b[A-Z]\w+Error\b|\w+\(\)"
)


def _shown() -> dict[str, str]:
    """The texts of all errors at a shell, with their placeholders."""
    shown = {}
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, limpet.LimpetError):
            if issubclass(kind, errors.GraphError) or name in OF_PROGRAMS:
                continue
            text = " ".join(getattr(kind, "template", "").split())
            advice = getattr(kind, "advice", "")
            text = text.replace("{advice}", advice if isinstance(advice, str) else "")
            shown[name] = at_the_shell(kind.code, text)
    return shown


@pytest.mark.quick
def test_no_error_speaks_of_a_program() -> None:
    """Commands and options take the place of methods and arguments."""
    shown = _shown()
    assert len(shown) > 60
    assert {name: text for name, text in shown.items() if PYTHON.search(text)} == {}


@pytest.mark.quick
@pytest.mark.parametrize(
    ("code", "text", "shown"),
    [
        (
            "store.failed",
            "x failed: no answer (ConnectionRefusedError: [Errno 111] refused). Whether the change "
            "was made is unknown: calling again is safe.",
            "x failed: no answer (refused). It may have been done: look with limpet log, then run "
            "it again.",
        ),
        (
            "store.failed",
            str(errors.StoreFailed("x", "no answer", "read")),
            "x failed: no answer. Nothing was written. Try again.",
        ),
        (
            "store.failed",
            str(errors.StoreFailed("x", "no answer", "lease")),
            "x failed: no answer. A lease may have been granted; it expires on its own. Try again.",
        ),
        (
            "store.seal",
            "it was opened without keys. Open it with limpet.open(url, keys=…) to write.",
            "it was opened without keys. Pass --keys (or LIMPET_KEYS) to write.",
        ),
        (
            "keys.missing",
            "status needs the keys of the store. Open it with limpet.open(url, keys=…).",
            "status needs the keys of the store. Pass --keys, or set LIMPET_KEYS.",
        ),
    ],
)
def test_what_a_program_would_do_is_said_for_a_shell(code: str, text: str, shown: str) -> None:
    """The reason stays; only the words of Python go."""
    assert at_the_shell(code, text) == shown
