"""Where the demo plays: a folder, the processes in it, and the lines to them.

    demo ──starts, kills──▶ bridge ──launches──▶ harness ──starts──▶ hooks
      ▲                       │ ▲                   │                 │
      ├── facts, events ──────┘ └── hook calls ─────┼─────────────────┘
      └── is the model of ──────────────────────────┘

Every process inherits one end of the *lifeline*, a socket.  When the demo ends, however it ends, its own end closes
and everybody leaves; and when the demo can read the end of that socket, everybody has left.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import trio
from attrs import frozen

from fencepost.supervisor.demo.lines import Lines, connect, listen
from fencepost.supervisor.demo.report import Report
from fencepost.supervisor.demo.workspace import FIRST_BASE, told_base

__all__ = ["Agent", "Stage", "StoryError", "ToolRun", "open_stage"]

BRIDGE = Path(__file__).with_name("bridge.py")
LEAVE_SECONDS = 5.0


@frozen
class ToolRun:
    """A tool that ran: the base its file was on, and the one its agent knew of."""

    pane: str
    ran_on: str
    knew: str


class StoryError(Exception):
    """The story cannot go on: something was seen that it does not know."""


class Agent:
    """The demo's line to a harness, whose model it plays; or to a straggling hook, which it can let go."""

    def __init__(self, hello: dict[str, Any], lines: Lines, tools_run: list[ToolRun]) -> None:
        self.hello = hello
        self.pane = str(hello["name"])
        self.process_id = int(hello["pid"])
        self.incarnation = str(hello.get("incarnation"))
        self.knows = told_base(hello.get("text", ""), FIRST_BASE)
        """The base this agent takes its files to be on: what it started with, or was last told."""
        self._turn = 0
        self._lines = lines
        self._tools_run = tools_run

    async def ask(self, **request: object) -> dict[str, Any]:
        """Send one request and wait for what came of it."""
        await self._lines.send(request)
        answer = await self._lines.receive()
        if answer is None:
            raise StoryError(f"the process in {self.pane} ended while it was doing {request}")
        return answer

    async def turn(self, *calls: dict[str, str]) -> list[dict[str, Any]]:
        """The model's next turn: these tool calls, all at once."""
        self._turn += 1
        return await self.more(*calls)

    async def more(self, *calls: dict[str, str]) -> list[dict[str, Any]]:
        """Further calls of the same turn and batch."""
        results = (await self.ask(do="calls", turn=self.position, calls=calls))["results"]
        self._tools_run += [ToolRun(self.pane, one["ran_on"], self.knows) for one in results if one["ran_on"]]
        for one in results:
            self.knows = told_base(one["text"], self.knows)
        return list(results)

    async def end_turn(self) -> str:
        """The model has all results of its turn."""
        return str((await self.ask(do="end_turn", turn=self.position))["answer"])

    @property
    def position(self) -> dict[str, object]:
        """The current model turn."""
        return {"id": f"{self.incarnation[:8]}-turn-{self._turn}", "ordinal": self._turn}

    async def gone(self) -> None:
        """Wait until the process has ended."""
        if (said := await self._lines.receive()) is not None:
            raise StoryError(f"the process in {self.pane} said {said} where it should have ended")


class Stage:
    """The processes of the demo, and everything they have told so far."""

    def __init__(self, root: Path, report: Report, theirs: socket.socket) -> None:
        self.tools_run: list[ToolRun] = []
        self.root = root
        self.report = report
        self.events: list[dict[str, Any]] = []
        self.facts: list[dict[str, Any]] = []
        self._news = trio.Condition()
        self._arrived: list[Agent] = []
        self._theirs = theirs
        self._bridge_talks = False
        self._bridge: trio.Process | None = None

    # -- the bridge --

    @property
    def store_url(self) -> str:
        """Where the bridge keeps everything."""
        return f"sqlite:///{self.root / 'bridge.db'}"

    async def start_bridge(self) -> None:
        """Start a bridge process and wait until it serves."""
        last_seq = self.events[-1]["seq"] if self.events else 0
        command = [sys.executable, str(BRIDGE), str(self.root), str(self._theirs.fileno()), str(last_seq)]
        openings = len(self.told("open"))
        self._bridge = await trio.lowlevel.open_process(
            command, stdin=subprocess.DEVNULL, pass_fds=(self._theirs.fileno(),), start_new_session=True
        )
        await self.until(lambda: len(self.told("open")) > openings)

    async def kill_bridge(self) -> int:
        """SIGKILL, in the middle of whatever it does; answers how the process ended."""
        assert self._bridge is not None
        self._bridge.kill()
        return await self._ended()

    async def stop_bridge(self) -> int:
        """Let it close its runtime."""
        with contextlib.suppress(StoryError):  # it may leave before it answers
            await self.ask("stop")
        return await self._ended()

    async def _ended(self) -> int:
        assert self._bridge is not None
        code = await self._bridge.wait()
        await self.until(lambda: not self._bridge_talks)  # all it had told has arrived
        return code

    async def ask(self, call: str, **said: object) -> dict[str, Any]:
        """Ask the bridge, as any of its clients would."""
        lines = await connect(self.root / "bridge.sock")
        try:
            await lines.send({"call": call, **said})
            answer = await lines.receive()
        finally:
            await lines.aclose()
        if answer is None:
            raise StoryError(f"{call} {said} was answered with {answer}")
        return answer

    # -- what is told --

    def told(self, fact: str, **data: object) -> list[dict[str, Any]]:
        """The facts of a kind that bridges have told so far."""
        return [told for told in self.facts if told["fact"] == fact and data.items() <= told.items()]

    async def until(self, came_true: Callable[[], object]) -> None:
        """Wait until what was told makes something true."""
        async with self._news:
            while not came_true():
                await self._news.wait()

    async def catch_up(self) -> None:
        """Wait until everything the bridge has told up to now has arrived."""
        last = (await self.ask("last_event"))["seq"]
        await self.until(lambda: self.events and self.events[-1]["seq"] >= last)

    async def agent(self, pane: str, hello: str = "harness") -> Agent:
        """Wait for a harness (or a straggler) of a pane to say hello."""

        def here() -> list[Agent]:
            return [agent for agent in self._arrived if (agent.pane, agent.hello["hello"]) == (pane, hello)]

        await self.until(here)
        agent = here()[0]
        self._arrived.remove(agent)
        return agent

    async def greet(self, stream: trio.SocketStream) -> None:
        """Whoever calls the demo: a harness that wants its model, a straggler, or a bridge with its facts."""
        lines = Lines(stream)
        first = await lines.receive()
        if first is None:
            return
        if "hello" in first:
            self._arrived.append(Agent(first, lines, self.tools_run))
            await self._tell_news()
            await trio.sleep_forever()  # the line is the agent's now; it closes with the stage
        self._bridge_talks = True
        await self._note(first)
        async for fact in lines:
            await self._note(fact)
        self._bridge_talks = False
        await self._tell_news()

    async def _note(self, fact: dict[str, Any]) -> None:
        if fact["fact"] == "event":
            self.events.append(fact)
            self.report.happened(f"{fact['seq']:3} {fact['kind']:24} {self._whose(fact)}")
        else:
            self.facts.append(fact)
            told = " ".join(f"{name}={value}" for name, value in fact.items() if name != "fact")
            self.report.happened(f"    {fact['fact']} {told}")
        await self._tell_news()

    def _whose(self, event: dict[str, Any]) -> str:
        return str(event["data"].get("pane_id", event["address"]))

    async def _tell_news(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def clear(self, ours: socket.socket) -> None:
        """End every process, and wait until all have left."""
        self._theirs.close()
        ours.shutdown(socket.SHUT_WR)
        ours.settimeout(LEAVE_SECONDS)
        ours.recv(1)  # the end of the stream, once everybody has left; a TimeoutError if somebody stays
        if self._bridge is not None:
            with trio.CancelScope(shield=True):
                await self._bridge.wait()


@contextlib.asynccontextmanager
async def open_stage(root: Path, report: Report, *, seconds: float) -> AsyncGenerator[Stage]:
    """Set the stage in a folder; leaving it ends every process, whatever happened."""
    ours, theirs = socket.socketpair()
    with ours, theirs, trio.fail_after(seconds):
        stage = Stage(root, report, theirs)
        async with trio.open_nursery() as nursery:
            await nursery.start(_end_on_sigterm)
            nursery.start_soon(trio.serve_listeners, stage.greet, [await listen(root / "story.sock")])
            try:
                yield stage
            finally:
                await stage.clear(ours)
                nursery.cancel_scope.cancel()


async def _end_on_sigterm(task_status: trio.TaskStatus[None]) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as received:
        task_status.started()
        async for _ in received:
            raise StoryError("asked to end")
