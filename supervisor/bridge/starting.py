"""What a pane's process is started with: its settings, its command line, its environment.

Called by the launchers in a worker thread, for each start anew, because each incarnation has settings of its own and
each start may have something else to say first.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

from attrs import frozen

from fencepost.supervisor import Capabilities, Launch
from fencepost.supervisor.bridge.adapters.transcripts import WINDOW_BYTES, transcript_roots
from fencepost.supervisor.bridge.channel import claude_options, mcp_config
from fencepost.supervisor.bridge.codex_home import users_codex_home
from fencepost.supervisor.bridge.escaped import escaped
from fencepost.supervisor.bridge.hook_settings import (
    HookCommand,
    write_claude_channel,
    write_claude_settings,
    write_codex_home,
    write_opencode_plugin,
)
from fencepost.supervisor.bridge.launchers.commands import HARNESSES, Session, command_of, environment_of, stdin_of
from fencepost.supervisor.bridge.launchers.held import Command, LaunchError, of_no_pane
from fencepost.supervisor.bridge.opencode_claims import HARNESS as CLAIMING, OpenClaim, session_to_start
from fencepost.supervisor.bridge.opencode_plugin import CONTENT_VARIABLE, content_with_plugins_of
from fencepost.supervisor.bridge.panes import Channel, PaneBook, PaneSpec, Terminal

__all__ = ["Starting", "version_of"]

_VERSION_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.05
_SAID_BYTES_MAX: Final = 1024
_LINE_MAX: Final = 120
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+[0-9A-Za-z.+-]*")
_STANDS_STILL: Final = {
    "claude-code": {"DISABLE_AUTOUPDATER": "1"},
    "opencode": {"OPENCODE_DISABLE_AUTOUPDATE": "1"},
}
"""What keeps a harness at the version whose proofs its incarnation was launched with."""


@frozen
class Starting:
    """Makes the command of each start.

    `capabilities` answers what a version of a harness proves, `link_of` a pane's link token, `fleet_url` where the
    fleet listener is, once it listens, `claim_of` which delivery to a pane's OpenCode is unresolved (it may block).
    """

    book: PaneBook
    folder: Path
    hook: HookCommand
    capabilities: Callable[[str, str], Capabilities]
    link_of: Callable[[str], str | None]
    fleet_url: Callable[[], str | None]
    claim_of: Callable[[str], OpenClaim | None] = lambda _pane_id: None

    def command_for(self, launch: Launch) -> Command:
        """The command that starts `launch`.  Blocks for a few small files.

        Raises `LaunchError` for a pane nothing is known of, and where a claim forbids it; ValueError for what no
        command line can carry, OSError.
        """
        spec = self.book.get(launch.pane_id)
        if spec is None or spec.harness != launch.harness:
            raise LaunchError(f"it is not known what to start in pane {launch.pane_id!r} as {launch.harness!r}")
        self._check_proofs(launch.pane_id, spec)
        session = self._session(launch, spec)
        settings = self._settings(launch, spec)
        environment = self._environment(launch, spec, settings)
        # What must be told first leaves no room for a prompt, which then waits for the next start.
        prompt = None if launch.startup is not None else self.book.take_prompt(launch.pane_id)
        headless = spec.terminal is Terminal.NONE
        argv = command_of(
            launch,
            settings,
            program=(spec.argv[0], *self._channel(launch, spec), *spec.argv[1:]),
            prompt=prompt,
            session=session,
            headless=headless,
        )
        stdin = stdin_of(launch, prompt=prompt, headless=headless)
        return Command(argv, environment, cwd=spec.cwd, stdin=stdin, bare=True)

    def _session(self, launch: Launch, spec: PaneSpec) -> Session | None:
        """The conversation to go on with; looked at here as well, since a message may have left meanwhile."""
        session_id = spec.session_id or launch.session_id
        if launch.harness == CLAIMING:
            claim = self.claim_of(launch.pane_id)
            session_id = session_to_start(launch.harness, session_id, claim, by_a_person=False)
        return _session(launch.harness, session_id, spec.environment)

    def _environment(self, launch: Launch, spec: PaneSpec, settings: str) -> dict[str, str]:
        ours = environment_of(launch, settings)
        if CONTENT_VARIABLE in ours:
            users = spec.environment.get(CONTENT_VARIABLE)
            ours[CONTENT_VARIABLE] = content_with_plugins_of(ours[CONTENT_VARIABLE], users)
        return {
            **of_no_pane(spec.environment),  # another pane's token would let it speak as that one
            **_STANDS_STILL.get(launch.harness, {}),
            **ours,
            **self._ways_in(launch.pane_id),
        }

    def _check_proofs(self, pane_id: str, spec: PaneSpec) -> None:
        """A successor is launched with its predecessor's capabilities, and the program may be another by now."""
        judged, now = spec.version, version_of(spec)
        if judged is not None and self.capabilities(spec.harness, judged) != self.capabilities(spec.harness, now):
            raise LaunchError(
                f"{spec.argv[0]!r:.200} is version {now} now and was {judged} when pane {pane_id!r} was started, and "
                "does not prove the same; start the pane again yourself"
            )

    def _settings(self, launch: Launch, spec: PaneSpec) -> str:
        if launch.harness == "codex":
            project = Path(spec.cwd)
            users = project / users_codex_home(spec.environment)
            return str(write_codex_home(self.folder, launch.incarnation_id, self.hook, users, project))
        if launch.harness == "opencode":
            return str(write_opencode_plugin(self.folder, launch.incarnation_id, self.hook))
        return str(write_claude_settings(self.folder, launch.incarnation_id, self.hook))

    def _channel(self, launch: Launch, spec: PaneSpec) -> list[str]:
        """The options by which Claude Code loads the channel; no other harness takes one from its command line."""
        if spec.channel is Channel.NONE or launch.harness != "claude-code":
            return []
        pushes = spec.channel is Channel.EVENTS
        config = write_claude_channel(self.folder, launch.incarnation_id, mcp_config(pushes=pushes))
        return claude_options(config, pushes=pushes)

    def _ways_in(self, pane_id: str) -> dict[str, str]:
        link, fleet = self.link_of(pane_id), self.fleet_url()
        return {} if link is None or fleet is None else {"FENCEPOST_LINK": link, "FENCEPOST_FLEET": fleet}


def _session(harness: str, session_id: str | None, environment: Mapping[str, str]) -> Session | None:
    """The conversation to go on with, or to begin under the id that the launch gives it.

    One whose transcript holds no message yet can be neither: Claude Code finds no conversation there, and takes the id
    for one in use.  So one begins under another id, which the hooks of the process then tell.
    """
    if session_id is None or not HARNESSES[harness].names_sessions:
        return None if session_id is None else Session(session_id)
    transcript = _transcript_of(session_id, environment)
    if transcript is None:
        return Session(session_id, is_new=True)
    return Session(session_id) if _has_messages(transcript) else Session(str(uuid4()), is_new=True)


def _transcript_of(session_id: str, environment: Mapping[str, str]) -> Path | None:
    wanted = f"{session_id}.jsonl"
    found = (path for root in transcript_roots(environment) for path in root.glob("*/*.jsonl") if path.name == wanted)
    return next(found, None)


def _has_messages(transcript: Path) -> bool:
    """Whether anything was said: a process that was killed at its start leaves a file with its modes and no more."""
    with transcript.open("rb") as file:
        beginning = file.read(WINDOW_BYTES)
    return len(beginning) == WINDOW_BYTES or any(map(_is_message, beginning.splitlines()))


def _is_message(line: bytes) -> bool:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return False  # the last one, cut off by the death of its writer
    return isinstance(said, dict) and said.get("type") in {"user", "assistant"}


def version_of(spec: PaneSpec) -> str:
    """The version that the pane's program says it has.  Blocks, up to 20 seconds.

    Raises `LaunchError` where it cannot be asked; the pane is then not started either.
    """
    try:
        asked = subprocess.Popen(  # noqa: S603 - the program the user named, and no shell
            [spec.argv[0], "--version"],
            env=of_no_pane(spec.environment),
            cwd=spec.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise LaunchError(_not_found(spec, error)) from error
    except OSError as error:
        raise LaunchError(f"{spec.argv[0]!r:.200} could not be asked for its version: {error}") from error
    try:
        said = _first_words(asked).decode(errors="replace")
    except TimeoutError as error:
        raise LaunchError(f"{spec.argv[0]!r:.200} could not be asked for its version: {error}") from error
    finally:
        _give_up(asked)
    found = _VERSION.search(said)
    if asked.returncode != 0 or found is None:
        raise LaunchError(
            f"{spec.argv[0]!r:.200} is no {spec.harness} that can be run: asked with --version it said "
            f"{_first_line(said)}, and ended with status {asked.returncode}"
        )
    return found[0]


def _not_found(spec: PaneSpec, error: FileNotFoundError) -> str:
    """A folder to run in that is gone, or the interpreter of a script, is told by the same error."""
    program = spec.argv[0]
    if not Path(spec.cwd).is_dir():
        return f"there is no folder {spec.cwd!r:.300} to start it in"
    if "/" in program:
        found = (Path(spec.cwd) / program).exists()
    else:
        found = shutil.which(program, path=spec.environment.get("PATH", os.defpath)) is not None
    if found:
        return f"{program!r:.200} could not be asked for its version: {error}"
    where = "" if "/" in program else " in the PATH of the shell that starts it"
    return f"the program {program!r:.200} is not found{where}"


def _first_line(said: str) -> str:
    """What a program said first, escaped; bounded, with a sign where it was cut."""
    line = next(filter(None, map(str.strip, said.splitlines())), None)
    if line is None:
        return "nothing"
    return f'"{escaped(line[:_LINE_MAX])}{"…" if len(line) > _LINE_MAX else ""}"'


def _first_words(asked: subprocess.Popen[bytes]) -> bytes:
    """What a program has said first, once it has ended; what it leaves running may have its stdout.

    Raises TimeoutError.
    """
    assert asked.stdout is not None
    descriptor, said, deadline = asked.stdout.fileno(), b"", time.monotonic() + _VERSION_SECONDS
    poll = select.poll()  # select knows no descriptor above 1023, and a bridge may have many
    poll.register(descriptor, select.POLLIN)
    while True:
        has_ended = asked.poll() is not None  # asked first: whatever it said is in the pipe then
        if poll.poll(0 if has_ended else 1000 * _LOOK_SECONDS):
            part = os.read(descriptor, 65_536)
            said = (said + part)[:_SAID_BYTES_MAX]
            if not part:  # and it may still run
                with suppress(subprocess.TimeoutExpired):
                    asked.wait(_LOOK_SECONDS)
        if has_ended:
            return said
        if time.monotonic() > deadline:
            raise TimeoutError(f"it has not ended after {_VERSION_SECONDS:g} seconds")


def _give_up(asked: subprocess.Popen[bytes]) -> None:
    """Have nothing of it left: no process that has not ended by itself, and no pipe."""
    if asked.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(asked.pid, signal.SIGKILL)
        asked.wait()
    if asked.stdout is not None:
        asked.stdout.close()
