"""The documentation site: prepare its pages from docs/ and the docstrings, then build it.

    .venv-docs/bin/python -m tools.site        what `make docs` runs

Pages are written to build/docs, the site to build/site, and nothing is fetched. Links between the
files of the repository become links between pages; a test or a source file that a page links to
becomes a plain page that shows it. The reference is written by `tools.reference`, and each row of
the tables of docs/errors.md becomes a section with the error's code as its anchor.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

from tools.diagrams import svg

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = ROOT / "build" / "docs"
SITE: Final = ROOT / "build" / "site"
# Pages whose place on the site is not their place in docs/.
_PLACES: Final = {
    "README.md": "index.md",
    "docs/site/index.md": "index.md",
    "docs/site/limpet.css": "assets/limpet.css",
    "docs/site/logo.svg": "assets/logo.svg",
    "docs/site/source.css": "assets/source.css",
    "docs/site/mark.svg": "assets/mark.svg",
    "docs/README.md": "by-task.md",
    "docs/decisions/README.md": "decisions/index.md",
    "docs/ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
}
_LANGUAGES: Final = {
    ".py": "python",
    ".html": "html",
    ".proto": "protobuf",
    ".sql": "sql",
    ".yaml": "yaml",
    ".md": "markdown",
}
_FENCE: Final = re.compile(r"^( *)(`{3,})(.*)$")
_LINK: Final = re.compile(r"(\]\()([^)\s]+)(\))")
_TITLE: Final = re.compile(r"\btitle=([^\s\"]+)")
_ERROR_ROW: Final = re.compile(r"^\| <a id=\"([\w.]+)\"></a>`[\w.]+` \| (.+) \|$")
# The theme can draw diagrams and run code with programs that it fetches from other hosts. We use
# neither, and a page of ours asks nobody else for anything: the addresses are taken out.
_FOREIGN: Final = re.compile(r"https://(?:unpkg\.com|cdn\.jsdelivr\.net|api\.github\.com)/[^\"'`]*")


def main() -> int:
    """Prepare the pages and build the site; an invalid link or anchor is an error."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.rmtree(SITE, ignore_errors=True)
    prepare()
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        print(_plain(done.stdout + done.stderr))
        return done.returncode
    for script in SITE.rglob("*.js"):
        script.write_text(_FOREIGN.sub("", script.read_text()))
    print(f"{len([*SITE.rglob('*.html')])} pages in {SITE.relative_to(ROOT)}")
    print("Look at them: python3 -m http.server --directory build/site 8000")
    return 0


def _plain(text: str) -> str:
    """What Zensical says, without colours, and of each invalid link only where it is."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    return "\n".join(line for line in lines if "│" not in line and "╯" not in line)


def prepare() -> None:
    """Write every page to build/docs: ours, those that show a file, and the reference."""
    from tools.reference import write_reference  # it needs griffe, which is only in .venv-docs

    sources: set[str] = set()
    for path in dict.fromkeys([*_PLACES, *documents()]):
        if path == "README.md":
            continue  # the landing page tells the same
        place = PAGES / place_of(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(".md"):
            place.write_text(page(path, sources))
        else:
            shutil.copyfile(ROOT / path, place)
    for path in sorted(sources):
        place = PAGES / place_of(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(shown(path))
    write_reference(ROOT, PAGES / "reference")


def documents() -> Iterator[str]:
    """Every file of docs/ but those of docs/site, relative to the root."""
    for path in sorted((ROOT / "docs").rglob("*")):
        relative = path.relative_to(ROOT).as_posix()
        if path.is_file() and not relative.startswith("docs/site/"):
            yield relative


def place_of(path: str) -> str:
    """Where a file of the repository stands on the site; a file outside docs/ becomes a page."""
    if path in _PLACES:
        return _PLACES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}.html"


def page(path: str, sources: set[str]) -> str:
    """A page as the site needs it; files that it shows are added to `sources`."""
    text = (ROOT / path).read_text()
    if path == "docs/errors.md":
        text = "\n".join(_error_sections(text.splitlines())) + "\n"
    return "\n".join(_outside_code(text, lambda line: _relinked(line, path, sources))) + "\n"


def _outside_code(text: str, change: Callable[[str], str]) -> Iterator[str]:
    """The lines of a page, changed where they are prose; a fence's title gets its quotes, and a
    flowchart is drawn below its text."""
    closing, flowchart = "", None
    for line in text.splitlines():
        fence = _FENCE.match(line)
        if closing:
            yield line
            if fence and fence[2] == closing and not fence[3].strip():
                closing = ""
                if flowchart is not None:
                    yield f"\n<figure>{svg(chr(10).join(flowchart))}</figure>\n"
            elif flowchart is not None:
                flowchart.append(line)
        elif fence:
            closing, flowchart = fence[2], [] if fence[3] == "mermaid" else None
            yield _TITLE.sub(r'title="\1"', line)
        else:
            yield change(line)


def _relinked(line: str, path: str, sources: set[str]) -> str:
    def moved(match: re.Match[str]) -> str:
        target, _, anchor = match[2].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        named = os.path.normpath(PurePosixPath(path).parent / target)
        if (ROOT / named).is_dir():
            named += "/README.md"
        if not named.startswith("docs/") and named not in _PLACES:
            sources.add(named)
            anchor = anchor or _line_of(named, line[: match.start()])
        start = PurePosixPath(place_of(path)).parent
        there = os.path.relpath(place_of(named), start)
        return f"{match[1]}{there}{'#' + anchor if anchor else ''}{match[3]}"

    return _LINK.sub(moved, line)


def _line_of(path: str, before: str) -> str:
    """The anchor of the function that the text of a link names, if the file defines it."""
    name = re.search(r"\[`(\w+)`$", before)
    if name is None or not path.endswith(".py"):
        return ""
    for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
        if re.match(rf"\s*(?:async )?(?:def|class) {name[1]}\b", line):
            return f"line-{number}"
    return ""


def shown(path: str) -> str:
    """A plain page that shows a file of the repository; each line has an anchor."""
    language = _LANGUAGES.get(PurePosixPath(path).suffix, "text")
    formatter = HtmlFormatter(linenos="inline", lineanchors="line", anchorlinenos=True)
    drawn = highlight((ROOT / path).read_text(), get_lexer_by_name(language), formatter)
    up = "../" * place_of(path).count("/")
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="robots" content="noindex">
<title>{path}</title>
<link rel="icon" href="{up}assets/mark.svg">
<link rel="stylesheet" href="{up}assets/source.css">
<header><a href="{up}">Limpet</a> <code>{path}</code></header>
{drawn}</html>
"""


def _error_sections(lines: list[str]) -> Iterator[str]:
    """The page of errors with a section in place of each row, its code the anchor."""
    for line in lines:
        if line.startswith(("| code |", "|---|---|---|---|---|---|---|")):
            continue
        row = _ERROR_ROW.match(line)
        if row is None:
            yield line
            continue
        name, when, advice, retryable, status, exit_code = row[2].split(" | ")
        retry = "A retry may succeed" if retryable == "yes" else "A retry does not help"
        yield f"\n### `{row[1]}` {{ #{row[1]} }}\n\n{when}\n\n**What to do.** {advice}\n"
        yield f"{name} · {retry} · HTTP {status} · exit code {exit_code}\n{{ .error-facts }}\n"


if __name__ == "__main__":
    sys.exit(main())
