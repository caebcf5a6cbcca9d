"""LimpetSession as the Session protocol of openai-agents describes it, on every store."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from agents import SQLiteSession
from agents.extensions.memory import EncryptedSession
from agents.memory import Session, SessionSettings

import limpet
from limpet import errors
from limpet.adapters.openai_agents import LimpetSession
from tests.adapters.openai_agents.items import EVERY_KIND, assistant, call, output, user


@pytest.fixture
def session(lp: limpet.Limpet) -> LimpetSession:
    return LimpetSession("c1", lp)


async def texts(session: LimpetSession, limit: int | None = None) -> list[Any]:
    return [item["content"] for item in await session.get_items(limit)]


async def types(lp: limpet.Limpet, session: LimpetSession) -> list[str]:
    """The types of the log, without those of our own verbs."""
    found = [event.type for event in await lp.session(session.key).read()]
    return [type for type in found if not type.startswith("session.")]


# --- reading and adding -------------------------------------------------------------------------


async def test_items_come_back_unchanged_and_in_order(session: LimpetSession) -> None:
    """Items of every kind, known or not, added in several batches, are what was added."""
    assert isinstance(session, Session)
    assert await session.get_items() == []
    await session.add_items(EVERY_KIND[:5])
    await session.add_items([])
    await session.add_items(EVERY_KIND[5:])
    assert await session.get_items() == EVERY_KIND
    assert [type(item) for item in await session.get_items()] == [dict] * len(EVERY_KIND)


async def test_a_limit_gives_the_newest_in_their_order(lp: limpet.Limpet) -> None:
    """The limit of the call, else that of the settings, which are an object or a dict."""
    plain = LimpetSession("c1", lp)
    await plain.add_items([user(str(n)) for n in range(30)])
    assert await texts(plain, 3) == ["27", "28", "29"]
    assert len(await plain.get_items(1_000)) == len(await plain.get_items()) == 30
    assert await plain.get_items(0) == []
    for settings in (SessionSettings(limit=2), {"limit": 2}):
        limited = LimpetSession("c1", lp, settings)
        assert isinstance(limited.session_settings, SessionSettings)
        assert await texts(limited) == ["28", "29"]
        assert await texts(limited, 1) == ["29"]
        with pytest.raises(errors.InvalidInput, match="limit is '5'"):
            await limited.get_items("5")  # type: ignore[arg-type]  # wrong on purpose


async def test_a_batch_is_recorded_whole_or_not_at_all(
    lp: limpet.Limpet, session: LimpetSession
) -> None:
    """One item that cannot be kept refuses the batch, of a new session too."""
    with pytest.raises(errors.InvalidValue):
        await session.add_items([user("kept?"), {"role": "user", "content": object()}])
    with pytest.raises(errors.EventTooLarge):
        await session.add_items([user("kept?"), user("x" * (9 * 2**20))])
    with pytest.raises(errors.InvalidInput):
        await session.add_items([user("kept?"), "text"])  # type: ignore[list-item]
    assert await lp.find(session.key) is None
    await session.add_items([user("kept")])
    assert await texts(session) == ["kept"]


async def test_an_item_is_the_callers_own(session: LimpetSession) -> None:
    """Changing what was given or what was returned changes nothing that is kept."""
    given = assistant("as it was")
    await session.add_items([given])
    given["content"][0]["text"] = "changed"
    (read,) = await session.get_items()
    read["content"][0]["text"] = "changed"
    assert await session.get_items() == [assistant("as it was")]


async def test_an_item_is_what_it_was_when_it_was_added(session: LimpetSession) -> None:
    """A caller who changes it before the call is over changes nothing."""
    given = user("as it was")
    adding = asyncio.ensure_future(session.add_items([given]))
    await asyncio.sleep(0)
    given["content"] = "changed"
    await adding
    assert await session.get_items() == [user("as it was")]


@pytest.mark.parametrize("text", ["\ud800", "\x00", "é😀", "\u2028"])
async def test_any_text_comes_back(session: LimpetSession, text: str) -> None:
    """Half a surrogate, which a cut stream leaves, included."""
    await session.add_items([user(text), output("a", text)])
    assert await session.get_items() == [user(text), output("a", text)]


@pytest.mark.parametrize("arguments", ["not JSON", '{"n": 1e999}', f'{{"n": {2**80}}}', "[" * 200])
async def test_what_a_model_wrote_never_refuses_an_item(
    session: LimpetSession, arguments: str
) -> None:
    """Arguments are text: whether they are values that can be kept is not the item's matter."""
    await session.add_items([call("a", arguments), output("a")])
    assert await session.get_items() == [call("a", arguments), output("a")]


async def test_an_item_that_fits_is_kept_however_it_would_be_described(
    session: LimpetSession,
) -> None:
    """An item of nearly the limit is recorded alone, without a second copy of its text."""
    large = user("x" * (6 * 2**20))
    await session.add_items([large])
    assert await session.get_items() == [large]


async def test_sessions_of_other_users_and_apps_are_others(lp: limpet.Limpet) -> None:
    """The same session id under another user or app opens nothing of this one."""
    await LimpetSession("c1", lp, user="ada").add_items([user("mine")])
    for other in ({"user": "bob"}, {"user": "ada", "app": "billing"}, {}):
        assert await LimpetSession("c1", lp, **other).get_items() == []


async def test_a_deleted_session_is_not_brought_back(lp: limpet.Limpet) -> None:
    """A late write after a delete is refused, as everywhere."""
    session = LimpetSession("c1", lp)
    await session.add_items([user("a")])
    await lp.delete(session.key)
    with pytest.raises(errors.SessionDeleted):
        await session.add_items([user("late")])


# --- popping and clearing -----------------------------------------------------------------------


async def test_popping_takes_the_newest_and_the_log_keeps_it(
    lp: limpet.Limpet, session: LimpetSession
) -> None:
    """Pops count down what was added, before and after; nothing leaves the log."""
    assert await session.pop_item() is None
    await session.add_items([user("a"), user("b"), user("c")])
    assert [await session.pop_item(), await session.pop_item()] == [user("c"), user("b")]
    await session.add_items([user("d")])
    assert await texts(session) == ["a", "d"]
    assert await texts(session, 2) == ["a", "d"]
    assert [await session.pop_item() for _ in range(3)] == [user("d"), user("a"), None]
    kept = [e.data["text"] for e in await lp.session(session.key).read(types=["user.message"])]
    assert kept == ["a", "b", "c", "d"]


async def test_clearing_hides_all_that_was_and_the_log_keeps_it(
    lp: limpet.Limpet, session: LimpetSession
) -> None:
    """After a clear only new items show, and no pop reaches behind it."""
    await session.clear_session()
    assert await lp.find(session.key) is None
    await session.add_items([user("a"), user("b")])
    await session.pop_item()
    await session.clear_session()
    await session.clear_session()
    assert [await session.get_items(), await session.pop_item()] == [[], None]
    await session.add_items([user("c")])
    assert await texts(session) == ["c"]
    assert await types(lp, session) == [
        *("user.message", "user.message", "view.popped", "view.cleared", "user.message")
    ]


async def test_of_many_who_pop_each_gets_an_item_of_its_own(lp: limpet.Limpet) -> None:
    """Pops at once, from several objects: every item once, None for the rest."""
    sessions = [LimpetSession("c1", lp) for _ in range(4)]
    await sessions[0].add_items([user(str(n)) for n in range(10)])
    pops = [sessions[n % 4].pop_item() for n in range(16)]
    got = await asyncio.gather(*pops)
    assert sorted(item["content"] for item in got if item) == [str(n) for n in range(10)]
    assert got.count(None) == 6
    await sessions[0].add_items([user("next")])
    assert await texts(sessions[1]) == ["next"]


@pytest.mark.parametrize("seed", range(4))
async def test_it_behaves_as_the_frameworks_own_session(lp: limpet.Limpet, seed: int) -> None:
    """Whatever is added, popped and cleared, both show the same; and so do our messages."""
    chance, ours, theirs = random.Random(seed), LimpetSession("c1", lp), SQLiteSession("c1")
    for step in range(40):
        verb = chance.choice(["add", "add", "pop", "pop", "clear", "get"])
        if verb == "add":
            items = [user(f"{step}.{n}") for n in range(chance.randint(1, 4))]
            await asyncio.gather(ours.add_items(items), theirs.add_items(items))
        elif verb == "pop":
            assert await ours.pop_item() == await theirs.pop_item()
        elif verb == "clear" and not chance.randrange(4):
            await asyncio.gather(ours.clear_session(), theirs.clear_session())
        limit = chance.choice([None, 1, 3, 50])
        assert await ours.get_items(limit) == await theirs.get_items(limit)
    shown = await lp.session(ours.key).messages()
    assert [message.parts[0]["text"] for message in shown] == await texts(ours)
    theirs.close()


async def test_another_session_of_theirs_may_stand_on_ours(session: LimpetSession) -> None:
    """EncryptedSession keeps its items in a LimpetSession, and gets them back."""
    wrapped = EncryptedSession("c1", session, "a long enough secret key of the test")
    await wrapped.add_items([user("a"), call("x")])
    assert await wrapped.get_items() == [user("a"), call("x")]
    assert await wrapped.pop_item() == call("x")
    assert "__enc__" in (await session.get_items())[0]


# --- inputs -------------------------------------------------------------------------------------


async def pending(lp: limpet.Limpet, session: LimpetSession) -> list[str]:
    return [event.data["text"] for event in await lp.session(session.key).pending()]


async def test_a_user_message_is_pending_until_an_agent_speaks(
    lp: limpet.Limpet, session: LimpetSession
) -> None:
    """So a run that died shows as work to do, and a finished one does not."""
    await session.add_items([user("a")])
    assert await pending(lp, session) == ["a"]
    await session.add_items([call("x"), output("x")])
    assert await pending(lp, session) == []
    await session.add_items([user("b"), assistant("b"), user("c")])
    assert await pending(lp, session) == ["c"]
    await session.clear_session()
    assert await pending(lp, session) == []


async def test_another_object_answers_what_one_left(lp: limpet.Limpet) -> None:
    """A message of a process that died is answered by the next; two answers do not collide."""
    one, two = LimpetSession("c1", lp), LimpetSession("c1", lp)
    await one.add_items([user("a")])
    await two.add_items([assistant("to a")])
    assert await pending(lp, one) == []
    await one.add_items([assistant("to a, too")])
    assert len(await one.get_items()) == 3


LONG = "a text that is long enough " * 40


@pytest.mark.parametrize(
    "item",
    [
        user(LONG),
        assistant(LONG),
        output("c", LONG),
        {"role": "user", "content": [{"type": "input_text", "text": LONG}, {"type": "x"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": LONG}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": LONG, "text": LONG}]},
        {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": LONG}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": LONG + "\ud800"}]},
    ],
)
async def test_a_long_text_is_kept_once_and_comes_back(
    lp: limpet.Limpet, item: dict[str, Any]
) -> None:
    """The item comes back with every member in its order, and `messages` shows the same text."""
    session = LimpetSession("long", lp)
    await session.add_items([item])
    (found,) = await session.get_items()
    assert json.dumps(found) == json.dumps(item)
    assert await session.pop_item() == item


async def test_a_long_text_is_not_stored_twice(lp: limpet.Limpet) -> None:
    """The data of an event is hardly larger than the text that it holds."""
    session = LimpetSession("long", lp)
    for item in (user(LONG), assistant(LONG), output("c", LONG)):
        await session.add_items([item])
    stored = await lp.get(session.key)
    for event in stored.events[1:4]:
        assert len(json.dumps(dict(event.data))) < len(LONG) + 400
    (said, *_) = await lp.session(session.key).messages()
    assert said.parts == ({"type": "text", "text": LONG},)
