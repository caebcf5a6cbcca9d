"""The JSON lines of a run: into a file as they come, or onto stdout.

Without a file they are kept and printed at the end, after the tables.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, TextIO


class Lines:
    """Where records go. `target` is a file name, `-` for stdout, or None for stdout at the end."""

    def __init__(self, target: str | None) -> None:
        self._kept: list[str] = []
        self._file: TextIO | None = None
        if target == "-":
            self._file = sys.stdout
        elif target is not None:
            path = Path(target)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        line = json.dumps(_rounded(record), ensure_ascii=False)
        if self._file is None:
            self._kept.append(line)
        else:
            print(line, file=self._file, flush=True)

    def close(self) -> None:
        for line in self._kept:
            print(line)
        if self._file is not None and self._file is not sys.stdout:
            self._file.close()


def _rounded(value: Any) -> Any:
    """Six digits are more than any machine repeats."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value
