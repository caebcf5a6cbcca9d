"""The documents against the code: links lead somewhere, names exist, numbers are the real ones."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from limpet.model import limits, ops
from limpet.store.sqlite.file import schema

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(page.relative_to(ROOT)) for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
)
DECISIONS = sorted(page.name for page in (ROOT / "docs/decisions").glob("*.md"))
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
_UNITS = {"KiB": 2**10, "MiB": 2**20}
# The words whose meaning is settled, whether the code has the thing already or not.
LAW = (
    "session key event draft seq delta scope fold state head snapshot checkpoint phase status wake "
    "turn lease harness effect revisit op version fence claim commit store"
)


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of every table row between a heading and the next of its kind."""
    level = heading.split()[0]
    _, _, rest = text_of(page).partition(f"\n{heading}\n")
    assert rest, f"{page} has no {heading!r}"
    part = re.split(rf"^{level} ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return cells


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as they are made by the usual renderers."""
    headings = re.findall(r"^#+ (.+)$", _FENCED.sub("", page.read_text()), re.MULTILINE)
    kept = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in kept}


# --- links --------------------------------------------------------------------------------------

_REFERENCE = ROOT.resolve() / "docs" / "reference"


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    """A linked file exists, and so does the heading a link points to."""
    for name, target in _LINK.findall(_FENCED.sub("", text_of(page))):
        path, _, anchor = target.partition("#")
        linked = (ROOT / page).parent / path if path else ROOT / page
        if _REFERENCE in linked.resolve().parents:
            continue  # made when the site is built: test_site follows these
        assert linked.exists(), f"[{name}]({target})"
        assert not anchor or anchor in anchors(linked), f"[{name}]({target})"


def test_every_promise_names_a_test_that_exists() -> None:
    """Each row of docs/promises.md links to at least one test, by its name."""
    page = "docs/promises.md"
    promises = [row for heading in headings(page) for row in rows(page, heading)[1:]]
    assert len(promises) >= 36
    for _, proof in promises:
        tests = [(name.strip("`"), target) for name, target in _LINK.findall(proof)]
        assert tests, proof
        for name, target in tests:
            assert re.search(rf"def {name}\(", text_of(f"docs/{target}")), f"{name}: {target}"


def test_the_readme_has_six_promises_and_links_to_each() -> None:
    """In the order of the page that holds all of them."""
    linked = re.findall(r"^\d\. .*\(docs/promises\.md#([\w-]+)\)", text_of("README.md"), re.M)
    sections = [heading.removeprefix("## ") for heading in headings("docs/promises.md")]
    assert linked == [name.lower().replace(" ", "-") for name in sections[:6]]


def headings(page: str) -> list[str]:
    return re.findall(r"^## .+$", text_of(page), re.MULTILINE)


def test_every_target_of_make_that_is_named_exists() -> None:
    """`make x` on any page is a target of the Makefile."""
    targets = set(re.findall(r"^([a-z]+):", text_of("Makefile"), re.MULTILINE))
    for page in PAGES:
        assert set(re.findall(r"(?:^ +|`)make ([a-z]+)", text_of(page), re.M)) <= targets, page


# --- words --------------------------------------------------------------------------------------


def entries() -> list[list[str]]:
    lines = [line for line in text_of("docs/glossary.md").splitlines() if line.startswith("| **")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_glossary_has_each_word_of_the_law_once() -> None:
    """No word is missing and none is explained twice."""
    words = [entry[0].strip("*") for entry in entries()]
    assert len(words) == len(set(words))
    assert set(LAW.split()) <= set(words)


@pytest.mark.parametrize("name", sorted({e[2].strip("`") for e in entries() if len(e) == 3}))
def test_what_the_glossary_says_is_in_code_is_there(name: str) -> None:
    """Every name in the last column can be imported."""
    assert resolved(name) is not None


def resolved(dotted: str) -> Any:
    module, found = dotted, None
    while found is None:
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError:
            module = module.rpartition(".")[0]
    for part in dotted[len(module) + 1 :].split("."):
        found = getattr(found, part) if part else found
    return found


# --- the architecture ---------------------------------------------------------------------------

ARCHITECTURE = "docs/ARCHITECTURE.md"


def test_the_bounds_are_the_real_ones() -> None:
    """Every bound of limits.py is in the table, and every number in the tables is the code's."""
    named: dict[str, int] = {}
    for bound, value, name in rows(ARCHITECTURE, "## Bounds"):
        if bound != "bound":
            number, _, unit = value.partition(" ")
            named[name.strip("`")] = int(number.replace(",", "")) * _UNITS.get(unit, 1)
    ours = {
        n: v for n, v in vars(limits).items() if n.isupper() and n not in ("INT_MIN", "INT_MAX")
    }
    assert {n: v for n, v in named.items() if "." not in n} == ours
    for name, value in named.items():
        if "." in name:
            assert resolved(f"limpet.store.{name}") == value, name


def test_every_column_is_described() -> None:
    """The tables and columns of the schema are all in the chapter on the stored format."""
    page = text_of(ARCHITECTURE).partition("## The stored format")[2].partition("## Concurrency")[0]
    steps = sorted((ROOT / "src/limpet/store/sqlite/sql").glob("0*.sql"))
    schema = "".join(step.read_text() for step in steps)
    added = re.findall(r"ADD COLUMN (\w+)", schema)
    assert [c for c in added if f"`{c}`" not in page] == []
    for table, body in re.findall(r"CREATE TABLE (\w+) \((.*?)^\)", schema, re.S | re.M):
        assert f"`{table}`" in page
        if table in ("sessions", "events", "scopes"):
            columns = re.findall(r"^    (\w+) +(?:TEXT|INTEGER|BLOB|ANY)", body, re.MULTILINE)
            missing = [c for c in columns if f"`{c}`" not in page]
            assert not missing, f"{table}: {missing}"


def test_ops_are_stored_in_the_form_shown() -> None:
    """Each example decodes to the op it stands for and is encoded to the same JSON again."""
    shown = rows(ARCHITECTURE, "### The body")[1:]
    decode = msgspec.json.Decoder(ops.Op).decode
    kinds = set()
    for name, wire, _ in shown:
        op = decode(wire.strip("`"))
        assert type(op).__name__ == name.strip("`")
        assert msgspec.json.encode(op) == wire.strip("`").replace(", ", ",").encode()
        kinds.add(type(op))
    assert kinds == set(ops.Op.__args__)


def test_the_file_is_marked_as_described() -> None:
    """The application id on the page is the one in the code."""
    assert f"`{schema.APPLICATION_ID:#x}`" in text_of(ARCHITECTURE)


# --- the decisions ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in DECISIONS if name != "README.md"])
def test_a_decision_has_its_four_parts_and_its_place_in_the_index(name: str) -> None:
    """Context, choice, cost, what would reverse it, in this order; and a row in the index."""
    headings = re.findall(r"^## (.+)$", text_of(f"docs/decisions/{name}"), re.MULTILINE)
    assert headings == ["Context", "Choice", "Cost", "What would reverse it"]
    assert f"({name})" in text_of("docs/decisions/README.md")
