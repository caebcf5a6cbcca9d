"""What is published: the wheel, the sdist and the bill of materials, and the wheel installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
from importlib.metadata import distributions
from pathlib import Path
from sysconfig import get_path
from zipfile import ZipFile

import pytest

from tools import dist, dist_check, licences, sbom

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = ("src", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", ".gitignore")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The wheel and the sdist."""
    return dist.build(copied(tmp_path_factory.mktemp("here"), 0o644), tmp_path_factory.mktemp("a"))


@pytest.fixture(scope="module")
def python(built: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel alone: run with `beside`, it has the other packages as well."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(home), "--disable-pip-version-check"]
    pip += ["install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(built[0])]
    subprocess.run(pip, check=True, capture_output=True)
    return home / "bin" / "python"


def copied(folder: Path, mode: int) -> Path:
    """The sources in another place, of another age, with other permissions."""
    for name in SOURCES:
        source, target = ROOT / name, folder / name
        if source.is_file():
            shutil.copyfile(source, target)
        else:
            shutil.copytree(source, target, copy_function=shutil.copyfile)
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode)
            os.utime(path, (mode, mode))
    return folder


def ran(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run with the packages of this environment beside the wheel, but without our sources."""
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": get_path("purelib")}
    args = [str(each) for each in command]
    return subprocess.run(args, cwd=cwd, env=env, capture_output=True, text=True, check=False)


# --- the files ----------------------------------------------------------------------------------


def test_the_same_source_gives_the_same_bytes(built: list[Path], tmp_path: Path) -> None:
    """In another folder, with other times and permissions, under another umask and hash seed."""
    (tmp_path / "elsewhere").mkdir()
    source = copied(tmp_path / "elsewhere", 0o600)
    program = f"from pathlib import Path; from tools import dist; dist.build(Path({str(source)!r}),"
    program += f" Path({str(tmp_path)!r}))"
    env = {**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=env, umask=0o077, check=True)
    for first in built:
        assert (tmp_path / first.name).read_bytes() == first.read_bytes()


def test_the_files_are_small(built: list[Path]) -> None:
    """A package that grows does so knowingly: nine tenths is source with its docstrings, which
    `help` and editors show, and no archive holds it in less than the sdist's."""
    wheel, sdist = [path.stat().st_size for path in built]
    assert sdist <= 1.7 * 2**20
    assert wheel <= 2.0 * 2**20


def test_the_wheel_has_every_file_of_the_package_and_no_other(built: list[Path]) -> None:
    """Types, SQL, policies and the studio's page among them; no tests, no caches."""
    names = {name for name in ZipFile(built[0]).namelist() if ".dist-info/" not in name}
    sources = {path for path in (ROOT / "src").rglob("*") if path.is_file()}
    own = {
        str(path.relative_to(ROOT / "src")) for path in sources if "__pycache__" not in str(path)
    }
    assert names == own
    for kind in ("/py.typed", ".sql", ".cedar", ".cedarschema", ".proto", "static/index.html"):
        assert any(name.endswith(kind) for name in names), kind
    info = {name.partition(".dist-info/")[2] for name in ZipFile(built[0]).namelist()}
    assert {"METADATA", "RECORD", "entry_points.txt", "licenses/LICENSE"} <= info


def test_the_sdist_has_what_builds_the_wheel(built: list[Path]) -> None:
    """And neither tests nor benchmarks."""
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "PKG-INFO"} <= names
    assert {name.partition("/")[0] for name in names if "/" in name} == {"src"}


# --- installed ----------------------------------------------------------------------------------


def test_the_installed_wheel_works(python: Path, tmp_path: Path) -> None:
    """Every extra that is here enables what it promises; the command and the demo run."""
    extras = re.findall(r"[\w-]+", PROJECT["optional-dependencies"]["all"][0])[1:]
    done = ran(python, ROOT / "tools" / "installed.py", *{*extras} - {"cli"}, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    done = ran(python.with_name("limpet"), "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    program = "import demo; demo.KILLS = 1; raise SystemExit(demo.main())"
    path = f"import sys; sys.path.insert(0, {str(ROOT / 'examples')!r})"
    done = ran(python, "-c", f"{path}; {program}", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_its_extras_the_wheel_names_them(python: Path, tmp_path: Path) -> None:
    """With the packages of the core alone: each other one is asked for by name."""
    core = [re.split(r"[<>=;]", each)[0] for each in PROJECT["dependencies"]]
    found = {d.metadata["Name"].lower(): d for d in distributions(path=[get_path("purelib")])}
    for name in core:
        if name not in found:
            continue  # of another Python
        for file in found[name].files or ():
            target = tmp_path / "core" / file
            if ".." not in file.parts:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(file.locate())
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path / "core")}
    command = [python, ROOT / "tools" / "installed.py"]
    done = subprocess.run(
        command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("works: the core\n", 0), done.stderr
    command = [python.with_name("limpet"), "--help"]
    done = subprocess.run(
        command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    assert "pip install 'limpet[cli]'" in done.stderr


def test_a_name_without_an_interpreter_behind_it_is_not_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shim of a version that is not chosen is passed over for one that starts, or for none."""
    shim = tmp_path / "shims" / "python9.9"
    kept = tmp_path / "pyenv" / "versions" / "9.9.1" / "bin" / "python9.9"
    for path, text in ((shim, "#!/bin/sh\nexit 127\n"), (kept, "#!/bin/sh\nexit 0\n")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(shim.parent))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "none"))
    assert dist_check.interpreter("python9.9") is None
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert dist_check.interpreter("python9.9") == str(kept)


# --- what it brings along -----------------------------------------------------------------------


def test_the_bill_of_materials_names_every_package(built: list[Path]) -> None:
    """With version, hashes and licence; every package is needed by another one or by us."""
    bill = sbom.bill(built)
    assert bill == json.loads(json.dumps(sbom.bill(built)))
    assert len(bill["components"]) == len(sbom.pinned())
    for component in bill["components"]:
        assert component["hashes"]
        assert component["licenses"][0]["expression"]
    needed = {ref for each in bill["dependencies"] for ref in each["dependsOn"]}
    assert needed == {component["bom-ref"] for component in bill["components"]}
    ours = {package.name for package in sbom.pinned() if "limpet" in package.via}
    wanted = [*PROJECT["dependencies"], *wanted_by("all"), *wanted_by("parquet", "pkcs11")]
    assert ours == {re.split(r"[<>=;\[ ]", each)[0].replace(".", "-") for each in wanted} - {
        "limpet"
    }


def wanted_by(*extras: str) -> list[str]:
    table = PROJECT["optional-dependencies"]
    found = [each for extra in extras for each in table[extra]]
    inner = [re.findall(r"[\w-]+", each)[1:] for each in found if each.startswith("limpet[")]
    return found + [each for names in inner for each in wanted_by(*names)]


def test_every_package_of_every_extra_has_an_allowed_licence() -> None:
    """The table has what the locks have, no more and no less."""
    table, locked = licences.table(), licences.locked()
    assert table.keys() == locked
    refused = {name: text for name, text in table.items() if not licences.identifiers(text)}
    refused |= {n: e for n, e in table.items() if licences.identifiers(e) - licences.ALLOWED}
    assert refused == {}
    direct = [each for extra in PROJECT["optional-dependencies"] for each in wanted_by(extra)]
    names = {re.split(r"[<>=;\[ ]", each)[0] for each in direct} - {"limpet"}
    assert names <= locked


def test_the_licences_are_those_that_the_packages_declare() -> None:
    """Of every package that is installed here and says it in the terms of SPDX."""
    table = licences.table()
    compared = 0
    for found in distributions(path=[get_path("purelib")]):
        name = re.sub(r"[-_.]+", "-", found.metadata["Name"]).lower()
        said = licences.declared(found.metadata)
        if name in table and said is not None:
            assert table[name] == said, name
            compared += 1
    assert compared > 20
