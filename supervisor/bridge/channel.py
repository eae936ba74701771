"""`fencepost-channel`: the program that a harness in a pane starts, and that pushes the pane's events to it.

    python -E -P -m fencepost.supervisor.bridge.channel

An MCP server over standard input and output, and a channel pump (protocol-delivery.md section 4) behind it:

    bridge ──poll──▶ pump ──notification──▶ standard output ──▶ harness
           ◀──ack── once the last byte is in the pipe

    harness ──tools/call──▶ send_message ──the pane's claim──▶ bridge

The pump takes one event after the other and acknowledges exactly the one that was written.  A write that fails, or an
acknowledgement that is lost, stops it for good; the tools go on.  Nothing is pushed before the harness has said that it
is ready.  The program ends when its input does, and leaves what a kill would leave: an event that was taken and not
acknowledged, which nobody hands out again, and a claim, which the next sender asks about.

Standard output carries the protocol and nothing else.  All of it runs on the base install.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

import trio
from attrs import field, frozen

from fencepost.supervisor import ChannelPump, ClaimedSender, FencepostError, PumpStopped
from fencepost.supervisor.bridge.channel_link import ClaimTransport, Fleet, Link, Local, MailboxSource
from fencepost.supervisor.bridge.channel_server import Server
from fencepost.supervisor.bridge.channel_stdio import ChannelSink, LineReader, Output, take_standard_streams
from fencepost.supervisor.bridge.channel_tools import Outbox, Tools
from fencepost.supervisor.bridge.escaped import escaped
from fencepost.supervisor.bridge.folder import default_folder

__all__ = [
    "ENDED",
    "NOT_STARTED",
    "NOT_TAKEN",
    "TOOLS_ONLY",
    "Settings",
    "claude_options",
    "main",
    "mcp_config",
    "run",
]

ENDED: Final = 0
"""The harness ended its side."""
NOT_TAKEN: Final = 1
"""The harness does not take what is written to it."""
NOT_STARTED: Final = 2
"""The environment does not say which pane this is, or where the bridge is."""

TOOLS_ONLY: Final = "--tools-only"
_USAGE: Final = f"""Usage: fencepost-channel [{TOOLS_ONLY}]

Be an MCP server that pushes a pane's messages into its harness, over standard input and output; with {TOOLS_ONLY}
offer the tools alone.  A harness starts it, in an environment that a bridge made (FENCEPOST_PANE, and FENCEPOST_SOCKET
or FENCEPOST_FLEET and FENCEPOST_LINK).

Exit status: 0 when its input ended; 1 if the harness does not take what is written to it; 2 if the environment does not
say which pane this is, or where its bridge is.
"""
LAST_CALLS_SECONDS: Final = 2.0
"""How long tools that run when the input ends may take to end; a claim outlives them."""
ENVIRONMENT: Final = ("FENCEPOST_PANE", "FENCEPOST_SOCKET", "FENCEPOST_FLEET", "FENCEPOST_LINK", "FENCEPOST_ENDPOINTS")
"""What the program reads; a launcher sets it for the harness, whose child this is."""


def mcp_config(
    *,
    pushes: bool,
    name: str = "fencepost",
    interpreter: str = sys.executable,
    environment: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """Return what `claude --mcp-config FILE` is given, so that the harness starts this program under `name`.

    `pushes` says whether events are carried.  A harness drops what is pushed by a server that it does not load as a
    channel, and says nothing; so push only where it was told to, see `claude_options`.  Without it only the tools are
    there, and the pane's mailbox is somebody else's to poll.

    `environment` is for a harness that does not hand its own on to its servers; without it the file names no pane and
    holds no secret.  A link token in it makes the file one: write it where only this user reads.
    """
    # -E and -P: neither PYTHONPATH nor the folder that the harness works in has a say in what is imported.
    arguments = ["-E", "-P", "-m", "fencepost.supervisor.bridge.channel"]
    server: dict[str, object] = {
        "type": "stdio",
        "command": interpreter,
        "args": arguments if pushes else [*arguments, TOOLS_ONLY],
    }
    if environment:
        server["env"] = {key: value for key, value in environment.items() if key in ENVIRONMENT}
    return {"mcpServers": {name: server}}


def claude_options(config: Path, *, pushes: bool, name: str = "fencepost") -> list[str]:
    """Return the options that make Claude Code load the server of `mcp_config`, which was written to `config`.

    Both take any number of values, so another option must follow them, and no prompt.
    """
    channel = ["--dangerously-load-development-channels", f"server:{name}"] if pushes else []
    return [*channel, "--mcp-config", str(config)]


@frozen
class Settings:
    """Whose channel this is, where its bridge is, and where its claims are kept.

    `scope` is the socket's path or, without one, the fleet's host: with the pane it names the claim, so every sender of
    the pane must have the same.
    """

    pane_id: str
    place: Local | Fleet = field(repr=False)
    endpoints: Path | None
    scope: str
    state: Path

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Settings:
        """Read the environment.  Raises ValueError if something is missing."""
        pane, path = environment.get("FENCEPOST_PANE", ""), environment.get("FENCEPOST_SOCKET", "")
        if not (1 <= len(pane) <= 256 and pane.isascii() and pane.isprintable()):
            said = f"is {pane!a:.100}, which names none" if pane else "is not set"
            raise ValueError(f"FENCEPOST_PANE {said}: a harness starts this, in a pane of a bridge")
        if path and not path.startswith("/"):
            raise ValueError("FENCEPOST_SOCKET must be an absolute path")
        url, token = environment.get("FENCEPOST_FLEET", ""), environment.get("FENCEPOST_LINK", "")
        place: Local | Fleet
        if path and (hasattr(socket, "SO_PEERCRED") or not (url and token)):
            place = Local(path)
        elif url and token:
            place = Fleet(url, token)  # also where a process cannot be proven over a socket
        else:
            raise ValueError("FENCEPOST_SOCKET, or FENCEPOST_FLEET and FENCEPOST_LINK, must say where the bridge is")
        beside = str(Path(path).with_name("endpoints.json")) if path else ""
        named = environment.get("FENCEPOST_ENDPOINTS") or beside
        scope = path or Fleet(url, token).address()[0]
        state = Path(path).parent if path else default_folder(environment)
        return cls(pane, place, Path(named) if named else None, scope, state)


class _Life:
    """One life of the program."""

    def __init__(
        self, settings: Settings, stdin: trio.abc.ReceiveStream, stdout: trio.abc.SendStream, *, pushes: bool
    ) -> None:
        link = Link(settings.pane_id, settings.place, settings.endpoints)
        sender = ClaimedSender(settings.state, (settings.scope, settings.pane_id), ClaimTransport(link))
        self._lines, self._output = LineReader(stdin), Output(stdout)
        self._pump = ChannelPump(MailboxSource(link), ChannelSink(self._output))
        self._stopped: PumpStopped | None = None
        self._pushes = pushes
        tools = Tools(Outbox(sender), self._events)
        self._server = Server(self._output, tools, _version(), _complain, pushes=pushes)

    async def live(self) -> int:
        """Serve until the input ends, or until nothing can be told any more; returns the exit status."""
        async with trio.open_nursery() as whole:
            whole.start_soon(self._end_with_the_output, whole.cancel_scope)
            async with trio.open_nursery() as calls:
                async with trio.open_nursery() as pumping:
                    pumping.start_soon(self._push)
                    try:
                        await self._server.serve(self._lines, calls)
                    except BrokenPipeError:
                        await trio.sleep_forever()  # the output is broken, which ends everything
                    pumping.cancel_scope.cancel()
                calls.cancel_scope.deadline = trio.current_time() + LAST_CALLS_SECONDS
            whole.cancel_scope.cancel()
        return NOT_TAKEN if self._output.broken.is_set() else ENDED

    async def _end_with_the_output(self, scope: trio.CancelScope) -> None:
        await self._output.broken.wait()
        scope.cancel()

    async def _push(self) -> None:
        if not self._pushes:
            return
        await self._server.initialized.wait()
        self._stopped = await self._pump.run()
        _complain(self._stopped.cause, f"stopped at event {self._stopped.event_id}: ")

    def _events(self) -> dict[str, object]:
        """What becomes of the events that come to the pane."""
        if self._stopped is not None:
            return {"state": "stopped for good", "event_id": self._stopped.event_id}
        if not self._pushes:
            return {"state": "not carried here"}
        return {"state": "carried" if self._server.initialized.is_set() else "not carried yet"}


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("fencepost")
    except PackageNotFoundError:
        return "0"


def _complain(error: BaseException, what: str = "") -> None:
    """Say on stderr what went wrong, in one escaped line; a harness shows it where its log is."""
    _say(f"{what}{type(error).__name__}: {str(error)[:500]!a}")


def _say(words: str) -> None:
    text = f"fencepost-channel: {escaped(words)[:600]}\n"
    try:
        os.write(2, text.encode("ascii", "backslashreplace"))
    except OSError:
        return  # there is nobody to tell


async def run(
    settings: Settings, stdin: trio.abc.ReceiveStream, stdout: trio.abc.SendStream, *, pushes: bool = True
) -> int:
    """Be the channel over these streams; returns the exit status.  Under trio."""
    return await _Life(settings, stdin, stdout, pushes=pushes).live()


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Be the channel of the pane that the environment names, over standard input and output; see the module.

    The one argument there is, `--tools-only`, leaves the pane's events alone.  Exit status: 0 when the input ended, 1
    when the harness does not take what is written, 2 when it could not start.
    """
    given = sys.argv[1:] if arguments is None else arguments
    if {"-h", "--help"} & set(given):
        sys.stdout.write(_USAGE)
        sys.exit(ENDED)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a harness asks so; there is nothing that must be said then

    async def live() -> int:
        return await run(settings, *take_standard_streams(), pushes=TOOLS_ONLY not in given)

    try:
        if not set(given) <= {TOOLS_ONLY}:
            raise ValueError(f"the one argument is {TOOLS_ONLY}")
        settings = Settings.of(os.environ)
    except (ValueError, FencepostError) as error:
        _say(str(error))
        sys.exit(NOT_STARTED)
    sys.exit(trio.run(live))


if __name__ == "__main__":
    main()
