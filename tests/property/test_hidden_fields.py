"""Hidden fields, on random sessions and rights: in no answer of any verb, and the rest is whole.

The canary is in hidden fields only, and in the data that it came from. What every verb answers to
an agent is searched for it, errors too, and compared with the answer without a guard.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from hypothesis import given, strategies as st

import limpet
from limpet import FieldAccess, Isolation, LimpetError, Principal, ops
from tests.support.examples import examples

CANARY = "canary-c0ffee: this text is in hidden fields only, and long enough for references"
FIELDS = ("a", "b", "c", "list", "dict", "app:x", "app:y", "user:x")
HARMLESS = st.sampled_from(["one", "two", 3, None, ["four"], {"five": 5}])
KEY = limpet.Key("shop", "ada", "one")
AGENT = "agent:reader"

# What an event does: to which field, in which way, and whether its data has the value too.
steps = st.lists(
    st.tuples(
        st.sampled_from(FIELDS),
        st.sampled_from(["set", "set said", "set a copy", "add", "merge", "path", "delete"]),
        HARMLESS,
        st.booleans(),
    ),
    min_size=2,
    max_size=10,
)
rights = st.tuples(st.frozensets(st.sampled_from(FIELDS)), st.frozensets(st.sampled_from(FIELDS)))


def value_of(field: str, seen: frozenset[str], harmless: Any) -> Any:
    return harmless if field in seen else CANARY


async def filled(lp: limpet.Limpet, log: list[Any], owns: Any, reads: Any) -> limpet.Session[Any]:
    """The session after those of the steps that fit."""
    seen = owns | reads
    access = FieldAccess(tuple(sorted(owns)), tuple(sorted(reads)))
    s = await lp.create(
        *(KEY.app, KEY.user, KEY.id),
        state={"a": value_of("a", seen, "first")},
        isolation=Isolation("per_agent", agents={AGENT: access}),
        actor="user:ada",
    )
    for number, (field, way, harmless, asks) in enumerate(log):
        value = value_of(field, seen, harmless)
        message = {"text": value, "n": number}
        data, change = {"n": number, "note": "kept"}, dict[str, Any]()
        if way == "set":
            change = {"set": {field: value}}
        elif way == "set said":
            data, change = message, {"set": {field: message}}
        elif way == "set a copy":
            data, change = {**data, "deep": [dict(message)]}, {"set": {field: message}}
        elif way == "add":
            data, change = {**data, "said": message}, {"add": {field: [message]}}
        elif way == "merge":
            change = {"merge": {field: {"k": value}}}
        elif way == "path":
            change = {"ops": [ops.Set((field, "text"), value)]}
        else:
            change = {"delete": [field]}
        try:
            await s.append("user.message" if asks else "tool.ran", data, id=f"e{number}", **change)
        except LimpetError:
            continue
    await s.checkpoint(full=True)
    return s


async def answers(lp: limpet.Limpet, version: int, log: list[Any]) -> dict[str, Any]:
    """What every verb that reads a session answers."""
    found: dict[str, Any] = {}

    async def ask(name: str, call: Any) -> None:
        try:
            found[name] = await call
        except LimpetError as error:
            found[name] = (str(error), error.fields)

    s = await lp.get(KEY, tail=100)
    found |= {"values": s.values, "events": s.events, "envelope": s.envelope()}
    found |= {"head": s.head, "labels": s.labels, "blocked": s.blocked_on}
    await ask("read", s.read(limit=100))
    await ask("reversed", s.read(limit=100, reverse=True))
    await ask("ids", s.read_ids([f"e{number}" for number in range(len(log))]))
    await ask("pending", s.pending())
    await ask("messages", s.messages())
    await ask("context", s.context())
    for seq in range(1, version + 1):
        await ask(f"at {seq}", s.history.at(seq))
        await ask(f"diff {seq}", s.history.diff(seq))
    for name in FIELDS:
        await ask(f"blame {name}", s.history.blame(name))
    shown: list[Any] = []
    await ask("bisect", s.history.bisect(lambda state: bool(shown.append(dict(state)))))
    found["bisected"] = shown
    await ask("checkpoints", s.history.checkpoints())
    await ask("lineage", s.history.lineage())
    await ask("list", lp.list(app=KEY.app, state=True))
    many = await lp.get_many([KEY])
    found["many"] = [(each.values, each.events) for each in many if each is not None]
    for name, source in {"follow": s.follow(), "watch": lp.watch(key=KEY)}.items():
        found[name] = []
        async with aclosing(source) as events:
            async for each in events:
                found[name].append(each)
                if getattr(each, "event", each).seq == version:
                    break
    return found


async def attempts(lp: limpet.Limpet, other: limpet.Limpet, log: list[Any]) -> list[Any]:
    """What an agent tries, to learn of what is hidden: the answers, and the errors."""
    s = await lp.get(KEY)
    told: list[Any] = []
    kept = (await s.history.checkpoints()).items
    calls = [
        s.fork(),
        s.rewind(1),
        s.merge(KEY),
        s.history.restore(kept[0].ref),
        lp.copy(KEY, to=other),
        *[s.append("x.y", {}, id=f"e{number}") for number in range(len(log))],
        *[s.append("x.y", {}, inc={name: 1}) for name in FIELDS],
        *[s.append("x.y", {}, delete=[name]) for name in FIELDS],
        *[s.append("x.y", {}, ops=[ops.Set((name, "x"), 1)]) for name in FIELDS],
        s.update(lambda state: {"a": repr(dict(state))}),
    ]
    for call in calls:
        try:
            told.append(await call)
        except LimpetError as error:
            told.append((str(error), error.fields))
    for name in FIELDS:
        try:
            async with lp.commit() as c:
                c.append(s, "x.y", {})
                c.guard(s, name, 1)
        except LimpetError as error:
            told.append((str(error), error.fields))
    await s.refresh()
    return [*told, s.values, s.events]


def without(values: Any, seen: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in seen}


@examples(300)
@given(steps, rights)
def test_what_is_hidden_is_in_no_answer_and_the_rest_is_whole(
    log: list[Any], of: tuple[frozenset[str], frozenset[str]]
) -> None:
    """Of an agent that owns some fields, reads some, and does not see the others."""
    owns, reads = of

    async def law() -> None:
        async with limpet.open("memory://") as lp, limpet.open("memory://") as other:
            s = await filled(lp, log, owns, reads)
            principal = Principal(AGENT, role="agent", app=KEY.app, user=KEY.user)
            acting = lp.acting_as(principal)
            mine, whole = await answers(acting, s.version, log), await answers(lp, s.version, log)
            for name, answer in mine.items():
                assert CANARY not in repr(answer), name
            seen = owns | reads
            assert mine["values"] == without(whole["values"], seen)
            (state,) = mine["list"].states.values()
            assert state == mine["values"]
            for seq in range(1, s.version + 1):
                assert mine[f"at {seq}"] == without(whole[f"at {seq}"], seen)
                changes = [c for c in whole[f"diff {seq}"].changes if c.path[0] in seen]
                assert list(mine[f"diff {seq}"].changes) == changes
            for field in seen:
                blamed = [(each.event.seq, each.op) for each in mine[f"blame {field}"]]
                assert len(blamed) == len(whole[f"blame {field}"])
            for name in ("read", "reversed", "ids", "pending", "follow"):
                assert [e.seq for e in mine[name]] == [e.seq for e in whole[name]]
                for event, full in zip(mine[name], whole[name], strict=True):
                    if all(str(op.path[0]) in seen for op in full.ops):
                        assert event == full
            assert [e.event.seq for e in mine["watch"]] == [e.event.seq for e in whole["watch"]]
            assert CANARY not in repr(await attempts(acting, other, log))
            assert (await other.list()).items == ()
            kept = (await lp.get(KEY)).values
            assert without(kept, frozenset(FIELDS) - owns) == without(
                whole["values"], frozenset(FIELDS) - owns
            )

    asyncio.run(law())
