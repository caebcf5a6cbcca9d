"""Verbs that a server performs for a principal.

Behind a guard some verbs are begun by a principal and finished by the system: a deleted session is
taken out of its parent and of the archive, a proposal is judged by gates that its author may not
read. In the store's own process the verb goes on with the services of the system. A client with a
key has no such services, so it sends the verb: the server performs it as the same principal.

The verbs are those of `served_verbs`, which puts them into `VERBS`. It brings much of the package
with it, so a server imports it with the first verb, and a client only if it is to send them.
Arguments and results travel in the forms of the store protocol.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import msgspec

from limpet.errors import InvalidInput
from limpet.model import DefaultActor
from limpet.session.journal import Journal
from limpet.store.protocol import ActsAs, Performs
from limpet.store.remote.forms import WireForm, encode
from limpet.store.remote.messages import UNREADABLE_MESSAGE


class ServedVerb(NamedTuple):
    """A verb as it travels, and how the server performs it."""

    takes: WireForm
    gives: WireForm
    perform: Callable[..., Awaitable[Any]]
    reads: bool


VERBS: Final[dict[str, ServedVerb]] = {}


def server_of(journal: Journal) -> Performs | None:
    """The server that performs verbs for this client; None if they run here."""
    store = journal.store
    return store if isinstance(store, Performs) else None


async def ask_server(server: Performs, name: str, *arguments: Any) -> Any:
    """Have the server perform a verb, and return its result. Raises what the verb raises there."""
    verb = VERBS[name]
    sent = tuple([_named(server, e) if type(e) is DefaultActor else e for e in arguments])
    packed = sent if verb.takes.pack is None else verb.takes.pack(sent)
    send = server.consult if verb.reads else server.perform
    return _unpacked(verb.gives, await send(name, encode(packed)))


async def perform(lp: Any, name: str, arguments: bytes, *, reads: bool) -> bytes:
    """Perform a verb that was sent, for the principal of `lp`. Raises InvalidInput if it is not
    one of these, and what the verb raises."""
    verb = VERBS.get(name)
    if verb is None or verb.reads is not reads:
        raise InvalidInput(f"a server does not perform {name[:100]!r}.")
    try:
        given = _unpacked(verb.takes, arguments)
    except UNREADABLE_MESSAGE as error:
        raise InvalidInput(f"the arguments of {name} cannot be read: {error}.") from error
    result = await verb.perform(lp, *given)
    return encode(result if verb.gives.pack is None else verb.gives.pack(result))


def _named(server: Performs, actor: DefaultActor) -> str | None:
    """Return who acts where the caller named nobody, as the server knows them."""
    return server.actor_for(actor) if isinstance(server, ActsAs) else str(actor)


def _unpacked(form: WireForm, raw: bytes) -> Any:
    value = msgspec.msgpack.decode(raw, type=form.wire)
    return value if form.unpack is None else form.unpack(value)
