from __future__ import annotations

import pytest
from store_urls import KINDS, urls


@pytest.fixture(params=KINDS)
def url(request, tmp_path) -> str:
    """A store that outlives the runtimes on it, of each kind."""
    return urls(tmp_path, request.param)("store")
