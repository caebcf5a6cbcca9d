"""The regression against scikit-learn, the tails against scipy, the file against its readers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import duckdb
import numpy as np
import polars
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

import limpet
from limpet.analytics.satisfaction import auc, fit
from limpet.analytics.statistics import f_tail, t_tail


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("ridge", [0.1, 1.0, 10.0])
def test_the_weights_are_those_of_scikit_learn(seed: int, ridge: float) -> None:
    """On the same features with the same ridge; a rating between 0 and 1 counts as that part of a
    good session and the rest of a bad one."""
    chance = np.random.default_rng(seed)
    x = chance.normal(size=(300, 8)) * chance.uniform(0.1, 3, 8)
    z = x @ chance.normal(size=8) + chance.normal()
    y = (chance.random(300) < 1 / (1 + np.exp(-z))).astype(float)
    soft = np.where(chance.random(300) < 0.3, chance.random(300), y)
    for ratings in (y, soft):
        w, b = fit(x, ratings, ridge=ridge)
        twice = np.vstack([x, x])
        labels = np.concatenate([np.ones(300), np.zeros(300)])
        weights = np.concatenate([ratings, 1 - ratings])
        peer = LogisticRegression(C=1 / ridge, tol=1e-10, max_iter=10_000)
        peer.fit(twice, labels, sample_weight=weights)
        assert w == pytest.approx(peer.coef_[0], abs=2e-3)
        assert b == pytest.approx(peer.intercept_[0], abs=2e-3)
        mine = 1 / (1 + np.exp(-(x @ w + b)))
        theirs = peer.predict_proba(x)[:, 1]
        assert mine == pytest.approx(theirs, abs=1e-3)
    assert auc(mine, y) == pytest.approx(roc_auc_score(y, mine))
    assert log_loss(y, mine) > 0


def test_the_tails_are_those_of_scipy() -> None:
    """Of Student's t and of F."""
    for degrees in (3, 10, 29, 199):
        for t in (0.1, 1.0, 3.0, 8.0):
            assert t_tail(t, degrees) == pytest.approx(2 * stats.t.sf(t, degrees), rel=1e-9)
            assert f_tail(t, 8, degrees) == pytest.approx(stats.f.sf(t, 8, degrees), rel=1e-9)


@pytest.mark.parametrize("kept", ["memory", "file"])
async def test_other_programs_read_the_parquet_file(tmp_path: Path, kept: str) -> None:
    """duckdb and polars see the rows, their types and the lists of tools; a file is written while
    other tasks go on."""
    before, folder, ticks = time.time(), tmp_path / "out", []
    folder.mkdir()
    url = "memory://" if kept == "memory" else f"sqlite:///{tmp_path}/analytics.db"
    async with limpet.open("memory://") as lp, limpet.Analytics(lp, url) as an:
        for number in range(5):
            s = await lp.create("support", "ada", actor="user:ada")
            await s.append("user.message", {"text": "hi"})
            use = {"request_id": "r", "name": "search", "input": {}}
            await s.append("agent.tool_use", use, actor="agent:a")
            await s.append("agent.tool_result", {"request_id": "r", "output": 1}, actor="agent:a")
            said = {"text": "yes", "usage": {"input": number, "output": 1}, "cost": 0.5}
            await s.append("agent.message", said, actor="agent:a")
        await an.run(once=True)
        path = folder / "sessions.parquet"
        asyncio.get_running_loop().call_soon(ticks.append, 1)
        assert await an.export(path, app="sales") == 0
        assert polars.read_parquet(path).is_empty()
        assert len(ticks) == (kept == "file")
        assert await an.export(path, app="support") == 5
    columns = "count(*), sum(tokens_input), sum(cost_usd), epoch(min(created_at))"
    query = f"SELECT {columns} FROM '{path}'"
    count, tokens, cost, created = duckdb.sql(query).fetchall()[0]
    assert (count, tokens, cost) == (5, 10, 2.5)
    assert created == pytest.approx(before, abs=3_600)
    frame = polars.read_parquet(path)
    assert frame["turns"].to_list() == [1] * 5
    assert frame["tools"][0].to_list()[0]["name"] == "search"
    assert frame["satisfaction"].null_count() == 5
    assert [each.name for each in folder.iterdir()] == ["sessions.parquet"]
