"""The bridge: a process that embeds the runtime, starts harnesses, and answers their hooks over a unix socket.

    bridge.py ROOT LIFELINE LAST_SEQ

ROOT is the demo's folder, LIFELINE an inherited socket that closes when the demo ends, LAST_SEQ the last event that
was shown.  What happens is told to the demo as lines of JSON over `story.sock`.
"""

from __future__ import annotations

import base64
import os
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict

import trio

import fencepost.supervisor as fp
from fencepost.supervisor.demo.launcher import Processes
from fencepost.supervisor.demo.lines import Lines, connect, listen
from fencepost.supervisor.demo.workspace import Mover


class Turn(TypedDict):
    """A model turn in JSON."""

    id: str
    ordinal: int


SHOWN = (
    "intent_id",
    "state",
    "mode",
    "payload_sha256",
    "delivered_at",
    "batch_completed_at",
    "handshake_at",
    "acknowledged_at",
    "startup_delivery_id",
    "incarnation_id",
    "startup_attempts",
)
"""What of an intent the demo looks at."""


class Bridge:
    """One life of the bridge."""

    def __init__(self, root: Path, story: Lines) -> None:
        self.root = root
        self._story = story
        self._telling = trio.Lock()
        self._interrupted_pane: str | None = None
        self.supervisor: fp.Supervisor
        self.ending = trio.CancelScope()

    async def tell(self, fact: str, **data: object) -> None:
        """Tell the demo what happened."""
        async with self._telling:
            await self._story.send({"fact": fact, **data})

    async def tell_events(self, after: int) -> None:
        """Hand the runtime's own events on."""
        async for event in self.supervisor.events(after=after):
            await self.tell("event", seq=event.seq, kind=event.kind, address=event.address, data=dict(event.data))

    async def interrupt(self, pane_id: str, number: int) -> None:
        """Where the demo may stop the world: half way through a workspace's second file."""
        if pane_id == self._interrupted_pane and number == 2:
            await self.tell("half_written", pane=pane_id)
            await trio.sleep_forever()

    async def died(self, pane_id: str) -> None:
        """A harness ended on its own: start another in its place, with whatever its agent must be told first."""
        await self.tell("harness_died", pane=pane_id)
        try:
            await self.supervisor.pane(pane_id).launch("demo-harness", session_id=f"session-{pane_id}")
        except fp.LaunchBlocked as blocked:
            await self.tell("launch_blocked", pane=pane_id, why=str(blocked))

    async def serve(self, stream: trio.SocketStream) -> None:
        """Answer one caller until it hangs up."""
        async with stream:
            lines = Lines(stream)
            try:
                async for message in lines:
                    await lines.send(await self.answer(**message))
            except trio.BrokenResourceError:
                return  # it did not wait for its answer

    async def answer(self, call: str, **said: object) -> Mapping[str, object]:
        """One call of a client, by its name."""
        calls: dict[str, Callable[..., Awaitable[Mapping[str, object]]]] = {
            "pre_tool_use": self.pre_tool_use,
            "mark_delivered": self.mark_delivered,
            "post_tool_batch": self.post_tool_batch,
            "startup_ready": self.startup_ready,
            "launch": self.launch,
            "detect": self.detect,
            "intents": self.intents,
            "dead_letters": self.dead_letters,
            "last_event": self.last_event,
            "interrupt_at": self.interrupt_at,
            "stop": self.stop,
        }
        return await calls[call](**said)

    # -- what hooks and harnesses ask --

    async def pre_tool_use(
        self, pane: str, incarnation: str, turn: Turn, batch: str, startup: str | None
    ) -> Mapping[str, object]:
        """May a tool run?"""
        boundary = fp.ToolBoundary(incarnation, fp.ModelTurn(**turn), batch, startup_delivery_id=startup)
        match await self.supervisor.pane(pane).pre_tool_use(boundary):
            case fp.Allow():
                return {"decision": "allow"}
            case fp.BlockPayload(intent_id, payload):
                return {"decision": "payload", "intent": intent_id, "payload": base64.b64encode(payload).decode()}
            case fp.BlockGeneric(reason, message):
                return {"decision": "generic", "reason": reason, "message": message}
            case fp.BlockRestart(reason, message):
                return {"decision": "restart", "reason": reason, "message": message}

    async def mark_delivered(
        self, pane: str, incarnation: str, turn: Turn, batch: str, intent: str
    ) -> Mapping[str, object]:
        """A hook printed a payload."""
        return _answer(await self.supervisor.pane(pane).mark_delivered(intent, incarnation, turn["id"], batch))

    async def post_tool_batch(self, pane: str, incarnation: str, turn: Turn, batch: str) -> Mapping[str, object]:
        """A model has all results of its turn."""
        return _answer(await self.supervisor.pane(pane).post_tool_batch(incarnation, turn["id"], batch))

    async def startup_ready(self, pane: str, incarnation: str, startup: str, sha256: str) -> Mapping[str, object]:
        """A replacement took its first input."""
        return _answer(await self.supervisor.pane(pane).startup_ready(incarnation, startup, sha256))

    # -- what the demo asks --

    async def launch(self, pane: str) -> Mapping[str, object]:
        """Start a harness in a pane."""
        launch = await self.supervisor.pane(pane).launch("demo-harness", session_id=f"session-{pane}")
        return {"incarnation": launch.incarnation_id}

    async def detect(self, pane: str, transition: dict[str, Any]) -> Mapping[str, object]:
        """A pane's base moved."""
        detected = await self.supervisor.pane(pane).detect(fp.BaseTransition(**transition))
        return {"intent": detected.intent_id}

    async def intents(self, pane: str) -> Mapping[str, object]:
        """A pane's intents, as stored."""
        views = await self.supervisor.pane(pane).intents()
        return {"intents": [{name: getattr(view, name) for name in SHOWN} for view in views]}

    async def dead_letters(self) -> Mapping[str, object]:
        """What was refused."""
        letters = await self.supervisor.dead_letters()
        return {"letters": [[letter.call, letter.incarnation_id, letter.reason] for letter in letters]}

    async def last_event(self) -> Mapping[str, object]:
        """The number of the youngest event."""
        return {"seq": max([event.seq or 0 async for event in self.supervisor.events(follow=False)])}

    async def interrupt_at(self, pane: str) -> Mapping[str, object]:
        """From now on, stop in the middle of moving this pane's files."""
        self._interrupted_pane = pane
        return {}

    async def stop(self) -> Mapping[str, object]:
        """Close the runtime and end."""
        self.ending.cancel()
        return {}


def _answer(answer: fp.Answer) -> Mapping[str, object]:
    if isinstance(answer, fp.Refused):
        return {"answer": "refused", "reason": answer.reason, "detail": answer.detail}
    return {"answer": "applied" if isinstance(answer, fp.Applied) else "unchanged"}


def end_with_the_story(lifeline: int) -> None:
    """No process outlives the demo."""
    socket.socket(fileno=lifeline).recv(1)
    os._exit(3)


async def main(root: Path, lifeline: int, last_seq: int) -> None:
    """Open the runtime, serve until told to stop, close it."""
    bridge = Bridge(root, await connect(root / "story.sock"))
    with bridge.ending:
        async with trio.open_nursery() as nursery:
            processes = Processes(root, lifeline, nursery, bridge.died)
            mover = Mover(root, bridge.tell, bridge.interrupt)
            url = f"sqlite:///{root / 'bridge.db'}"
            async with fp.open_supervisor(url, reconciler=mover, launcher=processes) as bridge.supervisor:
                processes.watch_survivors()
                nursery.start_soon(bridge.tell_events, last_seq)
                listener = await listen(root / "bridge.sock")
                await bridge.tell("open", process=os.getpid())
                await trio.serve_listeners(bridge.serve, [listener])


if __name__ == "__main__":
    threading.Thread(target=end_with_the_story, args=[int(sys.argv[2])], daemon=True).start()
    trio.run(main, Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
