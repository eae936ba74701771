"""The program where its standard streams are full, closed or not read: an exit status of its own, and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner
from supervisor.stories import tell_all, world

from fencepost.supervisor import cli
from fencepost.supervisor.cli import operator_commands

MAIN = "from fencepost.supervisor.cli import main; main(prog_name='fencepost')"
PROGRAM = f'"{sys.executable}" -P -W error -c "{MAIN}"'


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('cli')}/store.db"

    async def main() -> None:
        async with world(url) as there:
            await tell_all(there)

    trio.run(main)
    return url


def shell(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line.replace("fencepost", PROGRAM, 1)],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        "check URL",
        "check URL --json",
        "status URL --json",
        "intents URL",
        "events URL",
        "hook-settings codex",
        "--help",
    ],
)
def test_output_that_is_not_taken_is_2(url: str, arguments: str) -> None:
    done = shell(f"fencepost {arguments.replace('URL', url)} > /dev/full")
    assert (done.returncode, done.stderr) == (2, "Error: [Errno 28] No space left on device\n")


def test_where_not_even_the_complaint_is_taken_it_is_2(url: str) -> None:
    assert shell(f"fencepost check {url} > /dev/full 2>&1").returncode == 2


@pytest.mark.parametrize("arguments", ["status URL", "check URL", "events URL", "intents URL --json", "--help"])
def test_what_a_closed_output_loses_is_told(url: str, arguments: str) -> None:
    done = shell(f"fencepost {arguments.replace('URL', url)} >&-")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "Error: [Errno 9] Bad file descriptor\n")
    assert shell(f"fencepost {arguments.replace('URL', url)} >&- 2>&-").returncode == 2


def test_a_closed_place_for_complaints_is_as_none(url: str) -> None:
    done = shell(f"fencepost check {url} 2>&-")
    assert (done.returncode, done.stdout) == (0, "no violations\n")


def test_a_closed_input_agrees_to_nothing(tmp_path: Path) -> None:
    done = shell(f"fencepost settle 7 x --approval ada --folder {tmp_path} <&-")
    assert (done.returncode, "add --yes" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


@pytest.mark.parametrize("arguments", ["check URL", "status URL", "events URL", "--help"])
def test_output_that_nobody_reads_is_141(url: str, arguments: str) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with subprocess.Popen(
        [sys.executable, "-P", "-W", "error", "-c", MAIN, *arguments.replace("URL", url).split()],
        stdout=writes,
        stderr=subprocess.PIPE,
        cwd="/",
    ) as process:
        os.close(writes)
        assert process.communicate()[1] == b""
    assert process.returncode == 141


@pytest.fixture
def interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def request(*_arguments: object, **_more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(operator_commands.Operator, "request", request)
    return None


@pytest.mark.usefixtures("interrupted")
def test_who_interrupts_a_delivery_is_told_its_id() -> None:
    stopped = CliRunner().invoke(cli.main, ["deliver", "p", "--text", "x", "--id", "the-id"])
    assert (stopped.exit_code, stopped.stdout) == (130, "")
    assert "Ask again how far it got with the same text and --id the-id" in stopped.stderr


@pytest.mark.usefixtures("interrupted")
def test_who_interrupts_a_start_is_told_what_may_have_begun() -> None:
    stopped = CliRunner().invoke(cli.main, ["run", "--no-serve", "--pane", "p", "--", "claude"])
    assert (stopped.exit_code, stopped.stdout) == (130, "")
    assert "`fencepost stop --pane p`" in stopped.stderr


@pytest.mark.usefixtures("interrupted")
def test_what_is_advised_after_an_interruption_asks_the_same_bridge() -> None:
    elsewhere = ("--folder", "my bridge")
    started = CliRunner().invoke(cli.main, ["run", "--no-serve", "--pane", "p", *elsewhere, "--", "claude"]).stderr
    assert "`fencepost status --folder 'my bridge'` tells" in started
    assert "`fencepost stop --pane p --folder 'my bridge'` ends it" in started
    delivered = CliRunner().invoke(cli.main, ["deliver", "p", "--text", "x", "--id", "the-id", *elsewhere]).stderr
    assert "with the same text, --folder 'my bridge' and --id the-id" in delivered


def test_an_interruption_while_the_commands_are_imported_is_no_traceback() -> None:
    interrupted = """
import sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "fencepost.supervisor.cli":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from fencepost.supervisor.start import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", interrupted], capture_output=True, text=True, check=False, cwd="/"
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_script_is_the_program() -> None:
    done = subprocess.run(
        [Path(sysconfig.get_path("scripts")) / "fencepost", "--help"], capture_output=True, check=True
    )
    assert done.stdout.startswith(b"Usage: fencepost ")
