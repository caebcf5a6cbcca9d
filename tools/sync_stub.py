"""Write src/limpet/session/sync/verbs.pyi: the synchronous verbs as a type checker sees them.

Each signature is that of the async class without await. Run from the root of the repository:
python -m tools.sync_stub. A test fails while the file is not what this writes.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from limpet.session.sync.facade import NAMES

SESSION: Final = Path("src/limpet/session")
STUB: Final = SESSION / "sync" / "verbs.pyi"

HEAD: Final = '''"""The synchronous verbs for a type checker. Written by tools/sync_stub.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, overload

from limpet.model import ops as op
from limpet.model.diff.diff import Diff
from limpet.model.diff.policy import Policy
from limpet.model.envelope.envelope import Format
from limpet.model.envelope.record import Envelope
from limpet.model.events import Draft, Event, Fact, Trace
from limpet.model.facts.outcomes import Evaluation, Grade, Outcome
from limpet.model.facts.phases import Phase
from limpet.model.facts.running.budgets import Budget, BudgetView, Usage
from limpet.model.facts.running.requests import Request
from limpet.model.facts.running.runs import RunFailure, Status, StopReason
from limpet.model.facts.running.setup import Setup, SetupChange
from limpet.model.facts.timeouts import Timeouts
from limpet.model.facts.timers import TimerKind
from limpet.model.head import Head
from limpet.model.keys import Key
from limpet.model.lease import Lease
from limpet.model.state.migrations import MigrationRegistry
from limpet.model.state.state import State
from limpet.model.state.types import Ref
from limpet.session.arguments import AnyKey
from limpet.session.blobs import AnyRef, Content
from limpet.session.conversing.context import Context, Count, Summarize
from limpet.session.conversing.message import Message
from limpet.session.conversing.shapes import Shape
from limpet.session.documents import Document, DocumentPage
from limpet.session.history.blame import Blame
from limpet.session.history.branches import Lineage, MergedSession
from limpet.session.history.checkpoint_log import CheckpointPage, CheckpointRef
from limpet.session.history.checkpoint_policy import CheckpointPolicy
from limpet.session.history.point_in_time import Predicate, When
from limpet.session.history.retention import CompactReport
from limpet.session.history.rewind import Rewound
from limpet.session.life.memory import LayerName, Remembered
from limpet.session.life.policy import Cleanup, Function, Transition
from limpet.session.life.resumption import Resumption, Retrieve
from limpet.session.life.sweep import Swept
from limpet.session.life.tools import ToolRegistry
from limpet.session.life.transitions import Durations
from limpet.session.metrics import Hook
from limpet.session.move.mirror import Mirrored
from limpet.session.move.transfer import Copied
from limpet.session.runs.buffers import BufferInfo, Note
from limpet.session.runs.delegation import Kin
from limpet.session.runs.learnings import Gates, Learning
from limpet.session.runs.outcomes import Evaluator
from limpet.session.runs.runs import Harness, OnMismatch, Woken
from limpet.session.runs.setup import Permission, VaultDocument
from limpet.session.runs.traces import Activation, WakeTrace
from limpet.session.typing.migrate import Failure, MigrationPlan
from limpet.store.protocol import Checked
from limpet.store.protocol import (
    Diagnosis,
    Erasure,
    Erasures,
    FeedEntry,
    Forks,
    Order,
    Page,
    Progress,
    Report,
    Seal,
)

S = TypeVar("S", bound=State)
S_co = TypeVar("S_co", covariant=True)
A = TypeVar("A")
'''
BLOCK: Final = """
    def __enter__(self) -> {name}: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ..."""
# The stand-in, what it adds by itself, the async classes (module, class) and the name of `S` there.
CLASSES: Final = (
    (
        "SyncCommit",
        "\n    events: tuple[Event, ...]\n    token: str"
        "\n    documents: tuple[Document, ...]" + BLOCK,
        [("commit", "CommitBuilder")],
        "S",
    ),
    (
        "SyncSession(Generic[S_co])",
        "\n    key: Key\n    actor: str | None",
        [
            ("session", "Session"),
        ],
        "S_co",
    ),
    ("SyncHistory(Generic[S_co])", "", [("history/history", "SessionHistory")], "S_co"),
    ("SyncLifecycle", "", [("life/lifecycle", "SessionLifecycle")], "S"),
    ("SyncTools", "", [("life/lifecycle", "SessionTools")], "S"),
    ("SyncRuns", "", [("runs/runs", "SessionRuns")], "S"),
    ("SyncBlobs", "", [("blobs", "SessionBlobs")], "S"),
    ("SyncOutcome", "", [("runs/outcomes", "SessionOutcome")], "S"),
    ("SyncSetup", "", [("runs/setup", "SessionSetup")], "S"),
    ("SyncWork", "", [("work", "StoreWork")], "S"),
    ("SyncMaintenance", "", [("maintenance", "StoreMaintenance")], "S"),
    ("SyncPolicies", "", [("policies", "StorePolicies")], "S"),
    ("SyncWorking", "", [("life/memory", "WorkingMemory")], "S"),
    ("SyncLayer", "", [("life/memory", "Layer")], "S"),
    ("SyncOverlay(SyncLayer)", "", [("life/memory", "Overlay")], "S"),
    ("SyncEpisodes(SyncLayer)", "", [("life/memory", "Episodes")], "S"),
    ("SyncBuffer", "\n    name: str", [("runs/buffers", "Buffer")], "S"),
    ("SyncMemory", "", [("life/memory", "Memory"), ("runs/buffers", "Buffers")], "S"),
    (
        "SyncApp(Generic[A])",
        "\n    name: str\n    state_type: type[A] | None"
        "\n    migrations: MigrationRegistry | None\n    actor: str | None",
        [("app", "App")],
        "A",
    ),
    (
        "SyncDocuments",
        "\n    collection: str\n    owner: tuple[str, str] | None\n    actor: str | None",
        [("documents", "Documents")],
        "S",
    ),
    ("SyncVaults(SyncDocuments)", "", [("runs/setup", "Vaults")], "S"),
    ("SyncPermissions(SyncDocuments)", "", [("runs/setup", "Permissions")], "S"),
    (
        "SyncLimpet",
        "\n    url: str"
        "\n    def __init__("
        "self, url: str, *, seal: Seal | None = None, connections: int | None = None, "
        "archive: str | None = None, check: Checked | None = None"
        ") -> None: ..." + BLOCK + "\n    def close(self) -> None: ...",
        [
            ("limpet", "Limpet"),
        ],
        "S",
    ),
)


def main() -> None:
    """Write the stub."""
    STUB.write_text(stub())


def stub() -> str:
    """The text of the stub, formatted as the rest of the code."""
    parts = [HEAD]
    for title, own, classes, of_state in CLASSES:
        own = own.format(name=title.partition("(")[0])
        verbs = [text for module, of in classes for text in _verbs(module, of, of_state)]
        parts.append(f"class {title}:{own}\n" + "\n".join(verbs))
    ruff = [Path(sys.executable).with_name("ruff"), "format", "--stdin-filename", STUB, "-"]
    done = subprocess.run(ruff, input="\n".join(parts), capture_output=True, text=True, check=True)
    return done.stdout


def _verbs(module: str, of: str, of_state: str) -> Iterator[str]:
    """The public members of a class, one text each; of those with overloads, the overloads."""
    tree = ast.parse((SESSION / f"{module}.py").read_text())
    cls = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == of)
    members = [n for n in cls.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    overloaded = {n.name for n in members if _is_overload(n)}
    for member in members:
        hidden = member.name.startswith("_") or member.name == "close"
        if not hidden and (_is_overload(member) or member.name not in overloaded):
            yield _signature(member, of_state)


def _is_overload(member: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "overload" for d in member.decorator_list)


def _signature(member: ast.FunctionDef | ast.AsyncFunctionDef, of_state: str) -> str:
    plain = ast.FunctionDef(
        member.name, member.args, [ast.Expr(ast.Constant(...))], member.decorator_list
    )
    plain.returns = member.returns
    for kind in (plain.args.defaults, plain.args.kw_defaults):
        for place, default in enumerate(kind):
            if isinstance(default, ast.Name):  # a name of that module; its value says no more
                kind[place] = ast.Constant(...)
    text = ast.unparse(ast.fix_missing_locations(plain))
    text = re.sub(rf"\b({'|'.join(NAMES)})\b", lambda found: NAMES[found[0]], text)
    text = re.sub(r"AsyncGenerator\[(\w+), None\]", r"Iterator[\1]", text)
    text = re.sub(r"\bS\b", of_state, text)
    return "\n".join(f"    {line}" for line in text.splitlines())


if __name__ == "__main__":
    main()
