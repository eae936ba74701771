"""`fencepost dashboard`, against a bridge in another process."""

from __future__ import annotations

import http.cookiejar
import json
import stat
import urllib.error
import urllib.parse
import urllib.request
import webbrowser
from pathlib import Path

import pytest
from bridge.http_clients import Program
from click.testing import CliRunner

from fencepost.supervisor.cli import main


@pytest.fixture(scope="module")
def bridge(tmp_path_factory):
    with Program(tmp_path_factory.mktemp("state") / "bridge") as program:
        yield program.started()


def run(*arguments):
    return CliRunner().invoke(main, ["dashboard", *map(str, arguments)])


def test_the_link_opens_the_dashboard_once(bridge):
    said = run("--folder", bridge.folder)
    assert (said.exit_code, said.stderr) == (0, "")
    link = said.stdout.strip()
    assert link.startswith(f"{bridge.where['operator']}/dashboard/login?ticket=")
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
    )
    with opener.open(link) as page:
        assert b"Signed in" in page.read()
    with opener.open(f"{bridge.where['operator']}/dashboard") as page:
        assert b"No panes yet." in page.read()
    with opener.open(f"{bridge.where['operator']}/dashboard/health") as page:
        assert b"bridge.db" in page.read()  # the program tells the dashboard where its store is
    with pytest.raises(urllib.error.HTTPError) as told:
        opener.open(link)
    told.value.close()
    assert told.value.code == 401


def test_json_tells_how_long_it_waits(bridge):
    said = json.loads(run("--folder", bridge.folder, "--json").stdout)
    assert said["seconds"] == 60
    assert said["link"].startswith(bridge.where["operator"])


@pytest.mark.parametrize("there_is_one", [True, False])
def test_it_opens_the_users_browser(bridge, monkeypatch, there_is_one):
    opened = []

    def open_link(link):
        opened.append(link)
        return there_is_one

    monkeypatch.setattr(webbrowser, "open", open_link)
    said = run("--folder", bridge.folder, "--open")
    assert said.exit_code == (0 if there_is_one else 2)
    page = Path(urllib.request.url2pathname(urllib.parse.urlsplit(opened[0]).path))
    assert opened == [page.as_uri()], "what everybody can read of a browser's arguments holds no ticket"
    assert page.parent == Path(bridge.folder).absolute()
    assert stat.S_IMODE(page.lstat().st_mode) == 0o600
    assert f'content="0; url={said.stdout.strip()}"' in page.read_text("utf-8")


def test_a_page_that_cannot_be_written_opens_nothing(bridge, monkeypatch):
    def fail(_path, _text, *, shared):
        raise PermissionError("read-only")

    monkeypatch.setattr("fencepost.supervisor.bridge.dashboard.login.replace_private", fail)
    monkeypatch.setattr(webbrowser, "open", lambda _: pytest.fail("nothing is to be opened"))
    said = run("--folder", bridge.folder, "--open")
    assert said.exit_code == 2
    assert said.stdout.startswith("http"), "the link is told all the same"
    assert "read-only; open the link by hand" in said.stderr


def test_where_no_bridge_serves_it_says_so(tmp_path):
    said = run("--folder", tmp_path / "none")
    assert (said.exit_code, said.stdout) == (2, "")
    assert said.stderr.startswith("Error: ")
