"""The bill of materials of a release, in CycloneDX 1.6: what an installation may bring along.

It lists the packages of requirements/extras.txt (the core and every extra but the adapters of
frameworks, which bring their framework's own packages): versions, the hashes of the files that the
lock allows, licences, and who needs whom. It is made from the lock alone and names no time and no
machine, so the same lock gives the same bill.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tools import licences

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements" / "extras.txt"


class Pinned(NamedTuple):
    """A package of the lock; `via` are those that need it, with "limpet" for ourselves."""

    name: str
    version: str
    hashes: tuple[str, ...]
    via: tuple[str, ...]

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


def pinned(lock: Path = LOCK) -> list[Pinned]:
    """Read a lock with its annotations."""
    parts = re.split(r"^(?=[a-z0-9])", lock.read_text(), flags=re.MULTILINE)[1:]
    return [_pinned(part) for part in parts]


def _pinned(part: str) -> Pinned:
    name, _, rest = part.partition("==")
    via = re.findall(r"^    #(?: via|  ) ([a-z0-9][\w.-]*)", part, re.MULTILINE)
    hashes = re.findall(r"sha256:([0-9a-f]{64})", part)
    return Pinned(name, re.split(r"[ \\]", rest)[0], tuple(hashes), tuple(via))


def bill(files: Iterable[Path]) -> dict[str, Any]:
    """Return the bill of materials of these files, the wheel and the sdist."""
    packages, licence_of = pinned(), licences.table()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ourselves = Pinned(
        project["name"],
        project["version"],
        tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in files),
        (),
    )
    every = [ourselves, *packages]
    needs = {
        each.purl: sorted(other.purl for other in packages if each.name in other.via)
        for each in every
    }
    licence_of = {**licence_of, ourselves.name: project["license"]}
    components = [_component(each, licence_of[each.name]) for each in every]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, repr(every)).urn,
        "version": 1,
        "metadata": {"component": components[0]},
        "components": components[1:],
        "dependencies": [{"ref": ref, "dependsOn": on} for ref, on in needs.items()],
    }


def _component(package: Pinned, licence: str) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in package.hashes],
        "licenses": [{"expression": licence}],
    }
