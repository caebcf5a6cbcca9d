"""Jobs: one caller's commits on their way to the server, and the answer that the caller awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from limpet.model import PROCESSING, Commit, Key, ScopeKey, processed_by, scope_of
from limpet.store.protocol import Committed

TouchedKey: TypeAlias = Key | ScopeKey  # a session, or a scope name


class PostgresJob(msgspec.Struct, eq=False):
    """Served by one lane. A caller that is cancelled meanwhile waits until the outcome is known."""

    commits: Sequence[Commit]
    answer: asyncio.Future[tuple[Committed, ...]] = msgspec.field(default_factory=asyncio.Future)
    touches: tuple[TouchedKey, ...] = ()  # what no other job may touch while this one is on its way
    written: frozenset[ScopeKey] = frozenset()  # the scope names that it writes
    names: frozenset[ScopeKey] = frozenset()  # and those that it guards
    simple: bool = True  # nothing but its sessions has to be known to plan it
    size: int = 0
    taken: bool = False
    settled: bool = False  # the outcome is known
    outcome: asyncio.Future[None] | None = None  # set up by a caller that was cancelled
    failure: BaseException | None = None
    fresh: bool = False  # planned on what was read after it was asked for
    resent: bool = False  # an answer was lost: a repeat is our own doing
    search_ids: bool = False  # it may have been recorded before
    judged_us: int = 0  # the server's time at which it refused the job's fence
    tries: int = 0

    def __post_init__(self) -> None:
        for commit in self.commits:
            self._add(commit)
        if self.names:
            self.touches += tuple(self.names)

    def _add(self, commit: Commit) -> None:
        self.touches += keys_of(commit)
        if commit.base is not None:
            self.simple = False
        for draft in commit.drafts:
            self.size += len(draft.raw)
            if draft.type in PROCESSING and processed_by(draft.type, draft.data):
                self.simple = False
            if draft.scoped and draft.origin is None:  # what is adopted writes no shared names
                self.written |= _shared(commit.owner, [str(op.path[0]) for op in draft.plain_ops])
        if self.written or commit.guards:
            self.names |= self.written | _shared(commit.owner, commit.guards)
            self.simple = self.simple and not self.names

    def resend(self) -> None:
        """Look for a repeat of these drafts from now on, even of those whose ids we chose: an
        answer was lost."""
        self.search_ids = self.resent = True
        self.commits = [_with_given_ids(commit) for commit in self.commits]

    def again(self) -> PostgresJob:
        """The same job for another attempt, after the caller was answered that keys are missing.

        If an answer was lost before, repeats are still looked for.
        """
        job = PostgresJob(self.commits)
        job.search_ids, job.resent = self.search_ids, self.resent
        return job

    # --- the answer ----------------------------------------------------------------------------

    async def known(self) -> None:
        """Wait for the outcome, for a caller that is cancelled while its job is on its way."""
        if not self.settled:
            self.outcome = asyncio.get_running_loop().create_future()
        while self.outcome is not None and not self.outcome.done():
            try:
                await asyncio.shield(self.outcome)
            except asyncio.CancelledError:
                continue

    def succeed(self, answers: tuple[Committed, ...]) -> None:
        if not self.answer.done():
            self.answer.set_result(answers)
        self._release()

    def fail(self, error: BaseException) -> None:
        self.failure = error
        if not self.answer.done():
            self.answer.set_exception(error)
        self._release()

    def _release(self) -> None:
        self.settled = True
        if self.outcome is not None and not self.outcome.done():
            self.outcome.set_result(None)


def keys_of(commit: Commit) -> tuple[Key, ...]:
    """The sessions that a commit needs: its own, and the one that it begins on."""
    return (commit.key,) if commit.base is None else (commit.key, commit.base.parent)


def _shared(owner: tuple[str, str], names: Iterable[str]) -> frozenset[ScopeKey]:
    """The app: and user: names among them, in full."""
    app, user = owner
    scopes: set[ScopeKey] = set()
    for name in names:
        kind = scope_of(name)
        if kind in ("app", "user"):
            scopes.add((app, "" if kind == "app" else user, name))
    return frozenset(scopes)


def _with_given_ids(commit: Commit) -> Commit:
    drafts = tuple(msgspec.structs.replace(draft, caller_chose_id=True) for draft in commit.drafts)
    return msgspec.structs.replace(commit, drafts=drafts)
