"""What every test shares: profiles for hypothesis, one seed, and the budget of the long sweeps.

FENCEPOST_SWEEP_SECONDS  how long all sweeps together may take (600); those that ask for `sweep_seconds` share it evenly
FENCEPOST_SEED           the seed of whatever a test draws at random; printed at the top of every run
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
import sysconfig
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
SWEEP_SECONDS = pytest.StashKey[float]()
SEED = pytest.StashKey[int]()

# Tests wait for disks and for two event loops, so no deadline; the machine may be busy, so no complaint about slowness.
settings.register_profile(
    "everyday", deadline=None, max_examples=100, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("sweep", settings.get_profile("everyday"), max_examples=2_000)


def pytest_configure(config: pytest.Config) -> None:
    spec = importlib.util.find_spec("mailbox")
    if spec is None or not Path(str(spec.origin)).is_relative_to(sysconfig.get_path("stdlib")):
        raise pytest.UsageError("the standard library's mailbox is shadowed: call `pytest`, not `python -m pytest`")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell's background jobs inherit that, and the tests of Ctrl-C would wait for ever.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # In the environment, so that the processes of a run that is divided draw what one process would.
    config.stash[SEED] = int(os.environ.get("FENCEPOST_SEED") or secrets.randbits(32))
    os.environ["FENCEPOST_SEED"] = str(config.stash[SEED])
    settings.load_profile("sweep" if config.getoption("markexpr") == "slow" else "everyday")


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, object, object]:
    """What a divided run's processes tell each other is UTF-8; what a test logged or failed with may be any text."""
    return _sendable((yield))


def _sendable(told: object) -> object:
    match told:
        case str():
            return told.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {_sendable(name): _sendable(value) for name, value in told.items()}
        case list() | tuple():
            return type(told)(map(_sendable, told))
        case _:
            return told


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: FENCEPOST_SEED={config.stash[SEED]}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"the seed of this run: FENCEPOST_SEED={config.stash[SEED]}")


def pytest_collection_finish(session: pytest.Session) -> None:
    total = float(os.environ.get("FENCEPOST_SWEEP_SECONDS") or 600)
    sharing = sum("sweep_seconds" in getattr(item, "fixturenames", ()) for item in session.items)
    session.config.stash[SWEEP_SECONDS] = total / max(sharing, 1)


@pytest.fixture
def sweep_seconds(request: pytest.FixtureRequest) -> float:
    """How long this test may go on drawing new cases; a sweep that stops early has still passed."""
    return request.config.stash[SWEEP_SECONDS]


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed for whatever this test draws at random."""
    return request.config.stash[SEED]
