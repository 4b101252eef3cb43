"""The JMS load, and how its runs are told."""

from collections.abc import Callable

import pytest

from tandemmq.bench.connection import Endpoint
from tandemmq.bench.jms import is_there, jms, run_line
from tandemmq.bench.plan import LoadPlan


def test_a_run_that_failed_is_told() -> None:
    failed = {"case": "sync", "broker": "tandemmq", "round": 2, "problem": "sent 10, received 9\nand more"}

    assert run_line(failed).endswith("– sent 10, received 9")


@pytest.mark.service
@pytest.mark.parametrize("case", ["sync", "async"])
def test_the_bare_program_takes_the_load_as_a_broker_does(
    case: str, require_service: Callable[[object, str], None]
) -> None:
    require_service(is_there(), "no JMS client, or no JDK")
    plan = LoadPlan(Endpoint("", 0), 2, 2, 2, 100, seconds=1.0, warmup_seconds=1.0)
    (run,) = jms([case], ["floor"], 1, plan, lambda line: None)["runs"]
    assert run["problem"] is None
    assert run["sent"] == run["received"] > 0
