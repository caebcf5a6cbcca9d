"""The studio's figures, in a browser: first paint of a long session, scrolling, memory, how soon an
event is shown, and what an idle page costs the server.

    make bench-studio

Runs in .venv-browser, which `make frameworks` makes, with the Chromium that is installed.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

import limpet
from tests.support.browser import launched, studio_of
from tests.support.studio_sample import grow

EVENTS = 100_000
TRIES = 5
IDLE_SECONDS = 20
QUIET_SECONDS = 15  # until a stream waits quietly
PLACE = "#/s/lab/max/long"


async def fill(url: str, events: int) -> None:
    async with limpet.open(url) as lp:
        await grow(lp, events)


def cpu_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def first_paint(page: Page, url: str) -> float:
    """Milliseconds from the navigation until the newest message is on the screen."""
    page.goto("about:blank")
    page.goto(url + PLACE)
    return float(
        page.evaluate(
            """() => new Promise((done) => (function look() {
                const [mark] = performance.getEntriesByName("limpet-shown");
                mark ? done(mark.startTime) : setTimeout(look, 5);
            })())"""
        )
    )


def scroll(page: Page) -> tuple[float, float, int]:
    """Frames a second while scrolling up for five seconds; the longest frame; rows in the page."""
    fps, worst = page.evaluate(
        """() => new Promise((done) => {
            const box = document.querySelector(".scroll");
            const times = [];
            const begin = performance.now();
            (function step(now) {
                times.push(now);
                box.scrollTop -= 60;
                if (now - begin < 5000) requestAnimationFrame(step);
                else {
                    const gaps = times.slice(1).map((each, at) => each - times[at]);
                    done([1000 * gaps.length / (times.at(-1) - times[0]), Math.max(...gaps)]);
                }
            })(begin);
        })"""
    )
    return fps, worst, page.locator("[data-row]").count()


def memory(page: Page) -> float:
    """Megabytes of the page's script heap, and of its nodes, after a collection."""
    cdp = page.context.new_cdp_session(page)
    cdp.send("HeapProfiler.collectGarbage")
    cdp.send("Performance.enable")
    found = {each["name"]: each["value"] for each in cdp.send("Performance.getMetrics")["metrics"]}
    return float(found["JSHeapUsedSize"]) / 1e6


def process_memory(page: Page) -> float:
    """Megabytes of the largest process that draws a page, what it shares counted in parts."""
    browser = page.context.browser
    assert browser is not None
    found = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    return max(_own_kilobytes(each["id"]) for each in found if each["type"] == "renderer") / 1000


def _own_kilobytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Pss:")))


def shown_after(page: Page, lp: Any) -> float:
    """Milliseconds from the return of a commit in this process until the page shows the event."""
    session = lp.get("lab", "max", "long")
    text = f"mark {time.monotonic_ns()}"
    page.evaluate(
        """(text) => { window.seen = new Promise((done) => {
            const look = () => document.querySelector(".rows").textContent.includes(text)
                ? done(Date.now()) : requestAnimationFrame(look);
            look(); }); }""",
        text,
    )
    session.append("user.message", {"text": text}, actor="user:max")
    at = time.time() * 1000
    return float(page.evaluate("window.seen")) - at


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "long.db"
        asyncio.run(fill(f"sqlite:///{store}", EVENTS))
        with (
            sync_playwright() as playwright,
            launched(playwright) as browser,
            studio_of(store) as (link, pid),
        ):
            page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
            page.goto(link)
            page.get_by_role("heading", name="Fleet").wait_for()
            url = link.split("#")[0]
            paints = sorted(first_paint(page, url) for _ in range(TRIES))
            print(f"first paint of {EVENTS:,} events: {_said(paints)}")
            fps, worst, rows = scroll(page)
            print(f"scrolling: {fps:.0f} frames a second, the longest {worst:.0f} ms, {rows} rows")
            script, process = memory(page), process_memory(page)
            print(f"memory after it: {script:.1f} MB of script, {process:.0f} MB its whole process")
            first_paint(page, url)  # at the end of the log again
            with limpet.open_sync(f"sqlite:///{store}") as lp:
                shown = sorted(shown_after(page, lp) for _ in range(TRIES))
                time.sleep(QUIET_SECONDS)
                later = shown_after(page, lp)
            print(f"an event is shown after {_said(shown)}; on a quiet page {later:.0f} ms")
            time.sleep(QUIET_SECONDS)
            before = cpu_seconds(pid)
            time.sleep(IDLE_SECONDS)
            used = (cpu_seconds(pid) - before) / IDLE_SECONDS * 1000
            print(f"an idle page costs the server {used:.1f} ms of processor time a second")


def _said(times: list[float]) -> str:
    return f"{times[len(times) // 2]:.0f} ms (median of {len(times)}, worst {times[-1]:.0f})"


if __name__ == "__main__":
    sys.exit(main())
