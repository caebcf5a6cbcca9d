"""A histogram of values, to compare with what was merged and measured."""

from __future__ import annotations

from collections.abc import Iterable

from limpet.analytics.histogram import Histogram, add


def histogram_of(values: Iterable[int]) -> Histogram:
    made: Histogram = {}
    for value in values:
        add(made, value)
    return made
