"""Growing lists: what a channel of messages holds, kept so that a longer version costs its growth.

A List is a length of a shared Run. Appending to the newest List of a Run makes the Run longer;
anything else begins a new Run. So a thread of n messages holds n messages, whatever the number of
its checkpoints.

Messages are also held as objects, because making them again for every turn would cost their number.
They are handed out, so whoever has one may change it in place, which LangGraph asks nobody to do. A
copy of the fields is kept and compared before an object is given out again, or counts as unchanged:
the content of all messages, and every field of the newest ones and of those with parts. Fields that
may hold numbers are compared as bytes too: 1 == True == 1.0, and each is stored as what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import is_, itemgetter
from typing import Any, Final, NamedTuple

import msgspec

from limpet.adapters.langgraph.values import Values, fields_shot, is_message

_raw: Final = msgspec.json.Encoder().encode
_NEWEST: Final = 64  # messages whose every field is compared
_content: Final = itemgetter("content")
_NO_SHOT: Final[Mapping[str, Any]] = {"": None}  # equal to the fields of no message
_UNWRITABLE: Final = (TypeError, ValueError, RecursionError)  # by the next
# Values that are not JSON are distinguished by class and attributes.
_exact: Final = msgspec.json.Encoder(
    enc_hook=lambda of: [type(of).__qualname__, getattr(of, "__dict__", None)]
).encode


class Growth(NamedTuple):
    """The difference between two lists: items kept, new items, items kept at the end.

    `live` and `shots` are the new items as objects, taken when `data` was: an object may be changed
    by its owner at any time.
    """

    keep: int
    data: Sequence[Any]
    tail: int = 0
    live: Sequence[Any] = ()
    shots: Sequence[Mapping[str, Any]] = ()


def grown(keep: int, data: Sequence[Any], tail: int, values: Sequence[Any]) -> Growth:
    live = [value if is_message(value) else None for value in values]
    shots = [_NO_SHOT if value is None else fields_shot(value) for value in live]
    return Growth(keep, data, tail, live, shots)


class _Run:
    """Items in the order they were added, with the objects that are handed out for them."""

    __slots__ = ("contents", "data", "exacts", "fields", "live", "parted", "raws", "shots")

    def __init__(self) -> None:
        self.data: list[Any] = []
        self.live: list[Any] = []  # messages; None where there is no object, or not a message
        self.shots: list[Mapping[str, Any]] = []
        self.fields: list[Mapping[str, Any]] = []  # of the objects, as they are now
        self.contents: list[Any] = []  # of the messages as they were, which are texts mostly
        self.parted: list[int] = []  # where they are not
        # Where fields may hold numbers: which, and their bytes.
        self.exacts: dict[int, tuple[Callable[[Mapping[str, Any]], Any], bytes]] = {}
        self.raws: list[bytes] = []  # made when first compared

    def add(
        self, data: Sequence[Any], live: Sequence[Any], shots: Sequence[Mapping[str, Any]]
    ) -> None:
        missing, begin = len(data) - len(live), len(self.data)
        self.data += data
        self.live += [*live, *([None] * missing)]
        self.shots += [*shots, *([_NO_SHOT] * missing)]
        self.contents += [None] * len(data)
        self.fields += [_NO_SHOT] * len(data)
        for place in range(begin, begin + len(live)):
            self._note(place)

    def show(self, place: int, value: Any) -> None:
        """Hold the object that is handed out for an item."""
        if is_message(value):
            self.live[place], self.shots[place] = value, fields_shot(value)
            self._note(place)

    def _note(self, place: int) -> None:
        if self.live[place] is not None:
            self.fields[place] = self.live[place].__dict__
        self._note_exact(place)
        content = self.contents[place] = self.shots[place].get("content")
        if type(content) is not str and place not in self.parted:
            self.parted.append(place)

    def _note_exact(self, place: int) -> None:
        shot = self.shots[place]
        names = [name for name, value in shot.items() if not _is_certain(value)]
        if not names:
            self.exacts.pop(place, None)
            return
        of = itemgetter(*names)
        try:
            self.exacts[place] = of, _exact(of(shot))
        except _UNWRITABLE:
            self.exacts[place] = of, b""  # the bytes of nothing

    def is_same(self, place: int, fields: Mapping[str, Any]) -> bool:
        """True if these are the fields of the message there, as they were."""
        return fields == self.shots[place] and self._is_exact([(place, fields)])

    def _is_exact(self, looked: Iterable[tuple[int, Mapping[str, Any]]]) -> bool:
        """True if fields that are equal are also of the same types."""
        exacts = self.exacts
        compared = [(exacts[place], fields) for place, fields in looked if place in exacts]
        then = b",".join([raw for (_, raw), _ in compared])
        try:  # in one call: this is asked of 64 messages in every turn
            return _exact([of(fields) for (of, _), fields in compared]) == b"[%b]" % then
        except _UNWRITABLE:
            return False

    def begins_with(self, messages: Sequence[Any]) -> bool:
        """True if these are the first items of the run: the same objects, or others like them."""
        if all(map(is_, messages, self.live)):
            return True
        for place, (new, held) in enumerate(zip(messages, self.live, strict=False)):
            if new is not held and not (type(new) is type(held) and self._is_like(place, new)):
                return False
        return True

    def _is_like(self, place: int, message: Any) -> bool:
        return is_message(message) and self.is_same(place, message.__dict__)

    def is_unchanged(self, count: int) -> bool:
        """True if the first items of the run are messages and still what they were."""
        try:
            if list(map(_content, self.fields[:count])) != self.contents[:count]:
                return False
        except KeyError:  # an item that is not a message
            return False
        newest = range(max(0, count - _NEWEST), count)
        looked = [*newest, *[place for place in self.parted if place < newest.start]]
        if not all([self.fields[place] == self.shots[place] for place in looked]):
            return False
        return not self.exacts or self._is_exact([(place, self.fields[place]) for place in looked])

    def part(self, begin: int, end: int) -> tuple[list[Any], list[Any], list[Any]]:
        return self.data[begin:end], self.live[begin:end], self.shots[begin:end]

    def raw(self, count: int) -> list[bytes]:
        self.raws += [_raw(item) for item in self.data[len(self.raws) : count]]
        return self.raws[:count]


class List:
    """One version of a list."""

    __slots__ = ("_run", "count")

    def __init__(self, run: _Run | None = None, count: int = 0) -> None:
        self._run, self.count = run or _Run(), count

    def data(self) -> list[Any]:
        return self._run.data[: self.count]

    def grow(self, by: Growth) -> List:
        """The list that follows. This one stays as it is."""
        run, count, keep, tail = self._run, self.count, by.keep, by.tail
        if keep + tail > count:
            raise IndexError(f"a list of {count} items has not {keep} first and {tail} last ones")
        if tail or keep != len(run.data):  # not the newest of its run, or not only longer
            mine, run = run, _Run()
            run.add(*mine.part(0, keep))
            run.add(by.data, by.live, by.shots)
            run.add(*mine.part(count - tail, count))
        else:
            run.add(by.data, by.live, by.shots)
        return List(run, keep + len(by.data) + tail)

    def values(self, codec: Values) -> list[Any]:
        """The items as objects. A message that somebody changed in place is made again."""
        run, count = self._run, self.count
        if run.is_unchanged(count):
            return run.live[:count]
        return [self._value(codec, place) for place in range(count)]

    def _value(self, codec: Values, place: int) -> Any:
        run = self._run
        message = run.live[place]
        if message is not None and run.is_same(place, message.__dict__):
            return message
        value = codec.decode(run.data[place])
        run.show(place, value)
        return value

    def compare(self, codec: Values, new: list[Any]) -> Growth:
        """The growth from this list to `new`. Raises InvalidInput if it cannot be stored."""
        count = self.count
        run = self._run
        if len(new) >= count and run.begins_with(new[:count]) and run.is_unchanged(count):
            added = new[count:]
            return grown(count, [codec.encode(item) for item in added], 0, added)
        data = [codec.encode(item) for item in new]
        mine, theirs = run.raw(count), [_raw(item) for item in data]
        keep = _common(mine, theirs)
        tail = _common(mine[keep:][::-1], theirs[keep:][::-1])
        end = len(data) - tail
        return grown(keep, data[keep:end], tail, new[keep:end])


def _is_certain(value: Any) -> bool:
    """True if whatever equals it has its type, too."""
    kind = type(value)
    return kind is str or value is None or (kind in (dict, list) and not value)


def _common(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    place = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        place += 1
    return place
