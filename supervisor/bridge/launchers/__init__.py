"""Launchers: the bridge's hands on real harness processes (contract I-11).

child        a child process without a terminal
tmux         a process in a pane of a private tmux server
commands     how Claude Code, Codex and OpenCode are started and resumed
held         what both launchers share, and what they promise
"""

from __future__ import annotations

from fencepost.supervisor.bridge.launchers.child import ChildProcessLauncher
from fencepost.supervisor.bridge.launchers.commands import command_of, environment_of
from fencepost.supervisor.bridge.launchers.held import Command, LaunchError
from fencepost.supervisor.bridge.launchers.notes import DamagedNote
from fencepost.supervisor.bridge.launchers.tmux import TmuxError, TmuxLauncher

__all__ = [
    "ChildProcessLauncher",
    "Command",
    "DamagedNote",
    "LaunchError",
    "TmuxError",
    "TmuxLauncher",
    "command_of",
    "environment_of",
]
