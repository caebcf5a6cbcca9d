"""S3: what changed in a state of about 1 MB, when one place did.

Raw is the canonical encoding of that state, once: whoever looks at every byte at all pays about
that. Apart, both states were decoded from bytes and share nothing; shared, the second was made
from the first as a fold makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bench.rounds import Contestant, Numbers, Run, milliseconds_plain
from bench.table import Row, at_most, ratio, row
from bench.texts import Writer
from limpet import diff
from limpet.model import ops
from limpet.model.values import FrozenDict, canonical, freeze

_TIMES_MAX = 3.0
_CALLS = 20


def rows(run: Run) -> list[Row]:
    found = []
    for what, (before, op) in _cases(run.size(10_000, 2_000)).items():
        after = ops.apply(before, [op])
        contestants: dict[str, Contestant] = {
            "ours": _ours(before, after),
            "raw": _timed(encoded=lambda state=after: canonical(state)),  # type: ignore[misc]
        }
        readings = run.alternate_in(Path(), contestants)
        size = f"{len(canonical(after)) / 1e6:.2f} MB"
        for name in ("apart", "shared"):
            readings.values["raw"][name] = readings.of("raw", "encoded")
            times = ratio(readings.median("ours", name), readings.median("raw", name))
            target = at_most(_TIMES_MAX, "÷ raw", times)
            found.append(row("S3", f"{what}, {size}, {name}", "ms", readings, name, target))
    return found


def _cases(count: int) -> dict[str, tuple[FrozenDict, ops.PlainOp]]:
    """A state and the one operation that changes it."""
    writer = Writer()
    fields = {f"field_{number:05}": writer.prose(80) for number in range(count)}
    messages = [
        {"id": f"m{n}", "role": "user", "parts": [{"text": writer.prose(60), "at": n / 8}]}
        for n in range(count)
    ]
    wide, chat = freeze(fields), freeze({"step": 1, "messages": messages})
    deep = ("messages", count // 2, "parts", 0, "text")
    return {
        f"{count:,} fields, one set": (wide, ops.Set((f"field_{count // 2:05}",), "other")),
        f"{count:,} messages, one changed inside": (chat, ops.Set(deep, "other")),
        f"{count:,} messages, one more": (chat, ops.Add(("messages",), freeze(messages[:1]))),
        f"{count:,} messages, the first ten gone": (chat, ops.Cut(("messages",), 0, 10)),
    }


def _ours(before: FrozenDict, after: FrozenDict) -> Contestant:
    one, two = _decoded(before), _decoded(after)
    assert len(diff(one, two).changes) == 1
    return _timed(apart=lambda: diff(one, two), shared=lambda: diff(before, after))


def _timed(**calls: Callable[[], Any]) -> Contestant:
    def numbers(_: Path) -> Numbers:
        return {name: milliseconds_plain(call, _CALLS) for name, call in calls.items()}

    return numbers


def _decoded(state: FrozenDict) -> Any:
    return freeze(msgspec.json.decode(canonical(state)))
