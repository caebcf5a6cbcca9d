"""What people are told of a URL, and what is wrong with it before anything is tried."""

from __future__ import annotations

import pytest

from limpet.errors import InvalidURL
from limpet.store.postgres.server.settings import (
    check_url,
    driver_url,
    is_pooled,
    listening_url,
    where,
)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:secret@host/db",
        "postgresql://ada@host/db?password=secret",
        "postgresql:///db?user=ada&password=secret&sslmode=require",
        "postgresql://ada:se@cret@host/db",
        "postgresql://ada:se/cret@host/db",
        "postgresql://ada@host/db?password=se#cret",
        "postgresql://ada:secret@host/db?pooler=transaction&direct=postgresql://ada:secret@one/two",
        "postgresql://ada@host/db?direct=postgresql%3A//ada%3Asecret%40one/two&pooler=transaction",
        "postgresql://ada@host/db?pooler=transaction&direct=postgresql://ada:se&cret@one/two",
    ],
)
def test_no_password_is_shown(url: str) -> None:
    """Whether it stands before the host or among the options."""
    shown = where(url)
    assert "secret" not in shown
    assert "cret" not in shown
    assert "db" in shown


def test_a_url_without_a_password_is_shown_as_it_is() -> None:
    """Nothing else is hidden."""
    url = "postgresql://ada@host:5432/db?sslmode=require"
    assert where(url) == url


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("postgresql://ada:secret@host:notaport/db", "port"),
        ("postgresql://ada:secret@host:99999/db", "port"),
        ("postgresql://ada:secret@host:0/db", "port"),
        ("postgresql://ada:secret@[::1]:x/db", "port"),
        ("postgresql://ada:secret@one:5432,two:x/db", "port"),
        ("postgresql://ada:secret@/db?host=one&port=x", "port"),
        ("postgresql://ada:secret", "port"),
        ("postgresql://ada:secret/db", "port"),
        ("postgresql://ada:se/cret@host/db", "%2F"),
        ("postgresql://ada:se?cret@host/db", "%3F"),
        ("postgresql://ada:se#cret@host/db", "%23"),
        ("postgresql://ada:se@cret@host/db", "%40"),
        ("postgresql://ada:s/e:cret@host/db", "%3A"),
        ("postgresql://ada:secret@host/db?sslmode", "name=value"),
        ("postgresql:///db?pooler=transaction;direct=postgresql://ada:secret@one/two", "pooler"),
        ("postgresql://ada:secret@host/db?password=se&cret", "name=value"),
        ("postgresql://ada:secret@ho%00st/db", "control"),
    ],
)
def test_a_url_that_names_no_server_is_refused_without_its_password(url: str, word: str) -> None:
    """Not by the words of whoever happened to read it."""
    with pytest.raises(InvalidURL) as info:
        check_url(url)
    assert word in info.value.reason
    assert "int()" not in str(info.value)
    assert "secret" not in str(info.value)
    if "password=" not in url:
        assert "cret" not in str(info.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://",
        "postgresql:///db",
        "postgresql://host:5432",
        "postgresql://ada:s%2Fe@[::1]:5432/db?sslmode=require",
        "postgresql://ada@one:5432,two:5433/db?target_session_attrs=read-write",
        "postgresql://ada@/my db?host=/tmp/my sockets&port=5432,5433",
    ],
)
def test_a_url_that_names_a_server_is_left_to_the_driver(url: str) -> None:
    """Its host may not exist; that is found by asking."""
    check_url(url)


@pytest.mark.parametrize(
    ("url", "driven"),
    [
        ("postgresql://a@h/db?pooler=transaction", "postgresql://a@h/db"),
        (
            "postgresql://a@h/db?sslmode=require&pooler=transaction&x=1",
            "postgresql://a@h/db?sslmode=require&x=1",
        ),
        ("postgresql://a@/db?pool%65r=transaction&host=/tmp", "postgresql://a@/db?host=/tmp"),
        (
            "postgresql://a@h/db?direct=postgresql://b@i/db&sslmode=require&pooler=transaction",
            "postgresql://a@h/db?sslmode=require",
        ),
    ],
)
def test_the_driver_does_not_see_the_pooler(url: str, driven: str) -> None:
    """It would send the option to the server as a setting; the rest reaches it unchanged."""
    check_url(url)
    assert is_pooled(url)
    assert driver_url(url) == driven
    assert not is_pooled(driven)
    assert driver_url(driven) == driven


@pytest.mark.parametrize(
    ("url", "listens"),
    [
        ("postgresql://a@h/db", "postgresql://a@h/db"),
        ("postgresql://a@h/db?pooler=transaction", None),
        ("postgresql://a@h/db?pooler=transaction&direct=postgres://b@i/c", "postgres://b@i/c"),
        (
            "postgresql://a@h/db?direct=postgresql%3A//b%3Ax%2540%2By%40i/c%3Fa%3D1%26b%3D2"
            "&pooler=transaction",
            "postgresql://b:x%40+y@i/c?a=1&b=2",
        ),
    ],
)
def test_who_listens_goes_past_a_pooler_if_the_url_says_how(url: str, listens: str | None) -> None:
    """By a URL within the URL, which is decoded once."""
    check_url(url)
    assert listening_url(url) == listens


@pytest.mark.parametrize(
    ("direct", "word"),
    [
        ("", "as in direct=postgresql://"),
        ("one.example:5432", "as in direct=postgresql://"),
        ("sqlite:///a.db", "as in direct=postgresql://"),
        ("postgresql://ada:secret@one/two?pooler%3Dtransaction", "without pooler and direct"),
        ("postgresql://one/two?direct%3Dpostgresql://one/two", "without pooler and direct"),
        ("postgresql://ada:se%40cret@one/two", "Percent-encode it as a whole"),
        ("postgresql://ada:secret@one:x/two", "its port is not a number"),
    ],
)
def test_a_way_past_a_pooler_that_names_no_server_is_refused(direct: str, word: str) -> None:
    """In words that say what is wanted, without its password."""
    with pytest.raises(InvalidURL) as info:
        check_url(f"postgresql://ada@host/db?pooler=transaction&direct={direct}")
    assert word in info.value.reason
    assert "cret" not in str(info.value)


def test_a_way_past_no_pooler_is_refused() -> None:
    """The URL itself is the server's then."""
    with pytest.raises(InvalidURL, match="direct belongs beside pooler=transaction"):
        check_url("postgresql://ada@host/db?direct=postgresql://ada@host/db")
