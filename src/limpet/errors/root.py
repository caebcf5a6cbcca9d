"""The root of every error, and what each of them carries."""

from __future__ import annotations

from typing import ClassVar


class LimpetError(Exception):
    """The root. `code` never changes once released; messages may."""

    code: ClassVar[str] = "limpet.error"
    retryable: ClassVar[bool] = False
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
