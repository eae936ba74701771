"""The channel program as a server: what a harness may write to it, what its tools say, and that nothing kills it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from bridge.channel_processes import channel, proxied
from bridge.http_world import OURS, served, until, world
from hypothesis import given, strategies as st

from fencepost.mailbox import ClaimedSender, SendReport, Stage, Stop
from fencepost.supervisor.bridge import channel as program
from fencepost.supervisor.bridge.channel_link import Fleet, Local
from fencepost.supervisor.bridge.channel_server import CALLS_MAX, PROTOCOLS, Server
from fencepost.supervisor.bridge.channel_stdio import LINE_BYTES_MAX, LineReader, LineTooLong, Output
from fencepost.supervisor.bridge.channel_tools import REPORTS_MAX, Outbox, Tools

NOWHERE = {"FENCEPOST_PANE": OURS, "FENCEPOST_SOCKET": "/nowhere/local.sock"}


def local(path) -> dict[str, str]:
    return {"FENCEPOST_PANE": OURS, "FENCEPOST_SOCKET": str(path)}


# -- the protocol ------------------------------------------------------------------------------------------------------


async def test_the_handshake_and_the_list_of_tools():
    async with channel(NOWHERE) as ours:
        for asked in (*PROTOCOLS, "2099-01-01", None, ["x"]):
            said = (await ours.ask("initialize", protocolVersion=asked))["result"]
            assert said["protocolVersion"] == (asked if asked in PROTOCOLS else PROTOCOLS[0])
            assert said["serverInfo"]["name"] == "fencepost"
            assert said["capabilities"]["experimental"] == {"claude/channel": {}}
        listed = (await ours.ask("tools/list"))["result"]["tools"]
        assert [tool["name"] for tool in listed] == ["send_message", "delivery_status"]
        assert all(tool["inputSchema"]["type"] == "object" for tool in listed)
        assert await ours.ended() == (0, b"", "")


@pytest.mark.parametrize(
    ("line", "code", "asked"),
    [
        (b"{", -32700, None),
        (b"\xff\xfe", -32700, None),
        (b"[]", -32700, None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32700, None),
        (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}', -32700, None),
        (b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}', -32700, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b"[" * 5_000 + b"]" * 5_000 + b"}", -32700, None),
        (b'{"jsonrpc":"2.0","id":' + b"9" * 5_000 + b',"method":"ping"}', -32700, None),
        (b"{}", -32600, None),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600, None),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600, 1),
        (b'{"id":"a","method":"ping"}', -32600, "a"),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600, 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"resources/list"}', -32601, 1),
        (b'{"jsonrpc":"2.0","id":"\\ud800","method":"no"}', -32601, "\ud800"),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}', -32602, 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}', -32602, 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"rm","arguments":{}}}', -32602, 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"send_message"}}', -32602, 1),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"send_message","arguments":7}}', -32602, 1),
    ],
)
async def test_what_is_no_request_is_told_so_and_the_next_is_answered(line, code, asked):
    async with channel(NOWHERE) as ours:
        await ours.write(line + b"\n")
        said = await ours.message()
        assert (said["error"]["code"], said["id"]) == (code, asked)
        assert (await ours.ask("ping"))["result"] == {}
        assert await ours.ended() == (0, b"", "")


async def test_what_asks_nothing_is_answered_with_nothing():
    async with channel(NOWHERE) as ours:
        for line in (
            b"",
            b"  \r",
            b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}',
            b'{"jsonrpc":"2.0","method":"no/such"}',
            b'{"jsonrpc":"2.0","id":1,"result":{}}',
            b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no"}}',
        ):
            await ours.write(line + b"\n")
        assert (await ours.ask("ping"))["result"] == {}  # which is the first thing it says
        await ours.write(b'{"jsonrpc":"2.0","id":9,"method":"ping"}')  # a line without an end is none
        assert await ours.ended() == (0, b"", "")


async def test_a_line_without_bounds_is_passed_over():
    async with channel(NOWHERE) as ours:
        for _ in range(3):
            await ours.write(b"x" * LINE_BYTES_MAX)
        await ours.write(b"x\n")
        assert (await ours.message())["error"]["code"] == -32700
        assert (await ours.ask("ping"))["result"] == {}
        memory = int(next(line for line in status_of(ours) if line.startswith("VmHWM")).split()[1])
        assert memory < 120_000  # kB: it held one bound, not three
        assert await ours.ended() == (0, b"", "")


def status_of(ours) -> list[str]:
    return Path(f"/proc/{ours.process.pid}/status").read_text(encoding="ascii").splitlines()


async def test_noise_does_not_kill_it():
    chance = random.Random(7)
    async with channel(NOWHERE) as ours:
        await ours.write(b"".join(chance.randbytes(chance.randrange(200)) + b"\n" for _ in range(100)))
        await ours.write(b'\n{"jsonrpc":"2.0","id":"after","method":"ping"}\n')
        while (said := await ours.message())["id"] != "after":
            assert said["error"]["code"] in {-32700, -32600}
        assert (await ours.ended())[0] == 0


@given(
    st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line), max_size=8), st.integers(1, 9), st.data()
)
def test_lines_come_out_as_they_went_in_however_they_are_cut(lines, bound, data):
    whole = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    parts = [whole[one:other] for one, other in zip([0, *cuts], [*cuts, len(whole)], strict=True)]

    class Parts:
        def __init__(self):
            self.left = [part for part in parts if part]

        async def receive_some(self, _):
            return self.left.pop(0) if self.left else b""

    async def read():
        reader, found = LineReader(Parts(), bound), []
        while True:
            try:
                line = await reader.read()
            except LineTooLong:
                found.append(None)
                continue
            if line is None:
                return found
            found.append(line)

    assert trio.run(read) == [line if len(line) <= bound else None for line in lines]


async def test_an_output_that_was_cut_short_takes_nothing_more():
    ours, theirs = trio.testing.lockstep_stream_pair()
    output = Output(ours)
    with trio.move_on_after(0.01) as cut:
        await output.send({"text": "nobody reads this"})
    assert cut.cancelled_caught
    assert output.broken.is_set()
    with pytest.raises(BrokenPipeError):
        await output.send({"text": "nor this"})
    await theirs.aclose()


# -- the tools ---------------------------------------------------------------------------------------------------------


async def test_a_message_is_sent_once_and_told_in_the_ladders_words(tmp_path):
    async with world() as there, served(there, tmp_path) as where, channel(local(where.local)) as ours:
        said = await ours.call("send_message", text="too early")
        assert (said["isError"], said["structuredContent"]["stage"]) == (True, "unavailable")
        await there.supervisor.pane(OURS).launch("plain", "session-1")
        said = await ours.call("send_message", text="one \N{SNOWMAN}\ud800")
        assert (said["isError"], said["structuredContent"]["stage"]) == (False, "stored")
        assert said["structuredContent"]["delivery_id"] in said["content"][0]["text"]
        assert await ours.stage("send_message", text=" ") == "rejected"
        assert await ours.stage("send_message", text="x" * 1_048_577) == "rejected"
        assert [turn.text for turn in there.dispatched.turns] == ["one \N{SNOWMAN}\ufffd"]
        asked = await ours.call("delivery_status", delivery_id=said["structuredContent"]["delivery_id"])
        words = said["structuredContent"].pop("means")
        assert words == said["content"][0]["text"]
        assert asked["structuredContent"]["message"] == said["structuredContent"]
        assert await ours.stage("delivery_status") is None
        assert await ours.stage("delivery_status", delivery_id="of nobody") is None
        assert (await ours.ask("tools/call", name="delivery_status", arguments={"delivery_id": 7}))["error"]
        assert await ours.ended() == (0, b"", "")


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_message_whose_answer_was_lost_is_asked_about_and_never_sent_again(tmp_path, arrives):
    def is_post(line):
        return line.startswith("POST") and "/messages " in line

    async with world() as there, served(there, tmp_path) as where, proxied(there, where) as proxy:
        await there.supervisor.pane(OURS).launch("plain", "session-1")
        if arrives:
            proxy.lose_answer = is_post
        else:
            proxy.lose_request = is_post
        async with channel(local(proxy.path)) as first:
            said = await first.call("send_message", text="the original")
            assert (said["isError"], said["structuredContent"]["stage"]) == (False, "uncertain")
        proxy.lose_answer = proxy.lose_request = lambda _: False
        async with channel(local(proxy.path)) as ours:  # another life, and the same claim
            again = await ours.call("delivery_status")
            message = again["structuredContent"]["message"]
            assert message["delivery_id"] == said["structuredContent"]["delivery_id"]
            assert message["stage"] == ("stored" if arrives else "uncertain")
            other = await ours.call("send_message", text="another")
            assert other["structuredContent"]["stage"] == ("stored" if arrives else "uncertain")
            assert other["isError"] is not arrives  # it was not sent while the original is unresolved
        assert sum(map(is_post, proxy.asked)) == (2 if arrives else 1)
        assert [turn.text for turn in there.dispatched.turns] == (["the original", "another"] if arrives else [])


async def test_killed_within_a_post_it_leaves_the_claim_to_the_next(tmp_path):
    async with world() as there, served(there, tmp_path) as where, proxied(there, where) as proxy:
        await there.supervisor.pane(OURS).launch("plain", "session-1")
        proxy.hold = lambda line: line.startswith("POST") and "/messages " in line
        async with channel(local(proxy.path)) as first:
            call = {"name": "send_message", "arguments": {"text": "the original"}}
            asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
            await first.write(json.dumps(asked).encode() + b"\n")
            await until(lambda: any(map(proxy.hold, proxy.asked)))
            first.process.kill()
            await first.gone()
        async with channel(local(proxy.path)) as second:
            assert await second.stage("send_message", text="the original") == "uncertain"
            assert sum(map(proxy.hold, proxy.asked)) == 1


async def test_its_input_ends_while_a_message_is_under_way(tmp_path):
    """It waits a little for the answer, and then leaves the claim."""
    async with world() as there, served(there, tmp_path) as where, proxied(there, where) as proxy:
        await there.supervisor.pane(OURS).launch("plain", "session-1")
        proxy.hold = lambda line: line.startswith("POST")
        async with channel(local(proxy.path)) as ours:
            call = {"name": "send_message", "arguments": {"text": "the original"}}
            asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
            await ours.write(json.dumps(asked).encode() + b"\n")
            await until(lambda: any(map(proxy.hold, proxy.asked)))
            assert await ours.ended() == (0, b"", "")
        claims = list((tmp_path / "run" / "inbound-receipts").glob("*.json"))
        assert len(claims) == 1
        assert list((tmp_path / "run" / "inbound-receipts").glob("*.lock")) == []


class Slow:
    """A claimed sender that answers when it is told to."""

    def __init__(self):
        self.sent: list[str] = []

    def send(self, text):
        self.sent.append(text)
        return SendReport(Stage.STORED, None, f"id of {text}", "b", "f", None)

    def pending(self):
        return None


async def test_only_so_many_reports_are_kept():
    outbox = Outbox(Slow())
    for number in range(REPORTS_MAX + 3):
        await outbox.send(str(number))
    assert list(outbox.reports) == [f"id of {number}" for number in range(3, REPORTS_MAX + 3)]


@pytest.mark.parametrize(
    ("report", "failed", "part"),
    [
        (SendReport(Stage.STORED, None, "i", "b", "mine", None), False, "Stored"),
        (SendReport(None, Stop.UNAVAILABLE, None, None, None, "why {x}"), True, "why {x}"),
        (SendReport(None, Stop.REJECTED, None, None, None, "why"), True, "turned down (why)"),
        (SendReport(None, Stop.UNCERTAIN, "i", "b", "mine", "why"), False, "Do not send it again"),
        (SendReport(None, Stop.UNCERTAIN, "i", "b", "another", "why"), True, "This message was not sent: an earlier"),
        (SendReport(None, Stop.UNCERTAIN, None, None, None, "why"), True, "This message was not sent (why)"),
    ],
)
async def test_each_report_has_its_words(monkeypatch, report, failed, part):
    sender = Slow()
    sender.send = lambda _: report
    monkeypatch.setattr("fencepost.supervisor.bridge.channel_tools.fingerprint_of", lambda _: "mine")
    told = await Tools(Outbox(sender), lambda: {"state": "carried"}).call("send_message", {"text": "t"})
    assert (told.failed, part in told.text) == (failed, True)


async def test_a_tool_that_breaks_is_an_error_and_not_the_end():
    """Whatever a tool dies of, the call is answered and the next one too."""
    sender, heard = Slow(), []

    def broken(_):
        raise RuntimeError("a bug")

    sender.send = broken
    here, there = trio.testing.memory_stream_pair()
    tools = Tools(Outbox(sender), lambda: {"state": "carried"})
    server = Server(Output(here), tools, "1", heard.append, pushes=True)
    call = {"name": "send_message", "arguments": {"text": "hello"}}
    for asked in (1, 2):
        request = {"jsonrpc": "2.0", "id": asked, "method": "tools/call", "params": call}
        await there.send_all(json.dumps(request).encode() + b"\n")
    await there.send_eof()
    async with trio.open_nursery() as nursery:
        await server.serve(LineReader(here), nursery)
    await here.send_eof()
    said = [json.loads(line) for line in b"".join([part async for part in there]).splitlines()]
    assert {one["id"]: one["error"]["code"] for one in said} == {1: -32603, 2: -32603}
    assert [str(error) for error in heard] == ["a bug"] * 2


async def test_a_claim_that_cannot_be_kept_sends_nothing(tmp_path):
    """The claim's folder is a file, which nothing can be claimed in."""
    async with world() as there, served(there, tmp_path) as where, channel(local(where.local)) as ours:
        await there.supervisor.pane(OURS).launch("plain", "session-1")
        (tmp_path / "run" / "inbound-receipts").write_text("")
        assert await ours.stage("send_message", text="hello") == "uncertain"
        assert (await ours.ask("ping"))["result"] == {}


async def test_calls_beyond_the_bound_are_told_so(tmp_path):
    async with world() as there, served(there, tmp_path) as where, proxied(there, where) as proxy:
        await there.supervisor.pane(OURS).launch("plain", "session-1")
        proxy.hold = lambda line: line.startswith("POST")
        async with channel(local(proxy.path)) as ours:
            call = {"name": "send_message", "arguments": {"text": "hello"}}
            for number in range(CALLS_MAX + 1):
                asked = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call}
                await ours.write(json.dumps(asked).encode() + b"\n")
            said = await ours.message()
            assert (said["id"], said["error"]["code"]) == (CALLS_MAX, -32000)
            assert (await ours.ask("ping"))["result"] == {}


# -- the configuration -------------------------------------------------------------------------------------------------


def test_the_generated_configuration_names_no_pane_and_no_secret_by_itself():
    (server,) = program.mcp_config(pushes=True)["mcpServers"].values()
    assert server.keys() == {"type", "command", "args"}
    assert program.TOOLS_ONLY not in server["args"]
    named: Any = program.mcp_config(pushes=False, name="x")["mcpServers"]
    assert program.TOOLS_ONLY in named["x"]["args"]
    given = {"FENCEPOST_PANE": OURS, "FENCEPOST_LINK": "t", "HOME": "/", "FENCEPOST_STORE": "s"}
    (server,) = program.mcp_config(pushes=True, environment=given)["mcpServers"].values()
    assert server["env"] == {"FENCEPOST_PANE": OURS, "FENCEPOST_LINK": "t"}


def test_an_argument_that_nobody_knows_is_not_passed_over():
    command = [sys.executable, "-E", "-P", "-m", program.__name__, "--tool-only"]
    ran = subprocess.run(command, env=NOWHERE, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert (ran.returncode, ran.stdout) == (program.NOT_STARTED, b"")
    assert program.TOOLS_ONLY.encode() in ran.stderr


def test_the_options_load_it_as_a_channel_only_where_it_pushes(tmp_path):
    file = tmp_path / "mcp.json"
    assert program.claude_options(file, pushes=False) == ["--mcp-config", str(file)]
    assert program.claude_options(file, pushes=True, name="x")[:2] == [
        "--dangerously-load-development-channels",
        "server:x",
    ]


def test_every_sender_of_a_pane_has_the_same_claim_whatever_the_port(tmp_path):
    def claim_of(**environment):
        settings = program.Settings.of({"FENCEPOST_PANE": OURS, "XDG_STATE_HOME": str(tmp_path), **environment})
        return ClaimedSender(settings.state, (settings.scope, settings.pane_id), Slow()).claim_path

    fleet = {"FENCEPOST_LINK": "t"}
    one = claim_of(FENCEPOST_FLEET="http://10.0.0.1:1000", **fleet)
    assert one == claim_of(FENCEPOST_FLEET="http://10.0.0.1:2000", **fleet)
    assert one != claim_of(FENCEPOST_FLEET="http://10.0.0.2:1000", **fleet)
    both = {"FENCEPOST_FLEET": "http://10.0.0.1:1000", **fleet}
    assert claim_of(FENCEPOST_SOCKET="/s/local.sock") == claim_of(FENCEPOST_SOCKET="/s/local.sock", **both)


def test_the_socket_goes_first_where_it_can_prove_a_process(monkeypatch):
    environment = {
        "FENCEPOST_PANE": OURS,
        "FENCEPOST_SOCKET": "/s/local.sock",
        "FENCEPOST_FLEET": "http://127.0.0.1:1",
        "FENCEPOST_LINK": "t",
    }
    assert program.Settings.of(environment).place == Local("/s/local.sock")
    monkeypatch.delattr("socket.SO_PEERCRED")
    settings = program.Settings.of(environment)
    assert (settings.place, settings.scope) == (Fleet("http://127.0.0.1:1", "t"), "/s/local.sock")
    assert settings.endpoints == Path("/s/endpoints.json")
