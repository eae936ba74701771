"""The pure files know no event loop, no store, no clock and no chance: time and ids come in as arguments.

A pure file may import the modules below, other pure files, and for typing only any module of fencepost.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator

import pytest
from source_imports import Import, imports, imports_of, modules

PURE = {
    "fencepost.actors.boundary",
    "fencepost.actors.calls",
    "fencepost.actors.decision",
    "fencepost.actors.delivery_calls",
    "fencepost.actors.delivery_messages",
    "fencepost.actors.delivery_state",
    "fencepost.actors.inbound_state",
    "fencepost.actors.incarnation_state",
    "fencepost.actors.intent_changes",
    "fencepost.actors.intent_events",
    "fencepost.actors.intent_news",
    "fencepost.actors.intent_state",
    "fencepost.actors.intent_verdicts",
    "fencepost.actors.intent_view",
    "fencepost.actors.messages",
    "fencepost.actors.pane_detection",
    "fencepost.actors.pane_outcome",
    "fencepost.actors.pane_reports",
    "fencepost.actors.pane_resolution",
    "fencepost.actors.pane_state",
    "fencepost.actors.tool_calls",
    "fencepost.actors.tool_messages",
    "fencepost.actors.tool_plan",
    "fencepost.actors.tool_results",
    "fencepost.actors.tool_state",
    "fencepost.actors.tool_writes",
    "fencepost.mailbox.address",
    "fencepost.mailbox.claim",
    "fencepost.mailbox.claim_record",
    "fencepost.mailbox.delivery_ids",
    "fencepost.mailbox.delivery_records",
    "fencepost.mailbox.errors",
    "fencepost.mailbox.incarnation_records",
    "fencepost.mailbox.intent_records",
    "fencepost.mailbox.ladder",
    "fencepost.mailbox.mutation",
    "fencepost.mailbox.query",
    "fencepost.mailbox.storable",
    "fencepost.mailbox.text",
    "fencepost.mailbox.record",
    "fencepost.mailbox.records",
    "fencepost.mailbox.strict_json",
    "fencepost.mailbox.tool_records",
    "fencepost.supervisor.bridge.adapters.claude_chain",
    "fencepost.supervisor.bridge.adapters.claude_turns",
    "fencepost.supervisor.bridge.pieces",
    "fencepost.supervisor.fence",
    "fencepost.supervisor.incarnation_state",
    "fencepost.supervisor.pump_state",
    "fencepost.supervisor.restart_policy",
}
MUST_EXIST = {
    "fencepost.actors.intent_state",
    "fencepost.actors.pane_state",
    "fencepost.mailbox.address",
    "fencepost.mailbox.mutation",
    "fencepost.mailbox.records",
}
# Nothing here touches the world or depends on more than its arguments.  The packages' `__init__` load nothing by
# themselves (tests/test_exports.py).
HARMLESS = {
    "__future__", "abc", "attr", "attrs", "base64", "binascii", "bisect", "collections", "copy", "dataclasses", "enum",
    "functools", "hashlib", "heapq", "html", "inspect", "itertools", "json", "keyword", "math", "operator", "orjson",
    "re", "string", "struct", "textwrap", "types", "typing", "typing_extensions", "unicodedata",
}  # fmt: skip
PACKAGE_INITS = {"fencepost", "fencepost.mailbox", "fencepost.actors", "fencepost.supervisor"}
BUILTINS_THAT_REACH_OUT = {"__import__", "breakpoint", "compile", "eval", "exec", "input", "open", "print"}

PRESENT = sorted(PURE & modules().keys())


def impurities(name: str, tree: ast.Module, found: Iterable[Import], existing: Iterable[str]) -> Iterator[str]:
    """What makes the module impure, a sentence each.  `existing` are the modules of fencepost that there are."""
    for item in found:
        if item.module.split(".")[0] != "fencepost":
            if not item.candidate and item.module.split(".")[0] not in HARMLESS:
                yield f"{name} line {item.line}: imports {item.module}"
        elif not item.typing_only and item.module in existing and item.module not in PURE | PACKAGE_INITS:
            yield f"{name} line {item.line}: imports {item.module}, which is not among the pure files"
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=called)) if called in BUILTINS_THAT_REACH_OUT:
                yield f"{name} line {node.lineno}: calls {called}()"
            case ast.AsyncFunctionDef() if not is_stub(node):
                yield f"{name} line {node.lineno}: {node.name} is async, and a pure file waits for nothing"
            case _:
                pass


def is_stub(function: ast.AsyncFunctionDef) -> bool:
    """Whether it only declares a protocol's method: a docstring, `...`, or both."""
    return all(isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) for part in function.body)


def names_through_init(found: Iterable[Import]) -> Iterator[str]:
    """Names taken from a package's `__init__`, which would resolve to who knows which module."""
    for item in found:
        package, _, leaf = item.module.rpartition(".")
        if item.candidate and package in PACKAGE_INITS - {"fencepost"} and item.module not in modules():
            yield f"line {item.line}: take {leaf} from the module that defines it, not through {package}"


@pytest.mark.parametrize("name", sorted(MUST_EXIST))
def test_there_is_such_a_file(name: str) -> None:
    assert name in modules()


@pytest.mark.parametrize("name", PRESENT)
def test_pure_files_import_only_what_is_pure(name: str) -> None:
    path = modules()[name]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = list(imports_of(name, path))
    assert list(impurities(name, tree, found, modules())) == []
    assert list(names_through_init(found)) == []


def test_loading_every_pure_file_loads_no_loop_and_no_store() -> None:
    program = f"""
import importlib, sys
for name in {PRESENT}:
    importlib.import_module(name)
unwanted = {{"aiosqlite", "asyncio", "cattrs", "psycopg", "random", "sniffio", "sqlite3", "trio"}}
print(*sorted(unwanted & sys.modules.keys()))
"""
    run = subprocess.run([sys.executable, "-I", "-c", program], check=True, capture_output=True, text=True)
    assert run.stdout.split() == []


@pytest.mark.parametrize(
    "source",
    [
        "import trio",
        "import time",
        "from time import monotonic",
        "import os.path",
        "from uuid import uuid4",
        "def late():\n    import random",
        "def late():\n    from sqlite3 import connect",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import trio",
        "from fencepost.mailbox import line",
        "from fencepost.mailbox.line import MutationLine",
        "from . import line",
        "import fencepost.mailbox.ports",
        "def save():\n    open('x', 'w')",
        "print('hello')",
        "async def wait(): await other()",
    ],
)
def test_an_impure_file_is_seen(source: str) -> None:
    name, tree = "fencepost.mailbox.bad", ast.parse(source)
    existing = {"fencepost.mailbox.line", "fencepost.mailbox.ports"}
    assert list(impurities(name, tree, imports(tree, name, is_package=False), existing))


@pytest.mark.parametrize(
    "source",
    [
        "from attrs import frozen\nfrom collections.abc import Mapping\nimport hashlib",
        "from fencepost.mailbox import records\nfrom fencepost.mailbox.errors import StoreFault",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fencepost.mailbox.ports import Clock",
        "class P(Protocol):\n    async def ask(self) -> int:\n        '''Ask.'''\n        ...",
    ],
)
def test_a_pure_file_is_let_be(source: str) -> None:
    name, tree = "fencepost.mailbox.good", ast.parse(source)
    existing = {"fencepost.mailbox.ports", "fencepost.mailbox.records", "fencepost.mailbox.errors"}
    assert not list(impurities(name, tree, imports(tree, name, is_package=False), existing))


def test_a_name_taken_through_a_package_is_seen() -> None:
    tree = ast.parse("from fencepost.mailbox import Clock")
    assert list(names_through_init(imports(tree, "fencepost.actors.bad", is_package=False)))
