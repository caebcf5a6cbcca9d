"""Importing: light, and without what only some need."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import limpet
import limpet.graph
import limpet.model.diff.diff


def test_an_import_brings_in_nothing_that_was_not_asked_for() -> None:
    """Neither test tools nor the packages of extras are loaded before they are used."""
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, limpet; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    roots = {name.split(".")[0] for name in loaded}
    assert not roots & {"pytest", "hypothesis", "cryptography", "rich", "pydantic", "asyncpg"}
    assert "numpy" not in roots
    assert not [name for name in loaded if name.startswith("google.protobuf")]
    assert not [name for name in loaded if name.startswith("limpet.testing")]
    assert not {"limpet.model.diff.diff", "limpet.model.diff.merge"} & set(loaded)
    later = (
        "store.sqlite.live",
        "session.runs.traces",
        "session.conversation.graphs",
    )
    assert not {f"limpet.{name}" for name in later} & set(loaded)


def test_typed_state_without_its_extra_names_the_extra() -> None:
    """Everything else works; State alone says what to install, each time it is asked for."""
    program = (
        "import sys; sys.modules['pydantic'] = None\n"
        "import limpet; limpet.Ref.to('urn:x', b''); limpet.reducers.append\n"
        "for name in ('State', 'Record', 'State'):\n"
        "    try:\n        getattr(limpet, name)\n"
        "    except limpet.errors.ExtraMissing as error:\n"
        "        print(error.package, error.extra)\n"
        "    else:\n        print('found')\n"
        "print(hasattr(limpet, 'Stat'))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("pydantic state\n" * 3 + "False\n", "")


def test_analytics_without_its_extra_names_the_extra() -> None:
    """The command line works, and loads numpy for the commands alone that measure."""
    program = (
        "import sys; sys.modules['numpy'] = None\n"
        "import limpet, limpet.cli.app\n"
        "try:\n    limpet.Analytics\n"
        "except limpet.errors.ExtraMissing as error:\n"
        "    print(error.package, error.extra)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("numpy analytics\n", "")


def test_every_public_name_is_there() -> None:
    """What __all__ promises can be had, and is sorted as a reader expects."""
    assert [name for name in limpet.__all__ if not hasattr(limpet, name)] == []
    assert len(set(limpet.__all__)) == len(limpet.__all__)


@pytest.mark.parametrize("package", [limpet, limpet.graph], ids=lambda p: p.__name__)
def test_type_checkers_see_the_names_that_are_there(package: ModuleType) -> None:
    """The imports under TYPE_CHECKING and the table of lazy exports name the same objects."""
    tree = ast.parse(Path(package.__file__ or "").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    seen = {(str(node.module), a.name) for node in imports for a in node.names if a.asname}
    listed = {(module, name) for module, name in seen if not module.endswith(".otel")}
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {name for _, name in listed} | defined == {*package.__all__}
    for module, name in listed:
        assert getattr(package, name) is getattr(import_module(module), name)


@pytest.mark.parametrize("package", [limpet, limpet.graph], ids=lambda p: p.__name__)
def test_a_package_completes_to_its_public_names_only(package: ModuleType) -> None:
    """No module that it imports for itself, before and after its names are loaded."""
    for _ in range(2):
        assert {*package.__all__} <= {*dir(package)}
        assert [name for name in dir(package) if name.startswith("_")] == []
        assert {"TYPE_CHECKING", "annotations", "logging", "exports"}.isdisjoint(dir(package))
        assert all([hasattr(package, name) for name in package.__all__])
    assert dir(limpet) == sorted(limpet.__all__)


def test_ops_completes_to_operations_only() -> None:
    """No import, no helper and no check stands among what a program writes."""
    assert dir(limpet.ops) == sorted(limpet.ops.__all__)
    assert {n for n in vars(limpet.ops) if not n.startswith("_")} == {*limpet.ops.__all__}
    for name in limpet.ops.__all__:
        found = getattr(limpet.ops, name)
        assert name in ("Op", "Path", "PlainOp") or found in limpet.ops.Op.__args__


def test_the_extra_all_has_every_other_extra() -> None:
    """Who installs limpet[all] meets no ExtraMissing but of a framework, which one has anyway."""
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    # And of hardware: python-pkcs11 is of use to those who have a module for it. pyarrow is large.
    frameworks = {"a2a", "acp", "adk", "agent-framework", "claude-agent-sdk", "langgraph", "mcp"}
    frameworks |= {"openai-agents", "parquet", "pkcs11", "pydantic-ai", "strands"}
    others = ",".join(sorted(extras.keys() - {"all", *frameworks}))
    assert extras["all"] == [f"limpet[{others}]"]


def test_a_name_that_is_not_there_is_an_ordinary_error() -> None:
    """Names that are loaded later do not make every name seem to exist."""
    assert limpet.diff is limpet.model.diff.diff.diff
    with pytest.raises(AttributeError, match="has no attribute 'dif'"):
        limpet.dif  # type: ignore[attr-defined]  # noqa: B018  # asked for on purpose
    with pytest.raises(AttributeError, match=r"It is limpet\.errors\.ShareNotFound$"):
        _ = limpet.ShareNotFound  # type: ignore[attr-defined]  # what is refused
    with pytest.raises(AttributeError, match="has no attribute 'GraphErr'"):
        limpet.errors.GraphErr  # type: ignore[attr-defined]  # noqa: B018  # asked for on purpose


def test_the_server_needs_no_package_of_another_extra() -> None:
    """It serves without pydantic: `limpet[server]` alone is enough."""
    blocked = "import sys; sys.modules.update(pydantic=None, pydantic_core=None, numpy=None)"
    program = f"{blocked}; import limpet.server.serve, limpet.studio"
    subprocess.run([sys.executable, "-c", program], check=True)
