"""A trusted backend records what its users say as theirs, and is never taken for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

import limpet
from limpet import AccessDenied, Limpet, Principal
from limpet.errors import InvalidEvent, InvalidInput
from limpet.server.serve import serving
from limpet.session.access_keys import AccessKeys
from limpet.session.limpet import journal_of

ADA, SAID = ("support", "ada", "c1"), {"text": "it is broken"}


class Backend:
    """One store, and a backend that talks with its users: by a key, or in the same process."""

    def __init__(self, lp: Limpet, url: str | None, stack: AsyncExitStack) -> None:
        self.lp, self.url, self._stack = lp, url, stack

    async def opened(self, speaks_for: Any = "user", role: Any = "agent") -> tuple[Limpet, str]:
        """The backend, and the id of its principal."""
        if self.url is None:
            backend = Principal("backend", role=role, app="support", speaks_for=speaks_for)
            return self.lp.acting_as(backend), backend.id
        keys = AccessKeys(journal_of(self.lp))
        key, token = await keys.create(role=role, app="support", speaks_for=speaks_for)
        opened = await self._stack.enter_async_context(limpet.open(self.url, token=token))
        return opened, key.principal.id


@pytest.fixture(params=["in process", "served"])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    async with AsyncExitStack() as stack:
        lp = await stack.enter_async_context(limpet.open("memory://"))
        url = None
        if request.param == "served":
            url = await stack.enter_async_context(serving(lp))
        yield Backend(lp, url, stack)


@pytest.mark.parametrize("role", ["agent", "admin"])
async def test_the_words_of_a_user_are_the_users(backend: Backend, role: str) -> None:
    """The event has the user as its actor and the backend as `via`; so has the audit; and changes
    of state with it are made."""
    lp, id = await backend.opened(role=role)
    s = await lp.create(*ADA)
    said = await s.append("user.message", SAID, actor="user:ada", set={"n": 1}, id="m1")
    again = await s.append("user.message", SAID, actor="user:ada", set={"n": 1}, id="m1")
    whole = {"text": "both of them", "items": ["a" * 100]}
    await s.append("user.message", whole, actor="user:ada", set={"last": whole})
    read = await (await backend.lp.get(*ADA)).read()
    events = [event for event in read if event.type == "user.message"]
    for event in (said, again, *events):
        assert (event.actor, event.via, event.data["via"]) == ("user:ada", id, id)
    assert events[0].data["text"] == SAID["text"]
    state = dict((await backend.lp.get(*ADA)).values)
    assert state["n"] == 1
    assert state["last"]["items"] == whole["items"]
    records = (await backend.lp.audit()).items
    spoken = [each for each in records if each.via is not None]
    assert {(r.principal, r.via, r.action, r.resource, r.allowed) for r in spoken} == {
        (id, id, "write", "support/ada/c1", True)
    }
    own = await s.append("agent.note", {"n": 1})
    assert (own.actor, own.via) == (id, None)
    assert (await backend.lp.maintenance.verify()).ok


async def test_only_the_sessions_own_user_is_spoken_for(backend: Backend) -> None:
    """Another user's name, a bare name and everything but the user's words are refused, and the
    error names the actor."""
    lp, _ = await backend.opened()
    s = await lp.create(*ADA)
    for type, actor in (
        ("user.message", "user:bob"),
        ("user.message", "ada"),
        ("user.message", "user:ada2"),
        ("agent.message", "user:ada"),
        ("order.placed", "user:ada"),
        ("user.interrupt", "user:ada"),
        ("user.tool_confirmation", "user:ada"),
        ("user.custom_tool_result", "user:ada"),
        ("user.resolution", "user:ada"),
    ):
        for data in (SAID, {**SAID, "via": "key:x"}):
            with pytest.raises((AccessDenied, InvalidEvent)) as denied:
                await s.append(type, data, actor=actor)
            if data is SAID:
                assert (denied.value.fields["actor"], repr(actor) in str(denied.value)) == (
                    actor,
                    True,
                )
    for call in (
        s.label({"plan": "gold"}, actor="user:ada"),
        s.interrupt(actor="user:ada"),
        s.complete(actor="user:ada"),
        s.outcome.define("done", actor="user:ada"),
    ):
        with pytest.raises(AccessDenied):
            await call
    assert (await backend.lp.get(*ADA)).version == 1


async def test_a_backend_never_counts_as_the_person_who_answers(backend: Backend) -> None:
    """Requests that its user has to confirm or answer stay open."""

    async def asks(turn: limpet.Turn) -> None:
        await turn.approve("pay", {"amount": 5})

    lp, id = await backend.opened()
    s = await lp.create(*ADA)
    await s.append("user.message", SAID, actor="user:ada")
    await backend.lp.wake(s.key, asks)
    (request,) = (await s.refresh()).blocked_on
    for call in (
        s.confirm(request.id, allow=True, actor="user:ada"),
        s.answer(request.id, "yes", actor="user:ada"),
        s.append(
            "user.tool_confirmation", {"request_id": request.id, "allow": True}, actor="user:ada"
        ),
    ):
        with pytest.raises(limpet.LimpetError):
            await call
    assert [each.id for each in (await s.refresh()).blocked_on] == [request.id]
    confirmed = await s.confirm(request.id, allow=True)  # as itself, as its role allows
    assert (confirmed.actor, confirmed.via) == (id, None)


async def test_without_the_right_the_error_names_the_actor(backend: Backend) -> None:
    """A key that speaks for nobody learns whom it named, and what would help."""
    lp, _ = await backend.opened(speaks_for=None)
    s = await lp.create(*ADA)
    with pytest.raises(AccessDenied, match=r"'user:ada'.*--speaks-for user"):
        await s.append("user.message", SAID, actor="user:ada")


async def test_nobody_else_says_via_whom_a_user_spoke(backend: Backend) -> None:
    """An owner who writes it into its own words is refused."""
    await backend.lp.create(*ADA)
    owner = Principal("user:ada", role="owner", app="support", user="ada")
    s = backend.lp.acting_as(owner).session(*ADA)
    with pytest.raises(InvalidEvent, match="via"):
        await s.append("user.message", {**SAID, "via": "backend"})


async def test_what_runs_in_a_session_never_speaks_for_its_user(backend: Backend) -> None:
    """A worker may have the right; its harness has not, and nobody is given more by narrowing."""
    speaker = Principal("backend", role="agent", app="support", speaks_for="user")
    acting = backend.lp.acting_as(speaker)
    met: list[str | None] = []

    async def forges(turn: limpet.Turn) -> None:
        try:
            await turn.session.append("user.message", SAID, actor="user:ada")
        except AccessDenied as denied:
            met.append(denied.actor)

    s = await backend.lp.create(*ADA)
    await s.append("user.message", SAID, actor="user:ada")
    await acting.wake(s.key, forges)
    assert met == ["user:ada"]
    narrow = Principal("backend", role="agent", app="support")
    with pytest.raises(AccessDenied):
        backend.lp.acting_as(narrow).acting_as(speaker)


@pytest.mark.parametrize(
    "of",
    [
        {"role": "owner", "user": "ada"},
        {"role": "viewer"},
        {"role": "auditor"},
        {"role": "agent", "user": "ada"},
    ],
)
async def test_only_agents_and_admins_of_no_one_user_speak(of: dict[str, Any]) -> None:
    """A principal and a key are refused alike."""
    with pytest.raises(InvalidInput, match="speaks for"):
        Principal("x", app="support", speaks_for="user", **of)
    async with limpet.open("memory://") as lp:
        keys = AccessKeys(journal_of(lp))
        with pytest.raises(InvalidInput, match="speaks for"):
            await keys.create(app="support", speaks_for="user", **of)
    with pytest.raises(InvalidInput, match="speaks_for"):
        Principal("x", role="agent", speaks_for="anybody")  # type: ignore[arg-type]  # wrong
