"""Marks in memory: a dict."""

from __future__ import annotations

from collections.abc import Callable

from limpet.model.limits import MARKS_SWEPT
from limpet.store.marks import Mark, added


class MemoryMarks:
    """`check_open` raises StoreClosed."""

    def __init__(self, check_open: Callable[[], None], clock: Callable[[], int]) -> None:
        self._check_open, self._clock = check_open, clock
        self._marks: dict[tuple[str, str], Mark] = {}

    async def once(self, space: str, name: str, until_us: int, value: int = 0) -> bool:
        now_us = self._begin()
        if until_us <= now_us or self._living(space, name, now_us) is not None:
            return False
        self._marks[space, name] = Mark(space, name, value, until_us)
        return True

    async def put(self, space: str, name: str, until_us: int, value: int = 0) -> None:
        self._begin()
        self._marks[space, name] = Mark(space, name, value, until_us)

    async def add(self, space: str, name: str, until_us: int, by: int = 1) -> int:
        before = self._living(space, name, self._begin())
        mark = Mark(space, name, added(0, by), until_us)
        if before is not None:
            mark = Mark(space, name, added(before.value, by), before.until_us)
        self._marks[space, name] = mark
        return mark.value

    async def get(self, space: str, name: str) -> Mark | None:
        self._check_open()
        return self._living(space, name, self._clock())

    async def sweep(self, limit: int) -> int:
        self._check_open()
        now_us = self._clock()
        ended = [of for of, mark in self._marks.items() if mark.until_us <= now_us]
        ended.sort(key=lambda of: self._marks[of].until_us)
        for of in ended[:limit]:
            del self._marks[of]
        return len(ended[:limit])

    def _begin(self) -> int:
        self._check_open()
        now_us = self._clock()
        for of in [of for of, m in self._marks.items() if m.until_us <= now_us][:MARKS_SWEPT]:
            del self._marks[of]
        return now_us

    def _living(self, space: str, name: str, now_us: int) -> Mark | None:
        mark = self._marks.get((space, name))
        return None if mark is None or mark.until_us <= now_us else mark
