"""The audit at a store's door: pages of records, and files that verify offline.

An export has every event of a log, so that its chain can be followed; records that were not asked
for are redacted: the digest of the body stands for it. `limpet.security.audit_check` checks it.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from limpet.errors import AuditInvalid, InvalidQuery, ReceiptInvalid, SessionNotFound
from limpet.model import Head, canonical, described, to_time
from limpet.model.limits import PAGE_MAX
from limpet.security import audit_check
from limpet.security.audit import Audit, AuditQuery, log_of
from limpet.session.arguments import AnyKey, check_app, check_flag, key_of, moment_us
from limpet.session.move.adopter import check_whole, records_in
from limpet.session.move.bundle import refuse_place
from limpet.session.move.import_export import check_path, unwritten
from limpet.store.protocol import ChainedEvent
from limpet.store.system import in_thread

if TYPE_CHECKING:
    from limpet.session.journal import Journal
    from limpet.session.services import Services


class AuditLog(msgspec.Struct, frozen=True):
    """The end of an app's audit log. Keep `link`: it proves the log up to `version`."""

    app: str
    uid: str
    version: int
    link: str


class AuditExport(msgspec.Struct, frozen=True):
    """The contents of an exported audit."""

    logs: tuple[AuditLog, ...]
    at: datetime
    signed: bool = False

    @property
    def links(self) -> Mapping[str, str]:
        """The link of each log by its app: pass them to `limpet.check_audit`."""
        return {log.app: log.link for log in self.logs}


def audit_query(
    app: str | None,
    since: datetime | None,
    principal: str | None,
    session: AnyKey | None,
    *,
    denied: bool | None,
) -> AuditQuery:
    """Return the conditions that were asked for. Raises InvalidQuery, InvalidKey."""
    if principal is not None and (not isinstance(principal, str) or not principal):
        wanted = "principal is the id of one, as in 'user:ada'"
        raise InvalidQuery(f"{wanted}, not {described(principal)}")
    if denied is not None:
        check_flag("denied", denied)
    of = None if session is None else key_of(session)
    if of is not None and app not in (None, of.app):
        raise InvalidQuery(f"the session {of} is not in the app {described(app)}")
    asked = check_app(app) if of is None else of.app
    return AuditQuery(asked, moment_us("since", since), principal, of, denied)


async def approved_audit(services: Services, query: AuditQuery) -> tuple[Services, AuditQuery]:
    """Return the services of the system and the query, once the principal may read this audit: that
    of its own app, if it has one. Raises AccessDenied."""
    guard = services.guard
    if guard is not None and query.app is None:
        query = msgspec.structs.replace(query, app=guard.principal.app)
    return await services.approved_app("audit", query.app), query


async def export_audit(journal: Journal, path: str | Path, query: AuditQuery) -> AuditExport:
    """Write the audit to a file that must not exist yet: see `Limpet.export_audit`."""
    target = check_path(path)
    refuse_place(target)
    audit, at = journal.audit, to_time(journal.now_us())
    heads = await audit.heads(query.app)
    logs = [AuditLog(h.key.id, h.uid, h.version, h.link.hex()) for h in heads]
    signing = journal.provenance
    receipts = [] if signing is None else [await signing.sign(h, keep=False) for h in heads]
    manifest = {
        "limpet": audit_check.FORMAT,
        "at": at.isoformat(),
        "logs": [msgspec.to_builtins(log) for log in logs],
        "receipts": [msgspec.to_builtins(receipt) for receipt in receipts],
    }
    part = target.with_name(f"{target.name}.part")
    try:
        handle = await in_thread(lambda: os.open(part, _NEW, 0o600))
        with os.fdopen(handle, "wb") as file:
            file.write(_line(manifest))
            for head in heads:
                async for lines in _lines(journal, head, query):
                    await in_thread(lambda some=lines: file.write(some))  # type: ignore[misc]  # bound now
            file.flush()
            # The name must not appear before the bytes are on disk.
            await in_thread(lambda: os.fsync(file.fileno()))
        await in_thread(lambda: part.rename(target))
    except OSError as error:
        raise unwritten(target, error) from error
    finally:
        part.unlink(missing_ok=True)
    return AuditExport(tuple(logs), at, bool(receipts))


_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


async def _lines(journal: Journal, head: Head, query: AuditQuery) -> AsyncIterator[bytes]:
    """Yield the lines of a log, a page at a time. Raises SessionCorrupt."""
    source, after = records_in(journal), 0
    while after < head.version:
        limit = min(PAGE_MAX, head.version - after)
        records = await source.records(head.key, after=after, limit=limit)
        check_whole(head.key, records, after)
        yield b"".join([await _event(journal.audit, head.key.id, each, query) for each in records])
        after = records[-1].event.seq


async def _event(audit: Audit, app: str, record: ChainedEvent, query: AuditQuery) -> bytes:
    event = record.event
    names = (event.id, event.type, event.actor, event.cause, event.invocation_id)
    header = canonical((*names, event.correlation_id, event.wake_id)).decode()
    line: dict[str, Any] = {"seq": event.seq, "at_us": event.at_us, "header": header}
    line["link"] = event.link.hex()
    data = None if record.raw is None else json.loads(record.raw)["data"]
    opened = {} if data is None else await audit.openings(data)
    texts = {hash: opening.name for hash, opening in opened.items()}
    if data is None or not audit.asked(query, app, event, data, texts):
        return _line({**line, "digest": record.digest.hex(), "redacted": True})
    assert record.raw is not None
    return _line(
        {
            **line,
            "salt": record.salt.hex(),
            "body": record.raw.decode(),
            "names": {hash: {"name": o.name, "key": o.key} for hash, o in opened.items()},
            "record": audit_check.record_of(app, event.type, event.at_us, data, texts),
        }
    )


def _line(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def check_audit(
    path: str | Path,
    *,
    links: Mapping[str, str] | None = None,
    public_key: str | bytes | None = None,
) -> AuditExport:
    """Check a file of `lp.export_audit`, without a store; return what is in it.

    Finds lines that were changed, removed, swapped, added or cut off. Whoever can write the file
    can also build another chain: pass the `links` that were noted when it was made
    (`AuditExport.links`), or the `public_key` of a store with keys. Raises AuditInvalid.
    """
    file = check_path(path)
    try:
        with file.open("rb") as lines:
            manifest = audit_check.check_lines(lines, links)
        logs = msgspec.convert(manifest["logs"], tuple[AuditLog, ...])
        at = msgspec.convert(manifest["at"], datetime)
        if public_key is not None:
            _check_receipts(logs, manifest["receipts"], public_key)
        return AuditExport(logs, at, bool(manifest["receipts"]))
    except OSError as error:
        raise AuditInvalid(str(file), f"it cannot be read ({error.strerror or error})") from error
    except (ValueError, KeyError, TypeError, AttributeError, ReceiptInvalid) as error:
        raise AuditInvalid(str(file), str(error).rstrip(".")) from error


async def compare_audit(journal: Journal, export: AuditExport) -> list[str]:
    """Compare a file that was checked with the store: what was removed or changed there since."""
    source = records_in(journal)
    findings: list[str] = []
    for log in export.logs:
        try:
            records = await source.records(log_of(log.app), after=log.version - 1, limit=1)
        except SessionNotFound:
            records = ()
        if not records or records[0].event.seq != log.version:
            findings.append(
                f"the audit of {log.app} ends before event {log.version:,} in the store"
            )
        elif records[0].event.link.hex() != log.link:
            findings.append(
                f"the audit of {log.app} has another event {log.version:,} in the store"
            )
    return findings


def _check_receipts(logs: tuple[AuditLog, ...], said: Any, public_key: str | bytes) -> None:
    from limpet.security.receipts import Receipt, check_receipt

    by_uid = {receipt.uid: receipt for receipt in msgspec.convert(said, list[Receipt])}
    for log in logs:
        receipt = by_uid.get(log.uid)
        if receipt is None or (receipt.version, receipt.link.hex()) != (log.version, log.link):
            raise audit_check.AuditNotValid(f"the log of {log.app} has no receipt of where it ends")
        check_receipt(receipt, public_key=public_key)
