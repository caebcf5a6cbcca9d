"""W8: what `import limpet` costs, in fresh interpreters.

Time is that of the statement, and of the whole process around it. Memory is the peak of the
process afterwards. `import limpet.server` is measured too. Raw is the same for what the store
cannot do without: asyncio, apsw, msgspec.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from statistics import median

from bench.place import ROOT
from bench.rounds import Readings, Run
from bench.table import Row, at_most, row

_CODE = """
import time
begin = time.perf_counter()
import {modules}
took = time.perf_counter() - begin
import json, resource, sys
try:
    # The peak of this program: ru_maxrss would also count the process that started it.
    status = open("/proc/self/status").read()
    peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
except OSError:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak *= 1 if sys.platform == "darwin" else 1024
print(json.dumps(dict(statement=took * 1e3, peak=peak / 1e6)))
"""


def rows(run: Run) -> list[Row]:
    readings = Readings()
    for number in range(run.size(15, 9)):
        run.say(f"process {number + 1}")
        server = _measure("limpet.server")["statement"]
        readings.add("ours", {**_measure("limpet"), "server": server})
        readings.add("raw", _measure("asyncio, apsw, msgspec"))
    found = []
    for name, what in (("statement", "the statement"), ("process", "the whole process")):
        best = min(readings.of("ours", name))
        typical = median(readings.of("ours", name))
        targets = (at_most(100, "median", typical), at_most(100, "best", best))
        found.append(row("W8", what, "ms", readings, name, *targets))
    peak = at_most(35, "median", readings.median("ours", "peak"))
    server = at_most(250, "median", readings.median("ours", "server"))
    return [
        *found,
        row("W8", "peak memory", "MB", readings, "peak", peak),
        row("W8", "import limpet.server", "ms", readings, "server", server),
    ]


def _measure(modules: str) -> dict[str, float]:
    begin = time.perf_counter()
    command = [sys.executable, "-c", _CODE.format(modules=modules)]
    # Compiled modules are kept, as an installed package keeps them.
    kept = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, cwd=ROOT, env=kept, capture_output=True, text=True, check=True)
    took = time.perf_counter() - begin
    return {**json.loads(done.stdout), "process": took * 1e3}
