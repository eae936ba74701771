"""Values that no command takes: a sentence that shows the value escaped, exit status 2, and nobody is asked."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from fencepost.supervisor import cli
from fencepost.supervisor.bridge import background, command
from fencepost.supervisor.bridge.client import Operator

MOVED = ("--new", "--from", "a", "--to", "b", "--classification-op", "c", "--trigger-op", "t")
NOT_TEXT = "\udcff"
"""What Python makes of an argument's byte that is no text."""
TOO_LARGE = "9223372036854775808"
"""The first number that a store cannot hold."""


@pytest.fixture(autouse=True)
def nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def request(*_: object, **__: object) -> None:
        raise AssertionError("a bridge was asked, or started")

    monkeypatch.setattr(Operator, "request", request)
    monkeypatch.setattr(command, "run", request)
    monkeypatch.setattr(background, "ensure_served", request)


def complaint(*arguments: str) -> str:
    done = CliRunner().invoke(cli.main, arguments, prog_name="fencepost")
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert all(line.isprintable() for line in done.stderr.splitlines())
    return done.stderr


@pytest.mark.parametrize("name", ["", NOT_TEXT, "p\n", "é", "x" * 257])
@pytest.mark.parametrize(
    "arguments",
    [
        ("detect", "PANE", *MOVED),
        ("deliver", "PANE", "--text", "a"),
        ("settle", "PANE", "d", "--approval", "ada", "--yes"),
        ("rearm", "PANE", "i", "--yes"),
        ("run", "--pane", "PANE", "--", "claude"),
        ("stop", "--pane", "PANE"),
        ("serve", "--head", "PANE"),
    ],
)
def test_a_pane_has_a_name_of_printable_ascii(arguments: tuple[str, ...], name: str) -> None:
    said = complaint(*(name if one == "PANE" else one for one in arguments))
    assert "it must be printable ASCII of 1 to 256 characters" in said
    assert ascii(name)[:90] in said or repr(name)[:90] in said


@pytest.mark.parametrize("name", ["events", "dead-letters"])
def test_a_number_that_no_store_can_hold_is_none_to_go_on_after(name: str) -> None:
    assert f"{TOO_LARGE} is not in the range" in complaint(name, "memory://none", "--after", TOO_LARGE)


@pytest.mark.parametrize(
    "arguments",
    [
        ("deliver", "left", "--text", "x", "--wait"),
        ("serve", "--reconcile-timeout"),
        ("serve", "--stop-grace"),
        ("serve", "--head-reply"),
        ("serve", "--grace"),
    ],
)
def test_what_is_not_a_number_is_no_time(arguments: tuple[str, ...]) -> None:
    assert "nan is no time" in complaint(*arguments, "nan")


def test_a_harness_that_there_is_not_is_told_before_a_bridge_is_started() -> None:
    said = complaint("run", "--pane", "left", "--harness", "foo", "--", "claude")
    assert "'foo' is not one of 'claude-code', 'codex', 'opencode'" in said


def test_a_base_that_stays_has_not_moved() -> None:
    moved = [{"b": "same\x1b", "a": "same\x1b"}.get(one, one) for one in MOVED]
    assert "--from and --to are both 'same\\x1b': no base moved" in complaint("detect", "left", *moved)
