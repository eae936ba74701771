from __future__ import annotations

import itertools

import pytest

_NUMBERS = itertools.count()


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path) -> str:
    """A store that outlives the runtimes on it, of each kind."""
    if request.param == "memory":
        return f"memory://test-{next(_NUMBERS)}"
    return f"sqlite:///{tmp_path}/store.db"
