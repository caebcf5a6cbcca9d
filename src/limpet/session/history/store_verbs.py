"""The verbs of history on a store: policies that belong to an app, and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpet.errors import InvalidInput
from limpet.session.arguments import check_actor, check_sessions
from limpet.session.documents import Documents
from limpet.session.door import Door
from limpet.session.metrics import Hook

if TYPE_CHECKING:
    from limpet.session.history.policy import CheckpointPolicy

_NOBODY = "system:policies"  # who sets a policy where nobody is named


class Policies(Door):
    """What is decided for all sessions of an app. Kept with the store, for every process."""

    async def checkpointing(
        self, app: str, policy: CheckpointPolicy | None, *, actor: str | None = None
    ) -> None:
        """Have checkpoints made by themselves: see CheckpointPolicy. None ends that.

        This process follows it at once, others within a few seconds. It is a document of the
        collection "checkpointing", with its history.
        """
        from limpet.session.history.policy import COLLECTION, CheckpointPolicy, stored

        if check_sessions(app) is None:
            raise InvalidInput("a policy is of an app. Pass its name.")
        if not isinstance(policy, CheckpointPolicy | None):
            raise InvalidInput("policy is a limpet.CheckpointPolicy, or None to end it.")
        documents = Documents(self._journal, COLLECTION, actor=check_actor(actor) or _NOBODY)
        if policy is None:
            await documents.delete(app)
        else:
            await documents.put(app, stored(policy))
        self._journal.keeping.forget(app)

    def on_metric(self, hook: Hook) -> None:
        """Call `hook(metric)` for what is measured in this process: see limpet.Metric."""
        if not callable(hook):
            raise InvalidInput("on_metric takes a function of a limpet.Metric.")
        self._journal.metrics.add(hook)
