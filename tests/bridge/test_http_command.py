"""`fencepost serve` as a process: its start, its end, its exit statuses, and what it keeps."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest
from bridge.http_clients import Program, UrllibTransport
from click.testing import CliRunner

from fencepost.mailbox import ClaimedSender
from fencepost.supervisor import Capabilities, Stop, StoreFault, cli
from fencepost.supervisor.bridge import command
from fencepost.supervisor.bridge.private_files import replace_private
from fencepost.supervisor.bridge.program import Harnesses


def poll(program, pane, token, wait) -> socket.socket:
    """A long poll over the fleet listener, sent and not yet answered."""
    host, _, port = program.where["fleet"].removeprefix("http://").rpartition(":")
    stream = socket.create_connection((host, int(port)), timeout=30)
    request = f"GET /seats/{pane}/events?wait={wait} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    stream.sendall(request.encode())
    return stream


def rest_of(stream) -> bytes:
    data = b""
    while more := stream.recv(65_536):
        data += more
    return data


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_in_the_middle_of_a_long_poll_answers_it_and_ends_with_0(number, tmp_path):
    with Program(tmp_path / "bridge") as program:
        program.started()
        link = program.operate("PUT", "operator/seats/pane-1", {"version": 1})["link"]
        assert json.loads((tmp_path / "bridge" / "endpoints.json").read_text()) == {
            "version": 1,
            **program.where,
            "store": f"sqlite:///{tmp_path}/bridge/bridge.db",
        }
        with poll(program, "pane-1", link, 30) as stream:
            # The poll came first, and this one's answer comes from the pane: the poll is under way by then.
            transport = UrllibTransport(tmp_path / "bridge" / "endpoints.json", "pane-1", link)
            assert transport.read_binding().status == 200
            program.process.send_signal(number)
            answer = rest_of(stream)
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b'{"version":1,"events":[]}')
        status, errors = program.ended()
        assert (status, signal.Signals(number).name in errors) == (0, True)
        assert link not in errors
    assert not (tmp_path / "bridge" / "endpoints.json").exists()
    assert not (tmp_path / "bridge" / "local.sock").exists()


def test_what_it_keeps_outlives_it_and_a_sender_follows_it(tmp_path):
    folder = tmp_path / "bridge"
    with Program(folder) as program:
        program.started()
        token = (folder / "operator.token").read_text()
        link = program.operate("PUT", "operator/seats/pane-1", {"version": 1})["link"]
        transport = UrllibTransport(folder / "endpoints.json", "pane-1", link)
        first = transport.base
        program.process.kill()
        assert program.ended()[0] == -signal.SIGKILL
    assert (folder / "local.sock").exists()  # nobody was there to take it away
    with Program(folder) as program:
        program.started()
        assert (folder / "operator.token").read_text() == token
        sender = ClaimedSender(tmp_path / "state", ("/run/x.sock", "pane-1"), transport)
        report = sender.send("hello")
        assert (report.stop, "binding" in str(report.detail)) == (Stop.UNAVAILABLE, True)  # it was asked
        assert transport.base == program.where["fleet"] != first
        program.process.terminate()
        assert program.ended()[0] == 0


@pytest.mark.slow
def test_two_bridges_cannot_serve_from_one_folder(tmp_path):
    folder = tmp_path / "bridge"
    with Program(folder) as first:
        first.started()
        with Program(folder, "--store", f"sqlite:///{tmp_path}/another.db") as second:
            status, errors = second.ended()
            assert (status, "another bridge" in errors) == (2, True)
        with Program(tmp_path / "third", "--store", f"sqlite:///{folder}/bridge.db") as third:
            status, errors = third.ended()
            assert (status, "owned by" in errors, errors.count("\n")) == (2, True, 1)
        assert first.operate("GET", "openapi.json")["openapi"] == "3.1.0"
        assert (folder / "endpoints.json").exists()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--operator", "0.0.0.0:0"], "loopback"),
        (["--operator", "localhost:0"], "loopback"),
        (["--operator", "127.0.0.1"], "ADDRESS:PORT"),
        (["--fleet", "127.0.0.1:70000"], "ADDRESS:PORT"),
        (["--fleet", "192.0.2.1:0"], "fleet listener"),
        (["--store", "nonsense://x"], "nonsense"),
        (["--grace", "-1"], "--grace"),
    ],
)
def test_what_cannot_start_ends_with_2_and_says_why(options, why, tmp_path):
    status, errors = not_started(tmp_path / "bridge", *options)
    assert (status, why in errors) == (2, True)


def not_started(folder, *options) -> tuple[int, str]:
    """The exit status and the complaint of a bridge that cannot start; in this process, which is quicker."""
    result = CliRunner().invoke(cli.main, ["serve", "--folder", str(folder), *options])
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.stdout == ""
    return result.exit_code, result.stderr


def test_an_unsafe_folder_or_token_is_refused(tmp_path):
    (tmp_path / "open").mkdir(mode=0o755)
    assert "chmod 700" in not_started(tmp_path / "open")[1]
    folder = tmp_path / "bridge"
    folder.mkdir(mode=0o700)
    (folder / "operator.token").write_text("x" * 43)
    (folder / "operator.token").chmod(0o644)
    status, errors = not_started(folder)
    assert (status, "chmod 600" in errors) == (2, True)
    (folder / "operator.token").chmod(0o600)
    replace_private(folder / "seats.json", "{")
    status, errors = not_started(folder)
    assert (status, "damaged" in errors) == (2, True)


@pytest.mark.parametrize("words", ["", "the store failed: "])
def test_a_store_that_fails_ends_the_bridge_with_1(tmp_path, words):
    """The fault is one that an adapter meets; whoever restarts the bridge gets what the store has."""

    class Failing:
        harness = "failing"

        def capabilities(self, version):
            return Capabilities()

        async def on_hook(self, *_):
            raise StoreFault(f"{words}the disk is \x1b full")

    folder, said, complaints, answers = tmp_path / "bridge", [], [], []

    def ask():
        where = dict(line.split(" ", 1) for line in said[0].splitlines())
        token = (folder / "operator.token").read_text().strip()
        hook = {"version": 1, "harness": "failing", "incarnation_id": "i", "event": {}}
        request = urllib.request.Request(
            f"{where['operator']}/seats/x/hook", json.dumps(hook).encode(), {"Authorization": f"Bearer {token}"}
        )
        try:
            urllib.request.urlopen(request, timeout=30)
        except urllib.error.HTTPError as error:
            answers.append(error.code)

    client = threading.Thread(target=ask)

    def say(text):
        said.append(text)
        client.start()

    settings = command.Settings(folder=folder, harnesses=Harnesses(adapters=(lambda _gate: Failing(),)))
    assert command.run(settings, say, complaints.append) == 1
    client.join()
    assert (answers, complaints) == ([503], ["the store failed: the disk is \x1b full"])


@pytest.mark.slow
def test_a_second_signal_cuts_what_is_under_way_and_ends_with_1(tmp_path):
    with Program(tmp_path / "bridge", "--grace", "600") as program:
        program.started()
        host, _, port = program.where["operator"].removeprefix("http://").rpartition(":")
        token = (tmp_path / "bridge" / "operator.token").read_text().strip()
        with socket.create_connection((host, int(port)), timeout=30) as stream:
            top = f"PUT /operator/seats/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
            stream.sendall(f"{top}Expect: 100-continue\r\nContent-Length: 9\r\n\r\n".encode())
            assert stream.recv(65_536).startswith(b"HTTP/1.1 100")  # so the handler waits for the body
            program.process.terminate()
            line = program.process.stderr.readline()
            while "SIGTERM" not in line:
                line = program.process.stderr.readline()
            program.process.terminate()
            assert rest_of(stream).startswith(b"HTTP/1.1 503")
        assert program.ended()[0] == 1


@pytest.mark.slow
def test_the_log_repeats_no_secret_and_nothing_a_terminal_would_obey(tmp_path):
    with Program(tmp_path / "bridge") as program:
        program.started()
        for headers in ({"Authorization": "Bearer s3cret-\x07"}, {"Authorization": "Bearer s3cret", "X": "\x9b2J"}):
            request = urllib.request.Request(f"{program.where['fleet']}/seats/%1b%5b2J/messages", headers=headers)
            with pytest.raises(urllib.error.HTTPError):
                urllib.request.urlopen(request, timeout=30)
        program.process.terminate()
        status, errors = program.ended()
    assert status == 0
    assert "s3cret" not in errors
    assert all(line.isascii() and line.isprintable() for line in errors.splitlines())


def test_without_the_extra_the_base_install_says_what_to_install(tmp_path):
    program = f"""
import sys
sys.modules.update(dict.fromkeys(("starlette", "starlette.responses", "hypercorn", "h11", "httpx")))
from fencepost.supervisor import cli
cli.main(["serve", "--folder", {str(tmp_path / "bridge")!r}])
"""
    run = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False)
    assert (run.returncode, "pip install '.[bridge]'" in run.stderr) == (2, True)
    assert not (tmp_path / "bridge").exists()


def test_nothing_but_serve_loads_the_extra():
    program = (
        "import fencepost.supervisor.cli, sys; print(*sorted({'starlette', 'hypercorn', 'h11'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_the_help_tells_the_exit_statuses():
    told = CliRunner().invoke(cli.main, ["serve", "--help"]).stdout
    assert "Exit status: 0" in told
