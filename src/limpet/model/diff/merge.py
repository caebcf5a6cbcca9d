"""Merge: combine two values that diverged from a common base.

Where one side changed a place, its change wins; where both made the same change, it is taken once.
Dicts are merged name by name, lists of the same length item by item unless a side moved items, and
if both sides only added to a list, both additions are appended. An item that both changed is merged
inside only if a name such as `id` shows that it is the same item. Anything else that both changed
is a conflict, for a policy to decide. --before
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from limpet.errors import InvalidInput, MergeConflict
from limpet.model.diff.compare import SWEEPS, items_apart, moved, names_apart
from limpet.model.diff.diff import diff
from limpet.model.limits import VALUE_DEPTH_MAX
from limpet.model.ops import Path, PlainOp, show
from limpet.model.values import ABSENT, EMPTY, FrozenDict, FrozenList, admit, packed, same


class Conflict(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A place that both sides changed differently. ABSENT where there is no value."""

    path: Path
    base: Any
    a: Any
    b: Any

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is Conflict
            and self.path == other.path
            and same(self.base, other.base)
            and same(self.a, other.a)
            and same(self.b, other.b)
        )

    def __hash__(self) -> int:
        return hash(self.path)


Policy: TypeAlias = Callable[[Conflict], Any]


class _Ranked(msgspec.Struct, frozen=True, gc=False):
    a: Any
    b: Any

    def __post_init__(self) -> None:
        try:
            ordered = self.a < self.b or self.b < self.a or self.a == self.b
        except TypeError:
            ordered = False
        if not ordered:
            raise InvalidInput(
                f"{type(self).__name__} cannot put {self.a!r} and {self.b!r} in order. Give both "
                "sides numbers, or both times with a time zone."
            )

    def __call__(self, conflict: Conflict) -> Any:
        if self.a == self.b:
            return conflict
        return conflict.a if self.a > self.b else conflict.b


class LastWriter(_Ranked, frozen=True, gc=False):
    """The later side wins: pass each side's time or version. A tie stays undecided."""


class Priority(_Ranked, frozen=True, gc=False):
    """The side with the higher number wins. A tie stays undecided."""


def escalate(conflict: Conflict) -> Any:
    """Decide nothing: the conflict is reported, and the base's value stays."""
    return conflict


# --- merging ---------------------------------------------------------------------------------


Side: TypeAlias = Literal["a", "b", "neither"]
KNOWN_BY: Final = ("id", "uid", "uuid", "key", "name")  # what tells the items of a list apart
_NO_ITEMS: Final = FrozenList()
_put: Final[Any] = dict.__setitem__  # into a copy that nobody else has seen yet


class Resolved(msgspec.Struct, frozen=True, gc=False):
    """A conflict that a policy resolved: the side that won, or `neither` for a new value."""

    conflict: Conflict
    side: Side
    policy: Policy

    @property
    def path(self) -> Path:
        """The path of the place that was decided."""
        return self.conflict.path


class Merged(msgspec.Struct, frozen=True, gc=False):
    """The merged value, read-only. At an unresolved conflict it has the base's value."""

    value: Any
    base: Any
    conflicts: tuple[Conflict, ...] = ()
    resolved: tuple[Resolved, ...] = ()

    def settled(self) -> Any:
        """Return the value. Raises MergeConflict if a conflict is unresolved."""
        if self.conflicts:
            places = tuple([show(each.path) or "the root" for each in self.conflicts])
            raise MergeConflict(places, self.conflicts)
        return self.value

    def ops(self, start: Any = ABSENT) -> tuple[PlainOp, ...]:
        """Return the operations that turn `start`, by default the base, into the merged value.

        Raises MergeConflict if a conflict is open: starting from a side, they would silently undo
        that side's own change.
        """
        return diff(self.base if start is ABSENT else start, self.settled()).ops()


def merge(
    base: Any,
    a: Any,
    b: Any,
    *,
    policy: Policy = escalate,
    policies: Mapping[str | Path, Policy] | None = None,
) -> Merged:
    """Merge `a` and `b`, which both started as `base`. `policy` decides conflicts; at or below a
    path in `policies`, the policy of the longest matching path does. A single name may be text.
    """
    base, a, b = (admit(each, "the value") for each in (base, a, b))
    walk = _Walk(_Policies(policy, policies or {}))
    value = walk.merged((), base, a, b, SWEEPS)
    return Merged(value, base, tuple(walk.conflicts), tuple(walk.resolved))


class _Policies:
    """The policies that decide, by path."""

    def __init__(self, policy: Policy, policies: Mapping[str | Path, Policy]) -> None:
        self._by_path = {_path(prefix): chosen for prefix, chosen in policies.items()}
        self._by_path.setdefault((), policy)
        self._longest = max(map(len, self._by_path))
        for chosen in (policy, *self._by_path.values()):
            if not callable(chosen):
                raise InvalidInput(
                    f"{chosen!r} is not a policy. Use LastWriter, Priority, escalate or a "
                    "function of a conflict."
                )

    def at(self, path: Path) -> Policy:
        for length in range(min(self._longest, len(path)), 0, -1):
            if path[:length] in self._by_path:
                return self._by_path[path[:length]]
        return self._by_path[()]


class _Walk:
    """One merge in progress: its open conflicts, and what its policies decided."""

    def __init__(self, policies: _Policies) -> None:
        self._policies = policies
        self.conflicts: list[Conflict] = []
        self.resolved: list[Resolved] = []

    def merged(self, path: Path, base: Any, a: Any, b: Any, sweeps: int) -> Any:
        """The value at a path that both sides may have changed; ABSENT if there is none."""
        if b is base or a is b:
            return a
        if a is base:
            return b
        if len(path) < VALUE_DEPTH_MAX:
            start: Any = EMPTY if base is ABSENT else base
            if type(a) is type(b) is type(start) is FrozenDict:
                return self._dict(path, start, a, b, sweeps)
            if type(a) is type(b) is type(base) is FrozenList and len(a) == len(b) == len(base):
                made = self._list(path, base, a, b, sweeps)
                if made is not None:
                    return made
        if same(a, b) or same(base, b):
            return a
        if same(base, a):
            return b
        grown = _append_both(base, a, b)
        return self._decide(Conflict(path, base, a, b)) if grown is None else grown

    def _dict(
        self, path: Path, base: FrozenDict, a: FrozenDict, b: FrozenDict, sweeps: int
    ) -> FrozenDict:
        from_a, from_b = set(names_apart(base, a, sweeps)), set(names_apart(base, b, sweeps))
        made = FrozenDict(base)
        for name in sorted(from_a | from_b):
            old, mine, other = (each.get(name, ABSENT) for each in (base, a, b))
            if name not in from_b:
                value = mine
            elif name not in from_a:
                value = other
            else:
                value = self.merged((*path, name), old, mine, other, max(sweeps - 1, 0))
            if value is ABSENT:
                dict.pop(made, name, None)
            else:
                _put(made, name, value)
        return made

    def _list(
        self, path: Path, base: FrozenList, a: FrozenList, b: FrozenList, sweeps: int
    ) -> FrozenList | None:
        """Merge both lists item by item; return None if a side moved items."""
        from_a, from_b = set(items_apart(base, a, sweeps)), set(items_apart(base, b, sweeps))
        if from_a and from_b and moved(base, (a, from_a), (b, from_b)):
            return None
        made, items = list(base), _ListItems(base)
        for index in sorted(from_a | from_b):
            if index not in from_b:
                made[index] = a[index]
            elif index not in from_a:
                made[index] = b[index]
            else:
                three, at = (base[index], a[index], b[index]), (*path, index)
                whole = any([type(each) in (FrozenDict, FrozenList) for each in three])
                if whole and not _is_settled(*three) and not items.is_one(*three):
                    made[index] = self._decide(Conflict(at, *three))
                else:
                    made[index] = self.merged(at, *three, max(sweeps - 1, 0))
        return FrozenList(made)

    def _decide(self, conflict: Conflict) -> Any:
        policy = self._policies.at(conflict.path)
        value = policy(conflict)
        if value is conflict:
            self.conflicts.append(conflict)
            return conflict.base
        if value is ABSENT:
            _check_removable(conflict)
        else:
            value = admit(value, f"what the policy made of {show(conflict.path) or 'the root'}")
        side: Side = "a" if same(value, conflict.a) else "b"
        if side == "b" and not same(value, conflict.b):
            side = "neither"
        self.resolved.append(Resolved(conflict, side, policy))
        return value


def _is_settled(base: Any, a: Any, b: Any) -> bool:
    """True if no more than one side changed a value, or both alike."""
    return same(a, b) or same(base, a) or same(base, b)


class _ListItems:
    """The items of a list, and whether an item that both sides changed is the same item.

    The item at an index may have been replaced, or moved and changed at once. An item is identified
    by the first name of KNOWN_BY that it has, if no other item has the same value there; a list, by
    both sides having only added to it.
    """

    def __init__(self, items: FrozenList) -> None:
        self._items = items
        self._marks: dict[str, Counter[bytes]] = {}

    def is_one(self, base: Any, a: Any, b: Any) -> bool:
        if type(base) is FrozenList:
            return bool(base) and _append_both(base, a, b) is not None
        if not (type(base) is type(a) is type(b) is FrozenDict):
            return False
        name = next((name for name in KNOWN_BY if name in base), None)
        if name is None or not (same(base[name], a.get(name)) and same(base[name], b.get(name))):
            return False
        return self._times(name, packed(base[name])) == 1

    def _times(self, name: str, mark: bytes) -> int:
        if name not in self._marks:
            held = [item[name] for item in self._items if type(item) is FrozenDict and name in item]
            self._marks[name] = Counter(map(packed, held))
        return self._marks[name][mark]


def _append_both(base: Any, a: Any, b: Any) -> FrozenList | None:
    """The base followed by both additions, if both sides only added to it."""
    start = _NO_ITEMS if base is ABSENT else base
    if not (type(a) is type(b) is type(start) is FrozenList):
        return None
    length = len(start)
    if not (same(a[:length], start) and same(b[:length], start)):
        return None
    return FrozenList((*a, *b[length:]))


def _check_removable(conflict: Conflict) -> None:
    if not conflict.path or isinstance(conflict.path[-1], int):
        raise InvalidInput(
            f"a policy removes {show(conflict.path) or 'the root'}, and only names of a dict can "
            "be removed. Return a value there."
        )


def _path(prefix: object) -> Path:
    path = (prefix,) if isinstance(prefix, str) else prefix
    if not isinstance(path, tuple) or not all([type(step) in (str, int) for step in path]):
        raise InvalidInput(
            f"{prefix!r} is not a path. Use a name, or a tuple of names and indexes, as in "
            "('plan', 'steps', 0)."
        )
    return path
