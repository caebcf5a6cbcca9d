"""The neighbours that benches compare with, in the environments that their locks describe."""

from __future__ import annotations

import pytest

from tests.support import venvs

IMPORTS = {
    "bench-dbos": "import dbos, psycopg; assert psycopg.pq.__impl__ == 'binary'",
    "bench-peer": "import agents, langgraph.checkpoint.sqlite",
}


@pytest.mark.parametrize("lock", sorted(IMPORTS))
def test_the_lock_of_a_bench_installs_what_the_bench_imports(lock: str) -> None:
    """On a fresh machine, with hashes; its modules are there afterwards."""
    try:
        python = venvs.python_of(lock)
    except venvs.NotInstalled as error:
        pytest.skip(f"{lock} is not tested here: {error}")
    code, said = venvs.run(python, "-c", IMPORTS[lock], timeout=120)
    assert code == 0, said
