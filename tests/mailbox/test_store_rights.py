"""Who may read a store: what agents were told, and said, is in it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fencepost.supervisor import StoreFault, open_supervisor


@pytest.fixture
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def rights(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


@pytest.mark.parametrize("umask", [0, 0o022, 0o777], indirect=True, ids=oct)
@pytest.mark.parametrize("kind", ["sqlite", "jsonl"])
@pytest.mark.usefixtures("umask")
async def test_a_store_that_is_made_is_its_users_alone(tmp_path, kind):
    tmp_path.chmod(0o700)
    async with open_supervisor(f"{kind}:///{tmp_path}/store") as supervisor:
        await supervisor.pane("pane").launch("claude-code")
        found = rights(tmp_path)
    assert {"store", "store.lock", *(("store-wal", "store-shm") if kind == "sqlite" else ())} == found.keys()
    found.pop("store.lock")  # nothing is said in it, and the umask may take from it
    assert set(found.values()) == {0o600}


@pytest.mark.parametrize("kind", ["sqlite", "jsonl"])
async def test_a_store_that_was_opened_to_others_stays_so(tmp_path, kind):
    url, path = f"{kind}:///{tmp_path}/store", tmp_path / "store"
    for mode in (0o640, 0o600):
        path.touch()
        path.chmod(mode)
        async with open_supervisor(url) as supervisor:
            await supervisor.pane("pane").launch("claude-code")
            assert {mode for name, mode in rights(tmp_path).items() if name != "store.lock"} == {mode}


@pytest.mark.parametrize("kind", ["sqlite", "jsonl"])
async def test_links_that_lead_round_in_a_circle_are_no_store(tmp_path, kind):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StoreFault, match="cannot be followed"):
        async with open_supervisor(f"{kind}:///{tmp_path}/loop"):
            pytest.fail("it was opened")
    assert [path.name for path in tmp_path.iterdir()] == ["loop"]
