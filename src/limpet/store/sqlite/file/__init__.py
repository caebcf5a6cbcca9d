"""The database file: how it is opened, recognised, migrated, locked and copied."""
