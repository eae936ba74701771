"""What the demo saw: told as it happens, and as a table at the end."""

from __future__ import annotations

import json
import sys
import time

from attrs import asdict, field, frozen
from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["Report", "Row"]


@frozen
class Row:
    """One claim, and what was observed of it."""

    step: str
    observed: str
    ok: bool


@frozen
class Report:
    """Collects the rows; colours and a table on a terminal, plain lines elsewhere, or one JSON object at the end."""

    as_json: bool = False
    rows: list[Row] = field(factory=list)
    _began: float = field(factory=time.monotonic)
    _console: Console = field(factory=lambda: Console(highlight=False))

    @property
    def failed(self) -> bool:
        """Whether something did not hold; a demo that checked nothing has not held either."""
        return not self.rows or not all(row.ok for row in self.rows)

    def act(self, title: str) -> None:
        """A new part of the story begins."""
        self._say(f"\n{title}", "bold")

    def happened(self, what: str) -> None:
        """Something happened."""
        self._say(f"  {time.monotonic() - self._began:5.2f} s  {what}", "dim")

    def check(self, step: str, observed: object, ok: object) -> None:
        """Note a claim and what was observed."""
        row = Row(step, ", ".join(map(str, observed)) if isinstance(observed, list) else str(observed), bool(ok))
        self.rows.append(row)
        self._say(f"  {'ok' if row.ok else 'FAILED':>7}  {row.step}: {row.observed}", "green" if row.ok else "bold red")

    def table(self) -> None:
        """Everything at a glance."""
        if self.as_json:
            print(json.dumps({"version": 1, "failed": self.failed, "claims": [asdict(row) for row in self.rows]}))
            return
        if not self._console.is_terminal:
            print()
            for row in self.rows:
                print(f"{'ok' if row.ok else 'FAILED'} | {row.step} | {row.observed}")
            return
        table = Table("step", "observed", "", title="what was claimed, and what was seen")
        for row in self.rows:
            table.add_row(escape(row.step), escape(row.observed), "[green]ok" if row.ok else "[bold red]FAILED")
        self._console.print(table)

    def _say(self, text: str, style: str) -> None:
        if self.as_json:
            return
        if self._console.is_terminal:
            self._console.print(escape(text), style=style)
        else:
            print(text)
            sys.stdout.flush()
