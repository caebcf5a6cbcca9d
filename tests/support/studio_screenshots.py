"""The pictures of docs/studio.md, taken of the sample store: `make screenshots`.

    python -m tests.support.studio_screenshots DIRECTORY [--all]

With --all also every other page, light and dark, wide and narrow, to be looked at.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from playwright.sync_api import Page, sync_playwright

from tests.support import studio_sample
from tests.support.browser import launched, studio_of

KETTLE: Final = "#/s/support/ada/kettle"


def _travel(page: Page) -> None:
    page.get_by_label("Moment in the history").fill("29")
    page.locator(".changes").wait_for()
    page.locator("div.state").get_by_role("button", name="mood").click()
    page.locator(".blame li").first.wait_for()


def _everything(page: Page) -> None:
    page.get_by_role("button", name="Everything").click()
    page.locator(".entry summary").last.click()


def _menu(page: Page) -> None:
    page.locator(".menu summary").click()


def _fork(page: Page) -> None:
    page.get_by_role("button", name="Edit and fork").click()


def _bisect(page: Page) -> None:
    page.get_by_role("button", name="Bisect").click()


def _answer(page: Page) -> None:
    page.get_by_role("button", name="It happened").click()


def _keys(page: Page) -> None:
    page.keyboard.press("?")


def _nobody(page: Page) -> None:
    page.get_by_label("text").fill("nobody is called so")


def _sign_in(page: Page) -> None:
    page.get_by_role("button", name="Sign out").click()


def _nothing(_: Page) -> None:
    pass


PICTURES: Final[dict[str, tuple[str, Callable[[Page], None]]]] = {
    "session": (KETTLE, _nothing),
    "travel": (f"{KETTLE}?tab=state", _travel),
    "inbox": ("#/inbox", _nothing),
}
OTHERS: Final[dict[str, tuple[str, Callable[[Page], None]]]] = {
    "fleet": ("#/fleet", _nothing),
    "graph": ("#/s/orders/gwen/books?tab=graph", _nothing),
    "family": (f"{KETTLE}?tab=family", _nothing),
    "about": (f"{KETTLE}?tab=about", _nothing),
    "compare": ("#/compare/support/ada/kettle-kinder/kettle-stricter", _nothing),
    "error": ("#/s/support/finn/outage", _nothing),
    "unknown": ("#/s/support/dan/payment", _nothing),
    "analytics": ("#/analytics", _nothing),
    "everything": (KETTLE, _everything),
    "menu": (KETTLE, _menu),
    "fork": (f"{KETTLE}?tab=state", _fork),
    "bisect": (f"{KETTLE}?tab=state", _bisect),
    "answer": ("#/inbox", _answer),
    "keys": ("#/fleet", _keys),
    "none": ("#/fleet", _nobody),
    "missing": ("#/s/support/nobody/nothing", _nothing),
    "no-graph": (f"{KETTLE}?tab=graph", _nothing),
    "hostile": (f"#/s/lab/mallory/{quote(studio_sample.HOSTILE[0][:60], safe='')}", _nothing),
    "sign-in": ("#/fleet", _sign_in),
}


def take(folder: Path, *, everything: bool) -> None:
    with tempfile.TemporaryDirectory() as place:
        store = Path(place) / "shop.db"
        asyncio.run(studio_sample.main(str(store)))
        with (
            sync_playwright() as playwright,
            launched(playwright) as browser,
            studio_of(store) as (link, _),
        ):
            first = browser.new_context()
            page = first.new_page()
            page.goto(link)
            page.get_by_role("heading", name="Fleet").wait_for()
            state, url = first.storage_state(), link.split("#")[0]
            for name, (hash, prepare) in PICTURES.items():
                _shoot(browser, state, url + hash, prepare, folder / f"studio-{name}.png")
            if not everything:
                return
            for scheme in ("light", "dark"):
                for width, height in ((1280, 800), (390, 800)):
                    for name, (hash, prepare) in {**PICTURES, **OTHERS}.items():
                        how = {
                            "color_scheme": scheme,
                            "viewport": {"width": width, "height": height},
                        }
                        file = folder / f"{name}-{scheme}-{width}.png"
                        _shoot(browser, state, url + hash, prepare, file, **how)


def _shoot(
    browser: Any, state: Any, url: str, prepare: Callable[[Page], None], file: Path, **how: Any
) -> None:
    given = {"viewport": {"width": 1280, "height": 760}, **how}
    context = browser.new_context(storage_state=state, reduced_motion="reduce", **given)
    page = context.new_page()
    page.goto(url)
    page.locator("main:not([aria-busy]) h1").first.wait_for()
    page.wait_for_load_state("load")
    prepare(page)
    page.wait_for_timeout(700)  # for what is read after the first paint
    page.screenshot(path=file)
    context.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]), everything="--all" in sys.argv)
