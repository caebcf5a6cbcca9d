"""The first minutes with a clone: what `make demo` installs, and what the README says of extras."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = ("dev.txt", "demo.txt")
# A short demo in which nothing can be imported but these packages.
ALONE = """
import sys
from importlib.metadata import packages_distributions
sys.path.insert(0, sys.argv.pop(1))
allowed = {"limpet", *sys.argv[1:]}
for module, owners in packages_distributions().items():
    if not allowed.intersection(owner.lower().replace(".", "-") for owner in owners):
        sys.modules[module] = None
import demo
demo.KILLS = 1
sys.exit(demo.main())
"""


def pins(lock: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Each locked package with its version and its hashes."""
    text = (ROOT / "requirements" / lock).read_text()
    parts = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    return {
        part.partition("==")[0]: (
            re.split(r"[ \\]", part.partition("==")[2])[0],
            frozenset(re.findall(r"sha256:[0-9a-f]{64}", part)),
        )
        for part in parts
    }


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_hashes_and_names_no_index(lock: str) -> None:
    """Neither an address nor an option nor a path, and no package without a hash."""
    text = (ROOT / "requirements" / lock).read_text()
    assert not re.search(r"://|^-|(^|[ =])/", text, re.MULTILINE)
    assert all(version and hashes for version, hashes in pins(lock).values())


def test_the_demo_is_locked_to_the_versions_that_are_tested() -> None:
    """Every package of the small lock is in the large one, the same to the byte."""
    small, large = pins("demo.txt"), pins("dev.txt")
    assert small.items() <= large.items()
    assert len(small) < len(large) / 3


def test_the_demo_needs_nothing_that_its_lock_lacks(tmp_path: Path) -> None:
    """It runs where nothing else can be imported; without rich it would not."""
    locked = set(pins("demo.txt"))
    for packages, code in ((locked, 0), (locked - {"rich"}, 1)):
        program = [sys.executable, "-c", ALONE, str(ROOT / "examples"), *packages]
        ran = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == code, ran.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_demo_installs_the_small_lock_and_builds_nothing(tmp_path: Path) -> None:
    """On a fresh clone; every other target installs the large one."""
    demo, tests = (planned(target, tmp_path / "venv") for target in ("demo", "test"))
    assert "requirements/demo.txt" in demo
    assert "requirements/dev.txt" not in demo
    assert "--editable" not in demo
    assert "requirements/dev.txt" in tests
    assert "--editable" in tests
    (left_out,) = re.findall(r"echo '(Left out: .*)'", tests)
    (said,) = re.findall(r"^    make test +# (.+)$", (ROOT / "README.md").read_text(), re.M)
    for target in ("make adapters", "make torture"):
        assert target in left_out
        assert target in said


def planned(target: str, venv: Path) -> str:
    """What make would do, without doing it."""
    ran = subprocess.run(
        ["make", "--dry-run", target, f"VENV={venv}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout


def test_the_page_on_installing_names_every_extra() -> None:
    """And `all` is all of the others but the frameworks that we adapt to."""
    extras = PROJECT["project"]["optional-dependencies"]
    named = re.findall(
        r"^\| `limpet\[([\w-]+)\]`", (ROOT / "docs" / "install.md").read_text(), re.M
    )
    assert set(named) == set(extras)
    (whole,) = extras["all"]
    frameworks = {"a2a", "acp", "adk", "agent-framework", "claude-agent-sdk", "langgraph", "mcp"}
    frameworks |= {"openai-agents", "pydantic-ai", "strands", "pkcs11", "parquet"}  # or large
    assert set(re.findall(r"[\w-]+", whole)[1:]) == set(extras) - {"all"} - frameworks


def test_the_readme_is_read_in_three_minutes() -> None:
    """At most 8 KB; what a newcomer needs first comes first."""
    text = (ROOT / "README.md").read_text()
    assert len(text.encode()) <= 8_192
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [
        "Install",
        "Try it",
        "Crash and resume",
        "An agent with tools and an approval",
        "Six promises",
        "Coming from",
        "When not to use it",
        "Documentation",
        "Status",
    ]
