"""The browser of this machine, for tests of web pages."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request

BROWSERS = ("chromium", "google-chrome", "google-chrome-stable")
NETWORK_CHANGED = "ERR_NETWORK_CHANGED"
VISITS_MAX = 10


@pytest.fixture(scope="module")
def browser(require_service: Callable[[object, str], None]) -> Iterator[Browser]:
    """Start a browser once for a module; each test opens its own pages."""
    require_service(importlib.util.find_spec("playwright"), "playwright is not installed")
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None and "ID=debian" not in Path("/etc/os-release").read_text():
        pytest.skip("no Chromium: where it is no package of the system, it may be missing")
    require_service(executable, "chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Its sandbox does not run as root.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = playwright.chromium.launch(executable_path=executable, args=arguments)
        yield started
        started.close()


def visit(page: Page, address: str) -> None:
    """Load a page with all its parts. Other tests create networks at the same time, and a browser aborts loads when the
    network changes: then the page is loaded again."""
    given_up: list[str] = []

    def note(request: Request) -> None:
        if NETWORK_CHANGED in (request.failure or ""):
            given_up.append(request.url)

    page.on("requestfailed", note)
    for _ in range(VISITS_MAX):
        given_up.clear()
        try:
            page.goto(address)
        except Exception as error:
            if NETWORK_CHANGED not in str(error):
                raise
            given_up.append(address)
        if not given_up:
            break
    page.remove_listener("requestfailed", note)
    assert not given_up
