"""Cases: a table of questions and the answers that are expected of policies.

`limpet policy test` reads it from a CSV file with a heading, or from JSON lines or a JSON list with
the same names. docs/policies.md lists them. A case is answered as a guard would answer it, by the
roles and the policies; isolation, which is a fact of a session, is left out.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from limpet.errors import InvalidInput, PolicyInvalid
from limpet.model import FrozenDict, Head, Key, blank
from limpet.security.access import (
    ACTIONS,
    Action,
    Decider,
    Decision,
    Principal,
    Resource,
    ResourceKind,
)
from limpet.security.policies import CedarPolicies

_EXPECTED: Final[Mapping[str, bool]] = {"allow": True, "deny": False}
_PRINCIPAL: Final = ("role", "app", "user", "task")
_NAMES: Final = frozenset(
    (
        *("principal", *_PRINCIPAL, "action", "resource", "kind", "phase", "expect", "policy"),
        *("address", "at"),
    )
)
_ATTRIBUTE: Final = "principal."  # the beginning of a column of attributes
_LABEL: Final = "label."


class PolicyCase(msgspec.Struct, frozen=True):
    """One question with its expected answer."""

    place: str  # cases.csv:3
    principal: Principal
    action: Action
    resource: Resource
    allowed: bool
    policy: str | None = None  # which is expected to decide
    address: str | None = None
    at_us: int | None = None  # None: now


class CaseResult(msgspec.Struct, frozen=True):
    """The decision of a case."""

    case: PolicyCase
    decision: Decision

    @property
    def ok(self) -> bool:
        """True if the answer, and the policy if one was named, are as expected."""
        named = self.case.policy
        is_named = named is None or named in (self.decision.policy or "").split(", ")
        return self.decision.allowed == self.case.allowed and is_named


def run_cases(cases: Sequence[PolicyCase], deciders: Sequence[Decider]) -> list[CaseResult]:
    """Answer the cases: the first decider that denies gives the answer, as in a guard."""
    return [CaseResult(case, _decided(case, deciders)) for case in cases]


def _decided(case: PolicyCase, deciders: Sequence[Decider]) -> Decision:
    decision = Decision(True)
    for decider in deciders:
        if case.at_us is not None and isinstance(decider, CedarPolicies):
            decider = decider.at(case.at_us)
        decision = decider.decide(case.principal, case.action, case.resource, case.address)
        if not decision.allowed:
            break
    return decision


def read_cases(path: Path) -> list[PolicyCase]:
    """Read a table of cases. Raises PolicyInvalid with the line that is wrong."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = f"it cannot be read ({error.strerror or error})"
        raise PolicyInvalid(str(path), reason) from error
    except UnicodeDecodeError as error:
        raise PolicyInvalid(str(path), "it is not UTF-8 text") from error
    rows = _csv_rows(text) if path.suffix.lower() == ".csv" else _json_rows(text, path)
    cases = [_case(f"{path.name}:{line}", row) for line, row in rows]
    if not cases:
        raise PolicyInvalid(str(path), "there is no case in it")
    return cases


def _csv_rows(text: str) -> list[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    rows: list[tuple[int, dict[str, Any]]] = []
    for row in reader:
        said = {(n or "").strip(): value for n, value in row.items() if value not in (None, "")}
        cells = {n: value.strip() if isinstance(value, str) else value for n, value in said.items()}
        if cells and not str(next(iter(cells.values()))).startswith("#"):
            rows.append((reader.line_num, cells))
    return rows


def _json_rows(text: str, path: Path) -> list[tuple[int, dict[str, Any]]]:
    """A case on each line, with its number; or one list of cases, counted from 1."""
    lines = list(enumerate(text.splitlines(), 1))
    texts = [(number, line) for number, line in lines if line.strip() and line.lstrip()[0] != "#"]
    rows: list[tuple[int, Any]]
    if texts and texts[0][1].lstrip()[0] == "[":
        rows = list(enumerate(_json(text, path, texts[0][0]), 1))
    else:
        rows = [(number, _json(line, path, number)) for number, line in texts]
    for number, row in rows:
        if not isinstance(row, dict):
            raise PolicyInvalid(f"{path.name}:{number}", "a case is an object")
    return rows


def _json(text: str, path: Path, line: int) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise PolicyInvalid(f"{path.name}:{line}", f"it is not JSON: {error}") from error


def _case(place: str, row: Mapping[str, Any]) -> PolicyCase:
    for name in row:
        if name not in _NAMES and not name.startswith((_ATTRIBUTE, _LABEL)):
            known = ", ".join(sorted(_NAMES))
            raise PolicyInvalid(place, f"{name!r} is not a name of a case; these are: {known}")
    for name in ("principal", "role", "action", "resource", "expect"):
        if name not in row:
            raise PolicyInvalid(place, f"{name} is missing")
    if row["action"] not in ACTIONS:
        raise PolicyInvalid(place, f"an action is one of {', '.join(ACTIONS)}")
    if row["expect"] not in _EXPECTED:
        raise PolicyInvalid(place, "expect is allow or deny")
    try:
        who = {name: row[name] for name in _PRINCIPAL if name in row}
        principal = Principal(row["principal"], attributes=_prefixed(row, _ATTRIBUTE), **who)
        resource = _resource(row)
    except (InvalidInput, TypeError) as error:
        raise PolicyInvalid(place, str(error).rstrip(".")) from error
    expected = _EXPECTED[row["expect"]]
    at_us = _moment(place, row["at"]) if "at" in row else None
    given = (row.get("policy"), row.get("address"), at_us)
    return PolicyCase(place, principal, row["action"], resource, expected, *given)


def _moment(place: str, at: Any) -> int:
    try:
        moment = datetime.fromisoformat(at)
    except (TypeError, ValueError):
        raise PolicyInvalid(place, "at is a time such as 2026-11-17T08:30:00Z") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1e6)


def _resource(row: Mapping[str, Any]) -> Resource:
    """The resource of a case, by its path: app, app/user, app/user/id, each with #name."""
    path, _, name = str(row["resource"]).partition("#")
    parts = path.split("/")
    if len(parts) > 3 or not all(parts):
        raise InvalidInput("a resource is app, app/user or app/user/id, and #name after it.")
    kind: ResourceKind = row.get("kind") or _kind(row["action"], parts, name)
    app, user, id = (*parts, None, None)[:3]
    head = None
    if app is not None and user is not None and id is not None:
        head = _head(Key(app, user, id), row)
    return Resource(kind, app or "", user, id, name or None, head)


def _kind(action: str, parts: Sequence[str], name: str) -> ResourceKind:
    if name:
        return "tool" if action == "tool" else "field" if len(parts) == 3 else "document"
    return "session" if len(parts) == 3 else "app"


def _head(key: Key, row: Mapping[str, Any]) -> Head | None:
    """The head of a session that exists: a case names its phase or its labels."""
    labels = {name: str(value) for name, value in _prefixed(row, _LABEL).items()}
    if "phase" not in row and not labels:
        return None
    facts = FrozenDict({"phase": row.get("phase", "active"), "labels": FrozenDict(labels)})
    return msgspec.structs.replace(blank(key, "case", 0), facts=facts)


def _prefixed(row: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): row[name] for name in row if name.startswith(prefix)}
