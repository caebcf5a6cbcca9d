"""What people are told of a URL."""

from __future__ import annotations

import pytest

from holdfast.store.postgres.connect import where


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:secret@host/db",
        "postgresql://ada@host/db?password=secret",
        "postgresql:///db?user=ada&password=secret&sslmode=require",
        "postgresql://ada:se@cret@host/db",
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
