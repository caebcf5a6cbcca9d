"""The same verbs without await, for scripts and notebooks.

Nothing is implemented twice: an event loop runs in a thread of its own and every call is handed to
it. What comes back is wrapped only if it has verbs itself. What a type checker sees of these is
in sync.pyi, which a test holds to the classes they stand for.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Generic, TypeVar

from limpet.errors import StoreClosed
from limpet.session.app import App
from limpet.session.blobs import SessionBlobs
from limpet.session.commit import CommitBuilder
from limpet.session.documents import Documents
from limpet.session.history.history import SessionHistory
from limpet.session.life.lifecycle import SessionLifecycle, SessionTools
from limpet.session.life.memory import Episodes, Layer, Memory, Overlay, WorkingMemory
from limpet.session.limpet import Limpet
from limpet.session.maintenance import StoreMaintenance
from limpet.session.policies import StorePolicies
from limpet.session.runs.buffers import Buffer
from limpet.session.runs.outcomes import SessionOutcome
from limpet.session.runs.runs import SessionRuns
from limpet.session.runs.setup import Permissions, SessionSetup, Vaults
from limpet.session.session import Session
from limpet.session.sync.facade import Facade
from limpet.session.sync.loop import Loop
from limpet.session.work import StoreWork
from limpet.store.protocol import Checked, Seal

S = TypeVar("S", covariant=True)
A = TypeVar("A")  # what the state of an app is, which it also takes


class SyncCommit(Facade[CommitBuilder], of=CommitBuilder):
    """A commit over several sessions, without await: `with lp.commit() as c: …`."""


class SyncSession(Facade[Session[Any]], Generic[S], of=Session):
    """A session, or a handle on one, without await."""


class SyncHistory(Facade[SessionHistory[Any]], Generic[S], of=SessionHistory):
    """The past of a session, without await."""


class SyncLifecycle(Facade[SessionLifecycle], of=SessionLifecycle):
    """Timeouts, timers and priority of a session, without await."""


class SyncTools(Facade[SessionTools], of=SessionTools):
    """The tools of a session, without await."""


class SyncRuns(Facade[SessionRuns], of=SessionRuns):
    """The runs of a session, without await."""


class SyncBlobs(Facade[SessionBlobs], of=SessionBlobs):
    """The blobs of a session, without await."""


class SyncOutcome(Facade[SessionOutcome], of=SessionOutcome):
    """The outcome of a session, without await."""


class SyncSetup(Facade[SessionSetup], of=SessionSetup):
    """The setup of a session, without await."""


class SyncWork(Facade[StoreWork], of=StoreWork):
    """Leases, dead letters and sweeps, without await."""


class SyncMaintenance(Facade[StoreMaintenance], of=StoreMaintenance):
    """Looking after a store, without await."""


class SyncPolicies(Facade[StorePolicies], of=StorePolicies):
    """The policies of apps and agents, without await."""


class SyncWorking(Facade[WorkingMemory], of=WorkingMemory):
    """Working memory, without await."""


class SyncLayer(Facade[Layer], of=Layer):
    """A layer of memory, without await."""


class SyncOverlay(Facade[Overlay], of=Overlay):
    """Semantic memory of a delegated session, without await."""


class SyncEpisodes(Facade[Episodes], of=Episodes):
    """Episodic memory, without await."""


class SyncBuffer(Facade[Buffer], of=Buffer):
    """A buffer of a session, without await."""


class SyncMemory(Facade[Memory], of=Memory):
    """The memory of a session, without await."""


class SyncApp(Facade[App[Any]], Generic[A], of=App):
    """The sessions of one app, without await."""


class SyncDocuments(Facade[Documents], of=Documents):
    """A collection of documents, without await."""


class SyncVaults(Facade[Vaults], of=Vaults):
    """The collection of vaults, without await."""


class SyncPermissions(Facade[Permissions], of=Permissions):
    """The collection of permissions, without await."""


class SyncLimpet(Facade[Limpet], of=Limpet):
    """Limpet without await, open at once: use it in a `with` block, or call close()."""

    def __init__(
        self,
        url: str,
        *,
        seal: Seal | None = None,
        connections: int | None = None,
        archive: str | None = None,
        check: Checked | None = None,
    ) -> None:
        how: dict[str, Any] = {"seal": seal, "connections": connections, "archive": archive}
        how["check"] = check
        super().__init__(Limpet(url, **how), Loop())
        try:
            super().__enter__()
        except BaseException:
            self._loop.stop()
            raise

    def __enter__(self) -> SyncLimpet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lent(self) -> Any:
        """What receives a copy. It works on this object's own loop: a store belongs to the loop
        that opened it."""
        from limpet.session.sync.across import Across

        return Across(self._of, self._loop)

    def close(self) -> None:
        """Finish what was handed over and let go of everything. Closing twice is fine."""
        if self._loop.is_open():
            self._loop.check_caller()
            try:
                with suppress(StoreClosed):  # another thread was faster
                    self._loop.call(self._of.close)
            finally:
                self._loop.stop()
