"""The reference bridge put together: the runtime, and everything that it calls and that calls it.

    hooks, channels ─▶ listeners ─▶ adapters ─▶ runtime ─▶ launcher ─▶ processes
                                                   │  ▲                   │
                          reconciler, dispatcher ◀─┘  └──── watcher ◀─────┘

Nothing here decides anything; it says who knows whom.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio
from attrs import Factory, frozen

from fencepost.supervisor import (
    Capabilities,
    FleetSeatMailbox,
    HeadSeatOutbox,
    Options,
    Reconciler,
    Supervisor,
    open_supervisor,
)
from fencepost.supervisor.bridge.adapters import Adapter
from fencepost.supervisor.bridge.adapters.claude import ClaudeCodeAdapter
from fencepost.supervisor.bridge.adapters.codex import CodexAdapter
from fencepost.supervisor.bridge.adapters.gate import Gate
from fencepost.supervisor.bridge.adapters.opencode import OpenCodeAdapter
from fencepost.supervisor.bridge.adapters.spool import tell_hooks
from fencepost.supervisor.bridge.dashboard.board import Dashboard
from fencepost.supervisor.bridge.dispatching import HeadDispatcher
from fencepost.supervisor.bridge.handlers import Bridge
from fencepost.supervisor.bridge.hook_settings import HookCommand
from fencepost.supervisor.bridge.launchers.notes import Notes
from fencepost.supervisor.bridge.launching import NOTES, PaneLauncher
from fencepost.supervisor.bridge.limits import Stopping
from fencepost.supervisor.bridge.opencode_claims import OpenClaim, open_claim
from fencepost.supervisor.bridge.pane_processes import PaneProcesses
from fencepost.supervisor.bridge.panes import PaneBook
from fencepost.supervisor.bridge.places import Places
from fencepost.supervisor.bridge.private_files import private_folder
from fencepost.supervisor.bridge.processes import is_alive
from fencepost.supervisor.bridge.reconciling import CommandReconciler, Notice
from fencepost.supervisor.bridge.seats import Seats
from fencepost.supervisor.bridge.starting import Starting
from fencepost.supervisor.bridge.startup_tag import PAYLOAD_BYTES_MAX
from fencepost.supervisor.bridge.telemetry.observer import Observer
from fencepost.supervisor.bridge.watching import Watcher
from fencepost.supervisor.overview import incarnations_kept

__all__ = ["Harnesses", "OpenBridge", "absolute_store", "open_bridge"]

SPOOL: Final = "hook-spool"
"""Beside the local listener's socket, which is where a hook looks for it."""


@frozen(kw_only=True)
class Harnesses:
    """How the bridge deals with its harnesses; times in seconds.

    `reconcile`: a shell-like command line of the program that moves a pane's files; None: they are moved by others, and
    the agent is given a notice.  `head_reply_seconds`: how long the head's reply to a pane's message is waited for.
    """

    reconcile: str | None = None
    reconcile_seconds: float = 600.0
    tmux_server: str | None = None
    """The name of the tmux server of its panes, for `tmux -L`; None: one that no bridge in another folder has."""
    hook_deadline_seconds: int = 15
    stop_seconds: float = 5.0
    head_reply_seconds: float = 120.0
    settle_seconds: float = 1.0
    """How long a program in a terminal must live for its start to count as one."""
    adapters: tuple[Callable[[Gate], Adapter], ...] = Factory(tuple)
    """Make adapters of one's own, with the bridge's gate, beside Claude Code's, Codex's and OpenCode's."""


@frozen
class OpenBridge:
    """What is open: the bridge, for the listeners, and its watch over the processes, to be run once they are there.

    No process is started before.
    """

    bridge: Bridge
    watch: Callable[[], Awaitable[None]]


@asynccontextmanager
async def open_bridge(
    folder: Path,
    store: str,
    *,
    seats: Seats,
    operator_token: str | None,
    head_pane: str | None = None,
    harnesses: Harnesses | None = None,
    stopping: Stopping | None = None,
    telemetry: Observer | None = None,
    fleet_url: Callable[[], str | None] = lambda: None,
) -> AsyncGenerator[OpenBridge, None]:
    """Open the runtime over `store` with everything that a bridge in `folder` has, ready to be served and watched.

    `folder` is private and absolute.  `fleet_url` answers where the fleet listener is once that is known.  Raises
    OSError and ValueError for files of the folder that cannot be read, and what `open_supervisor` raises.
    """
    harnesses = harnesses or Harnesses()
    store = absolute_store(store)
    book = PaneBook(folder / "panes.json")
    private_folder(folder / NOTES.parent)
    notes = Notes(folder / NOTES).all()  # read before the runtime is opened, which goes on at once with what it owes
    places = Places(book, {one.pane_id: one for one in sorted(notes, key=is_alive)})
    adapters = {one.harness: one for one in _adapters(Gate(folder / SPOOL), places, harnesses)}
    runtimes: list[Supervisor] = []

    def claim_of(pane_id: str) -> OpenClaim | None:
        return open_claim(runtimes[0], pane_id)  # nothing is started before the runtime is open

    launcher = _launcher(folder, store, book, seats, adapters, harnesses, fleet_url, claim_of)
    launcher.hold()
    dispatcher = None if head_pane is None else HeadDispatcher(head_pane)
    async with open_supervisor(
        store,
        reconciler=reconciler_of(harnesses, places),
        launcher=launcher,
        mechanisms=[HeadSeatOutbox(reply_seconds=harnesses.head_reply_seconds), FleetSeatMailbox()],
        dispatcher=dispatcher,
        options=Options(payload_bytes_max=PAYLOAD_BYTES_MAX),  # more could not be told by a restart: a person must look
    ) as supervisor:
        runtimes.append(supervisor)
        await _tell_hooks(folder, supervisor, harnesses)
        if dispatcher is not None:
            dispatcher.supervisor = supervisor
        processes = PaneProcesses(supervisor, launcher, book, adapters, harnesses.settle_seconds, [places])
        watcher = Watcher(supervisor, launcher, book, processes.start_again, processes.leave)
        launcher.listen(processes.started, watcher.watch, decline=processes.decline)
        left = await _taken_over(store, launcher, processes, watcher)

        async def watch() -> None:
            launcher.open()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watcher.end_the_fenced)
                nursery.start_soon(processes.carry)
                await watcher.run(left)

        bridge = Bridge(
            supervisor,
            seats,
            adapters,
            operator_token,
            head_pane,
            processes=processes,
            stopping=stopping or Stopping(),
            telemetry=telemetry or Observer(),
            dashboard=Dashboard(store),
        )
        yield OpenBridge(bridge, watch)


async def _tell_hooks(folder: Path, supervisor: Supervisor, harnesses: Harnesses) -> None:
    """Say who moves the files, before anything can be detected in this life."""
    is_clear = (await supervisor.status()).unresolved_intents == 0
    say = partial(tell_hooks, folder / SPOOL, moved_when_bound=harnesses.reconcile is not None, is_clear=is_clear)
    await trio.to_thread.run_sync(say)


async def _taken_over(store: str, launcher: PaneLauncher, processes: PaneProcesses, watcher: Watcher) -> list[str]:
    """Watch what an earlier life left running; answer the wanted panes that it left without a process."""
    kept = await trio.to_thread.run_sync(incarnations_kept, store)
    await launcher.settle(kept.latest)
    living = await launcher.take_over(kept.live, kept.retired)
    book = launcher.book
    async with trio.open_nursery() as nursery:
        for pane_id, incarnation_id in kept.live.items():
            if pane_id in living or book.get(pane_id) is not None:  # of others no process is known, nor what to start
                processes.started(pane_id, incarnation_id)
                watcher.watch(pane_id, incarnation_id)
                if book.was_ended(pane_id):
                    nursery.start_soon(processes.end_again, pane_id)
    return [one for one in book if book.wants(one) and one not in kept.live and one not in kept.replaced]


def _adapters(gate: Gate, places: Places, harnesses: Harnesses) -> tuple[Adapter, ...]:
    ours = (ClaudeCodeAdapter(gate, places.transcripts), CodexAdapter(gate), OpenCodeAdapter(gate))
    return *ours, *(make(gate) for make in harnesses.adapters)


def _launcher(
    folder: Path,
    store: str,
    book: PaneBook,
    seats: Seats,
    adapters: Mapping[str, Adapter],
    harnesses: Harnesses,
    fleet_url: Callable[[], str | None],
    claim_of: Callable[[str], OpenClaim | None],
) -> PaneLauncher:
    links: dict[str, str] = {}

    def proved(harness: str, version: str) -> Capabilities:
        return adapters[harness].capabilities(version)

    hook = HookCommand(deadline_seconds=harnesses.hook_deadline_seconds)
    starting = Starting(book, folder / "incarnations", hook, proved, links.get, fleet_url, claim_of)
    return PaneLauncher(
        starting.command_for,
        book,
        seats,
        links,
        folder,
        socket_path=str(folder / "local.sock"),
        store_url=store,
        tmux_server=harnesses.tmux_server,
        grace_seconds=harnesses.stop_seconds,
    )


def reconciler_of(harnesses: Harnesses, places: Places) -> Reconciler:
    if harnesses.reconcile is None:
        return Notice()
    argv = tuple(shlex.split(harnesses.reconcile))
    if not argv:
        raise ValueError("the reconciling command is empty")
    program = shutil.which(argv[0])
    if program is None:
        raise ValueError(f"there is no program {argv[0]!r} to reconcile with")
    argv = (str(Path(program).absolute()), *argv[1:])  # it is started in the folder of each pane
    return CommandReconciler(argv, places.folder_of, harnesses.reconcile_seconds)


def absolute_store(store: str) -> str:
    """The same store by a URL that is good from any folder: hooks read it from theirs."""
    scheme, slashes, path = store.partition(":///")
    if not slashes or path.startswith("/") or scheme not in {"sqlite", "jsonl"}:
        return store
    return f"{scheme}:///{Path(path).absolute()}"
