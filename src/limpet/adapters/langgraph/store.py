"""The long-term store of LangGraph: items under namespaces, as documents.

An item is the document "a.b/key" of one collection, so the items of a namespace stand together and
a batch of puts is one commit. An item that has expired is not shown any more; `sweep` takes out its
content, unless somebody has put it again in the meantime.

The vectors of an item are a document of the same name in a second collection, put in the same
commit. What ranks them is derived from there: see `vectors`. A search first reads what is new in
the feed, so it sees what other processes have put.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Self

import apsw
from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
)

from limpet import Document, Documents, Limpet, Seal
from limpet.adapters.langgraph.event_loop import LoopBound, on_store_loop
from limpet.adapters.langgraph.vectors import (
    ListedVectors,
    PostgresVectors,
    SqliteVectors,
    Vector,
    VectorChange,
    VectorIndex,
    cosine,
    packed,
    unpacked,
    vector_of,
)
from limpet.errors import DocumentConflict, InvalidCursor, InvalidInput, LimpetError
from limpet.model import DefaultActor

Namespace = tuple[str, ...]
_ACTOR: Final = DefaultActor("langgraph")
_LOG: Final = logging.getLogger("limpet.adapters")
_NAME_CHARS_MAX: Final = 256  # of a document
_MINUTE: Final = 60.0
_NEAREST_MIN: Final = 32  # items asked of the index at once
_POSTGRES: Final = ("postgresql://", "postgres://")
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

    Values are JSON. `index` and `ttl` as LangGraph describes them: without `index`, a `query` does
    not rank; expired items are never shown. `clock` gives seconds since 1970; without one the
    clock of the store counts, which is the same for all processes.

    `pgvector` keeps the index of the vectors in the PostgreSQL database of the store, unencrypted,
    and needs its extension there. By default it is used where it is installed, if `store` is a URL
    without a seal. Elsewhere the vectors are ranked in this process.
    """

    supports_ttl = True

    def __init__(
        self,
        store: Limpet | str,
        *,
        collection: str = "langgraph",
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        seal: Seal | None = None,
        clock: Callable[[], float] | None = None,
        pgvector: bool | None = None,
    ) -> None:
        self.collection, self.ttl_config, self._clock = collection, ttl, clock
        self.index_config, self._embedding = index, None if index is None else _Embedding(index)
        self._pgvector, self._is_plain = pgvector, isinstance(store, str) and seal is None
        self._index: VectorIndex | None = None
        self._opening = asyncio.Lock()
        self._sweeper: asyncio.Task[None] | None = None
        self._take(store, seal)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        collection: str = "langgraph",
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        seal: Seal | None = None,
        clock: Callable[[], float] | None = None,
        pgvector: bool | None = None,
    ) -> LimpetStore:
        """A store at `url`: `async with LimpetStore.from_url(url) as store`, or `with`."""
        return cls(
            url,
            collection=collection,
            index=index,
            ttl=ttl,
            seal=seal,
            clock=clock,
            pgvector=pgvector,
        )

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

    @on_store_loop
    async def sweep(self) -> int:
        """Take out the content of items that have expired. Return how many there were."""
        documents, vectors, count = self._documents(), self._vectors(), 0
        async for document in documents.each():
            if _is_there(document) and not _is_live(document, self._now()):
                try:
                    async with self._lp.commit() as c:
                        c.put(documents, document.name, None, expect=document.version)
                        if await vectors.find(document.name) is not None:
                            c.put(vectors, document.name, None)
                except DocumentConflict:  # it was put again
                    continue
                count += 1
        return count

    sweep_ttl = sweep  # as LangGraph's own stores call it

    @on_store_loop
    async def start_ttl_sweeper(
        self, sweep_interval_minutes: float | None = None
    ) -> asyncio.Task[None]:
        """Sweep every so many minutes, 5 unless the call or `ttl` says otherwise, until the store
        is closed. `async with` and `with` start it if `ttl` has `sweep_interval_minutes`."""
        minutes = sweep_interval_minutes or (self.ttl_config or {}).get("sweep_interval_minutes")
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.create_task(self._sweep_every((minutes or 5) * _MINUTE))
        return self._sweeper

    @on_store_loop
    async def stop_ttl_sweeper(
        self,
        timeout: float | None = None,  # noqa: ASYNC109  # the name that LangGraph gives it
    ) -> bool:
        """Stop sweeping. False if a sweep under way did not end within `timeout` seconds."""
        if self._sweeper is None:
            return True
        self._sweeper.cancel()
        _, running = await asyncio.wait([self._sweeper], timeout=timeout)
        return not running

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self._entered()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._leave()
        await super().__aexit__(*error)

    async def _open(self) -> None:
        await super()._open()
        await self._entered()

    def __exit__(self, *error: object) -> None:
        if self._thread is not None:
            self._wait(self._leave())
        super().__exit__(*error)

    async def _entered(self) -> None:
        if (self.ttl_config or {}).get("sweep_interval_minutes"):
            await self.start_ttl_sweeper()

    async def _leave(self) -> None:
        await self.stop_ttl_sweeper()
        index, self._index = self._index, None
        if index is not None:
            await index.close()

    async def _sweep_every(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.sweep()
            except LimpetError as error:
                _LOG.warning("sweep of expired items failed: %s", error)

    # --- operations ----------------------------------------------------------------------------

    async def _put(self, puts: Mapping[str, PutOp]) -> None:
        documents, vectors, now = self._documents(), self._vectors(), self._now()
        kept = {name: op for name, op in puts.items() if op.value is not None}
        embedded = {} if self._embedding is None else await self._embedding.of_items(kept)
        before = {name: await documents.find(name) for name in kept}
        if kept:
            async with self._lp.commit() as c:
                for name, op in kept.items():
                    c.put(documents, name, _content(name, op, before[name], now))
                    if name in embedded:
                        c.put(vectors, name, {"of": now, "vectors": embedded[name]})
        removed = [name for name in puts if name not in kept]
        if self._embedding is None:
            for name in removed:
                await vectors.purge(name)
                await documents.purge(name)
        elif embedded or removed:
            async with (await self._opened_index()).changing() as change:
                # Nobody can bring these vectors back in from the feed meanwhile.
                for name in removed:
                    await vectors.purge(name)
                    await documents.purge(name)
                if await change.position() is not None:
                    await change.update(
                        {n: _unpacked(texts) for n, texts in embedded.items()}
                        | dict.fromkeys(removed, ())
                    )

    async def _get(self, op: GetOp) -> Item | None:
        documents = self._documents()
        document = await documents.find(_name(op.namespace, op.key))
        if document is None or not _is_live(document, self._now()):
            return None
        if op.refresh_ttl:
            await self._refresh(documents, document)
        return _item(Item, document)

    async def _search(self, op: SearchOp) -> list[SearchItem]:
        if op.query and self._embedding is not None:
            page = await self._ranked(op, await self._embedding.of_query(op.query))
        else:
            matching = await self._matching(op)
            page = [(None, each) for each in matching[op.offset : op.offset + op.limit]]
        if op.refresh_ttl:
            for _, document in page:
                await self._refresh(self._documents(), document)
        return [_item(SearchItem, document, score=score) for score, document in page]

    async def _matching(self, op: SearchOp) -> list[Document]:
        """The items that a search is about, the last updated first."""
        matching: list[Document] = []
        for prefix in _prefixes(op.namespace_prefix):
            async for document in self._documents().each(prefix):
                if self._is_meant(document, op):
                    matching.append(document)
        return sorted(matching, key=lambda each: each.value["updated"], reverse=True)

    def _is_meant(self, document: Document, op: SearchOp) -> bool:
        if not _is_live(document, self._now()) or not _meets(document.value["value"], op.filter):
            return False
        is_long = document.name.startswith(_LONG)
        return not is_long or _is_below(_parts(document)[0], op.namespace_prefix)

    async def _ranked(self, op: SearchOp, query: Vector) -> list[tuple[float | None, Document]]:
        """Items by how near they are to a query; after them, those that have no vectors."""
        index = await self._opened_index()
        await self._catch_up(index)
        prefixes, end = _prefixes(op.namespace_prefix), op.offset + op.limit
        scored: list[tuple[float | None, Document]] = []
        at, size = 0, max(end, _NEAREST_MIN)
        while len(scored) < end:
            names = await index.nearest(query, prefixes, limit=size, offset=at)
            matches = await asyncio.gather(*[self._scored(name, query) for name in names])
            scored += [each for each in matches if each is not None and self._is_meant(each[1], op)]
            if len(names) < size:
                break
            at, size = at + size, size * 2
        scored.sort(key=lambda each: (-(each[0] or 0.0), each[1].name))
        if len(scored) < end:
            ranked = {document.name for _, document in scored}
            rest = [each for each in await self._matching(op) if each.name not in ranked]
            scored += [(None, document) for document in rest]
        return scored[op.offset : end]

    async def _scored(self, name: str, query: Vector) -> tuple[float, Document] | None:
        """An item with its score; None if it is gone, or was put since without vectors."""
        document, kept = await asyncio.gather(
            self._documents().find(name), self._vectors().find(name)
        )
        if document is None or not _is_there(document) or kept is None or not _is_there(kept):
            return None
        if kept.value["of"] != document.value["updated"]:
            return None
        vectors = _unpacked(kept.value["vectors"])
        return (max(cosine(query, each) for each in vectors), document) if vectors else None

    async def _catch_up(self, index: VectorIndex) -> None:
        """Bring the index to where the documents are."""
        vectors = self._vectors()
        async with index.changing() as change:
            position = await change.position()
            if position is None:
                await self._rebuild(change)
                return
            try:
                changed, position = await vectors.changes(position)
                while changed:
                    latest = {each.name: _vectors_of(each) for each in changed}
                    await change.update(latest, position)
                    changed, position = await vectors.changes(position)
            except InvalidCursor:  # the store was restored to another time
                await self._rebuild(change)

    async def _rebuild(self, change: VectorChange) -> None:
        position = await self._lp.position()  # what is put from here on comes by the feed
        every = {each.name: _vectors_of(each) async for each in self._vectors().each()}
        await change.rebuild({name: each for name, each in every.items() if each}, position)

    async def _opened_index(self) -> VectorIndex:
        async with self._opening:
            if self._index is None:
                self._index = await self._open_index()
            return self._index

    async def _open_index(self) -> VectorIndex:
        wanted, url = self._pgvector, str(self._lp.url)
        if wanted is None:
            wanted = self._is_plain and url.startswith(_POSTGRES)
        if wanted and (opened := await PostgresVectors.open(url, self.collection)) is not None:
            return opened
        if self._pgvector:
            raise InvalidInput(
                "this database does not have pgvector. Run CREATE EXTENSION vector there, or leave "
                "pgvector=True out to rank vectors in this process."
            )
        try:
            import sqlite_vec  # type: ignore[import-not-found,import-untyped,unused-ignore]  # an extra

            return SqliteVectors(sqlite_vec.loadable_path())
        except (ModuleNotFoundError, AttributeError, apsw.Error):  # or one that cannot be loaded
            return ListedVectors()

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

    def _vectors(self) -> Documents:
        return self._lp.documents(f"{self.collection}-vectors", actor=_ACTOR)


class _Embedding:
    """The embedding model: turns items and queries into vectors. IndexConfig of LangGraph."""

    def __init__(self, config: IndexConfig) -> None:
        if not config.get("embed"):
            raise InvalidInput("index needs `embed`: a function, or Embeddings of LangChain.")
        self._dims = config.get("dims")
        self._model = ensure_embeddings(config["embed"])
        self._fields = [_path(field) for field in config.get("fields") or ["$"]]

    async def of_items(self, puts: Mapping[str, PutOp]) -> dict[str, list[str]]:
        """Return the vectors of each item, packed; an empty list if it is not to be indexed."""
        texts = {name: self._texts(op) for name, op in puts.items()}
        distinct = list(dict.fromkeys(text for each in texts.values() for text in each))
        made = await self._model.aembed_documents(distinct) if distinct else []
        if len(made) != len(distinct):
            raise InvalidInput(f"`embed` returned {len(made)} vectors for {len(distinct)} texts.")
        vectors = {
            text: packed(self._checked(each)) for text, each in zip(distinct, made, strict=True)
        }
        return {name: [vectors[text] for text in each] for name, each in texts.items()}

    async def of_query(self, query: str) -> Vector:
        return self._checked(await self._model.aembed_query(query))

    def _texts(self, op: PutOp) -> list[str]:
        if op.index is False:
            return []
        paths = self._fields if op.index is None else [_path(field) for field in op.index]
        return [text for path in paths for text in get_text_at_path(op.value, path)]

    def _checked(self, vector: Sequence[float]) -> Vector:
        made = vector_of(vector)
        if self._dims is not None and len(made) != self._dims:
            raise InvalidInput(
                f"`embed` returned {len(made)} numbers, but index has dims={self._dims}. Pass the "
                "dimensions of the model."
            )
        if not all(map(math.isfinite, made)):
            raise InvalidInput("`embed` returned a number that is not finite.")
        return made


def _path(field: str) -> str | list[str]:
    return field if field == "$" else tokenize_path(field)


def _unpacked(texts: Iterable[str]) -> tuple[Vector, ...]:
    return tuple([unpacked(text) for text in texts])


def _vectors_of(document: Document) -> tuple[Vector, ...]:
    """Return the vectors of an item, or no vectors if it is gone."""
    return _unpacked(document.value["vectors"]) if _is_there(document) else ()


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


def _item(cls: type[Any], document: Document, **more: Any) -> Any:
    namespace, key = _parts(document)
    kept = document.value
    return cls(
        value=copy.deepcopy(kept["value"]),
        key=key,
        namespace=namespace,
        created_at=datetime.fromtimestamp(kept["created"], UTC),
        updated_at=datetime.fromtimestamp(kept["updated"], UTC),
        **more,
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
