"""The pages of docs/ as they stand in the repository: links, anchors, titles, navigation."""

from __future__ import annotations

import ast
import os
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tools.site import documents, page, place_of

ROOT = Path(__file__).parents[2]
ABOVE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = sorted([*ABOVE, "docs/site/index.md", *[p for p in documents() if p.endswith(".md")]])
_FENCED = re.compile(r"^( *)(`{3,}).*?^ *\2[ \t]*$", re.DOTALL | re.MULTILINE)
_PROGRAM = re.compile(r"^```python.*?$(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(path: str) -> str:
    return _FENCED.sub("", (ROOT / path).read_text())


@cache
def anchors(path: str) -> frozenset[str]:
    """The anchors of a page: those that its headings get, and its own."""
    text = prose(path)
    headings = re.findall(r"^#+ (.+?)(?: \{.*\})?$", text, re.MULTILINE)
    slugs: list[str] = []
    for heading in headings:
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        slugs.append(slug if slug not in slugs else f"{slug}-{slugs.count(slug)}")
    return frozenset((*slugs, *re.findall(r'<a id="([^"]+)">', text)))


def broken(path: str) -> Iterator[str]:
    """The links of a page that lead nowhere."""
    for link in _LINK.findall(prose(path)):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        there = os.path.normpath(Path(path).parent / target) if target else path
        made = path == "docs/site/index.md" and there.startswith("docs/reference/")
        gone = not made and not (ROOT / there).exists()
        if gone or (anchor and there.endswith(".md") and anchor not in anchors(there)):
            yield link


def listed(nav: Any) -> Iterator[str]:
    """The pages of the navigation."""
    for item in nav if isinstance(nav, list) else nav.values():
        if isinstance(item, str):
            yield item
        else:
            yield from listed(item)


@pytest.mark.parametrize("path", PAGES)
def test_no_link_of_a_page_leads_nowhere(path: str) -> None:
    """Each names a file that is there, and an anchor that is in it."""
    assert list(broken(path)) == []


@pytest.mark.parametrize("path", [p for p in PAGES if p != "docs/site/index.md"])
def test_a_page_begins_with_its_one_title(path: str) -> None:
    """A heading of the first level is the first line, and there is no second."""
    assert (ROOT / path).read_text().startswith("# ")
    assert len(re.findall(r"^# ", prose(path), re.MULTILINE)) == 1


def test_every_program_of_the_pages_is_python() -> None:
    """Those, too, that are only shown: most are run by the tests of their page."""
    for path in PAGES:
        for program in _PROGRAM.findall((ROOT / path).read_text()):
            flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            compile(program, path, "exec", flags=flags, dont_inherit=True)


def test_every_page_is_in_the_navigation_once() -> None:
    """And the navigation names no page that is not there, but for the reference, which is made."""
    settings = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    named = [*listed(settings["nav"])]
    assert len(named) == len(set(named))
    written = {name for name in named if not name.startswith("reference/")}
    assert written == {place_of(path) for path in PAGES}


def test_the_index_by_task_leads_to_every_page_of_docs() -> None:
    """From the one page that the README names, each guide is one step away."""
    linked = {link.partition("#")[0] for link in _LINK.findall(prose("docs/README.md"))}
    pages = {path.removeprefix("docs/") for path in PAGES if path.startswith("docs/")}
    own = {"README.md", "site/index.md"}
    assert {page for page in pages - linked - own if not page.startswith("decisions/")} == set()


def test_the_site_takes_nothing_from_elsewhere() -> None:
    """Fonts are the reader's own, and no page draws with a program of another host."""
    settings = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    assert settings["theme"]["font"] is False
    assert "mermaid" not in str(settings["markdown_extensions"])


def test_a_row_of_errors_becomes_a_section() -> None:
    """On the site each code is a heading with itself as the anchor, and no table is left."""
    text = page("docs/errors.md", set())
    codes = re.findall(r'<a id="([\w.]+)">', (ROOT / "docs/errors.md").read_text())
    assert re.findall(r"^### `[\w.]+` \{ #([\w.]+) \}$", text, re.MULTILINE) == codes
    assert "\n|" not in text
