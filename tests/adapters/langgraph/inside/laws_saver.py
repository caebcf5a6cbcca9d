"""What the saver promises beyond LangGraph's conformance suite."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command, Interrupt, Overwrite, Send
from pydantic import BaseModel

import limpet
from limpet.adapters.langgraph import LimpetSaver, LimpetStore, ValueCodec

Config = dict[str, Any]


def at(thread: str = "t", id: str | None = None, ns: str = "") -> Config:
    place = {"thread_id": thread, "checkpoint_ns": ns}
    return {"configurable": place if id is None else place | {"checkpoint_id": id}}


def checkpoint(version: int = 1, **values: Any) -> Checkpoint:
    versions = dict.fromkeys(values, version)
    made = {**empty_checkpoint(), "id": str(uuid6()), "channel_values": values}
    return made | {"channel_versions": versions}  # type: ignore[return-value]


async def put(saver: Any, config: Config, version: int = 1, **values: Any) -> Config:
    new = checkpoint(version, **values)
    found: Config = await saver.aput(config, new, {"source": "loop"}, new["channel_versions"])
    return found


async def values_at(saver: Any, config: Config) -> Any:
    found = await saver.aget_tuple(config)
    return found.checkpoint["channel_values"]


def changed(choose: random.Random, messages: list[Any]) -> list[Any]:
    """The list as a run may leave it: longer mostly, sometimes cut, edited or begun again."""
    new, kind = list(messages), choose.random()
    if kind < 0.1 and new:
        del new[choose.randrange(len(new))]
    elif kind < 0.2 and new:
        place = choose.randrange(len(new))
        new[place] = AIMessage(f"edited {choose.random()}", id=str(uuid4()))
    elif kind < 0.25:
        new = new[-2:]
    elif kind < 0.3:
        new = [*new, {"n": choose.choice([1, True, 1.0])}]
    else:
        new = [*new, HumanMessage("hello " * choose.randrange(20), id=str(uuid4()))]
    return new


@pytest.mark.parametrize("seed", range(3))
async def test_every_checkpoint_of_a_tree_reads_back_as_it_was_put(
    seed: int, lp: limpet.Limpet, app: str
) -> None:
    """Whatever grew, shrank or branched: both by who put it and by who reads the log anew."""
    choose, saver = random.Random(seed), LimpetSaver(lp, app=app)
    made: list[tuple[Config, Any, Any]] = [(at(), {}, [])]
    for step in range(60):
        parent, before, _ = made[-1] if choose.random() < 0.8 else choose.choice(made)
        config = {"configurable": {**parent["configurable"]}}
        messages = changed(choose, before.get("messages", []))
        values = {"messages": messages, "step": step, "branch:to:x": None}
        if choose.random() < 0.3:
            values |= {"plan": [choose.randrange(3) for _ in range(3)]}
        writes: Any = []
        if parent["configurable"].get("checkpoint_id") and choose.random() < 0.7:
            writes = [("messages", messages[-1:]), ("step", step)]
            await saver.aput_writes(config, writes, f"task-{step}", "path")
        new = {**checkpoint(step + 1, **values), "updated_channels": sorted(values)[: step % 3]}
        meta = {"source": "loop", "step": step, "parents": {}}
        meta |= {"count": choose.choice([1, True, 1.0, "a text that is longer than most"])}
        stored = await saver.aput(config, new, meta, new["channel_versions"])
        made.append((stored, values, (new, meta)))
    for reader in (saver, LimpetSaver(lp, app=app)):
        for config, values, (new, meta) in made[1:]:
            found = await reader.aget_tuple(config)
            assert found is not None
            assert found.checkpoint["channel_values"] == values
            kept = sorted(found.checkpoint["channel_values"].items())
            assert repr(kept) == repr(sorted(values.items()))  # 1 is not True
            rest = {name: part for name, part in new.items() if name != "channel_values"}
            assert {name: found.checkpoint.get(name) for name in rest} == rest
            assert repr(sorted(found.metadata.items())) == repr(sorted(meta.items()))


async def test_metadata_that_only_looks_the_same_is_recorded(lp: limpet.Limpet, app: str) -> None:
    """1 is not True and 0.0 not -0.0, also inside: who reads the log finds what was put."""
    saver, config, read = LimpetSaver(lp, app=app), at(), []
    for part in ({"n": 1}, {"n": True}, {"n": 1.0}, 0.0, -0.0):
        new = checkpoint(1, n=1)
        config = await saver.aput(config, new, {"source": "loop", "part": part}, {})  # type: ignore[typeddict-unknown-key]  # ours
        for reader in (saver, LimpetSaver(lp, app=app)):
            read.append(repr((await reader.aget_tuple(config)).metadata["part"]))  # type: ignore[union-attr]  # it is there
    assert read[::2] == ["{'n': 1}", "{'n': True}", "{'n': 1.0}", "0.0", "-0.0"]
    assert read[1::2] == read[::2]


async def test_a_longer_list_costs_its_growth(saver: LimpetSaver, lp: limpet.Limpet) -> None:
    """The event of the 300th message is not larger than that of the 30th."""
    messages: list[Any] = []
    config, sizes = at(), []
    for turn in range(300):
        messages = [*messages, HumanMessage("hello " * 20, id=str(uuid4()))]
        config = await put(saver, config, turn + 1, messages=messages)
        session = await lp.get(saver.app, saver.user, "t", tail=1)
        sizes.append(len(repr(session.events[-1].data)))
    assert max(sizes[100:]) <= max(sizes[10:30]) + 16


async def test_a_message_edited_in_place_is_stored_as_edited(
    saver: LimpetSaver, lp: limpet.Limpet
) -> None:
    """The new checkpoint has the edit, the old one does not, for every reader."""
    messages = [HumanMessage(f"message {n}", id=str(n)) for n in range(100)]
    first = await put(saver, at(), 1, messages=messages)
    held = (await values_at(saver, at()))["messages"]
    held[99].additional_kwargs["seen"] = True
    middle = await put(saver, first, 2, messages=held)
    held[5].content = "edited"
    second = await put(saver, middle, 3, messages=held)
    for reader in (saver, LimpetSaver(lp, app=saver.app)):
        old = (await values_at(reader, first))["messages"]
        assert (await values_at(reader, middle))["messages"][99].additional_kwargs == {"seen": True}
        new = (await values_at(reader, second))["messages"]
        assert (old[5].content, old[99].additional_kwargs) == ("message 5", {})
        assert (new[5].content, new[99].additional_kwargs) == ("edited", {"seen": True})


@pytest.mark.parametrize("replaced", [False, True], ids=["in place", "another object"])
async def test_a_message_that_only_looks_the_same_is_recorded(
    lp: limpet.Limpet, app: str, replaced: bool
) -> None:
    """1 is not True and 0.0 not -0.0, wherever in a message, and whether it is edited or new."""
    saver, config, read = LimpetSaver(lp, app=app), at(), []
    numbers = (1, True, 1.0, 0, False, 0.0, -0.0)
    made: Any = {"additional_kwargs": {"a": [{"n": 0}]}, "tool_call_id": "c", "artifact": 0}
    message = ToolMessage("hi", id="m", **made)
    for number in numbers:
        if replaced:
            message = message.model_copy(deep=True)
        message.additional_kwargs["a"][0]["n"] = number
        message.artifact = number
        config = await put(saver, config, len(read) + 1, messages=[message])
        for reader in (saver, LimpetSaver(lp, app=app)):
            (found,) = (await values_at(reader, config))["messages"]
            read.append((found.additional_kwargs["a"][0]["n"], found.artifact))
    assert repr(read[::2]) == repr([(number, number) for number in numbers])
    assert repr(read[1::2]) == repr(read[::2])


async def test_a_late_write_after_delete_is_refused(saver: LimpetSaver) -> None:
    """Neither a checkpoint nor the writes of a task bring a deleted thread back."""
    bare = await put(saver, at(), a=1)
    seen = (await saver.aget_tuple(at())).config
    await saver.adelete_thread("t")
    for config in (bare, seen):
        with pytest.raises(limpet.errors.SessionDeleted):
            await put(saver, config, 2, a=2)
        with pytest.raises(limpet.errors.SessionDeleted):
            await saver.aput_writes(config, [("a", 2)], "task")
    assert await saver.aget_tuple(at()) is None
    await put(saver, at(), a="a new thread")
    with pytest.raises(limpet.errors.SessionDeleted):
        await saver.aput_writes(seen, [("a", 2)], "task")
    with pytest.raises(limpet.errors.SessionDeleted):
        await put(saver, seen, 2, a=2)
    assert await values_at(saver, at()) == {"a": "a new thread"}


async def test_the_late_write_resurrects_a_thread_of_theirs(tmp_path: Path) -> None:
    """The same writes are taken by AsyncSqliteSaver: the check is one that fails there."""
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "theirs.db")) as theirs:
        await put(theirs, at(), a=1)
        seen = (await theirs.aget_tuple(at())).config
        await theirs.adelete_thread("t")
        await put(theirs, seen, 2, a=2)
        assert await theirs.aget_tuple(at()) is not None


async def test_the_second_writer_from_one_parent_is_detected(
    saver: LimpetSaver, lp: limpet.Limpet
) -> None:
    """Both read one checkpoint; the first put is recorded, the second raises SessionConflict."""
    await put(saver, at(), a=1)
    other = LimpetSaver(lp, app=saver.app)
    mine = (await saver.aget_tuple(at())).config
    yours = (await other.aget_tuple(at())).config
    kept = await put(saver, mine, 2, a="mine")
    with pytest.raises(limpet.SessionConflict):
        await put(other, yours, 2, a="yours")
    assert (await saver.aget_tuple(at())).checkpoint["id"] == kept["configurable"]["checkpoint_id"]


async def test_who_goes_back_on_purpose_branches(saver: LimpetSaver) -> None:
    """A run that reads an old checkpoint by its id may go on from there; both branches stay."""
    first = await put(saver, at(), a=1)
    await put(saver, first, 2, a=2)
    back = (await saver.aget_tuple(first)).config
    await put(saver, back, 2, a="another way")
    assert await values_at(saver, at()) == {"a": "another way"}
    assert len([each async for each in saver.alist(at())]) == 3


async def test_both_branches_are_kept_if_asked(lp: limpet.Limpet, app: str) -> None:
    """With on_conflict="fork" two writers from one parent make two branches."""
    saver = LimpetSaver(lp, app=app, on_conflict="fork")
    await put(saver, at(), a=1)
    seen = (await saver.aget_tuple(at())).config
    await put(saver, seen, 2, a="mine")
    await put(saver, seen, 2, a="yours")
    assert len([each async for each in saver.alist(at())]) == 3


async def test_two_savers_on_one_database_lose_nothing(url: str, app: str) -> None:
    """Tasks of two open stores write to one thread at once; every write is there for both."""
    if url == "memory://":
        pytest.skip("a memory store belongs to one Limpet")
    async with limpet.open(url) as one, limpet.open(url) as two:
        savers = [LimpetSaver(one, app=app), LimpetSaver(two, app=app)]
        root = await put(savers[0], at(), a=0)
        tasks = [
            savers[n % 2].aput_writes(root, [("a", n), ("b", "text " * 30)], f"task-{n:02}")
            for n in range(40)
        ]
        await asyncio.gather(*tasks)
        for saver in savers:
            found = await saver.aget_tuple(at())
            assert found is not None
            wrote = sorted(v for _, channel, v in found.pending_writes or () if channel == "a")
            assert wrote == list(range(40))


async def test_a_repeated_put_is_recorded_once(saver: LimpetSaver, lp: limpet.Limpet) -> None:
    """Who lost the answer of a put and repeats it, in another process, records nothing twice."""
    new = checkpoint(a=1)
    for each in (saver, LimpetSaver(lp, app=saver.app)):
        await each.aput(at(), new, {"source": "loop"}, new["channel_versions"])
    found = [each.checkpoint["id"] async for each in saver.alist(at())]
    assert found == [new["id"]]
    assert (await lp.get(saver.app, saver.user, "t")).version == 2


async def test_one_id_in_two_namespaces_names_two_checkpoints(
    saver: LimpetSaver, lp: limpet.Limpet
) -> None:
    """The id is only the checkpoint's within its namespace; and one put again is replaced."""
    one, two = checkpoint(a="root"), checkpoint(a="child")
    two["id"] = one["id"]
    await saver.aput(at(), one, {}, {"a": 1})
    await saver.aput(at(ns="child"), two, {}, {"a": 1})
    await saver.aput(at(), {**one, "channel_values": {"a": "again"}}, {}, {"a": 1})
    for reader in (saver, LimpetSaver(lp, app=saver.app)):
        assert await values_at(reader, at()) == {"a": "again"}
        assert await values_at(reader, at(ns="child")) == {"a": "child"}


async def test_the_first_writes_of_a_task_count(saver: LimpetSaver, lp: limpet.Limpet) -> None:
    """A task that ran twice, in two processes, has written once; the last error of it counts."""
    root = await put(saver, at(), a=0)
    other = LimpetSaver(lp, app=saver.app)
    await other.aget_tuple(at())
    for each, value in ((saver, 1), (other, 2)):
        await each.aput_writes(root, [("a", value), ("__error__", f"error {value}")], "task")
    found = await LimpetSaver(lp, app=saver.app).aget_tuple(at())
    assert found is not None
    assert sorted(found.pending_writes or ()) == [
        ("task", "__error__", "error 2"),
        ("task", "a", 1),
    ]


class Colour(Enum):
    RED = "red"


class Profile(BaseModel):
    name: str
    tags: set[str] = set()


@dataclass
class Point:
    x: int
    y: int


VALUES: tuple[Any, ...] = (
    None,
    True,
    2**80,
    float("inf"),
    "text",
    b"\x00\xff",
    (1, (2, "three")),
    {1: "a", "b": {"$": "not a form"}},
    {"s": {1, 2}, "f": frozenset((3,)), "q": deque([1, 2])},
    [datetime(2026, 1, 2, 3, 4, 5, 6, UTC), timedelta(days=1, microseconds=3), UUID(int=7)],
    Decimal("1.10"),
    Path("a/b"),
    Document(page_content="text", metadata={"page": 1}),
    [AIMessage("", id="1", tool_calls=[{"name": "f", "args": {"x": 1}, "id": "c1"}])],
    ToolMessage("out", tool_call_id="c1", artifact={"rows": (1, 2)}),
    RemoveMessage(id="1"),
    [Send("node", {"x": (1, 2)}), Interrupt(value={"ask": 1}, id="i1")],
    Command(update={"a": 1}, goto="b"),
    Overwrite([1]),
)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
async def test_a_value_comes_back_as_it_was(value: Any) -> None:
    """Of the same type and equal, in a checkpoint and in a write, read from the log."""
    async with limpet.open("memory://") as lp:
        saver = LimpetSaver(lp)
        stored = await put(saver, at(), a=value)
        await saver.aput_writes(stored, [("a", value)], "task")
        found = await LimpetSaver(lp).aget_tuple(at())
        assert found is not None
        for back in (found.checkpoint["channel_values"]["a"], found.pending_writes[0][2]):
            assert back == value
            assert type(back) is type(value)
            assert repr(back) == repr(value)


@pytest.mark.parametrize("value", [Colour.RED, Profile(name="ada"), Point(1, 2), object()])
async def test_an_unknown_type_is_refused_and_nothing_is_recorded(value: Any) -> None:
    """The error names the class and what to pass; nothing is pickled."""
    async with limpet.open("memory://") as lp:
        saver = LimpetSaver(lp)
        with pytest.raises(limpet.InvalidInput, match=r"codecs=\["):
            await put(saver, at(), a={"deep": [value]})
        assert await lp.find(saver.app, saver.user, "t") is None


async def test_a_codec_makes_a_type_known() -> None:
    """A class given as codec, or with functions of its own, round-trips; others cannot read it."""
    async with limpet.open("memory://") as lp:
        codecs = [
            Colour,
            Profile,
            ValueCodec("point", Point, lambda p: [p.x, p.y], lambda v: Point(*v)),
        ]
        values = [Colour.RED, Profile(name="ada", tags={"a"}), Point(1, 2)]
        await put(LimpetSaver(lp, codecs=codecs), at(), a=values)
        assert await values_at(LimpetSaver(lp, codecs=codecs), at()) == {"a": values}
        with pytest.raises(limpet.InvalidInput, match="no codec"):
            await LimpetSaver(lp).aget_tuple(at())


async def test_a_serde_stores_what_no_codec_knows_but_never_a_pickle() -> None:
    """LangGraph's serializer may be chosen; what it would pickle is refused all the same."""
    async with limpet.open("memory://") as lp:
        serde = JsonPlusSerializer(
            pickle_fallback=True, allowed_msgpack_modules=[(__name__, "Point")]
        )
        saver = LimpetSaver(lp, serde=serde)
        await saver.aput_writes(await put(saver, at(), a=1), [("a", Point(1, 2))], "task")
        with pytest.raises(limpet.InvalidInput, match="never pickles"):
            await put(saver, at("u"), a=object())


async def test_deleted_runs_and_pruned_checkpoints_take_no_late_writes(saver: LimpetSaver) -> None:
    """What was removed is not listed, found or built upon, by its id either."""
    first = await put(saver, at(), a=1)
    second = await put(saver, first, 2, a=2)
    await saver.aprune(["t"])
    assert await saver.aget_tuple(first) is None
    assert await values_at(saver, second) == {"a": 2}
    with pytest.raises(limpet.SessionError):
        await put(saver, first, 3, a=3)
    with pytest.raises(limpet.SessionError):
        await saver.aput_writes(first, [("a", 3)], "task")


@pytest.mark.parametrize("config", [{}, {"configurable": {}}])
async def test_a_config_without_a_thread_is_refused(config: Any) -> None:
    """The error names what is missing, at every door."""
    async with LimpetSaver.from_url("memory://") as saver:
        for call in (
            saver.aget_tuple(config),
            saver.aput(config, checkpoint(a=1), {}, {"a": 1}),
            saver.aput_writes(config, [("a", 1)], "task"),
            saver.aget_delta_channel_history(config=config, channels=["a"]),
        ):
            with pytest.raises(limpet.InvalidInput, match="thread_id"):
                await call


@pytest.mark.parametrize("made", [LimpetSaver, LimpetStore])
def test_what_is_no_store_is_refused_at_once(made: Any) -> None:
    """Not by whatever fails first later."""
    for store in (None, 5, Path("chat.db")):
        with pytest.raises(limpet.InvalidInput, match="Pass a URL"):
            made(store)


async def test_a_sync_call_on_the_loop_of_the_store_is_refused(saver: LimpetSaver) -> None:
    """It would wait for itself; the error names the method to await."""
    with pytest.raises(limpet.InvalidInput, match="aget_tuple"):
        saver.get_tuple(at())


def test_without_await_it_does_the_same(tmp_path: Path) -> None:
    """Every method has a twin that waits, on a store opened with `with`."""
    with LimpetSaver.from_url(f"sqlite:///{tmp_path}/sync.db") as saver:
        new = checkpoint(a=1)
        stored = saver.put(at(), new, {"source": "loop", "run_id": "r"}, {"a": 1})
        saver.put_writes(stored, [("a", 2)], "task")
        saver.copy_thread("t", "u")
        assert [each.pending_writes for each in saver.list(at("u"))] == [[("task", "a", 2)]]
        saver.delete_for_runs(["r"])
        assert saver.get_tuple(at()) is None
        saver.put(at("v"), checkpoint(a=1), {}, {"a": 1})
        saver.prune(["v"], strategy="delete")
        saver.delete_thread("u")
        assert list(saver.list(None)) == []
    with pytest.raises(limpet.errors.StoreClosed, match="from_url"):
        saver.get_tuple(at())
