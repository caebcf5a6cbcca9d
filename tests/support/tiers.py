"""Which tier a test belongs to, by what it needs: so that the quick ones can be run alone.

`quick` needs nothing but memory, `stores` a file or a server, `world` processes, faults or a
terminal. `torture` is said by a test itself. A test is in exactly one tier.

An argument is checked before any store is asked, so tests marked `arguments` try every case on
memory, and on the other stores one case of each error class.
"""

from __future__ import annotations

from types import FunctionType
from typing import Final

import pytest

from tests.support import examples, seeds

SEALED_EVERY: Final = 8
FILES_EVERY: Final = 8
STORIES_EVERY: Final = 4
HTTP_EVERY: Final = 8
# What is told over HTTP too: nothing in these files depends on where the store is.
OVER_HTTP: Final = frozenset(
    (
        "test_append_soon.py",
        "test_blobs.py",
        "test_commit.py",
        "test_documents.py",
        "test_follow.py",
        "test_history.py",
        "test_life.py",
        "test_move.py",
        "test_runtime.py",
        "test_session_api.py",
        "test_typed_sessions.py",
        "test_watch.py",
        "test_work.py",
    )
)
TIERS: Final = ("quick", "stores", "world", "torture")
_WORLD_FOLDERS: Final = ("fault", "compat", "adapters")
_WORLD_FILES: Final = (
    "test_background",
    "test_cli",
    "test_coming_from",
    "test_demo",
    "test_examples",
    "test_first_hour",
    "test_first_minutes",
    "test_site",
    "test_sync",
    "test_typing",
)
_STORE_FOLDERS: Final = ("golden", "sqlite", "postgres")
_SOURCE_FILES: Final = ("test_cycles", "test_house")  # they parse every file of the package
_STORE_WORDS: Final = ("sqlite", "postgres")
_LOOPS: Final = (examples.tries, examples.schedules)
_STORE_FIXTURES: Final = frozenset(("tmp_path", "tmp_path_factory", "any_postgres", "server"))


def tier(item: pytest.Item) -> str:
    """The tier of one test."""
    folders, file = item.path.parts, item.path.name
    if item.get_closest_marker("torture"):
        return "torture"
    if any(part in folders for part in _WORLD_FOLDERS) or file.startswith(_WORLD_FILES):
        return "world"
    if file.startswith(_SOURCE_FILES):
        return "stores"
    if any(part in folders for part in _STORE_FOLDERS) or _needs_store(item):
        return "stores"
    return "quick"


def goes_deeper(item: pytest.Item) -> bool:
    """Whether a test tries more of its kind on fresh seeds: every property, every fault loop."""
    test = getattr(item, "obj", None)
    if getattr(test, "is_hypothesis_test", False):
        return True
    test = getattr(test, "__func__", test)
    if not isinstance(test, FunctionType):
        return False
    return any(test.__globals__.get(name) in _LOOPS for name in test.__code__.co_names)


def repeated_arguments(items: list[pytest.Item]) -> list[pytest.Item]:
    """The cases of argument tests that say nothing new about their store.

    Kept are all cases on memory and, for every other store, the first case of each test with each
    expected error class. Nothing is left out where fresh seeds are asked for.
    """
    if seeds.fresh():
        return []
    seen: set[tuple[object, ...]] = set()
    found: list[pytest.Item] = []
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        store = params.get("url", "memory")
        if store == "memory" or not item.get_closest_marker("arguments"):
            continue
        case = (item.path, getattr(item, "originalname", ""), store, params.get("error"))
        if case in seen:
            found.append(item)
        seen.add(case)
    return found


def left_to_torture(items: list[pytest.Item]) -> list[pytest.Item]:
    """What repeats on another store what was tried on two: `make torture` runs all of it.

    Of the contract on sealed stores, on SQLite and PostgreSQL over HTTP, and on PostgreSQL behind a
    guard, every eighth law is tried here (what a seal itself is promised has laws of its own, which
    all run), and every fourth story on PostgreSQL of those that run on memory and SQLite too; every
    eighth of the stories in OVER_HTTP over HTTP, and of those on a log store. The laws of stores
    all run on PostgreSQL, and on memory over HTTP.
    """
    twice = [item for item in items if _store_of(item) == "files" and _opens_twice(item)]
    files = [item for item in items if _store_of(item) == "files" and not _opens_twice(item)]
    sealed = [item for item in items if _is_sealed_contract(item)]
    stories = [item for item in items if _is_story_on_postgres(item)]
    over_http = [item for item in items if _store_of(item) == "http"]
    for item in (*files, *sealed, *stories, *over_http):
        item.add_marker("deeper")
    local = [item for item in over_http if item.path.name not in OVER_HTTP]
    local += twice
    if seeds.fresh():
        return local
    local += [item for place, item in enumerate(files) if place % FILES_EVERY]
    told = [item for item in over_http if item.path.name in OVER_HTTP]
    local += [item for place, item in enumerate(told) if place % HTTP_EVERY]
    left = [item for place, item in enumerate(sealed) if place % SEALED_EVERY]
    return [*local, *left, *(item for place, item in enumerate(stories) if place % STORIES_EVERY)]


# Tests of several processes, or of several instances as these would be: one opens a log store.
_TWICE_MODULES = ("test_answered_once.py", "test_live.py")
_TWICE = (
    "test_a_revoked_token_is_refused_everywhere",
    "test_a_session_knows_its_newest_checkpoint",
    "test_deleting_while_others_write_stops_no_watcher",
    "test_other_processes_follow_a_policy_soon",
    "test_processes_share_nonces_rates_and_revocations",
    "test_who_knew_a_session_before_it_was_archived_writes_to_what_came_back",
    "test_writers_of_two_instances_are_all_watched",
    "test_no_key_leads_out_of_the_directory",  # the store itself is in it
)


def _opens_twice(item: pytest.Item) -> bool:
    """True if a test opens its store twice at a time, which a log store refuses."""
    return item.path.name in _TWICE_MODULES or item.name.partition("[")[0] in _TWICE


def _store_of(item: pytest.Item) -> object:
    """The store that a test is told on, by the parameter of the fixture `url`."""
    return getattr(getattr(item, "callspec", None), "params", {}).get("url")


def _is_story_on_postgres(item: pytest.Item) -> bool:
    """A test of one of several stores by its parameter, beside the laws."""
    beside = {"acceptance", "unit", "test_session_stores.py", "test_checkpointers.py"}
    there = not beside.isdisjoint((*item.path.parts, item.path.name))
    called = item.name.partition("[")[2]
    return there and "postgresql" in called.replace("]", "-").split("-")


_SAMPLED = (
    "TestSQLiteSealed",
    "TestPostgresSealed",
    "TestFilesSealed",
    "TestFilesCompacted",
    "TestSQLiteKeys",
    "TestPostgresKeys",
    "TestSQLiteOverHTTP",  # every law runs on memory over HTTP
    "TestPostgresOverHTTP",
    "TestGuardedPostgres",  # and behind a guard
)


def _is_sealed_contract(item: pytest.Item) -> bool:
    of = getattr(item, "cls", None)
    return of is not None and of.__name__ in _SAMPLED


def _needs_store(item: pytest.Item) -> bool:
    """By the store in its name, or by a folder of its own; memory is no such store."""
    called = item.name.lower()
    if _store_of(item) == "http":
        return True
    if any(word in called or word in item.nodeid.lower() for word in _STORE_WORDS):
        return True
    if "[memory" in called or "memory]" in called:
        return False
    return not _STORE_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
