"""Analytics: measure a fleet of sessions, find what is wrong, learn what satisfies.

    an = limpet.Analytics(lp, "sqlite:///analytics.db")
    await an.run(once=True)
    print(await an.by("task_type", app="support"))

The feed of a store is folded (`folding`) into the metrics of each session (`metrics`) and into
roll-ups (`rollup`) with mergeable histograms (`histogram`), all in one SQLite file (`file`). Above
them: `satisfaction`, `anomalies`, `compare` and `advice`, with `statistics` below; and what shows
them: `report`, `exposition` and `export`. Nothing below this room knows of it.
"""
