"""The documentation site, built as `make docs` does and read as a browser would read it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import limpet
from tests.support import venvs
from tests.unit.session.test_public_names import MORE, PINNED
from tests.unit.test_errors import CLASSES

SITE, PAGES = venvs.ROOT / "build" / "site", venvs.ROOT / "docs"
MODULES = {"envelope", "errors", "facts", "graph", "ops", "providers", "reducers"}
LOADS = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src"}
# Names of vocabularies in XML, and addresses in comments of the theme: nothing loads them.
INERT = re.compile(r"https?://(www\.w3\.org|fontawesome\.com|zensical\.org)\b")


class Reader(HTMLParser):
    """The anchors of a page, where its links lead, and what it loads."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.ids |= {named[each] for each in ("id", "name") if each in named}
        if tag == "a" and "href" in named:
            self.links.add(named["href"])
        if tag in LOADS and LOADS[tag] in named and named.get("rel") not in ("canonical", "next"):
            self.loads.add(named[LOADS[tag]])


def build() -> None:
    """Build the site, without a network where that can be arranged."""
    python = venvs.python_of("docs")
    alone = [] if not _may_unshare() else ["unshare", "--net"]
    dead = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    ran = subprocess.run(
        [*alone, str(python), "-m", "tools.site"],
        cwd=venvs.ROOT,
        env={**os.environ, **dead},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4_000:] + ran.stderr[-4_000:]


def _may_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "--net", "true"], check=False).returncode == 0


def broken(pages: dict[Path, Reader]) -> list[str]:
    """The links within the site that lead nowhere, and what is loaded and not there."""
    wrong = []
    for file, page in pages.items():
        for link in page.links | page.loads:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or file.name == "404.html":
                continue
            there = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = there / "index.html" if there.is_dir() else there
            known = pages[target].ids if target in pages else set()
            if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in known):
                wrong.append(f"{file.relative_to(SITE)}: {link}")
    return wrong


def from_elsewhere(pages: dict[Path, Reader]) -> list[str]:
    """What a page, a style or a script would load from another host."""
    foreign = [load for page in pages.values() for load in page.loads if "//" in load]
    for file in [*SITE.rglob("*.css"), *SITE.rglob("*.js")]:
        text = file.read_text()
        foreign += [
            f"{file.name}: {text[at.start() : at.start() + 60]}"
            for at in re.finditer(r"https?://[a-z]", text)
            if not INERT.match(text, at.start())
        ]
    return foreign


def missing(pages: dict[Path, Reader]) -> set[str]:
    """The public names without an entry in the reference, and the errors without a section."""
    entries = set().union(
        *[page.ids for file, page in pages.items() if file.is_relative_to(SITE / "reference")]
    )
    names = {f"limpet.{name}" for name in limpet.__all__ if name not in MODULES | CLASSES.keys()}
    for kind in (limpet.Session, limpet.Limpet):
        verbs = (PINNED[kind] + " " + MORE[kind]).split()
        table = (SITE / "reference").rglob("index.html")
        text = "".join([file.read_text() for file in table])
        names |= {
            f"limpet.{kind.__name__}.{verb}" for verb in verbs if f"<code>{verb}</code>" not in text
        }
    sections = pages[SITE / "errors" / "index.html"].ids
    codes = {kind.code for name, kind in CLASSES.items() if name != "LimpetError"}
    folders = {f"limpet.{name}" for name in MODULES - {"errors"}}
    made = {file.parent.name for file in (SITE / "reference").rglob("index.html")}
    return (names - entries) | (codes - sections) | (folders - made)


def test_the_site_is_built_without_a_network_and_is_whole() -> None:
    """No link is broken, nothing comes from another host, and every public name and every error has
    its place. One test: the site is built once."""
    try:
        build()
    except venvs.NotInstalled as error:
        pytest.skip(f"the site is not built here: {error}")
    pages = {file: Reader(file) for file in SITE.rglob("*.html")}
    assert len(pages) > 100
    assert broken(pages) == []
    assert from_elsewhere(pages) == []
    assert missing(pages) == set()
    found = {each["location"] for each in json.loads((SITE / "search.json").read_text())["items"]}
    assert {
        f"errors/#{kind.code}" for name, kind in CLASSES.items() if name != "LimpetError"
    } <= found
    without_await = pages[SITE / "reference" / "sync" / "index.html"].links
    assert "../session/#limpet.Session.append" in without_await
    charts = [file for file in PAGES.rglob("*.md") if "```mermaid" in file.read_text()]
    assert charts
    for file in charts:
        assert '<svg class="flowchart"' in (SITE / file.stem / "index.html").read_text()
