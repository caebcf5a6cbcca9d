"""Vaults: documents with the names of secrets and references to them, never the secrets.

A reference says where a secret is kept ("env:STRIPE_KEY"). Whoever uses it resolves it there. What
is read from a vault does not show its references when it is printed or logged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from limpet.errors import InvalidInput
from limpet.session.documents import Document, Documents

COLLECTION: Final = "vaults"
# A scheme and a place, or the name of an environment variable.
_REFERENCE: Final = r"[a-z][a-z0-9+.-]{1,31}:\S{1,1000}|[A-Z][A-Z0-9_]{0,127}"
_FORM: Final = (
    "A vault maps names to references, as in {'stripe': 'env:STRIPE_KEY'}: a scheme, a colon and "
    "where the secret is kept; or the name of an environment variable. Never put the secret itself."
)


class VaultDocument(Document, frozen=True):
    """One version of a vault. Printed, it shows names only."""

    @property
    def names(self) -> tuple[str, ...]:
        """What it has references to."""
        return () if self.deleted else tuple(sorted(self.value))

    def __repr__(self) -> str:
        return f"<limpet.VaultDocument {self.name}@{self.version} names={list(self.names)}>"

    __str__ = __repr__

    def __rich_repr__(self) -> Any:
        yield "name", self.name
        yield "version", self.version
        yield "names", self.names


class Vaults(Documents):
    """The collection of vaults."""

    def check(self, value: Any) -> None:
        """Refuse what is not a mapping of names to references; the error does not show it."""
        if not isinstance(value, Mapping) or not value:
            raise InvalidInput(f"the value of a vault is not a mapping with names. {_FORM}")
        for name, reference in value.items():
            if not isinstance(name, str) or not 0 < len(name) <= 128:
                raise InvalidInput(f"a vault has a name that is not a short text. {_FORM}")
            if not _refers(reference):
                raise InvalidInput(f"the vault's {name!r} is not a reference. {_FORM}")

    def shown(self, document: Document) -> VaultDocument:
        return VaultDocument(**msgspec.structs.asdict(document))


def _refers(value: Any) -> bool:
    """Whether every text in a value is a reference."""
    if isinstance(value, Mapping):
        return all(_refers(each) for each in value.values())
    if isinstance(value, (list, tuple)):
        return all(map(_refers, value))
    return isinstance(value, str) and re.fullmatch(_REFERENCE, value) is not None
