"""Run page.html of this directory in Chromium. Its console is written to standard output; the end of standard input
stops it."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from playwright.sync_api import sync_playwright


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


addresses, queue = sys.argv[1:]
handler = functools.partial(Quiet, directory=str(Path(__file__).parent))
server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
has_ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), has_ended.set()), daemon=True).start()

with sync_playwright() as playwright:
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
    page = browser.new_page()
    page.on("console", lambda message: message.text.startswith("{") and print(message.text, flush=True))
    page.goto(f"http://127.0.0.1:{server.server_port}/page.html?urls={addresses}&queue={queue}")
    while not has_ended.is_set():
        page.wait_for_timeout(100)  # it processes the events of the page in the meantime
    page.evaluate("stop()")
    page.wait_for_timeout(3_600_000)  # until the driver ends this process
