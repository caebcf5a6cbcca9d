"""Write the golden files that are not there yet. One that is there is never written again.

Run from the root of the repository: python -m tests.golden.make
"""

from __future__ import annotations

import asyncio
import hashlib

from limpet import envelope
from limpet.store.sqlite.file.schema import SCHEMA
from tests.golden import files, keys, stores
from tests.golden.test_golden import FIELDS, FILES, HEADER, HERE


def main() -> None:
    """One file for each format and for the present schema, with what the tests are to know."""
    for format, name in FILES.items():
        path = HERE / name
        if not path.exists():
            path.write_bytes(envelope.encode(FIELDS, format=format, **HEADER))
            print(name, envelope.decode(path.read_bytes()).checksum)
    path = HERE / f"store-{SCHEMA}.db"
    if not path.exists():
        asyncio.run(stores.write(path, SCHEMA))
        print(path.name, hashlib.sha256(path.read_bytes()).hexdigest())
    for path in (files.BUNDLE, files.SEALED):
        if not path.exists():
            asyncio.run(files.write(path))
            print(path.name, hashlib.sha256(path.read_bytes()).hexdigest())
    if not keys.GOLDEN.exists():
        asyncio.run(keys.write())


if __name__ == "__main__":
    main()
