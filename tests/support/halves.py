"""A plugin of pytest that runs every n-th test of a suite: `-p tests.support.halves`, PART=0/2.

For suites that another process runs, each part within the limit of one test.
"""

from __future__ import annotations

import os
from typing import Any


def pytest_collection_modifyitems(items: list[Any]) -> None:
    part, _, parts = os.environ["PART"].partition("/")
    items[:] = items[int(part) :: int(parts)]
