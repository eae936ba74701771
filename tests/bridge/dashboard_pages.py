"""A browser's view of the dashboard: what a page says, where it links to, and whether it is well formed."""

from __future__ import annotations

import html
import re
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from pathlib import Path

from bridge.dashboard_world import dashboard_world, make_busy

BATCH = "batch%3Aworker-2%2Foperation-1%2Fturn-12"
"""The tool batch of a busy store, as a piece of a path."""


class Links(HTMLParser):
    """A page's links, and whether its elements are closed in order."""

    VOID = frozenset({"meta", "link", "input", "br", "circle", "path", "rect", "line"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []
        assert len(self.ids) == len(set(self.ids))

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.links += [found["href"]] if "href" in found else []
        self.ids += [found["id"]] if "id" in found else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def text_of(page: str) -> str:
    """What a reader sees of it, roughly, on one line."""
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", page.partition('<main id="main" class="wide">')[2]).split()))


async def crawl(browser) -> dict[str, str]:
    """Every page that can be reached, by its path."""
    seen: dict[str, str] = {}
    ahead = ["/dashboard"]
    while ahead:
        path = ahead.pop()
        if path in seen or path.startswith(("/dashboard/static", "#", "?")):
            continue
        answer = await browser.get(path)
        assert answer.status_code == 200, path
        seen[path] = answer.text
        ahead += Links(answer.text).links
    return seen


async def seen(browser, path: str) -> str:
    answer = await browser.get(path)
    assert answer.status_code == 200, answer.text
    Links(answer.text)
    return text_of(answer.text)


@asynccontextmanager
async def busy_dashboard(path: Path):
    """A dashboard over a store with everything in it, and a browser that is logged in."""
    async with dashboard_world(path) as there:
        await make_busy(there)
        async with there.browser() as browser:
            yield there, browser
