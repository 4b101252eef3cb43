"""Alerts and dashboard of deploy/: of metrics that there are, and with a real Prometheus through a failover. Health."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemmq.broker.admin.metric_table import LEFT_OUT, METRICS, OF_DESTINATIONS, Kind
from tests.support.acceptance.broker_process import ROOT, BrokerProcess, serving, tandemmq, wait_until
from tests.support.acceptance.prometheus import Prometheus

RULES = ("deploy/prometheus-rules.yml", "deploy/prometheus-rules-set.yml")
DASHBOARD = "deploy/monitoring/grafana/tandemmq.json"
#: Panels that are empty where nothing is wrong, or where there is no set.
MAY_BE_EMPTY = ("tandemmq_replication_", "tandemmq_demotions_total", "tandemmq_destination_consumers")


def known_names() -> set[str]:
    names = set()
    for named in (*METRICS, LEFT_OUT, *OF_DESTINATIONS):
        parts = ("_bucket", "_sum", "_count") if named.kind is Kind.HISTOGRAM else ("",)
        names |= {named.full_name + part for part in parts}
    return names


def queries() -> list[str]:
    """Of all panels of the dashboard, for the job "tandemmq"."""
    panels = json.loads((ROOT / DASHBOARD).read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [each.replace("$job", "tandemmq").replace("$__rate_interval", "10s") for each in found]


@pytest.mark.promise("metrics-exist")
@pytest.mark.parametrize("file", [*RULES, DASHBOARD, "docs/replication.md"])
def test_alerts_and_panels_ask_for_metrics_that_there_are(file: str) -> None:
    text = (ROOT / file).read_text()
    if file in RULES:  # a summary may name a histogram as a whole
        text = re.sub(r"summary: .*", "", text)
    found = set(re.findall(r"\btandemmq_[a-z_]+\b", text))
    assert found
    assert found - known_names() == set()


def test_every_panel_has_a_place_of_its_own() -> None:
    taken = set()
    for panel in json.loads((ROOT / DASHBOARD).read_text())["panels"]:
        at = panel["gridPos"]
        places = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not places & taken, panel["title"]
        assert max(x for x, _ in places) < 24, panel["title"]
        taken |= places


@pytest.fixture
def promtool(require_service: Callable[[object, str], None]) -> Callable[..., str]:
    require_service(shutil.which("promtool"), "promtool is not installed (Debian: prometheus)")

    def run(*words: str) -> str:
        found = subprocess.run(["promtool", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stdout + found.stderr
        return found.stdout

    return run


@pytest.mark.service
def test_promtool_accepts_the_alerts_and_the_settings(promtool: Callable[..., str]) -> None:
    assert "SUCCESS" in promtool("check", "rules", *RULES)
    assert "SUCCESS" in promtool("check", "config", "--syntax-only", "deploy/monitoring/prometheus.yml")


@pytest.mark.service
@pytest.mark.parametrize("file", ["pair.yml", "set.yml"])
def test_alerts_fire_when_they_should_and_not_before(promtool: Callable[..., str], file: str) -> None:
    assert "SUCCESS" in promtool("test", "rules", f"tests/acceptance/rules/{file}")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[BrokerProcess, ...]]:
    listed = ("--set", "admin.metrics_destinations=>")
    with serving(*(BrokerProcess(tmp_path / "data", name, *listed) for name in "ab")) as pair:
        yield pair


@pytest.fixture
def prometheus(
    pair: tuple[BrokerProcess, BrokerProcess], tmp_path: Path, require_service: Callable[[object, str], None]
) -> Iterator[Prometheus]:
    require_service(shutil.which("prometheus"), "prometheus is not installed")
    rules = tmp_path / "rules.yml"
    # Nobody waits for minutes.
    rules.write_text(re.sub(r"for: \w+", "for: 1s", (ROOT / RULES[0]).read_text()))
    prometheus = Prometheus(tmp_path / "prometheus", [f"127.0.0.1:{each.admin}" for each in pair], rules)
    try:
        yield prometheus
    finally:
        prometheus.stop()


@pytest.mark.service
@pytest.mark.timeout(300)
def test_a_failover_as_prometheus_sees_it(pair: tuple[BrokerProcess, BrokerProcess], prometheus: Prometheus) -> None:
    a, b = pair
    of = {broker: f'instance="127.0.0.1:{broker.admin}"' for broker in pair}

    def seen(expression: str) -> bool:
        return bool(prometheus.query(expression))

    def has_role(broker: BrokerProcess, role: str) -> bool:
        return seen(f'tandemmq_role{{{of[broker]}, role="{role}"}} == 1')

    def use(broker: BrokerProcess) -> None:
        assert tandemmq("send", "orders", "x", "--url", broker.url).returncode == 0
        assert tandemmq("receive", "orders", "--count", "1", "--url", broker.url).returncode == 0
        assert tandemmq("send", "kept", "x", "--url", broker.url).returncode == 0

    # All is well
    use(a)
    wait_until(lambda: has_role(a, "master") and has_role(b, "standby"), "both are scraped")
    expression = f"increase(tandemmq_send_to_receipt_seconds_count{{{of[a]}}}[10s]) > 0"
    wait_until(lambda: [use(a), seen(expression)][1], "the receipts are seen")
    empty = [query for query in queries() if not prometheus.query(query)]
    assert [query for query in empty if not any(name in query for name in MAY_BE_EMPTY)] == []
    assert "TandemMQNoMaster" not in prometheus.alerts()
    # The master dies
    a.kill()
    b.wait_role("master")
    wait_until(lambda: has_role(b, "master"), "the take-over is seen")
    wait_until(lambda: prometheus.alerts().get("TandemMQNoStandby") == "firing", "nobody stands by")
    wait_until(lambda: prometheus.alerts().get("TandemMQUnreachable") == "firing", "one is gone")
    assert seen(f"tandemmq_last_takeover_seconds{{{of[b]}}}")
    # It comes back
    a.start().wait_role("standby")
    wait_until(lambda: prometheus.alerts().get("TandemMQNoStandby") is None, "somebody stands by again")
    # Nobody is left
    a.kill()
    b.kill()
    wait_until(lambda: prometheus.alerts().get("TandemMQNoMaster") == "firing", "there is no master")


@pytest.mark.promise("metrics-exist")
@pytest.mark.parametrize("page", ["docs/operations.md", "deploy/prometheus-rules.yml"])
def test_each_metric_that_is_to_be_watched_is_there(two: tuple[BrokerProcess, BrokerProcess], page: str) -> None:
    named = set(re.findall(r"\btandemmq_[a-z_]+\b", (ROOT / page).read_text()))
    shown = "".join(text(broker, "metrics") for broker in two)
    assert named
    assert {name for name in named if not re.search(rf"^{name}(_bucket)?\b", shown, re.MULTILINE)} == set()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, ...]]:
    """A master and a standby on this host."""
    data = tmp_path_factory.mktemp("two") / "data"
    with serving(*(BrokerProcess(data, name) for name in "ab")) as two:
        yield two


def text(broker: BrokerProcess, page: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{broker.admin}/{page}", timeout=5) as answer:
        return str(answer.read().decode())


def code(broker: BrokerProcess, page: str, method: str = "GET") -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{broker.admin}/{page}", method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


HEALTH = {  # page -> code of a master, of a standby
    "health": (200, 200),
    "health?ready": (200, 503),
    "health/live": (200, 200),
    "health/ready": (200, 503),
    "health/standby": (503, 200),
}


@pytest.mark.promise("health")
@pytest.mark.parametrize("page", HEALTH)
def test_balancers_tell_master_and_standby_apart(two: tuple[BrokerProcess, BrokerProcess], page: str) -> None:
    assert tuple(code(broker, page) for broker in two) == HEALTH[page]
    assert tuple(code(broker, page, "HEAD") for broker in two) == HEALTH[page]
