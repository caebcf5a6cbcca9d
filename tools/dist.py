"""Build the wheel and the sdist: the same source gives the same bytes, wherever it is built.

    python -m tools.dist [FOLDER]

Beside them stands a bill of materials (`tools.sbom`). Hatchling sorts the files and gives each the
same time and mode: SOURCE_DATE_EPOCH if it is set, else a fixed day.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

from tools import sbom

ROOT = Path(__file__).parents[1]


def build(root: Path, folder: Path) -> list[Path]:
    """Build the package in `root`; return the wheel and the sdist, in this order."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder.absolute())]
    for target in ("wheel", "sdist"):
        subprocess.run([*command, "-t", target], cwd=root, check=True, capture_output=True)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return [wheel, sdist]


def main(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for old in (*folder.glob("limpet-*.whl"), *folder.glob("limpet-*.tar.gz")):
        old.unlink()
    files = build(ROOT, folder)
    bill = folder / f"{files[1].name.removesuffix('.tar.gz')}.cdx.json"
    bill.write_text(json.dumps(sbom.bill(files), indent=2) + "\n")
    for path in (*files, bill):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        print(f"{digest}  {path.name}  {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1] if sys.argv[1:] else "dist"))
