"""The first ten minutes of five people, each with the page that the README sends them to.

They type what the page says: a chat agent, a graph of LangGraph, a stuck session, a security review
and a data analysis.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import limpet
from tests.acceptance.test_examples import ROOT, blocks, python, studied, titled
from tests.support import venvs
from tests.support.command import answer, run, run_terminal

# An operator's night: one process, whose clock is an hour slow, leaves five sessions stuck and dies
# in the middle of an effect. Its leases have ended by the clock of everybody else.
NIGHT = """
import asyncio, time
from pathlib import Path

import limpet
import my_agent
from limpet.store.clock import Clock
from limpet.store.sqlite.store import SQLiteStore


def slow():
    return time.time_ns() - 3_600 * 1_000_000_000


async def main():
    store = await SQLiteStore.open(Path("support.db"), clock=Clock(slow, time.monotonic_ns))
    async with limpet.Limpet("sqlite://", store=store) as lp:
        for name in ("approval", "dead", "suspended", "lease", "effect"):
            s = await lp.create("support", "ada", name)
            await s.append("user.message", {"text": name}, actor="user:ada")
        await lp.session("support", "ada", "suspended").suspend("on holiday", actor="user:boss")
        for name in ("approval", "dead"):
            await lp.wake(("support", "ada", name), my_agent.agent, retries=0)
        await lp.work.claim("host-7", app="support", lease_seconds=30)  # lease, the oldest input
        my_agent.DEADLY = True
        await lp.wake(("support", "ada", "effect"), my_agent.agent)


asyncio.run(main())
"""
AGENT = """
import os, signal
from pathlib import Path

import limpet

DEADLY = False


@limpet.tool(permission="always_ask")
def refund(order: int, idempotency_key: str) -> str:
    return f"refunded {order}"


@limpet.tool()
def charge(order: int, idempotency_key: str) -> str:
    if DEADLY:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"charged {order} again"


def model(request):
    last = request.messages[-1]
    if last["role"] != "user":
        return limpet.Reply(f"Done: {last['content']}.")
    if last["content"] == "dead" and not Path("repaired").exists():
        raise RuntimeError("the model is down")
    tool = {"approval": "refund", "effect": "charge"}.get(last["content"])
    if tool is None:
        return limpet.Reply("Hello.")
    return limpet.Reply(tool_calls=(limpet.ToolCall("c1", tool, {"order": 7}),))


agent = limpet.Agent(model, [refund, charge])
"""
READ_BACK = """
import asyncio

import duckdb
import limpet


async def main():
    async with limpet.open("sqlite:///desk.db") as lp:
        async with limpet.Analytics(lp, "sqlite:///own.db") as an:
            await an.run(once=True)
            await an.export("sessions.parquet")


asyncio.run(main())
print(duckdb.sql("SELECT count(*), count(rating) FROM 'sessions.parquet'").fetchall())
"""


class Reader:
    """Someone who types lines of a page, in a folder of their own."""

    def __init__(self, page: str, folder: Path) -> None:
        self.page, self.folder = (ROOT / page).read_text(), folder

    def types(self, line: str, **filled_in: str) -> str:
        """Run a line of the page; what it prints. Names in capitals are filled in."""
        assert line in self.page, f"the page does not say {line!r}"
        for name, value in filled_in.items():
            line = line.replace(name, value)
        typed, _, file = line.partition(" > ")
        if typed.startswith("limpet "):
            done: Any = run(self.folder, *shlex.split(typed)[1:])
        else:
            path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
            done = subprocess.run(
                ["sh", "-c", typed],
                cwd=self.folder,
                env={**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        assert done.returncode == 0, done.stderr
        if file:
            (self.folder / file).write_text(done.stdout)
        return str(done.stdout)


@pytest.fixture(autouse=True)
def _modules() -> Iterator[None]:
    """Agents of a folder are imported by their bare names: they are forgotten afterwards."""
    before, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in {"my_agent", "better", "support_agent"} - before:
        sys.modules.pop(name, None)


def environment(name: str) -> Path:
    try:
        return venvs.python_of(name)
    except venvs.NotInstalled as error:
        pytest.skip(f"not tested here: {error}")


def in_environment(name: str, folder: Path, program: str) -> str:
    ran = subprocess.run(
        [str(environment(name)), "-c", program],
        cwd=folder,
        env=venvs.environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_readme_leads_to_the_five_pages() -> None:
    """Each with its section, and the first line of it installs the command."""
    readme = (ROOT / "README.md").read_text()
    for link in (
        "docs/agent.md",
        "docs/coming-from/langgraph.md",
        "docs/cli.md#a-session-is-stuck",
        "docs/security.md#a-review-in-ten-minutes",
        "docs/analytics.md#from-a-shell",
    ):
        assert f"({link})" in readme
        page, _, section = link.partition("#")
        headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
        assert not section or section in [each.lower().replace(" ", "-") for each in headings]
    assert "pip install '.[cli]'" in readme


def test_a_chat_agent_asks_and_goes_on_from_a_shell(tmp_path: Path) -> None:
    """docs/agent.md: its agent, run by `limpet work`; the inbox prints the command that answers."""
    (tmp_path / "support_agent.py").write_text(titled("docs/agent.md", "support_agent.py"))
    work = ("work", "support.db", "--harness", "support_agent:agent", "--app", "support")
    assert " ".join(["limpet", *work]) in " ".join((ROOT / "docs/agent.md").read_text().split())
    reader = Reader("docs/agent.md", tmp_path)
    assert run(tmp_path, "create", "support.db", "support/ada/chat").returncode == 0
    run(tmp_path, "send", "support.db", "support/ada/chat", "Order 7 arrived broken.")
    assert run(tmp_path, *work, "--stop-when-idle").returncode == 0
    assert "refund" in reader.types("limpet inbox support.db")
    (waiting,) = answer(tmp_path, "inbox", "support.db")[1]["waiting"]
    code, shown = run_terminal(tmp_path, "inbox", "support.db")
    assert (code, waiting["command"] in shown) == (0, True)  # unbroken, to be copied
    assert run(tmp_path, *shlex.split(waiting["command"])[1:]).returncode == 0
    assert run(tmp_path, *work, "--stop-when-idle").returncode == 0
    said = reader.types("limpet transcript support.db support/ada/chat")
    assert "Done: 40.00 euros are on their way" in " ".join(said.split())


async def test_a_first_agent_of_ones_own_is_led_to_what_works(tmp_path: Path) -> None:
    """A file in place of a URL, an event of nobody; then a plain function as a tool, and a text as
    the reply of a model."""
    with pytest.raises(limpet.errors.InvalidURL, match=r"Write sqlite:///chat\.db for"):
        await limpet.open("chat.db").__aenter__()

    def weather(city):  # type: ignore[no-untyped-def]  # as somebody first writes it
        """Tell the weather."""
        return f"sunny in {city}"

    def model(request: limpet.ModelRequest) -> limpet.Reply | str:
        if request.messages[-1]["role"] == "user":
            return limpet.Reply(tool_calls=(limpet.ToolCall("1", "weather", {"city": "Paris"}),))
        return f"It is {request.messages[-1]['content']}"

    async with limpet.open(f"sqlite:///{tmp_path}/chat.db") as lp:
        s = await lp.get_or_create("chat", "ada", "c1")
        with pytest.raises(limpet.errors.ActorMissing, match="Pass actor='user:ada'"):
            await s.append("user.message", {"text": "Weather in Paris?"})
        await s.append("user.message", {"text": "Weather in Paris?"}, actor="user:ada")
        await limpet.Worker(lp, limpet.Agent(model, [weather]), app="chat", idle_exit=True).run()
        assert [message.text for message in await s.messages()][-1] == "It is sunny in Paris"


def test_a_graph_of_langgraph_is_read_without_it(tmp_path: Path) -> None:
    """docs/coming-from/langgraph.md: the program after the change, and its thread from a shell."""
    page = "docs/coming-from/langgraph.md"
    (shown,) = [block.text for block in blocks(page) if block.language == "text"]
    assert in_environment("langgraph", tmp_path, titled(page, "after.py")) == shown
    reader = Reader(page, tmp_path)
    assert "langgraph/threads/ada" in reader.types("limpet list chat.db")
    said = reader.types("limpet transcript chat.db langgraph/threads/ada")
    assert re.findall(r"^  (.+)$", said, re.M) == [
        "Hello",
        "message 1",
        "Still there?",
        "message 3",
    ]
    assert "nothing is wrong" in reader.types("limpet verify chat.db")


def test_an_operator_finds_settles_and_continues_stuck_sessions(tmp_path: Path) -> None:
    """docs/cli.md: an approval, an unknown effect, a dead letter, a suspension, an ended lease."""
    (tmp_path / "my_agent.py").write_text(AGENT)
    (tmp_path / "night.py").write_text(NIGHT)
    assert python("night.py", cwd=tmp_path).returncode < 0
    (tmp_path / "repaired").touch()
    # The lease of the dead process has ended: the next worker finds that an effect is unknown.
    wake = ("wake", "support.db", "support/ada/effect", "--harness", "my_agent:agent")
    assert "requires_action" in run(tmp_path, *wake).stdout
    _, status = answer(tmp_path, "status", "support.db")
    states = {each["session"]["id"]: (each["state"], each["needs"]) for each in status["shown"]}
    assert {name: state for name, (state, _) in states.items()} == {
        "approval": "blocked",
        "effect": "blocked",
        "dead": "dead",
        "suspended": "suspended",
        "lease": "due",
    }
    assert states["suspended"][1] == ["suspended by user:boss: on holiday"]
    assert "the model is down" in states["dead"][1][0]
    reader = Reader("docs/cli.md", tmp_path)
    shown = reader.types("limpet status support.db")
    assert re.search(r"lease of host-7 .* ended", shown)
    assert re.search(r"unknown_effect charge .*idempotency key \w{32}", shown)
    assert ", 1 dead, 1 suspended." in shown
    tried = run(tmp_path, "trace", "support.db", "support/ada/dead").stdout
    assert 'raise RuntimeError("the model is down")' in tried
    assert tried.startswith("wake  +0.0 ms")  # not "wake wake"
    died = run(tmp_path, "trace", "support.db", "support/ada/effect").stdout
    assert "woken by the death of its worker" in died
    never = run(tmp_path, "trace", "support.db", "support/ada/lease")
    assert "limpet status says what it waits for" in never.stderr
    none = run(tmp_path, "children", "support.db", "support/ada/effect").stdout
    assert "no session was delegated from it" in none
    reader.types("limpet confirm support.db support/ada/approval --allow")
    settled = reader.types(
        """limpet resolve support.db support/ada/effect --happened '"charged 7"' --yes"""
    )
    assert settled.startswith("decided: record the result of the effect 'charge'")
    reader.types("limpet requeue support.db support/ada/dead")
    reader.types("limpet resume support.db support/ada/suspended")
    _, status = answer(tmp_path, "status", "support.db")
    assert {each["state"] for each in status["shown"]} == {"due"}
    reader.types("limpet work support.db --harness my_agent:agent --stop-when-idle")
    assert "0 with pending input, 0 due" in reader.types("limpet status support.db")
    said = run(tmp_path, "transcript", "support.db", "support/ada/effect").stdout
    assert said.count('"charged 7"') == 2  # the decision, and the result: not charged again
    assert "Done: charged 7." in said
    assert "request_id" not in said  # the decision is shown once, as people read it
    keys = studied(["studio", "support.db"], tmp_path)
    assert keys == {f"support/ada/{name}" for name in states}


def test_a_security_review_sees_each_claim_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/security.md: sealed bodies, a denial, a receipt checked offline, an erasure."""
    pytest.importorskip("cryptography")
    page = "docs/security.md"
    reader = Reader(page, tmp_path)
    (tmp_path / "review.py").write_text(titled(page, "review.py"))
    (script,) = [b.text for b in blocks(page) if b.language == "sh" and "review.py" in b.text]
    monkeypatch.setenv("LIMPET_KEYS", f"file://{tmp_path}/masters.txt")
    lines = [line for line in script.splitlines() if not line.startswith("export")]
    said = {line: reader.types(line) for line in lines}
    assert "access_denied" in said["python review.py"]
    assert said["grep -c 4711-0815 safe.db || true"] == "0\n"
    denied = said["limpet audit safe.db --denied"]
    assert re.search(r"user:eve +read +access_denied +support/ada/c1", denied)
    receipt = said["python receipt_check.py receipt.json --public-key store.pem"]
    assert receipt.startswith("valid: ")
    assert "has event 2 user.message by user:ada" in receipt
    certificate = said[next(line for line in lines if " certificate.json --public" in line)]
    assert re.match(r"valid: a user was erased .*: 1 session, 2 events, 0 names", certificate)
    backup = said[next(line for line in lines if line.startswith("limpet log before.db"))]
    assert backup.count("does not open") == 2
    assert "4711-0815" not in backup
    assert "support/ada" not in said["limpet audit safe.db"]


def test_an_analyst_reports_replays_and_exports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/analytics.md: the report, a failing session forked for another agent, Parquet."""
    page = "docs/analytics.md"
    reader = Reader(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "better.py").write_text(titled(page, "better.py"))
    program = "\n".join([block.text for block in blocks(page) if block.language == "python"])
    ran = python("-c", program, cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    report = reader.types("limpet report desk.db --analytics analytics.db")
    odd = r"Cost was 90 where 0.01 was expected, .* support/mallory/[\w-]+"
    assert re.search(odd, " ".join(report.split()))
    assert re.search(r"Tokens were 0 where \d+ were expected", " ".join(report.split()))
    assert "Error rate of search is 1" in report
    assert not re.search(r"\de-\d\d\b", report)
    reader.types("limpet report desk.db --analytics analytics.db --html report.html")
    html = (tmp_path / "report.html").read_text()
    assert "<script" not in html
    assert "1 sessions" not in html
    reader.types("limpet report desk.db --analytics analytics.db --failing --save set.json")
    first = json.loads((tmp_path / "set.json").read_text())["sessions"][0]
    assert first["at"] == 1
    named = f"{first['app']}/{first['user']}/{first['id']}"
    reader.types("limpet metrics desk.db SESSION", SESSION=named)
    reader.types("limpet fork desk.db SESSION --at 1 --new-id again", SESSION=named)
    user = {"USER": first["user"]}
    reader.types('limpet send desk.db support/USER/again "My order?"', **user)
    wake = "limpet wake desk.db support/USER/again --harness better:agent"
    assert "Your order is on its way." in reader.types(wake, **user)
    counted = in_environment("analytics", tmp_path, READ_BACK)
    assert counted == "[(66, 63)]\n"  # the two forks have no rating, nor has the odd session
