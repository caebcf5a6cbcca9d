"""Changes of what a store remembers besides events, each as a value.

A verb decides on changes, writes them down where the store keeps a journal, and only then applies
them. In the journal each is a JSON line, so what is applied when a store is opened is what was
applied when it was written to.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from limpet.store.blobs import Blob

Names: TypeAlias = tuple[str, str, str]  # app, user and id of a session
# Key hash, version, link, time and the number of forks kept of something erased.
Certificate: TypeAlias = tuple[str, int, str, int, int]


class StoreChange(msgspec.Struct, omit_defaults=True, gc=False, tag_field="op"):
    """One change. Sessions are named by their rows: a row is never used again."""


class LeaseChange(StoreChange, tag="lease"):
    """A lease was given, or came back. It is in no event."""

    row: int
    fence: int = 0
    lease_us: int | None = None
    worker: str | None = None
    leased_us: int | None = None


class PinChange(StoreChange, tag="pin"):
    """The state after event `seq` is checkpoint `number`; without a number it is one no more."""

    row: int
    seq: int = 0
    number: int = 0


class ColdChange(StoreChange, tag="cold"):
    """The feed has no events up to `upto`, but those in `hot`."""

    row: int
    upto: int = 0
    hot: tuple[int, ...] = ()


class EndChange(StoreChange, tag="end"):
    """The session was deleted, or moved away."""

    row: int
    time: int = 0
    ending: str = "deleted"


class TakeChange(StoreChange, tag="take"):
    """The session has another key from now on."""

    row: int
    session: Names = ("", "", "")
    fence: int = 0


class EraseChange(StoreChange, tag="erase"):
    """These sessions, and all names that an owner had before, are forgotten; certificates stay."""

    rows: tuple[int, ...] = ()
    certificates: tuple[Certificate, ...] = ()
    owner: str | tuple[str, str] = ""  # the hash of its name; in format 1 of the journal the name


class MarkChange(StoreChange, tag="mark"):
    """A mark; with `until` 0 it is gone."""

    space: str = ""
    name: str = ""
    value: int = 0
    until: int = 0


class ChunkChange(StoreChange, tag="chunk"):
    """The next chunk of an upload, which nobody sees."""

    row: int
    upload: str = ""
    number: int = 0
    time: int = 0
    data: bytes = b""


class BlobChange(StoreChange, tag="blob"):
    """An upload is complete: the session has this blob."""

    row: int
    hash: str
    upload: str
    blob: Blob


class RingChange(StoreChange, tag="ring"):
    """The key ring that the store is sealed with."""

    ring: str = ""


AnyChange: TypeAlias = (
    LeaseChange
    | PinChange
    | ColdChange
    | EndChange
    | TakeChange
    | EraseChange
    | MarkChange
    | ChunkChange
    | BlobChange
    | RingChange
)
