"""Following a session live.

The log is the truth and a bell only a hint: a follower reads on from its own position, so no
recorded event is lost or doubled whatever happens to the hints. A commit of this Limpet rings at
once; of others' commits the feed reader learns, one for all followers, and rings for the sessions
concerned. Followers of one session share what one of them reads. Partial events travel beside the
log, in this process and through the store's live channel, and keep their place among recorded ones.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final

from limpet.errors import (
    FollowerBehind,
    InvalidQuery,
    LimpetError,
    PositionUnknown,
    SessionDeleted,
    StoreClosed,
)
from limpet.model import Event, Key
from limpet.model.limits import FINALS_REMEMBERED, PARTIALS_WAITING_MAX
from limpet.session.live_channel import LiveEnd
from limpet.session.loggers import SESSION
from limpet.store.logs import error_name
from limpet.store.pages import wanted
from limpet.store.protocol import Committed, Feed, FeedEntry, Hints, Store

_PAGE: Final = 100
# Reads of sessions that begin in one turn of the event loop. A store may answer without a pause,
# and a thousand followers that wake up at once must not keep the loop from everything else.
_READS_PER_TURN: Final = 8
_RINGS_PER_TURN: Final = 128
_FEED_PAGE: Final = 200
POLL_SECONDS: Final = 0.005
POLL_SECONDS_LIVELY: Final = 0.002  # for a while after partials came from another process
_LIVELY_SECONDS: Final = 1.0
# The least time between two calls for everybody to look, while it cannot be known who has to.
_RING_SECONDS: Final = 0.25
# A version that is not known yet: later than any, until the log was read to its end.
UNKNOWN: Final = 2**62


class Bell(asyncio.Event):
    """Rings when a session has got on; `version` is the newest that is known of, 0 if none is."""

    version = 0

    def ring(self, version: int) -> None:
        """Announce that the session has reached this version; 0: nobody knows which."""
        self.version = version and max(self.version, version)
        self.set()

    async def beyond(self, version: Callable[[], int]) -> None:
        """Wait until there is more than the caller knows of, which its own writes change."""
        while True:
            await self.wait()
            self.clear()
            if not self.version or self.version > version():
                return


class Hub:
    """The followers of one Limpet."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._topics: dict[Key, Topic] = {}
        self._warm: list[Topic] = []  # with a page that was read since the last tick
        self._watchers: dict[asyncio.Event, tuple[str | None, Key | None]] = {}
        self._bells: dict[Key, list[Bell]] = {}  # of those who want to know how far a session is
        self._tasks: set[asyncio.Task[Any]] = set()  # that read
        self._pace = asyncio.Semaphore(_READS_PER_TURN)
        self._reader = FeedReader(store, self)
        self._live = LiveEnd(store, self._reader.wake)
        self._open = True
        self.commits = 0  # that this Limpet recorded

    @property
    def followers(self) -> int:
        """The number of those who follow a session or watch several, here."""
        return sum([len(topic.followers) for topic in self._topics.values()]) + len(self._watchers)

    # --- what happens here -----------------------------------------------------------------------

    def notify(self, answer: Committed) -> None:
        """A commit of this Limpet was recorded."""
        self.commits += 1
        if self._live.waiting:
            self._live.drop(answer.events)
        if self._watchers or self._topics:
            self.touch(answer.head.key, answer.head.version)

    def touch(self, key: Key, version: int = 0) -> None:
        """Say that the session reached this version (or, with none, ceased to be), here."""
        for watching, (app, only) in self._watchers.items():
            if (app is None or app == key.app) and (only is None or only == key):
                watching.set()
        for bell in self._bells.get(key, ()):
            bell.ring(version)
        topic = self._topics.get(key)
        if topic is not None:
            self._touch(topic, version)

    def publish(self, key: Key, partial: Event, version: int, uid: str | None = None) -> None:
        """Hand a partial event to those who follow now, after what was recorded before it.

        `version` is what its publisher knows of, 0 if nothing; `uid` that of the session, if known.
        """
        topic = self._topics.get(key)
        if topic is not None:
            known = topic.version
            mark = max(known, version) if known != UNKNOWN else version or UNKNOWN
            self._offer(topic, mark, partial)
        self._live.publish(key, uid, version, partial)

    # --- what the feed reader finds --------------------------------------------------------------

    def ring_for(self, sessions: Mapping[Key, int]) -> None:
        """Ring for those who follow one of these sessions and have not heard of it yet."""
        if self._watchers and sessions:
            self._ring_watchers(sessions)
        for key in sessions.keys() & self._bells.keys():
            for bell in self._bells[key]:
                bell.ring(sessions[key])
        for key in sessions.keys() & self._topics.keys():
            topic = self._topics[key]
            if topic.version == UNKNOWN or sessions[key] > topic.version:
                self._touch(topic, sessions[key])

    def ring(self) -> None:
        """Have everybody look: something may have changed."""
        topics = tuple(self._topics.values())
        for topic in topics:
            topic.changed()
        _ring(deque([each for topic in topics for each in topic.followers]))
        for watching in self._watchers:
            watching.set()
        for bells in self._bells.values():
            for bell in bells:
                bell.ring(0)

    def waits(self) -> bool:
        """True if somebody follows, or watches and has not been rung."""
        if self._topics or self._bells:
            return True
        return not all([bell.is_set() for bell in self._watchers])

    def tick(self) -> bool:
        """Deliver partials of other processes; forget pages that everybody had time to take. Called
        before every dispatch, and every few milliseconds in any case.

        True if partials came: then more may follow soon.
        """
        partials = self._live.received(self._topics.__contains__)
        for partial in partials:
            self._offer(self._topics[partial.key], partial.mark, partial.event)
        for topic in self._warm:
            topic.drop_page()
        self._warm.clear()
        return bool(partials)

    # --- followers and watchers ------------------------------------------------------------------

    async def follow(
        self,
        key: Key,
        after: int,
        types: tuple[str, ...] | None = None,
        *,
        partials: bool = True,
    ) -> AsyncGenerator[Event, None]:
        """Every event (of these types) beyond seq `after`, in order, once; and partials as they
        come."""
        # All are read and the others passed over: a store that selected would be asked again from
        # the last match on, each time anything is recorded.
        position, caught_up = after, -1  # the generation in which everything was read
        self.check_open()
        last: Event | None = None
        with self._joined(key, Follower(types, takes_partials=partials)) as (topic, follower):
            endings = topic.endings
            await self._reader.started()
            if partials:
                await self._live.subscribed()
            while True:
                follower.bell.clear()
                self.check_open()
                if follower.behind:
                    raise FollowerBehind(position, PARTIALS_WAITING_MAX)
                generation = topic.generation
                if endings != topic.endings:
                    endings = topic.endings
                    await self._check_same(key, last)
                page = () if generation == caught_up else await self._read(topic, position)
                follower.joining = False
                for event in page:
                    while (
                        partial := topic.due(follower, event.seq - 1, all_read=False)
                    ) is not None:
                        yield partial
                    topic.passed(event)
                    position, last = event.seq, event
                    if wanted(event.type, types):
                        yield event
                if page and not topic.is_end(position, generation):  # a page may be short
                    await asyncio.sleep(0)  # nothing of it may have been wanted: let others run
                    continue
                caught_up = generation
                topic.read_to(position, generation)
                while (partial := topic.due(follower, position, all_read=True)) is not None:
                    yield partial
                await follower.bell.wait()

    @contextmanager
    def waiting(self, *, app: str | None = None, key: Key | None = None) -> Iterator[asyncio.Event]:
        """A bell that rings when an event of this app or session may have been recorded, here or
        in another process; without either, of any."""
        bell = asyncio.Event()
        self._watchers[bell] = (app, key)
        self._begin()
        try:
            yield bell
        finally:
            del self._watchers[bell]
            self._rest()

    @asynccontextmanager
    async def listening(self, key: Key) -> AsyncGenerator[Bell, None]:
        """A bell that rings when this session has got on, here or in another process."""
        bell = Bell()
        self._bells.setdefault(key, []).append(bell)
        self._begin()
        try:
            await self._reader.started()
            yield bell
        finally:
            self._bells[key].remove(bell)
            if not self._bells[key]:
                del self._bells[key]
            self._rest()

    def check_open(self) -> None:
        if not self._open:
            raise StoreClosed

    async def close(self) -> None:
        self._open = False
        self.ring()
        ending = self._reader.stop()
        for task in self._tasks:
            task.cancel()
        waited = [*self._tasks, *([] if ending is None else [ending])]
        await asyncio.gather(*waited, return_exceptions=True)
        await self._live.close()

    # --- private ---------------------------------------------------------------------------------

    def _touch(self, topic: Topic, version: int) -> None:
        """Have followers of a session look: one by one, or at a page that is read for all."""
        before = topic.version
        if version:
            topic.reached(version)
        else:
            topic.changed()
        if version and before != UNKNOWN and len(topic.followers) > 1:
            self._keep(asyncio.ensure_future(self._read_for_all(topic, before)))
        else:
            _ring(deque(topic.followers))

    async def _read_for_all(self, topic: Topic, position: int) -> None:
        """Read what most followers wait for, and ring then. If it fails, each finds out itself."""
        try:
            with suppress(LimpetError, MemoryError):
                await self._shared(topic, position)
        finally:
            _ring(deque(topic.followers))

    def _offer(self, topic: Topic, mark: int, partial: Event) -> None:
        """Queue a partial. Its publisher may know of events that were not noticed here yet."""
        if mark != UNKNOWN and (mark > topic.version or topic.version == UNKNOWN):
            self._touch(topic, mark)
        topic.publish(mark, partial)

    async def _read(self, topic: Topic, position: int) -> tuple[Event, ...]:
        """Events beyond a position, read by this follower or just now for another."""
        if len(topic.followers) == 1:
            return await self._page(topic, position)
        return topic.kept(position) or await self._shared(topic, position)

    async def _shared(self, topic: Topic, position: int) -> tuple[Event, ...]:
        """A page for every follower that asks for it while it is read."""
        asked, task = (position, topic.generation), topic.reading
        if task is not None and topic.asked == asked:
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                return task.result()
        task = asyncio.ensure_future(self._page(topic, position))
        topic.reading, topic.asked = task, asked
        self._keep(task)
        try:
            await asyncio.wait([task])  # if this follower is cancelled it goes on: others wait too
        finally:
            if topic.reading is task:
                topic.reading = None
        if task.cancelled():
            self.check_open()
        return task.result()

    def _keep(self, task: asyncio.Task[Any]) -> None:
        """Keep a reference to a task until it ends: its follower may be gone by then."""
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # nobody else may ask

    async def _page(self, topic: Topic, position: int) -> tuple[Event, ...]:
        async with self._pace:
            self.check_open()
            page = await self._store.read(
                topic.key, after=position, limit=_PAGE, reverse=False, types=None
            )
            if page and len(topic.followers) > 1:
                topic.keep(position, page)
                self._warm.append(topic)
            await asyncio.sleep(0)  # others read in this turn, or not: see _READS_PER_TURN
        return page

    async def _check_same(self, key: Key, last: Event | None) -> None:
        """Raise SessionDeleted if the key belongs to another session than this event does."""
        if last is None:
            return
        async with self._pace:
            self.check_open()
            events = await self._store.read(
                key, after=last.seq - 1, limit=1, reverse=False, types=None
            )
        # An event that was removed or cannot be read proves nothing.
        whole = bool(events) and not events[0].removed and events[0].damage is None
        if not events or (whole and events[0].link != last.link):
            raise SessionDeleted(key)

    @contextmanager
    def _joined(self, key: Key, follower: Follower) -> Iterator[tuple[Topic, Follower]]:
        topic = self._topics.setdefault(key, Topic(key))
        topic.followers.add(follower)
        self._begin()
        if follower.takes_partials:
            self._live.join()
        try:
            yield topic, follower
        finally:
            topic.followers.discard(follower)
            if not topic.followers:
                del self._topics[key]
            if follower.takes_partials:
                self._live.leave()
            self._rest()

    def _ring_watchers(self, keys: Mapping[Key, int]) -> None:
        apps = {key.app for key in keys}
        for bell, (app, key) in self._watchers.items():
            if (app is None or app in apps) and (key is None or key in keys):
                bell.set()

    def _begin(self) -> None:
        if self._open:
            self._reader.start()

    def _rest(self) -> None:
        """Stop asking the store when nobody follows any more."""
        if not self._topics and not self._watchers and not self._bells:
            self._reader.stop()


def _ring(followers: deque[Follower]) -> None:
    """Ring for some now and for the others in the next turns of the event loop."""
    for _ in range(min(len(followers), _RINGS_PER_TURN)):
        followers.popleft().bell.set()
    if followers:
        asyncio.get_running_loop().call_soon(_ring, followers)


# --- a topic -------------------------------------------------------------------------------------
# One session that is followed in this process, and who follows it. It knows how far the session has
# come, keeps partial events in their place for each follower, and lets followers that stand at the
# same place share what one of them has read. No I/O happens here.


class FeedReader:
    """Reads the feed while somebody follows or watches: one for all followers of an open Limpet.

    It asks the store's pulse every few milliseconds. When that has changed it reads which sessions
    have new events, beyond the last position, and rings only for those; so a commit of another
    process costs one read here. Deletions leave the feed without an entry: when the store says that
    a session has ended, every follower looks at its own. The reader is never asked for events:
    followers read them from the log, so nothing is lost or doubled if the reader fails and begins
    again.
    """

    def __init__(self, store: Store, hub: Hub) -> None:
        self._store, self._hub = store, hub
        self._feed: Feed | None = None  # looked for at the start: most processes follow nothing
        self._position: str | None = None
        self._ended: str | None = None
        self._rung_at = float("-inf")
        self._lively_until = float("-inf")
        self._bell = asyncio.Event()
        self._started = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read, from the present end of the feed. Costs nothing if it is running."""
        if self._task is None:
            self._feed = self._store if isinstance(self._store, Feed) else None
            self._position = None
            self._started = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def started(self) -> None:
        """Wait until every later commit is noticed, or the store has failed."""
        await self._started.wait()

    @property
    def wake(self) -> Callable[[], None]:
        """Have the reader look at once instead of in a few milliseconds."""
        return self._bell.set

    def stop(self) -> asyncio.Task[None] | None:
        """Read no more. Returns the task that is ending, if one was running."""
        task, self._task = self._task, None
        self._started.set()  # nobody waits for what does not come
        if task is not None:
            task.cancel()
        return task

    async def _run(self) -> None:
        pulse: int | None = None
        lost = False
        while True:
            self._bell.clear()
            self._tick()
            try:
                if pulse is None and isinstance(self._store, Hints):
                    await self._store.listen(self._bell.set)
                now = self._store.pulse()
                if now == pulse or pulse is None or self._hub.waits():
                    if now != pulse:
                        await self._look()
                    pulse = now
                else:  # a busy worker, say: it is told again when it has looked
                    self._position = None
                if lost:
                    SESSION.info("feed reader regained")
                lost = False
            except Exception as error:  # whatever it is, followers must not wait in vain
                pulse = None  # look again; meanwhile let each follower look at the log
                if not lost:
                    SESSION.warning("feed reader lost: error=%s", error_name(error))
                lost = True
                self._ring_seldom()
            self._started.set()
            await self._nap()

    async def _look(self) -> None:
        feed = self._feed
        if feed is None:
            self._hub.ring()
            return
        more = True
        while more:
            began = self._position is None
            if self._position is None:
                self._position = await feed.position()
            try:
                touched = await feed.touched(self._position)
            except PositionUnknown:  # the store was put back to an earlier time
                self._position = None
                raise
            self._position = touched.position
            self._tick()  # partials that were sent before these events come before them
            self._hub.ring_for(touched.sessions)
            ended, self._ended = self._ended, touched.ended
            if began or ended != touched.ended:
                self._hub.ring()
            elif not touched.whole:
                self._ring_seldom()
            more = touched.more
            if more:
                await asyncio.sleep(0)  # a store may answer without a pause: let others run

    def _tick(self) -> None:
        if self._hub.tick():
            self._lively_until = time.monotonic() + _LIVELY_SECONDS

    def _ring_seldom(self) -> None:
        now = time.monotonic()
        if now - self._rung_at >= _RING_SECONDS:
            self._rung_at = now
            self._hub.ring()

    async def _nap(self) -> None:
        lively = time.monotonic() < self._lively_until
        seconds = POLL_SECONDS_LIVELY if lively else POLL_SECONDS
        timer = asyncio.get_running_loop().call_later(seconds, self._bell.set)
        try:
            await self._bell.wait()
        finally:
            timer.cancel()


class Follower:
    """The partials that wait for one follower, and the bell that says so."""

    __slots__ = ("behind", "bell", "joining", "partials", "takes_partials", "types")

    def __init__(self, types: tuple[str, ...] | None, *, takes_partials: bool) -> None:
        self.types, self.takes_partials = types, takes_partials
        self.bell = asyncio.Event()
        self.partials: deque[tuple[int, Event]] = deque()
        self.behind = False
        self.joining = True  # until its first page was read

    def offer(self, mark: int, partial: Event) -> None:
        """Queue a partial that comes after the event with seq `mark`.

        One that is still joining could not read any of them yet: it loses the oldest, as if it had
        joined a moment later. One that reads too slowly is behind.
        """
        if not self.takes_partials or not wanted(partial.type, self.types):
            return
        if len(self.partials) >= PARTIALS_WAITING_MAX:
            if self.joining:
                self.partials.popleft()
            else:
                self.behind = True
                self.partials.clear()
        if not self.behind:
            if self.partials:
                mark = max(mark, self.partials[-1][0])  # they keep their own order
            self.partials.append((mark, partial))
        self.bell.set()


class Topic:
    """One session that is followed here."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.followers: set[Follower] = set()
        self.version = UNKNOWN
        self.generation = 0  # grows whenever there may be something to read
        self.endings = 0  # grows whenever the session may have ended
        self.reading: asyncio.Task[tuple[Event, ...]] | None = None
        self.asked = (0, 0)  # after which seq it reads, and in which generation
        self._page: tuple[Event, ...] = ()
        self._page_after = 0
        self._finals: dict[str, int] = {}  # the newest recorded events that were read: id to seq
        self._newest = 0
        self._attempts: dict[str, int] = {}  # the last attempt of each final event's id

    def reached(self, version: int) -> None:
        """The session is at this version, or beyond it. Its followers are to be rung."""
        self.generation += 1
        if self.version != UNKNOWN:  # else what came before it may not be known either
            self.version = max(self.version, version)

    def changed(self) -> None:
        """Anything may have happened to the session. Its followers are to be rung."""
        self.generation += 1
        self.endings += 1
        self.version = UNKNOWN
        self._page = ()

    def read_to(self, position: int, generation: int) -> None:
        """A follower read everything up to here in this generation, and found no more."""
        if self.version == UNKNOWN and generation == self.generation:
            self.version = position

    def is_end(self, position: int, generation: int) -> bool:
        """True if a follower that read on in this generation has everything that is known of."""
        return position == self.version and generation == self.generation

    # --- pages that followers share --------------------------------------------------------------

    def keep(self, after: int, page: tuple[Event, ...]) -> None:
        """Keep what was read for followers that stand at the same place."""
        self._page_after, self._page = after, page

    def kept(self, after: int) -> tuple[Event, ...]:
        """Return what another follower read beyond this seq; empty if nothing of it is kept."""
        page = self._page
        if not page or not self._page_after <= after < page[-1].seq:
            return ()
        return page if after == self._page_after else tuple([e for e in page if e.seq > after])

    def drop_page(self) -> None:
        self._page = ()

    # --- partials --------------------------------------------------------------------------------

    def passed(self, event: Event) -> None:
        """A follower is about to deliver a recorded event, or to pass over it."""
        if event.seq > self._newest:
            self._newest = event.seq
            self._finals[event.id] = event.seq
            self._attempts.pop(event.id, None)
            _bound(self._finals)

    def publish(self, mark: int, partial: Event) -> None:
        """Offer a partial to every follower, after the event with seq `mark`.

        One of an earlier attempt than the last is dropped: its publisher was replaced.
        """
        if partial.attempt < self._attempts.get(partial.id, 0):
            return
        self._attempts[partial.id] = partial.attempt
        _bound(self._attempts)
        for follower in self.followers:
            follower.offer(mark, partial)

    def due(self, follower: Follower, position: int, *, all_read: bool) -> Event | None:
        """The next partial that belongs before the event after `position`, if any.

        One whose final event was delivered already, or passed over, comes too late and is dropped.
        """
        waiting = follower.partials
        while waiting and (waiting[0][0] <= position or (all_read and waiting[0][0] == UNKNOWN)):
            _, partial = waiting.popleft()
            if self._finals.get(partial.id, UNKNOWN) > position:
                return partial
        return None


def _bound(kept: dict[str, int]) -> None:
    """Forget the oldest."""
    if len(kept) > FINALS_REMEMBERED:
        del kept[next(iter(kept))]


# --- the feed ------------------------------------------------------------------------------------
# The log of all sessions in an order in which nothing is ever inserted behind a position already
# handed out. A watcher that remembers the position of the last entry it has dealt with, and begins
# there again, misses nothing and meets nothing twice.


def feed_of(store: Store) -> Feed:
    """The store's feed. Raises InvalidQuery if it has none."""
    if not isinstance(store, Feed):
        raise InvalidQuery("this store has no feed to watch")
    return store


async def watch_feed(
    hub: Hub, feed: Feed, *, app: str | None, key: Key | None, after: str | None
) -> AsyncGenerator[FeedEntry, None]:
    """Entries beyond a position, in order, as they are recorded. Never ends."""
    position = after
    with hub.waiting(app=app, key=key) as bell:
        while True:
            bell.clear()
            hub.check_open()
            watch_feed, position = await feed.changes(position, app=app, key=key, limit=_FEED_PAGE)
            for entry in watch_feed:
                yield entry
            if not watch_feed:  # a page may be short, and more follow
                await bell.wait()
            await asyncio.sleep(0)  # a store may answer without a pause: let others run
