"""Commits as they travel: what a caller decided, that is names, encoded bodies and conditions.

What a store believes of a `Prepared` (the decoded data, the plain operations, the digest of the
header) does not travel: the server makes it again from the body, with the checks of `prepare`, so
that a client cannot record a log that differs from the state that follows from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET
from msgspec.structs import astuple

from limpet.errors import InvalidEvent
from limpet.model import Base, Commit, Event, Lease, Prepared
from limpet.model.adopt import adopted, check_base
from limpet.model.chain import SALT_BYTES
from limpet.model.events import Origin, check_recorded, decode_body, prepare_encoded
from limpet.model.keys import known_key
from limpet.model.limits import INT_MAX
from limpet.store.protocol import Committed
from limpet.store.remote.forms import WireForm, form_of

_BASE: Final = form_of(Base)
_LEASE: Final = form_of(Lease)


class SentDraft(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A draft on its way to a server."""

    id: str
    caller_chose_id: bool
    type: str
    actor: str
    cause: str | None
    invocation_id: str | None
    correlation_id: str | None
    wake_id: str | None
    raw: bytes
    input: bool
    origin: tuple[int, int, bytes, bytes] | None  # seq, at_us, salt, link


class SentCommit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A commit on its way to a server."""

    key: tuple[str, str, str]
    drafts: tuple[SentDraft, ...]
    expect: int | None
    fence: int | None
    guards: dict[str, int]
    schema: str | bool | None  # False: any
    classless: bool
    uid: str | None
    reuse: bool
    base: Any
    pin: int | None
    release: Any
    names_of: tuple[str, str] | None


def pack_commits(commits: Sequence[Commit]) -> list[SentCommit]:
    """Commits for the way to a server."""
    return [_sent(commit) for commit in commits]


def _sent(commit: Commit) -> SentCommit:
    key, base, release = commit.key, commit.base, commit.release
    return SentCommit(
        (key.app, key.user, key.id),
        tuple([_sent_draft(draft) for draft in commit.drafts]),
        commit.expect,
        commit.fence,
        dict(commit.guards),
        False if commit.schema is UNSET else commit.schema,
        commit.classless,
        commit.uid,
        commit.reuse,
        None if base is None else _packed(_BASE, base),
        commit.pin,
        None if release is None else _packed(_LEASE, release),
        commit.names_of,
    )


def _packed(form: WireForm, value: object) -> Any:
    assert form.pack is not None
    return form.pack(value)


def _sent_draft(draft: Prepared) -> SentDraft:
    origin = draft.origin
    return SentDraft(
        draft.id,
        draft.caller_chose_id,
        draft.type,
        draft.actor,
        draft.cause,
        draft.invocation_id,
        draft.correlation_id,
        draft.wake_id,
        draft.raw,
        draft.input,
        None if origin is None else astuple(origin),
    )


def unpack_commit(sent: SentCommit, *, again: bool) -> Commit:
    """Prepare a commit that a client sent: everything is checked as if it were made here.

    Sent `again` after an answer was lost, every id is looked for, also those that nobody chose.
    Raises InvalidInput.
    """
    key = known_key(*sent.key)
    drafts = tuple([_draft(each, again=again) for each in sent.drafts])
    for number in (sent.expect, sent.fence, sent.pin, *sent.guards.values()):
        if number is not None and not 0 <= number <= INT_MAX:
            raise InvalidEvent("a condition is not a number from 0")
    base = None if sent.base is None else _read(_BASE, sent.base)
    if base is not None and drafts and drafts[0].origin is not None:
        check_base(base)
    if sent.schema is True:
        raise InvalidEvent("a schema version is text")
    return Commit(
        key,
        drafts,
        sent.expect,
        sent.fence,
        sent.guards,
        UNSET if sent.schema is False else sent.schema,
        sent.classless,
        sent.uid,
        sent.reuse,
        base,
        sent.pin,
        None if sent.release is None else _read(_LEASE, sent.release),
        sent.names_of,
    )


def _read(form: WireForm, value: Any) -> Any:
    assert form.unpack is not None
    return form.unpack(msgspec.convert(value, form.wire))


def _draft(sent: SentDraft, *, again: bool) -> Prepared:
    if sent.origin is not None:
        return _adopted(sent)
    ids = (sent.cause, sent.invocation_id, sent.correlation_id, sent.wake_id)
    return prepare_encoded(
        (sent.id, sent.type, sent.actor, *ids),
        sent.raw,
        caller_chose_id=sent.caller_chose_id or again,
        input=sent.input,
    )


def _adopted(sent: SentDraft) -> Prepared:
    """An event that another store recorded, checked as an import checks it."""
    assert sent.origin is not None
    origin = Origin(*sent.origin)
    if len(origin.salt) != SALT_BYTES:
        raise InvalidEvent(f"its salt is not of {SALT_BYTES} bytes")
    try:
        body = decode_body(sent.raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidEvent(f"its body cannot be read ({error})") from error
    event = Event(
        seq=origin.seq,
        id=sent.id,
        type=sent.type,
        actor=sent.actor,
        at_us=origin.at_us,
        data=body.data,
        ops=body.ops,
        cause=sent.cause,
        invocation_id=sent.invocation_id,
        correlation_id=sent.correlation_id,
        wake_id=sent.wake_id,
        processed=0 if sent.input else None,
        link=origin.link,
    )
    check_recorded(event, sent.raw)
    return adopted(event, sent.raw, origin.salt)


COMMITS: Final = WireForm(tuple[SentCommit, ...], pack_commits, None)
RESULTS: Final = form_of(tuple[Committed, ...])
