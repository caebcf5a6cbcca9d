"""The SQL of the PostgreSQL store, in files beside this module.

`queries.sql`, `feed.sql`, `live.sql`, `leases.sql`, `erasure.sql`, `blobs.sql`, `verify.sql`,
`doctor.sql`, `schema.sql` and `overview.sql` hold named statements, found in `SQL` by name.
`functions.sql` and the numbered migrations are scripts. Statements are sent as they are written:
what varies is a parameter. Only pages of heads, whose filters vary, are put together in Python
(`heads.py`).
"""

from __future__ import annotations

from pathlib import Path

from limpet.store.statements import read_sql

SQL, SCRIPTS = read_sql(Path(__file__).parent)
SQL["tally"] = SQL["tally"].replace("/* readiness */", SQL["readiness"])
