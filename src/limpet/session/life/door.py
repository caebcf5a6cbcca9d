"""The life of sessions, from the door of a store: policies and sweeps. A part of Limpet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from limpet.errors import ArchiveFailed, SessionArchived
from limpet.model.facts import ARCHIVED
from limpet.model.facts.phases import rule
from limpet.session.arguments import (
    AnyKey,
    check_actor,
    key_of,
    typed_of,
)
from limpet.session.door import Door
from limpet.session.life.policy import (
    Function,
    Transition,
)

if TYPE_CHECKING:
    from limpet.session.life.report import Resumption
    from limpet.session.life.retrieval import Retrieve
    from limpet.session.life.tools import ToolRegistry
    from limpet.session.session import Session


class LongLife(Door):
    """What is decided for all sessions of an app, and done to those whose time has come."""

    async def resume(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        tools: ToolRegistry | None = None,
        retrieve: Retrieve | None = None,
        memory: Sequence[str] | None = None,
        queries: Sequence[Any] | None = None,
        fresh_seconds: float = 3_600,
        deadline_seconds: float = 10,
        cache_seconds: float = 604_800,
        tokens: int | None = None,
        tokens_min: int = 1,
        plan: Function | None = None,
        role: str | Function | None = None,
        fallback: bool = False,
        activate: bool = True,
        state_type: type[Any] | None = None,
        actor: str | None = None,
    ) -> tuple[Session[Any], Resumption]:
        """Bring a suspended session back: restore, rehydrate, rebind, reconstruct, verify.

        restore: the newest checkpoint is verified; with `fallback`, an older one may stand in.
        rehydrate: `queries` (or the state's retrieval_queries) are answered from the cache if
        younger than `fresh_seconds`, else by `retrieve(query)` within `deadline_seconds`, which is
        cached for `cache_seconds`; `tokens` less what was used, or what is left of the session's
        own budget, must leave `tokens_min`. rebind: tools as `tools` has them now, or else the
        registry of the app's lifecycle. reconstruct: these layers of `memory`. `report.context` has
        what the agent begins with: the `role` (a text, or a function of the session), state,
        evidence and memory. verify: six checks, `plan(session)` among them. Then it is resumed,
        and active unless activate=False, in one commit. Raises NoCheckpoint, NoFullCheckpoint,
        CheckpointIntegrity, InsufficientTokenBudget, RequiredToolUnavailable,
        ToolAuthorizationFailed, SessionIntegrity: it stays suspended then.
        """
        from limpet.session.life.resumption import Resuming, Settings
        from limpet.session.session import Session

        settings = Settings(
            tools=tools,
            retrieve=retrieve,
            memory=memory,
            queries=queries,
            fresh_seconds=fresh_seconds,
            deadline_seconds=deadline_seconds,
            cache_seconds=cache_seconds,
            tokens=tokens,
            tokens_min=tokens_min,
            plan=plan,
            role=role,
            fallback=fallback,
            activate=activate,
        )
        typed = typed_of(state_type, None, untyped=False)
        session: Session[Any] = Session(
            self._journal, key_of(key, user, id), actor=actor, typed=typed
        )
        return session, await Resuming(session, settings, actor).run()

    async def unarchive(
        self,
        key: AnyKey | str,
        user: str | None = None,
        id: str | None = None,
        /,
        *,
        actor: str | None = None,
    ) -> Transition:
        """Bring an archived session back into the store, in the phase it had before.

        Its file is proved first, and removed from the archive at the end. Interrupted, it goes on
        when called again. Raises InvalidTransition if it is not archived, ArchiveFailed.
        """
        from limpet.session.life.archiving import unarchive_session
        from limpet.session.life.mover import NOBODY
        from limpet.session.session import Session

        acting = check_actor(actor) or NOBODY
        session: Session[Any] = Session(self._journal, key_of(key, user, id), untyped=True)
        done = await unarchive_session(session, acting)
        return replace(done, side_effects=rule(ARCHIVED, "unarchive").effects)


async def opened_archived(session: Session[Any], tail: int, *, archived: bool) -> Session[Any]:
    """An archived session as its file has it, to be read. Raises SessionArchived unless asked."""
    from limpet.model.facts.archive import place
    from limpet.session.life.archiving import read_archived

    if not archived:
        raise SessionArchived(session.key)
    if place(session.head.facts) is None:  # its log is still here
        return session
    writer = session.writer
    how: dict[str, Any] = {"actor": session.actor, "typed": writer.typed}
    how["untyped"] = not writer.classless
    try:
        apart = await read_archived(writer.journal, session.head)
    except ArchiveFailed:
        now: Session[Any] = type(session)(writer.journal, session.key, **how)
        await now.writer.load(tail=tail, stub=True)
        if now.head.uid == session.head.uid:
            raise
        # It was unarchived meanwhile, and the file that its stub named is gone.
        is_back = now.head.phase != ARCHIVED
        return now if is_back else await opened_archived(now, tail, archived=archived)
    found: Session[Any] = type(session)(apart, session.key, **how)
    await found.writer.load(tail=tail)
    return found
