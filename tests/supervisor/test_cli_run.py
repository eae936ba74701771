"""What `fencepost run` says of an answer of the bridge, which is not there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from fencepost.supervisor import cli
from fencepost.supervisor.bridge.client import Operator
from fencepost.supervisor.cli import run_command


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    def run(*arguments: str, **answer: object) -> Result:
        started = {"pid": 7, "incarnation_id": "i-1", "startup_delivery_id": None, "attach": None, **answer}
        monkeypatch.setattr(Operator, "request", lambda *_, **__: started)
        return CliRunner().invoke(cli.main, ["run", "--no-serve", "--pane", "left", *arguments])

    return run


def test_where_tmux_is_missing_it_says_what_to_install(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_command, "on_terminal", lambda: True)
    monkeypatch.setenv("PATH", "/nowhere")
    told = run(attach=["tmux", "attach"])
    assert (told.exit_code, told.stdout) == (2, "pane left: incarnation i-1\n")
    assert told.stderr == "Error: there is no tmux in PATH: install tmux to look at the pane; its agent goes on\n"


def test_a_prompt_that_is_kept_is_told_and_no_other(run) -> None:
    owed = {"startup_delivery_id": "d-1"}
    assert "told first what moved while it was away.\n" in run("--detach", "--", "claude", **owed).stdout
    asked = run("--detach", "--prompt", "go", "--", "claude", **owed, prompt_kept=True)
    assert "told first what moved while it was away.\nA prompt was not said: it is kept" in asked.stdout
    said = run("--detach", "--prompt", "go", "--", "claude", prompt_kept=False).stdout
    assert "told first" not in said
    assert "prompt" not in said


@pytest.mark.parametrize(
    ("flags", "path", "told"),
    [
        ([], "operator/panes/left/process", "pane left: ended\n"),
        (["--forget"], "operator/panes/left/process?forget=true", "pane left: ended, and nothing is kept of it\n"),
    ],
)
def test_a_pane_is_forgotten_only_by_who_says_so(monkeypatch: pytest.MonkeyPatch, flags, path, told) -> None:
    asked: list[tuple[str, str]] = []

    def request(_: Operator, method: str, path: str, **__: object) -> dict[str, object]:
        asked.append((method, path))
        return {"ended": True, "forgotten": bool(flags)}

    monkeypatch.setattr(Operator, "request", request)
    done = CliRunner().invoke(cli.main, ["stop", "--pane", "left", *flags])
    assert (done.stdout, done.exit_code, asked) == (told, 0, [("DELETE", path)])
