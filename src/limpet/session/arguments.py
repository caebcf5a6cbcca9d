"""Arguments of the verbs that no other part looks at, checked before anything is asked.

What is wrong is the caller's mistake and reported as such (InvalidInput), on every store: a store
is never handed what it would stumble over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from limpet.errors import (
    ExtraMissing,
    InvalidEvent,
    InvalidInput,
    InvalidKey,
    InvalidQuery,
    ReservedApp,
    ReservedType,
)
from limpet.model import Fact, Key, Lease, Reasons, described, is_reserved, to_time, to_us, unfit
from limpet.model.facts.documents import FAMILY
from limpet.model.facts.moves import NODE_CHARS_MAX
from limpet.model.limits import (
    ACTOR_CHARS_MAX,
    ID_CHARS_MAX,
    INT_MAX,
    KEY_PART_CHARS_MAX,
    LEASE_SECONDS_MAX,
    PAGE_MAX,
    QUERY_TYPES_MAX,
    REASON_CHARS_MAX,
    TAIL_LOADED,
    TYPE_CHARS_MAX,
    WORKER_CHARS_MAX,
)
from limpet.store.protocol import Progress

if TYPE_CHECKING:
    from limpet.model.state.migrations import MigrationRegistry
    from limpet.session.schema.typed import Typed

T = TypeVar("T", bound=Callable[..., Any])
AnyKey: TypeAlias = Key | tuple[str, str, str]


def key_of(
    key: AnyKey | str | None,
    user: str | None = None,
    id: str | None = None,
    *,
    reserved: bool = False,
) -> Key:
    """The key that a verb was given: a Key, a tuple, or app, user and id. Raises InvalidKey.

    ReservedApp if it is not that of a session, unless the verb is for documents too.
    """
    parsed = _key_of(key, user, id)
    if not reserved:
        check_sessions(parsed.app)
    return parsed


def one_or_all(
    key: AnyKey | str | None, user: str | None, id: str | None, *, reserved: bool = False
) -> Key | None:
    """The key, or None for everything, if nothing at all was given. Raises as `key_of` does: a user
    alone must not be taken for all of them."""
    if key is None and user is None and id is None:
        return None
    return key_of(key, user, id, reserved=reserved)


def check_sessions(app: str | None) -> str | None:
    """An app of sessions, or None for all of them. Raises ReservedApp, InvalidQuery."""
    if check_app(app) is not None and is_reserved(str(app)):
        raise ReservedApp(str(app))
    return app


def check_app(app: str | None) -> str | None:
    """An app to look into, or None for all. Raises InvalidQuery."""
    if app is not None and (reason := unfit(app, KEY_PART_CHARS_MAX)):
        raise InvalidQuery(f"the app {app!r} {reason}")
    return app


def _key_of(key: AnyKey | str | None, user: str | None, id: str | None) -> Key:
    if isinstance(key, str):
        for part, text in (("user", user), ("id", id)):
            if text is None:
                raise InvalidKey(part, "is missing: pass app, user and id, or one limpet.Key")
        return Key(key, user, id)  # type: ignore[arg-type]  # both are there
    if user is not None or id is not None:
        given = f"is {described(key)} with other arguments after it"
        raise InvalidKey("form", f"{given}: pass app, user and id, or one limpet.Key")
    if isinstance(key, Key):
        return key
    if not isinstance(key, tuple) or len(key) != 3:
        raise InvalidKey("form", f"is {key!r}, neither a limpet.Key nor (app, user, id)")
    return Key(*key)


def key_and(given: tuple[Any, ...], last: Any, what: str) -> tuple[Key, Any]:
    """A key in any form and the one argument behind it. Raises InvalidKey, InvalidInput.

    For verbs such as `export(key, path)`, which app, user, id and a path fit as well.
    """
    if last is None:
        if len(given) not in (2, 4):
            raise InvalidInput(
                f"pass a key, then {what}. A key is one limpet.Key, or app, user and id."
            )
        given, last = given[:-1], given[-1]
    return key_of(*given), last


def own_key(app: str, user: str, id: str) -> Key:
    """The key of a new session, which is not one of ours. Raises InvalidKey, ReservedApp."""
    key = Key(app, user, id)
    check_sessions(app)
    return key


def check_ids(ids: Iterable[str]) -> tuple[str, ...]:
    """Ids of events to read."""
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise InvalidQuery("read_ids takes a list of event ids")
    wanted = tuple(ids)
    if len(wanted) > PAGE_MAX:
        raise InvalidQuery(f"it asks for {len(wanted):,} ids at once; the limit is {PAGE_MAX:,}")
    for each in wanted:
        if reason := unfit(each, ID_CHARS_MAX):
            raise InvalidQuery(f"the id {described(each)} {reason}")
    return wanted


def check_token(token: object) -> str:
    """Check what `c.token` was: a text, empty where every read sees every commit."""
    if not isinstance(token, str):
        raise InvalidQuery(
            f"at_least must be the token of a commit, c.token, not {described(token)}"
        )
    return token


def check_actor(actor: str | None) -> str | None:
    """Return the actor that is bound to a session, if any."""
    if actor is not None and (reason := unfit(actor, ACTOR_CHARS_MAX)):
        raise InvalidInput(f"the actor {reason}. Name who acts, as in actor='agent:main'.")
    return actor


def check_progress(progress: Progress | None) -> Progress | None:
    if progress is not None and not callable(progress):
        raise InvalidInput(
            f"progress is {described(progress)}. Pass a function that takes two numbers: how many "
            "are done, and of how many."
        )
    return progress


def check_move(deadline: float, checkpoints: int, *, force: bool) -> None:
    """Check how a session is to be moved."""
    if type(deadline) not in (int, float) or not 0 < deadline <= LEASE_SECONDS_MAX:
        raise InvalidInput(
            f"deadline is a number of seconds up to {LEASE_SECONDS_MAX:,}, not "
            f"{described(deadline)}."
        )
    if type(checkpoints) is not int or checkpoints < 0:
        raise InvalidInput(
            f"checkpoints is how many of the newest keep their states, not "
            f"{described(checkpoints)}."
        )
    check_flag("force", force)


def check_reclaim(lost: str, epoch: int, reason: str) -> None:
    """Check what is said of a target that is lost. Raises InvalidInput."""
    if fault := unfit(lost, NODE_CHARS_MAX):
        raise InvalidInput(
            f"the node that is lost {fault}. Name the one that the session left for: lp.home(key)."
        )
    if type(epoch) is not int or not 1 <= epoch < INT_MAX:
        raise InvalidInput(
            f"epoch is the number of the move that is not finished, as lp.home(key) has it, not "
            f"{described(epoch)}."
        )
    if fault := unfit(reason, REASON_CHARS_MAX):
        raise InvalidInput(f"the reason {fault}. Say why the target is lost: it is recorded.")


def check_change(change: T) -> T:
    """Check what `update` calls."""
    if not callable(change):
        raise InvalidInput(
            f"update takes a function, not {described(change)}. Pass one that takes the state and "
            "returns the names to set, or append an event with set=…."
        )
    if iscoroutinefunction(change):
        raise InvalidInput(
            "update takes a plain function, not an async one: it runs again if another writer was "
            "faster. Await what it needs first, then update."
        )
    return change


def check_fact(fact: Any) -> Fact:
    """Check an argument of `record`: facts come from constructors; documents are only put."""
    if not isinstance(fact, Fact):
        raise InvalidInput(
            f"record takes facts, not {described(fact)}. Make them with limpet.facts, as in "
            "limpet.facts.labeled({'plan': 'gold'}); append records events of your own."
        )
    if isinstance(fact.type, str) and fact.type.startswith(FAMILY):
        raise ReservedType(fact.type)
    return fact


def check_many(drafts: Iterable[Any]) -> Iterable[Any]:
    """Check the arguments of `append_many`; each draft is checked separately."""
    if not isinstance(drafts, Iterable):
        raise InvalidInput(
            f"append_many takes a list of drafts, not {described(drafts)}. Make them with "
            "limpet.Draft(type=…, data=…)."
        )
    return drafts


def timer_at(at: datetime | timedelta, now_us: int) -> datetime:
    """Return when a timer is due: at a time, or so long from now."""
    if not isinstance(at, timedelta):
        return at
    if at < timedelta(0):
        raise InvalidEvent(f"a timer must be due in 0 seconds or more, not {at.total_seconds():g}")
    try:
        return to_time(now_us) + at
    except OverflowError:
        raise InvalidEvent(
            f"a timer of {at.days:,} days would be due after the year 9999"
        ) from None


def moment_us(name: str, at: datetime | None) -> int | None:
    """A bound in time of a query, in microseconds since 1970."""
    if at is None:
        return None
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise InvalidQuery(
            f"{name} must be a datetime with a time zone, as in datetime.now(UTC), not "
            f"{described(at)}"
        )
    return to_us(at)


def tail_of(tail: int | None, since: datetime | None) -> int:
    """Return how many of the last events to load: as said; else all since a time, as far as they
    go."""
    if tail is None:
        return TAIL_LOADED if since is None else PAGE_MAX
    return check_tail(tail)


def check_flag(name: str, flag: object) -> None:
    """Yes or no, and nothing that only counts as one of them."""
    if not isinstance(flag, bool):
        raise InvalidQuery(f"{name} must be True or False, not {described(flag)}")


def check_forks(forks: object) -> None:
    """Check what `erase` is to do about the forks of a session."""
    if forks not in ("refuse", "erase", "keep"):
        raise InvalidInput(
            f"forks is {described(forks)}. Pass 'refuse', 'erase' (erase them too) or 'keep' "
            "(they keep their state)."
        )


def check_types(types: object) -> tuple[str, ...] | None:
    """The selection as a tuple, each entry a type or a family."""
    if types is None:
        return None
    if isinstance(types, str) or not hasattr(types, "__iter__"):
        raise InvalidQuery("types takes a list, as in types=['user.message', 'agent.*']")
    wanted = tuple(types)
    if len(wanted) > QUERY_TYPES_MAX:
        raise InvalidQuery(
            f"it asks for {len(wanted)} types at once; the limit is {QUERY_TYPES_MAX}"
        )
    for each in wanted:
        if reason := unfit(each, TYPE_CHARS_MAX):
            raise InvalidQuery(f"the type {described(each)} {reason}")
    return wanted


def check_limit(limit: object) -> int:
    """A page size within bounds."""
    if type(limit) is not int or not 1 <= limit <= PAGE_MAX:
        shown = described(limit)
        raise InvalidQuery(
            f"limit must be from 1 to {PAGE_MAX:,}, not {shown}; read more page by page"
        )
    return limit


def check_tail(tail: object) -> int:
    """Check how many of the last events are loaded."""
    if type(tail) is not int or not 0 <= tail <= PAGE_MAX:
        shown = described(tail)
        raise InvalidQuery(
            f"tail must be from 0 to {PAGE_MAX:,} events, not {shown}; read more page by page"
        )
    return tail


def check_before(before: object) -> int | None:
    """A seq to end before, or none."""
    if before is not None and (type(before) is not int or not 1 <= before <= INT_MAX):
        raise InvalidQuery(f"before must be a seq, 1 or more, not {described(before)}")
    return before


def check_seq(after: object) -> int:
    """A seq to begin from."""
    if type(after) is not int or not 0 <= after <= INT_MAX:
        raise InvalidQuery(f"after must be a seq, 0 or more, not {described(after)}")
    return after


def check_attempt(attempt: object, *, partial: bool = True) -> int:
    """Check the attempt that a partial event belongs to, from 1."""
    if type(attempt) is not int or not 1 <= attempt <= INT_MAX:
        raise InvalidInput(f"attempt must be a number, 1 or more, not {described(attempt)}.")
    if not partial:
        raise InvalidInput("attempt belongs to a partial event. Leave it out, or add partial=True.")
    return attempt


def check_expect(expect: object) -> int | None:
    """A version to expect, or none; True is not 1 here."""
    if expect is None:
        return None
    if type(expect) is not int or not 0 <= expect <= INT_MAX:
        raise InvalidInput(
            f"expect must be a version, not {described(expect)}. Pass the version that you "
            "read the session at, or leave it out."
        )
    return expect


def check_worker(worker: str) -> str:
    if reason := unfit(worker, WORKER_CHARS_MAX):
        raise InvalidInput(
            f"the worker's name {reason}. Name who holds the lease, as in 'worker-1'."
        )
    return worker


def check_claim(limit: object) -> int:
    """Check how many sessions one claim may lease."""
    if type(limit) is not int or not 1 <= limit <= PAGE_MAX:
        raise InvalidInput(
            f"a claim can be for 1 to {PAGE_MAX:,} sessions, not {described(limit)}. Claim again "
            "for more."
        )
    return limit


def check_lease(lease: Lease) -> Lease:
    """A lease in the form that a store returns. Only the store knows whether it is still held."""
    valid = (
        isinstance(lease, Lease)
        and isinstance(lease.key, Key)
        and type(lease.fence) is int
        and 0 <= lease.fence <= INT_MAX
        and isinstance(lease.reasons, Reasons)
    )
    if not valid:
        raise InvalidInput(
            f"{described(lease)} is not a lease. Pass what lp.work.claim or lp.work.lock returned."
        )
    return lease


def check_lease_seconds(seconds: float) -> float:
    if type(seconds) not in (int, float) or not 0.000_001 <= seconds <= LEASE_SECONDS_MAX:
        raise InvalidInput(
            f"a lease lasts more than 0 and at most {LEASE_SECONDS_MAX:,} seconds, not "
            f"{described(seconds)}. Renew it before it ends if you need longer."
        )
    return seconds


def check_retry_seconds(seconds: float | None) -> float | None:
    if seconds is None:
        return None
    if type(seconds) not in (int, float) or not 0 <= seconds <= LEASE_SECONDS_MAX:
        raise InvalidInput(
            f"retry_seconds must be from 0 to {LEASE_SECONDS_MAX:,}, not {described(seconds)}. "
            "Leave it out to make the session due at once."
        )
    return seconds


def typed_of(
    state_type: type[Any] | None, migrations: MigrationRegistry | None, *, untyped: bool = False
) -> Typed[Any] | None:
    """The class that a session is seen by, if one was given; pydantic is imported only then."""
    if state_type is None:
        if migrations is not None:
            raise InvalidInput("migrations need typed state. Pass a state_type with them.")
        return None
    check_untyped(untyped=untyped)
    with pydantic_needed():
        from limpet.session.schema.typed import Typed
    return Typed(state_type, migrations)


def check_untyped(*, untyped: bool) -> None:
    """Refuse untyped=True beside a State class, which it would bypass."""
    if untyped:
        raise InvalidInput(
            "untyped=True bypasses the state_type passed with it. Leave out one of the two."
        )


@contextmanager
def pydantic_needed() -> Iterator[None]:
    """Around what imports typed state: names the extra if it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("pydantic"):
            raise
        raise ExtraMissing("pydantic", "state") from error
