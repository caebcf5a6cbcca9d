"""Inheriting: what a child begins with that is its parent's.

It never has more than its parent: tools are a subset of those that the parent has bound, or was
given itself; permissions are the parent's, and so is every limit of a budget. What a bound tool, or
the worker that runs the parent, does not simply allow there is not simply allowed at the child
either, whichever worker runs it. Everything else of the parent stays there: fields, resources and
vaults are given only if the harness says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from limpet.errors import InvalidInput, ToolAuthorizationFailed
from limpet.model import Fact, described
from limpet.model.facts.running.setup import attached, setup_in, usable_tools
from limpet.model.facts.tools import tools_bound, tools_in
from limpet.session.runs.setup import ALL_TOOLS, Permission, limits_of, strictest
from limpet.session.session import Session


def inherited(
    parent: Session[Any], names: Iterable[str], of_worker: Mapping[str, Permission]
) -> list[Fact]:
    """The facts by which a child gets its tools and permissions. Raises ToolAuthorizationFailed
    for a tool that its parent does not have.

    `of_worker` are the permissions of the worker that runs the parent.
    """
    facts = parent.head.facts
    bound, usable = tools_in(facts), usable_tools(facts)
    for name in names:
        if usable is not None and name not in usable:
            raise ToolAuthorizationFailed(parent.key, name, "it delegates only tools that it has")
    drafts = []
    if "tools" in facts:  # an empty binding too: without one, a child could use everything
        drafts.append(tools_bound({name: bound[name] for name in names}))
    setup = setup_in(facts)
    limits = _limits(strictest(limits_of(setup), of_worker))
    if setup.permissions is not None or limits:
        drafts.append(attached(permissions=setup.permissions, limits=limits))
    return drafts


def _limits(limits: Mapping[str, Permission]) -> dict[str, Permission]:
    """What is not simply allowed."""
    every = ALL_TOOLS in limits  # then what is allowed has to be said
    return {name: said for name, said in limits.items() if every or said != "always_allow"}


def names_of(tools: Any) -> list[str]:
    """The tools that a harness gives a child, in the form that is recorded. Raises InvalidInput."""
    wrong = isinstance(tools, str) or not isinstance(tools, Iterable)
    names = [] if wrong else list(tools)
    if wrong or not all([isinstance(name, str) for name in names]):
        raise InvalidInput(f"tools is a list of names, not {described(tools)}.")
    return names
