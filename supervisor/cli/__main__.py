"""`python -m fencepost.supervisor.cli`, where no script is installed."""

from __future__ import annotations

from fencepost.supervisor.cli import main

if __name__ == "__main__":
    main(prog_name="fencepost")
