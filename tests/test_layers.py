"""Imports go one way, mailbox <- actors <- supervisor: also inside functions, for typing only, and by string."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

import pytest
from source_imports import PACKAGES, Import, imports, imports_of, modules


def wrong_way(name: str, found: Iterable[Import]) -> Iterator[str]:
    """What is wrong with the imports of the module `name`, a sentence each."""
    layer = PACKAGES.index(name.split(".")[1])
    for item in found:
        top, *rest = item.module.split(".")
        if top in PACKAGES and not item.candidate:
            yield f"line {item.line}: `{item.module}` is not this project's package, fencepost.{item.module} is"
        elif top == "fencepost" and rest and rest[0] in PACKAGES[layer + 1 :]:
            yield f"line {item.line}: {PACKAGES[layer]} is below {rest[0]} and must not import {item.module}"


CARRIERS = ("claim", "delivery_", "inbound_", "ladder", "pane_deliveries", "pump")
TERMINALS = {"curses", "pexpect", "ptyprocess", "pty", "readline", "subprocess", "termios", "tty"}


def test_10_10_nothing_that_carries_a_message_can_reach_a_terminal() -> None:
    """Whatever a delivery's own modules load, there is neither a terminal in it nor a program that has one."""
    known, reached = modules(), dict[str, str]()
    waiting = [(name, "a delivery") for name in known if name.rpartition(".")[2].startswith(CARRIERS)]
    while waiting:
        name, by = waiting.pop()
        if name not in reached:
            reached[name] = by
            found = imports_of(name, known[name]) if name in known else ()
            waiting += [(item.module, name) for item in found if not item.typing_only]
    assert {"fencepost.actors.delivery_seats", "fencepost.supervisor.pump", "fencepost.mailbox.claim_files"} < set(
        reached
    )
    assert {name: by for name, by in reached.items() if name in TERMINALS or ".launchers" in name} == {}


@pytest.mark.parametrize("way", ["send-keys", "paste-buffer", "load-buffer", "TIOCSTI"])
def test_10_10_no_module_knows_a_way_to_type(way: str) -> None:
    assert [name for name, path in modules().items() if way in path.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("name", modules())
def test_imports_go_one_way(name: str) -> None:
    assert list(wrong_way(name, imports_of(name, modules()[name]))) == []


READING = {"fencepost.supervisor", "fencepost.supervisor.overview", "fencepost.supervisor.pane_history"}
DRAWING = READING | {"fencepost.supervisor.words"}


def inner(name: str, found: Iterable[Import]) -> list[str]:
    """What a module of the bridge imports that a bridge of somebody else's would not (docs/bridge.md)."""
    draws, known = name.startswith("fencepost.supervisor.bridge.dashboard."), modules()
    ours = [item.module for item in found if item.module in known]
    return [
        module
        for module in ours
        if module not in (DRAWING if draws else READING)
        and not module.startswith(("fencepost.supervisor.bridge", *(["fencepost.mailbox."] if draws else [])))
    ]


def test_the_bridge_is_built_on_public_names() -> None:
    parts = {name: path for name, path in modules().items() if name.startswith("fencepost.supervisor.bridge")}
    assert len(parts) > 50
    assert {name: found for name, path in parts.items() if (found := inner(name, imports_of(name, path)))} == {}


def test_the_map_of_the_bridge_has_every_part_once_and_no_other() -> None:
    folder = modules()["fencepost.supervisor.bridge"].parent
    parts = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    story = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    mapped = re.findall(r"^ {8}(\w+)|; (\w+):", story, re.MULTILINE)
    assert sorted("".join(names) for names in mapped) == sorted(parts - {"__init__"})


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("fencepost.supervisor.bridge.bad", "from fencepost.mailbox.records import IntentRecord"),
        ("fencepost.supervisor.bridge.bad", "def late():\n    from fencepost.actors import messages"),
        ("fencepost.supervisor.bridge.bad", "from fencepost.supervisor.words import STAGES"),
        ("fencepost.supervisor.bridge.bad", "from fencepost.supervisor import words"),
        ("fencepost.supervisor.bridge.dashboard.bad", "from fencepost.supervisor.runtime import Runtime"),
        ("fencepost.supervisor.bridge.dashboard.bad", "from fencepost.actors.pane_state import CONFLICTED_STATES"),
    ],
)
def test_an_import_of_the_bridge_past_the_public_names_is_seen(name: str, source: str) -> None:
    assert inner(name, imports(ast.parse(source), name, is_package=False))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("fencepost.mailbox.bad", "import fencepost.actors.actor"),
        ("fencepost.mailbox.bad", "from fencepost import supervisor"),
        ("fencepost.mailbox.bad", "from fencepost.actors import messages as m"),
        ("fencepost.mailbox.bad", "from ..actors import messages"),
        ("fencepost.mailbox.bad", "from .. import supervisor"),
        ("fencepost.mailbox.stores.bad", "from ...supervisor.runtime import open_supervisor"),
        ("fencepost.actors.bad", "def late():\n    from fencepost.supervisor import options"),
        ("fencepost.actors.bad", "class A:\n    async def late(self):\n        import fencepost.supervisor"),
        ("fencepost.actors.bad", "if TYPE_CHECKING:\n    import fencepost.supervisor"),
        ("fencepost.actors.bad", "import typing as t\nif t.TYPE_CHECKING:\n    from ..supervisor import Pane"),
        ("fencepost.actors.bad", "from importlib import import_module\nimport_module('fencepost.supervisor.cli')"),
        ("fencepost.supervisor.bad", "import mailbox"),
        ("fencepost.supervisor.bad", "from mailbox.records import Record"),
    ],
)
def test_an_import_the_wrong_way_is_seen(name: str, source: str) -> None:
    assert list(wrong_way(name, imports(ast.parse(source), name, is_package=False)))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("fencepost.supervisor.good", "from fencepost.actors import messages\nfrom fencepost import mailbox"),
        ("fencepost.actors.good", "from ..mailbox import records\nfrom . import messages\nimport trio"),
        ("fencepost.mailbox.good", "'''The supervisor is fencepost.supervisor, says a docstring.'''"),
    ],
)
def test_an_import_the_right_way_is_let_be(name: str, source: str) -> None:
    assert not list(wrong_way(name, imports(ast.parse(source), name, is_package=False)))
