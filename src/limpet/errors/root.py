"""The root of every error, and the attributes that each error has."""

from __future__ import annotations

from typing import ClassVar


class LimpetError(Exception):
    """The root. `code` never changes once released; messages may."""

    code: ClassVar[str] = "limpet.error"
    retryable: ClassVar[bool] = False
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    @property
    def summary(self) -> str:
        """What happened, without what to do next, to be told within another sentence."""
        return str(self).partition(". ")[0].rstrip(".")
