"""Moving sessions: export and import of one, and copying to another store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from limpet.errors import InvalidInput
from limpet.model import Key, described
from limpet.session.arguments import AnyKey, check_progress, key_and, one_or_all
from limpet.session.door import Door
from limpet.store.paging.cursor import check_app
from limpet.store.protocol import Progress

if TYPE_CHECKING:
    from limpet.session.move.adopter import Adopter, CopyTarget
    from limpet.session.move.transfer import Copied


class Moving(Door):
    """What brings sessions from one store to another. Nothing of it is needed to start."""

    @overload
    async def export(self, key: AnyKey, path: str | Path) -> None: ...

    @overload
    async def export(self, app: str, user: str, id: str, /, path: str | Path) -> None: ...

    async def export(self, key: Any, *then: Any, path: str | Path | None = None) -> None:
        """Write the session to a file that proves itself: its whole log, with bodies opened.

        The file must not exist yet; it appears complete or not at all, readable by this user only.
        Blobs, checkpoints, and session and episodic memory are in it; other snapshots and leases
        stay behind. Of a fork it has the state that it began on, not the log of its parent. Raises
        BundleRefused, and SessionCorrupt if an event cannot be read.
        """
        from limpet.session.move.files import check_path, export_session

        named, target = key_and((key, *then), path, "a path")
        await export_session(self._journal, named, check_path(target), memory=True)

    async def import_(self, path: str | Path) -> Key:
        """Adopt the session in a file: the same events, times and links, under the same key.

        The whole file is verified first: a truncated or changed one is refused and nothing is
        recorded (BundleDamaged). Importing again does nothing more, and goes on if an import was
        interrupted. Raises SessionConflict if the store has another log under the key,
        SessionDeleted or SessionErased if it was ended there. It writes no app: or user: name.
        """
        from limpet.session.move.files import check_path, import_session

        return await import_session(self._journal, check_path(path))

    async def copy(
        self,
        key: AnyKey | str | None = None,
        user: str | None = None,
        id: str | None = None,
        *,
        app: str | None = None,
        to: CopyTarget,
        progress: Progress | None = None,
    ) -> Copied:
        """Copy one session, an app, or everything to another store, where it has less.

        Events keep their ids, times and links. Calling it again sends only what is missing, also
        after an interruption. Without a key it also sets the app: and user: names that the target
        never had; with one, `left_out` names them instead. One session raises what is in the way
        (SessionConflict, SessionDeleted, SessionCorrupt, …); among many, `refused` names those that
        were not copied. `progress(done, total)` counts events.
        """
        from limpet.session.move.adopter import Adopter
        from limpet.session.move.transfer import Transfer

        if key is not None and app is not None:
            raise InvalidInput("copy takes a key or an app, not both. Leave one out for the other.")
        if isinstance(key, str) and user is None and id is None:
            raise InvalidInput(f"copy takes a key, not {described(key)}. Name an app by app=….")
        one = one_or_all(key, user, id, reserved=True)
        if not isinstance(to, (Moving, Adopter)) or getattr(to, "of", to) is self:
            raise InvalidInput(
                f"copy needs another store to copy to, not {described(to)}. Open one and pass it: "
                "await lp.copy(to=other)."
            )
        transfer = Transfer(self._journal, to.adopter, check_progress(progress))
        return await (transfer.all(check_app(app)) if one is None else transfer.one(one))

    @property
    def adopter(self) -> Adopter:
        """The receiving side of a copy, for the rest of the package. Raises StoreClosed."""
        from limpet.session.move.adopter import Adopter

        return Adopter(self._journal)
