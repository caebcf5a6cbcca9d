"""Settings: what the store needs of a server, and what it sets on every connection.

Time limits, versions and encodings are here. A database whose encoding lacks letters would open,
and then refuse the first of them again at every retry; so it is refused when it is opened.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from limpet.errors import StoreUnopened
from limpet.store.postgres.server.address import options
from limpet.store.postgres.sql import SQL

Connection: TypeAlias = Any  # asyncpg is not typed
Pool: TypeAlias = Any

VERSION_MIN: Final = 13  # of the server: the first with xid8, by which the feed is ordered
CONNECT_SECONDS_MAX: Final = 10.0
STATEMENT_SECONDS_MAX: Final = 30.0
TABLES_SECONDS_MAX: Final = 3_600  # for what reads whole tables: verification, the doctor
LOCK_SECONDS_MAX: Final = 10.0
LANE_LOCK_SECONDS_MAX: Final = 3.0  # others' commits wait behind a batch that waits
# How long a call waits for a server that restarts, and the pause between its attempts.
LOST_SECONDS_MAX: Final = 30.0
LOST_PAUSE_SECONDS: Final = 0.05

ENCODING: Final = "UTF8"
UTF8_DATABASE: Final = "CREATE DATABASE name TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'"

# What a lane sends are look-ups by key. They are planned once, and never as a scan of a table: a
# scan looks cheap while the table is small, and the plan would be kept when it is not.
LOOKUP_PLANS: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}


def connection_settings(lock_seconds: float) -> dict[str, str]:
    """The settings of a new connection."""
    return {
        "application_name": "limpet",
        "statement_timeout": str(int(STATEMENT_SECONDS_MAX * 1_000)),
        "lock_timeout": str(int(lock_seconds * 1_000)),
        "search_path": "pg_catalog",
        "client_encoding": ENCODING,  # in place of what the URL says: others lack letters
        # In place of the default of the role or the database: after a lock the newest rows count.
        "default_transaction_isolation": "read committed",
        "array_nulls": "on",  # columns of a batch are arrays, and some of their values are null
        "exit_on_error": "off",  # a statement that is refused does not cost the connection
    }


def unlimited_settings() -> dict[str, str]:
    """The same for a connection that listens, looks or migrates: it takes as long as it takes."""
    return connection_settings(0) | {"statement_timeout": "0"}


def adjusting(url: str, *, locally: bool = False) -> str:
    """SQL that sets what depends on the defaults of the role and the database: limits on idleness
    that are too short to work under, and commits that are not on disk when they are acknowledged,
    unless the URL itself asks for those. `locally` is for one transaction."""
    patient = SQL["patient_locally"] if locally else SQL["patient"]
    if "synchronous_commit" in options(url):
        return f"{patient};"
    durable = SQL["durable_locally"] if locally else SQL["durable"]
    return f"{patient};{durable};"


def check_version(conn: Connection, place: str) -> None:
    """Raise StoreUnopened for a server that lacks what our SQL is written in."""
    found = conn.get_server_version()
    if found.major < VERSION_MIN:
        raise StoreUnopened(
            place,
            f"it is PostgreSQL {found.major}.{found.minor}, and Limpet needs {VERSION_MIN} or "
            "newer. Upgrade the server, or name another in the URL",
        )


def check_encoding(conn: Connection, place: str) -> None:
    """Raise StoreUnopened for a database, or a connection to it, that lacks letters."""
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
