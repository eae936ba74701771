"""The stores under test.  A further store takes part in the whole conformance suite with one line in STORES."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

STORES = {
    "memory": lambda _folder: f"memory://{uuid4()}",
    "sqlite": lambda folder: f"sqlite:///{folder}/store.db",
    "jsonl": lambda folder: f"jsonl:///{folder}/store.jsonl",
}


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that does not exist yet and can be opened again after it was closed."""
    return STORES[request.param](tmp_path)


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def sqlite_url(sqlite_path: Path) -> str:
    return f"sqlite:///{sqlite_path}"


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before and "fencepost" in thread.name]
    assert not left
