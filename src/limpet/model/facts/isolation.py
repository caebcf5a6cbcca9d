"""Isolation: from whom a session is kept apart, and which of its fields each agent has.

It is decided when the session is created, and stands in its first event: forks and children inherit
it, copies and exports carry it, and another session under the same key has its own. A session
without the member `isolation` is per user, for the user of its key alone. `field_policies` has the
roles that may read and write each field of typed state, as its class declared them.

This module says what was decided. `limpet.security.isolation` holds principals to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from limpet.errors import InvalidInput
from limpet.model.facts.view import Changes, Facts
from limpet.model.keys import Key, hashed, unfit
from limpet.model.limits import (
    ACTOR_CHARS_MAX,
    KEY_PART_CHARS_MAX,
    LABEL_VALUE_CHARS_MAX,
    NAME_CHARS_MAX,
)
from limpet.model.ops import scope_of
from limpet.model.values import EMPTY, FrozenDict, described

IsolationModel: TypeAlias = Literal["per_user", "per_task", "per_agent", "global"]
ISOLATION_MODELS: Final[tuple[IsolationModel, ...]] = get_args(IsolationModel)
TASK: Final = "$task"  # the label by which sessions of a task are found
# The labels by which the sessions that let in other users are found: each user that a session
# names has one of its own, and a session of everybody has one for all.
_LENT: Final = "$lent"
LENT_TO: Final = "yes"
# A head must stay small.
ISOLATED_USERS_MAX: Final = 64
ISOLATED_AGENTS_MAX: Final = 64
ISOLATED_FIELDS_MAX: Final = 256  # that one agent owns or reads; and that have a policy


class FieldAccess(msgspec.Struct, frozen=True):
    """The fields of a session that an agent may write and read: `FieldAccess(owns=("review",))`.

    It may read and write the fields it `owns`, and read those in `reads`; it cannot see any other
    field. Names are state names, including `app:` and `user:` names. `tools` are the names of the
    tools that it may use, managed ones too; None: all that the session has.
    """

    owns: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for member in ("owns", "reads"):
            names = _texts(f"the fields that an agent {member}", getattr(self, member))
            for name in names:
                if reason := unfit(name, NAME_CHARS_MAX):
                    raise InvalidInput(f"the field {name!r} that an agent {member} {reason}.")
                if scope_of(name) == "temp":
                    raise InvalidInput(f"{name!r} is never stored, so nobody owns or reads it.")
            _check_count(f"fields that an agent {member}", len(names), ISOLATED_FIELDS_MAX)
            msgspec.structs.force_setattr(self, member, names)
        if self.tools is not None:
            tools = _texts("the tools of an agent", self.tools)
            for name in tools:
                if reason := unfit(name, NAME_CHARS_MAX):
                    raise InvalidInput(f"the tool {name!r} of an agent {reason}.")
            _check_count("tools of an agent", len(tools), ISOLATED_FIELDS_MAX)
            msgspec.structs.force_setattr(self, "tools", tools)


class Isolation(msgspec.Struct, frozen=True):
    """The people and agents who may use a session besides its user: `Isolation("per_task",
    task="invoice-7")`.

    per_user: only the user of its key, and `users`, who may read and append. per_task: in addition,
    not the same user's other tasks. Without a `task` the session is its own. per_agent: in
    addition, each agent has its fields: `agents={"agent:critic": FieldAccess(…)}`. global: every
    user of its app may read and append. What works in another session of the same user enters this
    one only if both have the same agent, or with `siblings=True`.
    """

    model: IsolationModel = "per_user"
    users: tuple[str, ...] = ()
    task: str | None = None
    agents: Mapping[str, FieldAccess] = FrozenDict()
    siblings: bool = False

    def __post_init__(self) -> None:
        if type(self.siblings) is not bool:
            raise InvalidInput(
                f"siblings is True or False, not {described(self.siblings)}: whether agents of the "
                "user's other sessions may enter this one."
            )
        if self.model not in ISOLATION_MODELS:
            models = ", ".join(ISOLATION_MODELS)
            raise InvalidInput(f"isolation is one of {models}, not {described(self.model)}.")
        users = _texts("the users of an isolation", self.users)
        for user in users:
            if reason := unfit(user, KEY_PART_CHARS_MAX):
                raise InvalidInput(f"the user {user!r} of an isolation {reason}.")
        _check_count("users", len(users), ISOLATED_USERS_MAX)
        if self.task is not None and (reason := unfit(self.task, LABEL_VALUE_CHARS_MAX)):
            raise InvalidInput(f"the task of an isolation {reason}.")
        if not isinstance(self.agents, Mapping):
            raise InvalidInput(f"agents is a dict of FieldAccess, not {described(self.agents)}.")
        for agent, fields in self.agents.items():
            if reason := unfit(agent, ACTOR_CHARS_MAX):
                raise InvalidInput(f"the agent {agent!r} of an isolation {reason}.")
            if not isinstance(fields, FieldAccess):
                said = described(fields)
                raise InvalidInput(f"the fields of {agent!r} are a limpet.FieldAccess, not {said}.")
        _check_count("agents", len(self.agents), ISOLATED_AGENTS_MAX)
        if self.agents and self.model != "per_agent":
            raise InvalidInput(
                f"a session that is isolated {self.model} keeps its agents together. Pass "
                "model='per_agent', or leave out agents."
            )
        msgspec.structs.force_setattr(self, "users", users)
        msgspec.structs.force_setattr(self, "agents", FrozenDict(self.agents))


class InheritedIsolation(NamedTuple):
    """The isolation of a child, as it is stored: with what a later release has added to it."""

    stored: Mapping[str, Any]


def isolation_data(isolation: Isolation | InheritedIsolation | None, key: Key) -> dict[str, Any]:
    """The isolation of a session in the form of event data; empty if it is the usual one."""
    if isolation is None:
        return {}
    if isinstance(isolation, InheritedIsolation):
        return dict(isolation.stored)
    if not isinstance(isolation, Isolation):
        raise InvalidInput(f"isolation is a limpet.Isolation, not {described(isolation)}.")
    data: dict[str, Any] = {}
    if isolation.model != "per_user":
        data["model"] = isolation.model
    if isolation.users:
        data["users"] = list(isolation.users)
    if isolation.task is not None:
        data["task"] = isolation.task
    elif isolation.model == "per_task":
        data["task"] = key.id
    if isolation.users or isolation.model == "global":
        data["listed"] = True  # see `fold`: earlier releases recorded no labels for these users
    if isolation.siblings:
        data["siblings"] = True
    if isolation.agents:
        data["agents"] = {agent: _agent_data(of) for agent, of in isolation.agents.items()}
    return data


def _agent_data(of: FieldAccess) -> dict[str, Any]:
    data: dict[str, Any] = {"owns": list(of.owns), "reads": list(of.reads)}
    return data if of.tools is None else {**data, "tools": list(of.tools)}


def isolation_in(facts: Facts) -> Isolation:
    """The isolation of a session with these facts."""
    isolation = facts.get("isolation")
    if isolation is None:
        return _USUAL
    agents = {
        agent: FieldAccess(
            tuple(of.get("owns", ())),
            tuple(of.get("reads", ())),
            None if of.get("tools") is None else tuple(of["tools"]),
        )
        for agent, of in isolation.get("agents", EMPTY).items()
    }
    model, users = isolation.get("model", "per_user"), tuple(isolation.get("users", ()))
    siblings = isolation.get("siblings", False)
    return Isolation(model, users, isolation.get("task"), FrozenDict(agents), siblings)


def agent_tools(facts: Facts, agent: str | None) -> Collection[str] | None:
    """Return the tools that a session keeps for this agent; None if it says nothing of them."""
    of = facts.get("isolation", EMPTY).get("agents", EMPTY).get(agent, EMPTY)
    tools: Collection[str] | None = of.get("tools")
    return tools


def child_isolation(facts: Facts, key: Key) -> InheritedIsolation:
    """The isolation of a child of a session with these facts: the same, and a task of its own,
    since no other child has this id."""
    kept: Mapping[str, Any] = facts.get("isolation", EMPTY)
    made = isolation_data(msgspec.structs.replace(isolation_in(facts), task=key.id), key)
    if "agents" in made:
        agents = made["agents"]
        made["agents"] = {name: {**kept["agents"][name], **agents[name]} for name in agents}
    return InheritedIsolation({**kept, **made})


def child_policies(facts: Facts, fields: Iterable[str]) -> dict[str, Any]:
    """Return the policies of the fields that a child of a session with these facts begins with."""
    policies = field_policies_in(facts)
    return {name: policies[name] for name in fields if name in policies}


def field_policies_in(facts: Facts) -> Mapping[str, Mapping[str, Any]]:
    """Return by field the roles that may `read` and `write` it; everybody where none are named."""
    field_policies: Mapping[str, Mapping[str, Any]] = facts.get("field_policies", EMPTY)
    return field_policies


def fold(data: Mapping[str, Any], labels: Mapping[str, str]) -> Changes:
    """Return what a first event says of isolation. `labels` are those that it gives the session."""
    changes: Changes = {}
    isolation = data.get("isolation")
    if isolation:
        changes["isolation"] = FrozenDict(isolation)
        if found_by := _labels_of(isolation):
            changes["labels"] = FrozenDict({**labels, **found_by})
    if policies := data.get("field_policies"):
        changes["field_policies"] = FrozenDict(policies)
    return changes


def lent_labels(user: str) -> tuple[str, str]:
    """The labels of sessions that let in this user, and of those that let in everybody. Each has
    the value LENT_TO."""
    return f"{_LENT}:{hashed(user)}", _LENT


def is_lent(labels: Mapping[str, str], user: str) -> bool:
    """True if a session with these labels, which may be another user's, lets in this user."""
    return any([name in labels for name in lent_labels(user)])


def _labels_of(isolation: Mapping[str, Any]) -> dict[str, str]:
    """The labels by which a session with this isolation is found."""
    labels: dict[str, str] = {}
    if "task" in isolation:
        labels[TASK] = isolation["task"]
    if isolation.get("listed"):
        if isolation.get("model") == "global":
            labels[_LENT] = LENT_TO
        else:
            labels |= {lent_labels(user)[0]: LENT_TO for user in isolation.get("users", ())}
    return labels


def inherited_isolation(facts: Facts) -> dict[str, Any]:
    """Return what a fork has of it: all."""
    return {name: facts[name] for name in ("isolation", "field_policies") if name in facts}


def _texts(what: str, given: Iterable[str]) -> tuple[str, ...]:
    if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
        raise InvalidInput(f"{what} are a tuple of names, not {described(given)}.")
    return tuple(given)


def _check_count(what: str, number: int, most: int) -> None:
    if number > most:
        raise InvalidInput(f"an isolation has at most {most} {what}, not {number:,}.")


_USUAL: Final = Isolation()
