"""Spawning: children that a program begins for a session, and waiting for them.

A turn delegates, since its children are part of what it replays. A program that coordinates
sessions from outside spawns: `lp.spawn`, and `lp.wait_for_children` for how they ended. Beginning
and end of a child are one commit each, over both sessions, so who waits needs nothing but the log
of the parent, in whichever process, after whichever crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import aclosing, suppress
from hashlib import sha256
from typing import Any, Final

import msgspec

from limpet.errors import (
    AccessDenied,
    InvalidInput,
    SessionEnded,
    SessionExists,
    SessionSuspended,
)
from limpet.model import (
    EMPTY,
    Commit,
    Draft,
    Fact,
    Head,
    Key,
    canonical,
    described,
    scope_of,
)
from limpet.model.facts.isolation import (
    InheritedIsolation,
    Isolation,
    child_isolation,
    child_policies,
    isolation_in,
)
from limpet.model.facts.moves import DEPARTED
from limpet.model.facts.phases import ACTIVE, INIT, TERMINAL
from limpet.model.facts.retention import RETENTION_SET, retention_in
from limpet.model.facts.running import budgets, children
from limpet.model.facts.running.budgets import Amount, Budget, Share
from limpet.model.facts.running.children import created_id
from limpet.model.facts.running.spawned import CHILD_SPAWNED, child_spawned, children_open
from limpet.model.limits import ID_CHARS_MAX
from limpet.session.creation import Creation, creation
from limpet.session.journal import Journal
from limpet.session.runs.delegation import BEGUN, CHILD_TYPES, children_of
from limpet.session.runs.runs import HARNESS
from limpet.session.runs.setup import inherited_tools, tool_names
from limpet.session.services import Services
from limpet.session.session import Session
from limpet.session.writer import writer_of
from limpet.store.protocol import Loaded

_SECONDS_MAX: Final = 10**9
_ID_CHARS_MAX: Final = ID_CHARS_MAX - len("/child")  # its beginning is recorded under its id


class Children(msgspec.Struct, frozen=True):
    """The children of a session: the outputs of those that have ended, and which are still pending.

    An output is None if the child was terminated or returned nothing.
    """

    done: Mapping[Key, Any]
    pending: tuple[Key, ...]


# --- spawning ------------------------------------------------------------------------------------


async def spawn(
    services: Services,
    parent: Key,
    *,
    task: str | Mapping[str, Any],
    fields: Iterable[str],
    tools: Iterable[str],
    budget_fraction: float,
    id: str | None,
    actor: str | None,
) -> Session[Any]:
    """Begin a child: see `Limpet.spawn`."""
    _check_outside()
    data, names, wanted = _task(task), _fields(fields), tool_names(tools)
    share, journal = _share(budget_fraction), services.journal
    task_hash = sha256(canonical(data)).hexdigest()
    if id is not None:
        _check_id(id)
        if (child := await _spawned_before(services, parent, id, task_hash)) is not None:
            return child
    loaded = await journal.store.load(parent, tail=0, scopes=False)
    head = loaded.head
    _check_active(head)
    key = Key(parent.app, parent.user, journal.new_id() if id is None else id)
    lent = budgets.allotted(head.facts, share) if budgets.has_limit(head.facts) else None
    new = _creation(services, head, key, _copied(loaded, names), actor)
    by = new.draft.actor
    amount = None if lent is None else budgets.amount(lent.cost, lent.tokens)
    agent = services.agent(actor)
    first = _first(head, data, wanted, lent, amount, task_hash, agent)
    drafts = (new.draft, *[journal.prepare(draft, by) for draft in first])
    made = journal.prepare(child_spawned(key, new.draft.id, task_hash, amount), by)
    begun = Commit(key, drafts, 0)
    try:
        committed, _ = await journal.commit((begun, Commit(parent, (made,), uid=head.uid)))
    except SessionExists:
        child = None if id is None else await _spawned_before(services, parent, id, task_hash)
        if child is None:
            raise
        return child  # another call was faster
    writer_of(new.session).known.begin(committed, drafts)
    return new.session


def _check_outside() -> None:
    if HARNESS.get() is not None:
        raise InvalidInput(
            "spawn is for programs outside of a turn, whose children would not be replayed with "
            "it. Use await turn.delegate(app, task) here."
        )


def _task(task: object) -> dict[str, Any]:
    if isinstance(task, str) and task.strip():
        return {"text": task}
    if isinstance(task, Mapping) and task:
        return dict(task)
    raise InvalidInput(f"task is what the child is to do, a text or a dict, not {described(task)}.")


def _fields(fields: Iterable[str]) -> tuple[str, ...]:
    wrong = isinstance(fields, (str, Mapping)) or not isinstance(fields, Iterable)
    names = () if wrong else tuple(dict.fromkeys(fields))
    if wrong or not all([isinstance(name, str) and scope_of(name) == "session" for name in names]):
        raise InvalidInput(
            "fields are names of top-level fields of the parent, as in fields=('plan',). app: and "
            "user: names are there for the child anyway."
        )
    return names


def _share(fraction: object) -> Share:
    if type(fraction) not in (int, float) or not 0 < fraction <= 1:  # type: ignore[operator]  # a number
        raise InvalidInput(
            f"budget_fraction is a number above 0 and up to 1, not {described(fraction)}."
        )
    return Share(fraction)  # type: ignore[arg-type]  # a number


def _check_id(id: object) -> None:
    if not isinstance(id, str) or not 0 < len(id) <= _ID_CHARS_MAX:
        raise InvalidInput(f"the id of a child is a text of 1 to {_ID_CHARS_MAX} characters.")


def _check_active(head: Head) -> None:
    """Raise unless the parent is active."""
    if head.phase in TERMINAL:
        raise SessionEnded(head.key, head.phase)
    if head.phase == INIT:
        raise InvalidInput(f"{head.key} has not begun. Activate it first: s.activate().")
    if head.phase != ACTIVE:
        raise SessionSuspended(head.key, head.phase)


async def _spawned_before(
    services: Services, parent: Key, id: str, task_hash: str
) -> Session[Any] | None:
    """The child that the parent has under this id; None if it has none. Raises SessionExists if it
    has another task."""
    made = await services.journal.store.read_ids(parent, (created_id(id),))
    if not made:
        return None
    data = made[0].data
    if made[0].type != CHILD_SPAWNED or data is None or data["task_hash"] != task_hash:
        raise SessionExists(Key(parent.app, parent.user, id))
    child: Session[Any] = Session(services, Key(data["app"], data["user"], id))
    with suppress(AccessDenied):  # it works in a task of its own: who spawned it need not enter it
        await child.refresh(tail=0)
    return child


def _copied(loaded: Loaded, names: tuple[str, ...]) -> dict[str, Any]:
    if missing := [name for name in names if name not in loaded.fields]:
        key = loaded.head.key
        raise InvalidInput(f"{key} has no field {missing[0]!r}. Name fields that it has.")
    return {name: loaded.fields[name] for name in names}


def _creation(
    services: Services, parent: Head, key: Key, fields: Mapping[str, Any], actor: str | None
) -> Creation:
    """The child's first event: in a task of its own, and with all that its parent is held by."""
    facts = parent.facts
    isolation: Isolation | InheritedIsolation = child_isolation(facts, key)
    if (of := isolation_in(facts)).model != "per_agent":  # which keeps tasks apart, too
        isolation = Isolation("per_task", of.users, key.id)
    setup = {name: facts[name] for name in ("agent", "environment") if name in facts}
    return creation(
        services,
        key.app,
        key.user,
        key.id,
        state=fields,
        labels=None,
        actor=actor,
        migrations=None,
        untyped=False,
        reuse_deleted=False,
        timeouts=parent.timeouts,
        setup=setup,
        isolation=isolation,
        field_policies=child_policies(facts, fields),
    )


def _first(
    parent: Head,
    task: dict[str, Any],
    tools: list[str],
    budget: Budget | None,
    lent: Amount | None,
    task_hash: str,
    agent: str | None,
) -> list[Draft]:
    """The events after it: its parent, tools, retention and budget, and its task."""
    spawned: dict[str, Any] = {"task_hash": task_hash}
    if lent is not None:
        spawned["lent"] = lent._asdict()
    depth = children.depth(parent.facts) + 1
    drafts: list[Draft] = [
        children.delegated(parent.key, parent.uid, None, depth, tools, spawned=spawned),
        *inherited_tools(parent, tools, EMPTY, agent),
    ]
    if (retention := retention_in(parent.facts)) is not None:
        drafts.append(Fact(type=RETENTION_SET, data={"retention": dict(retention)}))
    if budget is not None:
        drafts.append(budgets.granted(budget))
    return [*drafts, Draft(type="user.message", data=task)]


# --- waiting -------------------------------------------------------------------------------------


async def wait_for_children(journal: Journal, parent: Key, seconds: float | None) -> Children:
    """Return when no child is open, or after so many seconds: see `Limpet.wait_for_children`.

    The head counts those that are open, and each event about a child counts on: a wake reads what
    is new in the parent's log, however many children there are.
    """
    if seconds is not None and (
        type(seconds) not in (int, float) or not 0 <= seconds <= _SECONDS_MAX
    ):
        raise InvalidInput(
            f"timeout is a number of seconds from 0 to {_SECONDS_MAX:,}, not {described(seconds)}."
        )
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            await _none_open(journal, parent)
    except TimeoutError:
        if not limit.expired():
            raise
    known = await children_of(journal, await _head_here(journal, parent))
    ended = [of for of in known if of["stop_reason"] is not None]
    pending = tuple([of["key"] for of in known if of["stop_reason"] is None])
    return Children({of["key"]: of.get("output") for of in ended}, pending)


async def _none_open(journal: Journal, parent: Key) -> None:
    while True:
        head = await _head_here(journal, parent)
        left = children_open(head.facts)
        if not left:
            return
        types = (*CHILD_TYPES, DEPARTED)
        events = journal.hub.follow(parent, head.version, types, partials=False)
        async with aclosing(events):
            async for event in events:
                left += 1 if event.type in BEGUN else -1
                # A child may have two such events: the head knows. So does it where the parent is.
                if left <= 0 or event.type == DEPARTED:
                    break


async def _head_here(journal: Journal, parent: Key) -> Head:
    """Return the newest head. Raises SessionMoved if it is at another node, with its children."""
    head = (await journal.store.load(parent, tail=0, scopes=False)).head
    head.check_here()
    return head
