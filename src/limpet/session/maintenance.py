"""Looking after a store: verify, examine, back up, compact, migrate, mirror. `lp.maintenance`."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from limpet.errors import BackupRefused, InvalidInput, QuorumUnavailable
from limpet.model import described
from limpet.model.facts.timeouts import USUAL, unusual
from limpet.session.arguments import (
    AnyKey,
    check_actor,
    check_app,
    check_progress,
    check_sessions,
    one_or_all,
    pydantic_needed,
)
from limpet.session.keys import with_anchors
from limpet.session.services import Hook
from limpet.store.open import refuse_uncopied
from limpet.store.pages import each_head
from limpet.store.protocol import (
    Backups,
    Check,
    CompactsLog,
    Diagnosis,
    Examined,
    Progress,
    Query,
    Report,
    Store,
)

if TYPE_CHECKING:
    from limpet.model.state.migrations import MigrationRegistry
    from limpet.model.state.state import State
    from limpet.session.history.retention import CompactReport
    from limpet.session.move.mirror import Mirrored
    from limpet.session.schema.migrate import Failure, MigrationPlan
    from limpet.session.services import Services

_POLICIES: Final = ("checkpointing", "retention", "learnings", "curated", "gates")
_MEMORY: Final = ("session/", "episodic/", "own/", "promoted/", "semantic/", "procedural/")
_ADVICE: Final = (
    "If a build before 0.1.0 has put them there, say policies and gates again "
    "(lp.policies.checkpointing, lp.policies.retention, lp.policies.gates), and put what "
    "sessions remember again: "
    "lp.documents('memory', owner=(app, user)).list() shows it, s.memory.session.put keeps it. "
    "Then delete the old documents."
)


class StoreMaintenance:
    """The maintenance of a store: `lp.maintenance`."""

    __slots__ = ("_journal", "_services", "_url")

    def __init__(self, services: Services, url: str) -> None:
        self._services, self._journal, self._url = services, services.journal, url

    async def verify(
        self,
        key: AnyKey | str | None = None,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        progress: Progress | None = None,
    ) -> Report:
        """Read one session back, or without a key the whole store, check its hash chain, and return
        a report.

        `progress(done, total)` counts sessions. Raises SessionNotFound; damage is not raised but
        reported.
        """
        one = one_or_all(key, user, id, reserved=True)
        report = await self._journal.store.verify(one, check_progress(progress))
        return await with_anchors(self._journal, one, report)

    async def doctor(self, *, progress: Progress | None = None) -> Diagnosis:
        """Verify everything, check how the store is kept, and return a diagnosis; each finding says
        what to do.

        If a cluster has lost its quorum, only its servers are examined. Raises StoreError if the
        store cannot be read at all.
        """
        from limpet.session.move.mover import move_checks
        from limpet.session.move.reclaim import reclaim_checks
        from limpet.store.doctor import read_checks
        from limpet.store.remote.address import transport_check

        store = self._journal.store
        check_progress(progress)
        try:
            report = await store.verify(None, progress)
        except QuorumUnavailable as error:
            kept = await store.examine() if isinstance(store, Examined) else ()
            advice = "Start the standbys, or connect them to the primary; then run this again."
            unread = Check("sessions", str(error), "problem", advice)
            return Diagnosis((unread, *kept), Report(0, 0, ()))
        report = await with_anchors(self._journal, None, report)
        kept = await store.examine() if isinstance(store, Examined) else ()
        if self._url.lower().startswith(("http://", "https://")):
            kept = (transport_check(self._url), *kept)
        lives = (*await unusual_timeouts(store), *await earlier_documents(store))
        provenance = self._journal.provenance
        keys = () if provenance is None else provenance.checks(self._url)
        moves = (*await move_checks(self._services), *await reclaim_checks(self._services))
        mirror = self._journal.mirror
        files = () if mirror is None else (mirror.check(),)
        return Diagnosis((*read_checks(report), *kept, *keys, *lives, *moves, *files), report)

    async def backup(self, target: str | Path, *, progress: Progress | None = None) -> None:
        """Copy the whole store to a file while it is in use. The copy is complete or absent.

        Raises BackupRefused if the target exists or cannot be written.
        """
        store = self._journal.store
        check_progress(progress)
        if not isinstance(target, (str, os.PathLike)):
            raise InvalidInput(f"{described(target)} names no file. Pass a path.")
        store = (await self._services.approved_app("move", None)).journal.store
        if not isinstance(store, Backups):
            refuse_uncopied(self._url)
            raise BackupRefused(self._url, "is not kept in a file; its store makes no copies")
        await store.backup(Path(target), progress)

    async def compact(
        self,
        key: AnyKey | str | None = None,
        user: str | None = None,
        id: str | None = None,
        *,
        progress: Progress | None = None,
    ) -> CompactReport:
        """Move events beyond their limits into cold segments, of one session or of all; return the
        counts.

        Cold events are read, verified and exported like all others, and a repeat of their ids is
        recognised. Pending inputs and the newest event stay; the feed no longer contains moved
        events. Safe to interrupt: one segment is one commit. `progress(done, total)` counts
        sessions. A files:// store also compacts its whole log. The readable files that are kept
        beside a store are up to date when it returns. Raises SessionNotFound, and InvalidInput if
        the session has no limits.
        """
        from limpet.session.history.retention import compact

        one, done = one_or_all(key, user, id), check_progress(progress)
        if one is None:
            services = await self._services.approved_app("policy", None)
        else:
            services = await self._services.permitted("write", one)
        report = await compact(services.journal, one, done)
        store, mirror = services.journal.store, services.journal.mirror
        if one is None and mirror is not None:
            await mirror.write()
        if one is None and isinstance(store, CompactsLog):
            log = await store.compact_log()
            sizes = {"log_bytes": log.rows_bytes, "compacted_bytes": log.segment_bytes}
            report = structs.replace(report, **sizes)
        return report

    async def migrate(
        self,
        migrations: MigrationRegistry,
        state_type: type[State] | None = None,
        *,
        app: str | None = None,
        apply: bool = False,
        actor: str | None = None,
        failure: Failure | None = None,
        progress: Progress | None = None,
    ) -> MigrationPlan:
        """Plan the migration of every session (of an app) to a schema version; return the plan.

        The target is the version of the State class, which every result has to fit; without one,
        the newest that the migrations lead to. Nothing is written unless `apply`: then each session
        that can be is migrated as get() would, in a commit of its own, and the others are left as
        they are. After an interruption, call it again to continue; repeating it is harmless. The
        events are recorded by `actor`, or by system:migrations. The plan names up to 1,000 sessions
        of each kind of failure; `failure(key, fate, reason)` is called for every one. Raises
        InvalidInput without a class and migrations; a session that fails is in the plan.
        """
        self._journal.check_open()
        from limpet.session.schema.migrate import Migrating, upgrade_of

        with pydantic_needed():
            upgrade = upgrade_of(migrations, state_type)
        migrating = Migrating(
            self._journal,
            upgrade,
            app=check_sessions(app),
            apply=apply,
            actor=check_actor(actor),
            failure=failure,
        )
        return await migrating.run(check_progress(progress))

    async def mirror(
        self,
        directory: str | Path,
        key: AnyKey | str | None = None,
        user: str | None = None,
        id: str | None = None,
        *,
        app: str | None = None,
        follow: bool = False,
    ) -> Mirrored:
        """Write one session, an app, or everything as files that people read; return the counts.

        With `follow` everything is written and kept up to date, within a second, until the call is
        cancelled; what is deleted or erased meanwhile is removed. Not of a sealed store.

        Each session has a directory with session.json, events.jsonl, wake-queue.jsonl and runtime/.
        Files are replaced, each at once, and never read back. Bodies are in plain text. Raises
        SessionNotFound.
        """
        from limpet.session.move.import_export import check_path
        from limpet.session.move.mirror import mirror
        from limpet.session.move.mirror_follower import MirrorFollower, refuse_sealed

        if key is not None and app is not None:
            raise InvalidInput("mirror takes a key or an app. Leave one out for the other.")
        one, to = one_or_all(key, user, id), check_path(directory)
        if one is None:
            services = await self._services.approved_app("move", check_app(app))
        else:
            services = await self._services.approved("move", one)
        if follow:
            if key is not None or app is not None:
                raise InvalidInput("a mirror follows everything. Leave the key and the app out.")
            await refuse_sealed(services.journal.store)
            await MirrorFollower(services, to).run()
        return await mirror(services, to, one, app)

    def on_metric(self, hook: Hook) -> None:
        """Call `hook(metric)` for what is measured in this process: see limpet.Metric. Raises
        InvalidInput unless it is callable."""
        if not callable(hook):
            raise InvalidInput("on_metric takes a function of a limpet.Metric.")
        self._services.require("inspect", None)  # it is told about every session
        self._services.metrics.add(hook)


# --- for the doctor ------------------------------------------------------------------------------


async def unusual_timeouts(store: Store) -> tuple[Check, ...]:
    """A warning for each timeout that sessions have and that is unusually short or long."""
    counts: Counter[str] = Counter()
    async for head in each_head(store, Query(reverse=False)):
        if "timeouts" in head.facts:
            counts.update(unusual(head.facts))
    return tuple([_timeout_check(name, counts[name]) for name in USUAL if counts[name]])


def _timeout_check(name: str, count: int) -> Check:
    least, most = USUAL[name]
    text = f"{count:,} sessions are outside of the usual {least} to {most}"
    advice = "Look whether that is meant; set others with s.lifecycle.set_timeouts."
    return Check(f"timeout {name}", text, "warning", advice)


async def earlier_documents(store: Store) -> tuple[Check, ...]:
    """A warning if there are documents where Limpet does not read its own any more."""
    collections = [name for name in _POLICIES if await _has_documents(store, name)]
    query = Query(app="$memory", order="key", reverse=False)
    page = await store.heads(query, cursor=None, limit=100)
    if any([head.key.id.startswith(_MEMORY) for head in page.items]):
        collections.append("memory")
    if not collections:
        return ()
    text = f"documents in {', '.join(sorted(collections))} are not read by Limpet itself"
    return (Check("collections", text, "warning", _ADVICE),)


async def _has_documents(store: Store, collection: str) -> bool:
    query = Query(app=f"${collection}", order="key", reverse=False)
    return bool((await store.heads(query, cursor=None, limit=1)).items)
