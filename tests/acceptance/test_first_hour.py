"""docs/first-hour.md, followed word for word, from an empty folder to a dashboard."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.acceptance.test_examples import ROOT, blocks, titled

PAGE = "docs/first-hour.md"
TEXT = (ROOT / PAGE).read_text()
SHOWN = [block.text for block in blocks(PAGE) if block.language == "text"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Desk:
    """The folder of a reader, who types the commands of the page."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder, f"http://127.0.0.1:{free_port()}"
        self.variables = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
        self.variables |= {"HOME": str(folder), "DESK_URL": self.url, "PYTHONUNBUFFERED": "1"}
        for name in ("desk.py", "chat.py"):
            (folder / name).write_text(titled(PAGE, name))

    def typed(self, line: str) -> str:
        """Run a line of the page in a shell, on the port of this test; what it printed."""
        assert line in TEXT, f"the page does not say {line!r}"
        ran = subprocess.run(
            ["sh", "-c", line.replace("http://127.0.0.1:8420", self.url)],
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    @contextmanager
    def started(self, line: str, *options: str) -> Iterator[subprocess.Popen[str]]:
        """A program of the page, until the block ends."""
        assert line in TEXT, f"the page does not say {line!r}"
        args = re.findall(r'"[^"]*"|\S+', line)
        command = [*[arg.strip('"') for arg in args], *options]
        with subprocess.Popen(
            command, cwd=self.folder, env=self.variables, stdout=subprocess.PIPE, text=True
        ) as program:
            try:
                yield program
            finally:
                program.kill()

    def get(self, path: str) -> str:
        with self.asked(path) as response:
            text: str = response.read().decode()
        return text

    def asked(self, path: str, body: object = None) -> Any:
        """The answer to a request by the colleague; with a body it is a POST."""
        data = None if body is None else json.dumps(body).encode()
        key = {"Authorization": f"Bearer {self.variables['LIMPET_TOKEN']}"}
        request = urllib.request.Request(self.url + path, data, key)
        return urllib.request.urlopen(request, timeout=60)

    def denies_by_http(self) -> None:
        """What the page says for a page of one's own: send, follow, decide."""
        (body,) = re.findall(r"^  -d '(.*)'$", TEXT, re.M)
        session, user = "/sessions/sesn_.Y2hhdA", "?user=ada"
        for path in (f"/v1{session}/events{user}", f"{session}/confirm{user}"):
            assert path in TEXT
        with self.asked(f"/limpet/v1{session}/events/stream{user}&after=0") as stream:
            self.asked(f"/v1{session}/events{user}", json.loads(body)).close()
            idle = (line for line in stream if b'"type":"session.status_idle"' in line)
            stops = [next(idle) for _ in range(3)]  # the approval, the answer, and asked again
            assert b'"blocked_on":[]' not in stops[2]
            (waiting,) = json.loads(self.get("/limpet/v1/inbox"))["data"]
            denial = {"request_id": waiting["request"]["id"], "allow": False}
            self.asked(f"/limpet/v1{session}/confirm{user}", denial).close()
            assert b'"blocked_on":[]' in next(idle)


def lines(program: subprocess.Popen[str], count: int) -> str:
    assert program.stdout is not None
    return "".join([program.stdout.readline() for _ in range(count)])


SERVE = "limpet serve desk.db --harness support=desk:agent --analytics figures.db"


def test_a_reader_builds_a_support_desk_from_the_page_alone(tmp_path: Path) -> None:
    """Two tools behind HTTP, an approval that survives kill -9 of the server, and a dashboard."""
    desk = Desk(tmp_path)
    port = ("--port", desk.url.rpartition(":")[2])
    keys = (
        ("DESK_KEY", "agent --speaks-for user", "desk.key"),
        ("LIMPET_TOKEN", "admin", "boss.key"),
    )
    for name, role, file in keys:
        create = f"limpet access create desk.db --app support --role {role} > {file}"
        assert create in TEXT
        desk.typed(create)
        assert f"export {name}=$(cat {file})" in TEXT  # each terminal reads its own
        desk.variables[name] = desk.typed(f"cat {file}").strip()
    with desk.started(SERVE, *port) as server:
        assert lines(server, 1) == f"serving at {desk.url}\n"
        with desk.started('python chat.py ada "Order 7 arrived broken."') as chat:
            assert lines(chat, 3) == SHOWN[0]
            server.send_signal(signal.SIGKILL)
            server.wait()
            with desk.started(SERVE, *port) as again:
                assert lines(again, 1) == f"serving at {desk.url}\n"
                assert "refund" in desk.typed("limpet inbox http://127.0.0.1:8420")
                waiting = json.loads(desk.get("/limpet/v1/inbox"))["data"]
                assert [each["request"]["name"] for each in waiting] == ["refund"]
                desk.typed(
                    "limpet confirm http://127.0.0.1:8420 support/ada/chat --allow "
                    '--note "saw the photo"'
                )
                assert lines(chat, 2) == SHOWN[1]
                assert chat.wait(60) == 0
                said = desk.get("/limpet/v1/sessions/sesn_.Y2hhdA/messages?user=ada")
                assert said.count("40.00 euros are on their way") == 2  # the result, and the answer
                desk.denies_by_http()
                assert json.loads(desk.get("/limpet/v1/inbox"))["data"] == []
                assert "<title>" in desk.get("/")
                shown = json.loads(desk.get("/limpet/v1/analytics"))["dashboards"]
                assert "turns" in [each["title"] for each in shown]
