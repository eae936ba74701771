"""A bridge with so many live panes, and beside it a constant answer on the same stack; both on unix sockets.

    python hook_server.py FOLDER PANES.json STORE          prints a line when both listen; ends with its input

The stack is the bridge's own: `Connections` (hypercorn and h11 on trio).  What the constant server lacks is what the
bridge does with a request: who asks, the checks, the adapter, the pane.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import trio

from fencepost.supervisor import Supervisor, open_supervisor
from fencepost.supervisor.bridge.adapters.claude import PROVED_VERSIONS, ClaudeCodeAdapter
from fencepost.supervisor.bridge.adapters.gate import Gate
from fencepost.supervisor.bridge.connections import Connections
from fencepost.supervisor.bridge.handlers import Bridge
from fencepost.supervisor.bridge.limits import Limits, Stopping
from fencepost.supervisor.bridge.routes import Listener
from fencepost.supervisor.bridge.seats import Seats
from fencepost.supervisor.bridge.serve import Addresses, Endpoints, serve
from fencepost.supervisor.options import Options

RARELY = Options(idle_seconds=3600.0)
CONSTANT = b'{"version":1,"stdout":"","exit_code":0,"delivered":null}'


async def constant(_scope: Any, receive: Any, send: Any) -> None:
    """Read what is asked, and answer as the bridge answers a call that may run."""
    while (await receive()).get("more_body", False):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(CONSTANT)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": CONSTANT})


async def occupied(supervisor: Supervisor, panes: dict[str, int]) -> tuple[Seats, dict[str, dict[str, str]]]:
    """Every pane is a member with its process, and has a live incarnation; returns that, and its link, of each."""
    seats, occupants, (version,) = Seats(), dict[str, dict[str, str]](), PROVED_VERSIONS
    capabilities = ClaudeCodeAdapter().capabilities(version)
    for pane_id, pid in panes.items():
        link = seats.admit(pane_id)
        seats.occupy(pane_id, pid)
        launch = await supervisor.pane(pane_id).launch("claude-code", f"session-of-{pane_id}", capabilities)
        occupants[pane_id] = {"incarnation_id": launch.incarnation_id, "link": link}
    return seats, occupants


async def served(folder: Path, panes: dict[str, int], store: str) -> None:
    async with open_supervisor(store, options=RARELY) as supervisor:
        seats, occupants = await occupied(supervisor, panes)
        adapter = ClaudeCodeAdapter(Gate(folder / "hook-spool"), [folder / "projects"])
        bridge = Bridge(supervisor, seats, {adapter.harness: adapter}, stopping=Stopping())
        addresses = Addresses(("127.0.0.1", 0), ("127.0.0.1", 0), folder / "local.sock")
        beside = Connections(Listener.LOCAL, constant, Limits(), seats)
        listening = trio.socket.socket(trio.socket.AF_UNIX)
        await listening.bind(str(folder / "constant.sock"))
        listening.listen(128)

        def started(endpoints: Endpoints) -> None:
            print(json.dumps({"fleet": endpoints.fleet, "panes": occupants}), flush=True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, beside.serve, [trio.SocketListener(listening)])
            nursery.start_soon(_run, bridge, addresses, started)
            await trio.to_thread.run_sync(sys.stdin.read)
            nursery.cancel_scope.cancel()


async def _run(bridge: Bridge, addresses: Addresses, started: Any) -> None:
    await serve(bridge, addresses, started=started)


if __name__ == "__main__":
    trio.run(served, Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")), sys.argv[3])
