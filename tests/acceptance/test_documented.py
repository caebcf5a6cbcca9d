"""Single statements of the pages, held to what the code does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import limpet
from limpet.store.postgres.server.schema import SCHEMA as OF_POSTGRES
from limpet.store.sqlite.file.schema import SCHEMA as OF_SQLITE

DOCS = Path(__file__).parents[2] / "docs"
_MAKES = re.compile(r"\bCreating\b|creates=|_both\(|_serve\(")


async def test_resuming_leads_to_the_phase_that_the_table_names(lp: limpet.Limpet) -> None:
    """`lp.resume` makes a session active, unless it is asked not to."""
    page = (DOCS / "life.md").read_text()
    assert "`s.activate()`; `s.resume()` and `lp.resume(key)` do both |" in page
    for id, activate in (("one", True), ("two", False)):
        s = await lp.create("support", "ada", id, actor="user:ada")
        await s.suspend("a pause")
        resumed, _ = await lp.resume(s.key, activate=activate)
        assert resumed.phase == ("active" if activate else "resumed")


def test_the_page_names_every_command_that_makes_a_store() -> None:
    """Those that open a store with the right to create it."""
    text = (DOCS / "cli.md").read_text()
    sentence = text.partition("A store that does not exist is made only by")[2].partition(".\n")[0]
    named = set(re.findall(r"`([\w-]+)(?: create)?`", sentence))
    makes = set()
    for file in (Path(limpet.__file__).parent / "cli").glob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                code = ast.unparse(node)
                if code.startswith("@command(") and _MAKES.search(code):
                    makes.add(node.name.rstrip("_").replace("_", "-"))
    assert named == makes | {"restore"}  # which puts a file there


def test_the_doctor_on_the_page_reads_the_schema_of_this_release() -> None:
    schemas = re.findall(r"^ok +schema +(\d+), the one of", (DOCS / "cli.md").read_text(), re.M)
    assert schemas == [str(OF_SQLITE), str(OF_POSTGRES)]


async def test_the_later_writer_is_told_by_the_times_that_are_passed(lp: limpet.Limpet) -> None:
    """As the page of histories writes it: `a` is this session, `b` the other."""
    page = (DOCS / "history.md").read_text()
    assert "limpet.LastWriter(a=s.head.updated_us, b=other.head.updated_us)" in page
    s = await lp.create("support", "ada", "one", state={"n": 0}, actor="user:ada")
    other = await s.fork(id="two")
    await s.append("n.set", set={"n": 1})
    await other.append("n.set", set={"n": 2}, actor="user:ada")
    later = limpet.LastWriter(a=s.head.updated_us, b=s.head.updated_us + 1)
    await s.merge(other, policy=later)
    assert s.values == {"n": 2}


def test_the_glossary_has_the_rule_of_types() -> None:
    """Where the tutorial and the error lead to."""
    assert (
        "two words or more with dots between them, without spaces or `*`"
        in (DOCS / "glossary.md").read_text()
    )
