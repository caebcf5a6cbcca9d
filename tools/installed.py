"""Checks that run inside an environment into which the wheel was installed; nothing but it helps.

    python installed.py EXTRA…

Each of the extras named is there: what it enables is used. Every other extra whose package is
missing is asked for by name.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import limpet
from limpet.errors import ExtraMissing, LimpetError

# Nobody listens there, which is an error of the store and not of an import.
NOWHERE = "127.0.0.1:9"


def module(name: str, *names: str) -> Callable[[], object]:
    """An import, and the names that it has to bring."""
    return lambda: [getattr(importlib.import_module(name), each) for each in names or ("__doc__",)]


def opened(url: str, **options: str) -> Callable[[], object]:
    """A store that is opened, which only works where somebody listens."""

    async def run() -> None:
        async with limpet.open(url, **options):
            pass

    def use() -> None:
        try:
            asyncio.run(run())
        except ExtraMissing:
            raise
        except LimpetError:
            pass

    return use


def protobuf() -> object:
    return limpet.envelope.encode(
        {"n": 1}, format="protobuf", schema_version="1.0.0", state_version=1, serialized_at_us=1
    )


def keys() -> object:
    module("limpet.security.signing_keys")()
    with tempfile.TemporaryDirectory() as folder:
        return opened(f"sqlite:///{folder}/sealed.db", keys="memory:")()


def hardware() -> object:
    with tempfile.TemporaryDirectory() as folder:
        nothing = Path(folder) / "module.so"
        return opened(f"sqlite:///{folder}/sealed.db", keys=f"pkcs11:token/key?module={nothing}")()


def parquet() -> object:
    return module("limpet", "Analytics")(), module("limpet.analytics.export")()


# What each extra enables, and a package that only it brings.
ENABLES: Mapping[str, tuple[str, Callable[[], object]]] = {
    "a2a": ("a2a", module("limpet.adapters.a2a", "LimpetTaskStore")),
    "acp": ("acp", module("limpet.acp")),
    "adk": ("google.adk", module("limpet.adapters.adk", "LimpetSessionService", "as_harness")),
    "agent-framework": (
        "agent_framework",
        module("limpet.adapters.agent_framework", "LimpetHistoryProvider"),
    ),
    "analytics": ("numpy", module("limpet", "Analytics")),
    "claude-agent-sdk": (
        "claude_agent_sdk",
        module("limpet.adapters.claude_agent_sdk", "LimpetSessionStore"),
    ),
    "client": ("picows", opened(f"http://{NOWHERE}")),
    "langgraph": ("langgraph", module("limpet.adapters.langgraph", "LimpetSaver", "LimpetStore")),
    "mcp": ("mcp", module("limpet.mcp")),
    "openai-agents": ("agents", module("limpet.adapters.openai_agents", "LimpetSession")),
    "otel": ("opentelemetry", module("limpet.otel", "instrument")),
    "parquet": ("pyarrow", parquet),
    "pkcs11": ("pkcs11", hardware),
    "postgres": ("asyncpg", opened(f"postgresql://{NOWHERE}/none")),
    "protobuf": ("google.protobuf", protobuf),
    "pydantic-ai": (
        "pydantic_ai",
        module("limpet.adapters.pydantic_ai", "LimpetConversationStore"),
    ),
    "security": ("joserfc", keys),
    "server": ("starlette", module("limpet.server.serve", "serving")),
    "state": ("pydantic", module("limpet.graph", "GraphBuilder", "END")),
    "strands": ("strands", module("limpet.adapters.strands", "LimpetSessionManager")),
}


# Without either, the first one is asked for.
FIRST = {"parquet": "analytics", "pkcs11": "security"}


def missing(package: str) -> bool:
    try:
        return find_spec(package) is None
    except ModuleNotFoundError:  # of its parent
        return True


def main(extras: list[str]) -> int:
    assert "site-packages" in limpet.__file__, limpet.__file__
    failed = []
    for name in limpet.__all__:
        try:
            getattr(limpet, name)
        except ExtraMissing as error:
            if not missing(ENABLES[error.extra][0]):
                failed.append(f"limpet.{name}: {error}")
    for extra, (package, use) in ENABLES.items():
        there = not missing(package)
        if extra in extras and not there:
            failed.append(f"{extra} did not bring {package}")
            continue
        if there and extra not in extras:
            continue  # another extra brings it too, with or without the rest
        try:
            use()
        except ExtraMissing as error:
            if there or error.extra not in (extra, FIRST.get(extra)):
                failed.append(f"{extra}: {error}")
        except Exception as error:
            failed.append(f"{extra}: {error!r}")
        else:
            if not there:
                failed.append(f"{extra} is missing, and nobody says so")
    print("\n".join(failed) or f"works: {' '.join(extras) or 'the core'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
