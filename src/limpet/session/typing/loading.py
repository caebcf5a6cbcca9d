"""Loading: a session as it is stored, brought forward first if the code expects another version.

A migration is planned, verified and recorded on one reading: its event says what takes that very
state to the new one, so it is recorded on that version of the session or not at all. If somebody
was faster, it is read again. The object that asked sees nothing before all of it is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from limpet import errors
from limpet.errors import EventTooLarge, LimpetError, SessionConflict, SessionCorrupt, SessionFenced
from limpet.model import Commit, DefaultActor, Key, Lease, Prepared
from limpet.model.facts.phases import is_stub
from limpet.model.lease import is_leased, locked
from limpet.model.limits import UPDATE_TRIES_MAX
from limpet.session.journal import Journal
from limpet.session.loggers import SESSION, lease_lost
from limpet.session.retrying import Tries
from limpet.store.protocol import Committed, Loaded

if TYPE_CHECKING:
    from limpet.session.typing.upgrade import Upgrade

# Who brings state forward when no actor is bound.
MIGRATOR: Final = DefaultActor("system:migrations")


class Loading:
    """One session to be read, for an actor who may hold its lease."""

    def __init__(
        self, journal: Journal, key: Key, actor: str | None = None, lease: Lease | None = None
    ) -> None:
        self._journal, self._key, self._actor, self._lease = journal, key, actor, lease

    async def load(
        self,
        upgrade: Upgrade | None,
        *,
        tail: int,
        since_us: int | None = None,
        scopes: bool = True,
        at_least: str,
    ) -> tuple[Loaded, Committed | None]:
        """What is stored, and the migration that was recorded on it if there had to be one.

        Raises what the store's load raises; MigrationError, SchemaViolation; SessionCorrupt if it
        is damaged, SessionLocked if another runs it, SessionConflict if others never pause.
        """
        store, verified = self._journal.store, False
        async for left in Tries():
            loaded = await store.load(
                self._key, tail=tail, since_us=since_us, scopes=scopes, at_least=at_least
            )
            head = loaded.head
            if upgrade is None or is_stub(head.facts) or not upgrade.way(head.schema_version):
                return loaded, None
            if not verified:  # once: what is written meanwhile was not read back from a disk
                await self._verify()
                verified = True
            prepared = self._proposed(upgrade, loaded)
            try:
                committed = await self._record(prepared, loaded)
                text = "state migrated: session=%s from=%s to=%s version=%d"
                stored, version = loaded.head.schema_version, committed.head.version
                SESSION.info(text, self._key, stored, upgrade.code, version)
                return loaded, committed
            except SessionConflict:  # somebody wrote, or migrated it, meanwhile
                if not left:
                    raise
            except SessionFenced as error:  # somebody was given a lease meanwhile; or ours is over
                lease_lost(error, self._lease, "migration")
                if not left or self._lease is not None:
                    raise
            tries = UPDATE_TRIES_MAX - left
            SESSION.debug("migration retried: session=%s tries=%d", self._key, tries)
        raise AssertionError("the last try returns or raises")

    def _proposed(self, upgrade: Upgrade, loaded: Loaded) -> Prepared:
        try:
            return self.propose(upgrade, loaded)
        except LimpetError as error:
            text = "state migration failed: session=%s from=%s to=%s code=%s"
            stored = loaded.head.schema_version
            SESSION.warning(text, self._key, stored, upgrade.code, error.code)
            raise

    def propose(self, upgrade: Upgrade, loaded: Loaded) -> Prepared:
        """What would be recorded, whole and checked; there must be a way.

        Raises MigrationError, SchemaViolation, SessionCorrupt.
        """
        if loaded.damaged:
            raise SessionCorrupt(self._key, f"event {loaded.damaged[0]} cannot be read")
        draft = upgrade.migration(loaded.head, loaded.fields)
        assert draft is not None
        try:
            actor = MIGRATOR if self._actor is None else self._actor
            return self._journal.prepare(draft, actor)
        except EventTooLarge as error:
            stored, step = str(loaded.head.schema_version), tuple(draft.data["steps"][-1])
            reason = f"changes too much for one event ({error.size_bytes:,} bytes)"
            raise errors.MigrationFailed(
                "session", stored, str(upgrade.code), step, reason
            ) from error

    async def _verify(self) -> None:
        """Integrity first, before any function runs: a migration must not build on damage."""
        report = await self._journal.store.verify(self._key)
        if not report.ok:
            raise SessionCorrupt(self._key, report.findings[0].problem)

    async def _record(self, prepared: Prepared, loaded: Loaded) -> Committed:
        head, lease = loaded.head, self._lease
        mine = lease is not None and lease.fence == head.fence
        if not mine and is_leased(head, self._journal.now_us()):
            raise locked(head)  # its runner may be of the old version: not under its hands
        # 0 admits only what was never leased. Of a later lease there is no such sign.
        fence = lease.fence if lease is not None else 0 if head.fence == 0 else None
        commit = Commit(self._key, (prepared,), head.version, fence, {}, head.schema_version)
        (committed,) = await self._journal.commit((commit,))
        return committed
