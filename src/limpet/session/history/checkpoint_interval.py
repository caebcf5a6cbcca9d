"""Interval: where a session stands between two of its checkpoints.

What is kept beside its log, as its memory is, cannot be ordered by time: clients date events by
what each knows of the store's clock. So a put records the number of the newest checkpoint, and its
commit holds only while that is the newest. Whatever has a lower number than a checkpoint was there
before it.
"""

from __future__ import annotations

from limpet.errors import SessionDeleted, SessionNotFound
from limpet.model import Commit, DefaultActor, Fact, Key
from limpet.model.facts import checkpoints as facts
from limpet.model.head import check_present
from limpet.model.keys import checkpoints_of
from limpet.session.journal import Journal

_ACTOR = DefaultActor("system:checkpoints")


class CheckpointInterval:
    """The newest checkpoint as last read; a commit is refused if another is newer by then."""

    def __init__(self, journal: Journal, key: Key) -> None:
        self._journal, self._key, self.log = journal, key, checkpoints_of(key)
        self._uid: str | None = None
        self._version, self._log_uid = 0, ""  # of the log of checkpoints
        self._begun: Fact | None = None  # what that log lacks to be this session's
        self.number: int | None = None  # of the newest one, 0 if there is none; None: not known

    async def look(self, uid: str | None) -> None:
        """Find out, unless it is known for the session `uid`. Of a session that is not there
        nothing is known."""
        if self.number is None or uid not in (None, self._uid):
            self._uid, self.number = uid, None
            await self.look_again()

    async def look_again(self) -> None:
        """Another checkpoint was recorded, or the session is gone. Raises SessionDeleted.

        What was known stays until more is: others may be about to commit by it.
        """
        store = self._journal.store
        try:
            head = (await store.load(self._key, tail=0, scopes=False)).head
        except SessionNotFound:
            self.number, self._begun = None, None
            return
        check_present(head, self._uid)
        uid = head.uid
        try:
            loaded = await store.load(self.log, tail=0, scopes=False)
        except (SessionNotFound, SessionDeleted):
            self._uid, self._version, self.number = uid, 0, 0
            self._begun = facts.checkpoints_created(self.log, uid)
            return
        self._uid, self._version, self._log_uid = uid, loaded.head.version, loaded.head.uid
        if loaded.fields.get(facts.OF) == uid:
            self.number, self._begun = loaded.fields[facts.LAST], None
        else:
            self.number, self._begun = 0, facts.begun_again(uid)

    def commits(self) -> tuple[Commit, ...]:
        """Return the commits that must hold with a put. Where no checkpoint was made yet, their log
        begins: the first one would otherwise be recorded unnoticed."""
        if self.number is None:
            return ()
        if self._begun is None:
            here = Commit(self._key, (), uid=self._uid)  # also if it departs meanwhile
            return (here, Commit(self.log, (), self._version, uid=self._log_uid))
        draft = self._journal.prepare_plain(self._begun, _ACTOR)
        begins = Commit(self.log, (draft,), self._version, reuse=not self._version)
        return (Commit(self._key, (), uid=self._uid), begins)
