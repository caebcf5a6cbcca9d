"""The server: addresses, pools, settings, schema and outages."""

from limpet.store.postgres.server.address import is_pooled, listening_url, where
from limpet.store.postgres.server.pool import Pools, open_pool
from limpet.store.postgres.server.pooler import connect as connect_alone
from limpet.store.postgres.server.settings import (
    CONNECT_SECONDS_MAX,
    TABLES_SECONDS_MAX,
    Connection,
    Pool,
    check_version,
    unlimited_settings,
)
from limpet.store.postgres.server.writer import PostgresWriteConnection

__all__ = [
    "CONNECT_SECONDS_MAX",
    "TABLES_SECONDS_MAX",
    "Connection",
    "Pool",
    "Pools",
    "PostgresWriteConnection",
    "check_version",
    "connect_alone",
    "is_pooled",
    "listening_url",
    "open_pool",
    "unlimited_settings",
    "where",
]
