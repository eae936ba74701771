"""A real browser, and a bridge on real sockets for it: trio runs in a thread, the browser is driven from the test's."""

from __future__ import annotations

import shutil
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from bridge.dashboard_world import dashboard_world
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from fencepost.supervisor.bridge.serve import Addresses, serve

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMEDRIVER = shutil.which("chromedriver")

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None or CHROMEDRIVER is None,
    reason="no Chromium with its driver here (Debian: apt install chromium chromium-driver)",
)


class ServedDashboard:
    """A bridge that serves in a thread; `run` calls an async function there."""

    def __init__(self, folder: Path, make, **more) -> None:
        self._folder, self._make, self._more = folder, make, more
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._live, name="bridge")

    def __enter__(self):
        self._thread.start()
        self._ready.wait(30)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_):
        self.stop()

    def _live(self):
        try:
            trio.run(self._serve)
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self):
        self._token = trio.lowlevel.current_trio_token()
        async with dashboard_world(self._folder / "bridge.db", **self._more) as self.there:
            await self._make(self.there)
            addresses = Addresses(("127.0.0.1", 0), ("127.0.0.1", 0), self._folder / "run" / "local.sock")

            def started(endpoints):
                self.operator = endpoints.operator
                self._ready.set()

            await serve(self.there.bridge, addresses, grace_seconds=2, started=started)

    def run(self, function, *arguments):
        return trio.from_thread.run(function, *arguments, trio_token=self._token)

    def stop(self):
        """End the bridge, as a signal would."""
        if self._thread.is_alive():
            trio.from_thread.run_sync(self.there.bridge.stopping.asked.set, trio_token=self._token)
        self._thread.join(30)

    def login_url(self) -> str:
        """A fresh link."""
        ticket = trio.from_thread.run_sync(self.there.bridge.dashboard.sessions.mint, trio_token=self._token)
        return f"{self.operator}/dashboard/login?ticket={ticket}"


@contextmanager
def chromium(profile: Path):
    """A browser with a profile of its own."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))
    try:
        driver.set_page_load_timeout(30)
        yield driver
    finally:
        driver.quit()


def window(driver, width: int, height: int, *, dark: bool = False) -> None:
    """Make the page this wide, as a phone or a screen is, in light or dark."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
