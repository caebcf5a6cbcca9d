"""Checkpoint policies: when checkpoints are made automatically, for every process of a store.

An app's policy is a document of the internal collection `checkpointing`. A process reads it when it
first writes to the app, and again every few seconds. The journal asks before and after each commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Annotated, Any, Final

import msgspec

from limpet.errors import InvalidInput, LimpetError
from limpet.model import Prepared, described
from limpet.session.documents import Internal
from limpet.session.journal import Journal
from limpet.session.loggers import SESSION

COLLECTION: Final = "checkpointing"
STORE: Final = "store"  # the tier of checkpoints that are nowhere else
LIFECYCLE: Final = "session."  # events of this family force a full checkpoint
Adaptive = tuple[timedelta, timedelta, timedelta]


class CheckpointPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy for a session's checkpoints: when they are made, which are full, and how many are
    kept.

    `every`: at the first write after so much time. `events`: after events of these types or
    families ("agent.tool_use", "session.*"); those of session.* are full. `before`: before events
    of these types, and full; True: before every event that changes state. `adaptive`: (shortest,
    base, longest): every base ÷ (events a second), within these bounds. `tier`: where each of them
    is kept besides the store, a directory (file:///…) or a bucket (s3://…).
    """

    every: timedelta | None = None
    events: tuple[str, ...] = ()
    before: tuple[str, ...] | bool = ()
    adaptive: Adaptive | None = None
    full_every: int = 10  # of so many in a row, one is full
    keep: int = 100  # so many, and as many more as the oldest needs for its full one
    tier: str = STORE

    def __post_init__(self) -> None:
        times = [self.every] if self.every is not None else []
        times += [*self.adaptive] if self.adaptive is not None else []
        if any([not isinstance(t, timedelta) or t <= timedelta(0) for t in times]):
            raise InvalidInput("every and adaptive take timedeltas greater than 0.")
        if self.adaptive is not None and not (len(times) >= 3 and times[-3] <= times[-1]):
            raise InvalidInput("adaptive takes (shortest, base, longest), shortest ≤ longest.")
        for name, least in (("full_every", 1), ("keep", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise InvalidInput(f"{name} is {described(value)}. Pass a number from {least} on.")
        for types in (self.events, () if isinstance(self.before, bool) else self.before):
            if isinstance(types, str) or not all([isinstance(t, str) for t in types]):
                raise InvalidInput("events and before take types, as in ('agent.tool_use',).")
        if self.tier != STORE:
            from limpet.session.life.archive_storage import open_archive  # most policies name none

            open_archive(str(self.tier))


_Seconds = Annotated[float, msgspec.Meta(gt=0, le=timedelta.max.total_seconds() / 2)]


class StoredPolicy(msgspec.Struct, frozen=True):
    """A policy as the value of its document. What a later release added is passed over."""

    every: _Seconds | None
    events: tuple[str, ...]
    before: tuple[str, ...] | bool
    adaptive: tuple[_Seconds, _Seconds, _Seconds] | None
    full_every: int
    keep: int
    tier: str = STORE

    def policy(self) -> CheckpointPolicy:
        """Return a checked policy. Raises InvalidInput, InvalidURL."""
        adaptive = None
        if self.adaptive is not None:
            short, base, long = [timedelta(seconds=each) for each in self.adaptive]
            adaptive = (short, base, long)
        return CheckpointPolicy(
            every=None if self.every is None else timedelta(seconds=self.every),
            events=self.events,
            before=self.before,
            adaptive=adaptive,
            full_every=self.full_every,
            keep=self.keep,
            tier=self.tier,
        )


def policy_document(policy: CheckpointPolicy) -> dict[str, Any]:
    """A policy as the value of its document. Times are in seconds."""
    before = policy.before
    return {
        "every": None if policy.every is None else policy.every.total_seconds(),
        "events": list(policy.events),
        "before": before if isinstance(before, bool) else list(before),
        "adaptive": policy.adaptive and [each.total_seconds() for each in policy.adaptive],
        "full_every": policy.full_every,
        "keep": policy.keep,
        "tier": policy.tier,
    }


async def policy_of(journal: Journal, app: str) -> CheckpointPolicy | None:
    """The policy of an app; None if it has none, or none that can be read."""
    documents = Internal(journal, COLLECTION)
    document = await documents.find(app)
    read = None if document is None else documents.decoded(document, StoredPolicy)
    try:
        return None if read is None else read.policy()
    except LimpetError as error:
        SESSION.warning("policy ignored: error=%s app=%s", error.code, app)
        return None


def interval_us(policy: CheckpointPolicy, mutations: int, elapsed_us: int) -> int | None:
    """Return the time after which a checkpoint is due; None if none is due by time.

    The adaptive interval is max(shortest, base ÷ rate), at most the longest: at rate 0, the
    longest.
    """
    intervals: list[int] = (
        [] if policy.every is None else [policy.every // timedelta(microseconds=1)]
    )
    if policy.adaptive is not None:
        short, base, long = [each // timedelta(microseconds=1) for each in policy.adaptive]
        slowed = long if mutations == 0 else base * elapsed_us // (mutations * 1_000_000)
        intervals.append(min(long, max(short, slowed)))
    return min(intervals) if intervals else None


def trigger_before(policy: CheckpointPolicy, drafts: Sequence[Prepared]) -> tuple[str, bool] | None:
    """Return the trigger of a checkpoint before these drafts, and True if it must be full."""
    if policy.before is True:
        changing = [draft.type for draft in drafts if draft.plain_ops]
        return (f"before {changing[0]}", False) if changing else None
    types = () if isinstance(policy.before, bool) else policy.before
    matching = [draft.type for draft in drafts if _matches(draft.type, types)]
    return (f"before {matching[0]}", True) if matching else None


def trigger_after(policy: CheckpointPolicy, types: Iterable[str]) -> tuple[str, bool] | None:
    """Return the trigger of a checkpoint after these types, and True if it must be full."""
    matching = [type for type in types if _matches(type, policy.events)]
    if not matching:
        return None
    lifecycle = next((type for type in matching if type.startswith(LIFECYCLE)), None)
    return (matching[0], False) if lifecycle is None else (lifecycle, True)


def _matches(type: str, types: Sequence[str]) -> bool:
    return any([type == t or (t.endswith(".*") and type.startswith(t[:-1])) for t in types])
