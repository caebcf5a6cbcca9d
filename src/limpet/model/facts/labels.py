"""Labels: short texts for finding sessions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from limpet.errors import InvalidEvent
from limpet.model.events import Fact
from limpet.model.facts.view import Changes, Facts, Moment
from limpet.model.keys import unfit
from limpet.model.limits import LABEL_BYTES_MAX, LABEL_VALUE_CHARS_MAX, LABELS_MAX, NAME_CHARS_MAX
from limpet.model.values import EMPTY, FrozenDict, described

LABELED: Final = "session.labeled"


def labeled(changes: Mapping[str, str | None], *, actor: str | None = None) -> Fact:
    """Set these labels; None removes one. Raises InvalidEvent."""
    return Fact(type=LABELED, data=labels_data(changes), actor=actor)


def labels_data(changes: Mapping[str, str | None]) -> dict[str, Any]:
    """Checked labels in the form of event data. Raises InvalidEvent."""
    if not isinstance(changes, Mapping):
        said = described(changes)
        raise InvalidEvent(f"labels are a dict of texts, like {{'plan': 'gold'}}, not {said}")
    if len(changes) > LABELS_MAX:
        raise InvalidEvent(f"{len(changes)} labels, more than {LABELS_MAX}")
    for name, value in changes.items():
        if reason := unfit(name, NAME_CHARS_MAX):
            raise InvalidEvent(f"the label {name!r} {reason}")
        if name.startswith("$"):
            raise InvalidEvent(f"the label {name!r} begins with '$', which is reserved for Limpet")
        if value is not None and (reason := unfit(value, LABEL_VALUE_CHARS_MAX)):
            raise InvalidEvent(f"the value of label {name!r} {reason}")
        if len(f"{name}{value or ''}".encode()) > LABEL_BYTES_MAX:
            raise InvalidEvent(f"the label {name!r} has more than {LABEL_BYTES_MAX:,} bytes")
    return {"labels": dict(changes)}


def labels_in(facts: Facts) -> FrozenDict:
    fields: FrozenDict = facts.get("labels", EMPTY)
    return fields


def own_labels(labels: FrozenDict) -> FrozenDict:
    """Return the labels without those that Limpet itself finds sessions by, which are nobody's
    to read."""
    if not any([name.startswith("$") for name in labels]):
        return labels
    return FrozenDict({n: value for n, value in labels.items() if not n.startswith("$")})


def fold(facts: Facts, data: Mapping[str, Any], at: Moment) -> Changes:
    changes = data.get("labels", EMPTY)
    if not changes:
        return {}
    merged = {**labels_in(facts), **changes}
    kept = FrozenDict({n: value for n, value in merged.items() if value is not None})
    return {"labels": kept or None}


def check(before: Facts, after: Facts, data: Mapping[str, Any]) -> None:
    """Raise InvalidEvent if the session would have too many labels: a head must stay small."""
    if len(own_labels(labels_in(after))) > LABELS_MAX:
        raise InvalidEvent(f"the session would have more than {LABELS_MAX} labels")
