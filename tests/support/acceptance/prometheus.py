"""Debian's Prometheus as a process, which scrapes brokers and answers queries."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tandemmq.bench.peers.ports import free_port
from tests.support.acceptance.broker_process import wait_until

CONFIG = """\
global: {{scrape_interval: 500ms, evaluation_interval: 500ms}}
rule_files: [{rules}]
scrape_configs:
  - job_name: tandemmq
    static_configs:
      - targets: [{targets}]
"""
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Prometheus:
    """A Prometheus on a free port, with its files in ``directory``. ``targets``: addresses that it scrapes, HOST:PORT
    each."""

    def __init__(self, directory: Path, targets: Sequence[str], rules: Path) -> None:
        directory.mkdir()
        port = free_port()
        self._url = f"http://127.0.0.1:{port}/api/v1"
        self._log = directory / "log"
        config = directory / "prometheus.yml"
        config.write_text(CONFIG.format(rules=rules, targets=", ".join(f'"{each}"' for each in targets)))
        command = [
            "prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
        ]  # fmt: skip
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
        wait_until(self._is_up, "Prometheus answers")

    def _is_up(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        try:
            self._get("query?query=1")
        except OSError:  # no connection yet, or 503 while it reads its log
            return False
        return True

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query. Fails with the message of Prometheus if the expression is invalid."""
        try:
            found = self._get(f"query?{urllib.parse.urlencode({'query': expression})}")
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from error
        result: list[dict[str, Any]] = found["result"]
        return result

    def alerts(self) -> dict[str, str]:
        """Return the states of pending and firing alerts, by name."""
        return {each["labels"]["alertname"]: each["state"] for each in self._get("alerts")["alerts"]}

    def _get(self, page: str) -> dict[str, Any]:
        with _opener.open(f"{self._url}/{page}", timeout=10) as answer:
            data: dict[str, Any] = json.load(answer)["data"]
        return data

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)
