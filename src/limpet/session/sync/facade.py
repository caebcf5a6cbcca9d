"""Stand-ins for the objects of the async API: the same verbs, generated, without await.

A stand-in has a method for each public method of the class it stands for, with its signature and
its words, and hands every call to a loop. Nothing is implemented here; the stand-ins themselves
are in `sync`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import wraps
from types import TracebackType
from typing import Any, ClassVar, Final, Generic, TypeVar

from limpet.session.sync.loop import Loop, Stream

T = TypeVar("T")
NAMES: Final = {
    "Session": "SyncSession",
    "CommitBuilder": "SyncCommit",
    "App": "SyncApp",
    "Documents": "SyncDocuments",
    "Limpet": "SyncLimpet",
    "CopyTarget": "SyncLimpet",
    "Memory": "SyncMemory",
    "Layer": "SyncLayer",
    "SessionLayer": "SyncLayer",
    "UnreadLayer": "SyncLayer",
    "Episodes": "SyncEpisodes",
    "WorkingMemory": "SyncWorking",
    "Overlay": "SyncOverlay",
    "Buffer": "SyncBuffer",
    "Vaults": "SyncVaults",
    "Permissions": "SyncPermissions",
    "SessionHistory": "SyncHistory",
    "SessionLifecycle": "SyncLifecycle",
    "SessionTools": "SyncTools",
    "SessionRuns": "SyncRuns",
    "SessionBlobs": "SyncBlobs",
    "SessionOutcome": "SyncOutcome",
    "SessionSetup": "SyncSetup",
    "StoreWork": "SyncWork",
    "StoreMaintenance": "SyncMaintenance",
    "StorePolicies": "SyncPolicies",
}
_ANNOTATED: Final = re.compile(rf"\b({'|'.join(NAMES)})\b")
_STREAM: Final = re.compile(r"AsyncGenerator\[(\w+), None\]")
_WITHOUT_AWAIT: Final = re.compile(r"\b(async with|await) ")


class Facade(Generic[T]):
    """One object of the async API, used without await."""

    _stands_for: ClassVar[dict[type[Any], type[Facade[Any]]]] = {}

    def __init_subclass__(cls, *, of: type[Any]) -> None:
        cls._stands_for[of] = cls
        for name in public(of):
            if name not in cls.__dict__:
                setattr(cls, name, _member(cls, name, inspect.getattr_static(of, name)))

    def __init__(self, of: T, loop: Loop) -> None:
        self._of, self._loop = of, loop

    def __repr__(self) -> str:
        return f"<sync {self._of!r}>"

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *public(self._of)})

    def __getattr__(self, name: str) -> Any:
        """What the object has beside the members of its class: key, actor, events."""
        if name.startswith("_") or not hasattr(self._of, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._of, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or hasattr(type(self), name):
            super().__setattr__(name, value)
        elif not hasattr(self._of, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        else:
            setattr(self._of, name, value)

    def __enter__(self) -> Facade[T]:
        self._loop.call(self._of.__aenter__)  # type: ignore[attr-defined]  # only used if so
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call(self._of.__aexit__, kind, error, trace)  # type: ignore[attr-defined]

    def _call(self, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        verb = getattr(self._of, name)
        plain = {n: _plain(a) for n, a in named.items()}
        return self._wrapped(self._loop.call(verb, *map(_plain, args), **plain))

    def _lent(self) -> Any:
        """What a verb of another stand-in is given for this one."""
        return self._of

    def _stand_in(self, found: Any) -> Any:
        """What stands for an object that has verbs itself; anything else is what it is."""
        for of in type(found).__mro__:
            if (stand_in := self._stands_for.get(of)) is not None:
                return stand_in(found, self._loop)
        return found

    def _wrapped(self, result: Any) -> Any:
        if result is self._of:
            return self
        if (stand_in := self._stands_for.get(type(result))) is not None:
            return stand_in(result, self._loop)
        if type(result) is tuple:  # many sessions at once
            return tuple([self._wrapped(each) for each in result])
        return self._iterate(result) if isinstance(result, AsyncGenerator) else result

    def _iterate(self, events: AsyncGenerator[Any]) -> Iterator[Any]:
        stream = Stream(events)
        try:
            while True:
                try:
                    yield self._loop.call(stream.next)
                except StopAsyncIteration:
                    return
        finally:
            self._loop.end(stream)


def public(of: object) -> list[str]:
    """The names that a user of an object is meant to see; of a class, its members."""
    names = [name for name in dir(of) if not name.startswith("_")]
    if not isinstance(of, type):
        return names
    return [name for name in names if not _is_slot(inspect.getattr_static(of, name))]


def _is_slot(found: Any) -> bool:
    """Whether it is where an object keeps an attribute, and not one of the class."""
    return inspect.ismemberdescriptor(found)


def renamed(annotation: Any) -> Any:
    """An annotation of the async API as it is without await."""
    if not isinstance(annotation, str):
        return annotation
    return _STREAM.sub(r"Iterator[\1]", _ANNOTATED.sub(lambda found: NAMES[found[0]], annotation))


def _member(cls: type[Facade[Any]], name: str, found: Any) -> Any:
    if isinstance(found, property):
        return property(lambda self: self._stand_in(getattr(self._of, name)), doc=found.__doc__)
    verb = _verb(name, found)
    verb.__module__, verb.__qualname__ = cls.__module__, f"{cls.__name__}.{name}"
    return verb


def _verb(name: str, found: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(found)
    def call(self: Facade[Any], /, *args: Any, **named: Any) -> Any:
        return self._call(name, args, named)

    asked = inspect.signature(found)
    parameters = [p.replace(annotation=renamed(p.annotation)) for p in asked.parameters.values()]
    returned = renamed(asked.return_annotation)
    call.__signature__ = asked.replace(  # type: ignore[attr-defined]  # what inspect looks at
        parameters=parameters, return_annotation=returned
    )
    call.__doc__ = _WITHOUT_AWAIT.sub(_said, found.__doc__ or "")
    return call


def _said(found: re.Match[str]) -> str:
    return "with " if found[1] == "async with" else ""


def _plain(argument: Any) -> Any:
    if not isinstance(argument, Facade):
        return argument
    return argument._lent()
