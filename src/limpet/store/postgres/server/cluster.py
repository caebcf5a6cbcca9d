"""A cluster: several servers, of which one is written to, and the quorum that a commit waits for.

    postgresql://h1,h2,h3/db?write_quorum=2&replicas=3&reads=any&behind=wait&quorum_seconds=5

R is `replicas`, all servers together; C_W is `write_quorum`, those that have a commit on disk
before it is acknowledged, the primary among them; C_R is `read_quorum`, those that are heard before
one of them is taken for the primary. Each is at least ⌊R/2⌋+1, so C_R + C_W > R: among those who
are heard is one that knows of every acknowledged commit, and of every promotion.

The servers do the waiting (`synchronous_standby_names`). This module compares their settings with
the URL, finds the primary, and says so when a commit waits in vain. After a promotion two servers
may both take themselves for the primary: the one on the newest timeline is.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final, Literal, TypeVar, cast
from urllib.parse import parse_qs, urlsplit

import asyncpg
import msgspec

from limpet.errors import Asked, InvalidURL, QuorumUnavailable, StoreUnopened
from limpet.model import Key
from limpet.store.logs import POSTGRES
from limpet.store.postgres.server.settings import (
    CLUSTER,
    CONNECT_SECONDS_MAX,
    DIRECT,
    DRIVER,
    POOLER,
    SESSION,
    STATEMENT_SECONDS_MAX,
    Connection,
    driver_url,
    hosts,
    is_pooled,
    where,
)
from limpet.store.postgres.sql import SQL

T = TypeVar("T")
Reads = Literal["primary", "any"]
Behind = Literal["wait", "primary", "fail"]

QUORUM_SECONDS: Final = 5.0
QUORUM_SECONDS_MAX: Final = 600.0
REPLICAS_MAX: Final = 100
ASK_SECONDS_MAX: Final = 2.0  # for one server to say what it is
LOOK_SECONDS: Final = 2.0  # between two looks at the other servers, while the store is used
BACK_SECONDS: Final = 0.05  # between two questions whether the quorum is back
TOKENS_MAX: Final = 65_536  # sessions whose last commit is known
_CHOICES: Final = {"reads": ("primary", "any"), "behind": ("wait", "primary", "fail")}
_EXAMPLE: Final = "Write for example postgresql://h1,h2,h3/db?replicas=3&write_quorum=2"
_SETTINGS: Final = (
    f"The options of a cluster are {', '.join(CLUSTER)}. Set other settings of the server there, "
    "by ALTER ROLE … SET"
)
_RULE: Final = "each is at least ⌊R/2⌋+1 and at most R, so that C_R + C_W > R"
_WAITING: Final = "canceling wait for synchronous replication"
_NAMED: Final = re.compile(
    r"\s*(?:(?P<how>ANY|FIRST)\s+)?(?P<many>[0-9]+)\s*\((?P<names>.*)\)\s*", re.I
)


class ClusterOptions(msgspec.Struct, frozen=True):
    """The options of a URL that names a cluster."""

    hosts: tuple[tuple[str, int | None], ...]
    replicas: int
    write_quorum: int
    read_quorum: int
    reads: Reads = "primary"
    behind: Behind = "wait"
    quorum_seconds: float = QUORUM_SECONDS

    @property
    def standbys(self) -> int:
        """The number of servers beside the primary that have a commit before it is acknowledged."""
        return self.write_quorum - 1

    @property
    def command_seconds(self) -> float:
        """The time that the driver waits for one command. It cancels what takes longer, which
        would end a wait for the quorum: `Cluster.acknowledged` has left the connection by then."""
        return STATEMENT_SECONDS_MAX + 2 * self.quorum_seconds

    @property
    def setting(self) -> str:
        """A setting of the servers that gives this quorum."""
        return f"synchronous_standby_names = 'ANY {self.standbys} (*)'"


@lru_cache(maxsize=256)
def cluster_options(url: str) -> ClusterOptions | None:
    """The cluster that a URL names; None if it names none. Raises InvalidURL."""
    place, named = where(url), tuple(hosts(url))
    given = _given(url, place)
    if not given:
        return None
    if is_pooled(url):
        raise InvalidURL(
            place, "a pooler hides which server answers; name the servers themselves", _EXAMPLE
        )
    for name, values in _CHOICES.items():
        if given.get(name, values[0]) not in values:
            raise InvalidURL(
                place, f"{name} is {' or '.join(values)}, not {given[name]!r}", _EXAMPLE
            )
    replicas = _number(place, given, "replicas", len(named))
    if not 2 <= replicas <= REPLICAS_MAX:
        reason = f"replicas is the number R of all servers, 2 to {REPLICAS_MAX}, not {replicas}"
        raise InvalidURL(place, reason, _EXAMPLE)
    if len(named) > replicas:
        raise InvalidURL(
            place, f"it names {len(named)} hosts, more than replicas={replicas}", _EXAMPLE
        )
    most = replicas // 2 + 1
    write = _number(place, given, "write_quorum", most)
    read = _number(place, given, "read_quorum", most)
    for name, symbol, quorum in (("write_quorum", "C_W", write), ("read_quorum", "C_R", read)):
        if not most <= quorum <= replicas:
            reason = (
                f"{name} ({symbol}) is {quorum}, and with replicas (R) = {replicas} it is "
                f"{most} to {replicas}: {_RULE}"
            )
            raise InvalidURL(place, reason, _EXAMPLE)
    return ClusterOptions(
        named,
        replicas,
        write,
        read,
        cast("Reads", given.get("reads", "primary")),
        cast("Behind", given.get("behind", "wait")),
        _seconds(place, given),
    )


def _given(url: str, place: str) -> dict[str, str]:
    """The options of a cluster that a URL has. Raises InvalidURL for one that is misspelt, since a
    store would be opened without the quorum that it asks for."""
    every = parse_qs(urlsplit(url).query, keep_blank_values=True)
    ours = [name for name in every if name in CLUSTER]
    for name in every:
        if name in CLUSTER and (len(every[name]) > 1 or not every[name][0]):
            text = "more than once" if len(every[name]) > 1 else "without a value"
            raise InvalidURL(place, f"it has the option {name} {text}", _EXAMPLE)
        if name in (*CLUSTER, POOLER, DIRECT) or name in DRIVER or name.lower() in SESSION:
            continue
        meant = get_close_matches(name.lower(), CLUSTER, 1, cutoff=0.8)
        if meant or (ours and "." not in name):  # a setting of an extension has a dot
            reason = f"it has the unknown option {name!r}"
            advice = f"Write {meant[0]}, if that is meant" if meant else _SETTINGS
            raise InvalidURL(place, reason, advice)
    return {name: every[name][0] for name in ours}


def _number(place: str, given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not re.fullmatch("[0-9]{1,6}", text):
        raise InvalidURL(place, f"{name} is a whole number, not {text!r}", _EXAMPLE)
    return int(text)


def _seconds(place: str, given: Mapping[str, str]) -> float:
    text = given.get("quorum_seconds", str(QUORUM_SECONDS))
    seconds = float(text) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) else 0.0
    if not 0 < seconds <= QUORUM_SECONDS_MAX:
        reason = f"quorum_seconds is a number above 0, up to {QUORUM_SECONDS_MAX:.0f}, not {text!r}"
        raise InvalidURL(place, reason, _EXAMPLE)
    return seconds


def standbys_awaited(names: str) -> int:
    """Return how many standbys a commit waits for, by a value of synchronous_standby_names."""
    if not names.strip():
        return 0
    match = _NAMED.fullmatch(names)
    return 1 if match is None else int(match["many"])


# --- the servers ---------------------------------------------------------------------------------


class Member(msgspec.Struct, frozen=True):
    """A server, as it described itself."""

    place: int  # among the hosts of the URL
    standby: bool
    timeline: int
    system: str  # the same for all servers of a cluster
    names: str  # synchronous_standby_names
    lsn: int  # written up to here; on a standby, replayed
    started: str  # another one after every start and every crash


class Cluster:
    """The servers that a URL names, and which of them is the primary.

    Shared by everything in the process that connects to this URL, on any event loop.
    """

    def __init__(self, url: str, options: ClusterOptions) -> None:
        self.options, self._url, self.where = options, url, where(url)
        self._primary: Member | None = None
        self.generation = 0  # raised when another server, or another timeline, is the primary
        self._looked_at = 0.0
        self._suspected = False  # look for another primary before the next connection
        self._waits_in_vain = False  # a commit did, and nobody has been acknowledged since
        self.doubts = 0  # how often a wait was heard to have been ended on the primary
        self.confirmed: object = None  # of which run, and with how many doubts: see `Pools`

    @property
    def primary(self) -> Member | None:
        return self._primary

    @property
    def run(self) -> tuple[int, int, str] | None:
        """The primary since its last start or crash."""
        primary = self._primary
        return None if primary is None else (primary.place, primary.timeline, primary.started)

    @property
    def timeline(self) -> int:
        return 0 if self._primary is None else self._primary.timeline

    async def connect(self, dsn: str | None = None, **arguments: Any) -> Connection:
        """A connection to the primary. Takes and raises what asyncpg.connect does."""
        if self._primary is None or self._suspected:
            await self.find()
        for again in (True, False):
            assert self._primary is not None
            try:
                return await self._to_primary(self._primary, arguments)
            except (
                OSError,
                asyncpg.PostgresError,
                asyncpg.InterfaceError,
                asyncpg.InternalClientError,
            ):
                if not again:
                    raise
                await self.find()
        raise AssertionError("the second try returns or raises")

    async def _to_primary(self, known: Member, arguments: Mapping[str, Any]) -> Connection:
        conn = await self.connect_to(known.place, **arguments)
        try:
            member = await _described(conn, known.place)
            if member.standby or member.timeline < self.timeline:
                raise asyncpg.TargetServerAttributeNotMatched("it is not the primary any more")
            self._take(member)
            await conn.execute(SQL["quorum_commits"])
        except BaseException:
            conn.terminate()
            raise
        return conn

    async def connect_to(self, place: int, **arguments: Any) -> Connection:
        """A connection to one of the hosts, whatever it is."""
        at: dict[str, Any] = {}
        if self.options.hosts:
            host, port = self.options.hosts[place]
            at = {"host": host} | ({} if port is None else {"port": port})
        timeout = min(arguments.pop("timeout", None) or CONNECT_SECONDS_MAX, CONNECT_SECONDS_MAX)
        return await asyncpg.connect(driver_url(self._url), **at, **arguments, timeout=timeout)

    async def members(self) -> list[Member | None]:
        """Ask every server what it is; None for those that do not answer."""
        places = range(max(1, len(self.options.hosts)))
        self._looked_at = time.monotonic()
        return await asyncio.gather(*[self._ask(place) for place in places])

    async def find(self) -> list[Member | None]:
        """Find the primary: of those that say they are, the one on the newest timeline.

        Raises asyncpg.TargetServerAttributeNotMatched if there is none, or if too few answer to
        know.
        """
        members = await self.members()
        heard = [member for member in members if member is not None]
        enough = min(self.options.read_quorum, max(1, len(self.options.hosts)))
        if len(heard) < enough:
            reason = (
                f"{len(heard)} of its servers answer, and {enough} are needed to know the primary"
            )
            raise asyncpg.TargetServerAttributeNotMatched(reason)
        if len({member.system for member in heard}) > 1:
            raise StoreUnopened(
                self.where, "its hosts are servers of different clusters; name those of one"
            )
        newest = max([self.timeline, *[member.timeline for member in heard]])
        leading = [each for each in heard if not each.standby and each.timeline == newest]
        if len(leading) != 1:
            reason = "none of its servers is" if not leading else "more than one of its servers is"
            raise asyncpg.TargetServerAttributeNotMatched(
                f"{reason} the primary of timeline {newest}"
            )
        self._suspected = False
        self._take(leading[0])
        return members

    def suspect(self) -> None:
        """A commit waited in vain: another server may have been promoted."""
        self._suspected = True

    @property
    def is_look_due(self) -> bool:
        """True if the other servers were not looked at for a while."""
        return time.monotonic() - self._looked_at > LOOK_SECONDS

    def _take(self, primary: Member) -> None:
        before, self._primary = self._primary, primary
        if before is None or (before.place, before.timeline) != (primary.place, primary.timeline):
            self.generation += 1
            self._waits_in_vain = False
            if before is not None:
                text = "primary changed: store=%s host=%d timeline=%d"
                POSTGRES.warning(text, self.where, primary.place + 1, primary.timeline)

    async def _ask(self, place: int) -> Member | None:
        try:
            async with asyncio.timeout(ASK_SECONDS_MAX):
                conn = await self.connect_to(place, timeout=ASK_SECONDS_MAX)
                try:
                    return await _described(conn, place)
                finally:
                    conn.terminate()
        except (
            OSError,
            asyncpg.PostgresError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,
        ):
            return None

    # --- the quorum ----------------------------------------------------------------------------

    def check_settings(self) -> None:
        """Raise StoreUnopened if the primary acknowledges commits that the quorum lacks."""
        if self._primary is not None and (reason := self._too_few(self._primary.names)):
            raise StoreUnopened(self.where, reason)

    def see_names(self, names: str, asked: Asked = "write") -> None:
        """The setting under which a commit was acknowledged. Raises QuorumUnavailable."""
        if reason := self._too_few(names):
            raise QuorumUnavailable(self.where, reason, asked)

    def _too_few(self, names: str) -> str:
        awaited, needed = standbys_awaited(names), self.options.standbys
        if awaited >= needed:
            return ""
        return (
            f"its commits wait for {awaited} standbys, and write_quorum="
            f"{self.options.write_quorum} needs {needed} beside the primary. Run there: ALTER "
            f"SYSTEM SET {self.options.setting}; SELECT pg_reload_conf()"
        )

    async def acknowledged(
        self, conn: Connection, call: Coroutine[Any, Any, T], asked: Asked = "write"
    ) -> T:
        """Run a call that commits on this connection. Raises QuorumUnavailable if its commit waits
        for the quorum for longer than `quorum_seconds`, and leaves the connection: what waits there
        is committed when the quorum is back. The call itself may take longer.

        Nothing is cancelled at the server, not even if the caller is: it would end the wait, and
        show rows that the quorum lacks. If somebody else ends it, the server answers with success
        and a warning, which is not an acknowledgement either.
        """
        process, task = conn.get_server_pid(), asyncio.ensure_future(call)
        warnings: list[object] = []

        def hear(_: Connection, message: object) -> None:
            warnings.append(message)

        if not conn.is_closed():  # else the call says so
            conn.add_log_listener(hear)
        try:
            while True:
                done, _ = await asyncio.wait({task}, timeout=self.options.quorum_seconds)
                if done:
                    answer = await task
                    if any([gave_up_waiting(each) for each in warnings]):
                        self.doubts += 1
                        raise self.unavailable(asked)
                    self._waits_in_vain = False
                    return answer
                if await self._awaits_quorum(process):
                    break
        except asyncpg.LockNotAvailableError:
            if await self._awaits_quorum(None):  # whoever holds the lock waits for the quorum
                raise self.unavailable(asked) from None
            raise
        except asyncio.CancelledError:
            conn.terminate()
            await asyncio.gather(task, return_exceptions=True)
            raise
        finally:
            with suppress(asyncpg.InterfaceError):  # it was left, and is not the pool's any more
                conn.remove_log_listener(hear)
        conn.terminate()
        await asyncio.gather(task, return_exceptions=True)
        self.suspect()
        raise self.unavailable(asked)

    def unavailable(self, asked: Asked) -> QuorumUnavailable:
        self._waits_in_vain = True
        reason = (
            f"fewer than {self.options.standbys} standbys have confirmed it within "
            f"{self.options.quorum_seconds:g} seconds"
        )
        return QuorumUnavailable(self.where, reason, asked)

    async def quorum_back(self, asked: Asked = "write") -> None:
        """After a commit waited in vain: return when none waits any more. Raises QuorumUnavailable.

        Every commit that waits keeps a process of the server: without this each retry would take
        one more.
        """
        deadline = time.monotonic() + self.options.quorum_seconds
        while self._waits_in_vain and await self._awaits_quorum(None):
            if time.monotonic() > deadline:
                raise self.unavailable(asked)
            await asyncio.sleep(BACK_SECONDS)
        self._waits_in_vain = False

    async def _awaits_quorum(self, process: int | None) -> bool:
        """True if the process (None: any) of the primary waits for standbys now. False if the
        primary does not answer: then the connections to it break too."""
        if self._primary is None:
            return False
        try:
            async with asyncio.timeout(ASK_SECONDS_MAX):
                conn = await self.connect_to(self._primary.place, timeout=ASK_SECONDS_MAX)
                try:
                    return bool(await conn.fetchval(SQL["awaits_quorum"], process))
                finally:
                    conn.terminate()
        except (
            OSError,
            asyncpg.PostgresError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,
        ):
            return False


async def _described(conn: Connection, place: int) -> Member:
    return Member(place, **dict(await conn.fetchrow(SQL["member"])))


def gave_up_waiting(message: object) -> bool:
    """True for the warning by which a server says that it acknowledges a commit without a quorum:
    somebody has cancelled the wait."""
    return _WAITING in str(message)


@lru_cache(maxsize=64)
def _shared(url: str) -> Cluster | None:
    options = cluster_options(url)
    return None if options is None else Cluster(url, options)


def cluster_of(url: str) -> Cluster | None:
    """The cluster that a URL names, the same object for all who ask. Raises InvalidURL."""
    return _shared(url)


# --- causal reads --------------------------------------------------------------------------------


class CausalTokens:
    """The last commits of this process, by session: what a read from a replica must see.

    A session is read as of its own last commit here, everything else as of all of them. Changes
    that have no token, such as claims and deletions, are known by how far the log was written.
    """

    def __init__(self) -> None:
        self._last: OrderedDict[Key, int] = OrderedDict()
        self._recent: tuple[int, ...] = ()  # of the last commits: two may be under way at once
        self._forgot = False  # a session that is not listed may have a commit
        self.lsn = 0

    def note(self, key: Key, token: str) -> None:
        """A commit of a session was acknowledged."""
        number = int(token or 0)
        if not number:
            return
        self._last[key] = number
        self._last.move_to_end(key)
        if len(self._last) > TOKENS_MAX:
            self._last.popitem(last=False)
            self._forgot = True
        if number not in self._recent:
            self._recent = (*self._recent[-3:], number)

    def written(self, lsn: int) -> None:
        self.lsn = max(self.lsn, lsn)

    def of(self, keys: Sequence[Key] | None, token: int | None = None) -> list[int]:
        """The tokens that a read of these sessions must see; None for a read of everything."""
        tokens = [] if token is None else [token]
        if keys is None:
            return [*tokens, *self._recent]
        for key in keys:
            known = self._last.get(key)
            if known is not None:
                tokens.append(known)
            elif self._forgot:
                tokens += self._recent
        return tokens
