"""The command: `python -m bench [W1 W2 … | --postgres | P1 P2 …] [--quick] [--sync-ms MS] …`.

Prints a table per workload as soon as it is measured, and JSON lines with every reading. Missed
targets are shown, not punished: benchmarks inform, tests decide.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import apsw
from rich.console import Console
from rich.status import Status

import limpet
from bench import disk, peer, picture, postgres, table
from bench.lines import Lines
from bench.place import Place, scratch
from bench.raw import PAGE_BYTES
from bench.rounds import Run
from bench.workloads import WORKLOADS as SQLITE
from tests.support.postgres import Server

WORKLOADS: Final = {**SQLITE, **postgres.WORKLOADS}
_WIDTH: Final = 132
_SYNC_MS_MAX: Final = 1_000.0


def main() -> int:
    args = _arguments()
    if args.sync_ms is not None and disk.sync_ms() is None:
        return _slowed(args.sync_ms)
    console = _console(stderr=args.json == "-")
    with ExitStack() as stack:
        place = stack.enter_context(scratch(args.dir))
        names = args.workloads or list(postgres.WORKLOADS if args.postgres else SQLITE)
        server = _server(stack) if any(name in postgres.WORKLOADS for name in names) else None
        wanted = not args.no_peer and any(WORKLOADS[name].peer for name in names)
        neighbour = _neighbour(stack, console) if wanted else None
        lines = Lines(args.json)
        stack.callback(lines.close)
        about = _about(place, neighbour, quick=args.quick)
        console.print("  ".join(f"{name} {value}" for name, value in about.items()), style="dim")
        lines.write({"about": about})
        rounds = args.rounds or (2 if args.quick else 7)
        measured: list[table.Row] = []
        for name in names:
            with console.status(name) as status:
                run = Run(place, neighbour, args.quick, rounds, partial(_say, status, name), server)
                rows = WORKLOADS[name].rows(run)
            table.show(console, WORKLOADS[name].title, rows)
            for row in rows:
                lines.write(row.record())
            measured += rows
        console.print(_summary([target.met for row in measured for target in row.targets]))
        if args.svg is not None:
            args.svg.write_text(picture.picture(measured, about))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.split("\n")[0])
    parser.add_argument("workloads", nargs="*", choices=[*WORKLOADS, []], metavar="W1 W2 …")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, under a minute")
    parser.add_argument("--json", metavar="FILE", help="JSON lines into FILE (-: stdout)")
    parser.add_argument("--svg", metavar="FILE", type=Path, help="a picture of the ratios")
    parser.add_argument("--postgres", action="store_true", help="P1 to P13, on a server of its own")
    parser.add_argument("--rounds", type=int, help="turns of every contestant")
    parser.add_argument("--dir", type=Path, help="where the databases are made; a real disk")
    parser.add_argument(
        "--sync-ms", type=_milliseconds, metavar="MS", help="a slower disk: a sync takes this long"
    )
    parser.add_argument("--no-peer", action="store_true", help="leave out openai-agents")
    return parser.parse_args()


def _milliseconds(text: str) -> float:
    given = float(text)
    if not 0 < given <= _SYNC_MS_MAX:
        raise argparse.ArgumentTypeError(f"between 0 and {_SYNC_MS_MAX:g}, not {text}")
    return given


def _slowed(milliseconds: float) -> int:
    """Run this command again on a slower disk."""
    with tempfile.TemporaryDirectory(prefix="limpet-bench-") as directory:
        try:
            environment = disk.slowed(milliseconds, Path(directory))
        except disk.NoCompiler as error:
            sys.exit(f"{error}")
        command = [sys.executable, "-m", "bench", *sys.argv[1:]]
        return subprocess.call(command, env=environment)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr)
    # A pipe or a narrow window folds a long line; a table squeezed to fit cannot be read at all.
    return Console(stderr=stderr, width=max(console.width, _WIDTH))


def _server(stack: ExitStack) -> Server:
    """PostgreSQL as it comes: fsync and synchronous_commit on, nothing tuned."""
    server = Server()
    stack.callback(server.remove)
    server.start()
    return server


def _neighbour(stack: ExitStack, console: Console) -> peer.Peer | None:
    try:
        return stack.enter_context(peer.running())
    except (peer.PeerFailed, OSError) as error:
        console.print(f"[yellow]without openai-agents: {error}[/]")
        return None


def _about(place: Place, neighbour: peer.Peer | None, *, quick: bool) -> dict[str, Any]:
    """What a reader of the numbers has to know about the machine; no names, no paths."""
    load = os.getloadavg()[0]
    return {
        "limpet": limpet.__version__,
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "peer": "–" if neighbour is None else neighbour.about["peer"],
        "peer's sqlite": "–" if neighbour is None else neighbour.about["sqlite"],
        "file system": place.kind,
        "synchronous": "full",
        "sync": "as it is" if disk.sync_ms() is None else f"≥ {disk.sync_ms():g} ms",
        "page bytes": PAGE_BYTES,
        "cores": os.cpu_count(),
        "load": round(load, 2),
        "quick": quick,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _say(status: Status, name: str, text: str) -> None:
    status.update(f"{name}: {text}")


def _summary(met: list[bool | None]) -> str:
    text = f"{met.count(True)} targets met, {met.count(False)} missed"
    return f"{text}, {met.count(None)} not measured" if None in met else text


if __name__ == "__main__":
    sys.exit(main())
