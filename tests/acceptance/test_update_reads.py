"""update: whichever way the function takes values out of the state, it is noticed."""

from __future__ import annotations

import copy
import json
import pickle  # noqa: TID251  # that a pickle is noticed too is what is tested
from collections import ChainMap
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

import limpet
from limpet import Limpet
from limpet.store.memory import MemoryStore
from limpet.testing.commits import addition, draft

WAYS: dict[str, Callable[[Any], Any]] = {
    "copy.deepcopy": copy.deepcopy,
    "copy.copy": copy.copy,
    "copy method": lambda state: state.copy(),
    "pickle": lambda state: pickle.loads(pickle.dumps(state)),
    "old pickle": lambda state: pickle.loads(pickle.dumps(state, 0)),
    "getstate": lambda state: state.__getstate__(),
    "dict": dict,
    "unpacking": lambda state: {**state},
    "comprehension": lambda state: dict(state.items()),
    "update of a dict": lambda state: _updated(state),
    "or": lambda state: state | {},
    "or from the right": lambda state: {} | state,
    "json": lambda state: json.loads(json.dumps(dict(state))),
    "msgspec": lambda state: msgspec.json.decode(msgspec.json.encode(dict(state))),
    "msgspec convert": lambda state: msgspec.convert(state, dict[str, Any]),
    "repr": lambda state: eval(repr(state)),  # our own repr, of plain values
    "format": lambda state: eval(f"{state}"),  # likewise
    "equality": lambda state: {name: n for name in NAMES for n in range(99) if _at(state, name, n)},
    "ChainMap": lambda state: dict(ChainMap({}, state)),
    "proxy": lambda state: MappingProxyType(state).copy(),
    "pattern": lambda state: _matched(state),
    "views": lambda state: dict(zip(state.keys(), state.values(), strict=True)),
    "copied view": lambda state: dict(copy.deepcopy(state.items())),
}
NAMES = ("n", "app:n", "user:n")


def _updated(state: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    found.update(state)
    return found


def _at(state: Any, name: str, n: int) -> bool:
    """Whether the state has this value, by nothing but comparisons of the whole."""
    others = {other: m for other, m in TRUTH.items() if other != name}
    return bool(state == {**others, name: n})


def _matched(state: Any) -> dict[str, Any]:
    match state:
        case {**rest}:
            return rest
    raise AssertionError("a mapping")


TRUTH: dict[str, int] = {}


@pytest.fixture(autouse=True)
def truth() -> None:
    """What is stored now."""
    TRUTH.clear()
    TRUTH.update(dict.fromkeys(NAMES, 1))


class Faster(MemoryStore):
    """A store in which somebody else writes one name just before the first update commits."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name: str | None = name

    async def commit(self, commits: Any) -> Any:
        if commits[0].drafts[0].type == "state.updated" and self._name is not None:
            name, self._name = self._name, None
            TRUTH[name] = 10
            await super().commit([addition(commits[0].key, draft(set={name: 10}))])
        return await super().commit(commits)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", WAYS)
async def test_an_update_notices_values_however_they_were_taken(way: str, name: str) -> None:
    """Another writer changes a name in between: the function is called again on its new value."""

    def change(state: Mapping[str, Any]) -> dict[str, Any]:
        return {"sum": sum(WAYS[way](state)[known] for known in NAMES)}

    async with Limpet("memory://", store=Faster(name)) as lp:
        s = await lp.create("a", "u", state=dict.fromkeys(NAMES, 1))
        await s.update(change, actor="x")
        assert (await lp.get(s.key)).state["sum"] == 12


@pytest.mark.parametrize("way", WAYS)
async def test_an_update_that_took_everything_sees_new_names(way: str) -> None:
    """A session field that was not there is a change of what a copy of the whole holds."""
    async with Limpet("memory://", store=Faster("new")) as lp:
        s = await lp.create("a", "u", state=TRUTH)
        calls: list[Any] = []
        await s.update(lambda state: {"calls": _note(calls, WAYS[way](state))}, actor="x")
        assert len(calls) == 2


def _note(calls: list[Any], value: Any) -> int:
    calls.append(value)
    return len(calls)


@pytest.mark.parametrize("encode", [json.dumps, msgspec.json.encode, msgspec.msgpack.encode])
async def test_what_cannot_be_noticed_is_refused(encode: Callable[[Any], Any]) -> None:
    """An encoder written in C is given no values at all rather than values unseen."""
    async with limpet.open("memory://") as lp:
        s = await lp.create("a", "u", state={"n": 1})
        with pytest.raises(TypeError):
            await s.update(lambda state: {"text": str(encode(state))}, actor="x")
        assert s.version == 1


async def test_a_copy_of_the_state_may_be_changed() -> None:
    """What the read-only error advises: a deep copy is plain all the way down."""
    async with limpet.open("memory://") as lp:
        s = await lp.create("a", "u", state={"plan": {"steps": [1]}})

        def change(state: Mapping[str, Any]) -> dict[str, Any]:
            mine = copy.deepcopy(state)
            mine["plan"]["steps"].append(2)  # type: ignore[index]
            return dict(mine)

        await s.update(change, actor="x")
        assert s.state == {"plan": {"steps": [1, 2]}}


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.__setitem__("n", 1),
        lambda state: state.update(n=1),
        lambda state: state.pop("n"),
        lambda state: state.__delitem__("n"),
        lambda state: state.setdefault("n", 1),
        lambda state: state.__ior__({"n": 1}),
    ],
)
async def test_writing_to_the_state_says_what_to_do_instead(change: Callable[[Any], Any]) -> None:
    """The changes of an update are what its function returns; nothing is recorded."""
    async with Limpet("memory://") as lp:
        s = await lp.create("a", "u", actor="user:ada", state={"n": 0})
        with pytest.raises(limpet.InvalidInput, match="Return the changes as a dict"):
            await s.update(change)
        assert (s.version, s.state["n"]) == (1, 0)
