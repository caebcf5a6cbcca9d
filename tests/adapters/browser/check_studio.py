"""The studio in Chromium, on a store that the real runtime has filled."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Playwright, expect, sync_playwright

import limpet
from limpet.graph import END, GraphBuilder, State, approve, as_harness
from tests.support.browser import RUN, launched, served_by, studio_of
from tests.support.examples import tries
from tests.support.studio_sample import HOSTILE, charging, order_graph

ADA = "user:ada"


class Seen(State):
    n: int = 0


KETTLE = "#/s/support/ada/kettle"
ACCESSIBLE = (
    "#/fleet",
    "#/inbox",
    "#/analytics",
    KETTLE,
    *[f"{KETTLE}?tab={tab}" for tab in ("state", "family", "about")],
    "#/s/orders/gwen/books?tab=graph",
    "#/s/support/dan/payment",
    "#/compare/support/ada/kettle-kinder/kettle-stricter",
    "#/s/support/nobody/nothing",
)
SECONDS = 30_000  # that something may take on a loaded machine
expect.set_options(timeout=SECONDS)


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as made:
        yield made


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    with launched(playwright) as made:
        yield made


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with every kind of session."""
    path = tmp_path_factory.mktemp("filled") / "shop.db"
    subprocess.run([sys.executable, "-m", "tests.support.studio_sample", str(path)], check=True)
    return path


@pytest.fixture
def store(filled: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    return Path(shutil.copy(filled, tmp_path / "shop.db"))


class Visitor:
    """Opens pages of one studio: visitor(hash), or visitor(hash, color_scheme="dark")."""

    def __init__(self, browser: Browser, link: str) -> None:
        self._browser, self._url = browser, link.split("#")[0]
        self.wrong: list[str] = []  # errors of scripts
        self._signed_in: Any = None
        self._contexts: dict[str, Any] = {}  # by how they look: to begin one takes a second
        page = self._context().new_page()
        page.goto(link)
        page.get_by_role("heading", name="Fleet").wait_for()
        self._signed_in = page.context.storage_state()
        page.close()

    def __call__(self, place: str = "#/fleet", **how: Any) -> Page:
        context = self._context(**how)
        for each in context.pages:  # a browser has six connections to a server
            each.close()
        page: Page = context.new_page()
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.goto(self._url + place)
        page.locator("main:not([aria-busy]) h1").first.wait_for()
        return page

    def _context(self, **how: Any) -> Any:
        name = json.dumps(how, sort_keys=True)
        if name not in self._contexts:
            how = {"viewport": {"width": 1280, "height": 800}, **how}
            made = self._browser.new_context(storage_state=self._signed_in, **how)
            made.set_default_timeout(SECONDS)
            self._contexts[name] = made
        return self._contexts[name]

    def close(self) -> None:
        for each in self._contexts.values():
            each.close()
        assert self.wrong == []


@pytest.fixture(scope="session")
def look(browser: Browser, filled: Path) -> Iterator[Visitor]:
    """A studio for tests that change nothing."""
    with studio_of(filled) as (link, _):
        visitor = Visitor(browser, link)
        yield visitor
        visitor.close()


@pytest.fixture
def visit(browser: Browser, store: Path) -> Iterator[Visitor]:
    """A studio of a store that the test may change."""
    with studio_of(store) as (link, _):
        visitor = Visitor(browser, link)
        yield visitor
        visitor.close()


@pytest.fixture
def lp(store: Path) -> Iterator[Any]:
    """The same store in this process: another writer, as far as the studio knows."""
    with limpet.open_sync(f"sqlite:///{store}") as made:
        yield made


def events_of(lp: Any, key: tuple[str, str, str], type: str) -> list[Any]:
    return list(lp.get(*key).read(types=[type], limit=1_000))


# --- the fleet ------------------------------------------------------------------------------------


def test_the_fleet_counts_filters_and_is_live(visit: Visitor, lp: Any) -> None:
    """Sessions by phase and status, filters by each property, and a new one without a reload."""
    page = visit()
    expect(page.locator(".tile.blocked b")).to_have_text("3")
    expect(page.locator(".tile.dead b")).to_have_text("1")
    expect(page.locator(".tile.sessions b")).to_have_text("13")
    rows = page.locator(".sessions tbody tr")
    expect(rows).to_have_count(13)
    page.locator(".phases button", has_text="suspended").click()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("hugo")
    page.locator("select[name=phase]").select_option("")
    page.locator(".tile.dead").click()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("outage")
    page.locator("select[name=status]").select_option("")
    page.locator("input[name=label]").fill("plan=gold")
    expect(rows).to_have_count(4)
    page.locator("input[name=user]").fill("dan")
    expect(rows).to_have_count(1)
    page.locator("input[name=user]").fill("")
    page.locator("input[name=label]").fill("")
    expect(rows).to_have_count(13)
    page.locator("input[name=text]").fill("KINDER")
    expect(rows).to_have_count(1)  # until then, asking for the text of "the" row is an error
    expect(rows).to_contain_text("kinder")
    assert "text=KINDER" in page.url
    page.locator("input[name=text]").fill("nothing like this")
    expect(page.locator(".empty")).to_contain_text("Change or clear the filters")
    page.locator("input[name=text]").fill("")
    expect(rows).to_have_count(13)
    lp.create("support", "zoe", "brand-new", actor="user:zoe")
    expect(rows.first).to_contain_text("brand-new")
    expect(page.locator(".tile.sessions b")).to_have_text("14")
    expect(page.locator(".rate.events b")).not_to_have_text("0.0")


def test_a_long_list_pages_by_cursor(visit: Visitor, lp: Any) -> None:
    """A page asks for one page, whatever the number of sessions is."""
    for n in range(120):
        lp.create("many", "ada", f"s{n:03}", actor="user:ada")
    page = visit("#/fleet?app=many")
    rows = page.locator(".sessions tbody tr")
    expect(rows).to_have_count(50)
    page.get_by_role("button", name="Show more").click()
    expect(rows).to_have_count(100)
    page.get_by_role("button", name="Show more").click()
    expect(rows).to_have_count(120)
    expect(page.get_by_role("button", name="Show more")).to_be_hidden()


def test_the_list_of_a_busy_fleet_stays_bounded(visit: Visitor, lp: Any) -> None:
    """Whoever watches for days has some rows in the page, not one for each session since."""
    page = visit("#/inbox")
    page.route(
        "**/studio/fleet.js",
        lambda route: route.fulfill(
            response=(answer := route.fetch()), body=answer.text().replace("= 1_000;", "= 20;")
        ),
    )
    page.goto(page.url.split("#")[0] + "#/fleet?app=support")
    page.reload()
    rows = page.locator(".sessions tbody tr")
    expect(rows.first).to_be_visible()
    for n in range(70):
        lp.create("support", "zoe", f"new{n:02}", actor="user:zoe")
        if n % 20 == 0:
            expect(rows.first).to_contain_text(f"new{n:02}")
    expect(rows.first).to_contain_text("new69")
    expect(rows).to_have_count(50)


def test_an_answer_that_comes_late_does_not_replace_a_newer_one(look: Visitor) -> None:
    """A slow request of an older filter changes nothing."""
    page = look()
    held: list[Any] = []
    page.route("**/limpet/v1/sessions?*user=dan*", lambda route: held.append(route))
    rows = page.locator(".sessions tbody tr")
    with page.expect_request("**/limpet/v1/sessions?*user=dan*"):
        page.locator("input[name=user]").fill("dan")
    page.locator("input[name=user]").fill("hugo")
    expect(rows).to_have_count(1)
    with page.expect_response("**/limpet/v1/sessions?*user=dan*"):
        held[0].continue_()
    page.evaluate("() => new Promise((done) => setTimeout(done))")
    expect(rows).to_contain_text("hugo")


def test_live_events_do_not_drop_what_was_asked_for(visit: Visitor, lp: Any) -> None:
    """Sessions change while a filter is read slowly: its answer is shown, and nothing else."""
    page = visit()
    expect(page.locator(".sessions tbody tr")).to_have_count(13)
    held: list[Any] = []
    page.route(
        "**/limpet/v1/sessions?*user=dan*",
        lambda route: route.continue_() if held else held.append(route),
    )
    with page.expect_request("**/limpet/v1/sessions?*user=dan*"):
        page.locator("input[name=user]").fill("dan")
    lp.create("support", "zoe", "brand-new", actor="user:zoe")
    expect(page.locator(".tile.sessions b")).to_have_text("14")  # the event has come
    held[0].continue_()
    expect(page.locator(".sessions tbody tr")).to_have_count(1)
    expect(page.locator(".sessions tbody tr")).to_contain_text("dan")


def test_a_row_keeps_the_focus_when_its_session_changes(visit: Visitor, lp: Any) -> None:
    """Whoever goes through the list by the keyboard is not thrown out of it."""
    page = visit("#/fleet?app=support")
    row = page.locator(".sessions tbody tr", has_text="holiday")
    row.get_by_role("link").focus()
    lp.get("support", "hugo", "holiday").append("user.message", {"text": "Hello?"}, actor=ADA)
    expect(row.locator(".number")).to_have_text("4")
    expect(row.get_by_role("link")).to_be_focused()


def test_a_session_that_no_longer_matches_is_dimmed(visit: Visitor, lp: Any) -> None:
    """It stays where it is: nothing jumps under the pointer."""
    page = visit("#/fleet?phase=suspended")
    row = page.locator(".sessions tbody tr", has_text="hugo")
    expect(row).to_be_visible()
    lp.get("support", "hugo", "holiday").resume()
    expect(row).to_have_class("gone")


def test_a_search_goes_on_some_times_and_then_asks(look: Visitor) -> None:
    """Where no index serves a filter, pages may be empty: twenty are read, then a button."""
    page = look()
    asked: list[str] = []

    def empty(route: Any) -> None:
        asked.append(route.request.url)
        route.fulfill(json={"data": [], "next_page": "further"})

    page.route("**/limpet/v1/sessions?*q=needle*", empty)
    page.locator("input[name=text]").fill("needle")
    more = page.get_by_role("button", name="Search further back")
    expect(more).to_be_visible()
    expect(page.locator(".note")).to_contain_text(
        "Nothing found so far. Older sessions were not searched"
    )
    assert ["page=further" in each for each in asked] == [False, *[True] * 19]


def test_a_search_says_that_it_found_a_part(look: Visitor) -> None:
    """Matches among the newest sessions are shown at once; the note says what was not searched."""
    page = look()

    def some(route: Any) -> None:
        found = route.fetch(url=route.request.url.split("&page=")[0]).json()["data"][:1]
        number = len(asked)
        asked.append(route.request.url)
        found[0]["session"]["id"] = f"found-{number}"
        route.fulfill(json={"data": found, "next_page": "further"})

    asked: list[str] = []
    page.route("**/limpet/v1/sessions?*status=idle*", some)
    page.locator("select[name=status]").select_option("idle")
    expect(page.locator(".note")).to_contain_text("20 found so far. Older sessions were not")
    expect(page.locator(".sessions tbody tr")).to_have_count(20)
    page.get_by_role("button", name="Search further back").click()
    expect(page.locator(".note")).to_contain_text("40 found so far")


def test_half_a_label_is_a_text(look: Visitor) -> None:
    """What is not name=value yet filters too: the list never shows what was not asked for."""
    page = look()
    page.locator("input[name=label]").fill("gold")
    expect(page.locator(".sessions tbody tr")).to_have_count(4)


def test_a_count_that_is_not_complete_says_so(look: Visitor) -> None:
    """Of a very large store the sessions are counted up to a bound."""
    page = look()
    page.route(
        "**/limpet/v1/status*",
        lambda route: route.fulfill(json={**route.fetch().json(), "complete": False}),
    )
    page.reload()
    expect(page.locator(".tile.sessions b")).to_have_text("13+")
    expect(page.locator(".tile.dead b")).to_have_text("1")


# --- the inbox ------------------------------------------------------------------------------------


def test_the_inbox_shows_the_oldest_first_and_answers_are_recorded(visit: Visitor, lp: Any) -> None:
    """Each request with its exact input; an answer has the person as its actor, and its note."""
    page = visit("#/inbox")
    cards = page.locator(".request")
    expect(cards).to_have_count(3)
    assert [each.split("\n")[0] for each in cards.all_inner_texts()] == [
        "approval",
        "question",
        "unknown effect",
    ]
    expect(cards.nth(0)).to_contain_text("number7")
    expect(cards.nth(0)).to_contain_text("asked")
    expect(cards.nth(2)).to_contain_text("This may have happened")
    expect(page.locator("#waiting")).to_have_text("3")
    cards.nth(0).get_by_role("button", name="Allow").click()
    page.get_by_label("Note").fill("seen the photo")
    page.locator("dialog").get_by_role("button", name="Allow").click()
    expect(cards).to_have_count(2)
    (said,) = events_of(lp, ("support", "bob", "broken-lamp"), "user.tool_confirmation")
    assert said.data["allow"] is True
    assert said.data["note"] == "seen the photo"
    assert said.actor.startswith("user:")
    cards.nth(0).get_by_role("button", name="Answer").click()
    page.locator("dialog textarea").first.fill('{"city": "Lyon"}')
    page.get_by_label("Note").fill("from her letter")
    page.locator("dialog").get_by_role("button", name="Answer").click()
    expect(cards).to_have_count(1)
    (said,) = events_of(lp, ("support", "cleo", "address"), "user.custom_tool_result")
    assert dict(said.data["output"]) == {"city": "Lyon"}
    assert said.data["note"] == "from her letter"
    cards.nth(0).get_by_role("button", name="It happened").click()
    page.locator("dialog textarea").first.fill("receipt 9")
    page.locator("dialog").get_by_role("button", name="It happened").click()
    expect(page.locator(".empty")).to_contain_text("Nothing waits for you")
    expect(page.locator("#waiting")).to_have_text("")


def test_requests_stay_when_events_arrive_and_when_a_read_fails(visit: Visitor, lp: Any) -> None:
    """Those of a later page too; a failed read is told, and the next one goes on."""
    page = visit("#/fleet")
    page.route(
        "**/limpet/v1/inbox?*",
        lambda route: route.continue_(url=re.sub("limit=[0-9]+", "limit=2", route.request.url)),
    )
    page.goto(page.url.split("#")[0] + "#/inbox")
    chat, cards = lp.get("support", "ada", "kettle"), page.locator(".request")
    expect(cards).to_have_count(2)
    page.get_by_role("button", name="Show more").click()
    expect(cards).to_have_count(3)
    with page.expect_response("**/limpet/v1/inbox?*"):
        chat.append("user.message", {"text": "Hello?"}, actor=ADA)
    page.evaluate("() => new Promise((done) => setTimeout(done))")
    expect(cards).to_have_count(3)
    page.unroute("**/limpet/v1/inbox?*")
    page.route("**/limpet/v1/inbox?*", lambda route: route.abort())
    chat.append("user.message", {"text": "Hello?"}, actor=ADA)
    expect(page.locator(".toast.bad")).to_be_visible()
    expect(cards).to_have_count(3)
    page.unroute("**/limpet/v1/inbox?*")
    s = lp.get("support", "bob", "broken-lamp")
    s.confirm(s.blocked_on[0].id, allow=False, actor="user:boss")
    expect(cards).to_have_count(2)


def test_the_number_of_requests_is_live_on_every_page(visit: Visitor, lp: Any) -> None:
    """Who watches the fleet, or a session, sees that somebody is asked."""
    for number, place in enumerate(("#/fleet", "#/s/support/ada/close1")):
        s = lp.create("support", "ada", f"close{number}", actor=ADA)
        page = visit(place)
        expect(page.locator("#waiting")).to_have_text(str(3 + number))
        expect(page.locator("#connection")).to_have_text("live")
        s.append("user.message", {"text": "Close my account."}, actor=ADA)
        lp.wake(s.key, _asks_until)
        expect(page.locator("#waiting")).to_have_text(str(4 + number))


async def _asks_until(turn: limpet.Turn) -> None:
    what = {"user": "ada", "in": {"region": {"zone": {"hosts": ["db-1"]}}}}
    await turn.approve("close the account", what, deadline=timedelta(minutes=30))


def test_a_request_says_when_it_expires_and_leaves_a_session_when_it_is_answered(
    visit: Visitor, lp: Any
) -> None:
    """In the inbox and under the conversation, where it stays until anybody has answered it."""
    s = lp.create("support", "ada", "closing", actor="user:ada")
    s.append("user.message", {"text": "Close my account."})
    lp.wake(s.key, _asks_until)
    page = visit("#/inbox")
    card = page.locator(".request", has_text="close the account")
    expect(card.locator(".chip.bad")).to_have_text(re.compile("expires in (29|30) min"))
    expect(card).to_contain_text("db-1")  # the exact input, without a click
    page = visit("#/s/support/ada/closing")
    docked = page.locator(".waiting .request")
    expect(docked).to_contain_text("close the account")
    expect(page.locator(".status .chip")).to_have_text(["active", "requires action"])
    s.refresh()
    s.confirm(s.blocked_on[0].id, allow=False, actor="user:boss")
    expect(docked).to_have_count(0)
    expect(page.locator(".status .chip")).to_have_text(["active", "due"])  # a worker goes on


def test_an_app_does_not_decide_what_all_apps_remember(
    browser: Browser, store: Path, lp: Any
) -> None:
    """Its admin sees the proposal, without a button; a request of the app has its buttons."""
    key = lp.get("support", "ada", "kettle").key
    lp.propose("Ask for a photo.", provenance=key, confidence=0.9, to="org:acme")
    command = [*RUN, "access", "create", str(store), "--app", "support", "--role", "admin"]
    key = subprocess.check_output(command, text=True).split()[0]
    with served_by(store) as url:
        page = browser.new_page()
        page.goto(f"{url}/studio#/inbox")
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Sign in").click()
        card = page.locator(".request", has_text="Ask for a photo.")
        expect(card).to_contain_text("lets you look, not answer")
        expect(card.get_by_role("button", name="Accept")).to_have_count(0)
        expect(page.get_by_role("button", name="Deny")).to_have_count(1)
        page.close()


def test_who_may_only_look_sees_requests_without_answers(browser: Browser, store: Path) -> None:
    command = [*RUN, "access", "create", str(store), "--app", "support", "--user", "bob"]
    key = subprocess.check_output([*command, "--role", "viewer"], text=True).split()[0]
    with served_by(store) as url:
        page = browser.new_page()
        page.goto(f"{url}/studio#/inbox")
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator(".request")).to_have_count(1)
        expect(page.locator(".request")).to_contain_text("lets you look, not answer")
        expect(page.locator(".request button:not(.name, .toggle)")).to_have_count(0)
        page.close()


# --- a session ------------------------------------------------------------------------------------


def test_a_session_shows_its_conversation_with_tools_and_effects(look: Visitor) -> None:
    """Messages, a tool with input, output and the state of its effect, the answer, the turn."""
    page = look(KETTLE)
    log = page.locator(".rows")
    expect(log).to_contain_text("My order 7 arrived broken.")
    card = page.locator(".card.tool", has_text="refund")
    expect(card).to_contain_text("asks first")
    expect(card).to_contain_text("succeeded")
    expect(card).to_contain_text("40.00 euros are on their way")
    expect(log).to_contain_text("He sent a photo.")
    expect(log).to_contain_text("waits for an answer")
    expect(page.locator(".verify")).to_have_text("✓ Chain verified, 45 events")
    expect(page.locator(".status")).to_contain_text("plan=gold")
    page.get_by_role("tab", name="About").click()
    expect(page.locator(".about")).to_contain_text("$0.0084")
    expect(page.locator(".about")).to_contain_text("of $1.00 spent")
    page.get_by_role("button", name="Everything").click()
    expect(page.locator(".entry", has_text="span.started").first).to_be_visible()
    updated = page.locator(".entry", has_text="state.updated").last
    expect(updated).to_contain_text('steps = 3, mood = "happy"')  # what the event changed


def _fails_deep(depth: int) -> None:
    """Two functions in turn: a traceback folds what is repeated."""
    if depth == 0:
        raise ValueError("the shop's API answered 502 Bad Gateway")
    _fails_deeper(depth - 1)


def _fails_deeper(depth: int) -> None:
    _fails_deep(depth)


async def _fails_long(turn: limpet.Turn) -> None:
    _fails_deep(40)


def test_what_was_cut_for_the_list_is_read_in_full(visit: Visitor, lp: Any) -> None:
    """The beginning of a long input, output, answer or traceback, and all of it by a click; beside
    it stay the usage, and that the result is an error."""
    s = lp.create("support", "ada", "lengthy", actor=ADA)
    call = {"name": "dump", "input": {"query": "q" * 7_000, "last": "field"}, "request_id": "r1"}
    failed = {"output": "line " * 8_000 + "the last line", "is_error": True, "request_id": "r1"}
    said = {"text": "word " * 5_000 + "the end", "usage": {"input": 900, "output": 80}, "cost": 0.5}
    types = ("agent.tool_use", "agent.tool_result", "agent.message")
    for type, data in zip(types, (call, failed, said), strict=True):
        s.append(type, data, actor="agent:a")
    page = visit("#/s/support/ada/lengthy")
    card = page.locator(".card.tool")
    expect(card.locator(".result")).to_have_text("error")
    error = card.locator("details", has_text="error").last
    expect(error).to_contain_text("line line")  # it is open
    expect(error).not_to_contain_text("the last line")
    error.get_by_role("button", name="Show all").click()
    expect(error).to_contain_text("the last line")
    card.get_by_text("input", exact=True).click()
    expect(card).not_to_contain_text("field")
    card.get_by_role("button", name="Show all").click()
    expect(card).to_contain_text("lastfield")
    message = page.locator(".message")
    expect(message).to_contain_text("900 in · 80 out · $0.50")
    message.get_by_role("button", name="Show all").click()
    expect(message).to_contain_text("the end")
    s.append("user.message", {"text": "Again?"}, actor=ADA)
    lp.wake(s.key, _fails_long)
    page.get_by_text("traceback", exact=True).click()
    trace = page.locator(".card.bad pre")
    trace.get_by_role("button", name="Show all").click()
    expect(trace).to_contain_text("ValueError: the shop's API answered 502 Bad Gateway")
    expect(page.locator(".card.bad")).to_contain_text("Retry due")
    expect(page.locator(".status .is-rescheduling")).to_have_count(1)
    reason = page.locator(".rule.rescheduling > span").bounding_box()
    assert reason is not None
    assert reason["height"] < 30  # beside a long summary it is one line


async def _asks_twice(turn: limpet.Turn) -> None:
    """At once: the turn waits for both."""
    paths = [f"/srv/export-{n}" for n in range(40)]
    names = ("delete files", "delete backups")
    await asyncio.gather(*[turn.approve(each, {"paths": paths}) for each in names])


def test_the_input_of_each_of_several_requests_is_seen_before_its_answers(
    visit: Visitor, lp: Any
) -> None:
    """Buttons that stay in view would cover what they decide on."""
    s = lp.create("support", "ada", "cleanup", actor=ADA)
    s.append("user.message", {"text": "Clean up."})
    lp.wake(s.key, _asks_twice)
    page = visit("#/s/support/ada/cleanup")
    cards = page.locator(".waiting .request")
    expect(cards).to_have_count(2)
    for place in range(2):
        card = cards.nth(place)
        expect(card).to_contain_text("/srv/export-0")
        input, buttons = [card.locator(each).bounding_box() for each in (".input", ".buttons")]
        assert input is not None
        assert buttons is not None
        assert input["y"] + input["height"] <= buttons["y"]
    assert barriers(page) == []
    cards.nth(1).get_by_role("button", name="Allow").click()
    page.locator("dialog").get_by_role("button", name="Allow").click()
    expect(cards).to_have_count(1)


def test_an_effect_that_may_have_happened_is_one_card(look: Visitor) -> None:
    """The question about it is in the card of the effect, and says plainly what is not known."""
    page = look("#/s/support/dan/payment")
    expect(page.locator(".rows .card")).to_have_count(1)
    expect(page.locator(".rows .card.unsure")).to_contain_text("It may have happened.")
    expect(page.locator(".rows .card")).to_contain_text("unknown")
    expect(page.locator(".waiting .request")).to_contain_text("This may have happened")


def test_a_broken_chain_names_the_event(browser: Browser, store: Path) -> None:
    """An event that somebody changed in the file is found as soon as its session is opened."""
    with sqlite3.connect(store) as file:
        (sid,) = file.execute("SELECT sid FROM events WHERE seq = 45").fetchone()
        file.execute("UPDATE events SET actor = 'user:eve' WHERE sid = ? AND seq = 12", (sid,))
    file.close()
    with studio_of(store) as (link, _):
        page = browser.new_page()
        page.goto(link)
        page.get_by_role("heading", name="Fleet").wait_for()
        page.goto(link.split("#")[0] + KETTLE)
        expect(page.locator(".verify.wrong")).to_contain_text("✗ event 12 breaks the chain")
        page.close()


def test_a_session_that_ends_takes_no_more_messages(visit: Visitor, lp: Any) -> None:
    """The field for them goes, and so do the actions that its phase does not allow."""
    s = lp.create("support", "ada", "talk", actor="user:ada")
    page = visit("#/s/support/ada/talk")
    expect(page.get_by_label("Message")).to_be_visible()
    s.complete("solved")
    expect(page.get_by_label("Message")).to_be_hidden()
    expect(page.locator(".line", has_text="completed")).to_contain_text("solved")
    expect(page.locator(".status .chip")).to_have_text(["completed"])
    page.locator(".menu summary").click()
    expect(page.locator(".menu button:visible")).to_have_text(["Archive"])


def test_an_archived_session_is_read_without_alarm(visit: Visitor, lp: Any) -> None:
    """It never changes: there is no stream, and no error about it."""
    s = lp.create("support", "ada", "old", actor="user:ada")
    s.append("user.message", {"text": "first"})
    s.complete("solved")
    page = visit("#/s/support/ada/old")
    expect(page.locator("#connection")).to_have_text("live")
    s.archive()
    expect(page.locator(".status .chip")).to_have_text(["archived"])
    expect(page.locator("#connection")).to_be_hidden()
    page.reload()
    expect(page.locator(".line", has_text="archived")).to_be_visible()
    expect(page.locator(".verify")).to_contain_text("Chain verified")
    expect(page.locator(".message")).to_contain_text("first")
    expect(page.locator("#connection")).to_be_hidden()
    expect(page.locator(".toast.bad")).to_have_count(0)


def test_a_session_that_is_deleted_says_so(visit: Visitor, lp: Any) -> None:
    """What was read stays on the screen, and the page is no longer live."""
    s = lp.create("support", "ada", "talk", actor="user:ada")
    s.append("user.message", {"text": "first"})
    page = visit("#/s/support/ada/talk")
    expect(page.locator("#connection")).to_have_text("live")
    lp.delete(s.key)
    expect(page.locator(".toast.bad")).to_contain_text("support/ada/talk")
    expect(page.locator("#connection")).to_have_text("not live")
    expect(page.locator(".message")).to_contain_text("first")


def test_what_is_recorded_while_a_page_is_read_is_shown(visit: Visitor, lp: Any) -> None:
    """Over a slow network too: nothing is missing between the page and the stream."""
    s = lp.create("support", "ada", "talk", actor="user:ada")
    s.append("user.message", {"text": "first"})
    page = visit("#/s/support/ada/talk")
    s.append("user.message", {"text": "second"})
    expect(page.locator(".message")).to_have_count(2)
    s.append("agent.message", {"text": "Once "}, partial=True, id="f1", actor="agent:a")
    expect(page.locator(".message.partial")).to_contain_text("Once")
    held: list[Any] = []
    page.route(
        "**/events?*order=desc*", lambda route: route.continue_() if held else held.append(route)
    )
    with page.expect_request("**/events?*order=desc*"):
        page.get_by_role("button", name="Everything").click()
    answer = held[0].fetch()
    s.append("user.message", {"text": "third"})
    expect(page.locator(".entry", has_text="third")).to_have_count(1)  # by the stream
    held[0].fulfill(response=answer)
    expect(page.locator(".entry")).to_have_count(4)
    expect(page.locator(".entry").last).to_contain_text("third")
    s.append("agent.message", {"text": "upon "}, partial=True, id="f1", actor="agent:a")
    expect(page.locator(".message.partial")).to_contain_text("Once upon")


def test_a_wake_of_many_spans_draws_some_at_once(look: Visitor) -> None:
    page = look("#/inbox")

    def many(route: Any) -> None:
        trace = route.fetch().json()
        trace["spans"] += [{**trace["spans"][-1], "id": f"s{n}"} for n in range(1_000)]
        route.fulfill(json=trace)

    page.route("**/traces/*", many)
    page.goto(page.url.split("#")[0] + "#/s/support/finn/outage")
    expect(page.locator(".woken .span")).to_have_count(300)
    page.get_by_role("button", name="All 1,001 spans").click()
    expect(page.locator(".woken .span")).to_have_count(1_001)


def test_conversation_and_trace_lead_to_each_other(look: Visitor) -> None:
    """A message marks its bar, a bar marks its message; bars have tokens and cost."""
    page = look(KETTLE)
    expect(page.locator(".woken")).to_have_count(3)
    expect(page.locator(".woken").first).to_contain_text("708 tokens · $0.0021")
    page.locator(".span", has_text="refund").click()
    expect(page.locator(".rows .selected")).to_contain_text("refund")
    page.locator(".message.agent", has_text="All done").locator(".seq").click()
    expect(page.locator(".span.selected")).to_contain_text("model")
    expect(page.locator(".place")).to_contain_text("event 39 of 45")


async def _says_when(turn: limpet.Turn) -> None:
    await turn.say("Here.")


def test_a_moment_of_long_ago_has_its_wake(visit: Visitor, lp: Any) -> None:
    """The trace is a window too: it begins at the wake of the moment, and leads back to the end."""
    s = lp.create("support", "ada", "talk", actor="user:ada")
    for n in range(34):
        s.append("user.message", {"text": f"n{n}"})
        lp.wake(s.key, _says_when)
    page = visit("#/s/support/ada/talk")
    wakes = page.locator(".woken")
    expect(wakes).to_have_count(30)
    page.get_by_label("Moment in the history").fill("6")
    expect(page.locator(".span.selected")).to_be_visible()
    expect(wakes).to_have_count(1)
    page.get_by_role("button", name="The newest wakes").click()
    expect(wakes).to_have_count(30)
    page.get_by_role("button", name="Earlier wakes").click()
    expect(wakes).to_have_count(34)
    expect(page.get_by_role("button", name="Earlier wakes")).to_be_hidden()


def test_idle_time_in_a_wake_is_folded(look: Visitor) -> None:
    """A minute in which nobody worked takes little room, and is marked."""

    def wait_a_minute(route: Any) -> None:
        trace = route.fetch().json()
        wake, *spans = trace["spans"]
        for n, each in enumerate(spans):  # each takes a second, however long it took
            since = wake["started_us"] + n * 1_000_000 + (60_000_000 if n else 0)
            each["started_us"], each["ended_us"] = since, since + 1_000_000
        wake["ended_us"] = spans[-1]["ended_us"]
        route.fulfill(json=trace)

    page = look("#/inbox")
    page.route("**/traces/*", wait_a_minute)
    page.goto(page.url.split("#")[0] + KETTLE)
    wake = page.locator(".woken", has_text="1,056 tokens")
    expect(wake.locator(".fold").first).to_be_attached()
    bars = wake.locator(".bar")
    widths = [bars.nth(n).evaluate("each => each.width.baseVal.value") for n in range(1, 4)]
    assert max(widths) > 50  # of 1,000: a minute apart, they would be lines


def test_a_wake_is_drawn_while_it_runs(visit: Visitor, lp: Any) -> None:
    """Its bars come with its events, and its result when it has ended."""
    goes_on = threading.Event()

    async def answers(turn: limpet.Turn) -> None:
        await turn.step("look", lambda: "found")
        await asyncio.to_thread(goes_on.wait)
        await turn.say("Here it is.")

    s = lp.create("support", "ada", "talk", actor="user:ada")
    page = visit("#/s/support/ada/talk")
    expect(page.locator(".trace .empty")).to_be_visible()
    s.append("user.message", {"text": "Where is it?"})
    worker = threading.Thread(target=lp.wake, args=(s.key, answers))
    worker.start()
    try:
        expect(page.locator(".woken .sum")).to_have_text("running")  # no time that stands still
        expect(page.locator(".message.user")).to_contain_text("pending")
    finally:
        goes_on.set()
        worker.join()
    expect(page.locator(".woken .sum")).to_contain_text("success")
    expect(page.locator(".woken")).to_have_count(1)
    expect(page.locator(".woken .span", has_text="look")).to_be_visible()
    expect(page.locator(".message.agent")).to_contain_text("Here it is.")
    expect(page.locator(".message.user")).not_to_contain_text("pending")
    assert page.locator(".line").all_inner_texts() == []  # spans are of the trace, live too


def test_a_link_leads_to_its_event(look: Visitor) -> None:
    page = look(f"{KETTLE}?seq=22")
    expect(page.locator(".rows .selected")).to_contain_text("I will refund 40 euros.")


def test_errors_children_and_relations_are_shown(look: Visitor) -> None:
    """A traceback that opens; a child that is a link; lanes of forks with where they part."""
    page = look("#/s/support/finn/outage")
    page.get_by_text("traceback", exact=True).click()
    expect(page.locator("pre", has_text="raise ValueError")).to_be_visible()
    expect(page.locator(".status")).to_contain_text("dead")
    page = look("#/s/support/eve/parcel?tab=family")
    expect(page.locator(".card.child").first).to_contain_text("Find the parcel")
    expect(page.locator(".lanes")).to_contain_text("child of parcel")
    page = look(f"{KETTLE}?tab=family")
    lanes = page.locator(".lanes li")
    expect(lanes).to_have_count(4)
    expect(lanes.nth(1)).to_contain_text("fork of kettle at event 9")
    lanes.nth(1).get_by_role("link", name="Compare").click()
    expect(page.get_by_role("heading", name="Compare")).to_be_visible()


def test_a_large_family_says_that_it_shows_a_part(look: Visitor) -> None:
    page = look("#/inbox")
    page.route(
        "**/graph?*", lambda route: route.fulfill(json={**route.fetch().json(), "truncated": True})
    )
    page.goto(page.url.split("#")[0] + f"{KETTLE}?tab=family")
    expect(page.locator(".family")).to_contain_text("The nearest 60 are shown.")


async def _spends_too_much(turn: limpet.Turn) -> None:
    await turn.say("Done.", cost=1.5)


def test_a_budget_that_is_overspent_says_by_how_much(visit: Visitor, lp: Any) -> None:
    budget = limpet.Budget(cost=1.0)
    s = lp.create("support", "ada", "talk", actor="user:ada", budget=budget)
    s.append("user.message", {"text": "Spend."})
    lp.wake(s.key, _spends_too_much)
    page = visit("#/s/support/ada/talk?tab=about")
    expect(page.locator(".about")).to_contain_text("$1.50 of $1.00 spent, −$0.50 left")


def test_search_obeys_the_filter(look: Visitor) -> None:
    """Next and previous go from match to match, in what is shown."""
    page = look(KETTLE)
    box = page.get_by_label("Search in this session")
    box.fill("refund")
    box.press("Shift+Enter")
    found = page.locator(".found")
    expect(found).to_have_text(re.compile("#3[456]"))
    box.press("Shift+Enter")
    expect(found).not_to_have_text(re.compile("#3[3]|searching"))
    box.fill("span.started")
    box.press("Enter")
    expect(found).to_have_text("no later match")  # spans are not of the conversation
    page.get_by_role("button", name="Everything").click()
    box.press("Shift+Enter")
    expect(found).to_have_text(re.compile("#[0-9]+"))


def test_live_events_move_nothing(visit: Visitor, lp: Any) -> None:
    """What is open stays open, the place stays, and a mark tells of what is new."""
    s = lp.create("support", "ada", "long-talk", actor="user:ada", state={"plan": {"steps": [1]}})
    for n in range(40):
        s.append("user.message", {"text": f"line {n}\n" * 4})
    s.append("note.added", {"deep": {"a": [1, 2, 3], "b": "x" * 300}})
    page = visit("#/s/support/ada/long-talk?tab=state")
    page.get_by_role("button", name="Everything").click()
    scroll = page.locator(".scroll")
    page.locator(".entry summary").nth(20).click()
    scroll.evaluate("each => { each.scrollTop = 300; }")
    page.get_by_label("Open plan").click()  # closes it
    before = scroll.evaluate("each => each.scrollTop")
    opened = page.locator(".entry details[open]").count()
    for n in range(5):
        s.append("user.message", {"text": f"new {n}"})
    s.update(lambda _: {"other": 1})
    expect(page.locator(".pill")).to_contain_text("new")
    expect(page.locator("div.state")).to_contain_text("other")
    assert scroll.evaluate("each => each.scrollTop") == before
    assert page.locator(".entry details[open]").count() == opened
    expect(page.get_by_label("Open plan")).to_have_attribute("aria-expanded", "false")
    page.locator(".pill").click()
    expect(page.locator(".entry").last).to_contain_text("state.updated")


def test_a_live_state_keeps_what_is_open_and_the_focus(visit: Visitor, lp: Any) -> None:
    """Fields that were asked for stay when another one changes, and so does who is on a field."""
    fields = {f"field{n:03}": n for n in range(150)}
    s = lp.create("support", "ada", "wide", actor="user:ada", state=fields)
    page = visit("#/s/support/ada/wide?tab=state")
    state = page.locator("div.state")
    page.get_by_role("button", name="50 more").click()
    field = state.get_by_role("button", name="field149", exact=True)
    field.focus()
    s.update(lambda _: {"field000": "changed"})
    expect(state).to_contain_text("field000changed")
    expect(field).to_be_focused()
    expect(state.locator("li")).to_have_count(150)


def test_scrolling_back_moves_by_what_was_scrolled(visit: Visitor, lp: Any) -> None:
    """Rows of any height are read and shown above without a jump below."""
    s = lp.create("support", "ada", "tall", actor="user:ada")
    texts = [{"text": "line\n" * (1 + n * 7 % 12)} for n in range(400)]
    s.append_many([limpet.Draft(type="user.message", data=each) for each in texts])
    page = visit("#/s/support/ada/tall")
    expect(page.locator(".message").last).to_be_visible()
    moved = page.evaluate(
        """() => new Promise((done) => {
            const box = document.querySelector(".scroll");
            const frame = (run) => requestAnimationFrame(() => requestAnimationFrame(run));
            const far = [];
            (function step(n) {
                const rows = [...box.querySelectorAll("[data-row]")];
                const row = rows.find((it) => it.getBoundingClientRect().top > 300);
                const before = row.getBoundingClientRect().top;
                box.scrollTop -= 60;
                frame(() => {
                    far.push(row.getBoundingClientRect().top - before);
                    n ? step(n - 1) : done(far);
                });
            })(150);
        })"""
    )
    assert max(moved) < 62


def test_a_message_that_is_being_written_grows(visit: Visitor, lp: Any) -> None:
    """Partial text appears, and the recorded message takes its place."""
    s = lp.create("support", "ada", "talk", actor="user:ada")
    page = visit("#/s/support/ada/talk")
    s.append("user.message", {"text": "Tell me."})
    expect(page.locator(".message.user")).to_contain_text("Tell me.")
    id = "final-1"
    for piece in ("Once ", "upon "):
        s.append("agent.message", {"text": piece}, partial=True, id=id, actor="agent:a")
    expect(page.locator(".message.partial")).to_contain_text("Once upon")
    s.append("agent.message", {"text": "Once upon a time."}, id=id, actor="agent:a")
    expect(page.locator(".message.agent")).to_have_count(1)
    expect(page.locator(".message.agent")).to_contain_text("Once upon a time.")
    expect(page.locator(".message.partial")).to_have_count(0)


# --- time travel ----------------------------------------------------------------------------------


def test_the_slider_shows_the_state_of_any_moment_and_who_changed_it(look: Visitor) -> None:
    """State and diff at an event, blame by a click, the checkpoint as a mark."""
    page = look(f"{KETTLE}?tab=state")
    expect(page.locator("div.state")).to_contain_text("moodhappy")
    expect(page.locator(".marks .checkpoint")).to_have_count(1)
    slider = page.get_by_label("Moment in the history")
    places = [page.locator(each).bounding_box() for each in (".track", ".columns")]
    slider.fill("29")
    assert [page.locator(each).bounding_box() for each in (".track", ".columns")] == places
    expect(page.locator("div.state")).to_contain_text("moodannoyed")
    expect(page.locator(".changes")).to_contain_text('mood "calm" → "annoyed"')
    expect(page.locator(".rows .selected")).to_have_count(1)
    page.locator("div.state").get_by_role("button", name="mood").click()
    blamed = page.locator(".blame")
    expect(blamed).to_contain_text("#29")
    expect(blamed).to_contain_text("user:ada")
    expect(blamed).to_contain_text('mood = "annoyed"')
    expect(blamed).not_to_contain_text("#44")  # it was later
    page.keyboard.press("]")
    expect(page.locator(".place")).to_contain_text("event 30")
    page.get_by_role("button", name="Back to now").click()
    expect(page.locator("div.state")).to_contain_text("moodhappy")


def test_a_state_that_comes_late_is_not_shown(look: Visitor) -> None:
    """The slider has moved on: what belongs to another moment is dropped."""
    page = look(f"{KETTLE}?tab=state")
    expect(page.locator("div.state")).to_contain_text("moodhappy")
    held: list[Any] = []
    page.route("**/state?*at=10*", lambda route: held.append(route))
    slider = page.get_by_label("Moment in the history")
    with page.expect_request("**/state?*at=10*"):
        slider.fill("10")
    slider.fill("29")
    expect(page.locator("div.state")).to_contain_text("moodannoyed")
    with page.expect_response("**/state?*at=10*"):
        held[0].continue_()
    page.evaluate("() => new Promise((done) => setTimeout(done))")
    expect(page.locator("div.state")).to_contain_text("moodannoyed")


def test_edit_and_fork_then_compare(visit: Visitor, lp: Any) -> None:
    """A fork with another value, side by side with its origin; nothing changed in that."""
    page = visit(f"{KETTLE}?tab=state")
    page.get_by_label("Moment in the history").fill("29")
    expect(page.locator("div.state")).to_contain_text("moodannoyed")
    page.get_by_role("button", name="Edit and fork").click()
    state = page.get_by_label("Fields of the state")
    whole = json.loads(state.input_value())
    state.fill("not json")
    page.get_by_role("button", name="Fork with this state").click()
    expect(page.locator("dialog .wrong")).to_contain_text("JSON")
    for not_fields in ("[1]", "5", "null"):
        state.fill(not_fields)
        page.get_by_role("button", name="Fork with this state").click()
        expect(page.locator("dialog .wrong")).to_contain_text("Write the fields as a JSON object")
    state.fill(json.dumps({**whole, "mood": "curious"}))
    page.get_by_role("button", name="Fork with this state").click()
    expect(page.get_by_role("heading", name="Compare")).to_be_visible()
    expect(page.locator(".lead")).to_contain_text("They share 29 events")
    expect(page.locator(".changes")).to_contain_text('mood "happy" → "curious"')
    expect(page.locator(".aligned tbody tr").first).to_be_visible()
    assert lp.get("support", "ada", "kettle").version == 45
    made = next(h for h in lp.list(app="support", user="ada").items if "sesn_" in h.key.id)
    assert lp.get(made.key).values["mood"] == "curious"
    *_, edited = lp.get(made.key).read(after=29, types=["state.updated"])
    assert [each.path for each in edited.ops] == [("mood",)]  # and nothing that was not changed


def test_two_forks_are_aligned(look: Visitor) -> None:
    """What is alike stands beside each other."""
    page = look("#/compare/support/ada/kettle-kinder/kettle-stricter")
    row = page.locator(".aligned tr", has_text="delighted")
    expect(row).to_contain_text('mood = "cross"')
    expect(row).to_contain_text('gift = "a tea towel"')
    removed = page.locator(".changes li", has_text="gift")
    expect(removed).to_have_text('gift "a tea towel"')  # without a value that it has now
    heading = page.get_by_role("columnheader", name="kettle-kinder", exact=True)
    assert (
        heading.evaluate("each => getComputedStyle(each, '::first-letter').textTransform") == "none"
    )


def test_a_comparison_names_the_tools(look: Visitor) -> None:
    """A call by its name and its input, an effect by its name: not by hashes and ids."""
    page = look("#/compare/support/ada/kettle/kettle-kinder")
    table = page.locator(".aligned")
    expect(table.locator("td", has_text="agent.tool_use").first).to_contain_text(
        'find_order {"number":"7"}'
    )
    intended = table.locator("td", has_text="effect.intended")
    expect(intended).to_contain_text('refund {"number":"7","eur":40')
    expect(intended).not_to_contain_text("args_hash")
    missing = table.locator("tr", has_text="effect.intended").locator("td.none")
    expect(missing).to_have_count(1)


def test_forks_of_two_moments_share_what_is_before_the_earlier(visit: Visitor, lp: Any) -> None:
    """Also where neither is a fork of the other, and the events after that are compared."""
    origin = lp.get("support", "ada", "kettle")
    origin.fork(29, id="later", actor="user:boss")
    page = visit("#/compare/support/ada/kettle-kinder/later")
    expect(page.locator(".lead")).to_have_text("They share 9 events, and part there.")
    expect(page.locator(".aligned")).to_contain_text("My order 7 arrived broken.")
    page = visit("#/compare/support/ada/later/kettle")
    expect(page.locator(".lead")).to_have_text("They share 29 events, and part there.")


def test_a_name_with_a_dot_has_its_own_blame(visit: Visitor, lp: Any) -> None:
    lp.create("support", "ada", "dots", actor="user:ada", state={"a.b": {"c": [1]}})
    page = visit("#/s/support/ada/dots?tab=state")
    page.locator("div.state").get_by_role("button", name="a.b", exact=True).click()
    expect(page.locator(".blame li")).to_have_count(1)
    expect(page.locator(".blame")).to_contain_text('["a.b"]')


def test_bisect_finds_the_event(look: Visitor) -> None:
    """The first event after which a condition does not hold."""
    page = look(f"{KETTLE}?tab=state")
    page.get_by_role("button", name="Bisect").click()
    page.get_by_label("Field").fill("mood")
    for value, why in (("happy", "It is true now"), ("gloomy", "It was not true to begin with")):
        page.get_by_label("Value").fill(value)
        page.get_by_role("button", name="Find it").click()
        expect(page.locator("dialog .wrong")).to_contain_text(why)
    page.get_by_label("Value").fill("calm")
    page.get_by_role("button", name="Find it").click()
    expect(page.locator(".place")).to_contain_text("event 29")
    expect(page.locator(".toast")).to_contain_text("Event 29: state.updated by user:ada")


# --- acting ---------------------------------------------------------------------------------------


def test_acts_ask_first_and_are_recorded_with_the_person(visit: Visitor, lp: Any) -> None:
    """Send, interrupt, suspend, resume, checkpoint and rewind; each event has the same actor."""
    key = ("support", "ada", "kettle")
    page = visit(f"{KETTLE}?tab=state")
    page.get_by_label("Message").fill("Is it on its way?")
    page.keyboard.press("Enter")
    expect(page.locator(".message.user").last).to_contain_text("Is it on its way?")
    for name, phase in (("Suspend", "suspended"), ("Resume", "active")):
        page.locator(".menu summary").click()
        page.locator(".menu").get_by_role("button", name=name).click()
        if name == "Suspend":
            page.get_by_label("Reason").fill("a holiday")
        page.locator("dialog").get_by_role("button", name=name).click()
        expect(page.locator(".status .chip").first).to_have_text(phase)
    page.locator(".menu summary").click()
    page.locator(".menu").get_by_role("button", name="Interrupt").click()
    page.locator("dialog").get_by_role("button", name="Interrupt").click()
    expect(page.locator(".line", has_text="interrupted").first).to_be_visible()
    page.get_by_role("button", name="Checkpoint").click()
    expect(page.locator(".toast", has_text="Checkpoint #3")).to_be_visible()
    page.get_by_label("Moment in the history").fill("29")
    expect(page.locator("div.state")).to_contain_text("moodannoyed")
    page.get_by_role("button", name="Rewind to here").click()
    page.get_by_role("button", name="Cancel").click()
    assert events_of(lp, key, "session.rewound") == []
    page.get_by_role("button", name="Rewind to here").click()
    page.locator("dialog").get_by_role("button", name="Rewind").click()
    expect(page.locator(".toast", has_text="Rewound")).to_be_visible()
    expect(page.locator(".line", has_text="went back")).to_contain_text("to event 29")
    session = lp.get(*key)
    assert session.values["mood"] == "annoyed"
    mine = [e for e in session.read(after=45, limit=100) if e.actor.startswith("user:")]
    assert {e.type for e in mine} >= {"user.message", "user.interrupt", "session.rewound"}
    assert {e.actor for e in mine} == {mine[0].actor}
    (suspended,) = events_of(lp, key, "session.suspended")
    assert suspended.data["reason"] == "a holiday"


def test_a_session_is_ended_and_archived(visit: Visitor, lp: Any) -> None:
    """Activate, complete, archive and terminate ask first too; each is recorded with who did it."""

    def act(name: str) -> None:
        page.locator(".menu summary").click()
        page.locator(".menu").get_by_role("button", name=name).click()
        page.locator("dialog").get_by_role("button", name=name).click()

    lp.create("support", "ada", "new", actor=ADA, phase="init")
    page = visit("#/s/support/ada/new")
    phase = page.locator(".status .chip").first
    for name, wanted in (
        ("Activate", "active"),
        ("Complete", "completed"),
        ("Archive", "archived"),
    ):
        act(name)
        expect(phase).to_have_text(wanted)
    lp.create("support", "ada", "stray", actor=ADA)
    page = visit("#/s/support/ada/stray")
    page.locator(".menu summary").click()
    page.locator(".menu").get_by_role("button", name="Terminate").click()
    page.get_by_label("Reason").fill("it went astray")
    page.locator("dialog").get_by_role("button", name="Terminate").click()
    expect(page.locator(".status .chip").first).to_have_text("terminated")
    (ended,) = events_of(lp, ("support", "ada", "stray"), "session.terminated")
    assert ended.data["reason"] == "it went astray"
    assert ended.actor not in ("user:ada", "system:limpet")


def test_a_fork_and_a_restored_checkpoint(visit: Visitor, lp: Any) -> None:
    """A plain fork has nothing new; a restore goes back to what was pinned."""
    page = visit(f"{KETTLE}?tab=state")
    page.get_by_label("Moment in the history").fill("29")
    expect(page.locator("div.state")).to_contain_text("moodannoyed")
    page.get_by_role("button", name="Fork here", exact=True).click()
    page.locator("dialog").get_by_role("button", name="Fork").click()
    expect(page.get_by_role("heading", name="Compare")).to_be_visible()
    expect(page.locator(".lead")).to_contain_text("They share 29 events")
    page = visit(f"{KETTLE}?tab=state")
    page.get_by_role("button", name="Restore").click()
    page.locator("dialog").get_by_role("button", name="Restore").click()
    expect(page.locator(".line", has_text="went back")).to_contain_text("to event 43")
    expect(page.locator("div.state")).to_contain_text("moodannoyed")
    assert lp.get("support", "ada", "kettle").values["mood"] == "annoyed"


async def _pays_twice(turn: limpet.Turn) -> None:
    async def pay(idempotency_key: str) -> str:
        return "paid"

    await turn.effect("pay back", pay)
    await turn.approve("go on", {})


async def _pays_otherwise(turn: limpet.Turn) -> None:
    async def pay(idempotency_key: str) -> str:
        return "paid"

    await turn.effect("pay differently", pay)


def test_every_kind_of_answer_is_recorded(visit: Visitor, lp: Any) -> None:
    """Deny, run again and give up, also of a turn that no longer fits its record, and accept what
    was proposed for a memory; each with its note."""
    s = lp.create("support", "ada", "changed", actor=ADA)
    s.append("user.message", {"text": "Pay."})
    lp.wake(s.key, _pays_twice)
    s.refresh()
    s.confirm(s.blocked_on[0].id, allow=True, actor="user:boss")
    lp.wake(s.key, _pays_otherwise)
    again = lp.create("support", "ada", "again", actor=ADA)
    again.append("user.message", {"text": "Charge my card, please."})
    lp.wake(again.key, charging)
    offered = lp.propose("Ask for a photo.", provenance=s.key, confidence=0.9, to="org:acme")
    page = visit("#/inbox")
    cards = page.locator(".request")
    for text, name, note in (
        ("refund", "Deny", "no photo"),
        ("ada/again", "Run again", "the bank has no trace of it"),
        ("dan/payment", "Give up", "too late"),
        ("mismatch", "Give up", "rolled back"),
        ("Ask for a photo.", "Accept", "seen it work"),
    ):
        card = cards.filter(has_text=text)
        card.get_by_role("button", name=name).click()
        page.locator("dialog textarea").last.fill(note)
        page.locator("dialog").get_by_role("button", name=name).click()
        expect(card).to_have_count(0)
    (denied,) = events_of(lp, ("support", "bob", "broken-lamp"), "user.tool_confirmation")
    assert (denied.data["allow"], denied.data["note"]) == (False, "no photo")
    (decided,) = [each for each in lp.proposals() if each.id == offered.id]
    assert (decided.status, decided.reason) == ("accepted", "seen it work")
    assert decided.decided_by == denied.actor
    for key, note in (
        (("support", "ada", "again"), "the bank has no trace of it"),
        (("support", "dan", "payment"), "too late"),
        (("support", "ada", "changed"), "rolled back"),
    ):
        said = [e for e in lp.get(*key).read(limit=100) if e.data and e.data.get("note") == note]
        assert [each.actor for each in said] == [denied.actor], key


def test_a_dead_letter_is_requeued(visit: Visitor, lp: Any) -> None:
    page = visit("#/s/support/finn/outage")
    page.locator(".menu summary").click()
    page.locator(".menu").get_by_role("button", name="Requeue").click()
    page.locator("dialog").get_by_role("button", name="Requeue").click()
    expect(page.locator(".status")).not_to_contain_text("dead")
    assert len(events_of(lp, ("support", "finn", "outage"), "session.requeued")) == 1


# --- graphs and analytics -------------------------------------------------------------------------


def test_a_graph_is_drawn_with_the_path_that_was_taken(look: Visitor) -> None:
    """Every node, the edges that were taken, and the state after a node."""
    page = look("#/s/orders/gwen/books?tab=graph")
    expect(page.locator(".node")).to_have_count(5)
    expect(page.locator(".node.ran")).to_have_count(3)
    expect(page.locator(".edge")).to_have_count(5)
    expect(page.locator(".edge.taken")).to_have_count(3)
    expect(page.locator(".edge").last).to_have_class(re.compile("taken"))  # above the others
    expect(page.locator(".graph")).to_contain_text("price → check → pack")
    page.get_by_role("button", name="Node price").press("Enter")
    expect(page.locator(".node-state")).to_contain_text("total30")
    page.locator(".node-state .link").click()
    expect(page.locator(".place")).to_contain_text("event 8")
    page = look(f"{KETTLE}?tab=graph")
    expect(page.locator(".graph")).to_contain_text("No graph ran here")


def test_a_graph_is_drawn_while_it_runs(visit: Visitor, lp: Any) -> None:
    """The path grows by itself, and the node that was chosen stays chosen."""
    s = lp.create("orders", "gwen", "pens", actor="user:gwen")
    page = visit("#/s/orders/gwen/pens?tab=graph")
    expect(page.locator(".graph")).to_contain_text("No graph ran here")
    s.append("user.message", {"text": "nine pens"})
    lp.wake(s.key, order_graph())
    expect(page.locator(".node.ran")).to_have_count(3)
    page.get_by_role("button", name="Node check").press(" ")
    expect(page.locator(".node-state h2")).to_have_text("check")
    s.append("user.message", {"text": "x"})
    lp.wake(s.key, order_graph())
    expect(page.locator(".graph")).to_contain_text("refuse")
    expect(page.locator(".node-state h2")).to_have_text("check")


def test_a_graph_shows_the_node_that_runs(visit: Visitor, lp: Any) -> None:
    goes_on = threading.Event()

    async def first(_: Seen) -> dict[str, Any]:
        return {"n": 1}

    async def second(_: Seen) -> dict[str, Any]:
        await asyncio.to_thread(goes_on.wait)
        return {"n": 2}

    built = GraphBuilder(Seen).add_node("first", first).add_node("second", second)
    graph = built.add_edge("first", "second").add_edge("second", END).set_entry("first").compile()
    s = lp.create("orders", "gwen", "slow", actor="user:gwen")
    s.append("user.message", {"text": "go"})
    page = visit("#/s/orders/gwen/slow?tab=graph")
    harness = as_harness(graph, initial=lambda _: Seen())
    worker = threading.Thread(target=lp.wake, args=(s.key, harness))
    worker.start()
    try:
        expect(page.locator(".node.current")).to_have_text(re.compile("second"))
        expect(page.locator(".node-state")).to_contain_text("running")
    finally:
        goes_on.set()
        worker.join()
    expect(page.locator(".node.current")).to_have_count(0)
    page.get_by_role("button", name="Node first").press("Enter")
    expect(page.locator(".node-state")).to_contain_text("n1")


def test_a_graph_shows_its_first_node_and_what_it_waits_for(visit: Visitor, lp: Any) -> None:
    """A node that has not ended yet is marked with why: it runs, or waits for an answer."""
    goes_on = threading.Event()

    async def draft(_: Seen) -> dict[str, Any]:
        await asyncio.to_thread(goes_on.wait)
        return {"n": 1}

    async def publish(state: Seen) -> dict[str, Any]:
        await approve("publish it", {"n": state.n})
        return {"n": 2}

    built = GraphBuilder(Seen).add_node("draft", draft).add_node("publish", publish)
    built = built.add_conditional_edge("draft", lambda _: "publish", targets=["publish", END])
    harness = as_harness(
        built.add_edge("publish", END).set_entry("draft").compile(), initial=lambda _: Seen()
    )
    s = lp.create("orders", "gwen", "letter", actor="user:gwen")
    s.append("user.message", {"text": "go"})
    page = visit("#/s/orders/gwen/letter?tab=graph")
    worker = threading.Thread(target=lp.wake, args=(s.key, harness))
    worker.start()
    try:
        expect(page.locator(".node.current")).to_have_text(re.compile("draft"))
        expect(page.locator(".node-state")).to_contain_text("running")
        expect(page.locator(".node-state")).to_contain_text("It has not ended yet.")
    finally:
        goes_on.set()
        worker.join()
    expect(page.locator(".node.current")).to_have_text(re.compile("publish"))
    expect(page.locator(".node-state h2")).to_have_text("publish requires action")
    expect(page.locator(".edge.taken")).to_have_count(1)  # to the node that waits
    heights = [page.locator(".node", has_text=each).bounding_box() for each in ("publish", "END")]
    assert heights[0] is not None
    assert heights[1] is not None
    assert heights[0]["y"] < heights[1]["y"]  # though an edge leads there from the first node too
    page.locator(".waiting").get_by_role("button", name="Allow").click()
    page.locator("dialog").get_by_role("button", name="Allow").click()
    expect(page.locator(".waiting .request")).to_have_count(0)
    lp.wake(s.key, harness)
    expect(page.locator(".node.current")).to_have_count(0)
    expect(page.locator(".edge.taken")).to_have_count(2)


def test_analytics_are_plotted_from_what_was_recorded(look: Visitor) -> None:
    """A column for each window, the newest value in words, and tables of the largest groups."""
    page = look("#/analytics")
    answers: list[Any] = []

    def pass_on(route: Any) -> None:
        # Read here: the browser forgets the body of an answer when its page is loaded anew.
        answers.append(route.fetch().json())
        route.fulfill(json=answers[-1])

    page.route("**/limpet/v1/analytics", pass_on)
    page.reload()
    plots = page.locator("figure.plot")
    plots.first.wait_for()
    folded = answers[-1]
    assert folded["sessions"] == 13
    expect(plots).to_have_count(len(folded["dashboards"]))
    for place, wanted in enumerate(folded["dashboards"]):
        assert len(wanted["points"]) == 48  # hours, also those without an event
        columns = [each for each in wanted["points"] if each["value"]]
        expect(plots.nth(place).locator("rect")).to_have_count(len(columns))
        expect(plots.nth(place).locator("figcaption span")).to_have_text(
            wanted["points"][-1]["shown"]
        )
        if columns:
            right = plots.nth(place).locator("rect").last.evaluate("each => each.x.baseVal.value")
            assert right > 500  # of 560: the newest hours are at the right
            most = max(columns, key=lambda each: each["value"])
            expect(plots.nth(place).locator("small")).to_contain_text(f"most {most['shown']}")
        assert plots.nth(place).locator("svg").get_attribute("aria-label")
    assert sum(each["value"] for each in folded["dashboards"][0]["points"]) == 6  # turns
    titles = ["Users", "Task types", "Agent versions", "Tools"]
    expect(page.locator("main h2")).to_have_text(titles)
    expect(page.locator("table").first.locator("tbody tr").first).to_contain_text("ada")
    expect(page.locator("table").last).to_contain_text("find_order")
    assert page.locator("table img, table script").count() == 0


def test_analytics_of_a_server_are_live(browser: Browser, store: Path, lp: Any) -> None:
    """`limpet serve --analytics` folds while it serves, and the page reads on by itself."""
    with served_by(store, "--dev", "--analytics", str(store.with_name("folded.db"))) as url:
        page = browser.new_page()
        page.clock.install()
        page.goto(f"{url}/studio#/analytics")
        turns = page.locator("figure.plot").first.locator("figcaption span")
        expect(turns).to_have_text(re.compile("[0-6]"))
        s = lp.create("support", "ada", "again", actor="user:ada")
        s.append("user.message", {"text": "hi"})
        s.append("agent.message", {"text": "ho"}, actor="agent:main")
        for _ in range(30):  # the fold is a moment behind the commit
            with page.expect_response("**/limpet/v1/analytics") as answer:
                page.clock.fast_forward(11_000)
            if answer.value.json()["sessions"] == 14:
                break
        expect(page.locator(".lead")).to_contain_text("Sessions: 14.")
        row = page.locator("table").first.locator("tbody tr").first
        expect(row.locator("td").nth(1)).to_have_text("4")
        page.evaluate("document.querySelector('.plots').dataset.same = 1")
        with page.expect_response("**/limpet/v1/analytics"):
            page.clock.fast_forward(11_000)
        page.evaluate("() => new Promise((done) => setTimeout(done))")
        expect(page.locator(".plots[data-same]")).to_be_visible()  # nothing was new
        page.close()


def test_what_to_look_at_comes_first_with_its_sessions(visit: Visitor, lp: Any) -> None:
    """An anomaly leads to the session behind it; advice says what to change."""
    for number in range(36):
        s = lp.create("support", "kim", f"s{number}", actor="user:kim")
        cost = 90.0 if number == 35 else 0.01
        call = {"request_id": "r1", "name": "search", "input": {}}
        failed = {"request_id": "r1", "output": "timeout", "is_error": True}
        said = {"text": "Sorry.", "usage": {"input": 900, "output": 80}, "cost": cost}
        drafts = [("user.message", {"text": "My order?"}), ("agent.tool_use", call)]
        drafts += [("agent.tool_result", failed), ("agent.message", said)]
        s.append_many(
            [limpet.Draft(type=type, data=data, actor="agent:a") for type, data in drafts]
        )
    page = visit("#/analytics")
    expect(page.locator(".finding.bad", has_text="Cost was 90")).to_be_visible()
    expect(page.locator(".finding:not(.bad)")).to_contain_text("Error rate of search is 1")
    page.locator(".finding.bad", has_text="Cost was 90").get_by_role("link").click()
    expect(page.get_by_role("heading", name="s35")).to_be_visible()


DASHBOARDS = (
    "turns",
    "peak concurrency",
    "p99 turn latency",
    "error rate",
    "completed tasks",
    "cost per hour, $",
)


def test_every_dashboard_shows_what_was_measured(visit: Visitor, lp: Any) -> None:
    """Six plots and five tables, of two versions of an agent whose figures are known."""
    for version, cost in ((1, 0.25), (2, 0.75)):
        lp.agents.put("helper", {"system": f"{version}"}, actor="user:kim")
        for number in range(6):
            id, labels = f"{version}-{number}", {"task_type": "refund"}
            s = lp.create("support", "kim", id, actor="user:kim", labels=labels, agent="helper")
            call = {"request_id": "r1", "name": "<b>search</b>", "input": {}}
            failed = {"request_id": "r1", "output": "timeout", "is_error": number % 2 == 0}
            said = {"text": "Done.", "usage": {"input": 900, "output": 80}, "cost": cost + number}
            drafts = [("user.message", {"text": "My order?"}), ("agent.tool_use", call)]
            drafts += [("agent.tool_result", failed), ("agent.message", said)]
            s.append_many([limpet.Draft(type=t, data=d, actor="agent:a") for t, d in drafts])
    page = visit("#/analytics")
    plots = page.locator("figure.plot")
    expect(page.locator(".lead")).to_have_text("Sessions: 25.")
    expect(page.locator("figure.plot b")).to_have_text(list(DASHBOARDS))
    now = dict(zip(DASHBOARDS, page.locator("figcaption span").all_inner_texts(), strict=True))
    assert int(now["turns"]) >= 12
    assert int(now["peak concurrency"]) >= 12
    assert now["p99 turn latency"].endswith(("s", "ms"))
    assert 0 < float(now["error rate"].rstrip("%")) < 100
    assert now["completed tasks"].endswith("%")
    assert float(now["cost per hour, $"]) > 30
    for place, title in enumerate(DASHBOARDS):
        plot = plots.nth(place)
        named = plot.get_by_role("img", name=f"{title}, now {now[title]}")
        expect(named).to_be_visible()
        # Each column says its hour and its value when it is pointed at.
        column = plot.locator("rect title").last
        assert re.fullmatch(r".*\d\d:00:00: .+", column.text_content() or ""), title
    titles = page.locator("main h2").all_inner_texts()
    assert titles[:4] == ["Users", "Task types", "Agent versions", "Tools"]
    assert titles[4].startswith("Drift from helper@1 to helper@2")
    rows = page.locator("table tbody tr")
    expect(rows.filter(has_text="kim").locator("td").nth(1)).to_have_text("12")
    expect(rows.filter(has_text="refund").locator("td").nth(1)).to_have_text("12")
    for version in ("helper@1", "helper@2"):
        row = page.locator("table").nth(2).locator("tbody tr", has_text=version)
        expect(row.locator("td").nth(1)).to_have_text("6")
    expect(page.locator("table").nth(3)).to_contain_text("<b>search</b>")
    expect(page.locator("table").nth(4).locator("th")).to_have_text(
        ["metric", "before", "after", "difference", "95 %"]
    )
    assert page.locator("table").nth(4).locator("tbody tr").count() > 0


def test_analytics_say_when_there_is_nothing_or_more_to_come(look: Visitor) -> None:
    """Of an empty store; of events that are still being read; after an error, and by which key."""
    page = look("#/inbox")
    empty = {"sessions": 0, "complete": False, "notes": [], "tables": []}
    plot = {"title": "turns", "unit": "", "points": []}
    zero = {**plot, "points": [{"name": "2026-01-01T00:00:00Z", "value": None, "shown": "–"}] * 3}
    answers = [{**empty, "dashboards": [plot, zero]}, {**empty, "complete": True, "dashboards": []}]
    page.route("**/limpet/v1/analytics", lambda route: route.fulfill(json=answers[0]))
    page.goto(page.url.split("#")[0] + "#/analytics")
    expect(page.locator(".lead")).to_have_text("Sessions: 0. Older events are being read…")
    expect(page.locator("figure.plot").first).to_contain_text("nothing yet")
    expect(page.locator("figure.plot").nth(1).locator("figcaption span")).to_have_text("–")
    expect(page.locator("figure.plot rect")).to_have_count(0)
    answers.pop(0)
    expect(page.locator(".lead")).to_have_text("Sessions: 0.")
    page.unroute("**/limpet/v1/analytics")
    denied = {"error": {"type": "permission_error", "message": "Ask for a key of the whole app."}}
    page.route("**/limpet/v1/analytics", lambda route: route.fulfill(status=403, json=denied))
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("Your key does not allow this")
    expect(page.get_by_role("alert")).to_contain_text("Ask for a key of the whole app.")
    page.unroute("**/limpet/v1/analytics")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("figure.plot")).to_have_count(6)


def test_without_analytics_the_page_says_what_to_do(browser: Browser, store: Path) -> None:
    with served_by(store, "--dev") as url:
        page = browser.new_page()
        page.goto(f"{url}/studio#/analytics")
        expect(page.locator(".empty")).to_contain_text("limpet serve STORE --analytics")
        page.close()


# --- people ---------------------------------------------------------------------------------------


def test_everything_works_by_the_keyboard(look: Visitor) -> None:
    """Keys lead to pages, events and moments; the focus is in a dialog until it closes."""
    page = look()
    page.keyboard.press("g")
    page.keyboard.press("i")
    expect(page.get_by_role("heading", name="Inbox")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("f")
    expect(page.get_by_role("heading", name="Fleet")).to_be_visible()
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_contain_text("next and previous event")
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    page = look(KETTLE)
    page.keyboard.press("k")
    expect(page.locator(".rows .selected")).to_have_count(1)
    page.keyboard.press("/")
    expect(page.get_by_label("Search in this session")).to_be_focused()
    page.keyboard.press("Escape")
    page.get_by_role("tab", name="Trace").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="State")).to_have_attribute("aria-selected", "true")


def test_the_focus_is_never_lost(look: Visitor) -> None:
    """The link to the content leads there; a dialog gives the focus back; Escape closes a menu."""
    page = look(f"{KETTLE}?tab=state")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    expect(page.get_by_role("heading", name="kettle")).to_be_visible()
    page.get_by_role("button", name="Bisect").press("Enter")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Bisect")).to_be_focused()
    menu = page.locator(".menu summary")
    menu.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("dialog")).to_contain_text("Interrupt kettle?")
    page.keyboard.press("Escape")
    expect(menu).to_be_focused()
    menu.press("Enter")
    page.keyboard.press("Escape")
    expect(page.locator(".menu button").first).to_be_hidden()
    expect(page.locator("nav.main [aria-current=page]")).to_have_count(0)
    page.get_by_role("link", name="Inbox").press("Enter")
    expect(page.locator("nav.main [aria-current=page]")).to_contain_text("Inbox")


def test_what_is_typed_into_a_field_is_no_command(look: Visitor) -> None:
    page = look()
    field = page.locator("input[name=user]")
    field.press_sequentially("gi?t/")
    expect(field).to_have_value("gi?t/")
    expect(page.get_by_role("heading", name="Fleet")).to_be_visible()
    expect(page.locator("dialog")).to_have_count(0)


def test_a_page_that_comes_late_does_not_replace_a_newer_one(look: Visitor) -> None:
    """Whoever has gone on stays where they are."""
    page = look()
    held: list[Any] = []
    page.route("**/sessions/sesn_.a2V0dGxl?*", lambda route: held.append(route))
    with page.expect_request("**/sessions/sesn_.a2V0dGxl?*"):
        page.evaluate(f"location.hash = '{KETTLE}'")
    page.evaluate("location.hash = '#/inbox'")
    expect(page.get_by_role("heading", name="Inbox")).to_be_visible()
    with page.expect_response("**/sessions/sesn_.a2V0dGxl/events?*"):
        held[0].continue_()
    page.evaluate("() => new Promise((done) => setTimeout(done))")
    expect(page.get_by_role("heading", name="Inbox")).to_be_visible()


# Colors do not depend on the width, nor the layout on the colors.
@pytest.mark.deeper
@pytest.mark.parametrize(
    ("width", "scheme"),
    tries(
        [(1280, "light"), (390, "dark")],
        [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")],
    ),
)
def test_pages_are_accessible_and_fit(look: Visitor, width: int, scheme: str) -> None:
    """axe finds nothing wrong, and nothing is wider than the window."""
    how = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}}
    for place in ACCESSIBLE:
        page = look(place, **how)
        assert barriers(page) == [], place
        assert page.evaluate("document.documentElement.scrollWidth") <= width, place


def barriers(page: Page) -> list[Any]:
    """What axe has found wrong in a page, and where."""
    return [
        (each["id"], [node["target"] for node in each["nodes"]][:3])
        for each in Axe().run(page).response["violations"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_opens_on_a_page_is_accessible_too(look: Visitor, scheme: str) -> None:
    """The whole log with an open event, the menu, each kind of dialog, the sign-in."""
    page = look(f"{KETTLE}?tab=state", color_scheme=scheme)
    expect(page.locator("div.state")).to_contain_text("mood")
    page.get_by_role("button", name="Everything").click()
    page.locator(".entry summary").last.click()
    page.locator("div.state").get_by_role("button", name="mood").click()
    expect(page.locator(".blame li")).to_have_count(3)
    assert barriers(page) == []
    page.locator(".menu summary").click()
    assert barriers(page) == []
    page.locator(".menu").get_by_role("button", name="Suspend").click()
    assert barriers(page) == []
    page.keyboard.press("Escape")
    for name in ("Edit and fork", "Bisect", "Rewind to here"):
        page.get_by_role("button", name=name).click()
        assert barriers(page) == [], name
        page.keyboard.press("Escape")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key")).to_be_focused()
    assert barriers(page) == []


def test_a_phone_has_room_for_what_matters(look: Visitor) -> None:
    """The slider takes the whole width, and the answers to a request are in view without a scroll
    of their own."""
    how = {"viewport": {"width": 390, "height": 800}}
    page = look(KETTLE, **how)
    expect(page.locator(".place")).to_have_text("now, event 45")
    places = [page.locator(each).bounding_box() for each in (".track", ".columns")]
    assert places[0] is not None
    assert places[0]["width"] > 350
    page.get_by_label("Moment in the history").fill("29")
    expect(page.get_by_role("button", name="Back to now")).to_be_visible()
    assert [page.locator(each).bounding_box() for each in (".track", ".columns")] == places
    page = look("#/s/support/dan/payment", **how)
    for name in ("It happened", "Run again", "Give up"):
        expect(page.locator(".waiting").get_by_role("button", name=name)).to_be_in_viewport(ratio=1)
    expect(page.locator(".waiting .input")).to_contain_text("input")


def test_light_and_dark_can_be_chosen(visit: Visitor) -> None:
    page = visit()
    page.keyboard.press("t")
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    page.reload()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"


def test_what_is_missing_says_the_next_step(look: Visitor) -> None:
    for place in ("#/s/support/nobody/nothing", "#/compare/support/ada/kettle/none", "#/s/a/b/%"):
        page = look(place)
        expect(page.get_by_role("alert")).to_contain_text("Look for it in the fleet")


# --- hostile sessions, bad networks ---------------------------------------------------------------


def test_texts_of_a_session_are_never_markup(look: Visitor) -> None:
    """Markup, scripts, controls, marks of direction and endless words are shown as text."""
    import urllib.parse

    place = f"#/s/lab/mallory/{urllib.parse.quote(HOSTILE[0][:60], safe='')}"
    page = look(f"{place}?tab=state")
    expect(page.locator(".message").first).to_contain_text(HOSTILE[0])
    log = page.locator(".rows")
    expect(log).to_contain_text("⟦U+202E⟧evil.exe⟦U+202C⟧")
    expect(log).to_contain_text("⟦U+001B⟧[31mred")
    assert (
        page.locator(".rows img, .rows script, .rows svg, .state img, .state script").count() == 0
    )
    assert page.evaluate("document.body.innerText.length") < 60_000  # the word was cut
    page.get_by_role("button", name="Show all").click()
    expect(page.get_by_role("button", name="Show more of 1.0 MB")).to_be_visible()
    expect(page.locator("div.state")).to_contain_text("<i>name</i>")
    page.get_by_role("button", name="Everything").click()
    page.locator(".entry summary").last.click()
    for other in (None, "#/fleet", "#/inbox"):
        page = page if other is None else look(other)
        assert page.evaluate("window.hacked") is None
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_the_page_asks_nobody_else_and_forbids_inline_scripts(look: Visitor) -> None:
    """Every request goes to the server of the page; its policy is strict, and is kept."""
    page = look()
    asked: list[str] = []
    page.context.on("request", lambda each: asked.append(each.url))
    answer = page.request.get(page.url.split("#")[0])
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    told: list[str] = []
    page.on("console", lambda message: told.append(message.text))
    for place in ("#/fleet", "#/inbox", KETTLE, "#/s/orders/gwen/books?tab=graph"):
        page.goto(page.url.split("#")[0] + place)
        page.reload()
        page.locator("main:not([aria-busy]) h1").first.wait_for()
    origin = page.evaluate("location.origin")
    assert asked
    assert [each for each in asked if not each.startswith(origin)] == []
    assert [each for each in told if "Content Security" in each or "Refused" in each] == []


def test_a_lost_connection_comes_back_and_misses_nothing(visit: Visitor, lp: Any) -> None:
    """While the network is away the page says so; what was recorded meanwhile is then shown."""
    s = lp.create("support", "ada", "away", actor="user:ada")
    page = visit("#/s/support/ada/away")
    s.append("user.message", {"text": "before"})
    expect(page.locator(".message")).to_have_count(1)
    cut = page.context.new_cdp_session(page)
    cut.send("Network.enable")
    far = {"latency": 400, "downloadThroughput": 40_000, "uploadThroughput": 40_000}
    cut.send("Network.emulateNetworkConditions", {"offline": False, **far})
    s.append("user.message", {"text": "slowly"})
    expect(page.locator(".message")).to_have_count(2)
    page.reload()
    expect(page.locator(".message")).to_have_count(2)
    cut.send("Network.emulateNetworkConditions", {"offline": True, **far})
    s.append("user.message", {"text": "meanwhile"})
    page.get_by_label("Message").fill("never lost")
    page.keyboard.press("Enter")
    expect(page.locator(".toast.bad")).to_be_visible()
    expect(page.get_by_label("Message")).to_have_value("never lost")
    cut.send("Network.emulateNetworkConditions", {"offline": False, **far})
    expect(page.locator(".message", has_text="meanwhile")).to_have_count(1)


def test_a_tab_that_nobody_looks_at_has_no_stream(visit: Visitor, lp: Any) -> None:
    """It takes one of a browser's six connections; back in front, nothing was missed."""
    s = lp.create("support", "ada", "away", actor="user:ada")
    page = visit("#/inbox")
    streams: list[str] = []
    page.on("request", lambda each: streams.append(each.url))
    away = "Object.defineProperty(document, 'hidden', { configurable: true, value: %s });"
    away += "document.dispatchEvent(new Event('visibilitychange'));"
    with page.expect_request("**/events/stream*"):
        page.goto(page.url.split("#")[0] + "#/s/support/ada/away")
    expect(page.locator("#connection")).to_have_text("live")
    s.append("user.message", {"text": "before"})
    expect(page.locator(".message")).to_have_count(1)
    page.evaluate(away % "true")
    expect(page.locator("#connection")).to_have_text("reconnecting…")
    s.append("user.message", {"text": "meanwhile"})
    page.wait_for_timeout(1_000)  # in which it would connect again
    assert page.locator(".message").count() == 1
    page.evaluate(away % "false")
    expect(page.locator(".message", has_text="meanwhile")).to_have_count(1)
    assert len([each for each in streams if "sesn_" in each and "/events/stream" in each]) == 2


# --- signing in -----------------------------------------------------------------------------------


def test_a_link_works_once(browser: Browser, store: Path) -> None:
    """The token is exchanged for a key; whoever comes with it again is refused."""
    with studio_of(store) as (link, _):
        page = browser.new_page()
        page.goto(link)
        expect(page.get_by_role("heading", name="Fleet")).to_be_visible()
        assert "token" not in page.url
        other = browser.new_context().new_page()
        other.goto(link)
        expect(other.get_by_role("alert")).to_contain_text("this link was used already")
        page.close()
        other.close()


def test_keys_sign_in_and_roles_see_their_buttons_only(browser: Browser, store: Path) -> None:
    """With a viewer's key nothing can be changed, on the page or by its requests."""
    keys = {}
    for role in ("viewer", "owner"):
        command = [*RUN, "access", "create", str(store), "--app", "support", "--user", "ada"]
        keys[role] = subprocess.check_output([*command, "--role", role], text=True).split()[0]
    with served_by(store) as url:
        context = browser.new_context()
        context.set_default_timeout(SECONDS)
        page = context.new_page()
        page.goto(f"{url}/studio{KETTLE}?tab=state")
        page.get_by_label("API key").fill("lk_wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("not accepted")
        page.get_by_label("API key").fill(keys["viewer"])
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("#me")).to_have_text("user:ada · viewer")
        expect(page.locator("div.state")).to_contain_text("moodhappy")
        expect(page.locator(".composer")).to_have_count(0)
        expect(page.locator(".menu")).to_be_hidden()
        for name in ("Fork here", "Rewind to here", "Checkpoint", "Restore"):
            expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
        refused = page.evaluate(
            """async (key) => (await fetch(
                "/limpet/v1/sessions/sesn_.a2V0dGxl/rewind?app=support&user=ada",
                { method: "POST", headers: { authorization: `Bearer ${key}` }, body: '{"to": 9}' }
            )).status""",
            keys["viewer"],
        )
        assert refused == 403
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("API key").fill(keys["owner"])
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("#me")).to_have_text("user:ada · owner")
        page.goto(f"{url}/studio{KETTLE}?tab=state")
        expect(page.get_by_role("button", name="Rewind to here")).to_be_visible()
        context.close()


def test_an_auditor_sees_which_sessions_there_are(browser: Browser, store: Path) -> None:
    """Rows that lead nowhere are not links, and there is no inbox."""
    command = [*RUN, "access", "create", str(store), "--app", "support", "--role", "auditor"]
    key = subprocess.check_output(command, text=True).split()[0]
    with served_by(store) as url:
        page = browser.new_page()
        page.goto(f"{url}/studio")
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator(".sessions tbody tr", has_text="kettle").first).to_be_visible()
        expect(page.locator(".sessions tbody").get_by_role("link")).to_have_count(0)
        expect(page.get_by_role("link", name="Inbox")).to_be_hidden()
        page.close()


def test_a_key_that_was_revoked_leads_to_the_sign_in(visit: Visitor) -> None:
    page = visit()
    page.route("**/limpet/v1/inbox*", lambda route: route.fulfill(status=401, json={}))
    page.get_by_role("link", name="Inbox").click()
    expect(page.get_by_role("alert")).to_contain_text("You were signed out")
    expect(page.get_by_label("API key")).to_be_focused()
    assert page.evaluate("localStorage.length + sessionStorage.length") == 0


def test_a_server_is_looked_at_by_its_url(browser: Browser, store: Path) -> None:
    """`limpet studio URL` shows the store of a server, as whoever its key is."""
    command = [*RUN, "access", "create", str(store), "--app", "support", "--user", "ada"]
    command += ["--role", "viewer"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    with served_by(store) as url, studio_of(url, "--token", done.stdout.split()[0]) as (link, _):
        page = browser.new_page()
        page.goto(link)
        expect(page.locator("#me")).to_contain_text("viewer")
        page.goto(link.split("#")[0] + KETTLE)
        expect(page.locator(".rows")).to_contain_text("My order 7 arrived broken.")
        expect(page.locator(".composer")).to_have_count(0)
        page.close()


# --- size -----------------------------------------------------------------------------------------


def test_a_long_session_is_a_window(visit: Visitor, lp: Any) -> None:
    """Some hundred rows are in the page however far one scrolls; the first read is one page."""
    s = lp.create("lab", "max", "long", actor="user:max")
    for start in range(0, 3_000, 500):
        texts = [{"text": f"n{start + n}"} for n in range(500)]
        s.append_many([limpet.Draft(type="user.message", data=each) for each in texts])
    asked: list[str] = []
    page = visit()
    page.on("request", lambda each: asked.append(each.url))
    page.goto(page.url.split("#")[0] + "#/s/lab/max/long")
    expect(page.locator(".message").last).to_contain_text("n2999")
    expect(page.get_by_label("Moment in the history")).to_have_value("3001")  # its end
    assert len([each for each in asked if "/events?" in each]) == 1
    scroll = page.locator(".scroll")
    for _ in range(60):
        scroll.evaluate("each => { each.scrollTop = 0; }")
        scroll.evaluate("() => new Promise((done) => setTimeout(done, 20))")
    assert page.locator("[data-row]").count() <= 460
    page.get_by_label("Moment in the history").fill("100")
    expect(page.locator(".rows .selected")).to_contain_text("n98")
    page.get_by_role("button", name="Back to now").click()
    expect(page.locator(".message").last).to_contain_text("n2999")
