"""The packages export lazily: each name is there, is typed, and costs only the module that has it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter

import pytest
from source_imports import modules

import fencepost.actors
import fencepost.mailbox
import fencepost.supervisor
from fencepost.mailbox._lazy import lazy_exports

TABLES = {package.__name__: package._EXPORTS for package in (fencepost.mailbox, fencepost.actors, fencepost.supervisor)}
ALL = {package: vars(sys.modules[package])["__all__"] for package in TABLES}  # made at run time, so unknown to checkers
NAMES = [
    (package, module, name) for package, table in TABLES.items() for module, names in table.items() for name in names
]


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter loads for `statement`."""
    program = f"import sys\nbefore = set(sys.modules)\n{statement}\nprint(*sorted(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-I", "-c", program], check=True, capture_output=True, text=True)
    return set(run.stdout.split())


@pytest.mark.parametrize(("package", "module", "name"), NAMES)
def test_every_name_resolves(package: str, module: str, name: str) -> None:
    home = f"{package}.{name}" if module == package else module
    if home not in modules():
        pytest.skip(f"there is no {home}")
    value = getattr(sys.modules[package], name)
    assert value is getattr(fencepost.supervisor, name)
    assert name in dir(sys.modules[package])
    if isinstance(value, type):
        assert value.__name__ == name


def test_the_supervisor_exports_every_public_name_once() -> None:
    counted = Counter(name for _, _, name in NAMES)
    assert ALL["fencepost.supervisor"] == sorted(counted)
    assert set(counted.values()) == {1}


@pytest.mark.parametrize("package", TABLES)
def test_type_checkers_are_told_the_same_table(package: str) -> None:
    tree = ast.parse(modules()[package].read_text(encoding="utf-8"))
    branch = next(node for node in tree.body if isinstance(node, ast.If))
    told = {
        (statement.module, alias.asname)
        for statement in branch.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
        if alias.name != "*"
    }
    assert told == {(module, name) for module, names in TABLES[package].items() for name in names}


@pytest.mark.parametrize("package", TABLES)
def test_a_package_by_itself_loads_only_the_standard_library(package: str) -> None:
    fencepost_modules = {name for name in loaded_by(f"import {package}") if name.startswith("fencepost.")}
    assert fencepost_modules <= {*TABLES, "fencepost.mailbox._lazy"}
    others = loaded_by(f"import {package}") - fencepost_modules - {"fencepost"}
    assert {name.split(".")[0] for name in others} <= sys.stdlib_module_names


def test_a_name_that_needs_only_the_standard_library_loads_nothing_else() -> None:
    loaded = loaded_by("from fencepost.mailbox import StoreFault, FencepostError")
    assert "fencepost.mailbox.errors" in loaded
    assert {name.split(".")[0] for name in loaded} <= sys.stdlib_module_names | {"fencepost"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing_like_it'"):
        getattr(fencepost.mailbox, "nothing_like_it")  # noqa: B009
    with pytest.raises(ImportError, match="nothing_like_it"):
        exec("from fencepost.mailbox import nothing_like_it")


def test_a_module_is_no_less_importable_for_not_being_exported() -> None:
    from fencepost.mailbox import errors

    assert errors.StoreFault is fencepost.mailbox.StoreFault


def test_a_star_import_gets_the_whole_table() -> None:
    present = {name for package, module, name in NAMES if package == "fencepost.mailbox" and module in modules()}
    if present < set(ALL["fencepost.mailbox"]):
        pytest.skip("a module is missing")
    namespace: dict[str, object] = {}
    exec("from fencepost.mailbox import *", namespace)
    assert set(ALL["fencepost.mailbox"]) <= namespace.keys()


def test_a_table_that_exports_a_name_twice_is_refused() -> None:
    with pytest.raises(ImportError, match="twice"):
        lazy_exports("fencepost.mailbox", {"a": ("one", "two"), "b": ("two",)})
