"""The dashboards of a server: analytics that it folds, as series to plot."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from asyncio import to_thread
from typing import Any

import pytest

import limpet
from limpet.server.serve import serving


def get(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)


async def test_windows_are_series_to_plot() -> None:
    """Of one app, as the analytics of the same store have them."""
    async with (
        limpet.open("memory://") as lp,
        limpet.Analytics(lp, "memory://") as analytics,
        serving(lp, dev=True, analytics=analytics) as url,
    ):
        session = await lp.create("support", "ada")
        await session.append("user.message", {"text": "hi"}, actor="user:ada")
        await session.append("agent.message", {"text": "ho"}, actor="agent:main")
        await analytics.run(once=True)
        shown = await to_thread(get, f"{url}/limpet/v1/analytics?app=support")
        windows = await analytics.by("window", app="support", window="hour")
        turns = next(each for each in shown["dashboards"] if each["title"] == "turns")
        assert [point["value"] for point in turns["points"]] == list(windows.column("turns"))
        assert sum(point["value"] for point in turns["points"]) == 1
        latency = next(each for each in shown["dashboards"] if "latency" in each["title"])
        assert latency["unit"] == "s"


async def test_a_server_without_analytics_says_how_to_have_them() -> None:
    async with limpet.open("memory://") as lp, serving(lp, dev=True) as url:
        with pytest.raises(urllib.error.HTTPError) as refused:
            await to_thread(get, f"{url}/limpet/v1/analytics")
        assert refused.value.code == 404
        assert "--analytics" in refused.value.read().decode()
