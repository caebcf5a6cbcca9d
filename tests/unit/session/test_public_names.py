"""The public names of Session, Limpet and their facets: none by accident, internals have none."""

from __future__ import annotations

from typing import Any

import pytest

from limpet.session.blobs import SessionBlobs
from limpet.session.history.history import SessionHistory
from limpet.session.life.lifecycle import SessionLifecycle, SessionTools
from limpet.session.limpet import Limpet
from limpet.session.maintenance import StoreMaintenance
from limpet.session.policies import StorePolicies
from limpet.session.runs.outcomes import SessionOutcome
from limpet.session.runs.runs import SessionRuns
from limpet.session.runs.setup import SessionSetup
from limpet.session.session import Session
from limpet.session.work import StoreWork

# docs/decisions/0016-facets.md says why a name is flat or stands in a facet.
NAMES: dict[type[Any], str] = {
    Session: """
        key app user id version state values labels events head phase status stop_reason lease
        actor append append_many append_soon update apply record label mark_processed read read_ids
        follow pending refresh messages context confirm answer resolve interrupt blocked_on fork
        merge rewind checkpoint envelope receipt prove activate suspend resume complete terminate
        archive history lifecycle tools runs blobs outcome setup memory""",
    SessionHistory: """
        at diff blame bisect lineage checkpoints restore unpin retention damaged checkpoint_seq
        last_checkpoint_at""",
    SessionLifecycle: """
        timeouts set_timeouts renew durations suspended_often set_timer clear_timer set_priority""",
    SessionTools: "bound bind lock",
    SessionRuns: "wakes trace activations usage budget grant failure parent children tree",
    SessionBlobs: "put get stream",
    SessionOutcome: "define current grade evaluate history unmet",
    SessionSetup: """
        current attach compare environment permissions check_permission resources vaults""",
    Limpet: """
        work maintenance policies keys create get find get_or_create get_many list each inbox
        status names session app documents agents environments resources permissions vaults commit
        flush delete erase erase_user export import_ copy resume unarchive watch position wake
        now close learnings promote memory_of""",
    StoreWork: "claim renew release lock dead_letters requeue sweep",
    StoreMaintenance: "verify doctor backup compact migrate mirror on_metric",
    StorePolicies: "lifecycle checkpointing retention gates gates_of",
}


@pytest.mark.parametrize("of", NAMES, ids=lambda of: of.__name__)
def test_a_class_has_the_names_that_are_meant_to_be_public_and_no_others(of: type[Any]) -> None:
    """A name is added here on purpose, together with the page that explains it."""
    assert {name for name in dir(of) if not name.startswith("_")} == {*NAMES[of].split()}
