"""The URL of a cluster: its rule, and what a value of synchronous_standby_names waits for."""

from __future__ import annotations

import pytest

from limpet.errors import InvalidURL
from limpet.model import Key
from limpet.store.postgres.server import cluster as module
from limpet.store.postgres.server.cluster import (
    CausalTokens,
    cluster_options,
    gave_up_waiting,
    standbys_awaited,
)
from limpet.store.postgres.server.settings import driver_url, hosts

THREE = "postgresql://u:secret@h1,h2:5433,[::1]:5434/db"


def test_a_url_without_its_options_names_no_cluster() -> None:
    assert cluster_options("postgresql://h1,h2/db?target_session_attrs=primary") is None


def test_what_is_left_out_is_a_majority() -> None:
    found = cluster_options(f"{THREE}?write_quorum=2")
    assert found is not None
    assert (found.replicas, found.write_quorum, found.read_quorum) == (3, 2, 2)
    assert (found.reads, found.behind, found.quorum_seconds) == ("primary", "wait", 5.0)
    assert found.hosts == (("h1", None), ("h2", 5433), ("::1", 5434))
    assert found.setting == "synchronous_standby_names = 'ANY 1 (*)'"


@pytest.mark.parametrize("replicas", range(2, 8))
def test_every_pair_of_quorums_that_is_taken_overlaps(replicas: int) -> None:
    """And all others are refused: no majority, or more than there are."""
    most = replicas // 2 + 1
    for write in range(replicas + 2):
        for read in range(replicas + 2):
            url = f"postgresql://h/db?replicas={replicas}&write_quorum={write}&read_quorum={read}"
            if most <= write <= replicas and most <= read <= replicas:
                found = cluster_options(url)
                assert found is not None
                assert found.read_quorum + found.write_quorum > replicas
            else:
                with pytest.raises(InvalidURL, match=r"C_R \+ C_W > R"):
                    cluster_options(url)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("replicas=1", "2 to 100"),
        ("replicas=2", "3 hosts"),
        ("replicas=many", "whole number"),
        ("write_quorum=-1", "whole number"),
        ("reads=nearest", "primary or any"),
        ("reads=any&behind=never", "wait or primary or fail"),
        ("quorum_seconds=0", "above 0"),
        ("quorum_seconds=nan", "above 0"),
        ("write_quorum=2&pooler=transaction", "pooler"),
        ("write_quorum=2&retries=3", "unknown option 'retries'.*write_quorum, read_quorum"),
        ("write_qorum=2", "unknown option 'write_qorum'.*Write write_quorum"),
        ("replica=3", "Write replicas"),
        ("Write_Quorum=2", "Write write_quorum"),
        ("write_quorum=two", "whole number, not 'two'"),
        ("write_quorum=2.0", "whole number, not '2.0'"),
        ("write_quorum=", "write_quorum without a value"),
        ("write_quorum=2&write_quorum=3", "write_quorum more than once"),
    ],
)
def test_what_cannot_be_is_refused_without_the_password(options: str, words: str) -> None:
    with pytest.raises(InvalidURL, match=words) as info:
        cluster_options(f"{THREE}?{options}")
    assert "secret" not in str(info.value)


def test_options_of_the_driver_and_of_a_session_are_taken() -> None:
    options = "sslmode=require&application_name=x&TimeZone=UTC&my.setting=1"
    assert cluster_options(f"{THREE}?write_quorum=2&{options}") is not None


def test_the_driver_does_not_see_its_options() -> None:
    url = f"{THREE}?write_quorum=2&application_name=x&reads=any&behind=fail&quorum_seconds=1"
    assert driver_url(url) == f"{THREE}?application_name=x"
    assert hosts("postgresql://u@/db?host=/one,/two") == [("/one", None), ("/two", None)]
    assert hosts("postgresql://u@/db?host=a,b&port=1,2") == [("a", 1), ("b", 2)]
    assert hosts("postgresql:///db") == []


@pytest.mark.parametrize(
    ("names", "awaited"),
    [
        ("", 0),
        ("*", 1),
        ("s1, s2", 1),
        ("2 (s1, s2, s3)", 2),
        ("FIRST 2 (s1, s2)", 2),
        ("any 3 (*)", 3),
        (' ANY 1 ("a b", c) ', 1),
    ],
)
def test_a_setting_says_how_many_standbys_are_awaited(names: str, awaited: int) -> None:
    assert standbys_awaited(names) == awaited


def test_a_session_is_read_as_of_its_own_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """And everything else as of the last ones; also a session whose own was forgotten."""
    monkeypatch.setattr(module, "TOKENS_MAX", 2)
    tokens, keys = CausalTokens(), [Key("a", "u", str(number)) for number in range(3)]
    assert tokens.of(keys) == tokens.of(None) == []
    tokens.note(keys[0], "10")
    tokens.note(keys[1], "11")
    assert (tokens.of(keys[:1]), tokens.of(keys[:1], 7)) == ([10], [7, 10])
    assert tokens.of(keys[2:]) == []
    assert tokens.of(None) == [10, 11]
    tokens.note(keys[2], "12")
    assert tokens.of(keys[:1]) == [10, 11, 12]
    tokens.note(keys[2], "")  # nothing was written
    tokens.written(5)
    tokens.written(3)
    assert (tokens.of(keys[2:]), tokens.lsn) == ([12], 5)


def test_the_warning_of_a_wait_that_was_ended_is_known() -> None:
    assert gave_up_waiting("canceling wait for synchronous replication due to user request")
    assert not gave_up_waiting("there is no transaction in progress")
