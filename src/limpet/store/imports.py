"""Imports of our own modules at first use: what the operating system refuses is an error of ours.

`import limpet` is light because most verbs load their modules when they are first called. In a
process without a free file descriptor that fails, and the caller gets StoreBusy, as for any other
file that cannot be opened; the same call succeeds once there is one. The finder stands before
Python's own, which does the work; modules of others pass through it only as imports of ours.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Final

from limpet.store.system import is_out_of_descriptors, of_system

_OURS: Final = "limpet."


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        with _translated():  # also what the module imports, of Python's own and of others
            super().exec_module(module)


class _Finder:
    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(_OURS):
            return None
        with _translated():  # it lists the directory
            spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def translate_imports() -> None:
    """Have every later import of a module of ours raise StoreBusy if no descriptor is free."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)  # a class will do: it has no state


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if not is_out_of_descriptors(error):
            raise
        raise of_system(error, "this process", "read") from error
