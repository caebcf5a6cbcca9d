"""Options and arguments that several commands share, and what is made of their texts: the URL of a
store, the key of a session, a path, JSON, an object of the user's own code."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
import typer

import limpet
from limpet.errors import InvalidInput, InvalidURL, LimpetError, SessionNotFound
from limpet.model import Head
from limpet.session.arguments import check_app
from limpet.store.files.state import META
from limpet.store.open import sqlite_path

App = Annotated[
    str | None, typer.Option("--app", metavar="NAME", help="Only the sessions of this app.")
]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NAME=VALUE", help="A label; several may be given."),
]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why.")]
History = Annotated[bool, typer.Option("--history", help="Every version, the newest first.")]
Expect = Annotated[
    int | None, typer.Option("--expect", metavar="N", min=0, help="Only at this version.")
]
ArchiveUrl = Annotated[
    str | None,
    typer.Option("--archive", metavar="URL", help="file:///directory or s3://bucket/prefix."),
]
OwnNode = Annotated[
    str | None,
    typer.Option("--node", metavar="NAME", help="Its name among the nodes of moves."),
]
OtherNodes = Annotated[
    list[str] | None,
    typer.Option("--nodes", metavar="NAME=URL", help="Where another node is; several."),
]
_PLACE: Final = "A seq (12), a time (2026-05-01T10:00:00Z) or a checkpoint (#3)."
Place = Annotated[str, typer.Argument(metavar="PLACE", help=_PLACE)]
From = Annotated[str, typer.Argument(metavar="A", help=_PLACE)]
At = Annotated[str | None, typer.Option("--at", metavar="PLACE", help=_PLACE)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
NewFile = Annotated[str, typer.Argument(metavar="FILE", help="The file; must not exist yet.")]
NewStore = Annotated[str, typer.Argument(metavar="STORE", help="The store; created if missing.")]

_APPS_SHOWN: Final = 10
_SPAN: Final = re.compile(r"([0-9]{1,6})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SCHEME: Final = re.compile(r"(sqlite|files|postgresql|postgres|memory):")
_PATH: Final = "Write the path of a file, such as support.db or ./support"
_BOTH: Final = f"{_PATH}, or a URL, such as postgresql://user@host/database"


def store_url(text: str, *, servers: bool = True) -> str:
    """The URL of a store. A path is an existing file, ends in .db or contains a slash.

    Raises InvalidURL otherwise; the advice mentions servers only where one is accepted.
    """
    advice = _BOTH if servers else _PATH
    if "://" in text:
        return text
    if scheme := _SCHEME.match(text):
        reason = f"{scheme[0]} starts a URL, and // is missing after it"
        raise InvalidURL(text, reason, advice)
    if not text or "\x00" in text or not _is_path(text):
        raise InvalidURL(text, "it is neither a URL nor an existing file", advice)
    scheme_of_path = "files" if (Path(text) / META).is_file() else "sqlite"
    return f"{scheme_of_path}:///{quote(text)}"


def session_key(text: str) -> limpet.Key:
    """The key that `app/user/id` names. Raises InvalidInput where that is not clear."""
    parts = text.split("/")
    if len(parts) != 3:
        more = "A part with a slash in it needs --app, --user and --id" if len(parts) > 3 else ""
        raise InvalidInput(
            f"{text!r} does not name a session. Write it as app/user/id, such as support/ada/c1. "
            f"{more or 'limpet list STORE shows the sessions'}."
        )
    return limpet.Key(*parts)


def user_name(text: str) -> tuple[str, str]:
    """The app and the user that `app/user` names. Raises InvalidInput where that is not clear."""
    app, slash, user = text.partition("/")
    if not slash or "/" in user:
        raise InvalidInput(
            f"{text!r} does not name a user. Write it as app/user, such as support/ada, or pass "
            "--app and --user."
        )
    return app, user


def file_path(text: str) -> Path:
    """A path. Raises InvalidInput for a URL, and for the - that other programs take for a pipe."""
    if text == "-":
        raise InvalidInput("FILE is a path, and - is not one. For a file of that name write ./-.")
    if text.startswith("sqlite://"):
        raise InvalidInput(f"FILE is a path, not a URL. Write {sqlite_path(text)} instead.")
    if "://" in text:
        raise InvalidInput(
            f"FILE is a path, and {text.partition('://')[0]}:// starts a URL. "
            "Write the path of a file, such as monday.db."
        )
    return Path(text)


def label_values(options: list[str] | None) -> dict[str, str]:
    """Return what --label NAME=VALUE says, each name once. Raises InvalidInput."""
    labels: dict[str, str] = {}
    for option in options or ():
        name, equals, value = option.partition("=")
        if not equals:
            raise InvalidInput(f"--label takes NAME=VALUE, such as plan=gold, not {option!r}.")
        if labels.setdefault(name, value) != value:
            raise InvalidInput(
                f"--label asks for {name}={labels[name]} and for {option}, and a session has one "
                "value of a label. Pass one of the two."
            )
    return labels


def time_span(option: str, text: str) -> timedelta:
    """A length of time, such as 12h or 30d. Raises InvalidInput."""
    match = _SPAN.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{option} takes a span such as 12h or 30d, not {text!r}.")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def json_object(option: str, text: str | None) -> dict[str, Any]:
    """The JSON object in an option; empty without one. Raises InvalidInput."""
    try:
        return {} if text is None else msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidInput(f"{option} takes a JSON object, such as '{{\"n\": 1}}'.") from error


def json_or_text(text: str) -> Any:
    """The value that a text holds as JSON, or the text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):  # the session says why
        return text


def json_file(option: str, file: str) -> Any:
    """The JSON in a file, or with - in the input. Raises InvalidInput."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        return msgspec.json.decode(text.encode())
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidInput(f"{option} {file}: {reason}. Pass a file that holds JSON.") from error


async def refuse_unknown(lp: limpet.Limpet, app_name: str, *, deleted: bool = False) -> None:
    """Raise SessionNotFound for an app without sessions: probably a misspelled name."""
    if await _any_session(lp.each(app=check_app(app_name))):
        return
    if deleted and await _any_session(lp.each(app=app_name, deleted=True)):
        return
    apps = await apps_of(lp)
    here = f"this store has sessions of {shortened(apps)}" if apps else "this store has no sessions"
    raise SessionNotFound(f"of the app {app_name!r}", f"Check --app: {here}")


async def _any_session(heads: AsyncGenerator[Head, None]) -> bool:
    """True if there is one that the caller may see: a first page may have none, and others."""
    async with aclosing(heads):
        async for _ in heads:
            return True
    return False


async def refuse_unknown_user(lp: limpet.Limpet, app_name: str, user: str) -> None:
    """Raise SessionNotFound for a user of an app without sessions and without shared names."""
    if await _any_session(lp.each(app=app_name, user=user)):
        return
    names = await lp.names(app_name, user)
    if not any([name.startswith("user:") for name in names]):
        raise SessionNotFound(
            f"of the user {user!r} of the app {app_name!r}", "Check --family: limpet list shows it"
        )


async def apps_of(lp: limpet.Limpet, *, typed: bool = False) -> list[str]:
    """The apps that have sessions, or typed ones."""
    heads = lp.each(reverse=False)  # oldest first, which no write changes: each is met once
    return sorted({h.key.app async for h in heads if h.schema_version is not None or not typed})


def shortened(apps: list[str]) -> str:
    """The first few of them, and how many more there are."""
    more = len(apps) - _APPS_SHOWN
    return ", ".join(apps[:_APPS_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def imported_object(option: str, text: str) -> Any:
    """The object at `module:name`, imported from the working directory as `python -m` does.

    Raises InvalidInput with advice. A LimpetError from the module passes through.
    """
    where, colon, name = text.partition(":")
    parts = name.split(".")
    if not colon or not all(part.isidentifier() for part in [*where.split("."), *parts]):
        raise InvalidInput(
            f"{option} {text!r} is not module:name. Write it like myapp.module:name."
        )
    value: Any = _module(option, where)
    for part in parts:
        try:
            value = getattr(value, part)
        except AttributeError:
            raise InvalidInput(
                f"{option}: the module {where} has no {name!r}. Check the spelling of the name."
            ) from None
    return value


def imported_function(option: str, text: str) -> Any:
    """Return the imported object if it is callable. Raises InvalidInput."""
    value = imported_object(option, text)
    if not callable(value):
        raise InvalidInput(f"{option} {text!r} is not a function. Name a function.")
    return value


def _is_path(text: str) -> bool:
    return "/" in text or text.endswith(".db") or Path(text).exists()


def _module(option: str, name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except LimpetError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise InvalidInput(
                f"{option}: the module {error.name!r} was not found. Change to the directory that "
                "contains it, or install its package."
            ) from error
        raise _import_error(option, name, error) from error
    except (Exception, SystemExit) as error:
        raise _import_error(option, name, error) from error


def _import_error(option: str, name: str, error: BaseException) -> InvalidInput:
    """The module exists but raised: name the error and the line, since no traceback is shown."""
    return InvalidInput(
        f"{option}: the module {name} cannot be imported: {raised(error)}. "
        f"Fix it so that python -c 'import {name}' succeeds."
    )


def raised(error: BaseException) -> str:
    """An error of the user's own code, and the line that raised it."""
    message = " ".join(traceback.format_exception_only(error)[-1].split()).rstrip(".")
    return f"{message} ({_place(error)})"


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{Path(error.filename).name}, line {error.lineno}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}, line {last.lineno}"
