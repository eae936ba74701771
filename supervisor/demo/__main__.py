"""`python supervisor/demo`, where no script is installed."""

from __future__ import annotations

from fencepost.supervisor.cli.demo_command import demo

if __name__ == "__main__":
    demo(prog_name="fencepost demo")
