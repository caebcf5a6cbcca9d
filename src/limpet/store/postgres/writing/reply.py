"""The reply to a batch: what the SQL function limpet.commit returned, a JSON object."""

from __future__ import annotations

from typing import Final

import msgspec

from limpet.model import Head
from limpet.model.lease import with_lease


class CommitAnswer(msgspec.Struct):
    """What limpet.commit returns. Lists are by job or by session, and absent where all is plain."""

    now_us: int = 0  # by which jobs were judged
    token: str = ""  # names the transaction
    listened: bool = False  # somebody waits for hints
    refused: list[str | None] | None = None
    sids: list[int | None] | None = None
    fences: list[int] | None = None
    leases: list[int | None] = []
    workers: list[str | None] = []
    leaseds: list[int | None] = []


_answer: Final = msgspec.json.Decoder(CommitAnswer).decode


class CommitReply:
    """What the server said: refusals by job, leases by session, and its time."""

    __slots__ = ("_said", "has_listeners", "now_us", "plain", "refused", "token")

    def __init__(self, text: str | None) -> None:
        self._said = said = CommitAnswer() if text is None else _answer(text)
        self.now_us, self.token, self.has_listeners = said.now_us, said.token, said.listened
        self.refused: dict[int, str] = {}
        if said.refused is not None:
            self.refused = {job: why for job, why in enumerate(said.refused, 1) if why is not None}
        self.plain = not self.refused and said.fences is None  # everything holds, nobody is leased

    def sid(self, place: int) -> int:
        """The number of a session that the batch created, by its place, counted from one."""
        assert self._said.sids is not None
        found = self._said.sids[place - 1]
        assert found is not None
        return found

    def leased(self, head: Head, place: int) -> Head:
        """The head under the lease that the server has: ours may be older."""
        said, at = self._said, place - 1
        if said.fences is None or not said.fences[at]:
            return with_lease(head, 0, None, None, None) if head.fence else head
        lease = (said.leases[at], said.workers[at], said.leaseds[at])
        return with_lease(head, said.fences[at], *lease)
