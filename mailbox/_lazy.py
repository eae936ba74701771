"""Exports that cost nothing until they are used (PEP 562).

A package's `__init__` hands `lazy_exports` its table of exports, module by module, and gets the three names that make
the package resolve them.  Importing the package then loads no module of it; the first use of a name loads the one
module that has it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

__all__ = ["lazy_exports"]


def lazy_exports(
    package: str, table: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for `package`.

    `table` maps a module to the names it contributes; listed under `package` itself, a name is one of its modules.
    """
    module_of = {name: module for module, names in table.items() for name in names}
    if len(module_of) != sum(map(len, table.values())):
        raise ImportError(f"{package} exports a name twice: {table}")

    def __getattr__(name: str) -> object:  # noqa: N807 - it becomes the package's
        module = module_of.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        if module == package:
            value: object = import_module(f"{package}.{name}")
        else:
            value = getattr(import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:  # noqa: N807
        return sorted(module_of.keys() | vars(sys.modules[package]).keys())

    return __getattr__, __dir__, sorted(module_of)
