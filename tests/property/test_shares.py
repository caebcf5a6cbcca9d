"""Live shares against a model: each field is linearizable, and nothing goes backwards.

One session shares two fields with two others. Random programs write from the source and from both
targets, some under the versions that they read, some under old ones; they remove, rewind, unshare
and read. The model is a register with a version for each field. Several programs run at once, and
each read has to have a value that the field really had at the version that it names, no older than
what any read or write had shown before it began.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from hypothesis import given, strategies as st

import limpet
from limpet.errors import OpPathUnknown, SessionConflict, ShareNotFound
from tests.support.examples import examples

ADA = "user:ada"
FIELDS = ("a", "b")

step = st.tuples(
    st.sampled_from(["read", "write", "own", "stale", "drop", "rewind", "wait"]),
    st.sampled_from(FIELDS),
)
programs = st.lists(st.lists(step, min_size=1, max_size=6), min_size=2, max_size=3)


class Register:
    """The model: the value of each field at each version, as the source's log gives them."""

    def __init__(self) -> None:
        self.floor = dict.fromkeys(FIELDS, 0)  # what was shown to somebody
        self.reads: list[tuple[str, int, Any]] = []
        self.writes = 0

    def shown(self, field: str, version: int, value: Any, before: int) -> None:
        """A read or write that began when `before` was the floor."""
        assert version >= before, "it went backwards"
        self.floor[field] = max(self.floor[field], version)
        self.reads.append((field, version, value))

    def next(self) -> int:
        self.writes += 1
        return self.writes


async def run(
    register: Register,
    source: limpet.Session[Any],
    target: limpet.Session[Any],
    share: str,
    program: list[tuple[str, str]],
) -> None:
    for what, field in program:
        before = dict(register.floor)
        if what == "own":
            await source.append("note.made", actor=ADA, set={field: register.next()})
        elif what == "drop":
            with suppress(OpPathUnknown):  # another has removed it
                await source.append("note.made", actor=ADA, delete=[field])
        elif what == "rewind":
            await source.rewind(1, actor=ADA)
        elif what in ("write", "stale"):
            value = register.next()
            seen = await target.read_shared(share)
            expect = {field: seen.versions[field] - (what == "stale")}
            try:
                written = await target.write_shared(share, {field: value}, expect=expect)
            except SessionConflict:
                continue
            assert what == "write", "an old version was taken"
            assert written[field] > seen.versions[field]
            register.shown(field, written[field], value, before[field])
        else:
            at_least = {field: before[field]} if what == "wait" else None
            seen = await target.read_shared(share, at_least=at_least)
            for name in FIELDS:
                register.shown(name, seen.versions[name], seen.values.get(name), before[name])
        await asyncio.sleep(0)


async def check(log: list[list[tuple[str, str]]]) -> None:
    async with limpet.open("memory://") as lp:
        source = await lp.create("support", "ada", "s", state={"a": 0, "b": 0}, actor=ADA)
        register, shares = Register(), []
        for number in range(len(log)):
            target = await lp.create("support", "ada", f"t{number}", actor=ADA)
            share = await source.share(target, *FIELDS, access="write", sync="live")
            shares.append((target, share.id))
        handles = [lp.session(source.key, actor=ADA) for _ in log]
        for handle in handles:
            await handle.refresh()
        await asyncio.gather(
            *[
                run(register, handle, target, share, program)
                for handle, (target, share), program in zip(handles, shares, log, strict=True)
            ]
        )
        for field, version, value in register.reads:
            assert (await source.history.at(version)).get(field) == value, "it never was"
            assert version <= (await source.refresh()).version
        target, share = shares[0]
        await source.unshare(share)
        try:
            await target.read_shared(share)
        except ShareNotFound:
            return
        raise AssertionError("it was read after its end")


@given(programs)
@examples(60)
def test_each_field_of_a_live_share_is_linearizable(log: list[list[tuple[str, str]]]) -> None:
    asyncio.run(check(log))
