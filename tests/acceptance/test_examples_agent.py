"""The page docs/agent.md and its two examples, run as a reader would run them."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import limpet
from tests.acceptance.test_examples import EXAMPLES, python, titled

ASKED = "refund {'number': '7', 'eur': 40}? [y/n] "


def test_the_support_agent_asks_and_goes_on(tmp_path: Path) -> None:
    """A streamed text, one question, and after the answer the rest; a second run begins anew."""
    program = str(EXAMPLES / "support_agent.py")
    ran = python(program, "sqlite:///chat.db", cwd=tmp_path, stdin="y\n")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith(f"Let me look. \n{ASKED}Done: 40.00 euros are on their way")
    denied = python(program, "sqlite:///chat.db", cwd=tmp_path, stdin="n\n")
    assert denied.returncode == 0
    assert "did not allow" in denied.stdout


def test_the_support_agent_survives_the_death_of_its_terminal(tmp_path: Path) -> None:
    """Killed while it waits for an answer, it asks again in the next run and pays once."""
    command = [sys.executable, "-u", str(EXAMPLES / "support_agent.py"), "sqlite:///chat.db"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        said = ""
        while not said.endswith("[y/n] "):
            said += first.stdout.read(1)
        first.kill()
    assert first.returncode == -signal.SIGKILL
    again = python(command[2], command[3], cwd=tmp_path, stdin="y\n")
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("are on their way") == 1


DIES = """
import asyncio, functools, os, signal, sys
sys.path.insert(0, sys.argv[1])
import limpet, support_agent

@limpet.tool(permission="always_ask")
def refund(number: str, eur: float, idempotency_key: str) -> str:
    "Pay, and die before that is recorded."
    os.kill(os.getpid(), signal.SIGKILL)

support_agent.agent = limpet.Agent(support_agent.model, [support_agent.find_order, refund])
limpet.Worker = functools.partial(limpet.Worker, lease_seconds=1)
asyncio.run(support_agent.main("sqlite:///chat.db"))
"""


def test_the_support_agent_killed_while_it_pays_asks_what_happened(tmp_path: Path) -> None:
    """The next run goes on with the same message, and shows the key of the payment; a yes is the
    result, and nothing is paid again."""
    dead = python("-c", DIES, str(EXAMPLES), cwd=tmp_path, stdin="y\n")
    assert dead.returncode == -signal.SIGKILL, dead.stderr
    program = str(EXAMPLES / "support_agent.py")
    ran = python(program, "sqlite:///chat.db", cwd=tmp_path, stdin="y\n")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "Did it happen: refund with the key " in ran.stdout
    assert ran.stdout.endswith("Done: paid \n")
    with limpet.open_sync(f"sqlite:///{tmp_path}/chat.db") as lp:
        said = lp.get("support", "ada", "chat").read(types=["user.message"])
        assert len(said) == 1


def test_the_page_shows_the_examples() -> None:
    """What docs/agent.md prints is what runs here."""
    for name in ("support_agent.py", "support_web.py"):
        assert titled("docs/agent.md", name) == (EXAMPLES / name).read_text()


@contextmanager
def serving(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The web example; it must end with 0 at SIGTERM."""
    command = [sys.executable, str(EXAMPLES / "support_web.py"), f"sqlite:///{folder}/web.db"]
    with subprocess.Popen([*command, str(port)], cwd=EXAMPLES) as server:
        try:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=5).close()
                    break
                except ConnectionRefusedError:
                    assert server.poll() is None
            yield server
        finally:
            server.kill()


def events(port: int, after: int = 0) -> Generator[tuple[int, dict[str, Any]], None, None]:
    """What the stream says, each with its id; 0 for a partial."""
    number = 0
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/events", headers={"Last-Event-ID": str(after)})
        with connection.getresponse() as response:
            for line in response:
                if line.startswith(b"id: "):
                    number = int(line[4:])
                elif line.startswith(b"data: "):
                    yield number, json.loads(line[6:])
                    number = 0


def post(port: int, path: str, body: Any) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("POST", path, json.dumps(body))
        return connection.getresponse().status


def test_a_browser_sees_every_event_once_over_a_killed_server(tmp_path: Path) -> None:
    """The stream goes on from Last-Event-ID on a new server, and the turn where it was."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    seen: list[tuple[int, str]] = []
    with serving(tmp_path, port):
        assert post(port, "/messages", {"text": "Order 7 arrived broken."}) == 200
        request = ""
        stream = events(port)
        for number, event in stream:
            seen += [(number, event["type"])] if number else []
            request = event["data"].get("request_id", "")
            if event["data"].get("awaits") == "approval":
                break
        stream.close()
        with limpet.open_sync(f"sqlite:///{tmp_path}/web.db") as lp:
            while lp.get("support", "ada", "chat").status == "running":
                pass  # until nobody has a lease that the next server would wait for
    with serving(tmp_path, port) as server:
        assert post(port, "/confirm", {"id": request}) == 200
        partials = ""
        stream = events(port, seen[-1][0])
        for number, event in stream:
            if number:
                seen.append((number, event["type"]))
            else:
                partials += event["data"].get("text", "")
            if number and event["type"] == "agent.message":
                assert event["data"]["text"] == partials or not partials
                break
        stream.close()
        server.terminate()
        assert server.wait(timeout=60) in (0, -signal.SIGTERM)
    numbers = [number for number, _ in seen]
    assert numbers == sorted(set(numbers))
    assert [type for _, type in seen].count("agent.tool_result") == 2


def test_the_page_lets_a_person_say_no_and_why(tmp_path: Path) -> None:
    """The model reads the reason, and nothing is paid."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with serving(tmp_path, port):
        assert post(port, "/messages", {"text": "Order 7 arrived broken."}) == 200
        seen: list[dict[str, Any]] = []
        stream = events(port)
        for number, event in stream:
            seen += [event] if number else []
            if event["data"].get("awaits") == "approval":
                no = {"id": event["data"]["request_id"], "allow": False, "note": "too late"}
                assert post(port, "/confirm", no) == 200
            answered = any([each["type"] == "user.tool_confirmation" for each in seen])
            if number and answered and event["type"] == "agent.message":
                break
        stream.close()
    (said,) = [each["data"] for each in seen if each["type"] == "user.tool_confirmation"]
    assert (said["allow"], said["note"]) == (False, "too late")
    *_, result = [each["data"] for each in seen if each["type"] == "agent.tool_result"]
    assert result["is_error"]
    assert "too late" in result["output"]
    shown = (EXAMPLES / "support.html").read_text()
    assert all([word in shown for word in ('"Allow"', '"Deny"', "allow: false, note:")])
