"""What a caller reads in an editor: every public verb says what it does, returns and raises."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import limpet
from limpet import errors
from limpet.session.blobs import SessionBlobs
from limpet.session.commit import CommitBuilder
from limpet.session.history.history import SessionHistory
from limpet.session.keys import StoreKeys
from limpet.session.life.lifecycle import SessionLifecycle
from limpet.session.life.tools import SessionTools
from limpet.session.limpet import App
from limpet.session.maintenance import StoreMaintenance
from limpet.session.policies import StorePolicies
from limpet.session.runs.outcomes import SessionOutcome
from limpet.session.runs.runs import SessionRuns
from limpet.session.runs.setup import SessionSetup
from limpet.session.work import StoreWork
from tests.unit.test_cycles import ROOT, modules

FACETS = (
    SessionHistory,
    SessionLifecycle,
    SessionTools,
    SessionRuns,
    SessionBlobs,
    SessionOutcome,
    SessionSetup,
    StoreWork,
    StoreMaintenance,
    StorePolicies,
    StoreKeys,
)
VERBS = (limpet.Limpet, App, limpet.Session, limpet.Turn, limpet.Worker, CommitBuilder, *FACETS)
OPENINGS = (
    "What ",
    "Whether ",
    "How ",
    "Where ",
    "Who ",
    "Which ",
    "When ",
    "Why ",
    "By ",
    "That ",
)
QUESTIONS = re.compile(r"(?:What|Whether|Who|Whoever|Which|When|Where|How|Why|By itself)\b")


def _verbs() -> Iterator[tuple[str, Callable[..., Any]]]:
    for owner in VERBS:
        for name, member in inspect.getmembers(owner, inspect.isfunction):
            if not name.startswith("_"):
                yield f"{owner.__name__}.{name}", member
    for name in ("open", "open_sync", "restore"):
        yield name, getattr(limpet, name)


@pytest.mark.quick
def test_public_verbs_say_what_they_return_and_raise() -> None:
    """A verb that returns something says so, and each names its errors."""
    silent = []
    for name, verb in _verbs():
        text = inspect.getdoc(verb) or ""
        returns = inspect.signature(verb).return_annotation
        if returns not in ("None", None) and not re.search(r"[Rr]eturn|[Yy]ield", text):
            silent.append(f"{name} does not say what it returns")
        if not re.search(r"[Rr]aise", text):
            silent.append(f"{name} does not say what it raises")
    assert silent == []


@pytest.mark.quick
def test_errors_that_public_verbs_name_exist() -> None:
    """Whoever catches what a docstring names can import it."""
    unknown = []
    for name, verb in _verbs():
        for sentence in re.findall(r"[Rr]aises?\b[^.]*\.", " ".join((verb.__doc__ or "").split())):
            for word in re.findall(r"\b[A-Z][a-z]+(?:[A-Z][A-Za-z]*)+\b", sentence):
                if not hasattr(errors, word) and not hasattr(builtins, word):
                    unknown.append(f"{name}: {word}")
    assert unknown == []


@pytest.mark.quick
def test_public_docstrings_begin_with_what_the_name_does_or_is() -> None:
    """A docstring begins with a verb or a noun, not with a question word."""
    names = {name: getattr(limpet, name) for name in limpet.__all__} | dict(_verbs())
    texts = {name: each.__doc__ or "" for name, each in names.items() if callable(each)}
    odd = {name: text[:60] for name, text in texts.items() if text.startswith(OPENINGS)}
    assert odd == {}


@pytest.mark.quick
def test_internal_docstrings_and_comments_do_not_begin_with_a_question_word() -> None:
    """They name the thing: "The first bytes of …", not "How … begin"."""
    odd = []
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
                text = ast.get_docstring(node) or ""
                odd += [f"{name}: {text[:60]}"] if QUESTIONS.match(text) else []
    for file in ROOT.rglob("*.py"):
        before = ""
        for line in map(str.strip, file.read_text().splitlines()):
            begins = line.startswith("# ") and not before.startswith("#")
            if begins and QUESTIONS.match(line[2:]):
                odd.append(f"{file.relative_to(ROOT)}: {line[:60]}")
            before = line
    assert odd == []
