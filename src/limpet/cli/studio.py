"""The command that opens the studio in a browser."""

from __future__ import annotations

import asyncio
import sys
import webbrowser
from typing import Annotated

import typer

from limpet.cli.command import LOOK, Display, StoreArgument, Unopened, chosen_token, command
from limpet.cli.logins import is_server, saved_token, tls_settings
from limpet.cli.render import CommandResult, Screen, TextLine
from limpet.errors import ExtraMissing
from limpet.store.remote.address import address_of


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
) -> None:
    """Look at sessions in a browser, until Ctrl-C.

    The page is served on this machine, by a link that works once. What you do there is recorded
    with your name. With the URL of a server, its key decides what you may do.
    """
    try:
        import limpet.studio  # noqa: F401  # the extra is named before anything else happens
    except ImportError as error:
        raise ExtraMissing("starlette", "server") from error
    asyncio.run(_show(store, screen, port=port, browser=browser))


async def _show(store: StoreArgument, screen: Screen, *, port: int, browser: bool) -> None:
    from limpet.server.serve import serve_until_stopped
    from limpet.studio import principal_at, studio as opened

    principal = None
    if is_server(store.url):
        token = chosen_token() or saved_token(store.url)
        principal = await principal_at(
            address_of(store.url, token=token, tls=tls_settings(store.url))
        )
    async with store.opened() as lp, opened(lp, port=port, principal=principal) as link:
        stopped = asyncio.ensure_future(serve_until_stopped())
        await asyncio.sleep(0)  # whoever has read the link may stop it
        screen.show(CommandResult({"url": link}, [TextLine(f"studio at {link}", "ok")]))
        sys.stdout.flush()
        if browser and not await asyncio.to_thread(webbrowser.open, link):
            screen.warn("no browser could be opened: open the link yourself")
        await stopped
