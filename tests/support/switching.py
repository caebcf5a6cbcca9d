"""The programs that a page of the documentation shows, run as they stand there."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from typing import Any

from tests.support import venvs


async def run_switching(page: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Run the lines that a page tells its reader to switch with; return the names they leave.

    `given` has the names that the reader's program has already.
    """
    text = (venvs.ROOT / "docs" / page).read_text()
    section = text.partition("\n## Switching\n")[2].partition("\n## ")[0]
    block = re.search(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert block is not None
    names = dict(given)
    code = compile(block[1], page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)
    if inspect.isawaitable(result):
        await result
    return names
