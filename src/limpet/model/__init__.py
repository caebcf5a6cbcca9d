"""The log, pure: keys, events, facts, commits, heads and folds. The words the rest speaks."""

from limpet.model.adopt import adopted
from limpet.model.chain import SALT_BYTES, genesis
from limpet.model.commit import Base, Commit
from limpet.model.due import (
    Deadline,
    Reasons,
    activity_moves,
    deadline_us,
    deadlines,
    due_for,
    due_us,
    moves_with_activity,
    runnable_us,
)
from limpet.model.events import (
    CHILD_ENDED,
    DefaultActor,
    Draft,
    Event,
    Fact,
    Origin,
    Prepared,
    Trace,
    acting_actor,
    decode_body,
    is_input,
    path_opening,
    prepare,
    prepare_plain,
    removed_event,
    to_time,
    to_us,
    traced,
)
from limpet.model.facts.checkpoints import NO_CHECKPOINT, LastCheckpoint, last_checkpoint
from limpet.model.facts.creation import CREATED
from limpet.model.facts.inputs import PROCESSED, PROCESSING, processed_by
from limpet.model.facts.view import NO_TEXTS, Facts, Texts
from limpet.model.fold import (
    Fold,
    Recorded,
    ScopeKey,
    ScopeValue,
    ScopeWrite,
    is_run,
    record,
    record_run,
    replay,
    replay_all,
    replay_any,
    scope_next,
    scope_ops,
)
from limpet.model.head import Head, based, blank, buried
from limpet.model.keys import (
    CHECKPOINTS,
    Key,
    Noise,
    checkpoints_of,
    forgotten_with,
    is_reserved,
    name_part,
    owner_of,
    unfit,
    without_length,
)
from limpet.model.lease import (
    LEFT_US,
    Lease,
    admits,
    is_leased,
    lasting,
    left_until,
    locked,
    with_lease,
)
from limpet.model.ops import Add, Delete, Inc, Merge, Op, Path, PlainOp, Set, apply, scope_of
from limpet.model.values import (
    ABSENT,
    EMPTY,
    FrozenDict,
    FrozenList,
    Reads,
    canonical,
    checksum,
    described,
    encode,
    freeze,
    same,
    settle,
    thaw,
)
