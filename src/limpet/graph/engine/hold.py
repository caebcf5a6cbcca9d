"""Holding: of several callers that resume an invocation, one runs it.

The one that runs holds a lease on the record that it writes, if the checkpointer gives leases. An
unfinished invocation that is resumed under a new id points to the one that goes on in its place, so
that resuming it again finds what that one did. First runs hold no lease: they would pay for it with
a commit, and nobody resumes what never stopped.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from limpet.errors import (
    CheckpointInUse,
    CheckpointLoadFailed,
    CheckpointSuperseded,
    SuspensionRecordInvalid,
)
from limpet.errors.graph import said
from limpet.graph.checkpoint import Checkpointer, CheckpointRecord, LeasingCheckpointer
from limpet.graph.engine.resume import check_unused, load_record
from limpet.graph.engine.track import Tracker


class Hold:
    """The lease of one run on one record; nothing if the checkpointer gives none."""

    def __init__(self, checkpointer: Checkpointer | None) -> None:
        leases = checkpointer if isinstance(checkpointer, LeasingCheckpointer) else None
        self._all, self._leases = checkpointer, leases
        self._id: str | None = None

    async def resume(self, invocation_id: str, *, signal: bool) -> CheckpointRecord:
        """The record to go on from, which nobody else runs.

        Raises CheckpointInUse, CheckpointSuperseded, or what `load_record` raises. A completed one
        is not held: any number of turns may begin from it.
        """
        record = await load_record(self._all, invocation_id, signal=signal)
        while self._leases is not None and record.status != "completed":
            await self._take(record)
            seen, record = record, await load_record(self._all, record.invocation_id, signal=signal)
            if record.revision != seen.revision:  # another had it until now, and has run it
                if seen.status == "suspended":  # what it waits for now is not what it waited for
                    raise _taken(record.invocation_id)
                raise CheckpointInUse(record.invocation_id)
            if record.resumed_as is None:
                return record
            later = await self._leases.load(record.resumed_as)
            now = "deleted" if later is None else later.status
            if later is None or now not in ("running", "resumed"):
                raise CheckpointSuperseded(record.invocation_id, record.resumed_as, now)
            record = later
        return record

    async def pass_on(self, record: CheckpointRecord, tracker: Tracker, new_id: str) -> None:
        """Let the run of `new_id` go on in place of the record that is held.

        The record points to the new one, which is saved with it: there is always one to resume.
        """
        if self._leases is None:
            tracker.begin_soon()
            return
        pointer = msgspec.structs.replace(record, status="resumed", resumed_as=new_id)
        if not await tracker.pass_on(self._leases, pointer):
            await check_unused(self._leases, new_id)
            raise CheckpointInUse(record.invocation_id)  # it is still being written
        if not await self._leases.hold(new_id):
            raise CheckpointInUse(new_id)
        held, self._id = record.invocation_id, new_id
        await self._leases.release(held)

    async def release(self) -> None:
        """The run is over. A lease that cannot be given back ends by itself."""
        if self._leases is not None and self._id is not None:
            held, self._id = self._id, None
            with suppress(Exception):
                await self._leases.release(held)

    async def _take(self, record: CheckpointRecord) -> None:
        assert self._leases is not None
        await self.release()
        try:
            taken = await self._leases.hold(record.invocation_id)
        except Exception as error:
            raise CheckpointLoadFailed(record.invocation_id, said(error)) from error
        if taken:
            self._id = record.invocation_id
        elif record.status == "suspended":
            raise _taken(record.invocation_id)
        else:
            raise CheckpointInUse(record.invocation_id)


def _taken(invocation_id: str) -> SuspensionRecordInvalid:
    return SuspensionRecordInvalid(invocation_id, "it has been resumed already")
