"""The browser of this machine, for pages that people open."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BROWSERS = ("chromium", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser(require_service: Callable[[object, str], None]) -> Iterator[Browser]:
    """Started once for a module; each test opens what it wants in it."""
    require_service(importlib.util.find_spec("playwright"), "playwright is not installed")
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None and "ID=debian" not in Path("/etc/os-release").read_text():
        pytest.skip("no Chromium: where it is no package of the system, it may be missing")
    require_service(executable, "chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Its sandbox wants another user than root.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = playwright.chromium.launch(executable_path=executable, args=arguments)
        yield started
        started.close()
