"""What was logged, held against docs/logging.md: a message that is not described there fails."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import NamedTuple

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "logging.md"
PATIENCE_SECONDS = 60.0
_FIELD = re.compile(r" (\w+)=")


class Described(NamedTuple):
    """A row of the page."""

    levels: str
    fields: list[str]


def described() -> dict[str, Described]:
    """Every message of the page by the words that it begins with."""
    found = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 4:
            found[cells[0].strip("`")] = Described(cells[1], re.findall(r"\w+", cells[2]))
    return found


class Heard(logging.Handler):
    """All that Limpet logs during a test, at every level."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        super().__init__()
        caplog.set_level(logging.DEBUG, "limpet")
        self._records: list[logging.LogRecord] = []
        self._loop = asyncio.get_running_loop()
        self._bell = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)  # before the bell: caplog's handler has its turn later
        self._loop.call_soon_threadsafe(self._bell.set)

    def all(self, start: str) -> list[dict[str, str]]:
        """The fields of every message that begins with these words, as the page describes it."""
        page = described()[start]
        found = [r for r in self._records if r.getMessage().partition(":")[0] == start]
        for record in found:
            text = record.getMessage()
            names = _FIELD.findall(text.removeprefix(start))
            assert record.levelname in page.levels, text
            assert [name for name in names if name in page.fields] == page.fields, text
        return [_fields(record.getMessage()) for record in found]

    def one(self, start: str) -> dict[str, str]:
        (fields,) = self.all(start)
        return fields

    async def until(self, start: str, **wanted: str) -> dict[str, str]:
        """The first such message with these fields, once there is one."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                self._bell.clear()
                for fields in self.all(start):
                    if wanted.items() <= fields.items():
                        return fields
                await self._bell.wait()

    @property
    def text(self) -> str:
        """All of it, from the beginning: caplog has what one phase of a test has logged."""
        return "\n".join(record.getMessage() for record in self._records)


def _fields(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.partition(": ")[2].split())  # no spaces here
