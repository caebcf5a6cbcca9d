"""What a page tells to install is all that the code on it needs."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
# The distributions that hold these modules. Those of ours that need an extra need its packages.
HELD_BY = {
    "agents": "openai-agents",
    "google": "google-adk",
    "langchain_core": "langgraph-checkpoint",  # which requires it
    "langgraph": "langgraph",
    "limpet.adapters.adk": "google-adk",
    "limpet.adapters.langgraph": "langgraph-checkpoint",
    "limpet.adapters.openai_agents": "openai-agents",
    "limpet.graph": "pydantic",
    "limpet.graph.otel": "opentelemetry-api",
    "limpet.State": "pydantic",
    "pydantic": "pydantic",
    "starlette": "starlette",
    "uvicorn": "uvicorn",
}


def extras() -> dict[str, set[str]]:
    """What each extra installs, by the names of the distributions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: dict[str, set[str]] = {}
    for name, wanted in project["optional-dependencies"].items():
        found[name] = {re.split(r"[<>=;\[ ]", each)[0] for each in wanted} - {"limpet"}
    whole = re.search(r"\[(.*)\]", project["optional-dependencies"]["all"][0])
    assert whole is not None
    found["all"] = set().union(*[found[each] for each in whole[1].split(",")])
    return found


def needed(page: str) -> set[str]:
    """The distributions that the code on a page imports from, but those of the core."""
    code = "\n".join(re.findall(r"```python.*?\n(.*?)```", page, re.DOTALL))
    modules = set(re.findall(r"^\s*(?:from|import)\s+([\w.]+)", code, re.MULTILINE))
    if re.search(r"\blimpet\.State\b|from limpet import .*\bState\b", code):
        modules.add("limpet.State")
    found = set()
    for module in modules:
        parts = module.split(".")
        held = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
        known = [HELD_BY[each] for each in held if each in HELD_BY]
        if known:
            found.add(known[0])
        else:
            ours = parts[0] in ("limpet", "chats", "my_agent", "support_agent")
            assert ours or parts[0] in sys.stdlib_module_names, f"who brings {module}?"
    return found


@pytest.mark.parametrize("path", PAGES, ids=[page.name for page in PAGES])
def test_the_extras_that_a_page_names_bring_what_its_code_imports(path: Path) -> None:
    """So that nobody who followed it meets an ImportError."""
    page, known = path.read_text(), extras()
    named = {
        extra for group in re.findall(r"\[([\w,-]+)\]'", page) for extra in group.split(",")
    } | set(re.findall(r"`limpet\[([\w-]+)\]`", page))
    assert named <= known.keys()
    brought = set().union(*[known[extra] for extra in named])
    brought |= {
        name for line in re.findall(r"`pip install ([\w -]+)`", page) for name in line.split()
    }
    assert needed(page) <= brought
