"""The verbs that a server performs for a principal: see `performed`.

Each is one line of `_verbs`, with what it takes and gives. `lp` is the Limpet of the principal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from limpet.model import Key
from limpet.model.facts.relations import RelationKind
from limpet.model.head import check_present
from limpet.security.receipts import Proof, Receipt
from limpet.session.citations import Cited, cited_chunk, read_cited
from limpet.session.history.checkpoint_log import CheckpointKind, CheckpointRef
from limpet.session.history.checkpoints import newest_checkpoint
from limpet.session.history.retention import CompactReport, watch_app
from limpet.session.life.archive import archived_bundle
from limpet.session.life.lifecycle_policy import LIFECYCLE_ACTOR, Transition
from limpet.session.life.sweep import Swept
from limpet.session.life.transitions import PhaseChange
from limpet.session.move.departures import Departure, open_departures
from limpet.session.move.reclaim import Reclaimed
from limpet.session.move.routes import Home
from limpet.session.performed import VERBS, ServedVerb
from limpet.session.relations import Relation
from limpet.session.runs.promotion import Proposal, ProposalStatus, waiting_proposals
from limpet.session.services import Services
from limpet.session.session import Session
from limpet.session.writer import writer_of
from limpet.store.protocol import Erasure, Erasures, Forks
from limpet.store.remote.forms import form_of

Text = str | None


def _verbs() -> dict[str, ServedVerb]:
    proposed = (str, Key, float, str, timedelta | None, Text)
    many = tuple[Proposal, ...]
    return {
        "delete": _verb((Key,), bool, lambda lp, key: lp.delete(key)),
        "erase": _verb((Key, Forks, Text), Erasure | None, _erase),
        "erase_user": _verb((str, str, Text), Erasures, _erase_user),
        "archive": _verb((Key, Text), Transition, _archive),
        "complete_children": _verb((Key, Text), type(None), _complete_children),
        "cite": _verb((Key, Key, tuple[str, ...], tuple[str, ...], Text), Relation, _cite),
        "relate_outputs": _verb((Key, Key, RelationKind, Text), Relation, _relate_outputs),
        "read_cited": _verb((Key, str), Cited, _read_cited, reads=True),
        "cited_chunk": _verb((Key, str, int), tuple[bytes, int], _cited_chunk, reads=True),
        "archived_bundle": _verb((Key,), bytes, _archived_bundle, reads=True),
        "unarchive": _verb((Key, Text), Transition, _unarchive),
        "checkpoint": _verb(
            (Key, Text, str, CheckpointKind | None, Text), tuple[CheckpointRef, int], _checkpoint
        ),
        "sweep": _verb((int,), Swept, lambda lp, limit: lp.work.sweep(limit=limit)),
        "compact": _verb((Key | None,), CompactReport, lambda lp, key: lp.maintenance.compact(key)),
        "watch_limits": _verb((Key,), type(None), _watch_limits),
        "reclaim": _verb((Key, str, int, str, Text), Reclaimed, _reclaim),
        "departures": _verb((Text,), tuple[Departure, ...], _departures, reads=True),
        "home": _verb((Key,), Home | None, lambda lp, key: lp.home(key), reads=True),
        "receipt": _verb((Key, Text), Receipt, _receipt, reads=True),
        "prove": _verb((Key, Text, int, int | None), Proof, _prove, reads=True),
        "propose": _verb(proposed, Proposal, _propose),
        "decide": _verb((str, str, str, Text), Proposal, _decide),
        "withdraw": _verb((Key, str, Text), int, _withdraw),
        "proposals": _verb((ProposalStatus | None, Key | None), many, _proposals, reads=True),
        "waiting_proposals": _verb((), many, _waiting_proposals, reads=True),
    }


def _verb(
    takes: tuple[Any, ...], gives: Any, act: Callable[..., Awaitable[Any]], *, reads: bool = False
) -> ServedVerb:
    row: Any = tuple[takes]  # type: ignore[valid-type]  # made while it runs
    return ServedVerb(form_of(row), form_of(gives), act, reads)


async def _erase(lp: Any, key: Key, forks: Forks, actor: Text) -> Any:
    return await lp.erase(key, forks=forks, actor=actor)


async def _erase_user(lp: Any, app: str, user: str, actor: Text) -> Any:
    return await lp.erase_user(app, user, actor=actor)


async def _archive(lp: Any, key: Key, actor: Text) -> Any:
    return await lp.session(key).archive(actor=actor)


async def _complete_children(lp: Any, key: Key, actor: Text) -> None:
    services = _services(lp)
    by = await services.foreseen("lifecycle", key, actor or LIFECYCLE_ACTOR)
    session = Session[Any](services, key, untyped=True)
    await PhaseChange(session, ("complete",), actor=by).complete_children()


async def _cite(lp: Any, key: Key, other: Key, fields: Any, blobs: Any, actor: Text) -> Any:
    session = lp.session(key)
    return await session.cite(lp.session(other), fields=fields, blobs=blobs, actor=actor)


async def _relate_outputs(lp: Any, key: Key, other: Key, kind: Any, actor: Text) -> Any:
    return await lp.session(key).relate(lp.session(other), kind, outputs=True, actor=actor)


async def _read_cited(lp: Any, key: Key, id: str) -> Cited:
    return await read_cited(writer_of(lp.session(key)), id)


async def _cited_chunk(lp: Any, key: Key, hash: str, number: int) -> tuple[bytes, int]:
    return await cited_chunk(writer_of(lp.session(key)), hash, number)


async def _archived_bundle(lp: Any, key: Key) -> bytes:
    return await archived_bundle(await _services(lp).approved("read", key), key)


async def _unarchive(lp: Any, key: Key, actor: Text) -> Any:
    return await lp.unarchive(key, actor=actor)


async def _checkpoint(
    lp: Any, key: Key, uid: Text, trigger: str, kind: CheckpointKind | None, actor: Text
) -> tuple[CheckpointRef, int]:
    session = await lp.get(key, tail=0)
    check_present(session.head, uid)
    full = None if kind is None else kind == "full"
    ref = await session.checkpoint(trigger, full=full, actor=actor)
    return ref, newest_checkpoint(writer_of(session)).at_us


async def _watch_limits(lp: Any, key: Key) -> None:
    own = lp.session(key).key  # of a session, not of what the system keeps beside it
    system = await _services(lp).permitted("write", own)
    await watch_app(system.journal, key.app)


async def _reclaim(lp: Any, key: Key, lost: str, epoch: int, reason: str, actor: Text) -> Any:
    return await lp.reclaim(key, target_is_lost=lost, epoch=epoch, reason=reason, actor=actor)


async def _receipt(lp: Any, key: Key, uid: Text) -> Receipt:
    session = await lp.get(key, tail=0)
    check_present(session.head, uid)
    receipt: Receipt = await session.receipt()
    return receipt


async def _prove(lp: Any, key: Key, uid: Text, seq: int, version: int | None) -> Proof:
    session = await lp.get(key, tail=0)
    check_present(session.head, uid)
    proof: Proof = await session.prove(seq, version=version)
    return proof


async def _departures(lp: Any, app: Text) -> tuple[Departure, ...]:
    services = await _services(lp).approved_app("move", app)
    return tuple(await open_departures(services.journal, app))


async def _propose(
    lp: Any,
    text: str,
    provenance: Key,
    confidence: float,
    to: str,
    ttl: timedelta | None,
    actor: Text,
) -> Any:
    return await lp.propose(
        text, provenance=provenance, confidence=confidence, to=to, ttl=ttl, actor=actor
    )


async def _decide(lp: Any, id: str, decision: str, reason: str, actor: Text) -> Any:
    return await lp.decide(id, accept=decision == "accept", reason=reason, actor=actor)


async def _withdraw(lp: Any, key: Key, reason: str, actor: Text) -> Any:
    return await lp.withdraw(key, reason=reason, actor=actor)


async def _proposals(lp: Any, status: Any, key: Key | None) -> Any:
    return await lp.proposals(status, session=key)


async def _waiting_proposals(lp: Any) -> tuple[Proposal, ...]:
    return tuple(await waiting_proposals(_services(lp)))


def _services(lp: Any) -> Services:
    services: Services = lp._services
    return services


VERBS.update(_verbs())
