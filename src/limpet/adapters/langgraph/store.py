"""The long-term store of LangGraph: items under namespaces, as documents.

An item is the document "a.b/key" of one collection, so the items of a namespace stand together and
a batch of puts is one commit. An item that has expired is not shown any more; `sweep` takes out its
content, unless somebody has put it again in the meantime.
"""

from __future__ import annotations

import copy
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)

from limpet import Document, Documents, Limpet, Seal
from limpet.adapters.langgraph.event_loop import LoopBound, on_store_loop
from limpet.errors import DocumentConflict, InvalidInput
from limpet.model import DefaultActor

Namespace = tuple[str, ...]
_ACTOR: Final = DefaultActor("langgraph")
_PAGE: Final = 200
_NAME_CHARS_MAX: Final = 256  # of a document
_MINUTE: Final = 60.0
# A read that refreshes a TTL writes. It does so only once this part of the time is over.
_REFRESH_PART: Final = 1 / 16
_ORDER: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "$gt": lambda a, b: a > b,
    "$gte": lambda a, b: a >= b,
    "$lt": lambda a, b: a < b,
    "$lte": lambda a, b: a <= b,
}


class LimpetStore(LoopBound, BaseStore):  # type: ignore[misc]  # no types where it is checked
    """Items of LangGraph in a Limpet store. `store` is a URL or an open Limpet.

    Values are JSON. There is no semantic search: a `query` does not rank. `ttl` as LangGraph
    describes it; expired items are never shown. `clock` gives seconds since 1970;
    without one the clock of the store counts, which is the same for all processes.
    """

    supports_ttl = True

    def __init__(
        self,
        store: Limpet | str,
        *,
        collection: str = "langgraph",
        ttl: TTLConfig | None = None,
        seal: Seal | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.collection, self.ttl_config, self._clock = collection, ttl, clock
        self._take(store, seal)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        collection: str = "langgraph",
        ttl: TTLConfig | None = None,
        seal: Seal | None = None,
        clock: Callable[[], float] | None = None,
    ) -> LimpetStore:
        """A store at `url`: `async with LimpetStore.from_url(url) as store`, or `with`."""
        return cls(url, collection=collection, ttl=ttl, seal=seal, clock=clock)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        return self._wait(self.abatch(list(ops)))

    @on_store_loop
    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Reads see what was there before the batch. All puts are one commit, deletions follow."""
        results: list[Result] = []
        puts: dict[str, PutOp] = {}
        for op in ops:
            if isinstance(op, PutOp):
                puts[_name(op.namespace, op.key)] = op
                results.append(None)
            elif isinstance(op, GetOp):
                results.append(await self._get(op))
            elif isinstance(op, SearchOp):
                results.append(await self._search(op))
            elif isinstance(op, ListNamespacesOp):
                results.append(await self._namespaces(op))
            else:
                raise InvalidInput(f"{op!r} is not an operation that LimpetStore knows.")
        await self._put(puts)
        return results

    async def sweep(self) -> int:
        """Take out the content of items that have expired. How many there were."""
        documents, count = self._documents(), 0
        async for document in documents.each():
            if _is_there(document) and not _is_live(document, self._now()):
                try:
                    await documents.put(document.name, None, expect=document.version)
                except DocumentConflict:  # it was put again
                    continue
                count += 1
        return count

    # --- operations ----------------------------------------------------------------------------

    async def _put(self, puts: Mapping[str, PutOp]) -> None:
        documents, now = self._documents(), self._now()
        kept = {name: op for name, op in puts.items() if op.value is not None}
        before = {name: await documents.find(name) for name in kept}
        if kept:
            async with self._lp.commit() as c:
                for name, op in kept.items():
                    c.put(documents, name, _content(name, op, before[name], now))
        for name, op in puts.items():
            if op.value is None:
                await documents.purge(name)

    async def _get(self, op: GetOp) -> Item | None:
        documents = self._documents()
        document = await documents.find(_name(op.namespace, op.key))
        if document is None or not _is_live(document, self._now()):
            return None
        if op.refresh_ttl:
            await self._refresh(documents, document)
        return _item(Item, document)

    async def _search(self, op: SearchOp) -> list[SearchItem]:
        documents, now = self._documents(), self._now()
        matching: list[Document] = []
        for prefix in _prefixes(op.namespace_prefix):
            async for document in documents.each(prefix):
                if not _is_live(document, now) or not _meets(document.value["value"], op.filter):
                    continue
                if prefix != _LONG or _is_below(_parts(document)[0], op.namespace_prefix):
                    matching.append(document)
        matching.sort(key=lambda document: document.value["updated"], reverse=True)
        page = matching[op.offset : op.offset + op.limit]
        if op.refresh_ttl:
            for document in page:
                await self._refresh(documents, document)
        return [_item(SearchItem, document) for document in page]

    async def _namespaces(self, op: ListNamespacesOp) -> list[Namespace]:
        namespaces: set[Namespace] = set()
        now = self._now()
        async for document in self._documents().each():
            if not _is_live(document, now):
                continue
            namespace, _ = _parts(document)
            if _matches(namespace, op.match_conditions or ()):
                namespaces.add(namespace[: op.max_depth])
        return sorted(namespaces)[op.offset : op.offset + op.limit]

    async def _refresh(self, documents: Documents, document: Document) -> None:
        """Begin the time to live of an item again, unless it was changed meanwhile."""
        kept, now = document.value, self._now()
        if kept["ttl"] is None:
            return
        whole = kept["ttl"] * _MINUTE
        if kept["expires"] - now < whole * (1 - _REFRESH_PART):
            try:
                new = {**kept, "expires": now + whole}
                await documents.put(document.name, new, expect=document.version)
            except DocumentConflict:
                return

    def _now(self) -> float:
        return self._lp.now().timestamp() if self._clock is None else self._clock()

    def _documents(self) -> Documents:
        return self._lp.documents(self.collection, actor=_ACTOR)


def _content(name: str, op: PutOp, before: Document | None, now: float) -> dict[str, Any]:
    created = now
    if before is not None and _is_live(before, now):
        created = before.value["created"]
    if op.ttl is not None and (type(op.ttl) not in (int, float) or not math.isfinite(op.ttl)):
        raise InvalidInput(f"ttl is {op.ttl!r}. Pass a number of minutes, or None.")
    expires = None if op.ttl is None else now + op.ttl * _MINUTE
    times = {"created": created, "updated": now, "ttl": op.ttl, "expires": expires}
    content = {"value": dict(op.value or {}), **times}
    if name.startswith(_LONG):
        content["name"] = _whole(op.namespace, op.key)
    return content


def _is_there(document: Document) -> bool:
    return document.value is not None


def _is_live(document: Document, now: float) -> bool:
    if not _is_there(document):
        return False
    expires = document.value["expires"]
    return expires is None or bool(now < expires)


def _item(cls: type[Any], document: Document) -> Any:
    namespace, key = _parts(document)
    kept = document.value
    return cls(
        value=copy.deepcopy(kept["value"]),
        key=key,
        namespace=namespace,
        created_at=datetime.fromtimestamp(kept["created"], UTC),
        updated_at=datetime.fromtimestamp(kept["updated"], UTC),
    )


# --- names --------------------------------------------------------------------------------------


# A label or a key may be any text. What the name of a document cannot have is escaped. A name that
# would be too long is a digest, and the whole name stands in the document.
_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_FIRST: Final = re.compile(r"\A\s")
_LAST: Final = re.compile(r"\s\Z")
_ESCAPED: Final = re.compile(r"%u([0-9A-F]{4})|%([0-9A-F]{2})")
_KEY_ESCAPED: Final = "%!"  # what an escaped key begins with; others are kept as they are
_LONG: Final = "%~"  # what the digest of a long name begins with; no label gives that


def _name(namespace: Namespace, key: str) -> str:
    """The name of an item's document."""
    whole = _whole(namespace, key)
    if len(whole) <= _NAME_CHARS_MAX:
        return whole
    return _LONG + hashlib.sha256(whole.encode()).hexdigest()


def _whole(namespace: Namespace, key: str) -> str:
    if key.startswith(_KEY_ESCAPED) or _UNFIT.search(key) or _LAST.search(key):
        escaped = _UNFIT.sub(_mark, key.replace("%", "%25"))
        key = _KEY_ESCAPED + _LAST.sub(_mark, escaped)
    return f"{_join(namespace)}/{key}"


def _prefixes(namespace: Namespace) -> tuple[str, ...]:
    """The prefixes of the names of items in a namespace and below it."""
    if not namespace:
        return ("",)
    joined = _join(namespace)
    own = (f"{joined}/", f"{joined}.") if len(joined) < _NAME_CHARS_MAX else ()
    return (*own, _LONG)


def _join(namespace: Namespace) -> str:
    """The labels, joined so that they can be split again: a label may have any character."""
    labels = [label.replace("%", "%25").replace(".", "%2E") for label in namespace]
    joined = ".".join([label.replace("/", "%2F") for label in labels])
    return _FIRST.sub(_mark, _UNFIT.sub(_mark, joined))


def _mark(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"%{code:02X}" if code < 256 else f"%u{code:04X}"


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1] or match[2], 16)), text)


def _parts(document: Document) -> tuple[Namespace, str]:
    """The namespace and the key of an item that is there."""
    is_long = document.name.startswith(_LONG)
    whole: str = document.value["name"] if is_long else document.name
    joined, _, key = whole.partition("/")
    if key.startswith(_KEY_ESCAPED):
        key = _unescape(key.removeprefix(_KEY_ESCAPED))
    return tuple([_unescape(label) for label in joined.split(".")]) if joined else (), key


# --- filters ------------------------------------------------------------------------------------


def _is_below(namespace: Namespace, prefix: Namespace) -> bool:
    return namespace[: len(prefix)] == tuple(prefix)


def _matches(namespace: Namespace, conditions: Iterable[MatchCondition]) -> bool:
    for condition in conditions:
        path = condition.path
        mine = namespace[: len(path)]
        if condition.match_type == "suffix":
            mine = namespace[max(0, len(namespace) - len(path)) :]
        if len(mine) < len(path):
            return False
        if any(b not in ("*", a) for a, b in zip(mine, path, strict=True)):
            return False
    return True


def _meets(value: Any, wanted: Any) -> bool:
    """True if a value has all that a filter names, with the filter's operators."""
    if not wanted and (wanted is None or isinstance(wanted, dict)):
        return True
    if isinstance(wanted, dict):
        if any(name.startswith("$") for name in wanted):
            return all(_holds(value, name, bound) for name, bound in wanted.items())
        return isinstance(value, dict) and all(
            _equals(value.get(name), part) for name, part in wanted.items()
        )
    return bool(value == wanted)


def _equals(value: Any, wanted: Any) -> bool:
    return _meets(value, wanted) if isinstance(wanted, dict) and wanted else bool(value == wanted)


def _holds(value: Any, operator: str, bound: Any) -> bool:
    if operator in ("$eq", "$ne"):
        return bool(value == bound) is (operator == "$eq")
    compare = _ORDER.get(operator)
    if compare is None:
        raise InvalidInput(f"{operator} is not an operator. Use $eq, $ne, $gt, $gte, $lt or $lte.")
    try:
        return compare(float(value), float(bound))
    except (TypeError, ValueError):  # not a number, so neither above nor below
        return False
