"""Events and drafts: what happened, and what a caller proposes to record.

A draft becomes a `Prepared` (checked, encoded, given an id) before a store sees it, and an Event
once the store has assigned its seq, time and link. The short forms of a draft (`set`, `merge`,
`add`, `inc`, `delete`) become operations here. A value that is also in the event's data becomes a
reference to it, so it is stored once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, TypeAlias, TypeVar, cast

import msgspec

from limpet.errors import (
    ActorMissing,
    EventTooLarge,
    InvalidEvent,
    InvalidOp,
    InvalidValue,
    ReservedType,
)
from limpet.model import ops as op
from limpet.model.chain import header_digest, header_of, header_tail
from limpet.model.keys import is_new_id, unfit, unfit_id
from limpet.model.limits import (
    ACTOR_CHARS_MAX,
    EVENT_BYTES_MAX,
    ID_CHARS_MAX,
    INT_MAX,
    INT_MIN,
    NAME_CHARS_MAX,
    OPS_PER_EVENT_MAX,
    TYPE_CHARS_MAX,
)
from limpet.model.values import (
    EMPTY,
    OPEN,
    FrozenDict,
    are_plain_bytes,
    encode,
    freeze,
    frozen_copy,
    is_exact,
    round_trip,
    settle,
    try_encode,
    unfitting,
)

# Families that only their own verbs write.
RESERVED: Final = (
    "session.",
    "state.",
    "audit.",
    "span.",
    "step.",
    "effect.",
    "budget.",
    "checkpoint.",
    "document.",
)
CHILD_ENDED: Final = "session.child_ended"
_Ids: TypeAlias = tuple[str | None, str | None, str | None, str | None, str | None]
# id, type, actor, cause, invocation_id, correlation_id and wake_id of an event.
Names: TypeAlias = tuple[str, str, str, str | None, str | None, str | None, str | None]
_INPUTS: Final = ("user.", "system.")
USER_MESSAGE: Final = "user.message"
_SAYS_NOTHING: Final = (
    "a user.message has text or content, as in {'text': 'hi'}; for anything else choose a type of "
    "your own, with input=True if a turn has to answer it"
)
_IDS: Final = ("id", "cause", "invocation_id", "correlation_id", "wake_id")
_NO_IDS: Final[_Ids] = (None, None, None, None, None)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
# The first and the last time that a datetime has.
TIME_US_MIN: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
TIME_US_MAX: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND


_Set: Final = op.Set
_SUGAR: Final = ("set", "merge", "add", "inc")
# A reference is worth its bytes only for text longer than this; containers always are.
_REFER_CHARS_MIN: Final = 48
_REFERABLE: Final = frozenset((str, dict, list))
# Operations that only set names of the session, and the values of these; None: no name is set.
Sets: TypeAlias = tuple[tuple[op.Set, ...], dict[str, Any] | None]
NOTHING_SET: Final[Sets] = ((), None)


def to_time(at_us: int) -> datetime:
    """Microseconds since 1970 as an aware UTC datetime, exactly."""
    return _EPOCH + timedelta(microseconds=at_us)


def to_us(at: datetime) -> int:
    """An aware datetime as microseconds since 1970, exactly."""
    if at.tzinfo is None:
        raise InvalidEvent(f"the time {at.isoformat()} has no time zone; use an aware datetime")
    return (at - _EPOCH) // _MICROSECOND


def is_input(type: str) -> bool:
    """True if events of this type are inputs, even if they are not appended with input=True."""
    return type.startswith(_INPUTS) or type == CHILD_ENDED


class Event(msgspec.Struct, frozen=True, gc=False, repr_omit_defaults=True):
    """A recorded fact. Its data and ops are read-only."""

    seq: int  # dense within the session, from 1; 0 for a partial, which has no place in the log
    id: str
    type: str
    actor: str
    at_us: int
    # None if the event is damaged. `| Any` lets a type checker accept event.data["text"] without
    # an explicit check, and also accept the check where there is one.
    data: FrozenDict | Any
    ops: tuple[op.Op, ...] = ()
    cause: str | None = None  # id of the event this one answers
    invocation_id: str | None = None
    correlation_id: str | None = None
    wake_id: str | None = None
    processed: int | None = None  # None: not an input; 0: pending; else the seq that processed it
    processed_us: int | None = None  # when that was
    link: bytes = b""
    partial: bool = False
    damage: str | None = None  # why the stored body could not be read; data is None then
    removed: bool = False  # the body was removed on purpose; data is None then
    # This write returned the event that was recorded earlier under the draft's id. It describes the
    # answer, not the event: it is not stored, readers never see it, and equality ignores it.
    repeated: bool = False
    attempt: int = 0  # of a partial: which attempt to make the final event it belongs to, from 1

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Event) and self.repeated != other.repeated:
            other = msgspec.structs.replace(other, repeated=self.repeated)
        return msgspec.Struct.__eq__(self, other)

    def __hash__(self) -> int:
        of = msgspec.structs.replace(self, repeated=False) if self.repeated else self
        return msgspec.Struct.__hash__(of)

    @property
    def via(self) -> str | None:
        """The principal that recorded what a user said, if the user did not do so itself."""
        said = self.data if self.type.startswith("user.") else None
        return None if said is None else said.get(VIA)

    @property
    def at(self) -> datetime:
        """The time the store recorded it; never earlier than the previous event."""
        return to_time(self.at_us)

    @property
    def processed_at(self) -> datetime | None:
        """The time it was processed; None while it is pending, or if it is not an input."""
        return None if self.processed_us is None else to_time(self.processed_us)


class Trace(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The ids that connect an event with others: its cause, invocation, correlation and wake."""

    cause: str | None = None  # id of the event that this one answers
    invocation_id: str | None = None  # of the call that the event belongs to
    correlation_id: str | None = None  # of one of several conversations in a session
    wake_id: str | None = None  # of the wake that recorded it


class Draft(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A proposed event. set, merge, add, inc and delete are short forms of ops on top-level
    names, applied in that order, followed by `ops`."""

    type: str
    data: Mapping[str, Any] = {}
    actor: str | None = None
    set: Mapping[str, Any] = {}
    merge: Mapping[str, Mapping[str, Any]] = {}
    add: Mapping[str, Sequence[Any]] = {}
    inc: Mapping[str, int | float] = {}
    delete: Iterable[str] = ()
    ops: Iterable[op.Op] = ()
    id: str | None = None
    cause: str | None = None
    invocation_id: str | None = None
    correlation_id: str | None = None
    wake_id: str | None = None
    input: bool = False  # pending until processed, whatever its type


class Fact(Draft, frozen=True, gc=False, kw_only=True):
    """A checked draft of a reserved event, made by a constructor in `facts`."""


AnyDraft = TypeVar("AnyDraft", bound=Draft)


def traced(draft: AnyDraft, trace: Trace | None) -> AnyDraft:
    """Return the draft with the ids of the trace. Raises InvalidEvent if it is not a Trace."""
    if trace is None:
        return draft
    if not isinstance(trace, Trace):
        raise InvalidEvent("trace takes a limpet.Trace, as in trace=limpet.Trace(cause=event.id)")
    return msgspec.structs.replace(
        draft,
        cause=trace.cause,
        invocation_id=trace.invocation_id,
        correlation_id=trace.correlation_id,
        wake_id=trace.wake_id,
    )


def removed_event(seq: int) -> Event:
    """Return the placeholder for an event of a parent that was erased."""
    return Event(seq=seq, id="", type="", actor="", at_us=0, data=None, removed=True)


class Body(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The part of an event that is compressed and sealed: its data and its ops."""

    data: dict[str, Any]
    ops: tuple[op.Op, ...] = ()


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The place where another store recorded an event: adopted, it has the same place, time and
    link."""

    seq: int
    at_us: int
    salt: bytes
    link: bytes


VIA: Final = "via"  # in the data of what a user says: see `Event.via`


class DefaultActor(str):
    """The actor where a caller names nobody. Behind a guard the principal stands in its place."""

    __slots__ = ()


def acting_actor(actor: str | None, own: str | None, writes_as: tuple[str, ...]) -> str | None:
    """The actor of what a principal writes: its own id, unless a caller names one, or the system is
    the default and it may write as that. The agent of an app stands only for who is nobody."""
    if actor is None:
        return own
    if type(actor) is not DefaultActor or actor == own:
        return str(actor)
    return own if actor.startswith("agent:") or not actor.startswith(writes_as) else str(actor)


class Prepared(msgspec.Struct, frozen=True, gc=False):
    """A draft that is checked, encoded, decoded and hashed. Stores do not check it again."""

    id: str
    caller_chose_id: bool  # so it may have been recorded before
    type: str
    actor: str
    cause: str | None
    invocation_id: str | None
    correlation_id: str | None
    wake_id: str | None
    data: FrozenDict | Any  # None of an adopted event whose data only readers need
    ops: tuple[op.Op, ...]
    plain_ops: tuple[op.PlainOp, ...]  # ops with references resolved
    scoped: bool  # some op goes to app: or user:
    temp_ops: tuple[op.PlainOp, ...]  # for the live object only; no store looks at them
    raw: bytes  # the encoded Body
    header: bytes  # the digest of everything but the body
    input: bool = False  # by its type, or because the caller said so
    origin: Origin | None = None
    compressed: bytes | None = None  # `raw` of an adopted event, if the other store had it so
    # The names that plain_ops set, if they do nothing else: folded by one union of dicts.
    sets: dict[str, Any] | None = None
    # By no verb of ours and not an input, and does nothing but what `sets` says: most are so.
    plain: bool = False


_decode_body: Final = msgspec.json.Decoder(Body).decode
_set: Final = msgspec.structs.force_setattr


def decode_body(raw: bytes) -> Body:
    """A stored body, read-only. Raises msgspec.MsgspecError if it is not one."""
    return _frozen(_decode_body(raw))


def path_opening(name: str) -> bytes:
    """Return the beginning of the path of every operation on a name in an encoded body. Data may
    have it too."""
    return b"[" + encode(name)


def _frozen(body: Body) -> Body:
    if body.ops:
        _freeze_ops(body.ops)
    _set(body, "data", freeze(body.data))  # ours: just decoded
    return body


def _freeze_ops(ops: tuple[op.Op, ...]) -> tuple[op.Op, ...]:
    for o in ops:
        if type(o) is not op.Set or type(o.value) in OPEN:
            op.frozen(o)
    return ops


class _Ops(msgspec.Struct, frozen=True, gc=False):
    """A body without its data, which is passed over."""

    ops: tuple[op.Op, ...] = ()


def ops_in(raw: bytes) -> tuple[op.Op, ...]:
    """Return the operations of a stored body. Raises msgspec.MsgspecError if it is not one."""
    return _freeze_ops(msgspec.json.decode(raw, type=_Ops).ops)


def prepare(draft: Draft, *, id: str, actor: str | None) -> Prepared:
    """Check and encode a draft. `id` is used when the draft has none, `actor` likewise.

    Raises InvalidInput. The result can be recorded without further checks of its form.
    """
    actor = actor if draft.actor is None else draft.actor
    if type(actor) is DefaultActor:
        actor = str(actor)
    flat = _prepare_flat(draft, id, actor)
    if flat is not None:
        return flat
    _check_names(draft, actor)
    assert actor is not None  # _check_names saw to it
    caller_chose_id = draft.id is not None
    id = id if draft.id is None else draft.id
    ids = (draft.cause, draft.invocation_id, draft.correlation_id, draft.wake_id)
    names = (id, draft.type, actor, *ids)
    ops = collect_ops(draft)
    marked, referring = False, False
    for o in ops:
        if ":" in o.path[0]:  # type: ignore[operator]  # checked: a name
            marked = True
        if type(o) in op.REFS:
            referring = True
    temp: tuple[op.PlainOp, ...] = ()
    if marked:
        ops, temp = _without_temporary(ops, draft.data)
    raw, body = _encode(draft.data, tuple(ops))
    plain: Any = body.ops
    if referring:
        plain = tuple([op.resolve(o, body.data) for o in plain])
    scoped = marked and any([op.scope_of(o.path[0]) != "session" for o in plain])
    by_type = is_input(draft.type)
    digest = header_digest(names, marked=draft.input and not by_type)
    input = by_type or draft.input
    body_of = (body.data, body.ops, plain, scoped, temp, raw, digest, input)
    changes = ops or input or draft.type.startswith(RESERVED)
    return Prepared(id, caller_chose_id, *names[1:], *body_of, plain=not changes)  # type: ignore[arg-type]  # frozen


def with_via(draft: Prepared, principal: str) -> Prepared:
    """Return a draft whose data says which principal records what a user said. Raises
    EventTooLarge."""
    data = FrozenDict({**draft.data, VIA: principal})
    raw = encode(Body(data, draft.ops))
    if len(raw) > EVENT_BYTES_MAX:
        raise EventTooLarge(len(raw), EVENT_BYTES_MAX)
    plain, _ = _resolve(draft.ops, data)
    return msgspec.structs.replace(draft, data=data, plain_ops=plain, raw=raw)


def prepare_plain(fact: Fact, *, id: str, actor: str) -> Prepared:
    """Like `prepare`, for facts whose constructors put nothing but texts, numbers in 64 bits and
    lists of them into their data: it needs no second look. Operations, if there are any, are a
    tuple, on names of the session, with such values. The actor was checked."""
    if type(actor) is DefaultActor:
        actor = str(actor)
    data, ops = fact.data, fact.ops
    plain = type(data) is dict and type(ops) is tuple and not fact.set and fact.delete == ()
    raw = try_encode(Body(data, ops)) if plain else None  # type: ignore[arg-type]  # a tuple
    if raw is None or len(raw) > EVENT_BYTES_MAX:
        return prepare(fact, id=id, actor=actor)
    caller_chose_id = fact.id is not None
    id = id if fact.id is None else fact.id
    ids = (fact.cause, fact.invocation_id, fact.correlation_id, fact.wake_id)
    digest = header_digest((id, fact.type, actor, *ids))
    frozen = freeze(data)
    plain_ops = tuple([op.resolve(o, frozen) for o in ops])
    body: Any = (frozen, ops, plain_ops, False, (), raw, digest)
    return Prepared(id, caller_chose_id, fact.type, actor, *ids, *body)


def _prepare_flat(draft: Draft, id: str, actor: str | None) -> Prepared | None:
    """Prepare a draft as `prepare_flat` does."""
    if draft.input is not False or not sets_only(draft):
        return None
    ids = (draft.id, draft.cause, draft.invocation_id, draft.correlation_id, draft.wake_id)
    named = None if ids == _NO_IDS else ids
    return prepare_flat(draft.type, draft.data, draft.set, id, actor, named)


def prepare_flat(
    type_: str, data: object, given: object, id: str, actor: str | None, ids: _Ids | None = None
) -> Prepared | None:
    """The common case on the hot path: small plain data, plain ids, names of the session that are
    set to plain values, nothing else. None for any other draft, which `prepare` checks."""
    if (
        type(data) is not dict
        or type(given) is not dict
        or type(type_) is not str
        or type(actor) is not str
        or (type_ == USER_MESSAGE and says_nothing(data))
        or (names := _names(type_, actor)) is None
        or (copy := frozen_copy(data) if data else EMPTY) is None
        or (set_to := set_all(given, data) if given else NOTHING_SET) is None
    ):
        return None
    tail, input = names
    ops, sets = set_to
    try:
        raw = encode(Body(copy, ops))
    except UnicodeEncodeError:  # half of a pair of surrogates
        return None
    chosen = cause = invocation = correlation = wake = None
    if ids is None:
        header = header_of(id, tail)
    elif _are_plain(ids):
        chosen, cause, invocation, correlation, wake = ids
        id = id if chosen is None else chosen
        header = header_digest((id, type_, actor, *ids[1:]))
    else:
        return None
    if len(raw) > EVENT_BYTES_MAX:
        return None
    return Prepared(
        id,
        chosen is not None,
        type_,
        actor,
        cause,
        invocation,
        correlation,
        wake,
        copy,
        ops,
        ops,
        False,
        (),
        raw,
        header,
        input,
        None,
        None,
        sets,
        not input,
    )


def _are_plain(ids: _Ids) -> bool:
    """True if the ids that a draft names need no closer look."""
    for id in ids:
        if id is not None and (type(id) is not str or unfit(id, ID_CHARS_MAX)):
            return False
    return True


@lru_cache(maxsize=4_096)  # the same few types and actors come again and again
def _names(type: str, actor: str) -> tuple[bytes, bool] | None:
    """Return what a header goes on with after the id, and whether the type is that of an input.
    None if a name is wrong or reserved."""
    if _type_problem(type) or type.startswith(RESERVED) or unfit(actor, ACTOR_CHARS_MAX):
        return None
    return header_tail(type, actor), is_input(type)


def _without_temporary(
    ops: list[op.Op], data: Mapping[str, Any]
) -> tuple[list[op.Op], tuple[op.PlainOp, ...]]:
    """Separate the temp: operations from the rest. Their values are checked like all others."""
    temp = tuple(o for o in ops if op.scope_of(str(o.path[0])) == "temp")
    if not temp:
        return ops, ()
    _, body = _encode(data, temp)
    rest = [o for o in ops if op.scope_of(str(o.path[0])) != "temp"]
    return rest, tuple(op.resolve(o, body.data) for o in body.ops)


def _encode(data: Mapping[str, Any], ops: tuple[op.Op, ...]) -> tuple[bytes, Body]:
    body = Body(data, ops)  # type: ignore[arg-type]  # looked at below
    if type(data) is dict and _is_flat(data, ops) and (flat := try_encode(body)) is not None:
        raw, back = flat, Body(FrozenDict(data), ops)
    elif (trip := round_trip(body, _decode_body)) is not None:
        raw, back = trip[0], _frozen(trip[1])
    else:
        raw = encode(_settled(data, ops))
        back = _frozen(_decode_body(raw))
    if len(raw) > EVENT_BYTES_MAX:
        raise EventTooLarge(len(raw), EVENT_BYTES_MAX)
    return raw, back


def _is_flat(data: dict[str, Any], ops: tuple[op.Op, ...]) -> bool:
    """True if everything in the body is immutable and reads back unchanged: nothing to copy."""
    for o in ops:
        if type(o) is not op.Set or len(o.path) != 1 or not is_exact(o.value):
            return False
    return all([type(name) is str and is_exact(value) for name, value in data.items()])


def _settled(data: Any, ops: tuple[op.Op, ...]) -> Body:
    """The slow path: the same body in plain values, or the exact reason why it cannot be stored."""
    if not isinstance(data, Mapping):
        raise InvalidValue("data", unfitting(data, "not a dict"))
    settled: list[op.Op] = []
    for o in ops:
        where = f"the value at {op.show(o.path)}"
        match o:
            case op.Set(path=path, value=value):
                settled.append(op.Set(path, settle(value, where)))
            case op.Merge(path=path, value=value):
                settled.append(op.Merge(path, settle(value, where)))
            case op.Add(path=path, items=items):
                settled.append(op.Add(path, settle(items, where)))
            case op.Insert(path=path, at=at, items=items):
                settled.append(op.Insert(path, at, settle(items, where)))
            case op.Inc(path=path, by=by):
                settled.append(op.Inc(path, settle(by, where)))
            case _:
                settled.append(o)
    for o in settled:
        settle([*o.path, *getattr(o, "ref", ())], "a path")
    return Body(settle(data, "data"), tuple(settled))


def check_recorded(event: Event, raw: bytes) -> None:
    """Check an event that was recorded elsewhere as `prepare` checks a draft: its names, its place
    and time, every value and operation, and that its body is encoded as ours are. Raises
    InvalidInput."""
    if not 1 <= event.seq <= INT_MAX:
        raise InvalidEvent(f"its seq is not a number from 1 to {INT_MAX:,}")
    if not TIME_US_MIN <= event.at_us <= TIME_US_MAX:
        raise InvalidEvent("its time is beyond the years that a datetime has")
    if problem := _type_problem(event.type):
        raise InvalidEvent(problem)
    if reason := unfit(event.actor, ACTOR_CHARS_MAX):
        raise InvalidEvent(f"its actor {reason}")
    ids = (event.id, event.cause, event.invocation_id, event.correlation_id, event.wake_id)
    for name, value in zip(_IDS, ids, strict=True):
        if value is not None and (reason := unfit(value, ID_CHARS_MAX)):
            raise InvalidEvent(f"its {name} {reason}")
    if len(raw) > EVENT_BYTES_MAX:
        raise EventTooLarge(len(raw), EVENT_BYTES_MAX)
    _check_ops(event.ops)
    _check_encoding(event.data, event.ops, raw)


def _check_ops(ops: tuple[op.Op, ...]) -> None:
    """Check operations that were made elsewhere. Raises InvalidInput."""
    if len(ops) > OPS_PER_EVENT_MAX:
        raise InvalidEvent(f"{len(ops):,} operations, more than {OPS_PER_EVENT_MAX:,}")
    for o in ops:
        op.check(o)
        if op.scope_of(str(o.path[0])) == "temp":
            raise InvalidEvent("it stores a temp: name, which is never stored")


def _check_encoding(data: Any, ops: tuple[op.Op, ...], raw: bytes) -> None:
    """Check the values and the bytes of a body that was encoded elsewhere. Raises InvalidInput."""
    if not are_plain_bytes(raw):
        _settled(data, ops)
    if encode(Body(data, ops)) != raw:
        raise InvalidEvent("its body is encoded in another way than ours")


def prepare_encoded(names: Names, raw: bytes, *, caller_chose_id: bool, input: bool) -> Prepared:
    """Prepare again what another process has prepared: nothing of it is believed but its names and
    its encoded body, which are checked as `prepare` checks a draft.

    It may be of a reserved type: which of them somebody may write is decided by a guard, and their
    data is checked when they are recorded. An id that is not of our form counts as chosen, whatever
    is said: stores take others as they are. Raises InvalidInput.
    """
    id, type_, actor = names[:3]
    if problem := _type_problem(type_):
        raise InvalidEvent(problem)
    if reason := unfit(actor, ACTOR_CHARS_MAX):
        raise InvalidEvent(f"its actor {reason}")
    for name, value in zip(_IDS, (id, *names[3:]), strict=True):
        if value is not None and (reason := unfit_id(value)):
            raise InvalidEvent(f"its {name} {reason}")
    if len(raw) > EVENT_BYTES_MAX:
        raise EventTooLarge(len(raw), EVENT_BYTES_MAX)
    try:
        body = decode_body(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidEvent(f"its body cannot be read ({error})") from error
    data, ops = body.data, body.ops
    if type_ == USER_MESSAGE and says_nothing(data):
        raise InvalidEvent(_SAYS_NOTHING)
    sets, plain, scoped = _sets_of(ops), cast(tuple[op.PlainOp, ...], ops), False
    if ops and sets is None:
        _check_ops(ops)
        plain, scoped = _resolve(ops, data)
    _check_encoding(data, ops, raw)
    by_type = is_input(type_)
    changes = input or by_type or (ops and sets is None) or type_.startswith(RESERVED)
    return Prepared(
        id,
        caller_chose_id or not is_new_id(id),
        *names[1:],
        data,
        ops,
        plain,
        scoped,
        (),
        raw,
        header_digest(names, marked=input and not by_type),
        input or by_type,
        sets=sets,
        plain=not changes,
    )


def _sets_of(ops: tuple[op.Op, ...]) -> dict[str, Any] | None:
    """Return the names of the session's own that operations set, with their values; None if one of
    them does more or needs a closer look."""
    if not 0 < len(ops) <= OPS_PER_EVENT_MAX:
        return None
    sets: dict[str, Any] = {}
    for o in ops:
        if type(o) is not _Set or len(o.path) != 1 or _own_path(o.path[0]) is None:
            return None
        sets[o.path[0]] = o.value  # type: ignore[index]  # a name, as just seen
    return sets


def _resolve(ops: tuple[op.Op, ...], data: Any) -> tuple[tuple[op.PlainOp, ...], bool]:
    """Return operations with their references resolved, and whether one is on a shared name."""
    plain: Any = ops
    if any([type(o) in op.REFS for o in ops]):
        plain = tuple([op.resolve(o, data) for o in ops])
    return plain, any([op.scope_of(str(o.path[0])) != "session" for o in ops])


def _check_names(draft: Draft, actor: str | None) -> None:
    if not isinstance(draft.type, str) or (problem := _type_problem(draft.type)):
        raise InvalidEvent(problem if isinstance(draft.type, str) else "its type is not text")
    if draft.type.startswith(RESERVED) and not isinstance(draft, Fact):
        raise ReservedType(draft.type)
    if actor is None:
        raise ActorMissing
    if reason := unfit(actor, ACTOR_CHARS_MAX):
        raise InvalidEvent(f"its actor {reason}; name who acts, for example actor='agent:main'")
    ids = (draft.id, draft.cause, draft.invocation_id, draft.correlation_id, draft.wake_id)
    if draft.type == USER_MESSAGE and says_nothing(draft.data):
        raise InvalidEvent(_SAYS_NOTHING)
    if type(draft.input) is not bool:
        raise InvalidEvent("input is True or False: whether the event waits to be processed")
    if ids == _NO_IDS:
        return
    for name, value in zip(_IDS, ids, strict=True):
        if value is not None and (reason := unfit(value, ID_CHARS_MAX)):
            raise InvalidEvent(f"its {name} {reason}")


def says_nothing(data: object) -> bool:
    """True if the data of a new message has neither a text nor a content. Messages that earlier
    releases recorded may have neither: they are adopted and read as they are."""
    return isinstance(data, Mapping) and data.get("text") is None and data.get("content") is None


@lru_cache(maxsize=1_024)
def _type_problem(type: str) -> str | None:
    if reason := unfit(type, TYPE_CHARS_MAX):
        return f"its type {reason}"
    parts = type.split(".")
    if len(parts) < 2 or not all(parts) or "*" in type or any(map(str.isspace, type)):
        return f"its type {type!r} is not dotted, as in 'user.message'"
    return None


# --- the operations of a draft --------------------------------------------------------------------


def sets_only(draft: Draft) -> bool:
    """True if the draft changes state by nothing but `set`."""
    merge, add, inc = draft.merge, draft.add, draft.inc
    if (
        type(draft.set) is dict and type(merge) is dict and type(add) is dict and type(inc) is dict
    ):  # looked at first: an array, say, is neither true nor false
        return not (merge or add or inc) and draft.delete == () and draft.ops == ()
    return False


def set_all(given: Mapping[str, Any], data: Mapping[str, Any]) -> Sets | None:
    """The operations of a `set` of plain values, and what they do; None if a name or a value needs
    a closer look."""
    sets = dict(given)  # looked at below, and nobody else's
    ops = []
    for name, value in sets.items():
        path = _own_path(name)
        kind = type(value)
        if kind is str:
            if len(value) >= _REFER_CHARS_MIN and _reference(value, data) is not None:
                return None
        elif kind is int:
            if not INT_MIN <= value <= INT_MAX:
                return None
        elif kind is float:
            if value - value != 0.0:  # not finite
                return None
        elif value is not None and kind is not bool:
            return None
        if path is None:
            return None
        ops.append(_Set(path, value))
    return (tuple(ops), sets) if len(ops) <= OPS_PER_EVENT_MAX else None


@lru_cache(maxsize=4_096)
def _own_path(name: object) -> op.Path | None:
    """The path of a name of the session's own; None if it is another's, or is no such name."""
    if type(name) is not str or ":" in name or unfit(name, NAME_CHARS_MAX):
        return None
    return (name,)


def collect_ops(draft: Draft) -> list[op.Op]:
    """All operations of a draft in the order they apply, each checked for its form."""
    data = draft.data
    for name, given in zip(_SUGAR, (draft.set, draft.merge, draft.add, draft.inc), strict=True):
        if type(given) is not dict and not isinstance(given, Mapping):
            raise InvalidOp(f"{name} takes a dict of names in state, not {type(given).__name__}")
    ops: list[op.Op] = []
    if draft.set:
        ops += [_set_op(name, value, data) for name, value in draft.set.items()]
    if draft.merge:
        ops += [op.check(op.Merge(_path(n), value)) for n, value in draft.merge.items()]  # type: ignore[arg-type]
    for name, items in draft.add.items():
        ops += _add_ops(name, items, data)
    if draft.inc:
        ops += [op.check(op.Inc(_path(name), by)) for name, by in draft.inc.items()]
    if draft.delete:
        if isinstance(draft.delete, str) or not isinstance(draft.delete, Iterable):
            raise InvalidOp(f"delete takes names, as in delete=[{str(draft.delete)!r}]")
        ops += [op.Delete((op.check_name(name, deleted=True),)) for name in draft.delete]
    if draft.ops != ():
        if not isinstance(draft.ops, Iterable):
            raise InvalidOp("ops takes a list of operations")
        ops += [op.check(o) for o in draft.ops]
    if len(ops) > OPS_PER_EVENT_MAX:
        raise InvalidOp(f"{len(ops):,} operations in one event, more than {OPS_PER_EVENT_MAX:,}")
    return ops


def _path(name: str) -> op.Path:
    return (op.check_name(name),)


def _set_op(name: str, value: Any, data: Any) -> op.Op:
    if type(value) in _REFERABLE and (ref := _reference(value, data)) is not None:
        return op.SetRef(_path(name), ref)
    return op.Set(_path(name), value)


def _add_ops(name: str, items: Sequence[Any], data: Any) -> list[op.Op]:
    path = _path(name)
    if not isinstance(items, (list, tuple)):
        raise InvalidOp(f"add={{{name!r}: …}} takes a list of items")
    refs = [_reference(item, data) for item in items]
    if not any(ref is not None for ref in refs):
        return [op.Add(path, items)]  # a tuple is settled to a list
    return [
        op.Add(path, [item]) if ref is None else op.AddRef(path, ref)
        for item, ref in zip(items, refs, strict=True)
    ]


def _reference(value: Any, data: Any) -> op.Path | None:
    """The path of the object `value` itself in `data`, if a reference saves space."""
    if isinstance(value, str):
        if len(value) < _REFER_CHARS_MIN:
            return None
    elif not isinstance(value, (dict, list)) or not value:
        return None
    if value is data:
        return ()
    if isinstance(data, dict):
        for name, part in data.items():
            if part is value:
                return (name,)
    return None
