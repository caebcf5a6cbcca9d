"""Schema versions: the shape of a stored state, and whether this code can read it.

A version is MAJOR.MINOR.PATCH. MAJOR changes when old state can no longer be read, MINOR when
fields with defaults are added. PATCH never affects the shape. `migrations` handles another MAJOR.
"""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

import msgspec

from limpet.errors import InvalidSchema

# How stored state stands to the code that reads it:
#   same         the same MAJOR and MINOR
#   older_minor  the code has fields that the state lacks: their defaults fill them
#   newer_minor  written by newer code: refused, or kept as it is where the State class says so
#   migration    another MAJOR: a migration is needed
Relation: TypeAlias = Literal["same", "older_minor", "newer_minor", "migration"]
NewerMinor: TypeAlias = Literal["refuse", "keep"]  # what a State class says of newer code's state

# ASCII digits only, and so few that every number fits 64 bits.
_NUMBER: Final = "(0|[1-9][0-9]{0,17})"
_NUMBER_END: Final = 10**18
_VERSION: Final = rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}"
_SHOWN_CHARS: Final = 64
_WRITE: Final = "Write a version as MAJOR.MINOR.PATCH, as in '1.2.0'"


class SchemaVersion(msgspec.Struct, frozen=True, gc=False, order=True):
    """The version of a state's shape. Ordered by MAJOR, then MINOR, then PATCH."""

    major: int
    minor: int
    patch: int

    def __post_init__(self) -> None:
        for number in (self.major, self.minor, self.patch):
            if type(number) is not int or not 0 <= number < _NUMBER_END:
                raise InvalidSchema("the numbers of a version are integers from 0", _WRITE)

    @classmethod
    def parse(cls, text: str | SchemaVersion) -> SchemaVersion:
        """Parse a version. Raises InvalidSchema if the text is not one.

        Strict: three numbers without leading zeros and nothing else. Pre-releases and builds are
        refused because nobody can promise to read their state again.
        """
        if isinstance(text, SchemaVersion):
            return text
        if not isinstance(text, str):
            raise InvalidSchema(f"a version is text, and this is {type(text).__name__}", _WRITE)
        if (found := re.fullmatch(_VERSION, text)) is None:
            raise InvalidSchema(f"{text[:_SHOWN_CHARS]!a} {_problem(text)}", _WRITE)
        return cls(*map(int, found.groups()))

    @property
    def major_minor(self) -> tuple[int, int]:
        """MAJOR and MINOR: all that the shape depends on."""
        return (self.major, self.minor)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


def compatible(stored: SchemaVersion, code: SchemaVersion) -> bool:
    """True if code of one version reads state of another with only its defaults.

    The rule: the same MAJOR, and the code's MINOR is not older.
    """
    return stored.major == code.major and stored.minor <= code.minor


def relation(stored: SchemaVersion, code: SchemaVersion) -> Relation:
    """How the version of stored state relates to the code's version. PATCH never matters."""
    if stored.major != code.major:
        return "migration"
    if stored.minor == code.minor:
        return "same"
    return "older_minor" if stored.minor < code.minor else "newer_minor"


def _problem(text: str) -> str:
    if re.match(r"[0-9]+\.[0-9]+\.[0-9]+[-+]", text):
        return "names a pre-release or a build, which stored state never has"
    if re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", text):
        return "has a number with a leading zero or of more than 18 digits"
    return "is not MAJOR.MINOR.PATCH"
