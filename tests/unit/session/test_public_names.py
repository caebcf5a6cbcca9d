"""The public names of Session, Limpet and their facets: none by accident, internals have none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from limpet.session.blobs import SessionBlobs
from limpet.session.history.history import SessionHistory
from limpet.session.life.lifecycle import SessionLifecycle
from limpet.session.life.tools import SessionTools
from limpet.session.limpet import Limpet
from limpet.session.maintenance import StoreMaintenance
from limpet.session.policies import StorePolicies
from limpet.session.runs.outcomes import SessionOutcome
from limpet.session.runs.runs import SessionRuns
from limpet.session.runs.setup import SessionSetup
from limpet.session.session import Session
from limpet.session.work import StoreWork

# Fixed by the design of the API: these names stay as they are.
# docs/decisions/0016-facets.md says why a name is flat or stands in a facet.
PINNED: dict[type[Any], str] = {
    Session: """
        key app user id version state values labels events head phase status stop_reason lease actor
        append append_many append_soon update apply record label mark_processed
        read read_ids follow pending refresh messages context
        confirm answer resolve interrupt blocked_on fork merge rewind checkpoint envelope
        relate relations unrelate cite read_cited
        share unshare shared read_shared follow_shared write_shared
        activate suspend resume complete terminate archive
        history lifecycle tools runs blobs outcome setup memory""",
    SessionHistory: "at diff blame bisect lineage checkpoints restore unpin retention limits",
    SessionLifecycle: "timeouts set_timeouts renew durations set_timer clear_timer set_priority",
    SessionTools: "bound bind lock",
    SessionRuns: "wakes trace activations usage budget grant parent children tree",
    SessionBlobs: "put get stream",
    SessionOutcome: "define current grade evaluate history unmet",
    SessionSetup: """
        current attach compare environment permissions check_permission resources vaults""",
    Limpet: """
        work maintenance policies create get find get_or_create get_many list session app commit
        flush delete erase erase_user export import_ copy move prestage home resume unarchive watch
        position wake now graph spawn wait_for_children propose proposals decide recall withdraw
        close inbox status documents agents environments resources permissions vaults""",
    StoreWork: "claim renew release lock dead_letters requeue sweep",
    StoreMaintenance: "verify doctor backup compact migrate mirror",
    StorePolicies: """
        lifecycle checkpointing checkpointing_of retention gates promotion arrivals""",
}
# And those beside them. A name is added here on purpose, with the page that explains it.
MORE: dict[type[Any], str] = {
    SessionHistory: "damaged checkpoint_seq last_checkpoint_at",
    SessionLifecycle: "suspended_often",
    SessionRuns: "failure",
    Session: "receipt prove isolation checksum",
    Limpet: """
        node drain reclaim acting_as each keys names learnings promote memory_of audit
        export_audit""",
    StoreMaintenance: "on_metric",
    StorePolicies: "gates_of retention_of switch_tool fresh_evidence longer_idle switches",
}


@pytest.mark.parametrize("of", PINNED, ids=lambda of: of.__name__)
def test_a_class_has_the_names_that_are_meant_to_be_public_and_no_others(of: type[Any]) -> None:
    """What is pinned is there; what else is public is named; internals have no public name."""
    pinned, more = {*PINNED[of].split()}, {*MORE.get(of, "").split()}
    names = {name for name in dir(of) if not name.startswith("_")}
    assert not pinned & more
    assert pinned - names == set()
    assert names - pinned == more


RULE = Path(__file__).parents[3] / "docs" / "decisions" / "0033-session-or-above.md"
# Of a session, and of a session that is named by its key, or of all of them.
BOTH = {"app", "resume", "status"}


def ruled(of: type[Any]) -> dict[str, list[str]]:
    """The names that the page gives a class, by their kind."""
    _, _, rest = RULE.read_text().partition(f"\nOn `{of.__name__}`:\n")
    table = rest.strip().partition("\n\n")[0].splitlines()[2:]
    rows = [row.strip("|").split("|") for row in table]
    return {kind.strip(): re.findall(r"`(\w+)`", names) for kind, names in rows}


@pytest.mark.parametrize("of", [Session, Limpet], ids=lambda of: of.__name__)
def test_each_public_name_has_its_kind_on_a_session_or_above_it(of: type[Any]) -> None:
    """Continuity, pending work, pause, history on the session; coordination, publication and
    governance above it; each name once."""
    named = [name for names in ruled(of).values() for name in names]
    assert sorted(named) == sorted(name for name in dir(of) if not name.startswith("_"))


def test_what_stands_on_a_session_does_not_stand_above_it() -> None:
    """Nor the other way round."""
    on, above = ({n for names in ruled(of).values() for n in names} for of in (Session, Limpet))
    assert on & above == BOTH
    assert not set(ruled(Session)) & set(ruled(Limpet))
