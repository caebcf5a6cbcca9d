"""LangGraph's own conformance suite."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from langgraph.checkpoint.conformance import checkpointer_test, validate

from limpet.adapters.langgraph import LimpetSaver


async def test_every_capability_conforms(url: str, app: str) -> None:
    """All capabilities pass, the optional ones included, and none is skipped."""

    @checkpointer_test(name=f"LimpetSaver {app}")
    async def register() -> AsyncGenerator[LimpetSaver, None]:
        async with LimpetSaver.from_url(url, app=app) as saver:
            yield saver

    report = await validate(register)
    failures = [text for result in report.results.values() for text in result.failures or ()]
    assert not failures
    assert report.conformance_level() == "FULL"
