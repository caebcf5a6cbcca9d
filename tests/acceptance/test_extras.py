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
    "a2a": "a2a-sdk",
    "ag_ui": "ag-ui-protocol",
    "agent_framework": "agent-framework-core",
    "agent_framework_ag_ui": "agent-framework-ag-ui",
    "agents": "openai-agents",
    "claude_agent_sdk": "claude-agent-sdk",
    "google": "google-adk",
    "langchain_core": "langgraph-checkpoint",  # which requires it
    "langgraph": "langgraph",
    "limpet.acp": "agent-client-protocol",
    "limpet.adapters.a2a": "a2a-sdk",
    "limpet.adapters.adk": "google-adk",
    "limpet.adapters.agent_framework": "agent-framework-core",
    "limpet.adapters.claude_agent_sdk": "claude-agent-sdk",
    "limpet.adapters.langgraph": "langgraph-checkpoint",
    "limpet.adapters.openai_agents": "openai-agents",
    "limpet.adapters.pydantic_ai": "pydantic-ai-slim",
    "limpet.adapters.strands": "strands-agents",
    "limpet.graph": "pydantic",
    "limpet.graph.otel": "opentelemetry-api",
    "limpet.State": "pydantic",
    "limpet.server": "starlette",
    "pydantic": "pydantic",
    "pydantic_ai": "pydantic-ai-slim",
    "starlette": "starlette",
    "strands": "strands-agents",
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


def test_every_page_of_an_adapter_is_held_to_its_extra() -> None:
    """An adapter that is missing in the table above would pass unseen."""
    pages = re.findall(
        r"`(limpet\.adapters\.\w+)\.Limpet", (ROOT / "docs/frameworks.md").read_text()
    )
    known = extras()
    assert len(set(pages)) >= 8
    for module in pages:
        name = module.rpartition(".")[2].replace("_", "-")
        assert HELD_BY[module] in known[name]


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
