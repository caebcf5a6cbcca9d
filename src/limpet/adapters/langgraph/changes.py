"""How a checkpoint follows from the one before it, as plain data and back.

What graphs repeat goes to the `shape` of an event, what is new each time to its `data`. Every
function that tells has one that reads: told on a checkpoint and read on the same one, nothing is
lost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

import msgspec

from limpet.model.values import ABSENT

_SHAPE_BYTES_MAX: Final = 16  # a longer text in metadata is rarely the same twice
_ID_CHARS_MAX: Final = 256
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_IN_UTC: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", re.ASCII).fullmatch
raw: Final = msgspec.json.Encoder().encode


class Versioned(Protocol):
    """What has versions of channels, and those that its nodes have seen."""

    versions: dict[str, Any]
    seen: dict[str, Any]


def tell_metadata(
    data: dict[str, Any], shape: dict[str, Any], old: Mapping[str, Any], new: dict[str, Any]
) -> None:
    """Metadata by what changed. The step counts up; long texts are not part of a shape."""
    step, before = new.get("step"), old.get("step")
    counts = type(step) is int and type(before) is int
    if counts:
        shape["step"] = step - before  # type: ignore[operator]  # both are numbers
    short: dict[str, Any] = {}
    long: dict[str, Any] = {}
    for name, part in new.items():
        if _is_other(old, name, part) and not (counts and name == "step"):
            (short if _is_short(part) else long)[name] = part
    tell(shape, "metadata", short)
    tell(data, "metadata", long)
    tell(shape, "metadata_gone", [name for name in old if name not in new])


def _is_other(old: Mapping[str, Any], name: str, new: Any) -> bool:
    """Whether a name is new, or has another value or type: 1 is not True, also inside."""
    if name not in old:
        return True
    before = old[name]
    return before is not new and (before != new or raw(before) != raw(new))


def _is_short(part: Any) -> bool:
    return len(raw(part)) <= _SHAPE_BYTES_MAX


def metadata_after(
    old: Mapping[str, Any], data: Mapping[str, Any], shape: Mapping[str, Any]
) -> dict[str, Any]:
    new = {**changed(old, shape, "metadata"), **data.get("metadata", {})}
    if "step" in shape:
        new["step"] = old["step"] + shape["step"]
    return new


def tell_versions(
    data: dict[str, Any], shape: dict[str, Any], on: Versioned, checkpoint: Mapping[str, Any]
) -> None:
    """Versions that count up by one, and nodes that saw the versions that were, are a shape."""
    found: dict[str, Any] = {}
    tell_changes(found, "versions", on.versions, checkpoint["channel_versions"])
    tell_changes(found, "seen", on.seen, checkpoint["versions_seen"])
    top = _top(on.versions)
    raised = [name for name, version in found.get("versions", {}).items() if version == top + 1]
    if raised and len(raised) == len(found["versions"]) and top >= 0:
        shape["raised"] = raised
        del found["versions"]
    saw = {node: list(seen) for node, seen in found.get("seen", {}).items()}
    if saw and all(
        seen == {n: on.versions.get(n, ABSENT) for n in seen} for seen in found["seen"].values()
    ):
        shape["saw"] = saw
        del found["seen"]
    for name, part in found.items():
        (shape if name.endswith("_gone") else data)[name] = part


def versions_after(
    on: Versioned, data: Mapping[str, Any], shape: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    versions = changed(on.versions, shape, "versions") | data.get("versions", {})
    versions |= dict.fromkeys(shape.get("raised", ()), _top(on.versions) + 1)
    seen = changed(on.seen, shape, "seen") | data.get("seen", {})
    for node, names in shape.get("saw", {}).items():
        seen[node] = {name: on.versions[name] for name in names}
    return versions, seen


def _top(versions: Mapping[str, Any]) -> int:
    """The newest version, if they are numbers; else -1, and none follows from it."""
    if not versions:
        return 0
    counts = versions.values()
    return max(counts) if all([type(count) is int for count in counts]) else -1


def tell_changes(
    told: dict[str, Any], name: str, old: Mapping[str, Any], new: Mapping[str, Any]
) -> None:
    """What is new or other, and the names that are gone."""
    tell(told, name, {key: value for key, value in new.items() if _is_other(old, key, value)})
    tell(told, f"{name}_gone", [key for key in old if key not in new])


def changed(old: Mapping[str, Any], told: Mapping[str, Any], name: str) -> dict[str, Any]:
    gone = told.get(f"{name}_gone", ())
    kept = {key: value for key, value in old.items() if key not in gone} if gone else old
    return {**kept, **told.get(name, {})}


def tell(told: dict[str, Any], name: str, part: Any) -> None:
    if part:
        told[name] = part


def touched(data: Mapping[str, Any], shape: Mapping[str, Any]) -> list[str]:
    """The channels that an event gives values to, in order."""
    lists = (*data.get("lists", ()), *shape.get("grown", ()))
    return sorted({*data.get("values", ()), *shape.get("nulls", ()), *lists})


def short_time(ts: str) -> Any:
    """A time as microseconds since 1970, if it can be told from them exactly."""
    try:
        return (datetime.fromisoformat(ts) - _EPOCH) // _US if _IN_UTC(ts) else ts
    except ValueError:  # the 30th of February
        return ts


def long_time(ts: Any) -> str:
    if not isinstance(ts, int):
        return str(ts)
    return (_EPOCH + timedelta(microseconds=ts)).isoformat(timespec="microseconds")


def is_id(text: str) -> bool:
    return 0 < len(text) <= _ID_CHARS_MAX and text.isprintable()
