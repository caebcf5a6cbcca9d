"""The checksum of a session's state: what it covers, and that it is that of a checkpoint."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import FieldAccess, Isolation, Principal
from limpet.session import cached_state

STATE = {"topic": "orders", "notes": ["é", 1, 2.5, None], "n": {"b": 1, "a": True}}


def sha(fields: Any) -> str:
    """As docs/state.md says: JSON in UTF-8 without spaces, the names sorted."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()


@pytest.fixture(params=["memory", "sqlite", "files", "postgres", "served"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Every store, and a server in front of one."""
    if request.param in ("postgres", "served"):
        name = {"postgres": "postgres_store_url", "served": "served_url"}[request.param]
        server: str = request.getfixturevalue(name)
        return server
    at = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/s.db?sync=normal"}
    return at.get(request.param, f"files:///{tmp_path}/s")


async def test_the_checksum_is_that_of_a_checkpoint_of_the_same_state(url: str) -> None:
    """On every store, for who wrote it and who opens it; it changes with the fields alone."""
    async with limpet.open(url) as lp:
        s = await lp.create("shop", "ada", "1", state=STATE, actor="user:ada")
        begun = s.checksum()
        assert begun == sha(STATE) == (await s.checkpoint()).checksum
        await s.append("user.message", {"text": "hi"}, set={"app:tax": 1, "user:name": "Ada"})
        await s.label({"tier": "gold"})
        assert s.checksum() == begun
        await s.append("agent.noted", inc={"count": 1})
        changed = s.checksum()
        assert changed == sha({**STATE, "count": 1}) != begun
        assert changed == (await s.checkpoint(full=True)).checksum
        assert (await lp.get(s.key)).checksum() == changed
        fork = await s.fork()
        assert fork.checksum() == changed
        await s.rewind(1)
        assert s.checksum() == begun
        empty = await lp.create("shop", "ada", "2", actor="user:ada")
        assert empty.checksum() == sha({}) == (await empty.checkpoint()).checksum


async def test_typed_state_has_the_checksum_of_its_stored_form(lp: limpet.Limpet) -> None:
    """With or without its class, as a checkpoint has it."""

    class Order(limpet.State):
        schema_version = "1.0.0"

        number: int = 0
        paid: bool = False

    s = await lp.create("shop", "ada", "1", state=Order(number=7), actor="user:ada")
    assert s.checksum() == (await lp.get(s.key)).checksum() == (await s.checkpoint()).checksum


async def test_the_checksum_is_computed_once_for_each_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asked again, also after events that leave the fields alone, it costs nothing."""
    computed: list[Any] = []
    checksum = cached_state.checksum

    def counted(fields: Any) -> bytes:
        computed.append(fields)
        return checksum(fields)

    monkeypatch.setattr(cached_state, "checksum", counted)
    async with limpet.open("memory://") as lp:
        s = await lp.create("shop", "ada", "1", state=STATE, actor="user:ada")
        for _ in range(3):
            s.checksum()
            await s.append("user.message", {"text": "hi"})
        assert len(computed) == 1
        await s.append("agent.noted", inc={"count": 1})
        s.checksum()
        assert len(computed) == 2


async def test_who_sees_a_part_gets_the_checksum_of_that_part(lp: limpet.Limpet) -> None:
    """It does not move with a hidden field, and confirms no guess of one."""
    agents = {"agent:critic": FieldAccess(owns=("review",), reads=("draft",))}
    isolation = Isolation("per_agent", agents=agents)
    state = {"draft": "d", "review": "r", "secret": "s"}
    s = await lp.create("desk", "ada", "1", state=state, isolation=isolation, actor="agent:writer")
    critic = Principal("agent:critic", role="agent", app="desk", user="ada")
    mine = await lp.acting_as(critic).get(s.key)
    assert mine.checksum() == sha({"draft": "d", "review": "r"}) != s.checksum()
    await s.append("agent.noted", set={"secret": "another"})
    await mine.refresh()
    assert mine.version == s.version
    assert mine.checksum() == sha({"draft": "d", "review": "r"})


async def test_the_checksum_of_what_is_not_known_is_refused(lp: limpet.Limpet) -> None:
    """Of a session that was not loaded, and of one with an event that cannot be read."""
    s = await lp.create("shop", "ada", "1", state=STATE, actor="user:ada")
    with pytest.raises(limpet.errors.SessionNotLoaded):
        lp.session(s.key).checksum()
    s._writer.known.damaged = (2,)
    with pytest.raises(limpet.errors.SessionCorrupt, match="event 2"):
        s.checksum()


def test_the_checksum_without_await() -> None:
    """The same."""
    with limpet.open_sync("memory://") as lp:
        s = lp.create("shop", "ada", "1", state=STATE, actor="user:ada")
        assert s.checksum() == sha(STATE)
