"""Stand-ins for the objects of the async API: how a verb is called without await.

A stand-in (`verbs`) has a line for each public method of the class it stands for, such as
`append = blocking(Session.append)`: it has that method's signature, types and docstring, and hands
every call to a loop. Properties come by themselves; a stand-in declares their types.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from functools import wraps
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Final,
    Generic,
    Never,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
)

from limpet.session.sync.loop import Loop, Stream

T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
P = ParamSpec("P")
# Types in signatures of the async API, and those that stand for them here.
NAMES: Final = {
    "Session": "SyncSession",
    "CommitBuilder": "SyncCommit",
    "App": "SyncApp",
    "Documents": "SyncDocuments",
    "Limpet": "SyncLimpet",
    "CopyTarget": "SyncLimpet",
    "WorkingMemory": "SyncWorking",
    "Layer": "SyncLayer",
}
_ANNOTATED: Final = re.compile(rf"\b({'|'.join(NAMES)})\b")
_STREAM: Final = re.compile(r"AsyncGenerator\[(\w+), None\]")
_AWAIT: Final = re.compile(r"\b(async (with )|await )")


class Facade(Generic[T]):
    """One object of the async API, used without await."""

    _stands_for: ClassVar[dict[type[Any], type[Facade[Any]]]] = {}

    def __init_subclass__(cls, *, of: type[Any]) -> None:
        cls._stands_for[of] = cls
        for name in public(of):
            of_async, here = inspect.getattr_static(of, name), cls.__dict__.get(name)
            if isinstance(of_async, property):
                setattr(cls, name, _property(name, of_async.__doc__))
            elif here is not None:
                here.__module__, here.__qualname__ = cls.__module__, f"{cls.__name__}.{name}"
                here.__doc__ = here.__doc__ or of_async.__doc__

    def __init__(self, of: T, loop: Loop) -> None:
        self._of, self._loop = of, loop

    def __repr__(self) -> str:
        return f"<sync {self._of!r}>"

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *public(self._of)})

    if not TYPE_CHECKING:  # a checker knows the names that a stand-in declares

        def __getattr__(self, name: str) -> Any:
            """Return what the object has beside the members of its class: key, actor, events."""
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

    def __enter__(self) -> Self:
        self._loop.call(self._of.__aenter__)  # type: ignore[attr-defined]  # only used if so
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call(self._of.__aexit__, kind, error, trace)  # type: ignore[attr-defined]

    def _call(self, name: str, /, *args: Any, **named: Any) -> Any:
        verb = getattr(self._of, name)
        own = {n: _async_object(a) for n, a in named.items()}
        return self._wrap(self._loop.call(verb, *map(_async_object, args), **own))

    def _lent(self) -> Any:
        """Return what a verb of another stand-in receives for this one."""
        return self._of

    def _wrap(self, result: Any) -> Any:
        """Return what stands for a result that has verbs itself; else the result."""
        if result is self._of:
            return self
        for of in type(result).__mro__:
            if (stand_in := self._stands_for.get(of)) is not None:
                return stand_in(result, self._loop)
        if type(result) is tuple:  # many sessions at once
            return tuple([self._wrap(each) for each in result])
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


class Attribute(Protocol[R_co]):
    """An attribute of the async object, read-only: how a stand-in declares its type."""

    def __get__(self, of: Any, owner: Any = None, /) -> R_co: ...
    def __set__(self, of: Any, value: Never, /) -> None: ...


def blocking(
    verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """Return an async verb that waits for its result. Overloads and type variables are kept."""
    return without_await(verb)


def awaiting(
    verb: Callable[Concatenate[Any, P], Awaitable[R]],
) -> Callable[Concatenate[Any, P], R]:
    """Return a verb whose result is awaited, though the verb itself is not async."""
    return without_await(verb)


def iterating(
    verb: Callable[Concatenate[Any, P], AsyncGenerator[R, None]],
) -> Callable[Concatenate[Any, P], Iterator[R]]:
    """Return a verb whose async generator is iterated without await."""
    return without_await(verb)


def returning(
    kind: type[R], verb: Callable[Concatenate[Any, P], Any]
) -> Callable[Concatenate[Any, P], R]:
    """Return a verb whose result this kind of façade stands for."""
    return without_await(verb)


def plain(verb: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Return a verb that is not async, called on the loop: its result stays what it is."""
    return without_await(verb)


def without_await(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Return a verb that runs on the loop of its stand-in, with its signature and docstring.

    The functions above give it a type.
    """

    @wraps(verb)
    def call(self: Facade[Any], /, *args: Any, **named: Any) -> Any:
        return self._call(verb.__name__, *args, **named)

    signature = inspect.signature(verb)
    parameters = [
        p.replace(annotation=renamed(p.annotation)) for p in signature.parameters.values()
    ]
    call.__signature__ = signature.replace(  # type: ignore[attr-defined]  # what inspect looks at
        parameters=parameters, return_annotation=renamed(signature.return_annotation)
    )
    call.__doc__ = _AWAIT.sub(lambda match: match[2] or "", verb.__doc__ or "")
    return call


def public(of: object) -> list[str]:
    """Return the names that a user of an object is meant to see; of a class, its members."""
    names = [name for name in dir(of) if not name.startswith("_")]
    if not isinstance(of, type):
        return names
    slots = inspect.ismemberdescriptor  # where an object keeps an attribute
    return [name for name in names if not slots(inspect.getattr_static(of, name))]


def behind(stand_in: Facade[T]) -> tuple[T, Loop]:
    """Return the async object that a stand-in uses, and the loop that it lives on."""
    return stand_in._of, stand_in._loop


def renamed(annotation: Any) -> Any:
    """Return an annotation of the async API as it is without await."""
    if not isinstance(annotation, str):
        return annotation
    return _STREAM.sub(r"Iterator[\1]", _ANNOTATED.sub(lambda m: NAMES[m[0]], annotation))


def _property(name: str, doc: str | None) -> property:
    return property(lambda self: self._wrap(getattr(self._of, name)), doc=doc)


def _async_object(argument: Any) -> Any:
    return argument._lent() if isinstance(argument, Facade) else argument
