"""The command: `python -m mutants [--only MODULE …] [--skip N] [--minutes M] [--processes N]`.

Lists every mutant that no test noticed, with file and line, and fails if there is one. It takes
minutes and is not part of the suite: run it when a guarded module or its tests change. A run that
had too little time is taken up by another that skips what the first one tried.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import Progress

from mutants.equivalent import EQUIVALENT
from mutants.mutate import Mutant, mutants
from mutants.run import SURVIVED, Job, run
from mutants.targets import TARGETS, tests

# Imported once, before the forks, what every test needs and no mutant touches.
import asyncpg  # noqa: F401  # isort: skip
import apsw  # noqa: F401  # isort: skip
import msgspec  # noqa: F401  # isort: skip
import pydantic  # noqa: F401  # isort: skip

_ROOT: Final = Path(__file__).parent.parent
_TIMES_SLOWER: Final = 4  # than the unharmed module: then a mutant hangs
_SECONDS_MIN: Final = 20.0


def main() -> int:
    args = _arguments()
    console = Console(highlight=False, soft_wrap=True)
    os.environ["LIMPET_QUICK"] = "1"
    os.chdir(_ROOT)
    deadline = time.monotonic() + 60 * args.minutes
    modules = [name for name in TARGETS if not args.only or name.split(".")[-1] in args.only]
    found = {name: list(mutants(*_source(name))) for name in modules}
    _check_table(found)
    every = [(name, one) for name, ones in found.items() for one in ones]
    doubtful = [pair for pair in every if _named(*pair) not in EQUIVALENT]
    chosen = doubtful[args.skip :]
    seconds = _unharmed(list(dict(chosen)), args.processes)
    survivors, tried = _try(chosen, seconds, args.processes, deadline)
    return _report(
        console, survivors, tried, left=len(chosen) - tried, equal=len(every) - len(doubtful)
    )


def _arguments() -> argparse.Namespace:
    names = [name.split(".")[-1] for name in TARGETS]
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=names, metavar="MODULE", help=", ".join(names))
    parser.add_argument("--skip", type=int, default=0, help="leave out the first so many (0)")
    parser.add_argument("--minutes", type=float, default=30, help="stop after so long (30)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


def _source(module: str) -> tuple[str, str]:
    path = _ROOT / "src" / Path(*module.split(".")).with_suffix(".py")
    return path.read_text(), str(path)


def _named(module: str, one: Mutant) -> tuple[str, str, str]:
    """As the table of the equivalent ones names it."""
    return (module, one.function, one.change)


def _check_table(found: dict[str, list[Mutant]]) -> None:
    """An entry of the table that fits nothing hides nothing, and misleads the reader."""
    known = {_named(name, one) for name, ones in found.items() for one in ones}
    stale = [entry for entry in EQUIVALENT if entry[0] in found and entry not in known]
    if stale:
        sys.exit(
            "mutants/equivalent.py names mutants that are gone:\n" + "\n".join(map(str, stale))
        )


def _unharmed(modules: list[str], processes: int) -> dict[str, float]:
    """How long the tests of each module take when nothing is wrong. They have to pass."""
    jobs = (Job(name, None, tests(name), 600.0) for name in modules)
    seconds: dict[str, float] = {}
    for job in run(jobs, processes=processes, more=lambda: True):
        if job.exit_code != SURVIVED:
            sys.exit(f"the tests of {job.module} fail before anything is mutated: run them first")
        seconds[job.module] = job.seconds
    return seconds


def _try(
    chosen: list[tuple[str, Mutant]], seconds: dict[str, float], processes: int, deadline: float
) -> tuple[list[tuple[str, Mutant]], int]:
    survivors: list[tuple[str, Mutant]] = []
    tried = 0
    with Progress(console=Console(stderr=True, highlight=False, soft_wrap=True)) as progress:
        counts = Counter(name for name, _ in chosen)
        bars = {name: progress.add_task(name, total=count) for name, count in counts.items()}
        jobs = _jobs(chosen, seconds)
        for job in run(jobs, processes=processes, more=lambda: time.monotonic() < deadline):
            tried += 1
            progress.advance(bars[job.module])
            if job.exit_code == SURVIVED:
                survivors.append((job.module, job.subject))
                progress.console.print(_line(job.module, job.subject), markup=False)
    return survivors, tried


def _line(module: str, one: Mutant) -> str:
    path = Path(_source(module)[1]).relative_to(_ROOT)
    return f"{path}:{one.line} {one.function}: {one.change}"


def _jobs(chosen: list[tuple[str, Mutant]], seconds: dict[str, float]) -> Iterator[Job]:
    for name, one in chosen:
        patience = max(_SECONDS_MIN, _TIMES_SLOWER * seconds[name])
        yield Job(name, one.code, tests(name), patience, one)


def _report(
    console: Console, survivors: list[tuple[str, Mutant]], tried: int, *, left: int, equal: int
) -> int:
    for name, one in sorted(survivors, key=lambda pair: (pair[0], pair[1].line)):
        console.print(_line(name, one), markup=False)
    more = f"; {left} not tried, for want of time" if left else ""
    console.print(
        f"{tried} mutants, {len(survivors)} survived, {equal} known to be equivalent{more}"
    )
    return 1 if survivors or left else 0


if __name__ == "__main__":
    sys.exit(main())
