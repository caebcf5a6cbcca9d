"""A Chromium that is installed, driven by Playwright, and a studio of a store for it to look at."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

ARGUMENTS: Final = (
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--no-first-run",
    "--no-pings",
)
# The environment of the browser has Playwright; that of the package has every extra.
PACKAGE: Final = Path(__file__).parents[2] / ".venv" / "bin" / "python"
RUN: Final = (str(PACKAGE) if PACKAGE.exists() else sys.executable, "-m", "limpet.cli")


def chromium() -> str | None:
    """The browser that is installed, if there is one."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


@contextmanager
def launched(playwright: Any) -> Iterator[Any]:
    """A browser without a window."""
    path = chromium()
    assert path is not None
    browser = playwright.chromium.launch(
        executable_path=path, args=list(ARGUMENTS), env={**os.environ, "HOME": "/tmp"}
    )
    try:
        yield browser
    finally:
        browser.close()


@contextmanager
def studio_of(store: Path | str, *options: str) -> Iterator[tuple[str, int]]:
    """`limpet studio` in a process of its own: the link that it prints, and its process id."""
    command = [*RUN, "studio", str(store), "--no-browser", "--json", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield _printed_url(process), process.pid
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def served_by(store: Path, *options: str) -> Iterator[str]:
    """`limpet serve` in a process of its own, with keys: its URL."""
    command = [*RUN, "serve", str(store), "--port", "0", "--json", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield _printed_url(process)
    finally:
        process.terminate()
        process.wait(20)


def _printed_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    text = ""
    while not text.rstrip().endswith("}"):
        line = process.stdout.readline()
        assert line, "the command ended"
        text += line
    return str(json.loads(text)["url"])
