"""The keys of a store: status, rotation, anchors, the key that checks receipts. `lp.keys`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from limpet.errors import KeysMissing
from limpet.model import Key
from limpet.session.arguments import AnyKey, check_progress, key_of
from limpet.session.provenance import Provenance
from limpet.store.protocol import Finding, Progress, Report

if TYPE_CHECKING:
    from limpet.security.keys import KeysStatus
    from limpet.security.receipts import Receipt
    from limpet.session.journal import Journal
    from limpet.session.services import Services


class StoreKeys:
    """The keys of a store that was opened with `keys=`: `lp.keys`."""

    __slots__ = ("_journal", "_services")

    def __init__(self, services: Services) -> None:
        self._services, self._journal = services, services.journal

    async def rotate(self, progress: Progress | None = None) -> int:
        """Wrap every data key with the newest master; return how many were wrapped again.

        Bodies are not touched. After an interruption, call it again; until it has returned,
        keep the old master beside the new one. `progress(done, total)` counts keys. Raises
        KeysMissing.
        """
        done = check_progress(progress)
        return await (await self._approved("rotate")).seal.rotate(done)

    async def renew(
        self, key: AnyKey | str, user: str | None = None, id: str | None = None, /
    ) -> int:
        """Give a session a new data key, which seals everything from now on; return its number.

        What was sealed before stays readable with the keys before it, and erasing the session
        destroys all of them. Another process that has the session in use goes on with the key that
        it has until it reads something that was sealed with the new one. Raises KeysMissing,
        SessionNotFound.
        """
        of = key_of(key, user, id)
        return await (await self._approved("renew", of)).renew(of)

    async def status(self) -> KeysStatus:
        """Return the ring, its masters and how many keys each of them wraps. Raises KeysMissing."""
        await self._services.approved_app("keys", None)
        return await provenance_of(self._journal, "status").seal.status()

    async def anchor(self) -> int:
        """Accept every session as it is now, for example after a backup was restored on purpose;
        return how many.

        Raises KeysMissing.
        """
        if self._services.guard is not None:
            return await (await self._approved("anchor")).anchor_all()
        done = await provenance_of(self._journal, "anchor").anchor_all()
        await self._approved("anchor")  # afterwards: before it, the audit may not be accepted
        return done

    async def compare(self, receipt: Receipt) -> tuple[Finding, ...]:
        """Compare a receipt of this store with its log and return the findings.

        There are some if the session was removed, rolled back or changed since, even if the key
        ring was too. Raises ReceiptInvalid.
        """
        from limpet.security.receipts import check_receipt

        await self._services.approved_app("keys", None)
        signing = provenance_of(self._journal, "compare")
        check_receipt(receipt, public_key=signing.seal.public_key)
        return await signing.compared(receipt.uid, receipt.version, receipt.link)

    async def _approved(self, verb: str, key: Key | None = None) -> Provenance:
        """The provenance, once the audit has what is to be done with the keys, of one session or of
        all. Raises AccessDenied, KeysMissing."""
        from limpet.security.access import Resource
        from limpet.security.roles import EVERY_APP

        store, guard = Resource("store", EVERY_APP, name=verb), self._services.guard
        if guard is not None and (key is None or not guard.allows("keys", store)):
            await guard.check("keys", store)
            return provenance_of(self._journal, verb)
        provenance = provenance_of(self._journal, verb)
        resource = store if key is None else Resource.of(key)
        who = "system" if guard is None else guard.principal
        await self._journal.audit.record(who, "keys", resource, allowed=True)
        return provenance

    @property
    def public_key(self) -> str:
        """The public key that checks this store's receipts, as PEM. Raises KeysMissing."""
        return provenance_of(self._journal, "public_key").seal.public_key


def provenance_of(journal: Journal, what: str) -> Provenance:
    """The provenance of a store that has keys. Raises KeysMissing, StoreClosed."""
    journal.check_open()
    if journal.provenance is None:
        raise KeysMissing(what)
    return journal.provenance


async def with_anchors(journal: Journal, key: Key | None, report: Report) -> Report:
    """A report of a verification with what the anchors in the key ring tell."""
    if journal.provenance is None:
        return report
    await journal.provenance.anchor_noted()
    anchors = await journal.provenance.findings(key)
    return msgspec.structs.replace(report, findings=(*report.findings, *anchors))
