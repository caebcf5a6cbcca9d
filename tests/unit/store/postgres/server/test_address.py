"""What people are told of a URL, and what is wrong with it before anything is tried."""

from __future__ import annotations

import pytest

from limpet.errors import InvalidURL
from limpet.store.postgres.server.address import check_url, driver_url, is_pooled, where


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:secret@host/db",
        "postgresql://ada@host/db?password=secret",
        "postgresql:///db?user=ada&password=secret&sslmode=require",
        "postgresql://ada:se@cret@host/db",
        "postgresql://ada:se/cret@host/db",
        "postgresql://ada@host/db?password=se#cret",
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
    ],
)
def test_the_driver_does_not_see_the_pooler(url: str, driven: str) -> None:
    """It would send the option to the server as a setting; the rest reaches it unchanged."""
    check_url(url)
    assert is_pooled(url)
    assert driver_url(url) == driven
    assert not is_pooled(driven)
    assert driver_url(driven) == driven
