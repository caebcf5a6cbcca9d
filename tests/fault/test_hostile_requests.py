"""What strangers send to the port of a server: it is refused in time, and the server goes on."""

from __future__ import annotations

import http.client
import json
import resource
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from limpet.store.remote.messages import PATH, PROTOCOL_HEADER
from limpet.store.remote.methods import version
from tests.support.examples import tries
from tests.support.processes import Child

GET = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n"
# The route of the store protocol reads bodies.
POST = f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\n{PROTOCOL_HEADER}: {version()}\r\n".encode()
BOUNDS = (
    "HEADER_SECONDS=0.3",
    "BODY_SECONDS=0.3",
    "HEADER_BYTES_MAX=4096",
    "MESSAGE_BYTES_MAX=10000",
)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with Child("tests.support.bounded_server", "memory://", *BOUNDS) as child:
        yield int(str(child.line()).rpartition(":")[2])


@pytest.fixture(autouse=True)
def _goes_on(port: int) -> Iterator[None]:
    """Whatever was sent, the next client is answered."""
    yield
    assert status(talk(port, GET + b"connection: close\r\n\r\n")) == 200


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def talk(port: int, *pieces: bytes) -> bytes:
    """Send all of it, and read until the server closes."""
    with connect(port) as connection:
        with suppress(OSError):  # it may close before it has everything
            for piece in pieces:
                connection.sendall(piece)
        return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    """What comes until the other side closes. A timeout of the socket fails the test."""
    answer = b""
    try:
        while piece := connection.recv(65_536):
            answer += piece
    except ConnectionError:
        pass
    return answer


def status(answer: bytes) -> int | None:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else None


def test_headers_that_do_not_end_are_cut_off(port: int) -> None:
    """A slow loris: neither nothing at all, nor half of a request, keeps a connection."""
    assert talk(port) == b""
    assert talk(port, GET + b"x-slow: 1\r\n") == b""


def test_a_body_that_does_not_come_is_cut_off(port: int) -> None:
    """Announced and not sent, in one piece or in chunks."""
    assert talk(port, POST + b"content-length: 100\r\n\r\nabc") == b""
    assert talk(port, POST + b"transfer-encoding: chunked\r\n\r\n5\r\nabc") == b""


@pytest.mark.parametrize("count", [1, 100])
def test_long_headers_are_refused(port: int, count: int) -> None:
    """One that is long, or many."""
    headers = b"".join([b"x-%d: %s\r\n" % (n, b"a" * (8_000 // count)) for n in range(count)])
    assert status(talk(port, GET + headers + b"\r\n")) == 431


def test_endless_headers_are_refused(port: int) -> None:
    """Before their end was sent."""
    assert status(talk(port, GET, *[b"x-%d: %s\r\n" % (n, b"a" * 500) for n in range(40)])) == 431


def test_a_long_query_is_refused(port: int) -> None:
    """It counts with the headers, also if all of them come at once."""
    head = b"GET /?" + b"q" * 9_000 + b" HTTP/1.1\r\nconnection: close\r\nhost: a\r\n\r\n"
    assert status(talk(port, head)) == 431


def test_a_large_body_is_refused(port: int) -> None:
    """Sent in one piece."""
    body = b"x" * 20_000
    assert status(talk(port, POST + b"content-length: %d\r\n\r\n" % len(body) + body)) == 413


@pytest.mark.parametrize(
    "path", [PATH, "/v1/sessions", "/limpet/v1/import", "/agui", "/healthz", "/nothing"]
)
@pytest.mark.parametrize("expect", [b"", b"expect: 100-continue\r\n"])
def test_an_announced_length_is_refused_before_the_body_is_sent(
    port: int, path: str, expect: bytes
) -> None:
    """On every route, with its code; the client is not asked to go on, and nothing follows."""
    head = POST.replace(PATH.encode(), path.encode(), 1) + expect
    with connect(port) as connection:
        connection.sendall(head + b"content-length: 5000000000\r\n\r\n")
        answer = read_all(connection)
    assert status(answer) == 413
    assert b"connection: close" in answer
    assert b"request.too_large" in answer


def test_a_length_within_the_bound_is_asked_for(port: int) -> None:
    """The store protocol's own bound is another one than that of the other routes."""
    for path, length, expected in (
        (PATH, 10_000, 100),
        (PATH, 10_001, 413),
        ("/v1/agents", 20_000, 100),
    ):
        head = POST.replace(PATH.encode(), path.encode(), 1) + b"expect: 100-continue\r\n"
        with connect(port) as connection:
            connection.sendall(head + b"content-length: %d\r\n\r\n" % length)
            assert status(connection.recv(65_536)) == expected


@pytest.mark.parametrize(
    "second",
    [
        b"content-length: 5000000000\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\n4e20\r\n" + b"x" * 20_000 + b"\r\n",
    ],
)
def test_a_refusal_comes_after_the_answers_to_earlier_requests(port: int, second: bytes) -> None:
    """Two requests at once, the second too long: each answer belongs to its own request."""
    with connect(port) as connection:
        connection.sendall(GET + b"\r\n" + POST + second)
        answer = read_all(connection)
    first, _, rest = answer.partition(b'{"ok":true}')
    assert (status(first), status(rest)) == (200, 413)


def test_a_client_that_is_still_sending_reads_the_refusal(port: int) -> None:
    """All of a body that is far too long can be sent before the answer is read."""
    body = b"x" * 50_000_000
    with connect(port) as connection:
        connection.sendall(POST + b"content-length: %d\r\n\r\n" % len(body) + body)
        assert status(read_all(connection)) == 413


def test_a_chunked_bomb_is_refused(port: int) -> None:
    """A body without an end, in chunks: the connection is closed after the bound."""
    chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
    answer = talk(port, POST + b"transfer-encoding: chunked\r\n\r\n", *[chunk] * 5_000)
    assert status(answer) == 413


def test_trailers_without_an_end_are_refused(port: int) -> None:
    """After a body in chunks headers may come again, and are bounded too."""
    trailers = [b"x-%d: %s\r\n" % (n, b"a" * 1_000) for n in range(5_000)]
    answer = talk(port, POST + b"transfer-encoding: chunked\r\n\r\n0\r\n", *trailers)
    assert status(answer) == 431


@pytest.mark.parametrize(
    "head",
    [
        b"GET /\xff\xfe HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
        b"GET /%ff%fe HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nhost: \xff\xfe\r\nconnection: close\r\n\r\n",
        b"GET /metrics?%ff=%fe HTTP/1.1\r\nhost: 127.0.0.1\xff\r\nconnection: close\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00" * 100,
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_what_is_not_a_request_is_refused(port: int, head: bytes) -> None:
    """Invalid UTF-8 in the path, the query and headers; other protocols; two lengths."""
    answer = talk(port, head)
    assert status(answer) in (None, 400, 401, 404)


def test_a_foreign_host_is_refused(port: int) -> None:
    """With --dev: a page of the web may have made a browser send it."""
    head = b"GET /metrics HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n"
    assert status(talk(port, head)) == 401
    own = b"GET /metrics HTTP/1.1\r\nhost: localhost:1\r\nconnection: close\r\n\r\n"
    assert status(talk(port, own)) == 200


def test_more_connections_than_there_may_be_are_closed() -> None:
    """Those that are open go on."""
    with Child("tests.support.bounded_server", "memory://", "CONNECTIONS_MAX=20") as child:
        port = int(str(child.line()).rpartition(":")[2])
        with ExitStack() as opened:
            first = [opened.enter_context(connect(port)) for _ in range(20)]
            for each in first:
                assert answers(each)
            assert talk(port, GET + b"connection: close\r\n\r\n") == b""
            for each in first:
                assert answers(each)
        assert status(talk(port, GET + b"connection: close\r\n\r\n")) == 200


@pytest.mark.deeper
def test_thousands_of_idle_connections_hold_nobody_up() -> None:
    """As many as the server takes, or as there are descriptors for: the next request is answered,
    and so are those that were open all the time."""
    most = min(tries(300, 10_000) - 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200)
    with Child("tests.support.bounded_server", "memory://", "HEADER_SECONDS=600") as child:
        port = int(str(child.line()).rpartition(":")[2])
        with ExitStack() as opened:
            idle = [opened.enter_context(connect(port)) for _ in range(most)]
            assert status(talk(port, GET + b"connection: close\r\n\r\n")) == 200
            for each in idle[:: max(1, most // 50)]:
                assert answers(each)
        assert status(talk(port, GET + b"connection: close\r\n\r\n")) == 200


def test_an_answer_that_nobody_reads_is_dropped() -> None:
    """Its connection is cut off: megabytes would stay in memory as long as it is open."""
    with Child("tests.support.bounded_server", "memory://", "UNREAD_SECONDS=0.3") as child:
        port = int(str(child.line()).rpartition(":")[2])
        agent = posted(port, "/v1/agents", {"name": "a", "model": "m"})["id"]
        path = f"/v1/sessions/{posted(port, '/v1/sessions', {'agent': agent})['id']}/events"
        content = [{"type": "text", "text": "x" * 2**19}]
        for _ in range(32):
            posted(port, path, {"events": [{"type": "user.message", "content": content}]})
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            connection.settimeout(20)
            connection.connect(("127.0.0.1", port))
            head = f"GET {path}?limit=1000 HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
            connection.sendall(head.encode())
            watched = select.poll()
            watched.register(connection, 0)  # errors and ends are told all the same
            assert watched.poll(60_000)
        assert status(talk(port, GET + b"connection: close\r\n\r\n")) == 200


def posted(port: int, path: str, body: Any) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", path, json.dumps(body))
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
HEALTH = b"POST /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 0\r\ncontent-length: %d\r\n" % len(SMUGGLED),
        b"content-length: %d\r\ntransfer-encoding: chunked\r\n" % len(SMUGGLED),
        b"transfer-encoding: chunked\r\ncontent-length: %d\r\n" % len(SMUGGLED),
        b"transfer-encoding: xchunked\r\ncontent-length: %d\r\n" % len(SMUGGLED),
        b"transfer-encoding: chunked, identity\r\n",
        b"transfer-encoding : chunked\r\n",
        b"transfer-encoding:\x0bchunked\r\n",
        b"content-length: +0\r\n",
        b"content-length: 0x0\r\n",
        b"content-length: 0,0\r\n",
        b"x: y\r\n content-length: 0\r\n",
        b"x: y\n\ncontent-length: 0\r\n",
    ],
)
def test_two_ways_to_read_a_length_are_no_request(port: int, head: bytes) -> None:
    """Nothing after the headers is taken for a second request that a proxy did not see."""
    answer = talk(port, HEALTH + head + b"\r\n" + SMUGGLED)
    assert b"/smuggled" not in answer
    assert answer.count(b"HTTP/1.1 ") <= 1, answer


def answers(connection: socket.socket) -> bool:
    """True if a request is answered on a connection that stays open."""
    connection.sendall(GET + b"\r\n")
    answer = b""
    while not answer.endswith(b'{"ok":true}'):
        piece = connection.recv(65_536)
        if not piece:
            return False
        answer += piece
    return status(answer) == 200
