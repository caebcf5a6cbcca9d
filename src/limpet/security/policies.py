"""Policies: the user's own rules in Cedar, as the last decider that a guard asks.

They are read from one `.cedar` file, or from all in a directory, parsed once, and read again when
a file changes. A `forbid` that applies denies. A `permit` has to apply, as in Cedar, except for
fields, which follow their session. Whatever goes wrong denies: a file that cannot be parsed any
more, an evaluation that fails, one policy of many that asks for an attribute which is not there.

A decision names its policy: the value of its `@id` annotation, or `file.cedar:12`. The schema is
`limpet.cedarschema`, beside this file; docs/policies.md explains it.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import re
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from copy import copy
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from limpet.errors import ExtraMissing, InvalidInput, PolicyInvalid
from limpet.model import Head, described
from limpet.model.facts.isolation import isolation_in
from limpet.security.access import Action, Decision, Principal, Resource
from limpet.security.view import FieldView

SCHEMA_FILE: Final = Path(__file__).with_name("limpet.cedarschema")
POLICY_BYTES_MAX: Final = 2**20  # of all files together
DECISIONS_KEPT: Final = 8_192
_LOOK_NS: Final = 50_000  # one operation asks several times within it
# A file may change again without another time, for as long as times are coarse.
_SETTLED_NS: Final = 2_000_000_000
_TYPES: Final[Mapping[str, str]] = {
    "session": "Session",
    "field": "Field",
    "tool": "Tool",
    "document": "Document",
    "app": "App",
    "store": "Store",
}
_HEAD: Final = frozenset({"phase", "task", "isolation"})  # attributes that are read from a head
_TAGS: Final = frozenset({"hasTag", "getTag"})
# The members of a context, and for how many seconds a decision that reads one is valid.
_CONTEXT_SECONDS: Final[Mapping[str, int | None]] = {
    "at": 1,
    "hour": 3_600,
    "weekday": 3_600,
    "address": None,  # of a guard, which has the same all along
}
_CHANGE: Final = 2**40  # so many moments stand between two changes of the files
_OTHER_FIELD: Final = "a field that no policy names"
_FAILED: Final = re.compile(r"policy `(policy\d+)`")
_LOG: Final = logging.getLogger("limpet.policies")


class PolicySource(msgspec.Struct, frozen=True):
    """One policy as it was written."""

    name: str  # its @id, or file.cedar:12
    file: str
    line: int
    text: str


class _LoadedPolicies(msgspec.Struct, frozen=True):
    """Everything that was read, and what is known of it."""

    digest: bytes
    sources: tuple[PolicySource, ...] = ()
    parsed: Any = None  # cedarpy.PolicySet
    needs_head: bool = False
    about_fields: bool = False
    field_names: frozenset[str] | None = frozenset()  # that they name; None: it cannot be told
    context: frozenset[str] = frozenset()  # what they ask for of it
    broken: str | None = None  # why nothing is allowed any more


class CedarPolicies:
    """The policies in a file or a directory, as a Decider."""

    def __init__(self, path: str | Path) -> None:
        """Read the policies. Raises PolicyInvalid, or ExtraMissing without cedarpy."""
        if not isinstance(path, (str, os.PathLike)) or not str(path):
            wanted = "policies is the path of a .cedar file or of a directory of them"
            raise InvalidInput(f"{wanted}, not {described(path)}.")
        _cedar()
        self.path = Path(path)
        self._changes = 0
        # The store's clock, once it is open.
        self.now_us: Callable[[], int] = lambda: time.time_ns() // 1_000
        self._cache: dict[Hashable, Decision] = {}
        self._looked_ns = 0
        self._loaded_ns = time.time_ns()
        self._watched = _watched(self.path)
        self._signature = _signature(self._watched)
        self._loaded = load_policies(self.path)

    @property
    def sources(self) -> tuple[PolicySource, ...]:
        """The policies, in the order in which they were read."""
        return self._loaded.sources

    @property
    def revision(self) -> int:
        """Another number once the files have changed, or the time that policies ask for."""
        self._look_again()
        moment = self._moment()
        return self._changes if moment is None else self._changes * _CHANGE + moment

    def at(self, now_us: int) -> CedarPolicies:
        """Return the policies at another time, for cases."""
        other = copy(self)
        other._cache, other.now_us = {}, lambda: now_us
        return other

    def asks(self, member: str) -> bool:
        """True if a policy asks for this member of the context."""
        return member in self._loaded.context

    def _moment(self) -> int | None:
        """The time for which a decision is valid, as a number; None if time is irrelevant."""
        seconds = [s for member in self._loaded.context if (s := _CONTEXT_SECONDS[member])]
        return self.now_us() // (min(seconds) * 1_000_000) if seconds else None

    @property
    def needs_head(self) -> bool:
        """True if a policy asks for what stands in the head of a session."""
        return self._loaded.needs_head

    @property
    def needs_newest_head(self) -> bool:
        """True if a policy needs the newest head: labels and phases change."""
        return self._loaded.needs_head

    def decide(
        self, principal: Principal, action: Action, resource: Resource, address: str | None = None
    ) -> Decision:
        """The answer of the policies alone."""
        self._look_again()
        depends = self.depends_on(action, resource)
        of = (principal.id, principal.role, principal.app, principal.user, principal.task)
        given = (self._moment(), address if self.asks("address") else None)
        try:
            known = (of, _hashable(principal.attributes), action, depends, given)
            decision = self._cache.get(known)
        except TypeError:  # an attribute that cannot be compared
            return self._decided(principal, action, resource, address)
        if decision is None:
            decision = self._decided(principal, action, resource, address)
            if len(self._cache) >= DECISIONS_KEPT:
                self._cache.clear()
            self._cache[known] = decision
        return decision

    def depends_on(self, action: Action, resource: Resource) -> Hashable:
        """All of the resource that a policy may ask for."""
        names = (resource.kind, resource.app, resource.user, resource.id, resource.name)
        if not self._loaded.needs_head or resource.head is None:
            return names
        head = resource.head
        return (*names, head.phase, head.labels, head.facts.get("isolation"))

    def view(self, principal: Principal, head: Head, address: str | None = None) -> Any:
        """The fields that no policy forbids to read; None for all of them.

        Policies that compare the name of a field with given names only are asked once for each of
        these, and for one that none of them has. Others are asked for every name.
        """
        loaded = self._loaded
        if not loaded.about_fields:
            return None
        asked = PolicyView(policies=self, principal=principal, head=head, address=address)
        if loaded.field_names is None:
            return asked
        hidden = frozenset([name for name in loaded.field_names if not asked.sees(name)])
        if asked.sees(_OTHER_FIELD):
            return FieldView(None, hidden) if hidden else None
        return FieldView(loaded.field_names - hidden, hidden)

    def _decided(
        self, principal: Principal, action: Action, resource: Resource, address: str | None
    ) -> Decision:
        loaded = self._loaded
        if loaded.broken is not None:
            return Decision(False, "policy_denied", loaded.broken)
        if resource.kind == "field" and not loaded.about_fields:
            return Decision(True)
        try:
            request, entities = request_of(principal, action, resource)
            if loaded.context:
                request["context"] = context_of(self.now_us(), address)
            answer = _cedar().is_authorized(request, loaded.parsed, entities)
            errors, reasons = answer.diagnostics.errors, answer.diagnostics.reasons
            allowed = answer.allowed
        except Exception as error:  # nothing that happens here may let anybody in
            _LOG.warning("policy evaluation failed: error=%r action=%s", error, action)
            return Decision(False, "policy_denied", f"evaluation failed: {type(error).__name__}")
        if errors:
            named = [self._name(id) for error in errors for id in _FAILED.findall(error)]
            _LOG.warning("policy evaluation failed: error=%s action=%s", errors[0], action)
            return Decision(False, "policy_denied", f"{named[0] if named else self.path} (error)")
        names = ", ".join(sorted([self._name(id) for id in reasons])) or None
        if resource.kind == "field" and not reasons:  # it follows its session
            return Decision(True)
        if allowed:
            return Decision(True, None, names)
        return Decision(False, "policy_denied", names or f"{self.path.name} (no permit)")

    def _name(self, id: str) -> str:
        """The name of a policy by its place: Cedar numbers them in the order of the text."""
        number = int(id.removeprefix("policy"))
        return self._loaded.sources[number].name

    # --- reading again ---------------------------------------------------------------------------

    def _look_again(self) -> None:
        """Read the files again if one has changed. What breaks denies, until it is repaired."""
        now_ns = time.perf_counter_ns()
        if now_ns - self._looked_ns < _LOOK_NS:
            return
        self._looked_ns = now_ns
        signature = _signature(self._watched)
        if signature == self._signature:
            newest = max([mtime for mtime, _, _ in signature], default=0)
            if self._loaded_ns - newest > _SETTLED_NS:
                return
        self._loaded_ns = time.time_ns()  # before they are read: what changes meanwhile shows
        self._watched = _watched(self.path)
        self._signature = _signature(self._watched)
        try:
            if _digest(self.path) != self._loaded.digest:
                self._take(load_policies(self.path))
                _LOG.info("policies read again")
        except PolicyInvalid as error:
            self._take(_LoadedPolicies(error.reason.encode(), broken=f"{error.where} (broken)"))
            _LOG.error("policies cannot be used: error=%s", error)

    def _take(self, loaded: _LoadedPolicies) -> None:
        if loaded == self._loaded:
            return
        self._loaded = loaded
        self._cache.clear()
        self._changes += 1


class PolicyView(FieldView, frozen=True, kw_only=True):
    """The fields of a session that policies let a principal read."""

    policies: CedarPolicies
    principal: Principal
    head: Head
    address: str | None = None

    def sees(self, name: str) -> bool:
        key = self.head.key
        field = Resource("field", key.app, key.user, key.id, name, self.head)
        return self.policies.decide(self.principal, "read", field, self.address).allowed


# --- reading -------------------------------------------------------------------------------------


def load_policies(path: Path) -> _LoadedPolicies:
    """Read and parse a file, or those in a directory. Raises PolicyInvalid."""
    cedar, sources = _cedar(), [*_sources(path)]
    for source in sources:
        try:
            one = cedar.PolicySet.from_str(source.text)
        except ValueError as error:
            raise PolicyInvalid(f"{source.file}:{source.line}", str(error).rstrip(".")) from error
        if one.templates():
            reason = "it is a template, which allows nothing. Write out its principal and resource"
            raise PolicyInvalid(f"{source.file}:{source.line}", reason)
        if len(one) != 1:
            raise PolicyInvalid(f"{source.file}:{source.line}", "it is not one policy")
    named = [_named(cedar, source) for source in sources]
    taken: set[str] = set()
    for source in named:
        if source.name in taken:
            reason = f"another policy has the id {source.name!r}, too"
            raise PolicyInvalid(f"{source.file}:{source.line}", reason)
        taken.add(source.name)
    if not named:
        raise PolicyInvalid(str(path), "there is no policy in it")
    text = "\n".join([source.text for source in named])
    forms = json.loads(cedar.policies_to_json_str(text))["staticPolicies"].values()
    forbids = [form for form in forms if form["effect"] == "forbid"]
    return _LoadedPolicies(
        _digest(path),
        tuple(named),
        cedar.PolicySet.from_str(text),
        any([_asks_head(form) for form in forms]),
        any([_asks_fields(form) for form in forbids]),
        _field_names(forbids),
        frozenset().union(*[_asked_context(form) for form in forms]),
    )


def check_schema(path: Path) -> list[tuple[str, str]]:
    """Validate policies against the schema beside them, or ours; return what is wrong: the place
    and the reason. Raises PolicyInvalid if they cannot be parsed."""
    loaded = load_policies(path)
    directory = path if path.is_dir() else path.parent
    own = sorted(directory.glob("*.cedarschema"))
    schema = (own[0] if own else SCHEMA_FILE).read_text()
    text = "\n".join([source.text for source in loaded.sources])
    try:
        answer = _cedar().validate_policies(text, schema)
    except ValueError as error:
        raise PolicyInvalid(str(own[0] if own else SCHEMA_FILE), str(error)) from error
    wrong: list[tuple[str, str]] = []
    for each in answer.errors:
        place, reason = str(path), each.error
        if each.policy_id:
            source = loaded.sources[int(each.policy_id.removeprefix("policy"))]
            place = f"{source.file}:{source.line}"
            reason = reason.removeprefix(f"for policy `{each.policy_id}`, ")
        wrong.append((place, reason))
    return wrong


def _sources(path: Path) -> Iterator[PolicySource]:
    size = 0
    for file in _files(path):
        try:
            raw = file.read_bytes()
            text = raw.decode()
        except OSError as error:
            reason = f"it cannot be read ({error.strerror or error})"
            raise PolicyInvalid(str(file), reason) from error
        except UnicodeDecodeError as error:
            raise PolicyInvalid(str(file), "it is not UTF-8 text") from error
        size += len(raw)
        if size > POLICY_BYTES_MAX:
            raise PolicyInvalid(str(path), f"there are more than {POLICY_BYTES_MAX:,} bytes")
        before = 0
        for number, (line, policy) in enumerate(split_policies(text), 1):
            name = f"{file.name}:{line}" if line != before else f"{file.name}:{line}#{number}"
            yield PolicySource(name, str(file), line, policy)
            before = line


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.cedar"))
    if not files:
        raise PolicyInvalid(str(path), "there is no .cedar file in it")
    return files


def split_policies(text: str) -> Iterator[tuple[int, str]]:
    """Yield the policies of a text, each with the line that it begins on."""
    start, at, quoted = -1, 0, False
    while at < len(text):
        char = text[at]
        if quoted:
            if char == "\\":
                at += 1
            quoted = char != '"'
        elif text.startswith("//", at):
            at = text.find("\n", at)
            if at < 0:
                break
        elif not char.isspace():
            if start < 0:
                start = at
            quoted = char == '"'
            if char == ";":
                yield text.count("\n", 0, start) + 1, text[start : at + 1]
                start = -1
        at += 1
    if start >= 0:
        yield text.count("\n", 0, start) + 1, text[start:]


def _named(cedar: Any, source: PolicySource) -> PolicySource:
    form = json.loads(cedar.policies_to_json_str(source.text))["staticPolicies"]["policy0"]
    id = form.get("annotations", {}).get("id")
    return msgspec.structs.replace(source, name=id) if id else source


def _asks_head(form: Any) -> bool:
    """True if a policy reads an attribute or a tag of a resource that its head has."""
    for part in _parts(form):
        if any([tag in part for tag in _TAGS]):
            return True
        for op in (".", "has"):
            if isinstance(part.get(op), dict) and part[op].get("attr") in _HEAD:
                return True
    return False


def _asked_context(form: Any) -> frozenset[str]:
    """The members of the context that a policy asks for; all of them, if it takes it as a whole."""
    uses = sum([part.get("Var") == "context" for part in _parts(form)])
    names: set[str] = set()
    for part in _parts(form):
        for op in (".", "has"):
            asked = part.get(op)
            if isinstance(asked, dict) and asked.get("left") == {"Var": "context"}:
                names.add(str(asked["attr"]))
                uses -= 1
    return frozenset(_CONTEXT_SECONDS) if uses else frozenset(names & _CONTEXT_SECONDS.keys())


def _asks_fields(form: Any) -> bool:
    """True if a policy may say something else about a field than about its session."""
    for part in _parts(form):
        if part.get("entity_type") == "Field" or part.get("type") == "Field":
            return True
        for op in (".", "has"):
            if isinstance(part.get(op), dict) and part[op].get("attr") == "name":
                return True
    return False


def _field_names(forbids: Sequence[Any]) -> frozenset[str] | None:
    """The names of fields that these policies compare with; None if one does anything else with the
    name of a field, such as matching it."""
    names: set[str] = set()
    for form in forbids:
        if not _asks_fields(form):
            continue
        uses = sum([_is_name(part) for part in _parts(form)])
        for part in _parts(form):
            compared = _compared(part)
            names |= compared
            uses -= bool(compared)
            if part.get("type") == "Field" and "id" in part:
                names.add(_unquoted(str(part["id"]).rpartition("#")[2]))
        if uses:
            return None
    return frozenset(names)


def _compared(part: Mapping[str, Any]) -> set[str]:
    """The names that this part of a policy compares the name of a resource with."""
    for op in ("==", "!="):
        sides = part.get(op)
        if isinstance(sides, dict):
            for name, other in (("left", "right"), ("right", "left")):
                text = sides[other].get("Value")
                if _is_name(sides[name]) and isinstance(text, str):
                    return {text}
    listed = part.get("contains")
    if isinstance(listed, dict) and _is_name(listed["right"]):
        texts = [each.get("Value") for each in listed["left"].get("Set", [{}])]
        if all([isinstance(text, str) for text in texts]):
            return {str(text) for text in texts}
    return set()


def _is_name(part: Any) -> bool:
    access = part.get(".") if isinstance(part, dict) else None
    return isinstance(access, dict) and access.get("attr") == "name"


def _parts(form: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(form, dict):
        yield form
        for value in form.values():
            yield from _parts(value)
    elif isinstance(form, list):
        for value in form:
            yield from _parts(value)


def _watched(path: Path) -> tuple[str, ...]:
    """The files to look at. A directory is among them: what is added or replaced changes it."""
    files = sorted(path.glob("*.cedar")) if path.is_dir() else []
    return tuple([str(each) for each in (path, *files)])


def _signature(watched: Sequence[str]) -> tuple[tuple[int, int, int], ...]:
    """Return a fingerprint of the files without reading them; empty if one is missing."""
    try:
        stats = [os.stat(each) for each in watched]  # noqa: PTH116  # every decision asks
    except OSError:
        return ()
    return tuple([(stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats])


def _digest(path: Path) -> bytes:
    """A digest of the content of all files. Raises PolicyInvalid."""
    whole = sha256()
    for file in _files(path):
        try:
            raw = file.read_bytes()
        except OSError as error:
            reason = f"it cannot be read ({error.strerror or error})"
            raise PolicyInvalid(str(file), reason) from error
        whole.update(f"{file.name}\x00{len(raw)}\x00".encode() + raw)
    return whole.digest()


def _cedar() -> Any:
    try:
        import cedarpy
    except ModuleNotFoundError as error:
        raise ExtraMissing("cedarpy", "security") from error
    return cedarpy


# --- requests ------------------------------------------------------------------------------------


def request_of(
    principal: Principal, action: Action, resource: Resource
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a request in the form of Cedar, with the entities that it is about."""
    who = {"type": "Principal", "id": principal.id}
    attributes = {name: _cedar_value(value) for name, value in principal.attributes.items()}
    for name in ("id", "role", "app", "user", "task"):
        if (value := getattr(principal, name)) is not None:
            attributes[name] = value
        else:
            attributes.pop(name, None)  # nobody gives itself a user
    entities = [{"uid": who, "attrs": attributes, "parents": [_entity("Role", principal.role)]}]
    what = _resource_entities(resource)
    request = {"principal": who, "action": _entity("Action", action), "resource": what[0]["uid"]}
    return {**request, "context": {}}, entities + what


def context_of(now_us: int, address: str | None) -> dict[str, Any]:
    """Return the context of a request in the form of Cedar: when it is made, and from where."""
    at = datetime.fromtimestamp(now_us // 1_000_000, UTC)
    moment = {"fn": "datetime", "arg": at.strftime("%Y-%m-%dT%H:%M:%SZ")}
    context = {"at": {"__extn": moment}, "hour": at.hour, "weekday": at.isoweekday()}
    if address is not None and _is_ip(address):
        context["address"] = {"__extn": {"fn": "ip", "arg": address}}
    return context


def _is_ip(address: str) -> bool:
    """False of what Cedar cannot compare, such as the name of a socket: then it has no address."""
    try:
        return bool(ipaddress.ip_address(address)) and "%" not in address
    except ValueError:
        return False


def _resource_entities(resource: Resource) -> list[dict[str, Any]]:
    """Return the entity of a resource, and those that it is in."""
    store: dict[str, Any] = {"uid": _entity("Store", "store"), "attrs": {}, "parents": []}
    if resource.kind == "store":
        named = {} if resource.name is None else {"name": resource.name}
        return [{**store, "attrs": named}]
    names = {"app": resource.app, "user": resource.user, "id": resource.id, "name": resource.name}
    attrs = {name: value for name, value in names.items() if value is not None}
    uid = _entity("App", _path(resource.app))
    app: dict[str, Any] = {"uid": uid, "attrs": {"app": resource.app}, "parents": [store["uid"]]}
    if resource.kind == "app":
        return [{**app, "attrs": attrs}, store]
    tags: dict[str, str] = {}
    if resource.head is not None and resource.kind != "document":
        isolation = isolation_in(resource.head.facts)
        attrs |= {"phase": resource.head.phase, "isolation": isolation.model}
        if isolation.task is not None:
            attrs["task"] = isolation.task
        tags = dict(resource.head.labels)
    path = [part for part in (resource.app, resource.user, resource.id) if part is not None]
    session: dict[str, Any] = {"uid": _entity("Session", _path(*path)), "parents": [app["uid"]]}
    session |= {"attrs": attrs, "tags": tags}
    if resource.kind == "session":
        return [session, app, store]
    id = _path(*path) if resource.name is None else f"{_path(*path)}#{_path(resource.name)}"
    parents = [app["uid"]]
    beside = [app, store]
    if len(path) == 3 and resource.kind != "document":
        parents.append(session["uid"])
        beside.append({**session, "attrs": {n: v for n, v in attrs.items() if n != "name"}})
    mine = {"uid": _entity(_TYPES[resource.kind], id), "attrs": attrs, "parents": parents}
    if resource.kind != "document":
        mine["tags"] = tags
    return [mine, *beside]


def _entity(type: str, id: str) -> dict[str, str]:
    return {"type": type, "id": id}


def _path(*parts: str) -> str:
    """Names joined so that no other names give the same text."""
    quoted = [p.replace("%", "%25").replace("/", "%2F").replace("#", "%23") for p in parts]
    return "/".join(quoted)


def _unquoted(part: str) -> str:
    return part.replace("%23", "#").replace("%2F", "/").replace("%25", "%")


def _cedar_value(value: Any) -> Any:
    """An attribute of a principal as a value of Cedar: texts, whole numbers, yes and no, sets and
    records. Raises ValueError for anything else, which denies."""
    if isinstance(value, (bool, str)) or type(value) is int:
        return value
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_cedar_value(each) for each in value]
    if isinstance(value, Mapping):
        if any([not isinstance(name, str) or name.startswith("__") for name in value]):
            raise ValueError("a name of a record begins with __, which Cedar reads otherwise")
        return {name: _cedar_value(each) for name, each in value.items()}
    raise ValueError(f"Cedar has no value like {type(value).__name__}")


def _hashable(value: Any) -> Hashable:
    if isinstance(value, Mapping):
        return tuple([(name, _hashable(each)) for name, each in sorted(value.items())])
    if isinstance(value, (list, tuple)):
        return tuple([_hashable(each) for each in value])
    hash(value)
    return (type(value), value)  # 1 and True are equal, and other values in Cedar
