"""Lazy exports: a package lists its public names once, and loads each at its first use.

Most processes never compare, merge or migrate, and all of them start. Type checkers do not follow a
table: the same names stand under TYPE_CHECKING in the package, and a test compares the two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

from limpet import errors
from limpet.errors import ExtraMissing

# Packages that an exported name may need, and the extra that brings each.
_EXTRAS = {
    "cryptography": "security",
    "numpy": "analytics",
    "pydantic": "state",
    "pydantic_core": "state",
}


def lazy_exports(
    package: str,
    homes: Mapping[str, str],
    *,
    own: tuple[str, ...] = (),
    unlisted: Mapping[str, str] | None = None,
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package.

    `homes` maps each module to the names to take from it, `own` are those that the package defines.
    `import *` leaves out what is `unlisted`: it needs the packages of another extra.
    """
    places = {name: module for module, names in homes.items() for name in names.split()}
    namespace, exported = vars(sys.modules[package]), sorted({*places, *own})
    for module, names in (unlisted or {}).items():
        places |= dict.fromkeys(names.split(), module)

    def load(name: str) -> object:
        if name not in places:
            known = isinstance(getattr(errors, name, None), type)
            where = f". It is limpet.errors.{name}" if known else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{where}")
        module = places[name]
        try:
            home = import_module(module)
            value: object
            if module == package or not hasattr(home, name):  # a module of its own
                value = import_module(f"{module}.{name}")
            else:
                value = getattr(home, name)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing not in _EXTRAS:
                raise
            raise ExtraMissing(missing.removesuffix("_core"), _EXTRAS[missing]) from error
        namespace[name] = value
        return value

    def complete() -> list[str]:
        return sorted({*places, *own})  # not what the package imports for itself

    return load, complete, exported
