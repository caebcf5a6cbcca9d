"""The command that opens the studio in a browser."""

from __future__ import annotations

import asyncio
import sys
import webbrowser
from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import Annotated

import typer

from limpet.cli.analytics import AnalyticsPath, reading
from limpet.cli.command import LOOK, Display, StoreArgument, Unopened, chosen_token, command
from limpet.cli.logins import is_server, saved_token
from limpet.cli.render import CommandResult, Screen, TextLine
from limpet.errors import ExtraMissing
from limpet.store.remote.address import address_of
from limpet.store.remote.tls import tls_from_environment


@command(LOOK)
def studio(
    store: Unopened,
    screen: Display,
    *,
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65_535, help="0: any that is free.")
    ] = 0,
    browser: Annotated[
        bool,
        typer.Option("--browser/--no-browser", help="Open a browser, or print the link alone."),
    ] = True,
    analytics: AnalyticsPath = None,
) -> None:
    """Look at sessions in a browser, until Ctrl-C.

    The page is served on this machine, by a link that works once. What you do there is recorded
    with your name. With the URL of a server, its key decides what you may do. Analytics are folded
    when you look at them; --analytics keeps them.
    """
    try:
        import limpet.studio  # noqa: F401  # the extra is named before anything else happens
    except ImportError as error:
        raise ExtraMissing("starlette", "server") from error
    asyncio.run(_show(store, screen, port=port, browser=browser, analytics=analytics))


async def _show(
    store: StoreArgument, screen: Screen, *, port: int, browser: bool, analytics: str | None
) -> None:
    from limpet.server.serve import stop_signals
    from limpet.studio import principal_at, studio as opened

    principal = None
    if is_server(store.url):
        token = chosen_token() or saved_token(store.url)
        principal = await principal_at(
            address_of(store.url, token=token, tls=tls_from_environment(store.url))
        )
    async with AsyncExitStack() as stack:
        lp = await stack.enter_async_context(store.opened())
        folded = None
        if analytics is not None or find_spec("numpy") is not None:  # without it, the page says so
            folded = await stack.enter_async_context(reading(lp, analytics))
        stopped = stack.enter_context(stop_signals())  # whoever reads the link may stop it
        link = await stack.enter_async_context(
            opened(lp, port=port, principal=principal, analytics=folded)
        )
        screen.show(CommandResult({"url": link}, [TextLine(f"studio at {link}", "ok")]))
        sys.stdout.flush()
        if browser and not await asyncio.to_thread(webbrowser.open, link):
            screen.warn("no browser could be opened: open the link yourself")
        await stopped.wait()
