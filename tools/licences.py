"""The licences of what Limpet may bring along: every package of every extra, as locked.

    python -m tools.licences

prints the table. requirements/licences.toml holds it, by the names of SPDX; a test compares it with
the locks, and with what the installed packages say of themselves.
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageMetadata
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "requirements"
# Together these have every package of every extra, and some that only tests use. The frameworks
# cannot all be installed together, so each has a lock of its own.
LOCKS = (
    "extras",
    "adk",
    "agent-framework",
    "agent-libraries",
    "claude-agent-sdk",
    "langgraph",
    "mcp",
    "openai-agents",
)
# Permissive, or (MPL) with duties only for those who change its files.
ALLOWED = frozenset(
    (
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "CNRI-Python",
        "ISC",
        "MIT",
        "MIT-0",
        "MPL-2.0",
        "PSF-2.0",
        "Zlib",
    )
)
_CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}


def table() -> dict[str, str]:
    """Return the licence of each package, by its normalized name."""
    return tomllib.loads((FOLDER / "licences.toml").read_text())


def locked() -> set[str]:
    """Return the names of every package in LOCKS."""
    texts = [(FOLDER / f"{name}.txt").read_text() for name in LOCKS]
    return {name for text in texts for name in re.findall(r"^([a-z0-9.-]+)==", text, re.MULTILINE)}


def identifiers(expression: str) -> set[str]:
    """Return the licences that an SPDX expression names, whether joined by AND or by OR."""
    return set(re.findall(r"[\w.-]+", expression)) - {"AND", "OR"}


def declared(metadata: PackageMetadata) -> str | None:
    """Return what a package says of itself, or None if that leaves a doubt."""
    if expression := metadata.get("License-Expression"):
        return expression
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in metadata.get_all("Classifier", [])
        if line.startswith("License ::")
    ]
    return _CLASSIFIERS.get(classifiers[0]) if len(classifiers) == 1 else None


def main() -> None:
    licences = table()
    for name in sorted(locked()):
        print(f"{name:<42} {licences.get(name, 'UNKNOWN')}")


if __name__ == "__main__":
    main()
