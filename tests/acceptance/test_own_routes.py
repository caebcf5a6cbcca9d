"""/limpet/v1: what the Managed Agents wire lacks, on a server in this process."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.server import ids
from limpet.server.serve import serving
from limpet.session.access_keys import AccessKeys
from limpet.session.limpet import journal_of
from tests.support.http_door import HttpDoor, Reply, frames


class Place:
    """A served store with one session, and the way to it."""

    def __init__(self, lp: limpet.Limpet, s: limpet.Session[Any], door: HttpDoor) -> None:
        self.lp, self.s, self.door = lp, s, door
        self.one = f"/limpet/v1/sessions/{ids.session_id(s.id)}"

    async def get(self, path: str, **headers: str) -> Any:
        reply = await self.door.get(path, **headers)
        assert reply.status == 200, reply.body
        return reply.body

    async def post(self, path: str, body: Any = None) -> Any:
        reply = await self.door.post(path, body)
        assert reply.status == 200, reply.body
        return reply.body


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    archive = f"file://{tmp_path / 'archive'}"
    async with limpet.open(f"sqlite:///{tmp_path / 'own.db'}", archive=archive) as lp:
        s = await lp.create("shop", "ada", "c 1", state={"n": 0, "plan": {"steps": ["a", "b"]}})
        async with serving(lp, dev=True) as url:
            yield Place(lp, s, HttpDoor(url, limpet_app="shop", limpet_user="ada"))


async def counted(s: limpet.Session[Any], upto: int) -> None:
    for n in range(1, upto + 1):
        await s.append("count.went_up", {"to": n}, set={"n": n}, actor="agent:main")


async def test_a_session_shows_where_it_stands(place: Place) -> None:
    """Its head with status and id, what it waits for and what it used."""
    await counted(place.s, 2)
    shown = await place.get(place.one)
    assert shown["session"] == {"app": "shop", "user": "ada", "id": "c 1"}
    assert (shown["version"], shown["phase"], shown["status"]) == (3, "active", "idle")
    assert (shown["requests"], shown["damaged"], shown["parent"]) == ([], [], None)
    assert (await place.get("/limpet/v1/me"))["role"] == "admin"


async def test_events_are_paged_both_ways_and_between_seqs(place: Place) -> None:
    """Each once, in order; of some types only, if asked."""
    await counted(place.s, 9)

    async def pages(query: str) -> list[int]:
        seqs: list[int] = []
        answer = await place.get(f"{place.one}/events?limit=3{query}")
        while True:
            seqs += [each["seq"] for each in answer["data"]]
            if answer["next_page"] is None:
                return seqs
            token = answer["next_page"]
            answer = await place.get(f"{place.one}/events?limit=3{query}&page={token}")

    assert await pages("") == [*range(1, 11)]
    assert await pages("&order=desc") == [*range(10, 0, -1)]
    assert await pages("&after=4&before=8") == [5, 6, 7]
    assert await pages("&after=4&before=8&order=desc") == [7, 6, 5]
    assert await pages("&after=4&before=5") == []
    assert await pages("&types[]=session.*") == [1]
    assert (await place.door.get(f"{place.one}/events?after=x")).status == 400


async def test_a_text_is_searched_for_in_the_log(place: Place) -> None:
    """In type, actor and data, whatever its case; from either end, page after page."""
    await place.s.append("note.made", {"deep": [{"text": "The Refund of 7"}]}, actor="user:ada")
    await counted(place.s, 4)
    await place.s.append("note.made", {"text": "a second refund"}, actor="agent:main")

    async def seqs(query: str) -> list[int]:
        return [e["seq"] for e in (await place.get(f"{place.one}/search?{query}"))["data"]]

    assert await seqs("q=refund") == [2, 7]
    assert await seqs("q=REFUND&order=desc") == [7, 2]
    assert await seqs("q=user%3Aada") == [1, 2]
    assert await seqs("q=went_up&types[]=count.*") == [3, 4, 5, 6]
    assert await seqs("q=nothing-like-it") == []
    first = await place.get(f"{place.one}/search?q=refund&limit=1")
    assert await seqs(f"q=refund&limit=1&page={first['next_page']}") == [7]
    assert (await place.door.get(f"{place.one}/search")).status == 400


async def test_bisect_finds_the_event_that_broke_a_condition(place: Place) -> None:
    """Every condition; null if it holds now."""
    await counted(place.s, 6)

    async def first_bad(**condition: Any) -> int | None:
        event = (await place.post(f"{place.one}/bisect", condition))["event"]
        return None if event is None else int(event["seq"])

    assert await first_bad(path="n", **{"is": "less"}, value=4) == 5
    assert await first_bad(path="n", **{"is": "equal"}, value=0) == 2
    assert await first_bad(path="plan.steps.0", **{"is": "equal"}, value="a") is None
    assert await first_bad(path="plan.steps", **{"is": "contains"}, value="b") is None
    assert await first_bad(path="n", **{"is": "present"}) is None
    assert await first_bad(path="n", **{"is": "less"}, value="text") is not None
    refused = await place.door.post(f"{place.one}/bisect", {"path": "n", "is": "odd"})
    assert (refused.status, refused.body["error"]["type"]) == (400, "invalid_request_error")


async def test_relatives_are_listed(place: Place) -> None:
    """Lineage, relations from both ends, the graph, and the tree of delegation."""
    fork = (await place.post(f"{place.one}/fork"))["id"]
    lineage = await place.get(f"{place.one}/lineage")
    assert [each["session"]["id"] for each in lineage["forks"]] == [fork]
    made = await place.post(f"{place.one}/relations", {"session_id": fork, "kind": "peer"})
    assert [(e["session_id"], e["kind"]) for e in made["data"]] == [(fork, "peer")]
    back = await place.get(f"/limpet/v1/sessions/{fork}/relations?kind=peer")
    assert back["data"][0]["session"]["id"] == "c 1"
    cited = await place.post(
        f"/limpet/v1/sessions/{fork}/citations",
        {"session_id": place.one.rpartition("/")[2], "fields": ["n"]},
    )
    assert (cited["kind"], cited["fields"], cited["outputs"]) == ("reference", ["n"], False)
    way = f"/limpet/v1/sessions/{fork}/citations?relation={cited['id']}"
    assert list((await place.get(way))["values"]) == ["n"]
    ended = await place.post(f"/limpet/v1/sessions/{fork}/relations/end", {"id": cited["id"]})
    assert [each["kind"] for each in ended["data"]] == ["peer"]
    gone = await place.door.get(way)
    assert (gone.status, "is not in force" in gone.body["error"]["message"]) == (404, True)
    graph = await place.get(f"{place.one}/graph")
    assert {each["kind"] for each in graph["edges"]} == {"fork", "peer"}
    assert len(graph["nodes"]) == 2
    tree = await place.get(f"{place.one}/tree")
    assert (tree["session"]["id"], tree["children"]) == ("c 1", [])


async def test_a_fork_has_the_title_that_it_is_given(place: Place) -> None:
    """And the values of its fields; without a title it has that of its parent."""
    fork = await place.post(f"{place.one}/fork", {"title": "again", "set": {"n": 7}})
    state = await place.get(f"/limpet/v1/sessions/{fork['id']}/state")
    assert (fork["title"], state["state"]["n"]) == ("again", 7)
    second = await place.post(f"/limpet/v1/sessions/{fork['id']}/fork")
    assert second["title"] == "again"
    assert (await place.door.get(f"{place.one}/traces/none")).status == 404


async def test_the_audit_is_filtered(place: Place) -> None:
    """By session and time, each alone."""
    ada = limpet.Principal("user:ada", role="owner", app="shop", user="ada")
    other = await place.lp.create("shop", "ada", "c2")
    for s in (place.s, other):
        await place.lp.acting_as(ada).session(s.key).suspend()

    async def about(query: str) -> set[str]:
        answer = await place.get(f"/limpet/v1/audit?{query}")
        return {str(each["resource"]) for each in answer["data"]}

    every = await about("")
    only = await about(f"session={ids.session_id(other.id)}")
    assert only == {each for each in every if "c2" in each} != every
    assert await about("since=2000-01-01T00:00:00Z") == every
    assert await about("since=2100-01-01T00:00:00Z") == set()
    assert await about("since=0001-01-01T00:00:00%2B14:00") == every
    assert await about("since=9999-12-31T23:59:59-14:00") == set()
    assert (await place.door.get("/limpet/v1/audit?since=soon")).status == 400


async def test_wakes_are_listed_page_by_page(place: Place) -> None:
    """The newest first, each once."""
    for text in ("a", "b", "c"):
        await place.s.append("user.message", {"text": text}, actor="user:ada")
        await place.lp.wake(place.s.key, _answers)
    seqs, page = [], ""
    while True:
        answer = await place.get(f"{place.one}/traces?limit=2{page}")
        seqs += [each["seq"] for each in answer["data"]]
        if answer["next_page"] is None:
            break
        page = f"&page={answer['next_page']}"
    whole = await place.get(f"{place.one}/traces")
    assert seqs == [each["seq"] for each in whole["data"]] == sorted(set(seqs), reverse=True)
    assert len(seqs) == 3


async def _answers(turn: limpet.Turn) -> None:
    await turn.say("yes")


async def _fails(turn: limpet.Turn) -> None:
    raise ValueError("no")


async def test_dead_letters_are_those_of_an_app_a_user_or_the_store(place: Place) -> None:
    """As the caller asks, or all that it may see."""
    for app, user in (("shop", "ada"), ("shop", "bob"), ("bank", "ada")):
        s = await place.lp.create(app, user, "dead")
        await s.append("user.message", {"text": "hi"}, actor="user:ada")
        worker = limpet.Worker(place.lp, _fails, app=app, retries=0, idle_exit=True, signals=False)
        await worker.run()

    async def found(**headers: str) -> set[tuple[str, str]]:
        answer = await HttpDoor(place.door.url, **headers).get("/limpet/v1/dead_letters")
        return {(each["session"]["app"], each["session"]["user"]) for each in answer.body["data"]}

    assert await found() == {("shop", "ada"), ("shop", "bob"), ("bank", "ada")}
    assert await found(limpet_app="shop") == {("shop", "ada"), ("shop", "bob")}
    assert await found(limpet_app="shop", limpet_user="bob") == {("shop", "bob")}


async def test_one_session_is_verified(place: Place) -> None:
    """Only this one is read."""
    await counted(place.s, 2)
    await place.lp.create("shop", "bob", "other")
    report = await place.get(f"{place.one}/verify")
    assert report == {"ok": True, "sessions": 1, "events": 3, "findings": []}


async def test_requests_are_answered_from_the_inbox(place: Place) -> None:
    """Allowed with a note, answered, and stopped; who waits for nothing is not listed."""

    async def harness(turn: limpet.Turn) -> None:
        await turn.approve("pay", {"amount": 7})
        city = await turn.ask("where", {"q": "which city?"})
        await turn.say(f"paid in {city}")

    async def worked() -> None:
        await place.lp.wake(place.s.key, harness)

    await place.s.append("user.message", {"text": "pay 7"}, actor="user:ada")
    await worked()
    (waiting,) = (await place.get("/limpet/v1/inbox"))["data"]
    assert (waiting["session_id"], waiting["request"]["name"]) == (ids.session_id("c 1"), "pay")
    asked = waiting["request"]["id"]
    assert [e["id"] for e in (await place.get(f"{place.one}/requests"))["data"]] == [asked]
    done = await place.post(
        f"{place.one}/confirm", {"request_id": asked, "allow": True, "note": "fine"}
    )
    assert (done["data"]["allow"], done["actor"]) == (True, "admin:dev")
    again = await place.door.post(f"{place.one}/confirm", {"request_id": asked, "allow": False})
    assert again.status == 400
    await worked()
    (question,) = (await place.get(f"{place.one}/requests"))["data"]
    await place.post(f"{place.one}/answer", {"request_id": question["id"], "output": "Oslo"})
    await worked()
    assert (await place.get("/limpet/v1/inbox"))["data"] == []
    said = (await place.get(f"{place.one}/messages"))["data"]
    assert [each["role"] for each in said][:1] == ["user"]
    assert "paid in Oslo" in str(said[-1]["parts"])
    wrong = {"request_id": "none", "decision": "happened"}
    assert (await place.door.post(f"{place.one}/resolve", wrong)).status in (400, 404)
    assert (await place.door.post(f"{place.one}/resolve", {**wrong, "decision": "x"})).status == 400
    stopped = await place.post(f"{place.one}/interrupt", {"note": "enough"})
    assert stopped["type"] == "user.interrupt"


async def test_sessions_are_listed_by_what_they_are(place: Place) -> None:
    """Of an app, a user, a phase, with a label; in pages that together have each once."""
    for number in range(5):
        s = await place.lp.create("shop", "ada", f"s{number}", labels={"plan": "gold"})
        if number % 2:
            await s.suspend(actor="user:ada")
    await place.lp.create("bank", "ada", "elsewhere")
    listed = await place.get("/limpet/v1/sessions?labels[plan]=gold")
    assert {each["session"]["id"] for each in listed["data"]} == {f"s{n}" for n in range(5)}
    suspended = await place.get("/limpet/v1/sessions?phase=suspended")
    assert sorted([each["session"]["id"] for each in suspended["data"]]) == ["s1", "s3"]
    seen: list[str] = []
    query = "/limpet/v1/sessions?limit=2&by=key&order=asc"
    answer = await place.get(query)
    while True:
        seen += [each["session"]["id"] for each in answer["data"]]
        if answer["next_page"] is None:
            break
        answer = await place.get(f"{query}&page={answer['next_page']}")
    assert seen == ["c 1", *[f"s{n}" for n in range(5)]]
    everywhere = await HttpDoor(place.door.url).get("/limpet/v1/sessions?limit=1000")
    assert {each["session"]["app"] for each in everywhere.body["data"]} == {"shop", "bank"}
    status = await place.get("/limpet/v1/status")
    assert (status["sessions"], status["by_phase"]["suspended"]) == (6, 2)
    assert (await place.door.get("/limpet/v1/sessions?phase=asleep")).status == 400


async def test_labels_and_the_way_back_from_the_archive(place: Place) -> None:
    """A label is set and removed; an archived session returns in the phase that it had."""
    await place.post(f"{place.one}/labels", {"labels": {"plan": "gold"}})
    assert (await place.get(place.one))["labels"] == {"plan": "gold"}
    await place.post(f"{place.one}/labels", {"labels": {"plan": None}})
    assert (await place.get(place.one))["labels"] == {}
    await place.post(f"{place.one}/complete")
    await place.post(f"{place.one}/archive")
    back = await place.post(f"{place.one}/unarchive")
    assert back["phase"] == "completed"


async def test_the_log_and_the_feed_are_streamed(place: Place) -> None:
    """Every event once, and on from the id that the client saw last."""
    await counted(place.s, 3)
    log = await frames(place.door.url, f"{place.one}/events/stream?after=1&app=shop&user=ada", 3)
    assert [each["data"]["seq"] for each in log] == [2, 3, 4]
    later = {"last_event_id": log[0]["id"], "limpet_app": "shop", "limpet_user": "ada"}
    again = await frames(place.door.url, f"{place.one}/events/stream", 2, **later)
    assert [each["data"]["seq"] for each in again] == [3, 4]
    position = await place.lp.position()
    following = asyncio.ensure_future(
        frames(place.door.url, f"/limpet/v1/events/stream?app=shop&after={position}", 2)
    )
    await counted(place.s, 2)
    seen = await following
    assert [each["data"]["seq"] for each in seen] == [5, 6]
    assert "data" not in seen[0]["data"]
    rest = await frames(
        place.door.url, "/limpet/v1/events/stream?app=shop", 1, last_event_id=seen[0]["id"]
    )
    assert rest[0]["data"]["seq"] == 6


# --- creating -----------------------------------------------------------------------------------

SESSIONS = "/limpet/v1/sessions"
ORDER = {"app": "shop", "user": "bob", "id": "o 7", "state": {"n": 1}, "labels": {"plan": "gold"}}


def code_of(reply: Reply) -> str:
    code: str = reply.body["error"]["details"]["error_code"]
    return code


async def test_a_session_is_created_over_plain_http(place: Place) -> None:
    """With the id, state and labels that were sent; its Location leads to it."""
    made = await place.door.post(SESSIONS, ORDER)
    assert made.status == 201
    assert made.body["session"] == {"app": "shop", "user": "bob", "id": "o 7"}
    assert (made.body["version"], made.body["labels"]) == (1, {"plan": "gold"})
    s = await place.lp.get("shop", "bob", "o 7")
    assert (s.values, s.labels) == ({"n": 1}, {"plan": "gold"})
    found = await HttpDoor(place.door.url).get(made.headers["location"])
    assert (found.status, found.body) == (200, made.body)


async def test_a_session_without_an_id_gets_a_new_one(place: Place) -> None:
    """App and user may stand in the headers; if nothing names them, the request is refused."""
    ids_made = set()
    for _ in range(2):
        made = await place.door.post(SESSIONS)
        assert made.status == 201
        assert made.body["session"]["user"] == "ada"
        ids_made.add(made.body["session_id"])
    assert len(ids_made) == 2
    refused = await HttpDoor(place.door.url).post(SESSIONS, {"app": "shop"})
    assert (refused.status, code_of(refused)) == (400, "input.invalid")
    wrong: dict[str, Any]
    for wrong in (
        {"id": " "},
        {"app": "$keys"},
        {"state": [1]},
        {"labels": {"": "x"}},
        {"agent": "support"},
    ):
        refused = await place.door.post(SESSIONS, {**ORDER, **wrong})
        assert refused.status == 400, wrong
    assert await place.lp.find("shop", "bob", "o 7") is None


async def test_an_id_that_is_taken_is_a_conflict(place: Place) -> None:
    """409, which no client repeats; the session stays as it is."""
    assert (await place.door.post(SESSIONS, ORDER)).status == 201
    refused = await place.door.post(SESSIONS, {**ORDER, "state": {"n": 2}})
    assert (refused.status, code_of(refused)) == (409, "session.exists")
    assert refused.headers["x-should-retry"] == "false"
    assert (await place.lp.get("shop", "bob", "o 7")).values == {"n": 1}


@pytest.mark.parametrize("id", [None, "o 7"])
async def test_a_repeated_creation_returns_the_first_session(place: Place, id: str | None) -> None:
    """Under its Idempotency-Key, also after the session went on; another body is refused."""
    body = {**ORDER, "id": id}
    first = await place.door.post(SESSIONS, body, idempotency_key="k")
    s = await place.lp.get("shop", "bob", first.body["session"]["id"])
    await counted(s, 1)
    again = await place.door.post(SESSIONS, body, idempotency_key="k")
    assert (first.status, again.status) == (201, 201)
    assert again.body["session_id"] == first.body["session_id"]
    assert again.body["version"] == 2
    for other in ({"state": {"n": 3}}, {"labels": {}}):
        refused = await place.door.post(SESSIONS, {**body, **other}, idempotency_key="k")
        expected = (400, "request.key_reused") if id is None else (409, "session.exists")
        assert (refused.status, code_of(refused)) == expected
    assert len((await place.lp.list(app="shop", user="bob")).items) == 1


async def test_a_key_creates_sessions_where_its_role_allows() -> None:
    """An owner its own, which need not be named; a viewer none; an app's agent for every user."""
    async with limpet.open("memory://") as lp, serving(lp) as url:
        keys = AccessKeys(journal_of(lp))
        doors = {}
        for role, user in (("owner", "ada"), ("viewer", "ada"), ("agent", None)):
            _, token = await keys.create(role=role, app="shop", user=user)
            doors[role] = HttpDoor(url, authorization=f"Bearer {token}")
        made = await doors["owner"].post(SESSIONS, {"id": "c1"})
        assert (made.status, made.headers["location"]) == (201, f"{SESSIONS}/sesn_.YzE")
        for role, body in (
            ("viewer", {}),
            ("owner", {"user": "bob"}),
            ("agent", {"app": "bank", "user": "ada"}),
        ):
            refused = await doors[role].post(SESSIONS, body)
            assert (refused.status, code_of(refused)) == (403, "access.denied"), role
        assert (await doors["agent"].post(SESSIONS, {"user": "bob"})).status == 201
        assert len((await lp.audit(denied=True)).items) == 3
        (event,) = await (await lp.get("shop", "ada", "c1")).read()
        assert event.actor == "user:ada"


async def test_the_documented_creation_works_as_it_is_written(place: Place) -> None:
    """The body and the address of docs/serving.md."""
    text = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    block = text.partition("### Routes of ours")[2].partition("```sh\n")[2].partition("```")[0]
    (body,) = re.findall(r"-d '(.*)'", block)
    (address,) = re.findall(r'curl -s "http://127.0.0.1:8420(.*)"', block)
    door = HttpDoor(place.door.url)
    assert (await door.post(SESSIONS, json.loads(body))).status == 201
    assert (await door.get(address)).body["state"] == {"plan": "gold"}
