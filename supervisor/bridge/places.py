"""Where each pane works, and where its harness keeps what proves its turns.

The book of panes says so.  What it was told can be lost, while a process goes on that was started by it: then the note
of that process does, as far as it was there when the bridge was opened.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

from attrs import frozen

from fencepost.supervisor.bridge.adapters.transcripts import transcript_roots
from fencepost.supervisor.bridge.panes import PaneBook
from fencepost.supervisor.bridge.processes import ProcessNote

__all__ = ["Places"]


@frozen
class Places:
    """By the book, and by the notes of processes that earlier lives of the bridge have started, by pane."""

    book: PaneBook
    notes: MutableMapping[str, ProcessNote]

    def folder_of(self, pane_id: str) -> str | None:
        """The folder that the pane works in; None if nobody knows."""
        # Who must be told at its start is launched once the files are there, so what is about to run counts.
        spec, note = self.book.next(pane_id), self.notes.get(pane_id)
        if spec is not None:
            return spec.cwd
        return None if note is None else note.cwd

    async def forget(self, pane_id: str) -> None:
        """See `adapters.Forgets`; the book is its keeper's matter."""
        self.notes.pop(pane_id, None)

    def transcripts(self) -> tuple[Path, ...]:
        """Where any pane's Claude Code keeps its transcripts: each pane has an environment of its own."""
        told = [spec.environment for spec in self.book.specs()] + [note.environment for note in self.notes.values()]
        return tuple({*transcript_roots(), *(root for environment in told for root in transcript_roots(environment))})
