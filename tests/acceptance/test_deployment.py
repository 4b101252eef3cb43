"""What balancers and monitoring ask a pair for."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.support.acceptance.broker_process import ROOT, BrokerProcess, serving

# -- what is watched -----------------------------------------------------------------------------------------------


@pytest.mark.promise("metrics-exist")
@pytest.mark.parametrize("page", ["docs/operations.md", "deploy/prometheus-rules.yml"])
def test_each_metric_that_is_to_be_watched_is_there(two: tuple[BrokerProcess, BrokerProcess], page: str) -> None:
    named = set(re.findall(r"\btandemmq_[a-z_]+\b", (ROOT / page).read_text()))
    shown = "".join(text(broker, "metrics") for broker in two)
    assert named
    assert {name for name in named if not re.search(rf"^{name}(_bucket)?\b", shown, re.MULTILINE)} == set()


# -- health --------------------------------------------------------------------------------------------------------


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
