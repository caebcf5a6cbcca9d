"""Ranking: which groups are the largest, without a look at what they add up to.

A window of a fleet has a cell for every user who was active in it, and a table shows a hundred of
them. So beside the cells stand the weights of the groups (sessions, or calls of a tool), packed by
window: each part holds the groups whose ids lie within PART of one another. A commit rewrites only
the parts of groups that changed, and a query adds up parts as arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

PART: Final = 2_048  # ids of groups
_WEIGHT: Final = np.dtype([("offset", "<u2"), ("weight", "<u4")])
_WEIGHT_MAX: Final = 2**32 - 1


def part_of(group: int) -> tuple[int, int]:
    """Return the part that a group is in, and its offset there."""
    return divmod(group, PART)


def changed(raw: bytes | None, weights: Mapping[int, int]) -> bytes:
    """Return a part in which the groups at these offsets have other weights; 0: they are gone."""
    whole = np.zeros(PART, "<u4")
    if raw is not None:
        before = np.frombuffer(raw, _WEIGHT)
        whole[before["offset"]] = before["weight"]
    for offset, weight in weights.items():
        whole[offset] = min(weight, _WEIGHT_MAX)
    filled = np.flatnonzero(whole)
    made = np.empty(len(filled), _WEIGHT)
    made["offset"], made["weight"] = filled, whole[filled]
    return made.tobytes()


def groups_in(part: int, raw: bytes) -> list[int]:
    """Return the ids of the groups of a part."""
    return [part * PART + offset for offset in np.frombuffer(raw, _WEIGHT)["offset"].tolist()]


def largest(parts: Sequence[int], raws: Sequence[bytes], limit: int) -> list[int]:
    """Return the ids of the groups with the most weight in all of these parts together, the
    largest first; of two alike, the one that was seen first."""
    if not parts:
        return []
    each = np.frombuffer(b"".join(raws), _WEIGHT)
    numbers = np.fromiter(map(len, raws), np.int64, len(raws)) // _WEIGHT.itemsize
    low = min(parts)
    ids = np.repeat((np.array(parts, np.int64) - low) * PART, numbers)
    ids += each["offset"]
    totals = np.bincount(ids, each["weight"])
    some = np.flatnonzero(totals)
    if len(some) > limit:  # without sorting all of them
        least = np.partition(totals[some], -limit)[-limit]
        some = some[totals[some] >= least]
    order = np.argsort(-totals[some], kind="stable")[:limit]
    chosen: list[int] = (some[order] + low * PART).tolist()
    return chosen
