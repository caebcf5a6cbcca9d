"""The encoding of a database: it has to hold every text that a key, a type or a label may be.

One that lacks letters would open, and then refuse the first of them, again at every retry.
"""

from __future__ import annotations

from typing import Any, Final

from limpet.errors import StoreUnopened

ENCODING: Final = "UTF8"
UTF8_DATABASE: Final = "CREATE DATABASE name TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'"


def check_encoding(conn: Any, place: str) -> None:
    """Raise StoreUnopened for a database, or a line to it, that lacks letters."""
    found = conn.get_settings()
    if found.server_encoding != ENCODING:
        raise StoreUnopened(
            place,
            f"its encoding is {found.server_encoding}, and Limpet needs {ENCODING}. Make another "
            f"database and name it in the URL: {UTF8_DATABASE}",
        )
    if found.client_encoding.upper().replace("-", "") != ENCODING:
        raise StoreUnopened(
            place,
            f"texts come from it as {found.client_encoding}, and Limpet needs {ENCODING}. "
            "Take client_encoding out of what stands between here and the server",
        )
