"""Objects of the user's own, by the names that are given on the command line: `module:name`."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from limpet.errors import InvalidInput, LimpetError


def named(option: str, text: str) -> Any:
    """What `module:name` names, imported as `python -m` would from the working directory.

    Raises InvalidInput with what to do; an error of ours that the module raises is passed on.
    """
    where, colon, name = text.partition(":")
    parts = name.split(".")
    if not colon or not all(part.isidentifier() for part in [*where.split("."), *parts]):
        raise InvalidInput(
            f"{option} {text!r} names nothing. Write module:name, as in myapp.state:MIGRATIONS."
        )
    found: Any = _module(option, where)
    for part in parts:
        try:
            found = getattr(found, part)
        except AttributeError:
            raise InvalidInput(
                f"{option}: the module {where} has no {name!r}. Give the name of what it defines, "
                "spelled as it is there."
            ) from None
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
                f"{option}: there is no module {error.name!r} here or among the installed ones. "
                "Go to the directory that it is in, or install its package."
            ) from error
        raise _broken(option, name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(option, name, error) from error


def _broken(option: str, name: str, error: BaseException) -> InvalidInput:
    """The module is there and raised: say what and where, since no traceback is shown."""
    told = " ".join(traceback.format_exception_only(error)[-1].split()).rstrip(".")
    return InvalidInput(
        f"{option}: the module {name} cannot be imported: {told} ({_place(error)}). Correct it "
        f"until python -c 'import {name}' succeeds."
    )


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{Path(error.filename).name}, line {error.lineno}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}, line {last.lineno}"
