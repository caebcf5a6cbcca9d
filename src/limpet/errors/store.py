"""The store cannot serve the call, or could not record what append_soon had queued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, Self, TypeAlias

from limpet.errors.root import LimpetError


class StoreError(LimpetError):
    """The store cannot serve the call; the session is unchanged."""

    code = "store.error"
    status = 503
    exit_code = 4
    # The ids of the drafts that were sent. Sending them again with these ids never records them
    # twice, whether or not the first attempt was recorded.
    ids: tuple[str, ...] = ()

    def naming(self, ids: tuple[str, ...]) -> Self:
        """The same error for one caller, with the ids of that caller's drafts.

        A store gives one error to all whose commits were in a batch that failed: with the ids of
        one on it, the others would send these again, and lose their own.
        """
        own = type(self).__new__(type(self), *self.args)
        own.__dict__.update(self.__dict__)
        own.ids = ids
        return own.with_traceback(self.__traceback__)


class StoreClosed(StoreError):
    code = "store.closed"

    def __init__(
        self,
        what: str = "this Limpet",
        advice: str = "Use it inside `async with limpet.open(url) as lp`, or without await inside "
        "`with limpet.open_sync(url) as lp`",
    ) -> None:
        self.what, self.advice = what, advice
        super().__init__(f"{what} is not open. {advice}.")


class StoreForked(StoreError):
    code = "store.forked"

    def __init__(self) -> None:
        super().__init__(
            "this store was opened before os.fork and belongs to the parent process: neither "
            "SQLite's locks nor a server's connections can be shared. Open it only after the fork, "
            "or start the process with spawn or forkserver."
        )


_HELD: Final = "another process holds the write lock and did not release it in time"
_LET_GO: Final = "if this persists, end the process that keeps a transaction open"


class StoreBusy(StoreError):
    code = "store.busy"
    retryable = True

    def __init__(self, where: str, reason: str = _HELD, advice: str = _LET_GO) -> None:
        self.where, self.reason, self.advice = where, reason, advice
        super().__init__(f"{where} is busy: {reason}; nothing was written. Try again; {advice}.")


class StoreFull(StoreError):
    code = "store.full"
    retryable = True
    status = 507

    def __init__(self, where: str) -> None:
        self.where = where
        super().__init__(
            f"no space is left for {where} and nothing was written. Free some space, then retry."
        )


_FILE_RIGHTS: Final = (
    "give this process write permission to the file and to its directory (SQLite keeps -wal and "
    "-shm files beside it)"
)


class StoreReadOnly(StoreError):
    code = "store.read_only"

    def __init__(self, where: str, advice: str = _FILE_RIGHTS) -> None:
        self.where, self.advice = where, advice
        super().__init__(f"{where} cannot be written: {advice}.")


# What the store was asked to do, which decides what is unknown after a failure: whether events were
# recorded, a session was created, a change was made (a deletion, a release) or a lease was granted.
# After a read nothing is unknown.
Asked: TypeAlias = Literal["write", "create", "change", "lease", "read"]
_OPEN: Final[dict[Asked, str]] = {
    "write": "Earlier acknowledged writes are safe. Whether this write was recorded is unknown: "
    "send it again with the same id (error.ids); it is never recorded twice",
    "create": "Whether the session was created is unknown: call lp.get_or_create with its id",
    "change": "Whether the change was made is unknown: calling again is safe",
    "lease": "A lease may have been granted; it expires by itself. Try again",
    "read": "Nothing was written. Try again",
}


class StoreFailed(StoreError):
    code = "store.failed"
    retryable = True

    def __init__(self, where: str, reason: str, asked: Asked = "write") -> None:
        self.where, self.reason, self.asked = where, reason, asked
        super().__init__(f"{where} failed: {reason}. {_OPEN[asked]}.")


_DOCTOR: Final = (
    "Run lp.maintenance.doctor() (limpet doctor); if it finds no problem, report this as a bug"
)


class StoreRefused(StoreError):
    code = "store.refused"
    status = 500

    def __init__(self, where: str, reason: str, advice: str = _DOCTOR) -> None:
        self.where, self.reason, self.advice = where, reason, advice
        super().__init__(
            f"{where} refused what it was asked: {reason}. Nothing was written, and trying again "
            f"does not help. {advice}."
        )


class SealUnavailable(StoreError):
    code = "store.seal"
    retryable = True

    def __init__(
        self, owners: Sequence[str], reason: str, doing: Literal["provide", "destroy"] = "provide"
    ) -> None:
        self.owners, self.reason, self.doing = tuple(owners), reason, doing
        more = f" and {len(owners) - 1} more" if len(owners) > 1 else ""
        done = "read or written" if doing == "provide" else "erased"
        super().__init__(
            f"the seal could not {doing} the keys of {owners[0]}{more} ({reason}), so nothing was "
            f"{done}. Make the key service reachable, then try again."
        )


class StoreUnopened(StoreError):
    code = "store.unopened"

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(f"{where} cannot be opened: {reason}.")


class BackupRefused(StoreError):
    code = "backup.refused"
    status = 409

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(f"nothing was copied: {where} {reason}.")


class BackupDamaged(StoreError):
    code = "backup.damaged"
    status = 409

    def __init__(self, where: str, findings: tuple[str, ...]) -> None:
        self.where, self.findings = where, findings
        more = f", and {len(findings) - 1:,} more findings" if len(findings) > 1 else ""
        super().__init__(
            f"{where} is damaged, and nothing was replaced: {findings[0]}{more}. Restore another "
            "backup, or restore this one anyway (damaged=True, or --damaged on the command line): "
            "sessions that are not named are intact."
        )


class BundleRefused(StoreError):
    code = "bundle.refused"
    status = 409

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(f"nothing was written or recorded: {where} {reason}.")


class BundleDamaged(StoreError):
    code = "bundle.damaged"
    status = 409

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(
            f"{where} is not a complete export of a session, and nothing was imported: {reason}. "
            "Export the session again, or use another copy of the file."
        )


class StoreForeign(StoreError):
    code = "store.foreign"

    def __init__(self, where: str, advice: str = "Choose another path or another database") -> None:
        self.where, self.advice = where, advice
        super().__init__(f"{where} is not a Limpet database: another program created it. {advice}.")


class StoreNewer(StoreError):
    code = "store.newer"

    def __init__(self, where: str, found: int, known: int) -> None:
        self.where, self.found, self.known = where, found, known
        super().__init__(
            f"{where} has schema {found}; this release supports up to {known}. Nothing was "
            "changed. Upgrade limpet."
        )


class StoreOlder(StoreError):
    code = "store.older"

    def __init__(self, where: str, found: int, known: int) -> None:
        self.where, self.found, self.known = where, found, known
        super().__init__(
            f"{where} has schema {found}; this release needs {known}. This command is read-only "
            "and changed nothing. Use the release that wrote the store, or start your application "
            "with this release, which migrates the schema."
        )


_DAMAGED_FILE: Final = (
    "Keep a copy of the file with its -wal, run lp.maintenance.verify() (limpet verify) to see "
    "what is affected, and restore a backup"
)


class StoreCorrupt(StoreError):
    code = "store.corrupt"
    status = 500

    def __init__(self, where: str, reason: str, advice: str = _DAMAGED_FILE) -> None:
        self.where, self.reason, self.advice = where, reason, advice
        super().__init__(f"{where} is damaged: {reason}. {advice}.")


class StoreOnNetwork(StoreError):
    code = "store.network"

    def __init__(self, where: str, file_system: str) -> None:
        self.where, self.file_system = where, file_system
        super().__init__(
            f"{where} is on a network file system ({file_system}), where SQLite's locks cannot be "
            "trusted. Put it on a local disk."
        )


class ExtraMissing(StoreError):
    code = "extra.missing"

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(f"{package} is not installed. Run: pip install 'limpet[{extra}]'.")


class ArchiveFailed(StoreError):
    code = "archive.failed"
    retryable = True

    def __init__(self, where: str, doing: str, reason: str) -> None:
        self.where, self.doing, self.reason = where, doing, reason
        super().__init__(
            f"a file in the archive {where} could not be {doing}: {reason}. Nothing was removed "
            "from the store. Check the archive, then try again."
        )


class ArchiveSealed(StoreError):
    code = "archive.sealed"
    status = 409

    def __init__(self, where: str, owner: str) -> None:
        self.where, self.owner = where, owner
        super().__init__(
            f"the file {where} is sealed with the keys of {owner}, and no seal was given to open "
            "it. Open the store with the seal that it was written with: limpet.open(url, seal=…)."
        )


class ArchiveDamaged(StoreError):
    code = "archive.damaged"
    status = 409

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(
            f"the sealed file {where} cannot be opened: {reason}. Nothing was removed from the "
            "store. Open the store with the keys that it was sealed with, or put a copy of the "
            "file in its place."
        )


# --- what append_soon queued ----------------------------------------------------------------------


class Unrecorded:
    """Events of one session that a flush could not record, in their order, and why.

    `drafts` are limpet.Draft objects with their ids: `await s.append_many(each.drafts)`.
    """

    __slots__ = ("drafts", "error", "key")

    def __init__(self, key: Any, drafts: tuple[Any, ...], error: Exception) -> None:
        self.key, self.drafts, self.error = key, drafts, error

    def __repr__(self) -> str:
        return f"<{_events(len(self.drafts))} of {self.key} not recorded: {self.error}>"

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple([draft.id for draft in self.drafts])


class QueueFull(StoreError):
    code = "queue.full"
    retryable = True

    def __init__(self, what: str, waiting: int, waiting_max: int) -> None:
        self.waiting, self.waiting_max = waiting, waiting_max
        super().__init__(
            f"{waiting:,} {what} wait for a flush; the limit is {waiting_max:,}. This event was "
            "not queued: await lp.flush(), then append it again."
        )


class FlushFailed(StoreError):
    code = "flush.failed"
    status = 409

    def __init__(
        self, unrecorded: Sequence[Unrecorded], during: Literal["flush", "write"] = "flush"
    ) -> None:
        self.unrecorded, self.during = tuple(unrecorded), during
        self.ids = tuple([id for each in self.unrecorded for id in each.ids])
        first = self.unrecorded[0]
        others = len(self.unrecorded) - 1
        more = "" if not others else f" and {others:,} more session{'s' if others > 1 else ''}"
        what = f"not recorded: {_events(len(self.ids))} queued for {first.key}{more}"
        super().__init__(f"{what}. {first.error} {_NEXT[during]}")


def _events(count: int) -> str:
    return f"{count:,} event{'' if count == 1 else 's'}"


_NEXT = {
    "flush": "What was not recorded has left the queue. error.unrecorded has the drafts: send them "
    "again with append_many; none is recorded twice.",
    "write": "So this write was not tried. lp.flush() reports them too; then try this write again.",
}
