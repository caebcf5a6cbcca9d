"""The studio: a page for those who debug an agent or watch a fleet.

`static` has the page: a shell, a style, and modules that no build step has touched. Every server
serves it at /studio; it uses the public HTTP API and nothing else. `studio` serves a store that is
open here to the browser of one person, by a link with a token that works once.
"""

from __future__ import annotations

import getpass
import http.client
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from limpet.errors import EntryRefused, StoreUnopened, StoreUnreachable
from limpet.security.access import Principal, Role
from limpet.server.access import Caller, LinkGate
from limpet.server.serve import serving
from limpet.session.limpet import Limpet
from limpet.store.remote.address import Address, warn_if_plain
from limpet.store.system import in_thread

if TYPE_CHECKING:  # it loads numpy
    from limpet.analytics.analytics import Analytics

_SECONDS: Final = 12.0  # for a server to say who its key is


@asynccontextmanager
async def studio(
    lp: Limpet,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    principal: Principal | None = None,
    analytics: Analytics | None = None,
) -> AsyncIterator[str]:
    """Serve the studio of an open Limpet on this machine; the link for one browser.

    What is done there is recorded with the person as actor: whoever is logged in here, as an
    admin. For a Limpet of a server, `principal` is who its key is: that server decides.
    `analytics` are folded when their page is looked at.
    """
    acting = lp
    if principal is None:
        principal = Principal(f"user:{getpass.getuser()}", role="admin")
        acting = lp.acting_as(principal)
    admin = principal.role == "admin"
    gate = LinkGate(Caller(acting, principal.id, principal.app, principal.user, admin, principal))
    async with serving(
        lp, host=host, port=port, caller_of=gate, analytics=analytics, folds=True
    ) as url:
        yield f"{url}/studio#token={gate.new_token()}"


async def principal_at(address: Address) -> Principal:
    """Return the principal that the key of a server's address belongs to. Raises EntryRefused,
    StoreUnopened."""
    warn_if_plain(address)
    status, body = await in_thread(lambda: _ask(address))
    if status == 401:
        raise EntryRefused(address.url, "its key is missing or not accepted")
    try:
        me = msgspec.json.decode(body, type=_Me)
    except msgspec.DecodeError:
        reason = "it does not say who its key is; it may be older than this program"
        raise StoreUnopened(address.url, reason) from None
    return Principal(me.id, role=me.role, app=me.app, user=me.user)


class _Me(msgspec.Struct):
    id: str
    role: Role
    app: str | None = None
    user: str | None = None


def _ask(address: Address) -> tuple[int, bytes]:
    made: http.client.HTTPConnection
    if address.tls is None:
        made = http.client.HTTPConnection(address.host, address.port, timeout=_SECONDS)
    else:
        made = http.client.HTTPSConnection(
            address.host, address.port, timeout=_SECONDS, context=address.tls
        )
    try:
        headers = {} if address.token is None else {"authorization": f"Bearer {address.token}"}
        made.request("GET", f"{address.path}/limpet/v1/me", headers=headers)
        answer = made.getresponse()
        return answer.status, answer.read()
    except OSError as error:
        reason = f"it cannot be reached ({error}); check that it is running, then try again"
        raise StoreUnreachable(address.url, reason) from error
    finally:
        made.close()
