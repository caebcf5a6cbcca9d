"""Nodes: the name of this store among others, and where the others are.

Logs name nodes and never URLs: a place may change, and a URL may hold a password. Each process is
told its own name and the places of the others when it opens its store. A store that was given no
name has one that follows from its URL, so that an interrupted move finds the same target again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from pathlib import Path
from socket import gethostname
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from limpet.errors import InvalidInput
from limpet.model import described, unfit
from limpet.model.facts.moves import NODE_CHARS_MAX

HOPS_MAX: Final = 4  # nodes that a client is led to, one after the other


class Nodes:
    """This node and the others that it knows. Each of those is opened when it is first needed."""

    def __init__(
        self,
        name: str,
        places: Mapping[str, Any],
        opened: Callable[[Any], Awaitable[tuple[Any, bool]]],
        receiving: Callable[[Any, str], Any],
    ) -> None:
        """`opened` returns the open Limpet of a place, and True if it opened it; `receiving` what
        receives sessions there."""
        self.name, self._places, self._opened = name, places, opened
        self._receiving = receiving
        self._open: dict[str, Any] = {}

    def knows(self, node: str) -> bool:
        return node in self._places

    @property
    def others(self) -> tuple[str, ...]:
        """The names of the nodes that it knows."""
        return tuple(self._places)

    async def limpet(self, node: str) -> Any:
        """Return the open Limpet of a node; None if nobody said where it is."""
        place = self._places.get(node)
        if place is None:
            return None
        if node not in self._open:
            lp, made = await self._opened(place)
            if not made:
                return lp  # opened by the caller, who closes it
            self._open[node] = lp
        return self._open[node]

    async def arrivals(self, node: str) -> Any:
        """Return the Arrivals of a node; None if nobody said where it is."""
        lp = await self.limpet(node)
        return None if lp is None else self._receiving(lp, node)

    async def close(self) -> None:
        """Close the stores that were opened here."""
        while self._open:
            _, lp = self._open.popitem()
            await lp.close()


def check_nodes(
    node: str | None, nodes: Mapping[str, Any] | None
) -> tuple[str | None, Mapping[str, Any]]:
    """Check the names of nodes. Raises InvalidInput."""
    for name in (*([] if node is None else [node]), *(nodes or {})):
        if reason := unfit(name, NODE_CHARS_MAX):
            raise InvalidInput(f"the name of a node {reason}. Pass a short text, as in 'eu-1'.")
        if "://" in name:
            raise InvalidInput(f"{name!r} is a URL. Name the node: nodes={{'eu-1': {name!r}}}.")
    if nodes is not None and not isinstance(nodes, Mapping):
        raise InvalidInput(f"nodes maps names to URLs, as in {{'eu-2': url}}; {described(nodes)}.")
    return node, dict(nodes or {})


def unnamed(url: str, identity: int) -> str:
    """Return the name of a store that was given none; `identity` tells stores in memory apart.

    It has no password, and is the same whoever opens the store by this URL on this machine: a file
    at the same path of another machine has another name.
    """
    parts = urlsplit(url)
    if parts.scheme == "memory":
        return f"memory-{identity:x}"
    local = parts.scheme in ("sqlite", "files")
    if local:
        path = Path(unquote(parts.path[1:])).resolve()
        place, shown = f"{gethostname()}:{path}", path.stem
    else:
        try:
            servers = f"{parts.hostname or ''}:{parts.port or ''}"
        except ValueError:  # of a cluster: each of its hosts has a port
            servers = parts.netloc.rpartition("@")[2].lower()
        place = f"{servers}{parts.path.rstrip('/')}"
        shown = place.strip(":")
    fits = not unfit(shown, NODE_CHARS_MAX) and not local
    mark = sha256(place.encode()).hexdigest()[:12]
    return shown if fits else f"{shown[:40].strip() or parts.scheme}-{mark}"
