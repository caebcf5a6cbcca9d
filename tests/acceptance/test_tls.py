"""TLS of a server and its clients: who has no right certificate or key does not come in."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

import limpet
from limpet.cli.app import app
from limpet.errors import InvalidInput, LimpetError, StoreUnopened
from limpet.security.dev_certs import certificate_of, issue, write_dev_certs
from limpet.server import serve
from limpet.server.serve import serving
from limpet.server.tls import server_context
from limpet.store.remote import link
from limpet.store.remote.address import transport_check
from limpet.store.remote.tls import parse_pin, public_key_digest
from tests.support.command import invoke
from tests.support.processes import Child

Certs = Path


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certs:
    folder = tmp_path_factory.mktemp("certs")
    write_dev_certs(folder)
    return folder


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is cut off is tried again until this has passed: for tests in which none
    is made."""
    monkeypatch.setattr(link, "PATIENCE_SECONDS", 0.3)


def pin_of(path: Path) -> str:
    digest = public_key_digest(certificate_of(path))
    assert digest is not None
    return f"sha256:{digest.hex()}"


@asynccontextmanager
async def served(
    certs: Certs, *, client_ca: Path | None = None, pins: tuple[str, ...] = (), name: str = "server"
) -> AsyncIterator[str]:
    context = server_context(certs / f"{name}.pem", certs / f"{name}.key", client_ca, pins)
    async with limpet.open("memory://") as lp, serving(lp, dev=True, tls=context) as url:
        yield url


async def enters(url: str, tls: limpet.Tls) -> None:
    """Make a session through the server."""
    async with limpet.open(url, tls=tls) as lp:
        s = await lp.create("support", "ada")
        await s.append("user.message", {"text": "hi"}, actor="user:ada")
        assert s.version == 2


async def test_the_right_certificates_and_pins_come_in(certs: Certs) -> None:
    """On both sides: CA, certificate and pin."""
    pins = (pin_of(certs / "client.pem"),)
    async with served(certs, client_ca=certs / "ca.pem", pins=pins) as url:
        tls = limpet.Tls(
            ca=certs / "ca.pem",
            cert=certs / "client.pem",
            key=certs / "client.key",
            pins=[pin_of(certs / "server.pem")],
        )
        await enters(url, tls)


@pytest.mark.usefixtures("impatient")
async def test_without_a_client_certificate_nobody_comes_in(certs: Certs) -> None:
    """Where the server asks for one."""
    async with served(certs, client_ca=certs / "ca.pem") as url:
        with pytest.raises(LimpetError) as refused:
            await enters(url, limpet.Tls(ca=certs / "ca.pem"))
        assert refused.value.code in ("access.entry", "store.failed")


async def test_what_a_connection_lacks_is_said(
    certs: Certs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client certificate, or TLS: the server can only close the connection."""
    monkeypatch.setattr(link, "PATIENCE_SECONDS", 2.0)  # a try has time for its handshake
    async with served(certs, client_ca=certs / "ca.pem") as url:
        with pytest.raises(LimpetError, match=r"certificate, pass tls=limpet\.Tls\(cert=…, key=…"):
            await limpet.open(url, tls=limpet.Tls(ca=certs / "ca.pem"))
        with pytest.raises(LimpetError, match="unanswered; if it has TLS, write https://"):
            await limpet.open(url.replace("https:", "http:"))
        for name, file in (("CA", "ca.pem"), ("CERT", ""), ("KEY", ""), ("PIN", "")):
            monkeypatch.setenv(f"LIMPET_TLS_{name}", file and str(certs / file))
        status = await asyncio.to_thread(CliRunner().invoke, app, ["status", url])
        assert "set LIMPET_TLS_CERT and LIMPET_TLS_KEY" in " ".join(status.stderr.split())


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("case", ["another CA", "expired", "a server's"])
async def test_a_client_with_a_wrong_certificate_does_not_come_in(
    case: str, tmp_path: Path
) -> None:
    """It is of another CA, has expired, or is made for servers."""
    ca = issue("a CA")
    ca.write(tmp_path, "ca")
    issue("server", issuer=ca, hosts=("127.0.0.1",)).write(tmp_path, "server")
    long_ago = datetime.now(UTC) - timedelta(days=10)
    made = {
        "another CA": lambda: issue("client", issuer=issue("another CA")),
        "expired": lambda: issue("client", issuer=ca, days=5, now=long_ago),
        "a server's": lambda: issue("client", issuer=ca, hosts=("127.0.0.1",)),
    }
    made[case]().write(tmp_path, "client")
    tls = limpet.Tls(
        ca=tmp_path / "ca.pem", cert=tmp_path / "client.pem", key=tmp_path / "client.key"
    )
    async with served(tmp_path, client_ca=tmp_path / "ca.pem") as url:
        with pytest.raises(LimpetError) as refused:
            await enters(url, tls)
        assert refused.value.code in ("access.entry", "store.failed")


@pytest.mark.parametrize("case", ["another CA", "expired", "another host"])
async def test_a_server_with_a_wrong_certificate_is_not_trusted(case: str, tmp_path: Path) -> None:
    """The error comes at once, and says what to do."""
    ca = issue("a CA")
    ca.write(tmp_path, "ca")
    long_ago = datetime.now(UTC) - timedelta(days=10)
    made = {
        "another CA": lambda: issue("server", issuer=issue("another CA"), hosts=("127.0.0.1",)),
        "expired": lambda: issue("server", issuer=ca, hosts=("127.0.0.1",), days=5, now=long_ago),
        "another host": lambda: issue("server", issuer=ca, hosts=("example.com",)),
    }
    made[case]().write(tmp_path, "server")
    async with served(tmp_path) as url:
        with pytest.raises(StoreUnopened, match="certificate is not trusted"):
            await enters(url, limpet.Tls(ca=tmp_path / "ca.pem"))


@pytest.mark.usefixtures("impatient")
async def test_a_client_that_is_not_pinned_does_not_come_in(certs: Certs) -> None:
    """Although its certificate is of the right CA."""
    async with served(certs, client_ca=certs / "ca.pem", pins=("00" * 32,)) as url:
        tls = limpet.Tls(ca=certs / "ca.pem", cert=certs / "client.pem", key=certs / "client.key")
        with pytest.raises(LimpetError) as refused:
            await enters(url, tls)
        assert refused.value.code in ("access.entry", "store.failed")


async def test_a_server_that_is_not_pinned_gets_no_byte_of_a_request(certs: Certs) -> None:
    """The key would be in it."""
    got = bytearray()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            got.extend(await reader.read())
        except OSError:
            pass
        finally:
            writer.close()

    context = server_context(certs / "server.pem", certs / "server.key")
    server = await asyncio.start_server(take, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    tls = limpet.Tls(ca=certs / "ca.pem", pins=["ab" * 32])
    with pytest.raises(StoreUnopened, match="not pinned"):
        async with limpet.open(url, token="lk_secret", tls=tls):
            pass
    server.close()
    assert got == b""


async def test_tls_1_2_is_refused(certs: Certs) -> None:
    """A client that speaks nothing newer has no connection."""
    old = ssl.create_default_context(cafile=str(certs / "ca.pem"))
    old.maximum_version = ssl.TLSVersion.TLSv1_2

    def handshake(port: int) -> str | None:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
            old.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
        ):
            return wrapped.version()

    async with served(certs) as url:
        with pytest.raises(ssl.SSLError):
            await asyncio.to_thread(handshake, int(url.rpartition(":")[2]))
        old.maximum_version = ssl.TLSVersion.TLSv1_3
        assert await asyncio.to_thread(handshake, int(url.rpartition(":")[2])) == "TLSv1.3"


async def test_a_server_without_tls_is_named_as_one(tmp_path: Path) -> None:
    """Who writes https:// for it learns that, and not that a client certificate is missing."""
    async with limpet.open("memory://") as lp, serving(lp, dev=True) as url:
        with pytest.raises(StoreUnopened, match="does not speak TLS; write http://"):
            await limpet.open(url.replace("http:", "https:"))


def test_what_is_not_tls_is_refused_with_the_next_step(certs: Certs, tmp_path: Path) -> None:
    """Options that do not go together, files that are none, texts that are not pins."""
    cert, key = certs / "server.pem", certs / "server.key"
    with pytest.raises(InvalidInput, match="--client-ca"):
        server_context(cert, key, pins=("00" * 32,))
    with pytest.raises(InvalidInput, match="go together"):
        limpet.Tls(cert=cert).context()
    with pytest.raises(InvalidInput, match="cannot be read"):
        limpet.Tls(ca=tmp_path / "none.pem").context()
    for pin in ("", "00", "sha256//AAAA", "md5:" + "0" * 64, "sha256//é"):
        with pytest.raises(InvalidInput, match="a pin is"):
            limpet.Tls(pins=[pin]).context()
    with pytest.raises(InvalidInput, match="list of pins"):
        limpet.Tls(pins="00" * 32).context()


def test_pins_are_written_in_three_ways() -> None:
    """In hex, with the name of the hash, and as curl takes them."""
    digest = bytes(range(32))
    texts = (digest.hex(), f"sha256:{digest.hex().upper()}")
    curl = "sha256//AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    assert {parse_pin(text) for text in (*texts, curl)} == {digest}


async def test_the_command_makes_certificates_that_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`limpet certs dev DIR` and `certs pin FILE`; and a command that enters with them."""
    run = CliRunner()
    made = tmp_path / "made"
    done = await asyncio.to_thread(run.invoke, app, ["certs", "dev", str(made), "--name", "db.lan"])
    assert done.exit_code == 0, done.output
    assert (made / "ca.key").stat().st_mode & 0o777 == 0o600
    again = await asyncio.to_thread(run.invoke, app, ["certs", "dev", str(made)])
    assert again.exit_code == 2
    pinned = await asyncio.to_thread(run.invoke, app, ["certs", "pin", str(made / "client.pem")])
    assert pinned.output.strip() == pin_of(made / "client.pem")
    async with served(made, client_ca=made / "ca.pem", pins=(pinned.output.strip(),)) as url:
        for name, value in (("CA", "ca.pem"), ("CERT", "client.pem"), ("KEY", "client.key")):
            monkeypatch.setenv(f"LIMPET_TLS_{name}", str(made / value))
        monkeypatch.setenv("LIMPET_TLS_PIN", pin_of(made / "server.pem"))
        status = await asyncio.to_thread(run.invoke, app, ["status", url])
        assert status.exit_code == 0, status.output
        monkeypatch.setenv("LIMPET_TLS_PIN", "00" * 32)
        status = await asyncio.to_thread(run.invoke, app, ["status", url])
        assert status.exit_code != 0
        assert "its pin in LIMPET_TLS_PIN" in " ".join(status.stderr.split())


async def test_a_handshake_that_does_not_come_is_cut_off(
    certs: Certs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that sends nothing is not kept, although no request has begun."""
    monkeypatch.setattr(serve, "HEADER_SECONDS", 0.2)

    def silent(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
            return plain.recv(1)

    async with served(certs) as url:
        assert await asyncio.to_thread(silent, int(url.rpartition(":")[2])) == b""


# --- without TLS ------------------------------------------------------------------------------

PLAIN = "server.plain_http"
FAR = "http://192.0.2.2:8420"  # an address of another machine, which nobody has


def warned(log: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in log.records if PLAIN in each.getMessage()]


async def test_a_server_beyond_its_machine_warns_without_tls(
    certs: Certs, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with the code; not on loopback, with TLS, or behind a proxy that is said to have it."""
    context = server_context(certs / "server.pem", certs / "server.key", None, ())
    async with limpet.open("memory://") as lp:
        async with (
            serving(lp),
            serving(lp, host="0.0.0.0", tls=context),
            serving(lp, host="0.0.0.0", behind_proxy=True),
        ):
            assert warned(caplog) == []
        async with serving(lp, host="0.0.0.0"):
            assert warned(caplog) == [f"plain HTTP: host=0.0.0.0 code={PLAIN}"]


@pytest.mark.usefixtures("impatient")
async def test_a_client_warns_before_it_sends_a_key_in_plain_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once for each client, also if no server answers."""
    with pytest.raises(LimpetError):
        await limpet.open(FAR, token="lk_x")
    assert warned(caplog) == [f"plain HTTP: store={FAR} code={PLAIN}"]


@pytest.mark.usefixtures("impatient")
async def test_a_program_without_logging_is_warned_by_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A warning that goes to a log that nobody reads would be none."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    shown = pytest.warns(RuntimeWarning, match=f"^{PLAIN}: {FAR} is reached without TLS")
    with shown, pytest.raises(LimpetError):
        await limpet.open(FAR, token="lk_x")


async def test_a_client_of_the_same_machine_does_not_warn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        limpet.open("memory://") as lp,
        serving(lp, dev=True) as url,
        limpet.open(url, token="lk_x"),
    ):
        assert warned(caplog) == []


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("command", [("login", FAR), ("list", FAR), ("list", FAR, "--json")])
def test_a_command_shows_the_warning_on_stderr(command: tuple[str, ...]) -> None:
    """Before the key is used; its output stays what it is."""
    done = invoke(*command, input="lk_x\n")
    assert done.stderr.startswith(f"limpet: {PLAIN}: {FAR} is reached without TLS.")
    assert PLAIN not in done.stdout


@pytest.mark.parametrize("options", [(), ("--behind-proxy",)])
def test_limpet_serve_shows_the_warning(tmp_path: Path, options: tuple[str, ...]) -> None:
    """With what to do, unless a proxy has TLS."""
    arguments = ("--host", "0.0.0.0", "--port", "0", *options)
    with Child("limpet.cli", "serve", str(tmp_path / "s.db"), *arguments) as server:
        assert str(server.line()).startswith("serving at http://0.0.0.0:")
        os.kill(server.pid, signal.SIGTERM)
        server.end()
        said = server.complaint()
    assert ("--tls-cert and --tls-key, or --behind-proxy" in said) == (not options)
    assert (PLAIN in said) == (not options)


async def test_the_doctor_names_the_way_to_a_server() -> None:
    """Of a server that is asked, the diagnosis has it; in plain text it is a warning."""
    async with (
        limpet.open("memory://") as lp,
        serving(lp, dev=True) as url,
        limpet.open(url) as served,
    ):
        checks = (await served.maintenance.doctor()).checks
        (transport,) = [each for each in checks if each.name == "transport"]
    assert (transport.severity, transport.found) == ("ok", "plain HTTP within this machine")
    assert transport_check("https://192.0.2.2").severity == "ok"
    assert transport_check(FAR).severity == "warning"
    assert transport_check("http://[::1]:8420").severity == "ok"
    assert transport_check("http://limpet.example").severity == "warning"
