"""Every limit of the model, named once.

A limit exists so that one caller cannot block or break another. Raising one affects memory and
latency, never the stored format.
"""

from __future__ import annotations

from typing import Final

KEY_PART_CHARS_MAX: Final = 256
KEY_BYTES_MAX: Final = 1_100  # all three parts: a key and a label together fit a server's index
LABEL_BYTES_MAX: Final = 1_400  # name and value
TYPE_CHARS_MAX: Final = 128
ACTOR_CHARS_MAX: Final = 320  # a key part with a prefix
ID_CHARS_MAX: Final = 256
NAME_CHARS_MAX: Final = 256
LABELS_MAX: Final = 64
LABEL_VALUE_CHARS_MAX: Final = 256
TIMERS_MAX: Final = 64
REVISITS_PER_TURN_MAX: Final = 16
REASON_CHARS_MAX: Final = 1_000  # of a revisit
REQUESTS_MAX: Final = 16  # that one session waits for at a time
REQUEST_BYTES_MAX: Final = 16 * 2**10  # of the input of one: kept with the state
EFFECT_ARGS_BYTES_MAX: Final = 4 * 2**10  # recorded with its intent; of larger ones only a hash
TRACEBACK_BYTES_MAX: Final = 8 * 2**10  # of a failed run, in its session.error
CHILDREN_MAX: Final = 64  # at work for one session at a time
FINISHED_PER_COMMIT_MAX: Final = 256  # finished children that are completed in one commit
SPAWNED_MAX: Final = 100_000  # spawned by a program for one session, and not ended
DELEGATION_DEPTH_MAX: Final = 8
TURN_INPUTS_MAX: Final = 100  # the rest wait for the next turn
PRIORITY_MAX: Final = 1_000  # and as far below zero
WORKER_CHARS_MAX: Final = 320  # as an actor
LEASE_SECONDS_MAX: Final = 86_400
LEFT_SECONDS: Final = 1.0  # how long a session is held back if it was released unchanged
# app: and user: names: per app, and again per user in it. A load reads all of them.
SCOPE_NAMES_MAX: Final = 1_000
SCOPE_NAMES_EVER_MAX: Final = 10_000  # deleted ones too: a deleted name keeps its version
SCOPE_BYTES_MAX: Final = 16 * 2**20
SCOPE_SMALL_BYTES: Final = 16 * 2**10  # as many as there may be of this size always fit

VALUE_DEPTH_MAX: Final = 96
STATE_DEPTH_MAX: Final = 192  # a value as deep as values may be, at the end of the longest path
INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1

EVENT_BYTES_MAX: Final = 8 * 2**20
OPS_PER_EVENT_MAX: Final = 1_000
DRAFTS_PER_COMMIT_MAX: Final = 10_000
COMMIT_BYTES_MAX: Final = 64 * 2**20
SESSIONS_PER_COMMIT_MAX: Final = 1_000

BLOB_BYTES_MAX: Final = 4 * 2**30
BLOB_CHUNK_BYTES: Final = 2**20  # a blob is written and read in pieces of this size
BLOB_UPLOAD_SECONDS_MAX: Final = 3_600  # without a new chunk, then an upload is cleaned up
BLOB_UPLOADS_SWEPT: Final = 4  # uploads that ended without an end, cleaned up by a new one
BLOB_CHUNKS_PURGED: Final = 32  # of ended sessions, in one transaction
MEDIA_TYPE_CHARS_MAX: Final = 256
MARKS_SWEPT: Final = 2  # ended marks that each write of a mark removes

ENVELOPE_BYTES_MAX: Final = 16 * 2**20  # unless a caller says otherwise

# The queue of append_soon before a flush: a caller that never flushes must not fill the memory.
QUEUED_EVENTS_MAX: Final = 65_536
QUEUED_BYTES_MAX: Final = 64 * 2**20  # of encoded bodies

GRAPH_STEPS_MAX: Final = (
    10_000  # nodes that a graph runs in one run, unless a caller says otherwise
)

PAGE_MAX: Final = 1_000
READ_PAGE_BYTES_MAX: Final = 16 * 2**20  # of encoded bodies: a page of events ends once it has them
WALK_MAX: Final = 2_000  # heads that one page of a listing looks at while it filters
SCAN_MAX: Final = 20_000  # the same by status or readiness, where a database compares them
STATES_BYTES_MAX: Final = 4 * 2**20  # of stored state, after which a page of states ends
STATES_NAME_BYTES: Final = 512  # what a shared name counts there for each session that sees it
# The order of updates is indexed in steps of 2**16 microseconds, about a fifteenth of a second, and
# sorted within a step: a burst of appends then moves its session in the index once.
UPDATE_SLOT_BITS: Final = 16
QUERY_LABELS_MAX: Final = 8
QUERY_TYPES_MAX: Final = 100
TAIL_LOADED: Final = 20  # events that a load brings, if not asked otherwise
TAIL_KEPT: Final = 100  # events a session object holds on to, if not asked to load more
PARTIALS_WAITING_MAX: Final = 1_024
PARTIAL_BYTES_MAX: Final = 64 * 2**10  # encoded: a larger partial stays in its own process
FINALS_REMEMBERED: Final = 1_024  # recorded events by whose ids late partials are recognised
UPDATE_TRIES_MAX: Final = 256
MIGRATION_PATHS_SHOWN_MAX: Final = 8  # equally good paths that an error names

# A snapshot is worth writing when the log since the last one is larger than it, and never below
# the floor: a load then reads at most about twice the state, and writes at most double.
SNAPSHOT_FLOOR_BYTES: Final = 64 * 2**10
# An older one is kept while it takes at most one in so many bytes of the log that it saves reading:
# where a state grows like its log, snapshots of it would fill the store and save little.
SNAPSHOT_SHARE: Final = 8
# The cost of reading an event beyond its body, so that many tiny events snapshot in time too.
EVENT_OVERHEAD_BYTES: Final = 128
