"""Imports the user's objects that the command line names as `module:name`."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from limpet.errors import InvalidInput, LimpetError
from limpet.model import described


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
    found: Any = _module(option, where)
    for part in parts:
        try:
            found = getattr(found, part)
        except AttributeError:
            raise InvalidInput(
                f"{option}: the module {where} has no {name!r}. Check the spelling of the name."
            ) from None
    return found


def imported_function(option: str, text: str) -> Any:
    """The same, if it can be called. Raises InvalidInput."""
    found = imported_object(option, text)
    if not callable(found):
        raise InvalidInput(f"{option} {text!r} is {described(found)}. Name a function.")
    return found


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
        raise _broken(option, name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(option, name, error) from error


def _broken(option: str, name: str, error: BaseException) -> InvalidInput:
    """The module exists but raised: name the error and the line, since no traceback is shown."""
    told = " ".join(traceback.format_exception_only(error)[-1].split()).rstrip(".")
    return InvalidInput(
        f"{option}: the module {name} cannot be imported: {told} ({_place(error)}). Fix it so that "
        f"python -c 'import {name}' succeeds."
    )


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{Path(error.filename).name}, line {error.lineno}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}, line {last.lineno}"
