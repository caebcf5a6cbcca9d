"""Settings: what the store needs of a server, and what it sets on every connection.

Time limits, versions and encodings are here. A database whose encoding lacks letters would open,
and then refuse the first of them again at every retry; so it is refused when it is opened.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

from limpet.errors import InvalidURL, StoreUnopened
from limpet.store.postgres.sql import SQL

Connection: TypeAlias = Any  # asyncpg is not typed
Pool: TypeAlias = Any

VERSION_MIN: Final = 13  # of the server: the first with xid8, by which the feed is ordered
CONNECT_SECONDS_MAX: Final = 10.0
STATEMENT_SECONDS_MAX: Final = 30.0
TABLES_SECONDS_MAX: Final = 3_600  # for what reads whole tables: verification, the doctor
LOCK_SECONDS_MAX: Final = 10.0
LANE_LOCK_SECONDS_MAX: Final = 3.0  # others' commits wait behind a batch that waits
# The wait of a call for a server that restarts, and the pause between its attempts.
LOST_SECONDS_MAX: Final = 30.0
LOST_PAUSE_SECONDS: Final = 0.05

ENCODING: Final = "UTF8"
UTF8_DATABASE: Final = "CREATE DATABASE name TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'"

# A lane sends look-ups by key. They are planned once, and never as a scan of a table: a
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
    version = conn.get_server_version()
    if version.major < VERSION_MIN:
        raise StoreUnopened(
            place,
            f"it is PostgreSQL {version.major}.{version.minor}, and Limpet needs {VERSION_MIN} or "
            "newer. Upgrade the server, or name another in the URL",
        )


def check_encoding(conn: Connection, place: str) -> None:
    """Raise StoreUnopened for a database, or a connection to it, that lacks letters."""
    settings = conn.get_settings()
    if settings.server_encoding != ENCODING:
        raise StoreUnopened(
            place,
            f"its encoding is {settings.server_encoding}, and Limpet needs {ENCODING}. Make "
            f"another database and name it in the URL: {UTF8_DATABASE}",
        )
    if settings.client_encoding.upper().replace("-", "") != ENCODING:
        raise StoreUnopened(
            place,
            f"texts come from it as {settings.client_encoding}, and Limpet needs {ENCODING}. "
            "Take client_encoding out of what stands between here and the server",
        )


# --- addresses -----------------------------------------------------------------------------------


PORT_MAX: Final = 65_535
# The options that are ours and not the driver's.
POOLER: Final = "pooler"
POOLED: Final = "transaction"  # its only value
DIRECT: Final = "direct"  # beside it: the URL of the server itself
# Those of a cluster: `server.cluster` reads them.
CLUSTER: Final = (
    "write_quorum",
    "read_quorum",
    "replicas",
    "reads",
    "behind",
    "quorum_seconds",
)
# Other options of the driver, and settings of a session that a URL may have. The driver hands
# any other name to the server as a setting: a misspelt option of ours would be one.
DRIVER: Final = frozenset(
    (
        *("host", "port", "user", "password", "passfile", "dbname", "database", "service"),
        *("sslmode", "sslcert", "sslkey", "sslrootcert", "sslnegotiation", "sslcrl", "sslpassword"),
        *("ssl_min_protocol_version", "ssl_max_protocol_version", "target_session_attrs"),
        *("krbsrvname", "gsslib"),
    )
)
SESSION: Final = frozenset(
    (
        *("application_name", "options", "client_encoding", "search_path", "timezone"),
        *("synchronous_commit", "statement_timeout", "lock_timeout", "transaction_timeout"),
        *("idle_in_transaction_session_timeout", "idle_session_timeout", "tcp_user_timeout"),
        *("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count"),
        *("work_mem", "maintenance_work_mem", "temp_buffers", "jit", "role"),
    )
)
_SCHEMES: Final = ("postgresql", "postgres")
_QUOTING: Final = "in a user or a password write @ : / ? # as %40 %3A %2F %3F %23"
_ENCODING: Final = "Percent-encode it as a whole, by urllib.parse.quote: it is a URL within a URL"
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]|%00")


def where(url: str) -> str:
    """The URL without its password, wherever that stands, for people."""
    # With all that follows: an & in it that was not encoded parts its password.
    url = re.sub(rf"(?<=[?&]{DIRECT}=).*", "…", url, flags=re.DOTALL)
    url = re.sub(r"(?<=password=)[^&]*", "…", url)
    before, at, after = url.rpartition("@")
    if not at or "://" not in before:
        return url
    scheme, _, login = before.partition("://")
    return f"{scheme}://{login.partition(':')[0]}@{after}"


def check_url(url: str) -> None:
    """Raise InvalidURL for what no server can be asked for. Shows nothing of a password."""
    if _CONTROL.search(url):
        raise InvalidURL(where(url), "it holds a control character")
    parts = urlsplit(url)
    hosts = parts.netloc.partition("@")[2] if "@" in parts.netloc else parts.netloc
    if "@" in hosts or parts.fragment:
        raise InvalidURL(where(url), f"it has an @ or a # too many; {_QUOTING}")
    for host in hosts.split(","):
        port = re.sub(r"^\[[^\]]*\]|^[^:]*", "", host).removeprefix(":")
        _check_port(url, unquote(port))
    try:
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        reason = "what stands after its ? is not name=value, parted by &"
        raise InvalidURL(where(url), reason) from None
    for port in options.get("port", [""])[-1].split(","):
        _check_port(url, port)
    for mode in _given(url, POOLER):
        if mode != POOLED:
            other = f", not {mode!r}" if mode.isalnum() else ""  # it may be more than one option
            reason = (
                f"{POOLER} is {POOLED}{other}. For a pooler in session mode, or none, name "
                f"the server itself and leave {POOLER} out"
            )
            raise InvalidURL(where(url), reason)
    for server in _given(url, DIRECT):
        if wrong := _not_direct(server, pooled=is_pooled(url)):
            raise InvalidURL(where(url), wrong)


def is_pooled(url: str) -> bool:
    """True if the URL says that a pooler in transaction mode stands before the server."""
    return bool(_given(url, POOLER))


def listening_url(url: str) -> str | None:
    """The URL by which a process of the server can be had alone, as LISTEN needs it; None if the
    URL names a pooler and nothing else."""
    return url if not is_pooled(url) else next(reversed(_given(url, DIRECT)), None)


def driver_url(url: str) -> str:
    """The URL without what is not the driver's: it would take that for a setting of the server."""
    before, _, query = url.partition("?")
    ours = (POOLER, DIRECT, *CLUSTER)
    rest = "&".join([part for part in query.split("&") if _name(part) not in ours])
    return f"{before}?{rest}" if rest else before


def hosts(url: str) -> list[tuple[str, int | None]]:
    """The servers that a URL names, each with its port, as the driver reads them."""
    parts = urlsplit(url)
    given, query = parts.netloc.rpartition("@")[2], options(url)
    listed = unquote(given) if given else query.get("host", [""])[-1]
    ports = [int(port) for port in query.get("port", [""])[-1].split(",") if port]
    named_hosts: list[tuple[str, int | None]] = []
    for place, host in enumerate(listed.split(",") if listed else []):
        named = re.fullmatch(r"(?P<host>\[[^\]]*\]|[^:]*)(:(?P<port>[0-9]+))?", host)
        if host.startswith("/") or named is None:  # a directory with a socket
            named_hosts.append((host, None))
            continue
        port = int(named["port"]) if named["port"] else None
        if port is None and ports:
            port = ports[place] if place < len(ports) else ports[-1]
        named_hosts.append((named["host"].strip("[]"), port))
    return named_hosts


def options(url: str) -> dict[str, list[str]]:
    """The options after its ?, by name."""
    return parse_qs(urlsplit(url).query)


def _given(url: str, name: str) -> list[str]:
    """The values of an option of ours."""
    parts = [part for part in urlsplit(url).query.split("&") if _name(part) == name]
    return [unquote(part.partition("=")[2]) for part in parts]


def _not_direct(server: str, *, pooled: bool) -> str | None:
    """The reason why this is not the URL of the server behind a pooler, without its password."""
    if not pooled:
        return f"{DIRECT} belongs beside {POOLER}={POOLED}; without a pooler leave it out"
    if server.partition("://")[0] not in _SCHEMES:
        return f"{DIRECT} is a URL of the server itself, as in {DIRECT}=postgresql://user@host/name"
    if is_pooled(server) or _given(server, DIRECT):
        return f"{DIRECT} is a URL of the server itself, without {POOLER} and {DIRECT}"
    try:
        check_url(server)
    except InvalidURL as error:
        return f"of the URL after {DIRECT}=: {error.reason}. {_ENCODING}"
    return None


def _name(part: str) -> str:
    return unquote(part.partition("=")[0])


def _check_port(url: str, port: str) -> None:
    """A port is a number. What stands in its place may be a piece of a password."""
    if port and not (re.fullmatch("[0-9]{1,5}", port) and 1 <= int(port) <= PORT_MAX):
        shown = where(url).replace(f":{port}", ":…", 1)
        reason = f"its port is not a number from 1 to {PORT_MAX}; {_QUOTING}"
        raise InvalidURL(shown, reason)
