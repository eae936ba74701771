"""A pane's workspace, and the Reconciler that brings it onto a new base: real files, really rewritten.

A workspace is a folder of text files.  Each names the base it is on, then holds the base's text, then the lines the
agent added.  Moving a workspace keeps the agent's lines.  What a move is going to write is stored as an *operation*
before a single file changes; whoever finds a move half done compares the files with it and finishes only what is left.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from attrs import frozen

from fencepost.supervisor import Anchor, AttemptView, NeedsRecovery, Reconciled

FILES = ("api.txt", "limits.txt", "names.txt")
AGENT_LINES = "--- lines of the agent ---\n"

FIRST_BASE, NEXT_BASE = "r1", "r2"

Tell = Callable[..., Awaitable[None]]


def base_text(base: str, name: str) -> str:
    """What a base says about a file."""
    return "".join(f"{name} as {base} has it, rule {number}: keep {base}.\n" for number in range(1, 6))


def compose(base: str, name: str, agent_lines: str = "") -> str:
    """A workspace file on a base."""
    return f"base: {base}\n{base_text(base, name)}{AGENT_LINES}{agent_lines}"


def agent_lines(text: str) -> str:
    """The lines an agent added to a file."""
    return text.partition(AGENT_LINES)[2]


def news(pane_id: str, from_base: str, to_base: str) -> str:
    """What an agent is told of a move."""
    return (
        f"The base of your workspace, {pane_id}, moved: {from_base} → {to_base}.\n"
        f"Rewritten: {', '.join(FILES)}. The lines you added are kept.\n"
        f"Nothing of your last step was run. Read the files again, then go on.\n"
    )


def told_base(text: str, known: str) -> str:
    """The base an agent knows of once it has read a text."""
    return text.partition(" → ")[2].partition(".")[0] or known


def make_workspace(folder: Path, base: str) -> None:
    """Check a base out."""
    folder.mkdir(parents=True)
    for name in FILES:
        (folder / name).write_text(compose(base, name), encoding="utf-8")


def read_workspace(folder: Path) -> dict[str, str]:
    """Every file's text."""
    return {name: (folder / name).read_text(encoding="utf-8") for name in FILES}


def fingerprint(*parts: object) -> str:
    """One name for one content."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


@frozen
class Operation:
    """One move of one workspace: what every file holds before and after."""

    before: Mapping[str, str]
    after: Mapping[str, str]

    @classmethod
    def planned(cls, files: Mapping[str, str], to_base: str) -> Operation:
        """The move of a workspace as it is now."""
        return cls(files, {name: compose(to_base, name, agent_lines(text)) for name, text in files.items()})

    @property
    def operation_id(self) -> str:
        """The same move has the same id, whoever plans it."""
        return f"move-{fingerprint(self.before, self.after)}"

    @property
    def starting_op(self) -> str:
        """The state it starts from."""
        return f"tree-{fingerprint(self.before)}"

    def probe(self, files: Mapping[str, str]) -> dict[str, str]:
        """How far each file has come: before, after, torn (a part of what we were writing), or somebody else's."""
        return {name: self._probe(name, text) for name, text in files.items()}

    def _probe(self, name: str, text: str) -> str:
        if text in {self.before[name], self.after[name]}:
            return "after" if text == self.after[name] else "before"
        return "torn" if self.after[name].startswith(text) else "foreign"

    def save(self, folder: Path) -> None:
        """Keep it, durably."""
        folder.mkdir(exist_ok=True)
        write_durably(folder / "new", json.dumps({"before": dict(self.before), "after": dict(self.after)}))
        (folder / "new").replace(folder / self.operation_id)

    @classmethod
    def load(cls, path: Path) -> Operation:
        """Read a kept one again."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def write_durably(path: Path, text: str) -> None:
    """Write a file in place, and onto the disk."""
    with path.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


class Mover:
    """The Reconciler: moves a pane's workspace onto the intent's base, over as many crashes as it takes.

    `tell` reports what happens; `interrupt(pane_id, number)` is where the demo stops the world: in the middle of
    writing the `number`th file.
    """

    def __init__(self, root: Path, tell: Tell, interrupt: Callable[[str, int], Awaitable[None]]) -> None:
        self._root = root
        self._tell = tell
        self._interrupt = interrupt

    async def reconcile(self, attempt: AttemptView) -> Reconciled | NeedsRecovery:
        """Plan, then move; a resumed attempt probes the files and takes up the plan it finds."""
        intent, operations = attempt.intent, self._root / "operations"
        folder = self._root / "panes" / intent.pane_id
        if attempt.planned_op is None:
            operation = Operation.planned(read_workspace(folder), intent.to_base)
            operation.save(operations)
            await attempt.plan(operation.operation_id, operation.starting_op)
        else:
            operation = Operation.load(operations / attempt.planned_op)
        probe = operation.probe(read_workspace(folder))
        await self._tell(
            "reconcile", pane=intent.pane_id, resumed=attempt.resumed, plan=attempt.planned_op, probe=probe
        )
        if "foreign" in probe.values():
            return NeedsRecovery("files were changed behind the move's back", details=probe)
        for number, name in enumerate(FILES, start=1):
            if probe[name] != "after":
                await self._write(intent.pane_id, number, folder / name, operation.after[name])
        tree = f"tree-{fingerprint(operation.after)}"
        anchor = Anchor(change_id=intent.pane_id, commit_id=tree, op_id=operation.operation_id)
        payload = news(intent.pane_id, intent.from_base, intent.to_base)
        return Reconciled(operation.operation_id, tree, payload.encode(), anchor)

    async def _write(self, pane_id: str, number: int, path: Path, text: str) -> None:
        write_durably(path, text[: len(text) // 2])
        await self._interrupt(pane_id, number)
        write_durably(path, text)
        await self._tell("wrote", pane=pane_id, file=path.name)
