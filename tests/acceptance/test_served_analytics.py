"""The dashboards of a server: analytics that it folds, as series to plot."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from asyncio import gather, sleep, to_thread
from typing import Any

import pytest

import limpet
from limpet.cli.serve import folding
from limpet.server.serve import serving
from limpet.session.access_keys import AccessKeys
from limpet.session.limpet import journal_of
from tests.support.http_door import HttpDoor


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
        assert [point["value"] for point in turns["points"]][-1:] == list(windows.column("turns"))
        assert [point["value"] for point in turns["points"]] == [*[0] * 47, 1]
        latency = next(each for each in shown["dashboards"] if "latency" in each["title"])
        assert latency["unit"] == "s"
        users = next(each for each in shown["tables"] if each["title"] == "Users")
        assert users["rows"][0][:2] == ["ada", "1"]
        assert (shown["sessions"], shown["complete"], shown["notes"]) == (1, True, [])


@pytest.mark.parametrize(
    ("role", "user", "status"),
    [
        ("owner", "ada", 404),
        ("viewer", "ada", 404),
        ("agent", "ada", 404),
        ("auditor", None, 404),
        ("agent", None, 200),
        ("admin", None, 200),
    ],
)
async def test_dashboards_are_for_those_who_read_what_every_user_did(
    role: Any, user: str | None, status: int
) -> None:
    """They name users and sessions of the whole app, and no view is applied to them."""
    async with (
        limpet.open("memory://") as lp,
        limpet.Analytics(lp, "memory://") as analytics,
        serving(lp, analytics=analytics) as url,
    ):
        session = await lp.create("support", "bob", "of-bob")
        await session.append("user.message", {"text": "hi"}, actor="user:bob")
        await analytics.run(once=True)
        _, text = await AccessKeys(journal_of(lp)).create(app="support", user=user, role=role)
        reply = await HttpDoor(url, authorization=f"Bearer {text}").get("/limpet/v1/analytics")
        assert (reply.status, "bob" in str(reply.body)) == (status, status == 200)
        if status != 200:
            (denied,) = (await lp.audit(denied=True)).items
            assert (denied.action, denied.code, denied.resource) == (
                "read",
                "access_denied",
                "support",
            )


async def test_a_server_says_that_it_measures_no_longer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it serves goes on."""

    async def failing(_: limpet.Analytics) -> int:
        raise limpet.errors.StoreCorrupt("analytics.db", "it is malformed")

    monkeypatch.setattr(limpet.Analytics, "run", failing)
    async with limpet.open("memory://") as lp, folding(lp, "memory://") as analytics:
        await sleep(0)
        await sleep(0)
        assert len(await analytics.by("user")) == 0
    assert "analytics stopped: error=StoreCorrupt" in caplog.text


async def test_a_studio_folds_when_somebody_looks() -> None:
    """Without anybody who runs it; events that came since are there, and nothing is written."""
    async with (
        limpet.open("memory://") as lp,
        limpet.Analytics(lp, "memory://", retrain=None, intervene_below=None) as analytics,
        serving(lp, dev=True, analytics=analytics, folds=True) as url,
    ):
        for number in range(1, 4):
            session = await lp.create("support", "ada")
            await session.append("user.message", {"text": "hi"}, actor="user:ada")
            before = await lp.position()
            asked = [to_thread(get, f"{url}/limpet/v1/analytics") for _ in range(3)]
            assert {each["sessions"] for each in await gather(*asked)} == {number}
            assert await lp.position() == before


async def test_a_studio_predicts_with_a_model_of_its_own() -> None:
    """Where the store has none, and nothing is written to it; then with that of the store."""
    async with (
        limpet.open("memory://") as lp,
        limpet.Analytics(lp, "memory://", store_models=False, minimum=10) as analytics,
    ):
        for number in range(10):
            session = await lp.create("support", "ada", actor="user:ada")
            await session.append("user.feedback", {"completed": number % 2 == 0})
        before = await lp.position()
        for version in (0, 1):
            while not await analytics.catch_up(60):
                pass
            assert {fold.model for fold in analytics.file.folds()} == {version}
            assert (await analytics.by("user")).rows[0]["mean_satisfaction"] is not None
            assert await lp.position() == before
            async with limpet.Analytics(lp, "memory://", intervene_below=None) as other:
                await other.run(once=True)
                await other.train(minimum=10)
                before = await lp.position()


async def test_a_long_log_is_folded_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request ends after its time and says that there is more; the next one goes on."""
    monkeypatch.setattr("limpet.analytics.folding.PAGE", 10)
    async with (
        limpet.open("memory://") as lp,
        limpet.Analytics(lp, "memory://", retrain=None, intervene_below=None) as analytics,
    ):
        for _ in range(4):
            session = await lp.create("support", "ada")
            for _ in range(9):
                await session.append("user.message", {"text": "hi"}, actor="user:ada")
        done = [await analytics.catch_up(0) for _ in range(5)]
        assert done[0] is False
        assert done[-1] is True
        assert (await analytics.report()).sessions == 4


async def test_a_server_without_analytics_says_how_to_have_them() -> None:
    async with limpet.open("memory://") as lp, serving(lp, dev=True) as url:
        with pytest.raises(urllib.error.HTTPError) as refused:
            await to_thread(get, f"{url}/limpet/v1/analytics")
        assert refused.value.code == 404
        assert "--analytics" in refused.value.read().decode()
