"""The workloads, by number. W7 is not here: it belongs to a part that is not built yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from bench.rounds import Run
from bench.table import Row
from bench.workloads import (
    adk,
    agent_turns,
    analytics,
    appends,
    copies,
    crowd,
    diffs,
    durable,
    files,
    follows,
    graphs,
    growth,
    handles,
    histories,
    imports,
    lag,
    langgraphs,
    lives,
    migrations,
    moves,
    openai_agents,
    pages,
    screens,
    served,
    shares,
    starts,
    streams,
    tails,
    tokens,
    turns,
    typed,
)


class Workload(NamedTuple):
    """A title for the table, what gives its rows, and whether the neighbour takes part."""

    title: str
    rows: Callable[[Run], Sequence[Row]]
    peer: bool


WORKLOADS: Final = {
    "W1": Workload("W1 · one session, one append after another", appends.rows, peer=True),
    "W2": Workload("W2 · many sessions at once", crowd.rows, peer=True),
    "W3": Workload("W3 · the last 20 events, however long the session", tails.rows, peer=True),
    "W4": Workload("W4 · a new process, until it has the state", starts.rows, peer=False),
    "W5": Workload("W5 · a page of 50 sessions among many", pages.rows, peer=False),
    "W6": Workload("W6 · a conversation kept in state", growth.rows, peer=True),
    "W8": Workload("W8 · import", imports.rows, peer=False),
    "W9": Workload("W9 · others on the loop, while 64 sessions write", lag.rows, peer=False),
    "W10": Workload("W10 · many open handles", handles.rows, peer=False),
    "W11": Workload("W11 · the log store", files.rows, peer=True),
    "K1": Workload("K1 · a request with a token", tokens.rows, peer=False),
    "N1": Workload("N1 · a store over HTTP", served.rows, peer=False),
    "N2": Workload("N2 · streams of a server", streams.followed, peer=False),
    "N3": Workload("N3 · sending to a server", streams.sent, peer=False),
    "N4": Workload("N4 · screens of a server", screens.rows, peer=False),
    "M1": Workload("M1 · copying to another file", copies.rows, peer=False),
    "M2": Workload("M2 · moving a live session to another file", moves.rows, peer=False),
    "F1": Workload("F1 · many followers, commits of another process", follows.idle, peer=False),
    "F2": Workload("F2 · partial events of another process", follows.partials, peer=False),
    "F3": Workload("F3 · a live share across processes", shares.rows, peer=False),
    "S1": Workload("S1 · one message more, typed", typed.rows, peer=False),
    "S2": Workload(
        "S2 · a dry run of a migration, over every session", migrations.rows, peer=False
    ),
    "S3": Workload("S3 · what changed in a state of 1 MB", diffs.rows, peer=False),
    "S4": Workload("S4 · the life of sessions", lives.rows, peer=False),
    "H1": Workload("H1 · a session's past", histories.rows, peer=False),
    "R1": Workload("R1 · turns of an empty harness", turns.rows, peer=False),
    "R2": Workload("R2 · a wake among many sessions", turns.among, peer=False),
    "R3": Workload("R3 · a turn of three steps, beside DBOS", durable.sqlite, peer=False),
    "R4": Workload("R4 · a session whose worker was killed", turns.recovery, peer=False),
    "Y1": Workload("Y1 · analytics", analytics.rows, peer=False),
    "T1": Workload("T1 · a turn with a model call and a tool", agent_turns.cost, peer=False),
    "T2": Workload("T2 · turns that wait on a model", agent_turns.waiting, peer=False),
    "T3": Workload("T3 · what a model says, followed elsewhere", agent_turns.streaming, peer=False),
    "G1": Workload("G1 · a graph of three nodes, nothing kept", graphs.plain, peer=True),
    "G2": Workload("G2 · a graph of three nodes, every step on disk", graphs.kept, peer=True),
    "G3": Workload("G3 · one long run with a growing list", graphs.long, peer=False),
    "A1": Workload("A1 · google-adk: many sessions at once", adk.crowd, peer=False),
    "A2": Workload("A2 · google-adk: the last 20 events of a session", adk.tail, peer=False),
    "O1": Workload("O1 · openai-agents: many sessions at once", openai_agents.crowd, peer=False),
    "L1": Workload("L1 · LangGraph, many threads at once", langgraphs.crowd, peer=False),
    "L2": Workload("L2 · LangGraph, one long chat", langgraphs.chat, peer=False),
    "G4": Workload("G4 · a wide fan-out", graphs.wide, peer=False),
}
