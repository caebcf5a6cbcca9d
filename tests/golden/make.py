"""Write the golden files that are not there yet. One that is there is never written again.

Run from the root of the repository: python -m tests.golden.make
"""

from __future__ import annotations

from holdfast import envelope
from tests.golden.test_golden import FIELDS, FILES, HEADER, HERE


def main() -> None:
    """One file for each format, with the checksum that the test is to know."""
    for format, name in FILES.items():
        path = HERE / name
        if not path.exists():
            path.write_bytes(envelope.encode(FIELDS, format=format, **HEADER))
            print(name, envelope.decode(path.read_bytes()).checksum)


if __name__ == "__main__":
    main()
