"""The database file: how it is opened, recognised, migrated, locked and copied, and its log."""

from limpet.store.sqlite.file.header import APPLICATION_ID
from limpet.store.sqlite.file.locks import first_bytes
from limpet.store.sqlite.file.pace import Pace
from limpet.store.sqlite.file.wal import CHECKPOINT_PAGES

__all__ = ["APPLICATION_ID", "CHECKPOINT_PAGES", "Pace", "first_bytes"]
