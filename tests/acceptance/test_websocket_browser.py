"""The page of examples/websocket in a real browser: it continues at the other broker when the master is killed."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.acceptance.broker_process import WAIT_SECONDS_MAX, WebSocketBroker, serving, wait_until
from tests.support.services.browser import visit
from tests.support.tree import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.service

EXAMPLE = ROOT / "examples" / "websocket"
SECOND_MS = 1_000


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def site() -> Iterator[str]:
    """A web server for the example's files, as `python -m http.server` is one."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(EXAMPLE))) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[WebSocketBroker, ...]]:
    with serving(*(WebSocketBroker(tmp_path / "data", name) for name in ("one", "two"))) as pair:
        yield pair


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    opened = browser.new_page()
    opened.set_default_timeout(WAIT_SECONDS_MAX * SECOND_MS)
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    opened.close()
    assert not errors


def number(page: Page, id: str) -> int:
    return int(page.locator(f"#{id}").inner_text())


def is_connected_to(page: Page, broker: WebSocketBroker) -> bool:
    return page.locator("#state").inner_text() == f"connected to {broker.websocket_url}"


def test_messages_go_on_when_the_master_is_killed(
    page: Page, site: str, pair: tuple[WebSocketBroker, WebSocketBroker]
) -> None:
    master, standby = pair
    visit(page, f"{site}/index.html?urls={master.websocket_url},{standby.websocket_url}")
    wait_until(lambda: is_connected_to(page, master), "the page found the master")
    page.locator("#body").fill("h\u00e4llo <b>you</b>")
    page.locator("button").click()
    page.get_by_text("h\u00e4llo <b>you</b>").wait_for()
    page.locator("#every").check()
    wait_until(lambda: number(page, "taken") >= 5, "messages come")

    master.kill()
    wait_until(lambda: is_connected_to(page, standby), "the page found the new master")
    before = number(page, "taken")
    wait_until(lambda: number(page, "taken") >= before + 5, "messages go on")
    page.locator("#every").uncheck()
    wait_until(
        lambda: number(page, "sent") == number(page, "confirmed") == number(page, "taken"),
        "each message was confirmed, and came once",
    )

    master.start()
    master.wait_role("standby")
    standby.terminate()  # and back, in order
    wait_until(lambda: is_connected_to(page, master), "the page found the first again")
    page.locator("#body").fill("again")
    page.locator("button").click()
    page.get_by_text("again").wait_for()


def test_a_page_of_a_foreign_site_does_not_get_in(
    page: Page, site: str, pair: tuple[WebSocketBroker, WebSocketBroker]
) -> None:
    master, _ = pair
    port = site.rpartition(":")[2]
    visit(page, f"http://localhost:{port}/index.html?urls={master.websocket_url}")  # another name is another site
    master.wait_log("may not connect to")
    assert page.locator("#state").inner_text() == "not connected"
