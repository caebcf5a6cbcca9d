"""Hostile bundles: files with right links, hashes and counts, and members that no store records.

A bundle of a session that has one of everything is taken apart into its lines. One to three of
their members are replaced, removed or added: names, times, seqs, data and operations of events,
whole facts, the header, checkpoints, what the session remembers, blobs. Then every link, hash and
count is computed again, so that nothing but what was changed tells the file from an honest one.
"""

from __future__ import annotations

import copy
import random
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec
from backports import zstd

import limpet
from limpet import Key, Limpet, facts
from limpet.model.chain import chained, genesis, header_digest
from limpet.model.events import is_input
from limpet.model.facts import adopted_shapes, shapes
from limpet.model.values import canonical

KEY: Final = Key("support", "ada", "hostile")
FORK: Final = Key("support", "ada", "hostile-fork")
ADA: Final = "user:ada"
Lines = list[dict[str, Any]]
_NAMES: Final = ("id", "type", "actor", "cause", "invocation_id", "correlation_id", "wake_id")
# What each type has: the members that a fold reads, or that an import looks at.
_FORMS: Final = {**adopted_shapes._DATA, **shapes._SHAPES}
_TYPES: Final = (
    *_FORMS,
    "user.interrupt",
    "user.define_outcome",
    "user.tool_confirmation",
    "user.resolution",
)
_OPEN: Final = ("agent.tool_use", "agent.custom_tool_use", "agent.message", "user.message")
_WORDS: Final = sorted(
    {
        name
        for form in (
            *_FORMS.values(),
            *adopted_shapes._DATA.values(),
            adopted_shapes._WAKE,
            *shapes._WAKES.values(),
        )
        for name in form.__struct_fields__
    }
    | {"archived", "awaits", "request_id", "input", "usage", "criteria", "title", "kind", "place"}
)


async def _harness(turn: limpet.Turn) -> None:
    await turn.step("look", lambda: 1)
    await turn.effect("pay", lambda n: "paid", n=1, max_cost=0.1)
    turn.revisit(timedelta(days=1), "to look")
    await turn.say("hello", cost=0.01)
    await turn.delegate("research", "look it up", title="Look", budget=1.0)
    await turn.ask("which", {"of": [1, 2]})


async def donors(lp: Limpet, folder: Path) -> list[Path]:
    """The files of a session with one of everything, of a fork of it, and of it suspended."""
    s = await lp.create(
        "support",
        "ada",
        "hostile",
        state={"n": 0, "list": [1, 2], "plan": {"steps": [{"a": 1}]}, "user:lang": "en"},
        labels={"plan": "gold"},
        timeouts=limpet.Timeouts(idle=timedelta(hours=1), expiry=timedelta(days=90)),
        budget=limpet.Budget(cost=5.0, tokens=1_000),
        actor="agent:main",
    )
    at = datetime(2031, 1, 1, tzinfo=UTC)
    await s.record(facts.timer_set("later", at))
    await s.record(facts.prioritized(3))
    await s.history.retention(events=50)
    await s.memory.session.put("plan", {"a": 1})
    await s.memory.episodic.put("asked", "for it")
    await s.memory.session_state.write("notes")
    await s.blobs.put(b"content", media_type="text/plain")
    await s.checkpoint("first", full=True)
    await s.memory.session.put("plan", {"a": 2})
    await s.outcome.define("deliver", criteria=["it is there"])
    await s.append("user.message", {"text": "hi"}, actor=ADA, inc={"n": 1}, add={"list": [3]})
    assert (await lp.wake(s.key, _harness)).error is None
    await s.refresh()
    await s.checkpoint("second")
    await s.append("agent.message", {"text": "x" * 200}, set={"plan": {"b": 2}}, delete=["list"])
    await lp.export(s.key, folder / "whole.limpet")
    await (await lp.get(KEY)).fork(id=FORK.id, labels={"of": "it"}, actor=ADA)
    await lp.session(FORK).append("user.message", {"text": "on"}, actor=ADA, set={"m": 1})
    await lp.export(FORK, folder / "fork.limpet")
    await s.suspend()
    await lp.export(s.key, folder / "suspended.limpet")
    return [folder / f"{name}.limpet" for name in ("whole", "fork", "suspended")]


def taken_apart(path: Path) -> Lines:
    """The lines of a bundle, without its trailer."""
    with zstd.open(path, "rb") as file:
        return [msgspec.json.decode(line) for line in file.read().splitlines()][:-1]


def put_together(lines: Lines, path: Path) -> None:
    """Write the bundle, with the links, hashes and counts that its lines lead to."""
    _relink(lines)
    body = b"".join([msgspec.json.encode(line) + b"\n" for line in lines])
    events = sum(["seq" in line for line in lines])
    trailer = {"end": True, "events": events, "sha256": sha256(body).hexdigest()}
    path.write_bytes(zstd.compress(body + msgspec.json.encode(trailer) + b"\n"))


def _relink(lines: Lines) -> None:
    """Compute the chain of each log again; where a member cannot be hashed, its link stays."""
    header, links = lines[0], dict[str, bytes]()
    for line in lines[1:]:
        event, log = _event_in(line)
        if event is None:
            continue
        try:
            if log not in links:
                base = header.get("base")
                begun = bytes.fromhex(base["link"]) if base and log == "own" else None
                links[log] = begun or genesis(event["id"])
            names = tuple([event.get(name) for name in _NAMES])
            marked = bool(event.get("input")) and not is_input(event["type"])
            raw, salt = msgspec.json.encode(event["body"]), bytes.fromhex(event["salt"])
            place = (event["seq"], event["at_us"], header_digest(names, marked=marked))
            links[log] = chained(links[log], *place, salt, raw)[1]
            event["link"] = links[log].hex()
        except (TypeError, ValueError, KeyError, AttributeError, struct.error, OverflowError):
            continue


def _event_in(line: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    if "seq" in line:
        return line, "own"
    if isinstance(line.get("checkpoint"), dict):
        return line["checkpoint"], "checkpoints"
    if "memory" in line and isinstance(line.get("event"), dict):
        return line["event"], f"memory {line['memory']}"
    return None, ""


class Hostile:
    """Changes of a bundle, one after the other from a seed."""

    def __init__(self, donors: list[Path], seed: int) -> None:
        self._donors = [taken_apart(path) for path in donors]
        self.random = random.Random(seed)

    def bundle(self, path: Path) -> str:
        """Write the next bundle; what was changed in it."""
        lines = copy.deepcopy(self.random.choice(self._donors))
        done = []
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            change: Callable[[Lines], str] = self.random.choice(
                (
                    self._data,
                    self._data,
                    self._data,
                    self._fact,
                    self._fact,
                    self._retyped,
                    self._member,
                    self._member,
                    self._ops,
                    self._header,
                    self._base,
                    self._line,
                    self._blob,
                    self._checkpoint_row,
                )
            )
            done.append(f"{change.__name__}: {change(lines)}")
        put_together(lines, path)
        return "; ".join(done)[:2_000]

    # --- changes -------------------------------------------------------------------------------

    def _data(self, lines: Lines) -> str:
        """A value somewhere in the data of an event."""
        event = self._any_event(lines)
        return f"{event.get('type')} {self._within(event['body'].setdefault('data', {}))}"

    def _fact(self, lines: Lines) -> str:
        """One more event of any type, with data made up or another's."""
        own = [line for line in lines if "seq" in line]
        last = max(own, key=lambda line: line["seq"] if type(line["seq"]) is int else 0)
        event = copy.deepcopy(last)
        event |= {
            "id": f"made-up-{self.random.random()}",
            "type": self.random.choice(_TYPES + _OPEN),
        }
        event["seq"] = last["seq"] + 1 if type(last["seq"]) is int else 1
        data = self._any_data(lines, event["type"])
        event["body"] = {"data": data}
        lines.append(event)
        return f"{event['type']} {data!r}"

    def _any_data(self, lines: Lines, type: str) -> Any:
        same = [line for line in lines if line.get("type") == type and "body" in line]
        if same and self.random.random() < 0.6:
            data = copy.deepcopy(self.random.choice(same)["body"].get("data", {}))
            self._within(data)
            return data
        form = _FORMS.get(type)
        words = list(form.__struct_encode_fields__) if form else _WORDS
        some = self.random.sample(words, k=min(len(words), self.random.randrange(1, 7)))
        return {word: self._value() for word in some}

    def _retyped(self, lines: Lines) -> str:
        """The type of an event."""
        event = self._any_event(lines)
        before = event.get("type")
        event["type"] = self.random.choice((*_TYPES, *_OPEN, self._value()))
        return f"{before} -> {event['type']!r}"

    def _member(self, lines: Lines) -> str:
        """A member of an event beside its body."""
        event = self._any_event(lines)
        name = self.random.choice(("seq", "at_us", "salt", "link", "input", "body", *_NAMES))
        if self.random.random() < 0.1:
            event.pop(name, None)
            return f"no {name}"
        others = [_event_in(line)[0] for line in lines]
        twin = [other[name] for other in others if other and name in other]
        event[name] = (
            self.random.choice(twin) if twin and self.random.random() < 0.3 else self._value()
        )
        return f"{name} = {event[name]!r}"

    def _ops(self, lines: Lines) -> str:
        """What an event does to state."""
        event = self._any_event(lines)
        kind = self.random.choice(
            ("set", "del", "add", "ins", "merge", "inc", "cut", "set@", "add@")
        )
        path = [self.random.choice(("n", "list", "plan", "app:x", "temp:y", "a:b", self._value()))]
        path += [self._value() for _ in range(self.random.randrange(3))]
        op = [kind, path, *[self._value() for _ in range(self.random.randrange(3))]]
        event["body"].setdefault("ops", [])
        if isinstance(event["body"]["ops"], list):
            event["body"]["ops"] = [*event["body"]["ops"], op] * self.random.choice((1, 1, 1, 600))
        return repr(op)

    def _header(self, lines: Lines) -> str:
        header = lines[0]
        name = self.random.choice(("key", "uid", "floor", "version", "format", "schema_version"))
        value = self._value()
        if name == "key" and self.random.random() < 0.7:
            value = ["support", "ada", "hostile"]
            value[self.random.randrange(3)] = self._value()
            first = next((line for line in lines if "seq" in line), None)
            if first is not None and isinstance(first.get("body"), dict):
                data = first["body"].get("data")
                if isinstance(data, dict):
                    data |= dict(zip(("app", "user", "id"), value, strict=True))
        header[name] = value
        return f"{name} = {value!r}"

    def _base(self, lines: Lines) -> str:
        """The state that a fork begins on, with the checksum that it has."""
        header = lines[0]
        if not isinstance(header.get("base"), dict):
            header["base"] = {"fields": {}, "versions": {}, "floor": 1}
        told = self._within(header["base"])
        try:
            sum_ = sha256(canonical(header["base"].get("fields"))).hexdigest()
        except Exception:
            return told
        header["base"]["checksum"] = sum_
        first = next((line for line in lines if "seq" in line), None)
        if first is not None and isinstance(first.get("body"), dict):
            data = first["body"].get("data")
            if isinstance(data, dict):
                data["base"] = sum_
        return told

    def _line(self, lines: Lines) -> str:
        """A line twice, somewhere else, or not at all."""
        at, what = self.random.randrange(len(lines)), self.random.randrange(3)
        if what == 0:
            lines.insert(self.random.randrange(1, len(lines) + 1), copy.deepcopy(lines[at]))
        elif what == 1 and len(lines) > 1:
            lines.insert(self.random.randrange(1, len(lines)), lines.pop(at))
        elif len(lines) > 1:
            lines.pop(max(1, at))
        return f"line {at} {('twice', 'moved', 'dropped')[what]}"

    def _blob(self, lines: Lines) -> str:
        parts = [line for line in lines if "blob" in line]
        if not parts:
            return "no blob"
        part, name = (
            self.random.choice(parts),
            self.random.choice(
                ("blob", "size", "media_type", "version", "chunks", "number", "data")
            ),
        )
        part[name] = self._value()
        return f"{name} = {part[name]!r}"

    def _checkpoint_row(self, lines: Lines) -> str:
        """What a checkpoint, or what is remembered, says."""
        beside = [line for line in lines if "checkpoint" in line or "memory" in line]
        if not beside:
            return "none"
        line = self.random.choice(beside)
        if "memory" in line and self.random.random() < 0.3:
            line["memory"] = self.random.choice(
                ("promoted/3/c-1/x", "semantic/7/support/x", "../x", "", self._value())
            )
            return f"memory = {line['memory']!r}"
        event = _event_in(line)[0]
        return "none" if event is None else self._within(event)

    # --- parts ---------------------------------------------------------------------------------

    def _any_event(self, lines: Lines) -> dict[str, Any]:
        events = [event for event, _ in map(_event_in, lines) if event is not None]
        whole = [event for event in events if isinstance(event.get("body"), dict)]
        if not whole:
            return {"body": {}}
        return self.random.choice(whole)

    def _within(self, value: Any) -> str:
        """Change something somewhere inside of a dict or a list."""
        path: list[Any] = []
        while True:
            if isinstance(value, dict):
                places: list[Any] = list(value)
            else:
                places = list(range(len(value))) if isinstance(value, list) else []
            if not places:
                if isinstance(value, dict):
                    value[self.random.choice(_WORDS)] = self._value()
                return f"{path} + a member"
            place = self.random.choice(places)
            path.append(place)
            inner = value[place]
            if isinstance(inner, (dict, list)) and inner and self.random.random() < 0.7:
                value = inner
                continue
            what = self.random.randrange(4)
            if what == 0 and isinstance(value, dict):
                del value[place]
                return f"{path} removed"
            if what == 1 and isinstance(value, dict):
                value[self.random.choice(_WORDS)] = self._value()
                return f"{path[:-1]} + a member"
            value[place] = self._value()
            return f"{path} = {value[place]!r}"[:300]

    def _value(self) -> Any:
        """Something that may not belong where it is put."""
        simple: tuple[Any, ...] = (
            None,
            True,
            False,
            0,
            -1,
            1,
            2**31,
            2**62,
            2**63 - 1,
            2**63,
            -(2**63) - 1,
            10**30,
            -(10**30),
            253_402_300_799_999_999,
            253_402_300_800_000_000,
            1.5,
            -0.0,
            1e300,
            "",
            " ",
            "x",
            "wake",
            "deadline",
            "archived",
            "active",
            "completed",
            "x" * 300,
            "\x00",
            "\x1b[2J",
            "\u202e",
            "a/../../b",
            "../../../victim",
            "$dead",
            "$x",
            "app:x",
            "0" * 64,
            [],
            {},
            [[]],
            [1, "x", None],
            {"": 1},
            {"x": {"y": [1]}},
        )
        chance = self.random.random()
        if chance < 0.05:
            return {f"n{i}": "v" for i in range(200)}
        if chance < 0.08:
            return _nested(self.random.choice((50, 95, 97, 200, 400)), self.random.random() < 0.5)
        if chance < 0.1:
            return list(range(5_000))
        return copy.deepcopy(self.random.choice(simple))


def _nested(depth: int, in_lists: bool) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if in_lists else {"x": value}
    return value
