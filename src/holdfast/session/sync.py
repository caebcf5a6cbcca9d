"""The same verbs without await, for scripts and notebooks.

Nothing is implemented twice: an event loop runs in a thread of its own and every call is handed to
it. What comes back is wrapped only if it has verbs itself. What a type checker sees of the three is
in sync.pyi, which a test holds to the classes they stand for.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Generic, TypeVar

from holdfast.errors import StoreClosed
from holdfast.session.commit import CommitBuilder
from holdfast.session.facade import Facade
from holdfast.session.loop import Loop
from holdfast.session.session import Session
from holdfast.session.sessions import Holdfast
from holdfast.store.protocol import Seal

S = TypeVar("S", covariant=True)


class SyncCommit(Facade[CommitBuilder], of=CommitBuilder):
    """A commit over several sessions, without await: `with hf.commit() as c: …`."""


class SyncSession(Facade[Session[Any]], Generic[S], of=Session):
    """A session, or a handle on one, without await."""


class SyncHoldfast(Facade[Holdfast], of=Holdfast):
    """Holdfast without await, open at once: use it in a `with` block, or call close()."""

    def __init__(
        self, url: str, *, seal: Seal | None = None, connections: int | None = None
    ) -> None:
        super().__init__(Holdfast(url, seal=seal, connections=connections), Loop())
        try:
            super().__enter__()
        except BaseException:
            self._loop.stop()
            raise

    def __enter__(self) -> SyncHoldfast:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Finish what was handed over and let go of everything. Closing twice is fine."""
        if self._loop.is_open():
            self._loop.check_caller()
            try:
                with suppress(StoreClosed):  # another thread was faster
                    self._loop.call(self._of.close)
            finally:
                self._loop.stop()
