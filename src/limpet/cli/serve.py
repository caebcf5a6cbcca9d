"""The commands about servers: serve, login, access, certs."""

from __future__ import annotations

import asyncio
import getpass
import inspect
import logging
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from os import _exit as end_process  # public despite its name
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

import limpet
from limpet.cli.act import import_harness
from limpet.cli.command import CARE, Display, StoreArgument, Unopened, command
from limpet.cli.logins import is_server, save_token
from limpet.cli.options import (
    OtherNodes,
    OwnNode,
    file_path,
    imported_object,
    raised,
    store_url,
    time_span,
)
from limpet.cli.output import output, users_code
from limpet.cli.render import CommandResult, Screen, TextLine
from limpet.errors import DocumentNotFound, ExtraMissing, InvalidInput, LimpetError
from limpet.security.access import ROLES
from limpet.session.access_keys import AccessKey, AccessKeys
from limpet.session.limpet import journal_of
from limpet.store.remote.address import PORT
from limpet.store.remote.tls import tls_from_environment

_DEV = (
    "--dev: everybody on this machine enters as an admin, without a key. Never use it where other "
    "people log in."
)
_RATE_MAX = 1_000_000
CertFile = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="The certificate, PEM.")
]
KeyFile = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its key, PEM.")]
ClientCA = Annotated[
    Path | None,
    typer.Option("--client-ca", metavar="FILE", help="The CA that signs clients' certificates."),
]
Pins = Annotated[
    list[str] | None,
    typer.Option("--pin", metavar="SHA256", help="A client's public key; several may be given."),
]


@command(CARE)
def serve(
    store: Unopened,
    screen: Display,
    *,
    host: Annotated[str, typer.Option("--host", metavar="NAME", help="Where to listen.")] = (
        "127.0.0.1"
    ),
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65_535, help="0: any that is free.")
    ] = PORT,
    dev: Annotated[
        bool, typer.Option("--dev", help="Without keys: local requests only, as admin.")
    ] = False,
    harness: Annotated[
        list[str] | None,
        typer.Option("--harness", metavar="[APP=]MOD:NAME", help="Run its turns too."),
    ] = None,
    tls_cert: CertFile = None,
    tls_key: KeyFile = None,
    client_ca: ClientCA = None,
    pin: Pins = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy before it has TLS: do not warn.")
    ] = False,
    cors: Annotated[
        list[str] | None,
        typer.Option("--cors", metavar="ORIGIN", help="Whose pages may use it; several."),
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option("--policies", metavar="WHAT", help="Cedar policies, or MOD:FN to set up."),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option("--tokens", metavar="FILE", help="Accept session tokens: their signing keys."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="N", help="Requests a second of one key; 0: no bound."),
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option("--archive", metavar="URL", help="Where archived sessions go."),
    ] = None,
    analytics: Annotated[
        str | None,
        typer.Option("--analytics", metavar="FILE", help="Fold analytics into it, for dashboards."),
    ] = None,
    node: OwnNode = None,
    nodes: OtherNodes = None,
    log: Annotated[bool, typer.Option("--log", help="Log to stderr, requests too.")] = False,
) -> None:
    """Serve a store over HTTP, until SIGTERM or Ctrl-C.

    Clients open it with limpet.open("http://host:8420", token=KEY).
    """
    try:
        from limpet.server.limits import RATE_PER_KEY
        from limpet.server.tls import server_context
    except ImportError as error:
        raise ExtraMissing("starlette", "server") from error
    if is_server(store.url):
        raise InvalidInput("STORE is served by another server already. Serve the store itself.")
    if rate is not None and not 0 <= rate <= _RATE_MAX:
        raise InvalidInput(f"--rate is a number from 0 to {_RATE_MAX:,}.")
    if log:
        _log_to_stderr()
    tls = server_context(tls_cert, tls_key, client_ca, pin or ())
    harnesses = [_harness(each) for each in harness or ()]
    _run(
        _serve(
            store,
            screen,
            host=host,
            port=port,
            dev=dev,
            tls=tls,
            behind_proxy=behind_proxy,
            cors=cors or (),
            harnesses=harnesses,
            policies=policies,
            signing=None if tokens is None else _signing(tokens),
            rate=RATE_PER_KEY if rate is None else rate or None,
            archive=archive,
            analytics=analytics,
            node=node,
            nodes=nodes or (),
        )
    )


def _signing(text: str) -> str:
    """The URL of signing keys, which may be given as a path."""
    return text if "://" in text else f"file://{file_path(text).absolute()}"


def _harness(text: str) -> tuple[str | None, Any]:
    """The app that a harness is for, None for all, and the harness."""
    app, equals, named = text.rpartition("=")
    to_run, _ = import_harness(named, None)
    return (app if equals else None), to_run


def _policies(text: str) -> tuple[Path | None, Any]:
    """Return the place of Cedar policies, or the function that sets up the policies of a store."""
    path = file_path(text)
    if path.exists() or ":" not in text:
        return path, None
    set_up = imported_object("--policies", text)
    if not callable(set_up):
        raise InvalidInput(f"--policies {text!r} is not a function. Name one that takes the store.")
    return None, set_up


async def _serve(
    store: StoreArgument,
    screen: Screen,
    *,
    host: str,
    port: int,
    dev: bool,
    tls: Any,
    behind_proxy: bool,
    cors: Sequence[str],
    harnesses: Sequence[tuple[str | None, Any]],
    policies: str | None,
    signing: str | None,
    rate: float | None,
    archive: str | None,
    analytics: str | None,
    node: str | None,
    nodes: Sequence[str],
) -> None:
    from limpet.server.serve import freeze_start, serving, stop_signals, working

    cedar, set_up = (None, None) if policies is None else _policies(policies)
    async with AsyncExitStack() as stack:
        lp = await stack.enter_async_context(
            store.opened(creates=True, archive=archive, policies=cedar, node=node, nodes=nodes)
        )
        if set_up is not None:
            await _set_up(str(policies), set_up, lp)
        tokens = None if signing is None else limpet.Tokens(lp, signing=signing)
        folded = None
        if analytics is not None:
            folded = await stack.enter_async_context(folding(lp, store_url(analytics)))
        stopped = stack.enter_context(stop_signals())  # whoever reads the URL may stop it
        url = await stack.enter_async_context(
            serving(
                lp,
                host=host,
                port=port,
                dev=dev,
                tls=tls,
                behind_proxy=behind_proxy,
                cors=cors,
                tokens=tokens,
                rate=rate,
                analytics=folded,
                stopped=stopped,
            )
        )
        await stack.enter_async_context(working(lp, harnesses))
        freeze_start()
        if dev:
            screen.warn(_DEV)
        screen.show(CommandResult({"url": url}, [TextLine(f"serving at {url}", "ok")]))
        sys.stdout.flush()
        await stopped.wait()


async def _set_up(named: str, set_up: Any, lp: limpet.Limpet) -> None:
    """Call the user's function with the store. Raises InvalidInput if its code fails."""
    try:
        with users_code():
            if inspect.isawaitable(done := set_up(lp)):
                await done
    except LimpetError:
        raise
    except Exception as error:
        raise InvalidInput(f"--policies: {named} failed: {raised(error)}.") from error


@asynccontextmanager
async def folding(lp: limpet.Limpet, url: str) -> AsyncIterator[limpet.Analytics]:
    """Analytics that are folded as long as this lasts."""
    async with limpet.Analytics(lp, url) as analytics:
        running = asyncio.create_task(analytics.run())
        running.add_done_callback(_say_if_failed)
        try:
            yield analytics
        finally:
            analytics.stop()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def _say_if_failed(running: asyncio.Task[int]) -> None:
    """The server goes on, but nothing is measured until it is started again."""
    if not running.cancelled() and (error := running.exception()) is not None:
        logger = logging.getLogger("limpet.server")  # which is not imported for every command
        logger.error("analytics stopped: error=%s", type(error).__name__)


def _log_to_stderr() -> None:
    """Lines as docs/logging.md has them."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger = logging.getLogger("limpet")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _run(server: Coroutine[Any, Any, None]) -> None:
    """Run the server, on the faster event loop where it is installed.

    Once it has ended and its store is closed, nothing that a turn left behind keeps the process: a
    thread that it waits in, or a task that does not end when it is cancelled.
    """
    from limpet.server.limits import CANCEL_SECONDS

    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run
    with suppress(ImportError):
        from uvloop import run
    leave = threading.Timer(CANCEL_SECONDS, end_process, (0,))
    leave.daemon = True

    async def whole() -> None:
        await server
        leave.start()

    try:
        run(whole())
    finally:
        leave.cancel()


@command(CARE)
async def login(
    screen: Display,
    url: Annotated[str, typer.Argument(metavar="URL", help="http://host:8420", show_default=False)],
    *,
    forget: Annotated[
        bool, typer.Option("--forget", help="Remove the key of this server.")
    ] = False,
) -> CommandResult:
    """Keep the key to a server for later commands.

    The key is read from the input, tried, and kept in ~/.config/limpet/logins.json, which nobody
    else may read. --token and LIMPET_TOKEN come before it.
    """
    if not is_server(url):
        raise InvalidInput(f"{url!r} is not the URL of a server. Write http://host:8420.")
    if forget:
        path = save_token(url, None)
        return CommandResult(
            {"url": url}, [TextLine(f"the key of {url} is not in {path} any more")]
        )
    token = _read_token()
    async with limpet.open(url, token=token, tls=tls_from_environment(url)):
        pass
    path = save_token(url, token)
    form = {"url": url, "file": str(path)}
    return CommandResult(form, [TextLine(f"logged in to {url}; the key is in {path}", "ok")])


def _read_token() -> str:
    prompts = sys.stdin.isatty()
    token = (getpass.getpass("key: ") if prompts else sys.stdin.readline()).strip()
    if not token:
        raise InvalidInput("the input has no key. Pipe it in: limpet login URL < key.txt.")
    return token


@command(CARE)
async def certs(
    action: Annotated[
        Literal["dev", "pin"],
        typer.Argument(metavar="dev|pin", help="What to do.", show_default=False),
    ],
    target: Annotated[
        str,
        typer.Argument(metavar="PATH", help="dev: a directory. pin: a PEM file."),
    ],
    *,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="HOST", help="dev: the server's name, beside localhost."),
    ] = None,
) -> CommandResult:
    """Create development certificates, or print the pin of one.

    dev DIR writes a CA, a server's certificate for localhost and a client's certificate, each as
    NAME.pem and NAME.key. Nothing is overwritten. pin FILE prints the SHA-256 of the public key,
    for limpet serve --pin and limpet.Tls(pins=[…]).
    """
    from limpet.security.dev_certs import certificate_of, write_dev_certs
    from limpet.store.remote.tls import public_key_digest

    path = file_path(target)
    if action == "dev":
        write_dev_certs(path, name or ())
    names = ("server", "client") if action == "dev" else ("",)
    pins: dict[str, str] = {}
    for each in names:
        digest = public_key_digest(certificate_of(path / f"{each}.pem" if each else path))
        assert digest is not None
        pins[each or "pin"] = f"sha256:{digest.hex()}"
    if action == "pin":
        return CommandResult({"file": str(path), **pins}, [TextLine(pins["pin"])])
    lines = [TextLine(f"ok: {path} has ca, server and client. For development only.", "ok")]
    lines += [TextLine(f"{each}: {pin}") for each, pin in pins.items()]
    return CommandResult({"directory": str(path), "pins": pins}, lines)


@command(CARE)
async def access(
    action: Annotated[
        Literal["create", "list", "revoke"],
        typer.Argument(metavar="create|list|revoke", help="What to do.", show_default=False),
    ],
    screen: Display,
    store: Annotated[
        str, typer.Argument(metavar="STORE", help="The store that is served.", show_default=False)
    ],
    id_: Annotated[
        str | None, typer.Argument(metavar="ID", help="revoke: the key.", show_default=False)
    ] = None,
    *,
    app_name: Annotated[
        str | None, typer.Option("--app", metavar="NAME", help="The app that it opens.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="Its user.")] = None,
    role: Annotated[
        str | None,
        typer.Option("--role", metavar="ROLE", help="owner, agent, viewer, auditor or admin."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="SPAN", help="12h, 30d, 1w. Default: never.")
    ] = None,
    speaks_for: Annotated[
        Literal["user"] | None,
        typer.Option(
            "--speaks-for",
            metavar="user",
            help="agent or admin without --user: it may record what users say as theirs.",
        ),
    ] = None,
) -> CommandResult:
    """Create, list or revoke the keys of a server.

    create prints the key once; the store keeps a hash of it. Without --app it opens every app.
    Whoever enters with it is user:NAME, or key:ID without a user. A revoked key opens nothing
    any more within two seconds, and ends the connections that were made with it.
    """
    opening = StoreArgument(store_url(store))
    async with opening.opened(writes=action != "list", creates=action == "create") as lp:
        keys = AccessKeys(journal_of(lp))
        if action == "list":
            return _listed(await keys.list(), journal_of(lp).now_us())
        if action == "revoke":
            if id_ is None:
                raise InvalidInput("limpet access revoke takes the ID of a key. Pass STORE ID.")
            try:
                key = await keys.revoke(id_)
            except DocumentNotFound:
                advice = "limpet access list STORE shows the keys"
                raise InvalidInput(f"there is no key {id_!r}. {advice}.") from None
            return CommandResult(_key_form(key), [TextLine(f"revoked {key}", "ok")])
        if role not in ROLES:
            raise InvalidInput(f"--role is one of {', '.join(ROLES)}.")
        span = None if expires is None else time_span("--expires", expires)
        key, token = await keys.create(
            role=role, app=app_name, user=user, expires=span, speaks_for=speaks_for
        )
    if not screen.as_json:  # beside the key, so that KEY=$(limpet access create …) holds the key
        output(stderr=True).write(f"created {key}. Keep its secret: it is not shown again.\n")
    return CommandResult({**_key_form(key), "token": token}, [TextLine(token)])


def _listed(keys: list[AccessKey], now_us: int) -> CommandResult:
    rows = [TextLine(f"{key} ({key.state(now_us)})") for key in keys]
    forms = [{**_key_form(key), "state": key.state(now_us)} for key in keys]
    return CommandResult({"keys": forms}, rows or [TextLine("there are no keys")])


def _key_form(key: AccessKey) -> dict[str, Any]:
    form = msgspec.to_builtins(key)
    del form["hash"]
    return dict(form)
