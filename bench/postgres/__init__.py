"""The workloads on PostgreSQL, beside pgbench and plain queries on the same server."""

from __future__ import annotations

from typing import Final

from bench.postgres import claims, failovers, follows, reads, turns, writes
from bench.workloads import Workload, durable

WORKLOADS: Final = {
    "P1": Workload("P1 · one session, one append after another", writes.appends, peer=False),
    "P2": Workload("P2 · 64 callers at once, one process", writes.crowd, peer=False),
    "P3": Workload("P3 · the last 20 events, however long the session", reads.tails, peer=False),
    "P4": Workload("P4 · reopened, until it has the state", reads.starts, peer=False),
    "P5": Workload("P5 · a page of 50 sessions among many", reads.pages, peer=False),
    "P6": Workload("P6 · a conversation kept in state", writes.growth, peer=False),
    "P7": Workload("P7 · from a commit to a follower elsewhere", follows.latency, peer=False),
    "P8": Workload("P8 · workers that claim sessions", claims.claims, peer=False),
    "P9": Workload("P9 · partial events of another process", follows.partials, peer=False),
    "P10": Workload("P10 · a turn of three steps, beside DBOS", durable.postgres, peer=False),
    "P11": Workload("P11 · turns by two worker processes", turns.turns, peer=False),
    "P12": Workload("P12 · 64 callers at once, with a quorum", writes.quorum, peer=False),
    "P13": Workload("P13 · the primary is killed", failovers.failover, peer=False),
}
