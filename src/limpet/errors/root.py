"""The root of every error, and the attributes that each error has."""

from __future__ import annotations

from typing import Any, ClassVar


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

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied and pickled as it is. The usual way would call its class with the message, which
        takes other arguments: in a pool of processes that breaks the pool, and hides the error."""
        return _again, (type(self), *self.args), self.__dict__ or None


def _again(kind: type[LimpetError], *args: object) -> LimpetError:
    return kind.__new__(kind, *args)
